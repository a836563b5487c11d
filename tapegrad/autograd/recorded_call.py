"""A recorded call of a function of tensors, and the derivatives of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.autograd.api import grad
from tapegrad.autograd.batches import unit_directions
from tapegrad.autograd.tangents import columns_of, tangents_of
from tapegrad.cuda.array import filled, zeros
from tapegrad.eager.duals import without_history
from tapegrad.eager.inplace import read_item
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.table.op import is_complex

Tensors = tuple[Tensor, ...]
_OUTPUTS = "outputs of the user-provided function"


class RecordedCall:
    """A recorded call of the function, and the derivatives of its outputs.

    Parameters
    ----------
    func, inputs, create_graph, strict
        Those of the public function.
    name
        Its name.
    given
        Whether the inputs are recorded already.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        inputs: Any,
        name: str,
        create_graph: bool,
        strict: bool,
        given: bool = False,
    ) -> None:
        self.name, self.create_graph, self.strict = name, create_graph, strict
        self.has_inputs, passed = tensors_of(inputs, "inputs", name)
        self.inputs = passed if given else tuple(_input(x, create_graph) for x in passed)
        self.has_outputs, self.outputs = tensors_of(func(*self.inputs), _OUTPUTS, name)
        if strict:
            for k, z in enumerate(self.outputs):
                if not z.requires_grad:
                    raise RuntimeError(
                        f"Output {k} of the user-provided function does not require gradients. The "
                        "outputs must be computed in a differentiable manner from the input when "
                        "running in strict mode."
                    )

    def vector(self, v: Any, of_outputs: bool = False) -> Tensors:
        """Return the vector of a product, with the structure of the inputs or outputs.

        If they are a single number, it is 1 by default.
        """
        is_tuple, like = self.has_inputs, self.inputs
        what = "the input to the user-provided function is"
        if of_outputs:
            is_tuple, like = self.has_outputs, self.outputs
            what = "the user-provided function returns"
        if v is None:
            if len(like) != 1 or like[0].size != 1:
                raise RuntimeError(
                    f"The vector v can only be None if {what} a single Tensor with a single "
                    "element."
                )
            return (_ones(like[0]),)
        _, found = tensors_of(v, "v", self.name)
        if len(found) != len(like):
            if not is_tuple:
                raise RuntimeError("The given v should contain a single Tensor.")
            raise RuntimeError(
                f"v is a tuple of invalid length: should be {len(like)} but got {len(found)}."
            )
        for k, (one, other) in enumerate(zip(found, like, strict=True)):
            entry = f"Entry {k} in " if is_tuple else ""
            if one.shape != other.shape:
                raise RuntimeError(
                    f"{entry}v has invalid size: should be {list(other.shape)} but got "
                    f"{list(one.shape)}."
                )
            if is_complex(one) != is_complex(other):
                raise RuntimeError(
                    f"{entry}v has dtype {one.dtype}, and what it belongs to {other.dtype}: for "
                    "complex Tensors, both are required to have the same dtype."
                )
        return tuple(t if self.create_graph else without_history(t) for t in found)

    # -- derivatives ------------------------------------------------------------------------------

    def cotangents(
        self, outputs: Tensors, v: Sequence[Tensor], unused: str, what: str
    ) -> list[Tensor]:
        """Return the cotangents of the inputs for those of outputs (or of the gradient).

        Strict mode refuses None, as the independence of `unused`, and cotangents without history,
        as that of `what`.
        """
        found = []
        for k, g in enumerate(_gradients(outputs, self.inputs, v, self.create_graph)):
            if g is None:
                self.refuse(unused, k)
            elif self.create_graph:
                self.refuse_passive(g, what, k)
            found.append(_zeros(self.inputs[k]) if g is None else g)
        return found

    def check_dependence(self) -> None:
        """In strict mode, raise if no output depends on an input."""
        if self.strict:
            ones = [_ones(z) for z in self.outputs]
            for k, g in enumerate(_gradients(self.outputs, self.inputs, ones, False)):
                if g is None:
                    self.refuse("output", k)

    def gradients(self) -> Tensors:
        """Return the recorded gradient of the only element of the output."""
        if self.has_outputs and len(self.outputs) != 1:
            raise RuntimeError(f"The function given to {self.name} should return a single Tensor")
        if self.outputs[0].size != 1:
            raise RuntimeError(
                f"The Tensor returned by the function given to {self.name} should contain a single "
                "element"
            )
        rows = _gradients(self.outputs, self.inputs, [_ones(self.outputs[0])], True)
        found = []
        for k, (g, x) in enumerate(zip(rows, self.inputs, strict=True)):
            if g is None and self.name != "hessian":
                self.refuse("output", k)
            if self.strict and (g is None or not g.requires_grad):
                raise RuntimeError(
                    "While computing the hessian, found that the jacobian of the user-provided "
                    f"function with respect to input {k} is independent of the input. This is not "
                    "allowed in strict mode. You should ensure that your function is twice "
                    "differentiable and that the jacobian depends on the inputs (this would be "
                    "violated by a linear function for example)."
                )
            found.append(_zeros(x) if g is None else g)
        return tuple(found)

    def tangents(self, outputs: Tensors, v: Tensors, what: str) -> list[Tensor]:
        """Return the tangents of outputs (or of the gradient) for those of the inputs."""
        rows = tangents_of(outputs, self.inputs, v, self.create_graph)
        found = []
        for k, (t, z) in enumerate(zip(rows, outputs, strict=True)):
            if self.create_graph and t is not None:
                self.refuse_passive(t, what, k)
            found.append(_zeros(z) if t is None else t)
        return found

    def rows(self, vectorize: bool) -> list[list[Tensor]]:
        """Return the blocks of the Jacobian for every output, by rows."""
        blocks = []
        for number, z in enumerate(self.outputs):
            if z.dtype.kind == "c" and not vectorize:
                raise RuntimeError(
                    f"grad can be implicitly created only for real scalar outputs but got {z.dtype}"
                )
            if vectorize and z.requires_grad and z.size:
                blocks.append(self.batched_block(z))
                continue
            units = [unit_directions(z, k, k + 1)[0] for k in range(z.size)]
            rows = [_gradients([z], self.inputs, [u], self.create_graph) for u in units]
            blocks.append(
                [
                    self.block(number, z, k, x, [row[k] for row in rows])
                    for k, x in enumerate(self.inputs)
                ]
            )
        return blocks

    def batched_block(self, z: Tensor) -> list[Tensor]:
        """Return the Jacobians of an output, from all its rows at once."""
        found = grad(
            [z],
            self.inputs,
            [unit_directions(z, 0, z.size)],
            retain_graph=True,
            create_graph=self.create_graph,
            allow_unused=True,
            is_grads_batched=True,
        )
        shapes = [(*z.shape, *x.shape) for x in self.inputs]
        return [
            wrap(zeros(shape, x.dtype, x.device))
            if rows is None
            else FUNCTIONS["reshape"](rows, shape)
            for rows, x, shape in zip(found, self.inputs, shapes, strict=True)
        ]

    def block(self, number: int, z: Tensor, k: int, x: Tensor, rows: list[Tensor | None]) -> Tensor:
        """Return the Jacobian of an output with respect to an input, from its rows."""
        for row in rows:
            if row is None:
                self.refuse("output", k, number)
            elif self.create_graph:
                self.refuse_passive(row, "jacobian", k)
        items = [_zeros(x) if row is None else row for row in rows]
        shape = (*z.shape, *x.shape)
        if not math.prod(shape):
            return wrap(zeros(shape, x.dtype, x.device))
        return FUNCTIONS["reshape"](FUNCTIONS["stack"](items), shape)

    def columns(self) -> list[list[Tensor]]:
        """Return the blocks of the Jacobian for every output, by columns."""
        return columns_of(self.outputs, self.inputs, self.create_graph)

    # -- strict mode ------------------------------------------------------------------------------

    def refuse(self, what: str, k: int, output: int | None = None) -> None:
        """Raise in strict mode: something is independent of an input."""
        if self.strict:
            which = f"The {what}" if output is None else f"Output {output}"
            raise RuntimeError(
                f"{which} of the user-provided function is independent of input {k}. This is not "
                "allowed in strict mode."
            )

    def refuse_passive(self, found: Tensor, what: str, k: int) -> None:
        """Raise in strict mode if a recorded derivative has no history."""
        if self.strict and not found.requires_grad:
            raise RuntimeError(
                f"The {what} of the user-provided function is independent of input {k}. This is "
                "not allowed in strict mode when create_graph=True."
            )

    # -- results ----------------------------------------------------------------------------------

    def packed(self, found: Sequence[Tensor], is_tuple: bool | None = None) -> Any:
        """Return tensors in the structure of the inputs, without history unless it is wanted."""
        tensors = tuple(t if self.create_graph else without_history(t) for t in found)
        return tensors if (self.has_inputs if is_tuple is None else is_tuple) else tensors[0]

    def packed_outputs(self) -> Any:
        """Return the outputs in their structure."""
        return self.packed(self.outputs, self.has_outputs)


def tensors_of(given: Any, what: str, name: str) -> tuple[bool, Tensors]:
    """Return whether a value is a tuple, and its tensors."""
    is_tuple = isinstance(given, tuple)
    found = given if is_tuple else (given,)
    for k, value in enumerate(found):
        if not isinstance(value, Tensor):
            which = f"the value at index {k}" if is_tuple else f"the given {what}"
            raise TypeError(
                f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but "
                f"{which} has type {type(value)}."
            )
    return is_tuple, found


def _input(x: Tensor, create_graph: bool) -> Tensor:
    """Return an input that is recorded: a view with its history, or a new leaf."""
    if create_graph and x.requires_grad:
        return read_item(x, ...)
    return without_history(x).requires_grad_()


def _gradients(
    outputs: Sequence[Tensor], inputs: Tensors, v: Sequence[Tensor], create_graph: bool
) -> Sequence[Tensor | None]:
    """Return the cotangents of inputs, None for those that no output depends on."""
    pairs = [(z, g) for z, g in zip(outputs, v, strict=True) if z.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    return grad(
        [z for z, _ in pairs],
        inputs,
        [g for _, g in pairs],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )


def _zeros(like: Tensor) -> Tensor:
    return wrap(zeros(like.shape, like.dtype, like.device))


def _ones(like: Tensor) -> Tensor:
    return wrap(filled(1.0, like.shape, like.dtype, like.device))
