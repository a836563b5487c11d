"""The parts of the tape that numba compiles."""
