"""The names of cotangents in generated code."""

from __future__ import annotations

import ast
from collections.abc import Container

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
from tapegrad.transform.verifier.names import ending_of, is_forward, is_reverse, is_seed

TAPE = ("tape", "top")


class Cotangents:
    """The names in some functions that hold cotangents or values computed from cotangents.

    Parameters
    ----------
    codes
        The functions.
    functions
        All functions of the module.

    Attributes
    ----------
    names
        The names.
    suffix
        The suffix of the names of cotangents.
    is_known
        Whether they can be distinguished from the user's names.
    """

    def __init__(self, codes: list[Code], functions: Container[str]) -> None:
        self.codes, self.functions = codes, functions
        given = {n for code in codes for n in code.locals}
        known = {n for code in codes for n in code.primal}
        endings = {ending_of(n, "_bar") for n in given - known} - {""}
        self.is_known = len(endings) <= 1
        self.suffix = next(iter(endings), "_bar")
        self.names = {n for n in given - known if n.endswith(self.suffix) or is_seed(n)}
        self._known: dict[int, bool] = {}
        pairs = [self._sources(s) for code in codes for s in code.statements]
        todo = [pair for pair in pairs if pair is not None]
        count = -1
        while count != len(self.names):
            count = len(self.names)
            for read, made in todo:
                if read is None or not self.names.isdisjoint(read):
                    self.names.update(made)

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
        return function in self.functions and is_forward(function)

    def is_reverse(self, function: str) -> bool:
        """Whether a function is the reverse half of a user's function."""
        return function in self.functions and is_reverse(function)

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
