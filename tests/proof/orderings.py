"""Litmus tests of readers and the writer of a latch, in all their candidate executions.

A reader is what the executor logged of the shipped bytes. The writer's steps are read from writer/mod.rs and writer/change.rs: its stores have only the order that Rust's
atomics give them, so that the compiler may move the others. Eight bytes are two accesses without an order. A writer that stops is included: what it
does not store is what no reader sees.

The models, each with some edges left out, which only allows more executions:
- x86: Owens, Sarkar, Sewell: A Better x86 Memory Model: x86-TSO (TPHOLs 2009); x86tso.cat of herd7.
- AArch64: Pulte et al.: Simplifying ARM Concurrency (POPL 2018); aarch64.cat of herd7. Other-multi-copy-atomic.
- Arm: Alglave, Maranget, Tautschnig: Herding Cats (TOPLAS 2014); arm.cat of herd7. Not multi-copy-atomic.

The counter is no memory: a read of it that shows less than another came before that one, and `order` says what orders it among accesses.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import re

from contracts import ANCHOR, CLOCKS, REALTIME, Attempt, run
from executor import Barrier, Counter, Load, Refuted, mentioned
from isas import ISAS

PAGE = pathlib.Path(__file__).resolve().parents[2] / "core/page/src"
WRITER = "".join((PAGE / name).read_text() for name in ("writer/mod.rs", "writer/change.rs"))
# Of an anchor, in words of four bytes.
FIELDS = {"clocks": [4], "base_cycles": [8, 12], "mult": [16], "shift": [20], "cap_cycles": [24], "floors": [28], "by_cpu": [96]}
FIELDS.update({name: [at + 16 * base + word for base in range(4) for word in (0, 4)] for name, at in (("sec", 32), ("nsec_shifted", 40))})
SEQ, TOLD, BASES = 0, "told", range(32, 96)
# Values of the counter: before the base of the anchor in force, from there on, and from the new anchor's base on, or after the withdrawal.
TIMES = BEFORE, IN_FORCE, AFTER = range(3)
BEGINS = {"previous": BEFORE, "old": IN_FORCE, "new": AFTER}


@dataclasses.dataclass(frozen=True)
class Access:
    kind: str  # "load", "store" or "counter"
    at: object = None  # in the latch; None: a load of anything
    value: object = None  # that is stored: seq, or the anchor
    is_release: bool = False
    depends: bool = False  # on the counter, by its address
    branches: frozenset = frozenset()  # the loads that branches before it depend on, by their places in the thread
    is_ordered: bool = False  # a read of the counter that waits for earlier loads and branches by itself
    is_writers: bool = False  # a read of the counter that holds back what follows it


@dataclasses.dataclass(frozen=True)
class Fence:
    name: str
    branches: frozenset = frozenset()


# The writer.

STEP = re.compile(
    r"(?:self\.|writer\.)(?P<call>turn_away|finish|cut|prepare|commit)\((?:&change|latch|copy)\b|self\.store_anchor\(&latch\.copy\[(?P<copy>\d)\]"
    r"|(?P<seq>self\.store_seq)\(|(?:self|writer)\.store\d\d\(&(?:cell|copy)\.(?P<field>\w+)"
    r"|(?P<fence>fence_before_counter|fence\(Ordering::\w+)|= (?P<counter>counter)\(\)"
)
FENCES = ("fence_before_counter", "fence(Ordering::Release", "fence(Ordering::SeqCst")


def body(name):
    return re.search(rf"^( *)(?:pub(?:\(super\))? )?fn {name}\b.*?^\1}}$", WRITER, re.MULTILINE | re.DOTALL)[0]


def steps(name, copies=()):
    """Returns what a function of the writer does to one latch: (function, step, copies of the latch)."""
    found, copies = [], (0, 1) if name == "end_anchors" else copies
    for step in STEP.finditer(body(name)):
        if step["call"]:
            found += steps(step["call"], copies)
        elif step["copy"]:
            found += steps("store_anchor", (int(step["copy"]),))
        elif step["seq"]:
            found.append((name, "release of seq", copies))
        else:
            found.append((name, step["field"] or step["fence"] or step["counter"], copies))
    return found


def write(steps, anchors, seq, without):
    """Returns the accesses of a writer that stores `anchors` to the copies. `without` is a step that orders nothing."""
    made, releases = [], "seq.store(seq, Ordering::Release)" in body("store_seq")
    for function, what, where in steps:
        if what == "release of seq":
            seq = (seq & ~1) + 2 if function == "turn_away" else seq + 1
            made.append(Access("store", SEQ, seq, is_release=releases and (function, what) != without))
        elif what == "counter":
            made.append(Access("counter", is_writers=True))
        elif what in FIELDS:
            made += [Access("store", copy * ANCHOR + at, anchors[copy]) for copy in where for at in FIELDS[what]]
        elif what in FENCES and (function, what) != without:
            made.append(Fence(what))
    return made


def change(without=None):
    """Returns the commit of an anchor and the change to the next one; the first seq, and what the copies have."""
    commit = write(steps("commit"), {0: "old"}, 3, without)
    return commit + write(steps("publish_changes"), {0: "new", 1: "ended"}, 4, without), 3, (None, "previous")


def withdrawal(without=None):
    return write(steps("end_anchors"), {0: "withdrawn", 1: "withdrawn"}, 4, without), 4, ("old", "previous")


def cancellation(without=None):
    """Does the same as `change`, but too late when the readers are redirected."""
    made, first_seq, copies = change(without)
    redirected = [i for i, each in enumerate(made) if isinstance(each, Access) and each.kind == "store" and each.value == 7][0]
    return made[: redirected + 1] + write(steps("end_anchors"), {0: "withdrawn", 1: "withdrawn"}, 7, without), first_seq, copies


# A reader.


def find_readers(image):
    """Returns the attempts in which a reader gets a time or a floor, without duplicates, and where they were found."""
    readers = {}
    names = [image.isa.prefix + each for each in ("clock_gettime", "clock_gettime64", "gettimeofday")]
    calls = [(names[0], [clock, "time"]) for clock in CLOCKS]
    # Their code is the same for all clocks.
    calls += [(names[1], [REALTIME, "time"]), (names[2], ["time", 0]), ("fp_read_latch", [REALTIME, "time"])]
    for name, arguments in [each for each in calls if each[0] in image.symbols]:
        latch, base = CLOCKS[REALTIME if arguments[0] == "time" else arguments[0]]
        for path in run(image, name, arguments, {"time": 16}, internal=name == "fp_read_latch")[1]:
            if path.loads and not path.calls and (attempt := Attempt(path, latch)).complete:
                readers.setdefault(read(attempt, 16 * base), name)
    return readers


def read(attempt, base):
    """Returns the accesses, as if the clock were the first one of the anchor."""
    made, places = [], {}
    find = lambda branches: frozenset(places[name] for name in mentioned(*branches) if name in places)
    for each in attempt.log:
        if isinstance(each, Load) and isinstance(each.at, int) and 0 <= each.at - attempt.latch < 2 * ANCHOR:
            at = each.at - attempt.latch
            at = at - base if at % ANCHOR in BASES else at & ~3
            places[each.value.decl().name()] = len(made)
            made += [Access("load", at + word, depends=each.depends) for word in range(0, each.size, 4)]
        elif isinstance(each, Barrier):
            made.append(Fence(each.name, find(each.branches)))
        elif isinstance(each, Counter):
            made.append(Access("counter", is_ordered=each.is_ordered, branches=find(each.branches)))
    return tuple(made)


# The models. A relation is a list of bit sets.


def order(isa, i, a, between, b):
    """Returns how the i-th access of a thread is ordered before a later one behind fences: by a "fence", by "itself", or not."""
    names = {each.name for each in between}
    if a.kind == "store":
        # fence_before_counter() waits until stores are visible. Other fences do not hold back the counter.
        is_ordered = "fence_before_counter" in names if b.kind == "counter" else names or b.is_release
        return "fence" if is_ordered else None
    if a.is_writers:
        return "itself"
    if not isa.load_barriers:
        # x86: RDTSC goes ahead of earlier loads, and later loads go ahead of it.
        is_free = b.kind == "counter" and "lfence" not in names and not b.is_ordered or a.kind == "counter" and b.kind == "load"
        return None if is_free else "itself"
    if b.kind == "counter":
        waits = [each for each in between if each.name == "isb"] + [b] * b.is_ordered
        return "itself" if any(i in each.branches for each in waits) else None
    if a.kind == "counter":
        return "itself" if b.depends else None
    return "fence" if b.is_release or names & set(isa.load_barriers) else None


def union(*relations):
    return [functools.reduce(int.__or__, rows) for rows in zip(*relations)]


def compose(a, b):
    rows = []
    for row in a:
        made = 0
        while row:
            made |= b[(row & -row).bit_length() - 1]
            row &= row - 1
        rows.append(made)
    return rows


def closure(relation):
    """Returns the reflexive and transitive closure."""
    rows = [row | 1 << i for i, row in enumerate(relation)]
    for k in range(len(rows)):
        rows = [row | rows[k] if row >> k & 1 else row for row in rows]
    return rows


def is_acyclic(relation):
    left = before = (1 << len(relation)) - 1
    while left:
        for i in reversed(range(len(relation))):
            if not relation[i] & left:
                left &= ~(1 << i)
        if left == before:
            return False
        before = left
    return True


class Execution:
    """Threads, and what orders their accesses whatever the loads see."""

    def __init__(self, isa, threads):
        self.isa = isa
        self.events = [each for thread in threads for each in thread if isinstance(each, Access)]
        self.own, self.fences = ([0] * len(self.events) for _ in range(2))
        event = 0
        for thread in threads:
            for i, each in enumerate(thread):
                if isinstance(each, Fence):
                    continue
                between, later = [], event
                for other in thread[i + 1 :]:
                    if isinstance(other, Fence):
                        between.append(other)
                        continue
                    later += 1
                    if kind := order(isa, i, each, between, other):
                        (self.fences if kind == "fence" else self.own)[event] |= 1 << later
                event += 1
        self.counters = [i for i, each in enumerate(self.events) if each.kind == "counter"]
        self.stores = {each.at: [] for each in self.events}
        for i, each in enumerate(self.events):
            if each.kind == "store":
                self.stores[each.at].append(i)

    def allows(self, sees, counters=()):
        """Returns whether loads may see these stores, by index, -1: none of them. Of each pair of `counters`, the first shows less."""
        rf, fr, co, shows_less = ([0] * len(self.events) for _ in range(4))
        for load, index in sees.items():
            stores = self.stores[self.events[load].at]
            if index >= 0:
                rf[stores[index]] |= 1 << load
            fr[load] = sum(1 << each for each in stores[index + 1 :])
        for first, second in counters:
            shows_less[first] |= 1 << second
        happens = union(self.own, self.fences, shows_less, rf)
        if self.isa.name != "arm":
            return is_acyclic(union(happens, fr))
        if not is_acyclic(happens):
            return False
        for stores in self.stores.values():
            for first, second in itertools.combinations(stores, 2):
                co[first] |= 1 << second
        then = closure(happens)
        base = compose(union(self.fences, compose(rf, self.fences)), then)
        is_store = [each.kind == "store" for each in self.events]
        all_stores = sum(1 << i for i, each in enumerate(is_store) if each)
        between_stores = [row & all_stores * each for row, each in zip(base, is_store)]
        strong = compose(compose(compose(closure(union(rf, fr, co)), closure(base)), self.fences), then)
        propagates = union(between_stores, strong)
        observed = compose(compose(fr, propagates), then)
        return not any(row >> i & 1 for i, row in enumerate(observed)) and is_acyclic(union(co, propagates))


# The tests.


class Answers:
    """All executions of a reader and a writer in which the reader gets a time or a floor."""

    def __init__(self, isa, reader, script, has_spare=True):
        writer, self.first_seq, copies = script
        self.reader = [each for each in reader if isinstance(each, Access)]
        # Stores that no load can see change nothing.
        seen = {each.at for each in self.reader}
        writer = [each for each in writer if isinstance(each, Fence) or each.kind == "counter" or each.at in seen]
        self.execution, self.has_spare = Execution(isa, [reader, writer]), has_spare
        self.fields = [i for i, each in enumerate(self.reader) if each.kind == "load" and each.at != SEQ]
        self.sequences = [i for i, each in enumerate(self.reader) if each.at == SEQ]
        used = {self.reader[i].at // ANCHOR for i in self.fields if self.reader[i].at % ANCHOR in BASES}
        if len(used) != 1 or len(self.sequences) != 2:
            raise Refuted(f"the time is of {len(used)} anchors, and seq is loaded {len(self.sequences)} times")
        self.used = used.pop()
        # A reader that loads the floors has one of an anchor that is withdrawn, too.
        self.has_floors = any(self.reader[i].at % ANCHOR in FIELDS["floors"] for i in self.fields)
        # What the page may have while seq has a value. Each store of a withdrawal leaves a whole anchor.
        self.initial = {self.reader[i].at: copies[self.reader[i].at // ANCHOR] for i in self.fields}
        page, seq = dict(self.initial), self.first_seq
        self.held = {seq: {at: {anchor} for at, anchor in page.items()}}
        for each in [each for each in self.execution.events[len(self.reader) :] if each.kind == "store"]:
            if each.at == SEQ:
                seq = each.value
                self.held[seq] = {at: {anchor} for at, anchor in page.items()}
                continue
            page[each.at] = each.value
            if each.value == "withdrawn":
                self.held[seq][each.at].add(each.value)

    def value(self, load, index):
        at = self.reader[load].at
        if index < 0:
            return self.first_seq if at == SEQ else self.initial[at]
        return self.execution.events[self.execution.stores[at][index]].value

    def explore(self):
        """Returns the number of candidates, of allowed executions, and the first one that must not be."""
        choices = {i: range(-1, len(self.execution.stores[self.reader[i].at])) for i in [*self.sequences, *self.fields]}
        candidates, allowed = math.prod(len(choices[i]) for i in self.fields) * len(choices[self.sequences[0]]) * len(TIMES), 0
        is_odd = self.used == 1 and FIELDS["base_cycles"][0] not in self.initial
        for time, index in itertools.product(TIMES, choices[self.sequences[0]]):
            seq = self.value(self.sequences[0], index)
            todo = [{each: index for each in self.sequences}] if seq % 2 == is_odd else []
            less = self.shows_less(time)
            while todo:
                sees = todo.pop()
                if not self.may_answer(sees, time) or not self.execution.allows(sees, less):
                    continue
                if len(sees) == len(choices):
                    allowed += 1
                    if self.is_wrong(sees, seq, time):
                        text = ", ".join(f"{self.reader[i].at}: {self.value(i, each)}" for i, each in sees.items())
                        return candidates, allowed, f"at time {time}, {text}"
                    continue
                load = self.fields[len(sees) - 2]
                # Of one address, a later load sees no earlier store.
                before = [sees[i] for i in sees if self.reader[i].at == self.reader[load].at]
                todo += [{**sees, load: each} for each in choices[load] if each >= max(before, default=-1)]
        return candidates, allowed, None

    def shows_less(self, time):
        own, *others = self.execution.counters
        if time == BEFORE:
            return [(own, other) for other in others]
        pairs = [(other, own) for other in others if time == AFTER]
        if self.has_spare and not self.execution.isa.load_barriers:
            # x86: what follows the reader's counter comes at most LOOK_AHEAD_NS before it.
            pairs += [(other, i) for other, _ in pairs for i in range(own + 1, len(self.reader))]
        return pairs

    def anchors(self, sees, copy, *fields):
        """Returns of which anchors a reader sees fields, as far as it has loaded them."""
        places = [copy * ANCHOR + at for field in fields for at in FIELDS[field]]
        return [self.value(i, each) for i, each in sees.items() if self.reader[i].at in places]

    def may_answer(self, sees, time):
        """Returns whether the base is such that the reader uses this copy, and has a time or a floor of it."""
        bases = self.anchors(sees, 0, "base_cycles")
        begins = BEGINS.get(bases[0]) if len(bases) == 2 and bases[0] == bases[1] else None
        uses_copy = begins is None or (time < begins) == (self.used == 1)
        return uses_copy and (self.has_floors or "withdrawn" not in self.anchors(sees, self.used, "clocks", "by_cpu"))

    def is_wrong(self, sees, seq, time):
        """The fields must be those that the page had with this seq, and a replaced or withdrawn anchor answers only before that."""
        is_torn = any(self.value(i, sees[i]) not in self.held[seq][self.reader[i].at] for i in self.fields)
        return is_torn or time == AFTER and self.used == 0 and "old" in self.anchors(sees, 0, "clocks")


def goes_back(isa, first, second):
    """Returns whether a thread gets an earlier count than it got before, or than another got that told it so by a store."""
    free = lambda thread: [dataclasses.replace(each, at=None) if isinstance(each, Access) else each for each in thread]
    move = lambda thread, by: [dataclasses.replace(each, branches=frozenset(i + by for i in each.branches)) for each in free(thread)]
    told = [[*free(first), Access("store", TOLD, is_release=True)], [Access("load", TOLD), *move(second, 1)]]
    for threads in (told, [[*free(first), *move(second, len(first))]]):
        execution = Execution(isa, threads)
        sees = {i: 0 for i, each in enumerate(execution.events) if each.at == TOLD and each.kind == "load"}
        if execution.allows(sees, [reversed(execution.counters)]):
            return True
    return False


def find_fault(isa, reader, others, without=None, has_spare=True):
    """Returns what goes wrong, or None; and the numbers of candidates and of allowed executions."""
    total = [0, 0]
    for script in (change, withdrawal, cancellation):
        *numbers, fault = Answers(isa, reader, script(without), has_spare).explore()
        total = [sum(each) for each in zip(total, numbers)]
        if fault:
            return f"{script.__name__}: {fault}", total
    return next(("a later read gets an earlier count" for other in others if goes_back(isa, reader, other)), None), total


def mutants(isa, reader):
    """Yields readers without one of the things that order them, by name."""
    replace = lambda i, new: (*reader[:i], new, *reader[i + 1 :])
    for i, each in enumerate(reader):
        if isinstance(each, Fence):
            number = [other.name for other in reader[: i + 1] if isinstance(other, Fence)].count(each.name)
            yield f"{each.name} {number}", replace(i, Fence("nothing"))
        elif each.is_ordered:
            yield "the counter's own order", replace(i, dataclasses.replace(each, is_ordered=False))
    if isa.load_barriers:
        yield "the branch before the counter", tuple(dataclasses.replace(each, branches=frozenset()) for each in reader)
        yield "the dependencies on the counter", tuple(dataclasses.replace(each, depends=False) if isinstance(each, Access) else each for each in reader)


def prove_orderings(image):
    """No execution goes wrong. Without any one of the things that order readers and writer, one does."""
    isa, readers, total, needed = image.isa, find_readers(image), [0, 0], {}
    orders = sorted({step[:2] for step in steps("publish_changes") + steps("end_anchors") if step[1] in (*FENCES, "release of seq")})
    for reader, name in readers.items():
        fault, numbers = find_fault(isa, reader, readers)
        if fault:
            raise Refuted(f"{name}: {fault}")
        total = [sum(each) for each in zip(total, numbers)]
        tries = [(what, {"reader": mutant}) for what, mutant in mutants(isa, reader)]
        tries += [(f"{what.removeprefix('fence(Ordering::')} in {function}", {"reader": reader, "without": (function, what)}) for function, what in orders]
        tries += [] if isa.load_barriers else [("spare_cycles", {"reader": reader, "has_spare": False})]
        for what, options in tries:
            needed[what] = needed.get(what) or find_fault(isa, others=[reader], **options)[0]
    if not all(needed.values()):
        raise Refuted(f"nothing goes wrong without {[what for what, fault in needed.items() if not fault]}")
    return {"readers": len(readers), "candidates": total[0], "allowed": total[1], f"orders needed ({', '.join(needed)})": len(needed)}


def prove_models():
    """The models decide the classic tests as their papers say: message passing, store and load buffering, independent reads of independent writes."""
    load, store = (lambda at, kind=kind, **more: Access(kind, at, **more) for kind in ("load", "store"))
    barrier, isb = Fence("dmb ish"), [Fence("isb", frozenset([0])), Access("counter", is_ordered=True, branches=frozenset([0]))]
    x86, weak = ["x86_64"], ["aarch64", "arm"]
    sent, sent_freely = [store("x"), store("y", is_release=True)], [store("x"), store("y")]
    read_both = lambda a, b, *between, **more: [load(a), *between, load(b, **more)]
    writers = [[store("x")], [store("y")]]
    # With the loads that see no store, and the models that allow it.
    tests = {
        "MP": ([sent, read_both("y", "x")], [1], weak),
        "MP+barrier": ([sent, read_both("y", "x", barrier)], [1], []),
        "MP+isb+addr": ([sent, read_both("y", "x", *isb, depends=True)], [1], []),
        "MP+po+barrier": ([sent_freely, read_both("y", "x", barrier)], [1], x86 + weak),
        "SB": ([[store("x"), load("y")], [store("y"), load("x")]], [0, 1], x86 + weak),
        "SB+barriers": ([[store("x"), barrier, load("y")], [store("y"), barrier, load("x")]], [0, 1], []),
        "LB": ([[load("x"), store("y")], [load("y"), store("x")]], [], weak),
        "IRIW+barriers": ([*writers, read_both("x", "y", barrier), read_both("y", "x", barrier)], [1, 3], []),
        "IRIW+isb+addr": ([*writers, read_both("x", "y", *isb, depends=True), read_both("y", "x", *isb, depends=True)], [1, 3], ["arm"]),
    }
    for (name, (threads, old, allowed_by)), isa in itertools.product(tests.items(), x86 + weak):
        execution = Execution(ISAS[isa], threads)
        loads = [i for i, each in enumerate(execution.events) if each.kind == "load"]
        if execution.allows({i: -1 if number in old else 0 for number, i in enumerate(loads)}) != (isa in allowed_by):
            raise Refuted(f"{name} on {isa}")
    return {"litmus tests": len(tests)}
