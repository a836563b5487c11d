"""Variables that get a value of another type where a loop is left.

For numba the type counts on the path that leaves only: in the loop an integer stays one, which
shows in negative powers of integers.
"""

import numpy as np
import pytest
from check import Cases, check, module
from random_programs.departures import Departures

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])
case = Cases()


@case(0.7, 6, compiled=True, hvp=True)
@case(0.7, 2, compiled=True)
def left_by_break(x, n):
    s = x
    r = 0
    for k in range(n):
        s += 2 ** (r - 2) * x
        if k == 3:
            r = 0.5
            break
        r += 1
    return s * r * x


@case(0.7, 6, compiled=True)
@case(0.1, 1, compiled=True)
def left_by_return(x, n):
    s = x
    r = 0
    while s < n:
        s += 2 ** (r - 2) * x + 1
        if s > 3:
            r = 0.5
            return s * r * x
        r += 1
    return s * r * x


@case(0.7, 5, compiled=True)
def both_loops_are_left(x, n):
    s = x
    r = 0
    for k in range(n):
        s += 2 ** (r - 1) * x
        for j in range(k):
            s += 2 ** (r - 2) * x
            if j == 1:
                r = 0.5 * x
                break
            r += 1
        if k == 3:
            break
        r = 0
    return s * (r + x)


@case(0.7, 5, compiled=True)
@case(0.7, 1, compiled=True)
def values_of_the_else_of_a_loop(x, n):
    s = x
    r = 0
    for k in range(3):
        s += 2 ** (r - 2) * x
        if k == n:
            r = x
            break
        r += 1
    else:
        s += 2 ** (r - 4) * x
        r = -1
    return s * r


@case(0.7, 2, compiled=True)
@case(0.7, 9, compiled=True)
def path_that_leaves_after_another_loop(x, n):
    s = x
    r = 0
    for k in range(4):
        s += 2 ** (r - 2) * x
        if k == n:
            r = 0.5
            for j in range(3):
                if j * x > 10.0:
                    return s
                s += x * r
            break
        r += 1
    return s * (r + x)


@case(0.7, 3, compiled=True)
@case(0.7, 0, compiled=True)
def loop_that_is_never_gone_round(x, n):
    s = x
    w = 1
    for _ in range(n):
        s += 2 ** (w - 2) * x
        w = 0.5 - x
        return s * w
    return s * x + w


@case(A, compiled=True)
def array_that_is_chosen_where_the_loop_is_left(a):
    best = 0
    for k in range(3):
        if a[k] * 2 ** (best - 1) < -0.1:
            best = a[k]
            break
    return best * a[0]


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)


@tg.njit
def of_an_inner_function(x, n):
    def stepped(y, m):
        r = 0
        for k in range(m):
            y += 2 ** (r - 2) * y
            if k == 3:
                r = 0.5
                break
            r += 1
        return y * r

    return stepped(x, n) + stepped(x * x, 2) * x


def test_an_inner_function():
    check(of_an_inner_function, 0.7, 6, compiled=True)


def test_a_path_that_also_goes_on():
    """Whether the value leaves the loop depends on what happens after it was assigned."""

    @tg.njit
    def f(x, n):
        s = 0.0
        w = 1
        for i in range(n):
            if x > 0.0:
                s += 2 ** (w - 2) * x
                if i < 1:
                    continue
                w = x - 1
            return s * w
        return s

    with pytest.raises(tg.TransformError, match=r"let 'w' begin with a float(.|\n)*2 \*\* \(w - 2"):
        tg.grad(f)(0.7, 3)

    @tg.njit
    def g(x, n):
        s = 0.0
        w = 1.0
        for i in range(n):
            if x > 0.0:
                s += 2 ** (w - 2) * x
                if i < 1:
                    continue
                w = x - 1
            return s * w
        return s

    check(g, 0.7, 3)


@pytest.mark.parametrize("seed", range(10))
def test_random_functions(seed):
    """Their values, and those of their gradients, which follow from the types in their loops."""
    f = module(Departures(seed).text())
    step = 1e-6
    for n in (0, 3, 5):
        try:
            value, slope = tg.value_and_grad(f)(0.7, n)
        except tg.TransformError as error:
            if "begin with a float" not in str(error):
                raise
            return
        np.testing.assert_allclose(value, f(0.7, n), rtol=1e-12)
        wanted = (f(0.7 + step, n) - f(0.7 - step, n)) / (2 * step)
        np.testing.assert_allclose(slope, wanted, rtol=1e-5, atol=1e-5)
