"""The kinds of ops, which derive everything the package needs from one declaration.

=============  =============================  ==========================================
kind           the declaration gives          derived
=============  =============================  ==========================================
elementwise    scalar formula, partials       forward loop, reverse kernel, broadcasting
reduction      NumPy function, one partial    reverse kernel over the unreduced space
view           NumPy function that views      its transpose, the sweep's strided copy
=============  =============================  ==========================================

The sweep runs these without Python. For the kinds in `tapegrad.ops.table.array_kinds`, it calls the
rules in Python. A composite (`tapegrad.ops.table.composite`) has no rules of its own.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.kernels import codegen
from tapegrad.kernels.structs import address_of
from tapegrad.ops.table import sparsity
from tapegrad.ops.table.batching import aligned, shifted_axes
from tapegrad.ops.table.compiled_maps import CompiledMap, Formula
from tapegrad.ops.table.op import (
    TABLE,
    Batched,
    Domain,
    Fact,
    Op,
    Out,
    Rule,
    call_rule,
    in_shape,
    is_complex,
    normalize_axes,
    reads_of,
    shape_of,
)
from tapegrad.ops.table.partials import taken_apart
from tapegrad.tape.avals import DTYPE_CODES
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import (
    KIND_CAST,
    KIND_FLAT,
    KIND_MAP,
    KIND_PYTHON,
    KIND_REDUCE,
    KIND_VIEW,
    OWN_INPUTS,
    TRAIT_PASSES_X,
    TRAIT_PASSES_Y,
    TRAIT_SAVES,
)

COMPILED_FROM = 256  # number of elements from which a compiled forward loop pays off


class SweptOp(Op):
    """An op whose vjp the sweep runs without Python.

    After the fixed part, its owner holds the owners of the `differentiable` inputs, followed by a
    place for every value in `saved`.
    """

    sweep_kind = KIND_PYTHON
    chooses = False  # a partial of 0 means not chosen: the cotangent is 0

    def __init__(self, declaration: Formula, arrays: int | None = None, real: bool = False) -> None:
        super().__init__(declaration, arrays)
        self.real = real
        self.differentiable: tuple[str, ...] = ()
        self.saved: tuple[str, ...] = ()
        # name of every saved value, its index in the owner, and the index of the owner that made it
        # (0 for the record itself, -1 for none)
        self.places: tuple[tuple[str, int, int], ...] = ()
        self.extras: dict[str, Callable[..., np.ndarray]] = {}

    @property
    def saves_nothing(self) -> bool:
        """Whether it never saves a value, for real or complex numbers."""
        return not self.saved and not self.wirtinger

    def partial(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the partial derivative with respect to an argument (a decorator)."""

        def declare(rule: Rule) -> Rule:
            self.rules[argument] = rule
            self.describe()
            return rule

        return declare

    def partials(self, rule: Rule) -> Rule:
        """Declare the partial derivatives with respect to all arguments, a tuple (a decorator)."""
        for argument, part in zip(self.smooth_arguments, taken_apart(rule), strict=True):
            if self.given.keys() & {*reads_of(part)}:
                raise TypeError(f"{self.name}: a partial reads a given value as a constant")
            self.partial(argument)(part)
        return rule

    @property
    def smooth_arguments(self) -> tuple[str, ...]:
        """The arguments with respect to which it may be differentiated."""
        return self.arguments

    def complex_vjp(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the cotangent of a complex argument as a function of `g` (a decorator).

        Needed for functions that are not holomorphic. For others, the cotangent is `g` times the
        conjugate of the partial.
        """

        def declare(rule: Rule) -> Rule:
            self.wirtinger[argument] = rule
            return rule

        return declare

    def cotangent(self, argument: str, g: Any, values: dict[str, Any]) -> Any:
        if type(g) is DeviceArray and self.reads(argument):  # in one kernel, if there is one
            read = {name: values[name] for name in self.reads(argument)}
            found = g.times_partial(self.rules[argument], read, self.chooses)
            if found is not None:
                return found
        if any(map(is_complex, values.values())):
            values = self._as_complex(values)
        if self.wirtinger:
            rule = self.wirtinger.get(argument)
            if rule is not None and is_complex(values.get(argument, g)):
                return call_rule(rule, {**values, "g": g})
        partial = call_rule(self.rules[argument], values)
        if self.chooses:
            g = TABLE["where"](partial != 0.0, g, 0.0)
        if type(partial) is float:
            return g if partial == 1.0 else TABLE["multiply"](g, partial)
        if is_complex(partial):
            partial = TABLE["conjugate"](partial)
        return TABLE["multiply"](g, partial)

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        if any(map(is_complex, [*values.values(), *tangents.values()])):
            values = self._as_complex(values)
        terms = [self._term(name, t, values, out) for name, t in tangents.items()]
        return in_shape(functools.reduce(TABLE["add"], terms), out[0])

    def _term(self, argument: str, t: Any, values: dict[str, Any], out: Out) -> Any:
        """Return the product of a partial and a tangent."""
        rule = self.wirtinger.get(argument)
        if rule is not None and is_complex(t):

            def along(direction: complex) -> Any:
                # real part of the product of the output's tangent and the conjugate of a direction
                found = call_rule(rule, {**values, "g": np.asarray(direction)})
                return TABLE["real"](TABLE["multiply"](TABLE["conjugate"](t), found))

            if out[1].kind != "c":
                return along(1.0)
            return TABLE["add"](along(1.0), TABLE["multiply"](along(1j), 1j))
        partial = call_rule(self.rules[argument], values)
        if self.chooses:
            t = TABLE["where"](partial != 0.0, t, 0.0)
        return t if type(partial) is float and partial == 1.0 else TABLE["multiply"](t, partial)

    def _as_complex(self, values: dict[str, Any]) -> dict[str, Any]:
        """Convert operands to complex numbers of one precision, for complex functions."""
        names = [name for name in ("z", *self.differentiable) if name in values]
        arrays = {name: values[name] for name in names if hasattr(values[name], "dtype")}
        dtype = np.result_type(np.complex64, *(array.dtype for array in arrays.values()))
        numbers = {name: complex(values[name]) for name in names if name not in arrays}
        arrays = {
            name: array if array.dtype == dtype else TABLE["astype"](array, dtype)
            for name, array in arrays.items()
        }
        return {**values, **numbers, **arrays}

    def describe(self) -> None:
        """Determine the saved values, and enter the op into the sweep's table."""
        self.differentiable = tuple(name for name in self.arguments if name in self.rules)
        values = ("z", *self.arguments, *self.extras)
        read = {name for argument in self.differentiable for name in self.reads(argument)}
        self.saved = tuple(name for name in values if name in read)
        first = OWN_INPUTS + len(self.differentiable)
        makers = {name: OWN_INPUTS + k for k, name in enumerate(self.differentiable)}
        makers["z"] = 0
        self.places = tuple(
            (name, first + k, makers.get(name, -1)) for k, name in enumerate(self.saved)
        )
        where = tuple(
            first + self.saved.index(name) if name in self.saved else -1 for name in values
        )
        OPS.describe(
            self.code, self.sweep_kind, len(self.differentiable), where, traits=self._traits()
        )

    def _traits(self) -> int:
        traits = TRAIT_SAVES if self.saved else 0
        passes = (TRAIT_PASSES_X, TRAIT_PASSES_Y)
        for bit, argument in zip(passes, self.differentiable, strict=False):
            if not self.reads(argument) and self.rules[argument]() == 1.0:
                traits |= bit
        return traits

    def kernel(self, dtype: int, position: int) -> int:
        rule: Any = self.rules[self.differentiable[position]]
        values = ("z", *self.arguments, *self.extras)
        return codegen.partial_kernel(rule, values, dtype, self.chooses)


class Broadcasting(Op):
    """A function of scalars applied to every element, with NumPy's broadcasting."""

    def batch_by_kind(
        self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]
    ) -> Any:
        return self(*aligned(args, batched), **parameters)

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        return sparsity.of_broadcasting(args, self.arguments.index(argument))


class Elementwise(Broadcasting, SweptOp):
    """A function of scalars applied to every element, with NumPy's broadcasting."""

    kind = "elementwise"
    sweep_kind = KIND_MAP

    def __init__(
        self,
        declaration: Formula,
        function: Any,
        compiled: bool,
        truths: tuple[str, ...],
        real: bool,
        complex_function: Any,
        chooses: bool,
        domains: dict[str, Domain] | None,
        given: dict[str, Elementwise] | None,
        facts: Fact,
    ) -> None:
        super().__init__(declaration, real=real)
        self.chooses = chooses
        self.facts = facts
        self.domains = domains or {}
        self.given = dict(given or {})
        self.complex_function = function if complex_function is None else complex_function
        self.formula = declaration
        self.scalar_formula = declaration  # for functions of numba's
        self.truths = truths  # arguments of which only the truth value is used
        self.function = function
        self.compiled = None
        if compiled or function is None:
            self.compiled = CompiledMap(declaration, function, self.complex_function)
        self._products: dict[tuple[str, np.dtype], Callable[..., None]] = {}

    def in_numba(self, formula: Formula) -> Formula:
        """Declare the formula that functions of numba's call (a decorator).

        Their code handles one number at a time. The functions of `math` compile in a fraction of
        the time of those for vectors.
        """
        self.scalar_formula = formula
        return formula

    @property
    def smooth_arguments(self) -> tuple[str, ...]:
        return tuple(n for n in self.arguments if n not in self.truths and n not in self.given)

    def _term(self, argument: str, t: Any, values: dict[str, Any], out: Out) -> Any:
        read = {name: values[name] for name in self.reads(argument)}
        alike = all(_are_alike(t, value) for value in read.values())
        if not read or t.size < COMPILED_FROM or not alike:
            return super()._term(argument, t, values, out)
        # the kernel of the sweep multiplies its input by the partial
        found = np.empty_like(t)
        places = ("z", *self.arguments)
        addresses = [address_of(read[name]) if name in read else 0 for name in places]
        addresses += [0] * (4 - len(addresses))
        self._product(argument, t.dtype)(t.size, address_of(t), *addresses, address_of(found))
        return found

    def _product(self, argument: str, dtype: np.dtype) -> Callable[..., None]:
        """Return the compiled product with a partial, for contiguous arrays of one shape."""
        made = self._products.get((argument, dtype))
        if made is None:
            address = self.kernel(DTYPE_CODES[dtype], self.differentiable.index(argument))
            made = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * 7)(address)
            self._products[argument, dtype] = made
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.compiled is not None and not kwargs:
            if self.function is None or _is_for_compiled_loop(args):
                return self.compiled(*args)
        return self.function(*args, **kwargs)


def _is_for_compiled_loop(args: Sequence[Any]) -> bool:
    """Whether there are enough elements, also of arrays that are repeated along others' axes.

    NumPy has loops of its own for numbers beside arrays, as for squares.
    """
    sizes = [np.size(arg) for arg in args]
    smallest = min(sizes)
    if smallest >= COMPILED_FROM or smallest < 2:
        return smallest >= COMPILED_FROM
    count = math.prod(np.broadcast_shapes(*map(np.shape, args)))
    return count >= 4 * COMPILED_FROM  # which pays off for copies, too


def _are_alike(t: Any, value: Any) -> bool:
    """Whether two arrays are contiguous and have the same shape and the same compiled dtype."""
    return (
        type(t) is np.ndarray
        and type(value) is np.ndarray
        and t.dtype in DTYPE_CODES
        and t.dtype == value.dtype
        and t.shape == value.shape
        and t.flags.c_contiguous
        and value.flags.c_contiguous
    )


def elementwise(
    function: Any = None,
    *,
    compiled: bool = False,
    truths: tuple[str, ...] = (),
    real: bool = False,
    complex_function: Any = None,
    chooses: bool = False,
    domains: dict[str, Domain] | None = None,
    given: dict[str, Elementwise] | None = None,
    facts: Fact = Fact.NONE,
) -> Callable[[Formula], Elementwise]:
    """Declare an elementwise op from its scalar formula (a decorator).

    Parameters
    ----------
    function
        The NumPy ufunc that computes it; if None, the formula is compiled.
    compiled
        Whether to use the compiled formula on large arrays, where it is faster than `function`.
    truths
        Arguments of which only the truth value is used.
    real
        Whether it has no derivative for complex arguments.
    complex_function
        Function that computes it for complex arguments, if not `function`.
    chooses
        Whether a partial of 0 means "not chosen": the cotangent is 0 even where `g` is nan.
    domains
        Intervals of its arguments in which it is smooth, if (0.2, 0.8) is not one.
    given
        The ops whose values of the first arguments the last ones are: the caller knows them. They
        have no partials, and other partials do not read them, but compute them again.
    facts
        Properties that derivatives of compiled functions rely on.
    """
    return lambda declaration: Elementwise(
        *(declaration, function, compiled, truths, real),
        *(complex_function, chooses, domains, given, facts),
    )


class Reduction(SweptOp):
    """A reduction over axes; its partial reads the input and the output with axes kept."""

    kind = "reduction"
    sweep_kind = KIND_REDUCE

    def __init__(self, declaration: Formula, function: Any, real: bool, chooses: bool) -> None:
        super().__init__(declaration, arrays=1, real=real)
        self.function = function
        self.chooses = chooses

    def needs(self, argument: str) -> set[str]:
        return super().needs(argument) | {"axis", "x_shape"}

    def cotangent(self, argument: str, g: Any, values: dict[str, Any]) -> Any:
        shape = values["x_shape"]
        axes = normalize_axes(values["axis"], len(shape))
        kept = tuple(1 if k in axes else dim for k, dim in enumerate(shape))
        reshape = TABLE["reshape"]
        kept_values = {
            name: reshape(value, kept) if name == "z" or name in self.extras else value
            for name, value in values.items()
        }
        found = super().cotangent(argument, reshape(g, kept), kept_values)
        return in_shape(found, shape)

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        shape = values["x_shape"]
        axes = normalize_axes(values["axis"], len(shape))
        kept = tuple(1 if k in axes else dim for k, dim in enumerate(shape))
        kept_values = {
            name: TABLE["reshape"](value, kept) if name == "z" or name in self.extras else value
            for name, value in values.items()
        }
        found = super().tangent(tangents, kept_values, (shape, out[1]))
        return TABLE["reshape"](TABLE["sum"](found, axis=axes), out[0])

    def batch_by_kind(
        self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]
    ) -> Any:
        (x,) = args
        return self(x, **{**parameters, "axis": shifted_axes(parameters["axis"], x)})

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        shape = shape_of(args[0])
        axes = normalize_axes(parameters["axis"], len(shape))
        kept = tuple(1 if k in axes else dim for k, dim in enumerate(shape))
        return sparsity.aligned(shape, sparsity.numbered(kept), sparsity.numbered(shape))

    def extra(self, function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        """Declare an additional value with the output's shape that the partial reads (a decorator).

        It is computed from the input, the output and the axes when the op is recorded.
        """
        self.extras[function.__name__] = function
        return function


def reduction(
    function: Any, *, real: bool = False, chooses: bool = False
) -> Callable[[Formula], Reduction]:
    """Declare a reduction ``f(x, axis=None, keepdims=False)`` (a decorator).

    Parameters
    ----------
    function
        Function that computes it.
    real
        Whether it has no derivative for complex arguments.
    chooses
        Whether a partial of 0 means "not chosen": the cotangent is 0 even where `g` is nan.
    """
    return lambda declaration: Reduction(declaration, function, real, chooses)


class View(SweptOp):
    """A linear op whose output consists of elements of its input, each at most once."""

    kind = "view"

    def __init__(self, declaration: Formula, sweep_kind: int) -> None:
        super().__init__(declaration, arrays=1)
        self.function = declaration
        self.shift_rule: Rule | None = None
        self.differentiable = ("x",)
        self.sweep_kind = sweep_kind
        layout = OWN_INPUTS + 2 if sweep_kind == KIND_VIEW else -1
        OPS.describe(self.code, sweep_kind, 1, layout_index=layout)

    def cotangent(self, argument: str, g: Any, values: dict[str, Any]) -> Any:
        parameters = {name: values[name] for name in self.parameters}
        return self.rules["x"](g, values["x_shape"], **parameters)

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        return self(tangents["x"], **{name: values[name] for name in self.parameters})

    def shifts(self, rule: Rule) -> Rule:
        """Declare the parameters for a batch (a decorator).

        The rule reads `size`, the number of items, `x_shape`, their shape, and the parameters for
        one item. By default the parameters for a batch are those for one item.
        """
        self.shift_rule = rule
        return rule

    def shifted(self, size: int, shape: tuple[int, ...], parameters: dict[str, Any]) -> Any:
        """Return the parameters for a batch of items of some shape."""
        if self.shift_rule is None:
            return parameters
        changed = call_rule(self.shift_rule, {**parameters, "size": size, "x_shape": shape})
        return {**parameters, **changed}

    def batch_by_kind(
        self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]
    ) -> Any:
        (x,) = args
        size, *shape = shape_of(x)
        return self(x, **self.shifted(size, tuple(shape), parameters))

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        if self.sweep_kind == KIND_CAST:
            return sparsity.of_broadcasting(args, 0)
        x = np.ascontiguousarray(args[0])
        return sparsity.shown(x, self.function(x, **parameters))

    def transposes(self, rule: Rule) -> Rule:
        """Declare the transpose, a function of `g`, the input's `x_shape`, and the parameters."""
        self.rules["x"] = rule
        return rule


def view(declaration: Formula) -> View:
    """Declare an op that returns a NumPy view (a decorator)."""
    return View(declaration, KIND_VIEW)


def flat(declaration: Formula) -> View:
    """Declare an op that keeps all elements in row-major order (a decorator)."""
    return View(declaration, KIND_FLAT)


def cast(declaration: Formula) -> View:
    """Declare an op that converts between float types (a decorator)."""
    return View(declaration, KIND_CAST)
