"""Kernels, generated from formulas of the op table.

A kernel is generated for a formula, the types of its operands and the layouts of their arrays, and
kept for the process. Arrays are passed flat, with the position of their first element and their
strides, in elements: one kernel serves all views of one rank that are repeated along the same axes.
"""

from __future__ import annotations

import functools
import hashlib
import math
import types
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tapegrad.cuda.driver import Entry
from tapegrad.cuda.memory import Elements
from tapegrad.cuda.numeric.mathematics import LIBDEVICE, OF_DEVICE, SimulatedMath
from tapegrad.cuda.recording import NOW
from tapegrad.cuda.toolkit import compiling, is_simulated, require
from tapegrad.kernels import native
from tapegrad.kernels.codegen import Module, arguments_of

CONTIGUOUS = "c"  # a kind of array; of others it has a letter for each axis:
REPEATED, UNIT, STRIDED = "r", "u", "s"  # strides of 0, 1, and any
THREADS = 256  # of a block
_SIMULATED_THREADS = 2
_BLOCKS_PER_MULTIPROCESSOR = 16
_TYPES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128"

# functions in these modules need the precision of float64
_OF_DOUBLES = tuple(
    f"tapegrad.kernels.functions.{name}" for name in ("bessel", "special", "gamma_samples")
)

Formula = types.FunctionType


class DeviceModule(Module):
    """The source of a kernel and of the formulas that it applies."""

    header: ClassVar[list[str]] = [
        "from numba import cuda",
        f"from numba import boolean, {', '.join(_TYPES.split())}",
    ]
    decorator = "@cuda.jit(device=True)"

    def scalar_function(self, value: Any) -> Formula | None:
        if isinstance(value, types.FunctionType):
            return OF_DEVICE.get(value, value)
        formula = getattr(value, "scalar_formula", getattr(value, "formula", None))
        return formula if isinstance(formula, types.FunctionType) else None

    def is_double(self, function: Formula | None) -> bool:
        return function is not None and function.__module__ in _OF_DOUBLES

    def constant(self, number: str, is_double: bool) -> str:
        return number if is_double else f"float32({number})"

    def of_modules(self, function: Formula) -> dict[str, str]:
        is_single = self.dtype == "float32" and not self.is_double(function)
        end = "f" if is_single else ""
        found = {name: f"libm.{known}{end}" for name, known in LIBDEVICE.items()}
        if is_single:
            for name in ("inf", "nan", "pi"):
                found |= {f"{m}.{name}": f"float32(math.{name})" for m in ("math", "np")}
        return found

    def kernel(self, name: str) -> Kernel:
        """Return the kernel of this name."""
        text = self.text()
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        made = native.execute(key, text, name)
        made["np"] = np
        if is_simulated():
            made["math"] = made["libm"] = SimulatedMath()
        else:
            from numba.cuda import libdevice

            made["math"], made["libm"] = math, libdevice
        return Kernel(require().jit(made[name]), arguments_of(made[name]))


def element(name: str, kind: str) -> str:
    """Return the text of an element of an array, at position `i` of the loop."""
    if kind == CONTIGUOUS:
        return at(name, "i")
    return at(name, *products(kind, f"{name}_s"))


def at(name: str, *terms: str) -> str:
    """Return the text of the element of an array at a sum of positions.

    It is unsigned: numba adds the length to what may be negative.
    """
    return f"{name}[uint64({' + '.join([f'{name}_at', *terms])})]"


def products(kind: str, stride: str) -> list[str]:
    """Return the products of indices and strides that add up to the position of an element."""
    texts = {UNIT: "k{d}", STRIDED: "k{d} * {stride}{d}"}
    return [texts[k].format(d=d, stride=stride) for d, k in enumerate(kind) if k != REPEATED]


def parameters(name: str, kind: str) -> list[str]:
    """Return the parameters of a kernel for an array."""
    return [name, f"{name}_at", *(f"{name}_s{d}" for d in strided(kind))]


def strided(kind: str) -> list[int]:
    """Return the axes of an array whose strides are parameters."""
    return [d for d, k in enumerate(kind) if k == STRIDED]


def unravelled(rank: int, dim: str = "d") -> list[str]:
    """Return the statements that compute the indices ``k0``, ``k1``, ... of position `rest`."""
    lines = []
    for d in range(rank - 1, 0, -1):
        lines += [
            f"before = {quotient('rest', f'{dim}{d}')}",
            f"k{d} = rest - before * {dim}{d}",
            "rest = before",
        ]
    return [*lines, "k0 = rest"]


def quotient(x: str, y: str) -> str:
    """Return the text of a quotient that is rounded down, of numbers that are not negative.

    The division is unsigned, which takes a third of the instructions of a signed one.
    """
    return f"int64(uint64({x}) // uint64({y}))"


def indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    """Return lines of a block."""
    return [f"{'    ' * levels}{line}" for line in lines]


def converted(text: str, dtype: str) -> str:
    """Return the text of a number in a type."""
    return f"({text}) != 0" if dtype == "bool" else f"{dtype}({text})"


class Kernel:
    """A kernel of numba, which is compiled when it is first started.

    Parameters
    ----------
    made
        What numba made of its function.
    parameters
        Names of its parameters. It only writes to arrays whose names begin with ``out``, and to no
        others if it has such arrays.

    Attributes
    ----------
    made
        As above.
    outputs
        Places of the arrays that it only writes to; others may be read, and written to if there
        are none of these.
    entry
        The compiled kernel; None if it is not compiled, or if only numba can start it.
    """

    __slots__ = ("entry", "made", "outputs")

    def __init__(self, made: Any, parameters: Sequence[str]) -> None:
        self.made = made
        self.outputs = {k for k, name in enumerate(parameters) if name.startswith("out")}
        self.entry: Entry | None = None

    def start(self, grid: Any, block: Any, *args: Any) -> None:
        """Start it; the types of the arguments, numbers and `Elements`, are always the same."""
        require()  # the process may be another one than that of the arrays
        if (recording := NOW.get()) is not None:
            recording.launches.append((self, grid, block, args))
        self.run(grid, block, *args)

    def run(self, grid: Any, block: Any, *args: Any) -> None:
        """Start it, which compiles it the first time."""
        if self.entry is not None:
            self.entry.start(grid, block, args)
            return
        given = [x.for_numba() if isinstance(x, Elements) else x for x in args]
        with compiling("a kernel"):
            warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, on a simulated device
            self.made[grid, block](*given)
        self.entry = Entry.of(self.made)


def launch(kernel: Kernel, count: int, *args: Any, blocks: int | None = None) -> None:
    """Start a kernel, with as many threads as there are elements unless the device is full.

    Parameters
    ----------
    kernel
        A kernel, whose first argument is the number of elements.
    count
        Number of elements.
    *args
        The other arguments.
    blocks
        Number of blocks, if each has its own task.
    """
    kernel.start(blocks or _blocks(count), threads(), count, *args)


def threads() -> int:
    """Return the number of threads of a block."""
    return _SIMULATED_THREADS if is_simulated() else THREADS


def _blocks(count: int) -> int:
    return 1 if is_simulated() else min(-(-count // THREADS), most_blocks())


@functools.cache
def most_blocks() -> int:
    """Return the number of blocks that fill the device."""
    if is_simulated():
        return 2
    return require().get_current_device().MULTIPROCESSOR_COUNT * _BLOCKS_PER_MULTIPROCESSOR
