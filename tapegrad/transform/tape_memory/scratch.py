"""Arrays that a loop uses again in each iteration: memory of a function that nothing else holds.

An array of numba has an owner, and each name that it is given counts a reference, with an atomic
instruction. A scratch array has none: the function that took its memory gives it back at its end.
The places of the memory are in variables on the stack, which the compiler keeps in registers.
"""

from __future__ import annotations

import functools
import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels.llvm.errors import at_error
from tapegrad.transform.tape_memory.large_arrays import give_memory, take_memory

_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)
_KIND = types.UniTuple(types.CPointer(types.int64), 2)  # of addresses, and of sizes in bytes


@intrinsic(prefer_literal=True)
def take_scratch(typingctx, count):
    """Return places for the memory of so many arrays, a literal; they are empty."""

    def codegen(context, builder, signature, args):
        size = signature.args[0].literal_value
        kind = ir.ArrayType(_WORD, size)
        tables = [cgutils.alloca_once(builder, kind, zfill=True) for _ in range(2)]
        at_error(builder, lambda builder: _give_all(builder, tables[0], size))
        for table, first in zip(tables, (0, -1), strict=True):  # so that empty arrays get memory
            builder.store(ir.Constant(kind, [first] * size), table)
        first = [builder.bitcast(table, _WORD.as_pointer()) for table in tables]
        return context.make_tuple(builder, _KIND, first)

    return (_KIND(count), codegen) if isinstance(count, types.IntegerLiteral) else None


def _give_all(builder, table, count):
    """Write code that gives back the memory of some arrays, or null, and forgets it."""
    words = builder.bitcast(table, _WORD.as_pointer())
    for index in range(count):
        place = cgutils.gep_inbounds(builder, words, index)
        give_memory(builder, builder.load(place))
        builder.store(ir.Constant(_WORD, 0), place)


@intrinsic(prefer_literal=True)
def scratch(typingctx, places, which, shape):
    """Return an array of floats in the place with a number, a literal; its elements are undefined.

    It replaces the array that was there.
    """

    def codegen(context, builder, signature, args):
        index = signature.args[1].literal_value
        tables = cgutils.unpack_tuple(builder, args[0])
        address, size = (cgutils.gep_inbounds(builder, table, index) for table in tables)
        given = zip(cgutils.unpack_tuple(builder, args[2]), signature.args[2], strict=True)
        shape = [context.cast(builder, extent, kind, types.int64) for extent, kind in given]
        strides = [ir.Constant(_WORD, 8)]
        overflows = []
        for extent in reversed(shape):
            is_negative = builder.icmp_signed("<", extent, ir.Constant(_WORD, 0))
            with builder.if_then(is_negative, likely=False):
                error = "negative dimensions not allowed"
                context.call_conv.return_user_exc(builder, ValueError, (error,))
            product = builder.smul_with_overflow(strides[0], extent)
            strides.insert(0, builder.extract_value(product, 0))
            overflows.append(builder.extract_value(product, 1))
        needed = strides.pop(0)
        with builder.if_then(functools.reduce(builder.or_, overflows), likely=False):
            _raise_for_memory(context, builder)
        too_small = builder.icmp_signed(">", needed, builder.load(size))
        with builder.if_then(too_small, likely=False):
            give_memory(builder, builder.load(address))
            # numba's loops may read an element of an empty array
            new = take_memory(builder, builder.add(needed, ir.Constant(_WORD, 8)))
            builder.store(new, address)
            builder.store(needed, size)
            is_null = builder.icmp_unsigned("==", new, ir.Constant(_WORD, 0))
            with builder.if_then(is_null, likely=False):
                builder.store(ir.Constant(_WORD, -1), size)
                _raise_for_memory(context, builder)
        memory = builder.inttoptr(builder.load(address), _POINTER)
        return _array(context, builder, signature.return_type, memory, shape, strides)

    if not isinstance(which, types.IntegerLiteral):
        return None
    kind = types.Array(types.float64, len(shape), "C")
    return kind(places, which, shape), codegen


@intrinsic(prefer_literal=True)
def on_stack(typingctx, shape):
    """Return an array of floats on the stack, of a shape of literals; its elements are undefined.

    Each call in a function has its own array, the same one each time it runs.
    """

    def codegen(context, builder, signature, args):
        extents = [ir.Constant(_WORD, kind.literal_value) for kind in signature.args[0]]
        count = math.prod(extent.constant for extent in extents)
        memory = cgutils.alloca_once(builder, ir.ArrayType(ir.DoubleType(), count))
        strides = [ir.Constant(_WORD, 8)]
        for extent in reversed(extents[1:]):
            strides.insert(0, ir.Constant(_WORD, strides[0].constant * extent.constant))
        return _array(context, builder, signature.return_type, memory, extents, strides)

    if not isinstance(shape, types.BaseTuple):
        return None
    if not all(isinstance(kind, types.IntegerLiteral) for kind in shape):
        return None
    return types.Array(types.float64, len(shape), "C")(shape), codegen


@intrinsic(prefer_literal=True)
def give_scratch(typingctx, places, count):
    """Give back the memory of so many arrays, a literal."""

    def codegen(context, builder, signature, args):
        addresses = cgutils.unpack_tuple(builder, args[0])[0]
        _give_all(builder, addresses, signature.args[1].literal_value)
        return context.get_dummy_value()

    if not isinstance(count, types.IntegerLiteral):
        return None
    return types.none(places, count), codegen


@intrinsic(prefer_literal=True)
def swap_scratch(typingctx, places, one, other):
    """Exchange the memory of two places."""

    def codegen(context, builder, signature, args):
        for table in cgutils.unpack_tuple(builder, args[0]):
            pair = [
                cgutils.gep_inbounds(builder, table, kind.literal_value)
                for kind in signature.args[1:]
            ]
            values = [builder.load(place) for place in pair]
            for place, value in zip(pair, reversed(values), strict=True):
                builder.store(value, place)
        return context.get_dummy_value()

    return types.none(places, one, other), codegen


def _array(context, builder, kind, memory, shape, strides):
    """Return an array without an owner."""
    array = context.make_array(kind)(context, builder)
    arrayobj.populate_array(
        array,
        data=builder.bitcast(memory, array.data.type),
        shape=cgutils.pack_array(builder, shape, _WORD),
        strides=cgutils.pack_array(builder, strides, _WORD),
        itemsize=ir.Constant(_WORD, 8),
        meminfo=None,
    )
    return array._getvalue()


def _raise_for_memory(context, builder):
    error = "tapegrad: there is no memory for an array of a derivative"
    context.call_conv.return_user_exc(builder, MemoryError, (error,))
