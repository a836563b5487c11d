"""Linear algebra, with the names of numpy.linalg."""

from tapegrad.numeric import LINALG, LINALG_FUNCTIONS

globals().update(LINALG_FUNCTIONS)
__all__ = list(LINALG)
