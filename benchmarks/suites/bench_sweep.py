"""The reverse sweep alone, over graphs that are recorded beforehand and kept."""

import tapegrad as tg

from .suite import labels, recorded


class Sweep:
    """``grad`` with ``retain_graph=True``."""

    params = (
        *labels("chain", "mlp"),
        "custom n=8",
        "lse n=160000",
        "gmm d=10 K=25",
        "ode n=1000 s=100",
    )
    param_names = ("case",)

    def setup(self, case):
        """Record, and sweep once so that every kernel is compiled."""
        self.value, self.inputs = recorded(case)
        self.time_backward(case)

    def time_backward(self, case):
        """One sweep."""
        tg.autograd.grad(self.value, self.inputs, retain_graph=True)
