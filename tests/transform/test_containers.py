"""Arrays that lists, dicts, records and instances hold: read without derivative, else refused."""

import numba
import numpy as np
import pytest
from check import module
from numba.experimental import jitclass

import tapegrad as tg

X = np.array([0.3, 0.52, 0.2])
RECORD = np.dtype([("a", float), ("v", float, (3,))])


@jitclass([("w", numba.float64[:])])
class Holder:
    def __init__(self):
        self.w = np.ones(3)

    def get(self):
        return self.w

    @property
    def weights(self):
        return self.w


def records():
    found = np.zeros(4, RECORD)
    found["a"] = [0.1, 0.4, 0.2, 0.9]
    found["v"] = np.linspace(0.2, 0.8, 12).reshape(4, 3)
    return found


HEAD = """
import numpy as np
import tapegrad as tg


@tg.njit
def write(w, x):
    w[0] = x[0]


@tg.njit
def write_field(r, x):
    r["a"][0] = x[0]


@tg.njit
def field(r):
    return r["a"]


@tg.njit
def held(m):
    return m.w


@tg.njit
"""
MATRIX = "p = np.zeros((3, 2))\nfor i in range(3):\n    p[i][0] = x[i]\nreturn p[0][0] * x[1]"
VECTOR = "w = np.zeros(3)\nw[0] = x[0]\nreturn w[0] * x[1]"
# name: (what is there besides x, the body that is refused, a body that takes a way out)
WRITTEN = {
    "list comprehension": (
        None,
        "p = [np.zeros(2) for i in range(3)]\n"
        "for i in range(3):\n    p[i][0] = x[i]\nreturn p[0][0] * x[1]",
        MATRIX,
    ),
    "list with append": (
        None,
        "p = [np.zeros(2)]\np.append(np.zeros(2))\np[1][0] = x[0]\nreturn p[1][0] * x[1]",
        MATRIX,
    ),
    "list that is gone through": (
        None,
        "p = [np.zeros(3), np.ones(3)]\nfor w in p:\n    w[0] = x[0]\nreturn p[1][0] * x[1]",
        MATRIX,
    ),
    "one array twice in a list": (
        None,
        "w = np.zeros(3)\np = [w, w]\np[0][0] = x[0]\nreturn p[1][0] * x[1]",
        VECTOR,
    ),
    "repeated list": (
        None,
        "p = [np.zeros(2)] * 3\np[0][1] = x[0]\nreturn p[2][1] * x[1]",
        MATRIX,
    ),
    "rows in a list": (
        None,
        "w = np.zeros((2, 2))\np = list(w)\np[0][1] = x[0]\nreturn w[0, 1] * x[1]",
        "w = np.zeros((2, 2))\nw[0, 1] = x[0]\nreturn w[0, 1] * x[1]",
    ),
    "tuple in a list": (
        None,
        "p = [(np.zeros(2), 1.0)]\np[0][0][0] = x[0]\nreturn p[0][0][0] * x[1]",
        "p = (np.zeros(2), 1.0)\np[0][0] = x[0]\nreturn p[0][0] * x[1]",
    ),
    "dict": (
        None,
        "d = {1: np.zeros(2)}\nwrite(d[1], x)\nreturn d[1][0] * x[1]",
        "w = np.zeros(2)\nwrite(w, x)\nreturn w[0] * x[1]",
    ),
    "typed list": (
        numba.typed.List([np.zeros(3)]),
        "m[0][0] = x[0]\nreturn m[0][0] * x[1]",
        "w = m[0].copy()\nw[0] = x[0]\nreturn w[0] * x[1]",
    ),
    "pieces": (
        None,
        "p = np.split(np.zeros(4), 2)\np[0][0] = x[0]\nreturn p[0][0] * x[1]",
        "w = np.zeros(4)\np = w[:2]\np[0] = x[0]\nreturn w[0] * x[1]",
    ),
    "field": (records(), "v = m['a']\nv[1] += x[0]\nreturn m[1].a * x[0]", VECTOR),
    "field of a slice": (records(), "v = m[1:]['a']\nv[0] = x[0]\nreturn m[1].a * x[0]", VECTOR),
    "field in a helper": (records(), "write(m['a'], x)\nreturn m[0].a * x[0]", VECTOR),
    "records in a helper": (records(), "write_field(m, x)\nreturn m[0].a * x[0]", VECTOR),
    "field from a helper": (records(), "v = field(m)\nv[0] = x[0]\nreturn m[0].a * x[0]", VECTOR),
    "array in a record": (
        records()[0],
        "v = m['v']\nv[1] = x[0]\nreturn m.v[1] * x[0]",
        "v = m['v'].copy()\nv[1] = x[0]\nreturn v[1] * x[0]",
    ),
    "array of an instance from a method": (
        Holder(),
        "w = m.get()\nw[0] = x[0]\nreturn m.w[0] * x[1]",
        "w = m.get().copy()\nw[0] = x[0]\nreturn w[0] * x[1]",
    ),
    "array of an instance from a helper": (
        Holder(),
        "w = held(m)\nw[0] = x[0]\nreturn m.w[0] * x[1]",
        "w = held(m).copy()\nw[0] = x[0]\nreturn w[0] * x[1]",
    ),
    "property": (
        Holder(),
        "m.weights[0] = x[0]\nreturn m.w[0] * x[1]",
        "w = m.weights.copy()\nw[0] = x[0]\nreturn w[0] * x[1]",
    ),
}


def function_of(body):
    return module(HEAD + "def f(x, m):\n" + "".join(f"    {s}\n" for s in body.split("\n")))


def assert_right(f, held):
    """Compare derivatives by the first argument with differences."""
    h = 1e-5
    slopes = np.array([(f(X + h * u, held) - f(X - h * u, held)) / (2 * h) for u in np.eye(3)])
    np.testing.assert_allclose(tg.grad(f)(X, held), slopes, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(tg.jvp(f)(X, held, X)[1], slopes @ X, rtol=1e-8)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_depends_on_arguments_is_not_written_there(name):
    held, body, instead = WRITTEN[name]
    f = function_of(body)
    for derivative in (lambda: tg.grad(f)(X, held), lambda: tg.jvp(f)(X, held, X)):
        with pytest.raises(tg.TransformError, match=r"cannot differentiate[^$]*line \d"):
            derivative()
    assert_right(function_of(instead), held)


READ = {
    "list": "p = [np.ones(3), np.zeros(3)]\np[1][2] = 4.0\nreturn p[1][2] * x[0] * p[0][1] + x[1]",
    "records": "return m[0].a * x[0] + m['v'][1, 2] * x[1] ** 2 + np.sum(field(m)) * x[2]",
}


@pytest.mark.parametrize("name", READ)
def test_read(name):
    assert_right(function_of(READ[name]), records())


def test_read_of_an_instance():
    body = "w = held(m)\nreturn w[0] * x[1] + m.get()[1] * x[2] ** 2 + m.weights[0] * x[0]"
    assert_right(function_of(body), Holder())


LOOPS = {
    "dict": ("d = {0: 1, 1: 0}\nfor k in d:\n    s += x[k] ** 2", "for k in (0, 1):"),
    "numbered": (
        "d = {0: 1, 2: 0}\nfor i, k in enumerate(d):\n    s += x[k] * i",
        "for i, k in enumerate(np.array([0, 2])):",
    ),
    "items": ("d = {0: 2, 1: 1}\nfor k, v in d.items():\n    s += x[k] ** v", None),
    "names": ("d = {'a': 1}\nfor k in d:\n    s += x[d[k]] ** 2", "for k in ('a',):"),
    "set": ("d = {0, 1}\nfor k in d:\n    s += x[k] ** 2", "for k in np.array([0, 1]):"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_what_has_no_positions(name):
    body, instead = LOOPS[name]
    f = function_of(f"s = 0.0\n{body}\nreturn s * x[1]")
    for derivative in (lambda: tg.grad(f)(X, None), lambda: tg.jvp(f)(X, None, X)):
        with pytest.raises(tg.TransformError, match=r"a loop over a dict[^$]*array or a tuple"):
            derivative()
    if instead is not None:
        lines = [instead if s.startswith("for") else s for s in body.split("\n")]
        assert_right(function_of("\n".join(["s = 0.0", *lines, "return s * x[1]"])), None)


@numba.njit
def overwrite(held):
    held[0][0] = 7.0


@tg.njit
def written_through_a_list(x, c):
    w = c.copy()
    held = [w]
    z = w * x
    overwrite(held)
    return np.sum(z)


def test_a_call_may_write_the_arrays_of_a_list_that_it_is_given():
    x, c = np.array([0.3, 0.7]), np.array([1.3, 0.5])
    np.testing.assert_array_equal(tg.grad(written_through_a_list)(x, c), c)
    with pytest.raises(tg.TransformError, match="lists, sets"):
        tg.grad(written_through_a_list, 1)(x, c)
