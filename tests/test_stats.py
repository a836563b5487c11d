"""Distributions beside scipy.stats, and their derivatives beside differences."""

import numpy as np
import pytest
import scipy.stats

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck

X = np.array([0.3, 0.6, 0.9])
CASES = {
    ("norm", "logpdf"): (X, 0.2, 1.5),
    ("norm", "pdf"): (X, 0.2, 1.5),
    ("norm", "cdf"): (X, 0.2, 1.5),
    ("norm", "logcdf"): (X - 30.0, 0.2, 1.5),
    ("norm", "ppf"): (X, 0.2, 1.5),
    ("t", "logpdf"): (X, 3.5, 0.2, 1.5),
    ("t", "pdf"): (X, 3.5, 0.2, 1.5),
    ("t", "cdf"): (X, 3.5, 0.2, 1.5),
    ("gamma", "logpdf"): (X, 2.5, 0.1, 1.5),
    ("gamma", "pdf"): (X, 0.7, 0.1, 1.5),
    ("gamma", "cdf"): (X, 2.5, 0.1, 1.5),
    ("beta", "logpdf"): (X, 2.5, 0.7, 0.1, 1.5),
    ("beta", "pdf"): (X, 0.5, 3.0, 0.1, 1.5),
    ("beta", "cdf"): (X, 2.5, 0.7, 0.1, 1.5),
    ("poisson", "logpmf"): (np.array([0.0, 2.0, 7.0]), 1.7),
    ("poisson", "pmf"): (np.array([0.0, 2.0, 7.0]), 1.7),
    ("poisson", "cdf"): (np.array([0.0, 2.4, 7.0]), 1.7),
}
# positions of arguments without a derivative
FIXED = {("t", "cdf"): {1}, ("gamma", "cdf"): {1}, ("beta", "cdf"): {1, 2}}
FIXED |= {("poisson", name): {0} for name in ("logpmf", "pmf", "cdf")}


def both(case):
    name, kind = case
    ours = getattr(getattr(tg.stats, name), kind)
    return ours, getattr(getattr(scipy.stats, name), kind)


def test_every_function_is_tested():
    found = {
        (name, kind)
        for name in tg.stats.__all__
        for kind in vars(type(getattr(tg.stats, name)))
        if not kind.startswith("_")
    }
    assert found == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_values_and_derivatives(case):
    ours, scipys = both(case)
    args = CASES[case]
    found = ours(*args)
    assert isinstance(found, tg.Tensor)
    np.testing.assert_allclose(found.numpy(), scipys(*args), rtol=1e-11)
    fixed = FIXED.get(case, set())

    def of_the_rest(*leaves):
        given = iter(leaves)
        return ours(*(a if k in fixed else next(given) for k, a in enumerate(args)))

    leaves = [
        tg.tensor(np.asarray(a, float), requires_grad=True)
        for k, a in enumerate(args)
        if k not in fixed
    ]
    assert gradcheck(of_the_rest, leaves)
    assert gradgradcheck(of_the_rest, leaves)


@pytest.mark.parametrize("case", CASES)
def test_outside_of_the_support(case):
    """Values are those of SciPy, derivatives 0."""
    ours, scipys = both(case)
    x = np.array([-3.0, -0.5, 0.0, 1.0, 1.7, 2.5, 40.0])
    rest = CASES[case][1:]
    if case == ("norm", "ppf"):
        x = np.array([0.0, 1.0, 0.5])
    np.testing.assert_allclose(ours(x, *rest).numpy(), scipys(x, *rest), rtol=1e-9, atol=1e-300)
    if case[0] in ("gamma", "beta"):
        t = tg.tensor([-3.0, -0.5], requires_grad=True)
        tg.sum(tg.where(np.array([True, True]), ours(t, *rest), 0.0)).backward()
        np.testing.assert_array_equal(t.grad.numpy(), [0.0, 0.0])


def sum_of_squares(case):
    """A function of one argument of a case, and points."""
    ours, _ = both(case)
    given = CASES[case]
    free = next(k for k in range(len(given)) if k not in FIXED.get(case, ()))

    def total(x):
        return tg.sum(ours(*given[:free], x, *given[free + 1 :]) ** 2)

    return total, np.stack([np.asarray(given[free], float) * k for k in (1.0, 0.9, 0.5)])


@pytest.mark.parametrize("case", CASES)
def test_batches(case):
    """Batched and recorded tensors have no array that says where a number lies."""
    total, points = sum_of_squares(case)
    want = [tg.grad(total)(point) for point in points]
    assert np.allclose(tg.vmap(tg.grad(total))(points), want, rtol=1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("case", CASES)
def test_recordings(case):
    total, points = sum_of_squares(case)
    want = [tg.grad(total)(point) for point in points]
    jitted = tg.jit(total)
    assert np.allclose([tg.grad(jitted)(point) for point in points], want, rtol=1e-12)
    assert "op by op" not in jitted.inspect(points[0])


@pytest.mark.parametrize("name", ["logpmf", "pmf", "cdf"])
def test_counts_are_not_differentiated(name):
    with pytest.raises(TypeError, match="no derivative with respect to counts"):
        getattr(tg.stats.poisson, name)(tg.tensor([1.0, 2.0], requires_grad=True), 1.5)


def test_a_fit():
    """At the maximum of the likelihood the gradient is 0."""
    x = scipy.stats.gamma.rvs(2.0, scale=1.5, size=200, random_state=1)
    shape, _, scale = scipy.stats.gamma.fit(x, floc=0.0)
    found = tg.grad(lambda p: tg.sum(tg.stats.gamma.logpdf(x, p[0], 0.0, p[1])))(
        np.array([shape, scale])
    )
    np.testing.assert_allclose(found, [0.0, 0.0], atol=1e-2)


@pytest.mark.parametrize("df", [1e6, 1e10, 1e15])
def test_many_degrees_of_freedom(df):
    for ours, scipys in (
        (tg.stats.t.logpdf, scipy.stats.t.logpdf),
        (tg.stats.t.pdf, scipy.stats.t.pdf),
    ):
        np.testing.assert_allclose(ours(1.0, df).numpy(), scipys(1.0, df), rtol=1e-9)
    slope = tg.grad(lambda x: tg.stats.t.cdf(x, df))(1.0)
    np.testing.assert_allclose(slope, scipy.stats.t.pdf(1.0, df), rtol=1e-9)


class TestEdges:
    """On the edge of the support the slope is the limit from inside."""

    @pytest.mark.parametrize(
        ("density", "at", "value", "slope"),
        [
            (lambda x: tg.stats.gamma.pdf(x, 1.0), 0.0, 1.0, -1.0),
            (lambda x: tg.stats.gamma.pdf(x, 2.0), 0.0, 0.0, 1.0),
            (lambda x: tg.stats.gamma.pdf(x, 3.0), 0.0, 0.0, 0.0),
            (lambda x: tg.stats.gamma.pdf(x, 1.5), 0.0, 0.0, np.inf),
            (lambda x: tg.stats.gamma.pdf(x, 2.0, 1.0, 2.0), 1.0, 0.0, 0.25),
            (lambda x: tg.stats.beta.pdf(x, 1.0, 1.0), 0.0, 1.0, 0.0),
            (lambda x: tg.stats.beta.pdf(x, 2.0, 2.0), 0.0, 0.0, 6.0),
            (lambda x: tg.stats.beta.pdf(x, 2.0, 2.0), 1.0, 0.0, -6.0),
            (lambda x: tg.stats.beta.pdf(x, 1.0, 3.0), 0.0, 3.0, -6.0),
            (lambda mu: tg.stats.poisson.pmf(0, mu), 0.0, 1.0, -1.0),
            (lambda mu: tg.stats.poisson.pmf(1, mu), 0.0, 0.0, 1.0),
            (lambda mu: tg.stats.poisson.pmf(2, mu), 0.0, 0.0, 0.0),
        ],
    )
    def test_slope(self, density, at, value, slope):
        np.testing.assert_allclose(tg.value_and_grad(density)(at), (value, slope), rtol=1e-14)

    def test_by_the_parameters(self):
        """A density that is 0 on the edge for all parameters nearby has the slope 0 by them."""
        assert tg.grad(lambda a: tg.stats.gamma.pdf(0.0, a))(3.0) == 0.0
        assert tg.grad(lambda b: tg.stats.beta.pdf(1.0, 2.0, b))(3.0) == 0.0

    def test_beside_the_edge_nothing_overflows(self):
        x = np.array([1000.0, 0.0])
        value, slope = tg.value_and_grad(lambda x: tg.sum(tg.stats.gamma.pdf(x, 500.0)))(x)
        np.testing.assert_allclose(value, scipy.stats.gamma.pdf(1000.0, 500.0), rtol=1e-10)
        np.testing.assert_allclose(slope, [value * (499.0 / 1000.0 - 1.0), 0.0], rtol=1e-10)
