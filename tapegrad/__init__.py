"""tapegrad: automatic differentiation for NumPy and numba."""

from tapegrad.tensor import Tensor as Tensor
from tapegrad.public import *  # noqa: F403
