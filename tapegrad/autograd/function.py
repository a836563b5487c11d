"""`Function`: ops whose forward and backward are the user's Python."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from tapegrad.dispatch import owner_of
from tapegrad.frames import (
    SECOND_TIME,
    TUPLE_AVAL,
    append_nary,
    check_unmutated,
    fit_array,
    record_owner,
    select,
)
from tapegrad.modes import MODE
from tapegrad.tape.aval import AVALS, DTYPE_CODES
from tapegrad.tape.code import OPS
from tapegrad.tape.layout import OWN_AVAL, OWN_SLOT
from tapegrad.tape.sweep import Owner, Sweep
from tapegrad.tensor import Tensor, wrap


class _FunctionOp:
    """The op of all user Functions; their frames know which one."""

    name = "function"

    def kernel(self, dtype: int, position: int) -> int:
        raise TypeError("a Function has no compiled partial")


FUNCTION = OPS.register(_FunctionOp())


class FunctionCtx:
    """What a Function's forward leaves for its backward.

    Attributes other than the documented ones are free to use.
    """

    needs_input_grad: tuple[bool, ...] = ()
    _name = "Function"
    _open = True  # while forward or setup_context runs
    _saved: tuple[Any, ...] | None = None
    _materialize = True
    _non_differentiable: tuple[Any, ...] = ()
    _frame: weakref.ref[FunctionFrame] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors (inputs, outputs or others) for the backward pass.

        They are checked for in-place modification when they are read there, and freed after it.

        Raises
        ------
        TypeError
            If one is neither a tensor nor None: keep other values as attributes of ctx.
        RuntimeError
            Outside of forward and setup_context.
        """
        self._check_open("save_for_backward")
        for k, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(
                    "save_for_backward can only save variables, but argument "
                    f"{k} is of type {type(tensor).__name__}"
                )
        self._saved = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """State that outputs do not require gradients; their cotangents arrive as zeros."""
        self._check_open("mark_non_differentiable")
        self._non_differentiable = outputs

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether cotangents that nobody computed arrive as zeros or as None."""
        self._check_open("set_materialize_grads")
        self._materialize = bool(value)

    def _check_open(self, what: str) -> None:
        if not self._open:
            raise RuntimeError(
                f"{self._name}: ctx.{what} can only be called inside forward or setup_context"
            )

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to `save_for_backward`.

        Raises
        ------
        RuntimeError
            If they were modified in place since, or freed by an earlier backward pass.
        """
        if self._frame is None:
            return () if self._saved is None else self._saved
        frame = self._frame()
        if frame is None:
            raise RuntimeError(SECOND_TIME)
        return frame.unpack()


class FunctionFrame:
    """The frame of a user Function's record."""

    __slots__ = (
        "__weakref__",
        "cls",
        "ctx",
        "name",
        "outputs",
        "parents",
        "saved",
        "saves",
        "slot",
        "tensors",
    )

    def __init__(
        self,
        cls: type[Function],
        ctx: FunctionCtx,
        parents: list[Owner | None],
        tensors: list[bool],
    ) -> None:
        self.cls = cls
        self.tensors = tensors  # which arguments were tensors
        self.ctx = ctx
        self.name = cls.__name__
        self.parents = parents
        self.outputs: list[tuple[tuple[int, ...], np.dtype] | None] = []
        self.saved: tuple[Any, ...] = ()
        self.saves = False
        self.slot = 0

    def keep(self, saved: tuple[Any, ...] | None, results: tuple[Any, ...]) -> None:
        """Keep saved tensors: outputs by their number, as they would hold this record."""
        numbers = {id(result): k for k, result in enumerate(results) if isinstance(result, Tensor)}
        self.saved = tuple(
            None
            if tensor is None
            else (numbers[id(tensor)], tensor._a)
            if id(tensor) in numbers and tensor._own is None
            else wrap(tensor._a, tensor._own)
            for tensor in saved or ()
        )
        self.saves = bool(self.saved)

    def unpack(self) -> tuple[Tensor | None, ...]:
        """Return the saved tensors, checked against mutation and freeing."""
        owner = record_owner(self.slot)  # found through the tape: a reference would be a cycle
        if owner is None:
            raise RuntimeError(SECOND_TIME)
        found: list[Tensor | None] = []
        for item in self.saved:
            if type(item) is tuple:
                k, array = item
                own: Owner | None = owner
                if owner[OWN_AVAL] == TUPLE_AVAL and len(self.outputs) > 1:
                    own = select(owner, k) if MODE.recording else None
                found.append(wrap(array, own))
            else:
                found.append(item)
            if found[-1] is not None:
                check_unmutated(self.slot, found[-1]._a)
        return tuple(found)

    def _backward(self, owner: Owner, grads: tuple[Tensor | None, ...], wanted: Any) -> list[Any]:
        """Run the user's backward; return a tensor or None for each argument of apply."""
        ctx = self.ctx
        known = ctx.needs_input_grad
        ctx.needs_input_grad = tuple(
            parent is not None and bool(wanted(parent)) for parent in self.parents
        )
        try:
            result = self.cls._backward_method()(ctx, *grads)
        finally:
            ctx.needs_input_grad = known
        given = list(result) if isinstance(result, tuple) else [result]
        count = len(self.parents)
        if len(given) > count and all(g is None for g in given[count:]):
            given = given[:count]
        if len(given) != count:
            raise RuntimeError(
                f"function {self.name}Backward returned an incorrect number of gradients "
                f"(expected {count}, got {len(given)})"
            )
        for k, (g, parent) in enumerate(zip(given, self.parents, strict=True)):
            if g is not None and not isinstance(g, Tensor):
                raise RuntimeError(
                    f"function {self.name}Backward returned a gradient at index {k} that is no "
                    f"tensor: expected Variable or None (got {type(g).__name__})"
                )
            if g is not None and not self.tensors[k]:
                raise RuntimeError(
                    f"function {self.name}Backward returned a gradient different than None at "
                    f"position {k + 1}, but the corresponding forward input was not a Variable"
                )
            if parent is None:
                given[k] = None
        return given

    def _what(self, k: int) -> str:
        return f"Function {self.name}Backward returned an invalid gradient at index {k}"

    def _materialized(self, given: dict[int, Any]) -> tuple[Tensor | None, ...]:
        grads: list[Tensor | None] = []
        for k, output in enumerate(self.outputs):
            if k in given:
                g = given[k]
                grads.append(g if isinstance(g, Tensor) else wrap(g))
            elif output is None or not self.ctx._materialize:
                grads.append(None)
            else:
                grads.append(wrap(np.zeros(*output)))
        return tuple(grads)

    def cotangents(self, owner: Owner, g: Any, wanted: Any) -> list[Any]:
        """Run backward on tensors, recording it."""
        grads = self._materialized(g if type(g) is dict else {0: g})
        found = self._backward(owner, grads, wanted)
        for k, (cotangent, parent) in enumerate(zip(found, self.parents, strict=True)):
            if cotangent is not None and parent is not None:
                shape = AVALS.shapes[parent[OWN_AVAL]]
                if cotangent.shape != shape:
                    fit_array(cotangent._a, parent[OWN_AVAL], self._what(k))
        return found

    def contributions(self, sweep: Sweep, owner: Owner, g: np.ndarray) -> Iterator[Any]:
        """Run backward inside a compiled sweep."""
        several = owner[OWN_AVAL] == TUPLE_AVAL and owner[OWN_SLOT] in sweep.tuples
        given = sweep.tuples.pop(owner[OWN_SLOT]) if several else {0: g}
        grads = self._materialized(given)
        found = self._backward(owner, grads, lambda parent: sweep.is_needed(parent[OWN_SLOT]))
        for k, (cotangent, parent) in enumerate(zip(found, self.parents, strict=True)):
            if cotangent is not None and parent is not None:
                yield parent[OWN_SLOT], fit_array(cotangent._a, parent[OWN_AVAL], self._what(k))


class Function:
    """Base of ops with a user's forward and backward.

    A subclass defines static methods: `forward(ctx, *args)`, or `forward(*args)` and
    `setup_context(ctx, inputs, output)`; and `backward(ctx, *grads)`, also called `vjp`, which
    returns one gradient (or None) for every argument of forward. It is used through `apply`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> class Cube(tg.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x * x
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            f"{type(self).__name__} should not be instantiated. Methods on autograd functions are "
            "all static, so you should invoke them on the class itself. Instantiating an autograd "
            "function will raise an error in a future version.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: Functions are used through `apply`."""
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use "
            "new-style autograd function with static forward method."
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs (to be defined by the subclass)."""
        raise NotImplementedError("You must implement the forward function for custom Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Leave in ctx what backward will need (with a forward that takes no ctx)."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the arguments (to be defined by the subclass)."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom Function to use "
            "it with backward mode AD."
        )

    vjp = backward

    @classmethod
    def _backward_method(cls) -> Any:
        if cls.backward is not Function.backward and cls.vjp is not Function.vjp:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You "
                "should only implement one of them."
            )
        return cls.vjp if cls.vjp is not Function.vjp else cls.backward

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and record it if an argument requires gradients.

        Parameters
        ----------
        *args, **kwargs
            Arguments of forward: tensors and anything else. Keywords take the places of the
            arguments that they name; backward returns a gradient for these as well.

        Returns
        -------
        Tensor or tuple
            The outputs of forward.
        """
        cls._backward_method()
        ctx = FunctionCtx()
        if kwargs:
            separate = cls.setup_context is not Function.setup_context
            first = () if separate else (ctx,)
            bound = inspect.signature(cls.forward).bind(*first, *args, **kwargs)
            bound.apply_defaults()
            args = bound.args[len(first) :]
        parents = [owner_of(arg) for arg in args]
        ctx._name = cls.__name__
        record = MODE.recording and any(parent is not None for parent in parents)
        ctx.needs_input_grad = tuple(record and parent is not None for parent in parents)
        before = MODE.set_recording(False)
        try:
            if cls.setup_context is not Function.setup_context:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)
            else:
                output = cls.forward(ctx, *args)
        finally:
            MODE.set_recording(before)
        ctx._open = False
        results = output if isinstance(output, tuple) else (output,)
        # an argument returned as it is becomes an output of its own
        passed = {id(arg) for arg in args if isinstance(arg, Tensor)}
        saved = ctx._saved
        fresh = tuple(
            wrap(result._a)
            if isinstance(result, Tensor) and id(result) in passed
            else wrap(np.asarray(result))
            if isinstance(result, (np.ndarray, np.generic))
            else result
            for result in results
        )
        if not record:
            return fresh if isinstance(output, tuple) else fresh[0]
        frame = FunctionFrame(cls, ctx, parents, [isinstance(arg, Tensor) for arg in args])
        _record(frame, fresh, saved)
        for result, given in zip(fresh, results, strict=True):
            if isinstance(result, Tensor) and result._own is not None:
                _mark_shared(result, given, args)
        return fresh if isinstance(output, tuple) else fresh[0]


def _mark_shared(result: Tensor, given: Any, args: tuple[Any, ...]) -> None:
    """Note an output that shows memory of an argument, so that in-place work on it is refused."""
    for arg in args:
        if isinstance(arg, Tensor) and (given is arg or np.may_share_memory(result._a, arg._a)):
            meta = result.ensure_meta()
            meta.function_view = True
            if meta.base is None:
                meta.base = arg


def _record(frame: FunctionFrame, results: tuple[Any, ...], saved: tuple[Any, ...] | None) -> None:
    """Record a Function and give its outputs their history."""
    ctx = frame.ctx
    frame.keep(saved, results)
    ctx._frame = weakref.ref(frame)
    ctx._saved = None
    passive = {id(result) for result in ctx._non_differentiable}
    outputs = []
    for result in results:
        is_tensor = isinstance(result, Tensor)
        frame.outputs.append((result.shape, result.dtype) if is_tensor else None)
        outputs.append(
            result
            if is_tensor and id(result) not in passive and result.dtype in DTYPE_CODES
            else None
        )
    if len(results) == 1:
        if outputs[0] is not None:
            outputs[0]._own = append_nary(FUNCTION, AVALS.of(outputs[0]._a), frame)
            frame.slot = outputs[0]._own[OWN_SLOT]
        return
    record = append_nary(FUNCTION, TUPLE_AVAL, frame)
    frame.slot = record[OWN_SLOT]
    for k, result in enumerate(outputs):
        if result is not None:
            result._own = select(record, k)
