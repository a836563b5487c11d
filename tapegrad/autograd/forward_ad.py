"""Forward mode with PyTorch's names: dual tensors, whose tangents follow every op.

While a level is open, a tensor may have a tangent, which is propagated by every op, write in place
and backward pass. Levels belong to a thread and cannot be nested.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tapegrad.autograd.grad_mode import ModeDecorator
from tapegrad.eager.batched import Batched, batched, expanded
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.duals import DualLevel, is_dual, set_tangent, share_tangents, tangent_of
from tapegrad.eager.inplace import read_item
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.tape.avals import DIFFERENTIABLE

_NO_LEVEL = (
    "Trying to create a dual Tensor for forward AD but no level exists, make sure to "
    "enter_dual_level() first."
)


class UnpackedDualTensor(NamedTuple):
    """The parts of a dual tensor: `primal`, a view of it, and `tangent`, or None."""

    primal: Tensor
    tangent: Tensor | None


def enter_dual_level() -> int:
    """Open a level of forward mode in this thread; return its number, 0.

    Raises
    ------
    RuntimeError
        If a level is open: levels cannot be nested.
    """
    _refuse_nesting()
    MODE.set_dual(DualLevel())
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the open level; tensors lose their tangents.

    Parameters
    ----------
    level
        Its number, 0.

    Raises
    ------
    RuntimeError
        If no level is open, or the number is that of no level.
    """
    opened = MODE.thread.dual
    if opened is None:
        raise RuntimeError(
            "Dual level must be a positive number. (exit_dual_level: no level is open)"
        )
    if level not in (None, 0):
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This "
            "is not supported."
        )
    MODE.set_dual(None)
    opened.close()


class dual_level(ModeDecorator):
    """A context manager and decorator in which tensors may have tangents.

    Tensors lose their tangents when it ends. What was computed from tangents stays, with its
    history.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd import forward_ad
    >>> x, v = tg.tensor([1.0, 2.0]), tg.tensor([1.0, 10.0])
    >>> with forward_ad.dual_level():
    ...     y = forward_ad.make_dual(x, v) ** 2
    ...     forward_ad.unpack_dual(y).tangent
    tensor([ 2., 40.])
    """

    _level: DualLevel | None = None

    def now(self) -> None:
        _refuse_nesting()

    def enter(self) -> int:
        self._level = DualLevel()
        MODE.set_dual(self._level)
        return 0

    def leave(self, before: Any) -> None:
        if self._level is not None:
            if MODE.thread.dual is self._level:
                MODE.set_dual(None)
            self._level.close()


def make_dual(tensor: Any, tangent: Any, *, level: int | None = None) -> Tensor:
    """Return a view of a tensor that has a tangent.

    Parameters
    ----------
    tensor
        The primal part, float or complex.
    tangent
        Its tangent, of the same shape. Writes to the dual tensor do not change it.
    level
        The number of the open level, 0.

    Raises
    ------
    RuntimeError
        If no level is open, the shapes differ, or one of the tensors has a tangent already.
    ValueError
        If a dtype is neither floating point nor complex.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd import forward_ad
    >>> with forward_ad.dual_level():
    ...     dual = forward_ad.make_dual(tg.tensor(2.0), tg.tensor(1.0))
    ...     forward_ad.unpack_dual(tg.sin(dual) * dual)
    UnpackedDualTensor(primal=tensor(1.81859485), tangent=tensor(0.07700375))
    """
    if MODE.thread.dual is None:
        raise RuntimeError(_NO_LEVEL)
    if level not in (None, 0):
        raise RuntimeError("Invalid level given to _make_dual")
    primal, direction = as_tensor(tensor), as_tensor(tangent)
    for name, part in (("primal", primal), ("tangent", direction)):
        if part.dtype not in DIFFERENTIABLE:
            raise ValueError(
                f"Expected {name} to be floating point or complex, but got: {part.dtype}"
            )
    if primal.shape != direction.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original "
            f"Tensor, this is not supported. Tensor is of size {list(primal.shape)} while the "
            f"given forward gradient is of size {list(direction.shape)}."
        )
    if direction.dtype.kind == "c" and primal.dtype.kind != "c":
        raise ValueError(
            f"make_dual: the tangent has dtype {direction.dtype}, and the tensor {primal.dtype}; a "
            "real tensor has a real tangent"
        )
    for part in (primal, direction):
        if type(part) is Batched:
            inner = part._level
            pair = (expanded(primal, inner), expanded(direction, inner))
            return batched(make_dual(*pair), inner)
    if is_dual(primal):
        raise RuntimeError(
            "Making a dual Tensor based on a Tensor that already has a forward gradient at the "
            "same level 0 is not supported."
        )
    if is_dual(direction):
        raise RuntimeError(
            "Setting a forward grad that itself has a forward gradient at the same level 0 is not "
            "supported."
        )
    if direction.dtype != primal.dtype:
        direction = FUNCTIONS["astype"](direction, primal.dtype)
    dual = read_item(primal, ...)
    set_tangent(dual, direction)
    return dual


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the primal part of a tensor, a view of it without tangent, and its tangent.

    Parameters
    ----------
    tensor
        Any tensor.
    level
        The number of the open level, 0.

    Returns
    -------
    UnpackedDualTensor
        The named tuple ``(primal, tangent)``; `tangent` is None if there is none, or no level is
        open.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"unpack_dual: expected a Tensor, got {type(tensor).__name__}")
    if MODE.thread.dual is None or level not in (None, 0):
        return UnpackedDualTensor(tensor, None)
    if type(tensor) is Batched:
        inner = tensor._level
        primal, tangent = unpack_dual(tensor._value)
        shown = None if tangent is None else batched(tangent, inner)
        return UnpackedDualTensor(batched(primal, inner), shown)
    tangent = tangent_of(tensor)
    if tangent is None:
        return UnpackedDualTensor(tensor, None)
    share_tangents([tensor])
    primal = read_item(tensor, ...)
    set_tangent(primal, None)
    return UnpackedDualTensor(primal, tangent)


def _refuse_nesting() -> None:
    if MODE.thread.dual is not None:
        raise RuntimeError("Nested forward mode AD is not supported at the moment")
