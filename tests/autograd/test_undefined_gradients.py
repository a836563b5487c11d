"""A gradient that a Function leaves out stays undefined."""

import numpy as np
import pytest
from functions import Nothing
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad


class Pass(tg.Function):
    """Passes values and gradients on."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g


def passed(x):
    return Pass.apply(x)


def hooked(x):
    y = x * 1
    y.register_hook(lambda g: None)
    return y


def retained(x):
    y = x * 1
    y.retain_grad()
    return y


@pytest.mark.parametrize("create_graph", [False, True])
class TestUndefined:
    """It is None for hooks and leaves, zeros for Functions below, and adds nothing to others."""

    @pytest.mark.parametrize("make", [passed, hooked, retained])
    def test_beside_a_gradient(self, make, create_graph):
        x = leaf([1.0, 2.0, 3.0])
        a = make(x)
        (g,) = grad((a * 3).sum() + Nothing.apply(a).sum(), x, create_graph=create_graph)
        assert g.tolist() == [3.0, 3.0, 3.0]

    def test_alone(self, create_graph):
        x = leaf([1.0])
        a = Pass.apply(x)
        y = Nothing.apply(a).sum()
        assert grad(y, a, allow_unused=True, create_graph=create_graph) == (None,)

    def test_hooks_below_an_op_get_none(self, create_graph):
        x = leaf([1.0])
        a = x * 1
        seen = []
        a.register_hook(seen.append)
        y = Nothing.apply(a * 3).sum()
        assert grad(y, x, allow_unused=True, create_graph=create_graph) == (None,)
        assert seen == [None]

    def test_functions_below_an_op_get_zeros(self, create_graph):
        x = leaf([1.0])
        y = Nothing.apply(Pass.apply(x) * 3).sum()
        (g,) = grad(y, x, create_graph=create_graph)
        assert g.tolist() == [0.0]

    def test_from_a_node_hook(self, create_graph):
        x = leaf([1.0])
        y = Pass.apply(Pass.apply(x))
        y.grad_fn.register_hook(lambda inputs, outputs: (None,))
        (g,) = grad(y.sum(), x, create_graph=create_graph)
        assert g.tolist() == [0.0]


class TestHooksThatCome:
    """Hooks and retained gradients asked for while a pass is under way lose nothing."""

    def test_retain_grad_during_the_pass(self):
        x = leaf([1.0, 1.0])
        a = x * 2
        b, c = a * 3, a * 5
        b.register_hook(lambda g: a.retain_grad())
        (b.sum() + c.sum()).backward()
        assert x.grad.tolist() == [16.0, 16.0]
        assert a.grad.tolist() == [8.0, 8.0]


class TestMemory:
    """A gradient that is accumulated shares its memory with nothing else."""

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("how", ["plain", "anomaly", "create_graph"])
    def test_two_leaves_and_the_cotangent(self, how):
        x, y, g = leaf([1.0, 1.0]), leaf([1.0, 1.0]), tg.ones(2)
        if how == "anomaly":
            with tg.autograd.detect_anomaly():
                (x + y).backward(g)
        else:
            (x + y).backward(g, create_graph=how == "create_graph")
        (x + y).backward(g)
        assert [t.tolist() for t in (x.grad, y.grad, g)] == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]

    def test_what_a_hook_keeps(self):
        x = leaf([1.0, 1.0])
        kept = []
        x.register_hook(kept.append)
        for _ in range(2):
            (x * 2).sum().backward()
        assert kept[0].tolist() == [2.0, 2.0]

    def test_what_a_hook_returns(self):
        x, constant = leaf([1.0, 1.0]), tg.tensor([7.0, 7.0])
        x.register_hook(lambda g: constant)
        for _ in range(2):
            (x * 2).sum().backward()
        assert x.grad.tolist() == [14.0, 14.0]
        assert constant.tolist() == [7.0, 7.0]

    def test_a_memory_map(self, tmp_path):
        memory = np.memmap(tmp_path / "m", dtype=float, mode="w+", shape=(4,))
        t = tg.as_tensor(memory)
        x = leaf([1.0, 1.0, 1.0])
        y = (x * t[1:4]).sum()
        t.fill_(2.0)
        y.backward()  # the record has a copy, since the user can write to the file
        assert x.grad.tolist() == [0.0, 0.0, 0.0]
        assert memory.tolist() == [2.0] * 4
