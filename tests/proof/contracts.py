"""What each function of the image must do, and the proof that it does.

A contract is stated twice: as what a caller may expect of a call (`CONTRACTS`), and as what the executed code must have done (`prove_*`).
"""

import z3

from executor import USEC_FACTOR, Again, Barrier, Bytes, Call, Counter, Executor, Load, Refuted, fresh, known, multiply, new_solver, shift_right, vector

SECOND = 10**9
FLOOR_LIMIT = 1 << 29
NO_FLOOR = -(1 << 31)
ENOSYS = 38
HRES, RAW, ANCHOR = 128, 384, 128  # struct fp_page
REALTIME = 0
# By clock id: the latch, and the index of the base.
CLOCKS = {0: (HRES, 0), 1: (HRES, 1), 7: (HRES, 2), 11: (HRES, 3), 4: (RAW, 0)}
COARSE = (5, 6)
HRES_RESOLUTION, COARSE_RESOLUTION, FLAGS, CPU, NODE = 16, 20, 24, 28, 32
OFFSETS_FLAG, ONE_CPU_FLAG, SEGMENT_FLAG = 4, 2, 1
CPU_SEGMENT = 0x7B
OFFSETS_LOW, OFFSETS_HIGH = 896, 2944


def narrow(value, bits):
    return z3.Extract(bits - 1, 0, value) if value.size() > bits else value


def widen(value, bits):
    return z3.ZeroExt(bits - value.size(), value) if value.size() < bits else value


# What a caller may expect.


def reads_latch(executor, state, argument):
    """fp_read_latch(id, time) writes a time or a floor, whatever the page holds, or leaves `time` as it was."""
    word = executor.isa.word
    identity, time = argument(0), argument(1)
    time = known(time) if known(time) is not None else time
    finds, answers, found, before = z3.FreshBool("finds"), fresh("answers", 8 * word), [], []
    for at, size, name in ((0, 8, "latch_sec"), (8, word, "latch_nsec")):
        memory, place = executor.place(state, time + at, size, store=True)
        memory = state.memories()[memory]
        old = vector(memory.read(place, size, lambda at: memory.write(at, 1, fresh("old", 8))), size)
        before.append(old)
        found.append(z3.If(finds, fresh(name, 8 * size), old))
        memory.write(place, size, found[-1])
    answers = z3.If(finds, answers, z3.BitVecVal(0, 8 * word))
    return Call("fp_read_latch", [identity, before[1]], answers, tuple(found))


def is_later(executor, state, argument):
    """fp_is_later(floor, sec, nsec) compares."""
    word, floor = executor.isa.word, argument(0)
    parts = [executor.load(state, floor, 8), executor.load(state, floor + 8, word)]
    return Call("fp_is_later", [*parts, argument(1), argument(2)], fresh("later", 8 * word))


def asks_kernel(name, wide=False):
    """A function of the kernel's that writes two words through its second argument, or its first, if it returns 0."""

    def contract(executor, state, argument):
        word = 8 if wide else executor.isa.word
        arguments = [argument(0), argument(1)]
        to = arguments[name != "gettimeofday"]
        to = known(to) if known(to) is not None else to
        result, out = fresh("kernel", 8 * executor.isa.word), (fresh("kernel_sec", 8 * word), fresh("kernel_nsec", 8 * word))
        for i in (0, 1):
            memory, at = executor.place(state, to + i * word, word, store=True, null=True)
            memory = state.memories()[memory]
            old = memory.read(at, word, lambda at: memory.write(at, 1, fresh("old", 8)))
            memory.write(at, word, z3.If(z3.Extract(31, 0, result) == 0, out[i], vector(old, word)))
        return Call(f"fp_call_{name}", arguments, result, out)

    return contract


def reads_slowly(executor, state, argument):
    """fp_read_slowly(id, ts) writes a time if it returns 0."""
    return Call(**{**vars(asks_kernel("clock_gettime")(executor, state, argument)), "name": "fp_read_slowly"})


# Functions that the image asks. An instance jumps to the kernel's own; the image's code in the kernel's vDSO, to what is behind that code, and
# its slow path, to what is behind that.
KERNELS = ("clock_gettime", "clock_gettime64", "gettimeofday", "clock_getres")
CONTRACTS = {
    "fp_read_slowly": reads_slowly,
    "fp_read_latch": reads_latch,
    "fp_is_later": is_later,
    **{f"{who}_{each}": asks_kernel(each, wide=each.endswith("64")) for each in KERNELS for who in ("fp_call", "kernel", "body", "slow")},
}


class Path:
    """A way through a function, from its call to its return."""

    def __init__(self, executor, state):
        self.executor, self.isa, self.state = executor, executor.isa, state
        self.result = z3.Extract(31, 0, vector(executor.get(state, executor.isa.result), executor.isa.word))
        self.calls = [each for each in state.log if isinstance(each, Call)]
        self.loads = [each for each in state.log if isinstance(each, Load)]

    def proves(self, goal, *premises):
        facts = [*self.state.conditions, *premises, z3.Not(goal)]
        solver = new_solver("QF_UFBV")
        solver.add(facts + commutations(facts))
        answer = solver.check()
        if answer == z3.unknown:
            raise Refuted(f"the solver does not know: {solver.reason_unknown()}")
        return answer == z3.unsat

    def need(self, what, goal, *premises):
        if not self.proves(goal, *premises):
            raise Refuted(f"not proven: {what}")

    def stored(self, name, size):
        """Returns the two numbers in an object, or None where the image stored nothing."""
        memory = self.state.objects[name]
        if not memory.parts:
            return None
        return [vector(memory.read(at, size, lambda at: memory.write(at, 1, fresh("unwritten", 8))), size) for at in (0, size)]

    def need_time(self, name, size, sec, nsec, *premises):
        stored = self.stored(name, size)
        if stored is None:
            raise Refuted(f"nothing is stored to {name}")
        for what, value, expected in zip(("seconds", "nanoseconds"), stored, (sec, nsec)):
            expected = narrow(expected, 8 * size)
            self.need(what, value == widen(expected, 8 * size), *premises)


def commutations(facts):
    """Returns that the products in `facts` commute, and that a product with 0 is 0."""
    found, todo, seen = [], list(facts), set()
    while todo:
        each = todo.pop()
        if each.get_id() in seen:
            continue
        seen.add(each.get_id())
        todo += each.children()
        if z3.is_app(each) and each.decl().name().startswith("multiply"):
            product, (a, b) = each.decl(), each.children()
            found += [product(a, b) == product(b, a), z3.Implies(z3.Or(a == 0, b == 0), each == 0)]
    return found


class Attempt:
    """One attempt to read a latch, between two loads of seq."""

    def __init__(self, path, latch):
        log = path.state.log
        starts = [i for i, each in enumerate(log) if isinstance(each, Again)]
        self.log = [each for each in log[starts[-1] + 1 if starts else 0 :] if not isinstance(each, Call)]
        self.isa, self.latch, self.path = path.isa, latch, path
        self.loads = [each for each in self.log if isinstance(each, Load)]
        self.sequences = [each for each in self.loads if each.at == latch and each.size == 4]
        if not self.loads or self.loads[0] not in self.sequences:
            raise Refuted("seq is not loaded first")
        self.seq = self.sequences[0].value
        self.complete = len(self.sequences) == 2 and self.loads[-1] is self.sequences[1]
        self.bytes, self.agree = Bytes(), []
        for load in self.loads[1 : -1 if self.complete else None]:
            if not isinstance(load.at, int):
                continue
            for i in range(load.size):
                byte = vector(load.value, load.size)
                byte = z3.Extract(8 * i + 7, 8 * i, byte)
                if load.at + i in self.bytes.parts:
                    self.agree.append(self.bytes.parts[load.at + i][0] == byte)
                else:
                    self.bytes.write(load.at + i, 1, byte)
        self.counters = [each for each in self.log if isinstance(each, Counter)]

    def field(self, at, size):
        """Returns what was loaded from the page, or a free symbol."""
        return self.bytes.read(at, size, lambda at: self.bytes.write(at, 1, fresh("not_loaded", 8)))

    def counter(self):
        return self.counters[0].value if self.counters else fresh("counter", 64)

    def check_order(self, ordered_by_field=True):
        """Checks what orders the loads, and the counter among them."""
        log, isa = self.log, self.isa
        loads = [i for i, each in enumerate(log) if isinstance(each, Load) and (not isinstance(each.at, int) or each.at >= HRES)]
        barriers = {i: each.name for i, each in enumerate(log) if isinstance(each, Barrier)}
        counters = [i for i, each in enumerate(log) if isinstance(each, Counter)]
        if len(counters) != 1:
            raise Refuted(f"{len(counters)} reads of the counter")
        at = counters[0]
        if not isa.load_barriers:
            # x86 keeps loads in order.
            if at < loads[0] or not log[at].is_ordered and barriers.get(at - 1) != "lfence":
                raise Refuted("the counter may be read before seq")
            return
        between = lambda first, last: any(first < i < last and name in isa.load_barriers for i, name in barriers.items())
        if not between(loads[0], loads[1]) or not between(loads[-2], loads[-1]):
            raise Refuted("a load barrier is missing")
        if not log[at].is_ordered and barriers.get(at - 1) != "isb" or not loads[1] < at < loads[-1]:
            raise Refuted("the counter may be read too early")
        if any(at < i < loads[-1] and not log[i].depends for i in loads):
            raise Refuted("a load after the counter does not depend on it")


def extrapolate(word, field, latch, base, age):
    """Returns the formula of page.h, and the bounds that it relies on."""
    mult, shift = field(latch + 16, 4), widen(field(latch + 20, 4), 64)
    sec, shifted = field(latch + 32 + 16 * base, 8), field(latch + 40 + 16 * base, 8)
    total = multiply(z3.ZeroExt(32, z3.Extract(31, 0, age)), widen(mult, 64)) + shifted
    nsec = shift_right(total, shift) if word == 8 else z3.LShR(total, shift)
    carry = z3.UGE(nsec, SECOND)
    return z3.If(carry, sec + 1, sec), z3.If(carry, nsec - SECOND, nsec), [z3.ULT(shift, 64), z3.ULT(nsec, 2 * SECOND)]


def has(bits, identity):
    return z3.LShR(bits, identity) & 1 == 1


def needs_pad(image, name):
    at, pad = image.symbols[name][0], image.isa.landing_pad
    is_jump = "body_clock_gettime" in image.symbols and name.endswith("clock_gettime")
    if not is_jump and image.code[at : at + len(pad)] != pad:
        raise Refuted(f"{name} does not begin with a landing pad")


class NewestRead:
    """The attempt of the hot path: fp_read_newest()."""

    def __init__(self, path, identity):
        self.path = path
        latch, base = CLOCKS[identity]
        self.attempt = attempt = Attempt(path, latch)
        age = attempt.counter() - attempt.field(latch + 8, 8)
        self.conditions = [
            attempt.seq & 1 == 0,
            has(attempt.field(latch + 4, 4), identity),
            z3.ULE(age, widen(attempt.field(latch + 24, 4), 64)),
        ]
        if attempt.complete:
            self.conditions.append(attempt.seq == attempt.sequences[1].value)
        self.sec, self.nsec, bounds = extrapolate(path.isa.word, attempt.field, latch, base, age)
        self.premises = bounds + attempt.agree

    def prove_answered(self):
        if not self.attempt.complete:
            raise Refuted("seq is not loaded last")
        self.attempt.check_order()
        self.path.need("the conditions of an answer", z3.And(self.conditions))
        self.path.need("result 0", self.path.result == 0)

    def prove_given_up(self):
        self.path.need("a reason to give up", z3.Not(z3.And(self.conditions)), *self.attempt.agree)


def pass_on(path, name, *arguments):
    """Proves that one call was made, with these arguments, and its result returned."""
    if [each.name for each in path.calls] != [name]:
        raise Refuted(f"calls {[each.name for each in path.calls]}, not {name}")
    call = path.calls[0]
    for i, (value, expected) in enumerate(zip(call.arguments, arguments)):
        expected = vector(expected, 4)
        path.need(f"argument {i} of {name}", narrow(vector(value, path.isa.word), expected.size()) == expected)
    path.need(f"the result of {name}", path.result == z3.Extract(31, 0, call.result))


def run(image, name, arguments, pointers=(), optional=(), internal=False, conditions=(), touched=None, **options):
    """Executes a function. Returns the executor and its paths."""
    contracts = {each: contract for each, contract in CONTRACTS.items() if each != name}
    executor = Executor(image, dict(pointers), optional, contracts, **options)
    arguments = [executor.pointers[each][0] if isinstance(each, str) else each for each in arguments]
    try:
        states = executor.run(name, arguments, internal, conditions)
    finally:
        if touched is not None:
            touched.update(executor.executed)
    if not states:
        raise Refuted(f"{name} never returns")
    return executor, [Path(executor, state) for state in states]


def other_identity():
    """Returns a clock that the page does not hold."""
    identity = z3.BitVec("other_clock", 32)
    return identity, [identity != each for each in CLOCKS]


def count(kinds, kind):
    kinds[kind] = kinds.get(kind, 0) + 1


def prove_clock_gettime(image, identity, function="clock_gettime", touched=None):
    """The answer is the page's formula, or the call goes on to fp_read_slowly or to the kernel."""
    word, kinds, conditions = image.isa.word, {}, ()
    size = 8 if function.endswith("64") else word
    name = image.isa.prefix + function
    needs_pad(image, name)
    if identity is None:
        identity, conditions = other_identity()
    executor, paths = run(image, name, [identity, "ts"], {"ts": 2 * size}, conditions=conditions, touched=touched)
    ts = executor.pointers["ts"][0]
    for path in paths:
        if path.loads and identity not in CLOCKS:
            raise Refuted("the page is read for a clock that it does not hold")
        if not path.calls:
            read = NewestRead(path, identity)
            read.prove_answered()
            path.need_time("ts", size, read.sec, read.nsec, *read.premises)
            count(kinds, "fast")
            continue
        if path.loads:
            NewestRead(path, identity).prove_given_up()
        elif identity in (0, 1) or word == 8 and identity in CLOCKS:
            raise Refuted("the page is not read")
        if path.calls[0].name == f"fp_call_{function}":
            if isinstance(identity, int) and identity in CLOCKS:
                raise Refuted("the kernel is asked for a clock of the page")
            pass_on(path, f"fp_call_{function}", identity, ts)
            count(kinds, "kernel")
        elif function == "clock_gettime":
            pass_on(path, "fp_read_slowly", identity, ts)
            count(kinds, "slow")
        else:
            count(kinds, prove_slow_path(path, identity, ts, size, function))
    return kinds


def prove_slow_path(path, identity, ts, size, function):
    """
    READ_SLOWLY: an anchor's answer, else the kernel's, unless an anchor answers after it or the floor is later: the
    second look's, or the first one's if that finds none, or FP_NO_FLOOR if neither does.
    """
    names = [each.name for each in path.calls]
    order = ["fp_read_latch", f"fp_call_{function}", "fp_read_latch", "fp_is_later"]
    if names != order[: len(names)]:
        raise Refuted(f"calls {names}")
    for call in path.calls[:3]:
        path.need("the clock id is passed on", z3.Extract(31, 0, vector(call.arguments[0], path.isa.word)) == identity)
    yes = [z3.Extract(31, 0, each.result) != 0 for each in path.calls]
    zero = path.result == 0
    no_floor = z3.BitVecVal(NO_FLOOR, 8 * path.isa.word)
    path.need("there is no floor before the first look", path.calls[0].arguments[1] == no_floor)
    if len(names) == 1:
        path.need("the first look answers", z3.And(yes[0], zero))
        path.need_time("ts", size, *path.calls[0].out)
        return "anchor"
    kernel = path.calls[1]
    path.need("the kernel is asked for want of an answer", z3.Not(yes[0]))
    path.need("ts is passed on", vector(kernel.arguments[1], path.isa.word) == ts)
    if len(names) == 2:
        path.need("an error is returned", z3.And(yes[1], path.result == z3.Extract(31, 0, kernel.result)))
        return "error"
    path.need("the kernel answered", z3.And(z3.Not(yes[1]), zero))
    if len(names) == 3:
        path.need("the second look answers", yes[2])
        path.need_time("ts", size, *path.calls[2].out)
        return "later anchor"
    floor = path.calls[2].out
    path.need("the second look keeps the first one's floor", path.calls[2].arguments[1] == path.calls[0].out[1])
    expected = [*floor, *[z3.Extract(31, 0, each) for each in kernel.out]]
    path.need("the second look does not answer", z3.Not(yes[2]))
    for value, want in zip(path.calls[3].arguments, expected):
        path.need("the floor is compared with the kernel's time", narrow(vector(value, want.size() // 8), want.size()) == want)
    bits = 8 * size
    for value, low, high in zip(path.stored("ts", size), floor, kernel.out):
        path.need("the later of the two", value == z3.If(yes[3], widen(narrow(low, bits), bits), high))
    return "floor"


def prove_read_slowly(image):
    kinds = {}
    identity = z3.BitVec("any_clock", 32)
    word = image.isa.word
    executor, paths = run(image, "fp_read_slowly", [identity, "ts"], {"ts": 2 * word}, internal=True)
    for path in paths:
        if path.loads:
            raise Refuted("the page is read")
        count(kinds, prove_slow_path(path, identity, executor.pointers["ts"][0], word, "clock_gettime"))
    return kinds


def prove_is_later(image):
    """The floor is later if it is so by 1 ns to FLOOR_LIMIT, with seconds modulo 2^32."""
    word, kinds = image.isa.word, {}
    seconds, nanoseconds, apart, nsec = (z3.BitVec(name, 32) for name in ("kernel_sec", "kernel_nsec", "apart", "floor_nsec"))
    floor = z3.Concat(fresh("upper", 32), nsec) if word == 8 else nsec
    contents = [("floor", 8 + word, z3.Concat(floor, fresh("upper", 32), seconds + apart))]
    _, paths = run(image, "fp_is_later", ["floor", seconds, nanoseconds], {"floor": 8 + word}, internal=True, contents=contents)
    kernel = z3.ULT(nanoseconds, SECOND)
    for path in paths:
        if path.calls or path.loads:
            raise Refuted("more is done than to compare")
        for second in (0, 1):
            ahead = second * SECOND + z3.ZeroExt(2, nsec) - z3.ZeroExt(2, nanoseconds)
            later = z3.And(ahead > 0, ahead <= FLOOR_LIMIT)
            path.need("later", (path.result != 0) == later, kernel, apart == second, z3.ULT(nsec, SECOND))
        path.need("not later", path.result == 0, z3.UGT(apart, 1))
        path.need("FP_NO_FLOOR is never later", path.result == 0, kernel, nsec == z3.BitVecVal(NO_FLOOR, 32))
        count(kinds, "compared")
    return kinds


def prove_gettimeofday(image):
    """As clock_gettime of REALTIME, in microseconds. Only the kernel has the time zone."""
    word, kinds = image.isa.word, {}
    name = image.isa.prefix + "gettimeofday"
    needs_pad(image, name)
    executor, paths = run(image, name, ["tv", "tz"], {"tv": 2 * word, "tz": 8}, optional=("tv", "tz"))
    tv, tz = (executor.pointers[each][0] for each in ("tv", "tz"))
    product = multiply if word == 8 else lambda a, b: a * b
    # bounds.py proves that this is nsec / 1000.
    microseconds = lambda nsec: z3.LShR(product(widen(narrow(nsec, 8 * word), 64), z3.BitVecVal(USEC_FACTOR, 64)), 38)
    for path in paths:
        calls = list(path.calls)
        if not calls:
            path.need("no time zone", z3.And(tz == 0, path.result == 0))
            if not path.loads:
                path.need("nothing was asked for", tv == 0)
                count(kinds, "nothing")
                continue
            read = NewestRead(path, REALTIME)
            read.prove_answered()
            path.need_time("tv", word, read.sec, microseconds(read.nsec), *read.premises)
            count(kinds, "fast")
            continue
        if path.loads:
            NewestRead(path, REALTIME).prove_given_up()
        if calls[0].name == "fp_call_gettimeofday":
            call = calls.pop(0)
            for value, expected in zip(call.arguments, (tv, tz)):
                path.need("arguments are passed on", vector(value, word) == expected)
            path.need("the time zone was asked for", tz != 0)
            if not calls:
                result = z3.Extract(31, 0, call.result)
                path.need("the kernel's result", z3.And(path.result == result, z3.Or(result != 0, tv == 0)))
                count(kinds, "time zone")
                continue
        else:
            path.need("no time zone", tz == 0)
        if [each.name for each in calls] != ["fp_read_slowly"]:
            raise Refuted(f"calls {[each.name for each in calls]}")
        result = z3.Extract(31, 0, calls[0].result)
        path.need("REALTIME is read", z3.Extract(31, 0, vector(calls[0].arguments[0], word)) == REALTIME)
        path.need("the result is passed on", path.result == result)
        if not path.proves(result != 0):
            path.need("the time was read", result == 0)
            path.need_time("tv", word, calls[0].out[0], microseconds(calls[0].out[1]), z3.ULT(calls[0].out[1], SECOND))
        count(kinds, "slow")
    return kinds


def prove_kernel_calls(image):
    """Each fp_call_FUNCTION is the system call, or in an instance a jump to the kernel's function."""
    kinds = {}
    first = z3.BitVec("first", 8 * image.isa.word)
    for function in [each for each in KERNELS if f"fp_call_{each}" in image.symbols]:
        pointers = {"to": 16}
        arguments = ["to", first] if function == "gettimeofday" else [first, "to"]
        # For a null pointer, an old kernel reads the clock, too.
        conditions = [z3.BitVec("to", 32) != 0] if image.isa.word == 4 else ()
        executor, paths = run(image, f"fp_call_{function}", arguments, pointers, conditions=conditions)
        expected = [executor.pointers[each][0] if isinstance(each, str) else each for each in arguments]
        has_kernels = f"kernel_{function}" in image.symbols
        for path in paths:
            if function == "clock_gettime64" and len(path.calls) == 2:
                count(kinds, prove_old_kernel(path, first))
                continue
            pass_on(path, f"fp_call_{function}" if has_kernels else image.isa.numbers[function], *expected)
            count(kinds, "kernel's functions" if has_kernels else "system calls")
    return kinds


def prove_old_kernel(path, identity):
    """A kernel without clock_gettime64 is asked for 32 bits."""
    new, old = path.calls
    result = z3.Extract(31, 0, old.result)
    path.need("there is no such call", new.result == -ENOSYS)
    path.need("the clock id is passed on", vector(old.arguments[0], 4) == identity)
    path.need("the result is passed on", path.result == result)
    if (new.name, old.name) != (path.isa.numbers["clock_gettime64"], "fp_call_clock_gettime"):
        raise Refuted(f"calls {new.name} and {old.name}")
    if not path.proves(result != 0):
        path.need("the kernel answered", result == 0)
        path.need_time("to", 8, *[z3.SignExt(32, each) for each in old.out])
    return "old kernel"


def prove_clock_getres(image):
    """The page's resolution of the clock, if it has one, else the kernel's."""
    word, kinds = image.isa.word, {}
    name = image.isa.prefix + "clock_getres"
    needs_pad(image, name)
    identity = z3.BitVec("any_clock", 32)
    executor, paths = run(image, name, [identity, "res"], {"res": 2 * word}, optional=("res",))
    res = executor.pointers["res"][0]
    is_hres, is_coarse = (z3.Or([identity == each for each in clocks]) for clocks in (CLOCKS, COARSE))
    for path in paths:
        last = path.loads[-1] if path.loads else None
        is_of_clock = last and {HRES_RESOLUTION: is_hres, COARSE_RESOLUTION: is_coarse}.get(last.at, z3.BoolVal(False))
        if path.calls:
            pass_on(path, "fp_call_clock_getres", identity, res)
            path.need("a reason to ask", z3.And(is_of_clock, last.value == 0) if path.loads else z3.Not(z3.Or(is_hres, is_coarse)))
            count(kinds, "kernel")
            continue
        if not last:
            raise Refuted("the page is not read")
        path.need("a resolution of the clock", z3.And(is_of_clock, last.value != 0, path.result == 0))
        if path.stored("res", word) is None:
            path.need("nothing was asked for", res == 0)
        else:
            path.need_time("res", word, z3.BitVecVal(0, 64), last.value)
        count(kinds, "page")
    return kinds


def prove_getcpu(image):
    """The page's CPU, or the one of the segment, if the page says so, else the kernel's."""
    kinds, pointers = {}, ("cpu", "node")
    name = image.isa.prefix + "getcpu"
    needs_pad(image, name)
    unused = z3.BitVec("unused", 8 * image.isa.word)
    executor, paths = run(image, name, [*pointers, unused], {each: 4 for each in pointers}, optional=pointers)
    pointers = {each: executor.pointers[each][0] for each in pointers}
    for path in paths:
        if not path.loads or path.loads[0].at != FLAGS or len({each.at for each in path.loads}) != len(path.loads):
            raise Refuted("flags are not loaded first, or something twice")
        field = {each.at: each.value for each in path.loads}
        kind = "page" if not path.calls else "segment" if path.calls[0].name == "lsl" else "kernel"
        is_one, has_segment = (field[FLAGS] & flag != 0 for flag in (ONE_CPU_FLAG, SEGMENT_FLAG))
        path.need("the kind", {"page": is_one, "segment": z3.And(z3.Not(is_one), has_segment), "kernel": z3.Not(is_one)}[kind])
        count(kinds, kind)
        if kind == "kernel":
            path.need("no segment", z3.Not(has_segment) if image.isa.name in ("x86_64", "i386") else z3.BoolVal(True))
            pass_on(path, image.isa.numbers["getcpu"], *pointers.values(), unused)
            continue
        if kind == "segment":
            path.need("the segment", narrow(vector(path.calls[0].arguments[0], image.isa.word), 16) == CPU_SEGMENT)
            limit = path.calls[0].result
            expected = {"cpu": limit & 0xFFF, "node": z3.LShR(limit, 12)}
        else:
            expected = {each: field.get(at, fresh("not_loaded", 32)) for each, at in (("cpu", CPU), ("node", NODE))}
        path.need("success", path.result == 0)
        for each, pointer in pointers.items():
            stored = path.stored(each, 2)
            path.need(f"{each} was not asked for", pointer == 0) if stored is None else path.need(each, z3.Concat(*reversed(stored)) == expected[each])
    return kinds


def prove_time(image):
    """The system call."""
    name, kinds = image.isa.prefix + "time", {}
    needs_pad(image, name)
    seconds = z3.BitVec("seconds", 8 * image.isa.word)
    for path in run(image, name, [seconds])[1]:
        pass_on(path, image.isa.numbers["time"], seconds)
        count(kinds, "system calls")
    return kinds


def never(at):
    raise Refuted(f"byte {at} was never written")


def prove_read_latch(image, identity):
    """The answer of the anchor in force, or the floor, or none."""
    word, kinds, conditions = image.isa.word, {}, ()
    if identity is None:
        # Of the others, 2, 3, 5, 6 and 8 to 10 rely on the writer, which sets no bit of theirs in `floors`.
        identity = z3.BitVec("other_clock", 32)
        conditions = [z3.UGT(identity, max(CLOCKS))]
    before = fresh("before", 8 * (8 + word))
    given = {"internal": True, "conditions": conditions, "contents": [("time", 8 + word, before)]}
    _, paths = run(image, "fp_read_latch", [identity, "time"], {"time": 8 + word}, **given)
    for path in paths:
        if path.calls:
            raise Refuted("something is called")
        count(kinds, prove_latch_path(path, identity, before))
    return kinds


def prove_latch_path(path, identity, before):
    word = path.isa.word
    nsec_memory = path.state.objects["time"]
    nsec = vector(nsec_memory.read(8, word, never), word)
    is_unchanged = vector(nsec_memory.read(0, 8 + word, never), 8 + word) == before
    if identity not in CLOCKS:
        if path.loads:
            raise Refuted("the page is read for a clock that it does not hold")
        path.need("no floor", z3.And(path.result == 0, is_unchanged))
        return "unknown clock"
    latch, base = CLOCKS[identity]
    attempt = Attempt(path, latch)
    counter = attempt.counter()
    if attempt.counters and not path.isa.load_barriers:
        counter = counter - prove_offset(path, attempt)
    odd = attempt.seq & 1 == 1
    pair = lambda at, size: (attempt.field(latch + at, size), attempt.field(latch + ANCHOR + at, size))
    starts = pair(8, 8)
    early = z3.And(z3.Not(odd), counter - starts[0] < 0)
    previous = z3.Or(odd, early)
    chosen = lambda at, size: z3.If(previous, *reversed(pair(at - latch, size)))
    age = counter - z3.If(previous, starts[1], starts[0])
    cap = widen(chosen(latch + 24, 4), 64)
    over = z3.UGT(age, cap)
    used = z3.If(over, z3.If(age < 0, z3.BitVecVal(0, 64), cap), age)
    floors = pair(28, 4)
    has_floor = z3.And(has(z3.If(odd, floors[1], floors[0]), identity), has(z3.If(previous, floors[1], floors[0]), identity))
    answers = z3.And(has(chosen(latch + 4, 4) | chosen(latch + 96, 4), identity), z3.Not(over))
    if not attempt.complete:
        path.need("there is no floor", z3.Not(has_floor), *attempt.agree)
        path.need("no floor", z3.And(path.result == 0, is_unchanged))
        return "none"
    attempt.check_order()
    sec, expected, bounds = extrapolate(word, chosen, latch, base, used)
    premises = bounds + attempt.agree
    path.need("seq has not changed", attempt.seq == attempt.sequences[1].value)
    path.need("there is a floor", has_floor, *premises)
    path.need("an answer, or a floor", (path.result != 0) == answers, *premises)
    path.need("seconds", vector(nsec_memory.read(0, 8, never), 8) == sec, *premises)
    path.need("nanoseconds", nsec == narrow(expected, 8 * word), *premises)
    return "time"


def prove_offset(path, attempt):
    """Returns the offset of the CPU's counter, 0 without FP_PAGE_OFFSETS."""
    flags = attempt.field(FLAGS, 4)
    aux = attempt.counters[0].aux
    if aux is None or path.proves(flags & OFFSETS_FLAG == 0):
        path.need("counters have no offsets", flags & OFFSETS_FLAG == 0)
        return z3.BitVecVal(0, 64)
    path.need("counters have offsets", flags & OFFSETS_FLAG != 0)
    cpu = widen(aux & 511, 8 * path.isa.word)
    parts = []
    for table, size in ((OFFSETS_LOW, 4), (OFFSETS_HIGH, 1)):
        found = [each.value for each in attempt.loads if not isinstance(each.at, int) and each.size == size
                 and path.proves(each.at == cpu * size + table)]
        if len(found) != 1:
            raise Refuted("the offset of another CPU")
        parts.append(found[0])
    return z3.Concat(z3.SignExt(24, parts[1]), parts[0])
