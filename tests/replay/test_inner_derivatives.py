"""Derivatives inside of recorded functions: the same as op by op, and compiled."""

import os
import subprocess
import sys

import numpy as np
import pytest
from interpreted import assert_equal, is_compiled

import tapegrad as tg

V = np.array([0.3, -0.2, 0.7])
A = np.sin(np.arange(12.0)).reshape(4, 3)


def energy(x, rows):
    return tg.sum(tg.tanh(rows @ x) ** 2) + tg.sum(x**3)


def with_a_call(x, rows):
    """Its derivative is that of a compiled function: the rule of `max` counts equal elements."""
    return tg.max(tg.sin(rows @ x)) * tg.sum(x**2)


def trained(x, rows):
    """Steps along a gradient, which are differentiated themselves."""
    for _ in range(3):
        value, (g, h) = tg.value_and_grad(energy, (0, 1))(x, rows)
        x, rows = x - 0.1 * g, rows - 0.05 * h
    return value + tg.sum(x * x)


def in_a_loop(x, rows):
    def step(x, row):
        g = tg.grad(lambda y: tg.sum(tg.sin(y * row)) + y[0] ** 2)(x)
        return x - 0.1 * g, tg.sum(g)

    x, sums = tg.scan(step, x, rows)
    return tg.sum(x**2) + tg.sum(sums)


def in_a_branch(x, rows):
    slope = tg.cond(
        tg.sum(x) > 0.0, lambda: tg.grad(energy)(x, rows), lambda: tg.grad(tg.sum)(x * 1.0)
    )
    return tg.sum(slope * x)


def of_what_is_read(x, rows):
    """The function reads `x`, too, with respect to which it is not differentiated."""
    g = tg.grad(lambda y: tg.sum(tg.sin(y) * x) * rows[0, 1])(x)
    return tg.sum(g * g)


def nested(x, rows):
    def slope(y):
        return tg.sum(tg.grad(lambda z: tg.sum(tg.sin(z * y)) * rows[1, 0])(y) * y)

    return tg.sum(tg.grad(slope)(x) ** 2)


def of_pytrees(x, rows):
    def loss(parts, scale):
        w, b = parts["w"], parts["b"]
        return tg.sum((rows @ w + b[0]) ** 2) * scale, (w * 2.0, "loss")

    (value, (twice, name)), g = tg.value_and_grad(loss, has_aux=True)({"w": x, "b": (x[2],)}, 0.5)
    assert name == "loss"
    return value + tg.sum(g["w"] * twice) + g["b"][0]


def of_one_element(x, rows):
    value, g = tg.value_and_grad(lambda y: tg.sum(y * y * rows[0]).reshape(1, 1))(x)
    assert value.shape == (1, 1)
    return tg.sum(value) * tg.sum(g)


def of_a_keyword(x, rows):
    return tg.sum(tg.grad(lambda y, power: tg.sum(y**power))(x, power=3) * rows)


def along_tangents(x, rows):
    (z, s), (dz, ds) = tg.jvp(lambda y: (tg.sin(rows @ y), tg.sum(y * y)))(x, rows[0])
    return tg.sum(z * dz) + s * ds


def hessian_product(x, rows):
    return tg.sum(tg.hvp(energy)(x, rows, x * 2.0) * rows[1])


def pulled_back(x, rows):
    (z, s), pullback = tg.vjp(lambda y, r: (tg.sin(r @ y), tg.sum(y)), x, rows)
    g, h = pullback((z, s))
    other, _ = pullback((z * 0.0, 1.0))
    return tg.sum(g * x) + tg.sum(h) + tg.sum(other)


def linearized(x, rows):
    z, pushforward, name = tg.linearize(lambda y: (tg.sin(rows @ y), "z"), x, has_aux=True)
    assert name == "z"
    return tg.sum(z * pushforward(x * x)) + tg.sum(pushforward(rows[2]))


def jacobians(x, rows):
    j, (k, _) = tg.jacobian(lambda y: (tg.sin(rows @ y), (tg.sum(y * y), y * 2.0)))(x)
    assert j.shape == (4, 3)
    assert k.shape == (3,)
    return tg.sum(j, axis=0) * k


def curvature(x, rows):
    assert tg.jacfwd(lambda y: tg.sin(rows @ y))(x).shape == (4, 3)
    return tg.hessian(energy)(x, rows) @ x


SCALARS = [
    trained, in_a_loop, in_a_branch, of_what_is_read, nested, of_pytrees, of_one_element,
    of_a_keyword, along_tangents, hessian_product, pulled_back, linearized,
]  # fmt: skip


def how(function, *args):
    return tg.jit(function).inspect(*args)


@pytest.mark.compiled
class TestCompiled:
    @pytest.mark.parametrize("function", [*SCALARS, jacobians, curvature])
    def test_values(self, function):
        f = tg.jit(function)
        is_call = function in (jacobians, curvature)
        shown = f.inspect(V, A)
        assert ("derivative" in shown) == is_call
        assert is_compiled(shown)
        for x in (V, -V):
            assert_equal(f(x, A), function(tg.tensor(x), tg.tensor(A)), rtol=1e-10)

    @pytest.mark.parametrize("function", SCALARS)
    def test_derivatives(self, function):
        f = tg.jit(function)
        expected = tg.grad(function, (0, 1))(V, A)
        assert_equal(tg.grad(f, (0, 1))(V, A), expected, rtol=1e-9)
        assert not f.inspect(V, A).startswith("op by op"), f.inspect(V, A)
        x = tg.tensor(V, requires_grad=True)
        f(x, A).backward()
        assert_equal(x.grad, expected[0], rtol=1e-9)

    @pytest.mark.parametrize("transform", [tg.hessian, tg.jacobian, tg.jacfwd])
    def test_of_jitted_transforms(self, transform):
        f = transform(energy)
        assert "derivative" in how(f, V, A)
        assert_equal(tg.jit(f)(V, A), f(V, A))

    def test_of_products_with_hessians(self):
        for function, is_call in ((energy, False), (with_a_call, True)):
            f = tg.jit(tg.hvp(function))
            assert ("tg.hvp" in f.inspect(V, A, A[0])) == is_call
            assert_equal(f(V, A, A[0]), tg.hvp(function)(V, A, A[0]))

    def test_of_jitted_functions(self):
        """A jitted function inside of another one is part of it."""
        inner = tg.jit(energy)
        f = tg.jit(lambda x, rows: tg.sum(tg.grad(inner)(x, rows) ** 2))
        assert is_compiled(f.inspect(V, A))
        assert_equal(f(V, A), np.sum(tg.grad(energy)(V, A) ** 2))

    def test_equal_functions_are_compiled_once(self):
        def f(x):
            slope = tg.grad(lambda y: with_a_call(y, A))
            return tg.sum(slope(x) * slope(2.0 * x))

        assert how(f, V).count("tg.value_and_grad") == 1

    @pytest.mark.parametrize("steps", [3, 40])
    def test_many_of_them_are_calls(self, steps):
        """A few are spelt out: that many values would take long to compile."""

        def f(x):
            for k in range(steps):
                x = x - 0.1 / (k + 2.0) * tg.grad(lambda y: tg.sum(tg.sin(y) ** 2 * y))(x)
            return tg.sum(x)

        assert ("tg.value_and_grad" in how(f, V)) == (steps == 40)
        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))
        assert_equal(tg.grad(tg.jit(f))(V), tg.grad(f)(V), rtol=1e-10)

    def test_under_no_grad(self):
        """Derivatives do not pass what is computed there, but it is computed."""

        def f(x):
            with tg.no_grad():
                g = tg.grad(lambda y: tg.sum(y**3))(x)
            return tg.sum(g * x)

        assert is_compiled(how(f, V))
        assert_equal(tg.jit(f)(V), np.sum(3 * V**3))
        assert_equal(tg.grad(tg.jit(f))(V), 3 * V**2)

    def test_in_another_process(self, tmp_path):
        environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path)}
        found = [
            subprocess.run(
                [sys.executable, "-c", STORED.format(power)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            for power in (2, 3, 2)
        ]
        of_squares, of_cubes = "10.0 [4.0, 8.0]\n", "27.0 [9.0, 36.0]\n"
        assert found == [of_squares, of_cubes, of_squares]


STORED = """
import numpy as np, tapegrad as tg

f = tg.jit(lambda x: tg.sum(tg.grad(lambda y: tg.sum(y ** {}))(x) * x))
x = np.array([1.0, 2.0])
print(f(x), tg.grad(f)(x).tolist())
"""


def of_integers(x):
    return tg.sum(tg.grad(lambda n, y: tg.sum(y * n))(2, x) * x)


def of_vectors(x):
    return tg.sum(tg.grad(lambda y: y * 2.0)(x))


def of_too_few(x):
    return tg.sum(tg.grad(tg.sum, 1)(x))


def of_too_many_tangents(x):
    return tg.jvp(tg.sin)(x, x[:2])[1]


def of_another_structure(x):
    return tg.hvp(lambda parts: tg.sum(parts["w"] ** 2))({"w": x}, [x])


@pytest.mark.parametrize(
    "function", [of_integers, of_vectors, of_too_few, of_too_many_tangents, of_another_structure]
)
def test_errors_are_those_of_tensors(function):
    with pytest.raises((TypeError, ValueError)) as expected:
        function(tg.tensor(V))
    with pytest.raises(type(expected.value)) as found:
        tg.jit(function)(V)
    assert str(found.value) == str(expected.value)


class TestOpByOp:
    def test_what_does_not_depend_on_the_argument(self):
        def f(x):
            return tg.sum(x) + tg.sum(tg.grad(lambda y: tg.sum(y.detach() + 2.0))(x))

        assert "does not depend on" in how(f, V)
        with pytest.warns(tg.DetachedWarning, match="does not depend"):
            assert_equal(tg.jit(f)(V), np.sum(V))

    def test_single_precision(self):
        def f(x):
            return tg.sum(tg.grad(lambda y: tg.sum(y**2))(x))

        x = V.astype(np.float32)
        assert how(f, x).startswith("op by op")
        assert tg.jit(f)(x).dtype == np.float32


def test_functions_that_decide_by_values_that_are_known():
    """Op by op, they may."""

    def slope(y):
        return tg.grad(lambda z: z**2 if z > 0 else z)(y)

    f = tg.jit(lambda x: x * slope(1.5) + slope(tg.tensor(-1.0)))
    assert "decides by values" in f.inspect(V)
    assert_equal(f(V), V * 3.0 + 1.0)


class TestOnce:
    """The differentiated function is called once, as op by op."""

    @pytest.mark.parametrize(
        "derivative",
        [
            lambda f, x: tg.value_and_grad(lambda y: (tg.sum(f(y)), f(y)), has_aux=True)(x),
            lambda f, x: tg.jacobian(lambda y: (f(y), tg.sum(f(y))))(x),
            lambda f, x: (lambda z, back: (z, back(z)))(*tg.vjp(f, x)),
            lambda f, x: (lambda z, forward: (z, forward(x)))(*tg.linearize(f, x)),
        ],
        ids=["aux", "jacobian", "vjp", "linearize"],
    )
    def test_random_numbers(self, derivative):
        rng = tg.random.default_rng(5)
        state = rng.state

        def f(x):
            return derivative(lambda y: tg.sin(y) * rng.normal(size=3), x)

        jitted = tg.jit(f)
        jitted(V)
        rng.state = state
        found = [jitted(V), jitted(2.0 * V)]
        rng.state = state
        assert_equal(found, [f(tg.tensor(V)), f(tg.tensor(2.0 * V))])

    @pytest.mark.compiled
    def test_names_that_are_bound_later(self):
        def f(x):
            pulled, pushed = [], []
            for power in (2, 3):
                pulled.append(tg.vjp(lambda y: tg.sum(y**power), x))
                pushed.append(tg.linearize(lambda y: y**power, x))
            found = [back(value)[0] for value, back in pulled]
            return found, [forward(x) for _, forward in pushed]

        assert_equal(tg.jit(f)(V), f(tg.tensor(V)))

    @pytest.mark.compiled
    def test_auxiliary_results_that_are_differentiated(self):
        def f(x):
            (value, (aux, _)), g = tg.value_and_grad(
                lambda y: (tg.sum(y**3), (tg.sin(y) * x, "aux")), has_aux=True
            )(x)
            return value + tg.sum(aux * g)

        assert_equal(tg.grad(tg.jit(f))(V), tg.grad(f)(V))


class TestKnownArguments:
    """What the function reads may differ between calls, though its arguments do not."""

    def test_random_numbers(self):
        rng = tg.random.default_rng(5)
        slope = tg.grad(lambda y: tg.sum(y * rng.normal(size=3)))
        f = tg.jit(lambda x: tg.sum(tg.sin(x) * slope(np.ones(3))))
        state = rng.state
        f(V)
        rng.state = state
        assert_equal([f(V), f(V)], [np.sin(V) @ n for n in _drawn(state, 2)])

    @pytest.mark.compiled
    def test_parameters(self):
        w = tg.tensor(V, requires_grad=True)
        f = tg.jit(lambda x: tg.sum(x * tg.grad(lambda y: tg.sum(y * w.detach() * w))(np.ones(3))))
        g = tg.jit(lambda x: tg.sum(x * tg.grad(lambda y: tg.sum(y**3))(w)))
        for _ in range(3):
            assert_equal(f(V).detach(), V @ w.detach().numpy() ** 2)
            assert_equal(g(V).detach(), V @ (3.0 * w.detach().numpy() ** 2))
            with tg.no_grad():
                w *= 2.0


def _drawn(state, count):
    rng = tg.random.default_rng()
    rng.state = state
    return [rng.normal(size=3).numpy() for _ in range(count)]


@pytest.mark.compiled
@pytest.mark.parametrize("use", ["grad", "loop", "branch", "items"])
def test_values_that_are_detached_twice(use):
    def f(x):
        t = x.detach()
        with tg.no_grad():
            u = x * 2.0
        if use == "grad":
            return tg.sum(tg.grad(lambda y: tg.sum(y * y * t.detach() * u.detach()))(x) * x)
        if use == "loop":
            return tg.sum(tg.fori_loop(0, 2, lambda i, s: s * t.detach() + u.detach(), x))
        if use == "branch":
            return tg.cond(x[0] > 0.0, lambda: tg.sum(x * t.detach()), lambda: tg.sum(u.detach()))
        return tg.sum(tg.vmap(lambda y: y * t.detach() + u.detach(), loop=True)(x))

    assert_equal(tg.jit(f)(V), f(tg.tensor(V)))
    assert_equal(tg.grad(tg.jit(f))(V), tg.grad(f)(V))


def test_a_backward_pass_inside():
    def f(x):
        w = tg.tensor(V, requires_grad=True)
        (g,) = tg.autograd.grad(tg.sum(tg.sin(w)), w)
        return tg.sum(g * x)

    assert tg.jit(f).inspect(V).startswith("op by op")
    assert_equal(tg.jit(f)(V), np.cos(V) @ V)
