"""All passes over a generated module."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

from tapegrad.transform.verifier.code import functions_of
from tapegrad.transform.verifier.definedness import Definedness
from tapegrad.transform.verifier.values import verify_values


def verify(module_text: str, functions: Iterable[str]) -> None:
    r"""Refuse a generated module that is not right.

    Parameters
    ----------
    module_text
        The text of its functions.
    functions
        Names that stand in its namespace: modules of the package, functions of the user's and
        derivatives that it calls.

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
    known = {*vars(builtins), *functions, *(code.name for code in codes)}
    for code in codes:
        Definedness(code, known).run()
    verify_values(codes)
