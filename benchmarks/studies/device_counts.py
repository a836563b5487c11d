"""What programs on a device cost, as far as that is known without one.

``python -m benchmarks.studies.device_counts`` prints how many kernels a program launches forward
and backward, how often it waits for the device, and how many bytes its kernels read and write: at
the bandwidth of a device, these take the time in the last column at least. A second table is of
gradients op by op, and of functions that are recorded. Kernels are noted, not run.
"""

import argparse
import math
import os

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # numba reads it when it is imported

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda

import tapegrad as tg
from benchmarks.measure.tables import duration, show_table
from benchmarks.programs.recorded_kernels import Recorder, chain, layer_norm, recording
from tapegrad.cuda import memory
from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.memory import Elements
from tapegrad.cuda.numeric import expressions, indexing, products, reductions, scans, sorting

BANDWIDTH = 4.8e12  # bytes per second of an H200
ROWS, COLUMNS = 2000, 1000
N = ROWS * COLUMNS


@dataclass
class Counts:
    """What is counted."""

    launches: int = 0
    nbytes: int = 0
    waits: int = 0


def network(x: tg.Tensor, is_trained: bool = True) -> tg.Tensor:
    w = tg.tensor(np.ones((COLUMNS, 64)), device="cuda", requires_grad=is_trained)
    return tg.square(tg.tanh(x @ w)).mean()


PROGRAMS: dict[str, Callable[[tg.Tensor], tg.Tensor]] = {
    "sin(z) * 1.01 + z, ten times": lambda x: chain(x).sum(),
    "logsumexp of rows": lambda x: tg.logsumexp(x, axis=1).sum(),
    "softmax of rows": lambda x: (tg.special.softmax(x, axis=1) * x).sum(),
    "layer norm": lambda x: layer_norm(x).sum(),
    "rows at repeated indices": lambda x: x[np.arange(ROWS) // 2].sum(),
    "a layer of 64 units": network,
}


def counted(program: Callable[[tg.Tensor], tg.Tensor]) -> Iterator[Counts]:
    """Yield the counts of the forward and of the backward pass, once kernels are known."""
    recorder = Recorder()
    waits: list[int] = []
    read: list[int] = []
    passed, to_host = expressions.passed, DeviceArray.to_host

    def noted(array: DeviceArray, kind: str, strides: Any) -> list[Any]:
        dims = [d for d, s in zip(array.shape, array.strides, strict=True) if s]
        read.append(math.prod(dims) * array.itemsize)  # repeated elements stay in the cache
        return passed(array, kind, strides)

    def waited(array: DeviceArray, pinned: bool = False) -> np.ndarray:
        waits.append(1)
        return to_host(array, pinned)

    modules = (expressions, indexing, products, reductions, scans, sorting)
    patches = [mock.patch.object(module, "passed", noted) for module in modules]
    patches.append(mock.patch.object(DeviceArray, "to_host", waited))
    with recording(cuda, recorder):
        x = tg.tensor(np.ones((ROWS, COLUMNS)), device="cuda", requires_grad=True)
        for _ in range(2):
            program(x).backward()
            memory.compute_all()
        x.grad = None
        recorder.launches.clear()
        for patch in patches:
            patch.start()
        try:
            z = program(x)
            memory.compute_all()
            yield taken(recorder, read, waits)
            z.backward()
            memory.compute_all()
            yield taken(recorder, read, waits)
        finally:
            mock.patch.stopall()


def of_gradients(program: Callable[[tg.Tensor], tg.Tensor]) -> Iterator[tuple[int, float]]:
    """Yield the kernels of a gradient, and the bytes of what they use: op by op, and recorded."""
    recorder = Recorder()
    with recording(cuda, recorder, are_known=True):
        x = tg.tensor(np.ones((ROWS, COLUMNS)), device="cuda", requires_grad=True)
        point, recorded = x.detach(), tg.grad(tg.jit(program))

        def op_by_op() -> Any:
            return tg.autograd.grad(program(x), x)[0]._a.memory

        for gradient in (op_by_op, lambda: recorded(point)):
            for _ in range(3):
                recorder.launches.clear()
                gradient()
            used = [{e.block for e in a if isinstance(e, Elements)} for _, a in recorder.launches]
            yield len(used), sum(block.size for each in used for block in each)


def taken(recorder: Recorder, read: list[int], waits: list[int]) -> Counts:
    """Return what was counted, and count from 0."""
    found = Counts(len(recorder.launches), sum(read), len(waits))
    for counter in (recorder.launches, read, waits):
        counter.clear()
    return found


def main() -> None:
    """Print the tables."""
    prog = "python -m benchmarks.studies.device_counts"
    argparse.ArgumentParser(prog=prog, description=__doc__).parse_args()
    rows = []
    for name, program in PROGRAMS.items():
        forward, backward = counted(program)
        moved = forward.nbytes + backward.nbytes
        rows.append(
            (
                name,
                f"{forward.launches} + {backward.launches}",
                f"{forward.waits} + {backward.waits}",
                f"{moved / (8 * N):.1f}",
                duration(moved / BANDWIDTH),
            )
        )
    columns = ("program", "kernels", "waits", "passes over x", "time at least")
    show_table(f"{N} numbers in float64, forward + backward", columns, rows)
    rows = []
    recorded = {**PROGRAMS, "a layer of 64 units": partial(network, is_trained=False)}
    for name, program in recorded.items():
        cells = [(str(n), f"{nbytes / (8 * N):.1f}") for n, nbytes in of_gradients(program)]
        rows.append((name, *cells[0], *cells[1]))
    columns = ("gradient", "kernels", "passes over x", "kernels, recorded", "passes over x")
    show_table("Gradients op by op and recorded", columns, rows)


if __name__ == "__main__":
    main()
