/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * probed-reads: reads the clock by a `syscall` instruction of its own and by libc's syscall(), while real uprobes on
 * the instructions around these come and go at random. Prints `ready`; from the first SIGUSR1 on reads for some
 * seconds, and prints `N reads, M failures`; ends with the second. Exit status 77: this kernel gives it no uprobes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { READERS = 2, SECONDS = 3, MOST = 16 };

long own_read(struct timespec *now);
__asm__(".text\n.balign 16, 0xcc\n.globl own_read\n.type own_read, @function\nown_read:\n"
	"	mov %rdi, %rsi\n	mov $1, %edi\n	mov $228, %eax\n	syscall\n	ret\n"
	".size own_read, . - own_read\n.balign 16, 0xcc\n.fill 16, 1, 0xcc\n");
/* Not the `syscall`: with a uprobe on one, kernels here (Linux 6.18) end the program as it is, too, by SIGSEGV. */
static const unsigned char OWN_STARTS[] = {0, 3, 8, 15};
/* The moves of glibc's syscall(), up to the `syscall`. */
static const unsigned char MOVES[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca};
static const unsigned char LIBC_STARTS[] = {0, 3, 6, 9, 12, 15, 18};

static struct {
	char file[256];
	uint64_t offset;
	int probe;
} places[MOST];
static int count;
static atomic_long reads, failures;
static atomic_int is_over;
static volatile sig_atomic_t signals;

static void on_signal(int number) {
	(void)number;
	signals++;
}

static void wait_for(int many) {
	while (signals < many)
		nanosleep(&(struct timespec){0, 10000000}, NULL);
}

/* Adds an instruction, with its place in its file. */
static void add(const unsigned char *at) {
	unsigned long start, end, offset, address = (unsigned long)at;
	char line[512], file[256];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %255s", &start, &end, &offset, file) == 4 &&
		    start <= address && address < end && count < MOST) {
			strcpy(places[count].file, file);
			places[count].offset = address - start + offset;
			places[count++].probe = -1;
		}
	}
	if (maps)
		fclose(maps);
}

static int probe(int place) {
	struct perf_event_attr attributes = {.size = sizeof(attributes)};
	FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "r");

	if (!type || fscanf(type, "%u", &attributes.type) != 1)
		return -1;
	fclose(type);
	attributes.config1 = (uint64_t)places[place].file;
	attributes.config2 = places[place].offset;
	return (int)syscall(SYS_perf_event_open, &attributes, getpid(), -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static long long ns(const struct timespec *time) { return time->tv_sec * 1000000000LL + time->tv_nsec; }

static void read_once(int by_libc) {
	struct timespec before, now = {0, 0}, after;

	clock_gettime(CLOCK_MONOTONIC, &before);
	const long result = by_libc ? syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) : own_read(&now);
	clock_gettime(CLOCK_MONOTONIC, &after);
	reads++;
	if (result || ns(&now) < ns(&before) || ns(&now) > ns(&after)) {
		if (!failures++)
			printf("%s: %ld, errno %d\n", by_libc ? "syscall()" : "syscall", result, errno);
	}
}

static void *reader(void *argument) {
	(void)argument;
	while (!is_over) {
		read_once(0);
		read_once(1);
	}
	return NULL;
}

int main(void) {
	pthread_t readers[READERS];
	const unsigned char *at = dlsym(RTLD_DEFAULT, "syscall");
	struct timespec begun, now;

	setvbuf(stdout, NULL, _IONBF, 0);
	signal(SIGUSR1, on_signal);
	for (size_t i = 0; i < sizeof(OWN_STARTS); i++)
		add((const unsigned char *)own_read + OWN_STARTS[i]);
	if (at && memcmp(at, MOVES, sizeof(MOVES)))
		at += 4; /* endbr64 */
	for (size_t i = 0; at && i < sizeof(LIBC_STARTS) && !memcmp(at, MOVES, sizeof(MOVES)); i++)
		add(at + LIBC_STARTS[i]);
	printf("ready\n");
	wait_for(1);
	const int first = probe(0);
	if (first < 0) {
		perror("uprobes");
		return 77;
	}
	close(first);
	for (int i = 0; i < READERS; i++)
		pthread_create(&readers[i], NULL, reader, NULL);
	clock_gettime(CLOCK_MONOTONIC, &begun);
	do {
		const int place = rand() % count;
		if (places[place].probe < 0) {
			places[place].probe = probe(place);
		} else {
			close(places[place].probe);
			places[place].probe = -1;
		}
		nanosleep(&(struct timespec){0, 2000000}, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begun.tv_sec < SECONDS && !failures);
	for (int i = 0; i < count; i++)
		if (places[i].probe >= 0)
			close(places[i].probe);
	nanosleep(&(struct timespec){0, 100000000}, NULL);
	is_over = 1;
	for (int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	printf("%ld reads, %ld failures\n", reads, failures);
	wait_for(2);
	read_once(0);
	read_once(1);
	return failures != 0;
}
