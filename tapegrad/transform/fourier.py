"""Fourier transforms in compiled code: by those of NumPy, without Python, or by ducc0.

NumPy's transforms are loops of ufuncs, C functions that take addresses, extents and distances in
memory, which a table has. What calls them is one function for all programs
(`tapegrad.transform.fourier_code`). ducc0, if it is installed, transforms several lines at once, in
a third of the time; but it can only be called from Python, so that it gets what is large.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import functools
import importlib.util
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels.native import report
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


# -- ducc0 -----------------------------------------------------------------------------------------

MANY = 2048  # items from which on a call of ducc0 is worth its time
SYMBOL_OF_DUCC = "tapegrad_ducc"
_WORDS = ctypes.c_int64 * 7
_AXIS = (1,)
_REAL, _COMPLEX = np.dtype(np.float64), np.dtype(np.complex128)


@functools.cache
def _library():
    """Return the module with ducc0's transforms; nothing if it cannot be imported."""
    try:
        from ducc0 import fft
    except ImportError:
        return None
    return fft


def _array(address: int, dtype: np.dtype, shape: tuple[int, int, int]):
    """Return the array without gaps that begins at an address."""
    size = dtype.itemsize * shape[0] * shape[1] * shape[2]
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.ndarray(shape, dtype, memory)


def _transform(request: int) -> bool:
    """Transform lines of an array, as a request says.

    Return whether that was done: ducc0 neither cuts lines nor fills them up.
    """
    fft = _library()
    kind, to, of, outer, items, results, inner = _WORDS.from_address(request)
    is_halved, is_half = kind in (EVEN, ODD), kind == TO_REAL
    whole, half = (results, items) if is_half else (items, results)
    if fft is None or half != (whole // 2 + 1 if is_halved or is_half else whole):
        return False
    if is_halved and whole % 2 != (kind == ODD):
        return False
    x = _array(of, _REAL if is_halved else _COMPLEX, (outer, items, inner))
    out = _array(to, _REAL if is_half else _COMPLEX, (outer, results, inner))
    if is_halved:
        fft.r2c(x, axes=_AXIS, out=out)
    elif is_half:
        fft.c2r(x, axes=_AXIS, lastsize=whole, forward=False, out=out)
    else:
        fft.c2c(x, axes=_AXIS, forward=kind == FORWARD, out=out)
    return True


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
def _transform_by_ducc(request: int) -> int:
    """Do the same for machine code, which calls NumPy's transforms if it gets 0."""
    try:
        return _transform(request)
    except BaseException as error:  # ctypes would return what happens to be in a register
        report(error)
        return 0


_ducc = ctypes.c_int64(0)
if importlib.util.find_spec("ducc0") is not None:
    _ducc.value = ctypes.cast(_transform_by_ducc, ctypes.c_void_p).value or 0
llvm.add_symbol(SYMBOL_OF_DUCC, ctypes.addressof(_ducc))


# -- requests --------------------------------------------------------------------------------------

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
