"""Functions that generated code calls, among them those of the tape of kept values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np import arrayobj

from tapegrad.kernels.intrinsics import index as index
from tapegrad.kernels.intrinsics import larger as larger
from tapegrad.kernels.intrinsics import smaller as smaller
from tapegrad.transform.blas import add_product as add_product
from tapegrad.transform.blas import add_product_nt as add_product_nt
from tapegrad.transform.blas import add_product_tn as add_product_tn
from tapegrad.transform.blas import dot_12 as dot_12
from tapegrad.transform.blas import dot_21 as dot_21
from tapegrad.transform.blas import dot_22 as dot_22
from tapegrad.transform.cache.machine_code import jit, passive, uncached
from tapegrad.transform.errors import UnequalExtentsError as UnequalExtentsError
from tapegrad.transform.extremes import maximum as maximum
from tapegrad.transform.extremes import minimum as minimum
from tapegrad.transform.powers import outer_power as outer_power
from tapegrad.transform.tape_memory.buffer import enlarged as enlarged
from tapegrad.transform.tape_memory.buffer import give_tape as give_tape
from tapegrad.transform.tape_memory.buffer import take_owned_tape as take_owned_tape
from tapegrad.transform.tape_memory.buffer import take_tape as take_tape
from tapegrad.transform.tape_memory.elements import pop_elements as pop_elements
from tapegrad.transform.tape_memory.elements import pop_owned_elements as pop_owned_elements
from tapegrad.transform.tape_memory.elements import put_elements
from tapegrad.transform.tape_memory.growth import check_limit, grown_tangents
from tapegrad.transform.tape_memory.growth import copied as copied
from tapegrad.transform.tape_memory.growth import grown as grown
from tapegrad.transform.tape_memory.large_arrays import duplicate as duplicate
from tapegrad.transform.tape_memory.large_arrays import empty as empty
from tapegrad.transform.tape_memory.large_arrays import full as full
from tapegrad.transform.tape_memory.large_arrays import zeros as zeros
from tapegrad.transform.tape_memory.references import hold, hold_tangent, is_taken_as, size_of
from tapegrad.transform.tape_memory.references import pop_array as pop_array
from tapegrad.transform.tape_memory.rows import owned_row as owned_row
from tapegrad.transform.tape_memory.rows import row as row
from tapegrad.transform.tape_memory.scratch import give_scratch as give_scratch
from tapegrad.transform.tape_memory.scratch import on_stack as on_stack
from tapegrad.transform.tape_memory.scratch import scratch as scratch
from tapegrad.transform.tape_memory.scratch import swap_scratch as swap_scratch
from tapegrad.transform.tape_memory.scratch import take_scratch as take_scratch
from tapegrad.transform.tape_memory.workers import address_of as address_of
from tapegrad.transform.tape_memory.workers import blocks_of as blocks_of
from tapegrad.transform.tape_memory.workers import copies_of as copies_of
from tapegrad.transform.tape_memory.workers import pop_workers as pop_workers
from tapegrad.transform.tape_memory.workers import push_workers as push_workers
from tapegrad.transform.tape_memory.workers import set_used as set_used
from tapegrad.transform.tape_memory.workers import share_of as share_of
from tapegrad.transform.tape_memory.workers import stretch as stretch
from tapegrad.transform.tape_memory.workers import tape_of as tape_of
from tapegrad.transform.tape_memory.workers import used as used
from tapegrad.transform.tape_memory.workers import workers_for as workers_for

INFINITESIMAL = 2.0**-1000  # stands for a partial of 0; see `nonzero`
NEGLIGIBLE = 2.0**-980


def _floats(context, builder, signature, args):
    """Return the arguments of an intrinsic as floats."""
    given = zip(args, signature.args, strict=True)
    return [context.cast(builder, value, kind, types.float64) for value, kind in given]


def _size(builder, value):
    """Return the absolute value of a float."""
    return builder.call(builder.module.declare_intrinsic("llvm.fabs", [value.type]), [value])


@intrinsic
def to_bits(typingctx, value):
    """Return the float64 with the same bits as an integer."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        number = kind.dtype if isinstance(kind, types.EnumMember) else kind
        wide = context.cast(builder, args[0], number, types.int64)
        return builder.bitcast(wide, ir.DoubleType())

    return types.float64(value), codegen


@intrinsic
def from_bits(typingctx, value):
    """Return the integer with the same bits as a float64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def member(typingctx, like, value):
    """Return the member with a value, of the same enumeration as the member `like`."""

    def codegen(context, builder, signature, args):
        return context.cast(builder, args[1], signature.args[1], signature.return_type.dtype)

    return like(like, value), codegen


@intrinsic
def inverse(typingctx, value):
    """Return ``1 / value`` by IEEE 754, without an error for zero."""

    def codegen(context, builder, signature, args):
        (wide,) = _floats(context, builder, signature, args)
        return builder.fdiv(ir.Constant(ir.DoubleType(), 1.0), wide)

    return types.float64(value), codegen


@intrinsic
def product(typingctx, x, y):
    """Return ``x * y``, or 0 if x is 0; x that comes from `nonzero` is 0 here, times y.

    So a cotangent of 0 passes nothing on where a partial is infinite, if nothing uses the value; if
    something does, the product is nan.
    """

    def codegen(context, builder, signature, args):
        one, two = _floats(context, builder, signature, args)
        zero = ir.Constant(ir.DoubleType(), 0.0)
        nothing = builder.fcmp_ordered("==", one, zero)
        size = _size(builder, one)
        tiny = builder.fcmp_ordered("<", size, ir.Constant(ir.DoubleType(), NEGLIGIBLE))
        found = builder.fmul(builder.select(tiny, zero, one), two)
        return builder.select(nothing, zero, found)

    return types.float64(x, y), codegen


@intrinsic
def nonzero(typingctx, partial):
    """Return a partial derivative, or `INFINITESIMAL` if it is 0.

    A cotangent is 0 where nothing uses a value. Where something does, and its partial is 0, this
    makes the difference, which `product` needs: 0 times an infinite derivative is undefined.
    """

    def codegen(context, builder, signature, args):
        zero, mark = (ir.Constant(ir.DoubleType(), value) for value in (0.0, INFINITESIMAL))
        (value,) = _floats(context, builder, signature, args)
        return builder.select(builder.fcmp_ordered("==", value, zero), mark, value)

    return types.float64(partial), codegen


@intrinsic
def settled(typingctx, partial, divisor):
    """Return the partial of a quotient by its divisor, 0 if that does not change the quotient.

    It does not if the numerator is infinite, as the cost of what is impossible, and the divisor is
    not 0.
    """

    def codegen(context, builder, signature, args):
        one, two = _floats(context, builder, signature, args)
        zero, infinity = (ir.Constant(ir.DoubleType(), value) for value in (0.0, math.inf))
        size = _size(builder, one)
        is_infinite = builder.fcmp_ordered("==", size, infinity)
        divides = builder.fcmp_unordered("!=", two, zero)
        return builder.select(builder.and_(is_infinite, divides), zero, one)

    return types.float64(partial, divisor), codegen


@intrinsic
def moved(typingctx, tangent, other):
    """Return a tangent, or `INFINITESIMAL` if it is 0 and `other`, from which it follows, is not.

    A tangent is 0 if a value does not depend on what is moved. Where it does, and changes cancel or
    are multiplied by 0, this makes the difference, which `product` needs.
    """

    def codegen(context, builder, signature, args):
        zero, mark = (ir.Constant(ir.DoubleType(), value) for value in (0.0, INFINITESIMAL))
        one, two = _floats(context, builder, signature, args)
        still = builder.fcmp_ordered("==", one, zero)
        moves = builder.fcmp_unordered("!=", two, zero)
        return builder.select(builder.and_(still, moves), mark, one)

    return types.float64(tangent, other), codegen


@intrinsic
def quotient(typingctx, x, y):
    """Return ``x / y`` by IEEE 754, without an error for zero."""

    def codegen(context, builder, signature, args):
        return builder.fdiv(*_floats(context, builder, signature, args))

    return types.float64(x, y), codegen


@intrinsic
def plus(typingctx, total, term):
    """Return ``total + term``, where the terms of a loop may be added in any order."""

    def codegen(context, builder, signature, args):
        return builder.fadd(*args, flags=("reassoc", "nsz"))

    return types.float64(types.float64, types.float64), codegen


@intrinsic(prefer_literal=True)
def block(typingctx, size):
    """Return an array of a constant size that lives as long as the function; it is not filled."""
    kind = types.Array(types.float64, 1, "C")

    def codegen(context, builder, signature, args):
        count = size.literal_value
        with builder.goto_entry_block():
            place = builder.alloca(ir.ArrayType(ir.DoubleType(), count))
        place.align = 64
        made = context.make_array(kind)(context, builder)
        word = context.get_value_type(types.intp)
        arrayobj.populate_array(
            made,
            data=builder.bitcast(place, ir.DoubleType().as_pointer()),
            shape=cgutils.pack_array(builder, [word(count)]),
            strides=cgutils.pack_array(builder, [word(8)]),
            itemsize=word(8),
            meminfo=None,
        )
        return made._getvalue()

    return (kind(size), codegen) if isinstance(size, types.IntegerLiteral) else None


@jit
def extent(array):
    """Return the address of the first byte of an array and that after the last."""
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
def cleared(array):
    """Set all elements of an array to 0, and return it."""
    array[...] = 0.0
    return array


@jit
def in_c_order(array):
    """Return a copy of an array in Fortran order."""
    return np.ascontiguousarray(array)


@jit
def in_fortran_order(array):
    """Return a copy of an array in C order."""
    return np.asfortranarray(array)


@passive
def broadcast(m, n):
    """Return the broadcast length of two axes."""
    if m != n and m != 1 and n != 1:
        raise ValueError("operands have shapes that do not broadcast")
    return n if m == 1 else m


@passive
def shortened(n, count):
    """Return the length of a slice that leaves out `count` elements at the ends of n."""
    return max(n - count, 0)


@passive
def stride(m, n):
    """Return the step, 0 or 1, of an axis of m elements that is broadcast to n elements."""
    if m != n and m != 1:
        raise ValueError("operands have shapes that do not broadcast")
    return 1 if m == n else 0


@passive
def check_extent(m, n):
    """Refuse arguments of a generalized ufunc whose axes have different lengths."""
    if m != n:
        raise ValueError("arguments of a generalized ufunc have shapes that do not fit together")
    return n


@passive
def check_memory(memory):
    """Refuse a number of states, that a checkpointed loop keeps, that is less than 1."""
    if memory < 1:
        raise ValueError("tapegrad.checkpointed: memory is at least 1")


@passive
def trip_count(low, high, step):
    """Return the number of iterations of a range."""
    return len(range(low, high, step))


@passive
def root(trips):
    """Return the length of segments of which there are about as many as each has iterations."""
    return max(int(np.ceil(math.sqrt(trips))), 1)


@passive
def share(trips, memory):
    """Return the length of segments, if there are `memory` of them."""
    check_memory(memory)
    return max((trips + memory - 1) // memory, 1)


@passive
def iteration_at(low, high, step, number, trips):
    """Return the index of an iteration by its number, or the end of the range if there is none."""
    return low + step * number if number < trips else high


@uncached
def matters(bar):
    """Whether a cotangent is not 0: otherwise the reverse of what it belongs to adds nothing.

    Where generated code is differentiated, it always matters: its tangent need not be 0.
    """
    return bar != 0.0


@intrinsic
def clear(typingctx, array):
    """Set the elements of a contiguous array of floats to 0: quicker to compile than a loop."""

    def codegen(context, builder, signature, args):
        found = context.make_array(array)(context, builder, args[0])
        size = builder.mul(found.nitems, found.itemsize)
        cgutils.memset(builder, found.data, size, 0)
        return context.get_dummy_value()

    return types.none(array), codegen


@intrinsic
def clear_from(typingctx, array, first):
    """Set the elements of a contiguous array of one dimension to 0, from an index on."""

    def codegen(context, builder, signature, args):
        found = context.make_array(array)(context, builder, args[0])
        first = context.cast(builder, args[1], signature.args[1], types.intp)
        none = ir.Constant(first.type, 0)
        first = builder.select(builder.icmp_signed("<", first, none), none, first)
        count = builder.sub(found.nitems, first)
        count = builder.select(builder.icmp_signed("<", count, none), none, count)
        start = builder.gep(found.data, [first])
        cgutils.memset(builder, start, builder.mul(count, found.itemsize), 0)
        return context.get_dummy_value()

    return types.none(array, types.intp), codegen


@intrinsic
def assign(typingctx, target, source):
    """Copy the elements of a contiguous array to another one of the same type and shape."""

    def codegen(context, builder, signature, args):
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, args, strict=True)
        ]
        count, itemsize = arrays[0].nitems, arrays[0].itemsize
        cgutils.raw_memcpy(builder, arrays[0].data, arrays[1].data, count, itemsize)
        return context.get_dummy_value()

    return types.none(target, source), codegen


@uncached
def push_array(tape, top, array, kind):
    """Push a reference to an array, which is later popped as an array of type `kind`."""
    needed = top + size_of(kind)
    if needed > tape.size:
        tape = grown(tape, needed)
    check_limit(tape, needed, hold(tape, top, array, kind))
    return tape, needed


@uncached
def push_elements(tape, top, array, kind):
    """Push the elements of an array, which are later popped as an array of type `kind`."""
    needed = top + array.size + array.ndim
    if needed > tape.size:
        tape = grown(tape, needed)
    put_elements(tape, top, array)
    return tape, needed


@uncached
def push_tangent_elements(tape, top, array, kind):
    """Push the elements of the tangent of an array onto the tape of tangents."""
    needed = top + array.size + array.ndim
    if needed > tape.size:
        tape = grown_tangents(tape, needed)
    put_elements(tape, top, as_kind(array, kind))
    return tape, needed


@uncached
def push_tangent(tape, top, array, kind):
    """Push the tangent of an array onto the tape of tangents, as an array of type `kind`.

    A tangent may have another layout than its array; then a copy is pushed. A copy is sufficient:
    arrays kept for reading are not written in between, and tangents of cotangents, which are
    written, have the layout of the cotangents.
    """
    needed = top + size_of(kind)
    if needed > tape.size:
        tape = grown_tangents(tape, needed)
    hold_tangent(tape, top, as_kind(array, kind), kind)
    return tape, needed


def as_kind(array, kind):
    """Return an array as one of type `kind`, copied if necessary (for compiled code)."""


@overload(as_kind)
def _as_kind(array, kind):
    wanted = kind.instance_type
    if is_taken_as(array, wanted):
        return lambda array, kind: array
    dtype = wanted.dtype
    if wanted.layout == "F":
        return lambda array, kind: np.asfortranarray(array.astype(dtype))
    return lambda array, kind: np.ascontiguousarray(array.astype(dtype))


def kind_name(kind: Any) -> str:
    """Return the name in generated code of a type of arrays on the tape (see `__getattr__`)."""
    return f"array_{kind.dtype}_{kind.ndim}_{kind.layout}"


def __getattr__(name):
    """Return the array type with a name such as ``runtime.array_float64_1_C``."""
    if not name.startswith("array_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _, dtype, ndim, layout = name.split("_")
    kind = types.boolean if dtype == "bool" else getattr(types, dtype)
    return types.Array(kind, int(ndim), layout)
