"""Positions of elements that index arrays select, and cotangents of stores to them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform.rules import arrays

CHOSEN = np.array([0, -2, 1, -2])
MASK = np.array([True, False, False, True])
INDICES: dict[str, Any] = {
    "array": CHOSEN,
    "booleans": MASK,
    "no elements": np.array([], np.int64),
    "unsigned": CHOSEN.astype(np.uint8) % 4,
    "array of every other": np.repeat(CHOSEN, 2)[::2],
    "matrix": CHOSEN.reshape(2, 2),
    "in a tuple": (CHOSEN,),
    "array first": (CHOSEN, 1),
    "array last": (-2, CHOSEN),
    "booleans in the middle": (3, MASK, -1),
    "array in the middle": (3, CHOSEN, np.uint8(2)),
    "slice after": (CHOSEN, slice(1, None)),
    "slices around": (slice(None, None, -1), MASK, slice(0, 3, 2)),
    "slice between": (0, slice(None), CHOSEN),
    "rest": (slice(None), CHOSEN),
}


@numba.njit
def positions(x: Any, index: Any) -> Any:
    return arrays.places(x)[index]


def possible() -> Any:
    """Yield each index with each number of axes that it can have."""
    for name, index in INDICES.items():
        for ndim in (1, 2, 3):
            if not isinstance(index, tuple) or len(index) <= ndim:
                yield pytest.param(index, ndim, id=f"{name} of {ndim}")


@pytest.mark.parametrize(("index", "ndim"), [*possible()])
def test_positions_are_those_that_numpy_selects(index: Any, ndim: int) -> None:
    x = np.zeros((4, 4, 4)[:ndim])[..., ::-1]
    expected = np.arange(x.size).reshape(x.shape)[index]
    np.testing.assert_array_equal(arrays.places(x)[index], expected)
    np.testing.assert_array_equal(positions(x, index), expected)


def stores(x: Any, v: Any, mask: Any, chosen: Any) -> Any:
    y = x.copy()
    for j in range(x.shape[1]):
        y[mask[:, j], j] = v * 2
        y[chosen, j] += v * x[0, j]
        y[chosen, j] = x[:, j]
    z = y[1][chosen]
    w = y[:, chosen] ** 2
    y[chosen, :] *= 2.0
    return np.sum(y**2) + np.sum(z**3) + np.sum(np.sin(w)) + np.sum(y[chosen] ** 2)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_repeated_positions_take_the_last_value(layout: Any) -> None:
    rng = np.random.default_rng(0)
    x = np.asarray(rng.normal(size=(4, 4)), order=layout)
    given = (0.3, x > 0, CHOSEN)
    compiled = tg.njit(stores)
    value, (x_bar, v_bar) = tg.value_and_grad(compiled, argnums=(0, 1))(x, *given)
    assert value == pytest.approx(stores(x, *given))
    direction, h = rng.normal(size=x.shape), 1e-6
    ahead, behind = (stores(x + s * h * direction, 0.3 + s * h, *given[1:]) for s in (1, -1))
    difference = (ahead - behind) / (2 * h)
    assert np.sum(x_bar * direction) + v_bar == pytest.approx(difference, rel=1e-6)


def test_derivatives_of_the_gradient() -> None:
    rng = np.random.default_rng(0)
    x, direction = rng.normal(size=(2, 4, 4))
    given = (0.3, x > 0, CHOSEN)
    gradient, h = tg.grad(tg.njit(stores)), 1e-6
    found = tg.jvp(gradient)(x, *given, direction)[1]
    ahead, behind = (gradient(x + s * h * direction, *given) for s in (1, -1))
    np.testing.assert_allclose(found, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)
