"""The schedule: as few recomputed steps as possible, and never more states than allowed."""

import functools

import pytest

from tapegrad.utils.revolve import beta, first_positions, recomputed_steps, repetitions, reversal

N = 200


@functools.cache
def optimum():
    """t(n, c) for all n and c, by dynamic programming."""
    found = {(1, c): 0 for c in range(1, N + 1)}
    for n in range(2, N + 1):
        found[n, 1] = n * (n - 1) // 2
    for c in range(2, N + 1):
        for n in range(2, N + 1):
            found[n, c] = min(m + found[n - m, c - 1] + found[m, c] for m in range(1, n))
    return found


def simulate(n, c):
    """Follow a schedule; return the number of computed steps, and how often each one was."""
    positions = list(first_positions(n, c))
    assert positions[0] == 0
    assert len(positions) <= c
    counts = [1] * (n - 1) + [0]  # the loop itself, up to the state before the last step
    stored, state, left = set(positions), n - 1, n
    for action, start, end in reversal(n, c, positions):
        if action == "restore":
            assert start in stored
            state = start
        elif action == "advance":
            assert start == state < end
            for k in range(start, end):
                counts[k] += 1
            state = end
        elif action == "store":
            assert start == state
            stored.add(start)
            assert len(stored) <= c
        elif action == "drop":
            stored.remove(start)
        else:
            assert (action, start, end) == ("reverse", state, left)
            left = start
    assert left == 0
    assert stored == set()
    return sum(counts), max(counts)


def test_the_formula():
    """For every n up to 200 and every number of states up to n."""
    expected = optimum()
    assert all(
        recomputed_steps(n, c) == expected[n, c] for n in range(1, N + 1) for c in range(1, n + 1)
    )


def test_the_schedule_takes_the_least_number_of_steps():
    """For every n up to 200 and every number of states up to n."""
    expected = optimum()
    for n in range(1, N + 1):
        for c in range(1, n + 1):
            positions = list(first_positions(n, c))
            steps = [q - p for action, p, q in reversal(n, c, positions) if action == "advance"]
            assert n - 1 + sum(steps) == expected[n, c], (n, c)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 55, 56, 57, 131, 200])
def test_the_schedule_is_valid(n):
    for c in {1, 2, 3, 4, 5, 10, 50, n, n + 3} - {0}:
        computed, most = simulate(n, c)
        assert computed == recomputed_steps(n, c)
        assert most <= repetitions(n, c)


def test_a_million_steps():
    assert repetitions(1_000_000, 50) == 5
    assert beta(50, 4) < 1_000_000 <= beta(50, 5)
    assert recomputed_steps(1_000_000, 50) == 5 * 1_000_000 - beta(51, 4) == 4_658_945
