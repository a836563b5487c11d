"""The names of cotangents in generated code."""

from __future__ import annotations

import ast

from tapegrad.transform.ir import Role
from tapegrad.transform.syntax import array_of
from tapegrad.transform.verifier.code import (
    POPS,
    PUSHES,
    Code,
    blocks,
    called,
    calls,
    is_in,
    module_call,
    names_in,
    nodes_of,
    reads,
    targets,
    walk,
)

TAPE = ("tape", "top")


class Cotangents:
    """The names in some functions that hold cotangents or values computed from cotangents.

    Parameters
    ----------
    codes
        The functions.

    Attributes
    ----------
    names
        The names.
    values
        The values whose cotangents they are, of those that are cotangents.
    slopes
        The names of slopes of recurrences, and the values that these are followed by.
    """

    def __init__(self, codes: list[Code]) -> None:
        self.codes = codes
        self.names = set(self._given(Role.COTANGENT, Role.SEED))
        self._set_values(Role.COTANGENT)
        self.slopes = self._given(Role.SLOPE)
        self._parts = self._given(Role.PART)
        pairs = [self._sources(s) for code in codes for s in code.statements]
        todo = [pair for pair in pairs if pair is not None]
        count = -1
        while count != len(self.names):
            count = len(self.names)
            for read, made in todo:
                if read is None or not self.names.isdisjoint(read):
                    self.names.update(made)

    def _given(self, *roles: Role) -> dict[str, str]:
        """Return the names with some roles, and the values that they belong to."""
        found: dict[str, str] = {}
        for code in self.codes:
            for name, value in code.purpose.names.items():
                if value.role in roles and name in code.locals:
                    if name in code.primal or found.setdefault(name, value.of) != value.of:
                        raise code.wrong(f"{name} stands for several values", code.body[0])
        return found

    def _set_values(self, role: Role) -> None:
        self.values = self._given(role)
        self._of = {value: name for name, value in self.values.items()}
        if len(self._of) < len(self.values):
            code = self.codes[-1]
            raise code.wrong("a value has several names for its derivative", code.body[0])
        self._known: dict[int, bool] = {}

    def of(self, name: str) -> str:
        """Return the name of the cotangent of a value, "" if there is none."""
        return self._of.get(name, "")

    def value_of(self, name: str) -> str:
        """Return the value whose cotangent a name is, or the name itself."""
        return self.values.get(name, name)

    def part_of(self, name: str) -> str:
        """Return the value whose cotangent a name holds a part of, or the name itself."""
        return self._parts.get(name, name)

    def has_role(self, name: str, role: Role) -> bool:
        """Whether a name has a role."""
        return any(code.purpose.has_role(name, role) for code in self.codes)

    def _sources(self, statement: ast.stmt) -> tuple[set[str] | None, list[str]] | None:
        """Return the names read and assigned; None instead of reads if always cotangents."""
        if not isinstance(statement, ast.Assign):
            return None
        value = statement.value
        function = called(value)
        if self.is_forward(function) or calls(value, PUSHES):
            return None
        made = [n for n in targets(statement) if n not in TAPE]
        if self.is_reverse(function):
            return None, made
        return {n.id for n in names_in(value)}, made

    def is_forward(self, function: str) -> bool:
        """Whether a function is the forward half of a user's function."""
        return self.codes[-1].purpose_of(function).is_forward

    def is_reverse(self, function: str) -> bool:
        """Whether a function is the reverse half of a user's function."""
        return self.codes[-1].purpose_of(function).is_reverse

    def skips_zeros(self, node: ast.If) -> bool:
        """Whether a branch is taken unless some cotangents are 0, and then would do nothing.

        All that it adds to others has to be computed from these cotangents.
        """
        if node.orelse:
            return False
        tests = [node.test]
        match node.test:
            case ast.BoolOp(ast.Or(), several):
                tests = several
        tested = set()
        for test in tests:
            if not calls(test, [("runtime", "matters")]):
                return False
            (bar,) = test.args
            if not is_in(bar, self.names):
                return False
            tested.add(bar.id)
        inside = list(walk(node.body))
        made = {n for s in inside if isinstance(s, ast.Assign) for n in targets(s)}
        made &= self.names - tested
        if any(not made.isdisjoint(targets(s)) for s in self._outside(inside)):
            return False
        for statement in inside:
            free: list[ast.AST] = []
            match statement:
                case ast.Expr() | ast.Assign([ast.Subscript(), *_]):
                    return False
                case ast.Assign(_, value) if self.is_reverse(called(value)):
                    return False
                case ast.AugAssign(target):
                    free = nodes_of(target)
            for name in reads(statement):
                if name.id in self.names - made - tested and not any(n is name for n in free):
                    return False
        return True

    def _outside(self, inside: list[ast.stmt]) -> list[ast.stmt]:
        known = set(map(id, inside))
        return [s for code in self.codes for s in code.statements if id(s) not in known]

    def is_cotangent(self, node: ast.stmt) -> bool:
        """Whether a statement computes cotangents or contains one that does."""
        found = self._known.get(id(node))
        if found is None:
            found = self._known[id(node)] = self._is_cotangent(node)
        return found

    def _is_cotangent(self, node: ast.stmt) -> bool:
        if inner := [one for block in blocks(node) for one in block]:
            return any(map(self.is_cotangent, inner))
        if isinstance(node, (ast.Assign, ast.Expr)):
            function = called(node.value)
            if self.is_forward(function):
                return False
            if self.is_reverse(function):
                return True
            if module_call(node.value) in PUSHES | POPS | {("runtime", "give_tape")}:
                return False
        if isinstance(node, ast.Assign) and array_of(node.targets[0]) in TAPE:
            return False
        return any(is_in(n, self.names) for n in nodes_of(node))
