"""Functions that are recorded for arguments of one kind, and run compiled or op by op."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError

from tapegrad.autograd.grad_mode import enable_grad
from tapegrad.calls import plain
from tapegrad.cuda.array import HOST, on_device_named, on_host
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.lines import described, level_of_user, line_of_user_in
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Node, replaced
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import NotRecordedError, RecordingError, Traced, record
from tapegrad.eager.traced_calls import is_narrow
from tapegrad.eager.values import standing_for
from tapegrad.garbage import without_collection
from tapegrad.pytrees import Build, tree
from tapegrad.replay.arguments import Arguments
from tapegrad.replay.compiled import Region, is_tracked
from tapegrad.replay.complex_values.convert import in_real_parts
from tapegrad.replay.derivatives import spelt_out
from tapegrad.replay.forms import FLOATS, OtherShapeError
from tapegrad.replay.loop_invariants import moved_out
from tapegrad.replay.matrices import with_factors
from tapegrad.replay.on_device import DevicePlan
from tapegrad.replay.plan import OnlyCalledError, Plan
from tapegrad.replay.program import simplified
from tapegrad.replay.rolling.loops import rolled
from tapegrad.transform.eager_calls import Kind, Kinds
from tapegrad.transform.errors import TransformError

_MOST_ITERATIONS = 1000  # of a Python loop, after which it is worth a warning


class Recorded:
    """A function that was recorded for arguments of one kind.

    Parameters
    ----------
    function
        The function.
    name
        Its name in warnings.
    arguments
        Such arguments.

    Attributes
    ----------
    plan
        What runs; None if the function runs op by op.
    reason
        Why it does, "" if it does not.
    is_single
        Whether it returns one value, which is computed.
    result_of
        The dtype and dimensions of the result, if it is a single one, by those of the arguments.
    """

    def __init__(self, function: Callable[..., Any], name: str, arguments: Arguments) -> None:
        self.function = function
        self.plan: Plan | DevicePlan | None = None
        self.reason = ""
        self._slow = ""
        self.is_single = False
        self.result_of: dict[Kinds, Kind] = {}
        # from outside, which did not require grad: what is computed of them alone is constant
        self._captured: list[weakref.ref[Tensor]] = []
        self._parameters: list[Tensor] = []  # from outside, too, and further arguments
        self._kinds: list[Any] = []  # their shapes and dtypes
        self._results: list[tuple[int | None, Any]] = []  # places among the outputs, or constants
        self._shared: list[int] = []  # outputs that would have the memory of others
        self._build: Build = lambda leaves: leaves[0]
        self._count = 0  # of recorded values
        self._device = arguments.devices[0] if arguments.devices else HOST
        try:
            with without_collection():
                self._record(arguments)
        except OnlyCalledError as error:
            self.plan, self.reason = None, str(error)
        except NotRecordedError as error:
            self.run_op_by_op(str(error), error.line or line_of_user_in(error.__traceback__))
        if isinstance(self.plan, Plan) and self.plan.most > _MOST_ITERATIONS:
            warnings.warn(
                f"{name} has {self.plan.most} equal iterations of a Python loop, which all are "
                "recorded; tapegrad.scan or fori_loop records one",
                stacklevel=level_of_user(),
            )

    def _record(self, arguments: Arguments) -> None:
        if numba.config.DISABLE_JIT:
            raise OnlyCalledError("NUMBA_DISABLE_JIT is set")
        if len(arguments.devices) > 1:
            raise NotRecordedError("some tensors are on a device, and others are not")
        if any(type(leaf) in (int, float, complex) for leaf in arguments.leaves):
            if any(map(is_narrow, arguments.leaves)):
                # recorded, it would be float64, and so would what is computed from it
                raise NotRecordedError("a number of Python beside arrays of other dtypes")
        with enable_grad(), record(self._device) as trace:
            trace.notes_lines = True
            inputs = [*map(_input, arguments.leaves)]
            # a tensor may be a number in one call and an array in another one, whose views it has
            given = [
                standing_for(node.example if isinstance(leaf, Tensor) else leaf, trace.tensor(node))
                for node, leaf in zip(inputs, arguments.leaves, strict=True)
            ]
            pairs = zip(inputs, arguments.leaves, strict=True)
            trace.numbers |= {node for node, leaf in pairs if type(leaf) in (int, float, complex)}
            try:
                found = self._called(arguments, given)
            except Exception as error:
                if trace.failure is None or isinstance(error, RecordingError):
                    raise
                raise trace.failure from error  # NumPy raises another error when it gets this one
            if trace.failure is not None:
                raise trace.failure
            leaves, self._build = tree(found, "jit: the result")
            outputs: list[Node] = []
            for leaf in leaves:
                if type(leaf) is Traced and leaf.is_known():
                    self._results.append((None, wrap(leaf._a.copy())))
                elif type(leaf) is Traced:
                    self._results.append((len(outputs), None))
                    outputs.append(trace.node_of(leaf))
                elif isinstance(leaf, Tensor) and leaf._is_tracked:
                    raise NotRecordedError("a result is a tensor from outside that requires grad")
                elif isinstance(leaf, Tensor):
                    trace.capture(leaf)
                    self._results.append((None, wrap(leaf._a.copy())))
                else:
                    self._results.append((None, leaf))
        if not outputs:
            raise NotRecordedError("no result depends on the arguments")
        self.is_single = type(found) is Traced and not found.is_known()
        if self.is_single:
            kinds = tuple((str(node.dtype), len(node.shape)) for node in inputs)
            self.result_of[kinds] = str(outputs[0].dtype), len(outputs[0].shape)
        self._captured = [*map(weakref.ref, trace.captured.values())]
        self._parameters = [tensor for tensor, _ in trace.parameters]
        self._kinds = [*map(_kind, self._parameters)]
        self._count = len(trace.nodes)
        inputs += [node for _, node in trace.parameters]
        if self._device == HOST:
            nodes, same = spelt_out(trace.nodes)
            nodes, outputs = rolled(nodes, [replaced(output, same) for output in outputs])
            nodes, outputs = in_real_parts(nodes, outputs)
            nodes, outputs = with_factors(nodes, outputs)
            program = simplified(moved_out(nodes), inputs, outputs)
            self.plan = Plan(program)
        else:
            program = simplified(trace.nodes, inputs, outputs, spells_out=False)
            self.plan = DevicePlan(program)
        self._shared = [
            k
            for k, node in enumerate(program.outputs)
            if node.shape and (node in program.outputs[:k] or self._is_given(node))
        ]

    def _is_given(self, node: Node) -> bool:
        """Whether an output is an argument or a constant, which only a single region copies."""
        is_copied = isinstance(self.plan, Plan) and self.plan.region is not None
        return not is_copied and node.name in ("input", "constant")

    @property
    def shares(self) -> bool:
        """Whether some results would have the memory of others, or of arguments."""
        return bool(self._shared)

    @property
    def region(self) -> Region | None:
        """What computes everything from the arguments, None if there is no such region."""
        return self.plan.region if isinstance(self.plan, Plan) and not self._parameters else None

    def device_gradient(
        self, arguments: Arguments, places: tuple[int, ...], with_value: bool
    ) -> list[Any] | None:
        """Return the value and gradient for arguments on a device, None if they are not compiled.

        Parameters
        ----------
        arguments
            The arguments.
        places
            The leaves with respect to which the one result is differentiated.
        with_value
            Whether the value is computed; it is None otherwise.
        """
        if not isinstance(self.plan, DevicePlan) or not self.is_single or self._parameters:
            return None
        leaves = arguments.leaves
        if not all(isinstance(leaves[place], Tensor) for place in places):
            return None
        if any(map(is_tracked, leaves)):
            return None
        program = self.plan.program
        (output,) = program.outputs
        if output.shape or any(
            node.dtype not in FLOATS for node in (output, *(program.inputs[k] for k in places))
        ):
            return None
        try:
            return self.plan.gradient(arguments.leaves, places, with_value)
        except (NotRecordedError, OtherShapeError) as error:
            self.run_op_by_op(str(error))
            return None

    def captured(self) -> list[Tensor]:
        """Return the tensors from outside that did not require grad, and that still exist."""
        alive = [(ref, tensor) for ref in self._captured if (tensor := ref()) is not None]
        self._captured = [ref for ref, _ in alive]
        return [tensor for _, tensor in alive]

    def fits(self) -> bool:
        """Whether the tensors from outside are still of the kinds for which it was recorded."""
        if any(tensor._is_tracked for tensor in self.captured()):
            return False
        return not self._parameters or [*map(_kind, self._parameters)] == self._kinds

    def run_op_by_op(self, reason: str, line: tuple[str, int] | None = None) -> None:
        """Note why the function is not compiled, and the user's line, if known."""
        self.plan = None
        self.reason = reason
        where = "" if line is None else f"{described(*line)} "
        self._slow = f"runs op by op: {where}{reason}"

    @property
    def slow(self) -> str:
        """What runs op by op, for the user; empty if all is compiled that can be expected to be."""
        if isinstance(self.plan, Plan):
            parts = [
                f"{name}{' in ' + described(*line).rstrip(',') if line else ''} ({reason})"
                for name, line, reason in self.plan.op_by_op()
            ]
            return f"computes op by op: {'; '.join(parts)}" if parts else ""
        return self._slow if self.plan is None else ""

    def run(self, arguments: Arguments) -> Any:
        """Call the compiled function, or run op by op if it cannot be compiled."""
        values: list[Any] = []
        if self.plan is not None:
            try:
                values = self.plan.run([*arguments.leaves, *self._parameters])
            except (TransformError, NotRecordedError, OtherShapeError) as error:
                self.run_op_by_op(str(error))
            except (NumbaError, ImportError) as error:  # linear algebra needs SciPy
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                self.run_op_by_op(f"numba: {' '.join(lines[1:3] or lines)}")
        if self.plan is None:
            return self._run_op_by_op(arguments)
        return self.finished(values, arguments.has_tensors)

    def finished(self, values: list[Any], has_tensors: bool) -> Any:
        """Return what the function returns, for the values that were computed."""
        for place in self._shared:
            values[place] = values[place].copy()
        made = [
            _copied(constant, self._device) if place is None else values[place]
            for place, constant in self._results
        ]
        return self._build([_shown(leaf, has_tensors) for leaf in made])

    def _run_op_by_op(self, arguments: Arguments) -> Any:
        """Call the function itself, on tensors; return what a compiled call returns."""
        leaves = [
            standing_for(x, as_tensor(x)) if isinstance(x, np.ndarray) else x
            for x in arguments.leaves
        ]
        leaves, build = tree(self._called(arguments, leaves), "jit: the result")
        return build([_shown(leaf, arguments.has_tensors) for leaf in leaves])

    def _called(self, arguments: Arguments, leaves: list[Any]) -> Any:
        """Call the function itself."""
        args, kwargs = arguments.with_leaves(leaves)
        found = MODE.with_items(arguments.items_are_values, self.function)(*args, **kwargs)
        arguments.check_unchanged(leaves, args, kwargs)
        return found

    def text(self) -> str:
        """Return what runs, or why there is nothing compiled."""
        if self.plan is None:
            return f"op by op: {self.reason}\n"
        return (
            f"# {self._count} values recorded, {len(self.plan.program.nodes)} computed, "
            f"{self.plan.text()}"
        )


def _input(leaf: Any) -> Node:
    """Return the node of an argument."""
    return Node("input", np.array(on_host(plain(leaf))))


def _kind(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


def _copied(constant: Any, device: str) -> Any:
    """Return a result that is the same in each call, in memory of its own on a device."""
    if isinstance(constant, Tensor):
        return wrap(on_device_named(device, constant._a.copy()))
    return constant.copy() if isinstance(constant, np.ndarray) else constant


def _shown(leaf: Any, has_tensors: bool) -> Any:
    """Return a result as a tensor if an argument is one, otherwise as an array or a number."""
    if isinstance(leaf, Tensor):
        return leaf if has_tensors or leaf._is_tracked else plain(leaf)
    if has_tensors and isinstance(leaf, (np.ndarray, np.generic, float)):
        return wrap(np.asarray(leaf))
    return leaf
