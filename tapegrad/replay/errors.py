"""What users are told of functions that do not run compiled."""

from __future__ import annotations


class OpByOpWarning(UserWarning):
    """A function that `tapegrad.jit` decorates runs op by op, or a part of it does.

    It is issued once for a function, and names the op, the line and the reason.
    """
