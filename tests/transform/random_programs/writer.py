"""Random programs: texts of modules with helpers ``h0``, ``h1``, ... and a function ``f``.

A program is valid for numba, ends soon, keeps its numbers small and stays inside its arrays by
construction.
"""

import dataclasses
import random

import numpy as np

from .helpers import Helpers
from .scope import HEADER, Scope, indented

PASSIVE = "int", "table", "counts"  # arguments that are never differentiated by


@dataclasses.dataclass(frozen=True)
class Program:
    """A text with arguments to run it on."""

    source: str
    kinds: tuple
    length: int
    argnums: tuple
    seed: int
    shapes: frozenset = frozenset()

    def arguments(self, point):
        """Fresh arguments, one of several points."""
        size = self.length
        make = {
            "float": lambda rng: round(rng.uniform(-1, 1), 3),
            "int": lambda rng: int(rng.integers(0, 5)),
            "vector": lambda rng: rng.uniform(-1, 1, size).round(3),
            "strided": lambda rng: np.repeat(rng.uniform(-1, 1, size).round(3), 2)[::2],
            "matrix": lambda rng: rng.uniform(-1, 1, (2, size)).round(3),
            "table": lambda rng: rng.uniform(-1, 1, (2, size)).round(3),
            "counts": lambda rng: rng.integers(-2, 4, (2, size)),
            "fortran": lambda rng: np.asfortranarray(rng.uniform(-1, 1, (2, size)).round(3)),
            "single": lambda rng: rng.uniform(-1, 1, size).round(3).astype(np.float32),
        }
        return [
            make[kind](np.random.default_rng([self.seed, point, k]))
            for k, kind in enumerate(self.kinds)
        ]

    def tangents(self, point):
        """A tangent for each argument that is differentiated by."""
        rng = np.random.default_rng([self.seed, point])
        args = self.arguments(point)
        found = {}
        for k in self.argnums:
            tangent = rng.uniform(-1, 1, np.shape(args[k])).round(2)
            found[k] = tangent.astype(args[k].dtype) if tangent.ndim else float(tangent)
        return found

    @property
    def single(self):
        """Whether a part is computed with float32."""
        return "single" in self.kinds

    def __str__(self):
        args = ", ".join(repr(value) for value in self.arguments(0))
        return f"{self.source}\n# argnums={self.argnums}, kinds={self.kinds}, first point: {args}"


class Author(Helpers):
    """Writes one program."""

    def module(self):
        """A program."""
        self.length = 2 + self.choose(3)
        lines = HEADER.splitlines()
        for _ in range(self.pick([1, 2, 1, 2, 3, 0])):
            lines += self.helper()
        kinds, scope = {"x": "float"}, Scope(floats=["x"])
        if self.chance(1, 3):
            kinds["y"] = "float"
            scope.floats.append("y")
        for name in ("a", "b")[: self.pick([1, 2, 1, 1])]:
            kinds[name] = self.pick(["vector", "vector", "vector", "strided"])
            scope.vectors[name] = self.length
        if self.chance(1, 4):
            kinds["m"] = self.pick(["matrix", "matrix", "fortran"])
            scope.matrices["m"] = (2, self.length)
        if self.chance(1, 4):
            kinds["n"] = "int"
            scope.ints["n"] = (0, 4)
        if self.chance(1, 6):
            kinds["t"] = self.pick(["table", "table", "counts"])
            scope.tables["t"] = (2, self.length)
            if kinds["t"] == "table":
                scope.matrices["t"] = (2, self.length)
        if self.chance(1, 12):
            self.note("float32")
            kinds["s"] = "single"
            scope.singles["s"] = self.length
        body = self.function(scope, 4)
        lines += [line for made, line in self.derived.items() if any(made in b for b in body)]
        lines += ["", "", "@tg.njit", f"def f({', '.join(kinds)}):", *indented(body)]
        real = [k for k, kind in enumerate(kinds.values()) if kind not in PASSIVE]
        chosen = [k for k in real if self.chance(1, 2)] if self.chance(1, 4) else real
        return Program(
            "\n".join(lines) + "\n",
            tuple(kinds.values()),
            self.length,
            tuple(chosen or real),
            self.choose(1000),
            frozenset(self.shapes),
        )

    def function(self, scope, most):
        """The lines of the function that is differentiated."""
        scope.own = {*scope.floats, *scope.ints}
        self.returns, self.left, self.trips = "float", 2 * most, 1
        before = len(self.helpers)
        lines = self.statement(scope, False) + self.block(scope, most)
        if before and not any("h" + str(before - 1) + "(" in line for line in lines):
            lines += self.call_statement(scope)
        # most programs show the end of everything, some drop a part
        terms = [name for name in scope.floats if not self.chance(1, 6)]
        sums = [f"np.sum({name})" for name in [*scope.vectors, *scope.matrices, *scope.singles]]
        terms += [f"{self.pick(['0.7', '-0.4', '1.1'])} * {s}" for s in sums if self.chance(5, 6)]
        for name, kinds in scope.tuples.items():
            terms.append(self.item(scope, name, kinds))
        terms += [f"{name}.level * np.sum({name}.grid)" for name in scope.records]
        if scope.vectors:
            terms.append(f"1.3 * {self.element(scope)}")
        return [*lines, f"return {' + '.join(terms) or self.number(scope)}"]


def program_of(seed):
    """The program of a seed."""
    return Author(random.Random(seed).randrange).module()
