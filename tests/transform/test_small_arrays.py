"""Small arrays on the stack: the same results as with arrays that have several names."""

import numba
import numpy as np
import pytest
from numba import float64, int64
from numba.core import types
from optimized import after_pass, facts_of, with_body

import tapegrad as tg
from tapegrad.transform import runtime
from tapegrad.transform.optimize.small_arrays import keep_on_stack, write_extents
from tests.transform.test_assumed_extents import check

pytestmark = pytest.mark.texts

VECTOR = types.Array(types.float64, 1, "C")
NAMES = ["u", "v", "w", "x"]


class Extents:
    """Stands for what is known: all arrays have three elements, but `x` and `long`."""

    def of(self, array, axis):
        return ("own", array, axis) if array in ("x", "long") else ("constant", 3)

    def of_number(self, number):
        return ("constant", 3) if number.id == "n" else None

    def constant(self, key):
        return key[1] if key[0] == "constant" else None


FACTS = facts_of(
    {
        **dict.fromkeys(["u", "v", "w", "x", "long"], VECTOR),
        **dict.fromkeys(["n", "m", "i", "k"], types.int64),
        **dict.fromkeys(["t", "s"], types.float64),
    },
    Extents(),
)


def on_stack(text):
    """The names that have memory on the stack, and the function."""
    found, changed = after_pass(keep_on_stack, with_body("f(x, a, n, m, s)", text), FACTS)
    names = {line.split()[0] for line in found.splitlines() if "runtime.on_stack" in line}
    assert changed == bool(names)
    return names, found


def test_arrays_of_one_name():
    names, found = on_stack(
        """
        for k in range(m):
            u = np.zeros(3)
            v = np.array([s, 2.0, s])
            w = np.empty(n)
            for i in range(3):
                w[i] = u[i] + v[i]
            s = w[0]
        return s
        """
    )
    assert names == {"u", "v", "w"}
    assert "runtime.clear(u)" in found
    assert "v[1] = 2.0" in found


def test_states():
    names, found = on_stack(
        """
        u = np.zeros(3)
        for k in range(m):
            v = u
            u = np.empty(3)
            for i in range(3):
                u[i] = v[i] + s
        t = u[0]
        return t
        """
    )
    assert names == {"u", "v"}
    assert "runtime.assign(v, u)" in found


def test_an_argument_that_is_not_written():
    lines = ["u = v", "for k in range(m):", "    w = np.zeros(3)", "    t = u[0]", "    u = w"]
    text = "\n".join([*lines, "t = u[0]", "return t"])
    assert on_stack(text)[0] == {"u", "w"}
    assert on_stack(text.replace("    t = u[0]", "    u[0] = t"))[0] == set()
    assert on_stack(text.replace("    t = u[0]", "    add(u)"))[0] == set()


@pytest.mark.parametrize(
    "text",
    [
        "u = np.zeros(3)\nreturn u",
        "u = np.zeros(3)\nreturn u[1:]",
        "u = np.zeros(3)\na.append(u)",
        "u = np.zeros(3)\na = (u, s)\nreturn a",
        "long = np.zeros(m)\nreturn long[0]",
        "u = f(s)\nt = u[0]\nreturn t",
        "if s > 0:\n    u = np.zeros(3)\nelse:\n    u = f(s)\nt = u[0]\nreturn t",
        "u, t = np.zeros(3), s\nt = u[0]\nreturn t",
        "for u in a:\n    u = np.zeros(3)\nreturn s",
        "for k in runtime.parallel(m):\n    u = np.zeros(3)\n    s += u[0]\nreturn s".replace(
            "runtime.parallel", "numba.prange"
        ),
    ],
)
def test_arrays_that_are_not_on_the_stack(text):
    assert "u" not in on_stack(text)[0]


@pytest.mark.parametrize(
    "lines",
    [
        "v = u\nv[0] = s\nt = u[0]",
        "v = u\nu[0] = s\nt = v[0] + u[0]",
        "v = u\nw = u\nw[0] = s\nt = v[0]",
    ],
)
def test_arrays_with_two_names_at_once(lines):
    names, _ = on_stack(f"u = np.zeros(3)\n{lines}\nreturn t")
    assert "v" not in names


def test_views_of_the_array_before():
    text = """
        u = np.zeros(3)
        v = u[1:]
        for k in range(m):
            t = v[0]
            u = np.array([s, t, s])
            v = u[1:]
            s = t + v[1]
        return s
    """
    assert on_stack(text)[0] == {"u"}
    assert on_stack(text.replace("u = np.array([s, t, s])\n", "u = np.array([s, v[0], s])\n"))[
        0
    ] == on_stack(text.replace("t = v[0]\n", "pass\n").replace("s = t", "s = v[0]"))[0] - {"u"}


def test_extents_are_numbers():
    text = "u = np.zeros(n)\nfor i in range(n - 1, -1, -1):\n    t = n + m"
    found, _ = after_pass(write_extents, with_body("f(n, m)", text), FACTS)
    assert "np.zeros(3)" in found
    assert "range(2, -1, -1)" in found
    assert "n + m" in found


@numba.njit
def addresses(count):
    """Whether memory on the stack is the same in each iteration, and separate for two calls."""
    first = 0
    same = True
    for k in range(count):
        u = runtime.on_stack((2, 3))
        v = runtime.on_stack((4,))
        v[:] = 7.0
        for i in range(2):
            for j in range(3):
                u[i, j] = 10.0 * i + j
        if k == 0:
            first = u.ctypes.data
        same = same and u.ctypes.data == first and u.ctypes.data != v.ctypes.data
        same = same and u[1, 2] == 12.0 and np.sum(v) == 28.0 and u.sum() == 36.0
    return same


def test_memory_on_the_stack():
    assert addresses(3)


@numba.njit
def rotated(u, angle, steps):
    """Products with small matrices, states of constant size, and branches."""
    c, s = np.cos(angle), np.sin(angle)
    r = np.array([[c, -s], [s, c]])
    for _ in range(steps):
        w = np.array([u[0] * c - u[1] * s, u[0] * s + u[1] * c])
        if w[0] > 0.0:
            w[1] += 0.1 * w[0] * w[0]
        u = r @ w + 0.1 * u
    return u[0] * u[1]


@numba.njit
def swapped(u, steps):
    """Two states that change places."""
    a = np.array([u[0], u[1]])
    b = np.array([u[1], u[2]])
    for _ in range(steps):
        c = np.array([a[0] * b[1], a[1] + b[0]])
        a = b
        b = c
    return a[0] * b[1]


@numba.njit
def kept_first(u, steps):
    """The state before the loop is needed after it, and has been written to."""
    first = np.array([u[0] * 2.0, u[1], u[2]])
    a = first
    a[0] *= 3.0
    for _ in range(steps):
        b = np.array([a[1], a[2] * first[0], a[0]])
        a = b
    return a[0] * first[0] + a[1] * first[1]


@numba.njit
def returned(u, steps):
    """The state is the result."""
    a = u.copy()
    for _ in range(steps):
        a = np.array([a[1], a[2] * a[0], a[0]])
    return a


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_gradients(steps):
    u = np.array([0.7, 0.4, 0.9])
    check(rotated, u[:2], 0.3, steps)
    check(swapped, u, steps)
    check(kept_first, u, steps)

    @numba.njit
    def total(u, steps):
        return np.sum(returned(u, steps) ** 2)

    check(total, u, steps)


def test_results_are_not_on_the_stack():
    u = np.array([0.7, 0.4, 0.9])
    first, second = (returned(scale * u, 5) for scale in (1.0, 2.0))
    tangents = tg.jvp(returned, argnums=(0,))(u, 5, np.ones(3))
    assert len({id(x) for x in (first, second, *tangents)}) == 4
    for result in tangents:
        assert result.base is not None


@numba.njit
def euler(u, steps):
    y = np.array([u[0], u[1]])
    for _ in range(steps):
        k = np.array([y[1], -np.sin(y[0])])
        y = y + 0.1 * k
    return y[0] * y[1]


def test_states_of_steps_are_on_the_stack():
    found = tg.grad(euler).source((float64[::1], int64)).partition("# versions")[2]
    assert "y_1 = runtime.on_stack((2,))" in found
    assert "y_1_bar = runtime.on_stack((2,))" in found
    assert "runtime.scratch" not in found
    check(euler, np.array([0.3, 0.8]), 5)
