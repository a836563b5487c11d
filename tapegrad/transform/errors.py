"""Errors of the transformation, which name the user's file and line, the construct and a remedy."""

from __future__ import annotations

from typing import Any


class TransformError(TypeError):
    """A function cannot be differentiated as it is written.

    The message names the file and line, the construct, and what to write instead.
    """

    def __init__(self, message: str, source: Any = None, line: int | None = None) -> None:
        if source is not None and line is not None:
            text = source.text_of(line)
            message += _of_derivative(source.function)
            message = f'{message}\n  File "{source.filename}", line {line}, in {source.name}'
            message += f"\n    {text}" if text else ""
        super().__init__(message)


def _of_derivative(function: Any) -> str:
    """Return which function of the user a generated function is a derivative of, "" for others."""
    derivative, _ = function.__globals__.get("_made_for", (None, None))
    if derivative is None:
        return ""
    root = derivative.root.py_func
    code = root.__code__
    return (
        "\n(a line of a first derivative, which is differentiated for a second derivative of)\n"
        f'  File "{code.co_filename}", line {code.co_firstlineno}, in {root.__name__}'
    )


def python_list(name: str) -> str:
    """Return what to say of an argument that is a list, after what names it."""
    return f"is a Python list, and derivatives are by arrays and numbers: pass np.array({name})"


class SerialLoopWarning(UserWarning):
    """A ``prange`` loop runs in order in a derivative, or the items of a `tapegrad.vmap` do.

    Its iterations could not be proved independent. The message names the line and what is missing.
    The derivative is right; only its speed differs.
    """


class RoundedWarning(UserWarning):
    """A value that derivatives depend on is rounded to some decimals, and has the derivative 0.

    Rounding as a guard against noise makes whole gradients 0. The message names the line, and says
    how to differentiate as if the value were not rounded.
    """


class SlowerCodeWarning(UserWarning):
    """A derivative runs as it was verified, since what was made of it for speed differs from it.

    It is right. That the other version is wrong is a defect of the package, to be reported.
    """


class UnconfirmedWarning(UserWarning):
    """A derivative differs from what the source of its function says, by numbers of a finite field.

    When it is called for the first time, it checks itself, as with ``tapegrad.njit(verify=True)``.
    That the comparison differs is a defect of the package, to be reported.
    """


class VerificationError(ArithmeticError):
    """A derivative does not match its function.

    Raised by derivatives that check themselves: ``tapegrad.njit(verify=True)``, or the environment
    variable ``TAPEGRAD_VERIFY=1``. The message names the argument, the numbers that should be
    equal, the cause (a rule declared with `defvjp` or `defjvp`, or the generated derivative), and
    what to do.
    """


class UnequalExtentsError(Exception):
    """Extents of arguments differ that a version of a derivative assumes to be equal.

    It is raised before anything else happens, and caught where the general version is called.
    """


class InternalError(RuntimeError):
    """Generated code is incorrect: a defect of the package, found before the code could run.

    The message names the generated function and line.
    """

    def __init__(self, what: str, function: str, line: int, text: str) -> None:
        super().__init__(
            f"{what}\n  in line {line} of the generated function {function}\n    {text}\n"
            "This is a defect of tapegrad, not of your function; please report it with the "
            "function that was differentiated."
        )


class SingleDirectionError(Exception):
    """Generated code cannot be written for several directions."""
