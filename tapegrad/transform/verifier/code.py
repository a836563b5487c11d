"""The language of generated code, as read by the passes of the verifier."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard, TypeVar

from tapegrad.transform.errors import InternalError
from tapegrad.transform.nodes import binary
from tapegrad.transform.printer import is_parallel
from tapegrad.transform.syntax import is_loop, leaves, paired, subtree
from tapegrad.transform.verifier.purpose import UNKNOWN, Purpose

_SIMPLE = (
    *(ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Pass, ast.Break),
    ast.Assert,
)
MODULES = frozenset({"np", "math", "numba", "operator", "runtime", "arrays", "ops", "scalar_ops"})
_NESTED = (ast.If, ast.For, ast.While)

# what keeps arrays on the tape, and takes them from it: by reference, or by their elements
PUSHES = frozenset([("runtime", "push_array"), ("runtime", "push_elements")])
POPS = frozenset(
    [("runtime", "pop_array"), ("runtime", "pop_elements"), ("runtime", "pop_owned_elements")]
)
ZEROS = frozenset([("np", "zeros"), ("np", "zeros_like")])
TANGENT_PUSHES = frozenset([("runtime", "push_tangent"), ("runtime", "push_tangent_elements")])

_EXPRESSIONS = (
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict),
    *(ast.FormattedValue, ast.IfExp, ast.JoinedStr, ast.List, ast.Name, ast.Set, ast.Slice),
    *(ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp),
)

Node = TypeVar("Node", bound=ast.AST)
Found = TypeVar("Found")


def noted(function: Callable[[Node], Found]) -> Callable[[Node], Found]:
    """Keep what a function finds for a node in the attributes of the node."""
    key = f"_{function.__name__}"

    @functools.wraps(function)
    def known(node: Node) -> Found:
        attributes = vars(node)
        if key not in attributes:
            attributes[key] = function(node)
        found: Found = attributes[key]
        return found

    return known


@dataclass
class Code:
    """A generated function.

    Attributes
    ----------
    name, parameters, body
        Its parts.
    locals
        The names that it assigns, including parameters.
    primal
        The locals of the function that it is made from.
    arrays, numbers, flat
        Those that by the types that numba has inferred are arrays, numbers, or hold integers or
        truth values, which have no derivative.
    pure
        Names of functions that return the same for the same arguments.
    purposes
        What functions are for, by their names.
    """

    name: str
    parameters: list[str]
    body: list[ast.stmt]
    lines: list[str]
    locals: set[str] = field(default_factory=set)
    primal: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    flat: set[str] = field(default_factory=set)
    pure: frozenset[str] = frozenset()
    purposes: Mapping[str, Purpose] = field(default_factory=dict)

    @property
    def purpose(self) -> Purpose:
        """What it is for."""
        return self.purpose_of(self.name)

    def purpose_of(self, function: str) -> Purpose:
        """Return what a function is for that it calls."""
        return self.purposes.get(function, UNKNOWN)

    @functools.cached_property
    def statements(self) -> list[ast.stmt]:
        """All statements, nested ones after the one that contains them."""
        return list(walk(self.body))

    @functools.cached_property
    def uses(self) -> list[ast.Subscript | ast.Attribute | ast.Call]:
        """All subscripts, attributes and calls."""
        return [
            node
            for statement in self.statements
            for expression in expressions(statement)
            for node in nodes_of(expression)
            if isinstance(node, (ast.Subscript, ast.Attribute, ast.Call))
        ]

    @functools.cached_property
    def returned(self) -> list[ast.expr]:
        """The parts of what its last statement that returns a value returns."""
        found = [s.value for s in self.statements if isinstance(s, ast.Return) and s.value]
        return results_of(found[-1] if found else None)

    @functools.cached_property
    def pairs(self) -> list[tuple[str, ast.expr]]:
        """All assigned names with their values."""
        return [pair for statement in self.statements for pair in named_pairs(statement)]

    def wrong(self, what: str, node: ast.AST) -> InternalError:
        """Return an error that points to a node."""
        line = getattr(node, "lineno", 1)
        return InternalError(what, self.name, line, self.lines[line - 1].strip())


class Primal(NamedTuple):
    """The function that some generated code is made from, in the same language.

    Attributes
    ----------
    text
        Its text.
    arrays, numbers
        Its names of arrays and of numbers.
    flat
        Those of integers, truth values, and arrays of them, which have no derivative.
    """

    text: str
    arrays: set[str]
    numbers: set[str]
    flat: set[str]


def functions_of(text: str) -> list[Code]:
    """Return the functions of a generated module.

    Raises
    ------
    InternalError
        If it contains anything that is not in the language.
    """
    lines = text.splitlines()
    found = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            raise InternalError("not a function", "(module)", node.lineno, lines[node.lineno - 1])
        for loop in filter(is_parallel, walk(node.body)):
            # whether its iterations are independent is proved elsewhere
            assert isinstance(loop.iter, ast.Call)
            loop.iter.func = ast.Name("range", ast.Load())
        given = node.args
        code = Code(node.name, [a.arg for a in given.args], _without_rows(node.body), lines)
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults:
            raise code.wrong("parameters of another kind than positional ones", node)
        _check(code, node.body)
        code.locals = assigned(node.body).union(code.parameters)
        found.append(code)
    return found


def _without_rows(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a block in which elements of rows are read as elements of the tape.

    That is ``tape[start + turn]`` for ``row[turn]``, where ``row = runtime.row(tape, start,
    length)`` is directly before the loop that uses it, and the loop leaves `tape` and `top` as they
    are. Other rows are views.
    """
    found: list[ast.stmt] = []
    rows: dict[str, ast.expr] = {}
    pending: list[ast.stmt] = []
    for statement in body:
        for block in blocks(statement):
            block[:] = _without_rows(block)
        named = _row_of(statement)
        if named is not None:
            rows[named[0]] = named[1]
            pending.append(statement)
            continue
        if pending and isinstance(statement, ast.For) and not _moves_tape(statement):
            statement = _OfTape(rows).visit(statement)
            pending = []
        found += pending
        found.append(statement)
        rows, pending = {}, []
    return found + pending


def _row_of(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the name of a row of the tape and its start, None for other statements."""
    match statement:
        case ast.Assign([ast.Name(id=row), *_], value) if calls(value, [("runtime", "row")]):
            tape, start, end = value.args
            length = name_of(end)
            if name_of(tape) != "tape" or not length:
                return None
            match start:
                case ast.Name("top"):
                    return row, start
                case ast.BinOp(ast.Name("top"), ast.Add(), ast.Name(id=one)) if one == length:
                    return row, start
                case ast.BinOp(
                    ast.Name("top"),
                    ast.Add(),
                    ast.BinOp(ast.Constant(count), ast.Mult(), ast.Name(id=one)),
                ) if type(count) is int and one == length:
                    return row, start
    return None


def _moves_tape(loop: ast.For) -> bool:
    return not assigned(loop.body).isdisjoint(("tape", "top"))


class _OfTape(ast.NodeTransformer):
    """Replaces elements of rows by those of the tape."""

    def __init__(self, rows: dict[str, ast.expr]) -> None:
        self.rows = rows

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        start = self.rows.get(name_of(node.value))
        if start is None:
            return self.generic_visit(node)
        place = binary(start, "+", node.slice)
        tape = ast.copy_location(ast.Name("tape", ast.Load()), node)
        return ast.copy_location(ast.Subscript(tape, place, node.ctx), node)


def _check(code: Code, body: list[ast.stmt]) -> None:
    """Refuse nodes that are not in the language."""
    for statement in walk(body):
        if not isinstance(statement, (*_SIMPLE, *_NESTED)):
            raise code.wrong(
                f"a statement that no pass knows ({type(statement).__name__})", statement
            )
        if is_loop(statement) and statement.orelse:
            raise code.wrong("a loop with an else", statement)
        for expression in expressions(statement):
            for node in nodes_of(expression):
                if isinstance(node, ast.expr) and not isinstance(node, _EXPRESSIONS):
                    what = f"an expression that no pass knows ({type(node).__name__})"
                    raise code.wrong(what, node)


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks in a statement, those that handle errors last."""
    found = [getattr(statement, "body", []), getattr(statement, "orelse", [])]
    return found + [handler.body for handler in getattr(statement, "handlers", ())]


def walk(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements of a block, nested ones after the one that contains them."""
    for statement in body:
        yield statement
        for block in blocks(statement):
            yield from walk(block)


def expressions(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions of a statement, without those of nested statements."""
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def reads(statement: ast.stmt) -> list[ast.Name]:
    """Return the names that a statement reads, without nested statements.

    An augmented assignment reads its target; a store to an element reads the array.
    """
    found = [name for expression in expressions(statement) for name in names_in(expression)]
    match statement:
        case ast.AugAssign(ast.Name() as target):
            found.append(target)
    return found


@noted
def targets(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns, without nested statements (cached)."""
    given: list[ast.expr] = []
    match statement:
        case ast.Assign(several):
            given = several
        case ast.AugAssign(target) | ast.For(target):
            given = [target]
    return [
        node.id
        for target in given
        for node in nodes_of(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def assigned(body: list[ast.stmt]) -> set[str]:
    """Return the names that the statements of a block assign."""
    return {name for statement in walk(body) for name in targets(statement)}


def is_endless(statement: ast.While) -> bool:
    """Whether a loop is left only by ``break``."""
    return isinstance(statement.test, ast.Constant) and statement.test.value is True


def condition(test: ast.expr) -> tuple[str, bool] | None:
    """Return the variable that a test reads, and its value if the test is true."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            found = condition(operand)
            return None if found is None else (found[0], not found[1])
        case ast.Name(id=name):
            return name, True
    return None


def makes_named_tuple(node: ast.expr) -> TypeGuard[ast.Call]:
    """Whether an expression calls the class of a named tuple."""
    return called(node).startswith("class_")


def results_of(node: ast.expr | None) -> list[ast.expr]:
    """Return the parts of a returned value, if any; named tuples are flattened as well."""
    if node is None:
        return []
    if isinstance(node, ast.Tuple):
        items = node.elts
    elif makes_named_tuple(node):
        items = node.args
    else:
        return [node]
    return [leaf for item in items for leaf in results_of(item)]


def returned_by(statement: ast.stmt) -> list[ast.expr]:
    """Return the parts of what a statement returns, [] for other statements."""
    return results_of(statement.value) if isinstance(statement, ast.Return) else []


def pairs_in(statement: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment with their values, [] for other statements."""
    if isinstance(statement, ast.Assign):
        return paired(statement.targets[0], statement.value)
    return []


def named_pairs(statement: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Return the names that an assignment gives a value each, with the values."""
    return [(name, value) for target, value in pairs_in(statement) if (name := name_of(target))]


def call_in(node: ast.AST) -> ast.Call | None:
    """Return the call that is the value of a statement, None for other statements."""
    value = getattr(node, "value", None)
    return value if isinstance(value, ast.Call) else None


def sign_of(operator: ast.AST) -> int:
    """Return -1 for an operator that subtracts or changes the sign, 1 for others."""
    return -1 if isinstance(operator, (ast.Sub, ast.USub)) else 1


def is_in(node: ast.AST | None, names: Container[str]) -> TypeGuard[ast.Name]:
    """Whether an expression is one of some names."""
    return isinstance(node, ast.Name) and node.id in names


def called(node: ast.AST | None) -> str:
    """Return the name of the callee, if it is called by a plain name, else ""."""
    return name_of(node.func) if isinstance(node, ast.Call) else ""


def calls(node: ast.AST | None, functions: Container[tuple[str, str]]) -> TypeGuard[ast.Call]:
    """Whether a node calls one of some functions of modules."""
    return module_call(node) in functions


def module_call(node: ast.AST | None) -> tuple[str, str]:
    """Return the module and the name of the callee; two empty texts if it is of no module."""
    parts: list[str] = []
    func = node.func if isinstance(node, ast.Call) else None
    while isinstance(func, ast.Attribute):
        parts.append(func.attr)
        func = func.value
    if parts and is_in(func, MODULES):
        found = ".".join([func.id, *parts[:0:-1]]), parts[0]
        # an array that was cleared is like a new one
        return ("np", "zeros_like") if found == ("runtime", "cleared") else found
    return "", ""


def method_of(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return the instance and the name of a method that is called, None for functions."""
    match node:
        case ast.Call(ast.Attribute(instance, method)) if not module_call(node)[0]:
            return instance, method
    return None


def name_of(node: ast.AST | None) -> str:
    """Return the name that a node is, "" for other nodes."""
    return node.id if isinstance(node, ast.Name) else ""


def names_of(target: ast.expr) -> list[str]:
    """Return the names in a target, which may be a tuple."""
    return names_among(leaves(target))


def names_among(nodes: Iterable[ast.AST]) -> list[str]:
    """Return those of some nodes that are names."""
    return list(filter(None, map(name_of, nodes)))


@noted
def nodes_of(node: ast.AST) -> list[ast.AST]:
    """Return a node and all its descendants (cached)."""
    return list(subtree(node))


@noted
def names_in(node: ast.AST) -> list[ast.Name]:
    """Return the names that an expression reads (cached)."""
    return [
        inner
        for inner in nodes_of(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    ]


def base_of(node: ast.expr) -> ast.expr:
    """Return what subscripts select from."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node
