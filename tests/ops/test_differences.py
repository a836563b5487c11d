"""Differences and interpolation of integers, which would overflow in their own type."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.testing import check_grads

FALLING = np.array([5, 1, 0], np.uint8)
WIDE = np.array([-100, 100, 127], np.int8)


@pytest.mark.parametrize("points", [FALLING, WIDE, np.array([True, False, True])])
def test_interpolation_between_integers(points):
    at, x = np.array([0.2, 0.5, 1.7]), np.array([0.0, 1.0, 2.0])
    found = np.interp(tg.tensor(at, requires_grad=True), x, points)
    np.testing.assert_allclose(found.detach(), np.interp(at, x, points.astype(float)))
    check_grads(lambda t: tg.interp(t, x, points), [at])


def test_interpolation_at_integer_positions():
    check_grads(lambda v: tg.interp(np.array([50.0, -7.0]), WIDE, v), [np.array([1.0, 2.0, 4.0])])


@pytest.mark.parametrize("values", [FALLING, WIDE])
def test_gradients_of_integers_and_at_integer_positions(values):
    step = tg.tensor(2.0, requires_grad=True)
    np.testing.assert_allclose(np.gradient(values, step).detach(), np.gradient(values, 2.0))
    check_grads(lambda s: tg.gradient(values, s), [np.array(2.0)])
    y = np.array([1.0, 5.0, 2.0])
    found = np.gradient(tg.tensor(y, requires_grad=True), values)
    np.testing.assert_allclose(found.detach(), np.gradient(y, values))
    check_grads(lambda y: tg.gradient(y, values), [y])


def test_truth_values_as_indices_of_take_are_integers():
    x = np.array([3.0, 4.0])
    assert tg.take(x, [False, True]).numpy().tolist() == np.take(x, [False, True]).tolist()
    assert tg.grad(lambda x: tg.sum(tg.take(x, np.array([True, False]))))(x).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_values_that_pad_have_no_derivative(value):
    x = np.array([1.0, 2.0])
    with pytest.raises(TypeError, match="no derivative with respect to constant_values"):
        tg.grad(lambda c: tg.sum(tg.pad(x, 2, constant_values=c)))(value)

    def way_out(c):
        return tg.sum(tg.where(tg.pad(np.ones_like(x), 2), tg.pad(x, 2), c))

    assert tg.grad(way_out)(value) == 4.0


def test_no_differences():
    """Without a difference there are no ends either."""
    x = tg.tensor([1.0, 3.0], requires_grad=True)
    found = np.diff(x, 0, prepend=5.0, append=7.0)
    assert found.tolist() == np.diff(x.detach().numpy(), 0, prepend=5.0, append=7.0).tolist()
    found.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("x", [[1.0, 1e20, 2.0, 3.0], [1.0, np.nan, 2.0], [1.0, np.inf, 2.0, 3.0]])
def test_central_differences_leave_out_the_element_between(x):
    np.testing.assert_array_equal(tg.gradient(tg.tensor(x)), np.gradient(x))


@pytest.mark.parametrize("v", [[np.nan, 1.0], [np.inf, 1.0], [1.0, -np.inf]])
def test_zeros_beside_an_array_are_not_multiplied(v):
    for x in ([1.0, 2.0, 3.0], [3.0, np.inf, 1.0]):
        for mode in ("full", "same", "valid"):
            for own, other in ((tg.convolve, np.convolve), (tg.correlate, np.correlate)):
                with np.errstate(invalid="ignore"):
                    found, expected = own(tg.tensor(x), v, mode), other(x, v, mode)
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "fp", [[0.0, 1.0, np.inf], [np.inf, 1.0, 0.0], [0.0, np.inf, 1.0], [np.inf, np.inf, 0.0]]
)
def test_interpolation_beside_infinite_values(fp):
    x = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    expected = np.interp(x, [0.0, 0.5, 1.0], fp)
    np.testing.assert_array_equal(tg.interp(tg.tensor(x), [0.0, 0.5, 1.0], fp), expected)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64, np.complex128])
def test_convolutions_keep_the_dtype(dtype):
    x, v = np.array([1, 2, 3], dtype), np.array([2, 1], dtype)
    for own, other in ((tg.convolve, np.convolve), (tg.correlate, np.correlate)):
        found, expected = own(tg.as_tensor(x), v).numpy(), other(x, v)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("xp", [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
def test_interpolation_outside_of_points_that_coincide(xp):
    """A piece of length 0 has a slope that is infinite, and nothing is on it."""
    at, fp = np.array([-1.0, 0.5, 3.0]), np.array([1.0, 4.0, 9.0])
    check_grads(lambda q, v: tg.interp(q, np.array(xp), v), [at, fp])
    by_points = tg.grad(lambda points: tg.sum(tg.interp(at, points, fp)))(np.array(xp))
    assert np.isfinite(by_points).all()
    assert np.array_equal(
        by_points, tg.grad(tg.njit(lambda points: np.sum(np.interp(at, points, fp))))(np.array(xp))
    )


SINGLE = np.array([0.1, 0.3, 0.9, 1.6], np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.interp(np.float32(0.5), x, x),
        lambda x: np.bincount([0, 2, 2, 1], weights=x),
        lambda x: np.linspace(x[0], x[1], 3),
        lambda x: np.linspace(x[0], 1.0, 3),
        lambda x: np.linspace(0, x, 3),
        lambda x: np.linspace(np.float64(0.0), x[0], 3),
    ],
)
def test_precision_is_that_of_numpy(function):
    """Whether in single or in double precision; gradients are in that of the argument."""
    expected = function(SINGLE)
    x = tg.tensor(SINGLE, requires_grad=True)
    for found in (function(x).detach().numpy(), tg.jit(function)(SINGLE)):
        assert np.asarray(found).dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert tg.grad(lambda x: tg.sum(function(x)))(SINGLE).dtype == np.float32
