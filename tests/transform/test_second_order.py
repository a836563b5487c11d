"""Small versions of the measured programs: first and second derivatives, forward and reverse."""

import math

import numba
import numpy as np
import pytest
from check import (
    check,
    close,
    copied,
    directional,
    flat,
    is_compiled,
    module,
    running,
    tangent_like,
)

import tapegrad as tg


@tg.njit
def logistic(start, n):
    """The growth and the start in one array."""
    r, x = start[0], start[1]
    for _ in range(n):
        x = r * x * (1 - x)
    return x


@tg.njit
def van_der_pol(start, n):
    x, y, mu, omega = start[0], start[1], start[2], start[3]
    h = 0.05
    for _ in range(n):
        k1, l1 = y, mu * (1 - x * x) * y - omega * x
        u, v = x + 0.5 * h * k1, y + 0.5 * h * l1
        k2, l2 = v, mu * (1 - u * u) * v - omega * u
        u, v = x + 0.5 * h * k2, y + 0.5 * h * l2
        k3, l3 = v, mu * (1 - u * u) * v - omega * u
        u, v = x + h * k3, y + h * l3
        k4, l4 = v, mu * (1 - u * u) * v - omega * u
        x += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        y += h / 6 * (l1 + 2 * l2 + 2 * l3 + l4)
    return x


@tg.njit
def rosenbrock(x, scale):
    s = 0.0
    for i in range(x.size - 1):
        s += scale * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2
    return s


@tg.njit
def gravity(position, mass):
    energy = 0.0
    for i in range(position.shape[0]):
        for j in range(i):
            square = 1e-1
            for k in range(3):
                d = position[i, k] - position[j, k]
                square += d * d
            energy -= mass[i] * mass[j] / math.sqrt(square)
    return energy


@tg.njit
def normal_cdf(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2.0)))


@tg.njit
def black_scholes(spot, volatility, rate, strike):
    s = 0.0
    for i in range(spot.size):
        d1 = (math.log(spot[i] / strike) + (rate + volatility[i] ** 2 / 2)) / volatility[i]
        d2 = d1 - volatility[i]
        s += spot[i] * normal_cdf(d1) - strike * math.exp(-rate) * normal_cdf(d2)
    return s


@tg.njit
def least_squares(x, m):
    s = 0.0
    for i in range(m):
        t = -1.0 + i * 2.0 / (m - 1)
        residual = np.sign(t)
        power = 1.0
        for j in range(x.size):
            residual -= x[j] * power
            power *= t
        s += residual * residual
    return 0.5 * s


@tg.njit
def cascade_slope(x, z, dz):
    dz[0] = x[0]
    for i in range(1, x.size):
        dz[i] = x[i] * z[i - 1]


@tg.njit
def cascade(x, steps):
    n = x.size
    h = 2.0 / steps
    z = np.zeros(n)
    k1, k2, k3, k4 = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for _ in range(steps):
        cascade_slope(x, z, k1)
        cascade_slope(x, z + h / 2 * k1, k2)
        cascade_slope(x, z + h / 2 * k2, k3)
        cascade_slope(x, z + h * k3, k4)
        for i in range(n):
            z[i] += h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i])
    return z[n - 1]


RNG = np.random.default_rng(3)
PROGRAMS = {
    "a": (logistic, (np.array([3.0, 0.3]), 6)),
    "b": (van_der_pol, (np.array([2.0, 0.1, 1.0, 1.2]), 8)),
    "c": (rosenbrock, (RNG.uniform(-1, 1, 4), 2.0)),
    "d": (gravity, (RNG.uniform(-1, 1, (3, 3)), RNG.uniform(0.5, 1.5, 3))),
    "e": (black_scholes, (np.array([1.0, 1.4]), np.array([0.3, 0.5]), 0.03, 1.1)),
    "llsq": (least_squares, (RNG.uniform(-1, 1, 3), 6)),
    "ode": (cascade, (RNG.uniform(0.5, 1.5, 4), 3)),
}


def reverse_over_reverse(f, count):
    """The gradient of the gradient along a vector, from a compiled function that calls tg.grad."""
    rest = "".join(f", p{k}" for k in range(1, count))
    inner = module(
        "import numpy as np\nimport tapegrad as tg\n\nslope = None\n\n"
        f"@tg.njit\ndef f(x{rest}, v):\n    return np.sum(slope(x{rest}) * v)\n"
    )
    inner.py_func.__globals__["slope"] = tg.grad(f)
    return tg.grad(inner)


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_and_second_derivatives(name):
    f, args = PROGRAMS[name]
    check(f, *args, jvp=name in "bd", tolerance=1e-7)
    if name == "ode":
        return
    v = tangent_like(args[0], 5)
    with running(is_compiled(f)) as run:
        product = run(tg.hvp(f))(*map(copied, args), v)
        slope = run(tg.grad(f))
        close(flat(product), directional(slope, args, {0: v}), 1e-6)
        other = run(reverse_over_reverse(f, len(args)))(*map(copied, args), v)
        close(other, product, 1e-12)


def test_hessian_of_every_parameter():
    """Second derivatives by two of the arguments: symmetric, and those of differences."""
    f, args = PROGRAMS["b"]
    hessian = tg.hessian(f)(*args)
    close(hessian, hessian.T, 1e-12)
    columns = [directional(tg.grad(f), args, {0: unit}) for unit in np.eye(4)]
    close(hessian, np.array(columns).T, 1e-6)


NOT_CHOSEN = [
    "np.sqrt(b)",
    "1.0 / (b + 0.3)",
    "b**1.5",
    "np.arcsin(b - 0.9)",
    "a * np.log(b)",
    "np.tanh(a / (b + 0.3))",
    "np.log(b) ** 2",
    "np.abs(np.log(b)) * a",
    "np.exp(-8100.0 * b) * a",
    "np.log1p(np.exp(1e4 * (0.3 - b)))",
    "np.mod(a, b + 0.3)",
]


@pytest.mark.parametrize("risky", NOT_CHOSEN)
def test_infinite_or_nan_where_not_chosen(risky):
    """What `where` does not choose has no derivatives, whatever they would be there."""
    text = f"""
import numpy as np

def f(a, b):
    return np.sum(a * np.where(b > 0.1, {risky}, 0.7 * b))
"""
    b = np.array([-0.3, 0.4, 0.6])
    check(tg.njit(module(text)), np.array([0.45, 0.3, -0.55]), b, hvp=True, tolerance=1e-6)


class TestProductsOnly:
    """A product with the Hessian does not compute the gradient, which nobody wants."""

    @staticmethod
    def source(function, *args):
        kinds = tuple(map(numba.typeof, (*args, args[0])))
        return tg.hvp(function).tangent_of_gradient.source(kinds)

    def test_loops(self):
        @tg.njit
        def banana(x):
            s = 0.0
            for i in range(x.size - 1):
                s += 100.0 * (x[i + 1] - x[i] ** 2) ** 2 + (1.0 - x[i]) ** 2
            return s

        source = self.source(banana, np.ones(3))
        assert "x_bar_1_dot[i] += " in source
        assert "x_bar_1[" not in source
        assert "return (0.0, (x_bar_1_dot,))" in source
        v = np.array([1.0, 2.0, -1.0])
        expected = tg.hessian(banana)(np.ones(3)) @ v
        assert np.allclose(tg.hvp(banana)(np.ones(3), v), expected)
        assert np.allclose(tg.jvp(tg.grad(banana))(np.ones(3), v)[1], expected)

    def test_gradients_that_are_read(self):
        """A cotangent that the reverse pass reads is kept, also if it is the gradient."""

        @tg.njit
        def writes(x):
            for i in range(1, x.size):
                x[i] = x[i] * x[i - 1]
            return np.sum(x * x)

        x, v = np.array([0.5, 1.5, 2.0]), np.array([1.0, 2.0, -1.0])
        found = tg.hvp(writes)(x.copy(), v)
        assert np.allclose(found, tg.hessian(writes)(x.copy()) @ v)
        assert np.allclose(found, tg.jvp(tg.grad(writes))(x.copy(), v)[1])


@tg.njit
def products_of_rows(x, n):
    """The tape of the gradient grows; its derivative needs nothing of what it holds."""
    matrix = np.zeros((3, 3))
    v = x.copy()
    for _ in range(n):
        for i in range(3):
            for j in range(3):
                matrix[i, j] = v[i] * np.sin(v[j])
        v = matrix @ v
    return v.sum()


@pytest.mark.parametrize("n", [2, 4])
def test_tapes_that_grow_where_a_gradient_is_differentiated(n):
    x = np.array([0.3, 0.4, 0.5])
    gradient, h = tg.grad(products_of_rows), 1e-5
    steps = h * np.eye(3)
    expected = [(gradient(x + s, n) - gradient(x - s, n)) / (2 * h) for s in steps]
    for _ in range(3):
        np.testing.assert_allclose(tg.hessian(products_of_rows)(x, n), expected, rtol=1e-6)
