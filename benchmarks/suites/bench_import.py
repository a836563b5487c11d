"""Importing tapegrad, which should cost no more than importing numba."""

import statistics

from benchmarks.programs.fresh import run_fresh


class Import:
    """Each import in new processes, after one that warms the disk."""

    def median(self, package):
        """Median of a few imports."""
        run_fresh("import_seconds", package)
        return statistics.median(run_fresh("import_seconds", package) for _ in range(3))

    def track_seconds(self, package):
        """Seconds for one package."""
        return self.median(package)

    track_seconds.params = ("tapegrad", "numba")
    track_seconds.param_names = ("package",)
    track_seconds.unit = "s"

    def track_ratio_to_numba(self):
        """The import of tapegrad in units of that of numba."""
        return self.median("tapegrad") / self.median("numba")

    track_ratio_to_numba.unit = "x"
