"""Linear algebra, with the names of numpy.linalg."""

from typing import TYPE_CHECKING, Any

from tapegrad.numeric import LINALG, LINALG_FUNCTIONS

globals().update(LINALG_FUNCTIONS)
__all__ = list(LINALG)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
