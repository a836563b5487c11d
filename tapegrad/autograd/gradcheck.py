"""`gradcheck` and `gradgradcheck`: checks of derivatives against central differences."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.api import grad
from tapegrad.autograd.checked_point import (
    Checked,
    GradcheckError,
    Point,
    Rules,
    Tensors,
    array_of,
    as_tuple,
    differentiable,
    outputs_of,
    random_cotangent,
    zeros_like,
)
from tapegrad.autograd.function import Function
from tapegrad.eager.batched import batched, expanded, open_level
from tapegrad.eager.creation import as_tensor, tensor
from tapegrad.eager.lines import level_of_user
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.ops.table.op import is_complex

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


def gradcheck(
    func: Checked,
    inputs: Tensors,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Check the gradients of a function against central differences.

    Every output that requires gradients is checked with respect to every input that does; a complex
    output counts as two real ones. The backward pass also has to return the same values when it
    runs twice, and zeros (or None) for zero or undefined cotangents.

    Parameters
    ----------
    func
        Called as ``func(*inputs)``; returns one or more tensors.
    inputs
        One or more arguments: tensors of any shape, contiguous or not, and other values. Elements
        of the tensors are perturbed in place and restored, so the function may hold the tensors
        itself.
    eps, atol, rtol
        Step of the differences, and tolerances: a derivative may differ from a difference d by
        ``atol + rtol * abs(d)``. The defaults suit float64 and complex128.
    raise_exception
        Raise `GradcheckError` if a gradient is wrong, instead of returning False.
    nondet_tol
        Largest allowed difference between two runs of the backward pass.
    check_undefined_grad
        Check that undefined cotangents, and undefined tangents, are treated as zeros.
    check_grad_dtypes
        Check that gradients have the dtypes of their inputs.
    check_batched_grad
        Check that gradients for several cotangents at once are those for each of them.
    check_forward_ad
        Check the tangents of forward mode: `func` is called in a level of `forward_ad`, with dual
        tensors that have no history. A Function needs a `jvp` there.
    check_batched_forward_grad
        Check that tangents for several directions at once are those for each of them.
    check_backward_ad
        Check reverse mode.
    fast_mode
        Check the product of each Jacobian with random vectors instead of its elements, with two
        calls of `func` per input (four if it is complex).
    masked
        Ignored: there are no sparse tensors.

    Returns
    -------
    bool
        True if all gradients are right.

    Raises
    ------
    GradcheckError
        If a gradient is wrong. The message numbers the outputs and inputs that require gradients,
        and shows Jacobians with a row per input element and a column per output element.
    ValueError, RuntimeError
        If no input requires gradients, if elements of an input share memory, or if an option is not
        available.
    AssertionError
        If the shape or dtype of an output depends on the values of the inputs.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([[0.5, 1.0], [1.5, 2.0]], requires_grad=True)
    >>> tg.autograd.gradcheck(lambda x: (tg.sin(x), x @ x), x)
    True
    >>> tg.autograd.gradcheck(lambda x: x * x.detach(), tg.tensor([3.0], requires_grad=True))
    Traceback (most recent call last):
        ...
    tapegrad.autograd.gradcheck.GradcheckError: Jacobian mismatch for output 0 ... input 0,
    numerical:tensor([[6.]])
    analytical:tensor([[3.]])
    """
    if not check_backward_ad and not check_forward_ad:
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    _require("check_batched_grad", check_batched_grad, "check_backward_ad", check_backward_ad)
    _require(
        "check_batched_forward_grad",
        check_batched_forward_grad,
        "check_forward_ad",
        check_forward_ad,
    )
    rules = Rules(
        eps,
        atol,
        rtol,
        nondet_tol,
        undefined=check_undefined_grad,
        dtypes=check_grad_dtypes,
        fast=fast_mode,
        backward=check_backward_ad,
        batched=check_batched_grad,
        forward=check_forward_ad,
        batched_forward=check_batched_forward_grad,
    )
    return _verdict(func, as_tuple(inputs), rules, raise_exception)


def gradgradcheck(
    func: Checked,
    inputs: Tensors,
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check the second derivatives of a function against differences of its gradients.

    This is `gradcheck` of the function that maps inputs and cotangents to gradients. The gradients
    themselves are not checked.

    Parameters
    ----------
    func, inputs, eps, atol, rtol, raise_exception, nondet_tol, check_undefined_grad, \
    check_grad_dtypes, check_batched_grad, fast_mode, masked
        As for `gradcheck`.
    grad_outputs
        Cotangents of the outputs that require gradients, with the same shapes. Those that require
        gradients are checked too. By default they are random and require gradients.
    gen_non_contig_grad_outputs
        Make the random cotangents non-contiguous.
    check_fwd_over_rev, check_rev_over_rev
        Check forward mode, or reverse mode, over the reverse mode of the gradients.

    Returns
    -------
    bool
        True if all second derivatives are right.

    Raises
    ------
    GradcheckError, ValueError, RuntimeError, AssertionError
        As for `gradcheck`. The numbered outputs are the gradients; the numbered inputs are those of
        the function, followed by the cotangents.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([0.5, 1.0], requires_grad=True)
    >>> tg.autograd.gradgradcheck(lambda x: tg.exp(x) * x, x)
    True
    """
    if not check_rev_over_rev and not check_fwd_over_rev:
        raise AssertionError(
            "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        )
    _require("check_undefined_grad", check_undefined_grad, "check_rev_over_rev", check_rev_over_rev)
    _require("check_batched_grad", check_batched_grad, "check_rev_over_rev", check_rev_over_rev)
    args, cotangents = as_tuple(inputs), as_tuple(grad_outputs)
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        outputs = differentiable(outputs_of(func, args))
        cotangents = tuple(random_cotangent(o, rng, gen_non_contig_grad_outputs) for o in outputs)

    def gradients(*both: Any) -> tuple[Tensor, ...]:
        for x, original in zip(both, args + cotangents, strict=True):
            if isinstance(original, Tensor) and original.requires_grad:
                x.requires_grad_()  # dual tensors have no history
        given, seeds = both[: len(args)], both[len(args) :]
        outputs = differentiable(outputs_of(func, given))
        found = grad(outputs, differentiable(given), seeds, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    rules = Rules(
        eps,
        atol,
        rtol,
        nondet_tol,
        undefined=check_undefined_grad,
        dtypes=check_grad_dtypes,
        fast=fast_mode,
        backward=check_rev_over_rev,
        batched=check_batched_grad,
        forward=check_fwd_over_rev,
        batched_forward=False,
    )
    return _verdict(gradients, args + cotangents, rules, raise_exception)


def _require(name: str, value: bool, other: str, is_on: bool) -> None:
    if value and not is_on:
        raise AssertionError(f"Setting {name}=True requires {other} to be True")


def _verdict(func: Checked, inputs: tuple[Any, ...], rules: Rules, raises: bool) -> bool:
    """Run all checks; raise or return False if one fails."""
    _check_inputs(inputs)
    try:
        point = Point(func, inputs, rules)
        differences = {part: _differences(point, part) for part in point.parts}
        if point.depends and rules.backward:
            for part, numerical in differences.items():
                _compare(point, part, numerical)
        if point.depends and rules.forward:
            for part, numerical in differences.items():
                _compare_tangents(point, part, numerical)
            if rules.undefined:
                _check_undefined_tangents(point)
            if rules.batched_forward:
                _check_batched_tangents(point)
        if point.depends and rules.backward:
            _check_zeros(point)
            if rules.batched:
                _check_batched(point)
            if rules.undefined:
                _check_undefined(point)
    except GradcheckError:
        if raises:
            raise
        return False
    return True


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    for k, x in enumerate(inputs):
        if not (isinstance(x, Tensor) and x.requires_grad):
            continue
        if x.dtype not in (np.dtype(np.float64), np.dtype(np.complex128)):
            warnings.warn(
                f"Input #{k} requires gradient and is not a double precision floating point or "
                "complex. This check will likely fail if all the inputs are not of double "
                "precision floating point or complex. ",
                UserWarning,
                stacklevel=level_of_user(),
            )
        steps = x.detach()._a.strides
        if x.size and any(s == 0 and n > 1 for s, n in zip(steps, x.shape, strict=True)):
            raise RuntimeError(
                f"The {k}th input has a dimension with stride 0. gradcheck only supports inputs "
                "that are non-overlapping to be able to compute the numerical gradients "
                "correctly. You should call .copy() on the input before passing it to gradcheck."
            )
    if not differentiable(inputs):
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them "
            "have requires_grad=True."
        )


def _differences(point: Point, part: str) -> list[list[np.ndarray]]:
    """Return the Jacobians of all outputs from differences; those of constant outputs are zero."""
    numerical = [point.numerical(i, part, point.rules.fast) for i in range(len(point.us))]
    if not point.depends:
        moves = [np.abs(jacobian) for row in numerical for jacobian in row]
        if not all(np.all(move <= point.rules.nondet_tol) for move in moves):
            raise GradcheckError("Numerical gradient for function expected to be zero")
    return numerical


def _compare(point: Point, part: str, numerical: list[list[np.ndarray]]) -> None:
    """Compare the derivatives of all outputs with respect to all inputs with differences."""
    fast, rtol = point.rules.fast, point.rules.rtol
    analytical = [point.analytical(k, part, fast) for k in range(len(point.vs))]
    for k, v in enumerate(point.vs):
        for i, u in enumerate(point.us):
            expected, found, atol = numerical[i][k], analytical[k][i], point.rules.atol
            if fast:
                real, imaginary = (np.dot(found[:, 0], direction.reshape(-1)) for direction in u)
                found = real.real + 1j * imaginary.imag if is_complex(found) else real
                expected = np.dot(expected[0], v)
                atol *= u[0].sum() * v.sum()  # every element of the Jacobian may differ by atol
            if not np.allclose(found, expected, rtol, atol):
                raise GradcheckError(_mismatch(point, k, i, part, expected, found))


def _compare_tangents(point: Point, part: str, numerical: list[list[np.ndarray]]) -> None:
    for i, u in enumerate(point.us):
        pushed = point.pushed(i, part, point.rules.fast)
        for k, (expected, found) in enumerate(zip(numerical[i], pushed, strict=True)):
            atol = point.rules.atol * (u[0].sum() if point.rules.fast else 1.0)
            if not np.allclose(found, expected, point.rules.rtol, atol):
                raise GradcheckError(
                    f"{_of_part(point, k, part)}Jacobian computed with forward mode mismatch for "
                    f"output {k} with respect to input {i},\nnumerical:{tensor(expected)}\n"
                    f"analytical:{tensor(found)}\n"
                )


def _of_part(point: Point, k: int, part: str) -> str:
    if not is_complex(point.outputs[k]):
        return ""
    return f"While considering the {part} part of complex outputs only, "


@np.errstate(all="ignore")
def _mismatch(point: Point, k: int, i: int, part: str, expected: Any, found: Any) -> str:
    text = (
        f"{_of_part(point, k, part)}Jacobian mismatch for output {k} with respect to input {i},\n"
    )
    if not point.rules.fast:
        return f"{text}numerical:{tensor(expected)}\nanalytical:{tensor(found)}\n"
    text += f"numerical:{expected}\nanalytical:{found}\n"
    expected, found = point.numerical(i, part, False)[k], point.swept(k, part, False)[i]
    text += (
        "\nThe above quantities relating the numerical and analytical jacobians are computed \n"
        "in fast mode. Below, we recompute numerical and analytical jacobians in slow mode:\n\n"
        f"Numerical:\n {tensor(expected)}\nAnalytical:\n{tensor(found)}\n\n"
        f"The max per-element difference (slow mode) is: {np.max(np.abs(expected - found))}.\n"
    )
    if np.allclose(found, expected, point.rules.rtol, point.rules.atol):
        text += (
            "\nFast gradcheck failed but element-wise differences are small. This means that the\n"
            "test might've passed in slow_mode! Pass `fast_mode=False` as a keyword argument.\n"
        )
    return text


def _check_zeros(point: Point) -> None:
    """Check that zero cotangents give zero gradients with the right dtypes and shapes."""
    for x, g in zip(point.sources, point.sweep_zeros(point.outputs), strict=True):
        if g is not None and np.any(array_of(g) != 0):
            raise GradcheckError("backward not multiplied by grad_output")
        if g is not None and g.dtype != x.dtype:
            raise GradcheckError("grad is incorrect type")
        if g is not None and g.shape != x.shape:
            raise GradcheckError("grad is incorrect size")


def _check_batched(point: Point) -> None:
    """Check that a pass for several cotangents gives the gradients of a pass for each of them."""
    rng = np.random.default_rng(1)
    for k, output in enumerate(point.outputs):
        seeds = [random_cotangent(output, rng, False).detach() for _ in range(2)]

        def gradients(g: Any) -> list[Tensor]:
            return list[Any](
                grad(output, point.sources, g, retain_graph=True, materialize_grads=True)  # noqa: B023
            )

        rows = [gradients(seed) for seed in seeds]
        try:
            with open_level(len(seeds)) as level:
                several = batched(FUNCTIONS["stack"](seeds), level)
                found = [expanded(g, level) for g in gradients(several)]
        except RuntimeError as error:
            raise GradcheckError(
                f"While computing batched gradients, got: {error}\n\n{_BATCHED}"
            ) from error
        for i, (g, column) in enumerate(zip(found, zip(*rows, strict=True), strict=True)):
            expected = np.stack([array_of(row) for row in column])
            if not np.allclose(array_of(g), expected, 1e-5, 1e-8):
                raise GradcheckError(
                    f"For output {k} and input {i}:\n\n{_BATCHED}\n\nGot:\n{g}\n\nExpected:\n"
                    f"{tensor(expected)}\n"
                )


def _check_batched_tangents(point: Point) -> None:
    """Check that tangents for several directions at once are those for each of them."""
    rng = np.random.default_rng(1)
    for i, x in enumerate(point.sources):
        seeds = [random_cotangent(x, rng, False).detach() for _ in range(2)]
        rows = [point.tangents(i, seed) for seed in seeds]
        with open_level(len(seeds)) as level:
            several = batched(FUNCTIONS["stack"](seeds), level)
            found = [expanded(t, level) for t in point.tangents(i, several)]
        for k, (t, column) in enumerate(zip(found, zip(*rows, strict=True), strict=True)):
            expected = np.stack([array_of(row) for row in column])
            if not np.allclose(array_of(t), expected, 1e-5, 1e-8):
                raise GradcheckError(
                    f"For output {k} and input {i}:\n\nbatched tangents differ from single ones.\n"
                    f"\nGot:\n{t}\n\nExpected:\n{tensor(expected)}\n"
                )


def _check_undefined_tangents(point: Point) -> None:
    """Check that an input without tangent gives the tangents of an input whose tangent is zero."""
    sources = point.sources
    directions: list[Tensor | None] = [
        as_tensor(u[0], x.dtype, x.device) for x, u in zip(sources, point.us, strict=True)
    ]
    for i, x in enumerate(sources):
        zero, none = (
            point.tangents_along([*directions[:i], given, *directions[i + 1 :]])
            for given in (zeros_like(x), None)
        )
        for k, (a, b) in enumerate(zip(zero, none, strict=True)):
            if a is not None and b is not None and not np.allclose(array_of(a), array_of(b)):
                raise GradcheckError(
                    f"Mismatch in tangent values for output with index: {k} when input: {i} has an "
                    f"undefined tangent value.  Got: {b} but expected: {a}"
                )


_BATCHED = (
    "gradcheck or gradgradcheck failed while testing batched gradient computation. To compute "
    "batched grads (e.g., jacobians, hessians), we vmap over the backward computation. The most "
    "common failure case is if there is a 'vmap-incompatible operation' in the backward pass."
)


class _Undefined(Function):
    """The identity with an undefined gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        return None


def _check_undefined(point: Point) -> None:
    """Check that all cotangents may be undefined, and each one alone if there are several."""
    count = len(point.outputs)
    for undefined in [set(range(count)), *({k} for k in range(count) if count > 1)]:
        made = differentiable(outputs_of(point.func, point.inputs))
        outputs = [_Undefined.apply(o) if k in undefined else o for k, o in enumerate(made)]
        text, cause = "", None
        try:
            if any(np.any(array_of(g) != 0) for g in point.sweep_zeros(outputs) if g is not None):
                text = (
                    "Expected all input grads to be undefined or zero when all output grads are "
                    "undefined or zero."
                )
        except RuntimeError as error:
            text, cause = "Expected backward function to handle undefined output grads.", error
        if text:
            warnings.warn(
                "Backwards compatibility: New undefined gradient support checking feature is "
                "enabled by default, but it may break existing callers of this function. If this "
                'is true for you, you can call this function with "check_undefined_grad=False" '
                "to disable the feature",
                UserWarning,
                stacklevel=level_of_user(),
            )
            raise GradcheckError(
                f"{text} After ctx.set_materialize_grads(False), a backward gets None for an "
                "undefined gradient and has to take it as zeros."
            ) from cause
