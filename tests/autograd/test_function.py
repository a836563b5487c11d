"""`Function`: contexts, saved tensors, several outputs, errors, differentiation of backward."""

import gc
import warnings
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import grad


def leaf(data, dtype=np.float64):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(t):
    return t.detach().numpy()


def make(forward, backward=None, setup=None, name="F", **attributes):
    """A Function from plain functions."""
    body = {"forward": staticmethod(forward), **attributes}
    if backward is not None:
        body["backward"] = staticmethod(backward)
    if setup is not None:
        body["setup_context"] = staticmethod(setup)
    return type(name, (tg.Function,), body)


class Cube(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class CubeSetup(tg.Function):
    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class CubeVjp(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class CubeNumPy(tg.Function):
    """With plain arrays inside."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().numpy()
        return tg.as_tensor(ctx.x**3)

    @staticmethod
    def backward(ctx, g):
        return tg.as_tensor(g.detach().numpy() * 3 * ctx.x**2)


CUBES = [Cube, CubeSetup, CubeVjp, CubeNumPy]


@pytest.mark.parametrize("cube", CUBES)
@pytest.mark.parametrize("point", [2.0, [1.0, 2.0], np.ones((2, 3))])
def test_value_and_gradient(cube, point):
    x = leaf(point)
    y = cube.apply(x)
    assert isinstance(y, tg.Tensor)
    assert y.requires_grad
    assert not y.is_leaf
    np.testing.assert_array_equal(values(y), np.asarray(point) ** 3)
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), 3 * np.asarray(point) ** 2)


@pytest.mark.parametrize("cube", CUBES)
def test_in_the_middle_of_a_graph(cube):
    x = leaf([1.0, 2.0])
    (cube.apply(x * 2) * 5).sum().backward()
    np.testing.assert_array_equal(values(x.grad), 5 * 24 * np.array([1.0, 4.0]))


@pytest.mark.parametrize("cube", CUBES)
def test_used_twice(cube):
    x = leaf(2.0)
    (cube.apply(x) + cube.apply(x * 2)).backward()
    assert x.grad.item() == 12.0 + 24 * 4


@pytest.mark.parametrize("cube", [Cube, CubeSetup, CubeVjp])
def test_twice_and_thrice_differentiable(cube):
    x = leaf([1.0, 2.0])
    (first,) = grad(cube.apply(x).sum(), x, create_graph=True)
    np.testing.assert_array_equal(values(first), [3.0, 12.0])
    (second,) = grad(first.sum(), x, create_graph=True)
    np.testing.assert_array_equal(values(second), [6.0, 12.0])
    (third,) = grad(second.sum(), x)
    np.testing.assert_array_equal(values(third), [6.0, 6.0])


@pytest.mark.parametrize("cube", CUBES)
def test_not_recorded(cube):
    with tg.no_grad():
        y = cube.apply(leaf(2.0))
    assert not y.requires_grad
    y = cube.apply(tg.tensor(2.0))
    assert not y.requires_grad
    assert y.item() == 8.0


def test_name_of_the_node():
    y = Cube.apply(leaf(2.0))
    assert y.grad_fn.name() == "CubeBackward"
    assert "CubeBackward" in repr(y)


def test_forward_is_not_recorded():
    modes = []
    f = make(
        lambda ctx, x: modes.append(tg.is_grad_enabled()) or x * 2,
        lambda ctx, g: modes.append(tg.is_grad_enabled()) or g * 2,
    )
    x = leaf(1.0)
    y = f.apply(x)
    assert modes == [False]
    grad(y, x, retain_graph=True)
    assert modes == [False, False]
    grad(y, x, create_graph=True)
    assert modes == [False, False, True]
    assert tg.is_grad_enabled()


def test_error_in_forward_restores_the_mode():
    def fail(ctx, x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        make(fail, lambda ctx, g: g).apply(leaf(1.0))
    assert tg.is_grad_enabled()


@pytest.mark.parametrize("create_graph", [False, True])
def test_error_in_backward_comes_through(create_graph):
    def fail(ctx, g):
        raise KeyError("mine")

    x = leaf(1.0)
    with pytest.raises(KeyError, match="mine"):
        grad(make(lambda ctx, x: x * 2, fail).apply(x), x, create_graph=create_graph)
    assert tg.is_grad_enabled()
    (g,) = grad(x * 3, x)
    assert g.item() == 3.0


# -- arguments ------------------------------------------------------------------------------------


def test_arguments_of_any_kind():
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
    z = make(forward, backward).apply(x, 5, "name", y, {"a": 1})
    assert seen == [(5, "name", {"a": 1})]
    z.backward()
    assert x.grad.item() == 15.0
    assert y.grad.item() == 10.0


def test_keyword_arguments():
    f = make(lambda ctx, x, k=2: x * k, lambda ctx, g: (g, None))
    np.testing.assert_array_equal(values(f.apply(leaf([1.0]), k=3)), [3.0])


def test_tensors_inside_containers_are_values():
    x, y = leaf(2.0), leaf(3.0)
    f = make(lambda ctx, x, items: x * items[0], lambda ctx, g: (g, None))
    z = f.apply(x, [y])
    z.backward()
    assert x.grad.item() == 1.0
    assert y.grad is None


@pytest.mark.parametrize("which", [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("setup", [False, True])
def test_needs_input_grad(which, setup):
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
        z.backward()
        assert seen[1] == (*which, False)


def test_needs_input_grad_under_no_grad():
    seen = []
    f = make(lambda ctx, x: seen.append(ctx.needs_input_grad) or x * 2, lambda ctx, g: g)
    with tg.no_grad():
        f.apply(leaf(1.0))
    assert seen == [(False,)]


@pytest.mark.parametrize("create_graph", [False, True])
def test_needs_input_grad_says_what_the_pass_needs(create_graph):
    seen = []
    f = make(
        lambda ctx, x, y: x * y,
        lambda ctx, g: seen.append(ctx.needs_input_grad) or (g * 3, g * 2),
    )
    x, y = leaf(2.0), leaf(3.0)
    grad(f.apply(x, y), x, create_graph=create_graph)
    assert seen == [(True, False)]


def test_same_tensor_for_two_arguments():
    f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 10, g * 100))
    x = leaf(2.0)
    f.apply(x, x).backward()
    assert x.grad.item() == 110.0


def test_ctx_attributes_are_free():
    def forward(ctx, x):
        ctx.anything = {"x": 1}
        ctx.factor = 7.0
        return x * 2

    def backward(ctx, g):
        assert ctx.anything == {"x": 1}
        return g * ctx.factor

    x = leaf(1.0)
    make(forward, backward).apply(x).backward()
    assert x.grad.item() == 7.0


def test_setup_context_sees_inputs_and_output():
    seen = []

    def setup(ctx, inputs, output):
        seen.append((inputs, output))

    f = make(lambda x, n: (x * n, x + n), lambda ctx, a, b: (a + b, None), setup)
    x = leaf(2.0)
    f.apply(x, 5)
    inputs, output = seen[0]
    assert inputs[0] is x
    assert inputs[1] == 5
    assert [o.item() for o in output] == [10.0, 7.0]


def test_subclass_inherits():
    class Twice(Cube):
        @staticmethod
        def backward(ctx, g):
            return 2 * Cube.backward(ctx, g)

    x = leaf(2.0)
    Twice.apply(x).backward()
    assert x.grad.item() == 24.0


# -- outputs --------------------------------------------------------------------------------------


def two_outputs(**attributes):
    seen = []

    def forward(ctx, x):
        return x * 2, x * 3

    def backward(ctx, a, b):
        seen.append((a, b))
        return (0 if a is None else a * 2) + (0 if b is None else b * 3)

    return make(forward, backward, **attributes), seen


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("used", [0, 1])
def test_outputs_partially_used(used, create_graph):
    f, seen = two_outputs()
    x = leaf([1.0, 2.0])
    outputs = f.apply(x)
    assert type(outputs) is tuple
    (g,) = grad(outputs[used].sum(), x, create_graph=create_graph)
    np.testing.assert_array_equal(values(g), [2.0 + used, 2.0 + used])
    unused = seen[0][1 - used]
    np.testing.assert_array_equal(values(unused), [0.0, 0.0])
    assert unused.dtype == np.float64


@pytest.mark.parametrize("create_graph", [False, True])
def test_all_outputs_used(create_graph):
    f, seen = two_outputs()
    x = leaf([1.0, 2.0])
    a, b = f.apply(x)
    (g,) = grad((a * 10 + b * 100 + b).sum(), x, create_graph=create_graph)
    np.testing.assert_array_equal(values(g), [20 + 303.0] * 2)
    assert len(seen) == 1


def test_outputs_as_roots():
    f, seen = two_outputs()
    x = leaf([1.0, 2.0])
    a, b = f.apply(x)
    tg.autograd.backward([a, b], [tg.tensor([1.0, 0.0]), tg.tensor([0.0, 1.0])])
    np.testing.assert_array_equal(values(x.grad), [2.0, 3.0])
    assert len(seen) == 1


def test_outputs_one_after_the_other():
    f, seen = two_outputs()
    x = leaf([1.0, 2.0])
    a, b = f.apply(x)
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [5.0, 5.0])
    assert len(seen) == 2


def test_outputs_that_went_out_of_scope():
    f, _ = two_outputs()
    x = leaf([1.0, 2.0])
    f.apply(x)[1].sum().backward()
    np.testing.assert_array_equal(values(x.grad), [3.0, 3.0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_unmaterialized_cotangents_are_none(create_graph):
    seen = []

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    def backward(ctx, a, b):
        seen.append((a is None, b is None))
        return b * 3

    x = leaf([1.0, 2.0])
    _, b = make(forward, backward).apply(x)
    (g,) = grad(b.sum(), x, create_graph=create_graph)
    assert seen == [(True, False)]
    np.testing.assert_array_equal(values(g), [3.0, 3.0])


def test_outputs_of_different_shapes_and_dtypes():
    def forward(ctx, x):
        return x.sum(), x.astype(np.float32), x[:1] * 1

    def backward(ctx, a, b, c):
        assert (a.shape, b.shape, c.shape) == ((), (3,), (1,))
        assert (a.dtype, b.dtype) == (np.float64, np.float32)
        return a + b.astype(np.float64) + c

    x = leaf([1.0, 2.0, 3.0])
    a, b, c = make(forward, backward).apply(x)
    (a * 2 + (b * np.float32(3)).sum() + (c * 4).sum()).backward()
    np.testing.assert_array_equal(values(x.grad), [9.0, 9.0, 9.0])


def test_integer_and_other_outputs():
    def forward(ctx, x):
        return x * 2, x.astype(np.int64), "text", None

    seen = []

    def backward(ctx, g, *others):
        seen.append(len(others))
        return g * 2

    x = leaf([1.5, 2.5])
    y, n, text, nothing = make(forward, backward).apply(x)
    assert not n.requires_grad
    assert n.dtype == np.int64
    assert text == "text"
    assert nothing is None
    y.sum().backward()
    assert seen == [3]
    np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])


def test_tuple_of_one():
    f = make(lambda ctx, x: (x * 2,), lambda ctx, g: g * 2)
    x = leaf(1.0)
    out = f.apply(x)
    assert type(out) is tuple
    out[0].backward()
    assert x.grad.item() == 2.0


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("create_graph", [False, True])
def test_mark_non_differentiable(position, create_graph):
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
    assert active.requires_grad
    (g,) = grad((active * passive).sum(), x, create_graph=create_graph)
    factor = [2.0, 3.0]
    np.testing.assert_array_equal(
        values(g), factor[1 - position] * factor[position] * np.array([1.0, 2.0])
    )
    np.testing.assert_array_equal(values(seen[0][position]), [0.0, 0.0])


def test_only_output_non_differentiable():
    def forward(ctx, x):
        y = x * 2
        ctx.mark_non_differentiable(y)
        return y

    y = make(forward, lambda ctx, g: g).apply(leaf(1.0))
    assert not y.requires_grad


def test_input_returned_as_it_is():
    f = make(lambda ctx, x: x, lambda ctx, g: g * 5)
    x = leaf([1.0, 2.0])
    y = f.apply(x)
    assert y is not x
    assert not y.is_leaf
    assert np.shares_memory(values(y), values(x))
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [5.0, 5.0])


def test_one_of_two_inputs_returned():
    f = make(lambda ctx, x, y: (y, x + y), lambda ctx, a, b: (b, a * 10 + b))
    x, y = leaf(1.0), leaf(2.0)
    same, total = f.apply(x, y)
    assert same is not y
    (same * 3 + total).backward()
    assert x.grad.item() == 1.0
    assert y.grad.item() == 31.0


def test_passive_input_returned_as_it_is():
    f = make(lambda ctx, x, y: y, lambda ctx, g: (g, g))
    x, y = leaf(1.0), tg.tensor(2.0)
    out = f.apply(x, y)
    assert out.requires_grad
    assert not y.requires_grad


def test_view_of_an_input_returned():
    f = make(lambda ctx, x: x[1:], lambda ctx, g: tg.concatenate([tg.zeros(1), g * 7]))
    x = leaf([1.0, 2.0, 3.0])
    y = f.apply(x)
    np.testing.assert_array_equal(values(y), [2.0, 3.0])
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 7.0, 7.0])


@pytest.mark.parametrize(
    "forward", [lambda ctx, x: x, lambda ctx, x: x[0:1]], ids=["input", "view"]
)
def test_in_place_work_on_such_an_output_is_refused(forward):
    f = make(forward, lambda ctx, g: g)
    y = f.apply(leaf([1.0, 2.0]) * 2)
    with pytest.raises(RuntimeError, match="This view was created inside a custom Function"):
        y += 1.0


def test_same_output_twice():
    def forward(ctx, x):
        y = x * 2
        return y, y

    x = leaf(1.0)
    a, b = make(forward, lambda ctx, a, b: (a + b) * 2).apply(x)
    (a * 10 + b).backward()
    assert x.grad.item() == 22.0


# -- saved tensors --------------------------------------------------------------------------------


class ExpOutput(tg.Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = tg.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


def test_saved_output():
    x = leaf([0.0, 1.0])
    y = ExpOutput.apply(x)
    (first,) = grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(values(first), np.exp([0.0, 1.0]))
    (second,) = grad(first.sum(), x, create_graph=True)
    np.testing.assert_allclose(values(second), np.exp([0.0, 1.0]))
    (third,) = grad(second.sum(), x)
    np.testing.assert_allclose(values(third), np.exp([0.0, 1.0]))


@pytest.mark.parametrize("number", [1, 2])
def test_saved_output_makes_no_cycle(number):
    def forward(ctx, x):
        outs = tuple(x * (k + 2) for k in range(number))
        ctx.save_for_backward(*outs)
        return outs if number > 1 else outs[0]

    gc.disable()
    try:
        x = leaf(np.ones(3))
        out = make(forward, lambda ctx, *g: g[0]).apply(x)
        first = out[0] if number > 1 else out
        gone, array = weakref.ref(first), weakref.ref(first.detach().numpy())
        del out, first
        assert gone() is None
        assert array() is None
    finally:
        gc.enable()


def test_saved_output_of_two_differentiated_twice():
    class Both(tg.Function):
        @staticmethod
        def forward(ctx, x):
            s, c = tg.sin(x), tg.cos(x)
            ctx.save_for_backward(s, c)
            return s, c

        @staticmethod
        def backward(ctx, gs, gc):
            s, c = ctx.saved_tensors
            return gs * c - gc * s

    x = leaf(0.3)
    s, c = Both.apply(x)
    (first,) = grad(s * c, x, create_graph=True)
    assert first.item() == pytest.approx(np.cos(0.6))
    (second,) = grad(first, x, create_graph=True)
    assert second.item() == pytest.approx(-2 * np.sin(0.6))
    (third,) = grad(second, x)
    assert third.item() == pytest.approx(-4 * np.cos(0.6))


def test_ctx_and_graph_are_freed_by_reference_count():
    gc.disable()
    try:
        held = []

        class Thing:
            pass

        def forward(ctx, x):
            ctx.thing = Thing()
            held.append(weakref.ref(ctx.thing))
            ctx.save_for_backward(x)
            return x * 2

        x = leaf(1.0)
        y = make(forward, lambda ctx, g: g).apply(x)
        assert held[0]() is not None
        del y
        assert held[0]() is None
    finally:
        gc.enable()


def test_saved_values_are_freed_by_backward():
    gc.disable()
    try:
        held = []

        def forward(ctx, x):
            extra = tg.tensor(np.ones(4))
            held.append(weakref.ref(extra.numpy()))
            ctx.save_for_backward(extra)
            return x * 2

        x = leaf(1.0)
        y = make(forward, lambda ctx, g: g).apply(x)
        assert held[0]() is not None
        y.backward()
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("create_graph", [False, True])
def test_second_time(create_graph):
    x = leaf(2.0)
    y = Cube.apply(x)
    grad(y, x, create_graph=create_graph, retain_graph=False)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        grad(y, x)


def test_second_time_with_nothing_saved():
    x = leaf(2.0)
    y = make(lambda ctx, x: x * 2, lambda ctx, g: g * 2).apply(x)
    y.backward()
    y.backward()
    assert x.grad.item() == 4.0


def test_none_can_be_saved():
    def forward(ctx, x, y):
        ctx.save_for_backward(x, None)
        return x * 2

    def backward(ctx, g):
        saved = ctx.saved_tensors
        assert type(saved) is tuple
        assert saved[1] is None
        return g, None

    x = leaf(1.0)
    make(forward, backward).apply(x, None).backward()
    assert x.grad.item() == 1.0


def test_saved_input_is_differentiable_in_backward():
    x, w = leaf(2.0), leaf(3.0)

    def forward(ctx, x):
        ctx.save_for_backward(x, w)
        return x * w.detach()

    def backward(ctx, g):
        _x, w = ctx.saved_tensors
        return g * w

    (first,) = grad(make(forward, backward).apply(x), x, create_graph=True)
    (by_w,) = grad(first, w)
    assert by_w.item() == 1.0


def test_save_for_backward_twice_keeps_the_last():
    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        ctx.save_for_backward(x)
        return x * 2

    x = leaf(1.0)
    f = make(forward, lambda ctx, g: g * len(ctx.saved_tensors))
    f.apply(x).backward()
    assert x.grad.item() == 1.0


def test_saved_tensors_before_backward():
    held = []

    def forward(ctx, x):
        held.append(ctx)
        ctx.save_for_backward(x)
        return x * 2

    x = leaf([1.0, 2.0])
    y = make(forward, lambda ctx, g: g).apply(x)
    (saved,) = held[0].saved_tensors
    np.testing.assert_array_equal(values(saved), [1.0, 2.0])
    y.sum().backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = held[0].saved_tensors


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("what", ["input", "output", "other"])
def test_modified_saved_tensor_is_detected(what, create_graph):
    other = tg.tensor([1.0, 2.0])

    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward({"input": x, "output": y, "other": other}[what])
        return y

    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    x = leaf([1.0, 2.0])
    start = x * 1
    y = make(forward, backward).apply(start)
    z = y.sum()
    with tg.no_grad():
        {"input": start, "output": y, "other": other}[what].add_(1.0)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        grad(z, x, create_graph=create_graph)


def test_modified_but_not_unpacked_is_fine():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    x = leaf([1.0, 2.0])
    start = x * 1
    y = make(forward, lambda ctx, g: g * 2).apply(start)
    with tg.no_grad():
        start.add_(1.0)
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])


def test_saved_before_modification_inside_forward_is_fine():
    def forward(ctx, x):
        y = x * 2
        y.add_(1.0)
        ctx.save_for_backward(y)
        return y

    x = leaf([1.0, 2.0])
    make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [3.0, 5.0])


# -- gradients returned ---------------------------------------------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
def test_none_gradient(create_graph):
    f = make(lambda ctx, x, y: x * y, lambda ctx, g: (None, g * 2))
    x, y = leaf(2.0), leaf(3.0)
    gx, gy = grad(f.apply(x, y), [x, y], create_graph=create_graph, allow_unused=True)
    assert gx is None
    assert gy.item() == 2.0


def test_none_gradient_leaves_grad_none():
    f = make(lambda ctx, x: x * 2, lambda ctx, g: None)
    x = leaf(2.0)
    f.apply(x * 3).backward()
    assert x.grad is None


def test_extra_nones_are_accepted():
    f = make(lambda ctx, x: x * 2, lambda ctx, g: (g * 2, None, None))
    x = leaf(1.0)
    f.apply(x).backward()
    assert x.grad.item() == 2.0


def test_list_of_gradients():
    f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 3, g * 2))
    x, y = leaf(2.0), leaf(3.0)
    f.apply(x, y).backward()
    assert (x.grad.item(), y.grad.item()) == (3.0, 2.0)


@pytest.mark.parametrize("create_graph", [False, True])
def test_larger_gradient_is_summed(create_graph):
    f = make(lambda ctx, x: x * 2, lambda ctx, g: tg.ones((3, 2)))
    x = leaf([1.0, 2.0])
    (g,) = grad(f.apply(x).sum(), x, create_graph=create_graph)
    np.testing.assert_array_equal(values(g), [3.0, 3.0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradient_of_another_dtype_is_converted(create_graph):
    f = make(lambda ctx, x: x * 2, lambda ctx, g: tg.ones(2, dtype=np.float32))
    x = leaf([1.0, 2.0])
    (g,) = grad(f.apply(x).sum(), x, create_graph=create_graph)
    assert g.dtype == np.float64


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("shape", [(5,), (1,), (), (2, 2, 3)])
def test_gradient_of_a_wrong_shape(shape, create_graph):
    f = make(lambda ctx, x: x * 2, lambda ctx, g: tg.ones(shape))
    x = leaf([1.0, 2.0])
    expected = (
        rf"Function FBackward returned an invalid gradient at index 0 - got "
        rf"\[{', '.join(map(str, shape))}\] but expected shape compatible with \[2\]"
    )
    with pytest.raises(RuntimeError, match=expected):
        grad(f.apply(x).sum(), x, create_graph=create_graph)


def test_gradient_of_a_wrong_shape_names_the_index():
    f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g, tg.ones(7)))
    x, y = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"invalid gradient at index 1 - got \[7\]"):
        f.apply(x, y).sum().backward()


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    ("returned", "count"), [(lambda g: (g, g), 2), (lambda g: (g, None, g), 3), (lambda g: (), 0)]
)
def test_wrong_number_of_gradients(returned, count, create_graph):
    f = make(lambda ctx, x: x * 2, lambda ctx, g: returned(g))
    x = leaf(1.0)
    expected = (
        rf"function FBackward returned an incorrect number of gradients \(expected 1, got {count}\)"
    )
    with pytest.raises(RuntimeError, match=expected):
        grad(f.apply(x), x, create_graph=create_graph)


def test_too_few_gradients():
    f = make(lambda ctx, x, y: x * y, lambda ctx, g: g)
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match=r"\(expected 2, got 1\)"):
        f.apply(x, x).backward()


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    ("bad", "name"), [(1.0, "float"), ("x", "str"), (np.ones(2), "ndarray"), ([1], "list")]
)
def test_gradient_that_is_no_tensor(bad, name, create_graph):
    f = make(lambda ctx, x: x * 2, lambda ctx, g: bad)
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match=rf"expected Variable or None \(got {name}\)"):
        grad(f.apply(x).sum(), x, create_graph=create_graph)


def test_gradient_for_an_argument_that_is_no_tensor():
    f = make(lambda ctx, x, n: x * n, lambda ctx, g: (g, g))
    x = leaf(1.0)
    expected = (
        "function FBackward returned a gradient different than None at position 2, but the "
        "corresponding forward input was not a Variable"
    )
    with pytest.raises(RuntimeError, match=expected):
        f.apply(x, 2.0).backward()


def test_gradient_of_a_passive_tensor_is_ignored():
    f = make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 2, g * 3))
    x, y = leaf(1.0), tg.tensor(2.0)
    f.apply(x, y).backward()
    assert x.grad.item() == 2.0
    assert y.grad is None


def test_returned_cotangent_itself_is_not_shared():
    f = make(lambda ctx, x, y: x + y, lambda ctx, g: (g, g))
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    f.apply(x, y).sum().backward()
    x.grad.mul_(10)
    np.testing.assert_array_equal(values(y.grad), [1.0, 1.0])


def test_returned_tensor_that_the_user_keeps_is_not_changed():
    constant = tg.tensor([1.0, 2.0])
    f = make(lambda ctx, x: x * 2, lambda ctx, g: constant)
    x = leaf([1.0, 2.0])
    (f.apply(x) + f.apply(x)).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])
    np.testing.assert_array_equal(values(constant), [1.0, 2.0])
    f.apply(x).sum().backward()
    np.testing.assert_array_equal(values(constant), [1.0, 2.0])


def test_cotangent_may_be_changed_by_backward():
    def backward(ctx, g):
        g.mul_(3.0)
        return g

    x = leaf([1.0, 2.0])
    y = make(lambda ctx, x: x * 2, backward).apply(x)
    seed = tg.tensor([1.0, 1.0])
    y.backward(seed)
    np.testing.assert_array_equal(values(x.grad), [3.0, 3.0])


# -- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "position", "name"),
    [((1,), 0, "int"), ((None, "x"), 1, "str"), ((np.ones(2),), 0, "ndarray"), (([],), 0, "list")],
)
def test_save_for_backward_of_other_things(bad, position, name):
    def forward(ctx, x):
        ctx.save_for_backward(*bad)
        return x * 2

    expected = (
        f"save_for_backward can only save variables, but argument {position} is of type {name}"
    )
    with pytest.raises(TypeError, match=expected):
        make(forward, lambda ctx, g: g).apply(leaf(1.0))


def test_both_backward_and_vjp():
    f = make(lambda ctx, x: x * 2, lambda ctx, g: g, vjp=staticmethod(lambda ctx, g: g))
    expected = (
        "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should "
        "only implement one of them."
    )
    with pytest.raises(RuntimeError, match=expected):
        f.apply(leaf(1.0)).backward()


def test_neither_backward_nor_vjp():
    y = make(lambda ctx, x: x * 2).apply(leaf(1.0))
    with pytest.raises(
        NotImplementedError, match="You must implement either the backward or vjp method"
    ):
        y.backward()


def test_no_forward():
    with pytest.raises(NotImplementedError, match="You must implement the forward function"):
        type("F", (tg.Function,), {}).apply(leaf(1.0))


def test_instantiating_warns():
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        Cube()


def test_calling_an_instance_raises():
    with warnings.catch_warnings(action="ignore"):
        f = Cube()
    expected = (
        "Legacy autograd function with non-static forward method is deprecated. Please use "
        "new-style autograd function with static forward method."
    )
    with pytest.raises(RuntimeError, match=expected):
        f(leaf(1.0))


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("save_for_backward", (tg.tensor(1.0),)),
        ("mark_non_differentiable", (tg.tensor(1.0),)),
        ("set_materialize_grads", (False,)),
    ],
)
@pytest.mark.parametrize("where", ["after apply", "in backward"])
def test_ctx_methods_outside_of_forward(method, args, where):
    held = []

    def forward(ctx, x):
        held.append(ctx)
        return x * 2

    def backward(ctx, g):
        getattr(ctx, method)(*args)
        return g

    y = make(forward, backward).apply(leaf(1.0))
    with pytest.raises(RuntimeError, match=f"F.*{method}"):  # noqa: PT012
        if where == "after apply":
            getattr(held[0], method)(*args)
        else:
            y.backward()


def test_forward_that_returns_no_tensor():
    assert make(lambda ctx, x: 3.0, lambda ctx, g: g).apply(leaf(1.0)) == 3.0
    assert make(lambda ctx, x: None, lambda ctx, g: g).apply(leaf(1.0)) is None


# -- composition ----------------------------------------------------------------------------------


def test_nested_functions():
    class Outer(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Cube.apply(x) * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with tg.enable_grad():
                inner = x.detach().requires_grad_()
                y = Cube.apply(inner) * 2
            return g * grad(y, inner, tg.ones(y.shape))[0]

    x = leaf([1.0, 2.0])
    Outer.apply(x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [6.0, 24.0])


def test_function_in_the_backward_of_a_function():
    class Sine(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tg.as_tensor(np.sin(values(x)))

        @staticmethod
        def backward(ctx, g):
            return g * Cosine.apply(*ctx.saved_tensors)

    class Cosine(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tg.as_tensor(np.cos(values(x)))

        @staticmethod
        def backward(ctx, g):
            return -g * Sine.apply(*ctx.saved_tensors)

    x = leaf([0.3, 1.2])
    y = Sine.apply(x)
    for expected in (np.cos, lambda v: -np.sin(v), lambda v: -np.cos(v), np.sin):
        (y,) = grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(values(y), expected(np.array([0.3, 1.2])), rtol=1e-12)


def test_hooks_on_outputs_of_functions():
    f, _ = two_outputs()
    x = leaf([1.0, 2.0])
    a, b = f.apply(x)
    a.register_hook(lambda g: g * 10)
    b.retain_grad()
    (a + b).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [23.0, 23.0])
    np.testing.assert_array_equal(values(b.grad), [1.0, 1.0])


def test_backward_inside_backward():
    w = leaf(3.0)

    def backward(ctx, g):
        with tg.enable_grad():
            (w * w).backward()
        return g * 2

    x = leaf(1.0)
    make(lambda ctx, x: x * 2, backward).apply(x).backward()
    assert x.grad.item() == 2.0
    assert w.grad.item() == 6.0


def test_in_place_work_on_an_output():
    x = leaf([1.0, 2.0])
    y = make(lambda ctx, x: x * 2, lambda ctx, g: g * 2).apply(x)
    y *= 3
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [6.0, 6.0])


def test_function_of_views():
    x = leaf(np.arange(6.0).reshape(2, 3))
    Cube.apply(x.T[1:]).sum().backward()
    expected = 3 * np.arange(6.0).reshape(2, 3) ** 2
    expected[:, 0] = 0
    np.testing.assert_array_equal(values(x.grad), expected)


def test_strided_gradients():
    f = make(lambda ctx, x: x.T * 2, lambda ctx, g: g.T * 2)
    x = leaf(np.arange(6.0).reshape(2, 3))
    weights = np.arange(6.0).reshape(3, 2)
    (f.apply(x) * weights).sum().backward()
    np.testing.assert_array_equal(values(x.grad), 2 * weights.T)


def test_many_inputs_and_outputs():
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
