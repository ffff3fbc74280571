/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* bad-pointer: ends with 0 if time() fails for a bad pointer as without a vDSO. */
#include <errno.h>
#include <time.h>

int main(void) {
	time_t *const volatile bad = (time_t *)-1L;

	return time(bad) != -1 || errno != EFAULT;
}
