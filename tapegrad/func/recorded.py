"""Derivatives inside of a function that is recorded (see `tapegrad.jit`).

The differentiated function is recorded as a function of its own, whose compiled derivative the
recorded program calls. Values that it reads from around it are arguments without derivatives.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.calls import Argnums, check_differentiable, numbers_of
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Body, Node
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import NotRecordedError
from tapegrad.eager.traced_callbacks import emptied, filled
from tapegrad.eager.traced_control import (
    Recorded,
    add_block,
    inlined,
    node_of,
    recorded_body,
)
from tapegrad.func.common import cotangents_like, scalar_of
from tapegrad.pytrees import Build, structure, tree

Arguments = tuple[Any, ...]


class _Part:
    """A function that is recorded, once, to be differentiated.

    Parameters
    ----------
    name
        The transform, for errors.
    f, args, kwargs
        The function and its arguments.
    argnums
        Positions of the differentiated arguments.
    choose
        Returns the results that are differentiated, a list of tensors, and others, for what `f`
        returns.

    Attributes
    ----------
    points
        The leaves of the differentiated arguments: tensors.
    recorded
        The function of these.
    outputs
        Its results that are differentiated.
    other
        What else it returned, with places for tensors.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        args: Arguments,
        kwargs: dict[str, Any],
        argnums: Argnums,
        choose: Callable[[Any], tuple[list[Any], Any]],
    ) -> None:
        self.name = name
        self.single = isinstance(argnums, int)
        self.numbers = numbers_of(argnums, len(args), name)
        self._trees: list[tuple[int, Build]] = []
        starts: list[Node] = []
        for number in self.numbers:
            leaves, build = tree(args[number], f"{name}: argument {number}")
            for leaf in leaves:
                check_differentiable(leaf, args[number], number, name)
            self._trees.append((len(leaves), build))
            starts += map(_float_node, leaves)
        self.points = [*map(MODE.thread.trace.tensor, starts)]
        self.shapes = [node.shape for node in starts]
        self.other: Any = None
        count = 0

        def function(*values: Any) -> list[Any]:
            nonlocal count
            given = [*args]
            for number, part in zip(self.numbers, self._parts([*values]), strict=True):
                given[number] = part
            found, other = choose(MODE.with_recording(True, lambda: f(*given, **kwargs)))
            others: list[Any] = []
            self.other = emptied(other, others)
            count = len(found)
            return [*found, *others]

        self.recorded: Recorded = recorded_body(function, [node.example for node in starts])
        self.outputs = self.recorded.body.outputs[:count]
        if not any(map(self._depends, self.outputs)):
            raise NotRecordedError(f"{name}: the result does not depend on the argument")
        if any(node.dtype != np.float64 for node in (*starts, *self.outputs)):
            raise NotRecordedError(f"a derivative with other dtypes than {np.dtype(float)}")

    def _depends(self, output: Node) -> bool:
        """Whether derivatives of a result with respect to the arguments may differ from zero."""
        inputs = {*self.recorded.body.inputs[: len(self.points)]}
        waiting, seen = [output], {output}
        while waiting:
            node = waiting.pop()
            if node in inputs:
                return True
            if node.name != "stop_gradient":
                new = {*node.inputs()} - seen
                seen |= new
                waiting += new
        return False

    def _parts(self, leaves: Sequence[Any]) -> list[Any]:
        """Return values for the leaves of the arguments in the structure of these."""
        made, start = [], 0
        for count, build in self._trees:
            made.append(build([*leaves[start : start + count]]))
            start += count
        return made

    def like_arguments(self, leaves: Sequence[Any]) -> Any:
        """Return values for the leaves of the arguments as the transform returns them."""
        made = self._parts(leaves)
        return made[0] if self.single else tuple(made)

    def directions(self, given: Sequence[Any], like: Sequence[Any]) -> list[Node]:
        """Return the leaves of vectors that are like the arguments.

        Op by op, others give the error that says what is wrong.
        """
        found: list[Node] = []
        if len(given) == len(like) and [*map(structure, given)] == [*map(structure, like)]:
            leaves = [leaf for vector in given for leaf in tree(vector, self.name)[0]]
            found = [*map(_float_node, leaves)]
        if [node.shape for node in found] != self.shapes:
            raise NotRecordedError(f"{self.name}: vectors that are not like the arguments")
        return found

    def values(self) -> tuple[list[Tensor], Any]:
        """Record the results themselves; return those that are differentiated, and others.

        The function runs once more then.
        """
        self.refuse_effects()
        found = inlined(self.recorded, self.points)
        count = len(self.outputs)
        return found[:count], filled(self.other, found[count:])

    def refuse_effects(self) -> None:
        """Refuse to run the function more than once if that makes a difference."""
        if self.recorded.body.has_effects():
            raise NotRecordedError(f"{self.name} of a function that calls Python")

    def add(
        self,
        transform: str,
        examples: list[Any],
        directions: Sequence[Node] = (),
        numbers: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Record the call of a derivative; return tensors that stand for its results.

        Parameters
        ----------
        transform
            Its public name.
        examples
            Arrays with the shapes of the results.
        directions
            Its arguments after those of the function.
        numbers
            Which results of the function are differentiated; by default, all of `outputs`.
        """
        body = self.recorded.body
        if numbers is None and len(body.outputs) != len(self.outputs):
            numbers = range(len(self.outputs))
        if numbers is not None:
            body = body.part(numbers)
        return _added(transform, self.points, self.recorded, body, examples, directions)


def _added(
    transform: str,
    points: list[Tensor],
    recorded: Recorded,
    body: Body,
    examples: list[Any],
    directions: Sequence[Node] = (),
) -> list[Tensor]:
    args = ([*map(node_of, points)], [*map(node_of, recorded.around)], [*directions])
    return add_block("derivative", args, (body,), examples, None, transform=transform)


def _float_node(leaf: Any) -> Node:
    node = node_of(leaf)
    if node.name == "constant" and not node.shape and node.dtype.kind in "iu":
        return Node("constant", node.example.astype(np.float64))
    return node


def _example(shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(0.0, shape)


def _pair(found: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return the result of a function, and what is not differentiated."""
    if not has_aux:
        return found, None
    result, aux = found
    return result, aux


def value_and_grad(
    f: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    args: Arguments,
    kwargs: dict[str, Any],
    name: str = "value_and_grad",
) -> Any:
    """Record a value and gradient."""
    shapes: list[tuple[int, ...]] = []

    def choose(found: Any) -> tuple[list[Any], Any]:
        result, aux = _pair(found, has_aux)
        value = scalar_of(result, name)
        shapes.append(value.shape)
        return [value.reshape(()) if value.shape else value], aux

    part = _Part(name, f, args, kwargs, argnums, choose)
    examples = [*map(_example, ((), *part.shapes))]
    value, *gradients = part.add("value_and_grad", examples)
    found: Any = value.reshape(shapes[-1]) if shapes[-1] else value
    if has_aux:
        found = found, part.values()[1]
    return found, part.like_arguments(gradients)


def grad(
    f: Callable[..., Any], argnums: Argnums, has_aux: bool, args: Arguments, kwargs: dict[str, Any]
) -> Any:
    """Record a gradient."""
    value, gradient = value_and_grad(f, argnums, has_aux, args, kwargs, "grad")
    return (gradient, value[1]) if has_aux else gradient


class _Several:
    """Takes the leaves out of the result of a function, and puts others in their places."""

    def __init__(self, name: str, has_aux: bool) -> None:
        self.name, self.has_aux = name, has_aux
        self.build: Build = lambda leaves: leaves[0]

    def __call__(self, found: Any) -> tuple[list[Any], Any]:
        """Return the leaves, and what is not differentiated."""
        result, aux = _pair(found, self.has_aux)
        leaves, self.build = tree(result, f"{self.name}: the result")
        return leaves, aux


def jvp(f: Callable[..., Any], argnums: Argnums, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Record a value and its derivative along tangents, which are the last arguments."""
    count = 1 if isinstance(argnums, int) else len(argnums)
    primals, tangents = args[: len(args) - count], args[len(args) - count :]
    chosen = _Several("jvp", False)
    part = _Part("jvp", f, primals, kwargs, argnums, chosen)
    values, dots = _along(part, tangents, [primals[n] for n in part.numbers])
    return chosen.build(values), chosen.build(dots)


def _along(
    part: _Part, tangents: Sequence[Any], primals: Sequence[Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Record the results of a function, and their derivatives along tangents."""
    directions = part.directions(tangents, primals)
    found = part.add("jvp", [_example(node.shape) for node in part.outputs] * 2, directions)
    half = len(part.outputs)
    return found[:half], found[half:]


def hvp(f: Callable[..., Any], argnums: int, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Record the product of a Hessian with a vector, which is the last argument."""
    *primals, vector = args

    def choose(found: Any) -> tuple[list[Any], Any]:
        value = scalar_of(found, "hvp")
        return [value.reshape(()) if value.shape else value], None

    part = _Part("hvp", f, tuple(primals), kwargs, argnums, choose)
    directions = part.directions([vector], [primals[argnums]])
    if len(part.points) != 1:
        raise NotRecordedError("hvp with respect to several arrays")
    return part.like_arguments(part.add("hvp", [_example(part.shapes[0])], directions))


def jacobian(
    f: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    args: Arguments,
    kwargs: dict[str, Any],
    name: str = "jacobian",
) -> Any:
    """Record a Jacobian."""
    chosen = _Several(name, has_aux)
    part = _Part(name, f, args, kwargs, argnums, chosen)
    if len(part.outputs) > 1:
        part.refuse_effects()  # it runs once for each result

    def block(number: int) -> Any:
        shapes = [(*part.outputs[number].shape, *shape) for shape in part.shapes]
        found = part.add("jacobian", [*map(_example, shapes)], (), [number])
        return part.like_arguments(found)

    made = chosen.build([block(number) for number in range(len(part.outputs))])
    return (made, part.values()[1]) if has_aux else made


def vjp(f: Callable[..., Any], primals: Arguments, has_aux: bool) -> tuple[Any, ...]:
    """Record a value; return it and what records cotangents of the arguments."""
    chosen = _Several("vjp", has_aux)
    part = _Part("vjp", f, primals, {}, tuple(range(len(primals))), chosen)
    outputs, aux = part.values()
    result = chosen.build(outputs)

    def pullback(cotangent: Any) -> Any:
        given = cotangents_like(outputs, result, cotangent)

        def product(*values: Any) -> list[Any]:
            leaves = inlined(part.recorded, values)
            terms = [FUNCTIONS["sum"](z * g) for z, g in zip(leaves, given, strict=False)]
            return [functools.reduce(operator.add, terms)]

        examples = [*map(_example, part.shapes)]
        recorded = recorded_body(product, examples)
        found = _added(
            "value_and_grad", part.points, recorded, recorded.body, [_example(()), *examples]
        )
        return part.like_arguments(found[1:])

    return (result, pullback, aux) if has_aux else (result, pullback)


def linearize(f: Callable[..., Any], primals: Arguments, has_aux: bool) -> tuple[Any, ...]:
    """Record a value; return it and what records its derivative along tangents."""
    chosen = _Several("linearize", has_aux)
    part = _Part("linearize", f, primals, {}, tuple(range(len(primals))), chosen)
    outputs, aux = part.values()

    def pushforward(*tangents: Any) -> Any:
        return chosen.build(_along(part, tangents, primals)[1])

    value = chosen.build(outputs)
    return (value, pushforward, aux) if has_aux else (value, pushforward)
