"""Random numbers: beside NumPy's, and their derivatives beside differences at equal seeds."""

import copy
import inspect
import pickle
import threading

import numpy as np
import pytest
import scipy.stats

import tapegrad as tg

SHAPES = np.array([0.3, 1.0, 4.0])
# name, parameters that are differentiated, others
CASES = [
    ("normal", {"loc": np.array([0.5, -1.0, 2.0]), "scale": np.array([1.5, 0.5, 2.0])}),
    ("laplace", {"loc": np.array([0.5, -1.0, 2.0]), "scale": np.array([1.5, 0.5, 2.0])}),
    ("logistic", {"loc": np.array([0.5, -1.0, 2.0]), "scale": np.array([1.5, 0.5, 2.0])}),
    ("gumbel", {"loc": np.array([0.5, -1.0, 2.0]), "scale": np.array([1.5, 0.5, 2.0])}),
    ("uniform", {"low": np.array([0.5, -1.0, 2.0]), "high": np.array([1.5, 0.5, 3.0])}),
    ("exponential", {"scale": np.array([1.5, 0.5, 2.0])}),
    ("gamma", {"shape": SHAPES, "scale": np.array([1.5, 0.5, 2.0])}),
    ("standard_gamma", {"shape": SHAPES}),
    ("beta", {"a": SHAPES, "b": np.array([2.0, 0.7, 30.0])}),
    ("dirichlet", {"alpha": SHAPES}),
    ("standard_t", {"df": np.array([1.0, 5.0, 40.0])}),
    ("student_t", {"df": np.array([1.0, 5.0, 40.0]), "loc": SHAPES, "scale": SHAPES}),
]
LINEAR = ["normal", "laplace", "logistic", "gumbel", "uniform", "exponential"]
NAMES = [name for name, _ in CASES]
METHODS = {
    name
    for name, _ in inspect.getmembers(tg.random.Generator, inspect.isfunction)
    if name[0] != "_"
}


def drawn(name, seed=3, **given):
    return getattr(tg.random.default_rng(seed), name)(**given)


def total(name, given, chosen, seed=3):
    """A smooth function of some parameters, by one random number generator."""

    def f(*values):
        z = drawn(name, seed, **{**given, **dict(zip(chosen, values))})
        return tg.sum(tg.sin(z) * np.arange(1.0, 1.0 + z.size).reshape(z.shape))

    return f


# -- beside NumPy ----------------------------------------------------------------------------------

PLAIN = {
    "normal": {"loc": 1.0, "scale": 2.0},
    "standard_normal": {},
    "uniform": {"low": 1.0, "high": 3.0},
    "exponential": {"scale": 2.0},
    "standard_exponential": {},
    "laplace": {"loc": 1.0, "scale": 2.0},
    "logistic": {"loc": 1.0, "scale": 2.0},
    "gumbel": {"loc": 1.0, "scale": 2.0},
    "gamma": {"shape": 2.0, "scale": 3.0},
    "standard_gamma": {"shape": 0.4},
    "random": {},
    "poisson": {"lam": 3.0},
    "binomial": {"n": 10, "p": 0.3},
    "integers": {"low": 3, "high": 10},
    "choice": {"a": 7},
}


@pytest.mark.parametrize("size", [None, (), 5, (2, 3), (2, 0), np.int64(2), [2, 3]], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_the_numbers_are_numpys(name, size):
    ours = drawn(name, **PLAIN[name], size=size)
    theirs = np.asarray(getattr(np.random.default_rng(3), name)(**PLAIN[name], size=size))
    assert type(ours) is tg.Tensor and not ours.requires_grad
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(ours, theirs, rtol=1e-15)


def test_the_numbers_are_numpys_with_arrays_of_parameters():
    given = {"shape": SHAPES, "scale": np.array([[1.0], [2.0]])}
    for size in (None, (2, 3), (4, 2, 3)):
        ours = drawn("gamma", **given, size=size)
        np.testing.assert_array_equal(ours, np.random.default_rng(3).gamma(**given, size=size))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_choices_and_permutations_are_numpys(axis):
    x = np.arange(12.0).reshape(4, 3)
    numpys = np.random.default_rng
    np.testing.assert_array_equal(
        drawn("permutation", x=x, axis=axis), numpys(3).permutation(x, axis=axis)
    )
    np.testing.assert_array_equal(drawn("permutation", x=6), numpys(3).permutation(6))
    for options in ({}, {"replace": False}, {"replace": False, "shuffle": False}):
        given = {"a": x, "size": 2, "axis": axis, **options}
        np.testing.assert_array_equal(drawn("choice", **given), numpys(3).choice(**given))
    given = {"a": 4, "size": (2, 2), "p": [0.1, 0.2, 0.3, 0.4]}
    np.testing.assert_array_equal(drawn("choice", **given), numpys(3).choice(**given))


def test_integers():
    numpys = np.random.default_rng
    np.testing.assert_array_equal(drawn("integers", low=5, size=9), numpys(3).integers(5, size=9))
    given = {"low": [0, 5], "high": [5, 6], "endpoint": True, "dtype": np.int8, "size": (3, 2)}
    found = drawn("integers", **given)
    np.testing.assert_array_equal(found, numpys(3).integers(**given))
    assert found.dtype == np.int8


def test_the_names_are_numpys_or_documented():
    others = {"bernoulli", "student_t", "restart"}
    assert {n for n in METHODS if not hasattr(np.random.Generator, n)} == others
    for name in METHODS - others:
        theirs = getattr(np.random.default_rng(), name).__doc__
        ours = inspect.signature(getattr(tg.random.default_rng(), name)).parameters
        for parameter in ours:
            if parameter not in ("dtype", "scale_tril", "size", "shuffle"):
                assert parameter in theirs or name == "spawn", (name, parameter)


# -- derivatives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LINEAR, "gamma", "student_t"])
def test_gradients_of_location_and_scale_beside_differences(name):
    """What a number is for other parameters at the same seed."""
    given = dict(CASES)[name]
    chosen = [n for n in given if name in LINEAR or n in ("loc", "scale")]
    values = [given[n] for n in chosen]
    tg.testing.check_grads(total(name, given, chosen), values, order=2)


@pytest.mark.parametrize(("name", "given"), CASES, ids=NAMES)
def test_forward_and_reverse_mode_agree(name, given):
    f = total(name, given, list(given))
    values = list(given.values())
    rng = np.random.default_rng(1)
    tangents = [rng.normal(size=v.shape) for v in values]
    numbers = tuple(range(len(values)))
    gradients = tg.grad(f, numbers)(*values)
    _, slope = tg.jvp(f, numbers)(*values, *tangents)
    expected = sum(np.sum(g * t) for g, t in zip(gradients, tangents))
    np.testing.assert_allclose(slope, expected, rtol=1e-12)
    # second order: reverse over reverse beside forward over reverse, and symmetric
    hessian = tg.hessian(lambda v: f(v, *values[1:]))(values[0])
    columns = tg.jacfwd(tg.grad(lambda v: f(v, *values[1:])))(values[0])
    np.testing.assert_allclose(hessian, columns, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-9, atol=1e-12)


def test_gradients_of_gamma_shapes_beside_quantiles():
    z = drawn("gamma", shape=SHAPES)
    law, h = scipy.stats.gamma, 1e-5 * SHAPES
    probability = law.cdf(z, SHAPES)
    exact = (law.ppf(probability, SHAPES + h) - law.ppf(probability, SHAPES - h)) / (2 * h)
    found = tg.grad(lambda a: drawn("gamma", shape=a).sum())(SHAPES)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_gradients_of_other_shapes_beside_quantiles():
    """The gamma samples that others are made of, by SciPy's quantiles in place of the op."""
    rng = np.random.default_rng(3)
    a, b = np.array([2.0, 1.3, 6.0]), np.full(3, 2.0)

    def probabilities(a):
        logs = np.log(rng.standard_gamma(a + 1.0)) - rng.standard_exponential(3) / a
        return scipy.stats.gamma.cdf(np.exp(logs), a)

    def compare(name, given, chosen, value):
        x = given[chosen]
        np.testing.assert_allclose(drawn(name, **given), value(x), rtol=1e-9)
        found = tg.jacobian(lambda x: drawn(name, **{**given, chosen: x}))(x)
        steps = 1e-5 * np.diag(x)
        exact = [(value(x + h) - value(x - h)) / (2.0 * h.max()) for h in steps]
        np.testing.assert_allclose(found, np.stack(exact, axis=1), rtol=1e-6, atol=1e-8)

    quantile = scipy.stats.gamma.ppf
    one, two = probabilities(a), probabilities(b)

    def share(a):
        first = quantile(one, a)
        return first / (first + quantile(two, b))

    compare("beta", {"a": a, "b": b}, "a", share)
    compare("dirichlet", {"alpha": a}, "alpha", lambda a: quantile(one, a) / quantile(one, a).sum())
    rng = np.random.default_rng(3)
    noise, chi = rng.standard_normal(3), probabilities(a)

    def ratio(df):
        return noise * np.sqrt(0.5 * df / quantile(chi, 0.5 * df))

    compare("standard_t", {"df": 2.0 * a}, "df", ratio)


def test_small_shapes_neither_underflow_nor_lose_gradients():
    alpha = np.array([1e-3, 1e-4, 2e-3])
    for seed in range(20):
        z, slope = tg.value_and_grad(lambda a: drawn("dirichlet", seed, alpha=a)[0])(alpha)
        assert 0.0 <= z <= 1.0 and np.isfinite(slope).all()
        x, slope = tg.value_and_grad(lambda a: drawn("beta", seed, a=a, b=1e-3))(1e-3)
        assert 0.0 <= x <= 1.0 and np.isfinite(slope)
        z, slope = tg.value_and_grad(lambda a: drawn("gamma", seed, shape=a))(1e-3)
        assert z >= 0.0 and np.isfinite(slope)


@pytest.mark.parametrize(("way", "size"), [("cov", 5), ("scale_tril", (2, 4)), ("cov", None)])
def test_multivariate_normal(way, size):
    mean, root = np.array([1.0, -2.0, 0.5]), np.tril(np.arange(1.0, 10.0).reshape(3, 3))
    matrix = root if way == "scale_tril" else root @ root.T
    given = {"mean": mean, way: matrix, "size": size}
    z = drawn("multivariate_normal", **given)
    shape = () if size is None else np.empty(size).shape
    noise = np.random.default_rng(3).standard_normal((*shape, 3))
    np.testing.assert_allclose(z, mean + noise @ root.T, rtol=1e-12)

    def f(mean, half):
        whole = tg.tril(half) if way == "scale_tril" else half + half.T
        found = drawn("multivariate_normal", mean=mean, **{way: whole}, size=size)
        return tg.sum(tg.sin(found))

    half = np.tril(root) if way == "scale_tril" else 0.5 * matrix
    tg.testing.check_grads(f, [mean, half], order=2)


def test_multivariate_normal_of_stacks():
    root = np.stack([np.eye(2), np.array([[2.0, 0.0], [1.0, 3.0]])])
    z = drawn("multivariate_normal", mean=np.zeros((2, 2)), scale_tril=root, size=(4, 2))
    noise = np.random.default_rng(3).standard_normal((4, 2, 2))
    np.testing.assert_allclose(z, np.einsum("kij,nkj->nki", root, noise), rtol=1e-13)
    same = drawn("multivariate_normal", mean=np.zeros(2), cov=root @ root.mT, size=(4, 2))
    np.testing.assert_allclose(same, z, rtol=1e-12)
    slope = tg.grad(lambda r: drawn("multivariate_normal", mean=np.zeros(2), scale_tril=r).sum())(
        root
    )
    np.testing.assert_array_equal(slope[:, 0, 1], 0.0)


def test_elements_of_choices_have_gradients():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    places = drawn("choice", a=4, size=(2, 3))
    found = tg.grad(lambda x: tg.sum(drawn("choice", a=x, size=(2, 3)) ** 2))(x)
    np.testing.assert_array_equal(found, 2.0 * x * np.bincount(places.numpy().ravel(), minlength=4))
    order = drawn("permutation", x=4).numpy()
    found = tg.jacobian(lambda x: drawn("permutation", x=x))(x)
    np.testing.assert_array_equal(found, np.eye(4)[order])
    items = [tg.tensor(k, requires_grad=True) for k in x]
    drawn("permutation", x=items)[0].backward()
    assert [item.grad is not None and item.grad.item() for item in items].count(1.0) == 1


def test_the_numbers_do_not_depend_on_what_requires_grad():
    for name, given in CASES:
        plain = drawn(name, **given)
        tensors = {n: tg.tensor(v, requires_grad=True) for n, v in given.items()}
        np.testing.assert_array_equal(plain, drawn(name, **tensors).detach())
        assert drawn(name, **tensors).requires_grad
        with tg.no_grad():
            assert not drawn(name, **tensors).requires_grad


# -- moments ---------------------------------------------------------------------------------------

DISTRIBUTIONS = [
    ("normal", {"loc": 1.0, "scale": 2.0}, scipy.stats.norm(1.0, 2.0)),
    ("uniform", {"low": -1.0, "high": 2.0}, scipy.stats.uniform(-1.0, 3.0)),
    ("exponential", {"scale": 2.0}, scipy.stats.expon(scale=2.0)),
    ("laplace", {"loc": 1.0, "scale": 2.0}, scipy.stats.laplace(1.0, 2.0)),
    ("logistic", {"loc": 1.0, "scale": 2.0}, scipy.stats.logistic(1.0, 2.0)),
    ("gumbel", {"loc": 1.0, "scale": 2.0}, scipy.stats.gumbel_r(1.0, 2.0)),
    ("gamma", {"shape": 0.7, "scale": 2.0}, scipy.stats.gamma(0.7, scale=2.0)),
    ("standard_gamma", {"shape": 12.0}, scipy.stats.gamma(12.0)),
    ("beta", {"a": 0.4, "b": 2.5}, scipy.stats.beta(0.4, 2.5)),
    ("standard_t", {"df": 3.5}, scipy.stats.t(3.5)),
    ("student_t", {"df": 7.0, "loc": 1.0, "scale": 0.5}, scipy.stats.t(7.0, 1.0, 0.5)),
]


@pytest.mark.parametrize(
    ("name", "given", "law"), DISTRIBUTIONS, ids=[name for name, *_ in DISTRIBUTIONS]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distributions(name, given, law, dtype):
    z = drawn(name, seed=11, **given, size=4000, dtype=dtype)
    assert z.dtype == dtype
    assert scipy.stats.kstest(z.numpy().astype(float), law.cdf).pvalue > 0.01


def test_distributions_of_several_variables():
    alpha = np.array([0.5, 2.0, 4.0])
    z = drawn("dirichlet", seed=11, alpha=alpha, size=4000).numpy()
    np.testing.assert_allclose(z.sum(axis=1), 1.0, rtol=1e-14)
    for k, a in enumerate(alpha):
        law = scipy.stats.beta(a, alpha.sum() - a)
        assert scipy.stats.kstest(z[:, k], law.cdf).pvalue > 0.01
    cov = np.array([[2.0, 0.8], [0.8, 1.0]])
    z = drawn("multivariate_normal", seed=11, mean=[1.0, 2.0], cov=cov, size=4000).numpy()
    np.testing.assert_allclose(np.cov(z.T), cov, atol=0.1)
    np.testing.assert_allclose(z.mean(axis=0), [1.0, 2.0], atol=0.05)
    z = drawn("bernoulli", seed=11, p=np.array([0.2, 0.7]), size=(4000, 2)).numpy()
    np.testing.assert_allclose(z.mean(axis=0), [0.2, 0.7], atol=0.02)
    assert {*np.unique(z)} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "given", "chosen", "slope"),
    [
        ("gamma", {"shape": 0.6, "scale": 2.0}, "shape", 2.0 * 2.0 * 0.6 * 2.0 + 4.0),  # a(a+1)s^2
        ("beta", {"a": 1.5, "b": 2.0}, "a", None),
        ("standard_t", {"df": 12.0}, "df", None),
    ],
)
def test_the_gradient_of_a_mean(name, given, chosen, slope):
    """E z**2 as a function of a parameter."""
    law = {"beta": scipy.stats.beta, "standard_t": scipy.stats.t}.get(name)
    if slope is None:
        values = list(given.values())

        def mean(first):
            frozen = law(first, *values[1:])
            return frozen.var() + frozen.mean() ** 2

        slope = (mean(values[0] + 1e-4) - mean(values[0] - 1e-4)) / 2e-4

    def f(value):
        return tg.mean(drawn(name, 5, **{**given, chosen: value}, size=60_000) ** 2)

    np.testing.assert_allclose(tg.grad(f)(given[chosen]), slope, rtol=0.05)


# -- dtypes and sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "given"), CASES, ids=NAMES)
def test_dtypes_follow_the_parameters(name, given):
    narrow = {n: v.astype(np.float32) for n, v in given.items()}
    z = drawn(name, **narrow)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z, drawn(name, **given), rtol=1e-4, atol=1e-6)
    assert drawn(name, **given).dtype == np.float64
    assert drawn(name, **given, dtype=np.float32).dtype == np.float32
    first, *_ = given
    values = [given[n] if n != first else tg.tensor(narrow[n], requires_grad=True) for n in given]
    mixed = drawn(name, **dict(zip(given, values)))
    assert mixed.dtype == (np.float64 if len(given) > 1 else np.float32)
    mixed.sum().backward()
    assert values[0].grad.dtype == np.float32


def test_numbers_do_not_raise_the_precision():
    loc = np.float32([1.0, 2.0])
    assert drawn("normal", loc=loc, scale=2.0).dtype == np.float32
    assert drawn("normal", loc=loc, scale=np.array([1, 2])).dtype == np.float32
    assert drawn("normal", loc=1, scale=2).dtype == np.float64
    assert drawn("random", size=3, dtype=np.float32).dtype == np.float32
    found = drawn("random", size=10_000, dtype=np.float32)
    np.testing.assert_array_equal(found, np.random.default_rng(3).random(10_000, np.float32))


@pytest.mark.parametrize(("name", "given"), CASES, ids=NAMES)
def test_sizes_and_gradients_of_broadcast_parameters(name, given):
    event = given["alpha"].shape if name == "dirichlet" else ()
    wide = {n: tg.tensor(v, requires_grad=True) for n, v in given.items()}
    size = (2, 4) if event else (2, 4, 3)
    z = drawn(name, **wide, size=size)
    assert z.shape == (*size, *event)
    z.sum().backward()
    assert all(t.grad.shape == t.shape for t in wide.values())
    assert drawn(name, **given, size=(0,) if event else (0, 3)).shape == ((0, 3))
    if not event:
        single = {n: tg.tensor(v[1], requires_grad=True) for n, v in given.items()}
        z = drawn(name, **single)
        assert z.shape == ()
        z.backward()
        assert all(t.grad.shape == () for t in single.values())


# -- errors ----------------------------------------------------------------------------------------

GRAD = tg.tensor(0.5, requires_grad=True)


@pytest.mark.parametrize(
    ("name", "args", "error", "text"),
    [
        ("normal", (0.0, -1.0), ValueError, "normal: scale must be at least 0"),
        ("normal", (0.0, np.nan), ValueError, "scale"),
        ("exponential", (-1.0,), ValueError, "exponential: scale"),
        ("gamma", (0.0,), ValueError, "gamma: shape must be greater than 0"),
        ("gamma", (1.0, -1.0), ValueError, "gamma: scale"),
        ("beta", (1.0, [1.0, 0.0]), ValueError, "beta: b must be greater than 0"),
        ("dirichlet", ([1.0, -1.0],), ValueError, "dirichlet: alpha"),
        ("dirichlet", (1.0,), ValueError, "dirichlet: alpha must have elements along an axis"),
        ("student_t", (0.0,), ValueError, "student_t: df"),
        ("uniform", (2.0, 1.0), ValueError, "uniform: high must be at least low"),
        ("uniform", (0.0, np.inf), ValueError, "uniform: high"),
        ("poisson", (-1.0,), ValueError, "poisson: lam"),
        ("binomial", (3, 1.5), ValueError, "binomial: p must be from 0 to 1"),
        ("binomial", (-3, 0.5), ValueError, "binomial: n"),
        ("binomial", (2.5, 0.5), TypeError, "binomial: n must be integers"),
        ("bernoulli", (-0.1,), ValueError, "bernoulli: p"),
        ("integers", (3, 3), ValueError, "integers: high must be above low"),
        ("integers", (0,), ValueError, "integers: low must be above 0"),
        ("choice", (0,), ValueError, "choice: a must be a positive number"),
        ("choice", (1.0,), ValueError, "choice: a must be a number, or have an axis"),
        ("choice", (3, 4, False), ValueError, "choice: size must be at most"),
        ("choice", (2, None, True, [0.5, 0.6]), ValueError, "choice: p must be at least 0"),
        ("choice", (2, None, True, [1.0]), ValueError, r"choice: p has shape \(1,\) for 2"),
        ("permutation", (1.5,), ValueError, "permutation: x must be a number, or have an axis"),
        ("normal", ([1.0, 2.0], 1.0, 3), ValueError, r"size \(3,\) does not fit .* \(2,\)"),
        ("dirichlet", ([[1.0, 2.0]] * 2, 3), ValueError, "without the last 1"),
        ("normal", ([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "do not broadcast"),
        ("normal", (0.0, 1.0, -1), ValueError, "negative dimensions"),
        ("normal", (0.0, 1.0, 2.5), TypeError, "size must be an integer or a tuple"),
        ("normal", (1j,), TypeError, "complex"),
        ("normal", (np.float16([1.0]),), TypeError, "float32 or float64, got float16"),
        ("multivariate_normal", ([0.0],), ValueError, "either cov or scale_tril"),
        ("multivariate_normal", (0.0, [[1.0]]), ValueError, "mean must have an axis"),
        ("multivariate_normal", ([0.0], np.eye(2)), ValueError, "cov has shape"),
        ("multivariate_normal", ([0.0] * 2, [[1, 2], [0, 1]]), ValueError, "cov must be symm"),
        ("multivariate_normal", ([0.0] * 2, [[1, 2], [2, 1]]), ValueError, "cov must be positive"),
        ("bernoulli", (GRAD,), TypeError, r"no derivative with respect to 'p'.* p\.detach\(\)"),
        ("binomial", (3, GRAD), TypeError, r"no derivative with respect to 'p'"),
        ("poisson", (GRAD,), TypeError, "no derivative with respect to 'lam'"),
        ("poisson", ([GRAD, 1.0],), TypeError, "no derivative with respect to 'lam'"),
        ("choice", (2, None, True, [GRAD, 0.5]), TypeError, "no derivative with respect to 'p'"),
        ("integers", (GRAD,), TypeError, "no derivative with respect to 'low'"),
    ],
)
def test_what_is_refused_says_why(name, args, error, text):
    with pytest.raises(error, match=text):
        getattr(tg.random.default_rng(0), name)(*args)


def test_an_upper_part_of_a_root_is_refused():
    with pytest.raises(ValueError, match="scale_tril must be lower triangular"):
        drawn("multivariate_normal", mean=[0.0, 0.0], scale_tril=np.ones((2, 2)))


def test_lists_of_tensors_keep_their_history():
    items = [tg.tensor(k, requires_grad=True) for k in (1.0, 2.0)]
    drawn("normal", loc=items, size=(3, 2)).sum().backward()
    assert [item.grad.item() for item in items] == [3.0, 3.0]


def test_parameters_of_discrete_samples_are_refused_in_forward_mode():
    for name, parameter in [("bernoulli", "p"), ("poisson", "lam")]:
        with pytest.raises(TypeError, match="no derivative with respect to"):
            tg.jvp(lambda x: drawn(name, **{parameter: x}))(0.5, 1.0)


def test_dual_tensors():
    forward = tg.autograd.forward_ad
    with forward.dual_level():
        a = forward.make_dual(tg.tensor(SHAPES), tg.tensor(np.ones(3)))
        for context in (tg.enable_grad, tg.no_grad):
            with context():
                z = forward.unpack_dual(drawn("gamma", shape=a))
                with pytest.raises(TypeError, match="respect to 'lam', which has a tangent"):
                    drawn("poisson", lam=a)
            expected = tg.jvp(lambda a: drawn("gamma", shape=a))(SHAPES, np.ones(3))
            np.testing.assert_allclose([z.primal, z.tangent], expected, rtol=1e-14)
        assert drawn("poisson", lam=a.detach()).shape == (3,)


def test_discrete_samples_without_recording():
    with tg.no_grad():
        assert not drawn("poisson", lam=GRAD).requires_grad
    assert drawn("poisson", lam=GRAD.detach()).shape == ()


# -- state -----------------------------------------------------------------------------------------


def test_seeds_and_generators():
    numpys = np.random.default_rng(5)
    rng = tg.random.default_rng(numpys)
    assert tg.random.default_rng(rng) is rng
    assert rng.bit_generator is numpys.bit_generator
    expected = np.random.default_rng(5).normal(size=2)
    assert [rng.normal().item(), numpys.normal()] == expected.tolist()
    assert repr(rng) == "Generator(PCG64)"
    philox = tg.random.default_rng(np.random.Philox(1))
    assert philox.random() == np.random.Generator(np.random.Philox(1)).random()
    assert tg.random.default_rng().random() != tg.random.default_rng().random()


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.SFC64])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda rng: pickle.loads(pickle.dumps(rng))], ids=["copy", "pickle"]
)
def test_copies_and_states(bits, copied):
    rng = tg.random.default_rng(bits(4))
    rng.normal(size=3)
    state, other = rng.state, copied(rng)
    first = rng.gamma([0.5, 2.0])
    np.testing.assert_array_equal(other.gamma([0.5, 2.0]), first)
    rng.state = state
    np.testing.assert_array_equal(rng.gamma([0.5, 2.0]), first)
    with pytest.raises(ValueError):
        rng.state = np.random.default_rng(np.random.Philox(1)).bit_generator.state


def test_copies_before_the_first_number():
    rng = tg.random.Generator()
    assert copy.deepcopy(rng).random() == rng.random()


def test_children_are_independent_and_reproducible():
    one, two = (tg.random.default_rng(1).spawn(3) for _ in range(2))
    assert type(one[0]) is tg.random.Generator
    found = [rng.random().item() for rng in one]
    assert found == [rng.random().item() for rng in two]
    assert len({*found}) == 3


def test_the_default_generator():
    before = tg.random.get_state()
    try:
        tg.random.seed(8)
        state = tg.random.get_state()
        first = tg.random.normal(size=3)
        np.testing.assert_array_equal(first, np.random.default_rng(8).normal(size=3))
        tg.random.set_state(state)
        np.testing.assert_array_equal(tg.random.normal(size=3), first)
        tg.random.seed(8)
        np.testing.assert_array_equal(tg.random.normal(size=3), first)
        tg.random.seed()
        assert not np.array_equal(tg.random.normal(size=3), first)
    finally:
        tg.random.set_state(before)


def test_every_method_is_a_function():
    own = {"Generator", "default_rng", "get_state", "seed", "set_state"}
    assert {*tg.random.__all__} - own == METHODS - {"restart", "spawn"}
    assert all(getattr(tg.random, name).__doc__ for name in tg.random.__all__)


def test_threads_share_a_generator():
    """Every number is drawn once."""
    rng = tg.random.default_rng(2)
    found = [[] for _ in range(4)]

    def work(own):
        for _ in range(50):
            own.extend(rng.random(20).tolist())

    threads = [threading.Thread(target=work, args=(own,)) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.random.default_rng(2).random(4000)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.sort(expected))
