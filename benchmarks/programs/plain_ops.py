"""The cost of a plain recorded op: nanoseconds to record it, to free it and to sweep it.

Plain means that no special feature is used: no hooks, no modes, no in-place writes. The file needs
only NumPy and any version of tapegrad, so that ``plain_path.py`` can run it on all versions:
``python plain_ops.py`` prints the costs as JSON. Under Valgrind's Callgrind,
``python plain_ops.py --instructions`` lets it count the instructions of each instead.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import repeat
from time import perf_counter_ns
from typing import Any

import numpy as np

RECORDS = 1000
"""Records in a graph; a cost is the time that all of them take divided by their number."""

SIZES = (1, 8)

SAMPLES = 25

FEW, MANY = 2, 12
"""Samples of which instructions are counted."""

OPS: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "add": lambda tg, x, y: [x + y for _ in repeat(None, RECORDS)],
    "multiply": lambda tg, x, y: [x * y for _ in repeat(None, RECORDS)],
    "multiply by a number": lambda tg, x, y: [x * 1.5 for _ in repeat(None, RECORDS)],
    "exp": lambda tg, x, y: [exp(x) for exp in repeat(tg.exp, RECORDS)],
    "sin": lambda tg, x, y: [sin(x) for sin in repeat(tg.sin, RECORDS)],
    "sum": lambda tg, x, y: [total(x) for total in repeat(tg.sum, RECORDS)],
}
"""The same op on the same operands, all results alive."""


def chain(tg: Any, x: Any, y: Any) -> Any:
    """Products and sines one after the other."""
    sin = tg.sin
    z = x
    for _ in repeat(None, RECORDS // 2):
        z = z * y
        z = sin(z)
    return z


def recording(record: Callable[..., Any], tg: Any, x: Any, y: Any) -> int:
    """Record a graph."""
    start = perf_counter_ns()
    graph = record(tg, x, y)
    time = perf_counter_ns() - start
    del graph
    return time


def letting_go(tg: Any, x: Any, y: Any) -> int:
    """Drop the last reference to a chain."""
    graph = chain(tg, x, y)
    start = perf_counter_ns()
    del graph
    return perf_counter_ns() - start


def sweep(tg: Any, x: Any, y: Any) -> int:
    """Differentiate a chain and let it go, again and again; the last time counts.

    Right after other programs a sweep takes up to three times as long, and varies as much.
    """
    grad = tg.autograd.grad
    for _ in range(3):
        value = tg.sum(chain(tg, x, y))
        start = perf_counter_ns()
        grad(value, (x, y))
        del value
        time = perf_counter_ns() - start
    return time


COSTS: dict[str, Callable[[Any, Any, Any], int]] = {
    **{name: partial(recording, record) for name, record in OPS.items()},
    "chain": partial(recording, chain),
    "chain, letting it go": letting_go,
    "chain, sweep": sweep,
}


NAMES = tuple(f"{name}, n={n}" for n in SIZES for name in COSTS)


def samplers(tg: Any) -> list[Callable[[], int]]:
    """What takes a sample of each cost, in the order of `NAMES`."""
    rng = np.random.default_rng(0)
    found: list[Callable[[], int]] = []
    for n in SIZES:
        x, y = (tg.tensor(rng.uniform(0.5, 1.5, n), requires_grad=True) for _ in range(2))
        found += [partial(cost, tg, x, y) for cost in COSTS.values()]
    return found


def measure(tg: Any) -> dict[str, float]:
    """The median of every cost in nanoseconds a record; samples of all are taken in turn."""
    taken = samplers(tg)
    first = taken[list(COSTS).index("chain")]
    samples: dict[str, list[int]] = {name: [] for name in NAMES}
    for turn in range(-2, SAMPLES):
        gc.collect()
        gc.disable()
        first()  # what comes first finds memory and caches cold
        for name, sample in zip(NAMES, taken, strict=True):
            time = sample()
            if turn >= 0:
                samples[name].append(time)
        gc.enable()
    return {name: statistics.median(times) / RECORDS for name, times in samples.items()}


def count_instructions(tg: Any) -> None:
    """Have Callgrind write the instructions of `FEW` and of `MANY` samples of every cost.

    The difference is that of the samples in between, whatever it takes to control the counting.
    """

    def control(*options: str) -> None:
        command = ["callgrind_control", *options, str(os.getpid())]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    gc.disable()
    for name, sample in zip(NAMES, samplers(tg), strict=True):
        for _ in range(FEW):  # compiled, and with the memory that it takes
            sample()
        for samples in (FEW, MANY):
            control("--instr=on")
            control("--zero")
            for _ in range(samples):
                sample()
            control(f"--dump={samples} {name}")
            control("--instr=off")


if __name__ == "__main__":
    import tapegrad

    if "--instructions" in sys.argv:
        count_instructions(tapegrad)
        print(json.dumps({"file": tapegrad.__file__}))
    else:
        print(json.dumps({"file": tapegrad.__file__, "costs": measure(tapegrad)}))
