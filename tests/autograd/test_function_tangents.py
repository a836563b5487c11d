"""A Function's own jvp in forward mode, and what `save_for_forward` keeps for it."""

import gc
import threading
import weakref

import numpy as np
import pytest
from functions import ProductOfTwo, make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import functional
from tapegrad.autograd.tangents import tangents_of

A, T = np.array([0.5, -1.5, 2.0]), np.array([1.0, 0.25, -2.0])


class Product(tg.Function):
    """x y n, whose tangent is marked by a factor of 10: it is not derived from the backward."""

    @staticmethod
    def forward(ctx, x, y, n):
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(y, x)
        ctx.n = n
        return x * y * n

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * ctx.n, g * x * ctx.n, None

    @staticmethod
    def jvp(ctx, x_t, y_t, n_t):
        assert n_t is None
        y, x = ctx.saved_tensors
        return 10.0 * ctx.n * (y * x_t + x * y_t)


def product(x, y):
    return Product.apply(tg.as_tensor(x), tg.as_tensor(y), 3) + x


class TestUse:
    """Every transform in forward mode calls it; reverse mode does not."""

    def test_jvp(self):
        expected = 30.0 * (A * T + T * A) + T
        np.testing.assert_allclose(tg.jvp(product, (0, 1))(A, A, T, T)[1], expected)

    def test_tangents_that_are_missing_are_zeros(self):
        np.testing.assert_allclose(tg.jvp(product)(A, T, A)[1], 30.0 * T * A + A)
        np.testing.assert_allclose(tg.jvp(product, 1)(A, T, A)[1], 30.0 * A * A)
        passive = tg.tensor(T)
        found = tg.jvp(lambda x: product(x, passive))(A, A)[1]
        np.testing.assert_allclose(found, 30.0 * T * A + A)

    def test_jacobians(self):
        def f(x):
            return product(x, x * 2.0)

        forward, reverse = np.diag(120.0 * A + 1.0), np.diag(12.0 * A + 1.0)
        np.testing.assert_allclose(tg.jacfwd(f)(A), forward)
        np.testing.assert_allclose(tg.jacrev(f)(A), reverse)
        _, pushforward = tg.linearize(f, A)
        np.testing.assert_allclose(pushforward(T), forward @ T)
        x = tg.tensor(A)
        options = {"vectorize": True, "strategy": "forward-mode"}
        np.testing.assert_allclose(functional.jacobian(f, x, **options), forward)
        np.testing.assert_allclose(functional.jvp(f, x, tg.tensor(T))[1], forward @ T)
        np.testing.assert_allclose(functional.jacobian(f, x), reverse)

    def test_differentiated(self):
        t = tg.tensor(T, requires_grad=True)
        tg.jvp(product)(A, A, t)[1].sum().backward()
        np.testing.assert_allclose(t.grad, 30.0 * A + 1.0)
        found = tg.grad(lambda x: tg.jvp(product)(x, A * x, T)[1].sum())(A)
        np.testing.assert_allclose(found, 30.0 * A * T)

    def test_without_a_backward(self):
        f = make(lambda ctx, x: x * 2.0, jvp=lambda ctx, t: t * 2.0)
        np.testing.assert_array_equal(tg.jvp(f.apply)(A, T)[1], 2.0 * T)

    def test_replaced_and_inherited(self):
        f = make(lambda ctx, x: x * 2.0, lambda ctx, g: g * 2.0)
        np.testing.assert_array_equal(tg.jvp(f.apply)(A, T)[1], 2.0 * T)
        f.jvp = staticmethod(lambda ctx, t: t * 7.0)
        np.testing.assert_array_equal(tg.jvp(f.apply)(A, T)[1], 7.0 * T)
        child = type("Child", (f,), {})
        np.testing.assert_array_equal(tg.jvp(child.apply)(A, T)[1], 7.0 * T)

    def test_several_outputs(self):
        f = make(
            lambda ctx, x: (x * 2.0, x.sum(), tg.tensor([1, 2])),
            jvp=lambda ctx, t: (t * 2.0, None, None),
        )
        value, dots = tg.jvp(lambda x: f.apply(x)[:2])(A, T)
        np.testing.assert_array_equal(dots[0], 2.0 * T)
        assert dots[1] == 0.0
        assert value[1] == A.sum()

    def test_setup_context(self):
        class Square(tg.Function):
            @staticmethod
            def forward(x):
                return x * x

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_forward(*inputs)

            @staticmethod
            def jvp(ctx, t):
                (x,) = ctx.saved_tensors
                return 2.0 * x * t

        np.testing.assert_allclose(tg.jvp(Square.apply)(A, T)[1], 2.0 * A * T)


class TestSaved:
    """`saved_tensors` are those of the direction in which the derivative goes."""

    @pytest.mark.parametrize("saves", [True, False])
    def test_in_jvp(self, saves):
        seen = []

        def forward(ctx, x):
            ctx.save_for_backward(x)
            if saves:
                ctx.save_for_forward(None, x)
            return x * 2.0

        def jvp(ctx, t):
            seen.append(ctx.saved_tensors)
            return t * 2.0

        f = make(forward, lambda ctx, g: seen.append(ctx.saved_tensors) or g * 2.0, jvp=jvp)
        tg.jvp(f.apply)(A, T)
        assert len(seen[0]) == (2 if saves else 0)
        if saves:
            assert seen[0][0] is None
            np.testing.assert_array_equal(seen[0][1].detach(), A)
        f.apply(leaf(A)).sum().backward()
        assert len(seen[1]) == 1

    def test_what_was_overwritten_is_refused(self):
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return x * 2.0

        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return x * t

        f = make(forward, jvp=jvp)

        def overwriting(x):
            y = x * 1.0
            z = f.apply(y)
            y.mul_(2.0)
            return z

        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            tg.jvp(overwriting)(A, T)

    def test_a_saved_output_makes_no_cycle(self):
        def forward(ctx, x):
            z = tg.exp(x)
            ctx.save_for_forward(z)
            return z

        def jvp(ctx, t):
            (z,) = ctx.saved_tensors
            return z * t

        f = make(forward, lambda ctx, g: g, jvp=jvp)
        np.testing.assert_allclose(tg.jvp(f.apply)(A, T)[1], np.exp(A) * T)
        second = tg.jvp(lambda x: tg.jvp(f.apply)(x, T)[1])(A, T)[1]
        np.testing.assert_allclose(second, np.exp(A) * T * T)
        gc.collect()
        gc.disable()
        try:
            z = f.apply(leaf(A))
            gone = weakref.ref(z)
            del z
            assert gone() is None
        finally:
            gc.enable()

    def test_threads(self):
        """A backward that runs while a jvp runs has the tensors saved for it."""
        inside, done = threading.Event(), threading.Event()

        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x * 3.0)
            return x * x

        def jvp(ctx, t):
            inside.set()
            assert done.wait(60)
            return ctx.saved_tensors[0] * t

        f = make(forward, lambda ctx, g: 2.0 * ctx.saved_tensors[0] * g, jvp=jvp)
        x = leaf(A)
        y = f.apply(x)
        found = []
        thread = threading.Thread(
            target=lambda: found.extend(tangents_of([y], [x], [tg.tensor(T)], create_graph=False))
        )
        thread.start()
        assert inside.wait(60)
        (g,) = tg.autograd.grad(y.sum(), x)
        done.set()
        thread.join()
        np.testing.assert_array_equal(g, 2.0 * A)
        np.testing.assert_array_equal(found[0], 3.0 * A * T)

    def test_zeros_only_if_they_are_wanted(self):
        seen = []

        def forward(ctx, x, y):
            ctx.set_materialize_grads(False)
            return x * y

        f = make(forward, jvp=lambda ctx, *tangents: seen.append(tangents) or tangents[0])
        tg.jvp(lambda x: f.apply(x, tg.tensor(A)))(A, T)
        assert seen[0][1] is None


class TestRefused:
    """What a jvp returns has to fit the outputs."""

    @pytest.mark.parametrize(
        ("returned", "text"),
        [
            (lambda t: (t, t), "invalid number of forward gradients .expected 1 but got 2"),
            (lambda t: 2.0, "expected Variable or None .got float. for grad output 0"),
            (
                lambda t: t * 1j,
                "forward gradient of dtype complex128 for output 0 of dtype float64",
            ),
            (lambda t: t[:2], r"Tensor is of size \[3\] while the given forward gradient is of"),
        ],
    )
    def test_results(self, returned, text):
        f = make(lambda ctx, x: x * 2.0, jvp=lambda ctx, t: returned(t))
        with pytest.raises(RuntimeError, match=text):
            tg.jvp(f.apply)(A, T)

    def test_other_types_are_converted(self):
        f = make(lambda ctx, x: x * 2.0, jvp=lambda ctx, t: t.astype(np.float32) * 2.0)
        found = tg.jvp(f.apply)(A, T)[1]
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, 2.0 * T)

    def test_errors_leave_the_context_as_it_was(self):
        def fail(ctx, t):
            raise KeyError("mine")

        f = make(
            lambda ctx, x: ctx.save_for_backward(x) or x * 2.0, lambda ctx, g: g * 2.0, jvp=fail
        )
        x = leaf(A)
        y = f.apply(x)
        with pytest.raises(KeyError, match="mine"):
            tg.jvp(f.apply)(A, T)
        y.sum().backward()
        np.testing.assert_array_equal(x.grad, 2.0)


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f8", "f4"), ("f4", "f4")])
def test_without_a_jvp_for_inputs_of_several_precisions(dtypes):
    x, y = np.array([1.0, 2.0], dtypes[0]), np.array([3.0, 5.0], dtypes[1])
    for apply in (ProductOfTwo.apply, tg.jit(ProductOfTwo.apply)):
        value, tangent = tg.jvp(lambda x, y, f=apply: f(x, y), (0, 1))(x, y, x, y)
        assert value.dtype == tangent.dtype == np.result_type(x, y)
        np.testing.assert_allclose(tangent, [6.0, 20.0])
