// Maps and unmaps memory of all sizes in two threads, as busy allocators do.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map_and_unmap(void *seed) {
	unsigned state = (unsigned)(size_t)seed;
	void *maps[8] = {0};
	size_t sizes[8];
	for (;;) {
		int i = rand_r(&state) % 8;
		if (maps[i])
			munmap(maps[i], sizes[i]);
		sizes[i] = (rand_r(&state) % 2048 + 1) * 4096ul;
		maps[i] = mmap(NULL, sizes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		usleep(100);
	}
	return NULL;
}

int main(void) {
	pthread_t threads[2];
	for (size_t i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, map_and_unmap, (void *)(i + 1)))
			return 1;
	puts("ready");
	fflush(stdout);
	pause();
}
