"""Derivatives of functions that raise: they give back all memory that they have taken."""

from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import tapegrad as tg

STATUS = Path("/proc/self/statm")
CALLS = 30
MEGABYTES = 12  # that the process may grow by; it grew by 60 and more


@tg.njit
def numbers(x, n):
    t = x
    for _ in range(n):
        t = np.sin(t * 1.1)
    if n > 5:
        raise ValueError("too many")
    return t


@tg.njit
def called(x, n):
    return 2.0 * numbers(x, n)


@tg.njit
def division(x, n):
    t = x
    for _ in range(n):
        t = np.sin(t * 1.1)
    return t / float(max(7 - n, 0))  # 0 for more than 6 steps


@tg.njit
def arrays(x, n):
    y = np.full(1000, x)
    for _ in range(n):
        y = np.sin(y * 1.1)
    if n > 5:
        raise ValueError("too many")
    return np.sum(y)


@tg.njit
def element(x, n):
    y = np.zeros(n)
    for k in range(n):
        y[k] = x * k
    t = x
    for k in range(n + (n > 5)):
        if k >= n:
            raise IndexError("outside")
        t = np.sin(t * y[k])
    return t


@tg.njit
def reused(x, n):
    """Its loop uses one array in each iteration."""
    total = 0.0
    for k in range(5):
        y = np.empty(n * 40)
        for i in range(n * 40):
            y[i] = np.sin(x * i + k)
        for i in range(n * 40):
            total += y[i] * y[i]
        if k == 4 and n > 5:
            raise ValueError("too many")
    return total


PROGRAMS = {
    "numbers": (numbers, 300_000),
    "called": (called, 300_000),
    "division": (division, 300_000),
    "arrays": (arrays, 300),
    "element": (element, 300_000),
    "reused": (reused, 5_000),
}
TRANSFORMS = {
    "grad": tg.grad,
    "value_and_grad": tg.value_and_grad,
    "grad of grad": lambda f: tg.grad(tg.grad(f)),
    "jvp": lambda f: lambda x, n: tg.jvp(f, 0)(x, n, 1.0),
}


def grown(call):
    """Return the error of a call, and how many megabytes more the process has after many."""

    def run(times):
        found = None
        for _ in range(times):
            try:
                call()
            except (ValueError, ZeroDivisionError, IndexError) as error:
                found = error
        return found

    def size():
        return int(STATUS.read_text().split()[1]) * 4096 / 1e6

    run(3)
    before = size()
    found = run(CALLS)
    return found, size() - before


@pytest.mark.skipif(not STATUS.exists(), reason="needs the size of the process")
@pytest.mark.parametrize(
    ("name", "transform"),
    [
        *((name, "grad") for name in PROGRAMS),
        *(("numbers", transform) for transform in TRANSFORMS if transform != "grad"),
        ("arrays", "grad of grad"),
        ("reused", "value_and_grad"),
    ],
)
def test_memory_is_given_back(name, transform):
    function, many = PROGRAMS[name]
    if transform == "grad of grad":
        many = many // 2 + 8
    derivative = TRANSFORMS[transform](function)
    expected = derivative(0.3, 3)
    error, size = grown(lambda: derivative(0.3, many))
    assert isinstance(error, (ValueError, ZeroDivisionError, IndexError))
    assert size < MEGABYTES
    assert derivative(0.3, 3) == expected


def test_arrays_on_the_tape_are_given_back():
    """All but those that numba loses itself, which the frames of the function have."""
    derivative = tg.grad(arrays)
    _nrt_python.memsys_enable_stats()

    def lost(many):
        before = rtsys.get_allocation_stats()
        with pytest.raises(ValueError, match="too many"):
            derivative(0.3, many)
        after = rtsys.get_allocation_stats()
        return (after.alloc - before.alloc) - (after.free - before.free)

    lost(10)
    assert lost(100) == lost(10) < 10


@tg.njit(parallel=True)
def in_threads(x, n):
    total = 0.0
    for i in numba.prange(x.size):
        t = x[i]
        for _ in range(n):
            t = np.sin(t * 1.1)
        total += t
    if n > 5:
        raise ValueError("too many")
    return total


@pytest.mark.skipif(not STATUS.exists(), reason="needs the size of the process")
def test_tapes_of_workers_are_given_back():
    derivative, x = tg.grad(in_threads), np.ones(300)
    derivative(x, 3)
    error, size = grown(lambda: derivative(x, 1000))
    assert isinstance(error, ValueError)
    assert size < MEGABYTES
