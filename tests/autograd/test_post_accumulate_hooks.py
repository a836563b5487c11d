"""Hooks after accumulation, `register_post_accumulate_grad_hook`."""

import warnings

import pytest
from functions import Nothing
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import grad


class TestPostAccumulate:
    """A hook after accumulation gets the leaf whenever backward has added to its `.grad`."""

    def test_what_it_gets(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append((t is x, t.grad.tolist())))
        (x * 3).sum().backward()
        (x * 4).sum().backward()
        assert seen == [(True, [3.0, 3.0]), (True, [7.0, 7.0])]

    def test_after_the_tensor_hooks(self):
        x = leaf_of(1.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.item()))
        x.register_hook(lambda g: g * 10)
        (x * 3).backward()
        assert seen == [30.0]

    def test_it_may_use_up_the_gradient(self):
        x = leaf_of(1.0, 2.0)

        def step(t):
            with tg.no_grad():
                t.sub_(t.grad * 0.5)
            t.grad = None

        x.register_post_accumulate_grad_hook(step)
        (x * 3).sum().backward()
        assert x.tolist() == [-0.5, 0.5]
        assert x.grad is None

    def test_in_order_and_removed(self):
        x = leaf_of(1.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append(1))
        handle = x.register_post_accumulate_grad_hook(lambda t: seen.append(2))
        x.register_post_accumulate_grad_hook(lambda t: seen.append(3))
        handle.remove()
        (x * 2).backward()
        assert seen == [1, 3]

    def test_not_under_grad(self):
        x = leaf_of(1.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append(1))
        grad(x * 2, x)
        assert seen == []

    def test_with_inputs(self):
        x, w = leaf_of(1.0), leaf_of(2.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append("x"))
        (x * w).backward(inputs=[w])
        (x * w).backward(inputs=[x])
        assert seen == ["x"]

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_grad_mode_inside(self, create_graph):
        x = leaf_of(1.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append(tg.is_grad_enabled()))
        with warnings.catch_warnings(action="ignore"):
            (x * x).backward(create_graph=create_graph)
        assert seen == [create_graph]

    def test_an_undefined_gradient(self):
        x = leaf_of(1.0)
        seen = []
        x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad))
        Nothing.apply(x).backward()
        assert seen == [None]

    def test_it_survives_a_write(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        x.register_hook(lambda g: seen.append("hook"))
        x.register_post_accumulate_grad_hook(lambda t: seen.append("post"))
        with tg.no_grad():
            x.mul_(3)
        (x * 3).sum().backward()
        assert seen == ["hook", "post"]

    def test_it_survives_a_change_of_requires_grad(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        x.register_hook(lambda g: seen.append("hook"))
        x.register_post_accumulate_grad_hook(lambda t: seen.append("post"))
        x.requires_grad_(False).requires_grad_()
        (x * 3).sum().backward()
        assert seen == ["hook", "post"]

    def test_an_error_in_it_comes_through(self):
        def fail(t):
            raise KeyError("mine")

        x = leaf_of(1.0)
        x.register_post_accumulate_grad_hook(fail)
        with pytest.raises(KeyError, match="mine"):
            (x * 3).backward()
        assert x.grad.item() == 3.0

    def test_it_should_return_none(self):
        x = leaf_of(1.0)
        x.register_post_accumulate_grad_hook(lambda t: t * 2)
        text = "Tensor post accumulate grad hooks should return None."
        with pytest.raises(RuntimeError, match=text):
            (x * 3).backward()

    def test_not_on_results(self):
        text = "post accumulate grad hooks cannot be registered on non-leaf tensors"
        with pytest.raises(RuntimeError, match=text):
            (leaf_of(1.0) * 2).register_post_accumulate_grad_hook(print)

    def test_not_on_passive_tensors(self):
        text = "cannot register a hook on a tensor that doesn't require gradient"
        with pytest.raises(RuntimeError, match=text):
            tg.ones(1).register_post_accumulate_grad_hook(print)
