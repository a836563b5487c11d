"""`autograd.backward` and `Tensor.backward`: accumulation, roots, cotangents, freed graphs."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

import tapegrad as tg

SECOND_TIME = "Trying to backward through the graph a second time"


def leaf(data, dtype=np.float64):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(t):
    return t.detach().numpy()


# -- accumulation ---------------------------------------------------------------------------------


def test_gradient_lands_in_leaf():
    x = leaf([1.0, 2.0, 3.0])
    assert x.grad is None
    (x * x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0, 6.0])
    assert not x.grad.requires_grad
    assert x.grad.is_leaf


def test_backward_returns_none():
    x = leaf(1.0)
    assert (x * 2).backward() is None
    assert tg.autograd.backward(x * 2) is None


def test_accumulates_into_the_same_object():
    x = leaf([1.0, 2.0])
    (x * 3).sum().backward()
    first = x.grad
    (x * 4).sum().backward()
    assert x.grad is first
    np.testing.assert_array_equal(values(first), [7.0, 7.0])


def test_accumulation_is_seen_through_the_array():
    x = leaf([1.0, 2.0])
    (x * 3).sum().backward()
    array = x.grad.numpy()
    (x * 4).sum().backward()
    np.testing.assert_array_equal(array, [7.0, 7.0])


def test_setting_grad_to_none_starts_anew():
    x = leaf([1.0])
    (x * 3).sum().backward()
    first = x.grad
    x.grad = None
    (x * 5).sum().backward()
    assert x.grad is not first
    assert x.grad.item() == 5.0
    assert first.item() == 3.0


def test_grad_is_not_shared_with_the_cotangent():
    x = leaf([1.0, 2.0])
    seed = np.array([1.0, 1.0])
    (x + 0.0).backward(seed)
    x.grad.zero_()
    np.testing.assert_array_equal(seed, [1.0, 1.0])


def test_grads_of_two_leaves_do_not_share_memory():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (x + y).sum().backward()
    x.grad.zero_()
    np.testing.assert_array_equal(values(y.grad), [1.0, 1.0])


def test_seed_of_a_leaf_root_is_copied():
    x = leaf([1.0, 2.0])
    seed = tg.tensor([5.0, 6.0])
    x.backward(seed)
    x.grad.zero_()
    np.testing.assert_array_equal(values(seed), [5.0, 6.0])


def test_grad_set_by_the_user_is_added_to():
    x = leaf([1.0, 2.0])
    mine = tg.tensor([10.0, 20.0])
    x.grad = mine
    (x * 2).sum().backward()
    assert x.grad is mine
    np.testing.assert_array_equal(values(mine), [12.0, 22.0])


def test_leaf_that_went_out_of_scope_is_no_obstacle():
    x = leaf([1.0, 2.0])
    hold = leaf([2.0, 2.0])
    y = (x * hold).sum()
    gone = weakref.ref(x)
    del x
    gc.collect()
    y.backward()
    np.testing.assert_array_equal(values(hold.grad), [1.0, 2.0])
    assert gone() is None


def test_leaf_as_its_own_root():
    x = leaf(3.0)
    x.backward()
    assert x.grad.item() == 1.0
    x.backward()
    assert x.grad.item() == 2.0


def test_requires_grad_switched_off_and_on():
    x = leaf([1.0])
    y = (x * 2).sum()
    x.requires_grad_(False)
    z = (x * 3).sum()
    assert not z.requires_grad
    x.requires_grad_()
    (x * 5).sum().backward()
    assert x.grad.item() == 5.0
    assert y.requires_grad


# -- shapes of graphs -----------------------------------------------------------------------------


def test_diamond():
    x = leaf(2.0)
    a = x * 3
    b = a * a
    c = a + 1
    (b * c).backward()
    # d/dx (9x²(3x+1)) = 81x² + 18x
    assert x.grad.item() == pytest.approx(81 * 4 + 36)


def test_repeated_diamonds():
    x = leaf(1.5)
    y = x
    for _ in range(12):
        y = y * 0.5 + y * 0.6
    y.backward()
    assert x.grad.item() == pytest.approx(1.1**12)


def test_same_tensor_as_both_operands():
    x = leaf([3.0, 4.0])
    (x + x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])
    x.grad = None
    (x - x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 0.0])
    x.grad = None
    (x / x).sum().backward()
    np.testing.assert_allclose(values(x.grad), [0.0, 0.0], atol=1e-15)


def test_wide_graph():
    x = leaf(np.arange(5.0))
    parts = [x * float(k) for k in range(500)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    total.sum().backward()
    np.testing.assert_allclose(values(x.grad), np.full(5, sum(range(500))))


def test_wide_concatenation():
    leaves = [leaf([float(k), 1.0]) for k in range(200)]
    joined = tg.concatenate(leaves)
    (joined * np.arange(400.0)).sum().backward()
    for k, x in enumerate(leaves):
        np.testing.assert_array_equal(values(x.grad), [2.0 * k, 2.0 * k + 1])


def test_deep_chain():
    x = leaf(1.0)
    y = x
    for _ in range(50_000):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1.0


def test_deep_chain_that_saves():
    x = leaf([1.0, 1.0])
    y = x
    for _ in range(20_000):
        y = y * 1.0001
    y.sum().backward()
    np.testing.assert_allclose(values(x.grad), 1.0001**20_000, rtol=1e-9)
    del y  # freeing does not recurse


def test_deep_chain_freed_without_backward():
    x = leaf(1.0)
    y = x
    for _ in range(50_000):
        y = y * 1.0
    gone = weakref.ref(y)
    del y
    assert gone() is None


def test_unused_branch_gets_nothing():
    x, y = leaf(1.0), leaf(2.0)
    z = x * 2
    w = y * 3
    z.backward()
    assert x.grad.item() == 2.0
    assert y.grad is None
    assert w.requires_grad


def test_tensor_used_in_two_graphs():
    x = leaf([1.0, 2.0])
    shared = x.exp()
    first, second = (shared * 2).sum(), (shared + 3).sum()
    first.backward(retain_graph=True)
    second.backward()
    np.testing.assert_allclose(values(x.grad), 3 * np.exp([1.0, 2.0]))


def test_second_graph_finds_shared_part_freed():
    x = leaf([1.0, 2.0])
    shared = x.exp()
    first, second = (shared * 2).sum(), (shared + 3).sum()
    first.backward()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        second.backward()


# -- the second time ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda x: (x * x).sum(),
        lambda x: x.exp().sum(),
        lambda x: (x**3).sum(),
        lambda x: x @ x,
        lambda x: tg.max(x),
        lambda x: tg.logsumexp(x),
        lambda x: tg.linalg.norm(x),
        lambda x: tg.prod(x),
    ],
)
@pytest.mark.parametrize("through", ["backward", "grad"])
def test_second_time_raises_if_something_was_saved(build, through):
    x = leaf([1.0, 2.0, 3.0])
    y = build(x)
    run = y.backward if through == "backward" else lambda: tg.autograd.grad(y, x)
    run()
    with pytest.raises(RuntimeError, match=SECOND_TIME) as caught:
        run()
    assert "Specify retain_graph=True" in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: (x + 1).sum(),
        lambda x: (-x).sum(),
        lambda x: x.reshape(1, 3).sum(),
        lambda x: x[1:].sum(),
        lambda x: (x - np.ones(3)).sum(),
        lambda x: tg.concatenate([x, x]).sum(),
        lambda x: x[np.array([0, 0, 2])].sum(),
        lambda x: tg.cumsum(x).sum(),
        lambda x: x.mean(),
    ],
)
def test_second_time_is_fine_if_nothing_was_saved(build):
    x = leaf([1.0, 2.0, 3.0])
    y = build(x)
    y.backward()
    once = values(x.grad).copy()
    y.backward()
    np.testing.assert_array_equal(values(x.grad), 2 * once)


@pytest.mark.parametrize("times", [2, 4])
def test_retain_graph_allows_repeats(times):
    x = leaf([1.0, 2.0])
    y = (x.exp() * x).sum()
    for _ in range(times):
        y.backward(retain_graph=True)
    y.backward()
    expected = (times + 1) * np.exp([1.0, 2.0]) * (1 + np.array([1.0, 2.0]))
    np.testing.assert_allclose(values(x.grad), expected)
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        y.backward()


def test_create_graph_retains():
    x = leaf(2.0)
    y = x**3
    tg.autograd.grad(y, x, create_graph=True)
    (again,) = tg.autograd.grad(y, x)
    assert again.item() == pytest.approx(12.0)


def test_create_graph_with_retain_graph_false_frees():
    x = leaf(2.0)
    y = (x * x) * x
    tg.autograd.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        tg.autograd.grad(y, x)


def test_a_failed_backward_does_not_touch_grads_of_other_graphs():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    y.backward()
    before = values(x.grad).copy()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        y.backward()
    np.testing.assert_array_equal(values(x.grad), before)
    (x * 2).sum().backward()
    np.testing.assert_array_equal(values(x.grad), before + 2)


# -- roots and cotangents -------------------------------------------------------------------------


def test_several_roots():
    x, y = leaf([1.0, 2.0]), leaf(3.0)
    tg.autograd.backward([(x * 2).sum(), y * y, (x * y).sum()])
    np.testing.assert_array_equal(values(x.grad), [5.0, 5.0])
    assert y.grad.item() == 6.0 + 3.0


def test_several_roots_with_cotangents():
    x = leaf([1.0, 2.0])
    a, b = x * 2, (x * x).sum()
    tg.autograd.backward([a, b], [tg.tensor([1.0, 10.0]), None])
    np.testing.assert_array_equal(values(x.grad), [2 + 2.0, 20 + 4.0])


def test_tuple_of_roots():
    x = leaf(1.0)
    tg.autograd.backward((x * 2, x * 3), (tg.tensor(1.0), tg.tensor(10.0)))
    assert x.grad.item() == 32.0


def test_same_root_twice_counts_twice():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    tg.autograd.backward([y, y])
    np.testing.assert_array_equal(values(x.grad), [4.0, 8.0])


def test_root_that_another_root_was_made_from():
    x = leaf(2.0)
    y = x * x
    z = y * 3
    tg.autograd.backward([y, z])
    assert x.grad.item() == 4.0 + 12.0


def test_leaf_among_the_roots():
    x = leaf(2.0)
    tg.autograd.backward([x, x * x])
    assert x.grad.item() == 5.0


@pytest.mark.parametrize(
    "cotangent",
    [
        tg.tensor([1.0, 2.0]),
        np.array([1.0, 2.0]),
        np.array([1, 2]),
        np.array([1.0, 2.0], np.float32),
    ],
    ids=["tensor", "array", "integers", "float32"],
)
def test_cotangents_of_all_kinds(cotangent):
    x = leaf([3.0, 4.0])
    (x * x).backward(cotangent)
    np.testing.assert_array_equal(values(x.grad), [6.0, 16.0])
    assert x.grad.dtype == np.float64


def test_strided_cotangent():
    x = leaf(np.arange(6.0).reshape(2, 3))
    seed = np.arange(12.0).reshape(3, 4)[:, ::2].T
    (x * 1.0).backward(seed)
    np.testing.assert_array_equal(values(x.grad), seed)


def test_cotangent_by_keyword():
    x = leaf([3.0, 4.0])
    (x * 2).backward(gradient=tg.tensor([1.0, 0.5]))
    np.testing.assert_array_equal(values(x.grad), [2.0, 1.0])
    tg.autograd.backward(tensors=x * 2, grad_tensors=tg.tensor([1.0, 1.0]))
    np.testing.assert_array_equal(values(x.grad), [4.0, 3.0])


def test_cotangent_of_a_scalar():
    x = leaf(3.0)
    (x * x).backward(tg.tensor(10.0))
    assert x.grad.item() == 60.0


def test_one_element_of_any_rank_needs_no_cotangent():
    x = leaf([[3.0]])
    (x * x).backward()
    np.testing.assert_array_equal(values(x.grad), [[6.0]])


def test_zero_cotangent():
    x = leaf([1.0, 2.0])
    (x * x).backward(tg.tensor([0.0, 0.0]))
    np.testing.assert_array_equal(values(x.grad), [0.0, 0.0])


def test_empty_tensor():
    x = leaf(np.zeros((0, 3)))
    x.sum().backward()
    assert x.grad.shape == (0, 3)


def test_cotangent_that_requires_grad_is_used_as_a_value():
    x = leaf([1.0, 2.0])
    g = leaf([3.0, 4.0])
    (x * x).backward(g)
    np.testing.assert_array_equal(values(x.grad), [6.0, 16.0])
    assert g.grad is None
    assert not x.grad.requires_grad


def test_gradient_of_nonscalar_without_cotangent():
    with pytest.raises(
        RuntimeError, match="grad can be implicitly created only for scalar outputs"
    ):
        (leaf([1.0, 2.0]) * 2).backward()


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 2), ()])
def test_cotangent_of_wrong_shape(shape):
    y = leaf([1.0, 2.0]) * 2
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output\[0\] has a shape of"):
        y.backward(tg.zeros(shape))


def test_shape_mismatch_names_the_place():
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"grad_output\[1\].* and output\[1\] has a shape of"):
        tg.autograd.backward([x * 2, x * 3], [tg.zeros(2), tg.zeros(3)])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_root_without_graph(position):
    x = leaf(1.0)
    roots = [x * 2, x * 3, x * 4]
    roots[position] = tg.tensor(1.0)
    text = f"element {position} of tensors does not require grad and does not have a grad_fn"
    with pytest.raises(RuntimeError, match=text):
        tg.autograd.backward(roots)
    assert x.grad is None


def test_wrong_number_of_cotangents():
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="got 2 tensors and 1 gradients"):
        tg.autograd.backward([x * 2, x * 3], [tg.tensor(1.0)])


@pytest.mark.parametrize("bad", ["one", object(), {"a": 1}])
def test_cotangent_of_a_wrong_type(bad):
    x = leaf([1.0, 2.0])
    with pytest.raises(TypeError, match="gradients can be either"):
        tg.autograd.backward([x * 2], [bad])


@pytest.mark.parametrize("bad", [None, 1.0, "x", [None], [1.0]])
def test_roots_of_a_wrong_type(bad):
    with pytest.raises(TypeError):
        tg.autograd.backward(bad)


def test_grad_variables_is_deprecated():
    x = leaf([1.0, 2.0])
    with pytest.warns(FutureWarning, match="grad_variables"):
        tg.autograd.backward(x * 2, grad_variables=tg.tensor([1.0, 2.0]))
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])


def test_grad_variables_beside_grad_tensors():
    x = leaf(1.0)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(RuntimeError, match="both passed to"),
    ):
        tg.autograd.backward(x * 2, tg.tensor(1.0), grad_variables=tg.tensor(1.0))


# -- inputs= --------------------------------------------------------------------------------------


def test_inputs_restrict_accumulation():
    x, y = leaf(2.0), leaf(3.0)
    z = x * y
    z.backward(inputs=[x])
    assert x.grad.item() == 3.0
    assert y.grad is None


def test_inputs_may_be_one_tensor():
    x, y = leaf(2.0), leaf(3.0)
    tg.autograd.backward(x * y, inputs=y)
    assert x.grad is None
    assert y.grad.item() == 2.0


def test_inputs_may_be_intermediate():
    x = leaf(2.0)
    y = x * x
    (y * 5).backward(inputs=[y])
    with warnings.catch_warnings(action="ignore"):
        assert y.grad.item() == 5.0
    assert x.grad is None


def test_inputs_empty():
    x = leaf(2.0)
    with pytest.raises(RuntimeError, match=r"`inputs` argument to `backward\(\)` cannot be empty"):
        (x * x).backward(inputs=[])


def test_inputs_that_need_no_grad():
    x, y = leaf(2.0), tg.tensor(1.0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        (x * y).backward(inputs=[y])


def test_inputs_not_reached_get_nothing():
    x, y = leaf(2.0), leaf(3.0)
    (x * 2).backward(inputs=[x, y])
    assert x.grad.item() == 2.0
    assert y.grad is None


def test_inputs_accumulate():
    x = leaf(2.0)
    for _ in range(3):
        (x * 2).backward(inputs=[x])
    assert x.grad.item() == 6.0


def test_same_input_twice_accumulates_once():
    x = leaf(2.0)
    (x * x).backward(inputs=[x, x])
    assert x.grad.item() == 4.0


# -- dtypes ---------------------------------------------------------------------------------------


def test_gradient_has_the_dtype_of_its_leaf():
    x = leaf([1.0, 2.0], np.float32)
    y = leaf([3.0, 4.0], np.float64)
    z = (x * y).sum()
    assert z.dtype == np.float64
    z.backward()
    assert x.grad.dtype == np.float32
    assert y.grad.dtype == np.float64
    np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])
    np.testing.assert_array_equal(values(y.grad), [1.0, 2.0])


def test_mixed_dtypes_through_a_chain():
    x = leaf([0.5, 0.25], np.float32)
    y = x.exp().astype(np.float64)
    z = (y * leaf([2.0, 2.0])).astype(np.float32)
    w = (z * x).sum()
    w.backward()
    assert x.grad.dtype == np.float32
    exact = 2 * np.exp([0.5, 0.25]) * (1 + np.array([0.5, 0.25]))
    np.testing.assert_allclose(values(x.grad), exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number", [2, 2.0, np.float64(2.0), np.int64(2), True])
def test_numbers_keep_the_dtype(dtype, number):
    x = leaf([1.0, 3.0], dtype)
    y = x * number
    y.sum().backward()
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(values(x.grad), float(number))


@pytest.mark.parametrize("other", [np.array([1, 2]), np.array([True, False]), np.int32(3)])
def test_integers_and_bools_take_part(other):
    x = leaf([1.5, 2.5])
    (x * other).sum().backward()
    np.testing.assert_array_equal(values(x.grad), np.broadcast_to(other, 2).astype(float))
    t = tg.tensor(other)
    x.grad = None
    (t * x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), np.broadcast_to(other, 2).astype(float))
    assert not t.requires_grad


def test_integer_intermediate_cuts_the_graph():
    x = leaf([1.5, 2.5])
    y = x.astype(np.int64)
    assert not y.requires_grad
    (y * x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 2.0])


def test_comparison_results_take_part_as_values():
    x = leaf([1.0, -2.0, 3.0])
    ((x > 0) * x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 0.0, 1.0])


def test_broadcast_operands():
    x = leaf(np.ones((2, 1)))
    y = leaf(np.arange(3.0))
    s = leaf(2.0)
    (x * y * s).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [[6.0], [6.0]])
    np.testing.assert_array_equal(values(y.grad), [4.0, 4.0, 4.0])
    assert s.grad.item() == 6.0
    assert s.grad.shape == ()


# -- create_graph ---------------------------------------------------------------------------------


def test_backward_with_create_graph_makes_a_differentiable_grad():
    x = leaf([2.0, 3.0])
    with warnings.catch_warnings(action="ignore"):
        (x**3).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    (second,) = tg.autograd.grad(x.grad.sum(), x)
    np.testing.assert_allclose(values(second), [12.0, 18.0])


def test_backward_with_create_graph_warns():
    x = leaf(2.0)
    with pytest.warns(UserWarning, match=r"create_graph=True will create a reference cycle"):
        (x * x).backward(create_graph=True)


def test_create_graph_accumulates_out_of_place():
    x = leaf([2.0])
    (x * 3).sum().backward()
    first = x.grad
    with warnings.catch_warnings(action="ignore"):
        (x**2).sum().backward(create_graph=True)
    assert x.grad is not first
    assert first.item() == 3.0
    assert x.grad.item() == 7.0


# -- values are freed -----------------------------------------------------------------------------


def test_saved_values_are_freed_by_reference_count():
    gc.disable()
    try:
        x = leaf(np.ones(10))
        y = x.exp()
        held = weakref.ref(y.detach().numpy())
        z = (y * 2).sum()
        del y
        assert held() is not None
        z.backward()
        assert held() is None
    finally:
        gc.enable()


def test_graph_is_freed_with_its_root():
    gc.disable()
    try:
        x = leaf(np.ones(10))
        y = x.exp()
        held = weakref.ref(y.detach().numpy())
        z = (y * 2).sum()
        del y, z
        assert held() is None
    finally:
        gc.enable()


# -- threads --------------------------------------------------------------------------------------


def run_threads(*functions):
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_graph_recorded_here_and_swept_there():
    x = leaf([1.0, 2.0])
    y = (x.exp() * x).sum()
    run_threads(y.backward)
    np.testing.assert_allclose(values(x.grad), np.exp([1.0, 2.0]) * [2.0, 3.0])


def test_disjoint_graphs_in_many_threads():
    results = {}

    def work(k):
        def run():
            for _ in range(30):
                x = leaf(np.full(50, 0.01 * k))
                y = x
                for _ in range(20):
                    y = y.sin() * 1.1 + y * y
                y.sum().backward()
                results.setdefault(k, []).append(values(x.grad).copy())

        return run

    run_threads(*(work(k) for k in range(4)))
    for k in range(4):
        x = leaf(np.full(50, 0.01 * k))
        y = x
        for _ in range(20):
            y = y.sin() * 1.1 + y * y
        y.sum().backward()
        for found in results[k]:
            np.testing.assert_allclose(found, values(x.grad))


def test_one_leaf_in_many_threads_loses_nothing():
    x = leaf(np.zeros(3))

    def run():
        for _ in range(200):
            (x * 2.0).sum().backward()

    run_threads(*[run] * 4)
    np.testing.assert_array_equal(values(x.grad), 1600.0)


def test_recording_in_threads_from_a_shared_value():
    x = leaf([1.0, 2.0])
    shared = x * x
    outs = {}

    def work(k):
        def run():
            y = shared
            for _ in range(100):
                y = y * 1.01 + shared
            outs[k] = y.sum()

        return run

    run_threads(*(work(k) for k in range(4)))
    expected = tg.autograd.grad(outs[0], x, retain_graph=True)[0]
    for k in range(1, 4):
        (found,) = tg.autograd.grad(outs[k], x, retain_graph=True)
        np.testing.assert_allclose(values(found), values(expected))


def test_backward_inside_a_hook_of_another_backward():
    x, w = leaf(2.0), leaf(3.0)

    def hook(g):
        assert not tg.is_grad_enabled()
        with tg.enable_grad():
            (w * w).backward()

    y = x * x
    y.register_hook(hook)
    (y * 5).backward()
    assert x.grad.item() == 20.0
    assert w.grad.item() == 6.0


def test_a_gradient_that_was_used_and_then_added_to():
    """Adding to a gradient in place is a mutation of what was computed from it."""
    x = tg.tensor([2.0, 3.0], requires_grad=True)
    w = tg.tensor([1.0, 1.0], requires_grad=True)
    (x * x).sum().backward()
    used = (w * x.grad).sum()
    (x * x).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()
