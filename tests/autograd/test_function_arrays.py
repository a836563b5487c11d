"""Functions take arrays where they take tensors: what rules return, save, and are given."""

import numpy as np
import pytest
from functions import make, values
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import forward_ad, grad

X = np.array([0.5, 1.5])


def save(ctx, x):
    ctx.save_for_backward(x)
    return np.sin(x)


def of_arrays(ctx, g):
    (x,) = ctx.saved_tensors
    return np.asarray(g.detach()) * np.cos(values(x))


RETURNS = {
    "an array": of_arrays,
    "a tuple": lambda ctx, g: (of_arrays(ctx, g),),
    "float32": lambda ctx, g: of_arrays(ctx, g).astype(np.float32),
    "a list of axes": lambda ctx, g: of_arrays(ctx, g)[::-1].copy()[::-1],
}


@pytest.mark.parametrize("name", RETURNS)
def test_arrays_as_gradients(name):
    f = make(save, RETURNS[name]).apply
    expected = np.cos(X)
    x = leaf(X)
    f(x).sum().backward()
    np.testing.assert_allclose(x.grad, expected, rtol=1e-7)
    np.testing.assert_allclose(tg.grad(lambda v: f(v).sum())(X), expected, rtol=1e-7)
    (g,) = grad(f(leaf(X)).sum(), x := leaf(X), allow_unused=True)
    assert g is None
    np.testing.assert_allclose(grad(f(x).sum(), x, create_graph=True)[0].detach(), expected, 1e-7)


def test_a_number_of_numpy():
    f = make(lambda ctx, x: x * 2.0, lambda ctx, g: np.float64(2.0) * g.item()).apply
    assert tg.grad(f)(3.0) == 2.0


def test_gradients_that_are_arrays_are_not_differentiated():
    """They have no history."""
    f = make(save, of_arrays, name="Sine").apply
    text = "Sine: its backward returned an array, which has no history"
    for second in (
        lambda: tg.hessian(lambda v: f(v).sum())(X),
        lambda: tg.grad(lambda v: tg.grad(lambda w: f(w).sum())(v).sum())(X),
        lambda: tg.autograd.functional.hessian(lambda v: f(v).sum(), leaf(X)),
    ):
        with pytest.raises(RuntimeError, match=text):
            second()


def test_a_python_number_is_no_gradient():
    f = make(lambda ctx, x: x * 2.0, lambda ctx, g: 2.0).apply
    with pytest.raises(RuntimeError, match=r"no tensor: expected Variable or None \(got float\)"):
        tg.grad(f)(3.0)


def test_gradients_for_arguments_that_are_arrays():
    """They are dropped, as those of tensors that require none."""

    def forward(ctx, a, x):
        ctx.save_for_backward(a, x)
        return a * x

    def backward(ctx, g):
        a, x = ctx.saved_tensors
        return g * x, g * a

    f = make(forward, backward).apply
    a = np.array([2.0, 3.0])
    np.testing.assert_array_equal(tg.grad(lambda x: f(a, x).sum())(X), a)
    np.testing.assert_array_equal(tg.grad(lambda a, x: f(a, x).sum(), 1)(a, X), a)
    np.testing.assert_array_equal(tg.grad(lambda a, x: f(a, x).sum(), 0)(a, X), X)
    assert tg.hessian(lambda x: (f(a, x) ** 2).sum())(X).tolist() == [[8.0, 0.0], [0.0, 18.0]]
    g = make(lambda ctx, n, x: n * x, lambda ctx, g: (g, g)).apply
    with pytest.raises(RuntimeError, match="different than None at position 1"):
        tg.grad(lambda x: g(2.0, x).sum())(X)


def test_saved_arrays_are_tensors():
    def forward(ctx, x):
        ctx.save_for_backward(x.numpy(), None, np.float64(3.0))
        return x * 3.0

    def backward(ctx, g):
        x, nothing, factor = ctx.saved_tensors
        assert isinstance(x, tg.Tensor)
        assert nothing is None
        return g * factor

    assert tg.grad(make(forward, backward).apply)(0.5) == 3.0


def test_a_method_of_tensors_on_an_array():
    def forward(ctx, a, x):
        return tg.tensor(a.numpy() @ x.numpy())

    f = make(forward, lambda ctx, g: (None, g), name="Product").apply
    text = r"^Product\.forward: argument 0 is an array.*no 'numpy'; np\.asarray\(x\) takes tensors"
    with pytest.raises(AttributeError, match=text):
        tg.grad(lambda x: f(np.eye(2), x).sum())(X)
    assert tg.grad(lambda x: f(tg.as_tensor(np.eye(2)), x).sum())(X).tolist() == [1.0, 1.0]


def test_other_missing_attributes_are_reported_as_they_are():
    def forward(ctx, a, x):
        return a.nothing

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        make(forward, lambda ctx, g: (None, g)).apply(np.eye(2), leaf(X))


class TestTangents:
    def function(self, jvp):
        def forward(ctx, x):
            ctx.x = x.numpy()
            return x * x

        return make(forward, lambda ctx, g: None, jvp=jvp, name="Square").apply

    def of_arrays(self, ctx, t):
        return 2.0 * ctx.x * values(t)

    def test_arrays(self):
        f = self.function(self.of_arrays)
        np.testing.assert_array_equal(tg.jvp(f)(X, np.ones(2))[1], 2 * X)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(tg.tensor(X), tg.ones(2))
            np.testing.assert_array_equal(forward_ad.unpack_dual(f(dual)).tangent, 2 * X)

    def test_they_are_not_differentiated(self):
        f = self.function(self.of_arrays)
        with pytest.raises(RuntimeError, match="Square: its jvp returned an array, which has no"):
            tg.grad(lambda x: tg.jvp(f)(x, tg.ones(2))[1].sum())(X)


class TestArgumentsWithoutTangents:
    """Tensors that could have a tangent get zeros, others None."""

    ARGUMENTS = (
        (tg.tensor([1.0, 3.0]), [0.0, 0.0]),
        (tg.tensor([1, 2]), None),
        (tg.tensor([True, False]), None),
        (np.ones(2), None),
        (3, None),
    )

    @pytest.mark.parametrize(("argument", "expected"), ARGUMENTS)
    def test_what_jvp_gets(self, argument, expected):
        seen = []

        def jvp(ctx, t, other):
            seen.append(other)
            return t * 2.0

        f = make(lambda ctx, x, other: x * 2.0, lambda ctx, g: (g * 2.0, None), jvp=jvp).apply
        tg.jvp(lambda x: f(x, argument))(X, np.ones(2))
        with forward_ad.dual_level():
            f(forward_ad.make_dual(tg.tensor(X), tg.ones(2)), argument)
        assert [t if t is None else t.tolist() for t in seen] == [expected, expected]


class TestInPlace:
    """Where forward writes to an argument, jvp writes to its tangent."""

    def double(self, jvp):
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2.0)

        return make(forward, lambda ctx, g: g * 2.0, jvp=jvp, name="Double").apply

    @pytest.mark.parametrize("show", [lambda x: x, lambda x: x[1:]], ids=["whole", "view"])
    def test_written(self, show):
        f = self.double(lambda ctx, t: t.mul_(2.0))
        t = tg.tensor([3.0, 4.0])
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(tg.tensor(X), t)
            f(show(dual))
            whole = forward_ad.unpack_dual(dual).tangent.tolist()
        assert whole == ([6.0, 8.0] if show(t) is t else [3.0, 8.0])
        assert t.tolist() == [3.0, 4.0]

    @pytest.mark.parametrize("jvp", [lambda ctx, t: t * 2.0, lambda ctx, t: t.mul_(2.0).clone()])
    def test_refused(self, jvp):
        text = "not modifying the forward mode gradients inplace.*Double: write to tangent 0"
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=text):
            self.double(jvp)(forward_ad.make_dual(tg.tensor(X), tg.ones(2)))
