"""Functions without derivatives in terms of others, which recorded functions consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.ops import reduction
from tapegrad.ops.table.op import plain


def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Return how many elements are not 0."""
    return reduction.sum(np.not_equal(x, 0), axis=axis, keepdims=keepdims)


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Return the numbers of the bins to which elements belong."""
    edges: Any = plain(bins)
    side: Any = "left" if right else "right"
    if edges.size > 1 and edges[0] > edges[-1]:
        return edges.size - np.searchsorted(edges[::-1], x, side)
    return np.searchsorted(edges, x, side)


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Return which elements are equal within tolerances.

    Source: the formula of NumPy's reference.
    """
    is_close = (abs(a - b) <= atol + rtol * abs(b)) & np.isfinite(b) | (a == b)
    return is_close | (np.isnan(a) & np.isnan(b)) if equal_nan else is_close


IN_TERMS_OF_OTHERS: dict[str, Callable[..., Any]] = {
    "count_nonzero": count_nonzero,
    "digitize": digitize,
    "isclose": isclose,
}
