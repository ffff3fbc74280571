/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "compiler.h"
#include "isa.h"
#include "latch.h"
#include "syscall.h"
#include "types.h"

#ifdef FP_HAS_CPU_NUMBER
#include "cpu.h"
#else
/* User space can read no register with the number. */
FP_INLINE int fp_read_cpu_node(fp_u32 page_flags, struct fp_cpu_node *here) {
	(void)page_flags;
	(void)here;
	return 0;
}
#endif

/* For a process whose kernel has this function, an instance replaces this one by a jump to it
 * (core/image/src/instance.rs). */
long FP_NAME(getcpu)(unsigned *cpu, unsigned *node, void *unused) {
	struct fp_cpu_node here;
	fp_u32 flags;

	if (fp_unlikely(fp_is_moved(fp_hres())))
		goto system_call;
	flags = fp_header()->flags;
	if (flags & FP_PAGE_ONE_CPU)
		here = (struct fp_cpu_node){fp_header()->cpu, fp_header()->node};
	else if (!fp_read_cpu_node(flags, &here))
		goto system_call;
	if (cpu)
		*cpu = here.cpu;
	if (node)
		*node = here.node;
	return 0;

system_call:
	return fp_syscall3(FP_NR_getcpu, (long)cpu, (long)node, (long)unused);
}
FP_ALIAS(getcpu)
