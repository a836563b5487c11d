"""What names stand for, in generated modules and in functions that these call."""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform import deferred, extremes, runtime, vector_math
from tapegrad.transform.eager_calls import call_eager, is_of_package
from tapegrad.transform.equivalence.array_functions import (
    OF_NUMBERS,
    NumPy,
    empty,
    opaque,
    per_element,
)
from tapegrad.transform.equivalence.field import RUN, Number, UnfollowedError, number, rounded
from tapegrad.transform.equivalence.linear_algebra import LinearAlgebra
from tapegrad.transform.equivalence.runtime_functions import (
    MEANINGS,
    inherit,
    new_tape,
    size_for,
)
from tapegrad.transform.frontend.source import MISSING, Source
from tapegrad.transform.functions import ops, scalar_ops, stop_gradient
from tapegrad.transform.rules import arrays, scalars
from tapegrad.transform.rules.numpy_functions import additions, complex_functions
from tapegrad.transform.rules.partials import op_of_function
from tapegrad.transform.syntax import copied, is_loop
from tapegrad.transform.tape_memory import buffer, growth

_NAMES_OF_MATH = {
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "atan2": "arctan2",
    "pow": "power",
    "fabs": "abs",
}
_MOST_ELEMENTS = 10_000
_TICK = "_tick"
_OF_INTEGERS = "comb", "factorial", "gcd", "isqrt", "perm"


class _Math:
    """What stands for the module `math`: NumPy's functions of numbers."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(math, name)
        if isinstance(real, float):
            return number(real)
        if name in _OF_INTEGERS:
            return real
        if name in ("ceil", "floor", "trunc"):
            return lambda x: int(rounded(name, x))
        known = _NAMES_OF_MATH.get(name, name)
        return lambda *given: per_element(known, len(given))(*given)


class _Ops:
    """What stands for ops as functions of numbers and arrays, and for their vectorized versions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # which nobody but Python asks for
            raise AttributeError(name)
        op = TABLE.get(name)
        if name == "call_eager":
            return _eager_call
        if isinstance(op, Elementwise):
            return per_element(name, len(op.arguments))
        if name in vector_math.ARGUMENTS or name in ("half_power", "root"):
            return lambda *given: per_element(name, len(given))(*given)
        raise UnfollowedError(f"the function {name}")


class _Members:
    """The names of a module, of which some have meanings of their own."""

    def __init__(self, module: Any, known: dict[str, Any]) -> None:
        self._module, self._known = module, known

    def __getattr__(self, name: str) -> Any:
        found = self._known.get(name)
        if found is None:
            found = meaning(getattr(self._module, name))
        setattr(self, name, found)
        return found


def _complex(*given: Any) -> Any:
    """Return the complex number of a real and an imaginary part."""
    real, imag = (*map(number, given), number(0))[:2]
    return real + number(1j) * imag


def _eager_call(path: str, *values: Any) -> Any:
    """Return what stands for a function that runs in Python, or a derivative, which is linear."""
    if not is_of_package(path):
        raise UnfollowedError("a call of a function that is not of the package")
    *inner, (mode, place) = ast.literal_eval(path)
    if not inner:
        return opaque(path, functools.partial(call_eager, path), *values)
    like = np.shape(values[place] if mode == "vjp" else values[-2])
    found = opaque(path, lambda *_: np.zeros(like)[()], *values)
    return found if np.any(values[-1]) else found * 0


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise UnfollowedError(name)

    return call


NUMPY, LINALG, MATH, OPS = NumPy(), LinearAlgebra(), _Math(), _Ops()
NUMPY.linalg = LINALG
_OUTSIDE = "__import__", "breakpoint", "compile", "eval", "exec", "input", "open"
BUILTINS = {
    **vars(builtins),
    **{name: _refused(name) for name in _OUTSIDE},
    "float": number,
    "complex": _complex,
    "type": lambda value: number if isinstance(value, Number) else type(value),
    "print": lambda *_, **__: None,  # nobody wants to see what is printed here
}
_NUMBA = types.SimpleNamespace(
    prange=range, literally=lambda x: x, literal_unroll=lambda x: x, get_num_threads=lambda: 2
)
_MODULES: list[tuple[Any, Any]] = [
    (np, NUMPY),
    (np.linalg, LINALG),
    (math, MATH),
    (numba, _NUMBA),
    (operator, operator),
    *((module, OPS) for module in (ops, scalar_ops, vector_math, deferred.vector_math)),
    *((module, _Members(runtime, MEANINGS)) for module in (runtime, deferred.runtime)),
    *((module, _Members(arrays, {})) for module in (arrays, deferred.arrays)),
]
_RUNTIME = [
    *((getattr(runtime, name), made) for name, made in MEANINGS.items()),
    # what a gradient that is differentiated calls in place of `grown`
    (buffer.new_tape, new_tape),
    (buffer.inherit, inherit),
    (growth.allowed_size, size_for),
    (extremes.flat_view, lambda x: x.reshape(-1, order="A")),  # a view in both orders
    (call_eager, _eager_call),
    (stop_gradient, per_element("stop_gradient", 1)),
    # what distinguishes a 0 from what nothing uses
    (complex_functions.complex_product, OF_NUMBERS["product"]),
    (complex_functions.complex_nonzero, OF_NUMBERS["nonzero"]),
    (scalars.product_of_elements, per_element("product", 2)),
    (scalars.nonzero_elements, per_element("nonzero", 1)),
    (additions.is_used, lambda g: True),
    (additions.mark_zeros, lambda bar, given: None),
]
_SAME = (int, str, bool, type(None), enum.Enum, numba.types.Type, slice)


def meaning(value: Any) -> Any:
    """Return what an object stands for that code names."""
    if isinstance(value, Elementwise):
        return per_element(value.name, len(value.arguments))
    for known, found in (*_MODULES, *_RUNTIME):
        if value is known:
            return found
    if isinstance(value, _SAME):
        return value
    if isinstance(value, (float, complex, np.inexact)):
        return number(value)
    if isinstance(value, tuple):
        parts = [meaning(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, types.ModuleType) and _is_of_package(value.__name__):
        return _Members(value, {})
    return _function(value)


def meaning_if_called(value: Any) -> Any:
    """Return what an object stands for; what has no meaning stops a run that calls it."""
    try:
        return meaning(value)
    except UnfollowedError as error:
        return _Unknown(str(error))


class _Unknown:
    """What has no meaning."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UnfollowedError(self._reason)

    def __getattr__(self, name: str) -> Any:
        raise UnfollowedError(self._reason)


def _is_of_package(module: str) -> bool:
    return module.partition(".")[0] == "tapegrad"


def _array(value: np.ndarray) -> np.ndarray:
    """Return what stands for an array."""
    if value.dtype.kind not in "fciub" or value.size > _MOST_ELEMENTS:
        raise UnfollowedError(f"an array of {value.size} elements of {value.dtype}")
    if value.dtype.kind in "iub":
        return value.copy()
    made = empty(value.shape)
    for place in np.ndindex(value.shape):
        made[place] = number(value[place])
    return made


def _class(value: type) -> Any:
    """Return what a class stands for."""
    if issubclass(value, np.generic):
        return getattr(NUMPY, value.__name__)
    if issubclass(value, BaseException) or hasattr(value, "_fields"):
        return value
    found = BUILTINS.get(value.__name__)
    if value.__module__ == "builtins" and found is not None:
        return found
    if _is_of_package(value.__module__):
        return value
    raise UnfollowedError(f"the class {value.__name__}")


def _function(value: Any) -> Any:
    """Return what a function stands for."""
    if isinstance(value, np.ufunc):
        return getattr(NUMPY, value.__name__)
    op = getattr(value, "tapegrad_op", None) or op_of_function(value)
    if op is not None:
        return per_element(op.name, len(op.arguments))
    if isinstance(value, Dispatcher) and not hasattr(value, "_tapegrad_transform"):
        return _dispatcher(value)
    module = getattr(value, "__module__", None) or ""
    if module.partition(".")[0] == "numpy":
        return getattr(NUMPY, value.__name__)
    if isinstance(value, types.BuiltinFunctionType):
        names = {"math": MATH, "_operator": operator}
        if module in names:
            return getattr(names[module], value.__name__)
        if module == "builtins":
            return BUILTINS[value.__name__]
    if isinstance(value, types.FunctionType) and module.startswith("tapegrad.transform."):
        return interpreted(value)
    raise UnfollowedError(f"{getattr(value, '__name__', value)}, a {type(value).__name__}")


def _dispatcher(value: Dispatcher) -> Callable[..., Any]:
    """Return what stands for a compiled function."""
    function = value.py_func
    # those of the examples in docstrings are a user's
    if _is_of_package(function.__module__ or "") and not hasattr(value, "defvjp"):
        return interpreted(function)
    has_rule = getattr(value, "rule_vjp", None) or getattr(value, "rule_jvp", None)
    return of_user(function, has_slope=not has_rule)


def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Python that computes with the numbers of a field."""
    made: list[types.FunctionType] = []

    def call(*args: Any, **kws: Any) -> Any:
        if not made:
            known = {"__builtins__": BUILTINS}
            for name in names_of(function.__code__) & function.__globals__.keys():
                known[name] = meaning_if_called(function.__globals__[name])
            given = [cell.cell_contents for cell in function.__closure__ or ()]
            cells = [types.CellType(meaning_if_called(value)) for value in given]
            code = with_numbers(function.__code__)
            of_code = code, known, function.__name__, function.__defaults__
            made.append(types.FunctionType(*of_code, tuple(cells)))
        return made[0](*args, **kws)

    return call


def of_user(function: types.FunctionType, has_slope: bool = True) -> Callable[..., Any]:
    """Return a user's function, as its source says, that computes with the numbers of a field.

    Unlike those of the package, it may loop for ever for random arguments. If the user has declared
    its derivative, its slope is another one.
    """
    made: list[Callable[..., Any]] = []

    def call(*args: Any, **kws: Any) -> Any:
        if not has_slope and RUN.slopes is not None:
            raise UnfollowedError(f"{function.__name__}, whose derivative is declared")
        if not made:
            source = Source(function)
            tree = copied(source.tree)
            tree.args.defaults = []
            found = defined([tree], source.lookup)[tree.name]
            found.__defaults__ = tuple(map(meaning, function.__defaults__ or ()))
            made.append(found)
        return made[0](*args, **kws)

    return call


def defined(functions: list[ast.FunctionDef], lookup: Callable[[str], Any]) -> dict[str, Any]:
    """Return the names of a module whose functions compute with the numbers of a field.

    Parameters
    ----------
    functions
        The functions, which are changed.
    lookup
        Returns what another name refers to, `MISSING` if it is unknown.
    """
    for function in functions:
        function.decorator_list = []
        _count_iterations(function.body)
    constants = _Constants()
    tree = constants.visit(ast.Module([*functions], []))
    code = compile(tree, "<compared>", "exec")
    found = {"__builtins__": BUILTINS, _TICK: RUN.tick, **constants.numbers}
    for name in names_of(code) - {function.name for function in functions} - found.keys():
        value = lookup(name)
        if value is not MISSING and value is not getattr(builtins, name, MISSING):
            found[name] = meaning_if_called(value)
    exec(code, found)
    return found


class _Constants(ast.NodeTransformer):
    """Replaces floats by names of numbers of a field, so that Python computes nothing with them."""

    def __init__(self) -> None:
        self.numbers: dict[str, Any] = {}

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, (float, complex)):
            return node
        name = f"_number{len(self.numbers)}"
        self.numbers[name] = number(node.value)
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _count_iterations(body: list[ast.stmt]) -> None:
    """Let loops count their iterations, since random numbers may lead to endless ones."""
    for statement in body:
        if is_loop(statement):
            function = ast.Name(_TICK, ast.Load())
            call = ast.Call(function, [], [])
            counted = ast.Expr(call)
            for node in (function, call, counted):
                ast.copy_location(node, statement)
            statement.body.insert(0, counted)
        for block in ("body", "orelse", "handlers"):
            _count_iterations(getattr(statement, block, []))


def names_of(code: types.CodeType) -> set[str]:
    """Return the names that code reads, with those of functions in it."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(names_of, inner))


def with_numbers(code: types.CodeType) -> types.CodeType:
    """Return code with numbers of the field as constants in place of floats."""

    def constant(value: Any) -> Any:
        if isinstance(value, types.CodeType):
            return with_numbers(value)
        if isinstance(value, tuple):
            return tuple(map(constant, value))
        return number(value) if isinstance(value, (float, complex)) else value

    return code.replace(co_consts=tuple(map(constant, code.co_consts)))
