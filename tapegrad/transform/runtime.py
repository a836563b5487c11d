"""Functions that generated code calls, above all for the tape of kept values.

The tape is one growing array of float64. Integers and booleans are pushed as raw bits, arrays by
reference: a pop returns the same array that was pushed.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref
from numba.extending import intrinsic, overload
from numba.np import arrayobj

from tapegrad.transform.cache.machine_code import jit

inlined = numba.njit(error_model="numpy")  # on disk only as part of the callers

_PAGES, _PAGE_SIZE = 85, 30  # names of sysconf variables on Linux
LARGE = 1 << 26  # bytes above which the available memory is checked
FIRST = 64  # initial size of the tape, in numbers
_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)


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
        wide = context.cast(builder, args[0], signature.args[0], types.float64)
        return builder.fdiv(ir.Constant(ir.DoubleType(), 1.0), wide)

    return types.float64(value), codegen


@intrinsic
def product(typingctx, x, y):
    """Return ``x * y``, or 0 if x is 0."""

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
    """Return a system configuration value (``sysconf``)."""

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

    Its address is in a variable of the compiled module, which is cleared while the tape is in use:
    threads and nested calls each have a separate tape.
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
        # the first word of an idle tape is its size
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
    """Return a copy of a tape with at least the needed size."""
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
    for k in range(tape.size):  # a slice would take seconds to compile
        larger[k] = tape[k]
    return larger


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


def passive(function):
    """Compile a function that is not differentiated."""
    made = jit(function)
    made.tapegrad_passive = True
    return made


@passive
def broadcast(m, n):
    """Return the broadcast length of two axes."""
    if m != n and m != 1 and n != 1:
        raise ValueError("operands have shapes that do not broadcast")
    return n if m == 1 else m


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


@intrinsic
def hold(typingctx, tape, place, array, kind):
    """Write an owned reference to an array onto the tape."""
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
    first = cgutils.gep_inbounds(builder, whole.data, args[1])
    # LLVM must not see that rows are parts of one array: it would give up to prove that they are
    # apart, instead of checking it before the loop, and would not vectorize
    unknown = ir.FunctionType(first.type, [first.type])
    apart = builder.asm(unknown, "", "=r,0", [first], side_effect=False)
    arrayobj.populate_array(
        part,
        data=apart,
        shape=cgutils.pack_array(builder, [args[2]]),
        strides=cgutils.pack_array(builder, [ir.Constant(_WORD, 8)]),
        itemsize=ir.Constant(_WORD, 8),
        meminfo=whole.meminfo if owns else None,
    )
    return part


@intrinsic
def pop_array(typingctx, tape, top, kind):
    """Pop a reference to an array of a type from the tape; return it with the new top."""
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
    """Return the size of a reference to an array on the tape, in numbers."""
    return 2 + 2 * kind.ndim


def _words(context, builder, kind, tape, place):
    """Return the address of a position on the tape, as a pointer to integers."""
    array = context.make_array(kind)(context, builder, tape)
    data = builder.bitcast(array.data, _WORD.as_pointer())
    return builder.gep(data, [place], inbounds=True)


def _is_taken_as(array, kind):
    """Whether an array can be read back as an array of another type."""
    layouts = (array.layout, "A")
    return array.dtype == kind.dtype and array.ndim == kind.ndim and kind.layout in layouts


@inlined
def matters(bar):
    """Whether a cotangent is not 0: otherwise the reverse of what it belongs to adds nothing.

    Where generated code is differentiated, it always matters: its tangent need not be 0.
    """
    return bar != 0.0


@inlined
def push_array(tape, top, array, kind):
    """Push a reference to an array, which is later popped as an array of type `kind`."""
    needed = top + 2 + 2 * array.ndim
    if needed > tape.size:
        tape = grown(tape, needed)
    hold(tape, top, array, kind)
    return tape, needed


@inlined
def push_tangent(tape, top, array, kind):
    """Push the tangent of an array onto the tape of tangents, as an array of type `kind`.

    A tangent may have another layout than its array; then a copy is pushed. A copy is sufficient:
    arrays kept for reading are not written in between, and tangents of cotangents, which are
    written, have the layout of the cotangents.
    """
    return push_array(tape, top, as_kind(array, kind), kind)


def as_kind(array, kind):
    """Return an array as one of type `kind`, copied if necessary (for compiled code)."""


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
    """Return the name in generated code of a type of arrays on the tape (see `__getattr__`)."""
    return f"array_{kind.dtype}_{kind.ndim}_{kind.layout}"


def __getattr__(name):
    """Return the array type with a name such as ``runtime.array_float64_1_C``."""
    if not name.startswith("array_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _, dtype, ndim, layout = name.split("_")
    kind = types.boolean if dtype == "bool" else getattr(types, dtype)
    return types.Array(kind, int(ndim), layout)
