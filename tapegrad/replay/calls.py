"""Whole arrays in recorded programs: computed by calls, or by loops of their own."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import partial
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.eager.traced import NotRecordedError
from tapegrad.ops.indexing import is_basic
from tapegrad.replay.forms import (
    FLOAT,
    FLOATS,
    Form,
    aligned,
    are_last,
    axes_of,
    is_transpose,
    kind_of,
    literal,
    number,
    other_shape,
    place_of_item,
    place_on_diagonal,
    public_name,
)
from tapegrad.replay.matrices import are_matrices, limit_of_pinv
from tapegrad.replay.text import Part, Place, Text, Whole
from tapegrad.transform import fourier

_MOST_TERMS = 200_000  # of a contraction that is written as loops
_OF_STACKS = (  # `transform.rules.numpy_functions.factors`
    *("factored_inverse", "factored_logarithm", "factored_sign", "factored_solution"),
    *("factored_solution_t", "lu_factors", "stacked_cholesky", "triangle_solution"),
)
_TRANSFORMS = (  # `transform.rules.numpy_functions.fourier`
    *("fourier_of_pairs", "fourier_adjoint_of_pairs"),
    *("half_fourier_to_pairs", "real_fourier_of_pairs"),
    *("whole_fourier_to_pairs", "real_adjoint_of_pairs"),
)
_OF_MATRICES = {"det": "determinant", "expm": "expm_of_floats"}
_SEVERAL = {  # functions with several results
    "eigh": "eigh_of_floats({})",
    "eigh_of_parts": "eigh_of_parts({})",
    "nonzero": "places({})",
    "qr": "qr_of_floats({})",
    "thin_svd": "thin_svd_of_floats({})",
}


def write_reshape(text: Text, node: Node) -> None:
    """Write an array of another shape with the same elements."""
    (x,) = node.args
    array = text.array(x)
    name = text.names[node] = text.fresh("r")
    if not x.shape:
        text.line(f"{name} = np.full({text.shape(node.shape)}, {array})")
    elif not node.shape:
        text.line(f"{name} = {array}[{', '.join('0' * len(x.shape))}]")
    else:
        text.line(f"{name} = {array}.reshape({text.shape(node.shape)})")


# -- reductions of rows ----------------------------------------------------------------------------


def write_rows(text: Text, node: Node) -> None:
    """Write a reduction of rows: of the last axes of an array, or of a copy with these last."""
    x = node.args[0]
    axes = axes_of(node)
    kept = [k for k in range(len(x.shape)) if k not in axes]
    if 0 in x.shape:
        raise NotRecordedError(f"{node.name} of an empty array")
    array = text.array(x) if are_last(node) else _permuted(text, x, [*kept, *axes])
    if not kept and not node.shape:
        text.names[node] = _row(text, node, array)
        return
    index = text.index(tuple(x.shape[k] for k in kept))
    place = [index[kept.index(k)] if k in kept else "0" for k in range(len(x.shape))]
    if not node.parameters.get("keepdims"):
        place = index
    result = text.names[node] = text.fresh("z")
    text.line(text.empty(result, node.shape, kind_of(node)))
    row = f"{array}[{', '.join(index)}]" if index else array

    def write(depth: int) -> None:
        if depth == len(kept):
            text.line(f"{result}[{', '.join(place)}] = {_row(text, node, row)}")
        elif index[depth] == "0":
            write(depth + 1)
        else:
            with text.inside(f"for {index[depth]} in range({text.extent(x.shape[kept[depth]])}):"):
                write(depth + 1)

    write(0)


def _permuted(text: Text, x: Node, order: list[int]) -> str:
    """Write a copy of an array with its axes in another order; return its name."""
    copy = text.fresh("z")
    shape = tuple(x.shape[k] for k in order)
    text.line(text.empty(copy, shape, kind_of(x)))
    back = [order.index(k) for k in range(len(order))]
    text.fill(copy, shape, lambda index: text.element(x, [index[k] for k in back]))
    return copy


def _row(text: Text, node: Node, row: str) -> str:
    """Write the reduction of a row; return the name of the result."""
    result = text.fresh("m")
    is_flat = (node.op is not None and node.name != "top") or len(axes_of(node)) == 1
    items = row if is_flat else f"{row}.reshape(-1)"
    if node.name == "top":
        text.line(f"{result} = largest({items})")
    else:
        text.line(f"{result} = np.{node.name}({items})")
    return result


# -- functions -------------------------------------------------------------------------------------


def write_call(text: Text, node: Node) -> None:
    """Write what computes an array."""
    if places := [*_places_of_parts(node)]:
        _write_parts(text, node, places)
        return
    name = text.names[node] = text.fresh("z")
    if node.name in _WRITERS:
        _WRITERS[node.name](text, node, name)
    elif node.name == "cumsum" and node.dtype == FLOAT and node.args[0].shape:
        _running_sum(text, node, name)
    elif node.name == "pinv" and (limit := limit_of_pinv(node)) is not None:
        text.line(f"{name} = pinv_of_floats({text.array(node.args[0])}, {limit!r})")
    elif node.name in _OF_MATRICES and are_matrices(node.args):
        _of_each_matrix(text, node, name, _OF_MATRICES[node.name])
    elif node.name in _OF_STACKS:
        given = [*map(text.array, node.args), *map(str, node.parameters.values())]
        text.line(f"{name} = {node.name}({', '.join(given)})")
    elif node.name in _TRANSFORMS and node.dtype == FLOAT:
        if not fourier.IS_AVAILABLE:
            raise NotRecordedError("the Fourier transforms of this NumPy are not known")
        given = [text.array(node.args[0]), *map(str, node.parameters.values())]
        text.line(f"{name} = {node.name}({', '.join(given)})")
    elif node.name in ("full_convolution", "valid_correlation") and node.dtype == FLOAT:
        text.line(f"{name} = {node.name}({', '.join(map(text.array, node.args))})")
    elif node.name == "running_places":
        given = [text.array(node.args[0]), *map(str, node.parameters.values())]
        text.line(f"{name} = running_places({', '.join(given)})")
    elif node.name == "checked_index":
        x, extent = node.args
        text.line(
            f"{name} = checked_{'indices' if x.shape else 'index'}({text.array(x)}, {extent})"
        )
    else:
        args = [_argument(text, arg) for arg in node.args]
        options = [f"{key}={literal(value)}" for key, value in node.parameters.items()]
        text.line(f"{name} = tg.{public_name(node)}({', '.join([*args, *options])})")
        text.in_python.append(node)
        if node.decides_by_values and node.shape:
            _check_shape(text, node, name)


def _of_each_matrix(text: Text, node: Node, name: str, function: str) -> None:
    """Write a function of a matrix, or its values for those of a stack."""
    (x,) = node.args
    array, batch = text.array(x), x.shape[:-2]
    if not batch:
        text.line(f"{name} = {function}({array})")
        return
    text.line(text.empty(name, node.shape))
    text.fill(name, batch, lambda index: f"{function}({array}[{', '.join(index)}])")


def _check_shape(text: Text, node: Node, name: str) -> None:
    """Write what raises if an array is not of the shape for which the rest is written."""
    differs = [f"{name}.shape[{axis}] != {size}" for axis, size in enumerate(node.shape)]
    with text.inside(f"if {' or '.join(differs)}:"):
        text.line(f"raise OtherShapeError({other_shape(node)!r})")


def write_several(text: Text, node: Node, results: list[Node]) -> None:
    """Write the call of a function with several results.

    Parameters
    ----------
    results
        Those that are used.
    """
    if node.name not in _SEVERAL:
        raise NotRecordedError(f"{node.name} has several results")
    x, *others = node.args
    is_of_matrices = len(x.shape) >= 2 and x.dtype == FLOAT and 0 not in x.shape
    if not is_of_matrices and node.name != "nonzero":
        raise NotRecordedError(f"{node.name} of an array of shape {x.shape} and dtype {x.dtype}")
    found, array = text.fresh("z"), ", ".join(map(text.array, [x, *others]))
    names = [text.fresh("z") for _ in results]
    text.names |= zip(results, names, strict=True)
    items = [f"{found}[{part.parameters['number']}]" for part in results]
    batch = () if node.name == "nonzero" else x.shape[:-2]
    turned = ".T" if node.parameters.get("uplo") == "U" else ""  # the other triangle
    if not batch:
        text.line(f"{found} = {_SEVERAL[node.name].format(array + turned)}")
        for part, name, item in zip(results, names, items, strict=True):
            text.line(f"{name} = {item}")
            if part.decides_by_values:
                _check_shape(text, part, name)
        return
    for part, name in zip(results, names, strict=True):
        text.line(text.empty(name, part.shape))
    index = text.index(batch)
    place = ", ".join(index)
    call = _SEVERAL[node.name].format(f"{array}[{place}]{turned}")
    parts = [f"{name}[{place}] = {item}" for name, item in zip(names, items, strict=True)]
    text.loops(batch, index, [f"{found} = {call}", *parts])


def _powers(text: Text, node: Node, name: str) -> None:
    """Write loops that do nothing else, which compiled code knows (`blocks.outer_powers`)."""
    x, y = node.args

    def element(index: list[str]) -> str:
        return f"{text.element(x, [index[0], '0'])} ** {text.element(y, aligned(y.shape, index))}"

    text.line(text.empty(name, node.shape))
    text.fill(name, node.shape, element)


def _running_sum(text: Text, node: Node, name: str) -> None:
    """Write cumulative sums, in the order of the elements in memory."""
    (x,) = node.args
    axis = node.parameters["axis"]
    index = text.index(x.shape)
    place, element = ", ".join(index), text.element(x, index)
    total = text.fresh("s")
    text.line(text.empty(name, x.shape))
    before: dict[int, list[str]] = {}
    if axis is None or axis % len(x.shape) == len(x.shape) - 1:
        if axis is None or len(x.shape) == 1:
            text.line(f"{total} = 0.0")
        else:
            before[len(x.shape) - 1] = [f"{total} = 0.0"]
        own = total
    else:
        others = [k for k in range(len(x.shape)) if k != axis % len(x.shape)]
        text.line(f"{total} = np.zeros({text.shape(tuple(x.shape[k] for k in others))})")
        own = f"{total}[{', '.join(index[k] for k in others)}]"
    text.loops(x.shape, index, [f"{own} += {element}", f"{name}[{place}] = {own}"], before)
    if axis is None and len(x.shape) > 1:
        text.line(f"{name} = {name}.reshape(-1)")


def _argument(text: Text, arg: Any) -> str:
    if isinstance(arg, Node):
        return text.array(arg)
    if type(arg) is list:
        raise NotRecordedError("a list of arrays as an argument")
    return literal(arg)


def _product(text: Text, node: Node, name: str) -> None:
    x, y = node.args
    if not (isinstance(x, Node) and isinstance(y, Node)) or node.dtype not in FLOATS:
        raise NotRecordedError("a product with something else than arrays of floats")
    if not x.dtype == y.dtype == node.dtype:
        raise NotRecordedError("a product of two dtypes")
    are_stacks = len(x.shape) == len(y.shape) >= 3 and x.shape[:-2] == y.shape[:-2]
    if are_stacks and node.dtype == FLOAT:
        turned = _turned(text, y)
        function = "stacked_product" if turned is None else "stacked_product_t"
        factors = [(text.array(x), x.shape), (turned or text.array(y), y.shape)]
        if turned is not None:
            factors[1] = turned, (*y.shape[:-2], y.shape[-1], y.shape[-2])
        back = ""
        if len(x.shape) > 3:  # as stacks of one axis
            count = " * ".join(map(text.extent, x.shape[:-2]))
            for k, (array, shape) in enumerate(factors):
                matrix = ", ".join(map(text.extent, shape[-2:]))
                factors[k] = f"{array}.reshape(({count}, {matrix}))", shape
            back = f".reshape({text.shape(node.shape)})"
        given = ", ".join(array for array, _ in factors)
        text.line(f"{name} = {function}({given}){back}")
        return
    left, right = _factor(text, x), _factor(text, y)
    if max(len(x.shape), len(y.shape)) <= 2:
        text.line(f"{name} = np.dot({left}, {right})")
        return
    if len(y.shape) == 2:  # all rows of the stack at once
        rows = " * ".join(map(text.extent, x.shape[:-1]))
        flat = f"{left}.reshape(({rows}, {text.extent(x.shape[-1])}))"
        text.line(f"{name} = np.dot({flat}, {right}).reshape({text.shape(node.shape)})")
        return
    has_vector = min(len(x.shape), len(y.shape)) < 2
    batch = node.shape[:-1] if has_vector else node.shape[:-2]
    text.line(text.empty(name, node.shape, kind_of(node)))

    def product(index: list[str]) -> str:
        parts = []
        for array, factor in ((left, x), (right, y)):
            own = ", ".join(aligned(factor.shape[:-2], index))
            parts.append(f"{array}[{own}]" if own else array)
        return f"np.dot({', '.join(parts)})"

    text.fill(name, batch, product)


def _factor(text: Text, x: Node) -> str:
    """Return the text of a factor of a product, which may be a transposed matrix."""
    turned = _turned(text, x) if len(x.shape) == 2 else None
    return text.array(x) if turned is None else f"{turned}.T"


def _turned(text: Text, x: Node) -> str | None:
    """Return the name of an array that a value is the transposes of, None for none."""
    if x in text.names or not is_transpose(x):
        return None
    return text.array(x.args[0])


def _contraction(text: Text, node: Node, name: str) -> None:
    """Write a sum of products over indices with names, in loops over all of them."""
    given, out = node.parameters["subscripts"].split("->")
    factors, terms = node.args[0], given.split(",")
    extents: dict[str, int] = dict.fromkeys(out, 1)
    for factor, term in zip(factors, terms, strict=True):
        if not isinstance(factor, Node) or factor.dtype != np.float64 or "." in term:
            raise NotRecordedError("a contraction of something else than arrays of floats")
        for i, extent in zip(term, factor.shape, strict=True):
            extents[i] = extents.get(i, 1) if extent == 1 else extent
    shape = tuple(extents.values())
    if int(np.prod(shape)) > _MOST_TERMS and not _is_sum_of_products(terms, out):
        raise NotRecordedError("a contraction of many terms, which has faster ways than loops")
    at = dict(zip(extents, text.index(shape), strict=True))
    product = " * ".join(
        text.element(factor, aligned(factor.shape, [at[i] for i in term]))
        for factor, term in zip(factors, terms, strict=True)
    )
    index = list(at.values())
    target = f"{name}[{', '.join(index[: len(out)])}]" if out else name
    if out:
        text.line(text.empty(name, node.shape))
    if len(out) == len(shape):
        text.loops(shape, index, [f"{target} = {product}"])
        return
    total = text.fresh("s")
    if not out:
        text.line(f"{total} = 0.0")
    before, after = {len(out): [f"{total} = 0.0"]}, {len(out): [f"{target} = {total}"]}
    text.loops(shape, index, [f"{total} += {product}"], before, after)


def _is_sum_of_products(terms: list[str], out: str) -> bool:
    """Whether there is no faster way than a product for each element of one of the factors."""
    return len(terms) < 3 and any({*term} == {*out}.union(*terms) for term in terms)


# -- assignments -----------------------------------------------------------------------------------


WRITES = ("put", "put_at", "add_at", "added_at")
"""What copies an array and writes to some elements, or adds to them."""
_ADDING = ("add_at", "added_at")


def _assignment(text: Text, node: Node, name: str) -> None:
    """Write a copy of an array in which others are written, or added, to some elements."""
    base, value, *places = node.args
    index = places[0] if places else node.parameters["index"]
    if not isinstance(base, Node) or not base.shape:
        raise NotRecordedError("an assignment to a number")
    if text.reads[base] == 1 and base.name in (*WRITES, "embed"):
        name = text.names[node] = text.names[base]  # nothing else sees the array
    else:
        text.line(f"{name} = {text.array(base)}.copy()")
    shape = np.shape(np.empty(base.shape, np.bool_)[_without_nodes(index)])
    sign = "+=" if node.name in _ADDING else "="
    _assign(text, name, node.shape, index, shape, value, sign)


def _scattering(text: Text, node: Node, name: str) -> None:
    """Write an array of zeros to some elements of which those of another one are added."""
    (value,) = node.args
    text.line(f"{name} = np.zeros({text.shape(node.shape)}{kind_of(node)})")
    _assign(text, name, node.shape, node.parameters["index"], value.shape, value, "+=")


def _bins(text: Text, node: Node, name: str) -> None:
    """Write the sums of weights, or counts, by numbers that are not negative."""
    numbers, weights, least = node.args
    text.line(f"{name} = np.zeros(bins({text.array(numbers)}, {literal(least)}){kind_of(node)})")
    _check_shape(text, node, name)
    ones = Node("constant", np.ones((), node.dtype))
    value = ones if weights is None else weights
    text.names[ones] = number(ones.example.item())
    _assign(text, name, node.shape, [numbers], numbers.shape, value, "+=")


def _search(text: Text, node: Node, name: str) -> None:
    """Write the places of values in a sorted array."""
    points, values, *side = node.args
    side = [*side, *node.parameters.values()] or ["left"]
    are_floats = all(isinstance(x, Node) and x.dtype == FLOAT for x in (points, values))
    if not are_floats or len(side) != 1 or side[0] not in ("left", "right"):
        raise NotRecordedError("searchsorted of something else than arrays of floats")
    text.line(f"{name} = np.searchsorted({text.array(points)}, {text.array(values)}, {side[0]!r})")


def _order(text: Text, node: Node, name: str) -> None:
    """Write the indices that sort the rows of an array."""
    (x,) = node.args
    array = text.array(x)
    if len(x.shape) == 1:
        text.line(f"{name} = np.argsort({array}, kind='mergesort')")
        return

    def of_row(index: list[str]) -> str:
        return f"np.argsort({array}[{', '.join(index)}], kind='mergesort')"

    text.line(text.empty(name, node.shape, kind_of(node)))
    text.fill(name, x.shape[:-1], of_row)


def _embedding(text: Text, node: Node, name: str) -> None:
    """Write an array of zeros in which elements at computed places are those of another one."""
    (value,) = node.args
    shown, parameters = node.parameters["shown"].name, node.parameters["parameters"]
    if shown not in ("getitem", "diagonal"):
        raise NotRecordedError(f"an array of which a {shown} is given")
    if not node.shape:
        text.names[node] = text.element(value, ["0"] * len(value.shape))
        return
    text.line(f"{name} = np.zeros({text.shape(node.shape)}{kind_of(node)})")
    if shown == "getitem":
        _assign(text, name, node.shape, parameters["index"], value.shape, value)
    else:
        rank = len(node.shape)
        text.fill(
            name,
            value.shape,
            lambda at: text.element(value, at),
            lambda at: place_on_diagonal(rank, parameters, at),
        )


def _assign(
    text: Text,
    name: str,
    shape: tuple[int, ...],
    index: Any,
    part: tuple[int, ...],
    value: Any,
    sign: str = "=",
) -> None:
    """Write loops that assign a value to the elements at an index, of the shape `part`.

    With the sign ``+=`` it is added to them.
    """

    def element(at: list[str]) -> str:
        if not isinstance(value, Node):
            return number(value)
        return text.element(value, aligned(value.shape, at))

    text.fill(name, part, element, lambda at: text.place(place_of_item(shape, index, at)), sign)


def _without_nodes(index: Any) -> Any:
    """Return an index with zeros in place of what depends on the arguments."""
    if type(index) is list and any(isinstance(part, Node) for part in index):
        made = (np.zeros(p.shape, np.int64) if isinstance(p, Node) else p for p in index)
        return tuple(made)
    return index


def place_parts(text: Text, node: Node, own: Container[Node]) -> None:
    """Let parts of an array be computed where they are in it, instead of copied.

    Parameters
    ----------
    node
        A concatenation, or an array of zeros with the elements of another one.
    own
        The values that may be: nothing outside of the section that computes them reads them.
    """
    whole: Whole | None = None
    for part, place in _places_of_parts(node):
        source, place_of_source = _without_new_axes(text, part, place)
        is_alone = source in own and text.forms[source] is Form.MAP and text.reads[source] == 1
        if is_alone and source.shape and source.dtype == node.dtype:
            whole = whole or _whole(text, node)
            text.parts[source] = text.parts[part] = Part(whole, place_of_source)
    if whole is not None:
        text.names[node] = whole.name


def _without_new_axes(text: Text, part: Node, place: Place) -> tuple[Node, Place]:
    """Return what a view that only has further axes shows, and the places of its elements."""
    while part.name == "getitem" and text.reads[part] == 1:
        (base,), index = part.args, part.parameters["index"]
        entries = index if type(index) is tuple else (index,)
        if any(entry not in (None, Ellipsis, slice(None)) for entry in entries):
            break
        axes = [str(k) for k in range(len(part.shape))]
        order = place_of_item(base.shape, index, axes)  # the axes of the base among them
        place = partial(_with_new_axes, axes=axes, order=order, place=place)
        part = base
    return part, place


def _with_new_axes(index: list[str], axes: list[str], order: list[str], place: Place) -> list[str]:
    """Return the place of an element, by its index without new axes."""
    return place([index[order.index(axis)] if axis in order else "0" for axis in axes])


def _places_of_parts(node: Node) -> Iterator[tuple[Node, Place]]:
    """Yield the parts of an array, with the index of an element in it by that in the part."""
    if node.name == "concatenate":
        axis, start = _axis(node), 0
        for part in node.args[0]:
            yield part, partial(_moved, axis=axis, start=start)
            start += part.shape[axis]
    elif node.name == "embed" and node.parameters["shown"].name == "getitem":
        index = node.parameters["parameters"]["index"]
        if node.shape and is_basic(index):
            yield node.args[0], partial(place_of_item, node.shape, index)


def _moved(index: list[str], axis: int, start: int) -> list[str]:
    """Return an index in which that along an axis is larger."""
    at = index[axis]
    moved = str(start + int(at)) if at.isdigit() else f"{start} + {at}" if start else at
    return [*index[:axis], moved, *index[axis + 1 :]]


def _whole(text: Text, node: Node) -> Whole:
    """Return the array that parts are computed in."""
    name, kind = text.fresh("z"), kind_of(node)
    if node.name == "concatenate":
        return Whole(name, text.empty(name, node.shape, kind))
    return Whole(name, f"{name} = np.zeros({text.shape(node.shape)}{kind})")


def _axis(node: Node) -> int:
    """Return the axis of a concatenation of arrays."""
    (parts,) = node.args
    axis = node.parameters["axis"]
    if axis is None:
        raise NotRecordedError("a concatenation of flattened arrays")
    for part in parts:
        if not isinstance(part, Node):
            raise NotRecordedError("a concatenation with something else than arrays")
        if part.dtype != node.dtype:
            raise NotRecordedError("a concatenation of several dtypes")
    return int(axis % len(node.shape))


def _write_parts(text: Text, node: Node, places: list[tuple[Node, Place]]) -> None:
    """Write an array of which parts may have been computed where they are in it."""
    known = next((text.parts[part].whole for part, _ in places if part in text.parts), None)
    whole = known or _whole(text, node)
    for line in whole.makes():
        text.line(line)
    text.names[node] = whole.name
    for part, place in places:
        if part not in text.parts or not text.parts[part].is_computed:
            text.fill(whole.name, part.shape, partial(text.element, part), place)


_WRITERS = {  # by the name of what they write, whatever its arguments are
    **dict.fromkeys(WRITES, _assignment),
    "argsort": _order,
    "bincount": _bins,
    "contract": _contraction,
    "embed": _embedding,
    "matmul": _product,
    "power": _powers,
    "scatter_add": _scattering,
    "searchsorted": _search,
}
