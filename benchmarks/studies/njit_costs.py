"""Other costs of derivatives of numba functions: compilation, start, memory, second order."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isnan
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measure.tables import duration, ratio, show_table, size_in_bytes
from benchmarks.measure.timing import Program, Stopwatch, in_turn, sample_in_turn
from benchmarks.programs.cases import Case, Size
from benchmarks.programs.fresh import run_fresh, run_fresh_cold
from benchmarks.programs.njit.second_derivatives import SECOND, hessian, second_programs
from benchmarks.programs.njit.short_calls import short_calls
from benchmarks.programs.peers import (
    JaxJit,
    Numba,
    Side,
    TapegradNjit,
    disagreement,
)
from benchmarks.programs.targets import compilation_limit, start_limit
from benchmarks.programs.workloads import WORKLOADS

SCALAR = ("logistic", "van_der_pol", "rosenbrock", "gravity", "black_scholes")
ARRAY = ("polynomial_fit", "cascade", "decays", "gray_scott", "kalman", "bundle")


def measure_compilation(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """The first call of primal and gradient in new processes with empty caches, without imports."""
    run = partial(run_fresh_cold, "first_call_seconds")
    rounds = {name: first_calls(run, name, repetitions) for name in names(quick)}
    show_pairs("Compilation of numba's functions", rounds, compilation_limit)
    return rounds


def measure_starts(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Import and first call in new processes that find what they need on disk.

    The round that is not counted compiles.
    """
    rounds = {}
    for name in names(quick):
        with TemporaryDirectory() as cache:
            folders = {"TAPEGRAD_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache}
            run = partial(run_fresh, "start_seconds", **folders)
            rounds[name] = first_calls(run, name, max(repetitions, 2))
    show_pairs("Start with numba's functions on disk", rounds, start_limit)
    return rounds


def names(quick: bool) -> tuple[str, ...]:
    """The programs that are compiled."""
    return SCALAR[:1] if quick else SCALAR + ARRAY


def first_calls(run: Callable[..., float], name: str, repetitions: int) -> dict[str, float]:
    """Primal and gradient of a program in turn."""
    sides = (Numba.name, TapegradNjit.name)
    return in_turn({side: partial(run, side, name) for side in sides}, repetitions)


def show_pairs(
    title: str, rounds: dict[str, dict[str, float]], limit: Callable[[float], float]
) -> None:
    """Print the primal, value and gradient, and the limit that the first sets for the second."""
    rows = []
    for name, seconds in rounds.items():
        primal, ours = seconds.values()
        at_most = limit(primal)
        verdict = "met" if ours <= at_most else "MISSED"
        cells = (*map(duration, (primal, ours)), ratio(ours, primal), duration(at_most), verdict)
        rows.append((name, *cells))
    show_table(title, ("", "primal", "value and gradient", "ratio", "at most", ""), rows)


def measure_memory(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """What gradients of long loops keep, and how far they raise the peak of memory.

    What one keeps is the least limit of the tape that it works with, found by bisection.
    """
    found: dict[str, dict[str, float]] = {}
    for name, factor in list(LONG.items())[: 1 if quick else None]:
        run = partial(run_fresh, "gradient_bytes", name, 1 if quick else factor)
        taken = run(1 << 40)["bytes"]
        low, high = 0, 2 * max(int(taken), 1 << 20)
        while high - low > high // 50:
            middle = (low + high) // 2
            low, high = (middle, high) if isnan(run(middle)["bytes"]) else (low, middle)
        found[name] = {"kept": high, "taken": taken}
    rows = [
        (name, size_in_bytes(kept), size_in_bytes(taken), f"{taken / kept:.2f}" if kept else "")
        for name, (kept, taken) in ((n, one.values()) for n, one in found.items())
    ]
    columns = ("", "kept", "rise of the peak", "ratio")
    show_table("Memory of gradients of long loops", columns, rows)
    return found


LONG = {
    "logistic": 10, "lorenz": 100, "van_der_pol": 20, "decays": 50, "cascade": 2, "oscillators": 1,
    "wave": 100, "heat": 100, "gray_scott_loops": 20, "gray_scott": 20, "hmm": 50, "kalman": 100,
}  # fmt: skip
"""Programs that keep values in each step, with how many times the steps of the largest case."""


def measure_second(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Products of second derivatives by the first argument, beside primal and gradient."""
    found = {}
    for name in SCALAR:
        workload = WORKLOADS[name]
        case = Case(workload, workload.quick if quick else workload.sizes[-1])
        watches = {what: Stopwatch(program) for what, program in second_programs(case).items()}
        expected: dict[str, np.ndarray] = {}
        for what, watch in watches.items():
            result = watch.first_call()
            if what not in ("primal", "gradient"):
                product = {"the product": np.asarray(result)}
                if trouble := disagreement(product, expected or product):
                    raise RuntimeError(f"{what} on {case.label}: {trouble}")
                expected = expected or product
        sample_in_turn(list(watches.values()), repetitions)
        found[case.label] = {what: watch.seconds().whole for what, watch in watches.items()}
    rows = [
        (label, duration(times["primal"]), *(ratio(times.get(w), times["primal"]) for w in WAYS))
        for label, times in found.items()
    ]
    show_table("Second derivatives: multiples of the primal", ("", "primal", *WAYS), rows)
    return found


def measure_hessians(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Hessians of small problems, beside gradients; they are as many columns as variables."""
    found = {}
    for name, sizes in HESSIANS.items():
        for size in sizes[: 1 if quick else None]:
            case = Case(WORKLOADS[name], Size(f"n={size}", {"n": size}))
            programs = {"gradient": Program(forward=TapegradNjit().prepare(case).total)}
            programs["hessian"] = Program(forward=partial(hessian(case), *case.arguments))
            jax = JaxJit()
            if jax.available():
                programs["jax.jit"] = jax.hessian(case)
            watches = {what: Stopwatch(program) for what, program in programs.items()}
            results = {what: watch.first_call() for what, watch in watches.items()}
            if "jax.jit" in results:
                ours, theirs = ({"h": np.asarray(results[s])} for s in ("hessian", "jax.jit"))
                if trouble := disagreement(ours, theirs):
                    raise RuntimeError(f"the Hessian of {case.label}: {trouble}")
            sample_in_turn(list(watches.values()), repetitions)
            times = {what: watch.seconds().whole for what, watch in watches.items()}
            found[case.label] = {"columns": case.inputs[0].size, **times}
    rows = [
        (
            label,
            *(duration(times.get(what)) for what in ("gradient", "hessian", "jax.jit")),
            ratio(times["hessian"], times["columns"] * times["gradient"]),
        )
        for label, times in found.items()
    ]
    columns = ("", "gradient", "Hessian", "jax.jit", "÷ a gradient for each column")
    show_table("Hessians", columns, rows)
    return found


HESSIANS = {"rosenbrock": (16, 32, 64, 128, 256, 512), "gravity": (6, 20, 60)}
"""Programs, and numbers of points, of which Hessians are computed."""

WAYS = ("gradient", *SECOND, "jax.jit hvp")


def measure_calls(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Calls of short compiled functions from Python."""
    watches = {n: Stopwatch(Program(forward=call)) for n, call in short_calls().items()}
    for watch in watches.values():
        watch.first_call()
    sample_in_turn(list(watches.values()), repetitions)
    found = {name: watch.seconds().whole for name, watch in watches.items()}
    show_table("Calls of short functions", ("", ""), [(n, duration(s)) for n, s in found.items()])
    return found


COSTS: dict[str, Callable[[Sequence[Side], int, bool], Any]] = {
    "njit-second": measure_second,
    "njit-hessians": measure_hessians,
    "njit-calls": measure_calls,
    "njit-compile": measure_compilation,
    "njit-start": measure_starts,
    "njit-memory": measure_memory,
}
"""Measurements of tapegrad.njit beside those of its workloads."""
