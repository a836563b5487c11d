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
    method_of,
    module_call,
    name_of,
    names_among,
    names_in,
    names_of,
    nodes_of,
)
from tapegrad.transform.verifier.cotangents import Cotangents
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
        match inner:
            case ast.Attribute(base, name) if name in SHAPE:
                free.add(id(base))
            case ast.Call(_, given):
                if called(inner) == "len" or module_call(inner)[1] in SHAPE_CALLS:
                    free.update(map(id, given))
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
        self.cotangents, self.bars = cotangents, cotangents.names
        self.arrays: set[str] = {name for code in codes for name in code.arrays}
        self.numbers = {name for code in codes for name in code.numbers}
        self.numbers |= {bar for bar in self.bars if cotangents.value_of(bar) in self.numbers}
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
            match value:  # items of such tuples are numbers or such tuples
                case ast.Name(id=name) | ast.Subscript(ast.Name(id=name)):
                    return name in known
                case ast.Tuple(items) | ast.Subscript(ast.Tuple(items)):
                    return not any(map(self._is_array, items))
            return False

        found = {*self._made}
        while left := {n for n in found if not all(is_one(v, found) for v in self._made[n])}:
            found -= left
        return found & names

    def _follow(self, pairs: list[tuple[str, ast.expr]]) -> None:
        """Find further arrays by following assignments in both directions."""
        changed = True
        while changed:
            before = len(self.arrays)
            self.add_arrays(set(map(self.cotangents.value_of, self.arrays & self.bars)))
            for target, value in pairs:
                if target not in self.arrays:
                    if self._is_array(value):
                        self.add_arrays([target])
                if target in self.arrays and (source := _same_kind(value)):
                    self.add_arrays([source])
            changed = len(self.arrays) != before

    def _is_array(self, node: ast.expr) -> bool:
        """Whether the text shows that a value is an array."""
        match node:
            case ast.Name(id=name):
                return name in self.arrays
            case ast.Subscript(_, index):
                parts = self._parts(index)
                return any(isinstance(p, ast.Slice) or self._is_array(p) for p in parts)
            case ast.BinOp(op=ast.MatMult()):
                return False  # the product of two vectors is a number
            case ast.BinOp(left, _, right):
                return self._is_array(left) or self._is_array(right)
            case ast.Compare(left, _, others):
                return any(map(self._is_array, (left, *others)))
            case ast.UnaryOp(_, operand):
                return self._is_array(operand)
            case ast.Attribute(base, name) if name in {"T", *_OF_NUMBERS}:
                return self._is_array(base)
            case ast.Call(ast.Attribute(base, method), given):
                module, function = module_call(node)
                if not module.startswith("np"):
                    return method in _ARRAY_METHODS and self._is_array(base)
                if function in LIKE_ONE:
                    return any(map(self._is_array, given[LIKE_ONE[function] :][:1]))
                if function in MAKERS and (function != "where" or len(given) < 3):
                    return True
                return function not in _REDUCTIONS and any(map(self._is_array, given))
        return False

    def _parts(self, index: ast.expr) -> list[ast.expr]:
        """Return the parts of a subscript, also if it is a named tuple of indices."""
        made = self._made.get(name_of(index), [])
        if len(made) == 1 and isinstance(made[0], ast.Tuple):
            return leaves(made[0])
        if any(module_call(value) in _FINDS for value in made):
            return made
        return leaves(index)

    def _evidence(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(ast.Name(), name) if name in _OF_NUMBERS:
                pass
            case ast.Subscript(ast.Name(id=array)) | ast.Attribute(ast.Name(id=array)):
                self.add_arrays([array])
            case ast.Subscript(base, index):
                if module_call(base) == ("arrays", "places"):
                    # `places` is used only with index arrays, so one of these names is an array
                    self._choosing.append(set(names_of(index)))
            case ast.Call(_, given):
                summary = self.summaries.get(called(node))
                module = module_call(node)
                for position, name in enumerate(map(name_of, given)):
                    if name and (
                        called(node) == "len"
                        or (summary is not None and position in summary.arrays)
                        or added_to(module) == position
                        or (module in PUSHES and position == 2)
                    ):
                        self.add_arrays([name])

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        summary = self.summaries.get(called(value))
        if summary is not None and isinstance(value, ast.Call):
            self._call(leaves(target), value, summary)
            return
        for one, two in paired(target, value):
            names = names_of(one)
            function = called(two)
            if len(names) > 1 and makes_new(two):
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
            self._unite([*names_among(targets), *(n for found in given.values() for n in found)])
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
        parts: list[ast.expr] = []
        match node:
            case ast.Name(id=name):
                return [name] if name in self.arrays else []
            case ast.Subscript(base, index):
                # indexing by an array copies
                parts = [] if any(map(self._is_array, self._parts(index))) else [base]
            case ast.Attribute(base, name):
                parts = [] if name in SHAPE else [base]
            case ast.Starred(base):
                parts = [base]
            case ast.IfExp(_, one, other):
                parts = [one, other]
            case ast.Tuple(items) | ast.List(items) | ast.BoolOp(_, items):
                parts = items
            case ast.Call(_, given) if found := method_of(node):
                parts = [] if found[1] in facts.NEW_METHODS else [found[0], *given]
            case ast.Call(_, given):
                module, name = module_call(node)
                is_same = called(node) in _SAME or makes_named_tuple(node)
                parts = given if (shows(name, node) if module else is_same) else []
        return [array for part in parts for array in self.shared(part)]

    def written(self, statement: ast.stmt) -> list[str]:
        """Return the arrays whose elements a statement may write, without nested statements."""
        parts: list[ast.expr] = []
        match statement:
            case ast.Assign(targets, value):
                stored = [leaf for target in targets for leaf in leaves(target)]
                parts = [leaf.value for leaf in stored if isinstance(leaf, ast.Subscript)]
            case ast.AugAssign(ast.Subscript(array) | array, _, value):
                parts = [array]
            case ast.Expr(ast.Call(_, given) as value):
                is_known = called(value) in self.summaries
                if not is_known and not any(n.id in self.bars for n in names_in(value)):
                    parts = given[:1] if module_call(value)[0] == "arrays" else given
                    if found := method_of(value):
                        parts = [*parts, found[0]]
            case _:
                return []
        shared = [array for part in parts for array in self.shared(part)]
        return [*shared, *self._written_by(value)]

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


def makes_new(value: ast.expr) -> bool:
    """Whether a function of NumPy is called whose results are new and different arrays."""
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
    forward = [s for s in summaries.values() if s.purpose.is_forward and not s.is_called]
    named = [s for s in forward if s.purpose.of == function]
    return named or [s for s in forward if s.results and len(s.results) == count]


def _differ(summary: Summary, places: list[int]) -> bool:
    """Whether some results are different arrays."""
    shared = [place for place in places if place not in summary.own]
    found = [summary.results[place] for place in shared] if summary.results else [None]
    return None not in found and len(set(found)) == len(shared)
