"""Calls of compiled code from Python: arrays are checked, and results become Python objects.

numba keeps the types of arguments by a fingerprint of them, which does not have the byte order of
arrays: after a call with an array that is not aligned, or with tuples of arrays, it calls machine
code that would read the bytes in the wrong order.

It calls a function of Python for each array that it returns, to unpickle the array's class. The
handler of a signal may run in there and raise, such as that of Ctrl-C, and a tuple would be
returned without the array, which is a SystemError. Here the class is a constant of the function:
nothing but C runs, and the handler runs after the call. A tuple whose items could not be made is
not returned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.callwrapper import PyCallWrapper
from numba.core.pythonapi import NativeValue, PythonAPI
from numba.np.numpy_support import as_dtype

from tapegrad.kernels.dtypes import not_compiled

_Lower: Any = object  # stands for a class of numba's for lowering, before which a class is
# where NumPy's C API has the dtype of an array, and the byte order of that
_HEAD = object.__basicsize__
_DTYPE, _ORDER = _HEAD + 40, _HEAD + 10
_OTHER_ORDER = ord(">" if sys.byteorder == "little" else "<")
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)


class _Results(PythonAPI):
    """numba's code for Python objects, with arrays and tuples of its own."""

    def from_native_value(self, typ: Any, val: Any, env_manager: Any = None) -> Any:
        if type(typ) is types.Array:
            return self._array(typ, val, env_manager)
        if type(typ) in (types.Tuple, types.UniTuple):
            return self._tuple(typ, val, env_manager)
        if type(typ) in (types.NamedTuple, types.NamedUniTuple):
            return self._named_tuple(typ, val, env_manager)
        return super().from_native_value(typ, val, env_manager)

    def _array(self, kind: Any, value: Any, constants: Any) -> Any:
        word = ir.IntType(32)
        arguments = [self.voidptr, self.pyobj, word, word, self.pyobj]
        signature = ir.FunctionType(self.pyobj, arguments)
        convert = self._get_function(signature, name="NRT_adapt_ndarray_to_python_acqref")
        convert.args[0].add_attribute("captures(none)")
        array_class, dtype = (
            constants.read_const(constants.add_const(constant))
            for constant in (kind.box_type, as_dtype(kind.dtype))
        )
        place = self.builder.bitcast(cgutils.alloca_once_value(self.builder, value), self.voidptr)
        sizes = word(kind.ndim), word(int(kind.mutable))
        made = self.builder.call(convert, [place, array_class, *sizes, dtype])
        self.context.nrt.decref(self.builder, kind, value)
        return made

    def _tuple(self, kind: Any, value: Any, constants: Any) -> Any:
        made = self.tuple_new(kind.count)
        is_complete = cgutils.is_not_null(self.builder, made)
        for place, item_kind in enumerate(kind):
            item = self.builder.extract_value(value, place)
            item = self.from_native_value(item_kind, item, constants)
            is_complete = self.builder.and_(is_complete, cgutils.is_not_null(self.builder, item))
            self.tuple_setitem(made, place, item)
        found = cgutils.alloca_once_value(self.builder, made)
        with self.builder.if_then(self.builder.not_(is_complete), likely=False):
            self.decref(made)
            self.builder.store(self.get_null_object(), found)
        return self.builder.load(found)

    def _named_tuple(self, kind: Any, value: Any, constants: Any) -> Any:
        items = self._tuple(kind, value, constants)
        found = cgutils.alloca_once_value(self.builder, self.get_null_object())
        with self.builder.if_then(cgutils.is_not_null(self.builder, items), likely=True):
            made_of = constants.read_const(constants.add_const(kind.instance_class))
            self.builder.store(self.call(made_of, items), found)
            self.decref(items)
        return self.builder.load(found)


class _Wrapper(PyCallWrapper):
    """The function that Python calls. Errors call it ``shown_as``."""

    shown_as = ""

    def build_wrapper(self, api: Any, builder: Any, closure: Any, args: Any, kws: Any) -> None:
        """Write it, with a check of every argument after it was taken."""
        api = _Results(self.context, builder)
        taken = api.to_native_value
        function = self.shown_as or self.fndesc.qualname.rpartition(".")[2]
        kinds = enumerate(self.fndesc.argtypes)
        numbers = [k for k, kind in kinds if not isinstance(kind, types.Omitted)]
        is_inside = False  # of an argument, which is a tuple

        def checked(kind: Any, given: Any) -> Any:
            nonlocal is_inside
            if is_inside:
                return taken(kind, given)
            is_inside = True
            found = taken(kind, given)
            is_inside = False
            number = numbers.pop(0)

            def text(dtype: Any) -> str:
                return not_compiled(function, number, as_dtype(dtype).newbyteorder("S"))

            return _checked(self.context, api, text, kind, given, found)

        api.to_native_value = checked
        super().build_wrapper(api, builder, closure, args, kws)


def _checked(
    context: Any, api: Any, text: Callable[[Any], str], kind: Any, given: Any, found: Any
) -> Any:
    """Return an argument; it is an error if machine code cannot read an array in it.

    `text` returns the text of the error for the dtype that the array should have.
    """
    if not _has_arrays(kind):
        return found
    builder = api.builder
    failed = cgutils.alloca_once_value(builder, found.is_error)

    def read(start: Any, offset: int, kind: Any) -> Any:
        place = builder.gep(builder.bitcast(start, _BYTE.as_pointer()), [_WORD(offset)])
        return builder.load(builder.bitcast(place, kind.as_pointer()))

    def check(kind: Any, given: Any) -> None:
        if isinstance(kind, types.BaseTuple):
            for place, item in enumerate(kind):
                if _has_arrays(item):
                    check(item, api.tuple_getitem(given, place))
            return
        dtype = builder.inttoptr(read(given, _DTYPE, _WORD), _BYTE.as_pointer())
        order = read(dtype, _ORDER, _BYTE)
        is_swapped = builder.icmp_unsigned("==", order, _BYTE(_OTHER_ORDER))
        with builder.if_then(is_swapped, likely=False):
            api.err_set_string("PyExc_TypeError", text(kind.dtype))
            builder.store(is_swapped, failed)

    with builder.if_then(builder.not_(found.is_error), likely=True):
        check(kind, given)
        with builder.if_then(builder.load(failed), likely=False):
            context.nrt.decref(builder, kind, found.value)
    return NativeValue(found.value, builder.load(failed), found.cleanup)


def _has_arrays(kind: Any) -> bool:
    if isinstance(kind, types.BaseTuple):
        return any(map(_has_arrays, kind))
    return isinstance(kind, types.Array)


class Wrapping(_Lower):
    """Lowering that writes the function which Python calls, in place of numba's."""

    def create_cpython_wrapper(self: Any, release_gil: bool = False) -> None:
        """Write it."""
        if self.genlower:
            super().create_cpython_wrapper(release_gil)
            return
        context, described = self.context, self.fndesc
        module = context.create_module("wrapper")
        kind = context.call_conv.get_function_type(described.restype, described.argtypes)
        called = ir.Function(module, kind, described.llvm_func_name)
        wrapper = _Wrapper(
            context, module, called, described, self.env, self.call_helper, release_gil
        )
        wrapper.shown_as = getattr(self.func_ir.func_id.func, "shown_as", "")
        wrapper.build()
        self.library.add_ir_module(module)


class CalledFromPython(Wrapping):
    """The same, of code that does not keep the module that it was compiled in: it needs none."""

    def __init__(self, context: Any, library: Any, fndesc: Any, *args: Any, **kwargs: Any) -> None:
        fndesc.global_dict = {}
        super().__init__(context, library, fndesc, *args, **kwargs)
