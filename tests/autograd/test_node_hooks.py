"""Hooks of nodes, `Node.register_hook` and `Node.register_prehook`."""

import gc

import pytest
from functions import numbers
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, grad


def product():
    """Two leaves and a scalar computed from their product, which has the gradient 5."""
    x, w = leaf_of(1.0, 2.0), leaf_of(3.0, 4.0)
    y = x * w
    return x, w, y, (y * 5).sum()


def accumulator(t):
    return (t * 2).grad_fn.next_functions[0][0]


class Pair(Function):
    """Two outputs, x * n and y * 1; `seen` is what backward got."""

    seen = None

    @staticmethod
    def forward(ctx, x, n, y):
        ctx.n = n
        return x * n, y * 1

    @staticmethod
    def backward(ctx, a, b):
        Pair.seen = numbers((a, b))
        return a * ctx.n, None, b


class TestHooks:
    """`register_hook(fn)` calls fn(grad_inputs, grad_outputs) when the node has run."""

    def test_what_it_gets(self):
        _, _, y, z = product()
        seen = []
        y.grad_fn.register_hook(lambda gi, go: seen.append((numbers(gi), numbers(go))))
        z.backward()
        assert seen == [(([15.0, 20.0], [5.0, 10.0]), ([5.0, 5.0],))]

    def test_it_gets_tuples(self):
        _, _, y, z = product()
        seen = []
        y.grad_fn.register_hook(lambda *args: seen.append([type(a) for a in args]))
        z.backward()
        assert seen == [[tuple, tuple]]

    def test_none_for_an_argument_without_grad(self):
        x = leaf_of(1.0, 2.0)
        y = x * tg.tensor([3.0, 4.0])
        seen = []
        y.grad_fn.register_hook(lambda gi, go: seen.append(numbers(gi)))
        y.sum().backward()
        assert seen == [([3.0, 4.0], None)]

    def test_none_for_an_argument_whose_gradient_is_not_wanted(self):
        _, w, y, z = product()
        seen = []
        y.grad_fn.register_hook(lambda gi, go: seen.append(numbers(gi)))
        grad(z, w)
        assert seen == [(None, [5.0, 10.0])]

    def test_replacing(self):
        x, w, y, z = product()
        y.grad_fn.register_hook(lambda gi, go: (gi[0] * 10, None))
        z.backward()
        assert x.grad.tolist() == [150.0, 200.0]
        assert w.grad is None

    def test_the_next_hook_gets_the_replacement(self):
        _, _, y, z = product()
        seen = []
        y.grad_fn.register_hook(lambda gi, go: (gi[0] * 10, gi[1]))
        y.grad_fn.register_hook(lambda gi, go: seen.append(numbers(gi)))
        z.backward()
        assert seen == [([150.0, 200.0], [5.0, 10.0])]

    def test_it_runs_at_every_backward(self):
        _, _, y, z = product()
        seen = []
        y.grad_fn.register_hook(lambda gi, go: seen.append(1))
        z.backward(retain_graph=True)
        z.backward()
        assert seen == [1, 1]

    def test_registered_through_the_next_op(self):
        x = leaf_of(1.0, 2.0)
        z = x.exp().sum()
        seen = []
        z.grad_fn.next_functions[0][0].register_hook(lambda gi, go: seen.append(numbers(go)))
        z.backward()
        assert seen == [([1.0, 1.0],)]

    def test_on_the_root(self):
        x = leaf_of(1.0, 2.0)
        z = x.sum()
        z.grad_fn.register_hook(lambda gi, go: (gi[0] * 3,))
        z.backward()
        assert x.grad.tolist() == [3.0, 3.0]

    def test_it_does_not_run_where_the_node_does_not(self):
        x, y = leaf_of(1.0), leaf_of(2.0)
        a, b = x * 2, y * 3
        seen = []
        b.grad_fn.register_hook(lambda gi, go: seen.append(1))
        grad(a + b, x)
        assert seen == []

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_grad_mode(self, create_graph):
        x, _, y, z = product()
        seen = []
        y.grad_fn.register_hook(lambda gi, go: seen.append(tg.is_grad_enabled()))
        y.grad_fn.register_prehook(lambda go: seen.append(tg.is_grad_enabled()))
        grad(z, x, create_graph=create_graph)
        assert seen == [create_graph, create_graph]

    def test_its_result_is_differentiated(self):
        x, factor = leaf_of(1.0, 2.0), tg.tensor(5.0, requires_grad=True)
        y = x * x
        y.grad_fn.register_hook(lambda gi, go: (gi[0] * factor, gi[1]))
        (g,) = grad(y.sum(), x, create_graph=True)
        assert g.tolist() == [6.0, 12.0]
        assert grad(g.sum(), factor)[0].item() == 3.0


class TestPrehooks:
    """`register_prehook(fn)` calls fn(grad_outputs) before the node runs."""

    def test_what_it_gets(self):
        _, _, y, z = product()
        seen = []
        y.grad_fn.register_prehook(lambda go: seen.append(numbers(go)))
        z.backward()
        assert seen == [([5.0, 5.0],)]

    def test_replacing(self):
        x, w, y, z = product()
        seen = []
        y.grad_fn.register_prehook(lambda go: (go[0] * 10,))
        y.grad_fn.register_prehook(lambda go: seen.append(numbers(go)))
        y.grad_fn.register_hook(lambda gi, go: seen.append(numbers(go)))
        z.backward()
        assert seen == [([50.0, 50.0],), ([50.0, 50.0],)]
        assert x.grad.tolist() == [150.0, 200.0]
        assert w.grad.tolist() == [50.0, 100.0]

    def test_replacing_by_none(self):
        x = leaf_of(1.0, 2.0)
        y = x.exp()
        y.grad_fn.register_prehook(lambda go: (None,))
        y.sum().backward()
        assert x.grad is None

    def test_it_sees_what_the_tensor_hooks_left(self):
        _, _, y, z = product()
        seen = []
        y.grad_fn.register_prehook(lambda go: seen.append(numbers(go)))
        y.register_hook(lambda g: g * 2)
        z.backward()
        assert seen == [([10.0, 10.0],)]

    def test_the_retained_gradient_is_that_before_it(self):
        x, _, y, z = product()
        y.retain_grad()
        y.grad_fn.register_prehook(lambda go: (go[0] * 10,))
        z.backward()
        assert y.grad.tolist() == [5.0, 5.0]
        assert x.grad.tolist() == [150.0, 200.0]

    def test_it_stays_with_its_node_when_the_tensor_is_written(self):
        x = leaf_of(1.0, 2.0)
        y = x * 1
        seen = []
        y.grad_fn.register_prehook(lambda go: seen.append(("old", *numbers(go))))
        y.mul_(3)
        y.grad_fn.register_prehook(lambda go: seen.append(("new", *numbers(go))))
        y.sum().backward()
        assert seen == [("new", [1.0, 1.0]), ("old", [3.0, 3.0])]


class TestSeveralOutputs:
    """A node of several outputs hands its hooks one gradient each, None where there is none."""

    def test_an_op(self):
        a = tg.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True)
        _, r = tg.linalg.qr(a)
        seen = []
        r.grad_fn.register_prehook(lambda go: seen.append([g is None for g in go]))
        r.sum().backward()
        assert seen == [[True, False]]

    def test_a_function(self):
        x = leaf_of(1.0, 2.0)
        a, _ = Pair.apply(x, 3, tg.ones(2))
        seen = []
        a.grad_fn.register_prehook(lambda go: seen.append(numbers(go)))
        a.grad_fn.register_prehook(lambda go: (go[0] * 2, go[1]))
        a.grad_fn.register_hook(lambda gi, go: seen.append((len(gi), numbers(gi)[0], *numbers(go))))
        a.sum().backward()
        assert seen == [([1.0, 1.0], None), (2, [6.0, 6.0], [2.0, 2.0], None)]
        assert Pair.seen == ([2.0, 2.0], [0.0, 0.0])
        assert x.grad.tolist() == [6.0, 6.0]

    def test_replacing_what_a_function_returned(self):
        x, y = leaf_of(1.0), leaf_of(2.0)
        a, b = Pair.apply(x, 3, y)
        a.grad_fn.register_hook(lambda gi, go: (gi[1], gi[0]))
        (a * 10 + b).sum().backward()
        assert x.grad.tolist() == [1.0]
        assert y.grad.tolist() == [30.0]


class TestAccumulateGrad:
    """The node of a leaf has hooks too: they run under `backward`, around the accumulation."""

    def test_prehook(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        node = accumulator(x)
        node.register_prehook(lambda go: seen.append((numbers(go), x.grad)))
        (x * 3).sum().backward()
        assert seen == [(([3.0, 3.0],), None)]

    def test_prehook_that_replaces(self):
        x = leaf_of(1.0, 2.0)
        node = accumulator(x)
        node.register_prehook(lambda go: (go[0] * 2,))
        (x * 3).sum().backward()
        assert x.grad.tolist() == [6.0, 6.0]

    def test_hook(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        node = accumulator(x)
        node.register_hook(lambda gi, go: seen.append((gi, numbers(go), x.grad.tolist())))
        (x * 3).sum().backward()
        assert seen == [((), ([3.0, 3.0],), [3.0, 3.0])]

    def test_they_do_not_run_under_grad(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        node = accumulator(x)
        node.register_prehook(lambda go: seen.append("pre"))
        node.register_hook(lambda gi, go: seen.append("post"))
        grad((x * 3).sum(), x)
        assert seen == []

    def test_they_stay_while_the_node_is_held(self):
        x = leaf_of(1.0, 2.0)
        node = accumulator(x)
        seen = []
        node.register_prehook(lambda go: seen.append(numbers(go)))
        (x * 4).sum().backward()
        (x * 5).sum().backward()
        assert seen == [([4.0, 4.0],), ([5.0, 5.0],)]

    def test_hook_must_return_as_many_as_there_are(self):
        x = leaf_of(1.0, 2.0)
        node = accumulator(x)
        node.register_hook(lambda gi, go: (go[0],))
        with pytest.raises(RuntimeError, match="returned an incorrect number of values"):
            (x * 3).sum().backward()


class TestHandles:
    """What registering returns removes the hook, once or more often, or as a context."""

    @pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
    def test_remove(self, kind):
        _, _, y, z = product()
        seen = []
        first = getattr(y.grad_fn, kind)(lambda *args: seen.append("first"))
        getattr(y.grad_fn, kind)(lambda *args: seen.append("second"))
        first.remove()
        first.remove()
        z.backward()
        assert seen == ["second"]

    @pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
    def test_as_a_context(self, kind):
        _, _, y, z = product()
        seen = []
        with getattr(y.grad_fn, kind)(lambda *args: seen.append(1)):
            z.backward(retain_graph=True)
        z.backward()
        assert seen == [1]

    @pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
    def test_remove_after_the_node_has_gone(self, kind):
        y = leaf_of(1.0) * 2
        handle = getattr(y.grad_fn, kind)(lambda *args: None)
        del y
        gc.collect()
        assert handle.remove() is None

    def test_on_an_accumulator(self):
        x = leaf_of(1.0)
        seen = []
        node = accumulator(x)
        node.register_prehook(lambda go: seen.append(1)).remove()
        node.register_hook(lambda gi, go: seen.append(2)).remove()
        (x * 2).backward()
        assert seen == []


WRONG = {  # what a hook returns for the gradients it got, and the error
    "a tensor": (lambda g: g[0], TypeError, "expected tuple, but hook returned 'Tensor'"),
    "a number": (lambda g: 3, TypeError, "expected tuple, but hook returned 'int'"),
    "a list": (lambda g: [g[0]], TypeError, "expected tuple, but hook returned 'list'"),
    "no tensor": (lambda g: ("a",), TypeError, "expected Variable, but hook returned 'str'"),
    "too many": (
        lambda g: (g[0], g[0]),
        RuntimeError,
        r"has returned an incorrect number of values \(got 2, but expected 1\)",
    ),
    "too few": (
        lambda g: (),
        RuntimeError,
        r"has returned an incorrect number of values \(got 0, but expected 1\)",
    ),
    "another size": (lambda g: (g[0][:1],), RuntimeError, "has changed the size of value"),
}


class TestErrors:
    """What a hook returns has to fit: a tuple, of as many tensors, of the same shapes."""

    @pytest.mark.parametrize("case", WRONG)
    def test_hook(self, case):
        result, kind, text = WRONG[case]
        y = leaf_of(1.0, 2.0).exp()
        y.grad_fn.register_hook(lambda gi, go: result(gi))
        with pytest.raises(kind, match=text):
            y.sum().backward()

    @pytest.mark.parametrize("case", WRONG)
    def test_prehook(self, case):
        result, kind, text = WRONG[case]
        y = leaf_of(1.0, 2.0).exp()
        y.grad_fn.register_prehook(result)
        with pytest.raises(kind, match=text):
            y.sum().backward()

    def test_the_text_names_the_hook(self):
        def shrink(go):
            return (go[0][:1],)

        y = leaf_of(1.0, 2.0).exp()
        y.grad_fn.register_prehook(shrink)
        with pytest.raises(RuntimeError, match="hook 'shrink' has changed the size of value"):
            y.sum().backward()

    def test_a_gradient_where_there_was_none(self):
        y = leaf_of(1.0, 2.0) * tg.ones(2)
        y.grad_fn.register_hook(lambda gi, go: (gi[0], gi[0]))
        with pytest.raises(
            RuntimeError, match="can't replace a None gradient with a non-None value"
        ):
            y.sum().backward()

    @pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
    def test_an_error_in_a_hook_comes_through(self, kind):
        def fail(*args):
            raise KeyError("mine")

        x = leaf_of(1.0, 2.0)
        y = x + 1
        handle = getattr(y.grad_fn, kind)(fail)
        with pytest.raises(KeyError, match="mine"):
            y.sum().backward()
        assert x.grad is None
        handle.remove()
        y.sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]
