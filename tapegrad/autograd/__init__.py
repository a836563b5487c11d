"""Reverse-mode differentiation with PyTorch's names and meaning."""

from tapegrad.autograd.api import backward as backward
from tapegrad.autograd.api import grad as grad
from tapegrad.autograd.function import Function as Function
from tapegrad.autograd.grad_mode import enable_grad as enable_grad
from tapegrad.autograd.grad_mode import no_grad as no_grad
from tapegrad.autograd.grad_mode import set_grad_enabled as set_grad_enabled
from tapegrad.tensor import Tensor as Variable  # noqa: F401 (deprecated name)
