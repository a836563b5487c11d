"""Discrete Fourier transforms, with the names of numpy.fft."""

from tapegrad.numeric import FFT_FUNCTIONS

globals().update(FFT_FUNCTIONS)
__all__ = list(FFT_FUNCTIONS)
