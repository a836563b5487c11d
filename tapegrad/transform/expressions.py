"""Expressions of a function as operations on atoms."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.ir import Block, If, Let, Phi, constant, name
from tapegrad.transform.liveness import assigned
from tapegrad.transform.source import MISSING, Source

Env = dict[str, ast.expr]

# names of generated code that a parameter must not have
RESERVED = {
    "np", "math", "numba", "operator", "runtime", "arrays", "ops", "tape", "top", "needed", "turn",
    "held_bar",
}  # fmt: skip

_WAY_OUT = {
    ast.ListComp: "a list comprehension; allocate an array and fill it in a loop",
    ast.SetComp: "a set; use an array",
    ast.DictComp: "a dict; pass arrays or named tuples",
    ast.GeneratorExp: "a generator expression; write the loop out",
    ast.Lambda: "a lambda; define a function at the level of the module",
    ast.FunctionDef: "an inner function; define it outside and pass what it needs",
    ast.Dict: "a dict; pass arrays or named tuples",
    ast.Set: "a set; use an array",
    ast.List: "a list; use a tuple, or an array (np.array([...]) is understood)",
    ast.Try: "try/except; test the condition instead",
    ast.With: "a with block; move it out of the function",
    ast.Starred: "a starred expression; write the items out",
    ast.Yield: "a generator; fill an array",
    ast.YieldFrom: "a generator; fill an array",
    ast.Global: "a global statement; pass the value as an argument",
    ast.Delete: "del; leave it out",
    ast.ClassDef: "a class; define it outside",
    ast.Match: "match; write if and elif",
    ast.JoinedStr: "an f-string; use plain text",
}


# what is refused wherever it stands
NEVER = (
    ast.FunctionDef,
    ast.ClassDef,
    ast.Global,
    ast.Try,
    ast.With,
    ast.Delete,
    ast.Match,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Yield,
    ast.YieldFrom,
)


class Expressions:
    """Appends what computes expressions to the current block."""

    def __init__(self, source: Source) -> None:
        self.source = source
        tree = source.tree
        self.taken = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
        self.taken |= {part.arg for part in ast.walk(tree) if isinstance(part, ast.arg)}
        self.taken |= RESERVED | {f"{word}_" for word in RESERVED}
        self.local = set(assigned(tree.body))
        self.statics: dict[str, Any] = {}
        self.block: Block = []
        self.line = tree.lineno

    def fresh(self, stem: str) -> str:
        """Return an unused name made from a stem."""
        stem = stem.rstrip("0123456789").rstrip("_") or "t"
        number = 0
        found = stem
        while found in self.taken:
            number += 1
            found = f"{stem}_{number}"
        self.taken.add(found)
        return found

    def inside(self, make: Callable[[], None]) -> Block:
        """Return what `make` appends."""
        outer, self.block = self.block, []
        make()
        found, self.block = self.block, outer
        return found

    def refuse_node(self, node: ast.AST) -> Exception:
        known = _WAY_OUT.get(type(node))
        what = known or f"{type(node).__name__} is not understood here; write it another way"
        return self.source.refuse(f"cannot differentiate {what}" if known else what, node)

    def builtin(self, identifier: str) -> ast.expr:
        self.statics[identifier] = self.source.lookup(identifier)
        return name(identifier)

    def let(self, expr: ast.expr, stem: str) -> ast.Name:
        target = self.fresh(stem)
        self.block.append(Let(target, expr, self.line))
        return name(target)

    def static_value(self, node: ast.expr) -> Any:
        """Return what an expression outside of the function's variables stands for, or MISSING."""
        if isinstance(node, ast.Name):
            return MISSING if node.id in self.local else self.source.lookup(node.id)
        if isinstance(node, ast.Attribute):
            base = self.static_value(node.value)
            if isinstance(base, (types.ModuleType, type)):
                return getattr(base, node.attr, MISSING)
            if base is not MISSING and isinstance(base, tuple) and hasattr(base, "_fields"):
                return getattr(base, node.attr, MISSING)
        return MISSING

    def static(self, node: ast.expr) -> ast.expr | None:
        """Return a name or constant for an expression outside of the function's variables."""
        value = self.static_value(node)
        if value is MISSING:
            if isinstance(node, ast.Name) and node.id not in self.local:
                raise self.source.refuse(
                    f"the name {node.id!r} is not defined; define it before differentiating", node
                )
            return None
        if isinstance(value, (bool, int, float, str, type(None))):
            return constant(value)
        if isinstance(value, (np.integer, np.floating, np.bool_)) and not isinstance(
            value, (np.float32, np.float16)
        ):
            return constant(value.item())
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return self.let_static_tuple(value)
        text = ast.unparse(node)
        self.statics[text] = value
        return name(text)

    def let_static_tuple(self, value: tuple[Any, ...]) -> ast.expr:
        items = [
            self.let_static_tuple(item) if isinstance(item, tuple) else constant(item)
            for item in value
        ]
        return self.let(ast.Tuple(items, ast.Load()), "t")

    def condition(self, node: ast.expr, env: Env) -> ast.expr:
        return self.expression(node, env, "cond")

    def expression(self, node: ast.expr, env: Env, stem: str = "t") -> ast.expr:
        """Append what computes an expression; return its atom."""
        self.line = getattr(node, "lineno", self.line)
        if isinstance(node, ast.Constant):
            return constant(node.value)
        if isinstance(node, ast.Name):
            if node.id in env:
                return env[node.id]
            if node.id in self.local:
                raise self.source.refuse(
                    f"{node.id!r} has no value here on any way; assign it first", node
                )
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = self.static(node)
            if found is not None:
                return found
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.refuse_node(node)
        return method(node, env, stem)

    def _attribute(self, node: ast.Attribute, env: Env, stem: str) -> ast.expr:
        base = self.expression(node.value, env)
        return self.let(ast.Attribute(base, node.attr, ast.Load()), stem)

    def _binop(self, node: ast.BinOp, env: Env, stem: str) -> ast.expr:
        left = self.expression(node.left, env)
        right = self.expression(node.right, env)
        return self.let(ast.BinOp(left, node.op, right), stem)

    def _unaryop(self, node: ast.UnaryOp, env: Env, stem: str) -> ast.expr:
        operand = self.expression(node.operand, env)
        if isinstance(operand, ast.Constant) and isinstance(node.op, ast.USub):
            return constant(-operand.value)
        return self.let(ast.UnaryOp(node.op, operand), stem)

    def _compare(self, node: ast.Compare, env: Env, stem: str) -> ast.expr:
        left = self.expression(node.left, env)
        if len(node.ops) > 1:
            first = ast.Compare(node.left, node.ops[:1], node.comparators[:1])
            rest = ast.Compare(node.comparators[0], node.ops[1:], node.comparators[1:])
            both = ast.copy_location(ast.BoolOp(ast.And(), [first, rest]), node)
            return self._boolop(both, env, stem)
        right = self.expression(node.comparators[0], env)
        return self.let(ast.Compare(left, node.ops, [right]), stem)

    def _boolop(self, node: ast.BoolOp, env: Env, stem: str) -> ast.expr:
        first = self.expression(node.values[0], env)
        if len(node.values) == 1:
            return first
        more = ast.copy_location(ast.BoolOp(node.op, node.values[1:]), node)
        results: dict[str, ast.expr] = {}

        def evaluate(inner: Env) -> None:
            results["more"] = self._boolop(more, inner, stem)

        block = self.inside(lambda: evaluate(dict(env)))
        target = self.fresh(stem)
        if isinstance(node.op, ast.And):
            statement = If(first, block, [], [Phi(target, results["more"], first)], self.line)
        else:
            statement = If(first, [], block, [Phi(target, first, results["more"])], self.line)
        self.block.append(statement)
        return name(target)

    def _ifexp(self, node: ast.IfExp, env: Env, stem: str) -> ast.expr:
        cond = self.condition(node.test, env)
        results: list[ast.expr] = []
        blocks = [
            self.inside(lambda part=part: results.append(self.expression(part, dict(env))))
            for part in (node.body, node.orelse)
        ]
        target = self.fresh(stem)
        self.block.append(If(cond, *blocks, [Phi(target, *results)], self.line))
        return name(target)

    def _namedexpr(self, node: ast.NamedExpr, env: Env, stem: str) -> ast.expr:
        value = self.expression(node.value, env, node.target.id)
        env[node.target.id] = value
        return value

    def _tuple(self, node: ast.Tuple, env: Env, stem: str) -> ast.expr:
        items = [self.expression(item, env) for item in node.elts]
        return self.let(ast.Tuple(items, ast.Load()), stem)

    def _subscript(self, node: ast.Subscript, env: Env, stem: str) -> ast.expr:
        base = self.expression(node.value, env)
        index = self.index(node.slice, env)
        return self.let(ast.Subscript(base, index, ast.Load()), stem)

    def index(self, node: ast.expr, env: Env) -> ast.expr:
        """Return an index: an atom, a slice of atoms, or a tuple of these."""
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.index(item, env) for item in node.elts], ast.Load())
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            return ast.Slice(*(None if p is None else self.expression(p, env) for p in parts))
        return self.expression(node, env)

    def _call(self, node: ast.Call, env: Env, stem: str) -> ast.expr:
        callee = (
            self.static(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else None
        )
        if callee is None:
            if isinstance(node.func, ast.Attribute):
                base = self.expression(node.func.value, env)
                callee = ast.Attribute(base, node.func.attr, ast.Load())
            else:
                callee = self.expression(node.func, env)
        value = self.statics.get(callee.id) if isinstance(callee, ast.Name) else None
        arguments = []
        for position, argument in enumerate(node.args):
            if position == 0 and isinstance(argument, ast.List) and value in (np.array, np.asarray):
                arguments.append(self.nested_list(argument, env))
            else:
                arguments.append(self.expression(argument, env))
        keywords = []
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.source.refuse("cannot differentiate a call with **; name it", node)
            keywords.append(ast.keyword(keyword.arg, self.expression(keyword.value, env)))
        return self.let(ast.Call(callee, arguments, keywords), stem)

    def nested_list(self, node: ast.List, env: Env) -> ast.List:
        return ast.List(
            [
                self.nested_list(item, env)
                if isinstance(item, ast.List)
                else self.expression(item, env)
                for item in node.elts
            ],
            ast.Load(),
        )
