"""Which tensors without axes are numbers, as NumPy's items and results are.

Where items are values (`has_values`), ``x[0]``, ``x.sum()`` and what is computed of them are
numbers: ``+=`` gives the name another one, and what reshapes them copies them. NumPy has arrays
without axes too: results of ``zeros(())``, ``where`` and others, and views such as ``x[0, ...]``.
"""

from __future__ import annotations

from typing import Any

from tapegrad.cuda.array import is_array
from tapegrad.eager.batched import Batched
from tapegrad.eager.tensor import Tensor, has_values
from tapegrad.eager.traced import Traced


def is_value(target: Tensor) -> bool:
    """Whether ``target += 1`` gives the name another value, as for NumPy's numbers."""
    if target.shape or not has_values(target):
        return False
    if type(target) is Traced:
        return not target.whole().shape
    meta = target.meta()
    if type(target) is Batched:  # the base of what it holds is no array of an item
        return meta is None or not meta.is_array
    return meta is None or meta.base is None or not meta.base.shape


def is_number(target: Tensor) -> bool:
    """Whether NumPy has a number in place of a tensor, so that there are no views of it."""
    if not is_value(target):
        return False
    if isinstance(target, Traced):
        return not (target.is_array or target.whole().is_array)
    meta = target.meta()
    base = None if meta is None or meta.base is None else meta.base.meta()
    return not any(known is not None and known.is_array for known in (meta, base))


def selects(index: Any) -> bool:
    """Whether an index is a tensor that selects as an integer does: what it finds is a view.

    NumPy's numbers do, and in PyTorch all tensors without axes; NumPy copies what it finds at
    arrays without axes.
    """
    if not isinstance(index, Tensor) or index.shape or index.dtype.kind not in "iu":
        return False
    return not has_values(index) or is_number(index)


def as_array_without_axes(result: Any) -> Any:
    """Return a result; note that NumPy has an array in place of it even if it has no axes."""
    if isinstance(result, Tensor) and is_value(result):
        _note_array(result)
    return result


def standing_for(value: Any, tensor: Tensor) -> Tensor:
    """Return the tensor that a function gets for a value, an array or a number as that is."""
    is_scalar = is_number(value) if isinstance(value, Tensor) else not is_array(value)
    if not tensor.shape and not is_scalar:
        _note_array(tensor)
    return tensor


def _note_array(tensor: Tensor) -> None:
    if isinstance(tensor, Traced):
        tensor.is_array = True
    else:
        tensor.ensure_meta().is_array = True
