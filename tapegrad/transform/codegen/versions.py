"""The functions of a generated module as they run: in parallel, and in blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.blocks.module import Module
from tapegrad.transform.codegen.in_parallel import message_of, parallel_versions
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.independence.generated import Generated
from tapegrad.transform.independence.uses import Facts
from tapegrad.transform.ir import Loop, walk
from tapegrad.transform.printer import print_function


@dataclass
class Versions:
    """The functions of a module.

    Attributes
    ----------
    verified, faster
        They, and their versions.
    run
        The name of the function to run.
    messages
        What is to be said of loops that run in order.
    """

    verified: list[Generated]
    faster: list[Generated]
    run: str
    messages: list[str] = field(default_factory=list)


def versions_of(program: Program, entry: str) -> Versions:
    """Return the functions of a module and their versions that run faster."""
    verified = [_generated(program, *part) for part in program.texts]
    parallel = parallel_versions(program, verified)
    found = Versions(verified, parallel.functions, parallel.names.get(entry, entry))
    found.messages = [message_of(*loop) for loop in parallel.serial]
    functions = [*verified, *parallel.functions]
    blocks = Module(functions, lambda name: _helper(program, name), program.fresh).run(found.run)
    found.faster += blocks.functions
    found.run = blocks.names.get(found.run, found.run)
    return found


def _generated(program: Program, text: str, made_from: Any) -> Generated:
    """Return a function with what is known of it."""
    found = Generated(text, made_from)
    if found.name in program.modes:
        mode, found.unit = program.modes[found.name]
        found.facts = Facts(mode.types, mode.suffix)
        if isinstance(mode, ReverseState):
            found.fused, found.is_half = mode.fused, True
        loops = [s for s in walk(mode.function.body) if isinstance(s, Loop)]
        found.lines = {loop.index: loop.line for loop in loops if loop.index is not None}
        found.source = mode.function.source
    return found


def _helper(program: Program, name: str) -> Generated | None:
    """Return a function of the user that generated code calls, None for others."""
    callee = program.statics.get(name)
    found = [i for (given, _), i in program.instances.items() if given is callee]
    if len(found) != 1 or found[0].error is not None:
        return None
    made = Generated(print_function(found[0].function, name), callee)
    made.facts = Facts(found[0].function.types, "_bar")
    return made
