"""The tables of docs/performance.md and of the README, from one run of ``versus.py``.

    python -m benchmarks.reports.versus --json versus.json
    python -m benchmarks.reports.page versus.json

A table between two comments, which name it, is replaced. Rows are not chosen by hand: the page has
all of them, the README those that a rule selects (`representative`).
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure.tables import duration, markdown, ratio, size_in_bytes
from benchmarks.measure.timing import Seconds
from benchmarks.programs.cases import GROUPS
from benchmarks.programs.njit.second_derivatives import SECOND
from benchmarks.programs.targets import (
    RECORDED_FIRST_CALL,
    Measurements,
    Target,
    compilation_limit,
    start_limit,
    verdicts,
)
from benchmarks.programs.workloads import WORKLOADS

from .comparison import own

ROOT = Path(__file__).parents[2]
PEERS = ("PyTorch", "jax.jit", "JAX eager", "HIPS autograd")
"""Sides that others have written, and that compute what tapegrad computes."""
FEATURES = [group for group in GROUPS if group not in ("programs", "njit")]

Case = tuple[str, str]
Sides = Mapping[str, Seconds]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables of one run."""
    prog = "python -m benchmarks.reports.page"
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="what `versus` saved with --json")
    document = json.loads(parser.parse_args(arguments).results.read_text(encoding="utf-8"))
    tables = {name: table(document) for name, table in TABLES.items()}
    for path in (ROOT / "docs" / "performance.md", ROOT / "README.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text, tables), encoding="utf-8")


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Replace the tables of a page by new ones."""

    def replaced(found: re.Match[str]) -> str:
        table = tables[found[2]].replace(" us ", " µs ")
        return f"{found[1]}\n{table}\n{found[3]}"

    inside = r"(?:(?!<!-- end of table).)*"
    pattern = rf"(<!-- table: ([\w-]+) -->)\n{inside}(<!-- end of table -->)"
    return re.sub(pattern, replaced, text, flags=re.DOTALL)


def measurements(document: Any) -> dict[Case, dict[str, Seconds]]:
    """Seconds of every side of every case."""
    return {
        (case["workload"], case["size"]): {n: Seconds(**s) for n, s in case["sides"].items()}
        for case in document["cases"]
    }


def of_groups(document: Any, *groups: str) -> dict[Case, dict[str, Seconds]]:
    """Those of some groups of workloads."""
    found = measurements(document)
    return {case: sides for case, sides in found.items() if WORKLOADS[case[0]].group in groups}


# -- who is ahead ----------------------------------------------------------------------------------


def fastest_peer(case: Case, sides: Sides) -> tuple[str, float] | None:
    """The fastest of the others, and tapegrad's time as a multiple of its time."""
    times = {name: sides[name].whole for name in PEERS if name in sides and sides[name].whole}
    ours = own(case, sides).whole
    if not times or ours is None:
        return None
    name = min(times, key=lambda peer: times[peer] or 0.0)
    return name, ours / (times[name] or 1.0)


def ahead(case: Case, sides: Sides) -> str:
    """Who is the fastest, as a cell of a table."""
    found = fastest_peer(case, sides)
    if found is None:
        return ""
    name, multiple = found
    return f"{name}, {multiple:.2f}" if multiple < 1 else f"**{name}, {multiple:.2f}**"


def representative(measured: Mapping[Case, Sides]) -> list[Case]:
    """The rows of the README: programs at their largest sizes, and the row lost by the most.

    Programs are those on tensors, and those of loops that have an adjoint by hand; the others, and
    what features cost, are on the page.
    """
    multiples = {
        case: found[1] for case, sides in measured.items() if (found := fastest_peer(case, sides))
    }
    largest = {
        case[0]: case
        for case in multiples
        if (workload := WORKLOADS[case[0]]).group == "programs" or workload.by_hand is not None
    }
    worst = max(multiples, key=lambda case: multiples[case])
    return list(dict.fromkeys([*largest.values(), worst]))


# -- tables ----------------------------------------------------------------------------------------


def times(seconds: Seconds | None) -> list[str]:
    """Forward, backward and total."""
    if seconds is None:
        return ["", "", ""]
    return [duration(seconds.forward), duration(seconds.backward), duration(seconds.total)]


def whole(sides: Sides, name: str) -> str:
    """The time of one side."""
    return duration(sides[name].whole) if name in sides else "-"


def programs_table(document: Any) -> str:
    """Programs on tensors, beside the others."""
    columns = ["program", "forward", "backward", "total", "PyTorch", "JAX (jit)", "HIPS autograd"]
    rows = [
        [" ".join(case), *times(sides["tapegrad"])]
        + [whole(sides, name) for name in ("PyTorch", "jax.jit", "HIPS autograd", "NumPy primal")]
        + [ahead(case, sides)]
        for case, sides in of_groups(document, "programs").items()
    ]
    return markdown([*columns, "NumPy, value alone", "÷ fastest other"], rows)


def recorded_table(document: Any) -> str:
    """Programs on tensors that are recorded once, beside the same by hand and JAX."""
    rows, ratios = [], []
    for case, sides in of_groups(document, "programs", "loops").items():
        if "tapegrad.jit" not in sides or "jax.jit" not in sides:
            continue
        ours, peer = sides["tapegrad.jit"], sides["jax.jit"]
        ratios.append(ours.whole / peer.whole)
        cells = [whole(sides, n) for n in ("tapegrad.jit", "numba by hand", "jax.jit")]
        by_hand = sides.get("numba by hand")
        cells.append("-" if by_hand is None else f"{ours.whole / by_hand.whole:.2f}")
        cells += [f"{ratios[-1]:.2f}", duration(ours.first), duration(peer.first)]
        rows.append([" ".join(case), *cells])
    columns = ["program", "`tg.jit`", "by hand", "JAX (jit)", "÷ by hand", "÷ JAX"]
    table = markdown([*columns, "first call", "that of JAX"], rows)
    faster = sum(ratio <= 1.0 for ratio in ratios)
    mean = statistics.geometric_mean(ratios) if ratios else 1.0
    return (
        f"{table}\n\n`tg.jit` takes at most as long as JAX in {faster} of {len(ratios)} programs; "
        f"the geometric mean of the ratios is {mean:.2f}."
    )


def loops_table(document: Any) -> str:
    """Functions of numba: multiples of the value alone."""
    rows = []
    for case, sides in of_groups(document, "njit").items():
        primal = sides["numba primal"].whole
        ours = sides["tapegrad.njit"]
        others = ["numba by hand", "jax.jit", "PyTorch", "tapegrad"]
        cells = [ratio(sides[n].whole, primal) if n in sides else "-" for n in others]
        found = [duration(primal), ratio(ours.forward, primal), ratio(ours.total, primal), *cells]
        rows.append([" ".join(case), *found, ahead(case, sides)])
    columns = ["program", "value alone", "plain call", "value and gradient", "by hand"]
    return markdown(
        [*columns, "JAX (jit)", "PyTorch", "tensors of tapegrad", "÷ fastest other"], rows
    )


def features_table(document: Any) -> str:
    """What features cost, beside PyTorch."""
    rows = []
    for group in FEATURES:
        for case, sides in of_groups(document, group).items():
            peer = sides.get("PyTorch")
            cells = [*times(sides["tapegrad"]), *times(peer)]
            rows.append([GROUPS[group], " ".join(case), *cells, ahead(case, sides)])
    columns = ["what", "program", "forward", "backward", "total"]
    columns += [f"PyTorch {phase}" for phase in ("forward", "backward", "total")]
    return markdown([*columns, "÷ fastest other"], rows)


OURS = "tapegrad"
# by the names of packages, and of sides, in the measurements of new processes
PACKAGES = {OURS: OURS, "torch": "PyTorch", "PyTorch": "PyTorch", "jax": "jax.jit"}
PACKAGES |= {"jax.jit": "jax.jit", "autograd": "HIPS autograd", "HIPS autograd": "HIPS autograd"}


def behind_table(document: Any) -> str:
    """Every row in which another library is ahead, the largest gap first."""
    rows = []
    for case, sides in measurements(document).items():
        found = fastest_peer(case, sides)
        if found and found[1] > 1.0:
            rows.append((found[1], [" ".join(case), found[0], f"{found[1]:.2f}"]))
    count = len(measurements(document))
    behind = len(rows)
    for what, title in (("import", "import"), ("first-gradient", "first gradient of ten ops")):
        seconds = document["processes"].get(what, {})
        peers = {PACKAGES[p]: s for p, s in seconds.items() if PACKAGES.get(p, OURS) != OURS}
        if peers:
            peer = min(peers, key=lambda p: peers[p])
            ratio = seconds["tapegrad"] / peers[peer]
            if ratio > 1.0:
                rows.append((ratio, [f"{title}, new process", peer, f"{ratio:.2f}"]))
    ordered = [row for _, row in sorted(rows, key=lambda row: -row[0])]
    return (
        markdown(["program", "ahead", "tapegrad ÷ it"], ordered)
        + f"\n\nThese are {behind} of {count} programs, and what new processes wait for. Memory "
        "(see [Processes](#processes)): PyTorch's grows less over many steps."
    )


def threads_table(document: Any) -> str:
    """Parallel loops of compiled functions, in order and on two threads."""
    rows = []
    for name, times in document["processes"].get("njit-threads", {}).items():
        cells = []
        for what in ("primal", "gradient"):
            whole = times[f"{what}, in order"]
            cells += [duration(whole), f"{whole / times[f'{what}, threads']:.2f}"]
        rows.append([name, *cells])
    columns = ["value, in order", "two threads", "value and gradient, in order", "two threads"]
    return markdown(["program", *columns], rows)


def ensembles_table(document: Any) -> str:
    """Compiled functions and gradients for many items."""
    rows = []
    for name, times in document["processes"].get("njit-ensembles", {}).items():
        loop = times["gradient, loop"]
        rows += [[f"{name}: {way}", duration(s), ratio(loop, s)] for way, s in times.items()]
    return markdown(["", "time", "loop ÷ it"], rows)


def second_table(document: Any) -> str:
    """Products with Hessians of compiled functions, beside gradients."""
    rows = []
    for name, times in document["processes"].get("njit-second", {}).items():
        cells = [duration(times[what]) for what in ("primal", "gradient", *SECOND)]
        cells.append(ratio(times["hvp"], times["gradient"]))
        rows.append([name, *cells, ratio(times.get("jax.jit hvp"), times["hvp"])])
    columns = ["value", "gradient", *(f"`{what}`" for what in SECOND), "hvp ÷ gradient"]
    return markdown(["program", *columns, "jax.jit ÷ hvp"], rows)


def hessians_table(document: Any) -> str:
    """Hessians of compiled functions."""
    rows = []
    for name, times in document["processes"].get("njit-hessians", {}).items():
        cells = [duration(times.get(what)) for what in ("gradient", "hessian", "jax.jit")]
        rows.append([name, str(times["columns"]), *cells, f"{of_columns(times):.3f}"])
    columns = ["program", "columns", "gradient", "Hessian", "jax.jit", "÷ columns and gradient"]
    return markdown(columns, rows)


def calls_table(document: Any) -> str:
    """Calls of short compiled functions."""
    found = document["processes"].get("njit-calls", {})
    return markdown(["call", "time"], [[name, duration(s)] for name, s in found.items()])


def of_columns(times: Mapping[str, float]) -> float:
    """The time of a Hessian as a multiple of that of a gradient for each column."""
    return times["hessian"] / (times["columns"] * times["gradient"])


def measured_beside(target: Target) -> str:
    """What a target compares with: a peer, or tapegrad on another workload."""
    return target.beside if target.beside and target.peer == target.side else target.peer


def targets_table(document: Any) -> str:
    """What is aimed at, and what was reached."""
    found: Measurements = measurements(document)
    rows = [
        [
            f"{v.target.workload} {v.size}, {v.target.phase} ÷ {measured_beside(v.target)}",
            f"{v.target.at_most:.3g}",
            f"{v.ratio:.3g}",
            "met" if v.met else "**missed**",
        ]
        for v in verdicts(found)
    ]
    processes = document["processes"]
    limits = []
    if "import" in processes:
        seconds = processes["import"]
        beyond = seconds["tapegrad"] - seconds["numba"]
        limits.append(("import, seconds beyond numba's", 0.1, beyond))
    if "first-gradient" in processes:
        seconds = processes["first-gradient"]
        limits.append(("first gradient of ten ops, warm cache, seconds", 0.5, seconds["tapegrad"]))
        cold = seconds["tapegrad, empty kernel cache"]
        limits.append(("the same, empty kernel cache, seconds", 3.0, cold))
    if "memory" in processes:
        record = processes["memory"]["tapegrad, the record in it"]["growth"]
        limits.append(("bytes of a record", 64, record))
    for name, pair in processes.get("njit-compile", {}).items():
        primal, ours = pair.values()
        limits.append((f"{name}, compilation, seconds", compilation_limit(primal), ours))
    for name, pair in processes.get("njit-start", {}).items():
        primal, ours = pair.values()
        limits.append((f"{name}, start with a warm cache, seconds", start_limit(primal), ours))
    for name, times in processes.get("recorded-start", {}).items():
        first = times["first call"]
        limits.append((f"{name}, first call of `tg.jit`, seconds", RECORDED_FIRST_CALL, first))
        at_most = start_limit(times["numba"])
        limits.append((f"{name}, its start with a warm cache, seconds", at_most, times["start"]))
    for name, times in processes.get("njit-second", {}).items():
        limits.append((f"{name}, hvp ÷ gradient", 2.0, times["hvp"] / times["gradient"]))
    for name, times in processes.get("njit-hessians", {}).items():
        limits.append((f"{name}, Hessian ÷ columns and gradient", 0.25, of_columns(times)))
    if calls := processes.get("njit-calls"):
        more = (calls["gradient"] - calls["numba"]) * 1e6
        limits.append(("call of a gradient beyond numba's call, µs", 1.0, more))
        kinds = ("tensor to number", "tensor to array", "tensors to two arrays")
        limits += [(f"compiled function, {name}, µs", 5.0, calls[name] * 1e6) for name in kinds]
    for name, times in processes.get("njit-threads", {}).items():
        shared = times["gradient, threads"] / times["gradient, in order"]
        limits.append((f"{name}, two threads ÷ in order", 1.0 / 1.7, shared))
    for name, times in processes.get("njit-ensembles", {}).items():
        one, two = times["gradient, vmap"], times["gradient, vmap on threads"]
        limits.append((f"{name}, gradients of an ensemble, ms", 35.0, one * 1e3))
        limits.append((f"{name}, two threads ÷ one", 1.0 / 1.8, two / one))
    for name, limit, reached in limits:
        verdict = "met" if reached <= limit else "**missed**"
        rows.append([name, f"{limit:.3g}", f"{reached:.3g}", verdict])
    return markdown(["target", "limit", "reached", ""], rows)


def readme_table(document: Any) -> str:
    """A few rows by a rule, with what the programs are."""
    found = measurements(document)
    rows = []
    for case in representative(found):
        sides = found[case]
        text = (
            (WORKLOADS[case[0]].program.__doc__ or "").split(".\n")[0].splitlines()[0].rstrip(".")
        )
        cells = [
            duration(own(case, sides).whole),
            *(whole(sides, n) for n in PEERS if n != "JAX eager"),
        ]
        rows.append(
            [f"`{' '.join(case)}`: {text[0].lower()}{text[1:]}", *cells, ahead(case, sides)]
        )
    columns = ["program", "tapegrad", "PyTorch", "JAX (jit)", "HIPS autograd", "÷ fastest other"]
    return markdown(columns, rows)


def processes_table(document: Any) -> str:
    """Import and first gradients."""
    seconds, first = (document["processes"][key] for key in ("import", "first-gradient"))
    packages = {
        "tapegrad": "tapegrad",
        "PyTorch": "torch",
        "jax.jit": "jax",
        "HIPS autograd": "autograd",
    }
    imports = [duration(seconds.get(package)) or "-" for package in packages.values()]
    gradients = [duration(first.get(side)) or "-" for side in packages]
    rows = [
        [f"import (numba alone: {duration(seconds['numba'])})", *imports],
        ["first gradient of ten ops, warm kernel cache", *gradients],
    ]
    cold = first.get("tapegrad, empty kernel cache")
    rows.append(["the same, empty kernel cache", duration(cold), "-", "-", "-"])
    return markdown(["in a new process", "tapegrad", "PyTorch", "JAX (jit)", "HIPS autograd"], rows)


def costs_table(document: Any) -> str:
    """Compilation and start of functions of numba."""
    processes = document["processes"]
    rows = []
    for name in processes["njit-compile"]:
        cells = []
        for what in ("njit-compile", "njit-start"):
            primal, ours = processes[what][name].values()
            cells += [duration(primal), duration(ours)]
        rows.append([name, *cells])
    columns = ["program", "compiling the value", "value and gradient"]
    return markdown([*columns, "start with a warm cache, value", "value and gradient"], rows)


def recorded_starts_table(document: Any) -> str:
    """First calls of recorded programs in processes of their own."""
    rows = [
        [name, *map(duration, (found["first call"], found["start"], found["numba"]))]
        for name, found in document["processes"]["recorded-start"].items()
    ]
    columns = ["program", "first call, nothing on disk", "start, everything on disk"]
    return markdown([*columns, "start of numba"], rows)


def memory_table(document: Any) -> str:
    """What gradients of long loops of numba keep, and how far they raise the peak of memory."""
    rows = [
        [name, size_in_bytes(found["kept"]), size_in_bytes(found["taken"]), ratio_of(found)]
        for name, found in document["processes"]["njit-memory"].items()
        if found["kept"] > 1e6  # otherwise the program keeps nothing
    ]
    return markdown(["program", "kept", "rise of the peak", "ratio"], rows)


def ratio_of(found: Mapping[str, float]) -> str:
    """The rise of the peak as a multiple of what is kept."""
    return f"{found['taken'] / found['kept']:.2f}"


TABLES: dict[str, Callable[[Any], str]] = {
    "programs": programs_table,
    "recorded": recorded_table,
    "recorded-starts": recorded_starts_table,
    "numba": loops_table,
    "numba-costs": costs_table,
    "numba-second": second_table,
    "numba-hessians": hessians_table,
    "numba-calls": calls_table,
    "numba-threads": threads_table,
    "numba-ensembles": ensembles_table,
    "numba-memory": memory_table,
    "features": features_table,
    "behind": behind_table,
    "processes": processes_table,
    "targets": targets_table,
    "readme": readme_table,
}

if __name__ == "__main__":
    main()
