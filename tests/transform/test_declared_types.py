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


SINGLE = np.array([0.1, 0.5, 0.3], np.float32)


@numba.njit("float64(float32[:], float32)")
def rounded(a, s):
    return np.sum(a * a) * s


@numba.njit("float32(float64)")
def as_single(x):
    return x * x


@numba.njit("float64(float64, float64)")
def of_floats(a, x):
    return a * x * x


@numba.njit("float64(float32)")
def of_single(x):
    return x * x


@tg.njit
def caller_of_all(x):
    s = np.float64(as_single(x))
    for i in range(3):
        s += of_floats(i, x) + of_single(x) + scaled(np.float32(x), i)
    return s


# the function, what it is given, and what it converts that to
CONVERTED = {
    "an integer for a shorter one": (scaled, (0.8, 5), (0.8, np.int8(5))),
    "an integer for a float": (of_floats, (2, 1.5), (2.0, 1.5)),
    "a truth value for a float": (of_floats, (True, 1.5), (1.0, 1.5)),
    "a float for a single": (rounded, (SINGLE, 0.7), (SINGLE, np.float32(0.7))),
    "a single for a float": (of_floats, (np.float32(0.3), 1.5), (float(np.float32(0.3)), 1.5)),
    "a single as result": (as_single, (0.3,), (0.3,)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_numbers_that_the_function_converts(name):
    f, given, converted = CONVERTED[name]
    numbers = tuple(k for k, value in enumerate(given) if not isinstance(value, int))
    plain = numba.njit(f.py_func)
    value, gradients = tg.value_and_grad(f, numbers)(*given)
    assert value == f(*given)
    wanted = tg.grad(plain, numbers)(*converted)
    for found, expected in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    along = [given[k] for k in numbers]
    dots = [np.ones_like(v) if isinstance(v, np.ndarray) else 1.0 for v in along]
    _, slope = tg.jvp(f, numbers)(*given, *dots)
    assert slope == pytest.approx(sum(np.sum(g) for g in wanted), rel=1e-6)


def test_calls_that_convert_floats():
    wanted = tg.grad(lambda x: x * x + 3 * x * x + 3 * x * x + 3 * x)(0.7)
    assert tg.grad(caller_of_all)(0.7) == pytest.approx(wanted, rel=1e-6)
    assert tg.jvp(caller_of_all)(0.7, 1.0)[1] == pytest.approx(wanted, rel=1e-6)


def test_an_argument_that_a_call_converts():
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
    @numba.njit("int64(float64)")
    def f(x):
        return x * x

    with pytest.raises(tg.TransformError, match=r"declared to return int64.*convert what it ret"):
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
