"""Linear algebra, with the names of numpy.linalg."""

from typing import TYPE_CHECKING

from tapegrad.eager.numeric import NAMESPACES

globals().update(NAMESPACES["linalg"])
__all__ = list(NAMESPACES["linalg"])

if TYPE_CHECKING:
    from tapegrad.stubs.linear_algebra import *  # noqa: F403
