"""Conditions of constants: numba decides some before it finds types, and types follow from that.

In each program the branches assign an integer or a float; 2 to the power -1 is 0 for integers.
"""

import collections
import enum
import types

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

ONE, PAIR = 1, (1, 2)
POINT = collections.namedtuple("Point", "a b")(1, 2)
SETTINGS = types.ModuleType("settings")
SETTINGS.ONE = 1


class Level(enum.IntEnum):
    LOW = 1


OUTSIDE = {"ONE": ONE, "PAIR": PAIR, "POINT": POINT, "SETTINGS": SETTINGS, "Level": Level}

CONDITIONS = {
    "a literal": ("", "2**3 > 0"),
    "a global": ("", "ONE > 0"),
    "a sum with a global": ("", "ONE + 1 > 0"),
    "minus a global": ("", "-ONE < 0"),
    "an item": ("", "PAIR[0] > 0"),
    "a field": ("", "POINT.a > 0"),
    "an attribute": ("", "SETTINGS.ONE > 0"),
    "NumPy's constant": ("", "np.pi > 3"),
    "a member": ("", "Level.LOW > 0"),
    "a variable": ("u = 0", "u >= -0.2"),
    "a power of a variable": ("u = 0", "u**3 >= -0.2"),
    "a power in a variable": ("u = 0; t = u**3", "t >= -0.2"),
    "a copy of a variable": ("u = 1; v = u", "not (v > 2)"),
    "minus a variable": ("u = -1", "-u > 0"),
    "a variable that changes": ("u = 1; u += 1", "u > 0"),
    "one that a tuple is assigned to": ("u, v = 1, 2", "u < v"),
    "a chain": ("", "0 < ONE < 3"),
    "two conditions": ("u = 1; v = 0 if u else 7", "v < 2 and u > 0"),
    "a flag": ("flag = True", "flag"),
    "one that is not taken": ("u = 3", "u < 2"),
    "a number and a condition": ("", "ONE and 1"),
    "a default": ("", "k > 0"),
    "no default": ("", "k is None"),
}


def program(setting, condition, form):
    body = f"    r = 0 if {condition} else q[0]\n"
    if form == "if":
        body = f"    if {condition}:\n        r = 0\n    else:\n        r = q[0]\n"
    if form == "helper":
        body = "    r = chosen(q, k)\n"
    helper = f"    {setting or 'pass'}\n    return 0 if {condition} else q[0]\n"
    text = (
        f"import numpy as np, tapegrad as tg\n\n@tg.njit\ndef chosen(q, k):\n{helper}\n"
        f"@tg.njit\ndef f(q, k=1):\n    {setting or 'pass'}\n{body}"
        "    setting = 0\n    flag = False\n    u = 5\n"
        "    return 2 ** (r - 1) * q[1] * q[1]\n"
    )
    return module(text, **OUTSIDE)


@pytest.mark.parametrize("form", ["if", "expression", "helper"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_types_that_follow(name, form):
    f, q = program(*CONDITIONS[name], form), np.array([1.5, 0.7])
    value = f(q, 1)
    assert tg.value_and_grad(f)(q, 1)[0] == value
    check(f, q, 1, argnums=(0,), compiled=True, jvp=False)


def test_a_line_with_branches_of_both_kinds():
    text = """
import numpy as np, tapegrad as tg

@tg.njit
def f(q, k):
    v = 1
    r = 1
    if k > 0: r = 0 if not (v > 2) else q[0]
    return 2 ** (r - 1) * q[1]
"""
    f, q = module(text), np.array([1.5, 0.7])
    for k in (0, 1):
        assert tg.value_and_grad(f)(q, k)[0] == f(q, k)


def test_what_is_returned():
    """A result of another type than that of the call is no number of the wrong type."""
    text = """
import numpy as np, tapegrad as tg

@tg.njit
def chosen(p, q):
    u = 0
    return u if u**3 >= -0.2 else q[0]

@tg.njit
def f(a, b, n):
    a[n % 3] -= chosen(b, b[2::-1])
    return np.sum(a) * b[0]
"""
    check(module(text), np.array([0.1, -0.1, 1.0]), np.array([0.2, -0.6, 0.1]), 4, argnums=(0, 1))
