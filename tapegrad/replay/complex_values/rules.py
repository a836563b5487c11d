"""What ops compute of the parts of complex values.

A rule returns the pair of the parts of its value, a real value, or None for a value that stays
complex.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tapegrad.eager.nodes import Node, replaced
from tapegrad.replay.complex_values.parts import Pair, Part, Parts, Spectrum, is_complex
from tapegrad.replay.forms import FLOAT
from tapegrad.transform.fourier import MOST_AXES

_HIGHEST_POWER = 16  # up to which powers are products

Rule = Callable[[Parts, Node], "Pair | Node | None"]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


@_rule("add")
def _add(parts: Parts, node: Node) -> Pair:
    (a, b), (c, d) = map(parts.pair, node.args)
    return parts.sum(a, c, node.shape), parts.sum(b, d, node.shape)


@_rule("subtract")
def _subtract(parts: Parts, node: Node) -> Pair:
    (a, b), (c, d) = map(parts.pair, node.args)
    return parts.difference(a, c, node.shape), parts.difference(b, d, node.shape)


@_rule("multiply")
def _multiply(parts: Parts, node: Node) -> Pair:
    x, y = map(parts.pair, node.args)
    return parts.times(x, y, node.shape)


@_rule("divide")
def _divide(parts: Parts, node: Node) -> Pair:
    x, y = map(parts.pair, node.args)
    return parts.quotient(x, y, node.shape)


@_rule("reciprocal")
def _reciprocal(parts: Parts, node: Node) -> Pair:
    return parts.quotient((1.0, 0.0), parts.pair(node.args[0]), node.shape)


@_rule("negative")
def _negative(parts: Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    return parts.negative(re, node.shape), parts.negative(im, node.shape)


@_rule("positive", "stop_gradient")
def _each(parts: Parts, node: Node) -> Pair:
    re, im = (_like(parts, node, part) for part in parts.pair(node.args[0]))
    return re, im


@_rule("conjugate")
def _conjugate(parts: Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    return re, parts.negative(im, node.shape)


@_rule("square")
def _square(parts: Parts, node: Node) -> Pair:
    x = parts.pair(node.args[0])
    return parts.times(x, x, node.shape)


@_rule("power")
def _power(parts: Parts, node: Node) -> Pair | None:
    x, exponent = node.args
    if type(exponent) is float and exponent.is_integer():
        exponent = int(exponent)
    if type(exponent) is not int or not 0 < abs(exponent) <= _HIGHEST_POWER:
        return _general_power(parts, parts.pair(x), parts.pair(exponent), node.shape)
    factor, count, found = parts.pair(x), abs(exponent), None
    while count:
        if count % 2:
            found = factor if found is None else parts.times(found, factor, node.shape)
        count //= 2
        if count:
            factor = parts.times(factor, factor, node.shape)
    assert found is not None
    return found if exponent > 0 else parts.quotient((1.0, 0.0), found, node.shape)


def _general_power(parts: Parts, x: Pair, exponent: Pair, shape: tuple[int, ...]) -> Pair:
    """Return ``r**c exp(-d t)`` times the number of size 1 at the angle ``c t + d log(r)``.

    Here r and t are the size and the angle of the base, c and d the parts of the exponent.
    """
    size, angle = parts.array(parts.length(x, shape), shape), parts.angle(x, shape)
    c, d = exponent
    length = parts.op("power", shape, size, parts.array(c, shape) if isinstance(c, Node) else c)
    turned = parts.product(angle, c, shape)
    if isinstance(d, Node) or d != 0.0:
        is_zero = parts.test("equal", shape, size, 0.0)
        log = parts.op("log", shape, parts.op("where", shape, is_zero, 1.0, size))
        turned = parts.sum(turned, parts.product(log, d, shape), shape)
        less = parts.array(parts.negative(parts.product(angle, d, shape), shape), shape)
        length = parts.op("multiply", shape, length, parts.op("exp", shape, less))
    turned = parts.array(turned, shape)
    cos, sin = parts.op("cos", shape, turned), parts.op("sin", shape, turned)
    return parts.op("multiply", shape, length, cos), parts.op("multiply", shape, length, sin)


@_rule("exp")
def _exp(parts: Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    size: Part = 1.0
    if isinstance(re, Node) or re:
        size = parts.op("exp", node.shape, parts.array(re, node.shape))
    im = parts.array(im, node.shape)
    cos, sin = parts.op("cos", node.shape, im), parts.op("sin", node.shape, im)
    return parts.product(size, cos, node.shape), parts.product(size, sin, node.shape)


@_rule("exp2")
def _exp2(parts: Parts, node: Node) -> Pair:
    """Return the power of 2 with the real part, turned by the imaginary part times log(2)."""
    re, im = parts.pair(node.args[0])
    size = parts.op("exp2", node.shape, parts.array(re, node.shape))
    turned = parts.array(parts.product(im, math.log(2.0), node.shape), node.shape)
    cos, sin = parts.op("cos", node.shape, turned), parts.op("sin", node.shape, turned)
    return parts.op("multiply", node.shape, size, cos), parts.op("multiply", node.shape, size, sin)


@_rule("log", "log2", "log10")
def _log(parts: Parts, node: Node) -> Pair:
    return _logarithm(parts, parts.pair(node.args[0]), node)


@_rule("log1p")
def _log1p(parts: Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    return _logarithm(parts, (parts.sum(re, 1.0, node.shape), im), node)


_BASES = {"log2": 2.0, "log10": 10.0}


def _logarithm(parts: Parts, x: Pair, node: Node) -> Pair:
    size = parts.array(parts.length(x, node.shape), node.shape)
    found = parts.op("log", node.shape, size), parts.angle(x, node.shape)
    if node.name not in _BASES:
        return found
    scale = 1.0 / math.log(_BASES[node.name])
    re, im = (parts.product(part, scale, node.shape) for part in found)
    return re, im


@_rule("sqrt")
def _sqrt(parts: Parts, node: Node) -> Pair:
    """Return the root with the larger part computed first: the other one would cancel."""
    shape = node.shape
    re, im = (parts.array(part, shape) for part in parts.pair(node.args[0]))
    size = parts.op("hypot", shape, re, im)
    total = parts.op("add", shape, size, parts.op("absolute", shape, re))
    larger = parts.op("sqrt", shape, parts.op("multiply", shape, total, 0.5))
    is_zero = parts.test("equal", shape, larger, 0.0)
    divisor = parts.op("where", shape, is_zero, 1.0, parts.op("multiply", shape, larger, 2.0))
    smaller = parts.op("divide", shape, im, divisor)
    is_right = parts.test("greater_equal", shape, re, 0.0)
    angle = parts.op("arctan2", shape, im, re)  # below 0 for an imaginary part of -0.0, too
    is_below = parts.test("less", shape, angle, 0.0)
    turned = parts.op("where", shape, is_below, parts.op("negative", shape, larger), larger)
    return (
        parts.op("where", shape, is_right, larger, parts.op("absolute", shape, smaller)),
        parts.op("where", shape, is_right, smaller, turned),
    )


def _waves(first: str, second: str, sign: float) -> Rule:
    """Return the rule of a function of sums: f(a + ib) = f(a) p(b) + i q(a) r(b)."""

    def rule(parts: Parts, node: Node) -> Pair:
        shape = node.shape
        a, b = (parts.array(part, shape) for part in parts.pair(node.args[0]))
        of_real = [parts.op(name, shape, a) for name in (first, second)]
        kinds = {"sin": ("cosh", "sinh"), "sinh": ("cos", "sin")}
        kinds |= {"cos": kinds["sin"], "cosh": kinds["sinh"]}
        of_imaginary = [parts.op(name, shape, b) for name in kinds[first]]
        re = parts.op("multiply", shape, of_real[0], of_imaginary[0])
        im = parts.op("multiply", shape, of_real[1], of_imaginary[1])
        return re, im if sign > 0 else parts.op("negative", shape, im)

    return rule


RULES |= {
    "sin": _waves("sin", "cos", 1.0),
    "cos": _waves("cos", "sin", -1.0),
    "sinh": _waves("sinh", "cosh", 1.0),
    "cosh": _waves("cosh", "sinh", 1.0),
}


@_rule("tanh")
def _tanh(parts: Parts, node: Node) -> Pair:
    return _tanh_of(parts, parts.pair(node.args[0]), node.shape)


@_rule("tan")
def _tan(parts: Parts, node: Node) -> Pair:
    """Return ``-i tanh(iz)``."""
    re, im = parts.pair(node.args[0])
    im, re = _tanh_of(parts, (parts.negative(im, node.shape), re), node.shape)
    return re, parts.negative(im, node.shape)


def _tanh_of(parts: Parts, x: Pair, shape: tuple[int, ...]) -> Pair:
    """Return ``(t + is) / (1 + ist)``, where t and s are tanh and tan of the parts.

    The square of t cancels against 1 where t is almost 1; with ``u = exp(-2|a|)``, it is
    ``1 - t t = 4 u / (1 + u)**2``, which does not overflow.
    """
    a, b = (parts.array(part, shape) for part in x)

    def op(name: str, *args: Part) -> Node:
        return parts.op(name, shape, *args)

    t, s = op("tanh", a), op("tan", b)
    size = op("where", parts.test("less", shape, a, 0.0), op("negative", a), a)
    u = op("exp", op("multiply", size, -2.0))
    rest = op("divide", op("multiply", u, 4.0), op("square", op("add", u, 1.0)))
    squares = op("square", s), op("square", op("multiply", s, t))
    below = op("add", squares[1], 1.0)
    re = op("divide", op("multiply", t, op("add", squares[0], 1.0)), below)
    return re, op("divide", op("multiply", s, rest), below)


@_rule("expm1")
def _expm1(parts: Parts, node: Node) -> Pair:
    """Return ``expm1(a) cos(b) - 2 sin(b / 2)**2`` and ``exp(a) sin(b)``."""
    shape = node.shape
    a, b = (parts.array(part, shape) for part in parts.pair(node.args[0]))
    half = parts.op("sin", shape, parts.op("multiply", shape, b, 0.5))
    rest = parts.op("multiply", shape, parts.op("square", shape, half), 2.0)
    whole = parts.op("multiply", shape, parts.op("expm1", shape, a), parts.op("cos", shape, b))
    im = parts.op("multiply", shape, parts.op("exp", shape, a), parts.op("sin", shape, b))
    return parts.op("subtract", shape, whole, rest), im


@_rule("sign")
def _sign(parts: Parts, node: Node) -> Pair:
    """Return ``z / abs(z)``, 0 for 0."""
    shape = node.shape
    x = parts.pair(node.args[0])
    size = parts.array(parts.length(x, shape), shape)
    size = parts.op("where", shape, parts.test("equal", shape, size, 0.0), 1.0, size)
    re, im = (parts.op("divide", shape, parts.array(part, shape), size) for part in x)
    return re, im


@_rule("euclidean_norm")
def _norm(parts: Parts, node: Node) -> Node:
    """Return the norm of the absolute values."""
    (x,) = node.args
    size = parts.array(parts.length(parts.pair(x), x.shape), x.shape)
    return parts.real_like(node, (size,))


@_rule("absolute")
def _absolute(parts: Parts, node: Node) -> Node:
    return parts.array(parts.length(parts.pair(node.args[0]), node.shape), node.shape)


@_rule("angle")
def _angle(parts: Parts, node: Node) -> Node:
    return parts.angle(parts.pair(node.args[0]), node.shape)


@_rule("real")
def _real(parts: Parts, node: Node) -> Node:
    return parts.array(parts.pair(node.args[0])[0], node.shape)


@_rule("imaginary")
def _imaginary(parts: Parts, node: Node) -> Node:
    return parts.array(parts.pair(node.args[0])[1], node.shape)


@_rule("where")
def _where(parts: Parts, node: Node) -> Pair | None:
    condition, *values = node.args
    if is_complex(condition):
        return None
    condition = parts.same.get(condition, condition)
    (a, b), (c, d) = map(parts.pair, values)

    def chosen(one: Part, other: Part) -> Part:
        if not isinstance(one, Node) and one == other:
            return one
        return parts.op("where", node.shape, condition, one, other)

    return chosen(a, c), chosen(b, d)


@_rule("equal", "not_equal")
def _equal(parts: Parts, node: Node) -> Node:
    (a, b), (c, d) = map(parts.pair, node.args)
    shape = node.shape
    re, im = parts.test(node.name, shape, *_arrays(parts, shape, a, c)), None
    if isinstance(b, Node) or isinstance(d, Node) or b != d:
        im = parts.test(node.name, shape, *_arrays(parts, shape, b, d))
    joined = "logical_and" if node.name == "equal" else "logical_or"
    return re if im is None else parts.test(joined, shape, re, im)


def _arrays(parts: Parts, shape: tuple[int, ...], x: Part, y: Part) -> tuple[Part, Part]:
    """Return parts of which one at least is an array of a shape."""
    return (parts.array(x, shape) if isinstance(x, Node) else x), parts.array(y, shape)


@_rule("astype")
def _astype(parts: Parts, node: Node) -> Pair | None:
    (x,) = node.args
    if not is_complex(node):
        return None
    return (parts.pair(x)[0] if is_complex(x) or x.dtype == FLOAT else _like(parts, node, x)), (
        parts.pair(x)[1]
    )


# -- functions that are linear ---------------------------------------------------------------------

_OF_ARRAYS = ("cumsum", "embed", "moved", "scatter_add")  # which take no numbers


def _like(parts: Parts, node: Node, part: Part) -> Part:
    """Return what a linear function computes of a part of its first argument."""
    if not isinstance(part, Node):
        if not part or node.name != "sum":
            return part
        part = parts.array(part, node.args[0].shape)
    made = parts.real_like(node, (part, *(replaced(arg, parts.same) for arg in node.args[1:])))
    if node.name == "astype":
        made.parameters = {**node.parameters, "dtype": FLOAT}
    return made


@_rule(
    *("getitem", "item_at", "transpose", "matrix_transpose", "broadcast_to", "diagonal"),
    *("gather", "reshape", "sum", "cumsum", "embed", "moved", "scatter_add"),
)
def _linear(parts: Parts, node: Node) -> Pair | None:
    x = node.args[0]
    if not isinstance(x, Node) or not is_complex(x):
        return None
    found = []
    for part in parts.pair(x):
        if isinstance(part, Node) and part.shape != x.shape:
            part = parts.array(part, x.shape)
        if not isinstance(part, Node) and part and node.name in _OF_ARRAYS:
            part = parts.array(part, x.shape)
        found.append(_like(parts, node, part))
    return found[0], found[1]


@_rule("concatenate")
def _concatenate(parts: Parts, node: Node) -> Pair:
    (given,) = node.args
    pairs = [parts.pair(value) for value in given]
    found: list[Part] = []
    for place in (0, 1):
        chosen = [pair[place] for pair in pairs]
        if all(not isinstance(part, Node) and part == 0.0 for part in chosen):
            found.append(0.0)
            continue
        arrays = [parts.array(p, value.shape) for p, value in zip(chosen, given, strict=True)]
        found.append(parts.real_like(node, (arrays,)))
    return found[0], found[1]


@_rule("put", "put_at", "add_at", "added_at")
def _put(parts: Parts, node: Node) -> Pair | None:
    base, value, *places = node.args
    if not isinstance(base, Node):
        return None
    found = []
    for whole, part in zip(parts.pair(base), parts.pair(value), strict=True):
        if isinstance(part, Node):
            part = parts.array(part, part.shape)
        args = (
            parts.array(whole, base.shape),
            part,
            *(replaced(place, parts.same) for place in places),
        )
        found.append(parts.real_like(node, args))
    return found[0], found[1]


# -- Fourier transforms ----------------------------------------------------------------------------


@_rule("fourier", "fourier_adjoint")
def _fourier(parts: Parts, node: Node) -> Pair:
    (x,) = node.args
    axis = node.parameters["axis"] % len(x.shape)
    re, im = parts.pair(x)
    spectrum = parts.spectra.get(x)
    if not isinstance(im, Node) and im == 0.0 and len(x.shape) <= MOST_AXES:
        return _of_real(parts, node, Spectrum(parts.array(re, x.shape), node.name, axis))
    if spectrum is not None and spectrum.name == node.name and not spectrum.has(axis):
        return _of_real(parts, node, spectrum.along(axis))
    given = _joined(parts, (re, im), x.shape)
    return _apart(parts, parts.op(f"{node.name}_of_pairs", given.shape, given, axis=axis))


def _of_real(parts: Parts, node: Node, spectrum: Spectrum) -> Pair:
    """Return the transform of real numbers along all axes so far: half of the work."""
    parts.spectra[node] = spectrum
    x, how = spectrum.x, {"axis": spectrum.axis, "others": spectrum.others}
    re, im = _apart(parts, parts.op("whole_fourier_to_pairs", (*x.shape, 2), x, **how))
    return re, im if node.name == "fourier" else parts.negative(im, x.shape)


@_rule("half_fourier")
def _half_fourier(parts: Parts, node: Node) -> Pair:
    (x,) = node.args
    axis = node.parameters["axis"] % len(x.shape)
    given = parts.array(parts.pair(x)[0], x.shape)
    how = {"count": node.shape[axis], "axis": axis}
    return _apart(parts, parts.op("half_fourier_to_pairs", (*node.shape, 2), given, **how))


@_rule("real_fourier")
def _real_fourier(parts: Parts, node: Node) -> Node:
    (x,) = node.args
    axis, n = node.parameters["axis"] % len(x.shape), node.parameters["n"]
    given = _joined(parts, parts.pair(x), x.shape)
    return parts.op("real_fourier_of_pairs", node.shape, given, n=n, axis=axis)


def _joined(parts: Parts, pair: Pair, shape: tuple[int, ...]) -> Node:
    """Return an array of pairs: the one that these are the parts of, if there is one."""
    found = [parts.pairs_of[part] for part in pair if part in parts.pairs_of]
    if [number for _, number in found] == [0, 1] and found[0][0] is found[1][0]:
        whole = found[0][0]
        if whole.shape == (*shape, 2):
            return whole
    columns = [
        parts.op("getitem", (*shape, 1), parts.array(part, shape), index=(..., None))
        for part in pair
    ]
    return parts.op("concatenate", (*shape, 2), columns, axis=len(shape))


def _apart(parts: Parts, pairs: Node) -> tuple[Node, Node]:
    """Return the parts in an array of pairs."""
    re, im = (parts.op("getitem", pairs.shape[:-1], pairs, index=(..., k)) for k in range(2))
    parts.pairs_of |= {re: (pairs, 0), im: (pairs, 1)}
    return re, im


@_rule("matmul", "product", "full_convolution", "valid_correlation")
def _matmul(parts: Parts, node: Node) -> Pair | None:
    x, y = node.args
    if not isinstance(x, Node) or not isinstance(y, Node):
        return None
    (a, b), (c, d) = (
        tuple(parts.array(p, v.shape) if isinstance(p, Node) or p else 0.0 for p in parts.pair(v))
        for v in (x, y)
    )

    def product(one: Part, other: Part) -> Part:
        if not isinstance(one, Node) or not isinstance(other, Node):
            return 0.0
        return parts.real_like(node, (one, other))

    re = parts.difference(product(a, c), product(b, d), node.shape)
    return re, parts.sum(product(a, d), product(b, c), node.shape)


@_rule("contract")
def _contract(parts: Parts, node: Node) -> Pair | None:
    (operands,) = node.args
    if len(operands) > 2 or not all(isinstance(x, Node) for x in operands):
        return None
    pairs = [[parts.array(p, x.shape) if p else 0.0 for p in parts.pair(x)] for x in operands]

    def product(*factors: Part) -> Part:
        if not all(isinstance(factor, Node) for factor in factors):
            return 0.0
        return parts.real_like(node, (list(factors),))

    if len(pairs) == 1:
        re, im = map(product, pairs[0])
        return re, im
    (a, b), (c, d) = pairs
    re = parts.difference(product(a, c), product(b, d), node.shape)
    return re, parts.sum(product(a, d), product(b, c), node.shape)


# -- systems ---------------------------------------------------------------------------------------


@_rule("solve")
def _solve(parts: Parts, node: Node) -> Pair | None:
    """Solve the system of real numbers for both parts."""
    a, b = node.args
    if not isinstance(a, Node) or not isinstance(b, Node):
        return None
    is_vector, batch = len(b.shape) == 1, node.shape[:-2]
    if is_vector and len(a.shape) > 2:
        return None
    shapes = [a.shape, b.shape] if is_vector else [(*batch, *x.shape[-2:]) for x in (a, b)]
    right = [parts.array(part, shapes[1]) for part in parts.pair(b)]
    if not is_complex(a):
        re, im = (parts.real_like(node, (parts.whole(a), part)) for part in right)
        return re, im
    matrix = _of_both_parts(parts, a, shapes[0])
    axis = len(shapes[1]) - (1 if is_vector else 2)
    found = parts.op("solve", _doubled(shapes[1], axis), matrix, _side_by_side(parts, right, axis))
    re, im = (_half(parts, found, axis, number) for number in range(2))
    return re, im


@_rule("inv")
def _inv(parts: Parts, node: Node) -> Pair:
    matrix = _of_both_parts(parts, node.args[0], node.shape)
    rank = len(node.shape)
    column = _half(parts, parts.op("inv", matrix.shape, matrix), rank - 1, 0)
    re, im = (_half(parts, column, rank - 2, number) for number in range(2))
    return re, im


@_rule("eigh")
def _eigh(parts: Parts, node: Node) -> Node | None:
    """Return the eigenvalues, and both parts of the eigenvectors."""
    (x,) = node.args
    if len(x.shape) != 2 or node.parameters.get("uplo", "L") != "L":
        return None
    given = tuple(parts.array(part, x.shape) for part in parts.pair(x))
    made = Node("eigh_of_parts", (), given)
    parts.numbers[made] = [[0], [1, 2]]
    return parts.new(made)


@_rule("expm")
def _expm(parts: Parts, node: Node) -> Pair:
    matrix = _of_both_parts(parts, node.args[0], node.shape)
    rank = len(node.shape)
    column = _half(parts, parts.op("expm", matrix.shape, matrix), rank - 1, 0)
    re, im = (_half(parts, column, rank - 2, number) for number in range(2))
    return re, im


def _of_both_parts(parts: Parts, x: Node, shape: tuple[int, ...]) -> Node:
    """Return the real matrix that does with pairs what a complex one does: [[a, -b], [b, a]].

    There is one for all systems with a matrix, so that it is decomposed once.
    """
    if (x, shape) not in parts.doubled:
        parts.doubled[x, shape] = _doubled_matrix(parts, x, shape)
    return parts.doubled[x, shape]


def _doubled_matrix(parts: Parts, x: Node, shape: tuple[int, ...]) -> Node:
    re, im = (parts.array(part, shape) for part in parts.pair(x))
    row, column = len(shape) - 2, len(shape) - 1
    below = parts.op("negative", shape, im)
    rows = [_side_by_side(parts, pair, column) for pair in ([re, below], [im, re])]
    return _side_by_side(parts, rows, row)


def _side_by_side(parts: Parts, pair: list[Node], axis: int) -> Node:
    return parts.op("concatenate", _doubled(pair[0].shape, axis), pair, axis=axis)


def _doubled(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])


def _half(parts: Parts, x: Node, axis: int, number: int) -> Node:
    """Return the first or the second half of an array along an axis."""
    count = x.shape[axis] // 2
    index = (*[slice(None)] * axis, slice(number * count, (number + 1) * count))
    return parts.op("getitem", (*x.shape[:axis], count, *x.shape[axis + 1 :]), x, index=index)
