/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* fuse-mapped USER NAME [OFFSET NAME]: executable memory of a file that this process serves itself, by FUSE. In
 * /proc/PID/maps it is "/NAME", and a page of it at the offset has the other name. Reads of it are never answered, nor
 * is it opened once more: what touches that memory, or opens that file, waits for as long as this process lives, and
 * "touched" or "opened" is printed. Exits with 125 where there is no FUSE. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SIZE = 1 << 20, PAGE = 4096, FILE_NODE = 2 };

static int fuse, opens = 1;

static void answer(uint64_t unique, int error, void *body, size_t size) {
	struct fuse_out_header header = {.len = sizeof header + size, .error = error, .unique = unique};
	struct iovec parts[] = {{&header, sizeof header}, {body, size}};

	if (writev(fuse, parts, 2) < 0)
		perror("an answer");
}

static struct fuse_attr attributes(uint64_t node) {
	struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096};

	attr.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0755;
	attr.size = node == FUSE_ROOT_ID ? 0 : SIZE;
	return attr;
}

static void say(const char *word) {
	puts(word);
	fflush(stdout);
}

static void *serve(void *unused) {
	static char request[1 << 17];
	const struct fuse_in_header *in = (void *)request;

	while (read(fuse, request, sizeof request) > 0) {
		struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
		struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attributes(FILE_NODE)};
		struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
		struct fuse_open_out open = {.open_flags = FOPEN_KEEP_CACHE};

		switch (in->opcode) {
		case FUSE_INIT:
			answer(in->unique, 0, &init, sizeof init);
			break;
		case FUSE_LOOKUP:
			answer(in->unique, 0, &entry, sizeof entry);
			break;
		case FUSE_GETATTR:
			answer(in->unique, 0, &attr, sizeof attr);
			break;
		case FUSE_OPEN:
			if (opens-- > 0)
				answer(in->unique, 0, &open, sizeof open);
			else
				say("opened");
			break;
		case FUSE_READ:
			say("touched");
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			break;
		default:
			answer(in->unique, -ENOSYS, NULL, 0);
		}
	}
	return unused;
}

static void *map_file(const char *name, void *at, size_t size, int fixed) {
	char path[128];
	void *mapped;
	int file;

	snprintf(path, sizeof path, "/tmp/%s", name);
	file = open(path, O_RDONLY | O_CLOEXEC);
	mapped = mmap(at, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | fixed, file, 0);
	close(file);
	return mapped;
}

/* In a thread, whose mount namespace is its own: nothing else sees the mount. */
static void *map(void *arguments) {
	char **argv = arguments, options[128];
	pthread_t server;
	void *mapped;

	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("fuse", "/tmp", "fuse", 0, options) || pthread_create(&server, NULL, serve, NULL))
		return perror("mount"), NULL;
	mapped = map_file(argv[2], NULL, SIZE, 0);
	if (mapped != MAP_FAILED && argv[3] &&
	    map_file(argv[4], (char *)mapped + strtoul(argv[3], NULL, 0), PAGE, MAP_FIXED) == MAP_FAILED)
		mapped = MAP_FAILED;
	/* What is mounted nowhere has no path but its own. */
	if (mapped == MAP_FAILED || umount2("/tmp", MNT_DETACH))
		return perror("mmap"), NULL;
	return mapped;
}

int main(int argc, char **argv) {
	pthread_t mapper;
	void *mapped = NULL;
	uid_t user;

	if (argc != 3 && argc != 5)
		return 2;
	user = strtoul(argv[1], NULL, 0);
	opens = argc == 5 ? 2 : 1;
	fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fuse < 0)
		return perror("/dev/fuse"), 125;
	if (pthread_create(&mapper, NULL, map, argv))
		return 1;
	pthread_join(mapper, &mapped);
	if (!mapped)
		return 125;
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		return perror("setresuid"), 1;
	prctl(PR_SET_DUMPABLE, 1);
	/* If the test is killed, what waits for this memory is let go after ten minutes. */
	alarm(600);
	say("ready");
	pause();
	return 0;
}
