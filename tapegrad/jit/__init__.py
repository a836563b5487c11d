"""Functions of tensors that are recorded once and then run compiled."""

from tapegrad.jit.function import jit as jit
