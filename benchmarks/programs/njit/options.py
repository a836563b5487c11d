"""What programs for numba have in common: options of its decorator, and sizes."""

import numba

from benchmarks.programs.cases import Size

NO_CHECKS = {"error_model": "numpy"}
"""A division by zero is an infinity, as in NumPy, and not asked about."""

compiled = numba.njit(**NO_CHECKS)
"""The decorator of what is written by hand."""


def steps_size(steps: int) -> Size:
    """So many steps from the same start."""
    return Size(f"{steps} steps", {}, {"steps": steps})
