"""What generated code calls: the tape of kept values.

The tape is one growing array of float64. Integers and truth values go onto it by their bits,
arrays element by element with their shape on top.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic
from numba.np import arrayobj

jit = numba.njit(error_model="numpy", cache=True)

_PAGES, _PAGE_SIZE = 85, 30  # names of sysconf's answers on Linux
LARGE = 1 << 26  # bytes from which on memory is asked for with care
FIRST = 64  # numbers
_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def to_bits(typingctx, value):
    """Return an integer as the float64 of the same bits."""

    def codegen(context, builder, signature, args):
        wide = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.bitcast(wide, ir.DoubleType())

    return types.float64(value), codegen


@intrinsic
def from_bits(typingctx, value):
    """Return a float64 as the integer of the same bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def inverse(typingctx, value):
    """Return ``1 / value`` as IEEE 754 defines it, without an error for zero."""

    def codegen(context, builder, signature, args):
        wide = context.cast(builder, args[0], signature.args[0], types.float64)
        return builder.fdiv(ir.Constant(ir.DoubleType(), 1.0), wide)

    return types.float64(value), codegen


@intrinsic
def product(typingctx, x, y):
    """Return ``x * y``, 0 where x is 0."""

    def codegen(context, builder, signature, args):
        one, two = (
            context.cast(builder, value, kind, types.float64)
            for value, kind in zip(args, signature.args, strict=True)
        )
        zero = ir.Constant(ir.DoubleType(), 0.0)
        nothing = builder.fcmp_ordered("==", one, zero)
        return builder.select(nothing, zero, builder.fmul(one, two))

    return types.float64(x, y), codegen


@intrinsic
def system_answer(typingctx, number):
    """Ask the system (``sysconf``)."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(32)])
        function = builder.module.globals.get("sysconf")
        if function is None:
            function = ir.Function(builder.module, kind, "sysconf")
        return builder.call(function, [builder.trunc(args[0], ir.IntType(32))])

    return types.int64(types.int64), codegen


@intrinsic
def take_tape(typingctx):
    """Return the tape that the last call of this function left behind, or a new one.

    Its address stands in a variable of the compiled module, which is emptied meanwhile: threads
    and calls within calls each have a tape of their own.
    """
    kind = types.Array(types.float64, 1, "C")

    def codegen(context, builder, signature, args):
        place = _place(builder)
        empty = ir.Constant(_POINTER, None)
        left = builder.atomic_rmw("xchg", place, empty, "acq_rel")
        meminfo = builder.alloca(_POINTER)
        builder.store(left, meminfo)
        with builder.if_then(builder.icmp_unsigned("==", left, empty)):
            size = context.get_constant(types.intp, FIRST * 8)
            made = context.nrt.meminfo_alloc(builder, size)
            first = context.nrt.meminfo_data(builder, made)
            count = context.get_constant(types.intp, FIRST)
            builder.store(count, builder.bitcast(first, ir.IntType(64).as_pointer()))
            builder.store(made, meminfo)
        held = builder.load(meminfo)
        data = context.nrt.meminfo_data(builder, held)
        items = builder.load(builder.bitcast(data, ir.IntType(64).as_pointer()))
        array = context.make_array(kind)(context, builder)
        arrayobj.populate_array(
            array,
            data=builder.bitcast(data, array.data.type),
            shape=cgutils.pack_array(builder, [items]),
            strides=cgutils.pack_array(builder, [context.get_constant(types.intp, 8)]),
            itemsize=context.get_constant(types.intp, 8),
            meminfo=held,
        )
        return impl_ret_new_ref(context, builder, kind, array._getvalue())

    return kind(), codegen


@intrinsic
def give_tape(typingctx, tape):
    """Leave a tape for the next call."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        context.nrt.incref(builder, kind, args[0])
        array = context.make_array(kind)(context, builder, args[0])
        (items,) = cgutils.unpack_tuple(builder, array.shape, 1)
        # the first word of a tape that waits is its size
        builder.store(items, builder.bitcast(array.data, ir.IntType(64).as_pointer()))
        left = builder.atomic_rmw("xchg", _place(builder), array.meminfo, "acq_rel")
        with builder.if_then(builder.icmp_unsigned("!=", left, ir.Constant(_POINTER, None))):
            _release(builder, left)
        return context.get_dummy_value()

    return types.none(tape), codegen


def _release(builder, meminfo):
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [_POINTER]), "NRT_decref"
    )
    builder.call(function, [meminfo])


def _place(builder):
    """Return the variable of the compiled module that holds the address of a tape."""
    found = builder.module.globals.get("tapegrad_tape")
    if found is None:
        found = ir.GlobalVariable(builder.module, _POINTER, "tapegrad_tape")
        found.linkage = "internal"
        found.initializer = ir.Constant(_POINTER, None)
    return found


@jit
def grown(tape, needed):
    """Return a tape of at least the needed size with the same content."""
    size = max(needed, tape.size + tape.size // 2, FIRST)
    if size * 8 > LARGE:
        size = max(needed, tape.size + tape.size // 2)
        memory = system_answer(_PAGES) * system_answer(_PAGE_SIZE)
        if (size + tape.size) * 8 > 0.8 * memory:
            size = needed
        if memory > 0 and (size + tape.size) * 8 > 0.9 * memory:
            raise MemoryError(
                "tapegrad: the values that the reverse pass needs do not fit into memory; "
                "take fewer steps, or split the loop and differentiate its parts"
            )
    larger = np.empty(size)
    for k in range(tape.size):  # a slice would take seconds to compile, for the text of its error
        larger[k] = tape[k]
    return larger


@jit
def extent(array):
    """Return the first address of an array's elements and the one behind the last."""
    low = array.ctypes.data
    high = low + array.itemsize
    for axis in range(array.ndim):
        span = array.strides[axis] * (array.shape[axis] - 1)
        if span > 0:
            high += span
        else:
            low += span
    return low, high


@jit
def overlap(x, y):
    """Whether two arrays may share elements."""
    if x.size == 0 or y.size == 0:
        return False
    x_low, x_high = extent(x)
    y_low, y_high = extent(y)
    return x_low < y_high and y_low < x_high


@jit
def push_array(tape, top, array):
    """Put the elements of an array onto the tape, and its shape on top."""
    needed = top + array.size + array.ndim
    if needed > tape.size:
        tape = grown(tape, needed)
    flat = array.copy().reshape(-1)
    for k in range(flat.size):
        tape[top] = flat[k]
        top += 1
    for size in array.shape:
        tape[top] = size
        top += 1
    return tape, top


@jit
def pop_1(tape, top):
    """Take a vector from the tape."""
    n = int(tape[top - 1])
    top -= 1 + n
    return tape[top : top + n].copy(), top


@jit
def pop_2(tape, top):
    """Take a matrix from the tape."""
    n, m = int(tape[top - 2]), int(tape[top - 1])
    top -= 2 + n * m
    return tape[top : top + n * m].copy().reshape((n, m)), top


@jit
def pop_3(tape, top):
    """Take an array of three dimensions from the tape."""
    n, m, k = int(tape[top - 3]), int(tape[top - 2]), int(tape[top - 1])
    top -= 3 + n * m * k
    return tape[top : top + n * m * k].copy().reshape((n, m, k)), top


@jit
def pop_4(tape, top):
    """Take an array of four dimensions from the tape."""
    n, m, k, p = int(tape[top - 4]), int(tape[top - 3]), int(tape[top - 2]), int(tape[top - 1])
    top -= 4 + n * m * k * p
    return tape[top : top + n * m * k * p].copy().reshape((n, m, k, p)), top
