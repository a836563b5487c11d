"""Linear algebra, with the names of numpy.linalg."""

from tapegrad.numeric import FUNCTIONS, LINALG

globals().update({name: FUNCTIONS[name] for name in LINALG})
__all__ = list(LINALG)
