"""`allow_mutation_on_saved_tensors`."""

import math

import pytest
from functions import Exp
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, grad
from tapegrad.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    saved_tensors_hooks,
)

OUTSIDE = (
    "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the "
    "graph was originally recorded."
)
MODIFIED = "one of the variables needed for gradient computation has been modified"
COS = [math.cos(1.0), math.cos(2.0)]
EXP = [math.exp(1.0), math.exp(2.0)]


class TestMutation:
    """A saved tensor may be written to: backward uses the value it had."""

    @pytest.mark.parametrize(
        "write",
        [
            lambda t: t.mul_(3),
            lambda t: t.zero_(),
            lambda t: t.__setitem__(0, 7.0),
            lambda t: t.__imul__(2),
            lambda t: t.detach().mul_(3),
            lambda t: t[:1].mul_(3),
        ],
        ids=["method", "zero_", "item", "operator", "detached", "view"],
    )
    def test_a_saved_argument(self, write):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x * 1.0
            z = y.sin().sum()
            write(y)
            z.backward()
        assert x.grad.tolist() == pytest.approx(COS)

    def test_a_saved_result(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x.exp()
            z = y.sum()
            y.zero_()
            z.backward()
        assert x.grad.tolist() == pytest.approx(EXP)

    def test_the_tensor_has_its_new_value_at_once(self):
        with allow_mutation_on_saved_tensors():
            y = leaf_of(1.0, 2.0) * 1.0
            z = y.sin()
            y.mul_(3)
            assert y.tolist() == [3.0, 6.0]
            y[0] = 5.0
            assert y.tolist() == [5.0, 6.0]
            assert z.tolist() == pytest.approx([math.sin(1.0), math.sin(2.0)])

    def test_saved_again_after_a_write(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x * 1.0
            a = y.exp().sum()
            y.mul_(3)
            b = y.sin().sum()
            y.zero_()
            (a + b).backward()
        expected = [math.exp(v) + 3 * math.cos(3 * v) for v in (1.0, 2.0)]
        assert x.grad.tolist() == pytest.approx(expected)

    def test_a_leaf_written_without_recording(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            z = x.sin().sum()
            with tg.no_grad():
                x.mul_(2)
            z.backward()
        assert x.grad.tolist() == pytest.approx(COS)

    def test_what_is_saved_and_not_written(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            x.sin().sum().backward()
        assert x.grad.tolist() == pytest.approx(COS)

    def test_two_backwards(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x * 1.0
            z = y.sin().sum()
            y.zero_()
            z.backward(retain_graph=True)
            z.backward()
        assert x.grad.tolist() == pytest.approx([2 * v for v in COS])

    def test_double_backward(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x * 1.0
            z = y.sin().sum()
            y.zero_()
            (g,) = grad(z, x, create_graph=True)
            (second,) = grad(g.sum(), x)
        assert g.tolist() == pytest.approx(COS)
        assert second.tolist() == pytest.approx([-math.sin(1.0), -math.sin(2.0)])

    def test_what_was_saved_before_the_context_is_checked_as_ever(self):
        y = leaf_of(1.0, 2.0) * 1.0
        z = y.sin().sum()
        with allow_mutation_on_saved_tensors():
            y.mul_(2)
            with pytest.raises(RuntimeError, match=MODIFIED):
                z.backward()

    def test_what_is_saved_after_the_context_is_checked_as_ever(self):
        with allow_mutation_on_saved_tensors():
            pass
        y = leaf_of(1.0, 2.0) * 1.0
        z = y.sin().sum()
        y.mul_(2)
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()


class TestViews:
    """Writes through views and to bases are seen on either side."""

    @pytest.mark.parametrize("side", ["base", "view"])
    def test_both_saved(self, side):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x * 1.0
            view = y[:1]
            z = y.sin().sum() + view.exp().sum()
            (y if side == "base" else view).mul_(10)
            assert y[0].item() == view[0].item() == 10.0
            z.backward()
        assert x.grad.tolist() == pytest.approx([COS[0] + EXP[0], COS[1]])


class TestFunctions:
    """What a Function saved may be written to as well."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    def test_a_saved_argument(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = x * 1.0
            z = self.Square.apply(y)
            y.zero_()
            z.sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_a_saved_result(self):
        x = leaf_of(1.0, 2.0)
        with allow_mutation_on_saved_tensors():
            y = Exp.apply(x)
            z = y.sum()
            y.zero_()
            z.backward()
        assert x.grad.tolist() == pytest.approx(EXP)


class TestScope:
    """Contexts do not nest, and graphs recorded inside belong to their context."""

    @pytest.mark.parametrize("mutated", [False, True])
    def test_backward_outside(self, mutated):
        with allow_mutation_on_saved_tensors():
            y = leaf_of(1.0, 2.0) * 1.0
            z = y.sin().sum()
            if mutated:
                y.zero_()
        with pytest.raises(AssertionError, match=OUTSIDE):
            z.backward()

    def test_backward_in_another_context(self):
        with allow_mutation_on_saved_tensors():
            z = leaf_of(1.0, 2.0).sin().sum()
        with allow_mutation_on_saved_tensors(), pytest.raises(AssertionError, match=OUTSIDE):
            z.backward()

    def test_recorded_before_it(self):
        x = leaf_of(1.0, 2.0)
        z = x.sin().sum()
        with allow_mutation_on_saved_tensors():
            z.backward()
        assert x.grad.tolist() == pytest.approx(COS)

    def test_nesting(self):
        with allow_mutation_on_saved_tensors():
            context = allow_mutation_on_saved_tensors()
            text = "allow_mutation_on_saved_tensors contexts cannot be nested"
            with pytest.raises(RuntimeError, match=text):
                context.__enter__()

    def test_one_after_the_other(self):
        x = leaf_of(1.0, 2.0)
        for _ in range(2):
            with allow_mutation_on_saved_tensors():
                y = x * 1.0
                z = (y * y).sum()
                y.zero_()
                z.backward()
        assert x.grad.tolist() == [4.0, 8.0]

    def test_after_an_exception(self):
        with pytest.raises(KeyError), allow_mutation_on_saved_tensors():
            raise KeyError
        self.test_recorded_before_it()

    def test_it_uses_the_hooks_of_saved_tensors(self):
        with (
            disable_saved_tensors_hooks("mine"),
            pytest.raises(RuntimeError, match="mine"),
            allow_mutation_on_saved_tensors(),
        ):
            pass

    def test_hooks_inside_it_go_first(self):
        seen = []
        x = leaf_of(1.0, 2.0)
        with (
            allow_mutation_on_saved_tensors(),
            saved_tensors_hooks(lambda t: seen.append(1) or t.detach(), lambda t: t),
        ):
            x.sin().sum().backward()
        assert seen == [1]
        assert x.grad.tolist() == pytest.approx(COS)

    def test_the_context_can_be_cleared(self):
        with allow_mutation_on_saved_tensors() as context:
            y = leaf_of(1.0, 2.0) * 1.0
            z = y.sin().sum()
            y.zero_()
            context.clear()
            with pytest.raises(AssertionError, match=OUTSIDE):
                z.backward()
