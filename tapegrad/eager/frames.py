"""Records of ops with Python rules: appending them and running their rules.

A frame is the last item of the owner of a record that the compiled sweep cannot process. Its
`contributions` runs the rules on arrays inside a compiled sweep; its `cotangents` runs them on
tensors, where they may be recorded themselves for higher derivatives.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from tapegrad.cuda.array import (
    DeviceArray,
    as_array,
    contiguous,
    device_of,
    is_array,
    on_device_named,
    zeros,
)
from tapegrad.eager.duals import arrays_of, saved_tangent_of_output, with_saved_tangent
from tapegrad.eager.lines import is_own_file
from tapegrad.eager.modes import MODE
from tapegrad.eager.saved_values import restore, save
from tapegrad.eager.shared_memory import copied, copied_matrix
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.used_outputs import SELECT, UsedOutputs
from tapegrad.kernels.pool import pooled
from tapegrad.ops.table.kinds import Elementwise, Reduction, SweptOp
from tapegrad.ops.table.op import Op, shape_of
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE, FLOAT64, Kind
from tapegrad.tape.codes import OPS, PythonOp
from tapegrad.tape.layout import LEAF_CLOCK, OWN_AVAL, OWN_SLOT, SAVES
from tapegrad.tape.owner import Frame, Owner, ensure_notes, op_and_flags
from tapegrad.tape.sweep import Contributions, Sweep
from tapegrad.tape.tape import TAPE

Wanted = Callable[[Owner], bool]
SavedArrays = list[tuple[np.ndarray, Owner | None, int]]

# Records with several outputs have this aval; their cotangents are kept in `Sweep.tuples`.
TUPLE_AVAL = AVALS.of(np.zeros((), FLOAT64))
_TUPLE_TOKEN = np.zeros(())
_SAVES = SAVES << 32


class RuleFrame(Frame):
    """Base class of frames: the engine's interface to the Python part of a record."""

    __slots__ = ()
    op_name = ""  # if the op of the record does not have it
    runs_undefined = False  # whether rules run even for an undefined cotangent
    _has_jvp = False  # whether its `tangents(owner, given)` returns those of all outputs

    def cotangents(
        self, owner: Owner, parents: list[Owner | None], g: Any, wanted: Wanted
    ) -> list[Any]:
        """Return a tensor or None as the cotangent of every parent, for a tensor `g`."""
        raise NotImplementedError

    def active(self) -> list[bool]:
        """Return, for every differentiable input, whether it needs a gradient."""
        return [True]

    def saved_arrays(self, owner: Owner) -> SavedArrays:
        """Return the saved arrays, with the record and output number that made each."""
        return []


class RefusedFrame(RuleFrame):
    """The frame of a value that must not be differentiated."""

    __slots__ = ("reason",)
    op_name = "Error"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def refuse(self) -> NoReturn:
        """Raise with the reason why there is no valid gradient."""
        raise RuntimeError(self.reason)

    def cotangents(self, *args: Any) -> list[Any]:
        self.refuse()

    def contributions(self, *args: Any) -> Contributions:
        self.refuse()


def maker_of(owner: Owner | None) -> tuple[Owner | None, int]:
    """Return the owner of the record that made a value, and the number of the output."""
    if owner is not None and isinstance(owner[-1], SelectFrame):
        return owner[3], owner[-1].k
    return owner, 0


def parents_of(owner: Owner) -> list[Owner | None]:
    """Return the owners of the inputs of a record that has a frame."""
    return owner[4] if type(owner[3]) is np.ndarray else owner[3:5]


def append_record(
    code: int, aval: int, parents: Sequence[Owner | None], frame: RuleFrame, saves: bool
) -> Owner:
    """Append the record of a frame."""
    head = code | _SAVES if saves else code
    count = len(parents)
    if count <= 2:
        first = parents[0] if count else None
        second = parents[1] if count == 2 else None
        x = 0 if first is None else first[OWN_SLOT]
        y = 0 if second is None else second[OWN_SLOT]
        owner = TAPE.append(head, aval, x, y, (first, second, frame))
    else:
        owner = TAPE.append_wide(head, aval, parents, (frame,))
    if MODE.special:
        note_origin(owner)
    return owner


def note_origin(owner: Owner) -> None:
    """In anomaly mode, note the call that made a record."""
    if MODE.anomaly:
        stack = traceback.extract_stack()
        while stack and is_own_file(stack[-1].filename):
            stack.pop()
        metadata = ensure_notes(owner).metadata
        metadata["traceback_"] = traceback.format_list(stack)
        metadata["parent_"] = MODE.thread.node


def node_name(owner: Owner) -> str:
    """Return the name of a record's op in CamelCase, such as ``Exp``."""
    if owner[OWN_SLOT] >= LEAF_CLOCK:
        return "AccumulateGrad"
    name = owner[-1].op_name if isinstance(owner[-1], RuleFrame) else ""
    return title(name or OPS.ops[op_and_flags(owner)[0]].name)


def title(name: str) -> str:
    """Return the name of an op in CamelCase."""
    return name if name[:1].isupper() else name.title().replace("_", "")


def fit_array(array: Any, aval: int, what: str) -> np.ndarray:
    """Convert a cotangent to the shape and dtype of its input.

    Broadcast axes are summed; for a real input, the real part of a complex cotangent is taken.
    """
    array = as_array(array)
    shape, dtype, device = AVALS.kind(aval)
    if array.shape != shape:
        array = unbroadcast_array(array, shape, what)
    if device_of(array) != device:
        if shape:
            raise RuntimeError(f"{what} - expected device {device} but got {device_of(array)}")
        array = on_device_named(device, array)
    if array.dtype is dtype and array.flags.c_contiguous:
        return array
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real
    return contiguous(array, dtype)


def check_reducible(shape: tuple[int, ...], wanted: tuple[int, ...], what: str) -> None:
    """Raise if a cotangent's shape is not a broadcast of its input's shape."""
    lead = len(shape) - len(wanted)
    if lead < 0 or any(
        wide != narrow and narrow != 1 for wide, narrow in zip(shape[lead:], wanted, strict=True)
    ):
        raise RuntimeError(
            f"{what} - got {list(shape)} but expected shape compatible with {list(wanted)}"
        )


def unbroadcast_array(array: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Sum an array to a shape that broadcasts to the array's shape."""
    check_reducible(array.shape, shape, what)
    lead = array.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + k for k, narrow in enumerate(shape) if narrow == 1 and array.shape[lead + k] != 1
    )
    return array.sum(axes, keepdims=True).reshape(shape) if axes else array.reshape(shape)


# -- ops of the table -----------------------------------------------------------------------------


# the op of records whose op is known to the sweep, but not with these values
FRAMED = OPS.register(PythonOp("framed"))


class Active:
    """The arguments of a call of an op: their arrays, and those that need a gradient."""

    __slots__ = ("arrays", "inputs", "lengths", "mask", "op", "parents")

    def __init__(self, op: Op, bound: dict[str, Any]) -> None:
        self.op = op
        self.arrays: list[Any] = []
        self.inputs: list[tuple[str, int | None]] = []  # names, with positions in list arguments
        self.parents: list[Owner | None] = []
        self.lengths = _NO_LENGTHS  # of list arguments
        self.mask = 0
        rules = op.rules
        for bit, name in enumerate(op.arguments):
            value = bound[name]
            kind = type(value)
            if kind is Tensor:
                self.arrays.append(value._a)
                own = value._own
                if own is not None and name in rules:
                    self.inputs.append((name, None))
                    self.parents.append(own)
                    self.mask |= 1 << bit
            elif kind is list or kind is tuple:
                self.arrays.append([arrays_of(item) for item in value])
                self.lengths = {**self.lengths, name: len(value)}
                for k, item in enumerate(value):
                    if type(item) is Tensor and item._own is not None and name in rules:
                        self.inputs.append((name, k))
                        self.parents.append(item._own)
                        self.mask |= 1 << bit
            else:
                self.arrays.append(value)


_NO_LENGTHS: dict[str, int] = {}


class OpFrame(RuleFrame):
    """The frame of an op of the table: its active inputs and the values that their rules read."""

    __slots__ = (
        "constants", "inputs", "lengths", "op", "outputs", "parents", "saved", "saves", "tangents",
    )  # fmt: skip

    def __init__(self, active: Active, bound: dict[str, Any], z: Any) -> None:
        op, mask = active.op, active.mask
        self.op = op
        self.inputs = active.inputs
        self.parents = active.parents  # until the record is appended
        self.lengths = active.lengths
        self.outputs: list[Kind] | None = None
        self.tangents: tuple[Any, ...] = ()  # of the outputs, if these are saved
        values, shapes, self.saves = op.plan(mask)
        self.saved: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}  # values that are neither checked nor freed
        for name in values:
            if name in op.parameters:
                parameter = _copied(bound[name])
                if _holds_arrays(parameter):
                    self.saved[name] = save(parameter, is_result=True)
                    self.saves = True
                else:
                    self.constants[name] = parameter
            elif name in bound:
                self.saved[name] = save(bound[name])
            elif name == "z":
                self.saved[name] = save(z, is_result=True)
            else:
                self.saved[name] = op.extras[name](  # type: ignore[attr-defined]
                    bound["x"]._a, z, bound["axis"]
                )
        for name in shapes:  # only the shapes are kept, not the values
            value = bound[name.removesuffix("_shape")]
            self.constants[name] = value._a.shape if type(value) is Tensor else _shapes(value)

    def append(self, aval: int) -> Owner:
        """Append the record of this frame."""
        code = FRAMED if isinstance(self.op, SweptOp) else self.op.code
        owner = append_record(code, aval, self.parents, self, self.saves)
        del self.parents
        return owner

    @property
    def op_name(self) -> str:  # type: ignore[override]
        return self.op.name

    def release(self) -> None:
        self.saved = {}
        self.tangents = ()

    def keep_tangents(self, outputs: tuple[Tensor, ...]) -> None:
        """Keep the tangents of the outputs with their saved values."""
        if "z" in self.saved:
            self.tangents = tuple(map(saved_tangent_of_output, outputs))

    def saved_arrays(self, owner: Owner) -> SavedArrays:
        found: SavedArrays = []
        for value in self.saved.values():
            for k, item in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
                if isinstance(item, Tensor):
                    found.append((item._a, *maker_of(item._own)))
                elif is_array(item):
                    found.append((item, owner, k))
        return found

    def active(self) -> list[bool]:
        return [
            (name, k) in self.inputs
            for name in self.op.arguments
            if name in self.op.rules
            for k in (range(self.lengths[name]) if name in self.lengths else (None,))
        ]

    def _run(
        self, g: Any, values: dict[str, Any], parents: list[Owner | None], wanted: Wanted
    ) -> list[Any]:
        found: dict[str, Any] = {}
        result: list[Any] = []
        for (argument, k), parent in zip(self.inputs, parents, strict=False):
            if parent is None or not wanted(parent):
                result.append(None)
                continue
            if argument not in found:
                found[argument] = self.op.cotangent(argument, g, values)
            result.append(found[argument] if k is None else found[argument][k])
        return result

    def named(self, given: Sequence[Any]) -> dict[str, Any]:
        """Arrange one value (or None) per input by the names of the op's arguments."""
        found: dict[str, Any] = {}
        for (name, k), value in zip(self.inputs, given, strict=False):
            if value is not None and k is None:
                found[name] = value
            elif value is not None:
                found.setdefault(name, [None] * self.lengths[name])[k] = value
        return found

    def cotangents(
        self, owner: Owner, parents: list[Owner | None], g: Any, wanted: Wanted
    ) -> list[Any]:
        values = self.values(owner)
        cotangent = g if self.outputs is None else self._complete(g, values, owner)
        return self._run(cotangent, values, parents, wanted)

    def values(self, owner: Owner) -> dict[str, Any]:
        """Return the values that the rules read, except the cotangent, as tensors with history."""
        slot = owner[OWN_SLOT]
        values = dict(self.constants)
        for name, value in self.saved.items():
            values[name] = value if name == "z" else restore(value, slot)
            if name in self.op.parameters:
                values[name] = arrays_of(values[name])
        if "z" in values:
            z = values["z"]
            if type(z) is tuple:
                values["z"] = tuple(
                    restore(item, slot, select(owner, k) if _has_history(item) else None)
                    for k, item in enumerate(z)
                )
            else:
                values["z"] = restore(z, slot, owner)
            if self.tangents:
                outputs = values["z"] if type(z) is tuple else (values["z"],)
                for output, tangent in zip(outputs, self.tangents, strict=True):
                    if isinstance(output, Tensor):
                        with_saved_tangent(output, tangent)
        return values

    def _complete(
        self,
        given: dict[int, Any],
        values: dict[str, Any],
        owner: Owner,
        sweep: Sweep | None = None,
    ) -> tuple[Any, ...]:
        """Return a cotangent for every output, zeros for undefined ones.

        Rules may read as ``used`` which of them are defined: see `UsedOutputs`.
        """
        assert self.outputs is not None
        values["used"] = UsedOutputs(owner, given, sweep)
        return tuple(
            given[k] if k in given else zeros(*kind) for k, kind in enumerate(self.outputs)
        )

    def contributions(self, sweep: Sweep, owner: Owner, g: Any) -> Contributions:
        slot = owner[OWN_SLOT]
        values = dict(self.constants)
        for name, value in self.saved.items():
            values[name] = arrays_of(restore(value, slot))
        cotangent = g
        if self.outputs is not None:
            cotangent = self._complete(sweep.tuples.pop(slot), values, owner, sweep)
        parents = parents_of(owner)

        def is_needed(parent: Owner) -> bool:
            return sweep.is_needed(parent[OWN_SLOT])

        if AVALS.large and any(
            own is not None and own[OWN_AVAL] in AVALS.large for own in (owner, *parents)
        ):
            found = pooled(self._run, cotangent, values, parents, is_needed)
        else:
            found = self._run(cotangent, values, parents, is_needed)
        contributions: Contributions = []
        for parent, array in zip(parents, found, strict=False):
            if array is not None and parent is not None:
                what = f"{self.op.name} returned an invalid gradient"
                contributions.append((parent, fit_array(array, parent[OWN_AVAL], what)))
        return contributions


def _holds_arrays(parameter: Any) -> bool:
    """Whether a parameter, such as an index, is an array or contains arrays."""
    if type(parameter) is tuple:
        for item in parameter:  # noqa: SIM110 (in a third of the time of `any`)
            if type(item) in _ARRAYS:
                return True
        return False
    return type(parameter) in _ARRAYS


_ARRAYS = frozenset([np.ndarray, DeviceArray])
_MUTABLE = _ARRAYS | {Tensor, list}


def _copied(parameter: Any) -> Any:
    """Copy the arrays of a parameter, which could change before the backward pass reads them."""
    kind = type(parameter)
    if kind is np.ndarray:
        return copied(parameter)
    if kind is DeviceArray or kind is Tensor:
        return arrays_of(parameter).copy()
    if kind is tuple or kind is list:
        for item in parameter:
            if kind is list or type(item) in _MUTABLE:
                return kind(map(_copied, parameter))
    return copied_matrix(parameter) if hasattr(kind, "tocsr") else parameter


def _has_history(item: Any) -> bool:
    return getattr(item, "dtype", FLOAT64) in DIFFERENTIABLE


def _shapes(value: Any) -> Any:
    return [shape_of(item) for item in value] if type(value) in (list, tuple) else shape_of(value)


# -- records with several outputs -----------------------------------------------------------------


class SelectFrame(RuleFrame):
    """The frame of one output of a record with several."""

    __slots__ = ("k",)
    runs_undefined = True

    def __init__(self, k: int) -> None:
        self.k = k

    def cotangents(
        self, owner: Owner, parents: list[Owner | None], g: Any, wanted: Wanted
    ) -> list[Any]:
        return [{} if g is None else {self.k: g}, None]

    def contributions(self, sweep: Sweep, owner: Owner, g: Any) -> Contributions:
        maker = owner[3]
        given = sweep.tuples.setdefault(maker[OWN_SLOT], {})
        if g is not None:
            given[self.k] = as_array(given[self.k] + g) if self.k in given else g
        return [(maker, _TUPLE_TOKEN)]


def select(maker: Owner, k: int) -> Owner:
    """Record the k-th output of a record with several."""
    aval = AVALS.of_type(*maker[-1].outputs[k])
    owner = TAPE.append(SELECT, aval, maker[OWN_SLOT], 0, (maker, None, SelectFrame(k)))
    if MODE.special:
        note_origin(owner)
    return owner


# -- which frame an op needs ----------------------------------------------------------------------


def needs_frame(op: SweptOp, z: np.ndarray, values: list[Any]) -> bool:
    """Whether an op that is known to the sweep has to be recorded with its Python rules.

    The compiled sweep neither multiplies complex numbers nor unpacks values packed by hooks.
    """
    if not isinstance(op, (Elementwise, Reduction)):
        return False
    if MODE.special and MODE.thread.saved_hooks and op.saved:
        return True
    if z.dtype.kind == "c" or any(
        isinstance(value, Tensor) and value._a.dtype.kind == "c" for value in values
    ):
        if op.real:
            raise TypeError(
                f"{op.name}: has no derivative for complex numbers; use real, imag or abs first"
            )
        return not op.saves_nothing
    return False
