/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reads clocks by its own system calls: clock_gettime inline, and clock_gettime, gettimeofday, clock_getres and getcpu
 * by libc's function for any call.
 *
 * raw-clock           without a seccomp filter
 * raw-clock filtered  under a filter that allows everything
 * raw-clock address   the same, but it tests the address of the call
 * raw-clock refused   under a filter that returns EPERM for clock_gettime
 * raw-clock thread    with a second thread, only which has that filter
 * raw-clock threads   the same, with 300 other threads without a filter
 * raw-clock later     installs that filter after some time, and ends
 * raw-clock counter   forbids itself the counter after some time, and ends
 * raw-clock strict    with a second thread in seccomp's strict mode, which waits forever
 *
 * It ends with 1 if a call returns anything else than without fastpath.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef LARGE
/* Code that takes some 200 ms to analyse. */
__asm__(".text\n	.skip 32 << 20");
#endif

static int read_inline(struct timespec *time) {
#if defined(__x86_64__)
	long result;

	__asm__ volatile("mov $228, %%eax\n	syscall" : "=a"(result) : "D"(1), "S"(time) : "rcx", "r11", "memory");
	return (int)result;
#else
	register long x0 __asm__("x0") = 1;
	register struct timespec *x1 __asm__("x1") = time;

	__asm__ volatile("mov x8, #113\n	svc #0" : "+r"(x0) : "r"(x1) : "x8", "memory");
	return (int)x0;
#endif
}

static void install(struct sock_filter *code, size_t length) {
	struct sock_fprog program = {.len = (unsigned short)length, .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		exit(2);
	}
}

static void allow(void) {
	struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};

	install(code, 1);
}

static void allow_by_address(void) {
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 0),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	install(code, sizeof(code) / sizeof(code[0]));
}

static void refuse(void) {
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	install(code, sizeof(code) / sizeof(code[0]));
}

static atomic_int is_confined;

/* Makes each call a number of times (-1: forever), and ends the program if one returns something else. */
static void read_clocks(int is_refused, long times) {
	struct timespec time, resolution;
	struct timeval of_day;
	unsigned cpu;

	while (times < 0 || times-- > 0) {
		const int result = read_inline(&time);
		const long of_libc = syscall(SYS_clock_gettime, 0, &time) ? -errno : 0;
		const int expected = is_refused ? -EPERM : 0;

		if (result != expected || of_libc != expected || syscall(SYS_gettimeofday, &of_day, NULL) ||
		    syscall(SYS_clock_getres, 1, &resolution) || syscall(SYS_getcpu, &cpu, NULL, NULL)) {
			exit(1);
		}
		usleep(1000);
	}
}

static void *read_refused(void *unused) {
	refuse();
	is_confined = 1;
	read_clocks(1, -1);
	return unused;
}

static void *wait_strictly(void *unused) {
	int ends[2];
	char input;

	if (pipe(ends) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) {
		exit(2);
	}
	is_confined = 1;
	while (read(ends[0], &input, 1)) {
	}
	return unused;
}

static void *wait_forever(void *unused) {
	for (;;) {
		pause();
	}
	return unused;
}

static void start_many(void) {
	pthread_attr_t small;
	pthread_t thread;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 * 1024);
	for (int i = 0; i < 300; i++) {
		if (pthread_create(&thread, &small, wait_forever, NULL)) {
			exit(2);
		}
	}
}

static void start(void *run(void *)) {
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL)) {
		exit(2);
	}
	while (!is_confined) {
		usleep(1000);
	}
}

int main(int argc, char **argv) {
	const char *mode = argc > 1 ? argv[1] : "";
	const int is_refused = strcmp(mode, "refused") == 0;

	if (strcmp(mode, "filtered") == 0) {
		allow();
	} else if (strcmp(mode, "address") == 0) {
		allow_by_address();
	} else if (is_refused) {
		refuse();
	} else if (strcmp(mode, "thread") == 0) {
		start(read_refused);
	} else if (strcmp(mode, "threads") == 0) {
		start_many();
		start(read_refused);
	} else if (strcmp(mode, "strict") == 0) {
		start(wait_strictly);
	}
	printf("ready\n");
	fflush(stdout);
	if (strcmp(mode, "later") == 0) {
		read_clocks(0, 200);
		refuse();
		read_clocks(1, 200);
		return 0;
	}
	if (strcmp(mode, "counter") == 0) {
		read_clocks(0, 200);
		prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
		read_clocks(0, 200);
		return 0;
	}
	read_clocks(is_refused, -1);
}
