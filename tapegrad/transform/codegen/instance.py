"""A function with the types of its arguments: what it writes, and what its results share."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import types

from tapegrad.transform.builder import function_of
from tapegrad.transform.codegen.analysis import Activity, Arrays, unused_at_times
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import (
    Block,
    FunctionIR,
    If,
    Let,
    Loop,
    Statement,
    Structure,
    leaf_names,
    leaves_of,
    reads,
    walk,
)
from tapegrad.transform.kinds import is_array, is_real, may_share
from tapegrad.transform.lowering.assumptions import Equal, conditions
from tapegrad.transform.lowering.operations import is_random
from tapegrad.transform.printer import show
from tapegrad.transform.rules.base import Load, Passive
from tapegrad.transform.syntax import subtree, text_of


class Instance:
    """A function with the types of its arguments, ready to be differentiated."""

    def __init__(self, dispatcher: Any, kinds: tuple[Any, ...]) -> None:
        self.dispatcher = dispatcher
        self.kinds = kinds
        self.function: FunctionIR
        self.arrays: Arrays
        self.params: list[Any] = []  # atom or structure of every argument
        self.lowering: Any = None  # what made its normal form
        self.equal: Equal = {}  # extents of its arguments that are assumed to be equal ...
        self.probable: Equal = {}  # ... or that probably are
        self.is_segment = False  # whether it does some iterations of a checkpointed loop ...
        self.line = 0  # ... in this line
        self.error: TransformError | None = None  # why it cannot be differentiated
        self.writes: set[int] = set()  # positions of leaves of the arguments ...
        self.overwrites: set[int] = set()  # ... without names that are bound to new arrays first
        self.skips: set[int] = set()  # positions of leaves that may be unused
        # what follows from values that may not be used where their partials are infinite; and from
        # those of them that are infinite themselves (`guards`)
        self.marked: list[set[str]] = [set(), set()]
        self.unmarkable: set[str] = set()  # values whose marks of zeros would be lost (`guards`)
        self.sampled: set[int] = set()  # positions of arrays whose elements are read at most once
        # results (by position) that may share elements with each other or with arguments
        self.shared: list[tuple[list[int], list[int]]] = []
        self.apart: set[int] = set()  # results that may be such views with derivatives of their own

    def leaves(self) -> list[str]:
        """Return the names of all parts of the arguments."""
        return [leaf for value in self.params for leaf in leaf_names(value)]

    def varied(self, inputs: list[str]) -> Callable[[str], bool]:
        """Return the function that says whether a name depends on some inputs."""
        return Activity(self.function, self.arrays, inputs, []).is_varied

    def condition(self, names: list[str]) -> str:
        """Return the condition for what is assumed, with other names of the arguments."""
        params = self.function.params
        return conditions(self.equal, params, names[: len(params)])

    def find_effects(self) -> bool:
        """Find what the function writes, what its results share, and what it may not use.

        Returns whether anything changed.
        """
        self.arrays = arrays = Arrays(self.function)
        leaves = self.leaves()
        kinds = self.function.types
        writes = {
            k for k, n in enumerate(leaves) if may_share(kinds.get(n)) and arrays.is_stored(n)
        }
        self.overwrites = arrays.written_parts(leaves)
        results = [leaf.id if isinstance(leaf, ast.Name) else "" for leaf in self.result_leaves()]
        groups: dict[str, tuple[list[int], list[int]]] = {}
        for names, side in ((results, 0), (leaves, 1)):
            for position, identifier in enumerate(names):
                if may_share(self.function.types.get(identifier)):
                    group = groups.setdefault(arrays.of(identifier), ([], []))
                    group[side].append(position)
        shared = [g for g in groups.values() if g[0] and len(g[0]) + len(g[1]) > 1]
        unused = unused_at_times(self.function, ())
        skips = {k for k, n in enumerate(leaves) if n in unused}
        read_whole = self._read_whole()
        sampled = {
            k for k, n in enumerate(leaves) if is_array(kinds.get(n)) and n not in read_whole
        }
        rules = [(s, s.rule) for s in walk(self.function.body) if isinstance(s, Let)]
        views = {arrays.of(n) for let, rule in rules if rule is not None for n in rule.apart(let)}
        apart = {
            k for k, n in enumerate(results) if may_share(kinds.get(n)) and arrays.of(n) in views
        }
        known = self.writes, self.shared, self.skips, self.sampled, self.apart
        found = writes, shared, skips, sampled, apart
        self.writes, self.shared, self.skips, self.sampled, self.apart = found
        return found != known

    def _read_whole(self) -> set[str]:
        """Return what is read in another way than by elements, each about once."""
        found = {leaf.id for leaf in self.result_leaves() if isinstance(leaf, ast.Name)}
        kinds = self.function.types
        for statement, depth in _with_depths(self.function.body, 0):
            rule = statement.rule if isinstance(statement, Let) else None
            callee = getattr(rule, "instance", None)
            if callee is not None and rule is not None:
                passed = enumerate(rule.leaves())
                found |= {
                    n.id for k, n in passed if isinstance(n, ast.Name) and k not in callee.sampled
                }
            elif isinstance(rule, Load) and depth <= getattr(kinds.get(rule.array), "ndim", 0):
                continue
            elif not isinstance(rule, Passive):
                found.update(reads(statement))
        return found

    def calls(self, other: Instance, seen: tuple[Instance, ...] = ()) -> bool:
        """Whether it may call another function, or a function that does."""
        if self in seen or self.error is not None:
            return False
        lets = [s for s in walk(self.function.body) if isinstance(s, Let)]
        callees = [getattr(let.rule, "instance", None) for let in lets]
        return any(
            callee is other or callee.calls(other, (*seen, self))
            for callee in callees
            if callee is not None
        )

    def draws_numbers(self, statics: dict[str, Any], seen: tuple[Instance, ...] = ()) -> bool:
        """Whether it may draw random numbers."""
        if self in seen:
            return False
        if self.error is not None:
            return draws(self.dispatcher)
        if any(isinstance(k, types.NumPyRandomGeneratorType) for k in self.kinds):
            return True
        for statement in walk(self.function.body):
            rule = statement.rule if isinstance(statement, Let) else None
            callee = getattr(rule, "instance", None)
            if callee is not None and callee.draws_numbers(statics, (*seen, self)):
                return True
        tree = function_of(self.function, "function")
        texts = {text_of(node.func) for node in subtree(tree) if isinstance(node, ast.Call)}
        return any("random" in text or draws(statics.get(text)) for text in texts)

    def joined_results(self) -> list[str]:
        """Return the arrays of the result that may share elements with another part of it.

        What a caller writes to one of them is read from the other.
        """
        leaves = self.result_leaves()
        found = [leaves[k] for made, _ in self.shared for k in made if len(made) > 1]
        kinds = self.function.types
        return [n for n in map(show, found) if is_real(kinds.get(n, types.none))]

    def paths(self) -> dict[str, str]:
        """Return the text of every part of the arguments, by its name."""
        found: dict[str, str] = {}
        for param, value in zip(self.function.params, self.params, strict=True):
            found.update((leaf, path) for path, leaf in paths(value, param))
        return found

    def result_leaves(self) -> list[ast.expr]:
        """Return the atoms of the result."""
        return [] if self.function.result is None else leaves_of(self.function.result)

    def results(self) -> list[str]:
        """Return the names of the real parts of the result."""
        result = self.function.result
        if result is None:
            return []
        return [n for n in leaf_names(result) if is_real(self.function.types.get(n, types.none))]


def _with_depths(block: Block, depth: int) -> Iterator[tuple[Statement, int]]:
    """Yield all statements of a block, each with the number of loops around it."""
    for statement in block:
        yield statement, depth
        if isinstance(statement, If):
            yield from _with_depths([*statement.then, *statement.orelse], depth)
        elif isinstance(statement, Loop):
            yield from _with_depths([*statement.test, *statement.body], depth + 1)


def draws(value: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether a value is a function that draws random numbers, or may call one."""
    if is_random(value):
        return True
    function = getattr(value, "py_func", value)
    code = getattr(function, "__code__", None)
    module = (getattr(function, "__module__", None) or "").partition(".")[0]
    if code is None or code in seen or module in ("numpy", "numba", "tapegrad"):
        return False
    seen |= {code}
    codes = [code]
    for part in codes:
        codes += [c for c in part.co_consts if hasattr(c, "co_names")]
    if any("random" in name for part in codes for name in part.co_names):
        return True
    found = inspect.getclosurevars(function)
    return any(draws(v, seen) for v in (*found.globals.values(), *found.nonlocals.values()))


def overlap_checks(instance: Instance) -> list[str]:
    """Return the lines that refuse overlapping array arguments if one of them is written."""
    kinds = instance.function.types
    leaves = instance.leaves()
    texts = instance.paths()
    found = []
    for position in sorted(instance.writes):
        one = leaves[position]
        if not is_real(kinds[one]):
            continue
        for number, other in enumerate(leaves):
            if not is_array(kinds.get(other)) or not is_real(kinds[other]):
                continue
            if number == position or (number in instance.writes and number < position):
                continue
            text = (
                f"{instance.function.name} writes to {texts[one]}, which overlaps with "
                f"{texts[other]}; pass a copy to differentiate it"
            )
            found.append(f"if runtime.overlap({texts[one]}, {texts[other]}):")
            found.append(f"    raise ValueError({text!r})")
        for held in held_arrays(instance):
            text = (
                f"{instance.function.name} writes to {texts[one]}, which overlaps with {held}; "
                "pass a copy to differentiate it"
            )
            found.append(f"if runtime.overlap({texts[one]}, {held}):")
            found.append(f"    raise ValueError({text!r})")
    return found


def held_arrays(instance: Instance) -> list[str]:
    """Return the texts of the arrays of reals that instances among the arguments hold."""
    return [
        f"{param}.{attribute}"
        for param, kind in zip(instance.function.params, instance.kinds, strict=True)
        if isinstance(kind, types.ClassInstanceType)
        for attribute, item in kind.struct.items()
        if is_array(item) and is_real(item)
    ]


def paths(value: Any, path: str) -> list[tuple[str, str]]:
    """Return the names in a value, each with the text that reads it from `path`."""
    if not isinstance(value, Structure):
        return [(path, value.id)] if isinstance(value, ast.Name) else []
    return [found for k, item in enumerate(value.items) for found in paths(item, f"{path}[{k}]")]


def check_overlaps(instance: Instance) -> None:
    """Refuse in-place operations between parts of one array.

    numba computes them element by element and reads what it has already written; NumPy does not.
    """
    function = instance.function
    for array, value, line in function.inplace:
        if array != value and instance.arrays.of(array) == instance.arrays.of(value):
            raise TransformError(
                "cannot differentiate an in-place operation whose operand may overlap with what it "
                "changes; write a loop, or copy the operand",
                function.source,
                line,
            )
