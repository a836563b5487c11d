"""The outcomes of tests on one path through code: equal tests have equal outcomes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from typing import TypeVar

from tapegrad.transform.verifier.code import name_of
from tapegrad.transform.verifier.events import Number
from tapegrad.transform.verifier.frames import Choices, Frame

Part = TypeVar("Part")


class Outcomes:
    """Which values are equal on a path, and which are true.

    Parameters
    ----------
    choices
        The random choices.

    Attributes
    ----------
    frame
        The current names.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.frame = Frame({})
        self.keys: dict[Hashable, int] = {}
        self.formulas: dict[Number, tuple[str, list[Number]]] = {}
        self.truths: dict[Hashable, bool] = {}
        self.wish: bool | None = None  # the preferred outcome of a test

    def key(self, node: ast.AST) -> Hashable:
        """Return a key that is equal for expressions with equal values."""
        match node:
            case ast.Name(id=name):
                found = self.frame.get(name)
                if found is None:
                    return name
                return found.key if isinstance(found, Number) else "array"
            case ast.Constant(constant):
                return repr(constant)
        parts: list[Hashable] = [type(node).__name__]
        children = ast.iter_child_nodes(node)
        parts += [self.key(child) for child in children if not isinstance(child, ast.expr_context)]
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        whole = tuple(parts)
        return self.keys.setdefault(whole, len(self.keys))

    def fresh(self) -> Hashable:
        """Return a key that is equal to no other one."""
        return self.keys.setdefault(("fresh", len(self.keys)), len(self.keys))

    def side(self, node: ast.AST) -> bool:
        self.choices.follow(node)
        return self.choices.side(node) if self.wish is None else self.wish

    def truth(self, node: ast.AST, test: ast.expr) -> bool:
        """Return the outcome of a test."""
        kind, parts = _formula(test)
        if kind:
            return self.combined(kind, lambda part: self.truth(node, part), parts)
        match test:
            case ast.Constant(constant):
                return bool(constant)
            case ast.Name(id=name):
                value = self.frame.get(name)
                if isinstance(value, Number):
                    return self.truth_of(node, value)
        key = self.key(test)
        if key not in self.truths:
            self.truths[key] = self.side(node)
        return self.truths[key]

    def truth_of(self, node: ast.AST, number: Number) -> bool:
        if number.truth is None:
            kind, parts = self.formulas.get(number, ("", []))
            if kind:
                number.truth = self.combined(kind, lambda part: self.truth_of(node, part), parts)
            else:
                number.truth = self.side(node)
        return number.truth

    def combined(self, kind: str, truth: Callable[[Part], bool], parts: list[Part]) -> bool:
        """Return the outcome of parts with ``not``, ``and`` or ``or``."""
        if kind != "not":
            return (all if kind == "and" else any)(map(truth, parts))
        wish, self.wish = self.wish, None if self.wish is None else not self.wish
        found = not truth(parts[0])
        self.wish = wish
        return found

    def formula(self, number: Number, node: ast.expr) -> None:
        """Note how the truth of a number follows from others."""
        kind, parts = _formula(node)
        if kind:
            found = []
            for part in parts:
                value = self.frame.get(name_of(part))
                if not isinstance(value, Number):
                    value = Number(self.key(part))
                    self.formula(value, part)
                found.append(value)
            self.formulas[number] = kind, found


def _formula(node: ast.expr) -> tuple[str, list[ast.expr]]:
    """Return what stands between the parts of a test, "" for other expressions."""
    match node:
        case ast.UnaryOp(ast.Not(), operand):
            return "not", [operand]
        case ast.BoolOp(op, parts):
            return "and" if isinstance(op, ast.And) else "or", parts
    return "", []
