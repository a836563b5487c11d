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
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import Node, NotRecordedError
from tapegrad.eager.traced_control import Recorded, add_block, node_of, recorded_body
from tapegrad.func.common import cotangents_like, scalar_of
from tapegrad.pytrees import Build, structure, tree

Arguments = tuple[Any, ...]


class _Part:
    """A function that is recorded to be differentiated.

    Parameters
    ----------
    name
        The transform, for errors.
    f, args, kwargs
        The function and its arguments.
    argnums
        Positions of the differentiated arguments.
    choose
        Returns the results of the recorded function: a list of tensors, for what `f` returns.

    Attributes
    ----------
    starts
        The leaves of the differentiated arguments.
    recorded
        The function of these.
    outputs
        Its results.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        args: Arguments,
        kwargs: dict[str, Any],
        argnums: Argnums,
        choose: Callable[[Any], list[Any]],
    ) -> None:
        self.name = name
        self.single = isinstance(argnums, int)
        self.numbers = numbers_of(argnums, len(args), name)
        self._trees: list[tuple[int, Build]] = []
        self.starts: list[Node] = []
        for number in self.numbers:
            leaves, build = tree(args[number], f"{name}: argument {number}")
            for leaf in leaves:
                check_differentiable(as_tensor(leaf).dtype, number, name)
            self._trees.append((len(leaves), build))
            self.starts += map(_float_node, leaves)

        def function(*values: Any) -> list[Any]:
            given = [*args]
            for number, part in zip(self.numbers, self._parts([*values]), strict=True):
                given[number] = part
            return choose(MODE.with_recording(True, lambda: f(*given, **kwargs)))

        self.recorded: Recorded = recorded_body(function, [node.example for node in self.starts])
        self.outputs = self.recorded.body.outputs
        if not any(map(self._depends, self.outputs)):
            raise NotRecordedError(f"{name}: the result does not depend on the argument")
        if any(node.dtype != np.float64 for node in (*self.starts, *self.outputs)):
            raise NotRecordedError(f"a derivative with other dtypes than {np.dtype(float)}")

    def _depends(self, output: Node) -> bool:
        """Whether derivatives of a result with respect to the arguments may differ from zero."""
        inputs = {*self.recorded.body.inputs[: len(self.starts)]}
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
        if [node.shape for node in found] != [node.shape for node in self.starts]:
            raise NotRecordedError(f"{self.name}: vectors that are not like the arguments")
        return found

    def add(
        self, transform: str, examples: list[Any], directions: Sequence[Node] = ()
    ) -> list[Tensor]:
        """Record the call of the derivative; return tensors that stand for its results.

        Parameters
        ----------
        transform
            Its public name.
        examples
            Arrays with the shapes of the results.
        directions
            Its arguments after those of the function.
        """
        args = (self.starts, self.recorded.given, [*directions])
        bodies = (self.recorded.body,)
        return add_block("derivative", args, bodies, examples, None, transform=transform)


def _float_node(leaf: Any) -> Node:
    node = node_of(leaf)
    if node.name == "constant" and not node.shape and node.dtype.kind in "iu":
        return Node("constant", node.example.astype(np.float64))
    return node


def _example(shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(0.0, shape)


def _scalar(name: str, has_aux: bool) -> Callable[[Any], list[Any]]:
    """Return what takes the scalar out of the result of a function."""

    def choose(found: Any) -> list[Any]:
        value = scalar_of(found[0] if has_aux else found, name)
        return [value.reshape(()) if value.shape else value]

    return choose


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
    choose = _scalar(name, has_aux)

    def chosen(found: Any) -> list[Any]:
        shapes.append(np.shape(found[0] if has_aux else found))
        return choose(found)

    part = _Part(name, f, args, kwargs, argnums, chosen)
    examples = [_example(node.shape) for node in (*part.outputs, *part.starts)]
    value, *gradients = part.add("value_and_grad", examples)
    found: Any = value.reshape(shapes[-1]) if shapes[-1] else value
    if has_aux:  # it may be anything, and is not differentiated here
        found = found, f(*args, **kwargs)[1]
    return found, part.like_arguments(gradients)


def grad(
    f: Callable[..., Any], argnums: Argnums, has_aux: bool, args: Arguments, kwargs: dict[str, Any]
) -> Any:
    """Record a gradient."""
    value, gradient = value_and_grad(f, argnums, has_aux, args, kwargs, "grad")
    return (gradient, value[1]) if has_aux else gradient


def jvp(
    f: Callable[..., Any],
    argnums: Argnums,
    args: Arguments,
    kwargs: dict[str, Any],
    name: str = "jvp",
) -> Any:
    """Record a value and its derivative along tangents, which are the last arguments."""
    count = 1 if isinstance(argnums, int) else len(argnums)
    primals, tangents = args[: len(args) - count], args[len(args) - count :]
    builds: list[Build] = []

    def choose(found: Any) -> list[Any]:
        leaves, build = tree(found, f"{name}: the result")
        builds.append(build)
        return leaves

    part = _Part(name, f, primals, kwargs, argnums, choose)
    directions = part.directions(tangents, [primals[n] for n in part.numbers])
    examples = [_example(node.shape) for node in part.outputs] * 2
    found = part.add("jvp", examples, directions)
    half = len(part.outputs)
    return builds[-1](found[:half]), builds[-1](found[half:])


def hvp(f: Callable[..., Any], argnums: int, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Record the product of a Hessian with a vector, which is the last argument."""
    *primals, vector = args
    part = _Part("hvp", f, tuple(primals), kwargs, argnums, _scalar("hvp", False))
    directions = part.directions([vector], [primals[argnums]])
    if len(part.starts) != 1:
        raise NotRecordedError("hvp with respect to several arrays")
    found = part.add("hvp", [_example(part.starts[0].shape)], directions)
    return part.like_arguments(found)


def jacobian(
    f: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    args: Arguments,
    kwargs: dict[str, Any],
    name: str = "jacobian",
) -> Any:
    """Record a Jacobian."""
    found = f(*args, **kwargs)
    result, aux = found if has_aux else (found, None)
    leaves, build = tree(result, f"{name}: the result")

    def block(number: int) -> Any:
        def choose(found: Any) -> list[Any]:
            leaf = tree(found[0] if has_aux else found, name)[0][number]
            return [leaf]

        part = _Part(name, f, args, kwargs, argnums, choose)
        (output,) = part.outputs
        shapes = [(*output.shape, *start.shape) for start in part.starts]
        return part.like_arguments(part.add("jacobian", [*map(_example, shapes)]))

    made = build([block(number) for number in range(len(leaves))])
    return (made, aux) if has_aux else made


def vjp(f: Callable[..., Any], primals: Arguments, has_aux: bool) -> tuple[Any, ...]:
    """Record a value; return it and what records cotangents of the arguments."""
    found = f(*primals)
    result, aux = found if has_aux else (found, None)
    outputs, build = tree(result, "vjp: the result")

    def pullback(cotangent: Any) -> Any:
        given = cotangents_like(outputs, result, cotangent)

        def product(found: Any) -> list[Any]:
            leaves, _ = tree(found[0] if has_aux else found, "vjp: the result")
            terms = [FUNCTIONS["sum"](z * g) for z, g in zip(leaves, given, strict=True)]
            return [functools.reduce(operator.add, terms)]

        part = _Part("vjp", f, primals, {}, tuple(range(len(primals))), product)
        examples = [_example(node.shape) for node in (*part.outputs, *part.starts)]
        return part.like_arguments(part.add("value_and_grad", examples)[1:])

    return (build(outputs), pullback, aux) if has_aux else (build(outputs), pullback)


def linearize(f: Callable[..., Any], primals: Arguments, has_aux: bool) -> tuple[Any, ...]:
    """Record a value; return it and what records its derivative along tangents."""
    found = f(*primals)
    numbers = tuple(range(len(primals)))

    def value_of(*args: Any) -> Any:
        return f(*args)[0] if has_aux else f(*args)

    def pushforward(*tangents: Any) -> Any:
        if len(tangents) != len(primals):
            raise NotRecordedError("linearize: vectors that are not like the arguments")
        return jvp(value_of, numbers, (*primals, *tangents), {}, "linearize")[1]

    return (found[0], pushforward, found[1]) if has_aux else (found, pushforward)
