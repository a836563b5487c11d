"""Draws functions from the packages, and finds arguments for them.

The rule. A package's functions are those that numba compiles, at the level of a module, outside of
its tests. They are put in the order of a hash of package, module and name. Going through them, a
function is taken if arguments are found for which plain numba compiles it and its results are
finite, the same in two calls and when Python runs it, and have derivatives that differences agree
on; until so many are taken or tried. No derivative of tapegrad's has a part in it. The reasons of
those not taken are counted.
"""

import argparse
import hashlib
import inspect
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from . import guess
from .differences import active_places, leaves_of, outcome, same_in_python, slopes
from .inputs import SMALL, copied, make
from .packages import (
    compile_lazily,
    compiled_functions,
    installed,
    module_names,
    open_packages,
)

SECONDS = 12
"""How long arguments are looked for: time of the processor, which others do not change."""
TYPES = 12
"""How many choices of types are tried."""
TRIALS = 40
"""How many choices of values are tried for each."""
POINTS = 6
LARGER = (24, 96, 384, 1536)
"""Lengths of arrays where time is measured: the first at which a call takes 20 us."""


class SetAside(Exception):
    """A function that cannot be judged, and why."""


def order(package: str, module: str, function: str) -> str:
    """Return where a function stands in the draw."""
    return hashlib.sha256(f"{package}:{module}:{function}".encode()).hexdigest()


def choose(module: str, function: str) -> dict[str, Any]:
    """Return the entry of a function in the table, without its names."""
    dispatcher = compiled_functions(module)[function]
    if not inspect.signature(dispatcher.py_func).parameters:
        raise SetAside("no arguments")
    kinds = guess.kinds_of(dispatcher)
    if kinds is None:
        raise SetAside("takes objects")
    begin = process_time()
    reasons: Counter[str] = Counter()
    known = set()
    for combination in guess.combinations(kinds, 10 * TYPES):
        if process_time() - begin > SECONDS or len(known) == TYPES:
            break
        arguments = make(texts_of(combination, 0), 0, SMALL)
        key = guess.type_key(arguments)
        if key in known:
            continue
        known.add(key)
        if not active_places(arguments):
            reasons["no real arguments"] += 1
            continue
        reason = "not compiled by numba"
        for trial in range(TRIALS):
            size = (SMALL, SMALL, 3, SMALL, 4, 2)[trial % 6]
            texts = texts_of(combination, trial)
            try:
                entry = judged(dispatcher, texts, size)
            except NumbaError:
                break
            except SetAside as why:
                reason = str(why)
                if reason.startswith("result"):
                    break
                continue
            except Exception as error:
                reason = f"fails: {type(error).__name__}"
                continue
            return entry
        reasons[reason] += 1
    raise SetAside(
        max(reasons, key=lambda r: (r != "not compiled by numba", reasons[r]), default="")
    )


def texts_of(kinds: Sequence[str], trial: int) -> list[str]:
    """Return texts for kinds: first with the same domain for all numbers, then with several."""
    rng = np.random.default_rng([5, trial])
    several = trial >= len(guess.DOMAINS)
    texts = []
    for kind in kinds:
        domain = guess.DOMAINS[rng.integers(len(guess.DOMAINS)) if several else trial]
        if several and kind.startswith("i"):
            kind = str(rng.choice(["in", "i3", "i2", "i1", kind, kind]))
        rising = bool(trial % 2) if several else trial > 2
        texts.append(guess.text(kind, domain, rising))
    return texts


def judged(dispatcher: Any, texts: list[str], size: int) -> dict[str, Any]:
    """Return the entry for these arguments."""
    points, found = [], {}
    for point in range(POINTS):
        try:
            arguments = make(texts, point, size)
            result, writes = probe(dispatcher, arguments)
        except SetAside:
            if not points and point >= 1:
                raise
            continue
        if not same_in_python(dispatcher, arguments, writes):
            raise SetAside("not the same in Python")
        if slopes(dispatcher, arguments, active_places(arguments), writes) is not None:
            points.append(point)
            found.setdefault("writes", writes)
            found.setdefault("result", result)
            if (found["writes"], found["result"]) != (writes, result):
                points.pop()
        elif point == 2 and not points:
            break
        if len(points) == 3:
            break
    if not points:
        raise SetAside("not smooth, or constant")
    return {
        "arguments": texts,
        "size": size,
        "points": points,
        **found,
        "large": larger(dispatcher, texts, points[0], found["writes"]),
    }


def probe(dispatcher: Any, arguments: list[Any]) -> tuple[str, list[int]]:
    """Return the form of a function's result, and which arguments it writes to."""
    given = [copied(argument) for argument in arguments]
    result = dispatcher(*given)
    writes = [
        place
        for place, (old, new) in enumerate(zip(arguments, given, strict=True))
        if isinstance(old, np.ndarray)
        and old.dtype.kind == "f"
        and not np.array_equal(old, new, equal_nan=True)
    ]
    first = outcome(dispatcher, arguments, writes).numbers()
    second = outcome(dispatcher, arguments, writes).numbers()
    if not first.size:
        raise SetAside("result is not real")
    if not np.all(np.isfinite(first)):
        raise SetAside("not finite")
    if first.shape != second.shape or not np.array_equal(first, second):
        raise SetAside("not the same twice")
    return form(result), writes


def form(value: Any) -> str:
    """Return the form of a result: f a number, a2 an array, c and z complex, - what is left out."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(form, value)) + ")"
    if isinstance(value, (list, dict, set)) or type(value).__module__.startswith("numba.typed"):
        raise SetAside("result is a list or dict")
    if not leaves_of(value):
        return "-"
    complex_ = np.asarray(value).dtype.kind == "c"
    if isinstance(value, np.ndarray):
        return f"{'z' if complex_ else 'a'}{value.ndim}"
    return "c" if complex_ else "f"


def larger(dispatcher: Any, texts: list[str], point: int, writes: list[int]) -> int | None:
    """Return the length of arrays where time is measured."""
    best = None
    if not any("N" in text.replace("None", "") for text in texts):
        return None
    for size in LARGER:
        try:
            arguments = make(texts, point, size)
            start = perf_counter()
            if sum(np.asarray(a).nbytes for a in arguments) > 1e8:
                break
            numbers = outcome(dispatcher, arguments, writes).numbers()
            once = perf_counter() - start
        except Exception:
            break
        if not np.all(np.isfinite(numbers)) or once > 0.05:
            break
        best = size
        start = perf_counter()
        dispatcher(*arguments)
        if perf_counter() - start > 2e-5:
            break
    return best


# --------------------------------------------------------------------------------------------------
# All packages


def in_child(send: Any, module: str, function: str) -> None:
    """Choose in a process of its own, and send what came of it."""
    try:
        send.send(("taken", choose(module, function)))
    except SetAside as why:
        send.send(("set aside", str(why)))
    except Exception as error:
        send.send(("set aside", f"fails: {type(error).__name__}"))


def chosen(module: str, function: str) -> tuple[str, Any]:
    """Choose arguments in a child, which may crash or not come back."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=in_child, args=(send, module, function))
    child.start()
    send.close()
    try:
        answer = receive.recv() if receive.poll(3 * SECONDS) else ("set aside", "does not end")
    except EOFError:
        answer = "set aside", "crashes"
    child.kill()
    child.join()
    return answer


def draw_package(
    folder: str, package: str, take: int, tries: int, before: dict[str, Any]
) -> dict[str, Any]:
    """Return the entries of a package, and how many functions were not taken for which reason.

    What was drawn before is kept, and the draw goes on behind it.
    """
    version, tops = installed(folder)[package]
    names = [
        (module, function)
        for top in tops
        for module in module_names(folder, top)
        for function in compiled_functions(module)
    ]
    names.sort(key=lambda name: order(package, *name))
    taken: list[dict[str, Any]] = list(before.get("taken", []))
    aside = Counter(before.get("set aside", {}))
    for module, function in names[len(taken) + aside.total() : tries]:
        if len(taken) >= take:
            break
        how, what = chosen(module, function)
        print(f"{package}: {module}.{function}: {how} {what}", file=sys.stderr, flush=True)
        if how == "taken":
            taken.append({"module": module, "function": function, **what})
        else:
            aside[what] += 1
    return {
        "version": version,
        "functions": len(names),
        "set aside": dict(sorted(aside.items())),
        "taken": taken,
    }


def write(path: Path, table: dict[str, Any]) -> None:
    """Write the table, one function a line."""
    texts = []
    for package in sorted(table, key=str.lower):
        about = json.dumps({k: v for k, v in table[package].items() if k != "taken"})
        rows = ",\n  ".join(map(json.dumps, table[package]["taken"]))
        texts.append(f' {json.dumps(package)}: {about[:-1]}, "taken": [\n  {rows}\n ]}}')
    path.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Draw from each package as far as its functions are not yet in the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--packages", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--take", type=int, default=7)
    parser.add_argument("--tries", type=int, default=14)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    open_packages(options.packages)
    compile_lazily()
    path = Path(options.table)
    table = json.loads(path.read_text()) if path.exists() else {}
    for package in installed(options.packages):
        before = table.get(package, {})
        tried = len(before.get("taken", [])) + sum(before.get("set aside", {}).values())
        done = len(before.get("taken", [])) >= options.take or tried >= options.tries
        if options.only in package and not (before and done):
            table[package] = draw_package(
                options.packages, package, options.take, options.tries, before
            )
            write(path, table)


if __name__ == "__main__":
    main()
