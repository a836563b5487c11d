"""All passes over a generated module."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence

from tapegrad.transform.errors import InternalError
from tapegrad.transform.verifier.code import Code, Primal, assigned, functions_of
from tapegrad.transform.verifier.definedness import Definedness
from tapegrad.transform.verifier.primal import check_primal
from tapegrad.transform.verifier.purpose import Purpose
from tapegrad.transform.verifier.purposes import check_purposes
from tapegrad.transform.verifier.returned import check_returned
from tapegrad.transform.verifier.segments import check_segment
from tapegrad.transform.verifier.summaries import summaries_of
from tapegrad.transform.verifier.tangents import verify_tangents
from tapegrad.transform.verifier.values import verify_values


def verify(
    module_text: str,
    functions: Iterable[str],
    uncalled: Iterable[str] = (),
    primals: Mapping[str, Primal] | None = None,
    fresh: Iterable[str] = (),
    segments: Mapping[str, tuple[str, str]] | None = None,
    pure: Iterable[str] = (),
    purposes: Mapping[str, Purpose] | None = None,
) -> None:
    r"""Refuse a generated module that is not correct.

    Parameters
    ----------
    module_text
        The text of its functions.
    functions
        Names in its namespace: modules of the package, and user functions and derivatives that it
        calls.
    uncalled
        Texts of forward functions that reverse functions of the module belong to, but that the
        module omits because they do the same as their primals.
    primals
        The functions that forward code, or code of forward mode, is made from, by the names of the
        functions with that code.
    fresh
        Functions whose results are all new arrays: derivatives that it calls.
    segments
        The names of the function and of its pullback, by those of the reverse functions of segments
        of checkpointed loops.
    pure
        Functions that return the same for the same arguments: ops that it calls.
    purposes
        What functions are for, and what their names stand for; others have no code of a derivative.

    Raises
    ------
    InternalError
        With the function and the line.

    Examples
    --------
    >>> from tapegrad.transform.verifier import verify
    >>> verify("def f(x):\n    y = x * x\n    return y\n", ())
    >>> verify("def f(x):\n    if x > 0:\n        y = x\n    return y\n", ())
    Traceback (most recent call last):
        ...
    tapegrad.transform.errors.InternalError: y is read where it may not be defined
      in line 4 of the generated function f
        return y
    This is a defect of tapegrad, not of your function; please report it with the function that was
    differentiated.
    """
    codes = functions_of(module_text)
    for text in uncalled:
        codes += functions_of(text)
    try:
        segments = segments or {}
        by_name = {code.name: code for code in codes}
        for code in codes:
            code.pure, code.purposes = frozenset(pure), purposes or {}
        originals = {}
        for name, known in (primals or {}).items():
            primal = originals[name] = functions_of(known.text)[0]
            check_primal(by_name[name], primal)
            other = by_name[name].purpose.other
            for code in [by_name[name], *([by_name[other]] if other else [])]:
                code.primal = primal.locals
                code.arrays, code.numbers, code.flat = known.arrays, known.numbers, known.flat
        for half, (function, _) in segments.items():
            for name in {half, by_name[half].purpose.other} & by_name.keys():
                by_name[name].primal = by_name[function].locals
        for code in codes if primals is not None else ():
            code.primal = code.primal or code.locals  # otherwise it has no code of a derivative
        check_purposes(codes, originals)
        _check(codes, functions, set(fresh), segments, originals)
    except _LOST as error:
        what = f"the verifier cannot follow it ({type(error).__name__}: {error})"
        raise InternalError(what, codes[-1].name, 1, codes[-1].lines[0]) from error


def verify_names(
    trees: Sequence[ast.FunctionDef], lines: list[str], functions: Iterable[str]
) -> None:
    """Refuse functions that read a name where it may not be defined.

    Parameters
    ----------
    trees
        Functions that were made from verified ones.
    lines
        The lines of the module that they stand in.
    functions
        Names in their namespace, other functions of the module among them.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    known = {*vars(builtins), *functions, *(tree.name for tree in trees)}
    for tree in trees:
        code = Code(tree.name, [parameter.arg for parameter in tree.args.args], tree.body, lines)
        code.locals = {*code.parameters, *assigned(code.body)}
        Definedness(code, known).run()


# errors that a pass raises if it cannot follow the code
_LOST = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(StopIteration, TypeError, ValueError),
)


def _check(
    codes: list[Code],
    functions: Iterable[str],
    fresh: set[str],
    segments: Mapping[str, tuple[str, str]],
    originals: Mapping[str, Code],
) -> None:
    known = {*vars(builtins), *functions, *(code.name for code in codes)}
    for code in codes:
        Definedness(code, known).run()
    summaries = summaries_of(codes)
    check_returned(codes, summaries, fresh)
    by_name = {code.name: code for code in codes}
    needs = {
        name: check_segment(by_name, summaries, name, *both, originals[both[1]])
        for name, both in segments.items()
    }
    verify_values(codes, summaries, needs)
    verify_tangents(codes, summaries)
