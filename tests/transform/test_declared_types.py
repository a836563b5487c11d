"""Functions with declared signatures, results and variables: what numba converts."""

import numba
import numpy as np
import pytest
from check import Cases, check

import tapegrad as tg

A = np.array([0.3, 0.2, 0.5])
case = Cases()


@numba.njit("float64(float64, int8)")
def scaled(x, n):
    return x * n


@numba.njit("float64(float64, float64)")
def product(x, y):
    return x * y


@numba.njit(["float64(float64)", "float32(float32)"])
def squared(x):
    return x * x


@numba.njit("float64(float64[:], int64)")
def total(a, n):
    return np.sum(a * a) * n


@numba.njit("int32(int32, float64[:], float64)")
def place(n, knots, x):
    i = 0
    while i < n - 2 and knots[i + 1] <= x:
        i += 1
    return i


@numba.njit("int8(int64)")
def narrowed(n):
    return n * 100


@numba.njit(locals={"result": numba.float64, "size": numba.intp, "i": numba.int64})
def inner(x, y):
    result = 0.0
    size = x.shape[0]
    for i in range(size):
        result += x[i] * y[i]
    return result


@case(np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.3, 0.2, 0.9, 0.1]), 1.3, compiled=True)
def integers_that_are_converted_as_results(knots, values, x):
    i = place(np.int32(knots.size), knots, x)
    slope = (values[i + 1] - values[i]) / (knots[i + 1] - knots[i])
    return (values[i] + (x - knots[i]) * slope) * narrowed(3) + inner(knots, values)


@case(0.8, 5, argnums=(0,), compiled=True, hvp=True)
@case(0.8, 300, argnums=(0,), compiled=True, hvp=True)
def integers_that_a_call_converts(x, n):
    for _ in range(3):
        x = x + np.sin(0.01 * scaled(x, n)) * product(x, 2) * product(n % 7, x)
        n = n + 120
    return squared(x)


@case(0.8, A, compiled=True)
def layouts_that_a_call_takes(x, a):
    return x * total(a, 3) + total(a[::2] * x, 2)


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)


def test_an_argument_that_a_call_converts():
    with pytest.raises(
        tg.TransformError, match=r"scaled is compiled for .*convert before the call"
    ):
        tg.grad(scaled)(0.8, 300)
    check(scaled, 0.8, np.int8(5), argnums=(0,), compiled=True)

    @numba.njit("float64(int64)")
    def halved(n):
        return n * 0.5

    @tg.njit
    def f(x):
        return x * halved(x * 5.0)

    @tg.njit
    def way_out(x):
        return x * halved(np.int64(x * 5.0))

    with pytest.raises(
        tg.TransformError, match=r"halved is compiled for .*convert before the call"
    ):
        tg.grad(f)(0.87)
    check(way_out, 0.87, compiled=True)


def test_a_result_that_is_converted():
    @numba.njit("float32(float64)")
    def f(x):
        return x * x

    with pytest.raises(tg.TransformError, match=r"declared to return float32.*convert what it ret"):
        tg.grad(f)(0.3)

    @numba.njit("float32(float64)")
    def way_out(x):
        return np.float32(x * x)

    assert tg.value_and_grad(way_out)(0.3) == pytest.approx((np.float32(0.09), 0.6), rel=1e-7)


def test_variables_of_declared_types():
    @numba.njit(locals={"k": numba.uint8})
    def f(x, n):
        k = n * 100
        return x * k

    with pytest.raises(tg.TransformError, match=r"declared types of variables \(k\)"):
        tg.grad(f)(0.8, 3)

    @tg.njit
    def way_out(x, n):
        k = np.uint8(n * 100)
        return x * k

    check(way_out, 0.8, 3, compiled=True)
