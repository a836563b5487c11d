"""The cost of autograd features, and of the plain op that must not pay for them."""

import tapegrad as tg
from benchmarks.measure import timing
from benchmarks.programs import plain_ops
from benchmarks.programs.two_sweeps import two_sweeps

from .suite import CASES, SIDE, labels


class Feature:
    """Value and gradients of the programs that use them."""

    params = (
        *(label for label in labels("functions", "hooks", "saved") if label.endswith("n=8")),
        *labels("mutation", "double", "complex"),
    )
    param_names = ("case",)

    def setup(self, case):
        """Compile."""
        self.total = SIDE.prepare(CASES[case]).total
        self.total()

    def time_value_and_gradients(self, case):
        """One gradient."""
        self.total()

    def peakmem_value_and_gradients(self, case):
        """Peak of a process that computes one gradient."""
        self.total()

    peakmem_value_and_gradients.params = ("mlp_hvp 128x64-256-256-10",)


class Mode:
    """Forwards in which nothing is recorded."""

    params = labels("modes")
    param_names = ("case",)

    def setup(self, case):
        """Compile."""
        self.forward = SIDE.prepare(CASES[case]).forward
        self.forward()

    def time_forward(self, case):
        """One forward."""
        self.forward()


class PlainPath:
    """An op without any of the features."""

    params = tuple(name for name in plain_ops.NAMES if name.endswith("n=8"))
    param_names = ("op",)

    def setup_cache(self):
        """All of them in turn, in one process."""
        return plain_ops.measure(tg)

    def track_ns(self, costs, op):
        """Nanoseconds an op."""
        return costs[op]

    track_ns.unit = "ns"


class Threads:
    """Two sweeps of a million numbers."""

    def setup(self):
        """Record both graphs and sweep them."""
        self.two = two_sweeps(SIDE)

    def teardown(self):
        """End the threads."""
        self.two.pool.shutdown()

    def time_in_turn(self):
        """One after the other."""
        self.two.in_turn()

    def time_together(self):
        """Each in a thread of its own."""
        self.two.together()

    def track_gain(self):
        """How much faster two threads are than one."""
        in_turn, together = timing.medians_in_turn((self.two.in_turn, self.two.together), 7)
        return in_turn / together

    track_gain.unit = "x"
