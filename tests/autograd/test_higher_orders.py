"""`autograd.grad` with `create_graph`: derivatives of derivatives."""

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg
from tapegrad.autograd import grad

# a function and its derivatives of orders 0 to 3 at x, as plain functions
FUNCTIONS = {
    "sin": (lambda x: x.sin(), np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)),
    "exp": (lambda x: x.exp(), np.exp, np.exp, np.exp, np.exp),
    "exp_2x": (
        lambda x: (x * 2).exp(),
        lambda x: np.exp(2 * x),
        lambda x: 2 * np.exp(2 * x),
        lambda x: 4 * np.exp(2 * x),
        lambda x: 8 * np.exp(2 * x),
    ),
    "log": (lambda x: x.log(), np.log, lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3),
    "power": (
        lambda x: x**4,
        lambda x: x**4,
        lambda x: 4 * x**3,
        lambda x: 12 * x**2,
        lambda x: 24 * x,
    ),
    "product": (
        lambda x: x * x * x,
        lambda x: x**3,
        lambda x: 3 * x**2,
        lambda x: 6 * x,
        lambda x: np.full_like(x, 6.0),
    ),
    "reciprocal": (
        lambda x: 1 / x,
        lambda x: 1 / x,
        lambda x: -1 / x**2,
        lambda x: 2 / x**3,
        lambda x: -6 / x**4,
    ),
    "sqrt": (
        lambda x: x.sqrt(),
        np.sqrt,
        lambda x: 0.5 * x**-0.5,
        lambda x: -0.25 * x**-1.5,
        lambda x: 0.375 * x**-2.5,
    ),
    "base": (
        lambda x: 2.0**x,
        lambda x: 2.0**x,
        lambda x: np.log(2) * 2**x,
        lambda x: np.log(2) ** 2 * 2**x,
        lambda x: np.log(2) ** 3 * 2**x,
    ),
    "sin_times_x": (
        lambda x: x.sin() * x,
        lambda x: np.sin(x) * x,
        lambda x: np.sin(x) + x * np.cos(x),
        lambda x: 2 * np.cos(x) - x * np.sin(x),
        lambda x: -3 * np.sin(x) - x * np.cos(x),
    ),
    "linear": (
        lambda x: x * 3 + 1,
        lambda x: 3 * x + 1,
        lambda x: np.full_like(x, 3.0),
        np.zeros_like,
        np.zeros_like,
    ),
}


class TestHigherOrders:
    """Gradients made with `create_graph` are differentiable to every order."""

    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize("point", [0.7, [0.3, 1.2, 2.5]], ids=["scalar", "vector"])
    def test_derivatives_to_third_order(self, name, point):
        f, *exact = FUNCTIONS[name]
        x = leaf(point)
        y = f(x)
        np.testing.assert_allclose(values(y), exact[0](np.asarray(point)), rtol=1e-12)
        for order in (1, 2, 3):
            if not y.requires_grad:
                np.testing.assert_array_equal(exact[order](np.asarray(point)), 0.0)
                return
            found = grad(y.sum(), x, create_graph=order < 3, materialize_grads=True)
            y = found[0]
            np.testing.assert_allclose(
                values(y), exact[order](np.asarray(point)), rtol=1e-10, atol=1e-12
            )
            assert y.shape == x.shape

    @pytest.mark.parametrize(
        ("name", "f"),
        [
            ("matmul", lambda x: ((x @ x) @ x).sum()),
            ("reduction", lambda x: (x.sum(axis=0) ** 3).sum()),
            ("mean", lambda x: (x.mean(axis=1) ** 4).sum()),
            ("logsumexp", lambda x: (tg.logsumexp(x, axis=1) ** 2).sum()),
            ("prod", lambda x: tg.prod(x) ** 2),
            ("views", lambda x: (x[0] * x.T[1] * x.reshape(-1)[::4]).sum()),
            ("gather", lambda x: (x[np.array([0, 0, 2])] ** 3).sum()),
            ("concatenate", lambda x: (tg.concatenate([x, x * x]) ** 2).sum()),
            ("inverse", lambda x: tg.linalg.inv(x + 5 * np.eye(3)).sum()),
            ("det", lambda x: tg.linalg.det(x + np.eye(3))),
            ("norm", lambda x: tg.linalg.norm(x)),
            ("cumsum", lambda x: (tg.cumsum(x, axis=0) ** 3).sum()),
            ("where", lambda x: tg.where(np.eye(3, dtype=bool), x**3, x.sin()).sum()),
            ("broadcast", lambda x: ((x[0] * x[:, :1]) ** 2).sum()),
            ("einsum", lambda x: tg.einsum("ij,jk,kl->", x, x, x)),
        ],
    )
    def test_third_order_along_directions(self, name, f):
        rng = np.random.default_rng(7)
        start = rng.uniform(0.2, 1.0, (3, 3))
        u, v, w = (rng.standard_normal((3, 3)) for _ in range(3))

        def second(at):
            x = tg.tensor(at, requires_grad=True)
            (g,) = grad(f(x), x, create_graph=True)
            (h,) = grad((g * u).sum(), x, create_graph=True)
            return x, (h * v).sum()

        x, value = second(start)
        (third,) = grad(value, x)
        eps = 1e-5
        up, down = second(start + eps * w)[1], second(start - eps * w)[1]
        difference = (up.item() - down.item()) / (2 * eps)
        np.testing.assert_allclose((values(third) * w).sum(), difference, rtol=2e-5, atol=1e-6)

    def test_mixed_second_derivatives_agree(self):
        x, y = leaf(0.5), leaf(1.5)
        z = (x * y).sin() * x.exp()
        gx, gy = grad(z, [x, y], create_graph=True)
        (xy,) = grad(gx, y, retain_graph=True)
        (yx,) = grad(gy, x)
        assert xy.item() == pytest.approx(yx.item(), rel=1e-12)

    def test_gradient_penalty(self):
        w = leaf(np.array([[0.5, -0.3], [0.2, 0.8]]))
        x = leaf([1.0, 2.0])
        (g,) = grad(tg.tanh(w @ x).sum(), x, create_graph=True)
        ((g * g).sum() - 1.0).backward()

        def penalty(a):
            t = np.tanh(a @ np.array([1.0, 2.0]))
            return (((1 - t**2) @ a) ** 2).sum() - 1.0

        base = values(w)
        for i in range(2):
            for j in range(2):
                step = np.zeros((2, 2))
                step[i, j] = 1e-6
                expected = (penalty(base + step) - penalty(base - step)) / 2e-6
                assert w.grad[i, j].item() == pytest.approx(expected, rel=1e-6)

    def test_derivative_of_leaf_used_by_itself_and_through_its_gradient(self):
        x = leaf(1.3)
        (g,) = grad(x**3, x, create_graph=True)
        (total,) = grad(g * x, x)
        assert total.item() == pytest.approx(9 * 1.3**2)

    def test_mixed_dtypes_to_second_order(self):
        x = leaf([0.5, 1.5], np.float32)
        y = leaf([2.0, 3.0], np.float64)
        gx, gy = grad((x * x * y).sum(), [x, y], create_graph=True)
        assert gx.dtype == np.float32
        assert gy.dtype == np.float64
        hx, hy = grad(gx.sum(), [x, y])
        assert hx.dtype == np.float32
        assert hy.dtype == np.float64
        np.testing.assert_allclose(values(hx), [4.0, 6.0])
        np.testing.assert_allclose(values(hy), [1.0, 3.0])

    def test_unused_in_second_order(self):
        x = leaf(2.0)
        (g,) = grad(x * 3 + 1, x, create_graph=True)
        assert g.item() == 3.0
        with pytest.raises(RuntimeError):
            grad(g, x)


class TestCreateGraph:
    """`create_graph` records the backward itself, wherever it is called."""

    def test_create_graph_inside_no_grad_still_records(self):
        x = leaf(2.0)
        y = x**3
        with tg.no_grad():
            (g,) = grad(y, x, create_graph=True)
        assert g.requires_grad
        assert grad(g, x)[0].item() == pytest.approx(12.0)

    def test_differentiating_by_the_cotangent(self):
        x = leaf([1.0, 2.0])
        v = leaf([3.0, 4.0])
        (g,) = grad(x**2, x, v, create_graph=True)
        (by_v,) = grad(g.sum(), v)
        np.testing.assert_array_equal(values(by_v), [2.0, 4.0])

    def test_forward_derivative_from_two_reverse_passes(self):
        x = leaf([0.5, 1.5])
        v = leaf([0.0, 0.0])
        y = x.sin() * x[0]
        (g,) = grad(y, x, v, create_graph=True)
        (along,) = grad(g, v, tg.tensor([1.0, 2.0]))
        a, b = 0.5, 1.5
        expected = [np.cos(a) * a + np.sin(a), 2 * np.cos(b) * a + np.sin(b)]
        np.testing.assert_allclose(values(along), expected, rtol=1e-12)

    def test_deep_chain_with_create_graph(self):
        x = leaf(1.0)
        y = x
        for _ in range(3000):
            y = y * 1.0001 + 0.0001
        (g,) = grad(y * y, x, create_graph=True)
        (h,) = grad(g, x)
        assert h.item() == pytest.approx(2 * 1.0001**6000)

    def test_create_graph_detects_modified_values(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        z = y.sum()
        with tg.no_grad():
            y += 1.0
        with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
            grad(z, x, create_graph=True)
