"""Raw memory and indirect calls for compiled code.

The sweep handles memory as int64 addresses. These intrinsics convert an address to a typed pointer,
read and write through it, and call a compiled kernel by its address. This module imports numba, so
it is imported only when something is to be compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def as_float(typingctx, x):
    """Return an integer or a bool as a float64, and any other number unchanged."""
    result = types.float64 if isinstance(x, (types.Integer, types.Boolean)) else x

    def codegen(context, builder, signature, args):
        return context.cast(builder, args[0], signature.args[0], signature.return_type)

    return result(x), codegen


def _chosen(comparison: str):
    """Return an intrinsic that gives the first of two numbers if a comparison is true.

    numba would compile a function for ``max`` or ``min`` of them.
    """

    @intrinsic
    def choose(typingctx, x, y):
        are_integers = isinstance(x, types.Integer) and isinstance(y, types.Integer)
        kind = types.intp if are_integers else types.float64

        def codegen(context, builder, signature, args):
            compare = builder.icmp_signed if are_integers else builder.fcmp_ordered
            return builder.select(compare(comparison, *args), *args)

        return kind(kind, kind), codegen

    return choose


@intrinsic
def index(typingctx, number):
    """Return an index that is not negative; compilers need not look whether it is."""

    def codegen(context, builder, signature, args):
        return args[0]

    return types.uintp(types.intp), codegen


larger = _chosen(">")  # the second number if one of them is nan
smaller = _chosen("<")

_POINTEES = {
    "u1": types.uint8,
    "i4": types.int32,
    "i8": types.int64,
    "f4": types.float32,
    "f8": types.float64,
}


def _pointer_maker(element):
    @intrinsic
    def pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), codegen

    return pointer


u1_pointer = _pointer_maker(_POINTEES["u1"])
i4_pointer = _pointer_maker(_POINTEES["i4"])
i8_pointer = _pointer_maker(_POINTEES["i8"])
f4_pointer = _pointer_maker(_POINTEES["f4"])
f8_pointer = _pointer_maker(_POINTEES["f8"])


@intrinsic
def load(typingctx, pointer, index):
    """Return ``pointer[index]``."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.gep(args[0], [args[1]]))

    return pointer.dtype(pointer, types.int64), codegen


@intrinsic
def store(typingctx, pointer, index, value):
    """Perform ``pointer[index] = value``, converting the value to the pointer's type."""

    def codegen(context, builder, signature, args):
        value = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        builder.store(value, builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.none(pointer, types.int64, value), codegen


@intrinsic
def store_words(typingctx, pointer, index, a, b, c, d):
    """Perform ``pointer[index:index+4] = a, b, c, d`` for int64."""

    def codegen(context, builder, signature, args):
        base = builder.gep(args[0], [args[1]])
        for k, value in enumerate(args[2:]):
            builder.store(value, builder.gep(base, [ir.Constant(ir.IntType(64), k)]))
        return context.get_dummy_value()

    return types.none(pointer, *([types.int64] * 5)), codegen


@intrinsic
def cycle_counter(typingctx):
    """Return the counter of the processor that advances at a constant rate (on x86)."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(64), [])
        name = "llvm.readcyclecounter"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])

    return types.int64(), codegen


@intrinsic
def call_kernel(typingctx, address, n, g, z, a0, a1, a2, out):
    """Call the kernel at `address`, with seven int64 arguments and no result."""

    def codegen(context, builder, signature, args):
        i64 = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [i64] * 7)
        builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.none(*([types.int64] * 8)), codegen


# -- vectors --------------------------------------------------------------------------------------


def scaled_copy(width: int):
    """Return an intrinsic that writes a multiple of some elements of an array to another one.

    A loop does the same, but LLVM has it check each time whether the arrays share memory.

    Parameters
    ----------
    width
        The number of elements; all of them are read before one is written.
    """

    @intrinsic
    def copy(typingctx, x, scale, y, begin):
        def codegen(context, builder, signature, args):
            vector = ir.VectorType(ir.DoubleType(), width)
            source, target = (
                context.make_array(signature.args[k])(context, builder, args[k]).data
                for k in (0, 2)
            )
            place = builder.gep(target, [args[3]])
            value = builder.load(builder.bitcast(source, vector.as_pointer()), align=8)
            scales = _splat(builder, args[1], width)
            place = builder.bitcast(place, vector.as_pointer())
            builder.store(builder.fmul(value, scales), place, align=8)
            return context.get_dummy_value()

        return types.none(x, types.float64, y, types.int64), codegen

    return copy


def _splat(builder, value, width: int):
    """Return a vector all of whose elements are one number."""
    empty = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(first, empty, order)


# -- memory that threads share ---------------------------------------------------------------------


def _atomic(operation):
    @intrinsic
    def change(typingctx, pointer, index, value):
        def codegen(context, builder, signature, args):
            place = builder.gep(args[0], [args[1]])
            return builder.atomic_rmw(operation, place, args[2], "seq_cst")

        return types.int64(_WORDS, types.int64, types.int64), codegen

    return change


_WORDS = types.CPointer(types.int64)

exchange = _atomic("xchg")  # writes a word, and returns what was there
add_to = _atomic("add")  # adds to a word, and returns what was there


@intrinsic
def put_if_zero(typingctx, pointer, index, value):
    """Write a word that is 0; return whether it was."""

    def codegen(context, builder, signature, args):
        place = builder.gep(args[0], [args[1]])
        zero = ir.Constant(ir.IntType(64), 0)
        found = builder.cmpxchg(place, zero, args[2], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(_WORDS, types.int64, types.int64), codegen


# -- the C library ---------------------------------------------------------------------------------

_C_TYPES = {"int": ir.IntType(32), "size": ir.IntType(64), "address": ir.IntType(8).as_pointer()}


def c_function(name: str, result: str, *arguments: str):
    """Return an intrinsic that calls a function of the C library.

    Parameters
    ----------
    name
        Its name.
    result
        ``"int"``, ``"size"`` or ``"address"``, which is an int64 for the caller, or ``"nothing"``,
        which is 0.
    arguments
        The same for its arguments, given as a tuple of int64.
    """

    @intrinsic
    def call(typingctx, given):
        def codegen(context, builder, signature, values):
            args = []
            for kind, value in zip(
                arguments, cgutils.unpack_tuple(builder, values[0]), strict=True
            ):
                if kind == "address":
                    value = builder.inttoptr(value, _C_TYPES[kind])
                args.append(builder.trunc(value, _C_TYPES[kind]) if kind == "int" else value)
            gives = _C_TYPES.get(result, ir.VoidType())
            function = ir.FunctionType(gives, [arg.type for arg in args])
            found = builder.call(
                cgutils.get_or_insert_function(builder.module, function, name), args
            )
            if result == "address":
                return builder.ptrtoint(found, ir.IntType(64))
            if result == "int":
                return builder.sext(found, ir.IntType(64))
            return found if result == "size" else ir.Constant(ir.IntType(64), 0)

        return types.int64(types.UniTuple(types.int64, len(arguments))), codegen

    return call
