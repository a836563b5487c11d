"""Tensors that are being differentiated and leave the graph: refused, or a warning says so."""

import math
import warnings

import numba
import numpy as np
import pytest
from scipy import integrate, optimize

import tapegrad as tg

POINT = np.array([1.0, 2.0, 3.0])


@numba.vectorize
def doubled(x):
    return 2 * x


def written_item(x):
    out = np.zeros(3)
    out[0] = x[0] ** 2
    return out


def filled(x):
    out = np.zeros(3)
    out.fill(x[0])
    return out


def written_flat(x):
    out = np.zeros(3)
    out.flat[0] = x[0]
    return out


# what returns numbers in PyTorch, or asks `float()` in NumPy, SciPy or Python
CONVERTED = {
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "complex": lambda x: complex(x[0]).real,
    "math.sin": lambda x: math.sin(x[0]),
    "math.hypot": lambda x: math.hypot(x[0], 1.0),
    "np.float64": lambda x: np.float64(x[0]),
    "quad": lambda x: integrate.quad(lambda t: t * x[0], 0.0, 1.0)[0],
    "brentq": lambda x: optimize.brentq(lambda t: t - x[0], 0.0, 5.0),
    "np.fromiter": lambda x: np.fromiter(x, float),
    "an item": written_item,
    "fill": filled,
    "flat": written_flat,
    "initial=": lambda x: np.sum(np.ones(2), initial=x[0]),
    "ddof=": lambda x: np.std(x, ddof=x[0]),
    "left=": lambda x: np.interp(0.5, [1.0, 2.0], [1.0, 2.0], left=x[0]),
}
# what has no answer without a history
REFUSED = {
    "np.array": lambda x: np.array([x[0], x[1]]),
    "np.asarray": np.asarray,
    "np.vectorize": lambda x: np.vectorize(lambda v: 2 * v)(x),
    "a ufunc of numba": lambda x: doubled(x[0]),
    "np.unique": np.unique,
    "weights of np.histogram": lambda x: np.histogram([0.0, 1.0, 1.0], 2, weights=x)[0],
    "np.full": lambda x: np.full(2, x[0]),
    "np.arange": lambda x: np.arange(0.0, x[0]),
    "np.copyto": lambda x: np.copyto(np.zeros(3), x),
    "np.put": lambda x: np.put(np.zeros(3), [0], x[0]),
}
# what says that no gradient is wanted, or asks for none
QUIET = {
    "item": lambda x: x[0].item(),
    "detach": lambda x: float(x[0].detach()),
    "tolist": lambda x: x.tolist()[0],
    "a text": lambda x: float(f"{x[0]:.3f}"),
    "a comparison": lambda x: 1.0 if x[0] > 0.0 else 2.0,
    "bool": lambda x: 1.0 if x[0] else 2.0,
    "no_grad": tg.no_grad()(lambda x: float(x[0])),
    "not recorded": lambda x: float(tg.tensor(3.0)),
    "np.histogram": lambda x: np.histogram(x, 2)[0],
    "np.argsort": np.argsort,
}


@pytest.mark.parametrize("name", CONVERTED)
def test_conversions_warn(name):
    x = tg.tensor(POINT, requires_grad=True)
    with pytest.warns(tg.DetachedWarning, match="no gradient passes"):
        CONVERTED[name](x)


@pytest.mark.parametrize("transform", [tg.grad, tg.value_and_grad, tg.jacobian, tg.hessian])
@pytest.mark.parametrize("name", CONVERTED)
def test_conversions_in_transforms_raise(name, transform):
    def f(x):
        return tg.sum(x * np.asarray(CONVERTED[name](x)))

    with pytest.raises((RuntimeError, ValueError)) as caught:
        transform(f)(POINT)
    error = caught.value
    while error is not None and "would lose its gradient" not in str(error):
        error = error.__cause__ or error.__context__  # NumPy puts an error of its own before ours
    # NumPy drops our error of flat; brentq may go on after it, and raise another one instead
    if name not in ("flat", "brentq"):
        assert error is not None or "Can't call numpy()" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("first", [True, False])
def test_refused(name, first):
    """A ufunc of numba knows no types when it is called first."""
    x = tg.tensor(POINT, requires_grad=True)
    for _ in range(1 if first else 2):
        with pytest.raises((TypeError, RuntimeError), match=r"requires grad"):
            REFUSED[name](x)


@pytest.mark.parametrize("name", QUIET)
def test_quiet(name):
    QUIET[name](tg.tensor(POINT, requires_grad=True))
    result = tg.grad(lambda x: tg.sum(x) + 0.0 * tg.sum(tg.as_tensor(QUIET[name](x))))(POINT)
    assert result.tolist() == [1.0, 1.0, 1.0]


def test_once_for_each_place():
    x = tg.tensor(POINT, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for k in range(3):
            float(x[k])
        float(x[0])
    assert [w.category for w in caught] == [tg.DetachedWarning] * 2
    assert all(w.filename == __file__ for w in caught)


INDEPENDENT = {
    "grad": lambda f: tg.grad(f)(2.0),
    "value_and_grad": lambda f: tg.value_and_grad(f)(2.0),
    "jacobian": lambda f: tg.jacobian(f)(2.0),
    "jacfwd": lambda f: tg.jacfwd(f)(2.0),
    "hvp": lambda f: tg.hvp(f)(2.0, 1.0),
    "vjp": lambda f: tg.vjp(f, 2.0),
    "linearize": lambda f: tg.linearize(f, 2.0),
    "jit": lambda f: tg.grad(tg.jit(f))(2.0),
    "vmap": lambda f: tg.vmap(tg.grad(f))(np.ones(2)),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_line_of_the_user(name):
    with pytest.warns(tg.DetachedWarning, match="does not depend") as caught:
        INDEPENDENT[name](lambda x: tg.tensor(3.0))
    assert {w.filename for w in caught} == {__file__}


def test_the_error_names_the_transform_and_a_way_out():
    def f(x):
        return x.sum() * math.sin(x[0])

    with pytest.raises(RuntimeError, match=r"float\(\).*hvp differentiates.*np\.sin"):
        tg.hvp(f)(POINT, POINT)
    np.testing.assert_allclose(
        tg.grad(lambda x: x.sum() * np.sin(x[0]))(POINT),
        np.sin(1.0) + np.array([6.0 * np.cos(1.0), 0.0, 0.0]),
    )


def test_what_surrounds_a_transform():
    """A tensor from outside is none of those that a transform differentiates."""
    w = tg.tensor(2.0, requires_grad=True)
    with pytest.warns(tg.DetachedWarning):
        assert tg.grad(lambda x: float(w) * x)(3.0).item() == 2.0
    with pytest.raises(RuntimeError, match="grad differentiates"):  # but of the outer one
        tg.grad(lambda v: tg.grad(lambda x: float(v) * x)(3.0) * v)(2.0)


def test_nothing_remains_of_a_transform_that_fails():
    with pytest.raises(RuntimeError, match="would lose its gradient"):
        tg.grad(lambda x: x * float(x))(3.0)
    with pytest.warns(tg.DetachedWarning):
        float(tg.tensor(3.0, requires_grad=True))


def test_weights_of_bincount():
    """They are differentiated."""
    places = np.array([0, 2, 2])

    def f(w):
        return (np.bincount(places, w, minlength=4) ** 2).sum()

    assert tg.grad(f)(POINT).tolist() == [2.0, 20.0 / 2, 20.0 / 2]
    w = tg.tensor(POINT, requires_grad=True)
    np.testing.assert_array_equal(
        np.bincount(places, weights=w).detach().numpy(), np.bincount(places, POINT)
    )
    with pytest.raises(ValueError, match="weights"):
        np.bincount(places, w[:2])


def test_way_out_for_weights_of_histogram():
    x, w = np.array([0.0, 0.5, 2.0]), tg.tensor(POINT, requires_grad=True)
    expected, edges = np.histogram(x, 3, weights=POINT)
    found = np.bincount(np.digitize(x, edges[1:-1]), w, edges.size - 1)
    np.testing.assert_array_equal(found.detach().numpy(), expected)
    assert found.requires_grad


def test_way_out_for_an_array_of_tensors():
    x = tg.tensor(POINT, requires_grad=True)
    for made in (tg.array([x[0], x[1]]), np.stack([x[0], x[1]])):
        assert tg.autograd.grad((made * made).sum(), x, retain_graph=True)[0].tolist() == [2, 4, 0]


class TestHistogram:
    """Counts are constant; edges, and densities by them, depend on what is counted."""

    X = np.array([1.0, 2.1, 4.0])

    def check(self, f, x):
        h = 1e-6
        expected = [(float(f(x + h * e)) - float(f(x - h * e))) / (2 * h) for e in np.eye(x.size)]
        np.testing.assert_allclose(tg.grad(f)(x), expected, rtol=1e-8, atol=1e-9)

    def test_counts(self):
        counts, _ = np.histogram(tg.tensor(self.X, requires_grad=True), 3)
        assert counts.tolist() == np.histogram(self.X, 3)[0].tolist()
        assert not counts.requires_grad

    @pytest.mark.parametrize("bins", [3, 4, "sqrt"])
    def test_edges_from_the_data(self, bins):
        edges = np.histogram(tg.tensor(self.X, requires_grad=True), bins)[1]
        np.testing.assert_array_equal(edges.detach(), np.histogram(self.X, bins)[1])
        self.check(lambda x: (np.histogram(x, bins)[1] ** 2).sum(), self.X)

    def test_density(self):
        self.check(lambda x: (np.histogram(x, 3, density=True)[0] ** 2).sum(), self.X)
        found = np.histogram(tg.tensor(self.X), 3, density=True)[0]
        np.testing.assert_allclose(found, np.histogram(self.X, 3, density=True)[0], rtol=1e-15)

    def test_edges_that_are_given(self):
        data = [1.5, 2.5, 2.6]
        self.check(lambda b: (np.histogram(data, bins=b)[1] * b).sum(), self.X)
        self.check(lambda b: (np.histogram(data, bins=b, density=True)[0] ** 2).sum(), self.X)

    def test_a_range(self):
        x = tg.tensor(self.X, requires_grad=True)
        counts, edges = np.histogram(x, 4, range=(0.0, 5.0))
        assert not edges.requires_grad
        assert counts.tolist() == np.histogram(self.X, 4, range=(0.0, 5.0))[0].tolist()
