"""Variables and results that are a value or None."""

import math

import numpy as np
import pytest
from check import Cases, check, module

import tapegrad as tg

A = np.array([0.3, 0.2, 0.5, 0.1])
case = Cases()


@case(0.7, hvp=True)
@case(0.3)
def set_on_one_way(x):
    z = None
    if x > 0.5:
        z = x * x
    if z is not None:
        return z * 2.0
    return x


@case(A, hvp=True)
def best_so_far(a):
    found = None
    for v in a:
        if found is None or v * v < found:
            found = v * v
    return found * a[0]


@case(A, 0.4)
@case(A, 0.6)
def last_array(a, limit):
    row = None
    for i in range(a.size):
        if a[i] > limit:
            row = a[: i + 1] * limit
    if row is None:
        return limit
    return np.sum(row * a[0])


@case(0.7, 6)
@case(0.7, 1)
def lost_again(x, n):
    held = None
    total = 0.0
    for i in range(n):
        if held is None:
            held = x * i
        elif i % 3 == 0:
            total += held
            held = None
        else:
            held = held * x
    return total if held is None else total + held * x


@case(0.7, 0)
@case(0.7, 1)
def sum_of_parts(x, kind):
    y = chosen(x, kind) * 2.0
    return y + x


@tg.njit
def chosen(x, kind):
    if kind == 0:
        return x * x
    elif kind == 1:
        return math.sin(x)


@case(A, 0.25)
def first_above(a, limit):
    for k in range(a.size):
        if a[k] > limit:
            return a[k] * limit


@case(0.7)
def inner(x):
    def root(y):
        if y > 0:
            return math.sqrt(y)

    r, s = root(x), root(-x)
    if s is None:
        return r * x
    return s


@case(0.7)
@case(-0.7)
def raised(x):
    if x > 0.0:
        y = x * x
    elif x > -1.0:
        y = math.sin(x)
    else:
        raise ValueError("x is too small")
    return y * x


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", case)
def test_derivatives(name, compiled):
    f, args, options = case[name]
    check(f, *args, compiled=compiled, **options)


@tg.njit
def unset(x):
    z = None
    if x > 0.5:
        z = x * x
    return z * 2.0


@pytest.mark.parametrize("of", [lambda f: tg.grad(f)(0.3), lambda f: tg.jvp(f)(0.3, 1.0)])
def test_none_has_no_derivative(of):
    with pytest.raises(TypeError, match=r"z is None here, where a value is needed"):
        of(unset)
    with pytest.raises(TypeError, match=r"f returns None here, which has no derivative"):
        of(
            module(
                "import tapegrad as tg\n@tg.njit\ndef f(x):\n    if x > 0.5:\n        return x\n"
            )
        )


@tg.njit
def compared(x, y):
    z = None
    if x > 0.5:
        z = x * x
    w = None
    if y > 0.5:
        w = y
    return x if z is w else x * y


def test_values_that_may_be_none_are_compared_with_none_only():
    """What numba takes for the same object is not what Python takes for it."""
    with pytest.raises(
        tg.TransformError, match=r"z, which is a value or None; compare it with None"
    ):
        tg.grad(compared)(0.1, 0.1)
