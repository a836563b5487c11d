"""Derivatives of numba functions by transformation of their source (docs/njit.md)."""
