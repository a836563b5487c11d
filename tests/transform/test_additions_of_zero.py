"""Additions of and to zeros, which versions of derivatives that run faster leave out."""

import re

import numpy as np
import pytest
from check import Cases
from optimized import after_pass

from tapegrad.transform.generation import FASTER
from tapegrad.transform.optimize.additions_of_zero import leave_out_zeros

pytestmark = pytest.mark.texts

A = np.array([0.3, 0.7, -0.4, 0.9, 0.2])
case = Cases()


def changed(text):
    """A function without additions of zeros, and whether it had any."""
    return after_pass(leave_out_zeros, f"def f(a, x, n):\n{text}")


def run(text, *args):
    scope = {}
    exec(text, scope)
    return scope["f"](*args)


BRANCHES = """
    u = v = 0.0
    w = x
    if n > 1:
        u += x
    elif n > 0:
        v -= 2.0 * x
        v += w
    a[0] += u
    a[1] -= v
    w += v
    return u + 3.0 * v + w
"""
LOOPS = """
    t = 0.0
    u = 0.0
    for k in range(n):
        v = 0.0
        if k == 1:
            u = 0.0
            continue
        if a[k] > 0.5:
            v += x
            break
        else:
            u += x
        t += v
        a[k] += v
        u = 0.0
        u -= t
    else:
        t += u
    while n > 2:
        n -= 1
        t += x
        u = 0.0
        u += u * x
        a[0] -= u
    return t + u
"""


MOVED = """
    u = v = w = 0.0
    if n > 1:
        v += x
    else:
        u += x
    v += u  # behind it, v is not 0 on either path
    w -= u
    a[0] += v
    a[1] += w
    return x
"""


@pytest.mark.parametrize("text", [BRANCHES, LOOPS, MOVED])
def test_the_results_are_the_same(text):
    found, is_changed = changed(text)
    assert is_changed
    original = f"def f(a, x, n):\n{text}"
    for n in range(5):
        one, two = np.array([0.1, 0.6, 0.2, 0.9]), np.array([0.1, 0.6, 0.2, 0.9])
        assert run(found, one, 1.5, n) == run(original, two, 1.5, n)
        np.testing.assert_array_equal(one, two)


def test_what_is_left_out():
    found, _ = changed(BRANCHES)
    assert found.count("+=") == 3, "the second to v, and two behind branches"
    assert "u = x" in found
    assert "v = -(2.0 * x)" in found


@pytest.mark.parametrize(
    "text",
    [
        "    u = 0.0\n    for k in range(n):\n        u += x\n    return u",
        "    u = 0.0\n    u += u * x\n    return u",
        "    u = 0.0\n    if n:\n        u = x\n    a[1] += a[0]\n    a[0] += u\n    return u",
        "    u = 0\n    u += n\n    return u",
        "    u = 0.0\n    while n > u:\n        u += x\n    return u",
    ],
    ids=["carried", "itself", "not adjacent", "integers", "a condition"],
)
def test_what_is_not_known_to_be_zero_stays(text):
    found, _ = changed(text)
    original = f"def f(a, x, n):\n{text}"
    for n in range(3):
        one, two = A.copy(), A.copy()
        assert run(found, one, 1.5, n) == run(original, two, 1.5, n)
        np.testing.assert_array_equal(one, two)


@case(A, hvp=True)
def largest_so_far(x):
    found = np.zeros(x.size)
    for j in range(x.size):
        largest = -np.inf
        for k in range(j + 1):
            if x[k] >= largest:
                largest = x[k]
        found[j] = largest
    return np.sum(found * x)


@case(A, 0.25, argnums=(0, 1), hvp=True)
def exchanged(x, s):
    low, high = s, 2.0 * s
    for i in range(x.size):
        if x[i] > high:
            low, high = high, x[i] * s
        elif x[i] > low:
            low = 0.5 * (low + x[i])
        else:
            high = high - low * x[i]
    return low * high


@case(np.array([0.45, 0.1, 0.3]), hvp=True)
def sum_or_quotient(x):
    found = x[0] + x[1]
    if x[0] > 0.5:
        found = abs(x[1] / (1.0 + x[0]))
    logarithms = np.where(x > 0.2, np.log1p(x), x * 2.0)
    return max(logarithms[0], found) - (x[0] - logarithms[1]) * logarithms[2] + logarithms[0]


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


def test_nothing_is_added_where_nothing_was_found():
    text = largest_so_far.adjoint_source(A).partition(FASTER)[2]
    assert re.search(r"if cond_\d+:\n +x_bar\[k_1_\d+\] \+= largest_3_bar\n", text)
