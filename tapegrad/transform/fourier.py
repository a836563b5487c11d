"""Fourier transforms in compiled code, by NumPy's own: without Python, and without its lock.

NumPy's transforms are loops of ufuncs, C functions that take addresses, extents and distances in
memory, which a table has. What calls them is one function for all programs
(`tapegrad.transform.fourier_code`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels.structs import loop_of_ufunc
from tapegrad.transform.requests import WORD, call, share

# A request: a transform, the addresses of the results and of the items, how many lines there are
# before the axis, the items and results of each, and how many lines are beside each other after it.
KIND, OUT, X, OUTER, ITEMS, RESULTS, INNER = range(7)

# the loops for float64, with the bytes of an item of their argument and of their result
LOOPS = {
    "fft": ("Dd->D", 16, 16),
    "ifft": ("Dd->D", 16, 16),
    "rfft_n_even": ("dd->D", 8, 16),
    "rfft_n_odd": ("dd->D", 8, 16),
    "irfft": ("Dd->d", 16, 8),
}
FORWARD, BACK, EVEN, ODD, TO_REAL = range(5)
SYMBOL = "tapegrad_fourier"
_table = (ctypes.c_int64 * (2 * len(LOOPS)))()
llvm.add_symbol(SYMBOL, ctypes.addressof(_table))


def _find_loops() -> bool:
    """Fill the table; return whether NumPy has its transforms where they are expected."""
    try:
        from numpy.fft import _pocketfft_umath  # type: ignore[attr-defined]

        found = [
            loop_of_ufunc(getattr(_pocketfft_umath, name), kinds)
            for name, (kinds, *_) in LOOPS.items()
        ]
    except (ImportError, AttributeError, ValueError):
        return False
    _table[:] = [word for pair in found for word in pair]
    return True


IS_AVAILABLE = _find_loops()
"""Whether transforms can be compiled; otherwise recorded ones run in Python."""

share("fourier", ["transform_lines", "mirror_lines", "fold_lines"])


def _call(name: str, count: int):
    """Return an intrinsic that calls a function with two arrays without gaps, and `count` numbers.

    The first array is written.
    """

    @intrinsic
    def run(typingctx, out, x, numbers):
        def codegen(context, builder, signature, args):
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args[:2], args[:2], strict=True)
            ]
            places = [builder.ptrtoint(array.data, WORD) for array in arrays]
            kind, *extents = cgutils.unpack_tuple(builder, args[2], count)
            done = call(builder, name, [kind, *places, *extents])
            with builder.if_then(builder.icmp_unsigned("!=", done, WORD(1)), likely=False):
                error = "no Fourier transform: there is no memory, or a reason was printed"
                context.call_conv.return_user_exc(builder, RuntimeError, (error,))
            return context.get_dummy_value()

        return types.none(out, x, types.UniTuple(types.int64, count)), codegen

    return run


transform_lines = _call("transform_lines", 5)  # (kind, outer, items, results, inner)

# Of the transform of real numbers, one half is known by the other: z[n - k] is the conjugate of
# z[k], where other axes that are transformed are mirrored as well. A request: the number of axes,
# the addresses, the axis, a bit for each other axis that is transformed, and the extents.
MOST_AXES = 4
mirror_lines = _call("mirror_lines", 3 + MOST_AXES)
fold_lines = _call("fold_lines", 3 + MOST_AXES)
