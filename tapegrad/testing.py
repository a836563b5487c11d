"""Checks of derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.eager.creation import as_tensor
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.func import jvp, vjp

_COMPLEX = "has complex numbers; check them with tapegrad.autograd.gradcheck"
_STEPS = {np.dtype(np.float32): 3e-3, np.dtype(np.float64): 6e-6}
_TOLERANCES = {np.dtype(np.float32): 2e-2, np.dtype(np.float64): 1e-6}


def numerical_jvp(
    f: Callable[..., Any], args: Sequence[np.ndarray], tangents: Sequence[np.ndarray], eps: float
) -> np.ndarray:
    """Return the derivative of `f` along tangents, by fourth-order central differences.

    Parameters
    ----------
    f
        Function of arrays whose result is one array.
    args, tangents
        Point and direction.
    eps
        Step along the tangents.
    """

    def along(step: float) -> np.ndarray:
        moved = [
            as_tensor(a + np.asarray(step * t, a.dtype))
            for a, t in zip(args, tangents, strict=True)
        ]
        return np.asarray(as_tensor(f(*moved)).detach().numpy(), np.float64)

    near = along(eps) - along(-eps)
    far = along(2 * eps) - along(-2 * eps)
    return (8 * near - far) / (12 * eps)


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 1,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    seed: int = 0,
) -> None:
    """Check the derivatives of a function, up to an order, against finite differences.

    Reverse mode and forward mode have to agree with central differences along random directions.
    For higher orders, the reverse pass is checked in the same way, as a function of the arguments
    and the cotangent.

    Parameters
    ----------
    f
        Function of arrays whose result is one array.
    args
        Point at which to check: floating-point arrays or numbers.
    order
        Highest order of derivative to check.
    eps, atol, rtol
        Step of the differences and tolerances; the defaults depend on the dtype.
    seed
        Seed of the random directions.

    Raises
    ------
    AssertionError
        If a derivative is wrong; the message gives its order.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.testing.check_grads(lambda x: tg.sin(x) * x, [np.array([0.3, 1.2])], order=2)
    """
    arrays = [np.asarray(a.detach().numpy() if isinstance(a, Tensor) else a) for a in args]
    if any(a.dtype.kind == "c" for a in arrays):
        raise TypeError(f"check_grads: `args` {_COMPLEX}")
    arrays = [a if a.dtype.kind == "f" else a.astype(np.float64) for a in arrays]
    dtype = min((a.dtype for a in arrays), key=lambda d: d.itemsize)
    _check(
        f,
        arrays,
        order,
        _STEPS[dtype] if eps is None else eps,
        _TOLERANCES[dtype] if atol is None else atol,
        _TOLERANCES[dtype] if rtol is None else rtol,
        np.random.default_rng(seed),
        1,
    )


def _check(
    f: Callable[..., Any],
    args: list[np.ndarray],
    order: int,
    eps: float,
    atol: float,
    rtol: float,
    rng: np.random.Generator,
    level: int,
) -> None:
    tangents = [np.asarray(rng.standard_normal(a.shape), a.dtype) for a in args]
    value, pullback = vjp(f, *args)
    if value.dtype.kind == "c":
        raise TypeError(f"check_grads: the result of `f` {_COMPLEX}")
    cotangent = np.asarray(rng.standard_normal(value.shape), value.dtype)
    found = pullback(cotangent)
    reverse = sum(
        float(np.sum(np.asarray(g, np.float64) * t)) for g, t in zip(found, tangents, strict=True)
    )
    difference = float(np.sum(numerical_jvp(f, args, tangents, eps) * cotangent))
    if not np.isclose(reverse, difference, rtol=rtol, atol=atol, equal_nan=True):
        raise AssertionError(
            f"derivative of order {level} is wrong: along a random direction the reverse pass "
            f"gives {reverse!r}, differences {difference!r} (rtol={rtol}, atol={atol})"
        )
    _, tangent = jvp(f, argnums=tuple(range(len(args))))(*args, *tangents)
    forward = float(np.sum(np.asarray(tangent, np.float64) * cotangent))
    if not np.isclose(forward, reverse, rtol=rtol, atol=atol, equal_nan=True):
        raise AssertionError(
            f"derivative of order {level} is wrong: along a random direction forward mode gives "
            f"{forward!r}, the reverse pass {reverse!r} (rtol={rtol}, atol={atol})"
        )
    if level == order:
        return
    count = len(args)

    def next_order(*values: Any) -> Any:
        _, pull = vjp(f, *values[:count])
        parts = pull(values[count])
        return FUNCTIONS["concatenate"]([part.reshape(-1) for part in parts])

    _check(next_order, [*args, cotangent], order, eps, atol * 10, rtol * 10, rng, level + 1)
