"""Derivatives of numba functions: time, ratio to numba's primal, compilation, start, memory."""

from tempfile import TemporaryDirectory

from benchmarks.measure.timing import medians_in_turn
from benchmarks.programs.fresh import kept_on_disk, run_fresh, run_fresh_cold
from benchmarks.programs.njit.second_derivatives import second_programs
from benchmarks.programs.peers import Numba, TapegradNjit
from benchmarks.programs.targets import NJIT

PROGRAMS = tuple(name for name, _, _ in NJIT)
NAMES = {"primal": Numba.name, "value and gradient": TapegradNjit.name}


class ValueAndGradient:
    """The programs that have a target, at its size."""

    params = PROGRAMS
    param_names = ("program",)
    timeout = 120

    def setup(self, program):
        """Compile."""
        ours, case = kept_on_disk(TapegradNjit.name, program, largest=True)
        numbas, _ = kept_on_disk(Numba.name, program)
        self.total = ours.prepare(case).total
        self.primal = numbas.prepare(case).forward
        self.total()
        self.primal()

    def time_value_and_gradient(self, program):
        """One gradient."""
        self.total()

    def track_ratio(self, program):
        """Value and gradient as a multiple of the primal, in turn."""
        primal, total = medians_in_turn((self.primal, self.total), 7)
        return total / primal

    track_ratio.unit = "primals"

    def peakmem_value_and_gradient(self, program):
        """Peak of a process that computes one gradient."""
        self.total()

    peakmem_value_and_gradient.params = ("van_der_pol", "cascade")


class SecondDerivatives:
    """Products with the second derivative."""

    params = (("van_der_pol", "rosenbrock"), ("hvp", "grad of grad"))
    param_names = ("program", "how")
    timeout = 180

    def setup(self, program, how):
        """Compile."""
        _, case = kept_on_disk(TapegradNjit.name, program, largest=True)
        self.product = second_programs(case)[how].whole
        self.product()

    def time_product(self, program, how):
        """One product."""
        self.product()


class Processes:
    """New processes: with empty caches, and with caches that hold all that is needed."""

    params = tuple(NAMES)
    param_names = ("what",)
    timeout = 120

    def track_compilation(self, what):
        """Seconds of the first call, after the import."""
        return run_fresh_cold("first_call_seconds", NAMES[what], "van_der_pol")

    track_compilation.unit = "s"

    def track_start(self, what):
        """Seconds of import and first call, in a second process."""
        with TemporaryDirectory() as cache:
            folders = {"TAPEGRAD_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache}
            call = ("start_seconds", NAMES[what], "van_der_pol")
            run_fresh(*call, **folders)
            return run_fresh(*call, **folders)

    track_start.unit = "s"


class Memory:
    """A gradient through ten million steps."""

    timeout = 120

    def track_step(self):
        """Bytes a step."""
        return run_fresh("bytes_a_step", 10_000_000)["step"]

    track_step.unit = "bytes"
