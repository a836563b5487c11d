"""`gradgradcheck`."""

import numpy as np
import pytest
from functions import double, make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.autograd.function import once_differentiable
from tapegrad.autograd.gradcheck import GradcheckError

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["slow", "fast"])


def keeping(forward, backward):
    """A Function whose backward takes (cotangent, *arguments of forward)."""

    def saving_forward(ctx, *args):
        ctx.save_for_backward(*args)
        return forward(*args)

    return make(saving_forward, lambda ctx, g: backward(g, *ctx.saved_tensors))


def cube(by_cotangent=3.0, by_input=6.0):
    """The function x**3, whose gradient 3 g x**2 is a Function with its own derivatives."""
    gradient = keeping(
        lambda g, x: 3 * g * x * x,
        lambda h, g, x: (by_cotangent * h * x * x, by_input * h * g * x),
    )
    return keeping(lambda x: x * x * x, lambda g, x: gradient.apply(g, x)).apply


class TestRightSecondDerivatives:
    """Functions with right second derivatives pass, whatever they take and return."""

    @both_modes
    @pytest.mark.parametrize(
        "f",
        [
            tg.exp,
            cube(),
            lambda x: x * 2,
            lambda x: x @ x.T,
            lambda x: (tg.sin(x) * x).sum(),
            lambda x: (x * x, x.sum(), tg.argmax(x)),
            lambda x: x[1],
        ],
    )
    def test_one_input(self, f, fast):
        assert gradgradcheck(f, leaf([[0.3, -1.2], [0.7, 2.0]]), fast_mode=fast) is True

    @both_modes
    def test_several_inputs(self, fast):
        x, y, fixed = leaf([0.5, 1.5]), leaf(2.0), tg.tensor([2.0, 3.0])
        assert gradgradcheck(lambda x, y: x * x * y, (x, y), fast_mode=fast)
        assert gradgradcheck(lambda x, a, n: (a * x) ** n, [x, fixed, 3], fast_mode=fast)
        assert gradgradcheck(lambda x, y: tg.sin(x), (x, y), fast_mode=fast)

    @both_modes
    def test_no_output_requires_gradients(self, fast):
        assert gradgradcheck(lambda x: tg.ones(2), leaf([0.5, 1.5]), fast_mode=fast)


class TestWrongSecondDerivatives:
    """A wrong second derivative raises, though the gradient is right."""

    @both_modes
    @pytest.mark.parametrize(
        ("derivatives", "place"), [((3.0, 5.0), 0), ((3.0, -6.0), 0), ((2.0, 6.0), 1)]
    )
    def test_caught(self, derivatives, place, fast):
        f, x = cube(*derivatives), leaf([0.5, 1.5])
        assert gradcheck(f, x, fast_mode=fast)
        text = f"^Jacobian mismatch for output 0 with respect to input {place},\n"
        with pytest.raises(GradcheckError, match=text):
            gradgradcheck(f, x, fast_mode=fast)
        assert gradgradcheck(f, x, fast_mode=fast, raise_exception=False) is False

    @both_modes
    def test_a_gradient_that_is_not_recorded(self, fast):
        f = keeping(lambda x: x * x, lambda g, x: 2 * g * x.detach()).apply
        with pytest.raises(GradcheckError, match="with respect to input 0,"):
            gradgradcheck(f, leaf([0.5, 1.5]), fast_mode=fast)

    @both_modes
    def test_once_differentiable(self, fast):
        f = make(double, once_differentiable(lambda ctx, g: g * 2)).apply
        with pytest.raises(RuntimeError):
            gradgradcheck(f, leaf([0.5, 1.5]), fast_mode=fast)

    @both_modes
    def test_a_wrong_gradient_is_not_its_business(self, fast):
        f = keeping(lambda x: x * x, lambda g, x: 3 * g * x).apply
        assert gradgradcheck(f, leaf([0.5, 1.5]), fast_mode=fast)


class TestCotangents:
    """Cotangents are given, or random; those that require gradients are checked as well."""

    @both_modes
    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_given(self, requires_grad, fast):
        x = leaf([0.5, 1.5])
        g = tg.tensor([1.0, -2.0], requires_grad=requires_grad)
        assert gradgradcheck(tg.sin, x, g, fast_mode=fast)
        assert gradgradcheck(lambda x: (tg.sin(x), x * x), x, [g, g], fast_mode=fast)
        wrong = cube(by_cotangent=2.0)
        assert gradgradcheck(wrong, x, g, fast_mode=fast, raise_exception=False) != requires_grad

    def test_given_as_none(self):
        f = lambda x: (tg.sin(x), (x * x).sum())  # noqa: E731
        assert gradgradcheck(f, leaf([0.5, 1.5]), [tg.tensor([1.0, -2.0]), None])

    def test_a_wrong_number(self):
        with pytest.raises(RuntimeError, match="got 2 tensors and 1 gradients"):
            gradgradcheck(lambda x: (x, x * x), leaf([0.5, 1.5]), [leaf([1.0, 1.0])])

    @pytest.mark.parametrize("strided", [False, True])
    def test_random(self, strided):
        seen = []

        def backward(ctx, g):
            seen.append((g.shape, g.dtype, g.requires_grad, g.detach().numpy().strides))
            return g * 2

        f, x = make(double, backward).apply, leaf([[0.5, 1.5], [2.0, 3.0]])
        assert gradgradcheck(f, x, gen_non_contig_grad_outputs=strided)
        strides = (32, 16) if strided else (16, 8)
        assert seen[0] == ((2, 2), np.float64, True, strides)

    def test_random_ones_have_the_dtype_of_the_output(self):
        options = {"eps": 1e-2, "atol": 1e-2}
        with pytest.warns(UserWarning, match="Input #1 requires gradient and is not a double"):
            assert gradgradcheck(lambda x: x.astype(np.float32) * 2, leaf([0.5, 1.5]), **options)

    def test_random_ones_of_a_scalar(self):
        assert gradgradcheck(lambda x: (x * x).sum(), leaf([1.0]), gen_non_contig_grad_outputs=True)


class TestInputs:
    """Inputs are checked as by gradcheck, the cotangents after those of the function."""

    def test_none_requires_gradients(self):
        with pytest.raises(ValueError, match="gradcheck expects at least one input tensor to"):
            gradgradcheck(tg.sin, tg.tensor([1.0]))

    def test_float32(self):
        x = leaf([1.0, 2.0], np.float32)
        with pytest.warns(UserWarning, match="is not a double precision") as caught:
            assert gradgradcheck(lambda x: x * x, x, eps=1e-2, atol=1e-1)
        assert [str(w.message)[:8] for w in caught] == ["Input #0", "Input #1"]
        assert {w.filename for w in caught} == {__file__}

    @both_modes
    def test_not_deterministic(self, fast):
        noise = iter(np.linspace(1e-9, 1e-8, 1000))
        gradient = keeping(lambda g: g * 2, lambda h, g: h * (2 + next(noise)))
        f = make(double, lambda ctx, g: gradient.apply(g)).apply
        with pytest.raises(GradcheckError, match=r"^Backward is not reentrant"):
            gradgradcheck(f, leaf([1.0]), fast_mode=fast)
        assert gradgradcheck(f, leaf([1.0]), nondet_tol=1e-7, fast_mode=fast)

    @both_modes
    def test_undefined_gradients(self, fast):
        def forward(ctx, g):
            ctx.set_materialize_grads(False)
            return g * 2

        gradient = make(forward, lambda ctx, h: tg.ones(2) if h is None else h * 2)
        f, x = make(double, lambda ctx, g: gradient.apply(g)).apply, leaf([1.0, 2.0])
        with pytest.warns(UserWarning, match="check_undefined_grad=False"):
            assert not gradgradcheck(f, x, fast_mode=fast, raise_exception=False)
        assert gradgradcheck(f, x, fast_mode=fast, check_undefined_grad=False)
