"""Names of generated code that may alias, and the statements that write them.

The types of the names of the function are known, as numba has inferred them; of others, a name is
assumed to be an array if it is used as one. Calls between functions
of the module are followed through summaries; array arguments are assumed to be distinct, which
generated code checks where it matters. User functions that are called unchanged, for their result,
are assumed to write nothing and to return new arrays.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable

from tapegrad.transform import facts
from tapegrad.transform.rules import arrays
from tapegrad.transform.syntax import leaves, paired
from tapegrad.transform.verifier.code import (
    MODULES,
    PUSHES,
    Code,
    called,
    calls,
    makes_named_tuple,
    module_call,
    name_of,
    names_in,
    names_of,
    nodes_of,
)
from tapegrad.transform.verifier.cotangents import BAR, FORWARD, Cotangents
from tapegrad.transform.verifier.summary import Summary

SHAPE = facts.SHAPE_ATTRIBUTES
SHAPE_CALLS = facts.OF_SHAPES - {"empty", "ones", "zeros"} | {
    *("len", "numbered", "places", "unnumbered")
}
_PARTS = frozenset(["owned_row", "row"])  # functions of the tape that return parts of it
VIEWS = facts.VIEWS | _PARTS
MAKERS = facts.functions(facts.Elements.OWN) | {"asarray"}
# functions that return an array if this argument is one
LIKE_ONE = {"digitize": 0, "interp": 0, "searchsorted": 1}
_REDUCTIONS = facts.functions(facts.Elements.NUMBER) | {"item", "len"}
_FINDS = (("np", "nonzero"), ("np", "where"))  # tuples of arrays of positions
_OF_NUMBERS = frozenset(["conjugate", "imag", "real"])  # complex numbers have them as well
_ARRAY_METHODS = VIEWS | {"astype", "copy", "flatten"}
NUMBER_CALLS = frozenset(
    ["complex_inverse", "complex_product", "complex_nonzero", "direction", "turn"]
)
_SAME = frozenset(["tuple", "list", "enumerate", "zip", "reversed"])  # pass arrays on


@functools.cache
def added_to(function: tuple[str, str]) -> int:
    """Return the position of the argument that a function adds to; -1 if there is none."""
    module, name = function
    if module != "arrays" or name in NUMBER_CALLS:
        return -1
    _, is_vjp, argument = name.partition("_vjp_")
    if not is_vjp:
        return 0
    found = getattr(arrays, name, None)
    if found is None:
        return -1
    code = found.py_func.__code__
    params = list(code.co_varnames[: code.co_argcount])
    return params.index(f"{argument}_bar") if f"{argument}_bar" in params else -1


def shape_only(node: ast.AST) -> set[int]:
    """Return the nodes in an expression whose shape only is read."""
    free: set[int] = set()
    for inner in nodes_of(node):
        if isinstance(inner, ast.Attribute) and inner.attr in SHAPE:
            free.add(id(inner.value))
        elif isinstance(inner, ast.Call):
            found = module_call(inner)
            if called(inner) == "len" or found[1] in SHAPE_CALLS:
                free.update(map(id, inner.args))
    return free


def shows(function: str, call: ast.Call) -> bool:
    """Whether a call of a function may return its first argument, or a view of it."""
    return function in _PARTS or facts.shows(function, len(call.args) + len(call.keywords))


class Memory:
    """What is known of the arrays of functions that share their names.

    Parameters
    ----------
    codes
        The functions.
    summaries
        The summaries of the functions that they call.
    cotangents
        The names of cotangents, which do not alias any other arrays.
    """

    def __init__(
        self, codes: list[Code], summaries: dict[str, Summary], cotangents: Cotangents
    ) -> None:
        self.summaries = summaries
        self.bars = cotangents.names
        self.arrays: set[str] = {name for code in codes for name in code.arrays}
        self.numbers = {name for code in codes for name in code.numbers}
        suffix = cotangents.suffix
        self.numbers |= {bar for bar in self.bars if bar.removesuffix(suffix) in self.numbers}
        self._parent: dict[str, str] = {}
        self._choosing: list[set[str]] = []
        self._made: dict[str, list[ast.expr]] = {}  # what is assigned to each name
        for code in codes:
            for target, value in code.pairs:
                self._made.setdefault(target, []).append(value)
        self._find_arrays(codes)
        for code in codes:
            for statement in code.statements:
                if isinstance(statement, ast.Assign):
                    self._assign(statement.targets[0], statement.value)

    def add_arrays(self, names: Iterable[str]) -> None:
        """Note names that are used as arrays, except numbers by their type."""
        self.arrays.update(name for name in names if name not in self.numbers)

    def of(self, name: str) -> str:
        """Return the representative of the alias class of an array."""
        while name in self._parent:
            name = self._parent[name]
        return name

    def _unite(self, names: Iterable[str]) -> None:
        arrays = [n for n in names if n in self.arrays]
        for group in (
            [n for n in arrays if n in self.bars],
            [n for n in arrays if n not in self.bars],
        ):
            for other in group[1:]:
                one, two = self.of(group[0]), self.of(other)
                if one != two:
                    self._parent[two] = one

    def _find_arrays(self, codes: list[Code]) -> None:
        for code in codes:
            for node in code.uses:
                self._evidence(node)
        pairs = [pair for code in codes for pair in code.pairs]
        self.arrays -= MODULES | {"tape", "top"}
        tuples = self._tuples_of_numbers(self.arrays)
        self.arrays -= tuples
        self._follow(pairs)
        for names in self._choosing:
            if self.arrays.isdisjoint(names):
                self.add_arrays(names)
        self.arrays |= tuples - self._tuples_of_numbers(tuples)
        self._follow(pairs)

    def _tuples_of_numbers(self, names: set[str]) -> set[str]:
        """Return the names of tuples without arrays, which are also subscripted."""

        def is_one(value: ast.expr, known: set[str]) -> bool:
            if isinstance(value, ast.Subscript):
                value = value.value  # items of such tuples are numbers or such tuples
            if isinstance(value, ast.Name):
                return value.id in known
            return isinstance(value, ast.Tuple) and not any(map(self._is_array, value.elts))

        found = {*self._made}
        while left := {n for n in found if not all(is_one(v, found) for v in self._made[n])}:
            found -= left
        return found & names

    def _follow(self, pairs: list[tuple[str, ast.expr]]) -> None:
        """Find further arrays by following assignments in both directions."""
        changed = True
        while changed:
            before = len(self.arrays)
            self.add_arrays({BAR.sub("", name) for name in self.arrays & self.bars})
            for target, value in pairs:
                if target not in self.arrays:
                    if self._is_array(value):
                        self.add_arrays([target])
                if target in self.arrays and (source := _same_kind(value)):
                    self.add_arrays([source])
            changed = len(self.arrays) != before

    def _is_array(self, node: ast.expr) -> bool:
        """Whether the text shows that a value is an array."""
        if isinstance(node, ast.Name):
            return node.id in self.arrays
        if isinstance(node, ast.Subscript):
            parts = self._parts(node.slice)
            return any(isinstance(p, ast.Slice) or self._is_array(p) for p in parts)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return False  # the product of two vectors is a number
            return self._is_array(node.left) or self._is_array(node.right)
        if isinstance(node, ast.Compare):
            return any(map(self._is_array, (node.left, *node.comparators)))
        if isinstance(node, ast.UnaryOp):
            return self._is_array(node.operand)
        if isinstance(node, ast.Attribute) and node.attr in {"T", *_OF_NUMBERS}:
            return self._is_array(node.value)
        if isinstance(node, ast.Call):
            found = module_call(node)
            if found[0].startswith("np"):
                if found[1] in LIKE_ONE:
                    return any(map(self._is_array, node.args[LIKE_ONE[found[1]] :][:1]))
                if found[1] in MAKERS and (found[1] != "where" or len(node.args) < 3):
                    return True
                return found[1] not in _REDUCTIONS and any(map(self._is_array, node.args))
            if isinstance(node.func, ast.Attribute) and node.func.attr in _ARRAY_METHODS:
                return self._is_array(node.func.value)
        return False

    def _parts(self, index: ast.expr) -> list[ast.expr]:
        """Return the parts of a subscript, also if it is a named tuple of indices."""
        made = self._made.get(index.id, []) if isinstance(index, ast.Name) else []
        if len(made) == 1 and isinstance(made[0], ast.Tuple):
            return leaves(made[0])
        if any(module_call(value) in _FINDS for value in made):
            return made
        return leaves(index)

    def _evidence(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.value, ast.Name):
            if not isinstance(node, ast.Attribute) or node.attr not in _OF_NUMBERS:
                self.add_arrays([node.value.id])
        elif isinstance(node, ast.Subscript):
            if module_call(node.value) == ("arrays", "places"):
                # `places` is used only with index arrays, so one of these names is an array
                self._choosing.append(set(names_of(node.slice)))
        elif isinstance(node, ast.Call):
            summary = self.summaries.get(called(node))
            module = module_call(node)
            for position, argument in enumerate(node.args):
                if isinstance(argument, ast.Name) and (
                    called(node) == "len"
                    or (summary is not None and position in summary.arrays)
                    or added_to(module) == position
                    or (module in PUSHES and position == 2)
                ):
                    self.add_arrays([argument.id])

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        summary = self.summaries.get(called(value))
        if summary is not None and isinstance(value, ast.Call):
            self._call(leaves(target), value, summary)
            return
        for one, two in paired(target, value):
            names = names_of(one)
            function = called(two)
            if len(names) > 1 and _makes_several(two):
                continue
            if len(names) > 1 and function and not self.shared(two):
                for places in itertools.combinations(range(len(names)), 2):
                    if not differ(function, len(names), list(places), self.summaries):
                        self._unite([names[place] for place in places])
            elif self.arrays.intersection(names):
                self._unite([*names, *self.shared(two)])

    def _call(self, targets: list[ast.expr], call: ast.Call, summary: Summary) -> None:
        given = {position: self.shared(argument) for position, argument in enumerate(call.args)}
        if summary.results is None:
            return
        if len(targets) != len(summary.results):
            names = list(filter(None, map(name_of, targets)))
            self._unite([*names, *(n for found in given.values() for n in found)])
            return
        groups: dict[str, list[str]] = {}
        for position, kind in summary.classes.items():
            groups.setdefault(kind, []).extend(given.get(position, ()))
        for target, of in zip(targets, summary.results, strict=True):
            if of is not None and isinstance(target, ast.Name):
                self.add_arrays([target.id])
                groups.setdefault(of, []).append(target.id)
        for group in groups.values():
            self._unite(group)

    def shared(self, node: ast.expr) -> list[str]:
        """Return the arrays that a value may share elements with."""
        if isinstance(node, ast.Name):
            return [node.id] if node.id in self.arrays else []
        if isinstance(node, ast.Subscript):
            # indexing by an array copies
            chosen = any(map(self._is_array, self._parts(node.slice)))
            return [] if chosen else self.shared(node.value)
        if isinstance(node, ast.Starred):
            return self.shared(node.value)
        if isinstance(node, ast.Attribute):
            return [] if node.attr in SHAPE else self.shared(node.value)
        if isinstance(node, ast.IfExp):
            return [*self.shared(node.body), *self.shared(node.orelse)]
        if isinstance(node, (ast.Tuple, ast.List)):
            return [n for item in node.elts for n in self.shared(item)]
        if isinstance(node, ast.BoolOp):
            return [n for item in node.values for n in self.shared(item)]
        if not isinstance(node, ast.Call):
            return []
        module = module_call(node)
        if module[0] and not shows(module[1], node):
            return []
        if not module[0] and isinstance(node.func, ast.Attribute):
            if node.func.attr in facts.NEW_METHODS:
                return []
            return [*self.shared(node.func.value), *(n for a in node.args for n in self.shared(a))]
        if not module[0] and called(node) not in _SAME and not makes_named_tuple(node):
            return []
        return [n for argument in node.args for n in self.shared(argument)]

    def written(self, statement: ast.stmt) -> list[str]:
        """Return the arrays whose elements a statement may write, without nested statements."""
        found: list[str] = []
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            given = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in given:
                for leaf in leaves(target):
                    if isinstance(leaf, ast.Subscript):
                        found += self.shared(leaf.value)
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                found += self.shared(statement.target)
            found += self._written_by(statement.value)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            module = module_call(call)
            if called(call) in self.summaries:
                found += self._written_by(call)
            elif not any(n.id in self.bars for n in names_in(call)):
                args = call.args[:1] if module[0] == "arrays" else call.args
                found += [n for a in args for n in self.shared(a)]
                if not module[0] and isinstance(call.func, ast.Attribute):
                    found += self.shared(call.func.value)
        return found

    def _written_by(self, value: ast.expr) -> list[str]:
        summary = self.summaries.get(called(value))
        if summary is None or not isinstance(value, ast.Call):
            return []
        return [
            n
            for position, argument in enumerate(value.args)
            if position in summary.writes
            for n in self.shared(argument)
        ]


def _same_kind(value: ast.expr) -> str:
    """Return the name that a value is or is a copy of, "" for other values."""
    return name_of(value.args[0] if calls(value, [("np", "copy")]) else value)


def _makes_several(value: ast.expr) -> bool:
    """Whether a function of NumPy returns several arrays, which are new and different ones."""
    module, name = module_call(value)
    return isinstance(value, ast.Call) and module.startswith("np") and not shows(name, value)


def differ(function: str, count: int, places: list[int], summaries: dict[str, Summary]) -> bool:
    """Whether some of the `count` results of a function are known to be different arrays."""
    known = _known(function, count, summaries)
    if function not in summaries:  # those that return numbers there describe another function
        known = [s for s in known if s.numbers.isdisjoint(places)]
    return bool(known) and all(_differ(summary, places) for summary in known)


def _known(function: str, count: int, summaries: dict[str, Summary]) -> list[Summary]:
    """Return summaries that may describe a function with `count` results.

    If the function is not in the module, they are those of forward halves that are not called.
    """
    if function in summaries:
        return [summaries[function]]
    forward = {name: s for name, s in summaries.items() if FORWARD.search(name) and not s.is_called}
    named = [s for name, s in forward.items() if FORWARD.sub("", name) == function]
    return named or [s for s in forward.values() if s.results and len(s.results) == count]


def _differ(summary: Summary, places: list[int]) -> bool:
    """Whether some results are different arrays."""
    shared = [place for place in places if place not in summary.own]
    found = [summary.results[place] for place in shared] if summary.results else [None]
    return None not in found and len(set(found)) == len(shared)
