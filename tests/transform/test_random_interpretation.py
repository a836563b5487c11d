"""Numbers of a prime field stand for floats, and NumPy's functions for those of such numbers."""

import operator
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapegrad.transform import runtime
from tapegrad.transform.equivalence import field, meanings, runtime_functions
from tapegrad.transform.equivalence.field import RUN, Number, UnfollowedError, number, whole

pytestmark = pytest.mark.texts

VALUES = st.builds(Number, *[st.integers(0, field.PRIME - 1)] * 2)
REALS = st.builds(Number, st.integers(0, field.PRIME - 1))
NP, MATH = meanings.NUMPY, meanings.MATH


@pytest.fixture(autouse=True)
def _run():
    RUN.begin(0, 10**9)


def test_threads_have_runs_of_their_own():
    RUN.begin(0, 10**9, lambda *_: Number(0))
    seen = []
    thread = threading.Thread(target=lambda: seen.append((RUN.modulus, RUN.slopes)))
    thread.start()
    thread.join()
    assert seen == [(field.PRIME, None)]
    assert RUN.modulus == field.PRIME**2


# -- numbers ---------------------------------------------------------------------------------


@given(VALUES, VALUES, VALUES)
def test_numbers_are_a_field(x, y, z):
    assert (x + y) * z == x * z + y * z
    assert x - y == -(y - x)
    assert x * y == y * x
    assert (x * y) * z == x * (y * z)
    assert x / y * y == x or y == 0
    assert 1 / (x * y) == (1 / x) * (1 / y)


@given(VALUES, VALUES)
def test_conjugates_and_parts(x, y):
    assert (x * y).conjugate() == x.conjugate() * y.conjugate()
    assert x.real + 1j * x.imag == x
    assert x * x.conjugate() == x.real**2 + x.imag**2


@given(VALUES, st.integers(-9, 9), st.integers(-9, 9))
def test_powers(x, m, n):
    if x != 0:
        assert x**m * x**n == x ** (m + n)
    assert x**3 == x * x * x
    assert x**0 == 1


@given(REALS)
def test_powers_of_halves_are_roots(x):
    assert x**1.5 == x * NP.sqrt(x)
    assert x**-0.5 == 1 / x * NP.sqrt(x)
    assert x**0.3 == NP.power(x, 0.3)
    assert x**0.3 != x**0.31 or x == 0


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**40), 2**40))
def test_floats_are_fractions(x, n):
    numerator, denominator = x.as_integer_ratio()
    assert number(x) * denominator == numerator
    assert number(x) * n == number(n) * x
    assert number(complex(x, n)).imag == n


@given(REALS, REALS)
def test_the_order_is_total(x, y):
    assert (x < y) + (x == y) + (x > y) == 1
    assert (x <= y) == (not x > y)
    assert (x < y) == (-y < -x)
    assert abs(x) >= 0
    assert abs(x) in (x, -x)
    assert field.sign(x) * abs(x) == x


@given(st.integers(-(2**20), 2**20), st.integers(-(2**20), 2**20))
def test_small_whole_numbers_are_those_of_python(m, n):
    x, y = number(m), number(n)
    assert whole(x) == int(x) == round(x) == m
    assert (x < y, x == y) == (m < n, m == n)
    assert int(NP.floor(x)) == m
    if n:
        assert (x % y, x // y) == (m % n, m // n)


def test_random_functions_depend_on_their_names_arguments_and_the_run():
    x, y = Number(5 << 40), Number(7 << 40)
    found = {NP.sin(x), NP.sin(y), NP.cos(x), NP.arctan2(x, y), NP.arctan2(y, x)}
    assert len(found) == 5
    assert NP.sin(x) == MATH.sin(x) == meanings.OPS.sin(x) == NP.sin(x)
    before = NP.sin(x)
    RUN.begin(1, 10**9)
    assert NP.sin(x) != before
    assert NP.sin(1.0 + 2j * x).imag != 0


def test_what_is_no_number_is_refused():
    with pytest.raises(UnfollowedError, match="str is no number"):
        number("a")
    RUN.begin(0, 10)
    with pytest.raises(UnfollowedError, match="too many operations"):
        sum([number(1)] * 12)


# -- functions of arrays ---------------------------------------------------------------------

MATRIX = np.array([[3, -1, 4], [1, -5, 9], [2, 6, -5]])
VECTOR = np.array([2, -7, 1])

CALLS = {
    "sum": lambda np: np.sum(M(np), 0),
    "sum of all": lambda np: np.sum(M(np)),
    "mean": lambda np: np.mean(M(np), axis=1) * 3,
    "prod": lambda np: np.prod(M(np), axis=0),
    "cumsum": lambda np: np.cumsum(M(np)),
    "dot": lambda np: np.dot(M(np), V(np)),
    "matmul": lambda np: M(np) @ M(np).T,
    "outer": lambda np: np.outer(V(np), V(np)),
    "sort": lambda np: np.sort(M(np), axis=1) if hasattr(np, "sort") else None,
    "argsort": lambda np: np.argsort(V(np)),
    "max": lambda np: (np.max(M(np)), np.argmin(M(np)), M(np).max(), np.maximum(M(np), 1.0)),
    "where": lambda np: np.where(M(np) > 0, M(np), V(np)),
    "abs and sign": lambda np: np.abs(M(np)) * np.sign(M(np)),
    "concatenate": lambda np: np.concatenate((V(np), M(np)[0], np.ones(2))),
    "stack": lambda np: np.stack((V(np), np.zeros(3))),
    "roll, flip and diff": lambda np: np.diff(np.roll(np.flip(V(np)), 1)),
    "take and repeat": lambda np: np.repeat(np.take(V(np), np.array([2, 0])), 2),
    "array": lambda np: np.array([[V(np)[0], 2.0], [V(np)[1], V(np)[2]]]),
    "of integers": lambda np: np.array([1, 2]) + np.arange(2),
    "like another one": lambda np: np.full_like(M(np), 2.0) + np.zeros_like(M(np)),
    "eye": lambda np: np.eye(3) * M(np),
    "linspace": lambda np: np.linspace(0.0, 8.0, 5),
    "any and all": lambda np: (np.any(M(np) > 8), np.all(M(np) > 0, axis=1), np.isnan(V(np))),
    "clip by steps": lambda np: np.minimum(np.maximum(V(np), -1.0), 1.0),
    "square": lambda np: np.square(V(np)) - V(np) ** 2 + V(np),
    "floor": lambda np: np.floor(V(np)) + np.rint(V(np)),
    "astype": lambda np: V(np).astype(np.int64) + V(np).astype(np.float64),
    "conversions": lambda np: np.float64(V(np)[0]) + np.int64(V(np)[1]),
    "var": lambda np: np.var(V(np)) * 9,
    "trace and diag": lambda np: np.trace(M(np)) + np.diag(M(np)),
    "searchsorted": lambda np: np.searchsorted(np.sort(V(np)), 0.5),
    "nonzero": lambda np: (np.count_nonzero(M(np)), np.nonzero(V(np))[0]),
    "parts": lambda np: (V(np).real + V(np).imag, np.conj(V(np)), np.real(M(np))),
}  # fmt: skip


def M(np):
    return np.asarray(np.array(MATRIX, np.float64))


def V(np):
    return np.asarray(np.array(VECTOR, np.float64))


def assert_like(found, expected):
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_like(one, other)
        return
    assert np.shape(found) == np.shape(expected)
    for one, other in zip(np.ravel(found).tolist(), np.ravel(expected).tolist(), strict=True):
        assert number(one) == number(other)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_functions_of_whole_numbers_are_those_of_numpy(call):
    assert_like(call(NP), call(np))


def test_arrays_are_shared_as_in_numpy():
    x = NP.zeros((2, 3))
    x[0][1] = 2.0
    x.reshape(-1)[5] = 3.0
    x.T[0, 0] = 4.0
    assert_like(x, np.array([[4.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))
    assert x.copy() is not x
    assert NP.asarray(x) is x


def test_undefined_elements_are_unlike_all_others():
    x, y = NP.empty(3), NP.empty(3)
    assert len({*x, *y}) == 6


def test_functions_of_everything_have_the_shapes_of_numpys():
    a = NP.array([[number(3 << 40), 1.0], [2.0, number(5 << 40)]])
    values, vectors = NP.linalg.eigh(a)
    assert (values.shape, vectors.shape) == ((2,), (2, 2))
    assert_like(NP.linalg.eigh(a * 1.0).eigenvalues, values)
    assert NP.linalg.cond(a) != NP.linalg.cond(a + 1.0)
    assert isinstance(NP.linalg.cond(a), Number)
    assert NP.percentile(a, 30.0) != NP.percentile(a, 40.0)
    with pytest.raises(UnfollowedError, match="lstsq"):
        NP.linalg.lstsq(a, NP.zeros(3))


def test_linear_algebra_is_exact():
    a = NP.array([[number(0), 2.0, 1.0], [2.0, Number(5 << 40), 0.5], [1.0, 0.25, 3.0]])
    b = NP.array([[1.0, 2.0], [0.5, number(7)], [3.0, 1.0]])
    found = NP.linalg.solve(a, b)
    assert np.all(a @ found == b)
    assert np.all(a @ NP.linalg.solve(a, b[:, 0]) == b[:, 0])
    assert np.all(a @ NP.linalg.inv(a) == NP.eye(3))
    by_hand = -2.0 * (2.0 * number(3.0) - 0.5 * number(1.0)) + (2.0 * number(0.25) - a[1, 1])
    assert NP.linalg.det(a) == by_hand
    sign, size = NP.linalg.slogdet(a)
    assert (sign == 1) == (by_hand > 0)
    assert size == NP.log(abs(by_hand))
    with pytest.raises(UnfollowedError, match="singular"):
        NP.linalg.inv(a - a)
    with pytest.raises(UnfollowedError, match="shape"):
        NP.linalg.solve(a, b[:2])


def test_norms_and_deviations():
    x = NP.array([number(3 << 40), 2.0, number(1 << 50)])
    assert NP.linalg.norm(x) == NP.sqrt(NP.sum(x * x))
    assert NP.std(x) == NP.sqrt(NP.var(x))
    assert NP.linalg.norm(x, 1) != NP.linalg.norm(x)


@given(REALS)
def test_roots_of_the_field(x):
    RUN.begin(0, 10**9, is_exact=True)
    try:
        root = field.root(x)
    except UnfollowedError:
        root = field.root(-x)
        assert root * root == -x
    else:
        assert root * root == x
        assert x == 0 or x**-0.5 == 1 / root


# -- the runtime -----------------------------------------------------------------------------


def test_what_stands_for_functions_of_the_runtime_is_there():
    missing = [name for name in runtime_functions.MEANINGS if not hasattr(runtime, name)]
    assert missing == []
    for name, made in runtime_functions.MEANINGS.items():
        assert meanings.meaning(getattr(runtime, name)) is made


def test_functions_of_the_runtime_in_python_are_run():
    found = meanings.meaning(runtime)
    assert found.broadcast(1, 4) == 4
    assert found.stride(4, 4) == 1
    assert found.trip_count(0, 7, 2) == 4
    with pytest.raises(ValueError, match="do not broadcast"):
        found.broadcast(3, 4)
    with pytest.raises(UnfollowedError, match="thread_count"):
        meanings.meaning_if_called(runtime.workers_for.py_func.__globals__["thread_count"])()


def test_tapes_keep_arrays_by_reference_and_by_elements():
    call = runtime_functions.MEANINGS
    tape, x = call["take_tape"](), NP.ones(100)
    tape, top = call["push_array"](tape, 0, x, "array_float64_1_C")
    tape, top = call["push_elements"](tape, top, x, "array_float64_1_C")
    x[0] = 5.0
    elements, top = call["pop_elements"](tape, top, "array_float64_1_C")
    array, top = call["pop_array"](tape, top, "array_float64_1_C")
    assert (top, array is x, elements[0] == 1.0, elements.shape) == (0, True, True, (100,))
    tapes = call["address_of"](tape)
    call["set_used"](call["tape_of"](tapes, 1), 7)
    tape, top = call["push_workers"](call["grown"](tape, 500), 0, 2)
    call["set_used"](call["tape_of"](tapes, 1), 0)
    assert call["pop_workers"](tape, top) == (2, 0)
    assert call["used"](call["tape_of"](tapes, 1)) == 7


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "floordiv", "mod"])
def test_operators_with_arrays_broadcast(name):
    x, f = NP.array([2.0, 3.0]), getattr(operator, name)
    scalar = number(6.0)
    assert_like(f(scalar, x), np.array([f(6.0, 2.0), f(6.0, 3.0)]))
    assert_like(f(x, scalar), NP.array([f(number(2.0), scalar), f(number(3.0), scalar)]))
