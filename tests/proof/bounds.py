"""Lemmas in integers: what page.h's limits, which the writer checks (Anchor::is_within_limits in core/page), imply for the readers' arithmetic."""

import pathlib
import re

import z3

from contracts import FLOOR_LIMIT, SECOND
from executor import USEC_FACTOR, Refuted, new_solver

ANCHOR = pathlib.Path(__file__).resolve().parents[2] / "core/page/src/anchor.rs"
MAX_SHIFT = int(re.search(r"^pub const MAX_SHIFT: u32 = (\d+);", ANCHOR.read_text(), re.MULTILINE)[1])


def need(what, *facts):
    """Proves that the last of the facts follows from the others."""
    solver = new_solver()
    solver.add(*facts[:-1], z3.Not(facts[-1]))
    if solver.check() != z3.unsat:
        raise Refuted(f"not proven: {what}")


def prove_bounds():
    """No product or sum overflows 64 bits, and the result is below two seconds: one carry suffices. An anchor is monotone in the counter."""
    product, shifted, later = z3.Ints("product shifted later")  # age * mult, with age <= cap; nsec_shifted
    for shift in range(MAX_SHIFT + 1):
        unit = 1 << shift
        limits = [0 <= product, product <= SECOND * unit, 0 <= shifted, shifted < SECOND * unit]
        total = product + shifted
        need("no overflow", *limits, total < 1 << 64)
        need("below two seconds", *limits, total / unit < 2 * SECOND)
        need("one carry suffices", *limits, z3.If(total / unit >= SECOND, total / unit - SECOND, total / unit) < SECOND)
        need("monotone", *limits, later >= product, (later + shifted) / unit >= total / unit)
    return {"shifts": MAX_SHIFT + 1}


def prove_microseconds():
    """fp_to_usec is a division by 1000, for 32 bits."""
    thousands, rest = z3.Ints("thousands rest")
    nsec = 1000 * thousands + rest
    limits = [thousands >= 0, 0 <= rest, rest < 1000, nsec < 1 << 32]
    need("division by 1000", *limits, (nsec * USEC_FACTOR) / (1 << 38) == thousands)
    return {"division": 1}


def prove_floor():
    """A floor that is later by at most FLOOR_LIMIT is never two seconds apart, so fp_is_later compares whole times."""
    apart, floor, kernel = z3.Ints("apart floor kernel")
    limits = [0 <= floor, floor < SECOND, 0 <= kernel, kernel < SECOND]
    ahead = apart * SECOND + floor - kernel
    need("the seconds of a later floor", *limits, 0 < ahead, ahead <= FLOOR_LIMIT, z3.Or(apart == 0, apart == 1))
    return {"comparison": 1}


def prove_change():
    """An anchor whose base is another's time there, rounded up as by reshift_up() to its own shift, shows the same at its base, or 1 ns more where it
    has fewer bits of fraction."""
    whole, fraction, base = z3.Ints("whole fraction base")
    for old in range(MAX_SHIFT + 1):
        shown, agree = whole * (1 << old) + fraction, []
        for new in range(MAX_SHIFT + 1):
            gained, lost, unit = 1 << max(new - old, 0), 1 << max(old - new, 0), 1 << new
            rounded = z3.And(base * lost >= shown * gained, base * lost < shown * gained + lost)
            end = whole + (1 if lost == 1 else 2)
            agree.append(z3.Implies(rounded, z3.And(base >= whole * unit, base < end * unit)))
        need("anchors agree where they change", 0 <= fraction, fraction < 1 << old, z3.And(agree))
    return {"pairs of shifts": (MAX_SHIFT + 1) ** 2}
