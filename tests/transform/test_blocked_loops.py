"""Loops in blocks: the same results as one iteration after the other, and the same errors."""

import math
import re

import numba
import numpy as np
import pytest
import scipy.special

import tapegrad as tg
from tapegrad.transform import vector_math
from tapegrad.transform.optimize.sizes import WIDTH
from tests.transform.random_programs.interpret import Interpreter, types_only

RANDOM = np.random.default_rng(5)
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 11)  # blocks of interpreted code have three iterations
COMPILED_SIZES = (0, 1, 15, 16, 17, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 2 * WIDTH + 22)

PROGRAMS = []  # with functions that draw their arguments, and the positions of real ones


def program(*kinds, argnums=(0,)):
    """A program with an array of numbers for "x", of places for "i", a matrix for "m"."""

    def draw(size):
        drawn = {
            "x": lambda: RANDOM.uniform(0.5, 1.5, size),
            "i": lambda: RANDOM.integers(0, max(size, 1), size),
            "m": lambda: RANDOM.uniform(0.5, 1.5, (size, 3)),
            "n": lambda: RANDOM.uniform(0.5, 1.5, (4, size)),
        }
        return tuple(drawn[kind]() if isinstance(kind, str) else kind for kind in kinds)

    def enter(function):
        PROGRAMS.append(pytest.param(function, argnums, draw, id=function.__name__))
        return function

    return enter


# -- programs -------------------------------------------------------------------------------------


@program("x", "x", argnums=(0, 1))
def terms(x, w):
    s = 0.0
    for i in range(x.size):
        s += math.exp(-x[i]) * math.sin(w[i]) / (1.0 + x[i] * w[i])
    return s


@program("x", "x", argnums=(0, 1))
def rounded(x, w):
    s = 0.0
    for i in range(x.size):
        phase = x[i] / w[i]
        s += (phase - np.floor(phase)) * np.radians(w[i]) * np.sign(x[i] - 1.0)
        s += np.maximum(x[i], w[i]) * np.rint(3.0 * w[i]) - np.copysign(w[i], x[i] - 1.2)
        s -= np.fmin(np.trunc(4.0 * x[i]), x[i] * 4.0) * np.ceil(w[i]) * math.degrees(x[i])
    return s


@program("x", 0.7, argnums=(0, 1))
def several_sums(x, rate):
    s, t, n = 0.0, 1.0, 0
    for i in range(x.size):
        y = math.log(rate * x[i] + 1.0)
        if y > 0.6:
            s += y
            n += 1
        else:
            t -= y * x[i]
    return s * t + n * rate


@program("x")
def neighbours(x):
    s = 0.0
    for i in range(1, x.size - 1):
        s += (x[i + 1] - 2.0 * x[i] + x[i - 1]) ** 2
    return s


@program("x")
def neighbours_of_some(x):
    s = 0.0
    for i in range(x.size):
        if i > 0:
            s += x[i] * x[i - 1]
        if i + 2 < x.size:
            s += math.exp(x[i + 2])
    return s


@program("x", 3)
def stencil_in_time(start, steps):
    u, after = start.copy(), start.copy()
    for _ in range(steps):
        for i in range(1, u.size - 1):
            after[i] = u[i] + 0.1 * u[i] * (u[i + 1] - 2.0 * u[i] + u[i - 1])
        u, after = after, u
    return np.sum(u * u)


@program("n", 2)
def field_in_time(start, steps):
    u, after = start.copy(), start.copy()
    for _ in range(steps):
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                after[i, j] = u[i, j] * (u[i, j - 1] + u[i, j + 1] + u[i - 1, j] + u[i + 1, j])
        for i in range(u.shape[0]):
            for j in range(u.shape[1]):
                u[i, j] = math.sin(after[i, j])
    return np.sum(u * after)


@program("m", "x", argnums=(0, 1))
def pairs(position, mass):
    energy = 0.0
    for i in range(mass.size):
        for j in range(i):
            square = 0.1
            for k in range(3):
                square += (position[i, k] - position[j, k]) ** 2
            energy -= mass[i] * mass[j] / math.sqrt(square)
    return energy


@program("x", "i", "x", argnums=(0, 2))
def gathered(x, places, w):
    s = 0.0
    for k in range(places.size):
        item = x[places[k]]
        s += math.exp(w[k]) * math.log(item) * item
    return s


@program("x")
def from_the_end(x):
    y = x.copy()
    for i in range(x.size - 1, -1, -1):
        y[i] = math.sqrt(y[i] + x[i])
    return np.sum(y * x)


@program("x")
def own_elements(x):
    y = np.ones(x.size)
    s = 0.0
    for i in range(x.size):
        y[i] = y[i] * math.exp(x[i])
        y[i] += x[i] ** 2
        s += y[i] / x[i]
    for i in range(x.size):
        s += y[i] * x[i]
    return s


@program("x", "m", argnums=(0, 1))
def columns(x, m):
    s = 0.0
    for k in range(m.shape[1]):
        for i in range(m.shape[0]):
            s += math.tanh(m[i, k]) * x[i] ** 1.5
    return s


@numba.njit(error_model="numpy")
def density(x, width):
    return math.exp(-((x / width) ** 2))


@program("x", 0.8, argnums=(0, 1))
def helper(x, width):
    s = 0.0
    for i in range(x.size):
        s += density(x[i], width) + max(x[i], 1.0)
    return s


@program("x", np.array([1.0, 2.0, 3.0]), argnums=(0, 1))
def windows(x, w):
    s = 0.0
    for i in range(x.size - 2):
        t = 0.0
        for k in range(3):
            t += x[i + k] * w[k]
        for k in range(-1, 2):
            t += x[i + 1 + k] * k + k * k
        s += math.exp(-t)
    return s


@program("x", "x", 3, argnums=(0, 1))
def kept_neighbours(start, rate, steps):
    u, after = start.copy(), start.copy()
    for _ in range(steps):
        for i in range(1, u.size - 2):
            after[i] = u[i] + rate[i + 1] * (u[i + 2] * u[i - 1] - u[i] ** 2) * u[i + 1]
        for i in range(u.size):
            u[i] = after[i] / (1.0 + after[i - 1])
    return np.sum(u)


def advance(u, after, first):
    for i in range(first, u.size - 1):
        after[i] = math.exp(-u[i + 1] * u[i - 1])


advance_compiled = numba.njit(advance)


@program("x", 3)
def kept_by_a_helper(start, steps):
    u = start.copy()
    for t in range(steps):
        after = u.copy()
        advance_compiled(u, after, t)
        u = after
    return np.sum(u)


@program("x", np.array([0.5, 1.0, -0.3]), 1, argnums=(0, 1))
def convolved(x, w, shift):
    y = np.zeros(x.size)
    for k in range(w.size):
        for i in range(shift, x.size - k):
            y[i] += math.exp(w[k] * x[i + k]) - x[i - shift]
    s = 0.0
    for k in range(w.size):
        for i in range(x.size - k):
            s += y[i + k] * x[k + i] * w[k] + x[i - k + 2 - 2]
    return s


@program("x", "x", "x", argnums=(0, 1, 2))
def values_that_change(a, b, c):
    for i in range(a.size):
        v = a[i]
        a[i] = math.exp(-b[i])
        b[i] = v
        b[i] += v
        c[i] += a[i]
    return a.sum() + 2.0 * b.sum() + (c * c).sum()


@program("x", "x", 3, argnums=(0, 1))
def index_of_the_iteration_before(x, w, steps):
    u, s = x.copy(), 0.0
    for _ in range(steps):
        v = np.zeros(x.size)
        j = 0
        for i in range(x.size - 1):
            v[i] = u[j] * u[i] * u[i + 1]
            j = i + 1
        for i in range(x.size - 2):
            u[i + 2] = math.sin(v[i]) * w[i]
    for i in range(x.size):
        s += u[i]
    return s


@program("x", "x", argnums=(0, 1))
def broadcast(x, y):
    return np.sum(np.exp(x - y) / (1.0 + x)) + np.sum((x - np.ones(1)) ** 2)


class Serial(Interpreter):
    """Runs generated functions as they are verified."""

    def entry(self, dispatcher, kinds):
        return dispatcher.implementation(kinds)


def copies(args):
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


def kinds_of(args):
    return tuple(map(numba.typeof, args))


def assert_equal(found, expected):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def both(gradient, *args):
    """Results in blocks and in order, and the arguments afterwards."""
    found = []
    for version in (gradient.fastest_implementation, gradient.implementation):
        given = copies(args)
        found.append((version(kinds_of(args))(*given), given))
    return found


def runs_in_blocks(source):
    """Whether a loop of a generated module does."""
    return re.search(r"\blane(_\d+)* = |runtime\.(index|plus)\(", source) is not None


@pytest.mark.parametrize(("function", "argnums", "draw"), PROGRAMS)
def test_small_blocks(function, argnums, draw):
    """With blocks of three iterations, each place of a block is used."""
    gradient = tg.value_and_grad(tg.njit(function), argnums=argnums)
    with types_only():
        for size in SIZES:
            args = draw(size)
            expected = Serial().derivative(gradient)(*copies(args))
            assert_equal(Interpreter().derivative(gradient)(*copies(args)), expected)
        assert runs_in_blocks(gradient.source(kinds_of(args)))


@pytest.mark.parametrize(("function", "argnums", "draw"), PROGRAMS)
def test_compiled(function, argnums, draw):
    gradient = tg.value_and_grad(tg.njit(function), argnums=argnums)
    for size in COMPILED_SIZES:
        (found, _), (expected, _) = both(gradient, *draw(size))
        assert_equal(found, expected)
    assert runs_in_blocks(gradient.source(kinds_of(draw(3))))


@pytest.mark.parametrize("function", [terms, neighbours, helper])
def test_products_with_second_derivatives(function):
    args = (np.linspace(0.5, 1.5, 290), np.linspace(0.7, 1.1, 290))[: 1 + (function is terms)]
    args += (0.8,) if function is helper else ()
    product = tg.hvp(tg.njit(function)).tangent_of_gradient
    (found, _), (expected, _) = both(product, *args, np.cos(args[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert runs_in_blocks(product.source(kinds_of((*args, args[0]))))


def single(x):
    s = 0.0
    for i in range(x.size):
        s += math.exp(x[i]) * x[i]
    return s


def single_arrays(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = np.sqrt(x[i]) * x[i] - x[i]
    s = 0.0
    for i in range(1, x.size):
        s += y[i] * y[i - 1] + abs(x[i]) * 0.5
    return s


def single_places(x, places):
    s = 0.0
    for i in range(x.size):
        s += math.sin(x[places[i]]) * x[i]
    return s


@pytest.mark.parametrize("function", [single, single_arrays, single_places])
def test_arrays_of_float32(function):
    x = np.linspace(0.3, 1.9, 290).astype(np.float32)
    places = (np.random.default_rng(0).permutation(290),) if function is single_places else ()
    gradient = tg.value_and_grad(tg.njit(error_model="numpy")(function))
    ((value, found), _), ((same, expected), _) = both(gradient, x, *places)
    exact, other = gradient(x.astype(np.float64), *places)
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_allclose([value, same], exact, rtol=1e-6)
    np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(expected, other, rtol=1e-5, atol=1e-5)
    assert runs_in_blocks(gradient.source(kinds_of((x, *places))))


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [290, WIDTH, 2 * WIDTH, 600])
@pytest.mark.parametrize("place", [0, 17, 255])
class TestErrors:
    """Iterations before the one that fails have written, those after it have not."""

    def failed(self, gradient, error, *args):
        for version in (gradient.fastest_implementation, gradient.implementation):
            given = copies(args)
            with pytest.raises(error) as caught:
                version(kinds_of(args))(*given)
            yield str(caught.value), given[0]

    def test_division_by_zero(self, size, place):
        gradient = tg.value_and_grad(_divided, argnums=1)
        x = np.ones(size)
        w = np.ones(size)
        w[place] = 0.0
        (text, x_then), (expected, x_expected) = self.failed(gradient, ZeroDivisionError, x, w)
        assert text == expected
        assert np.array_equal(x_then, x_expected)
        assert (x_then == 2.0).sum() == place

    def test_raise(self, size, place):
        gradient = tg.value_and_grad(_refusing, argnums=1)
        w = np.ones(size)
        w[place] = -1.0
        (text, x_then), (expected, x_expected) = self.failed(gradient, ValueError, np.ones(size), w)
        assert text == expected == "negative"
        assert np.array_equal(x_then, x_expected)


@tg.njit
def _backwards(x, w):
    s = 0.0
    for i in range(w.size - 1, -1, -1):
        x[i] = math.exp(w[i]) / (w[i] - 1.0)
        if w[i] > 5.0:
            raise ValueError("large")
        s += w[i]
    return s


@pytest.mark.parametrize("size", [40, WIDTH + 1, 2 * WIDTH - 1])
def test_errors_of_loops_backwards(size):
    gradient = tg.value_and_grad(_backwards, argnums=1)
    for places in ((3, 30), (30, 3), (size - 1, 2), (size - 30, size - 31)):
        w = np.full(size, 1.7)
        w[places[0]], w[places[1]] = 9.0, 1.0
        found = []
        for version in (gradient.fastest_implementation, gradient.implementation):
            x = np.zeros(size)
            with pytest.raises((ValueError, ZeroDivisionError)) as caught:
                version(kinds_of((x, w)))(x, w)
            found.append((repr(caught.value), x))
        assert found[0][0] == found[1][0]
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-14)


@tg.njit
def _chosen(x, places, divisors):
    s = 0.0
    for i in range(places.size):
        scale = 1.0 / divisors[i]
        if places[i] >= x.size:
            raise IndexError("outside")
        s += math.exp(x[places[i]] * scale) * math.sin(x[i])
    return s


@pytest.mark.parametrize("divisor", [0.0, 1.0])
def test_nothing_is_read_after_an_error(divisor):
    """What would come after an error may be no element of an array."""
    x, places, divisors = np.ones(90), np.arange(130) % 90, np.ones(130)
    places[60], divisors[60] = 10**13, divisor
    gradient = tg.value_and_grad(_chosen)
    with pytest.raises(IndexError if divisor else ZeroDivisionError):
        gradient(x, places, divisors)


@tg.njit
def _until_an_error(x, w, places, n):
    u, v, s = x.copy(), np.zeros(x.size), 0.0
    for _ in range(2):
        for i in range(n):
            v[i] = u[i] * u[i + 1] / w[i]
        for i in range(4):
            u[i] = math.sin(v[i])
    for i in range(places.size):
        s += math.exp(u[places[i]]) / u[i]
    return s


def test_iterations_after_an_error():
    """Nothing is read, or kept, for iterations that are never reached."""
    x, places = np.ones(20), np.full(40, 10**13)
    gradient = tg.value_and_grad(_until_an_error)
    with pytest.raises(ZeroDivisionError):
        gradient(x, np.array([1.0, 1.0, 0.0]), places, 5_000_000)
    x[2], places[:3] = 0.0, [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        gradient(x, np.ones(20), places, 0)


@tg.njit
def _divided(x, w):
    s = 0.0
    for i in range(x.size):
        x[i] = 2.0 * x[i] / w[i]
        s += math.exp(w[i]) / w[i]
    return s


@tg.njit
def _refusing(x, w):
    s = 0.0
    for i in range(x.size):
        if w[i] < 0.0:
            raise ValueError("negative")
        s += math.exp(w[i])
        x[i] = s if s < 0.0 else 2.0
    return s


# -- memory ---------------------------------------------------------------------------------------


@tg.njit
def _scaled(memory, offset, rate):
    x, w = memory[offset : offset + 350], memory[:350]
    s = 0.0
    for i in range(x.size):
        x[i] = x[i] * math.exp(rate * w[i])
        s += x[i] * w[i]
    return s


@pytest.mark.parametrize("offset", [0, 1, 5, WIDTH, 300])
def test_arguments_that_overlap(offset):
    """Iterations that are independent only if arrays are apart run in order where they are not."""
    gradient = tg.value_and_grad(_scaled, argnums=2)
    found = []
    for version in (gradient.fastest_implementation, gradient.implementation):
        memory = np.linspace(0.5, 1.5, 650)
        args = memory, offset, 0.1
        found.append((version(kinds_of(args))(*args), memory))
    assert_equal((found[0][0][0], [found[0][0][1]]), (found[1][0][0], [found[1][0][1]]))
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-13)


@tg.njit
def _inner_neighbours(x):
    s = 0.0
    for i in range(x.size):
        if i > 0:
            s += math.exp(x[i - 1])
        if i + 1 < x.size:
            s += x[i + 1] ** 2
    return s


def test_nothing_outside_is_touched():
    """Conditional accesses stay inside of an array whose neighbours in memory are nan."""
    gradient = tg.grad(_inner_neighbours, out=True)
    for size in COMPILED_SIZES[1:]:
        x, out = np.full((2, size + 40), np.nan)
        x[20:-20] = np.linspace(0.0, 1.0, size)
        gradient(x[20:-20], out[20:-20])
        assert np.isfinite(out[20:-20]).all()
        assert np.isnan(out[:20]).all()
        assert np.isnan(out[-20:]).all()
        np.testing.assert_allclose(out[20:-20], tg.grad(_inner_neighbours)(x[20:-20].copy()))


# -- loops in order -------------------------------------------------------------------------------

IN_ORDER = []  # programs, with their arguments


def in_order(*args, **options):
    def enter(function):
        IN_ORDER.append(pytest.param(tg.njit(**options)(function), args, id=function.__name__))
        return function

    return enter


@in_order(np.ones(40))
def recurrence(x):
    s = 1.0
    for i in range(x.size):
        s = s * x[i] + math.exp(x[i])
    return s


@in_order(np.ones(40))
def running(x):
    y = x.copy()
    for i in range(1, x.size):
        y[i] = math.exp(-y[i - 1]) + x[i]
    return y[-1]


@in_order(np.ones(40), boundscheck=True)
def checked_bounds(x):
    s = 0.0
    for i in range(x.size):
        s += math.exp(x[i])
    return s


@in_order(np.ones(40))
def last_value(x):
    y = 0.0
    for i in range(x.size):
        y = math.exp(x[i])
    return y


@pytest.mark.parametrize(("function", "args"), IN_ORDER)
def test_in_order(function, args):
    gradient = tg.value_and_grad(function)
    with types_only():
        source = gradient.source(kinds_of(args))
    assert not runs_in_blocks(source)


@tg.njit
def calls_itself(x, depth):
    s = 0.0
    for i in range(x.size):
        s += math.exp(x[i]) / x[i]  # which may be an error, so that results are put aside
    return s if depth == 0 else s + calls_itself(x, depth - 1)


def test_recursion():
    """Functions that call themselves have no blocks on the stack; the outermost call is another."""
    source = tg.value_and_grad(calls_itself).source(kinds_of((np.ones(3), 2)))
    assert source.count("runtime.block(") == 1
    x = np.linspace(0.5, 1.0, 100)
    slope = np.exp(x) * (x - 1.0) / x**2
    np.testing.assert_allclose(tg.grad(calls_itself)(x, 20), 21 * slope, rtol=1e-12, atol=1e-12)


# -- functions that vectorize ---------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-320, 1e-12, 700.0, -800.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("name", sorted(n for n, k in vector_math.ARGUMENTS.items() if k == 1))
def test_functions_at_special_points(name):
    one = getattr(vector_math, name)
    compiled = numba.njit(lambda x: one(x))
    expected = {"erf": math.erf, "erfc": math.erfc, "gaussian": lambda x: np.exp(-x * x)}
    expected |= {"one_minus_square": lambda x: (1.0 - x) * (1.0 + x)}
    expected |= {"sigmoid": scipy.special.expit, "ndtr": scipy.special.ndtr}
    expected |= {"softplus": lambda x: np.logaddexp(0.0, x)}
    for x in SPECIAL:
        if name in vector_math.SINES and abs(x) > vector_math.LIMIT:
            continue
        with np.errstate(all="ignore"):
            known = np.float64(expected.get(name, getattr(np, name, None))(np.float64(x)))
        found = compiled(x)
        np.testing.assert_allclose(found, known, rtol=2e-15, atol=0)
        assert np.signbit(found) == np.signbit(known) or np.isnan(known)


def test_powers_at_special_points():
    compiled = numba.njit(lambda x, y: vector_math.pow(x, y))
    library = numba.njit(lambda x, y: math.pow(x, y))
    for x in SPECIAL:
        for y in SPECIAL:
            known = library(x, y)  # NumPy takes the square root of -inf for the power 0.5
            np.testing.assert_allclose(compiled(x, y), known, rtol=2e-15, atol=0)


@pytest.mark.parametrize("exponent", [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
def test_powers_by_roots(exponent):
    whole = int(exponent - 0.5)
    compiled = numba.njit(lambda x: vector_math.half_power(x, whole), error_model="numpy")
    library = numba.njit(lambda x, y: math.pow(x, y))
    for x in (*SPECIAL, *np.geomspace(1e-80, 1e80, 300)):
        np.testing.assert_allclose(compiled(x), library(x, exponent), rtol=1e-15, atol=0)
        if x == 0.0:
            assert not np.signbit(compiled(x))


def test_powers_of_halves_in_loops():
    @tg.njit
    def powers(x):
        total = 0.0
        for i in range(x.size):
            total += x[i] ** 0.5 + x[i] ** -1.5 + np.power(x[i], 1.5) * math.pow(x[i], -0.5)
            total += np.power(x[i], 2) * math.pow(x[i], 3.0) + x[i] ** 4.0
        return total

    gradient, x = tg.value_and_grad(powers), np.linspace(0.3, 2.0, 300)
    (found, _), (expected, _) = both(gradient, x)
    assert_equal((found[0], [found[1]]), (expected[0], [expected[1]]))
    text = powers.adjoint_source(x)
    assert "vector_math.half_power(" in text
    assert "vector_math.pow(" not in text


def test_angles_of_any_size():
    """Where an angle is too large for the fast sine, the block runs in order."""
    gradient = tg.value_and_grad(_sines)
    x = np.linspace(-3.0, 3.0, 200)
    x[[3, 70, 199]] = [1e7, -1e22, 3e5]
    (found, _), (expected, _) = both(gradient, x)
    assert found[0] == pytest.approx(expected[0], rel=1e-13)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-13)


@tg.njit
def _sines(x):
    s = 0.0
    for i in range(x.size):
        s += math.sin(x[i]) * math.cos(x[i])
    return s
