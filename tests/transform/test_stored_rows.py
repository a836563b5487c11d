"""Kept values that are read from the array that holds them, and all that stay on the tape."""

import ast

import numba
import numpy as np
import pytest
from check import check
from numba.core import types
from optimized import after_pass, facts_of

import tapegrad as tg
from tapegrad.transform.generation import FASTER
from tapegrad.transform.optimize.stored_rows import read_stored_rows

pytestmark = pytest.mark.texts

VECTOR = types.Array(types.float64, 1, "C")
MATRIX = types.Array(types.float64, 2, "C")
FACTS = facts_of(
    {
        **dict.fromkeys(["x", "z", "w", "y"], MATRIX),
        **dict.fromkeys(["r", "q"], VECTOR),
        **dict.fromkeys(["v", "u", "s", "e"], types.float64),
        **dict.fromkeys(["n", "m", "k"], types.int64),
        "h": types.float32,
    },
)
TEXT = """
def f(x, y, w, tape, top, n, m):
    x_bar = np.zeros_like(x)
    z = np.empty((n, m))
    s = 0.0
    for i in range(n):
        trips = max(m, 0)
        needed = top + trips
        if needed > tape.size:
            tape = runtime.grown(tape, needed)
        r = runtime.row(tape, top, trips)
        for j in range(m):
            e = x[i, j]
            v = np.exp(e)
            z[i, j] = v
            r[j] = v
        top = needed
    u = s
    for i in range(n - 1, -1, -1):
        trips = max(m, 0)
        top -= trips
        r = runtime.row(tape, top, trips)
        for j in range(m):
            v = r[j]
            x_bar[i, j] += v * z[i, j]
    return (u, (x_bar,))
"""
LESS = """
def f(x, y, w, tape, top, n, m):
    x_bar = np.zeros_like(x)
    z = np.empty((n, m))
    s = 0.0
    for i in range(n):
        for j in range(m):
            e = x[i, j]
            v = np.exp(e)
            z[i, j] = v
    u = s
    for i in range(n - 1, -1, -1):
        for j in range(m):
            v = z[i, j]
            x_bar[i, j] += v * z[i, j]
    return (u, (x_bar,))
"""


def after(text):
    """The text after the pass, and whether it changed anything."""
    return after_pass(read_stored_rows, text, FACTS)


def test_a_row_that_an_array_holds():
    found, changed = after(TEXT)
    assert changed
    assert found == ast.unparse(ast.parse(LESS))


@pytest.mark.parametrize(
    "use",
    [
        "u = z[0, 1]",
        "u = z.shape[0] * s",
        "y = np.dot(z, w)",
        "arrays.dot_22_vjp_y(z, x_bar, y)",
        "y = np.exp(z)",
        "u = np.sum(z)",
        "g(w)",
    ],
)
def test_an_array_that_is_read(use):
    found, changed = after(TEXT.replace("u = s", use))
    assert changed
    assert found == ast.unparse(ast.parse(LESS.replace("u = s", use)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # something else may write to the array
        ("u = s", "z[0, 0] = s"),
        ("u = s", "z[0, 0] += s"),
        ("u = s", "z[0] = 0.0"),
        ("u = s", "q = z[0]"),
        ("u = s", "y = z"),
        ("u = s", "y = z.T"),
        ("u = s", "g(z)"),
        ("u = s", "g(z[0])"),
        ("u = s", "g(z[0, :])"),
        ("u = s", "runtime.clear(z[0])"),
        ("u = s", "z.fill(s)"),
        ("u = s", "y = np.exp(x, z)"),
        ("u = s", "np.dot(x, w, z)"),
        ("u = s", "y = np.exp(x, out=z)"),
        ("u = s", "arrays.dot_22_vjp_y(x, z, y)"),
        ("u = s", "arrays.add_to(z, y)"),
        ("u = s", "z = np.empty((n, m))"),
        ("z = np.empty((n, m))", "z = y"),
        ("z = np.empty((n, m))", "z = g(n, m)"),
        ("z[i, j] = v", "z[i, j] = v\n            z[0, 0] = v"),
        # iterations share elements
        ("z[i, j] = v", "z[0, j] = v"),
        ("z[i, j] = v", "z[j, j] = v"),
        ("z[i, j] = v", "z[i, n] = v"),
        ("z[i, j] = v", "z[i, j + 1] = v"),
        ("z[i, j] = v", "z[i] = v"),
        ("            e = x[i, j]", "            e = x[i, j]\n            j = 0"),
        ("        trips = max(m, 0)\n        needed", "        i = 0\n        trips = max(m, 0)\n"
         "        needed"),
        # it is another value
        ("z[i, j] = v", "z[i, j] = e"),
        ("z[i, j] = v", "z[i, j] = v\n            v = e"),
        ("z[i, j] = v", "z[i, j] = v\n            v += e"),
        ("z[i, j] = v", "z[i, j] += v"),
        ("z[i, j] = v", "if e > 0.0:\n                z[i, j] = v"),
        ("r[j] = v", "r[j] = u"),
        # the row is used in another way
        ("u = s", "u = r[0]"),
        ("v = r[j]", "v = r[j] + r[0]"),
    ],
)  # fmt: skip
def test_rows_that_stay(old, new):
    assert old in TEXT
    text = TEXT.replace(old, new)
    found, changed = after(text)
    assert not changed
    assert found == ast.unparse(ast.parse(text))


def test_numbers_of_other_types_stay():
    text = TEXT.replace("v = np.exp(e)", "h = np.exp(e)").replace("= v\n", "= h\n")
    assert not after(text)[1]


def test_an_array_that_each_iteration_makes():
    """The reverse of earlier iterations would read the last one."""
    lines = TEXT.splitlines()
    start = lines.index("    z = np.empty((n, m))")
    loop = lines.index("    u = s")
    made = [lines[start], *lines[start + 2 : loop]]
    again = ["    for k in range(n):", *(f"    {line}" for line in made)]
    text = "\n".join([*lines[:start], lines[start + 1], *again, *lines[loop:]])
    assert not after(text)[1]


def test_one_of_two_rows():
    text = TEXT.replace(
        "r = runtime.row(tape, top, trips)",
        "r = runtime.row(tape, top, trips)\n        q = runtime.row(tape, top + trips, trips)",
    )
    text = text.replace("r[j] = v", "r[j] = v\n            q[j] = e")
    text = text.replace("v = r[j]", "v = r[j]\n            u = q[j]")
    text = text.replace("top + trips\n", "top + 2 * trips\n")
    text = text.replace("top -= trips", "top -= 2 * trips")
    found, changed = after(text)
    assert changed
    assert "r[j]" not in found
    assert "r = runtime" not in found
    assert found.count("q = runtime.row(tape, top, trips)") == 2
    assert "needed = top + trips\n" in found
    assert "top -= trips\n" in found
    assert "v = z[i, j]" in found
    assert "u = q[j]" in found


# -- whole functions -------------------------------------------------------------------------------


@tg.njit
def softmax_energy(x, k):
    z = np.empty_like(x)
    total = 0.0
    for i in range(x.size):
        v = np.exp(k * x[i])
        z[i] = v
        total += v
    energy = 0.0
    for i in range(x.size):
        energy += z[i] * x[i] / total
    return energy


@tg.njit
def layers(x, w):
    rows, columns = x.shape
    h = np.empty((rows, columns))
    for i in range(rows):
        for j in range(columns):
            h[i, j] = np.tanh(x[i, j] * w[j])
    y = np.dot(h, w)
    s = 0.0
    for i in range(rows):
        t = np.sqrt(1.0 + y[i] ** 2)
        y[i] = t
        s += t * h[i, 0]
    return s


@tg.njit
def overwritten(x, k):
    z = np.empty_like(x)
    for i in range(x.size):
        z[i] = np.exp(k * x[i])
    s = 0.0
    for i in range(x.size):
        s += z[i] ** 2
        z[i] = np.sin(s)
    return s + z[0]


@tg.njit
def made_again(x, k):
    s = 0.0
    for t in range(3):
        z = np.empty_like(x)
        for i in range(x.size):
            z[i] = np.exp(k * x[i] + t)
        for i in range(x.size):
            s += z[i] * z[x.size - 1 - i] * 0.1
    return s


@tg.njit
def shared_elements(x, k):
    z = np.empty(2)
    s = 0.0
    for i in range(x.size):
        v = np.exp(k * x[i])
        z[i % 2] = v
        s += v * v
    return s + z[0] * z[1]


def test_derivatives_of_whole_functions():
    x = np.linspace(-1.0, 0.8, 9)
    for function in (softmax_energy, overwritten, made_again, shared_elements):
        check(function, x, 0.7)
    check(layers, np.linspace(-1.0, 1.2, 12).reshape(4, 3), np.array([0.3, -0.8, 1.1]))


def test_the_gradient_keeps_nothing_on_the_tape():
    kinds = numba.typeof(np.ones(3)), types.float64
    exact, _, faster = tg.grad(softmax_energy, (0, 1)).source(kinds).partition(FASTER)
    assert "runtime.row" in exact
    assert faster
    assert "runtime.row" not in faster
