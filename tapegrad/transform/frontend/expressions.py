"""Expressions of a function as operations on atoms."""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import keyword
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.frontend.breaks import Departures
from tapegrad.transform.frontend.conditions import Uncertain
from tapegrad.transform.frontend.constants import is_plain_tuple, plain
from tapegrad.transform.frontend.inner_functions import Inlined
from tapegrad.transform.frontend.source import MISSING, Source
from tapegrad.transform.ir import Block, If, Let, Phi, constant, name, names_in, take
from tapegrad.transform.syntax import subtree, text_of

# the value of every variable; names with a space are internal
Env = dict[str, ast.expr]

# names that have another meaning in generated code
RESERVED = {
    "np", "math", "numba", "operator", "runtime", "arrays", "ops", "scalar_ops", "tape", "top",
    "needed", "turn", "undefined", *keyword.kwlist, *dir(builtins),
}  # fmt: skip
# names that generated code derives from others
_MADE = re.compile(
    r"^(needed|held|class)_|_(part|seed|kept|row|next|forward|reverse|tangent|gradient|pullback"
    r"|pushforward|vjp|jvp)(_\d+)?$"
)
# methods that change their object
CHANGING = {
    "add", "append", "clear", "discard", "extend", "fill", "insert", "itemset", "partition", "pop",
    "popitem", "put", "remove", "resize", "reverse", "setdefault", "sort", "update",
}  # fmt: skip

_WAY_OUT = {
    ast.SetComp: "a set comprehension; add the items in a loop",
    ast.GeneratorExp: "a generator expression, which numba does not compile either; use a list, "
    "sum([...]), or a loop",
    ast.AsyncFunctionDef: "an inner coroutine; define a function",
    ast.Try: "try/except; test the condition instead",
    ast.With: "a with block; move it out of the function",
    ast.Starred: "a starred expression; write the items out",
    ast.Yield: "a generator; fill an array",
    ast.YieldFrom: "a generator; fill an array",
    ast.Global: "a global statement; pass the value as an argument",
    ast.Nonlocal: "a nonlocal statement; return the value and assign it",
    ast.ClassDef: "a class; define it outside",
    ast.Match: "match; write if and elif",
    ast.Import: "an import; put it at the top of the module",
    ast.ImportFrom: "an import; put it at the top of the module",
}


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


def is_made(identifier: str) -> bool:
    """Whether a name has a form that generated code uses."""
    return _MADE.search(identifier) is not None


class Expressions:
    """Appends the code of expressions to the current block."""

    def __init__(self, source: Source, departures: Departures) -> None:
        self.source = source
        tree = source.tree
        self.taken = {part.id for part in subtree(tree) if isinstance(part, ast.Name)}
        self.taken |= {part.arg for part in subtree(tree) if isinstance(part, ast.arg)}
        self.taken |= RESERVED
        self.local: set[str] = set()
        self.statics: dict[str, Any] = {}
        self.assigned: dict[str, list[ast.expr]] = {}  # the values of each variable
        self.iterated: dict[str, ast.expr] = {}  # sequences that loops index, by name
        self.constants: set[str] = set()  # names computed from constants only
        self.departures = departures
        self.block: Block = []
        self.line = tree.lineno

    def fresh(self, stem: str) -> str:
        """Return an unused name made from a stem."""
        stem = stem.rstrip("0123456789").rstrip("_") or "t"
        if is_made(stem):
            stem = f"v_{stem}"
        return take(stem, self.taken)

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
        return self.outside(identifier, getattr(builtins, identifier))

    def let(self, expr: ast.expr, stem: str) -> ast.Name:
        self.check_use(expr)
        target = self.fresh(stem)
        if isinstance(expr, (ast.Compare, ast.UnaryOp, ast.BinOp, ast.Constant)):
            if self.constants.issuperset(names_in(expr)):
                self.constants.add(target)
        self.block.append(Let(target, expr, self.line))
        return name(target)

    def static_value(self, node: ast.expr) -> Any:
        """Return the value of an expression without local variables, or MISSING."""
        if isinstance(node, ast.Name):
            return MISSING if node.id in self.local else self.source.lookup(node.id)
        if isinstance(node, ast.Attribute):
            base = self.static_value(node.value)
            if isinstance(base, (types.ModuleType, type)):
                return getattr(base, node.attr, MISSING)
            if isinstance(base, enum.Enum) and node.attr in ("value", "name"):
                return getattr(base, node.attr)
            if base is not MISSING and isinstance(base, tuple) and hasattr(base, "_fields"):
                return getattr(base, node.attr, MISSING)
        return MISSING

    def static(self, node: ast.expr) -> ast.expr | None:
        """Return a name or constant for an expression without local variables, or None."""
        value = self.static_value(node)
        if value is MISSING:
            if isinstance(node, ast.Name) and node.id not in self.local:
                raise self.source.refuse(
                    f"the name {node.id!r} is not defined; define it before differentiating", node
                )
            return None
        number = plain(value)
        if number is not MISSING:
            return constant(number)
        if is_plain_tuple(value):
            return self.let_static_tuple(value)
        return self.outside(text_of(node), value)

    def outside(self, text: str, value: Any) -> ast.Name:
        """Register a value from outside the function; return the name for it."""
        if self.statics.setdefault(text, value) is not value:
            raise self.source.refuse(
                f"{text} means something of your own here, where generated code needs the usual; "
                "give it another name",
                self.line,
            )
        return name(text)

    def let_static_tuple(self, value: tuple[Any, ...]) -> ast.expr:
        items = [
            self.let_static_tuple(item) if isinstance(item, tuple) else constant(plain(item))
            for item in value
        ]
        return self.let(ast.Tuple(items, ast.Load()), "t")

    def check_use(self, expr: ast.expr) -> None:
        """Refuse an operation on something that is not a value of the normal form."""

    def has_effects(self, node: ast.AST) -> bool:
        """Whether evaluating an expression may have side effects."""
        for part in subtree(node):
            if isinstance(part, (ast.NamedExpr, Inlined)):
                return True
            if isinstance(part, ast.Call) and not self._is_pure(part.func):
                return True
        return False

    def _is_pure(self, function: ast.expr) -> bool:
        """Whether a function has no side effects."""
        value = self.static_value(function)
        if value is MISSING:
            return isinstance(function, ast.Attribute) and function.attr not in CHANGING
        if isinstance(value, type):
            return True
        module = getattr(value, "__module__", None) or ""
        if module.startswith("numpy.random"):
            return False
        known = isinstance(value, (types.BuiltinFunctionType, np.ufunc))
        return known or module.split(".")[0] in ("numpy", "math", "tapegrad")

    def condition(self, node: ast.expr, env: Env) -> ast.expr:
        return self.expression(node.value if isinstance(node, Uncertain) else node, env, "cond")

    def undecided(self, cond: ast.expr) -> ast.expr:
        """Return a condition that numba does not decide in generated code.

        Branches that numba removes from the user's function are already removed.
        """
        if isinstance(cond, ast.Constant) or (
            isinstance(cond, ast.Name) and cond.id in self.constants
        ):
            return self.let(ast.Call(self.builtin("bool"), [cond], []), "cond")
        return cond

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
        happened = self.departures.happened
        block_then = self.inside(lambda: then(env_then))
        after_then, self.departures.happened = self.departures.at(env_then), happened
        block_else = self.inside(lambda: orelse(env_else))
        after_else = self.departures.at(env_else)
        self.departures.meet(after_then, after_else)
        self.align(env_then, env_else, after, line)
        if after is not None:
            after = after | self.behind(env_then, after) | self.behind(env_else, after)
        statement = If(cond, block_then, block_else, [], line, certain)
        for identifier in dict.fromkeys([*env_then, *env_else]):
            one, two = env_then.get(identifier), env_else.get(identifier)
            if same(one, two):
                if one is not None:
                    env[identifier] = one
            elif after is not None and identifier not in after:
                env.pop(identifier, None)
            else:
                target = self.fresh(identifier.split()[0])
                leaves = self.departures.is_unread(identifier, after_then)
                other = self.departures.is_unread(identifier, after_else)
                unread = ("then", "orelse")[other] if leaves != other else ""
                statement.phis.append(Phi(target, one, two, unread))
                env[identifier] = name(target)
        self.block.append(statement)

    def behind(self, env: Env, names: set[str]) -> set[str]:
        """Return the variables that hold the values of names that are lists."""
        return set()

    def align(self, then: Env, orelse: Env, after: set[str] | None, line: int) -> None:
        """Make values that are not atoms mergeable."""

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
        key = f"{stem} chosen {self.line}"
        while key in env:
            key += "'"

        def into(make: Callable[[Env], ast.expr]) -> Callable[[Env], None]:
            return lambda inner: inner.update({key: make(inner)})

        self.choose(cond, into(then), into(orelse), env, None, self.line, certain)
        return env.pop(key)

    def expression(self, node: ast.expr, env: Env, stem: str = "t") -> ast.expr:
        """Append the code of an expression; return its atom."""
        self.line = getattr(node, "lineno", self.line)
        if isinstance(node, ast.Constant):
            return constant(node.value)
        if isinstance(node, ast.Name):
            if node.id in env:
                return env[node.id]
            if node.id in self.local:
                raise self.source.refuse(
                    f"{node.id!r} is undefined here on every path; assign it first", node
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
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            if not (_is_literal(node.left) and _is_literal(node.right)):
                left = self.let(left, "t")  # so that Python does not fold it
        return self.let(ast.BinOp(left, node.op, right), stem)

    def _unaryop(self, node: ast.UnaryOp, env: Env, stem: str) -> ast.expr:
        operand = self.expression(node.operand, env)
        if isinstance(operand, ast.Constant) and isinstance(node.op, ast.Invert):
            if not _is_literal(node.operand):
                operand = self.let(operand, "t")  # so that Python does not fold it
        if isinstance(operand, ast.Constant) and isinstance(node.op, ast.USub):
            if isinstance(operand.value, int) and operand.value >= 2**63:
                raise self.source.refuse(
                    "cannot differentiate minus an integer of 2**63 or more, which is unsigned for "
                    "numba; write the value that is meant, as np.int64 or np.uint64",
                    node,
                )
            value: Any = operand.value
            return constant(-value)
        return self.let(ast.UnaryOp(node.op, operand), stem)

    def _compare(self, node: ast.Compare, env: Env, stem: str) -> ast.expr:
        left = self.expression(node.left, env)
        return self.comparison(left, node.ops, node.comparators, env, stem)

    def comparison(
        self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr], env: Env, stem: str
    ) -> ast.expr:
        """Append a possibly chained comparison; each operand is evaluated once."""
        right = self.expression(others[0], env)
        if isinstance(ops[0], (ast.Is, ast.IsNot)) and isinstance(left, ast.Constant):
            if left.value is not None:
                left = self.let(left, "t")  # Python warns of a comparison with a literal
        first = self.let(ast.Compare(left, ops[:1], [right]), stem)
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
            if isinstance(part, ast.FormattedValue):
                value = self.expression(part.value, env)
                parts.append(ast.FormattedValue(value, part.conversion, part.format_spec))
            else:
                parts.append(part)
        return self.let(ast.JoinedStr(parts), stem)

    def _dict(self, node: ast.Dict, env: Env, stem: str) -> ast.expr:
        items: list[tuple[ast.expr, ast.expr]] = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise self.source.refuse("cannot differentiate ** in a dict; name the items", node)
            items.append((self.expression(key, env), self.expression(value, env)))
        return self.let(ast.Dict([k for k, _ in items], [v for _, v in items]), stem)

    def _set(self, node: ast.Set, env: Env, stem: str) -> ast.expr:
        return self.let(ast.Set([self.expression(item, env) for item in node.elts]), stem)

    def _tuple(self, node: ast.Tuple, env: Env, stem: str) -> ast.expr:
        items = [self.expression(item, env) for item in node.elts]
        return self.let(ast.Tuple(items, ast.Load()), stem)

    def _subscript(self, node: ast.Subscript, env: Env, stem: str) -> ast.expr:
        base = self.expression(node.value, env)
        index = self.index(node.slice, env)
        return self.let(ast.Subscript(base, index, ast.Load()), stem)

    def index(self, node: ast.expr, env: Env) -> ast.expr:
        """Return an index: an atom, a slice of atoms, or a tuple of these."""
        if _is_ellipsis(node):
            return ast.Tuple([node], ast.Load())  # numba can write to a[...], but not read it
        if isinstance(node, ast.Tuple):
            items = [i if _is_ellipsis(i) else self.index(i, env) for i in node.elts]
            return ast.Tuple(items, ast.Load())
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
                found = self.method(base, node, env, stem)
                if found is not None:
                    return found
                callee = ast.Attribute(base, node.func.attr, ast.Load())
            else:
                callee = self.expression(node.func, env)
        value: Any = self.statics.get(callee.id) if isinstance(callee, ast.Name) else None
        if value is np.select and _is_of_lists(node):
            return self.selection(node, env, stem)
        arguments: list[ast.expr] = []
        for position, argument in enumerate(node.args):
            if position == 0 and isinstance(argument, ast.List) and value in (np.array, np.asarray):
                arguments.append(self.nested_list(argument, env))
            elif isinstance(argument, ast.Starred):
                arguments.append(ast.Starred(self.expression(argument.value, env), ast.Load()))
            else:
                arguments.append(self.expression(argument, env))
        keywords = []
        for word in node.keywords:
            if word.arg is None:
                raise self.source.refuse("cannot differentiate a call with **; name it", node)
            keywords.append(ast.keyword(word.arg, self.expression(word.value, env)))
        starred = any(isinstance(argument, ast.Starred) for argument in arguments)
        if keywords and hasattr(value, "py_func") and not starred:
            arguments, keywords = positional(value.py_func, arguments, keywords)
        return self.called(ast.Call(callee, arguments, keywords), value, env, stem)

    def method(self, base: ast.expr, node: ast.Call, env: Env, stem: str) -> ast.expr | None:
        """Append a method call on a list of floats; return None for other objects."""
        return None

    def called(self, call: ast.Call, value: Any, env: Env, stem: str) -> ast.expr:
        """Append a call of the function `value`, None if unknown."""
        if value is divmod and len(call.args) == 2 and not call.keywords:
            left, right = call.args
            parts = [ast.BinOp(left, op, right) for op in (ast.FloorDiv(), ast.Mod())]
            return self.let(ast.Tuple([self.let(p, stem) for p in parts], ast.Load()), stem)
        return self.let(call, stem)

    def selection(self, node: ast.Call, env: Env, stem: str) -> ast.expr:
        """Append `np.select` of lists as the selections that it consists of.

        A list of arrays has no derivative, and a tuple of them is accepted for one layout only.
        """
        conditions, choices = (
            [self.expression(item, env) for item in given.elts]
            for given in node.args[:2]
            if isinstance(given, ast.List)
        )
        default = [*node.args[2:], *(word.value for word in node.keywords)]
        found = self.expression(default[0], env) if default else constant(0)
        where = self.outside("np.where", np.where)
        for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
            found = self.let(ast.Call(where, [condition, choice, found], []), stem)
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


def _is_of_lists(node: ast.Call) -> bool:
    """Whether a call of `np.select` has a list of as many choices as conditions."""
    given = node.args[:2]
    sizes = {len(argument.elts) for argument in given if isinstance(argument, ast.List)}
    return len(given) == 2 and all(isinstance(a, ast.List) for a in given) and len(sizes) == 1


def _is_literal(node: ast.expr) -> bool:
    """Whether Python folds an expression at compile time."""
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    return isinstance(node, ast.Constant)


def same(one: ast.expr | None, two: ast.expr | None) -> bool:
    """Whether two atoms are the same."""
    if one is None or two is None or type(one) is not type(two):
        return one is two
    if hasattr(one, "site") and hasattr(two, "site"):
        return one.site == two.site
    if isinstance(one, ast.Name) and isinstance(two, ast.Name):
        return one.id == two.id
    if isinstance(one, ast.Constant) and isinstance(two, ast.Constant):
        return type(one.value) is type(two.value) and repr(one.value) == repr(two.value)
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
