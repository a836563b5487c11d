"""The derivative of a segment of a checkpointed loop keeps its arguments only.

A segment (`segments`) has a forward and a reverse function like other callees. The forward function
calls the segment itself, and keeps copies of the arrays that change before the reverse function
needs them. That calls a pullback of the segment, which is one function with both halves: its tape
is free again when it returns.
"""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.builder import Builder, result_of
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.codegen.pullback import write_segment_pullback
from tapegrad.transform.codegen.split import Variant, seed_name
from tapegrad.transform.codegen.stores import array_copy
from tapegrad.transform.codegen.tape_code import add_pop, add_push
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import FunctionIR, name, unused
from tapegrad.transform.kinds import copy_kind, is_array
from tapegrad.transform.nodes import call_of, names, returned_of, tuple_of
from tapegrad.transform.runtime import kind_name


def write_checkpointed(
    program: Any, instance: Instance, variant: Variant, same: bool, kept: tuple[bool, ...]
) -> None:
    """Write the forward and the reverse function of a segment."""
    function, kinds = instance.function, instance.function.types
    params = function.params

    def refuse(what: str) -> TransformError:
        return TransformError(f"cannot checkpoint a loop {what}", function.source, instance.line)

    if instance.draws_numbers(program.statics):
        raise refuse(
            "that draws random numbers, which are others when it is done again; draw them before"
        )
    assert not same
    for place in instance.writes:
        if not is_array(kinds[params[place]]):
            raise refuse(f"that changes {params[place]}, which is no array; use an array")
    saved = {n for k, n in enumerate(params) if k in instance.writes or not kept[k]}
    classes = {instance.arrays.of(n) for n in saved if is_array(kinds[n])}
    copied = [n for n in params if is_array(kinds[n]) and instance.arrays.of(n) in classes]
    pullback, gen, seeds = write_segment_pullback(program, instance, variant.active)
    variant.shadowed = [n in seeds and is_array(kinds[n]) for n in instance.results()]
    variant.received = [False for _ in instance.results()]
    taken = {*kinds, *params}
    copies = {n: unused(f"{n}_kept", taken) for n in copied}
    returned = [n for n, made in zip(instance.results(), variant.shadowed, strict=True) if made]
    kept_types = {copies[n]: _reference(copy_kind(kinds[n])) for n in copied}
    kept_types |= {gen.derivative(n): _reference(kinds[n]) for n in returned}
    variant.uses_tape = bool(kept_types)
    variant.takes_shadows = False
    cotangents = {n: gen.derivative(n) for n in returned}
    forward = _forward(function, variant, copies, cotangents, kept_types)
    if kept_types:
        program.add(forward, instance.dispatcher)
    else:  # never called
        program.unwritten.append(ast.unparse(forward))
    inputs = [n for n, active in zip(params, variant.active, strict=True) if active]
    shadows = [gen.derivative(n) for n in inputs if is_array(kinds[n])]
    numbers = [gen.derivative(n) for n in inputs if not is_array(kinds[n])]
    given = [
        seed_name(function, k) for k, n in enumerate(instance.results()) if not is_array(kinds[n])
    ]
    tape = ["tape", "top"] if kept_types else []
    builder = Builder()
    for n, reference in reversed(kept_types.items()):
        add_pop(builder, n, "array", reference)
    arguments = [copies.get(n, n) for n in params] + shadows
    arguments += [gen.derivative(n) if n in returned else seed for n, seed in seeds.items()]
    made = call_of(pullback, *names(arguments))
    if numbers:
        builder.assign(returned_of(numbers), made)
    else:
        builder.do(made)
    builder.result(returned_of([*numbers, *tape[1:]]))
    parameters = [*params, *shadows, *given, *tape]
    program.add(builder.function(variant.reverse_name, parameters), instance.dispatcher)
    program.note_halves(variant, gen.values)
    program.segments[variant.reverse_name] = function.name, pullback


def _forward(
    function: FunctionIR,
    variant: Variant,
    copies: dict[str, str],
    cotangents: dict[str, str],
    kept_types: dict[str, ast.expr],
) -> ast.FunctionDef:
    """Return the forward function: it keeps copies, and the cotangents of arrays of the result."""
    tape = ["tape", "top"] if kept_types else []
    builder = Builder()
    for array, copied in copies.items():
        builder.assign(name(copied), array_copy(array, function.types[array]))
        add_push(builder, copied, "array", kept_types[copied])
    found = result_of(function)
    made = call_of(function.name, *names(function.params))
    if function.result is None:
        builder.do(made)
    else:
        builder.assign(found, made)
    for array, cotangent in cotangents.items():
        builder.assign(name(cotangent), call_of("np.zeros_like", name(array)))
        add_push(builder, cotangent, "array", kept_types[cotangent])
    others = names([*cotangents.values(), *tape])
    builder.result(tuple_of([found, *others]) if others else found)
    return builder.function(variant.forward_name, [*function.params, *tape])


def _reference(kind: Any) -> ast.expr:
    return name(f"runtime.{kind_name(kind)}")
