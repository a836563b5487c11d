"""Loops and branches by functions: as Python, recorded, and compiled."""

import collections

import numpy as np
import pytest
from interpreted import assert_equal, interpret

import tapegrad as tg
from tapegrad.pytrees import tree

V = np.array([0.3, -0.2, 0.7])
A = np.sin(np.arange(18.0)).reshape(6, 3)


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("compiled") is None:
        interpret(monkeypatch)


def scanned(x, rows):
    def step(state, row):
        new = state + 0.1 * tg.sin(state * row)
        return new, (tg.sum(new), row * 2.0)

    state, (sums, doubled) = tg.scan(step, x, rows)
    return tg.sum(state) + sums[2] * tg.sum(doubled)


def scanned_pytrees(x, rows):
    def step(state, row):
        momentum = 0.9 * state["v"] + row["g"]
        return {"x": state["x"] - momentum * row["rate"], "v": momentum}, None

    rates = tg.linspace(0.1, 0.2, len(rows))
    state, _ = tg.scan(step, {"x": x, "v": tg.zeros_like(x)}, {"g": rows, "rate": rates})
    return tg.sum(state["x"] ** 2)


def counted(x, rows):
    return tg.fori_loop(0, len(rows), lambda i, total: total + tg.sum(rows[i] * x) * i, 0)


def swapped(x, rows):
    one, other = tg.fori_loop(0, 5, lambda i, s: (s[1], s[0]), (x, rows[0]))
    return tg.sum(one * np.arange(3.0)) + tg.sum(other)


def until(x, rows):
    def step(state):
        count, total = state
        return count + 1, total * 1.5 + x[0]

    count, total = tg.while_loop(lambda s: s[1] < 50.0, step, (0, 1.0))
    return total * count + tg.sum(rows) + tg.sum(x)


def never(x, rows):
    return tg.sum(tg.while_loop(lambda s: tg.sum(s) > 1e9, lambda s: s * 2.0, x * rows[1]))


def chosen(x, rows):
    one = tg.cond(tg.sum(x) > 0.5, lambda y: tg.exp(y), lambda y: y - rows[0], x * 2.0)
    other = tg.cond(x[0] > x[1], lambda: (x[0], rows[1]), lambda: (x[1], rows[2]))
    return tg.sum(one) * other[0] + tg.sum(other[1])


def nested(x, rows):
    def step(state, row):
        def inner(j, total):
            return tg.cond(row[j] > 0.0, lambda t: t + tg.tanh(row[j] * state), lambda t: t, total)

        new = tg.fori_loop(0, 3, inner, state * 0.0)
        return tg.where(new > 0.0, new, state), tg.max(new)

    state, most = tg.scan(step, x, rows)
    return tg.sum(state) * most[0] + tg.sum(most)


def written(x, rows):
    def step(i, u):
        v = u.clone()
        v[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        v[0] = rows[0, 0]
        return v

    return tg.sum(tg.fori_loop(0, 4, step, tg.concatenate([x, x])) ** 2)


def with_few_states(x, rows):
    def step(state, row):
        return state + 0.1 * tg.sin(state) * row, None

    state, nothing = tg.scan(step, x, rows, memory=2)
    assert nothing is None
    return tg.sum(state)


FUNCTIONS = [
    scanned, scanned_pytrees, counted, swapped, until, never, chosen, nested, written,
    with_few_states,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_recorded(function):
    f = tg.jit(function)
    assert not f.inspect(V, A).startswith("op by op"), f.inspect(V, A)
    for x in (V, -V):
        assert_equal(f(x, A), function(tg.tensor(x), tg.tensor(A)))


@pytest.mark.compiled
@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives(function):
    expected = tg.grad(function, (0, 1))(V, A)
    assert_equal(tg.grad(tg.jit(function), (0, 1))(V, A), expected)
    x = tg.tensor(V, requires_grad=True)
    tg.jit(function)(x, A).backward()
    assert_equal(x.grad, expected[0])


@pytest.mark.compiled
def test_the_largest_element_of_what_a_step_makes_is_found_again():
    def f(x, rows):
        def step(state, row):
            quantiles = tg.quantile(tg.reshape(rows, (3, 2, 3)), 0.1, axis=-1)
            return 0.6 * state + row * tg.logsumexp(quantiles, axis=(0, 1)), None

        return tg.sum(tg.scan(step, x, rows)[0])

    assert_equal(tg.grad(tg.jit(f), (0, 1))(V, A), tg.grad(f, (0, 1))(V, A))


def test_functions_agree_with_python_loops():
    total = tg.grad(lambda x: sum(tg.sum(A[i] * x) * i for i in range(6)))(V)
    assert_equal(tg.grad(counted)(V, A), total)


def test_numbers_take_the_dtype_of_the_state():
    f = tg.jit(lambda x: tg.fori_loop(0, 3, lambda i, s: s + x[i], 0))
    assert_equal(f(V), np.sum(V))
    assert type(f(V)) is np.float64


def test_bounds_that_depend_on_arguments():
    f = tg.jit(lambda x, n: tg.fori_loop(n - 2, n, lambda i, s: s + x[i] * i, 0.0))
    for n in (2, 3, 1):
        assert_equal(f(V, n), sum(V[i] * i for i in range(n - 2, n)))
    with pytest.raises(IndexError, match="out of bounds"):
        f(V, 4)


@pytest.mark.compiled
@pytest.mark.parametrize("k", [0, -1])
def test_switch_of_one_function(k):
    assert_equal(tg.jit(lambda k, x: tg.switch(k, [tg.sin], x))(k, V), np.sin(V))


@pytest.mark.parametrize("k", [0, 1, 2, -1])
def test_switch(k):
    def f(k, x):
        return tg.switch(k, [tg.sin, lambda y: y[::-1] * V, lambda y: tg.ones(3)], x)

    assert_equal(tg.jit(f)(k, V), f(k, tg.tensor(V)))
    for g in (f, tg.jit(f)):
        with pytest.raises(IndexError):
            g(3, V)


def test_no_steps():
    state, outputs = tg.scan(lambda s, row: (s * 2.0, s), tg.tensor(V), np.ones((0, 2)))
    assert_equal(state, V)
    assert outputs is None
    assert_equal(tg.jit(lambda x: tg.scan(lambda s, r: (s * 2.0, s), x, length=0)[0])(V), V)


def test_a_thousand_iterations_of_python_name_scan():
    def f(x):
        for _ in range(1200):
            x = x + 0.001 * tg.sin(x)
        return tg.sum(x)

    with pytest.warns(UserWarning, match=r"1\d\d\d equal iterations .* tapegrad\.scan"):
        tg.jit(f)(V)


def result_is_operand(x, rows):
    z = x * 1.0
    chosen = tg.cond(x[0] > 0.0, lambda: z, lambda: z * 2.0)
    chosen[0] = 5.0
    return z


def operand_is_result(x, rows):
    z = x * 1.0
    chosen = tg.cond(x[0] > 0.0, lambda: z, lambda: z * 2.0)
    z[0] = 5.0
    return chosen


def view_of_the_state(x, rows):
    z = x * 1.0
    state, _ = tg.scan(lambda s, row: (s[::-1], None), z, length=3)
    state[0] = 5.0
    return z, state


def without_a_step(x, rows):
    z = x * 1.0
    state = tg.while_loop(lambda s: tg.sum(s) > 100.0, lambda s: s * 2.0, z)
    state[0] = 5.0
    return z


def argument(x, rows):
    chosen = tg.cond(x[0] > 0.0, lambda: x, lambda: x * 2.0)
    chosen[0] = 1.0
    return chosen


def rows_that_are_written_to(x, rows):
    def step(state, row):
        inner = tg.cond(state[0] > 0.0, lambda: row, lambda: row * 2.0)
        inner.zero_()
        return tg.tanh(state), None

    return tg.scan(step, x, rows)[0]


def keys_in_another_order(x, rows):
    state = {"a": x, "b": x + 1.0}
    state = tg.fori_loop(0, 3, lambda i, s: {"b": s["b"] * 2.0, "a": s["a"]}, state)
    either = tg.cond(x[0] > 0.0, lambda: {"b": x, "a": x * 2.0}, lambda: {"a": x * 3.0, "b": x})
    return state["a"] * either["b"], state["b"] + either["a"]


def without_lines(x, rows):
    state = tg.fori_loop(0, 2, lambda i, s: s, x)
    return tg.scan(lambda s, row: (s, None), state, rows)[0] * 2.0


@pytest.mark.parametrize("function", [
    result_is_operand, operand_is_result, view_of_the_state, without_a_step, argument,
    rows_that_are_written_to, keys_in_another_order, without_lines,
])  # fmt: skip
def test_memory_is_shared_as_in_python(function):
    f = tg.jit(function)
    for x in (V, -V):
        given = [x.copy(), A.copy()], [x.copy(), A.copy()]
        assert_equal(f(*given[0]), function(*map(tg.as_tensor, given[1])))
        assert_equal(*given)


@pytest.mark.compiled
def test_results_are_new_arrays():
    ones = tg.jit(lambda x: tg.cond(x[0] > 0.0, lambda: tg.ones(3), lambda: x * 2.0))
    ones(V)[:] = 9.0
    assert_equal(ones(V), np.ones(3))
    for f in (
        tg.jit(lambda x, n: tg.fori_loop(0, n, lambda i, s: s * 2.0, x)),
        tg.jit(lambda x, n: tg.cond(n > 0, lambda: x * 2.0, lambda: x)),
    ):
        x = V.copy()
        f(x, 0)[:] = 9.0
        assert_equal(x, V)


@pytest.mark.compiled
def test_loops_of_tensors_are_compiled():
    f = tg.jit(lambda x: tg.fori_loop(0, 3, lambda i, s: s * 2.0 + 1.0, x))
    assert not f.inspect(tg.tensor(V)).startswith("op by op")


def test_tests_that_are_numbers():
    def f(x):
        state = tg.while_loop(lambda s: s[0], lambda s: (s[0] - 1, s[1] * 2.0), (3, x))
        return tg.while_loop(lambda s: s[:1] < 5.0, lambda s: s * 2.0, state[1])

    assert_equal(tg.jit(f)(V), f(tg.tensor(V)))


def test_loops_inside_of_vmap():
    def f(x):
        return tg.vmap(lambda row: tg.fori_loop(0, 2, lambda i, s: s * row, row))(x)

    assert_equal(tg.jit(f)(A), A**3)


Point = collections.namedtuple("Point", "x y")
CONTAINERS = {
    "no outputs": lambda x: tg.scan(lambda s, r: (s * 2.0, ()), x, length=2),
    "None among outputs": lambda x: tg.scan(lambda s, r: (s, {"a": s, "b": None}), x, length=2),
    "a list for a tuple": lambda x: tg.scan(lambda s, r: ([s[1], s[0]], (r, r)), (x, 2.0 * x), A),
    "a tuple for a named one": lambda x: tg.while_loop(
        lambda s: s[0].sum() < 9.0, lambda s: (2.0 * s[0] + 1.0, s[1]), Point(x, x)
    ),
    "a dict for an ordered one": lambda x: tg.fori_loop(
        0, 3, lambda i, s: {"a": s["b"], "b": s["a"]}, collections.OrderedDict(b=x, a=x * 2.0)
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_states_and_outputs_keep_their_containers(name):
    f = CONTAINERS[name]
    found, expected = tg.jit(f)(V), f(tg.tensor(V))
    assert repr(found) == repr(f(V))
    leaves, build = tree(expected, "")
    assert repr(found) == repr(build([np.asarray(leaf) for leaf in leaves]))


class TestRefused:
    """The same errors as Python and recorded."""

    @pytest.fixture(params=["python", "recorded"])
    def ways(self, request):
        return (lambda f: f) if request.param == "python" else tg.jit

    def test_other_shapes(self, ways):
        f = ways(lambda x: tg.fori_loop(0, 3, lambda i, s: tg.concatenate([s, s]), x))
        with pytest.raises(
            TypeError, match=r"fori_loop: the step changes part 0 .* \(3,\) .* \(6,\)"
        ):
            f(tg.tensor(V))

    def test_other_dtypes(self, ways):
        f = ways(lambda x: tg.scan(lambda s, r: (s * r, None), tg.arange(3), x)[0] * x)
        with pytest.raises(TypeError, match=r"scan: the step changes part 0 .* int64.* float64"):
            f(tg.tensor(V))

    def test_narrower_dtypes(self, ways):
        f = ways(lambda x: tg.fori_loop(0, 3, lambda i, s: tg.where(s > 0.2, 1, 0), 0.5) * x)
        with pytest.raises(TypeError, match="fori_loop: the step changes part 0"):
            f(tg.tensor(V))

    def test_tests_that_are_arrays(self, ways):
        f = ways(lambda x: tg.while_loop(lambda s: s < 5.0, lambda s: s * 2.0, x))
        with pytest.raises(TypeError, match="the test is one truth value"):
            f(tg.tensor(V))

    def test_a_tensor_of_a_step_outside_of_it(self):
        kept = []

        def f(x):
            tg.fori_loop(0, 2, lambda i, s: kept.append(s) or s * 2.0, x)
            return sum(kept)

        with pytest.raises(tg.RecordingError, match=r"of the step of a loop.* outside of it"):
            tg.jit(f)(V)

    def test_an_error_that_is_handled(self):
        def f(x):
            try:
                return x * float(x[0])
            except RuntimeError:
                return x

        with pytest.raises(tg.RecordingError):
            tg.jit(f)(V)

    def test_other_structures(self, ways):
        f = ways(lambda x: tg.while_loop(lambda s: tg.sum(s[0]) < 9.0, lambda s: s[0], (x, x)))
        with pytest.raises(TypeError, match="while_loop: the step returns a state of another stru"):
            f(tg.tensor(V))

    def test_outputs_of_other_structures(self):
        steps = iter("abc")
        with pytest.raises(TypeError, match="scan: the step returns outputs of different struct"):
            tg.scan(lambda s, r: (s, {next(steps): s}), V, length=3)

    def test_no_pair(self, ways):
        with pytest.raises(TypeError, match="scan: the step returns the next state and an output"):
            ways(lambda x: tg.scan(lambda s, r: s, x, A))(tg.tensor(V))

    def test_lengths(self, ways):
        with pytest.raises(ValueError, match=r"scan: xs and length .* got \[2, 6\]"):
            ways(lambda x: tg.scan(lambda s, r: (s, None), x, A, 2))(tg.tensor(V))
        with pytest.raises(ValueError, match="give xs or length"):
            ways(lambda x: tg.scan(lambda s, r: (s, None), x))(tg.tensor(V))

    def test_outputs_with_memory(self, ways):
        f = ways(lambda x: tg.scan(lambda s, r: (s, s), x, A, memory=2)[0])
        with pytest.raises(ValueError, match="with memory, the step returns None"):
            f(tg.tensor(V, requires_grad=True))

    def test_branches_that_differ(self):
        f = tg.jit(lambda x: tg.cond(x[0] > 0.0, lambda: x, lambda: x[:2]))
        with pytest.raises(TypeError, match="cond: function 1 returns a result of another struct"):
            f(V)

    def test_a_step_with_an_effect_runs_as_python(self):
        kept = tg.zeros(3)

        def step(i, s):
            kept[i] = s
            return s * 2.0

        f = tg.jit(lambda x: tg.fori_loop(0, 3, step, x))
        for x in (1.0, 3.0):
            f(x)
            assert_equal(kept, x * np.array([1.0, 2.0, 4.0]))

    def test_an_if_in_a_step(self):
        f = tg.jit(lambda x: tg.fori_loop(0, 3, lambda i, s: s if s[0] > 0 else -s, x))
        with pytest.raises(tg.RecordingError, match=r"tapegrad\.cond"):
            f(V)
