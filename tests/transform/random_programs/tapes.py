"""The tape of interpreted code: a plain array, and a list of the arrays that are kept on it.

The tape of compiled code is managed by what owns its memory, which does not survive a passage
through Python.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from tapegrad.ops.table.op import TABLE
from tapegrad.transform import runtime, vector_math
from tapegrad.transform.tape_memory import buffer, growth, references

KEPT = {}  # by numbers that are on tapes
NUMBERS = itertools.count(1)


class Tape(np.ndarray):
    """A tape, with what all its versions share: those of workers, and how much of it is used."""

    shared = None


@dataclass
class Shared:
    newest: Tape
    workers: list = field(default_factory=list)
    used: int = 0


def new(size=buffer.FIRST):
    made = np.full(size, np.nan).view(Tape)
    made.shared = Shared(made)
    return made


def larger(tape, size):
    made = new(size)
    made[: tape.size] = tape
    if getattr(tape, "shared", None) is not None:
        made.shared = tape.shared
        made.shared.newest = made
    return made


def tape_of(owner, worker):
    while len(owner.workers) <= worker:
        owner.workers.append(new().shared)
    return owner.workers[worker].newest


def scratch(places, which, shape):
    """A new array, and the one before without what it held: what reads that would be wrong."""
    places[which].fill(np.nan)
    places[which] = np.full(shape, np.nan)
    return places[which]


def swap_scratch(places, one, other):
    places[one], places[other] = places[other], places[one]


def give_scratch(places, count):
    assert count == len(places)
    for array in places:
        array.fill(np.nan)


def set_used(tape, top):
    tape.shared.used = top


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


def push_elements(tape, top, array, kind):
    assert array.dtype == np.float64
    assert array.ndim == kind.ndim
    needed = top + array.size + array.ndim
    if needed > tape.size:
        tape = larger(tape, size_for(tape, needed))
    tape[top : top + array.size] = array.ravel()
    tape[top + array.size : needed] = array.shape
    return tape, needed


def pop_elements(tape, top, kind):
    shape = tuple(int(extent) for extent in tape[top - kind.ndim : top])
    top -= kind.ndim + math.prod(shape)
    # what is written to the tape afterwards shows
    return np.asarray(tape)[top : top + math.prod(shape)].reshape(shape), top


def push_workers(tape, top, workers):
    needed = top + workers + 1
    if needed > tape.size:
        tape = larger(tape, size_for(tape, needed))
    tape[top:needed] = [tape_of(tape.shared, k).shared.used for k in range(workers)] + [workers]
    return tape, needed


def pop_workers(tape, top):
    workers = int(tape[top - 1])
    top -= workers + 1
    for k in range(workers):
        set_used(tape_of(tape.shared, k), int(tape[top + k]))
    return workers, top


def not_negative(number):
    assert number >= 0
    return number


def two_floats(function):
    """A function of two numbers, as of compiled code: also where Python raises errors."""
    return lambda x, y: function(np.float64(x), np.float64(y))


OF_OPS = {name for name in vector_math.ARGUMENTS if name in TABLE and not hasattr(np, name)}
MATH = {name: getattr(np, name, None) for name in vector_math.ARGUMENTS}
MATH |= {"erf": math.erf, "erfc": math.erfc, **{name: TABLE[name].formula for name in OF_OPS}}
MATH |= {"pow": two_floats(np.power)}
MATH |= {"half_power": lambda x, whole: np.power(np.float64(x), whole + 0.5)}

STAND_INS = [
    *((getattr(vector_math, name), stand_in) for name, stand_in in MATH.items()),
    (runtime.block, lambda size: np.full(size, np.nan)),
    (runtime.index, not_negative),
    (runtime.plus, two_floats(np.add)),
    (runtime.quotient, two_floats(np.divide)),
    (runtime.take_tape, new),
    (runtime.take_owned_tape, new),
    (runtime.give_tape, lambda tape: None),
    (runtime.grown, lambda tape, needed: larger(tape, size_for(tape, needed))),
    (runtime.take_scratch, lambda count: [np.empty(0) for _ in range(count)]),
    (runtime.scratch, scratch),
    (runtime.swap_scratch, swap_scratch),
    (runtime.on_stack, lambda shape: np.full(shape, np.nan)),
    (runtime.give_scratch, give_scratch),
    (runtime.assign, np.copyto),
    (runtime.duplicate, lambda x: np.array(x, order="C")),  # of elements that are side by side
    (runtime.clear, lambda array: array.fill(0.0)),
    (runtime.push_array, push),
    (runtime.push_tangent, push),
    (runtime.pop_array, pop),
    (runtime.push_elements, push_elements),
    (runtime.push_tangent_elements, push_elements),
    (runtime.pop_elements, pop_elements),
    (runtime.pop_owned_elements, pop_elements),
    (runtime.row, lambda tape, start, length: tape[start : start + length]),
    (runtime.owned_row, lambda tape, start, length: tape[start : start + length]),
    (buffer.new_tape, new),
    (buffer.inherit, lambda larger, tape: None),
    (growth.allowed_size, size_for),
    (runtime.address_of, lambda tape: tape.shared),
    (runtime.tape_of, tape_of),
    (runtime.used, lambda tape: tape.shared.used),
    (runtime.set_used, set_used),
    (runtime.push_workers, push_workers),
    (runtime.pop_workers, pop_workers),
]
