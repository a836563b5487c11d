"""Tools built on the autograd engine, with PyTorch's names."""

from tapegrad.utils import checkpoint as checkpoint
