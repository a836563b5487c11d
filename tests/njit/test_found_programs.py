"""Programs that random ones were made smaller to, after their derivatives had been wrong.

Each of them is right now, or refused with the line and a way out.
"""

import re

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

HEADER = """\
import collections
import math

import numpy as np
from numba import njit

import tapegrad as tg

State = collections.namedtuple("State", "level grid")
"""
A = np.array([0.3, -0.4, 0.8])
B = np.array([-0.5, 0.6, 0.2])

# name: (text, arguments)
FOUND = {
    "work array of a callee, made again and not filled": (
        """
@tg.njit
def h(p, q):
    w = q.copy()
    w[1] += p
    return np.sum(w * w)

@tg.njit
def f(x, a):
    return h(x, a) + x
""",
        (0.8, A),
    ),
    "filled by calls, one element read": (
        """
@tg.njit
def g(p, q):
    w = q.copy()
    w[1] += p
    return np.sum(w * w)

@tg.njit
def h(p, q):
    w = np.empty_like(q)
    for i in range(3):
        w[i] = g(p, q)
    return w

@tg.njit
def f(x, a):
    return h(x, a)[0]
""",
        (0.8, A),
    ),
    "view of a new array comes back": (
        """
@tg.njit
def h(q):
    w = np.concatenate((q[2:0:-1], q[1:]))
    return w[1:]

@tg.njit
def f(a):
    a[:] = h(a)
    return np.sum(a)
""",
        (A,),
    ),
    "element added to after a call that writes it": (
        """
@tg.njit
def h(p, q):
    q *= p
    return p

@tg.njit
def f(x, a):
    a[1] *= np.sin(h(x, a))
    return x + np.sum(a)
""",
        (0.8, A),
    ),
    "call between two bounds, which writes": (
        """
@tg.njit
def h(p, q):
    q[1] *= 0.5
    return p * q[1]

@tg.njit
def f(x, a):
    u = x if not -0.5 < h(x, a) < 0.4 else 2.0 * x
    return u + np.sum(a)
""",
        (0.8, A),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_right_or_refused(name):
    text, args = FOUND[name]
    f = module(HEADER + text)
    try:
        check(f, *args)
    except tg.TransformError as error:
        # the user's file and line, and what to do
        assert re.search(r'File "[^"]*given_\d+\.py", line \d+', str(error)), error
