"""Rows: parts of a tape as arrays, one for each value that a loop keeps."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np import arrayobj

_WORD = ir.IntType(64)


@intrinsic
def row(typingctx, tape, start, length):
    """Return the elements of the tape from a position on, as an array that does not own them.

    It costs nothing, but the tape has to live longer.
    """

    def codegen(context, builder, signature, args):
        part = _row(context, builder, signature, args, owns=False)
        return part._getvalue()

    return tape(tape, types.int64, types.int64), codegen


@intrinsic
def owned_row(typingctx, tape, start, length):
    """Return a `row` that keeps the tape alive: for rows in functions that are differentiated."""

    def codegen(context, builder, signature, args):
        part = _row(context, builder, signature, args, owns=True)
        return impl_ret_borrowed(context, builder, signature.return_type, part._getvalue())

    return tape(tape, types.int64, types.int64), codegen


def _row(context, builder, signature, args, owns):
    whole = context.make_array(signature.args[0])(context, builder, args[0])
    part = context.make_array(signature.return_type)(context, builder)
    arrayobj.populate_array(
        part,
        data=part_of(builder, whole.data, args[1]),
        shape=cgutils.pack_array(builder, [args[2]]),
        strides=cgutils.pack_array(builder, [ir.Constant(_WORD, 8)]),
        itemsize=ir.Constant(_WORD, 8),
        meminfo=whole.meminfo if owns else None,
    )
    return part


def part_of(builder, data, place):
    """Return the address of a position on the tape.

    LLVM must not see that rows are parts of one array: it would give up to prove that they are
    apart, instead of checking it before the loop, and would not vectorize.
    """
    first = cgutils.gep_inbounds(builder, data, place)
    unknown = ir.FunctionType(first.type, [first.type])
    return builder.asm(unknown, "", "=r,0", [first], side_effect=False)
