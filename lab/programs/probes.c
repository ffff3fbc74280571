/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Places and removes real uprobes at random on all instructions of execve and unshare of this C library, while a worker
 * makes these calls, served by `fastpath run` or attached and detached meanwhile. Every call must work, and in the end
 * the worker's code must be the file's. For machines of the lab only: some kernels hang a process for a probe on the
 * `syscall` instruction of execve. Dynamically linked.
 *
 *     probes SECONDS          prints a line of JSON
 *     probes --worker FILE    shares its counts in FILE
 *     probes --leaf           what the worker executes: exit status 10 if it is served
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LENGTH = 33, STARTS = 10, FUNCTIONS = 2, SERVED = 10 };

/* mov $NR, %eax; syscall; cmp; jae; ret; mov errno, %rcx; neg %eax; mov %eax, %fs:(%rcx); or $-1, %rax; ret */
static const int STARTS_AT[STARTS] = {0, 5, 7, 13, 15, 16, 23, 25, 28, 32};
static const char *const NAMES[FUNCTIONS] = {"execve", "unshare"};

struct shared {
	volatile long pid, rounds, served, failures, is_paused;
	char what[128];
	unsigned char *at[FUNCTIONS];
};

struct function {
	char library[256];
	uint64_t offset;
	unsigned char file[LENGTH];
	int probes[STARTS];
};

static struct shared *shared;
static struct function functions[FUNCTIONS];

static void fail(const char *what) {
	fprintf(stderr, "probes: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void map(const char *path) {
	const int file = open(path, O_RDWR | O_CREAT, 0600);

	if (file < 0 || ftruncate(file, 4096))
		fail(path);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	close(file);
}

static void find(int i) {
	struct function *f = &functions[i];
	unsigned char *at = dlsym(RTLD_DEFAULT, NAMES[i]);
	Dl_info info;
	void *link;

	if (!at || !dladdr1(at, &info, &link, RTLD_DL_LINKMAP))
		fail(NAMES[i]);
	f->offset = (uint64_t)at - ((struct link_map *)link)->l_addr;
	snprintf(f->library, sizeof(f->library), "%s", info.dli_fname);
	const int file = open(f->library, O_RDONLY);
	if (file < 0 || pread(file, f->file, LENGTH, (off_t)f->offset) != LENGTH)
		fail(f->library);
	close(file);
	if (f->file[0] != 0xb8 || f->file[5] != 0x0f || f->file[15] != 0xc3 || f->file[32] != 0xc3) {
		fprintf(stderr, "probes: %s has another form\n", NAMES[i]);
		exit(1);
	}
	for (int start = 0; start < STARTS; start++)
		f->probes[start] = -1;
	shared->at[i] = at;
}

static void wrong(const char *what, int value) {
	snprintf(shared->what, sizeof(shared->what), "%s: %d, errno %d", what, value, errno);
	fprintf(stderr, "probes: %s\n", shared->what);
	shared->failures++;
}

static int leaf(void) {
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "memfd:fastpath-page"))
			return SERVED;
	return 0;
}

static void worker(void) {
	char *const arguments[] = {"probes", "--leaf", NULL};
	struct timespec now;
	int status;

	for (int i = 0; i < FUNCTIONS; i++)
		find(i);
	shared->pid = getpid();
	for (;;) {
		const pid_t child = fork();
		if (!child) {
			execve("/bin/probes", arguments, environ);
			_exit(1);
		}
		if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) % SERVED)
			wrong("exec", status);
		shared->served += status == SERVED << 8;
		if (unshare(0))
			wrong("unshare", -1);
		if (unshare(-1) != -1 || errno != EINVAL)
			wrong("unshare of everything", 0);
		if (execve("", arguments, environ) != -1 || errno != ENOENT)
			wrong("execve of nothing", 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
		shared->rounds++;
		while (shared->is_paused)
			nanosleep(&(struct timespec){0, 5000000}, NULL);
	}
}

static int probe(const struct function *f, int start) {
	struct perf_event_attr attributes = {.size = sizeof(attributes)};
	FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "r");

	if (!type || fscanf(type, "%u", &attributes.type) != 1)
		fail("this kernel has no uprobes");
	fclose(type);
	attributes.config1 = (uint64_t)f->library;
	attributes.config2 = f->offset + (uint64_t)STARTS_AT[start];
	const int made = (int)syscall(SYS_perf_event_open, &attributes, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
	if (made < 0)
		fail("perf_event_open");
	return made;
}

static void toggle(struct function *f, int start) {
	if (f->probes[start] < 0) {
		f->probes[start] = probe(f, start);
	} else {
		close(f->probes[start]);
		f->probes[start] = -1;
	}
}

/* Runs fastpath; returns its exit status. */
static int fastpath(char *const *arguments) {
	int status;
	const pid_t child = fork();

	if (!child) {
		/* By itself: the functions of this process have the same probes. */
		execv("/bin/fastpath", arguments);
		_exit(1);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Attaches the worker, and waits for the first anchor: a worker that executes programs meanwhile on an emulated CPU
 * takes the attendant for dead. */
static int attach_worker(char *const *arguments) {
	shared->is_paused = 1;
	const int status = fastpath(arguments);
	sleep(2);
	shared->is_paused = 0;
	return status;
}

static void await_rounds(long rounds) {
	const struct timespec moment = {0, 5000000};
	const long until = shared->rounds + rounds;

	for (int i = 0; shared->rounds < until; i++) {
		nanosleep(&moment, NULL);
		if (i == 12000) {
			wrong("the worker hangs", 0);
			return;
		}
	}
}

static void expect_status(const char *what, int status, const int *accepted) {
	for (; *accepted >= 0; accepted++)
		if (status == *accepted)
			return;
	wrong(what, status);
}

/* 14: a thread was in the way for too long. */
static const int ATTACHED[] = {0, 8, 14, 17, -1};
static const int DETACHED[] = {0, 14, 15, -1};

static void compare(void) {
	char path[64];
	unsigned char bytes[LENGTH];

	snprintf(path, sizeof(path), "/proc/%ld/mem", shared->pid);
	const int memory = open(path, O_RDONLY);
	for (int i = 0; i < FUNCTIONS; i++)
		if (pread(memory, bytes, LENGTH, (off_t)(size_t)shared->at[i]) != LENGTH ||
		    memcmp(bytes, functions[i].file, LENGTH))
			wrong("the code is not the file's", i);
	close(memory);
}

static long phase(const char *file, int under_run, double seconds) {
	struct timespec begun, now;
	long steps = 0;
	char pid[16];
	const pid_t child = fork();

	if (!child) {
		if (under_run)
			execl("/bin/fastpath", "fastpath", "run", "--trust-counter", "--clocks", "all", "--",
			      "/bin/probes", "--worker", file, NULL);
		execl("/bin/probes", "probes", "--worker", file, NULL);
		_exit(1);
	}
	await_rounds(3);
	snprintf(pid, sizeof(pid), "%ld", shared->pid);
	char *const attach[] = {"fastpath", "attach", "--children", "--trust-counter", "--clocks", "all", pid, NULL};
	char *const detach[] = {"fastpath", "detach", pid, NULL};
	clock_gettime(CLOCK_MONOTONIC, &begun);
	do {
		const int action = rand() % 10;
		if (action < 7) {
			toggle(&functions[rand() % FUNCTIONS], rand() % STARTS);
		} else if (action == 7) {
			expect_status("detach", fastpath(detach), DETACHED);
		} else {
			expect_status("attach", attach_worker(attach), ATTACHED);
		}
		await_rounds(2);
		steps++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!shared->failures && (double)(now.tv_sec - begun.tv_sec) < seconds);
	for (int i = 0; i < FUNCTIONS; i++)
		for (int start = 0; start < STARTS; start++)
			if (functions[i].probes[start] >= 0)
				toggle(&functions[i], start);
	await_rounds(3);
	expect_status("the last detach", fastpath(detach), DETACHED);
	compare();
	/* It can be attached again, and all that it executes is served. */
	expect_status("the last attach", attach_worker(attach), ATTACHED);
	const long before = shared->served;
	for (int i = 0; i < 50 && shared->served == before; i++)
		await_rounds(5);
	if (shared->served == before)
		wrong("nothing is served", 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return steps;
}

int main(int argc, char **argv) {
	const char *const file = "/tmp/probes";
	long steps = 0;

	if (argc == 2 && !strcmp(argv[1], "--leaf"))
		return leaf();
	if (argc == 3 && !strcmp(argv[1], "--worker")) {
		map(argv[2]);
		worker();
	}
	if (argc != 2)
		return 2;
	map(file);
	srand((unsigned)time(NULL));
	for (int i = 0; i < FUNCTIONS; i++)
		find(i);
	for (int under_run = 0; under_run < 2 && !shared->failures; under_run++)
		steps += phase(file, under_run, atof(argv[1]) / 2);
	printf("{\"steps\": %ld, \"rounds\": %ld, \"served\": %ld, \"failures\": %ld, \"what\": "
	       "\"%s\"}\n",
	       steps, shared->rounds, shared->served, shared->failures, shared->what);
	return shared->failures != 0;
}
