"""Fourier transforms in compiled code, by NumPy's own: without Python, and without its lock.

NumPy's transforms are loops of ufuncs, C functions that take addresses, extents and distances in
memory. Machine code, also that on disk, finds a table of them by a symbol.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels.structs import loop_of_ufunc

_SYMBOL = "tapegrad_fourier"
_WORD = ir.IntType(64)
_COMPLEX, _REAL = 16, 8  # bytes

# the loops for float64, with the bytes of an item of their argument and of their result
_LOOPS = {
    "fft": ("Dd->D", _COMPLEX, _COMPLEX),
    "ifft": ("Dd->D", _COMPLEX, _COMPLEX),
    "rfft_n_even": ("dd->D", _REAL, _COMPLEX),
    "rfft_n_odd": ("dd->D", _REAL, _COMPLEX),
    "irfft": ("Dd->d", _COMPLEX, _REAL),
}
_table = (ctypes.c_int64 * (2 * len(_LOOPS)))()
llvm.add_symbol(_SYMBOL, ctypes.addressof(_table))


def _find_loops() -> bool:
    """Fill the table; return whether NumPy has its transforms where they are expected."""
    try:
        from numpy.fft import _pocketfft_umath  # type: ignore[attr-defined]

        found = [
            loop_of_ufunc(getattr(_pocketfft_umath, name), kinds)
            for name, (kinds, *_) in _LOOPS.items()
        ]
    except (ImportError, AttributeError, ValueError):
        return False
    _table[:] = [word for pair in found for word in pair]
    return True


IS_AVAILABLE = _find_loops()
"""Whether transforms can be compiled; otherwise recorded ones run in Python."""


def _transform(name: str):
    """Return an intrinsic that transforms rows of an array, without scaling.

    Its arguments are the array of results, that of the items, the number of rows, and the items and
    results in each. Complex numbers are pairs. Both arrays have no gaps.
    """
    number = list(_LOOPS).index(name)
    _, item, result = _LOOPS[name]

    @intrinsic
    def run(typingctx, out, x, rows, items, results):
        def codegen(context, builder, signature, args):
            kinds = signature.args
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(kinds[:2], args[:2], strict=True)
            ]
            to, of = (builder.ptrtoint(array.data, _WORD) for array in arrays)
            rows, items, results = args[2:]
            factor = cgutils.alloca_once_value(builder, ir.DoubleType()(1.0))
            words = {
                "places": [of, builder.ptrtoint(factor, _WORD), to],
                "extents": [rows, items, results],
                "steps": [
                    builder.mul(items, _WORD(item)),
                    _WORD(0),
                    builder.mul(results, _WORD(result)),
                    _WORD(item),
                    _WORD(result),
                ],
            }
            given = []
            for name, values in words.items():
                array = cgutils.alloca_once(builder, ir.ArrayType(_WORD, len(values)), name=name)
                for place, value in enumerate(values):
                    builder.store(value, cgutils.gep_inbounds(builder, array, 0, place))
                given.append(builder.ptrtoint(array, _WORD))
            loop, data = (_word(builder, 2 * number + k) for k in range(2))
            kind = ir.FunctionType(ir.VoidType(), [_WORD] * 4).as_pointer()
            builder.call(builder.inttoptr(loop, kind), [*given, data])
            return context.get_dummy_value()

        return types.none(out, x, types.int64, types.int64, types.int64), codegen

    return run


def _word(builder, place):
    """Write the read of a word of the table."""
    kind = ir.ArrayType(_WORD, len(_table))
    table = builder.module.globals.get(_SYMBOL)
    if table is None:
        table = cgutils.add_global_variable(builder.module, kind, _SYMBOL)
        table.linkage = "external"
    return builder.load(cgutils.gep_inbounds(builder, table, 0, place))


transform = _transform("fft")
transform_back = _transform("ifft")
transform_even, transform_odd = _transform("rfft_n_even"), _transform("rfft_n_odd")
transform_to_real = _transform("irfft")
