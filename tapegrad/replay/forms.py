"""How the values of a recorded function are written in compiled code."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.eager.numeric import PASSIVE
from tapegrad.eager.traced import NotRecordedError
from tapegrad.eager.traced_calls import check_ellipsis, without_masks
from tapegrad.ops.shape import permutation_of
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import normalize_axes

FLOAT, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
INTEGER, BOOLEAN = np.dtype(np.int64), np.dtype(np.bool_)
NARROW = frozenset(map(np.dtype, ("i1", "i2", "i4", "u1", "u2", "u4")))  # read as int64
COMPLEX = np.dtype(np.complex128)
FLOATS = (FLOAT, SINGLE)


class Form(enum.Enum):
    """What a value is in compiled code."""

    GIVEN = enum.auto()  # an argument or a constant
    MAP = enum.auto()  # computed for each element
    VIEW = enum.auto()  # elements of another value
    SUM = enum.auto()  # added up in the loop that computes the elements
    ROWS = enum.auto()  # a reduction of rows of an array
    CALL = enum.auto()  # computed by a function of arrays
    PART = enum.auto()  # one of several results
    BLOCK = enum.auto()  # a loop, a branch, or the derivative of a function


_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",  # numba's function rounds the quotient first
    "power": "**",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
# what takes complex values apart, and puts them together (`tapegrad.replay.complex_values`)
_PARTS = {"real": "real", "imaginary": "imag"}
_OF_COMPLEX = ("input", "constant", "add", "multiply")
_BOUNDS = {"at_least": ">=", "at_most": "<="}
_OF_BOOLEANS = {
    "logical_and": "&", "logical_or": "|", "logical_xor": "!=", "logical_not": "not",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "!=", "invert": "not",
}  # fmt: skip
_TESTS = ("isfinite", "isinf", "isnan")
_OF_MATH = ("erf", "erfc")  # which loops compute by vector instructions
_OF_INTEGERS = (
    *("add", "subtract", "multiply", "negative", "positive", "where", "floor_divide", "mod"),
    *("at_least", "at_most", "maximum", "minimum", "absolute", "square"),
)
_WITHOUT_ROUNDING = ("where", "at_least", "at_most", "stop_gradient", "negative", "positive")
_OPERATORS_OF_SINGLES = ("add", "subtract", "multiply", "divide", "square")
VIEWS_OF_ELEMENTS = (
    *("getitem", "item_at", "transpose", "matrix_transpose", "broadcast_to", "diagonal", "gather"),
)
"""Views whose elements loops find in the array that they show."""
_VIEWS = (*VIEWS_OF_ELEMENTS, "reshape")
# calls that are written in a way that fits to each dtype
CALLS_OF_SINGLES = (
    *("concatenate", "embed", "matmul", "put", "put_at", "add_at", "added_at", "scatter_add"),
)
BLOCKS = ("for_loop", "while_loop", "switch", "derivative")
_ROWS = ("max", "min")
_ROWS_OF_CALLS = ("all", "any", "argmax", "argmin")  # functions that are no ops


def form_of(node: Node) -> Form:
    """Return what a value is in compiled code."""
    if node.name in ("input", "constant"):
        return Form.GIVEN
    if node.name == "item":
        return Form.PART
    if node.name in BLOCKS:
        return Form.BLOCK
    kind = node.op.kind if node.op is not None else ""
    if is_outer_power(node):
        return Form.CALL
    if kind == "elementwise" or node.name == "stop_gradient" or _is_test(node):
        return Form.MAP
    if node.name == "astype" or node.name in _PARTS:
        return Form.MAP
    if node.name in _VIEWS:
        return Form.VIEW
    if kind == "reduction" and not axes_of(node):
        return Form.MAP  # of each element alone
    if node.name == "sum" and node.dtype in (*FLOATS, INTEGER):
        return Form.SUM
    if node.name == "top":  # columns in the loops that compute the elements
        return Form.ROWS if are_last(node) else Form.SUM
    if node.name in _ROWS and node.dtype in FLOATS:
        return Form.ROWS
    if node.name in _ROWS_OF_CALLS and _has_only_axes(node):
        return Form.ROWS
    return Form.CALL


def is_outer_power(node: Node) -> bool:
    """Whether a value is all numbers of an array to the powers of all numbers of another one."""
    if node.name != "power" or not all(isinstance(arg, Node) for arg in node.args):
        return False
    x, y = node.args
    if len(node.shape) != 2 or {node.dtype, x.dtype, y.dtype} != {FLOAT}:
        return False
    return x.shape == (node.shape[0], 1) and y.shape in (node.shape[1:], (1, node.shape[1]))


class OtherShapeError(Exception):
    """A value has another shape than when it was recorded, so that the function runs op by op."""


def other_shape(node: Node) -> str:
    """Return why the function runs op by op if a value has another shape than when recorded."""
    name = node.args[0].name if node.name == "item" else node.name
    return f"the shape of what {name} returns depends on values"


def check_compiled(node: Node) -> None:
    """Raise if compiled code does not compute a value, or differently from NumPy for its dtype."""
    if node.dtype is None:
        if node.decides_by_values and node.name != "nonzero":
            raise NotRecordedError(f"{node.name} has several results and decides by values")
        return
    if node.dtype == COMPLEX and node.name in _OF_COMPLEX:
        return
    if node.dtype in NARROW and node.name == "input":
        return
    if node.dtype not in (*FLOATS, INTEGER, BOOLEAN):
        raise NotRecordedError(f"{node.name} has dtype {node.dtype}")
    if node.name in ("input", "constant"):
        return
    if form_of(node) is Form.CALL and node.name not in CALLS_OF_SINGLES:
        if SINGLE in (node.dtype, *(arg.dtype for arg in node.inputs())):
            raise NotRecordedError(f"{node.name} of float32")
    if node.dtype == INTEGER and form_of(node) is Form.MAP and not _is_of_integers(node):
        raise NotRecordedError(f"{node.name} of integers")
    if node.dtype == BOOLEAN and form_of(node) is Form.MAP and not _is_test(node):
        if node.name not in ("where", "positive") and not _is_conversion(node):
            raise NotRecordedError(f"{node.name} of booleans")


def _is_of_integers(node: Node) -> bool:
    """Whether compiled code computes integers as NumPy does."""
    if node.name == "power":
        return type(node.args[1]) is int and node.args[1] >= 0
    return node.name in _OF_INTEGERS or _is_conversion(node)


def _is_conversion(node: Node) -> bool:
    """Whether a value is another one in another dtype, of real numbers."""
    known = (*FLOATS, INTEGER, BOOLEAN)
    is_known = node.name == "astype" and node.args[0].dtype in (*known, *NARROW)
    return is_known and node.dtype in known


def _is_test(node: Node) -> bool:
    """Whether a value is the truth of a comparison."""
    if node.op is not None or node.dtype != BOOLEAN:
        return False
    return (
        node.name in _OPERATORS
        or node.name in _TESTS
        or (
            node.name in _OF_BOOLEANS
            and all(getattr(arg, "dtype", type(arg)) in (BOOLEAN, bool) for arg in node.args)
        )
    )


def expression(node: Node, args: list[str]) -> str:
    """Return the text that computes an element from those of the arguments.

    Elements of float32 are rounded by each op, as NumPy's are. Functions of them are computed with
    float64, for which there is vector math.
    """
    if node.dtype != SINGLE:
        return _computed(node, args)
    is_exact = node.name in _WITHOUT_ROUNDING
    if not is_exact and node.name not in (*_OPERATORS_OF_SINGLES, "astype"):
        pairs = zip(node.args, args, strict=True)
        args = [_as_double(arg, text) if isinstance(arg, Node) else text for arg, text in pairs]
    return f"np.float32({_computed(node, args)})"


def _as_double(node: Node, text: str) -> str:
    # numba has no float() of booleans
    return f"{'np.float64' if node.dtype == np.bool_ else 'float'}({text})"


def is_of_singles(node: Node) -> bool:
    """Whether Python's numbers become float32 where a value is computed."""
    dtypes = {arg.dtype for arg in node.args if isinstance(arg, Node)}
    return SINGLE in (node.dtype, *dtypes) and FLOAT not in dtypes


def _computed(node: Node, args: list[str]) -> str:
    name = node.name
    if name == "power" and isinstance(node.args[1], int) and node.args[1] < 0:
        args[1] = number(float(node.args[1]))  # division by zero gives inf
    if name == "power" and isinstance(node.args[1], Node) and node.args[1].dtype == INTEGER:
        args[1] = f"float({args[1]})"  # for the same reason
    if name == "floor_divide" and node.dtype == INTEGER:
        return f"np.floor_divide({args[0]}, {args[1]})"  # of 0, a warning of NumPy
    if name in _OPERATORS:
        return f"{args[0]} {_OPERATORS[name]} {args[1]}"
    if name in _TESTS:
        return f"np.{name}({args[0]})"
    if name in _OF_BOOLEANS:
        operator = _OF_BOOLEANS[name]
        return f"not {args[0]}" if operator == "not" else f"{args[0]} {operator} {args[1]}"
    if name == "where":
        return f"{args[1]} if {args[0]} else {args[2]}"
    if name in _PARTS:
        return f"{args[0]}.{_PARTS[name]}"
    if name in _BOUNDS:
        x, y = args
        return f"{x} if ({x} {_BOUNDS[name]} {y}) | ({x} != {x}) else {y}"
    if name == "stop_gradient":
        return f"tg.stop_gradient({args[0]})"
    if name == "astype":
        if node.dtype == INTEGER:
            return f"{'as_integer' if node.args[0].dtype in FLOATS else 'int'}({args[0]})"
        if node.dtype == BOOLEAN:
            return f"{args[0]} != 0"
        return _as_double(node.args[0], args[0]) if node.dtype == FLOAT else args[0]
    if node.name in ("sum", "max", "min", "logsumexp"):  # over no axes
        return args[0]
    unary = {"negative": "-{}", "positive": "+{}", "square": "{} * {}", "reciprocal": "1.0 / {}"}
    if name in unary:
        return unary[name].replace("{}", args[0])
    if name in _OF_MATH:
        return f"math.{name}({args[0]})"
    if isinstance(node.op, Elementwise) and not hasattr(np, name):
        return f"scalar_ops.{name}({', '.join(args)})"
    known = node.op is None or isinstance(node.op.function, np.ufunc)
    module = "np" if known and hasattr(np, name) else "tg"
    return f"{module}.{public_name(node)}({', '.join(args)})"


def kind_of(node: Node) -> str:
    """Return the text of the dtype of a new array, unless it is that of floats."""
    return "" if node.dtype == np.float64 else f", np.{node.dtype.name}"


def public_name(node: Node) -> str:
    """Return the public name of the function that computes a value."""
    if node.op is None:
        if node.name in PASSIVE:
            raise NotRecordedError(f"{node.name} has no compiled form")
        return node.name
    if node.name == "euclidean_norm" and len(axes_of(node)) <= 2:
        return "linalg.norm"
    if not node.op.names:
        raise NotRecordedError(f"{node.name} has no compiled form")
    return str(node.op.names[0])


def number(value: Any) -> str:
    """Return the text of a number that is known."""
    if type(value) is float:
        if value != value:
            return "np.nan"
        if value in (np.inf, -np.inf):
            return "np.inf" if value > 0 else "(-np.inf)"
        return repr(value) if math.copysign(1.0, value) > 0 else f"({value!r})"
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise NotRecordedError("an integer of more than 64 bits")
    if type(value) is complex:
        return f"complex({number(value.real)}, {number(value.imag)})"
    if type(value) in (int, bool):
        return repr(value) if value >= 0 else f"({value!r})"
    raise NotRecordedError(f"an argument of type {type(value).__name__}")


def literal(value: Any) -> str:
    """Return the text of an option of a function."""
    if type(value) in (int, float, bool, str, type(None)):
        return repr(value)
    if type(value) in (tuple, list):
        items = ", ".join(map(literal, value))
        return f"({items},)" if value else "()"
    raise NotRecordedError(f"an option of type {type(value).__name__}")


def axes_of(node: Node) -> tuple[int, ...]:
    """Return the axes of a reduction."""
    x, *axis = node.args
    return tuple(normalize_axes(axis[0] if axis else node.parameters.get("axis"), len(x.shape)))


def _has_only_axes(node: Node) -> bool:
    """Whether a function has an array and axes as arguments, and no others."""
    x, *axis = node.args
    is_plain = isinstance(x, Node) and len(axis) <= 1 and node.parameters.keys() <= {"axis"}
    return is_plain and bool(x.shape) and 0 not in x.shape


def are_last(node: Node) -> bool:
    """Whether a reduction is over the last axes."""
    axes, x = axes_of(node), node.args[0]
    return sorted(axes) == [*range(len(x.shape) - len(axes), len(x.shape))]


# -- views -----------------------------------------------------------------------------------------


def is_transpose(node: Node) -> bool:
    """Whether a value is a view whose last two axes are exchanged."""
    if node.name == "matrix_transpose":
        return True
    if node.name != "transpose" or len(node.shape) < 2:
        return False
    first = range(len(node.shape))
    order = permutation_of(node.parameters["axes"], len(first))
    return order == (*first[:-2], first[-1], first[-2])


def place_in_base(node: Node, index: list[str]) -> list[Any]:
    """Return the index of the element of the base that an element of a view is.

    Parts of it may be pairs of an array and the index of the element that is the part.
    """
    shape = node.args[0].shape
    if node.name == "transpose":
        order = permutation_of(node.parameters["axes"], len(shape))
        return [index[order.index(k)] for k in range(len(shape))]
    if node.name == "matrix_transpose":
        return [*index[:-2], index[-1], index[-2]]
    if node.name == "broadcast_to":
        return aligned(shape, index)
    if node.name == "reshape":
        return _joined_places(shape, node.shape, index)
    if node.name == "diagonal":
        return place_on_diagonal(len(shape), node.parameters, index)
    given = node.args[1] if node.name == "item_at" else node.parameters["index"]
    return place_of_item(shape, given, index)


def splits_axes(node: Node) -> bool:
    """Whether a value is a reshaped view whose axes are parts of axes of that.

    Loops find its elements in the array that the view shows, which would be copied to be reshaped.
    """
    if node.name != "reshape" or node.args[0].name not in VIEWS_OF_ELEMENTS:
        return False
    return 0 not in node.shape and _split(node.args[0].shape, node.shape) is not None


def _split(given: tuple[int, ...], wanted: tuple[int, ...]) -> list[list[int]] | None:
    """Return the axes of a shape that each axis of another one is split into, None if it is not."""
    found: list[list[int]] = []
    left = [*range(len(wanted))]
    for extent in given:
        parts: list[int] = []
        count = 1
        while count < extent and left:
            parts.append(left.pop(0))
            count *= wanted[parts[-1]]
        if count != extent:
            return None
        found.append(parts)
    return None if any(wanted[k] != 1 for k in left) else found


def _joined_places(given: tuple[int, ...], wanted: tuple[int, ...], index: list[str]) -> list[str]:
    """Return the index in an array of an element of it with split axes."""
    found = []
    for parts in _split(given, wanted) or []:
        terms, size = [], 1
        for k in reversed(parts):
            if index[k] != "0":
                terms.append(index[k] if size == 1 else f"{size} * {index[k]}")
            size *= wanted[k]
        found.append(" + ".join(reversed(terms)) or "0")
    return found


def place_on_diagonal(rank: int, parameters: dict[str, Any], index: list[str]) -> list[str]:
    """Return the index in an array of an element of its diagonals, which are the last axis."""
    *others, at = index
    row, column = parameters["axis1"] % rank, parameters["axis2"] % rank
    offset = parameters["offset"]
    found = [others.pop(0) if k not in (row, column) else "" for k in range(rank)]
    found[row], found[column] = _moved(at, max(-offset, 0), 1), _moved(at, max(offset, 0), 1)
    return found


def aligned(shape: tuple[int, ...], index: list[str]) -> list[str]:
    """Return the index of an element of an array of a shape that is broadcast."""
    last = index[len(index) - len(shape) :]
    return ["0" if extent == 1 else part for extent, part in zip(shape, last, strict=True)]


def place_of_item(shape: tuple[int, ...], given: Any, index: list[str]) -> list[Any]:
    """Return the index, in an array of a shape, of an element of what an index of it gives.

    Parameters
    ----------
    shape
        The shape of the array.
    given
        The index of the array: NumPy's, or a list with nodes for parts that are computed.
    index
        The index of the element in what this gives.
    """
    parts = _expanded(shape, given)
    advanced = [k for k, part in enumerate(parts) if _is_array(part)]
    if advanced:  # numbers are broadcast with the arrays
        advanced = [k for k, p in enumerate(parts) if _is_array(p) or _is_number(p)]
    count = max([len(parts[k].shape) for k in advanced if _is_array(parts[k])], default=0)
    left = list(index)
    own: list[str] | None = None
    if advanced and advanced[-1] - advanced[0] >= len(advanced):  # they are not side by side
        own, left = left[:count], left[count:]
    found: list[Any] = []
    for k, part in enumerate(parts):
        if part is None:
            left.pop(0)
        elif isinstance(part, slice):
            start, _, step = part.indices(shape[len(found)])
            found.append(_moved(left.pop(0), start, step))
        else:
            if own is None and k in advanced:
                own, left = left[:count], left[count:]
            if isinstance(part, Node) or _is_array(part):
                found.append((part, aligned(part.shape, own or [])))
            else:
                found.append(str(int(part) % shape[len(found)]))
    return found


def _moved(at: str, start: int, step: int) -> str:
    """Return the text of ``start + step * at``."""
    if step != 1:
        at = f"{step} * {at if at.isidentifier() else f'({at})'}"
    return f"{start} + {at}" if start else at


def _expanded(shape: tuple[int, ...], given: Any) -> list[Any]:
    """Return the parts of an index, one for each axis and each new one."""
    made: list[Any] = []
    for part in list(given) if type(given) is tuple or _holds_node(given) else [given]:
        made += without_masks(np.asarray(part) if type(part) is list else part)
    if not any(part is Ellipsis for part in made):
        made.append(Ellipsis)
    at = next(k for k, part in enumerate(made) if part is Ellipsis)
    rest = len(shape) - sum(part is not None for part in made) + 1
    check_ellipsis(made, at, rest)
    made[at : at + 1] = [slice(None)] * rest
    axis = 0
    for k, part in enumerate(made):
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "iu":
                raise NotRecordedError(f"an index of dtype {part.dtype}")
            array = part.astype(np.int64)
            made[k] = np.where(array < 0, array + shape[axis], array)
        axis += part is not None
    return made


def _holds_node(given: Any) -> bool:
    return type(given) is list and any(isinstance(part, Node) for part in given)


def _is_array(part: Any) -> bool:
    return isinstance(part, (np.ndarray, Node)) and len(part.shape) > 0


def _is_number(part: Any) -> bool:
    if isinstance(part, (Node, np.ndarray)):
        return not part.shape
    return isinstance(part, (int, np.integer))
