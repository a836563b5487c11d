"""Norms of nothing, and of axes that there are not (others: test_linalg.py)."""

import math

import numpy as np
import pytest

import tapegrad as tg


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("ord", [None, 1, 2, 3, 0, math.inf, "fro", "nuc", -1, -2, -math.inf])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (-1, -2)])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_norms_of_nothing(shape, ord, axis):
    """The largest of no sizes is 0, as in NumPy; there is no smallest one."""
    x = np.ones(shape)
    try:
        expected = np.linalg.norm(x, ord, axis)
    except ValueError as error:
        with pytest.raises(type(error)):
            tg.linalg.norm(tg.tensor(x), ord, axis)
        return
    np.testing.assert_array_equal(tg.linalg.norm(tg.tensor(x), ord, axis), expected)
    if ord in (None, 2, math.inf):
        assert tg.grad(lambda v: tg.linalg.norm(v, ord, axis).sum())(x).shape == shape


@pytest.mark.parametrize("axis", [0, -1, (0,), (), (0, 1, 2)])
def test_axes_that_norms_do_not_have(axis):
    """Unlike a sum, a norm takes no axis of an array without axes, nor more than two."""
    for shape in [(), (2, 2, 2)] if np.size(axis) not in (1, 2) else [()]:
        x = np.ones(shape)
        for ord in (None, 2, math.inf):
            with pytest.raises(ValueError) as expected:
                np.linalg.norm(x, ord, axis)
            with pytest.raises(ValueError, match="axis") as found:
                tg.linalg.norm(tg.tensor(x), ord, axis)
            if np.ndim(axis) == 0 or len(axis) == 1:
                assert str(found.value) == str(expected.value)
    if np.size(axis) == 1:
        with pytest.raises(np.exceptions.AxisError):
            tg.linalg.vector_norm(tg.tensor(2.0), axis)
