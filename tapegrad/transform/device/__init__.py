"""Functions of numbers and their derivatives, as functions that run on a CUDA device."""
