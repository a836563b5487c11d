"""Tangents of several directions in one pass.

A function of forward mode computes its values once, and each tangent from them. The tangents of
other directions follow from the same values, by the same statements with other names: each
statement for tangents is written once for every direction. This works on finished code, which was
verified with one direction; what it makes is compared with that code
(`tapegrad.transform.verifier.directions`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tapegrad.transform.codegen.forward import Forward
from tapegrad.transform.errors import SingleDirectionError
from tapegrad.transform.generated import Generated
from tapegrad.transform.ir import Role, names_in, take
from tapegrad.transform.nodes import integer
from tapegrad.transform.syntax import callee_of, copied, name_of, subtree, text_of

Names = dict[str, list[str]]
"""The names of a tangent in all directions, by its name in code with one direction."""

# They also return the position on the tape, which is the same in all directions.
ON_TAPE = frozenset(
    [
        "runtime.pop_array",
        "runtime.pop_owned_elements",
        "runtime.push_tangent",
        "runtime.push_tangent_elements",
    ]
)


def in_directions(
    functions: list[Generated],
    known: dict[str, tuple[Any, Any]],
    entry: str,
    given: int,
    count: int,
) -> tuple[list[Generated], dict[str, Names]]:
    """Return the functions of a module with tangents of several directions.

    Parameters
    ----------
    functions
        Its functions.
    known
        The modes of functions that are made from the user's, in which the new names get types.
    entry
        The pushforward, which returns the tangent alone.
    given
        The number of tangents that it takes.
    count
        The number of directions. The pushforward takes all directions of the first tangent, then
        those of the next one, and returns a tuple with the tangent of each direction.

    Returns
    -------
    functions
        The functions.
    names
        The names of tangents, by functions.

    Raises
    ------
    SingleDirectionError
        If tangents are computed in a way that is not known here.
    """
    trees = {function.name: function.tree for function in functions}
    modes = {n: known[n][0] for n in trees if n in known and isinstance(known[n][0], Forward)}
    names = {name: _tangents(trees[name], mode, count) for name, mode in modes.items()}
    params = [p.arg for p in trees[entry].args.args]
    taken = _all_names(trees[entry])
    names[entry] = {p: _directions(p, "", count, taken) for p in params[len(params) - given :]}
    for name, mode in modes.items():
        for tangent, directions in names[name].items():
            if tangent in mode.values:
                mode.values |= dict.fromkeys(directions[1:], mode.values[tangent])
    found = []
    for function in functions:
        if function.name in names:
            writer = _Writer(names, trees, function.name == entry, count)
            function = replace(function, tree=writer.function(function.tree))
        found.append(function)
    return found, names


def _all_names(tree: ast.FunctionDef) -> set[str]:
    params = {p.arg for p in tree.args.args}
    return params.union(names_in(tree))


def _tangents(tree: ast.FunctionDef, mode: Forward, count: int) -> Names:
    """Return the names of tangents, and of parts of them, in a function of forward mode.

    All names of derivatives are tangents there. The slopes of recurrences are those of all
    directions.
    """
    every = _all_names(tree)
    taken = every.union(mode.types)
    found = {}
    for name in sorted(every & mode.values.keys() - mode.types.keys()):
        value = mode.values[name]
        if value.role is Role.SLOPE:
            continue
        suffix = name.removeprefix(value.of) if name.startswith(value.of) else ""
        found[name] = _directions(name, suffix, count, taken)
    return found


def _directions(name: str, suffix: str, count: int, taken: set[str]) -> list[str]:
    stem = name.removesuffix(suffix)
    others = []
    for k in range(1, count):
        others.append(take(f"{stem}_in_{k}", taken) + suffix)
        taken.add(others[-1])
    return [name, *others]


class _Writer:
    """Writes one function for several directions."""

    def __init__(
        self,
        names: dict[str, Names],
        trees: dict[str, ast.FunctionDef],
        is_entry: bool,
        count: int,
    ) -> None:
        self.of_all = names
        self.trees = trees
        self.is_entry = is_entry
        self.count = count
        self.names: Names = {}

    def function(self, tree: ast.FunctionDef) -> ast.FunctionDef:
        self.names = self.of_all[tree.name]
        made = copied(tree)
        made.args.args = [
            ast.arg(name) for p in made.args.args for name in self.names.get(p.arg, [p.arg])
        ]
        made.body = list(self.block(made.body))
        return ast.fix_missing_locations(made)

    def block(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if self.is_entry and isinstance(node, ast.If):  # what it raises for bad arguments
                yield from self.repeated_check(node)
            elif isinstance(node, (ast.If, ast.For, ast.While)):
                heads = (node.iter, node.target) if isinstance(node, ast.For) else (node.test,)
                if any(map(self.has_tangents, heads)):
                    raise SingleDirectionError("control flow reads tangents")
                node.body = list(self.block(node.body))
                node.orelse = list(self.block(node.orelse))
                yield node
            elif isinstance(node, ast.Return):
                yield self.result(node)
            elif self.is_entry:
                yield from self.statement_of_entry(node)
            elif not self.has_tangents(node):
                yield node
            else:
                yield from self.statement(node)

    def repeated_check(self, node: ast.If) -> Iterator[ast.stmt]:
        """Yield a check of the arguments of the pushforward, for all tangents that it reads."""
        for k in range(self.count if self.has_tangents(node) else 1):
            yield self.renamed(node, k)

    def statement_of_entry(self, node: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the call of the function that computes tangents."""
        match node:
            case ast.Assign(_, ast.Call() as call):
                node.value = self.call(call)
            case _ if self.has_tangents(node):
                raise SingleDirectionError("a statement with tangents")
        yield node

    def statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the statements in place of one with tangents."""
        match node:
            case ast.Assign([ast.Tuple(targets), *_], ast.Tuple(values)):
                pairs = list(zip(targets, values, strict=True))
                made = [pair for one in pairs for pair in self.assignments(*one)]
                targets, values = map(list, zip(*made, strict=True))
                yield ast.Assign([ast.Tuple(targets, ast.Store())], ast.Tuple(values, ast.Load()))
                return
            case ast.Assign([ast.Tuple() as target, *_], value):
                on_tape = callee_of(value) in ON_TAPE
                if not on_tape and not all(map(self.is_tangent, subtree(target))):
                    yield self.call_of_both(target, value)
                    return
            case ast.Assign([target, *_]):
                if not self.is_of_tangent(target):
                    raise SingleDirectionError("something else is assigned from tangents")
            case ast.AugAssign(target):
                if not self.is_of_tangent(target):
                    raise SingleDirectionError("something else is changed by tangents")
            case ast.Expr(ast.Call()):
                pass
            case _:
                raise SingleDirectionError("a statement of another kind")
        for k in range(self.count):
            yield self.renamed(node, k)

    def assignments(self, target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
        """Return the assignments in place of one."""
        if not self.is_of_tangent(target):
            if self.has_tangents(value):
                raise SingleDirectionError("something else is assigned from tangents")
            return [(target, value)]
        return [(self.renamed(target, k), self.renamed(value, k)) for k in range(self.count)]

    def call_of_both(self, target: ast.Tuple, value: ast.expr) -> ast.stmt:
        """Return the call of a function that returns its value and tangents."""
        match target, value:
            case ast.Tuple([first, ast.Tuple() as dots]), ast.Call():
                if not self.has_tangents(first):
                    if not all(map(self.is_tangent, dots.elts)):
                        raise SingleDirectionError("something else is assigned with tangents")
                    pattern = ast.Tuple([first, self.repeated(dots)], ast.Store())
                    return ast.Assign([pattern], self.call(value))
        raise SingleDirectionError("an assignment of another kind")

    def call(self, call: ast.Call) -> ast.Call:
        """Return the call of a function of the module, with all directions of its tangents."""
        name = text_of(call.func)
        if name not in self.of_all or call.keywords:
            raise SingleDirectionError("a call of another function with tangents")
        params = [p.arg for p in self.trees[name].args.args]
        args: list[ast.expr] = []
        for param, argument in zip(params, call.args, strict=True):
            if param in self.of_all[name]:
                args += [self.renamed(argument, k) for k in range(self.count)]
            elif self.has_tangents(argument):
                raise SingleDirectionError("a call of another function with tangents")
            else:
                args.append(argument)
        return ast.Call(call.func, args, [])

    def result(self, node: ast.Return) -> ast.Return:
        """Return the statement that returns tangents of all directions."""
        value = node.value
        if self.is_entry:
            assert value is not None
            found = [self.picked(value, k) for k in range(self.count)]
            return ast.Return(ast.Tuple(found, ast.Load()))
        match value:
            case ast.Tuple([first, ast.Tuple() as dots]):
                if self.has_tangents(first):
                    raise SingleDirectionError("tangents are part of the value")
                return ast.Return(ast.Tuple([first, self.repeated(dots)], ast.Load()))
        raise SingleDirectionError("a result of another kind")

    def repeated(self, dots: ast.Tuple) -> ast.Tuple:
        """Return a tuple of tangents in all directions."""
        found = [self.renamed(dot, k) for dot in dots.elts for k in range(self.count)]
        return ast.Tuple(found, dots.ctx)

    def picked(self, value: ast.expr, direction: int) -> ast.expr:
        """Return the result of the pushforward in one direction."""
        made = copied(value)
        for node in subtree(made):
            if isinstance(node, ast.Subscript):
                place = integer(node.slice)
                assert place is not None
                node.slice = ast.Constant(place * self.count + direction)
        return made

    def renamed(self, node: Any, direction: int) -> Any:
        """Return a copy of code for one direction."""
        made = copied(node)
        for part in subtree(made):
            if isinstance(part, ast.Name) and part.id in self.names:
                part.id = self.names[part.id][direction]
        return made

    def is_tangent(self, node: ast.AST) -> bool:
        """Whether a node is no name of anything else than a tangent."""
        return not isinstance(node, ast.Name) or node.id in self.names

    def is_of_tangent(self, target: ast.expr) -> bool:
        """Whether what is assigned is a tangent or an element of one."""
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            target = target.value
        if isinstance(target, ast.Tuple):
            return all(map(self.is_of_tangent, target.elts))
        return name_of(target) in self.names

    def has_tangents(self, node: ast.AST) -> bool:
        return any(n in self.names for n in names_in(node))
