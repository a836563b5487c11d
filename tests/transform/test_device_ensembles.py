"""`vmap` on a device: each thread computes a compiled function, or a derivative, for one item.

numba simulates the device in Python unless ``NUMBA_ENABLE_CUDASIM=0`` is set.
"""

import collections
import math
import types

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.pytrees import tree
from tapegrad.transform.ensembles import on_device
from tapegrad.transform.errors import TransformError

RNG = np.random.default_rng(0)
N = 150  # more than a block of threads
X, K = RNG.uniform(0.2, 0.9, (2, N))
ROWS = RNG.uniform(0.2, 0.9, (N, 3))
WEIGHTS = np.array([0.5, -1.5, 2.0])
Pair = collections.namedtuple("Pair", "first second")


@numba.njit
def wiggle(x, n):
    total = 0.0
    for i in range(n):
        if x > 0.3 * i:
            total += np.sin(x * i)
        else:
            total -= x**i
    return total


@tg.njit
def recurrence(x, k, steps):
    y = x
    for _ in range(steps):
        y = k * y * (1.9 - y) + 0.1 * wiggle(y, 3)
    return y


@tg.njit
def searched(x, k):
    count = 0
    while x < 3.0:
        x = x * 1.4 + 0.2 * k
        count += 1
        if count > 20:
            break
    return Pair(x * k, count)


@tg.njit
def ended(x, k):
    return searched(x, k).first


@tg.njit
def weighted(row, w, x):
    total = 0.0
    for i in range(row.size):
        total += row[i] * x * w[i] + math.exp(row[i]) / (1.0 + x)
    return total


@tg.njit
def polynomial(x, k):
    c = np.zeros(4)
    p = np.array([1.0, k, k * x])
    for i in range(4):
        for j in range(i % 3 + 1):
            c[i] += p[j] * x**i
    total = c[0] * c[1] + c[2] * c[3]
    if total > 1e6:
        return p[2]
    return total


@tg.njit
def elementary(x, k):
    y = np.exp(-x) + np.log(x) * np.sqrt(k) + np.tanh(x * k) - abs(x - k) + np.arctan2(x, k)
    return y + max(x, k) * min(x, 0.5) + np.floor(3.0 * x) * k + np.sign(x - k) * x + x // k


TABLE = np.array([0.5, 1.5, -2.0, 0.25])


@tg.njit
def looked_up(x, k):
    w = np.ones((2, 3))
    for i in range(2):
        for j in range(3):
            w[i, j] *= x ** (i + j) * TABLE[int(10 * k) % 4]
    n = 3
    v = np.empty(n)
    for j in range(n):
        v[j] = math.erf(x * j)
    return w[0, 1] * w[1, 2] * v[2] + np.pi * np.hypot(x, k)


FUNCTIONS = {
    "recurrence": (recurrence, (X, K, 12), (0, 0, None), (0, 1)),
    "ended": (ended, (X, K), (0, 0), (0, 1)),
    "weighted": (weighted, (ROWS, WEIGHTS, X), (0, None, 0), (0, 1, 2)),
    "polynomial": (polynomial, (X, K), (0, 0), (0, 1)),
    "elementary": (elementary, (X, K), (0, 0), (0, 1)),
    "looked_up": (looked_up, (X, K), (0, 0), (0, 1)),
}
WAYS = {
    "value": lambda f, by: (f, ()),
    "gradient": lambda f, by: (tg.grad(f, by), ()),
    "value and gradient": lambda f, by: (tg.value_and_grad(f, by), ()),
    "jvp": lambda f, by: (tg.jvp(f, by), by),
    "hvp": lambda f, by: (tg.hvp(f), by[:1]),
}


def assert_equal(found, expected):
    pairs = zip(tree(found, "")[0], tree(expected, "")[0], strict=True)
    for one, other in pairs:
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["weighted", "polynomial"])
def test_tensors_on_the_device_stay_there(name):
    f, args, axes, by = FUNCTIONS[name]
    g = tg.vmap(tg.value_and_grad(f, by), axes, target="cuda")
    found = tree(g(*(tg.tensor(a, device="cuda") for a in args)), "")[0]
    assert all(type(z) is tg.Tensor and z.device == "cuda:0" for z in found)
    assert_equal([z.cpu().numpy() for z in found], tree(g(*args), "")[0])
    strided = [tg.tensor(np.repeat(a, 2, 0), device="cuda")[::2] for a in args if len(a) == N]
    if name == "polynomial":
        again = tree(g(*strided), "")[0]
        assert_equal([z.cpu().numpy() for z in again], tree(g(*args), "")[0])


def test_tensors_that_require_gradients_are_refused():
    x = tg.tensor(X, device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match=r"detach\(\) tensors that require grad"):
        tg.vmap(polynomial, target="cuda")(x, tg.tensor(K, device="cuda"))
    with pytest.raises(ValueError, match=r"to\('cuda'\)"):
        tg.vmap(polynomial, target="cuda")(tg.tensor(X), tg.tensor(K))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_the_cpu(name, way):
    f, args, axes, by = FUNCTIONS[name]
    g, directions = WAYS[way](f, by)
    more = [np.cos(args[k]) for k in directions]
    axes = (*axes, *(axes[k] for k in directions))
    if way == "hvp" and name == "weighted":
        with pytest.raises(TransformError, match=r"which a function on a device cannot do"):
            tg.vmap(g, axes, target="cuda")(*args, *more)
        return
    expected = tg.vmap(g, axes)(*args, *more)
    assert_equal(tg.vmap(g, axes, target="cuda")(*args, *more), expected)


def test_structures_and_types_of_results():
    found = tg.vmap(searched, target="cuda")(X, K)
    assert isinstance(found, Pair)
    assert_equal(found, tg.vmap(searched)(X, K))


def test_integers_and_conditions():
    @tg.njit
    def collatz(n, flag):
        steps = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return np.where(flag, steps, -steps) + 0, flag and n == 1

    n, flags = np.arange(1, 30), np.arange(29) % 3 == 0
    found, values = tg.vmap(collatz, target="cuda")(n, flags)
    expected = [collatz(*item) for item in zip(n, flags, strict=True)]
    np.testing.assert_array_equal(found, [int(item[0]) for item in expected])
    np.testing.assert_array_equal(values, [item[1] for item in expected])


def test_axes():
    found = tg.vmap(tg.grad(weighted), (1, None, None), 1, target="cuda")(ROWS.T, WEIGHTS, 0.5)
    assert_equal(found, tg.vmap(tg.grad(weighted), (0, None, None))(ROWS, WEIGHTS, 0.5).T)


def test_an_argument_that_is_replaced_does_not_give_its_shape():
    @tg.njit
    def shortened(row):
        row = row[1:]
        w = np.zeros_like(row)
        return 1.0 * w.size + row[0]

    with pytest.raises(TransformError, match=r"np\.zeros_like"):
        tg.vmap(shortened, target="cuda")(ROWS)


FACTOR = 2.0


@tg.njit
def times_factor(x):
    return FACTOR * x


def test_a_value_that_changed_after_the_function_was_compiled(monkeypatch):
    np.testing.assert_array_equal(tg.vmap(times_factor)(X), 2.0 * X)
    monkeypatch.setitem(times_factor.py_func.__globals__, "FACTOR", 3.0)
    for f in (times_factor, tg.grad(times_factor)):
        with pytest.raises(TransformError, match="FACTOR"):
            tg.vmap(f, target="cuda")(X)
    times_factor.recompile()
    np.testing.assert_array_equal(tg.vmap(times_factor, target="cuda")(X), 3.0 * X)


class TestTapes:
    def test_a_tape_that_is_too_short(self, monkeypatch):
        launches = []
        run = on_device.Kernel._run
        monkeypatch.setattr(
            on_device.Kernel, "_run", lambda self, *a: (launches.append(self.size), run(self, *a))
        )

        @tg.njit
        def long(x, k, steps):
            return recurrence(x, k, steps)

        gradient = tg.value_and_grad(long, (0, 1))
        args = X[:3], K[:3], 100
        expected = tg.vmap(gradient, (0, 0, None))(*args)
        on_cuda = tg.vmap(gradient, (0, 0, None), target="cuda")
        assert_equal(on_cuda(*args), expected)
        assert len(launches) >= 2 and launches == sorted(set(launches))
        assert_equal(on_cuda(*args), expected)
        assert launches[-1] == launches[-2], "the length is remembered"

    def test_few_threads_at_once(self, monkeypatch):
        monkeypatch.setattr(on_device, "_SIMULATED_MEMORY", 8 * 1000)
        gradient = tg.value_and_grad(recurrence, (0, 1))
        expected = tg.vmap(gradient, (0, 0, None))(X, K, 60)
        assert_equal(tg.vmap(gradient, (0, 0, None), target="cuda")(X, K, 60), expected)

    def test_no_room_for_a_tape(self, monkeypatch):
        monkeypatch.setattr(on_device, "_SIMULATED_MEMORY", 8 * 100)
        monkeypatch.setattr(on_device.Kernel, "_free", lambda self: 2 * 8 * 100)
        gradient = tg.vmap(tg.grad(recurrence), (0, 0, None), target="cuda")
        with pytest.raises(MemoryError, match="no memory on the device for a tape"):
            gradient(X, K, 5000)
        monkeypatch.undo()
        assert_equal(gradient(X, K, 7), tg.vmap(tg.grad(recurrence), (0, 0, None))(X, K, 7))

    def test_gradients_are_not_added_twice(self, monkeypatch):
        monkeypatch.setattr(on_device, "_FIRST", 2)

        @tg.njit
        def twice(row, steps):
            total = 0.0
            for i in range(row.size):
                total += row[i] ** 2
            for _ in range(steps):
                total = np.sin(total) + row[0]
            return total

        gradient = tg.vmap(tg.grad(twice), (0, None))
        expected = gradient(ROWS, 9)
        assert_equal(tg.vmap(tg.grad(twice), (0, None), target="cuda")(ROWS, 9), expected)


class TestErrors:
    def test_an_error_of_an_item(self):
        @tg.njit
        def positive(x):
            if x < 0.0:
                raise ValueError("x is negative")
            return np.sqrt(x)

        x = X.copy()
        x[140] = -1.0
        for f in (positive, tg.grad(positive)):
            with pytest.raises(ValueError, match="x is negative"):
                tg.vmap(f, target="cuda")(x)
            assert_equal(tg.vmap(f, target="cuda")(X), tg.vmap(f)(X))

    def test_functions_that_a_device_cannot_compute(self):
        def made(x):
            y = np.empty(x.size)
            for i in range(x.size):
                y[i] = x[i]
            return y

        def sized(x):
            y = np.zeros(x.size)
            y[0] = x[0]
            return y[0]

        def drawn(x):
            return x[0] * np.random.rand()

        def summed(x):
            return np.sum(x)

        def in_a_loop(x):
            total = 0.0
            for i in range(3):
                w = np.zeros(3)
                w[i] = x[i]
                total += w[0]
            return total

        def written(x):
            x[0] = 2.0
            return x[1]

        def nested(x):
            return inner(x[0])

        inner = tg.grad(tg.njit(lambda z: z * z))
        refused = {
            made: "makes arrays|np.empty", sized: "np.zeros", drawn: "random", summed: "np.sum",
            in_a_loop: "np.zeros", written: "writes to argument 0", nested: "derivative inner",
        }  # fmt: skip
        for function, message in refused.items():
            with pytest.raises(TransformError, match=message):
                tg.vmap(tg.njit(function), target="cuda")(ROWS)

    def test_recursion(self):
        @numba.njit
        def power(x, n):
            if n == 0:
                return 1.0
            return x * power(x, n - 1)

        @tg.njit
        def outer(x):
            return power(x, 3)

        with pytest.raises(TransformError, match="power calls itself"):
            tg.vmap(outer, target="cuda")(X)

    def test_other_functions_and_targets(self):
        with pytest.raises(ValueError, match=r"for functions compiled with tapegrad\.njit"):
            tg.vmap(np.sin, target="cuda")(X)
        with pytest.raises(ValueError, match="target must be 'cpu' or 'cuda', got 'gpu'"):
            tg.vmap(recurrence, target="gpu")


@numba.njit
def parts_first(x):
    return x * x


parts = types.ModuleType("parts")
parts.first = numba.njit(lambda x: 3.0 * x)


@tg.njit
def with_names_of_ours(x):
    cuda = parts.first(x) * parts_first(x)
    both = np.zeros(2)
    both[0] = cuda
    device_first, numpy_sin = both[0], both[1]
    return device_first * math.sin(x) + np.sin(numpy_sin) + parts.first(x)


def test_names_in_the_function():
    for g in (with_names_of_ours, tg.grad(with_names_of_ours)):
        assert_equal(tg.vmap(g, target="cuda")(X), tg.vmap(g)(X))
