"""Callees in reverse mode: a forward and a reverse function."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.builder import Builder, result_of
from tapegrad.transform.codegen.analysis import Arrays, unused_suffix
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.codegen.keeping import is_short
from tapegrad.transform.codegen.reverse import Reverse
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import FunctionIR, Let, Role, name, names_in, walk
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import names, returned_of, tuple_of
from tapegrad.transform.printer import show


class Variant:
    """The forward and reverse functions of an instance for one choice of active arguments."""

    def __init__(
        self, stem: str, active: tuple[bool, ...], forward_name: str, reverse_name: str
    ) -> None:
        self.stem = stem
        self.active = active
        self.forward_name = forward_name
        self.reverse_name = reverse_name
        # real results whose shadows the forward function returns, or the reverse function takes
        self.shadowed: list[bool] = []
        self.received: list[bool] = []
        # the types of numbers that the forward function returns, and the reverse function takes
        self.handed: dict[str, Any] = {}
        self.written = False
        self.unread: set[int] = set()  # positions of arguments that the reverse function ignores
        # assumed until they are known, for functions that call themselves
        self.uses_tape = True  # it keeps values
        self.takes_shadows = True  # its forward function takes the shadows of its arguments


def write_split(
    program: Any, instance: Instance, variant: Variant, same: bool, kept: tuple[bool, ...]
) -> None:
    """Write the forward and the reverse function of an instance."""
    function = instance.function
    arrays = Arrays(function)
    leaves = instance.leaves()
    if same:
        refuse_segments(function)
        whole = [leaf for leaf in leaves if is_array(function.types.get(leaf))]
        for dtype in {elements(function.types[leaf]) for leaf in whole}:
            arrays.unite([leaf for leaf in whole if elements(function.types[leaf]) == dtype])
    inputs = [leaf for leaf, active in zip(leaves, variant.active, strict=True) if active]
    given = [leaf for leaf in inputs if is_array(function.types[leaf])]
    results = instance.results()
    outputs = [*results, *(leaf for leaf in given if arrays.is_stored(leaf))]
    varied = [*inputs, *instance.joined_results()]
    ends = [*leaves, *(show(leaf) for leaf in instance.result_leaves())]
    unstable = {arrays.of(n) for n, is_kept in zip(ends, kept, strict=True) if not is_kept}
    # by position: one number may be returned twice
    seeds = [
        (n, seed_name(function, k))
        for k, n in enumerate(results)
        if not is_array(function.types[n])
    ]

    def reversed_with(recomputes: bool) -> tuple[ReverseState, Reverse, Builder, list[str]]:
        gen = ReverseState(
            program,
            function,
            arrays,
            varied,
            outputs,
            unstable,
            marked=instance.marked,
            unmarkable=instance.unmarkable,
            split=True,
        )
        gen.recomputes = recomputes
        gen.hands_over = not instance.calls(instance)
        whole = [n for n in results if is_array(function.types[n]) and gen.is_active(n)]
        variant.shadowed = [n in whole for n in results]
        variant.received = [False for _ in results]
        reverse = Reverse(gen, given, whole, receives=gen.hands_over)
        received = reverse.shadows.received
        returned = [n for n in whole if n not in received]
        variant.shadowed = [n in returned for n in results]
        variant.received = [n in received for n in results]

        def before() -> None:
            for result, seed in seeds:
                gen.add(result, name(seed), ast.Constant(1.0))
            gen.region.shadows.update(dict.fromkeys(received))

        code, _ = reverse.region(gen.top, before)
        gen.uses_tape |= reverse.keeping.keeps_inside(function.body) or bool(gen.top.stored)
        return gen, reverse, code, returned

    gen, reverse, code, returned = reversed_with(False)
    if gen.uses_tape and is_short(function):
        gen, reverse, code, returned = reversed_with(True)
        if gen.uses_tape or reverse.keeping.handed:
            gen, reverse, code, returned = reversed_with(False)
    handed = reverse.keeping.handed
    variant.handed = {n: gen.types[n] for n in handed}
    scalars = [leaf for leaf in inputs if not is_array(function.types[leaf])]
    if not variant.written:
        variant.uses_tape = gen.uses_tape
        variant.takes_shadows = any(map(reverse.shadows.is_wanted, given))
    builder = Builder()
    shadows = [gen.derivative(leaf) for leaf in given]
    received = [gen.derivative(n) for n in reverse.shadows.received]
    tape = ["tape", "top"] if variant.uses_tape else []
    numbers = [seed for _, seed in seeds]
    parameters = [*function.params, *handed, *shadows, *received, *numbers, *tape]
    for leaf in scalars:
        builder.assign(name(gen.bar(leaf)), gen.zero(leaf))
    builder.extend(code)
    builder.result(returned_of([*(gen.bar(leaf) for leaf in scalars), *tape[1:]]))
    if not variant.written:
        read = {n for statement in builder.body for n in names_in(statement)}
        variant.unread = {k for k, n in enumerate(function.params) if n not in read}
    program.add(builder.function(variant.reverse_name, parameters), instance.dispatcher)
    builder = Builder()
    parameters = [*function.params, *(shadows if variant.takes_shadows else []), *tape]
    reverse.shadows.write_inner(builder, instance.paths())
    reverse.forward.write(builder, function.body)
    others = names([*(gen.derivative(n) for n in returned), *handed, *tape])
    value = result_of(function)
    builder.result(tuple_of([value, *others]) if others else value)
    program.note_primal(variant.forward_name, function)
    gen.types.update((gen.note(seed, Role.SEED, n), function.types[n]) for n, seed in seeds)
    program.note_halves(variant, gen.values)
    for identifier in (variant.forward_name, variant.reverse_name):
        program.note_mode(identifier, gen, variant)
    forward = builder.function(variant.forward_name, parameters)
    if variant.uses_tape or returned or handed:
        program.add(forward, instance.dispatcher)
    else:  # never called
        program.unwritten.append(ast.unparse(forward))


def refuse_segments(function: FunctionIR) -> None:
    """Refuse checkpointed loops, in a function that writes to an array that it is given twice."""
    for statement in walk(function.body):
        callee = getattr(statement.rule, "instance", None) if isinstance(statement, Let) else None
        if callee is not None and callee.is_segment:
            raise TransformError(
                f"cannot checkpoint a loop of {function.name} where two of its arguments may be "
                "parts of one array; pass copies, or loop over a plain range",
                function.source,
                statement.line,
            )


def elements(kind: Any) -> Any:
    """Return the real type of the elements of an array, or of their real and imaginary parts."""
    return getattr(kind.dtype, "underlying_float", kind.dtype)


def seed_name(function: FunctionIR, position: int) -> str:
    """Return the name of the cotangent of a part of the result."""
    return f"g{unused_suffix('_seed', function.types)}_{position}"
