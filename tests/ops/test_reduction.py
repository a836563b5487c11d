"""Reductions and cumulative functions: values, gradients, ties, zeros, empty arrays."""

import math

import numpy as np
import pytest
import scipy.special

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.ops import reduction
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.kinds import Reduction
from tapegrad.ops.table.op import TABLE

INF, NAN = math.inf, math.nan


def _square_norm(x, axis=None, keepdims=False):
    return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))


REFERENCES = {
    "sum": np.sum,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "amax": np.max,
    "amin": np.min,
    "ptp": np.ptp,
    "logsumexp": scipy.special.logsumexp,
    "euclidean_norm": _square_norm,
}
CUMULATIVE = {"cumsum": np.cumsum, "cumprod": np.cumprod}
AXES = [None, 0, 1, -1, -3, (0, 2), (-1, 0), (2, 1, 0), [0, 1]]


def array_of(tensor):
    return tensor.detach().numpy()


def data(shape=(2, 3, 4), dtype=np.float64, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(dtype)


def as_numpy(axis):
    return tuple(axis) if isinstance(axis, list) else axis


def gradient(f, x, g=None):
    t = tg.tensor(np.asarray(x, float), requires_grad=True)
    out = f(t)
    (found,) = tg.autograd.grad(out, t, np.ones(out.shape) if g is None else g)
    return array_of(found).tolist()


def test_every_reduction_is_here():
    names = {name for name, op in TABLE.items() if isinstance(op, Reduction)}
    names |= {name for name, c in COMPOSITES.items() if c.function.__module__ == reduction.__name__}
    assert names <= REFERENCES.keys() | CUMULATIVE.keys()


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", REFERENCES)
def test_axes(name, axis, keepdims):
    """Value and shape as NumPy's, gradients of both orders as differences."""
    x = data()
    call = FUNCTIONS[name]
    expected = np.asarray(REFERENCES[name](x, axis=as_numpy(axis), keepdims=keepdims))
    found = call(tg.tensor(x, requires_grad=True), axis=as_numpy(axis), keepdims=keepdims)
    assert found.shape == expected.shape
    np.testing.assert_allclose(array_of(found), expected, rtol=1e-13)
    tg.testing.check_grads(lambda v: call(v, axis=as_numpy(axis), keepdims=keepdims), [x], order=2)


@pytest.mark.parametrize("name", ["sum", "mean", "std", "prod", "logsumexp", "max"])
def test_no_axis_at_all(name):
    """axis=() reduces nothing."""
    if name == "logsumexp":
        pytest.skip("SciPy does not accept it")
    x = data((2, 3))
    t = tg.tensor(x, requires_grad=True)
    found = FUNCTIONS[name](t, axis=())
    np.testing.assert_allclose(array_of(found), REFERENCES[name](x, axis=()))
    (g,) = tg.autograd.grad(found, t, np.ones((2, 3)))
    np.testing.assert_array_equal(array_of(g), np.full((2, 3), float(name != "std")))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(REFERENCES.keys() | CUMULATIVE.keys()))
def test_dtype_is_kept(name, dtype):
    t = tg.tensor(data(dtype=dtype), requires_grad=True)
    out = FUNCTIONS[name](t, axis=1)
    assert out.dtype == dtype
    (g,) = tg.autograd.grad(out, t, np.ones(out.shape, dtype))
    assert g.dtype == dtype
    wide = tg.tensor(array_of(t).astype(float), requires_grad=True)
    (h,) = tg.autograd.grad(FUNCTIONS[name](wide, axis=1), wide, np.ones(out.shape))
    np.testing.assert_allclose(array_of(g), array_of(h), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", CUMULATIVE)
def test_cumulative(name, axis):
    for shape in ((3, 4), (1, 5), (7, 1)):
        x = data(shape)
        call = FUNCTIONS[name]
        np.testing.assert_allclose(array_of(call(x, axis=axis)), CUMULATIVE[name](x, axis=axis))
        tg.testing.check_grads(lambda v, f=call: f(v, axis=axis), [x], order=2)


@pytest.mark.parametrize("shape", [(3000,), (60, 70), (2, 1500, 3)])
@pytest.mark.parametrize("name", ["sum", "logsumexp", "euclidean_norm", "mean", "cumsum"])
def test_large(name, shape):
    """More elements than a block of the sweep."""
    x = data(shape)
    for axis in (None, 0, -1):
        if name == "cumsum" and axis is None:
            continue
        tg.testing.check_grads(lambda v, a=axis: FUNCTIONS[name](v, axis=a), [x])


@pytest.mark.parametrize("name", ["max", "min"])
def test_large_choice(name):
    x = np.random.default_rng(0).permutation(4200).reshape(60, 70) * 1.0
    t = tg.tensor(x, requires_grad=True)
    for axis in (None, 0, 1):
        out = FUNCTIONS[name](t, axis=axis, keepdims=True)
        (g,) = tg.autograd.grad(out, t, np.full(out.shape, 2.0))
        np.testing.assert_array_equal(array_of(g), 2.0 * (x == array_of(out)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", REFERENCES)
def test_strided_input(name, transposed):
    """An input that is not contiguous, and a cotangent that is broadcast."""
    base = data((6, 10))
    view = base[::-2, ::3].T if transposed else base[::-2, ::3]
    t = tg.as_tensor(view).requires_grad_()
    out = FUNCTIONS[name](t, axis=0)
    (g,) = tg.autograd.grad(out, t, np.broadcast_to(2.0, out.shape))
    plain = tg.tensor(view.copy(), requires_grad=True)
    out = FUNCTIONS[name](plain, axis=0)
    (h,) = tg.autograd.grad(out, plain, np.full(out.shape, 2.0))
    np.testing.assert_allclose(array_of(g), array_of(h), rtol=1e-14)


@pytest.mark.parametrize("name", sorted(REFERENCES.keys() | CUMULATIVE.keys()))
def test_0_d_and_1_element(name):
    for x in (np.array(0.7), np.array([0.7]), np.array([[0.7]])):
        reference = (REFERENCES | CUMULATIVE)[name]
        t = tg.tensor(x, requires_grad=True)
        out = FUNCTIONS[name](t)
        np.testing.assert_allclose(array_of(out), reference(x))
        (g,) = tg.autograd.grad(out, t, np.ones(out.shape))
        assert g.shape == x.shape
        expected = 0.0 if name in ("var", "std", "ptp") else 1.0
        np.testing.assert_allclose(array_of(g), np.full(x.shape, expected))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "mean"])
def test_axis_of_0_d(name):
    """NumPy lets a number be reduced over its (missing) last axis."""
    for axis in (0, -1):
        assert FUNCTIONS[name](tg.tensor(2.0), axis=axis).item() == 2.0


# -- ties, zeros, infinities -----------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [False, True], ids=["compiled", "tensors"])
@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (tg.max, [1, 3, 3], [0, 0.5, 0.5]),
        (tg.max, [2, 2, 2, 2], [0.25] * 4),
        (tg.max, [INF, 1, INF], [0.5, 0, 0.5]),
        (tg.min, [1, 3, 1], [0.5, 0, 0.5]),
        (tg.min, [-INF, 0], [1, 0]),
        (lambda x: tg.max(x, axis=0), [[1, 2], [1, 0]], [[0.5, 1], [0.5, 0]]),
        (lambda x: tg.max(x, axis=-1, keepdims=True), [[1, 1], [1, 0]], [[0.5, 0.5], [1, 0]]),
        (lambda x: tg.min(x, axis=(0, 1)), [[1, 1], [1, 5]], [[1 / 3, 1 / 3], [1 / 3, 0]]),
        (tg.ptp, [1, 1, 3], [-0.5, -0.5, 1]),
        (tg.ptp, [2, 2], [0, 0]),
        (tg.max, [0.0, -0.0], [0.5, 0.5]),
        (tg.prod, [0, 2, 3], [6, 0, 0]),
        (tg.prod, [0, 0, 3], [0, 0, 0]),
        (tg.prod, [2, 3, 4, 5, 6], [360, 240, 180, 144, 120]),
        (lambda x: tg.prod(x, axis=1), [[0, 2], [3, 0], [1, 4]], [[2, 0], [0, 3], [4, 1]]),
        (tg.cumprod, [2, 0, 3], [1, 8, 0]),
        (tg.cumprod, [0, 0, 3], [1, 0, 0]),
        (tg.cumsum, [1, 2, 3], [3, 2, 1]),
        (tg.std, [2, 2, 2], [0, 0, 0]),
        (tg.var, [2, 2], [0, 0]),
        (lambda x: tg.std(x, axis=0), [[1, 5], [3, 5]], [[-0.5, 0], [0.5, 0]]),
        (lambda x: tg.linalg.norm(x), [0, 0], [0, 0]),
        (lambda x: tg.linalg.norm(x, axis=1), [[3, 4], [0, 0]], [[0.6, 0.8], [0, 0]]),
        (tg.logsumexp, [-INF, -INF], [0.5, 0.5]),
        (tg.logsumexp, [INF, INF, 1], [0.5, 0.5, 0]),
        (lambda x: tg.linalg.norm(x, 0.5), [0, 2, 2], [0, 2, 2]),
        (lambda x: tg.linalg.norm(x, 0.5), [0, 0], [0, 0]),
        (lambda x: tg.linalg.norm(x, -1), [0, 2], [0, 0]),
        (lambda x: tg.linalg.norm(x, 2), [[3, 0], [0, -3]], [[0.5, 0], [0, -0.5]]),
        (lambda x: tg.linalg.norm(x, -2), [[2, 0], [0, 2]], [[0.5, 0], [0, 0.5]]),
        (tg.logsumexp, [-INF, 0], [0, 1]),
        (tg.logsumexp, [INF, 0], [1, 0]),
        (tg.logsumexp, [1000, 1000], [0.5, 0.5]),
        (tg.logsumexp, [-1000, -1000, -1000, -1000], [0.25] * 4),
        (lambda x: tg.logsumexp(x, axis=0), [[-INF, 1], [-INF, 1]], [[0.5, 0.5], [0.5, 0.5]]),
    ],
)
def test_gradient_at_special_points(f, x, expected, recorded):
    t = tg.tensor(np.asarray(x, float), requires_grad=True)
    with np.errstate(all="ignore"):
        out = f(t)
        (g,) = tg.autograd.grad(out, t, np.ones(out.shape), create_graph=recorded)
    np.testing.assert_allclose(array_of(g), expected, atol=1e-15)


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (tg.prod, [0.0, 2.0, 3.0], [[0, 3, 2], [3, 0, 0], [2, 0, 0]]),
        (tg.prod, [0.0, 0.0, 3.0], [[0, 3, 0], [3, 0, 0], [0, 0, 0]]),
        (lambda x: tg.cumprod(x)[-1], [0.0, 0.0, 3.0], [[0, 3, 0], [3, 0, 0], [0, 0, 0]]),
        (tg.var, [1.0, 3.0], [[0.5, -0.5], [-0.5, 0.5]]),
        (lambda x: tg.sum(x) ** 2, [1.0, 3.0], [[2, 2], [2, 2]]),
        (tg.logsumexp, [0.0, 1000.0], [[0, 0], [0, 0]]),
        (tg.logsumexp, [1000.0, 1000.0], [[0.25, -0.25], [-0.25, 0.25]]),
        (lambda x: tg.special.log_softmax(x)[1], [1000.0, 1000.0], [[-0.25, 0.25], [0.25, -0.25]]),
        (lambda x: tg.special.softmax(x)[0], [1000.0, 0.0], [[0, 0], [0, 0]]),
    ],
)
def test_second_derivative_at_special_points(f, x, expected):
    np.testing.assert_allclose(tg.hessian(f)(np.array(x)), expected, atol=1e-14)


@pytest.mark.parametrize("n", [*range(1, 18), 64, 257])
@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_products_of_any_length(name, n):
    """Pairing and doubling handle lengths that are not powers of 2."""
    x = np.random.default_rng(n).uniform(0.9, 1.1, n)
    x[n // 2] = 0.0
    t = tg.tensor(x, requires_grad=True)
    out = FUNCTIONS[name](t)
    np.testing.assert_allclose(array_of(out), (REFERENCES | CUMULATIVE)[name](x), rtol=1e-13)
    last = out if name == "prod" else out[-1]
    (g,) = tg.autograd.grad(last, t)
    want = [np.prod(np.delete(x, k)) for k in range(n)]
    np.testing.assert_allclose(array_of(g), want, rtol=1e-12)


@pytest.mark.parametrize("name", ["max", "min"])
def test_nan_wins(name):
    """The result is nan, and the nan gets the cotangent."""
    t = tg.tensor([1.0, NAN, 3.0], requires_grad=True)
    out = FUNCTIONS[name](t)
    assert math.isnan(out.item())
    (g,) = tg.autograd.grad(out, t)
    assert g.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("x", [[INF, INF], [-INF, -INF], [NAN, 1.0], [INF, -INF], [800.0, -800.0]])
def test_values_of_logsumexp(x):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(array_of(tg.logsumexp(x)), scipy.special.logsumexp(x))


# -- parameters and other dtypes -------------------------------------------------------------------


@pytest.mark.parametrize("ddof", [0, 1, 1.5])
@pytest.mark.parametrize("name", ["var", "std"])
def test_degrees_of_freedom(name, ddof):
    x, call = data(), FUNCTIONS[name]
    expected = REFERENCES[name](x, axis=1, ddof=ddof)
    np.testing.assert_allclose(array_of(call(x, axis=1, ddof=ddof)), expected, rtol=1e-13)
    np.testing.assert_allclose(array_of(call(x, axis=1, correction=ddof)), expected, rtol=1e-13)
    tg.testing.check_grads(lambda v: call(v, axis=1, ddof=ddof), [x], order=2)


@pytest.mark.parametrize("ddof", [2, 3])
@pytest.mark.parametrize("x", [[1.0, 2.0], [1.0, 1.0]])
def test_no_degrees_of_freedom_left(x, ddof):
    """What NumPy gives, without asking for its warning."""
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):
        expected = np.var(x, ddof=ddof)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(array_of(tg.var(np.array(x), ddof=ddof)), expected)


DISCRETE = [np.bool_, np.int8, np.uint8, np.int32, np.int64]


@pytest.mark.parametrize("dtype", DISCRETE)
@pytest.mark.parametrize(
    "name", sorted((REFERENCES.keys() | CUMULATIVE.keys()) - {"euclidean_norm"})
)
def test_integers(name, dtype):
    """Values and dtypes of NumPy also where nothing is differentiable."""
    x = np.array([[1, 100, 100], [1, 90, 120]]).astype(dtype)
    if dtype == np.bool_ and name == "ptp":
        x = x.astype(np.int16)
    reference = (REFERENCES | CUMULATIVE)[name]
    for axis in (None, 1):
        expected = np.asarray(reference(x, axis=axis))
        found = FUNCTIONS[name](x, axis=axis)
        np.testing.assert_allclose(array_of(found), expected, rtol=1e-14)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("dtype", DISCRETE)
def test_norm_of_integers(dtype):
    x = np.array([[1, 100, 100], [1, 90, 120]]).astype(dtype)
    found = tg.linalg.norm(x, axis=1)
    expected = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(array_of(found), expected, rtol=1e-14)
    assert found.dtype == expected.dtype


# -- empty arrays ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("sum", (0,), None),
        ("sum", (0, 3), 0),
        ("sum", (0, 3), 1),
        ("prod", (0,), None),
        ("prod", (0, 3), 0),
        ("prod", (0, 3), 1),
        ("cumsum", (0,), None),
        ("cumsum", (2, 0), 1),
        ("cumprod", (0,), None),
        ("cumprod", (0, 2), 1),
        ("max", (0, 3), 1),
        ("min", (2, 0), 0),
        ("euclidean_norm", (0, 2), 0),
        ("mean", (0, 3), 1),
        ("var", (0, 3), 1),
        ("logsumexp", (0, 3), 1),
    ],
)
def test_empty(name, shape, axis):
    """The neutral element, and a gradient without elements."""
    x = np.zeros(shape)
    t = tg.tensor(x, requires_grad=True)
    out = FUNCTIONS[name](t, axis=axis)
    expected = np.asarray((REFERENCES | CUMULATIVE)[name](x, axis=axis))
    assert out.shape == expected.shape
    np.testing.assert_array_equal(array_of(out), expected)
    for recorded in (False, True):
        (g,) = tg.autograd.grad(
            out, t, np.ones(out.shape), retain_graph=True, create_graph=recorded
        )
        assert g.shape == shape


def test_empty_without_a_neutral_element():
    """mean is nan without a warning, logsumexp is -inf, max and min raise."""
    x = np.zeros((0, 2))
    assert np.isnan(array_of(tg.mean(x, axis=0))).all()
    assert (array_of(tg.logsumexp(x, axis=0)) == -INF).all()
    for f in (tg.max, tg.min, tg.ptp):
        with pytest.raises(ValueError, match="zero-size"):
            f(x, axis=0)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [2, -3, (0, 2)])
@pytest.mark.parametrize("name", sorted(REFERENCES.keys() | CUMULATIVE.keys()))
def test_axis_out_of_range(name, axis):
    if name in CUMULATIVE and isinstance(axis, tuple):
        pytest.skip("one axis only")
    with pytest.raises(
        ValueError, match=r"out of bounds|out of range"
    ):  # numpy.exceptions.AxisError
        FUNCTIONS[name](tg.tensor(np.ones((2, 3)), requires_grad=True), axis=axis)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_axis_given_twice(name):
    with pytest.raises(ValueError, match=r"duplicate|repeated|twice"):
        FUNCTIONS[name](tg.tensor(np.ones((2, 3)), requires_grad=True), axis=(0, -2))


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_unknown_argument(name):
    with pytest.raises(TypeError, match=f"{name}.*axes"):
        FUNCTIONS[name](tg.tensor(np.ones((2, 3)), requires_grad=True), axes=0)


@pytest.mark.parametrize("axis", [np.array(1), (np.array(0), np.array(-1)), np.int64(-2)])
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "logsumexp", "std"])
def test_an_axis_may_be_an_array_of_one_integer(name, axis):
    x = np.array([[0.3, -0.7, 1.9], [0.2, 1.1, 0.4]])
    axes = tuple(map(int, axis)) if isinstance(axis, tuple) else int(axis)
    function = getattr(tg, name)
    found, expected = (
        tg.grad(lambda x, a=a: tg.sum(function(x, axis=a) ** 2))(x) for a in (axis, axes)
    )
    np.testing.assert_array_equal(found, expected)
