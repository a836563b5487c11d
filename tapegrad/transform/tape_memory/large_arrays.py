"""New arrays of generated code, whose memory comes from the pool if they are large.

Compiled code, also that on disk, finds the functions of the pool (`tapegrad.kernels.pool`) by a
symbol.

numba fills the memory of its own new arrays with a pattern, and once more before it is freed.
Arrays from here are not filled: small ones are allocated by another function of numba's runtime,
and the memory of large ones is not the runtime's, which calls a function of the pool when they are
deleted.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import functools
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.runtime import nrtdynmod
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels import native, pool
from tapegrad.kernels.structs import address_of

_SYMBOL = "tapegrad_pool"
_WORD = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_ALIGNED = 64  # bytes, to a multiple of which addresses of arrays are rounded
_DATA = 3  # the place of the address of the elements in numba's record of an array's memory


# the functions of the pool that compiled code calls, with the numbers of their arguments
_FUNCTIONS = {"allocate": 2, "release": 3, "release_of_array": 3}


class _Pool(ctypes.Structure):
    """The table of the pool and the functions that take it."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("table", *_FUNCTIONS))


def _starting(name: str) -> int:
    """Return the address of what a function of the pool is until it is called."""

    def start() -> int:
        return start_pool(name)

    return native.on_first_call(start, _FUNCTIONS[name])


_pool = _Pool(address_of(pool.table), *map(_starting, _FUNCTIONS))
llvm.add_symbol(_SYMBOL, ctypes.addressof(_pool))


@functools.cache
def start_pool(name: str) -> int:
    """Compile or load a function of the pool; return its address."""
    if name == "allocate":  # other threads may run: what is taken can be released
        start_pool("release_of_array")
    address = pool.address_of_function(name)
    setattr(_pool, name, address)
    return address


def _maker(is_cleared: bool):
    """Return an intrinsic that makes an array of floats: it needs no function of its own."""

    @intrinsic
    def make(typingctx, shape):
        kind = types.Array(types.float64, len(shape), "C")

        def codegen(context, builder, signature, args):
            shape = _extents(context, builder, signature, args)
            array, size = _new_array(context, builder, kind, shape)
            if is_cleared:
                cgutils.memset(builder, array.data, size, 0)
            return array._getvalue()

        return kind(shape), codegen

    return make


# arrays of a shape: with undefined elements, and of zeros
empty, zeros = _maker(False), _maker(True)


@intrinsic
def full(typingctx, shape, value):
    """Return an array of a shape whose elements are one float."""
    kind = types.Array(types.float64, len(shape), "C")

    def codegen(context, builder, signature, args):
        shape = _extents(context, builder, signature, args)
        array, _ = _new_array(context, builder, kind, shape)
        with cgutils.for_range(builder, array.nitems) as loop:
            builder.store(args[1], builder.gep(array.data, [loop.index]))
        return array._getvalue()

    return kind(shape, types.float64), codegen


def _extents(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Return the extents that are the first argument."""
    given = zip(cgutils.unpack_tuple(builder, args[0]), signature.args[0], strict=True)
    return [context.cast(builder, extent, of, types.int64) for extent, of in given]


@intrinsic
def duplicate(typingctx, x):
    """Return a copy of a contiguous array of floats."""
    kind = types.Array(types.float64, x.ndim, "C")

    def codegen(context, builder, signature, args):
        given = arrayobj.make_array(signature.args[0])(context, builder, args[0])
        shape = cgutils.unpack_tuple(builder, given.shape)
        array, size = _new_array(context, builder, kind, shape)
        cgutils.raw_memcpy(builder, array.data, given.data, size, 1)
        return array._getvalue()

    return kind(x), codegen


def _new_array(context: Any, builder: Any, kind: Any, shape: list[Any]) -> tuple[Any, Any]:
    """Write a new array of floats; return it and its size in bytes."""
    size, strides = _size_and_strides(context, builder, shape)
    info = _memory(context, builder, size)
    array = arrayobj.make_array(kind)(context, builder)
    data = context.nrt.meminfo_data(builder, info)
    arrayobj.populate_array(
        array,
        data=builder.bitcast(data, ir.DoubleType().as_pointer()),
        shape=cgutils.pack_array(builder, shape, ty=_WORD),
        strides=cgutils.pack_array(builder, strides, ty=_WORD),
        itemsize=ir.Constant(_WORD, 8),
        meminfo=info,
    )
    return array, size


def _size_and_strides(context: Any, builder: Any, shape: list[Any]) -> tuple[Any, list[Any]]:
    """Return how many bytes an array needs, and the distances in memory along its axes."""
    size: Any = ir.Constant(_WORD, 8)
    strides: list[Any] = []
    is_too_large = ir.Constant(ir.IntType(1), 0)
    for extent in reversed(shape):
        is_negative = builder.icmp_signed("<", extent, ir.Constant(_WORD, 0))
        with builder.if_then(is_negative, likely=False):
            error = "negative dimensions not allowed"
            context.call_conv.return_user_exc(builder, ValueError, (error,))
        strides.insert(0, size)
        found = builder.smul_with_overflow(size, extent)
        size = builder.extract_value(found, 0)
        is_too_large = builder.or_(is_too_large, builder.extract_value(found, 1))
    with builder.if_then(is_too_large, likely=False):
        error = "array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum"
        context.call_conv.return_user_exc(builder, ValueError, (error,))
    return size, strides


def _memory(context: Any, builder: Any, size: Any) -> Any:
    """Return numba's record of memory for an array, which counts the references to it."""
    name = "tapegrad_take_array"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(_POINTER, [_WORD]), name)
        function.linkage = "linkonce_odr"
        _write_taking(function)
    info = builder.call(function, [size])
    is_null = builder.icmp_unsigned("==", info, ir.Constant(_POINTER, None))
    with builder.if_then(is_null, likely=False):
        error = "Allocation failed (probably too large)."
        context.call_conv.return_user_exc(builder, MemoryError, (error,))
    return info


def _write_taking(function: Any) -> None:
    """Write the function that takes memory for an array, null if there is none.

    The address of memory from the pool, and that of the table, stand before the elements.
    """
    builder = ir.IRBuilder(function.append_basic_block())
    (size,) = function.args
    record = nrtdynmod._meminfo_struct_type.as_pointer()
    null = ir.Constant(_POINTER, None)
    is_small = builder.icmp_unsigned("<", size, ir.Constant(_WORD, pool.LEAST))
    with builder.if_then(is_small):
        align = ir.Constant(ir.IntType(32), _ALIGNED)
        info = _call_of_numba(builder, "NRT_MemInfo_alloc_aligned", size, align)
        builder.ret(info)
    room = ir.Constant(_WORD, 2 * _ALIGNED)
    base = take_memory(builder, builder.add(size, room))
    with builder.if_then(builder.icmp_unsigned("==", base, ir.Constant(_WORD, 0)), likely=False):
        builder.ret(null)
    release = _field(builder, _Pool.release_of_array)
    info = _call_of_numba(
        builder,
        "NRT_MemInfo_alloc_dtor",
        ir.Constant(_WORD, 0),
        builder.inttoptr(release, _POINTER),
    )
    with builder.if_then(builder.icmp_unsigned("==", info, null), likely=False):
        give_memory(builder, base)
        builder.ret(null)
    above = builder.add(base, ir.Constant(_WORD, 2 * _ALIGNED - 1))
    elements = builder.and_(above, ir.Constant(_WORD, -_ALIGNED))
    for distance, word in ((16, base), (8, _field(builder, _Pool.table))):
        place = builder.sub(elements, ir.Constant(_WORD, distance))
        builder.store(word, builder.inttoptr(place, _WORD.as_pointer()))
    place = cgutils.gep_inbounds(builder, builder.bitcast(info, record), 0, _DATA)
    builder.store(builder.inttoptr(elements, _POINTER), place)
    builder.ret(info)


def _call_of_numba(builder: Any, name: str, *args: Any) -> Any:
    """Write a call of a function of numba's runtime that makes a record of memory."""
    kind = ir.FunctionType(_POINTER, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def take_memory(builder: Any, size: Any) -> Any:
    """Write a call that takes memory from the pool; return its address, 0 if there is none."""
    return _call(builder, _Pool.allocate, size)


def give_memory(builder: Any, address: Any) -> None:
    """Write a call that gives memory back to the pool."""
    _call(builder, _Pool.release, address, ir.Constant(_WORD, 0))


def _call(builder: Any, field: Any, *args: Any) -> Any:
    """Write a call of a function of the pool."""
    given = [_field(builder, _Pool.table), *args]
    kind = ir.FunctionType(_WORD, [_WORD] * len(given))
    return builder.call(builder.inttoptr(_field(builder, field), kind.as_pointer()), given)


def _field(builder: Any, field: Any) -> Any:
    """Return an address that the pool holds."""
    found = builder.module.globals.get(_SYMBOL)
    if found is None:
        found = cgutils.add_global_variable(builder.module, ir.IntType(8), _SYMBOL)
        found.linkage = "external"
    fields = builder.bitcast(found, _WORD.as_pointer())
    return builder.load(builder.gep(fields, [ir.Constant(_WORD, field.offset // 8)]))
