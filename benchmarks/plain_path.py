"""The plain path in two versions of tapegrad: ``python -m benchmarks.plain_path OLD NEW``.

OLD and NEW are folders of checkouts. New processes of the two are started in turn, each measures
what a plain op costs (see ``plain_ops.py``), and medians over the processes are compared. The last
columns hold the ratio of the medians, that of the fastest processes, and the quartiles of the
ratios within the rounds: a change is visible where they agree on which side of one they are. On a
machine with other work the fastest of many rounds tells most: what others do only adds to a time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import plain_ops, report


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_path", description=__doc__)
    parser.add_argument("old", type=Path, help="folder of the checkout to compare with")
    parser.add_argument("new", type=Path, help="folder of the checkout to judge")
    parser.add_argument("--rounds", type=int, default=11, help="processes of each (default 11)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the costs of every round")
    options = parser.parse_args(arguments)
    rounds = compare(options.old, options.new, max(options.rounds, 2))
    columns = ("ns an op", "old", "new", "new / old", "fastest", "quartiles of the rounds")
    report.show_table("The plain path", columns, rows(rounds))
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")


def costs(checkout: Path) -> dict[str, float]:
    """Run `plain_ops.py` of this checkout on the tapegrad of that one, in a new process."""
    folder = checkout.resolve()
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [sys.executable, "-P", plain_ops.__file__],
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    if not Path(found["file"]).is_relative_to(folder):
        raise SystemExit(f"{folder} has no tapegrad: {found['file']} was imported")
    return found["costs"]


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
