"""Sorted arrays, medians, quantiles, and the numbers that come of ordering."""

import numpy as np
import pytest
from check import Cases, check, close, module

import tapegrad as tg

pytestmark = pytest.mark.texts

A = np.array([0.3, 0.7, -0.4, 0.9, 0.1])
M23 = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
case = Cases()


@case(A, M23, hvp=True)
def ordered(a, m):
    b = np.sort(a)
    c = np.sort(m)
    d = np.partition(a, 2)
    e = np.unique(a)
    return b[1] * b[3] ** 2 + c[0, 1] * c[1, 2] + d[2] ** 3 + (e * e)[0] * e[4]


@case(A, M23, hvp=True)
def middles(a, m):
    s = np.median(a) ** 2 * np.median(m) + np.nanmedian(a[:4]) * a[0]
    t = np.quantile(a, 0.3) * np.percentile(m, 35.0) + np.nanquantile(a, 0.8) ** 2
    u = np.percentile(a, np.array([10.0, 100.0])) * np.quantile(a, np.array([0.0, 0.77]))
    return s + t + (u * u).sum() + np.nanpercentile(m, 50.0)


@case(np.array([0.2, 0.7, 1.6]), 1.1, argnums=(0, 1))
def place_of_one_number(a, x):
    i = np.searchsorted(a, x)
    y = a[i] + 1.0
    return y * a[i - 1] * x


@case(A + 0.034, np.array([0.0, 0.25, 0.5, 1.0]), argnums=(0,))
def numbers_of_order(a, edges):
    s = 0.0
    places = np.argsort(a)
    inside = np.digitize(a, edges)
    found = np.searchsorted(edges, a)
    chosen = np.nonzero(a > 0.2)[0]
    counts = np.bincount(inside, minlength=6)
    (positive,) = np.where(a > 0.0)
    whole = (a * 10).astype(np.int64)
    for k in range(a.size):
        s += a[places[k]] * (k + 1) * inside[k] + a[k] * found[k] * counts[inside[k]]
    for k in chosen:
        s += a[k] ** 2 * whole[k]
    return s + np.count_nonzero(a > 0.1) * a[0] + positive.size * a[np.argpartition(a, 2)[2]]


@case(A.astype(np.float32))
def single_precision(a):
    return np.sort(a)[1] * np.median(a) + np.percentile(a, 33.0) * np.quantile(a, 0.2)


@case(np.sin(np.arange(12.0) * 5.0)[::2])
def not_contiguous(a):
    b = np.sort(a)
    return b[0] * b[2] + np.median(a) * b[5]


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def chosen(k, a):
    if k == 0:
        return np.sort(a)[1]
    if k == 1:
        return np.median(a)
    if k == 2:
        return np.unique(a)[1]
    return np.quantile(a, 0.5)


def test_equal_elements_count_in_their_order():
    a = np.array([2.0, 1.0, 1.0, 2.0])
    gradient = tg.grad(chosen, 1)
    close(gradient(0, a), [0, 0, 1, 0], 0)
    close(gradient(1, a), [0.5, 0, 0.5, 0], 0)
    close(gradient(2, a), [1, 0, 0, 0], 0)
    close(gradient(3, a), [0.5, 0, 0.5, 0], 0)
    t = tg.tensor(a, requires_grad=True)
    tg.sort(t)[1].backward()
    close(gradient(0, a), t.grad.numpy(), 0)


def test_one_element():
    close(tg.grad(chosen, 1)(1, np.array([3.0])), [1], 0)
    close(tg.grad(chosen, 1)(3, np.array([3.0])), [1], 0)


def test_a_median_of_nan():
    """It is the nan, as a maximum is."""
    assert np.isnan(chosen(1, np.array([1.0, np.nan, 2.0])))
    close(tg.grad(chosen, 1)(1, np.array([1.0, np.nan, 2.0])), [0, 1, 0], 0)


def test_a_quantile_of_a_given_order():
    """A gradient by the order itself is refused."""
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a, q):\n    return np.quantile(a, q)\n"
    )
    check(f, A, 0.3, argnums=(0,), jvp=False)
