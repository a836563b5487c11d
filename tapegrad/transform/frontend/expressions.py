"""Expressions of a function as operations on atoms."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.frontend.atoms import Env, same
from tapegrad.transform.frontend.body import Body
from tapegrad.transform.frontend.conditions import Uncertain
from tapegrad.transform.frontend.inner_functions import Inlined
from tapegrad.transform.frontend.items import Items, length_of
from tapegrad.transform.frontend.lists import Lists
from tapegrad.transform.ir import If, Phi, constant, name
from tapegrad.transform.syntax import has_starred, name_of

# nodes that are refused everywhere
NEVER = (
    ast.ClassDef,
    ast.AsyncFunctionDef,
    ast.Global,
    ast.Nonlocal,
    ast.Try,
    ast.With,
    ast.Match,
    ast.SetComp,
    ast.GeneratorExp,
    ast.Yield,
    ast.YieldFrom,
)


class Expressions:
    """Appends the code of expressions.

    Parameters
    ----------
    body
        What it is appended to.
    floats
        The types of the items of lists that are arrays, by the numbers of the places that make
        them; see `Lists`.
    inlined
        Appends the body of an inner function in place of its call; returns its result.
    """

    def __init__(
        self,
        body: Body,
        floats: dict[int, Any],
        inlined: Callable[[Inlined, Env, str], ast.expr],
    ) -> None:
        self.body = body
        self._inlined = inlined
        self.lists = Lists(self, floats)

    def condition(self, node: ast.expr, env: Env) -> ast.expr:
        node = node.value if isinstance(node, Uncertain) else node
        found = self.expression(node, env, "cond")
        if isinstance(found, Items):
            test = ast.Compare(env[length_of(found)], [ast.NotEq()], [constant(0)])
            return self.body.let(test, "cond")
        return found

    def undecided(self, cond: ast.expr) -> ast.expr:
        """Return a condition that numba does not decide in generated code.

        Branches that numba removes from the user's function are already removed.
        """
        match cond:
            case ast.Constant():
                pass
            case ast.Name(id=identifier) if identifier in self.body.constants:
                pass
            case _:
                return cond
        return self.body.let(ast.Call(self.body.builtin("bool"), [cond], []), "cond")

    def choose(
        self,
        cond: ast.expr,
        then: Callable[[Env], None],
        orelse: Callable[[Env], None],
        env: Env,
        after: set[str] | None,
        line: int,
        certain: bool = True,
    ) -> None:
        """Append an `If` and merge the environments of its blocks.

        `after` names the variables read later; None means all.
        """
        cond = self.undecided(cond)
        env_then, env_else = dict(env), dict(env)
        happened = self.body.departures.happened
        block_then = self.body.inside(lambda: then(env_then))
        after_then, self.body.departures.happened = self.body.departures.at(env_then), happened
        block_else = self.body.inside(lambda: orelse(env_else))
        after_else = self.body.departures.at(env_else)
        self.body.departures.meet(after_then, after_else)
        self.lists.align(env_then, env_else, after, line)
        if after is not None:
            after = after | self.lists.behind(env_then, after) | self.lists.behind(env_else, after)
        statement = If(cond, block_then, block_else, [], line, certain)
        for identifier in dict.fromkeys([*env_then, *env_else]):
            one, two = env_then.get(identifier), env_else.get(identifier)
            if same(one, two):
                if one is not None:
                    env[identifier] = one
            elif after is not None and identifier not in after:
                env.pop(identifier, None)
            else:
                target = self.body.fresh(identifier.split()[0])
                leaves = self.body.departures.is_unread(identifier, after_then)
                other = self.body.departures.is_unread(identifier, after_else)
                unread = ("then", "orelse")[other] if leaves != other else ""
                statement.phis.append(Phi(target, one, two, unread))
                env[identifier] = name(target)
        self.body.block.append(statement)

    def choice(
        self,
        cond: ast.expr,
        then: Callable[[Env], ast.expr],
        orelse: Callable[[Env], ast.expr],
        env: Env,
        stem: str,
        certain: bool = True,
    ) -> ast.expr:
        """Return the atom of one of two expressions."""
        key = f"{stem} chosen {self.body.line}"
        while key in env:
            key += "'"

        def into(make: Callable[[Env], ast.expr]) -> Callable[[Env], None]:
            return lambda inner: inner.update({key: make(inner)})

        self.choose(cond, into(then), into(orelse), env, None, self.body.line, certain)
        return env.pop(key)

    def expression(self, node: ast.expr, env: Env, stem: str = "t") -> ast.expr:
        """Append the code of an expression; return its atom."""
        self.body.line = getattr(node, "lineno", self.body.line)
        match node:
            case ast.Constant(value):
                return constant(value)
            case ast.Name(id=identifier) if identifier in env:
                return env[identifier]
            case ast.Name(id=identifier) if identifier in self.body.local:
                raise self.body.refuse(
                    f"{identifier!r} is undefined here on every path; assign it first", node
                )
        found = self.body.static(node)
        if found is not None:
            return found
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.body.refuse_node(node)
        return method(node, env, stem)

    def _attribute(self, node: ast.Attribute, env: Env, stem: str) -> ast.expr:
        base = self.expression(node.value, env)
        return self.body.let(ast.Attribute(base, node.attr, ast.Load()), stem)

    def _list(self, node: ast.List, env: Env, stem: str) -> ast.expr:
        items = [self.expression(item, env) for item in node.elts]
        return self.lists.made(ast.List(items, ast.Load()), stem, env)

    def _binop(self, node: ast.BinOp, env: Env, stem: str) -> ast.expr:
        match node:
            case ast.BinOp(ast.List([item]), ast.Mult() as op, count):
                one = ast.List([self.expression(item, env)], ast.Load())
                return self.lists.made(ast.BinOp(one, op, self.expression(count, env)), stem, env)
            case ast.BinOp(count, ast.Mult() as op, ast.List([item])):
                given = self.expression(count, env)
                one = ast.List([self.expression(item, env)], ast.Load())
                return self.lists.made(ast.BinOp(given, op, one), stem, env)
        left = self.expression(node.left, env)
        right = self.expression(node.right, env)
        match left, right:
            case ast.Constant(), ast.Constant() if not _is_literal(node):
                left = self.body.let(left, "t")  # so that Python does not fold it
        return self.body.let(ast.BinOp(left, node.op, right), stem)

    def _unaryop(self, node: ast.UnaryOp, env: Env, stem: str) -> ast.expr:
        operand = self.expression(node.operand, env)
        match node.op, operand:
            case ast.Invert(), ast.Constant() if not _is_literal(node.operand):
                operand = self.body.let(operand, "t")  # so that Python does not fold it
            case ast.USub(), ast.Constant(int(value)) if value >= 2**63:
                raise self.body.refuse(
                    "cannot differentiate minus an integer of 2**63 or more, which is unsigned for "
                    "numba; write the value that is meant, as np.int64 or np.uint64",
                    node,
                )
            case ast.USub(), ast.Constant(value):
                number: Any = value
                return constant(-number)
        return self.body.let(ast.UnaryOp(node.op, operand), stem)

    def _compare(self, node: ast.Compare, env: Env, stem: str) -> ast.expr:
        left = self.expression(node.left, env)
        return self.comparison(left, node.ops, node.comparators, env, stem)

    def comparison(
        self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr], env: Env, stem: str
    ) -> ast.expr:
        """Append a possibly chained comparison; each operand is evaluated once."""
        right = self.expression(others[0], env)
        match ops[0], left:
            case ast.Is() | ast.IsNot(), ast.Constant(value) if value is not None:
                left = self.body.let(left, "t")  # Python warns of a comparison with a literal
        first = self.body.let(ast.Compare(left, ops[:1], [right]), stem)
        if len(ops) == 1:
            return first
        return self.choice(
            first,
            lambda inner: self.comparison(right, ops[1:], others[1:], inner, stem),
            lambda _: first,
            env,
            stem,
        )

    def _uncertain(self, node: Uncertain, env: Env, stem: str) -> ast.expr:
        assert isinstance(node.value, ast.BoolOp)  # others are handled by `condition`
        return self._boolop(node.value, env, stem, False)

    def _boolop(self, node: ast.BoolOp, env: Env, stem: str, certain: bool = True) -> ast.expr:
        first = self.expression(node.values[0], env)
        if len(node.values) == 1:
            return first
        more = ast.copy_location(ast.BoolOp(node.op, node.values[1:]), node)

        def rest(inner: Env) -> ast.expr:
            return self._boolop(more, inner, stem, certain)

        if isinstance(node.op, ast.And):
            return self.choice(first, rest, lambda _: first, env, stem, certain)
        return self.choice(first, lambda _: first, rest, env, stem, certain)

    def _ifexp(self, node: ast.IfExp, env: Env, stem: str) -> ast.expr:
        cond = self.condition(node.test, env)
        return self.choice(
            cond,
            lambda inner: self.expression(node.body, inner),
            lambda inner: self.expression(node.orelse, inner),
            env,
            stem,
            not isinstance(node.test, Uncertain),
        )

    def _namedexpr(self, node: ast.NamedExpr, env: Env, stem: str) -> ast.expr:
        value = self.expression(node.value, env, node.target.id)
        env[node.target.id] = value
        return value

    def _joinedstr(self, node: ast.JoinedStr, env: Env, stem: str) -> ast.expr:
        parts: list[ast.expr] = []
        for part in node.values:
            match part:
                case ast.FormattedValue(value, conversion, spec):
                    shown = self.expression(value, env)
                    parts.append(ast.FormattedValue(shown, conversion, spec))
                case _:
                    parts.append(part)
        return self.body.let(ast.JoinedStr(parts), stem)

    def _dict(self, node: ast.Dict, env: Env, stem: str) -> ast.expr:
        items: list[tuple[ast.expr, ast.expr]] = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise self.body.refuse("cannot differentiate ** in a dict; name the items", node)
            items.append((self.expression(key, env), self.expression(value, env)))
        return self.body.let(ast.Dict([k for k, _ in items], [v for _, v in items]), stem)

    def _set(self, node: ast.Set, env: Env, stem: str) -> ast.expr:
        return self.body.let(ast.Set([self.expression(item, env) for item in node.elts]), stem)

    def _tuple(self, node: ast.Tuple, env: Env, stem: str) -> ast.expr:
        items = [self.expression(item, env) for item in node.elts]
        return self.body.let(ast.Tuple(items, ast.Load()), stem)

    def _subscript(self, node: ast.Subscript, env: Env, stem: str) -> ast.expr:
        base = self.expression(node.value, env)
        index = self.index(node.slice, env)
        if isinstance(base, Items):
            return self.lists.subscript(base, index, env, stem)
        return self.body.let(ast.Subscript(base, index, ast.Load()), stem)

    def index(self, node: ast.expr, env: Env) -> ast.expr:
        """Return an index: an atom, a slice of atoms, or a tuple of these."""
        if _is_ellipsis(node):
            return ast.Tuple([node], ast.Load())  # numba can write to a[...], but not read it
        match node:
            case ast.Tuple(parts):
                items = [part if _is_ellipsis(part) else self.index(part, env) for part in parts]
                return ast.Tuple(items, ast.Load())
            case ast.Slice(low, high, step):
                ends = (None if p is None else self.expression(p, env) for p in (low, high, step))
                return ast.Slice(*ends)
        return self.expression(node, env)

    def _call(self, node: ast.Call, env: Env, stem: str) -> ast.expr:
        callee = self.body.static(node.func)
        if callee is None and isinstance(node.func, ast.Attribute):
            base = self.expression(node.func.value, env)
            if isinstance(base, Items):
                return self.lists.method(base, node, env, stem)
            callee = ast.Attribute(base, node.func.attr, ast.Load())
        elif callee is None:
            callee = self.expression(node.func, env)
        value: Any = self.body.statics.get(name_of(callee))
        match node.args:
            case [ast.List(conditions), ast.List(choices), *default] if value is np.select:
                if len(conditions) == len(choices):
                    default += [word.value for word in node.keywords]
                    return self.selection(conditions, choices, default, env, stem)
        arguments: list[ast.expr] = []
        for position, argument in enumerate(node.args):
            match argument:
                case ast.List() if position == 0 and value in (np.array, np.asarray):
                    arguments.append(self.nested_list(argument, env))
                case ast.Starred(items):
                    arguments.append(ast.Starred(self.expression(items, env), ast.Load()))
                case _:
                    arguments.append(self.expression(argument, env))
        keywords = []
        for word in node.keywords:
            if word.arg is None:
                raise self.body.refuse("cannot differentiate a call with **; name it", node)
            keywords.append(ast.keyword(word.arg, self.expression(word.value, env)))
        if keywords and hasattr(value, "py_func") and not has_starred(arguments):
            arguments, keywords = positional(value.py_func, arguments, keywords)
        return self.called(ast.Call(callee, arguments, keywords), value, env, stem)

    def called(self, call: ast.Call, value: Any, env: Env, stem: str) -> ast.expr:
        """Append a call of the function `value`, None if unknown."""
        if value is divmod and len(call.args) == 2 and not call.keywords:
            left, right = call.args
            parts = [ast.BinOp(left, op, right) for op in (ast.FloorDiv(), ast.Mod())]
            return self.body.let(
                ast.Tuple([self.body.let(p, stem) for p in parts], ast.Load()), stem
            )
        found = self.lists.called(call, value, env, stem)
        return self.body.let(call, stem) if found is None else found

    def selection(
        self,
        conditions: list[ast.expr],
        choices: list[ast.expr],
        default: list[ast.expr],
        env: Env,
        stem: str,
    ) -> ast.expr:
        """Append `np.select` of lists as the selections that it consists of.

        A list of arrays has no derivative, and a tuple of them is accepted for one layout only.
        """
        given = [[self.expression(item, env) for item in items] for items in (conditions, choices)]
        found = self.expression(default[0], env) if default else constant(0)
        where = self.body.outside("np.where", np.where)
        for condition, choice in reversed(list(zip(*given, strict=True))):
            found = self.body.let(ast.Call(where, [condition, choice, found], []), stem)
        return found

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


def _is_literal(node: ast.expr) -> bool:
    """Whether Python folds an expression at compile time."""
    match node:
        case ast.BinOp(left, _, right):
            return _is_literal(left) and _is_literal(right)
        case ast.UnaryOp(_, operand):
            return _is_literal(operand)
        case ast.Constant():
            return True
    return False


def positional(
    function: Any, arguments: list[ast.expr], keywords: list[ast.keyword]
) -> tuple[list[ast.expr], list[ast.keyword]]:
    """Return the arguments of a call with keywords made positional where possible.

    Skipped parameters get their defaults if these can be written as literals.
    """
    found = list(arguments)
    named = {word.arg: word.value for word in keywords}
    for parameter in list(inspect.signature(function).parameters.values())[len(found) :]:
        if not named:
            break
        if parameter.name in named:
            found.append(named.pop(parameter.name))
        elif type(parameter.default) in (int, float, bool, type(None)):
            found.append(constant(parameter.default))
        else:
            break
    return found, [word for word in keywords if word.arg in named]


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
