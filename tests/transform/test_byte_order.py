"""Arrays of another byte order, which numba takes for others after some calls."""

import sys

import numba
import numpy as np
import pytest
from random_programs.interpret import types_only

import tapegrad as tg


def unaligned(values, order="="):
    dtype = np.dtype(float).newbyteorder(order)
    array = np.zeros(8 * len(values) + 1, np.uint8)[1:].view(dtype)
    array[:] = values
    assert not array.flags.aligned
    return array


X = np.array([1.0, 2.0, 3.0])
SWAPPED = {"aligned": X.astype(X.dtype.newbyteorder("S")), "unaligned": unaligned(X, "S")}


@tg.njit
def squares(x):
    total = 0.0
    for i in range(x.size):
        total += x[i] ** 2
    return total


@tg.njit
def of_pair(pair):
    return pair[0][0] * pair[1][1]


CALLS = {  # by the name and the number of the argument
    ("squares", 0): squares,
    ("squares_gradient", 0): tg.grad(squares),
    ("squares_pushforward", 0): lambda a: tg.jvp(squares)(a, X),
    ("squares_pushforward", 1): lambda a: tg.jvp(squares)(X, a),
    ("squares_hvp", 1): lambda a: tg.hvp(squares)(X, a),
    ("squares_gradient", "0"): lambda a: tg.grad(squares)(x=a),
    ("of_pair", 0): lambda a: of_pair((X, a)),
    ("of_pair_gradient", 0): lambda a: tg.grad(of_pair)((a, X)),
}


@numba.njit
def ordinary(x):
    return x[0]


@pytest.mark.parametrize("is_known", [False, True], ids=["at once", "when numba knows the type"])
@pytest.mark.parametrize("kind", SWAPPED)
def test_another_byte_order_is_refused_by_name(kind, is_known):
    if is_known:
        ordinary(unaligned(X))  # numba remembers that this is an array of floats
        for call in CALLS.values():
            call(X)
            call(unaligned(X))
    for (function, number), call in CALLS.items():
        text = rf"^{function}: argument {number} has dtype [<>]f8, .* by x\.astype\(.float64.\)"
        with pytest.raises(TypeError, match=text):
            call(SWAPPED[kind])


def test_nothing_is_kept_of_refused_calls():
    gradient, array = tg.grad(of_pair), SWAPPED["aligned"]
    gradient((X, X))
    counts = sys.getrefcount(array), sys.getrefcount(X)
    for _ in range(100):
        with pytest.raises(TypeError, match="of_pair_gradient: argument 0 has dtype"):
            gradient((X, array))
    assert (sys.getrefcount(array), sys.getrefcount(X)) == counts


def test_unaligned_arrays_are_read():
    """Machine code does so, and Dask passes them."""
    x = np.sin(np.arange(1000.0))
    given = unaligned(x)
    np.testing.assert_array_equal(tg.grad(squares)(given), tg.grad(squares)(x))
    np.testing.assert_array_equal(tg.hvp(squares)(given, given), tg.hvp(squares)(x, x))
    assert tg.jvp(squares)(given, given) == tg.jvp(squares)(x, x)


@pytest.mark.parametrize("kind", SWAPPED)
def test_recorded_functions(kind):
    recorded = tg.jit(lambda x: tg.sum(x * x))
    assert recorded(SWAPPED[kind]) == 14.0
    with pytest.raises(TypeError, match=r"has dtype [<>]f8, expected float32"):
        tg.grad(recorded)(SWAPPED[kind])


@tg.njit
def with_blocks(x):
    return np.sum(x) + np.sum(np.sin(x) * x[0])


@pytest.mark.parametrize("kind", SWAPPED)
def test_faster_versions_have_the_name_of_the_derivative(kind):
    gradient, kinds = tg.grad(with_blocks), (numba.typeof(X),)
    with types_only():  # blocks are so small that there is a version with blocks
        assert gradient.implementation(kinds) is not gradient.fastest_implementation(kinds)
    gradient(X)
    # numba calls this at once when it takes the array for an ordinary one
    with pytest.raises(TypeError, match=r"^with_blocks_gradient: argument 0 has dtype"):
        gradient.overloads[kinds].entry_point(SWAPPED[kind])
