"""Traced tensors: what a function sees in place of its arguments while it is recorded.

While `tapegrad.jit` records a function, an argument is a `Traced`. It stands for the values of all
calls: it has a shape and a dtype, but no array. An op of traced tensors is computed on examples,
for the shape and the dtype of its result, and adds a `Node` to the recording.

Code that asks for the values (an ``if``, ``float``, ``np.asarray``) raises `RecordingError`. What a
recording cannot express, but ops on tensors can, raises `NotRecordedError`, which does not reach
the user: the function then runs op by op.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tapegrad.eager.frames import is_own_file
from tapegrad.eager.modes import MODE, ModeContext
from tapegrad.eager.tensor import Tensor
from tapegrad.ops.kinds import SweptOp
from tapegrad.ops.op import Op

_WAYS_OUT = (
    "Use tapegrad.where to choose by values, pass what decides as an argument in static_argnums, "
    "or write a loop for tapegrad.njit"
)
_CHOOSES = "chooses by the value of a traced tensor (if, while, and, or, assert)"
_ASKS = "asks for the value of a traced tensor (float, int, item, numpy, a function of arrays)"
CAPTURED = "a tensor from outside requires grad"
IN_PLACE = "a tensor is changed in place"
ENDED = "jit: a traced tensor is used after the function has returned; return it instead"


class RecordingError(RuntimeError):
    """Raised where a function that is recorded depends on values in a way that is not recorded."""


class NotRecordedError(Exception):
    """Raised for what a recording cannot express, although ops on tensors can."""


def _depends_on_value(what: str) -> RecordingError:
    """Return the error for a line outside of this package that depends on a value."""
    frame = sys._getframe(2)
    while frame.f_back is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    filename, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(filename, number).strip()
    line = f"line {number} of {Path(filename).name}" + (text and f", `{text}`,")
    return RecordingError(f"jit: {line} {what}, which may differ between calls. {_WAYS_OUT}")


class Node:
    """A value of a recorded function.

    Attributes
    ----------
    name
        The op or function that computes it, ``"input"`` or ``"constant"``.
    op
        The op; None for other functions.
    args
        What it is computed from: nodes, numbers, and lists of these.
    parameters
        The other arguments, by name.
    shape, dtype
        Those of the value.
    example
        The value when recorded; None afterwards, but for constants.
    """

    __slots__ = ("args", "dtype", "example", "name", "op", "parameters", "shape")

    def __init__(
        self,
        name: str,
        example: np.ndarray,
        args: tuple[Any, ...] = (),
        parameters: dict[str, Any] | None = None,
        op: Op | None = None,
    ) -> None:
        self.name = name
        self.op = op
        self.args = args
        self.parameters = parameters or {}
        self.shape = example.shape
        self.dtype = example.dtype
        self.example: np.ndarray | None = example

    def inputs(self) -> Iterator[Node]:
        """Yield the nodes that it is computed from."""
        return nodes_in((self.args, self.parameters))


def nodes_in(value: Any) -> Iterator[Node]:
    """Yield the nodes in nested lists, tuples and dicts."""
    if isinstance(value, Node):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from nodes_in(item)
    elif type(value) is dict:
        for item in value.values():
            yield from nodes_in(item)


class Trace:
    """A function that is being recorded.

    Attributes
    ----------
    nodes
        The values computed so far.
    constants
        Nodes of arrays from outside, by their ids.
    captured
        The tensors from outside, which did not require grad.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[int, Node] = {}
        self.captured: list[Tensor] = []
        self.is_open = True
        self._kept: list[Any] = []  # arrays from outside, whose ids must not be used again

    def add(self, node: Node) -> Traced:
        """Add a value; return the tensor that stands for it."""
        self.nodes.append(node)
        made = Traced()
        made._node = node
        made._trace = self
        return made

    def node_of(self, value: Any) -> Any:
        """Return the nodes of tensors and arrays, in lists too; other values are not changed."""
        kind = type(value)
        if kind is Traced:
            if value._trace is not self:
                raise RecordingError(ENDED)
            return value._node
        if kind in (list, tuple):
            return [*map(self.node_of, value)]
        if isinstance(value, Tensor):
            if value._is_tracked:
                raise NotRecordedError(CAPTURED)
            self.captured.append(value)
            value = value._a
        if isinstance(value, np.ndarray):
            return self.constant(value)
        if isinstance(value, np.generic):
            return value.item() if value.dtype in (np.float64, np.int64, np.bool_) else value
        return value

    def constant(self, array: np.ndarray) -> Node:
        """Return the node of an array from outside, which is copied.

        It may be a work array, which the function writes to between two uses.
        """
        found = self.constants.get(id(array))
        if found is None or not _same_elements(found.example, array):
            found = self.constants[id(array)] = Node("constant", array.copy())
            self._kept.append(array)
        return found


def _same_elements(one: Any, other: np.ndarray) -> bool:
    return bool(one.shape == other.shape and one.tobytes() == other.tobytes())


def _copied(value: Any) -> Any:
    """Return a parameter with copies of arrays, which the function may write to afterwards."""
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value.copy() if isinstance(value, np.ndarray) else value


class record(ModeContext):  # noqa: N801
    """The context in which a function is recorded in this thread."""

    def now(self) -> Any:
        return MODE.thread.trace

    def enter(self) -> Trace:
        self._trace = Trace()
        MODE.set_trace(self._trace)
        return self._trace

    def leave(self, before: Any) -> None:
        self._trace.is_open = False
        MODE.set_trace(before)


class Traced(Tensor):
    """A value of a function that is recorded."""

    __slots__ = ("_node", "_trace")

    _node: Node
    _trace: Trace
    _own = None
    _meta = None

    @property
    def _a(self) -> np.ndarray:
        if not self._trace.is_open:
            raise RecordingError(ENDED)
        raise NotRecordedError("a function that needs the array of a tensor is called")

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.shape

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self._node.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype:
        return self._node.dtype

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def itemsize(self) -> int:
        return self._node.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._node.shape[0]

    def __bool__(self) -> bool:
        raise _depends_on_value(_CHOOSES) if self._trace.is_open else RecordingError(ENDED)

    def __repr__(self) -> str:
        return f"Traced({self._node.name}, shape={self.shape}, dtype={self.dtype})"

    def _refuse_value(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: the value may differ between calls."""
        raise _depends_on_value(_ASKS) if self._trace.is_open else RecordingError(ENDED)

    __float__ = __int__ = __index__ = __complex__ = _refuse_value
    numpy = item = tolist = __array__ = _refuse_value

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        if MODE.thread.trace is None:  # ops do not look for traced tensors then
            raise RecordingError(ENDED)
        return Tensor.__array_ufunc__(self, *args, **kwargs)

    def ensure_meta(self) -> Any:
        """Refuse (internal)."""
        self._refuse()

    def is_inference(self) -> bool:
        """Return False: it is no tensor of the mode in which it is recorded."""
        return False

    def detach(self) -> Tensor:
        """Return the same value, which derivatives do not pass."""
        return stopped(self)

    def clone(self) -> Tensor:
        """Return the tensor itself: it is never written to."""
        return self

    copy = clone

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a recorded function computes values and nothing else."""
        if not self._trace.is_open:
            raise RecordingError(ENDED)
        raise NotRecordedError("the graph of a tensor is used, or a tensor is changed in place")

    requires_grad_ = backward = __deepcopy__ = __setitem__ = _refuse
    register_hook = register_post_accumulate_grad_hook = retain_grad = detach_ = _refuse
    resize_ = squeeze_ = swapaxes_ = t_ = transpose_ = unsqueeze_ = expand_dims_ = _refuse
    grad = grad_fn = output_nr = data = retains_grad = property(_refuse, _refuse)
    requires_grad = is_leaf = property(_refuse, _refuse)


def holds_traced(values: Iterable[Any]) -> bool:
    """Whether one of some values is traced, or is a list, tuple or dict with one that is."""
    for value in values:
        kind = type(value)
        if kind is Traced:
            return True
        if kind in (list, tuple) and holds_traced(value):
            return True
        if kind is dict and holds_traced(value.values()):
            return True
    return False


def refuse_traced(values: Iterable[Any], what: str) -> None:
    """Raise if one of some values is traced, where a recording has no form for that."""
    if MODE.special and MODE.thread.trace is not None and holds_traced(values):
        raise NotRecordedError(what)


def example_of(value: Any) -> Any:
    """Return a value with the examples of nodes in place of these."""
    if isinstance(value, Node):
        return value.example
    return [*map(example_of, value)] if type(value) is list else value


def apply(op: Op, bound: dict[str, Any]) -> Any:
    """Record an op of which an argument is traced; return what stands for its result."""
    trace = MODE.thread.trace
    args = tuple(trace.node_of(bound[name]) for name in op.arguments)
    parameters = {name: _copied(bound[name]) for name in op.parameters}
    if holds_traced(parameters.values()):
        raise NotRecordedError(f"an argument of {op.name} that is no array depends on others")
    examples = [*map(example_of, args)]
    compute = op.forward if isinstance(op, SweptOp) else op.function
    with np.errstate(all="ignore"):
        found = compute(*examples, **parameters)
    if isinstance(found, tuple):
        raise NotRecordedError(f"{op.name} has several results")
    return _finished(trace, Node(op.name, np.asarray(found), args, parameters, op))


def call(name: str, compute: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the call of another function; return what stands for its result.

    Parameters
    ----------
    name
        Its public name.
    compute
        Computes it on arrays.
    args, kwargs
        The arguments of the call.
    """
    trace = MODE.thread.trace
    given = tuple(map(trace.node_of, args))
    if holds_traced(kwargs.values()):
        raise NotRecordedError(f"an argument of {name} by name depends on others")
    with np.errstate(all="ignore"):
        found = compute(*map(example_of, given), **kwargs)
    if isinstance(found, (tuple, list)):
        raise NotRecordedError(f"{name} has several results")
    return _finished(trace, Node(name, np.asarray(found), given, kwargs))


def _finished(trace: Trace, node: Node) -> Traced:
    made = trace.add(node)
    return made if MODE.recording else stopped(made)


def stopped(x: Traced) -> Traced:
    """Return a value that derivatives do not pass."""
    node = x._node
    assert node.example is not None
    if node.dtype.kind != "f" or node.name == "stop_gradient":
        return x
    return x._trace.add(Node("stop_gradient", node.example, (node,)))
