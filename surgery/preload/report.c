/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "calls.h"
#include "text.h"
#include "why.h"

void fp_report(const char *outcome, const struct why *why) {
	struct fp_text line = {.length = 0};

	fp_add(&line, "libfastpath-preload: ");
	fp_add(&line, outcome);
	if (why) {
		fp_add(&line, ": ");
		fp_add(&line, why->tried);
		if (why->error) {
			fp_add(&line, " (errno ");
			fp_add_number(&line, (unsigned long)-why->error);
			fp_add(&line, ")");
		}
		if (why->said[0]) {
			fp_add(&line, ": ");
			fp_add(&line, why->said);
		}
	}
	fp_add(&line, "\n");
	fp_syscall4(FP_NR_write, 2, (long)line.text, (long)line.length, 0);
}
