"""`Function`, its two forms, its arguments and its outputs."""

import collections

import numpy as np
import pytest
from functions import CUBES, Cube, double, make, same, values
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import Function, grad


class TestForwardAndBackward:
    """A Function is an op whose value and derivative are the user's code."""

    @pytest.mark.parametrize("cube", CUBES)
    @pytest.mark.parametrize("point", [2.0, [1.0, 2.0], np.ones((2, 3))])
    def test_value_and_gradient(self, cube, point):
        x = leaf(point)
        y = cube.apply(x)
        assert isinstance(y, tg.Tensor)
        assert y.requires_grad
        assert not y.is_leaf
        np.testing.assert_array_equal(values(y), np.asarray(point) ** 3)
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), 3 * np.asarray(point) ** 2)

    @pytest.mark.parametrize("cube", CUBES)
    def test_in_the_middle_of_a_graph(self, cube):
        x = leaf([1.0, 2.0])
        (cube.apply(x * 2) * 5).sum().backward()
        np.testing.assert_array_equal(values(x.grad), 5 * 24 * np.array([1.0, 4.0]))

    @pytest.mark.parametrize("cube", CUBES)
    def test_used_twice(self, cube):
        x = leaf(2.0)
        (cube.apply(x) + cube.apply(x * 2)).backward()
        assert x.grad.item() == 12.0 + 24 * 4

    @pytest.mark.parametrize("cube", CUBES)
    def test_nothing_is_recorded_where_nothing_requires_gradients(self, cube):
        with tg.no_grad():
            y = cube.apply(leaf(2.0))
        assert not y.requires_grad
        assert y.grad_fn is None
        y = cube.apply(tg.tensor(2.0))
        assert not y.requires_grad
        assert y.item() == 8.0

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_modes(self, create_graph):
        modes = []

        def forward(x):
            modes.append(("forward", tg.is_grad_enabled(), x.requires_grad))
            return x * 2

        def setup(ctx, inputs, output):
            modes.append(("setup", tg.is_grad_enabled(), inputs[0].requires_grad))

        def backward(ctx, g):
            modes.append(("backward", tg.is_grad_enabled()))
            return g * 2

        x = leaf(1.0)
        grad(make(forward, backward, setup).apply(x), x, create_graph=create_graph)
        assert modes == [
            ("forward", False, True),
            ("setup", False, True),
            ("backward", create_graph),
        ]
        assert tg.is_grad_enabled()

    def test_what_forward_computes_has_no_history(self):
        seen = []
        f = make(lambda ctx, x: seen.append((x * 2).requires_grad) or x * 2, same)
        f.apply(leaf(1.0))
        assert seen == [False]

    def test_setup_context_sees_inputs_and_output(self):
        seen = []
        f = make(
            lambda x, n: (x * n, x + n),
            lambda ctx, a, b: (a + b, None),
            lambda ctx, inputs, output: seen.append((inputs, output)),
        )
        x = leaf(2.0)
        f.apply(x, 5)
        inputs, output = seen[0]
        assert inputs[0] is x
        assert inputs[1] == 5
        assert [o.item() for o in output] == [10.0, 7.0]

    def test_setup_context_of_a_single_output_gets_a_tensor(self):
        seen = []
        make(lambda x: x * 2, same, lambda ctx, inputs, output: seen.append(output)).apply(
            leaf(1.0)
        )
        assert isinstance(seen[0], tg.Tensor)

    def test_what_setup_context_returns_is_ignored(self):
        y = make(lambda x: x * 2, same, lambda ctx, inputs, output: 3).apply(leaf(1.0))
        assert y.item() == 2.0

    def test_a_subclass_inherits(self):
        class Twice(Cube):
            @staticmethod
            def backward(ctx, g):
                return 2 * Cube.backward(ctx, g)

        x = leaf(2.0)
        y = Twice.apply(x)
        y.backward()
        assert x.grad.item() == 24.0
        assert y.grad_fn.name() == "TwiceBackward"

    def test_the_namespace_and_the_module_have_the_same_function(self):
        assert tg.Function is tg.autograd.Function is tg.autograd.function.Function

    def test_both_backward_and_vjp(self):
        f = make(double, same, vjp=same)
        expected = (
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You "
            "should only implement one of them."
        )
        with pytest.raises(RuntimeError, match=expected):
            f.apply(leaf(1.0)).backward()

    def test_neither_backward_nor_vjp(self):
        y = make(double).apply(leaf(1.0))
        with pytest.raises(
            NotImplementedError, match="You must implement either the backward or vjp method"
        ):
            y.backward()

    def test_no_forward(self):
        with pytest.raises(NotImplementedError, match="You must implement the forward function"):
            type("F", (tg.Function,), {}).apply(leaf(1.0))

    @pytest.mark.parametrize(
        ("method", "text"),
        [
            ("setup_context", "setup_context is not implemented."),
            ("jvp", "You must implement the jvp function for custom"),
            ("vmap", "you must either override the vmap staticmethod or set generate_vmap_rule"),
        ],
    )
    def test_the_base_class_says_what_is_missing(self, method, text):
        with pytest.raises(NotImplementedError, match=text):
            getattr(tg.Function, method)(None, None, None)

    def test_no_vmap_rule_is_generated_unless_asked_for(self):
        assert tg.Function.generate_vmap_rule is False


class TestArguments:
    """`apply` passes on anything; only tensors that are arguments themselves are differentiated."""

    def test_arguments_of_any_kind(self):
        seen = []

        def forward(ctx, x, n, name, y, flag=None):
            seen.append((n, name, flag))
            ctx.n = n
            ctx.save_for_backward(x, y)
            return x * y * n

        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y * ctx.n, None, None, g * x * ctx.n, None

        x, y = leaf(2.0), leaf(3.0)
        make(forward, backward).apply(x, 5, "name", y, {"a": 1}).backward()
        assert seen == [(5, "name", {"a": 1})]
        assert x.grad.item() == 15.0
        assert y.grad.item() == 10.0

    def test_tensors_inside_containers_are_values(self):
        x, y = leaf(2.0), leaf(3.0)
        seen = []

        def forward(ctx, x, items):
            seen.append(ctx.needs_input_grad)
            return x * items[0]

        f = make(forward, lambda ctx, g: (g, None))
        with pytest.warns(tg.DetachedWarning, match="F.apply: argument 1 is a list with a tensor"):
            f.apply(x, [y]).backward()
        assert seen == [(True, False)]
        assert x.grad.item() == 1.0
        assert y.grad is None
        f.apply(x, [y.detach(), 2.0]).backward()  # nothing is lost

    @pytest.mark.parametrize("wrapped", [lambda t: [t], lambda t: (1.0, t), lambda t: {"t": [t]}])
    def test_a_transform_refuses_to_lose_what_it_differentiates(self, wrapped):
        f = make(lambda ctx, x, items: x * 2, lambda ctx, g: (g * 2, None))
        with pytest.raises(RuntimeError, match="grad differentiates, through which no gradient"):
            tg.grad(lambda x: f.apply(x, wrapped(x)))(2.0)
        assert tg.grad(lambda x: f.apply(x, wrapped(x.detach())))(2.0) == 2.0

    def test_the_same_tensor_for_two_arguments(self):
        f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 10, g * 100))
        x = leaf(2.0)
        f.apply(x, x).backward()
        assert x.grad.item() == 110.0

    def test_keywords(self):
        f = make(lambda ctx, x, k=2: x * k, lambda ctx, g: (g, None))
        x = leaf([1.0])
        y = f.apply(x, k=3)
        assert y.tolist() == [3.0]
        y.backward()
        assert x.grad.tolist() == [1.0]

    def test_tensors_by_keyword_are_differentiated(self):
        f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 10, g * 100))
        x, y = leaf(2.0), leaf(3.0)
        f.apply(y=y, x=x).backward()
        assert (x.grad.item(), y.grad.item()) == (10.0, 100.0)

    def test_keywords_take_their_places_for_setup_context(self):
        seen = []

        def setup(ctx, inputs, output):
            seen.append((inputs[1:], ctx.needs_input_grad))

        f = make(lambda x, k=2, n=7: x * k * n, lambda ctx, g: (g, None, None), setup)
        f.apply(leaf(1.0), n=3).backward()
        assert seen == [((2, 3), (True, False, False))]

    def test_defaults_that_are_not_given_need_no_gradient(self):
        f = make(lambda ctx, x, k=2: x * k, lambda ctx, g: (g * 5, None))
        x = leaf(1.0)
        f.apply(x).backward()
        assert x.grad.item() == 5.0

    def test_defaults_are_bound_for_setup_context(self):
        seen = []
        f = make(
            lambda x, k=2: x * k,
            lambda ctx, g: (g, None),
            lambda ctx, inputs, output: seen.append(inputs[1]),
        )
        f.apply(leaf(1.0)).backward()
        assert seen == [2]

    @pytest.mark.parametrize("setup", [None, lambda ctx, inputs, output: None])
    def test_unknown_keyword(self, setup):
        def plain(x):
            return x * 2

        f = make(plain if setup else double, same, setup)
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'nope'"):
            f.apply(leaf(1.0), nope=3)

    @pytest.mark.parametrize("args", [(), (leaf(1.0), leaf(1.0))])
    def test_wrong_number_of_arguments(self, args):
        with pytest.raises(TypeError, match="argument"):
            make(double, same).apply(*args)
        assert tg.is_grad_enabled()

    def test_many_inputs_and_outputs(self):
        def forward(ctx, *xs):
            return tuple(x * (k + 1) for k, x in enumerate(xs))

        def backward(ctx, *gs):
            return tuple(g * (k + 1) for k, g in enumerate(gs))

        xs = [leaf([1.0, 2.0]) for _ in range(20)]
        outs = make(forward, backward).apply(*xs)
        total = outs[0] * 0
        for o in outs[::2]:
            total = total + o
        total.sum().backward()
        for k, x in enumerate(xs):
            np.testing.assert_array_equal(values(x.grad), (k + 1.0) * (k % 2 == 0))


class TestNeedsInputGrad:
    """`ctx.needs_input_grad` says for every argument whether its gradient is of use."""

    @pytest.mark.parametrize("which", [(True, False), (False, True), (True, True), (False, False)])
    @pytest.mark.parametrize("setup", [False, True])
    def test_arguments_that_require_gradients(self, which, setup):
        seen = []

        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, g, None

        if setup:
            f = make(
                lambda x, y, n: x + y + n,
                backward,
                lambda ctx, inputs, output: seen.append(ctx.needs_input_grad),
            )
        else:
            f = make(lambda ctx, x, y, n: seen.append(ctx.needs_input_grad) or x + y + n, backward)
        x, y = (tg.tensor(1.0, requires_grad=flag) for flag in which)
        z = f.apply(x, y, 3)
        assert seen == [(*which, False)]
        assert z.requires_grad is any(which)
        if any(which):
            assert z.grad_fn.needs_input_grad == (*which, False)
            z.backward()
            assert seen[1] == (*which, False)

    def test_under_no_grad(self):
        seen = []
        f = make(lambda ctx, x: seen.append(ctx.needs_input_grad) or x * 2, same)
        with tg.no_grad():
            f.apply(leaf(1.0))
        assert len(seen) == 1
        assert all(type(flag) is bool for flag in seen[0])

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_what_is_asked_for_is_needed(self, create_graph):
        seen = []
        f = make(
            lambda ctx, x, y: x * y,
            lambda ctx, g: seen.append(ctx.needs_input_grad) or (g * 3, g * 2),
        )
        x, y = leaf(2.0), leaf(3.0)
        (g,) = grad(f.apply(x, y), x, create_graph=create_graph)
        assert seen[0][0] is True
        assert g.item() == 3.0

    def test_gradients_that_are_not_needed_may_be_left_out(self):
        def backward(ctx, g):
            return tuple(g * 2 if needed else None for needed in ctx.needs_input_grad)

        f = make(lambda ctx, x, y: x * y, backward)
        x, y = leaf(2.0), tg.tensor(3.0)
        f.apply(x, y).backward()
        assert x.grad.item() == 2.0
        assert y.grad is None

    def test_gradients_that_are_not_needed_are_dropped(self):
        f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 2, g * 3))
        x, y = leaf(1.0), tg.tensor(2.0)
        f.apply(x, y).backward()
        assert x.grad.item() == 2.0
        assert y.grad is None

    def test_a_backward_that_nothing_needs_does_not_run(self):
        calls = []
        f = make(double, lambda ctx, g: calls.append(1) or g)
        x = leaf(1.0)
        y = f.apply(x)
        grad(f.apply(y), y)
        assert calls == [1]


def two_outputs():
    seen = []

    def backward(ctx, a, b):
        seen.append((a, b))
        return (0 if a is None else a * 2) + (0 if b is None else b * 3)

    return make(lambda ctx, x: (x * 2, x * 3), backward), seen


class TestOutputs:
    """Outputs are tensors or anything else; one backward gets the cotangents of all of them."""

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize("used", [0, 1])
    def test_partially_used(self, used, create_graph):
        f, seen = two_outputs()
        x = leaf([1.0, 2.0])
        outputs = f.apply(x)
        assert type(outputs) is tuple
        (g,) = grad(outputs[used].sum(), x, create_graph=create_graph)
        assert g.tolist() == [2.0 + used, 2.0 + used]
        unused = seen[0][1 - used]
        assert unused.tolist() == [0.0, 0.0]
        assert unused.dtype == np.float64

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_all_used(self, create_graph):
        f, seen = two_outputs()
        x = leaf([1.0, 2.0])
        a, b = f.apply(x)
        (g,) = grad((a * 10 + b * 100 + b).sum(), x, create_graph=create_graph)
        assert g.tolist() == [20 + 303.0] * 2
        assert len(seen) == 1

    def test_as_roots(self):
        f, seen = two_outputs()
        x = leaf([1.0, 2.0])
        a, b = f.apply(x)
        tg.autograd.backward([a, b], [tg.tensor([1.0, 0.0]), tg.tensor([0.0, 1.0])])
        assert x.grad.tolist() == [2.0, 3.0]
        assert len(seen) == 1

    def test_one_after_the_other(self):
        f, seen = two_outputs()
        x = leaf([1.0, 2.0])
        a, b = f.apply(x)
        a.sum().backward(retain_graph=True)
        b.sum().backward()
        assert x.grad.tolist() == [5.0, 5.0]
        assert len(seen) == 2

    def test_that_went_out_of_scope(self):
        f, _ = two_outputs()
        x = leaf([1.0, 2.0])
        f.apply(x)[1].sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]

    def test_share_a_node_and_have_numbers(self):
        f, _ = two_outputs()
        a, b = f.apply(leaf([1.0, 2.0]))
        assert (a.output_nr, b.output_nr) == (0, 1)
        assert a.grad_fn is b.grad_fn

    def test_of_different_shapes_and_dtypes(self):
        def forward(ctx, x):
            return x.sum(), x.astype(np.float32), x[:1] * 1

        def backward(ctx, a, b, c):
            assert (a.shape, b.shape, c.shape) == ((), (3,), (1,))
            assert (a.dtype, b.dtype) == (np.float64, np.float32)
            return a + b.astype(np.float64) + c

        x = leaf([1.0, 2.0, 3.0])
        a, b, c = make(forward, backward).apply(x)
        (a * 2 + (b * np.float32(3)).sum() + (c * 4).sum()).backward()
        assert x.grad.tolist() == [9.0, 9.0, 9.0]

    def test_that_are_no_tensors_are_passed_through(self):
        seen = []

        def backward(ctx, g, *others):
            seen.append(others)
            return g * 2

        x = leaf([1.5, 2.5])
        thing = object()
        f = make(lambda ctx, x: (x * 2, "text", None, 3, thing), backward)
        y, *others = f.apply(x)
        assert others == ["text", None, 3, thing]
        y.sum().backward()
        assert seen == [(None, None, None, None)]
        assert x.grad.tolist() == [2.0, 2.0]

    def test_integers_and_booleans_require_no_gradients(self):
        seen = []

        def backward(ctx, *grads):
            seen.append([g.tolist() for g in grads])
            return grads[0]

        f = make(lambda ctx, x: (x * 2, x.astype(np.int64), x > 2), backward)
        y, n, flags = f.apply(leaf([1.5, 2.5]))
        assert not n.requires_grad
        assert n.is_leaf
        assert not flags.requires_grad
        assert n.dtype == np.int64
        y.sum().backward()
        assert seen == [[[1.0, 1.0], [0, 0], [False, False]]]

    def test_containers_inside_are_no_tensors(self):
        def forward(ctx, x):
            return x * 2, (x * 3, [x * 4]), {"a": x * 5}

        seen = []

        def backward(ctx, *grads):
            seen.append(grads[1:])
            return grads[0]

        y, (inner, (innermost,)), mapping = make(forward, backward).apply(leaf(1.0))
        assert y.requires_grad
        assert not inner.requires_grad
        assert not innermost.requires_grad
        assert not mapping["a"].requires_grad
        y.backward()
        assert seen == [(None, None)]

    @pytest.mark.parametrize("kind", [list, lambda items: {"a": items[0]}])
    def test_a_list_or_a_dict_is_no_tensor(self, kind):
        out = make(lambda ctx, x: kind([x * 2]), same).apply(leaf(1.0))
        assert type(out) in (list, dict)
        found = out[0] if type(out) is list else out["a"]
        assert not found.requires_grad

    def test_a_namedtuple_becomes_a_tuple(self):
        pair = collections.namedtuple("pair", "a b")
        f = make(lambda ctx, x: pair(x * 2, x * 3), lambda ctx, a, b: a + b)
        out = f.apply(leaf(1.0))
        assert type(out) is tuple
        assert all(o.requires_grad for o in out)

    def test_a_tuple_of_one(self):
        f = make(lambda ctx, x: (x * 2,), lambda ctx, g: g * 2)
        x = leaf(1.0)
        out = f.apply(x)
        assert type(out) is tuple
        out[0].backward()
        assert x.grad.item() == 2.0

    @pytest.mark.parametrize("output", [3.0, None, "text", ()])
    def test_no_tensor_at_all(self, output):
        assert make(lambda ctx, x: output, same).apply(leaf(1.0)) == output

    def test_the_same_output_twice(self):
        def forward(ctx, x):
            y = x * 2
            return y, y

        x = leaf(1.0)
        a, b = make(forward, lambda ctx, a, b: (a + b) * 2).apply(x)
        (a * 10 + b).backward()
        assert x.grad.item() == 22.0

    def test_in_place_work_on_an_output(self):
        x = leaf([1.0, 2.0])
        y = make(double, lambda ctx, g: g * 2).apply(x)
        y *= 3
        y.sum().backward()
        assert x.grad.tolist() == [6.0, 6.0]


class TestOneResultTwice:
    """What forward returns twice is one tensor: a write to it is seen in both places."""

    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, first, second):
            return (first + second) * 2

    class TwiceTheArray(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.detach().numpy() * 2
            return y, x * 3, y

        @staticmethod
        def backward(ctx, first, second, third):
            return (first + third) * 2 + second * 3

    @pytest.mark.parametrize("cls", [Twice, TwiceTheArray])
    def test_gradient(self, cls):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        results = cls.apply(x)
        first, last = results[0], results[-1]
        assert first is last
        (first * 3 + last * 5).sum().backward()
        assert x.grad.tolist() == [16.0, 16.0]

    @pytest.mark.parametrize("cls", [Twice, TwiceTheArray])
    def test_a_write_to_one(self, cls):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        results = cls.apply(x)
        results[0].mul_(3.0)
        assert results[-1].tolist() == [6.0, 12.0]
        results[-1].sum().backward()
        assert x.grad.tolist() == [6.0, 6.0]


class TestClassMethods:
    """Rules may be class methods."""

    @pytest.mark.parametrize("rule", ["backward", "vjp"])
    def test_forward_and_backward(self, rule):
        class Scaled(Function):
            factor = 3.0

            @classmethod
            def forward(cls, ctx, x):
                ctx.save_for_backward(x)
                return x * x * cls.factor

        def backward(cls, ctx, g):
            (x,) = ctx.saved_tensors
            return g * 2 * x * cls.factor

        setattr(Scaled, rule, classmethod(backward))
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        Scaled.apply(x).sum().backward()
        assert x.grad.tolist() == [6.0, 12.0]
        (g,) = tg.autograd.grad(Scaled.apply(x).sum(), x, create_graph=True)
        assert tg.autograd.grad(g.sum(), x)[0].tolist() == [6.0, 6.0]
