"""NumPy's functions for arrays on a device: kernels from the formulas of the op table, and others."""
