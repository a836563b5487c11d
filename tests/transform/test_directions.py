"""Jacobians and Hessians whose columns are computed several at a time."""

import ast
import random

import numba
import numpy as np
import pytest
from check import is_chosen, module, running

import tapegrad as tg
from tapegrad.transform import composed, derivatives
from tapegrad.transform.codegen import directions, program
from tapegrad.transform.errors import InternalError, SingleDirectionError
from tapegrad.transform.generated import Generated, parsed_function
from tapegrad.transform.ir import Role, Value
from tapegrad.transform.verifier.directions import verify_directions

COUNT = composed.DIRECTIONS
SIZES = [0, 1, COUNT - 1, COUNT, COUNT + 1, 2 * COUNT + 3]
HEADER = "import math, numba, numpy as np, tapegrad as tg\n"

SCALARS = {  # functions of an array x of any size, and of a number a
    "a sum": """
@tg.njit
def f(x, a):
    s = 0.0
    for i in range(x.size):
        s += math.sin(a * x[i]) * x[i - 1]
    return s
""",
    "values on the tape": """
@tg.njit
def f(x, a):
    y = a
    for _ in range(3):
        for i in range(x.size):
            y = math.sin(y * x[i]) + y * y * x[i]
    return y
""",
    "a slope and a rest": """
@tg.njit
def f(x, a):
    y = a
    for i in range(x.size):
        y = y * 0.5 * x[i] + x[i] * x[i]
    return y * y
""",
    "branches, and a loop that is left": """
@tg.njit
def f(x, a):
    s = a
    for i in range(x.size):
        if x[i] > 0.5:
            s = s * x[i] + math.exp(-s)
        elif i > 4:
            s -= x[i] * x[i - 1]
        if s > 40.0:
            break
    return s * s
""",
    "arrays that are written": """
@tg.njit
def f(x, a):
    w = np.zeros(x.size + 2)
    for i in range(x.size):
        w[i + 1] = x[i] * x[i]
        w[i] += w[i + 1] * a * w[i]
    w[1:] *= w[:-1] + a
    return np.sum(w)
""",
    "arrays of states": """
@tg.njit
def f(x, a):
    u = x * a
    for _ in range(3):
        u = u + 0.1 * np.sin(u) * x
    return np.sum(u * u)
""",
    "callees": """
@numba.njit
def g(u, k, a):
    s = 0.0
    for i in range(u.size):
        if i % 2 == k:
            s += u[i] * u[i] * a
    u *= 1.5
    return s, u * s
@tg.njit
def f(x, a):
    w = x * x
    p, v = g(w, 0, a)
    q, _ = g(v, 1, p)
    return p * q + np.sum(v * w)
""",
    "two numbers go round": """
@tg.njit
def f(x, a):
    b = a * a
    for i in range(x.size):
        a, b = b, a * x[i] + b
    return a * b
""",
    "the argument is written": """
@tg.njit
def f(x, a):
    for i in range(1, x.size):
        x[i] = x[i] * x[i - 1] + a
    return np.sum(x * x)
""",
    "a rule of the user": """
@tg.njit
def g(u):
    return u * u
@g.defvjp
def g_vjp(u, out, g):
    return (2.0 * u * g,)
@tg.njit
def f(x, a):
    s = a
    for i in range(x.size):
        s += g(x[i] * s)
    return s
""",
    "a product of matrices": """
@tg.njit
def f(x, a):
    m = np.outer(x, x) + a * np.eye(x.size)
    return np.sum(np.sin(m) @ x)
""",
    "a gradient in the function": """
@tg.njit
def g(u, a):
    return np.sum(np.sin(u) * u) * a
dg = tg.grad(g)
@tg.njit
def f(x, a):
    return np.sum(dg(x, a) * x)
""",
    "iterations in parallel": """
@tg.njit(parallel=True)
def f(x, a):
    s = 0.0
    for i in numba.prange(x.size):
        s += math.sin(a * x[i]) * x[i]
    return s
""",
}
VECTORS = {
    "elements": """
@tg.njit
def f(x, a):
    y = np.empty(2 * x.size + 1)
    y[0] = a
    for i in range(x.size):
        y[i + 1] = x[i] * math.sin(x[i - 1])
        y[x.size + 1 + i] = x[i] * y[0]
    return y
""",
    "a matrix": """
@tg.njit
def f(x, a):
    return np.outer(x, np.append(x, a)) * x[-1] if x.size else np.zeros((0, 1))
""",
    "columns of a view": """
@tg.njit
def f(x, a):
    return np.outer(x * a, np.append(x, (a, a)))[::2].T
""",
    "a number and an array": """
@tg.njit
def f(x, a):
    w = np.zeros(x.size + 1)
    s = a
    for i in range(x.size):
        s += x[i] * s
        w[i] = s * x[i]
    return w
""",
}


def numbers(size, dtype=np.float64):
    return (0.3 + 0.7 * np.sin(np.arange(1.0, size + 1))).astype(dtype)


def made(text):
    return module(HEADER + text)


def by_columns(f, run, x, *rest):
    """The Jacobian, a column at a time."""
    columns = []
    for k in range(x.size):
        tangent = np.zeros_like(x)
        tangent.flat[k] = 1.0
        columns.append(np.asarray(run(tg.jvp(f, (0,)))(x.copy(), *rest, tangent)[1]))
    value = np.asarray(run(f)(x.copy(), *rest))
    found = np.array(columns).reshape(x.size, value.size)
    return found.T.reshape(value.shape + x.shape)


def is_used(derivative, *args):
    """Whether the generated code of a Jacobian computes several columns at a time."""
    return "columns_0(" in derivative.source(tuple(map(numba.typeof, args)))


@pytest.mark.filterwarnings("ignore::tapegrad.transform.errors.SerialLoopWarning")
@pytest.mark.parametrize("name", SCALARS)
def test_hessians(name):
    f = made(SCALARS[name])
    hessian = tg.hessian(f)
    with running(is_chosen(name)) as run:
        for size in SIZES:
            x = numbers(size)
            expected = by_columns(tg.grad(f), run, x, 0.4)
            found = run(hessian)(x.copy(), 0.4)
            assert found.shape == (size, size)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert is_used(hessian, x, 0.4) is (name != "a gradient in the function")


def test_names_of_arguments_that_generated_code_uses():
    f = made("@tg.njit\ndef f(x, min, np_, range):\n    return (x * x * x).sum() * min * range\n")
    found = tg.hessian(f)(numbers(6), 0.5, 1.0, 2.0)
    np.testing.assert_allclose(found, np.diag(6.0 * numbers(6)))


@pytest.mark.filterwarnings("ignore::tapegrad.transform.errors.SerialLoopWarning")
def test_many_arrays_in_parallel():
    f = made(
        "@tg.njit(parallel=True)\ndef f(x, r):\n    s = 0.0\n    out = np.zeros(x.size)\n"
        "    for i in numba.prange(x.size):\n        s += (x[i] + r * math.sin(x[i])) * i\n"
        "        out[i] = x[i] + (s * 0 + r) * math.sin(x[i])\n"
        "    for i in numba.prange(1, x.size):\n        s += (x[i - 1] * r + x[i]) * out[i]\n"
        "    return s\n"
    )
    x = numbers(6)
    found = tg.hessian(f)(x, 0.3)
    product = tg.hvp(f)(x, 0.3, np.eye(6)[2])
    np.testing.assert_allclose(found[:, 2], product, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", VECTORS)
def test_jacobians(name):
    f = made(VECTORS[name])
    jacobian = tg.jacobian(f)
    with running(is_chosen(name)) as run:
        for size in SIZES:
            x = numbers(size)
            found, expected = run(jacobian)(x.copy(), 0.4), by_columns(f, run, x, 0.4)
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
        assert is_used(jacobian, x, 0.4)


def test_matrices_as_arguments():
    f = made(
        "@tg.njit\ndef f(x, a):\n    s = 0.0\n    for i in range(x.shape[0]):\n"
        "        for j in range(x.shape[1]):\n            s += math.exp(x[i, j] * x[0, j]) * a\n"
        "    return s\n"
    )
    x = numbers(15).reshape(3, 5)
    with running(False) as run:
        for layout in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
            expected = by_columns(tg.grad(f), run, layout, 0.4)
            np.testing.assert_allclose(run(tg.hessian(f))(layout, 0.4), expected, rtol=1e-12)
        assert is_used(tg.hessian(f), x, 0.4)
        assert not is_used(tg.hessian(f), x.T, 0.4)


def test_single_precision():
    f = made(SCALARS["a sum"])
    for size in SIZES:
        x = numbers(size, np.float32)
        found = tg.hessian(f)(x, np.float32(0.4))
        expected = by_columns(tg.grad(f), lambda g: g, x, np.float32(0.4))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_from_compiled_code():
    f = made(SCALARS["a sum"])
    hessian = tg.hessian(f)

    @numba.njit
    def trace(x, a):
        return np.trace(hessian(x, a))

    x = numbers(9)
    assert trace(x, 0.4) == pytest.approx(np.trace(hessian(x, 0.4)))


def test_third_derivatives():
    f = made(SCALARS["a sum"])
    with running(False) as run:
        hessian, x = run(tg.hessian(f)), numbers(6)
        found = run(tg.jacobian(tg.hessian(f)))(x, 0.4)
        assert found.shape == (6, 6, 6)
        step = 1e-5 * np.eye(6)[2]
        difference = (hessian(x + step, 0.4) - hessian(x - step, 0.4)) / 2e-5
    np.testing.assert_allclose(found[:, :, 2], difference, atol=1e-8)


@tg.njit
def fourth_powers(x):
    return x**4


@pytest.mark.parametrize("jacobian", [tg.jacobian, tg.jacfwd, tg.jacrev])
def test_third_derivatives_of_vectors(jacobian):
    x = np.array([0.5, 1.5])
    with running(False) as run:
        found = run(jacobian(jacobian(jacobian(fourth_powers))))(x)
    expected = np.zeros((2, 2, 2, 2))
    for i in range(2):
        expected[i, i, i, i] = 24.0 * x[i]
    np.testing.assert_allclose(found, expected)


def test_tangents_of_another_shape():
    f = made(SCALARS["a sum"])
    pushforward = derivatives.pushforward(f, (0,), False, COUNT)
    x = np.ones(3)
    with pytest.raises(ValueError, match="must have the shape of x"):
        pushforward(x, 0.4, *[np.ones(3 if k != 1 else 2) for k in range(COUNT)])


def texts_of(text, monkeypatch, folder):
    """The functions with one direction and with several, the names, and the entry."""
    seen = []
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(folder))
    folder.mkdir(mode=0o700)

    def note(*args):
        seen.append(args)
        verify_directions(*args)

    monkeypatch.setattr(program, "verify_directions", note)
    with running(False) as run:
        run(tg.hessian(made(text)))(numbers(6), 0.4)
    (found,) = seen
    return found


@pytest.mark.parametrize("name", ["values on the tape", "callees", "a slope and a rest"])
def test_each_statement_of_each_direction_counts(name, monkeypatch, tmp_path):
    single, several, names, entry = texts_of(SCALARS[name], monkeypatch, tmp_path / "cache")
    changed = [
        [*several[:place], mutant, *several[place + 1 :]]
        for place, text in enumerate(several)
        for mutant in mutants(text, names.get(ast.parse(text).body[0].name, {}))
    ]
    for texts in random.Random(1).sample(changed, 60):
        with pytest.raises((InternalError, LookupError, TypeError, ValueError, AttributeError)):
            verify_directions(single, texts, names, entry)


def mutants(text, names):
    """Functions without a statement of a direction, with one twice, or with another name in it."""
    new = sorted(n for directions in names.values() for n in directions[1:])

    def reads(node):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}.intersection(new)

    for number, node in enumerate(ast.walk(ast.parse(text))):
        if isinstance(node, ast.Name) and node.id in new:
            changed = ast.parse(text)
            list(ast.walk(changed))[number].id = next(n for n in new if n != node.id)
            yield ast.unparse(changed)
        body = getattr(node, "body", None)
        for at, statement in enumerate(body if isinstance(body, list) else ()):
            if hasattr(statement, "body") or not reads(statement):
                continue
            for times in (0, 2):
                changed = ast.parse(text)
                block = list(ast.walk(changed))[number].body
                block[at : at + 1] = [block[at]] * times or [ast.Pass()]
                yield ast.unparse(changed)


@pytest.mark.parametrize(
    "line",
    [
        "y = x_dot[0]", "y, x_dot = x_dot, x", "x[0] += x_dot[0]", "x[0] = x_dot[0]", "del x_dot",
        "y = f(x, x_dot)", "for i in x_dot:\n        y = i", "while x_dot[0] > 1.0:\n        y = 1",
        "y, (x_dot,) = other(x, x_dot)",
    ],
)  # fmt: skip
def test_code_that_is_not_known(line):
    text = f"def f_tangent(x, x_dot):\n    {line}\n    return x, (x_dot,)\n"
    mode = directions.Forward.__new__(directions.Forward)
    mode.suffix, mode.rest, mode.types = "_dot", "_rest", {"x": None, "y": None}
    mode.values = {"x_dot": Value(Role.TANGENT, "x")}
    texts = [text, "def f_entry(x, x_dot):\n    return 0.0\n"]
    functions = [Generated(parsed_function(text), None) for text in texts]
    with pytest.raises(SingleDirectionError):
        directions.in_directions(functions, {"f_tangent": (mode, None)}, "f_entry", 1, COUNT)
