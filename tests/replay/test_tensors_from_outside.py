"""Tensors that a recorded function reads, and that require grad only later."""

import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose

import tapegrad as tg

X = np.arange(1.0, 4.0)


class Doubled(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2.0


@tg.njit
@numba.njit
def squares(x):
    return np.sum(x * x)


def _written_to(outside):
    copy = outside * 1.0
    copy += 2.0
    return copy


COMPUTED_OF_IT_ALONE = {
    "elementwise": lambda t: t * 2.0,
    "reflected": lambda t: 1.0 - t,
    "ufunc of NumPy": lambda t: np.multiply(t, 2.0),
    "reduction": lambda t: t.sum(),
    "view": lambda t: t[::-1],
    "element": lambda t: t[0],
    "elements": lambda t: t[np.array([0, 1, 1])],
    "mask": lambda t: np.where(X > 1.5, t, 0.0),
    "copy": lambda t: t.copy(),
    "other dtype": lambda t: t.astype("f4"),
    "iteration": lambda t: sum(x * x for x in t),
    "list": lambda t: tg.stack([t, t]),
    "items in an array": lambda t: tg.array([t[0], 2.0, t[1]]),
    "sorted": tg.sort,
    "norm": lambda t: np.linalg.norm(t),
    "transform": lambda t: np.fft.rfft(t).real[0],
    "composite": lambda t: np.pad(t, 1)[1:-1],
    "table": lambda t: np.interp(X, X, t),
    "write": _written_to,
    "Function": Doubled.apply,
    "numba": squares,
    "jitted": tg.jit(lambda t: t * 3.0),
    "vmap": lambda t: tg.vmap(lambda x: x * 2.0)(t),
    "gradient": lambda t: tg.grad(lambda x: tg.sum(x**3))(t),
    "scan": lambda t: tg.scan(lambda carry, x: (carry + x, carry * x), 0.0, t)[1],
}


@pytest.mark.parametrize("compute", COMPUTED_OF_IT_ALONE.values(), ids=COMPUTED_OF_IT_ALONE)
def test_what_is_computed_of_it_alone_is_recorded_again(compute):
    outside = tg.tensor(X)
    x = tg.tensor(X, requires_grad=True)

    def program(x):
        return tg.sum(compute(outside) * x[:1])

    jitted = tg.jit(program)
    jitted(x)
    outside.requires_grad_()
    jitted(x).backward()
    found, outside.grad = outside.grad, None
    program(x).backward()
    assert_allclose(found, outside.grad, rtol=1e-12)


def test_it_is_read_in_a_loop():
    outside = tg.tensor(X)
    jitted = tg.jit(
        lambda x: tg.scan(lambda carry, a: (carry + a * outside[0] ** 2, carry), tg.sum(x), x)[0]
    )
    jitted(X)
    outside.requires_grad_()
    jitted(X).backward()
    assert_allclose(outside.grad, [2.0 * X[0] * X.sum(), 0.0, 0.0])


def test_a_tensor_that_is_gone_costs_no_later_call():
    def program(x):
        return tg.sum(tg.tensor(X) * 2.0 * x)

    jitted = tg.jit(program)
    for _ in range(3):
        assert jitted(X) == 28.0
    assert jitted.cache_info().misses == 1
