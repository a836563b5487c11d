"""Gradients of functions, with their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.calls import Argnums, Call, Transformed, as_argnums
from tapegrad.eager.detached import note_independent
from tapegrad.func import recorded
from tapegrad.func.common import compiler_of, cotangents_of_inputs, has_no_history, scalar_of


def value_and_grad(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, out: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the value and the gradient of `f`.

    Parameters
    ----------
    f
        Function with a scalar result.
    argnums
        Positions of the differentiated arguments; for a sequence, the gradient is a tuple.
    has_aux
        Whether `f` returns a pair (scalar, anything); the value is then that pair.
    out
        For a function made with `tg.njit`: whether the returned function takes another argument
        ``out``, the array that the gradient is written to, and returns it. For a sequence of
        argnums, ``out`` is a tuple, with None for numbers.

    Returns
    -------
    callable
        Takes the arguments of `f` and returns (value, gradient). A gradient has the structure,
        shapes and dtypes of its argument.

    Raises
    ------
    TypeError, ValueError
        When called, if a differentiated argument is not floating point or the result not a scalar.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> value, gradient = tg.value_and_grad(lambda x: tg.sum(x**2))(np.array([1.0, 2.0]))
    >>> value, gradient
    (np.float64(5.0), array([2., 4.]))

    An optimiser that calls a compiled gradient often can let it write to one array:

    >>> @tg.njit
    ... def energy(x):
    ...     s = 0.0
    ...     for i in range(x.size):
    ...         s += x[i] ** 4
    ...     return s
    >>> value_and_grad = tg.value_and_grad(energy, out=True)
    >>> x, g = np.array([1.0, 2.0]), np.empty(2)
    >>> value_and_grad(x, out=g)
    (17.0, array([ 4., 32.]))
    >>> g
    array([ 4., 32.])
    """
    argnums = as_argnums(argnums, "value_and_grad")
    _check_out(out, "value_and_grad")
    if source := compiler_of(f, "value_and_grad", has_aux):
        return source.gradient(f, argnums, True, "value_and_grad", out)
    _refuse_out(out, "value_and_grad")
    both = _value_and_grad(f, argnums, has_aux, "value_and_grad")
    recipe = value_and_grad, f, argnums, has_aux
    return Transformed(both, *recipe, recorded=recorded.value_and_grad, compiles=has_aux)


def _value_and_grad(
    f: Callable[..., Any], argnums: Argnums, has_aux: bool, name: str
) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = Call(f, args, argnums, name, has_aux, kwargs)
        value = scalar_of(call.result, name)
        if has_no_history(call, [value]):
            note_independent(name)
        nested = call.nested()
        gradients = cotangents_of_inputs(call, [value], create_graph=nested)
        found = call.value(value)
        return ((found, call.auxiliary()) if has_aux else found), call.like_inputs(gradients)

    # functions that are recorded have compiled gradients for arrays
    compiled = None if has_aux else getattr(f, "with_compiled_gradient", None)
    return wrapped if compiled is None else compiled(wrapped, argnums, name != "grad")


def _check_out(out: Any, name: str) -> None:
    if not isinstance(out, (bool, np.bool_)):
        raise TypeError(
            f"{name}: out is True or False, got {type(out).__name__}; the array is an argument of "
            "the returned function, which is called with out=array"
        )


def _refuse_out(out: bool, name: str) -> None:
    if out:
        raise TypeError(
            f"{name}: out is for functions compiled with tg.njit; the gradient of a function of "
            "tensors is in new arrays"
        )


def grad(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, out: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient of `f`.

    Parameters
    ----------
    f
        Function with a scalar result.
    argnums
        Positions of the differentiated arguments; for a sequence, the gradient is a tuple.
    has_aux
        Whether `f` returns a pair (scalar, anything); the result is then (gradient, anything).
    out
        For a function made with `tg.njit`: whether the returned function takes another argument
        ``out`` to write the gradient to, as for `value_and_grad`.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.grad(lambda x: tg.sum(x**3))(np.array([1.0, 2.0]))
    array([ 3., 12.])
    >>> tg.grad(tg.grad(tg.sin))(0.5) == -np.sin(0.5)
    np.True_
    """
    argnums = as_argnums(argnums, "grad")
    _check_out(out, "grad")
    if source := compiler_of(f, "grad", has_aux):
        return source.gradient(f, argnums, False, "grad", out)
    _refuse_out(out, "grad")
    both = _value_and_grad(f, argnums, has_aux, "grad")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return Transformed(wrapped, grad, f, argnums, has_aux, recorded=recorded.grad, compiles=has_aux)
