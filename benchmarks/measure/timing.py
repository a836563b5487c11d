"""Timing several programs in turn, so that a noisy moment affects all of them."""

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

SAMPLE_SECONDS = 0.01
"""A sample repeats a program until about so much time has passed, and takes the mean."""

AT_MOST = ((1.0, 3), (0.1, 7))
"""Programs slower than so many seconds are sampled at most so many times."""


@dataclass(frozen=True)
class Program:
    """A case as one side runs it.

    ``forward`` builds the graph and ``backward`` sweeps it; ``total`` is a call for value and
    gradients, including whatever it takes to set up and to let go. A side that cannot be split
    has a total only, and one without derivatives a forward only.
    """

    forward: Callable[[], Any] | None = None
    backward: Callable[[Any], Any] | None = None
    total: Callable[[], tuple[Any, Iterable[Any]]] | None = None

    @property
    def whole(self) -> Callable[[], Any]:
        """All that this side can do with the case."""
        run = self.total or self.forward
        assert run is not None
        return run


@dataclass(frozen=True)
class Seconds:
    """Medians over the repetitions; None for what a side does not have."""

    forward: float | None
    backward: float | None
    total: float | None
    first: float
    """The first call, with whatever is compiled or loaded in it."""
    repetitions: int

    @property
    def whole(self) -> float | None:
        """The time for all that the side does with a case."""
        return self.total or self.forward


class Stopwatch:
    """Collects samples of one program."""

    def __init__(self, program: Program):
        self.program = program
        self.samples: dict[str, list[float]] = {"forward": [], "backward": [], "total": []}
        self.first = 0.0
        self.number = 1
        self.repetitions = 1

    def first_call(self) -> Any:
        """Time the first call and return what it returns."""
        start = perf_counter()
        result = self.program.whole()
        self.first = perf_counter() - start
        return result

    def warm_up(self, repetitions: int) -> None:
        """Run the program until it is warm, and decide how often a sample repeats it."""
        once = min(elapsed(self.program.whole) for _ in range(2 if self.first > 0.1 else 5))
        self.number = max(1, round(SAMPLE_SECONDS / once))
        limits = (most for seconds, most in AT_MOST if once > seconds)
        self.repetitions = min(repetitions, next(limits, repetitions))
        if self.repetitions > 1:
            self.sample()
            self.samples = {phase: [] for phase in self.samples}

    def sample(self) -> None:
        """Add one sample of every phase the program has."""
        forward, backward, total = self.program.forward, self.program.backward, self.program.total
        if forward is not None:
            split = [0.0, 0.0]
            for _ in range(self.number):
                start = perf_counter()
                graph = forward()
                between = perf_counter()
                if backward is not None:
                    backward(graph)
                split[1] += perf_counter() - between
                split[0] += between - start
                del graph
            self.samples["forward"].append(split[0] / self.number)
            if backward is not None:
                self.samples["backward"].append(split[1] / self.number)
        if total is not None:
            start = perf_counter()
            for _ in range(self.number):
                total()
            self.samples["total"].append((perf_counter() - start) / self.number)

    def seconds(self) -> Seconds:
        """The medians."""
        medians = {
            phase: statistics.median(samples) if samples else None
            for phase, samples in self.samples.items()
        }
        return Seconds(**medians, first=self.first, repetitions=self.repetitions)


def sample_in_turn(watches: Sequence[Stopwatch], repetitions: int) -> None:
    """Sample the programs one after the other, round after round."""
    if repetitions > 1:
        for watch in watches:
            watch.warm_up(repetitions)
    gc.collect()
    gc.freeze()  # a collection before every sample looks at what is new, not at whole libraries
    for turn in range(repetitions):
        for watch in watches:
            if turn < watch.repetitions:
                with collector_paused():
                    watch.sample()
    gc.unfreeze()


def medians_in_turn(runs: Sequence[Callable[[], Any]], repetitions: int) -> list[float]:
    """Median times of calls that are made one after the other, round after round."""
    rounds = []
    for _ in range(repetitions):
        with collector_paused():
            rounds.append([elapsed(run) for run in runs])
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def in_turn(runs: dict[str, Callable[[], float]], repetitions: int) -> dict[str, float]:
    """Medians of measurements that each start a process, one after the other.

    Where there are several, a round that is not counted comes first: it brings files into memory
    and kernels into the cache.
    """
    uncounted = int(repetitions > 1)
    rounds = [{name: run() for name, run in runs.items()} for _ in range(repetitions + uncounted)]
    del rounds[:uncounted]
    return {name: statistics.median(samples[name] for samples in rounds) for name in runs}


def elapsed(run: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = perf_counter()
    run()
    return perf_counter() - start


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector out of a sample, as ``timeit`` does."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
