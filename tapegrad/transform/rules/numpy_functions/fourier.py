"""Fourier transforms of pairs: the last axis has real and imaginary parts."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.cpython.unsafe.tuple import tuple_setitem

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.fourier import (
    BACK,
    EVEN,
    FORWARD,
    MOST_AXES,
    ODD,
    TO_REAL,
    fold_lines,
    mirror_lines,
    transform_lines,
)
from tapegrad.transform.nodes import integer
from tapegrad.transform.rules.array_specs import declare, named_function
from tapegrad.transform.tape_memory.large_arrays import empty


def _extents(known: Any, arguments: list[ast.expr], axis: int) -> Any:
    """Return the key of an extent of what has those of the first argument."""
    first = arguments[0]
    assert isinstance(first, ast.Name)
    return known.of(first.id, axis)


def _extents_of_pairs(known: Any, arguments: list[ast.expr], axis: int) -> Any:
    """Return the key of an extent of an array of pairs, one for each element of an argument."""
    first = arguments[0]
    assert isinstance(first, ast.Name)
    is_number = axis < known.types[first.id].ndim
    return _extents(known, arguments, axis) if is_number else ("constant", 2)


def _other_extent(of_others: Any) -> Any:
    """Return what finds the keys if the extent along an axis is an argument, too."""

    def found(known: Any, arguments: list[ast.expr], axis: int) -> Any:
        _, count, along = arguments
        is_own = axis == integer(along)
        return known.of_number(count) if is_own else of_others(known, arguments, axis)

    return found


_of_pairs, _to_pairs = _other_extent(_extents), _other_extent(_extents_of_pairs)
_whole = "real_fourier_of_pairs(g, shape[axis], axis)"
_scaled = "real_fourier_of_pairs(scaled_pairs(g, shape[axis], axis, 0.5), shape[axis], axis)"
_real = "real_adjoint_of_pairs(g, axis, others)"
for _name, _extents_of, _given, _adjoint in (
    ("fourier_of_pairs", _extents, "z axis", "fourier_adjoint_of_pairs(g, axis)"),
    ("fourier_adjoint_of_pairs", _extents, "z axis", "fourier_of_pairs(g, axis)"),
    ("half_fourier_to_pairs", _to_pairs, "x count axis", _scaled),
    ("doubled_half_fourier", _to_pairs, "x count axis", _whole),
    ("real_fourier_of_pairs", _of_pairs, "z n axis", "doubled_half_fourier(g, shape[axis], axis)"),
    ("scaled_pairs", _extents, "z n axis factor", "scaled_pairs(g, n, axis, factor)"),
    ("whole_fourier_to_pairs", _extents_of_pairs, "x axis others", _real),
    ("real_adjoint_of_pairs", _extents, "z axis others", "whole_fourier_to_pairs(g, axis, others)"),
):
    _arguments = _given.split()
    _value = f"{_name}({', '.join(_arguments)})"
    declare(
        *(_name, *_arguments),
        linear=tuple(_arguments[:1]),
        value=_value,
        adjoint=_adjoint,
        extents=_extents_of,
    )


@jit
def _lines(shape, axis):
    """Return how many lines there are before an axis, its extent, and the lines after it."""
    outer, inner = 1, 1
    for k in range(axis):
        outer *= shape[k]
    for k in range(axis + 1, len(shape)):
        inner *= shape[k]
    return outer, shape[axis], inner


@named_function
@jit
def fourier_of_pairs(z, axis):
    """Return the sums of ``z[j] exp(-2 pi i j k / n)`` along an axis."""
    z = np.ascontiguousarray(z)
    out = empty(z.shape)
    outer, n, inner = _lines(z.shape[:-1], axis)
    transform_lines(out, z, (FORWARD, outer, n, n, inner))
    return out


@named_function
@jit
def fourier_adjoint_of_pairs(z, axis):
    """Return the sums of ``z[j] exp(2 pi i j k / n)`` along an axis."""
    z = np.ascontiguousarray(z)
    out = empty(z.shape)
    outer, n, inner = _lines(z.shape[:-1], axis)
    transform_lines(out, z, (BACK, outer, n, n, inner))
    return out


# -- of real numbers -------------------------------------------------------------------------------


@named_function
@jit
def half_fourier_to_pairs(x, count, axis):
    """Return the transform of real numbers along an axis, for frequencies up to n / 2."""
    x = np.ascontiguousarray(x)
    outer, n, inner = _lines(x.shape, axis)
    out = empty(tuple_setitem(x.shape, axis, count) + (2,))  # noqa: RUF005 (numba)
    transform_lines(out, x, (ODD if n % 2 else EVEN, outer, n, count, inner))
    return out


@named_function
@jit
def real_fourier_of_pairs(z, n, axis):
    """Return the n real numbers that `half_fourier_to_pairs` transforms, times n."""
    z = np.ascontiguousarray(z)
    outer, count, inner = _lines(z.shape[:-1], axis)
    out = empty(tuple_setitem(z.shape[:-1], axis, n))
    transform_lines(out, z, (TO_REAL, outer, count, n, inner))
    return out


@jit
def _scale(out, z, n, axis, factor):
    """Write pairs of which those that stand for two frequencies are multiplied by a factor."""
    outer, count, inner = _lines(z.shape[:-1], axis)
    to, given = out.reshape((outer, count, 2 * inner)), z.reshape((outer, count, 2 * inner))
    for i in range(outer):
        for k in range(count):
            own = 1.0 if k == 0 or 2 * k == n else factor
            for j in range(2 * inner):
                to[i, k, j] = given[i, k, j] * own


@named_function
@jit
def doubled_half_fourier(x, count, axis):
    """Return half of a transform, twice what stands for two frequencies."""
    out = half_fourier_to_pairs(x, count, axis)
    _scale(out, out, x.shape[axis], axis, 2.0)
    return out


@named_function
@jit
def scaled_pairs(z, n, axis, factor):
    """Return pairs of which those that stand for two frequencies are multiplied by a factor."""
    z = np.ascontiguousarray(z)
    out = empty(z.shape)
    _scale(out, z, n, axis, factor)
    return out


# All frequencies of real numbers: half of the work. Other axes, as bits, are transformed as well.


@jit
def _request(shape, axis, others):
    """Return the request of `mirror_lines` and `fold_lines`, without addresses."""
    found = (len(shape), axis, others, 1, 1, 1, 1)
    for k in range(len(shape)):
        found = tuple_setitem(found, len(found) - MOST_AXES + k, shape[k])
    return found


@named_function
@jit
def whole_fourier_to_pairs(x, axis, others):
    """Return the transform of real numbers along an axis and others, for all frequencies."""
    half = half_fourier_to_pairs(x, x.shape[axis] // 2 + 1, axis)
    for k in range(x.ndim):
        if (others >> k) & 1:
            half = fourier_of_pairs(half, k)
    out = empty(x.shape + (2,))  # noqa: RUF005 (numba)
    mirror_lines(out, half, _request(x.shape, axis, others))
    return out


@named_function
@jit
def real_adjoint_of_pairs(z, axis, others):
    """Return the real part of the adjoint transform along an axis and others."""
    z = np.ascontiguousarray(z)
    n = z.shape[axis]
    half = empty(tuple_setitem(z.shape[:-1], axis, n // 2 + 1) + (2,))  # noqa: RUF005 (numba)
    fold_lines(half, z, _request(z.shape[:-1], axis, others))
    for k in range(z.ndim - 1):
        if (others >> k) & 1:
            half = fourier_adjoint_of_pairs(half, k)
    return real_fourier_of_pairs(half, n, axis)
