"""The parts of the tape that are compiled by numba."""
