"""Calls of other functions, recursion, rules of one's own, and what functions close over."""

import re

import numba
import numpy as np
import pytest
from check import Cases, called, check, close, directional, module, running

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
M33 = np.array([[1.3, 0.5, 0.1], [0.6, 2.4, 0.3], [0.2, -0.3, 1.7]])
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])
RATE = 1.7
COUNT = 3
case = Cases()


@tg.njit
def square(x):
    return x * x


@numba.njit
def cube(x):
    return x * x * x


@numba.njit(inline="always")
def inlined(x):
    return x * 3


@tg.njit
def scale(a, s):
    for i in range(a.size):
        a[i] *= s


@tg.njit
def two(x, y=2.0, n=1):
    return x * y**n, x + y


@tg.njit
def made(n, x):
    a = np.zeros(n)
    a[:] = x
    return a


@numba.njit
def moved(p, q):
    w = q.copy()
    w[-1] += p
    return w


@tg.njit
def apply(g, x):
    return g(x) * 2


@tg.njit
def twice(g, x):
    return apply(g, apply(g, x))


@tg.njit
def pair_product(a, i):
    return a[i] * a[i + 1]


@case(0.3, A, 1, argnums=(0, 1))
def called_again_for_a_test(x, a, k):
    """Only the first call is reversed, and the second one's arguments are not read."""
    b = a * 2.0
    y = np.sum(moved(0.7, b))
    b[k] = y
    if moved(x, b)[0] <= 0.1:
        y += 1.0
    return y + b[1]


@case(0.7, hvp=True)
def of_numbers(x):
    p, q = two(x)
    r = two(x, y=q, n=2)
    a = made(3, x)
    a[1] *= x
    s = square(x) + cube(square(x)) * cube(x) + inlined(x) * x
    return s + p * q + r[0] * r[1] + (a * a).sum()


@case(A, 0.7)
def that_write(a, x):
    scale(a, x)
    s = a[1]
    scale(a[1:3], a[0])
    for i in range(3):
        s += pair_product(a, i)
        a[i] = s
    scale(a[::-2], s)
    return (a * a).sum() * s


@case(0.7)
def functions_as_arguments(x):
    return apply(square, x) + apply(cube, x) + twice(square, x * 2)


@case(0.7)
def surroundings(x):
    s = x * RATE
    for i in range(COUNT):
        s += WEIGHTS[i] * x**i * WEIGHTS.size
    return s * (made(4, x) @ WEIGHTS) * np.dot(WEIGHTS, made(4, x))


@tg.njit
def line(x, a, b):
    return x * a + b * b


@tg.njit
def secant(g, low, high, args):
    a, b = low, high
    fa, fb = g(a, *args), g(b, *args)
    for _ in range(6):
        if abs(fb - fa) < 1e-14:
            break
        c = b - fb * (b - a) / (fb - fa)
        a, fa = b, fb
        b = c
        fb = g(b, *args)
    return b


@tg.njit
def cubic(x, p, q):
    return x * x * x - p * x - q


@tg.njit
def scaled_sum(x, pair):
    return (x * pair[0]).sum() * pair[1]


@tg.njit
def one_number_twice(x):
    return np.sin(x), np.sin(x)


@case(1.3)
def results_that_are_one_number(x):
    a, b = one_number_twice(x)
    return a * a * b


@case(1.3, 0.4)
def starred_in_a_helper(p, q):
    return secant(cubic, 1.0, 2.0, (p, q)) * square(p, *())


@case(A, 0.5, hvp=True)
def starred_tuples(x, w):
    t, nested = (w, x[1] * x[1]), (x, (w, x[0]))
    return line(x[0], *t) + scaled_sum(*nested)


def enclosed():
    factor, weights = 2.5, np.array([1.0, 2.0])

    @tg.njit
    def inner(x):
        return x * factor * weights[1] + square(x)

    return inner


def composed(g):
    @tg.njit
    def outer(x):
        return g(g(x)) * x

    return outer


def test_closures():
    check(enclosed(), 0.7)
    check(composed(square), 0.7)
    check(composed(composed(cube)), 0.7)


def test_closures_differ():
    """Functions of one source with other captured values have derivatives of their own."""

    def power(n):
        @tg.njit
        def f(x):
            return x**n

        return f

    assert [tg.grad(power(n))(1.0) for n in (1, 2, 3)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("scales", [(2.0, 3.0), (2, 3.0), (3.0, 3.0)])
def test_transforms_of_closures_in_turn(scales):
    """What is known of one does not mix with what is known of the other."""

    def cubes(a):
        @tg.njit
        def f(x):
            return np.sum(a * x**3)

        return f

    x = np.array([0.5, 1.5])
    one, other = map(cubes, scales)
    with running(False) as run:
        first = run(tg.grad(one))(x)
        hessians = [run(tg.hessian(f))(x) for f in (other, one)]
    np.testing.assert_allclose(first, scales[0] * 3.0 * x**2)
    for scale, hessian in zip(reversed(scales), hessians, strict=True):
        np.testing.assert_allclose(hessian, np.diag(scale * 6.0 * x))


# -- recursion -------------------------------------------------------------------------------------


@tg.njit
def power(n, x):
    if n <= 0:
        return 1.0
    return x * power(n - 1, x)


@tg.njit
def bisected(a, low, high):
    if high - low == 1:
        return a[low] * a[low]
    middle = (low + high) // 2
    return bisected(a, low, middle) * 2.0 + np.sin(bisected(a, middle, high))


@tg.njit
def minor(a, rows, k):
    """Determinant by expansion along columns; `rows` holds what is left, and is put back."""
    n = a.shape[0]
    if k == n:
        return 1.0
    s = 0.0
    sign = 1.0
    for i in range(n - k):
        r = rows[i]
        for j in range(i, n - k - 1):
            rows[j] = rows[j + 1]
        s += sign * a[r, k] * minor(a, rows, k + 1)
        for j in range(n - k - 1, i, -1):
            rows[j] = rows[j - 1]
        rows[i] = r
        sign = -sign
    return s


@tg.njit
def doubled(a, k):
    if k == a.size:
        return 0.0
    a[k] *= 2.0
    return a[k] ** 2 + doubled(a, k + 1) * a[0]


def test_recursion():
    check(power, 4, 0.7, hvp=True)
    check(bisected, A, 0, 4)
    check(doubled, A, 0)


@tg.njit
def tripled(a, n):
    if n == 0:
        return a * 2.0
    return tripled(a, n - 1) * 3.0


@tg.njit
def product_of_tripled(a):
    b = tripled(a, 2)
    return b[0] * b[1]


@tg.njit
def in_turn(a, n):
    if n == 0:
        return a * 1.5, a - 1.0
    b, c = in_turn(a, n - 1)
    return c * a, b


@tg.njit
def sum_in_turn(a):
    b, c = in_turn(a, 3)
    return b.sum() + (c**2).sum()


@tg.njit
def halved(a):
    if a.size == 1:
        return a * 3.0
    even = halved(a[::2])
    out = np.empty(2)
    out[0] = even[0]
    out[1] = a[1]
    return out


@tg.njit
def product_of_halved(a):
    b = halved(a)
    return b[0] ** 2 * b[1]


@tg.njit
def fourier(a):
    n = a.size
    if n == 1:
        return a * (1.0 + 0.0j)
    even, odd = fourier(a[::2]), fourier(a[1::2])
    out = np.empty(n, np.complex128)
    for k in range(n // 2):
        turned = np.exp(-2j * np.pi * k / n) * odd[k]
        out[k] = even[k] + turned
        out[k + n // 2] = even[k] - turned
    return out


@tg.njit
def of_fourier(a):
    z = fourier(a)
    s = 0.0
    for k in range(z.size):
        s += (k + 1) * (z[k].real ** 2 + z[k].imag)
    return s


@tg.njit
def in_branches(a, n):
    if n > 0:
        b = a + 1.0
        out = in_branches(b, n - 1) * 3
    else:
        out = a * 2.0
    return out


@tg.njit
def sum_in_branches(a):
    return (in_branches(a, 3) ** 2).sum()


@pytest.mark.parametrize(
    "f", [product_of_tripled, sum_in_turn, product_of_halved, of_fourier, sum_in_branches]
)
def test_recursive_functions_that_return_new_arrays(f):
    check(f, A[:2], hvp=True)


def test_recursive_determinant():
    (gradient,) = check(minor, M33, np.arange(3), 0, argnums=(0,))
    np.testing.assert_allclose(gradient, np.linalg.det(M33) * np.linalg.inv(M33).T, 1e-12)


# -- defaults --------------------------------------------------------------------------------------


@tg.njit
def with_defaults(x, y=3.0, n=2):
    return x * y**n


def test_default_arguments():
    assert tg.grad(with_defaults)(0.7) == 9.0
    assert tg.grad(with_defaults)(0.7, n=1) == 3.0
    assert tg.grad(with_defaults)(0.7, 2.0) == 4.0
    assert tg.value_and_grad(with_defaults)(x=1.0, n=1) == (3.0, 3.0)
    assert tg.grad(with_defaults, 1)(0.7) == pytest.approx(4.2)


@tg.njit
def optional(x, y=None):
    if y is None:
        return x * x
    return x * y


@case(0.7)
def leaves_arguments_out(x):
    return optional(x) + optional(x, 2.0) * with_defaults(x) + with_defaults(x, n=1)


# -- rules -----------------------------------------------------------------------------------------


@tg.njit(verify=False)
def ruled(x):
    return x * x


@ruled.defvjp
def ruled_vjp(x, z, g):
    return (g * 100.0,)


@ruled.defjvp
def ruled_jvp(x, x_dot):
    return 50.0 * x_dot


@tg.njit(verify=False)
def uses_ruled(x):
    s = x
    for _ in range(2):
        s += ruled(x * 2)
    return s


@tg.njit(verify=False)
def passes_ruled(x):
    return apply(ruled, x)


def test_rules_of_a_callee():
    assert tg.grad(uses_ruled)(0.7) == 401.0
    assert tg.jvp(uses_ruled)(0.7, 1.0)[1] == 201.0
    assert tg.grad(passes_ruled)(0.7) == 200.0
    assert tg.grad(ruled)(0.7) == 100.0
    assert tg.jvp(ruled)(0.7, 1.0)[1] == 50.0


@tg.njit
def normalized(a, s):
    return a / np.sqrt((a * a).sum()) * s


@normalized.defvjp
def normalized_vjp(a, s, z, g):
    length = np.sqrt((a * a).sum())
    u = a / length
    return s / length * (g - u * (u * g).sum()), (u * g).sum()


@case(A, 2.0, jvp=False)
def uses_normalized(a, s):
    return (normalized(a, s) * WEIGHTS).sum() * normalized(a * a, s)[1]


def test_a_function_without_source_of_its_own_needs_a_rule():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n    return np.trim_zeros(a)[0]\n"
    )
    with pytest.raises(tg.TransformError, match=r"np\.trim_zeros"):
        tg.grad(f)(A)


# -- stop_gradient, what is not differentiated -----------------------------------------------------


@tg.njit
def stopped(x, a):
    b = tg.stop_gradient(a) * a
    return tg.stop_gradient(x) * x + tg.stop_gradient(x * x) + b.sum()


def test_stop_gradient():
    g, h = tg.grad(stopped, (0, 1))(0.7, A)
    close(g, 0.7, 1e-14)
    close(h, A, 1e-14)
    close(tg.jvp(stopped, (0, 1))(0.7, A, 1.0, A)[1], 0.7 + A @ A, 1e-14)
    assert tg.hvp(stopped, 0)(0.7, A, 1.0) == 0.0


@case(0.7)
def random_numbers(x):
    np.random.seed(3)
    s = 0.0
    for _ in range(5):
        u = np.random.random()
        s += np.sin(u * x) * u
    return s


@tg.njit
def writes_both(a, b):
    a[0] *= 2
    return a[0] * b[0] + b[1] * a[1]


@case(A)
def aliased_arguments(a):
    return writes_both(a, a) + writes_both(a[1:], a[:2]) * writes_both(a[2:], a[:2])


@case(A)
def text_and_none(a):
    word = "sine"
    nothing = None
    s = 0.0
    if word == "sine" and nothing is None:
        s = np.sin(a[0])
    return s * a[1]


def test_functions_with_text_arguments():
    f = module(
        "import tapegrad as tg\n@tg.njit\ndef f(x, how, y):\n"
        "    if how == 'twice':\n        return x * 2\n    return x\n"
    )
    assert tg.grad(f)(0.7, "twice", None) == 2.0
    assert tg.grad(f)(0.7, "once", None) == 1.0


def test_arguments_after_the_call_in_forward_mode():
    value, dot = tg.jvp(that_write, (0, 1))(A.copy(), 0.7, A.copy(), 1.0)
    close(dot, directional(that_write, (A, 0.7), {0: A, 1: 1.0})[0], 1e-8)
    close(value, that_write(A.copy(), 0.7), 1e-13)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def written_after_stop(x, s):
    y = tg.stop_gradient(x)
    y[0] = s * s
    return x[0] * s + y[0] * x[1]


def test_stopped_array_is_a_copy():
    x = np.array([2.0, 3.0])
    gx, gs = tg.grad(written_after_stop, (0, 1))(x.copy(), 0.5)
    np.testing.assert_allclose(gx, [0.5, 0.25])
    np.testing.assert_allclose(gs, 2.0 + 2 * 0.5 * 3.0)
    _, tangent = tg.jvp(written_after_stop, (0, 1))(x.copy(), 0.5, np.ones(2), 1.0)
    np.testing.assert_allclose(tangent, gx.sum() + gs)


# -- callees that keep nothing ---------------------------------------------------------------------


@numba.njit
def branched(x, a):
    if x < a[0]:
        return np.exp(x) * x
    if x < a[1]:
        t = np.sin(x * a[1])
        return t * t + np.log(t + 2.0)
    return x


@tg.njit
def calls_short_function(x, a):
    total = 0.0
    for i in range(x.size):
        total += branched(x[i], a) ** 2
    return total


@tg.njit
def overwrites_what_a_short_function_reads(x, a):
    b = a.copy()
    y = branched(x[0], b)
    b[1] = 0.1 * y
    return y * branched(x[1], b) * b[1]


@called
def costly(x):
    return np.sin(np.exp(np.sin(np.exp(np.sin(np.exp(x))))))


@tg.njit
def calls_costly_function(x):
    return costly(x) ** 2 * x


def test_short_functions_compute_their_values_again():
    x, a = np.array([0.3, 0.7, 2.4]), np.array([0.5, 1.2])
    for function in (calls_short_function, overwrites_what_a_short_function_reads):
        check(function, x, a, argnums=(0, 1))
    assert "tape" not in calls_short_function.adjoint_source(x, a)


@called
def costly_branches(x):
    if x > 0.5:
        return costly(x)
    return np.sin(np.exp(x)) * np.cos(np.exp(np.sin(x)))


@tg.njit
def calls_costly_branches(x):
    return costly_branches(x) * costly_branches(x * x)


def test_numbers_of_a_function_are_kept_by_its_caller():
    check(calls_costly_function, 0.4, hvp=True)
    source = calls_costly_function.adjoint_source(0.4)
    assert "costly_forward(x)" in source
    assert "tape" not in source
    check(calls_costly_branches, 0.6, hvp=True)
    assert "tape" in calls_costly_branches.adjoint_source(0.6)


@called
def turned(x, y, n):
    r = np.sqrt(np.exp(x) + np.sin(y) ** 2)
    return np.arctan2(y, x) * r, n + 1, r * np.log(r)


@tg.njit
def calls_in_loops_and_branches(a, n):
    x, y, k = a[0], 0.5, 0
    best = 0.0
    while k < n:
        z, k, x = turned(x, y, k)
        if z > best:
            best, _, y = turned(z, a[k % a.size], 3)
        else:
            y = y * turned(y, z, 1)[2]
    return best * y + x


def test_numbers_of_calls_in_loops_and_branches():
    a = np.array([0.3, 0.7, 0.4])
    check(calls_in_loops_and_branches, a, 4, hvp=True)
    assert "turned_forward" in calls_in_loops_and_branches.adjoint_source(a, 4)


@called
def slope(u, s):
    return np.array([s * (u[1] - u[0]), u[0] * u[1] - u[1]])


@tg.njit
def steps_of_new_arrays(u, s):
    for _ in range(3):
        k = slope(u, s)
        middle = u + 0.5 * k
        u = u + 0.1 * slope(middle, s)
    return u[0] * u[1]


def test_arrays_that_no_reverse_reads_are_not_kept():
    """Of `k` and of the sum, the reverse needs the lengths, and of `middle` nothing."""
    u = np.array([0.3, 0.7])
    check(steps_of_new_arrays, u, 0.4, argnums=(0, 1))
    source = steps_of_new_arrays.adjoint_source(u, 0.4)
    assert "slope_reverse(0, s" in source
    assert {"k", "middle"}.isdisjoint(re.findall(r"push_array\(tape, top, (\w+),", source))
