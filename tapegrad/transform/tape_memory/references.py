"""References to arrays on the tape.

They are linked from the last to the first, and have the sizes of the arrays in bytes: so the
memory that a call keeps is known, and can be released if it exceeds the limit.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.transform.cache.machine_code import merged
from tapegrad.transform.tape_memory.buffer import (
    POINTER,
    WORD,
    block_of,
    decref,
    free_array,
    last_reference,
    number,
)
from tapegrad.transform.tape_memory.limit import load_counting

_REFERENCE = 4  # words of a reference before the shape and the strides of the array


@intrinsic
def hold(typingctx, tape, place, array, kind):
    """Write an owned reference to an array onto the tape; return the bytes of all such arrays."""
    _check_kind(array, kind)

    def codegen(context, builder, signature, args):
        block = block_of(context, builder, signature.args[0], args[0])
        array = context.make_array(signature.args[2])(context, builder, args[2])
        size = builder.mul(array.nitems, array.itemsize)
        _write_reference(context, builder, signature, args, 1, block.get("last"), size)
        block.set("last", builder.add(args[1], number(1)))
        block.set("kept", builder.add(block.get("kept"), size))
        return block.get("kept")

    return types.int64(tape, types.int64, array, kind), codegen


@intrinsic
def hold_tangent(typingctx, tape, place, array, kind):
    """Write an owned reference to an array onto the tape of tangents, which is a plain array."""
    _check_kind(array, kind)

    def codegen(context, builder, signature, args):
        _write_reference(context, builder, signature, args, 0, number(0), number(0))
        return context.get_dummy_value()

    return types.none(tape, types.int64, array, kind), codegen


def _check_kind(array, kind):
    if not is_taken_as(array, kind.instance_type):
        raise TypingError(f"{array} on the tape, {kind.instance_type} taken from it")


def _write_reference(context, builder, signature, args, is_linked, last, size):
    kind = signature.args[2]
    context.nrt.incref(builder, kind, args[2])
    held = context.make_array(kind)(context, builder, args[2])
    # addresses are even: the lowest bit says whether the reference is linked
    owner = builder.or_(builder.ptrtoint(held.meminfo, WORD), number(is_linked))
    words = [owner, last, size, builder.ptrtoint(held.data, WORD)]
    assert len(words) == _REFERENCE
    words += cgutils.unpack_tuple(builder, held.shape, kind.ndim)
    words += cgutils.unpack_tuple(builder, held.strides, kind.ndim)
    first = _address(context, builder, signature.args[0], args[0], args[1])
    for k, word in enumerate(words):
        builder.store(word, cgutils.gep_inbounds(builder, first, k))


@intrinsic
def pop_array(typingctx, tape, top, kind):
    """Pop a reference to an array of a type from the tape; return it with the new top."""
    array_type = kind.instance_type
    count = words_of(array_type)

    def codegen(context, builder, signature, args):
        top = builder.sub(args[1], number(count))
        first = _address(context, builder, signature.args[0], args[0], top)
        words = [builder.load(cgutils.gep_inbounds(builder, first, k)) for k in range(count)]
        owner, last, size, data = words[:_REFERENCE]
        with builder.if_then(builder.trunc(owner, ir.IntType(1)), likely=True):
            block = block_of(context, builder, signature.args[0], args[0])
            block.set("last", last)
            block.set("kept", builder.sub(block.get("kept"), size))
        array = context.make_array(array_type)(context, builder)
        ndim = array_type.ndim
        arrayobj.populate_array(
            array,
            data=builder.inttoptr(data, array.data.type),
            shape=cgutils.pack_array(builder, words[_REFERENCE : _REFERENCE + ndim], WORD),
            strides=cgutils.pack_array(builder, words[_REFERENCE + ndim :], WORD),
            itemsize=context.get_constant(
                types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype))
            ),
            meminfo=builder.inttoptr(builder.and_(owner, number(~1)), array.meminfo.type),
        )
        result = context.make_tuple(builder, signature.return_type, (array._getvalue(), top))
        return impl_ret_new_ref(context, builder, signature.return_type, result)

    return types.Tuple((array_type, types.int64))(tape, types.int64, kind), codegen


def words_of(kind):
    """Return the size of a reference to an array on the tape, in numbers."""
    return _REFERENCE + 2 * kind.ndim


@intrinsic
def size_of(typingctx, kind):
    """Return the size of a reference to an array of a type on the tape, in numbers."""
    count = words_of(kind.instance_type)
    return types.int64(kind), lambda context, builder, signature, args: number(count)


def is_taken_as(array, kind):
    """Whether an array can be read back as an array of another type."""
    layouts = (array.layout, "A")
    return array.dtype == kind.dtype and array.ndim == kind.ndim and kind.layout in layouts


def _address(context, builder, kind, tape, place):
    """Return the address of a position on the tape, as a pointer to integers."""
    array = context.make_array(kind)(context, builder, tape)
    data = builder.bitcast(array.data, WORD.as_pointer())
    return builder.gep(data, [place], inbounds=True)


@intrinsic
def _word(typingctx, tape, place):
    """Return a word of the tape, as an integer."""

    def codegen(context, builder, signature, args):
        return builder.load(_address(context, builder, signature.args[0], *args))

    return types.int64(tape, types.int64), codegen


@intrinsic
def _release(typingctx, owner):
    """Give up a reference to an array."""

    def codegen(context, builder, signature, args):
        decref(builder, builder.inttoptr(builder.and_(args[0], number(~1)), POINTER))
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@intrinsic
def count_kept(typingctx, tape):
    """Count each of the arrays that the tape refers to once, if there is memory for that."""

    def codegen(context, builder, signature, args):
        block = block_of(context, builder, signature.args[0], args[0])
        kind = ir.FunctionType(WORD, [WORD, WORD])
        counting = builder.inttoptr(load_counting(builder), kind.as_pointer())
        last = builder.sub(block.get("last"), number(1))
        found = builder.call(counting, [block.get("array"), last])
        # it is 0 if the function cannot be compiled, or nothing is kept
        with builder.if_then(builder.icmp_signed(">", found, number(0))):
            block.set("kept", found)
        return context.get_dummy_value()

    return types.none(tape), codegen


@merged
def abandon(tape):
    """Free the memory of a tape and what it refers to, before an error leaves all functions."""
    place = last_reference(tape)
    while place >= 0:
        _release(_word(tape, place))
        place = _word(tape, place + 1) - 1
    free_array(tape)
