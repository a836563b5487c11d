"""Parallel versions of the functions of a generated module."""

from __future__ import annotations

from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.generated import Generated
from tapegrad.transform.independence.uses import READ, STORE, Effects
from tapegrad.transform.ir import Effect, Let, leaf_names, walk
from tapegrad.transform.parallel.module import Made, Module
from tapegrad.transform.printer import is_parallel
from tapegrad.transform.rules.calls import Call
from tapegrad.transform.rules.partials import op_of_function
from tapegrad.transform.syntax import subtree


def parallel_versions(program: Program, functions: list[Generated]) -> Made:
    """Return the parallel versions, and what is to be said of loops that run in order."""
    if not any(is_parallel(node) for function in functions for node in subtree(function.tree)):
        return Made()
    return Module(functions, lambda name: _effects_of_callee(program, name), program.fresh).run()


def message_of(source: Source, line: int, reason: str) -> str:
    """Return the warning that a loop runs in order."""
    return (
        f"the prange loop in line {line} of {source.name} runs in order in the derivative, because "
        f'{reason}. See "Parallel loops" in the guide to numba functions; with range in place of '
        "prange there is no such warning.\n"
        f'  File "{source.filename}", line {line}, in {source.name}\n'
        f"    {source.text_of(line)}"
    )


def _effects_of_callee(program: Program, name: str) -> Effects | None:
    """Return what a function from outside does, None if that is unknown."""
    callee = program.statics.get(name, name)  # a segment is known by its name
    if (op := op_of_function(callee)) is not None:
        return Effects([READ] * len(op.arguments))
    found = [i for (given, _), i in program.instances.items() if given is callee]
    if not found or any(_may_do_more(program, instance) for instance in found):
        return None
    written = {
        number
        for instance in found
        for number, value in enumerate(instance.params)
        if {instance.leaves()[k] for k in instance.writes}.intersection(leaf_names(value))
    }
    on_arguments = [STORE if k in written else READ for k in range(len(found[0].params))]
    return Effects(on_arguments, any(instance.shared for instance in found))


def _may_do_more(program: Program, instance: Instance, seen: tuple[Instance, ...] = ()) -> bool:
    """Whether a function may do something else than compute and write to arguments."""
    if instance in seen:
        return False
    if instance.error is not None:
        return True
    for statement in walk(instance.function.body):
        if isinstance(statement, Effect):
            return True
        rule = statement.rule if isinstance(statement, Let) else None
        if isinstance(rule, Call) and _may_do_more(program, rule.instance, (*seen, instance)):
            return True
    return instance.draws_numbers(program.statics)
