"""What has no compiled form in a recorded function: Python is called between compiled regions."""

import copy
import math

import numpy as np
import pytest
from interpreted import assert_equal

import tapegrad as tg
from tapegrad.replay.compiled import Region
from tapegrad.transform.errors import TransformError

V = np.array([0.3, -0.2, 0.7])
A = np.sin(np.arange(12.0)).reshape(4, 3)


class Scaled(tg.Function):
    """``x**2 * factor``, and how often it was called."""

    calls = 0

    @staticmethod
    def forward(ctx, x, factor=1.0):
        Scaled.calls += 1
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2.0 * x * g * ctx.factor, None


class Halves(tg.Function):
    @staticmethod
    def forward(ctx, parts):
        x, name = parts
        assert name == "halves"
        return x[:1] * 1.0, {"rest": [x[1:] * 2.0]}["rest"][0], None

    @staticmethod
    def backward(ctx, *gs):
        return None


@tg.njit
def cubes(x, power):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] ** power
    return total


@tg.njit
def swapped(x):
    return x[::-1].copy(), x[0] * 2.0


def of_a_function(x, rows):
    y = tg.sin(rows @ x)
    return tg.sum(Scaled.apply(y, 3.0) * y) + tg.sum(tg.cos(x))


def of_functions(x, rows):
    y = Scaled.apply(tg.exp(x))
    z = Scaled.apply(y - x, 0.5)
    return tg.sum(rows @ z) + tg.sum(z * y)


def of_compiled_functions(x, rows):
    y, first = swapped(tg.tanh(x))
    return cubes(y * x, 3) * first + tg.sum(rows * y)


def of_an_op(x, rows):
    waves = tg.special.jv(1.5, x * x + 1.0)
    return tg.sum(waves**2) + tg.sum(tg.tanh(rows @ x) * rows[:, 0])


def of_several_results(x, rows):
    first, second = tg.split(tg.sin(rows) * x, 2)
    low, high = tg.linalg.eigh(rows.T @ rows + tg.eye(3))[0][:2]
    values = tg.linalg.svd(rows * tg.cos(x))[1]
    return tg.sum(first * second) + low * high + tg.sum(values)


def in_a_loop(x, rows):
    def step(state, row):
        state = state + 0.1 * tg.sin(state * row)
        return Scaled.apply(state, 0.5), tg.sum(state)

    state, sums = tg.scan(step, x, rows)
    return tg.sum(state * x) + tg.sum(sums**2)


def in_a_loop_with_few_states(x, rows):
    def step(state, row):
        return state + 0.1 * Scaled.apply(tg.sin(state * row * x)), None

    return tg.sum(tg.scan(step, x, rows, memory=2)[0])


def in_other_loops(x, rows):
    y = tg.while_loop(lambda s: tg.sum(s) < 20.0, lambda s: s + Scaled.apply(s) + 0.5, x)
    z = tg.fori_loop(0, 3, lambda i, s: s * 0.5 + cubes(rows[i], 2) * x, y)
    return tg.sum(z * tg.sin(x))


def in_a_branch(x, rows):
    y = tg.cond(tg.sum(x) > 0.5, lambda v: Scaled.apply(v), lambda v: v * rows[0], tg.exp(x))
    return tg.sum(tg.switch(0, [lambda: y * 2.0, lambda: Scaled.apply(y)])) + tg.sum(tg.sin(x))


def in_a_derivative(x, rows):
    def loss(y):
        return tg.sum(Scaled.apply(tg.sin(y) * x, 2.0)) + tg.sum(rows @ y)

    value, g = tg.value_and_grad(loss)(x)
    (_, slope), _ = tg.jvp(lambda y: (y, loss(y)))(x, rows[0])
    return value + tg.sum(g * x) + slope


FUNCTIONS = [
    of_a_function, of_functions, of_compiled_functions, of_an_op, of_several_results, in_a_loop,
    in_a_loop_with_few_states, in_other_loops, in_a_branch, in_a_derivative,
]  # fmt: skip


@pytest.mark.compiled
class TestCompiled:
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_values_and_gradients(self, function):
        f = tg.jit(function)
        for x in (V, -V):
            assert_equal(f(x, A), function(tg.tensor(x), tg.tensor(A)))
        shown = f.inspect(V, A)
        assert "# in Python: " in shown
        assert "def program" in shown
        expected = tg.grad(function, (0, 1))(V, A)
        assert_equal(tg.grad(f, (0, 1))(V, A), expected)
        assert f.inspect(V, A) == shown
        x = tg.tensor(V, requires_grad=True)
        f(x, A).backward()
        assert_equal(x.grad, expected[0])

    @pytest.mark.parametrize("function", [of_functions, of_compiled_functions, of_an_op])
    def test_second_order(self, function):
        expected = tg.hvp(function)(V, A, A[0])
        assert_equal(tg.hvp(tg.jit(function))(V, A, A[0]), expected)

    def test_under_no_grad(self):
        """Derivatives do not pass what is computed there."""

        def f(x):
            with tg.no_grad():
                y = Scaled.apply(tg.sin(x))
            return tg.sum(y * x) + tg.sum(tg.cos(x))

        assert_equal(tg.grad(tg.jit(f))(V), tg.grad(f)(V))


class TestCalls:
    def test_once_in_each_call(self):
        f = tg.jit(lambda x: tg.sum(Scaled.apply(tg.sin(x)) * 2.0))
        f(V)
        before = Scaled.calls
        for _ in range(3):
            f(V)
        assert Scaled.calls == before + 3

    def test_once_if_what_comes_after_it_is_not_compiled(self, monkeypatch):
        """It draws the numbers that it would op by op, in the first call too."""
        call = Region.__call__

        def refusing(region, args):
            if len(args) > 1:  # what reads the draw
                raise TransformError("for a test")
            return call(region, args)

        monkeypatch.setattr(Region, "__call__", refusing)
        generators = [tg.random.default_rng(3) for _ in range(2)]

        def f(x, g):
            y = tg.sin(x) * 2.0
            noise = g.normal(size=3)
            return tg.sum((y + noise) * noise)

        jitted = tg.jit(f)
        for _ in range(3):
            found, expected = (h(V, g) for h, g in zip((jitted, f), generators, strict=True))
            assert_equal(found, expected)
        assert "not compiled" in jitted.inspect(V, tg.random.default_rng(0))
        gradients = [tg.grad(h)(V, g) for h, g in zip((jitted, f), generators, strict=True)]
        assert_equal(*gradients)

    def test_even_if_the_result_is_not_used(self):
        def f(x):
            Scaled.apply(tg.sin(x))
            return tg.sum(tg.cos(x) * x)

        jitted = tg.jit(f)
        jitted(V)
        before = Scaled.calls
        assert_equal(jitted(V), f(tg.tensor(V)))
        assert Scaled.calls == before + 2

    def test_of_another_shape(self):
        class Positive(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return tg.tensor(x.numpy()[x.numpy() > 0.0])

        f = tg.jit(lambda x: tg.sum(Positive.apply(tg.sin(x)) * 2.0))
        f(V)
        with pytest.raises(RuntimeError, match=r"Positive returned float64\[3\]; when it was rec"):
            f(np.abs(V))

    def test_that_change_their_argument(self):
        class Cleared(tg.Function):
            @staticmethod
            def forward(ctx, x):
                x.zero_()
                ctx.mark_dirty(x)
                return x

        def f(x):
            y = tg.sin(x)
            z = Cleared.apply(y)
            return tg.sum(y) + tg.sum(z * x)

        assert "changes its arguments" in tg.jit(f).inspect(V)
        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))

    def test_writes_to_a_result_that_is_an_argument(self):
        class Same(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x

        def f(x):
            y = tg.sin(x)
            with tg.no_grad():
                z = Same.apply(y)
                z *= 2.0
            return tg.sum(y * x)

        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))

    def test_that_read_a_tensor_by_their_closure(self):
        def f(x):
            y = tg.sin(x)

            class Shifted(tg.Function):
                @staticmethod
                def forward(ctx, z):
                    return z + y.detach()

            return tg.sum(Shifted.apply(x * 2.0))

        assert "no argument" in tg.jit(f).inspect(V)
        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))

    def test_containers_and_none(self):
        def f(x):
            first, rest, nothing = Halves.apply([tg.sin(x), "halves"])
            assert nothing is None
            return tg.sum(first) + tg.sum(rest * tg.cos(x)[1:])

        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))

    def test_work_arrays(self):
        """A call has what an array contained when it was made."""

        class Shifted(tg.Function):
            @staticmethod
            def forward(ctx, x, array):
                return x + tg.tensor(array)

        def f(x):
            work, total = np.zeros(3), 0.0
            for k in range(3):
                work[:] = k
                total = total + tg.sum(Shifted.apply(tg.sin(x), work) ** 2)
            return total

        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))

    def test_errors_are_those_of_the_call(self):
        class Refused(tg.Function):
            @staticmethod
            def forward(ctx, x):
                raise ValueError("no such thing")

        with pytest.raises(ValueError, match="no such thing"):
            tg.jit(lambda x: Refused.apply(tg.sin(x)) * 2.0)(V)


class TestRandomNumbers:
    def sample(self, rng, x, scale):
        z = rng.normal(tg.sin(x), scale, size=(2, 3))
        return tg.sum(z * tg.exp(z)) + rng.integers(5) * x[0]

    @pytest.mark.compiled
    def test_the_same_as_op_by_op(self):
        rng = tg.random.default_rng(3)
        f = tg.jit(lambda x, scale: self.sample(rng, x, scale))
        state = rng.state
        found = [f(V, 0.5) for _ in range(3)]
        slopes = tg.grad(f, (0, 1))(V, 0.5)
        shown = f.inspect(V, 0.5)
        assert "in Python: random.normal" in shown
        assert "def program" in shown
        rng.state = state
        assert_equal(found, [self.sample(rng, tg.tensor(V), 0.5) for _ in range(3)])
        assert_equal(slopes, tg.grad(lambda x, s: self.sample(rng, x, s), (0, 1))(V, 0.5))

    def test_of_the_default_generator(self):
        f = tg.jit(lambda x: tg.sum(tg.sin(x) * tg.random.normal(size=3)))
        tg.random.seed(1)
        found = [f(V), f(V)]
        tg.random.seed(1)
        assert_equal(found, [np.sin(V) @ tg.random.normal(size=3).numpy() for _ in range(2)])
        assert found[0] != found[1]

    def test_of_a_generator_as_an_argument(self):
        f = tg.jit(lambda x, rng: tg.sum(tg.sin(x) * rng.random(3)))
        found = [f(V, rng) for rng in tg.random.default_rng(1).spawn(2)]
        children = tg.random.default_rng(1).spawn(2)
        assert_equal(found, [np.sin(V) @ rng.random(3).numpy() for rng in children])
        assert "in Python: random.random" in f.inspect(V, children[0])

    def test_of_a_generator_that_is_made_inside(self):
        f = tg.jit(lambda x: tg.sum(tg.sin(x) * tg.random.default_rng(0).normal(size=3)))
        assert f(V) == f(V)

    @pytest.mark.parametrize("use", [lambda rng: rng.spawn(1), lambda rng: rng.state])
    def test_what_changes_a_generator_otherwise(self, use):
        rng = tg.random.default_rng(1)

        def f(x):
            use(rng)
            return tg.sum(tg.sin(x) * rng.random(3))

        assert tg.jit(f).inspect(V).startswith("op by op")


@pytest.mark.compiled
class TestTensorsFromOutside:
    """Those that require grad are read in each call, and gradients flow to them."""

    def test_gradients(self):
        w, b = tg.tensor(V, requires_grad=True), tg.tensor(0.5, requires_grad=True)

        def f(rows):
            return tg.sum(tg.tanh(rows @ w + b))

        jitted = tg.jit(f)
        assert "def program" in jitted.inspect(A)
        for _ in range(2):
            w.grad = b.grad = None
            jitted(A).backward()
            found = w.grad, b.grad
            w.grad = b.grad = None
            f(A).backward()
            assert_equal(found, [w.grad, b.grad])
            with tg.no_grad():
                w -= 0.1 * w.grad  # seen by the next call
        assert jitted.cache_info().currsize == 1
        with tg.no_grad():
            assert_equal(jitted(A), f(A).detach().numpy()[()])

    def test_gradients_by_arguments(self):
        w = tg.tensor(V, requires_grad=True)

        def f(x):
            return tg.sum(tg.sin(x * w))

        g = tg.grad(tg.jit(f))(V)
        assert g.requires_grad
        g.sum().backward()
        found, w.grad = w.grad, None
        tg.grad(f)(V).sum().backward()
        assert_equal(found, w.grad)

    def test_results_of_ops(self):
        w = tg.tensor(V, requires_grad=True)
        y = w * 2.0
        tg.jit(lambda x: tg.sum(tg.sin(x * y)))(V).backward()
        assert_equal(w.grad, 2.0 * V * np.cos(2.0 * V * V))

    def test_what_is_computed_of_them_alone(self):
        """It is computed in each call."""
        w = tg.tensor(np.abs(V), requires_grad=True)

        def f(x):
            scale = tg.exp(w) + w[0] + np.sqrt(w) + w.T.detach() * 2.0
            return (
                tg.sum(tg.sin(x) * scale) + tg.sum(w**2) + tg.sum(tg.linalg.norm(w.reshape(3, 1)))
            )

        jitted = tg.jit(f)
        for _ in range(3):
            jitted(V).backward()
            found, w.grad = w.grad, None
            expected = f(V)
            expected.backward()
            assert_equal(found, w.grad)
            assert_equal(jitted(V), expected)
            with tg.no_grad():
                w.mul_(1.5)
            w.grad = None
        assert jitted.inspect(V).count("def program") == 1

    def test_in_a_loop(self):
        w = tg.tensor(V, requires_grad=True)

        def f(rows):
            state, _ = tg.scan(lambda s, row: (tg.tanh(s * w + row), None), tg.zeros(3), rows)
            return tg.sum(state)

        tg.jit(f)(A).backward()
        found, w.grad = w.grad, None
        f(A).backward()
        assert_equal(found, w.grad)

    def test_that_come_to_require_grad(self):
        w = tg.tensor(V)
        f = tg.jit(lambda x: tg.sum(x @ w))
        for _ in range(2):
            f(A)
        w.requires_grad_()
        for t in (A, tg.tensor(A, requires_grad=True)):
            w.grad = None
            f(t).backward()
            assert_equal(w.grad, A.sum(axis=0))
        assert f.cache_info().currsize == 2

    def test_of_another_shape(self):
        w = tg.tensor(V, requires_grad=True)
        f = tg.jit(lambda x: tg.sum(w * w) + x)
        f(1.0).backward()
        w.data = tg.tensor([1.0, 2.0])
        w.grad = None
        f(1.0).backward()
        assert_equal(w.grad, np.array([2.0, 4.0]))

    @pytest.mark.parametrize(
        "read",
        [
            lambda w: w.data[0],
            lambda w: w.tolist()[0],
            lambda w: copy.deepcopy(w)[0],
            lambda w: tg.tensor(w)[0],
            lambda w: w.item(0),
            lambda w: 0.0 if w.grad is None else w.grad[0],
        ],
    )
    @pytest.mark.filterwarnings("ignore::tapegrad.DetachedWarning")
    @pytest.mark.filterwarnings("ignore:To copy construct")
    def test_values_that_python_reads(self, read):
        w = tg.tensor(V, requires_grad=True)

        def f(x):
            return tg.sum(tg.sin(x)) * read(w) + tg.sum(w.detach())

        jitted = tg.jit(f)
        for _ in range(3):
            found, expected = jitted(A), f(tg.tensor(A))
            assert_equal(
                np.asarray(found.detach() if hasattr(found, "detach") else found),
                expected.detach().numpy(),
            )
            with tg.no_grad():
                w *= 2.0
            w.grad = tg.ones(3) if w.grad is None else w.grad * 2.0

    @pytest.mark.filterwarnings("ignore::tapegrad.DetachedWarning")
    def test_numbers_that_python_reads(self):
        w = tg.tensor(0.5, requires_grad=True)
        reads = [lambda: w.item(), lambda: float(w), lambda: math.sin(w), lambda: float(f"{w:.9f}")]
        for read in (*reads, lambda: int(w), lambda: 2.0 if w else 3.0):
            jitted = tg.jit(lambda x, read=read: tg.sum(tg.sin(x)) * read())
            for scale in (0.0, 1.5):
                w.data.fill_(scale)
                assert_equal(jitted(V), np.sum(np.sin(V)) * read())

    @pytest.mark.parametrize("read", [lambda w: w[0].item(), lambda w: w.detach().numpy()[0]])
    def test_values_of_what_is_computed_of_them(self, read):
        w = tg.tensor(V, requires_grad=True)
        with pytest.raises(tg.RecordingError, match="asks for the value"):
            tg.jit(lambda x: tg.sum(x) * read(w))(V)

    def test_as_a_result(self):
        w = tg.tensor(V, requires_grad=True)
        assert "a result is a tensor from outside" in tg.jit(lambda x: (w, x * 2.0)).inspect(V)
        assert tg.jit(lambda x: (w, x * 2.0))(V)[0] is w


def test_results_have_other_memory_than_arguments():
    def f(x):
        return x * 1.0, Scaled.apply(tg.sin(x)) + tg.cos(x), x

    x = V.copy()
    jitted = tg.jit(f)
    assert "in Python" in jitted.inspect(x)
    assert not any(np.shares_memory(value, x) for value in jitted(x))
    assert_equal(jitted(x), f(tg.tensor(x)))
    t = tg.tensor(V, requires_grad=True)
    sum(map(tg.sum, jitted(t))).backward()
    assert_equal(t.grad, 2.0 + 2.0 * np.sin(V) * np.cos(V) - np.sin(V))
