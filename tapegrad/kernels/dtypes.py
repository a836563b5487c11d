"""What is said of dtypes that have no derivatives, or that compiled code does not take."""

from __future__ import annotations

import numpy as np

OTHER_ORDER = "the bytes are in another order than the machine's: "


def cast_of(dtype: np.dtype) -> str:
    """Return how numbers of a dtype without derivatives become ones with them, for errors."""
    if dtype.kind not in "fc":
        return ""
    parts = 1 if dtype.kind == "f" else 2
    size = 4 if dtype.itemsize <= 4 * parts else 8
    why = "" if dtype.isnative else OTHER_ORDER
    return f"{why}convert by x.astype('{'float' if parts == 1 else 'complex'}{8 * size * parts}')"


def not_compiled(function: str, number: int, dtype: np.dtype) -> str:
    """Return the text of the error for an argument with an array of a dtype."""
    native = f"{OTHER_ORDER}convert by x.astype('{dtype.newbyteorder('=')}')"
    return (
        f"{function}: argument {number} has dtype {dtype}, which compiled functions do not take; "
        f"{cast_of(dtype) or native}"
    )
