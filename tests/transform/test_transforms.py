"""grad, value_and_grad, jvp, hvp, jacobian, hessian: from Python and from compiled code, nested."""

import ast
from collections import namedtuple

import numba
import numpy as np
import pytest
from check import Cases, check, close, directional, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])
M33 = np.array([[1.3, 0.5, 0.1], [0.6, 2.4, 0.3], [0.2, -0.3, 1.7]])


@tg.njit
def cubic(x):
    return x**3 + 2 * x


@numba.njit
def plain(x):
    return x * x * x


@tg.njit
def form(a, m):
    s = 0.0
    for i in range(a.size):
        for j in range(a.size):
            s += a[i] * m[i, j] * a[j]
    return s * a[0]


@tg.njit
def vector(a):
    b = np.zeros(2)
    b[0] = a[0] * a[1]
    b[1] = np.sin(a[2])
    return b


@tg.njit
def tall(x, a):
    b = np.zeros((2, 2))
    b[0] = x * a[:2]
    b[1, 1] = np.sin(x)
    return b


cubic_slope = tg.grad(cubic)
cubic_both = tg.value_and_grad(cubic)
cubic_push = tg.jvp(cubic)
cubic_curve = tg.hvp(cubic)
form_slope = tg.grad(form)
form_curve = tg.hvp(form)
vector_jacobian = tg.jacobian(vector)


# -- from Python -----------------------------------------------------------------------------------


def test_values_and_structure():
    close(cubic_slope(0.5), 2.75, 1e-14)
    assert isinstance(cubic_slope(0.5), float)
    assert isinstance(tg.grad(cubic, (0,))(0.5), tuple)
    value, gradients = tg.value_and_grad(form, (0, 1))(A, M33)
    assert isinstance(value, float)
    assert isinstance(gradients, tuple) and [g.shape for g in gradients] == [(3,), (3, 3)]
    by_m, by_a = tg.grad(form, (1, 0))(A, M33)
    close(by_a, gradients[0], 1e-14)
    close(by_m, A[0] * np.outer(A, A), 1e-14)
    close(tg.grad(form, -1)(A, M33), by_m, 1e-14)
    close(cubic_both(0.5), (1.125, 2.75), 1e-14)
    close(cubic_push(0.5, 2.0), (1.125, 5.5), 1e-14)
    close(cubic_curve(0.5, 2.0), 6.0, 1e-14)


def test_plain_dispatchers():
    assert tg.grad(plain)(3.0) == 27.0
    assert tg.value_and_grad(plain)(3.0) == (27.0, 27.0)
    assert tg.jvp(plain)(3.0, 2.0) == (27.0, 54.0)
    assert tg.hvp(plain)(3.0, 2.0) == 36.0
    assert tg.jacobian(plain)(3.0) == 27.0
    assert tg.hessian(plain)(3.0) == 18.0


def test_higher_orders():
    close(tg.grad(tg.grad(cubic))(0.5), 3.0, 1e-14)
    close(tg.jvp(tg.grad(cubic))(0.5, 2.0), (2.75, 6.0), 1e-14)
    close(tg.jvp(tg.jvp(cubic), 0)(0.5, 1.0, 1.0)[1][1], 3.0, 1e-14)
    close(tg.grad(tg.grad(tg.grad(cubic)))(0.5), 6.0, 1e-14)
    close(tg.hessian(cubic)(0.5), 3.0, 1e-14)


def test_jacobians():
    found = vector_jacobian(A)
    close(found, [[0.7, 0.3, 0], [0, 0, np.cos(0.4)]], 1e-14)
    close(tg.jacobian(form)(A, M33), form_slope(A, M33), 1e-14)
    by_x, by_a = tg.jacobian(tall, (0, 1))(0.7, A)
    assert by_x.shape == (2, 2) and by_a.shape == (2, 2, 3)
    close(by_x, [A[:2], [0, np.cos(0.7)]], 1e-14)
    close(by_a[0], 0.7 * np.eye(3)[:2], 1e-14)
    assert not by_a[1].any()


@tg.njit
def unlike(x, y):
    return x * x + 10.0 * y


def test_tangents_come_in_the_order_of_argnums():
    assert tg.jvp(unlike, (1, 0))(1.0, 1.0, 1.0, 0.0) == (11.0, 10.0)
    by_a, by_m = np.ones(3), np.zeros((3, 3))
    close(tg.jvp(form, (1, 0))(A, M33, by_m, by_a)[1], tg.jvp(form)(A, M33, by_a)[1], 1e-14)


@tg.njit
def scaled_squares(x, k, product):
    return x * x * k * product


@tg.njit
def sum_of_squares(x, product, gradient):
    return np.sum(x * x) * product * gradient


def test_arguments_may_have_names_that_stand_in_generated_code():
    close(tg.jacobian(scaled_squares)(A, 5.0, 2.0), np.diag(20.0 * A), 1e-14)
    close(tg.hvp(sum_of_squares)(A, 5.0, 2.0, np.ones(3)), np.full(3, 20.0), 1e-14)


def test_hessian():
    found = tg.hessian(form)(A, M33)
    product = np.array([form_curve(A, M33, e) for e in np.eye(3)])
    close(found, product, 1e-13)
    close(found, found.T, 1e-13)
    close(found[1], directional(form_slope, (A, M33), {0: np.eye(3)[1]}), 1e-8)


def test_arguments_that_are_written_keep_the_hessian_right():
    f = module(
        "import tapegrad as tg\n@tg.njit\ndef f(a):\n    for i in range(1, 3):\n"
        "        a[i] *= a[i - 1]\n    return a[2] * a[2] * a[1]\n"
    )
    check(f, A, hvp=True)
    rows = np.array([tg.hvp(f)(A.copy(), e) for e in np.eye(3)])
    close(tg.hessian(f)(A.copy()), rows, 1e-13)


def test_readonly_arguments():
    a, m = A.copy(), M33.copy()
    a.flags.writeable = m.flags.writeable = False
    close(form_slope(a, m), form_slope(A, M33), 1e-15)


# -- from compiled code ----------------------------------------------------------------------------


@tg.njit
def newton(x, target):
    for _ in range(20):
        value, slope = cubic_both(x)
        x = x - (value - target) / slope
    return x


@numba.njit
def newton_of_plain(x, target):
    for _ in range(20):
        x -= (cubic(x) - target) / cubic_slope(x)
    return x


def test_newton_in_a_loop():
    root = newton(1.0, 5.0)
    close(cubic(root), 5.0, 1e-13)
    close(newton_of_plain(1.0, 5.0), root, 1e-13)
    close(tg.grad(newton, 1)(1.0, 5.0), 1 / cubic_slope(root), 1e-10)
    close(tg.jvp(newton, 1)(1.0, 5.0, 1.0)[1], 1 / cubic_slope(root), 1e-10)


@tg.njit
def every_transform(a, m):
    g = form_slope(a, m)
    h = form_curve(a, m, g)
    value, dot = cubic_push(a[0], a[1])
    j = vector_jacobian(a)
    return j.sum() + (g * h).sum() + value * dot + cubic_curve(a[0], a[1])


def test_every_transform_is_callable_from_compiled_code():
    g = form_slope(A, M33)
    h = form_curve(A, M33, g)
    expected = vector_jacobian(A).sum() + g @ h + np.prod(cubic_push(A[0], A[1]))
    close(every_transform(A, M33), expected + cubic_curve(A[0], A[1]), 1e-13)
    found = tg.jvp(every_transform)(A, M33, A)[1]
    close(found, directional(every_transform, (A, M33), {0: A}), 1e-7)


@tg.njit
def made_inside(x):
    return tg.grad(cubic)(x) * x


slope_of_cubic = tg.grad(cubic)


@tg.njit
def made_outside(x):
    return slope_of_cubic(x) * x


@pytest.mark.parametrize("transform", [tg.grad, tg.value_and_grad, tg.hvp])
def test_a_derivative_made_inside_is_refused(transform):
    with pytest.raises(
        tg.TransformError, match=r"cannot call tg.grad .*: g = tg.grad\(f\)"
    ) as error:
        transform(made_inside)(0.5, *[1.0] * (transform is tg.hvp))
    assert "return tg.grad(cubic)(x) * x" in str(error.value)


def test_a_derivative_made_outside():
    """What the refusal advises."""
    slope = (made_outside(0.5 + 1e-5) - made_outside(0.5 - 1e-5)) / 2e-5
    close(tg.grad(made_outside)(0.5), slope, 1e-8)


# -- two levels: the function calls a derivative in its loop ---------------------------------------


@tg.njit
def energy(q, k):
    return k * q**4 / 4 + q * q / 2 * k


force = tg.grad(energy)
force_push = tg.jvp(energy)


@tg.njit
def orbit_reverse(q, k, n):
    v = 0.0
    for _ in range(n):
        v -= 0.1 * force(q, k)
        q += 0.1 * v
    return q


@tg.njit
def orbit_forward(q, k, n):
    v = 0.0
    for _ in range(n):
        v -= 0.1 * force_push(q, k, 1.0)[1]
        q += 0.1 * v
    return q


@pytest.mark.parametrize("f", [orbit_reverse, orbit_forward])
def test_two_levels(f):
    """Reverse and forward mode of a function with a gradient, or a tangent, in its loop."""
    close(f(1.0, 2.0, 7), orbit_reverse(1.0, 2.0, 7), 1e-13)
    check(f, 1.0, 2.0, 7, hvp=True)


@tg.njit
def potential(p, k):
    s = 0.0
    for i in range(p.size):
        for j in range(i):
            s += k / np.sqrt((p[i] - p[j]) ** 2 + 0.1)
    return s


potential_slope = tg.grad(potential)
potential_both = tg.value_and_grad(potential, (0, 1))
potential_push = tg.jvp(potential)


@tg.njit
def dynamics(p, k, n):
    v = np.zeros_like(p)
    for _ in range(n):
        v -= 0.1 * potential_slope(p, k)
        p += 0.1 * v
    return (p * p).sum()


@tg.njit
def work(p, k, n):
    s = 0.0
    for i in range(n):
        value, (slope, by_k) = potential_both(p, k)
        s += value * by_k + slope[i]
        p -= 0.01 * slope
    return s


@tg.njit
def pushed(p, k, n):
    s = 0.0
    for _ in range(n):
        value, dot = potential_push(p, k, p)
        s += value * dot
        p *= 1.1
    return s


@pytest.mark.parametrize("f", [dynamics, work, pushed])
def test_two_levels_of_arrays(f):
    check(f, A, 0.5, 3)


# -- sources ---------------------------------------------------------------------------------------


def test_generated_sources():
    for text in (
        form.adjoint_source(A, M33, argnums=(0, 1)),
        form.tangent_source(A, M33),
        cubic.adjoint_source(0.5),
    ):
        tree = ast.parse(text)
        assert any(isinstance(node, ast.FunctionDef) for node in tree.body)
        assert "@numba.njit" in text
    assert "def form" in form.adjoint_source(A, M33)


def test_documented_names():
    assert cubic_slope.__name__.startswith("cubic")
    assert cubic.py_func(0.5) == cubic(0.5)


# -- wrong calls -----------------------------------------------------------------------------------

WRONG = {
    "argnums 1 is out of range": lambda: tg.grad(cubic, 1)(0.5),
    "argnums -2 is out of range": lambda: tg.jvp(cubic, -2)(0.5, 1.0),
    "argnums": lambda: tg.grad(cubic, "x")(0.5),
    "argnums is the number of an argument": lambda: tg.grad(cubic, ())(0.5),
    "argnums.*0.5|integer": lambda: tg.grad(cubic, 0.5)(0.5),
    "has type int64": lambda: tg.grad(cubic)(3),
    r"array\(int64": lambda: tg.grad(form)(np.arange(3), M33),
    "returns an array; use tg.jacobian": lambda: tg.grad(vector)(A),
    "not enough arguments": lambda: tg.grad(form)(A),
    "too many arguments": lambda: tg.grad(form)(A, M33, 1),
    "not enough": lambda: tg.jvp(cubic)(0.5),
    "tangent": lambda: tg.jvp(form)(A, M33, 1.0),
    "has_aux": lambda: tg.grad(cubic, has_aux=True),
    "hvp: argnums": lambda: tg.hvp(cubic, (0,)),
    "list": lambda: tg.grad(form)([0.3, 0.7, -0.4], M33),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls(message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        WRONG[message]()
    assert len(str(caught.value)) < 1500


def test_gradients_of_several_numbers_are_refused():
    f = module("import tapegrad as tg\n@tg.njit\ndef f(x):\n    return x, x * 2\n")
    with pytest.raises(tg.TransformError, match="several numbers"):
        tg.grad(f)(0.5)
    nothing = module("import tapegrad as tg\n@tg.njit\ndef f(a):\n    a[0] = 1.0\n")
    with pytest.raises(tg.TransformError, match="nothing that is real"):
        tg.grad(nothing)(A.copy())
    integer = module("import tapegrad as tg\n@tg.njit\ndef f(x):\n    return int(x)\n")
    with pytest.raises(tg.TransformError, match="nothing that is real"):
        tg.grad(integer)(0.5)


# -- gradients of named tuples, inside functions that are differentiated ---------------------------

PairOfReals = namedtuple("PairOfReals", "a b")


@tg.njit
def energy_of_pair(p, w):
    return p.a * p.a * p.b * w + (p.b * w) ** 3


@tg.njit
def energy_of_array(p, w):
    return (p.a * p.a).sum() * p.b * w + (p.b * w) ** 3


force_of_pair = tg.grad(energy_of_pair)
force_of_array = tg.grad(energy_of_array)
forces_of_pair = tg.grad(energy_of_pair, (0, 1))
energy_and_forces = tg.value_and_grad(energy_of_pair, (0, 1))
of_named_tuples = Cases()


@of_named_tuples(0.7, 0.3, 1.2, hvp=True)
def one_gradient(a, b, w):
    g = force_of_pair(PairOfReals(a, b), w)
    return g.a * g.b


@of_named_tuples(0.7, 0.3, 1.2)
def two_gradients(a, b, w):
    g, h = forces_of_pair(PairOfReals(a, b), w)
    return g.a * g.b * h


@of_named_tuples(0.7, 0.3, 1.2, hvp=True)
def value_and_two_gradients(a, b, w):
    v, (g, h) = energy_and_forces(PairOfReals(a, b), w)
    return g.a * g.b * h + v * v


@of_named_tuples(np.array([0.3, 0.7]), 0.3, 1.2)
def gradient_with_an_array(a, b, w):
    g = force_of_array(PairOfReals(a, b), w)
    return g.a.sum() * g.b


@pytest.mark.parametrize("name", of_named_tuples)
def test_gradients_of_named_tuples(name):
    of_named_tuples.check(name)
