"""Hooks of several tensors, `register_multi_grad_hook`."""

import pickle

import pytest
from functions import numbers
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, grad
from tapegrad.autograd.graph import register_multi_grad_hook


class TestAll:
    """In the mode "all", the hook runs once, when all gradients that come are there."""

    def test_none_for_those_that_are_not_computed(self):
        a, b = leaf_of(1.0, 2.0), leaf_of(3.0, 4.0)
        c, d = a * b, a * b
        seen = []
        register_multi_grad_hook((a, b, c, d), lambda g: seen.append(numbers(g)))
        c.sum().backward(retain_graph=True)
        assert seen.pop() == [[3.0, 4.0], [1.0, 2.0], [1.0, 1.0], None]
        c.sum().backward(inputs=(a,), retain_graph=True)
        assert seen.pop() == [[3.0, 4.0], None, [1.0, 1.0], None]
        (c + d).sum().backward()
        assert seen.pop() == [[6.0, 8.0], [2.0, 4.0], [1.0, 1.0], [1.0, 1.0]]
        assert seen == []

    def test_under_grad(self):
        x = leaf_of(1.0, 2.0)
        y, z = x * 2, x * 3
        seen = []
        register_multi_grad_hook((y, z), lambda g: seen.append(numbers(g)))
        grad((y * 5).sum() + z.sum(), x)
        assert seen == [[[5.0, 5.0], [1.0, 1.0]]]

    def test_it_does_not_run_if_none_is_computed(self):
        a, b = leaf_of(1.0), leaf_of(2.0)
        seen = []
        register_multi_grad_hook((a,), lambda g: seen.append(1))
        (b * 2).backward()
        assert seen == []

    def test_remove(self):
        a, b = leaf_of(1.0), leaf_of(2.0)
        seen = []
        handle = register_multi_grad_hook((a, b), lambda g: seen.append(1))
        handle.remove()
        handle.remove()
        (a * b).backward()
        assert seen == []

    def test_as_a_context(self):
        a, b = leaf_of(1.0), leaf_of(2.0)
        seen = []
        with register_multi_grad_hook((a, b), lambda g: seen.append(1)):
            (a * b).backward()
        (a * b).backward()
        assert seen == [1]

    def test_what_it_returns_is_ignored(self):
        x = leaf_of(1.0)
        register_multi_grad_hook((x,), lambda g: 5)
        (x * 2).backward()
        assert x.grad.tolist() == [2.0]

    def test_it_takes_its_place_among_the_tensor_hooks(self):
        x = leaf_of(1.0)
        seen = []
        x.register_hook(lambda g: seen.append("first"))
        register_multi_grad_hook((x,), lambda g: seen.append(numbers(g)))
        x.register_hook(lambda g: seen.append("last"))
        (x * 2).backward()
        assert seen == ["first", [[2.0]], "last"]

    def test_the_same_tensor_twice(self):
        x = leaf_of(1.0)
        seen = []
        register_multi_grad_hook((x, x), lambda g: seen.append(numbers(g)))
        (x * 2).backward()
        assert seen == [[[2.0], [2.0]]]

    def test_an_undefined_gradient(self):
        class First(Function):
            @staticmethod
            def forward(ctx, x, y):
                return x * y

            @staticmethod
            def backward(ctx, g):
                return g, None

        x, y = leaf_of(1.0), leaf_of(2.0)
        seen = []
        register_multi_grad_hook((x, y), lambda g: seen.append(numbers(g)))
        First.apply(x, y).backward()
        assert seen == [[[1.0], None]]

    def test_reentrant_backward(self):
        x, w = leaf_of(1.0, 1.0), leaf_of(1.0, 1.0)
        seen = []
        register_multi_grad_hook((x, w), lambda g: seen.append(numbers(g)))

        class Inner(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                with tg.enable_grad():
                    (x * w * 7).sum().backward()
                return g * 2

        (Inner.apply(x) * w).sum().backward()
        assert seen == [[[7.0, 7.0], [7.0, 7.0]], [[2.0, 2.0], [2.0, 2.0]]]

    def test_after_a_hook_that_raised(self):
        a, b = leaf_of(1.0), leaf_of(2.0)
        fail, seen = [True], []

        def hook(grads):
            if fail:
                fail.clear()
                raise ValueError("mine")
            seen.append(numbers(grads))

        register_multi_grad_hook((a, b), hook)
        y = a * b
        with pytest.raises(ValueError, match="mine"):
            y.backward(retain_graph=True)
        y.backward()
        assert seen == [[[2.0], [1.0]]]

    def test_after_a_backward_that_did_not_get_to_the_end(self):
        x = leaf_of(1.0)
        a = x * 2
        b = a * 3
        seen = []
        register_multi_grad_hook((a, b), lambda g: seen.append(numbers(g)))

        def fail(g):
            raise ValueError("mine")

        z = b * 1
        handle = b.grad_fn.register_prehook(fail)
        with pytest.raises(ValueError, match="mine"):
            z.backward(retain_graph=True)
        handle.remove()
        z.backward()
        assert seen == [[[3.0], [1.0]]]


class TestAny:
    """In the mode "any", the hook runs once, with the first gradient that is there."""

    def test_once_a_backward(self):
        a, b = leaf_of(1.0, 2.0), leaf_of(3.0, 4.0)
        c, d = a * b, a * b
        seen = []
        register_multi_grad_hook((a, b, c, d), lambda g: seen.append(g.tolist()), mode="any")
        (c * 2).sum().backward(retain_graph=True)
        (c * 5).sum().backward()
        (d * 3).sum().backward()
        assert seen == [[2.0, 2.0], [5.0, 5.0], [3.0, 3.0]]

    def test_tensors_that_do_not_require_grad_are_passed_over(self):
        x = leaf_of(1.0)
        seen = []
        register_multi_grad_hook((tg.ones(1), x), lambda g: seen.append(g.tolist()), mode="any")
        (x * 2).backward()
        assert seen == [[2.0]]

    def test_what_it_returns_is_ignored(self):
        x = leaf_of(1.0)
        register_multi_grad_hook((x,), lambda g: 5, mode="any")
        (x * 2).backward()
        assert x.grad.tolist() == [2.0]

    def test_remove(self):
        x, w = leaf_of(1.0), leaf_of(2.0)
        seen = []
        register_multi_grad_hook((x, w), lambda g: seen.append(1), mode="any").remove()
        (x * w).backward()
        assert seen == []

    def test_reentrant_backward(self):
        x = leaf_of(1.0)
        seen = []
        register_multi_grad_hook((x,), lambda g: seen.append(g.tolist()), mode="any")

        class Inner(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                with tg.enable_grad():
                    (x * 7).sum().backward()
                return g * 2

        Inner.apply(x).sum().backward()
        assert seen == [[7.0], [2.0]]


class TestArguments:
    """Wrong arguments are refused, and the handle can be pickled."""

    def test_mode(self):
        with pytest.raises(ValueError, match=r"Expects mode to be one of .* but got some"):
            register_multi_grad_hook((leaf_of(1.0),), print, mode="some")

    def test_mode_is_a_keyword(self):
        with pytest.raises(TypeError):
            register_multi_grad_hook((leaf_of(1.0),), print, "all")

    def test_a_tensor_that_does_not_require_grad(self):
        with pytest.raises((AssertionError, RuntimeError)):
            register_multi_grad_hook((leaf_of(1.0), tg.ones(1)), print)

    def test_no_tensors(self):
        assert register_multi_grad_hook((), print).remove() is None

    def test_the_state_is_that_of_the_single_handles(self):
        a, b = leaf_of(1.0), leaf_of(2.0)
        seen = []
        handle = register_multi_grad_hook((a, b), lambda g: seen.append(1))
        state = handle.__getstate__()
        assert len(state) == 2
        other = type(handle).__new__(type(handle))
        other.__setstate__(state)
        other.remove()
        (a * b).backward()
        assert seen == []

    def test_pickling(self):
        a, b = leaf_of(1.0), leaf_of(2.0)
        handle = register_multi_grad_hook((a, b), print)
        handle.remove()
        again = pickle.loads(pickle.dumps(handle))
        assert type(again) is type(handle)
        assert again.remove() is None
