"""How the module of a derivative is generated: from the user's function to verified text.

A derivative whose module is on disk needs nothing of this, so that nothing of it is imported then.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from numba.core import types

from tapegrad.transform.codegen import store
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.codegen.versions import Versions, versions_of
from tapegrad.transform.equivalence.comparison import compare
from tapegrad.transform.equivalence.derivatives import check
from tapegrad.transform.equivalence.meanings import defined
from tapegrad.transform.frontend.source import MISSING
from tapegrad.transform.generated import Generated, parsed_function, parsed_functions
from tapegrad.transform.names import namespace
from tapegrad.transform.protocols import Bound, Derivative
from tapegrad.transform.rules.partials import op_of_function
from tapegrad.transform.stubs import inherited_options
from tapegrad.transform.verifier.verify import verify, verify_names

_SLOWER = (
    "a derivative of {} runs without what makes it faster, since the faster version is wrong: {}. "
    "The derivative is right. This is a defect of tapegrad; please report it with the function"
)
_DOUBTED = (
    "a derivative of {} is not confirmed: with numbers of a finite field it differs from what the "
    "source of the function says. It is compared with difference quotients when it is called for "
    "the first time. This is a defect of tapegrad, of the derivative or of the comparison; please "
    "report it with the function"
)
FASTER = "# versions that run faster, made of these"
"""What stands between what is verified and other functions."""


class Module(NamedTuple):
    """A generated module."""

    text: str
    about: dict[str, Any]  # what is to be known of it, as JSON can say it
    statics: dict[str, Any]  # the user's objects that it names


def generate(
    derivative: Derivative, kinds: tuple[Any, ...], bound: Bound, recipe: store.Recipe, kept: bool
) -> Module:
    """Generate, verify and complete the module of a derivative.

    Parameters
    ----------
    derivative
        The derivative.
    kinds
        The types of the given arguments.
    bound
        The complete call.
    recipe
        Where to find the objects that it names in another process.
    kept
        Whether its machine code may be kept.
    """
    program = Program()
    entry = derivative.generate(program, bound.kinds)
    entries, condition = [entry], ""
    if bound.kinds != kinds:
        entries = [_write_call(program, derivative, entry, bound)]
    elif derivative.assumes and (instance := program.assume()) is not None:
        entries.append(derivative.generate(program, kinds))
        names = list(inspect.signature(derivative.py_func).parameters)
        condition = instance.condition(names)
    text = _text(program.functions)
    given = (*namespace({}), *program.statics)
    makers = "_tapegrad_transform", "tapegrad_rule"  # of new arrays
    fresh = {t for t, v in program.statics.items() if any(hasattr(v, a) for a in makers)}
    pure = {t for t, v in program.statics.items() if _is_pure(v)}
    verify(
        text,
        given,
        program.unwritten,
        program.primals,
        fresh,
        program.segments,
        pure,
        program.purposes,
    )
    derivative.finish(program, entries[0])
    versions = versions_of(program, entries, condition)
    text = _text(versions.verified)
    about: dict[str, Any] = {"slower": []}
    whole = f"{text}\n\n{FASTER}\n{_text(versions.faster)}" if versions.faster else text
    functions, lines = parsed_functions(whole), whole.splitlines()
    count = len(versions.verified)
    verified, faster = functions[:count], functions[count:]
    verify_names(faster, lines, [*given, *(tree.name for tree in verified)])
    wrong, slower = "", ""
    known, claim = namespace(program.statics), derivative.claim(bound.kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what random arguments lead to
        module = defined(functions, lambda name: known.get(name, MISSING))
        if claim is not None:
            wrong = check(module, entry, claim, bound.kinds).difference
        if faster:
            slower = compare(module, versions.pairs, kinds).difference
    about["doubted"] = [_DOUBTED.format(derivative.root.py_func.__name__)] if wrong else []
    if slower:  # what was verified is right; it only takes longer
        versions = Versions(versions.verified, [], entries[0])
        about["slower"] = [_SLOWER.format(derivative.py_func.__name__, slower)]
    else:
        text = whole
    about |= {"entry": entries[0], "cache": kept, "statics": recipe.write(program)}
    about |= {"run": versions.run, "assuming": versions.assuming}
    about["in order"] = versions.messages
    about["rounded"] = list(dict.fromkeys(program.rounded))
    return Module(text, about, program.statics)


def analysed(function: Any, kinds: tuple[Any, ...]) -> Instance:
    """Return the instance of a function for the types of its arguments, with its effects."""
    program = Program()
    instance = program.instance(function, tuple(map(types.unliteral, kinds)))
    program.analyse()
    return instance


def _is_pure(function: Any) -> bool:
    """Whether a function returns the same for the same arguments, whatever they hold."""
    is_constant = getattr(function, "tapegrad_constant", False)
    return is_constant or op_of_function(function) is not None


def _write_call(program: Program, derivative: Derivative, entry: str, bound: Bound) -> str:
    """Write the function that completes the arguments; return its name."""
    lines = []
    for text, (parameter, value) in bound.defaults.items():
        found = program.fresh(text)
        program.statics[found] = value
        program.origins[found] = ("default", None, parameter)
        if found != text:  # which means something else in the module
            lines.append(f"    {text} = {found}\n")
    caller = program.fresh(f"{entry}_with_defaults")
    names = ", ".join(inspect.signature(derivative.py_func).parameters)
    lines.append(f"    return {entry}({', '.join(bound.texts)})\n")
    text = f"def {caller}({names}):\n{''.join(lines)}"
    program.add(parsed_function(text), derivative.base)
    return caller


def _text(functions: Iterable[Generated]) -> str:
    """Return the text of functions with their decorators."""
    return "\n\n".join(
        f"@numba.njit({_shown({**inherited_options(f.made_from), **f.options})})\n{f.text}"
        for f in functions
    )


def _shown(given: dict[str, Any]) -> str:
    """Return the text of options in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in given.items())
