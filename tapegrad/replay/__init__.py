"""Functions of tensors that are recorded once and then run compiled."""

from tapegrad.replay.function import jit as jit
