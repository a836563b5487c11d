"""Arrays whose elements are on the tape: those of iterations, and those that loops read often."""

import math
import re

import numba
import numpy as np
import pytest
from changed_lines import lines_changed_in
from check import Cases, check, module

import tapegrad as tg
from tapegrad.testing import check_grads
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.errors import InternalError

A = np.array([0.3, 0.7, -0.4, 0.9, 0.2, -1.1])
M = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
S = np.linspace(-0.9, 1.1, 36).reshape(6, 6)
case = Cases()


def kept(f):
    """The arrays whose elements generated code keeps, as often as it does."""
    _, args, options = case[f.py_func.__name__]
    text = f.adjoint_source(*args, argnums=options.get("argnums", 0)).partition("# versions")[0]
    text = text.partition("_gradient_1(")[0]  # without what is done if extents are equal
    return re.findall(r"push_elements\(tape, top, (\w+),", text)


# -- loops that read an array often ----------------------------------------------------------------


@case(M, S[:4, :4], argnums=(0, 1), hvp=True)
def rows_in_a_work_array(points, m):
    n, d = points.shape
    centred, total = np.empty(d), 0.0
    for i in range(n):
        for j in range(d):
            centred[j] = points[i, j] * points[i, j - 1]
        for a in range(d):
            y = math.exp(m[a, a]) * centred[a]
            for b in range(a):
                y += m[a, b] * centred[b]
            total += y * y
    return total


@case(A, S, argnums=(0, 1), hvp=True)
def powers_of_a_matrix(x, m):
    n = x.size
    u, after = x.copy(), np.zeros(n)
    for _ in range(3):
        scale = 0.0
        for i in range(n):
            s = 0.0
            for j in range(n):
                s += u[j] * m[i, j]
            after[i] = math.tanh(s)
            scale += after[i] * after[i]
        for i in range(n):
            u[i] = after[i] / math.sqrt(scale + 1.0)
    return np.sum(u)


@case(A, 0.3, argnums=(0, 1), hvp=True)
def neighbours(x, speed):
    n = x.size
    u, after = x.copy(), np.zeros(n)
    for _ in range(4):
        for i in range(1, n - 1):
            after[i] = u[i] * u[i + 1] * speed + u[i - 1]
        for i in range(n):
            u[i] = after[i]
    return np.sum(u * u)


@case(S, 0.3, argnums=(0, 1), hvp=True)
def neighbours_in_a_plane(x, speed):
    u, after = x.copy(), x.copy()
    for _ in range(3):
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                after[i, j] = speed * around * u[i, j]
        u, after = after, u
    return np.sum(u * u)


@case(S, hvp=True)
def upper_triangles(x):
    m, total = x.copy(), 0.0
    for _ in range(2):
        for i in range(m.shape[0]):
            for j in range(i, m.shape[1]):
                for k in range(m.shape[0]):
                    total += m[i, k] * m[k, j]
        for i in range(m.shape[0]):
            for j in range(m.shape[1]):
                m[i, j] = math.sin(m[i, j])
    return total


@case(A, hvp=True)
def some_are_read_in_branches(x):
    n, total = x.size, 0.0
    u = x.copy()
    for _ in range(3):
        for i in range(n):
            for j in range(n):
                total += u[j] * u[i]
                total += u[j] * x[i] if x[j] > 0.0 else u[j]
                if x[i] > 0.5:
                    total += math.sin(u[j] * u[i - 1])
        for i in range(n):
            u[i] = u[i] * x[i] + 0.1
    return total


@case(A, 0.4, argnums=(0, 1), hvp=True)
def in_a_branch(x, y):
    n = x.size
    u = x.copy()
    for k in range(n):
        if x[k] > 0.1:
            for i in range(n):
                for j in range(n):
                    y += u[j] * u[i] * 0.1 * y
        else:
            y = math.sin(y) * u[k]
        for i in range(n):
            u[i] *= y
    return y


@case(A, hvp=True)
def left_early(x):
    n, total = x.size, 0.0
    u = x.copy()
    for _ in range(3):
        for i in range(n):
            if x[i] > 0.8:
                break
            for j in range(n):
                total += u[j] * u[i]
        for i in range(n):
            u[i] = u[i] * total * 0.3
    return total


@case(A, hvp=True)
def loops_while(x):
    n, total = x.size, 0.1
    u = x.copy()
    while total < 3.0:
        k = 0
        while k < 2:
            for j in range(n):
                for i in range(n):
                    total += u[j] * u[j] * u[i] * u[i]
            k += 1
        for i in range(n):
            u[i] = u[i] * x[i] + 0.5
    return total


@case(A, hvp=True)
def errors_in_between(x):
    n, total = x.size, 0.0
    u = x.copy()
    for _ in range(3):
        for i in range(n):
            for j in range(n):
                if u[j] > 1e6:
                    raise ValueError("too large")
                total += u[j] * u[i]
        for i in range(n):
            u[i] = u[i] * total * 0.3
    return total


@numba.njit(boundscheck=False)
def all_pairs(u, weights):
    total = 0.0
    for i in range(u.size):
        for j in range(u.size):
            total += u[i] * u[j] * weights[j]
    return total


@case(A, A[::-1].copy(), argnums=(0, 1), hvp=True)
def read_by_a_callee(x, w):
    u, total = x.copy(), 0.0
    for _ in range(3):
        total += all_pairs(u, w)
        for i in range(u.size):
            u[i] = u[i] * w[i] + 0.1
    return total


@numba.njit(boundscheck=False)
def all_pairs_then_changed(u):
    total = 0.0
    for i in range(u.size):
        for j in range(u.size):
            total += u[i] * u[j]
    for i in range(u.size):
        u[i] *= total * 0.1
    return total


@case(A, hvp=True)
def changed_by_a_callee(x):
    u, total = x.copy(), 0.0
    for _ in range(3):
        total += all_pairs_then_changed(u)
    return total


@case(S, hvp=True)
def views_of_rows(x):
    m, total = x.copy(), 0.0
    for k in range(4):
        row = m[k]
        for i in range(row.size):
            for j in range(row.size):
                total += row[i] * row[j] * x[i, j]
        m[k + 1, :] += row * total * 0.01
        row[k] = total
    return total


@case(np.asfortranarray(S), hvp=True)
def other_layouts(x):
    t, total = x[:, ::2].T.copy().T, 0.0
    for _ in range(2):
        for i in range(t.shape[0]):
            for j in range(t.shape[1]):
                for k in range(3):
                    total += t[i, j] * t[i, k]
        for i in range(t.shape[0]):
            for j in range(t.shape[1]):
                t[i, j] *= 0.5 * total
    return total


@case(A.astype(np.float32), A * 1j + 0.3, argnums=(0, 1))
def other_kinds_of_numbers(x, z):
    u, v, total = x.copy(), z.copy(), 0.0
    for _ in range(2):
        for i in range(u.size):
            for j in range(u.size):
                total += u[i] * u[j] + abs(v[i] * v[j])
        for i in range(u.size):
            u[i] *= np.float32(0.5)
            v[i] *= 0.5 + 0.5j
    return total


@case(np.zeros(0), hvp=True)
@case(A[:1], hvp=True)
def few_elements(x):
    u, total = x.copy(), 1.0
    for _ in range(3):
        for i in range(u.size):
            for j in range(u.size):
                total += u[i] * u[j] * total
        for i in range(u.size):
            u[i] *= total
    return total


@case(A, hvp=True)
def two_loops_after_each_other(x):
    u, total = x.copy(), 0.0
    for _ in range(3):
        for i in range(u.size):
            for j in range(u.size):
                total += u[i] * u[j]
        for i in range(u.size):
            for j in range(i):
                total += math.sin(u[i] * u[j])
        for i in range(u.size):
            u[i] *= 0.3 * total
    return total


@case(A, hvp=True)
def written_in_the_middle(x):
    n, total = x.size, 0.0
    u = x.copy()
    for k in range(n):
        for i in range(n):
            for j in range(n):
                total += u[j] * u[i]
            u[i] = u[i] * 0.5
        u[k] = total * 0.1
    return total


# -- arrays that iterations make -------------------------------------------------------------------


@case(A, S, argnums=(0, 1), hvp=True)
def states_are_new_arrays(x, m):
    u, total = x * 1.0, 0.0
    for _ in range(4):
        v = u @ m
        total += np.sum(v * v)
        u = np.tanh(v) * x
    return total


@case(A, S, argnums=(0, 1), hvp=True)
def states_that_may_stay(x, m):
    u = x * 1.0
    for k in range(x.size):
        if x[k] > 0.0:
            u = np.tanh(u @ m)
        u = u if x[k] > 0.5 else u * u
    return np.sum(u)


@case(A, S, argnums=(0, 1), hvp=True)
def copies_before_writes(x, m):
    u, total = x.copy(), 0.0
    for k in range(x.size):
        total += np.dot(u, m @ u)
        u[k] = math.sin(u[k]) * total * 0.01
        total += np.dot(u, u)
    return total


@case(A, S, argnums=(0, 1), hvp=True)
def products_of_matrices(x, m):
    p = np.eye(6)
    for k in range(3):
        p = (p @ m) * x[k] + m.T @ p
    return np.sum(p[0]) + np.trace(p)


@case(A, hvp=True)
def views_of_new_arrays(x):
    total = 0.0
    for k in range(3):
        w = np.sin(x * (k + 1.0))
        tail = w[1:]
        total += np.dot(tail, tail * x[1:]) * total + np.sum(np.exp(w[::2]))
    return total


@numba.njit
def step(u, m):
    v = np.sin(u)
    return np.tanh(v @ m) * v


@case(A, S, argnums=(0, 1), hvp=True)
def arrays_of_callees(x, m):
    u = x
    for _ in range(3):
        u = step(u, m)
    return np.sum(u)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@pytest.mark.parametrize(
    ("f", "arrays"),
    [
        (rows_in_a_work_array, ["centred_1"]),
        (powers_of_a_matrix, ["u_1"]),
        (neighbours, ["u_1"]),
        (upper_triangles, ["m_1"]),
        (some_are_read_in_branches, ["u_1"]),
        (two_loops_after_each_other, ["u_1", "u_1"]),
        (written_in_the_middle, ["u_1"]),
        (read_by_a_callee, ["u"]),
        (states_are_new_arrays, ["v_1", "u_2_kept"]),
        (few_elements, ["u_1"]),
    ],
)
def test_what_is_kept(f, arrays):
    assert kept(f) == arrays


def test_no_array_is_kept_for_the_few_elements_that_are_read():
    """The extents of the array are not those of the loops: it may be much larger."""

    @tg.njit
    def few_of_many(x, n):
        u, total = x.copy(), 0.0
        for k in range(n):
            for i in range(3):
                for j in range(3):
                    total += u[i + k] * u[j + k] * total
            u[k] = total
        return total

    assert "push_elements" not in few_of_many.adjoint_source(np.ones(10_000), 5)
    check(few_of_many, np.linspace(0.1, 0.9, 12), 4)


def test_an_array_that_is_the_same_in_each_iteration_is_not_copied():
    @tg.njit
    def chosen(x, n):
        u, v, total = np.exp(x), np.sin(x), 0.0
        for k in range(n):
            total += np.dot(u, u) * total
            if k > 2:
                u = v
        return total

    assert "push_elements" not in chosen.adjoint_source(A, 3)
    check(chosen, A, 5)


def test_loops_in_parallel():
    text = (
        "import numba, numpy as np, tapegrad as tg\n@tg.njit(parallel=True)\n"
        "def f(x, m):\n    out = np.empty(x.shape[0])\n"
        "    for p in numba.prange(x.shape[0]):\n"
        "        u = x[p].copy()\n        total = 0.0\n"
        "        for k in range(3):\n"
        "            for i in range(u.size):\n                for j in range(u.size):\n"
        "                    total += u[i] * u[j] * m[i, j]\n"
        "            for i in range(u.size):\n                u[i] *= total * 0.1\n"
        "        out[p] = total\n    return np.sum(out)\n"
    )
    check(module(text), np.tile(A, (40, 1)), S, argnums=(0, 1))


def test_memory():
    """Of a state that n * n iterations read, n numbers are kept, not as many as iterations."""
    x, m = np.linspace(0.1, 0.2, 40), np.full((40, 40), 0.01)
    gradient = tg.grad(powers_of_a_matrix, (0, 1))
    expected = gradient(x, m)
    tg.set_tape_limit(8 * 3 * 40 * 10)
    try:
        for one, two in zip(gradient(x, m), expected, strict=True):
            np.testing.assert_array_equal(one, two)
    finally:
        tg.set_tape_limit(None)


# -- what the verifier refuses ---------------------------------------------------------------------


PAIRS = """
import tapegrad as tg
@tg.njit
def f(x, m):
    u, total = x.copy(), 0.0
    w = x.copy()
    for k in range(3):
        for i in range(u.size):
            for j in range(u.size):
                total += u[i] * u[j] * m[i, j]
        for i in range(u.size):
            u[i] *= total * SCALE
            w[i] += u[i]
    return total + w[0]
"""


def pairs(scale):
    return module(PAIRS.replace("SCALE", str(scale)))


def replaced(monkeypatch, name, old, new):
    """Replace text in what a method writes."""
    method = getattr(Keeping, name)

    def changed(self, builder, loop):
        with lines_changed_in(builder, lambda lines: [line.replace(old, new) for line in lines]):
            method(self, builder, loop)

    monkeypatch.setattr(Keeping, name, changed)


def test_programs_of_the_defects_are_right():
    check(pairs(0.11), A, S, argnums=(0, 1))


def test_the_verifier_refuses_elements_of_another_array(monkeypatch):
    replaced(monkeypatch, "write_elements_pushes", "top, u_1,", "top, w_1,")
    with pytest.raises(InternalError, match="is not what it was in the forward code"):
        tg.grad(pairs(0.12), (0, 1))(A, S)


def test_the_verifier_refuses_elements_that_are_not_popped(monkeypatch):
    monkeypatch.setattr(Keeping, "write_elements_pops", lambda self, writer, loop: None)
    with pytest.raises(InternalError):
        tg.grad(pairs(0.13), (0, 1))(A, S)


def test_the_verifier_refuses_elements_that_are_not_pushed(monkeypatch):
    monkeypatch.setattr(Keeping, "write_elements_pushes", lambda self, writer, loop: None)
    with pytest.raises(InternalError):
        tg.grad(pairs(0.14), (0, 1))(A, S)


def test_the_verifier_refuses_references_that_are_popped_as_elements(monkeypatch):
    replaced(monkeypatch, "write_elements_pushes", "push_elements", "push_array")
    with pytest.raises(InternalError, match="taken from where it was not kept"):
        tg.grad(pairs(0.15), (0, 1))(A, S)


def test_the_verifier_refuses_elements_that_were_written_before_they_are_kept(monkeypatch):
    """A loop that writes the array between its reads keeps none of them."""
    monkeypatch.setattr("tapegrad.transform.codegen.writes.Writes.may_change", lambda *_: False)
    for f in (rewritten(0.5), pairs(0.16)):
        with pytest.raises(InternalError, match="is not what it was in the forward code"):
            tg.grad(f, (0, 1))(A, S)


def rewritten(scale):
    return module(
        "import tapegrad as tg\n@tg.njit\ndef f(x, m):\n    u, total = x.copy(), 0.0\n"
        "    for i in range(u.size):\n        for j in range(u.size):\n"
        f"            total += u[i] * u[j] * m[i, j]\n        u[i] *= total * {scale}\n"
        "    return total\n"
    )


def test_the_verifier_refuses_copies_at_the_end_of_a_block_that_has_written_them(monkeypatch):
    monkeypatch.setattr("tapegrad.transform.codegen.writes.Writes.may_change", lambda *_: False)
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, m):\n    u, total = x.copy(), 0.0\n"
        "    for k in range(x.size):\n        total += np.dot(u, m @ u)\n        u[k] = total\n"
        "    return total\n"
    )
    with pytest.raises(InternalError, match="were written since the forward code read them"):
        tg.grad(f, (0, 1))(A, S)


def test_rows_of_a_state_that_a_new_array_replaces():
    @tg.njit
    def diffuse(state, rate, steps):
        for _ in range(steps):
            new = np.empty(state.size)
            for i in range(state.size - 2):
                new[1 + i] = state[1 + i] + rate * (state[i] ** 2 - state[1 + i] * state[2 + i])
            new[0] = state[0]
            new[state.size - 1] = state[state.size - 1]
            state = new
        return np.sum(state**2)

    @tg.njit
    def in_place(state, rate, steps):
        state = state.copy()
        new = np.empty(state.size)
        new[:] = state
        for _ in range(steps):
            state = new
            for i in range(state.size - 2):
                new[1 + i] = state[1 + i] + rate * (state[i] ** 2 - state[1 + i] * state[2 + i])
        return np.sum(state**2)

    def slow(state, rate, steps, is_in_place):
        state = tg.as_tensor(state)
        for _ in range(steps):
            parts = [state[k] for k in range(state.size)]
            for i in range(state.size - 2):
                left = parts[i] if is_in_place else state[i]
                middle, right = state[1 + i], state[2 + i]
                parts[1 + i] = middle + rate * (left**2 - middle * right)
            state = tg.stack(parts)
        return tg.sum(state**2)

    x = np.random.default_rng(0).normal(size=21)
    for compiled, is_in_place in ((diffuse, False), (in_place, True)):
        found = tg.grad(compiled, (0, 1))(x, 0.1, 4)
        expected = tg.grad(lambda x, r, w=is_in_place: slow(x, r, 4, w), (0, 1))(x, 0.1)
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-10)


@tg.njit
def stores(x, w):
    """Elements of new arrays are written and read again in one iteration."""
    a, b = np.zeros(x.size), np.zeros(x.size)
    state = w
    for i in range(x.size):
        a[i] = state * x[i]
        state += a[i] * 0.5
        b[i] = state * a[i] * a[i]
        state -= np.sin(b[i]) * b[i] * a[i]
    return state


@pytest.mark.parametrize("size", [1, 9, 40])
def test_elements_that_the_loop_writes_are_kept_one_by_one(size):
    check_grads(stores, [np.linspace(0.05, 0.3, size), 0.7], order=1)
