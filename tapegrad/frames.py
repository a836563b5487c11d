"""What the record of an op with Python rules keeps, and how its rules are run.

A frame is the last item of the owner of a record that the sweep cannot do by itself. It answers two
questions: `contributions`, on arrays inside a compiled sweep, and `cotangents`, on anything (with
tensors the rules are recorded themselves, which is how gradients of gradients come about).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from tapegrad.ops.kinds import Opaque
from tapegrad.ops.op import shape_of
from tapegrad.tape.aval import AVALS, FLOAT64
from tapegrad.tape.code import OPS
from tapegrad.tape.layout import (
    FREED,
    NARY,
    OWN_AVAL,
    OWN_SEGMENT,
    OWN_SLOT,
    SAVES,
    SEGMENT_BITS,
)
from tapegrad.tape.sweep import MutatedError, Sweep, owner_at
from tapegrad.tape.tape import TAPE, buffer_of, reach_of
from tapegrad.tensor import Owner, Tensor, wrap

Wanted = Callable[[Owner], bool]
FRAME = 5  # index of the frame in the owner of an n-ary record

# A record with several outputs has this aval; their cotangents travel beside the sweep.
TUPLE_AVAL = AVALS.of(np.zeros((), FLOAT64))
_TUPLE_TOKEN = np.zeros(())


SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


def record_owner(slot: int) -> Owner | None:
    """Return the owner of a record that something alive refers to, None if it was freed."""
    segment = TAPE.segments.get(slot >> SEGMENT_BITS)
    if segment is None or segment.flags(slot) & FREED:
        return None
    return owner_at(int(segment.rows()["owner"][slot - segment.base]))


def record_op(owner: Owner) -> int:
    """Return the number of the op of a record."""
    segment = owner[OWN_SEGMENT]
    return int(segment.rows()["op"][owner[OWN_SLOT] - segment.base])


def node_name(owner: Owner) -> str:
    """Return the name of a record's op as a word with capitals, such as ``Exp``."""
    frame = owner[FRAME] if len(owner) > FRAME else None
    name = getattr(frame, "name", None) or OPS.ops[record_op(owner)].name
    return name if name[:1].isupper() else name.title().replace("_", "")


class Frame(Protocol):
    """The Python part of a record."""

    parents: list[Owner | None]
    saves: bool

    def cotangents(self, owner: Owner, g: Any, wanted: Wanted) -> list[Any]:
        """Return the cotangent of every parent as tensors (None: none), `g` being a tensor."""

    def contributions(self, sweep: Sweep, owner: Owner, g: np.ndarray) -> Iterator[Any]:
        """Yield (slot, array) for every parent that is wanted, inside a compiled sweep."""


def append_nary(code: int, aval: int, frame: Frame) -> Owner:
    """Append a record with any number of inputs and a frame."""
    segment, slot = TAPE.next_slot()
    parents = frame.parents
    inputs = [0 if parent is None else parent[OWN_SLOT] for parent in parents]
    owner = [segment, slot, aval, np.array(inputs, np.int64), parents, frame]
    flags = NARY | SAVES if frame.saves else NARY
    segment.extend(
        (slot, code | (flags << 32), aval, len(parents), reach_of(slot, inputs), id(owner))
    )
    return owner


def fit_array(array: Any, aval: int, what: str) -> np.ndarray:
    """Bring a cotangent to the shape and dtype of its input, summing what broadcasting repeated."""
    array = np.asarray(array)
    shape, dtype = AVALS.shapes[aval], AVALS.dtypes[aval]
    if array.shape != shape:
        array = unbroadcast_array(array, shape, what)
    return np.ascontiguousarray(array, dtype).reshape(shape)


def unbroadcast_array(array: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Sum an array to a shape that broadcasts to its own."""
    lead = array.ndim - len(shape)
    if lead < 0 or any(
        wide != narrow and narrow != 1
        for wide, narrow in zip(array.shape[lead:], shape, strict=True)
    ):
        raise RuntimeError(
            f"{what} - got {list(array.shape)} but expected shape compatible with {list(shape)}"
        )
    axes = tuple(range(lead)) + tuple(
        lead + k for k, narrow in enumerate(shape) if narrow == 1 and array.shape[lead + k] != 1
    )
    return array.sum(axes, keepdims=True).reshape(shape) if axes else array.reshape(shape)


def check_unmutated(slot: int, array: Any) -> None:
    """Raise if a saved array was mutated after the record at `slot`."""
    if TAPE.mutations and type(array) is np.ndarray:
        known = TAPE.mutations.get(id(buffer_of(array)))
        if known is not None and known.slots[-1] > slot:
            raise MutatedError(slot)


class OpaqueFrame:
    """The frame of an op with Python rules: which inputs matter, and what their rules read."""

    __slots__ = ("inputs", "op", "outputs", "parents", "saved", "saves")

    def __init__(self, op: Opaque, bound: dict[str, Any], z: Any) -> None:
        self.op = op
        self.inputs: list[tuple[str, int | None]] = []
        self.parents: list[Owner | None] = []
        self.outputs: list[tuple[tuple[int, ...], np.dtype]] | None = None
        active = 0
        for bit, name in enumerate(op.arguments):
            value = bound[name]
            known = len(self.parents)
            if type(value) is Tensor:
                if value._own is not None:
                    self.inputs.append((name, None))
                    self.parents.append(value._own)
            elif type(value) in (list, tuple):
                for k, item in enumerate(value):
                    self._add_input(name, k, item)
            else:
                self._add_input(name, None, value)
            if len(self.parents) > known:
                active |= 1 << bit
        values, shapes, self.saves = op.plan(active)
        self.saved = {name: z if name == "z" else _save(bound[name]) for name in values}
        for name in shapes:  # of these only the shape: their values need not be kept
            self.saved[name] = _shapes(bound[name.removesuffix("_shape")])

    def _add_input(self, name: str, k: int | None, value: Any) -> None:
        if isinstance(value, Tensor) and value._own is not None:
            self.inputs.append((name, k))
            self.parents.append(value._own)

    def _run(self, g: Any, values: dict[str, Any], wanted: Wanted) -> list[Any]:
        values["g"] = g
        found: dict[str, Any] = {}
        result: list[Any] = []
        for (argument, k), parent in zip(self.inputs, self.parents, strict=True):
            if parent is None or not wanted(parent):
                result.append(None)
                continue
            if argument not in found:
                rule = self.op.rules[argument]
                found[argument] = rule(**{name: values[name] for name in self.op.reads(argument)})
            result.append(found[argument] if k is None else found[argument][k])
        return result

    def cotangents(self, owner: Owner, g: Any, wanted: Wanted) -> list[Any]:
        values = dict(self.saved)
        for value in values.values():
            for item in value if type(value) in (list, tuple) else (value,):
                check_unmutated(owner[OWN_SLOT], _array(item))
        if "z" in values:
            z = values["z"]
            values["z"] = (
                tuple(
                    wrap(item, select(owner, k)) if item.dtype.kind == "f" else item
                    for k, item in enumerate(z)
                )
                if type(z) is tuple
                else wrap(z, owner)
            )
        return self._run(g if self.outputs is None else self._complete(g), values, wanted)

    def _complete(self, given: dict[int, Any]) -> tuple[Any, ...]:
        """Return a cotangent for every output, zeros where there is none."""
        assert self.outputs is not None
        return tuple(
            given[k] if k in given else np.zeros(shape, dtype)
            for k, (shape, dtype) in enumerate(self.outputs)
        )

    def contributions(self, sweep: Sweep, owner: Owner, g: np.ndarray) -> Iterator[Any]:
        cotangent = g if self.outputs is None else self._complete(sweep.tuples.pop(owner[OWN_SLOT]))
        values = {}
        for name, value in self.saved.items():
            if type(value) in (list, tuple):
                values[name] = type(value)(_array(item) for item in value)
                for item in values[name]:
                    check_unmutated(owner[OWN_SLOT], item)
            else:
                values[name] = _array(value)
                check_unmutated(owner[OWN_SLOT], values[name])
        found = self._run(cotangent, values, lambda parent: sweep.is_needed(parent[OWN_SLOT]))
        for parent, array in zip(self.parents, found, strict=True):
            if array is not None and parent is not None:
                what = f"{self.op.name} returned an invalid gradient"
                yield parent[OWN_SLOT], fit_array(array, parent[OWN_AVAL], what)


def _save(value: Any) -> Any:
    """Keep an argument as it is now: a tensor's handle may be given another value later."""
    if isinstance(value, Tensor):
        return wrap(value._a, value._own)
    if type(value) in (list, tuple):
        return type(value)(_save(item) for item in value)
    return value


def _shapes(value: Any) -> Any:
    return [shape_of(item) for item in value] if type(value) in (list, tuple) else shape_of(value)


def _array(value: Any) -> Any:
    return value._a if isinstance(value, Tensor) else value


# -- records with several outputs -----------------------------------------------------------------


class _Select:
    """The op that takes one output of a record that has several."""

    name = "select"

    def kernel(self, dtype: int, position: int) -> int:
        raise TypeError("select has no compiled partial")


SELECT = OPS.register(_Select())


class SelectFrame:
    """The frame of one output of a record that has several."""

    __slots__ = ("k", "parents")
    saves = False

    def __init__(self, parent: Owner, k: int) -> None:
        self.parents: list[Owner | None] = [parent]
        self.k = k

    def cotangents(self, owner: Owner, g: Any, wanted: Wanted) -> list[Any]:
        return [{self.k: g}]

    def contributions(self, sweep: Sweep, owner: Owner, g: np.ndarray) -> Iterator[Any]:
        parent = self.parents[0]
        assert parent is not None
        given = sweep.tuples.setdefault(parent[OWN_SLOT], {})
        given[self.k] = np.asarray(given[self.k] + g) if self.k in given else g
        yield parent[OWN_SLOT], _TUPLE_TOKEN


def select(parent: Owner, k: int) -> Owner:
    """Record the k-th output of a record that has several; its aval is set by the caller."""
    frame = parent[FRAME]
    shape, dtype = frame.outputs[k]
    aval = AVALS.of(np.empty(shape, dtype))
    return append_nary(SELECT, aval, SelectFrame(parent, k))
