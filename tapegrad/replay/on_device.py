"""What runs for a program whose arguments are on a device: its kernels, started again in each call.

The program is run once, op by op, while the kernels that it starts are noted. Functions of numbers
are computed where their values are needed, many in one kernel, so there are about as many kernels
as there are reductions, products and results. A gradient is recorded like that as a whole, forward
and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.autograd.api import grad
from tapegrad.autograd.function import Function
from tapegrad.autograd.grad_mode import enable_grad, no_grad
from tapegrad.calls import plain
from tapegrad.cuda.array import NAME, DeviceArray
from tapegrad.cuda.determinism import are_deterministic_algorithms_enabled
from tapegrad.cuda.launches import Launches
from tapegrad.cuda.memory import Pool, take
from tapegrad.cuda.recording import recording
from tapegrad.cuda.toolkit import uses_stream_of_thread
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Body, Node
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import NotRecordedError
from tapegrad.replay.compiled import is_tracked
from tapegrad.replay.op_by_op import OpByOp
from tapegrad.replay.program import Program
from tapegrad.tape.avals import DIFFERENTIABLE

Values = list[Any]


class DevicePlan:
    """A program that runs on a device.

    Parameters
    ----------
    program
        The program.

    Raises
    ------
    NotRecordedError
        If more than kernels must run in each call.

    Attributes
    ----------
    program
        As above.
    op_by_op
        Returns its results for tensors, computed as without a recording.
    """

    def __init__(self, program: Program) -> None:
        if uses_stream_of_thread():
            raise NotRecordedError("each thread has a stream of its own")
        if Body(program.nodes, [], []).has_effects():
            raise NotRecordedError("Python is called between the ops")
        self.program = program
        self.op_by_op = OpByOp(program, self._constant)
        self._constants: dict[Node, Tensor] = {}
        self._kernels: dict[Any, _Kernels] = {}
        self._reasons: dict[Any, str] = {}  # why there are no kernels

    def run(self, args: Sequence[Any]) -> Values:
        """Return the results for some arguments: tensors and numbers."""
        if any(map(is_tracked, args)):
            outputs = _Differentiable.apply(self, *map(_tensor, args))
            return [*outputs] if isinstance(outputs, tuple) else [outputs]
        return self.values([*map(_tensor, args)])

    def values(self, tensors: Sequence[Tensor]) -> Values:
        """Return the results for tensors, without derivatives."""

        def run(*tensors: Tensor) -> Values:
            with no_grad():
                return self.op_by_op(tensors)

        return self._started("value", run, tensors)

    def gradient(self, args: Sequence[Any], places: Sequence[int], with_value: bool) -> Values:
        """Return the one result, a number, and its gradients with respect to some arguments.

        The first is None where the value is not asked for: kernels that only it needs do not run.
        """
        name = "value and gradient" if with_value else "gradient"

        def run(*tensors: Tensor) -> Values:
            (value,), gradients = self._gradients(tensors, places, None)
            pairs = zip(gradients, places, strict=True)
            return [
                value.detach() if with_value else None,
                *(_zeros_like(tensors[k]) if g is None else g for g, k in pairs),
            ]

        return self._started((name, *places), run, [*map(_tensor, args)])

    def pullback(
        self, tensors: Sequence[Tensor], places: Sequence[int], cotangents: Sequence[Tensor]
    ) -> Values:
        """Return the products of cotangents of the results and the Jacobian, None for zeros."""
        count = len(tensors)

        def run(*given: Tensor) -> Values:
            return self._gradients(given[:count], places, given[count:])[1]

        given = [*tensors, *cotangents]
        try:
            return self._started(("pullback", *places), run, given)
        except NotRecordedError:
            return run(*given)

    def _gradients(
        self, tensors: Sequence[Tensor], places: Sequence[int], cotangents: Any
    ) -> tuple[Values, Values]:
        """Return the results, and gradients that cannot be differentiated again."""
        with enable_grad():
            own = [x.detach().requires_grad_(k in places) for k, x in enumerate(tensors)]
            outputs = self.op_by_op(own)
        return outputs, gradients_of(outputs, [own[k] for k in places], cotangents)

    def _constant(self, node: Node) -> Any:
        """Return an array from outside on the device, or a number."""
        if not node.shape:
            return node.example[()]
        if node not in self._constants:
            self._constants[node] = wrap(DeviceArray.from_host(node.example))
        return self._constants[node]

    def _started(
        self, key: Any, function: Callable[..., Values], tensors: Sequence[Tensor]
    ) -> Values:
        """Return what a function of tensors returns, by kernels that are noted the first time."""
        arrays = [_settled(x) for x in tensors]
        key = key, are_deterministic_algorithms_enabled()
        if key in self._reasons:
            raise NotRecordedError(self._reasons[key])
        known = self._kernels.get(key)
        if known is None:
            try:
                known = self._kernels[key] = _Kernels(function, arrays)
            except NotRecordedError as error:
                self._reasons[key] = str(error)
                raise
        return known(arrays)

    def text(self) -> str:
        """Return what runs, to be read."""
        lines = [f"on {NAME}"]
        for (key, _), known in self._kernels.items():
            what = " ".join(map(str, key)) if isinstance(key, tuple) else key
            lines.append(f"{what}: {len(known.launches)} kernels")
        return "\n".join(lines) + "\n"


class _Result(NamedTuple):
    """Where a result lies in its memory, which has so many bytes."""

    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    offset: int


class _Kernels:
    """The kernels that a function of tensors starts.

    Parameters
    ----------
    function
        The function. It returns tensors, and None.
    arrays
        Arguments.

    Raises
    ------
    NotRecordedError
        If it does what starting kernels does not repeat.
    """

    def __init__(self, function: Callable[..., Values], arrays: Sequence[DeviceArray]) -> None:
        # tensors of other memory: nothing from outside is pending on it, or is kept by it
        inputs = [array.copy() for array in arrays]
        for copy in inputs:
            _ = copy.memory
        with recording(Pool()) as made:
            found = function(*map(wrap, inputs))
            memories = [array.memory for array in inputs]
            self._results: list[_Result | None] = []
            for tensor in found:
                array: Any = None if tensor is None else tensor._a
                if array is None:
                    self._results.append(None)
                elif not isinstance(array, DeviceArray):
                    made.refuse("a result is on the host")
                else:
                    if array.memory.pool is not made.pool or array.memory in memories:
                        array = array.copy()  # of an argument, a constant or another result
                    memories.append(array.memory)
                    size = array.memory.block.size
                    self._results.append(
                        _Result(size, array.shape, array.strides, array.dtype, array.offset)
                    )
        if made.reason:
            raise NotRecordedError(made.reason)
        self.launches = Launches(made, memories)

    def __call__(self, arrays: Sequence[DeviceArray]) -> Values:
        """Start the kernels for other arguments; return what the function would."""
        memories = [array.memory for array in arrays]
        results: Values = []
        for like in self._results:
            if like is None:
                results.append(None)
                continue
            memory = take(like.size)
            memories.append(memory)
            made = DeviceArray(memory, like.shape, like.strides, like.dtype, like.offset)
            results.append(wrap(made))
        self.launches.start(memories)
        return results


class _Differentiable(Function):
    """The results of a plan, with derivatives of any order."""

    @staticmethod
    def forward(ctx: Any, plan: DevicePlan, *tensors: Tensor) -> Any:
        ctx.plan = plan
        ctx.save_for_backward(*tensors)
        found = plan.values(tensors)
        fixed = [x for x in found if x.dtype not in DIFFERENTIABLE]
        ctx.mark_non_differentiable(*fixed)
        return found[0] if len(found) == 1 else tuple(found)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        plan, tensors = ctx.plan, ctx.saved_tensors
        places = [k for k, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        if MODE.thread.recording:  # the result is differentiated again
            outputs = plan.op_by_op(tensors)
            found = gradients_of(outputs, [tensors[k] for k in places], cotangents, True)
        else:
            found = plan.pullback(tensors, places, cotangents)
        by_place = dict(zip(places, found, strict=True))
        return (None, *map(by_place.get, range(len(tensors))))


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Any, again: bool = False
) -> Values:
    """Return the gradients of some results, which can be differentiated `again` or not."""
    numbers = [k for k, x in enumerate(outputs) if isinstance(x, Tensor) and x._is_tracked]
    if not numbers:
        return [None] * len(inputs)
    seeds = None if cotangents is None else [cotangents[k] for k in numbers]
    tracked = [outputs[k] for k in numbers]
    return [*grad(tracked, inputs, seeds, create_graph=again, allow_unused=True)]


def _tensor(value: Any) -> Tensor:
    """Return an argument as a tensor on the device."""
    if isinstance(value, Tensor) and value.device == NAME:
        return value
    return wrap(DeviceArray.from_host(np.asarray(plain(value))))


def _zeros_like(tensor: Tensor) -> Tensor:
    return wrap(DeviceArray.constant(0, tensor.shape, tensor.dtype))


def _settled(tensor: Tensor) -> DeviceArray:
    """Return the array of a tensor, computed, with its elements at the start of its memory."""
    array: DeviceArray = tensor._a
    _ = array.memory
    return array if array.is_contiguous and not array.offset else array.copy()
