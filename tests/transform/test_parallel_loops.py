"""Derivatives of ``parallel=True`` functions: what runs in parallel is right, the rest is said."""

import math
import threading
from collections import namedtuple

import numba
import numpy as np
import pytest
from numba import prange
from processes import check_stored

import tapegrad as tg
from tests.transform.random_programs.interpret import Interpreter, Workers, types_only

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=23)
W = RANDOM.normal(size=23)
POINTS = RANDOM.normal(size=(19, 3))
FIELD = RANDOM.normal(size=(21, 6))
PLACES = RANDOM.integers(0, 23, 40)
Pair = namedtuple("Pair", ["x", "w"])

PARALLEL = []  # programs, with the positions of the arguments to differentiate, and arguments
SERIAL = []  # the same, with the reason that the warning gives


def parallel(*args, argnums=(0,)):
    def enter(function):
        PARALLEL.append(pytest.param(function, argnums, args, id=function.__name__))
        return function

    return enter


def serial(reason, *args, argnums=(0,)):
    def enter(function):
        SERIAL.append(pytest.param(function, argnums, args, reason, id=function.__name__))
        return function

    return enter


# -- loops that run in parallel -------------------------------------------------------------------


@parallel(X)
def sum_of_terms(x):
    s = 0.0
    for i in prange(x.size):
        s += math.sin(x[i]) * x[i]
    return s


@parallel(X, 1.3, argnums=(0, 1))
def several_sums(x, rate):
    s, t, n = 0.0, 1.0, 0
    for i in prange(x.size):
        y = math.exp(-rate * x[i])
        if y > 1.0:
            s += y
        else:
            t -= y * y
            n += 1
    return s * t + n * s


@parallel(POINTS, np.abs(X), argnums=(0, 1))
def pairs(position, mass):
    energy = 0.0
    for i in prange(position.shape[0]):
        for j in range(i):
            d = 0.1
            for k in range(position.shape[1]):
                d += (position[i, k] - position[j, k]) ** 2
            energy -= mass[i] * mass[j] / math.sqrt(d)
    return energy


@parallel(X)
def own_elements(x):
    y = np.empty(x.size)
    for i in prange(x.size):
        y[i] = x[i] * x[i]
    z = np.zeros(x.size)
    for i in prange(x.size):
        z[i] = math.sin(y[i]) + z[i]
        z[i] += y[i] * x[i]
    return np.sum(z * y)


@parallel(FIELD, 0.1, 4, argnums=(0, 1))
def stencil_in_time(start, rate, steps):
    u, w = start.copy(), start.copy()
    for _ in range(steps):
        for i in prange(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                w[i, j] = u[i, j] + rate * (around - 4.0 * u[i, j]) * u[i, j]
        u, w = w, u
    return np.sum(u * u)


@parallel(X, 3, argnums=(0,))
def neighbours_that_wrap(x, steps):
    u = x.copy()
    for _ in range(steps):
        w = np.empty(x.size)
        for i in prange(x.size):
            w[i] = u[i] * u[i - 1] + u[(i + 1) % x.size]
        u = w
    return np.sum(u)


@parallel(POINTS, W, argnums=(0,))
def oscillators(p, w):
    out = np.empty(p.shape[0])
    for i in prange(p.shape[0]):
        x, v = 1.0, 0.0
        for _ in range(10 + i):
            x, v = x + 0.1 * v, v - 0.1 * p[i, 0] * math.sin(x) - 0.1 * p[i, 1] * v
        out[i] = x * w[i]
    s = 0.0
    for i in range(out.size):
        s += (out[i] - 1.0) ** 2
    return s


@numba.njit
def kernel(x, k):
    s = 0.0
    for j in range(x.size):
        if j != k:
            s += math.exp(-((x[j] - x[k]) ** 2))
    return s


@parallel(X)
def helper_of_array_and_index(x):
    out = np.zeros(x.size)
    for i in prange(x.size):
        out[i] = kernel(x, i)
    return np.sum(out**2)


@numba.njit
def steps_of(x, rate, n):
    for _ in range(n):
        x = x + rate * math.sin(x)
    return x


@parallel(X, 0.3, argnums=(0, 1))
def helper_that_keeps_values(x, rate):
    s = 0.0
    for i in prange(x.size):
        s += steps_of(x[i], rate, 3 + i % 4) ** 2
    return s


@parallel(X, W, PLACES, argnums=(0, 1))
def gathers_and_histogram(x, w, places):
    h = np.zeros(x.size)
    for i in prange(places.size):
        h[places[i]] += x[i % x.size] * w[places[i]]
    return np.sum(h * h)


@parallel(POINTS)
def work_arrays(p):
    s = 0.0
    for i in prange(p.shape[0]):
        work = np.empty(p.shape[1])
        for k in range(p.shape[1]):
            work[k] = p[i, k] * p[i, 0]
        for k in range(1, p.shape[1]):
            work[k] += work[k - 1] ** 2
        s += work[-1]
    return s


@parallel(POINTS, np.array([1.0, -0.5, 2.0]), argnums=(0, 1))
def array_expressions(p, w):
    out = np.empty(p.shape[0])
    for i in prange(p.shape[0]):
        out[i] = np.sum(np.sin(p[i] * w)) * np.dot(p[i], w)
    return np.sum(out)


@parallel(POINTS)
def rows(p):
    out = np.zeros_like(p)
    for i in prange(p.shape[0]):
        row = p[i]
        out[i, :] = row * row[0]
        out[i, 1] += row[2] ** 2
    return np.sum(out * out)


@parallel(X, 2, 20, 3)
def steps(x, first, last, step):
    y = np.zeros(x.size)
    for i in prange(2, x.size, 3):
        y[i] = x[i] ** 2 + x[i - 2]
    for i in prange(first, last, step):
        y[i + 1] += x[i] * x[i + 1]
    return np.sum(y * y)


@parallel(X, -X.size, X.size)
def indices_from_the_end(x, first, last):
    y = np.ones(x.size)
    for i in prange(-4, 4):
        y[i] = y[i] * x[i] + i
    for i in prange(first, last):
        y[i] = y[i] * x[i] + i
    return np.sum(y)


@parallel(X, W, argnums=(0, 1))
def names_like_those_of_the_code(worker, tape):
    failed, low, count, top, tapes, failed_part = 0.0, 1.0, 0, 0.0, 0.0, 0.0
    workers = np.zeros(worker.size)
    for block in prange(worker.size):
        number = worker[block]
        for _ in range(3):
            number = math.sin(number) * tape[block]
        failed += number * low
        failed_part -= number
        tapes += tape[block] ** 2
        top += tape[block]
        count += 1
        workers[block] += number
    return failed * top + tapes * np.sum(workers) + failed_part * count


@parallel(POINTS)
def terms_of_some(p):
    energy, far = 0.0, p[0, 0] > -100.0
    for i in prange(p.shape[0]):
        for j in range(p.shape[0]):
            if i != j:
                dx = p[i, 0] - p[j, 0]
                dy = p[i, 1] - p[j, 1]
                square = dx * dx + dy * dy
                if square < 4.0:
                    root = math.sqrt(square + 0.1)
                    energy += 1.0 / root
        if far:
            shift = p[i, 2] * 0.5
            energy += shift * shift
    return energy


@numba.njit
def parts_of(x, y):
    return x * y, math.sin(x) + y


@parallel(X, W, argnums=(0, 1))
def helper_that_returns_a_tuple(x, w):
    s = 0.0
    for i in prange(x.size):
        a, b = parts_of(x[i], w[i])
        work = np.zeros(3, np.float64)
        work[i % 3] = a * b
        s += work.sum() + np.dot(work, work)
    return s


@parallel(POINTS, np.array([0.5, 1.5, -1.0]), 1, argnums=(0, 1))
def sums_of_rows(p, w, first):
    out = np.zeros(p.shape[0])
    for i in prange(first, p.shape[0]):
        y = 1.0
        for k in range(p.shape[1]):
            y = math.tanh(y * p[i, k])
        out[i] = np.sum(p[i] * w) + p[i].max() * np.dot(p[i], w) * y
    return np.sum(out * out)


@parallel(X.astype(np.float32))
def single_precision(x):
    s = np.float32(0.0)
    for i in prange(x.size):
        s += x[i] * x[i]
    return s


@parallel(np.exp(1j * X))
def complex_numbers(z):
    s = 0j
    y = np.empty_like(z)
    for i in prange(z.size):
        s += z[i] * z[i] * z[0]
        y[i] = z[i] ** 2
    return (s * np.sum(y)).real


@parallel(FIELD)
def nested(p):
    out = np.zeros(p.shape)
    for i in prange(p.shape[0]):
        for j in prange(p.shape[1]):
            out[i, j] = math.sin(p[i, j]) * p[i, 0]
    return np.sum(out * out)


@parallel(np.asfortranarray(FIELD), X[::2], argnums=(0, 1))
def other_layouts(p, x):
    s = 0.0
    for i in prange(x.size):
        for j in range(p.shape[1]):
            s += x[i] * p[i, j] ** 2 * p[0, j]
    return s


@parallel(X, W, argnums=(0, 1))
def inner_of_a_refused_loop(x, w):
    s = 1.0
    for i in range(3):
        t = 0.0
        for j in prange(x.size):
            t += s * x[j] * w[i]
        s = math.tanh(t)
    return s


# -- loops that run in order ----------------------------------------------------------------------


@serial("each iteration needs `y` of the one before", X)
def recurrence(x):
    y = 1.0
    for i in prange(x.size):
        y = math.sin(y * x[i])
    return y


@serial("each iteration needs `p` of the one before", X)
def product(x):
    p = 1.0
    for i in prange(x.size):
        p *= 1.0 + 0.1 * x[i]
    return p


@serial("iterations may use the same elements of `y`", X)
def running(x):
    y = x.copy()
    for i in prange(1, x.size):
        y[i] = y[i] * y[i - 1]
    return np.sum(y)


@serial("iterations may use the same elements of `y`", X, PLACES)
def scattered(x, places):
    y = np.zeros(x.size)
    for i in prange(places.size):
        y[places[i]] = x[places[i]] ** 2
    return np.sum(y)


def errors_after_changes(x):
    y = x.copy()
    for i in prange(x.size):
        if y[i] > 100.0:
            raise ValueError("large")
        y[i] = y[i] - 1.0
    return np.sum(y * y)


@serial("whose effects are unknown", X)
def draws(x):
    s = 0.0
    for i in prange(x.size):
        s += x[i] * (np.random.random() < 2.0)
    return s


def steps_from_the_end(x):
    y = np.ones(x.size)
    for i in prange(-6, 6, 2):
        y[i] += x[i] * y[i]
    return np.sum(y)


def interpreted(function, args, runner):
    gradient, argnums = function
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    return runner.derivative(tg.value_and_grad(gradient, argnums=argnums))(*copies)


def assert_equal(found, expected):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        tolerance = 1e-5 if np.asarray(one).dtype == np.float32 else 1e-11
        assert np.allclose(one, other, rtol=tolerance, atol=tolerance)


def both(function):
    """The function compiled with and without threads."""
    return tg.njit(parallel=True)(function), tg.njit(function)


@pytest.mark.parametrize(("function", "argnums", "args"), PARALLEL)
def test_shares_of_workers(function, argnums, args):
    """Any number of workers, one after the other in any order, finds what one loop does."""
    threaded, plain = both(function)
    with types_only():
        expected = interpreted((plain, argnums), args, Interpreter())
        for count in (1, 2, 3, 5):
            workers = Workers(count, np.random.default_rng(count))
            assert_equal(interpreted((threaded, argnums), args, workers), expected)
    assert "_workers(" in tg.value_and_grad(threaded, argnums=argnums).source(
        tuple(map(numba.typeof, args))
    )


@pytest.mark.parametrize(("function", "argnums", "args", "reason"), SERIAL)
def test_loops_in_order(function, argnums, args, reason):
    threaded, plain = both(function)
    with types_only():
        with pytest.warns(tg.SerialLoopWarning, match=reason):
            found = interpreted((threaded, argnums), args, Workers(3, RANDOM))
        assert_equal(found, interpreted((plain, argnums), args, Interpreter()))
    source = tg.value_and_grad(threaded, argnums=argnums).source(tuple(map(numba.typeof, args)))
    assert "_workers" not in source


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (steps_from_the_end, "indices may be negative"),
        (errors_after_changes, "an iteration may raise an error"),
    ],
)
def test_one_half_in_order(function, reason):
    """Of a loop without a tape, forward or reverse may run in parallel and the other in order."""
    threaded, plain = both(function)
    with types_only():
        with pytest.warns(tg.SerialLoopWarning, match=reason):
            found = interpreted((threaded, (0,)), (X,), Workers(3, RANDOM))
        assert_equal(found, interpreted((plain, (0,)), (X,), Interpreter()))


# -- with threads ---------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """Set the number of threads for one test."""
    before = numba.get_num_threads()
    yield lambda count: numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    numba.set_num_threads(before)


@pytest.mark.compiled
class TestThreads:
    @pytest.mark.parametrize(
        ("function", "argnums", "args"),
        [p for p in PARALLEL if p.id in ("pairs", "stencil_in_time", "helper_that_keeps_values")],
    )
    def test_results(self, function, argnums, args, threads):
        """They are right with any number of threads, and always the same with one number."""
        threaded, plain = both(function)
        gradient = tg.value_and_grad(threaded, argnums=argnums)
        expected = tg.value_and_grad(plain, argnums=argnums)(*args)
        for count in (1, 2, 4):
            threads(count)
            found = gradient(*args)
            assert_equal(found, expected)
            for _ in range(5):
                again = gradient(*args)
                assert again[0] == found[0]
                for one, other in zip(again[1], found[1], strict=True):
                    assert np.array_equal(one, other)

    def test_many_iterations(self, threads):
        threads(2)
        x = np.linspace(0.0, 1.0, 10_000)
        threaded, plain = both(sum_of_terms)
        value, gradient = tg.value_and_grad(threaded)(x)
        assert np.isclose(value, plain(x))
        assert np.allclose(gradient, np.cos(x) * x + np.sin(x))

    def test_directions(self, threads):
        threads(2)
        threaded, plain = both(pairs)
        v = RANDOM.normal(size=POINTS.shape)
        mass = np.abs(X)
        assert np.allclose(
            tg.jvp(threaded)(POINTS, mass, v), tg.jvp(plain)(POINTS, mass, v), rtol=1e-12
        )
        assert np.allclose(
            tg.hvp(threaded)(POINTS, mass, v), tg.hvp(plain)(POINTS, mass, v), rtol=1e-11
        )

    def test_backward_later(self, threads):
        """Forward and backward passes may have different numbers of threads."""
        threaded, plain = both(oscillators)
        expected = tg.grad(plain)(POINTS, W)
        p = tg.tensor(POINTS, requires_grad=True)
        threads(2)
        first = threaded(p, W)
        threads(1)
        second = threaded(p, W)
        first.backward(retain_graph=True)
        assert np.allclose(p.grad.numpy(), expected, rtol=1e-12)
        threads(2)
        second.backward()
        first.backward()
        assert np.allclose(p.grad.numpy(), 3 * expected, rtol=1e-12)

    def test_arguments_that_overlap(self, threads):
        """Iterations run in order if arrays that they write and read share elements."""

        def scaled(x, y):
            for i in prange(x.size):
                y[i] = x[i] * x[i]
            return np.sum(y)

        threads(2)
        threaded, _ = both(scaled)
        x = np.linspace(0.0, 1.0, 50)
        assert np.allclose(tg.grad(threaded)(x, np.empty(50)), 2 * x)
        with pytest.raises(ValueError, match="overlaps"):
            tg.grad(threaded)(x, x)

    def test_limit_of_memory(self, threads):
        """The tapes of all workers count."""

        def settling(x, steps):
            out = np.empty(x.size)
            for i in prange(x.size):
                y = x[i]
                for _ in range(steps):
                    y = 0.5 * y * (1.0 - y) + 0.1
                out[i] = y
            return np.sum(out)

        threaded, plain = both(settling)
        x = np.linspace(0.1, 0.9, 100)
        try:
            for gradient in (tg.grad(plain), tg.grad(threaded)):
                tg.set_tape_limit(7_500_000)
                for count in (1, 2, 4):
                    threads(count)
                    with pytest.raises(MemoryError, match="do not fit into memory"):
                        gradient(x, 10_000)
                tg.set_tape_limit(10_500_000)  # workers may not share it well
                assert np.isfinite(gradient(x, 10_000)).all()
        finally:
            tg.set_tape_limit(None)

    def test_errors_of_workers(self, threads):
        def checked(x, limit):
            s = 0.0
            for i in prange(x.size):
                if x[i] > limit:
                    raise ValueError("too large")
                s += x[i] * x[i]
            return s

        threads(2)
        threaded, _ = both(checked)
        gradient = tg.grad(threaded)
        x = np.linspace(0.0, 1.0, 100)
        for limit in (0.95, -1.0):
            with pytest.raises(ValueError, match="too large"):
                gradient(x, limit)
        assert np.allclose(gradient(x, 2.0), 2 * x)

    def test_errors_after_changes(self, threads):
        """Iterations that have changed what they read do not run again for their error."""

        def changed(x, index, y):
            s = 0.0
            for i in prange(x.size):
                k = index[i]
                index[i] = 10**12
                s += x[k] / y[i]
            return s

        threads(2)
        gradient = tg.grad(both(changed)[0])
        y = np.ones(40)
        assert np.allclose(gradient(np.ones(40), np.arange(40), y), 1.0)
        y[30] = 0.0
        with pytest.raises(RuntimeError, match="with range in place of prange"):
            gradient(np.ones(40), np.arange(40), y)

    def test_the_first_of_several_errors(self, threads):
        def checked(x):
            out = np.empty(x.size)
            for i in prange(x.size):
                if i == 30:
                    raise ValueError("30")
                if i == 360:
                    raise KeyError("360")
                out[i] = x[i] * x[i]
            return np.sum(out)

        threaded, _ = both(checked)
        for count in (1, 2, 3, 4):
            threads(count)
            with pytest.raises(ValueError, match="30"):
                tg.grad(threaded)(np.ones(400))
        assert np.allclose(tg.grad(threaded)(np.ones(20)), 2.0)

    def test_calls_from_threads(self, threads):
        threaded, plain = both(oscillators)
        gradient, expected = tg.grad(threaded), tg.grad(plain)(POINTS, W)
        gradient(POINTS, W)
        found = []

        def call():
            found.extend(gradient(POINTS, W) for _ in range(5))

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert len(found) == 15
        assert all(np.allclose(one, expected, rtol=1e-12) for one in found)

    def test_kept_machine_code(self, ran, tmp_path, monkeypatch):
        """Another process runs it without compiling anything."""
        monkeypatch.delenv("NUMBA_OPT", raising=False)  # with 0, numba keeps no parallel code
        text = """
        import numba
        import numpy as np
        import tapegrad as tg

        @tg.njit(parallel=True)
        def loss(x):
            out = np.empty(x.size)
            for i in numba.prange(x.size):
                y = x[i]
                for _ in range(3):
                    y = np.sin(y) * x[i]
                out[i] = y
            return np.sum(out)

        print(repr(tg.grad(loss)(np.linspace(0.0, 1.0, 5))))
        """
        program, cache, printed = ran(text, tmp_path)
        names = {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
        assert any("_workers" in name for name in names)
        check_stored(program, cache, printed)
        assert names == {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
