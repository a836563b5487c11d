"""Performance targets of tapegrad, as ratios to its peers, and whether a measurement meets them.

A peer without the phase in question, such as a primal, is represented by its whole time. Where a
target names another workload, the peer is measured there: tapegrad itself, or one of the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.measure.timing import Seconds

Measurements = Mapping[tuple[str, str], Mapping[str, Seconds]]
"""Seconds of each side, by workload and label of the size."""


@dataclass(frozen=True)
class Target:
    """On a workload, a phase of tapegrad takes at most so many times the peer's."""

    workload: str
    sizes: tuple[str, ...] | None
    """Beginnings of the labels of the sizes it is about; None for all of them."""
    phase: str
    peer: str
    at_most: float
    side: str = "tapegrad"
    beside: str | None = None
    """The workload in which the peer is measured, if another."""

    def concerns(self, workload: str, size: str) -> bool:
        """Whether the target is about this case."""
        return workload == self.workload and (self.sizes is None or size in self.sizes)


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured."""

    target: Target
    size: str
    ratio: float

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.ratio <= self.target.at_most


SMALL_CHAINS = ("n=1", "n=8")
CUSTOM = ("custom", "custom_in_context", "custom_two_inputs", "custom_two_outputs")
TWICE = ("chain_twice", "mlp_hvp", "gradient_penalty")

NJIT = (
    ("logistic", "1000000 steps", 2.5),
    ("van_der_pol", "100000 steps", 2.5),
    ("oscillators", "n=100000 s=100", 4.6),
    ("rosenbrock", "n=1000000", 2.0),
    ("black_scholes", "n=100000", 0.7),
    ("erf_sum", "n=10000", 4.0),
    ("polynomial_fit", "n=4096", 3.0),
    ("gravity", "n=300", 1.5),
    ("clusters_min", "n=10000 k=10 d=4", 3.0),
    ("gmm_loops", "n=300 d=10 K=25", 3.5),
    ("cascade", "n=10000 s=100", 3.0),
    ("wave", "n=1000 s=200", 3.0),
    ("heat", "n=1000 s=200", 3.0),
)
"""Programs for numba at a size, and how many times the primal value and gradient may take."""

ARRAYS = {
    "lorenz": "lorenz_loops",
    "decays": "decays_loops",
    "clusters_arrays": "clusters",
    "gray_scott": "gray_scott_loops",
    "hmm": "hmm_loops",
}
"""Programs for numba whose loops work on whole arrays, and the same with loops over elements."""

TARGETS = (
    Target("chain", SMALL_CHAINS, "total", "PyTorch", 1 / 4),
    Target("chain", SMALL_CHAINS, "total", "HIPS autograd", 1 / 10),
    Target("chain", SMALL_CHAINS, "backward", "PyTorch", 1 / 10),
    Target("chain", ("n=1000000 (20 steps)",), "total", "PyTorch", 1.0),
    Target("mlp", None, "total", "PyTorch", 1.0),
    Target("lse", None, "total", "PyTorch", 1.0),
    Target("gmm", None, "total", "PyTorch", 1.0),
    Target("hessian_product", None, "forward", "tapegrad", 3.0, beside="plain_gradient"),
    Target(
        "per_sample_gradients", ("2000",), "forward", "tapegrad", 1 / 100, beside="looped_gradients"
    ),
    Target("per_sample_gradients", ("2000",), "forward", "PyTorch", 1.0),
    Target("whole_hessian", ("n=100",), "forward", "PyTorch", 1.0),
    *(Target(name, None, "total", "PyTorch", 1 / 3) for name in CUSTOM),
    *(Target(name, None, "total", "PyTorch", 1.0) for name in TWICE),
    *(
        Target(name, (size,), "total", "numba primal", at_most, "tapegrad.njit")
        for name, size, at_most in NJIT
    ),
    *(
        Target(name, None, "total", "tapegrad.njit", 1.2, "tapegrad.njit", beside=loops)
        for name, loops in ARRAYS.items()
    ),
)


def compilation_limit(primal: float) -> float:
    """Seconds in which value and gradient are to be compiled, from those of numba's primal."""
    return 4.0 * primal + 1.0


RECORDED_FIRST_CALL = 3.0
"""Seconds of the first call of a recorded program, without imports and with nothing on disk."""


def start_limit(primal: float) -> float:
    """Seconds of import and first call, with all on disk, from those of numba's primal."""
    return primal + 0.3


def verdicts(measurements: Measurements) -> Iterator[Verdict]:
    """A verdict on every target that the measurements can decide."""
    for target in TARGETS:
        for (workload, size), sides in measurements.items():
            if not target.concerns(workload, size):
                continue
            peers = measurements.get((target.beside or workload, size), {})
            if target.side not in sides or target.peer not in peers:
                continue
            ours = getattr(sides[target.side], target.phase)
            theirs = getattr(peers[target.peer], target.phase) or peers[target.peer].whole
            yield Verdict(target, size, ours / theirs)
