"""The base class of all ops, and helpers for their rules.

An `Op` has a forward function on NumPy arrays and derivative rules. The argument names of a rule
tell what it reads: ``g`` is the cotangent, ``z`` the output, other names are arguments or
parameters of the op. Only values that some rule reads are saved.

Rules call other ops. Called with arrays, an op computes; called with an object that has the
attribute ``_apply_op``, it calls its public function. One rule therefore serves both the sweep (on
arrays) and higher derivatives (on tensors), and this package does not depend on tensors.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from tapegrad.cuda.array import DeviceArray, as_array
from tapegrad.tape.codes import OPS

Rule = Callable[..., Any]
Declared = TypeVar("Declared")
Plan = tuple[tuple[str, ...], tuple[str, ...], bool]
Domain = tuple[float, float]
Out = tuple[tuple[int, ...], np.dtype]  # shape and dtype
Batched = Sequence[Any]  # whether each argument is batched; a list for a list argument
TABLE: dict[str, Op] = {}  # every op by name


# types of arguments of ops that need no look at their attributes
_PLAIN = frozenset([np.ndarray, DeviceArray, bool, int, float, complex, str, slice, type(None)])


class Fact(enum.Flag):
    """Properties of an elementwise function that derivatives of compiled functions rely on."""

    NONE = 0
    ARITHMETIC = enum.auto()  # takes a few cycles: recomputing is cheaper than saving
    SINGULAR = enum.auto()  # the derivative is infinite or nan at some points
    POLE = enum.auto()  # infinite itself wherever the derivative is, but for overflow
    OVERFLOWING = enum.auto()  # it and its derivative overflow at finite numbers
    VANISHING = enum.auto()  # constant at infinity, where the derivative is 0
    HOLOMORPHIC = enum.auto()  # its partials hold for complex numbers too


def _is_again(before: Any, declaration: Any) -> bool:
    """Whether a module declares an op once more, since its import was interrupted."""
    is_same = before.__module__ == declaration.__module__
    return is_same and before.__globals__ is not declaration.__globals__


class Op:
    """A differentiable function.

    Attributes
    ----------
    name
        Its name in the table.
    arguments
        Names of the array arguments, in order.
    parameters
        The other arguments by name, with their defaults.
    rules
        Derivative rules by differentiable argument.
    domains
        Intervals of arguments in which it is smooth, for tests (see `domain`).
    given
        Ops whose values of the first arguments the last ones are, by argument, if any are.
    names
        Its public names (see `public`).
    is_method
        Whether tensors have it as a method.
    wirtinger
        Rules for complex arguments, if those in `rules` hold only for real ones.
    batch_rule
        Batching rule, if it differs from that of its kind (see `batching`).
    """

    kind = "op"
    is_method = False
    is_looped = False  # whether `batch` computes the items one by one
    batch_rule: Rule | None = None
    function: Any  # computes it on arrays
    public: Callable[..., Any]  # the op on tensors, set by the package that defines tensors

    def __init__(self, declaration: Any, arrays: int | None = None) -> None:
        self.name = declaration.__name__
        self.__name__ = self.name
        self.__doc__ = declaration.__doc__
        self.declaration = declaration
        self.names = default_names(declaration)
        signature = inspect.signature(declaration)
        names = list(signature.parameters)
        positional = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is parameter.empty
        ]
        self.arguments = tuple(names[: len(positional) if arrays is None else arrays])
        self.parameters = {
            name: signature.parameters[name].default for name in names[len(self.arguments) :]
        }
        self.positional = tuple(
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY
        )
        self.domains: dict[str, Domain] = {}
        self.given: dict[str, Op] = {}
        self.rules: dict[str, Rule] = {}
        self.wirtinger: dict[str, Rule] = {}
        self._plans: dict[int, Plan] = {}
        if self.name in TABLE and not _is_again(TABLE[self.name].declaration, declaration):
            raise ValueError(f"op {self.name!r} is declared twice")
        TABLE[self.name] = self
        self.code = OPS.register(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in args:
            kind = type(value)
            if kind in _PLAIN:
                continue
            if hasattr(kind, "_apply_op") or (
                kind in (list, tuple) and any(hasattr(type(item), "_apply_op") for item in value)
            ):
                return self.public(*args, **kwargs)
            refuse_masked(value)
        if len(args) == len(self.arguments):
            if not kwargs:
                return self.forward(*args, **self.parameters)
            if kwargs.keys() == self.parameters.keys():
                return self.forward(*args, **kwargs)
        elif not kwargs and len(args) == len(self.positional):
            return self.forward(*args)
        bound = self.bind(args, kwargs)
        parameters = {name: bound[name] for name in self.parameters}
        return self.forward(*[bound[name] for name in self.arguments], **parameters)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the op on arrays."""
        return self.function(*args, **kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments and parameters of a call by name."""
        names = self.positional
        if len(args) > len(names):
            raise TypeError(
                f"{self.name}() takes at most {len(names)} positional arguments "
                f"({', '.join(names)}), got {len(args)}"
            )
        bound = {**self.parameters, **dict(zip(names, args, strict=False))}
        for name, value in kwargs.items():
            if name not in self.parameters and name not in self.arguments:
                known = ", ".join((*self.arguments, *self.parameters))
                raise TypeError(f"{self.name}() has no argument {name!r}; it takes {known}")
            if name in names[: len(args)]:
                raise TypeError(f"{self.name}() got two values for the argument {name!r}")
            bound[name] = value
        for name in self.arguments:
            if name not in bound:
                raise TypeError(f"{self.name}() misses the argument {name!r}")
        return bound

    def kernel(self, dtype: int, position: int) -> int:
        """Return the address of the compiled partial for one input (see `OpTable.compile`)."""
        raise TypeError(f"{self.name} has no compiled partial")

    def domain(self, argument: str) -> Domain:
        """Return an interval in which the op is smooth."""
        return self.domains.get(argument, (0.2, 0.8))

    def reads(self, argument: str) -> tuple[str, ...]:
        """Return the names that the rule of an argument reads."""
        return reads_of(self.rules[argument])

    def plan(self, active: int) -> Plan:
        """Return what has to be kept for the cotangents of some arguments (a bit mask).

        These are the names of values, the names of shapes, and whether the values include arrays.
        """
        found = self._plans.get(active)
        if found is None:
            names = [name for bit, name in enumerate(self.arguments) if active >> bit & 1]
            needed = set[str]().union(*map(self.needs, names)) - {"g", "used"}
            shapes = {name for name in needed if name.endswith("_shape")}
            values = needed - shapes
            saves = bool(values - self.parameters.keys())
            found = self._plans[active] = (tuple(sorted(values)), tuple(sorted(shapes)), saves)
        return found

    def needs(self, argument: str) -> set[str]:
        """Return the names that `cotangent` reads for an argument."""
        rules = [table[argument] for table in (self.rules, self.wirtinger) if argument in table]
        return {name for rule in rules for name in reads_of(rule)}

    def cotangent(self, argument: str, g: Any, values: dict[str, Any]) -> Any:
        """Return the cotangent of an argument, given arrays or tensors by name.

        It may still have the broadcast shape of the argument and a wider dtype.
        """
        return call_rule(self.rules[argument], {**values, "g": g})

    def batching(self, rule: Rule) -> Rule:
        """Declare the batching rule, in terms of ops (a decorator).

        The rule reads arguments and parameters by name. The first axis of every argument is the
        batch, unless the rule also reads `batched`, which tells for every argument (and every item
        of a list) whether it is batched. The first axis of the output is the batch.
        """
        self.batch_rule = rule
        return rule

    def batch(self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]) -> Any:
        """Return the outputs for the items of a batch, computed together.

        Parameters
        ----------
        args
            The arguments, arrays or tensors; the first axis of a batched argument is the batch.
        batched
            Whether each argument is batched; a list for a list argument.
        parameters
            The parameters of one item, by name.
        """
        rule = self.batch_rule
        if rule is None:
            return self.batch_by_kind(args, batched, parameters)
        values = {**parameters, "batched": batched}
        if "batched" not in reads_of(rule):
            args = stacked(args, batched, size_of_batch(args, batched))
        return call_rule(rule, {**values, **dict(zip(self.arguments, args, strict=True))})

    def batch_by_kind(
        self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]
    ) -> Any:
        """Return the outputs for the items of a batch, by the default rule of this kind of op."""
        raise NotImplementedError

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        """Return which elements of an argument may affect which elements of the output.

        Parameters
        ----------
        argument
            Name of the argument, which has a derivative. The arrays of a list are numbered one
            after the other.
        args, parameters
            Arrays and parameters of the call.

        Returns
        -------
        numpy.ndarray
            Positions in the flattened output, and in the flattened argument, as two rows.
        """
        raise NotImplementedError

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        """Return the tangent of the output, given arrays or tensors by name.

        Parameters
        ----------
        tangents
            Tangents of some arguments; for a list argument, a list of tangents and None.
        values
            Values that the rules read (see `plan`).
        out
            Shape and dtype of the output.
        """
        raise NotImplementedError


def public(*names: str, method: bool = False) -> Callable[[Declared], Declared]:
    """Declare the public names of a function (a decorator, above that of its kind).

    By default it is the function's own name, in the ``NAMESPACE`` of its module if it has one.

    Parameters
    ----------
    *names
        All public names; ``"linalg.inv"`` is ``tapegrad.linalg.inv``. Default: its own name.
    method
        Whether tensors have it as a method.
    """

    def declare(function: Any) -> Any:
        if names:
            function.names = names
        function.is_method = method
        return function

    return declare


def internal(function: Declared) -> Declared:
    """Declare a function without a public name, for use by other functions (a decorator)."""
    function.names = ()  # type: ignore[attr-defined]
    return function


def default_names(declaration: Any) -> tuple[str, ...]:
    """Return the public names of a function that declares none."""
    namespace = getattr(sys.modules[declaration.__module__], "NAMESPACE", "")
    return (f"{namespace}.{declaration.__name__}".lstrip("."),)


def reads_of(rule: Rule) -> tuple[str, ...]:
    """Return the names of a rule's arguments."""
    code = rule.__code__
    return code.co_varnames[: code.co_argcount]


def call_rule(rule: Rule, values: dict[str, Any]) -> Any:
    """Call a rule with the values that it reads."""
    return rule(*[values[name] for name in reads_of(rule)])


def size_of_batch(args: Sequence[Any], batched: Batched) -> int:
    """Return the number of items of a batch."""
    for arg, is_batched in zip(args, batched, strict=True):
        if type(is_batched) is list:
            if any(is_batched):
                return size_of_batch(arg, is_batched)
        elif is_batched:
            return shape_of(arg)[0]
    raise ValueError("no argument is batched")


def stacked(args: Sequence[Any], batched: Batched, size: int) -> list[Any]:
    """Return the arguments, with unbatched ones repeated for every item."""
    found: list[Any] = []
    for arg, is_batched in zip(args, batched, strict=True):
        if type(is_batched) is list:
            found.append(stacked(arg, is_batched, size))
        else:
            wide = (size, *shape_of(arg))
            found.append(arg if is_batched else TABLE["broadcast_to"](arg, wide))
    return found


def is_complex(value: Any) -> bool:
    """Whether an array or tensor (or number) is complex."""
    dtype = getattr(value, "dtype", None)
    return isinstance(value, complex) if dtype is None else dtype.kind == "c"


def is_differentiated(value: Any) -> bool:
    """Whether a value is a tensor that requires a gradient or has a tangent."""
    return bool(getattr(value, "_is_tracked", False))


def rank(value: Any) -> int:
    """Return the number of axes of an array, tensor or number."""
    return len(shape_of(value))


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an array, tensor or number."""
    shape = getattr(value, "shape", None)
    return np.shape(value) if shape is None else shape


def in_shape(x: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast to a shape, if needed."""
    return x if shape_of(x) == shape else TABLE["broadcast_to"](x, shape)


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction as non-negative numbers, or raise NumPy's AxisError.

    As in NumPy, a 0-d array may be reduced over its missing axis.
    """
    if axis is None:
        return tuple(range(ndim))
    if ndim == 0 and axis in (0, -1, (), (0,), (-1,)):
        return ()
    return tuple(normalize_axis_tuple(axis, ndim))


def normalize_axis(axis: Any, ndim: int) -> int:
    """Return an axis of an array as a non-negative number, or raise NumPy's AxisError."""
    return normalize_axis_index(axis, ndim)


def plain(value: Any) -> np.ndarray:
    """Return the values as an array, for decisions that are not differentiated."""
    array = getattr(value, "_a", value)
    refuse_masked(array)
    return as_array(array)


def undifferentiated(value: Any) -> Any:
    """Return the values as an array, or what stands for them in a recording or batch.

    For comparisons and indices, which are not differentiated.
    """
    return plain(value) if getattr(value, "_has_array", True) else value


def known(value: Any) -> Any:
    """Return the values if they are there, on the host: not those of a recording or batch."""
    array = getattr(value, "_a", value) if getattr(value, "_has_array", True) else None
    return array if isinstance(array, np.ndarray | np.generic) else None


def dtype_of(value: Any) -> np.dtype:
    """Return the dtype of an array, tensor, number or list of numbers."""
    dtype = getattr(value, "dtype", None)
    return plain(value).dtype if dtype is None else dtype


def array_of(value: Any) -> Any:
    """Return a tensor or array unchanged, and numbers or lists of numbers as an array."""
    refuse_masked(value)
    return value if hasattr(value, "shape") else np.asarray(value)


def refuse_masked(value: Any) -> None:
    """Raise if a value is an iterator, or a masked array or a list that contains one."""
    kind = type(value)
    if kind is np.ndarray or kind is float or kind is int:
        return
    if hasattr(kind, "__next__"):
        refuse_iterator(value)
    # NumPy imports the module on first use, perhaps now in another thread
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(value, masked):
        raise TypeError(
            "tensors have no masks, so that the masked elements of a numpy.ma array would count; "
            "pass x.filled(0.0), x.compressed(), or choose with tg.where(mask, ...)"
        )
    if type(value) in (list, tuple):
        for item in value:
            refuse_masked(item)


def refuse_iterator(value: Any, name: str = "") -> None:
    """Raise if a value is a generator or another iterator, which NumPy takes for one object."""
    if hasattr(type(value), "__next__") and not hasattr(value, "__array__"):
        raise TypeError(
            f"{name and name + ': '}a {type(value).__name__} is no array; make a list of its "
            "items: list(...)"
        )


def refuse_complex(name: str, *values: Any) -> None:
    """Raise if a value is complex."""
    if any(dtype_of(value).kind == "c" for value in values):
        raise TypeError(f"{name} of complex numbers is not supported; take their real and imag")


def in_precision_of(x: Any, constant: Any) -> Any:
    """Return a constant real array in the precision of x, if x is floating point."""
    dtype = np.empty(0, dtype_of(x)).real.dtype
    is_real = hasattr(constant, "dtype") and constant.dtype.kind != "c"
    return constant.astype(dtype) if dtype.kind == "f" and is_real else constant


def copied(x: Any) -> Any:
    """Return a copy."""
    return TABLE["astype"](x, dtype_of(x))


def layout_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of an array in their order in memory."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))


def memory_order(x: Any) -> tuple[int, ...]:
    """Return the axes of an array or a tensor in their order in memory."""
    return layout_order(memory_strides(x))


def memory_strides(x: Any) -> tuple[int, ...]:
    """Return the strides of an array or a tensor, of a traced one those when it was recorded."""
    known: tuple[int, ...] | None = getattr(x, "_memory_strides", None)
    return x.strides if known is None else known
