"""What an op is, whatever its kind.

An `Op` has a forward function on NumPy arrays and derivative rules whose argument names say what
they read: ``g`` the cotangent, ``z`` the output, names of the op's own arguments, names of its
parameters. What some rule reads is what gets saved, and nothing else.

Rules call other ops. Called with arrays an op computes; called with anything that says of itself
that ops are to be applied to it (``_apply_op``), it goes through its public function. So one rule
serves the sweep (arrays) and differentiation of the gradient itself (tensors), and this package
knows nothing of tensors.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tapegrad.tape.codes import OPS

Rule = Callable[..., Any]
Declared = TypeVar("Declared")
Plan = tuple[tuple[str, ...], tuple[str, ...], bool]
Domain = tuple[float, float]
Out = tuple[tuple[int, ...], np.dtype]  # shape and dtype
Batched = Sequence[Any]  # for every argument whether it is batched; a list of these for a list
TABLE: dict[str, Op] = {}  # every op by name


class Fact(enum.Flag):
    """What the derivatives of compiled functions have to know of an elementwise function."""

    NONE = 0
    ARITHMETIC = enum.auto()  # it takes a few cycles, less than to keep its result
    SINGULAR = enum.auto()  # its derivative is infinite or nan somewhere
    OVERFLOWING = enum.auto()  # it is infinite at finite numbers, with its derivative
    VANISHING = enum.auto()  # infinite tangents may have no influence: it is constant at infinity,
    # or another value was chosen
    PASSING = enum.auto()  # it passes cotangents on everywhere, but for a factor of the program's
    HOLOMORPHIC = enum.auto()  # its partials hold for complex numbers as they are


class Op:
    """One differentiable function, declared once.

    Attributes
    ----------
    name
        Its public name.
    arguments
        Names of the array arguments, in order.
    parameters
        Names of the other arguments, with their defaults.
    rules
        Derivative rule of each differentiable argument.
    domains
        Intervals of arguments in which it is smooth: where it is tested (see `domain`).
    names
        Its public names (see `public`).
    is_method
        Whether tensors have it as a method.
    wirtinger
        Cotangents of complex arguments, where the rule holds for real ones only.
    batch_rule
        How it is applied to a batch, where its kind does not say (see `batching`).
    """

    kind = "op"
    is_method = False
    batch_rule: Rule | None = None
    function: Any  # computes it on arrays
    public: Callable[..., Any]  # the op on tensors, set by the package that defines them

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
        self.rules: dict[str, Rule] = {}
        self.wirtinger: dict[str, Rule] = {}
        self._plans: dict[int, Plan] = {}
        if self.name in TABLE:
            raise ValueError(f"op {self.name!r} is declared twice")
        TABLE[self.name] = self
        self.code = OPS.register(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in args:
            kind = type(value)
            if kind is np.ndarray:
                continue
            refuse_masked(value)
            if hasattr(kind, "_apply_op") or (
                kind in (list, tuple) and any(hasattr(type(item), "_apply_op") for item in value)
            ):
                return self.public(*args, **kwargs)
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
        """Return the names that an argument's rule reads."""
        return reads_of(self.rules[argument])

    def plan(self, active: int) -> Plan:
        """Return what is to be kept for the cotangents of some arguments (a bit mask).

        Names of values and of shapes; and whether any value of an array is among them.
        """
        found = self._plans.get(active)
        if found is None:
            names = [name for bit, name in enumerate(self.arguments) if active >> bit & 1]
            needed = set[str]().union(*map(self.needs, names)) - {"g"}
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
        """Return the cotangent of an argument, from arrays or tensors by name.

        It may still have the shape to which the argument was broadcast, and a wider dtype.
        """
        return call_rule(self.rules[argument], {**values, "g": g})

    def batching(self, rule: Rule) -> Rule:
        """Declare how the op is applied to a batch, in terms of ops (a decorator).

        The rule reads arguments and parameters by name. Arguments have the batch as their first
        axis, all of them, unless the rule reads `batched` as well: for every argument, and every
        item of a list, whether it is. The output has the batch as its first axis.
        """
        self.batch_rule = rule
        return rule

    def batch(self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]) -> Any:
        """Return the outputs for the items of a batch, computed together.

        Parameters
        ----------
        args
            The arguments, arrays or tensors; the first axis of a batched one is the batch.
        batched
            Whether each of them is batched; of an argument that is a list, a list.
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
        """Return the outputs for the items of a batch, as all ops of this kind compute them."""
        raise NotImplementedError

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        """Return the tangent of the output, from arrays or tensors by name.

        Parameters
        ----------
        tangents
            Of some arguments; of an argument that is a list, a list with None for those without.
        values
            What the rules read (see `plan`).
        out
            Shape and dtype of the output.
        """
        raise NotImplementedError


def public(*names: str, method: bool = False) -> Callable[[Declared], Declared]:
    """Declare under which names a function is found (a decorator, above that of its kind).

    Without it there is one: its own, after the ``NAMESPACE`` of the module if there is such a name.

    Parameters
    ----------
    *names
        All of them; ``"linalg.inv"`` is ``tapegrad.linalg.inv``. Default: its own.
    method
        Tensors have it as a method.
    """

    def declare(function: Any) -> Any:
        if names:
            function.names = names
        function.is_method = method
        return function

    return declare


def internal(function: Declared) -> Declared:
    """Declare what only other functions are made of, without a public name (a decorator)."""
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
    """Call a rule with what it reads."""
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
    """Return the arguments, those that are not batched repeated for every item."""
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
    """Whether a value is a tensor that requires a gradient."""
    return bool(getattr(value, "requires_grad", False))


def rank(value: Any) -> int:
    """Number of dimensions of an array, tensor or number."""
    return len(shape_of(value))


def shape_of(value: Any) -> tuple[int, ...]:
    """Shape of an array, tensor or number."""
    shape = getattr(value, "shape", None)
    return np.shape(value) if shape is None else shape


def in_shape(x: Any, shape: tuple[int, ...]) -> Any:
    """Return what broadcasts to a shape in that shape."""
    return x if shape_of(x) == shape else TABLE["broadcast_to"](x, shape)


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction as non-negative numbers; NumPy's AxisError if there is none.

    As in NumPy, a 0-d array may be reduced over its missing axis.
    """
    if axis is None:
        return tuple(range(ndim))
    if ndim == 0 and axis in (0, -1, (), (0,), (-1,)):
        return ()
    return tuple(normalize_axis_tuple(axis, ndim))


def plain(value: Any) -> np.ndarray:
    """Return the values as an array, for decisions that are not differentiated."""
    array = getattr(value, "_a", value)
    refuse_masked(array)
    return np.asarray(array)


def array_of(value: Any) -> Any:
    """Return a tensor or array as it is, and numbers and lists of them as an array."""
    refuse_masked(value)
    return value if hasattr(value, "shape") else np.asarray(value)


def refuse_masked(value: Any) -> None:
    """Refuse an array some of whose elements do not count, also in lists."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            "tensors have no masks, so that the masked elements of a numpy.ma array would count; "
            "pass x.filled(0.0), x.compressed(), or choose with tg.where(mask, ...)"
        )
    if type(value) in (list, tuple):
        for item in value:
            refuse_masked(item)


def refuse_complex(name: str, *values: Any) -> None:
    """Refuse complex numbers."""
    if any(plain(value).dtype.kind == "c" for value in values):
        raise TypeError(f"{name} of complex numbers is not supported; take their real and imag")


def in_precision_of(x: Any, constant: Any) -> Any:
    """Return a constant real array in the precision of x, if that has one."""
    dtype = plain(x).real.dtype
    is_real = hasattr(constant, "dtype") and constant.dtype.kind != "c"
    return constant.astype(dtype) if dtype.kind == "f" and is_real else constant


def copied(x: Any) -> Any:
    """Return the same values in memory of their own."""
    return TABLE["astype"](x, plain(x).dtype)
