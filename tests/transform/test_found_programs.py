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
from numba import njit, prange

import tapegrad as tg

State = collections.namedtuple("State", "level grid")
"""
A = np.array([0.3, -0.4, 0.8])
B = np.array([-0.5, 0.6, 0.2])

# name: (text, arguments)
FOUND = {
    "a callee that returns an integer and writes numbers to an array": (
        """
@njit
def insert(target, value, index):
    for i in range(len(target) - 1, index, -1):
        target[i] = target[i - 1]
    target[index] = value
    return index + 1

@njit
def f(a, b):
    found = a.copy()
    start = 0
    for value in b:
        for i in range(start, len(found)):
            if value > found[i]:
                start = insert(found, value, i)
                break
    return np.sum(found * np.arange(3.0))
""",
        (np.array([3.0, 2.0, 1.0]), np.array([2.5, 2.2, 0.5])),
    ),
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
    "factor without a derivative, computed again": (
        """
@tg.njit
def f(a):
    out = np.zeros(a.size)
    s = 0.0
    for i in range(a.size):
        t = tg.stop_gradient(np.sign(a[i])) * np.exp(a[i])
        out[i] = t * np.sin(t)
        s += out[i]
    return s
""",
        (A,),
    ),
    "stored before an error": (
        """
@tg.njit
def f(a):
    for i in range(a.size):
        if a[i] > 0.0 and i == 33:
            a[i] = -1.0
            raise IndexError("33")
        a[i] = a[i] * 2
    return np.sum(a * a)
""",
        (A,),
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
    "reshaped new array comes back": (
        """
@tg.njit
def h(p, q):
    w = np.concatenate((q, np.full(3, p)))
    return w.reshape((2, 3))

@tg.njit
def f(x, a):
    return np.sum(h(x, a))
""",
        (0.8, A),
    ),
    "one of two arrays by two returns": (
        """
@njit
def h(p, q, r):
    w = np.empty(2)
    for i in range(2):
        w[i] = q.max()
    z = r[:, -1].copy()
    if not p < 0.3:
        return z
    return w

@tg.njit
def f(a):
    y = h(-1.1, a, np.full((2, 2), 0.3))
    z = y
    return np.sum(z)
""",
        (A,),
    ),
    "reversed part of a filled array comes back": (
        """
@njit
def h(p):
    w = np.empty(4)
    for i in range(4):
        w[i] = p
    v = w[2::-1]
    return v

@tg.njit
def f(a):
    a += h(a[0])
    return a[1]
""",
        (A,),
    ),
    "one array twice, the first read": (
        """
@tg.njit
def h(p, q):
    w = np.concatenate((q[np.array([0])], np.full(2, p)))
    return w, w

@tg.njit
def f(a, b):
    a *= h(a[0], b)[0]
    return np.sum(a)
""",
        (A, B),
    ),
    "an array and a slice of all of it": (
        """
@tg.njit
def h(p, q):
    w = np.empty_like(q)
    for i in range(3):
        w[i] = p
    return w, w[:]

@tg.njit
def f(x, a):
    y = a.copy()
    r, s = h(x, y)
    return np.sum(s)
""",
        (0.8, A),
    ),
    "call within a call that leaves out an option, a tuple given": (
        """
@njit
def g(p, q, mode="sin", weight=None, pair=(0.3, 0.8)):
    u = 1.5
    if mode == "tanh":
        u = p * pair[0]
    if weight is None:
        return u + q[1] * pair[1]
    return u * weight

@njit
def h(p, q):
    return g(q[0], q, mode="tanh", pair=(0.3, 0.8))

@tg.njit
def f(x, a):
    a[0] -= h(1.5, a)
    return x * a[0]
""",
        (0.8, A),
    ),
    "greatest element in a callee, of an array that is written later": (
        """
@tg.njit
def h(q):
    u = q.max()
    return u

@tg.njit
def f(a, b):
    b[:] += h(a)
    a[2::-1] += b
    return np.sum(a)
""",
        (A, B),
    ),
    "view of a filled array, in a loop": (
        """
@njit
def h(q):
    w = np.zeros_like(q)
    for i in range(3):
        w[i] = q[0]
    v = w[:]
    return v

@tg.njit
def f(a):
    w = np.zeros(3)
    for i in range(3):
        w[i] = np.sum(h(a))
    return np.sum(w)
""",
        (A,),
    ),
    "copy in a callee, of an array that is written later": (
        """
@njit
def h(q):
    w = q.copy()
    return np.sum(w * q)

@tg.njit
def f(x, a):
    u = h(a)
    a[1] -= a[0]
    return u * x
""",
        (0.8, A),
    ),
    "transpose of a matrix filled in a callee": (
        """
@njit
def h(p):
    w = np.empty((4, 2))
    for i in range(4):
        for j in range(2):
            w[i, j] = p
    return w.T

@tg.njit
def f(a):
    r = h(a[2])
    return np.sum(r)
""",
        (A,),
    ),
    "column of a matrix filled by calls in a callee": (
        """
@njit
def g(q):
    w = np.full(4, q[0])
    return w, w

@njit
def h(q):
    w = np.empty((3, 2))
    for i in range(3):
        for j in range(2):
            w[i, j] = np.sum(g(q)[1])
    return w[:, 1]

@tg.njit
def f(a):
    a += h(a)
    return np.sum(a)
""",
        (A,),
    ),
    "elements of a copy changed by one of them": (
        """
@tg.njit
def h(q):
    w = q.copy()
    for i in range(3):
        w[i] *= w[1]
    return np.max(w)

@tg.njit
def f(x, a):
    v = a[2:4:2]
    x += h(np.concatenate((a[np.array([0, 2])], v)))
    return x
""",
        (0.8, A),
    ),
    "one number of a new matrix, by a computed position": (
        """
@tg.njit
def h(q):
    w = np.concatenate((q, q[np.array([1, 2, 2])]))
    return w.reshape((2, 3))

@tg.njit
def f(a, n):
    return h(a)[n % 2, n]
""",
        (A, 1),
    ),
}


RIGHT = {
    "docstrings of several lines, with less indentation": (
        """
def scaled(a):
    '''Lines
in the first column.'''
    @tg.njit
    def by_a(x):
        '''Others
  in the third.'''
        return a * x * x
    return by_a

double = scaled(2.0)

@tg.njit
def f(a, b):
    '''The product
'''
    return np.sum(double(a) * b)
""",
        (A, A[::-1].copy()),
    ),
    "a trace before a loop and in one": (
        """
@tg.njit
def f(a, b):
    m = np.outer(a, b) + np.eye(3)
    s = np.trace(m)
    while s < 5.0:
        s = s * 1.5 + np.trace(m) * a[1]
    w = np.zeros(3)
    for i in prange(3):
        w[i] = np.trace(m) * m[i, 0]
    return s * np.sum(w)
""",
        (A, A[::-1].copy()),
    ),
    "different arrays by path": (
        """
@tg.njit
def curve(times, values):
    t, r, count = np.empty(times.size), np.empty(times.size), 0
    for j in range(times.size):
        if times[j] > 0.0:
            t[count], r[count] = times[j], times[j] * values[j]
            count += 1
    if count == 0:
        return np.array([0.0, 0.1]), np.array([0.0, 0.0])
    return t[:count], r[:count]

@tg.njit
def f(a, v):
    x, y = curve(a, v)
    return np.sum(np.sin(x) * y)
""",
        (A, A[::-1].copy()),
    ),
    "a callee under another name": (
        """
@tg.njit
def pair(a, b):
    if a > 10.0:
        raise ValueError("too large")
    if b > 10.0:
        return 0.0, 0.0
    return a * b, a + b

@tg.njit
def pairs(a, b):
    x, y = np.zeros(a.size), np.zeros(a.size)
    for i in range(a.size):
        x[i], y[i] = pair(a[i], b[i])
    return x, y

other = pairs

@tg.njit
def f(a, b):
    x, y = other(a, b)
    return np.sum(x * y)
""",
        (A, A[::-1].copy()),
    ),
    "a parallel callee that keeps nothing": (
        """
@tg.njit(parallel=True)
def sums(m):
    r = np.empty(m.shape)
    for i in prange(1, m.shape[0]):
        for j in prange(m.shape[1]):
            r[i, j] = m[i - 1, j] + 0.5 * m[i, j]
    for j in range(m.shape[1]):
        r[0, j] = m[0, j]
    return r

@tg.njit
def f(m, w):
    return np.sum(sums(m) * w)
""",
        (np.outer(A, A), np.outer(A, A + 1.0)),
    ),
    "a copy of an argument that one branch makes, in a loop with an early return": (
        """
@tg.njit
def chosen(p, q):
    if p >= 0.45:
        return q
    w = q.copy()
    return w

@tg.njit
def f(a, b):
    for i in range(4, 0, -2):
        if chosen(b[0] - i, a)[0] <= 10.0:
            return a[0] * chosen(b[1], a)[1]
    return 0.0
""",
        (A, A[::-1].copy()),
    ),
    "views of an array that a callee makes and changes with": (
        """
@tg.njit
def turned(q):
    w = q[1::-1]
    return w, w[::-1]

@tg.njit
def scaled(out):
    out[0] *= turned(out[np.array([0, 1])])[0][-1]
    return out

@tg.njit
def f(a, b):
    c = a * b
    scaled(c)
    return c[0] + 2.0 * c[1] * a[0]
""",
        (A, A[::-1].copy()),
    ),
    "two calls of a function whose result is constant": (
        """
@tg.njit
def halves(p, q):
    w = np.empty((4, 2))
    for i in range(4):
        for j in range(2):
            w[i, j] = 0.5
    return w[:, 1]

@tg.njit
def f(a, b):
    r = halves(0.7, a)
    s = halves(b, b)
    return np.sum(r) * a[0] + b[1] * s[0]
""",
        (A, A[::-1].copy()),
    ),
    "a call of a function whose result is constant, and one that nothing uses": (
        """
@tg.njit
def waves(p, q):
    w = np.empty_like(q)
    for i in range(q.size):
        w[i] = np.sin(0.7 * i)
    return w[:]

@tg.njit
def f(a, b):
    u = a[0] + 0.2 * np.sin(np.sum(waves(0.5, a)))
    v = a[2:0:-1]
    m = np.where(waves(np.prod(v), a) > 0.1, np.log(waves(np.prod(v), a)), u)
    return u * b[0] + np.sum(a.copy() * b)
""",
        (A, A[::-1].copy()),
    ),
    "all elements by an ellipsis": (
        """
@tg.njit
def f(a, b):
    m = np.zeros((2, a.size))
    m[...] = a * b[0]
    m[...] *= 2.0
    m[...] += b
    n = a.copy()
    n[...] = m[0, ...] * n
    v = m[..., :]
    v[0] = np.sin(n)
    n[...] = b[0]
    return np.sum(m * m[..., 0:1]) + np.sum(n ** 2)
""",
        (A, A[::-1].copy()),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name):
    text, args = RIGHT[name]
    check(module(HEADER + text), *args, argnums=(0, 1))


def refusal(f, args):
    """What is said where a program is refused; None where its derivatives are right."""
    try:
        check(f, *args)
    except tg.TransformError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", FOUND)
def test_right_or_refused(name):
    text, args = FOUND[name]
    said = refusal(module(HEADER + text), args)
    # the user's file and line, and what to do
    assert said is None or re.search(r'File "[^"]*given_\d+\.py", line \d+', said), said
