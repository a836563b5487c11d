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
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import unused
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import Writer, show_result
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
    if same:
        raise refuse(
            "that writes to an array which it may know by two names; pass copies to the function, "
            "and take parts of arrays inside of the loop"
        )
    for place in instance.writes:
        if not is_array(kinds[params[place]]):
            raise refuse(f"that changes {params[place]}, which is no array; use an array")
    saved = [
        n
        for place, n in enumerate(params)
        if is_array(kinds[n])
        if place in instance.writes or not kept[place]
    ]
    classes = {instance.arrays.of(n) for n in saved}
    saved = [n for n in params if is_array(kinds[n]) and instance.arrays.of(n) in classes]
    pullback, suffix, results = write_segment_pullback(program, instance, variant.active)
    variant.shadowed = [n in results and is_array(kinds[n]) for n in instance.results()]
    taken = {*kinds, *params}
    copies = {n: unused(f"{n}_kept", taken) for n in saved}
    returned = [n for n, made in zip(instance.results(), variant.shadowed, strict=True) if made]
    seeds = [
        seed_name(function, k) for k, n in enumerate(instance.results()) if not is_array(kinds[n])
    ]
    pushed = [(copies[n], _reference(kinds[n].copy(layout=_copied(kinds[n])))) for n in saved]
    pushed += [(n + suffix, _reference(kinds[n])) for n in returned]
    variant.uses_tape = bool(pushed)
    variant.takes_shadows = False
    tape = ["tape", "top"] if pushed else []
    writer = Writer()
    writer.open(f"def {variant.forward_name}({', '.join([*params, *tape])}):")
    for n, one in zip(saved, pushed, strict=False):
        writer(f"{copies[n]} = np.copy({n})")
        writer(_push(*one))
    found = show_result(function)
    call = f"{function.name}({', '.join(params)})"
    writer(call if function.result is None else f"{found} = {call}")
    for n, one in zip(returned, pushed[len(saved) :], strict=True):
        writer(f"{n}{suffix} = np.zeros_like({n})")
        writer(_push(*one))
    writer(f"return {', '.join([found, *(n + suffix for n in returned), *tape])}")
    (program.texts if pushed else program.unwritten).append(
        (writer.text(), instance.dispatcher) if pushed else writer.text()
    )
    inputs = [n for n, active in zip(params, variant.active, strict=True) if active]
    shadows = [n + suffix for n in inputs if is_array(kinds[n])]
    numbers = [n + suffix for n in inputs if not is_array(kinds[n])]
    writer = Writer()
    writer.open(f"def {variant.reverse_name}({', '.join([*params, *shadows, *seeds, *tape])}):")
    for n, reference in reversed(pushed):
        writer(f"{n}, top = runtime.pop_array(tape, top, {reference})")
    arguments = [copies.get(n, n) for n in params] + shadows
    arguments += [n + suffix if n in returned else seed for n, seed in results.items()]
    call = f"{pullback}({', '.join(arguments)})"
    writer(f"{', '.join(numbers)} = {call}" if numbers else call)
    back = [*numbers, *tape[1:]]
    writer(f"return {', '.join(back)}" if back else "return None")
    program.write(writer.text(), instance.dispatcher)
    program.segments[variant.reverse_name] = function.name, pullback


def _copied(kind: Any) -> str:
    """Return the layout of a copy of an array."""
    return "F" if kind.layout == "F" else "C"


def _reference(kind: Any) -> str:
    return f"runtime.{kind_name(kind)}"


def _push(array: str, reference: str) -> str:
    return f"tape, top = runtime.push_array(tape, top, {array}, {reference})"
