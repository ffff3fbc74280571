// failing-call CALL N ERRNO FILE FASTPATH ARGUMENTS...: runs fastpath, lets the Nth system call of its helper fail with
// ERRNO, and adds a byte to FILE if there was one. If CALL is not negative, only calls of that number count. Ends as
// fastpath ends.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE)

// Calls that do not fail on a system call's entry, or by which the C library cannot fail; close closes whatever it
// returns.
static int never_fails(unsigned long long nr) {
	return nr == SYS_close || nr == SYS_exit || nr == SYS_exit_group || nr == SYS_futex || nr == SYS_rt_sigreturn ||
	       nr == SYS_munmap;
}

static void end_as(int status) {
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

int main(int count, char **arguments) {
	long counted = count > 5 ? atol(arguments[1]) : 0, left = count > 5 ? atol(arguments[2]) : 0;
	int status, is_helper_known = 0, generations = 0;
	pid_t failing = 0, first = fork();
	if (!first) {
		raise(SIGSTOP);
		execv(arguments[5], arguments + 5);
		_exit(127);
	}
	waitpid(first, &status, WUNTRACED);
	ptrace(PTRACE_SEIZE, first, 0, OPTIONS);
	kill(first, SIGCONT);
	for (;;) {
		pid_t pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			return 1;
		if (!WIFSTOPPED(status)) {
			if (pid == first)
				end_as(status);
			continue;
		}
		int event = status >> 16, signal = WSTOPSIG(status);
		if (!is_helper_known &&
		    (event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_CLONE)) {
			// The program, and the child that makes the helper, are traced by nobody.
			is_helper_known = ++generations == 2;
			ptrace(PTRACE_DETACH, pid, 0, 0);
			continue;
		}
		if (signal != (SIGTRAP | 0x80)) {
			int is_delivered = !event && signal != SIGTRAP;
			ptrace(is_helper_known ? PTRACE_SYSCALL : PTRACE_CONT, pid, 0, is_delivered ? signal : 0);
			continue;
		}
		struct user_regs_struct registers;
		struct __ptrace_syscall_info info;
		ptrace(PTRACE_GETREGS, pid, 0, &registers);
		ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info);
		int counts = info.op == PTRACE_SYSCALL_INFO_ENTRY && !never_fails(registers.orig_rax) &&
			     (counted < 0 || registers.orig_rax == (unsigned long long)counted);
		if (counts && left > 0 && --left == 0) {
			failing = pid;
			registers.orig_rax = -1;
			ptrace(PTRACE_SETREGS, pid, 0, &registers);
			int file = open(arguments[4], O_WRONLY | O_APPEND);
			if (write(file, "x", 1) != 1)
				return 1;
			close(file);
		} else if (info.op == PTRACE_SYSCALL_INFO_EXIT && pid == failing) {
			failing = 0;
			registers.rax = -atol(arguments[3]);
			ptrace(PTRACE_SETREGS, pid, 0, &registers);
		}
		ptrace(PTRACE_SYSCALL, pid, 0, 0);
	}
}
