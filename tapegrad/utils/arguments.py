"""Arguments kept until a function is called with them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.autograd.engine.mutated import message_of
from tapegrad.eager.frames import SavedArrays, maker_of
from tapegrad.eager.saved_values import Packed, save
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.pytrees import holds_tensor, tree
from tapegrad.tape.owner import Owner
from tapegrad.tape.tape import TAPE


def check_unwritten(array: np.ndarray, slot: int, own: Owner | None = None) -> None:
    """Raise if the memory of an array was written to after a position on the clock."""
    if TAPE.is_written(array, slot):
        arrays: SavedArrays = [(array, *maker_of(own))]
        raise RuntimeError(message_of(arrays, slot))


class _Argument:
    """One argument: its tensors are saved like those of an op, so that hooks see them."""

    __slots__ = ("build", "leaves", "slot")

    def __init__(self, value: Any, what: str) -> None:
        self.build: Callable[[list[Any]], Any] | None = None
        if isinstance(value, Tensor):
            leaves = [value]
        elif holds_tensor([value]):
            leaves, self.build = tree(value, what)
        else:
            self.leaves = [(value, False)]
            return
        self.slot = TAPE.next_slot()[1]
        self.leaves = [
            (save(leaf), leaf._own is not None) if isinstance(leaf, Tensor) else (leaf, False)
            for leaf in leaves
        ]

    def value(self) -> Any:
        """Return the argument with new leaves in place of its tensors."""
        found = [self._leaf(*leaf) for leaf in self.leaves]
        return found[0] if self.build is None else self.build(found)

    def _leaf(self, saved: Any, requires_grad: bool) -> Any:
        if isinstance(saved, Packed):
            array = saved.unpack(None)._a
        elif isinstance(saved, Tensor):
            array = saved._a
            check_unwritten(array, self.slot, saved._own)
        else:
            return saved
        leaf = wrap(array)
        return leaf.requires_grad_() if requires_grad else leaf


class Arguments:
    """All arguments of a call.

    Parameters
    ----------
    args, kwargs
        The arguments. Lists, tuples, dicts and dataclasses may contain tensors.
    what
        Start of error messages.
    """

    __slots__ = ("_args", "_kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
        self._args = [_Argument(a, f"{what}: argument {k}") for k, a in enumerate(args)]
        self._kwargs = {n: _Argument(a, f"{what}: argument {n!r}") for n, a in kwargs.items()}

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a function with the arguments, none of which has a history.

        Raises
        ------
        RuntimeError
            If one of the tensors was modified in place.
        """
        args = [argument.value() for argument in self._args]
        kwargs = {name: argument.value() for name, argument in self._kwargs.items()}
        return function(*args, **kwargs)
