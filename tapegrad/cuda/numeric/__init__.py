"""NumPy's functions for arrays on a device, by kernels that are generated."""
