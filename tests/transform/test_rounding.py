"""Rounding to some decimals: the derivative is 0, which is said where derivatives depend on it."""

import warnings

import numba
import numpy as np
import pytest
from check import module

import tapegrad as tg

HEAD = "import math, numpy as np, tapegrad as tg\n"
A = np.array([0.61, 0.72])

SAID = {
    "round": "return math.acos(min(round(x[0] * x[1], 12), 1.0)) + x[0]",
    "numbers by NumPy": "return np.round(x[0], 3) * x[1]",
    "an array": "return np.sum(np.around(x, 3) * x)",
    "decimals by name": "return np.sum(np.round(x, decimals=3) * x)",
    "a variable": "n = x.size\n    return round(x[0], n) * x[1]",
    "in a callee": "return helper(x) * x[0]",
}
NOT_SAID = {
    "to integers": "return round(x[0]) * x[1]",
    "to whole numbers": "return np.sum(np.round(x) * x) + np.round(x[0], 0) + round(x[1], -1)",
    "a constant": "return round(0.123, 2) * x[1]",
    "no derivative wanted": "return round(tg.stop_gradient(x[0]), 3) * x[1]",
    "as if it were not rounded": "y = tg.stop_gradient(x[0])\n    return x[0] + (round(y, 3) - y)",
    "a condition only": "return x[1] if round(x[0], 3) > 0.5 else x[0]",
}


def caught(body, transform):
    f = module(
        f"{HEAD}@tg.njit(boundscheck=False)\ndef helper(x):\n    return round(x[0], 2) + x[1]\n"
        f"@tg.njit\ndef f(x):\n    {body}\n"
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        transform(f)
    return [w for w in found if issubclass(w.category, tg.RoundedWarning)]


def reverse(f):
    tg.grad(f).implementation((numba.typeof(A),))


def forward(f):
    tg.jvp(f).implementation((numba.typeof(A), numba.typeof(A)))


@pytest.mark.parametrize("transform", [reverse, forward])
@pytest.mark.parametrize("name", SAID)
def test_lost_derivatives_are_said(name, transform):
    (warning,) = caught(SAID[name], transform)
    text = str(warning.message)
    assert "rounds a number to some decimals" in text
    assert "round(x[0], 2)" in text if name == "in a callee" else "of f rounds" in text


@pytest.mark.parametrize("transform", [reverse, forward])
@pytest.mark.parametrize("name", NOT_SAID)
def test_nothing_is_said(name, transform):
    assert not caught(NOT_SAID[name], transform)


def test_the_way_out():
    @tg.njit
    def f(x):
        y = tg.stop_gradient(x)
        return np.arccos(min(x + (round(y, 12) - y), 1.0))

    value, slope = tg.value_and_grad(f)(0.6)
    assert value == pytest.approx(np.arccos(0.6), rel=1e-12)
    assert slope == pytest.approx(-1 / np.sqrt(1 - 0.36), rel=1e-9)
