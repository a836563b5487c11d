"""Complex values as pairs of real ones: loops over real and imaginary parts, fused like others.

Compiled code then knows nothing of complex numbers but their parts, so all that holds for real
values holds for them: which loops are fused, which sums are added up in loops, and derivatives. A
part that is known to be a number is no array, and no operation on it is computed.

Arguments are taken apart where their parts are read, results put together where they are returned.
So are values of functions that are not known here: these are computed from complex tensors. A
product with a part that is known to be 0 is 0, also for infinite factors: ``1j * x`` is
``complex(0, x)``, as C's imaginary numbers have it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Body, Node, bodies_of, replaced
from tapegrad.ops.table.op import TABLE

Part = Node | float
Pair = tuple[Part, Part]
COMPLEX, FLOAT, BOOLEAN = map(np.dtype, ("complex128", "float64", "bool"))
_HIGHEST_POWER = 16  # up to which powers are products


def in_real_parts(nodes: list[Node], outputs: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return recorded values without complex ones, as far as these are known, and the results.

    Parameters
    ----------
    nodes
        The values, in the order in which they were recorded.
    outputs
        The results.
    """
    if not _has_complex(nodes) or not _is_double(nodes):
        return nodes, outputs
    made = _Parts()
    for node in nodes:
        made.add(node)
    return made.nodes, [made.whole(output) for output in outputs]


def _has_complex(nodes: Sequence[Node]) -> bool:
    return any(
        node.dtype == COMPLEX
        or any(read.dtype == COMPLEX for read in node.inputs())
        or any(_has_complex(body.nodes) or _has_complex(body.inputs) for body in bodies_of(node))
        for node in nodes
    )


def _is_double(nodes: Sequence[Node]) -> bool:
    """Whether no complex number has single precision."""
    return not any(
        (node.dtype is not None and node.dtype.kind == "c" and node.dtype != COMPLEX)
        or any(not _is_double([*body.nodes, *body.inputs]) for body in bodies_of(node))
        for node in nodes
    )


def is_complex(value: Any) -> bool:
    """Whether a value, or a number, is complex."""
    return value.dtype == COMPLEX if isinstance(value, Node) else isinstance(value, complex)


class _Parts:
    """The values of a function, or of a body, while they are taken apart.

    Attributes
    ----------
    nodes
        The values so far.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.pairs: dict[Node, Pair] = {}  # the parts of complex values
        self.wholes: dict[Node, Node] = {}  # complex values as such
        self.same: dict[Node, Node] = {}  # what stands for real values
        self.numbers: dict[Node, list[list[int]]] = {}  # of the results of loops, by old numbers

    def add(self, node: Node) -> None:
        """Add a value."""
        if node.name == "item" and node.args[0] in self.same:  # of a loop with other results
            self._item(node)
            return
        if any(map(_has_complex_body, bodies_of(node))):
            rule: Any = _BLOCKS.get(node.name)
        elif not is_complex(node) and not any(map(is_complex, node.inputs())):
            rule = None
        else:
            rule = _RULES.get(node.name)
        found = None if rule is None else rule(self, node)
        if found is None:
            node.args = self.with_wholes(node.args)
            self.nodes.append(node)
            if is_complex(node):
                self.wholes[node] = node
        elif isinstance(found, tuple):
            self.pairs[node] = found
        else:
            self.same[node] = found

    def _item(self, node: Node) -> None:
        loop = self.same[node.args[0]]
        number = node.parameters["number"]
        numbers = self.numbers[loop][number] if loop in self.numbers else [number]
        dtype = FLOAT if is_complex(node) else node.dtype
        parts = tuple(
            self.new(Node("item", of(node.shape, dtype), (loop,), {"number": k})) for k in numbers
        )
        if len(parts) == 2:
            self.pairs[node] = parts
        else:
            (self.same[node],) = parts

    def with_wholes(self, value: Any) -> Any:
        """Return arguments with complex values as such."""
        if type(value) in (list, tuple):
            return type(value)(map(self.with_wholes, value))
        return self.whole(value) if isinstance(value, Node) else value

    # -- values -------------------------------------------------------------------------------

    def new(self, node: Node) -> Node:
        """Add a value that was not recorded; return it."""
        self.nodes.append(node)
        return node

    def op(self, name: str, shape: tuple[int, ...], /, *args: Any, **parameters: Any) -> Node:
        """Return the float64 value of an op."""
        return self.new(Node(name, of(shape, FLOAT), args, parameters, TABLE[name]))

    def test(self, name: str, shape: tuple[int, ...], *args: Any) -> Node:
        """Return the truth of a comparison."""
        function = getattr(np, name)
        return self.new(Node(name, of(shape, BOOLEAN), args, {}, None, function))

    def whole(self, node: Node) -> Node:
        """Return a value as such: complex if it is."""
        if node in self.same:
            return self.same[node]
        if node not in self.pairs:
            return node
        if node not in self.wholes:
            re, im = (self.array(part, node.shape) for part in self.pairs[node])
            kind = of(node.shape, COMPLEX)
            turned = self.new(Node("multiply", kind, (1j, im), {}, TABLE["multiply"]))
            self.wholes[node] = self.new(Node("add", kind, (re, turned), {}, TABLE["add"]))
        return self.wholes[node]

    def pair(self, value: Any) -> Pair:
        """Return the parts of a value or number."""
        if not isinstance(value, Node):
            return (value.real, value.imag) if isinstance(value, complex) else (value, 0.0)
        if not is_complex(value):
            return self.same.get(value, value), 0.0
        if value not in self.pairs:
            if value.name == "constant":
                example = value.example
                self.pairs[value] = constant(example.real), constant(example.imag)
            else:
                found = [self.op(name, value.shape, value) for name in ("real", "imaginary")]
                self.pairs[value] = found[0], found[1]
        return self.pairs[value]

    def array(self, part: Part, shape: tuple[int, ...]) -> Node:
        """Return a part as a value of a shape."""
        if not isinstance(part, Node):
            return Node("constant", np.full(shape, part, np.float64))
        if part.dtype != FLOAT:
            part = self.op("multiply", part.shape, part, 1.0)
        return part if part.shape == shape else self.op("broadcast_to", shape, part, shape=shape)

    # -- operations on parts ------------------------------------------------------------------

    def product(self, x: Part, y: Part, shape: tuple[int, ...]) -> Part:
        """Return a product of parts."""
        if not isinstance(x, Node) and not isinstance(y, Node):
            return x * y
        for number, other in ((x, y), (y, x)):
            if not isinstance(number, Node):
                if number == 0.0:
                    return 0.0
                if number in (1.0, -1.0):
                    return other if number == 1.0 else self.negative(other, shape)
        return self.op("multiply", shape, x, y)

    def negative(self, x: Part, shape: tuple[int, ...]) -> Part:
        """Return a part with the other sign."""
        if not isinstance(x, Node):
            return -x if x else 0.0
        return self.op("negative", shape, self.array(x, shape))

    def sum(self, x: Part, y: Part, shape: tuple[int, ...]) -> Part:
        """Return a sum of parts."""
        if not isinstance(x, Node) and not isinstance(y, Node):
            return x + y
        for number, other in ((x, y), (y, x)):
            if not isinstance(number, Node) and number == 0.0:
                return other
        return self.op("add", shape, x, y)

    def difference(self, x: Part, y: Part, shape: tuple[int, ...]) -> Part:
        """Return a difference of parts."""
        if not isinstance(y, Node):
            return self.sum(x, -y if y else 0.0, shape)
        if not isinstance(x, Node) and x == 0.0:
            return self.negative(y, shape)
        return self.op("subtract", shape, x, y)

    def times(self, x: Pair, y: Pair, shape: tuple[int, ...]) -> Pair:
        """Return a product of complex values."""
        (a, b), (c, d) = x, y
        re = self.difference(self.product(a, c, shape), self.product(b, d, shape), shape)
        im = self.sum(self.product(a, d, shape), self.product(b, c, shape), shape)
        return re, im

    def quotient(self, x: Pair, y: Pair, shape: tuple[int, ...]) -> Pair:
        """Return a quotient of complex values, by Smith's method, which does not overflow."""
        (a, b), (c, d) = x, y
        if not isinstance(d, Node) and d == 0.0:
            re, im = (self._over(part, c, shape) for part in x)
            return re, im
        own = np.broadcast_shapes(*(p.shape for p in (c, d) if isinstance(p, Node)))
        c, d = self.array(c, own), self.array(d, own)
        sizes = [self.op("absolute", own, part) for part in (c, d)]
        is_real = self.test("greater_equal", own, *sizes)
        large, small = self.op("where", own, is_real, c, d), self.op("where", own, is_real, d, c)
        ratio = self.op("divide", own, small, large)
        scale = self.op("add", own, large, self.op("multiply", own, small, ratio))

        def chosen(one: Part, other: Part, shape: tuple[int, ...] = shape) -> Node:
            return self.op("where", shape, is_real, one, other)

        first, second = chosen(a, b), chosen(b, a)
        turned = self.product(second, ratio, shape)
        re = self.sum(first, turned, shape)
        turned = self.product(first, ratio, shape)
        im = chosen(self.difference(second, turned, shape), self.difference(turned, second, shape))
        return self.op("divide", shape, re, scale), self.op("divide", shape, im, scale)

    def _over(self, x: Part, y: Part, shape: tuple[int, ...]) -> Part:
        if not isinstance(x, Node) and x == 0.0:
            return 0.0
        return self.op("divide", shape, x, y)

    def length(self, x: Pair, shape: tuple[int, ...]) -> Part:
        """Return an absolute value."""
        re, im = x
        if not isinstance(im, Node) and im == 0.0:
            return self.op("absolute", shape, re) if isinstance(re, Node) else abs(re)
        if not isinstance(re, Node) and re == 0.0:
            return self.length((im, re), shape)
        return self.op("hypot", shape, re, im)

    def angle(self, x: Pair, shape: tuple[int, ...]) -> Node:
        """Return an angle."""
        re, im = (self.array(part, shape) for part in x)
        return self.op("arctan2", shape, im, re)


def _has_complex_body(body: Body) -> bool:
    return _has_complex(body.nodes) or any(map(is_complex, (*body.inputs, *body.outputs)))


def of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return an array of a shape without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def constant(array: np.ndarray) -> Part:
    """Return a part of an array that is known, a number if all of its elements are equal."""
    if array.size and np.array_equal(array, np.full_like(array, array.flat[0])):
        if not np.signbit(array).any() or array.flat[0]:  # -0.0 is no zero that products have
            return float(array.flat[0])
    return Node("constant", np.ascontiguousarray(array))


# -- rules: return a pair, a real value, or None for values that stay complex ----------------------

Rule = Callable[[_Parts, Node], "Pair | Node | None"]
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


@_rule("add")
def _add(parts: _Parts, node: Node) -> Pair:
    (a, b), (c, d) = map(parts.pair, node.args)
    return parts.sum(a, c, node.shape), parts.sum(b, d, node.shape)


@_rule("subtract")
def _subtract(parts: _Parts, node: Node) -> Pair:
    (a, b), (c, d) = map(parts.pair, node.args)
    return parts.difference(a, c, node.shape), parts.difference(b, d, node.shape)


@_rule("multiply")
def _multiply(parts: _Parts, node: Node) -> Pair:
    x, y = map(parts.pair, node.args)
    return parts.times(x, y, node.shape)


@_rule("divide")
def _divide(parts: _Parts, node: Node) -> Pair:
    x, y = map(parts.pair, node.args)
    return parts.quotient(x, y, node.shape)


@_rule("reciprocal")
def _reciprocal(parts: _Parts, node: Node) -> Pair:
    return parts.quotient((1.0, 0.0), parts.pair(node.args[0]), node.shape)


@_rule("negative")
def _negative(parts: _Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    return parts.negative(re, node.shape), parts.negative(im, node.shape)


@_rule("positive", "stop_gradient")
def _each(parts: _Parts, node: Node) -> Pair:
    re, im = (_like(parts, node, part) for part in parts.pair(node.args[0]))
    return re, im


@_rule("conjugate")
def _conjugate(parts: _Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    return re, parts.negative(im, node.shape)


@_rule("square")
def _square(parts: _Parts, node: Node) -> Pair:
    x = parts.pair(node.args[0])
    return parts.times(x, x, node.shape)


@_rule("power")
def _power(parts: _Parts, node: Node) -> Pair | None:
    x, exponent = node.args
    if type(exponent) is float and exponent.is_integer():
        exponent = int(exponent)
    if type(exponent) is not int or not 0 < abs(exponent) <= _HIGHEST_POWER:
        return None
    factor, count, found = parts.pair(x), abs(exponent), None
    while count:
        if count % 2:
            found = factor if found is None else parts.times(found, factor, node.shape)
        count //= 2
        if count:
            factor = parts.times(factor, factor, node.shape)
    assert found is not None
    return found if exponent > 0 else parts.quotient((1.0, 0.0), found, node.shape)


@_rule("exp")
def _exp(parts: _Parts, node: Node) -> Pair:
    re, im = parts.pair(node.args[0])
    size: Part = 1.0
    if isinstance(re, Node) or re:
        size = parts.op("exp", node.shape, parts.array(re, node.shape))
    im = parts.array(im, node.shape)
    cos, sin = parts.op("cos", node.shape, im), parts.op("sin", node.shape, im)
    return parts.product(size, cos, node.shape), parts.product(size, sin, node.shape)


@_rule("log")
def _log(parts: _Parts, node: Node) -> Pair:
    x = parts.pair(node.args[0])
    size = parts.array(parts.length(x, node.shape), node.shape)
    return parts.op("log", node.shape, size), parts.angle(x, node.shape)


@_rule("sqrt")
def _sqrt(parts: _Parts, node: Node) -> Pair:
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

    def rule(parts: _Parts, node: Node) -> Pair:
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


_RULES |= {
    "sin": _waves("sin", "cos", 1.0),
    "cos": _waves("cos", "sin", -1.0),
    "sinh": _waves("sinh", "cosh", 1.0),
    "cosh": _waves("cosh", "sinh", 1.0),
}


@_rule("absolute")
def _absolute(parts: _Parts, node: Node) -> Node:
    return parts.array(parts.length(parts.pair(node.args[0]), node.shape), node.shape)


@_rule("angle")
def _angle(parts: _Parts, node: Node) -> Node:
    return parts.angle(parts.pair(node.args[0]), node.shape)


@_rule("real")
def _real(parts: _Parts, node: Node) -> Node:
    return parts.array(parts.pair(node.args[0])[0], node.shape)


@_rule("imaginary")
def _imaginary(parts: _Parts, node: Node) -> Node:
    return parts.array(parts.pair(node.args[0])[1], node.shape)


@_rule("where")
def _where(parts: _Parts, node: Node) -> Pair | None:
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
def _equal(parts: _Parts, node: Node) -> Node:
    (a, b), (c, d) = map(parts.pair, node.args)
    shape = node.shape
    re, im = parts.test(node.name, shape, *_arrays(parts, shape, a, c)), None
    if isinstance(b, Node) or isinstance(d, Node) or b != d:
        im = parts.test(node.name, shape, *_arrays(parts, shape, b, d))
    joined = "logical_and" if node.name == "equal" else "logical_or"
    return re if im is None else parts.test(joined, shape, re, im)


def _arrays(parts: _Parts, shape: tuple[int, ...], x: Part, y: Part) -> tuple[Part, Part]:
    """Return parts of which one at least is an array of a shape."""
    return (parts.array(x, shape) if isinstance(x, Node) else x), parts.array(y, shape)


@_rule("astype")
def _astype(parts: _Parts, node: Node) -> Pair | None:
    (x,) = node.args
    if not is_complex(node):
        return None
    return (parts.pair(x)[0] if is_complex(x) or x.dtype == FLOAT else _like(parts, node, x)), (
        parts.pair(x)[1]
    )


# -- functions that are linear ---------------------------------------------------------------------


def _like(parts: _Parts, node: Node, part: Part) -> Part:
    """Return what a linear function computes of a part of its first argument."""
    if not isinstance(part, Node):
        if not part or node.name != "sum":
            return part
        part = parts.array(part, node.args[0].shape)
    made = copy.copy(node)
    made.like, made.is_unset, made.dtype = of(node.shape, FLOAT), False, FLOAT
    made.args = (part, *(replaced(arg, parts.same) for arg in node.args[1:]))
    if node.name == "astype":
        made.parameters = {**node.parameters, "dtype": FLOAT}
    return parts.new(made)


@_rule(
    *("getitem", "item_at", "transpose", "matrix_transpose", "broadcast_to", "diagonal"),
    *("gather", "reshape", "sum", "cumsum", "embed", "moved"),
)
def _linear(parts: _Parts, node: Node) -> Pair | None:
    x = node.args[0]
    if not isinstance(x, Node) or not is_complex(x):
        return None
    found = []
    for part in parts.pair(x):
        if isinstance(part, Node) and part.shape != x.shape:
            part = parts.array(part, x.shape)
        if not isinstance(part, Node) and part and node.name in ("cumsum", "embed", "moved"):
            part = parts.array(part, x.shape)
        found.append(_like(parts, node, part))
    return found[0], found[1]


@_rule("concatenate")
def _concatenate(parts: _Parts, node: Node) -> Pair:
    (given,) = node.args
    pairs = [parts.pair(value) for value in given]
    found: list[Part] = []
    for place in (0, 1):
        chosen = [pair[place] for pair in pairs]
        if all(not isinstance(part, Node) and part == 0.0 for part in chosen):
            found.append(0.0)
            continue
        arrays = [parts.array(p, value.shape) for p, value in zip(chosen, given, strict=True)]
        made = copy.copy(node)
        made.like, made.is_unset, made.dtype = of(node.shape, FLOAT), False, FLOAT
        made.args = (arrays,)
        found.append(parts.new(made))
    return found[0], found[1]


@_rule("put", "put_at")
def _put(parts: _Parts, node: Node) -> Pair | None:
    base, value, *places = node.args
    if not isinstance(base, Node):
        return None
    found = []
    for whole, part in zip(parts.pair(base), parts.pair(value), strict=True):
        made = copy.copy(node)
        made.like, made.is_unset, made.dtype = of(node.shape, FLOAT), False, FLOAT
        if isinstance(part, Node):
            part = parts.array(part, part.shape)
        made.args = (
            parts.array(whole, base.shape),
            part,
            *(replaced(place, parts.same) for place in places),
        )
        found.append(parts.new(made))
    return found[0], found[1]


@_rule("matmul", "product")
def _matmul(parts: _Parts, node: Node) -> Pair | None:
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
        made = copy.copy(node)
        made.like, made.is_unset, made.dtype = of(node.shape, FLOAT), False, FLOAT
        made.args = (one, other)
        return parts.new(made)

    re = parts.difference(product(a, c), product(b, d), node.shape)
    return re, parts.sum(product(a, d), product(b, c), node.shape)


# -- loops and branches ----------------------------------------------------------------------------

_BLOCKS: dict[str, Callable[[_Parts, Node], Node | None]] = {}


def _block(name: str) -> Callable[[Any], Any]:
    def add(rule: Any) -> Any:
        _BLOCKS[name] = rule
        return rule

    return add


def _in_parts(body: Body) -> tuple[Body, list[list[int]]]:
    """Return a body without complex arguments and results, and the numbers of the results."""
    made = _Parts()
    body = body.part(range(len(body.outputs)))  # a copy: other loops may have it
    inputs: list[Node] = []
    for given in body.inputs:
        if not is_complex(given):
            inputs.append(given)
            continue
        pair = [Node("input", of(given.shape, FLOAT), (), given.parameters) for _ in range(2)]
        made.pairs[given] = pair[0], pair[1]
        inputs += pair
    for node in body.nodes:
        made.add(node)
    outputs: list[Node] = []
    numbers = []
    for node in body.outputs:
        found = (
            [made.array(part, node.shape) for part in made.pair(node)]
            if is_complex(node)
            else [made.whole(node)]
        )
        numbers.append([len(outputs) + k for k in range(len(found))])
        outputs += found
    return Body(made.nodes, inputs, outputs), numbers


def _spread(parts: _Parts, values: Sequence[Any], inputs: Sequence[Node]) -> list[Any]:
    """Return arguments of a body with parts in place of complex ones.

    Parameters
    ----------
    values
        The arguments.
    inputs
        What stands for them in the body; rows of arrays stand for the arrays.
    """
    found: list[Any] = []
    for value, own in zip(values, inputs, strict=True):
        if is_complex(own):
            shape = value.shape if isinstance(value, Node) else own.shape
            found += [parts.array(part, shape) for part in parts.pair(value)]
        else:
            found.append(parts.whole(value) if isinstance(value, Node) else value)
    return found


def _block_of(parts: _Parts, node: Node, args: list[Any], bodies: list[Any]) -> Node:
    made = copy.copy(node)
    made.args = tuple(args)
    made.parameters = {**node.parameters, "bodies": [body for body, _ in bodies]}
    parts.numbers[made] = bodies[-1][1]
    return parts.new(made)


@_block("for_loop")
def _for_loop(parts: _Parts, node: Node) -> Node:
    starts, rows, given, bounds = node.args
    (body,) = node.parameters["bodies"]
    count = len(starts)
    places = [*range(count), *range(count + 1, len(body.inputs))]
    inputs = [body.inputs[k] for k in places]
    ends = [count, count + len(rows)]
    args = [
        _spread(parts, starts, inputs[: ends[0]]),
        _spread(parts, rows, inputs[ends[0] : ends[1]]),
        _spread(parts, given, inputs[ends[1] :]),
        replaced(bounds, parts.same),
    ]
    return _block_of(parts, node, args, [_in_parts(body)])


@_block("while_loop")
def _while_loop(parts: _Parts, node: Node) -> Node:
    starts, for_test, for_body = node.args
    test, body = node.parameters["bodies"]
    count = len(starts)
    args = [
        _spread(parts, starts, body.inputs[:count]),
        _spread(parts, for_test, test.inputs[count:]),
        _spread(parts, for_body, body.inputs[count:]),
    ]
    return _block_of(parts, node, args, [_in_parts(test), _in_parts(body)])


@_block("switch")
def _switch(parts: _Parts, node: Node) -> Node:
    which, operands, *given = node.args
    bodies = node.parameters["bodies"]
    count = len(operands)
    args = [
        parts.whole(which) if isinstance(which, Node) else which,
        _spread(parts, operands, bodies[0].inputs[:count]),
        *(
            _spread(parts, values, body.inputs[count:])
            for values, body in zip(given, bodies, strict=True)
        ),
    ]
    return _block_of(parts, node, args, [_in_parts(body) for body in bodies])


@_block("derivative")
def _derivative(parts: _Parts, node: Node) -> Node | None:
    (body,) = node.parameters["bodies"]
    if any(map(is_complex, (*body.inputs, *body.outputs))):
        return None
    found = copy.copy(node)
    found.args = parts.with_wholes(node.args)
    found.parameters = {**node.parameters, "bodies": [_in_parts(body)[0]]}
    return parts.new(found)
