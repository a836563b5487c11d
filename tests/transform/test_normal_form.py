"""What the normal form keeps of Python: the order of evaluation, names, values from outside."""

import sys
import textwrap

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

pytestmark = pytest.mark.texts

A = np.array([0.3, 0.7, -0.4])
HEADER = """\
import collections
import enum
import math

import numba
import numpy as np

import tapegrad as tg


class Color(enum.IntEnum):
    RED = 2
    BLUE = 3


class Kind(enum.Enum):
    LINEAR = 3


SCALE = (1.5, 2.5, (np.float64(0.5), 2))
HALF = np.float64(0.5)
Point = collections.namedtuple("Point", "x y")


@tg.njit
def bump(a):
    a[0] = a[0] * 2.0
    return a[0] * a[1]


@tg.njit
def count(c):
    c[0] += 1.0
    return c[0]


@tg.njit
def product(x, y):
    return x * y


@tg.njit
def scaled(x, weight=2.0, args=(), shift=None):
    y = x * args[0] * weight
    return y if shift is None else y + shift


@tg.njit
def fill(x, out, skip=False):
    if skip:
        return
    for i in range(out.size):
        if i == 2:
            return
        out[i] = x * (i + 1)


@tg.njit
def f(x, a):
"""


def program(body):
    """A function of a number and an array of three, from its body."""
    return module(HEADER + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n")


ORDER = {
    "sum in place": """
        a[0] += bump(a)
        a[1] -= bump(a) * x
        return a[0] * x + a[1]
    """,
    "product in place": """
        a[0] *= bump(a)
        return a[0] * x
    """,
    "row in place": """
        m = np.ones((2, 3)) * x
        m[0] += bump(a) * a
        m[1] *= a
        m[:, 1] += bump(a)
        return (m * m).sum()
    """,
    "index in place": """
        i = 0
        a[i] += x
        i += 1
        a[i - 1] *= a[i]
        a[int(bump(a) > 0)] -= x * a[0]
        return a[0] * a[1]
    """,
    "chained comparison": """
        c = np.zeros(2)
        c[1] = x
        y = 2.0 * x if 0.0 < count(c) < 1.5 else x
        z = 3.0 * x if 0.0 < count(c) < 1.5 < count(c) else x
        return y * z * c[0] * a[0]
    """,
    "and, or": """
        c = np.zeros(2)
        if x > 100 and count(c) > 0:
            x = 3 * x
        if x > 0 or count(c) > 0:
            x = x * x
        positive = x > 0 and count(c) > 0
        return x * (1 + c[0]) * a[1] * positive
    """,
    "one of two expressions": """
        y = bump(a) if x > 0 else a[0]
        z = bump(a) if x < 0 else a[0]
        return y * z * x
    """,
    "elements read before a call": """
        t = a[0]
        y = bump(a)
        return t * y * a[0] * x + a[0] * bump(a) + a[0]
    """,
    "named arguments": "return product(y=bump(a), x=a[0]) * product(a[0], y=bump(a)) * x",
    "slices": """
        b = a[int(count(a)) - 1 :]
        return b[0] * x * a[0]
    """,
    "exchange": """
        a[0], a[1] = a[1], a[0] * x
        p, q, r = a[0], a[1], x
        for i in range(3):
            p, q, r = q, r, p * q
        return a[0] * a[0] + a[1] * p * q * r
    """,
    "exchange in a loop": """
        m = np.ones((2, 2)) * x
        m[0, 1] = a[0]
        for k in range(2):
            m[0, k], m[1, k] = m[1, k], m[0, k]
        return m[1, 1] * m[0, 0]
    """,
    "several targets": """
        i = 0
        i, a[i] = 1, x
        a[2] = b = x * 2
        (p, q), r = (a[0], x), a[i]
        return p * q * r * b * a[2]
    """,
    "while that writes": """
        n = 0
        while bump(a) < 5.0 and n < 20:
            n += 1
            x = x * 1.1
        return x * a[0]
    """,
    "while that writes, with jumps": """
        while bump(a) < 5.0:
            x = x * 1.1
            if x > 3:
                break
            if x > 2:
                continue
            x = x * 1.2
        else:
            x = x * 7.0
        return x * a[0]
    """,
    "while that may write": """
        n = 0
        while n < 2 or bump(a) < 3.0:
            n += 1
            x = x * a[1]
        while n < 5 and bump(a) < 30.0:
            n += 1
            x = x * a[1]
        return x + a[0] * n
    """,
    "while that calls": """
        n = 0
        while abs(product(x, x) - 2.0) > 1e-9 and n < 50:
            x = x - (x * x - a[0] - 1.7) / (2 * x)
            n += 1
        return x
    """,
}


@pytest.mark.parametrize("name", ORDER)
def test_order_of_evaluation(name):
    check(program(ORDER[name]), 0.7, A)


def test_a_walrus_changes_variables_where_it_is_evaluated():
    """numba does not compile it: the value is that of Python."""
    f = program("""
        if (n := x * 2) > 0 and (m := n * a[0]) > 0:
            x = m * n
        while (x := x * 2) < 10:
            n = n + x
        return n * x
    """)

    value, gradient = tg.value_and_grad(f)(0.7, A)
    np.testing.assert_allclose(value, f.py_func(0.7, A), 1e-14)
    h = 1e-6
    slope = (f.py_func(0.7 + h, A) - f.py_func(0.7 - h, A)) / (2 * h)
    np.testing.assert_allclose(gradient, slope, 1e-8)


NAMES = {
    "keywords with a number": """
        del1 = x * 2
        in1 = del1 * a[0]
        is2 = in1 * in1
        or1 = is2 + 1
        not1 = or1 * x
        return not1
    """,
    "names of generated code": """
        max = x * 2
        tape = max * a[0]
        top = 3
        x_bar = tape * x
        x_dot = x_bar
        for i in range(3):
            x_dot = x_dot * x + np.sin(max)
        len = x_dot
        needed_trips = len
        a_kept = a * x
        a[0] = x
        return needed_trips * top * a_kept[0]
    """,
    "names of modules": """
        ops = x * 2
        arrays = a * ops
        runtime = arrays.sum()
        t_part = runtime * x
        abs = t_part
        float = abs
        operator = product(float, x)
        undefined = operator
        for turn in range(2):
            undefined = undefined * float
        return undefined * x
    """,
    "enumerations": """
        y = x * Color.RED.value * a[1] * Kind.LINEAR.value
        return y if Color.RED == 2 and Color.RED < Color.BLUE else x
    """,
    "constants": "return x * SCALE[0] + SCALE[1] * a[0] * SCALE[2][0] + HALF * x * SCALE[2][1]",
    "infinities": """
        best = np.inf
        worst = -math.inf
        for v in a:
            y = v * x
            if y < best:
                best = y
            worst = y if y > worst else worst
        return best * worst
    """,
    "tuples as arguments": """
        p = scaled(x, args=(a[0],)) * scaled(x, 3.0, (x, a[1]), 1.0)
        return p * scaled(a[1], shift=x, args=(a[0], 1.0))
    """,
    "for effect": """
        fill(x, a)
        fill(2 * x, a, skip=True)
        fill(3 * x, a, x > 100)
        return a[0] * a[1] + a[2]
    """,
    "del": """
        y = x * 2
        z = y
        del y
        return x * z * a[0]
    """,
    "messages": """
        n = len(a)
        if n > 5:
            message = f"bad {n}"
            raise ValueError(message, n)
        if x > 9:
            raise ValueError(f"{x} is more than {n}")
        assert n < 5, f"n {n}"
        return x * a[0]
    """,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_constants(name):
    body = NAMES[name]
    if name in ("del", "names of generated code"):
        # numba itself does not compile every del; the value is that of Python
        f = program(body)
        value, gradient = tg.value_and_grad(f)(0.7, A.copy())
        np.testing.assert_allclose(value, f.py_func(0.7, A.copy()), 1e-14)
        h = 1e-6
        slope = (f.py_func(0.7 + h, A.copy()) - f.py_func(0.7 - h, A.copy())) / (2 * h)
        np.testing.assert_allclose(gradient, slope, 1e-8)
    else:
        check(program(body), 0.7, A)


def test_parameters_called_like_what_generated_code_uses():
    f = module("""\
import numpy
import tapegrad as tg


@tg.njit
def tape(top):
    return top * top


@tg.njit
def f(max, tape_, needed_trips, len, np_next=2.0):
    best = numpy.inf if max < 0 else 3.0
    for i in range(2):
        max = max * tape(tape_) + len * needed_trips
        if max < best:
            best = numpy.sin(max)
    return best * needed_trips * np_next
""")
    check(f, 0.7, 0.3, 0.2, 0.4, 1.5)


def test_parameters_called_like_derivatives():
    f = module("""\
import numpy as np
import tapegrad as tg


@tg.njit
def g(y_bar, g_seed_0):
    return np.sin(y_bar) * g_seed_0 ** 3


@tg.njit
def f(x_bar, x_dot, x):
    s = 0.0
    for i in range(2):
        s += g(x_bar * x, x_dot + s)
    return s
""")
    check(f, 0.7, 0.3, 0.2)


def test_constants_of_modules_in_packages(tmp_path, monkeypatch):
    folder = tmp_path / "outer_package" / "inner"
    folder.mkdir(parents=True)
    (tmp_path / "outer_package" / "__init__.py").write_text("import outer_package.inner.deep\n")
    (folder / "__init__.py").write_text("")
    (folder / "deep.py").write_text(
        "import numba\nRATE = 2.5\n@numba.njit\ndef g(x):\n    return x * x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    f = module(
        "import outer_package\nimport tapegrad as tg\n@tg.njit\ndef f(x):\n"
        "    return outer_package.inner.deep.g(x) * outer_package.inner.deep.RATE\n"
    )
    check(f, 0.7)
    del sys.modules["outer_package"]


TUPLES = {
    "slices": """
        a[:-1] = (x, x * a[2])
        a[1:] = (a[0], 2.0)
        return a[0] * a[1] * a[2]
    """,
    "rows": """
        m = np.zeros((3, 2))
        m[0] = (x, 2 * x)
        m[1, :] = (a[0], 1.0)
        for i in range(1, 3):
            m[i] = (a[i], x * m[i - 1, 0])
        m[:, 0] = [x, 1.0, a[0]]
        return (m * m).sum()
    """,
    "nested, with a computed index": """
        t = ((x, 2.0), (3.0, a[0]))
        s = 0.0
        for i in range(2):
            s += t[i][0] * t[i][1]
            p, q = t[-i]
            s = s + p * q * q
        return s
    """,
}


@pytest.mark.parametrize("name", TUPLES)
def test_tuples(name):
    check(program(TUPLES[name]), 0.7, A)


CONVERSIONS = {
    "type of a number": "T = type(x)\nreturn T(0.5) * x + T(a[0]) * type(x)(x)",
    "type of an array": "s = a.dtype.type(0)\nfor v in a:\n    s += a.dtype.type(v) * x\nreturn s",
    "by name": "return np.float64(x) * np.float64(a[0]) * float(x)",
    "of new arrays": "b = np.zeros(3, a.dtype)\nb[0] = x\nc = np.zeros(3, type(x))\nc[1] = x * b[0]"
    "\nreturn b.sum() * c.sum()",
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name):
    check(program(CONVERSIONS[name]), 0.7, A)


PASSIVE = {
    "set": """
        s = {1, 2}
        y = x
        for i in range(5):
            s.add(i // 2)
            y = y * x * len(s)
            if 7 in s:
                y = y * 2
        return y * a[0]
    """,
    "dict": """
        d = {1: 2.0, 3: 4.0}
        y = x
        for i in range(3):
            d[3] = d[3] * 2
            y = y * x * d[3]
        e = {k: 2 * k for k in range(3)}
        return y * a[0] * e[1]
    """,
    "list of integers": """
        chosen = [0, 2]
        s = 0.0
        for i in chosen:
            s += a[i] * x
        chosen.append(1)
        for k in range(len(chosen)):
            s = s * x + a[chosen[k]]
            chosen[k] = 0
        return s * chosen[2] + s
    """,
}


@pytest.mark.parametrize("name", PASSIVE)
def test_containers_without_derivative(name):
    check(program(PASSIVE[name]), 0.7, A)


REFUSED = {
    "number into a dict": (
        "d = {1: 2.0}\nd[1] = x\nreturn d[1] * x",
        "d[1] = x",
        "dicts and records",
    ),
    "number into a set": ("s = {1.0}\ns.add(x)\nreturn x", "s.add(x)", "'add'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    body, line, what = REFUSED[name]
    with pytest.raises(tg.TransformError, match=what) as caught:
        tg.grad(program(body), (0, 1))(0.7, A.copy())
    assert line in str(caught.value)


@tg.njit
def with_a_branch_that_is_never_taken(x, m, a, b):
    if x > 0.5:
        m *= np.sin(x if x > 0.6 else m[0])
    else:
        a[0] = np.sin(np.sqrt(1.1) if 1.1 > 0.1 else b[0])
    return m.sum() + a[0] * a[1]


def test_names_in_branches_that_are_never_taken():
    """numba has no types for them; names that are made must differ from them all the same."""
    for x in (0.3, 0.55, 0.7):
        check(with_a_branch_that_is_never_taken, x, A.copy(), A + 1.0, A + 2.0, jvp=x == 0.3)


IMPORTED = """
import numpy
import numpy.linalg as la
from math import log as ln, sqrt
from numpy import sin, sum as total, zeros

import tapegrad as tg

@tg.njit
def f(x, a):
    b = zeros(a.size)
    for i in range(a.size):
        b[i] = sqrt(a[i]) * sin(x) + ln(a[i])
    return total(b) * la.norm(a) * numpy.float64(x)
"""


def test_imported_names_are_those_of_their_modules():
    """The generated code names what it calls in one way, however the user's file does."""
    f = module(IMPORTED)
    check(f, 0.7, A + 1.0)
    text = f.adjoint_source(0.7, A, argnums=(0, 1))
    for called in ("np.zeros(", "math.sqrt(", "np.sin(", "math.log(", "np.linalg.norm("):
        assert called in text
