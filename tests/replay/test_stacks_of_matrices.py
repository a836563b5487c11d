"""Recorded decompositions of stacks of matrices."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret_derivatives, is_compiled

import tapegrad as tg

rng = np.random.default_rng(0)
GENERAL = rng.normal(size=(2, 3, 3, 3))
LARGE = rng.normal(size=(2, 8, 8))
SYMMETRIC = GENERAL[0] + GENERAL[0].transpose(0, 2, 1)

PROGRAMS = {
    "slogdet": (lambda a: np.linalg.slogdet(a)[1] * np.linalg.slogdet(a)[0], GENERAL),
    "slogdet of more rows": (lambda a: np.linalg.slogdet(a)[1], LARGE),
    "slogdet of one": (lambda a: np.linalg.slogdet(a[0, 0])[1], GENERAL),
    "eigvalsh": (np.linalg.eigvalsh, SYMMETRIC),
    "eigh": (lambda a: np.linalg.eigh(a)[0][..., None] * np.linalg.eigh(a)[1] ** 2, SYMMETRIC),
    "svd": (lambda a: np.linalg.svd(a, full_matrices=False)[1], GENERAL),
    "svd, all": (lambda a: np.linalg.svd(a[0], full_matrices=False)[0] ** 2, GENERAL),
    "qr": (lambda a: np.linalg.qr(a)[1] ** 2, GENERAL),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_stacks(name, monkeypatch):
    f, a = PROGRAMS[name]
    interpret_derivatives(monkeypatch)
    check(f, a)


@pytest.mark.compiled
@pytest.mark.parametrize("name", PROGRAMS)
def test_machine_code(name):
    check(*PROGRAMS[name])


def check(f, a):
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(a)), jitted.inspect(a)
    assert_equal(jitted(a), f(a), 1e-11, 1e-11)
    weights = np.cos(np.arange(np.size(f(a)))).reshape(np.shape(f(a)))
    gradient = tg.grad(tg.jit(lambda a: tg.sum(f(a) * weights)))(a)
    assert_equal(gradient, tg.grad(lambda a: tg.sum(f(a) * weights))(a), 1e-9, 1e-10)


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_singular_matrices_and_nan(n, monkeypatch):
    interpret_derivatives(monkeypatch)
    a = rng.normal(size=(3, n, n))
    a[1] = 0.0
    a[2, 0, 0] = np.nan
    sign, logarithm = tg.jit(lambda a: tuple(np.linalg.slogdet(a)))(a)
    expected = np.linalg.slogdet(a[:2])
    assert_equal(sign[:2], expected[0])
    assert_equal(logarithm[:2], expected[1])
    assert np.isnan(logarithm[2])
