/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "cpu.h"
#include "latch.h"
#include "names.h"
#include "slots.h"
#include "syscall.h"

long FP_NAME(getcpu)(unsigned *cpu, unsigned *node, void *unused) {
	if (fp_likely(fp_slots.getcpu))
		return fp_slots.getcpu(cpu, node, unused);
	if (fp_page.header.flags & FP_PAGE_CPU_SEGMENT) {
		struct fp_cpu_node here = fp_read_cpu_node();

		if (cpu)
			*cpu = here.cpu;
		if (node)
			*node = here.node;
		return 0;
	}
	return fp_syscall3(FP_SYS_getcpu, (long)cpu, (long)node, (long)unused);
}
FP_ALIAS(getcpu)
