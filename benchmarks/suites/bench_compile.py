"""The first gradient of a ten-op program in a new process, when everything has to be compiled."""

from benchmarks.programs.fresh import run_fresh, run_fresh_cold


class FirstGradient:
    """With an empty kernel cache, and with one that holds all it needs."""

    params = ("cold", "warm")
    param_names = ("cache",)
    timeout = 180

    def setup(self, cache):
        """Fill the cache."""
        if cache == "warm":
            run_fresh("first_gradient_seconds", "tapegrad")

    def track_seconds(self, cache):
        """Seconds after the import."""
        run = run_fresh_cold if cache == "cold" else run_fresh
        return run("first_gradient_seconds", "tapegrad")

    track_seconds.unit = "s"
