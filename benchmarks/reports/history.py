"""Plot the results of ``asv run`` over time, offline: ``python -m benchmarks.reports.history``.

There is one picture per suite and unit, with one line per benchmark and parameter, over the
commits. (``asv publish`` makes interactive pages, which load their scripts from the network.)
"""

import argparse
import ast
import datetime
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
# what a unit of asv measures, its symbol, and by what values are multiplied
UNITS = {
    "seconds": ("time", "s", 1.0),
    "s": ("seconds once", "s", 1.0),
    "primals": ("multiples of the primal", "", 1.0),
    "ns": ("time of an op", "s", 1e-9),
    "bytes": ("memory", "B", 1.0),
    "x": ("ratio", "", 1.0),
}

Point = tuple[int, str, float]
"""When a commit was made, what it is called, and what was measured."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all suites."""
    prog = "python -m benchmarks.reports.history"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--output", metavar="PNG", default="history.png")
    path = Path(parser.parse_args(arguments).output)
    pages: dict[tuple[str, str], dict[str, list[Point]]] = {}
    for name, unit, label, point in sorted(points()):
        suite = name.partition(".")[0].removeprefix("bench_")
        pages.setdefault((suite, unit), {}).setdefault(label, []).append(point)
    for (suite, unit), lines in pages.items():
        kind, symbol, scale = UNITS[unit]
        page = path.with_stem(f"{path.stem}-{suite}-{kind.replace(' ', '-')}")
        draw(page, f"{suite}: {kind}", lines, symbol, scale)
        print(f"picture: {page}")


def points() -> Iterator[tuple[str, str, str, Point]]:
    """Every measurement: of which benchmark, in which unit, the label of its line, the point."""
    known = json.loads((RESULTS / "benchmarks.json").read_text(encoding="utf-8"))
    for path in sorted(RESULTS.glob("*/*-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        date = datetime.datetime.fromtimestamp(run["date"] / 1000, datetime.UTC)
        commit = f"{date:%Y-%m-%d}\n{run['commit_hash'][:8]}"
        for name, columns in run["results"].items():
            row: dict[str, Any] = dict(zip(run["result_columns"], columns, strict=False))
            if name not in known or row["result"] is None:
                continue
            cases = itertools.product(*(row["params"] or []))
            for case, value in zip(cases, row["result"], strict=True):
                if value is not None:
                    what = name.split(".", 1)[1]
                    label = ", ".join([what, *(str(ast.literal_eval(part)) for part in case)])
                    yield name, known[name]["unit"], label, (run["date"], commit, value)


def draw(path: Path, title: str, lines: dict[str, list[Point]], symbol: str, scale: float) -> None:
    """One picture: a line for each benchmark, its name at the right."""
    try:  # it is optional
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as error:
        raise SystemExit("the pictures need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(12, 9), layout="constrained")
    axis = figure.add_subplot()
    commits = sorted({(date, commit) for line in lines.values() for date, commit, _ in line})
    places = {commit: k for k, (_, commit) in enumerate(commits)}
    for line in lines.values():
        axis.plot(
            [places[commit] for _, commit, _ in line],
            [value * scale for *_, value in line],
            "o-",
            markersize=4,
            linewidth=1,
        )
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(EngFormatter(unit=symbol))
    axis.set_xticks(range(len(commits)), [commit for _, commit in commits], fontsize=8)
    axis.set_title(title)
    axis.set_xlabel("commit")
    axis.grid(alpha=0.3)
    ends = {label: math.log(line[-1][2] * scale) for label, line in lines.items()}
    low, high = (math.log(limit) for limit in axis.get_ylim())
    heights = {label: (end - low) / (high - low) for label, end in ends.items()}
    for label, height in apart(heights).items():
        axis.annotate(
            label,
            (places[lines[label][-1][1]], math.exp(ends[label])),
            xytext=(1.02, height),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "alpha": 0.3, "relpos": (0.0, 0.5)},
        )
    figure.savefig(path, dpi=100)


def apart(heights: dict[str, float]) -> dict[str, float]:
    """Move labels, as fractions of the height, until none covers another."""
    gap = min(0.024, 1.0 / len(heights))
    found: dict[str, float] = {}
    last = -math.inf
    for label in sorted(heights, key=lambda label: heights[label]):
        last = found[label] = max(heights[label], last + gap)
    above = max(last - 1.0, 0.0)
    return {label: height - above for label, height in found.items()}


if __name__ == "__main__":
    main()
