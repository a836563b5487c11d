"""Array expressions, which become loops over elements."""

import numba
import numpy as np
import pytest
from check import Cases, module

import tapegrad as tg
from tapegrad.transform.generation import FASTER

A = np.array([0.3, 0.7, -0.4, 0.9])
B = np.array([1.3, 0.5, 0.8, 2.1])
M = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
COLUMN = np.array([[0.4], [1.7]])
ROW = np.array([[0.2, -0.6, 1.1]])
ONE = np.array([0.7])
EMPTY = np.zeros(0)
case = Cases()


# -- sums along an axis ----------------------------------------------------------------------------


@case(M, ROW, argnums=(0, 1))
@case(M, COLUMN, argnums=(0, 1))
def a_method_whose_axis_is_named(m, r):
    across = np.minimum(m, np.sin(r)).sum(axis=0)
    along = (m * r).sum(axis=-1)
    return across[0] * along[1] + np.tanh((m + r).sum(axis=1))[0]


# -- rows and columns of parts of an array ---------------------------------------------------------


@case(M, 1, argnums=(0,), hvp=True)
@case(M, -1, argnums=(0,))
@case(M.T.copy(), -1, argnums=(0,))
@case(M[::-1], 0, argnums=(0,))
def one_of_a_part(m, k):
    """An index in a part may count from the end, which is not that of the array."""
    some, others, middle = m[:-1], m[1:], m[:, 1:][:, :1]
    total = np.sum(np.sin(some[-1]) * np.cos(others[0])) + np.sum(np.exp(m[:, 1:][:, k]))
    for i in range(-1, 1):
        total += np.sum(others[i] ** 3) + np.sum(np.sin(middle[k]))
    part = np.zeros(m.shape)[1:]
    part[0] = others[-1] * some[0] + m[k]
    return total * np.sum(part * part)


# -- shapes ----------------------------------------------------------------------------------------


@case(A, B, argnums=(0, 1), hvp=True)
@case(A, ONE, argnums=(0, 1))
@case(ONE, A, argnums=(0, 1))
@case(EMPTY, EMPTY, argnums=(0, 1))
@case(EMPTY, ONE, argnums=(0, 1))
@case(A[::2], B[::-2], argnums=(0, 1))
def vectors(x, y):
    z = x * y + 0.5 * x
    return np.sum(z * np.sin(z) - y)


@case(M, np.array([0.4, 1.2, -0.7]), argnums=(0, 1))
@case(M, ONE, argnums=(0, 1))
@case(M.T.copy().T, np.array([0.4, 1.2, -0.7]), argnums=(0, 1))
def a_matrix_and_a_vector(m, v):
    z = np.exp(m * v) - v
    return np.sum(z * z + m)


@case(COLUMN, ROW, argnums=(0, 1))
@case(M, ROW, argnums=(0, 1))
@case(COLUMN, M, argnums=(0, 1))
@case(np.zeros((0, 3)), ROW, argnums=(0, 1))
def axes_of_one(m, r):
    z = m * r - np.cos(r)
    return np.sum(z * z)


@case(A, B, argnums=(0, 1))
def new_axes(x, y):
    between = x[:, None] - y[None, :]
    return np.sum(between * between * x)


@case(np.arange(24.0).reshape(2, 3, 4) / 9.0, A)
def three_axes(a, v):
    return np.sum(np.tanh(a * v) * a)


@case(A)
def slices(x):
    inner = x[1:-1] * x[2:] - x[:-2]
    return np.sum(inner * x[:2] + inner * x[1:3])


@case(np.linspace(0.1, 0.9, 7))
def a_carried_array_that_shrinks(x):
    y = x * 1.0
    for _ in range(3):
        y = y[1:] * y[:-1] + x[: y.size - 1]
    return np.sum(y * y)


@case(A, 3)
@case(A, 0)
def a_carried_array(x, steps):
    y = x.copy()
    for k in range(steps):
        slope = np.sin(y) - 0.1 * k * y
        y = y + 0.1 * slope * x
    return np.sum(y * y)


@case(A, B, True)
@case(A, B, False)
def chosen_arrays(x, y, first):
    z = x * y if first else x[1:] - y[1:]
    return np.sum(z * z) + np.sum(z)


# -- operations ------------------------------------------------------------------------------------


@case(B, np.array([1, 2, 3, 4]))
def integers_among_them(x, n):
    return np.sum(x * n + n / x - 2 * n * x)


@case(B, A, argnums=(0, 1))
def powers(x, y):
    return np.sum(x**2 + x**-1 + x**0 + x**-2 + x**0.5 + x**y + 2.0**y + x**3.0)


@case(A, 0.7, argnums=(0, 1), hvp=True)
def numbers(x, s):
    y = s * x - x / s + (-x) * (s + 1)
    return np.sum(np.maximum(y, 0.1) * np.arctan2(y, x)) + (x * s).sum()


@case(A)
def a_part_used_twice(x):
    y = x * x
    z = y + np.exp(y)
    return np.sum(z * y) + np.sum(z)


@case(M, 0.5)
def sums_of_sums(m, s):
    total = 0.0
    for i in range(m.shape[0]):
        total += s * np.sum(m[i] * m[i] - s) ** 2
    return total


@case(M, np.array([0.4, 1.2, -0.7]), argnums=(0, 1), hvp=True)
@case(np.zeros((2, 0)), EMPTY, argnums=(0, 1))
@case(np.zeros((0, 3)), np.ones(3), argnums=(0, 1))
def sums_along_the_last_axis(m, v):
    distances = np.sum((m - v) ** 2, axis=1)
    total = 0.0
    for i in range(distances.size):
        total += np.sqrt(distances[i])
    return total + np.sum((m * v).sum(-1) * distances)


@case(M, np.array([0.4, 1.2, -0.7]), argnums=(0, 1))
def sums_along_the_first_axis(m, v):
    return np.sum(np.sum(m * v, axis=0) * v) + np.min(np.sum(m * m * v, 1))


# -- order -----------------------------------------------------------------------------------------


@case(A)
def written_before_the_use(x):
    y = x.copy()
    z = y * y
    y[1] = 5.0 * x[0]
    return np.sum(z + y)


@case(A)
def written_by_a_loop_before_the_use(x):
    y = x.copy()
    z = y * x
    for i in range(3):
        y[i + 1] = y[i]
    return np.sum(z * y)


@numba.njit
def halved(y):
    y *= 0.5
    return y[0]


@case(A)
def written_by_a_call_before_the_use(x):
    y = x.copy()
    z = y * x
    first = halved(y)
    return np.sum(z * y) * first


@case(A)
def overlapping_stores(x):
    y = x.copy()
    y[1:] = 2.0 * y[:-1] + y[1:] * y[1:]
    y[:] = y[::-1] * x
    y += 0.5 * y * y
    y *= y - x
    return np.sum(y * x)


# -- stores of expressions -------------------------------------------------------------------------


@case(A, B, argnums=(0, 1), hvp=True)
@case(ONE, ONE, argnums=(0, 1))
def stored_in_parts(x, y):
    k = np.empty(x.size)
    k[0] = x[0] * y[0]
    k[1:] = x[1:] * y[:-1] - np.sin(x[:-1])
    k[:-1] += k[1:].copy() * x[:-1]
    k[:] -= x * y
    return np.sum(k * k)


@case(M, ROW[0], 1, argnums=(0, 1), hvp=True)
@case(M, ROW[0], -1, argnums=(0, 1))
def stored_in_rows_and_columns(m, v, row):
    k = np.zeros(m.shape)
    k[row] = m[0] * v
    k[1 - row % 2, 1:] += v[1:] ** 2 - m[1, :-1]
    k[:, 0] = m[:, 1] * m[:, 2]
    k[-1, :2] -= np.exp(v[:2])
    k[1:, 1:] = k[1:, 1:] * 2.0
    return np.sum(k * k * k)


@case(A, ONE, argnums=(0, 1))
@case(ONE, ONE, argnums=(0, 1))
def stored_with_another_extent(x, y):
    k = np.zeros(x.size)
    k[:] = y * y
    k[1:] += 3.0 * k[:1]
    return np.sum(k * x)


@case(A, 2)
def stored_where_it_is_read(x, steps):
    k = np.ones(x.size)
    for _ in range(steps):
        part = k[:-1]
        k[1:] = part * x[1:] + k[1:]
        same = k
        k[:-1] -= same[1:] * x[:-1]
    return np.sum(k * k)


@case(A, True)
@case(A, False)
def stored_where_it_may_be_read(x, flag):
    k = x * x
    z = k if flag else x
    k[1:] = z[:-1] * 2.0 + x[1:]
    u, w = np.ones(x.size), x.copy()
    for _ in range(3):
        w[1:] = u[:-1] * x[1:] + w[:-1]
        u, w = w, u
    return np.sum(k * k) + np.sum(u * w)


@numba.njit
def the_array(k):
    return k


@case(A)
def literals_of_tuples(x):
    r = (x[0], x[1])
    a, b = np.array([r, r]), np.array([(x[0], 1), (2, x[1])])
    a[0] = x[:2] * 2.0
    c = np.array(((x[0], x[1]), (x[2], x[3])))
    return np.sum(a * b) + np.sum(b * c)


@case(A)
def stored_where_a_call_may_have_put_it(x):
    k = x.copy()
    same, both = the_array(k), (k, x)
    k[1:] = same[:-1] * x[1:]
    k[1:] += both[0][:-1] * 2.0
    x[1:] = k[:-1] * k[1:]
    return np.sum(k * x)


@case(A, 2)
@case(A, 0)
def used_in_a_branch_and_a_loop(x, k):
    y = x * x + 1.0
    z = 3.0 * x
    if k > 1:
        z = z - y
    total = 0.0
    for i in range(k):
        total += np.sum(z * x) * i
    return total + np.sum(z)


@case(A)
def parts_of_what_was_computed(x):
    y = x * x + x
    y[0] = 2.0
    z = y[1:] * y[:-1]
    z[1] += x[2]
    return np.sum(z * z)


@case(A, B, argnums=(0, 1), hvp=True)
def a_projection_in_place(x, y):
    u = np.ones(x.size)
    u -= (u @ x) * x
    u *= y @ u
    return np.sum(u * u * u)


@case(np.arange(12.0).reshape(2, 2, 3) / 7.0, 0.3, np.array([0.5, -0.8]), argnums=(0, 1, 2))
def products_with_transposed_differences(m, number, v):
    found = np.empty((2, 3))
    for k in range(2):
        found[k, :] = np.dot((m[k, :, :] - number).T, v)
    return np.sum(found * found)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def quotient(x, y):
    return np.sum(x / y)


def test_divisions_by_zero_are_infinite_as_in_arrays():
    x, y = np.array([1.0, 2.0]), np.array([0.0, 4.0])
    value, (gx, gy) = tg.value_and_grad(quotient, (0, 1))(x, y)
    assert value == np.inf
    np.testing.assert_array_equal(gx, [np.inf, 0.25])
    assert gy[0] == -np.inf and gy[1] == pytest.approx(-2.0 / 16.0)


@pytest.mark.parametrize("n", [2, 5])
def test_stores_of_another_shape(n):
    @tg.njit
    def stored(x, y):
        k = np.zeros(x.size)
        k[1:] = y * y
        return np.sum(k)

    with pytest.raises(ValueError, match=r"cannot assign slice|do not broadcast"):
        tg.grad(stored, (0, 1))(np.ones(4), np.ones(n))


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 3), (2,)), ((2, 3), (3, 3))])
def test_shapes_that_do_not_broadcast(shapes):
    @tg.njit
    def product(x, y):
        return np.sum(x * y)

    with pytest.raises(ValueError, match="do not broadcast"):
        tg.grad(product)(*map(np.ones, shapes))


def test_no_array_is_made_for_a_part_of_an_expression():
    @tg.njit
    def f(x, y):
        z = x + 0.5 * y * y
        return np.sum(z * z - x)

    text = f.adjoint_source(A, B).partition(FASTER)[0]
    assert text.count("np.empty(") == 1, "z"
    assert "arrays." not in text


def test_no_array_is_made_for_what_is_stored():
    @tg.njit
    def f(x):
        k = np.empty(x.size)
        k[0] = 0.0
        k[1:] = x[1:] * x[:-1]
        return np.sum(k * k)

    text = f.adjoint_source(A).partition(FASTER)[0]
    assert text.count("np.empty(") == 1, "k"
    assert ".copy(" not in text and "arrays." not in text


@pytest.mark.parametrize("text", ["x**-1.0", "np.power(x, -1)", "np.power(x, -1.0)"])
def test_negative_powers_of_zero_are_infinite_as_in_arrays(text):
    f = module(
        f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x):\n    return np.sum({text})\n"
    )
    x = np.array([0.0, 2.0])
    value, gradient = tg.value_and_grad(f)(x)
    assert value == np.inf
    np.testing.assert_array_equal(gradient, [-np.inf, -0.25])
    assert tg.jvp(f)(x, np.array([0.0, 1.0])) == (np.inf, -0.25)


@tg.njit
def second_differences(x):
    bent = x[2:] - 2.0 * x[1:-1] + x[:-2]
    return np.sum(bent * bent)


def test_extents_that_are_known_to_be_equal_need_no_step():
    f, args, _ = case["a_carried_array"]
    assert "stride" not in f.adjoint_source(*args)
    assert "stride" not in second_differences.adjoint_source(A)
    f, args, _ = case["a_carried_array_that_shrinks"]
    assert "stride" in f.adjoint_source(*args)


@tg.njit
def ends_left_out(x):
    total = 0.0
    for _ in range(2):
        total += np.sum(np.sin(x[3:-2]) * x[2:-3]) + np.sum(x[:-1] * x[1:])
    return total


@pytest.mark.parametrize("n", range(9))
def test_extents_of_slices(n):
    x = np.linspace(0.5, 1.5, n)
    value, gradient = tg.value_and_grad(ends_left_out)(x)
    assert value == pytest.approx(ends_left_out.py_func(x), rel=1e-14)
    expected = np.zeros(n)
    expected[3:-2] += 2.0 * np.cos(x[3:-2]) * x[2:-3]
    expected[2:-3] += 2.0 * np.sin(x[3:-2])
    expected[:-1] += 2.0 * x[1:]
    expected[1:] += 2.0 * x[:-1]
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)


@tg.njit
def steps_of_slices(y, steps):
    n = y.size
    for _ in range(steps):
        k = np.empty(n)
        k[0] = -y[0]
        k[1:] = y[:-1] - y[1:]
        y = y + 0.1 * k
    return np.sum(y * y)


def test_no_array_is_kept_for_its_length():
    verified = steps_of_slices.adjoint_source(A, 3).split(FASTER)[0]
    reverse = verified.split("-1, -1):", 1)[1]
    assert ".size" not in reverse
    assert "runtime.shortened(n_1, 1)" in reverse
    assert "pop_array" not in reverse


@tg.njit
def lengths_in_branches(x, n):
    w = np.ones(n) * x[0] if n > 2 else np.ones(n + 1) * x[1]
    total = np.sum(w * w)
    for k in range(1, 3):
        v = np.ones(k) * x[k]
        total += np.sum(v * v * v)
    u = w * 2.0
    return total + np.sum(u * w)


@pytest.mark.parametrize("n", [1, 4])
def test_extents_of_blocks(n):
    value, gradient = tg.value_and_grad(lengths_in_branches)(A, n)
    assert value == pytest.approx(lengths_in_branches.py_func(A, n), rel=1e-14)
    length, place = (n, 0) if n > 2 else (n + 1, 1)
    expected = np.zeros(A.size)
    expected[place] = 6.0 * length * A[place]
    for k in range(1, 3):
        expected[k] += 3.0 * k * A[k] ** 2
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)


TABLE = np.array([1.0, 2.0, 3.0])
MATRIX = np.array([[1.0], [2.0]])


@tg.njit
def with_tables(x):
    y = x * TABLE
    z = y + x
    m = MATRIX * x
    u = m - x
    return np.sum(z * z) + np.sum(y) + np.sum(u * m)


@pytest.mark.parametrize("x", [np.array([0.3]), np.array([0.3, 0.7, -0.2])])
def test_arrays_from_outside_are_broadcast(x):
    def value(x):
        return with_tables.py_func(x)

    steps = 1e-6 * np.eye(x.size)
    expected = [(value(x + step) - value(x - step)) / 2e-6 for step in steps]
    found, gradient = tg.value_and_grad(with_tables)(x)
    assert found == pytest.approx(value(x), rel=1e-14)
    np.testing.assert_allclose(gradient, expected, rtol=1e-7)
