"""The largest and smallest elements of arrays are those that NumPy finds."""

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.testing import check_grads
from tapegrad.transform import extremes


@numba.njit
def both(x):
    return extremes.maximum(x), extremes.minimum(x)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 2047, 2048, 2049, 5000])
def test_all_places(size):
    rng = np.random.default_rng(size)
    for place in {0, size // 2, size - 1}:
        x = rng.normal(size=size)
        x[place] = 9.0
        assert both(x) == (9.0, x.min())
        x[place] = -9.0
        assert both(x) == (x.max(), -9.0)
        for special in (np.inf, -np.inf):
            x[place] = special
            assert both(x) == (x.max(), x.min())
        x[place] = np.nan
        assert np.isnan(both(x)).all()


def test_matrices():
    x = np.random.default_rng(0).normal(size=(3, 5, 7))
    assert both(x) == (x.max(), x.min())


def test_no_elements():
    with pytest.raises(ValueError, match="zero-size array to reduction operation maximum"):
        both(np.empty(0))


@tg.njit
def spread(x):
    return np.log(np.sum(np.exp(x - np.max(x)))) * np.min(x)


@pytest.mark.compiled
def test_gradients():
    x = np.random.default_rng(0).normal(size=50)
    check_grads(spread, [x])
    assert "runtime.maximum" in tg.grad(spread).source((numba.typeof(x),))


@tg.njit
def largest(x):
    return 3.0 * np.max(x)


@tg.njit
def smallest(x):
    return 3.0 * np.min(x)


@tg.njit
def range_of(x):
    return 3.0 * np.ptp(x)


@tg.njit
def largest_known(x):
    return 3.0 * np.nanmax(x)


def shares(x, z):
    """The parts of a cotangent of 3 that elements receive which are the extreme."""
    chosen = (x == z) | (np.isnan(x) & np.isnan(z))
    return 3.0 * chosen / chosen.sum()


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every other column": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(600,), (1,), (3, 5), (40, 30), (2, 3, 4)])
def test_elements_that_are_the_extreme_share_its_cotangent(shape, layout):
    rng = np.random.default_rng(0)
    for ties in (False, True):
        x = rng.permutation(np.arange(np.prod(shape)) // (7 if ties else 1)).astype(float)
        x = LAYOUTS[layout](x.reshape(shape))
        highest, lowest = shares(x, x.max()), shares(x, x.min())
        np.testing.assert_array_equal(tg.grad(largest)(x), highest)
        np.testing.assert_array_equal(tg.grad(smallest)(x), lowest)
        np.testing.assert_array_equal(tg.grad(range_of)(x), highest - lowest)
        np.testing.assert_array_equal(tg.grad(largest_known)(x), highest)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_is_the_extreme_unless_it_is_left_out(layout):
    x = np.arange(12.0).reshape(3, 4)
    x[1, 2] = x[2, 0] = np.nan
    x = LAYOUTS[layout](x)
    np.testing.assert_array_equal(tg.grad(largest)(x), shares(x, np.nan))
    np.testing.assert_array_equal(tg.grad(smallest)(x), shares(x, np.nan))
    np.testing.assert_array_equal(tg.grad(largest_known)(x), shares(x, 11.0))


@tg.njit
def shifted(x):
    y = x.T
    m = np.max(y)
    return np.sum((x - m) ** 3) * np.ptp(y)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_derivatives_of_extremes(layout):
    x = LAYOUTS[layout](np.random.default_rng(1).normal(size=(4, 3)))
    check_grads(shifted, [x], order=2)
