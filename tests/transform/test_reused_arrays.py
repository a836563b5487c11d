"""Arrays that loops reuse: the same results as with a new array in each iteration."""

import ast
import collections
import re
import resource
import textwrap

import numba
import numpy as np
import pytest
from optimized import after_pass, facts_of, with_body

import tapegrad as tg
from tapegrad.testing import check_grads
from tapegrad.transform import runtime
from tapegrad.transform.frontend.liveness import live
from tapegrad.transform.optimize.reuse import reuse_arrays
from tests.transform.random_programs.interpret import Interpreter, types_only

X = np.array([0.7, 1.2, 0.9, 1.4])
Pair = collections.namedtuple("Pair", "first second")

# programs, with the names of arrays that loops must reuse after one iteration or after two, or that
# they must not reuse
REUSED, CARRIED, KEPT = [], [], []


def program(entries, *names):
    def enter(function):
        entries.append(pytest.param(function, names, id=function.__name__))
        return function

    return enter


# -- loops that reuse arrays ----------------------------------------------------------------------


@program(REUSED, "k", "w", "k_bar", "w_bar")
def steps(x):
    y = x.copy()
    for _ in range(3):
        k = np.empty(y.size)
        k[0] = -y[0]
        k[1:] = y[:-1] * y[1:]
        w = np.sin(y) + 0.5 * k
        for i in range(y.size):
            y[i] += 0.1 * w[i] * k[i]
    return np.sum(y * y)


@program(REUSED, "w", "w_bar")
def sizes_that_change(x):
    total = 0.0
    for n in range(x.size):
        w = np.zeros(n)
        for i in range(n):
            w[i] += x[i] * x[n]
        total += np.sum(w * w)
    return total


@program(REUSED, "w", "w_bar")
def matrices(x):
    total = 0.0
    for k in range(3):
        w = np.zeros((x.size, 2))
        for i in range(x.size):
            w[i, k % 2] += x[i] ** (k + 1)
        total += np.sum(np.sin(w))
    return total


@program(REUSED, "w", "w_bar")
def views_within_the_iteration(x):
    total = 0.0
    for k in range(3):
        w = np.zeros(x.size)
        first, last = w[:2], w[2:]
        first += x[2:] * k
        last += x[:2] * x[:2]
        total += np.sum(w * w * w)
    return total


@program(REUSED, "w", "t")
def copies(x):
    total = 0.0
    for k in range(3):
        w = x.copy()
        w[0] = w[1] * k
        m = np.zeros((2, x.size))
        m[1] = w
        t = np.copy(m)
        t[0] += t[1] * x
        total += np.sum(w * m[1] * t[0])
    return total


@program(REUSED, "t")
def products(x):
    m = np.outer(x, x) + np.eye(x.size)
    total = 0.0
    for k in range(3):
        t = m @ x
        u = x[: k + 1] @ m[: k + 1]
        v = m.T @ (m @ m.T)
        total += np.sum(t * u) + v[0, 1] * (t @ u)
    return total


@program(CARRIED, "y")
def powers_of_a_matrix(x):
    m = 0.5 * np.outer(x, x) - np.eye(x.size)
    y = x
    for _ in range(4):
        y = m @ y
    return y @ x


@program(REUSED, "w")
def left_early(x):
    total = 0.0
    for k in range(5):
        w = np.zeros(x.size)
        w += x * k
        if np.sum(w) > 9.0:
            break
        total += w[0] * w[1]
    return total


@numba.njit
def filled(w, x, factor):
    for i in range(w.size):
        w[i] = np.sin(factor * x[i])


@program(REUSED, "w", "w_bar")
def helper_that_fills(x):
    total = 0.0
    for k in range(3):
        w = np.empty(x.size)
        filled(w, x, k + 1.0)
        total += w[0] * w[1] * w[2]
    return total


# -- loops that reuse them after two iterations, and loops that do not ----------------------------


@program(CARRIED, "w", "y", "y_bar")
def states(x):
    y = x.copy()
    for k in range(4):
        w = y * np.sin(y)
        y = y + 0.1 * w * x[k % 2] + 0.1 * np.sum(y)
        w += y
    return np.sum(y * y)


@program(CARRIED, "w")
def states_of_an_inner_loop(x):
    total = 0.0
    for k in range(3):
        w = x * k
        for _ in range(3):
            w = w * w + x
        total += np.sum(w) * k
    return total


@program(KEPT, "w")
def used_two_iterations_later(x):
    before, last, total = x, x, 0.0
    for k in range(5):
        w = x * (k + 1)
        total += np.sum(w * before * last)
        before = last
        last = w
    return total


@program(KEPT, "w")
def used_after_an_inner_loop(x):
    total, held = 0.0, x
    for k in range(3):
        w = x
        total += np.sum(held * x)
        for _ in range(3):
            w = w * w * 0.1 + x * k
        held = w
    return total * np.sum(held)


@program(KEPT, "w")
def not_in_every_iteration(x):
    held, total = x, 0.0
    for k in range(6):
        total += np.sum(held * x)
        if k % 2:
            w = np.sin(x * k)
            total += np.sum(w * held)
            held = w
    return total


@program(KEPT, "w")
def left_with_a_state(x):
    held, total = x, 0.0
    for k in range(6):
        w = np.sin(held * x * k)
        total += np.sum(w * held)
        if total > 4.0:
            break
        held = w
    return total + np.sum(held)


@program(CARRIED, "w")
def used_in_the_next_iteration(x):
    before, total = x, 0.0
    for k in range(4):
        w = np.zeros(x.size)
        for i in range(x.size):
            w[i] = x[i] * (k + 1) + np.sin(before[i])
        total += np.sum(w * before)
        before = w
    return total


@program(CARRIED, "w")
def used_after_the_loop(x):
    w = x
    for k in range(4):
        w = np.zeros(x.size)
        for i in range(x.size):
            w[i] = x[i] ** (k + 1)
    return np.sum(w * w)


@program(CARRIED, "w")
def view_used_in_the_next_iteration(x):
    tail, total = x[1:], 0.0
    for k in range(4):
        w = np.zeros(x.size)
        w += x * (k + 1)
        total += np.sum(tail * w[1:])
        tail = w[:-1]
    return total


@program(KEPT, "w")
def one_of_two(x):
    held, total = x, 0.0
    for k in range(5):
        w = np.zeros(x.size)
        w += x * (k + 1)
        total += np.sum(held * w)
        if k % 2 == 1:
            held = w
    return total


@program(KEPT, "w")
def in_a_tuple(x):
    both, total = (x, x), 0.0
    for k in range(4):
        w = np.zeros(x.size)
        w += x * (k + 1)
        total += np.sum(both[0] * both[1] * w)
        both = (both[1], w)
    return total


@program(KEPT, "w")
def in_a_named_tuple(x):
    both, total = Pair(x, x), 0.0
    for k in range(4):
        w = np.zeros(x.size)
        w += x * (k + 1)
        total += np.sum(both.first * both.second * w)
        both = Pair(w, both.first)
    return total


@numba.njit
def the_same(w, k):
    return w if k > 1 else w[:3]


@program(CARRIED, "w")
def returned_by_a_helper(x):
    held, total = x[:3], 0.0
    for k in range(4):
        w = np.zeros(x.size)
        w += x * (k + 1)
        total += held[0] * w[1]
        held = the_same(w, k)
    return total * np.sum(held)


class Serial(Interpreter):
    """Runs generated functions as they are verified."""

    def entry(self, dispatcher, kinds):
        return dispatcher.implementation(kinds)


def reused_names(source, after=1):
    made = re.findall(r"(.*)\n +(\w+) = runtime\.scratch\(", source)
    return {name for line, name in made if after == 2 or "swap_scratch" not in line}


def without_numbers(names):
    """Generated names end with numbers where a name has several values."""
    return {re.sub(r"_\d+", "", name) for name in names}


def assert_equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-13)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-13)


@pytest.mark.parametrize(("function", "names"), [*REUSED, *CARRIED, *KEPT])
def test_results(function, names):
    gradient = tg.value_and_grad(tg.njit(function))
    tangent = tg.jvp(tg.njit(function))
    with types_only():
        expected = Serial().derivative(gradient)(X.copy())
        assert_equal(Interpreter().derivative(gradient)(X.copy()), expected)
        expected = Serial().derivative(tangent)(X.copy(), np.cos(X))
        assert_equal(Interpreter().derivative(tangent)(X.copy(), np.cos(X)), expected)


@pytest.mark.parametrize(("function", "names"), [*REUSED, *CARRIED, *KEPT])
def test_compiled(function, names):
    gradient = tg.value_and_grad(tg.njit(function))
    kinds = (numba.typeof(X),)
    expected = gradient.implementation(kinds)(X)
    assert_equal(gradient.fastest_implementation(kinds)(X), expected)
    np.testing.assert_allclose(expected[0], function(X), rtol=1e-13)


@pytest.mark.parametrize(("function", "names"), REUSED)
def test_reused(function, names):
    source = tg.value_and_grad(tg.njit(function)).source((numba.typeof(X),))
    assert set(names) <= without_numbers(reused_names(source))


@pytest.mark.parametrize(("function", "names"), CARRIED)
def test_reused_after_two_iterations(function, names):
    source = tg.value_and_grad(tg.njit(function)).source((numba.typeof(X),))
    assert set(names) <= without_numbers(reused_names(source, after=2))


@pytest.mark.parametrize(("function", "names"), KEPT)
def test_not_reused(function, names):
    source = tg.value_and_grad(tg.njit(function)).source((numba.typeof(X),))
    assert without_numbers(reused_names(source, after=2)).isdisjoint(names)


def test_second_derivatives():
    product = tg.hvp(tg.njit(steps)).tangent_of_gradient
    kinds = (numba.typeof(X),) * 2
    expected = product.implementation(kinds)(X, np.cos(X))
    found = product.fastest_implementation(kinds)(X, np.cos(X))
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert reused_names(product.source(kinds))


def test_parallel_loops_share_no_array():
    def rows(x):
        total = 0.0
        for i in numba.prange(x.size):
            w = np.zeros(3)
            for k in range(3):
                w[k] = x[i] ** (k + 1)
            total += np.sum(w * w)
        return total

    x = np.linspace(0.5, 1.5, 200)
    parallel = tg.value_and_grad(tg.njit(parallel=True)(rows))
    found = parallel.fastest_implementation((numba.typeof(x),))(x)
    expected = tg.value_and_grad(tg.njit(rows)).implementation((numba.typeof(x),))(x)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


# -- the analysis ---------------------------------------------------------------------------------

VECTOR = numba.typeof(X)
FACTS = facts_of(
    {
        **dict.fromkeys("uvwxz", VECTOR),
        "m": numba.float64[:, ::1],
        **dict.fromkeys("ikn", numba.int64),
        "t": numba.float64,
    },
)


def reused_in(text, **others):
    """What a function of the text reuses, beside other functions of its module."""
    code = with_body("f(x, n, t, tape, top)", text)
    found, _ = after_pass(reuse_arrays, code, FACTS, others.values())
    return reused_names(found)


def loop_with(lines, after=""):
    body = textwrap.indent(textwrap.dedent(lines), "    ")
    return f"v = x\nfor k in range(n):\n    w = np.zeros(n)\n{body}\n{after}"


@pytest.mark.parametrize(
    "lines",
    [
        "t = w[k]",
        "x[k] += w[k]",
        "x[:] = w",
        "t = np.sum(np.sin(w) + w)",
        "v = w.copy()",
        "v = np.copy(w[1:])",
        "v = w + w",
        "n = w.size",
        "v = w[1:].copy()",
        "w.fill(t)",
        "t = np.dot(w, w)",
        "arrays.add_1_to_1(x, w)",
        "tape[top] = w[0]",
        "v = w\nt = v[0]\nv = x",
    ],
)
def test_uses_that_do_not_hold_an_array(lines):
    assert "w" in reused_in(loop_with(lines))


@pytest.mark.parametrize(
    "lines",
    [
        "v = w",
        "v = w[1:]",
        "v = w.T",
        "v = np.reshape(w, (n,))",
        "v = np.unheard_of(w)",
        "v = np.sin(x, w)",
        "v = np.dot(x, x, w)",
        "v = np.add(x, x, out=w)",
        "v = a.copy(w)",
        "a.sum(w)",
        "v = w if t > 0.0 else x",
        "if t > 0.0:\n    v = w",
        "v, t = w, 0.0",
        "a = (w, x)",
        "a = [w]",
        "a.append(w)",
        "a[k] = w",
        "a.w = w",
        "a += [w]",
        "a = a + (w,)",
        "a = unknown(w)",
        "a = unknown(k, w)",
        "tape, top = runtime.push_array(tape, top, w, kind)",
        "tape, top = runtime.push_tangent(tape, top, w[1:], kind)",
        "keep(a, w)",
        "for v in (w, w):\n    pass",
        "a = lambda: w",
        "a = [w for _ in range(2)]",
        "return w",
    ],
)
def test_uses_that_hold_an_array(lines):
    assert reused_in(f"a = x\n{loop_with(lines, 'return a, v')}") == set()


def test_what_functions_of_the_module_do():
    kept = (
        "def g(w, tape, top):\n    tape, top = runtime.push_array(tape, top, w, k)\n    return tape"
    )
    passed = "def g(x, w):\n    return x, w[1:]"
    read = "def g(x, w):\n    x[0] = w[0]\n    return x"
    assert reused_in(loop_with("tape = g(w, tape, top)"), g=kept) == set()
    assert reused_in(loop_with("x, v = g(x, w)", "return v"), g=passed) == set()
    assert reused_in(loop_with("v, t_bar = g(x, w)", "return v"), g=passed) == {"w"}
    assert reused_in(loop_with("v = g(x, w)", "return v"), g=read) == {"w"}
    assert reused_in(loop_with("v = g(w, x)", "return v"), g=read) == set()


def test_made_on_some_paths_only():
    text = """
        v = x
        for k in range(n):
            if k < 2:
                w = np.zeros(n)
            t += w[k]
    """
    assert reused_in(text) == set()


def test_live_after_a_loop_that_is_left():
    tree = ast.parse("while a:\n    if b:\n        break\n    c = d\ne = c")
    assert live(tree.body, set()) == {"a", "b", "c", "d"}
    loop = tree.body[0]
    at = {}
    live(tree.body, set(), None, at)
    assert at[id(loop)] == {"c"}
    assert live(loop.body, set()) == {"b", "d"}
    assert live(loop.body, set(), {"c"}) == {"b", "c", "d"}


@numba.njit
def filled_again(sizes):
    """The last elements of arrays of changing sizes in two places that change roles."""
    places = runtime.take_scratch(3)
    found = np.empty(sizes.size)
    before = runtime.scratch(places, 1, (1, 0))
    for k in range(sizes.size):
        runtime.swap_scratch(places, 1, 2)
        n = sizes[k]
        array = runtime.scratch(places, 1, (n, 2))
        runtime.clear(array)
        found[k] = np.sum(array) + (before[-1, -1] if before.size else 0.0)
        array[:] = 10.0 * n
        if n:
            array[-1, -1] = n
        before = array
        other = runtime.scratch(places, 0, (2 * n,))
        other[:] = np.nan
    runtime.give_scratch(places, 3)
    return found


def test_places():
    sizes = np.array([1, 3, 2, 0, 1000, 5, 2])
    np.testing.assert_array_equal(filled_again(sizes), [0, 1, 3, 2, 0, 1000, 5])


@numba.njit
def too_large(n):
    places = runtime.take_scratch(1)
    size = runtime.scratch(places, 0, (n,)).size
    runtime.give_scratch(places, 1)
    return size


def test_no_memory():
    for n in (1 << 57, 1 << 61):
        with pytest.raises(MemoryError, match="no memory for an array of a derivative"):
            too_large(n)
    with pytest.raises(ValueError, match="negative dimensions not allowed"):
        too_large(-1)
    assert too_large(5) == 5


def test_results_are_computed_before_places_are_given_back():
    text = """
        v = x
        for k in range(n):
            w = np.zeros(n)
            t += w[k]
            if t > 3.0:
                return t + np.sum(w)
        return t
    """
    found, changed = after_pass(reuse_arrays, with_body("f(x, n, t, tape, top)", text), FACTS)
    assert changed
    lines = [line.strip() for line in found.splitlines()]
    first = lines.index("results = t + np.sum(w)")
    assert lines[first + 1 : first + 3] == ["runtime.give_scratch(places, 1)", "return results"]
    assert lines[-2:] == ["runtime.give_scratch(places, 1)", "return t"]


def test_places_are_given_back_before_an_error():
    text = """
        for k in range(n):
            w = np.zeros(n)
            t += w[k]
            if t > 3.0:
                raise ValueError(n)
        return t
    """
    code = with_body("f(x, n, t, tape, top)", text)
    for raised, is_given_back in (("ValueError(n)", True), ("ValueError(w[0])", False)):
        found, changed = after_pass(reuse_arrays, code.replace("ValueError(n)", raised), FACTS)
        assert changed
        lines = [line.strip() for line in found.splitlines()]
        before = lines[lines.index(f"raise {raised}") - 1]
        assert (before == "runtime.give_scratch(places, 1)") == is_given_back


def test_memory_after_errors():
    @tg.njit
    def raising(x, n):
        total = 0.0
        for k in range(3):
            w = np.zeros(x.size)
            for i in range(x.size):
                w[i] = x[i] * k * x[i]
            total += np.sum(w * w)
            if k == n:
                raise ValueError("stop")
        return total

    gradient = tg.grad(raising)
    x = np.linspace(0.0, 1.0, 200_000)

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    for _ in range(3):
        with pytest.raises(ValueError, match="stop"):
            gradient(x, 1)
    before = peak()
    for _ in range(40):
        with pytest.raises(ValueError, match="stop"):
            gradient(x, 1)
    assert peak() - before < 20 * x.nbytes


# -- arrays that share a place ---------------------------------------------------------------------


def places_in(text):
    """The places of the arrays that a function of the text reuses, and the lines of its loops."""
    made, _ = after_pass(reuse_arrays, with_body("f(x, n, t, tape, top)", text), FACTS)
    found = re.findall(r"(\w+) = runtime\.scratch\(places, (\d+)", made)
    return {name: int(place) for name, place in found}, made


def test_arrays_that_are_not_needed_at_the_same_time_share_a_place():
    places, text = places_in(
        """
        for k in range(n):
            u = np.empty(n)
            v = np.empty(n)
            w = np.empty(n)
            for i in range(n):
                u[i] = x[i]
            for i in range(n):
                v[i] = u[i]
            for i in range(n):
                w[i] = v[i]
            t += w[0]
        for k in range(n):
            z = np.zeros(n)
            t += z[k]
        return t
        """
    )
    assert places == {"u": 0, "v": 1, "w": 0, "z": 0}
    assert "runtime.give_scratch(places, 2)" in text


@pytest.mark.parametrize(
    "lines",
    [
        "u = np.zeros(n)\nu[0] = t\nw = np.zeros(n)\nt += u[0]",  # what clears w
        "u = np.zeros(n)\nw = m @ u\nt += w[0]",
        "u = np.zeros(n)\nw = u.copy()\nt += w[0]",
        "u = np.zeros(n)\nv = u[1:]\nw = np.zeros(n)\nt += v[0] + w[0]",
        "u = np.zeros(n)\nfor i in range(n):\n    w = np.zeros(n)\n    t += u[i] + w[0]",
        "u = np.zeros(n)\nu[0] = t\nif t > 0.0:\n    w = np.zeros(n)\n    t += w[0]\nt += u[0]",
        "w = np.zeros(n)\nw[0] = t\nif t > 0.0:\n    u = np.zeros(n)\n    t += u[0]\nt += w[0]",
    ],
)
def test_arrays_that_are_needed_at_the_same_time_do_not(lines):
    body = textwrap.indent(lines, "    ")
    places, _ = places_in(f"for k in range(n):\n{body}\nreturn t")
    assert places["u"] != places["w"]


def test_what_an_iteration_carries_has_places_of_its_own():
    places, text = places_in(
        """
        v = x
        for k in range(n):
            u = np.zeros(n)
            t += u[k]
            t += v[k]
            w = np.zeros(n)
            w[k] = t
            v = w
            z = np.zeros(n)
            t += z[k]
        return t
        """
    )
    assert places == {"u": 0, "w": 1, "z": 0}
    assert "runtime.swap_scratch(places, 1, 2)" in text


@pytest.mark.parametrize("line", ["n = 3", "if t > 0.0: continue", "t = w[0]", "z = w"])
def test_an_array_is_made_before_its_first_use(line):
    _, text = places_in(
        f"""
        for k in range(n):
            w = np.zeros(n)
            t += 1.0
            {line}
            t += w[0]
        return t
        """
    )
    lines = [part.strip() for part in text.splitlines()]
    made = lines.index("w = runtime.scratch(places, 0, (n,))") if "scratch" in text else None
    assert made is None or lines[made - 1] == "t += 1.0"


# the states of a system of four stages, whose gradient has many arrays that live for short times
@tg.njit
def four_stages(x, steps):
    u = x.copy()
    n = u.size
    for _ in range(steps):
        a = np.empty(n)
        for i in range(n):
            a[i] = np.sin(u[i])
        b = np.empty(n)
        for i in range(1, n):
            b[i] = u[i] + 0.1 * a[i - 1]
        b[0] = a[0]
        c = np.empty(n)
        for i in range(n):
            c[i] = b[i] * a[i]
        w = np.empty(n)
        for i in range(n):
            w[i] = u[i] + 0.1 * c[i]
        u = w
    return np.sum(u * u)


@pytest.mark.compiled
def test_gradients_of_arrays_that_share_places():
    check_grads(lambda x: four_stages(x, 4), [X])
    kinds = numba.typeof(X), numba.int64
    _, faster = tg.grad(four_stages).source(kinds).split("# versions that run faster")
    arrays = set(re.findall(r"(\w+) = runtime\.scratch", faster))
    assert int(re.search(r"take_scratch\((\d+)\)", faster).group(1)) < len(arrays)
    assert "_size" not in faster  # the extent of the state is that of the argument
