/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Invalid arguments: each call refuses them with the right number, and changes nothing. */
#define _GNU_SOURCE
#include <fastpath.h>

#include <string.h>
#include <sys/mman.h>

#include "check.h"

static fastpath_publisher publisher, never_made;
static _Alignas(FASTPATH_PAGE_SIZE) unsigned char page[2 * FASTPATH_PAGE_SIZE];
static unsigned char before[sizeof page];

static void images(void) {
	const fastpath_image *image = fastpath_image_of(fastpath_host_isa());
	size_t size = fastpath_image_size(image);
	unsigned char *buffer = malloc(size + 1);
	memset(buffer, 0xa5, size + 1);

	CHECK(fastpath_image_of(0) == NULL && fastpath_image_of(6) == NULL && fastpath_image_of(-1) == NULL);
	CHECK(fastpath_isa_name(0) == NULL && strcmp(fastpath_isa_name(FASTPATH_ARM), "arm") == 0);
	CHECK(fastpath_image_isa(NULL) == FASTPATH_EINVAL && fastpath_image_size(NULL) == 0);
	CHECK(fastpath_image_bytes(NULL, NULL) == NULL && fastpath_image_symbol(NULL, "x") == 0);
	CHECK(fastpath_image_symbol(image, NULL) == 0 && fastpath_image_symbol(image, "clock_gettim") == 0);

	size_t count = fastpath_image_functions(image, NULL, 0);
	struct fastpath_function *functions = calloc(count + 1, sizeof *functions);
	CHECK(count >= 4 && fastpath_image_functions(image, functions, 1) == count && functions[1].name[0] == 0);
	CHECK(fastpath_image_functions(image, functions, count + 1) == count && functions[count].name[0] == 0);
	for (size_t i = 0; i < count; i++)
		CHECK(fastpath_image_symbol(image, functions[i].name) == functions[i].offset &&
		      functions[i].offset < size);
	uint64_t calls[64];
	count = fastpath_image_system_calls(image, calls, 64);
	CHECK(count >= 1 && count <= 64);
	for (size_t i = 0; i < count; i++)
		CHECK(calls[i] > 0 && calls[i] < size);

	struct fastpath_instance_options options = {.size = sizeof options,
						    .page_offset = FASTPATH_PAGE_OFFSET_DEFAULT};
	struct fastpath_kernel_function nonsense = {"clock_gettim", 0x1000}, unnamed = {NULL, 0x1000},
					newest = {"futex_robust_list64_try_unlock", 0x1000};
	CHECK(fastpath_instantiate(NULL, &options, buffer, size) == FASTPATH_EINVAL);
	CHECK(fastpath_instantiate(image, &options, NULL, size) == FASTPATH_EINVAL);
	CHECK(fastpath_instantiate(image, &options, buffer, size - 1) == FASTPATH_ENOSPACE);
	options.size--;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_ESIZE);
	options.size++;
	options.flags = 1u << 31;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EINVAL);
	options.flags = 0;
	options.kernel_function_count = 1;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EINVAL);
	options.kernel_functions = &nonsense;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EINVAL);
	options.kernel_functions = &unnamed;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EINVAL);
	/* A function of the newest kernel that no image passes on: a host may name all that its own vDSO exports. */
	options.kernel_functions = &newest;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == (int)size);
	memset(buffer, 0xa5, size);
	options.kernel_function_count = 0;
	options.page_offset = 0;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EPLACEMENT);
	options.page_offset = -4095;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EPLACEMENT);
	options.page_offset = INT64_MIN;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EPLACEMENT);
	options.page_offset = INT64_C(1) << 40;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == FASTPATH_EPLACEMENT);
	for (size_t i = 0; i < size; i++)
		CHECK(buffer[i] == 0xa5);
	options.page_offset = FASTPATH_PAGE_OFFSET_DEFAULT;
	CHECK(fastpath_instantiate(image, &options, buffer, size) == (int)size && buffer[size] == 0xa5);
	CHECK(fastpath_instantiate(image, NULL, buffer, size) == (int)size);
	free(functions);
	free(buffer);
}

static void pages(void) {
	struct fastpath_page_options options = {.size = sizeof options};
	uint64_t sec;
	uint32_t nsec;

	CHECK(fastpath_page_init(NULL, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_page_init(page + 64, NULL) == FASTPATH_EINVAL);
	options.flags = 4;
	CHECK(fastpath_page_init(page, &options) == FASTPATH_EINVAL);
	options.flags = 0;
	options.cpu = 1;
	CHECK(fastpath_page_init(page, &options) == FASTPATH_EINVAL);
	options.size = 0;
	CHECK(fastpath_page_init(page, &options) == FASTPATH_ESIZE);
	CHECK(memcmp(page, before, sizeof page) == 0);
	CHECK(fastpath_page_read(page, 1, 0, &sec, &nsec) == FASTPATH_EPAGE);
	CHECK(fastpath_publisher_init(&publisher, page, NULL) == FASTPATH_EPAGE);

	options =
	    (struct fastpath_page_options){.size = sizeof options, .flags = FASTPATH_PAGE_ONE_CPU, .cpu = 3, .node = 1};
	CHECK(fastpath_page_init(page, &options) == 0);
	CHECK(fastpath_page_read(page, 1, 0, &sec, &nsec) == 0);
	CHECK(fastpath_page_read(page, -1, 0, &sec, &nsec) == 0);
	CHECK(fastpath_page_read(page, 1, 0, NULL, &nsec) == FASTPATH_EINVAL);
	CHECK(fastpath_page_read(page + 1, 1, 0, &sec, &nsec) == FASTPATH_EINVAL);
	CHECK(fastpath_page_withdrawals(page, NULL, 1, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_page_withdrawals(NULL, NULL, 0, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_page_withdrawals(page, NULL, 0, NULL) == 0);
}

static int no_clock(void *context, int32_t clock, uint64_t *time_ns) {
	(void)context, (void)clock, (void)time_ns;
	return -1;
}

static void publishers(void) {
	struct fastpath_publisher_options options = {.size = sizeof options};
	struct fastpath_state state = {.size = sizeof state};
	struct fastpath_trap trap = {.size = sizeof trap};
	struct fastpath_sample sample = {.size = sizeof sample};

	CHECK(fastpath_publish(&never_made, NULL) == FASTPATH_EINVAL &&
	      fastpath_publish(NULL, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_withdraw(&never_made, FASTPATH_REASON_HOST) == FASTPATH_EINVAL);
	CHECK(fastpath_trapped(&never_made, &trap) == FASTPATH_EINVAL);
	CHECK(fastpath_state_of(&never_made, &state) == FASTPATH_EINVAL);

	CHECK(fastpath_publisher_init(NULL, page, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_publisher_init((void *)(publisher.opaque + 8), page, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_publisher_init(&publisher, NULL, NULL) == FASTPATH_EINVAL);
	options.clocks = FASTPATH_CLOCK_BIT(2); /* CLOCK_PROCESS_CPUTIME_ID */
	CHECK(fastpath_publisher_init(&publisher, page, &options) == FASTPATH_EINVAL);
	options.clocks = 0;
	options.flags = 1u << 31;
	CHECK(fastpath_publisher_init(&publisher, page, &options) == FASTPATH_EINVAL);
	options.flags = 0;
	options.fraction_bits = 48;
	CHECK(fastpath_publisher_init(&publisher, page, &options) == FASTPATH_ECOUNTER);
	options.multiplier = 1;
	options.fraction_bits = 64;
	CHECK(fastpath_publisher_init(&publisher, page, &options) == FASTPATH_ECOUNTER);
	CHECK(fastpath_publish(&publisher, NULL) == FASTPATH_EINVAL);

	options = (struct fastpath_publisher_options){.size = sizeof options, .read_clock = no_clock};
	CHECK(fastpath_publisher_init(&publisher, page, &options) == 0);
	CHECK(fastpath_publish(&publisher, NULL) == FASTPATH_ESAMPLE);
	CHECK(fastpath_publish(&publisher, &sample) == FASTPATH_ESAMPLE);
	sample.clocks = FASTPATH_CLOCK_BIT(30);
	CHECK(fastpath_publish(&publisher, &sample) == FASTPATH_EINVAL);
	sample.size = 4;
	CHECK(fastpath_publish(&publisher, &sample) == FASTPATH_ESIZE);
	CHECK(fastpath_withdraw(&publisher, 1) == FASTPATH_EINVAL);
	CHECK(fastpath_trapped(&publisher, NULL) == FASTPATH_EINVAL);
	CHECK(fastpath_trapped(&publisher, &trap) == FASTPATH_EINVAL); /* no image */
	CHECK(fastpath_state_of(&publisher, NULL) == FASTPATH_EINVAL);
	state.size = 0;
	CHECK(fastpath_state_of(&publisher, &state) == FASTPATH_ESIZE);
}

int main(void) {
	struct fastpath_verdict verdict = {.size = sizeof verdict};

	images();
	pages();
	publishers();
	CHECK(fastpath_examine(1u << 31, &verdict) == FASTPATH_EINVAL);
	CHECK(fastpath_examine(0, NULL) == FASTPATH_EINVAL);
	verdict.size = 1;
	CHECK(fastpath_examine(0, &verdict) == FASTPATH_ESIZE);
	for (int error = -9; error <= 1; error++)
		CHECK(strlen(fastpath_strerror(error)) > 5);
	for (uint32_t code = 0; code < 9; code++)
		CHECK(strlen(fastpath_reason_string(code)) > 5 && strlen(fastpath_distrust_string(code)) > 5);
	puts("ok");
	return 0;
}
