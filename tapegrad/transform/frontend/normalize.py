"""From the syntax tree of a function to its normal form (`tapegrad.transform.ir`)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from numba.core import types

from tapegrad.transform.frontend.atoms import Env
from tapegrad.transform.frontend.body import RESERVED, Body, is_made
from tapegrad.transform.frontend.breaks import Departures, Site
from tapegrad.transform.frontend.expressions import NEVER, Expressions
from tapegrad.transform.frontend.flow import NO_SEQUENCE, Flow, stem_of
from tapegrad.transform.frontend.inner_functions import Inlined, inline
from tapegrad.transform.frontend.items import Items
from tapegrad.transform.frontend.liveness import assigned, live
from tapegrad.transform.frontend.ranges import replace_ranges
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.ir import Effect, FunctionIR, constant, name
from tapegrad.transform.syntax import subtree

OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
# functions for augmented assignments to names, which change arrays in place
INPLACE = {
    "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv", "//": "ifloordiv", "%": "imod",
    "**": "ipow", "@": "imatmul", "&": "iand", "|": "ior", "^": "ixor", "<<": "ilshift",
    ">>": "irshift",
}  # fmt: skip
ASSIGNED = (
    "cannot differentiate the assignment to an attribute; return the value and pass it on as an "
    "argument, or store it in an array that is an argument"
)


def normalize(
    source: Source,
    infer: Callable[[FunctionIR], tuple[dict[str, Any], Any]],
) -> tuple[FunctionIR, dict[str, Any], Any]:
    """Return the normal form of a function, and the numba types of its names and its result.

    Parameters
    ----------
    source
        The function.
    infer
        Returns the types of a normal form. If there are lists of floats, or variables that may have
        another type at a break, the normal form is made again.
    """
    apart: set[Site] = set()
    while True:
        departures = Departures(apart)
        normalizer = _Normalizer(source, {}, departures)
        function = normalizer.function()
        kinds, result = infer(function)
        # other types in a loop may change those in inner loops
        if departures.found(kinds) <= apart:
            break
        apart |= departures.found(kinds)
    if (mixed := departures.mixed(kinds)) and (power := _integer_power(source.tree)):
        raise source.refuse(
            f"cannot differentiate a power of integers where {mixed!r} begins as an integer, gets "
            "another type on a path that leaves its loop, and `continue` leads back; let "
            f"{mixed!r} begin with a float: 0.0",
            power,
        )
    for identifier, node in normalizer.body.iterated.items():
        if isinstance(kinds.get(identifier), (types.DictType, types.Set)):
            raise source.refuse(NO_SEQUENCE, node)
    floats = {}
    for site, target in enumerate(normalizer.lists.sites):
        kind = kinds.get(target)
        if isinstance(kind, types.List) and isinstance(kind.dtype, types.Float):
            floats[site] = kind.dtype
    if not floats:
        return function, kinds, result
    function = _Normalizer(source, floats, Departures(apart)).function()
    return function, *infer(function)


def _integer_power(tree: ast.AST) -> ast.AST | None:
    """Return a power whose value depends on whether its operands are integers."""
    for node in subtree(tree):
        match node:
            case ast.BinOp(_, ast.Pow(), exponent) | ast.AugAssign(_, ast.Pow(), exponent):
                if not isinstance(exponent, ast.Constant):
                    return node
    return None


class _Normalizer:
    """Builds the normal form of one function.

    Parameters
    ----------
    source
        The function.
    floats
        The types of the items of lists that are arrays (see `Lists`).
    departures
        The places at which loops are left.
    """

    def __init__(self, source: Source, floats: dict[int, Any], departures: Departures) -> None:
        self.body = Body(source, departures)
        self.expressions = Expressions(self.body, floats, self.inlined)
        self.lists = self.expressions.lists
        self.flow = Flow(self.expressions, self.statements, self.assign)

    def inlined(self, node: Inlined, env: Env, stem: str) -> ast.expr:
        """Append the body of an inner function in place of its call."""
        return self.flow.inlined(node, env, stem)

    def function(self) -> FunctionIR:
        tree = self.body.source.tree
        arguments = tree.args
        if arguments.vararg or arguments.kwarg:
            raise self.body.refuse(
                "a function with *args or **kwargs; name its arguments", arguments
            )
        params = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        named = {p: self.parameter(p) for p in params}
        for node in subtree(tree):
            if isinstance(node, NEVER):
                raise self.body.refuse_node(node)
        self.body.local |= set(params)
        body = inline(self.body.source, tree.body, set(params), self.body.fresh)
        match body:
            case [ast.Expr(ast.Constant()) as text, *rest]:
                body = rest or [ast.copy_location(ast.Pass(), text)]
        self.body.local |= set(assigned(body))
        body = replace_ranges(body, set(params), self.body.static_value, self.body.fresh)
        statements, result = self.flow.structured(body)
        env: Env = {param: name(named[param]) for param in params}
        self.statements(statements, env, set() if result is None else {result})
        returned = None if result is None else env[result]
        if isinstance(returned, Items):
            raise self.body.refuse(
                "cannot differentiate a list of floats as a result; return an array: "
                "np.array(items)",
                self.body.line,
            )
        function = FunctionIR(
            tree.name,
            list(named.values()),
            self.body.block,
            returned,
            self.body.source,
            self.body.statics,
        )
        function.named = self.body.assigned
        return function

    def parameter(self, identifier: str) -> str:
        """Return the name of a parameter in generated code: the same name, if it is free there."""
        if identifier in RESERVED or is_made(identifier):
            return self.body.fresh(identifier)
        return identifier

    # -- statements ---------------------------------------------------------------------------

    def statements(self, nodes: list[ast.stmt], env: Env, after: set[str]) -> None:
        """Append the normal form of statements; `after` names the variables read later."""
        for position, node in enumerate(nodes):
            self.body.line = getattr(node, "lineno", self.body.line)
            rest = nodes[position + 1 :]
            match node:
                case ast.If():
                    self.flow.branch(node, env, live(rest, after))
                case ast.For():
                    self.flow.for_loop(node, env, live(rest, after))
                case ast.While():
                    self.flow.while_loop(node, env, live(rest, after))
                case _:
                    self.simple(node, env)

    def simple(self, node: ast.stmt, env: Env) -> None:
        match node:
            case ast.Assign(targets, value):
                found = self.value(value, env, targets)
                for target in targets:
                    self.assign(target, found, env)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self.assign(target, self.value(value, env, [target]), env)
            case ast.AugAssign():
                self.augmented(node, env)
            case ast.Expr(ast.Constant()) | ast.AnnAssign() | ast.Pass():
                pass
            case ast.Expr(value):
                self.expressions.expression(value, env)
            case ast.Raise():
                self.raising(node, env)
            case ast.Assert(test, message):
                shown: list[ast.expr] = [message] if isinstance(message, ast.Constant) else []
                error = ast.Raise(ast.Call(name("AssertionError"), shown, []), None)
                branch = ast.If(ast.UnaryOp(ast.Not(), test), [ast.copy_location(error, node)], [])
                self.flow.branch(ast.copy_location(branch, node), env, set())
            case ast.Delete(targets):
                for target in targets:
                    if not isinstance(target, ast.Name):
                        what = "cannot differentiate del of a part; leave it out"
                        raise self.body.refuse(what, node)
                    env.pop(target.id, None)
            case _:
                raise self.body.refuse_node(node)

    def raising(self, node: ast.Raise, env: Env) -> None:
        error = node.exc
        if isinstance(error, ast.Call):
            values = [self.expressions.expression(argument, env) for argument in error.args]
            error = ast.Call(self.static_only(error.func), values, [])
        elif error is not None:
            error = self.static_only(error)
        self.body.block.append(Effect(ast.Raise(error, None), node.lineno))

    def static_only(self, node: ast.expr) -> ast.expr:
        found = self.body.static(node)
        if found is None:
            raise self.body.refuse_node(node)
        return found

    def value(self, node: ast.expr, env: Env, targets: list[ast.expr]) -> Any:
        """Return the atom of a right-hand side, or a list of them for ``a, b = x, y``."""
        if isinstance(node, ast.Tuple):
            parts = [target.elts for target in targets if isinstance(target, (ast.Tuple, ast.List))]
            if len(parts) == len(targets) and all(len(p) == len(node.elts) for p in parts):
                return [
                    self.value(item, env, [p[k] for p in parts]) for k, item in enumerate(node.elts)
                ]
        return self.expressions.expression(node, env, stem_of(targets[0], "t"))

    def assign(self, target: ast.expr, value: Any, env: Env) -> None:
        match target:
            case ast.Name(id=identifier):
                if isinstance(value, list):
                    value = self.body.let(ast.Tuple(value, ast.Load()), identifier)
                env[identifier] = value
                self.body.assigned.setdefault(identifier, []).append(value)
            case ast.Tuple(parts) | ast.List(parts):
                for position, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        raise self.body.refuse_node(part)
                    if isinstance(value, list):
                        item = value[position]
                    else:
                        place = constant(position)
                        item = self.lists.item(value, place, env, stem_of(part, "t"))
                    self.assign(part, item, env)
            case ast.Subscript(array, place):
                base = self.expressions.expression(array, env)
                index = self.expressions.index(place, env)
                self.lists.store(base, index, value, "", env)
            case _:
                raise self.body.refuse(ASSIGNED, target)

    def augmented(self, node: ast.AugAssign, env: Env) -> None:
        op = OPERATORS[type(node.op)]
        text = f"operator.{INPLACE[op]}"
        match node.target:
            case ast.Name(id=identifier):
                old = self.expressions.expression(name(identifier), env)
                value = self.expressions.expression(node.value, env)
                if isinstance(old, ast.Constant) and isinstance(value, ast.Constant):
                    old = self.body.let(old, "t")  # so that Python does not fold it
                if isinstance(old, Items) and op == "+":
                    self.lists.extend(old, value, env)
                    return
                function = self.body.outside(text, getattr(operator, INPLACE[op]))
                made = self.body.let(ast.Call(function, [old, value], []), identifier)
                env[identifier] = made
                self.body.assigned.setdefault(identifier, []).append(made)
            case ast.Subscript(array, place):
                base = self.expressions.expression(array, env)
                index = self.expressions.index(place, env)
                if op in "+-" and not self.body.has_effects(node.value):
                    value = self.expressions.expression(node.value, env)
                    self.lists.store(base, index, value, op, env)
                    return
                # the element is read before the value is computed, which may change the element
                if isinstance(base, Items):
                    index = self.lists.position(base, index, env)
                    base = self.lists.array(base, env)
                old = self.body.let(ast.Subscript(base, index, ast.Load()), "t")
                value = self.expressions.expression(node.value, env)
                function = self.body.outside(text, getattr(operator, INPLACE[op]))
                made = self.body.let(ast.Call(function, [old, value], []), "t")
                self.lists.store(base, index, made, "", env)
            case _:
                raise self.body.refuse(ASSIGNED, node.target)
