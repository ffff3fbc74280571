"""Moved code: what is executed in place of code of a program, or of a kernel's vDSO, does the same.

Both are executed from one state, in which all registers, flags and memory are symbols. `surgery/inject/examples/moved.rs` prints the pairs.
"""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import re

import pypcode
import z3
from pypcode import OpCode as Op

import executor
from executor import Bytes, Executor, Refuted, State, compute, known, new_solver, signed, vector
from isas import ISAS

# By ISA: the registers of a system call's number, arguments and result; of the address at which a routine continues; those that it may
# change; and the distance from that address back to the call that an entry does not answer.
CALLS = {
    "x86_64": ("RAX", ("RDI", "RSI", "RDX", "R10", "R8", "R9"), "RAX", "RCX", (), 2),
    "i386": ("EAX", ("EBX", "ECX", "EDX", "ESI", "EDI", "EBP"), "EAX", None, (), 0),
    "aarch64": ("x8", ("x0", "x1", "x2", "x3", "x4", "x5"), "x0", "x16", ("x16", "x17"), 12),
}
FLAGS = ("CF", "PF", "AF", "ZF", "SF", "OF", "DF")


@functools.cache
def context(name):
    return pypcode.Context(ISAS[name].language)


@functools.cache
def temporary(name):
    """Returns the places of registers that SLEIGH has for itself, and of the program counter, which an end has apart."""
    registers = [register for each, register in context(name).registers.items() if each.startswith("tmp") or each in ("pc", "EIP", "RIP")]
    return {register.offset + i for register in registers for i in range(register.size)}


@functools.cache
def decode(name, code, address):
    try:
        operations = context(name).translate(code, address, 0, len(code), 1).ops
    except Exception as error:
        raise Refuted(f"no instruction at {address:#x}: {error}") from None
    return [(each.opcode, each.output, each.inputs) for each in operations], operations[0].inputs[0].size


@dataclasses.dataclass
class Machine:
    """What an executor asks of an image."""

    isa: object
    symbols = {}
    base = 0

    @property
    def registers(self):
        return context(self.isa.name).registers


def by_address(parts):
    return {at + i: byte for at, code in parts for i, byte in enumerate(bytes.fromhex(code))}


class Mover(Executor):
    """Executes one of the two codes of a pair. Memory is one array, but for what is below the first stack pointer on ISAs without a red zone:
    no pointer leads there."""

    def __init__(self, pair):
        self.pair = pair
        super().__init__(Machine(ISAS[pair["isa"]]), {}, (), {})
        self.before, self.after = by_address(pair["before"]), by_address(pair["after"])
        self.places = dict(map(tuple, pair["places"]))
        self.routines = dict(map(tuple, pair["routines"]))
        bits = 8 * self.isa.word
        self.memory = z3.Array("memory", z3.BitVecSort(bits), z3.BitVecSort(8))
        sorts = [z3.BitVecSort(bits)] * 7 + [self.memory.sort()]
        self.answer = z3.Function(f"answer{bits}", *sorts, z3.BitVecSort(bits))
        self.answered = z3.Function(f"answered{bits}", *sorts, self.memory.sort())

    def execute(self, code, at, stops):
        """Returns the states in which the execution leaves the code, or gets to one of the addresses `stops`."""
        executor.numbers = iter(range(1 << 30))  # the same names of counters in both executions
        state = State({})
        state.code, state.pc, state.memory, state.steps = code, at, self.memory, 0
        self.start = self.get(state, self.isa.stack_pointer)
        self.todo, self.ends, self.stops = [state], [], stops
        for register, value, is_equal in self.pair["premises"]:
            state.conditions.append((self.get(state, register) == value) == is_equal)
        while self.todo:
            state = self.todo.pop()
            while state is not None:
                state.steps += 1
                if state.steps > 100:
                    raise Refuted("an execution has no end")
                state = self.step(state)
        return self.ends

    def step(self, state):
        address, size = self.pair["call"]
        if state.steps > 1 and state.pc in self.stops:
            return self.ends.append(state)
        if state.pc in self.routines:
            return self.go_on(state, self.routines[state.pc])
        if state.pc == address:
            state.pc += size
            self.system_call(state)
            return state
        if state.pc not in state.code:
            return self.ends.append(state)
        code = bytearray()
        while len(code) < 16 and state.pc + len(code) in state.code:
            code.append(state.code[state.pc + len(code)])
        code = bytes(code)
        if special := self.isa.special(code):
            state.pc += special[0]
            self.executed[state.pc - special[0]] = special[0]
            if special[1] == "lsl":
                state.pc += 1
            self.image.code, self.image.base = code, state.pc  # where do_special() looks for operands
            self.do_special(state, special[1], special[0])
            self.image.base = 0
            return state
        operations, size = decode(self.isa.name, code, state.pc)
        self.executed[state.pc] = size
        return self.operate(state, operations, 1, Bytes(), state.pc + size)

    def set_answer(self, state, number):
        """Does what a system call of this number does."""
        _, arguments, result, *_ = CALLS[self.isa.name]
        # The kernel may read what was pushed. Of AArch64, only a thunk saves registers there, and a routine leaves them alone.
        top = known(self.get(state, self.isa.stack_pointer) - self.start)
        for at in sorted(state.stack.parts) if self.isa.name == "i386" else ():
            if top is None or at >= signed(top, 8 * self.isa.word):
                byte = state.stack.read(at, 1, None)
                state.memory = z3.Store(state.memory, self.start + at, vector(byte, 1))
                del state.stack.parts[at]
        inputs = [vector(each, self.isa.word) for each in (number, *[self.get(state, each) for each in arguments])]
        self.set(state, result, self.answer(*inputs, state.memory))
        state.memory = self.answered(*inputs, state.memory)
        if self.isa.name == "x86_64":
            self.set(state, "R11", z3.Concat(*[vector(self.get(state, each), 1) for each in FLAGS], z3.BitVecVal(0, 8)))

    def system_call(self, state):
        number, _, result, *_ = CALLS[self.isa.name]
        number = self.get(state, number)
        self.set_answer(state, number)
        # A window at a call is of one call for time, whose result is never its number.
        if self.pair["premises"]:
            state.conditions.append(self.get(state, result) != number)
        if self.isa.name == "x86_64":
            self.set(state, "RCX", self.original(state, state.pc))

    def go_on(self, state, answers):
        """A routine answers the call, or an entry any call or none, or the code before is executed."""
        if answers == "before":
            state.code, state.pc = self.before, self.pair["from"]
            return state
        number, _, _, register, free, back = CALLS[self.isa.name]
        target = self.get(state, register)
        if answers == "any":
            other = state.copy()
            other = self.go(other, target - back)
            self.todo += [other] if other else []
        self.set_answer(state, self.get(state, number) if answers == "any" else answers)
        for each in free:
            self.set(state, each, executor.fresh("free", 64))
        return self.go(state, target)

    def go(self, state, target):
        if known(target) is not None:
            state.pc = known(target)
            return state
        state.pc = z3.simplify(target)
        return self.ends.append(state)

    def one_address(self, state, address, *_):
        return address

    def original(self, state, value):
        """Returns a value, or the address before the code was moved that a return address stands for."""
        return self.places.get(value, value) if isinstance(value, int) and state.code is self.after else value

    def below(self, address):
        """Returns the distance from the first stack pointer of an address below it, where no pointer leads."""
        at = None if self.isa.red_zone else known(vector(address, self.isa.word) - self.start)
        return at and (signed(at, 8 * self.isa.word) if signed(at, 8 * self.isa.word) < 0 else None)

    def load(self, state, address, size):
        at = known(address)
        if at is not None and all(at + i in state.code for i in range(size)):
            return int.from_bytes(bytes(state.code[at + i] for i in range(size)), "little")
        address = vector(address, self.isa.word)
        byte = lambda i: z3.Select(state.memory, address + i)
        if (at := self.below(address)) is not None:
            missing = lambda at: state.stack.write(at, 1, z3.Select(state.memory, self.start + at))
            return state.stack.read(at, size, missing)
        return z3.simplify(z3.Concat(*[byte(i) for i in reversed(range(size))]) if size > 1 else byte(0))

    def store(self, state, address, size, value):
        value = self.original(state, value)
        if (at := self.below(address)) is not None:
            return state.stack.write(at, size, value)
        address, value = vector(address, self.isa.word), vector(value, size)
        for i in range(size):
            state.memory = z3.Store(state.memory, z3.simplify(address + i), z3.simplify(z3.Extract(8 * i + 7, 8 * i, value)))

    def compute(self, code, out, inputs, values):
        try:
            return compute(self.isa, code, out, inputs, values)
        except Refuted:
            return self.unknown(code.name, out, inputs, values)

    def unknown(self, name, out, inputs, values):
        """An operation that is any function of its operands, but the same one in both executions."""
        values = [vector(value, node.size) for value, node in zip(values, inputs)]
        sorts = [value.sort() for value in values]
        return z3.Function(f"{name}{[each.size() for each in sorts]}", *sorts, z3.BitVecSort(8 * out.size))(*values)

    def call_other(self, state, out, inputs, values):
        if out is None:
            state.log.append((inputs[0].getUserDefinedOpName(), [vector(value, node.size) for value, node in zip(values, inputs)]))
            return None
        return self.unknown(inputs[0].getUserDefinedOpName(), out, inputs[1:], values[1:])

    def differences(self, one, other):
        """Returns where two states differ, as conditions."""
        pairs = [(vector(one.pc, self.isa.word), vector(self.original(other, other.pc), self.isa.word))]
        places = {*one.registers.parts, *other.registers.parts} - temporary(self.isa.name)
        whole = {at for at in places if at % 8 == 0 and places.issuperset(range(at, at + 8))}
        for at, size in [*[(at, 8) for at in whole], *[(at, 1) for at in places if at & ~7 not in whole]]:
            pairs.append(tuple(vector(self.read_register(state, at, size), size) for state in (one, other)))
        top = known(self.get(one, self.isa.stack_pointer) - self.start)
        for at in {*one.stack.parts, *other.stack.parts}:
            if top is None or at >= signed(top, 8 * self.isa.word):
                pairs.append(tuple(vector(self.load(state, self.start + at, 1), 1) for state in (one, other)))
        names = [[each[0] if isinstance(each, tuple) else str(each) for each in state.log] for state in (one, other)]
        if names[0] != names[1]:
            return [z3.BoolVal(True)]
        for each, its in zip(one.log, other.log):
            pairs += zip(each[1], its[1]) if isinstance(each, tuple) else ()
        if not z3.eq(one.memory, other.memory):
            place = z3.BitVec("place", 8 * self.isa.word)
            pairs.append((z3.Select(one.memory, place), z3.Select(other.memory, place)))
        pairs = [tuple(map(z3.simplify, pair)) for pair in pairs]
        return [a != b for a, b in pairs if not z3.eq(a, b)]


def prove_moved(pair, touched=None):
    """Each way through the code after ends as each possible way through the code before."""
    mover = Mover(pair)
    try:
        others = mover.execute(mover.after, pair["to"], mover.places)
    finally:
        if touched is not None:
            touched.update(mover.executed)
    if not others:
        raise Refuted("the code after has no end")
    stops = {mover.original(other, other.pc) for other in others if isinstance(other.pc, int)}
    ends = mover.execute(mover.before, pair["from"], stops)
    if not ends:
        raise Refuted("the code before has no end")
    for one in ends:
        for other in others:
            differences = mover.differences(one, other)
            if not differences:
                continue
            solver = new_solver()
            # Code that does the same needs milliseconds, a mutant may need minutes.
            solver.set("timeout", 60_000)
            solver.add(*one.conditions, *other.conditions, z3.Or(differences))
            if solver.check() != z3.unsat:
                raise Refuted(f"{pair['name']}: differs")


def prove_all(pairs):
    """Proves pairs on all CPUs."""
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        return {"pairs": len(list(pool.map(prove_moved, pairs, chunksize=16)))}


def find_files(root, is_long):
    """Returns the files whose code is moved: the C library of this machine, and that of AArch64 that the tests have; or all programs and
    libraries."""
    if is_long:
        files = (each for each in pathlib.Path("/usr").rglob("*") if each.is_file() and not each.is_symlink())
        return [each for each in files if os.access(each, os.R_OK) and each.open("rb").read(4) == b"\x7fELF"]
    own = re.search(r" (/.*/libc\.so\.6)$", pathlib.Path("/proc/self/maps").read_text(), re.MULTILINE)
    return [*([own[1]] if own else []), *sorted(root.glob("target/foreign/*-arm64/usr/lib/*/libc.so.6"))[:1]]


def try_mutants(pairs):
    """Changes one bit in each byte that is executed in place of some codes. Returns how many, and the survivors."""
    number, survivors = 0, []
    for pair in pairs[::200]:
        touched = {}
        prove_moved(pair, touched)
        code = by_address(pair["after"])
        places = [(start, at) for start, size in sorted(touched.items()) for at in range(start, start + size) if at in code]
        for start, at in places[::4]:
            mutant = {**pair, "after": [*pair["after"], [at, f"{code[at] ^ 1 << at % 8:02x}"]]}
            try:
                prove_moved(mutant)
            except Refuted:
                continue
            survivors.append(f"{bytes(code[start + i] for i in range(touched[start])).hex()} bit {at % 8} of byte {at - start}")
        number += len(places[::4])
    return number, survivors
