"""Which names of a function may share elements of arrays."""
