"""`gradcheck` and `gradgradcheck`: checks of derivatives against central differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.autograd.api import grad
from tapegrad.autograd.function import Function
from tapegrad.eager.batched import batched, expanded, open_level
from tapegrad.eager.creation import as_tensor, tensor
from tapegrad.eager.tensor import Tensor
from tapegrad.ops.op import is_complex

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

Tensors = Tensor | Sequence[Tensor]
Checked = Callable[..., Tensors]


class GradcheckError(RuntimeError):
    """Raised by `gradcheck` and `gradgradcheck` if a derivative is wrong."""


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
        Check that undefined cotangents are treated as zeros.
    check_grad_dtypes
        Check that gradients have the dtypes of their inputs.
    check_batched_grad
        Check that gradients for several cotangents at once are those for each of them.
    check_batched_forward_grad, check_forward_ad, check_backward_ad
        Only reverse mode is checked, so only the defaults are accepted.
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
    _refuse("check_forward_ad", check_forward_ad, "check_backward_ad=True")
    _refuse("check_batched_forward_grad", check_batched_forward_grad, "check_backward_ad=True")
    if not check_backward_ad:
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    switches = (check_undefined_grad, check_grad_dtypes, fast_mode, check_batched_grad)
    rules = _Rules(eps, atol, rtol, nondet_tol, *switches)
    return _verdict(func, _as_tuple(inputs), rules, raise_exception)


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
        Only reverse over reverse mode is checked, so only the defaults are accepted.

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
    _refuse("check_fwd_over_rev", check_fwd_over_rev, "check_rev_over_rev=True")
    if not check_rev_over_rev:
        raise AssertionError(
            "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        )
    args, cotangents = _as_tuple(inputs), _as_tuple(grad_outputs)
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        outputs = _differentiable(_outputs(func, args))
        cotangents = tuple(_cotangent(o, rng, gen_non_contig_grad_outputs) for o in outputs)

    def gradients(*both: Any) -> tuple[Tensor, ...]:
        given, seeds = both[: len(args)], both[len(args) :]
        outputs = _differentiable(_outputs(func, given))
        found = grad(outputs, _differentiable(given), seeds, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    switches = (check_undefined_grad, check_grad_dtypes, fast_mode, check_batched_grad)
    rules = _Rules(eps, atol, rtol, nondet_tol, *switches)
    return _verdict(gradients, args + cotangents, rules, raise_exception)


def _refuse(name: str, value: bool, instead: str) -> None:
    if value:
        raise ValueError(
            f"{name}=True is not available: gradcheck checks the reverse mode; use {instead}"
        )


class _Rules(NamedTuple):
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    undefined: bool
    dtypes: bool
    fast: bool
    batched: bool


def _verdict(func: Checked, inputs: tuple[Any, ...], rules: _Rules, raises: bool) -> bool:
    """Run all checks; raise or return False if one fails."""
    _check_inputs(inputs)
    try:
        point = _Point(func, inputs, rules)
        for part in point.parts:
            _compare(point, part)
        if point.depends:
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
                stacklevel=4,
            )
        steps = _array(x).strides
        if x.size and any(s == 0 and n > 1 for s, n in zip(steps, x.shape, strict=True)):
            raise RuntimeError(
                f"The {k}th input has a dimension with stride 0. gradcheck only supports inputs "
                "that are non-overlapping to be able to compute the numerical gradients "
                "correctly. You should call .copy() on the input before passing it to gradcheck."
            )
    if not _differentiable(inputs):
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them "
            "have requires_grad=True."
        )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


def _differentiable(values: Sequence[Any]) -> list[Tensor]:
    return [x for x in values if isinstance(x, Tensor) and x.requires_grad]


def _outputs(func: Checked, args: Sequence[Any]) -> tuple[Tensor, ...]:
    outputs = _as_tuple(func(*args))
    for k, output in enumerate(outputs):
        if not isinstance(output, Tensor):
            raise TypeError(f"output {k} of func is a {type(output).__name__}, not a Tensor")
    return outputs


def _cotangent(output: Tensor, rng: np.random.Generator, strided: bool) -> Tensor:
    """Return a random cotangent that requires gradients."""
    values = rng.uniform(-1.0, 1.0, (2, *output.shape))
    turn = 1j if is_complex(output) else 0.0
    array = np.asarray(values[0] + turn * values[1], output.dtype)
    if strided and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    return as_tensor(array).requires_grad_()


def _unit_vector(shape: Any, rng: np.random.Generator) -> np.ndarray:
    vector = rng.random(shape)  # positive, so that errors of one sign do not cancel
    return vector / (np.sqrt(np.sum(vector**2)) or 1.0)


class _Point:
    """A function and its inputs, with numerical and analytical Jacobians there.

    `part` names the part of complex outputs, "real" or "imaginary". In fast mode, Jacobians are
    multiplied by random vectors: by u on the input side or by v on the output side.
    """

    def __init__(self, func: Checked, inputs: tuple[Any, ...], rules: _Rules) -> None:
        self.func, self.inputs, self.rules = func, inputs, rules
        self.sources = _differentiable(inputs)
        outputs = _outputs(func, inputs)
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
        array = _array(self.sources[i])
        before = array[index].copy()

        def outputs_at(moved: np.ndarray) -> list[np.ndarray]:
            array[index] = moved
            outputs = _outputs(self.func, self.inputs)
            # copies, as outputs may share memory with inputs
            return [_array(outputs[k]).copy() for k in self._chosen]

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
            seed = as_tensor(np.asarray(vector * unit, output.dtype).reshape(output.shape))
            found = grad(output, self.sources, seed, retain_graph=True, allow_unused=True)
            for x, g, row in zip(self.sources, found, rows, strict=True):
                if g is not None and self.rules.dtypes and g.dtype != x.dtype:
                    raise GradcheckError("Gradient has dtype mismatch")
                if g is not None and g.shape != x.shape:
                    raise GradcheckError("Analytical gradient has incorrect size")
                row.append(np.zeros(x.shape, x.dtype) if g is None else _array(g).copy())
        pairs = zip(self.sources, rows, strict=True)
        return [np.array(row).reshape(len(row), x.size).T for x, row in pairs]

    def sweep_zeros(self, outputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients for zero cotangents."""
        seeds = [as_tensor(np.zeros(output.shape, output.dtype)) for output in outputs]
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


def _compare(point: _Point, part: str) -> None:
    """Compare the derivatives of all outputs with respect to all inputs with differences."""
    fast, rtol = point.rules.fast, point.rules.rtol
    numerical = [point.numerical(i, part, fast) for i in range(len(point.us))]
    if not point.depends:
        moves = [np.abs(jacobian) for row in numerical for jacobian in row]
        if not all(np.all(move <= point.rules.nondet_tol) for move in moves):
            raise GradcheckError("Numerical gradient for function expected to be zero")
        return
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


@np.errstate(all="ignore")
def _mismatch(point: _Point, k: int, i: int, part: str, expected: Any, found: Any) -> str:
    """Describe a wrong derivative."""
    text = f"Jacobian mismatch for output {k} with respect to input {i},\n"
    if is_complex(point.outputs[k]):
        text = f"While considering the {part} part of complex outputs only, {text}"
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


def _check_zeros(point: _Point) -> None:
    """Check that zero cotangents give zero gradients with the right dtypes and shapes."""
    for x, g in zip(point.sources, point.sweep_zeros(point.outputs), strict=True):
        if g is not None and np.any(_array(g) != 0):
            raise GradcheckError("backward not multiplied by grad_output")
        if g is not None and g.dtype != x.dtype:
            raise GradcheckError("grad is incorrect type")
        if g is not None and g.shape != x.shape:
            raise GradcheckError("grad is incorrect size")


def _check_batched(point: _Point) -> None:
    """Check that a pass for several cotangents gives the gradients of a pass for each of them."""
    rng = np.random.default_rng(1)
    for k, output in enumerate(point.outputs):
        seeds = [_cotangent(output, rng, False).detach() for _ in range(2)]

        def gradients(g: Any) -> list[Tensor]:
            return list[Any](
                grad(output, point.sources, g, retain_graph=True, materialize_grads=True)  # noqa: B023
            )

        rows = [gradients(seed) for seed in seeds]
        try:
            with open_level(len(seeds)) as level:
                several = batched(np.stack([_array(seed) for seed in seeds]), level)
                found = [expanded(g, level) for g in gradients(several)]
        except RuntimeError as error:
            raise GradcheckError(
                f"While computing batched gradients, got: {error}\n\n{_BATCHED}"
            ) from error
        for i, (g, column) in enumerate(zip(found, zip(*rows, strict=True), strict=True)):
            expected = np.stack([_array(row) for row in column])
            if not np.allclose(_array(g), expected, 1e-5, 1e-8):
                raise GradcheckError(
                    f"For output {k} and input {i}:\n\n{_BATCHED}\n\nGot:\n{g}\n\nExpected:\n"
                    f"{tensor(expected)}\n"
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


def _check_undefined(point: _Point) -> None:
    """Check that all cotangents may be undefined, and each one alone if there are several."""
    count = len(point.outputs)
    for undefined in [set(range(count)), *({k} for k in range(count) if count > 1)]:
        made = _differentiable(_outputs(point.func, point.inputs))
        outputs = [_Undefined.apply(o) if k in undefined else o for k, o in enumerate(made)]
        text, cause = "", None
        try:
            if any(np.any(_array(g) != 0) for g in point.sweep_zeros(outputs) if g is not None):
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
                stacklevel=4,
            )
            raise GradcheckError(
                f"{text} After ctx.set_materialize_grads(False), a backward gets None for an "
                "undefined gradient and has to take it as zeros."
            ) from cause
