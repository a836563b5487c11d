"""Reverse mode in one function: gradients, and pullbacks of cotangents."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.builder import Builder, result_of
from tapegrad.transform.codegen.guards import find_guards
from tapegrad.transform.codegen.instance import Instance, held_arrays, overlap_checks, paths
from tapegrad.transform.codegen.reverse import Reverse
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.codegen.split import seed_name
from tapegrad.transform.ir import FunctionIR, Role, Structure, leaf_names, name
from tapegrad.transform.kinds import is_array, is_real, shape_checks, zero_of
from tapegrad.transform.lowering.partners import without_partners
from tapegrad.transform.nodes import call_of, expression_of, returned_of, tuple_of
from tapegrad.transform.protocols import Returns
from tapegrad.transform.verifier.purpose import Purpose


def write_pullback(
    program: Any,
    instance: Instance,
    params: list[int],
    seeds: int,
    returns: Returns,
    out: str = "",
) -> str:
    """Write the function from arguments to a gradient, and return its name.

    Parameters
    ----------
    program, instance
        The module, and the function to differentiate.
    params
        Positions of the arguments to differentiate with respect to.
    seeds
        How many cotangents of the result are parameters as well; with 0, the cotangent of the only
        result is 1.
    returns
        What it returns.
    out
        The name of the parameter with the arrays to write the gradient to, if there is one.
    """
    if not params:  # the value alone
        instance.function = without_partners(instance.function)
    function = instance.function
    results = instance.results()
    inputs = [
        leaf
        for k in params
        for leaf in leaf_names(instance.params[k])
        if is_real(function.types.get(leaf, types.none))
    ]
    given = [leaf for leaf in inputs if is_array(function.types[leaf])]
    entry = program.fresh(f"{function.name}_{'pullback' if seeds else 'gradient'}")
    parameters = list(function.params)
    if seeds:
        parameters += [seed_name(function, k) for k in range(len(results))]
    if out:
        while out in function.types:
            out += "_"
        parameters.append(out)
    texts = instance.paths()
    if params:
        find_guards(program.known(), None if seeds or len(results) > 1 else instance)
    made = Combined(program, instance, inputs, results, is_seeded=bool(seeds))
    starts = Builder()
    starts.lines(overlap_checks(instance))
    buffers: dict[str, str] = {}
    if out:
        is_tuple = Returns.GRADIENTS in returns
        for number, k in enumerate(params):
            found = paths(instance.params[k], f"{out}[{number}]" if is_tuple else out)
            buffers.update((leaf, path) for path, leaf in found if leaf in given)
        outside = [text for text, value in program.statics.items() if isinstance(value, np.ndarray)]
        starts.lines(buffer_checks(instance, buffers, outside))
    for leaf in given:
        if out:
            zeros = call_of("runtime.cleared", expression_of(buffers[leaf]))
        else:
            zeros = call_of("np.zeros_like", expression_of(texts[leaf]))
        starts.assign(name(made.gen.derivative(leaf)), zeros)
    bar = made.gen.bar
    grads = [gradient_of(instance.params[k], inputs, function, bar) for k in params]
    parts = [result_of(function)] if Returns.VALUE in returns else []
    if Returns.GRADIENT in returns:
        parts.append(grads[0])
    elif Returns.GRADIENTS in returns:
        parts.append(tuple_of(grads))
    made.write(entry, parameters, starts.body, parts[0] if len(parts) == 1 else tuple_of(parts))
    return entry


def write_segment_pullback(
    program: Any, instance: Instance, active: tuple[bool, ...]
) -> tuple[str, ReverseState, dict[str, str]]:
    """Write the function from the arguments of a segment and some cotangents to those of numbers.

    It takes the cotangents of the arrays among the arguments, which it changes, and those of the
    results.

    Returns
    -------
    tuple
        The name of the function, what is known of its names, and the names of the cotangents of
        the results that carry derivatives.
    """
    function, kinds = instance.function, instance.function.types
    inputs = [leaf for leaf, is_active in zip(instance.leaves(), active, strict=True) if is_active]
    given = [leaf for leaf in inputs if is_array(kinds[leaf])]
    outputs = [leaf for leaf in given if instance.arrays.is_stored(leaf)]
    made = Combined(program, instance, inputs, [*instance.results(), *outputs], is_seeded=True)
    gen = made.gen
    entry = program.fresh(f"{function.name}_pullback")
    seeds = {
        result: seed_name(function, position)
        for position, result in enumerate(instance.results())
        if gen.is_active(result)
    }
    shadows = [gen.derivative(leaf) for leaf in given]
    numbers = [gen.bar(leaf) for leaf in inputs if leaf not in given]
    parameters = [*function.params, *shadows, *seeds.values()]
    made.write(entry, parameters, [], returned_of(numbers))
    return entry, gen, seeds


class Combined:
    """A function that evaluates another one and its reverse.

    Parameters
    ----------
    program, instance
        The module, and the function.
    inputs, outputs
        The names to differentiate with respect to, and the names to differentiate.
    is_seeded
        Whether the cotangents of the results are parameters; otherwise that of the only one is 1.
    """

    def __init__(
        self,
        program: Any,
        instance: Instance,
        inputs: list[str],
        outputs: list[str],
        is_seeded: bool,
    ) -> None:
        self.program, self.instance, self.inputs = program, instance, inputs
        function = self.function = instance.function
        self.is_seeded = is_seeded
        self.gen = ReverseState(
            program,
            function,
            instance.arrays,
            inputs,
            outputs,
            marked=instance.marked,
            unmarkable=instance.unmarkable,
            split=False,
            is_seeded=is_seeded,
        )
        for position, result in enumerate(instance.results() if is_seeded else ()):
            self.gen.note(seed_name(function, position), Role.SEED, result)

    def write(
        self, entry: str, parameters: list[str], starts: list[ast.stmt], found: ast.expr
    ) -> None:
        """Write it to the module.

        Parameters
        ----------
        entry, parameters
            Its name and its parameters.
        starts
            Its first statements, which make the cotangents of arrays that are no parameters.
        found
            What it returns.
        """
        gen, function, program = self.gen, self.function, self.program
        given = [leaf for leaf in self.inputs if is_array(function.types[leaf])]
        reverse = Reverse(gen, given)
        zeros = Builder()
        for leaf in self.inputs:
            if leaf not in given:
                zeros.assign(name(gen.bar(leaf)), gen.zero(leaf))
        code, _ = reverse.combined(gen.top, self._seed, zeros.body)
        builder = Builder()
        uses_tape = gen.uses_tape or reverse.keeping.keeps_inside(function.body)
        if uses_tape:
            builder.assign(name("tape"), call_of("runtime.take_tape"))
            builder.assign(name("top"), ast.Constant(0))
        builder.body += starts
        reverse.shadows.write_inner(builder, self.instance.paths())
        builder.extend(code)
        if uses_tape:
            builder.do(call_of("runtime.give_tape", name("tape")))
        program.note_primal(entry, function)
        program.purposes[entry] = Purpose(names=gen.values)
        program.note_mode(entry, gen, entry)
        builder.result(found)
        program.add(builder.function(entry, parameters), self.instance.dispatcher)

    def _seed(self) -> None:
        """Write the cotangents of the results."""
        gen, kinds = self.gen, self.function.types
        for position, result in enumerate(self.instance.results()):
            if not gen.is_active(result):
                continue
            seed: ast.expr = ast.Constant(1.0)
            if self.is_seeded:
                identifier = seed_name(self.function, position)
                seed = name(identifier)
                if is_array(kinds[result]):
                    gen.builder.lines(shape_checks(identifier, result, kinds[result]))
            if is_array(kinds[result]):
                gen.add_array(result, seed)
            else:
                gen.add(result, seed, ast.Constant(1.0))


def buffer_checks(instance: Instance, buffers: dict[str, str], outside: list[str]) -> list[str]:
    """Return the lines that refuse buffers for the gradient with other shapes, or that overlap.

    They are compared with the arguments, with arrays from `outside`, and with each other.
    """
    kinds, texts = instance.function.types, instance.paths()
    lines: list[str] = []
    others = [(n, texts[n]) for n in instance.leaves() if is_array(kinds.get(n))]
    taken = [*(text for _, text in others), *held_arrays(instance), *outside]
    for leaf, buffer in buffers.items():
        lines += shape_checks(buffer, texts[leaf], kinds[leaf])
        for other in taken:
            lines.append(f"if runtime.overlap({buffer}, {other}):")
            text = f"{buffer} shares elements with {other}; pass an array of its own"
            lines.append(f"    raise ValueError({text!r})")
        taken.append(buffer)
    return lines


def gradient_of(value: Any, inputs: list[str], function: FunctionIR, bar_of: Any) -> ast.expr:
    """Return the gradient of an argument, in the structure of the argument."""

    def convert(leaf: ast.expr) -> ast.expr:
        assert isinstance(leaf, ast.Name)
        kind = function.types[leaf.id]
        if leaf.id not in inputs:
            return call_of("np.zeros_like", leaf) if is_array(kind) else zero_of(kind)
        bar = name(bar_of(leaf.id))
        if kind in (types.float32, types.complex64):
            return call_of(f"np.{kind}", bar)
        return bar

    return value.build(convert) if isinstance(value, Structure) else convert(value)
