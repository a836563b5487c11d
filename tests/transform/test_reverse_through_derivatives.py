"""Reverse mode through tg.hvp, tg.jacobian, tg.hessian and tg.jvp of gradients in functions."""

from collections import namedtuple

import numpy as np
import pytest
from check import Cases, check, close, module

import tapegrad as tg

X = np.array([0.3, 0.7])
U = np.array([0.9, -0.4])
T = np.array([0.2, 0.5, 1.1])
Y = np.array([1.4, 0.9, 0.5])
CASES = Cases()


@tg.njit
def bowl(x, t):
    return t * x[0] ** 3 * x[1] + np.sin(x[1] * t) * x[0] ** 2


@tg.njit
def quartic(x, a):
    return a * x**4 + np.sin(x * a)


bowl_product = tg.hvp(bowl)
bowl_hessian = tg.hessian(bowl)
bowl_slope = tg.grad(bowl)
bowl_push = tg.jvp(bowl_slope)


# -- Hessians times vectors ------------------------------------------------------------------------


@CASES(X, 0.8, U)
def product_by_all(x, t, u):
    h = bowl_product(x, t, u)
    return h[0] * h[0] + 0.4 * h[1]


@CASES(X, 0.8, jvp=False)
def one_array_twice(x, t):
    return bowl_product(x, t, x).sum()


@CASES(X, 0.8, U, argnums=(2,), jvp=False)
def only_the_vector(x, t, u):
    return bowl_product(x, t, u)[0] * u[1]


@CASES(X, 0.8, U, argnums=(0, 1), jvp=False)
def passive_vector(x, t, u):
    return np.sum(bowl_product(x, t, u) * x)


@CASES(X, 0.8, U, argnums=(1,), jvp=False)
def only_a_parameter(x, t, u):
    return bowl_product(x, t, u)[1] ** 2


quartic_product = tg.hvp(quartic)
quartic_product_by_a = tg.hvp(quartic, 1)


@CASES(0.6, 1.3, 0.7, jvp=False)
def products_of_numbers(x, a, u):
    return quartic_product(x, a, u * x) * quartic_product_by_a(x, a, u)


@CASES(0.6, 1.3, argnums=(0, 1), jvp=False)
def integer_vector(x, a):
    return quartic_product(x, a, 2)


# -- conjugate gradients without a matrix ----------------------------------------------------------


@tg.njit
def well(x, k):
    s = 0.0
    for i in range(x.size):
        s += k[i] * x[i] ** 2 + 0.1 * x[i] ** 4
    return s + 0.2 * x[0] * x[1]


well_product = tg.hvp(well)


@CASES(X, np.array([1.1, 0.7]), U, 2, jvp=False)
def conjugate_gradients(x, k, b, turns):
    s = np.zeros_like(b)
    r = b.copy()
    p = r.copy()
    square = np.sum(r * r)
    for _ in range(turns):
        hp = well_product(x, k, p)
        step = square / np.sum(p * hp)
        s = s + step * p
        r = r - step * hp
        following = np.sum(r * r)
        p = r + following / square * p
        square = following
    return np.sum(s * b)


def test_a_loop_without_iterations():
    by_x, by_b = tg.grad(conjugate_gradients, (0, 2))(X, np.array([1.1, 0.7]), U, 0)
    assert not by_x.any() and not by_b.any()


# -- Jacobians -------------------------------------------------------------------------------------


@tg.njit
def decay(p, t):
    found = np.empty(t.size)
    for i in range(t.size):
        found[i] = p[0] * np.exp(-p[1] * t[i])
    return found


@tg.njit
def mixed(x, w):
    found = np.empty(2)
    found[0] = x[0] * x[1] * w + x[2] ** 3
    found[1] = np.sin(x[2] * w)
    return found


@tg.njit
def curve(s, w):
    return np.array([s * s * w, np.sin(s * w)])


@tg.njit
def surface(m, w):
    return w * m * m[0, 0]


decay_jacobian = tg.jacobian(decay)
mixed_jacobian = tg.jacobian(mixed)
mixed_both = tg.jacobian(mixed, (1, 0))
curve_jacobian = tg.jacobian(curve)
surface_jacobian = tg.jacobian(surface)
bowl_row = tg.jacobian(bowl)
quartic_jacobian = tg.jacobian(quartic)


@CASES(X, T, Y, jvp=False)
def gauss_newton(p, t, y):
    """By columns."""
    for _ in range(2):
        j = decay_jacobian(p, t)
        r = decay(p, t) - y
        p = p - np.linalg.solve(j.T @ j + 0.5 * np.eye(2), j.T @ r)
    return np.sum(p * p)


@CASES(T, 0.8)
def penalty_by_rows(x, w):
    return np.sum(mixed_jacobian(x, w) ** 2)


@CASES(T, 0.8, jvp=False)
def two_jacobians(x, w):
    by_w, by_x = mixed_both(x, w)
    return by_w[0] * by_x[1, 2] + by_x[0, 0]


@CASES(0.7, 1.2, jvp=False)
def jacobian_by_a_number(s, w):
    j = curve_jacobian(s, w)
    return j[0] * j[1]


@CASES(np.array([[0.3, 0.8], [1.1, -0.2]]), 0.6, jvp=False)
def jacobian_of_matrices(m, w):
    j = surface_jacobian(m, w)
    return j[0, 1, 0, 0] * j[1, 1, 1, 1]


@CASES(X, 0.8, jvp=False)
def jacobian_of_a_number(x, t):
    j = bowl_row(x, t)
    return j[0] * j[1]


@CASES(0.6, 1.3, jvp=False)
def jacobian_of_a_number_by_a_number(x, a):
    return quartic_jacobian(x, a) ** 2


# -- Hessians --------------------------------------------------------------------------------------


@CASES(X, 0.8, jvp=False)
def newton_with_a_hessian(x, t):
    for _ in range(2):
        x = x - 0.1 * np.linalg.solve(bowl_hessian(x, t) + 3.0 * np.eye(2), bowl_slope(x, t))
    return np.sum(x * x)


@tg.njit
def energy(x, theta):
    return 0.5 * theta[0] * np.sum(x * x) + np.exp(theta[1] * x[0]) + 0.1 * x[1] ** 4


energy_slope = tg.grad(energy)
energy_hessian = tg.hessian(energy)


@CASES(X, np.array([1.2, 0.5]), jvp=False)
def laplace(start, theta):
    """The negative logarithm of an integral, by a second order expansion at the mode."""
    x = start
    for _ in range(3):
        x = x - np.linalg.solve(energy_hessian(x, theta), energy_slope(x, theta))
    h = energy_hessian(x, theta)
    return energy(x, theta) + 0.5 * np.linalg.slogdet(h)[1]


quartic_hessian = tg.hessian(quartic)


@CASES(0.6, 1.3)
def hessian_by_a_number(x, a):
    return quartic_hessian(x, a) ** 2 * a


@tg.njit
def shooting(x, k):
    return np.array([x[0] - k * np.sin(x[1]) - 0.4, x[1] + k * x[0] ** 2 - 0.3])


shooting_jacobian = tg.jacobian(shooting)


@CASES(X, 0.5, 2, jvp=False)
def implicit_steps(x, k, n):
    """Newton's iterations in each step, as far as it takes."""
    for _ in range(n):
        start = x.copy()
        for _turn in range(10):
            r = shooting(x, k) - 0.1 * start
            if np.max(np.abs(r)) < 1e-13:
                break
            x = x - np.linalg.solve(shooting_jacobian(x, k), r)
    return x[0] * x[1]


# -- tangents of gradients, and derivatives of these -----------------------------------------------


@CASES(X, 0.8, U)
def tangent_of_a_gradient(x, t, u):
    slope, dot = bowl_push(x, t, u)
    return slope[0] * dot[1] + dot[0] ** 2


bowl_both = tg.jvp(tg.value_and_grad(bowl, (0, 1)), (1, 0))


@CASES(X, 0.8, 0.3, U, jvp=False)
def tangent_of_value_and_gradients(x, t, dt, u):
    (value, (by_x, by_t)), (value_dot, (by_x_dot, by_t_dot)) = bowl_both(x, t, dt, u)
    return value * value_dot + by_x[0] * by_x_dot[1] + by_t * by_t_dot


slope_of_product = tg.grad(tg.hvp(quartic))
third = tg.jacobian(tg.hessian(bowl))


@CASES(0.6, 1.3, 0.7, jvp=False)
def gradient_of_a_product(x, a, u):
    return slope_of_product(x, a, u) * u


@CASES(X, 0.8, jvp=False)
def third_derivatives(x, t):
    return np.sum(third(x, t)[0] ** 2)


# -- values that are not plain arrays --------------------------------------------------------------

Point = namedtuple("Point", "a b n")


@tg.njit
def of_a_point(p, w):
    return p.a[0] ** 2 * p.b * w + (p.b * w) ** 3 * p.n + p.a[1] * p.b


point_product = tg.hvp(of_a_point)
point_jacobian = tg.jacobian(of_a_point, 1)


@CASES(Point(X, 0.4, 2), Point(U, 0.3, 0), 1.2, argnums=(0, 2), jvp=False)
def product_of_named_tuples(p, v, w):
    h = point_product(p, w, v)
    return h.a[0] * h.b + point_jacobian(p, w) ** 2


@CASES(X, 0.4, 1.2, jvp=False)
def named_tuples_made_inside(a, b, w):
    h = point_product(Point(a * a, b, 3), w, Point(a, w, 0))
    return h.a[0] * h.b


@pytest.mark.parametrize("name", CASES)
def test_against_differences(name):
    CASES.check(name)


# -- what functions do with their arguments --------------------------------------------------------


def test_functions_that_write_into_arrays_work_on_copies():
    f = module(
        "import tapegrad as tg\n@tg.njit\ndef running(a, w):\n    for i in range(1, 3):\n"
        "        a[i] *= a[i - 1] * w\n    return a[2] * a[2] * a[1]\n"
        "product = tg.hvp(running)\n@tg.njit\ndef f(a, w):\n"
        "    h = product(a, w, a)\n    return h[0] * h[1] * a[2]\n"
    )
    check(f, T, 0.7, jvp=False)


@tg.njit
def names(k, unit, rows, parts, direction, found):
    return k * k * unit * rows * parts * direction * found


def test_arguments_may_have_names_that_stand_in_generated_code():
    f = module(
        "import numpy as np\nimport tapegrad as tg\nrows = None\n@tg.njit\n"
        "def f(k, unit):\n    return np.sum(rows(k, unit, 1.0, 1.5, 2.0, 1.0) ** 2)\n"
    )
    f.py_func.__globals__["rows"] = tg.jacobian(names)
    by_k, by_unit = tg.grad(f, (0, 1))(X, 0.4)
    close(by_k, 2 * 6.0**2 * 0.4**2 * X, 1e-12)
    close(by_unit, 2 * 6.0**2 * 0.4 * np.sum(X * X), 1e-12)


def test_they_check_themselves(monkeypatch):
    """Also the text of the modules that are generated."""
    monkeypatch.setenv("TAPEGRAD_VERIFY", "1")
    f = module(
        "import numpy as np\nimport tapegrad as tg\n@tg.njit(verify=True)\n"
        "def turned(x, w):\n    return np.array([x[0] * x[1] * w, x[1] ** 3])\n"
        "@tg.njit(verify=True)\ndef bent(x, w):\n    return x[0] ** 3 * x[1] * w\n"
        "rows, product = tg.jacobian(turned), tg.hvp(bent)\n@tg.njit(verify=True)\n"
        "def f(x, w):\n    return rows(x, w)[0, 1] * product(x, w, x)[0]\n"
    )
    by_x, by_w = tg.grad(f, (0, 1))(X, 0.8)
    # f is x[0] w (9 x[0]^2 x[1] w)
    close(by_x, [27 * 0.8**2 * X[0] ** 2 * X[1], 9 * 0.8**2 * X[0] ** 3], 1e-12)
    close(by_w, 18 * 0.8 * X[0] ** 3 * X[1], 1e-12)


OUTER = """
import numpy as np
import tapegrad as tg

@tg.njit
def inner(x, pair):
    {lines}

derivative = tg.{kind}(inner)

@tg.njit
def f(x, w):
    return np.sum(derivative(x, (x, w)) ** 2)
"""
REFUSED = {
    "a view": ("jacobian", "return x", "return x.copy()", "return a copy"),
    "a tuple": (
        "grad",
        "pair[0][0] *= pair[1]; return pair[0][0] * x[1] ** 2",
        "a = pair[0].copy(); a[0] *= pair[1]; return a[0] * x[1] ** 2",
        "let it work on a copy of the array",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_the_way_out(name):
    kind, lines, way_out, message = REFUSED[name]
    f = module(OUTER.format(kind=kind, lines=lines))
    with pytest.raises(tg.TransformError, match=message) as caught:
        tg.grad(f)(X, 0.8)
    assert "in f\n" in str(caught.value)
    check(module(OUTER.format(kind=kind, lines=way_out)), X, 0.8, jvp=False)
