"""Two graphs of large arrays, to be swept by one thread or by two."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .cases import Case
from .losses import chain_size
from .peers import TorchStyle
from .workloads import WORKLOADS


@dataclass(frozen=True)
class TwoSweeps:
    """Two graphs that are recorded beforehand and kept, and what sweeps each of them."""

    sweeps: Sequence[Callable[[], Any]]
    pool: ThreadPoolExecutor

    def in_turn(self) -> None:
        """One after the other, in one thread."""
        self.pool.submit(lambda: [sweep() for sweep in self.sweeps]).result()

    def together(self) -> None:
        """Each in a thread of its own."""
        for future in [self.pool.submit(sweep) for sweep in self.sweeps]:
            future.result()


def two_sweeps(side: TorchStyle, quick: bool = False) -> TwoSweeps:
    """Record two chains of twenty operations."""
    case = Case(WORKLOADS["chain"], chain_size(1000 if quick else 1_000_000, steps=10))

    def sweep_of_new_graph() -> Callable[[], Any]:
        tensors = side.tensors(case)
        value = case.loss(side.namespace())(*tensors)
        return lambda: side.module.autograd.grad(value, tensors, retain_graph=True)

    sweeps = TwoSweeps([sweep_of_new_graph() for _ in range(2)], ThreadPoolExecutor(2))
    sweeps.together()
    sweeps.in_turn()
    return sweeps
