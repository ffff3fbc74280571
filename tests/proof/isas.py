"""What the executor must know of an ISA: its name in SLEIGH, its calling convention, and the instructions that SLEIGH gives no meaning to."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Isa:
    name: str
    language: str
    word: int  # bytes of a register
    prefix: str  # of the vDSO's functions
    stack_pointer: str
    link: str | None  # None: a call pushes its return address
    arguments: tuple  # of exported functions; none: on the stack
    internal: tuple  # of functions that only the image calls
    result: str
    saved: tuple  # registers that a function must leave as they are
    scratch: tuple  # registers and flags that a call may change
    red_zone: int  # bytes below the stack pointer that no signal handler overwrites
    landing_pad: bytes  # of a function that is called through a pointer
    system_call: tuple  # the registers of the number, of the arguments, and those that the kernel overwrites
    numbers: dict  # system calls
    load_barriers: tuple  # mnemonics, as `special` returns them
    dependencies: bool  # whether loads after the counter must depend on it
    words: tuple  # (mask, bits, mnemonic) of instructions without a meaning in SLEIGH; for x86, (bytes, mnemonic)

    def special(self, code):
        """Returns the size and the mnemonic of an instruction that the executor handles itself, or None."""
        if self.name in ("x86_64", "i386"):
            return next(((len(at), name) for at, name in self.words if code.startswith(at)), None)
        word = int.from_bytes(code[:4], "little")
        return next(((4, name) for mask, bits, name in self.words if word & mask == bits), None)


def names(prefix, numbers):
    return tuple(f"{prefix}{number}" for number in numbers)


X86_WORDS = (
    (b"\x0f\x31", "rdtsc"),
    (b"\x0f\x01\xf9", "rdtscp"),
    (b"\x0f\xae\xe8", "lfence"),
    (b"\x0f\x03", "lsl"),
    (b"\x0f\x05", "system call"),
    (b"\xcd\x80", "system call"),
)
X86_FLAGS = ("CF", "PF", "AF", "ZF", "SF", "OF")

ISAS = {
    isa.name: isa
    for isa in (
        Isa(
            name="x86_64",
            language="x86:LE:64:default",
            word=8,
            prefix="__vdso_",
            stack_pointer="RSP",
            link=None,
            arguments=("RDI", "RSI", "RDX"),
            internal=("RDI", "RSI", "RDX"),
            result="RAX",
            saved=("RBX", "RBP", "R12", "R13", "R14", "R15", "DF", "IF"),
            scratch=("RAX", "RCX", "RDX", "RSI", "RDI", "R8", "R9", "R10", "R11", *X86_FLAGS),
            red_zone=128,
            landing_pad=b"\xf3\x0f\x1e\xfa",
            system_call=("RAX", ("RDI", "RSI", "RDX"), ("RCX", "R11")),
            numbers={"clock_gettime": 228, "gettimeofday": 96, "clock_getres": 229, "getcpu": 309, "time": 201},
            load_barriers=(),
            dependencies=False,
            words=X86_WORDS[:-1],
        ),
        Isa(
            name="i386",
            language="x86:LE:32:default",
            word=4,
            prefix="__vdso_",
            stack_pointer="ESP",
            link=None,
            arguments=(),
            internal=("EAX", "EDX", "ECX"),
            result="EAX",
            saved=("EBX", "ESI", "EDI", "EBP", "DF", "IF"),
            scratch=("EAX", "ECX", "EDX", *X86_FLAGS),
            red_zone=0,
            landing_pad=b"",
            system_call=("EAX", ("EBX", "ECX", "EDX"), ()),
            numbers={"clock_gettime": 265, "clock_gettime64": 403, "gettimeofday": 78, "clock_getres": 266, "getcpu": 318, "time": 13},
            load_barriers=(),
            dependencies=False,
            words=X86_WORDS[:-2] + X86_WORDS[-1:],
        ),
        Isa(
            name="aarch64",
            language="AARCH64:LE:64:v8A",
            word=8,
            prefix="__kernel_",
            stack_pointer="sp",
            link="x30",
            arguments=("x0", "x1", "x2"),
            internal=("x0", "x1", "x2"),
            result="x0",
            saved=names("x", range(19, 31)) + names("d", range(8, 16)),
            scratch=names("x", range(19)) + ("NG", "ZR", "CY", "OV"),
            red_zone=0,
            landing_pad=b"\x5f\x24\x03\xd5",
            system_call=("x8", ("x0", "x1", "x2"), ()),
            numbers={"clock_gettime": 113, "gettimeofday": 169, "clock_getres": 114, "getcpu": 168},
            load_barriers=("dmb ishld", "dmb ish"),
            dependencies=True,
            words=(
                (0xFFFFFFFF, 0xD5033FDF, "isb"),
                (0xFFFFFFFF, 0xD50339BF, "dmb ishld"),
                (0xFFFFFFFF, 0xD5033BBF, "dmb ish"),
                (0xFFFFFFE0, 0xD53BE040, "cntvct"),
                (0xFFFFFFE0, 0xD53BE0C0, "cntvctss"),
                (0xFFFFFFFF, 0xD4000001, "system call"),
            ),
        ),
        Isa(
            name="arm",
            language="ARM:LE:32:v7",
            word=4,
            prefix="__vdso_",
            stack_pointer="sp",
            link="lr",
            arguments=("r0", "r1", "r2"),
            internal=("r0", "r1", "r2"),
            result="r0",
            saved=names("r", range(4, 12)) + names("d", range(8, 16)),
            scratch=names("r", range(4)) + ("r12", "NG", "ZR", "CY", "OV"),
            red_zone=0,
            landing_pad=b"",
            system_call=("r7", ("r0", "r1", "r2"), ()),
            numbers={"clock_gettime": 263, "clock_gettime64": 403, "gettimeofday": 78, "clock_getres": 264},
            load_barriers=("dmb ish",),
            dependencies=True,
            words=(
                (0xFFFFFFFF, 0xF57FF06F, "isb"),
                (0xFFFFFFFF, 0xF57FF05B, "dmb ish"),
                (0xFFF00FFF, 0xEC500F1E, "mrrc"),
                (0xFFFFFFFF, 0xEF000000, "system call"),
            ),
        ),
    )
}
