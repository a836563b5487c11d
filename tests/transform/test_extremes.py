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
