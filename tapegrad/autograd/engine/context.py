"""The context of a `Function`, which is also its record in the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tapegrad.autograd.engine.given_arguments import check_tensors
from tapegrad.autograd.engine.kept_values import (
    ARRAYS,
    Computed,
    ComputedFrame,
    as_tensors,
    is_computed,
    kept_values,
    replaced,
    tensors_in,
)
from tapegrad.autograd.engine.mutated import mutated_message
from tapegrad.autograd.engine.node import Node
from tapegrad.cuda.array import as_array, is_array, zeros
from tapegrad.eager.duals import Tangent, saved_tangent_of_output, with_saved_tangent
from tapegrad.eager.frames import (
    FRAMED,
    RefusedFrame,
    RuleFrame,
    SavedArrays,
    append_record,
    check_reducible,
    fit_array,
    maker_of,
    parents_of,
    select,
)
from tapegrad.eager.modes import MODE
from tapegrad.eager.saved_values import SECOND_TIME, Packed, check_unmutated, with_own_memory
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.table.op import is_complex
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE, Kind
from tapegrad.tape.codes import OPS, PythonOp
from tapegrad.tape.layout import OWN_AVAL, OWN_INPUTS, OWN_SLOT
from tapegrad.tape.owner import Owner, inputs_of
from tapegrad.tape.sweep import Contributions, MutatedError, Sweep
from tapegrad.tape.tape import TAPE

_GRADIENT_TYPES = {Tensor, type(None)}
OTHER, PASSIVE, ACTIVE = range(3)  # kinds of arguments: no tensor, a tensor, a tensor with history


FUNCTION = OPS.register(PythonOp("function"))  # one op for all Functions; the frame tells which


class FunctionCtx:
    """Context in which a Function's forward keeps values for its backward.

    Other attributes may be set freely.
    """

    _slot = 0  # slot of the record, 0 while forward or setup_context runs
    _closed = False  # forward has returned and nothing was recorded
    _marked = False  # a mark_ method was called
    _given: Sequence[Tensor | None] = ()  # passed to `save_for_backward`
    _given_forward: Sequence[Tensor | None] = ()  # passed to `save_for_forward`
    _dirty: tuple[Tensor, ...] = ()
    _non_differentiable: tuple[Tensor, ...] = ()
    _materialize = True
    _kinds: Sequence[int] = ()  # kinds of the arguments of apply
    _wanted: Callable[[Owner], bool] | None = None

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Whether the gradient of each argument of apply is needed (in backward, by this pass)."""
        needed = [kind == ACTIVE for kind in self._kinds]
        if self._wanted is not None:
            parents = iter(self._parents())
            needed = [need and self._wanted(next(parents)) for need in needed]
        return tuple(needed)

    def _parents(self) -> list[Owner]:
        return []

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors (inputs, outputs or others) for the backward pass; arrays become tensors.

        They are checked for in-place modification when they are read, and freed after the pass.

        Raises
        ------
        TypeError
            If one is neither a tensor nor None: keep other values as attributes of ctx.
        RuntimeError
            If called outside forward and setup_context.
        """
        if self._slot or self._closed:
            self._refuse("save_for_backward")
        for tensor in tensors:
            if type(tensor) is not Tensor and tensor is not None:
                tensors = as_tensors(tensors)
                check_tensors(
                    tensors,
                    "save_for_backward can only save variables, but argument {} is of type {}",
                    optional=True,
                )
        self._given = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the Function's `jvp`, where they are `saved_tensors`.

        They are checked for in-place modification when they are read.

        Raises
        ------
        TypeError
            If one is neither a tensor nor None.
        RuntimeError
            If called outside forward and setup_context.
        """
        self._check_open("save_for_forward")
        tensors = as_tensors(tensors)
        check_tensors(
            tensors,
            "save_for_forward expects all arguments to be tensors; you should save non-tensors as "
            "attributes on ctx (argument {} is of type {})",
            AssertionError,
            optional=True,
        )
        self._given_forward = tensors
        self._marked = True

    def mark_dirty(self, *args: Tensor) -> None:
        """Declare that forward modifies arguments in place; they must be among its outputs.

        Call it before they are written: if an error or an interrupt ends forward in between, their
        derivatives are refused, since their values no longer belong to their history.
        """
        self._check_open("mark_dirty")
        check_tensors(
            args,
            "mark_dirty can only accept variables, but argument {} is of type {}",
            RuntimeError,
        )
        self._dirty = args
        self._marked = True

    def mark_non_differentiable(self, *args: Tensor) -> None:
        """Declare that outputs do not require gradients; their cotangents are zeros in backward."""
        self._check_open("mark_non_differentiable")
        check_tensors(
            args,
            "mark_non_differentiable only accepts variable arguments, but got {1}",
            RuntimeError,
        )
        self._non_differentiable = args
        self._marked = True

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether backward gets undefined cotangents as zeros or as None."""
        self._check_open("set_materialize_grads")
        self._materialize = bool(value)

    def mark_shared_storage(self, *pairs: Any) -> None:
        """Do nothing (deprecated): shared memory is tracked automatically."""
        warnings.warn(
            "`mark_shared_storage` is deprecated. Tensors with shared storages are automatically "
            "tracked. Note that calls to `set_()` are not tracked",
            FutureWarning,
            stacklevel=2,
        )

    def _check_open(self, what: str) -> None:
        if self._slot or self._closed:
            self._refuse(what)

    def _refuse(self, what: str) -> None:
        name = type(self).__name__.removesuffix("Backward")
        raise RuntimeError(f"{name}: ctx.{what} can only be called inside forward or setup_context")


class BackwardCFunction(Node, RuleFrame, FunctionCtx):
    """A Function's context, which is also its node in the graph and the frame of its record.

    Every Function has its own subclass, named after it with the suffix "Backward". The tape holds
    the context. A node requested by the user is another instance, which shares the context's
    attributes and holds the record.
    """

    __init__ = object.__init__

    runs_undefined = True
    direct = True
    _forward_cls: type[Any]  # the Function
    _rule: Callable[..., Any]  # the Function's backward or vjp
    _saved: tuple[Any, ...] | None = ()  # None once freed
    _saved_forward: tuple[Any, ...] = ()
    _shapes: Sequence[Kind | None] = ()  # of tensors among the arguments, if there is a jvp
    _has_jvp = False
    _arrays: frozenset[int] = frozenset()  # numbers of arguments that are arrays
    _pushes = False  # whether its jvp runs
    _is_dual = False  # whether arguments had tangents
    _tangents: dict[int, Tangent | None] = {}  # noqa: RUF012  (of saved outputs, by number)
    # names of attributes by the ids of tensors in them that forward computed
    _computed: dict[int, str] = {}  # noqa: RUF012
    _runs: Owner | None = None  # owner of this record while its backward runs
    outputs: list[Kind | None] | None = None  # None for a single output

    def apply(self, *args: Any) -> Any:
        """Run the Function's backward (or vjp) with this context."""
        return self._rule(*args)

    def apply_jvp(self, *args: Any) -> Any:
        """Run the Function's jvp with this context."""
        return self._forward_cls.jvp(self, *args)

    # -- saved tensors ----------------------------------------------------------------------------

    def keep(self, results: Sequence[Any], args: Sequence[Any], dirty: Container[int] = ()) -> None:
        """Keep the tensors given to the `save_` methods, now that the outputs are known.

        Those whose ids are in `dirty` are outputs, although they still have an old history.
        """
        hooked = bool(MODE.thread.saved_hooks)
        self._saved = kept_values(self._given, results, args, dirty, hooked)
        self._saved_forward = kept_values(self._given_forward, results, args, dirty, False)
        self._given = self._given_forward = ()  # an output would keep this context alive

    def note_computed(self, results: Sequence[Any], args: Sequence[Any]) -> None:
        """Note the tensors in attributes that forward computed."""
        found: dict[int, str] = {}
        for name, value in self.__dict__.items():
            if name not in _INTERNAL:
                for tensor in tensors_in(value):
                    if tensor._own is None and is_computed(tensor, results, args):
                        found[id(tensor)] = name
        if found:
            self._computed = found

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to `save_for_backward`; in jvp, those given to `save_for_forward`.

        Raises
        ------
        RuntimeError
            If one was modified in place after it was saved, or an earlier pass freed them.
        """
        if not self._slot:
            return tuple(self._given_forward if self._pushes else self._given)
        saved = self._saved_forward if self._pushes else self._saved
        if saved is None:
            raise RuntimeError(SECOND_TIME)
        try:
            if len(saved) == 1:
                return (self._restore(saved[0]),)
            return tuple([self._restore(item) for item in saved])
        except MutatedError:
            owner = self._runs if self._runs is not None else getattr(self, "_own", None)
            raise RuntimeError(mutated_message(self._slot, owner)) from None

    @property
    def saved_variables(self) -> tuple[Tensor | None, ...]:
        """Deprecated name of `saved_tensors`."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2
        )
        return self.saved_tensors

    def _restore(self, item: Any) -> Tensor | None:
        kind = type(item)
        if kind is tuple:  # an output
            k, value = item
            own = self._runs if self._runs is not None and not self.outputs else self._output(k)
            if type(value) is Packed:
                found = value.unpack(own)
            else:
                if TAPE.mutations:
                    check_unmutated(self._slot, value)
                found = wrap(value, own)
            return with_saved_tangent(found, self._tangents.get(k))
        if kind is Packed:
            return item.unpack(None)
        if kind is Computed:
            name = "save_for_forward" if self._pushes else "save_for_backward"
            return self._noting(
                self._restore(item.item), f"value {item.number} given to ctx.{name}"
            )
        if kind is Tensor and TAPE.mutations:
            check_unmutated(self._slot, item._a)
        return item

    def _noting(self, tensor: Any, what: str) -> Any:
        """Return a tensor that forward computed, so that derivatives through it are noticed."""
        owner = self._runs
        in_dual = self._is_dual and MODE.thread.dual is not None
        if owner is None or not (MODE.recording or in_dual):
            return tensor
        frame = ComputedFrame(self.op_name, "jvp" if self._pushes else "backward", what)
        if in_dual:  # its tangent would be needed now
            frame.note(tensor)
        if not MODE.recording:
            return tensor
        parents = inputs_of(owner)
        return wrap(tensor._a, append_record(FRAMED, AVALS.of(tensor._a), parents, frame, False))

    def _run_rule(self, rule: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run backward or jvp; derivatives through attributes that forward computed are noticed."""
        computed = self._computed
        if not computed or not (MODE.recording or self._is_dual):
            return rule(*args)
        before: dict[int, Tensor] = {}

        def noting(tensor: Tensor) -> Tensor:
            if id(tensor) not in computed:
                return tensor
            made = self._noting(tensor, f"ctx.{computed[id(tensor)]}")
            before[id(made)] = tensor
            return made

        names = {*computed.values()} & self.__dict__.keys()
        for name in names:
            self.__dict__[name] = replaced(self.__dict__[name], noting)
        try:
            return rule(*args)
        finally:
            for name in names & self.__dict__.keys():
                found = self.__dict__[name]
                self.__dict__[name] = replaced(found, lambda t: before.get(id(t), t))

    def _output(self, k: int) -> Owner | None:
        """Return the owner of one output.

        A reference from the context to its record would be a cycle, so the record is known only
        while its backward runs and to nodes. Otherwise the output has no history.
        """
        owner = self._runs if self._runs is not None else getattr(self, "_own", None)
        if owner is None or self.outputs is None:
            return owner
        return select(owner, k) if MODE.recording and self.outputs[k] is not None else None

    def keep_tangents(self, results: Sequence[Any]) -> None:
        """Keep the tangents of the outputs that are saved."""
        self._is_dual = True
        saved = {item[0] for item in self._saved or () if type(item) is tuple}
        self._tangents = {k: saved_tangent_of_output(results[k]) for k in saved}

    def release(self) -> None:
        if self._saved:
            self._saved = None

    def saved_arrays(self, owner: Owner) -> SavedArrays:
        found: SavedArrays = []
        for kept in self._saved or ():
            item = kept.item if type(kept) is Computed else kept
            if type(item) is Tensor:
                found.append((item._a, *maker_of(item._own)))
            elif type(item) is tuple and is_array(item[1]):
                found.append((item[1], owner, item[0]))
        return found

    # -- the backward pass ------------------------------------------------------------------------

    def active(self) -> list[bool]:
        return [kind == ACTIVE for kind in self._kinds if kind != OTHER]

    def _parents(self) -> list[Any]:
        return [] if self._runs is None else inputs_of(self._runs)

    def _run(self, owner: Owner, grads: Sequence[Tensor | None], wanted: Any) -> list[Any]:
        """Run the user's backward; return a tensor or None per active argument of apply."""
        self._runs, self._wanted = owner, wanted
        try:
            result = self._run_rule(self._rule, grads)
        finally:
            self._runs = self._wanted = None
        return self._check_result(result, owner, grads)

    def _check_result(
        self, result: Any, owner: Owner, grads: Sequence[Tensor | None] = ()
    ) -> list[Any]:
        kinds = self._kinds
        if type(result) is tuple and len(result) == len(kinds):
            types = set(map(type, result))
            if OTHER not in kinds and types <= _GRADIENT_TYPES:
                result = [g if g is None else with_own_memory(g) for g in result]
                if PASSIVE not in kinds:
                    return result
                return [g for g, kind in zip(result, kinds, strict=True) if kind == ACTIVE]
        name, count = type(self).__name__, len(kinds)
        given = list(result) if isinstance(result, tuple) else [result]
        if len(given) > count and all(g is None for g in given[count:]):
            given = given[:count]
        if len(given) != count:
            raise RuntimeError(
                f"function {name} returned an incorrect number of gradients (expected {count}, got "
                f"{len(given)})"
            )
        for k, g in enumerate(given):
            if g is None:
                continue
            given[k] = g = self._owned(g, "backward", owner, grads)
            if kinds[k] == OTHER and k not in self._arrays:
                raise RuntimeError(
                    f"function {name} returned a gradient different than None at position {k + 1}, "
                    "but the corresponding forward input was not a Variable"
                )
            if not isinstance(g, Tensor):
                raise RuntimeError(
                    f"function {name} returned a gradient at index {k} that is no tensor: expected "
                    f"Variable or None (got {type(g).__name__})"
                )
        return [g for g, kind in zip(given, kinds, strict=True) if kind == ACTIVE]

    def _owned(self, found: Any, rule: str, owner: Owner | None, given: Sequence[Any]) -> Any:
        """Return what a rule returned as a tensor; an array must not be differentiated.

        Arrays are copied: the rule may return the same work array at every call.
        """
        if not isinstance(found, ARRAYS):
            return with_own_memory(found) if isinstance(found, Tensor) else found
        array = as_array(found).copy()
        parents = [] if owner is None else [own for own in inputs_of(owner) if own is not None]
        parents += [t._own for t in given if t is not None and t._own is not None]
        if not (MODE.recording and parents and array.dtype in DIFFERENTIABLE):
            return wrap(array)
        frame = RefusedFrame(
            f"{self.op_name}: its {rule} returned an array, which has no history, so that the "
            "result cannot be differentiated; compute with tensors there"
        )
        return wrap(array, append_record(FRAMED, AVALS.of(array), parents, frame, False))

    def _what(self, parent: int) -> str:
        """Return the start of the message for a wrong gradient, with its argument's number."""
        active = [k for k, kind in enumerate(self._kinds) if kind == ACTIVE]
        name = type(self).__name__
        return f"Function {name} returned an invalid gradient at index {active[parent]}"

    def _defined(self, owner: Owner, g: Tensor | None) -> Tensor | None:
        """Return the cotangent of the only output; zeros or None if it is undefined."""
        if g is None and self._materialize:
            aval = owner[OWN_AVAL]
            return wrap(zeros(*AVALS.kind(aval)))
        return g

    def _complete(self, given: dict[int, Any]) -> list[Tensor | None]:
        """Return a cotangent for every output; zeros or None for undefined ones."""
        grads: list[Tensor | None] = []
        assert self.outputs is not None
        for k, output in enumerate(self.outputs):
            if k in given:
                g = given[k]
                grads.append(g if isinstance(g, Tensor) else wrap(g))
            elif output is None or not self._materialize:
                grads.append(None)
            else:
                grads.append(wrap(zeros(*output)))
        return grads

    def tangents(self, owner: Owner, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run the user's jvp; return the tangent of every output.

        Parameters
        ----------
        owner
            The record.
        given
            Tangents of the arguments with history.
        """
        left = iter(given)
        tangents = [next(left) if kind == ACTIVE else None for kind in self._kinds]
        aval = owner[OWN_AVAL]
        outputs = self.outputs or [AVALS.kind(aval)]
        return self.pushed(owner, tangents, outputs)

    def pushed(
        self,
        owner: Owner | None,
        tangents: Sequence[Tensor | None],
        outputs: Sequence[Any],
        written: Mapping[int, int] = MappingProxyType({}),
    ) -> list[Tensor | None]:
        """Run the user's jvp; return the tangent of every output.

        Parameters
        ----------
        owner
            The record, if there is one.
        tangents
            Tangents of the arguments.
        outputs
            Shape, dtype and device of every output; None for what is no tensor.
        written
            Numbers of outputs that are arguments which forward wrote to, and of these arguments:
            jvp writes to their tangents.
        """
        if self._materialize:
            pairs = zip(tangents, self._shapes, strict=True)
            tangents = [wrap(zeros(*o)) if t is None and o is not None else t for t, o in pairs]
        # a context of its own: other threads may run the backward, or this jvp, at the same time
        context = object.__new__(type(self))
        context.__dict__.update(self.__dict__, _runs=owner, _pushes=True)
        found = context._run_rule(context.apply_jvp, tangents)
        results = list(found) if isinstance(found, tuple) else [found]
        if len(results) != len(outputs):
            raise RuntimeError(
                "Function's jvp returned an invalid number of forward gradients (expected "
                f"{len(outputs)} but got {len(results)})"
            )
        for k, number in written.items():
            if results[k] is not tangents[number]:
                raise RuntimeError(
                    "An inplace custom Function is not modifying the forward mode gradients "
                    "inplace. If the forward is modifying an input inplace, then the jvp function "
                    f"must modify the corresponding gradient inplace. ({self.op_name}: write to "
                    f"tangent {number}, and return it)"
                )
        for k, (t, output) in enumerate(zip(results, outputs, strict=True)):
            if k not in written:
                results[k] = t = self._owned(t, "jvp", owner, tangents)
            if t is not None and not isinstance(t, Tensor):
                raise RuntimeError(
                    f"expected Variable or None (got {type(t).__name__}) for grad output {k}."
                )
            if t is None or output is None:
                continue
            if is_complex(t) and output[1].kind != "c":
                raise RuntimeError(
                    f"Function's jvp returned a forward gradient of dtype {t.dtype} for output {k} "
                    f"of dtype {output[1]}; a real output has a real one"
                )
            if t.shape != output[0]:
                raise RuntimeError(
                    "Trying to set a forward gradient that has a different size than that of the "
                    f"original Tensor, this is not supported. Tensor is of size {list(output[0])} "
                    f"while the given forward gradient is of size {list(t.shape)}."
                )
        return results

    def cotangents(
        self, owner: Owner, parents: list[Owner | None], g: Any, wanted: Any
    ) -> list[Any]:
        grads = [self._defined(owner, g)] if self.outputs is None else self._complete(g)
        found = self._run(owner, grads, wanted)
        for k, (cotangent, parent) in enumerate(zip(found, parents, strict=False)):
            if cotangent is not None and parent is not None:
                shape = AVALS.shapes[parent[OWN_AVAL]]
                self._check_kind(cotangent.dtype, parent[OWN_AVAL], k)
                if cotangent.shape != shape:
                    check_reducible(cotangent.shape, shape, self._what(k))
        return found

    def _check_kind(self, dtype: np.dtype, aval: int, k: int) -> None:
        """Raise if a gradient is complex and its input is real."""
        if dtype.kind == "c" and AVALS.dtypes[aval].kind != "c":
            raise RuntimeError(
                f"{self._what(k)} - got numbers of dtype {dtype}, but the input is real: return "
                "the real part"
            )

    def contributions(self, sweep: Sweep, owner: Owner, g: Any) -> Contributions:
        if g is not None and self.outputs is None and len(self._kinds) == 1:
            # fast path: one argument, one output
            self._runs = owner
            try:
                result = self._rule(wrap(g))
            finally:
                self._runs = None
            if type(result) is Tensor and result._meta is None:
                return [(owner[OWN_INPUTS], self._fitted(result._a, owner[OWN_INPUTS], 0))]
            found = self._check_result(result, owner)
        else:
            if self.outputs is None:
                grads = [self._defined(owner, None if g is None else wrap(g))]
            else:
                grads = self._complete(sweep.tuples.pop(self._slot))
            found = self._run(owner, grads, sweep.wants)
        contributions: Contributions = []
        for k, (cotangent, parent) in enumerate(zip(found, parents_of(owner), strict=False)):
            assert parent is not None
            if cotangent is not None:
                contributions.append((parent, self._fitted(cotangent._a, parent, k)))
            else:
                sweep.touch(parent[OWN_SLOT])
        return contributions

    def _fitted(self, array: np.ndarray, parent: Owner, k: int) -> np.ndarray:
        """Return a gradient as an array with its input's aval."""
        aval = parent[OWN_AVAL]
        if AVALS.known(array) == aval and array.flags.c_contiguous:
            return array
        self._check_kind(array.dtype, aval, k)
        return fit_array(array, aval, self._what(k))


_INTERNAL = frozenset({*vars(FunctionCtx), *vars(BackwardCFunction)})  # attributes of contexts
