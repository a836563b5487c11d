"""What a run over the corpus came to, as tables."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.measure.tables import duration

VERDICTS = {
    "right": "right",
    "wrong": "**wrong**",
    "nan": "nan, by 0 times infinity in the chain rule",
    "refused": "refused, with line and way out",
    "unclear": "refused unclearly",
    "crash": "crash",
    "timeout": "not done in time",
}

Record = dict[str, Any]


def verdict(record: Record, mode: str) -> str:
    """Return what came of reverse or forward mode."""
    if mode in record:
        return record[mode]
    if record.get("stage") == mode:
        return record.get("ended", "crash")
    return "none"


def reason(message: str) -> str:
    """Return a refusal without the names that are the function's own."""
    first = message.partition("\n")[0]
    for name in re.findall(r"\bin (\w+)$", message, re.MULTILINE):
        first = re.sub(rf"(?<![\w.]){re.escape(name)}\b", "f", first)
    first = re.split(r"[;:] ", first)[0]
    return re.sub(r"'(?!np\.|math\.|numba)[^']*'", "'x'", first).strip()


def judged(records: Iterable[Record]) -> list[Record]:
    """Return the records of functions that could be judged."""
    return [r for r in records if verdict(r, "reverse") not in ("none", "not judgeable")]


def verdict_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """A row for each verdict: reverse mode, forward mode."""
    counts = {mode: Counter(verdict(r, mode) for r in records) for mode in ("reverse", "forward")}
    rows = []
    for key, name in VERDICTS.items():
        cells = []
        for mode in ("reverse", "forward"):
            count, total = counts[mode][key], sum(counts[mode][k] for k in VERDICTS)
            cells += [str(count), f"{100 * count / max(total, 1):.1f} %"]
        rows.append((name, *cells))
    return rows


def reason_rows(records: Sequence[Record], mode: str) -> list[tuple[str, ...]]:
    """A row for each reason of refusals, frequent ones first."""
    found: dict[str, list[str]] = {}
    for record in records:
        if verdict(record, mode) in ("refused", "unclear"):
            name = f"{record['module']}.{record['function']}"
            found.setdefault(reason(record[f"{mode}_detail"]), []).append(name)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(text, str(len(names)), names[0]) for text, names in ordered]


def cost_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Time and compile time: median, nine in ten, worst.

    A function that reads little of large arrays takes less time than its gradient takes to clear.
    """
    timed = [r for r in records if "gradient_seconds" in r]
    cleared = [r for r in timed if r["clear_seconds"] > r["plain_seconds"]]
    ratios = [r["gradient_seconds"] / r["plain_seconds"] for r in timed if r not in cleared]
    others = [r["gradient_seconds"] / (r["plain_seconds"] + r["clear_seconds"]) for r in cleared]
    compiled = [r for r in records if "compile_gradient" in r]
    own = [r["compile_plain"] for r in compiled]
    gradients = [r["compile_gradient"] for r in compiled]
    parts = [a / b for a, b in zip(gradients, own, strict=True)]
    return [
        ("value and gradient, in plain calls", *spread(ratios, lambda x: f"{x:.2f}")),
        (
            "the same where clearing the gradient takes longer than a call, in both",
            *spread(others, lambda x: f"{x:.2f}"),
        ),
        ("numba compiles the function", *spread(own, duration)),
        ("the gradient is compiled", *spread(gradients, duration)),
        ("the same, as a multiple of numba's", *spread(parts, lambda x: f"{x:.1f}")),
    ]


def spread(values: Sequence[float], show: Any) -> tuple[str, ...]:
    """Return how many values there are, median, nine in ten, and the largest."""
    if len(values) < 2:
        return (str(len(values)), *(show(v) for v in values), "", "", "")[:4]
    return (
        str(len(values)),
        show(median(values)),
        show(quantiles(values, n=10, method="inclusive")[8]),
        show(max(values)),
    )


def package_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """A row for each package."""
    packages = sorted({(r["package"], r["version"]) for r in records}, key=str)
    rows = []
    for package, version in packages:
        some = [r for r in records if r["package"] == package]
        counts = Counter(verdict(r, "reverse") for r in some)
        others = len(some) - counts["right"] - counts["wrong"] - counts["refused"]
        cells = (len(some), counts["right"], counts["wrong"], counts["refused"], others)
        rows.append((f"{package} {version}", *map(str, cells)))
    return rows


def tables(records: Iterable[Record]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return title, columns and rows of each table."""
    records = list(records)
    some = judged(records)
    packages = len({r["package"] for r in some})
    others = f", {len(records) - len(some)} could not be judged" * (len(records) > len(some))
    return [
        (
            f"{len(some)} functions of {packages} packages{others}",
            ("", "reverse", "share", "forward", "share"),
            verdict_rows(some),
        ),
        (
            "Refusals, reverse mode",
            ("reason", "functions", "one of them"),
            reason_rows(some, "reverse"),
        ),
        (
            "Refusals, forward mode",
            ("reason", "functions", "one of them"),
            reason_rows(some, "forward"),
        ),
        ("Costs", ("", "functions", "median", "9 in 10", "most"), cost_rows(some)),
        (
            "Packages, reverse mode",
            ("", "functions", "right", "wrong", "refused", "other"),
            package_rows(some),
        ),
    ]
