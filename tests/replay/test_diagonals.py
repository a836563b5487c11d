"""Diagonals in recorded programs are elements of arrays; matrices with a diagonal are filled."""

import itertools

import numpy as np
import pytest
from interpreted import assert_equal, interpret

import tapegrad as tg

SHAPES = [(4, 4), (3, 5), (5, 3), (1, 4), (2, 3, 4), (3, 2, 2, 4)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_values(shape, offset, monkeypatch):
    interpret(monkeypatch)
    x = np.random.default_rng(0).normal(size=shape)
    for axes in itertools.permutations(range(-len(shape), 0), 2):
        f = tg.jit(lambda x, axes=axes: 2.0 * tg.diagonal(x, offset, *axes))
        assert_equal(f(x), 2.0 * np.diagonal(x, offset, *axes))
        assert "tg." not in f.inspect(x)


@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_matrices_with_a_diagonal(offset, monkeypatch):
    interpret(monkeypatch)
    v = np.random.default_rng(1).normal(size=3)
    f = tg.jit(lambda v: tg.diag(2.0 * v, offset))
    assert_equal(f(v), np.diag(2.0 * v, offset))
    assert "tg." not in f.inspect(v)


@pytest.mark.compiled
def test_derivatives():
    def f(x):
        y = x @ x
        return tg.trace(y) + tg.sum(tg.sin(tg.diagonal(y, 1)) @ tg.diag(x[0, :3]))

    x = np.random.default_rng(2).normal(size=(4, 4))
    np.testing.assert_allclose(tg.grad(tg.jit(f))(x), tg.grad(f)(x), rtol=1e-12, atol=1e-12)
    found, expected = tg.jit(tg.hessian(f))(x), tg.hessian(f)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)
