"""Reductions of whole arrays, with and without nan, cumulative ones, norms."""

import numpy as np
import pytest
from check import Cases, close, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
M23 = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
A3 = np.linspace(0.1, 1.3, 12).reshape(2, 3, 2)
NAN = np.array([0.3, np.nan, -0.4, 0.9, np.nan, 0.5])
case = Cases()


@case(M23, np.array([0.2, 0.5, 0.3]), hvp=True)
def reductions(a, w):
    s = np.ptp(a) + np.average(a) + np.average(a[0], weights=w) * np.std(a) + np.var(w)
    return s * a.max() + np.prod(a[1]) * a.min() + np.trace(a) + np.mean(a[:, 1])


@case(A3, hvp=True)
def axes(a):
    b = a.sum(axis=1)
    c = np.sum(a, axis=-1)
    d = np.cumsum(a[0], axis=1)
    return (b * b).sum() + (c**3).sum() + np.sum(a, 0)[1, 0] * (d * d)[2, 1]


@case(np.asfortranarray(M23), hvp=True)
def cumulative(a):
    b = np.cumsum(a)
    c = np.cumprod(a)
    d = a[0].cumsum() * a[1].cumprod()
    return (b * b).sum() + (c * b).sum() + (d * d).sum()


@case(NAN, hvp=True)
def without_nan(a):
    s = np.nansum(a) * np.nanmean(a) + np.nanvar(a) * np.nanstd(a) + np.nanprod(a)
    b = np.nancumsum(a) * np.nancumprod(a)
    return s * np.nanmax(a) + np.nanmin(a) + (b * b).sum() + np.nanmedian(a) ** 2


@case(A, M23 + np.array([[0.0, 0.05, 0.1], [0.02, 0.0, 0.0]]), hvp=True)
def norms(a, m):
    norm = np.linalg.norm
    s = norm(a) * norm(a, 1) + norm(a, np.inf) * norm(a, -np.inf) + norm(a, 3.5)
    t = norm(m) * norm(m, 1) + norm(m, -1) * norm(m, np.inf) + norm(m, 2) * norm(m, -2)
    return s * t


@case(M23.astype(np.float32))
def single_precision(a):
    s = np.ptp(a) + np.std(a) * np.linalg.norm(a[0], 3) + np.nanvar(a)
    return s + np.cumprod(a)[2] + np.cumsum(a)[3] * np.prod(a)


@case(0.7)
def of_a_number(x):
    return np.sum(x) * x


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def spread(a):
    return np.std(a) + np.linalg.norm(a - a[0]) + np.var(a)


@pytest.mark.parametrize("value", [0.0, 0.1, 3.0])
def test_no_spread_has_derivative_zero(value):
    a = np.full(3, value)
    close(tg.grad(spread)(a), np.zeros(3), 1e-15)
    close(tg.jvp(spread)(a, np.array([1.0, 2.0, 3.0]))[1], 0.0, 1e-15)
    assert np.isfinite(tg.hvp(spread)(a, np.array([1.0, 2.0, 3.0]))).all()


def test_no_spread_like_tensors():
    a = np.full(3, 2.0)
    t = tg.tensor(a, requires_grad=True)
    tg.std(t).backward()
    f = module("import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n    return np.std(a)\n")
    close(tg.grad(f)(a), t.grad.numpy(), 1e-15)


def test_equal_extremes_share():
    f = module("import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n    return np.ptp(a)\n")
    close(tg.grad(f)(np.array([2.0, 1.0, 2.0, 5.0, 1.0])), [0, -0.5, 0, 1, -0.5], 1e-15)
