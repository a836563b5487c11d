"""Behaviour that is easy to get wrong: the contract's items by their numbers, one test each.

This is the index; the details are in the other files of this folder.
"""

import gc
import re
import threading
import warnings
import weakref

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import backward, grad
from tapegrad.autograd.function import once_differentiable
from tapegrad.autograd.graph import (
    allow_mutation_on_saved_tensors,
    get_gradient_edge,
    saved_tensors_hooks,
)


def raises(text, error=RuntimeError):
    """Expect an error whose text has these words as they stand."""
    return pytest.raises(error, match=re.escape(text))


def function(forward, backward, name="F"):
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (tg.Function,), body)


class TestGraphs:
    """Items 1, 5 to 8, 21 to 23, 28, 31: graphs, their arguments, their lifetime, threads."""

    def test_item_01_second_time(self):
        x = leaf([1.0, 2.0])
        free = (x + 1).sum()
        free.backward()
        free.backward()
        saved = (x * x).sum()
        saved.backward()
        with raises("Trying to backward through the graph a second time (or directly access saved"):
            saved.backward()
        with raises("Specify retain_graph=True"):
            saved.backward()

    def test_item_05_no_graph(self):
        x = leaf(1.0)
        with raises("element 1 of tensors does not require grad and does not have a grad_fn"):
            backward([x * 2, tg.tensor(1.0)])

    def test_item_06_not_a_scalar(self):
        with raises("grad can be implicitly created only for scalar outputs"):
            leaf([1.0, 2.0]).backward()

    def test_item_07_shape_of_a_cotangent(self):
        with raises("Mismatch in shape: grad_output[0] has a shape of "):
            (leaf([1.0, 2.0]) * 2).backward(tg.ones(3))

    def test_item_08_inputs(self):
        x, w = leaf(1.0), leaf(2.0)
        with raises(
            "The differentiated Tensor at index 0 appears to not have been used in the graph. Set "
            "allow_unused=True"
        ):
            grad(x * 2, w)
        with raises("One of the differentiated Tensors does not require grad"):
            grad(x * 2, tg.tensor(1.0))
        with raises("`inputs` argument to `backward()` cannot be empty."):
            (x * 2).backward(inputs=[])

    def test_item_21_accumulation(self):
        x = leaf([1.0])
        (x * 2).backward()
        kept = x.grad
        (x * 3).backward()
        assert x.grad is kept
        with pytest.warns(UserWarning, match="reference cycle"):
            (x * x).backward(create_graph=True)
        assert x.grad is not kept

    def test_item_22_grad_of_a_nonleaf(self):
        with pytest.warns(UserWarning, match="not a leaf Tensor is being accessed"):
            assert (leaf(1.0) * 2).grad is None

    def test_item_23_requires_grad(self):
        with raises("Only Tensors of floating point and complex dtype can require gradients"):
            tg.tensor([1], requires_grad=True)
        y = leaf(1.0) * 2
        with raises("you can only change requires_grad flags of leaf variables"):
            y.requires_grad = False
        with raises(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        ):
            y.numpy()

    def test_item_28_lifetime(self):
        gc.disable()
        try:
            y = leaf([1.0]).exp()
            held = weakref.ref(y.detach().numpy())
            del y
            assert held() is None
        finally:
            gc.enable()
        x = y = leaf(1.0)
        for _ in range(50_000):
            y = y * 1.0
        y.backward()
        assert x.grad.item() == 1.0
        del y

    def test_item_31_reentrant_and_threads(self):
        x, w = leaf(2.0), leaf(3.0)
        inner = w * w
        y = x * x
        y.register_hook(lambda g: inner.backward())
        sweep = threading.Thread(target=y.backward)
        sweep.start()
        sweep.join()
        assert (x.grad.item(), w.grad.item()) == (4.0, 6.0)

        def run():
            for _ in range(200):
                (x * 1.0).backward()

        sweeps = [threading.Thread(target=run) for _ in range(4)]
        for each in sweeps:
            each.start()
        for each in sweeps:
            each.join()
        assert x.grad.item() == 804.0


class TestMutation:
    """Items 2 to 4, 9 to 12, 26 and 27: in-place work, views, versions."""

    def test_item_02_modified(self):
        y = leaf([1.0, 2.0]).exp()
        total = y.sum()
        y += 1.0
        with raises(
            "one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [float64 [2]], which is output 0 of Exp"
        ):
            total.backward()
        with raises("is at version 1; expected version 0 instead. Hint: "):
            total.backward()

    def test_item_03_detach_and_data(self):
        x = leaf([1.0])
        y = x * 1
        y.detach().add_(1.0)
        assert (y.item(), y._version) == (2.0, 1)
        y.data.add_(1.0)
        assert (y.item(), y._version) == (3.0, 1)

    def test_item_04_leaves(self):
        x = leaf([1.0, 2.0])
        with raises("a leaf Variable that requires grad is being used in an in-place operation."):
            x += 1.0
        view = x[:1]
        with raises(
            "a view of a leaf Variable that requires grad is being used in an in-place operation."
        ):
            view += 1.0

    def test_item_09_multi_output_view(self):
        first, second = tg.split(leaf([1.0, 2.0]) * 1, 2)
        for k, piece in enumerate((first, second)):
            with pytest.raises(RuntimeError) as caught:
                piece += 1.0
            text = str(caught.value)
            assert f"Output {k} of Split" in text
            assert (
                " is a view and is being modified inplace. This view is the output of a function "
                "that returns multiple views."
            ) in text

    def test_item_10_no_grad_view(self):
        y = leaf([1.0, 2.0]) * 1
        with tg.no_grad():
            view = y[:1]
        with raises(
            "A view was created in no_grad mode and is being modified inplace with grad mode "
            "enabled."
        ):
            view += 1.0

    def test_item_11_function_view(self):
        same = function(lambda ctx, x: x, lambda ctx, g: g)
        y = same.apply(leaf([1.0]) * 1)
        with raises(
            "This view was created inside a custom Function (or because an input was returned "
            "as-is)"
        ):
            y += 1.0

    def test_item_12_bases_and_siblings(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        y.retain_grad()
        before, view, sibling = y.grad_fn.name(), y[:1], y[:]
        view *= 3
        assert y.grad_fn.name() != before
        (y + sibling).sum().backward()
        assert x.grad.tolist() == [6.0, 2.0]
        assert y.grad.tolist() == [2.0, 2.0]

    def test_item_26_allowed_mutation(self):
        x = leaf([1.0, 2.0])
        with allow_mutation_on_saved_tensors():
            y = x * 1
            total = (y * y).sum()
            y.zero_()
            total.backward()
            assert x.grad.tolist() == [2.0, 4.0]
            with (
                raises("allow_mutation_on_saved_tensors contexts cannot be nested"),
                allow_mutation_on_saved_tensors(),
            ):
                pass
            later = (x * x).sum()
        with raises(
            "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which "
            "the graph was originally recorded.",
            (RuntimeError, AssertionError),
        ):
            later.backward()

    def test_item_27_detach_of_a_view(self):
        with raises("Can't detach views in-place. Use detach() instead"):
            (leaf([1.0, 2.0]) * 1)[:1].detach_()


class TestFunctions:
    """Items 13 to 18: Functions."""

    def test_item_13_dirty_and_not_returned(self):
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2

        with raises(
            "Some elements marked as dirty during the forward method were not returned as output. "
            "The inputs that are modified inplace must all be outputs of the Function."
        ):
            function(forward, lambda ctx, g: g).apply(leaf([1.0]) * 1)

    def test_item_14_number_and_type_of_gradients(self):
        x = leaf([1.0])
        with raises(
            "function FBackward returned an incorrect number of gradients (expected 1, got 2)"
        ):
            function(lambda ctx, x: x * 2, lambda ctx, g: (g, g)).apply(x).backward()
        function(lambda ctx, x: x * 2, lambda ctx, g: (g, None)).apply(x).backward()
        assert x.grad.item() == 1.0
        with raises("expected Variable or None (got float)"):
            function(lambda ctx, x: x * 2, lambda ctx, g: 1.0).apply(x).backward()

    def test_item_15_shape_of_gradients(self):
        x = leaf(np.ones((5, 5)))
        with raises(
            "Function FBackward returned an invalid gradient at index 0 - got [10] but expected "
            "shape compatible with [5, 5]"
        ):
            function(lambda ctx, x: x * 2, lambda ctx, g: tg.ones(10)).apply(x).sum().backward()
        wide = function(lambda ctx, x: x * 2, lambda ctx, g: tg.ones((3, 2)))
        assert grad(wide.apply(w := leaf([1.0, 2.0])).sum(), w)[0].tolist() == [3.0, 3.0]

    def test_item_16_undefined_gradients(self):
        nothing = function(lambda ctx, x: x * 2, lambda ctx, g: None)
        x = leaf([1.0])
        assert grad(nothing.apply(x), x, allow_unused=True) == (None,)
        seen = []

        def forward(ctx, x):
            return x * 1, x * 2

        two = function(forward, lambda ctx, a, b: (seen.append(a.tolist()), b)[1])
        two.apply(x)[1].backward()
        assert seen == [[0.0]]

    def test_item_17_once_differentiable(self):
        once = function(lambda ctx, x: x * 2, once_differentiable(lambda ctx, g: g * 2))
        x = leaf([1.0])
        (g,) = grad(once.apply(x) * x, x, create_graph=True)
        with raises(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        ):
            g.backward()

    def test_item_18_what_a_function_is(self):
        x = leaf([1.0])

        def forward(ctx, x):
            ctx.save_for_backward(1)
            return x * 2

        with raises(
            "save_for_backward can only save variables, but argument 0 is of type int", TypeError
        ):
            function(forward, lambda ctx, g: g).apply(x)
        both = function(lambda ctx, x: x * 2, lambda ctx, g: g)
        both.vjp = staticmethod(lambda ctx, g: g)
        with raises("Implementing both 'backward' and 'vjp' for a custom Function is not allowed"):
            both.apply(x).backward()
        neither = type("F", (tg.Function,), {"forward": staticmethod(lambda ctx, x: x * 2)})
        with raises("You must implement either the backward or vjp method", NotImplementedError):
            neither.apply(x).backward()


class TestHooksAndModes:
    """Items 19, 20, 24, 25, 29, 30: hooks, anomalies, saved tensors, modes, checks."""

    def test_item_19_order_of_hooks(self):
        x = leaf([1.0])
        y = x * 2
        seen = []
        y.grad_fn.register_hook(lambda grads, outputs: seen.append("node"))
        y.grad_fn.register_prehook(lambda outputs: seen.append("prehook"))
        y.retain_grad()
        y.register_hook(lambda g: (seen.append("tensor"), g * 10)[1])
        x.register_post_accumulate_grad_hook(lambda p: seen.append("post"))
        x.register_hook(lambda g: seen.append("leaf"))
        y.backward()
        assert seen == ["tensor", "prehook", "node", "leaf", "post"]
        assert y.grad.item() == 10.0

        def shrinking(g):
            return g[:1]

        w = leaf([1.0, 2.0])
        w.register_hook(shrinking)
        with raises("hook 'shrinking' has changed the size of value"):
            (w * 2).sum().backward()
        with raises("cannot register a hook on a tensor that doesn't require gradient"):
            tg.ones(1).register_hook(shrinking)

    def test_item_20_post_accumulate_hooks(self):
        x = leaf([1.0])
        with raises("post accumulate grad hooks cannot be registered on non-leaf tensors"):
            (x * 2).register_post_accumulate_grad_hook(lambda p: None)
        x.register_post_accumulate_grad_hook(lambda p: p)
        with raises("Tensor post accumulate grad hooks should return None."):
            (x * 2).backward()

    def test_item_24_nan(self):
        nan = function(lambda ctx, x: x * 2, lambda ctx, g: g * np.nan)
        with warnings.catch_warnings(action="ignore"), tg.autograd.detect_anomaly():
            y = nan.apply(leaf([1.0]))
            with raises("Function 'FBackward' returned nan values in its 0th output."):
                y.backward()

    def test_item_25_saved_tensors_hooks(self):
        x = leaf([1.0, 2.0])
        with (
            raises("A saved tensor pack hook is modifying its input in place"),
            saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t),
        ):
            _ = x.clone().exp() ** 2
        with saved_tensors_hooks(lambda t: t, lambda t: 1):
            y = (x * x).sum()
        with raises(
            "Output of saved tensor unpack_hook expected to be a Tensor but got result of type int",
            TypeError,
        ):
            y.backward()

    def test_item_29_no_grad_as_a_decorator(self):
        @tg.no_grad()
        def numbers():
            yield tg.is_grad_enabled()
            yield tg.is_grad_enabled()

        found = [(each, tg.is_grad_enabled()) for each in numbers()]
        assert found == [(False, True), (False, True)]
        with pytest.warns(FutureWarning, match="Decorating classes is deprecated"):
            tg.no_grad()(type("A", (), {}))

    def test_item_30_gradcheck(self):
        wrong = function(lambda ctx, x: x * 2, lambda ctx, g: g * 3)
        with raises("Jacobian mismatch for output 0 with respect to input 0,") as caught:
            tg.autograd.gradcheck(wrong.apply, (leaf([1.0, 2.0]),))
        assert type(caught.value).__name__ == "GradcheckError"


class TestEdges:
    """Section 1 of the contract: edges of the graph stand for tensors."""

    def test_an_edge_is_an_input(self):
        x = leaf([1.0, 2.0])
        y = x * x
        total = (y * 3).sum()
        assert grad(total, get_gradient_edge(y))[0].tolist() == [3.0, 3.0]
