"""Complex values of recorded programs, as pairs of real ones."""
