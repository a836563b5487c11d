"""The functions that transform lines of arrays (`tapegrad.transform.fourier`), as compiled code.

Lines that are not beside each other in memory are copied in blocks, so that what is next to an item
is read with it; the transforms of NumPy would read one item of each row of a large array.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels.intrinsics import f8_pointer, i8_pointer, load, smaller, store
from tapegrad.transform.fourier import (
    BACK,
    EVEN,
    FORWARD,
    INNER,
    ITEMS,
    KIND,
    LOOPS,
    MANY,
    ODD,
    OUT,
    OUTER,
    RESULTS,
    SYMBOL,
    SYMBOL_OF_DUCC,
    X,
)
from tapegrad.transform.request_code import SIZE, free, inlined, jit, malloc
from tapegrad.transform.requests import WORD, external

_BLOCK = 16  # lines that are copied together


@intrinsic
def _run(typingctx, kind, given):
    """Transform rows: of the results and items the address, the number in a row, the floats."""

    def codegen(context, builder, signature, args):
        kind, numbers = args[0], cgutils.unpack_tuple(builder, args[1], 7)
        to, of, rows, items, results, *floats = numbers
        item, result = (builder.mul(size, WORD(SIZE)) for size in floats)
        factor = cgutils.alloca_once_value(builder, ir.DoubleType()(1.0))
        words = [
            [of, builder.ptrtoint(factor, WORD), to],
            [rows, items, results],
            [builder.mul(items, item), WORD(0), builder.mul(results, result), item, result],
        ]
        arrays = []
        for values in words:
            array = cgutils.alloca_once(builder, ir.ArrayType(WORD, len(values)))
            for place, value in enumerate(values):
                builder.store(value, cgutils.gep_inbounds(builder, array, 0, place))
            arrays.append(builder.ptrtoint(array, WORD))
        table = external(builder, SYMBOL, ir.ArrayType(WORD, 2 * len(LOOPS)))
        place = builder.mul(kind, WORD(2))
        loop, data = (
            builder.load(builder.gep(table, [WORD(0), builder.add(place, WORD(k))]))
            for k in range(2)
        )
        function = ir.FunctionType(ir.VoidType(), [WORD] * 4).as_pointer()
        builder.call(builder.inttoptr(loop, function), [*arrays, data])
        return context.get_dummy_value()

    return types.none(types.int64, types.UniTuple(types.int64, 7)), codegen


@intrinsic
def _by_ducc(typingctx, request):
    """Let ducc0 transform lines; return 0 if it is not installed, or cannot."""

    def codegen(context, builder, signature, args):
        function = builder.load(external(builder, SYMBOL_OF_DUCC, WORD))
        is_there = builder.icmp_unsigned("!=", function, WORD(0))
        done = cgutils.alloca_once_value(builder, WORD(0))
        with builder.if_then(is_there):
            kind = ir.FunctionType(WORD, [WORD]).as_pointer()
            builder.store(builder.call(builder.inttoptr(function, kind), args), done)
        return builder.load(done)

    return types.int64(types.int64), codegen


@inlined
def _copy_items(to, of, items, width, beside, size):
    """Copy lines that are beside each other to rows."""
    for i in range(items):
        row, place = f8_pointer(of + i * beside * size * SIZE), f8_pointer(to + i * size * SIZE)
        for j in range(width):
            for k in range(size):
                store(place, j * items * size + k, load(row, j * size + k))


@inlined
def _copy_results(to, of, results, width, beside, size):
    """Copy rows to lines that are beside each other."""
    for i in range(results):
        row, place = f8_pointer(to + i * beside * size * SIZE), f8_pointer(of + i * size * SIZE)
        for j in range(width):
            for k in range(size):
                store(row, j * size + k, load(place, j * results * size + k))


@jit
def transform_lines(request):
    """Transform lines of an array, as a request says; return 1, or 0 if there is no memory."""
    words = i8_pointer(request)
    kind, outer, inner = load(words, KIND), load(words, OUTER), load(words, INNER)
    items, results = load(words, ITEMS), load(words, RESULTS)
    to, of = load(words, OUT), load(words, X)
    is_complex = kind in (FORWARD, BACK)
    item = 1 if kind in (EVEN, ODD) else 2  # floats
    result = 2 if is_complex or kind in (EVEN, ODD) else 1
    if outer * items * inner >= MANY and _by_ducc(request):
        return 1
    if inner == 1:
        _run(kind, (to, of, outer, items, results, item, result))
        return 1
    memory = malloc((_BLOCK * (items * item + results * result) * SIZE,))
    if not memory:
        return 0
    found = memory + _BLOCK * items * item * SIZE
    for i in range(outer):
        for j in range(0, inner, _BLOCK):
            width = smaller(inner - j, _BLOCK)
            x = of + (i * items * inner + j) * item * SIZE
            out = to + (i * results * inner + j) * result * SIZE
            _copy_items(memory, x, items, width, inner, item)
            _run(kind, (found, memory, width, items, results, item, result))
            _copy_results(out, found, results, width, inner, result)
    free((memory,))
    return 1


# -- the other half --------------------------------------------------------------------------------


@inlined
def _lines_before(extents, axis, number):
    """Return how many lines there are beside each other, and how many in all."""
    inner, count = 1, 1
    for k in range(number):
        if k > axis:
            inner *= load(extents, k)
        if k != axis:
            count *= load(extents, k)
    return inner, count


@inlined
def _mirrored(extents, axis, others, number, line):
    """Return the number of the line in which the conjugates of the items of a line are."""
    found, step, left = 0, 1, line
    for turn in range(number):
        k = number - 1 - turn
        if k != axis:
            extent = load(extents, k)
            at = left % extent
            left //= extent
            if (others >> k) & 1 and at:
                at = extent - at
            found += at * step
            step *= extent
    return found


@inlined
def _start(line, inner, items):
    """Return the number of the first item of a line."""
    return line // inner * items * inner + line % inner


@inlined
def _write_lines(request, is_half_given, write_line):
    """Write all lines of a transform or of its half, each from the line and its mirror image."""
    words, extents = i8_pointer(request), i8_pointer(request + 5 * SIZE)
    number, to, of = load(words, 0), load(words, 1), load(words, 2)
    axis, others = load(words, 3), load(words, 4)
    n = load(extents, axis)
    half = n // 2 + 1
    items, results = (half, n) if is_half_given else (n, half)
    inner, lines = _lines_before(extents, axis, number)
    for line in range(lines):
        out = f8_pointer(to + 2 * _start(line, inner, results) * SIZE)
        x = f8_pointer(of + 2 * _start(line, inner, items) * SIZE)
        mirrored = _mirrored(extents, axis, others, number, line)
        other = f8_pointer(of + 2 * _start(mirrored, inner, items) * SIZE)
        write_line(out, x, other, n, inner)
    return 1


@inlined
def _mirror_line(out, x, other, n, inner):
    """Write a line of a transform of real numbers: the given half, and conjugates of the other."""
    half = n // 2 + 1
    for k in range(half):
        for part in range(2):
            store(out, 2 * k * inner + part, load(x, 2 * k * inner + part))
    for k in range(half, n):
        place, given = 2 * k * inner, 2 * (n - k) * inner
        store(out, place, load(other, given))
        store(out, place + 1, -load(other, given + 1))


@inlined
def _fold_line(out, x, other, n, inner):
    """Write the half of a line: the means of its items and of the conjugates of the other's."""
    for k in range(n // 2 + 1):
        place = 2 * k * inner
        re, im = load(x, place), load(x, place + 1)
        if k != 0 and 2 * k != n:
            given = 2 * (n - k) * inner
            re = 0.5 * (re + load(other, given))
            im = 0.5 * (im - load(other, given + 1))
        store(out, place, re)
        store(out, place + 1, im)


@jit
def mirror_lines(request):
    """Write all items of the transform of real numbers, of which the first half is given."""
    return _write_lines(request, True, _mirror_line)


@jit
def fold_lines(request):
    """Write the half of a transform whose real part is that of all that is given."""
    return _write_lines(request, False, _fold_line)
