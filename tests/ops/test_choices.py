"""What was not chosen gets nothing: a cotangent of nan or infinity stays with what was chosen."""

import numpy as np
import pytest

import tapegrad as tg

NAN, INF = np.nan, np.inf
X = np.array([1.0, -2.0, 3.0])
BAD = np.array([NAN, INF, 2.0])
# the function of three numbers, and which of them it takes
CHOICES = {
    "where": (lambda x: tg.where([False, False, True], x, 7.0), [0, 0, 1]),
    "where, the other": (lambda x: tg.where([True, True, False], 7.0, x), [0, 0, 1]),
    "maximum": (lambda x: tg.maximum(x, [5.0, 5.0, 0.0]), [0, 0, 1]),
    "minimum": (lambda x: tg.minimum(x, [-5.0, -5.0, 9.0]), [0, 0, 1]),
    "fmax": (lambda x: tg.fmax(x, [5.0, 5.0, 0.0]), [0, 0, 1]),
    "fmin": (lambda x: tg.fmin(x, [-5.0, -5.0, 9.0]), [0, 0, 1]),
    "clip": (lambda x: tg.clip(x, [5.0, 5.0, 0.0], 9.0), [0, 0, 1]),
    "relu": (lambda x: tg.relu(x * [-1.0, 1.0, 1.0]), [0, 0, 1]),
    "select": (lambda x: tg.select([[True, True, False]], [[7.0, 7.0, 7.0]], x), [0, 0, 1]),
    "floor": (tg.floor, [0, 0, 0]),
    "ceil": (tg.ceil, [0, 0, 0]),
    "rint": (tg.rint, [0, 0, 0]),
    "trunc": (tg.trunc, [0, 0, 0]),
    "sign": (tg.sign, [0, 0, 0]),
    "floor_divide": (lambda x: tg.floor_divide(x, 2.0), [0, 0, 0]),
    "nan_to_num": (lambda x: tg.nan_to_num(tg.where([True, True, False], NAN, x)), [0, 0, 1]),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_cotangents(name, recorded, dtype):
    f, taken = CHOICES[name]
    t = tg.tensor(X.astype(dtype), requires_grad=True)
    z = f(t)
    (found,) = tg.autograd.grad(z, t, tg.tensor(BAD.astype(z.dtype)), create_graph=recorded)
    np.testing.assert_array_equal(found.detach().numpy(), np.where(taken, 2.0, 0.0))


@pytest.mark.parametrize("f", [tg.max, tg.min])
@pytest.mark.parametrize("recorded", [False, True])
def test_reductions(f, recorded):
    t = tg.tensor([[1.0, 2.0], [3.0, 3.0]], requires_grad=True)
    z = f(t, axis=1)
    (found,) = tg.autograd.grad(z, t, tg.tensor([NAN, 1.0]), create_graph=recorded)
    place = int(f is tg.max)
    assert np.isnan(found.detach().numpy()[0, place])
    assert found.detach().numpy()[0, 1 - place] == 0.0
    np.testing.assert_array_equal(found.detach().numpy()[1], [0.5, 0.5])


def test_what_was_chosen_passes_nan_on():
    t = tg.tensor(X, requires_grad=True)
    (found,) = tg.autograd.grad(tg.where([True, True, True], t, 0.0), t, tg.tensor(BAD))
    np.testing.assert_array_equal(found.numpy(), BAD)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("hole", [NAN, INF])
def test_holes_that_are_left_out_again(order, hole):
    """Numbers are hidden by nan, and the results that depend on these replaced."""
    mask = np.array([True, False, False])

    def f(x):
        hidden = tg.where(mask, hole, x)
        return tg.sum(tg.where(mask, 0.0, hidden**3))

    if order == 1:
        np.testing.assert_allclose(tg.grad(f)(X), np.where(mask, 0.0, 3 * X**2))
    else:
        np.testing.assert_allclose(tg.hessian(f)(X), np.diag(np.where(mask, 0.0, 6 * X)))


@pytest.mark.parametrize("hole", [NAN, INF])
def test_holes_in_compiled_functions(hole):
    @tg.njit
    def whole(x, mask, hole):
        hidden = np.where(mask, hole, x)
        return np.sum(np.where(mask, 0.0, hidden**3))

    @tg.njit
    def loop(x, mask, hole):
        total = 0.0
        for k in range(x.size):
            hidden = hole if mask[k] else x[k]
            total += 0.0 if mask[k] else hidden**3
        return total

    mask = np.array([True, False, False])
    for f in (whole, loop):
        np.testing.assert_allclose(tg.grad(f)(X, mask, hole), np.where(mask, 0.0, 3 * X**2))
