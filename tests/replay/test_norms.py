"""Norms and standard deviations in recorded programs are part of the loops around them."""

import numpy as np
import pytest

import tapegrad as tg

CASES = [((5,), None), ((3, 4), 0), ((3, 4), 1), ((3, 4), None), ((2, 3, 4), (0, 2)), ((1, 4), 0)]
FUNCTIONS = {"vector_norm": tg.linalg.vector_norm, "std": tg.std}


@pytest.mark.compiled
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_values_and_derivatives(name, shape, axis, keepdims):
    rng = np.random.default_rng(0)
    direction = rng.normal(size=shape)

    def f(x):
        return tg.sum(tg.sin(FUNCTIONS[name](x, axis=axis, keepdims=keepdims)) * 1.5)

    for has_zeros in (False, True):
        x = rng.normal(size=shape)
        if has_zeros:  # the derivatives of every order are 0 there
            x[..., 0] = x[0] = 0.0
        found = tg.jit(f)
        assert "tg." not in found.inspect(x)
        np.testing.assert_allclose(found(x), f(tg.tensor(x)).item(), rtol=1e-12)
        np.testing.assert_allclose(tg.grad(found)(x), tg.grad(f)(x), rtol=1e-11, atol=1e-12)
        twice = tg.hvp(f)(x, direction)
        np.testing.assert_allclose(tg.hvp(found)(x, direction), twice, rtol=1e-9, atol=1e-10)


@pytest.mark.compiled
@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_precision(name):
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    x[1] = 0.0

    def f(x):
        return tg.sum(FUNCTIONS[name](x, axis=1) ** 2)

    found, expected = tg.grad(tg.jit(f))(x), tg.grad(f)(x)
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (found[1] == 0.0).all()
