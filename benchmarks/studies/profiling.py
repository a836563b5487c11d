"""What a running profile costs: programs with and without one, of tapegrad and of PyTorch.

The programs run in turn in both ways. To enter and to leave a profile takes some milliseconds,
which do not belong to the sample, and neither does what is made of the events later.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measure.tables import duration, ratio, show_table
from benchmarks.measure.timing import collector_paused, elapsed
from benchmarks.programs.cases import Case
from benchmarks.programs.peers import Side, TorchStyle
from benchmarks.programs.workloads import WORKLOADS

PROGRAMS = ("chain", "mlp", "lse", "gmm", "llsq", "ode")
SAMPLE_SECONDS = 0.05


def repeated(program: Callable[[], Any], count: int) -> Callable[[], None]:
    """A function that runs a program some times."""

    def run() -> None:
        for _ in range(count):
            program()

    return run


def both_ways(side: TorchStyle, run: Callable[[], None], repetitions: int) -> tuple[float, float]:
    """Median times without and with a profile, in turn."""
    profile = side.module.autograd.profiler.profile
    rounds = []
    for _ in range(repetitions):
        with collector_paused():
            without = elapsed(run)
            with profile():
                rounds.append((without, elapsed(run)))
    off, on = (statistics.median(times) for times in zip(*rounds, strict=True))
    return off, on


def measure_profiling(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """The times of every program in both ways, by side."""
    found: dict[str, Any] = {}
    rows = []
    for workload in (WORKLOADS[name] for name in PROGRAMS):
        for size in (workload.quick,) if quick else workload.sizes:
            case = Case(workload, size)
            for side in sides:
                if not isinstance(side, TorchStyle) or not side.suits(case):
                    continue
                program = side.prepare(case).whole
                program()
                once = min(elapsed(program) for _ in range(3))
                if once > 1.0:
                    continue
                run = repeated(program, max(1, round(SAMPLE_SECONDS / once)))
                off, on = both_ways(side, run, max(repetitions, 7))
                found.setdefault(case.label, {})[side.name] = {"without": off, "with": on}
                rows.append((case.label, side.name, duration(once), ratio(on, off)))
    columns = ("program", "side", "one call", "with a profile ÷ without")
    show_table("Profiles", columns, rows)
    return found
