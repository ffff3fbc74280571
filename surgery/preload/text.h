/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* String functions. */
#ifndef FASTPATH_PRELOAD_TEXT_H
#define FASTPATH_PRELOAD_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the text after `prefix`, or NULL if `text` does not begin with it. */
static inline const char *fp_after(const char *text, const char *prefix) {
	for (; *prefix; text++, prefix++)
		if (*text != *prefix)
			return NULL;
	return text;
}

static inline bool fp_same(const char *a, const char *b) {
	const char *rest = fp_after(a, b);
	return rest && !*rest;
}

/* A text that is put together. What does not fit is cut off. */
struct fp_text {
	char text[512];
	size_t length;
};

static inline void fp_add(struct fp_text *to, const char *text) {
	while (*text && to->length < sizeof(to->text) - 1)
		to->text[to->length++] = *text++;
	to->text[to->length] = 0;
}

static inline void fp_add_number(struct fp_text *to, unsigned long number) {
	char digits[24];
	char *first = digits + sizeof(digits);

	*--first = 0;
	do
		*--first = (char)('0' + number % 10);
	while (number /= 10);
	fp_add(to, first);
}

#endif
