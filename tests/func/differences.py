"""Jacobians by differences."""

import numpy as np

import tapegrad as tg

V = np.array([0.5, 1.5, 2.5])
M = np.array([[0.5, 1.0, 0.2], [0.3, 0.8, 1.1]])


def values(t):
    """The array of a result, which is a tensor where it has to be one."""
    return t.detach().numpy() if isinstance(t, tg.Tensor) else np.asarray(t)


def numeric_jacobian(f, at, eps=1e-6):
    at = np.asarray(at, float)
    columns = []
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = eps
        columns.append((np.asarray(f(at + step)) - np.asarray(f(at - step))) / (2 * eps))
    columns = np.stack(columns, -1) if columns else np.zeros((*np.shape(f(at)), 0))
    return columns.reshape((*columns.shape[:-1], *at.shape))
