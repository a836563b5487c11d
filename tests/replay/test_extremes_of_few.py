"""The largest or smallest of few elements is found in the loop over the results."""

import numpy as np
import pytest

import tapegrad as tg

CASES = [((3,), None), ((2, 3), 0), ((4, 3), -1), ((2, 2, 2), None), ((3, 2, 4, 2), (1, 3))]
SPECIAL = {"numbers": 1.5, "ties": 1.0, "nan": np.nan, "infinite": np.inf}


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("reduce", [np.max, np.min])
def test_values_and_derivatives(reduce, shape, axis, keepdims, dtype):
    rng = np.random.default_rng(0)

    def f(x):
        best = reduce(x, axis=axis, keepdims=keepdims)
        weights = np.arange(1.0, best.size + 1.0, dtype=dtype)
        return np.sum(best * weights.reshape(best.shape) * np.where(best == best, best, 2.0))

    found = tg.jit(tg.value_and_grad(f))
    for case, value in SPECIAL.items():
        x = rng.normal(size=shape).astype(dtype) if case == "numbers" else np.ones(shape, dtype)
        x[rng.random(shape) < 0.5] = value
        expected = tg.value_and_grad(f)(x)
        assert "np.max" not in tg.jit(f).inspect(x)
        for own, want in zip(found(x), expected, strict=True):
            assert own.dtype == want.dtype
            np.testing.assert_allclose(own, want, rtol=1e-6 if dtype == np.float32 else 1e-13)


@pytest.mark.compiled
def test_second_derivatives_at_ties():
    def f(x):
        return tg.sum(np.max(x.reshape(2, 3), axis=1) ** 3)

    x, direction = np.array([1.0, 1.0, 1.0, 0.0, 2.0, 2.0]), np.arange(6.0)
    found = tg.hvp(tg.jit(f))(x, direction)
    np.testing.assert_allclose(found, tg.hvp(f)(x, direction), rtol=1e-13)


@pytest.mark.compiled
def test_maximum_pooling_has_one_nest():
    x = np.random.default_rng(1).normal(size=(2, 4, 6, 3))

    def f(x):
        pooled = np.max(x.reshape(2, 2, 2, 3, 2, 3), axis=(2, 4))
        return np.sum(np.maximum(pooled, 0.5) ** 2)

    recorded = tg.jit(f)
    assert recorded.inspect(x).startswith("# 5 values recorded, 13 computed, 1 loop nests")
    np.testing.assert_allclose(tg.grad(recorded)(x), tg.grad(f)(x), rtol=1e-13)
