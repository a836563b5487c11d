"""Rows and plots of a comparison of sides."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.tables import duration, ratio
from benchmarks.measure.timing import Seconds
from benchmarks.programs.cases import GROUPS
from benchmarks.programs.targets import Measurements
from benchmarks.programs.workloads import WORKLOADS

TIMING_COLUMNS = (
    "",
    "forward",
    "backward",
    "total",
    "to tapegrad",
    "to primal",
    "first call",
    "samples",
)


def timing_rows(sides: Mapping[str, Seconds]) -> list[tuple[str, ...]]:
    """A row for every side of a case, beside tapegrad and the primal.

    That is tapegrad.njit and numba's primal in a case of loops; tapegrad and NumPy's in others.
    Where tapegrad has a total, it is totals that are compared; else forwards.
    """
    ours = sides.get("tapegrad.njit") or sides.get("tapegrad")
    primal = sides.get("numba primal") or sides.get("NumPy primal")
    phase = "total" if ours is None or ours.total else "forward"
    return [
        (
            name,
            duration(seconds.forward),
            duration(seconds.backward),
            duration(seconds.total),
            ratio(getattr(seconds, phase), ours and ours.whole),
            ratio(getattr(seconds, phase), primal and primal.forward),
            duration(seconds.first),
            str(seconds.repetitions),
        )
        for name, seconds in sides.items()
    ]


SUMMARY_COLUMNS = (
    "",
    "forward",
    "backward",
    "total",
    *(f"PyTorch {phase}" for phase in ("forward", "backward", "total")),
    "to PyTorch",
)


def summary_rows(measurements: Measurements) -> list[tuple[str, ...]]:
    """A row for every case: tapegrad, PyTorch, and the one as a multiple of the other."""
    rows = []
    for case, sides in measurements.items():
        pair = [sides[name] for name in ("tapegrad", "PyTorch") if name in sides]
        if len(pair) == 2:
            cells = [duration(t) for s in pair for t in (s.forward, s.backward, s.total)]
            rows.append((" ".join(case), *cells, ratio(*(s.whole for s in pair))))
    return rows


LOOP_COLUMNS = (
    "",
    "numba primal",
    "plain call",
    "value and gradient",
    "by hand",
    "jax.jit",
    "PyTorch",
)


def loop_rows(measurements: Measurements) -> list[tuple[str, ...]]:
    """A row for every case of loops: numba's primal, and the others as multiples of it.

    These are: the function that tapegrad.njit decorates, called as it is; its value and gradient;
    and the value and gradient of others.
    """
    rows = []
    for case, sides in measurements.items():
        if "numba primal" not in sides or "tapegrad.njit" not in sides:
            continue
        primal, ours = sides["numba primal"].whole, sides["tapegrad.njit"]
        others = [sides.get(name) for name in ("numba by hand", "jax.jit", "PyTorch")]
        times = (ours.forward, ours.total, *(other and other.total for other in others))
        rows.append((" ".join(case), duration(primal), *(ratio(t, primal) for t in times)))
    return rows


def save_plots(path: str, measurements: Measurements) -> None:
    """Every peer's total as a multiple of tapegrad's: a page for each group of programs."""
    pages: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for case, sides in measurements.items():
        if "tapegrad" in sides or "tapegrad.njit" in sides:
            pages.setdefault(WORKLOADS[case[0]].group, {})[case] = sides
    for group, cases in pages.items():
        page = Path(path).with_stem(f"{Path(path).stem}-{group}")
        save_plot(page, GROUPS[group], cases)
        print(f"picture: {page}")


def save_plot(path: Path, title: str, cases: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """One line of dots a case, with the names of the sides beside the first ones."""
    try:  # it is optional
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit("the plot needs matplotlib: pip install matplotlib") from error
    names = list(dict.fromkeys(n for sides in cases.values() for n in sides if n not in OWN))
    height = min(9.0, 2.2 + 0.32 * len(cases))
    figure = Figure(figsize=(12, height), layout="constrained")
    axes = figure.add_subplot()
    for name, marker in zip(names, "osD^vPX*", strict=False):
        dots = [
            (x, y)
            for y, (case, sides) in enumerate(cases.items())
            if (x := multiple(case, sides, name)) is not None
        ]
        if dots:
            axes.plot(*zip(*dots, strict=True), marker, label=name, alpha=0.8)
    axes.axvspan(axes.get_xlim()[0], 1.0, color="black", alpha=0.04)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.margins(x=0.02)
    axes.set_yticks(range(len(cases)), [" ".join(case) for case in cases], fontsize=9)
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_title(title)
    axes.set_xlabel(
        "time as a multiple of tapegrad's; in the grey part others are faster than tapegrad"
    )
    axes.grid(axis="x", alpha=0.3)
    if names:
        axes.legend(loc="best", frameon=True, fontsize=9)
    figure.savefig(path, dpi=100)


OWN = ("tapegrad", "tapegrad.njit")


def own(case: tuple[str, str], sides: Mapping[str, Seconds]) -> Seconds:
    """What tapegrad takes: compiled, for loops, if these compute what the others compute."""
    loops = WORKLOADS[case[0]].loops
    compiled = sides.get("tapegrad.njit") if loops is None or loops.alike else None
    return compiled or sides["tapegrad"]


def multiple(case: tuple[str, str], sides: Mapping[str, Seconds], name: str) -> float | None:
    """A side's time for all that it does with a case, in units of tapegrad's."""
    ours = own(case, sides).whole
    theirs = sides[name].whole if name in sides else None
    return theirs / ours if ours and theirs else None
