"""How values are divided among loops and functions: what one loop computes, and what is split."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret
from numba.core.errors import NumbaError

import tapegrad as tg
from tapegrad.replay.compiled import Region

RNG = np.random.default_rng(0)
FACTORS = [
    ((3,), (3,)),
    ((5, 2), (2,)),
    ((2,), (2, 7)),
    ((5, 3), (3, 4)),
    ((6, 5, 2), (2, 3)),
    ((6, 5, 2), (6, 2, 3)),
    ((1, 5, 2), (6, 2, 3)),
    ((4,), (6, 4, 3)),
    ((6, 5, 4), (4,)),
    ((2, 6, 5, 1), (6, 1, 3)),
]


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("compiled") is None:
        interpret(monkeypatch)


def recorded(function, *args):
    """What was recorded for some arguments: it is compiled."""
    jitted = tg.jit(function)
    found = jitted._recorded(jitted._arguments(args, {}))
    assert found.plan is not None, found.reason
    return found


def text_of(function, *args):
    return recorded(function, *args).text()


def test_numbers_that_are_computed_do_not_divide_loops():
    def price(x, rate):
        discount = tg.exp(-rate)
        return tg.sum(tg.sqrt(x) - discount * tg.exp(x))

    assert "1 loop nests" in text_of(price, np.ones(20), 0.1)
    assert_equal(tg.jit(price)(np.arange(3.0), 0.1), price(tg.tensor(np.arange(3.0)), 0.1).item())


def test_numbers_between_functions_of_arrays():
    def f(x):
        top = tg.max(x) * 2.0
        ordered = tg.sort(x * top)
        low = ordered[0] - top
        return tg.sum(ordered * low) + tg.max(ordered + low)

    x = RNG.normal(size=6)
    assert_equal(tg.jit(f)(x), f(tg.tensor(x)).item())


@pytest.mark.parametrize("shapes", FACTORS)
def test_products_of_few_terms_are_computed_by_loops(shapes):
    def product(x, y):
        return x @ y

    x, y = (RNG.normal(size=shape) for shape in shapes)
    found = text_of(product, x, y)
    assert "dot" not in found
    assert "stacked_product" not in found
    assert_equal(tg.jit(product)(x, y), x @ y)


@pytest.mark.compiled
@pytest.mark.parametrize("shapes", FACTORS)
def test_gradients_of_products_of_few_terms(shapes):
    def loss(x, y):
        return tg.sum(tg.sin(x @ y) * 1.5)

    x, y = (RNG.normal(size=shape) for shape in shapes)
    found = tg.grad(tg.jit(loss), (0, 1))(x, y)
    for own, other in zip(found, tg.grad(loss, (0, 1))(x, y), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("shapes", "call"), [(((6, 5, 8), (6, 8, 3)), "stacked_product(")])
def test_products_of_many_terms_are_calls(shapes, call):
    x, y = (RNG.normal(size=shape) for shape in shapes)
    assert call in text_of(lambda x, y: x @ y, x, y)


def test_many_products_are_not_spelt_out():
    def powers(x):
        for k in range(30):  # steps of which none is like the next ones
            x = tg.tanh(x @ x) + float(k) * 0.1 * x[:: -1 if k % 7 in (1, 2, 5) else 1, : 3 + k]
        return x

    assert "np.dot" in text_of(powers, np.eye(3))


STACKS = {
    "as they are": lambda x, y: x @ y,
    "the second transposed": lambda x, y: x @ tg.swapaxes(tg.swapaxes(y, 1, 2) * 1.5, 1, 2),
    "a transpose that is read, too": lambda x, y: (
        x @ (t := tg.swapaxes(y.mT * 1.5, 1, 2)) + t[0, 0]
    ),
    "the first transposed": lambda x, y: tg.permute_dims(x.mT * 1.5, (0, 2, 1)) @ y,
}


def test_transposed_stacks_are_not_copied():
    def product(x, y):
        return x @ tg.swapaxes(y, 1, 2)

    found = text_of(product, RNG.normal(size=(3, 14, 9)), RNG.normal(size=(3, 12, 9)))
    assert "stacked_product_t(x0, x1)" in found


@pytest.mark.compiled
@pytest.mark.parametrize("form", STACKS)
def test_derivatives_of_stacked_products(form):
    def loss(x, y):
        return tg.sum(tg.sin(STACKS[form](x, y)) ** 2)

    x, y = RNG.normal(size=(3, 14, 9)), RNG.normal(size=(3, 9, 12))
    jitted = tg.jit(loss)
    for own, other in zip(tg.grad(jitted, (0, 1))(x, y), tg.grad(loss, (0, 1))(x, y), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-12)
    direction = RNG.normal(size=x.shape)
    np.testing.assert_allclose(
        tg.jit(tg.hvp(loss))(x, y, direction), tg.hvp(loss)(x, y, direction), rtol=1e-10, atol=1e-10
    )
    own = tg.jit(tg.jvp(loss, (0, 1)))(x, y, direction, 2.0 * y)
    np.testing.assert_allclose(own, tg.jvp(loss, (0, 1))(x, y, direction, 2.0 * y), rtol=1e-12)


class TestNumbers:
    def test_sizes_and_long_numbers_are_arguments(self):
        def loss(x):
            return tg.mean(x * 0.123456) + x.shape[0] * tg.sum(x) * 0.5

        texts = [recorded(loss, np.ones(n)).plan.region.text for n in (50, 70)]
        assert texts[0] == texts[1]
        assert " * 0.5" in texts[0]
        for n in (50, 70):
            x = RNG.normal(size=n)
            assert_equal(tg.jit(loss)(x), loss(tg.tensor(x)).item())

    @pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 2**70, -17, 1e300])
    def test_special_numbers(self, value):
        x = np.array([0.5, -2.0, 0.0])

        def shifted(x):
            return x + value, value - x, x * value

        with np.errstate(invalid="ignore"):
            expected = shifted(tg.tensor(x))
        for own, other in zip(tg.jit(shifted)(x), expected, strict=True):
            assert_equal(own, other.numpy())

    def test_exponents_are_no_arguments(self):
        assert "** 17" in text_of(lambda x: x**17, np.ones(3))


def many_steps(x, count=300):
    """Steps of which no two are alike, so that they do not become a loop."""
    values = [x]
    for k in range(count):
        last = values[-1]
        earlier = values[max(0, len(values) - 2 - k % 7)]
        values.append(tg.sin(last[::-1] * (1.0 + 0.001 * k)) + 0.1 * earlier)
    return tg.sum(values[-1])


def test_long_programs_are_several_functions():
    x = RNG.normal(size=5)
    found = recorded(many_steps, x)
    assert len(found.plan.steps) > 1
    assert found.region is None
    assert max(step.region.text.count("\n") for step in found.plan.steps) <= 605
    assert_equal(tg.jit(many_steps)(x), many_steps(tg.tensor(x)).item())


def test_several_results_stay_together_in_long_programs():
    def f(x):
        total = tg.zeros(())
        for k in range(120):  # steps of which none is like the next one
            values, vectors = tg.linalg.eigh(x + x.T[:, : 3 + k] + 0.01 * k * tg.eye(3))
            total = total + tg.sum(values[::-1] * (k + 0.5)) + tg.sum(vectors**2)
            x = x * 0.9 + 0.01 * vectors @ vectors.T
        return total

    x = RNG.normal(size=(3, 3))
    assert len(recorded(f, x).plan.steps) > 1
    np.testing.assert_allclose(tg.jit(f)(x), f(tg.tensor(x)).item(), rtol=1e-10)


@pytest.mark.compiled
def test_gradients_of_long_programs():
    x = RNG.normal(size=5)
    value, gradient = tg.value_and_grad(tg.jit(many_steps))(x)
    expected = tg.value_and_grad(many_steps)(x)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-9, atol=1e-12)


class TestConcatenations:
    def test_parts_are_computed_where_they_belong(self):
        def f(x, y):
            return tg.concatenate([x[:1], x[1:] * y[:-1], tg.exp(y)]) * 2.0

        text = text_of(f, np.ones(9), np.ones(9))
        assert text.count("np.empty") == 2
        x, y = RNG.normal(size=9), RNG.normal(size=9)
        assert_equal(tg.jit(f)(x, y), f(tg.tensor(x), tg.tensor(y)).numpy())

    def test_parts_that_something_else_reads(self):
        def f(x):
            part, other = tg.sin(x), tg.cos(x)
            both = tg.concatenate([part, other, other, x * 2.0], axis=1)
            return both, part, tg.sum(other)

        x = RNG.normal(size=(3, 2))
        for own, other in zip(tg.jit(f)(x), f(tg.tensor(x)), strict=True):
            assert_equal(own, other.numpy())

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_axes_and_one_element(self, axis):
        def f(x, y):
            return tg.concatenate([x * 2.0, y + 1.0, x * y], axis=axis)

        x, y = RNG.normal(size=(2, 1)), RNG.normal(size=(2, 1))
        assert_equal(tg.jit(f)(x, y), f(tg.tensor(x), tg.tensor(y)).numpy())

    def test_concatenations_of_concatenations(self):
        def f(x):
            inner = tg.concatenate([x * 2.0, tg.exp(x)])
            outer = tg.concatenate([inner * x[0], inner, x + 1.0])
            return tg.concatenate([outer, outer * 2.0])[1:]

        x = RNG.normal(size=5)
        assert_equal(tg.jit(f)(x), f(tg.tensor(x)).numpy())


def steps_of(step, count):
    """A Python loop that is recorded."""

    def run(x, y):
        for _ in range(count):
            y = step(x, y)
        return y

    return run


def shift(x, y):
    for _ in range(6):
        y = tg.concatenate([x[:1], x[1:] * y[:-1]]) * 0.9 + y * 0.1
    return y


def wave(x, y):
    return tg.sin(y) * x + 0.1 * y


def from_start(x, y):
    return tg.sin(y) * x + 0.1 * tg.cos(y)


class TestRepeats:
    @pytest.mark.parametrize("step", [shift, wave, from_start])
    @pytest.mark.parametrize("shape", [(), (3,), (40,)])
    @pytest.mark.parametrize("count", [40, 41])
    def test_all_steps_are_in_the_loop(self, step, shape, count):
        if step is shift and shape == ():
            pytest.skip("it has no elements")
        x, y = RNG.normal(size=shape), RNG.normal(size=shape)
        run = steps_of(step, count)
        times = 6 * count if step is shift else count
        assert f"range({times})" in text_of(run, x, y)
        assert_equal(tg.jit(run)(x, y), run(tg.tensor(x), tg.tensor(y)).numpy(), rtol=1e-10)

    def test_the_start_is_read_afterwards_and_in_each_step(self):
        def run(x, y):
            start = y
            for _ in range(60):
                y = tg.sin(y) * x + 0.1 * start
            return y + start * 2.0, start

        x, y = RNG.normal(size=(2, 30))
        for own, other in zip(tg.jit(run)(x, y), run(tg.tensor(x), tg.tensor(y)), strict=True):
            assert_equal(own, other.numpy())

    def test_two_states_with_one_start(self):
        def run(x, y):
            a = b = y
            for _ in range(60):
                a, b = tg.sin(b) * x, 0.5 * a + b
            return a - b

        x, y = RNG.normal(size=(2, 30))
        assert_equal(tg.jit(run)(x, y), run(tg.tensor(x), tg.tensor(y)).numpy())

    def test_two_states_that_change_places(self):
        def run(x, y):
            a, b = x * 2.0, y
            for _ in range(60):
                a, b = tg.sin(b) + 0.1, 0.5 * a - x
            return a - b, a * b

        for shape in ((), (30,)):
            x, y = RNG.normal(size=(2, *shape))
            for own, other in zip(tg.jit(run)(x, y), run(tg.tensor(x), tg.tensor(y)), strict=True):
                assert_equal(own, other.numpy())

    def test_a_start_of_another_shape(self):
        def run(x, y):
            for _ in range(60):
                y = tg.sin(y) * x
            return y

        x, y = RNG.normal(size=30), 0.3
        assert_equal(tg.jit(run)(x, y), run(tg.tensor(x), y).numpy())

    def test_states_are_results(self):
        def run(x, y):
            kept = []
            for k in range(60):
                y = tg.cos(y) * x - 0.1
                if k > 57:
                    kept.append(y)
            return tuple(kept)

        x, y = RNG.normal(size=(2, 30))
        for own, other in zip(tg.jit(run)(x, y), run(tg.tensor(x), tg.tensor(y)), strict=True):
            assert_equal(own, other.numpy())

    @pytest.mark.compiled
    @pytest.mark.parametrize("step", [shift, wave])
    @pytest.mark.parametrize("shape", [(3,), (40,)])
    def test_gradients(self, step, shape):
        x, y = RNG.normal(size=shape), RNG.normal(size=shape)
        run = steps_of(step, 41)

        def loss(x, y):
            return tg.sum(run(x, y) * (x + y))

        found = tg.grad(tg.jit(loss), (0, 1))(x, y)
        for own, other in zip(found, tg.grad(loss, (0, 1))(x, y), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-12)

    @pytest.mark.compiled
    def test_a_start_that_is_another_argument(self):
        run = steps_of(shift, 20)
        x = RNG.normal(size=40)
        found = tg.grad(tg.jit(lambda x, y: tg.sum(run(x, y))), (0, 1))(x, x)
        for own, other in zip(
            found, tg.grad(lambda x, y: tg.sum(run(x, y)), (0, 1))(x, x), strict=True
        ):
            np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-12)


def reversed_start(x):
    start = tg.cos(x)
    turned, y = start[::-1], start
    for _ in range(40):
        y = tg.sin(y) * turned + 0.1 * tg.sum(y) / 300
    return y


def start_in_each_step(x):
    y = x.reshape(4, 5)
    for _ in range(40):
        y = tg.sin(y) * x.reshape(4, 5) + tg.sum(y) / 300
    return y


def state_that_is_a_view(x):
    a, b = x, tg.cos(x)
    for _ in range(40):
        a, b = tg.sin(b) + 0.01 * tg.sum(a), a[::-1]
    return tg.stack([a, b])


def arrays_that_change_places(x):
    a, b, s = tg.zeros(5), tg.zeros(5), x[2]
    for _ in range(34):
        a[1] = s
        b[2] = s
        s = tg.sin(s)
        a, b = b, a
    return tg.stack([a, b])


def arrays_that_rotate(x):
    a, b, c = tg.zeros(5), tg.ones(5), x[:5] * 2.0
    for _ in range(41):
        a[1:] *= 0.9
        b[2] += a[1] * x[0]
        a, b, c = b, c, a
    return tg.stack([a, b, c])


def state_that_is_an_element(x):
    a, s = x, x[0]
    for _ in range(40):
        a, s = tg.tanh(a[::-1] + s), a[3]
    return a * s


def element_in_fori_loop(x):
    def step(i, state):
        a, s = state
        return tg.tanh(a[::-1] + s), a[3]

    a, s = tg.fori_loop(0, 5, step, (x, x[0]))
    return a * s


def element_in_while_loop(x):
    def step(state):
        a, s, k = state
        return tg.tanh(a[::-1] + s), a[3], k + 1

    a, s, _ = tg.while_loop(lambda state: state[2] < 5, step, (x, x[0], 0))
    return a * s


LOOPS = [
    element_in_fori_loop,
    element_in_while_loop,
    state_that_is_an_element,
    reversed_start,
    start_in_each_step,
    state_that_is_a_view,
    arrays_that_change_places,
    arrays_that_rotate,
]


class TestStates:
    """States of recorded loops, and what else is read or written in them."""

    @pytest.mark.parametrize("run", LOOPS)
    def test_values(self, run):
        x = np.linspace(0.1, 1.0, 20)
        assert_equal(tg.jit(run)(x), run(tg.tensor(x)).numpy(), rtol=1e-10)

    @pytest.mark.compiled
    @pytest.mark.parametrize("run", LOOPS[:-1])  # op by op, arrays that rotate are overwritten
    def test_gradients(self, run):
        def loss(x):
            return tg.sum(tg.sin(run(x)))

        x = np.linspace(0.1, 1.0, 20)
        np.testing.assert_allclose(
            tg.grad(tg.jit(loss))(x), tg.grad(loss)(x), rtol=1e-9, atol=1e-12
        )

    @pytest.mark.parametrize("which", [0, 10, 58])
    @pytest.mark.parametrize("call", [tg.max, tg.sort, tg.cumsum])
    def test_numbers_of_a_long_chain_are_read_after_a_call(self, which, call):
        def run(a, x):
            kept = []
            for _ in range(60):
                a = tg.sin(a) * 0.9
                kept.append(a)
            return a + call(x) * kept[which]

        x = np.array([0.3, 0.9, -0.2])
        assert_equal(tg.jit(run)(0.9, x), np.asarray(run(tg.tensor(0.9), tg.tensor(x))))


def test_integers_of_more_than_64_bits():
    def f(x):
        return tg.where(x > 0, x, 1 << 63)

    x = np.array([1, -2, 3])
    assert_equal(tg.jit(f)(x), f(tg.tensor(x)).numpy())
    assert "64 bits" in tg.jit(f).inspect(x)


@pytest.mark.parametrize("what", ["logsumexp", "softmax", "norm"])
def test_parts_that_numba_does_not_compile_run_op_by_op(what, monkeypatch):
    """What recorded ops become in compiled code, such as largest elements, has a form for that."""
    functions = {
        "logsumexp": lambda x: tg.logsumexp(x, axis=-1),
        "softmax": lambda x: tg.special.softmax(x, axis=0)[0],
        "norm": lambda x: tg.linalg.norm(x, axis=1),
    }

    def f(x):
        return tg.sum(functions[what](x)) * tg.sum(abs(tg.arctan(x + 1j)))

    def refuse(self, leaves):
        raise NumbaError("not compiled")

    x = RNG.normal(size=(3, 4))
    expected, slope = f(tg.tensor(x)).numpy(), tg.grad(f)(x)
    monkeypatch.setattr(Region, "__call__", refuse)
    np.testing.assert_allclose(tg.jit(f)(x), expected, rtol=1e-12)
    np.testing.assert_allclose(tg.grad(tg.jit(f))(x), slope, rtol=1e-10)
