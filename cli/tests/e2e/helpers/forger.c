/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* forger KIND VICTIM...: writes requests of this kind in the name of the threads VICTIM into the mailbox
 * (surgery/inject/hook/mailbox.h) that it maps, without end. */
#include <inttypes.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct slot {
	volatile uint32_t state, kind, tid, flags;
	volatile uint64_t path, dirfd;
};

struct mailbox {
	volatile uint32_t doorbell, reserved[15];
	struct slot slot[126];
};

int main(int argc, char **argv) {
	static const char path[] = "/bin/true";
	struct mailbox *mailbox = NULL;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "fastpath-mailbox"))
			mailbox = (struct mailbox *)(uintptr_t)strtoull(line, NULL, 16);
	if (!mailbox) {
		puts("no mailbox");
		return 1;
	}
	puts("forging");
	fflush(stdout);
	for (unsigned round = 0;; round++) {
		for (int i = 2; i < argc; i++) {
			struct slot *slot = &mailbox->slot[20 + (round * argc + i) % 100];
			if (slot->state & 7)
				continue;
			slot->kind = atoi(argv[1]);
			slot->tid = atoi(argv[i]);
			slot->flags = 0;
			slot->path = (uintptr_t)path;
			slot->dirfd = -100;
			slot->state = (slot->state & ~7u) | 2;
		}
		mailbox->doorbell++;
		syscall(SYS_futex, &mailbox->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
		usleep(2000);
	}
}
