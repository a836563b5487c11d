"""`Node`: the user's view of a record, as returned by `Tensor.grad_fn`."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.autograd.engine.saved_values import saved_attribute, saved_attributes
from tapegrad.eager.frames import RuleFrame, SelectFrame, node_name
from tapegrad.eager.tensor import Tensor
from tapegrad.tape.layout import LEAF_CLOCK, OWN_INPUTS, OWN_SLOT
from tapegrad.tape.owner import Owner, ensure_notes, inputs_of

_hook_numbers = itertools.count()


def check_hook(hook: Any, name: str) -> None:
    """Raise if a hook is not a function, where it is registered."""
    if not callable(hook):
        raise TypeError(f"{name}: a hook is a function, got {type(hook).__name__}")


class RemovableHandle:
    """Handle of a registered hook; `remove` removes the hook.

    As a context manager, it removes the hook on exit.
    """

    def __init__(self, table: dict[int, Any], hook: Any) -> None:
        self.id = next(_hook_numbers)
        self._table: dict[int, Any] | None = table
        table[self.id] = hook

    def remove(self) -> None:
        """Remove the hook; further calls do nothing."""
        if self._table is not None:
            self._table.pop(self.id, None)
            self._table = None

    def __getstate__(self) -> Any:
        return self._table, self.id

    def __setstate__(self, state: Any) -> None:
        self._table, self.id = state

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Node:
    """A node of the graph: one recorded op, or a leaf that accumulates its gradient.

    A node is a handle on a record of the tape and keeps the graph below it alive. A record has at
    most one node at a time.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x.exp() * 2
    >>> y.grad_fn.name()
    'MultiplyBackward'
    >>> node, _ = y.grad_fn.next_functions[0]
    >>> node.next_functions[0][0].variable is x
    True
    """

    __slots__ = ("__weakref__", "_outputs", "_own")

    _own: Owner
    _outputs: dict[int, Owner]  # outputs known to this handle, of a record with several

    def __init__(self) -> None:
        raise TypeError("nodes are made by ops; take them from Tensor.grad_fn")

    def name(self) -> str:
        """Return the name of the op with the suffix "Backward"."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The nodes of the inputs, each with the output number of the input.

        ``(None, 0)`` stands for an input that needs no gradient.
        """
        return tuple(map(_edge, self._inputs()))

    def _inputs(self) -> list[Owner | None]:
        """Return the owners of all differentiable inputs, None for passive ones."""
        own = self._own
        if own[OWN_SLOT] >= LEAF_CLOCK:
            return []
        parents, frame = inputs_of(own), own[-1]
        return with_passive(frame, parents) if isinstance(frame, RuleFrame) else parents

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dictionary for the user, kept with the node."""
        return ensure_notes(self._own).metadata

    def register_hook(
        self, fn: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
    ) -> RemovableHandle:
        """Register a function that is called after the node computed the gradients of its inputs.

        Parameters
        ----------
        fn
            Called with the gradients of the inputs and of the outputs, as tuples of tensors (or
            None); may return replacements for the gradients of the inputs.

        Returns
        -------
        RemovableHandle
            Its `remove` removes the hook.
        """
        check_hook(fn, "Node.register_hook")
        return RemovableHandle(ensure_notes(self._own, stop=True).posthooks, fn)

    def register_prehook(self, fn: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Register a function that is called before the node computes the gradients of its inputs.

        Parameters
        ----------
        fn
            Called with the gradients of the outputs, as a tuple of tensors (or None); may return
            replacements.

        Returns
        -------
        RemovableHandle
            Its `remove` removes the hook.
        """
        check_hook(fn, "Node.register_prehook")
        return RemovableHandle(ensure_notes(self._own, stop=True).prehooks, fn)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_saved_") and name in saved_attributes(self._own):
            return saved_attribute(self._own, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *saved_attributes(self._own)]

    def _sequence_nr(self) -> int:
        """Return the position of the record on the tape's clock."""
        return self._own[OWN_SLOT]

    def __repr__(self) -> str:
        return f"<{self.name()}>"


def with_passive(frame: RuleFrame, values: Sequence[Any]) -> list[Any]:
    """Return the values of a record's active inputs, with None inserted for passive ones."""
    known = iter(values)
    return [next(known) if active else None for active in frame.active()]


def active_only(frame: RuleFrame, values: Sequence[Any]) -> list[Any]:
    """Return the values of the active inputs, given values of all inputs."""
    return [value for value, active in zip(values, frame.active(), strict=True) if active]


class AccumulateGrad(Node):
    """The node of a leaf, which adds to the leaf's `.grad`."""

    __slots__ = ()

    @property
    def variable(self) -> Tensor:
        """The leaf."""
        return self._own[OWN_INPUTS].variable(self._own)


_classes: dict[str, type[Node]] = {"AccumulateGrad": AccumulateGrad}
_handles: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()


def node_class(own: Owner) -> type[Node]:
    """Return the class of a record's node; there is one per op."""
    if isinstance(own[-1], Node):  # a Function's context is a node of the Function's own class
        return type(own[-1])
    name = node_name(own)
    if own[OWN_SLOT] < LEAF_CLOCK:
        name += "Backward"
    found = _classes.get(name)
    if found is None:
        found = _classes.setdefault(name, type(name, (Node,), {"__slots__": ()}))
    return found


def node_of(own: Owner) -> Node:
    """Return the node of a record."""
    slot = own[OWN_SLOT]
    found = _handles.get(slot)
    if found is None:
        cls = node_class(own)
        found = cls.__new__(cls)
        if isinstance(own[-1], Node):
            # so that both share the user's attributes
            object.__setattr__(found, "__dict__", own[-1].__dict__)
        found._own = own
        found._outputs = {}
        found = _handles.setdefault(slot, found)
    return found


def _edge(own: Owner | None) -> tuple[Node | None, int]:
    """Return the node and output number of an input."""
    if own is None:
        return None, 0
    frame = own[-1]
    if isinstance(frame, SelectFrame):
        maker = node_of(own[OWN_INPUTS])
        maker._outputs[frame.k] = own
        return maker, frame.k
    return node_of(own), 0


def edge_of(tensor: Tensor) -> tuple[Node, int]:
    """Return the node and output number of a tensor that requires gradients."""
    assert tensor._own is not None
    node, k = _edge(tensor._own)
    assert node is not None
    return node, k
