"""Recorded functions with what has no derivative: sorting, masks, counts, integers, rounding."""

import numpy as np
import pytest
from interpreted import assert_equal, in_float32, interpret, interpret_derivatives, is_compiled

import tapegrad as tg

rng = np.random.default_rng(0)
X = rng.permutation(np.linspace(-1.4, 1.6, 20)).reshape(5, 4)
K = rng.integers(-6, 7, (5, 4))
SPECIAL = np.array([1.0, np.nan, np.inf, -np.inf, 2.0, 3.0])
BESIDE = np.array([1.0 + 1e-9, np.nan, np.inf, np.inf, 2.1, np.nan])


def masked_write(x):
    z = x * 2.0
    z[x > 0.3] = x[x > 0.3] ** 2
    return z


SORTING = {
    "argsort": lambda x: x.ravel()[np.argsort(x, axis=None)],
    "argsort of rows": lambda x: np.take_along_axis(x, np.argsort(x), 1) * X,
    "argsort of columns": lambda x: np.take_along_axis(x, x.argsort(axis=0), axis=0) * X,
    "argsort, stable": lambda x: x * np.argsort(np.round(x), axis=1, kind="stable"),
    "sort": lambda x: np.sort(x, axis=None) * tg.sort(x.ravel()),
    "sort of rows": lambda x: np.sort(x) * X,
    "sort of columns": lambda x: tg.sort(x, axis=0) * X,
    "take": lambda x: np.take(x, np.argsort(x[:, 0]), axis=0) * X,
    "take of all": lambda x: np.take(x, np.argsort(x[:, 0])),
    "median": lambda x: np.median(x, axis=0),
    "quantile": lambda x: np.quantile(x, 0.3, axis=1),
}
MASKS = {
    "mask": lambda x: x[x > 0] ** 2,
    "mask of rows": lambda x: x[x[:, 0] > 0] * 2.0,
    "mask of columns": lambda x: x[:, x[0] > 0] * 2.0,
    "masked write": masked_write,
    "count": lambda x: x * np.count_nonzero(x > 0) + np.count_nonzero(x, axis=1, keepdims=True),
    "digitize": lambda x: x * np.digitize(x, [-1.0, 0.0, 0.4]),
    "digitize, falling": lambda x: x * np.digitize(x, [0.4, 0.0, -1.0], right=True),
}
ROUNDING = {
    "round": lambda x: np.round(x) * x,
    "decimals": lambda x: np.round(x * 1.2345, 2) * x + np.around(x * 97.0, -1),
}
CASES = [(name, f) for table in (SORTING, MASKS, ROUNDING) for name, f in table.items()]


def weighted(f):
    def total(*args):
        found = f(*args)
        return tg.sum(found * np.cos(np.arange(found.size)).reshape(found.shape))

    return total


def check(f, args):
    check_values(f, args)
    assert_equal(tg.grad(tg.jit(weighted(f)))(*args), tg.grad(weighted(f))(*args))


def check_values(f, args, precision=(1e-12, 1e-13)):
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(*args)), jitted.inspect(*args)
    expected = f(*map(tg.tensor, args))
    assert jitted(*args).dtype == expected.dtype
    assert_equal(jitted(*args), expected, *precision)


@pytest.mark.parametrize("is_single", [False, True], ids=["float64", "float32"])
@pytest.mark.parametrize(("name", "f"), CASES, ids=[name for name, _ in CASES])
def test_floats(name, f, is_single, monkeypatch):
    if is_single:
        if "digitize" in name:
            pytest.skip("edges are float64")
        interpret(monkeypatch)
        check_values(f, in_float32((X,)), (1e-5, 1e-5))
    else:
        interpret_derivatives(monkeypatch)
        check(f, (X,))


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "f"), CASES, ids=[name for name, _ in CASES])
def test_machine_code(name, f):
    check(f, (X,))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, k: x * (k // 3) + k % 4,
        lambda x, k: x * (k // 2) * (k % -3),
        lambda x, k: x * np.clip(k, -2, 3) + np.maximum(k, 1) * x,
        lambda x, k: x * np.minimum(k, k[::-1]) + abs(k) * k**2,
        lambda x, k: x[(k[:, 0] + 6) % 5],
    ],
    ids=["quotient", "signs", "clip", "least", "index"],
)
def test_integers(f, monkeypatch):
    interpret_derivatives(monkeypatch)
    check(f, (X, K))


@pytest.mark.parametrize("decimals", [-1, 0, 1, 3])
@pytest.mark.parametrize("how", ["interpreted", pytest.param("", marks=pytest.mark.compiled)])
def test_ties_of_float32_are_rounded_in_float32(decimals, how, monkeypatch):
    if how:
        interpret(monkeypatch)
    x = np.float32(np.arange(400) / 2.0 + 0.5) * np.float32(10.0**-decimals)
    jitted = tg.jit(lambda x: np.round(x, decimals) * np.float32(2.0))
    assert is_compiled(jitted.inspect(x))
    np.testing.assert_array_equal(jitted(x), np.round(x, decimals) * np.float32(2.0))


CONVERSIONS = [
    lambda x: x.astype(int) * 2 + np.trunc(x * 3.0).astype(np.int64),
    lambda x: x * x.astype(bool) + (x > 0.5).astype(int) * 2.0,
    lambda x: x * (x.astype(int) - 1).astype(bool),
]


@pytest.mark.parametrize("f", CONVERSIONS)
@pytest.mark.parametrize("how", ["interpreted", pytest.param("", marks=pytest.mark.compiled)])
def test_conversions(f, how, monkeypatch):
    if how:
        interpret(monkeypatch)
    x = np.array([1.7, -1.7, 0.0, -0.0, 0.5, 2.0, 1e15, -1e15])
    check_values(f, (x,))


@pytest.mark.compiled
def test_what_is_no_integer():
    x = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 2.0**63, -(2.0**63), 4e18])
    with np.errstate(invalid="ignore"):
        expected = x.astype(int)
    assert_equal(tg.jit(lambda x: x.astype(int))(x), expected)


def test_samples_between_pixels(monkeypatch):
    interpret_derivatives(monkeypatch)

    def f(x, image):
        at = np.clip(x * 2.0 + 2.5, 0.0, 3.999)
        k = np.floor(at[:, 0]).astype(int)
        part = at[:, 0] - k
        return (1.0 - part) * image[k, 1] + part * image[k + 1, 2]

    check(f, (X, np.arange(20.0).reshape(5, 4) ** 2))


@pytest.mark.parametrize("equal_nan", [False, True])
def test_close_numbers(equal_nan, monkeypatch):
    interpret(monkeypatch)

    def f(x, y):
        return np.where(np.isclose(x, y, equal_nan=equal_nan), 1.0, 0.0) + np.isclose(x, 2.0) * 2.0

    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(SPECIAL, BESIDE))
    assert_equal(jitted(SPECIAL, BESIDE), f(SPECIAL, BESIDE))


def test_masks_that_are_arguments(monkeypatch):
    interpret(monkeypatch)
    jitted = tg.jit(lambda x, mask: x[mask].sum(axis=0))
    assert is_compiled(jitted.inspect(X, X[:, 0] > 0))
    for mask in (X[:, 0] > 0, X[:, 0] < 0, np.ones(5, bool), np.zeros(5, bool), X[:, 0] > 0):
        assert_equal(jitted(X, mask), X[mask].sum(axis=0))
    with pytest.raises(IndexError):
        jitted(X, np.ones(4, bool))


def test_parts_of_several_dtypes(monkeypatch):
    interpret_derivatives(monkeypatch)
    check(lambda x: np.concatenate([x[0], np.arange(3), np.argsort(x[1]), x[1] > 0]), (X,))
    check_values(lambda x: np.concatenate([x[0], np.arange(3.0)]), in_float32((X,)), (1e-6, 1e-6))
