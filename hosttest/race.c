/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Changes that are made while others ask (identity.h).
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "identity.h"

struct race *race_new(const char *when, unsigned mask) {
	struct race *race = shared_memory(sizeof(*race));

	race->when = when;
	race->mask = mask;
	return race;
}

void race_free(struct race *race) { munmap(race, sizeof(*race)); }

void race_learn(struct race *race, int side) {
	for (unsigned question = 0; question < QUESTIONS; question++)
		race->values[side][question] = ask_question(question, BY_TRUTH);
}

void race_begin(struct race *race) { atomic_fetch_add(&race->begun, 1); }
void race_done(struct race *race) { atomic_fetch_add(&race->done, 1); }

void race_ask(struct race *race) {
	enum question question;
	unsigned long from, to;
	enum way way;
	long got;
	int is_right;

	do
		question = pick(QUESTIONS);
	while (!(race->mask & BIT(question)));
	do
		way = pick(WAYS);
	while (!can_ask(question, way));
	from = atomic_load(&race->done);
	got = ask_question(question, way);
	to = atomic_load(&race->begun);
	is_right = got == race->values[from & 1][question] || (to > from && got == race->values[~from & 1][question]);
	expect(is_right, "%s: %s by %s: %ld %s change %lu, between %ld and %ld", race->when, question_name(question),
	       way_names[way], got, to > from ? "during" : "after", to, race->values[0][question],
	       race->values[1][question]);
}

void race_reader(struct race *race) {
	is_beside = 1;
	atomic_fetch_add(&race->readers, 1);
	while (!atomic_load(&race->is_over))
		race_ask(race);
}

static void *reader(void *race) {
	pick_seed(seed + atomic_load(&((struct race *)race)->readers));
	race_reader(race);
	return NULL;
}

int readers_start(struct readers *readers, struct race *race) {
	for (unsigned i = 0; i < READERS; i++) {
		const int error = pthread_create((pthread_t *)&readers->threads[i], NULL, reader, race);

		if (error) {
			skip("pthread_create: %s", strerror(error));
			_exit(0);
		}
	}
	while (atomic_load(&race->readers) < READERS)
		nap(100);
	return 0;
}

void readers_join(struct readers *readers, struct race *race) {
	atomic_store(&race->is_over, 1);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join((pthread_t)readers->threads[i], NULL);
}

/* Makes one change, and asks for everything after it. Returns -1 if it is refused. */
static int change(struct race *race, long (*make)(void), const char *name) {
	long result;

	race_begin(race);
	result = make();
	race_done(race);
	if (result < 0) {
		/* The old value holds, under the number of the new one. */
		skip("%s: %s", name, strerror(errno));
		return -1;
	}
	for (unsigned question = 0; question < QUESTIONS; question++)
		if (race->mask & BIT(question))
			check_known(question, race->values[race->done & 1][question], name);
	if (pick(4) == 0)
		nap(pick(50));
	return 0;
}

void race_transition(const struct transition *transition, unsigned mask, double share) {
	struct race *race = race_new(transition->name, mask);
	struct readers readers;

	race_learn(race, 0);
	if (transition->forth() < 0) {
		skip("%s: %s", transition->name, strerror(errno));
		return;
	}
	race_learn(race, 1);
	check_status(transition->name);
	if (transition->back() < 0) {
		skip("%s: back: %s", transition->name, strerror(errno));
		return;
	}
	check_status(transition->name);
	if (readers_start(&readers, race))
		return;
	do
		if (change(race, transition->forth, transition->name) ||
		    change(race, transition->back, transition->name))
			break;
	while (!is_enough_of(share));
	readers_join(&readers, race);
	race_free(race);
}
