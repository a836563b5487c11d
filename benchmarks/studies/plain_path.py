"""The plain path in two versions of tapegrad: ``python -m benchmarks.studies.plain_path OLD NEW``.

OLD and NEW are folders of checkouts. New processes of the two are started in turn, each measures
the cost of plain ops (see ``plain_ops.py``), and medians over the processes are compared. The last
columns are the ratio of the medians, that of the fastest processes, and the quartiles of the ratios
within the rounds: a change is significant if all of them are on the same side of one. On a busy
machine the fastest of many rounds is the most reliable: other work only adds to a time.

``--instructions`` counts instructions instead (with Valgrind, which must be installed), including
those for preparing and freeing a sample. The counts are the same on every machine to within a few
in a thousand, and do not cover memory and caches.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure.tables import show_table
from benchmarks.programs import plain_ops


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    prog = "python -m benchmarks.studies.plain_path"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("old", type=Path, help="folder of the checkout to compare with")
    parser.add_argument("new", type=Path, help="folder of the checkout to judge")
    parser.add_argument("--rounds", type=int, default=11, help="processes of each (default 11)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the costs of every round")
    parser.add_argument("--instructions", action="store_true", help="count them, with Valgrind")
    options = parser.parse_args(arguments)
    if options.instructions:
        show_instructions(options.old, options.new)
        return
    rounds = compare(options.old, options.new, max(options.rounds, 2))
    columns = ("ns an op", "old", "new", "new / old", "fastest", "quartiles of the rounds")
    show_table("The plain path", columns, rows(rounds))
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")


def run(checkout: Path, elsewhere: str, program: Sequence[str], *options: str) -> dict[str, Any]:
    """Run `plain_ops.py` of this checkout on the tapegrad of that one, in a new process."""
    folder = checkout.resolve()
    done = subprocess.run(
        [*program, sys.executable, "-P", plain_ops.__file__, *options],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"},  # dicts alike
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not Path(found["file"]).is_relative_to(folder):
        raise SystemExit(f"{folder} has no tapegrad: {found['file']} was imported")
    return found


def costs(checkout: Path) -> dict[str, float]:
    """Every cost in nanoseconds."""
    with tempfile.TemporaryDirectory() as elsewhere:
        found: dict[str, float] = run(checkout, elsewhere, ())["costs"]
    return found


def instructions(checkout: Path) -> dict[str, float]:
    """The instructions of every cost, for a record."""
    program = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"]
    counted: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory() as elsewhere:
        program.append(f"--callgrind-out-file={elsewhere}/counted")
        run(checkout, elsewhere, program, "--instructions")
        for path in Path(elsewhere).glob("counted.*"):
            text = path.read_text()
            samples, name = re.findall(r"^desc: Trigger: .*?(\d+) (\D.*)$", text, re.MULTILINE)[0]
            (total,) = re.findall(r"^totals: (\d+)$", text, re.MULTILINE)
            counted[name, int(samples)] = int(total)
    few, many = plain_ops.FEW, plain_ops.MANY
    records = (many - few) * plain_ops.RECORDS
    return {n: (counted[n, many] - counted[n, few]) / records for n in plain_ops.NAMES}


def show_instructions(old: Path, new: Path) -> None:
    """Count the instructions of both and print them."""
    if not (shutil.which("valgrind") and shutil.which("callgrind_control")):
        raise SystemExit("instructions are counted by Valgrind: install the package valgrind")
    before, after = instructions(old), instructions(new)
    table = [
        (name, f"{count:.0f}", f"{after[name]:.0f}", f"{after[name] / count:.4f}")
        for name, count in before.items()
    ]
    show_table("The plain path", ("instructions a record", "old", "new", "new / old"), table)


def compare(old: Path, new: Path, count: int) -> list[dict[str, dict[str, float]]]:
    """The costs of both in every round; each round begins with the other one.

    A round that is not counted comes first and fills the kernel caches.
    """
    checkouts = {"old": old, "new": new}
    rounds = []
    for turn in range(count + 1):
        order = list(checkouts.items())[:: 1 if turn % 2 else -1]
        rounds.append({name: costs(checkout) for name, checkout in order})
        print(f"... round {turn} of {count}", file=sys.stderr, flush=True)
    return rounds[1:]


def rows(rounds: Sequence[dict[str, dict[str, float]]]) -> list[tuple[str, ...]]:
    """A row for every cost."""
    table = []
    for name in rounds[0]["old"]:
        old, new = (statistics.median(r[side][name] for r in rounds) for side in ("old", "new"))
        fastest = min(r["new"][name] for r in rounds) / min(r["old"][name] for r in rounds)
        low, _, high = statistics.quantiles(r["new"][name] / r["old"][name] for r in rounds)
        cells = f"{old:.0f}", f"{new:.0f}", f"{new / old:.3f}", f"{fastest:.3f}"
        table.append((name, *cells, f"{low:.3f} - {high:.3f}"))
    return table


if __name__ == "__main__":
    main()
