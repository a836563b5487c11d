"""The parts of complex values, and what is computed from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.ops.table.op import TABLE
from tapegrad.replay.forms import BOOLEAN, COMPLEX, FLOAT
from tapegrad.replay.lowering import of

Part = Node | float
Pair = tuple[Part, Part]


def is_complex(value: Any) -> bool:
    """Whether a value, or a number, is complex."""
    return value.dtype == COMPLEX if isinstance(value, Node) else isinstance(value, complex)


@dataclass(frozen=True)
class Spectrum:
    """What a Fourier transform of real numbers is.

    Attributes
    ----------
    x
        The real numbers.
    name
        The op, ``fourier`` or ``fourier_adjoint``.
    axis
        The first axis along which they were transformed.
    others
        The others, as bits.
    """

    x: Node
    name: str
    axis: int
    others: int = 0

    def has(self, axis: int) -> bool:
        """Whether they were transformed along an axis."""
        return axis == self.axis or bool(self.others >> axis & 1)

    def along(self, axis: int) -> Spectrum:
        """Return the transform along one more axis."""
        return replace(self, others=self.others | 1 << axis)


class Parts:
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
        self.spectra: dict[Node, Spectrum] = {}  # transforms of real numbers
        self.doubled: dict[tuple[Node, tuple[int, ...]], Node] = {}  # matrices of both parts
        self.pairs_of: dict[Part, tuple[Node, int]] = {}  # parts: of an array of pairs, and which

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

    def real_like(self, node: Node, args: tuple[Any, ...]) -> Node:
        """Return the float64 value of the same op of other arguments."""
        made = copy.copy(node)
        made.like, made.is_unset, made.dtype, made.args = of(node.shape, FLOAT), False, FLOAT, args
        return self.new(made)

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
            if isinstance(value, complex):  # or one of NumPy's
                return float(value.real), float(value.imag)
            return value, 0.0
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


def constant(array: np.ndarray) -> Part:
    """Return a part of an array that is known, a number if all of its elements are equal."""
    if array.size and np.array_equal(array, np.full_like(array, array.flat[0])):
        if not np.signbit(array).any() or array.flat[0]:  # -0.0 is no zero that products have
            return float(array.flat[0])
    return Node("constant", np.ascontiguousarray(array))
