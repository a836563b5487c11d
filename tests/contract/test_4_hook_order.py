"""Item 19 of section 5: the order in which the hooks of all kinds run."""

import warnings

import tapegrad as tg
from tapegrad.autograd import grad
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
