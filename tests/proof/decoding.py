"""Compares SLEIGH's decoding of an image with another disassembler's: each instruction that a function reaches has the same size, and the same text
but for the spellings below."""

import re

import capstone
from pypcode import OpCode as Op

from executor import Refuted

MODES = {
    "x86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
    "i386": (capstone.CS_ARCH_X86, capstone.CS_MODE_32),
    "aarch64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
    "arm": (capstone.CS_ARCH_ARM, capstone.CS_MODE_ARM),
}
# What the executor handles itself.
SPECIAL = {
    "rdtscp": r"rdtscp",
    "lfence": r"lfence",
    "isb": r"isb( sy)?",
    "lsl": r"lsl e..,e..",
    "cntvct": r"mrs x\d+,cntvct_el0",
    "cntvctss": r"mrs x\d+,(cntvctss_el0|s3_3_c14_c0_6)",
    "mrrc": r"mrrc p15,1,r\d+,r\d+,c14",
    "system call": r"syscall|int 128|svc 0",
}
REGISTERS = {"sb": "r9", "sl": "r10", "fp": "r11", "ip": "r12", "cr14": "c14"}
# Of the mnemonic, a space and the operands without spaces.
X86_SPELLINGS = (
    (r"^(j|set|cmov|loop)(n?)z ", r"\1\2e "),
    (r"^(j|set|cmov)c ", r"\1b "),
    (r"^(j|set|cmov)nc ", r"\1ae "),
    (r"\*1(?=[+\]])", ""),
    (r"^movabs ", "mov "),
)
ARM_SPELLINGS = (
    (r"\b(sb|sl|fp|ip|cr14)\b", lambda match: REGISTERS[match[1]]),
    (r"^cpy", "mov"),
    (r"^swi ", "svc "),
    (r"^(movw|mov|b|bl)cc ", r"\1lo "),
    (r"^(movw|mov|b|bl)cs ", r"\1hs "),
    (r"^mov(..)? (\w+),(\w+),(ls[lr]|asr)(\w+)$", r"\4\1 \2,\3,\5"),
    (r"^push(..)? ", r"stmdb\1 sp!,"),
    (r"^pop(..)? ", r"ldmia\1 sp!,"),
    (r"^(ldm|stm)ia", r"\1"),
    (r",0\]", "]"),
)
AARCH64_SPELLINGS = (
    (r"^orr (\w+),xzr,(?=\d)", r"mov \1,"),
    (r",cc$", ",lo"),
    (r",cs$", ",hs"),
)
SPELLINGS = {"x86_64": X86_SPELLINGS, "i386": X86_SPELLINGS, "arm": ARM_SPELLINGS, "aarch64": AARCH64_SPELLINGS}


def spell(isa, mnemonic, operands, here, following):
    """Returns an instruction in one spelling, with all numbers as unsigned words and all addresses absolute."""
    text = f"{mnemonic} {operands.replace(' ', '').replace('#', '')}".lower()
    text = re.sub(r"0x[0-9a-f]+", lambda match: str(int(match[0], 16)), text)
    text = re.sub(r"\[rip([+-]\d+)\]", lambda match: f"[{following + int(match[1])}]", text)
    text = re.sub(r"\[pc,(-?\d+)\]", lambda match: f"[{here + 8 + int(match[1])}]", text)
    text = re.sub(r"(?<=[,+])-(\d+)|(?<=\w)-(\d+)", lambda match: ("+" if match[2] else "") + str(-int(match[1] or match[2]) % (1 << 8 * isa.word)), text)
    for pattern, replacement in SPELLINGS[isa.name]:
        text = re.sub(pattern, replacement, text)
    return text


def flow(image, here):
    """Returns the size of an instruction, a pattern of its text, and where execution goes from there."""
    code = bytes(image.code[here - image.base :][:16])
    if special := image.isa.special(code):
        size = special[0] + (special[1] == "lsl")
        return size, SPECIAL.get(special[1], special[1]), [here + size]
    operations, size = image.instruction(here)
    text = image.context.disassemble(code, here, 0, len(code), 1).instructions[0]
    jumps = [(code, inputs[0]) for code, _, inputs in operations if code in (Op.BRANCH, Op.CBRANCH, Op.CALL, Op.BRANCHIND, Op.RETURN)]
    goes_on = not jumps or any(code in (Op.CBRANCH, Op.CALL) or to.space.name == "const" for code, to in jumps)
    targets = [to.offset for code, to in jumps if code in (Op.BRANCH, Op.CBRANCH, Op.CALL) and to.space.name == "ram"]
    return size, re.escape(spell(image.isa, text.mnem, text.body, here, here + size).strip()), targets + ([here + size] if goes_on else [])


def compare(image):
    """Compares the instructions that all functions reach. Returns their number."""
    disassembler, seen = capstone.Cs(*MODES[image.isa.name]), set()
    # A return from a signal handler goes nowhere.
    todo = [image.base + at for name, (at, _) in image.symbols.items() if "sigreturn" not in name and not name.startswith("kernel_")]
    while todo:
        here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        size, text, targets = flow(image, here)
        other = next(disassembler.disasm(image.code[here - image.base :][:16], here, 1), None)
        found = other and spell(image.isa, other.mnemonic, other.op_str, here, here + size).strip()
        if other is None or other.size != size or not re.fullmatch(text, found):
            raise Refuted(f"two decodings at {here - image.base:#x}: {text}, {found}")
        # An instance jumps to the kernel's functions.
        todo += [each for each in targets if 0 <= each - image.base < len(image.code)]
    return {"instructions": len(seen)}
