"""Functions of numbers that numba compiles."""
