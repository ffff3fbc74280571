"""Mutants: images with one bit changed, which the proof must refute. A proof that accepts everything proves nothing."""

import concurrent.futures
import os

from contracts import CLOCKS, COARSE, prove_clock_gettime
from executor import Refuted


def executed(image, clocks):
    """Returns the instructions of clock_gettime that the clocks execute."""
    touched = {}
    for clock in clocks:
        prove_clock_gettime(image, clock, touched=touched)
    return touched


def survives(image, at, bit, clocks):
    code = bytearray(image.code)
    code[at] ^= 1 << bit
    mutant = image.mutant(bytes(code))
    try:
        for clock in clocks:
            prove_clock_gettime(mutant, clock)
    except Refuted:
        return False
    return True


def describe(image, instructions, at, bit):
    """Returns the instruction's bytes before and after."""
    start = max(each for each in instructions if each <= at)
    before = bytes(image.code[start : start + instructions[start]])
    after = bytearray(before)
    after[at - start] ^= 1 << bit
    return f"{before.hex()} {after.hex()}"


def try_sample(image):
    """Tries one bit in every 16th byte that a read of REALTIME executes. Returns how many, and the survivors."""
    instructions = executed(image, [0])
    places = sorted(at for start, size in instructions.items() for at in range(start, start + size))
    chosen = [(at, at // 4 % 8) for at in places[len(image.isa.landing_pad) + 1 :: 16]]
    return len(chosen), [describe(image, instructions, at, bit) for at, bit in chosen if survives(image, at, bit, [0])]


def try_all(load):
    """Tries one bit in every byte that any clock executes, on all CPUs. `load` returns the image: it cannot be sent to a process."""
    clocks = (*CLOCKS, *COARSE, None)
    image = load()
    instructions = executed(image, clocks)
    places = sorted(at for start, size in instructions.items() for at in range(start, start + size))
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), initializer=prepare, initargs=(load, clocks)) as pool:
        survived = list(pool.map(try_one, [(at, at % 8) for at in places], chunksize=4))
    return len(places), [describe(image, instructions, at, at % 8) for at, each in zip(places, survived) if each]


def prepare(load, clocks):
    global worker
    worker = load(), clocks


def try_one(place):
    return survives(worker[0], *place, worker[1])
