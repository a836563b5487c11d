"""Short functions that are inlined: names, arguments, options, errors, and what stays a call."""

import math
import subprocess
import sys

import numba
import numpy as np
import pytest
from check import Cases, called, check, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
M = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9], [0.1, 0.8, -0.7]])
TABLE = np.array([0.5, 1.5, 2.5])
RATE = 0.3
case = Cases()


@numba.njit
def normal(x):
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


@case(A + 1.2, 0.4, argnums=(0, 1), hvp=True)
def options(spot, volatility):
    total = 0.0
    for i in range(spot.size):
        d = math.log(spot[i]) / volatility + 0.5 * volatility
        total += spot[i] * normal(d) - normal(d - volatility)
    return total


@numba.njit
def line(x, slope=0.5, offset=-2.0):
    y = x * slope
    y += offset
    return y


@case(A, 0.6, argnums=(0, 1), hvp=True)
def defaults_and_names(x, t):
    a = line(x[0]) * line(x[1], offset=t) + line(t, -3.0)
    return a * line(slope=t, x=x[2])


@numba.njit
def above(tape, top):
    runtime = tape * top
    arrays = runtime - tape
    return arrays * top


@case(A, 0.7, argnums=(0, 1), hvp=True)
def names_that_generated_code_uses(x, y):
    for i in range(x.size):
        y = above(x[i], y) * math.sin(y)
    return y


@numba.njit
def from_table(x, k):
    return x * TABLE[k] + RATE


@case(A, 0.2, argnums=(0, 1), hvp=True)
def names_of_the_module_of_the_callee(x, RATE):
    TABLE = x * RATE
    return from_table(x[0], 1) * RATE + from_table(TABLE[1], 2) * from_table(RATE, 0)


@numba.njit
def position(i, j, n):
    return i * n + j


@case(A, 2, hvp=True)
def positions(x, n):
    s = 0.0
    for i in range(n):
        for j in range(n):
            s += x[position(i, j, n)] ** 2 * (i + 2 * j + 1)
    return s


@numba.njit
def pair(x, p):
    a, b = p
    c = x * a
    return c * b, (c, a)


@case(A, 0.7, argnums=(0, 1), hvp=True)
def tuples(x, y):
    u, (v, w) = pair(x[0], (y, 3))
    r = pair(u, (x[1], v))
    return u * v * w + r[0] * r[1][0] + r[1][1]


@numba.njit
def slope_of(u, a):
    return np.array([a * (u[1] - u[0]), u[0] * (1.0 - u[2]) - u[1], u[0] * u[1] - a * u[2]])


@case(A[:3], 0.7, 4, argnums=(0, 1), hvp=True)
def runge_kutta(u, a, steps):
    for _ in range(steps):
        k1 = slope_of(u, a)
        k2 = slope_of(u + 0.05 * k1, a)
        u = u + 0.1 * k2 + 0.01 * k1 * u
    return np.sum(u * u)


@numba.njit
def scaled(x, y):
    return np.sin(x) * y + x


@case(A, M[0, :1], hvp=True)
def expressions_of_arrays(x, y):
    z = scaled(x, 2.0)
    return np.sum(scaled(z, y) * scaled(x, z))


@numba.njit
def changed(w, x):
    w += x
    w *= x
    return w


@case(A, 0.7, argnums=(0, 1), hvp=True)
def changes_an_argument(x, y):
    w = x * 2.0
    v = changed(w, y)
    n = changed(y, 2.0)
    return np.sum(w * v) * n


@numba.njit
def ends(x):
    return x[1:], x[:-1]


@case(A, hvp=True)
def views(x):
    w = x * x
    late, early = ends(w)
    late *= 3.0
    early += x[0]
    return np.sum(w * x)


@numba.njit
def inner(x):
    return math.exp(x) * x


@numba.njit
def outer(x, y):
    return inner(x * y) + inner(y) * normal(x)


@numba.njit
def by_cases(x, limit):
    if x > limit:
        if x > 2.0 * limit:
            return math.exp(-x)
        y = x * x
    elif x < 0.0 and limit > 0.1:
        y = math.sin(x)
    else:
        return limit
    return y * limit


@case(A, 0.4, argnums=(0, 1), hvp=True)
def callees_with_branches(x, y):
    s = by_cases(y, 0.05)
    for i in range(x.size):
        s += by_cases(x[i], y) * by_cases(by_cases(x[i] * s, 0.2), y) if i != 1 else by_cases(s, y)
    return s


@case(A, 0.3, argnums=(0, 1), hvp=True)
def callees_of_callees(x, y):
    for k in range(4):
        y = y + 0.01 * outer(x[0], y) if k % 2 == 0 else y * 1.5 + 0.1 * outer(y, x[1])
    return y * outer(y, x[2])


@numba.njit
def power(x, n):
    return x**n


@case(A[:2], hvp=True)
def constants(x):
    return power(x[0], 3) + power(x[1], -2) * power(-2.0, 2) + power(2, 3) * x[0] ** power(2, 2)


@numba.njit
def whole_numbers(a, b, x):
    return (a + b) * x + (a << b) * x + (~a) * x + a**b * x


@case(A[:1], 63, True)
@case(A[:1], 3, False)
def whole_numbers_that_overflow(x, n, flag):
    s = whole_numbers(9223372036854775807, 1, x[0]) * 1e-19
    s += whole_numbers(1, 63, x[0]) * 1e-19 + whole_numbers(10, 19, x[0]) * 1e-19
    return s + whole_numbers(n, 1, x[0]) * 1e-19 + whole_numbers(8, 8, x[0]) + inverted(True, x[0])


@numba.njit
def inverted(flag, x):
    return (~flag) * x + flag * x


@numba.njit
def generated(seed):
    state = seed * 6364136223846793005 + 1442695040888963407
    return state * 6364136223846793005 + 1442695040888963407


@case(A, hvp=True)
def random_numbers_of_ones_own(x):
    return generated(42) * 1e-19 * x[0] + generated(3) * 1e-19 * x[1] ** 2


@numba.njit
def underscores(_1, _, x):
    _3 = _1 * x
    _0 = _3 * _
    return _0 * _3


@case(A, 0.3, argnums=(0, 1), hvp=True)
def names_without_letters(x, y):
    return underscores(-2.0, y, x[0]) * underscores(x[1], -1.0, y)


@numba.njit
def is_inside(x, low, high):
    return bool(low <= x and abs(x) < high)


@case(A, 0.3, argnums=(0, 1), hvp=True)
def builtins_of_callees(x, y):
    if is_inside(y, x[2], 1.0) or is_inside(x[0], y, 2.0):
        for i in range(x.size):
            y = math.sin(y * x[i]) if is_inside(x[i], 0.0, 0.8) else y * y
    return y


def place_for(t, n):
    if t > 0.5:
        return n - 1
    k = int(t * 10)
    return k % n


def test_integers_of_callees_are_those_of_the_call():
    found = []
    for options in ({}, {"boundscheck": False}):  # inlined, and called
        place = numba.njit(**options)(place_for)

        @tg.njit
        def chosen(x, y):
            for i in range(x.size):
                y = math.sin(x[place(y, x.size)] * y) + x[i]
            return y

        found.append(tg.grad(chosen, (0, 1))(A, 0.33))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] != 0.0


@numba.njit
def rows(max, np, range):
    y_row = max * np
    needed_y = y_row + range
    held_y = needed_y * y_row
    return held_y * y_row


@case(A, 0.3, argnums=(0, 1), hvp=True)
def names_of_modules_and_builtins(x, y):
    for i in range(x.size):
        y = math.sin(rows(x[i], -0.5, y)) + rows(y, x[i], -2.0)
    return y


@numba.njit
def the_first(x, y):
    return x


@case(A, 2.0, argnums=(0, 1))
def gives_an_argument_back(x, y):
    return the_first(x[0], y) * y + np.sum(the_first(x, x) * the_first(x * y, x))


@case(A * (1 + 2j), hvp=True)
def complex_numbers(z):
    return abs(pair(z[0], (z[1], 2.0))[0]) + scaled(z, 1j)[2].real


@case(M.astype(np.float32), np.float32(0.3))
def single_precision(m, x):
    return np.sum(scaled(m, x)) * line(x)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@pytest.mark.parametrize(
    "f",
    [
        *(options, defaults_and_names, positions, tuples, runge_kutta, callees_of_callees),
        *(views, callees_with_branches),
    ],
)
def test_calls_are_gone(f):
    _, args, _ = case[f.py_func.__name__]
    source = f.adjoint_source(*args)
    assert "_reverse" not in source
    assert not any(f"{g}(" in source for g in ("normal", "line", "pair", "by_cases"))


def test_loops_with_inlined_calls_use_vectors():
    assert "options_gradient_in_blocks" in options.adjoint_source(A + 1.2, 0.4)


@called
def stays(x):
    return x * math.sin(x)


@numba.njit(error_model="numpy")
def quotient(x, y):
    return x / y


@numba.njit
def choice(x):
    return x if x > 0.5 else x * x


@numba.njit
def sums(x):
    s = 0.0
    for i in range(x.size):
        s += x[i] * x[i]
    return s


@tg.njit
def ruled(x):
    return x * x


@ruled.defvjp
def ruled_vjp(x, out, g):
    return (10.0 * g,)


@numba.njit
def endless(x, n):
    return endless(x, n)


@tg.njit
def mixed(x, y):
    return stays(x[0]) + quotient(x[1], y) + choice(x[2]) + sums(x) + ruled(x[3])


def test_what_stays_a_call():
    source = mixed.adjoint_source(A, 0.5)
    assert "choice" not in source
    for name in ("stays", "quotient", "sums", "ruled"):
        assert f"{name}" in source
    assert tg.grad(mixed)(A, 0.5)[3] == 10.0 + 2.0 * A[3]
    # each raises what its own options say
    assert math.isinf(mixed(A, 0.0))
    assert math.isinf(tg.value_and_grad(mixed)(A, 0.0)[0])


@tg.njit
def divides(x, y):
    return position(x, y, 2) + normal(x) / y


def test_errors_are_raised_where_the_function_raises_them():
    for call in (divides, tg.grad(divides)):
        with pytest.raises(ZeroDivisionError):
            call(1.0, 0.0)


def test_the_line_of_what_is_refused():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef g(x):\n    y = x * 2.0\n"
        "    return np.linalg.eigvals(y).real\n@tg.njit\ndef f(x):\n    return g(x * x)[0]\n"
    )
    with pytest.raises(tg.TransformError, match=r"(?s)eigvals.*line 5, in g"):
        tg.grad(f)(M)


def test_a_long_function_and_many_calls_stay_calls():
    lines = "".join(f"    x = x * math.sin({k}.5 * x)\n" for k in range(30))
    f = module(
        f"import math, tapegrad as tg\n@tg.njit\ndef g(x):\n{lines}    return x\n"
        "@tg.njit\ndef h(x):\n    return math.sin(x) * x\n"
        f"@tg.njit\ndef f(x):\n    y = g(x)\n{'    y = h(y) + x' + chr(10)}"
        * 1
        + "    y = h(y) + x\n" * 200
        + "    return y\n"
    )
    source = f.adjoint_source(0.3)
    assert "g_reverse(" in source
    assert "h_reverse(" in source
    assert source.count("h_reverse(") < 150
    check(f, 0.3)


def test_random_numbers_are_drawn_once():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef g(x):\n"
        "    return x * np.random.normal()\n@tg.njit\ndef f(x, seed):\n"
        "    np.random.seed(seed)\n    return g(x) * g(x * x)\n"
    )
    value, slope = tg.value_and_grad(f)(0.7, 3)
    assert value == f(0.7, 3)
    assert slope == pytest.approx(3.0 * value / 0.7)


def test_another_process_finds_what_callees_of_callees_refer_to(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "inner.py").write_text(
        "import numba, numpy as np\nK = np.array([2.0, 3.0])\n"
        "@numba.njit\ndef h(x):\n    return x * K[1]\n"
    )
    (tmp_path / "middle.py").write_text(
        "import numba, numpy as np\nfrom inner import h\nK = np.array([5.0, 7.0])\n"
        "h_K = np.array([100.0, 1000.0])\n@numba.njit\ndef g(x):\n    return h(x) * K[0]\n"
    )
    (tmp_path / "functions_of_a_module.py").write_text(
        "import tapegrad as tg\nfrom middle import g\n@tg.njit\n"
        "def f(x, h_K, K):\n    return g(x) * g(x * h_K) * K\n"
    )
    script = SCRIPT.replace("tg.grad(m.f)(np.array([0.3, 0.7]), 2.0).tolist()", "{what}")
    for what in ("tg.grad(m.f)(1.0, 1.0, 1.0)", "tg.hvp(m.f)(1.0, 1.0, 1.0, 1.0)"):
        for _ in range(2):
            found = subprocess.run(
                [sys.executable, "-c", script.format(folder=str(tmp_path), what=what)],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            assert float(found) == 450.0
            for path in (tmp_path / "cache").rglob("*.nbc"):
                path.unlink()  # the source is found, and compiled again


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import functions_of_a_module as m
import tapegrad as tg
print(tg.grad(m.f)(np.array([0.3, 0.7]), 2.0).tolist())
"""


def test_another_process_finds_what_callees_refer_to(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "tables.py").write_text(
        "import numba, numpy as np\nTABLE = np.array([1.5, 2.5])\n"
        "@numba.njit\ndef branch(x):\n    return x * x if x > 0.5 else x\n"
        "@numba.njit\ndef g(x, k):\n    return branch(x) * TABLE[k]\n"
    )
    (tmp_path / "functions_of_a_module.py").write_text(
        "import numpy as np, tapegrad as tg\nfrom tables import g\nTABLE = np.array([7.0])\n"
        "@tg.njit\ndef f(x, branch):\n    return g(x[0], 0) * g(x[1], 1) * TABLE[0] * branch\n"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))],
            capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    c = 1.5 * 2.5 * 7.0 * 2.0
    assert found[0] == found[1]
    np.testing.assert_allclose(eval(found[0]), [c * 0.49, c * 0.3 * 1.4], rtol=1e-14)
