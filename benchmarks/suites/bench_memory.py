"""Memory: the peak of a training loop, of a live graph, of a long loop; the size of a record."""

import numpy as np

import tapegrad as tg
from benchmarks.programs.fresh import run_fresh, training_step

from .suite import recorded


class Training:
    """Many steps of gradient descent, whose memory must not grow, swept or not."""

    params = (True, False)
    param_names = ("backward",)
    iterations = 10_000

    def setup(self, backward):
        """Compile."""
        self.step = training_step("tapegrad", backward)
        self.step()

    def peakmem_ten_thousand_steps(self, backward):
        """Peak of the process."""
        for _ in range(self.iterations):
            self.step()

    def track_growth(self, backward):
        """How much the peak rises after the first hundred steps."""
        return run_fresh("training_bytes", "tapegrad", self.iterations, backward)["growth"]

    track_growth.unit = "bytes"


class Loop:
    """A long loop of which 50 states are kept: its memory must not grow with its length."""

    params = (1_000, 10_000, 100_000)
    param_names = ("n",)
    timeout = 300

    def setup(self, n):
        """Compile."""
        self.gradient(100)

    def gradient(self, n):
        """Gradients of the end with respect to the start and a parameter."""

        def end(x, rate):
            return tg.checkpoint_scan(self.step, x, n, rate, memory=50).sum()

        return tg.grad(end, (0, 1))(np.linspace(0.0, 1.0, 1000), 1e-6)

    @staticmethod
    def step(i, x, rate):
        """One step, of two ops and a sine."""
        return x + rate * tg.sin(x)

    def peakmem_gradient(self, n):
        """Peak of the process."""
        self.gradient(n)


class Graph:
    """A graph that is alive."""

    def track_record(self):
        """Bytes of one record."""
        return tg.current_tape().records.dtype.itemsize

    track_record.unit = "bytes"

    def track_operation(self):
        """Resident bytes for an operation on one number, Python objects included."""
        return run_fresh("graph_bytes", "tapegrad", 200_000)

    track_operation.unit = "bytes"

    def track_tape(self):
        """Bytes that the tape occupies after recording a thousand operations."""
        value, _ = recorded("chain n=8")
        occupied = tg.current_tape().nbytes
        del value
        return occupied

    track_tape.unit = "bytes"
