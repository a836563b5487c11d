"""Cumulative sums in recorded programs are loops, along each axis and through all elements."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret

import tapegrad as tg

LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, -1)[..., ::2],
}
CASES = [
    (shape, axis)
    for shape in [(7,), (1,), (0,), (3, 4), (1, 4), (4, 1), (0, 3), (3, 0), (2, 3, 4)]
    for axis in [None, *range(-len(shape), len(shape))]
]


@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_values(shape, axis, monkeypatch):
    interpret(monkeypatch)
    x = np.random.default_rng(0).normal(size=shape)
    for layout in LAYOUTS.values():
        f = tg.jit(lambda x: tg.cumsum(x, axis=axis))
        assert_equal(f(layout(x)), np.cumsum(x, axis=axis))
        assert "cumsum" not in f.inspect(layout(x))


@pytest.mark.compiled
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((300,), 0), ((3, 4), 0), ((3, 40), 1), ((3, 4), None), ((2, 3, 4), 1)]
)
def test_derivatives(shape, axis, layout):
    rng = np.random.default_rng(1)
    x, direction = LAYOUTS[layout](rng.normal(size=shape)), rng.normal(size=shape)
    weights = rng.normal(size=np.cumsum(x, axis=axis).shape)

    def f(x):
        return tg.sum(weights * tg.sin(tg.cumsum(1.5 * x, axis=axis)))

    found = tg.jit(f)
    np.testing.assert_allclose(tg.grad(found)(x), tg.grad(f)(x), rtol=1e-12, atol=1e-13)
    slope = tg.jvp(found)(x, direction)[1]
    np.testing.assert_allclose(slope, np.sum(tg.grad(f)(x) * direction), rtol=1e-12)
    twice = tg.hvp(f)(x, direction)
    np.testing.assert_allclose(tg.hvp(found)(x, direction), twice, rtol=1e-11, atol=1e-12)
