"""Deprecated names that still work."""

from __future__ import annotations

import warnings
from typing import Any

from tapegrad.autograd.engine.passes import ENGINE, Engine
from tapegrad.eager.creation import as_tensor, tensor
from tapegrad.eager.tensor import Tensor


class VariableMeta(type):
    """Metaclass that makes every tensor an instance of `Variable`."""

    def __instancecheck__(cls, other: Any) -> bool:
        return isinstance(other, Tensor)


class Variable(metaclass=VariableMeta):
    """The old name of `Tensor`: calling it returns a tensor on the same memory.

    Parameters
    ----------
    data
        A tensor or array-like.
    requires_grad
        Whether to record operations on it.
    """

    _execution_engine: Engine = ENGINE

    def __new__(cls, data: Any, requires_grad: bool = False) -> Any:
        """Return a tensor."""
        made = as_tensor(data)
        made = made.detach() if isinstance(data, Tensor) else made
        return made.requires_grad_() if requires_grad else made


def variable(data: Any, requires_grad: bool = False, dtype: Any = None) -> Tensor:
    """Return a tensor with a copy of the data (deprecated: use `tapegrad.tensor`).

    Parameters
    ----------
    data
        As for `tapegrad.tensor`.
    requires_grad
        Whether to record operations on it.
    dtype
        Type of the elements.
    """
    warnings.warn(
        "tapegrad.autograd.variable(...) is deprecated, use tapegrad.tensor(...) instead",
        FutureWarning,
        stacklevel=2,
    )
    return tensor(data, dtype=dtype, requires_grad=requires_grad)
