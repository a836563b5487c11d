"""Programs of other fields, recorded, beside JAX: ``python -m benchmarks.studies.fields``.

The programs are in ``programs/fields``. Values and gradients with `tg.jit`, without it, and with
``jax.jit`` are compared: they must agree to 1e-9 of the value and of the largest element of each
gradient, or to the tolerance that a program states. Then value and gradient are timed in turn, in
one thread; times are medians. Without JAX, tapegrad is timed alone.

Each program runs in a process of its own, which is ended when a first call takes longer than
``--seconds-per-first-call``. These processes start with a cache that has the kernels of tensors and
no recorded functions. A program that is refused, is too slow to compile or has another result stays
in the table, with the reason. So do warnings, and what runs op by op or in Python.
"""

import argparse
import importlib.util
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure.tables import duration, ratio, show_table
from benchmarks.measure.timing import Program as Timed
from benchmarks.measure.timing import Stopwatch, sample_in_turn
from benchmarks.programs.fields import (
    PROGRAMS,
    Program,
    as_numbers,
    of_jax,
    of_tapegrad,
)

REPETITIONS = 11
SECONDS_ELSEWHERE = 300.0
"""How long a process may take for what is not a first call."""

ONE_THREAD = {
    "JAX_ENABLE_X64": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
LIBRARIES = {"tapegrad": of_tapegrad, "JAX": of_jax, "op by op": partial(of_tapegrad, jit=False)}
"""The sides, in the order in which they run."""

# as installed: Python has read the sources before
WITH_BYTECODE = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

COLUMNS = ("program", "field", "tapegrad", "JAX", "ratio", "first call", "that of JAX")


@dataclass
class Row:
    """What was found about a program."""

    program: str
    field: str
    seconds: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Where results differ."""
    refused: list[str] = field(default_factory=list)
    """Errors, and first calls over the limit."""
    notes: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """The time of tapegrad as a multiple of that of JAX."""
        own, other = self.seconds.get("tapegrad"), self.seconds.get("JAX")
        return own / other if own and other else None

    def cells(self) -> list[str]:
        """The row of the table."""
        own, other = (self.seconds.get(name) for name in ("tapegrad", "JAX"))
        return [
            self.program,
            self.field,
            duration(own),
            duration(other),
            ratio(own, other),
            *(duration(self.first.get(name)) for name in ("tapegrad", "JAX")),
        ]

    def remarks(self) -> list[str]:
        """All that there is to say, without the line breaks of messages."""
        return [" ".join(text.split()) for text in (*self.wrong, *self.refused, *self.notes)]


# -- in a process of its own -----------------------------------------------------------------------


def run_alone(name: str, repetitions: int, sides: Sequence[str]) -> None:
    """Compare and time one program, and print what is found as lines of JSON."""
    program = PROGRAMS[name]
    results: dict[str, tuple[float, np.ndarray]] = {}
    watches: dict[str, Stopwatch] = {}
    for label in sides:
        library = LIBRARIES[label]()
        report("starts", label, None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                watch = Stopwatch(Timed(total=library.prepare(program)))
                result = watch.first_call()
                if label != "op by op":
                    result = watch.program.whole()  # what later calls return is what counts
            except Exception as error:
                report("refused", label, f"{label}: {type(error).__name__}: {error}")
                continue
        report("first", label, watch.first)
        results[label] = as_numbers(result)
        for message in {f"{w.category.__name__}: {w.message}" for w in caught}:
            report("notes", label, message)
        if label != "op by op":
            watches[label] = watch
    for text in differences(program, results):
        report("wrong", "tapegrad", text)
    sample_in_turn(list(watches.values()), repetitions)
    for label, watch in watches.items():
        report("seconds", label, watch.seconds().total)
    if "tapegrad" in watches:
        for text in outside_of_code(program):
            report("notes", "tapegrad", text)
    report("ends", "", None)


def report(kind: str, side: str, content: Any) -> None:
    """Tell the process that waits."""
    print(json.dumps([kind, side, content]), flush=True)


def differences(program: Program, results: dict[str, tuple[float, np.ndarray]]) -> list[str]:
    """Where values and gradients are farther apart than rounding allows."""
    found = []
    names = list(results)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            (value, gradient), (expected, slope) = results[name], results[other]
            pairs = {"value": (value, expected), "gradient": (gradient, slope)}
            for what, (given, wanted) in pairs.items():
                error = float(np.max(np.abs(given - wanted)) / np.max(np.abs(wanted)))
                if not error <= program.tolerance:  # also where it is not a number
                    found.append(f"{what}: {name} and {other} differ by {error:.1e}")
    return found


def outside_of_code(program: Program) -> list[str]:
    """What of a recorded function is not compiled."""
    import tapegrad as tg

    recorded = tg.jit(partial(program.function, of_tapegrad()))
    try:
        text = recorded.inspect(*program.arrays())
    except Exception:  # the call has told
        return []
    lines = text.splitlines()
    called = Counter(
        name.strip()
        for line in lines
        if "# in Python:" in line
        for name in line.partition("# in Python:")[2].split(",")
    )
    names = ", ".join(f"{name} ({n} times)" if n > 1 else name for name, n in called.items())
    return [
        *(line for line in lines if line.startswith("op by op")),
        *([f"value in Python: {names}"] if names else []),
    ]


# -- in the process that waits ---------------------------------------------------------------------


def measure(name: str, repetitions: int, limit: float, sides: Sequence[str], cache: str) -> Row:
    """Run a program in a process of its own; once more without a side that takes too long."""
    row = Row(name, PROGRAMS[name].field)
    while late := follow(row, repetitions, limit, sides, cache):
        sides = [side for side in sides if side != late]
    for kind in ("wrong", "refused", "notes"):  # the second process says some of it again
        setattr(row, kind, [*dict.fromkeys(getattr(row, kind))])
    return row


def follow(
    row: Row, repetitions: int, limit: float, sides: Sequence[str], cache: str
) -> str | None:
    """Fill in a row from what a process prints; return whose first call took too long."""
    command = [sys.executable, "-m", "benchmarks.studies.fields", "--alone", row.program]
    command += ["--repetitions", str(repetitions), "--sides", *sides]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**WITH_BYTECODE, **ONE_THREAD, "TAPEGRAD_CACHE_DIR": cache},
        )
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=pass_on, args=(process.stdout, lines), daemon=True)
        reader.start()
        starting = None
        try:
            while (line := lines.get(timeout=limit if starting else SECONDS_ELSEWHERE)) is not None:
                kind, side, content = json.loads(line)
                starting = side if kind == "starts" and side != "op by op" else None
                if kind in ("seconds", "first"):
                    getattr(row, kind).setdefault(side, content)
                elif kind in ("wrong", "refused", "notes"):
                    getattr(row, kind).append(content)
                elif kind == "ends":
                    return None
        except queue.Empty:
            what = f"{starting}: first call" if starting else "all else"
            row.refused.append(f"{what} over {limit if starting else SECONDS_ELSEWHERE:.0f} s")
            return starting
        finally:
            process.kill()
            process.wait()
            reader.join()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["nothing"])[-1]
        row.refused.append(f"the process ended early: {last}")
    return None


def pass_on(stream: Any, lines: "queue.Queue[str | None]") -> None:
    """Read what a process prints, in a thread."""
    for line in stream:
        if line.startswith("["):
            lines.put(line)
    lines.put(None)


def summary(rows: Sequence[Row], bound: float = 1.1) -> str:
    """The line below the table."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    parts = []
    if ratios:
        parts = [
            f"geometric mean {statistics.geometric_mean(ratios):.2f} of {len(ratios)}",
            f"above {bound}: {sum(r > bound for r in ratios)}",
        ]
    parts += [
        *(
            f"refused by {name} or over the limit: {count}"
            for name in ("tapegrad", "JAX")
            if (count := sum(any(t.startswith(name) for t in row.refused) for row in rows))
        ),
        f"with other results: {sum(bool(row.wrong) for row in rows)}",
        f"programs: {len(rows)}",
    ]
    return "; ".join(parts)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.fields", description=__doc__
    )
    parser.add_argument(
        "--program", action="append", choices=list(PROGRAMS), metavar="NAME", help="repeatable"
    )
    parser.add_argument("--json", metavar="FILE", help="save what was found")
    parser.add_argument("--quick", action="store_true", help="one sample of each")
    parser.add_argument(
        "--seconds-per-first-call", type=float, default=60.0, metavar="N", help="default 60"
    )
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="samples of each")
    parser.add_argument(
        "--sides", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES), help="default: all"
    )
    parser.add_argument("--alone", choices=list(PROGRAMS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all programs, or those that are named."""
    options = parse(arguments)
    repetitions = 1 if options.quick else options.repetitions
    has_jax = importlib.util.find_spec("jax") is not None
    sides = [side for side in LIBRARIES if side in options.sides and (has_jax or side != "JAX")]
    if options.alone:
        run_alone(options.alone, repetitions, sides)
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as cache:
        # the kernels of tensors, which belong to no program
        warm = "import numpy as np, tapegrad as tg; tg.grad(lambda x: np.sum(x * x))(np.ones(3))"
        subprocess.run(
            [sys.executable, "-c", warm],
            env={**WITH_BYTECODE, **ONE_THREAD, "TAPEGRAD_CACHE_DIR": cache},
            check=True,
        )
        for name in options.program or PROGRAMS:
            limit = options.seconds_per_first_call
            row = measure(name, repetitions, limit, sides, cache)
            rows.append(row)
            print("...", *row.cells(), *row.remarks(), sep=" | ", file=sys.stderr, flush=True)
            if options.json:  # what there is so far, should the rest fail
                save(options.json, rows)
    rows.sort(key=lambda row: (row.ratio is None, row.ratio or 0.0))
    show_table("Programs of other fields: value and gradient", COLUMNS, [r.cells() for r in rows])
    for row in rows:
        for text in row.remarks():
            print(f"{row.program}: {text}")
    print(summary(rows))


def save(path: str, rows: Sequence[Row]) -> None:
    """Write all that was found."""
    found = [{**vars(row), "ratio": row.ratio} for row in rows]
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
