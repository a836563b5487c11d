"""Linear algebra, with the names of numpy.linalg."""

from typing import TYPE_CHECKING

from tapegrad.eager.numeric import LINALG, LINALG_FUNCTIONS

globals().update(LINALG_FUNCTIONS)
__all__ = list(LINALG)

if TYPE_CHECKING:
    from tapegrad.stubs.linear_algebra import *  # noqa: F403
