"""Fingerprints: everything the code of a function depends on, as a hash and a list of functions."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba.core import types as kinds_of
from numba.core.ccallback import CFunc
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc

from tapegrad.kernels import native
from tapegrad.kernels.sources import sources
from tapegrad.transform.declared import Declared
from tapegrad.transform.kinds import is_dispatcher
from tapegrad.transform.syntax import lines_of

MISSING = object()
# modules covered by the versions in every key, or part of the package
_LIBRARIES = {
    "numpy", "numba", "llvmlite", "math", "cmath", "operator", "builtins", "random", "tapegrad",
    "tapegrad_ops", "tapegrad_scalar_ops",
}  # fmt: skip
ROOTS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_STEPS = {"LOAD_ATTR", "LOAD_METHOD"}
_PLAIN = (
    kinds_of.Number, kinds_of.Boolean, kinds_of.NoneType, kinds_of.UnicodeType, kinds_of.Record,
    kinds_of.SliceType, kinds_of.UnicodeCharSeq, kinds_of.CharSeq, kinds_of.Bytes,
)  # fmt: skip
_SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...))
_LARGE = 10**6  # bytes; for larger arrays numba compiles in the address, not the elements


def is_library(module: str | None) -> bool:
    """Whether a module is not the user's."""
    return (module or "").split(".")[0] in _LIBRARIES


class Fingerprint:
    """The hash, by value, of a function and everything that it uses.

    Parameters
    ----------
    root
        A compiled function, or a derivative of one.
    frozen
        Hash what numba compiles into the function: large arrays by address, and no rules.

    Attributes
    ----------
    functions
        The Python functions reached, in a fixed order.
    dispatchers
        The compiled functions reached, callees before callers.
    lasting
        The code that numba compiled for ufuncs and implementations of plain functions, and keeps.
    items
        The hash of the value of each name of each function, callees before callers.
    complete
        Whether everything reached has a hash that is valid in another process.
    recursive
        Whether a function calls itself: numba crashes on machine code of such functions on disk.
    """

    def __init__(self, root: Any, frozen: bool = False) -> None:
        self.digest = hashlib.sha256()
        self.frozen = frozen
        self.functions: list[types.FunctionType] = []
        self.dispatchers: list[Any] = []
        self.lasting: list[Any] = []
        self.items: dict[tuple[int, str, str], bytes] = {}
        self.complete = True
        self.recursive = False
        self._open: list[types.FunctionType] = []  # functions being hashed
        self._inside: list[int] = []  # containers being hashed
        self._add(root)

    def key(self, *parts: Any) -> str:
        """Return the hash, together with that of other parts and of the package."""
        return native.fingerprint(package(), self.digest.digest(), repr(parts).encode())

    def add_kinds(self, kinds: tuple[Any, ...]) -> None:
        """Add numba types, including what their names do not show."""
        for kind in kinds:
            self._kind(kind)

    def _note(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text}".encode())

    def _unknown(self, value: Any) -> None:
        """Note an object that has no hash in another process."""
        self._note(f"{type(value).__qualname__}{id(value) if self.frozen else ''}")
        self.complete = False

    # -- values ---------------------------------------------------------------------------------

    def _add(self, value: Any) -> None:
        if type(value) in _SCALARS:
            self._note(f"{type(value).__name__} {value!r}")
        elif isinstance(value, enum.Enum):
            self._note(f"member {_title(type(value))}.{value.name}")
            self._add(value.value)
        elif isinstance(value, np.generic):
            self._elements(np.asarray(value))
        elif isinstance(value, np.ndarray):
            self._elements(value)
        elif isinstance(value, (tuple, list, dict, set, frozenset)):
            self._container(value)
        elif hasattr(value, "_tapegrad_recipe"):
            self._add(value._tapegrad_recipe())
        elif is_dispatcher(value):
            self._dispatcher(value)
        elif isinstance(value, types.FunctionType):
            if self.frozen:  # numba compiles only the implementations declared for it
                self._note(f"function {id(value)}")
            else:
                self._function(value)
            self._overloads(value)
        elif isinstance(value, types.ModuleType):
            self._note(f"module {value.__name__}")
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, functools.partial):
            self._note("partial")
            for part in (value.func, value.args, value.keywords):
                self._add(part)
        elif isinstance(value, types.MethodType):
            self._add(value.__func__)
            self._add(value.__self__)
        elif hasattr(value, "tapegrad_op"):
            self._note(f"op {value.tapegrad_op.name}")
        elif isinstance(value, DUFunc):
            self._note("vectorized")
            self._ufunc(value)
        elif isinstance(value, GUFunc):
            self._note(f"vectorized {value.gufunc_builder.signature}")
            self._ufunc(value)
        elif isinstance(value, CFunc):
            self._note(f"callback {value._sig}")
            self._function(value._pyfunc)
        elif isinstance(value, _Intrinsic):
            self._note("intrinsic")
            self._function(value._defn)
        elif isinstance(value, np.dtype):
            self._note(f"dtype {value.descr if value.fields else value.str}")
        elif isinstance(value, kinds_of.Type):
            self._kind(value)
        elif isinstance(value, (types.BuiltinFunctionType, np.ufunc)):
            self._builtin(value)
        elif _title(value) and is_library(value.__module__):
            self._note(_title(value))  # NumPy's functions behind a dispatcher
        else:
            self._unknown(value)

    def _builtin(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        self._note(_title(value) or str(value))
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._add(owner)
        elif isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is not value:
            self._overloads(value)

    def _elements(self, array: Any) -> None:
        layout = (array.flags.c_contiguous, array.flags.f_contiguous)
        kind = array.dtype.descr if array.dtype.fields else array.dtype.str
        self._note(f"{type(array).__name__} {kind} {array.shape} {layout} {array.flags.writeable}")
        if array.dtype.hasobject:
            self._unknown(array)
        elif self.frozen and (not any(layout) or array.nbytes > _LARGE):
            self._note(str(array.ctypes.data))  # its elements are read in each call
        else:
            self.digest.update(array.tobytes())

    def _container(self, value: Any) -> None:
        if id(value) in self._inside:
            self._note(f"inside {self._inside.index(id(value))}")
            return
        self._inside.append(id(value))
        self._note(f"{_title(type(value))} {len(value)}")
        if isinstance(value, dict):
            for key, item in value.items():
                self._add(key)
                self._add(item)
        elif isinstance(value, (set, frozenset)):
            for digest in sorted(self._apart(item) for item in value):
                self.digest.update(digest)
        else:
            self._note(repr(getattr(value, "_fields", "")))
            for item in value:
                self._add(item)
        self._inside.pop()

    def _apart(self, value: Any) -> bytes:
        before, self.digest = self.digest, hashlib.sha256()
        self._add(value)
        found, self.digest = self.digest.digest(), before
        return found

    def _class(self, value: type) -> None:
        self._note(f"class {_title(value)}")
        if is_library(value.__module__):
            return
        if hasattr(value, "class_type"):  # of instances with compiled methods
            self._kind(value.class_type.instance_type)
        elif issubclass(value, enum.Enum):
            for name, member in value.__members__.items():
                self._note(name)
                self._add(member.value)
        elif issubclass(value, tuple) and hasattr(value, "_fields"):
            self._note(repr(value._fields))
            self._add(getattr(value, "_field_defaults", {}))

    def _kind(self, kind: Any) -> None:
        """Add a numba type with its fields and members, which its name does not show."""
        is_class = isinstance(kind, kinds_of.ClassInstanceType)  # its name has an address
        self._note(f"type {type(kind).__name__} {kind.classname if is_class else kind}")
        if isinstance(kind, kinds_of.BaseTuple):
            if hasattr(kind, "instance_class"):
                self._class(kind.instance_class)
            for item in kind:
                self._kind(item)
        elif isinstance(kind, (kinds_of.EnumMember, kinds_of.IntEnumMember)):
            self._class(kind.instance_class)
        elif is_class:
            made = kind.class_type
            for name, item in made.struct.items():
                self._note(name)
                self._kind(item)
            for methods in (made.jit_methods, made.jit_static_methods):
                for name in sorted(methods):
                    self._note(name)
                    self._add(methods[name])
            for name, parts in sorted(made.jit_props.items()):
                self._note(name)
                self._add(parts)
        elif isinstance(kind, kinds_of.Array):
            self._kind(kind.dtype)
        elif isinstance(kind, kinds_of.Optional):
            self._kind(kind.type)
        elif isinstance(kind, kinds_of.Omitted):
            self._add(kind.value)
        elif isinstance(kind, kinds_of.Literal):
            self._add(kind.literal_value)
        elif not isinstance(kind, _PLAIN):
            self._unknown(kind)

    # -- functions ------------------------------------------------------------------------------

    def _dispatcher(self, value: Any) -> None:
        self._note("compiled")
        if not self.frozen:
            self._add(getattr(value, "rule_vjp", None))
            self._add(getattr(value, "rule_jvp", None))
        self._note(repr(sorted(value.targetoptions.items(), key=repr)))
        declared = Declared(value)
        self._note(repr((declared.is_closed and declared.signatures, declared.variables)))
        self._function(value.py_func)
        if value not in self.dispatchers:
            self.dispatchers.append(value)

    def _ufunc(self, value: Any) -> None:
        """Add a ufunc, and the types for which it was declared to be compiled."""
        made = value._dispatcher
        self._note(repr(sorted(made.targetoptions.items(), key=repr)))
        self._note(repr(list(made.overloads)) if value._frozen else "")
        self._function(made.py_func)
        if made not in self.lasting:
            self.lasting.append(made)

    def _overloads(self, value: Any) -> None:
        """Add the implementations declared for a plain function, which numba compiles for it."""
        for template in templates_of(value):
            made = getattr(template, "_overload_func", None)
            if not isinstance(made, types.FunctionType):
                self._unknown(template)
                continue
            self._function(made)
            if is_library(_module_of(made)):  # numba's: the function itself is its implementation
                for cell in made.__closure__ or ():
                    if isinstance(cell.cell_contents, types.FunctionType):
                        self._function(cell.cell_contents)
            found = [made for made, _ in template._impl_cache.values() if made is not None]
            self.lasting += [made for made in found if made not in self.lasting]

    def _function(self, function: types.FunctionType) -> None:
        if function in self.functions:
            self.recursive |= function in self._open
            self._note(str(self.functions.index(function)))
            return
        self.functions.append(function)
        self._open.append(function)
        self._content(function)
        self._open.pop()

    def _content(self, function: types.FunctionType) -> None:
        """Add the code of a function and the values that it names."""
        module = _module_of(function)
        if is_library(module):
            self._note(f"{module}.{function.__qualname__}")
            return
        self._code(function.__code__)
        if not self.frozen:
            try:
                self._note("".join(lines_of(function)))
            except (OSError, TypeError):
                self.complete = False
        self._add(function.__defaults__)
        self._add(function.__kwdefaults__)
        index = self.functions.index(function)
        for dotted, value in named(function):
            digest = self._apart(value) if value is not MISSING else b"missing"
            self.items[(index, function.__qualname__, dotted)] = digest
            self._note(dotted)
            self.digest.update(digest)

    def _code(self, code: types.CodeType) -> None:
        self._note(repr((code.co_name, code.co_names, code.co_varnames, code.co_freevars)))
        self.digest.update(code.co_code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self._add(constant)


def templates_of(value: Any) -> list[Any]:
    """Return numba's typing of a function that is not numba's.

    Of those of this package, some are differentiated as the implementations that they have.
    """
    module = _module_of(value) if isinstance(value, types.FunctionType) else None
    is_own = hasattr(value, "tapegrad_overloaded") or hasattr(value, "tapegrad_implemented")
    if is_library(module) and not is_own:
        return []
    context = cpu_target.typing_context
    context.refresh()
    kind = getattr(value, "_numba_type_", None) or context._lookup_global(value)
    return list(getattr(kind, "templates", ()))


def implementations_of(function: types.FunctionType) -> list[Any]:
    """Return numba's typing of a plain function for which implementations are declared."""
    return [t for t in templates_of(function) if hasattr(t, "_overload_func")]


def _title(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{getattr(value, '__module__', '')}.{name}" if name else ""


def _module_of(function: types.FunctionType) -> str:
    """Return the module that a function was compiled in, whatever a decorator says."""
    return str(function.__globals__.get("__name__", ""))


def named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the outside values that a function names, with their dotted names.

    Names are followed through modules and classes to the attributes used. They are read from the
    code that numba compiles, so no value with a name in the text is missed.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    seen = set()
    for parts in _chains(function.__code__, set(cells)):
        if parts in seen:
            continue
        seen.add(parts)
        first = parts[0]
        if first in cells:
            try:
                value = cells[first].cell_contents
            except ValueError:
                value = MISSING
        elif first in function.__globals__:
            value = function.__globals__[first]
        else:
            value = getattr(builtins, first, MISSING)
        yield from _followed(first, parts[1:], value, function.__code__, set())


def _followed(
    dotted: str, rest: tuple[str, ...], value: Any, code: types.CodeType, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yield the values that a dotted name leads to, starting from a value."""
    while rest and isinstance(value, (types.ModuleType, type)):
        if is_library(_place(value)) or isinstance(value, enum.EnumMeta):
            break
        value = getattr(value, rest[0], MISSING)
        dotted, rest = f"{dotted}.{rest[0]}", rest[1:]
    yield dotted, value
    if rest or not isinstance(value, types.ModuleType) or is_library(_place(value)):
        return
    if id(value) not in seen:
        # a module in a variable: all its attributes whose names occur in the function
        seen.add(id(value))
        for name in sorted({*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}):
            if hasattr(value, name):
                yield from _followed(f"{dotted}.{name}", (), getattr(value, name), code, seen)


def _place(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return str(name)


def _chains(code: types.CodeType, cells: set[str]) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that code reads, of globals and of variables of outer functions."""
    parts: list[str] = []
    for step in dis.get_instructions(code):
        if step.opname == "EXTENDED_ARG":
            continue
        if parts and step.opname in _STEPS:
            parts.append(step.argval)
            continue
        if parts:
            yield tuple(parts)
        parts = []
        if step.opname in ROOTS and ("DEREF" not in step.opname or step.argval in cells):
            parts = [step.argval]
    if parts:
        yield tuple(parts)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _chains(constant, cells)


@functools.cache
def package() -> bytes:
    """Return the hash of the files that generate code, and of those that verify it."""
    return hashlib.sha256(b"".join(sources("transform", "ops", "kernels"))).digest()
