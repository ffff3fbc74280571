/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "patches.h"

#include <signal.h>
#include <string.h>

#include "calls.h"

/* Returns whether these bytes, as many as the patch has, are at its address. */
static bool has(const struct fastpathd_patch *patch, const uint8_t *bytes) {
	const uint8_t *there = (const void *)(uintptr_t)patch->address;

	for (uint32_t i = 0; i < patch->size; i++)
		if (there[i] != bytes[i])
			return false;
	return true;
}

static bool belongs_here(const struct fastpathd_patch *patch, const struct vdso *vdso) {
	return patch->size && patch->size <= FASTPATHD_PATCH_BYTES && patch->address >= vdso->base &&
	       patch->address <= vdso->end - patch->size && has(patch, patch->original);
}

/* Returns whether there is memory at an address: the kernel reads a signal mask there before it rejects the operation.
 */
static bool is_mapped(uint64_t address) {
	return fp_syscall4(FP_NR_rt_sigprocmask, -1, (long)address, 0, sizeof(uint64_t)) != -EFAULT;
}

/* A program may have moved its vDSO. */
bool fp_is_applied(const struct fastpathd_patch *patch) {
	return is_mapped(patch->address) && has(patch, patch->replacement);
}

bool fp_read_patches(const struct prepared *prepared, const struct vdso *vdso, struct patches *patches,
		     struct why *why) {
	uint32_t count = prepared->answer.patches;

	if (!count || count > sizeof(patches->patch) / sizeof(patches->patch[0]))
		return fp_because(why, "the daemon's plan redirects no function, or more than there are", 0);
	long size = (long)(count * sizeof(patches->patch[0]));
	if (fp_read_at(prepared->fd[FP_PLAN_FD], patches->patch, (size_t)size, prepared->answer.patches_offset) != size)
		return fp_because(why, "the daemon's plan is shorter than it says", 0);
	for (uint32_t i = 0; i < count; i++)
		if (!belongs_here(&patches->patch[i], vdso))
			return fp_because(
			    why,
			    "this vDSO is not as the kernel made it: it is redirected already, or not the daemon's", 0);
	patches->count = count;
	return true;
}

bool fp_apply_patches(const struct patches *patches, const struct vdso *vdso, struct why *why) {
	uintptr_t size = vdso->end - vdso->base;
	const uint64_t all = ~0ull;
	uint64_t blocked;
	/* A handler may read a clock. There is no other thread. */
	long error = fp_syscall4(FP_NR_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&blocked, sizeof(all));

	if (error)
		return fp_because(why, "signals cannot be blocked while the vDSO changes", error);
	/* Executable all the time: a system that forbids this fails here, and not when the code is made executable
	 * again. */
	error = fp_protect(vdso->base, size, PROT_READ | PROT_WRITE | PROT_EXEC);
	if (!error) {
		for (uint32_t i = 0; i < patches->count; i++) {
			const struct fastpathd_patch *patch = &patches->patch[i];
			memcpy((void *)(uintptr_t)patch->address, patch->replacement, patch->size);
		}
		fp_make_executable((void *)vdso->base, (void *)vdso->end);
		/* If this failed, after the first call succeeded, the result would still be right. */
		fp_protect(vdso->base, size, PROT_READ | PROT_EXEC);
	}
	fp_syscall4(FP_NR_rt_sigprocmask, SIG_SETMASK, (long)&blocked, 0, sizeof(blocked));
	return !error || fp_because(why, "the kernel's vDSO may not be changed here", error);
}
