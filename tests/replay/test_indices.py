"""Indices of several parts in recorded functions, as NumPy has them."""

import numpy as np
import pytest

import tapegrad as tg

X = np.random.default_rng(0).normal(size=(4, 3, 2))
INDICES = {  # an ellipsis of no axes separates the arrays
    "arrays": np.s_[:, [0, 1], ..., [0, 1]],
    "array, number": np.s_[:, [0], ..., 0],
    "number, array": np.s_[:, 0, ..., [0, 1]],
    "first": np.s_[[0, 1], [0, 1], ..., [0, 1]],
    "all": np.s_[[0, 1], ..., [0, 1], [0, 1]],
    "ellipsis last": np.s_[:, [0, 1], [0, 1], ...],
    "ellipsis first": np.s_[..., [0, 1], [0, 1]],
    "numbers": np.s_[:, 0, ..., 1],
    "ellipsis of an axis": np.s_[[0, 1], ..., [0, 1]],
    "new axis": np.s_[:, [0, 1], None, [0, 1]],
    "True": np.s_[True],
    "array that is True": np.s_[np.array(True)],
    "array that is False": np.s_[:, np.array(False)],
}
OF_ITEMS = {
    "arrays": np.s_[[0, 1], ..., [0, 1]],
    "of two axes": np.s_[[[0], [1]], ..., [0, 1]],
    "number, array": np.s_[0, ..., [0]],
    "array, number": np.s_[[0], ..., 0],
}


def loss(index):
    return lambda x: tg.sum(tg.sin(x[index]) * np.arange(1.0, 1.0 + X[index].shape[-1]))


@pytest.mark.parametrize("name", INDICES)
def test_reads(name):
    index = INDICES[name]
    np.testing.assert_array_equal(tg.jit(lambda x: x[index])(X), X[index])
    f = loss(index)
    np.testing.assert_allclose(tg.grad(tg.jit(f))(X), tg.grad(f)(X))


@pytest.mark.parametrize("name", INDICES)
def test_writes(name):
    index = INDICES[name]
    values = np.arange(1.0, 1.0 + X[index].size).reshape(X[index].shape)

    def f(x):
        y = x * 1.0
        y[index] = values
        return y

    expected = X.copy()
    expected[index] = values
    np.testing.assert_array_equal(tg.jit(f)(X), expected)


@pytest.mark.compiled
@pytest.mark.parametrize("name", OF_ITEMS)
def test_batches(name):
    index = OF_ITEMS[name]

    def f(x):
        return x[index]

    def g(x):
        return tg.sum(tg.sin(x[index]))

    expected = np.stack([item[index] for item in X])
    np.testing.assert_array_equal(tg.vmap(tg.jit(f))(X), expected)
    np.testing.assert_array_equal(tg.jit(tg.vmap(f))(X), expected)
    slopes = np.stack([tg.grad(g)(item) for item in X])
    np.testing.assert_allclose(tg.vmap(tg.grad(tg.jit(g)))(X), slopes)
