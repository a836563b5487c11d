"""Integers of all types: their operations, and what is kept of them, are those of the function.

numba computes with a type of its own for some pairs of types: ``uint64`` and ``int64`` make a
``float64``, an array of ``int8`` wraps. Everything is compiled here, since Python's integers have
one type.
"""

from typing import NamedTuple

import numba
import numpy as np
import pytest
from check import check, module

import tapegrad as tg

FACTOR, OFFSET = np.uint64(6364136223846793005), np.uint64(1442695040888963407)
SMALL, LARGE = np.int8(100), np.uint32(4_000_000_000)
SINGLE = np.float32(0.1)
PAIR = (np.uint64(3), np.int8(100))
WEIGHTS = np.array([0.7, 1.2, 0.9])
TYPES = np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64


@tg.njit
def square_of(x, k=SMALL, single=SINGLE):
    m = np.array([k, k])
    return x * np.sum(m * m) + x * single


@tg.njit
def constants(x, a):
    m = np.array([SMALL, SMALL])
    y = x * np.sum(m) + np.sum(m * m) * x + np.float64(LARGE * LARGE) * x
    n = np.array([PAIR[1], PAIR[1]])
    return y * np.sum(n * n) + x * np.float64(PAIR[0] // np.uint64(2)) + square_of(x)


def of_an_outer_function():
    small = np.int8(100)

    @tg.njit
    def closed_over(x, a):
        m = np.array([small, small])
        return x * np.sum(m * m) * a[0]

    return closed_over


@tg.njit
def congruential(x, seed):
    """A generator of random numbers, whose state is kept."""
    for _ in range(3):
        seed = seed * FACTOR + OFFSET
        x = x * (np.float64(seed >> np.uint64(33)) / 2147483648.0)
    return x


@tg.njit
def that_wrap(x, a):
    k = np.uint8(3)
    for _ in range(4):
        x = np.sin(x) * k * 0.01
        k = np.uint8(k + np.uint8(100))
    return x * np.sum(np.full(2, k) + np.full(2, k)) * a[1]


@tg.njit
def of_some_paths(x, n):
    for _ in range(3):
        if x > 0.1:
            k = n
            x = np.sin(x)
        else:
            x = x + 1.0
        if x < 5.0:
            m = np.array([k, k])
            square = m * m
            x = x * (1.0 + 1e-3 * (np.sum(square * m) % 101))
    return x


@tg.njit
def ranges(x, a, n):
    for i in range(n, n + n):
        x = np.sin(x) * a[i % 3]
    for i in range(9, n):
        x = np.sin(x) * a[i % 3]
    for i in range(n, 3):
        x = np.sin(x) * a[i % 3]
    for _ in range(n, n - n):
        x = np.sin(x) * a[0]
    for _ in range(0, n, n):
        x = np.sin(x) * a[0]
    for i in range(n):
        if x > 9.0:
            break
        for j in range(i, n):
            x = np.sin(x) * a[j % 3] + np.sum(np.full(2, j)) * 0.001 * x
    for i in range(n, 0, -1):
        x = np.sin(x) + x / (i + 1)
    return x


@tg.njit
def indices(x, a, n):
    """The products of indices wrap, if these have 32 bits: a range of a literal has 64."""
    for i in range(n, n + n):
        m = np.array([i + 70_000])
        x = np.sin(x) * (1.0 + 1e-3 * ((m * m)[0] % 97))
    for i in range(n):
        m = np.array([i * 30_000])
        x = np.sin(x) * (1.0 + 1e-3 * (np.sum(m * m) % 97))
    for i in range(1, n, 1):
        m = np.array([i, 1 - i])
        x = np.sin(x) * (1.0 + 1e-3 * (np.sum(m * 2_000_000_000 * m) % 97))
    for i in range(0, n):  # noqa: PIE808 (its type counts)
        m = np.full(2, i)
        if i == 3:
            continue
        x = np.sin(x) * (1.0 + 1e-3 * (np.sum(m * 2_000_000_000 * m) % 97))
    for i in range(1, n):
        x = np.sin(x) * a[i % 3]
    return x


@tg.njit
def ranges_in_variables(x, a, n):
    """Their types follow from the number of arguments as well."""
    low, high = range(n), range(n, n + n)
    for i in low:
        x = np.sin(x) * a[i % 3] * (1.2 if i - np.uint64(3) > 5 else 0.8)
        m = np.array([i * 30_000])
        x = np.sin(x) * (1.0 + 1e-3 * (np.sum(m * m) % 97))
    for i in high:
        x = np.sin(x) * a[i % 3] * (1.2 if i - np.uint64(7) > 5 else 0.8)
    literal = range(1, n)
    for i in literal:
        m = np.array([i, i * 30_000])
        x = np.sin(x) * (1.0 + 1e-3 * (np.sum(m * m) % 97))
    return x


@tg.njit
def elements(x, a, n):
    m = np.array([n, n])
    for _ in range(3):
        m[0] = m[0] * m[1] * m[1] * m[0]
        m[1] += m[0]
        x = np.sin(x) * (1.0 + 0.01 * (np.sum(m) % 17))
        n = m[1]
    return x * a[n % 3] * (np.sum(np.full(2, n)) % 13)


@pytest.mark.parametrize("f", [constants, of_an_outer_function(), that_wrap])
def test_types_of_constants(f):
    check(f, 0.8, WEIGHTS, compiled=True)


def test_types_of_what_is_kept():
    check(congruential, 0.8, np.uint64(12345), compiled=True, argnums=(0,))


@pytest.mark.parametrize("kind", TYPES)
def test_types_of_arguments(kind):
    check(of_some_paths, 0.8, kind(50), compiled=True, argnums=(0,))
    check(indices, 0.8, WEIGHTS, kind(5), compiled=True, argnums=(0, 1))
    check(ranges, 0.8, WEIGHTS, kind(5), compiled=True, argnums=(0, 1))
    check(ranges_in_variables, 0.8, WEIGHTS, kind(5), compiled=True, argnums=(0, 1))
    check(elements, 0.8, WEIGHTS, kind(5), compiled=True, argnums=(0, 1))


@tg.njit
def work_arrays(x, n):
    """In-place operations of one array with another are no overlaps."""
    k = np.zeros(3, np.int64)
    k += n
    m = n + 1
    k *= m
    k -= n // 2
    return np.sin(x) * k[1] + x * k[2]


def test_work_arrays_of_integers():
    check(work_arrays, 0.8, np.array([1, 2, 3]), hvp=True)


@tg.njit
def angle(x, n):
    return np.arctan2(n, x)


@tg.njit
def interpolated(a, values):
    return np.sum(np.interp(a, np.arange(3.0), values))


@tg.njit
def integral(a, t):
    return np.trapezoid(a, t)


@tg.njit
def field_of_a_record(x, r):
    y = x
    for _ in range(2):
        k = r.size
        y = np.sin(y) * k
        r["size"] = 5
    r["size"] = 1
    return y


@tg.njit
def products(x, n):
    w = np.outer(x, n) * np.outer(n, x)[0, 0]
    return np.sum(w * w)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32])
def test_outer_products_of_other_types(kind):
    check(products, WEIGHTS, np.array([5, 3], kind), argnums=(0,), compiled=True, hvp=True)


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_knots_between_unsigned_integers(kind):
    """Forward mode with respect to the positions of knots, where the values fall."""

    @tg.njit
    def between(knots, values):
        return np.interp(1.5, knots, values)

    value, slope = tg.jvp(between)(np.array([1.0, 2.0]), np.array([5, 3], kind), np.array([1.0, 0]))
    assert (value, slope) == (4.0, 1.0)


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_differences_of_unsigned_integers(kind):
    check(angle, 0.8, kind(3), compiled=True)
    falling = np.array([200, 150, 5], kind)
    check(interpolated, WEIGHTS, falling, argnums=(0,), compiled=True)
    check(integral, WEIGHTS, falling, argnums=(0,), compiled=True)


def test_a_field_with_the_name_of_an_attribute_of_arrays():
    def record():
        return np.array([(1,)], [("size", np.int64)])[0]

    f, h = field_of_a_record, 1e-6
    difference = (f(0.8 + h, record()) - f(0.8 - h, record())) / (2 * h)
    assert tg.grad(f)(0.8, record()) == pytest.approx(difference, rel=1e-8)


STORES = {
    "an element": "k[0] = x[0]",
    "all elements": "k[:] = x",
    "a part": "k[1:] = x[1:]",
    "added": "for i in range(3):\n        k[i] += x[i]",
    "added to all": "k += (x * 3.0).astype(k.dtype)",
    "a view": "k[::-1][0] = x[0]",
    "the sum of two": "k[0] = x[0] * x[1] + x[2]",
    "in a branch": "if x[0] > 0.0:\n        k[0] = x[0]",
    "filled": "k.fill(x[1])",
    "in a function": "put(k, x)",
}


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("name", STORES)
def test_floats_that_are_stored_in_integers(name, kind):
    """numba cuts them off, so that they have no derivative there."""
    f = module(
        "import numpy as np, tapegrad as tg\n"
        "@tg.njit(boundscheck=False)\n"
        "def put(k, x):\n"
        "    k[1] = x[1]\n"
        "@tg.njit\n"
        "def f(x):\n"
        f"    k = np.ones(3, np.{kind})\n"
        "    y = np.ones(3)\n"
        "    y[0] = x[1]\n"
        f"    {STORES[name]}\n"
        "    return k[0] * x[1] + k[1] * x[2] * y[0] + k[2] * x[0]\n"
    )
    check(f, np.array([1.5, 2.6, 3.25]))


LIMIT = 2**63


def test_minus_an_unsigned_literal():
    @tg.njit
    def f(x):
        return x * (-LIMIT)

    with pytest.raises(tg.TransformError, match="write the value that is meant"):
        tg.grad(f)(0.8)


class Pair(NamedTuple):
    one: int
    two: int


@tg.njit
def with_tuples(x, n):
    pair = (n, n + 1)
    for _ in range(3):
        x = np.sin(x) * pair[0]
        pair = (pair[1], pair[0] + n)
    return x


@tg.njit
def with_named_tuples(x, n):
    pair = Pair(n, n + 1)
    for _ in range(3):
        x = np.sin(x) * pair.one
        pair = Pair(pair.two, pair.one + n)
    return x


@tg.njit
def with_variables(x, n):
    one, two = n, n + 1
    for _ in range(3):
        x = np.sin(x) * one
        one, two = two, one + n
    return x


def test_tuples_that_a_loop_keeps():
    check(with_tuples, 0.8, 2, argnums=(0,), hvp=True)


def test_named_tuples_that_a_loop_would_keep():
    """They are refused, and the parts as variables are the way out."""
    with pytest.raises(tg.TransformError, match="use a variable for each of its parts"):
        tg.grad(with_named_tuples)(0.8, 2)
    check(with_variables, 0.8, 2, argnums=(0,))


# -- the package's own functions of integers -------------------------------------------------------

OWN = ("sigmoid", "softplus", "erf", "erfc", "gammaln", "digamma")


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64, np.bool_])
def test_own_functions_of_integers_are_those_of_floats(kind):
    @tg.njit
    def f(n):
        return (
            tg.sigmoid(n), tg.softplus(n), tg.special.erf(n), tg.special.erfc(n),
            tg.special.gammaln(n), tg.special.digamma(n),
        )  # fmt: skip

    functions = [getattr(tg, name, None) or getattr(tg.special, name) for name in OWN]
    for n in (kind(1), np.array([1, 3], kind)):
        found = f(n)
        for value, function in zip(found, functions, strict=True):
            np.testing.assert_allclose(value, function(n).numpy(), rtol=1e-13)


def test_gradients_beside_integers():
    @tg.njit
    def f(x, n):
        return tg.sigmoid(n) * tg.softplus(x) + tg.sigmoid(x * n)

    n = np.uint8(3)
    expected = tg.grad(lambda x: tg.sigmoid(3.0) * tg.softplus(x) + tg.sigmoid(x * 3.0))(0.4)
    assert tg.grad(f)(0.4, n) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("call", ["tg.sigmoid(x, out)", "tg.sin(x, out)", "tg.exp(x, out=out)"])
def test_options_of_own_functions_are_refused(call):
    scope = {"tg": tg}
    exec(f"def f(x, out):\n    {call}\n    return out.sum()\n", scope)
    with pytest.raises(numba.TypingError, match="'out' is not supported in compiled functions"):
        numba.njit(scope["f"])(np.ones(3), np.zeros(3))
