"""Where the arrays of a function may go: who may still hold one after a statement."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable

import numpy as np
from numba import typeof

from tapegrad.transform.builder import function_of
from tapegrad.transform.facts import NEW_METHODS
from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import FunctionIR, closure
from tapegrad.transform.names import known_as
from tapegrad.transform.sharing.calls import VIEWS
from tapegrad.transform.sharing.holders import (
    OUTSIDE,
    Holders,
    Holding,
    HoldingOf,
    others_of,
    taken,
)
from tapegrad.transform.syntax import PURE, leaves, nodes_in, subtree, text_of

_PASSING = frozenset(["enumerate", "list", "reversed", "tuple", "zip"])
_IN_PLACE = frozenset(["fill", "sort"])


class Flow(Holders):
    """Where the arrays of a function may go.

    Parameters
    ----------
    tree
        The function.
    facts
        What is known of its names.
    holding_of
        Returns what a function that is called does, None for functions of the user.
    """

    def __init__(self, tree: ast.FunctionDef, facts: Facts, holding_of: HoldingOf) -> None:
        super().__init__(facts, holding_of)
        self.tree = tree
        self.kept: set[str] = set()  # names of arrays that something may hold for longer
        self.passed: dict[str, set[str]] = {}  # names, and those that may share elements with them
        self._keepers: set[str] = set()  # names, not of arrays, that such things may have
        self._parameters = {parameter.arg for parameter in tree.args.args}
        self._assigned: set[str] = set()
        for node in subtree(tree):
            if isinstance(node, ast.stmt) and node is not tree:
                self._statement(node)
            elif isinstance(node, ast.Call):
                self._call(node)

    @functools.cached_property
    def held(self) -> set[str]:
        """The names of arrays that something may hold when the function returns."""
        return self.kept | self.returned()

    @functools.cached_property
    def _sources(self) -> dict[str, set[str]]:
        """Names, and those that they may share elements with since they were passed on."""
        found: dict[str, set[str]] = {}
        for source, names in self.passed.items():
            for name in names:
                found.setdefault(name, set()).add(source)
        return found

    @functools.cached_property
    def _inside(self) -> set[str]:
        """The names of arrays that nothing else may hold."""
        return self._assigned - closure(self.kept, self._sources) - self._keepers

    def may_share(self, one: str, other: str) -> bool:
        """Whether two arrays may have elements in common."""
        return bool(self.origins(one) & self.origins(other))

    def are_apart(self, array: str, others: Iterable[str]) -> bool:
        """Whether an array was made by the function, and shares no element with others."""
        found = self.origins(array)
        return OUTSIDE not in found and all(self.origins(n).isdisjoint(found) for n in others)

    def origins(self, name: str) -> set[str]:
        """Return a name and all whose elements it may have, `OUTSIDE` for those made elsewhere."""
        found = closure([name], self._sources)
        return found | {OUTSIDE} if found & self._parameters or self._are_others(found) else found

    def _are_others(self, names: Iterable[str]) -> bool:
        """Whether one of some names, no parameters, may be an array that was made elsewhere.

        What something holds may come back from it.
        """
        return not set(names) - self._parameters <= self._inside

    def holding(self) -> Holding:
        """Return what the function does with its arguments."""
        last = self.tree.body[-1]
        given = [self.reached([parameter.arg]) for parameter in self.tree.args.args]
        results = leaves(last.value) if isinstance(last, ast.Return) and last.value else []
        kept = self.kept if len(list(nodes_in(self.tree, ast.Return))) == 1 else self.held
        return Holding(
            frozenset(k for k, names in enumerate(given) if names & kept),
            tuple(
                frozenset(k for k, names in enumerate(given) if names & self.holders(result))
                for result in results
            ),
            self._are_others(closure(self.returned(), self._sources)),
        )

    def returned(self) -> set[str]:
        """Return the names of arrays that results may hold or share elements with."""
        returns = nodes_in(self.tree, ast.Return)
        return set().union(*(self.holders(node.value) for node in returns if node.value))

    def reached(self, names: Iterable[str]) -> set[str]:
        """Return names and all those that may share elements with them."""
        return closure(names, self.passed)

    def passed_on(self, body: list[ast.stmt], names: set[str]) -> set[str]:
        """Return the names that may refer to arrays after statements, from those before them."""
        held = set(names)
        for statement in body:
            if isinstance(statement, ast.Assign):
                pairs = self._pairs(statement)
                new = self._given(pairs, held)
                held -= {text_of(part) for target, _ in pairs for part in leaves(target)}
                held |= new
            else:
                held |= self._within(statement, held)
        return held

    def _given(self, pairs: list[tuple[ast.expr, ast.expr]], held: set[str]) -> set[str]:
        """Return the names in targets that are given values which may hold one of some arrays."""
        targets = [target for target, value in pairs if self.holders(value) & held]
        return set().union(*map(self._names, targets))

    def _within(self, statement: ast.stmt, names: set[str]) -> set[str]:
        """Return the names that may refer to arrays after a statement with blocks."""
        pairs: list[tuple[ast.expr, ast.expr]] = []
        for node in subtree(statement):
            match node:
                case ast.Assign():
                    pairs += self._pairs(node)
                case ast.For(target, over):
                    pairs.append((target, over))
        held: set[str] = set()
        found = set(names)
        while found != held:
            held = set(found)
            found |= self._given(pairs, held)
        return held

    # -- statements ---------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                for target, value in self._pairs(node):
                    self._assign(target, self.holders(value))
            case ast.For(target, over):
                self._assign(target, self.holders(over))
            case ast.AugAssign(ast.Name(id=name) | ast.Subscript(ast.Name(id=name))) if (
                self._is_number(name) or self._is_array(name)
            ):
                pass
            case ast.Expr() | ast.If() | ast.While() | ast.Return():
                pass
            case ast.Pass() | ast.Break() | ast.Raise():
                pass
            case _:
                self._keep(node, self._names(node))

    def _keep(self, node: ast.AST, names: set[str]) -> None:
        """Note that something in a part of the function may hold arrays."""
        self.kept |= names
        if names:
            self._keepers |= {name for name in self._names(node) if not self._is_array(name)}

    def _held(self, node: ast.Call, arguments: Iterable[ast.expr]) -> None:
        """Note that something may hold arguments of a call."""
        self._keep(node, set().union(*map(self.holders, arguments)))

    def _pairs(self, node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
        """Return targets with the values that they are assigned."""
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                if len(values) == len(targets):
                    return list(zip(targets, values, strict=True))
            case ast.Assign([ast.Tuple() as target], ast.Call() as call):
                found, parts = self.known(call), leaves(target)
                if found is not None and len(found.results) == len(parts):
                    given: list[ast.expr] = [
                        ast.Tuple([*taken(call, held), *others_of(found)], ast.Load())
                        for held in found.results
                    ]
                    return list(zip(parts, given, strict=True))
        names: list[ast.expr] = [part for part in node.targets if isinstance(part, ast.Name)]
        return [
            *((target, node.value) for target in node.targets),
            *itertools.permutations(names, 2),  # they have the same array
        ]

    def _assign(self, target: ast.expr, sources: set[str]) -> None:
        for part in leaves(target):
            match part:
                case ast.Name(id=name):
                    self._assigned.add(name)
                    if not self._is_number(name):
                        for source in sources:
                            self.passed.setdefault(source, set()).add(name)
                case ast.Subscript(array) if self.is_array(array):
                    pass
                case _:
                    self._keep(part, sources)

    def _call(self, node: ast.Call) -> None:
        """Note the arrays that something may hold after a call, besides its result."""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        module, _, name = text_of(node.func).rpartition(".")
        if module in ("np", "np.linalg", "math", "arrays", "ops", "scalar_ops"):
            return
        if module == "runtime":
            if name.startswith("push_") and not name.endswith("_elements"):
                self._held(node, arguments)
            return
        if (found := self.known(node)) is not None:
            if node.keywords:
                self._keep(node, self._names(node))
            self._held(node, taken(node, found.kept))
        elif isinstance(node.func, ast.Attribute) and module != "operator":
            is_known = name in NEW_METHODS | VIEWS | _IN_PLACE
            if not is_known or not self.is_part(node.func.value):
                self._held(node, arguments)
        elif name not in PURE | _PASSING and not all(map(self._is_plain, arguments)):
            self._held(node, arguments)


def flow_of(function: FunctionIR) -> Flow:
    """Return where the arrays of a function in normal form may go, before it has rules."""
    kinds = dict(function.types)
    parts: dict[str, ast.expr] = {}
    for text, value in function.statics.items():
        if isinstance(value, (bool, int, float, complex, np.generic)):
            parts[text] = ast.Constant(0)
        elif isinstance(value, np.ndarray) and "." not in text:
            kinds[text] = typeof(value)
        else:
            parts[text] = ast.Name(known_as(text, value) or OUTSIDE)
    return Flow(function_of(function, "function", parts), Facts(kinds), lambda name: None)
