"""Tensor hooks and retained gradients."""

import gc
import warnings
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import grad


def leaf(data):
    return tg.tensor(data, dtype=np.float64, requires_grad=True)


def values(t):
    return t.detach().numpy()


def kept_grad(t):
    """`.grad` of a tensor that may be no leaf (reading it may warn)."""
    with warnings.catch_warnings(action="ignore"):
        return t.grad


def make(kind):
    """A leaf, a tensor of the kind, and a scalar computed from it, with d scalar / d tensor = 3."""
    x = leaf([1.0, 2.0])
    t = {
        "leaf": lambda: x,
        "saved": lambda: x * x,
        "unsaved": lambda: x + 1,
        "view": lambda: (x * 1)[0:2],
        "view of a leaf": lambda: x[0:2],
        "reshaped": lambda: x.reshape(2, 1).reshape(2),
        "opaque": lambda: tg.cumsum(x),
        "cast": lambda: x.astype(np.float32).astype(np.float64),
        "reduction": lambda: tg.sum(x.reshape(2, 1), axis=1),
    }[kind]()
    return x, t, (t * 3).sum()


KINDS = [
    "leaf",
    "saved",
    "unsaved",
    "view",
    "view of a leaf",
    "reshaped",
    "opaque",
    "cast",
    "reduction",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_hook_sees_the_gradient(kind, create_graph):
    x, t, y = make(kind)
    seen = []
    t.register_hook(lambda g: seen.append(values(g).copy()))
    grad(y, x, create_graph=create_graph)
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], [3.0, 3.0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("through", ["backward", "grad", "create_graph", "inputs"])
def test_hook_replaces_the_gradient(kind, through):
    x, t, y = make(kind)
    before = grad(y, x, retain_graph=True)[0]
    t.register_hook(lambda g: g * 10)
    if through == "backward":
        y.backward()
        found = x.grad
    elif through == "inputs":
        y.backward(inputs=[x])
        found = x.grad
    else:
        (found,) = grad(y, x, create_graph=through == "create_graph")
    np.testing.assert_allclose(values(found), values(before) * 10)


@pytest.mark.parametrize("kind", KINDS)
def test_hook_of_a_requested_input_replaces_what_is_returned(kind):
    _, t, y = make(kind)
    t.register_hook(lambda g: g + 100)
    (found,) = grad(y, t)
    np.testing.assert_array_equal(values(found), [103.0, 103.0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_hook_of_an_input_of_backward_runs_once(kind, create_graph):
    _, t, y = make(kind)
    seen = []
    t.register_hook(lambda g: seen.append(1) or g + 100)
    with warnings.catch_warnings(action="ignore"):
        y.backward(inputs=[t], create_graph=create_graph)
    assert seen == [1]
    np.testing.assert_array_equal(values(kept_grad(t)), [103.0, 103.0])


@pytest.mark.parametrize("kind", KINDS)
def test_retained_input_of_backward_accumulates_once(kind):
    _, t, y = make(kind)
    t.retain_grad()
    y.backward(inputs=[t])
    np.testing.assert_array_equal(values(kept_grad(t)), [3.0, 3.0])


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_run_in_order_each_on_the_result_of_the_last(kind):
    _, t, y = make(kind)
    seen = []
    t.register_hook(lambda g: seen.append(("a", g[0].item())) or g + 1)
    t.register_hook(lambda g: seen.append(("b", g[0].item())))
    t.register_hook(lambda g: seen.append(("c", g[0].item())) or g * 2)
    y.backward()
    assert seen == [("a", 3.0), ("b", 4.0), ("c", 4.0)]
    if kind == "leaf":
        np.testing.assert_array_equal(values(t.grad), [8.0, 8.0])


@pytest.mark.parametrize("kind", KINDS)
def test_removed_hook_does_not_run(kind):
    _, t, y = make(kind)
    seen = []
    first = t.register_hook(lambda g: seen.append("first"))
    t.register_hook(lambda g: seen.append("second"))
    first.remove()
    first.remove()
    y.backward()
    assert seen == ["second"]


def test_handle_as_a_context():
    x = leaf(1.0)
    seen = []
    with x.register_hook(lambda g: seen.append(1)):
        (x * 2).backward()
    (x * 2).backward()
    assert seen == [1]


def test_handle_after_its_tensor_has_gone():
    x = leaf(1.0)
    y = x * 2
    handle = y.register_hook(lambda g: None)
    del y
    gc.collect()
    handle.remove()


def test_hook_runs_once_on_the_whole_gradient():
    x = leaf(1.0)
    y = x * 2
    z = y * 3 + y * 4 + y * y
    seen = []
    y.register_hook(lambda g: seen.append(g.item()))
    z.backward()
    assert seen == [3 + 4 + 4.0]


def test_leaf_hook_runs_once_a_backward():
    x = leaf(1.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 2 + x * 3).backward()
    (x * 7).backward()
    assert seen == [5.0, 7.0]
    assert x.grad.item() == 12.0


def test_hook_on_the_root():
    x = leaf([1.0, 2.0])
    y = x * x
    y.register_hook(lambda g: g * 2)
    y.backward(tg.tensor([1.0, 10.0]))
    np.testing.assert_array_equal(values(x.grad), [4.0, 80.0])


def test_hook_on_a_root_given_twice_runs_once():
    x = leaf(2.0)
    y = x * x
    seen = []
    y.register_hook(lambda g: seen.append(g.item()))
    tg.autograd.backward([y, y])
    assert seen == [2.0]
    assert x.grad.item() == 8.0


def test_hooks_run_from_the_root_downwards():
    x = leaf(1.0)
    a = x * 2
    b = a * 3
    c = b * 4
    order = []
    for name, t in [("a", a), ("x", x), ("c", c), ("b", b)]:
        t.register_hook(lambda g, name=name: order.append(name))
    c.backward()
    assert order == ["c", "b", "a", "x"]


def test_hook_of_a_tensor_not_on_the_way_does_not_run():
    x, y = leaf(1.0), leaf(2.0)
    a, b = x * 2, y * 3
    seen = []
    b.register_hook(lambda g: seen.append(1))
    (g,) = grad(a + b, x)
    assert g.item() == 2.0
    assert seen == []


def test_hook_on_one_of_two_views():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 1
    head, tail = y[:1], y[1:]
    tail.register_hook(lambda g: g * 10)
    (head.sum() + tail.sum()).backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 10.0, 10.0])


def test_hook_may_not_change_what_others_get():
    x = leaf([1.0, 2.0])
    a, b = x * 1, x * 1
    a.register_hook(lambda g: g * 100)
    (a + b).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [101.0, 101.0])


def test_hook_registered_after_use_still_runs():
    x = leaf(1.0)
    y = x * 2
    z = y * 3
    y.register_hook(lambda g: g * 5)
    z.backward()
    assert x.grad.item() == 30.0


def test_hook_survives_its_handle_and_its_tensor():
    x = leaf(1.0)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.item()))
    z = y * 3
    del y
    gc.collect()
    z.backward()
    assert seen == [3.0]


def test_hook_runs_every_time():
    x = leaf(1.0)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(1))
    z = y * y
    z.backward(retain_graph=True)
    z.backward()
    assert seen == [1, 1]


def test_hook_that_adds_hooks():
    x = leaf(1.0)
    seen = []

    def first(g):
        seen.append("first")
        if len(seen) == 1:
            x.register_hook(lambda g: seen.append("second"))

    x.register_hook(first)
    (x * 2).backward()
    assert seen[0] == "first"
    (x * 2).backward()
    assert seen.count("first") == 2
    assert "second" in seen


def test_hook_under_create_graph_is_differentiated():
    x = leaf(2.0)
    y = x * x
    y.register_hook(lambda g: g * y)
    (first,) = grad(y, x, create_graph=True)  # y · 2x
    assert first.item() == 16.0
    (second,) = grad(first, x)  # 2y, and 2x · y (the hook again) · 2x
    assert second.item() == pytest.approx(8.0 + 64.0)


@pytest.mark.parametrize("create_graph", [False, True])
def test_grad_mode_inside_hooks(create_graph):
    x = leaf(2.0)
    y = x * x
    modes = []
    y.register_hook(lambda g: modes.append(tg.is_grad_enabled()))
    x.register_hook(lambda g: modes.append(tg.is_grad_enabled()))
    grad(y, x, create_graph=create_graph)
    assert modes == [create_graph, create_graph]
    assert tg.is_grad_enabled()


def test_bound_methods_and_partials_as_hooks():
    class Doubler:
        def double(self, g):
            return g * 2

        def __call__(self, g):
            return g * 3

    x = leaf(1.0)
    x.register_hook(Doubler().double)
    x.register_hook(Doubler())
    (x * 1).backward()
    assert x.grad.item() == 6.0


# -- errors ---------------------------------------------------------------------------------------


def test_hook_on_a_passive_tensor():
    text = "cannot register a hook on a tensor that doesn't require gradient"
    with pytest.raises(RuntimeError, match=text):
        tg.tensor([1.0]).register_hook(lambda g: None)


@pytest.mark.parametrize("kind", ["leaf", "saved", "view"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_hook_that_changes_the_shape(kind, create_graph):
    x, t, y = make(kind)

    def shrink(g):
        return g[:1]

    t.register_hook(shrink)
    with pytest.raises(RuntimeError, match="hook 'shrink' has changed the size of value"):
        grad(y, x, create_graph=create_graph)


@pytest.mark.parametrize("kind", ["leaf", "saved", "view"])
@pytest.mark.parametrize("bad", [1.0, "x", [1.0, 2.0]])
def test_hook_that_returns_no_tensor(kind, bad):
    x, t, y = make(kind)
    t.register_hook(lambda g: bad)
    with pytest.raises(TypeError, match="hook"):
        grad(y, x)


@pytest.mark.parametrize("kind", ["leaf", "saved", "view"])
def test_error_in_a_hook_comes_through(kind):
    x, t, y = make(kind)

    class Special(Exception):
        pass

    def fail(g):
        raise Special("mine")

    handle = t.register_hook(fail)
    with pytest.raises(Special, match="mine"):
        grad(y, x)
    handle.remove()
    assert tg.is_grad_enabled()
    z = (x * 2).sum()
    np.testing.assert_array_equal(values(grad(z, x)[0]), [2.0, 2.0])


# -- retain_grad ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "leaf"])
def test_retain_grad(kind):
    _, t, y = make(kind)
    assert not t.retains_grad
    t.retain_grad()
    assert t.retains_grad
    y.backward()
    np.testing.assert_array_equal(values(kept_grad(t)), [3.0, 3.0])


def test_retained_grad_accumulates():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    (y * 3).backward(retain_graph=True)
    (y * 4).backward()
    assert kept_grad(y).item() == 7.0


def test_retain_grad_twice_counts_once():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    (y * 3).backward()
    assert kept_grad(y).item() == 3.0


def test_retain_grad_of_a_leaf_changes_nothing():
    x = leaf(1.0)
    x.retain_grad()
    assert not x.retains_grad
    (x * 3).backward()
    assert x.grad.item() == 3.0


@pytest.mark.parametrize("hook_first", [True, False])
def test_retained_grad_is_that_after_the_hooks(hook_first):
    x = leaf(1.0)
    y = x * 2
    if hook_first:
        y.register_hook(lambda g: g * 10)
        y.retain_grad()
    else:
        y.retain_grad()
        y.register_hook(lambda g: g * 10)
    (y * 3).backward()
    assert kept_grad(y).item() == 30.0


def test_retained_grad_does_not_share_with_the_leafs():
    x = leaf([1.0, 2.0])
    y = x + 0
    y.retain_grad()
    y.sum().backward()
    kept_grad(y).zero_()
    np.testing.assert_array_equal(values(x.grad), [1.0, 1.0])


def test_retain_grad_under_create_graph():
    x = leaf(2.0)
    y = x * x
    y.retain_grad()
    with warnings.catch_warnings(action="ignore"):
        (y * y).backward(create_graph=True)
    assert kept_grad(y).requires_grad
    assert grad(kept_grad(y), x)[0].item() == pytest.approx(8.0)


def test_retain_grad_with_grad_keeps_it_too():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    grad(y * 3, x)
    assert kept_grad(y).item() == 3.0


def test_retain_grad_on_the_root():
    x = leaf(2.0)
    y = x * x
    y.retain_grad()
    y.backward()
    assert kept_grad(y).item() == 1.0


def test_retain_grad_of_a_passive_tensor():
    with pytest.raises(
        RuntimeError, match="can't retain_grad on Tensor that has requires_grad=False"
    ):
        tg.tensor(1.0).retain_grad()


def test_grad_of_a_nonleaf_is_not_kept_and_reading_it_warns():
    x = leaf(1.0)
    y = x * 2
    (y * 3).backward()
    with pytest.warns(UserWarning, match=r"\.grad attribute of a Tensor that is not a leaf"):
        assert y.grad is None


def test_reading_grad_of_leaves_and_retained_does_not_warn():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    (y * 3).backward()
    with warnings.catch_warnings(action="error"):
        assert x.grad.item() == 6.0
        assert y.grad.item() == 3.0
        assert tg.tensor(1.0).grad is None


def test_retain_grad_makes_no_cycle():
    gc.disable()
    try:
        x = leaf(1.0)
        y = x * 2
        y.retain_grad()
        (y * 3).backward()
        gone = weakref.ref(y)
        del y
        assert gone() is None
    finally:
        gc.enable()


# -- hooks and values that are given anew ---------------------------------------------------------


def test_hook_stays_with_the_old_version():
    x = leaf([1.0, 2.0])
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(values(g).copy()))
    y *= 3
    y.sum().backward()
    # the hook was registered for the value before the multiplication
    np.testing.assert_array_equal(seen, [[3.0, 3.0]])


def test_hook_on_the_new_version():
    x = leaf([1.0, 2.0])
    y = x * 2
    y *= 3
    seen = []
    y.register_hook(lambda g: seen.append(values(g).copy()))
    y.sum().backward()
    np.testing.assert_array_equal(seen, [[1.0, 1.0]])


def test_hooks_on_both_versions():
    x = leaf([1.0, 2.0])
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(("old", g[0].item())))
    y *= 3
    y.register_hook(lambda g: seen.append(("new", g[0].item())))
    y.sum().backward()
    assert seen == [("new", 1.0), ("old", 3.0)]


def test_retain_grad_follows_to_the_new_version():
    x = leaf([1.0, 2.0])
    y = x * 2
    y.retain_grad()
    y *= 3
    y.sum().backward()
    np.testing.assert_array_equal(values(kept_grad(y)), [1.0, 1.0])
