"""What happens when a tensor that is being differentiated becomes a plain number."""

from __future__ import annotations

import warnings
from typing import Any

from tapegrad.eager.modes import MODE

_WAY_OUT = (
    "use functions that are differentiated (np.sin instead of math.sin, np.stack instead of "
    "writing into an array), or say that no gradient is wanted: .item(), .detach()"
)


class DetachedWarning(UserWarning):
    """A tensor that requires grad became a number, which has no history.

    It is given once for each place in a program, outside of transforms such as `tapegrad.grad`.
    Within them it is an error. A transform gives it too if the result does not depend on its
    argument.
    """


def note_detached(own: Any, what: str) -> None:
    """Warn that the gradient through a record ends here; raise if a transform is to find it.

    Parameters
    ----------
    own
        Owner of the record.
    what
        What makes a number of it.
    """
    if not MODE.recording:
        return
    transform = MODE.thread.transform
    while transform is not None:
        if transform.has_made(own):
            raise RuntimeError(
                f"{what} of a tensor that {transform.name} differentiates would lose its gradient; "
                f"{_WAY_OUT}"
            )
        transform = transform.outer
    warnings.warn(
        f"{what} of a tensor that requires grad returns a number without history, through which no "
        f"gradient passes; {_WAY_OUT}",
        DetachedWarning,
        stacklevel=3,
    )


def note_independent(name: str) -> None:
    """Warn that what a transform differentiates does not depend on its argument.

    Parameters
    ----------
    name
        Of the transform, which the user has called.
    """
    if MODE.recording and MODE.thread.transform is None:
        warnings.warn(
            f"{name}: the result does not depend on what it is differentiated by, so that the "
            "derivative is zero; a value that should depend on it may have lost its history, by "
            ".item() or .detach()",
            DetachedWarning,
            stacklevel=3,
        )
