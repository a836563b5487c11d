"""Derivatives of NumPy's functions of whole arrays, as numba compiles these, by subject."""
