"""Stand-ins: numba functions that replace callees that are not numba functions with a source.

A call of a numba ufunc becomes a loop that calls its Python function, and a call of a plain
function becomes a call of the implementation declared for it. Both are numba functions, which are
differentiated like the user's.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import numba
import numpy as np
from numba.core import types as kinds_of
from numba.core.ccallback import CFunc
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.np.numpy_support import as_dtype
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc
from numba.np.ufunc.sigparse import parse_signature

from tapegrad.kernels import native
from tapegrad.transform.cache.fingerprint import implementations_of
from tapegrad.transform.deferred import runtime
from tapegrad.transform.errors import TransformError
from tapegrad.transform.kept import kept_with_function
from tapegrad.transform.kinds import is_array
from tapegrad.transform.syntax import identifier_of

_NUMBERS = (kinds_of.Number, kinds_of.Boolean)
_made: weakref.WeakKeyDictionary[types.FunctionType, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def has_stand_in(callee: Any) -> bool:
    """Whether a callee is of a kind that stand-ins exist for."""
    if isinstance(callee, DUFunc):
        return not hasattr(callee, "tapegrad_op")
    if isinstance(callee, (GUFunc, CFunc)):
        return True
    is_function = isinstance(callee, types.FunctionType) or hasattr(callee, "tapegrad_overloaded")
    return is_function and bool(implementations_of(callee))


@functools.cache
def stand_in(callee: Any, kinds: tuple[Any, ...], names: tuple[str, ...] = ()) -> Any:
    """Return the numba function that is equivalent to a callee.

    Parameters
    ----------
    callee
        The callee.
    kinds
        numba types of the arguments.
    names
        Names of the last arguments, if they are passed by name.

    Raises
    ------
    TransformError
        If there is none; its message is a noun phrase.
    """
    if isinstance(callee, DUFunc):
        found = _elementwise(callee, kinds)
    elif isinstance(callee, GUFunc):
        found = _generalized(callee, kinds)
    elif isinstance(callee, CFunc):
        found = _callback(callee, kinds)
    else:
        found = _implementation(callee, kinds, names)
    _made[found.py_func] = (callee, kinds, names)
    return found


def made_for(function: types.FunctionType) -> tuple[Any, ...] | None:
    """Return the arguments of `stand_in` that a Python function was made from, or None."""
    return _made.get(function)


def core_of(callee: Any) -> Any:
    """Return the Python function of a ufunc or callback as a numba function, or None."""
    if isinstance(callee, CFunc):
        return _python_function(callee)
    return _core(callee._dispatcher) if isinstance(callee, (DUFunc, GUFunc)) else None


@kept_with_function
def _python_function(callback: CFunc) -> Any:
    return numba.njit(callback._pyfunc)


# -- ufuncs ---------------------------------------------------------------------------------------


def _elementwise(ufunc: DUFunc, kinds: tuple[Any, ...]) -> Any:
    """Return the loop of a function made with ``numba.vectorize``."""
    name = ufunc.__name__
    if not all(is_array(kind) or isinstance(kind, _NUMBERS) for kind in kinds):
        raise TransformError(f"a call of {name} for {_shown(kinds)}")
    given = kinds[: ufunc.nin]
    loop, _ = ufunc.find_ewise_function(tuple(map(_element, given)))
    if loop is None:
        raise TransformError(f"a call of {name} for {_shown(kinds)}")
    core = _core(ufunc._dispatcher)
    if kinds == loop.args and not any(map(is_array, kinds)) and not ufunc._frozen:
        return core
    operands = [f"x{k}" for k in range(ufunc.nin)]
    parameters = operands + ["out"] * (len(kinds) - ufunc.nin)
    ndim = max(kind.ndim if is_array(kind) else 0 for kind in kinds)
    entry = f"{identifier_of(ufunc._dispatcher.py_func)}_elementwise"
    lines = [f"def {entry}({', '.join(parameters)}):"]
    items = []
    if "out" in parameters:
        lines += [f"    n{axis} = out.shape[{axis}]" for axis in range(ndim)]
    else:
        lines += _extents(operands, given, ndim)
    for operand, kind, wanted in zip(operands, given, loop.args, strict=True):
        item = operand
        if is_array(kind):
            places = []
            for axis in range(kind.ndim):
                turn = ndim - kind.ndim + axis
                lines.append(
                    f"    {operand}_{axis} = runtime.stride({operand}.shape[{axis}], n{turn})"
                )
                places.append(f"i{turn} * {operand}_{axis}")
            item = f"{operand}[{', '.join(places) or '()'}]"
        items.append(item if _element(kind) == wanted else f"{_name(wanted)}({item})")
    call = f"core({', '.join(items)})"
    if ndim == 0:
        lines.append(f"    return {_name(loop.return_type)}({call})")
        return _compiled(entry, lines, {"core": core})
    layouts = [kind.layout for kind in given if is_array(kind)]
    if "out" not in parameters:
        lines.append(f"    out = {_empty(ndim, loop.return_type, layouts)}")
    lines += _loops(ndim, layouts.count("F") > layouts.count("C"))
    indices = ", ".join(f"i{axis}" for axis in range(ndim))
    lines.append(f"{'    ' * (ndim + 1)}out[{indices}] = {call}")
    lines.append("    return out")
    return _compiled(entry, lines, {"core": core})


def _generalized(ufunc: GUFunc, kinds: tuple[Any, ...]) -> Any:
    """Return the loop of a function made with ``numba.guvectorize``."""
    name = ufunc.__name__
    inputs, outputs = parse_signature(ufunc.gufunc_builder.signature)
    cores = [*inputs, *outputs]
    elements = tuple(map(_element, kinds))
    loop, _ = ufunc.find_ewise_function(elements)
    if loop is None or len(kinds) != len(cores):
        raise TransformError(f"a call of {name} for {_shown(kinds)}")
    ndim = kinds[len(inputs)].ndim - len(outputs[0])
    entry = f"{identifier_of(ufunc._dispatcher.py_func)}_loops"
    lines = [f"def {entry}({', '.join(f'x{k}' for k in range(len(kinds)))}):"]
    lines += [f"    n{axis} = x{len(inputs)}.shape[{axis}]" for axis in range(ndim)]
    items = []
    for number, (kind, core, wanted) in enumerate(zip(kinds, cores, loop.args, strict=True)):
        turns = kind.ndim - len(core) if is_array(kind) else 0
        is_output = number >= len(inputs)
        if is_array(wanted) != (is_output or bool(core)) or turns not in (0, ndim):
            raise TransformError(f"a call of {name} for {_shown(kinds)}")
        if (is_output or core) and wanted.dtype != kind.dtype:
            raise TransformError(
                f"a call of {name}, compiled for {_shown(loop.args)}, for {_shown(kinds)}"
            )
        if is_output and not kind.ndim:
            raise TransformError(f"a call of {name} with a result without dimensions")
        lines += [
            f"    runtime.check_extent(x{number}.shape[{axis}], n{axis})" for axis in range(turns)
        ]
        places = [f"i{axis}" for axis in range(turns)]
        if is_output and not core:  # the output is a one-element array
            places[-1:] = [f"i{ndim - 1} : i{ndim - 1} + 1"]
        item = f"x{number}[{', '.join(places)}]" if places else f"x{number}"
        converts = not is_output and not core and _element(kind) != wanted
        items.append(f"{_name(wanted)}({item})" if converts else item)
    lines += _matches(kinds, cores)
    layouts = [kind.layout for kind in kinds if is_array(kind)]
    lines += _loops(ndim, layouts.count("F") > layouts.count("C"))
    lines.append(f"{'    ' * (ndim + 1)}core({', '.join(items)})")
    return _compiled(entry, lines, {"core": _core(ufunc._dispatcher)})


def _callback(callback: CFunc, kinds: tuple[Any, ...]) -> Any:
    """Return the function that a C callback was made from, with the declared conversions."""
    name, declared = callback.__name__, callback._sig
    if len(kinds) != len(declared.args) or not all(isinstance(k, _NUMBERS) for k in declared.args):
        raise TransformError(f"a call of {name} for {_shown(kinds)}")
    operands = [f"x{k}" for k in range(len(kinds))]
    items = [
        operand if kind == wanted else f"{_name(wanted)}({operand})"
        for operand, kind, wanted in zip(operands, kinds, declared.args, strict=True)
    ]
    entry = f"{identifier_of(callback._pyfunc)}_converted"
    lines = [f"def {entry}({', '.join(operands)}):"]
    lines.append(f"    return {_name(declared.return_type)}(core({', '.join(items)}))")
    return _compiled(entry, lines, {"core": core_of(callback)})


def _matches(kinds: tuple[Any, ...], cores: list[Any]) -> list[str]:
    """Return the lines that check the core dimensions of arrays that share them."""
    found = []
    for one, first in enumerate(cores):
        for two, second in list(enumerate(cores))[one + 1 :]:
            if first != second or not (is_array(kinds[one]) and is_array(kinds[two])):
                continue
            found += [
                f"    runtime.check_extent(x{one}.shape[{kinds[one].ndim + axis}], "
                f"x{two}.shape[{kinds[two].ndim + axis}])"
                for axis in range(-len(first), 0)
            ]
    return found


def _extents(operands: list[str], kinds: tuple[Any, ...], ndim: int) -> list[str]:
    """Return the lines that compute the broadcast shape of operands."""
    found = []
    for turn in range(ndim):
        text = ""
        for operand, kind in zip(operands, kinds, strict=True):
            axis = turn - ndim + (kind.ndim if is_array(kind) else 0)
            if axis >= 0:
                size = f"{operand}.shape[{axis}]"
                text = f"runtime.broadcast({text}, {size})" if text else size
        found.append(f"    n{turn} = {text}")
    return found


def _loops(ndim: int, reversed_order: bool) -> list[str]:
    """Return the heads of the loops over all elements, in numba's order."""
    order = range(ndim - 1, -1, -1) if reversed_order else range(ndim)
    return [
        f"{'    ' * (depth + 1)}for i{axis} in range(n{axis}):" for depth, axis in enumerate(order)
    ]


def _empty(ndim: int, dtype: Any, layouts: list[str]) -> str:
    """Return the text of a new array, in the layout of numba's results."""
    sizes = [f"n{axis}" for axis in range(ndim)]
    if "C" not in layouts and "F" in layouts and ndim > 1:
        return f"np.empty(({', '.join(sizes[::-1])},), {_name(dtype)}).T"
    return f"np.empty(({', '.join(sizes)},), {_name(dtype)})"


def _element(kind: Any) -> Any:
    return kind.dtype if is_array(kind) else kind


def _name(kind: Any) -> str:
    """Return the name of the NumPy type of a numba type."""
    found = as_dtype(kind).type
    return f"np.{found.__name__.rstrip('_')}{'_' if found is np.bool_ else ''}"


def _shown(kinds: Any) -> str:
    return f"({', '.join(map(str, kinds))})"


@kept_with_function
def _core(dispatcher: Any) -> Any:
    """Return the Python function of a ufunc as a numba function, with the ufunc's options."""
    given = dispatcher.targetoptions
    return numba.njit(
        error_model="numpy", **{k: given[k] for k in ("boundscheck", "fastmath") if given.get(k)}
    )(dispatcher.py_func)


def _compiled(name: str, lines: list[str], scope: dict[str, Any]) -> Any:
    """Return the numba function defined by some lines of source."""
    text = "\n".join(lines) + "\n"
    identity = repr([(key, id(value)) for key, value in scope.items()])
    key = native.fingerprint(text.encode(), identity.encode())
    function = native.compile_source(key, text, name)
    function.__globals__.update(scope, np=np, runtime=runtime)
    return numba.njit(error_model="numpy")(function)


# -- functions with implementations ---------------------------------------------------------------


def _implementation(function: Any, kinds: tuple[Any, ...], names: tuple[str, ...]) -> Any:
    """Return the implementation declared for a plain function and some types."""
    context = cpu_target.typing_context
    plain = tuple(kinds_of.unliteral(kind) for kind in kinds)
    found = []
    for template in implementations_of(function):
        typed = kinds if template.prefer_literal else plain
        given = typed[: len(kinds) - len(names)]
        named = dict(zip(names, typed[len(given) :], strict=True))
        try:
            made, _ = template(context)._get_impl(given, named)
        except NumbaError:
            continue
        if made is not None:
            found.append((made, given, named))
    if len(found) > 1:
        found = [candidate for candidate in found if _types(*candidate)]
    if not found:
        raise TransformError(f"a call of {function.__name__} for {_shown(kinds)}")
    return found[0][0]


def _types(made: Any, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether an implementation compiles for some types."""
    try:
        made.get_call_template(given, named)
    except NumbaError:
        return False
    return True
