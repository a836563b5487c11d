"""The outcomes of tests on one path through code: equal tests have equal outcomes."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.verifier.events import Number
from tapegrad.transform.verifier.frames import Choices, Frame


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
        if isinstance(node, ast.Name):
            found = self.frame.get(node.id)
            if found is None:
                return node.id
            return found.key if isinstance(found, Number) else "array"
        if isinstance(node, ast.Constant):
            return repr(node.value)
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
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            wish, self.wish = self.wish, None if self.wish is None else not self.wish
            found = not self.truth(node, test.operand)
            self.wish = wish
            return found
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.BoolOp):
            is_and = isinstance(test.op, ast.And)
            outcomes = (self.truth(node, part) for part in test.values)
            return all(outcomes) if is_and else any(outcomes)
        if isinstance(test, ast.Name):
            value = self.frame.get(test.id)
            if isinstance(value, Number):
                return self.truth_of(node, value)
        key = self.key(test)
        if key not in self.truths:
            self.truths[key] = self.side(node)
        return self.truths[key]

    def truth_of(self, node: ast.AST, number: Number) -> bool:
        if number.truth is None:
            kind, parts = self.formulas.get(number, ("", []))
            if kind == "not":
                wish, self.wish = self.wish, None if self.wish is None else not self.wish
                number.truth = not self.truth_of(node, parts[0])
                self.wish = wish
            elif kind == "and":
                number.truth = all(self.truth_of(node, part) for part in parts)
            elif kind == "or":
                number.truth = any(self.truth_of(node, part) for part in parts)
            else:
                number.truth = self.side(node)
        return number.truth

    def formula(self, number: Number, node: ast.expr) -> None:
        """Note how the truth of a number follows from others."""
        kind, parts = "", []
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            kind, parts = "not", [node.operand]
        elif isinstance(node, ast.BoolOp):
            kind, parts = "and" if isinstance(node.op, ast.And) else "or", node.values
        if kind:
            found = []
            for part in parts:
                value = self.frame.get(part.id) if isinstance(part, ast.Name) else None
                if not isinstance(value, Number):
                    value = Number(self.key(part))
                    self.formula(value, part)
                found.append(value)
            self.formulas[number] = kind, found
