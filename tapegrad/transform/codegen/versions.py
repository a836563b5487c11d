"""The functions of a generated module as they run: in parallel, and in blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tapegrad.transform.builder import function_of
from tapegrad.transform.codegen.in_parallel import message_of, parallel_versions
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.generated import Facts, Generated, parsed_function
from tapegrad.transform.ir import DERIVATIVES, Loop, walk
from tapegrad.transform.lowering.extents import Extents
from tapegrad.transform.optimize.module import Module
from tapegrad.transform.optimize.passes import optimize


@dataclass
class Versions:
    """The functions of a module.

    Attributes
    ----------
    verified, faster
        They, and their versions.
    run
        The name of the function to run.
    assuming
        The name of one that raises an `UnequalExtentsError` if extents differ; "" for none.
    messages
        What is to be said of loops that run in order.
    pairs
        The names of functions that were verified, and of those that run in their place.
    """

    verified: list[Generated]
    faster: list[Generated]
    run: str
    assuming: str = ""
    messages: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)


def versions_of(program: Program, entries: list[str], condition: str) -> Versions:
    """Return the functions of a module and their versions that run faster.

    Parameters
    ----------
    program
        The module.
    entries
        The function to run, and another one with the same arguments for a condition, if any.
    condition
        The condition.
    """
    verified = [_with_facts(program, function) for function in program.functions]
    parallel = parallel_versions(program, verified)
    runs = [parallel.names.get(entry, entry) for entry in entries]
    found = Versions(verified, parallel.functions, runs[0])
    found.messages = [message_of(*loop) for loop in dict.fromkeys(parallel.serial)]
    functions = [*verified, *parallel.functions]
    module = Module(functions, lambda name: _helper(program, name), program.fresh)
    faster = optimize(module, runs)
    found.faster += faster.functions
    runs = [faster.names.get(run, run) for run in runs]
    found.run = runs[0]
    if found.run != entries[0]:
        found.pairs.append((entries[0], found.run))
    if condition:
        found.faster.append(_guarded(program, verified, entries[1], runs[1], condition))
        found.assuming = found.faster[-1].name
        found.pairs.append((entries[0], found.assuming))
    return found


def _guarded(
    program: Program, functions: list[Generated], entry: str, run: str, condition: str
) -> Generated:
    """Return the function that calls another one if a condition is true."""
    (called,) = [function for function in functions if function.name == entry]
    name = program.fresh(f"{entry}_if_equal")
    names = ", ".join(parameter.arg for parameter in called.tree.args.args)
    lines = [
        f"def {name}({names}):",
        f"    if {condition}:",
        f"        return {run}({names})",
        "    raise runtime.UnequalExtentsError",
    ]
    return Generated(parsed_function("\n".join(lines)), called.made_from)


def _with_facts(program: Program, function: Generated) -> Generated:
    """Return a function with what is known of it."""
    found = replace(function)
    if found.name in program.modes:
        mode, found.unit = program.modes[found.name]
        derivatives = {n: value for n, value in mode.values.items() if value.role in DERIVATIVES}
        found.facts = Facts(
            mode.types, derivatives, Extents(replace(mode.function, types=mode.types))
        )
        if isinstance(mode, ReverseState):
            found.fused, found.is_half = mode.fused, True
            made = found.facts.extents.made
            made.update({n: mode.scopes.makers[n] for n in mode.added & mode.scopes.makers.keys()})
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
    made = Generated(function_of(found[0].function, name), callee)
    made.facts = Facts(found[0].function.types)
    return made
