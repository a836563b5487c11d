"""Memory of large arrays that is used again.

The C library gives the memory of a large array back to the operating system when the array is
deleted, and asks for new pages for the next one: to clear and map them takes longer than many
computations on their elements. Generated code takes large arrays from here instead. When one is
deleted, in any thread, its memory waits in a table for the next array of about this size.

The table is changed by atomic instructions alone. Compiled code finds the addresses of its
functions by a symbol.

numba fills the memory of its own new arrays with a pattern, and once more before it is freed.
Arrays from here are not filled: small ones are allocated by another function of numba's runtime,
and the memory of large ones is not the runtime's, which calls a function of the pool when they are
deleted.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.runtime import nrtdynmod
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels import native
from tapegrad.transform.cache.machine_code import jit

LEAST = 1 << 17  # bytes of a large array: for these, the C library asks for pages
MOST = 1 << 29  # bytes that wait at the same time
PLACES = 64
_PAGE = 4096
_LARGE = 1 << 22  # bytes of an array for which large pages are worth it
_LARGE_PAGES = 14  # MADV_HUGEPAGE
_SYMBOL = "tapegrad_array_pool"
_WORD = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_ALIGNED = 64  # bytes, to a multiple of which addresses of arrays are rounded
_DATA = 3  # the place of the address of the elements in numba's record of an array's memory

# the addresses of memory that waits; the last word is how many bytes that are
table = np.zeros(PLACES + 1, np.int64)


class _Allocator(ctypes.Structure):
    """Functions that take and give memory, the table that they are given last, and a third one.

    That is called with the elements of an array that is deleted; there is none until the pool is
    started.
    """

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("malloc", "free", "table", "give_array"))


def _of_c(name: str) -> int | None:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value


# until the pool is started, they ignore the table
_allocator = _Allocator(_of_c("malloc"), _of_c("free"), table.ctypes.data, 0)
llvm.add_symbol(_SYMBOL, ctypes.addressof(_allocator))


@functools.cache
def start() -> None:
    """Compile or load the functions of the pool."""
    if not hasattr(ctypes.CDLL(None), "malloc_usable_size"):  # a C library of another kind
        return
    source = Path(__file__).read_bytes()
    take = native.load(native.fingerprint(source, b"take"), _take)
    give = native.load(native.fingerprint(source, b"give"), _give)
    give_array = native.load(native.fingerprint(source, b"give_array"), _give_array)
    _allocator.malloc, _allocator.free, _allocator.give_array = take, give, give_array


def release() -> None:
    """Give the memory that waits back to the operating system."""
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    size_of = ctypes.CDLL(None).malloc_usable_size
    size_of.argtypes, size_of.restype = [ctypes.c_void_p], ctypes.c_size_t
    for place in range(PLACES):
        address, table[place] = int(table[place]), 0
        if address:
            table[PLACES] -= size_of(address)
            free(address)


# -- the table -------------------------------------------------------------------------------------


def _atomic(name: str) -> Any:
    """Return an intrinsic that changes the word at an address, and returns what was there."""

    @intrinsic
    def change(typingctx, address, value):
        def codegen(context, builder, signature, args):
            place = builder.inttoptr(args[0], _WORD.as_pointer())
            return builder.atomic_rmw(name, place, args[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    return change


_exchange, _add = _atomic("xchg"), _atomic("add")


@intrinsic
def _put_if_empty(typingctx, address, value):
    """Write a word that is 0; return whether it was."""

    def codegen(context, builder, signature, args):
        place = builder.inttoptr(args[0], _WORD.as_pointer())
        found = builder.cmpxchg(place, ir.Constant(_WORD, 0), args[1], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64), codegen


@intrinsic
def _word_at(typingctx, address):
    """Return the word at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _WORD.as_pointer()))

    return types.int64(types.int64), codegen


def _function_of_c(name: str, gives: ir.Type, takes: ir.Type) -> Any:
    """Return an intrinsic that calls a function of the C library, with an integer or address."""

    @intrinsic
    def call(typingctx, value):
        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(gives, [takes])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            is_address = takes == _POINTER
            given = builder.inttoptr(args[0], takes) if is_address else args[0]
            found = builder.call(function, [given])
            if gives == _POINTER:
                return builder.ptrtoint(found, _WORD)
            return ir.Constant(_WORD, 0) if gives == ir.VoidType() else found

        return types.int64(types.int64), codegen

    return call


@intrinsic
def _ask_for_large_pages(typingctx, address, size):
    """Let Linux use pages of 2 MB for memory, as NumPy does for its large arrays."""

    def codegen(context, builder, signature, args):
        own = ir.Constant(_WORD, _PAGE - 1)
        first = builder.and_(builder.add(args[0], own), builder.not_(own))
        length = builder.sub(builder.add(*args), first)
        kind = ir.FunctionType(ir.IntType(32), [_POINTER, _WORD, ir.IntType(32)])
        function = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        advice = ir.Constant(ir.IntType(32), _LARGE_PAGES)
        builder.call(function, [builder.inttoptr(first, _POINTER), length, advice])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


_malloc = _function_of_c("malloc", _POINTER, _WORD)
_free = _function_of_c("free", ir.VoidType(), _POINTER)
_size_of = _function_of_c("malloc_usable_size", _WORD, _POINTER)


def _take():
    """Return the function that returns memory of at least so many bytes."""
    large_pages = sys.platform == "linux"

    @numba.cfunc("int64(int64, int64)")
    def take(size, table):
        for place in range(PLACES if size >= LEAST else 0):
            at = table + 8 * place
            address = _exchange(at, 0)
            if address != 0:
                found = _size_of(address)
                if size <= found <= size + (size >> 2):
                    _add(table + 8 * PLACES, -found)
                    return address
                if not _put_if_empty(at, address):  # another one waits there now
                    _add(table + 8 * PLACES, -found)
                    _free(address)
        address = _malloc(size)
        if large_pages and size >= _LARGE:
            _ask_for_large_pages(address, size)
        return address

    return take


@numba.njit
def _keep_or_free(address, table):
    """Let memory wait in the table, or free it."""
    if address == 0:
        return
    size = _size_of(address)
    if size >= LEAST:
        if _add(table + 8 * PLACES, size) + size <= MOST:
            for place in range(PLACES):
                if _put_if_empty(table + 8 * place, address):
                    return
        _add(table + 8 * PLACES, -size)
    _free(address)


def _give():
    """Return the function that is given memory that is no longer used."""

    @numba.cfunc("void(int64, int64)")
    def give(address, table):
        _keep_or_free(address, table)

    return give


def _give_array():
    """Return the function that is given the elements of a deleted array (see `_write_taking`)."""

    @numba.cfunc("void(int64, int64, int64)")
    def give_array(elements, size, info):
        _keep_or_free(_word_at(elements - 16), _word_at(elements - 8))

    return give_array


# -- arrays ----------------------------------------------------------------------------------------


def _maker(is_cleared: bool):
    """Return an intrinsic that makes an array of floats: it needs no function of its own."""

    @intrinsic
    def make(typingctx, shape):
        kind = types.Array(types.float64, len(shape), "C")

        def codegen(context, builder, signature, args):
            given = zip(cgutils.unpack_tuple(builder, args[0]), signature.args[0], strict=True)
            shape = [context.cast(builder, extent, of, types.int64) for extent, of in given]
            size, strides = _size_and_strides(context, builder, shape)
            info = _memory(context, builder, size)
            data = context.nrt.meminfo_data(builder, info)
            if is_cleared:
                cgutils.memset(builder, data, size, 0)
            array = arrayobj.make_array(kind)(context, builder)
            arrayobj.populate_array(
                array,
                data=builder.bitcast(data, ir.DoubleType().as_pointer()),
                shape=cgutils.pack_array(builder, shape, ty=_WORD),
                strides=cgutils.pack_array(builder, strides, ty=_WORD),
                itemsize=ir.Constant(_WORD, 8),
                meminfo=info,
            )
            return array._getvalue()

        return kind(shape), codegen

    return make


# arrays of a shape: with undefined elements, and of zeros
empty, zeros = _maker(False), _maker(True)


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
    give_array = _field(builder, _Allocator.give_array)
    is_small = builder.icmp_unsigned("<", size, ir.Constant(_WORD, LEAST))
    is_not_started = builder.icmp_unsigned("==", give_array, ir.Constant(_WORD, 0))
    with builder.if_then(builder.or_(is_small, is_not_started)):
        align = ir.Constant(ir.IntType(32), _ALIGNED)
        info = _call_of_numba(builder, "NRT_MemInfo_alloc_aligned", size, align)
        builder.ret(info)
    room = ir.Constant(_WORD, 2 * _ALIGNED)
    base = take_memory(builder, builder.add(size, room))
    with builder.if_then(builder.icmp_unsigned("==", base, ir.Constant(_WORD, 0)), likely=False):
        builder.ret(null)
    info = _call_of_numba(
        builder,
        "NRT_MemInfo_alloc_dtor",
        ir.Constant(_WORD, 0),
        builder.inttoptr(give_array, _POINTER),
    )
    with builder.if_then(builder.icmp_unsigned("==", info, null), likely=False):
        give_memory(builder, base)
        builder.ret(null)
    above = builder.add(base, ir.Constant(_WORD, 2 * _ALIGNED - 1))
    elements = builder.and_(above, ir.Constant(_WORD, -_ALIGNED))
    for distance, word in ((16, base), (8, _field(builder, _Allocator.table))):
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
    return _call(builder, _Allocator.malloc, _WORD, size)


def give_memory(builder: Any, address: Any) -> None:
    """Write a call that gives memory back to the pool."""
    _call(builder, _Allocator.free, ir.VoidType(), address)


def _call(builder: Any, field: Any, gives: Any, value: Any) -> Any:
    """Write a call of a function of the allocator."""
    kind = ir.FunctionType(gives, [_WORD, _WORD])
    function = builder.inttoptr(_field(builder, field), kind.as_pointer())
    return builder.call(function, [value, _field(builder, _Allocator.table)])


def _field(builder: Any, field: Any) -> Any:
    """Return an address that the allocator holds."""
    fields = builder.bitcast(_pool_of(builder.module), _WORD.as_pointer())
    return builder.load(builder.gep(fields, [ir.Constant(_WORD, field.offset // 8)]))


def _pool_of(module: Any) -> Any:
    """Return the allocator in a module: a symbol of this process."""
    found = module.globals.get(_SYMBOL)
    if found is None:
        found = cgutils.add_global_variable(module, ir.IntType(8), _SYMBOL)
        found.linkage = "external"
    return found


@jit
def duplicate(x):
    """Return a copy of a contiguous array of floats."""
    found = empty(x.shape)
    one, other = found.reshape(-1), x.reshape(-1)
    for k in range(one.size):  # numba takes seconds to compile what `one[:] = other` may raise
        one[k] = other[k]
    return found


@jit
def dot(x, y):
    """Return the product of two matrices of floats."""
    return np.dot(x, y, empty((x.shape[0], y.shape[1])))
