"""Sines and cosines in loops, whose derivatives are computed beside them."""

import math

import numba
import numpy as np
import pytest
from check import Cases

import tapegrad as tg
from tapegrad.transform.generation import FASTER

pytestmark = pytest.mark.texts

A = np.array([0.3, 0.7, -0.4, 0.9])
case = Cases()


@case(0.7, 1.3, 6, argnums=(0, 1), hvp=True)
def sines(z, y, n):
    for _ in range(n):
        z = math.sin(z * y)
    return z


@case(0.7, 0.3, 5, argnums=(0, 1), hvp=True)
def pendulum(angle, speed, n):
    energy = 0.0
    for _ in range(n):
        speed -= 0.1 * math.sin(angle)
        angle += 0.1 * speed
        energy += speed * speed - math.cos(angle)
    return energy


@case(A, 3, hvp=True)
def states(x, n):
    z = x.copy()
    for _ in range(n):
        for i in range(z.size):
            z[i] = np.sin(z[i] * x[i]) + 0.5
    return np.sum(z)


@case(A, 3, hvp=True)
def cosines_of_states(x, n):
    z = x.copy()
    total = 0.0
    for _ in range(n):
        for i in range(z.size):
            z[i] += 0.1 * np.cos(z[i])
        for i in range(z.size):
            total += z[i] * np.sin(z[i] * x[0])
    return total


@case(A, hvp=True)
def in_branches(x):
    z = 0.2
    for i in range(x.size):
        if z > 0.5:
            z = np.sin(z + x[i])
        else:
            z = z + np.cos(z * x[i])
            z *= 1.1
    return z


@case(A, 3)
def while_loop(x, n):
    z, k = x[0], 0
    while k < n and abs(z) < 10.0:
        z = z + np.sin(z) * x[1]
        k += 1
    return z


@case(A, 3)
def reads_of_the_cosine(x, n):
    z = x[0]
    for _ in range(n):
        s, c = np.sin(z), np.cos(z)
        z = s * c + x[1]
    return z


@case(A.astype(np.float32), 3)
def single_precision(x, n):
    z = x[0]
    for _ in range(n):
        z = np.sin(z * x[1])
    return z


@case(A, 4)
def of_integers(x, n):
    z, k = x[0], 1
    for _ in range(n):
        z *= np.sin(k * x[1]) + np.sin(k)
        k = 2 * k + 1
    return z


@case(A + 0.2j, 3)
def complex_numbers(x, n):
    z = x[0]
    for _ in range(n):
        z = np.sin(z * x[1])
    return z.real + z.imag


@case(A, hvp=True)
def not_kept(x):
    total = 0.0
    for i in range(x.size):
        total += np.sin(x[i])
    return total


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


def text_of(name):
    """Return the text of a gradient as it was verified."""
    function, arguments, options = case[name]
    kinds = tuple(map(numba.typeof, arguments))
    return tg.grad(function, options.get("argnums", 0)).source(kinds).partition(FASTER)[0]


@pytest.mark.parametrize("name", ["sines", "states", "single_precision"])
def test_the_cosine_is_computed_once_beside_the_sine(name):
    assert text_of(name).count("np.cos(") == 1


def test_it_is_not_computed_where_nothing_is_kept():
    text = text_of("not_kept")
    assert text.count("np.cos(") == 1
    assert "tape" not in text


def test_nothing_is_added_where_the_program_computes_both():
    text = text_of("reads_of_the_cosine")
    assert text.count("np.cos(") == text.count("np.sin(") == 1
