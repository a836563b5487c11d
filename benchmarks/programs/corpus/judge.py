"""Judges the derivatives of one function of the corpus, in a process of its own.

``python -m benchmarks.programs.corpus.judge`` reads an entry of the table from its input. What it
finds goes to a file, one line of JSON after the other, so that it is known how far a process came
that crashed or was stopped.
"""

import importlib.util
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from types import ModuleType
from typing import Any

import numpy as np

from .differences import (
    Slopes,
    active_places,
    is_single,
    outcome,
    same_in_python,
    slopes,
    weights_of,
)
from .inputs import copied, flat, make, moved
from .packages import compile_lazily, compiled_functions, open_packages

ENOUGH = 2e-6
"""The shortest time of a plain call that a ratio is made of."""
BATCH = 256
"""How many calls are timed as one, where a single call takes less."""
REPETITIONS = 9


def unpacked(form: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what a result is assigned to, and kind and name of each part that counts."""
    parts: list[tuple[str, str]] = []

    def name(match: re.Match[str]) -> str:
        parts.append((match[0], f"r{len(parts)}"))
        return parts[-1][1]

    target = re.sub(r"[^(),]+", name, form).replace(")", ",)")
    return target, [(kind, part) for kind, part in parts if kind != "-"]


def loss_text(entry: dict[str, Any], library: str) -> str:
    """Return the text of a function that sums all that the function computes, with weights."""
    names = [f"a{k}" for k in range(len(entry["arguments"]))]
    call = f"function({', '.join(names)})"
    target, parts = unpacked(entry["result"])
    terms: list[tuple[bool, str]] = []
    for kind, path in parts:
        array = kind[0] in "az" and kind[1:] != "0"
        terms += (
            [(array, f"{path}.real"), (array, f"{path}.imag")]
            if kind[0] in "cz"
            else [(array, path)]
        )
    terms += [(True, names[place]) for place in entry["writes"]]
    weights = [f"w{k}" for k in range(len(terms))]
    sums = [
        f"    total += np.sum({w} * {path})" if array else f"    total += {w} * {path}"
        for w, (array, path) in zip(weights, terms, strict=True)
    ]
    lines = [
        "import numpy as np",
        f"from {library} import njit",
        f"from {entry['module']} import {entry['function']} as function",
        "",
        "",
        "@njit",
        f"def loss({', '.join(names + weights)}):",
        f"    {target} = {call}" if parts else f"    {call}",
        "    total = 0.0",
        *sums,
        "    return total",
    ]
    first = batched(entry)
    if first is not None:
        one = [f"{name}[i]" if place == first else name for place, name in enumerate(names)]
        lines += [
            "",
            "",
            "@njit",
            f"def batch({', '.join(names + weights)}):",
            "    total = 0.0",
            f"    for i in range(len({names[first]})):",
            f"        total += loss({', '.join(one + weights)})",
            "    return total",
        ]
    return "\n".join(lines) + "\n"


def batched(entry: dict[str, Any]) -> int | None:
    """Return the argument that there are many of where many calls are timed: the smallest."""
    arguments = make(entry["arguments"], entry["points"][0], entry["size"])
    places = [
        place
        for place in active_places(arguments)
        if place not in entry["writes"] and not isinstance(arguments[place], tuple)
    ]
    return min(places, key=lambda place: np.size(arguments[place]), default=None)


def module_of(text: str, name: str, folder: str) -> ModuleType:
    """Return the module of a text."""
    path = Path(folder, f"{name}.py")
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Judge:
    """Everything that is found of one function."""

    def __init__(self, entry: dict[str, Any], report: Path, folder: str) -> None:
        self.entry = entry
        self.report = report
        self.folder = folder
        self.function = compiled_functions(entry["module"])[entry["function"]]
        self.writes = entry["writes"]
        self.active = active_places(make(entry["arguments"], entry["points"][0], entry["size"]))

    def say(self, **found: Any) -> None:
        """Add a line to the report."""
        with self.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")

    def given(self, point: int, size: int) -> list[Any]:
        """Arguments of the loss: those of the function, and weights for each part it computes."""
        arguments = make(self.entry["arguments"], point, size)
        parts = [
            part
            for leaf in outcome(self.function, arguments, self.writes).leaves
            for part in ([leaf.real, leaf.imag] if np.asarray(leaf).dtype.kind == "c" else [leaf])
        ]
        numbers = weights_of(sum(np.size(part) for part in parts))
        at = 0
        for part in parts:
            some = numbers[at : at + np.size(part)]
            at += np.size(part)
            arguments.append(some.reshape(part.shape) if np.ndim(part) else float(some[0]))
        return arguments

    def run(self) -> None:
        """Judge, and report."""
        entry = self.entry
        plain = module_of(loss_text(entry, "numba"), "loss_plain", self.folder)
        self.say(stage="plain")
        start = process_time()
        given = self.given(entry["points"][0], entry["size"])
        plain.loss(*map(copied, given))
        self.say(compile_plain=process_time() - start)
        points = []
        for point in entry["points"]:
            arguments = make(entry["arguments"], point, entry["size"])
            if not same_in_python(self.function, arguments, self.writes):
                continue
            found = slopes(self.function, arguments, self.active, self.writes)
            if found is not None:
                points.append((self.given(point, entry["size"]), found))
        if not points:
            self.say(reverse="not judgeable")
            return
        import tapegrad as tg  # not before: numba alone is measured above

        ours = module_of(loss_text(entry, "tapegrad"), "loss", self.folder)
        self.say(stage="reverse")
        reverse = tg.value_and_grad(ours.loss, tuple(self.active))
        right = self.attempt("reverse", lambda: self.reverse(plain.loss, reverse, points))
        self.say(stage="forward")
        forward = tg.jvp(ours.loss, tuple(self.active))
        self.attempt("forward", lambda: self.forward(plain.loss, forward, points))
        if right and entry.get("times", True):
            self.say(stage="time")
            try:
                self.time(plain, ours, reverse)
            except Exception as error:
                self.say(no_time=f"{type(error).__name__}: {error}")
        self.say(stage="end")

    def attempt(self, what: str, run: Callable[[], str]) -> bool:
        """Run one of the checks; report what it says, or how it was refused."""
        from tapegrad.transform.errors import TransformError  # see `run`

        try:
            verdict = run()
            self.say(**{what: verdict.split(":")[0], f"{what}_detail": verdict})
            return verdict == "right"
        except TransformError as error:
            clear = self.names_the_user(str(error))
            self.say(**{what: "refused" if clear else "unclear", f"{what}_detail": str(error)})
        except BaseException as error:
            text = "".join(traceback.format_exception(error)[-6:])
            detail = f"{type(error).__name__}: {error}"
            self.say(
                **{what: "unclear", f"{what}_detail": detail[:1500], f"{what}_trace": text[-3000:]}
            )
        return False

    def names_the_user(self, message: str) -> bool:
        """Whether a refusal names a line of the package's or of the loss, and a way out.

        The way out comes behind the construct: a second part of the sentence. A generated file
        must not be named.
        """
        generated = ("derivative_", "tapegrad/transform", "<string>", "<normal form")
        said = message.partition('File "')[0]
        return (
            'File "' in message
            and re.search(r"[;:.(] ?\w", said) is not None
            and not any(word in message for word in generated)
        )

    def reverse(self, plain: Any, derivative: Any, points: Sequence[Any]) -> str:
        """Check value, gradient, and what is left in the arguments."""
        for number, (given, expected) in enumerate(points):
            mine, theirs = list(map(copied, given)), list(map(copied, given))
            start = process_time()
            value, gradients = derivative(*mine)
            if number == 0:
                self.say(compile_gradient=process_time() - start)
            wrong = self.wrong_value(value, plain(*theirs), mine, theirs, given)
            if wrong:
                return wrong
            for k, (place, gradient) in enumerate(zip(self.active, gradients, strict=True)):
                found = flat(gradient)
                if not expected.agrees(k, found):
                    wanted = shown(expected.gradient[k])
                    known = np.where(np.isnan(found), expected.gradient[k], found)
                    kind = "nan" if expected.agrees(k, known) else "wrong"
                    return f"{kind}: by argument {place}: {shown(found)}, differences {wanted}"
        return "right"

    def forward(self, plain: Any, derivative: Any, points: Sequence[tuple[Any, Slopes]]) -> str:
        """Check value and tangent in a direction."""
        for number, (given, expected) in enumerate(points):
            rng = np.random.default_rng(17)
            steps = [rng.uniform(-1, 1, flat(given[place]).size) for place in self.active]
            tangents = [
                moved(zero(given[place]), step)
                for place, step in zip(self.active, steps, strict=True)
            ]
            mine, theirs = list(map(copied, given)), list(map(copied, given))
            start = process_time()
            value, dot = derivative(*mine, *tangents)
            if number == 0:
                self.say(compile_tangent=process_time() - start)
            wrong = self.wrong_value(value, plain(*theirs), mine, theirs, given)
            if wrong:
                return wrong
            if not expected.agrees_along(steps, float(dot)):
                wanted = sum(g @ s for g, s in zip(expected.gradient, steps, strict=True))
                return f"wrong: tangent: {float(dot)!r}, differences {float(wanted)!r}"
        return "right"

    def wrong_value(
        self,
        value: Any,
        expected: Any,
        mine: Sequence[Any],
        theirs: Sequence[Any],
        given: Sequence[Any],
    ) -> str:
        """Return what is wrong with a value or with arguments after a call, or nothing."""
        loose = 1e-4 if is_single([*given]) else 1e-10
        if not np.allclose(value, expected, rtol=loose, atol=1e-12):
            return f"wrong: value: {value!r}, numba {expected!r}"
        for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            if isinstance(one, np.ndarray) and not np.allclose(
                one, other, rtol=loose, atol=1e-12, equal_nan=True
            ):
                return f"wrong: value: argument {place} after the call"
        return ""

    def time(self, plain: ModuleType, ours: ModuleType, reverse: Any) -> None:
        """Report the time of a plain call and of value and gradient."""
        import tapegrad as tg  # see `run`

        point = self.entry["points"][0]
        size = self.entry["large"] or self.entry["size"]
        given = self.given(point, size)
        seconds = self.seconds([plain.loss, reverse, self.clear], given)
        first = batched(self.entry)
        if seconds[0] < ENOUGH and first is not None:
            rows = [make(self.entry["arguments"], k % 8, size)[first] for k in (point,) * BATCH]
            grown = np.array(rows)
            grown *= 1 + np.arange(BATCH).reshape(-1, *[1] * (grown.ndim - 1)) * 1e-9
            given = [grown if k == first else value for k, value in enumerate(given)]
            batch = tg.value_and_grad(ours.batch, tuple(self.active))
            seconds = self.seconds([plain.batch, batch, self.clear], given)
        if seconds[0] >= ENOUGH:
            names = ("plain_seconds", "gradient_seconds", "clear_seconds")
            self.say(**dict(zip(names, seconds, strict=True)))
        else:
            self.say(no_time="a call is too short")

    def clear(self, *given: Any) -> None:
        """Make arrays of zeros for the gradient, which a function may read little of.

        They are there at the same time, like those of a gradient: the memory of one does not serve
        the next.
        """
        arrays = [given[place] for place in self.active if isinstance(given[place], np.ndarray)]
        made = [np.empty_like(array) for array in arrays]
        for array in made:
            array.fill(0.0)

    def seconds(self, calls: Sequence[Callable[..., Any]], given: Sequence[Any]) -> list[float]:
        """Medians of the times of calls, in turn; arrays that are written to are new each time."""

        def fresh() -> list[Any]:
            return [copied(v) if k in self.writes else v for k, v in enumerate(given)]

        def run(call: Callable[..., Any], number: int) -> float:
            start = perf_counter()
            for _ in range(number):
                call(*fresh())
            return (perf_counter() - start) / number

        all_calls = [*calls, lambda *_: None]
        numbers = []
        for call in all_calls:
            call(*fresh())
            numbers.append(max(1, min(20_000, int(0.005 / max(run(call, 3), 1e-9)))))
        rounds = [
            [run(call, number) for call, number in zip(all_calls, numbers, strict=True)]
            for _ in range(REPETITIONS)
        ]
        *times, empty = (median(samples) for samples in zip(*rounds, strict=True))
        return [max(time - empty, 1e-9) for time in times]


def zero(value: Any) -> Any:
    """Return zeros of the form of a value."""
    if isinstance(value, tuple):
        return tuple(map(zero, value))
    return np.zeros_like(value) if isinstance(value, np.ndarray) else type(value)(0)


def shown(vector: np.ndarray) -> str:
    """Return the first numbers of a vector."""
    text = " ".join(f"{x:.6g}" for x in vector[:8])
    return f"[{text}{' ...' if vector.size > 8 else ''}]"


def main() -> None:
    """Judge the function of an entry."""
    entry = json.load(sys.stdin)
    packages, report = sys.argv[1:3]
    open_packages(packages)
    compile_lazily()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Judge(entry, Path(report), folder).run()


if __name__ == "__main__":
    main()
