"""NumPy functions given tensors."""

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg
from tapegrad.autograd import grad

X = np.array([[1.4, 2.1, 0.3], [0.7, 3.2, 1.1]])
V = np.array([0.6, 1.7, 2.3])
S = np.array([[2.0, 0.5], [0.3, 1.5]])


def check(f, *arrays, rtol=1e-6, atol=1e-7):
    """Compare values with NumPy's own, gradients with differences, for one or several results."""
    tensors = [leaf(a) for a in arrays]
    found, expected = f(*tensors), f(*arrays)
    several = isinstance(found, (tuple, list))
    founds, expecteds = (found, expected) if several else ([found], [expected])
    assert len(founds) == len(expecteds)
    rng = np.random.default_rng(3)
    weights = []
    total = 0.0
    for one, other in zip(founds, expecteds, strict=True):
        assert isinstance(one, tg.Tensor)
        assert one.shape == np.shape(other)
        assert one.dtype == np.asarray(other).dtype
        np.testing.assert_allclose(values(one), other, rtol=1e-12, atol=1e-13)
        weights.append(rng.standard_normal(np.shape(other)))
        total = total + (one * weights[-1]).sum()

    def plain(*at):
        out = f(*at)
        out = out if several else [out]
        return sum((np.asarray(o) * w).sum() for o, w in zip(out, weights, strict=True))

    gradients = grad(total, tensors, materialize_grads=True)
    for k, (array, g) in enumerate(zip(arrays, gradients, strict=True)):
        direction = rng.standard_normal(array.shape)
        moved = [
            [a + s * 1e-6 * direction if j == k else a for j, a in enumerate(arrays)]
            for s in (1, -1)
        ]
        difference = (plain(*moved[0]) - plain(*moved[1])) / 2e-6
        np.testing.assert_allclose((values(g) * direction).sum(), difference, rtol=rtol, atol=atol)


UNARY = [
    "sin", "cos", "tan", "arctan", "sinh", "cosh", "tanh", "arcsinh", "exp", "exp2", "expm1", "log",
    "log2", "log10", "log1p", "sqrt", "cbrt", "square", "reciprocal", "negative", "positive",
    "absolute", "abs", "sign", "floor", "ceil", "rint", "trunc", "sinc",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_ufuncs(name):
    check(getattr(np, name), X)


@pytest.mark.parametrize("name", ["arcsin", "arccos", "arctanh"])
def test_unary_ufuncs_of_small_numbers(name):
    check(getattr(np, name), X / 4)


BINARY = [
    "add", "subtract", "multiply", "divide", "true_divide", "power", "maximum", "minimum", "fmax",
    "fmin", "hypot", "arctan2", "logaddexp", "logaddexp2", "mod", "remainder", "fmod",
    "floor_divide",
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_ufuncs(name):
    check(getattr(np, name), X, V)


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "power", "maximum", "arctan2"])
@pytest.mark.parametrize("other", [2, 2.5, V, X, np.float32(2.5)], ids=str)
def test_binary_ufuncs_with_numbers_and_arrays(name, other):
    check(lambda x: getattr(np, name)(x, other), X)
    check(lambda x: getattr(np, name)(other, x), X)


@pytest.mark.parametrize("name", [
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan", "isinf",
    "isfinite", "logical_and", "logical_or", "logical_xor", "logical_not", "signbit", "isclose",
])  # fmt: skip
def test_passive_functions(name):
    function = getattr(np, name)
    count = 1 if name in ("isnan", "isinf", "isfinite", "logical_not", "signbit") else 2
    args = [leaf(X), leaf(V)][:count]
    found = function(*args)
    assert isinstance(found, tg.Tensor)
    assert found.dtype == bool
    assert not found.requires_grad
    np.testing.assert_array_equal(found.numpy(), function(*[X, V][:count]))
    if count == 2:
        mixed = function(X, leaf(V))
        np.testing.assert_array_equal(np.asarray(mixed), function(X, V))


FUNCTIONS = {
    "sum": (lambda x: np.sum(x), X),
    "sum axis": (lambda x: np.sum(x, axis=0, keepdims=True), X),
    "sum axes": (lambda x: np.sum(x, axis=(0, -1)), X),
    "mean": (lambda x: np.mean(x, axis=1), X),
    "prod": (lambda x: np.prod(x, axis=0), X),
    "var": (lambda x: np.var(x, axis=1, ddof=1), X),
    "std": (lambda x: np.std(x), X),
    "max": (lambda x: np.max(x, axis=0), X),
    "amin": (lambda x: np.amin(x), X),
    "ptp": (lambda x: np.ptp(x, axis=1), X),
    "cumsum": (lambda x: np.cumsum(x, axis=1), X),
    "cumprod": (lambda x: np.cumprod(x), X),
    "sort": (lambda x: np.sort(x, axis=1), X),
    "where": (lambda x, v: np.where(np.array([True, False, True]), x, v), X, V),
    "where tracked condition": (lambda x, v: np.where(x > 1.0, x, v), X, V),
    "clip": (lambda x: np.clip(x, 0.5, 2.5), X),
    "concatenate": (lambda x, v: np.concatenate([x, v[None]]), X, V),
    "concatenate axis": (lambda x: np.concatenate((x, x * 2), axis=1), X),
    "concatenate flat": (lambda x, v: np.concatenate([x, v], axis=None), X, V),
    "stack": (lambda x, v: np.stack([x[0], v]), X, V),
    "stack last": (lambda x, v: np.stack([x[0], v], axis=-1), X, V),
    "hstack": (lambda x: np.hstack([x, x]), X),
    "vstack": (lambda x, v: np.vstack([x, v]), X, V),
    "split": (lambda x: np.split(x, 3, axis=1), X),
    "array_split": (lambda x: np.array_split(x, 2, axis=1), X),
    "reshape": (lambda x: np.reshape(x, (3, 2)), X),
    "ravel": (lambda x: np.ravel(x), X),
    "transpose": (lambda x: np.transpose(x), X),
    "moveaxis": (lambda x: np.moveaxis(x, 0, -1), X),
    "swapaxes": (lambda x: np.swapaxes(x, 0, 1), X),
    "squeeze": (lambda x: np.squeeze(x[None]), X),
    "expand_dims": (lambda x: np.expand_dims(x, 1), X),
    "broadcast_to": (lambda v: np.broadcast_to(v, (2, 3)), V),
    "flip": (lambda x: np.flip(x, 1), X),
    "roll": (lambda x: np.roll(x, 2, axis=1), X),
    "tile": (lambda v: np.tile(v, (2, 2)), V),
    "repeat": (lambda v: np.repeat(v, 3), V),
    "take": (lambda x: np.take(x, [2, 0], axis=1), X),
    "take_along_axis": (lambda x: np.take_along_axis(x, np.argsort(X, axis=1), axis=1), X),
    "diagonal": (lambda x: np.diagonal(x), X),
    "diag": (lambda v: np.diag(v), V),
    "trace": (lambda x: np.trace(x), X),
    "triu": (lambda x: np.triu(x), X),
    "tril": (lambda x: np.tril(x, -1), X),
    "pad": (lambda x: np.pad(x, 1), X),
    "copy": (lambda x: np.copy(x), X),
    "round": (lambda x: np.round(x), X),
    "matmul": (lambda x, v: np.matmul(x, v), X, V),
    "dot": (lambda x, v: np.dot(x, v), X, V),
    "inner": (lambda x, v: np.inner(x, v), X, V),
    "outer": (lambda v, w: np.outer(v, w), V, V),
    "vdot": (lambda v, w: np.vdot(v, w), V, V),
    "kron": (lambda v, w: np.kron(v, w), V, S),
    "tensordot": (lambda x, v: np.tensordot(x, v, axes=1), X, V),
    "einsum": (lambda x, v: np.einsum("ij,j->i", x, v), X, V),
    "einsum implicit": (lambda x, v: np.einsum("ij,j", x, v), X, V),
    "norm": (lambda x: np.linalg.norm(x), X),
    "norm axis": (lambda x: np.linalg.norm(x, axis=1), X),
    "norm 1": (lambda v: np.linalg.norm(v, 1), V),
    "inv": (lambda s: np.linalg.inv(s), S),
    "det": (lambda s: np.linalg.det(s), S),
    "slogdet": (lambda s: np.linalg.slogdet(s), S),
    "solve": (lambda s, b: np.linalg.solve(s, b), S, np.array([1.0, 2.0])),
    "cholesky": (lambda s: np.linalg.cholesky(s @ s.T), S),
    "matrix_power": (lambda s: np.linalg.matrix_power(s, 3), S),
    "eigvalsh": (lambda s: np.linalg.eigvalsh(s @ s.T), S),
    "svdvals": (lambda s: np.linalg.svd(s, compute_uv=False), S),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    check(*FUNCTIONS[name])


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("argmax", lambda x: np.argmax(x, axis=0)),
        ("argsort", lambda x: np.argsort(x)),
        ("all", lambda x: np.all(x > 1)),
        ("any", lambda x: np.any(x > 1, axis=1)),
        ("count_nonzero", lambda x: np.count_nonzero(x)),
        ("searchsorted", lambda x: np.searchsorted(np.arange(4.0), x)),
        ("zeros_like", lambda x: np.zeros_like(x)),
        ("nonzero", lambda x: np.nonzero(x > 1)),
        ("shape", lambda x: np.shape(x)),
        ("ndim", lambda x: np.ndim(x)),
        ("size", lambda x: np.size(x)),
        ("result_type", lambda x: np.result_type(x, np.float32)),
        ("allclose", lambda x: np.allclose(x, x)),
        ("array_equal", lambda x: np.array_equal(x, x)),
    ],
)
def test_functions_without_derivative(name, f):
    found, expected = f(leaf(X)), f(X)
    if isinstance(found, tuple) and any(isinstance(t, tg.Tensor) for t in found):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other)
    else:
        np.testing.assert_array_equal(np.asarray(found), expected)


# -- methods of ufuncs ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum", "logaddexp"])
@pytest.mark.parametrize(
    "kwargs", [{}, {"axis": 1}, {"axis": None}, {"axis": 0, "keepdims": True}, {"axis": (0, 1)}]
)
def test_reduce(name, kwargs):
    if name == "logaddexp" and kwargs.get("axis", 0) in (None, (0, 1)):
        pytest.skip("NumPy reduces it along one axis only")
    check(lambda x: getattr(np, name).reduce(x, **kwargs), X)


@pytest.mark.parametrize("name", ["add", "multiply"])
@pytest.mark.parametrize("axis", [0, 1])
def test_accumulate(name, axis):
    check(lambda x: getattr(np, name).accumulate(x, axis), X)
    check(lambda x: getattr(np, name).accumulate(x, axis=axis), X)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "power"])
def test_outer(name):
    check(lambda x, v: getattr(np, name).outer(x, v), X, V)
    check(lambda x: getattr(np, name).outer(x, V), X)
    check(lambda v: getattr(np, name).outer(X, v), V)


def test_add_at():
    x, v = leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0, 30.0])
    y = x * 1
    assert np.add.at(y, [0, 2, 0], v) is None
    np.testing.assert_array_equal(values(y), [41.0, 2.0, 23.0])
    (y * np.array([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 10.0, 100.0])
    np.testing.assert_array_equal(values(v.grad), [1.0, 100.0, 1.0])


@pytest.mark.parametrize("tracked", [True, False])
def test_add_at_with_numbers_and_index_tensors(tracked):
    y = tg.tensor([1.0, 2.0, 3.0], requires_grad=tracked) * 1
    np.add.at(y, tg.tensor([0, 0]), 5.0)
    np.testing.assert_array_equal(values(y), [11.0, 2.0, 3.0])
    assert y.requires_grad is tracked


def test_add_at_of_a_leaf_is_refused():
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="leaf Variable"):
        np.add.at(x, [0], 1.0)
    np.testing.assert_array_equal(values(x), [1.0, 2.0])


def test_other_at_methods():
    t = tg.tensor([1.0, 2.0])
    np.multiply.at(t, [0, 0], 3.0)
    np.testing.assert_array_equal(t.numpy(), [9.0, 2.0])
    with pytest.raises(TypeError, match=r"numpy\.multiply\.at"):
        np.multiply.at(leaf([1.0, 2.0]) * 1, [0], 3.0)
    with pytest.raises(TypeError, match=r"numpy\.add\.at"):
        np.add.at(np.zeros(2), [0], leaf(3.0))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("subtract.reduce", lambda t: np.subtract.reduce(t)),
        ("add.reduceat", lambda t: np.add.reduceat(t, [0, 2])),
        ("subtract.accumulate", lambda t: np.subtract.accumulate(t)),
        ("ldexp", lambda t: np.ldexp(t, 2)),
        ("spacing", lambda t: np.spacing(t)),
        ("float_power", lambda t: np.float_power(t, 2)),
        ("nextafter", lambda t: np.nextafter(t, 1.0)),
        ("add.reduce", lambda t: np.add.reduce(t, initial=1.0)),
        ("add.reduce", lambda t: np.add.reduce(t, where=np.array([True, False, True]))),
    ],
)
def test_what_has_no_derivative_is_refused_or_passive(name, call):
    with pytest.raises(TypeError, match=f"numpy.{name}") as caught:
        call(leaf(V))
    assert "requires grad" in str(caught.value)
    found = call(tg.tensor(V))
    assert isinstance(found, tg.Tensor)
    np.testing.assert_array_equal(found.numpy(), call(V))


# -- keywords of ufuncs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs",
    [{"dtype": np.float32}, {"casting": "unsafe"}, {"order": "F"}, {"subok": False}],
    ids=lambda kwargs: next(iter(kwargs)),
)
@pytest.mark.parametrize("tracked", [True, False])
def test_keywords_are_refused_or_right(kwargs, tracked):
    x = tg.tensor(V, requires_grad=tracked)
    expected = np.multiply(V, 2.0, **kwargs)
    try:
        found = np.multiply(x, 2.0, **kwargs)
    except TypeError as error:
        assert tracked
        assert next(iter(kwargs)) in str(error)  # noqa: PT017
        assert "numpy.multiply" in str(error)  # noqa: PT017
        return
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(values(found), expected)
    assert found.requires_grad is tracked


def test_dtype_of_reductions_is_refused_or_right():
    for f in (
        lambda x: np.sum(x, dtype=np.float32),
        lambda x: np.add.reduce(x, dtype=np.float32),
        lambda x: np.mean(x, dtype=np.float32),
        lambda x: np.cumsum(x, dtype=np.float32),
    ):
        try:
            found = f(leaf(V))
        except TypeError as error:
            assert "dtype" in str(error)  # noqa: PT017
        else:
            assert found.dtype == np.float32


def test_unknown_keywords():
    with pytest.raises(TypeError):
        np.sin(leaf(V), axis=0)
    with pytest.raises(TypeError):
        np.sum(leaf(V), axes=0)


@pytest.mark.parametrize("tracked", [True, False])
def test_where_without_out_is_refused(tracked):
    with pytest.raises(TypeError, match="where"):
        np.sin(tg.tensor(V, requires_grad=tracked), where=np.array([True, False, True]))


def test_out_of_passive_tensors():
    t, out = tg.tensor(V), tg.zeros(3)
    assert np.sin(t, out=out) is out
    np.testing.assert_allclose(out.numpy(), np.sin(V))
    array = np.zeros(3)
    np.sin(t, out=array)
    np.testing.assert_allclose(array, np.sin(V))
    np.sin(V, out=out)
    np.testing.assert_allclose(out.numpy(), np.sin(V))


def test_out_returns_the_array_it_was_given():
    array = np.zeros(3)
    found = np.sin(tg.tensor(V), out=array)
    assert np.shares_memory(np.asarray(found), array)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: np.sum(x, axis=0, out=out),
        lambda x, out: np.cumsum(x, out=out),
        lambda x, out: np.matmul(x[None], x, out=out),
        lambda x, out: np.concatenate([x, x], out=out),
    ],
)
def test_out_of_functions_is_refused_or_right(call):
    """`out` of functions that are no elementwise ufuncs."""
    x = leaf(V)
    expected_shape = call(V, None).shape if np.ndim(call(V, None)) else ()
    out = tg.zeros(expected_shape)
    try:
        found = call(x, out)
    except TypeError as error:
        assert str(error)  # noqa: PT017
    else:
        assert found is out
        np.testing.assert_allclose(values(out), call(V, None))
        assert out.requires_grad


def test_operators_of_arrays_in_place():
    array = V.copy()
    array *= tg.tensor(2.0)
    np.testing.assert_array_equal(np.asarray(array), V * 2)


# -- unknown functions ----------------------------------------------------------------------------

UNKNOWN = {
    "numpy.poly": lambda t: np.poly(t),
    "numpy.polyder": lambda t: np.polyder(t),
    "numpy.partition": lambda t: np.partition(t, 1),
    "numpy.apply_over_axes": lambda t: np.apply_over_axes(np.sum, np.outer(t, t), [0]),
    "numpy.polyadd": lambda t: np.polyadd(t, [1.0, 2.0]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_functions_are_refused_if_gradients_are_needed(name):
    with pytest.raises(TypeError) as caught:
        UNKNOWN[name](leaf(V))
    assert name.rsplit(".", 1)[1] in str(caught.value)
    assert "requires grad" in str(caught.value)


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_functions_work_on_values(name):
    found = UNKNOWN[name](tg.tensor(V))
    expected = UNKNOWN[name](V)
    if isinstance(expected, (np.ndarray, np.generic)):
        assert isinstance(found, tg.Tensor)
    np.testing.assert_allclose(np.asarray(found), expected)
    assert not getattr(found, "requires_grad", False)


def test_unknown_functions_given_gradients_in_containers_and_keywords():
    with pytest.raises((TypeError, RuntimeError), match="requires grad"):
        np.polyadd([0.0, 1.0], [leaf(1.0), leaf(2.0)])
    with pytest.raises(TypeError, match="polyadd"):
        np.polyadd([0.0, 1.0], a2=leaf([1.0, 2.0]))


def test_unknown_functions_under_no_grad_ask_for_detach():
    with tg.no_grad():
        y = leaf(V) * 2
        np.testing.assert_allclose(np.unwrap(y).numpy(), np.unwrap(V * 2))


# -- results and checks ---------------------------------------------------------------------------


def test_testing_functions():
    t = tg.tensor(V)
    np.testing.assert_allclose(t, V)
    np.testing.assert_array_equal(t, V)
    np.testing.assert_array_almost_equal(V, t)
    np.testing.assert_equal(t.shape, (3,))
    assert np.allclose(t, V)
    assert np.array_equal(t, V)
    assert np.array_equal(V, t)
    assert np.isclose(t, V).all()
    assert not np.allclose(t, V + 1)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(t, V + 1)


def test_results_are_tensors():
    t = tg.tensor(X)
    for y in (np.sum(t), np.max(t), np.sin(t[0, 0]), np.dot(t[0], t[1]), np.linalg.norm(t)):
        assert isinstance(y, tg.Tensor)
        assert y.shape == ()


def test_mixed_with_arrays():
    x = leaf(V)
    for y in (
        np.concatenate([V, x]),
        np.stack([V, x]),
        np.where(V > 1, V, x),
        np.dot(X, x),
        np.einsum("ij,j->i", X, x),
        np.maximum(V, x),
    ):
        assert isinstance(y, tg.Tensor)
        assert y.requires_grad


def test_array_priority():
    x = leaf(V)
    for y in (V * x, V @ x, V + x, V**x, V - x, V / x, np.float64(2.0) * x, X @ x):
        assert isinstance(y, tg.Tensor)
        assert y.requires_grad


def test_copyto():
    x = leaf(V)
    t = tg.zeros(3)
    np.copyto(t, x)
    (t * 2).sum().backward()
    np.testing.assert_array_equal(values(x.grad), 2.0)
    with pytest.raises(TypeError, match="copyto"):
        np.copyto(np.zeros(3), x)


def test_copyto_where():
    x = leaf(V)
    t = tg.zeros(3)
    np.copyto(t, x, where=np.array([True, False, True]))
    np.testing.assert_array_equal(values(t), [0.6, 0.0, 2.3])
    t.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 0.0, 1.0])


def test_values_from_a_passive_tensor_to_an_array():
    array = np.zeros(3)
    np.copyto(array, tg.tensor(V))
    np.testing.assert_array_equal(array, V)
    array[:] = tg.tensor(V) * 2
    np.testing.assert_array_equal(array, V * 2)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        array[:] = leaf(V)


def test_arrays_indexed_by_tensors():
    np.testing.assert_array_equal(V[tg.tensor([2, 0])], V[[2, 0]])
    np.testing.assert_array_equal(V[np.asarray(tg.tensor(V) > 1)], V[V > 1])


def test_ufuncs_of_python_functions_may_have_derivatives():
    square = np.frompyfunc(lambda v: v * v, 1, 1)
    with pytest.raises(TypeError, match="of a tensor that requires grad is not supported"):
        square(tg.tensor([1.0, 2.0], requires_grad=True))
    assert square(tg.tensor([1.0, 2.0])).tolist() == [1.0, 4.0]


def test_views_that_tapegrad_does_not_know_are_copies():
    """A write to the tensor would change them without their history."""
    t = tg.tensor([1.0, 2.0, 3.0])
    windows = np.lib.stride_tricks.sliding_window_view(t, 2)
    x = tg.tensor([1.0, 1.0], requires_grad=True)
    y = (windows * x).sum()
    t[:] = 0.0
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [3.0, 5.0])
    assert not np.shares_memory(np.rollaxis(tg.ones((2, 2)), 1).numpy(), t.numpy())


@pytest.mark.parametrize("name", ["add", "multiply", "arctan2"])
def test_outer_in_batches_and_recordings(name):
    def total(x):
        return tg.sum(
            getattr(np, name).outer(x, np.sin(x[:2]) + 2.0) * np.arange(6.0).reshape(3, 2)
        )

    points = np.array([[0.4, 0.7, 1.1], [0.1, -0.2, 0.3]])
    want = [tg.grad(total)(point) for point in points]
    jitted = tg.jit(total)
    assert np.allclose(tg.vmap(tg.grad(total))(points), want, rtol=1e-12)
    assert np.allclose([tg.grad(jitted)(point) for point in points], want, rtol=1e-12)
    assert "op by op" not in jitted.inspect(points[0])
