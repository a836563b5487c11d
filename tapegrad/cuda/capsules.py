"""The function that capsules of DLPack call last, as compiled code.

A capsule may be deleted while an error is passed on. A function in Python would lose the error.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from tapegrad.kernels.intrinsics import c_function, i8_pointer, load, u1_pointer

FIRST = ord("d")  # of the name "dltensor"; once it is taken, the name is "used_dltensor"

_context_of = c_function("PyCapsule_GetContext", "address", "address")
_name_of = c_function("PyCapsule_GetName", "address", "address")
_pointer_of = c_function("PyCapsule_GetPointer", "address", "address", "address")
_delete = c_function("PyDict_DelItem", "int", "address", "address")
_fetch = c_function("PyErr_Fetch", "nothing", "address", "address", "address")
_restore = c_function("PyErr_Restore", "nothing", "address", "address", "address")
_integer = c_function("PyLong_FromVoidPtr", "address", "address")
_release = c_function("Py_DecRef", "nothing", "address")
_malloc = c_function("malloc", "address", "size")
_free = c_function("free", "nothing", "address")


def forget(capsule):
    """Delete the item of a dictionary, the context, by the address that nobody took."""
    name = _name_of((capsule,))
    if load(u1_pointer(name), 0) != FIRST:
        return
    error = _malloc((24,))
    _fetch((error, error + 8, error + 16))
    key = _integer((_pointer_of((capsule, name)),))
    _delete((_context_of((capsule,)), key))
    _release((key,))
    kept = i8_pointer(error)
    _restore((load(kept, 0), load(kept, 1), load(kept, 2)))
    _free((error,))
