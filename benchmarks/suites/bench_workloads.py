"""Value and gradients of the workloads: forward, sweep, and freeing the graph."""

from .suite import CASES, SIDE, labels


class Workload:
    """Every workload, at sizes that keep the suite short."""

    params = (
        *(*labels("chain", "small", "ten", "mlp"), "custom n=8"),
        *("lse n=2500", "lse n=160000", "lse n=1280000", "logsumexp n=160000"),
        *("gmm d=2 K=5", "gmm d=10 K=25", "gmm d=32 K=25"),
        *("llsq n=16", "llsq n=1024"),
        *("ode n=1000 s=1", "ode n=1000 s=100"),
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

    peakmem_value_and_gradients.params = ("mlp 128x64-256-256-10", "lse n=1280000", "gmm d=32 K=25")
