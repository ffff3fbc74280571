/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* sealed own|all: seals its own code and data, the C library's and the kernel's mappings (mseal(2)), or all its
 * mappings that do not grow, and checks repeatedly that sealed memory can neither be unmapped nor changed. Exits with
 * 125 if there is no mseal(2). */
#include "judge.h"

#include <sys/mman.h>

/* mseal(2), on every architecture; Linux 6.10. */
enum { NR_mseal = 462 };
enum { PAGE = 4096, MOST = 128 };

static unsigned long sealed[MOST];
static int count;
static struct work *refusals;

static int is_to_be_sealed(const char *line, int all) {
	static const char *const names[] = {"/sealed", "/libc", "/ld-", "[vdso]", "[vvar"};

	if (strstr(line, "[heap]") || strstr(line, "[stack]") || strstr(line, "[vsyscall]")) {
		return 0;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		all |= strstr(line, names[i]) != NULL;
	}
	return all;
}

static int seal(int all) {
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long ranges[MOST][2];
	int found = 0;

	while (maps && found < MOST && fgets(line, sizeof(line), maps)) {
		if (is_to_be_sealed(line, all) && sscanf(line, "%lx-%lx", &ranges[found][0], &ranges[found][1]) == 2) {
			found++;
		}
	}
	if (maps) {
		fclose(maps);
	}
	for (int i = 0; i < found; i++) {
		if (syscall(NR_mseal, ranges[i][0], ranges[i][1] - ranges[i][0], 0) == 0) {
			sealed[count++] = ranges[i][0];
		}
	}
	return count;
}

static void *try(void *unused) {
	while (!is_over) {
		for (int i = 0; i < count; i++) {
			void *page = (void *)sealed[i];

			expect(munmap(page, PAGE) < 0 && errno == EPERM, "sealed memory was unmapped, errno", errno);
			expect(mprotect(page, PAGE, PROT_NONE) < 0 && errno == EPERM,
			       "sealed memory was protected, errno", errno);
			refusals->times++;
		}
		nap_ns(NS_PER_MS);
	}
	return unused;
}

int main(int argc, char **argv) {
	pthread_t threads[3];

	begin();
	refusals = kind_of_work("tries on sealed memory");
	if (syscall(NR_mseal, 0, 0, 0)) {
		perror("mseal");
		return NOT_ON_THIS_KERNEL;
	}
	/* Its stack is a mapping. */
	threads[0] = start_thread(judge_clocks_always, NULL, NULL);
	if (seal(argc >= 2 && strcmp(argv[1], "all") == 0) == 0) {
		fputs("nothing could be sealed\n", stderr);
		return NOT_ON_THIS_KERNEL;
	}
	threads[1] = start_thread(judge_clocks_always, NULL, NULL);
	threads[2] = start_thread(try, NULL, NULL);
	say("ready");
	until_the_end(NULL);
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
	}
	/* glibc keeps the stacks of threads that have ended. */
	return verdict();
}
