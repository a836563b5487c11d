"""Special functions: SciPy's values, derivatives of the first three orders, and their edges."""

import sys

import mpmath
import numpy as np
import pytest
import scipy.special

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck

POSITIVE = np.array([0.3, 1.2, 2.7])
SHARE = np.array([0.1, 0.5, 0.83])
SIGNED = np.array([-1.3, 0.4, 0.7, 2.0])
CASES = {
    "gamma": (POSITIVE,),
    "betaln": (POSITIVE, POSITIVE[::-1]),
    "beta": (POSITIVE, POSITIVE[::-1]),
    "erfinv": (SHARE,),
    "erfcinv": (SHARE,),
    "ndtr": (SIGNED,),
    "log_ndtr": (SIGNED,),
    "ndtri": (SHARE,),
    "j0": (SIGNED,),
    "j1": (SIGNED,),
    "i0": (SIGNED,),
    "i1": (SIGNED,),
    "i0e": (SIGNED,),
    "i1e": (SIGNED,),
    "xlogy": (POSITIVE, SHARE),
    "xlog1py": (POSITIVE, -SHARE),
    "entr": (SHARE,),
    "rel_entr": (SHARE, POSITIVE),
    "logit": (SHARE,),
    "cbrt": (POSITIVE,),
    "exp2": (SIGNED,),
    "expm1": (SIGNED,),
    "log1p": (POSITIVE,),
    "sinc": (SIGNED,),
    "erf": (SIGNED,),
    "erfc": (SIGNED,),
    "erfcx": (SIGNED,),
    "gammaln": (POSITIVE,),
    "digamma": (POSITIVE,),
    "expit": (SIGNED,),
}
# of several arguments the last one is differentiated by
LAST = {
    "gammainc": (POSITIVE, SHARE),
    "gammaincc": (POSITIVE, SHARE),
    "betainc": (POSITIVE, POSITIVE[::-1], SHARE),
    "stdtr": (POSITIVE + 1, SIGNED[:3]),
    "jv": (np.array([0.0, 1.0, 2.5, 3.0]), np.array([0.4, 1.7, 0.9, 2.2])),
    "yv": (np.array([0.0, 1.0, 2.5, 3.0]), np.array([0.4, 1.7, 0.9, 2.2])),
    "kv": (np.array([0.0, 1.0, 2.5, 0.5]), np.array([0.4, 1.7, 0.9, 2.2])),
    "iv": (np.array([0.0, 1.0, 2.5, 3.0]), np.array([0.4, 1.7, 0.9, 2.2])),
    "ive": (np.array([0.0, 1.0, 2.5, 3.0]), np.array([0.4, 1.7, 0.9, 2.2])),
    "polygamma": (1, POSITIVE),
}


def leaf(values):
    return tg.tensor(np.asarray(values, float), requires_grad=True)


def leaves(args):
    return tuple(map(leaf, args))


def test_every_function_is_tested():
    assert {*CASES, *LAST, "softmax", "log_softmax", "logsumexp"} == {*tg.special.__all__}


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name):
    ours, scipys = getattr(tg.special, name), getattr(scipy.special, name)
    args = CASES[name]
    expected = scipys(*args)
    np.testing.assert_allclose(ours(*leaves(args)).detach().numpy(), expected, rtol=1e-13)
    np.testing.assert_allclose(ours(*args).numpy(), expected, rtol=1e-13)
    assert gradcheck(ours, leaves(args))
    assert gradgradcheck(ours, leaves(args))


@pytest.mark.parametrize("name", LAST)
def test_by_the_last_argument(name):
    ours, scipys = getattr(tg.special, name), getattr(scipy.special, name)
    *before, x = LAST[name]
    np.testing.assert_allclose(
        ours(*before, leaf(x)).detach().numpy(), scipys(*before, x), rtol=1e-13
    )
    assert gradcheck(lambda x: ours(*before, x), (leaf(x),))
    assert gradgradcheck(lambda x: ours(*before, x), (leaf(x),))


@pytest.mark.parametrize("name", sorted({*LAST} - {"polygamma"}))
def test_arguments_without_a_derivative(name):
    args = leaves(LAST[name])
    found = getattr(tg.special, name)(*args)
    with pytest.raises(TypeError, match=f"{name} has no derivative with respect to '(a|b|v|df)'"):
        found.sum().backward()
    (g,) = tg.autograd.grad(getattr(tg.special, name)(*args).sum(), args[-1:])
    assert np.isfinite(g.numpy()).all()


@pytest.mark.parametrize("name", ["erf", "psi", "xlogy", "gammainc", "jv", "i0", "logit", "ndtri"])
def test_ufuncs_of_scipy_answer_tensors(name):
    args = {"xlogy": (0.4, 2.0), "gammainc": (2.0, 0.4), "jv": (1.0, 0.4)}.get(name, (0.4,))
    *before, last = args
    found = getattr(scipy.special, name)(*before, leaf([last]))
    assert isinstance(found, tg.Tensor)
    assert found.requires_grad
    np.testing.assert_allclose(found.detach().numpy(), [getattr(scipy.special, name)(*args)])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name, axis):
    x = np.random.default_rng(0).normal(size=(2, 3))
    ours = getattr(tg.special, name)
    np.testing.assert_allclose(
        ours(leaf(x), axis).detach().numpy(), getattr(scipy.special, name)(x, axis), rtol=1e-13
    )
    assert gradcheck(lambda x: ours(x, axis), (leaf(x),))
    assert gradgradcheck(lambda x: ours(x, axis), (leaf(x),))
    large = tg.special.softmax(leaf([1000.0, 0.0, 1000.0]))
    np.testing.assert_allclose(large.detach().numpy(), [0.5, 0.0, 0.5], rtol=1e-12)


class TestEdges:
    @pytest.mark.parametrize("name, order", [("j0", 0), ("j1", 1), ("i0", 0), ("i1", 1)])
    def test_bessel_functions_at_0(self, name, order):
        """Up to the third derivative, beside mpmath."""
        exact = mpmath.besselj if name[0] == "j" else mpmath.besseli
        f = getattr(tg.special, name)
        for count in range(4):
            expected = float(mpmath.diff(lambda x: exact(order, x), 0, count))
            found = float(np.asarray(f(0.0).numpy() if not count else f(0.0)))
            np.testing.assert_allclose(found, expected, atol=1e-8)
            f = tg.grad(f)

    def test_logarithms_at_0(self):
        x, y = leaf([0.0, 0.0, 0.0, 1.0]), leaf([2.0, 0.0, np.nan, 0.0])
        found = tg.special.xlogy(x, y)
        np.testing.assert_array_equal(found.detach().numpy(), [0.0, 0.0, np.nan, -np.inf])
        found.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), [np.log(2.0), -np.inf, np.nan, -np.inf])
        np.testing.assert_array_equal(y.grad.numpy(), [0.0, 0.0, np.nan, np.inf])
        np.testing.assert_array_equal(
            tg.special.xlog1py(leaf([0.0, 0.0]), [-1.0, 3.0]).detach().numpy(), [0.0, 0.0]
        )

    def test_the_mixed_derivative_at_0(self):
        """It is 1 / y, also where x is 0."""
        hessian = tg.hessian(lambda z: tg.special.xlogy(z[0], z[1]))(np.array([0.0, 2.0]))
        np.testing.assert_array_equal(hessian, [[0.0, 0.5], [0.5, 0.0]])

    def test_entropies(self):
        x = np.array([-1.0, 0.0, 0.5, 2.0])
        np.testing.assert_allclose(tg.special.entr(leaf(x)).detach().numpy(), scipy.special.entr(x))

    @pytest.mark.parametrize("x", [-1.0, -40.0, -1e4, -1e8, -1e155])
    def test_far_below_0(self, x):
        """The slope is about -x - 1 / x."""
        found = tg.grad(lambda x: tg.special.log_ndtr(x))(x)
        exact = float(mpmath.npdf(x) / mpmath.ncdf(x)) if x > -100 else -x - 1.0 / x
        np.testing.assert_allclose(found, exact, rtol=1e-9)

    def test_relative_entropy_of_close_numbers(self):
        found = tg.special.rel_entr(leaf([1e10, 0.0, -1.0]), np.array([1e10 + 1, -1.0, -1.0]))
        expected = scipy.special.rel_entr([1e10, 0.0, -1.0], [1e10 + 1, -1.0, -1.0])
        np.testing.assert_array_equal(found.detach().numpy(), expected)


class TestTypes:
    @pytest.mark.parametrize("name", ["gamma", "xlogy", "erfinv", "ndtr", "j0", "logit"])
    def test_single_precision_stays(self, name):
        args = [tg.tensor(np.float32([0.3, 0.6]), requires_grad=True)] * len(CASES[name])
        found = getattr(tg.special, name)(*args)
        assert found.dtype == np.float32
        found.sum().backward()
        assert args[0].grad.dtype == np.float32

    @pytest.mark.parametrize("name", ["gamma", "xlogy", "j0"])
    def test_complex_numbers_are_refused(self, name):
        args = [tg.tensor([1j, 2.0])] * len(CASES[name])
        with pytest.raises(TypeError, match=name):
            getattr(tg.special, name)(*args)

    def test_without_scipy(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.special", None)
        with pytest.raises(ImportError, match=r"gamma is computed by SciPy.*tapegrad\[special\]"):
            tg.special.gamma(tg.ones(2))
        assert tg.special.xlogy(tg.ones(2), 2.0).shape == (2,)


class TestWeightedLogsumexp:
    A = np.array([[0.3, -1.2, 2.0], [1.0, 0.4, -0.6]])
    B = np.array([[0.5, 2.0, 1.5], [1.0, 3.0, 0.2]])

    @pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
    @pytest.mark.parametrize("keepdims", [False, True])
    def test_values_and_derivatives(self, axis, keepdims):
        def ours(a, b):
            return tg.special.logsumexp(a, axis, b, keepdims=keepdims)

        expected = scipy.special.logsumexp(self.A, axis, self.B, keepdims=keepdims)
        found = ours(*leaves((self.A, self.B)))
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-13)
        assert gradcheck(ours, leaves((self.A, self.B)))
        assert gradgradcheck(ours, leaves((self.A, self.B)))

    def test_signs(self):
        b = self.B * [1.0, -1.0, -1.0]
        expected = scipy.special.logsumexp(self.A, 1, b, return_sign=True)
        found = tg.special.logsumexp(*leaves((self.A,)), 1, leaf(b), return_sign=True)
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.detach().numpy(), two, rtol=1e-13)
        assert gradcheck(
            lambda a, b: tg.special.logsumexp(a, 1, b, return_sign=True)[0], leaves((self.A, b))
        )

    @pytest.mark.parametrize(
        "a, b",
        [
            ([1000.0, 0.0], [1.0, 1.0]),
            ([1000.0, 0.0], [0.0, 2.0]),
            ([np.inf, 0.0], [0.0, 2.0]),
            ([-np.inf, 0.0], [1.0, 2.0]),
            ([-np.inf, -np.inf], [1.0, 2.0]),
            ([-1000.0, -1001.0], [1.0, 2.0]),
            ([0.0, 1.0], [0.0, 1.0]),
        ],
    )
    def test_far_out(self, a, b):
        expected = scipy.special.logsumexp(a, b=b)
        t = leaf(a)
        found = tg.special.logsumexp(t, b=b)
        np.testing.assert_allclose(found.item(), expected)
        (slope,) = tg.autograd.grad(found, t)
        assert not np.isnan(slope.numpy()).any() or np.isinf(expected)
        used = np.array(b) != 0.0
        if np.isfinite(expected):
            exact = np.where(used, b * np.exp(np.where(used, a, 0.0) - expected), 0.0)
            np.testing.assert_allclose(slope.numpy(), exact, rtol=1e-12)

    def test_slopes_by_weights_that_are_0(self):
        a, b = leaves(([0.0, 1.0], [0.0, 1.0]))
        tg.special.logsumexp(a, b=b).backward()
        np.testing.assert_allclose(b.grad.numpy(), np.exp([-1.0, 0.0]))

    def test_without_weights_it_is_the_plain_one(self):
        t = leaf(self.A)
        np.testing.assert_array_equal(
            tg.special.logsumexp(t, axis=1).detach(), tg.logsumexp(t, axis=1).detach()
        )

    @pytest.mark.parametrize(
        "a, slopes", [([-np.inf, -np.inf], [0.0, 0.0]), ([np.inf, 2.0], [1.0, 0.0])]
    )
    def test_infinite_sums(self, a, slopes):
        t = leaf(a)
        tg.special.logsumexp(t, b=[1.0, 1.0]).backward()
        np.testing.assert_array_equal(t.grad.numpy(), slopes)

    @pytest.mark.parametrize("options", [{"b": 2.0}, {"return_sign": True}])
    def test_precision_stays(self, options):
        found = tg.special.logsumexp(tg.tensor(self.A.astype(np.float32)), axis=1, **options)
        assert (found[0] if "return_sign" in options else found).dtype == np.float32


def test_lists_of_orders():
    t = leaf([1.0, 2.0])
    tg.special.kv([0, 1], t).sum().backward()
    exact = -scipy.special.kv([1, 0], [1.0, 2.0]) - [0.0, scipy.special.kv(1, 2.0) / 2.0]
    np.testing.assert_allclose(t.grad.numpy(), exact)


def test_the_order_of_polygamma_is_refused():
    with pytest.raises(TypeError, match="polygamma has no derivative with respect to 'n'"):
        tg.special.polygamma(tg.tensor(1.0, requires_grad=True), 1.5)
