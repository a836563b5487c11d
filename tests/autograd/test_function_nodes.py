"""The class's own Node type, and names that are deprecated."""

import warnings

import pytest
from functions import AddOne, Cube, CubeSetupVjp, CubeVjp, Exp, double, make, same
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import function
from tapegrad.autograd.function import BackwardCFunction, Function, FunctionCtx, FunctionMeta


class TestNodeType:
    """The metaclass makes the class's own Node type, named `<Name>Backward`."""

    @pytest.mark.parametrize("cls", [Cube, CubeVjp, Exp])
    def test_name(self, cls):
        y = cls.apply(leaf(2.0))
        assert type(y.grad_fn).__name__ == f"{cls.__name__}Backward"
        assert y.grad_fn.name() == f"{cls.__name__}Backward"
        assert f"grad_fn=<{cls.__name__}Backward>" in repr(y)

    def test_is_made_with_the_class(self):
        assert type(Cube) is FunctionMeta
        assert Cube._backward_cls.__name__ == "CubeBackward"
        assert Cube._backward_cls._forward_cls is Cube
        assert issubclass(Cube._backward_cls, BackwardCFunction)

    def test_belongs_to_one_class(self):
        class Sub(Cube):
            pass

        assert Sub._backward_cls is not Cube._backward_cls
        assert Sub._backward_cls._forward_cls is Sub
        assert type(Sub.apply(leaf(1.0)).grad_fn) is Sub._backward_cls

    def test_is_the_type_of_grad_fn(self):
        node = Cube.apply(leaf(2.0)).grad_fn
        assert type(node) is Cube._backward_cls
        assert isinstance(node, BackwardCFunction)
        assert isinstance(node, FunctionCtx)
        assert isinstance(node, tg.autograd.graph.Node)

    def test_of_a_function_in_place(self):
        y = leaf([1.0]) * 1
        AddOne.apply(y)
        assert type(y.grad_fn) is AddOne._backward_cls

    @pytest.mark.parametrize("name", ["FunctionCtx", "Function", "NestedIOFunction"])
    def test_public_names(self, name):
        assert name in function.__all__
        assert issubclass(getattr(function, name), FunctionCtx)


class TestNode:
    """`grad_fn` is the node and ctx in one: links, hooks, and whatever forward left there."""

    def test_what_forward_left(self):
        def forward(ctx, x):
            ctx.k = 5
            ctx.save_for_backward(x)
            return x * 2

        y = make(forward, same).apply(leaf([1.0]))
        node = y.grad_fn
        assert node.k == 5
        assert node.needs_input_grad == (True,)
        assert node.saved_tensors[0].tolist() == [1.0]

    def test_what_is_set_on_the_node_is_seen_by_backward(self):
        x = leaf([1.0])
        y = make(double, lambda ctx, g: g * ctx.factor).apply(x)
        y.grad_fn.factor = 7.0
        y.grad_fn.metadata["a"] = 1
        assert y.grad_fn.metadata == {"a": 1}
        y.backward()
        assert x.grad.tolist() == [7.0]

    def test_next_functions(self):
        x, w = leaf([1.0]), leaf([2.0])
        f = make(lambda ctx, a, n, b, c: a * b, lambda ctx, g: (g, None, g, None))
        inner = x.exp()
        node = f.apply(inner, 3, w, tg.tensor([1.0])).grad_fn
        (first, a), *rest = node.next_functions
        assert (first, a) == (inner.grad_fn, 0)
        found = [n for n, _ in rest]
        assert found[-2].name().endswith("AccumulateGrad")
        assert found[-2].variable is w
        assert found[-1] is None

    def test_the_number_of_an_output(self):
        a, b = make(lambda ctx, x: (x * 2, x * 3), lambda ctx, a, b: a + b).apply(leaf(1.0))
        node = (a * 1 + b * 2).grad_fn
        (first, _), (second, _) = node.next_functions
        assert first.next_functions[0] == (a.grad_fn, 0)
        assert second.next_functions[0] == (a.grad_fn, 1)

    def test_hooks(self):
        seen = []
        x = leaf([1.0, 2.0])
        y = make(double, lambda ctx, g: seen.append(("backward", g.tolist())) or g * 3).apply(x)
        node = y.grad_fn
        node.register_prehook(lambda outs: (outs[0] * 2,))
        node.register_hook(
            lambda ins, outs: seen.append(("hook", ins[0].tolist(), outs[0].tolist()))
        )
        y.sum().backward()
        assert seen == [("backward", [2.0, 2.0]), ("hook", [6.0, 6.0], [2.0, 2.0])]
        assert x.grad.tolist() == [6.0, 6.0]


class TestBackwardCFunction:
    """`apply` of the node runs the user's backward or vjp, `apply_jvp` the user's jvp."""

    @pytest.mark.parametrize("cls", [Cube, CubeVjp, CubeSetupVjp])
    def test_apply(self, cls):
        y = cls.apply(leaf([1.0, 2.0]))
        assert y.grad_fn.apply(tg.ones(2)).tolist() == [3.0, 12.0]

    def test_apply_jvp(self):
        y = make(double, same, jvp=lambda ctx, t: t * 7).apply(leaf([1.0]))
        assert y.grad_fn.apply_jvp(tg.ones(1)).tolist() == [7.0]

    def test_of_several(self):
        f = make(lambda ctx, x: (x * 2, x * 3), lambda ctx, a, b: (a + b * 10, None))
        node = f.apply(leaf([1.0]))[0].grad_fn
        g, nothing = node.apply(tg.ones(1), tg.ones(1))
        assert g.tolist() == [11.0]
        assert nothing is None

    def test_no_jvp(self):
        y = make(double, same).apply(leaf([1.0]))
        with pytest.raises(NotImplementedError, match="You must implement the jvp function"):
            y.grad_fn.apply_jvp(tg.ones(1))

    def test_no_backward(self):
        y = make(double).apply(leaf([1.0]))
        with pytest.raises(NotImplementedError, match="either the backward or vjp method"):
            y.grad_fn.apply(tg.ones(1))


class TestDeprecated:
    """Old ways of using a Function warn, or raise the text that users search for."""

    def test_instantiating_warns(self):
        with pytest.warns(DeprecationWarning, match="Cube'?>? should not be instantiated. Methods"):
            Cube()

    def test_calling_an_instance_raises(self):
        with warnings.catch_warnings(action="ignore"):
            f = Cube()
        expected = (
            "Legacy autograd function with non-static forward method is deprecated. Please use "
            "new-style autograd function with static forward method."
        )
        with pytest.raises(RuntimeError, match=expected):
            f(leaf(1.0))

    def test_mark_shared_storage_warns(self):
        def forward(ctx, x):
            ctx.mark_shared_storage((x, x))
            return x * 2

        x = leaf(1.0)
        with pytest.warns(FutureWarning, match="`mark_shared_storage` is deprecated"):
            y = make(forward, same).apply(x)
        y.backward()
        assert x.grad.item() == 1.0

    def test_the_type_of_an_instance(self):
        with warnings.catch_warnings(action="ignore"):
            f = Cube()
        assert isinstance(f, Function)
        assert isinstance(f, FunctionCtx)


class TestContextAlone:
    """A context that outlives its graph can still be asked, and gives outputs without history."""

    def test_saved_output(self):
        kept = []

        def forward(ctx, x):
            kept.append(ctx)
            z = x * 2
            ctx.save_for_backward(z)
            return z

        y = make(forward, same).apply(leaf([1.0]))
        node = y.grad_fn
        assert node.saved_tensors[0].grad_fn is node
        del y, node
        (saved,) = kept[0].saved_tensors
        assert saved.tolist() == [2.0]
        assert not saved.requires_grad
