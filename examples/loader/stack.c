/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "stack.h"
#include "loader.h"

#include <stddef.h>

/* Every ABI here requires an aligned stack pointer at a program's start. */
enum { STACK_ALIGN = 16 };

static const struct auxv_entry *auxv_behind(char **envp) {
	while (*envp)
		envp++;
	return (const struct auxv_entry *)(envp + 1);
}

static const struct auxv_entry *find(const struct auxv_entry *auxv, uintptr_t type) {
	while (auxv->type != AT_NULL && auxv->type != type)
		auxv++;
	return auxv->type == AT_NULL ? NULL : auxv;
}

static size_t count(const struct auxv_entry *auxv) {
	size_t entries = 0;

	while (auxv[entries].type != AT_NULL)
		entries++;
	return entries;
}

uintptr_t own_auxv(char **envp, uintptr_t type) {
	const struct auxv_entry *entry = find(auxv_behind(envp), type);

	return entry ? entry->value : 0;
}

static uintptr_t *copy_strings(uintptr_t *to, char **strings) {
	while (*strings)
		*to++ = (uintptr_t)*strings++;
	*to++ = 0;
	return to;
}

static uintptr_t *put(uintptr_t *to, uintptr_t type, uintptr_t value) {
	*to++ = type;
	*to++ = value;
	return to;
}

/* Copies the loader's own vector with the changes applied, and appends changes for types that it lacks. */
static void copy_auxv(uintptr_t *to, const struct auxv_entry *own, const struct auxv_entry *changes) {
	const struct auxv_entry *change;

	for (const struct auxv_entry *entry = own; entry->type != AT_NULL; entry++) {
		change = find(changes, entry->type);
		to = put(to, entry->type, change ? change->value : entry->value);
	}
	for (change = changes; change->type != AT_NULL; change++)
		if (!find(own, change->type))
			to = put(to, change->type, change->value);
	put(to, AT_NULL, 0);
}

static size_t string_count(char **strings) {
	size_t strings_before_null = 0;

	while (strings[strings_before_null])
		strings_before_null++;
	return strings_before_null;
}

void enter_on_new_stack(uintptr_t entry, char **argv, char **envp, const struct auxv_entry *changes) {
	const struct auxv_entry *own = auxv_behind(envp);
	const size_t argc = string_count(argv);
	/* argc; the arguments and NULL; the environment and NULL; the vector and AT_NULL. */
	const size_t words = 1 + argc + 1 + string_count(envp) + 1 + 2 * (count(own) + count(changes) + 1);
	char *room = __builtin_alloca(words * sizeof(uintptr_t) + STACK_ALIGN);
	uintptr_t *stack = (uintptr_t *)(((uintptr_t)room + STACK_ALIGN - 1) & ~(uintptr_t)(STACK_ALIGN - 1));
	uintptr_t *at = stack;

	*at++ = argc;
	at = copy_strings(at, argv);
	at = copy_strings(at, envp);
	copy_auxv(at, own, changes);
	enter_program(entry, stack);
}
