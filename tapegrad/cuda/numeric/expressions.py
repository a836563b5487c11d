"""Results on a device that are not computed yet.

Functions of numbers launch no kernel: their result is an expression of what they were called with.
It is computed when its memory is needed, by one kernel with all expressions that it consists of;
those that something else still refers to are stored as well, the others never reach memory. Before
an array is written to, the expressions that read it are computed. In a recording, kernels compute
cheap expressions again in place of storing them.

A kernel for several expressions is compiled when they are computed together for the second time, or
in a recording: programs that run once have the kernels of single functions, which most of them
share.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.memory import WAITING, Elements, Memory
from tapegrad.cuda.numeric import codegen
from tapegrad.cuda.numeric.layouts import common
from tapegrad.cuda.numeric.steps import ARRAY, NUMBER, VALUE, Action, Steps, map_kernel
from tapegrad.cuda.recording import NOW
from tapegrad.forks import process_lock

MOST_STEPS = 16  # of a kernel
_MOST_STEPS_RECORDED = 64  # of a kernel that is started again and again
_MOST_ARRAYS = 32  # of a kernel: its parameters have 4096 bytes
_MOST_CHEAP = 32  # steps of what is computed again in place of being stored, ...
_MOST_TIMES = 4  # ... and how often
_MOST_KNOWN = 4096  # kinds of kernels that are remembered

_LOCK = process_lock()
_known: dict[Any, None] = {}  # kernels that were needed before, the oldest first

Operand = Any  # an `Expression`, a `DeviceArray` that has memory, or a number of NumPy


class Expression:
    """A function of numbers for the elements of arrays.

    Parameters
    ----------
    action
        The function, with its types.
    operands
        Expressions, arrays with memory, and numbers.
    shape
        That of the result.

    Attributes
    ----------
    array
        Weak reference to the array that it is the value of.
    consumers
        Weak references to the expressions that it is an operand of.
    depth
        How many expressions it consists of at least.
    reference
        Weak reference to itself.
    result
        An array with memory, once it is computed.
    times
        How many kernels computed it.
    """

    __slots__ = (
        "__weakref__", "action", "array", "consumers", "depth", "operands", "reference", "result",
        "shape", "times",
    )  # fmt: skip

    def __init__(self, action: Action, operands: Sequence[Operand], shape: tuple[int, ...]) -> None:
        self.action = action
        self.operands = operands
        self.shape = shape
        self.array: Callable[[], DeviceArray | None] = _nothing
        self.consumers: list[weakref.ref[Expression]] = []
        self.depth = 1
        self.reference = weakref.ref(self)
        self.times = 0
        self.result: DeviceArray | None = None
        for operand in operands:
            if type(operand) is Expression:
                operand.consumers.append(self.reference)
                if operand.depth >= self.depth:
                    self.depth = operand.depth + 1

    def compute(self) -> None:
        """Compute it, with all that it consists of."""
        with _LOCK:
            if self.result is None:
                _store_parts(_in_order(self))

    @property
    def memories(self) -> Iterator[Memory]:
        """The memory that it reads."""
        for x in self.operands:
            array = x.result if type(x) is Expression else x
            if type(array) is DeviceArray:
                yield array.memory

    @property
    def is_waiting(self) -> bool:
        """Whether it is not computed yet."""
        return self.result is None

    @property
    def is_needed(self) -> bool:
        """Whether an array has it as its value."""
        return self.array() is not None

    def is_read_outside(self, part: Sequence[Expression]) -> bool:
        """Whether an expression that is not computed yet, and not one of some, consists of it."""
        found = (consumer() for consumer in self.consumers)
        return any(x is not None and x.result is None and x not in part for x in found)

    def hold(self, result: DeviceArray) -> None:
        """Note that it is computed."""
        self.result = result
        array = self.array()
        if array is not None:
            array.hold(result.memory)
        self.operands = ()
        for consumer in self.consumers:
            result.memory.readers.add(consumer)
        self.consumers = []


def _nothing() -> None:
    return None


def _most_steps() -> int:
    return MOST_STEPS if NOW.get() is None else _MOST_STEPS_RECORDED


def bind(expression: Expression, array: DeviceArray) -> DeviceArray:
    """Make an expression the value of an array without memory; return the array."""
    if array.expression is not None:
        array.expression.array = _nothing
    array.expression = expression
    expression.array = weakref.ref(array)
    is_shared = False
    for memory in expression.memories:
        memory.readers.add(expression.reference)
        is_shared = is_shared or memory.is_shared
    WAITING.add(expression.reference)
    if is_shared or expression.depth >= _most_steps():
        expression.compute()
    return array


def write(expression: Expression, out: DeviceArray) -> None:
    """Compute an expression, and store it in an array that is there."""
    with _LOCK:
        if out.expression is not None:
            bind(expression, out)
            return
        out.memory.settle()
        _store_parts(_in_order(expression), out)


# -- kernels ---------------------------------------------------------------------------------------


def _in_order(*roots: Expression) -> list[Expression]:
    """Return what expressions of one shape consist of, in order.

    What has another shape is computed first.
    """
    found: dict[int, Expression] = {}
    for root in roots:
        _visit(root, found)
    return [x for x in found.values() if x.result is None]


def _visit(expression: Expression, found: dict[int, Expression]) -> None:
    if id(expression) in found:
        return
    for x in expression.operands:
        if type(x) is Expression and x.result is None:
            if x.shape == expression.shape:
                _visit(x, found)
            else:
                x.compute()
    found[id(expression)] = expression


def _parts(expressions: Sequence[Expression]) -> list[list[Expression]]:
    """Return expressions in groups, for each of which there can be a kernel."""
    parts: list[list[Expression]] = []
    arrays: set[int] = set()
    is_single = False
    inside: set[int] = set()  # the expressions of a part
    for expression in expressions:
        operands = [x for x in expression.operands if type(x) in (DeviceArray, Expression)]
        read = {id(x) for x in operands} - inside
        if expression.is_needed or expression.is_read_outside(expressions):
            read.add(id(expression))
        single = expression.action.is_single
        if (
            not parts
            or single != is_single
            or len(parts[-1]) == _most_steps()
            or len(arrays | read) + 1 > _MOST_ARRAYS
        ):
            parts.append([])
            arrays = set()
            inside = set()
            read |= {id(x) for x in operands}
        is_single = single
        parts[-1].append(expression)
        inside.add(id(expression))
        arrays |= read
    return parts


class Program:
    """Expressions, in the form in which a kernel computes them.

    Parameters
    ----------
    expressions
        In order.
    arrays
        What a kernel without expressions reads.

    Attributes
    ----------
    steps
        What the kernel does.
    arrays, numbers
        What it reads.
    """

    def __init__(self, expressions: Sequence[Expression], arrays: Iterable[DeviceArray] = ()):
        self.arrays = list(arrays)
        self.numbers: list[Any] = []
        names: dict[int, str] = {}  # of values and arrays
        steps = []
        for k, expression in enumerate(expressions):
            read = []
            for x in expression.operands:
                if type(x) is Expression and x.result is not None:
                    x = x.result
                name = names.get(id(x))
                if name is None and type(x) is DeviceArray:
                    name = names[id(x)] = f"{ARRAY}{len(self.arrays)}"
                    self.arrays.append(x)
                elif name is None:
                    name = f"{NUMBER}{len(self.numbers)}"
                    self.numbers.append(x)
                read.append(name)
            names[id(expression)] = f"{VALUE}{k}"
            steps.append((expression.action, tuple(read)))
        self.steps = Steps(tuple(steps), tuple(array.dtype for array in self.arrays))


def read_once(array: DeviceArray, is_single: bool) -> Program:
    """Return what a kernel that reads each element of an array once has to compute for it.

    An array that is not computed yet is not stored then, if it is in the precision of the kernel.
    If it is read once more, it is, unless it is cheap.
    """
    with _LOCK:
        expression = array.expression
        if expression is not None and (not expression.times or is_cheap(expression)):
            *inner, _ = found = _in_order(expression)
            needed = [x for x in inner if x.is_needed or x.is_read_outside(found)]
            _store_parts(_in_order(*(x for x in needed if not is_cheap(x))))
            parts = _parts(found := _in_order(expression))
            program = Program(parts[0])
            is_whole = len(parts) == 1 and program.steps.is_single == is_single
            if is_whole and is_known(program.steps):
                for x in found:
                    x.times += 1
                return program
    return Program([], [with_memory(array)])


def is_cheap(expression: Expression) -> bool:
    """Whether kernels that read an expression compute it again, which is no more than reading it.

    That is so in recordings only, where all kernels are compiled for what they compute.
    """
    if NOW.get() is None or expression.times >= _MOST_TIMES:
        return False
    return expression.depth <= _MOST_CHEAP and len(_in_order(expression)) <= _MOST_CHEAP


def with_memory(array: DeviceArray) -> DeviceArray:
    """Return an array whose elements are computed."""
    expression = array.expression
    if expression is not None:
        expression.compute()
    return array


def _store_parts(expressions: Sequence[Expression], out: DeviceArray | None = None) -> None:
    """Compute expressions, the last of them in `out` if that is given."""
    parts = _parts(expressions)
    for part in parts:
        _store(part, out if part is parts[-1] else None, is_whole=len(parts) == 1)


def _store(
    expressions: Sequence[Expression], out: DeviceArray | None = None, is_whole: bool = True
) -> None:
    """Compute expressions in one kernel, and store those that are needed.

    The last one is stored in any case, in `out` if that is given. If they are all that is computed
    now (`is_whole`), what is cheap is left to kernels that read it later.
    """
    program = Program(expressions)
    arrays = program.arrays
    if out is not None and any(overlaps(array, out) for array in arrays):
        copies = {id(a): with_memory(a.copy()) for a in arrays if overlaps(a, out)}
        arrays = program.arrays = [copies.get(id(a), a) for a in arrays]
    stored = [
        k
        for k, e in enumerate(expressions[:-1])
        if (e.is_needed or e.is_read_outside(expressions)) and not (is_whole and is_cheap(e))
    ]
    last = expressions[-1]
    shape = last.shape if out is None else out.shape
    stored.append(len(expressions) - 1)
    targets = [DeviceArray.without_memory(shape, expressions[k].action.result) for k in stored]
    if out is not None:
        targets[-1] = out
    layout = common(shape, [*targets, *arrays])
    kinds = [layout.kind(k) for k in range(len(targets) + len(arrays))]
    outputs = tuple(zip(stored, kinds, strict=False))
    key = (program.steps, tuple(kinds[len(targets) :]), outputs, len(layout.dims))
    if len(expressions) > 1 and not is_known(key):
        for expression in expressions[:-1]:
            _store([expression])
        _store([last], out)
        return
    targets = [z if z is out else DeviceArray.empty(shape, z.dtype) for z in targets]
    given = []
    for array, kind, strides in zip([*targets, *arrays], kinds, layout.strides, strict=True):
        given += passed(array, kind, strides)
    kernel = map_kernel(*key)
    codegen.launch(kernel, layout.size, *layout.dims[1:], *given, *program.numbers)
    for k, target in zip(stored, targets, strict=True):
        if target is not out:
            expressions[k].hold(target)
    for expression in expressions:
        expression.times += 1


def is_known(key: Any) -> bool:
    """Whether a kernel is needed again, or was before; the next time it will have been."""
    if key in _known or NOW.get() is not None:
        return True
    if len(_known) >= _MOST_KNOWN:
        del _known[next(iter(_known))]
    _known[key] = None
    return False


def overlaps(array: DeviceArray, out: DeviceArray) -> bool:
    """Whether writing to an array may change elements of another one that are read later."""
    if array.memory is not out.memory:
        return False
    return (array.offset, array.shape, array.strides) != (out.offset, out.shape, out.strides)


def passed(array: DeviceArray, kind: str, strides: tuple[int, ...]) -> list[Any]:
    """Return the arguments of a kernel for an array."""
    at = array.offset // array.dtype.itemsize
    given = [Elements(array.memory.block, array.dtype), at]
    return [*given, *(strides[d] for d in codegen.strided(kind))]


def from_first(array: DeviceArray) -> Elements:
    """Return the argument of a kernel that reads a contiguous array from position 0 on."""
    return Elements(array.memory.block, array.dtype, array.offset // array.dtype.itemsize)
