"""Samples of gamma distributions, which depend on the shape by implicit reparameterisation.

A sample moves with the shape so that its probability P(a, z) stays the same (Figurnov, Mohamed and
Mnih, Implicit reparameterization gradients, 2018). The numbers are drawn outside: an op gets them,
returns them, and adds the derivative.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from tapegrad.kernels.functions import gamma_samples
from tapegrad.ops import elementwise as ew
from tapegrad.ops.piecewise import where
from tapegrad.ops.special import digamma
from tapegrad.ops.table.array_kinds import pointwise
from tapegrad.ops.table.compiled_maps import CompiledMap
from tapegrad.ops.table.op import internal


def _drawn(a, drawn):
    shape = np.broadcast_shapes(np.shape(a), np.shape(drawn))
    return drawn if np.shape(drawn) == shape else np.broadcast_to(drawn, shape)


def _slope(a, y):
    return gamma_samples.log_gamma_slope(a, y)


def _curvature(a, y):
    return gamma_samples.log_gamma_curvature(a, y)


def _of_drawn() -> NoReturn:
    raise TypeError("a gamma sample has no derivative with respect to the number that was drawn")


def _third() -> NoReturn:
    raise TypeError(
        "a sample has no derivative of third order with respect to the shape of a gamma, beta, "
        "dirichlet or Student's t distribution in tapegrad; detach() the shape or a gradient"
    )


@internal
@pointwise(_drawn)
def gamma_sample(a, drawn):
    """Sample of a gamma distribution with shape a, given the number that was drawn."""


@gamma_sample.partial("a")
def _(a, z):
    is_zero = z == 0.0  # an underflow, as is the derivative
    return z * log_gamma_slope(a, ew.log(where(is_zero, 1.0, z)))


gamma_sample.partial("drawn")(_of_drawn)


@internal
@pointwise(_drawn)
def log_gamma_sample(a, drawn):
    """Logarithm of a sample of a gamma distribution with shape a, given the number drawn."""


@log_gamma_sample.partial("a")
def _(a, z):
    return log_gamma_slope(a, z)


log_gamma_sample.partial("drawn")(_of_drawn)


@internal
@pointwise(CompiledMap(_slope))
def log_gamma_slope(a, y):
    """Derivative of the logarithm y of a gamma sample with respect to the shape a."""


@log_gamma_slope.partial("a")
def _(a, y):
    return log_gamma_curvature(a, y)


@log_gamma_slope.partial("y")
def _(a, y, z):
    return digamma(a) - y - z * (a - ew.exp(y))


@internal
@pointwise(CompiledMap(_curvature))
def log_gamma_curvature(a, y):
    """Derivative of `log_gamma_slope` with respect to a; there are none of third order."""


log_gamma_curvature.partial("a")(_third)
log_gamma_curvature.partial("y")(_third)
