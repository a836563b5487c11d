"""A loop over a state: running its steps without, and one of them with, recording."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.autograd.engine.history import history
from tapegrad.autograd.engine.marks import marks_between
from tapegrad.autograd.engine.mutated import saved_arrays
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.pytrees import Build, path_of, settings_of, structure, tree
from tapegrad.tape.avals import DIFFERENTIABLE
from tapegrad.tape.layout import LEAF_CLOCK, OWN_SLOT
from tapegrad.tape.owner import Owner, notes_of
from tapegrad.tape.tape import TAPE
from tapegrad.utils.fingerprints import fingerprint

NAME = "checkpoint_scan"
Arrays = list[np.ndarray]


def leaf_tensors(value: Any, what: str) -> tuple[list[Tensor], Build]:
    """Return the parts of a pytree as tensors, and the function that rebuilds it."""
    build: Build = operator.itemgetter(0)
    if isinstance(value, (Tensor, np.ndarray)):
        leaves = [value]
    else:
        leaves, build = tree(value, what)
    tensors = []
    for leaf in leaves:
        found = as_tensor(leaf)
        if found.dtype.kind not in "biufc":
            raise TypeError(
                f"{what}{path_of(leaf, value) or ''} contains a {type(leaf).__name__}; expected "
                "arrays, tensors and numbers"
            )
        tensors.append(found)
    return tensors, build


def structure_of(value: Any) -> Any:
    """Return a value equal for states of equal structure; it is false for a single array."""
    found = False if isinstance(value, (Tensor, np.ndarray)) else structure(value)
    return (found, settings_of(value)) if found else False


def is_passive(tensor: Tensor) -> bool:
    """Whether a tensor does not require grad, though it could."""
    return tensor._own is None and tensor.dtype in DIFFERENTIABLE


def prints_of(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the fingerprints of a state."""
    return [fingerprint(array) for array in arrays]


def is_compiled(step: Any) -> bool:
    """Whether a step is a function of numba's."""
    return hasattr(step, "py_func") and hasattr(step, "targetoptions")


class Loop:
    """The steps of a loop.

    Parameters
    ----------
    step
        Called with the number of the step, the state and further arguments.
    state
        The initial state.
    args
        The further arguments.
    """

    def __init__(self, step: Callable[..., Any], state: Any, args: tuple[Any, ...]) -> None:
        self.step = step
        self.is_compiled = is_compiled(step)
        self.state, self.build = leaf_tensors(state, f"{NAME}: the state")
        self.structure = structure_of(state)
        self.args: list[Tensor] = []
        self._args: list[tuple[int, Build]] = []
        for k, arg in enumerate(args):
            tensors, build = leaf_tensors(arg, f"{NAME}: argument {k}")
            self.args += tensors
            self._args.append((len(tensors), build))
        if self.is_compiled and self.structure:
            raise TypeError(
                f"{NAME}: the state of a compiled step is one array or number; call the compiled "
                "function in a step that takes the state apart: lambda i, s: f(i, s[0], s[1])"
            )
        self.kinds = [(t.shape, t.dtype) for t in self.state]

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """Arrange one value per part of the further arguments like these."""
        found, start = [], 0
        for count, build in self._args:
            found.append(build(list(tensors[start : start + count])))
            start += count
        return found

    def call(self, i: int, state: list[Any], args: Sequence[Any]) -> list[Tensor]:
        """Compute a step, and check that the new state is like the old one."""
        found = self.step(i, self.build(state), *args)
        tensors, _ = leaf_tensors(found, f"{NAME}: the result of step")
        if structure_of(found) != self.structure:
            if isinstance(found, tuple) and len(found) == 2:
                if structure_of(found[0]) == self.structure:
                    raise ValueError(
                        f"{NAME}: step {i} returned a pair, as a step of tg.scan; here it returns "
                        "the state alone. tg.scan(step, state, xs, memory=...) keeps as few states"
                    )
            raise ValueError(
                f"{NAME}: step {i} returned a state of another structure than it was given, or "
                "with other values in fields of a dataclass that are neither arrays nor floats"
            )
        kinds = [(t.shape, t.dtype) for t in tensors]
        if kinds != self.kinds:
            raise ValueError(
                f"{NAME}: step {i} returned a state of shapes and dtypes {_shown(kinds)}; it was "
                f"given {_shown(self.kinds)}, and all states must be alike"
            )
        return tensors

    # -- without recording ------------------------------------------------------------------------

    def advance(self, arrays: Arrays, start: int, end: int, args: Sequence[Tensor]) -> Arrays:
        """Compute the steps from `start` to `end`, without recording."""
        run = self._advance_compiled if self.is_compiled else self._advance
        return MODE.with_recording(False, run, arrays, start, end, args)

    def _advance(self, arrays: Arrays, start: int, end: int, args: Sequence[Tensor]) -> Arrays:
        _leave_switches()
        given = self.arguments(args)
        for i in range(start, end):
            arrays = [t._a for t in self.call(i, [wrap(a) for a in arrays], given)]
        return arrays

    def _advance_compiled(
        self, arrays: Arrays, start: int, end: int, args: Sequence[Tensor]
    ) -> Arrays:
        given = self.arguments([t._a[()] for t in args])
        for i in range(start, end):
            arrays = [t._a for t in self.call(i, [a[()] for a in arrays], given)]
        return arrays

    # -- with recording ---------------------------------------------------------------------------

    def record(self, arrays: Arrays, i: int, args: Sequence[Tensor]) -> Recorded:
        """Compute one step with recording."""
        inputs = [wrap(a) for a in arrays]
        for leaf in inputs:
            if is_passive(leaf):
                leaf.requires_grad_()
        clock = TAPE.next_slot()[1]

        def run() -> list[Tensor]:
            _leave_switches()
            return self.call(i, list(inputs), self.arguments(args))

        return Recorded(inputs, MODE.with_recording(True, run), clock)

    def leaves(self, args: Sequence[Tensor]) -> list[Tensor]:
        """Return new leaves for the further arguments, which require grad where these do."""
        return [t.detach().requires_grad_(t.requires_grad) for t in args]


class Recorded(NamedTuple):
    """A recorded step."""

    inputs: list[Tensor]  # new leaves
    outputs: list[Tensor]
    clock: int  # the position before it


def _leave_switches() -> None:
    """Compute a step alone: outside of batches of cotangents, and of hooks for saved values.

    What a recorded step saves is needed at once, and not worth the hooks' work.
    """
    MODE.thread.observer = None
    MODE.set_levels(())
    MODE.set_saved_hooks(())


def _shown(kinds: list[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds)


class Outside:
    """The recorded tensors that steps close over.

    They are found by walking over what each step records: its gradients must reach them.
    """

    def __init__(self) -> None:
        self.found: dict[int, Owner] = {}
        self._begin = TAPE.next_slot()[1]
        self._first_leaf = TAPE.leaf_position()

    def look(
        self, i: int, inputs: list[Tensor], outputs: list[Tensor], clock: int, known: set[int]
    ) -> int:
        """Note what the outputs of a step depend on, other than its inputs; return its digest.

        Parameters
        ----------
        i
            Number of the step.
        inputs, outputs
            Its inputs, new leaves, and its outputs.
        clock
            Position on the clock before the step.
        known
            Slots of the leaves of the further arguments.
        """
        own_leaves = [own[OWN_SLOT] for t in inputs if (own := t._own) is not None]
        first = min(own_leaves, default=self._first_leaf)
        for own in history(_owners(outputs), lambda own: own[OWN_SLOT] >= clock):
            slot = own[OWN_SLOT]
            is_leaf = slot >= LEAF_CLOCK
            if slot >= (first if is_leaf else clock) or slot in self.found or slot in known:
                continue
            if slot >= (self._first_leaf if is_leaf else self._begin):
                raise RuntimeError(
                    f"{NAME}: step {i} reads a tensor of an earlier step other than through the "
                    "state, so that a gradient would be lost; make it a part of the state"
                )
            self.found[slot] = own
        return digest(i, inputs, outputs, clock)

    def check(self) -> None:
        """Raise if the gradients of some of the tensors could not be told apart."""
        for slot, own in self.found.items():
            if slot < LEAF_CLOCK:
                others = [other for other in self.found if other != slot]
                if others and marks_between([slot], others)[0]:
                    raise RuntimeError(
                        f"{NAME}: step closes over a tensor and over another one that is computed "
                        "from it; pass both as further arguments, checkpoint_scan(step, state, n, "
                        "a, b), or let step compute one from the other"
                    )
            notes = notes_of(own)
            if notes is not None and (notes.hooks or notes.retains is not None):
                raise RuntimeError(
                    f"{NAME}: step closes over a tensor that has hooks or retains its gradient; "
                    "pass it as a further argument, checkpoint_scan(step, state, n, t)"
                )


def _owners(tensors: Sequence[Tensor]) -> list[Owner]:
    return [own for t in tensors if (own := t._own) is not None]


def digest(i: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], clock: int) -> int:
    """Return a number that follows from all values that the records of a step saved.

    A step whose result is the same can still have another derivative, such as that of ``w * x``
    where x is 0. The digests of all steps are added: one number tells, at the end of the backward
    pass, whether all steps saved the values that they saved before.

    Parameters
    ----------
    i
        Number of the step.
    inputs, outputs
        The state before and after it.
    clock
        Position on the clock before the step.
    """
    compared = {id(t._a) for t in inputs}  # their fingerprints are compared anyway
    prints = [
        fingerprint(array)
        for own in history(_owners(outputs), lambda own: own[OWN_SLOT] >= clock)
        if clock <= own[OWN_SLOT] < LEAF_CLOCK
        for array, _, _ in saved_arrays(own)
        if id(array) not in compared
    ]
    return hash((i, *prints))
