"""Checkpointed loops: derivatives of plain ones, with few states in memory."""

import re
from unittest import mock

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform.errors import InternalError
from tapegrad.transform.verifier import verify
from tests.transform.check import module
from tests.transform.random_programs.interpret import Interpreter, types_only

X = np.array([0.8, 1.1, 0.9, 1.2, 0.7])
TRIPS = (0, 1, 2, 5, 9)

# functions of an array, a number and a number of steps
PROGRAMS = {
    "numbers": """
        y, z = 0.3, a
        for t in tg.checkpointed(range(n)):
            y, z = y + 0.1 * z, z - 0.1 * np.sin(y * x[t % x.size])
        return y * z""",
    "sum": """
        s = 0.0
        for t in tg.checkpointed(range(n)):
            s += np.exp(-a * x[t % x.size])
        return s""",
    "written array": """
        u = x.copy()
        for t in tg.checkpointed(range(n)):
            for i in range(1, u.size - 1):
                u[i] += a * (u[i - 1] - 2.0 * u[i] + u[i + 1])
        return np.sum(u ** 2)""",
    "new array in each step": """
        u = x
        for t in tg.checkpointed(range(n)):
            u = u + a * np.sin(u)
        return np.sum(u)""",
    "filled array in each step": """
        u = x
        for t in tg.checkpointed(range(n)):
            after = np.empty_like(u)
            for i in range(u.size):
                after[i] = u[i] * (1.0 + a * u[i - 1])
            u = after
        return u[0] * u[2]""",
    "exchanged arrays": """
        u, v = x.copy(), np.zeros_like(x)
        for t in tg.checkpointed(range(n)):
            for i in range(u.size):
                v[i] = 0.9 * u[i] + a * u[i - 1] * v[i]
            u, v = v, u
        return u[0] + 2.0 * v[1] + u[2] * v[3]""",
    "state before": """
        u, before = x, x * 0.0
        for t in tg.checkpointed(range(n)):
            u, before = 2.0 * u - before - a * u ** 3, u
        return np.sum(u * before)""",
    "row of the last step": """
        before = x
        s = 0.0
        for t in tg.checkpointed(range(n)):
            row = x * (t + 1.0)
            s += np.sum((row - before) ** 3) * a
            before = row
        return s""",
    "work array": """
        work, u = np.zeros(x.size), x.copy()
        for t in tg.checkpointed(range(n)):
            for i in range(u.size):
                work[i] = u[i] * u[i - 1]
            for i in range(u.size):
                u[i] = u[i] + a * work[i]
        return np.sum(u)""",
    "history": """
        kept = np.zeros((n + 1, x.size))
        kept[0] = x
        for t in tg.checkpointed(range(n)):
            for i in range(x.size):
                kept[t + 1, i] = kept[t, i] + a * np.sin(kept[t, i - 1])
        return np.sum(kept ** 2)""",
    "backwards in steps of two": """
        y, k = a, 0
        for t in tg.checkpointed(range(2 * n, 0, -2)):
            y = y * np.cos(x[t % x.size] + y)
            k += t
        return y * k""",
    "from a number": """
        y = a
        for t in tg.checkpointed(range(3, n + 3)):
            y += y * x[t % x.size] / t
        return y""",
    "nested": """
        u = x.copy()
        for t in tg.checkpointed(range(n)):
            for k in tg.checkpointed(range(4)):
                for i in range(u.size):
                    u[i] += 0.1 * np.sin(a * u[i - 1] + k)
        return np.sum(u)""",
    "twice": """
        u = x.copy()
        s = 0.0
        for t in tg.checkpointed(range(n)):
            u *= 1.0 + 0.1 * a
            s += u[1]
        for t in tg.checkpointed(range(n)):
            u += 0.1 * np.sin(u * s)
        return np.sum(u)""",
    "in a loop": """
        u = x.copy()
        for k in range(3):
            for t in tg.checkpointed(range(n)):
                u = u + 0.1 * np.sin(a * u)
            u[0] = k * a
        return np.sum(u)""",
    "in a branch": """
        u = x.copy()
        if n > 2:
            for t in tg.checkpointed(range(n)):
                u[t % 5] = np.exp(-u[t % 5] * a)
        else:
            u[1] = a
        return np.sum(u)""",
    "branches": """
        u, y = x.copy(), a
        for t in tg.checkpointed(range(n)):
            if t % 2 == 0:
                u[t % 5] *= y
            elif u[1] > 0.5:
                y += 0.1 * u[t % 5]
            else:
                u = u * 0.9
        return np.sum(u) * y""",
    "one of two arrays": """
        u = x.copy()
        for t in tg.checkpointed(range(n)):
            if t % 2:
                v = u
            else:
                v = u * a
            v[0] = u[1] + 1.0
            u = v
        return np.sum(u)""",
    "row of a written array": """
        m = np.ones((3, x.size)) * a
        row = x
        for t in tg.checkpointed(range(n)):
            m[t % 3, 0] += row[1] * a
            row = m[(t + 1) % 3].copy()
        return np.sum(m)""",
    "parts of a tuple": """
        p = (x.copy(), x * a)
        s = 0.0
        for t in tg.checkpointed(range(n)):
            s += p[t % 2][1] * s + a
        p[0][1] = 7.0
        return s + p[0][1]""",
    "near the largest integers": """
        y = a
        for t in tg.checkpointed(range(9223372036854775800, 9223372036854775806 + (n > 2), 3)):
            y += x[t % 5] * y
        return y""",
    "no number of states": """
        y, memory = a, None
        for t in tg.checkpointed(range(n), memory):
            y += x[t % 5] * y
        return y""",
    "pairs": """
        state = (a, x * 2.0)
        for t in tg.checkpointed(range(n)):
            state = (state[0] * 0.9 + state[1][0], np.sin(state[1]) * state[0])
        return state[0] + np.sum(state[1])""",
    "complex numbers": """
        z = a + 0.5j
        w = x * (1.0 + 0.1j)
        for t in tg.checkpointed(range(n)):
            z = z * 0.8 + w[t % 5] * 1j
            w[t % 5] = z
        return abs(z) + w[2].real""",
    "integers": """
        counts, y = np.zeros(5, np.int64), a
        for t in tg.checkpointed(range(n)):
            counts[t % 5] += 1
            y += x[counts[t % 3]] * y * 0.1
        return y * counts[0]""",
    "a matrix in Fortran's order": """
        m = np.zeros((x.size, 2)).T.copy().T
        m[:, 0] = x
        for t in tg.checkpointed(range(n)):
            for i in range(x.size):
                m[i, 1] = m[i, 0] * a
                m[i, 0] += 0.1 * m[i - 1, 1]
        return np.sum(m)""",
    "helpers": """
        u, s = x.copy(), 0.0
        for t in tg.checkpointed(range(n)):
            advance(u, a)
            s += energy(u)
        return s""",
    "names of generated code": """
        u_bar, a_bar, x_dot = x.copy(), a, x * 2.0
        tape = g_seed_0 = 1.0
        first, u_kept = 0.5, a * a
        for top in tg.checkpointed(range(n)):
            for i in range(u_bar.size):
                u_bar[i] += first * a_bar * x_dot[i] * np.sin(u_bar[i - 1] * g_seed_0)
            tape = tape * u_bar[0] * u_kept
        return tape""",
    "nothing after": """
        for t in tg.checkpointed(range(n)):
            y = x[0] * t
        return a * x[1]""",
    "powers that vanish": """
        s = 0.0
        for t in tg.checkpointed(range(n)):
            s += np.sqrt(x[t % 5] - x[t % 5]) * 0.0 + a * x[t % 5]
        return s""",
}
HEAD = """
import numba
import numpy as np
import tapegrad as tg

@tg.njit
def advance(u, a):
    for i in range(u.size):
        u[i] += a * np.sin(u[i - 1])

@tg.njit
def maybe(u, n, a):
    for t in tg.checkpointed(range(n)):
        if t > 3:
            u = u * a + 1.0
    return u

@tg.njit
def two_of_one(u, v, n, a):
    w = u
    for t in tg.checkpointed(range(n)):
        w = w if t < 3 else w * a
    v[0] = a
    return np.sum(w) + u[0]

@numba.njit
def perhaps(u, n):
    if n < 100:
        return u
    return None

@numba.njit
def whole(u):
    return u

@numba.njit
def drawn():
    return np.random.randint(0, 5)

@tg.njit
def energy(u):
    s = 0.0
    for i in range(u.size):
        s += u[i] ** 2
    return s

"""


def made(body, memory=None):
    """The function of a body, checkpointed and with plain loops."""
    body = re.sub(r"^        ", "    ", body.strip("\n"), flags=re.MULTILINE)
    text = f"{HEAD}@tg.njit\ndef f(x, a, n):\n{body}\n"
    plain = re.sub(r"tg\.checkpointed\((range\(.*\))(, memory)?\):", r"\1:", text)
    assert "checkpointed" not in plain
    if memory is not None:
        text = re.sub(r"(tg\.checkpointed\(range\(.*\))\):", rf"\1, {memory}):", text)
        text = text.replace(", memory, ", ", ")
    return module(text), module(plain)


def assert_close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def interpreted(derivative):
    return Interpreter().derivative(derivative)


@pytest.mark.parametrize("name", PROGRAMS)
class TestDerivatives:
    def test_gradient(self, name):
        with types_only():
            _, plain = made(PROGRAMS[name])
            expected = interpreted(tg.value_and_grad(plain, argnums=(0, 1)))
            for memory in (None, 1, 3, "n + 1"):
                f, _ = made(PROGRAMS[name], memory)
                gradient = interpreted(tg.value_and_grad(f, argnums=(0, 1)))
                for n in TRIPS:
                    (value, found), (wanted, slopes) = gradient(X, 0.3, n), expected(X, 0.3, n)
                    assert_close(value, wanted)
                    for one, other in zip(found, slopes, strict=True):
                        assert_close(one, other)
                assert "_steps(" in f.adjoint_source(X, 0.3, 3, argnums=(0, 1))

    def test_tangents(self, name):
        with types_only():
            found, expected = (interpreted(tg.jvp(g, (0, 1))) for g in made(PROGRAMS[name]))
            for n in TRIPS:
                given = (X, 0.3, n, X**2, 0.7)
                for one, other in zip(found(*given), expected(*given), strict=True):
                    assert_close(one, other)

    def test_second_derivatives(self, name):
        products = [tg.hvp(g).tangent_of_gradient for g in made(PROGRAMS[name])]
        with types_only():
            found, expected = map(interpreted, products)
            for n in (0, 1, 5):
                one, other = (product(X, 0.3, n, X**2) for product in (found, expected))
                for first, second in zip(one, other, strict=True):
                    assert_close(first, second)


@pytest.mark.parametrize("name", ["exchanged arrays", "nested", "pairs"])
def test_compiled(name):
    f, plain = made(PROGRAMS[name])
    for derivative in (tg.grad, tg.hvp):
        for n in TRIPS:
            given = (X, 0.3, n, X)[: 3 + (derivative is tg.hvp)]
            assert_close(derivative(f)(*given), derivative(plain)(*given))


@pytest.mark.compiled
def test_grad_of_grad():
    f, plain = made(PROGRAMS["exchanged arrays"])
    for n in TRIPS:
        found, expected = (tg.grad(tg.grad(g, argnums=1), argnums=1)(X, 0.3, n) for g in (f, plain))
        assert_close(found, expected)


class TestArguments:
    """What the function writes to its arguments, it writes once."""

    def test_written_argument(self):
        f = module(
            "import tapegrad as tg\n"
            "@tg.njit\n"
            "def f(x, n):\n"
            "    for t in tg.checkpointed(range(n)):\n"
            "        x[t % 3] = x[t % 3] ** 2 + x[0]\n"
            "    return x[0] + x[1] * x[2]\n"
        )
        x, y = X.copy(), X.copy()
        value, gradient = tg.value_and_grad(f)(x, 5)
        assert value == f(y, 5)
        assert np.array_equal(x, y)
        h = 1e-6
        slopes = [(f(X + h * e, 5) - f(X - h * e, 5)) / (2 * h) for e in np.eye(5)]
        np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-8)

    def test_results_are_arrays(self):
        f, plain = made(
            """
        u = x
        for t in tg.checkpointed(range(n)):
            u = u * a
        return u"""
        )
        for n in TRIPS:
            assert_close(tg.jacobian(f)(X, 0.3, n), tg.jacobian(plain)(X, 0.3, n))


REFUSED = {
    "break": (
        "for t in tg.checkpointed(range(n)):\n    if t > a:\n        break\n    y *= x[0]\n",
        "left early",
    ),
    "random numbers": (
        "for t in tg.checkpointed(range(n)):\n    y += x[0] * np.random.rand()\n",
        "draws random numbers",
    ),
    "no range": ("for t in tg.checkpointed(numba.prange(n)):\n    y += x[0]\n", "range"),
    "no states": ("for t in tg.checkpointed(range(n), 0):\n    y += x[0]\n", "at least 1"),
    "an argument that goes on": (
        "u, v = x, x * a\nfor t in tg.checkpointed(range(n)):\n    u[0] = v[1]\n    u, v = v, u\n",
        "writes to 'u', an array with another name.*copy it before",
    ),
    "another name": (
        "u = x.copy()\nw = u\nfor t in tg.checkpointed(range(n)):\n"
        "    u[1] = u[0] * a\n    u = u * 2.0\ny = w[1]\n",
        "writes to 'u', an array with another name",
    ),
    "a view": (
        "u = x.copy()\nw = u[1:]\nfor t in tg.checkpointed(range(n)):\n    u[1] += w[1] * a\n"
        "y = u[1]\n",
        "by two names",
    ),
    "two variables": (
        "u, v = x.copy(), x * 2.0\nfor t in tg.checkpointed(range(n)):\n"
        "    u[0] = v[1] * a\n    u = u * 1.0\n    v = u\ny = u[0] + v[1]\n",
        "writes to 'u', which may be the same array as 'v'",
    ),
    "a part of an array": (
        "rows = np.ones((5, 3)) * a\nu = rows[0]\nfor t in tg.checkpointed(range(n)):\n"
        "    u[0] += x[0]\n    u = rows[t % 5]\ny = u[0]\n",
        "a part of.*array rows|another name",
    ),
    "a view of an array that is written": (
        "u, v = x.copy(), x * 2.0\nfor t in tg.checkpointed(range(n)):\n"
        "    u[0] += a * v[1]\n    y += v[0]\n    v = u[:2]\ny += u[0]\n",
        "goes on with 'v', which may be an array that it writes by another name",
    ),
    "what it starts with is written later": (
        "w = x * a\nm = w\nfor t in tg.checkpointed(range(n)):\n    if t > 50:\n"
        "        m = m * 2.0\nw[0] = a\ny = np.sum(m)\n",
        "after which 'm' may be an array with another name",
    ),
    "one of two equal results is written later": (
        "u, v = x * a, x * 2.0\nfor t in tg.checkpointed(range(n)):\n    u = u * 1.1\n    v = u\n"
        "v[0] = a\ny = np.sum(u)\n",
        "after which 'u' may be an array with another name",
    ),
    "the caller writes to the result": (
        "w = x.copy()\nu = maybe(w, n, a)\nu[0] = a\ny = np.sum(w) + np.sum(u)\n",
        "after which 'u' may be an array with another name",
    ),
    "another iteration of a loop around it": (
        "u, v = x.copy(), x * a\nfor k in range(3):\n    for t in tg.checkpointed(range(n)):\n"
        "        y += u[0] * a\n        if t == 77:\n            u = u * 1.0\n"
        "    v[0] += a\n    y += u[0]\n    u = v\n",
        "after which 'u' may be an array with another name",
    ),
    "an older name at the end of a branch": (
        "m, w = x.copy(), x\nu = m\nif n > 1:\n    for t in tg.checkpointed(range(n)):\n"
        "        u[0] += a\n        if t == 77:\n            u = u * 2.0\n    w = m\n"
        "y = w[0] + u[0]\n",
        "writes to 'u', an array with another name",
    ),
    "an older name in the next iteration": (
        "w = x\nfor k in range(3):\n    m = x.copy()\n    u = m\n"
        "    for t in tg.checkpointed(range(n)):\n        u[0] += a\n        if t == 77:\n"
        "            u = u * 2.0\n    y += w[0]\n    w = m\n",
        "writes to '[um]', an array with another name",
    ),
    "read by the test of a loop around it": (
        "v = x * 1.0\no = v[:]\nwhile o[0] + y < 3.0:\n"
        "    for t in tg.checkpointed(range(2), 1):\n        v[0] += a\n        v = whole(v)\n"
        "    y += 0.5\ny += v[0]\n",
        "writes to 'v', an array with another name",
    ),
    "held by a tuple": (
        "k = np.array([1, 2, 0, 3, 4])\nv = k.copy()\nps = (v, k * 2)\n"
        "for t in tg.checkpointed(range(n)):\n    v[0] = (v[0] + 1) % 5\n    v = whole(v)\n"
        "y = a * x[ps[0][0] % 5]\n",
        "writes to 'v', an array with another name",
    ),
    "held by a sum of tuples": (
        "k = np.array([1, 2, 0, 3, 4])\nv = k.copy()\nps = (v, k * 2) + (k * 3,)\n"
        "for t in tg.checkpointed(range(n)):\n    v[0] = (v[0] + 1) % 5\n    v = whole(v)\n"
        "y = a * x[ps[0][0] % 5]\n",
        "writes to 'v', an array with another name",
    ),
    "an array that may be None": (
        "k = np.array([1, 2, 0, 3, 4])\nv = k.copy()\no = perhaps(v, n)\n"
        "for t in tg.checkpointed(range(n)):\n    v[0] = (v[0] + 1) % 5\n    v = whole(v)\n"
        "y = a * x[0 if o is None else o[0]]\n",
        "may be None",
    ),
    "through a list": (
        "k = np.array([1, 2, 0, 3, 4])\nv, u = k.copy(), k.copy()\n"
        "for t in tg.checkpointed(range(n)):\n    u[0] = (u[0] + 1) % 5\n    y += x[u[0]] * y\n"
        "    items = [u]\n    items[0] = v\n    u = items[0]\ny += x[v[0]] * a\n",
        "goes on with|another name|by two names|same array",
    ),
    "an iterator": (
        "k = np.array([1, 2, 0, 3, 4])\no = iter(k)\nfor t in tg.checkpointed(range(n)):\n"
        "    y += x[next(o) % 5] * y\n",
        "an iterator",
    ),
    "strides": (
        "u = (x * 1.0)[::2]\nfor t in tg.checkpointed(range(n)):\n    y += u.strides[0] * a\n"
        "    u = u * 0.9\n",
        "looks how arrays are stored",
    ),
    "one array given twice": (
        "w = x * a\ny = two_of_one(w, w, n, a)\n",
        "two of its arguments may be parts of one array; pass copies",
    ),
    "a list of integers": (
        "items = [1, 2]\nfor t in tg.checkpointed(range(n)):\n    items.append(t)\n"
        "    y += x[items[-2] % 5] * y\n",
        "uses a list",
    ),
    "a dict that changes later": (
        "d = {0: 1, 1: 2}\nfor t in tg.checkpointed(range(n)):\n    y += x[d[t % 2]] * y\n"
        "d[0] = 4\n",
        "uses a list, a dict",
    ),
    "random numbers in a helper": (
        "for t in tg.checkpointed(range(n)):\n    y += x[drawn()] * y\n",
        "draws random numbers",
    ),
    "part of an expression": (
        "for k, t in enumerate(tg.checkpointed(range(n))):\n    y += x[k] * y\n",
        "loop over it directly",
    ),
    "no whole number": (
        "for t in tg.checkpointed(range(n), 2.5):\n    y += x[0] * y\n",
        "memory is an integer",
    ),
    "a list": (
        "items = [x, x * a]\nfor t in tg.checkpointed(range(n)):\n    items.append(items[-1] * a)\n"
        "y = items[-1][0]\n",
        "list",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    body, text = REFUSED[name]
    body = "".join(f"    {line}\n" for line in f"y = a\n{body}return y".splitlines())
    f = module(f"{HEAD}@tg.njit\ndef f(x, a, n):\n{body}")
    with pytest.raises((tg.TransformError, ValueError), match=text) as caught:
        tg.grad(f)(X, 0.3, 3)
    if isinstance(caught.value, tg.TransformError):
        assert "line" in str(caught.value)


class TestVerifier:
    """The halves of a segment are compared with a pattern."""

    @pytest.fixture(params=["exchanged arrays", "written array", "new array in each step"])
    def given(self, request):
        """What the verifier is given for a gradient: the text first."""
        verifying = mock.patch("tapegrad.transform.generation.verify")
        with verifying as noted, mock.patch("tapegrad.transform.base.store.load") as load:
            load.return_value = None
            made(PROGRAMS[request.param])[0].adjoint_source(X, 0.3, 3, argnums=(0, 1))
        (arguments,) = (call.args for call in noted.call_args_list)
        return arguments

    def halves(self, text):
        """The lines of both halves, with their numbers."""
        name = ""
        for number, line in enumerate(text.splitlines()):
            found = re.match(r"def (\w+)", line)
            name = found[1] if found else name
            if line.startswith("    ") and re.search(r"_steps_(forward|reverse)$", name):
                yield number, line

    def test_each_line_is_needed(self, given):
        text, *others = given
        verify(text, *others)
        lines = text.splitlines()
        found = list(self.halves(text))
        assert len(found) >= 6
        for number, _ in found:
            without = "\n".join([*lines[:number], "    pass", *lines[number + 1 :]])
            with pytest.raises(InternalError):
                verify(without, *others)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("_kept", ""),  # the array as it is now, not as it was
            ("np.copy(", "np.zeros_like("),
            ("steps_pullback(first, last", "steps_pullback(last, first"),
            ("_1_C)", "_1_A)"),
            ("top = runtime.pop_array(tape, top", "top = runtime.pop_array(tape, 0"),
            ("np.zeros_like(", "np.ones_like("),
        ],
    )
    def test_changed_lines(self, given, old, new):
        text, *others = given
        lines = text.splitlines()
        found = [(number, line) for number, line in self.halves(text) if old in line]
        if not found:
            pytest.skip("the segment returns no arrays, or writes none")
        for number, line in found:
            changed = "\n".join([*lines[:number], line.replace(old, new), *lines[number + 1 :]])
            with pytest.raises(InternalError):
                verify(changed, *others)


def test_the_number_of_states_is_checked():
    f, _ = made(PROGRAMS["numbers"], "n - 5")
    with pytest.raises(ValueError, match="memory is at least 1"):
        tg.grad(f)(X, 0.3, 5)
    with pytest.raises(ValueError, match="memory is at least 1"):
        f(X, 0.3, 5)


def test_outside_of_compiled_code():
    assert tg.checkpointed(range(3)) == range(3)
    with pytest.raises(TypeError, match="steps is a range, got list"):
        tg.checkpointed([1, 2])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        tg.checkpointed(range(3), 0)
