"""Loops whose branches keep numbers: in rows of the loop, where only numbers are kept."""

import ast
import math

import numba
import numpy as np
import pytest
from check import Cases, check, module

import tapegrad as tg
from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.errors import InternalError

A = np.array([0.3, 0.7, -0.4, 0.9, 0.2, -1.1])
M = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
case = Cases()


@case(A, 0.6, argnums=(0, 1), hvp=True)
def one_side(x, y):
    for i in range(x.size):
        if x[i] > 0.25:
            y = math.exp(-y * x[i]) + y
    return y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def both_sides_and_before(x, y):
    s = 0.0
    for i in range(x.size):
        c = math.sin(y * x[i])
        if c > 0.1:
            d = math.exp(c)
            y = d * d * y * 0.3
        else:
            e = math.cos(c * y)
            y = e * c + y
        s += y * c
    return s


@case(A, 0.6, argnums=(0, 1), hvp=True)
def nested(x, y):
    for i in range(1, x.size):
        if x[i] > 0.0:
            c = math.exp(-y)
            if x[i - 1] > 0.0:
                d = math.log(c + 2.0)
                y += d * d * c
            else:
                y = c * math.sqrt(c + x[i])
        elif y > 0.5:
            if i == 2:
                y = math.sin(y) * math.cos(y)
    return y


@numba.njit
def filled(q, p, out):
    for i in range(3):
        out[i] = math.sin(np.min(q) if q[0] >= -0.2 or p <= -0.2 else q[0] ** i)


@case(A, 0.6, argnums=(0, 1))
def a_whole_array_that_is_written(x, y):
    filled(x, y, x)
    z = x * y
    filled(z, y, np.empty(3))
    return np.sum(x * z)


@case(A, 0.6, argnums=(0, 1), hvp=True)
def stores_and_conditions(x, y):
    for i in range(x.size):
        if x[i] > y:
            if x[i] > 2.0 * y:
                x[i] = x[i] * x[i]
            y *= 1.1
        elif not (x[i] < -1.0):
            x[i] = math.sin(x[i]) * y
    return np.sum(x * x) + y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def other_steps(x, y):
    for i in range(x.size - 1, 0, -2):
        if x[i] > 0.0:
            y = math.exp(-y * x[i - 1])
    for i in range(1, x.size, 2):
        if x[i] < 0.8:
            y = math.sin(y) * math.sin(y * x[i])
    for i in range(x.size, 0):
        if x[i] < 0.8:
            y = math.sin(y)
    return y


@case(M, 0.6, argnums=(0, 1), hvp=True)
def inner_loops(m, y):
    for i in range(m.shape[0]):
        z = y
        for j in range(m.shape[1]):
            if m[i, j] > z - 0.3:
                z = math.exp(-z) * m[i, j]
        if z > 0.1:
            y = math.sin(z * y)
    return y


@case(A * (1 + 2j), 0.6, argnums=(0, 1))
def complex_numbers(z, y):
    c = z[0]
    for i in range(1, z.size):
        if z[i].real > 0.25:
            d = np.exp(c * y)
            c = d * d * z[i]
        else:
            c = c * c + y
    return abs(c)


@numba.njit
def place_of(t, x):
    k = 0
    while k < x.size and x[k] < t:
        k += 1
    return k


@numba.njit
def interpolated(t, x, y):
    if t <= x[0]:
        return y[0]
    k = place_of(t, x)
    if k >= x.size:
        return y[-1] * t
    w = (t - x[k - 1]) / (x[k] - x[k - 1])
    return y[k - 1] * (1.0 - w) + y[k] * w


@case(A + 1.2, np.linspace(0.35, 1.95, 5), M.ravel()[:5], argnums=(0, 1, 2), hvp=True)
def interpolation(t, x, y):
    s = 0.0
    for i in range(t.size):
        s += math.exp(-interpolated(t[i], x, y))
    return s


@case(A, hvp=True)
def integers_and_booleans(x):
    s, last = 1.0, 0
    for i in range(x.size):
        if x[i] > 0.0:
            last = (last * 3 + i) % x.size
            up = x[last] * s > x[i]
            if up:
                s = s * x[last] + x[i]
                last += i
            else:
                s = math.sin(s) * x[last]
    return s


@case(A, 0.6, argnums=(0, 1), hvp=True)
def arrays_are_kept_as_well(x, y):
    for i in range(3):
        if x[i] > 0.0:
            w = np.sin(x * y)
            y = np.dot(w, w) * 0.2
        else:
            y = math.exp(-y) * math.sin(y)
    return y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def arrays_go_round(x, y):
    a, b = x * y, x * x
    for i in range(4):
        if x[i] > 0.0:
            y = math.exp(-y) * a[i]
        a[i] = b[i] * y
        a, b = b, a
    return np.sum(a * b) * y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def arrays_of_states(x, y):
    u = x * y
    for i in range(4):
        if x[i] > 0.0:
            y = math.exp(-y) * u[i]
        u = np.sin(u) * y
    return np.sum(u) * y


@numba.njit(boundscheck=False)
def hands_over(x):
    a = math.sin(math.exp(-x * x))
    b = math.exp(-a) * math.cos(a)
    return math.sin(b) * math.exp(-b) * math.exp(math.sin(a + b))


@case(A, 0.6, argnums=(0, 1), hvp=True)
def numbers_that_callees_hand_over(x, y):
    for i in range(x.size):
        if x[i] > 0.0:
            y = hands_over(y * x[i])
        else:
            y = hands_over(y) * math.exp(-y)
            y += 0.1
    return y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def a_condition_that_is_tested_before(x, y):
    z = y
    for i in range(x.size):
        if x[i] > 0.1771:
            z = math.sin(y * x[i])
        elif x[i] > 0.1771:
            y = math.sin(math.tanh(y)) * math.exp(y)
        else:
            y += x[i] * math.exp(-y)
        if y > 0.3 and x[i] > 0.0:
            if y > 0.3:
                z = z * math.cos(z)
            else:
                z = math.exp(z) * math.sin(z)
                y += z
    return y + z


@case(A, 0.6, argnums=(0, 1), hvp=True)
def errors_and_values_in_other_branches(x, y):
    if y > 100.0:
        raise ValueError("too large")
    else:
        z = math.exp(y)
    for i in range(x.size):
        if x[i] > 50.0:
            raise ValueError("too large")
        elif x[i] > 0.0:
            z = math.exp(-z * x[i])
        elif x[i] < -60.0:
            raise ValueError("too small")
        else:
            z = math.sin(z) * y
    return z


@case(A, 0.6, argnums=(0, 1), hvp=True)
def left_early(x, y):
    for i in range(x.size):
        if x[i] < -1.0:
            break
        if x[i] > 0.0:
            y = math.exp(-y * x[i])
    return y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def errors_after_a_branch(x, y):
    for i in range(x.size):
        if x[i] > 0.0:
            y = math.exp(-y * x[i])
        if y > 100.0:
            raise ValueError("too large")
        if x[i] < 0.0:
            y = math.sin(y) * y
    return y


@numba.njit
def itself_or_sines(q):
    if q.size == 0:
        return q
    return np.sin(q)


@case(A, 0.6, argnums=(0, 1), hvp=True)
def whole_array_that_a_result_may_share(x, y):
    for e in x[::-1]:
        y -= np.mean(x) * y if e > 0.25 else np.prod(x) * y
    itself_or_sines(x)
    return np.sum(x) * y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def whole_array_that_is_written_after_the_loop(x, y):
    x = x.copy()
    for i in range(x.size):
        if x[i] > 0.25:
            y += np.prod(x) * y
        else:
            y *= math.cos(y)
    x[0] = y
    return np.sum(x) * y


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@pytest.mark.parametrize(
    "f", [one_side, both_sides_and_before, nested, stores_and_conditions, interpolation]
)
def test_room_is_made_once_for_a_loop(f):
    _, args, options = case[f.py_func.__name__]
    source = f.adjoint_source(*args, argnums=options["argnums"])
    assert "tape[top]" not in source.partition("# versions")[0]


def test_loops_in_parallel():
    text = (
        "import math, numba, numpy as np, tapegrad as tg\n@tg.njit(parallel=True)\n"
        "def f(x, y):\n    w = np.empty(x.size)\n    for i in numba.prange(x.size):\n"
        "        w[i] = x[i]\n        if x[i] > 0.25:\n            c = math.exp(-w[i] * y)\n"
        "            w[i] = c * c * w[i]\n    return np.sum(w)\n"
    )
    check(module(text), np.tile(A, 50), 0.6, argnums=(0, 1))


TWO_SIDES = """
import math, tapegrad as tg
@tg.njit
def f(x, y):
    for i in range(x.size):
        c = math.exp(-y * y)
        if x[i] > 0.0:
            d = math.exp(-c)
            if x[i] > 0.5:
                d = math.sin(d) * math.exp(-d)
            y = d * d * c
        else:
            y = math.sin(y) * math.sin(y * x[i])
    return y
"""


def test_branches_that_exclude_each_other_share_rows():
    check(module(TWO_SIDES), A, 0.6, argnums=(0, 1))
    source = module(TWO_SIDES).adjoint_source(A, 0.6)
    # two of both sides, and five of one, among them the cosine of a sine; the other one has four
    assert "needed_trips = top + 7 * trips" in source


def test_the_verifier_refuses_rows_of_branches_that_meet(monkeypatch):
    monkeypatch.setattr(Scope, "excludes", lambda self, other: True)
    with pytest.raises(InternalError, match="row that is not its own"):
        tg.grad(module(TWO_SIDES.replace("0.5", "0.6")))(A, 0.6)


def test_the_verifier_refuses_rows_that_are_read_on_another_side(monkeypatch):
    write_pops = Keeping.write_pops

    def on_the_other_side(self, scope, builder):
        write_pops(self, scope, builder)
        if scope.kind == "then" and scope.loop is not None:
            moved.extend(node for node in builder.body if "_row[" in ast.unparse(node))
        elif scope.kind == "loop":
            builder.body += moved

    moved = []
    monkeypatch.setattr(Keeping, "write_pops", on_the_other_side)
    with pytest.raises(InternalError, match="taken from where it was not kept"):
        tg.grad(module(TWO_SIDES.replace("0.5", "0.4")))(A, 0.6)
