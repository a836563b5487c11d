"""Sums over events: a row for each op, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tapegrad.autograd.profiler.events import FunctionEvent, Shapes

# what rows can be sorted by
SORT_KEYS = (
    "count",
    "cpu_time",
    "cpu_time_total",
    "self_cpu_time_total",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
)


class FunctionEventAvg:
    """The sums over the events of one name and category, and of equal shapes or stacks if asked.

    Attributes
    ----------
    key, category
        The name and the category of the events.
    count
        The number of calls.
    cpu_time_total
        The time of all calls, in µs; that of a function that calls itself contains that of the
        inner calls more than once.
    cpu_memory_usage, self_cpu_memory_usage
        Bytes of the arrays that were made, by the parts as well, or not by them.
    input_shapes, stack
        Those of the events, if grouped by them.
    """

    def __init__(self, event: FunctionEvent) -> None:
        self.key = event.name
        self.category = event.category
        self.count = 0
        self.cpu_time_total = 0.0
        self._own_time = 0.0
        self.cpu_memory_usage = 0
        self.self_cpu_memory_usage = 0
        self.input_shapes: Shapes = ()
        self.stack: tuple[str, ...] = ()

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all calls without the events that are part of them, in µs."""
        return max(self._own_time, 0.0)

    @property
    def cpu_time(self) -> float:
        """The mean time of a call, in µs."""
        return self.cpu_time_total / self.count if self.count else 0.0

    def add(self, event: FunctionEvent) -> None:
        """Add an event."""
        self.count += event.count
        self.cpu_time_total += event.count * event.cpu_time_total
        self._own_time += event.count * event.own_time
        self.cpu_memory_usage += event.count * event.cpu_memory_usage
        self.self_cpu_memory_usage += event.count * event.self_cpu_memory_usage

    def __repr__(self) -> str:
        return (
            f"<FunctionEventAvg {self.key}: {self.count} calls, {self.cpu_time_total:.3f} µs, "
            f"self {self.self_cpu_time_total:.3f} µs>"
        )


class EventList(list[Any]):
    """Events, or their sums by op (see `profile.key_averages`).

    Parameters
    ----------
    items
        Events, or sums.
    options
        What the profile has kept: ``record_shapes``, ``profile_memory``, ``with_stack``.
    """

    def __init__(self, items: Iterable[Any] = (), options: Iterable[str] = ()) -> None:
        super().__init__(items)
        self.options = frozenset(options)

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all events, in µs."""
        items = self if self and isinstance(self[0], FunctionEventAvg) else self.key_averages()
        return sum(item.self_cpu_time_total for item in items)

    def key_averages(
        self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0
    ) -> EventList:
        """Return the sums over events of one name; see `profile.key_averages`."""
        self._require("record_shapes", group_by_input_shapes, "group_by_input_shape")
        self._require("with_stack", bool(group_by_stack_n), "group_by_stack_n")
        found: dict[Any, FunctionEventAvg] = {}
        for event in self:
            shapes = event.input_shapes if group_by_input_shapes else ()
            stack = event.stack[:group_by_stack_n]
            key = event.name, event.category, shapes, stack
            if key not in found:
                found[key] = FunctionEventAvg(event)
                found[key].input_shapes, found[key].stack = shapes, stack
            found[key].add(event)
        return EventList(found.values(), self.options)

    def _require(self, option: str, asked: bool, argument: str) -> None:
        if asked and option not in self.options:
            raise ValueError(f"{argument}: the profile has no such data; use {option}=True")

    def total_average(self) -> FunctionEventAvg:
        """Return the sums over all events, named "Total"."""
        total = FunctionEventAvg(FunctionEvent("Total", "", 0, 0, 0))
        for event in self:
            total.add(event)
        return total

    def sorted_by(self, key: str) -> list[Any]:
        """Return the items, largest first; `key` as for `table`."""
        if key not in SORT_KEYS:
            raise ValueError(f"sort_by: expected one of {', '.join(SORT_KEYS)}, got {key!r}")
        return sorted(self, key=lambda item: getattr(item, key), reverse=True)

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
    ) -> str:
        """Return a table with a row for each item.

        Parameters
        ----------
        sort_by
            "count", "cpu_time", "cpu_time_total", "self_cpu_time_total", "cpu_memory_usage" or
            "self_cpu_memory_usage": largest first. By default, rows are in the order of the items.
        row_limit
            The largest number of rows; -1 for all.
        max_src_column_width, max_name_column_width, max_shapes_column_width
            Longer texts are cut.
        header
            A line above the table.
        top_level_events_only
            Only events that are part of no other one.
        """
        items = EventList(self, self.options)
        if top_level_events_only:
            if any(isinstance(item, FunctionEventAvg) for item in self):
                raise ValueError(
                    "top_level_events_only: sums have no level; take profile.function_events"
                )
            items = EventList((e for e in self if e.parent is None), self.options)
        rows = items.sorted_by(sort_by) if sort_by is not None else [*items]
        if not rows:
            return ""
        total = self.self_cpu_time_total
        columns = self._columns(
            total, max_name_column_width, max_shapes_column_width, max_src_column_width
        )
        shown = rows if row_limit < 0 else rows[:row_limit]
        lines = [[title for title, *_ in columns]]
        lines += [[text(item) for _, text, _ in columns] for item in shown]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        is_left = [left for *_, left in columns]
        rule = "  ".join("-" * width for width in widths)
        head, *body = (
            "  ".join(_padded(*cell) for cell in zip(line, widths, is_left, strict=True)).rstrip()
            for line in lines
        )
        hidden = len(rows) - len(shown)
        above = [header] if header else []
        below = [f"... {hidden} more rows (row_limit)"] if hidden else []
        below.append(f"Self CPU time total: {time_text(total)}\n")
        return "\n".join([*above, rule, head, rule, *body, rule, *below])

    def _columns(
        self, total: float, name_width: int, shapes_width: int, line_width: int
    ) -> list[Any]:
        """Return title, text of an item, and whether it is set to the left, of each column."""

        def share(part: float) -> str:
            return f"{100 * part / total:.2f}%" if total else "-"

        def name(item: Any) -> str:
            text = item.key if isinstance(item, FunctionEventAvg) else item.name
            return _cut(" ".join(text.split()), name_width)

        columns: list[tuple[str, Callable[[Any], str], bool]] = [
            ("Name", name, True),
            ("Category", lambda item: item.category, True),
            ("Self CPU %", lambda item: share(_calls(item) * item.self_cpu_time_total), False),
            ("Self CPU", lambda i: time_text(_calls(i) * i.self_cpu_time_total), False),
            ("CPU total %", lambda item: share(_calls(item) * item.cpu_time_total), False),
            ("CPU total", lambda i: time_text(_calls(i) * i.cpu_time_total), False),
            ("CPU time avg", lambda item: time_text(item.cpu_time), False),
        ]
        if "profile_memory" in self.options:
            columns += [
                ("CPU Mem", lambda i: memory_text(_calls(i) * i.cpu_memory_usage), False),
                ("Self CPU Mem", lambda i: memory_text(_calls(i) * i.self_cpu_memory_usage), False),
            ]
        columns.append(("# of Calls", lambda item: str(item.count), False))
        if any(item.input_shapes for item in self):
            columns.append(
                (
                    "Input Shapes",
                    lambda item: _cut(str([*map(list, item.input_shapes)]), shapes_width),
                    True,
                )
            )
        if any(item.stack for item in self):
            columns.append(
                ("Source Location", lambda item: _cut("; ".join(item.stack), line_width), True)
            )
        return columns


def _calls(item: Any) -> int:
    """Return the number of calls that the times of an item are to be multiplied with."""
    return item.count if isinstance(item, FunctionEvent) else 1


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _padded(text: str, width: int, is_left: bool) -> str:
    return text.ljust(width) if is_left else text.rjust(width)


def time_text(time: float) -> str:
    """Return a time, given in µs, with its unit."""
    if time >= 1e6:
        return f"{time / 1e6:.3f}s"
    return f"{time / 1e3:.3f}ms" if time >= 1e3 else f"{time:.3f}us"


def memory_text(nbytes: float) -> str:
    """Return a number of bytes with its unit."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes:.0f} B"
