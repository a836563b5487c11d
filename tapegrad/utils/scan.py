"""Differentiating a long loop with few stored states."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapegrad.autograd.api import grad
from tapegrad.autograd.function import Function
from tapegrad.autograd.tangents import tangents_of
from tapegrad.eager.batched import BatchError
from tapegrad.eager.dispatch import passive
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.forks import object_lock
from tapegrad.pytrees import holds_tensor
from tapegrad.tape.avals import AVALS
from tapegrad.tape.layout import OWN_AVAL, OWN_SLOT
from tapegrad.tape.owner import Owner
from tapegrad.tape.tape import TAPE
from tapegrad.utils.loops import (
    NAME,
    Arrays,
    Loop,
    Outside,
    digest,
    is_compiled,
    is_passive,
    prints_of,
)
from tapegrad.utils.regions import CheckpointError
from tapegrad.utils.revolve import first_positions, reversal
from tapegrad.utils.snapshots import Spilled, Store, loaded

Advance = Callable[[int], None]


def checkpoint_scan(
    step: Callable[..., Any],
    state: Any,
    n: int,
    *args: Any,
    memory: int = 32,
    memory_bytes: int | None = None,
    progress: bool = False,
) -> Any:
    """Apply a step n times; the backward pass recomputes most states instead of keeping them.

    The states to keep are chosen so that the number of recomputed steps is the least possible
    (binomial checkpointing). With `memory` states, no step of ``binomial(memory + r, r)`` is
    computed more than r + 1 times: with 50 states, no step of a million more than 6 times.

    Derivatives of higher order are right, but record all steps, without checkpointing. So do
    gradients where tensors have tangents (`tapegrad.autograd.forward_ad`). Forward mode takes one
    step after the other and keeps none.

    Parameters
    ----------
    step
        ``step(i, state, *args)`` returns the state after step i, of the same structure, shapes and
        dtypes. It may close over tensors that require grad. It has to compute the same values when
        it is called again: it neither writes to its arguments nor draws random numbers, except
        from a generator that it makes from i. It may be compiled by `tapegrad.njit`; its state is
        one array or number then.
    state
        The initial state: an array, a tensor, a number, or a pytree of these.
    n
        Number of steps.
    *args
        Further arguments of `step`, with respect to which the result can be differentiated, too.
    memory
        Number of states that are kept at the same time, with the initial one.
    memory_bytes
        Number of bytes that kept states may take in memory; others are kept in temporary files,
        which are deleted when they are no longer needed.
    progress
        Show progress bars of the loop and of its backward pass (requires rich).

    Returns
    -------
    object
        The state after n steps. Its parts are tensors if an argument contains a tensor or something
        requires grad, else arrays.

    Raises
    ------
    CheckpointError
        In the backward pass, if a step computes other values than before.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> def step(i, x, rate):
    ...     return x + rate * tg.sin(x)
    >>> def end(x, rate):
    ...     return tg.checkpoint_scan(step, x, 1000, rate, memory=10)
    >>> tg.grad(end, (0, 1))(0.5, 0.001)
    (np.float64(1.95438601...), np.float64(936.25797802...))
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(
            f"{NAME}: n is the number of steps, got {type(n).__name__}; the step is "
            "step(i, state, *args). With the step of tg.scan, step(state, x), write "
            f"tg.scan(step, state, xs, memory={memory}), which keeps as few states"
        ) from None
    memory = operator.index(memory)
    if n < 0 or memory < 1:
        what = (
            f"n is {n}; expected at least 0" if n < 0 else f"memory is {memory}; expected 1 or more"
        )
        raise ValueError(f"{NAME}: {what}")
    if MODE.thread.levels:
        raise BatchError(
            f"{NAME} is called inside of vmap; call it outside, with the axis of the batch in the "
            "state"
        )
    is_plain = not holds_tensor([state, *args])
    if not is_compiled(step):  # which computes with arrays
        step = MODE.with_items(not holds_tensor([state, *args], with_views=True), step)
    loop = Loop(step, state, args)
    if MODE.thread.dual is not None:  # tangents follow the steps
        found = loop.state
        for i in range(n):
            found = loop.call(i, found, loop.args)
        return _result(loop, found, is_plain and not any(t._is_tracked for t in found))
    if not MODE.recording or n == 0:
        arrays = loop.advance([t._a for t in loop.state], 0, n, loop.args)
        return _result(loop, loop.state if n == 0 else [*map(passive, arrays)], is_plain)
    run = _Run(loop, n, memory, Store(memory_bytes), progress)
    run.forward()
    stand_ins = [_stand_in(own) for own in run.outside.found.values()]
    given = [*loop.state, *loop.args, *stand_ins]
    if any(t._own is not None for t in given):
        run.outside.check()
        applied = CheckpointScan.apply(run, *given)
        found = list(applied) if isinstance(applied, tuple) else [applied]
        is_plain = False
    else:
        found = run.results
    return _result(loop, found, is_plain)


def _result(loop: Loop, tensors: Sequence[Tensor], is_plain: bool) -> Any:
    return loop.build([t._a[()] if is_plain else t for t in tensors])


def _stand_in(own: Owner) -> Tensor:
    """Return a tensor with the history of a record, of which nothing else is needed."""
    shape, dtype = AVALS.shapes[own[OWN_AVAL]], AVALS.dtypes[own[OWN_AVAL]]
    return wrap(np.broadcast_to(np.zeros((), dtype), shape), own)


class _Run:
    """One call: the loop, and what is stored of it."""

    def __init__(self, loop: Loop, n: int, memory: int, store: Store, progress: bool) -> None:
        self.loop, self.n, self.memory, self.store = loop, n, memory, store
        self.progress = progress
        self.outside = Outside()
        self.positions = list(first_positions(n, memory))
        self.results: list[Tensor] = []
        self.prints: list[int] = []  # of the results
        self.digest = 0  # of all that the steps saved
        self.count = len(loop.state)
        # the states at the positions but the first, and the state before the last step
        self._stored: tuple[list[Arrays | Spilled], Arrays] | None = None
        self._taking = object_lock()

    def forward(self) -> None:
        """Compute all steps, store states, and find what the steps close over."""
        loop, n = self.loop, self.n
        arrays = [t._a for t in loop.state]
        args = loop.leaves(loop.args)
        known = {own[OWN_SLOT] for t in args if (own := t._own) is not None}
        # with hooks for saved values, such as those of a checkpoint around, memory is short
        places = set() if MODE.thread.saved_hooks else {*self.positions[1:]}
        stored: list[Arrays | Spilled] = []
        last = arrays
        with _bar(self.progress, "forward", n) as advance:
            for i in range(n):
                last = arrays
                if i in places:
                    stored.append(self.store.put(arrays))
                if i and loop.is_compiled:  # it closes over no tensors
                    arrays = loop.advance(arrays, i, i + 1, args)
                else:
                    made = loop.record(arrays, i, args)
                    self.digest += self.outside.look(i, *made, known)
                    arrays = [z._a for z in made.outputs]
                advance(1)
        if not MODE.thread.saved_hooks:
            self._stored = stored, last
        given = [*(t._a for t in loop.state), *last]
        self.results = [passive(a.copy() if _shares(a, given) else a) for a in arrays]
        self.prints = prints_of(arrays)

    def take(self, state: Arrays, args: Sequence[Tensor]) -> tuple[list[Arrays | Spilled], Arrays]:
        """Return the stored states, which the backward pass drops one by one.

        A second backward pass computes them again.
        """
        with self._taking:
            found, self._stored = self._stored, None
        if found is not None:
            return found
        self.store.used = 0
        stored: list[Arrays | Spilled] = []
        arrays = state
        ends = [*self.positions[1:], self.n - 1]
        for k, (start, end) in enumerate(zip(self.positions, ends, strict=True)):
            arrays = self.loop.advance(arrays, start, end, args)
            if k + 1 < len(ends):
                stored.append(self.store.put(arrays))
        return stored, arrays

    # -- the backward pass ------------------------------------------------------------------------

    def reverse(
        self,
        state: Arrays,
        args: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """Return the cotangents of the initial state, the further arguments and outside tensors.

        `state` and `args` are those of the loop, `cotangents` those of the state after the last
        step; `needs` tells which of the results are needed.
        """
        loop, count = self.loop, self.count
        of_args = loop.leaves(args)
        outside = [_stand_in(own) for own in self.outside.found.values()]
        rest = [*zip((*of_args, *outside), needs[count:], strict=True)]
        others = [t for t, need in rest if need]
        total = 0
        sums: list[Any] = [None] * len(others)
        stored, arrays = self.take(state, of_args)
        states = dict(zip(self.positions[1:], stored, strict=True))
        del stored
        expected = self.prints
        with _bar(self.progress, "backward", self.n) as advance:
            for action, p, q in reversal(self.n, self.memory, self.positions):
                if action == "restore":
                    arrays = loaded(states[p]) if p else state
                elif action == "advance":
                    arrays = loop.advance(arrays, p, q, of_args)
                elif action == "store":
                    states[p] = self.store.put(arrays)
                elif action == "drop":
                    if p:
                        self.store.drop(states.pop(p))
                else:
                    inputs, outputs, clock = loop.record(arrays, p, of_args)
                    if prints_of([z._a for z in outputs]) != expected:
                        raise CheckpointError(_different(f"step {p}"))
                    expected = prints_of(arrays)
                    if not (p and loop.is_compiled):
                        total += digest(p, inputs, outputs, clock)
                    active = [t.requires_grad for t in inputs]
                    cotangents, found = _pullback(inputs, outputs, others, cotangents, active)
                    sums = [
                        s if g is None else g if s is None else s + g
                        for s, g in zip(sums, found, strict=True)
                    ]
                    advance(1)
        self.check_digest(total)
        left = iter(sums)
        return [*cotangents, *(next(left) if need else None for _, need in rest)]

    def check_digest(self, total: int) -> None:
        """Raise if steps saved other values than in the forward pass."""
        if total != self.digest:
            raise CheckpointError(_different("a step"))


def _pullback(
    inputs: list[Tensor],
    outputs: list[Tensor],
    others: list[Tensor],
    cotangents: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> tuple[list[Tensor | None], Sequence[Tensor | None]]:
    """Return the cotangents of inputs, where they are needed, and of others that are read."""
    pairs = [
        (z, g)
        for z, g in zip(outputs, cotangents, strict=True)
        if g is not None and z._own is not None
    ]
    active = [t for t, need in zip(inputs, needs, strict=True) if need]
    if not pairs or not (active or others):
        return [None] * len(inputs), [None] * len(others)
    found = grad(
        [z for z, _ in pairs],
        [*active, *others],
        [g for _, g in pairs],
        create_graph=MODE.recording,
        allow_unused=True,
    )
    left = iter(found[: len(active)])
    return [next(left) if need else None for need in needs], found[len(active) :]


def _different(what: str) -> str:
    return (
        f"{NAME}: {what} computes other values in the backward pass than before, so that "
        "gradients would be wrong. It reads something that has changed since, writes to its "
        "arguments, or draws random numbers: make the generator in the step, as "
        "numpy.random.default_rng((seed, i))."
    )


def _shares(array: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    return array.base is not None or any(array is other for other in others)


class CheckpointScan(Function):
    """The whole loop as one record."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *given: Tensor) -> Any:
        """Return the results, which are known, and save the stored states."""
        ctx.run = run
        ctx.end = end = run.count + len(run.loop.args)
        ctx.save_for_backward(*given[:end])
        ctx.save_for_forward(*given[:end])
        ctx.set_materialize_grads(False)
        results = tuple(run.results)
        run.results, run.loop.state, run.loop.args = [], [], []  # they are saved, or outputs
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        """Reverse the loop."""
        run: _Run = ctx.run
        saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        run.outside.check()
        if MODE.recording:
            outputs, copies = _recorded(run, saved)
            found = _pullback(copies, outputs, [], cotangents, needs)[0]
        else:
            state = [t._a for t in saved[: run.count]]
            found = run.reverse(state, saved[run.count :], cotangents, needs)
        return None, *(g if need else None for g, need in zip(found, needs, strict=True))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> Any:
        """Propagate tangents step by step."""
        run: _Run = ctx.run
        saved = ctx.saved_tensors
        if MODE.recording:
            outputs, copies = _recorded(run, saved)
            pairs = [
                (t, dot)
                for t, dot in zip(copies, tangents, strict=True)
                if dot is not None and t._own is not None
            ]
            found = tangents_of(outputs, [t for t, _ in pairs], [dot for _, dot in pairs], True)
            return tuple(found) if len(found) > 1 else found[0]
        return _pushforward(run, saved, tangents)


def _pushforward(run: _Run, saved: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Any:
    """Return the tangents of the results, with one step in memory at a time."""
    loop, count = run.loop, run.count
    arrays = [t._a for t in saved[:count]]
    dots = list(tangents[:count])
    args, total = loop.leaves(saved[count:]), 0
    others = [*args, *map(_stand_in, run.outside.found.values())]
    pairs = [
        (t, dot)
        for t, dot in zip(others, tangents[count:], strict=True)
        if dot is not None and t.requires_grad
    ]
    for i in range(run.n):
        inputs, outputs, clock = loop.record(arrays, i, args)
        if not (i and loop.is_compiled):
            total += digest(i, inputs, outputs, clock)
        moving = [
            (t, dot)
            for t, dot in zip(inputs, dots, strict=True)
            if dot is not None and t.requires_grad
        ]
        given = [*moving, *pairs]
        directions = [dot for _, dot in given]
        dots = tangents_of(outputs, [t for t, _ in given], directions, False) if given else []
        dots = dots or [None] * count
        arrays = [z._a for z in outputs]
    if prints_of(arrays) != run.prints:
        raise CheckpointError(_different("a step"))
    run.check_digest(total)
    return tuple(dots) if len(dots) > 1 else dots[0]


def _recorded(run: _Run, given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Compute all steps with recording; return the results and the tensors they start from."""
    if run.outside.found:
        raise RuntimeError(
            f"{NAME}: no second derivatives where step closes over tensors that require "
            "grad; pass them as further arguments, checkpoint_scan(step, state, n, w)"
        )
    # copies with history: derivatives with respect to them leave out what came before
    copies = [FUNCTIONS["positive"](t) if t._own is not None else t for t in given]
    count = run.count
    state, args, total = copies[:count], run.loop.arguments(copies[count:]), 0
    for i in range(run.n):
        # the same records as those of single steps, in which every state requires grad
        before = [t.detach().requires_grad_() if is_passive(t) else t for t in state]
        clock = TAPE.next_slot()[1]
        state = run.loop.call(i, before, args)
        if not (i and run.loop.is_compiled):
            total += digest(i, before, state, clock)
    if prints_of([t._a for t in state]) != run.prints:
        raise CheckpointError(_different("a step"))
    run.check_digest(total)
    return state, copies


@contextmanager
def _bar(is_shown: bool, what: str, total: int) -> Iterator[Advance]:
    """Show a progress bar; return the function that advances it."""
    if not is_shown:
        yield lambda count: None
        return
    try:
        from rich.progress import Progress
    except ImportError:
        raise ImportError(
            f"{NAME}: progress=True needs rich; install it with: pip install 'tapegrad[progress]'"
        ) from None
    with Progress() as bar:
        task = bar.add_task(f"{NAME}: {what}", total=total)
        yield lambda count: bar.advance(task, count)
