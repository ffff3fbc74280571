/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * filter forbid NUMBER CMD [ARGS]: CMD under a seccomp filter that returns EPERM for this system call.
 * filter kill NUMBER CMD [ARGS]: ... that kills for it.
 * filter tax CMD [ARGS]: CMD under a filter that allows everything, after comparing an argument twenty thousand times.
 * filter container CMD [ARGS]: CMD under a filter for the calls that Docker's default profile denies, and ptrace.
 * filter strict COUNT [CMD [ARGS]]: installs a filter that kills for calls that a simple program does not need,
 * clock_gettime and futex among them; reads every clock COUNT times; then executes CMD, or prints `alive`.
 * filter alive: prints `alive`, and makes no other calls than these.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void install(struct sock_filter *code, size_t length) {
	struct sock_fprog program = {.len = (unsigned short)length, .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("filter");
		exit(125);
	}
}

static void answer(unsigned int number, unsigned int action) {
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, action),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	install(code, sizeof(code) / sizeof(code[0]));
}

/* Compares an argument, so that the kernel cannot know the result in advance. */
static void tax(void) {
	enum { COUNT = 4000 };
	static struct sock_filter code[COUNT + 2];

	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
	for (unsigned int i = 1; i <= COUNT; i++) {
		code[i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x7fffabcd + i, 0, 0);
	}
	code[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	/* As several filters: the kernel accepts 4096 instructions at a time. */
	for (unsigned int filters = 0; filters < 5; filters++) {
		install(code, COUNT + 2);
	}
}

#ifdef __arm__
#define SYS_newfstatat SYS_fstatat64
#define SYS_mmap SYS_mmap2
#define SYS_arch_prctl 0xf0005 /* set_tls */
#endif
#ifdef __aarch64__
#define SYS_access SYS_faccessat
#define SYS_arch_prctl SYS_set_tid_address
#define SYS_readlink SYS_readlinkat
#endif

/* The calls for starting a program, and for its end. */
static const unsigned int needed[] = {
    SYS_read,       SYS_write,           SYS_close,           SYS_fstat,     SYS_newfstatat,   SYS_openat,
    SYS_mmap,       SYS_mprotect,        SYS_munmap,          SYS_brk,       SYS_pread64,      SYS_access,
    SYS_arch_prctl, SYS_set_tid_address, SYS_prlimit64,       SYS_getrandom, SYS_exit_group,   SYS_execve,
    SYS_readlink,   SYS_rt_sigprocmask,  SYS_set_robust_list, SYS_lseek,     SYS_rt_sigaction, SYS_getuid,
    SYS_getgid,     SYS_geteuid,         SYS_getegid,         SYS_rseq,      SYS_readlinkat,
};

static void be_strict(void) {
	enum { COUNT = sizeof(needed) / sizeof(needed[0]) };
	struct sock_filter code[COUNT + 3] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};

	for (unsigned int i = 0; i < COUNT; i++) {
		struct sock_filter compare =
		    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, needed[i], (unsigned char)(COUNT - i), 0);
		code[i + 1] = compare;
	}
	code[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	install(code, COUNT + 3);
}

/* https://docs.docker.com/engine/security/seccomp: calls that are denied without a capability. ptrace as before Linux
 * 4.8. */
static const unsigned int denied[] = {
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    SYS_bpf,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_unshare,
    SYS_setns,
    SYS_userfaultfd,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_clock_settime,
    SYS_settimeofday,
    SYS_clock_adjtime,
    SYS_acct,
    SYS_quotactl,
    SYS_swapon,
    SYS_swapoff,
    SYS_mbind,
    SYS_set_mempolicy,
    SYS_move_pages,
    SYS_open_by_handle_at,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    438 /* pidfd_getfd */,
};

static void be_contained(void) {
	enum { COUNT = sizeof(denied) / sizeof(denied[0]) };
	const struct sock_filter end[] = {
	    /* Namespaces are made by flags; clone3 has them in memory, which no filter sees. */
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435 /* clone3 */, 4, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
	    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 2, 0),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_filter code[1 + COUNT + sizeof(end) / sizeof(end[0])] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};

	for (unsigned int i = 0; i < COUNT; i++) {
		struct sock_filter compare =
		    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[i], (unsigned char)(COUNT - i - 1 + 6), 0);
		code[1 + i] = compare;
	}
	memcpy(code + 1 + COUNT, end, sizeof(end));
	install(code, sizeof(code) / sizeof(code[0]));
}

static void read_clocks(long count) {
	static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME,
					   CLOCK_TAI};
	struct timespec time;
	struct timeval of_day;

	for (long i = 0; i < count; i++) {
		for (size_t c = 0; c < sizeof(clocks) / sizeof(clocks[0]); c++) {
			clock_gettime(clocks[c], &time);
		}
		gettimeofday(&of_day, NULL);
	}
}

int main(int argc, char **argv) {
	if (argc > 3 && strcmp(argv[1], "forbid") == 0) {
		answer((unsigned int)atoi(argv[2]), SECCOMP_RET_ERRNO | EPERM);
	} else if (argc > 3 && strcmp(argv[1], "kill") == 0) {
		answer((unsigned int)atoi(argv[2]), SECCOMP_RET_KILL_PROCESS);
	} else if (argc > 2 && strcmp(argv[1], "container") == 0) {
		be_contained();
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		return 126;
	} else if (argc > 2 && strcmp(argv[1], "tax") == 0) {
		tax();
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		return 126;
	} else if (argc > 2 && strcmp(argv[1], "strict") == 0) {
		be_strict();
		read_clocks(atol(argv[2]));
		if (argc == 3) {
			puts("alive");
			return 0;
		}
	} else if (argc == 2 && strcmp(argv[1], "alive") == 0) {
		puts("alive");
		return 0;
	} else {
		return 2;
	}
	execvp(argv[3], argv + 3);
	perror(argv[3]);
	return 126;
}
