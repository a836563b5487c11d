"""Branches, loops and jumps."""

import math

import numba
import numpy as np
import pytest
from check import Cases, check, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])
M = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
case = Cases()


# -- branches --------------------------------------------------------------------------------------


@tg.njit
def branches(x, n):
    if x > 1:
        y = x
    elif x > 0.5 and n > 2:
        y = x * x
    elif not (x < 0.1 or n == 7):
        y = np.sin(x)
    else:
        y = 0.0
    if n == 2:
        z = y * x
        if y > 0.3:
            z += y
    else:
        z = x
        y += 1.0
    return y * z


@pytest.mark.parametrize("x, n", [(1.3, 0), (0.7, 3), (0.4, 2), (0.05, 3), (0.3, 7)])
def test_every_branch(x, n):
    check(branches, x, n, hvp=(n == 2))


@tg.njit
def in_one_branch(x, b):
    s = x
    if b:
        y = x * 2
        k = 3
    if b:
        s = y * y * k
    return s * x


@pytest.mark.parametrize("b", [False, True])
def test_a_variable_of_one_branch(b):
    check(in_one_branch, 0.7, b)


@case(0.7)
def untaken_nan(x):
    y = np.sqrt(x - 1) if x > 1 else x
    if x > 1:
        z = np.log(x - 1)
        z += 1 / (x - 1)
    else:
        z = x * x
    if x > 5 and math.log(x - 5) > 0:
        z = 2 * x
    if x < 1 or math.log(x - 1) > 0:
        z *= 3
    return y + z


@tg.njit
def guarded(x):
    if x > 0:
        return math.sqrt(x) + 1 / x
    return 3 * x


@tg.njit
def guarded_elements(a):
    s = 0.0
    for v in a:
        s += math.sqrt(v) + 1 / v if v != 0 else 3 * v
    return s


def test_infinite_derivatives_of_untaken_branches():
    assert tg.grad(guarded)(0.0) == 3.0
    assert tg.jvp(guarded)(0.0, 1.0) == (0.0, 3.0)
    assert tg.hvp(guarded)(0.0, 1.0) == 0.0
    gradient = tg.grad(guarded_elements)(np.array([0.0, 1.0, 0.0]))
    np.testing.assert_array_equal(gradient, [3.0, -0.5, 3.0])


@tg.njit
def checked(x):
    if x < 0:
        raise ValueError("negative")
    assert x != 1, "one"
    assert x != 2
    return x**2


def test_raise_and_assert_stay():
    f = tg.value_and_grad(checked)
    assert f(3.0) == (9.0, 6.0)
    with pytest.raises(ValueError, match="negative"):
        f(-1.0)
    with pytest.raises(AssertionError, match="one"):
        f(1.0)
    with pytest.raises(AssertionError):
        f(2.0)


@tg.njit
def several_returns(x, k):
    """Its documentation is no statement."""
    if k == 0:
        return x
    if k == 1:
        y = x * x
        return y * y
    if k == 2:
        for i in range(5):
            if i == 3:
                return x * i
            x *= x
    while True:
        x = x * 1.5
        if x > 5:
            return np.sin(x)


@pytest.mark.parametrize("k", range(4))
def test_several_returns(k):
    check(several_returns, 0.7, k)


# -- for -------------------------------------------------------------------------------------------


@case(0.7, 5, -1)
def ranges(x, a, b):
    s = 0.0
    for i in range(a, b, -2):
        s += x * i
    for i in range(1, 10, 3):
        s = s * x + i
    for k in range(a):
        k = k * 2
        s += x * k
    for _ in range(-3):
        s *= 0
    for _ in range(3, 3):
        s += x**5
    n = 3
    for j in range(n):
        n = n + 1
        s += x * n * j
    for i in numba.prange(n):
        s += np.sin(x * i)
    return s * i


@tg.njit
def any_step(x, start, stop, step):
    y = x
    for i in range(start, stop, step):
        y = np.sin(y * x) + i
    return y


@pytest.mark.parametrize("bounds", [(0, 4, 1), (7, -2, -3), (-5, 5, 4), (3, 3, 1), (5, 0, 1)])
def test_any_step(bounds):
    check(any_step, 0.7, *bounds)


@case(A, tensors=True)
def over_arrays(a):
    s = a[0] * 0
    for v in a:
        s += v * v
    for i, v in enumerate(a):
        s += i * v
    for i, v in enumerate(a, 1):
        s = s * (1 + 0.1 * v) + i * v**3
    for v, w in zip(a[1:], a[::2]):
        s += v * w
    for i, (v, w) in enumerate(zip(a[1:], a)):
        s += v * w * i
    return s


@case(A, 0.37, argnums=(0, 1))
@case(A, -0.23, argnums=(0, 1))
def sum_of_itself_in_one_branch(a, x):
    s = 0.4
    for v in a:
        s += v * (a[0] if x > -0.1 else s)
    for v in a:
        w = a[1] * v if v > x else s
        s -= w * x
    return s


@case(A, 0.37, argnums=(0, 1))
def sums_in_branches_and_loops(a, x):
    s, t = 0.4, 0.0
    for v in a:
        if v > x:
            for k in range(3):
                u = s + v * k
                t = t + u if k == 1 else t
            s += x * v
        else:
            s -= v
    return s + t


@case(M)
def over_rows(a):
    s = 0.0
    for row in a:
        row[0] *= 2
        row[1] += row[0] * row[2]
        for v in row:
            s += v**2
        s *= row[0]
    for column in a.T:
        s += column[0] * column[1]
    for v in a[0]:
        s += v**3
    return s


@tg.njit
def last_of_a_loop(x, n):
    y = 0.5
    for i in range(n):
        y = x * i
        z = y * y
    return y * z if n > 0 else x


@pytest.mark.parametrize("n", [0, 1, 3])
def test_loops_with_few_trips(n):
    check(last_of_a_loop, 0.7, n)


@case(0.7)
def over_tuples(x):
    s = 0.0
    for c in (1.0, 2.0, x):
        s += c * x
    for k in (1, 2):
        s += k * x**k
    return s


# -- while, break, continue, else ------------------------------------------------------------------


@case(0.8, hvp=True)
def whiles(x):
    n = 0
    while x < 5 and n < 20:
        x = x * 1.5
        n += 1
    while True:
        x = x * 0.9
        if x < 2:
            break
        if x > 3:
            x = x - 0.1
            continue
        x *= 0.8
    while x > 100:
        x = 0.0
    return x * n


@case(0.9 * A)
def jumps(a):
    s = 0.0
    for i in range(10):
        if i == 1:
            continue
        if i >= a.size:
            break
        s += a[i] * a[i] * (i + 1)
    else:
        s = 0.0
    for i in range(2):
        if a[i] > 100:
            break
    else:
        s *= a[1]
    while s > 0.1:
        s = s / 2
    else:
        s = s * a[2]
    return s


@case(0.7, 5)
def nested(x, n):
    s = 0.0
    i = 0
    while i < n:
        j = 0
        t = x
        while j < i:
            t *= x
            for k in range(3):
                if k > j:
                    continue
                t += np.sin(s) * k
                if t > 2:
                    break
            j += 1
            if t < 0.2:
                break
        s += t
        i += 1
        if s > 100:
            return s
    return s * x


@tg.njit
def search(a, limit):
    for i in range(a.size):
        for j in range(a.size):
            if a[i] * a[j] < limit:
                return a[i] * a[j] * (i + 1)
        if i == 2:
            return a[0]
    return a[1]


@pytest.mark.parametrize("limit", [0.0, 0.1, -10.0])
def test_return_from_inner_loops(limit):
    check(search, A, limit, argnums=(0,))


@tg.njit
def newton_root(c, start):
    x = start
    n = 0
    while abs(x * x * x - c) > 1e-14 and n < 100:
        x -= (x * x * x - c) / (3 * x * x)
        n += 1
    return x


def test_a_loop_until_convergence():
    g = tg.grad(newton_root)(5.0, 1.0)
    np.testing.assert_allclose(g, 5 ** (-2 / 3) / 3, 1e-12)


@tg.njit
def collatz(x, n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
            x = np.sin(x)
        else:
            n = 3 * n + 1
            x = x * 1.1
        steps += 1
    return x * steps


@pytest.mark.parametrize("n", [1, 6, 27])
def test_trip_counts_that_data_decide(n):
    check(collatz, 0.7, n)


@tg.njit
def long_loop(x, n):
    for _ in range(n):
        x = 3.7 * x * (1 - x) if x > 0.5 else np.sin(x) + 0.1
    return x


def test_a_long_loop_grows_the_buffer():
    """Sensitivities of a chaotic map grow; what counts is that forward and reverse agree."""
    check(long_loop, 0.3, 5)
    n = 100_000
    damped = module(
        "import numpy as np\nimport tapegrad as tg\n@tg.njit\ndef f(x, n):\n"
        "    y = x\n    for i in range(n):\n        if i % 3 == 0:\n            y = np.sin(y) + x\n"
        "        else:\n            y = 0.5 * y * x\n    return y\n"
    )
    value, g = tg.value_and_grad(damped)(0.7, n)
    np.testing.assert_allclose(tg.jvp(damped)(0.7, n, 1.0), (value, g), 1e-12)
    np.testing.assert_allclose(value, damped(0.7, n), 1e-14)


@case(A, 1)
def values_of_some_paths(x, k):
    for first in [True, False]:
        squares = np.zeros(x.size)
        for i in range(x.size):
            squares[i] = x[i] ** 2
        if first:
            one = squares
        else:
            other = squares * 2.0
            if k == 1:
                other = -other
        if not first:  # an operation on what has no value in the first iteration
            other = np.sqrt(1.0 + other * other)
    return (one * other).sum()


@case(A, 3)
def loops_over_ranges(x, k):
    r = range(1, x.size - 1)
    s = 0.0
    for up in (True, False):
        if up:
            r = range(x.size - 1, 1, -2)
        for i in r:
            s += x[i] ** 2 * (i + 1) * (k + up)
    for j, i in enumerate(range(x.size - 1, 0, -2)):
        s += j * x[i] ** 3
    for a, i in zip(x, range(0, x.size, 2)):
        s += a * x[i] ** 2
    for j in range(k):
        part = range(0, x.size, 2)
        if j % 2 == 0:
            part = range(j, x.size)
        for i in part:
            s = s * 0.9 + x[i] * len(part) * (i in part)
    return s


@case(0.7, 1.2, argnums=(0, 1), hvp=True)
@case(1.9, 1.2, argnums=(0, 1), hvp=True)
def choices_between_numbers(x, y):
    t = np.where(x > y, x * x, 2)
    u = t
    total = np.sin(t) + u * y
    for k in range(3):
        total = total + np.where(k < 2, np.where(x < y, x, y * k), k) * y + np.where(k == 1, x, y)
    return total


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)
