"""tapegrad beside PyTorch, JAX, HIPS autograd and NumPy: ``python -m benchmarks.reports.versus``.

All installed peers take part. All sides run in this process, on one thread, in turn; times are
medians. Before timing, values and gradients are compared.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import tables
from benchmarks.measure.parts import add_part
from benchmarks.measure.timing import Seconds, Stopwatch, sample_in_turn
from benchmarks.programs.cases import GROUPS, Case
from benchmarks.programs.peers import Side, disagreement, installed, outcome
from benchmarks.programs.targets import Measurements, verdicts
from benchmarks.programs.workloads import WORKLOADS
from benchmarks.studies.njit_costs import COSTS
from benchmarks.studies.njit_ensembles import measure_njit_ensembles
from benchmarks.studies.njit_threads import measure_njit_threads
from benchmarks.studies.processes import PROCESSES
from benchmarks.studies.profiling import measure_profiling
from benchmarks.studies.recorded_starts import measure_recorded_starts
from benchmarks.studies.threads import measure_threads

from . import comparison

OTHERS = {
    "threads": measure_threads,
    "njit-threads": measure_njit_threads,
    "njit-ensembles": measure_njit_ensembles,
    "profiling": measure_profiling,
    "recorded-start": measure_recorded_starts,
    **PROCESSES,
    **COSTS,
}
"""Measurements that are not of a workload in this thread."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, save; the status is that of tapegrad's agreement with its peers."""
    options = parse(arguments)
    sides = [s for s in installed() if options.side is None or s.name in options.side]
    measurements: dict[tuple[str, str], dict[str, Seconds]] = {}
    problems: list[str] = []
    for group, chosen in groupby(
        options.part(cases(options.workload, options.quick)), lambda c: c.workload.group
    ):
        tables.show_heading(GROUPS[group])
        measured = measure_group(list(chosen), sides, options.repetitions, problems)
        measurements.update(measured)
        if rows := comparison.loop_rows(measured):
            title = f"{GROUPS[group]}: multiples of the primal"
            tables.show_table(title, comparison.LOOP_COLUMNS, rows)
        elif rows := comparison.summary_rows(measured):
            title = f"{GROUPS[group]}: tapegrad and PyTorch"
            tables.show_table(title, comparison.SUMMARY_COLUMNS, rows)
    others = {
        name: measure
        for name, measure in options.part([*OTHERS.items()])
        if options.workload is None or name in options.workload
    }
    if others:
        tables.show_heading("Threads and processes")
    processes = {
        name: measure(sides, min(options.repetitions, 7), options.quick)
        for name, measure in others.items()
    }
    if not options.quick:
        show_verdicts(measurements)
    if options.output:
        comparison.save_plots(options.output, measurements)
    if options.json:
        save_json(options.json, sides, measurements, processes)
    if problems:
        print("\nLeft out:", *problems, sep="\n  ")
    return int(any(problem.startswith("tapegrad") for problem in problems))


def measure_group(
    cases: Sequence[Case], sides: Sequence[Side], repetitions: int, problems: list[str]
) -> dict[tuple[str, str], dict[str, Seconds]]:
    """Time cases one after the other and print a table of each."""
    measurements = {}
    for case in cases:
        print(f"... {case.label}", file=sys.stderr, flush=True)
        measured = compare(case, sides, repetitions, problems)
        measurements[case.workload.name, case.size.label] = measured
        tables.show_table(case.label, comparison.TIMING_COLUMNS, comparison.timing_rows(measured))
    return measurements


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    prog = "python -m benchmarks.reports.versus"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    names = [*WORKLOADS, *GROUPS, *OTHERS]
    parser.add_argument(
        "--workload", action="append", choices=names, help="only this, or these; repeatable"
    )
    sides = [side.name for side in installed()]
    parser.add_argument(
        "--side", action="append", choices=sides, help="only this, or these; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one repetition each")
    add_part(parser)
    parser.add_argument("--repetitions", type=int, help="samples of what is fast (default 21)")
    parser.add_argument("--output", metavar="PNG", help="save plots of the ratios, PNG-GROUP each")
    parser.add_argument("--json", metavar="FILE", help="save the measurements")
    options = parser.parse_args(arguments)
    if options.side is not None:
        options.side.append("tapegrad")
    options.repetitions = options.repetitions or (1 if options.quick else 21)
    return options


def cases(names: Sequence[str] | None, quick: bool) -> list[Case]:
    """The cases to run, in the table's order."""
    chosen = [w for w in WORKLOADS.values() if names is None or {w.name, w.group} & {*names}]
    return [Case(w, size) for w in chosen for size in ((w.quick,) if quick else w.sizes)]


def compare(
    case: Case, sides: Sequence[Side], repetitions: int, problems: list[str]
) -> dict[str, Seconds]:
    """Time the sides that run the case and agree about it; note why others are left out.

    The first side that has a value or a gradient says what is right: tapegrad comes last here.
    """
    watches: dict[str, Stopwatch] = {}
    expected: dict[str, np.ndarray] = {}
    for side in sorted(sides, key=lambda side: side.package == "tapegrad"):
        if not side.suits(case):
            continue
        try:
            watch = Stopwatch(side.prepare(case))
            found = outcome(side, case, watch.program, watch.first_call())
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        else:
            expected = found | expected
            trouble = disagreement(found, expected) or side.trouble(case)
        if trouble:
            problems.append(f"{side.name} on {case.label}: {trouble}")
        else:
            watches[side.name] = watch
    in_order = {side.name: watches[side.name] for side in sides if side.name in watches}
    sample_in_turn(list(in_order.values()), repetitions)
    return {name: watch.seconds() for name, watch in in_order.items()}


def show_verdicts(measurements: Measurements) -> None:
    """Print which targets are met."""
    rows = [
        (
            f"{v.target.workload} {v.size}, {v.target.phase}",
            v.target.beside or v.target.peer,
            f"{v.target.at_most:.3g}x",
            f"{v.ratio:.3g}x",
            "met" if v.met else "MISSED",
        )
        for v in verdicts(measurements)
    ]
    if rows:
        tables.show_table("Targets", ("", "peer", "at most", "measured", ""), rows)


def save_json(
    path: str, sides: Sequence[Side], measurements: Measurements, processes: dict[str, Any]
) -> None:
    """Write all that was measured."""
    peers = [side.package for side in sides if side.package != "tapegrad"]
    versions = {package: importlib.metadata.version(package) for package in peers}
    document = {
        "python": platform.python_version(),
        "versions": versions,
        "cases": [
            {"workload": w, "size": s, "sides": {n: dataclasses.asdict(t) for n, t in m.items()}}
            for (w, s), m in measurements.items()
        ],
        "processes": processes,
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
