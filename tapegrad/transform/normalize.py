"""From a function's tree to its normal form (`tapegrad.transform.ir`)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.expressions import NEVER, RESERVED, Env, Expressions
from tapegrad.transform.ir import (
    Carried,
    Effect,
    Function,
    If,
    Loop,
    Phi,
    Store,
    constant,
    name,
)
from tapegrad.transform.jumps import Structurer, always_jumps, is_none
from tapegrad.transform.liveness import assigned, live, used
from tapegrad.transform.source import Source

OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
# the function of an augmented assignment of a name, which works in place on arrays
INPLACE = {
    "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv", "//": "ifloordiv", "%": "imod",
    "**": "ipow", "@": "imatmul", "&": "iand", "|": "ior", "^": "ixor", "<<": "ilshift",
    ">>": "irshift",
}  # fmt: skip


def normalize(source: Source) -> Function:
    """Return the normal form of a function."""
    return _Normalizer(source).function()


class _Normalizer(Expressions):
    """Builds the normal form of one function."""

    def function(self) -> Function:
        tree = self.source.tree
        arguments = tree.args
        if arguments.vararg or arguments.kwarg:
            raise self.source.refuse(
                "a function with *args or **kwargs; name its arguments", arguments
            )
        params = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self.local |= set(params)
        named = {p: f"{p}_" if p in RESERVED else p for p in params}
        for node in ast.walk(tree):
            if node is not tree and isinstance(node, NEVER):
                raise self.refuse_node(node)
        structurer = Structurer(self.fresh)
        body = tree.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:] or [ast.copy_location(ast.Pass(), body[0])]
        statements, result = structurer.function(body)
        nothing = any(
            isinstance(node, ast.Return) and is_none(node.value) for node in ast.walk(tree)
        )
        if result is not None and (nothing or not always_jumps(body)):
            raise self.source.refuse(
                f"{self.source.name} returns a value on some of its ways only; end it with a "
                "return",
                body[-1],
            )
        for statement in statements:
            self.local |= set(assigned([statement]))
        env: Env = {param: name(named[param]) for param in params}
        after = set() if result is None else {result}
        self.statements(statements, env, after)
        returned = None if result is None else env[result]
        return Function(
            self.source.name, list(named.values()), self.block, returned, self.source, self.statics
        )

    # -- statements ---------------------------------------------------------------------------

    def statements(self, nodes: list[ast.stmt], env: Env, after: set[str]) -> None:
        """Append the normal form of statements; `after` names what is read later."""
        for position, node in enumerate(nodes):
            self.line = getattr(node, "lineno", self.line)
            if isinstance(node, (ast.If, ast.For, ast.While)):
                needed = live(nodes[position + 1 :], after)
                if isinstance(node, ast.If):
                    self.branch(node, env, needed)
                elif isinstance(node, ast.For):
                    self.for_loop(node, env, needed)
                else:
                    self.while_loop(node, env, needed)
            else:
                self.simple(node, env)

    def simple(self, node: ast.stmt, env: Env) -> None:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, env, node.targets)
            for target in node.targets:
                self.assign(target, value, env)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.value(node.value, env, [node.target]), env)
        elif isinstance(node, ast.AugAssign):
            self.augmented(node, env)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self.expression(node.value, env)
        elif isinstance(node, ast.Raise):
            self.raising(node, env)
        elif isinstance(node, ast.Assert):
            error = ast.Call(ast.Name("AssertionError", ast.Load()), [], [])
            if isinstance(node.msg, ast.Constant):
                error.args = [node.msg]
            body: list[ast.stmt] = [ast.copy_location(ast.Raise(error, None), node)]
            test = ast.UnaryOp(ast.Not(), node.test)
            self.branch(ast.copy_location(ast.If(test, body, []), node), env, set())
        elif not isinstance(node, ast.Pass):
            raise self.refuse_node(node)

    def raising(self, node: ast.Raise, env: Env) -> None:
        error = node.exc
        if isinstance(error, ast.Call):
            values = [self.expression(argument, env) for argument in error.args]
            error = ast.Call(self.static_only(error.func), values, [])
        elif error is not None:
            error = self.static_only(error)
        self.block.append(Effect(ast.Raise(error, None), node.lineno))

    def static_only(self, node: ast.expr) -> ast.expr:
        found = self.static(node)
        if found is None:
            raise self.refuse_node(node)
        return found

    def value(self, node: ast.expr, env: Env, targets: list[ast.expr]) -> Any:
        """Return the atom of a right-hand side, or a list of them for ``a, b = x, y``."""
        if isinstance(node, ast.Tuple) and all(
            isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == len(node.elts)
            for target in targets
        ):
            return [
                self.value(item, env, [target.elts[k] for target in targets])
                for k, item in enumerate(node.elts)
            ]
        stem = targets[0].id if isinstance(targets[0], ast.Name) else "t"
        return self.expression(node, env, stem)

    def assign(self, target: ast.expr, value: Any, env: Env) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, list):
                value = self.let(ast.Tuple(value, ast.Load()), target.id)
            env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for position, part in enumerate(target.elts):
                if isinstance(part, ast.Starred):
                    raise self.refuse_node(part)
                if isinstance(value, list):
                    self.assign(part, value[position], env)
                else:
                    stem = part.id if isinstance(part, ast.Name) else "t"
                    item = ast.Subscript(value, constant(position), ast.Load())
                    self.assign(part, self.let(item, stem), env)
        elif isinstance(target, ast.Subscript):
            base = self.expression(target.value, env)
            index = self.index(target.slice, env)
            self.store(base, index, value, "")
        else:
            raise self.source.refuse(
                "cannot differentiate the assignment to an attribute; use arrays or tuples", target
            )

    def store(self, base: ast.expr, index: ast.expr, value: Any, op: str) -> None:
        if isinstance(value, list):
            value = self.let(ast.Tuple(value, ast.Load()), "t")
        assert isinstance(base, ast.Name)
        self.block.append(Store(base.id, index, value, op, self.line))

    def augmented(self, node: ast.AugAssign, env: Env) -> None:
        op = OPERATORS[type(node.op)]
        if isinstance(node.target, ast.Name):
            old = self.expression(ast.Name(node.target.id, ast.Load()), env)
            value = self.expression(node.value, env)
            text = f"operator.{INPLACE[op]}"
            self.statics[text] = getattr(operator, INPLACE[op])
            env[node.target.id] = self.let(ast.Call(name(text), [old, value], []), node.target.id)
        elif isinstance(node.target, ast.Subscript):
            base = self.expression(node.target.value, env)
            index = self.index(node.target.slice, env)
            value = self.expression(node.value, env)
            if op in "+-":
                self.store(base, index, value, op)
            else:
                old = self.let(ast.Subscript(base, index, ast.Load()), "t")
                text = f"operator.{INPLACE[op]}"
                self.statics[text] = getattr(operator, INPLACE[op])
                new = self.let(ast.Call(name(text), [old, value], []), "t")
                self.store(base, index, new, "")
        else:
            raise self.source.refuse(
                "cannot differentiate the assignment to an attribute; use arrays or tuples",
                node.target,
            )

    # -- control flow -------------------------------------------------------------------------

    def branch(self, node: ast.If, env: Env, after: set[str]) -> None:
        cond = self.condition(node.test, env)
        line = node.lineno
        self.choose(
            cond,
            lambda inner: self.statements(node.body, inner, after),
            lambda inner: self.statements(node.orelse, inner, after),
            env,
            after,
            line,
        )

    def choose(
        self,
        cond: ast.expr,
        then: Callable[[Env], None],
        orelse: Callable[[Env], None],
        env: Env,
        after: set[str],
        line: int,
    ) -> None:
        """Append an `If` and merge the environments of its blocks."""
        env_then, env_else = dict(env), dict(env)
        block_then = self.inside(lambda: then(env_then))
        block_else = self.inside(lambda: orelse(env_else))
        statement = If(cond, block_then, block_else, [], line)
        for identifier in dict.fromkeys([*env_then, *env_else]):
            one, two = env_then.get(identifier), env_else.get(identifier)
            if _same(one, two):
                if one is not None:
                    env[identifier] = one
                continue
            if identifier not in after:
                env.pop(identifier, None)
                continue
            target = self.fresh(identifier)
            statement.phis.append(Phi(target, one, two))
            env[identifier] = name(target)
        self.block.append(statement)

    def for_loop(self, node: ast.For, env: Env, after: set[str]) -> None:
        bounds, bind = self.iteration(node.iter, env)
        index = self.fresh(node.target.id if isinstance(node.target, ast.Name) else "i")

        def body(inner: Env) -> None:
            bind(name(index), node.target, inner)
            self.statements(node.body, inner, around)

        exits = {part.id for part in node.exit}
        inside = live(node.body, after | exits)
        targets = set(assigned([ast.Assign([node.target], node.iter)]))
        around = after | exits | (live(node.body, after | exits | inside) - targets)
        # a name that the target assigns goes round only if what follows the loop reads it
        self.loop(node, index, bounds, None, body, around, targets - after, env, after)

    def while_loop(self, node: ast.While, env: Env, after: set[str]) -> None:
        exits = {part.id for part in node.exit}
        around = after | exits | used(node.test)
        around |= live(node.body, around | live(node.body, around))

        def body(inner: Env) -> None:
            self.statements(node.body, inner, around)

        self.loop(node, None, None, node.test, body, around, set(), env, after)

    def loop(
        self,
        node: Any,
        index: str | None,
        bounds: tuple[ast.expr, ast.expr, ast.expr] | None,
        test: ast.expr | None,
        body: Callable[[Env], None],
        around: set[str],
        within: set[str],
        env: Env,
        after: set[str],
    ) -> None:
        """Append a loop; `around` names what is read in the next iteration or later."""
        line = node.lineno
        changed = assigned([node.target, *node.body] if index else node.body)
        going = [v for v in dict.fromkeys(changed) if v in around and v not in within]
        inner = {k: v for k, v in env.items() if k not in within}
        phis = {}
        for identifier in going:
            phis[identifier] = self.fresh(identifier)
            inner[identifier] = name(phis[identifier])
        at_start = dict(inner)
        cond: ast.expr | None = None

        def testing() -> None:
            nonlocal cond
            if test is not None:
                cond = self.condition(test, inner)

        test_block = self.inside(testing)
        body_block = self.inside(lambda: body(inner))
        exits = [inner[part.id] for part in node.exit]
        exit_atom: ast.expr | None = None
        if exits:

            def leaving() -> None:
                nonlocal exit_atom
                exit_atom = exits[0]
                for other in exits[1:]:
                    either = ast.BinOp(exit_atom, ast.BitOr(), other)
                    exit_atom = self.let(either, "leave")

            body_block += self.inside(leaving)
        carried = []
        for identifier in going:
            following = inner.get(identifier)
            if _same(following, at_start[identifier]):
                # not assigned after all: it keeps its value
                following = name(phis[identifier])
            out = self.fresh(identifier)
            carried.append(Carried(phis[identifier], env.get(identifier), following, out))
        for identifier in changed:
            env.pop(identifier, None)
        for identifier, entry in zip(going, carried, strict=True):
            env[identifier] = name(entry.out)
        self.block.append(
            Loop(
                index,
                bounds,
                test_block,
                cond,
                body_block,
                exit_atom,
                carried,
                self.fresh("trips"),
                line,
            )
        )

    def iteration(self, node: ast.expr, env: Env) -> tuple[Any, Callable[..., None]]:
        """Return the bounds of a ``for``, and what binds its target for an index."""
        import numba

        if isinstance(node, ast.Call):
            function = self.static_value(node.func)
            if function in (range, numba.prange) and not node.keywords:
                bounds = [self.expression(argument, env) for argument in node.args]
                if len(bounds) == 1:
                    bounds = [constant(0), *bounds]
                if len(bounds) == 2:
                    bounds.append(constant(1))
                return tuple(bounds), lambda i, target, inner: self.assign(target, i, inner)
        length, item = self.sequence(node, env)
        return (
            (constant(0), length, constant(1)),
            lambda i, target, inner: self.assign(target, item(i), inner),
        )

    def sequence(self, node: ast.expr, env: Env) -> tuple[ast.expr, Callable[[ast.expr], Any]]:
        """Return the length of what a ``for`` goes over, and what gives its item at an index."""
        if isinstance(node, ast.Call):
            function = self.static_value(node.func)
            if function is enumerate:
                length, item = self.sequence(node.args[0], env)
                first = node.args[1] if len(node.args) > 1 else None
                first = node.keywords[0].value if node.keywords else first
                start = None if first is None else self.expression(first, env)

                def numbered(i: ast.expr) -> list[Any]:
                    number = i
                    if start is not None:
                        number = self.let(ast.BinOp(i, ast.Add(), start), "t")
                    return [number, item(i)]

                return length, numbered
            if function is zip and node.args:
                parts = [self.sequence(argument, env) for argument in node.args]
                length = parts[0][0]
                for other, _ in parts[1:]:
                    length = self.let(ast.Call(self.builtin("min"), [length, other], []), "t")
                return length, lambda i: [item(i) for _, item in parts]
            if function is reversed:
                length, item = self.sequence(node.args[0], env)
                last = self.let(ast.BinOp(length, ast.Sub(), constant(1)), "t")
                return length, lambda i: item(self.let(ast.BinOp(last, ast.Sub(), i), "t"))
            if function in (np.ndindex, np.ndenumerate):
                raise self.source.refuse(
                    f"cannot differentiate a loop over np.{function.__name__}; nest loops over "
                    "range",
                    node,
                )
        base = self.expression(node, env)
        length = self.let(ast.Call(self.builtin("len"), [base], []), "t")
        return length, lambda i: self.let(ast.Subscript(base, i, ast.Load()), "t")


def _same(one: ast.expr | None, two: ast.expr | None) -> bool:
    if one is None or two is None:
        return one is two
    if isinstance(one, ast.Name) and isinstance(two, ast.Name):
        return one.id == two.id
    if isinstance(one, ast.Constant) and isinstance(two, ast.Constant):
        return type(one.value) is type(two.value) and repr(one.value) == repr(two.value)
    return False
