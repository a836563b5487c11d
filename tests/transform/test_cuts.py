"""Values that are kept in place of several others, which only they need."""

import random

import numpy as np
import pytest
from check import check

import tapegrad as tg
from tapegrad.transform.codegen.cuts import kept_instead

# what each value is computed from; x, y and z are kept otherwise
STENCIL = {"slope": ["sum"], "sum": ["first", "z"], "first": ["x", "y"]}
LEAVES = dict.fromkeys("xyz", 1)


def test_the_last_value_before_others_are_needed():
    assert kept_instead(STENCIL, ["slope"], LEAVES, {"first", "sum"}) == ["sum"]
    assert kept_instead(STENCIL, ["slope"], LEAVES, {"first"}) == ["first"]
    assert kept_instead(STENCIL, ["slope"], LEAVES, set()) == []


def test_values_that_are_needed_elsewhere_stay():
    assert kept_instead(STENCIL, ["slope", "z"], LEAVES, {"first", "sum"}) == ["sum"]
    assert kept_instead(STENCIL, ["slope", "y", "z"], LEAVES, {"first", "sum"}) == []
    beside = {**STENCIL, "other": ["x"]}
    assert kept_instead(beside, ["slope", "other"], LEAVES, {"first", "sum"}) == ["sum"]


def test_one_number_is_not_kept_for_another_one():
    reads = {"slope": ["scaled"], "scaled": ["x"]}
    assert kept_instead(reads, ["slope"], {"x": 1}, {"scaled"}) == []
    assert kept_instead(reads, ["slope"], {"x": 2}, {"scaled"}) == ["scaled"]  # a complex one


def without(reads, needed, left_out):
    """Return the values that are reached without one of them."""
    found, waiting = set(), [n for n in needed if n != left_out]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += [read for read in reads.get(value, ()) if read != left_out]
    return found


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed):
    """The values that are kept dominate what they replace, and no two replace the same."""
    draw = random.Random(seed)
    names = [f"v{k}" for k in range(draw.randint(3, 14))]
    reads = {
        name: draw.sample(names[k + 1 :], min(len(names) - k - 1, draw.randint(1, 3)))
        for k, name in enumerate(names[:-1])
        if draw.random() < 0.8
    }
    needed = draw.sample(names, draw.randint(1, 3))
    weights = {name: draw.choice([1, 1, 2]) for name in names if name not in reads}
    candidates = {name for name in reads if draw.random() < 0.7}
    found = kept_instead(reads, needed, weights, candidates)
    replaced = []
    for value in found:
        assert value in candidates
        gone = {n for n in weights if n not in without(reads, needed, value)}
        gone &= without(reads, needed, "")
        assert sum(weights[n] for n in gone) >= 2
        replaced += gone
    assert len(replaced) == len({*replaced})
    for value in candidates - {*found}:  # none that would have paid is left
        gone = {n for n in weights if n not in without(reads, needed, value)}
        gone &= without(reads, needed, "") - {*replaced}
        assert sum(weights[n] for n in gone) < 2


@tg.njit
def diffusion(start, n):
    u = start.copy()
    for _ in range(n):
        v = u.copy()
        for i in range(1, u.size - 1):
            v[i] = np.tanh(0.25 * u[i - 1] + 0.5 * u[i] + 0.25 * u[i + 1])
        u = v
    return np.sum(u * u)


@tg.njit
def products(u, w, n):
    total = 0.0
    for k in range(n):
        u = np.sin(u * (k + 1.0))
        w = np.cos(w) + u
        for i in range(u.size):
            total += (u[i] * w[i] + u[i]) ** 3 * total + np.exp(u[i] - w[i])
    return total


@pytest.mark.compiled
def test_gradients():
    u = np.cos(np.arange(9.0))
    check(diffusion, u, 4)
    check(products, u, np.sin(u), 3)


def test_a_sum_is_kept_rather_than_its_terms():
    text, _, _ = diffusion.adjoint_source(np.ones(9), 2).partition("# versions that run faster")
    assert text.count("runtime.row(") == 4  # the argument of tanh and its value, there and back
