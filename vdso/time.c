/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "names.h"
#include "slots.h"
#include "syscall.h"

/* time() is aligned to the kernel's tick, as the COARSE clocks are: only the kernel knows it. */
long FP_NAME(time)(long *seconds) {
	if (fp_likely(fp_slots.time))
		return fp_slots.time(seconds);
	return fp_syscall1(FP_SYS_time, (long)seconds);
}
FP_ALIAS(time)
