"""What is measured: programs with their inputs, targets, and the libraries that run them.

`workloads.py` has the programs of all comparisons by name, `peers.py` the libraries, `njit/` the
functions for numba, `corpus/` functions of published packages, `fields/` programs as statistics,
imaging, finance and other fields write them.
"""
