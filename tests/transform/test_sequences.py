"""Interpolation, differences, integrals, convolutions, statistics of rows."""

import numpy as np
import pytest
from check import Cases, check, close

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9, 0.1])
V = np.array([0.5, -0.2, 0.8])
M23 = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
XP = np.array([0.0, 1.0, 2.5, 4.0])
FP = np.array([1.0, 3.0, -2.0, 0.5])
X = np.array([-1.0, 0.3, 3.9, 5.0, 2.6])
case = Cases()


@case(X, XP, FP, 0.4, hvp=True)
def interpolated(x, xp, fp, t):
    y = np.interp(x, xp, fp)
    return (y * y).sum() + np.interp(t, xp, fp) ** 2 * np.interp(9.0, xp, fp)


@case(A, V, hvp=True)
def convolved(a, v):
    b = np.convolve(a, v)
    c = np.correlate(v, a, "same") if a[0] > 5 else np.correlate(a, v, "full")
    d = np.convolve(a, v, "valid")
    return (b * b).sum() + c[1] * c[3] ** 2 + d[0] * d[2]


@case(A, M23, 0.3, hvp=True)
def differences_and_integrals(a, m, h):
    b = np.diff(a, 2)
    c = np.diff(m)
    d = np.ediff1d(m)
    s = np.trapezoid(a) * np.trapezoid(a, dx=h) + np.trapezoid(a, np.cumsum(a * a))
    return (b * b).sum() + (c * c * c).sum() + d[2] ** 2 + s + np.unwrap(a)[2] ** 2


@case(A, np.array([0, 2, 2, 1, 0]), hvp=True)
def counted(a, k):
    b = np.bincount(k, weights=a)
    c = np.vander(a, 3) * np.vander(a, 3, True)
    return (b * b * b).sum() + (c * c).sum()


@case(0.3, 1.7, hvp=True)
def spaced(x, y):
    a = np.logspace(x, y, 4) * np.geomspace(x, y, 4)
    b = np.linspace(x, y, 4) * np.arange(x, 2.0, x * y)[:4]
    return (a * b).sum() + np.linspace(x, y, 1)[0]


@case(M23 + np.array([[0.1], [0.7]]), hvp=True)
def statistics(m):
    c = np.cov(m)
    d = np.corrcoef(m)
    return (c * c).sum() + c[0, 1] * d[0, 1] ** 2 + d[1, 0]


@case(V, M23 + np.array([[0.1], [0.7]]), hvp=True)
def statistics_of_two(v, m):
    c = np.cov(v, m[0]) + np.cov(m, rowvar=False, bias=True)[:2, :2]
    r = np.corrcoef(m, v * v)[:2, :2] + np.corrcoef(v, m[1] * v)
    d = np.cov(m.T, v, False, ddof=0)
    return np.sum(c * c * r) + np.sum(d * d)


@case(V, np.array([0.1, 0.4, -0.3]), M23, hvp=True)
def products(a, b, m):
    c = np.cross(a, b)
    d = np.cross(m, a)
    e = np.kron(a, b) * np.kron(b, a)
    f = np.kron(m, np.outer(a, b))
    return (c * c).sum() + (d * d).sum() + (e * e).sum() + (f * f)[3, 4]


@case(A.astype(np.float32), V.astype(np.float32))
def single_precision(a, v):
    return (
        np.convolve(a, v)[2] * np.trapezoid(a) + (np.diff(a) ** 2).sum() + np.cross(v, v[::-1])[0]
    )


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def convolutions(k, a, v):
    if k == 0:
        b = np.convolve(a, v, "same")
    elif k == 1:
        b = np.correlate(a, v)
    elif k == 2:
        b = np.correlate(a, v, "same")
    else:
        b = np.correlate(a, v, "full")
    return (b * b).sum()


@pytest.mark.parametrize("n, m", [(5, 2), (2, 5), (4, 3), (3, 4), (1, 3), (3, 1)])
def test_parts_of_convolutions(n, m):
    rng = np.random.default_rng(n + m)
    a, v = rng.normal(size=n), rng.normal(size=m)
    for k in range(4):
        check(convolutions, k, a, v, argnums=(1, 2), jvp=False)


@tg.njit
def at_a_knot(x, xp, fp):
    return np.interp(x, xp, fp)


def test_at_a_knot_the_slope_is_that_to_the_right():
    slope = tg.grad(at_a_knot)
    assert slope(1.0, XP, FP) == (FP[2] - FP[1]) / 1.5
    assert slope(0.0, XP, FP) == 2.0
    assert slope(4.0, XP, FP) == 0.0
    close(tg.grad(at_a_knot, 2)(4.0, XP, FP), [0, 0, 0, 1], 0)
