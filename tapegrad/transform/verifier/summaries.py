"""How the summaries of functions are found."""

from __future__ import annotations

import ast

from tapegrad.transform.verifier.code import (
    PUSHES,
    Code,
    call_in,
    called,
    module_call,
    name_of,
    names_in,
    names_of,
    pairs_in,
)
from tapegrad.transform.verifier.cotangents import Cotangents
from tapegrad.transform.verifier.memory import Memory, added_to, makes_new, shape_only
from tapegrad.transform.verifier.summary import Summary


def summaries_of(codes: list[Code]) -> dict[str, Summary]:
    """Return the summaries of the functions of a module."""
    found = {code.name: Summary(code.parameters) for code in codes}
    for _ in range(len(codes) + 2):
        before = dict(found)
        for code in codes:
            found[code.name] = _summary(code, found)
        if found == before:
            break
    for code in codes:
        for node in code.uses:
            summary = found.get(called(node))
            if summary is not None:
                summary.is_called = True
    return found


def _summary(code: Code, summaries: dict[str, Summary]) -> Summary:
    cotangents = Cotangents([code])
    memory = Memory([code], summaries, cotangents)
    writes = {memory.of(n) for s in code.statements for n in memory.written(s)}
    heard = {memory.of(n) for s in code.statements for n in _reads(s, memory, summaries)}
    position = {name: k for k, name in enumerate(code.parameters)}
    arrays = frozenset(k for name, k in position.items() if name in memory.arrays)
    classes = {k: memory.of(name) for name, k in position.items() if name in memory.arrays}
    names = list(map(name_of, code.returned))
    results = tuple(memory.of(name) if name in memory.arrays else None for name in names)
    values = {n: [v for target, v in code.pairs if target == n] for n in names}
    own = frozenset(
        k
        for k, n in enumerate(names)
        if results[k] is None and names.count(n) == 1
        if values[n] and all(map(_is_made, values[n]))
    )
    numbers = frozenset(
        k
        for k, (n, leaf) in enumerate(zip(names, code.returned, strict=True))
        if any(map(_is_number, [leaf, *values[n]]))
    )
    return Summary(
        code.parameters,
        arrays,
        frozenset(k for k in arrays if classes[k] in writes),
        frozenset(k for k in arrays if classes[k] in heard),
        results,
        own,
        numbers,
        classes,
        frozenset(code.primal.intersection(code.parameters)),
        code.purpose,
    )


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and type(value.value) in (int, float, complex)


def _is_made(value: ast.expr) -> bool:
    """Whether a value is made by an operation, so that it is new if it is an array."""
    return makes_new(value) or isinstance(value, (ast.BinOp, ast.UnaryOp))


def _reads(statement: ast.stmt, memory: Memory, summaries: dict[str, Summary]) -> list[str]:
    """Return the arrays of cotangents that a statement reads or clears."""
    bars = memory.bars & memory.arrays

    def read(node: ast.expr) -> list[str]:
        if module_call(node) in PUSHES:
            return []
        free = shape_only(node)
        return [n.id for n in names_in(node) if n.id in bars and id(n) not in free]

    match statement:
        case ast.AugAssign(_, ast.Add() | ast.Sub(), given):
            return read(given)
        case ast.AugAssign(scaled, _, given):
            return [*read(given), *read(scaled)]
        case ast.Expr(ast.Call(_, arguments) as added) if module_call(added)[0] == "arrays":
            place = added_to(module_call(added))
            return [n for k, a in enumerate(arguments) if k != place for n in read(a)]
    call = call_in(statement)
    summary = summaries.get(called(call))
    if call is not None and summary is not None:
        return [n for k, a in enumerate(call.args) if k in summary.reads for n in read(a)]
    found = []
    for target, given in pairs_in(statement):
        if isinstance(target, ast.Subscript):
            found += read(target)
        named = names_of(target)
        if not (named and bars.issuperset(named)):  # otherwise views with separate names
            found += read(given)
    return found
