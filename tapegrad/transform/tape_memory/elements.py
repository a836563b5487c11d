"""Elements of arrays on the tape: copied to it, and read where they lie.

For an array of a few numbers, this takes a fraction of the memory of a reference, which keeps the
array with its header; and whoever made the array may use it again.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.transform.tape_memory.buffer import WORD, number
from tapegrad.transform.tape_memory.rows import part_of


def is_kept_by_elements(kind: Any) -> bool:
    """Whether the elements of arrays of a type can be on the tape themselves."""
    return isinstance(kind, types.Array) and kind.dtype == types.float64 and kind.layout == "C"


@intrinsic
def put_elements(typingctx, tape, top, array):
    """Write the elements of an array onto the tape, followed by its shape; return the new top.

    There has to be room for them.
    """
    if not is_kept_by_elements(array):
        raise TypingError(f"{array} on the tape, which has no elements of this kind")

    def codegen(context, builder, signature, args):
        given = context.make_array(signature.args[2])(context, builder, args[2])
        tape = context.make_array(signature.args[0])(context, builder, args[0])
        first = cgutils.gep_inbounds(builder, tape.data, args[1])
        cgutils.raw_memcpy(builder, first, given.data, given.nitems, 8)
        top = builder.add(args[1], given.nitems)
        words = builder.bitcast(tape.data, WORD.as_pointer())
        for extent in cgutils.unpack_tuple(builder, given.shape, array.ndim):
            builder.store(extent, cgutils.gep_inbounds(builder, words, top))
            top = builder.add(top, number(1))
        return top

    return types.int64(tape, types.int64, array), codegen


@intrinsic
def pop_elements(typingctx, tape, top, kind):
    """Pop the elements of an array of a type from the tape; return the array and the new top.

    The array is a part of the tape, which has to live longer.
    """
    return _pop(tape, kind.instance_type, owns=False)


@intrinsic
def pop_owned_elements(typingctx, tape, top, kind):
    """Pop an array that keeps the tape alive: for functions that are differentiated."""
    return _pop(tape, kind.instance_type, owns=True)


def _pop(tape, array_type, owns):
    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        whole = context.make_array(kind)(context, builder, args[0])
        words = builder.bitcast(whole.data, WORD.as_pointer())
        ndim = array_type.ndim
        end = builder.sub(args[1], number(ndim))
        places = [builder.add(end, number(axis)) for axis in range(ndim)]
        shape = [builder.load(cgutils.gep_inbounds(builder, words, place)) for place in places]
        strides, stride = [], number(8)
        for extent in reversed(shape):
            strides.append(stride)
            stride = builder.mul(stride, extent)
        top = builder.sub(end, builder.udiv(stride, number(8)))
        array = context.make_array(array_type)(context, builder)
        arrayobj.populate_array(
            array,
            data=part_of(builder, whole.data, top),
            shape=cgutils.pack_array(builder, shape, WORD),
            strides=cgutils.pack_array(builder, strides[::-1], WORD),
            itemsize=number(8),
            meminfo=whole.meminfo if owns else None,
        )
        made = array._getvalue()
        if owns:
            made = impl_ret_borrowed(context, builder, array_type, made)
        return context.make_tuple(builder, signature.return_type, (made, top))

    result = types.Tuple((array_type, types.int64))
    return result(tape, types.int64, types.TypeRef(array_type)), codegen
