"""Gamma samples: derivatives beside those of the quantile, to second order."""

import mpmath as mp
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS

SAMPLES = [
    (0.03, 1e-9),
    (0.5, 0.3),
    (1.0, 2.5),
    (2.5, 0.7),
    (2.5, 9.0),
    (30.0, 28.0),
    (400.0, 455.0),
]


def quantile_derivative(a, z, order):
    """Derivative of the quantile with respect to the shape, where it is z."""
    with mp.workdps(40):
        probability = mp.gammainc(a, 0, z, regularized=True)

        def quantile(shape):
            def error(y):
                return mp.log(mp.gammainc(shape, 0, mp.exp(y), regularized=True) / probability)

            return mp.exp(mp.findroot(error, mp.log(z)))

        return float(mp.diff(quantile, mp.mpf(a), order))


@pytest.mark.parametrize(("a", "z"), SAMPLES)
def test_derivatives_of_the_quantile(a, z):
    shape = tg.tensor(a, requires_grad=True)
    for name, drawn, chain in [
        ("gamma_sample", z, lambda s: s),
        ("log_gamma_sample", np.log(z), FUNCTIONS["exp"]),
    ]:
        sample = chain(FUNCTIONS[name](shape, np.array(drawn)))
        (slope,) = tg.autograd.grad(sample, shape, create_graph=True)
        (curvature,) = tg.autograd.grad(slope, shape)
        np.testing.assert_allclose(slope.item(), quantile_derivative(a, z, 1), rtol=1e-11)
        np.testing.assert_allclose(curvature.item(), quantile_derivative(a, z, 2), rtol=1e-8)


def test_tangents_and_curvatures_in_forward_mode():
    a, z = (np.array(column) for column in zip(*SAMPLES[1:]))

    def sample(shape):
        return FUNCTIONS["gamma_sample"](shape, z)

    value, tangent = tg.jvp(sample)(a, np.ones(len(a)))
    np.testing.assert_array_equal(value, z)
    np.testing.assert_allclose(
        tangent, [quantile_derivative(*p, 1) for p in SAMPLES[1:]], rtol=1e-11
    )
    second = tg.hvp(lambda shape: sample(shape).sum())(a, np.ones(len(a)))
    np.testing.assert_allclose(second, [quantile_derivative(*p, 2) for p in SAMPLES[1:]], rtol=1e-8)


def test_third_derivatives_are_refused():
    shape = tg.tensor(2.0, requires_grad=True)
    sample = FUNCTIONS["gamma_sample"](shape, np.array(1.5))
    (slope,) = tg.autograd.grad(sample, shape, create_graph=True)
    (curvature,) = tg.autograd.grad(slope, shape, create_graph=True)
    with pytest.raises(TypeError, match="no derivative of third order"):
        tg.autograd.grad(curvature, shape)


@pytest.mark.parametrize("name", ["gamma_sample", "log_gamma_sample"])
def test_what_was_drawn_has_no_derivative(name):
    with pytest.raises(TypeError, match="number that was drawn"):
        tg.grad(lambda z: FUNCTIONS[name](2.0, z))(1.5)


def test_samples_that_underflow():
    shape = tg.tensor([1e-3, 2.0], requires_grad=True)
    sample = FUNCTIONS["gamma_sample"](shape, np.array([0.0, 1.0]))
    (slope,) = tg.autograd.grad(sample.sum(), shape, create_graph=True)
    assert slope[0] == 0.0 < slope[1]
    (curvature,) = tg.autograd.grad(slope.sum(), shape)
    assert curvature[0] == 0.0 != curvature[1]


def test_slopes_in_float32():
    a = np.array([0.5, 3.0, 40.0], np.float32)
    found = tg.grad(
        lambda shape: FUNCTIONS["gamma_sample"](shape, np.float32([0.3, 2.0, 45.0])).sum()
    )(a)
    assert found.dtype == np.float32
    exact = [quantile_derivative(*p, 1) for p in [(0.5, 0.3), (3.0, 2.0), (40.0, 45.0)]]
    np.testing.assert_allclose(found, exact, rtol=1e-5)
