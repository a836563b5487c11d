"""The functions of the runtime that work on addresses, for arrays of numbers of a field.

A tape is an array of objects: it holds numbers as they are, and arrays that are referred to in one
place. Memory is undefined where nothing was written to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.equivalence.array_functions import OF_NUMBERS, empty, full, zeros
from tapegrad.transform.equivalence.field import ONE, ZERO, number, power

_FIRST = 64  # the initial size of a tape
_MOST_WORKERS = 2


class Tape(np.ndarray):
    """A tape, with what all its versions share."""

    shared: Any = None


class Shared:
    """The newest version of a tape, the tapes of workers, and how much of it is used."""

    def __init__(self, newest: Tape) -> None:
        self.newest = newest
        self.workers: list[Shared] = []
        self.used = 0


class Reference:
    """An array on a tape."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def new_tape(size: int = _FIRST) -> Tape:
    """Return a tape."""
    made = empty(size).view(Tape)
    made.shared = Shared(made)
    return made


def inherit(larger: Tape, tape: Tape) -> None:
    """Make a tape the newest version of another one."""
    if getattr(tape, "shared", None) is not None:  # a tape of tangents is a plain array
        larger.shared = tape.shared
        larger.shared.newest = larger


def _enlarged(tape: Tape, size: int) -> Tape:
    made = new_tape(size)
    made[: tape.size] = tape
    inherit(made, tape)
    return made


def size_for(tape: Tape, needed: int) -> int:
    """Return the size of a larger tape."""
    return max(needed, tape.size + tape.size // 2)


def _grown(tape: Tape, needed: int) -> Tape:
    return _enlarged(tape, size_for(tape, needed))


def _with_room(tape: Tape, needed: int) -> Tape:
    return _grown(tape, needed) if needed > tape.size else tape


def _push_array(tape: Tape, top: int, array: np.ndarray, kind: str) -> tuple[Tape, int]:
    tape = _with_room(tape, top + 1)
    tape[top] = Reference(array)
    return tape, top + 1


def _pop_array(tape: Tape, top: int, kind: str) -> tuple[np.ndarray, int]:
    return tape[top - 1].array, top - 1


def _push_elements(tape: Tape, top: int, array: np.ndarray, kind: Any) -> tuple[Tape, int]:
    needed = top + array.size + 1
    tape = _with_room(tape, needed)
    tape[top : needed - 1] = array.ravel()
    tape[needed - 1] = Reference(np.empty(array.shape, bool))  # for its shape
    return tape, needed


def _pop_elements(tape: Tape, top: int, kind: Any) -> tuple[np.ndarray, int]:
    shape = tape[top - 1].array.shape
    first = top - 1 - math.prod(shape)
    return np.asarray(tape)[first : top - 1].reshape(shape), first


def _tape_of(owner: Shared, worker: int) -> Tape:
    while len(owner.workers) <= worker:
        owner.workers.append(new_tape().shared)
    return owner.workers[worker].newest


def _push_workers(tape: Tape, top: int, workers: int) -> tuple[Tape, int]:
    needed = top + workers + 1
    tape = _with_room(tape, needed)
    used = [_tape_of(tape.shared, k).shared.used for k in range(workers)]
    tape[top:needed] = [*used, workers]
    return tape, needed


def _pop_workers(tape: Tape, top: int) -> tuple[int, int]:
    workers = int(tape[top - 1])
    top -= workers + 1
    for k in range(workers):
        _set_used(_tape_of(tape.shared, k), int(tape[top + k]))
    return workers, top


def _set_used(tape: Tape, top: int) -> None:
    tape.shared.used = top


def _scratch(places: list[Any], which: int, shape: Any) -> np.ndarray:
    places[which] = empty(shape)
    return places[which]


def _swap_scratch(places: list[Any], one: int, other: int) -> None:
    places[one], places[other] = places[other], places[one]


def _assign(target: np.ndarray, source: np.ndarray) -> None:
    target[...] = source


def _clear(array: np.ndarray) -> np.ndarray:
    array[...] = ZERO
    return array


def _clear_from(array: np.ndarray, first: int) -> None:
    array[max(first, 0) :] = ZERO


def _add_product(total: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    total += np.dot(x, y)


def _outer_power(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    for i, j in np.ndindex(x.size, y.size):
        z[i, j] = power(x[i], y[j])


def _first(x: Any, *_: Any) -> Any:
    return x


MEANINGS: dict[str, Callable[..., Any]] = {
    # numbers
    **{name: OF_NUMBERS[name] for name in ("product", "nonzero", "settled", "moved")},
    "to_bits": _first,
    "from_bits": _first,
    "index": _first,
    "member": lambda like, value: value,
    "matters": bool,
    "larger": max,
    "smaller": min,
    "inverse": lambda x: ONE / number(x),
    "quotient": lambda x, y: number(x) / y,
    "plus": lambda x, y: x + y,
    # arrays
    "block": empty,
    "empty": empty,
    "zeros": zeros,
    "full": lambda shape, value: full(shape, number(value)),
    "on_stack": empty,
    "duplicate": lambda x: np.array(x, order="C"),
    "in_c_order": lambda x: np.array(x, order="C"),
    "in_fortran_order": lambda x: np.array(x, order="F"),
    "assign": _assign,
    "clear": _clear,
    "cleared": _clear,
    "clear_from": _clear_from,
    "overlap": np.shares_memory,
    "maximum": np.max,
    "minimum": np.min,
    "dot_22": np.dot,
    "dot_21": np.dot,
    "dot_12": np.dot,
    "add_product": _add_product,
    "add_product_nt": lambda total, x, y: _add_product(total, x, y.T),
    "add_product_tn": lambda total, x, y: _add_product(total, x.T, y),
    "outer_power": _outer_power,
    # scratch memory
    "take_scratch": lambda count: [None] * count,
    "give_scratch": lambda places, count: None,
    "scratch": _scratch,
    "swap_scratch": _swap_scratch,
    # tapes
    "take_tape": new_tape,
    "take_owned_tape": new_tape,
    "give_tape": lambda tape: None,
    "enlarged": _enlarged,
    "copied": _enlarged,
    "grown": _grown,
    "row": lambda tape, start, length: tape[start : start + length],
    "owned_row": lambda tape, start, length: tape[start : start + length],
    "push_array": _push_array,
    "push_tangent": _push_array,
    "pop_array": _pop_array,
    "push_elements": _push_elements,
    "push_tangent_elements": _push_elements,
    "pop_elements": _pop_elements,
    "pop_owned_elements": _pop_elements,
    # workers
    "workers_for": lambda count: max(1, min(_MOST_WORKERS, count)),
    "address_of": lambda tape: tape.shared,
    "tape_of": _tape_of,
    "used": lambda tape: tape.shared.used,
    "set_used": _set_used,
    "push_workers": _push_workers,
    "pop_workers": _pop_workers,
}
"""What the functions do that Python cannot run; the others are Python."""
