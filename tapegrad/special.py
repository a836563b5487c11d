"""Special functions, with the names of scipy.special."""

from typing import TYPE_CHECKING

from tapegrad.eager.numeric import SPECIAL_FUNCTIONS

globals().update(SPECIAL_FUNCTIONS)
__all__ = list(SPECIAL_FUNCTIONS)

if TYPE_CHECKING:
    from tapegrad.stubs.special_functions import *  # noqa: F403
