/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* missing-pages: a thread waits on a stack directly below pages that another thread of the process provides when they
 * are touched (userfaultfd(2)). No thread touches them. Exits with 125 if userfaultfd is not available. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK = 64 << 10, MISSING = 256 << 10 };

static int fd;

static void *provide(void *unused) {
	static char page[4096] __attribute__((aligned(4096)));
	struct uffd_msg message;

	(void)unused;
	while (read(fd, &message, sizeof message) == sizeof message) {
		struct uffdio_copy copy = {
		    .dst = message.arg.pagefault.address & ~4095ul,
		    .src = (unsigned long)page,
		    .len = sizeof page,
		};
		ioctl(fd, UFFDIO_COPY, &copy);
		puts("touched");
		fflush(stdout);
	}
	return NULL;
}

static void *wait(void *unused) {
	pause();
	return unused;
}

int main(void) {
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register missing = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	pthread_t provider, waiter;
	pthread_attr_t attributes;
	char *memory = mmap(NULL, STACK + MISSING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	missing.range.start = (unsigned long)(memory + STACK);
	missing.range.len = MISSING;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &missing)) {
		perror("userfaultfd");
		return 125;
	}
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, memory, STACK);
	if (pthread_create(&provider, NULL, provide, NULL) || pthread_create(&waiter, &attributes, wait, NULL))
		return 1;
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
