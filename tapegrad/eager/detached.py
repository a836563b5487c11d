"""Warnings and errors for conversions of differentiated tensors to plain numbers."""

from __future__ import annotations

import warnings
from typing import Any

from tapegrad.eager.lines import level_of_user
from tapegrad.eager.modes import MODE

_WAY_OUT = (
    "use functions that are differentiated (np.sin instead of math.sin, np.stack or writing into "
    "tg.zeros(n) instead of np.zeros(n)), or say that no gradient is wanted: .item(), .detach()"
)


class DetachedWarning(UserWarning):
    """A tensor that requires grad was converted to a number, which has no history.

    It is issued once per location, outside transforms such as `tapegrad.grad`; inside them the
    conversion is an error. So is a write of values with a history to a tensor on the memory of an
    array. A transform also issues the warning if its result does not depend on its argument, and a
    `Function` if a derivative of its backward goes through a value that its forward computed.
    """


def note_detached(own: Any, what: str) -> None:
    """Warn that a conversion loses the gradient of a tensor; raise if a transform needs it.

    Parameters
    ----------
    own
        Owner of the tensor's record; None if it has none, but a tangent.
    what
        The conversion, for the message.
    """
    if own is None:
        warnings.warn(
            f"{what} of a tensor that has a tangent returns a number without it; {_WAY_OUT}",
            DetachedWarning,
            stacklevel=level_of_user(),
        )
        return
    note_lost(
        own,
        f"{what} of a tensor that {{}} would lose its gradient; {_WAY_OUT}",
        f"{what} of a tensor that requires grad returns a number without history, through which no "
        f"gradient passes; {_WAY_OUT}",
    )


def note_copied(own: Any) -> None:
    """Warn that `tensor` copies a tensor without its history; raise if a transform needs it.

    Parameters
    ----------
    own
        Owner of the tensor's record; None if it has none, but a tangent.
    """
    way_out = "use array() or clone(), which keep it, or say that no gradient is wanted: detach()"
    if own is None:
        warnings.warn(
            f"tensor() of a tensor that has a tangent is a copy without it; {way_out}",
            DetachedWarning,
            stacklevel=level_of_user(),
        )
        return
    note_lost(
        own,
        f"tensor() of a tensor that {{}} would lose its history; {way_out}",
        "tensor() of a tensor that requires grad is a copy without history, through which no "
        f"gradient passes; {way_out}",
    )


def note_written(own: Any, what: str) -> None:
    """Warn that the memory of an array gets values without their history; raise in a transform.

    Parameters
    ----------
    own
        Owner of the record of what is written; None if it has none, but a tangent.
    what
        The op that writes, for the message.
    """
    shared = f"{what}: the tensor shares the memory of a NumPy array, which holds no history: "
    others = "no gradient passes through what is read from the array, or from another tensor of it"
    way_out = "write to a copy, made with array(), or write detach() if no gradient is wanted"
    if own is None:
        warnings.warn(f"{shared}{others}; {way_out}", DetachedWarning, stacklevel=level_of_user())
        return
    note_lost(
        own,
        f"{shared}what is written, which {{}}, would be lost for what is read from the array, or "
        f"from another tensor of it; {way_out}",
        f"{shared}{others}; {way_out}",
    )


def note_lost(own: Any, error: str, warning: str) -> None:
    """Warn that the gradient through a record is lost; raise if a transform needs it.

    Parameters
    ----------
    own
        Owner of the record.
    error
        Message in a transform; ``{}`` stands for "grad differentiates".
    warning
        Message elsewhere.
    """
    if not MODE.recording:
        return
    transform = MODE.thread.transform
    while transform is not None:
        if transform.has_made(own):
            transform.failure = RuntimeError(error.format(f"{transform.name} differentiates"))
            raise transform.failure
        transform = transform.outer
    warnings.warn(warning, DetachedWarning, stacklevel=level_of_user())


def note_independent(name: str) -> None:
    """Warn that the result of a transformed function does not depend on its argument.

    Parameters
    ----------
    name
        Name of the transform that the user called.
    """
    if MODE.recording and MODE.thread.transform is None:
        warnings.warn(
            f"{name}: the result does not depend on what it is differentiated by, so that the "
            "derivative is zero; a value that should depend on it may have lost its history, by "
            ".item() or .detach()",
            DetachedWarning,
            stacklevel=level_of_user(),
        )
