/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * prober MODE [ARGUMENT...] [FUNCTION:CLOCK...]: looks at the clock paths of a 32-bit program from inside one.
 *
 * `fastpath probe --isa i386` starts it from memory. It has no libc: it calls the functions of the vDSO that it was
 * given as a C library does, and makes the system call where there is none. Everything it says goes to descriptor 1, in
 * records of three 64-bit words: step, item, value. crates/measure/src/foreign.rs is the other side.
 *
 *   errnos   what the bare system calls answer
 *   paths    how many of 32 calls enter the kernel, under a filter that takes the system call away
 *   prices   BATCH_TICKS GROUPS BATCHES: what batches of calls cost, in ticks of the counter
 *   vdso     the 4096 bytes below fastpath's image, where its page is, and then the vDSO, as they are
 */
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

/* asm/unistd_32.h */
enum {
	NR_exit = 1,
	NR_write = 4,
	NR_time = 13,
	NR_gettimeofday = 78,
	NR_prctl = 172,
	NR_clock_gettime = 265,
	NR_clock_getres = 266,
	NR_getcpu = 318,
	NR_seccomp = 354,
	NR_clock_gettime64 = 403,
	NR_clock_getres_time64 = 406,
};
enum { EINVAL = 22, ENOSYS = 38, EXFULL = 54 };
enum { AT_NULL = 0, AT_SYSINFO = 32, AT_SYSINFO_EHDR = 33 };
enum { PR_SET_NO_NEW_PRIVS = 38, SECCOMP_SET_MODE_FILTER = 1 };

enum step { STEP_RAW = 1, STEP_FILTER = 2, STEP_CONTROL = 3, STEP_LIBC = 4, STEP_PRICE_LIBC = 5, STEP_PRICE_RAW = 6 };
enum { TRIES = 32, MOST_ITEMS = 64 };

/* What is called; by these numbers the other side asks for it. */
enum function { CLOCK_GETTIME, CLOCK_GETRES, GETTIMEOFDAY, TIME, GETCPU, CLOCK_GETTIME_32, FUNCTIONS };

/* In the C calling convention of i386 an argument too many does no harm. */
typedef int (*vdso_fn)(u32, u32, u32);

static u32 sysinfo;    /* what AT_SYSINFO said */
static const u8 *ehdr; /* what AT_SYSINFO_EHDR said */
static vdso_fn vdso[FUNCTIONS];

/* As a C library makes it: by AT_SYSINFO, if the kernel gave that. */
static int syscall3(u32 nr, u32 a, u32 b, u32 c) {
	int result;

	if (sysinfo)
		__asm__ volatile("call *%1" : "=a"(result) : "m"(sysinfo), "0"(nr), "b"(a), "c"(b), "d"(c) : "memory");
	else
		__asm__ volatile("int $0x80" : "=a"(result) : "0"(nr), "b"(a), "c"(b), "d"(c) : "memory");
	return result;
}

static void exit(int status) {
	for (;;)
		syscall3(NR_exit, (u32)status, 0, 0);
}

static void report(u64 step, u64 item, u64 value) {
	u64 record[3] = {step, item, value};

	syscall3(NR_write, 1, (u32)record, sizeof(record));
}

static u64 ticks(void) {
	__builtin_ia32_lfence();
	return __builtin_ia32_rdtsc();
}

/* ---- the vDSO's functions by their names (elf(5)) ---- */

struct section {
	u32 tag, value;
};

struct symbol {
	u32 name, value, size;
	u8 info, other;
	u16 section;
};

static int equal(const char *a, const char *b) {
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

static void find_functions(void) {
	static const char *const names[FUNCTIONS] = {"__vdso_clock_gettime64", "__vdso_clock_getres",
						     "__vdso_gettimeofday",    "__vdso_time",
						     "__vdso_getcpu",          "__vdso_clock_gettime"};
	const u32 *header = (const u32 *)ehdr;
	const u8 *program = ehdr + header[7];
	u32 entry_size = *(const u16 *)(ehdr + 42), entries = *(const u16 *)(ehdr + 44);
	u32 linked_to = 0;
	const struct section *dynamic = 0;

	for (u32 i = 0; i < entries; i++, program += entry_size) {
		const u32 *p = (const u32 *)program;
		if (p[0] == 1 /* PT_LOAD */)
			linked_to = p[2] - p[1];
		if (p[0] == 2 /* PT_DYNAMIC */)
			dynamic = (const struct section *)(ehdr + p[1]);
	}
	const u8 *base = ehdr - linked_to;
	const char *strings = 0;
	const struct symbol *symbols = 0;
	for (; dynamic && dynamic->tag; dynamic++) {
		if (dynamic->tag == 5 /* DT_STRTAB */)
			strings = (const char *)(base + dynamic->value);
		if (dynamic->tag == 6 /* DT_SYMTAB */)
			symbols = (const struct symbol *)(base + dynamic->value);
	}
	if (!strings || !symbols)
		return;
	/* The string table follows the symbols, in every vDSO. */
	for (const struct symbol *s = symbols; (const char *)s < strings; s++)
		for (int f = 0; f < FUNCTIONS; f++)
			if (s->section && equal(names[f], strings + s->name))
				vdso[f] = (vdso_fn)(base + s->value);
}

/* ---- the calls ---- */

struct item {
	enum function function;
	u32 clock;
};

static struct item items[MOST_ITEMS];
static u32 item_count;

/* Minus errno, or what the call gives. */
static int bare(struct item i) {
	long long answer[2];
	int result;

	switch (i.function) {
	case CLOCK_GETTIME:
		result = syscall3(NR_clock_gettime64, i.clock, (u32)answer, 0);
		return result == -ENOSYS ? syscall3(NR_clock_gettime, i.clock, (u32)answer, 0) : result;
	case CLOCK_GETTIME_32:
		return syscall3(NR_clock_gettime, i.clock, (u32)answer, 0);
	case CLOCK_GETRES:
		return syscall3(NR_clock_getres, i.clock, (u32)answer, 0);
	case GETTIMEOFDAY:
		return syscall3(NR_gettimeofday, (u32)answer, 0, 0);
	case TIME:
		return syscall3(NR_time, 0, 0, 0);
	case GETCPU:
		return syscall3(NR_getcpu, (u32)answer, 0, 0);
	default:
		return -EINVAL;
	}
}

/* As a C library does it: by the vDSO if that has the function. */
static int usual(struct item i) {
	long long answer[2];
	vdso_fn f = vdso[i.function];

	if (!f && i.function == CLOCK_GETTIME)
		f = vdso[CLOCK_GETTIME_32];
	if (!f)
		return bare(i);
	if (i.function == TIME)
		return f(0, 0, 0);
	if (i.function == GETTIMEOFDAY || i.function == GETCPU)
		return f((u32)answer, 0, 0);
	return f(i.clock, (u32)answer, 0);
}

static u32 errno_of(int result) { return result < 0 && result >= -4095 ? (u32)-result : 0; }

static void errnos(void) {
	for (u32 i = 0; i < item_count; i++)
		report(STEP_RAW, i, errno_of(bare(items[i])));
}

/* ---- paths ---- */

struct instruction {
	u16 code;
	u8 if_true, if_false;
	u32 k;
};

/* linux/filter.h: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K; linux/seccomp.h: SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW */
#define LOAD_NR 0x20, 0, 0, 0
#define LEADS(nr, to_refusal) 0x15, to_refusal, 0, nr
#define REFUSE 0x06, 0, 0, 0x00050000u | EXFULL
#define ALLOW 0x06, 0, 0, 0x7fff0000u

static int install_filter(void) {
	static const struct instruction filter[] = {
	    {LOAD_NR},
	    {LEADS(NR_clock_gettime, 7)},
	    {LEADS(NR_clock_gettime64, 6)},
	    {LEADS(NR_clock_getres, 5)},
	    {LEADS(NR_clock_getres_time64, 4)},
	    {LEADS(NR_gettimeofday, 3)},
	    {LEADS(NR_getcpu, 2)},
	    {LEADS(NR_time, 1)},
	    {ALLOW},
	    {REFUSE},
	};
	struct {
		u16 length;
		const struct instruction *filter;
	} program = {sizeof(filter) / sizeof(filter[0]), filter};

	syscall3(NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0);
	return syscall3(NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, (u32)&program);
}

static void paths(void) {
	struct item control = {CLOCK_GETTIME, 1};

	report(STEP_FILTER, 0, errno_of(install_filter()));
	report(STEP_CONTROL, 0, errno_of(bare(control)));
	for (u32 i = 0; i < item_count; i++) {
		u32 entered = 0;
		for (u32 n = 0; n < TRIES; n++)
			entered += errno_of(usual(items[i])) == EXFULL;
		report(STEP_LIBC, i, entered);
	}
}

/* ---- prices ---- */

static u64 batch(int (*call)(struct item), struct item item, u32 calls) {
	u64 start = ticks();

	for (u32 n = 0; n < calls; n++)
		call(item);
	return ticks() - start;
}

static void price(enum step step, int (*call)(struct item), u32 index, u32 batch_ticks, u32 count) {
	enum { TRIAL = 8, FEWEST = 4, MOST = 4096 };
	u32 calls = FEWEST;

	batch(call, items[index], TRIAL); /* cold caches are no part of a price */
	u32 took = (u32)batch(call, items[index], TRIAL) / TRIAL;
	if (took && batch_ticks / took > calls)
		calls = batch_ticks / took;
	if (calls > MOST)
		calls = MOST;
	while (count--) {
		u64 spent = batch(call, items[index], calls);
		report(step, (u64)calls << 32 | index, spent);
	}
}

static void prices(u32 batch_ticks, u32 count) {
	for (u32 i = 0; i < item_count; i++) {
		price(STEP_PRICE_LIBC, usual, i, batch_ticks, count);
		if (!errno_of(bare(items[i])))
			price(STEP_PRICE_RAW, bare, i, batch_ticks, count);
	}
}

/* ---- the vDSO itself ---- */

/* The kernel answers with an error where nothing is mapped. */
static void show(const u8 *from, u32 pages) {
	static const u8 nothing[4096];

	for (u32 page = 0; page < pages; page++)
		if (syscall3(NR_write, 1, (u32)(from + 4096 * page), 4096) != 4096)
			syscall3(NR_write, 1, (u32)nothing, 4096);
}

/* Returns fastpath's image: the vDSO itself, or what its clock_gettime jumps to, by a stub in the vDSO
 * (crates/inject/src/redirection/stub.rs). An image is one page. */
static const u8 *image(void) {
	enum { VDSO_SIZE = 2 * 4096, TO_IMAGE = 11 };
	const u8 *code = (const u8 *)vdso[CLOCK_GETTIME];

	if (!code || *code != 0xe9 /* jmp rel32 */)
		return ehdr;
	code += 5 + *(const u32 *)(code + 1);
	/* je rel32 */
	if ((u32)(code - ehdr) < VDSO_SIZE && code[TO_IMAGE] == 0x0f && code[TO_IMAGE + 1] == 0x84)
		code += TO_IMAGE + 6 + *(const u32 *)(code + TO_IMAGE + 2);
	return (const u8 *)((u32)code & ~4095u);
}

static u32 number(const char **text) {
	u32 value = 0;

	while (**text >= '0' && **text <= '9')
		value = 10 * value + (u32)(*(*text)++ - '0');
	return value;
}

__attribute__((used)) void start(const u32 *stack) {
	u32 argc = stack[0];
	const char *const *argv = (const char *const *)(stack + 1);
	const u32 *auxv = stack + 1 + argc + 1;
	u32 first = 2, batch_ticks = 0, count = 0;

	while (*auxv++)
		;
	for (; *auxv != AT_NULL; auxv += 2) {
		if (*auxv == AT_SYSINFO)
			sysinfo = auxv[1];
		if (*auxv == AT_SYSINFO_EHDR)
			ehdr = (const u8 *)auxv[1];
	}
	if (ehdr)
		find_functions();
	if (argc < 2)
		exit(2);
	if (equal(argv[1], "vdso")) {
		report((u32)ehdr, sysinfo, 0);
		if (ehdr) {
			show(image() - 4096, 1);
			show(ehdr, 2);
		}
		exit(0);
	}
	if (equal(argv[1], "prices") && argc >= 4) {
		const char *text = argv[2];
		batch_ticks = number(&text);
		text = argv[3];
		count = number(&text);
		first = 4;
	}
	for (u32 i = first; i < argc && item_count < MOST_ITEMS; i++) {
		const char *text = argv[i];
		u32 function = number(&text);
		text++;
		items[item_count].function = (enum function)function;
		items[item_count++].clock = number(&text);
	}
	if (equal(argv[1], "errnos"))
		errnos();
	else if (equal(argv[1], "paths"))
		paths();
	else if (equal(argv[1], "prices"))
		prices(batch_ticks, count);
	exit(0);
}

__asm__(".globl _start\n"
	"_start:	mov %esp, %eax\n"
	"	and $-16, %esp\n"
	"	sub $12, %esp\n"
	"	push %eax\n"
	"	call start\n");
