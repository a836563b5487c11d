"""Products with constants that are 0 or -0.0, and quotients by infinities, pass nothing on."""

import math
import operator

import numpy as np
import pytest
from check import module

import tapegrad as tg

SQUARE = 0.6  # the derivative of x * x at 0.3
MINUS_ZERO = np.float32(-0.0)
TERMS = [
    "x * 0.0",
    "x * -0.0",
    "-0.0 * x",
    "x * np.float32(-0.0)",
    "x * MINUS_ZERO",
    "x / np.inf",
    "x / -np.inf",
    "x / -math.inf",
    "np.multiply(x, -0.0)",
    "np.divide(x, math.inf)",
    "operator.mul(x, -0.0)",
    "operator.truediv(x, np.inf)",
    "x ** -0.0",
    "np.sin(x * -0.0) + np.cos(x / np.inf)",
]
HEADER = """\
import math
import operator
import numpy as np

MINUS_ZERO = np.float32(-0.0)

"""


ALONE = "def f(x):\n    return {} + x * x\n"
IN_LOOP = """\
def f(x):
    s = 0.0
    for k in range(2):
        s += {}
    return s + x * x
"""


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("text", [ALONE, IN_LOOP])
def test_numbers(text, term):
    function = tg.njit(module(HEADER + text.format(term)))
    assert tg.grad(function)(0.3) == pytest.approx(SQUARE)
    assert tg.jvp(function)(0.3, 1.0)[1] == pytest.approx(SQUARE)
    assert tg.hvp(function)(0.3, 1.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "term",
    [
        lambda x: x * -0.0,
        lambda x: x / np.inf,
        lambda x: x / -math.inf,
        lambda x: tg.multiply(MINUS_ZERO, x),
        lambda x: operator.truediv(x, np.inf) * x,
        lambda x: tg.sum(x) * -0.0,
        lambda x: x * (0 * -0.1),
    ],
)
def test_recordings(term):
    def f(x):
        return tg.sum(term(x)) + tg.sum(x * x)

    x = np.array([0.3, -1.0])
    for gradient in (tg.grad(f), tg.jit(tg.grad(f)), tg.grad(tg.jit(f))):
        np.testing.assert_array_equal(gradient(x), 2.0 * x)
    np.testing.assert_array_equal(tg.jit(tg.hvp(f))(x, x), 2.0 * x)
