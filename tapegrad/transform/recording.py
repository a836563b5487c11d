"""Compiled functions called with tensors: one record on the tape for the whole function."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numba
import numpy as np
from numba.core import types

from tapegrad.autograd.function import Function
from tapegrad.tape.aval import DTYPE_CODES
from tapegrad.tensor import Tensor
from tapegrad.transform import derivatives
from tapegrad.transform.errors import TransformError
from tapegrad.transform.program import Program

_REAL = (float, np.floating, np.ndarray)


def has_tensors(args: tuple[Any, ...]) -> bool:
    """Whether any argument of a call is a tensor, or a tuple with tensors."""
    return any(isinstance(a, Tensor) or (isinstance(a, tuple) and has_tensors(a)) for a in args)


def record(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a compiled function with tensors among its arguments.

    Tensors of no dimension are passed as numbers. Results are tensors.
    """
    name = function.py_func.__name__
    if kwargs:
        bound = inspect.signature(function.py_func).bind(*args, **kwargs)
        bound.apply_defaults()
        args = bound.args
    if any(isinstance(a, tuple) and has_tensors(a) for a in args):
        raise TypeError(
            f"{name}: got a tuple of tensors; pass the tensors as arguments of their own, or one "
            "tensor"
        )
    return Recorded.apply(function, *args)


class Recorded(Function):
    """A compiled function as an op with the compiled derivative as its rule."""

    @staticmethod
    def forward(ctx: Any, function: Any, *args: Any) -> Any:
        """Compute the values."""
        values = [_plain(a) for a in args]
        positions = tuple(
            k for k, a in enumerate(args) if isinstance(a, Tensor) and a.dtype in DTYPE_CODES
        )
        kinds = tuple(map(numba.typeof, values))
        changed = _changed(function, kinds)
        for position in positions:
            if position in changed:
                raise TransformError(
                    f"{function.py_func.__name__} writes into argument {position}, which is a "
                    "tensor; let it work on a copy (x.copy()) and return the result"
                )
        ctx.function, ctx.positions = function, positions
        ctx.constants = [None if k in positions else v for k, v in enumerate(values)]
        ctx.save_for_backward(*(args[k] for k in positions))
        found = function(*values)
        ctx.real = [isinstance(v, _REAL) for v in (found if isinstance(found, tuple) else (found,))]
        return _tensors(found)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Compute the cotangents of the tensors; recorded as well where that is asked for."""
        args = list(ctx.constants)
        for position, tensor in zip(ctx.positions, ctx.saved_tensors, strict=True):
            args[position] = tensor
        needed = tuple(k for k in ctx.positions if ctx.needs_input_grad[k + 1])
        given = [g for g, is_real in zip(cotangents, ctx.real, strict=True) if is_real]
        rule = derivatives.pullback(ctx.function, needed, len(given), "gradients")
        found = rule(*args, *given)
        result: list[Any] = [None] * (len(args) + 1)
        for position, cotangent in zip(needed, found, strict=True):
            result[position + 1] = cotangent
        return tuple(result)


def _plain(value: Any) -> Any:
    """Return what compiled code is given for an argument."""
    if isinstance(value, Tensor):
        array = value._a
        return array[()] if array.ndim == 0 else array
    return value


def _tensors(value: Any) -> Any:
    """Return a result with tensors for its numbers and arrays."""
    from tapegrad.creation import tensor

    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    if isinstance(value, _REAL):
        return tensor(np.asarray(value))
    return value


@functools.cache
def _changed(function: Any, kinds: tuple[Any, ...]) -> frozenset[int]:
    """Return which arguments a function writes into."""
    if isinstance(function, derivatives.Derivative):
        return frozenset()
    program = Program()
    instance = program.instance(function, tuple(map(types.unliteral, kinds)))
    program.analyse()
    leaves = instance.leaves()
    found = set()
    for position in instance.writes:
        for number, param in enumerate(instance.function.params):
            if leaves[position] == param:
                found.add(number)
    return frozenset(found)
