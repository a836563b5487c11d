"""Special functions, with the names of scipy.special."""

from typing import TYPE_CHECKING

from tapegrad.eager.numeric import NAMESPACES

globals().update(NAMESPACES["special"])
__all__ = list(NAMESPACES["special"])

if TYPE_CHECKING:
    from tapegrad.stubs.special_functions import *  # noqa: F403
