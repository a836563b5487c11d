"""`tg.jvp` of functions of tensors: a walk over what they recorded, beside differences."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, grad, tangents

A = np.array([0.3, 0.7, 1.1])
T = np.array([1.0, -0.5, 2.0])
S = np.array([[2.0, 0.3], [0.3, 1.0]])


def by_differences(f, x, t, h=1e-5):
    near, far = (np.asarray(f(x + k * h * t)) - np.asarray(f(x - k * h * t)) for k in (1, 2))
    return (8 * near - far) / (12 * h)


@tg.njit
def compiled(x):
    return np.sum(x * x * x)


@tg.njit
def compiled_array(x):
    return x * x[0]


class Pair(Function):
    """Two outputs."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y * y

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * y + h, g * x + 2 * h * y


class Nothing(Function):
    """No gradient with respect to the first argument."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return None, g * x


def written_in_place(x):
    y = x * 1.0
    y[1:] *= x[:-1]
    y += x[0]
    view = y[::-1]
    view[0] = x[1] ** 2
    return y * view


def written_by_out(x):
    y = tg.zeros(3)
    np.multiply(x, x, out=y)
    np.add(y, x, out=y)
    return np.sin(y)


def in_a_loop(x):
    out = tg.zeros(3)
    for k in range(3):
        out[k] = np.exp(x[k]) * x[(k + 1) % 3]
    return out


def through_outputs(x):
    p, q = Pair.apply(x, np.sin(x))
    return p * q + Pair.apply(x, x)[1]


def of_matrices(x):
    m = S * x[0] + np.diag(x[:2])
    w, v = np.linalg.eigh(m)
    _, r = np.linalg.qr(m)
    s = np.linalg.svd(m)[1]
    return np.concatenate([w, (v * v).ravel(), np.abs(r).ravel(), s, np.linalg.solve(m, x[1:])])


def of_complex_numbers(x):
    z = np.exp(1j * x) * x[0]
    return np.concatenate([np.abs(z), z.real, np.angle(z), np.fft.rfft(x).imag])


PROGRAMS = {
    "in place": written_in_place,
    "out": written_by_out,
    "a loop": in_a_loop,
    "several outputs": through_outputs,
    "matrices": of_matrices,
    "complex": of_complex_numbers,
    "a compiled number": lambda x: compiled(x) * x,
    "a compiled array": lambda x: compiled_array(x) + x,
    "a view": lambda x: x[::2].reshape(2, 1).T,
    "broadcasting": lambda x: x[:, None] * np.ones((3, 2)) + x.sum(),
    "reductions": lambda x: np.stack([x.max(), x.prod(), np.var(x), np.median(x)]),
    "indices": lambda x: x[np.array([0, 0, 2])] * np.sort(x)[::-1] + np.cumsum(x),
    "the argument": lambda x: x,
    "twice": lambda x: x * x + x,
    "float32": lambda x: (x.astype(np.float32) * np.float32(2.0)).astype(np.float64),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_beside_differences(name):
    f = PROGRAMS[name]
    value, tangent = tg.jvp(f)(A, T)
    tolerance = 1e-3 if name == "float32" else 1e-8
    plain = np.asarray(f(tg.tensor(A)))
    expected = by_differences(
        lambda x: f(tg.tensor(x)).numpy(), A, T, 1e-2 if name == "float32" else 1e-5
    )
    np.testing.assert_allclose(value, plain, rtol=1e-14)
    np.testing.assert_allclose(tangent, expected, rtol=tolerance, atol=tolerance)
    assert np.shape(tangent) == np.shape(value)


@pytest.mark.parametrize("name", sorted({*PROGRAMS} - {"float32", "complex"}))
def test_nested(name):
    """A gradient of a tangent, and a tangent of a gradient: one is the other's transpose."""
    f = PROGRAMS[name]
    total = lambda x: tg.sum(np.sin(f(x)))  # noqa: E731
    product = tg.jvp(tg.grad(total))(A, T)[1]
    np.testing.assert_allclose(product, tg.hvp(total)(A, T), rtol=1e-10, atol=1e-10)
    found = tg.grad(lambda x: tg.jvp(total)(x, tg.tensor(T))[1])(A)
    np.testing.assert_allclose(found, product, rtol=1e-10, atol=1e-10)


def test_a_gradient_that_a_function_leaves_out():
    """By a Function's rule for cotangents there is no slope with respect to x."""
    _, tangent = tg.jvp(lambda x: Nothing.apply(x, np.sin(x)))(A, T)
    np.testing.assert_allclose(tangent, A * np.cos(A) * T, rtol=1e-15)
    _, tangent = tg.jvp(lambda x: Nothing.apply(x, tg.tensor(A)) * 2.0)(A, T)
    assert tangent.tolist() == [0.0, 0.0, 0.0]


def test_several_arguments():
    def f(x, y):
        return x * y + np.sum(y)

    _, tangent = tg.jvp(f, argnums=(0, 1))(A, T, T, A)
    np.testing.assert_allclose(tangent, T * T + A * A + A.sum(), rtol=1e-15)
    _, tangent = tg.jvp(f, argnums=1)(A, T, A)
    np.testing.assert_allclose(tangent, A * A + A.sum(), rtol=1e-15)


def test_tangents_are_arrays_of_their_own():
    given = T.copy()
    _, tangent = tg.jvp(lambda x: x)(A, given)
    tangent[0] = 9.0
    assert given[0] == 1.0
    _, tangent = tg.jvp(lambda x: np.broadcast_to(x[0], (3,)))(A, T)
    tangent[0] = 9.0
    assert tangent.tolist() == [9.0, 1.0, 1.0]


def test_a_tangent_that_is_differentiated():
    t = tg.tensor(T, requires_grad=True)
    _, tangent = tg.jvp(lambda x: x * x)(A, t)
    (found,) = grad(tangent.sum(), t)
    np.testing.assert_allclose(found.numpy(), 2 * A, rtol=1e-15)


def test_a_saved_value_that_was_overwritten():
    def f(x):
        y = x * 1.0
        z = np.sin(y)
        with tg.no_grad():
            y *= 2.0
        return z

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tg.jvp(f)(A, T)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tg.grad(lambda x: f(x).sum())(A)


def test_what_is_detached_is_constant():
    _, tangent = tg.jvp(lambda x: x * x.detach())(A, T)
    np.testing.assert_array_equal(tangent, A * T)


def test_packed_values():
    with tg.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().tolist(), tg.tensor):
        _, tangent = tg.jvp(lambda x: np.sin(x) * x)(A, T)
    np.testing.assert_allclose(tangent, (np.cos(A) * A + np.sin(A)) * T, rtol=1e-15)


@pytest.mark.parametrize("shape", [(2,), (3, 1), ()])
def test_shape_of_a_tangent(shape):
    with pytest.raises(ValueError, match=r"jvp: a tangent has shape .*, and its argument \[3\]"):
        tg.jvp(lambda x: x)(A, np.ones(shape))


def test_large_arrays():
    """Blocks of compiled products with partials, and those of one shape and of numbers."""
    x, t = np.linspace(0.1, 1.0, 5000), np.linspace(-1.0, 1.0, 5000)
    for dtype in (np.float64, np.float32):
        with warnings.catch_warnings(action="error"):
            _, tangent = tg.jvp(lambda x: np.sin(x) * x / 2.0 + np.maximum(x, 0.5) ** 1.5)(
                x.astype(dtype), t.astype(dtype)
            )
        slope = (np.cos(x) * x + np.sin(x)) / 2.0 + np.where(x > 0.5, 1.5 * np.sqrt(x), 0.0)
        assert tangent.dtype == dtype
        np.testing.assert_allclose(tangent, slope * t, rtol=1e-5 if dtype == np.float32 else 1e-13)


class TestHistoryOfTangents:
    """What is differentiated with respect to tangents and vectors alone."""

    def test_of_jvp(self):
        f = lambda x: x**3  # noqa: E731
        slopes = np.diag(3 * A * A)
        found = tg.jacobian(lambda t: tg.jvp(f)(A, t)[1])(T)
        np.testing.assert_allclose(found, slopes, rtol=1e-14)
        found = tg.grad(lambda t: tg.jvp(f)(A, t)[1].sum())(T)
        np.testing.assert_allclose(found, 3 * A * A, rtol=1e-14)
        found = tg.jvp(lambda t: tg.jvp(f)(A, t)[1])(T, np.ones(3))[1]
        np.testing.assert_allclose(found, 3 * A * A, rtol=1e-14)

    def test_of_hvp(self):
        found = tg.grad(lambda t: tg.hvp(lambda x: (x**3).sum())(A, t).sum())(T)
        np.testing.assert_allclose(found, 6 * A, rtol=1e-14)
        t = tg.tensor(T, requires_grad=True)
        assert tg.hvp(lambda x: (x**3).sum())(A, t).requires_grad
        with tg.no_grad():
            assert not tg.hvp(lambda x: (x**3).sum())(A, t).requires_grad


class TestBackwardsThatCannotBeDifferentiated:
    class Once(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a**3

        @staticmethod
        @tg.autograd.function.once_differentiable
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return 3 * a * a * g

    class Detaching(Once):
        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return tg.as_tensor(3 * a.detach().numpy() ** 2 * g.detach().numpy())

    @pytest.mark.parametrize("function", [Once, Detaching])
    def test_refused(self, function):
        name = function.__name__
        with pytest.raises(RuntimeError, match=f"backward of {name}.*does not depend on"):
            tg.jvp(function.apply)(A, T)


def test_a_complex_tangent_of_a_real_argument():
    with pytest.raises(TypeError, match=r"tangent has dtype complex128, and its argument float64"):
        tg.jvp(lambda x: x * 2)(A, 1j * T)


def test_a_result_that_is_returned_twice():
    _, (one, two) = tg.jvp(lambda x: [y := x * 2.0, y])(A, T)
    one[0] = 9.0
    np.testing.assert_array_equal(two, 2.0 * T)


def test_arguments_by_name():
    _, tangent = tg.jvp(lambda x, k=1.0: x * k)(A, T, k=3.0)
    np.testing.assert_array_equal(tangent, 3.0 * T)


# -- walks that compiled code computes -------------------------------------------------------------


@pytest.fixture
def compiled_walks(monkeypatch):
    """Walks over few records are compiled, too."""
    monkeypatch.setattr(tangents, "_FEW", 0)


def small(x, y, steps=9000):
    """More records than one segment of the tape has; each number comes from both inputs."""
    for k in range(steps // 3):
        x = tg.sin(x) * y + 0.01 * k / steps
        y = tg.where(x > 0.5, y, y * 0.999)
    return x * y


def of_all_kinds(x, y):
    """Records for Python between those for compiled code, numbers, broadcasting and casts."""
    a = 2.0 * x - y / (1.0 + x**2)
    b = tg.cumsum(a) * tg.exp(-a) + tg.maximum(a, y)
    c = tg.outer(b, a).sum(axis=0) * 0.1 + b.astype(np.float32) * 3.0
    d = tg.stack([c, a])[1] * tg.where(b > 0.4, c, tg.tanh(y))
    return tg.logsumexp(d) * c + (a * tg.ones(3)) * d[::-1]


def large(x, y):
    wide = tg.broadcast_to(x, (3000, 3)) * y
    return (tg.sin(wide) * wide).sum(axis=0) * x


@pytest.mark.parametrize("f", [small, of_all_kinds, large])
@pytest.mark.parametrize("numbers", [0, 1, (0, 1)])
def test_walks_of_arrays_are_those_of_tensors(f, numbers, compiled_walks):
    x, y = np.array([0.3, 0.7, 1.1]), np.array([0.9, 1.1, 0.4])
    given = [(T, 0.5 * T)[n] for n in ((numbers,) if isinstance(numbers, int) else numbers)]
    found = tg.jvp(f, numbers)(x, y, *given)[1]
    recorded = [tg.tensor(t, requires_grad=True) for t in given]  # so that the walk is recorded
    np.testing.assert_allclose(found, tg.jvp(f, numbers)(x, y, *recorded)[1].tolist(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_walks_of_other_dtypes(dtype, compiled_walks):
    x = np.array([0.3, 0.7, 1.1], dtype)
    found = tg.jvp(lambda x: tg.sin(x * x + 1.0) * 2.0)(x, np.ones(3, dtype))[1]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 4.0 * x * np.cos(x * x + 1.0), rtol=1e-6)


def test_tangents_of_intermediate_tensors(compiled_walks):
    x = tg.tensor([0.3, 0.7], requires_grad=True)
    y = tg.sin(x) * 2.0
    _, pushed = tg.linearize(lambda u: tg.exp(u.T) * u[0], np.array([[0.3, 0.7], [0.1, 0.2]]))
    t = np.arange(4.0).reshape(2, 2)
    np.testing.assert_allclose(pushed(t.T.copy().T), pushed(t))
    rows = tg.jvp(lambda u: u * y)(y, tg.tensor([1.0, 1.0]))[1]
    np.testing.assert_allclose(rows.tolist(), y.tolist())


def test_freed_values_of_a_walk(compiled_walks):
    def freeing(u):
        z = tg.sin(u) * u
        z.sum().backward()
        return z

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        tg.jvp(freeing)(A, T)


def test_infinite_and_choosing_partials(compiled_walks):
    x = np.array([0.0, 1.0, np.inf])
    t = np.array([np.inf, np.nan, 1.0])
    found = tg.jvp(lambda x: tg.maximum(x, 2.0) + tg.sqrt(x))(x, np.ones(3))[1]
    np.testing.assert_array_equal(found, [np.inf, 0.5, 1.0])
    np.testing.assert_array_equal(tg.jvp(lambda x: tg.maximum(x, 2.0))(x, t)[1], [0.0, 0.0, 1.0])
