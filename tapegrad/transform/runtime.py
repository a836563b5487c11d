"""What generated code calls: the tape of kept values.

The tape is one growing array of float64. Integers and truth values go onto it by their bits,
arrays by reference: what is taken from the tape is the very array that was put onto it.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic, overload
from numba.np import arrayobj

from tapegrad.transform.cache.machine_code import jit

inlined = numba.njit(error_model="numpy")  # what is kept on disk as a part of its callers only

_PAGES, _PAGE_SIZE = 85, 30  # names of sysconf's answers on Linux
LARGE = 1 << 26  # bytes from which on memory is asked for with care
FIRST = 64  # numbers
_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)


@intrinsic
def to_bits(typingctx, value):
    """Return an integer as the float64 of the same bits."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        number = kind.dtype if isinstance(kind, types.EnumMember) else kind
        wide = context.cast(builder, args[0], number, types.int64)
        return builder.bitcast(wide, ir.DoubleType())

    return types.float64(value), codegen


@intrinsic
def from_bits(typingctx, value):
    """Return a float64 as the integer of the same bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def member(typingctx, like, value):
    """Return the member with a value, of the enumeration that has another member."""

    def codegen(context, builder, signature, args):
        return context.cast(builder, args[1], signature.args[1], signature.return_type.dtype)

    return like(like, value), codegen


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
            _decref(builder, left)
        return context.get_dummy_value()

    return types.none(tape), codegen


def _decref(builder, meminfo):
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


def passive(function):
    """Compile a function of which nothing is differentiated."""
    made = jit(function)
    made.tapegrad_passive = True
    return made


@passive
def broadcast(m, n):
    """Return the number of elements that axes of two arrays have together."""
    if m != n and m != 1 and n != 1:
        raise ValueError("operands of a vectorized function have shapes that do not broadcast")
    return n if m == 1 else m


@passive
def stride(m, n):
    """Return by how many elements an axis of m elements goes on along n of them, 0 or 1."""
    if m != n and m != 1:
        raise ValueError("operands of a vectorized function have shapes that do not broadcast")
    return 1 if m == n else 0


@passive
def check_extent(m, n):
    """Refuse arguments of a generalized ufunc whose axes differ."""
    if m != n:
        raise ValueError("arguments of a generalized ufunc have shapes that do not fit together")
    return n


@intrinsic
def hold(typingctx, tape, place, array, kind):
    """Write a reference to an array onto the tape, which owns it from now on."""
    if not _is_taken_as(array, kind.instance_type):
        raise TypingError(f"{array} on the tape, {kind.instance_type} taken from it")

    def codegen(context, builder, signature, args):
        kind = signature.args[2]
        context.nrt.incref(builder, kind, args[2])
        held = context.make_array(kind)(context, builder, args[2])
        words = [builder.ptrtoint(held.meminfo, _WORD), builder.ptrtoint(held.data, _WORD)]
        words += cgutils.unpack_tuple(builder, held.shape, kind.ndim)
        words += cgutils.unpack_tuple(builder, held.strides, kind.ndim)
        first = _words(context, builder, signature.args[0], args[0], args[1])
        for number, word in enumerate(words):
            builder.store(word, cgutils.gep_inbounds(builder, first, number))
        return context.get_dummy_value()

    return types.none(tape, types.int64, array, kind), codegen


@intrinsic
def pop_array(typingctx, tape, top, kind):
    """Take a reference to an array of a type from the tape; return it with the new top."""
    array_type = kind.instance_type
    count = words_of(array_type)

    def codegen(context, builder, signature, args):
        top = builder.sub(args[1], ir.Constant(_WORD, count))
        first = _words(context, builder, signature.args[0], args[0], top)
        words = [
            builder.load(cgutils.gep_inbounds(builder, first, number)) for number in range(count)
        ]
        array = context.make_array(array_type)(context, builder)
        ndim = array_type.ndim
        arrayobj.populate_array(
            array,
            data=builder.inttoptr(words[1], array.data.type),
            shape=cgutils.pack_array(builder, words[2 : 2 + ndim]),
            strides=cgutils.pack_array(builder, words[2 + ndim :]),
            itemsize=context.get_constant(
                types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype))
            ),
            meminfo=builder.inttoptr(words[0], array.meminfo.type),
        )
        result = context.make_tuple(builder, signature.return_type, (array._getvalue(), top))
        return impl_ret_new_ref(context, builder, signature.return_type, result)

    return types.Tuple((array_type, types.int64))(tape, types.int64, kind), codegen


def words_of(kind):
    """Return how many numbers of the tape a reference to an array takes."""
    return 2 + 2 * kind.ndim


def _words(context, builder, kind, tape, place):
    """Return the address of a place on the tape, as one of integers."""
    array = context.make_array(kind)(context, builder, tape)
    data = builder.bitcast(array.data, _WORD.as_pointer())
    return builder.gep(data, [place], inbounds=True)


def _is_taken_as(array, kind):
    """Whether an array's memory is read rightly as an array of another type."""
    layouts = (array.layout, "A")
    return array.dtype == kind.dtype and array.ndim == kind.ndim and kind.layout in layouts


@inlined
def push_array(tape, top, array, kind):
    """Put a reference to an array onto the tape, from which it is taken as one of a type."""
    needed = top + 2 + 2 * array.ndim
    if needed > tape.size:
        tape = grown(tape, needed)
    hold(tape, top, array, kind)
    return tape, needed


@inlined
def push_tangent(tape, top, array, kind):
    """Put the tangent of an array onto the tape of tangents, to be taken as one of a type.

    What is computed may have another layout than the array it is the tangent of; then it is a copy
    that is put there. That is as good: what is kept to be read is not written to in between, and
    tangents of cotangents, which are, are made like these.
    """
    return push_array(tape, top, as_kind(array, kind), kind)


def as_kind(array, kind):
    """Return an array, or a copy of it, that has a type (for compiled code)."""


@overload(as_kind)
def _as_kind(array, kind):
    wanted = kind.instance_type
    if _is_taken_as(array, wanted):
        return lambda array, kind: array
    dtype = wanted.dtype
    if wanted.layout == "F":
        return lambda array, kind: np.asfortranarray(array.astype(dtype))
    return lambda array, kind: np.ascontiguousarray(array.astype(dtype))


def kind_name(kind):
    """Return how generated code names the type of arrays on the tape (see `__getattr__`)."""
    return f"array_{kind.dtype}_{kind.ndim}_{kind.layout}"


def __getattr__(name):
    """Return the type of arrays that generated code names: ``runtime.array_float64_1_C``."""
    if not name.startswith("array_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _, dtype, ndim, layout = name.split("_")
    kind = types.boolean if dtype == "bool" else getattr(types, dtype)
    return types.Array(kind, int(ndim), layout)
