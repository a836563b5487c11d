"""Special functions, with the names of scipy.special."""

from tapegrad.numeric import SPECIAL_FUNCTIONS

globals().update(SPECIAL_FUNCTIONS)
__all__ = list(SPECIAL_FUNCTIONS)
