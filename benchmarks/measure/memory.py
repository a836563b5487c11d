"""The memory of this process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rise(first: Callable[[], Any], program: Callable[[], Any]) -> int:
    """How far the resident memory rises while a program runs, after another one has compiled it."""
    first()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = peak_bytes()
    program()
    return peak_bytes() - before


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    return proc_status("VmHWM") or usage_peak()


def resident_bytes() -> int:
    """The memory this process has resident now, on Linux; the peak elsewhere."""
    return proc_status("VmRSS") or usage_peak()


def proc_status(field: str) -> int | None:
    """A field of the kernel's account of this process, on Linux.

    Unlike ``getrusage``, it starts afresh when a new program is executed.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)


def usage_peak() -> int:
    """The peak according to ``getrusage``, whose unit is not the same everywhere."""
    import resource  # there is none on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
