"""Zeros that nothing reads are not written, and all others are."""

import ast
import textwrap

import numba
import numpy as np
import pytest
from numba.core import types
from optimized import after_pass, facts_of, with_body

import tapegrad as tg
from tapegrad.transform import runtime
from tapegrad.transform.optimize.unread_zeros import remove_unread_zeros

pytestmark = pytest.mark.texts

VECTOR, MATRIX = (types.Array(types.float64, ndim, "C") for ndim in (1, 2))
FACTS = facts_of(
    {
        **dict.fromkeys(["w", "v", "x"], VECTOR),
        **dict.fromkeys(["m", "q"], MATRIX),
        **dict.fromkeys(["n", "p", "i", "j", "k"], types.int64),
        **dict.fromkeys(["t", "s"], types.float64),
    },
)


def after_removal(text):
    """A function of the text, in which unread zeros are removed."""
    code = with_body("f(x, n, p, s)", text)
    found, changed = after_pass(remove_unread_zeros, code, FACTS)
    assert changed == (found != ast.unparse(ast.parse(code)))
    return found


def in_loop(lines, after=""):
    """A loop that makes an array, and statements after it."""
    body = textwrap.indent(textwrap.dedent(lines), "    ")
    return f"for k in range(n):\n    w = np.zeros(n)\n{body}\n{after}"


@pytest.mark.parametrize(
    "lines",
    [
        "q = np.zeros((n, 2))\n{}\ns = q[0, 0]",
        "q = np.zeros((n, 2))\nt = s\n{}\nq[0, 0] += t",
        "for k in range(n):\n    q = np.zeros((n, 2))\n    {}\n    q[k, 0] += s",
    ],
)
def test_function_whose_result_is_the_array(lines):
    code = lines.format("arrays.fourier_adjoint_of_pairs_vjp_z(q, 0, m)")
    found = after_removal(code)
    assert "q = arrays.fourier_of_pairs(m, 0)" in found
    assert "zeros" not in found
    code = lines.format("arrays.half_fourier_to_pairs_vjp_x(q, 0, m)")
    found = after_removal(code)
    assert "(n, 2)[0]" in found  # the extents of what is added


@pytest.mark.parametrize(
    "lines",
    [
        "q = np.zeros((n, 2))\nv = q[0]\n{}\nv[0] = s",  # another name has it
        "q = np.zeros((n, 2))\nq[0, 0] = s\n{}",
        "q = np.zeros((n, 2))\nfor k in range(n):\n    {}",  # adds more than once
        "q = np.zeros((n, 2))\nif s > 0.0:\n    {}",
        "q = np.zeros((n, 2))\nn = 3\n{}",
        "q = m\nq = np.zeros((n, 2))\n{}",
        "q = np.zeros((n, 2))\narrays.fourier_adjoint_of_pairs_vjp_z(m, 0, q)",
        "q = np.zeros((n, 2))\narrays.fourier_adjoint_of_pairs_vjp_z(q, 0, q)",
        "q = np.zeros((n, 2))\narrays.dot_22_vjp_x(q, m, m)",
    ],
)
def test_functions_that_add(lines):
    code = lines.format("arrays.half_fourier_to_pairs_vjp_x(q, 0, m)")
    assert "np.zeros((n, 2))" in after_removal(code)


@pytest.mark.parametrize(
    "lines",
    [
        "for i in range(n):\n    w[i] += s",
        "for i in range(0, n):\n    w[i] += s",
        "for i in range(n - 1, -1, -1):\n    t = s\n    w[i] += t",
        "v = w[1:]\nfor i in range(n):\n    w[i] += s\nv[0] = s",
        "t = s\nfor i in range(n):\n    w[i] += s\nfor i in range(n):\n    w[i] += s",
        "t = w.size\nfor i in range(n):\n    w[i] += s",
    ],
)
def test_elements_that_a_loop_sets_first(lines):
    found = after_removal(in_loop(lines))
    assert "np.empty(n)" in found
    assert found.count("w[i] = s") + found.count("w[i] = t") == 1


@pytest.mark.parametrize(
    "lines",
    [
        "for i in range(1, n):\n    w[i] += s",
        "for i in range(n - 2, -1, -1):\n    w[i] += s",
        "for i in range(n - 1, 0, -1):\n    w[i] += s",
        "for i in range(0, n, 2):\n    w[i] += s",
        "for i in range(n):\n    w[i] -= s",
        "for i in range(n):\n    w[j] += s",
        "for i in range(n):\n    w[i] += w[0]",
        "for i in range(n):\n    w[i] += s\n    t = w[0]",
        "for i in range(n):\n    if s > 0:\n        w[i] += s",
        "for i in range(n):\n    if s > 0:\n        break\n    w[i] += s",
        "for i in range(n):\n    i = 0\n    w[i] += s",
        "t = w[0]\nfor i in range(n):\n    w[i] += s",
        "v = w[1:]\nv[0] = 1.0\nfor i in range(n):\n    w[i] += s",
        "v = w[1:]\nfor i in range(n):\n    w[i] += v[0]",
        "n = p\nfor i in range(n):\n    w[i] += s",
        "for j in range(p):\n    for i in range(n):\n        w[i] += s",
        "if s > 0:\n    for i in range(n):\n        w[i] += s",
        "while s > 0:\n    w[0] += s",
        "keep(w)\nfor i in range(n):\n    w[i] += s",
    ],
)
def test_elements_that_need_zeros(lines):
    assert "np.zeros(n)" in after_removal(in_loop(lines))


@pytest.mark.parametrize("extent", ["p", "n - 1", "3"])
def test_elements_that_a_loop_does_not_reach(extent):
    found = after_removal(in_loop(f"for i in range({extent}):\n    w[i] += s"))
    assert "np.empty(n)" in found
    assert f"runtime.clear_from(w, {extent})\n        for i in range({extent})" in found
    assert "w[i] = s" in found


def test_several_arrays_of_one_block():
    lines = "v = np.zeros(n)\nfor i in range(p):\n    w[i] += s\nfor j in range(p):\n    v[j] += s"
    found = after_removal(in_loop(lines))
    assert "np.zeros" not in found
    assert found.count("runtime.clear_from(") == 2
    assert "w[i] = s" in found
    assert "v[j] = s" in found


STEPS = """
w = x
for k in range(n):
    v = w
    w = np.zeros(n)
    for i in range(n):
        t = v[i]
        w[i] += t
"""


def test_names_of_several_arrays():
    assert "w[i] = t" in after_removal(STEPS)
    for line in ("v = w", "w = v", "s = w[0]", "if s > 0.0: break", "n = p"):
        inserted = STEPS.replace("np.zeros(n)\n", f"np.zeros(n)\n    {line}\n")
        assert "w[i] += t" in after_removal(inserted)


@pytest.mark.parametrize("first", [-9, -1, 0, 2, 5, 9])
def test_clear_from(first):
    @numba.njit
    def cleared(x, first):
        runtime.clear_from(x, first)
        return x

    expected = np.ones(5)
    expected[max(first, 0) :] = 0.0
    np.testing.assert_array_equal(cleared(np.ones(5), first), expected)


SHAPE = "t = x.shape\nd = t[0]\n"


def needs_zeros(text):
    found = after_removal(text)
    return "np.zeros" in found or "runtime.clear_from(" in found


def test_zeros_like_an_array():
    text = f"w = np.zeros_like(x)\n{SHAPE}for i in range(d):\n    w[i] += s"
    assert "np.empty_like(x)" in after_removal(text)
    assert not needs_zeros(text)
    for one, other in (
        ("x.shape", "v.shape"),
        ("t[0]", "t[0] - 1"),
        ("for i", "d = p\nfor i"),
        ("d = t[0]", "d = t[0]\nx = v"),
        ("t = x", "if s > 0:\n    t = v.shape\nt = x"),
    ):
        assert needs_zeros(text.replace(one, other))


def test_extents_with_two_names():
    text = f"{SHAPE}e = t[0]\nw = np.zeros(e)\nfor i in range(d):\n    w[i] += s"
    assert "np.empty(e)" in after_removal(text)
    assert needs_zeros(text.replace("e = t[0]", "e = t[1]"))


def test_matrices():
    text = "m = np.zeros((n, p))\nfor i in range(n):\n    for j in range(p):\n        m[i, j] += s"
    assert "np.empty((n, p))" in after_removal(text)
    assert "np.zeros" in after_removal(text.replace("m[i, j]", "m[j, i]"))
    assert "np.zeros" in after_removal(text.replace("np.zeros((n, p))", "np.zeros((p, n))"))


@pytest.mark.parametrize(
    "lines",
    [
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0",
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0\n    x[i] += t",
        "for i in range(n):\n    j = i + 1\n    t = w[j]\n    w[j] = 0.0",
        "for i in range(n):\n    j = 1 + i\n    t = w[j]\n    w[j] = 0.0",
        "for i in range(n):\n    j = i + 1\n    w[j] = 0.0\nt = w[0]\nw[0] = 0.0",
        "t = w[p]\nw[p] = 0.0",
        "v = w[1:]\nv[0] += s\nfor i in range(n):\n    t = w[i]\n    w[i] = 0.0",
    ],
)
def test_zeros_that_nothing_reads(lines):
    assert "= 0.0" not in after_removal(in_loop(lines))


@pytest.mark.parametrize(
    "lines",
    [
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0\nt = w[0]",
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0\nt = np.sum(w)",
        "for i in range(n):\n    j = i + 1\n    t = w[j]\n    w[j] = 0.0\nt = w[1]",
        "for i in range(n):\n    j = i * p\n    t = w[j]\n    w[j] = 0.0",
        "for i in range(n):\n    t = w[0]\n    w[0] = 0.0",
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0\n    x[i] += w[0]",
        "for i in range(n):\n    w[i] = 0.0\n    t = w[i]",
        "v = w[1:]\nfor i in range(n):\n    t = w[i] + v[i]\n    w[i] = 0.0",
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0\nx = w",
        "for i in range(n):\n    t = w[i]\n    w[i] = 0.0\nkeep(w)",
        "v = x[1:]\nfor i in range(n):\n    t = v[i]\n    v[i] = 0.0",
        "x[p] = 0.0",
        "w[p] = 0.0\nt = w[0]",
    ],
)
def test_zeros_that_something_reads(lines):
    assert "= 0.0" in after_removal(in_loop(lines, "return x"))


def test_the_next_iteration_reads_zeros():
    text = """
        for k in range(n):
            if k == 0:
                w = np.zeros(n)
            for i in range(n):
                t = w[i]
                w[i] = 0.0
    """
    assert "w[i] = 0.0" in after_removal(text)
    text = "w = np.zeros(n)\nfor i in range(n):\n    t = w[i]\n    w[i] = 0.0\nreturn w"
    assert "w[i] = 0.0" in after_removal(text)


@numba.njit
def rates(x, steps):
    """Stores in parts of arrays, and whole arrays of each step."""
    y = x.copy()
    n = y.size
    for _ in range(steps):
        k, q = np.empty(n), np.empty(n)
        k[0] = -y[0] * y[0]
        k[1:] = y[:-1] - y[1:] * y[1:]
        q[0] = k[0]
        q[1:] = k[:-1] * y[1:]
        y = y + 0.1 * (k + 2.0 * q)
    return np.sum(y * y)


def test_gradients_of_steps():
    x = np.array([0.7, 1.2, 0.9, 1.4, 0.3])
    gradient = tg.grad(rates)
    kinds = numba.typeof(x), types.int64
    _, faster = gradient.source(kinds).split("# versions that run faster")
    assert "k_1_bar = runtime.scratch" in faster
    assert "runtime.clear(k_1_bar)" not in faster
    h = 1e-6
    for steps in (0, 1, 2, 7):
        wanted = [(rates(x + h * e, steps) - rates(x - h * e, steps)) / (2 * h) for e in np.eye(5)]
        np.testing.assert_allclose(gradient(x, steps), wanted, rtol=1e-7)


def rows_if_they_matter(before="", inner="m[i, j] += t", test="runtime.matters(t)", after=""):
    """Loops over the elements of a matrix, of which the inner one runs if a number is not 0."""
    return textwrap.dedent(
        f"""
        m = np.zeros((n, p))
        for i in range(n - 1, -1, -1):
            t = s
            {before or "pass"}
            if {test}:
                for j in range(p):
                    {inner}
        {after}
        """
    )


@pytest.mark.parametrize("after", ["", "s = m[0, 0]"])
def test_rows_that_are_set_to_zero_where_a_loop_does_not_run(after):
    found = after_removal(rows_if_they_matter(after=after))
    assert "np.empty((n, p))" in found
    assert "m[i, j] = t" in found
    assert "else:\n            runtime.clear(m[i])" in found


def test_an_array_that_is_set_to_zero_where_a_loop_does_not_run():
    found = after_removal(
        in_loop("if runtime.matters(s):\n    for i in range(n):\n        w[i] += s")
    )
    assert "np.empty(n)" in found
    assert "else:\n            runtime.clear(w)" in found


@pytest.mark.parametrize(
    "options",
    [
        {"before": "s = m[i, 0]"},
        {"before": "i = 0"},
        {"before": "for k in range(p): s += k"},
        {"test": "t > 0.0"},
        {"inner": "m[i, 0] += t"},
        {"inner": "m[j, i] += t"},
        {"inner": "m[i, j] += m[i, 0]"},
        {"inner": "if t > s: m[i, j] += t"},
    ],
)
def test_rows_that_are_not_set(options):
    assert "np.empty" not in after_removal(rows_if_they_matter(**options))


def test_gradients_where_cotangents_of_rows_are_zero():
    @tg.njit
    def loss(x, w):
        n, p = x.shape
        left, right = np.empty((n, p)), np.empty((n, p))
        for i in range(n):
            for j in range(p):
                left[i, j] = x[i, j] * w[j]
                right[i, j] = np.sin(x[i, j])
        total = 0.0
        for i in range(n):
            s = 0.0
            for j in range(p):
                s += (left[i, j] + right[i, j] * w[j]) ** 2
            if i % 3 != 1:
                total += s * w[0]
        return total

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(7, 20)), rng.normal(size=20)

    def value(x, w):
        rows = tg.sum((x * w + tg.sin(x) * w) ** 2, axis=1)
        return tg.sum(rows[np.arange(7) % 3 != 1]) * w[0]

    for _ in range(2):  # with memory that was used before
        for own, other in zip(
            tg.grad(loss, (0, 1))(x, w), tg.grad(value, (0, 1))(x, w), strict=True
        ):
            np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-12)
