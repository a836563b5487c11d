"""Calls, from compiled functions, of functions of tensors that numba does not compile.

These are functions of the package, and those that `tapegrad.jit` made.

They run in Python, and so do their derivatives of any order, which are those of the ops: the call
``call_eager(path, *values)`` computes the function or derivative that `path` denotes. `values` are
the numbers and arrays among the arguments; other arguments are constants and part of the path.
Results are new arrays, even those of functions that otherwise return views.

=================  ====================================  =======================
path               values                                result
=================  ====================================  =======================
function           arguments                             the value
path, ``vjp`` k    those of path, its result, cotangent  cotangent of value k
path, ``jvp`` k    those of path, its result, tangent    tangent by that of k
=================  ====================================  =======================
"""

from __future__ import annotations

import ast
import functools
import inspect
import uuid
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing.templates import make_overload_template
from numba.extending import overload
from numba.np.numpy_support import as_dtype

from tapegrad.autograd import grad
from tapegrad.autograd.grad_mode import inference_mode
from tapegrad.eager.creation import tensor
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import NAMESPACES
from tapegrad.eager.tensor import Tensor
from tapegrad.kernels import native
from tapegrad.ops.shape import astype, unbroadcast
from tapegrad.ops.table.array_kinds import ArrayOp
from tapegrad.ops.table.composite import declarations
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.transform.errors import TransformError
from tapegrad.transform.kinds import is_array, is_real

Kind = tuple[str, int]  # the dtype and the number of dimensions of a value
Kinds = tuple[Kind, ...]


class _Other(NamedTuple):
    """A function that is not of the package.

    Parameters
    ----------
    function
        What is called.
    plain
        What is called with example arrays, to find the type of the result.
    known
        Returns the dtype and number of dimensions of the result for those of the arguments, None if
        they are not known.
    """

    function: Callable[..., Any]
    plain: Callable[..., Any]
    known: Callable[[Kinds], Kind | None]


_VARIABLE = object()  # stands for an argument that is a value; a path contains only its name
_EXTENTS = (3, 2, 4, 1)  # of the example arrays that determine the type of a result
_OTHERS, _PLAIN = "others", "plain"  # namespaces of functions that are not of the package
_others: dict[str, _Other] = {}  # by names that no other process has


# -- in Python -------------------------------------------------------------------------------------


@functools.cache
def _function(path: str) -> Callable[..., Any]:
    """Return the function of tensors that a path denotes."""
    *inner, last = ast.literal_eval(path)
    if inner:
        mode, number = last
        of = _function(repr(tuple(inner)))
        if mode == "jvp":
            return _jvp(of, number)
        return _by_rule(inner[0], number, _vjp(of, number)) if len(inner) == 1 else _vjp(of, number)
    dotted, arguments = last
    called = _called(dotted)

    def function(*values: Any) -> Any:
        given = iter(values)
        named = {n: constant[0] if constant else next(given) for n, *constant in arguments}
        first = next(iter(named))  # positional, so that a list or a number becomes a tensor
        return called(named.pop(first), **named)

    return function


def _called(dotted: str) -> Callable[..., Any]:
    """Return the function that a name in a path denotes."""
    namespace, _, short = dotted.rpartition(".")
    if namespace not in (_OTHERS, _PLAIN):
        return NAMESPACES[namespace][short]
    if short not in _others:
        raise RuntimeError(
            "machine code on disk calls a function that tg.jit made in another process; leave out "
            "cache=True where a numba function calls it"
        )
    return _others[short].function if namespace == _OTHERS else _others[short].plain


def is_of_package(path: str) -> bool:
    """Whether a path denotes a function of the package, or a derivative of one."""
    (dotted, _), *_ = ast.literal_eval(path)
    return dotted.partition(".")[0] not in (_OTHERS, _PLAIN)


def _with_leaf(values: list[Any], number: int) -> list[Any]:
    """Return values, one of them as a tensor that requires gradients."""
    found = values[number]
    leaf = found if found.requires_grad else found.detach().requires_grad_()
    return [*values[:number], leaf, *values[number + 1 :]]


def _zeros(like: Tensor) -> Tensor:
    """Return zeros of the shape and dtype of a tensor."""
    return tensor(np.zeros(like.shape, like.dtype))


def _gradient(value: Any, leaf: Tensor, g: Tensor, given: tuple[Any, ...]) -> Any:
    """Return a gradient, which is recorded if one of the given values requires gradients."""
    if not value.requires_grad:
        return _zeros(leaf)
    if g.dtype.kind == "c" and value.dtype.kind == "f":  # compiled code has it as complex
        g = NAMESPACES[""]["real"](g)
    recorded = any(isinstance(v, Tensor) and v.requires_grad for v in given)
    return grad(value, leaf, g, create_graph=recorded, materialize_grads=True)[0]


def _vjp(of: Callable[..., Any], number: int) -> Callable[..., Any]:
    def function(*given: Any) -> Any:
        *values, _, g = given
        values = _with_leaf(values, number)
        return _gradient(of(*values), values[number], g, given)

    return function


def _by_rule(call: Any, number: int, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the vjp of a call; that of an op, of constants, does not compute the value again.

    Parameters
    ----------
    call
        The name of the function, and its arguments.
    number
        The value whose cotangent is computed.
    otherwise
        The vjp of all other calls.
    """
    dotted, arguments = call
    op = _ops_of_arrays().get(dotted)
    names = [name for name, *constant in arguments if not constant]
    if op is None or names[number] not in op.rules or not {*names} <= {*op.arguments}:
        return otherwise
    constants = op.parameters | {name: constant[0] for name, *constant in arguments if constant}

    def function(*given: Any) -> Any:
        if not all(isinstance(value, Tensor) and _is_constant(value) for value in given):
            return otherwise(*given)
        *values, z, g = given
        shapes = {f"{name}_shape": value.shape for name, value in zip(names, values, strict=True)}
        read = constants | shapes | dict(zip(names, values, strict=True)) | {"z": z}
        found = op.cotangent(names[number], g, read)
        return astype(unbroadcast(found, values[number].shape), values[number].dtype)

    return function


def _is_constant(value: Tensor) -> bool:
    return not value.requires_grad and value.dtype.kind == "f"


@functools.cache
def _ops_of_arrays() -> dict[str, ArrayOp]:
    """Return the ops whose rules are functions of arrays, by public names."""
    ops = (op for op in declarations().values() if isinstance(op, ArrayOp))
    return {name: op for op in ops for name in op.names}


def _jvp(of: Callable[..., Any], number: int) -> Callable[..., Any]:
    def function(*given: Any) -> Any:
        *values, z, t = given
        values = _with_leaf(values, number)
        # the vjp is linear in the cotangent: its vjp is the jvp
        u = _zeros(z).requires_grad_()
        return _gradient(_gradient(of(*values), values[number], u, (u,)), u, t, given)

    return function


class _Differentiated:
    """The transform that ops see: converting a tensor to a number is an error."""

    name = "the derivative of a compiled function"
    outer = None
    has_inner = False

    @staticmethod
    def has_made(own: Any) -> bool:
        return True


_DIFFERENTIATED = _Differentiated()


def compute(path: str, dtypes: tuple[str, ...], values: tuple[Any, ...]) -> np.ndarray:
    """Compute what a path denotes, as a new contiguous array.

    Numbers of all types arrive as Python numbers, so `dtypes` gives their dtypes.
    """

    def run() -> np.ndarray:
        MODE.thread.transform = _DIFFERENTIATED
        MODE.thread.items_are_values = True  # compiled code is of arrays
        given = [
            tensor(np.asarray(value, dtype)) if dtype.startswith(("float", "complex")) else value
            for dtype, value in zip(dtypes, values, strict=True)
        ]
        found = _function(path)(*given)
        if any(isinstance(value, Tensor) and value._version for value in given):
            raise TypeError("it writes to an argument, here a copy; let it return a new array")
        if isinstance(found, (tuple, list)):
            raise TypeError("several results; call NumPy's function, or one of its own for each")
        return found.detach().numpy() if isinstance(found, Tensor) else np.asarray(found)

    with inference_mode(False):  # independent of the caller's modes
        return np.array(MODE.with_recording(True, run), order="C")


def _computed_as(wanted: Kind, path: str, dtypes: tuple[str, ...], values: Any) -> np.ndarray:
    """Compute what a path denotes, of the dtype and dimensions for which code was compiled.

    Raises
    ------
    TransformError
        If they depend on values, as for the roots of polynomials, which may be complex.
    """
    found = compute(path, dtypes, values)
    dtype, ndim = wanted
    if found.ndim != ndim or not np.can_cast(found.dtype, dtype):
        (dotted, _), *_ = ast.literal_eval(path)
        raise TransformError(
            f"tapegrad.{_label(dotted)} returned {found.dtype} with {found.ndim} axes, where code "
            f"is compiled for {dtype} with {ndim}, as for other values; pass complex numbers, or "
            "call it outside of compiled code"
        )
    return found.astype(dtype, copy=False)


# -- in compiled code ------------------------------------------------------------------------------


def call_eager(path: str, *values: Any) -> Any:
    """Call a function of the package, or a derivative, from compiled code (see this module)."""
    return compute(path, tuple(str(np.asarray(value).dtype) for value in values), values)[()]


@overload(call_eager, prefer_literal=True)
def _call_eager(path: Any, *values: Any) -> Any:
    if not isinstance(path, types.StringLiteral):
        return None
    text = path.literal_value
    kinds = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    kind = _result(text, tuple(kinds))
    dtypes = tuple(map(_dtype_of, kinds))
    wanted = _dtype_of(kind), getattr(kind, "ndim", 0)
    if is_array(kind):

        def of_array(path: Any, *values: Any) -> Any:
            with numba.objmode(found=kind):
                found = _computed_as(wanted, text, dtypes, values)
            return found  # noqa: RET504 (numba wants a name for what leaves the block)

        return of_array
    whole = types.Array(kind, 1, "C")

    def of_number(path: Any, *values: Any) -> Any:
        with numba.objmode(found=whole):
            found = _computed_as(wanted, text, dtypes, values).reshape(1)
        return found[0]

    return of_number


def _result(path: str, kinds: tuple[Any, ...]) -> Any:
    """Return the numba type of the result of a path."""
    *inner, last = ast.literal_eval(path)
    if not inner:
        return _of_value(path, kinds)
    mode, number = last
    kind = kinds[number] if mode == "vjp" else kinds[-2]
    kind = types.unliteral(kind)
    return types.Array(kind.dtype, kind.ndim, "C") if is_array(kind) else kind


def _of_value(path: str, kinds: tuple[Any, ...]) -> Any:
    """Return the type of a value, determined by evaluating the function for small arrays."""
    ((dotted, arguments),) = ast.literal_eval(path)
    namespace, _, short = dotted.rpartition(".")
    if namespace == _OTHERS:
        found = _others[short].known(tuple((_dtype_of(k), getattr(k, "ndim", 0)) for k in kinds))
        if found is not None:
            return _new(np.dtype(found[0]), found[1])
        path = repr(((f"{_PLAIN}.{short}", arguments),))
    for extent in _EXTENTS:
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                examples = tuple(_example(kind, extent) for kind in kinds)
                value = compute(path, tuple(map(_dtype_of, kinds)), examples)
        except Exception as error:
            if extent == _EXTENTS[-1]:
                shown = ", ".join(map(str, kinds))
                said = f"tapegrad.{_label(dotted)} of ({shown}): {error}"
                if namespace == _OTHERS:
                    said += "; call it with such arrays before: then its result is known"
                raise TypingError(said) from error
            continue
        return _new(value.dtype, value.ndim)
    return None


def _new(dtype: np.dtype[Any], ndim: int) -> Any:
    """Return the type of a number or a new array."""
    kind = numba.from_dtype(dtype)
    return types.Array(kind, ndim, "C") if ndim else kind


def _label(dotted: str) -> str:
    """Return the name of a function in errors."""
    namespace, _, short = dotted.rpartition(".")
    if namespace != _OTHERS:
        return dotted
    name = getattr(_others[short].plain, "__name__", "")
    return f"jit.{name}" if name.isidentifier() else "jit"


def _dtype_of(kind: Any) -> str:
    """Return the name of the dtype of a number or array."""
    kind = types.unliteral(kind)
    return str(as_dtype(kind.dtype if is_array(kind) else kind))


def _example(kind: Any, extent: int) -> Any:
    """Return a value of a type at which most functions are defined."""
    kind, dtype = types.unliteral(kind), np.dtype(_dtype_of(kind))
    if not is_array(kind):
        return dtype.type(0.5 if dtype.kind in "fc" else 0)
    numbers = np.full((extent,) * kind.ndim, 0.1 if dtype.kind in "fc" else 0, dtype)
    return (
        numbers + np.eye(extent, dtype=dtype) * (dtype.kind in "fc") if kind.ndim > 1 else numbers
    )


# -- which functions -------------------------------------------------------------------------------


def register() -> None:
    """Let numba compile calls of functions of numbers and arrays that it does not know."""
    for declaration in declarations().values():
        is_known = isinstance(declaration, Elementwise) and declaration.formula is not None
        if is_known or getattr(declaration, "of_list", False):
            continue
        for dotted in declaration.names:
            namespace, _, short = dotted.rpartition(".")
            function: Any = NAMESPACES[namespace][short]
            typing = _Typing(dotted, getattr(declaration, "declaration", declaration))
            overload(function, strict=False, prefer_literal=True)(typing.implementation)
            function.tapegrad_overloaded = typing


def typing_of(
    function: Callable[..., Any],
    plain: Callable[..., Any],
    known: Callable[[Kinds], Kind | None],
) -> _Typing:
    """Return what lets numba compile calls of a function that is not of the package.

    Parameters
    ----------
    function, plain, known
        See `_Other`.
    """
    short = uuid.uuid4().hex
    _others[short] = _Other(function, plain, known)
    return _Typing(f"{_OTHERS}.{short}", plain)


def instead_of(text: str) -> str | None:
    """Return the name of the function of the package that replaces a NumPy function, or None."""
    namespace, _, short = text.removeprefix("np.").rpartition(".")
    typing = getattr(NAMESPACES.get(namespace, {}).get(short), "tapegrad_overloaded", None)
    known = typing is not None and typing.parameters is not None
    return f"tg{text.removeprefix('np')}" if known else None


class _Typing:
    """Provides numba with the implementation of a function for argument types."""

    def __init__(self, dotted: str, declaration: Any) -> None:
        self.dotted = dotted
        self.declaration = declaration

    @property
    def label(self) -> str:
        """The name of the function in errors."""
        return _label(self.dotted)

    @functools.cached_property
    def numba_type(self) -> types.Function:
        """The type of the function in numba, for those that are not known by name."""
        options = {"strict": False, "inline": "never", "prefer_literal": True}
        return types.Function(make_overload_template(self, self.implementation, {}, **options))

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.declaration)

    @functools.cached_property
    def parameters(self) -> str | None:
        """The text of the parameters with defaults, None if numba does not support them."""
        found = []
        for parameter in self.signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                return None
            default = parameter.default
            if default is parameter.empty:
                found.append(parameter.name)
            elif _is_plain(default):
                found.append(f"{parameter.name}={default!r}")
            else:
                return None
        return ", ".join(found)

    def implementation(self, *given: Any, **named: Any) -> Any:
        """Return the implementation for argument types, None if there is none."""
        if self.parameters is None:
            return None
        bound = self.signature.bind(*given, **named)
        bound.apply_defaults()
        constants = {name: _static(kind) for name, kind in bound.arguments.items()}
        values = [name for name, value in constants.items() if value is _VARIABLE]
        arguments = tuple(
            (name,) if value is _VARIABLE else (name, value) for name, value in constants.items()
        )
        kinds = [types.unliteral(bound.arguments[name]) for name in values]
        if not any(map(is_real, kinds)):
            return None
        if not all(isinstance(kind, (types.Number, types.Array)) for kind in kinds):
            return None
        path = repr(((self.dotted, arguments),))
        name = self.dotted.replace(".", "_")
        head = f"def {name}({self.parameters}):"
        text = f"{head}\n    return call_eager({path!r}, {', '.join(values)})\n"
        found = native.compile_source(native.fingerprint(text.encode()), text, name)
        found.__globals__["call_eager"] = call_eager
        return found


def _is_plain(value: Any) -> bool:
    """Whether the text of a value can be a default in generated code."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (type(None), bool, int, float, str))


def _static(kind: Any) -> Any:
    """Return the only value of a type, `_VARIABLE` if it has several."""
    if isinstance(kind, types.Omitted):
        return kind.value
    if isinstance(kind, types.Literal):
        return kind.literal_value
    if isinstance(kind, types.NoneType):
        return None
    if isinstance(kind, types.BaseTuple):
        items = tuple(map(_static, kind))
        return _VARIABLE if any(item is _VARIABLE for item in items) else items
    return _VARIABLE if isinstance(kind, types.Type) else kind
