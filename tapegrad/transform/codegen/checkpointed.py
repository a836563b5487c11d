"""The derivative of a segment of a checkpointed loop keeps its arguments only.

A segment (`segments`) has a forward and a reverse function like other callees. The forward function
calls the segment itself, and keeps copies of the arrays that change before the reverse function
needs them. That calls a pullback of the segment, which is one function with both halves: its tape
is free again when it returns.
"""

from __future__ import annotations

from typing import Any

from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.codegen.pullback import write_segment_pullback
from tapegrad.transform.codegen.split import Variant, seed_name
from tapegrad.transform.codegen.stores import copy_of
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import FunctionIR, unused
from tapegrad.transform.kinds import copy_kind, is_array
from tapegrad.transform.printer import Writer, show, show_result
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
    pullback, suffix, seeds = write_segment_pullback(program, instance, variant.active)
    variant.shadowed = [n in seeds and is_array(kinds[n]) for n in instance.results()]
    variant.received = [False for _ in instance.results()]
    taken = {*kinds, *params}
    copies = {n: unused(f"{n}_kept", taken) for n in copied}
    returned = [n for n, made in zip(instance.results(), variant.shadowed, strict=True) if made]
    kept_types = {copies[n]: _reference(copy_kind(kinds[n])) for n in copied}
    kept_types |= {n + suffix: _reference(kinds[n]) for n in returned}
    variant.uses_tape = bool(kept_types)
    variant.takes_shadows = False
    text = _forward(function, variant, copies, {n: n + suffix for n in returned}, kept_types)
    if kept_types:
        program.write(text, instance.dispatcher)
    else:  # never called
        program.unwritten.append(text)
    inputs = [n for n, active in zip(params, variant.active, strict=True) if active]
    shadows = [n + suffix for n in inputs if is_array(kinds[n])]
    numbers = [n + suffix for n in inputs if not is_array(kinds[n])]
    given = [
        seed_name(function, k) for k, n in enumerate(instance.results()) if not is_array(kinds[n])
    ]
    tape = ["tape", "top"] if kept_types else []
    writer = Writer()
    writer.open(f"def {variant.reverse_name}({', '.join([*params, *shadows, *given, *tape])}):")
    for n, reference in reversed(kept_types.items()):
        writer(f"{n}, top = runtime.pop_array(tape, top, {reference})")
    arguments = [copies.get(n, n) for n in params] + shadows
    arguments += [n + suffix if n in returned else seed for n, seed in seeds.items()]
    call = f"{pullback}({', '.join(arguments)})"
    writer(f"{', '.join(numbers)} = {call}" if numbers else call)
    writer(f"return {', '.join([*numbers, *tape[1:]]) or None}")
    program.write(writer.text(), instance.dispatcher)
    program.segments[variant.reverse_name] = function.name, pullback


def _forward(
    function: FunctionIR,
    variant: Variant,
    copies: dict[str, str],
    cotangents: dict[str, str],
    kept_types: dict[str, str],
) -> str:
    """Return the forward function: it keeps copies, and the cotangents of arrays of the result."""
    tape = ["tape", "top"] if kept_types else []
    writer = Writer()
    writer.open(f"def {variant.forward_name}({', '.join([*function.params, *tape])}):")
    push = "tape, top = runtime.push_array(tape, top, {0}, {1})"
    for array, copied in copies.items():
        writer(f"{copied} = {show(copy_of(array, function.types[array]))}")
        writer(push.format(copied, kept_types[copied]))
    found = show_result(function)
    call = f"{function.name}({', '.join(function.params)})"
    writer(call if function.result is None else f"{found} = {call}")
    for array, cotangent in cotangents.items():
        writer(f"{cotangent} = np.zeros_like({array})")
        writer(push.format(cotangent, kept_types[cotangent]))
    writer(f"return {', '.join([found, *cotangents.values(), *tape])}")
    return writer.text()


def _reference(kind: Any) -> str:
    return f"runtime.{kind_name(kind)}"
