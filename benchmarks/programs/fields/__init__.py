"""Programs as other fields write them: statistics, signals, imaging, finance and so on.

Each is one function for tapegrad and JAX. Its first argument is a `Library`: NumPy's names, loops,
special functions, and the few functions that the two spell in different ways. The other arguments
are arrays, and the result is a number. Sizes are those of textbooks and papers.
"""

from . import (
    chemistry,
    control,
    differential_equations,
    finance,
    geometry,
    graphs,
    imaging,
    linear_algebra,
    machine_learning,
    quantum,
    signals,
    special_functions,
    statistics,
)
from .registry import PROGRAMS, Library, Program, as_numbers, of_jax, of_tapegrad, parts_of

__all__ = [
    "PROGRAMS",
    "Library",
    "Program",
    "as_numbers",
    "chemistry",
    "control",
    "differential_equations",
    "finance",
    "geometry",
    "graphs",
    "imaging",
    "linear_algebra",
    "machine_learning",
    "of_jax",
    "of_tapegrad",
    "parts_of",
    "quantum",
    "signals",
    "special_functions",
    "statistics",
]
