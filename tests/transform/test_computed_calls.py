"""Derivatives that are calls which the program computes anyway."""

import numba
import numpy as np
import pytest
from check import Cases

import tapegrad as tg
from tapegrad.transform.generation import FASTER

A = np.array([0.3, 0.7, -0.4, 0.9])
case = Cases()


@case(A, 0.4, 3, argnums=(0, 1), hvp=True)
def kepler(m, e, steps):
    total = 0.0
    for i in range(m.size):
        place = m[i]
        for _ in range(steps):
            place -= (place - e * np.sin(place) - m[i]) / (1.0 - e * np.cos(place))
        total += place * place
    return total


@case(A, hvp=True)
def one_after_the_other(x):
    y = 0.0
    for i in range(x.size):
        c, s = np.cos(x[i] + y), np.sin(x[i] + y)
        y = c * c * x[i] + 0.5 * s - np.cosh(y) * np.sinh(y)
    return y


@case(A, hvp=True)
def before_and_inside(x):
    c, z = np.cos(x[0]), 1.0
    for i in range(x.size):
        if x[i] > 0.5:
            z = z * np.sin(x[0]) + np.cos(x[i])
        else:
            z *= -c
            z += np.sin(x[i])
        z *= np.sin(x[i])
    return z * np.sin(x[0])


@case(A, hvp=True)
def in_one_branch_only(x):
    z = 1.0
    for i in range(x.size):
        if x[i] > 0.5:
            z *= np.cos(x[i])
        z += np.sin(x[i]) * z
    return z


@case(A)
def after_the_loop(x):
    z = 0.0
    for i in range(x.size):
        z += np.sin(x[0]) * x[i]
    return z + np.cos(x[0])


@case(A + 0.6j, hvp=False)
def complex_numbers(x):
    z = 1.0 + 0.0j
    for i in range(x.size):
        z = np.sin(x[i]) * z + np.cos(x[i])
    return z.real + z.imag * z.imag


@case(A.astype(np.float32))
def of_single_precision(x):
    z = np.float32(1.0)
    for i in range(x.size):
        z = np.sin(x[i]) * z + np.cos(x[i])
    return z


@case(A, np.array([1, 2, 3, 1]))
def of_integers(x, n):
    z = 1.0
    for i in range(x.size):
        z = z * np.sin(n[i] * x[i]) + np.cos(n[i] * x[i]) * np.cos(n[i])
    return z


@case(np.array([2.0, 0.5, 1.5]), np.array([0.3, 2.0, 1.2]), argnums=(0, 1), hvp=True)
def powers_and_logarithms(x, y):
    z = 0.0
    for i in range(x.size):
        z = z * 0.5 + x[i] ** y[i] * np.log(x[i])
    return z


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@pytest.mark.parametrize(
    ("name", "call"), [("kepler", "np.cos("), ("one_after_the_other", "np.cosh(")]
)
def test_nothing_is_computed_again(name, call):
    function, arguments, options = case[name]
    kinds = tuple(map(numba.typeof, arguments))
    text = tg.grad(function, options.get("argnums", 0)).source(kinds).partition(FASTER)[0]
    assert text.count(call) == 1
