"""Numerical and analytical Jacobians of a function at a point, for `gradcheck`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.autograd.api import grad
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.tensor import Tensor
from tapegrad.ops.table.op import is_complex

Tensors = Tensor | Sequence[Tensor]
Checked = Callable[..., Tensors]


class GradcheckError(RuntimeError):
    """Raised by `gradcheck` and `gradgradcheck` if a derivative is wrong."""

    __module__ = "tapegrad.autograd.gradcheck"  # where users find it


class Rules(NamedTuple):
    """What is checked, and how closely; the names are short for the arguments of `gradcheck`."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    undefined: bool
    dtypes: bool
    fast: bool
    backward: bool
    batched: bool
    forward: bool
    batched_forward: bool


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the items of a tuple or list, or a single value, as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def array_of(x: Tensor) -> np.ndarray:
    """Return the values of a tensor on the host."""
    return x.detach().cpu().numpy()


def differentiable(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that require gradients."""
    return [x for x in values if isinstance(x, Tensor) and x.requires_grad]


def outputs_of(func: Checked, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """Call the function; return its outputs, after checking that they are tensors."""
    outputs = as_tuple(func(*args))
    for k, output in enumerate(outputs):
        if not isinstance(output, Tensor):
            raise TypeError(f"output {k} of func is a {type(output).__name__}, not a Tensor")
    return outputs


def random_cotangent(output: Tensor, rng: np.random.Generator, strided: bool) -> Tensor:
    """Return a random cotangent that requires gradients."""
    values = rng.uniform(-1.0, 1.0, (2, *output.shape))
    turn = 1j if is_complex(output) else 0.0
    array = np.asarray(values[0] + turn * values[1], output.dtype)
    if strided and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    return as_tensor(array, device=output.device).requires_grad_()


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros of the shape, dtype and device of a tensor."""
    return as_tensor(np.zeros(x.shape, x.dtype), device=x.device)


def _unit_vector(shape: Any, rng: np.random.Generator) -> np.ndarray:
    vector = rng.random(shape)  # positive, so that errors of one sign do not cancel
    return vector / (np.sqrt(np.sum(vector**2)) or 1.0)


class Point:
    """A function and its inputs, with numerical and analytical Jacobians there.

    `part` names the part of complex outputs, "real" or "imaginary". In fast mode, Jacobians are
    multiplied by random vectors: by u on the input side or by v on the output side.
    """

    def __init__(self, func: Checked, inputs: tuple[Any, ...], rules: Rules) -> None:
        self.func, self.inputs, self.rules = func, inputs, rules
        self.sources = differentiable(inputs)
        outputs = outputs_of(func, inputs)
        chosen = [k for k, output in enumerate(outputs) if output.requires_grad]
        self.depends = bool(chosen)
        # if no output requires gradients, all have to be constant
        self._chosen = chosen or [k for k, o in enumerate(outputs) if o.dtype.kind in "fc"]
        self.outputs = [outputs[k] for k in self._chosen]
        self.parts = ("imaginary", "real") if any(map(is_complex, self.outputs)) else ("real",)
        rng = np.random.default_rng(0)
        # two directions: for the real and imaginary parts of an input
        self.us = [[_unit_vector(x.shape, rng) for _ in range(2)] for x in self.sources]
        self.vs = [_unit_vector(output.size, rng) for output in self.outputs]

    def difference(self, i: int, index: Any, step: Any, part: str) -> list[np.ndarray]:
        """Return flat central differences of the outputs for a step of elements of an input."""
        array = self.sources[i].detach()._a
        before = array[index].copy()

        def outputs_at(moved: np.ndarray) -> list[np.ndarray]:
            array[index] = moved
            outputs = outputs_of(self.func, self.inputs)
            # copies, as outputs may share memory with inputs
            return [array_of(outputs[k]).copy() for k in self._chosen]

        try:
            below, above = outputs_at(before - step), outputs_at(before + step)
        finally:
            array[index] = before
        where = "" if index is Ellipsis else f"on index {index} "
        slopes = []
        for a, b in zip(below, above, strict=True):
            for what, old, new in (("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype)):
                if old != new:
                    raise AssertionError(
                        f"Expected `func` to return outputs with the same {what} when inputs are "
                        f"perturbed {where}by {self.rules.eps}, but got: {what}s {old} and {new}."
                    )
            with np.errstate(all="ignore"):
                slope = (b - a).reshape(-1) / (2 * self.rules.eps)
            slopes.append(slope.imag if is_complex(slope) and part == "imaginary" else slope.real)
        return slopes

    def slope(self, i: int, index: Any, part: str, u: Any = 1.0, v: Any = 1.0) -> list[np.ndarray]:
        """Return the derivatives of the outputs along u (and 1j * v) in elements of an input."""
        slopes = self.difference(i, index, self.rules.eps * u, part)
        if not is_complex(self.sources[i]):
            return slopes
        turned = self.difference(i, index, self.rules.eps * v * 1j, part)
        return [a + 1j * b for a, b in zip(slopes, turned, strict=True)]

    def numerical(self, i: int, part: str, fast: bool) -> list[np.ndarray]:
        """Return the Jacobians of the outputs with respect to an input, from differences."""
        if fast:
            rows = [self.slope(i, ..., part, *self.us[i])]
        else:
            rows = [self.slope(i, at, part) for at in np.ndindex(self.sources[i].shape)]
        return [
            np.array([row[k] for row in rows]).reshape(len(rows), output.size)
            for k, output in enumerate(self.outputs)
        ]

    def swept(self, k: int, part: str, fast: bool) -> list[np.ndarray]:
        """Return the Jacobians of an output with respect to the inputs, from backward passes."""
        output = self.outputs[k]
        unit = 1j if is_complex(output) and part == "imaginary" else 1.0
        rows: list[list[np.ndarray]] = [[] for _ in self.sources]
        for vector in self.vs[k : k + 1] if fast else np.eye(output.size):
            values = np.asarray(vector * unit, output.dtype).reshape(output.shape)
            seed = as_tensor(values, device=output.device)
            found = grad(output, self.sources, seed, retain_graph=True, allow_unused=True)
            for x, g, row in zip(self.sources, found, rows, strict=True):
                if g is not None and self.rules.dtypes and g.dtype != x.dtype:
                    raise GradcheckError("Gradient has dtype mismatch")
                if g is not None and g.shape != x.shape:
                    raise GradcheckError("Analytical gradient has incorrect size")
                row.append(np.zeros(x.shape, x.dtype) if g is None else array_of(g).copy())
        pairs = zip(self.sources, rows, strict=True)
        return [np.array(row).reshape(len(row), x.size).T for x, row in pairs]

    def pushed(self, i: int, part: str, fast: bool) -> list[np.ndarray]:
        """Return the Jacobians of the outputs with respect to an input, from tangents."""
        x = self.sources[i]
        if fast:
            rows = [self.push(i, part, *self.us[i])]
        else:
            units = np.eye(x.size).reshape(-1, *x.shape)
            rows = [self.push(i, part, unit, unit) for unit in units]
        return [
            np.array([row[k] for row in rows]).reshape(len(rows), output.size)
            for k, output in enumerate(self.outputs)
        ]

    def push(self, i: int, part: str, u: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """Return the tangents of the outputs along u (and 1j * v) in an input."""

        def along(direction: np.ndarray) -> list[np.ndarray]:
            x = self.sources[i]
            found = self.tangents(i, as_tensor(direction, x.dtype, x.device))
            arrays = [array_of(t).reshape(-1) for t in found]
            return [
                t.imag if is_complex(output) and part == "imaginary" else t.real
                for t, output in zip(arrays, self.outputs, strict=True)
            ]

        if not is_complex(self.sources[i]):
            return along(u)
        return [a + 1j * b for a, b in zip(along(u), along(1j * v), strict=True)]

    def tangents(self, i: int, direction: Tensor) -> list[Tensor]:
        """Return the tangents of the outputs along a direction in an input."""
        directions: list[Tensor | None] = [zeros_like(x) for x in self.sources]
        directions[i] = direction
        found = self.tangents_along(directions)
        return [zeros_like(z) if t is None else t for t, z in zip(found, self.outputs, strict=True)]

    def tangents_along(self, directions: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the tangents of the outputs if the inputs have some; None is no tangent.

        The function is called in a dual level, with dual tensors that have no history.
        """
        left = iter(directions)
        with dual_level():
            args = list(self.inputs)
            for k, x in enumerate(self.inputs):
                if isinstance(x, Tensor) and x.requires_grad:
                    t = next(left)
                    args[k] = x.detach() if t is None else make_dual(x.detach(), t)
            outputs = outputs_of(self.func, args)
            return [unpack_dual(outputs[k]).tangent for k in self._chosen]

    def sweep_zeros(self, outputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients for zero cotangents."""
        seeds = [*map(zeros_like, outputs)]
        return grad(outputs, self.sources, seeds, retain_graph=True, allow_unused=True)

    def analytical(self, k: int, part: str, fast: bool) -> list[np.ndarray]:
        """Return the result of `swept`, after checking that it is reproducible."""
        first, second = self.swept(k, part, fast), self.swept(k, part, fast)
        for a, b in zip(first, second, strict=True):
            with np.errstate(all="ignore"):
                gap = np.abs(a - b)
            if np.any(gap > self.rules.nondet_tol):
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and "
                    "grad_output multiple times gives different values, although analytical "
                    "gradient matches numerical gradient.The tolerance for nondeterminism was "
                    f"{self.rules.nondet_tol}.\n\nNOTE: If this is expected, pass "
                    "`nondet_tol=<tol>` as a keyword argument."
                )
        return first
