"""Statements of generated code, added one after the other, and those of the normal form.

Generated code is made of Python's ``ast`` nodes, as the expressions of the normal form are. A
function of all statements is what Python's parser would make of its text
(`tapegrad.transform.trees.complete`), so that passes may change it.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tapegrad.transform.ir import (
    Block,
    Carried,
    Effect,
    FunctionIR,
    If,
    Let,
    Loop,
    Store,
    Structure,
    name,
)
from tapegrad.transform.nodes import (
    OPERATORS,
    call_of,
    counting,
    expression_of,
    is_number,
    item,
    opposite,
    tuple_of,
)
from tapegrad.transform.printer import PARALLEL, UNDEFINED
from tapegrad.transform.syntax import name_of
from tapegrad.transform.trees import NO_PARTS, Part, complete, quoted_block

Pair = tuple[ast.expr, ast.expr]  # a target and a value


class Builder:
    """Statements, added at the end of a block.

    Parameters
    ----------
    in_order
        Whether parallel loops become loops that run in order.
    """

    def __init__(self, in_order: bool = False) -> None:
        self.in_order = in_order
        self.body: list[ast.stmt] = []

    # -- statements ---------------------------------------------------------------------------

    def add(self, statement: ast.stmt) -> None:
        """Add a statement."""
        self.body.append(statement)

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Add ``target = value``."""
        self.body.append(ast.Assign([target], value, lineno=0))

    def update(self, target: ast.expr, sign: str, value: ast.expr) -> None:
        """Add ``target += value``, or another operation by its sign."""
        assert isinstance(target, (ast.Name, ast.Subscript))
        self.body.append(ast.AugAssign(target, OPERATORS[sign](), value))

    def do(self, expr: ast.expr) -> None:
        """Add an expression statement, such as a call."""
        self.body.append(ast.Expr(expr))

    def quote(self, template: str, **parts: Part) -> None:
        """Add the statements of a template (`tapegrad.transform.trees`)."""
        self.body += quoted_block(template, **parts)

    def result(self, value: ast.expr) -> None:
        """Add ``return value``."""
        self.body.append(ast.Return(value))

    def lines(self, lines: Sequence[str]) -> None:
        """Add statements that are given as text, such as checks of arguments."""
        if lines:
            self.body += ast.parse("\n".join(lines)).body

    def extend(self, other: Builder) -> None:
        """Add all statements of another builder."""
        self.body += other.body

    # -- blocks -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def within(self, block: list[ast.stmt]) -> Iterator[None]:
        """Add the statements of a ``with`` statement to another block, which is not left empty."""
        outer, self.body = self.body, block
        yield
        if not block:
            block.append(ast.Pass())
        self.body = outer

    def branch(self, test: ast.expr) -> ast.If:
        """Add a branch, whose blocks are still empty."""
        made = ast.If(test, [], [])
        self.body.append(made)
        return made

    @contextlib.contextmanager
    def when(self, test: ast.expr) -> Iterator[None]:
        """Add a branch of the statements inside."""
        with self.within(self.branch(test).body):
            yield

    @contextlib.contextmanager
    def loop(self, head: ast.For | ast.While) -> Iterator[None]:
        """Add a loop, whose head is given, of the statements inside."""
        self.body.append(head)
        with self.within(head.body):
            yield

    def leave_if(self, test: ast.expr) -> None:
        """Add that a loop is left on a condition."""
        self.body.append(ast.If(test, [ast.Break()], []))

    def assign_all(self, pairs: Iterable[Pair]) -> None:
        """Add simultaneous assignments, as separate ones if none reads the target of another."""
        pairs = [(target, value) for target, value in pairs if not _are_same(target, value)]
        targets = {name_of(target) for target, _ in pairs} - {""}
        if any(name_of(value) in targets for _, value in pairs):
            left, right = zip(*pairs, strict=True)
            self.assign(tuple_of(left), tuple_of(right))
        else:
            for target, value in pairs:
                self.assign(target, value)

    def statements(self) -> list[ast.stmt]:
        """Return copies of all statements, as the parser makes them (`complete`)."""
        return list(map(complete, self.body))

    def function(
        self, identifier: str, parameters: Sequence[str], parts: Mapping[str, Part] = NO_PARTS
    ) -> ast.FunctionDef:
        """Return the function of all statements, with parts in the places of names."""
        arguments = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
        made = ast.FunctionDef(identifier, arguments, self.body or [ast.Pass()], [], lineno=0)
        return complete(made, parts=parts)


def _are_same(target: ast.expr, value: ast.expr) -> bool:
    return name_of(target) == name_of(value) != ""


# -- the normal form ------------------------------------------------------------------------------


def merged_value(value: ast.expr | None) -> ast.expr:
    """Return a merged value, which may be undefined."""
    return call_of(UNDEFINED) if value is None else value


def value_or_none(value: ast.expr | None) -> ast.expr:
    """Return a value, None where it is undefined."""
    return ast.Constant(None) if value is None else value


def add_store(builder: Builder, store: Store) -> None:
    """Add a store.

    numba takes seconds to compile the assignment of a slice, so a whole array is assigned by a
    function that is compiled once.
    """
    if _is_whole(store.index):
        if store.op:
            builder.update(name(store.array), store.op, store.value)
            return
        if store.ndim in (1, 2):
            builder.do(call_of(f"arrays.assign_{store.ndim}", name(store.array), store.value))
            return
    place = item(name(store.array), store.index)
    if store.op:
        builder.update(place, store.op, store.value)
    else:
        builder.assign(place, store.value)


def _is_whole(index: ast.expr) -> bool:
    """Whether an index is ``:``."""
    return isinstance(index, ast.Slice) and not (index.lower or index.upper or index.step)


def add_block(builder: Builder, block: Block) -> None:
    """Add the primal code of a block."""
    for statement in block:
        if isinstance(statement, Let):
            add_let(builder, statement)
        elif isinstance(statement, Store):
            add_store(builder, statement)
        elif isinstance(statement, Effect):
            builder.add(statement.statement)
        elif isinstance(statement, If):
            node = builder.branch(statement.cond)
            for inner, body, merged in sides(statement, node):
                with builder.within(body):
                    add_block(builder, inner)
                    for target, value in merged:
                        builder.assign(name(target), merged_value(value))
        else:
            enter(builder, statement.carried)
            with iteration(builder, statement):
                add_block(builder, statement.body)
                advance(builder, statement.carried)
            leave(builder, statement.carried)


def add_let(builder: Builder, let: Let) -> None:
    """Add an operation."""
    builder.assign(expression_of(let.target), let.expr)


def sides(
    statement: If, node: ast.If
) -> list[tuple[Block, list[ast.stmt], list[tuple[str, ast.expr | None]]]]:
    """Return the block, the generated block and the merged names of each side of a branch."""
    return [
        (statement.then, node.body, statement.merged("then")),
        (statement.orelse, node.orelse, statement.merged("orelse")),
    ]


def head_of(loop: Loop, in_order: bool = False) -> ast.For | ast.While:
    """Return the head of a loop; one that is parallel may run in order."""
    if loop.bounds is None:
        return ast.While(ast.Constant(True), [], [])
    low, high, step = loop.bounds
    first_is_written, _, step_is_written = (hasattr(b, "is_written") for b in loop.bounds)
    if not is_number(step, 1) or step_is_written:
        given = [low, high, step]
    elif not is_number(low, 0) or first_is_written:
        given = [low, high]
    else:
        given = [high]
    return counting(loop.index or "", call_of("range" if in_order else range_of(loop), *given))


def range_of(loop: Loop) -> str:
    """Return the name of the function whose result a loop is over."""
    return PARALLEL if loop.parallel else "range"


@contextlib.contextmanager
def iteration(builder: Builder, loop: Loop) -> Iterator[None]:
    """Add a loop of the statements inside, with the conditions on which it is left."""
    with builder.loop(head_of(loop, builder.in_order)):
        if loop.cond is not None:
            add_block(builder, loop.test)
            builder.leave_if(opposite(loop.cond))
        yield
        if loop.exit is not None:
            builder.leave_if(loop.exit)


def enter(builder: Builder, carried: list[Carried]) -> None:
    """Add the assignments of the initial values of carried names."""
    for entry in carried:
        builder.assign(name(entry.phi), merged_value(entry.init))


def advance(builder: Builder, carried: list[Carried]) -> None:
    """Add the assignments of the next values of carried names."""
    builder.assign_all([(name(c.phi), merged_value(c.next)) for c in carried])


def leave(builder: Builder, carried: list[Carried]) -> None:
    """Add the assignments of the names after a loop."""
    for entry in carried:
        builder.assign(name(entry.out), name(entry.phi))


def result_of(function: FunctionIR) -> ast.expr:
    """Return the result of a function."""
    result = function.result
    if isinstance(result, Structure):
        return result.build(lambda leaf: leaf)
    return ast.Constant(None) if result is None else result


def function_of(
    function: FunctionIR, identifier: str, parts: Mapping[str, Part] = NO_PARTS
) -> ast.FunctionDef:
    """Return the code of a function in normal form; its loops run in order.

    Parts of code may take the places of names.
    """
    builder = Builder(in_order=True)
    add_block(builder, function.body)
    builder.result(result_of(function))
    return builder.function(identifier, function.params, parts)


def print_function(function: FunctionIR, identifier: str) -> str:
    """Return the text of a function in normal form; its loops run in order."""
    return ast.unparse(function_of(function, identifier)) + "\n"
