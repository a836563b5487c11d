"""Functions that work in place, and Functions that return views."""

import numpy as np
import pytest
from functions import AddOne, double, make, same, values
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad
from tapegrad.autograd.function import InplaceFunction

INSIDE = (
    r"This view was created inside a custom Function "
    r"\(or because an input was returned as-is\)"
)


def in_place(ctx, x):
    x.add_(1.0)
    ctx.mark_dirty(x)
    return x


class TestMarkDirty:
    """An input modified in place is returned as the output, with the Function as its history."""

    def test_the_output_is_the_input(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        z = AddOne.apply(y)
        assert z is y
        assert y.tolist() == [2.0, 3.0]
        assert y.grad_fn.name() == "AddOneBackward"
        y.sum().backward()
        assert x.grad.tolist() == [5.0, 5.0]

    def test_setup_context(self):
        f = make(
            lambda x: x.add_(1.0),
            lambda ctx, g: g * 5,
            lambda ctx, inputs, output: ctx.mark_dirty(*inputs),
        )
        x = leaf([1.0])
        y = x * 1
        assert f.apply(y) is y
        y.sum().backward()
        assert x.grad.tolist() == [5.0]

    def test_a_chain(self):
        x = leaf([1.0])
        y = x * 1
        for _ in range(3):
            assert AddOne.apply(y) is y
        assert y.tolist() == [4.0]
        y.sum().backward()
        assert x.grad.tolist() == [125.0]

    def test_bumps_the_version(self):
        y = tg.tensor([1.0])
        make(lambda ctx, x: ctx.mark_dirty(x) or x, same).apply(y)
        assert y._version == 1

    def test_what_needs_the_old_value_is_refused(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        z = y * y
        AddOne.apply(y)
        with pytest.raises(RuntimeError, match=r"inplace operation.*output 0 of Add"):
            z.sum().backward()

    def test_what_does_not_need_the_old_value_is_fine(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        z = y * 3
        AddOne.apply(y)
        (z.sum() + y.sum()).backward()
        assert x.grad.tolist() == [8.0, 8.0]

    def test_saved_after_the_modification(self):
        def forward(ctx, x):
            x.mul_(2.0)
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        x = leaf([1.0, 2.0])
        y = make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x * 1)
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_a_leaf_is_refused(self):
        with pytest.raises(
            RuntimeError, match="a leaf Variable that requires grad has been used in an in-place"
        ):
            AddOne.apply(leaf([1.0, 2.0]))

    def test_a_view_of_a_leaf_is_refused(self):
        with pytest.raises(
            RuntimeError, match="a view of a leaf Variable that requires grad is being used"
        ):
            AddOne.apply(leaf([1.0, 2.0])[:1])

    def test_a_leaf_under_no_grad(self):
        x = leaf([1.0, 2.0])
        with tg.no_grad():
            AddOne.apply(x)
        assert x.tolist() == [2.0, 3.0]
        assert x.is_leaf
        assert x.requires_grad

    def test_a_tensor_that_requires_no_gradient(self):
        x = tg.tensor([1.0])
        y = AddOne.apply(x)
        assert y is x
        assert not x.requires_grad
        assert x.tolist() == [2.0]

    def test_a_passive_tensor_takes_part_through_another_input(self):
        def forward(ctx, x, y):
            x.add_(y)
            ctx.mark_dirty(x)
            return x

        x, y = tg.tensor([1.0]), leaf([2.0])
        z = make(forward, lambda ctx, g: (g * 3, g * 4)).apply(x, y)
        assert z is x
        assert x.requires_grad
        assert not x.is_leaf
        x.sum().backward()
        assert y.grad.tolist() == [4.0]

    def test_a_view_writes_to_its_base(self):
        x = leaf([1.0, 2.0])
        base = x * 1
        view = base[:1]
        assert AddOne.apply(view) is view
        assert base.tolist() == [2.0, 2.0]
        assert view._base is base
        base.sum().backward()
        assert x.grad.tolist() == [5.0, 1.0]

    def test_the_views_of_a_base_follow(self):
        x = leaf([1.0, 2.0])
        base = x * 1
        view = base[:1]
        AddOne.apply(base)
        assert view.tolist() == [2.0]
        view.sum().backward()
        assert x.grad.tolist() == [5.0, 0.0]

    def test_one_of_several_views_is_refused(self):
        a, _ = tg.split(leaf([1.0, 2.0]) * 1, 2)
        with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
            AddOne.apply(a)

    def test_not_returned(self):
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2

        expected = (
            "Some elements marked as dirty during the forward method were not returned as output. "
            "The inputs that are modified inplace must all be outputs of the Function."
        )
        with pytest.raises(RuntimeError, match=expected):
            make(forward, same).apply(leaf([1.0]) * 1)
        assert tg.is_grad_enabled()

    def test_returned_as_a_view(self):
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x[:1]

        with pytest.raises(RuntimeError, match="were not returned as output"):
            make(forward, same).apply(leaf([1.0, 2.0]) * 1)

    def test_one_of_two_outputs(self):
        def forward(ctx, x, y):
            x.add_(1.0)
            ctx.mark_dirty(x)
            return y * 2, x

        x, y = leaf([1.0]), leaf([2.0])
        start = x * 1
        a, b = make(forward, lambda ctx, g, h: (h * 3, g * 4)).apply(start, y)
        assert b is start
        (a + b * 10).sum().backward()
        assert x.grad.tolist() == [30.0]
        assert y.grad.tolist() == [4.0]

    def test_the_same_tensor_for_two_arguments(self):
        def forward(ctx, x, y):
            x.add_(1.0)
            ctx.mark_dirty(x)
            return x

        x = leaf([1.0])
        start = x * 1
        make(forward, lambda ctx, g: (g * 3, g * 4)).apply(start, start).sum().backward()
        assert x.grad.tolist() == [7.0]

    def test_a_tensor_that_is_no_input_warns(self):
        def forward(ctx, x):
            y = x * 2
            ctx.mark_dirty(y)
            return y

        with pytest.warns(
            UserWarning, match="mark_dirty.* received a tensor that was not an input"
        ):
            y = make(forward, same).apply(leaf([1.0]) * 1)
        assert y.tolist() == [2.0]

    def test_other_things_are_refused(self):
        def forward(ctx, x):
            ctx.mark_dirty(3)
            return x

        with pytest.raises(
            (RuntimeError, TypeError), match="mark_dirty can only accept variables, but argument"
        ):
            make(forward, same).apply(leaf([1.0]) * 1)

    def test_hooks_of_the_old_and_the_new_version(self):
        x = leaf([1.0])
        y = x * 1
        y.register_hook(lambda g: g * 10)
        AddOne.apply(y)
        y.register_hook(lambda g: g * 100)
        y.sum().backward()
        assert x.grad.tolist() == [5000.0]

    def test_differentiated_twice(self):
        def forward(ctx, x):
            ctx.factor = 2
            x.mul_(x)
            ctx.mark_dirty(x)
            return x

        x = leaf([3.0])
        start = x * 1
        f = make(forward, lambda ctx, g: g * x * ctx.factor)
        (first,) = grad(f.apply(start).sum(), x, create_graph=True)
        assert first.tolist() == [6.0]
        (second,) = grad(first.sum(), x)
        assert second.tolist() == [2.0]

    def test_modified_without_being_marked(self):
        x = leaf([1.0])
        y = x * 1
        z = make(lambda ctx, x: x.add_(1.0), lambda ctx, g: g * 3).apply(y)
        assert z is not y
        assert y.tolist() == [2.0]
        assert y._version == 1
        z.sum().backward()
        assert x.grad.tolist() == [3.0]


class TestViews:
    """An input, or a view of one, may be returned; in-place work on it is refused."""

    def test_an_input_as_it_is(self):
        f = make(lambda ctx, x: x, lambda ctx, g: g * 5)
        x = leaf([1.0, 2.0])
        y = f.apply(x)
        assert y is not x
        assert not y.is_leaf
        assert x.is_leaf
        assert np.shares_memory(y.detach().numpy(), x.detach().numpy())
        y.sum().backward()
        assert x.grad.tolist() == [5.0, 5.0]

    def test_one_of_two_inputs(self):
        f = make(lambda ctx, x, y: (y, x + y), lambda ctx, a, b: (b, a * 10 + b))
        x, y = leaf(1.0), leaf(2.0)
        same_y, total = f.apply(x, y)
        assert same_y is not y
        (same_y * 3 + total).backward()
        assert x.grad.item() == 1.0
        assert y.grad.item() == 31.0

    def test_an_input_twice(self):
        f = make(lambda ctx, x: (x, x), lambda ctx, a, b: a + b)
        x = leaf(1.0)
        a, b = f.apply(x)
        assert a is not b
        (a * 10 + b).backward()
        assert x.grad.item() == 11.0

    def test_a_passive_input(self):
        f = make(lambda ctx, x, y: y, lambda ctx, g: (g, g))
        x, y = leaf(1.0), tg.tensor(2.0)
        out = f.apply(x, y)
        assert out.requires_grad
        assert not y.requires_grad

    @pytest.mark.parametrize("dtype", [np.float64, np.int64])
    def test_an_input_where_nothing_is_recorded(self, dtype):
        x = tg.tensor([1, 2], dtype=dtype)
        y = make(lambda ctx, x: x, same).apply(x)
        assert y is not x
        assert not y.requires_grad

    def test_a_view_of_an_input(self):
        f = make(lambda ctx, x: x[1:], lambda ctx, g: tg.concatenate([tg.zeros(1), g * 7]))
        x = leaf([1.0, 2.0, 3.0])
        y = f.apply(x)
        assert y.tolist() == [2.0, 3.0]
        y.sum().backward()
        assert x.grad.tolist() == [0.0, 7.0, 7.0]

    @pytest.mark.parametrize(
        "forward", [lambda ctx, x: x, lambda ctx, x: x[:1]], ids=["input", "view"]
    )
    def test_is_a_view(self, forward):
        x = leaf([1.0, 2.0]) * 1
        y = make(forward, same).apply(x)
        assert y._is_view()
        assert y._base is x

    @pytest.mark.parametrize(
        "forward",
        [lambda ctx, x: x, lambda ctx, x: x[0:1], lambda ctx, x: (x * 2)[:1]],
        ids=["input", "view", "view of something new"],
    )
    def test_in_place_work_is_refused(self, forward):
        y = make(forward, same).apply(leaf([1.0, 2.0]) * 2)
        with pytest.raises(RuntimeError, match=f"Output 0 of F is a view and is being.*{INSIDE}"):
            y += 1.0
        assert y[0].item() in (2.0, 4.0)

    def test_in_place_work_on_one_of_several_is_refused(self):
        f = make(lambda ctx, x: (x[:1], x[1:]), lambda ctx, a, b: tg.concatenate([a, b]))
        a, _ = f.apply(leaf([1.0, 2.0]) * 2)
        with pytest.raises(RuntimeError, match=r"Output 0 of F is a view.*returns multiple views"):
            a += 1.0

    @pytest.mark.parametrize(
        ("show", "name"),
        [
            (lambda y: y[0:1], "Getitem"),
            (lambda y: y[0:1].reshape(1, 1), "Reshape"),
            (lambda y: y.T, "Transpose"),
        ],
    )
    def test_views_of_outputs_are_refused_by_their_own_name(self, show, name):
        y = make(lambda ctx, x: x[:], same).apply(leaf([1.0, 2.0]) * 2)
        with pytest.raises(RuntimeError, match=f"Output 0 of {name} is a view and is.*{INSIDE}"):
            show(y).add_(1.0)
        f = make(lambda ctx, x: (x[:1], x[1:]), lambda ctx, a, b: tg.concatenate([a, b]))
        _, b = f.apply(leaf([1.0, 2.0]) * 2)
        with pytest.raises(RuntimeError, match=f"Output 0 of {name} is.*returns multiple views"):
            show(b).add_(1.0)
        assert show(b).output_nr == 0

    def test_after_work_on_the_base_the_view_is_refused(self):
        x = leaf([1.0, 2.0])
        start = x * 1
        y = make(lambda ctx, x: x[:1], same).apply(start)
        start += 1.0
        with pytest.raises(RuntimeError, match=f"its base or another view of its base.*{INSIDE}"):
            y.sum().backward()

    def test_a_copy_may_be_modified(self):
        x = leaf([1.0, 2.0])
        y = make(lambda ctx, x: x, lambda ctx, g: g * 5).apply(x).copy()
        y += 1.0
        y.sum().backward()
        assert x.grad.tolist() == [5.0, 5.0]

    def test_in_place_work_where_nothing_requires_gradients(self):
        x = tg.tensor([1.0, 2.0])
        y = make(lambda ctx, x: x[:1], same).apply(x)
        y += 1.0
        assert x.tolist() == [2.0, 2.0]

    def test_in_place_work_on_a_detached_output(self):
        x = leaf([1.0, 2.0]) * 1
        y = make(lambda ctx, x: x.detach(), same).apply(x)
        y += 1.0
        assert y.tolist() == [2.0, 3.0]
        np.testing.assert_array_equal(values(x), [2.0, 3.0])

    def test_a_tensor_from_elsewhere_becomes_the_output(self):
        other = tg.tensor([1.0, 2.0])
        y = make(lambda ctx, x: other, lambda ctx, g: g * 3).apply(leaf([0.0, 0.0]))
        assert y.requires_grad
        assert y.grad_fn.name() == "FBackward"


class TestInplaceFunction:
    """`InplaceFunction` keeps its `inplace` attribute, for old code."""

    class Twice(InplaceFunction):
        @staticmethod
        def forward(ctx, x, inplace=False):
            if inplace:
                ctx.mark_dirty(x)
                return x.mul_(2.0)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    def test_is_a_function(self):
        assert issubclass(InplaceFunction, tg.Function)

    @pytest.mark.parametrize(
        ("args", "kwargs", "expected"),
        [((), {}, False), ((True,), {}, True), ((), {"inplace": True}, True)],
    )
    def test_attribute(self, args, kwargs, expected):
        with pytest.warns(DeprecationWarning, match="should not be instantiated"):
            instance = self.Twice(*args, **kwargs)
        assert instance.inplace is expected

    @pytest.mark.parametrize("inplace", [False, True])
    def test_apply(self, inplace):
        x = leaf([1.0])
        y = x * 1
        z = self.Twice.apply(y, inplace)
        assert (z is y) is inplace
        z.sum().backward()
        assert x.grad.tolist() == [2.0]


def test_an_ordinary_output_is_no_view():
    y = make(double, same).apply(leaf([1.0]))
    assert not y._is_view()
