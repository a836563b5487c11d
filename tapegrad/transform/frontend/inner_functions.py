"""Inlining of inner functions, lambdas and comprehensions.

numba inlines an inner function at its call, with the variables of the enclosing function as they
are then. So does the normal form: a call becomes an `Inlined` node, and a comprehension becomes the
call of a function whose loop fills a list or dict.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any

from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.ir import names_in
from tapegrad.transform.syntax import subtree

Renaming = dict[str, str]


class Definition:
    """An inner function.

    Attributes
    ----------
    name, parameters, defaults, body
        The parts of the function; defaults by parameter.
    bound
        Its local names.
    captured
        The names of the enclosing function that its body reads.
    """

    def __init__(
        self,
        name: str,
        parameters: list[str],
        defaults: dict[str, ast.expr],
        body: list[ast.stmt],
        node: ast.AST,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.defaults = defaults
        self.body = body
        self.node = node
        self.bound = set(parameters) | set(assigned(body))
        read = {found for statement in body for found in names_in(statement)}
        self.captured = sorted(read - self.bound)

    def renamed(self, new: Renaming) -> Definition:
        """Return the definition with names of the enclosing function replaced."""
        new = {old: found for old, found in new.items() if old not in self.bound}
        return Definition(
            self.name, self.parameters, self.defaults, rename(self.body, new), self.node
        )


class Inlined(ast.expr):
    """A call of an inner function; `captured` are the variables that its body reads."""

    _fields = ("args", "keywords", "captured")

    definition: Definition
    args: list[ast.expr]
    keywords: list[ast.keyword]
    captured: list[ast.Name]


def call_of(
    definition: Definition, args: list[ast.expr], keywords: list[ast.keyword], at: ast.AST
) -> Inlined:
    """Return a call of an inner function."""
    node = Inlined()
    node.definition = definition
    node.args = args
    node.keywords = keywords
    node.captured = [ast.Name(found, ast.Load()) for found in definition.captured]
    return ast.copy_location(node, at)


class _Rename(ast.NodeTransformer):
    def __init__(self, new: Renaming) -> None:
        self.new = new

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = ast.Name(self.new.get(node.id, node.id), node.ctx)
        return ast.copy_location(found, node)

    def visit_Inlined(self, node: Inlined) -> ast.expr:
        self.generic_visit(node)
        return call_of(node.definition.renamed(self.new), node.args, node.keywords, node)


def rename(body: list[ast.stmt], new: Renaming) -> list[ast.stmt]:
    """Return statements with names replaced."""
    return [_Rename(new).visit(copied(statement)) for statement in body]


def copied(node: Any) -> Any:
    """Return a copy of a tree that shares its definitions."""
    definitions = {
        id(part.definition): part.definition for part in subtree(node) if isinstance(part, Inlined)
    }
    return copy.deepcopy(node, definitions)


def inline(
    source: Source, body: list[ast.stmt], parameters: set[str], fresh: Callable[[str], str]
) -> list[ast.stmt]:
    """Return the body of a function with calls of inner functions as `Inlined` nodes."""
    own = [copied(statement) for statement in body]
    return _Inliner(source, fresh, {}).function(own, parameters)


class _Inliner(ast.NodeTransformer):
    """Rewrites one function; `known` are the definitions of the enclosing functions."""

    def __init__(
        self, source: Source, fresh: Callable[[str], str], known: dict[str, Definition | None]
    ) -> None:
        self.source = source
        self.fresh = fresh
        self.known = dict(known)

    def function(self, body: list[ast.stmt], parameters: set[str]) -> list[ast.stmt]:
        """Rewrite the statements of a function."""
        counts: dict[str, int] = {}
        for found in [*parameters, *_bindings(body)]:
            counts[found] = counts.get(found, 0) + 1
            self.known.pop(found, None)  # shadowed here
        self.counts = counts
        return self.block(body)

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        return [self.visit(node) for node in nodes]

    # -- definitions --------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        if node.decorator_list:
            raise self.source.refuse(
                f"cannot differentiate the inner function {node.name}, which has a decorator; "
                "define it at the level of the module",
                node,
            )
        return self.define(node.name, node.args, node.body, node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        match node:
            case ast.Assign([ast.Name(id=name)], ast.Lambda(arguments, value)):
                body: list[ast.stmt] = [ast.copy_location(ast.Return(value), value)]
                return self.define(name, arguments, body, node)
        self.generic_visit(node)
        return node

    def define(
        self, name: str, arguments: ast.arguments, body: list[ast.stmt], node: ast.stmt
    ) -> ast.stmt:
        if self.counts.get(name, 0) > 1:
            raise self.source.refuse(
                f"cannot differentiate the inner function {name}, a name that is given more than "
                "once; give each function a name of its own",
                node,
            )
        self.known[name] = self.definition(name, arguments, body, node)
        return ast.copy_location(ast.Pass(), node)

    def definition(
        self, name: str, arguments: ast.arguments, body: list[ast.stmt], node: ast.AST
    ) -> Definition:
        if arguments.vararg or arguments.kwarg:
            raise self.source.refuse(
                f"cannot differentiate the inner function {name} with *args or **kwargs; name its "
                "arguments",
                node,
            )
        positional = [*arguments.posonlyargs, *arguments.args]
        parameters = [a.arg for a in (*positional, *arguments.kwonlyargs)]
        defaults = dict(
            zip(
                [a.arg for a in positional[len(positional) - len(arguments.defaults) :]],
                arguments.defaults,
                strict=True,
            )
        )
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                defaults[argument.arg] = value
        for value in defaults.values():
            if not isinstance(value, ast.Constant):
                raise self.source.refuse(
                    f"cannot differentiate the inner function {name} with a computed default; "
                    "pass the argument",
                    value,
                )
        inner = _Inliner(self.source, self.fresh, self.known)
        inner.known[name] = None  # it must not call itself
        return Definition(name, parameters, defaults, inner.function(body, set(parameters)), node)

    # -- their use ----------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.expr:
        definition: Definition | None = None
        match node.func:
            case ast.Name(id=name) if name in self.known:
                definition = self.known[name]
                if definition is None:
                    raise self.source.refuse(
                        f"cannot differentiate the inner function {name}, which calls itself; "
                        "define it at the level of the module",
                        node,
                    )
            case ast.Lambda(given, value):
                body: list[ast.stmt] = [ast.copy_location(ast.Return(value), node.func)]
                definition = self.definition("lambda", given, body, node.func)
        if definition is None:
            self.generic_visit(node)
            return node
        arguments = [self.visit(argument) for argument in node.args]
        keywords = [self.visit(keyword) for keyword in node.keywords]
        return call_of(definition, arguments, keywords, node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.known and isinstance(node.ctx, ast.Load):
            raise self.source.refuse(
                f"cannot differentiate the inner function {node.id} where it is not called but "
                "passed on; define it at the level of the module",
                node,
            )
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        raise self.source.refuse(
            "cannot differentiate a lambda that is not called here but passed on; define a "
            "function at the level of the module",
            node,
        )

    # -- comprehensions -----------------------------------------------------------------------

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        self.generic_visit(node)
        found = self.fresh("items")
        empty = ast.List([], ast.Load())

        def add(item: list[ast.expr]) -> ast.stmt:
            method = ast.Attribute(ast.Name(found, ast.Load()), "append", ast.Load())
            return ast.Expr(ast.Call(method, item, []))

        return self.comprehension(node, found, empty, [node.elt], add)

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        self.generic_visit(node)
        found = self.fresh("items")
        empty = ast.Dict([], [])

        def add(item: list[ast.expr]) -> ast.stmt:
            place = ast.Subscript(ast.Name(found, ast.Load()), item[0], ast.Store())
            return ast.Assign([place], item[1])

        return self.comprehension(node, found, empty, [node.key, node.value], add)

    def comprehension(
        self,
        node: ast.ListComp | ast.DictComp,
        found: str,
        empty: ast.expr,
        item: list[ast.expr],
        add: Callable[[list[ast.expr]], ast.stmt],
    ) -> ast.expr:
        """Return the call of a function that fills a list or dict in loops."""
        new: Renaming = {}

        def own(part: ast.expr) -> ast.expr:
            return _Rename(new).visit(copied(part))

        loops: list[tuple[ast.expr, ast.expr, list[ast.expr]]] = []
        for generator in node.generators:
            iterable = own(generator.iter)
            for bound in names_in(generator.target):
                new[bound] = self.fresh(bound)
            loops.append((own(generator.target), iterable, [own(test) for test in generator.ifs]))
        statement = add([own(part) for part in item])
        for target, iterable, tests in reversed(loops):
            for test in reversed(tests):
                statement = ast.If(test, [statement], [])
            statement = ast.For(target, iterable, [statement], [])
        body: list[ast.stmt] = [
            ast.Assign([ast.Name(found, ast.Store())], empty),
            statement,
            ast.Return(ast.Name(found, ast.Load())),
        ]
        for part in body:
            for inner in subtree(part):
                if isinstance(inner, (ast.stmt, ast.expr)) and not hasattr(inner, "lineno"):
                    ast.copy_location(inner, node)
        return call_of(Definition("comprehension", [], {}, body, node), [], [], node)


def _bindings(body: list[ast.stmt]) -> list[str]:
    """Return the names that a function binds, with repetitions, without those of inner scopes."""
    found: list[str] = []
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.FunctionDef(name):
                found.append(name)
            case ast.Lambda() | ast.ListComp() | ast.DictComp() | ast.SetComp():
                pass
            case _:
                todo += ast.iter_child_nodes(node)
    return found
