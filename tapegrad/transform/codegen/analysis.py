"""Analyses of a function that run before its derivative is written.

They find which names may refer to elements of the same array, where arrays are written, in which
block every name is defined, and which names carry derivatives.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from numba.core import types

from tapegrad.transform.errors import TransformError
from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import (
    Block,
    Effect,
    FunctionIR,
    If,
    Let,
    Loop,
    Statement,
    Store,
    closure,
    defined,
    leaves_of,
    name,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import is_array, is_container, is_real, may_share
from tapegrad.transform.rules import base as rules
from tapegrad.transform.sharing.holders import Holders


@dataclass
class Scope:
    """A block and its position in the tree of blocks.

    Attributes
    ----------
    local
        Whether its values are still live, as local variables, when the reverse pass reaches it.
    stored
        Names that the forward pass pushes onto the tape at the end of the block.
    is_read
        Whether the reverse pass reads values of a local block.
    parts
        The names of the parts as which complex numbers and tuples are stored on the tape.
    rows
        For a loop whose part of the tape is reserved at its start: the name of the row of each
        number that is stored in an iteration, or in its branches. Branches that exclude each other
        may use the same rows.
    loop
        For a branch that stores numbers in rows of the loop around it: the scope of the loop.
    """

    block: Block
    kind: str
    statement: Statement | None
    parent: Scope | None
    local: bool
    root: int  # position, in the function's body, of the statement it is part of
    own: set[str] = field(default_factory=set)
    stored: list[str] = field(default_factory=list)
    is_read: bool = False
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    loop: Scope | None = None

    @property
    def own_loop(self) -> Loop:
        """The loop that the block is the body of."""
        assert isinstance(self.statement, Loop)
        return self.statement

    def excludes(self, other: Scope) -> bool:
        """Whether no path takes both of two blocks in one iteration of the loops around them."""
        sides = self.sides()
        return any(sides.get(statement, kind) != kind for statement, kind in other.sides().items())

    def sides(self) -> dict[int, str]:
        """Return the side of each branch around the block, by the ids of branches."""
        if self.parent is None:
            return {}
        return {**self.parent.sides(), id(self.statement): self.kind}


class Arrays:
    """Which names may refer to elements of the same array, and where arrays are written."""

    def __init__(self, function: FunctionIR) -> None:
        self.types = function.types
        self.body = function.body
        self._parent: dict[str, str] = {}
        self.stores: dict[str, list[int]] = {}  # root positions of writes, by class
        self._values = Holders(Facts(function.types))
        for statement in walk(function.body):
            for source, target in self.edges(statement):
                if may_share(self.types.get(source)) and may_share(self.types.get(target)):
                    self.unite([target, source])
        for position, statement in enumerate(function.body):
            for inner in walk([statement]):
                for array in written(inner):
                    self.stores.setdefault(self.of(array), []).append(position)

    def edges(self, statement: Statement) -> Iterator[tuple[str, str]]:
        """Yield the names that arrays, or parts of them, may go from and to in a statement."""
        groups: Iterable[Sequence[str]] = ()
        if isinstance(statement, If):
            for phi in statement.phis:
                yield from ((n, phi.target) for v in (phi.then, phi.orelse) for n in names_in(v))
        elif isinstance(statement, Loop):
            for c in statement.carried:
                sources = [*names_in(c.init), *names_in(c.next)]
                yield from ((n, target) for target in (c.phi, c.out) for n in sources)
        elif isinstance(statement, Let) and statement.rule is not None:
            if statement.rule.base is not None:
                yield statement.rule.base, statement.target
            else:
                groups = self.joined_by(statement)
        elif isinstance(statement, Effect):
            groups = [names_in(statement.statement)]
        elif isinstance(statement, Store) and not is_array(self.types.get(statement.array)):
            groups = [[statement.array, *names_in(statement.value)]]
        for group in groups:
            yield from ((source, target) for target, source in itertools.permutations(group, 2))

    def joined_by(self, let: Let) -> list[list[str]]:
        """Return the groups of names that may share elements after an operation."""
        rule, made = let.rule, defined(let)
        kinds = [self.types.get(n) for n in made]
        if hasattr(rule, "shared"):
            return rule.shared(let)
        if rule.base is not None:
            return [[let.target, rule.base]]
        arrays = [kind for kind in kinds if not isinstance(kind, (types.Number, types.Boolean))]
        if not arrays or (rule.fresh and all(map(is_array, arrays))):
            return []
        held = self._values.holders(let.expr)
        # arrays that functions without a rule make are not taken for new: copies of them are kept
        is_function = isinstance(let.expr, ast.Call) and isinstance(let.expr.func, ast.Name)
        return [[*made, *sorted(held)]] if held or is_function else []

    def of(self, array: str) -> str:
        """Return the representative of the alias class of an array."""
        while array in self._parent:
            array = self._parent[array]
        return array

    def unite(self, arrays: list[str]) -> None:
        """Merge the alias classes of arrays."""
        for one in arrays[1:]:
            first, second = self.of(arrays[0]), self.of(one)
            if first != second:
                self._parent[second] = first
                merged = self.stores.pop(second, []) + self.stores.get(first, [])
                if merged:
                    self.stores[first] = merged

    def names(self) -> dict[str, list[str]]:
        """Return all arrays, grouped by the representative of their alias class."""
        found: dict[str, list[str]] = {}
        for identifier, kind in self.types.items():
            if is_array(kind):
                found.setdefault(self.of(identifier), []).append(identifier)
        return found

    def written_parts(self, arrays: Iterable[str]) -> set[int]:
        """Return the positions of those of some arrays whose elements the function may write.

        A name that is later bound to a new array is in the alias class of what is written into
        that array; what it had before is not written.
        """
        before: dict[str, set[str]] = {}
        stored: set[str] = set()
        for statement in walk(self.body):
            stored.update(written(statement))
            for source, target in self.edges(statement):
                if may_share(self.types.get(source)) and may_share(self.types.get(target)):
                    before.setdefault(target, set()).add(source)
        found = closure(stored, before)
        return {k for k, n in enumerate(arrays) if n in found and may_share(self.types.get(n))}

    def is_stored(self, array: str) -> bool:
        """Whether an array is written anywhere."""
        return self.of(array) in self.stores

    def store_line(self, block: Block, array: str) -> int:
        """Return the line of the first statement that writes an array."""
        return next(
            statement.line
            for statement in walk(block)
            if any(self.of(n) == self.of(array) for n in written(statement))
        )

    def keeps(self, array: str, root: int) -> bool:
        """Whether an array is not written from a statement of the body onwards."""
        positions = self.stores.get(self.of(array))
        return not positions or max(positions) < root


def written(statement: Statement) -> list[str]:
    """Return the arrays that a statement itself writes."""
    if isinstance(statement, Store):
        return [statement.array]
    return statement.rule.written() if isinstance(statement, Let) else []


class Activity:
    """Which names carry derivatives, from some inputs to some outputs."""

    def __init__(
        self, function: FunctionIR, arrays: Arrays, inputs: Iterable[str], outputs: Iterable[str]
    ) -> None:
        self.types = function.types
        self.arrays = arrays
        self.forward: dict[str, set[str]] = {}
        self.backward: dict[str, set[str]] = {}
        for statement in walk(function.body):
            self._edges(statement)
        varied = self._reach(inputs, self.forward)
        useful = self._reach(outputs, self.backward)
        self.varied, self.useful = varied, useful
        self.nodes = varied & useful

    def is_varied(self, name: str) -> bool:
        """Whether a name depends on the inputs."""
        return self.node(name) in self.varied

    def node(self, name: str) -> str:
        return self.arrays.of(name) if may_share(self.types.get(name)) else name

    def _edge(self, source: Any, target: str) -> None:
        if isinstance(source, ast.Name):
            source = source.id
        if isinstance(source, str) and self._carries(source) and self._carries(target):
            one, two = self.node(source), self.node(target)
            self.forward.setdefault(one, set()).add(two)
            self.backward.setdefault(two, set()).add(one)

    def _carries(self, name: str) -> bool:
        """Whether values of a name have derivatives, or hold arrays that may have them."""
        kind = self.types.get(name, types.none)
        return is_real(kind) or is_container(kind)

    def _edges(self, statement: Statement) -> None:
        if isinstance(statement, Let):
            inputs = statement.rule.inputs()
            for target in defined(statement):
                for source in inputs:
                    self._edge(source, target)
            for array in written(statement):
                for source in inputs:
                    self._edge(source, array)
        elif isinstance(statement, Store):
            self._edge(statement.value, statement.array)
        elif isinstance(statement, If):
            for phi in statement.phis:
                self._edge(phi.then, phi.target)
                self._edge(phi.orelse, phi.target)
        elif isinstance(statement, Loop):
            for c in statement.carried:
                self._edge(c.init, c.phi)
                self._edge(c.next, c.phi)
                self._edge(c.phi, c.out)

    def _reach(self, names: Iterable[str], edges: dict[str, set[str]]) -> set[str]:
        return closure({self.node(name) for name in names}, edges)

    def following(self, names: Iterable[str]) -> set[str]:
        """Return the nodes of names and of everything that is computed from them."""
        return self._reach(names, self.forward)

    def preceding(self, names: Iterable[str]) -> set[str]:
        """Return the nodes of names and of everything that they are computed from."""
        return self._reach(names, self.backward)

    def __contains__(self, name: str) -> bool:
        if not is_real(self.types.get(name, types.none)):
            return False
        return self.node(name) in self.nodes


def unused_at_times(function: FunctionIR, results: Iterable[str]) -> set[str]:
    """Return the values whose cotangent may be zero because nothing uses them.

    These are the values that reach a selection, an array, a branch that may not be taken, a call
    that may not use them, or one of `results`.
    """
    sources: dict[str, set[str]] = {}
    known = {n for s in walk(function.body) if not _is_of_shape(s) for n in reads(s)}
    known.update(n for leaf in leaves_of(function.result) for n in names_in(leaf))
    found = {*results, *function.types.keys() - known}

    def reach(target: str, atoms: Iterable[Any], own: set[str] | None) -> None:
        """Note what is used wherever the target is, if the target is computed where it is."""
        for source in (n for atom in atoms for n in names_in(atom)):
            if own is None or source in own:
                sources.setdefault(target, set()).add(source)
            else:
                found.add(source)

    def visit(block: Block, own: set[str] | None) -> None:
        """Visit a block; `own` are the names of the innermost branch around it, if there is one."""
        for statement in block:
            made = [] if _is_of_shape(statement) else defined(statement)
            if isinstance(statement, Let) and made:
                used = _always_used(statement)
                found.update(n for n in names_in(statement.expr) if n not in used)
                for target in made:
                    reach(target, map(name, used), own)
            elif isinstance(statement, Loop):
                if own is not None:
                    own.update(c.phi for c in statement.carried)
                visit(statement.test, own)
                visit(statement.body, own)
                for c in statement.carried:
                    reach(c.phi, [c.init, c.next], own)
                    reach(c.out, [name(c.phi)], own)
            elif isinstance(statement, If):
                for side, branch in (("then", statement.then), ("orelse", statement.orelse)):
                    inside: set[str] = set()
                    visit(branch, inside)
                    for phi in statement.phis:
                        reach(phi.target, [getattr(phi, side)], inside)
            elif isinstance(statement, Store):
                if statement.every:
                    reach(statement.array, [statement.value], own)
                    continue
                found.update(names_in(statement.value))
                if not statement.op:
                    found.add(statement.array)  # what made it before may be overwritten
            if own is not None:
                own.update(made)

    visit(function.body, None)
    return closure(found, sources)


def _is_of_shape(statement: Statement) -> bool:
    """Whether a statement reads nothing but the shape of an array."""
    match statement:
        case Let(expr=ast.Attribute(_, "shape" | "size" | "ndim")):
            return True
    return False


def _always_used(let: Let) -> list[str]:
    """Return the names that are used wherever the result is."""
    rule = let.rule
    op = getattr(rule, "op", None)
    if rule.is_passing or (op is not None and not op.chooses):
        return names_in(let.expr)
    used: list[str] = rule.always_used()
    return used


def undefined_at_times(function: FunctionIR) -> set[str]:
    """Return the values that may be infinite or nan where they are not used.

    These are results of calls and of functions that overflow or are not defined everywhere, and
    everything computed from them.
    """
    found = set()
    users: dict[str, set[str]] = {}

    def reach(target: str, values: Iterable[Any]) -> None:
        for source in (n for value in values for n in names_in(value)):
            users.setdefault(source, set()).add(target)

    for statement in walk(function.body):
        if isinstance(statement, Let):
            op = getattr(statement.rule, "op", None)
            undefined = op is not None and rules.may_be_undefined(op, statement.rule.operands)
            for target in defined(statement):
                if undefined or statement.rule.calls:
                    found.add(target)
                reach(target, [statement.expr])
        elif isinstance(statement, Store):
            reach(statement.array, [statement.value])
        elif isinstance(statement, Loop):
            for c in statement.carried:
                reach(c.phi, [c.init, c.next])
                reach(c.out, [ast.Name(c.phi)])
        elif isinstance(statement, If):
            for p in statement.phis:
                reach(p.target, [p.then, p.orelse])
    return closure(found, users)


@dataclass
class Scopes:
    """The scopes of blocks (by id) and names, definitions of names, and positions of statements."""

    blocks: dict[int, Scope] = field(default_factory=dict)
    scope_of: dict[str, Scope] = field(default_factory=dict)
    makers: dict[str, Any] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)


def scopes(function: FunctionIR, split: bool) -> Scopes:
    """Return the scopes of a function; with `split`, its reverse pass is a separate function."""
    result = Scopes()
    found, scope_of = result.blocks, result.scope_of

    def visit(
        block: Block,
        kind: str,
        statement: Statement | None,
        parent: Scope | None,
        local: bool,
        root: int,
    ) -> Scope:
        scope = Scope(block, kind, statement, parent, local, root)
        found[id(block)] = scope
        for position, inner in enumerate(block):
            place = position if parent is None else root
            result.roots[id(inner)] = place
            for target in defined(inner):
                result.makers[target] = inner
                scope.own.add(target)
                scope_of[target] = scope
            if isinstance(inner, If):
                visit(inner.then, "then", inner, scope, local, place)
                visit(inner.orelse, "else", inner, scope, local, place)
            elif isinstance(inner, Loop):
                visit(inner.test, "test", inner, scope, False, place)
                body = visit(inner.body, "loop", inner, scope, False, place)
                going = [c.phi for c in inner.carried]
                if inner.index is not None:
                    going.append(inner.index)
                for target in going:
                    result.makers[target] = inner
                    body.own.add(target)
                    scope_of[target] = body
        return scope

    top = visit(function.body, "function", None, None, not split, 0)
    for param in function.params:
        scope_of.setdefault(param, top)
    return result


def unused_suffix(suffix: str, names: Iterable[str]) -> str:
    """Return a variant of `suffix` that no name ends with."""
    number, found = 1, suffix
    names = list(names)
    while any(one.endswith(found) for one in names):
        number += 1
        found = f"{suffix}{number}"
    return found


def lost_by_rounding(function: FunctionIR, activity: Activity) -> list[str]:
    """Return the messages about values with a derivative that are rounded to some decimals."""
    source = function.source
    if "_about" in source.function.__globals__:
        return []  # generated code, which was made from code that was looked at
    found = []
    for statement in walk(function.body):
        if not isinstance(statement, Let) or not getattr(statement.rule, "rounds", ""):
            continue
        is_used = activity.node(statement.target) in activity.useful
        if is_used and activity.is_varied(statement.rule.rounds):
            found.append(
                f"line {statement.line} of {source.name} rounds a number to some decimals, so that "
                "its derivative is 0. To differentiate as if x were not rounded, write "
                "x + (round(y, n) - y) with y = tg.stop_gradient(x); if 0 is meant, round y\n"
                f'  File "{source.filename}", line {statement.line}, in {source.name}\n'
                f"    {source.text_of(statement.line)}"
            )
    return found


def check_known(function: FunctionIR, activity: Activity) -> None:
    """Refuse operations that depend on differentiated arguments and have no rule."""
    for statement in walk(function.body):
        if not isinstance(statement, Let):
            continue
        rule = statement.rule
        error = getattr(rule, "error", None)
        if error is None and not isinstance(rule, rules.Unknown):
            continue
        arrays = [n for n in defined(statement) if is_array(function.types.get(n))]
        # several arrays may alias: what is written to the first is read from the second
        several = sum(n in activity for n in arrays) > 1
        # the result is a view of an array that depends on the arguments: its readers are unknown
        shown = getattr(rule, "shows", False) and any(map(activity.is_varied, arrays))
        if several or shown or any(map(activity.is_varied, rule.inputs())):
            if error is not None:
                raise error
            raise TransformError(
                f"cannot differentiate {rule.what}; use what is understood (docs/njit.md), give it "
                "a rule (tg.njit, defvjp and defjvp), or pass it through tg.stop_gradient",
                function.source,
                statement.line,
            )
    classes = activity.arrays
    for identifier, kind in function.types.items():
        if is_container(kind) and activity.is_varied(identifier) and classes.is_stored(identifier):
            raise TransformError(
                "cannot differentiate what is written into an array that a list, a dict, a record "
                "or an instance of a class holds; pass the array as an argument, or use one array "
                "with an axis more",
                function.source,
                classes.store_line(function.body, identifier),
            )
