"""Two threads that each sweep a graph of large arrays, compared with one thread that sweeps both.

A library that releases the GIL while it sweeps takes as little as half the time with two threads,
if two cores are free and memory is fast enough.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.measure.tables import duration, ratio, show_table
from benchmarks.measure.timing import medians_in_turn
from benchmarks.programs.peers import Side, TorchStyle
from benchmarks.programs.two_sweeps import two_sweeps


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
