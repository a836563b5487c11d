"""Versions for arguments whose extents are equal, and what runs for others."""

import pickle

import numba
import numpy as np
import pytest
from numba import float64, int64

import tapegrad as tg

VECTOR, MATRIX = float64[::1], float64[:, ::1]


@numba.njit
def slope(u, s):
    return np.array([s * (u[1] - u[0]), u[0] - u[1] * u[-1], u[0] * u[1] - u[-1]])


@numba.njit
def steps_of_three(u, s, steps):
    """A state that is broadcast in the first step, if it has one element."""
    for _ in range(steps):
        k = slope(np.append(u, np.ones(3))[:3] if u.size < 3 else u, s)
        u = u + 0.1 * k
    return np.sum(u * u)


@numba.njit
def midpoint(u, s, steps):
    for _ in range(steps):
        k = np.array([s * u[0], -u[0] * u[-1], u[-1]])
        w = u + 0.05 * k
        q = np.array([s * w[1], -w[0] * w[2], w[2]])
        u = u + 0.1 * q
    return u[0] * u[1]


@numba.njit
def two(u, v, steps):
    """Slices of two arguments, which are broadcast if one has fewer elements."""
    u, v = u.copy(), v.copy()
    total = 0.0
    for _ in range(steps):
        w = np.sin(u[1:]) * v[1:] + 0.5 * u[:-1]
        total += np.sum(w * w)
        u[1:] = 0.9 * u[1:] + 0.1 * v[1:] * u[:-1]
    return total


@numba.njit
def matrices(u, v, steps):
    total = 0.0
    for k in range(steps):
        w = u * v + u * float(k)
        total += np.sum(w * w)
    return total


@numba.njit
def again(u, v, depth):
    """Calls itself with parts, whose extents differ from one call to the next."""
    total = 0.0
    for _ in range(2):
        total += np.sum(u * v)
    if depth > 0:
        total += again(u[:1], v, depth - 1)
    return total


@numba.njit
def straight(u, v):
    return np.sum(u * v)


def faster(function, *kinds):
    """What a gradient adds to what is verified."""
    return tg.grad(function, argnums=tuple(range(2))).source(kinds).partition("# versions")[2]


def check(function, *given):
    """Compare the gradient by all arrays and floats with differences."""
    numbers = tuple(k for k, x in enumerate(given) if not isinstance(x, int))
    found = tg.grad(function, argnums=numbers)(*given)
    h = 1e-6
    for k, gradient in zip(numbers, found, strict=True):
        x = np.asarray(given[k], dtype=float)
        wanted = np.empty(x.shape)
        for index in np.ndindex(x.shape):
            sides = []
            for sign in (1, -1):
                moved = x.copy()
                moved[index] += sign * h
                value = moved if x.ndim else float(moved)
                sides.append(function(*given[:k], value, *given[k + 1 :]))
            wanted[index] = (sides[0] - sides[1]) / (2 * h)
        np.testing.assert_allclose(gradient, wanted, rtol=2e-7, atol=1e-8)


U = np.array([0.7, 0.4, 0.9])
V = np.array([0.3, 1.1, 0.8])


@pytest.mark.parametrize(
    ("function", "kinds", "condition"),
    [
        (midpoint, (VECTOR, float64, int64), "if u.shape[0] == 3:"),
        (two, (VECTOR, VECTOR, int64), "if v.shape[0] == u.shape[0]:"),
        (
            matrices,
            (MATRIX, MATRIX, int64),
            "if v.shape[0] == u.shape[0] and v.shape[1] == u.shape[1]:",
        ),
        (matrices, (MATRIX, VECTOR, int64), "if v.shape[0] == u.shape[1]:"),
    ],
)
def test_condition(function, kinds, condition):
    assert condition in faster(function, *kinds)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("function", [midpoint, steps_of_three])
@pytest.mark.parametrize("u", [U, U[:1]], ids=["equal", "broadcast"])
def test_states(function, u, steps):
    if steps > 0 or u.size > 1:
        check(function, u, 1.3, steps)


@pytest.mark.parametrize(("m", "n"), [(3, 3), (3, 2), (2, 2)])
def test_two_arguments(m, n):
    check(two, U[:m], V[:n], 3)


@pytest.mark.parametrize(("m", "n"), [(3, 3), (1, 3), (3, 1), (2, 2)])
def test_two_matrices(m, n):
    check(matrices, np.outer(U, U)[:m], np.outer(V, U)[:n], 3)


def test_shapes_that_do_not_fit():
    u, v = np.ones(4), np.ones(3)
    with pytest.raises(ValueError, match="broadcast"):
        tg.grad(two, argnums=(0, 1))(u, v, 2)


def test_calls_in_any_order():
    """Equal extents first, and after others, with and without keywords; and tensors."""
    for shapes in ((2, 3, 2), (3, 2, 3)):
        gradient = tg.grad(tg.njit(two.py_func), argnums=(0, 1))
        for n in shapes:
            found = gradient(U, V[:n], 3), gradient(U, v=V[:n], steps=3)
            wanted = tg.grad(two, argnums=(0, 1)).implementation(
                (numba.typeof(U), numba.typeof(V), int64)
            )(U, V[:n], 3)
            for one in found:
                for x, y in zip(one, wanted, strict=True):
                    np.testing.assert_allclose(x, y, rtol=1e-13)
    u, v = tg.tensor(U, requires_grad=True), tg.tensor(V[:2], requires_grad=True)
    tg.njit(two.py_func)(u, v, 3).backward()
    np.testing.assert_allclose(u.grad.numpy(), tg.grad(two, argnums=(0, 1))(U, V[:2], 3)[0])
    copied = pickle.loads(pickle.dumps(tg.grad(two, argnums=(0, 1))))
    np.testing.assert_array_equal(copied(U, V, 3), tg.grad(two, argnums=(0, 1))(U, V, 3))


@pytest.mark.parametrize("n", [2, 3])
def test_checked_at_the_first_call(n):
    """What is checked is called like what runs."""
    gradient = tg.grad(tg.njit(verify=True)(two.py_func), argnums=(0, 1))
    wanted = tg.grad(two, argnums=(0, 1))(U, V[:n], 3)
    for _ in range(2):
        np.testing.assert_allclose(gradient(U, V[:n], 3)[0], wanted[0], rtol=1e-13)


def test_only_what_is_called_is_compiled():
    gradient = tg.grad(tg.njit(two.py_func), argnums=(0, 1))
    kinds = numba.typeof(U), numba.typeof(V), int64
    gradient(U, V, 3)
    assert not gradient.fastest_implementation(kinds).overloads
    assert gradient.assuming_implementation(kinds).overloads
    gradient(U, V[:2], 3)
    assert gradient.fastest_implementation(kinds).overloads


@pytest.mark.parametrize(("m", "n"), [(1, 0), (5, 3)])
def test_in_place_operations_that_do_not_fit(m, n):
    """numba reads past the end of the operand; nothing is written there."""

    @numba.njit
    def changed(u, v, steps):
        u = u.copy()
        for _ in range(steps):
            u += 0.1 * v * v
        return np.sum(u * u)

    with pytest.raises(ValueError, match=r"broadcast|slice|size"):
        tg.grad(changed, argnums=(0, 1))(np.ones(m), np.ones(n), 2)


def test_inside_compiled_code():
    gradient = tg.grad(two, argnums=(0, 1))

    @numba.njit
    def outer(u, v):
        first, second = gradient(u, v, 3)
        return first.sum() + second.sum()

    for n in (2, 3):
        first, second = gradient(U, V[:n], 3)
        assert outer(U, V[:n]) == pytest.approx(first.sum() + second.sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("function", "kinds"),
    [(straight, (VECTOR, VECTOR)), (again, (VECTOR, VECTOR, int64))],
)
def test_no_version(function, kinds):
    assert "_if_equal" not in faster(function, *kinds)


def test_function_that_calls_itself():
    check(again, U, V, 2)
