"""Translation of calls of NumPy functions to ours: argument names and NumPy's options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.eager import inplace
from tapegrad.eager.dispatch import unwrap
from tapegrad.eager.fast_path import NumpyOptions
from tapegrad.eager.numeric import FUNCTIONS, PASSIVE
from tapegrad.eager.tensor import Tensor
from tapegrad.ops.shape import in_order
from tapegrad.ops.table.op import TABLE, dtype_of, shape_of

_RENAMED = {"a_min": "min", "a_max": "max", "UPLO": "uplo"}
_WITHOUT_EFFECT = ("kind", "stable", "casting", "subok", "hermitian")
# how a reduction combines its result with `initial`, and its neutral element
_JOINED = {
    "sum": ("add", 0),
    "prod": ("multiply", 1),
    "max": ("maximum", None),
    "amax": ("maximum", None),
    "min": ("minimum", None),
    "amin": ("minimum", None),
}
_LAST_STEPS: dict[tuple[str, str], Callable[..., Any]] = {
    ("angle", "deg"): lambda result: result * (180.0 / np.pi),
    ("cholesky", "upper"): lambda result: FUNCTIONS["conj"](FUNCTIONS["matrix_transpose"](result)),
    ("reshape", "copy"): lambda result: result.clone(),
    ("astype", "copy"): lambda result: result.clone(),
}
_WAYS_OUT = {
    "where": "; choose with np.where before",
    "mean": "; leave it out",
    "order": "; transpose before and after",
}


@dataclass
class _Plan:
    """How the arguments of a NumPy function map to those of ours."""

    signature: inspect.Signature  # of the NumPy function
    names: dict[str, str]  # our name of each argument, without options that our function lacks
    direct: int  # number of leading arguments that are the same in both
    same: frozenset[str]  # names that are the same in both


PLANS: dict[Any, _Plan | None] = {}  # by NumPy function, for those that have been called


def _plan(func: Any, ours: Callable[..., Any], name: str) -> _Plan | None:
    if name in PASSIVE:
        return None  # NumPy itself is called
    try:
        signature = inspect.signature(func)
    except ValueError:
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return None
    op = TABLE.get(name)
    known = [*op.arguments, *op.parameters] if op else list(inspect.signature(ours).parameters)
    names: dict[str, str] = {}
    direct = 0
    for place, parameter in enumerate(signature.parameters):
        if parameter == "kwargs":
            continue
        own = _RENAMED.get(parameter, parameter)
        if own not in known and place < len(known) and known[place] not in signature.parameters:
            own = known[place]
        if own in known:
            names[parameter] = own
            direct += place == direct and known[place] == own
    if "kwargs" in signature.parameters:
        names |= {own: own for own in known if own not in names.values()}
    same = frozenset(key for key, own in names.items() if key == own)
    return _Plan(signature, names, direct, same)


def call(func: Any, ours: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Call our function with the arguments of a call of a NumPy function.

    Parameters
    ----------
    func
        The NumPy function.
    ours
        Our replacement for it.
    name
        Name of the function.
    args, kwargs
        Arguments of the call.

    Raises
    ------
    TypeError
        If an option is not supported for tensors.
    """
    if name == "where" and len(args) == 1:
        return FUNCTIONS["nonzero"](*args)
    if func not in PLANS:
        PLANS[func] = _plan(func, ours, name)
    plan = PLANS[func]
    if plan is None or (len(args) <= plan.direct and plan.same.issuperset(kwargs)):
        return ours(*args, **kwargs)
    given = plan.signature.bind(*args, **kwargs).arguments
    given |= given.pop("kwargs", {})
    defaults = {key: parameter.default for key, parameter in plan.signature.parameters.items()}
    passed, options = {}, {}
    for key, value in given.items():
        if value is np._NoValue:
            continue
        if key in plan.names:
            passed[plan.names[key]] = value
        elif key not in _WITHOUT_EFFECT and not _is_default(key, value, defaults.get(key)):
            options[key] = value
    if not options:
        (_, first), *rest = passed.items()
        return ours(first, **dict(rest))
    return _with_options(ours, name, passed, options)


@functools.cache
def _options_of(name: str) -> frozenset[str]:
    """Return the arguments of a NumPy function that reduces axes, which has `where`."""
    func = getattr(np, name, None)
    if func is None or isinstance(func, np.ufunc):
        return frozenset()
    try:
        known = frozenset(inspect.signature(func).parameters)
    except ValueError:
        return frozenset()
    return known if "where" in known else frozenset()


def call_with_options(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> Any:
    """Call our function with options that only the NumPy function of its name has.

    Parameters
    ----------
    name
        Name of the function.
    args, kwargs
        Arguments that our function has, too.
    options
        The others.
    """
    for option in options:
        if option not in _options_of(name):
            raise TypeError(f"{name}() got an unexpected keyword argument {option!r}")
    return call(getattr(np, name), FUNCTIONS[name], name, args, {**kwargs, **options})


NumpyOptions.call = call_with_options


def _is_default(key: str, value: Any, default: Any) -> bool:
    return value is None or value is default or (key == "where" and value is True)


def _with_options(
    ours: Callable[..., Any], name: str, passed: dict[str, Any], options: dict[str, Any]
) -> Any:
    """Call our function with NumPy options that it does not have itself."""
    (_, x), *rest = passed.items()
    more = dict(rest)
    if "dtype" in options:
        dtype = options.pop("dtype")
        x = [_cast(item, dtype) for item in x] if isinstance(x, (list, tuple)) else _cast(x, dtype)
    join, neutral = _JOINED.get(name, ("", None))
    initial = options.pop("initial", None) if join else None
    out = options.pop("out", None)
    counted: Any = None  # for mean, the number of elements that `where` selects
    if "where" in options and (join or name == "mean"):
        chosen = options.pop("where")
        if join and neutral is None and initial is None:
            raise ValueError(f"numpy.{name}: `where` needs `initial`")
        if name == "mean":
            ours = FUNCTIONS["sum"]
            kind = np.finfo(dtype_of(x)).dtype.type if dtype_of(x).kind in "fc" else np.float64
            ones = np.ones(shape_of(x), kind)
            counted = ours(FUNCTIONS["where"](chosen, ones, kind(0)), **more)
        x = FUNCTIONS["where"](chosen, x, initial if join and neutral is None else neutral or 0)
    last = [_LAST_STEPS[name, key] for key in options if (name, key) in _LAST_STEPS]
    order = options.pop("order", "C") if name == "reshape" else "C"
    for key in options:
        if (name, key) not in _LAST_STEPS:
            way_out = _WAYS_OUT.get(key, "")
            raise TypeError(f"numpy.{name} of a tensor has no argument {key!r}{way_out}")
    if initial is not None and neutral is None and 0 in shape_of(x):  # there is no largest one
        result, initial = FUNCTIONS["sum"](x, **more) + initial, None
    elif order != "C":
        result = in_order(x, more["shape"], order, name)
    else:
        result = ours(x, **more)
    if counted is not None:
        result = result / counted
    if initial is not None:
        result = FUNCTIONS[join](result, initial)
    for step in last:
        result = step(result)
    return result if out is None else _stored(result, out, name)


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if isinstance(x, Tensor) else np.asarray(x, dtype)


def _stored(result: Any, out: Any, name: str) -> Any:
    """Write a result to `out`; return `out`."""
    if isinstance(out, Tensor):
        return inplace.write(out, result, f"numpy.{name} with `out`")
    if isinstance(result, Tensor) and result._is_tracked:
        raise TypeError(
            f"numpy.{name}: `out` is a NumPy array and cannot hold a gradient; give a Tensor, or "
            "detach() the inputs"
        )
    out[...] = unwrap(result)
    return out
