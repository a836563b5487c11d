"""`gradcheck` and `gradgradcheck`."""

import numpy as np
import pytest
from functions import Cube, make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import forward_ad, gradcheck, gradgradcheck
from tapegrad.autograd.gradcheck import GradcheckError

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["slow", "fast"])


def square(backward, name="Square"):
    """A Function x * x with a backward of (g, x)."""

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    return make(forward, lambda ctx, g: backward(g, *ctx.saved_tensors), name=name)


Square = square(lambda g, x: 2 * g * x)
Wrong = square(lambda g, x: 3 * g * x)


class TestRightGradients:
    """Functions with right gradients pass, whatever they take and return."""

    @both_modes
    @pytest.mark.parametrize(
        "f",
        [
            tg.sin,
            lambda x: x @ x.T,
            lambda x: tg.exp(x).sum(),
            lambda x: x,
            lambda x: x[1],
            lambda x: x * 0.0,
            lambda x: (x, x * x, x.sum()),
            lambda x: [x * 2, x * 3],
            Square.apply,
            lambda x: Cube.apply(Square.apply(x)),
        ],
    )
    def test_one_input(self, f, fast):
        assert gradcheck(f, leaf([[0.3, -1.2], [0.7, 2.0]]), fast_mode=fast) is True

    @both_modes
    def test_several_inputs(self, fast):
        x, y = leaf([0.5, 1.5]), leaf(2.0)
        assert gradcheck(lambda x, y: (x * y, tg.sin(y), x.sum()), (x, y), fast_mode=fast)
        assert gradcheck(lambda x, y: x * y, [x, y], fast_mode=fast)

    @both_modes
    def test_inputs_without_gradients(self, fast):
        x, fixed = leaf([0.5, 1.5]), tg.tensor([2.0, 3.0])
        assert gradcheck(lambda a, x, n: a * x**n, (fixed, x, 3), fast_mode=fast)

    @both_modes
    def test_an_output_that_does_not_depend_on_an_input(self, fast):
        x, y = leaf([0.5, 1.5]), leaf(2.0)
        assert gradcheck(lambda x, y: (x * 2, y * 3), (x, y), fast_mode=fast)
        assert gradcheck(lambda x, y: x * 2, (x, y), fast_mode=fast)

    @both_modes
    @pytest.mark.parametrize("place", [0, 1])
    def test_outputs_without_gradients_are_left_out(self, place, fast):
        def f(x):
            outputs = [x * x]
            outputs.insert(place, tg.argmax(x))
            return tuple(outputs)

        assert gradcheck(f, leaf([0.5, 1.5]), fast_mode=fast)

    @both_modes
    @pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (2, 1, 2)])
    def test_shapes(self, shape, fast):
        x = leaf(np.linspace(0.5, 1.0, int(np.prod(shape))).reshape(shape))
        assert gradcheck(lambda x: (tg.sin(x), x.sum()), x, fast_mode=fast)

    @both_modes
    @pytest.mark.parametrize(
        "view", [lambda x: x[::2], lambda x: x[::-1], lambda x: x.reshape(2, 2).T, lambda x: x[1]]
    )
    def test_inputs_that_are_views(self, view, fast):
        x = view(leaf([0.5, 1.5, -0.5, 2.0]))
        assert not x.is_leaf
        assert gradcheck(lambda x: tg.exp(x) * x, x, fast_mode=fast)

    @both_modes
    def test_no_outputs(self, fast):
        assert gradcheck(lambda x: (), leaf(1.0), fast_mode=fast)

    @both_modes
    def test_an_input_that_is_written_to_in_a_copy(self, fast):
        assert gradcheck(lambda x: (x * 1.0).mul_(x), leaf([0.5, 1.5]), fast_mode=fast)


class TestWhatTheFunctionSees:
    """The function gets the inputs themselves, moved in place, and they are put back."""

    @both_modes
    def test_a_function_that_holds_its_input(self, fast):
        x = leaf([0.5, 1.5])
        assert gradcheck(lambda _: x * x, x, fast_mode=fast)
        with pytest.raises(GradcheckError):
            gradcheck(lambda _: Wrong.apply(x), x, fast_mode=fast)

    @both_modes
    def test_the_inputs_are_put_back(self, fast):
        x = leaf([0.1, 0.2, 1e300])
        before = x.detach().numpy().copy()
        gradcheck(tg.sin, x, fast_mode=fast, raise_exception=False)
        assert (x.detach().numpy() == before).all()

    def test_the_inputs_are_put_back_after_an_error(self):
        def f(x):
            if x[0].item() > 1.0:
                raise KeyError("moved")
            return x * 2

        x = leaf([1.0, 2.0])
        with pytest.raises(KeyError, match="moved"):
            gradcheck(f, x)
        assert x.tolist() == [1.0, 2.0]

    @both_modes
    def test_tensors_that_require_gradients(self, fast):
        seen = []

        def f(x, y):
            seen.append((x.requires_grad, y.requires_grad, tg.is_grad_enabled()))
            return x * y

        gradcheck(f, (leaf([1.0, 2.0]), tg.tensor([1.0, 2.0])), fast_mode=fast)
        assert set(seen) == {(True, False, True)}
        # once for the outputs, twice for each direction, once with undefined gradients
        assert len(seen) == (4 if fast else 6)

    @both_modes
    def test_no_grad_is_touched(self, fast):
        x = leaf([1.0, 2.0])
        x.grad = tg.tensor([5.0, 5.0])
        gradcheck(tg.sin, x, fast_mode=fast)
        assert x.grad.tolist() == [5.0, 5.0]


class TestWrongGradients:
    """A wrong gradient raises GradcheckError, in every mode."""

    @both_modes
    @pytest.mark.parametrize(
        "backward",
        [
            lambda g, x: 3 * g * x,
            lambda g, x: -2 * g * x,
            lambda g, x: 2 * g * x + g * 1e-2,
            lambda g, x: g,
            lambda g, x: None,
            lambda g, x: (2 * g * x)[::-1],
            lambda g, x: tg.sum(2 * g * x) * tg.ones(2),
            lambda g, x: g * np.nan,
        ],
        ids=["factor", "sign", "slightly", "one", "none", "order", "mixed", "nan"],
    )
    def test_caught(self, backward, fast):
        x = leaf([0.5, 1.5])
        with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0"):
            gradcheck(square(backward).apply, x, fast_mode=fast)
        assert gradcheck(square(backward).apply, x, fast_mode=fast, raise_exception=False) is False

    def test_the_text_shows_both_jacobians(self):
        with pytest.raises(GradcheckError) as caught:
            gradcheck(lambda x: x * x.detach(), leaf([2.0, 3.0]))
        assert str(caught.value) == (
            "Jacobian mismatch for output 0 with respect to input 0,\n"
            "numerical:tensor([[4., 0.],\n        [0., 6.]])\n"
            "analytical:tensor([[2., 0.],\n        [0., 3.]])\n"
        )

    def test_rows_are_elements_of_the_input(self):
        f = make(lambda ctx, x: x[:1] * 2, lambda ctx, g: tg.concatenate([g, g * 5, g * 7]))
        with pytest.raises(GradcheckError) as caught:
            gradcheck(f.apply, leaf([1.0, 2.0, 3.0]))
        assert "analytical:tensor([[1.],\n        [5.],\n        [7.]])" in str(caught.value)

    @both_modes
    def test_outputs_and_inputs_that_require_gradients_are_counted(self, fast):
        def f(fixed, x, y):
            return tg.argmax(x), x * y * fixed, Wrong.apply(y)

        inputs = (tg.tensor([2.0, 2.0]), leaf([1.0, 2.0]), leaf([1.0, 2.0]))
        with pytest.raises(GradcheckError, match="for output 1 with respect to input 1,"):
            gradcheck(f, inputs, fast_mode=fast)

    @both_modes
    def test_a_dependence_that_is_lost(self, fast):
        with pytest.raises(GradcheckError, match="Jacobian mismatch"):
            gradcheck(lambda x: x * 2 + x.detach(), leaf([1.0, 2.0]), fast_mode=fast)

    @both_modes
    def test_a_hook_that_changes_the_gradient(self, fast):
        x = leaf([1.0, 2.0])
        x.register_hook(lambda g: g * 2)
        with pytest.raises(GradcheckError, match="Jacobian mismatch"):
            gradcheck(lambda x: x * 3, x, fast_mode=fast)

    def test_it_is_a_runtime_error(self):
        assert issubclass(GradcheckError, RuntimeError)

    @both_modes
    def test_other_errors_pass_through(self, fast):
        def fail(g, x):
            raise ZeroDivisionError("in backward")

        with pytest.raises(ZeroDivisionError, match="in backward"):
            gradcheck(square(fail).apply, leaf([1.0]), fast_mode=fast, raise_exception=False)


class TestOutputsWithoutGradients:
    """If no output requires gradients, the outputs have to be constant."""

    @both_modes
    @pytest.mark.parametrize("f", [lambda x: tg.ones(3), lambda x: tg.argmax(x), lambda x: x // 10])
    def test_constant(self, f, fast):
        assert gradcheck(lambda x: f(x).detach(), leaf([1.0, 2.0]), fast_mode=fast)

    @both_modes
    def test_not_constant(self, fast):
        with pytest.raises(
            GradcheckError, match=r"^Numerical gradient for function expected to be"
        ):
            gradcheck(lambda x: x.detach() * 2, leaf([1.0, 2.0]), fast_mode=fast)

    @both_modes
    def test_in_no_grad(self, fast):
        with tg.no_grad(), pytest.raises(GradcheckError, match="expected to be zero"):
            gradcheck(tg.sin, leaf([1.0, 2.0]), fast_mode=fast)

    def test_an_output_that_is_no_tensor(self):
        with pytest.raises(TypeError, match="output 1 of func is a float, not a Tensor"):
            gradcheck(lambda x: (x, 2.0), leaf(1.0))


class TestOutputsThatChange:
    """Shapes and dtypes of outputs must not depend on the values of inputs."""

    def test_shape(self):
        with pytest.raises(AssertionError) as caught:
            gradcheck(lambda x: (x * 2)[: 1 + (x[1].item() >= 2.0)], leaf([1.0, 2.0]))
        assert str(caught.value) == (
            "Expected `func` to return outputs with the same shape when inputs are perturbed on "
            "index (1,) by 1e-06, but got: shapes (1,) and (2,)."
        )

    def test_shape_in_fast_mode(self):
        with pytest.raises(AssertionError, match="inputs are perturbed by 1e-06, but got: shapes"):
            gradcheck(
                lambda x: (x * 2)[: 1 + (x[1].item() >= 2.0)], leaf([1.0, 2.0]), fast_mode=True
            )

    def test_dtype(self):
        def f(x):
            return x * 2 if x.item() >= 1.0 else (x * 2).astype(np.float32)

        with pytest.raises(
            AssertionError, match=r"the same dtype when .* dtypes float32 and float64"
        ):
            gradcheck(f, leaf(1.0))


class TestInputs:
    """At least one input requires gradients, in double precision, without shared elements."""

    @pytest.mark.parametrize("inputs", [tg.tensor([1.0]), (tg.tensor(1.0), 2.0), 3.0, ()])
    def test_none_requires_gradients(self, inputs):
        with pytest.raises(ValueError) as caught:
            gradcheck(lambda *xs: tg.ones(1), inputs, raise_exception=False)
        assert str(caught.value) == (
            "gradcheck expects at least one input tensor to require gradient, but none of them "
            "have requires_grad=True."
        )

    def test_elements_that_share_memory(self):
        x = tg.broadcast_to(leaf(1.0), (3,))
        with pytest.raises(RuntimeError) as caught:
            gradcheck(lambda n, x: x * n, (2, x), raise_exception=False)
        assert str(caught.value).startswith(
            "The 1th input has a dimension with stride 0. gradcheck only supports inputs that are "
            "non-overlapping to be able to compute the numerical gradients correctly."
        )

    @both_modes
    def test_a_dimension_of_one_may_have_stride_zero(self, fast):
        x = tg.as_tensor(np.lib.stride_tricks.as_strided(np.ones(2), (1, 2), (0, 8)))
        assert gradcheck(tg.sin, x.requires_grad_(), fast_mode=fast)

    def test_less_than_double_precision_warns(self):
        x = leaf([1.0, 2.0], np.float32)
        with pytest.warns(UserWarning, match="requires gradient") as caught:
            assert gradcheck(lambda n, x: x * n, (2, x), eps=1e-2, atol=1e-2)
        assert [str(w.message) for w in caught] == [
            "Input #1 requires gradient and is not a double precision floating point or complex. "
            "This check will likely fail if all the inputs are not of double precision floating "
            "point or complex. "
        ]
        assert caught[0].filename == __file__

    def test_float32_without_gradients_does_not_warn(self):
        fixed = tg.tensor([1.0, 2.0], dtype=np.float32)
        assert gradcheck(lambda a, x: a * x, (fixed, leaf([1.0, 2.0])))


class TestTolerances:
    """A derivative may differ from the difference d by atol + rtol * abs(d)."""

    @both_modes
    def test_atol_and_rtol(self, fast):
        x = leaf([1.0, 2.0])
        assert gradcheck(Wrong.apply, x, atol=3.0, rtol=0.0, fast_mode=fast)
        assert gradcheck(Wrong.apply, x, atol=0.0, rtol=0.6, fast_mode=fast)
        assert not gradcheck(
            Wrong.apply, x, atol=0.0, rtol=0.4, fast_mode=fast, raise_exception=False
        )

    @both_modes
    def test_eps(self, fast):
        x = leaf([1.0, 2.0])
        options = {"rtol": 0.0, "atol": 1e-3, "fast_mode": fast, "raise_exception": False}
        assert gradcheck(lambda x: x**3, x, eps=1e-3, **options)
        assert not gradcheck(lambda x: x**3, x, eps=1e-1, **options)


class TestOptions:
    """Options are keywords; what the reverse mode cannot check is refused by name."""

    @pytest.mark.parametrize(
        ("check", "options", "text"),
        [
            (
                gradcheck,
                {"check_batched_grad": True, "check_backward_ad": False, "check_forward_ad": True},
                "Setting check_batched_grad=True requires check_backward_ad to be True",
            ),
            (
                gradcheck,
                {"check_batched_forward_grad": True},
                "Setting check_batched_forward_grad=True requires check_forward_ad to be True",
            ),
            (
                gradgradcheck,
                {"check_fwd_over_rev": True, "check_rev_over_rev": False},
                "Setting check_undefined_grad=True requires check_rev_over_rev to be True",
            ),
        ],
    )
    def test_options_that_do_not_fit(self, check, options, text):
        with pytest.raises(AssertionError, match=text):
            check(tg.sin, leaf(1.0), **options)

    @pytest.mark.parametrize("fast", [False, True])
    def test_forward_mode(self, fast):
        def f(x, y):
            return tg.linalg.solve(x @ x.T + 2.0 * tg.eye(2), tg.sin(y)), tg.exp(x).sum(), y * 2.0

        args = leaf([[0.5, -1.0], [0.3, 0.8]]), leaf([0.2, 0.7])
        options = {"check_forward_ad": True, "check_batched_forward_grad": True, "fast_mode": fast}
        assert gradcheck(f, args, **options)
        assert gradcheck(f, args, check_backward_ad=False, **options)
        assert gradgradcheck(f, args, check_fwd_over_rev=True, fast_mode=fast)
        assert gradgradcheck(
            f,
            args,
            check_fwd_over_rev=True,
            check_rev_over_rev=False,
            check_undefined_grad=False,
            fast_mode=fast,
        )

    @pytest.mark.parametrize("fast", [False, True])
    def test_forward_mode_of_complex_numbers(self, fast):
        z = tg.tensor([0.5 + 1.0j, -0.3 + 0.2j], requires_grad=True)
        options = {"check_forward_ad": True, "fast_mode": fast}
        assert gradcheck(lambda z: z * z * 1j, z, **options)
        assert gradcheck(lambda z: (tg.abs(z), z * tg.abs(z), tg.real(z)), z, **options)

    @pytest.mark.parametrize("fast", [False, True])
    def test_wrong_tangents(self, fast):
        class F(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                ctx.save_for_forward(x)
                return x * x

            @staticmethod
            def backward(ctx, g):
                return 2.0 * g * ctx.saved_tensors[0]

            @staticmethod
            def jvp(ctx, t):
                return 3.0 * t * ctx.saved_tensors[0]

        x = leaf([1.0, 2.0])
        assert gradcheck(F.apply, x, fast_mode=fast)
        text = "Jacobian computed with forward mode mismatch for output 0 with respect to input 0,"
        with pytest.raises(GradcheckError, match=text):
            gradcheck(F.apply, x, check_forward_ad=True, fast_mode=fast)
        assert not gradcheck(
            F.apply, x, check_forward_ad=True, check_backward_ad=False, raise_exception=False
        )

    @both_modes
    @pytest.mark.parametrize("backward", [False, True])
    def test_the_function_is_called_with_dual_tensors(self, backward, fast):
        def f(x, factor):
            primal, t = forward_ad.unpack_dual(x)
            return x * x if t is None else forward_ad.make_dual(primal**2, factor * primal * t)

        options = {"check_forward_ad": True, "check_backward_ad": backward, "fast_mode": fast}
        assert gradcheck(f, (leaf([1.0, 2.0]), 2.0), **options)
        with pytest.raises(GradcheckError, match="Jacobian computed with forward mode mismatch"):
            gradcheck(f, (leaf([1.0, 2.0]), 3.0), **options)

    @both_modes
    def test_forward_mode_needs_a_jvp(self, fast):
        with pytest.raises(NotImplementedError, match="You must implement the jvp function"):
            gradcheck(Square.apply, leaf([1.0, 2.0]), check_forward_ad=True, fast_mode=fast)

    def test_reverse_mode_is_checked_first(self):
        with pytest.raises(GradcheckError, match=r"^Jacobian mismatch for output 0"):
            gradcheck(Wrong.apply, leaf([1.0, 2.0]), check_forward_ad=True)

    @both_modes
    def test_undefined_tangents(self, fast):
        def f(x, y):
            (px, xt), (py, yt) = map(forward_ad.unpack_dual, (x, y))
            if yt is None or xt is not None:
                return x * y
            return forward_ad.make_dual(px * py, 3.0 * px * yt)

        args = leaf([1.0, 2.0]), leaf([0.5, 0.7])
        options = {"check_forward_ad": True, "fast_mode": fast}
        with pytest.raises(GradcheckError, match="when input: 0 has an undefined tangent value"):
            gradcheck(f, args, **options)
        assert gradcheck(f, args, check_undefined_grad=False, **options)

    @pytest.mark.parametrize(
        "f",
        [tg.jit(lambda x: tg.sin(x) * x), lambda x: tg.vmap(tg.sin)(x), lambda x: x.copy().mul_(x)],
        ids=["jit", "vmap", "in place"],
    )
    def test_other_functions_in_forward_mode(self, f):
        options = {"check_forward_ad": True, "check_batched_forward_grad": True}
        assert gradcheck(f, leaf([1.0, 2.0]), **options)

    def test_batched_gradients(self):
        def f(x):
            return tg.linalg.solve(x @ x.T + 2.0 * tg.eye(2), tg.sin(x)), tg.exp(x).sum()

        x = leaf([[0.5, -1.0], [0.3, 0.8]])
        assert gradcheck(f, x, check_batched_grad=True)
        assert gradgradcheck(f, x, check_batched_grad=True)

    @pytest.mark.parametrize("scale", [2.0, None], ids=["other values", "an error"])
    def test_backward_that_treats_batches_differently(self, scale):
        class F(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1.0

            @staticmethod
            def backward(ctx, g):
                if type(g) is tg.Tensor:
                    return g * 1.0
                if scale is None:
                    raise RuntimeError("no batches here")
                return scale * g

        x = leaf([0.5, 1.0])
        assert gradcheck(F.apply, x)
        text = (
            "For output 0 and input 0:\n\ngradcheck or gradgradcheck failed while testing batched"
        )
        if scale is None:
            text = "While computing batched gradients, got: no batches here"
        with pytest.raises(GradcheckError, match=text):
            gradcheck(F.apply, x, check_batched_grad=True)
        assert not gradcheck(F.apply, x, check_batched_grad=True, raise_exception=False)

    def test_something_has_to_be_checked(self):
        text = "Expected at least one of check_forward_ad or check_backward_ad to be True"
        with pytest.raises(AssertionError, match=text):
            gradcheck(tg.sin, leaf(1.0), check_backward_ad=False)
        text = "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        with pytest.raises(AssertionError, match=text):
            gradgradcheck(tg.sin, leaf(1.0), check_rev_over_rev=False)

    @both_modes
    @pytest.mark.parametrize("masked", [None, False, True])
    def test_masked_makes_no_difference(self, masked, fast):
        x = leaf([1.0, 2.0])
        options = {"masked": masked, "fast_mode": fast, "raise_exception": False}
        assert gradcheck(Square.apply, x, **options)
        assert not gradcheck(Wrong.apply, x, **options)

    def test_they_are_keywords(self):
        with pytest.raises(TypeError):
            gradcheck(tg.sin, leaf(1.0), 1e-6)
        with pytest.raises(TypeError):
            gradgradcheck(tg.sin, leaf(1.0), None, 1e-6)


class TestFastMode:
    """Fast mode compares projections of the Jacobians, and shows the whole ones on failure."""

    def test_the_text(self):
        with pytest.raises(GradcheckError) as caught:
            gradcheck(Wrong.apply, leaf([1.0, 2.0]), fast_mode=True)
        text = str(caught.value)
        assert text.startswith("Jacobian mismatch for output 0 with respect to input 0,\nnumeri")
        assert "\nThe above quantities relating the numerical and analytical jacobians are" in text
        assert "we recompute numerical and analytical jacobians in slow mode:\n\nNumeri" in text
        assert "\nAnalytical:\ntensor([[3., 0.],\n        [0., 6.]])\n" in text
        assert "\nThe max per-element difference (slow mode) is: 1.99999" in text
        assert "Fast gradcheck failed but" not in text

    def test_the_projections_are_numbers(self):
        with pytest.raises(GradcheckError) as caught:
            gradcheck(Wrong.apply, leaf([1.0, 2.0]), fast_mode=True)
        first, second = str(caught.value).splitlines()[1:3]
        numerical = float(first.removeprefix("numerical:"))
        analytical = float(second.removeprefix("analytical:"))
        assert analytical == pytest.approx(1.5 * numerical)

    def test_small_differences_are_pointed_out(self):
        # within rtol of every element, but not of their sum, as the signs differ
        signs = np.tile([1.0, -1.0], 100)
        f = make(lambda ctx, x: x * signs, lambda ctx, g: g * (signs + 5e-4)).apply
        x = leaf(np.ones(200))
        assert gradcheck(f, x, atol=0.0)
        with pytest.raises(GradcheckError, match="element-wise differences are small") as caught:
            gradcheck(f, x, atol=0.0, fast_mode=True)
        assert "might've passed in slow_mode" in str(caught.value)

    def test_the_same_every_time(self):
        texts = set()
        for _ in range(2):
            with pytest.raises(GradcheckError) as caught:
                gradcheck(Wrong.apply, leaf([1.0, 2.0]), fast_mode=True)
            texts.add(str(caught.value))
        assert len(texts) == 1
