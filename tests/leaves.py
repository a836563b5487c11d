"""Leaves, and the values of tensors, as many tests use them."""

import numpy as np

import tapegrad as tg


def leaf(data, dtype=np.float64):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def leaf_of(*numbers):
    """A leaf that is a vector."""
    return leaf(list(numbers))


def values(t):
    return t.detach().numpy()
