"""Loops of Python become loops again: with running indices, other numbers, collected states."""

import numpy as np
import pytest

import tapegrad as tg

RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(60, 3))
LABELS = np.sign(RNG.normal(size=60))


def running_indices(x, y):
    """Of two axes, and a number that differs."""
    total = 0.0
    for i in range(40):
        total = total * 0.3 + y[i] * np.tanh(x[i, i]) * 0.9**i
    return total


def collected(x, y):
    states = []
    state = x[0, 0]
    for i in range(40):
        state = state * 0.5 + y[i]
        states.append(state)
    return np.sum(np.stack(states) ** 2) + sum(states)


def two_steps_back(x, y):
    states = [y[0], y[1]]
    for i in range(2, 40):
        states.append(0.6 * states[-1] - 0.3 * states[-2] + y[i])
    return np.sum(tg.array(states) ** 2)


def exchanged(x, y):
    """The method of Verlet, of which every tenth state is looked at."""
    before, now, found = y[0], y[1], []
    for i in range(80):
        before, now = now, 2 * now - before - 0.01 * np.sin(now) * y[2]
        if i % 10 == 3:
            found.append(now)
    return np.sum(np.stack(found) ** 2)


def written(x, y):
    z = tg.zeros(40)
    z[0] = y[0]
    for i in range(1, 40):
        z[i] = 0.5 * z[i - 1] + y[i] * y[i - 1]
    return np.sum(z * z)


def systems_of_a_method(x, y):
    """The method of Thomas: forth, and back through collected states."""
    c, q = [1.0 / (3.0 + y[0])], [y[0] / 3.0]
    for i in range(1, 40):
        m = 3.0 + y[i] - 0.5 * c[i - 1]
        c.append(1.0 / m)
        q.append((y[i] - 0.5 * q[i - 1]) / m)
    found = [None] * 40
    found[39] = q[39]
    for i in range(38, -1, -1):
        found[i] = q[i] - c[i] * found[i + 1] * 0.5
    return np.sum(tg.array(found) ** 3)


def constants(x, y):
    total = 0.0
    for i in range(60):
        total = total + np.log1p(np.exp(-LABELS[i] * (DATA[i] @ y[:3])))
    return total


def nested(x, y):
    total = 0.0
    for i in range(8):
        for j in range(9):
            total = total + np.sin(y[i] * y[j]) * (i + 1) / (j + 1)
    return total


def nested_with_more(x, y):
    total = 0.0
    for i in range(20):
        row = 0.0
        for j in range(9 if i else 4):
            row = row + y[j] * x[i, j]
        total = total + np.tanh(row) * y[i]
    return total


def arrays(x, y):
    """Steps of Euler, with an array that differs."""
    state, loss = y[:3], 0.0
    for i in range(50):
        change = np.stack([state[1], y[3] * (1 - state[0] ** 2) * state[1], -state[2]])
        state = state + 0.01 * change
        loss = loss + np.sum((state - DATA[i]) ** 2)
    return loss


def complex_numbers(x, y):
    state, loss = y[:4] + 0j, 0.0
    for i in range(30):
        state = state * np.exp(0.1j * i) + y[:4]
        loss = loss + np.sum(np.abs(state) ** 2) * (i + 1)
    return loss


def powers(x, y):
    total = y[:3] * 0.0
    for k in range(40):
        total = total + y[k] * y[:3] ** k
    return np.sum(total)


def matrices(x, y):
    """A filter of Kalman for two states."""
    noise = np.exp(y[0])
    transition = np.array([[1.0, 1.0], [0.0, 1.0]])
    h = np.array([1.0, 0.0])
    mean, cov, loss = np.zeros(2), 10.0 * np.eye(2), 0.0
    for i in range(12):
        mean, cov = transition @ mean, transition @ cov @ transition.T + noise * np.eye(2)
        innovation = y[i] - h @ mean
        s = h @ cov @ h + 1.0
        gain = cov @ h / s
        mean, cov = mean + gain * innovation, cov - np.outer(gain, h @ cov)
        loss = loss + 0.5 * (np.log(s) + innovation**2 / s)
    return loss


def in_an_order(x, y):
    total = y[0]
    for i in [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]:
        total = np.sin(total + y[i]) * y[-1 - i]
    return total


def diagonals(x, y):
    """Indices and masks of the antidiagonals of a table, as in alignments."""
    rows = np.arange(12)
    last, now = np.full(13, 9.0), np.full(13, 9.0)
    for k in range(23):
        columns = k - rows
        inside = (columns >= 0) & (columns < 12)
        cost = np.where(inside, x[rows, np.clip(columns, 0, 11)] ** 2, 9.0)
        least = tg.logsumexp(-np.stack([now[1:], now[:-1], last[:-1]]), axis=0)
        after = np.where(inside, cost - least, 9.0)
        last, now = now, np.concatenate([np.full(1, 9.0), after])
    return now[12] + y[0]


def rows_at_arrays(x, y):
    """Arrays in indices that differ, beside slices, from the end, and that are the same."""
    state = x[:3, 5:9]
    for i in range(20):
        state = np.tanh(state) + x[np.array([i, -1 - i, 3]), 5:9] * x[2:5, np.array([0, 1, 1, -2])]
        state = state * y[np.array([[i], [2 * i], [0]])]
    return state.sum()


# programs, and how many loops there are, at least
PROGRAMS = {
    running_indices: 1,
    collected: 2,
    two_steps_back: 1,
    exchanged: 1,
    written: 1,
    systems_of_a_method: 2,
    constants: 1,
    nested: 1,
    nested_with_more: 1,
    arrays: 1,
    complex_numbers: 1,
    powers: 1,
    matrices: 1,
    in_an_order: 1,
    diagonals: 1,
    rows_at_arrays: 1,
}


def given():
    draw = np.random.default_rng(1)
    return draw.normal(size=(60, 60)), 0.3 * draw.normal(size=60)


@pytest.mark.compiled
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_values_and_derivatives(function):
    args = given()
    found = tg.jit(function)
    assert found.inspect(*args).count(" in range(") >= PROGRAMS[function]
    assert found.inspect(*args).count("\n") < 300
    value, gradients = tg.jit(tg.value_and_grad(function, argnums=(0, 1)))(*args)
    expected, wanted = tg.value_and_grad(function, argnums=(0, 1))(*args)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for own, want in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-9, atol=1e-12)


@pytest.mark.compiled
def test_second_derivatives():
    x, y = given()

    def f(y):
        return running_indices(x, y) ** 2 + two_steps_back(x, y)

    direction = RNG.normal(size=60)
    found = tg.hvp(tg.jit(f))(y, direction)
    np.testing.assert_allclose(found, tg.hvp(f)(y, direction), rtol=1e-9, atol=1e-12)


def test_long_programs_are_short_texts():
    def trace(a):
        total = 0.0
        for i in range(900):
            total += np.tanh(a[i % 50, i % 50] + i)
        return total

    text = tg.jit(trace).inspect(np.eye(50))
    assert text.count("\n") < 30


def test_what_all_steps_compute_alike_is_computed_once():
    def f(x, y):
        total = 0.0
        for i in range(40):
            total = total + np.exp(y[0]) * x[i, 0]
        return total

    text = tg.jit(f).inspect(*given())
    before, loop = text.split(" in range(", 1)
    assert "np.exp" in before
    assert "np.exp" not in loop


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(6))
def test_random_arrays_in_indices(seed):
    draw = np.random.default_rng(seed)
    order = [draw.integers(-60, 60, 4) for _ in range(25)]
    others = [draw.integers(0, 60, (2, 1)) for _ in range(25)]
    kept = draw.random((25, 2, 4)) < 0.7

    def f(x, y):
        state = x[:2, :4]
        for i in range(25):
            read = x[others[i], order[i]] if seed % 2 else x[others[0], 3:7] * y[order[i]]
            state = np.where(kept[i], np.sin(state) + read, state * (1.0 if seed % 3 else y[i]))
        return (state**2).sum()

    args = given()
    text = tg.jit(f).inspect(*args)
    assert text.count(" in range(") < 25
    found = tg.jit(tg.value_and_grad(f, argnums=(0, 1)))(*args)
    expected = tg.value_and_grad(f, argnums=(0, 1))(*args)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    for own, want in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-9, atol=1e-12)


def step_of(rng, state, other, y, i):
    """The next states of a random program, which draws the same in each step."""
    terms = [state, other, y[i], y[i] * y[i + 1], DATA[i, 0] * state, state * (0.1 * i), y[3]]
    chosen = [terms[k] for k in rng.choice(len(terms), 3)]
    maps = [np.sin, np.tanh, lambda x: 0.5 * x, lambda x: x / (1.0 + x * x)]
    after = chosen[0] + maps[rng.integers(4)](chosen[1] + 0.1) - 0.3 * chosen[2]
    return maps[rng.integers(2)](after), (other if rng.random() < 0.3 else state)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(12))
def test_random_steps(seed):
    def f(x, y):
        state, other, seen = y[0], y[1] * x[0, 0], []
        first, count = seed % 3, int(np.random.default_rng(seed).integers(14, 50))
        for i in range(first, first + count):
            state, other = step_of(np.random.default_rng(seed), state, other, y, i)
            if seed % 2:
                seen.append(state + other if seed % 4 == 1 or i % 3 else other)
        return state * other + (np.sum(tg.array(seen[::-1]) ** 2) if seen else 0.0)

    args = given()
    found = tg.jit(tg.value_and_grad(f, argnums=(0, 1)))(*args)
    expected = tg.value_and_grad(f, argnums=(0, 1))(*args)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    for own, want in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-9, atol=1e-12)
