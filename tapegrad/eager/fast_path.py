"""The public function of every op, with a fast path for the most common calls.

For an elementwise op on tensors of one shape and dtype (or a Python number), the values to save,
the output's aval and the layout of the owner follow from the op table. The source of a specialised
function is generated from the table at import, once for all ops that save and read alike; all other
calls go to `apply_op`.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.eager.dispatch import (
    NUMBER_TYPES,
    apply_op,
    apply_opaque,
    apply_view,
    axes_mask,
    passive,
    same_device,
)
from tapegrad.eager.duals import apply_to_duals
from tapegrad.eager.inplace import apply_with_out
from tapegrad.eager.modes import (
    ADD_TANGENTS,
    CHECK_SWITCHES,
    COMPUTE_ONLY,
    MAKE_INFERENCE,
    MODE,
    RECORD_OP,
)
from tapegrad.eager.shared_memory import IMMUTABLE, unshared
from tapegrad.eager.tensor import ARRAYS_ONLY, Tensor, meta_of_result
from tapegrad.kernels.pool import LEAST, pooled, pooled_if_large
from tapegrad.ops.table.array_kinds import ArrayOp
from tapegrad.ops.table.kinds import COMPILED_FROM, Elementwise, Reduction, SweptOp, View
from tapegrad.ops.table.op import Op, refuse_masked
from tapegrad.tape.avals import AVALS, DTYPE_CODES, FLOAT32, FLOAT64
from tapegrad.tape.layout import NUMBERS
from tapegrad.tape.tape import TAPE

# The end of every specialised function: append the record of `z` and return its tensor.
_RECORD = """
segment = TAPE.seg
try:
    slot = segment.pop()
except IndexError:
    segment, slot = TAPE.next_slot()
result = Tensor()
result._a = z
result._meta = None
result._own = owner = [segment, slot, aval, {owners}{saved}]
segment.extend((slot, {code}, aval, {x}, {y}, id(owner)))
return result
"""

# Return `z` without a record.
_PASSIVE = """
result = Tensor()
result._a = z
result._own = None
{origin}
return result
"""
# What it is made of: an operand that is no tensor is its own array.
_ORIGIN = {
    1: """
meta = ARRAYS_ONLY if a_x is x else x._meta
result._meta = meta if meta is None or meta is ARRAYS_ONLY else meta_of_result(x)
""",
    2: """
meta = ARRAYS_ONLY if a_x is x else x._meta
if meta is not None:
    other = ARRAYS_ONLY if a_y is y else y._meta
    if meta is not ARRAYS_ONLY or other is not ARRAYS_ONLY:
        meta = None if other is None else meta_of_result(x, y)
result._meta = meta
""",
}

_AS_ARRAY = """
if type(z) is not ndarray:
    if type(z) is DeviceArray:
        same_device({arguments})
    else:
        z = asarray(z)
"""

# What follows a call if its result may be large. `LARGE` is empty in programs on small arrays.
_POOLED = "if not LARGE or aval not in LARGE else pooled({}, {})"
_PASSIVE_POOLED = "if not LARGE else pooled_if_large({}, {})"

# MODE.special is not empty once complex numbers have been recorded.
_UNARY = """
def function(x, out=None, where=True):
    if type(x) is Tensor and out is None and where is True:
        if not SPECIAL:
            own_x = x._own
            if own_x is not None:
                aval = own_x[2]
                a_x = x._a
                z = {forward}
                {as_array}
                {record}
        elif THREAD.action == COMPUTE_ONLY:
            a_x = x._a
            z = {passive_forward}
            {as_array}
            {passive}
    if out is None and where is True:
        return general(x)
    return apply_with_out(OP, (x,), out, where)
"""

_BINARY = """
def function(x, y, out=None, where=True):
    if type(x) is Tensor and out is None and where is True:
        if not SPECIAL:
            own_x = x._own
            if own_x is not None:
                aval = own_x[2]
                kind = type(y)
                if kind is Tensor:
                    own_y = y._own
                    if own_y is not None and own_y[2] == aval:
                        a_x = x._a
                        a_y = y._a
                        z = {forward}
                        {as_array}
                        {record}
                elif kind is float or kind is int:
                    a_x = x._a
                    a_y = number(y, a_x.dtype)
                    z = {forward_number}
                    {as_array}
                    {record_x}
        elif THREAD.action == COMPUTE_ONLY:
            kind = type(y)
            if kind is Tensor:
                a_x = x._a
                a_y = y._a
                z = {passive_forward}
                {as_array}
                {passive}
            elif kind is float or kind is int:
                a_x = x._a
                a_y = number(y, a_x.dtype)
                z = {passive_number}
                {as_array}
                {passive_x}
    if out is None and where is True:
        return general(x, y)
    return apply_with_out(OP, (x, y), out, where)


def reflected(y, x):
    if (type(x) is float or type(x) is int) and not SPECIAL:
        own_y = y._own
        if own_y is not None:
            aval = own_y[2]
            a_y = y._a
            a_x = number(x, a_y.dtype)
            z = {forward_number}
            {as_array}
            {record_y}
    return general(x, y)
"""

# Any mixture of tensors, arrays and numbers that NumPy broadcasts; `apply_op` handles casts.
_GENERAL = """
def general({arguments}):
    action = MODE.action() if SPECIAL else RECORD_OP
    if action == ADD_TANGENTS:
        result = apply_to_duals(OP, ({arguments},))
        if result is not None:
            return result
    if action == CHECK_SWITCHES or action == ADD_TANGENTS:
        return apply_op(OP, ({arguments},), {{}})
    inference = action == MAKE_INFERENCE
    {unwrap}
    z = forward({operands}) {pooled}
    {as_array}
    if inference:
        return passive(z, {arguments})
    if action == COMPUTE_ONLY or {untracked}:
        {passive}
    dtype = z.dtype
    if dtype is FLOAT64 or dtype is FLOAT32:
        {convert}
        if {uniform}:
            aval = aval_of(z)
            {unshared}
            {record}
    return apply_op(OP, ({arguments},), {{}})
"""

# What the user can write to through NumPy is copied.
_UNSHARED = """
if {test} and (
    {n}._meta is not None if type({n}) is Tensor else type({n}) not in IMMUTABLE
):
    a_{n} = unshared({n}, a_{n})
"""

# Inference tensors must not be saved. (Those that require grad are in `MODE.special`.)
_UNWRAP = """
if type({n}) is Tensor:
    own_{n} = {n}._own
    a_{n} = {n}._a
    if SAVING_REFUSED and not inference and {n}.is_inference():
        return apply_op(OP, ({arguments},), {{}})
else:
    own_{n} = None
    a_{n} = {n}
    if type({n}) is list or type({n}) is tuple:  # perhaps of tensors
        return apply_op(OP, ({arguments},), {{}})
    if type({n}) not in UNMASKED and is_left({n}):
        return NotImplemented
"""

_CONVERT = """
if type(a_{n}) is not ndarray and type(a_{n}) is not DeviceArray:
    a_{n} = asarray(a_{n}, dtype) if type(a_{n}) in (float, int) else asarray(a_{n})
"""

_REDUCTION = """
def function(x, axis=None, *, keepdims=False, **options):
    if options:
        return NumpyOptions.call(OP.name, (x, axis), {{"keepdims": keepdims}}, options)
    if type(x) is not Tensor:
        return apply_op(OP, (x, axis), {{"keepdims": keepdims}})
    a_x = x._a
    own_x = x._own
    if own_x is not None and (own_x[2] & 1 or (SAVING_REFUSED and x.is_inference())):
        return apply_op(OP, (x, axis), {{"keepdims": keepdims}})
    is_large = LARGE and type(a_x) is ndarray and a_x.nbytes >= LEAST
    z = pooled(compute, a_x, axis, keepdims) if is_large else compute(a_x, axis, keepdims)
    {as_array}
    action = MODE.action() if SPECIAL else RECORD_OP
    if action < CHECK_SWITCHES and (own_x is None or action == COMPUTE_ONLY):
        {passive}
    if action >= CHECK_SWITCHES or z.dtype is not a_x.dtype:
        return apply_op(OP, (x, axis), {{"keepdims": keepdims}})
    try:
        mask = axes_mask(axis, a_x.ndim)
    except TypeError:  # an array is not hashable
        return apply_op(OP, (x, axis), {{"keepdims": keepdims}})
    aval = avals.get((z.shape, z.dtype))
    if aval is None:
        aval = aval_of(z)
    {extras}
    {record}
"""

_doubles: dict[float, np.ndarray] = {}
_singles: dict[float, np.ndarray] = {}
# types of most operands that are no tensors
UNMASKED = NUMBER_TYPES | {np.ndarray, np.float64, np.float32, DeviceArray}
_NUMBERS_KEPT = 1024
_known_mask = functools.cache(axes_mask)


def number(value: float, dtype: np.dtype) -> Any:
    """Return a Python number as a 0-d array of a float dtype, or unchanged for other dtypes."""
    if dtype is FLOAT64:
        known = _doubles
    elif dtype is FLOAT32:
        known = _singles
    elif dtype in DTYPE_CODES:  # an equal dtype but another object, from a pickle
        known = _doubles if dtype == FLOAT64 else _singles
    else:
        return value
    found = known.get(value)
    if found is None:
        found = np.array(value, FLOAT64 if known is _doubles else FLOAT32)
        found.flags.writeable = False
        if value != 0:  # 0.0 and -0.0 are equal keys but not equal numbers
            if len(known) >= _NUMBERS_KEPT:
                known.clear()
            known[value] = found
    return found


def function_of(op: Op) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return an op's public function and, for some binary ops, the reflected function."""
    if isinstance(op, Elementwise):
        scope = _execute(op)
        return _dress(op, scope.get("function", scope["general"])), scope.get("reflected")
    if isinstance(op, Reduction):
        return _dress(op, _execute(op)["function"]), None
    if isinstance(op, View):
        return _dress(op, _view_function(op)), None
    assert isinstance(op, ArrayOp)
    return _dress(op, _opaque_function(op)), None


def _view_function(op: View) -> Callable[..., Any]:
    names = tuple(op.parameters)

    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and kwargs.keys() == op.parameters.keys():
            return apply_view(op, x, kwargs)
        if kwargs or len(args) != len(names):
            return apply_op(op, (x, *args), kwargs)
        return apply_view(op, x, dict(zip(names, args, strict=True)))

    return function


class NumpyOptions:
    """Calls of functions with options that only NumPy's functions of their names have."""

    call: Callable[..., Any]  # set by `tapegrad.eager.numpy_calls`


def _opaque_function(op: ArrayOp) -> Callable[..., Any]:
    names, count, defaults = op.positional, len(op.arguments), op.parameters

    def function(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            if len(args) == len(names):
                return apply_opaque(op, dict(zip(names, args, strict=True)))
            if len(args) == count:
                return apply_opaque(op, {**defaults, **dict(zip(names, args, strict=False))})
        return apply_opaque(op, op.bind(args, kwargs))

    return function


def _dress(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.__doc__
    function.__module__ = "tapegrad"
    return function


def _execute(op: SweptOp) -> dict[str, Any]:
    """Return the namespace of the specialised functions of an op."""
    scope: dict[str, Any] = {
        "ADD_TANGENTS": ADD_TANGENTS,
        "ARRAYS_ONLY": ARRAYS_ONLY,
        "BOOL": np.dtype(bool),
        "CHECK_SWITCHES": CHECK_SWITCHES,
        "CODE": op.code,
        "CODE_OF_NUMBERS": op.code | NUMBERS << 32,
        "FLOAT32": FLOAT32,
        "FLOAT64": FLOAT64,
        "IMMUTABLE": IMMUTABLE,
        "MAKE_INFERENCE": MAKE_INFERENCE,
        "LARGE": AVALS.large,
        "LEAST": LEAST,
        "MODE": MODE,
        "NUMBER_TYPES": NUMBER_TYPES,
        "NumpyOptions": NumpyOptions,
        "OP": op,
        "RECORD_OP": RECORD_OP,
        "COMPUTE_ONLY": COMPUTE_ONLY,
        "DeviceArray": DeviceArray,
        "SAVING_REFUSED": MODE.inference_used,
        "SPECIAL": MODE.special,
        "TAPE": TAPE,
        "THREAD": MODE.thread,
        "Tensor": Tensor,
        "UNMASKED": UNMASKED,
        "apply_op": apply_op,
        "apply_to_duals": apply_to_duals,
        "apply_with_out": apply_with_out,
        "asarray": np.asarray,
        "aval_of": AVALS.of,
        "avals": AVALS.ids,
        "axes_mask": _known_mask,
        "forward": op.forward,
        "meta_of_result": meta_of_result,
        "ndarray": np.ndarray,
        "is_left": refuse_masked,
        "passive": passive,
        "same_device": same_device,
        "unshared": unshared,
        "number": number,
        "pooled": pooled,
        "pooled_if_large": pooled_if_large,
    }
    if isinstance(op, Elementwise):
        scope["compiled"] = op.compiled
        scope["compute"] = op.function if op.function is not None else op.compiled
        if op.compiled is None:
            scope["forward"] = op.function
    elif isinstance(op, Reduction):
        scope["compute"] = op.function
        scope["extras"] = op.extras
    exec(_compile(_Pattern.of(op)), scope)
    for name in scope.keys() & {"function", "general", "reflected"}:
        # a copy, because CPython keeps in the code what it found in the globals of the last call
        code = scope[name].__code__
        scope[name].__code__ = code.replace(co_name=op.name, co_qualname=op.name)
    return scope


class _Pattern(NamedTuple):
    """What the source of an op depends on; it is compiled once for all ops of one pattern."""

    arguments: tuple[str, ...]
    differentiable: tuple[str, ...]
    saved: tuple[str, ...]
    reads: tuple[frozenset[str], ...]  # what the partials read, for every differentiable argument
    extras: tuple[str, ...]
    is_reduction: bool
    has_loops: bool  # besides NumPy's function, for larger arrays

    @classmethod
    def of(cls, op: SweptOp) -> _Pattern:
        return cls(
            arguments=op.arguments,
            differentiable=op.differentiable,
            saved=op.saved,
            reads=tuple(frozenset(op.reads(name)) for name in op.differentiable),
            extras=tuple(op.extras),
            is_reduction=isinstance(op, Reduction),
            has_loops=isinstance(op, Elementwise)
            and op.function is not None
            and op.compiled is not None,
        )

    def readers(self, name: str) -> list[str]:
        """Return the arguments whose partials read a value."""
        return [other for other in self.differentiable if name in self.read_by(other)]

    def read_by(self, argument: str) -> frozenset[str]:
        return self.reads[self.differentiable.index(argument)]


@functools.cache
def _compile(pattern: _Pattern) -> CodeType:
    source = _reduction_source(pattern) if pattern.is_reduction else _elementwise_source(pattern)
    filename = f"<tapegrad eager {_compile.cache_info().misses}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    return compile(source, filename, "exec")


def _passive_source(names: tuple[str, ...]) -> str:
    """Return source that returns `z` without a record."""
    origin = f"result._meta = meta_of_result({', '.join(names)})"
    if names in (("x",), ("x", "y")):
        origin = _ORIGIN[len(names)]
    return _fill(_PASSIVE, origin=origin)


def _fill(template: str, **parts: str) -> str:
    """Fill a template; multi-line parts are indented like their placeholders."""
    lines = []
    for line in template.strip("\n").splitlines():
        text = line.strip()
        if text[:1] == "{" and text[-1:] == "}" and text[1:-1] in parts:
            indent = line[: len(line) - len(text)]
            lines += [indent + part for part in parts[text[1:-1]].strip("\n").splitlines()]
        else:
            lines.append(line.format(**parts))
    return "\n".join(lines) + "\n"


def _record_source(pattern: _Pattern, active: tuple[str, ...] | None, y: str = "") -> str:
    """Return source that records `z` for the given `active` inputs (None: tested at run time)."""
    owners, slots, saved = [], [], []
    for name in pattern.differentiable:
        known = active is None or name in active
        owners.append(f"own_{name}" if known else "None")
        if active is None and len(pattern.differentiable) > 1:
            slots.append(f"own_{name}[1] if own_{name} is not None else 0")
        else:
            slots.append(f"own_{name}[1]" if known else "0")
    for name in pattern.saved:
        value = "z" if name == "z" else f"a_{name}"
        readers = pattern.readers(name)
        if active is not None:
            saved.append(value if set(readers) & set(active) else "None")
        elif set(readers) == set(pattern.differentiable):
            saved.append(value)
        else:
            saved.append(f"{value} if {_any_recorded(readers)} else None")
    code, numbers = "CODE", "CODE_OF_NUMBERS"
    if len(pattern.arguments) == 2 == len(pattern.differentiable):
        if active is None:
            tests = [
                f"own_{other} is None and type({other}) in NUMBER_TYPES"
                for name, other in (pattern.arguments, pattern.arguments[::-1])
                if not pattern.read_by(name) & {"z", name}
            ]
            if tests:
                code = f"{numbers} if {' or '.join(tests)} else {code}"
        elif len(active) == 1 and not pattern.read_by(active[0]) & {"z", *active}:
            code = numbers  # the other operand is a number in the fast path
    return _fill(
        _RECORD,
        owners=", ".join(owners),
        saved="".join(f", {value}" for value in saved),
        code=code,
        x=slots[0],
        y=y or ([*slots, "0"][1]),
    )


def _any_recorded(names: list[str]) -> str:
    return " or ".join(f"own_{name} is not None" for name in names)


def _unshared_source(pattern: _Pattern) -> str:
    """Return source that copies, among the operands that will be saved, arrays of the user."""
    text = ""
    for name in pattern.saved:
        if name != "z":
            others = [other for other in pattern.readers(name) if other != name]
            if others:
                test = f"own_{name} is None and ({_any_recorded(others)})"
                text += _UNSHARED.format(n=name, test=test)
    return text


def _elementwise_source(pattern: _Pattern) -> str:
    names = pattern.arguments
    inputs = ", ".join(f"a_{n}" for n in names)
    uniform = [
        f"a_{n}.dtype is dtype"
        if n in pattern.differentiable
        else f"(a_{n}.dtype is dtype or a_{n}.dtype is BOOL)"
        for n in names
    ]
    source = _fill(
        _GENERAL,
        arguments=", ".join(names),
        operands=inputs,
        pooled=_PASSIVE_POOLED.format("forward", inputs),
        unwrap="\n".join(
            _UNWRAP.strip("\n").format(n=n, arguments=", ".join(names)) for n in names
        ),
        untracked=" and ".join(f"own_{n} is None" for n in pattern.differentiable),
        passive=_passive_source(names),
        as_array=_AS_ARRAY.format(arguments=", ".join(names)),
        convert="\n".join(_CONVERT.strip("\n").format(n=n) for n in names),
        uniform=" and ".join(uniform),
        unshared=_unshared_source(pattern) or "pass",
        record=_record_source(pattern, None),
    )
    if names not in (("x",), ("x", "y")) or pattern.differentiable != names:
        return source
    forward, function = f"compute({inputs})", "compute"
    passive = f"forward({inputs})"  # of any sizes, as in `general`
    if pattern.has_loops:
        forward = f"({forward} if a_x.size < {COMPILED_FROM} else compiled({inputs}))"
        function = "compiled"
        passive = forward if len(names) == 1 else passive
    template = _UNARY if len(names) == 1 else _BINARY
    return source + _fill(
        template,
        forward=f"{forward} {_POOLED.format(function, inputs)}",
        passive_forward=f"{passive} {_PASSIVE_POOLED.format('forward', inputs)}",
        forward_number=f"compute({inputs}) {_POOLED.format('compute', inputs)}",
        passive_number=f"compute({inputs}) {_PASSIVE_POOLED.format('compute', inputs)}",
        as_array=_AS_ARRAY.format(arguments=", ".join(names)),
        passive=_passive_source(names),
        passive_x=_passive_source(names[:1]),
        record=_record_source(pattern, names),
        record_x=_record_source(pattern, ("x",)),
        record_y=_record_source(pattern, names[1:]),
    )


def _reduction_source(pattern: _Pattern) -> str:
    return _fill(
        _REDUCTION,
        as_array=_AS_ARRAY.format(arguments="x"),
        passive=_passive_source(("x",)),
        extras="\n".join(f"a_{name} = extras['{name}'](a_x, z, axis)" for name in pattern.extras),
        record=_record_source(pattern, ("x",), y="mask"),
    )
