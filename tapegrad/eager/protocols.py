"""NumPy's protocols: dispatch of NumPy functions that are called with tensors."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from tapegrad.eager import inplace, numpy_calls
from tapegrad.eager.batched import holds_batched
from tapegrad.eager.creation import CREATION, as_tensor, linspace
from tapegrad.eager.dispatch import unwrap
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import OfTensors
from tapegrad.eager.numeric import ALIASES, FUNCTIONS, NAMESPACES, PASSIVE, wrap_result
from tapegrad.eager.numpy_calls import PLANS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import is_recording
from tapegrad.eager.traced_calls import call, is_unknown
from tapegrad.eager.values import as_array_without_axes
from tapegrad.eager.ways_out import of_ufunc
from tapegrad.ops import differences, polynomials, rearranging, statistics
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE, dtype_of, refuse_masked

UFUNCS: dict[Any, str] = {
    op.function: name
    for name, op in TABLE.items()
    if isinstance(op, Elementwise)
    and isinstance(op.function, np.ufunc)
    and not name.startswith("at_")
}
UFUNCS |= {np.matmul: "matmul"}
# composite functions and aliases
UFUNCS |= {
    getattr(np, name): name
    for name in (*COMPOSITES, *ALIASES)
    if isinstance(getattr(np, name, None), np.ufunc) and getattr(np, name) not in UFUNCS
}
REDUCTIONS: dict[Any, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logaddexp: "logsumexp",
}
ACCUMULATIONS: dict[Any, str] = {
    np.add: "cumsum",
    np.multiply: "cumprod",
    np.maximum: "cummax",
    np.minimum: "cummin",
}

_MODULES_OF_REALS = {m.__name__ for m in (differences, polynomials, rearranging, statistics)}
_OF_REAL_NUMBERS = {
    name
    for name, composite in COMPOSITES.items()
    if composite.function.__module__ in _MODULES_OF_REALS
}

_FUNCTIONS_OF = {
    "numpy": NAMESPACES[""],
    "numpy.fft": NAMESPACES["fft"],
    "numpy.linalg": NAMESPACES["linalg"],
}

# NumPy functions that return no differentiable values
UNTRACED = {
    getattr(np, name)
    for name in (
        *PASSIVE,
        "shape", "ndim", "size", "result_type", "can_cast", "may_share_memory", "shares_memory",
        "iscomplexobj", "isrealobj", "min_scalar_type", "zeros_like", "ones_like", "empty_like",
        "array_repr", "array_str", "array2string", "savetxt", "save", "digitize", "isin", "lexsort",
        "argpartition", "argwhere", "flatnonzero", "array_equiv", "broadcast_shapes", "iscomplex",
        "isreal",
    )
    if hasattr(np, name)
} | {np.linalg.matrix_rank}  # fmt: skip


# functions that need no values
_OF_SHAPES = (np.shape, np.ndim, np.size, np.result_type, np.iscomplexobj, np.isrealobj)

_SCIPY_NAMES = {"psi": "digamma"}


def _requires_grad(values: Any) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            if value._is_tracked:
                return True
        elif type(value) in (list, tuple) and _requires_grad(value):
            return True
    return False


def _refuse(name: str, remedy: str) -> TypeError:
    return TypeError(f"{name} of a tensor that requires grad is not supported: {remedy}")


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Replace a NumPy ufunc with the op of the same name."""
    if method == "__call__" and ufunc.__name__ in PASSIVE and not kwargs and _lack_arrays(inputs):
        return FUNCTIONS[ufunc.__name__](*inputs)
    name = UFUNCS.get(ufunc) or _of_scipy(ufunc)
    if method == "at":
        return _ufunc_at(ufunc, *inputs)
    outs = kwargs.get("out", ())
    tracked = _requires_grad(inputs) or _requires_grad(outs)
    for out in outs:
        if isinstance(out, Tensor):
            inplace.check_writable(out, f"numpy.{ufunc.__name__} with `out`")
    remedy = "use detach() if the result needs no gradient"
    if method == "__call__" and name is not None and not set(kwargs) - {"out", "where"}:
        if kwargs and name in TABLE:
            where = kwargs.get("where", True)
            return inplace.apply_with_out(TABLE[name], inputs, outs or None, where)
        if not kwargs:
            return FUNCTIONS[name](*inputs)
    if method == "__call__" and name in COMPOSITES:
        if {*kwargs} <= {*inspect.signature(FUNCTIONS[name]).parameters}:
            return FUNCTIONS[name](*inputs, **kwargs)
        if {*kwargs} == {"out"} and len(outs) == 1 and isinstance(outs[0], Tensor):
            return inplace.write(outs[0], FUNCTIONS[name](*inputs), f"numpy.{name} with `out`")
    if method == "reduce" and ufunc in REDUCTIONS and not set(kwargs) - {"axis", "keepdims"}:
        kwargs.setdefault("axis", 0)
        return FUNCTIONS[REDUCTIONS[ufunc]](*inputs, **kwargs)
    if method == "accumulate" and ufunc in ACCUMULATIONS and not set(kwargs) - {"axis"}:
        kwargs.setdefault("axis", 0)
        return FUNCTIONS[ACCUMULATIONS[ufunc]](*inputs, **kwargs)
    if method == "outer" and name is not None and not kwargs:
        x, y = (value if isinstance(value, Tensor) else np.asarray(value) for value in inputs)
        spaced = FUNCTIONS["reshape"](x, (*x.shape, *(1,) * y.ndim))
        return FUNCTIONS[name](spaced, y)
    if tracked and not _is_passive(ufunc):
        what = f"numpy.{ufunc.__name__}"
        if name is None and method == "__call__" and ufunc.__name__ not in FUNCTIONS:
            raise _refuse(*of_ufunc(ufunc))
        if name is None and ufunc.__name__ in FUNCTIONS and method == "__call__":
            raise _refuse(what.replace("numpy.", ""), f"use tapegrad.{ufunc.__name__}")
        if method != "__call__":
            what += f".{method}"
        extra = set(kwargs) - {"out", "where"}
        if name is not None and extra:
            what += f" with {', '.join(sorted(extra))}"
        raise _refuse(what, remedy)
    plain = {key: unwrap(v) for key, v in kwargs.items() if key != "out"}
    if not outs:
        return wrap_result(getattr(ufunc, method)(*map(unwrap, inputs), **plain), *inputs)
    what = f"numpy.{ufunc.__name__} with `out`"
    if "where" in kwargs and _requires_grad(outs):
        raise _refuse(what + " and `where`", "the elements that stay would lose their history")
    copies = tuple(out._a.copy() if isinstance(out, Tensor) else out for out in outs)
    results = getattr(ufunc, method)(*map(unwrap, inputs), out=copies, **plain)
    for out, copied in zip(outs, copies, strict=True):
        if isinstance(out, Tensor):
            inplace.write(out, copied, what)
    if len(outs) == 1:
        return outs[0]
    return tuple(
        wrap_result(result, *inputs) if out is None else out
        for out, result in zip(outs, results, strict=True)
    )


def _of_scipy(ufunc: Any) -> str | None:
    """Return the name of our replacement for a ufunc of scipy.special, or None."""
    name = _SCIPY_NAMES.get(ufunc.__name__, ufunc.__name__)
    special = sys.modules.get("scipy.special") if name in NAMESPACES["special"] else None
    return name if getattr(special, ufunc.__name__, None) is ufunc else None


def _is_passive(ufunc: Any) -> bool:
    """Whether a ufunc returns only booleans or integers, which have no derivative."""
    results = {signature.rpartition(">")[2] for signature in ufunc.types}  # empty if not known yet
    of_numbers = results - {"O"}  # objects may be anything
    return bool(of_numbers) and all(set(result) <= set("?bhilqBHILQ") for result in of_numbers)


def _ufunc_at(ufunc: Any, target: Any, index: Any, *values: Any) -> None:
    if isinstance(target, Tensor) and ufunc is np.add:
        inplace.add_at(target, index, *values)
        return
    what = f"numpy.{ufunc.__name__}.at"
    if _requires_grad((target, *values)):
        remedy = "only numpy.add.at has a derivative; detach() what does not change results"
        if ufunc is np.add:
            what += " to an array"
            remedy = "add to a tensor, tg.zeros(shape) or tg.array(array)"
        raise _refuse(what, remedy)
    array = target._a.copy() if isinstance(target, Tensor) else target
    ufunc.at(array, inplace.unwrap_index(index), *map(unwrap, values))
    if isinstance(target, Tensor):
        inplace.write(target, array, what)


def _lack_arrays(values: Any) -> bool:
    """Whether one of some values is a tensor without an array: batched, or traced."""
    if not MODE.special:
        return False
    return holds_batched(values) or is_recording(values)


def _untraced_without_arrays(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function without differentiable values for tensors without an array."""
    name = func.__name__
    if name in PASSIVE:
        return FUNCTIONS[name](*args, **kwargs)
    if name in CREATION:
        return CREATION[name](*args, **kwargs)
    if func in _OF_SHAPES:  # an array of the shape and the dtype of an item will do
        return func(*[_blank(a) for a in args], **{k: _blank(v) for k, v in kwargs.items()})
    return _call_plain(func, f"numpy.{name}", args, kwargs)


def _blank(value: Any) -> Any:
    if isinstance(value, Tensor):
        return np.broadcast_to(np.zeros((), value.dtype), value.shape)
    return value


def array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Replace a NumPy function with the tapegrad function of the same name."""
    if func in UNTRACED and _lack_arrays((*args, *kwargs.values())):
        return _untraced_without_arrays(func, args, kwargs)
    module = getattr(func, "__module__", "") or ""
    name = getattr(func, "__name__", "")
    functions = _FUNCTIONS_OF.get(module, {})
    if name in functions and func not in UNTRACED:
        # of integers only, NumPy itself computes the result
        if name not in _OF_REAL_NUMBERS or any(map(_holds_reals, (*args, *kwargs.values()))):
            plan = PLANS.get(func)
            if plan is not None and len(args) <= plan.direct and plan.same.issuperset(kwargs):
                if name != "where" or len(args) > 1:
                    return functions[name](*args, **kwargs)
            return numpy_calls.call(func, functions[name], name, args, kwargs)
    if func in _DIRECT:
        return _DIRECT[func](*args, **kwargs)
    if func in _COPIED:
        _refuse_copied(func, args, kwargs)
    elif func not in UNTRACED and (_requires_grad(args) or _requires_grad(kwargs.values())):
        raise _refuse(
            f"{module}.{name}",
            "it has no derivative in tapegrad; write it with other functions, or detach() first",
        )
    return _call_plain(func, f"{module}.{name}", args, kwargs)


def _call_plain(func: Any, what: str, args: Any, kwargs: Any) -> Any:
    """Call a NumPy function on arrays; the memory of a tensor changes only through `write`."""
    target = kwargs.get("out", args[0] if func in _WRITING and args else None)
    if isinstance(target, Tensor):
        array = target._a.copy()
        given = [array if value is target else value for value in args]
        named = {key: array if value is target else value for key, value in kwargs.items()}
        func(*_read_only(given), **dict(zip(named, _read_only(named.values()), strict=True)))
        inplace.write(target, array, what)
        return target if "out" in kwargs else None
    try:
        named = dict(zip(kwargs, _read_only(kwargs.values()), strict=True))
        found = _own_memory(func(*_read_only(args), **named))
        result = wrap_result(found, *args, *kwargs.values())
        return as_array_without_axes(result) if isinstance(found, np.ndarray) else result
    except ValueError as error:
        if "read-only" in str(error):
            raise TypeError(
                f"{what} writes to a tensor, which is not supported: let it write to an array, "
                "t.detach().numpy().copy(), and assign the result: t[...] = array"
            ) from error
        raise


def _holds_reals(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_holds_reals, value))
    return getattr(value, "dtype", np.dtype(int)).kind in "fc"


def _refuse_copied(func: Any, args: Any, kwargs: Any) -> None:
    """Raise if a function would copy a recorded value into its result without its history."""
    parameter, position, remedy = _COPIED[func]
    value = args[position] if position < len(args) else kwargs.get(parameter)
    if _requires_grad((value,)):
        raise _refuse(f"numpy.{func.__name__} with the `{parameter}`", remedy)


def _own_memory(result: Any) -> Any:
    """Copy arrays that are views: a view of a tensor that tapegrad does not know has no history."""
    if isinstance(result, np.ndarray):
        return result if result.base is None else result.copy()
    if type(result) in (list, tuple):
        return type(result)(map(_own_memory, result))
    return result


def _read_only(values: Any) -> list[Any]:
    """Return values with arrays that cannot be written to in place of tensors."""

    def shown(value: Any) -> Any:
        if isinstance(value, Tensor):
            array = value._a.view()
            array.flags.writeable = False
            return array
        if type(value) in (list, tuple):
            return type(value)(map(shown, value))
        refuse_masked(value)
        return value

    return [shown(value) for value in values]


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Tensor):
        if not _requires_grad((src, where)):
            np.copyto(dst, unwrap(src), casting, unwrap(where))  # type: ignore[arg-type]
            return
        raise _refuse("numpy.copyto to an array", "copy to a tensor, or detach() the source")
    if where is not True:
        src = FUNCTIONS["where"](where, src, dst.clone())
    inplace.write(dst, src, "numpy.copyto", keep=True)


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    if not isinstance(a, Tensor):
        raise _refuse("numpy.put to an array", "write to a tensor, or detach() the values")
    if not np.size(v):  # nothing is written, as in NumPy
        return
    places = np.arange(a.size).take(np.ravel(unwrap(ind)), mode=mode)  # type: ignore[call-overload]
    a[np.unravel_index(places, a.shape)] = FUNCTIONS["resize"](v, places.size)


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    is_traced = MODE.special and MODE.thread.trace is not None
    if is_traced and is_unknown(x):  # as many as there are bins for the values of a call
        if weights is not None and dtype_of(weights) != np.float64:
            weights = FUNCTIONS["astype"](weights, np.float64)
        return call("bincount", OfTensors(_bincount), (x, weights, minlength), {})
    index = np.asarray(unwrap(x))
    if not _requires_grad((weights,)) and not (is_traced and is_unknown(weights)):
        return wrap_result(np.bincount(index, unwrap(weights), minlength), x, weights)
    size = np.bincount(index, None, minlength).size  # checks the indices
    if np.shape(weights) != index.shape:
        raise ValueError(f"bincount: weights of shape {weights.shape} for shape {index.shape}")
    return FUNCTIONS["scatter_add"](weights.astype(np.float64), (size,), index)


def _histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return the counts, which are constant, and the edges, which depend on the range."""
    if _requires_grad((weights,)):
        remedy = (
            "np.bincount(np.digitize(x, edges[1:-1]), weights, edges.size - 1) for edges around "
            "all of x"
        )
        raise _refuse("numpy.histogram with the `weights`", f"use {remedy}, or detach() them")
    number = unwrap(bins)
    counts, values = np.histogram(unwrap(a), number, unwrap(range), weights=unwrap(weights))
    edges: Any = as_tensor(bins) if np.ndim(number) else wrap(values)
    if np.ndim(number) == 0 and (range is not None or _requires_grad((a,))):
        ends = (FUNCTIONS["min"](a), FUNCTIONS["max"](a)) if range is None else range
        share = np.linspace(0.0, 1.0, values.size)
        # zero, added only for its history: the values stay NumPy's
        moved = [
            FUNCTIONS["multiply"](as_tensor(x) - unwrap(x), s)
            for x, s in zip(ends, (1.0 - share, share), strict=True)
        ]
        edges = edges + moved[0] + moved[1]
    if density:
        counts = counts / ((edges[1:] - edges[:-1]) * counts.sum())
    return as_tensor(counts), edges


# functions that copy the values of one argument: its name, its position, and a replacement
_COPIED: dict[Any, tuple[str, int, str]] = {
    np.full_like: ("fill_value", 1, "write np.ones_like(x) * value, or detach() it")
}

# functions that write to their first argument
_WRITING = (np.fill_diagonal, np.place, np.putmask, np.put_along_axis)

_DIRECT: dict[Any, Any] = {
    np.bincount: _bincount,
    np.copy: lambda a, **kwargs: as_array_without_axes(a.clone()),
    np.copyto: _copyto,
    np.full_like: CREATION["full_like"],
    np.histogram: _histogram,
    np.linspace: linspace,
    np.put: _put,
    np.take: lambda a, indices, axis=None, mode="raise": FUNCTIONS["take"](a, indices, axis, mode),
    np.linalg.norm: lambda x, ord=None, axis=None, keepdims=False: FUNCTIONS["norm"](
        x, ord, axis, keepdims
    ),
}

Tensor.__array_ufunc__ = array_ufunc  # type: ignore[assignment,method-assign]
Tensor.__array_function__ = array_function  # type: ignore[assignment,method-assign]
