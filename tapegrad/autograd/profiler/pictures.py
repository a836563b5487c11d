"""Pictures of a profile (with matplotlib)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapegrad.autograd.profiler.averages import EventList, time_text
from tapegrad.autograd.profiler.events import FunctionEvent
from tapegrad.autograd.profiler.exports import times_by_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {
    "op": "#4477aa",
    "function": "#228833",
    "sweep": "#ee6677",
    "pass": "#aa3377",
    "tangent": "#66ccee",
    "compile": "#bbbbbb",
    "range": "#ccbb44",
}
_DPI = 150
_NARROWEST = 0.002  # of the width of a flame graph
_LETTER = 0.0065  # of its width


_MEANINGS = {
    "count": "calls",
    "cpu_time": "mean time of a call",
    "cpu_time_total": "time",
    "self_cpu_time_total": "time without the events inside",
    "cpu_memory_usage": "bytes",
    "self_cpu_memory_usage": "bytes without the events inside",
}


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "pictures of a profile need matplotlib; install it with: pip install 'tapegrad[plot]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=_DPI)
    return figure


def _legend(axes: Any, categories: set[str], **options: Any) -> None:
    from matplotlib.patches import Patch

    known = [name for name in COLORS if name in categories]
    axes.legend(handles=[Patch(color=COLORS[name], label=name) for name in known], **options)


def bar_chart(
    sums: EventList, sort_by: str, row_limit: int, path: str | os.PathLike[str] | None
) -> Figure:
    """Draw a bar for each of the largest sums."""
    rows = sums.sorted_by(sort_by)[:row_limit][::-1]
    figure = _figure(8, 1.4 + 0.28 * max(len(rows), 1))
    axes = figure.subplots()
    values = [getattr(row, sort_by) for row in rows]
    is_time = "time" in sort_by
    scale, unit = (1e3, "ms") if is_time and max(values, default=0) >= 1e4 else (1.0, "µs")
    labels = [row.key for row in rows]
    bars = axes.barh(
        range(len(rows)),
        [value / scale if is_time else value for value in values],
        color=[COLORS.get(row.category, COLORS["op"]) for row in rows],
    )
    axes.bar_label(bars, [f"{row.count} calls" for row in rows], padding=3, fontsize=7)
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.margins(x=0.12)
    axes.set_xlabel(f"{_MEANINGS[sort_by]} ({unit})" if is_time else _MEANINGS[sort_by])
    axes.spines[["top", "right"]].set_visible(False)
    if rows:
        _legend(axes, {row.category for row in rows}, loc="lower right", fontsize=8)
    return _saved(figure, path)


def flame_graph(events: Sequence[FunctionEvent], path: str | os.PathLike[str] | None) -> Figure:
    """Draw a box for each path of names, as wide as its time, below the box of what it is in."""
    own = times_by_path(events)
    category = {event.path(): event.category for event in events}
    totals: dict[tuple[str, ...], float] = defaultdict(float)
    for names, time in own.items():
        for depth in range(len(names) + 1):
            totals[names[:depth]] += time
    depth = max(map(len, totals), default=0)
    figure = _figure(11, 1.1 + 0.32 * max(depth, 1))
    axes = figure.subplots()
    everything = totals.get((), 0.0)

    def draw(names: tuple[str, ...], left: float) -> None:
        inner = [p for p in totals if len(p) == len(names) + 1 and p[:-1] == names]
        for box in sorted(inner, key=lambda p: -totals[p]):
            width = totals[box] / everything
            if width >= _NARROWEST:
                color = COLORS.get(category[box], COLORS["op"])
                axes.barh(-len(box), width, 0.94, left, color=color, edgecolor="white", lw=0.6)
                label = f"{box[-1]} {time_text(totals[box])}"
                if len(box[-1]) * _LETTER < width:
                    text = label if len(label) * _LETTER < width else box[-1]
                    axes.text(left + 0.003, -len(box), text, va="center", fontsize=7, clip_on=True)
                draw(box, left)
            left += width

    if everything:
        draw((), 0.0)
        place = {"loc": "upper right", "bbox_to_anchor": (1.0, 0.0), "ncols": len(COLORS)}
        _legend(axes, {*category.values()}, fontsize=7, frameon=False, **place)
    axes.set_xlim(0, 1)
    axes.set_ylim(-depth - 0.6, -0.4)
    axes.axis("off")
    axes.set_title(f"{time_text(everything)} in all events", fontsize=9, loc="left")
    return _saved(figure, path)
