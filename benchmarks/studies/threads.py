"""Two threads that each sweep a graph of large arrays, compared with one thread that sweeps both.

A library that releases the GIL while it sweeps takes as little as half the time with two threads,
if two cores are free and memory is fast enough.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.measure.timing import medians_in_turn
from benchmarks.programs.cases import Case
from benchmarks.programs.losses import chain_size
from benchmarks.programs.peers import Side, TorchStyle
from benchmarks.programs.workloads import WORKLOADS
from benchmarks.reports.comparison import duration, ratio, show_table


@dataclass(frozen=True)
class TwoSweeps:
    """Two graphs that are recorded beforehand and kept, and what sweeps each of them."""

    sweeps: Sequence[Callable[[], Any]]
    pool: ThreadPoolExecutor

    def in_turn(self) -> None:
        """One after the other, in one thread."""
        self.pool.submit(lambda: [sweep() for sweep in self.sweeps]).result()

    def together(self) -> None:
        """Each in a thread of its own."""
        for future in [self.pool.submit(sweep) for sweep in self.sweeps]:
            future.result()


def two_sweeps(side: TorchStyle, quick: bool = False) -> TwoSweeps:
    """Record two chains of twenty operations."""
    case = Case(WORKLOADS["chain"], chain_size(1000 if quick else 1_000_000, steps=10))

    def sweep_of_new_graph() -> Callable[[], Any]:
        tensors = side.tensors(case)
        value = case.loss(side.namespace())(*tensors)
        return lambda: side.module.autograd.grad(value, tensors, retain_graph=True)

    sweeps = TwoSweeps([sweep_of_new_graph() for _ in range(2)], ThreadPoolExecutor(2))
    sweeps.together()
    sweeps.in_turn()
    return sweeps


def measure_threads(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Both ways in turn, for all sides that have tensors."""
    found = {}
    for side in sides:
        if isinstance(side, TorchStyle):
            runs = two_sweeps(side, quick)
            in_turn, together = medians_in_turn((runs.in_turn, runs.together), repetitions)
            runs.pool.shutdown()
            found[side.name] = {"in turn": in_turn, "together": together}
    rows = [
        (name, duration(s["in turn"]), duration(s["together"]), ratio(s["in turn"], s["together"]))
        for name, s in found.items()
    ]
    columns = ("", "one thread", "two threads", "gain")
    show_table("Threads: two large sweeps", columns, rows)
    return found
