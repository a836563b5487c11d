"""Files for other programs: Chrome's trace viewer and tools that draw flame graphs."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tapegrad.autograd.profiler.events import FunctionEvent


def chrome_trace(events: Sequence[FunctionEvent]) -> dict[str, Any]:
    """Return events in the trace event format (its "complete events"), times in µs."""
    first = min((event.start for event in events), default=0)
    threads = {thread: k for k, thread in enumerate(dict.fromkeys(e.thread for e in events))}
    process = os.getpid()
    named: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": number,
            "args": {"name": f"thread {thread}"},
        }
        for thread, number in threads.items()
    ]
    return {
        "displayTimeUnit": "ns",
        "traceEvents": [
            *named,
            *(
                {
                    "ph": "X",
                    "name": event.name,
                    "cat": event.category,
                    "ts": (event.start - first) / 1e3,
                    "dur": (event.end - event.start) / 1e3,
                    "pid": process,
                    "tid": threads[event.thread],
                    "args": _arguments(event),
                }
                for event in events
            ),
        ],
    }


def _arguments(event: FunctionEvent) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if event.count != 1:
        found["calls it stands for"] = event.count
    if event.input_shapes:
        found["input shapes"] = [*map(list, event.input_shapes)]
    if event.self_cpu_memory_usage:
        found["bytes"] = event.self_cpu_memory_usage
    if event.stack:
        found["stack"] = [*event.stack]
    return found


def write_chrome_trace(events: Sequence[FunctionEvent], path: str | os.PathLike[str]) -> None:
    """Write the events as JSON."""
    Path(path).write_text(json.dumps(chrome_trace(events)))


def times_by_path(events: Sequence[FunctionEvent]) -> dict[tuple[str, ...], float]:
    """Return the time of events without their parts, in µs, by their paths."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for event in events:
        found[event.path()] += event.count * event.own_time
    return {path: max(time, 0.0) for path, time in found.items()}


def write_stacks(events: Sequence[FunctionEvent], path: str | os.PathLike[str]) -> None:
    """Write a line for each path: names with semicolons between them, and ns."""
    lines = [
        f"{';'.join(' '.join(name.replace(';', ',').split()) for name in names)} "
        f"{round(1e3 * time)}\n"
        for names, time in times_by_path(events).items()
    ]
    Path(path).write_text("".join(lines), "utf-8", "backslashreplace")
