"""Large arrays of generated code, whose memory is used again."""

import gc
import threading

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import pool
from tapegrad.transform import blas
from tapegrad.transform.tape_memory import large_arrays

LARGE = 3 * pool.LEAST // 8


@pytest.fixture(autouse=True)
def _started():
    large_arrays.start_pool("allocate")
    release()
    yield
    release()


def release():
    tg.set_pool_limit(0)
    tg.set_pool_limit(None)


def waiting():
    """Return how many blocks of memory wait, and how many bytes they are said to have."""
    gc.collect()
    return np.count_nonzero(pool.table[: pool.PLACES]), pool.table[pool.WAITING]


@numba.njit
def made(shape, fill):
    found = large_arrays.empty(shape)
    found.reshape(-1)[:] = fill
    return found


@numba.njit
def cleared(shape):
    return large_arrays.zeros(shape)


@numba.njit
def computed(x, y):
    return large_arrays.duplicate(x), blas.dot_22(x, y), blas.dot_22(x.T, y)


@numba.njit
def with_a_literal(n):
    return large_arrays.empty((n, 2)), large_arrays.zeros((n, 2))


@pytest.mark.parametrize("shape", [(5,), (0,), (0, 3), (2, 3, 4), (LARGE,), (3, LARGE // 3)])
def test_arrays(shape):
    for fill in (1.0, 2.0):
        found = made(shape, fill)
        assert found.shape == shape
        assert found.flags.c_contiguous
        assert (found == fill).all()
        assert (cleared(shape) == 0.0).all()


def test_memory_is_used_again():
    found = made((LARGE,), 1.0)
    address = found.ctypes.data
    del found
    assert waiting()[0] == 1
    assert waiting()[1] >= 8 * LARGE
    zeros = cleared((LARGE // 2, 2))
    assert zeros.ctypes.data == address
    assert not zeros.any()
    assert waiting() == (0, 0)


def test_small_arrays_do_not_wait():
    made((pool.LEAST // 16,), 1.0)
    assert waiting() == (0, 0)


def test_arrays_of_other_sizes_do_not_take_it():
    made((LARGE,), 1.0)
    found = made((LARGE // 2,), 2.0)
    assert waiting()[0] == 1
    more = made((LARGE * 2,), 3.0)
    assert waiting()[0] == 1
    assert found[0] == 2.0
    assert more[0] == 3.0


def test_what_waits_is_bounded():
    limit = 20 * 8 * LARGE
    tg.set_pool_limit(limit)
    count = limit // (8 * LARGE) + 10
    arrays = [made((LARGE,), 1.0) for _ in range(count)]
    arrays.clear()
    blocks, size = waiting()
    assert 1 < blocks <= pool.PLACES
    assert 0.9 * limit <= size <= limit
    release()
    assert waiting() == (0, 0)


def test_threads():
    wrong = []

    def work(number):
        for _ in range(30):
            arrays = [made((LARGE + k,), number) for k in range(3)]
            wrong.extend(a for a in arrays if (a != number).any())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    release()
    assert waiting() == (0, 0)


def test_products_and_copies():
    square, y = np.sin(np.arange(9.0)).reshape(3, 3), np.cos(np.arange(15.0)).reshape(3, 5)
    copy, one, other = computed(square, y)
    np.testing.assert_array_equal(copy, square)
    assert not np.shares_memory(copy, square)
    np.testing.assert_allclose(one, square @ y)
    np.testing.assert_allclose(other, square.T @ y)


def test_shapes_with_literals():
    one, other = with_a_literal(7)
    assert one.shape == other.shape == (7, 2)


def test_errors():
    with pytest.raises(ValueError, match="negative dimensions"):
        made((-1, 2), 0.0)
    with pytest.raises((MemoryError, ValueError)):
        made((1 << 62, 4), 0.0)


def test_gradients_use_it():
    @tg.njit
    def f(x):
        y = np.sin(x) * x
        z = np.empty(x.shape)
        for k in range(x.size):
            z[k] = y[k] ** 2
        return np.sum(z * y)

    x = np.linspace(0.0, 1.0, LARGE)
    expected = None
    for _ in range(3):
        value, gradient = tg.value_and_grad(f)(x)
        y, slope = np.sin(x) * x, np.cos(x) * x + np.sin(x)
        np.testing.assert_allclose(value, np.sum(y**3), rtol=1e-12)
        np.testing.assert_allclose(gradient, 3.0 * y**2 * slope, rtol=1e-12)
        expected = gradient if expected is None else expected
        np.testing.assert_array_equal(gradient, expected)
        del gradient
    assert waiting()[0] > 0


@numba.njit
def filled(shape, value):
    return large_arrays.full(shape, value)


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (2, 3, 4), (LARGE,)])
def test_filled_arrays(shape):
    found = filled(shape, -np.inf)
    expected = np.full(shape, -np.inf)
    np.testing.assert_array_equal(found, expected)
    assert found.shape == expected.shape
    assert found.flags.c_contiguous


def test_filled_arrays_of_no_size():
    with pytest.raises(ValueError, match="negative dimensions"):
        filled((2, -1), 0.0)


@tg.njit
def fills(x, n):
    total = 0.0
    for k in range(n):
        reals = np.full((n, 2), x)
        falls = np.full(n, -np.inf)
        falls[k] = x
        counts = np.full(n, 2)
        marks = np.full(n, not k)
        total += np.sum(reals) * np.max(falls) * counts[k] + marks[0] * x * x
    return total


def test_gradients_of_functions_that_fill_arrays():
    """Of floats, of integers and of bools: 37 times the square of x."""
    value, slope = tg.value_and_grad(fills)(1.5, 3)
    assert value == fills(1.5, 3) == 37 * 1.5**2
    assert slope == 74 * 1.5
