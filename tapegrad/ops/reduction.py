"""Reductions over axes."""

from __future__ import annotations

import numpy as np

from tapegrad.ops.kinds import reduction


@reduction(np.sum)
def sum(x, axis=None, keepdims=False):
    """Sum over axes."""


@sum.partial("x")
def _():
    return 1.0
