"""What all steps of a recorded loop compute alike is computed before the loop."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret, is_compiled

import tapegrad as tg

X, ROWS = np.cos(np.arange(6.0)), np.array([4, 0, 2, 2])


def checked_indices(x, rows):
    return tg.sum(tg.fori_loop(0, 5, lambda i, s: s * 0.5 + x[rows] * s, np.ones(4)) ** 2)


def parameters(x, rows):
    def step(state, row):
        rate = np.exp(-x[0]) + np.tanh(x[1])
        return state * rate + row * np.sin(x[2]), state

    state, states = tg.scan(step, x[3], x)
    return state + tg.sum(states * np.cos(np.arange(6.0)))


def matrices(x, rows):
    def step(i, state):
        inverse = np.linalg.inv(np.outer(x, x) * 0.1 + np.eye(6))
        return inverse @ state + 0.1 * np.sin(x)

    return tg.sum(tg.fori_loop(0, 4, step, x) * x)


def several_results(x, rows):
    def step(i, state):
        values, vectors = np.linalg.eigh(np.outer(x, x) + np.diag(np.arange(6.0)))
        return np.tanh(values) * (state @ vectors) @ vectors.T

    return tg.sum(tg.fori_loop(0, 3, step, x))


def inner_loops(x, rows):
    def outer(i, state):
        def inner(j, s):
            return s * np.exp(x[0]) + np.sin(state[rows]) * np.cosh(x[1])

        return state + 0.1 * tg.sum(tg.fori_loop(0, 3, inner, np.ones(4)))

    return tg.sum(tg.fori_loop(0, 2, outer, x))


def all_outputs_are_fixed(x, rows):
    state, found = tg.scan(lambda s, _: (np.exp(x[0]), np.exp(x[1]) * 2.0), x[5], np.arange(3.0))
    return state * tg.sum(found)


def arithmetic_that_others_need(x, rows):
    def step(i, s):
        beside = x - x[::-1]
        return s * np.sin(beside) + beside

    return tg.sum(tg.fori_loop(0, 3, step, x))


def one_body_for_several_loops(x, rows):
    def step(i, s):
        return s * np.exp(x[0]) + x[rows]

    return tg.sum(tg.fori_loop(0, 2, step, tg.fori_loop(1, 4, step, np.ones(4))))


FUNCTIONS = [
    checked_indices, parameters, matrices, several_results, inner_loops, all_outputs_are_fixed,
    arithmetic_that_others_need, one_body_for_several_loops,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values(function, monkeypatch):
    interpret(monkeypatch)
    jitted = tg.jit(function)
    assert is_compiled(jitted.inspect(X, ROWS))
    for x in (X, X[::-1].copy()):
        assert_equal(jitted(x, ROWS), function(x, ROWS), 1e-11, 1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_derivatives(function):
    jitted = tg.jit(function)
    assert_equal(tg.grad(jitted)(X, ROWS), tg.grad(function)(X, ROWS), 1e-10, 1e-11)
    direction = np.sin(X)
    found, expected = tg.hvp(jitted)(X, ROWS, direction), tg.hvp(function)(X, ROWS, direction)
    assert_equal(found, expected, 1e-9, 1e-10)


def in_loops(function, name):
    """Return whether something is called inside of loops over steps."""
    lines = tg.jit(function).inspect(X, ROWS).splitlines()
    found = [line for line in lines if name in line]
    assert found
    return any(line.startswith("        ") for line in found)


def test_what_is_moved():
    assert not in_loops(checked_indices, "checked_indices(")
    assert not in_loops(parameters, "np.exp(")
    assert not in_loops(matrices, "lu_factors(")
    assert not in_loops(several_results, "eigh_of_floats(")
    assert not in_loops(inner_loops, "np.cosh(")


def test_arithmetic_and_views_stay():
    def f(x, rows):
        return tg.sum(tg.fori_loop(0, 5, lambda i, s: s * (2.0 * x + 1.0) + x[::-1], x))

    text = tg.jit(f).inspect(X, ROWS)
    assert text.count("np.empty(") <= 2  # the states


@pytest.mark.parametrize("steps", [0, 3])
def test_errors_of_loops_without_steps_are_not_raised(steps):
    def f(x, rows):
        return tg.fori_loop(0, steps, lambda i, s: s + tg.sum(x[rows]), 1.0)

    jitted = tg.jit(f)
    assert_equal(jitted(X, ROWS), f(X, ROWS), 1e-13)
    wrong = np.array([1, 2, 3, 6])
    if steps:
        with pytest.raises(IndexError):
            jitted(X, wrong)
    else:
        assert_equal(jitted(X, wrong), f(X, wrong), 1e-13)


def test_draws_and_calls_of_python_stay():
    calls = []

    class Counted(tg.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(1)
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            return g * 2.0

    def f(x, rows):
        return tg.sum(tg.fori_loop(0, 3, lambda i, s: s + Counted.apply(x), x))

    jitted = tg.jit(f)
    assert_equal(jitted(X, ROWS), 7.0 * X.sum(), 1e-13)
    calls.clear()
    jitted(X, ROWS)
    assert len(calls) == 3
