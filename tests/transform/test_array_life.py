"""Arrays that helpers make, fill, return and share; names that come to stand for other arrays."""

import math
from collections import namedtuple

import numpy as np
import pytest
from check import Cases

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])
POSITIONS = np.array([2, 0, 2])
case = Cases()
Parts = namedtuple("Parts", "whole tail")


# -- what helpers return ---------------------------------------------------------------------------


@tg.njit
def worked(x):
    w = np.empty(x.size)
    for i in range(x.size):
        w[i] = x[i] * x[i]
    total = 0.0
    for i in range(x.size):
        total += w[i] * w[i] * x[i]
    return total


@tg.njit
def tail_of_new(x):
    y = np.empty(x.size + 1)
    y[0] = x[0]
    for i in range(x.size):
        y[i + 1] = y[i] * x[i]
    return y[1:]


@tg.njit
def transposed(x):
    y = np.empty((2, 2))
    for i in range(2):
        for j in range(2):
            y[i, j] = x[2 * i + j] * x[j]
    return y.T


@tg.njit
def chosen(x, c):
    a = x * 2.0 if c > 0.5 else x * x
    return a  # noqa: RET504 (an array that was chosen)


@tg.njit
def either(x, c):
    if c > 0.5:
        return x * 2.0
    return x * x


@tg.njit
def twice(x):
    y = x * x
    return y, y


@tg.njit
def ones_twice(n):
    y = np.ones(n)
    return y, y


@tg.njit
def two_and_a_view(n, x):
    y = np.ones(n)
    return Parts(y, y[1:]), np.zeros(n)


@tg.njit
def with_view(x):
    a = np.zeros(x.size)
    b = a[::2]
    for i in range(x.size):
        a[i] = x[i] * x[i]
    return a, b


@tg.njit
def named(x):
    return Parts(x * 2.0, x[1:])


@tg.njit
def itself(x):
    return x


@tg.njit
def tail(x):
    return x[1:]


@tg.njit
def exchanged(a, b):
    return b, a


@tg.njit
def filled(x, out):
    for i in range(x.size):
        out[i] = x[i] * x[i]
    return out


@tg.njit
def filled_from_the_end(n, x, out):
    if n == 0:
        return out
    out[n - 1] = x[n - 1] * x[0]
    return filled_from_the_end(n - 1, x, out)


@tg.njit
def exponentials(x):
    return np.exp(x)


@tg.njit
def largest(x):
    return x.max()


@tg.njit
def of_a_copy(x):
    w = x.copy()
    return np.sum(w * x)


@case(A, hvp=True)
def work_array_in_a_helper(x):
    return worked(x) * worked(x * 2.0)


@case(A, hvp=True)
def view_from_a_helper(x):
    v, w = tail_of_new(x), transposed(x)
    return (v * v).sum() + v[1] * v[2] + w[0, 1] * w[1, 1] * w[1, 0]


@case(A, hvp=True)
def one_of_two_from_a_helper(x):
    first = (chosen(x, x[1]) * chosen(x, x[0])).sum()
    return first + (either(x, x[1]) * either(x, x[0])).sum()


@case(A, hvp=True)
def one_array_twice(x):
    a, b = twice(x)
    a[0] = x[1]
    return (a * b).sum() + a[0] * b[1]


@case(A, hvp=True)
def one_array_without_derivatives_twice(x):
    a, b = ones_twice(4)
    a[0] = x[1]
    for i in range(1, 4):
        b[i] *= a[i - 1] * x[i]
    return (a * b).sum() + a[0] * b[1]


@case(A, hvp=True)
def views_without_derivatives(x):
    p, c = two_and_a_view(4, 0.3)
    p.whole[2] = x[0]
    c[1] = p.tail[1] * x[2]
    p.tail[0] *= c[1]
    return (p.whole[1:] * p.tail).sum() * x[1] + c.sum()


@case(A, hvp=True)
def array_and_its_view(x):
    a, b = with_view(x)
    b[0] = x[3] * a[1]
    return (a * a).sum() + b[1]


@case(A, hvp=True)
def parts_of_a_named_tuple(x):
    p = named(x)
    p.whole[0] *= x[1]
    return (p.whole[1:] * p.tail).sum() + p.whole[0]


@case(A, hvp=True)
def arguments_come_back(x):
    y = x * 2.0
    z = itself(y)
    z[0] = x[1] * x[1]
    p = tail(z)
    p[0] *= x[3]
    return (y * y).sum()


@case(A, hvp=True)
def arguments_come_back_exchanged(x):
    a, b = x * 2.0, x * x
    for k in range(3):
        a, b = exchanged(a, b)
        a[k] *= b[k]
    return (a * b).sum()


@case(A, hvp=True)
def filled_argument(x):
    o, p = np.zeros(x.size), np.zeros(x.size)
    filled(x, o)
    q = filled(o, p)
    q[1] += o[0]
    return (o * q).sum() + (p * x).sum()


@case(A)
def filled_by_recursion(x):
    o = np.ones(4)
    return (filled_from_the_end(3, x, o) * o).sum()


@case(A, hvp=True)
def results_and_arguments_written_later(x):
    y = exponentials(x)
    s = y[0] + largest(y) + of_a_copy(y)
    y[0] = x[1] * x[1]
    y[3] *= 2.0
    return (y * y).sum() + s


# -- names for other arrays ------------------------------------------------------------------------


@case(A, hvp=True)
def step_that_may_be_refused(x):
    y = x * 1.0
    for k in range(5):
        new = y + 0.1 * np.sin(y)
        if np.sum(new) > 3.0:
            break
        if k % 2 == 0:
            y = new
    return (y * y).sum()


@case(A, hvp=True)
def two_buffers(x):
    a, b = x.copy(), np.zeros(x.size)
    for _ in range(3):
        for i in range(x.size):
            b[i] = a[i] * a[i] * 0.5 + a[(i + 1) % x.size]
        a, b = b, a
    return (a * a).sum()


@case(A, hvp=True)
def the_best_is_kept(x):
    best, low = x * 0.0, 1e9
    for k in range(5):
        t = x * (k + 1.0) - x[k % 4]
        v = (t * t).sum()
        if v < low:
            low, best = v, t
    return (best * best * best).sum() + low


@case(A)
def views_chosen_in_a_loop_are_written(x):
    y = x.copy()
    for k in range(4):
        z = y[1:] if y[0] * y[0] > 0.2 else y[:3]
        z[0] *= x[k]
        z[1] += z[0] * z[0]
    return (y * y).sum()


@case(A)
def three_names_go_round(x):
    a, b, n = x * 1.0, x * 2.0, 0
    while n < 4:
        c = a * b
        a = b
        b = c
        b[0] += a[1]
        n += 1
    return (a * b).sum()


@case(A)
def an_array_from_outside_or_a_new_one(x):
    y = WEIGHTS if x[0] > 10.0 else x * x
    return (y * WEIGHTS).sum()


@case(A, hvp=True)
def rows_are_filled_by_name(x):
    m = np.empty((3, 4))
    for i in range(3):
        row = m[i]
        for j in range(4):
            row[j] = x[j] * (i + 1.0)
        row *= x[i]
    total = 0.0
    for i in range(3):
        v = m[i]
        total += (v * v).sum()
    return total


@case(A, 2, hvp=True)
def tuples_of_arrays_by_position(x, i):
    t = ((x * 2.0, x[0]), (x * x, x[1]), (np.sin(x), x[2]))
    a, b = t[i][0], t[i - 1][1]
    a[0] += b
    return (a * b).sum() + (t[2][0] * a * (x, x * x)[i - 1]).sum()


# -- work arrays in loops, integers, stores --------------------------------------------------------


@tg.njit
def with_an_array_in_each_turn(x):
    s = 0.0
    for i in range(3):
        w = np.zeros(x.size)
        for j in range(x.size):
            w[j] = x[j] * x[j] * (i + 1)
        w[0] = w[1] * w[2]
        s += (w * w).sum() * w[0]
    return s


@tg.njit
def reverse_positions(k):
    for i in range(k.size):
        k[i] = k.size - 1 - i


@tg.njit
def log_sum_exp(x):
    m = x[0]
    for i in range(x.size):
        if x[i] > m:
            m = x[i]
    s = 0.0
    for i in range(x.size):
        s += math.exp(x[i] - m)
    return m + math.log(s)


@case(A, hvp=True)
def arrays_made_in_a_loop(x):
    return with_an_array_in_each_turn(x) * x[0]


@case(A, hvp=True)
def positions_change(x):
    k, s = np.arange(4), 0.0
    for _ in range(2):
        for i in range(4):
            s += x[k[i]] * x[k[i]] * (i + 1)
        reverse_positions(k)
    return s


@case(A, hvp=True)
def a_sum_and_a_call_that_keeps_values(x):
    total = 0.0
    for i in range(x.size):
        total += x[i] * x[i]
    return total - log_sum_exp(x)


@case(A, POSITIONS, hvp=True)
def stores_to_chosen_positions(x, k):
    m = np.ones((3, 4)) * x
    m[1, k] = x[1:] * x[0]
    m[k, 2] -= x[:3]
    again = k.copy()
    for i in range(2):
        m[0, again] *= x[3]
        again[:] = i
    return (m * m).sum()


@case(A, hvp=True)
def stores_to_chosen_elements(x):
    y = x * x
    mask = y > 0.3
    y[mask] = x[0] * x[1]
    mask[0] = True
    y[mask] += x[1]
    return (y * y).sum()


@case(A, hvp=True)
def a_new_array_is_changed_in_place(x):
    y = x + 1.0
    y *= 3.0
    r, s = np.eye(2), np.ones((2, 2))
    r[0, 1] = x[0] * x[1]
    s[1, 0] = x[2]
    return (y * x).sum() + (r @ s).sum()


@tg.njit
def reduced(x, n=None, mode="sum", k=2, scales=(1.0, 2.0)):
    if n is None:
        n = x.size
    s = 0.0
    for i in range(n):
        s += x[i] ** k * scales[i % 2]
    if mode == "mean":
        return s / n
    if mode == "sum":
        return s
    return -s


@case(A, hvp=True)
def options_of_a_helper(x):
    first = reduced(x) + reduced(x, 2) * reduced(x, mode="mean")
    return first * reduced(x, mode="neg", k=3, scales=(0.5, x[0]))


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)
