/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* odd-flags: makes system calls with flags set that no compiler sets, as the kernel's selftest syscall_nt does; each
 * call must preserve them. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TF = 0x100, DF = 0x400, NT = 0x4000, AC = 0x40000 };

static uint64_t flags(void) {
	uint64_t now;

	__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; popq %0; lea 128(%%rsp), %%rsp" : "=r"(now));
	return now;
}

static void set(uint64_t wanted) {
	__asm__ volatile("lea -128(%%rsp), %%rsp; pushq %0; popfq; lea 128(%%rsp), %%rsp"
			 :
			 : "r"(wanted)
			 : "memory", "cc");
}

static void trapped(int signal) { (void)signal; }

int main(void) {
	static const uint64_t odd[] = {NT, TF, DF, AC, AC | DF, NT | TF, NT | AC, NT | TF | AC | DF};
	const uint64_t all = TF | DF | NT | AC, usual = flags() & ~all;
	static char name[16];

	signal(SIGTRAP, trapped);
	for (unsigned i = 0; i < sizeof odd / sizeof odd[0]; i++)
		for (int call = 0; call < 3; call++) {
			uint64_t after;

			set(usual | odd[i]);
			if (call == 0)
				syscall(SYS_getpid);
			else if (call == 1)
				prctl(PR_GET_NAME, name);
			else
				execl("/nonexistent", "nonexistent", (char *)0);
			after = flags() & all;
			set(usual);
			if (after != odd[i]) {
				printf("%#lx became %#lx\n", (unsigned long)odd[i], (unsigned long)after);
				return 1;
			}
		}
	puts("preserved");
	return 0;
}
