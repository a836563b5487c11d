"""Code that pushes values onto the tape, and pops them."""

from __future__ import annotations

import ast

from tapegrad.transform.builder import Builder
from tapegrad.transform.ir import Loop, name
from tapegrad.transform.nodes import (
    attribute,
    binary,
    call_of,
    compare,
    is_number,
    names,
    tuple_of,
)


def trips_of(loop: Loop) -> ast.expr:
    """Return the trip count of a loop over a range."""
    assert loop.bounds is not None
    low, high, step = loop.bounds
    if not is_number(step, 1):
        return call_of("len", call_of("range", low, high, step))
    count = high if is_number(low, 0) else binary(high, "-", low)
    return call_of("max", count, ast.Constant(0))


def times(count: int, expr: ast.expr) -> ast.expr:
    """Return ``count * expr``."""
    return expr if count == 1 else binary(ast.Constant(count), "*", expr)


def after_top(count: int) -> ast.expr:
    """Return ``top + count``, a place on the tape."""
    return binary(name("top"), "+", ast.Constant(count)) if count else name("top")


def add_push(builder: Builder, array: str, part: str, kind: ast.expr) -> None:
    """Add the call that pushes an array, or its elements, onto the tape."""
    made = call_of(f"runtime.push_{part}", name("tape"), name("top"), name(array), kind)
    builder.assign(tuple_of(names(["tape", "top"])), made)


def add_pop(builder: Builder, array: str, part: str, kind: ast.expr) -> None:
    """Add the call that pops an array, or its elements, from the tape."""
    made = call_of(f"runtime.pop_{part}", name("tape"), name("top"), kind)
    builder.assign(tuple_of(names([array, "top"])), made)


def add_growth(builder: Builder, needed: ast.expr) -> None:
    """Write the code that makes the tape as large as it has to be."""
    tape = name("tape")
    with builder.when(compare(needed, ast.Gt, attribute(tape, "size"))):
        builder.assign(tape, call_of("runtime.grown", tape, needed))
