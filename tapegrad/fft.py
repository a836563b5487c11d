"""Discrete Fourier transforms, with the names of numpy.fft."""

from typing import TYPE_CHECKING

from tapegrad.eager.numeric import FFT_FUNCTIONS

globals().update(FFT_FUNCTIONS)
__all__ = list(FFT_FUNCTIONS)

if TYPE_CHECKING:
    from tapegrad.stubs.fourier import *  # noqa: F403
