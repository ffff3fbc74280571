/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * attached: a program that notices every disturbance while it runs.
 *
 *   attached [-s SECONDS]
 *
 * 64 threads read every clock, by libc and by the system call in turns: no read may be below an earlier one of any
 * thread, and libc's time must lie between two of the kernel's. Timer signals interrupt half of them, with handlers
 * that read clocks as well, some on their own stacks. Threads sleep in every possible way and must not wake before
 * their time, nor fail with EINTR unless a signal came; bytes and wake-ups pass between them and must not be lost;
 * calculations must have the same result again and again. Meanwhile children are forked, programs started, threads
 * created, which all read clocks too.
 *
 * It reads commands, one a line: `report` prints the findings so far, one line of JSON, with the number of mappings and
 * descriptors; `stop`, or the end of the input, prints them and ends the program. With -s it stops after so many
 * seconds. Exit status 1 if anything was wrong. The first oddities are printed to standard error. The time must not be
 * set meanwhile.
 *
 * If another process stops this one, the kernel itself lets some calls fail with EINTR (signal(7)); these are counted
 * as unexplained_eintr too.
 */
#include "../clock-lock.h"
#include "attached.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { OTHER_STACK_BYTES = 64 * 1024, PRINTED_AT_MOST = 20, STUCK_AFTER_S = 60 };

static const struct {
	struct role role;
	int count;
} roles[] = {
    {{"order", NEVER, read_in_order}, 4},
    {{"order", AND_EINTR, read_in_order}, 4},
    {{"order", ON_OTHER_STACK, read_in_order}, 4},
    {{"order", ON_OTHER_STACK_AND_RESTART, read_in_order}, 2},
    {{"hot", NEVER, read_hot}, 1},
    {{"hot", AND_RESTART, read_hot}, 1},
    {{"truth", NEVER, read_truth}, 3},
    {{"truth", AND_EINTR, read_truth}, 3},
    {{"compute", NEVER, compute}, 2},
    {{"compute", ON_OTHER_STACK, compute}, 2},
    {{"sleep", NEVER, sleep_in_turns}, 12},
    {{"sleep", AND_EINTR, sleep_in_turns}, 4},
    {{"sleep", AND_RESTART, sleep_in_turns}, 4},
    {{"sleep", ON_OTHER_STACK, sleep_in_turns}, 2},
    {{"write", NEVER, write_pipe}, 1},
    {{"write", AND_RESTART, write_pipe}, 1},
    {{"read", NEVER, read_pipe}, 1},
    {{"read", AND_RESTART, read_pipe}, 1},
    {{"wake", NEVER, wake}, 1},
    {{"wake", AND_RESTART, wake}, 1},
    {{"woken", NEVER, wait_to_be_woken}, 1},
    {{"woken", AND_RESTART, wait_to_be_woken}, 1},
    {{"fork", NEVER, fork_reader}, 1},
    {{"fork", AND_RESTART, fork_reader}, 1},
    {{"fork lasting", NEVER, fork_lasting}, 2},
    {{"fork and exec", NEVER, fork_and_exec}, 1},
    {{"vfork and exec", NEVER, vfork_and_exec}, 1},
    {{"create a thread", NEVER, create_thread}, 1},
    {{"create a thread", AND_RESTART, create_thread}, 1},
};
enum { ROLES = sizeof(roles) / sizeof(roles[0]) };

static const char *const oddity_names[ODDITIES] = {
    "unexplained_eintr", "early",        "odd_results", "lost_bytes",
    "lost_registers",    "wrong_stacks", "wrong_masks", "failed_children",
};

static struct thread threads[MAX_THREADS], main_thread;
static int thread_count;
static atomic_int printed, park;

_Thread_local struct thread *self;

void fail(const char *what) {
	perror(what);
	exit(2);
}

void odd(struct thread *thread, enum oddity oddity, const char *what, long long value) {
	thread->oddities[oddity]++;
	if (atomic_fetch_add(&printed, 1) < PRINTED_AT_MOST) {
		dprintf(STDERR_FILENO, "attached: %s: %s: %s (%lld)\n", thread->role->name, oddity_names[oddity], what,
			value);
	}
}

void sleep_ns(long long ns) {
	struct timespec left = {ns / 1000000000, ns % 1000000000};
	int signals = self->signals;

	while (nanosleep(&left, &left)) {
		if (errno != EINTR || self->signals == signals) {
			odd(self, errno == EINTR ? UNEXPLAINED_EINTR : ODD_RESULT, "nanosleep", errno);
		}
		signals = self->signals;
	}
}

/* Returns a number below `limit`, by xorshift32. */
unsigned int random_below(struct thread *thread, unsigned int limit) {
	unsigned int r = thread->random;

	r ^= r << 13;
	r ^= r >> 17;
	r ^= r << 5;
	thread->random = r;
	return r % limit;
}

static int is_same_mask(const sigset_t *a, const sigset_t *b) {
	/* The part that the kernel uses. */
	return memcmp(a, b, _NSIG / 8) == 0;
}

void check_mask(struct thread *thread, const char *when) {
	sigset_t mask;

	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	if (!is_same_mask(&mask, &thread->mask)) {
		odd(thread, WRONG_MASK, when, 0);
	}
}

/* Each kind of interruption has its own signal, because flags belong to signals. */
static int signal_of(enum interrupts interrupts) { return SIGRTMIN + (int)interrupts; }

static int has_other_stack(enum interrupts interrupts) {
	return interrupts == ON_OTHER_STACK || interrupts == ON_OTHER_STACK_AND_RESTART;
}

/* Starts the timer for one signal at a time, so that the interrupted code makes progress even on a slow machine. */
static void begin_interval(struct thread *thread) {
	struct itimerspec once = {.it_value = {0, 3000000 + (thread->signals * 7919 + thread->number) % 5000 * 1000L}};

	if (timer_settime(thread->timer, 0, &once, NULL)) {
		odd(thread, ODD_RESULT, "timer_settime", errno);
	}
}

static void on_timer(int signal, siginfo_t *info, void *context) {
	struct thread *thread = self;
	int saved_errno = errno;
	char *here = (char *)&saved_errno;
	int is_on_other = here >= thread->other_stack && here < thread->other_stack + OTHER_STACK_BYTES;

	if (signal != signal_of(thread->role->interrupts) || info->si_value.sival_ptr != thread) {
		odd(thread, ODD_RESULT, "another thread's signal", signal);
	}
	if (thread->other_stack && !is_on_other) {
		odd(thread, WRONG_STACK, "a handler", 0);
	}
	if (sigismember(&((ucontext_t *)context)->uc_sigmask, signal)) {
		odd(thread, WRONG_MASK, "a signal that was blocked", signal);
	}
	look_once(&thread->in_handlers);
	thread->signals++;
	begin_interval(thread);
	errno = saved_errno;
}

static void prepare_signals(void) {
	for (enum interrupts i = AND_EINTR; i <= ON_OTHER_STACK_AND_RESTART; i++) {
		struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO};

		if (i == AND_RESTART || i == ON_OTHER_STACK_AND_RESTART) {
			action.sa_flags |= SA_RESTART;
		}
		if (has_other_stack(i)) {
			action.sa_flags |= SA_ONSTACK;
		}
		sigaction(signal_of(i), &action, NULL);
	}
}

static void begin_signals(struct thread *thread) {
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID};

	if (has_other_stack(thread->role->interrupts)) {
		stack_t stack = {.ss_size = OTHER_STACK_BYTES};

		thread->other_stack = stack.ss_sp = malloc(OTHER_STACK_BYTES);
		if (!stack.ss_sp || sigaltstack(&stack, NULL)) {
			fail("sigaltstack");
		}
	}
	event.sigev_signo = signal_of(thread->role->interrupts);
	event.sigev_value.sival_ptr = thread;
	event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	if (timer_create(CLOCK_MONOTONIC, &event, &thread->timer)) {
		fail("timer_create");
	}
	begin_interval(thread);
}

static void begin(struct thread *thread) {
	self = thread;
	sigfillset(&thread->mask);
	if (thread->role->interrupts != NEVER) {
		sigdelset(&thread->mask, signal_of(thread->role->interrupts));
		begin_signals(thread);
	}
	pthread_sigmask(SIG_SETMASK, &thread->mask, NULL);
	/* Signals that cannot be blocked are missing in it. */
	pthread_sigmask(SIG_BLOCK, NULL, &thread->mask);
}

static void *live(void *arg) {
	struct thread *thread = arg;

	begin(thread);
	for (;;) {
		thread->role->turn(thread);
		atomic_fetch_add(&thread->turns, 1);
		while (atomic_load(&park)) {
			atomic_store(&thread->is_parked, 1);
			sleep_ns(1000000);
			atomic_fetch_add(&thread->turns, 1);
		}
		atomic_store(&thread->is_parked, 0);
	}
	return NULL;
}

static void create_threads(void) {
	static const struct role main_role = {"main", NEVER, NULL};
	int numbers[ROLES] = {0};
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	for (int r = 0; r < ROLES; r++) {
		int first = r;

		while (first > 0 && roles[first - 1].role.turn == roles[r].role.turn) {
			first--;
		}
		for (int i = 0; i < roles[r].count; i++) {
			struct thread *thread = &threads[thread_count++];

			thread->role = &roles[r].role;
			thread->number = numbers[first]++;
			thread->random = 2463534242U + (unsigned int)thread_count;
			if (pthread_create(&thread->id, NULL, live, thread)) {
				fail("a thread");
			}
		}
	}
	main_thread.role = &main_role;
	begin(&main_thread);
}

static int is_churn(const struct thread *thread) {
	void (*turn)(struct thread *) = thread->role->turn;

	return turn == fork_reader || turn == fork_lasting || turn == fork_and_exec || turn == vfork_and_exec ||
	       turn == create_thread;
}

/* Waits until `is_so` is true of every thread. Returns the number of threads of which it is not in the end. */
static int await_threads(int (*is_so)(const struct thread *)) {
	long long limit_ns = read_syscall_ns(ID_MONOTONIC) + STUCK_AFTER_S * 1000000000LL;
	int missing = 1;

	while (missing && read_syscall_ns(ID_MONOTONIC) < limit_ns) {
		missing = 0;
		for (int i = 0; i < thread_count; i++) {
			missing += !is_so(&threads[i]);
		}
		if (missing) {
			sleep_ns(2000000);
		}
	}
	return missing;
}

static unsigned long long turns_before[MAX_THREADS];

static int has_gone_on(const struct thread *thread) {
	return atomic_load(&thread->turns) >= turns_before[thread - threads] + 2;
}

static int is_quiet(const struct thread *thread) { return !is_churn(thread) || atomic_load(&thread->is_parked); }

/* Returns the number of threads without progress. */
static int count_stuck(void) {
	int stuck;

	for (int i = 0; i < thread_count; i++) {
		turns_before[i] = atomic_load(&threads[i].turns);
	}
	stuck = await_threads(has_gone_on);
	for (int i = 0; stuck && i < thread_count; i++) {
		if (!has_gone_on(&threads[i])) {
			dprintf(STDERR_FILENO, "attached: %s: stuck\n", threads[i].role->name);
		}
	}
	return stuck;
}

static int count_mappings(void) {
	static char text[65536];
	int file = open("/proc/self/maps", O_RDONLY), lines = 0;
	ssize_t length;

	while ((length = read(file, text, sizeof(text))) > 0) {
		for (ssize_t i = 0; i < length; i++) {
			lines += text[i] == '\n';
		}
	}
	close(file);
	return lines;
}

static int count_descriptors(void) {
	int count = 0;

	for (int fd = 0; fd < 4096; fd++) {
		count += fcntl(fd, F_GETFD) >= 0;
	}
	return count;
}

static void print_findings(const char *name, const struct findings *findings) {
	printf("\"%s\":{\"reads\":%llu,\"violations\":%llu,\"worst_ns\":%lld,\"worst_clock\":%d,", name,
	       findings->reads, findings->violations, findings->worst_ns, findings->worst_clock);
	printf("\"first_ms\":%lld,\"last_ms\":%lld},", findings->first_ms, findings->last_ms);
}

/* Prints everything. Returns whether anything was wrong. */
static int report(void) {
	struct findings order = {0}, truth = {0}, in_handlers = {0};
	unsigned long long oddities[ODDITIES] = {0}, signals = 0, handled_eintr = 0, wrong = 0;
	int stuck = count_stuck(), unparked, mappings, descriptors;

	atomic_store(&park, 1);
	unparked = await_threads(is_quiet);
	mappings = count_mappings();
	descriptors = count_descriptors();
	atomic_store(&park, 0);
	for (int i = 0; i <= thread_count; i++) {
		const struct thread *thread = i < thread_count ? &threads[i] : &main_thread;

		add_findings(&order, &thread->order);
		add_findings(&truth, &thread->truth);
		add_findings(&in_handlers, &thread->in_handlers);
		signals += (unsigned long long)thread->signals;
		handled_eintr += thread->handled_eintr;
		for (int o = 0; o < ODDITIES; o++) {
			oddities[o] += thread->oddities[o];
		}
	}
	printf("{\"now_ms\":%lld,", findings_now_ms());
	printf("\"threads\":%d,\"mappings\":%d,\"descriptors\":%d,\"signals\":%llu,\"handled_eintr\":%llu,",
	       thread_count, mappings, descriptors, signals, handled_eintr);
	print_findings("order", &order);
	print_findings("truth", &truth);
	print_findings("in_handlers", &in_handlers);
	for (int o = 0; o < ODDITIES; o++) {
		printf("\"%s\":%llu,", oddity_names[o], oddities[o]);
		wrong += oddities[o];
	}
	wrong += order.violations + truth.violations + in_handlers.violations + (unsigned int)(stuck + unparked);
	printf("\"stuck\":%d,\"wrong\":%llu}\n", stuck + unparked, wrong);
	fflush(stdout);
	return wrong != 0;
}

/* Returns the next byte of the input. The main thread has its own kind of wait. */
static int next_byte(void) {
	struct pollfd input = {STDIN_FILENO, POLLIN, 0};
	unsigned char byte;

	while (poll(&input, 1, -1) < 0) {
		odd(self, errno == EINTR ? UNEXPLAINED_EINTR : ODD_RESULT, "poll", errno);
	}
	return read(STDIN_FILENO, &byte, 1) == 1 ? byte : EOF;
}

/* Executes commands until the end of the input or `stop`. */
static void obey(void) {
	char line[16] = "";
	size_t length = 0;
	int byte;

	while ((byte = next_byte()) != EOF) {
		if (byte != '\n') {
			line[length] = (char)byte;
			length += length + 1 < sizeof(line);
			continue;
		}
		line[length] = '\0';
		length = 0;
		if (strcmp(line, "report") == 0) {
			report();
		} else if (strcmp(line, "stop") == 0) {
			return;
		} else {
			dprintf(STDERR_FILENO, "attached: what is `%s`?\n", line);
		}
	}
}

int main(int argc, char **argv) {
	double seconds = 0;
	int option, wrong;

	if (argc == 2 && strcmp(argv[1], "--child") == 0) {
		return be_child();
	}
	while ((option = getopt(argc, argv, "s:")) != -1) {
		if (option == 's') {
			seconds = atof(optarg);
		}
		if (option != 's' || seconds <= 0) {
			fputs("usage: attached [-s SECONDS]\n", stderr);
			return 2;
		}
	}
	lock_machine_clock(LOCK_SH);
	/* A single heap, made at the start, because heaps that are mapped later would be counted as mappings. */
	mallopt(M_ARENA_MAX, 1);
	prepare_signals();
	prepare_sleepers();
	prepare_handover();
	prepare_churn();
	create_threads();
	if (seconds > 0) {
		sleep_ns((long long)(seconds * 1e9));
	} else {
		obey();
	}
	wrong = report();
	/* The threads keep running; their oddities from now on do not count, so print no more. */
	atomic_store(&printed, PRINTED_AT_MOST);
	release_sleepers();
	_exit(wrong);
}
