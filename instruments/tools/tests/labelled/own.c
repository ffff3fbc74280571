/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program without a C library. WAY 0 reads no clock; 1 uses a system call; 2 uses the vsyscall page; 3 is like 1
 * and names an old glibc. */

#if defined(__x86_64__)
#define CLOCK_GETTIME 228
#define EXIT 60
static long call(long number, long a, long b) {
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
	return result;
}
#elif defined(__i386__)
#define CLOCK_GETTIME 403
#define EXIT 1
static long call(long number, long a, long b) {
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b) : "memory");
	return result;
}
#elif defined(__aarch64__)
#define CLOCK_GETTIME 113
#define EXIT 93
static long call(long number, long a, long b) {
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
	return x0;
}
#elif defined(__arm__)
#define CLOCK_GETTIME 263
#define EXIT 1
#endif

#if WAY == 3
__attribute__((used)) static const char tunables[] = "GLIBC_TUNABLES\0glibc.malloc.tcache_count\0glibc.elision.enable";
#endif

static long long time[2];

void _start(void) {
#if WAY == 2
	((long (*)(long *))0xffffffffff600400)((long *)time);
#elif defined(__arm__)
	/* The assembler sets r7: it is Thumb's frame pointer, so the compiler reserves it. */
#if WAY != 0
	__asm__ volatile("mov r0, #1\n\tmov r1, %0\n\tmovw r7, #263\n\tsvc #0" : : "r"(time) : "r0", "r1", "memory");
#endif
	__asm__ volatile("mov r0, #0\n\tmov r7, #1\n\tsvc #0" : : : "r0", "memory");
#elif WAY != 0
	/* These constants stay constants without optimisation, too. */
#if defined(__x86_64__)
	__asm__ volatile("mov $228, %%eax\n\tsyscall" : : "D"(1), "S"(time) : "rax", "rcx", "r11", "memory");
#elif defined(__i386__)
	__asm__ volatile("mov $403, %%eax\n\tint $0x80" : : "b"(1), "c"(time) : "eax", "memory");
#else
	__asm__ volatile("mov x0, #1\n\tmov x1, %0\n\tmov x8, #113\n\tsvc #0"
			 :
			 : "r"(time)
			 : "x0", "x1", "x8", "memory");
#endif
#endif
#if !defined(__arm__)
	call(EXIT, 0, 0);
#endif
	for (;;) {
	}
}
