"""Variables that hold a value or None become a value and a flag.

If a branch or an iteration sets ``best = None`` to a number, numba types it as an optional number.
None has no derivative, so such a name becomes two: one for the value, which may be undefined, and a
flag, which ``best is None`` tests. As in numba, reading a missing value raises an error.
"""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import (
    Atom,
    Block,
    Carried,
    Effect,
    FunctionIR,
    If,
    Let,
    Loop,
    Phi,
    Statement,
    constant,
    leaf_names,
    name,
    names_in,
    names_of,
    reads,
    stem_of,
    take,
)
from tapegrad.transform.kinds import holds_real
from tapegrad.transform.syntax import name_of


def split(function: FunctionIR) -> None:
    """Split the optional values of a typed function."""
    optional = {
        identifier
        for identifier, kind in function.types.items()
        if isinstance(kind, types.Optional) and holds_real(kind.type)
    }
    if optional:
        _Split(function, optional).run()


class _Split:
    def __init__(self, function: FunctionIR, optional: set[str]) -> None:
        self.function = function
        self.optional = optional
        self.taken = names_of(function).union(function.statics)
        self.flags: dict[str, Atom] = {}  # by the names of the values
        self.asked: dict[str, tuple[str, bool]] = {}  # tests: the value, if true is given
        self.line = 0

    def run(self) -> None:
        function = self.function
        for param in function.params:
            if param in self.optional or f"arg.{param}" in self.optional:
                raise self.refuse(param, "pass a value")
        function.body[:] = self.block(function.body, set(), [])
        self.line = function.source.tree.lineno
        self.check(
            names_in(function.result),
            set(),
            function.body,
            f"{function.name} returns None here, which has no derivative; return a value",
        )
        for identifier in self.optional:
            kind = function.types[identifier]
            function.types[identifier] = getattr(kind, "type", kind)

    def refuse(self, identifier: str, way_out: str) -> TransformError:
        what = f"cannot differentiate {stem_of(identifier)}, which is a value or None; {way_out}"
        return TransformError(what, self.function.source, self.line)

    # -- flags ----------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """Return an unused name for a boolean."""
        found = take(stem, self.taken)
        self.function.types[found] = types.boolean
        return found

    def new_flag(self, identifier: str) -> str:
        """Return a new name for the flag of a value."""
        found = self.fresh(f"{identifier}_given")
        self.flags[identifier] = name(found)
        return found

    def pair(self, atom: Atom | None) -> tuple[Atom | None, Atom | None]:
        """Return the value and the flag of an atom; both are None if it is undefined."""
        match atom:
            case None:
                return None, None
            case ast.Constant(None):
                return None, constant(False)
            case ast.Name(id=value) if value in self.optional:
                if value not in self.flags:
                    raise self.refuse(value, "let the function that returns it return a flag too")
                return atom, self.flags[value]
        return atom, constant(True)

    def is_none(self, node: ast.expr) -> bool:
        """Whether an expression is always None."""
        match node:
            case ast.Name(id=value):
                return self.function.types.get(value) == types.none
            case ast.Constant(None):
                return True
        return False

    # -- statements -----------------------------------------------------------------------------

    def block(self, block: Block, given: set[str], last: list[Any]) -> Block:
        """Return a block with flags; `given` are the values known to be present.

        `last` are the values read at its end.
        """
        found: Block = []
        for statement in block:
            self.line = getattr(statement, "line", self.line) or self.line
            self.statement(statement, given, found)
        self.check([n for value in last for n in names_in(value)], given, found)
        return found

    def statement(self, statement: Statement, given: set[str], found: Block) -> None:
        if isinstance(statement, Let):
            self.let(statement, given, found)
        elif isinstance(statement, If):
            self.branch(statement, given, found)
        elif isinstance(statement, Loop):
            self.loop(statement, given, found)
        else:
            self.check(reads(statement), given, found)
            found.append(statement)

    def check(self, names: list[str], given: set[str], found: Block, what: str = "") -> None:
        """Append code that raises an error if a value that is read is None."""
        for identifier in dict.fromkeys(names):
            if identifier not in self.optional or identifier in given:
                continue
            given.add(identifier)
            flag = self.flags.get(identifier)
            if flag is None:
                continue  # the result of a call, in which None raises an error
            text = what or f"{stem_of(identifier)} is None here, where a value is needed"
            error = ast.Call(name("TypeError"), [constant(text)], [])
            raised = Effect(ast.Raise(error, None), self.line)
            absent = self.fresh(f"{identifier}_absent")
            found.append(Let(absent, ast.UnaryOp(ast.Not(), flag), self.line))
            found.append(If(name(absent), [raised], [], [], self.line))

    def let(self, let: Let, given: set[str], found: Block) -> None:
        expr = let.expr
        match expr:
            case ast.Compare(left, [ast.Is() | ast.IsNot() as asked], [right]):
                values = [n for n in leaf_names(left) + leaf_names(right) if n in self.optional]
                if values:
                    if not (self.is_none(left) or self.is_none(right)):
                        raise self.refuse(values[0], "compare it with None only")
                    _, flag = self.pair(name(values[0]))
                    assert flag is not None
                    is_given = isinstance(asked, ast.IsNot)
                    self.asked[let.target] = values[0], is_given
                    let.expr = flag if is_given else ast.UnaryOp(ast.Not(), flag)
                    found.append(let)
                    return
        self.check(reads(let), given, found)
        if let.target in self.optional and not isinstance(expr, ast.Call):
            raise self.refuse(let.target, "have a number, and a flag that says whether it counts")
        found.append(let)

    def branch(self, statement: If, given: set[str], found: Block) -> None:
        self.check(names_in(statement.cond), given, found)
        asked = self.asked.get(name_of(statement.cond))
        for side, truth in (("then", True), ("orelse", False)):
            known = {asked[0]} if asked is not None and asked[1] == truth else set()
            inner = given | known
            values = [getattr(p, side) for p in statement.phis if p.target not in self.optional]
            setattr(statement, side, self.block(getattr(statement, side), inner, values))
        phis: list[Phi] = []
        for phi in statement.phis:
            if phi.target not in self.optional:
                phis.append(phi)
                continue
            one, one_flag = self.pair(phi.then)
            two, two_flag = self.pair(phi.orelse)
            phis.append(Phi(phi.target, one, two, phi.unread))
            phis.append(Phi(self.new_flag(phi.target), one_flag, two_flag))
        statement.phis = phis
        found.append(statement)

    def loop(self, loop: Loop, given: set[str], found: Block) -> None:
        plain = [c for c in loop.carried if c.phi not in self.optional]
        before = [*(loop.bounds or ()), *(c.init for c in plain)]
        self.check([n for value in before for n in names_in(value)], given, found)
        starts: list[tuple[Carried, Atom | None, str]] = []
        for entry in loop.carried:
            if entry.phi in self.optional:
                entry.init, flag = self.pair(entry.init)
                starts.append((entry, flag, self.new_flag(entry.phi)))
        inner = set(given)
        loop.test = self.block(loop.test, inner, [loop.cond])
        loop.body = self.block(loop.body, inner, [loop.exit, *(c.next for c in plain)])
        for entry, start, phi in starts:
            entry.next, following = self.pair(entry.next)
            self.optional.add(entry.out)
            self.function.types[entry.out] = self.function.types[entry.phi]
            out = self.new_flag(entry.out)
            loop.carried.append(Carried(phi, start, following, out))
        found.append(loop)
