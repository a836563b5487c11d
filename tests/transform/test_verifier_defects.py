"""Defects put into the generator one at a time: what it makes then is refused."""

import itertools
import re

import numba
import numpy as np
import pytest
from changed_lines import lines_changed_in
from check import module

import tapegrad as tg
from tapegrad.transform.builder import Builder
from tapegrad.transform.codegen import analysis, program, reverse, store
from tapegrad.transform.codegen.array_values import ArrayValues
from tapegrad.transform.codegen.forward_half import ForwardHalf
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.codegen.loop_shapes import is_fusible
from tapegrad.transform.codegen.reverse import Reverse
from tapegrad.transform.codegen.shadows import Shadows
from tapegrad.transform.codegen.stores import Copies, Stores
from tapegrad.transform.errors import InternalError, UnconfirmedWarning
from tapegrad.transform.ir import Store
from tapegrad.transform.lowering import lower
from tapegrad.transform.rules import calls

pytestmark = pytest.mark.texts

A = np.array([0.3, 0.7, -0.4])
HEADER = "import math, numpy as np, tapegrad as tg\n@tg.njit\n"

PROGRAMS = {  # those that show most defects come first
    "whole arrays that are overwritten": (
        "@tg.njit\n"
        "def f(x):\n"
        "    y = x.copy()\n"
        "    t = np.dot(y, (x > 0.2) * y)\n"
        "    y[0] = 2.0 * t\n"
        "    return t * np.dot(y, x)\n"
    ),
    "numbers are stored in integers and in floats": (
        "def f(x):\n"
        "    k = np.zeros(3, np.int64)\n"
        "    y = np.zeros(3)\n"
        "    for i in range(3):\n"
        "        k[i] += x[i] * 5.0\n"
        "        y[i] = x[i] * k[i] + y[0]\n"
        "        y[i] = y[i] * y[i]\n"
        "    return (y * y).sum()\n"
    ),
    "positions of a condition": (
        "def f(x):\n    p = np.nonzero(x > 0.0)\n    z = x[p]\n    return (z * z).sum()\n"
    ),
    "a recursive function that returns a new array": (
        "def g(x, n):\n"
        "    if n == 0:\n"
        "        return x * 2.0\n"
        "    return g(x, n - 1) * 3.0\n"
        "@tg.njit\n"
        "def f(x):\n"
        "    y = g(x, 2)\n"
        "    return y[0] * y[1]\n"
    ),
    "one array comes twice": (
        "def g(n):\n"
        "    y = np.ones(n)\n"
        "    return y, y\n"
        "@tg.njit(boundscheck=False)\n"  # another option: no inlining
        "def f(x):\n"
        "    y, z = g(3)\n"
        "    y[0] = x[0]\n"
        "    return (y * z * x[1]).sum()\n"
    ),
    "a view that is read again": (
        "def f(x):\n"
        "    y = x * 2.0\n"
        "    z = np.flip(y)\n"
        "    s = z * z\n"
        "    y[0] = x[1]\n"
        "    return (s * z).sum()\n"
    ),
    "a work array in a helper": (
        "def g(x):\n"
        "    w = np.empty(x.size)\n"
        "    for i in range(x.size):\n"
        "        w[i] = x[i] * x[i]\n"
        "    s = 0.0\n"
        "    for i in range(x.size):\n"
        "        s += w[i] * w[i] * x[i]\n"
        "    return s\n"
        "@tg.njit\n"
        "def f(x):\n"
        "    return g(x) * g(x * 2.0)\n"
    ),
    "an array of a helper is written": (
        "def g(x):\n"
        "    w = x * 2.0\n"
        "    w[0] = x[1]\n"
        "    return (w * w * x).sum()\n"
        "@tg.njit\n"
        "def f(x):\n"
        "    return g(x) * g(x * 2.0)\n"
    ),
    "an array that is written later": (
        "def f(x):\n    y = x * 2.0\n    z = y * y\n    y[0] = z[1]\n    return (z * y).sum()\n"
    ),
    "two arrays go round": (
        "def f(x):\n"
        "    a, b = x * 1.0, x * 2.0\n"
        "    for _ in range(3):\n"
        "        c = a * b\n"
        "        a = b\n"
        "        b = c\n"
        "        b[0] += a[1]\n"
        "    return (a * b).sum()\n"
    ),
    "elements are written in a loop": (
        "def f(x):\n"
        "    y = x * 1.0\n"
        "    for i in range(1, x.size):\n"
        "        y[i] = y[i] * y[i - 1] * math.sin(x[i])\n"
        "    return y.sum()\n"
    ),
    "two numbers a turn": (
        "def f(x):\n"
        "    a, b = x[0], x[1]\n"
        "    for i in range(x.size):\n"
        "        a, b = a * b, math.sin(a) * x[i]\n"
        "    return a * b\n"
    ),
    "branches": (
        "def f(x):\n"
        "    s = x[0]\n"
        "    for i in range(x.size):\n"
        "        if s > 0.2:\n"
        "            s = math.sin(s) * math.exp(x[i])\n"
        "        else:\n"
        "            s = s * math.cos(s * x[i])\n"
        "    return s\n"
    ),
    "each element from the last": (
        "def f(x):\n"
        "    y = np.zeros(x.size)\n"
        "    y[0] = x[0]\n"
        "    for i in range(1, x.size):\n"
        "        y[i] = y[i - 1] * 0.5 + x[i]\n"
        "    return (y * y).sum()\n"
    ),
    "two returns": (
        "def g(x):\n"
        "    if x[0] > 0.2:\n"
        "        return x[1:]\n"
        "    y = x * 2.0\n"
        "    return y[:-1]\n"
        "@tg.njit\n"
        "def f(x):\n"
        "    y = g(x)\n"
        "    y[0] = y[1] * x[0]\n"
        "    return (y * y).sum()\n"
    ),
    "a call that writes": (
        "def g(x, y):\n"
        "    y[0] = x[0] * x[1]\n"
        "    y[1] = y[0] * x[2]\n"
        "@tg.njit(boundscheck=False)\n"  # another option: no inlining
        "def f(x):\n"
        "    y = x * 3.0\n"
        "    z = np.sin(y)\n"
        "    g(x, y)\n"
        "    return (y * z * y).sum()\n"
    ),
    "positions in a tuple": (
        "def f(x):\n"
        "    p = (np.array([2, 0]),)\n"
        "    z = x[p]\n"
        "    z[0] *= x[1]\n"
        "    return (z * z).sum()\n"
    ),
    "a sum, and a call that keeps values": (
        "def g(x):\n"
        "    s = 1.0\n"
        "    for i in range(x.size):\n"
        "        s = math.sin(s) * math.exp(x[i])\n"
        "    return s\n"
        "@tg.njit\n"
        "def f(x):\n"
        "    t = 0.0\n"
        "    for i in range(x.size):\n"
        "        t += x[i] * x[i]\n"
        "    return t - g(x)\n"
    ),
    "an array that a loop fills": (
        "def f(x):\n"
        "    t = np.empty(x.size)\n"
        "    for i in range(x.size):\n"
        "        t[i] = i + 1.0\n"
        "    return t @ x\n"
    ),
    "numbers of a helper": (
        "def g(x, y):\n"
        "    return math.sin(x) * math.exp(y) * math.tanh(x + y) * math.atan(y)\n"
        "@tg.njit(boundscheck=False)\n"  # another option: no inlining
        "def f(x):\n"
        "    s = x[0]\n"
        "    for i in range(x.size):\n"
        "        s = g(s, x[i])\n"
        "    return s\n"
    ),
    "a number of a whole array is stored": (
        "def f(x):\n"
        "    out = np.zeros(2)\n"
        "    for i in range(2):\n"
        "        out[i] = np.percentile(x[i:], 60.0) * out[0] + x[1]\n"
        "    return out[0] * out[1]\n"
    ),
    "an op is computed again": (
        "def f(x):\n"
        "    y = x * 2.0\n"
        "    s = x[0]\n"
        "    for i in range(1, x.size):\n"
        "        r = tg.abs(y[i])\n"
        "        s = s * r * y[i] + r\n"
        "        y[i] = s\n"
        "    return s * s\n"
    ),
}


def generate(name):
    f = module(HEADER + PROGRAMS[name])
    tg.value_and_grad(f).implementation((numba.typeof(A),))


def changed(method, change):
    """A method after which the last lines that it wrote are changed."""

    def wrapped(self, *args):
        given = next((a for a in args if isinstance(a, Builder)), None)
        with lines_changed_in(given or self.state.builder, change):
            return method(self, *args)

    return wrapped


def lines_changed(owner, name, change):
    return owner, name, changed(getattr(owner, name), change)


def without(*texts):
    return lambda lines: [line for line in lines if not any(text in line for text in texts)]


def repeated(text):
    """The last line is written twice if it has a text."""
    return lambda lines: lines + [line for line in lines[-1:] if text in line]


def backwards(method):
    """Pops in the wrong order."""

    def write_pops(self, scope, builder):
        scope.stored.reverse()
        method(self, scope, builder)
        scope.stored.reverse()

    return write_pops


plain_statements = ForwardHalf.write_statements
DEFECTS = {
    "everything is cheap": (Keeping, "is_cheap", lambda self, maker, n: True),
    "copies are not made": (Copies, "keep", lambda self, statement, kept: None),
    "contents are not copied": (Copies, "make", lambda self, statement, names: {}),
    "shadows are not made": (Shadows, "want", lambda self, bar: None),
    "arrays keep their elements": (analysis.Arrays, "keeps", lambda self, array, root: True),
    "arrays are made anew": (Keeping, "may_change", lambda self, array: False),
    "pops in the order of pushes": (Keeping, "write_pops", backwards(Keeping.write_pops)),
    "a pop is missing": lines_changed(Keeping, "write_pops", lambda lines: lines[:-1]),
    "too few rows": lines_changed(
        Keeping, "reserve", lambda lines: [re.sub(r"\d \* ", "", s) for s in lines]
    ),
    "no room": lines_changed(Keeping, "reserve", without("tape.size", "runtime.grown")),
    "pushes without room": lines_changed(
        Keeping, "write_pushes", without("tape.size", "runtime.grown")
    ),
    "every order of iterations": (reverse, "is_independent", lambda loop, state, keeping: True),
    "what is overwritten is not cleared": lines_changed(Stores, "reverse", without("= 0.0")),
    "what is stored gets nothing": lines_changed(Stores, "reverse", lambda lines: lines[-1:]),
    "what is stored gets nothing, cleared first": lines_changed(
        Stores, "reverse", lambda lines: lines[::-1]
    ),
    "cotangents of branches are not joined": (Shadows, "pairs", lambda self, pairs: []),
    "arrays are taken as another type": lines_changed(
        Keeping, "write_pops", lambda lines: [s.replace("_C)", "_A)") for s in lines]
    ),
    "operands get it twice": lines_changed(Reverse, "write_vjp", repeated("add_")),
    "elements get it twice": lines_changed(Reverse, "write_vjp", repeated("] +=")),
    "stores are not done": (
        *(ForwardHalf, "write_statements"),
        lambda self, builder, block: plain_statements(
            self, builder, [s for s in block if not isinstance(s, Store)]
        ),
    ),
    "arrays of one call are different": (program.Instance, "joined_results", lambda self: []),
    "what a call without derivatives returns is new": (
        *(calls.Call, "has_several_arrays"),
        lambda self, gen, let: False,
    ),
    "positions hide in a tuple": (lower, "taken_apart", lambda lowering, node, line: node),
    "views are taken for copies": (analysis.Arrays, "edges", lambda self, statement: ()),
    "what follows a loop keeps nothing": (Keeping, "keeps_inside", lambda self, block, **_: False),
    "what follows a loop never waits": (
        *(Reverse, "_has_to_wait"),
        lambda self, loop, tail: (
            not is_fusible(
                loop, self.state.types, self.state.arrays, self.state.scopes, self.state.activity
            )
        ),
    ),
    "numbers of a helper change places": lines_changed(
        *(Reverse, "write_vjp"),
        lambda lines: [re.sub(r"\b(g_t\w*), (g_t\w*)", r"\2, \1", s) for s in lines],
    ),
    "the caller adds to shadows that nobody reads": (
        *(ArrayValues, "_may_return"),
        lambda self, names, results: True,
    ),
    "operands get nothing": lines_changed(Reverse, "write_vjp", lambda lines: lines[:-1]),
}


@pytest.fixture(autouse=True)
def not_on_disk(monkeypatch):
    monkeypatch.setattr(store, "load", lambda key, recipe: None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_right(name):
    generate(name)


# where types and names of functions say what would be an array, have a derivative, or be kept
FOUND = [
    *itertools.product(
        (
            "what is overwritten is not cleared",
            "what is stored gets nothing",
            "operands get nothing",
        ),
        (
            "a number of a whole array is stored",
            "numbers are stored in integers and in floats",
            "an op is computed again",
        ),
    ),
    ("elements get it twice", "a number of a whole array is stored"),
    ("elements get it twice", "numbers are stored in integers and in floats"),
    ("arrays keep their elements", "an op is computed again"),
    ("a pop is missing", "a number of a whole array is stored"),
]


@pytest.mark.parametrize(("defect", "name"), FOUND)
def test_found(defect, name, monkeypatch):
    monkeypatch.setattr(*DEFECTS[defect])
    with pytest.raises(InternalError):
        generate(name)


@pytest.mark.parametrize("defect", DEFECTS)
def test_refused(defect, monkeypatch):
    """At least one of the programs shows it."""
    monkeypatch.setattr(*DEFECTS[defect])
    assert any(map(is_refused, PROGRAMS))


def is_refused(name):
    try:
        generate(name)
    except InternalError:
        return True
    except UnconfirmedWarning:  # found later, by comparison with the source
        pass
    return False
