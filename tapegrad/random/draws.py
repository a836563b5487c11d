"""Parameters of random numbers, and drawing them: for one item, or for the items of a batch."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tapegrad.eager.batched import NO_DRAWS, Batched, Level, batched, expanded, held
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.devices import to_device
from tapegrad.eager.dispatch import operand, passive
from tapegrad.eager.duals import any_dual
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import not_recording, refuse_when_recording
from tapegrad.eager.traced_callbacks import called_back
from tapegrad.ops.table.op import dtype_of, is_differentiated
from tapegrad.probes import probe

Shape = tuple[int, ...]
T = TypeVar("T")
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


# -- parameters -----------------------------------------------------------------------------------


def float_type(name: str, dtype: Any, values: Sequence[Any]) -> np.dtype:
    """Return the dtype of samples: the one asked for, or the one of the parameters together.

    Python numbers and integers do not count: without others it is float64.
    """
    if dtype is not None:
        found = np.dtype(dtype)
    else:
        arrays = [dtype_of(v) for v in values if type(v) not in (bool, int, float)]
        floats = [d for d in arrays if d.kind not in "biu"]
        found = np.result_type(*floats) if floats else np.dtype(np.float64)
    if found not in FLOATS:
        raise TypeError(
            f"{name}: samples are float32 or float64, got {found}; pass dtype=, or convert the "
            "parameters with astype"
        )
    return found


def parameters(name: str, dtype: Any, *values: Any) -> list[Tensor]:
    """Return parameters as tensors of the dtype of the samples."""
    given = [v if type(v) in (bool, int, float) else as_tensor(v) for v in values]
    for value in given:
        if dtype_of(value).kind == "c":
            raise TypeError(f"{name} of complex parameters is not supported; take real and imag")
    found = float_type(name, dtype, given)
    return [as_tensor(value, found) for value in given]


def values_of(parameter: Tensor) -> np.ndarray:
    """Return the array of a parameter, with those of all items if it is batched."""
    return held(parameter)._a


def require(name: str, argument: str, is_valid: Any, must: str) -> None:
    """Raise if not all values of a parameter are in its domain (nan is not)."""
    if not np.all(is_valid):
        raise ValueError(f"{name}: {argument} must be {must}")


def require_positive(name: str, **given: Tensor) -> None:
    """Raise if a parameter, given by its name, is not positive and finite."""
    for argument, value in given.items():
        array = values_of(value)
        require(name, argument, (array > 0.0) & (array < np.inf), "greater than 0, and finite")


def require_scale(name: str, scale: Tensor) -> None:
    """Raise if a scale is negative."""
    require(name, "scale", values_of(scale) >= 0.0, "at least 0")


def refuse_differentiated(name: str, way_out: str, **given: Any) -> None:
    """Raise if a parameter that samples have no derivative by requires one."""
    for argument, given_value in given.items():
        value = operand(given_value)
        has_tangent = any_dual((value,))  # as it does where nothing is recorded
        if has_tangent or (MODE.recording and is_differentiated(value)):
            what = "has a tangent" if has_tangent else "requires grad"
            raise TypeError(
                f"{name}: samples have no derivative with respect to {argument!r}, which {what}; "
                f"{argument}.detach() it, {way_out}"
            )


def shape_of_samples(name: str, size: Any, shapes: Sequence[Shape], event: int = 0) -> Shape:
    """Return the shape of samples, without the axes of one sample.

    Parameters
    ----------
    name
        The function, for errors.
    size
        The shape, a number, or None for that of the parameters.
    shapes
        Shapes of the parameters.
    event
        Number of axes that were removed from each shape, for errors.
    """
    try:
        wide = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{name}: parameters of shapes {[*shapes]} do not broadcast") from None
    if size is None:
        return wide
    try:
        shape = tuple(map(operator.index, size if isinstance(size, (tuple, list)) else [size]))
    except TypeError:
        raise TypeError(f"{name}: size must be an integer or a tuple of them, got {size}") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"{name}: size has negative dimensions: {shape}")
    try:
        fits = np.broadcast_shapes(shape, wide) == shape
    except ValueError:
        fits = False
    if not fits:
        without = f", without the last {event}" if event else ""
        raise ValueError(
            f"{name}: size {shape} does not fit parameters of shape {wide}{without}; it is the "
            "shape of the result"
        )
    return shape


# -- drawing --------------------------------------------------------------------------------------


def drawn_in_each_call(cls: type[T]) -> type[T]:
    """Let each call of a recorded function draw numbers of its own (a decorator of generators).

    While it is recorded, they are drawn by a copy.
    """
    for name, method in [*vars(cls).items()]:
        if not name.startswith("_") and callable(method):
            setattr(cls, name, _in_each_call(name, method))
    return cls


def _in_each_call(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def drawing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if MODE.special and MODE.thread.draws_forbidden:
            raise RuntimeError(NO_DRAWS)
        if not (MODE.special and MODE.thread.trace is not None and not MODE.thread.levels):
            return method(self, *args, **kwargs)
        with not_recording():
            spare = copy.deepcopy(self)
        return called_back(
            f"random.{name}",
            lambda args, kwargs: method(self, *args, **kwargs),
            (args, kwargs),
            lambda args, kwargs: method(spare, *args, **kwargs),
        )

    return drawing


@probe(lambda args: f"draw of {args[1]}")
def draw(
    generator: np.random.Generator,
    name: str,
    make: Callable[..., Any],
    shape: Shape,
    *given: Tensor,
) -> Tensor:
    """Draw numbers, for every item of a batch as `vmap` is told.

    Parameters
    ----------
    generator
        Where `make` takes its numbers from.
    name
        The function, for errors.
    make
        Called with the arrays of the parameters and the shape; it returns an array of this shape.
    shape
        Shape of the result for one item.
    *given
        Parameters that the numbers depend on, which broadcast to the shape.
    """
    refuse_when_recording("random numbers are drawn with batches")
    levels: tuple[Level, ...] = MODE.thread.levels
    if not levels:
        return passive(np.asarray(make(*(p._a for p in given), shape)))
    for level in levels:
        level.begin_draw(generator.bit_generator)
    kept = [level for level in levels if level.randomness == "different"]
    arrays = [_with_items(name, p, kept, len(shape)) for p in given]
    sizes = tuple(level.size for level in kept)
    found = passive(np.asarray(make(*arrays, (*sizes, *shape))))
    for level in kept:
        found = batched(found, level)
    return found


def beside(noise: Tensor, *parameters: Tensor) -> Tensor:
    """Return numbers, which are drawn on the host, where the parameters are."""
    for parameter in parameters:
        if parameter.device != noise.device and parameter.ndim:
            return to_device(noise, parameter.device)
    return noise


def _with_items(name: str, parameter: Tensor, kept: list[Level], ndim: int) -> np.ndarray:
    """Return the array of a parameter with an axis for each level, ahead of those of an item."""
    value = parameter.detach()
    value = FUNCTIONS["reshape"](value, (1,) * (ndim - value.ndim) + value.shape)
    for level in reversed(kept):
        value = expanded(value, level)
    if type(value) is Batched:
        raise RuntimeError(
            f"vmap: {name} does not support randomness='same' with a batched parameter that its "
            "draws depend on; use randomness='different'"
        )
    return value._a
