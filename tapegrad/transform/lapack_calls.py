"""Calls of SciPy's LAPACK and BLAS in compiled code."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.transform.lapack import NAMES, SYMBOL
from tapegrad.transform.request_code import inlined, read, write
from tapegrad.transform.requests import external

_CHAR, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)

# letters that say what is asked for
LOWER, NO, RIGHT, SOME, TRANSPOSED, UPPER, VECTORS = map(ord, "LNRSTUV")


def function_of_scipy(name: str, pattern: str):
    """Return an intrinsic that calls a function of SciPy's LAPACK or BLAS.

    Its argument is a tuple of integers. It returns what the function says in its last argument.

    Parameters
    ----------
    name
        The name of the function.
    pattern
        Its parameters, all of which are given by address: ``c`` (a letter), ``i`` (an integer),
        ``p`` (an address), ``1`` (the float 1), ``?`` (what it says).
    """
    number = list(NAMES).index(name)
    count = sum(letter in "cip" for letter in pattern)

    @intrinsic
    def call(typingctx, given):
        def codegen(context, builder, signature, args):
            values = iter(cgutils.unpack_tuple(builder, args[0], count))
            said = cgutils.alloca_once_value(builder, _INT(0))
            found = []
            for letter in pattern:
                if letter == "p":
                    found.append(next(values))
                    continue
                if letter == "?":
                    place = said
                elif letter == "1":
                    place = cgutils.alloca_once_value(builder, ir.DoubleType()(1.0))
                else:
                    kind = _CHAR if letter == "c" else _INT
                    place = cgutils.alloca_once(builder, kind)
                    builder.store(builder.trunc(next(values), kind), place)
                found.append(builder.ptrtoint(place, _WORD))
            kind = ir.FunctionType(ir.VoidType(), [_WORD] * len(found)).as_pointer()
            builder.call(builder.inttoptr(_entry(builder, number), kind), found)
            return builder.sext(builder.load(said), _WORD)

        return types.int64(types.UniTuple(types.int64, count)), codegen

    return call


def _entry(builder, number):
    """Write the read of an entry of the table of functions."""
    table = external(builder, SYMBOL, ir.ArrayType(_WORD, len(NAMES)))
    return builder.load(cgutils.gep_inbounds(builder, table, 0, number))


@intrinsic
def has_scipy(typingctx):
    """Whether the table has functions: all of them, or none."""

    def codegen(context, builder, signature, args):
        return builder.icmp_unsigned("!=", _entry(builder, 0), _WORD(0))

    return types.boolean(), codegen


@inlined
def copy_matrix(to, down, right, x):
    """Copy a matrix to memory with these distances along its axes; return whether it is finite."""
    address, rows, columns, x_down, x_right = x
    is_finite = True
    for i in range(rows):
        for j in range(columns):
            value = read(address + i * x_down + j * x_right, 0)
            is_finite = is_finite and np.isfinite(value)
            write(to + i * down + j * right, 0, value)
    return is_finite
