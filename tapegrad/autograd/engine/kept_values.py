"""Values that a Function's forward keeps for its rules.

Those that forward computes have no history: a derivative of backward or jvp would lack what goes
through them. While such a rule is recorded, they have a history that warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, as_array
from tapegrad.eager.detached import DetachedWarning
from tapegrad.eager.duals import arrays_of, saved_tangent, with_saved_tangent
from tapegrad.eager.frames import RuleFrame
from tapegrad.eager.lines import level_of_user
from tapegrad.eager.saved_values import Packed, check_savable, unshared_tensor
from tapegrad.eager.tensor import Tensor, note_shared, wrap
from tapegrad.tape.avals import DIFFERENTIABLE
from tapegrad.tape.owner import Owner
from tapegrad.tape.sweep import Contributions, Sweep

ARRAYS = (np.ndarray, np.generic, DeviceArray)  # taken where tensors are
CONTAINERS = frozenset([list, tuple, dict])

_COMPUTED = (
    "{0}: a derivative of its {1} goes through {2}, which forward computed; it has no history, so "
    "that this part is missing from the result. Return the value from forward as a further output "
    "and save that, or compute it in {1} from saved arguments; if it does not depend on the "
    "arguments, keep an array: ctx.name = value.numpy()"
)


def as_tensors(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return values with tensors in place of arrays."""
    return tuple(note_shared(wrap(as_array(v))) if isinstance(v, ARRAYS) else v for v in values)


class Computed:
    """What is kept of a saved tensor that forward computed, and whose history was cut.

    If it is saved by `save_for_backward`, `number` is its position.
    """

    __slots__ = ("item", "number")

    def __init__(self, item: Any, number: int) -> None:
        self.item = item
        self.number = number


class ComputedFrame(RuleFrame):
    """The history of such a tensor while a rule that is recorded reads it: it warns if it is used.

    Parameters
    ----------
    name
        The Function.
    rule
        The rule that reads the value.
    what
        How it was kept.
    """

    __slots__ = ("text",)
    op_name = "Computed"
    outputs = None
    _has_jvp = True

    def __init__(self, name: str, rule: str, what: str) -> None:
        self.text = _COMPUTED.format(name, rule, what)

    def cotangents(
        self, owner: Owner, parents: list[Owner | None], g: Any, wanted: Any
    ) -> list[Any]:
        self.note(g)
        return [None] * len(parents)

    def contributions(self, sweep: Sweep, owner: Owner, g: Any) -> Contributions:
        self.note(g)
        return []

    def tangents(self, owner: Owner, given: Sequence[Tensor | None]) -> list[None]:
        """Return no tangent, after a warning if an argument has one."""
        for t in given:
            self.note(t)
        return [None]

    def note(self, g: Any) -> None:
        """Warn if a cotangent or tangent would have to pass."""
        if g is not None and np.any(arrays_of(g) != 0):
            warnings.warn(self.text, DetachedWarning, stacklevel=level_of_user())


def kept_values(
    given: Sequence[Tensor | None],
    results: Sequence[Any],
    args: Sequence[Any],
    dirty: Container[int],
    hooked: bool,
) -> tuple[Any, ...]:
    """Return what is kept of tensors that were saved.

    An output is kept by its number, since the tensor would hold this record.
    """
    kept: list[Any] = []
    for number, tensor in enumerate(given):
        if tensor is None:
            kept.append(None)
            continue
        if tensor._meta is not None:
            check_savable(tensor)
        own = None if id(tensor) in dirty else tensor._own
        if own is None:
            shown = unshared_tensor(tensor) if tensor._own is None else wrap(tensor._a)
            for k, result in enumerate(results):
                if result is tensor:
                    kept.append((k, Packed(shown, None) if hooked else tensor._a))
                    break
            else:
                item = Packed(shown, None) if hooked else _as_saved(shown)
                computed = is_computed(tensor, results, args)
                kept.append(Computed(item, number) if computed else item)
        else:  # with its present history, which may change later
            kept.append(Packed(tensor, own) if hooked else _as_saved(tensor))
    return tuple(kept)


def _as_saved(tensor: Tensor) -> Tensor:
    return with_saved_tangent(wrap(tensor._a, tensor._own), saved_tangent(tensor))


def is_computed(tensor: Tensor, results: Sequence[Any], args: Sequence[Any]) -> bool:
    """Whether a tensor without history may depend on arguments that have one."""
    if tensor.dtype not in DIFFERENTIABLE:
        return False
    meta = tensor._meta
    base = None if meta is None else meta.base
    if base is not None and base._own is not None:
        return True
    constants = (tensor,) if base is None else (tensor, base)
    values = (*results, *args)
    return not any(value is one or value is one._a for one in constants for value in values)


def tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors in a value: in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in CONTAINERS and depth:
        for item in value.values() if type(value) is dict else value:
            yield from tensors_in(item, depth - 1)


def replaced(value: Any, replace: Callable[[Tensor], Tensor], depth: int = 3) -> Any:
    """Return a value with other tensors; lists and dicts keep their identity."""
    if isinstance(value, Tensor):
        return replace(value)
    if type(value) not in CONTAINERS or not depth:
        return value
    items = list(value.items() if type(value) is dict else enumerate(value))
    made = {key: replaced(item, replace, depth - 1) for key, item in items}
    if type(value) is tuple:
        return tuple(made.values())
    for key, item in made.items():
        value[key] = item
    return value
