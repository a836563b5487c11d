"""Tuples and named tuples as arguments, locals and results."""

import collections

import numba
import numpy as np
import pytest
from check import Cases, check, module, or_refused

import tapegrad as tg

Point = collections.namedtuple("Point", "x y")
State = collections.namedtuple("State", "position mass inner")
RATES = (0.5, 2.0, (3.0, 4))
ORIGIN = Point(1.5, 2.5)
A = np.array([1.0, 2.0])
case = Cases()


@case((0.3, 0.7), Point(0.2, 0.5))
def arguments(t, p):
    a, b = t
    q = (a * b, b)
    c, (d, e) = a, (b, p.x)
    u = Point(c * p.y, d)
    v = Point(x=u.x, y=u.y * 2)
    return q[0] + q[1] * u.x + v.y * e + t[0] * t[-1] * p[1] + len(t)


@case((0.3, 0.7), hvp=True)
def computed(t):
    a, b = t
    a, b = b, a
    for _ in range(3):
        a, b = b, a + b
    return a**b


@case((A, 0.5), (1, 2.0))
def arrays(t, u):
    a, s = t
    a[0] = a[0] * s
    b = (a, a * s)
    b[0][1] *= s
    return (a * b[1]).sum() * u[1] * u[0]


@case(((0.3, 0.7), A, 2), State(A, 0.3, Point(0.2, 0.5)))
def nested(t, state):
    (a, b), c, n = t
    s = a * b * c[0] * c[1] * t[0][0] * n
    p = state.inner
    state.position[1] *= state.mass
    return s * p.x + state.position[1] * state.inner.y * state[2][0]


@numba.njit
def with_default(x, powers=(2, 1), mixed=(0.5, (1, 0), (2, 2.5))):
    first, (i, j), (k, scale) = mixed
    return first * x[i] ** powers[0] * x[j] ** powers[1] + scale * x[j] ** k


@case(A)
def defaults_of_helpers(x):
    """Tuples of integers alone are not taken apart, whether they are passed or left out."""
    n = x.size
    s = with_default(x) * with_default(x, (n, 2)) + with_default(x, mixed=(x[1], (0, 0), (n, x[0])))
    pair = (n, 3)
    return s + with_default(x, pair, (2.0, pair[:1] + (0,), (1, 2.0))) if n > 3 else s


@case((0.3, 0.7))
def in_loops(t):
    p = Point(1.0, 0.0)
    for i in range(3):
        a, b = t
        t = (a + b * 0.1, b * a)
        p = Point(p.x * t[0], p.y + i * t[1])
    n = 0
    while t[0] < 1.0 and n < 3:
        t = (t[0] * 1.5, p.x)
        n += 1
    return t[0] * t[1] + p.x * p.y


@tg.njit
def in_branches(x, b):
    if b:
        p = (x, x * x)
        q = Point(x, 2.0)
    else:
        p = (0.5, 1.0)
        q = Point(1.0, x)
    r = (p[0], x) if b else (x, p[1])
    return p[0] * p[1] * q.x * q.y + r[0] * r[1] * x


@tg.njit
def following(n, z):
    return n + 1, (n * 2 % 5, n > 2), z * 1j, np.uint8(n * 100)


@tg.njit
def counted(n):
    return np.arange(n), n


@case(0.7, hvp=True, compiled=True)
def numbers_that_a_callee_returns(x):
    """Kept for the reverse pass, part by part, whatever types they have."""
    state = (1, (2, False), 1j, np.uint8(3))
    for _ in range(4):
        state = following(state[0], state[2])
        x = np.sin(x) + state[1][0] * abs(state[2]) * (state[3] % 7 + 1.0) * 0.1 * x
        if state[1][1]:
            x *= 1.5
    return x


@case(0.7, hvp=True, compiled=True)
def numbers_that_are_taken_apart(x):
    one, two = 1, 2
    while two < 40:
        one, two = one + two, one * two + 1
        pair = (one, two) if one > 4 else (two, one)
        x = np.sin(x) * pair[0]
    return x


@case(0.7, hvp=True, compiled=True)
def arrays_of_integers_that_are_written(x):
    kept = counted(2)
    for i in range(2, 4):
        numbers, n = counted(i)
        x = np.sin(x) * np.sum(numbers + 1) * n * 0.1 + kept[0][0]
        numbers[0] = 100
        last = kept
        kept = counted(i + 1)
        last[0][1] += 100
        x = np.sin(x) * np.sum(numbers + 1) * n * last[0][1] * kept[1] * 1e-5
    return x


@pytest.mark.parametrize("b", [False, True])
def test_branches(b):
    check(in_branches, 0.7, b)


@case((0.3, 0.7, 0.2), 1)
def computed_index(t, k):
    s = 0.0
    for i in range(3):
        s += t[i] * (i + 1)
    for v in t:
        s *= 1 + v
    return s * t[k] * t[-k]


@case((1.0, 2.0, 3.0), 0.7)
def pieces(t, x):
    u = t[1:]
    v = (x,) + (x * 2, 1)
    a, b = u
    return u[0] * u[1] * v[0] * v[1] * v[2] * a * b


@case(0.3)
def constants(x):
    a, b, (c, n) = RATES
    return x * a + x**2 * b * RATES[1] + x * c * n + ORIGIN.x * x * ORIGIN[1]


@case(0.3, A)
def results(x, a):
    a[0] *= x
    return Point(x * a[0], x), 3, a * x, (x**2, True)


@case(0.3, 0.7)
def pair(x, y):
    return x * y, x + y


@case(0.7, (1, 2))
def shape(x, n):
    a = np.full(n, x)
    return a.sum() * n[0] * a.shape[1]


# What numba understands and has no rule here is refused, or right.
DOUBTFUL = [
    "sum(t)",
    "max(t) * x",
    "min(t) * x",
    "max((x, t[1]))",
    "np.array(t).sum()",
    "np.array((x, t[0])).sum() * x",
    "np.sum(np.array([t[0], x]))",
    "(x if x in t else t[1])",
    "(x * 2 if (x, t[0]) < (t[1], x) else t[0])",
    "(t + (x,))[2]",
    "np.asarray(t)[0]",
    "np.full((2,), t[0]).sum()",
    "np.mean(np.array((t[0], t[1])))",
    "max(t[0], max(t))",
]


@pytest.mark.parametrize("text", DOUBTFUL)
def test_right_or_refused(text):
    f = module(
        f"import numpy as np\nimport tapegrad as tg\n@tg.njit\ndef f(t, x):\n    return {text}\n"
    )
    with or_refused("line 5"):
        check(f, (0.3, 0.7), 0.5, jvp=False)


# What a function does with the array of a named tuple that it is given.
HANDED_ON = {
    "written": "s.grid[0] *= s.level * p\n    return s.grid",
    "read": "return s.grid[1:] * s.grid[0] * np.sin(s.level * p)",
    "written and read": "w = s.grid\n    w[0] *= s.level * p\n    return w[::-1] * s.grid[0]",
}


@pytest.mark.parametrize("name", HANDED_ON)
@pytest.mark.parametrize("place", ["before", "in the call"])
def test_named_tuple_handed_on(name, place):
    text = f"""
import collections
import numpy as np
import tapegrad as tg
State = collections.namedtuple("State", "level grid")

@tg.njit
def h(p, s):
    {HANDED_ON[name]}

@tg.njit
def f(x, a):
    total = 0.0
    s = State(x, a)
    for i in range(3):
        r = h(x + i, {"s" if place == "before" else "State(x * i, np.sin(a))"})
        total += np.sum(r * r) * s.level
    return total + np.sum(a * a)
"""
    check(module(text), 0.7, np.array([0.3, -0.4, 0.8]), compiled=False)


def test_structure_of_gradients():
    gradient, other = tg.grad(arguments, (0, 1))((0.3, 0.7), Point(0.2, 0.5))
    assert isinstance(gradient, tuple) and len(gradient) == 2
    assert type(other) is Point
    gradient = tg.grad(nested, 1)(((0.3, 0.7), A, 2), State(A.copy(), 0.3, Point(0.2, 0.5)))
    assert type(gradient) is State and type(gradient.inner) is Point
    assert gradient.position.shape == (2,)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)
