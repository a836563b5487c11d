"""Names that have values of several types, by the way that was taken."""

from __future__ import annotations

from typing import Any

from tapegrad.transform.kinds import holds_real, is_array


def check_merge(lowering: Any, kind: Any, certain: bool, *values: Any) -> None:
    """Refuse a name that has a value with derivative on one way, and is of a type without.

    Where it is not certain which ways count for numba, its type must be the same on all.

    Parameters
    ----------
    lowering
        Knows the types of values.
    kind
        The type of the name.
    certain
        Whether it is certain that all ways count.
    *values
        The values of the name, None where it has none.
    """
    found = {lowering.type_of(value) for value in values if value is not None}
    shown = ", ".join(sorted(map(str, found)))
    if not certain and len({(t.dtype, t.ndim) if is_array(t) else t for t in found}) > 1:
        raise lowering.refuse(
            "cannot differentiate a variable whose type depends on a condition that numba decides "
            f"in advance in some places only ({shown}); give it one type"
        )
    if not holds_real(kind) and any(map(holds_real, found)):
        raise lowering.refuse(
            f"cannot differentiate a variable of type {kind}, which has other types on some ways; "
            "give it one type"
        )
