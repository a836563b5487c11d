"""What is said of arguments of a `Function` and its context that are no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.engine.kept_values import CONTAINERS, tensors_in
from tapegrad.eager.detached import note_lost
from tapegrad.eager.duals import any_dual
from tapegrad.eager.tensor import Tensor


def check_tensors(
    values: Sequence[Any], text: str, kind: type[Exception] = TypeError, optional: bool = False
) -> None:
    """Raise if a value is not a tensor (or None), with its number and type."""
    for k, value in enumerate(values):
        if not isinstance(value, Tensor) and not (optional and value is None):
            raise kind(text.format(k, type(value).__name__))


def note_array(cls: type, args: tuple[Any, ...], error: AttributeError) -> None:
    """Raise a clearer error for an attribute that tensors have and an array does not."""
    for k, arg in enumerate(args):
        if type(arg) is np.ndarray and error.obj is arg and hasattr(Tensor, str(error.name)):
            raise AttributeError(
                f"{cls.__name__}.forward: argument {k} is an array, as apply was given it, and has "
                f"no {error.name!r}; np.asarray(x) takes tensors and arrays, and "
                "apply(tg.as_tensor(x)) makes a tensor of it"
            ) from None


def note_contained(cls: type, args: tuple[Any, ...]) -> None:
    """Warn of tensors inside of arguments, through which no gradient passes; refuse tangents."""
    for k, arg in enumerate(args):
        if type(arg) not in CONTAINERS:
            continue
        text = f"{cls.__name__}.apply: argument {k} is a {type(arg).__name__} with a tensor that "
        lost = "through which no gradient passes; pass every tensor as an argument of its own"
        for tensor in tensors_in(arg):
            if any_dual((tensor,)):
                raise RuntimeError(f"{text}has a tangent, {lost}")
            if tensor._own is not None:
                note_lost(tensor._own, f"{text}{{}}, {lost}", f"{text}requires grad, {lost}")
                break
