"""Loops of Python whose vectors are shorter, or longer, in each step."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret, is_compiled

import tapegrad as tg

X = np.cos(np.arange(41.0) ** 2)
MAPS = [
    np.sin,
    np.tanh,
    lambda x: 0.5 * x,
    lambda x: x / (1.0 + x * x),
    lambda x: np.maximum(x, 0.1),
]


def binomial_tree(x):
    """Prices and values of an option; both are shorter by one in each step."""
    prices = 100.0 * np.exp(0.1 * x)
    values = np.maximum(101.0 - prices, 0.0)
    for _ in range(40):
        prices = prices[1:] / (1.0 + 0.01 * x[0])
        values = np.maximum(0.6 * values[1:] + 0.4 * values[:-1], 101.0 - prices)
    return values[0]


def differences(x):
    for _ in range(30):
        x = np.sin(x[1:] - x[:-1])
    return (x**2).sum()


def from_the_middle(x):
    for _ in range(15):
        x = np.tanh(x[1:-1] + 0.5 * x[:-2] * x[2:])
    return (x**2).sum()


def from_the_end(x):
    """What is read is counted from the end, which moves."""
    for _ in range(30):
        x = np.sin(x[:-1] + x[-1])
    return (x**2).sum()


def turned(x):
    for _ in range(30):
        x = np.sin(x[::-1][1:] + 0.3 * x[:-1])
    return (x**2).sum()


def beside_fixed_vectors(x):
    """A vector of all steps has the length of one of those that become shorter."""
    y = x
    for k in range(30):
        y = np.sin(y[1:] + 0.1 * x[: 40 - k])
    return (y**2).sum() + (x[:40] ** 2).sum()


def longer(x):
    """Rows of Pascal's triangle, in which vectors are joined."""
    y = x[:2]
    for _ in range(30):
        y = np.concatenate([y[:1], 0.5 * (y[1:] + y[:-1]), y[-1:]])
    return (y**2 * np.arange(32.0)).sum()


def sums_and_places(x):
    for _ in range(30):
        x = np.sin(x[1:] + x[2] - 0.01 * np.sum(x) + 0.1 * x[:-1].max())
    return (x**2).sum()


def of_two_lengths(x):
    y, z = x, x[:20]
    for _ in range(15):
        y, z = np.sin(y[1:] * z[0]), np.cos(z + y[5])
    return y.sum() + z.sum()


PROGRAMS = [
    *(binomial_tree, differences, from_the_middle, from_the_end, turned, beside_fixed_vectors),
    *(longer, sums_and_places, of_two_lengths),
]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_values(function, monkeypatch):
    """Python runs the text, where what is read beyond the end of an array is an error."""
    interpret(monkeypatch)
    jitted = tg.jit(function)
    assert is_compiled(jitted.inspect(X))
    assert_equal(jitted(X), function(X), 1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_derivatives(function):
    jitted = tg.jit(function)
    found, expected = tg.value_and_grad(jitted)(X), tg.value_and_grad(function)(X)
    assert_equal(found, expected, 1e-10, 1e-12)
    assert_equal(tg.jvp(jitted, 0)(X, X), tg.jvp(function, 0)(X, X), 1e-10, 1e-12)


@pytest.mark.parametrize("function", [binomial_tree, differences], ids=lambda f: f.__name__)
def test_they_are_one_loop(function):
    text = tg.jit(function).inspect(X)
    assert " in range(m" in text
    assert text.count(" in range(") < 10


@pytest.mark.parametrize("seed", range(20))
def test_random_steps(seed, monkeypatch):
    interpret(monkeypatch)

    def f(x):
        y, z = x, np.cos(x)
        draw = np.random.default_rng(seed)
        ways = [slice(1, None), slice(None, -1)]
        chosen = [(MAPS[draw.integers(5)], ways[draw.integers(2)], draw.integers(3)) for _ in "ab"]
        for _ in range(int(draw.integers(12, 35))):
            (first, one, kind), (second, other, _) = chosen
            new = first(y[one] + 0.3 * z[other]) * (1.0, x[2], x[0] * 0.5)[kind]
            y, z = new, second(z[one] * y[other]) if seed % 2 else new * 0.7
        return (y * z).sum()

    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(X))
    assert_equal(jitted(X), f(X), 1e-12)
