"""What forward leaves on ctx, how long it lives, and what backward finds."""

import gc
import weakref

import numpy as np
import pytest
from functions import Cube, double, make, same, values
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad

SECOND_TIME = "Trying to backward through the graph a second time"


@pytest.fixture
def no_collector():
    """Only reference counts may free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def saving(*items):
    """A forward that saves these."""

    def forward(ctx, x):
        ctx.save_for_backward(*items)
        return x * 2

    return forward


def holding(held):
    """A forward whose ctx holds a thing; the list gets a weak reference to it."""

    class Thing:
        pass

    def forward(ctx, x):
        ctx.thing = Thing()
        held.append(weakref.ref(ctx.thing))
        ctx.save_for_backward(x)
        return x * 2

    return forward


class TestAttributes:
    """Attributes of ctx are free to use; they are read on `grad_fn` too and are never freed."""

    def test_any_attribute(self):
        def forward(ctx, x):
            ctx.anything = {"x": 1}
            ctx.factor = 7.0
            return x * 2

        def backward(ctx, g):
            assert ctx.anything == {"x": 1}
            return g * ctx.factor

        x = leaf(1.0)
        y = make(forward, backward).apply(x)
        assert y.grad_fn.factor == 7.0
        y.backward()
        assert x.grad.item() == 7.0
        assert y.grad_fn.anything == {"x": 1}

    def test_attributes_serve_a_second_pass(self):
        def forward(ctx, x):
            ctx.constant = x * 5
            return x * 2

        x = leaf(1.0)
        y = make(forward, lambda ctx, g: g * ctx.constant).apply(x)
        y.backward()
        y.backward()
        assert x.grad.item() == 10.0

    def test_each_call_has_a_ctx_of_its_own(self):
        def forward(ctx, x, k):
            ctx.k = k
            return x * k

        f = make(forward, lambda ctx, g: (g * ctx.k, None))
        x = leaf(1.0)
        (f.apply(x, 2) + f.apply(x, 30)).backward()
        assert x.grad.item() == 32.0


class TestSaving:
    """`save_for_backward` keeps tensors, and only tensors or None."""

    def test_comes_back_as_a_tuple(self):
        x, y = leaf(1.0), tg.tensor(2.0)
        seen = []

        def backward(ctx, g):
            seen.append(ctx.saved_tensors)
            return g

        make(saving(x, None, y), backward).apply(x).backward()
        ((a, b, c),) = seen
        assert type(seen[0]) is tuple
        assert a.requires_grad
        assert (a.item(), b, c.item()) == (1.0, None, 2.0)

    def test_nothing_saved(self):
        seen = []
        make(double, lambda ctx, g: seen.append(ctx.saved_tensors) or g).apply(leaf(1.0)).backward()
        assert seen == [()]

    def test_twice_keeps_the_last(self):
        def forward(ctx, x):
            ctx.save_for_backward(x, x)
            ctx.save_for_backward(x)
            return x * 2

        x = leaf(1.0)
        make(forward, lambda ctx, g: g * len(ctx.saved_tensors)).apply(x).backward()
        assert x.grad.item() == 1.0

    def test_a_saved_tensor_is_differentiable_in_backward(self):
        x, w = leaf(2.0), leaf(3.0)
        f = make(saving(x, w), lambda ctx, g: g * ctx.saved_tensors[1])
        (first,) = grad(f.apply(x), x, create_graph=True)
        (by_w,) = grad(first, w)
        assert by_w.item() == 1.0

    def test_a_saved_output_is_that_output(self):
        seen = []

        def forward(ctx, x):
            y = x * 2
            ctx.save_for_backward(y)
            return y

        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            seen.append((y.requires_grad, y.grad_fn.name(), y.tolist()))
            return g

        x = leaf([1.0, 2.0])
        make(forward, backward).apply(x).sum().backward()
        assert seen == [(True, "FBackward", [2.0, 4.0])]

    def test_readable_before_backward(self):
        x = leaf([1.0, 2.0])
        y = make(saving(x), same).apply(x)
        (saved,) = y.grad_fn.saved_tensors
        assert saved.tolist() == [1.0, 2.0]

    @pytest.mark.parametrize(
        ("bad", "position", "name"),
        [((1,), 0, "int"), ((None, "x"), 1, "str"), (([],), 0, "list")],
    )
    def test_other_things_are_refused(self, bad, position, name):
        expected = (
            f"save_for_backward can only save variables, but argument {position} is of type {name}"
        )
        with pytest.raises(TypeError, match=expected):
            make(saving(*bad), same).apply(leaf(1.0))
        assert tg.is_grad_enabled()

    def test_saved_tensors_cannot_be_assigned(self):
        def forward(ctx, x):
            ctx.saved_tensors = (x,)
            return x * 2

        with pytest.raises(AttributeError):
            make(forward, same).apply(leaf(1.0))

    def test_goes_through_the_hooks_of_saved_tensors(self):
        packed = []

        def pack(t):
            packed.append(t.tolist())
            return t.detach().numpy() * 10

        x = leaf([1.0, 2.0])
        f = make(saving(x, None), lambda ctx, g: g * ctx.saved_tensors[0])
        with tg.autograd.graph.saved_tensors_hooks(pack, tg.tensor):
            y = f.apply(x)
        y.sum().backward()
        assert packed == [[1.0, 2.0]]
        assert x.grad.tolist() == [10.0, 20.0]


class TestModified:
    """A saved tensor that was modified in place since is refused when it is read, and only then."""

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize("what", ["input", "output", "other"])
    def test_refused(self, what, create_graph):
        other = tg.tensor([1.0, 2.0])

        def forward(ctx, x):
            y = x * 2
            ctx.save_for_backward({"input": x, "output": y, "other": other}[what])
            return y

        x = leaf([1.0, 2.0])
        start = x * 1
        y = make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(start)
        z = y.sum()
        with tg.no_grad():
            {"input": start, "output": y, "other": other}[what].add_(1.0)
        with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
            grad(z, x, create_graph=create_graph)

    def test_the_text_names_the_function_and_the_versions(self):
        def forward(ctx, x):
            y = x * 2
            ctx.save_for_backward(y)
            return y

        y = make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(leaf([1.0, 2.0]))
        z = y.sum()
        y.add_(1.0)
        expected = r"which is output 0 of F, is at version 1; expected version 0 instead\. Hint: "
        with pytest.raises(RuntimeError, match=expected):
            z.backward()

    def test_a_modified_leaf(self):
        x = leaf([1.0, 2.0])
        y = Cube.apply(x)
        with tg.no_grad():
            x += 1.0
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
            y.sum().backward()

    def test_not_read_is_fine(self):
        x = leaf([1.0, 2.0])
        start = x * 1
        y = make(saving(start), lambda ctx, g: g * 2).apply(start)
        start.add_(1.0)
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]

    def test_modified_inside_forward_before_it_was_saved_is_fine(self):
        def forward(ctx, x):
            y = x * 2
            y.add_(1.0)
            ctx.save_for_backward(y)
            return y

        x = leaf([1.0, 2.0])
        make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x).sum().backward()
        assert x.grad.tolist() == [3.0, 5.0]


class TestFreeing:
    """Saved tensors are freed by a backward pass, and by reference count with the graph."""

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_a_second_pass_is_refused(self, create_graph):
        x = leaf(2.0)
        y = Cube.apply(x)
        grad(y, x, create_graph=create_graph, retain_graph=False)
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            grad(y, x)

    def test_a_retained_graph_serves_again(self):
        x = leaf(2.0)
        y = Cube.apply(x)
        y.backward(retain_graph=True)
        y.backward()
        assert x.grad.item() == 24.0
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            y.backward()

    def test_a_function_that_saved_nothing_may_run_twice(self):
        x = leaf(2.0)
        y = make(double, lambda ctx, g: g * 2).apply(x)
        y.backward()
        y.backward()
        assert x.grad.item() == 4.0

    def test_reading_on_the_node_after_freeing(self):
        y = Cube.apply(leaf([1.0, 2.0]))
        y.sum().backward()
        with pytest.raises(RuntimeError, match="after they have already been freed"):
            _ = y.grad_fn.saved_tensors

    @pytest.mark.usefixtures("no_collector")
    @pytest.mark.parametrize("number", [1, 2])
    def test_a_saved_output_makes_no_cycle(self, number):
        def forward(ctx, x):
            outs = tuple(x * (k + 2) for k in range(number))
            ctx.save_for_backward(*outs)
            return outs if number > 1 else outs[0]

        x = leaf(np.ones(3))
        out = make(forward, lambda ctx, *g: g[0]).apply(x)
        first = out[0] if number > 1 else out
        gone, array = weakref.ref(first), weakref.ref(first.detach().numpy())
        del out, first
        assert gone() is None
        assert array() is None

    @pytest.mark.usefixtures("no_collector")
    def test_ctx_goes_with_the_graph(self):
        held = []
        y = make(holding(held), same).apply(leaf(1.0))
        z = y * 3
        assert held[0]() is not None
        del y
        assert held[0]() is not None
        del z
        assert held[0]() is None

    @pytest.mark.usefixtures("no_collector")
    def test_ctx_goes_at_once_if_nothing_is_recorded(self):
        held = []
        with tg.no_grad():
            y = make(holding(held), same).apply(leaf(1.0))
        assert not y.requires_grad
        assert held[0]() is None

    @pytest.mark.usefixtures("no_collector")
    def test_saved_values_go_with_the_backward_pass(self):
        held = []

        def forward(ctx, x):
            extra = tg.tensor(np.ones(4))
            held.append(weakref.ref(extra.numpy()))
            ctx.save_for_backward(extra)
            return x * 2

        y = make(forward, same).apply(leaf(1.0))
        assert held[0]() is not None
        y.backward()
        assert held[0]() is None

    @pytest.mark.usefixtures("no_collector")
    def test_a_node_that_is_held_keeps_the_graph(self):
        x = leaf(2.0)
        node = Cube.apply(x).grad_fn
        (saved,) = node.saved_tensors
        assert saved.item() == 2.0
        gone = weakref.ref(node)
        del node, saved
        assert gone() is None


class TestMaterializing:
    """Cotangents that nobody computed arrive as zeros, or as None if forward asked for that."""

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_none(self, create_graph):
        seen = []

        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3, x.astype(np.int64), 5

        def backward(ctx, *grads):
            seen.append([g is None for g in grads])
            return grads[1] * 3

        x = leaf([1.0, 2.0])
        (g,) = grad(make(forward, backward).apply(x)[1].sum(), x, create_graph=create_graph)
        assert seen == [[True, False, True, True]]
        assert g.tolist() == [3.0, 3.0]

    @pytest.mark.parametrize("value", [True, False])
    def test_in_setup_context(self, value):
        seen = []
        f = make(
            lambda x: (x * 2, x * 3),
            lambda ctx, a, b: seen.append(a is None) or b,
            lambda ctx, inputs, output: ctx.set_materialize_grads(value),
        )
        f.apply(leaf(1.0))[1].backward()
        assert seen == [not value]

    def test_zeros_have_the_shape_and_dtype_of_the_output(self):
        seen = []

        def backward(ctx, a, b):
            seen.append((b.shape, b.dtype, b.tolist()))
            return a

        f = make(lambda ctx, x: (x * 2, x[:1].astype(np.float32) * 2), backward)
        f.apply(leaf([1.0, 2.0]))[0].sum().backward()
        assert seen == [((1,), np.float32, [0.0])]


class TestNonDifferentiable:
    """Outputs marked so never require gradients; their cotangents arrive as zeros."""

    @pytest.mark.parametrize("position", [0, 1])
    @pytest.mark.parametrize("create_graph", [False, True])
    def test_one_of_two(self, position, create_graph):
        seen = []

        def forward(ctx, x):
            out = (x * 2, x * 3)
            ctx.mark_non_differentiable(out[position])
            return out

        def backward(ctx, a, b):
            seen.append((a, b))
            return a * 2 + b * 3

        x = leaf([1.0, 2.0])
        outputs = make(forward, backward).apply(x)
        passive, active = outputs[position], outputs[1 - position]
        assert not passive.requires_grad
        assert passive.is_leaf
        assert passive.grad_fn is None
        (g,) = grad((active * passive).sum(), x, create_graph=create_graph)
        np.testing.assert_array_equal(values(g), 6.0 * np.array([1.0, 2.0]))
        assert seen[0][position].tolist() == [0.0, 0.0]

    def test_none_without_materializing(self):
        seen = []

        def forward(ctx, x):
            y = x * 3
            ctx.mark_non_differentiable(y)
            ctx.set_materialize_grads(False)
            return x * 2, y

        f = make(forward, lambda ctx, a, b: seen.append(b) or a)
        f.apply(leaf(1.0))[0].backward()
        assert seen == [None]

    def test_the_only_output(self):
        def forward(ctx, x):
            y = x * 2
            ctx.mark_non_differentiable(y)
            return y

        y = make(forward, same).apply(leaf(1.0))
        assert not y.requires_grad
        y.add_(1.0)
        assert y.is_leaf

    def test_several_at_once(self):
        def forward(ctx, x):
            y, z = x * 2, x * 3
            ctx.mark_non_differentiable(y, z)
            return x * 1, y, z

        outputs = make(forward, lambda ctx, *g: g[0]).apply(leaf(1.0))
        assert [o.requires_grad for o in outputs] == [True, False, False]

    def test_the_last_call_counts(self):
        def forward(ctx, x):
            y, z = x * 2, x * 3
            ctx.mark_non_differentiable(y)
            ctx.mark_non_differentiable(z)
            return y, z

        outputs = make(forward, lambda ctx, *g: g[0]).apply(leaf(1.0))
        assert [o.requires_grad for o in outputs] == [True, False]

    def test_an_input_returned_as_it_is(self):
        def forward(ctx, x):
            ctx.mark_non_differentiable(x)
            return x

        x = leaf([1.0, 2.0])
        y = make(forward, same).apply(x)
        assert y is not x
        assert x.requires_grad
        assert not y.requires_grad

    def test_in_setup_context(self):
        f = make(
            lambda x: (x * 2, x * 3),
            lambda ctx, a, b: a,
            lambda ctx, inputs, output: ctx.mark_non_differentiable(output[1]),
        )
        assert [o.requires_grad for o in f.apply(leaf(1.0))] == [True, False]

    def test_other_things_are_refused(self):
        def forward(ctx, x):
            ctx.mark_non_differentiable(3)
            return x * 2

        with pytest.raises(
            (RuntimeError, TypeError), match="mark_non_differentiable only accepts variable"
        ):
            make(forward, same).apply(leaf(1.0))


class TestOutsideForward:
    """What belongs into forward or setup_context is refused elsewhere, naming the Function."""

    @pytest.mark.parametrize(
        ("method", "args"),
        [
            ("save_for_backward", (tg.tensor(1.0),)),
            ("save_for_forward", (tg.tensor(1.0),)),
            ("mark_dirty", (tg.tensor(1.0),)),
            ("mark_non_differentiable", (tg.tensor(1.0),)),
            ("set_materialize_grads", (False,)),
        ],
    )
    @pytest.mark.parametrize("where", ["after apply", "in backward", "on the node"])
    def test_refused(self, method, args, where):
        held = []

        def forward(ctx, x):
            held.append(ctx)
            return x * 2

        def backward(ctx, g):
            getattr(ctx, method)(*args)
            return g

        y = make(forward, backward, name="Mine").apply(leaf(1.0))
        with pytest.raises(RuntimeError, match=rf"Mine.*{method}|{method}.*Mine"):  # noqa: PT012
            if where == "after apply":
                getattr(held[0], method)(*args)
            elif where == "on the node":
                getattr(y.grad_fn, method)(*args)
            else:
                y.backward()


class TestReadOutsideOfBackward:
    """A node's saved tensors are checked wherever they are read."""

    def test_modified(self):
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        x = leaf([1.0, 2.0])
        a = x * 1
        node = make(forward, same).apply(a).grad_fn
        assert node.saved_tensors[0].tolist() == [1.0, 2.0]
        a.mul_(2)
        with pytest.raises(RuntimeError, match="output 0 of Multiply, is at version 1"):
            _ = node.saved_tensors
