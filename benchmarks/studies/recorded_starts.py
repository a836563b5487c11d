"""First calls of recorded programs in new processes, with nothing or everything on disk."""

from collections.abc import Sequence
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.measure.tables import duration, show_table
from benchmarks.measure.timing import in_turn
from benchmarks.programs.cases import Case
from benchmarks.programs.fresh import run_fresh, run_fresh_cold
from benchmarks.programs.peers import Numba, Side, TapegradJit
from benchmarks.programs.targets import RECORDED_FIRST_CALL, start_limit
from benchmarks.programs.workloads import WORKLOADS

CACHED = "logistic"
"""The function whose cached start is that of numba: what it computes takes no time."""


def measure_recorded_starts(
    sides: Sequence[Side], repetitions: int, quick: bool
) -> dict[str, dict[str, float]]:
    """First calls without imports and with nothing on disk, and starts with everything on disk.

    The round of starts that is not counted compiles.
    """
    found: dict[str, dict[str, float]] = {}
    for label, arguments in programs(quick).items():
        first = partial(run_fresh_cold, "recorded_first_call_seconds", *arguments)
        with TemporaryDirectory() as cache:
            fresh = partial(run_fresh, TAPEGRAD_CACHE_DIR=cache, NUMBA_CACHE_DIR=cache)
            starts = {
                "numba": partial(fresh, "start_seconds", Numba.name, CACHED),
                "start": partial(fresh, "recorded_start_seconds", *arguments),
            }
            found[label] = {
                **in_turn({"first call": first}, repetitions),
                **in_turn(starts, max(repetitions, 2)),
            }
    rows = [
        (label, *map(duration, times.values()), verdict(times)) for label, times in found.items()
    ]
    columns = ("", "first call", "start of numba", "start", "")
    show_table("First calls of recorded programs in new processes", columns, rows)
    return found


def programs(quick: bool) -> dict[str, tuple[str, int]]:
    """The recorded programs, by what they are called: workloads and the numbers of their sizes."""
    side = TapegradJit()
    cases = {
        f"{workload.name} {size.label}": (workload.name, number)
        for workload in WORKLOADS.values()
        for number, size in enumerate(workload.sizes)
        if workload.group in ("programs", "loops") and side.suits(Case(workload, size))
    }
    return dict(list(cases.items())[: 1 if quick else None])


def verdict(times: dict[str, float]) -> str:
    """Whether the limits are met."""
    first = times["first call"] <= RECORDED_FIRST_CALL
    return "met" if first and times["start"] <= start_limit(times["numba"]) else "MISSED"
