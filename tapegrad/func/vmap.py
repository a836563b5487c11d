"""`vmap`: a function of one item, applied to a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tapegrad.calls import Transformed, check_function, plain
from tapegrad.control_flow import scan
from tapegrad.cuda.array import HOST
from tapegrad.eager.batched import (
    BatchError,
    Level,
    batched,
    expanded,
    innermost,
    is_at,
    open_level,
)
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import NotRecordedError, holds_traced, is_recording
from tapegrad.imports import whole_imports
from tapegrad.pytrees import holds_tensor, tree

Axes = Any  # an integer, None, or a container of these


def vmap(
    f: Callable[..., Any],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    in_dims: Axes = None,
    out_dims: Axes = None,
    target: str = "cpu",
    loop: bool = False,
) -> Callable[..., Any]:
    """Return a function that applies `f` to every item of a batch, in one call.

    `f` is written for one item. It is called once, with tensors that stand for all items; each of
    its ops is one op of the batch. Derivatives of `f` may be taken inside, such as gradients for
    every sample, or outside.

    Parameters
    ----------
    f
        Function of arrays or pytrees; it returns arrays or a pytree of arrays.
    in_axes
        The axis of each argument along which the items are; None for an argument that all items
        share. One number for all arguments, or a tuple with one entry for each, which may be a
        container like the argument. Keyword arguments are shared.
    out_axes
        The axis of the results along which the items are, likewise.
    randomness
        What `tapegrad.random` does in `f`: ``"different"`` numbers for every item, the ``"same"``
        for all, or an ``"error"``. Calls inside of others follow both.
    chunk_size
        Process at most this many items at a time, to save memory; all by default.
    in_dims, out_dims
        PyTorch's names of `in_axes` and `out_axes`.
    target
        ``"cuda"`` computes a compiled function, or a derivative of one, on a CUDA device: each
        thread computes one item. Otherwise ``"cpu"``.
    loop
        Whether `f` is recorded once, for one item, and called in a compiled loop over the items, as
        by `tapegrad.jit` and `tapegrad.scan`. This needs memory for one item at a time, and takes
        functions with loops and branches that depend on the item.

    Returns
    -------
    callable
        Takes the arguments of `f` with one axis more. It returns tensors if it is given tensors,
        otherwise arrays.

    Raises
    ------
    ValueError
        When called, if the axes do not match the arguments, or the sizes of the batches differ.
    BatchError
        When called, if `f` asks for the value of an item, for example by an ``if`` on a tensor.
    RuntimeError
        When called, if `f` draws random numbers and `randomness` is ``"error"``.
    tapegrad.cuda.CudaUnavailableError
        When called, if `target` is ``"cuda"`` and there is no device.

    Notes
    -----
    In-place work on tensors that are made from batched ones is supported (``tg.zeros_like(x)``,
    ``x.clone()``). An op without a batching rule is computed item by item, with a warning.

    A function compiled with `tapegrad.njit`, or a derivative of one, is called for each item of
    NumPy arrays in a compiled loop; with ``parallel=True``, on all threads. The shapes of its
    results must not differ between the items. `chunk_size` and `randomness` have no effect then.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> tg.vmap(lambda row: row @ row)(x)
    array([ 5., 25., 61.])
    >>> w = np.array([1.0, -1.0])
    >>> loss = lambda w, row: (row @ w) ** 2
    >>> tg.vmap(tg.grad(loss), in_axes=(None, 0))(w, x)  # a gradient for every row
    array([[ -2.,  -4.],
           [ -6.,  -8.],
           [-10., -12.]])

    Of a compiled function, in a compiled loop:

    >>> @tg.njit
    ... def energy(x, k):
    ...     return 0.5 * k * x * x
    >>> tg.vmap(tg.grad(energy), in_axes=(0, None))(np.array([1.0, 2.0, 3.0]), 4.0)
    array([ 4.,  8., 12.])
    """
    check_function(f, "vmap")
    in_axes = in_axes if in_dims is None else in_dims
    out_axes = out_axes if out_dims is None else out_dims
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    if target not in ("cpu", "cuda"):
        raise ValueError(f"vmap: target must be 'cpu' or 'cuda', got {target!r}")
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', or 'same'. Got "
            f"{randomness}"
        )

    recipe = in_axes, out_axes, chunk_size, randomness, target, loop

    def in_loop(*args: Any, **kwargs: Any) -> Any:
        return _Batch(f, args, in_axes, randomness).in_loop(kwargs, out_axes)

    if loop:
        if target != "cpu" or chunk_size is not None or randomness == "same":
            raise ValueError(
                "vmap: loop=True goes with neither target, nor chunk_size, nor randomness='same'"
            )
        with whole_imports("tapegrad.replay.function"):
            from tapegrad.replay.function import jit

        return Transformed(jit(in_loop), _again, f, *recipe)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if is_recording((*args, kwargs)):
            found, build = _recorded(_Batch(f, args, in_axes, randomness), kwargs, out_axes)
            return build(found)
        batch = _Batch(f, args, in_axes, randomness)
        over_items = getattr(f, "over_items", None)  # of compiled functions
        if over_items is not None and target == "cuda":
            batch.take_arrays_of_device()
        if over_items is not None and batch.is_plain(kwargs):
            return batch.compiled(over_items, kwargs, out_axes, target)
        if target != "cpu":
            raise ValueError(
                "vmap: target='cuda' is for functions compiled with tapegrad.njit, their "
                "derivatives, and arrays of items that are not empty, of NumPy or on the device; "
                "detach() tensors that require grad, and move others with to('cuda')"
            )
        if MODE.thread.trace is not None and chunk_size is None:  # f may read what is traced
            found, build = _recorded(batch, kwargs, out_axes)
            is_plain = not holds_traced(found) and not holds_tensor((args, kwargs))
            return build([_shown(z, batch.arrays) for z in found] if is_plain else found)
        step = chunk_size or max(batch.size, 1)
        parts = [
            batch.call(slice(start, start + step), kwargs, out_axes)
            for start in range(0, max(batch.size, 1), step)
        ]
        found, build, places = parts[0]
        if len(parts) > 1:
            found = [
                items[0] if place is None else FUNCTIONS["concatenate"](list(items), place)
                for place, *items in zip(places, *(part[0] for part in parts), strict=True)
            ]
        if not holds_tensor(args) and not holds_tensor(kwargs):
            found = [_shown(z, batch.arrays) for z in found]
        return build(found)

    return Transformed(wrapped, _again, f, *recipe)


def _shown(z: Tensor, given: list[np.ndarray]) -> Any:
    """Return a result as an array with memory of its own, unless it has a history or is batched."""
    if z._is_tracked or innermost([z]) is not None:
        return z
    array = z._a
    is_fresh = array.flags.writeable and not any(np.may_share_memory(array, a) for a in given)
    return plain(z) if is_fresh else plain(z).copy()


def _again(
    f: Callable[..., Any],
    in_axes: Axes,
    out_axes: Axes,
    chunk_size: int | None,
    randomness: str,
    target: str,
    loop: bool,
) -> Any:
    return vmap(f, in_axes, out_axes, randomness, chunk_size=chunk_size, target=target, loop=loop)


def _recorded(
    batch: _Batch, kwargs: dict[str, Any], out_axes: Axes
) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Record the ops of a batch; a loop over the items where they have no form for batches."""
    trace = MODE.thread.trace
    count = len(trace.nodes)
    try:
        found, build, _ = batch.call(slice(None), kwargs, out_axes)
    except NotRecordedError:
        if batch.randomness == "same":
            raise
        del trace.nodes[count:]
        return tree(batch.in_loop(kwargs, out_axes), "vmap: the result")
    return found, build


class _Batch:
    """The arguments of a call, of which some have an axis of items."""

    def __init__(
        self, f: Callable[..., Any], args: tuple[Any, ...], axes: Axes, randomness: str
    ) -> None:
        self.f = f
        self.randomness = randomness
        self.states: dict[Any, Any] = {}
        self.name = name = f"vmap({getattr(f, '__name__', f)}, in_dims={axes}, ...)(<inputs>)"
        if not isinstance(axes, (int, np.integer, tuple, list)):
            raise ValueError(
                f"{name}: expected `in_dims` to be int or a (potentially nested) tuple matching "
                f"the structure of inputs, got: {type(axes)}."
            )
        if not args:
            raise ValueError(
                f"{name}: got no inputs. Maybe you forgot to add inputs, or you are trying to vmap "
                "over a function with no inputs. The latter is unsupported."
            )
        if not isinstance(axes, (int, np.integer)) and len(axes) != len(args):
            raise ValueError(
                f"{name}: in_dims is not compatible with the structure of inputs: it has "
                f"{len(axes)} entries for {len(args)} arguments."
            )
        self.parts: list[tuple[list[Any], Any, list[int | None]]] = []
        self.arrays: list[np.ndarray] = []
        sizes = []
        for number, arg in enumerate(args):
            given = axes[number] if isinstance(axes, (tuple, list)) else axes
            leaves, build = tree(arg, f"vmap: argument {number}")
            places = [
                self._place(leaf, place)
                for leaf, place in zip(leaves, axes_of(arg, given, self.name), strict=True)
            ]
            self.parts.append((leaves, build, places))
            self.arrays += [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
            sizes += [
                np.shape(leaf)[place] if not isinstance(leaf, Tensor) else leaf.shape[place]
                for leaf, place in zip(leaves, places, strict=True)
                if place is not None
            ]
        # items are what they are in the surrounding code where that gives tensors
        are_values = not holds_tensor(args, with_views=True)
        self._called = MODE.with_items(are_values, f)
        if not sizes:
            raise ValueError(f"{name}: at least one argument needs an axis of items (in_dims)")
        if len(set(sizes)) > 1:
            raise ValueError(
                "vmap: Expected all tensors to have the same size in the mapped dimension, got "
                f"sizes {sizes} for the mapped dimension"
            )
        self.size: int = sizes[0]

    def take_arrays_of_device(self) -> None:
        """Replace tensors on a device, without history, by their arrays."""
        for leaves, _, _ in self.parts:
            for k, leaf in enumerate(leaves):
                if type(leaf) is Tensor and leaf.device != HOST and not leaf._is_tracked:
                    leaves[k] = leaf._a

    def is_plain(self, kwargs: dict[str, Any]) -> bool:
        """Whether items are those of arrays, so that compiled code can take them."""
        given = [leaf for leaves, _, _ in self.parts for leaf in leaves]
        return (
            self.size > 0
            and not any(isinstance(leaf, Tensor) for leaf in given)
            and not holds_tensor(kwargs)
            and all(len(places) == 1 or set(places) == {None} for _, _, places in self.parts)
        )

    def compiled(
        self, over_items: Callable[..., Any], kwargs: dict[str, Any], out_axes: Axes, target: str
    ) -> Any:
        """Call a compiled function for all items, in a compiled loop."""
        args, has_items = [], []
        for leaves, build, (place, *_) in self.parts:
            has_items.append(place is not None)
            args.append(build(leaves) if place is None else np.moveaxis(leaves[0], place, 0))
        call = partial(over_items, self.f, self.size, args, has_items, kwargs, target=target)
        if isinstance(out_axes, (int, np.integer)):  # tuples of arrays do not need optree
            return call(lambda z: self._moved(z, int(out_axes)))
        result = call(lambda z: z)
        leaves, build = tree(result, "vmap: the result")
        places = axes_of(result, out_axes, self.name.replace("in_dims", "out_dims"))
        return build([self._moved(*pair) for pair in zip(leaves, places, strict=True)])

    def _place(self, leaf: Any, place: Any) -> int | None:
        """Return the axis of the items of an argument, counted from the first one."""
        if place is None:
            return None
        if not isinstance(leaf, (Tensor, np.ndarray)):
            raise ValueError(
                f"{self.name}: Got in_dim={place} for an input but the input is of type "
                f"{type(leaf)}. We cannot vmap over non-Tensor arguments, please use None as the "
                "respective in_dim"
            )
        if not -leaf.ndim <= place < leaf.ndim:
            raise ValueError(
                f"{self.name}: Got in_dim={place} for some input, but that input is a Tensor of "
                f"dimensionality {leaf.ndim} so expected in_dim to satisfy "
                f"-{leaf.ndim} <= in_dim < {leaf.ndim}."
            )
        return int(place) % leaf.ndim

    def call(
        self, chunk: slice, kwargs: dict[str, Any], out_axes: Axes
    ) -> tuple[list[Tensor], Any, list[int | None]]:
        """Call the function with some of the items; return the leaves of its result."""
        size = len(range(*chunk.indices(self.size)))
        states = self.states if size < self.size else None
        with open_level(size, self.randomness, states) as level:
            args = [
                build(
                    [self._item(*pair, chunk, level) for pair in zip(leaves, places, strict=True)]
                )
                for leaves, build, places in self.parts
            ]
            try:
                result = self._called(*args, **kwargs)
            except ValueError as error:
                if not isinstance(error.__cause__, BatchError):
                    raise
                raise error.__cause__ from None  # NumPy raises another error when it gets this one
            leaves, build = tree(result, "vmap: the result")
            places = axes_of(result, out_axes, self.name.replace("in_dims", "out_dims"))
            pairs = zip(leaves, places, strict=True)
            found = [self._output(leaf, place, level) for leaf, place in pairs]
        return found, build, places

    def in_loop(self, kwargs: dict[str, Any], out_axes: Axes) -> Any:
        """Call the function for one item after the other, by a loop that can be recorded."""

        def step(state: Any, rows: list[Any]) -> Any:
            items = iter(rows)
            args = [
                build(
                    [
                        leaf if place is None else next(items)
                        for leaf, place in zip(leaves, places, strict=True)
                    ]
                )
                for leaves, build, places in self.parts
            ]
            if self.randomness == "error":
                return state, MODE.without_draws(partial(self._called, *args, **kwargs))
            return state, self._called(*args, **kwargs)

        if not self.size:
            found, build, _ = self.call(slice(None), kwargs, out_axes)
            return build(found)
        rows = [
            _with_items_first(leaf, place)
            for leaves, _, places in self.parts
            for leaf, place in zip(leaves, places, strict=True)
            if place is not None
        ]
        _, result = scan(step, 0.0, rows)
        leaves, build = tree(result, "vmap: the result")
        places = axes_of(result, out_axes, self.name.replace("in_dims", "out_dims"))
        return build([self._moved(*pair) for pair in zip(leaves, places, strict=True)])

    def _item(self, leaf: Any, place: int | None, chunk: slice, level: Level) -> Any:
        if place is None:
            return leaf
        # a view, whose record is that of the argument alone: other uses of the tensor do not count
        return batched(_with_items_first(leaf, place)[chunk], level)

    def _output(self, leaf: Any, place: int | None, level: Level) -> Tensor:
        if not isinstance(leaf, (Tensor, np.ndarray, np.generic, float, int, complex)):
            raise ValueError(
                f"vmap({getattr(self.f, '__name__', self.f)}, ...): the function must only return "
                f"Tensors, got type {type(leaf)}."
            )
        tensor = as_tensor(leaf)
        if not is_at(tensor, level) and type(tensor) is Tensor:
            self.arrays.append(tensor._a)  # not made by the call
        if place is None and not is_at(tensor, level):
            return tensor
        return self._moved(expanded(tensor, level), place)

    @staticmethod
    def _moved(whole: Any, place: int | None) -> Any:
        """Return the results of all items, which are along the first axis, with another axis."""
        if place is None:
            raise ValueError(
                "vmap: a result has out_dims=None, but it differs between the items of the "
                "batch; give it an axis"
            )
        if not -whole.ndim <= place < whole.ndim:
            raise ValueError(
                f"vmap: out_dims has {place} for a result with {whole.ndim} axes, that of the "
                "items included"
            )
        move = FUNCTIONS["moveaxis"] if isinstance(whole, Tensor) else np.moveaxis
        return move(whole, 0, place) if place else whole


def _with_items_first(leaf: Any, place: int) -> Tensor:
    tensor = as_tensor(leaf)
    return FUNCTIONS["moveaxis"](tensor, place, 0) if place else tensor


def axes_of(value: Any, axes: Axes, name: str) -> list[int | None]:
    """Return the axis of every leaf of a pytree, from one for all or a container of axes."""
    leaves, build = tree(value, name)
    found: list[int | None] = [None] * len(leaves)
    numbered = build([float(k) for k in range(len(leaves))])
    for number, axis in _paired(numbered, axes, name):
        found[int(number)] = axis
    return found


def _paired(value: Any, axes: Axes, name: str) -> Iterator[tuple[Any, int | None]]:
    if axes is None or isinstance(axes, (int, np.integer)):
        for leaf in tree(value, name)[0]:
            yield leaf, None if axes is None else int(axes)
    elif isinstance(value, dict) and isinstance(axes, dict):
        if value.keys() != axes.keys():
            raise ValueError(f"{name}: the axes have keys {[*axes]} for {[*value]}.")
        for key in value:
            yield from _paired(value[key], axes[key], name)
    elif isinstance(value, (list, tuple)) and isinstance(axes, (list, tuple)):
        if len(value) != len(axes):
            raise ValueError(f"{name}: {len(axes)} axes for {len(value)} values.")
        for item, axis in zip(value, axes, strict=True):
            yield from _paired(item, axis, name)
    else:
        raise ValueError(f"{name}: the axes {axes} do not match the structure of {type(value)}.")
