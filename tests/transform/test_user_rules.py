"""What rules of the user's return: what does not suit is an error that names the rule."""

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 1.5, 0.2])


def caller(vjp=None, jvp=None):
    """A function that calls one with rules."""

    @tg.njit(verify=False)
    def scaled(a, s):
        return a * s

    @tg.njit(verify=False)
    def f(a, s):
        b = scaled(a, s)
        return b.sum() * b[0]

    if vjp is not None:
        scaled.defvjp(vjp)
    if jvp is not None:
        scaled.defjvp(jvp)
    return f


def right(a, s, z, g):
    return g * s, (g * a).sum()


def short(a, s, z, g):
    return g[:2] * s, (g * a).sum()


def one(a, s, z, g):
    return (g * s,)


def bare(a, s, z, g):
    return g * s


def number(a, s, z, g):
    return 1.0, (g * a).sum()


def nothing(a, s, z, g):
    return 0.0, (g * a).sum()


def array(a, s, z, g):
    return g * s, g * a


def matrix(a, s, z, g):
    return (g * s).reshape((1, -1)), 0.0


def none(a, s, z, g):
    return None, 0.0


@pytest.mark.parametrize(
    ("rule", "error", "text"),
    [
        (short, ValueError, r"the cotangent of argument 0 \(a\) another shape"),
        (one, tg.TransformError, r"returns 1 cotangent for 2 arguments \(a, s\)"),
        (bare, tg.TransformError, "returns an array of float64 with 1 dimension; a reverse rule"),
        (number, ValueError, r"a number as the cotangent of argument 0 \(a\)"),
        (array, tg.TransformError, r"of argument 1 \(s\) is an array .* must be a number"),
        (matrix, tg.TransformError, r"of argument 0 \(a\) is an array .* with 2 dimensions"),
        (none, tg.TransformError, r"of argument 0 \(a\) is none"),
    ],
)
def test_results_of_reverse_rules(rule, error, text):
    f = caller(rule)
    wanted = rf"the rule {rule.__name__} \(defvjp of scaled\) is wrong: .*{text}"
    with pytest.raises(error, match=wanted):
        tg.grad(f, (0, 1))(A, 2.0)
    with pytest.raises(error, match=wanted):
        tg.hvp(caller(rule, right_jvp))(A, 2.0, A)


def test_zero_stands_for_an_array_without_influence():
    by_a, by_s = tg.grad(caller(nothing), (0, 1))(A, 2.0)
    assert not by_a.any() and by_a.shape == A.shape
    assert by_s == tg.grad(caller(right), 1)(A, 2.0)
    check(caller(nothing), A, 2.0, argnums=(1,), jvp=False)


def right_jvp(a, s, a_dot, s_dot):
    return a_dot * s + a * s_dot


def short_jvp(a, s, a_dot, s_dot):
    return (a_dot * s)[1:]


def number_jvp(a, s, a_dot, s_dot):
    return s_dot


def tuple_jvp(a, s, a_dot, s_dot):
    return (a_dot, s_dot)


@pytest.mark.parametrize(
    ("rule", "error", "text"),
    [
        (short_jvp, ValueError, "the tangent of the result another shape"),
        (number_jvp, tg.TransformError, r"tangent of the result is a number \(float64\); it must"),
        (tuple_jvp, tg.TransformError, "tangent of the result is a tuple of 2; it must be an arr"),
    ],
)
def test_results_of_forward_rules(rule, error, text):
    f = caller(right, rule)
    wanted = rf"the rule {rule.__name__} \(defjvp of scaled\) is wrong: .*{text}"
    with pytest.raises(error, match=wanted):
        tg.jvp(f, (0, 1))(A, 2.0, A, 1.0)


def without_method(a, s, z, g):
    return g * s.unknown(), np.sum(g * a)


def without_function(a, s, a_dot, s_dot):
    return np.unknown(a_dot)


def test_rules_that_numba_does_not_compile():
    where = r"is wrong: numba does not compile it for \(array\(float64, 1d, C\), .*"
    wanted = rf"rule without_method \(defvjp of scaled\) {where}'unknown' of type float64"
    with pytest.raises(tg.TransformError, match=wanted):
        tg.grad(caller(without_method))(A, 2.0)
    wanted = rf"rule without_function \(defjvp of scaled\) {where}no attribute 'unknown'"
    with pytest.raises(tg.TransformError, match=wanted):
        tg.jvp(caller(right, without_function))(A, 2.0, A)


def test_right_rules():
    check(caller(right, right_jvp), A, 2.0, hvp=True)
    outer = tg.jvp(tg.jvp(caller(right, right_jvp), 1), 1)
    assert outer(A, 2.0, 1.0, 1.0)[1][1] == pytest.approx(2 * A.sum() * A[0])


def test_number_of_arguments():
    def reverse(a, s, g):
        return a, s

    def forward(a, a_dot):
        return a_dot

    with pytest.raises(TypeError, match=r"reverse \(defvjp of scaled\) takes 3 arg.*, here 4"):
        caller(reverse)
    with pytest.raises(TypeError, match=r"forward \(defjvp of scaled\) takes 2 arg.*, here 4"):
        caller(jvp=forward)


# -- tuples ----------------------------------------------------------------------------------------


@tg.njit(verify=False)
def both(pair, n):
    return pair[0] * pair[1], n, pair[1].sum()


@both.defjvp
def both_jvp(pair, n, pair_dot, n_dot):
    return pair_dot[0] * pair[1] + pair[0] * pair_dot[1], 0, 10.0 * pair_dot[1].sum()


@both.defvjp
def both_vjp(pair, n, z, g):
    return ((g[0] * pair[1]).sum(), g[0] * pair[0] + 10.0 * g[2]), 0


@tg.njit(verify=False)
def of_both(x, a):
    y, n, s = both((x, a), 3)
    return y.sum() * n + s


def test_tuples():
    by_x, by_a = tg.grad(of_both, (0, 1))(2.0, A)
    assert by_x == pytest.approx(3 * A.sum())
    np.testing.assert_allclose(by_a, 16.0)
    assert tg.jvp(of_both, 1)(2.0, A, A)[1] == pytest.approx(16.0 * A.sum())


def test_a_number_for_a_tuple():
    @tg.njit
    def inner(pair):
        return pair[0] * pair[1]

    @inner.defvjp
    def rule(pair, z, g):
        return (g,)

    @tg.njit
    def f(x, y):
        return inner((x, y))

    with pytest.raises(tg.TransformError, match=r"0 \(pair\) is a number .*not a tuple of 2"):
        tg.grad(f)(1.0, 2.0)


# -- a forward rule alone --------------------------------------------------------------------------


@tg.njit(verify=False)
def square(x):
    return x * x


@square.defjvp
def square_jvp(x, x_dot):
    return 20.0 * x * x_dot


@tg.njit(verify=False)
def of_square(x):
    return square(x) * x


def test_a_forward_rule_alone():
    assert tg.jvp(of_square)(2.0, 1.0) == (8.0, 84.0)
    assert tg.jvp(square)(2.0, 1.0) == (4.0, 40.0)
    assert tg.grad(of_square)(2.0) == 84.0
    assert tg.grad(square)(2.0) == 40.0


@tg.njit
def smallest(a):
    return np.linalg.eigvals(np.diag(a)).min()


@smallest.defjvp
def smallest_jvp(a, a_dot):
    return a_dot[np.argmin(a)]


@tg.njit
def of_smallest(a):
    return smallest(a) * smallest(a * a)


def test_a_forward_rule_for_what_reverse_mode_refuses():
    value, tangent = tg.jvp(of_smallest)(A, np.arange(5.0))
    assert value == pytest.approx(-0.4 * 0.04)
    assert tangent == pytest.approx(2.0 * 0.04 - 0.4 * 2 * 0.2 * 4.0)
    with pytest.raises(tg.TransformError, match=r"smallest has a forward rule only, and takes an"):
        tg.grad(of_smallest)(A)


# -- second derivatives follow the rule, not the source --------------------------------------------


@tg.njit
def root(a):
    """The root of x ** 3 + x = a, by bisection: its source does not depend on a smoothly."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if middle**3 + middle < a:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@root.defvjp
def root_vjp(a, x, g):
    return (g / (3.0 * x * x + 1.0),)


@tg.njit
def of_root(v):
    return np.sum(v) * root(v[0] * v[1])


@tg.njit
def power(x, i):  # the name of a function that rules are made of
    return np.floor(x) * i


@power.defjvp
def power_jvp(x, n, x_dot, n_dot):
    return 3.0 * x * x * n * x_dot + x**3 * n_dot


@tg.njit
def of_power(v):
    return power(v[0], v[1])


def test_forward_mode_follows_a_reverse_rule():
    x = root(2.0)
    first, second = 1.0 / (3.0 * x * x + 1.0), -6.0 * x / (3.0 * x * x + 1.0) ** 3
    assert tg.jvp(root)(2.0, 1.0) == (x, pytest.approx(first))
    assert tg.grad(tg.grad(root))(2.0) == pytest.approx(second)
    assert tg.hessian(root)(2.0) == pytest.approx(second)
    assert tg.hvp(root)(2.0, 3.0) == pytest.approx(3.0 * second)


def test_hessians_follow_a_reverse_rule_also_of_tensors():
    v = np.array([1.0, 2.0, 3.0])
    a, total, x = v[0] * v[1], np.sum(v), root(v[0] * v[1])
    first, second = 1.0 / (3.0 * x * x + 1.0), -6.0 * x / (3.0 * x * x + 1.0) ** 3
    by_a, one = np.array([v[1], v[0], 0.0]), np.ones(3)
    expected = first * (np.outer(one, by_a) + np.outer(by_a, one))
    expected += total * (second * np.outer(by_a, by_a))
    expected[0, 1] += total * first
    expected[1, 0] += total * first
    assert a == 2.0
    np.testing.assert_allclose(tg.hessian(of_root)(v), expected)
    np.testing.assert_allclose(tg.hessian(lambda v: of_root(v) * 1.0)(v), expected)
    found = tg.autograd.functional.hessian(of_root, tg.tensor(v, requires_grad=True))
    np.testing.assert_allclose(found.numpy(), expected)


def test_reverse_mode_follows_a_forward_rule_of_numbers():
    assert tg.grad(power, (0, 1))(2.0, 3.0) == (36.0, 8.0)
    np.testing.assert_allclose(tg.hessian(of_power)(np.array([2.0, 3.0])), [[36, 12], [12, 0]])


def test_a_forward_rule_of_complex_numbers():
    @tg.njit
    def square(z):
        return z * z

    @square.defjvp
    def square_jvp(z, z_dot):
        return 2.0 * z * z_dot

    @tg.njit
    def f(z):
        return square(z).real

    assert tg.grad(f)(1.0 + 2.0j) == np.conj(2.0 * (1.0 + 2.0j))


def test_the_jacobian_has_the_rows_of_a_reverse_rule():
    @tg.njit
    def cube(x):
        return x * x * x

    @cube.defvjp
    def cube_vjp(x, z, g):
        return (3.0 * g * x * x,)

    np.testing.assert_allclose(tg.jacobian(cube)(A), np.diag(3.0 * A**2))
    with pytest.raises(tg.TransformError, match=r"cube has a reverse rule only.*\(cube\.defjvp\)"):
        tg.jvp(cube)(A, A)


WRITES = """
import numpy as np, tapegrad as tg

@tg.njit
def product(y):
    {copy}
    y[0] *= y[1]
    return y[0] * 2.0

@product.defvjp
def product_vjp(y, z, g):
    found = np.zeros(y.size)
    found[0] = 2.0 * y[1] * g
    found[1] = 2.0 * y[0] * g
    return (found,)

@tg.njit
def f(x, a):
    return product(a) * x
"""


def test_a_function_with_a_rule_works_on_a_copy():
    a = np.array([0.3, 0.7, -0.4])
    with pytest.raises(tg.TransformError, match=r"let it copy the array first \(y = y\.copy\(\)\)"):
        tg.grad(module(WRITES.format(copy="pass")), 1)(2.0, a.copy())
    f = module(WRITES.format(copy="y = y.copy()"))
    np.testing.assert_allclose(tg.grad(f, 1)(2.0, a), [4.0 * a[1], 4.0 * a[0], 0.0])
