"""`Function`: calling and recording a user-defined op."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.autograd.engine.context import (
    ACTIVE,
    FUNCTION,
    OTHER,
    PASSIVE,
    BackwardCFunction,
    FunctionCtx,
)
from tapegrad.autograd.engine.given_arguments import note_array, note_contained
from tapegrad.cuda.array import kind_of
from tapegrad.eager.batched import Batched
from tapegrad.eager.dispatch import passive
from tapegrad.eager.duals import (
    any_dual,
    set_tangent,
    share_tangents,
    spoil_tangent,
    tangent_of,
    tangent_to_write,
)
from tapegrad.eager.frames import TUPLE_AVAL, append_record, maker_of, note_origin, select
from tapegrad.eager.histories import give_history, histories_after, spoil_writes
from tapegrad.eager.inplace import check_writable, write
from tapegrad.eager.lines import level_of_user
from tapegrad.eager.modes import COMPUTE_ONLY, MODE, RECORD_OP
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.saved_values import with_own_memory
from tapegrad.eager.tensor import Tensor, meta_of_result, wrap
from tapegrad.eager.traced import is_recording
from tapegrad.eager.traced_callbacks import called_back
from tapegrad.probes import probe
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE
from tapegrad.tape.layout import OWN_SLOT
from tapegrad.tape.owner import Owner
from tapegrad.tape.tape import TAPE

_ONE_PASSIVE, _ONE_ACTIVE = [PASSIVE], [ACTIVE]  # kinds of a single argument

_LEGACY = (
    "Legacy autograd function with non-static forward method is deprecated. Please use new-style "
    "autograd function with static forward method."
)


def _no_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep values for backward on ctx, if forward takes no ctx."""
    raise NotImplementedError("setup_context is not implemented.")


def _no_backward(ctx: Any, *grad_outputs: Any) -> Any:
    """Return the gradients of the arguments (the subclass defines this or `vjp`).

    Parameters
    ----------
    ctx
        The context of the call.
    *grad_outputs
        One cotangent per output.
    """
    raise NotImplementedError(
        "You must implement either the backward or vjp method for your custom autograd.Function "
        "to use it with backward mode AD."
    )


def _no_jvp(ctx: Any, *grad_inputs: Any) -> Any:
    """Return the tangents of the outputs (defined by the subclass).

    Parameters
    ----------
    ctx
        The context of the call.
    *grad_inputs
        One tangent per argument.
    """
    raise NotImplementedError(
        "You must implement the jvp function for custom autograd.Function to use it with "
        "forward mode AD."
    )


def _both(ctx: Any, *grad_outputs: Any) -> Any:
    raise RuntimeError(
        "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should "
        "only implement one of them."
    )


def _as_method(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a rule that is not a function, such as a partial or a class method, in one."""

    @functools.wraps(rule, assigned=("__doc__",))
    def called(ctx: Any, *grad_outputs: Any) -> Any:
        return rule(ctx, *grad_outputs)

    return called


class FunctionMeta(type):
    """The metaclass of Functions, which creates a node class for each."""

    _backward_cls: type[BackwardCFunction]
    _context_cls: type[BackwardCFunction] = BackwardCFunction
    _separate: bool  # whether forward takes no ctx

    def __init__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> None:
        super().__init__(name, bases, attributes)
        body = {"_forward_cls": cls, "op_name": name, "__module__": cls.__module__}
        cls._backward_cls = type(f"{name}Backward", (cls._context_cls,), body)
        cls._look()

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("backward", "vjp", "jvp", "setup_context"):
            cls._look()

    def _look(cls) -> None:
        """Determine which rules the class defines, and in which form."""
        backward, vjp = (getattr(cls, name) is not _no_backward for name in ("backward", "vjp"))
        cls._separate = getattr(cls, "setup_context") is not _no_setup  # noqa: B009
        cls._backward_cls._has_jvp = getattr(cls, "jvp") is not _no_jvp  # noqa: B009
        if backward and vjp:
            cls._backward_cls._rule = _both
        else:
            rule = getattr(cls, "vjp" if vjp else "backward")
            cls._backward_cls._rule = rule if inspect.isfunction(rule) else _as_method(rule)


class Function(FunctionCtx, metaclass=FunctionMeta):
    """An op with user-defined forward and backward.

    Subclasses define static methods and are used through `apply`:

    - ``forward(ctx, *args)``, or ``forward(*args)`` with ``setup_context(ctx, inputs, output)``,
      computes the outputs without recording;
    - ``backward(ctx, *grads)`` (or its other name, ``vjp``) returns a gradient for every argument
      of forward, or None.

    Examples
    --------
    >>> import tapegrad as tg
    >>> class Cube(tg.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x**2
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    generate_vmap_rule = False
    _apply_to_batch: Callable[..., Any]  # set by `tapegrad.autograd.engine.batched_function`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all "
            "static, so you should invoke them on the class itself. Instantiating an autograd "
            "function will raise an error in a future version.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(_LEGACY)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs (defined by the subclass).

        Parameters
        ----------
        *args
            The context, unless the class defines `setup_context`, then the arguments of `apply`.
        """
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    setup_context = staticmethod(_no_setup)
    backward = staticmethod(_no_backward)
    vjp = staticmethod(_no_backward)
    jvp = staticmethod(_no_jvp)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Apply the Function to a batch (defined by the subclass).

        Parameters
        ----------
        info
            Size of the batch.
        in_dims
            The batched axis of every argument, or None.
        *args
            The arguments.
        """
        raise NotImplementedError(
            "To use autograd.Function with vmap, you must either override the vmap staticmethod or "
            "set generate_vmap_rule=True."
        )

    @classmethod
    @probe(lambda args: args[0].__name__, "function")
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward and record it if an argument requires gradients.

        Parameters
        ----------
        *args, **kwargs
            Arguments of forward: tensors and other values. Keyword arguments are converted to
            positional ones; backward returns a gradient for these too.

        Returns
        -------
        Tensor or tuple
            The outputs of forward.
        """
        if kwargs or cls._separate:
            args = _bind(cls, args, kwargs)
        if MODE.special and MODE.thread.levels and any(type(arg) is Batched for arg in args):
            return cls._apply_to_batch(cls, args)
        if is_recording(args):
            return called_back(f"the Function {cls.__name__}", cls.apply, args)
        ctx = cls._backward_cls()
        is_dual = bool(MODE.special) and any_dual(args)
        if is_dual and not ctx._has_jvp:
            ctx.apply_jvp()  # which raises
        if len(args) == 1 and type(args[0]) is Tensor:
            ctx._kinds = kinds = _ONE_PASSIVE if args[0]._own is None else _ONE_ACTIVE
        else:
            ctx._kinds = kinds = [
                (PASSIVE if arg._own is None else ACTIVE) if isinstance(arg, Tensor) else OTHER
                for arg in args
            ]
            if OTHER in kinds:
                note_contained(cls, args)
                places = [k for k, arg in enumerate(args) if type(arg) is np.ndarray]
                if places:
                    ctx._arrays = frozenset(places)
        if ctx._has_jvp:
            ctx._shapes = [
                kind_of(a._a) if isinstance(a, Tensor) and a.dtype in DIFFERENTIABLE else None
                for a in args
            ]
        switches = MODE.thread.__dict__
        key, action, recording = id(switches), switches["action"], switches["recording"]
        items_are_values = switches["items_are_values"]
        before = None if action == RECORD_OP else switches.copy()
        start = TAPE.position()
        try:
            try:  # inlined MODE.with_recording(False, ...)
                if before is None:
                    MODE.special[key] = None
                    switches["recording"], switches["action"] = False, COMPUTE_ONLY
                else:
                    MODE.set_recording(False)
                    MODE.set_dual(None)
                switches["items_are_values"] = False  # it takes tensors, whatever calls it
                if cls._separate:
                    output = cls.forward(*args)
                    cls.setup_context(ctx, args, output)
                else:
                    output = cls.forward(ctx, *args)
            except AttributeError as error:
                note_array(cls, args, error)
                raise
            finally:
                switches["items_are_values"] = items_are_values
                if before is not None:
                    MODE.special[key] = None
                    switches.update(before)
                elif switches["action"] == COMPUTE_ONLY:
                    switches["recording"], switches["action"] = True, RECORD_OP
                    MODE.special.pop(key, None)
                else:
                    MODE.set_recording(True)
            several = isinstance(output, tuple)
            recording = recording and not switches["inference"]
            is_active = recording and ACTIVE in kinds
            if is_active and len(ctx.__dict__) > 1 + bool(ctx._given):  # more than kinds and those
                ctx.note_computed(output if several else (output,), args)
            if is_active and not ctx._marked and not is_dual:
                if not several:
                    aval = _fresh(output, args)
                    if aval is not None:
                        return _record_one(ctx, args, output, aval)
                else:
                    avals = [_fresh(result, args) for result in output]
                    if None not in avals and len({*map(id, output)}) == len(output) > 1:
                        return _record_several(ctx, args, output, avals)
            ctx._closed = True
            given = output if several else (output,)
            results = _record(cls, ctx, args, given, recording, is_dual)
            if is_dual:
                _add_tangents(ctx, args, given, results)
            return results if several else results[0]
        except BaseException:
            _spoil(ctx, args, recording and not switches["inference"], is_dual, start)
            raise


def _spoil(
    ctx: BackwardCFunction, args: tuple[Any, ...], recording: bool, is_dual: bool, start: int
) -> None:
    """Refuse derivatives of arguments that forward has changed, after an error or interrupt.

    These are what is marked as dirty, and what was written since `start` without a new history: the
    mark may have been still to come.
    """
    dirty = {id(tensor): tensor for tensor in ctx._dirty}
    for tensor in dirty.values():
        TAPE.note_mutation(tensor._a, ctx.op_name)
    for arg in args:
        if isinstance(arg, Tensor) and arg._is_tracked and TAPE.is_written(arg._a, start):
            dirty[id(arg)] = arg
    if recording:
        spoil_writes(dirty.values(), _parents(args), ctx.op_name)
    if is_dual:
        for tensor in dirty.values():
            spoil_tangent(tensor)


def _bind(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return all arguments of forward as positional arguments, including defaults."""
    first = () if cls._separate else (None,)
    if not kwargs and not cls.forward.__defaults__:
        return args
    bound = inspect.signature(cls.forward).bind(*first, *args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"{cls.__name__}.forward() got an unexpected keyword argument "
            f"{next(iter(bound.kwargs))!r}: arguments are passed to it by position only"
        )
    return bound.args[len(first) :]


def _fresh(result: Any, args: tuple[Any, ...]) -> int | None:
    """Return the aval of an output if it is a new tensor with its own memory, else None."""
    if type(result) is not Tensor or result._own is not None or result._meta is not None:
        return None
    array = result._a
    if array.base is not None:
        return None
    if len(args) > 1:  # a single argument has history, so it is not the result
        for arg in args:
            if arg is result:
                return None
    return AVALS.known(array)


def _parents(args: tuple[Any, ...]) -> list[Owner]:
    return [arg._own for arg in args if isinstance(arg, Tensor) and arg._own is not None]


def _record_one(ctx: BackwardCFunction, args: tuple[Any, ...], result: Tensor, aval: int) -> Tensor:
    """Record a call whose output is one new tensor (the fast path)."""
    given = ctx._given
    if given:
        if len(given) == 1 and given[0] is result and not MODE.special:
            ctx._saved = ((0, result._a),)
            ctx._given = ()
        else:
            ctx.keep((result,), args)
    if len(args) == 1:
        parent = args[0]._own
        owner = TAPE.append(FUNCTION, aval, parent[OWN_SLOT], 0, (parent, None, ctx))
        if MODE.special:
            note_origin(owner)
    else:
        owner = append_record(FUNCTION, aval, _parents(args), ctx, False)
    ctx._slot = owner[OWN_SLOT]
    result._own = owner
    return result


def _record_several(
    ctx: BackwardCFunction, args: tuple[Any, ...], results: tuple[Tensor, ...], avals: list[Any]
) -> tuple[Tensor, ...]:
    """Record a call whose outputs are several new tensors."""
    if ctx._given:
        ctx.keep(results, args)
    ctx.outputs = [AVALS.kind(aval) for aval in avals]
    owner = append_record(FUNCTION, TUPLE_AVAL, _parents(args), ctx, False)
    ctx._slot = owner[OWN_SLOT]
    for k, result in enumerate(results):
        result._own = select(owner, k)
    return tuple(results)


def _record(
    cls: type[Function],
    ctx: BackwardCFunction,
    args: tuple[Any, ...],
    given: tuple[Any, ...],
    recording: bool,
    is_dual: bool,
) -> tuple[Any, ...]:
    """Record a call in the general case, and return its outputs."""
    record = recording and ACTIVE in ctx._kinds
    dirty = _check_dirty(cls, ctx, args, given, recording)
    results = _outputs(args, given, dirty, is_dual)
    if not record:
        for result in results:
            if type(result) is Tensor and result._own is None and result._meta is None:
                result._meta = meta_of_result(*args)
        return results
    skipped = {id(tensor) for tensor in ctx._non_differentiable}
    differentiable = [
        isinstance(result, Tensor)
        and not {id(result), id(old)} & skipped
        and result.dtype in DIFFERENTIABLE
        for result, old in zip(results, given, strict=True)
    ]
    parents = _parents(args)
    for result, is_one in zip(results, differentiable, strict=True):
        if isinstance(result, Tensor) and not is_one and id(result) not in dirty:
            result._own = None
    ctx.keep(given, args, dirty)
    if len(results) == 1:
        if differentiable[0]:
            own = append_record(FUNCTION, AVALS.of(results[0]._a), parents, ctx, False)
            ctx._slot = own[OWN_SLOT]
            _set_history(results[0], own, dirty)
    else:
        ctx.outputs = [
            kind_of(result._a) if isinstance(result, Tensor) else None for result in results
        ]
        own = append_record(FUNCTION, TUPLE_AVAL, parents, ctx, False)
        ctx._slot = own[OWN_SLOT]
        for k, result in enumerate(results):
            if differentiable[k]:
                _set_history(result, select(own, k), dirty)
    for k, result in enumerate(results):
        if isinstance(result, Tensor) and result._own is not None and id(result) not in dirty:
            _mark_shared(cls, result, k, len(results), args)
    return results


def _add_tangents(
    ctx: BackwardCFunction, args: tuple[Any, ...], given: tuple[Any, ...], results: tuple[Any, ...]
) -> None:
    """Give the outputs of a call the tangents that the user's jvp returns."""
    makers = [maker_of(z._own)[0] for z in results if isinstance(z, Tensor)]
    owner = next((own for own in makers if own is not None), None)
    tangents = [tangent_of(arg) for arg in args]
    share_tangents(args)
    kinds = [(z.shape, z.dtype) if isinstance(z, Tensor) else None for z in results]
    dirty = {id(tensor) for tensor in ctx._dirty}
    places: dict[int, int] = {}  # by the numbers of outputs: those of the arguments that they are
    for j, arg in enumerate(args):
        if id(arg) in dirty:
            places |= {k: j for k, z in enumerate(results) if z is arg}
            if (t := tangents[j]) is not None:  # jvp writes to it, and others may have it
                tangents[j] = MODE.with_dual(None, t.clone)
    found = MODE.with_dual(None, ctx.pushed, owner, tangents, kinds, places)
    skipped = {id(tensor) for tensor in ctx._non_differentiable}
    for k, (old, z, t) in enumerate(zip(given, results, found, strict=True)):
        if not isinstance(z, Tensor) or z.dtype not in DIFFERENTIABLE or {id(z), id(old)} & skipped:
            if t is not None and isinstance(z, Tensor):
                raise RuntimeError(
                    f"Function's jvp returned a gradient at position {k}, but the corresponding "
                    f"forward output is not a differentiable Tensor. ({ctx.op_name}) You should "
                    "return None at that position instead."
                )
        elif id(z) in dirty:
            written = 0.0 if t is None else t
            MODE.with_dual(None, write, tangent_to_write(z), written, ctx.op_name, True)
        elif t is None:
            set_tangent(z, None)
        else:
            set_tangent(z, t if t.dtype == z.dtype else FUNCTIONS["astype"](t, z.dtype))
    ctx.keep_tangents(results)


def _check_dirty(
    cls: type[Function],
    ctx: BackwardCFunction,
    args: tuple[Any, ...],
    given: tuple[Any, ...],
    recording: bool,
) -> dict[int, Tensor]:
    """Return the tensors that forward modified, by id, after checking them."""
    dirty = {id(tensor): tensor for tensor in ctx._dirty}
    if dirty.keys() - {id(result) for result in given}:
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. "
            "The inputs that are modified inplace must all be outputs of the Function."
        )
    inputs = {id(arg) for arg in args}
    for tensor in dirty.values():
        TAPE.note_mutation(tensor._a, cls.__name__)
        if id(tensor) not in inputs:
            warnings.warn(
                f"{cls.__name__}: ctx.mark_dirty() received a tensor that was not an input. There "
                "is no need to pass a tensor created in the forward pass to mark_dirty.",
                UserWarning,
                stacklevel=level_of_user(),
            )
        if not recording:
            continue
        meta = tensor.meta()
        base = None if meta is None else meta.base
        if tensor._own is not None and tensor.is_leaf and (base is None or base._own is None):
            raise RuntimeError(
                "a leaf Variable that requires grad has been used in an in-place operation."
            )
        check_writable(tensor, cls.__name__, *args)
        if base is not None and len(given) > 1:
            raise RuntimeError(
                "If your Function modifies inplace an input that is a view of another Tensor, your "
                "Function cannot return more than one Tensor. This is not supported by the current "
                "autograd engine. You should either make sure the input is not a view (using "
                ".clone() for example) or make your Function only return one Tensor (potentially "
                "splitting it into two Functions: one doing the inplace that returns a single "
                "Tensor and a second one that does the other operations)."
            )
    return dirty


def _outputs(
    args: tuple[Any, ...], given: tuple[Any, ...], dirty: dict[int, Tensor], is_dual: bool
) -> tuple[Any, ...]:
    """Return the outputs of apply; an argument returned unchanged becomes a new tensor.

    Any other result returned twice is one tensor, with the gradient of its last position. With
    tangents, of which the user's jvp makes new ones, outputs do not share memory with arguments.
    """
    inputs = {id(arg) for arg in args}
    results: list[Any] = []
    places: dict[int, int] = {}
    for k, result in enumerate(given):
        if isinstance(result, (np.ndarray, Tensor)) and id(result) not in inputs:
            first = places.setdefault(id(result), k)
            if first != k:
                results.append(results[first])
                continue
        if isinstance(result, (np.ndarray, np.generic)):  # a work array, perhaps
            result = passive(np.array(result))
        elif isinstance(result, Tensor) and id(result) not in dirty:
            array = result._a
            is_view = any(isinstance(a, Tensor) and np.may_share_memory(array, a._a) for a in args)
            if is_dual and is_view:
                result = wrap(array.copy())
            elif id(result) in inputs or result._own is not None:
                result = wrap(array)
            elif not is_view:
                result = with_own_memory(result)
        results.append(result)
    return tuple(results)


def _set_history(result: Tensor, own: Any, dirty: dict[int, Tensor]) -> None:
    if id(result) in dirty:
        for tensor, new in histories_after(result, own):
            give_history(tensor, new)
    else:
        result._own = own


def _mark_shared(
    cls: type[Function], result: Tensor, k: int, count: int, args: tuple[Any, ...]
) -> None:
    """Note an output that is a view: writing to it in place is refused."""
    for arg in args:
        if isinstance(arg, Tensor) and np.may_share_memory(result._a, arg._a):
            meta = result.ensure_meta()
            known = arg.meta()
            meta.base = arg if known is None or known.base is None else known.base
            meta.base.ensure_meta().add_view(result)
            break
    if (known := result.meta()) is None or known.base is None:
        return
    known.unrecorded_view = ""
    if count > 1:
        known.one_of_several = cls.__name__, k
    known.function_view = cls.__name__
