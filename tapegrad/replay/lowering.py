"""Values that are compiled in another way than they are recorded, such as several for one.

The loops of several values are fused, those inside of one are not.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node, copied, replaced
from tapegrad.ops.table.op import TABLE
from tapegrad.replay.forms import (
    BOOLEAN,
    CALLS_OF_SINGLES,
    FLOAT,
    FLOATS,
    INTEGER,
    NARROW,
    SINGLE,
    VIEWS_OF_ELEMENTS,
    Form,
    axes_of,
    form_of,
)
from tapegrad.replay.matrices import on_stacks

_FEW_TERMS = 4  # of an element of a product, up to which loops over the elements add them up
# calls that become several values in any precision; rounding depends on it
_OF_SEVERAL = ("logsumexp", "finite_max", "euclidean_norm", "product", "rounded")
# calls of arrays of one dtype, which others become: integers beside floats are floats
_OF_ONE_DTYPE = (
    *("concatenate", "matmul", "product", "contract", "solve", "solve_triangular"),
    *("full_convolution", "valid_correlation"),
)
_MOST_PRODUCTS = 20  # that are spelt out: each takes a dozen lines
_FEW_ELEMENTS = 9  # up to which the largest is found by comparisons in the loop over the results


def lowered(recorded: list[Node], only_ops: bool = False) -> tuple[list[Node], dict[Node, Node]]:
    """Return the values with others in place of some, and what stands for each of these.

    Parameters
    ----------
    recorded
        The values, in the order in which they were recorded.
    only_ops
        Whether they become ops only, which have derivatives, where that depends on their kind.
    """
    nodes: list[Node] = []
    same: dict[Node, Node] = {}
    recorded = _in_double_precision(recorded, same)
    are_few = sum(map(_has_few_terms, recorded)) <= _MOST_PRODUCTS
    for node in recorded:
        node.args = _with_known_dtypes(replaced(node.args, same), node.dtype, nodes)
        if node.name == "power":
            node.args = _with_float_exponents(node)
        if form_of(node) is Form.MAP:
            node.args = _with_numbers(node)
        if node.name in _OF_ONE_DTYPE and node.dtype in FLOATS:
            nodes += _with_one_dtype(node)
        if not only_ops and (spelt := on_stacks(node)):
            nodes += spelt
            same[node] = spelt[-1]
            continue
        if node.name == "logsumexp" and _is_of_floats(node):
            nodes += _logsumexp(node)
        elif node.name == "finite_max" and _is_of_floats(node):
            nodes += _finite_max(node)
        elif node.name == "euclidean_norm" and _is_of_floats(node):
            nodes += _euclidean_norm(node)
        elif are_few and _has_few_terms(node):
            nodes += _product(node)
        elif node.name == "product" and all(isinstance(x, Node) for x in node.args):
            nodes += _product_of_transposed(node)
        elif node.name == "rounded" and node.dtype in FLOATS:
            nodes += _rounded(node)
        elif _is_of_few(node):
            nodes += _extreme(node)
        elif node.name == "argsort" and not node.parameters.keys() - {"axis", "kind", "stable"}:
            nodes += _argsort(node)
        elif node.name in ("cummax", "cummin") and node.dtype in FLOATS:
            nodes += _running_extreme(node)
        elif (turned := _turned_over(node)) is not None:
            nodes.append(turned)
        elif (chosen := _chosen(node)) is not None:
            same[node] = chosen
            continue
        elif node.name == "reshape":
            x = node.args[0].args[0] if node.args[0].name == "reshape" else node.args[0]
            if x.shape == node.shape:
                same[node] = x
                continue
            nodes.append(_reshaped_view(x, node.shape) or _reshaped(x, node.shape))
        else:
            nodes.append(node)
            continue
        same[node] = nodes[-1]
    return nodes, same


def _with_known_dtypes(value: Any, dtype: np.dtype | None, nodes: list[Node]) -> Any:
    """Return arguments in dtypes that compiled code has, of equal numbers.

    Parameters
    ----------
    value
        The arguments, or one of them.
    dtype
        The dtype of what is made of them.
    nodes
        Where what computes them is added.
    """
    if type(value) in (list, tuple):
        return type(value)(_with_known_dtypes(item, dtype, nodes) for item in value)
    if not isinstance(value, Node) or value.name not in ("constant", "input"):
        return value
    is_float = dtype in (FLOAT, BOOLEAN)
    if value.dtype in NARROW and value.dtype != dtype:
        return _converted(value, SINGLE if dtype == SINGLE else INTEGER, nodes)
    if value.name == "constant" and value.dtype == np.float16 and (is_float or dtype == SINGLE):
        return _converted(value, SINGLE if dtype == SINGLE else FLOAT, nodes)
    if value.name == "constant" and value.dtype == np.uint64:
        found = value.example.astype(np.int64)
        return Node("constant", found) if np.all(found >= 0) else value
    return value


def _in_double_precision(recorded: list[Node], same: dict[Node, Node]) -> list[Node]:
    """Return the values with calls of float32 as calls of float64, which are rounded then.

    Parameters
    ----------
    recorded
        The values.
    same
        Where what stands for some of them is entered.
    """
    found: list[Node] = []
    for node in recorded:
        if not _is_call_of_singles(node):
            found.append(node)
            continue
        wide = copied(node, {})
        wide.args = tuple(_converted(arg, FLOAT, found) for arg in node.args)
        if node.dtype == SINGLE:
            wide.dtype, wide.like = FLOAT, of(node.shape, FLOAT)
        found.append(wide)
        same[node] = _converted(wide, SINGLE, found) if node.dtype == SINGLE else wide
    return found


def _is_call_of_singles(node: Node) -> bool:
    """Whether compiled code has a call for a value, but of float64 alone."""
    if node.op is None and node.name not in ("argsort", "searchsorted"):
        return False
    if node.dtype not in (SINGLE, INTEGER) or node.name in (*CALLS_OF_SINGLES, *_OF_SEVERAL):
        return False
    arrays = [arg for arg in node.args if isinstance(arg, Node)]
    if node.name == "searchsorted":  # which compares in double precision if one of both is
        return all(arg.dtype in FLOATS for arg in arrays)
    are_singles = bool(arrays) and all(arg.dtype == SINGLE for arg in arrays)
    return are_singles and form_of(node) is Form.CALL


def _converted(value: Any, dtype: np.dtype, found: list[Node]) -> Any:
    """Return an array in another dtype, a number as it is; add what computes it to some values."""
    if not isinstance(value, Node) or value.dtype == dtype:
        return value
    if value.name == "constant":
        return Node("constant", value.example.astype(dtype))
    example = of(value.shape, dtype)
    made = Node("astype", example, (value,), {"dtype": dtype}, TABLE["astype"])
    found.append(made)
    return made


def _with_one_dtype(node: Node) -> list[Node]:
    """Let arrays have the dtype of what is made of them; return the values that this needs."""
    found: list[Node] = []

    def converted(arg: Any) -> Any:
        if type(arg) is list:
            return [*map(converted, arg)]
        return _converted(arg, node.dtype, found)

    node.args = tuple(map(converted, node.args))
    return found


def _rounded(node: Node) -> list[Node]:
    """Return the values of an array rounded to a number of decimals.

    Source: NumPy's, which rounds the product with a power of 10.
    """
    (x,), decimals = node.args, node.parameters["decimals"]
    if not decimals:
        return [_mapped("rint", node.shape, x)]
    there, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    scale = 10.0 ** abs(decimals)
    scaled = _mapped(there, node.shape, x, scale)
    whole = _mapped("rint", node.shape, scaled)
    return [scaled, whole, _mapped(back, node.shape, whole, scale)]


def _argsort(node: Node) -> list[Node]:
    """Return the values of the indices that sort an array, along its last axis."""
    x, *given = node.args
    axis = given[0] if given else node.parameters.get("axis", -1)
    found: list[Node] = []
    if axis is None:
        found.append(x := _reshaped(x, (int(np.prod(x.shape)),)))
        axis = -1
    order = [*range(len(x.shape))]
    order.append(order.pop(axis))
    is_last = order == sorted(order)
    if not is_last:
        found.append(x := _permuted(x, order))
    found.append(Node("argsort", of(x.shape, INTEGER), (x,), {"kind": "stable"}, None, np.argsort))
    return found if is_last else [*found, _permuted(found[-1], [*np.argsort(order).tolist()])]


def _running_extreme(node: Node) -> list[Node]:
    """Return the values of the extremes up to each element along an axis, as elements read."""
    x, *given = node.args
    order = [*range(len(x.shape))]
    order.append(order.pop(given[0] if given else node.parameters.get("axis", 0)))
    found = [_permuted(x, order)] if order != sorted(order) else []
    rows = found[0] if found else x
    if len(x.shape) > 1:
        found.append(_reshaped(rows, (math.prod(x.shape),)))
    flat = found[-1] if found else x
    is_largest = node.name == "cummax"
    how = {"extent": rows.shape[-1], "is_largest": is_largest}
    places = Node("running_places", of(flat.shape, INTEGER), (flat,), how)
    found += [places, Node("item_at", of(flat.shape, x.dtype), (flat, [places]), {})]
    if len(x.shape) > 1:
        found.append(_reshaped(found[-1], rows.shape))
    if rows is not x:
        found.append(_permuted(found[-1], [*np.argsort(order).tolist()]))
    return found


def _permuted(x: Node, order: list[int]) -> Node:
    """Return an array with its axes in another order."""
    shape = tuple(x.shape[k] for k in order)
    return Node("transpose", of(shape, x.dtype), (x,), {"axes": (*order,)}, TABLE["transpose"])


def _with_float_exponents(node: Node) -> tuple[Any, ...]:
    """Return what a power is computed from, with floats for exponents that are known integers."""
    x, y = node.args
    is_known = isinstance(y, Node) and y.name == "constant" and y.dtype == INTEGER
    if node.dtype != FLOAT or not is_known:
        return node.args
    return x, Node("constant", y.example.astype(np.float64))


def _with_numbers(node: Node) -> tuple[Any, ...]:
    """Return what elements are computed from, with numbers for arrays of equal elements."""
    arrays = [arg for arg in node.args if isinstance(arg, Node)]
    shapes = [arg.shape for arg in arrays if arg.name != "constant"]
    if node.shape not in shapes or any(arg.dtype not in (FLOAT, BOOLEAN) for arg in arrays):
        return node.args
    args = [_number(arg) if arg in arrays else arg for arg in node.args]
    if node.name == "power" and type(args[1]) is float and args[1] in range(-1, 5):
        args[1] = int(args[1])  # a few products
    return tuple(args)


def _number(arg: Node) -> Node | float:
    """Return the number that all elements of a constant are, the value itself if there is none."""
    if arg.name != "constant" or arg.dtype != FLOAT or not arg.shape or not arg.example.size:
        return arg
    first = arg.example.flat[0]
    are_equal = np.array_equal(arg.example.view(np.int64), np.full(arg.shape, first).view(np.int64))
    return float(first) if are_equal else arg


def _turned_over(node: Node) -> Node | None:
    """Return a concatenation of slices of one array as what is read there by an index.

    None for others, and along the last axis: copies of rows are read faster than by an index.
    """
    if node.name != "concatenate" or node.parameters["axis"] is None:
        return None
    parts, axis = node.args[0], node.parameters["axis"] % len(node.shape)
    bases = {part.args[0] for part in parts if isinstance(part, Node) and part.name == "getitem"}
    if len(bases) != 1 or axis == len(node.shape) - 1:
        return None
    (base,) = bases
    places = [_places(part, base, axis) for part in parts]
    if any(found is None for found in places) or not node.shape[axis]:
        return None
    index = *[slice(None)] * axis, np.concatenate([p for p in places if p is not None])
    return Node("gather", of(node.shape, node.dtype), (base,), {"index": index}, TABLE["gather"])


def _places(part: Any, base: Node, axis: int) -> np.ndarray | None:
    """Return where the parts of a slice of an array along an axis are, None for other parts."""
    if not isinstance(part, Node) or part.name != "getitem" or part.args[0] is not base:
        return None
    index = part.parameters["index"]
    entries = list(index) if type(index) is tuple else [index]
    if any(type(entry) is not slice for entry in entries) or len(part.shape) != len(base.shape):
        return None
    entries += [slice(None)] * (len(base.shape) - len(entries))
    whole = [len(range(n)[entry]) == n for n, entry in zip(base.shape, entries, strict=True)]
    if not all(is_whole or k == axis for k, is_whole in enumerate(whole)):
        return None
    if any(e.step not in (None, 1) for k, e in enumerate(entries) if k != axis):
        return None
    return np.arange(base.shape[axis])[entries[axis]]


def _chosen(node: Node) -> Node | None:
    """Return the argument that an op returns, as far as it is known to return one."""
    chosen: Any = None
    if node.name == "multiply":
        x, y = node.args
        chosen = y if x == 1.0 else x if y == 1.0 else None
    elif node.name == "where":
        condition, x, y = node.args
        if isinstance(condition, Node) and condition.name == "constant":
            holds = condition.example.astype(np.bool_)
            chosen = x if holds.all() else y if not holds.any() else None
    is_like = isinstance(chosen, Node) and (chosen.shape, chosen.dtype) == (node.shape, node.dtype)
    return chosen if is_like else None


def _has_few_terms(node: Node) -> bool:
    """Whether a node is a matrix product that loops compute faster than a call of BLAS."""
    if node.name != "matmul" or not all(isinstance(x, Node) for x in node.args):
        return False
    return (
        0 < node.args[0].shape[-1] <= _FEW_TERMS
        and 0 not in node.shape
        and node.dtype in FLOATS
        and all(x.dtype == node.dtype for x in node.args)
    )


def _product(node: Node) -> list[Node]:
    """Return the values of ``x[..., 0] * y[0, ...] + x[..., 1] * y[1, ...] + ...``."""
    x, y = node.args
    is_vector = len(x.shape) == 1, len(y.shape) == 1
    found: list[Node] = []
    total: Node | None = None
    for k in range(x.shape[-1]):
        at = slice(k, k + 1)
        column = _item(x, (..., k if is_vector[0] or is_vector[1] else at))
        row = _item(y, k if is_vector[1] else (..., k if is_vector[0] else at, slice(None)))
        term = _mapped("multiply", node.shape, column, row)
        found += [column, row, term]
        if total is not None:
            term = _mapped("add", node.shape, total, term)
            found.append(term)
        total = term
    return found


def _product_of_transposed(node: Node) -> list[Node]:
    """Return the values of a product of matrices that may be transposed first.

    A matrix of one column that is a vector becomes the vector.
    """
    found: list[Node] = []
    x, y = node.args
    if node.parameters["tx"]:
        found.append(x := _transposed(x))
    if node.parameters["ty"]:
        found.append(y := _transposed(y))
    is_column = len(x.shape) == 2 and y.name == "reshape" and y.shape == (x.shape[1], 1)
    if is_column and len(y.args[0].shape) == 1:
        z = Node("matmul", of(node.shape[:1], node.dtype), (x, y.args[0]), {}, TABLE["matmul"])
        return [*found, z, _reshaped(z, node.shape)]
    return [*found, Node("matmul", of(node.shape, node.dtype), (x, y), {}, TABLE["matmul"])]


def _transposed(x: Node) -> Node:
    shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return Node("matrix_transpose", of(shape, x.dtype), (x,), {}, TABLE["matrix_transpose"])


def _reshaped_view(x: Node, shape: tuple[int, ...]) -> Node | None:
    """Return a view as one with other axes of length 1: loops read the array that it shows.

    It would be copied to be reshaped. None if it is no view, or has another shape otherwise.
    """
    without_ones, wanted = ([n for n in s if n != 1] for s in (x.shape, shape))
    if x.name not in VIEWS_OF_ELEMENTS or without_ones != wanted:
        return None
    left = [*x.shape]
    index: list[Any] = []
    for extent in shape:
        if extent == 1 and left[:1] != [1]:
            index.append(None)
            continue
        while extent != 1 and left[0] == 1:
            index.append(0)
            left.pop(0)
        index.append(slice(None))
        left.pop(0)
    parameters = {"index": (*index, *[0 for _ in left])}
    return Node("getitem", of(shape, x.dtype), (x,), parameters, TABLE["getitem"])


def _reshaped(x: Node, shape: tuple[int, ...]) -> Node:
    return Node("reshape", of(shape, x.dtype), (x,), {"shape": shape}, TABLE["reshape"])


def _item(x: Node, index: Any) -> Node:
    """Return elements of an array."""
    shape = np.broadcast_to(np.zeros(()), x.shape)[index].shape
    return Node("getitem", of(shape, x.dtype), (x,), {"index": index}, TABLE["getitem"])


def _is_of_floats(node: Node) -> bool:
    (x,) = node.args
    is_float = isinstance(x, Node) and x.dtype == node.dtype and node.dtype in FLOATS
    return is_float and bool(axes_of(node)) and 0 not in x.shape


def _is_of_few(node: Node) -> bool:
    """Whether a node is the largest or smallest of few elements for each result."""
    if node.name not in ("max", "min") or not _is_of_floats(node):
        return False
    return math.prod(node.args[0].shape[k] for k in axes_of(node)) <= _FEW_ELEMENTS


def _extreme(node: Node) -> list[Node]:
    """Return the values that find the largest or smallest of few elements one after the other."""
    (x,), axes = node.args, axes_of(node)
    keeps, is_min = node.parameters["keepdims"], node.name == "min"
    found: list[Node] = []
    best: Node | None = None
    ties: Any = 1.0
    for place in itertools.product(*[range(x.shape[k]) for k in axes]):
        index: list[Any] = [slice(None)] * len(x.shape)
        for axis, k in zip(axes, place, strict=True):
            index[axis] = slice(k, k + 1) if keeps else k
        found.append(element := _item(x, (*index,)))
        if is_min:
            found.append(element := _mapped("negative", node.shape, element))
        if best is not None:
            found.append(larger := _mapped("larger_of_ties", node.shape, best, element, ties))
            found.append(ties := _mapped("ties_of_larger", node.shape, best, element, ties))
            element = larger
        best = element
    if ties in found[-1:]:  # of which nothing is computed
        found.pop()
    return [*found, _mapped("negative", node.shape, best)] if is_min else found


def _logsumexp(node: Node) -> list[Node]:
    """Return the values of ``log(sum(exp(x - top))) + top``; derivatives do not pass `top`."""
    (x,) = node.args
    axes, keeps = axes_of(node), node.parameters["keepdims"]
    shape = node.shape
    found = _finite_max(node)
    beside = shift = found[-1]
    if shape and not keeps:  # as it is broadcast with x
        beside = _item(
            shift, tuple(None if k in axes else slice(None) for k in range(len(x.shape)))
        )
        found.append(beside)
    found.append(_mapped("subtract", x.shape, x, beside))
    found.append(_mapped("exp", x.shape, found[-1]))
    named = {"axis": axes, "keepdims": keeps}
    found.append(Node("sum", of(shape, x.dtype), (found[-1],), named, TABLE["sum"]))
    found.append(_mapped("log", shape, found[-1]))
    found.append(_mapped("add", shape, found[-1], shift))
    return found


def _finite_max(node: Node) -> list[Node]:
    """Return the values of the largest elements, and 0 for those that are not finite."""
    named = {"axis": axes_of(node), "keepdims": node.parameters["keepdims"]}
    top = Node("top", of(node.shape, node.dtype), node.args, named, None, _top)
    finite = Node("isfinite", of(node.shape, BOOLEAN), (top,), {}, None, np.isfinite)
    return [top, finite, _mapped("where", node.shape, finite, top, 0.0)]


def _top(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """Return the largest elements, -inf if there is none; nan is left out (as `largest`)."""
    largest: Any = functools.partial(np.fmax.reduce, initial=-np.inf)
    found: np.ndarray = largest(x, axis=axis, keepdims=keepdims)
    return found


def _euclidean_norm(node: Node) -> list[Node]:
    """Return the values of ``sqrt(sum(x * x))``; at 0 the derivatives are 0."""
    (x,) = node.args
    named = {"axis": axes_of(node), "keepdims": node.parameters["keepdims"]}
    square = _mapped("square", x.shape, x)
    total = Node("sum", of(node.shape, x.dtype), (square,), named, TABLE["sum"])
    is_zero = Node("equal", of(node.shape, BOOLEAN), (total, 0.0), {}, None, np.equal)
    positive = _mapped("where", node.shape, is_zero, 1.0, total)
    root = _mapped("sqrt", node.shape, positive)
    return [
        *(square, total, is_zero, positive, root),
        _mapped("where", node.shape, is_zero, 0.0, root),
    ]


def of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return an array of a shape without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _mapped(name: str, shape: tuple[int, ...], *args: Any) -> Node:
    (dtype,) = {arg.dtype for arg in args if isinstance(arg, Node) and arg.dtype != BOOLEAN}
    return Node(name, of(shape, dtype), args, {}, TABLE[name])
