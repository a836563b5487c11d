"""`autograd.grad`: arguments, unused inputs, batches of cotangents, higher orders."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import grad

UNUSED = "appears to not have been used in the graph. Set allow_unused=True"


def leaf(data, dtype=np.float64):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(t):
    return t.detach().numpy()


def test_returns_a_tuple_and_touches_no_grad():
    x = leaf([1.0, 2.0])
    found = grad((x * x).sum(), x)
    assert type(found) is tuple
    assert len(found) == 1
    np.testing.assert_array_equal(values(found[0]), [2.0, 4.0])
    assert x.grad is None


def test_leaves_an_existing_grad_alone():
    x = leaf([1.0, 2.0])
    (x * 3).sum().backward()
    kept = x.grad
    grad((x * x).sum(), x)
    assert x.grad is kept
    np.testing.assert_array_equal(values(kept), [3.0, 3.0])


@pytest.mark.parametrize("container", [list, tuple])
def test_several_inputs_in_order(container):
    x, y = leaf(2.0), leaf(3.0)
    found = grad(x * x * y, container([y, x]))
    assert [g.item() for g in found] == [4.0, 12.0]


def test_same_input_twice():
    x = leaf(2.0)
    a, b = grad(x * x, [x, x])
    assert a.item() == b.item() == 4.0


def test_intermediate_input():
    x = leaf(2.0)
    y = x * x
    z = y * y
    (g,) = grad(z, y)
    assert g.item() == 8.0


def test_intermediate_and_leaf_together():
    x = leaf(2.0)
    y = x * x
    z = y * y + x
    gy, gx = grad(z, [y, x])
    assert gy.item() == 8.0
    assert gx.item() == 33.0


def test_input_below_another_input():
    x = leaf(2.0)
    a = x * 3
    b = a * a
    ga, gb = grad(b * 5, [a, b])
    assert ga.item() == 60.0
    assert gb.item() == 5.0


def test_output_as_input():
    x = leaf(2.0)
    y = x * x
    (g,) = grad(y, y)
    assert g.item() == 1.0
    (g,) = grad(x, x)
    assert g.item() == 1.0


def test_output_as_input_with_cotangent():
    x = leaf([2.0, 3.0])
    y = x * x
    (g,) = grad(y, y, tg.tensor([5.0, 6.0]))
    np.testing.assert_array_equal(values(g), [5.0, 6.0])


def test_output_twice():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    (g,) = grad([y, y], x)
    np.testing.assert_array_equal(values(g), [4.0, 8.0])


def test_several_outputs_sum_up():
    x = leaf([1.0, 2.0])
    (g,) = grad([(x * 2).sum(), (x * x).sum()], [x])
    np.testing.assert_array_equal(values(g), [4.0, 6.0])


def test_only_what_inputs_need_is_computed():
    calls = []

    class Watched(tg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            calls.append(1)
            return g

    x, y = leaf(2.0), leaf(3.0)
    z = Watched.apply(x) * y
    (g,) = grad(z, y, retain_graph=True)
    assert g.item() == 2.0
    assert calls == []
    grad(z, x)
    assert calls == [1]


def test_parts_not_on_the_way_are_not_freed():
    x, y = leaf(2.0), leaf(3.0)
    a, b = x * x, y * y
    z = a + b
    grad(z, x)
    (g,) = grad(b, y)
    assert g.item() == 6.0


# -- unused inputs --------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
def test_unused_input_raises(position):
    inputs = [leaf(1.0), leaf(2.0), leaf(3.0)]
    inputs[position] = leaf(9.0)
    used = [x for k, x in enumerate(inputs) if k != position]
    y = used[0] * used[1]
    with pytest.raises(RuntimeError, match=f"Tensor at index {position} {UNUSED}"):
        grad(y, inputs)


def test_allow_unused_gives_none():
    x, y = leaf(2.0), leaf(3.0)
    assert [g and g.item() for g in grad(x * 2, [x, y], allow_unused=True)] == [2.0, None]


def test_materialize_grads_gives_zeros():
    x, y = leaf([2.0], np.float32), leaf([[3.0, 4.0]], np.float32)
    _, g = grad((x * 2).sum(), [x, y], materialize_grads=True)
    assert g.shape == (1, 2)
    assert g.dtype == np.float32
    np.testing.assert_array_equal(values(g), [[0.0, 0.0]])
    assert not g.requires_grad


def test_materialize_grads_with_allow_unused_false():
    x = leaf(2.0)
    with pytest.raises(ValueError, match="Expected allow_unused to be True or not passed"):
        grad(x * 2, x, materialize_grads=True, allow_unused=False)


def test_materialize_grads_with_allow_unused_true():
    x, y = leaf(2.0), leaf(3.0)
    found = grad(x * 2, [x, y], materialize_grads=True, allow_unused=True)
    assert [g.item() for g in found] == [2.0, 0.0]


def test_intermediate_not_on_the_way_is_unused():
    x = leaf(2.0)
    y = x * 2
    z = x * 3
    with pytest.raises(RuntimeError, match=UNUSED):
        grad(z, y)


def test_input_newer_than_the_output_is_unused():
    x = leaf(2.0)
    y = x * 2
    z = y * 3
    assert grad(y, z, allow_unused=True) == (None,)


def test_cut_graph_is_unused():
    x = leaf(2.0)
    with pytest.raises(RuntimeError, match=UNUSED):
        grad(x.detach() * leaf(1.0), x)


# -- errors ---------------------------------------------------------------------------------------


def test_input_that_needs_no_grad():
    x, y = leaf(2.0), tg.tensor(3.0)
    with pytest.raises(
        RuntimeError, match="One of the differentiated Tensors does not require grad"
    ):
        grad(x * y, [x, y])


def test_output_without_graph():
    x = leaf(2.0)
    text = "element 0 of tensors does not require grad and does not have a grad_fn"
    with pytest.raises(RuntimeError, match=text):
        grad(tg.tensor(1.0), x)


def test_empty_inputs():
    with pytest.raises(RuntimeError, match=r"`inputs` argument to `grad\(\)` cannot be empty"):
        grad(leaf(2.0) * 2, [])


def test_nonscalar_without_cotangent():
    x = leaf([1.0, 2.0])
    with pytest.raises(
        RuntimeError, match="grad can be implicitly created only for scalar outputs"
    ):
        grad(x * 2, x)


def test_cotangent_of_wrong_shape():
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output\[0\]"):
        grad(x * 2, x, tg.zeros(3))


def test_wrong_number_of_cotangents():
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="got 1 tensors and 2 gradients"):
        grad(x * 2, x, [tg.tensor(1.0), tg.tensor(1.0)])


@pytest.mark.parametrize("bad", [1.0, "x", np.ones(2), object()])
def test_inputs_of_a_wrong_type(bad):
    x = leaf(1.0)
    with pytest.raises(TypeError):
        grad(x * 2, [bad])


def test_only_inputs_is_deprecated():
    x = leaf(2.0)
    with pytest.warns(FutureWarning, match="only_inputs argument is deprecated"):
        (g,) = grad(x * x, x, only_inputs=False)
    assert g.item() == 4.0
    assert x.grad is None


def test_all_arguments_by_keyword():
    x = leaf([1.0, 2.0])
    (g,) = grad(
        outputs=x * x,
        inputs=x,
        grad_outputs=tg.tensor([1.0, 10.0]),
        retain_graph=True,
        create_graph=False,
        only_inputs=True,
        allow_unused=False,
        is_grads_batched=False,
        materialize_grads=False,
    )
    np.testing.assert_array_equal(values(g), [2.0, 40.0])


# -- batches --------------------------------------------------------------------------------------


def test_batched_cotangents_give_the_jacobian():
    x = leaf([1.0, 2.0, 3.0])
    y = x * x
    (jacobian,) = grad(y, x, tg.eye(3), is_grads_batched=True)
    np.testing.assert_array_equal(values(jacobian), np.diag([2.0, 4.0, 6.0]))


def test_batched_with_several_outputs_and_inputs():
    x, w = leaf([1.0, 2.0]), leaf(3.0)
    y, z = x * w, (x * x).sum()
    seeds = [np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), np.array([0.0, 0.0, 1.0])]
    gx, gw = grad([y, z], [x, w], [tg.tensor(s) for s in seeds], is_grads_batched=True)
    np.testing.assert_array_equal(values(gx), [[3.0, 0.0], [0.0, 3.0], [2.0, 4.0]])
    np.testing.assert_array_equal(values(gw), [1.0, 2.0, 0.0])


def test_batched_unused():
    x, w = leaf([1.0, 2.0]), leaf(3.0)
    seeds = tg.eye(2)
    gx, gw = grad(x * 2, [x, w], seeds, allow_unused=True, is_grads_batched=True)
    np.testing.assert_array_equal(values(gx), 2 * np.eye(2))
    assert gw is None


def test_batched_materialized():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0, 5.0])
    _, gw = grad(x * 2, [x, w], tg.eye(2), is_grads_batched=True, materialize_grads=True)
    np.testing.assert_array_equal(values(gw), np.zeros((2, 3)))


def test_batched_and_differentiable():
    x = leaf([1.0, 2.0])
    (rows,) = grad(x**3, x, tg.eye(2), is_grads_batched=True, create_graph=True)
    (second,) = grad(rows.sum(), x)
    np.testing.assert_allclose(values(second), [6.0, 12.0])


def test_batched_frees_at_the_end():
    x = leaf([1.0, 2.0])
    y = x**3
    grad(y, x, tg.eye(2), is_grads_batched=True)
    with pytest.raises(RuntimeError, match="second time"):
        grad(y, x, tg.ones(2))


def test_batched_cotangent_of_wrong_shape():
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="grad_output"):
        grad(x * 2, x, tg.eye(3), is_grads_batched=True)


# -- higher orders --------------------------------------------------------------------------------

# a function and its derivatives of orders 0 to 3 at x, as plain functions
FUNCTIONS = {
    "sin": (lambda x: x.sin(), np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)),
    "exp": (lambda x: x.exp(), np.exp, np.exp, np.exp, np.exp),
    "exp_2x": (
        lambda x: (x * 2).exp(),
        lambda x: np.exp(2 * x),
        lambda x: 2 * np.exp(2 * x),
        lambda x: 4 * np.exp(2 * x),
        lambda x: 8 * np.exp(2 * x),
    ),
    "log": (lambda x: x.log(), np.log, lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3),
    "power": (
        lambda x: x**4,
        lambda x: x**4,
        lambda x: 4 * x**3,
        lambda x: 12 * x**2,
        lambda x: 24 * x,
    ),
    "product": (
        lambda x: x * x * x,
        lambda x: x**3,
        lambda x: 3 * x**2,
        lambda x: 6 * x,
        lambda x: np.full_like(x, 6.0),
    ),
    "reciprocal": (
        lambda x: 1 / x,
        lambda x: 1 / x,
        lambda x: -1 / x**2,
        lambda x: 2 / x**3,
        lambda x: -6 / x**4,
    ),
    "sqrt": (
        lambda x: x.sqrt(),
        np.sqrt,
        lambda x: 0.5 * x**-0.5,
        lambda x: -0.25 * x**-1.5,
        lambda x: 0.375 * x**-2.5,
    ),
    "base": (
        lambda x: 2.0**x,
        lambda x: 2.0**x,
        lambda x: np.log(2) * 2**x,
        lambda x: np.log(2) ** 2 * 2**x,
        lambda x: np.log(2) ** 3 * 2**x,
    ),
    "sin_times_x": (
        lambda x: x.sin() * x,
        lambda x: np.sin(x) * x,
        lambda x: np.sin(x) + x * np.cos(x),
        lambda x: 2 * np.cos(x) - x * np.sin(x),
        lambda x: -3 * np.sin(x) - x * np.cos(x),
    ),
    "linear": (
        lambda x: x * 3 + 1,
        lambda x: 3 * x + 1,
        lambda x: np.full_like(x, 3.0),
        np.zeros_like,
        np.zeros_like,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("point", [0.7, [0.3, 1.2, 2.5]], ids=["scalar", "vector"])
def test_derivatives_to_third_order(name, point):
    f, *exact = FUNCTIONS[name]
    x = leaf(point)
    y = f(x)
    np.testing.assert_allclose(values(y), exact[0](np.asarray(point)), rtol=1e-12)
    for order in (1, 2, 3):
        if not y.requires_grad:
            np.testing.assert_array_equal(exact[order](np.asarray(point)), 0.0)
            return
        found = grad(y.sum(), x, create_graph=order < 3, materialize_grads=True)
        y = found[0]
        np.testing.assert_allclose(
            values(y), exact[order](np.asarray(point)), rtol=1e-10, atol=1e-12
        )
        assert y.shape == x.shape


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("matmul", lambda x: ((x @ x) @ x).sum()),
        ("reduction", lambda x: (x.sum(axis=0) ** 3).sum()),
        ("mean", lambda x: (x.mean(axis=1) ** 4).sum()),
        ("logsumexp", lambda x: (tg.logsumexp(x, axis=1) ** 2).sum()),
        ("prod", lambda x: tg.prod(x) ** 2),
        ("views", lambda x: (x[0] * x.T[1] * x.reshape(-1)[::4]).sum()),
        ("gather", lambda x: (x[np.array([0, 0, 2])] ** 3).sum()),
        ("concatenate", lambda x: (tg.concatenate([x, x * x]) ** 2).sum()),
        ("inverse", lambda x: tg.linalg.inv(x + 5 * np.eye(3)).sum()),
        ("det", lambda x: tg.linalg.det(x + np.eye(3))),
        ("norm", lambda x: tg.linalg.norm(x)),
        ("cumsum", lambda x: (tg.cumsum(x, axis=0) ** 3).sum()),
        ("where", lambda x: tg.where(np.eye(3, dtype=bool), x**3, x.sin()).sum()),
        ("broadcast", lambda x: ((x[0] * x[:, :1]) ** 2).sum()),
        ("einsum", lambda x: tg.einsum("ij,jk,kl->", x, x, x)),
    ],
)
def test_third_order_along_directions(name, f):
    rng = np.random.default_rng(7)
    start = rng.uniform(0.2, 1.0, (3, 3))
    u, v, w = (rng.standard_normal((3, 3)) for _ in range(3))

    def second(at):
        x = tg.tensor(at, requires_grad=True)
        (g,) = grad(f(x), x, create_graph=True)
        (h,) = grad((g * u).sum(), x, create_graph=True)
        return x, (h * v).sum()

    x, value = second(start)
    (third,) = grad(value, x)
    eps = 1e-5
    up, down = second(start + eps * w)[1], second(start - eps * w)[1]
    difference = (up.item() - down.item()) / (2 * eps)
    np.testing.assert_allclose((values(third) * w).sum(), difference, rtol=2e-5, atol=1e-6)


def test_mixed_second_derivatives_agree():
    x, y = leaf(0.5), leaf(1.5)
    z = (x * y).sin() * x.exp()
    gx, gy = grad(z, [x, y], create_graph=True)
    (xy,) = grad(gx, y, retain_graph=True)
    (yx,) = grad(gy, x)
    assert xy.item() == pytest.approx(yx.item(), rel=1e-12)


def test_gradient_penalty():
    w = leaf(np.array([[0.5, -0.3], [0.2, 0.8]]))
    x = leaf([1.0, 2.0])
    (g,) = grad(tg.tanh(w @ x).sum(), x, create_graph=True)
    ((g * g).sum() - 1.0).backward()

    def penalty(a):
        t = np.tanh(a @ np.array([1.0, 2.0]))
        return (((1 - t**2) @ a) ** 2).sum() - 1.0

    base = values(w)
    for i in range(2):
        for j in range(2):
            step = np.zeros((2, 2))
            step[i, j] = 1e-6
            expected = (penalty(base + step) - penalty(base - step)) / 2e-6
            assert w.grad[i, j].item() == pytest.approx(expected, rel=1e-6)


def test_create_graph_inside_no_grad_still_records():
    x = leaf(2.0)
    y = x**3
    with tg.no_grad():
        (g,) = grad(y, x, create_graph=True)
    assert g.requires_grad
    assert grad(g, x)[0].item() == pytest.approx(12.0)


def test_without_create_graph_the_result_is_passive():
    x = leaf(2.0)
    (g,) = grad(x**3, x)
    assert not g.requires_grad
    assert g.is_leaf


def test_differentiating_by_the_cotangent():
    x = leaf([1.0, 2.0])
    v = leaf([3.0, 4.0])
    (g,) = grad(x**2, x, v, create_graph=True)
    (by_v,) = grad(g.sum(), v)
    np.testing.assert_array_equal(values(by_v), [2.0, 4.0])


def test_forward_derivative_from_two_reverse_passes():
    x = leaf([0.5, 1.5])
    v = leaf([0.0, 0.0])
    y = x.sin() * x[0]
    (g,) = grad(y, x, v, create_graph=True)
    (along,) = grad(g, v, tg.tensor([1.0, 2.0]))
    a, b = 0.5, 1.5
    expected = [np.cos(a) * a + np.sin(a), 2 * np.cos(b) * a + np.sin(b)]
    np.testing.assert_allclose(values(along), expected, rtol=1e-12)


def test_mixed_dtypes_to_second_order():
    x = leaf([0.5, 1.5], np.float32)
    y = leaf([2.0, 3.0], np.float64)
    gx, gy = grad((x * x * y).sum(), [x, y], create_graph=True)
    assert gx.dtype == np.float32
    assert gy.dtype == np.float64
    hx, hy = grad(gx.sum(), [x, y])
    assert hx.dtype == np.float32
    assert hy.dtype == np.float64
    np.testing.assert_allclose(values(hx), [4.0, 6.0])
    np.testing.assert_allclose(values(hy), [1.0, 3.0])


def test_unused_in_second_order():
    x = leaf(2.0)
    (g,) = grad(x * 3 + 1, x, create_graph=True)
    assert g.item() == 3.0
    with pytest.raises(RuntimeError):
        grad(g, x)


def test_deep_chain_with_create_graph():
    x = leaf(1.0)
    y = x
    for _ in range(3000):
        y = y * 1.0001 + 0.0001
    (g,) = grad(y * y, x, create_graph=True)
    (h,) = grad(g, x)
    assert h.item() == pytest.approx(2 * 1.0001**6000)


def test_derivative_of_leaf_used_by_itself_and_through_its_gradient():
    x = leaf(1.3)
    (g,) = grad(x**3, x, create_graph=True)
    (total,) = grad(g * x, x)
    assert total.item() == pytest.approx(9 * 1.3**2)


def test_create_graph_detects_modified_values():
    x = leaf([1.0, 2.0])
    y = x.exp()
    z = y.sum()
    with tg.no_grad():
        y += 1.0
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        grad(z, x, create_graph=True)
