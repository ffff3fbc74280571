"""Executes a function of an image symbolically: SLEIGH (pypcode) decodes the shipped bytes, Z3 holds the values.

Each load from the page returns a new symbol, because the page changes at any time. A call of a function that has a contract of its own is
replaced by that contract. Values are Python integers where they are known, else bit vectors.
"""

import dataclasses
import functools
import itertools
import struct

import pypcode
import z3
from pypcode import OpCode as Op

IMAGE = 0x40000000
PAGE_SIZE = 0x1000  # the page is right below the image
STACK = 0x70008000
RETURN = 0x60000000
USEC_FACTOR = 274877907  # of fp_to_usec(): its product is uninterpreted on 64-bit ISAs
numbers = itertools.count()


class Refuted(Exception):
    """The code does what it must not do, or what this executor does not know."""


class NewLoop(Exception):
    """A branch went back to an instruction where the executor kept no state."""


@dataclasses.dataclass
class Load:
    at: object  # offset in the page: an integer, or a bit vector
    size: int
    value: object
    depends: bool  # whether the address depends on a counter


@dataclasses.dataclass
class Counter:
    value: object
    aux: object  # IA32_TSC_AUX, of RDTSCP
    is_ordered: bool = False  # waits for earlier loads and branches by itself
    branches: tuple = ()  # the conditions of the branches before it


@dataclasses.dataclass
class Barrier:
    name: str
    branches: tuple = ()


@dataclasses.dataclass
class Call:
    """A system call, with its number as the name, or a call of a function with a contract."""

    name: object
    arguments: list
    result: object
    out: tuple = ()  # what it stored


class Again:
    """The beginning of another attempt of a loop."""


def new_solver(logic=None):
    solver = z3.SolverFor(logic) if logic else z3.Solver()
    solver.set("timeout", 600_000)  # of wall time, on a busy machine
    return solver


def fresh(name, bits):
    return z3.BitVec(f"{name}!{next(numbers)}", bits)


def vector(value, size):
    """Returns a bit vector of `size` bytes."""
    return z3.BitVecVal(value, size * 8) if isinstance(value, int) else value


def known(value):
    """Returns the integer that a value is, or None."""
    if isinstance(value, int):
        return value
    value = z3.simplify(value)
    return value.as_long() if z3.is_bv_value(value) else None


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


# Products and variable shifts of 64 bits are uninterpreted: code and contract must apply them to the same operands.
def uninterpreted(name, bits):
    return z3.Function(f"{name}{bits}", *[z3.BitVecSort(bits)] * 3)


def multiply(a, b):
    return uninterpreted("multiply", a.size())(a, b)


def shift_right(a, b):
    return uninterpreted("shift_right", a.size())(a, b)


def mentioned(*values):
    """Returns the names of the symbols in values."""
    todo, seen, names = list(values), set(), set()
    while todo:
        each = todo.pop()
        if each.get_id() not in seen:
            seen.add(each.get_id())
            todo += each.children()
            if z3.is_const(each):
                names.add(each.decl().name())
    return names


def mentions_counter(value):
    return any(name.startswith("counter") for name in mentioned(value))


class Bytes:
    """Bytes by address, each a part of a value."""

    def __init__(self, parts=()):
        self.parts = dict(parts)  # address: (value, index of the byte, size)

    def copy(self):
        return Bytes(self.parts)

    def write(self, at, size, value):
        self.parts.update({at + i: (value, i, size) for i in range(size)})

    def read(self, at, size, missing):
        """Returns a value; `missing(address)` writes bytes that were never written."""
        pieces, end = [], at + size
        while at < end:
            if at not in self.parts:
                missing(at)
            value, first, whole = self.parts[at]
            length = 1
            while at + length < end and first + length < whole:
                next_part = self.parts.get(at + length)
                if next_part is None or next_part[0] is not value or next_part[1] != first + length:
                    break
                length += 1
            if isinstance(value, int):
                value = (value >> 8 * first) & ((1 << 8 * length) - 1)
            elif length < whole:
                value = z3.Extract(8 * (first + length) - 1, 8 * first, value)
            pieces.append((value, length))
            at += length
        if len(pieces) == 1:
            return pieces[0][0]
        if all(isinstance(value, int) for value, _ in pieces):
            return int.from_bytes(b"".join(value.to_bytes(length, "little") for value, length in pieces), "little")
        return z3.Concat(*[vector(value, length) for value, length in reversed(pieces)])

    def changed(self, other):
        """Returns the addresses whose bytes differ."""
        return {at for at in {**self.parts, **other.parts} if not same_byte(self.parts.get(at), other.parts.get(at))}


def same_byte(a, b):
    if a is None or b is None or a is b:
        return a is b
    if isinstance(a[0], int) and isinstance(b[0], int):
        return (a[0] >> 8 * a[1] ^ b[0] >> 8 * b[1]) & 255 == 0
    return not isinstance(a[0], int) and not isinstance(b[0], int) and a[1:] == b[1:] and z3.eq(a[0], b[0])


class Image:
    def __init__(self, isa, code, symbols):
        self.isa, self.code, self.symbols = isa, code, symbols
        self.base = IMAGE << 12 if isa.word == 8 else IMAGE  # beyond 32 bits, so that no address is cut unnoticed
        self.context = pypcode.Context(isa.language)
        self.registers = self.context.registers
        self.decoded = functools.cache(self.decode)

    def mutant(self, code):
        """Returns the image with other bytes."""
        other = object.__new__(Image)
        other.__dict__.update(self.__dict__)
        other.code = code
        return other

    def decode(self, address, code):
        try:
            operations = self.context.translate(code, address, 0, len(code), 1).ops
        except Exception as error:
            raise Refuted(f"no instruction at {address - self.base:#x}: {error}") from None
        return [(each.opcode, each.output, each.inputs) for each in operations], operations[0].inputs[0].size

    def instruction(self, address):
        at = address - self.base
        if not 0 <= at < len(self.code):
            raise Refuted(f"execution leaves the image: {address:#x}")
        return self.decoded(address, bytes(self.code[at : at + 16]))


def read_symbols(elf):
    """Returns the functions of an ELF file's symbol table: names with their offset and size."""
    wide = elf[4] == 2
    table, entry, count = struct.unpack_from("<Q10xHH", elf, 40) if wide else struct.unpack_from("<I10xHH", elf, 32)
    sections = [struct.unpack_from("<IIQQQQIIQQ" if wide else "<10I", elf, table + i * entry) for i in range(count)]
    found = {}
    for _, kind, _, _, at, size, link, *_ in sections:
        for i in range(0, size if kind == 2 else 0, 24 if wide else 16):
            if wide:
                name, info, _, _, value, length = struct.unpack_from("<IBBHQQ", elf, at + i)
            else:
                name, value, length, info, _, _ = struct.unpack_from("<IIIBBH", elf, at + i)
            name = sections[link][4] + name
            if info & 15 == 2:
                found[elf[name : elf.index(b"\0", name)].decode()] = (value, length)
    return found


class State:
    """One path of the execution."""

    def __init__(self, pointers):
        self.registers, self.stack = Bytes(), Bytes()
        self.objects = {name: Bytes() for name in pointers}
        self.log, self.conditions = [], []
        self.branches = ()  # their conditions, also of those with one way only
        self.heads = {}  # the states at the first arrival at loops
        self.trail = set()
        self.lowest = self.stack_pointer = STACK  # accessed by the last instruction; before it

    def copy(self):
        other = object.__new__(State)
        other.__dict__.update(self.__dict__)
        other.registers, other.stack = self.registers.copy(), self.stack.copy()
        other.objects = {name: each.copy() for name, each in self.objects.items()}
        other.log, other.conditions = list(self.log), list(self.conditions)
        other.heads, other.trail = dict(self.heads), set(self.trail)
        return other

    def memories(self):
        return {"registers": self.registers, "stack": self.stack, **self.objects}


class Executor:
    """Executes one function. `pointers` are the objects that its arguments point to, with their sizes; `contracts` returns a call's result and
    stores, by name; the code of these functions is not entered. Pointers in `optional` may be null. `contents` are the first values in
    objects."""

    def __init__(self, image, pointers, optional, contracts, contents=()):
        self.optional, self.contents = optional, contents
        self.image, self.isa, self.contracts = image, image.isa, contracts
        self.pointers = {name: (z3.BitVec(name, self.isa.word * 8), size) for name, size in pointers.items()}
        self.entered = {image.symbols[name][0]: name for name in contracts if name in image.symbols}
        self.executed, self.loops = {}, set()  # instructions: offsets with sizes; heads of loops
        self.initial = {}
        self.solver = new_solver()

    def run(self, name, arguments, internal=False, conditions=()):
        """Returns the states in which the function returned."""
        while True:
            try:
                return self.explore(name, arguments, internal, conditions)
            except NewLoop as found:
                self.loops.add(found.args[0])

    def explore(self, name, arguments, internal, conditions):
        isa, state = self.isa, State(self.pointers)
        state.conditions = list(conditions)
        for pointer, size, value in self.contents:
            state.objects[pointer].write(0, size, value)
        state.pc = self.image.base + self.image.symbols[name][0]
        self.top = STACK if isa.link else STACK - isa.word
        registers = isa.internal if internal else isa.arguments
        self.own_arguments = 0 if registers else isa.word * len(arguments)
        for i, value in enumerate(arguments):
            value = vector(value, value.size() // 8 if not isinstance(value, int) else 4)
            if value.size() < isa.word * 8:
                value = z3.simplify(z3.Concat(fresh("upper", isa.word * 8 - value.size()), value))
            if registers:
                self.set(state, registers[i], known(value) if known(value) is not None else value)
            else:
                state.stack.write(STACK + i * isa.word, isa.word, known(value) if known(value) is not None else value)
        self.set(state, isa.stack_pointer, self.top)
        if isa.link:
            self.set(state, isa.link, RETURN)
        else:
            state.stack.write(self.top, isa.word, RETURN)
        if "DF" in isa.saved:
            self.set(state, "DF", 0)
        self.saved = {register: self.get(state, register) for register in isa.saved}
        self.todo, self.ends, self.widened, steps = [state], [], {}, 0
        while self.todo:
            state = self.todo.pop()
            while state is not None:
                steps += 1
                if steps > 20000 or len(self.ends) > 300:
                    raise Refuted("too many paths")
                state = self.step(state)
        return self.ends

    def get(self, state, name):
        register = self.image.registers[name]
        return self.read_register(state, register.offset, register.size)

    def set(self, state, name, value):
        register = self.image.registers[name]
        state.registers.write(register.offset, register.size, value)

    def read_register(self, state, at, size):
        def missing(at):
            at &= ~7
            value = self.initial.setdefault(at, z3.BitVec(f"register{at:x}", 64))
            for i in range(8):
                state.registers.parts.setdefault(at + i, (value, i, 8))

        return state.registers.read(at, size, missing)

    def possible(self, conditions):
        self.solver.push()
        self.solver.add(*conditions)
        result = self.solver.check()
        self.solver.pop()
        return result != z3.unsat

    def place(self, state, address, size, store=False, null=False):
        """Returns the memory that an address is in, and the offset in it. `null`: also behind a pointer that may be null."""
        at = known(address)
        if at is not None:
            at &= (1 << 8 * self.isa.word) - 1
            if (self.image.base - PAGE_SIZE) <= at and at + size <= self.image.base and not store:
                return "page", at - (self.image.base - PAGE_SIZE)
            if self.image.base <= at and at + size <= self.image.base + len(self.image.code) and not store:
                return "image", at - self.image.base
            if STACK - 4096 <= at and at + size <= STACK + self.own_arguments and not (store and self.top <= at < STACK):
                state.lowest = min(state.lowest, at)
                return "stack", at
            raise Refuted(f"{'store to' if store else 'load from'} {at:#x} at {state.pc - self.image.base:#x}")
        for name, (pointer, room) in self.pointers.items():
            at = known(vector(address, self.isa.word) - pointer)
            if at is not None:
                if at + size > room:
                    raise Refuted(f"{name} + {at:#x}, {size} bytes, at {state.pc - self.image.base:#x}")
                if name in self.optional and not null and self.possible([*state.conditions, pointer == 0]):
                    raise Refuted(f"{name} may be null at {state.pc - self.image.base:#x}")
                return name, at
        if not store and not self.possible([*state.conditions, z3.Not(z3.And(z3.UGE(address, (self.image.base - PAGE_SIZE)), z3.ULE(address, self.image.base - size)))]):
            return "page", address - (self.image.base - PAGE_SIZE)
        raise Refuted(f"a wild {'store' if store else 'load'} at {state.pc - self.image.base:#x}")

    def load(self, state, address, size):
        name, at = self.place(state, address, size)
        if name == "page":
            key = at if isinstance(at, int) else z3.simplify(at).sexpr(), size
            # SLEIGH repeats the load of an instruction's operand for each flag.
            if key not in state.loaded:
                value = fresh("page", 8 * size)
                state.log.append(Load(at, size, value, not isinstance(address, int) and mentions_counter(address)))
                state.loaded[key] = value
            return state.loaded[key]
        if name == "image":
            return int.from_bytes(self.image.code[at : at + size], "little")
        memory = state.memories()[name]
        return memory.read(at, size, lambda at: memory.write(at, 1, fresh(f"old_{name}", 8)))

    def store(self, state, address, size, value):
        name, at = self.place(state, address, size, store=True)
        state.memories()[name].write(at, size, value)

    def argument(self, state, index, internal):
        registers = self.isa.internal if internal else self.isa.arguments
        if registers:
            return self.get(state, registers[index])
        # Behind the return address.
        return self.load(state, known(self.get(state, self.isa.stack_pointer)) + (index + 1) * self.isa.word, self.isa.word)

    def step(self, state):
        stack_pointer = known(self.get(state, self.isa.stack_pointer))
        # Within an instruction, the stack pointer changes before or after the access.
        if stack_pointer is None or state.lowest < min(stack_pointer, state.stack_pointer) - self.isa.red_zone:
            raise Refuted(f"access below the stack pointer before {state.pc - self.image.base:#x}")
        state.stack_pointer, state.lowest = stack_pointer, STACK
        if state.pc in self.loops:
            state = self.enter_loop(state)
            if state is None:
                return None
        if state.pc - self.image.base in self.entered and state.trail:
            return self.call_contract(state, self.entered[state.pc - self.image.base])
        state.trail.add(state.pc)
        state.loaded = {}
        at = state.pc - self.image.base
        special = self.isa.special(bytes(self.image.code[at : at + 4])) if 0 <= at < len(self.image.code) else None
        if special:
            size, name = special
            self.executed[at] = size
            state.pc += self.do_special(state, name, size)
            return state
        operations, size = self.image.instruction(state.pc)
        self.executed[at] = size
        return self.operate(state, operations, 1, Bytes(), state.pc + size)

    def call_contract(self, state, name):
        internal = not name.startswith(("fp_call_", "kernel_", "body_", "slow_"))
        call = self.contracts[name](self, state, lambda index: self.argument(state, index, internal))
        state.log.append(call)
        for register in self.isa.scratch:
            self.set(state, register, fresh("scratch", self.image.registers[register].size * 8))
        self.set(state, self.isa.result, call.result)
        if self.isa.link:
            return self.go(state, self.get(state, self.isa.link))
        top = known(self.get(state, self.isa.stack_pointer))
        self.set(state, self.isa.stack_pointer, top + self.isa.word)
        return self.go(state, self.load(state, top, self.isa.word))

    def do_special(self, state, name, size):
        """Executes an instruction without a meaning in SLEIGH, and returns its size."""
        word = self.isa.word

        def wide(value):
            return z3.ZeroExt(8 * word - value.size(), value) if value.size() < 8 * word else value

        code = self.image.code[state.pc - self.image.base :][:4]
        counter = fresh("counter", 64)
        low, high = wide(z3.Extract(31, 0, counter)), wide(z3.Extract(63, 32, counter))
        if name in ("rdtsc", "rdtscp"):
            aux = fresh("aux", 32) if name == "rdtscp" else None
            for register, value in zip(("AX", "DX", "CX"), (low, high, None if aux is None else wide(aux))):
                if value is not None:
                    self.set(state, ("R" if word == 8 else "E") + register, value)
            state.log.append(Counter(counter, aux, name == "rdtscp", state.branches))
        elif name in ("cntvct", "cntvctss"):
            if code[0] & 31 != 31:
                self.set(state, f"x{code[0] & 31}", counter)
            state.log.append(Counter(counter, None, name == "cntvctss", state.branches))
        elif name == "mrrc":
            self.set(state, f"r{code[1] >> 4}", low)
            self.set(state, f"r{code[2] & 15}", high)
            state.log.append(Counter(counter, None, False, state.branches))
        elif name == "lsl":
            self.load_segment_limit(state, code)
            size = 3
        elif name == "system call":
            self.system_call(state)
        else:
            state.log.append(Barrier(name, state.branches))
        return size

    def load_segment_limit(self, state, code):
        """LSL of one 32-bit register to another. It fails only for a segment that does not exist."""
        if code[2] < 0xC0:
            raise Refuted("lsl from memory")
        prefix = "R" if self.isa.word == 8 else "E"
        names = [prefix + name for name in ("AX", "CX", "DX", "BX", "SP", "BP", "SI", "DI")]
        limit = fresh("limit", 32)
        state.log.append(Call("lsl", [self.get(state, names[code[2] & 7])], limit))
        self.set(state, names[code[2] >> 3 & 7], z3.ZeroExt(32, limit) if self.isa.word == 8 else limit)
        self.set(state, "ZF", 1)

    def system_call(self, state):
        number, arguments, overwritten = self.isa.system_call
        result = fresh("kernel", 8 * self.isa.word)
        state.log.append(Call(known(self.get(state, number)), [self.get(state, each) for each in arguments], result))
        self.set(state, self.isa.result, result)
        for register in overwritten:
            self.set(state, register, fresh("scratch", 8 * self.isa.word))

    def go(self, state, target):
        """Continues at an address, or ends."""
        target = known(target)
        if target is None:
            raise Refuted(f"an unknown jump at {state.pc - self.image.base:#x}")
        if self.isa.name == "arm":
            if target & 3:
                raise Refuted("a change to Thumb code")
        if target == RETURN:
            self.check_return(state)
            self.ends.append(state)
            return None
        if target in state.trail and target <= state.pc and target not in self.loops:
            raise NewLoop(target)
        state.pc = target
        return state

    def check_return(self, state):
        top = self.top + (0 if self.isa.link else self.isa.word)
        if known(self.get(state, self.isa.stack_pointer)) != top:
            raise Refuted("the stack pointer is another one at return")
        for register, value in self.saved.items():
            size = self.image.registers[register].size
            if not z3.eq(z3.simplify(vector(self.get(state, register), size)), z3.simplify(vector(value, size))):
                raise Refuted(f"{register} is not restored")

    def enter_loop(self, state):
        """Makes unknown all that an iteration changes, until another one changes no more: that state then stands for all iterations."""
        if state.pc not in state.heads:
            state.heads[state.pc] = state.copy()
            return state
        first = state.heads[state.pc]
        if isinstance(state.log[-1] if state.log else None, Again) or len(state.log) == len(first.log):
            raise Refuted(f"an endless loop at {state.pc - self.image.base:#x}")
        before = first.memories()
        changed = {(name, at) for name, memory in state.memories().items() for at in before[name].changed(memory)}
        # Not registers that were only read.
        changed = {(name, at) for name, at in changed if name != "registers" or at in before[name].parts or not self.is_initial(state, at)}
        unknown = self.widened.get(id(first))
        if unknown is not None and changed <= unknown:
            return None
        self.widened[id(first)] = unknown = changed | (unknown or set())
        general = first.copy()
        general.log.append(Again())
        general.heads[state.pc] = first
        for name, at in unknown:
            general.memories()[name].write(at, 1, fresh("any", 8))
        return general

    def is_initial(self, state, at):
        value, index, _ = state.registers.parts[at]
        return value is self.initial.get(at & ~7) and index == at & 7

    def operate(self, state, operations, i, unique, following):
        """Executes an instruction's operations from the i-th on. Continues later with the other way of a branch."""

        def read(node):
            space = node.space.name
            if space == "const":
                return node.offset & ((1 << 8 * node.size) - 1)
            if space == "register":
                return self.read_register(state, node.offset, node.size)
            if space == "ram":
                return self.load(state, node.offset, node.size)
            return unique.read(node.offset, node.size, never_written)

        while i < len(operations):
            code, out, inputs = operations[i]
            if code in (Op.BRANCH, Op.CBRANCH):
                if code == Op.CBRANCH and (end := self.merge(state, read(inputs[1]), inputs[0], operations, i, unique, following)):
                    i = end
                    continue
                taken = self.is_taken(state, read(inputs[1]), operations, i, unique, following) if code == Op.CBRANCH else True
                if not taken:
                    i += 1
                elif inputs[0].space.name == "const":
                    i += signed(inputs[0].offset & 0xFFFFFFFF, 32)
                else:
                    return self.go(state, inputs[0].offset)
                continue
            if code == Op.CALL:
                return self.go(state, inputs[0].offset)
            if code in (Op.BRANCHIND, Op.CALLIND, Op.RETURN):
                return self.go(state, read(inputs[0]))
            if code == Op.STORE:
                self.store(state, read(inputs[1]), inputs[2].size, read(inputs[2]))
            elif code != Op.IMARK:
                if code == Op.LOAD:
                    value = self.load(state, self.one_address(state, read(inputs[1]), operations, i, unique, following), out.size)
                elif code == Op.CALLOTHER:
                    value = self.call_other(state, out, inputs, [read(each) for each in inputs])
                else:
                    value = self.compute(code, out, inputs, [read(each) for each in inputs])
                if out is None:
                    pass
                elif out.space.name == "register":
                    state.registers.write(out.offset, out.size, value)
                elif out.space.name == "unique":
                    unique.write(out.offset, out.size, value)
                else:
                    self.store(state, out.offset, out.size, value)
            i += 1
        state.pc = following
        return state

    def compute(self, code, out, inputs, values):
        return compute(self.isa, code, out, inputs, values)

    def call_other(self, state, out, inputs, values):
        name = inputs[0].getUserDefinedOpName()
        if name not in ("setISAMode", "Hint_BTI"):
            raise Refuted(f"{name} at {state.pc - self.image.base:#x}")

    def merge(self, state, condition, target, operations, i, unique, following):
        """Executes a conditional move without two ways, unless it moves an address. Returns the index of the next operation, or None."""
        end = i + signed(target.offset & 0xFFFFFFFF, 32) if target.space.name == "const" else len(operations) if target.offset == following else 0
        moves = operations[i + 1 : end]
        is_move = all(out is not None and out.space.name in ("register", "unique") and code not in (Op.LOAD, Op.CALLOTHER) for code, out, _ in moves)
        if end <= i or not is_move or known(condition) is not None:
            return None
        other, moved = state.copy(), unique.copy()
        self.operate(other, operations[:end], i + 1, moved, following)
        results = []
        for _, out, _ in moves:
            if out.space.name == "register":
                pair = [self.read_register(each, out.offset, out.size) for each in (state, other)]
                results.append((state.registers, out, pair))
            elif out.offset in unique.parts:
                results.append((unique, out, [each.read(out.offset, out.size, never_written) for each in (unique, moved)]))
            else:
                unique.write(out.offset, out.size, moved.read(out.offset, out.size, never_written))
        if any(self.is_address(value) for _, _, pair in results for value in pair):
            return None
        for memory, out, (old, new) in results:
            memory.write(out.offset, out.size, z3.If(condition != 0, vector(old, out.size), vector(new, out.size)))
        return end

    def is_address(self, value):
        if known(value) is not None:
            return known(value) >= PAGE_SIZE
        return value.size() == 8 * self.isa.word and any(known(value - pointer) is not None for pointer, _ in self.pointers.values())

    def fork(self, state, condition, operations, i, unique, following):
        other = state.copy()
        other.conditions.append(condition)
        other = self.operate(other, operations, i, unique.copy(), following)
        if other is not None:
            self.todo.append(other)

    def is_taken(self, state, condition, operations, i, unique, following):
        value = known(condition)
        if value is not None:
            return value != 0
        yes = z3.simplify(condition != 0)
        state.branches += (yes,)
        no = z3.simplify(z3.Not(yes))
        taken = self.possible([*state.conditions, yes])
        if taken and self.possible([*state.conditions, no]):
            self.fork(state, no, operations, i + 1, unique, following)
            state.conditions.append(yes)
        return taken

    def one_address(self, state, address, operations, i, unique, following):
        """Returns the address, or one of few that are possible; continues later with the others."""
        if known(address) is not None or any(known(address - pointer) is not None for pointer, _ in self.pointers.values()):
            return address
        simple, values = z3.simplify(address), []
        self.solver.push()
        self.solver.add(*state.conditions)
        while len(values) < 4 and self.solver.check() == z3.sat:
            values.append(self.solver.model().eval(simple, True).as_long())
            self.solver.add(simple != values[-1])
        self.solver.pop()
        if not 0 < len(values) < 4:
            return address
        for value in values[1:]:
            self.fork(state, simple == value, operations, i, unique, following)
        if len(values) > 1:
            state.conditions.append(simple == values[0])
        # Keeps the dependency on a counter.
        return values[0] if not mentions_counter(address) else z3.BitVecVal(values[0], address.size()) + dependency(address)


def dependency(address):
    """Returns 0, as an expression that mentions what the address mentions."""
    return address ^ address


def never_written(at):
    raise Refuted(f"a temporary of SLEIGH is read before it is written: {at:#x}")


def truth(condition, bits):
    return z3.If(condition, z3.BitVecVal(1, bits), z3.BitVecVal(0, bits))


BINARY = {
    Op.INT_ADD: lambda x, y: x + y,
    Op.INT_SUB: lambda x, y: x - y,
    Op.INT_AND: lambda x, y: x & y,
    Op.INT_OR: lambda x, y: x | y,
    Op.INT_XOR: lambda x, y: x ^ y,
    Op.BOOL_AND: lambda x, y: x & y,
    Op.BOOL_OR: lambda x, y: x | y,
    Op.BOOL_XOR: lambda x, y: x ^ y,
    Op.PIECE: z3.Concat,
}
UNARY = {Op.COPY: lambda x: x, Op.INT_NEGATE: lambda x: ~x, Op.INT_2COMP: lambda x: -x, Op.BOOL_NEGATE: lambda x: x ^ 1}
COMPARISONS = {
    Op.INT_EQUAL: lambda x, y: x == y,
    Op.INT_NOTEQUAL: lambda x, y: x != y,
    Op.INT_LESS: z3.ULT,
    Op.INT_LESSEQUAL: z3.ULE,
    Op.INT_SLESS: lambda x, y: x < y,
    Op.INT_SLESSEQUAL: lambda x, y: x <= y,
    Op.INT_CARRY: lambda x, y: z3.ULT(x + y, x),
    Op.INT_SCARRY: lambda x, y: z3.SignExt(1, x) + z3.SignExt(1, y) != z3.SignExt(1, x + y),
    Op.INT_SBORROW: lambda x, y: z3.SignExt(1, x) - z3.SignExt(1, y) != z3.SignExt(1, x - y),
}
SHIFTS = {Op.INT_LEFT: lambda x, y: x << y, Op.INT_RIGHT: z3.LShR, Op.INT_SRIGHT: lambda x, y: x >> y}


def compute(isa, code, out, inputs, values):
    """Returns the result of an operation of SLEIGH's."""
    bits = out.size * 8
    if code == Op.COPY:
        return values[0]
    if code == Op.INT_XOR and not isa.dependencies and inputs[0].space.name == inputs[1].space.name and inputs[0].offset == inputs[1].offset:
        return 0
    result = apply(isa, code, bits, *[vector(value, node.size) for value, node in zip(values, inputs)])
    if all(isinstance(value, int) for value in values) and (value := known(result)) is not None:
        return value
    return result


def apply(isa, code, bits, x, y=None):
    if code in BINARY:
        return BINARY[code](x, y)
    if code in COMPARISONS:
        return truth(COMPARISONS[code](x, y), bits)
    if code in UNARY:
        return UNARY[code](x)
    if code in (Op.INT_ZEXT, Op.INT_SEXT):
        return (z3.ZeroExt if code == Op.INT_ZEXT else z3.SignExt)(bits - x.size(), x)
    if code == Op.SUBPIECE:
        part = z3.Extract(x.size() - 1, 8 * known(y), x)
        return z3.Extract(bits - 1, 0, part) if part.size() > bits else z3.ZeroExt(bits - part.size(), part)
    if code in SHIFTS:
        return shift(isa, code, bits, x, y)
    if code == Op.INT_MULT:
        factors = [each for each in (known(x), known(y)) if each is not None]
        is_exact = factors and not (isa.word == 8 and bits == 64 and USEC_FACTOR in factors)
        return x * y if is_exact else multiply(x, y)
    if code == Op.LZCOUNT:
        zeros = z3.BitVecVal(x.size(), bits)
        for i in range(x.size()):
            zeros = z3.If(z3.Extract(i, i, x) == 1, z3.BitVecVal(x.size() - 1 - i, bits), zeros)
        return zeros
    if code == Op.POPCOUNT:
        return z3.Function(f"population{x.size()}", x.sort(), z3.BitVecSort(bits))(x)
    raise Refuted(f"{code} has no meaning here")


def shift(isa, code, bits, x, y):
    # SLEIGH's counts have any width.
    too_far = z3.UGE(y, bits) if y.size() > bits else z3.BoolVal(False)
    y = z3.Extract(bits - 1, 0, y) if y.size() > bits else z3.ZeroExt(bits - y.size(), y)
    if code == Op.INT_RIGHT and isa.word == 8 and bits == 64 and known(y) is None:
        return z3.If(too_far, 0, shift_right(x, y)) if not z3.is_false(too_far) else shift_right(x, y)
    result = SHIFTS[code](x, y)
    return result if z3.is_false(too_far) else z3.If(too_far, SHIFTS[Op.INT_SRIGHT](x, bits - 1) if code == Op.INT_SRIGHT else 0, result)
