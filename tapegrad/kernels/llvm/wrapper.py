"""How results of compiled code become Python objects.

numba calls a function of Python for each array that it returns, to unpickle the array's class.
The handler of a signal may run in there and raise, such as that of Ctrl-C, and a tuple would be
returned without the array, which is a SystemError. Here the class is a constant of the function:
nothing but C runs, and the handler runs after the call. A tuple whose items could not be made is
not returned.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.callwrapper import PyCallWrapper
from numba.core.pythonapi import PythonAPI
from numba.np.numpy_support import as_dtype


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
    """The function that Python calls."""

    def build_wrapper(self, api: Any, builder: Any, closure: Any, args: Any, kws: Any) -> None:
        super().build_wrapper(_Results(self.context, builder), builder, closure, args, kws)


class CalledFromPython:
    """A class of numba's for lowering, with this function for calls from Python.

    The code does not keep the module that it was compiled in: it needs none.
    """

    def __init__(self, context: Any, library: Any, fndesc: Any, *args: Any, **kwargs: Any) -> None:
        fndesc.global_dict = {}
        super().__init__(context, library, fndesc, *args, **kwargs)

    def create_cpython_wrapper(self: Any, release_gil: bool = False) -> None:
        """Add the function to the library."""
        context, described = self.context, self.fndesc
        module = context.create_module("wrapper")
        kind = context.call_conv.get_function_type(described.restype, described.argtypes)
        called = ir.Function(module, kind, described.llvm_func_name)
        _Wrapper(
            context, module, called, described, self.env, self.call_helper, release_gil
        ).build()
        self.library.add_ir_module(module)
