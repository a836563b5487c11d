"""Programs whose generated code is right: the verifier does not refuse it."""

import collections
import math

import numpy as np
import pytest
from check import Cases, called
from purposes import purposes_of

import tapegrad as tg
from tapegrad.transform.errors import InternalError
from tapegrad.transform.verifier import verify
from tapegrad.transform.verifier.code import Primal

A = np.array([0.3, 0.2, 0.5])
M = np.linspace(0.1, 0.9, 6).reshape(3, 2)
State = collections.namedtuple("State", "level grid")
case = Cases()


@tg.njit
def scaled(x, a):
    return a[0] * x * a[1]


@tg.njit
def copied(x, a):
    b = a.copy()
    return (b, a)


@tg.njit
def same(x, a):
    return a


@tg.njit
def largest(x, a, unread):
    b = a.copy()
    return np.max(b)


@tg.njit
def of_a_state(state):
    return state.level * state.grid[0]


@tg.njit
def repeated(x, a):
    y = x
    for i in range(3):
        y = math.sin(y) * a[i]
    return y


@case(0.3, A)
def an_unread_array_of_a_callee_after_a_sum(x, a):
    s = 0.0
    for i in range(3):
        s += x * a[i]
    b = same(x, a)  # noqa: F841
    return s + np.sum(a)


@case(0.3, A)
def calls_in_a_sum(x, a):
    s = 0.0
    for i in range(4):
        s += scaled(x * i, a)
    return s


@case(0.3, A)
def calls_without_use(x, a):
    b, _ = copied(x, a)
    end = 1
    for _i in range(1, end, end):
        copied(-0.4, b)
    return np.sum(b) + x


@case(0.3, A)
def sums_without_use(x, a):
    s = np.sin(0.5)
    for _ in range(3):
        s += np.sum(same(x, a))
    return np.sum(a) * x


@case(A, M, argnums=(0,))
def view_that_is_not_read(a, m):
    w = np.empty(2)
    s = 0.0
    for i in range(3):
        w[:] = a[:2]
        m[i, i % 2] = w[0]
        s += largest(w[-2], w, m.T)
    return s


@case(M, np.linspace(-0.5, 0.7, 4).reshape(2, 2))
def nearest(points, centres):
    s = 0.0
    for i in range(points.shape[0]):
        d = np.empty(centres.shape[0])
        for j in range(centres.shape[0]):
            d[j] = ((points[i] - centres[j]) ** 2).sum()
        s += d[np.argmin(d)]
    return s


@case(0.4, A)
def recurrence_without_the_last_value(x, a):
    for _ in range(3):
        x = 0.5 * a[0]
    return x


@case(A)
def asked_twice(a):
    k = 0
    k += 1
    if k % 2 == 0:
        pass
    elif k % 2 == 0:
        a[k + 0] = 0.5
    return np.sum(a * a)


@case(0.4, A)
def asked_twice_around_a_loop(x, a):
    k = 2
    if k % 2 == 1:
        pass
    elif k % 2 == 1:
        a[0] = 0.5
    else:
        for v in a:
            a[k] = v * x
    return np.sum(a)


@case(0.3, A)
def kept_beside_an_error(x, a):
    s = 0.0
    for i in range(4):
        if x > 0:
            s = s * x + repeated(x * i, a)
        elif x < -1:
            s = s * x
        else:
            raise ValueError("x is not in the domain")
        if s > 100:
            break
    return s


@case(A)
def an_error_of_either_of_two_tests(a):
    y = a * 2.0
    if y[0] < -9.0 or y[1] > 9.0:
        raise ValueError("outside")
    else:
        y = y * y[0]
    return np.sum(y)


@case(A)
def places_in_tests_of_a_loop(a):
    i = 0
    y = a * 2.0
    while [a[0], y[1], 9.0][i] < 3.0 and [y[0], a[1]][i] < 3.0:
        y = y * a[1]
        i += 1
    return np.sum(y)


@case(A, M, argnums=(0, 1), hvp=True)
def ranges_of_what_may_be_views(a, m):
    b = np.ptp(np.ascontiguousarray(a[::1])) * np.ptp(np.asfortranarray(m[:, ::1]))
    return b * np.max(np.ascontiguousarray(m[::1])) * np.ptp(a[::2])


@case(0.3, A)
def named_tuple_for_a_call(x, a):
    s = 0.0
    for i in range(3):
        s = s * x + of_a_state(State(x * i, a))
    return s


@case((0.3, 0.7), 0.4)
def array_of_items(t, x):
    return x * np.asarray(t)[0] + np.array(t).sum()


@case(A)
def doubled_in_turns(a):
    for _ in range(2, -1, -1):
        a += a
    return a[0] * a[1]


@tg.njit
def product_of(a, b):
    return (a - np.mean(a)) @ b


@tg.njit
def ratio_of(a):
    return np.abs(np.percentile(a, 95)) / np.abs(np.percentile(a, 5))


@case(A, A * A, hvp=True)
def numbers_that_calls_make_of_arrays(a, b):
    total = 0.0
    total += 0.3 * product_of(a, b)
    total += 0.3 * ratio_of(a)
    return total


@case(A, A * A, argnums=(0, 1), hvp=True)
def a_product_with_what_a_loop_makes(a, b):
    return 0.3 * ((a - np.mean(a)) @ b)


@case(A, A * A, argnums=(1,), hvp=True)
def a_product_with_what_a_loop_fills(a, b):
    t = np.empty(a.size)
    for i in range(a.size):
        t[i] = a[i]
    return t @ b


@called
def ratio_of_first(t, b):
    return t[0] / b[0]


@case(A, A * A, argnums=(1,), hvp=True)
def a_callee_reads_what_a_loop_fills(a, b):
    t = np.empty(a.size)
    for i in range(a.size):
        t[i] = a[i] * i + 1.0
    t += 1.0
    return ratio_of_first(t, b)


@case(A, A * A, argnums=(1,), hvp=True)
def a_product_with_what_is_overwritten_after_a_sum(a, b):
    t = np.cos(b)
    s = 0.0
    for i in range(a.size):
        s += a[i] * a[i]
    u = np.dot(t, b)
    t[0] = 5.0
    return s + u


@case(A, A * A, argnums=(1,), hvp=True)
def a_sum_and_what_its_loop_writes(a, b):
    t = np.ones(a.size)
    s = 0.0
    for i in range(a.size):
        s += b[i] * a[i]
        t[i] = a[i] * s
    return s * 2.0 + np.dot(a * 2.0, b) + t[1]


@case(0.3, A)
def steps_put_together(x, a):
    z = np.concatenate((np.floor(a), np.sign(a)))
    return np.sum(z) * x + np.sum(a)


@case(0.3, A)
def numbers_of_a_type(x, a):
    kind = type(x)
    inverse = kind(1) / x
    s = kind(0)
    for v in a:
        s = s * v + (v - x) * inverse
    return s * kind(0.5)


@case(0.3, A)
def quotient_of_nothing(x, a):
    u = 0
    u /= a[0]
    return u + x * 0 + x


@tg.njit
def backwards(x, pair):
    return pair[0][::-1]


@case(A)
def result_of_a_call_that_is_not_used(a):
    for _ in range(2):
        u = a[0]
        u += backwards(a[0], (a, 1.5))[2]
    return np.sum(a)


@tg.njit
def chosen_or_itself(x, b):
    c = np.zeros(3)
    if b[2] > 0.1:
        return 1.5, b[np.array([1, 0, 0])]
    return x * np.prod(c), b


@case(A)
def chosen_result_of_a_call_that_is_not_used(a):
    s = 0.0
    for v in a:
        s += v * chosen_or_itself(v, a)[0]
        chosen_or_itself(1.0, a)
    return s + np.sum(a)


@tg.njit
def clipped_or_itself(x, b):
    if x <= 0.1:
        b = np.where(b > 0.15, b, 0.7)
    return b


@case(0.3, A)
def merged_result_of_a_call_that_is_not_used(x, b):
    for _ in range(3):
        clipped_or_itself(x, b)
    return np.sum(b)


@tg.njit
def powers(x, b, n):
    if n <= 0:
        return 0.5
    b[n] *= x
    return powers(b[0], np.concatenate((np.full(2, b[0]), b[np.array([1])])), n - 1)


tangent_of_powers = tg.jvp(powers)


@case(0.3, A, argnums=(1,))
def filled_arrays_in_a_tangent(x, a):
    u, _ = tangent_of_powers(a[0], a.copy(), 2, x)
    return u


@tg.njit
def written_part(x, state):
    if x > 0.1:
        state.grid[0] = np.sin(x) * state.level
    return state.level + x, state.grid


@case(0.3, A)
def tuple_with_a_passive_array_that_is_written(x, a):
    written_part(0.7, State(x, np.cos(a)))
    u, b = written_part(0.4, State(x, np.ones(4)))
    return u * np.sum(b) + a[1]


@tg.njit
def with_another_least(b):
    w = b.copy()
    w[np.argmin(w)] += 0.5 * np.cos(0.5 * b.sum())
    return w


@case(A, 0.4 * A[::-1], hvp=True)
def result_that_is_overwritten(a, b):
    c = with_another_least(np.concatenate((b[:2], a[1:2])))
    c[:] = with_another_least(0.5 * b)
    return 0.7 * np.sum(c) + a[1] * a[0]


@tg.njit
def linear_at_the_end(a):
    return np.sum(a**3) + (a * a).mean() + np.dot(a * a, a) + np.angle(complex(a[0], 0.4))


tangent_of_linear = tg.jvp(linear_at_the_end)


@case(A)
def tangents_that_keep_nothing(a):
    value, slope = tangent_of_linear(a, np.ones(3))
    return value + slope * slope


@tg.njit
def nothing_of(x, b, shape):
    return np.floor(x)


@tg.njit
def scaled_in_place(x, b):
    b[1] *= x
    return nothing_of(x, b, (2, 2))


@case(0.3, A, argnums=(0,))
def array_that_is_passed_on_unread(x, b):
    return x if x > 0.5 else x * x + scaled_in_place(x, b)


@case(0.3, A)
def sums_of_whole_arrays_without_use(x, a):
    w = np.empty_like(a)
    for i in range(3):
        w[i] = x ** np.sum(a)
    for _ in range(2):
        a += w
    return np.sum(w)


@tg.njit
def its_last(x, y, out):
    return out


@case(0.3, A, argnums=(0,), hvp=True)
def array_that_a_call_gives_back(x, a):
    b = its_last(x, a[0], a[np.array([0, 2])])
    return np.sum(b) * x * x


@case(0.4)
def list_that_is_dead_after_a_branch(x):
    items = [1.0, x]
    part = items[:1]
    if len(part) > 1:
        x = part.pop()
    for _ in range(2):
        x = np.sin(x)
    return x


@case(A, hvp=True)
def zeros_of_zeros(a):
    kept = np.where(a > 0.25, np.floor(a), np.copy(np.sign(a)))
    kept[0] += a[1]
    return np.sum(kept * a)


@tg.njit
def itself(x, a):
    return x * 1.0


@case(0.3, A)
def calls_whose_arguments_are_equal_on_one_path(x, a):
    s = itself(x, a)
    y = s * a[0]
    if itself((a[1] if a[1] > 5.0 else x), a) < 3.0:
        y = np.sin(y)
    return y


@case(A, hvp=True, compiled=True)
def store_on_a_path_that_is_never_taken(a):
    k = 0
    if -0.3 < -0.4 < 0.6 and a[1] > 0.1:
        a[k % 2] = 0.5
    return a[0] * a[1]


@case(np.eye(3) + 0.5, compiled=True)  # NumPy's own is a view that is read only
def diagonal_that_is_written_and_not_read(a):
    np.diag(a)[1] = a[0, 0] * a[1, 2]
    return np.sum(a * a)


@tg.njit
def row_that_its_reverse_does_not_name(p, row):
    ones = np.ones(4)
    return np.sum(ones) * p


@case(np.eye(3) + 0.5, hvp=True)
def callee_given_a_row_of_an_array_that_is_written_on_another_path(a):
    for i in range(2):
        for k, row in enumerate(a):
            if k == 1:
                return row_that_its_reverse_does_not_name(a[i, 1] * a[2, 2], row)
            a[i] = 0.5
    return a[0, 0]


@case(np.array([1.5, 0.7]), 0, hvp=True)
def loop_without_derivatives_before_a_branch(q, k):
    n = 0
    for j in range(2):
        n += j
    if k:
        return 0.0
    else:
        return q[1] * q[1] * n


@tg.njit
def two_arrays_without_derivatives(p, q, r):
    w = np.zeros_like(q)
    z = np.sin(r[0])
    return (w, z)


@case(0.3, A)
def arrays_of_a_callee_that_it_does_not_use_as_arrays(x, a):
    v, w = two_arrays_without_derivatives(x, a, np.full((2, 4), 0.3))
    return np.sum(v) + np.sum(w) * a[0]


@tg.njit
def its_first_argument(p, q):
    return p


@case(0.3, 0.7, A, 0, argnums=(0, 2))
def call_that_is_made_again_and_not_read(x, y, a, n):
    a[n % 2] = x = its_first_argument(y, a)
    its_first_argument(y, a)
    return x * a[0]


@case(A, 0)
@case(A, 1)
def condition_asked_twice(a, n):
    if n % 2 == 1:
        pass
    elif n % 2 == 1:
        w = a
        for i in range(2, 0, -1):
            w[i] += w[0]
    return a[0] * a[1]


@case(np.eye(2) + 0.5)
def lengths_of_rows_of_an_array_that_is_written(a):
    for row in a:
        for _ in range(len(row)):
            a[-2, -2] += a[0][0]
    return np.sum(a)


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)


IDENTITY = (
    "def f_forward(p, q):\n    return p\n",
    "def f_reverse(p, q, g_seed_0):\n    p_bar = 0.0\n    p_bar += g_seed_0\n    return p_bar\n",
    "    p_bar += g_seed_0\n",
)
SMALLER = (
    "def f_forward(p, q):\n    t = min(p, q)\n    return t\n",
    "def f_reverse(p, q, g_seed_0):\n    p_bar = 0.0\n    q_bar = 0.0\n    t_bar = g_seed_0\n"
    "    p_bar += t_bar * (p < q)\n    q_bar += t_bar * (q <= p)\n    return p_bar, q_bar\n",
    "    p_bar += t_bar * (p < q)\n",
)


@pytest.mark.parametrize("forward, reverse, line", [IDENTITY, SMALLER])
def test_seeds_and_what_is_chosen_are_not_lost(forward, reverse, line):
    """The result may be an argument itself, or one of two values."""
    primals = {"f_forward": Primal(forward, set(), set(), set())}
    purposes = purposes_of(reverse, [forward], primals)
    verify(reverse, ("np",), [forward], primals, purposes=purposes)
    with pytest.raises(InternalError, match="p_bar is not what follows"):
        verify(reverse.replace(line, ""), ("np",), [forward], primals, purposes=purposes)


@tg.njit
def two_arrays(x, a):
    b = np.empty_like(a)
    for i in range(3):
        b[i] = a[0]
    return b, np.concatenate((a[1:], a[:2]))


@tg.njit
def one_is_written(x, a):
    first, second = two_arrays(x, a)
    first[1], first[0] = first[0], np.prod(second)
    return np.sum(first)


def test_one_of_two_results_is_written_and_the_other_read():
    """The callee does what its forward half would, so that its results are known to be two."""
    assert tg.grad(one_is_written)(0.3, A) == 0.0
