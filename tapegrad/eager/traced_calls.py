"""Ops and functions of traced tensors: what is computed is recorded.

A computation is a `Step`. It is done with examples, for the shape and the dtype of its result, and
again when a tensor that its result is a view of was written to. Elements of large results are
computed only if something needs them, as a callback does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Node, are_known, computed, copy_with_layout, example_of, nodes_in
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import (
    ENDED,
    NotRecordedError,
    RecordingError,
    ShownAs,
    Trace,
    Traced,
    recorded,
    stopped,
)
from tapegrad.eager.values import selects
from tapegrad.ops import indexing, products, shape
from tapegrad.ops.table.array_kinds import Opaque
from tapegrad.ops.table.kinds import Broadcasting, SweptOp
from tapegrad.ops.table.op import TABLE, Op, memory_order

_LARGE = 1 << 14  # elements: what they are takes longer than the rest of a recording


class Step(NamedTuple):
    """A computation that is recorded.

    Attributes
    ----------
    name
        The op or function.
    compute
        Computes it on arrays.
    parameters
        Arguments by name, which do not depend on those of the recorded function.
    op
        The op; None for other functions.
    """

    name: str
    compute: Callable[..., Any]
    parameters: dict[str, Any]
    op: Op | None = None

    def computed(self, args: tuple[Any, ...]) -> tuple[Any, bool]:
        """Return what it is for the examples of arguments: nodes, numbers and lists of these.

        The second result is whether elements are unset.
        """
        # what is opaque may refuse, or warn of, what no elements of the program are
        if isinstance(self.compute, np.ufunc) or not isinstance(self.op, (NoneType, Opaque)):
            most, waits = 1, False  # elements that the result may have; whether some are unset
            shape: Any = None
            for node in nodes_in(args):
                if node.shape != shape:
                    most *= node.like.size
                    shape = node.shape
                waits = waits or node.is_unset
            if (waits or most >= _LARGE) and not are_known(args) and not self._is_false(args):
                shown = [*map(_like, args)]
                with np.errstate(all="ignore"):
                    found = self._unset(shown, waits)
                if found is not None:
                    return found, True
        return computed(self.compute, args, self.parameters), False

    def _unset(self, args: list[Any], waits: bool) -> Any:
        """Return an array for a result whose elements need not be known; None if there is none.

        `waits` is whether elements of arguments are unset.
        """
        if self.op is products.matmul:
            if all(isinstance(x, np.ndarray) and x.ndim in (2, 3) for x in args):
                return _product_like(self.compute, *args)
        if (
            (isinstance(self.op, Broadcasting) or isinstance(self.compute, np.ufunc))
            and all(isinstance(x, (np.ndarray, *_NUMBERS)) for x in args)
            and all(x.flags.c_contiguous for x in args if isinstance(x, np.ndarray))
        ):
            shape = np.broadcast_shapes(*map(np.shape, args))
            if math.prod(shape) >= _LARGE:
                dtype = self.compute(*map(_corner, args), **self.parameters).dtype
                return np.empty(shape, dtype) if dtype.kind in _UNSET_KINDS else None
        if waits:
            found = self.compute(*args, **self.parameters)
            if isinstance(found, (np.ndarray, np.generic)) and found.dtype.kind in _UNSET_KINDS:
                return np.asarray(found)
        return None

    def node(
        self, trace: Trace, args: tuple[Any, ...], found: tuple[Any, bool] | None = None
    ) -> Node:
        """Record it for arguments; return its result.

        Parameters
        ----------
        trace
            The recording.
        args
            The arguments.
        found
            What it is for their examples, if that is known.
        """
        value, is_unset = self.computed(args) if found is None else found
        example = np.asarray(value)
        if are_known(args) or self._is_false(args):
            return Node("constant", example)
        named = self.parameters, self.op, self.compute, is_unset
        return trace.add(Node(self.name, example, args, *named))

    def _is_false(self, args: tuple[Any, ...]) -> bool:
        """Whether it is the conjunction with something that is known to be false."""
        if self.name not in ("bitwise_and", "logical_and"):
            return False
        return any(are_known([arg]) and not np.any(example_of(arg)) for arg in args)

    def nodes(self, trace: Trace, args: tuple[Any, ...], found: Iterable[Any]) -> list[Node]:
        """Record it for arguments; return its results, of which there are several."""
        examples = [np.asarray(part) for part in found]
        if are_known(args):
            return [Node("constant", example) for example in examples]
        whole = trace.add(Node(self.name, (), args, self.parameters, self.op, self.compute))
        whole.results = len(examples)
        return [
            trace.add(Node("item", example, (whole,), {"number": number}))
            for number, example in enumerate(examples)
        ]


_NUMBERS = (bool, int, float, complex, np.generic)
_UNSET_KINDS = "bfc"  # elements of integers may be indices, which are in a range


def _like(value: Any) -> Any:
    """Return a value with arrays of the layouts of nodes in place of these."""
    if isinstance(value, Node):
        return value.like
    return [*map(_like, value)] if type(value) is list else value


def _product_like(compute: Callable[..., Any], x: Any, y: Any) -> Any:
    """Return an array like the product of matrices; raise what the product raises."""
    none = compute(x[..., :0, :], y[..., :0])  # of no rows and no columns
    if none.dtype.kind not in _UNSET_KINDS:
        return None
    return np.empty((*none.shape[:-2], x.shape[-2], y.shape[-1]), none.dtype)


def _corner(value: Any) -> Any:
    """Return the first element of an array, as one with the same number of axes."""
    return value[(slice(1),) * value.ndim] if isinstance(value, np.ndarray) else value


def known(value: Any, what: str) -> Any:
    """Return a parameter, with copies of arrays, which the function may write to afterwards.

    Raises
    ------
    NotRecordedError
        If it depends on the arguments of the recorded function; `what` says what it is.
    """
    if type(value) in (list, tuple):
        return type(value)(known(item, what) for item in value)
    if type(value) is dict:
        return {name: known(item, what) for name, item in value.items()}
    if type(value) is Traced:
        if not value.is_known():
            raise NotRecordedError(f"{what} depends on others")
        return value._node.example.copy()
    if isinstance(value, Tensor) and not value._is_tracked:
        return value._read().copy()
    return value.copy() if isinstance(value, np.ndarray) else value


def apply(op: Op, bound: dict[str, Any]) -> Any:
    """Record an op of which an argument is traced; return what stands for its result."""
    if op is indexing.gather and is_unknown(bound["index"]):
        return read_item(bound["x"], bound["index"])
    what = f"an argument of {op.name} that is no array"
    parameters = {name: known(bound[name], what) for name in op.parameters}
    compute = op.forward if isinstance(op, SweptOp) else op.function
    step = Step(op.name, compute, parameters, op)
    return _recorded(step, tuple(bound[name] for name in op.arguments))


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
    kwargs = known(kwargs, f"an argument of {name} by name")
    return _recorded(Step(name, compute, kwargs), args)


def _recorded(step: Step, given: tuple[Any, ...]) -> Any:
    """Record a step; return what stands for its result."""
    trace: Trace | None = MODE.thread.trace
    if trace is None:
        raise RecordingError(ENDED)
    given = tuple(map(recorded, given))
    depends = any(map(is_narrow, _leaves(given)))  # on what numbers there are
    if depends:
        given = tuple(map(_with_dtype, given))
    args = tuple(map(trace.node_of, given))
    read = nodes_in(args)
    numbers = [arg for arg in read if arg in trace.numbers]
    if numbers and depends:
        raise NotRecordedError("a number of Python that is computed, beside arrays of other dtypes")
    found, is_unset = step.computed(args)
    if isinstance(found, (tuple, list)):
        made = [_marked(trace.tensor(node)) for node in step.nodes(trace, args, found)]
        return type(found)(*made) if hasattr(found, "_fields") else type(found)(made)
    node = step.node(trace, args, (found, is_unset))
    if len(numbers) == len(read):
        trace.numbers.add(node)
    result = trace.tensor(node)
    for number, (value, arg) in enumerate(zip(given, args, strict=True)):
        if type(value) is Traced and np.may_share_memory(arg.like, node.like):
            _set_base(result, value, arg, _shown(step, args, number))
            break
    else:
        if step.op is shape.reshape and type(given[0]) is Traced and _has_order(given[0]):
            # a copy because of the order of its axes in memory, which compiled code may change
            result._is_shared = True
            given[0].share()
    return _marked(result)


def _has_order(value: Traced) -> bool:
    """Whether the axes of an array are in another order in memory, whatever gaps there are."""
    return memory_order(value) != (*range(value.ndim),)


_WIDE = (np.dtype(np.float64), np.dtype(np.complex128), np.dtype(np.int64), np.dtype(np.bool_))


def is_narrow(value: Any) -> bool:
    """Whether the dtype of a result depends on what a number beside an array is.

    A number of Python takes the dtype of the array, one of NumPy has a dtype of its own.
    """
    return isinstance(value, (Tensor, np.ndarray, np.generic)) and value.dtype not in _WIDE


def _with_dtype(value: Any) -> Any:
    """Return numbers of NumPy as arrays, also in lists; others would become those of Python."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    return type(value)(map(_with_dtype, value)) if type(value) in (list, tuple) else value


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if type(value) in (list, tuple):
            yield from _leaves(value)
        else:
            yield value


def _set_base(result: Traced, base: Any, node: Node, view: ShownAs) -> None:
    """Note that a result shows another tensor, whose node is given."""
    if type(base) is not Traced:  # from outside: it is not written to
        result._is_shared = True
        return
    is_own = base._trace is result._trace
    result._base, result._view, result._shown = base, view, node
    if not is_own:
        result._view, result._shown = ShownAs(_refuse_stale, None), base._node


def _refuse_stale(base: Node) -> Node:
    raise NotRecordedError("a tensor is used that may be a view of one that was changed in place")


def _marked(result: Traced) -> Traced:
    """Return a result, which derivatives do not pass if ops are not recorded."""
    return result if MODE.recording else stopped(result)


# -- views -----------------------------------------------------------------------------------------


def _shown(step: Step, args: tuple[Any, ...], number: int) -> ShownAs:
    """Return how the result of a step shows one of its arguments."""
    trace: Trace = MODE.thread.trace
    shown = args[number].shape

    def again(base: Node) -> Node:
        return step.node(trace, (*args[:number], base, *args[number + 1 :]))

    def written(base: Node, view: Node) -> Node:
        parameters = step.parameters
        if step.op is shape.getitem:
            return assigned(trace, base, view, parameters["index"])
        if step.op is shape.reshape:
            return _view_of(shape.reshape, view, shape=shown)
        axes = parameters.get("axes")
        if axes is not None:
            axes = tuple(np.argsort(shape.permutation_of(axes, len(shown))).tolist())
        return _view_of(step.op, view, **({"axes": axes} if "axes" in parameters else {}))

    can_write = step.op in (shape.getitem, shape.reshape, shape.transpose, _matrix_transpose)
    return ShownAs(again, written if can_write else None)


_matrix_transpose = TABLE["matrix_transpose"]


def _view_of(op: Any, node: Node, **parameters: Any) -> Node:
    return Step(op.name, op.function, parameters, op).node(MODE.thread.trace, (node,))


# -- indices ---------------------------------------------------------------------------------------


def read_item(source: Any, index: Any) -> Any:
    """Record ``source[index]`` for an index that depends on the arguments."""
    trace: Trace = MODE.thread.trace
    x = trace.node_of(source)
    places = _checked(trace, x.shape, index)

    def again(base: Node) -> Node:
        example = np.asarray(base.example[example_of_index(places)])
        return trace.add(Node("item_at", example, (base, places)))

    def written(base: Node, view: Node) -> Node:
        return assigned(trace, base, view, places)

    result = trace.tensor(again(x))
    if not result.shape and MODE.thread.items_are_values and not ends_in_array(index):
        return _marked(result)
    if not any(np.shape(part) for part in places if part is not None):
        numbers = [part for part in _parts(index) if type(part) is Traced]
        is_view = all(map(selects, numbers))
        shown = ShownAs(again, written) if is_view else ShownAs(_refuse_stale, None)
        _set_base(result, source, x, shown)
    return _marked(result)


def ends_in_array(index: Any) -> bool:
    """Whether an index shows an array without axes rather than an item: ``x[0, ...]``."""
    return index is Ellipsis or (type(index) is tuple and any(part is Ellipsis for part in index))


def assigned(trace: Trace, x: Node, value: Any, index: Any) -> Node:
    """Record a copy of a value with another one at an index; return its node.

    Parameters
    ----------
    trace
        The recording.
    x
        The value, a node.
    value
        A node or a number.
    index
        The index, as `known` or `checked_index` return it.
    """
    example = copy_with_layout(x.example, x.like)  # the tensor keeps its layout
    example[example_of_index(index)] = example_of(value)
    if type(index) is list:
        return trace.add(Node("put_at", example, (x, value, index)))
    if are_known((x, value)):
        return Node("constant", example)
    return trace.add(Node("put", example, (x, value), {"index": index}, indexing.put))


def added(trace: Trace, x: Node, value: Node, index: Any) -> Node:
    """Record a copy of a value with another one added at an index; repeated indices add up.

    The arguments are those of `assigned`.
    """
    example = copy_with_layout(x.example, x.like)
    np.add.at(example, example_of_index(index), value.example)
    if type(index) is list:
        return trace.add(Node("added_at", example, (x, value, index)))
    if are_known((x, value)):
        return Node("constant", example)
    return trace.add(Node("add_at", example, (x, value), {"index": index}, indexing.add_at))


def index_of(trace: Trace, shape: tuple[int, ...], index: Any) -> Any:
    """Return an index of an array of a shape, as a list of checked parts if it is not known."""
    if is_unknown(index):
        return _checked(trace, shape, index)
    return tuple(map(_known_part, index)) if type(index) is tuple else _known_part(index)


def _known_part(part: Any) -> Any:
    """Return a part of an index with an array in place of a sequence."""
    part = known(part, "an index")
    if type(part) not in (list, tuple, range):
        return part
    array = np.asarray(part)
    return array if array.size else array.astype(np.intp)


def is_unknown(index: Any) -> bool:
    """Whether a part of an index depends on the arguments of the recorded function."""
    if type(index) in (list, tuple):
        return any(map(is_unknown, index))
    if type(index) is slice:
        return any(map(is_unknown, (index.start, index.stop, index.step)))
    return type(index) is Traced and not index.is_known()


def _parts(index: Any) -> tuple[Any, ...]:
    return index if type(index) is tuple else (index,)


def _checked(trace: Trace, shape: tuple[int, ...], index: Any) -> list[Any]:
    """Return the parts of an index; those that depend on arguments are checked when it is used."""
    parts: list[Any] = []
    for part in _parts(index):
        if type(part) is Traced and not part.is_known():
            if part.dtype == np.bool_ and part.shape:
                _check_masks(trace, shape, index)
                parts += np.nonzero(part)
                continue
            if part.dtype != np.int64:
                raise NotRecordedError(f"an index of dtype {part.dtype} depends on the arguments")
            parts.append(part)
        elif is_unknown(part):
            raise NotRecordedError("a bound of a slice, or a list, depends on the arguments")
        else:
            parts += without_masks(_known_part(part))
    if any(part is Ellipsis for part in parts):
        at = next(k for k, part in enumerate(parts) if part is Ellipsis)
        taken = sum(part is not None for part in parts) - 1
        check_ellipsis(parts, at, len(shape) - taken)
        parts[at : at + 1] = [slice(None)] * (len(shape) - taken)
    count = sum(part is not None for part in parts)
    if count > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {count} were "
            "indexed"
        )
    axis = 0
    for k, part in enumerate(parts):
        if type(part) is Traced:
            parts[k] = checked(trace.node_of(part), shape[axis])
        axis += part is not None
    return parts


def _check_masks(trace: Trace, shape: tuple[int, ...], index: Any) -> None:
    """Raise NumPy's error for an index with masks of other shapes than the axes they are for."""
    shown = trace.node_of(_parts(index))
    example = example_of(shown) if nodes_in(shown) else shown
    np.broadcast_to(np.False_, shape)[tuple(example)]


def without_masks(part: Any) -> Sequence[Any]:
    """Return what a part of an index stands for: a mask for index arrays, others for themselves."""
    if not isinstance(part, (bool, np.bool_, np.ndarray)) or np.result_type(part) != np.bool_:
        return [part]
    if not np.ndim(part):
        raise NotRecordedError("an index that is True or False")
    return np.nonzero(np.asarray(part))


def check_ellipsis(parts: list[Any], at: int, axes: int) -> None:
    """Refuse to record an index with an ellipsis of no axes between its arrays, after other axes.

    NumPy has the axes of these arrays first then, as if something were between them.
    """
    advanced = int, np.integer, np.ndarray, Traced, Node
    places = [k for k, part in enumerate(parts) if isinstance(part, advanced)]
    has_array = any(not isinstance(parts[k], (int, np.integer)) for k in places)
    if not axes and has_array and 0 < places[0] < at < places[-1]:
        raise NotRecordedError("an ellipsis of no axes stands between the arrays of an index")


def checked(index: Node, extent: int) -> Node:
    """Record that indices of an axis are checked, and counted from its start."""
    lower, upper = index.parameters.get("range", (-1, 0))
    if index.name == "input" and lower >= 0 and upper <= extent:  # of a loop
        return index
    trace: Trace = MODE.thread.trace
    return trace.add(Node("checked_index", np.zeros_like(index.example), (index, extent)))


def example_of_index(index: Any) -> Any:
    """Return an index with examples in place of nodes."""
    if type(index) is not list:
        return index
    return tuple(part.example if isinstance(part, Node) else part for part in index)


# -- values ----------------------------------------------------------------------------------------


def made_inside(array: np.ndarray) -> Traced:
    """Return the tensor for an array that the recorded function has made itself."""
    trace: Trace = MODE.thread.trace
    return trace.tensor(Node("constant", array))
