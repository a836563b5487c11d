"""The order in which the hooks of all kinds run."""

import math
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, grad
from tapegrad.autograd.graph import register_multi_grad_hook


class Recorded:
    """x * x summed, with hooks of all kinds on all three stages; `order` is what ran."""

    def __init__(self, multi=False):
        self.order = []
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        z = y.sum()
        self.x, self.y, self.z = x, y, z
        self.leaf = y.grad_fn.next_functions[0][0]
        # registered in an order that is not the one they run in
        self.leaf.register_hook(self.note("x node"))
        y.grad_fn.register_hook(self.note("y node 1"))
        y.grad_fn.register_prehook(self.note("y pre 1"))
        y.register_hook(self.note("y tensor 1"))
        x.register_post_accumulate_grad_hook(self.note("x accumulated"))
        self.leaf.register_prehook(self.note("x pre"))
        x.register_hook(self.note("x tensor"))
        z.grad_fn.register_hook(self.note("z node"))
        z.grad_fn.register_prehook(self.note("z pre"))
        z.register_hook(self.note("z tensor"))
        if multi:
            register_multi_grad_hook((x, y), self.note("all"))
            register_multi_grad_hook((x, y), self.note("any"), mode="any")
        y.register_hook(self.note("y tensor 2"))
        y.grad_fn.register_prehook(self.note("y pre 2"))
        y.grad_fn.register_hook(self.note("y node 2"))

    def note(self, name):
        def hook(*args):
            self.order.append(name)

        return hook


Z = ["z tensor", "z pre", "z node"]
Y = ["y tensor 1", "y tensor 2", "y pre 1", "y pre 2", "y node 1", "y node 2"]
X = ["x tensor", "x pre", "x accumulated", "x node"]


class TestOrder:
    """Tensor hooks, prehooks, the node, its hooks; of leaves: those around the accumulation."""

    def test_backward(self):
        program = Recorded()
        program.z.backward()
        assert program.order == Z + Y + X

    def test_create_graph(self):
        program = Recorded()
        with warnings.catch_warnings(action="ignore"):
            program.z.backward(create_graph=True)
        assert program.order == Z + Y + X
        program.x.grad = None

    def test_every_time(self):
        program = Recorded()
        program.z.backward(retain_graph=True)
        program.z.backward()
        assert program.order == (Z + Y + X) * 2

    def test_hooks_of_several_tensors_take_their_place_among_tensor_hooks(self):
        program = Recorded(multi=True)
        program.z.backward()
        expected = [*Z, Y[0], "any", *Y[1:], X[0], "all", *X[1:]]
        assert program.order == expected

    def test_inputs_a_leaf(self):
        program = Recorded()
        program.z.backward(inputs=[program.x])
        assert program.order == Z + Y + X

    def test_inputs_a_result(self):
        program = Recorded()
        program.z.backward(inputs=[program.y])
        assert program.order == [*Z, "y tensor 1", "y tensor 2"]  # what lies below is not needed

    def test_grad_of_a_leaf(self):
        program = Recorded()
        grad(program.z, program.x)
        assert program.order == [*Z, *Y, "x tensor"]

    def test_grad_of_a_result(self):
        program = Recorded()
        grad(program.z, program.y)
        assert program.order == [*Z, "y tensor 1", "y tensor 2"]

    def test_grad_of_both(self):
        program = Recorded()
        grad(program.z, [program.x, program.y])
        assert program.order == [*Z, *Y, "x tensor"]

    def test_grad_of_the_root(self):
        program = Recorded()
        grad(program.z, program.z)
        assert program.order == ["z tensor"]


class TestValues:
    """Each kind of hook gets what the one before it left."""

    def test_a_result(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 3
        seen = []
        node = y.grad_fn

        def note(name, value):
            seen.append((name, value[0].item()))

        node.register_hook(lambda gi, go: (note("node", gi[0]), (gi[0] * 7, *gi[1:]))[1])
        node.register_prehook(lambda go: (note("pre", go[0]), (go[0] * 5,))[1])
        y.retain_grad()
        y.register_hook(lambda g: (note("tensor", g), g * 2)[1])
        x.register_hook(lambda g: note("x", g))
        y.sum().backward()
        assert seen == [("tensor", 1.0), ("pre", 2.0), ("node", 30.0), ("x", 210.0)]
        assert y.grad.tolist() == [2.0, 2.0]
        assert x.grad.tolist() == [210.0, 210.0]

    def test_a_leaf(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 3
        node = y.grad_fn.next_functions[0][0]
        seen = []
        node.register_hook(lambda gi, go: seen.append(("node", go[0][0].item())))
        x.register_post_accumulate_grad_hook(lambda t: seen.append(("after", t.grad[0].item())))
        node.register_prehook(lambda go: (seen.append(("pre", go[0][0].item())), (go[0] * 5,))[1])
        x.register_hook(lambda g: (seen.append(("tensor", g[0].item())), g * 2)[1])
        y.sum().backward()
        assert seen == [("tensor", 3.0), ("pre", 6.0), ("after", 30.0), ("node", 30.0)]

    def test_what_grad_returns_is_that_after_the_tensor_hooks(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 3
        y.grad_fn.register_prehook(lambda go: (go[0] * 5,))
        y.register_hook(lambda g: g * 2)
        assert grad(y.sum(), y)[0].tolist() == [2.0, 2.0]


class TestLeaves:
    """A leaf with hooks gets its gradient as soon as it is complete."""

    def ordered(self, sweep):
        """w * sin(x), with hooks everywhere; what ran, and which gradients there were."""
        x, w = (tg.tensor(v, requires_grad=True) for v in (1.0, 2.0))
        y = np.sin(x)
        z = w * y
        order = []

        def note(name):
            return lambda _: order.append((name, x.grad is not None, w.grad is not None))

        for name, tensor in {"x": x, "y": y, "w": w, "z": z}.items():
            tensor.register_hook(note(name))
        for name, leaf in {"x after": x, "w after": w}.items():
            leaf.register_post_accumulate_grad_hook(note(name))
        sweep(z, x, w)
        x.grad = w.grad = None
        return order

    @pytest.mark.parametrize(
        "sweep",
        [
            lambda z, x, w: z.backward(),
            lambda z, x, w: z.backward(inputs=[x, w]),
            lambda z, x, w: z.backward(create_graph=True),
        ],
        ids=["backward", "inputs", "create_graph"],
    )
    @pytest.mark.filterwarnings("ignore:Using backward")
    def test_backward(self, sweep):
        none, one, both = (False, False), (False, True), (True, True)
        assert self.ordered(sweep) == [
            ("z", *none), ("w", *none), ("w after", *one), ("y", *one), ("x", *one),
            ("x after", *both),
        ]  # fmt: skip

    def test_grad(self):
        order = self.ordered(lambda z, x, w: grad(z, [x, w]))
        assert [name for name, *_ in order] == ["z", "w", "y", "x"]

    def test_only_what_was_asked_for(self):
        order = self.ordered(lambda z, x, w: z.backward(inputs=[x]))
        assert [name for name, *_ in order] == ["z", "y", "x", "x after"]

    def test_complete_leaves_give_their_memory_back(self):
        w = tg.tensor([2.0], requires_grad=True)
        x = tg.tensor([1.0], requires_grad=True)
        y = np.exp(x)

        def step(leaf):
            leaf.data -= 0.5 * leaf.grad.data
            leaf.grad = None

        w.register_post_accumulate_grad_hook(step)
        seen = []
        y.register_hook(lambda g: seen.append((w.tolist(), w.grad)))
        (w * y).sum().backward()
        assert seen == [([2.0 - 0.5 * math.e], None)]
        assert x.grad.tolist() == [2.0 * math.e]

    def test_if_a_later_hook_raises(self):
        x, w = (tg.tensor(v, requires_grad=True) for v in (1.0, 2.0))
        w.register_hook(lambda g: g)
        y = np.sin(x)

        def failing(g):
            raise ValueError("of the program")

        y.register_hook(failing)
        with pytest.raises(ValueError, match="of the program"):
            (w * y).backward()
        assert w.grad.item() == math.sin(1.0)
        assert x.grad is None

    def test_read_again_through_many_records(self):
        """The oldest of the records that read a leaf decides, wherever it is on the tape."""
        w = tg.tensor(1.0, requires_grad=True)
        start = tg.tensor(1.0, requires_grad=True)
        hooked = start * 1.0
        value = hooked
        for _ in range(5000):  # more than a segment
            value = value * w
        order = []
        w.register_hook(lambda g: order.append(("w", g.item())))
        hooked.register_hook(lambda g: order.append(("hooked", g.item())))
        value.backward()
        assert order == [("w", 5000.0), ("hooked", 1.0)]
        assert w.grad.item() == 5000.0

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_a_gradient_that_a_function_leaves_undefined(self, create_graph):
        class Nothing(Function):
            @staticmethod
            def forward(ctx, x, y):
                return x * y

            @staticmethod
            def backward(ctx, g):
                return None, g

        x, y = (tg.tensor(v, requires_grad=True) for v in (1.0, 2.0))
        order = []
        x.register_hook(lambda g: order.append(("x", g)))
        z = np.sin(y)
        z.register_hook(lambda g: order.append(("z", g.item())))
        with warnings.catch_warnings(action="ignore"):
            Nothing.apply(x, z).backward(retain_graph=True, create_graph=create_graph)
        assert order == [("x", None), ("z", 1.0)]
        assert x.grad is None
        order.clear()
        found = grad(Nothing.apply(x, z), x, allow_unused=True, create_graph=create_graph)
        assert found == (None,)
        assert order == [("x", None)]
        y.grad = None

    def test_hooks_of_a_leaf_that_is_dropped_and_made_again(self):
        x = tg.tensor(1.0, requires_grad=True)
        order = []
        x.register_hook(lambda g: order.append(g.item()))
        x.requires_grad_(False)
        x.requires_grad_(True)
        (x * 3.0).backward()
        assert order == [3.0]

    def test_a_root(self):
        x = tg.tensor(1.0, requires_grad=True)
        order = []
        x.register_hook(lambda g: order.append(g.item()))
        tg.autograd.backward([x, x * 2.0])
        assert order == [3.0]
        assert x.grad.item() == 3.0


class TestRoots:
    @pytest.mark.parametrize("create_graph", [False, True])
    def test_of_which_nothing_is_needed(self, create_graph):
        x, w = (tg.tensor(v, requires_grad=True) for v in (1.0, 2.0))
        z = w * 3.0
        order = []
        z.register_hook(lambda g: order.append(g.item()))
        found = grad(z, x, allow_unused=True, create_graph=create_graph)
        assert found == (None,)
        assert order == [1.0]


class TestUnusedOutputs:
    """Of an op with several outputs, those that nobody used get None."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            return g * 2 + h * 3

    def test_a_function(self):
        x = tg.tensor(1.0, requires_grad=True)
        a, b = self.Pair.apply(x)
        order = []
        b.register_hook(lambda g: order.append(("b", g)))
        a.register_hook(lambda g: order.append(("a", g.item())))
        a.grad_fn.register_prehook(lambda grads: order.append(("node", grads[1])))
        a.backward()
        assert order == [("a", 1.0), ("b", None), ("node", None)]
        assert x.grad.item() == 2.0

    def test_create_graph(self):
        x = tg.tensor(1.0, requires_grad=True)
        a, b = self.Pair.apply(x)
        order = []
        b.register_hook(order.append)
        assert grad(a, x, create_graph=True)[0].item() == 2.0
        assert order == [None]

    def test_an_op_of_the_table(self):
        x = tg.tensor([[2.0, 0.5], [0.5, 1.0]], requires_grad=True)
        values, vectors = np.linalg.eigh(x)
        order = []
        vectors.register_hook(order.append)
        values.sum().backward()
        assert order == [None]
        np.testing.assert_allclose(x.grad.numpy(), np.eye(2), atol=1e-15)

    def test_though_the_tensor_is_gone(self):
        x = tg.tensor(1.0, requires_grad=True)
        a, b = self.Pair.apply(x)
        order = []
        b.register_hook(order.append)
        del b
        a.backward()
        assert order == [None]

    def test_what_is_used_gets_its_gradient_only(self):
        x = tg.tensor(1.0, requires_grad=True)
        a, b = self.Pair.apply(x)
        order = []
        b.register_hook(lambda g: order.append(g.item()))
        (a + b).backward()
        assert order == [1.0]

    def test_not_where_the_op_is_not_needed(self):
        x, w = (tg.tensor(v, requires_grad=True) for v in (1.0, 2.0))
        a, b = self.Pair.apply(x)
        order = []
        b.register_hook(order.append)
        grad(a * w, w)
        assert order == []

    def test_multi_grad_hook(self):
        x = tg.tensor(1.0, requires_grad=True)
        a, b = self.Pair.apply(x)
        seen = []
        register_multi_grad_hook((a, b), seen.append)
        a.backward()
        assert seen == [[1.0, None]]
