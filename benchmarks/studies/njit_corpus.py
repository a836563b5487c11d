r"""Derivatives of published functions: how many are right, wrong or refused, and their costs.

The corpus is a table of functions of published packages that use numba, and of arguments for them
(``programs/corpus/table.json``). No code is copied: the packages are in a scratch folder. Of their
dependencies only numba, NumPy and SciPy are needed. From the root of the repository::

    python3.11 -m venv /tmp/corpus-venv
    /tmp/corpus-venv/bin/pip install numba==0.68.1 numpy==2.4.6 scipy==1.17.1
    /tmp/corpus-venv/bin/pip install --no-deps --target /tmp/corpus-packages \
        -r benchmarks/programs/corpus/requirements.txt
    /tmp/corpus-venv/bin/python -m benchmarks.studies.njit_corpus --packages /tmp/corpus-packages

Each function is judged in its own process with empty caches. Results are written to a file; a
stopped run resumes from it, as long as the package tapegrad is unchanged. ``--list`` shows the
table, ``--only quantecon`` or ``--only hapsira:E_to_nu`` judges a part of it, ``--show`` prints the
tables of existing results only, ``--markdown`` prints them for a page. ``--details`` prints what is
not right, ``--no-times`` omits the times.

``--draw`` regenerates the table; the rule is in ``programs/corpus/draw.py``. This takes an hour or
two.

A derivative is compared with differences (``programs/corpus/differences.py``) of the weighted sum,
with fixed weights, of all real numbers that the function returns or writes into its arguments: the
gradient with respect to all real arguments in reverse mode, one direction in forward mode. Value,
and arguments after the call, are compared with plain numba.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure.tables import markdown, show_table
from benchmarks.programs.corpus.summary import Record, judged, tables, verdict

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "benchmarks" / "programs" / "corpus"
TABLE = CORPUS / "table.json"
RESULTS = Path(tempfile.gettempdir(), "njit-corpus.jsonl")


def tree() -> str:
    """Return a digest of the package tapegrad, the table, and the judge."""
    digest = hashlib.sha256()
    judges = [CORPUS / f"{name}.py" for name in ("judge", "differences", "inputs")]
    for path in sorted((ROOT / "tapegrad").rglob("*.py")) + judges:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def entries(only: str) -> list[dict[str, Any]]:
    """Return the functions of the table that are asked for: the first of each package, and so on.

    So a run that is stopped has seen something of every package.
    """
    package, _, function = only.partition(":")
    ranked = [
        (rank, {"package": name, "version": about["version"], **entry})
        for name, about in json.loads(TABLE.read_text(encoding="utf-8")).items()
        for rank, entry in enumerate(about["taken"])
        if package in (name, "") and function in (entry["function"], "")
    ]
    return [entry for _, entry in sorted(ranked, key=lambda one: one[0])]


def identity(entry: dict[str, Any]) -> str:
    """Return what an entry is, so that results of another one are not taken for it."""
    return json.dumps(entry, sort_keys=True)


def judge(entry: dict[str, Any], packages: str, limit: float, times: bool) -> Record:
    """Judge a function in a process with caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TAPEGRAD_CACHE_DIR": str(Path(folder, "tapegrad")),
            "NUMBA_CACHE_DIR": str(Path(folder, "numba")),
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.programs.corpus.judge", packages, str(report)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )
        ended, errors = "", ""
        try:
            _, errors = child.communicate(json.dumps({**entry, "times": times}), timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            ended = "timeout"
        record: Record = {"entry": identity(entry), **entry}
        if report.exists():
            for line in report.read_text(encoding="utf-8").splitlines():
                record.update(json.loads(line))
        if child.returncode and not ended:
            ended = "crash"
        if ended:
            record.update(ended=ended, exit=child.returncode, errors=errors[-2000:])
    return record


def known(results: Path, state: str) -> dict[str, Record]:
    """Return the records of the same tree that are in a file."""
    if not results.exists():
        return {}
    lines = results.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {record["entry"]: record for record in records if record["tree"] == state}


def show(records: list[Record], as_markdown: bool) -> None:
    """Print the tables."""
    for title, columns, rows in tables(records):
        if as_markdown:
            print(f"\n**{title}**\n\n{markdown(columns, rows)}")
        else:
            show_table(title, columns, rows)


def show_details(records: list[Record]) -> None:
    """Print what is not right."""
    for record in judged(records):
        for mode in ("reverse", "forward"):
            found = verdict(record, mode)
            if found not in ("right", "none"):
                detail = record.get(f"{mode}_detail", record.get("errors", ""))
                name = f"{record['package']}:{record['function']} ({record['module']})"
                print(f"\n{name}: {mode}: {found}\n  arguments {record['arguments']}\n  {detail}")


def draw(packages: str) -> None:
    """Make the table anew, as far as it is not there."""
    module = "benchmarks.programs.corpus.draw"
    command = ["-m", module, "--packages", packages, "--table", str(TABLE)]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *command], env=environment, check=True)


def main() -> None:
    """Judge what is asked for and not yet judged, and print tables of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.njit_corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--packages", default="/tmp/corpus-packages", help="their folder")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"a file; default {RESULTS}")
    parser.add_argument("--only", default="", help="package or package:function")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one function")
    parser.add_argument("--no-times", action="store_true", help="measure no times")
    parser.add_argument("--list", action="store_true", help="show the table")
    parser.add_argument("--again", action="store_true", help="judge also what is in the results")
    parser.add_argument("--show", action="store_true", help="judge nothing")
    parser.add_argument("--markdown", action="store_true", help="print tables for a page")
    parser.add_argument("--details", action="store_true", help="print all that is not right")
    parser.add_argument("--draw", action="store_true", help="make the table anew")
    options = parser.parse_args()
    if options.draw:
        draw(options.packages)
        return
    wanted = entries(options.only)
    if options.list:
        for entry in wanted:
            print(f"{entry['package']}:{entry['function']}", *entry["arguments"], sep="  ")
        return
    state = tree()
    found = known(options.results, state)
    for number, entry in enumerate(wanted, 1):
        if options.show or (identity(entry) in found and not options.again):
            continue
        record = {
            **judge(entry, options.packages, options.limit, not options.no_times),
            "tree": state,
        }
        found[record["entry"]] = record
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        verdicts = [verdict(record, mode) for mode in ("reverse", "forward")]
        place = f"[{number}/{len(wanted)}] {entry['package']}:{entry['function']}"
        print(place, *verdicts, file=sys.stderr, flush=True)
    records = [found[identity(entry)] for entry in wanted if identity(entry) in found]
    show(records, options.markdown)
    if options.details:
        show_details(records)


if __name__ == "__main__":
    main()
