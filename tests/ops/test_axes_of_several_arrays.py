"""Functions of arrays whose ranks differ, with an axis, and assignments of values of more axes."""

import numpy as np
import pytest

import tapegrad as tg

RNG = np.random.default_rng(0)
A, B, C, D = (RNG.normal(size=shape) for shape in [(3,), (3, 3), (3, 4), (2, 3, 4)])
PRODUCTS = [
    *((A, B, 0), (B, A, 0), (B, A, -1), (A, C, 0), (B, B, 0), (C, C, 0), (D, C, -2), (C, D, -2)),
    *((D, D[:1], 1), (D, RNG.normal(size=(2, 4)), 0)),
]
INTEGRALS = [
    *((A, B, -1), (B, A, -1), (B, A, 0), (C, C, 0), (C, C, -1), (D, C, -1), (C, D, -1)),
    *((D, D, 1), (A, B[None], -1), (A, None, -1), (D, None, 1)),
]


def compared(f, expected, arrays):
    """Compare a function of arrays, and its gradient, which is that of differences."""
    np.testing.assert_allclose(f(*arrays), expected(*arrays))
    np.testing.assert_allclose(tg.jit(f)(*arrays), expected(*arrays))
    weights = RNG.normal(size=np.shape(expected(*arrays)))
    places = tuple(range(len(arrays)))
    found = tg.grad(lambda *given: tg.sum(f(*given) * weights), places)(*arrays)
    for k, gradient in enumerate(found):
        direction = RNG.normal(size=arrays[k].shape)
        ends = [
            np.sum(weights * expected(*arrays[:k], arrays[k] + t * direction, *arrays[k + 1 :]))
            for t in (1e-5, -1e-5)
        ]
        np.testing.assert_allclose(np.sum(gradient * direction), (ends[0] - ends[1]) / 2e-5, 1e-6)


@pytest.mark.parametrize("case", range(len(PRODUCTS)))
@pytest.mark.parametrize("vecdot", [tg.vecdot, tg.linalg.vecdot])
def test_vecdot(vecdot, case):
    x, y, axis = PRODUCTS[case]
    compared(lambda x, y: vecdot(x, y, axis=axis), lambda x, y: np.vecdot(x, y, axis=axis), (x, y))


@pytest.mark.parametrize("case", range(len(INTEGRALS)))
def test_trapezoid(case):
    y, x, axis = INTEGRALS[case]
    arrays = (y,) if x is None else (y, x)
    compared(
        lambda *given: tg.trapezoid(*given, axis=axis),
        lambda *given: np.trapezoid(*given, axis=axis),
        arrays,
    )


WRITES = {  # what is written to, at an index, and the shape of the value
    "indices": ((3,), np.s_[[0, 1]], (1, 1)),
    "slice": ((3,), np.s_[:], (1, 1, 1)),
    "row": ((3,), np.s_[:], (1, 3)),
    "empty": ((3,), np.s_[3:], (1, 1)),
    "matrix": ((3, 2), np.s_[:], (1, 1, 1)),
    "rows": ((3, 2), np.s_[:], (1, 1, 2)),
    "item": ((3,), np.s_[1:2], (1, 1)),
}


@pytest.mark.parametrize("name", WRITES)
def test_values_with_more_axes(name):
    shape, index, given = WRITES[name]
    weights, x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape), RNG.normal(size=given)

    def f(x):
        y = tg.zeros(shape)
        y[index] = x
        return tg.sum(y * weights)

    expected = np.zeros(shape)
    expected[index] = 1.0
    slopes = np.broadcast_to(expected * weights, shape)
    t = tg.tensor(x, requires_grad=True)
    f(t).backward()
    for found in (t.grad, tg.grad(f)(x), tg.grad(tg.jit(f))(x)):
        assert found.shape == given
        np.testing.assert_allclose(np.sum(found), np.sum(slopes))
        if 2 in given or 3 in given:
            sums = slopes.sum(axis=tuple(range(slopes.ndim - 1)))
            np.testing.assert_allclose(np.asarray(found).reshape(-1), sums)


@pytest.mark.parametrize("mask", [np.array([True] * 3), np.array([True, False, True])])
def test_masked_writes_of_overlapping_values(mask):
    weights, x = np.array([1.0, 10.0, 100.0]), np.array([0.1, 0.5, 0.3])

    def f(x):
        y = x * 1.0
        y[mask] = y[::-1][mask.nonzero()[0][0] :][: mask.sum()]
        return tg.sum(y * weights)

    value, places = x.copy(), np.arange(3)
    value[mask] = x[::-1][mask.nonzero()[0][0] :][: mask.sum()].copy()
    places[mask] = places[::-1][mask.nonzero()[0][0] :][: mask.sum()].copy()
    gradient = np.bincount(places, weights, 3)
    # the function of arrays is NumPy's, which reads what it has written
    for compiled in (f, tg.jit(f)):
        np.testing.assert_allclose(float(compiled(tg.tensor(x))), np.sum(value * weights))
        np.testing.assert_allclose(tg.grad(compiled)(x), gradient)
