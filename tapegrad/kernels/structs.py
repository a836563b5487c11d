"""Offsets of the few fields of CPython and NumPy structs that compiled code reads.

Compiled code follows a list to its items and an array header to data, shape and strides. The
structs (``PyListObject``, ``PyArrayObject_fields``) are public but may change, so the offsets are
verified on live objects when this module is imported.
"""

from __future__ import annotations

import ctypes

import numpy as np

OBJECT_TYPE = 8
LIST_ITEMS = 24
UFUNC_NIN, UFUNC_FUNCTIONS, UFUNC_DATA, UFUNC_NTYPES = 16, 32, 40, 48
ARRAY_DATA, ARRAY_NDIM, ARRAY_DIMS, ARRAY_STRIDES, ARRAY_BASE, ARRAY_DTYPE = 16, 24, 32, 40, 48, 56


class LayoutError(ImportError):
    """Raised if objects of Python or NumPy do not have the layout that compiled code expects."""


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first element, from its header."""
    return ctypes.c_int64.from_address(id(array) + ARRAY_DATA).value


def loop_of_ufunc(ufunc: np.ufunc, kinds: str) -> tuple[int, int]:
    """Return the addresses of a ufunc's loop for some types, and of the data that it takes.

    Parameters
    ----------
    ufunc
        The ufunc.
    kinds
        The types, as in its ``types``.

    Raises
    ------
    LayoutError
        If the ufunc does not have the layout that is expected.
    """

    def word(offset: int, address: int = id(ufunc)) -> int:
        return ctypes.c_int64.from_address(address + offset).value

    counts = [ctypes.c_int32.from_address(id(ufunc) + UFUNC_NIN + 4 * k).value for k in range(3)]
    number = ctypes.c_int32.from_address(id(ufunc) + UFUNC_NTYPES).value
    if counts != [ufunc.nin, ufunc.nout, ufunc.nargs] or number != ufunc.ntypes:
        raise LayoutError(f"the ufunc {ufunc.__name__} of NumPy {np.__version__} is not known")
    place = 8 * ufunc.types.index(kinds)
    data = word(UFUNC_DATA)
    return word(place, word(UFUNC_FUNCTIONS)), word(place, data) if data else 0


def verify() -> None:
    """Verify the struct offsets on live objects.

    Raises
    ------
    LayoutError
        If a field is not at the expected offset; the message names the field.
    """

    def word(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    def expect(field: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise LayoutError(
                f"tapegrad reads {field} at an offset that does not hold for this build of "
                f"Python and NumPy {np.__version__} (found {found}, expected {wanted}); "
                "use a standard 64-bit CPython and NumPy >= 2.0"
            )

    expect("the size of a pointer", ctypes.sizeof(ctypes.c_void_p), 8)
    base = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    view = base[:, 1:, ::-2]
    header = id(view)
    interface = view.__array_interface__
    expect("PyArrayObject.data", word(header + ARRAY_DATA), interface["data"][0])
    expect("PyArrayObject.nd", ctypes.c_int32.from_address(header + ARRAY_NDIM).value, 3)
    dims, strides = word(header + ARRAY_DIMS), word(header + ARRAY_STRIDES)
    for axis in range(3):
        expect("PyArrayObject.dimensions", word(dims + 8 * axis), view.shape[axis])
        expect("PyArrayObject.strides", word(strides + 8 * axis), view.strides[axis])
    expect("PyArrayObject.base", word(header + ARRAY_BASE), id(view.base))
    expect("PyArrayObject.descr", word(header + ARRAY_DTYPE), id(view.dtype))
    expect("PyObject.ob_type", word(id(base) + OBJECT_TYPE), id(np.ndarray))
    items = [base, view]
    expect("PyListObject.ob_item", word(word(id(items) + LIST_ITEMS) + 8), id(view))


verify()
