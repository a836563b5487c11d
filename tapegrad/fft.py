"""Discrete Fourier transforms, with the names of numpy.fft."""

from typing import TYPE_CHECKING

from tapegrad.eager.numeric import NAMESPACES

globals().update(NAMESPACES["fft"])
__all__ = list(NAMESPACES["fft"])

if TYPE_CHECKING:
    from tapegrad.stubs.fourier import *  # noqa: F403
