"""Rows of the tape that are kept in gradients, and all that are not."""

import ast
import math

import numpy as np
import pytest
from check import check
from numba.core import types
from optimized import after_pass, facts_of

import tapegrad as tg
from tapegrad.transform.optimize.rows_in_gradients import keep_rows_in_gradients

pytestmark = pytest.mark.texts

VECTOR = types.Array(types.float64, 1, "C")
FACTS = facts_of({**dict.fromkeys(["x", "b", "c", "r", "q"], VECTOR)})
TEXT = """
def f(x, s, tape, top):
    b = np.empty_like(x)
    t = x.shape
    n = t[0]
    trips = max(n, 0)
    r = runtime.row(tape, top, trips)
    for i in range(n):
        r[i] = x[i] * s
    u = s
    r = runtime.row(tape, top, trips)
    for i in range(n):
        v = r[i]
        b[i] = v * u
    return (u, (b,))
"""


def after(text):
    """The text after the pass, and whether it changed anything."""
    return after_pass(keep_rows_in_gradients, text, FACTS)


@pytest.mark.parametrize("later", ["", "b[0] += u\n    ", "g(x, b)\n    "])
def test_a_row_in_a_gradient(later):
    found, changed = after(TEXT.replace("return", f"{later}return"))
    assert changed
    assert "b[i] = x[i] * s" in found
    assert "v = b[i]" in found
    assert "runtime.row" not in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b = np.empty_like(x)", "b = np.zeros_like(x)"),
        ("b = np.empty_like(x)", "b = np.empty_like(c)"),
        ("b = np.empty_like(x)", "b = np.empty(s)"),
        ("n = t[0]", "n = t[0] - 1"),
        ("trips = max(n, 0)", "trips = s"),
        ("u = s", "u = b[0]"),
        ("u = s", "u = r[0]"),
        ("u = s", "q = r"),
        ("u = s", "b[0] = s"),
        ("b[i] = v * u", "b[n - 1 - i] = v * u"),
        ("b[i] = v * u", "b[i] += v * u"),
        ("b[i] = v * u", "b[i] = v * r[0]"),
        ("v = r[i]", "v = r[n - 1 - i]"),
        ("v = r[i]", "b[i] = s\n        v = r[i]"),
        ("return (u, (b,))", "u = r[0]\n    return (u, (b,))"),
        ("    r = runtime.row(tape, top, trips)\n    for i in range(n):\n        v", "    for i in "
         "range(n):\n        v"),
    ],
)  # fmt: skip
def test_rows_that_stay(old, new):
    assert old in TEXT
    text = TEXT.replace(old, new)
    found, changed = after(text)
    assert not changed
    assert found == ast.unparse(ast.parse(text))


@tg.njit
def log_sum(x):
    top = x[0]
    for i in range(x.size):
        top = max(top, x[i])
    total = 0.0
    for i in range(x.size):
        total += math.exp(x[i] - top)
    return math.log(total) + top


@tg.njit
def log_sum_and_more(x, y):
    total = 0.0
    for i in range(x.shape[0]):
        total += math.exp(x[i] * y[i])
    return math.sqrt(total)


@tg.njit
def log_sum_of_largest(x):
    top = np.max(x)
    total = 0.0
    for i in range(x.size):
        total += np.exp(x[i] - top)
    return math.log(total) + top


@pytest.mark.parametrize("size", [1, 7, 100])
def test_gradients_that_something_is_added_to(size):
    x = np.linspace(-1.0, 2.0, size)
    check(log_sum_of_largest, x)
    weights = np.exp(x)
    np.testing.assert_allclose(tg.grad(log_sum_of_largest)(x), weights / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_gradients(size):
    x = np.sin(np.arange(float(size)))
    check(log_sum, x)
    check(log_sum_and_more, x, np.cos(x))


def test_results_of_two_calls_are_apart():
    x = np.sin(np.arange(40.0))
    gradient = tg.grad(log_sum_and_more)
    one = gradient(x, x)
    kept = one.copy()
    gradient(2.0 * x, x)
    np.testing.assert_array_equal(one, kept)
