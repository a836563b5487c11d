"""Printing of the normal form and of generated code as Python text."""

from __future__ import annotations

import ast
import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any, TypeGuard

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
)

UNDEFINED = "undefined"  # printed for a value that is undefined on some path


PARALLEL = "numba.prange"  # what parallel loops are over
_WHOLE = ast.dump(ast.Slice(None, None, None))


class Writer:
    """Lines of Python with indentation.

    Parameters
    ----------
    in_order
        Whether parallel loops are written as loops that run in order.
    """

    def __init__(self, in_order: bool = False) -> None:
        self.in_order = in_order
        self.lines: list[str] = []
        self.depth = 0

    def __call__(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """Append the head of a block and indent the following lines."""
        self(text)
        self.depth += 1

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a block of the lines written inside; ``pass`` if there are none."""
        self.open(head)
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self("pass")
        self.depth -= 1

    def extend(self, other: Writer) -> None:
        """Append all lines of another writer, indented like the next one here."""
        self.lines += ["    " * self.depth + line for line in other.lines]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def show(node: ast.expr | ast.stmt | None) -> str:
    """Return the text of an expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return show_number(node.value)
    return ast.unparse(_Numbers().visit(copy.deepcopy(node))) if node is not None else "None"


class _Numbers(ast.NodeTransformer):
    """Turns the sign of a negative constant into an operation, which prints with parentheses.

    Infinities and nan become names.
    """

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            if node.value != node.value:
                return ast.Name("np.nan", ast.Load())
            if math.copysign(1.0, node.value) < 0:
                return ast.UnaryOp(ast.USub(), self.visit_Constant(ast.Constant(-node.value)))
            if math.isinf(node.value):
                return ast.Name("np.inf", ast.Load())
        return node


def show_value(value: ast.expr | None) -> str:
    """Return the text of a merged value, which may be undefined."""
    return f"{UNDEFINED}()" if value is None else show(value)


def show_number(value: float) -> str:
    """Return a float as Python text."""
    text = repr(value)
    return {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(text, text)


def assign(writer: Writer, pairs: list[tuple[str, str]]) -> None:
    """Write simultaneous assignments, as separate ones if none reads the target of another."""
    pairs = [(target, value) for target, value in pairs if target != value]
    targets = {target for target, _ in pairs}
    if any(value in targets for _, value in pairs):
        left = ", ".join(target for target, _ in pairs)
        writer(f"{left} = {', '.join(value for _, value in pairs)}")
    else:
        for target, value in pairs:
            writer(f"{target} = {value}")


def write_store(writer: Writer, store: Store) -> None:
    """Write a store.

    numba takes seconds to compile the assignment of a slice, so a whole array is assigned by a
    function that is compiled once.
    """
    if ast.dump(store.index) == _WHOLE:
        if store.op:
            writer(f"{store.array} {store.op}= {show(store.value)}")
            return
        if store.ndim in (1, 2):
            writer(f"arrays.assign_{store.ndim}({store.array}, {show(store.value)})")
            return
    target = show(ast.Subscript(ast.Name(store.array, ast.Load()), store.index, ast.Load()))
    writer(f"{target} {store.op}= {show(store.value)}")


def write_block(writer: Writer, block: Block) -> None:
    """Write the primal code of a block."""
    for statement in block:
        if isinstance(statement, Let):
            writer(f"{statement.target} = {show(statement.expr)}")
        elif isinstance(statement, Store):
            write_store(writer, statement)
        elif isinstance(statement, Effect):
            writer(show(statement.statement))
        elif isinstance(statement, If):
            write_if(writer, statement)
        else:
            write_loop(writer, statement)


def write_if(writer: Writer, statement: If) -> None:
    """Write a branch."""
    for head, block, merged in sides(statement):
        with writer.block(head):
            write_block(writer, block)
            for target, value in merged:
                writer(f"{target} = {show_value(value)}")


def sides(statement: If) -> list[tuple[str, Block, list[tuple[str, Any]]]]:
    """Return the head, the block and the merged names of each side of a branch."""
    return [
        (f"if {show(statement.cond)}:", statement.then, statement.merged("then")),
        ("else:", statement.orelse, statement.merged("orelse")),
    ]


def loop_head(loop: Loop, in_order: bool = False) -> str:
    """Return the first line of a loop; one that is parallel may be written in order."""
    if loop.bounds is None:
        return "while True:"
    low, high, step = (show(bound) for bound in loop.bounds)
    over = "range" if in_order else range_of(loop)
    first_is_written, _, step_is_written = (hasattr(b, "is_written") for b in loop.bounds)
    if step != "1" or step_is_written:
        return f"for {loop.index} in {over}({low}, {high}, {step}):"
    if low != "0" or first_is_written:
        return f"for {loop.index} in {over}({low}, {high}):"
    return f"for {loop.index} in {over}({high}):"


def range_of(loop: Loop) -> str:
    """Return the name of the function whose result a loop is over."""
    return PARALLEL if loop.parallel else "range"


def is_parallel(node: ast.AST) -> TypeGuard[ast.For]:
    """Whether a node of generated code is a parallel loop."""
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and ast.unparse(node.iter.func) == PARALLEL
    )


def write_loop(writer: Writer, loop: Loop) -> None:
    """Write a loop."""
    enter(writer, loop.carried)
    with iteration(writer, loop):
        write_block(writer, loop.body)
        advance(writer, loop.carried)
    leave(writer, loop.carried)


@contextlib.contextmanager
def iteration(writer: Writer, loop: Loop) -> Iterator[None]:
    """Write a loop around the lines written inside, with the conditions on which it is left."""
    with writer.block(loop_head(loop, writer.in_order)):
        if loop.cond is not None:
            write_block(writer, loop.test)
            write_break(writer, f"not {show(loop.cond)}")
        yield
        if loop.exit is not None:
            write_break(writer, show(loop.exit))


def write_break(writer: Writer, condition: str) -> None:
    """Write that a loop is left on a condition."""
    with writer.block(f"if {condition}:"):
        writer("break")


def enter(writer: Writer, carried: list[Carried]) -> None:
    """Write the assignments of the initial values of carried names."""
    for entry in carried:
        writer(f"{entry.phi} = {show_value(entry.init)}")


def advance(writer: Writer, carried: list[Carried]) -> None:
    """Write the assignments of the next values of carried names."""
    assign(writer, [(c.phi, show_value(c.next)) for c in carried])


def leave(writer: Writer, carried: list[Carried]) -> None:
    """Write the assignments of the names after a loop."""
    for entry in carried:
        writer(f"{entry.out} = {entry.phi}")


def show_result(function: FunctionIR) -> str:
    """Return the text of a function's result."""
    result = function.result
    if isinstance(result, Structure):
        return show(result.build(lambda leaf: leaf))
    return show(result)


def print_function(function: FunctionIR, identifier: str) -> str:
    """Return the text of a function in normal form; its loops run in order."""
    writer = Writer(in_order=True)
    writer.open(f"def {identifier}({', '.join(function.params)}):")
    write_block(writer, function.body)
    writer(f"return {show_result(function)}")
    return writer.text()
