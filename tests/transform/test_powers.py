"""All numbers of an array to the powers of all exponents of another one."""

import sys
from fractions import Fraction

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.testing import check_grads
from tapegrad.transform import powers

RNG = np.random.default_rng(0)
BASES = np.concatenate(
    [
        RNG.uniform(-1.0, 1.0, 20),
        RNG.uniform(-3.0, 3.0, 20),
        [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, np.inf, -np.inf, np.nan],
        [5e-324, 1e-308, 1e-200, -1e-160, 1e-100, 1e100, -1e150, 1e200, sys.float_info.max],
    ]
)
EXPONENTS = {
    "none": [],
    "one": [2.0],
    "short": range(3),
    "of_one_block": range(32),
    "of_two_blocks": range(33),
    "of_a_block_and_some": range(41),
    "many": range(200),
    "from_three": range(3, 80),
    "from_below_zero": range(-3, 40),
    "below_zero": [-2.0, -1.0],
    "falling": range(50)[::-1],
    "falling_to_two": range(2, 9)[::-1],
    "falling_below_zero": range(-3, 9)[::-1],
    "with_a_gap": [0, 1, 2, 4, 5, 6],
    "with_a_step": range(0, 20, 2),
    "equal": [2, 2, 2],
    "with_halves": [0.5, 1.5, 2.5],
    "special": [np.nan, np.inf, -np.inf, 0.0, 1.0],
    "ending_in_nan": [0.0, 1.0, np.nan],
    "too_large": [2.0**53, 2.0**53 + 1.0],
}


@numba.njit
def table(x, y):
    """Call the compiled function."""
    z = np.empty((x.size, y.size))
    powers.outer_power(x, y, z)
    return z


@pytest.mark.parametrize("name", EXPONENTS)
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_values_are_those_of_numpy(name, dtype):
    y = np.array(EXPONENTS[name], np.float64)
    if dtype is np.int64 and not np.array_equal(y, np.floor(y)):
        return
    if dtype is np.int64 and not np.all(np.isfinite(y)):
        return
    with np.errstate(all="ignore"):
        expected = BASES[:, None] ** y
    found = table(BASES, y.astype(dtype))
    np.testing.assert_allclose(found, expected, rtol=2e-15, atol=2e-323)
    signs = np.signbit(found) == np.signbit(expected)
    assert np.all(signs | np.isnan(expected))


@pytest.mark.parametrize("count", [3, 31, 32, 33, 64, 70])
def test_rows_and_columns_that_stay(count):
    @numba.njit
    def fill(x, y, z):
        powers.outer_power(x, y, z)

    x, y, z = RNG.uniform(size=4), np.arange(float(count)), np.zeros((6, 80))
    for exponents in (y, y[::-1].copy()):
        fill(x, exponents, z)
        np.testing.assert_allclose(z[:4, :count], x[:, None] ** exponents, rtol=1e-14)
        assert not z[4:].any()
        assert not z[:, count:].any()


def test_accuracy():
    x = np.concatenate([RNG.uniform(0.5, 1.5, 20), -RNG.uniform(0.9, 1.1, 20)])
    found = table(x, np.arange(300.0))
    for base, row in zip(x, found, strict=True):
        for exponent, own in enumerate(row):
            exact = Fraction(base) ** exponent
            assert abs(Fraction(own) - exact) <= 4 * Fraction(np.spacing(abs(float(exact))))


def test_arrays_that_are_not_contiguous():
    x, y = RNG.uniform(size=(8, 3)), np.arange(40.0)
    np.testing.assert_array_equal(table(x[::2, 1], y[::2]), table(x[::2, 1].copy(), y[::2].copy()))
    np.testing.assert_array_equal(table(x[0], y[::-1]), table(x[0], y)[:, ::-1])


# -- loops that become calls -----------------------------------------------------------------------


@tg.njit
def polynomial(c, t, k):
    z = np.empty((t.size, k.size))
    n, m = z.shape
    for i in range(n):
        for j in range(m):
            z[i, j] = t[i] ** k[j]
    return np.sum(np.sin(np.dot(z, c)))


@tg.njit
def part(c, t, k):
    z = np.zeros((t.size + 2, k.size + 40))
    n, m = t.size, k.size
    for i in range(n):
        for j in range(m):
            z[i, j] = t[i] ** k[j]
    return np.sum(c) * z[1, 2] + 3.0 * np.sum(z * z)


C, T = RNG.normal(size=40), np.concatenate([[0.0, 1.0], RNG.uniform(0.2, 1.0, 10)])


def is_call(function, argnums, *args):
    return "outer_power" in tg.grad(function, argnums).source(tuple(map(numba.typeof, args)))


@pytest.mark.compiled
@pytest.mark.parametrize("k", [np.arange(40), np.arange(40.0), np.arange(40.0)[::-1] + 0.5])
@pytest.mark.parametrize("argnums", [0, 1])
def test_gradients(k, argnums):
    check_grads(lambda *a: polynomial(*a, k), [C, T[2:]])
    own = tg.grad(polynomial, argnums)(C, T, k)
    other = tg.grad(lambda c, t: tg.sum(tg.sin((t[:, None] ** k) @ c)), argnums)(C, T)
    np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-12)
    assert is_call(polynomial, argnums, C, T, k)


@pytest.mark.compiled
def test_parts_of_larger_matrices():
    k = np.arange(40.0)
    check_grads(lambda c, t: part(c, t, k), [C, T[2:]])
    expected = part.py_func(C, T, k)
    assert tg.value_and_grad(part)(C, T, k)[0] == pytest.approx(expected)
    assert is_call(part, 0, C, T, k)


@tg.njit
def counted(x, y, c, rows, columns):
    z = np.zeros((max(rows, 0), y.size))
    for i in range(rows):
        for j in range(columns):
            z[i, j] = x[i] ** y[j]
    return c * np.sum(z)


@pytest.mark.compiled
def test_counts_of_rows_and_columns():
    gradient = tg.value_and_grad(counted, 2)
    for rows, columns in ((-1, 5), (3, -1), (0, 5), (3, 0), (2, 3), (12, 40)):
        expected = counted.py_func(T, np.arange(40.0), 2.0, rows, columns)
        value, own = gradient(T, np.arange(40.0), 2.0, rows, columns)
        assert (value, own) == pytest.approx((expected, expected / 2.0))
    assert is_call(counted, 2, T, np.arange(40.0), 2.0, 1, 1)


@tg.njit
def of_itself(c, t, k):
    z = np.zeros((t.size, k.size))
    n, m = z.shape
    for i in range(n):
        for j in range(m):
            z[i, j] = z[i, 0] ** k[j]
    for i in range(n):
        for j in range(m):
            z[i, j] = t[i] ** z[0, j]
    return np.sum(np.dot(z, c))


@tg.njit
def read_later(c, t, k):
    z = np.empty((t.size, k.size))
    a = 0.0
    for i in range(t.size):
        for j in range(k.size):
            a = t[i]
            z[i, j] = a ** k[j]
    return a * np.sum(np.dot(z, c))


@tg.njit
def in_place(c, t, k):
    z = np.ones((t.size, k.size))
    x = z[:, 0]
    n, m = z.shape
    for i in range(n):
        for j in range(m):
            z[i, j] = x[i] ** k[j]
    return np.sum(np.dot(z, c)) + np.sum(t)


@tg.njit(boundscheck=True)
def checked(c, t, k):
    z = np.empty((t.size, k.size))
    n, m = z.shape
    for i in range(n):
        for j in range(m):
            z[i, j] = t[i] ** k[j]
    return np.sum(np.dot(z, c))


@pytest.mark.compiled
@pytest.mark.parametrize("function", [read_later, in_place, of_itself, checked])
def test_loops_that_stay(function):
    k = np.arange(40.0)
    check_grads(lambda c: function(c, T, k), [C])
    assert not is_call(function, 0, C, T, k)


# -- recorded programs -----------------------------------------------------------------------------

PROGRAMS = {
    "product": lambda c, t: tg.sin((t[:, None] ** np.arange(40)) @ c),
    "sum": lambda c, t: tg.sin(tg.sum(c * t[:, None] ** np.arange(40.0), axis=1)),
    "vander": lambda c, t: tg.sin(tg.vander(t, 40) @ c),
    "rows": lambda c, t: tg.sin((tg.reshape(t, (12, 1)) ** np.arange(40)[None, :]) @ c),
    "fractions": lambda c, t: tg.sin((t[:, None] ** (np.arange(40) + 0.5)) @ c),
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("argnums", [0, 1])
def test_recorded(name, argnums):
    program = PROGRAMS[name]
    loss = tg.jit(lambda c, t: tg.sum(program(c, t)))
    t = T[2:] if name == "fractions" else T
    if name == "rows":
        t = np.concatenate([t, t])[:12]
    expected = tg.value_and_grad(lambda c, t: tg.sum(program(c, t)), argnums)(C, t)
    for own, other in zip(tg.value_and_grad(loss, argnums)(C, t), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-12)
    direction = RNG.normal(size=(C, t)[argnums].shape)
    own = tg.hvp(loss, argnums)(C, t, direction)
    other = tg.hvp(lambda c, t: tg.sum(program(c, t)), argnums)(C, t, direction)
    np.testing.assert_allclose(own, other, rtol=1e-8, atol=1e-11)


def test_powers_of_recorded_programs_have_loops_of_their_own():
    loss = tg.jit(lambda c, t: tg.sum(c * t[:, None] ** np.arange(40.0) * 2.0))
    assert "] ** c0[" in str(loss.inspect(C, T))
