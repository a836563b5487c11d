"""What `gradcheck` asks of a backward pass besides right values."""

import sys

import numpy as np
import pytest
from functions import double, make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import gradcheck
from tapegrad.autograd.gradcheck import GradcheckError

MODULE = sys.modules["tapegrad.autograd.checked_point"]

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["slow", "fast"])


class TestTheBackwardPass:
    """It gives the same when it runs twice, and is linear: zeros for zeros."""

    @both_modes
    def test_not_deterministic(self, fast):
        noise = iter(np.linspace(1e-9, 1e-8, 1000))
        f = make(double, lambda ctx, g: g * 2 + g * next(noise)).apply
        x = leaf([1.0, 2.0])
        with pytest.raises(GradcheckError) as caught:
            gradcheck(f, x, fast_mode=fast)
        assert str(caught.value).startswith(
            "Backward is not reentrant, i.e., running backward with same input and grad_output "
            "multiple times gives different values, although analytical gradient matches "
            "numerical gradient.The tolerance for nondeterminism was 0.0."
        )
        assert gradcheck(f, x, nondet_tol=1e-7, fast_mode=fast)

    @both_modes
    def test_not_multiplied_by_the_cotangent(self, fast):
        f = make(double, lambda ctx, g: g * 2 + tg.where(g == 0, 1e-7, 0.0))
        with pytest.raises(GradcheckError, match=r"^backward not multiplied by grad_output$"):
            gradcheck(f.apply, leaf(1.0), fast_mode=fast)

    @both_modes
    @pytest.mark.parametrize("option", [False, True])
    def test_dtypes(self, option, fast, monkeypatch):
        def in_float32(*args, **kwargs):
            return tuple(g.astype(np.float32) for g in tg.autograd.grad(*args, **kwargs))

        monkeypatch.setattr(MODULE, "grad", in_float32)
        text = "^Gradient has dtype mismatch$" if option else "^grad is incorrect type$"
        with pytest.raises(GradcheckError, match=text):
            gradcheck(lambda x: x * 2, leaf(1.0), check_grad_dtypes=option, fast_mode=fast)

    @both_modes
    def test_shapes(self, fast, monkeypatch):
        def longer(*args, **kwargs):
            return tuple(tg.stack([g, g]) for g in tg.autograd.grad(*args, **kwargs))

        monkeypatch.setattr(MODULE, "grad", longer)
        with pytest.raises(GradcheckError, match=r"^Analytical gradient has incorrect size$"):
            gradcheck(lambda x: x * 2, leaf(1.0), fast_mode=fast)


def lenient(ctx, x):
    """A forward whose backward gets None for undefined gradients."""
    ctx.set_materialize_grads(False)
    return x * 2


def lenient_pair(ctx, x):
    ctx.set_materialize_grads(False)
    return x * 2, x * 3


class TestUndefinedGradients:
    """Undefined cotangents count as zeros: all of them at once, and each of several."""

    @both_modes
    def test_right(self, fast):
        def backward(ctx, g, h):
            if g is None:
                return None if h is None else h * 3
            return g * 2 if h is None else g * 2 + h * 3

        assert gradcheck(make(lenient_pair, backward).apply, leaf([1.0, 2.0]), fast_mode=fast)
        single = make(lenient, lambda ctx, g: None if g is None else g * 2)
        assert gradcheck(single.apply, leaf([1.0, 2.0]), fast_mode=fast)

    @both_modes
    def test_a_backward_that_refuses_them(self, fast):
        def backward(ctx, g):
            if g is None:
                raise RuntimeError("no gradient")
            return g * 2

        f, x = make(lenient, backward).apply, leaf([1.0, 2.0])
        text = "^Expected backward function to handle undefined output grads."
        warns = pytest.warns(UserWarning, match="check_undefined_grad=False")
        with warns, pytest.raises(GradcheckError, match=text) as caught:
            gradcheck(f, x, fast_mode=fast)
        assert str(caught.value.__cause__) == "no gradient"
        with pytest.warns(UserWarning, match="check_undefined_grad=False"):
            assert not gradcheck(f, x, fast_mode=fast, raise_exception=False)
        assert gradcheck(f, x, fast_mode=fast, check_undefined_grad=False)

    @both_modes
    def test_a_backward_that_takes_them_as_ones(self, fast):
        f = make(lenient, lambda ctx, g: tg.ones(2) if g is None else g * 2).apply
        text = "^Expected all input grads to be undefined or zero when all output grads are"
        warns = pytest.warns(UserWarning, match="New undefined gradient support checking")
        with warns as caught, pytest.raises(GradcheckError, match=text):
            gradcheck(f, leaf([1.0, 2.0]), fast_mode=fast)
        assert caught[0].filename == __file__

    @both_modes
    def test_one_of_two(self, fast):
        def backward(ctx, g, h):
            if h is None:
                return g * 2
            return g * 2 + h * 3  # fails if the first is undefined alone

        f, x = make(lenient_pair, backward).apply, leaf([1.0, 2.0])
        with pytest.raises(TypeError):
            gradcheck(lambda x: tuple(y * 1.0 for y in f(x)), x, fast_mode=fast)

    @both_modes
    def test_materialized_gradients_are_never_undefined(self, fast):
        f = make(lambda ctx, x: (x * 2, x * 3), lambda ctx, g, h: g * 2 + h * 3)
        assert gradcheck(f.apply, leaf([1.0, 2.0]), fast_mode=fast)
