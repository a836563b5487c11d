"""Comparisons that need their own process: imports, first gradients, memory."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.measure.tables import duration, ratio, show_table, size_in_bytes
from benchmarks.measure.timing import in_turn
from benchmarks.programs.cases import Case
from benchmarks.programs.fresh import run_fresh, run_fresh_cold
from benchmarks.programs.peers import Side, TorchStyle
from benchmarks.programs.workloads import WORKLOADS


def measure_imports(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, float]:
    """How long importing each library takes, beside importing numba."""
    packages = ["numba", *dict.fromkeys(side.package for side in sides)]
    runs = {package: partial(run_fresh, "import_seconds", package) for package in packages}
    seconds = in_turn(runs, repetitions)
    rows = [(name, duration(s), ratio(s, seconds["numba"])) for name, s in seconds.items()]
    show_table("Import", ("", "time", "to numba"), rows)
    return seconds


def measure_first_gradients(
    sides: Sequence[Side], repetitions: int, quick: bool
) -> dict[str, float]:
    """The first gradient of a ten-op program in a new process."""
    ten = WORKLOADS["ten"]
    case = Case(ten, ten.sizes[0])
    names = [side.name for side in sides if side.package != "numpy" and side.suits(case)]
    runs = {name: partial(run_fresh, "first_gradient_seconds", name) for name in names}
    if "tapegrad" in runs:
        cold = partial(run_fresh_cold, "first_gradient_seconds", "tapegrad")
        runs = {"tapegrad, empty kernel cache": cold, **runs}
    seconds = in_turn(runs, repetitions)
    rows = [(name, duration(s)) for name, s in seconds.items()]
    show_table("First gradient of ten operations", ("", "time"), rows)
    return seconds


def measure_memory(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """What a training loop and a live graph keep resident."""
    iterations, operations = (200, 10_000) if quick else (10_000, 200_000)
    found: dict[str, dict[str, float]] = {}
    for side in sides:
        if not isinstance(side, TorchStyle):
            continue
        for backward, how in ((True, "with"), (False, "without")):
            found[f"{side.name}, {iterations} iterations {how} backward"] = run_fresh(
                "training_bytes", side.package, iterations, backward
            )
        graph = run_fresh("graph_bytes", side.package, operations)
        found[f"{side.name}, an operation of a live graph"] = {"growth": graph}
        if side.package == "tapegrad":
            record = importlib.import_module("tapegrad").current_tape().records.itemsize
            found["tapegrad, the record in it"] = {"growth": record}
    rows = [
        (name, *(size_in_bytes(b[k]) if k in b else "" for k in ("peak", "growth")))
        for name, b in found.items()
    ]
    show_table("Memory", ("", "peak", "growth"), rows)
    return found


PROCESSES: dict[str, Callable[[Sequence[Side], int, bool], Any]] = {
    "import": measure_imports,
    "first-gradient": measure_first_gradients,
    "memory": measure_memory,
}
