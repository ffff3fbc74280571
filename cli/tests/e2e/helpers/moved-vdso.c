/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * moved-vdso MODE [wait]: does with its vDSO what other programs do, by system calls that no library makes, and
 * compares its clocks with the kernel's. With `wait`, it prints `ready` and waits for SIGUSR1 before.
 *
 *     moved      moves the vDSO and its data, as DMTCP's restarter does
 *     restored   moves them, unmaps all memory files, and moves them on, as criu's restorer does
 *     removed    unmaps the vDSO and its data, as Valgrind and rr do, and makes system calls of its own only
 *
 * The second place is a multiple of 4 GiB away from the first one, where that is possible.
 */
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Its number is an argument: a system call with a known number may be rescued. */
__attribute__((noinline)) static long call(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__i386__)
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
	return result;
#else
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x8 __asm__("x8") = number;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x8) : "memory");
	return x0;
#endif
}

static _Noreturn void end(const char *message, int status) {
	call(SYS_write, 1, (long)message, (long)strlen(message), 0, 0);
	call(SYS_exit_group, status, 0, 0, 0, 0);
	__builtin_trap();
}

struct part {
	unsigned long start, end;
};
/* Of the vDSO and its data, and of memory files. */
static struct part vdso[8], files[32];
static int vdso_parts, file_parts;

static void read_maps(void) {
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		struct part part;

		if (sscanf(line, "%lx-%lx", &part.start, &part.end) != 2)
			continue;
		if ((strstr(line, "[vdso]") || strstr(line, "[vvar")) && vdso_parts < 8)
			vdso[vdso_parts++] = part;
		if (strstr(line, "/memfd:") && file_parts < 32)
			files[file_parts++] = part;
	}
	if (maps)
		fclose(maps);
}

/* Moves the vDSO and its data there. */
static void move_to(unsigned long to) {
	const unsigned long from = vdso[0].start;

	for (int i = 0; i < vdso_parts; i++) {
		const unsigned long size = vdso[i].end - vdso[i].start, there = to + (vdso[i].start - from);

		if (call(SYS_mremap, (long)vdso[i].start, (long)size, (long)size, MREMAP_MAYMOVE | MREMAP_FIXED,
			 (long)there) != (long)there)
			end("cannot be moved\n", 2);
		vdso[i] = (struct part){there, there + size};
	}
}

static void *function(unsigned long base, const char *name) {
	const ElfW(Ehdr) *elf = (const void *)base;
	const ElfW(Phdr) *segment = (const void *)(base + elf->e_phoff);
	const ElfW(Dyn) *dynamic = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *strings = NULL;
	const unsigned *hash = NULL;
	unsigned long bias = base;

	for (int i = 0; i < elf->e_phnum; i++) {
		if (segment[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(base + segment[i].p_offset);
		/* User Mode Linux's is linked to an address. */
		if (segment[i].p_type == PT_LOAD)
			bias = base - segment[i].p_vaddr;
	}
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		const void *at = (const void *)(bias + dynamic->d_un.d_ptr);

		if (dynamic->d_tag == DT_SYMTAB)
			symbols = at;
		if (dynamic->d_tag == DT_STRTAB)
			strings = at;
		if (dynamic->d_tag == DT_HASH || (dynamic->d_tag == DT_GNU_HASH && !hash))
			hash = at;
	}
	for (int i = 0; symbols && i < 40; i++)
		if (!strcmp(strings + symbols[i].st_name, name))
			return (void *)(bias + symbols[i].st_value);
	return NULL;
}

#ifdef __aarch64__
#define PREFIX "__kernel_"
#else
#define PREFIX "__vdso_"
#endif

typedef int get(clockid_t, struct timespec *);
typedef int get_day(struct timeval *, struct timezone *);

static long long ns(struct timespec time) { return time.tv_sec * 1000000000LL + time.tv_nsec; }

/* Compares a clock with the kernel's before and after. */
static void compare(get *read, clockid_t clock) {
	struct timespec before, between, after;

	call(SYS_clock_gettime, clock, (long)&before, 0, 0, 0);
	if (read(clock, &between))
		end("a clock fails\n", 3);
	call(SYS_clock_gettime, clock, (long)&after, 0, 0, 0);
	/* The anchor may be as far from the kernel as half of the cost of a system call: docs/counter.md. */
	if (ns(between) < ns(before) - 1000 || ns(between) > ns(after) + 1000)
		end("a clock is wrong\n", 4);
}

static void compare_all(get *read, get_day *read_day) {
	static const clockid_t clocks[] = {0, 1, 2, 4, 5, 6, 7, 11};
	struct timezone zone = {77, 77};
	struct timeval day;

	for (int round = 0; round < 1000; round++) {
		for (unsigned i = 0; i < sizeof(clocks) / sizeof(*clocks); i++)
			compare(read, clocks[i]);
		if (read_day(&day, NULL) || read_day(&day, &zone) || read_day(NULL, NULL))
			end("gettimeofday fails\n", 5);
		struct timespec now;
		call(SYS_clock_gettime, 0, (long)&now, 0, 0, 0);
		if (llabs((now.tv_sec - day.tv_sec) * 1000000LL + now.tv_nsec / 1000 - day.tv_usec) > 1000000)
			end("gettimeofday is wrong\n", 6);
	}
	if (zone.tz_minuteswest == 77)
		end("no time zone\n", 7);
}

static int by_system_call(clockid_t clock, struct timespec *time) {
	return (int)syscall(SYS_clock_gettime, clock, time);
}

static int day_by_system_call(struct timeval *day, struct timezone *zone) {
	return (int)syscall(SYS_gettimeofday, day, zone);
}

int main(int argc, char **argv) {
	const char *mode = argc > 1 ? argv[1] : "";
	const unsigned long base = getauxval(AT_SYSINFO_EHDR);

	if (argc > 2) {
		sigset_t go;
		int signal;

		sigemptyset(&go);
		sigaddset(&go, SIGUSR1);
		sigprocmask(SIG_BLOCK, &go, NULL);
		puts("ready");
		fflush(stdout);
		sigwait(&go, &signal);
	}
	read_maps();
	if (!base || !vdso_parts)
		end("no vDSO\n", 125);
	if (!strcmp(mode, "removed")) {
		unsigned cpu;

		for (int i = 0; i < vdso_parts; i++)
			call(SYS_munmap, (long)vdso[i].start, (long)(vdso[i].end - vdso[i].start), 0, 0, 0);
		compare_all(by_system_call, day_by_system_call);
		for (int round = 0; round < 100; round++) {
			if (syscall(SYS_getcpu, &cpu, NULL, NULL))
				end("getcpu fails\n", 8);
#ifdef SYS_time
			if (syscall(SYS_time, NULL) <= 0)
				end("time fails\n", 8);
#endif
		}
		end("right\n", 0);
	}
	const unsigned long start = vdso[0].start, size = vdso[vdso_parts - 1].end - start, distance = base - start;
	const unsigned long parking = (unsigned long)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *wish = sizeof(long) == 8 ? (void *)(start - (5ul << 16 << 16)) : NULL;
	const unsigned long place = (unsigned long)mmap(wish, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!strcmp(mode, "restored")) {
		move_to(parking);
		for (int i = 0; i < file_parts; i++)
			call(SYS_munmap, (long)files[i].start, (long)(files[i].end - files[i].start), 0, 0, 0);
	}
	move_to(place);
	get *read_clock = (get *)function(place + distance, PREFIX "clock_gettime");
	get_day *read_day = (get_day *)function(place + distance, PREFIX "gettimeofday");
	if (!read_clock || !read_day)
		end("no functions\n", 125);
	compare_all(read_clock, read_day);
	end("right\n", 0);
}
