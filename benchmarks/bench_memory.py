"""Memory: the peak of a training loop, of a live graph, and the size of a record."""

import tapegrad as tg

from .fresh import run_fresh, training_step
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
