"""Selective checkpointing: which ops are computed again, and which results are kept."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tapegrad.cuda.array import as_array, is_array
from tapegrad.eager.modes import MODE, ModeContext
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import wrap
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.kinds import View
from tapegrad.ops.table.op import TABLE
from tapegrad.tape.tape import TAPE

_EXTRA_TIME = (
    "Trying to backward an extra time. You are only allowed to backward once on any region "
    "computed under selective activation checkpoint."
)
_WRITTEN = "Tensor cached during selective activation checkpoint has been mutated"

Policy = Callable[..., Any]


class CheckpointPolicy(enum.Enum):
    """What happens to the result of an op in a checkpointed function.

    Results are kept under the ``SAVE`` and ``CPU_OFFLOAD`` policies (all arrays are in host
    memory), and recomputed under the ``RECOMPUTE`` ones. ``MUST`` and ``PREFER`` do the same.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


class SelectiveCheckpointContext:
    """What a policy function is told of a call.

    Parameters
    ----------
    is_recompute
        Whether the op is called again. Policies are asked in the first call only, so it is False.
    op_output
        The result of the op.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


class Observing(ModeContext):
    """In this context, ops are computed by an observer.

    Parameters
    ----------
    observer
        Called with the op, the function that computes it, its arrays and its parameters; None to
        compute them as always.
    """

    def __init__(self, observer: Callable[..., Any] | None) -> None:
        self.observer = observer

    def now(self) -> Any:
        """Return the surrounding observer."""
        return MODE.thread.observer

    def enter(self) -> None:
        """Set the observer."""
        MODE.thread.observer = self.observer

    def leave(self, before: Any) -> None:
        """Set the surrounding one again."""
        MODE.thread.observer = before


class _Kept:
    """The kept results of ops, in the order of the calls of each op."""

    def __init__(self, policy: Policy, allows_writes: bool) -> None:
        self.policy = policy
        self.allows_writes = allows_writes
        self.results: dict[str, list[Any]] = {}  # None: is recomputed
        self.loaded: dict[str, int] | None = None

    def keep(self, op: Any, function: Any, arrays: Sequence[Any], parameters: Any) -> Any:
        """Compute an op, and keep the result if the policy says so."""
        found = function(*arrays, **parameters)
        shown = [wrap(a) if is_array(a) else a for a in arrays]
        context = SelectiveCheckpointContext(is_recompute=False, op_output=_shown(found))
        with Observing(None):  # the policy may compute something, too
            policy = self.policy(context, FUNCTIONS[op.name], *shown, **parameters)
        is_kept = policy not in _RECOMPUTED if isinstance(policy, CheckpointPolicy) else policy
        entry = (found, TAPE.next_slot()[1]) if is_kept else None
        self.results.setdefault(op.name, []).append(entry)
        return found

    def load(self, op: Any, function: Any, arrays: Sequence[Any], parameters: Any) -> Any:
        """Return the kept result of an op, or compute it."""
        assert self.loaded is not None
        name: str = op.name
        k = self.loaded.get(name, 0)
        self.loaded[name] = k + 1
        known = self.results.get(name, [])
        if k >= len(known):
            raise RuntimeError(
                f"{name} invocation index {k} encountered during backward but not found in "
                "storage. This can happen if the operations in the checkpointed region are "
                "nondeterministic or depend on global state that changed between forward and "
                "backward."
            )
        entry = known[k]
        if entry is None:
            return function(*arrays, **parameters)
        known[k] = None  # it is needed once
        found, slot = entry
        for array in found if isinstance(found, tuple) else (found,):
            if is_array(array) and TAPE.is_written(array, slot):
                if not self.allows_writes:
                    raise RuntimeError(_WRITTEN)
                return function(*arrays, **parameters)
        return found


class _Loading(Observing):
    """The context of the recomputation."""

    def __init__(self, kept: _Kept) -> None:
        super().__init__(kept.load)
        self.kept = kept

    def enter(self) -> None:
        """Start loading; this is possible once."""
        if self.kept.loaded is not None:
            raise RuntimeError(_EXTRA_TIME)
        self.kept.loaded = {}
        super().enter()


def _shown(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(map(_shown, found))
    return wrap(as_array(found))


def _op_name(value: Any) -> str:
    """Return the name in the op table of an op, given by its public function or its name."""
    name = value if isinstance(value, str) else getattr(value, "__name__", None)
    named = name in FUNCTIONS and (isinstance(value, str) or FUNCTIONS[name] is value)
    if named and name in COMPOSITES:
        raise ValueError(
            f"create_selective_checkpoint_contexts: {name} is computed by other ops; name those"
        )
    if not named or name not in TABLE:
        raise ValueError(
            f"Expected op in `op_list` to be a function of tapegrad, such as tapegrad.matmul, or "
            f"its name, but got: {value} of type {type(value)}."
        )
    if isinstance(TABLE[name], View):
        raise ValueError(
            f"create_selective_checkpoint_contexts: {name} returns a view, which takes no memory "
            "and is always made again"
        )
    return str(name)


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | list[Any], allow_cache_entry_mutation: bool = False
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of a checkpointed function that keeps the results of some ops.

    For the ``context_fn`` of `checkpoint`. The function is still called again, but the ops whose
    results were kept return these. Views are always made again.

    Parameters
    ----------
    policy_fn_or_list
        The ops to keep the results of (functions such as ``tg.matmul``, or their names), or a
        function that is called with a `SelectiveCheckpointContext`, the public function of an op
        and its arguments, and returns a `CheckpointPolicy` (or a bool: whether to keep the result).
    allow_cache_entry_mutation
        Compute a result again if it was written to, instead of raising an error.

    Raises
    ------
    RuntimeError
        In the backward pass: if it is the second one, or a kept result was written to.

    Examples
    --------
    >>> import functools
    >>> import tapegrad as tg
    >>> from tapegrad.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> contexts = functools.partial(create_selective_checkpoint_contexts, [tg.matmul])
    >>> w = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> y = checkpoint(lambda w: tg.sin(w @ w).sum(), w, use_reentrant=False, context_fn=contexts)
    >>> y.backward()
    """
    if isinstance(policy_fn_or_list, list):
        names = {_op_name(value) for value in policy_fn_or_list}
        policy = functools.partial(_is_listed, names)
    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list  # type: ignore[assignment]
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    kept = _Kept(policy, allow_cache_entry_mutation)
    return Observing(kept.keep), _Loading(kept)


def _is_listed(
    names: set[str], context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any
) -> bool:
    return op.__name__ in names
