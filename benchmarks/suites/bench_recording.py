"""Recording without a sweep: a thousand small operations recorded, not recorded, and in NumPy."""

from contextlib import nullcontext

import tapegrad as tg
from benchmarks.programs.peers import NumPy

from .suite import CASES, SIDE


class Recording:
    """The forward of the chain; the graph is let go at the end of every call."""

    params = ((1, 8, 64, 1000), ("recorded", "no_grad", "numpy"))
    param_names = ("n", "mode")

    def setup(self, n, mode):
        """Compile, if the forward compiles anything."""
        side = NumPy() if mode == "numpy" else SIDE
        self.forward = side.prepare(CASES[f"chain n={n}"]).forward
        self.context = tg.no_grad if mode == "no_grad" else nullcontext
        self.time_thousand_operations(n, mode)

    def time_thousand_operations(self, n, mode):
        """500 products and 500 sines."""
        with self.context():
            self.forward()
