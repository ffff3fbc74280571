/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An i386 program without a libc, so that building it requires no i386 packages: prints `32-bit` and exits 32. */

static long call(long number, long a, long b, long c) {
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
	return result;
}

void _start(void) {
	static const char text[] = "32-bit\n";

	/* write, exit: numbers 4 and 1 of the i386 table */
	call(4, 1, (long)text, sizeof(text) - 1);
	call(1, 32, 0, 0);
	__builtin_unreachable();
}
