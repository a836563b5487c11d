"""Short functions are inlined: their statements take the place of the call.

So loops that call them can be fused and use vector instructions, and nothing that the callee
computes has to be handed to its reverse. What is inlined is the typed normal form of the callee,
with its own names; the objects that it names keep their origin in the callee's module.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numba
from numba.core import types

from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend.body import RESERVED, is_made
from tapegrad.transform.frontend.constants import plain
from tapegrad.transform.frontend.source import MISSING, Source
from tapegrad.transform.ir import (
    Block,
    FunctionIR,
    If,
    Let,
    Loop,
    Phi,
    constant,
    defined,
    name,
    names_of,
    replace_names,
    stem_of,
    take,
    walk,
)
from tapegrad.transform.lowering.callees import is_plain
from tapegrad.transform.protocols import Program
from tapegrad.transform.syntax import has, has_starred, identifier_of, name_of, text_of

_MOST = 40  # statements of a function that is inlined
_MOST_OF_ALL = 240  # statements that the calls in one function become
_OPTIONS = ("error_model", "boundscheck", "parallel")
# what a function without loops and errors does not have
_CONTROL = (
    *(ast.For, ast.While, ast.ListComp, ast.GeneratorExp),
    *(ast.DictComp, ast.SetComp, ast.Raise, ast.Assert, ast.Try, ast.With, ast.Lambda),
)

Form = Callable[[Any, tuple[Any, ...]], FunctionIR]


def inline(function: FunctionIR, dispatcher: Any, program: Program, form: Form) -> bool:
    """Inline the short functions that a function calls.

    Parameters
    ----------
    function
        The typed normal form, which is changed.
    dispatcher
        The numba function that it is the normal form of.
    program
        What names the objects that the callees refer to.
    form
        Returns the typed normal form of a numba function for argument types.

    Returns
    -------
    bool
        Whether anything was inlined.
    """
    inlining = _Inlining(function, dispatcher.targetoptions, program, form)
    function.body = inlining.block(function.body)
    return inlining.count > 0


class _Inlining:
    def __init__(
        self, function: FunctionIR, options: dict[str, Any], program: Program, form: Form
    ) -> None:
        self.function = function
        self.options = options
        self.program = program
        self.form = form
        self.count = 0
        self.taken = names_of(function).union(function.statics, RESERVED)

    def block(self, block: Block) -> Block:
        found: Block = []
        for statement in block:
            if isinstance(statement, If):
                statement.then = self.block(statement.then)
                statement.orelse = self.block(statement.orelse)
            elif isinstance(statement, Loop):
                statement.test = self.block(statement.test)
                statement.body = self.block(statement.body)
            elif isinstance(statement, Let) and (body := self.body_of(statement)) is not None:
                self.count += len([*walk(body)])
                found += body
                continue
            found.append(statement)
        return found

    def body_of(self, let: Let) -> Block | None:
        """Return the statements that compute the result of a call; None if it stays a call."""
        call = let.expr
        if not isinstance(call, ast.Call):
            return None
        callee = self.function.statics.get(name_of(call.func))
        if not is_plain(callee, call) or not self.is_suitable(callee):
            return None
        given = _bound(callee, call)
        kinds = [self.kind_of(value) for value in given or ()]
        if given is None or not all(map(_is_data, kinds)):
            return None
        try:
            form = self.form(callee, tuple(kinds))
        except TransformError:
            return None  # an error of the call, if it matters
        statements = [*walk(form.body)]
        if len(statements) > min(_MOST, _MOST_OF_ALL - self.count):
            return None
        if not all(isinstance(statement, (Let, If)) for statement in statements):
            return None
        names = {n for statement in statements for n in defined(statement)}
        result = name_of(form.result)
        if result not in names or form.types.get(result) != self.function.types.get(let.target):
            return None
        return self.renamed(form, callee, given, result, let)

    def is_suitable(self, callee: Any) -> bool:
        """Whether a callee has no loops, and raises errors where its caller does."""
        if any(self.options.get(o) != callee.targetoptions.get(o) for o in _OPTIONS):
            return False
        try:
            tree = Source(callee.py_func).tree
        except TransformError:
            return False
        return not has(tree, *_CONTROL)

    def kind_of(self, value: ast.expr) -> Any:
        """Return the type of an argument, None if it is not a local value."""
        if isinstance(value, ast.Constant):
            return types.unliteral(numba.typeof(value.value))
        found = self.function.types.get(text_of(value))
        return None if found is None else types.unliteral(found)

    def renamed(
        self, form: FunctionIR, callee: Any, given: list[ast.expr], result: str, call: Let
    ) -> Block:
        """Return the body of a callee with the names of the caller."""
        new: dict[str, ast.expr] = {}
        found: Block = []
        for param, value in zip(form.params, given, strict=True):
            if isinstance(value, ast.Name):
                new[param] = value
                continue
            # not put in place: Python computes with constants before numba does, and otherwise
            new[param] = target = self.fresh(param, form.types[param])
            found.append(Let(target.id, value, call.line))
        for text, value in form.statics.items():
            new[text] = name(self.static(text, value, form, callee))
        for identifier in [n for statement in walk(form.body) for n in defined(statement)]:
            kind = form.types.get(identifier)
            is_result = identifier == result
            new[identifier] = name(call.target) if is_result else self.fresh(identifier, kind)
        return found + _Renaming(new, call.line).block(form.body)

    def fresh(self, identifier: str, kind: Any) -> ast.Name:
        """Return a new name for a value of the callee."""
        stem = stem_of(identifier)
        if is_made(stem):
            stem = identifier
        found = take(stem, self.taken)
        if kind is not None:
            self.function.types[found] = kind
        return name(found)

    def static(self, text: str, value: Any, form: FunctionIR, callee: Any) -> str:
        """Return the name, in the caller, of an object that the callee refers to."""
        origin = form.origins.get(text, ("name", form.source.function, text))
        found = self.program.static(text, value, origin)
        own = self.taken - RESERVED  # those mean the same everywhere
        while found in own and self.function.statics.get(found) is not value:
            text = f"{identifier_of(callee.py_func)}_{text}"
            found = self.program.static(text, value, origin)
        self.taken.add(found)
        self.function.statics[found] = value
        self.function.origins[found] = origin
        return found


class _Renaming:
    """Copies statements with other names, and one line for all of them."""

    def __init__(self, new: dict[str, ast.expr], line: int) -> None:
        self.new = new
        self.line = line

    def block(self, block: Block) -> Block:
        return [
            Let(self.target(s.target), self.atom(s.expr), self.line, every=s.every)
            if isinstance(s, Let)
            else self.branch(s)
            for s in block
        ]

    def branch(self, branch: If) -> If:
        phis = [
            Phi(self.target(p.target), self.atom(p.then), self.atom(p.orelse), p.unread)
            for p in branch.phis
        ]
        then, orelse = self.block(branch.then), self.block(branch.orelse)
        return If(self.atom(branch.cond), then, orelse, phis, self.line, branch.certain)

    def target(self, identifier: str) -> str:
        found = self.new[identifier]
        assert isinstance(found, ast.Name)
        return found.id

    def atom(self, expr: Any) -> Any:
        """Return an expression with the new names; None stays None."""
        return None if expr is None else replace_names(expr, self.new)


def _bound(callee: Any, call: ast.Call) -> list[ast.expr] | None:
    """Return the arguments in order; None if one is not a number or array of the caller."""
    if has_starred(call.args):
        return None
    signature = inspect.signature(callee.py_func)
    named = {str(keyword.arg): keyword.value for keyword in call.keywords}
    try:
        bound = signature.bind(*call.args, **named)
    except TypeError:
        return None
    found: list[ast.expr] = []
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            return None
        value = bound.arguments.get(parameter.name)
        if value is None:
            default = plain(parameter.default)
            if default is MISSING:
                return None
            value = constant(default)
        if not isinstance(value, (ast.Name, ast.Constant)):
            return None
        found.append(value)
    return found


def _is_data(kind: Any) -> bool:
    """Whether values of a type are numbers, arrays of them, or tuples of both."""
    if isinstance(kind, types.BaseTuple):
        return all(map(_is_data, kind))
    if isinstance(kind, types.Array):
        kind = kind.dtype
    return isinstance(kind, (types.Number, types.Boolean))
