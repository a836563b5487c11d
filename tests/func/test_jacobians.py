"""`jacobian`, `jacrev` and `jacfwd`, by rows and by columns, and `linearize`."""

import pickle

import numpy as np
import pytest
from differences import M, V, numeric_jacobian, values

import tapegrad as tg
from tapegrad.autograd.engine.history import size_of_batches


@pytest.fixture(params=[tg.jacobian, tg.jacrev, tg.jacfwd], ids=lambda f: f.__name__)
def transform(request):
    return request.param


@pytest.mark.parametrize(
    ("f", "plain", "at"),
    [
        (lambda x: tg.sin(x), np.sin, V),
        (lambda x: tg.outer(x, x), lambda x: np.outer(x, x), V),
        (lambda x: tg.sum(x**2), lambda x: np.sum(x**2), V),
        (lambda x: tg.sum(x, axis=0) ** 2, lambda x: np.sum(x, 0) ** 2, M),
        (lambda x: x.T @ x, lambda x: x.T @ x, M),
        (
            lambda x: x * np.arange(12.0).reshape(3, 4),
            lambda x: x * np.arange(12.0).reshape(3, 4),
            2.0,
        ),
        (lambda x: tg.stack([x, x**2, tg.sin(x)]), lambda x: np.stack([x, x**2, np.sin(x)]), 0.7),
        (lambda x: tg.sin(x), np.sin, 0.7),
        (lambda x: tg.tile(tg.exp(x), 5), lambda x: np.tile(np.exp(x), 5), V),
        (lambda x: x[:0], lambda x: x[:0], V),
    ],
    ids=[
        "square",
        "tall",
        "scalar",
        "wide",
        "matrix",
        "very tall",
        "of a scalar",
        "both",
        "tile",
        "empty",
    ],
)
def test_jacobian(transform, f, plain, at):
    found = transform(f)(at)
    expected = numeric_jacobian(plain, at)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert isinstance(found, (np.ndarray, np.float64))


@pytest.mark.parametrize("repeats", [1, 5])
def test_jacobian_by_several_arguments(transform, repeats):
    """By rows, and by columns where the result is tall."""

    def f(x, y):
        return tg.tile(tg.concatenate([x * y[0, 0], tg.sum(y) * x]), repeats)

    def plain(x, y):
        return np.tile(np.concatenate([x * y[0, 0], np.sum(y) * x]), repeats)

    jx, jy = transform(f, (0, 1))(V, M)
    np.testing.assert_allclose(values(jx), numeric_jacobian(lambda x: plain(x, M), V), atol=1e-8)
    np.testing.assert_allclose(values(jy), numeric_jacobian(lambda y: plain(V, y), M), atol=1e-8)
    only = transform(f, 1)(V, M)
    np.testing.assert_array_equal(values(only), values(jy))
    last = transform(f, -1)(V, M)
    np.testing.assert_array_equal(values(last), values(jy))


@pytest.mark.parametrize("repeats", [1, 7])
def test_jacobian_ignoring_one_argument(transform, repeats):
    jx, jy = transform(lambda x, y: tg.tile(x, repeats), (0, 1))(V, M)
    np.testing.assert_array_equal(values(jx), np.tile(np.eye(3), (repeats, 1)))
    np.testing.assert_array_equal(values(jy), np.zeros((3 * repeats, 2, 3)))


def test_jacobian_of_mixed_dtypes(transform):
    jx, jy = transform(lambda x, y: x * y, (0, 1))(V.astype(np.float32), V)
    assert jx.dtype == np.float32
    assert jy.dtype == np.float64
    np.testing.assert_allclose(values(jx), np.diag(V))


def test_jacobian_of_several_results(transform):
    one, two = transform(lambda x: (x, tg.sum(x**2)))(V)
    np.testing.assert_array_equal(one, np.eye(3))
    np.testing.assert_array_equal(two, 2 * V)


def test_several_arguments_and_results_in_containers(transform):
    pytest.importorskip("optree")
    found = transform(lambda p: {"a": p["x"] * p["s"], "b": tg.sum(p["x"])})({"x": V, "s": 2.0})
    np.testing.assert_array_equal(found["a"]["x"], 2 * np.eye(3))
    np.testing.assert_array_equal(found["a"]["s"], V)
    np.testing.assert_array_equal(found["b"]["x"], np.ones(3))
    assert found["b"]["s"] == 0.0


def test_nested(transform):
    found = transform(transform(lambda x: x**3))(V)
    expected = np.zeros((3, 3, 3))
    expected[np.arange(3), np.arange(3), np.arange(3)] = 6 * V
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)
    (g,) = tg.vjp(lambda x: transform(tg.sin)(x).sum(), V)[1](1.0)
    np.testing.assert_allclose(g, -np.sin(V), rtol=1e-14)


def test_of_outside_tensors(transform):
    w = tg.tensor(V, requires_grad=True)
    found = transform(lambda x: x * x * w)(M[0])
    assert isinstance(found, tg.Tensor)
    found.sum().backward()
    np.testing.assert_allclose(w.grad, 2 * M[0])


def test_auxiliary_results_and_pickling(transform):
    found, aux = transform(lambda x: (x * x, {"n": 3}), has_aux=True)(V)
    np.testing.assert_array_equal(found, np.diag(2 * V))
    assert aux == {"n": 3}
    again = pickle.loads(pickle.dumps(transform(np.sin)))
    np.testing.assert_allclose(again(V), np.diag(np.cos(V)))


def test_of_compiled_functions(transform):
    f = tg.njit(compiled_rows)
    np.testing.assert_allclose(transform(f)(V), transform(compiled_rows)(V), rtol=1e-14)


def compiled_rows(x):
    return np.concatenate((x * x[0], np.sin(x[1:])))


def test_functions_of_users(transform):
    class Cube(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    np.testing.assert_allclose(transform(Cube.apply)(V), np.diag(3 * V**2))


def test_complex_results():
    def f(x):
        return tg.exp(1j * x)

    for transform in (tg.jacobian, tg.jacrev):
        with pytest.raises(TypeError, match=f"{transform.__name__}: the function returned numbers"):
            transform(f)(V)
    np.testing.assert_allclose(tg.jacfwd(f)(V), np.diag(1j * np.exp(1j * V)), rtol=1e-14)
    z = V + 1j
    np.testing.assert_allclose(tg.jacfwd(lambda z: z * z)(z), np.diag(2 * z), rtol=1e-14)
    with pytest.raises(TypeError, match="jacfwd: a real result has two derivatives"):
        tg.jacfwd(lambda z: tg.abs(z))(z)


def test_batches_of_unit_directions_are_bounded():
    """A tall Jacobian of a large array does not need a square of unit arrays."""
    x = tg.zeros(1 << 19, requires_grad=True)
    assert size_of_batches([(x * x)._own], [x._own], 1000, False) == 2
    y = x[:10] * 1.0
    assert size_of_batches([y._own], [x._own], 10, True) == 2  # the largest record counts
    assert size_of_batches([(y * y)._own], [y._own], 10, True) == 10  # not what is before the input


def test_what_does_not_depend_warns(transform):
    with pytest.warns(tg.DetachedWarning, match=f"{transform.__name__}: the result does not"):
        np.testing.assert_array_equal(transform(lambda x: tg.ones(2))(V), np.zeros((2, 3)))


# -- linearize -------------------------------------------------------------------------------------


def energy(x, y):
    return tg.sin(y @ x) * x[0], tg.sum(y * y)


def test_linearize_beside_jvp():
    value, pushforward = tg.linearize(energy, V, M)
    calls = tg.jvp(energy, (0, 1))
    for k in range(3):
        tangents = np.cos(V + k), np.sin(M * k)
        expected, dots = calls(V, M, *tangents)
        found = pushforward(*tangents)
        for one, two in zip((*value, *found), (*expected, *dots), strict=True):
            np.testing.assert_array_equal(one, two)
            assert isinstance(one, (np.ndarray, np.float64))


def test_linearize_calls_the_function_once():
    calls = []

    def f(x):
        calls.append(None)
        return x * x

    value, pushforward, aux = tg.linearize(lambda x: (f(x), "aux"), V, has_aux=True)
    np.testing.assert_array_equal(value, V * V)
    for unit in np.eye(3):
        np.testing.assert_array_equal(pushforward(unit), 2 * V * unit)
    assert len(calls) == 1
    assert aux == "aux"


def test_linearize_is_differentiated():
    t = tg.tensor(V, requires_grad=True)
    _, pushforward = tg.linearize(tg.sin, V)
    pushforward(t).sum().backward()
    np.testing.assert_allclose(t.grad, np.cos(V))
    x = tg.tensor(V, requires_grad=True)
    _, pushforward = tg.linearize(tg.sin, x)
    pushforward(np.ones(3)).sum().backward()
    np.testing.assert_allclose(x.grad, -np.sin(V))
    found = tg.grad(lambda x: tg.linearize(lambda y: y**3, x)[1](np.ones(3)).sum())(V)
    np.testing.assert_allclose(found, 6 * V)


@pytest.mark.parametrize("transform", [tg.vjp, tg.linearize])
def test_primals_may_be_overwritten_afterwards(transform):
    x = V.copy()
    _, derivative = transform(lambda x: x * x, x)
    x += 10.0
    found = derivative(np.ones(3))
    np.testing.assert_array_equal(found[0] if transform is tg.vjp else found, 2 * V)


def test_linearize_refuses_what_does_not_fit():
    _, pushforward = tg.linearize(lambda x, y: x @ y, M, V)
    with pytest.raises(ValueError, match="linearize: got 1 tangents for 2 differentiated"):
        pushforward(M)
    with pytest.raises(ValueError, match=r"linearize: a tangent has shape \[2\], and its"):
        pushforward(M, V[:2])
    with pytest.raises(TypeError, match="linearize: a tangent has dtype complex128"):
        pushforward(M, 1j * V)
