"""Jitted functions of tensors: what runs, and what the results are."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.pytrees import tree


def check_calls(made, plain, *args):
    """Compare calls that record, compile, and go to compiled code directly."""
    for _ in range(3):
        found, expected = made(*args), plain(*args)
        leaves, wanted = tree(found, "")[0], tree(expected, "")[0]
        assert [type(leaf) for leaf in leaves] == [type(leaf) for leaf in wanted]
        for leaf, want in zip(leaves, wanted, strict=True):
            assert (leaf.dtype, leaf.shape) == (want.dtype, want.shape)
            assert leaf.requires_grad == want.requires_grad
            rtol = 1e-5 if leaf.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(leaf.detach(), want.detach(), rtol, rtol)


class TestTensors:
    """Tensors without history are taken as their arrays; results are tensors, as op by op."""

    def loss(self, w, x):
        return tg.mean((tg.tanh(x * w) - 0.5 * w) ** 2)

    def points(self, dtype=np.float64):
        rng = np.random.default_rng(0)
        return [tg.tensor(rng.normal(size=(3, 4)).astype(dtype)) for _ in range(2)]

    def check(self, function, *args, argnums=(0, 1)):
        jitted = tg.jit(function)
        check_calls(jitted, function, *args)
        for transform in (tg.value_and_grad, tg.grad):
            check_calls(transform(jitted, argnums), transform(function, argnums), *args)
        return jitted

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_dtypes(self, dtype):
        jitted = self.check(self.loss, *self.points(dtype))
        assert jitted.cache_info().currsize == 1

    def test_with_arrays_and_numbers_beside(self):
        w, x = self.points()
        self.check(self.loss, w, x.numpy())
        self.check(self.loss, w.numpy(), x)
        self.check(self.loss, w, 0.5, argnums=0)
        self.check(self.loss, tg.tensor(0.5), 1.5)
        self.check(self.loss, tg.tensor(0.5), w)

    def test_views(self):
        w, x = self.points()
        self.check(self.loss, w.T, x.T)
        self.check(self.loss, w[:, ::2], x[:, 1::2])

    def test_structures(self):
        w, x = self.points()
        self.check(lambda p, x: self.loss(p["w"][0], x), {"w": [w]}, x, argnums=0)

    def test_tensors_with_history(self):
        w, x = self.points()
        jitted = self.check(self.loss, w, x)
        leaf = w.clone().requires_grad_()
        for made in (jitted, self.loss):
            value = made(leaf, x)
            (slope,) = tg.autograd.grad(value, leaf, create_graph=True)
            (second,) = tg.autograd.grad(slope.sum(), leaf)
            expected = tg.hvp(self.loss)(w.numpy(), x.numpy(), np.ones(w.shape))
            np.testing.assert_allclose(second.numpy(), expected, 1e-10)
        inner = tg.grad(jitted)
        for made in (inner, tg.grad(self.loss)):
            slope = made(leaf * 1.0, x)
            assert slope.requires_grad
            (second,) = tg.autograd.grad(slope.sum(), leaf)
            np.testing.assert_allclose(second.numpy(), expected, 1e-10)
        with tg.no_grad():
            found = inner(leaf, x)
        assert not found.requires_grad
        np.testing.assert_allclose(found.numpy(), tg.grad(self.loss)(w.numpy(), x.numpy()), 1e-12)

    def test_results_require_grad_as_op_by_op(self):
        def f(x, y):
            return x * 2.0, y * 3.0, y, x * y, y[0] * 1.0

        jitted = tg.jit(f)
        plain, leaf = tg.tensor([1.0, 2.0]), tg.tensor([1.0, 2.0], requires_grad=True)
        for args in ((leaf, plain), (plain, leaf), (leaf, leaf), (plain, plain)):
            found, expected = jitted(*args), f(*args)
            assert [z.requires_grad for z in found] == [z.requires_grad for z in expected]

    def test_a_gradient_of_a_gradient(self):
        w, x = self.points()
        jitted = self.check(self.loss, w, x)
        for made in (jitted, self.loss):
            found = tg.grad(lambda w, made=made: tg.sum(tg.grad(made)(w, x) * x))(w)
            expected = tg.hvp(self.loss)(w.numpy(), x.numpy(), x.numpy())
            np.testing.assert_allclose(found.numpy(), expected, 1e-10)

    def test_tangents(self):
        w, x = self.points()
        jitted = self.check(self.loss, w, x)
        for made in (jitted, self.loss):
            _, found = tg.jvp(lambda w, made=made: tg.grad(made)(w, x))(w, x)
            expected = tg.hvp(self.loss)(w.numpy(), x.numpy(), x.numpy())
            np.testing.assert_allclose(found.numpy(), expected, 1e-10)

    def test_modes(self):
        w, x = self.points()
        jitted = self.check(self.loss, w, x)
        with tg.inference_mode():
            for made in (jitted, self.loss):
                assert made(w, x).is_inference()
            inside = w * 1.0
        self.check(self.loss, inside, x)
        leaf = w.clone().requires_grad_()
        with tg.no_grad():
            self.check(self.loss, w, x)
            jitted = self.check(self.loss, leaf, x)
            assert not jitted(leaf * 1.0, x).requires_grad
        for _ in range(2):  # after calls without records
            assert jitted(leaf, x).requires_grad
            assert tg.grad(jitted)(leaf, x).requires_grad
            with tg.no_grad():
                assert not jitted(leaf, x).requires_grad
                assert not tg.grad(jitted)(leaf, x).requires_grad
        with pytest.warns(UserWarning, match="Anomaly Detection"):
            anomalies = tg.autograd.detect_anomaly()
        with anomalies:
            self.check(self.loss, w, x)

    def test_results_have_memory_of_their_own(self):
        w, x = self.points()
        gradient = tg.value_and_grad(tg.jit(lambda w, x: tg.sum(w * x)))
        for _ in range(3):
            _, slope = gradient(w, x)
            assert not np.shares_memory(slope.numpy(), x.numpy())
            slope[...] = 7.0
            np.testing.assert_array_equal(gradient(w, x)[1].numpy(), x.numpy())
        same = tg.jit(lambda w: w)
        for _ in range(3):
            found = same(w)
            found[...] = 0.0
            assert (w.numpy() != 0.0).all()

    def test_parameters_from_outside(self):
        w, x = self.points()
        scale = tg.tensor(2.0, requires_grad=True)
        jitted = tg.jit(lambda w: tg.sum(w * x * scale))
        for _ in range(3):
            assert jitted(w).requires_grad
            found = tg.grad(jitted)(w)
            assert found.requires_grad == tg.grad(jitted.function)(w).requires_grad
            np.testing.assert_allclose(found.detach(), 2.0 * x.numpy(), 1e-12)

    @pytest.mark.compiled
    @pytest.mark.parametrize("transform", [tg.jacobian, tg.hessian])
    def test_transforms(self, transform):
        w, x = self.points()
        jitted = tg.jit(self.loss)
        check_calls(transform(jitted), transform(self.loss), w, x)
        check_calls(transform(jitted, 1), transform(self.loss, 1), w.T, x.T)
        leaf = w.clone().requires_grad_()
        found, expected = (transform(f)(leaf * 1.0, x) for f in (jitted, self.loss))
        assert found.requires_grad and expected.requires_grad
        np.testing.assert_allclose(found.detach(), expected.detach(), 1e-10, 1e-12)

    @pytest.mark.compiled
    def test_products(self):
        w, x = self.points()
        jitted = tg.jit(self.loss)
        for transform in (tg.jvp, tg.hvp):
            check_calls(transform(jitted), transform(self.loss), w, x, x)
