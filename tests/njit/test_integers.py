"""Integers of all types: their operations, and what is kept of them, are those of the function.

numba computes with a type of its own for some pairs of types: ``uint64`` and ``int64`` make a
``float64``, an array of ``int8`` wraps. Everything is compiled here, since Python's integers have
one type.
"""

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


LIMIT = 2**63


def test_minus_an_unsigned_literal():
    @tg.njit
    def f(x):
        return x * (-LIMIT)

    with pytest.raises(tg.TransformError, match="write the value that is meant"):
        tg.grad(f)(0.8)


def test_a_tuple_that_a_loop_would_keep():
    """It is refused, and the parts as variables are the way out."""

    @tg.njit
    def f(x, n):
        pair = (n, n + 1)
        for _ in range(3):
            x = np.sin(x) * pair[0]
            pair = (pair[1], pair[0] + n)
        return x

    with pytest.raises(tg.TransformError, match="use a variable for each of its parts"):
        tg.grad(f)(0.8, 2)

    @tg.njit
    def way_out(x, n):
        first, second = n, n + 1
        for _ in range(3):
            x = np.sin(x) * first
            first, second = second, first + n
        return x

    check(way_out, 0.8, 2)


BYTES, FLAGS = np.array([100, 50, 3], np.int8), np.array([True, False, True])
# an expression with a part that numba does not make, and the ways out
PARTS = {
    "(n + n) * a": ["part = n + n", "np.sum(part * a)", "(n.astype(np.int64) + n) * a"],
    "(m + m) * a": ["part = m + m", "np.sum(part * a)", "(m.astype(np.int64) + m) * a"],
    "(n + n > 150) * a": ["part = n + n", "np.sum((part > 150) * a)", "(1 * n + n > 150) * a"],
    "np.sin(n - n[::-1]) * a": ["part = n - n[::-1]", "np.sum(np.sin(part) * a)", "a * np.sin(n)"],
}


@pytest.mark.parametrize("text", PARTS)
def test_parts_of_expressions_of_arrays(text):
    """Part of an expression they have 64 bits, as arrays of their own 8: these are refused."""

    def program(*lines):
        body = "".join(f"    {line}\n" for line in lines)
        head = "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, a, n, m):\n"
        return module(head + body)

    arguments = 0.8, WEIGHTS, BYTES, FLAGS
    with pytest.raises(tg.TransformError, match="give the part a name"):
        tg.grad(program(f"return np.sum({text}) * x"))(*arguments)
    first, named, converted = PARTS[text]
    check(program(first, f"return {named} * x"), *arguments, argnums=(0, 1), compiled=True)
    check(program(f"return np.sum({converted}) * x"), *arguments, argnums=(0, 1), compiled=True)


@pytest.mark.parametrize("text", ["(m * m) * a", "(m & ~m | (a > 0.8)) * a", "(n ^ n[::-1]) * a"])
def test_parts_with_the_same_bits(text):
    head = "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, a, n, m):\n"
    f = module(f"{head}    return np.sum({text}) * x\n")
    check(f, 0.8, WEIGHTS, BYTES, FLAGS, argnums=(0, 1), compiled=True)


def test_a_view_of_integers_as_floats():
    """Nobody knows who else reads what is written to it; reading is fine."""

    @tg.njit
    def f(x):
        numbers = np.zeros(3, np.int64)
        v = numbers.view(np.float64)
        v[0] = x * x
        w = numbers.view(np.float64)
        return w[0] * x

    for derivative in (tg.grad(f), tg.jvp(f)):
        with pytest.raises(tg.TransformError, match=r"a view of another dtype[\s\S]*line"):
            derivative(*(0.8, 1.0)[: 2 if derivative is tg.jvp(f) else 1])

    @tg.njit
    def way_out(x):
        numbers = np.zeros(3)
        v = numbers[:]
        v[0] = x * x
        w = numbers[:]
        return w[0] * x

    @tg.njit
    def read(x, bits):
        return x * bits.view(np.float64)[0]

    check(way_out, 0.8)
    check(read, 0.8, np.array([0.25]).view(np.int64), argnums=(0,), compiled=True)


@pytest.mark.parametrize("kind", [np.int32, np.uint64])
def test_ranges_beside_other_sequences(kind):
    @tg.njit
    def f(x, n):
        for i, j in zip(range(n), range(2)):
            x = np.sin(x) * (i + j + 1)
        return x

    with pytest.raises(tg.TransformError, match=r"range\(np.int64\(n\)\)"):
        tg.grad(f)(0.8, kind(3))

    @tg.njit
    def way_out(x, n):
        for i, j in zip(range(np.int64(n)), range(2)):
            x = np.sin(x) * (i + j + 1)
        return x

    check(way_out, 0.8, kind(3), argnums=(0,), compiled=True)
