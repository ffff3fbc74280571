/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "status.h"

#include "calls.h"
#include "text.h"

/* The beginning of a line: the wanted names are shorter, with room for a number. */
struct line {
	char text[40];
	size_t length;
};

static void take(const struct line *line, const char *name, long *value) {
	const char *digit = fp_after(line->text, name);

	if (!digit)
		return;
	while (*digit == '\t' || *digit == ' ')
		digit++;
	*value = 0;
	for (; *digit >= '0' && *digit <= '9'; digit++)
		*value = *value * 10 + (*digit - '0');
}

static void take_line(struct line *line, struct status *status) {
	line->text[line->length] = 0;
	take(line, "Threads:", &status->threads);
	take(line, "PPid:", &status->parent);
	take(line, "Seccomp:", &status->seccomp);
	take(line, "Seccomp_filters:", &status->filters);
	line->length = 0;
}

/* The line of groups can be longer than any buffer: so reads line by line, and keeps only the beginning of each. */
static long read_lines(int fd, struct status *status) {
	struct line line = {.length = 0};
	char chunk[1024];
	long size;

	while ((size = fp_read(fd, chunk, sizeof(chunk))) > 0) {
		for (long i = 0; i < size; i++) {
			if (chunk[i] == '\n')
				take_line(&line, status);
			else if (line.length < sizeof(line.text) - 1)
				line.text[line.length++] = chunk[i];
		}
	}
	return size;
}

static bool read_status(const char *path, const char *what, struct status *status, struct why *why) {
	*status = (struct status){.threads = -1, .parent = -1, .seccomp = 0, .filters = -1};
	long fd = fp_open(path);
	if (fp_failed(fd))
		return fp_because(why, what, fd);
	long end = read_lines((int)fd, status);
	fp_close((int)fd);
	if (end < 0 || status->threads < 0 || status->parent < 0)
		return fp_because(why, what, end < 0 ? end : -EIO);
	return true;
}

bool fp_own_status(struct status *status, struct why *why) {
	return read_status("/proc/self/status", "/proc/self/status cannot be read", status, why);
}

bool fp_status_of(long pid, struct status *status, struct why *why) {
	struct fp_text path = {.length = 0};

	fp_add(&path, "/proc/");
	fp_add_number(&path, (unsigned long)pid);
	fp_add(&path, "/status");
	return read_status(path.text, "the parent's status cannot be read", status, why);
}
