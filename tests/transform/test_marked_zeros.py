"""Cotangents of 0 of arrays that are used are marked, of every rank, and only these."""

import numpy as np
import pytest

from tapegrad.transform.rules.numpy_functions.additions import is_used, mark_zeros
from tapegrad.transform.rules.numpy_functions.finite_matrices import is_finite

pytestmark = pytest.mark.texts  # functions of few lines, compiled in every run

BARS = [
    np.array([0.0, 2.0, 0.0]),
    np.array([[0.0, 2.0], [-1.0, 0.0]]),
    np.arange(8.0).reshape(2, 2, 2),
    np.arange(8.0).reshape(2, 4)[:, ::2],
]


@pytest.mark.parametrize("given", [True, 2, 1.5])
@pytest.mark.parametrize("bar", BARS, ids=lambda bar: str(bar.shape))
def test_zeros_of_all_ranks(bar, given):
    marked = bar.copy("K")
    mark_zeros(marked, type(given)(0))
    assert np.array_equal(marked, bar)
    mark_zeros(marked, given)
    assert np.array_equal(marked == 0.0, np.zeros(bar.shape, bool))
    assert np.array_equal(marked[bar != 0.0], bar[bar != 0.0])
    assert (abs(marked[bar == 0.0]) < 1e-200).all()


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: str(bar.shape))
def test_what_is_used(bar):
    assert is_used(bar)
    assert not is_used(bar * 0.0)
    assert is_used(bar * np.nan)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("x", [b for b in BARS if b.ndim < 3], ids=lambda x: str(x.shape))
def test_what_is_finite(x, value):
    assert is_finite(x)
    x = x.copy("K")
    x.flat[-1] = value
    assert not is_finite(x)
