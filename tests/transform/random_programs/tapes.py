"""The tape of interpreted code: a plain array, and a list of the arrays that are kept on it.

The tape of compiled code is managed by what owns its memory, which does not survive a passage
through Python.
"""

import itertools

import numpy as np

from tapegrad.transform import runtime
from tapegrad.transform.tape_memory import buffer, growth, references

KEPT = {}  # by numbers that are on tapes
NUMBERS = itertools.count(1)


def new(size=buffer.FIRST):
    return np.full(size, np.nan)


def larger(tape, size):
    made = new(size)
    made[: tape.size] = tape
    return made


def size_for(tape, needed):
    return max(needed, tape.size + tape.size // 2)


def push(tape, top, array, kind):
    assert array.dtype.name.replace("bool_", "bool") == str(kind.dtype)
    assert array.ndim == kind.ndim
    needed = top + references.words_of(kind)
    if needed > tape.size:
        tape = larger(tape, size_for(tape, needed))
    number = next(NUMBERS)
    KEPT[number] = array
    tape[top] = number
    return tape, needed


def pop(tape, top, kind):
    top -= references.words_of(kind)
    return KEPT.pop(int(tape[top])), top


STAND_INS = [
    (runtime.take_tape, new),
    (runtime.give_tape, lambda tape: None),
    (runtime.grown, lambda tape, needed: larger(tape, size_for(tape, needed))),
    (runtime.push_array, push),
    (runtime.push_tangent, push),
    (runtime.pop_array, pop),
    (runtime.row, lambda tape, start, length: tape[start : start + length]),
    (runtime.owned_row, lambda tape, start, length: tape[start : start + length]),
    (buffer.new_tape, new),
    (buffer.inherit, lambda larger, tape: None),
    (growth.allowed_size, size_for),
]
