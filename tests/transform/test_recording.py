"""Compiled functions called with tensors: one record, swept without Python."""

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform import recording


@tg.njit
def wave(x, a):
    s = 0.0
    for i in range(a.size):
        s += np.sin(x * a[i]) * np.exp(-a[i])
    return s


@tg.njit
def parts(x, a, n):
    return x * a, (a * a).sum() * n, n


@tg.njit
def scaled(u, b):
    return u * (b * b).sum()


@tg.njit
def doubling(x, a):
    a[0] *= 2.0
    return x * a.sum()


@tg.njit
def steps(u, n):
    for _ in range(n):
        u = np.sin(u) * 1.5
        u[0] += 1.0
    return u


@tg.njit
def steps_in_place(u, n):
    for _ in range(n):
        u[0] += 1.0
        u = np.sin(u) * 1.5
    return u


def wave_of_tensors(x, a):
    return tg.sum(tg.sin(x * a) * tg.exp(-a))


@pytest.fixture
def leaves():
    x = tg.tensor(0.5, requires_grad=True)
    return x, tg.tensor(np.linspace(0.0, 1.0, 5), requires_grad=True)


def test_one_record_without_python_in_the_sweep(leaves, monkeypatch):
    def refuse(*args):
        raise AssertionError("the sweep called Python")

    monkeypatch.setattr(recording.NumberFrame, "contributions", refuse)
    tape = tg.current_tape()
    before = len(tape.records)
    y = wave(*leaves)
    assert len(tape.records) == before + 1
    y.backward()
    expected = tg.grad(wave_of_tensors, (0, 1))(*(leaf.detach() for leaf in leaves))
    for leaf, gradient in zip(leaves, expected):
        np.testing.assert_allclose(leaf.grad, gradient, rtol=1e-12)


def test_inside_a_graph(leaves):
    x, a = leaves
    (wave(x * x, a * 2) * 3 + wave(x, a)).backward()
    u, b = (leaf.detach().requires_grad_() for leaf in leaves)
    (wave_of_tensors(u * u, b * 2) * 3 + wave_of_tensors(u, b)).backward()
    np.testing.assert_allclose(x.grad, u.grad, rtol=1e-12)
    np.testing.assert_allclose(a.grad, b.grad, rtol=1e-12)


def test_second_time(leaves):
    y = wave(*leaves)
    y.backward(retain_graph=True)
    once = leaves[0].grad.clone()
    y.backward()
    np.testing.assert_allclose(leaves[0].grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_only_what_is_asked_for(leaves):
    x, a = leaves
    (found,) = tg.autograd.grad(wave(x, a), a)
    np.testing.assert_allclose(found, tg.grad(wave, 1)(0.5, a.detach().numpy()))
    fixed = np.linspace(0.0, 1.0, 5)
    np.testing.assert_allclose(tg.grad(lambda t: wave(t, fixed))(0.5), tg.grad(wave)(0.5, fixed))


def test_the_same_tensor_twice():
    a = tg.tensor([1.0, 2.0], requires_grad=True)

    def product(p, q):
        return scaled(p, a) + scaled(q, a)

    x = tg.tensor(2.0, requires_grad=True)
    product(x, x).backward()
    np.testing.assert_allclose(x.grad, 10.0)
    np.testing.assert_allclose(a.grad, [8.0, 16.0])


def test_hooks(leaves):
    x, a = leaves
    y = wave(x, a)
    y.register_hook(lambda g: 3 * g)
    (found,) = tg.autograd.grad(y, x)
    np.testing.assert_allclose(found, 3 * tg.grad(wave)(0.5, a.detach().numpy()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_and_strides(dtype):
    u = tg.tensor(np.asarray(0.5, dtype), requires_grad=True)
    b = tg.tensor(np.arange(12.0).reshape(3, 4)[:, ::2].T, requires_grad=True)
    scaled(u, b).backward()
    assert u.grad.dtype == dtype
    np.testing.assert_allclose(u.grad, (b.detach().numpy() ** 2).sum())
    np.testing.assert_allclose(b.grad, b.detach().numpy())


def test_gradient_of_the_gradient(leaves):
    x, a = leaves
    (first,) = tg.autograd.grad(wave(x, a), x, create_graph=True)
    second = tg.autograd.grad(first, [x, a])
    u, b = (leaf.detach().requires_grad_() for leaf in leaves)
    (expected,) = tg.autograd.grad(wave_of_tensors(u, b), u, create_graph=True)
    for one, other in zip(second, tg.autograd.grad(expected, [u, b])):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_several_results(leaves):
    x, a = leaves
    u, v, n = parts(x, a, 3)
    assert n == 3
    (u.sum() * v).backward()
    values = a.detach().numpy()
    np.testing.assert_allclose(x.grad, values.sum() * 3 * (values**2).sum())
    gradient = 0.5 * 3 * (values**2).sum() + 0.5 * values.sum() * 6 * values
    np.testing.assert_allclose(a.grad, gradient)


def test_gradient_of_the_gradient_of_several_results(leaves):
    x, a = leaves
    u, v, _ = parts(x, a, 3)
    (first,) = tg.autograd.grad((u * u).sum() * v, x, create_graph=True)
    second = tg.autograd.grad(first, [x, a])
    p, b = (leaf.detach().requires_grad_() for leaf in leaves)
    (expected,) = tg.autograd.grad(((p * b) ** 2).sum() * (b * b).sum() * 3, p, create_graph=True)
    for one, other in zip(second, tg.autograd.grad(expected, [p, b])):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_without_recording(leaves):
    with tg.no_grad():
        y = wave(*leaves)
    assert not y.requires_grad
    np.testing.assert_allclose(y, wave(0.5, leaves[1].detach().numpy()))


def test_overwritten_argument_is_noticed(leaves):
    x, a = leaves
    b = a * 1.0
    y = wave(x, b)
    with tg.no_grad():
        b[0] = 7.0
    y.backward(retain_graph=True)  # needs the values of the call only
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tg.autograd.grad(y, x, create_graph=True)


def test_refusals(leaves):
    x, a = leaves
    with pytest.raises(tg.TransformError, match="writes into argument 1"):
        doubling(x, a)
    with pytest.raises(TypeError, match="tuple of tensors"):
        scaled(x, (a, a))


@pytest.mark.parametrize("n", [0, 1, 3])
def test_name_of_argument_bound_to_new_arrays(leaves, n):
    """What is written later into the new array does not write into the argument."""
    a = leaves[1]
    before = a.detach().numpy().copy()
    y = steps(a, n)
    (found,) = tg.autograd.grad((y * y).sum(), a)
    x = a
    for _ in range(n):
        x = tg.sin(x) * 1.5
        x = x + np.eye(1, a.shape[0])[0]
    (expected,) = tg.autograd.grad((x * x).sum(), a)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(a.detach(), before)
    with pytest.raises(tg.TransformError, match="writes into argument 0"):
        steps_in_place(a, n)


# -- NumPy arguments that the function writes into -------------------------------------------------


@tg.njit
def doubled_weights(w, x):
    for i in range(x.size):
        w[i] *= 2.0
    return w * x


@tg.njit
def doubled_weights_of_squares(w, x):
    s = 0.0
    for i in range(x.size):
        w[i] *= 2.0
        s += w[i] * x[i] * x[i]
    return s


@tg.njit
def weights_times(w, x):
    for i in range(x.size):
        w[i] *= x[i]
    return w * x


def test_the_backward_pass_reads_arrays_as_they_were():
    x, w = tg.tensor([1.0, 2.0, 3.0], requires_grad=True), np.ones(3)
    y = doubled_weights(w, x)
    np.testing.assert_array_equal(w, 2.0)
    w[:] = 7.0
    for _ in range(2):
        x.grad = None
        y.sum().backward(retain_graph=True)
        np.testing.assert_array_equal(x.grad, [2.0, 2.0, 2.0])


def test_a_recorded_backward_pass_reads_arrays_as_they_were():
    x, w = tg.tensor([1.0, 2.0, 3.0], requires_grad=True), np.ones(3)
    (gradient,) = tg.autograd.grad(doubled_weights_of_squares(w, x), x, create_graph=True)
    np.testing.assert_array_equal(w, 2.0)
    np.testing.assert_array_equal(gradient.detach(), [4.0, 8.0, 12.0])
    gradient.sum().backward()
    np.testing.assert_array_equal(x.grad, [4.0, 4.0, 4.0])


def test_what_depends_on_tensors_is_not_lost_in_arrays():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(tg.TransformError, match=r"argument 0, a NumPy array(.|\n)*return it"):
        weights_times(np.ones(2), x)

    @tg.njit
    def returned(x):  # the way out
        w = np.ones(x.size)
        for i in range(x.size):
            w[i] *= x[i]
        return w * x

    returned(x).sum().backward()
    np.testing.assert_array_equal(x.grad, [2.0, 4.0])


@numba.njit
def tripled(x):
    return 3.0 * x


@tg.njit
def chosen(x, mode, function):
    if mode == "function":
        return np.sum(function(x))
    return np.sum(x * x)


def test_strings_and_functions_among_the_arguments():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    for mode, expected in (("function", [3.0, 3.0]), ("square", [2.0, 4.0])):
        x.grad = None
        chosen(x, mode, tripled).backward()
        np.testing.assert_array_equal(np.asarray(x.grad), expected)


# -- results that are arrays, or several values ----------------------------------------------------


@tg.njit
def rotated(x, a):
    return x * a, a[1:], x + 1.0


@tg.njit
def halves(a):
    return a * 0.5, (a[0] * a, a)


@tg.njit
def square(a):
    return a * a


def test_arrays_without_a_function(leaves, monkeypatch):
    def refuse(*args):
        raise AssertionError("a Function was applied")

    monkeypatch.setattr(recording.Recorded, "apply", refuse)
    x, a = leaves
    found = square(square(square(a)))
    assert "Square" in found.grad_fn.name()
    gradient = tg.autograd.grad(found.sum(), a)[0]
    np.testing.assert_allclose(gradient, 8 * a.detach() ** 7)
    y, tail, shifted = rotated(x, a)
    gradients = tg.autograd.grad((y * y).sum() + tail.sum() * shifted, (x, a))
    u, b = (leaf.detach().requires_grad_() for leaf in leaves)
    expected = tg.autograd.grad((u * b * u * b).sum() + b[1:].sum() * (u + 1.0), (u, b))
    for one, other in zip(gradients, expected):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_one_of_several_results_and_one_of_several_arguments(leaves):
    x, a = leaves
    _, tail, shifted = rotated(x, a)
    found = tg.autograd.grad(tail.sum(), a, retain_graph=True)[0]
    np.testing.assert_array_equal(found, [0, 1, 1, 1, 1])
    assert float(tg.autograd.grad(shifted, x)[0]) == 1.0
    with pytest.raises(RuntimeError, match="second time"):
        tg.autograd.grad(tail.sum(), a)


def test_results_do_not_share_memory_with_arguments(leaves):
    _, a = leaves
    half, (scaled_by_first, same) = halves(a)
    assert not np.shares_memory(same.detach().numpy(), a.detach().numpy())
    total = half.sum() + (scaled_by_first * same).sum()
    gradient = tg.autograd.grad(total, a)[0]
    v = a.detach().numpy()
    expected = 0.5 + 2 * v[0] * v + np.eye(v.size)[0] * (v * v).sum()
    np.testing.assert_allclose(gradient, expected)


TABLE, LARGE = np.array([1.0, 2.0, 3.0]), np.ones(200_000)


@numba.njit(boundscheck=False)
def table():
    return TABLE


@tg.njit
def with_a_table(x):
    return x * 2.0, TABLE


@tg.njit
def with_a_table_of_a_callee(x):
    return x * 2.0, table()


@tg.njit
def with_a_large_table(x):
    return x * 2.0, LARGE[:3]


@pytest.mark.parametrize("f", [with_a_table, with_a_table_of_a_callee, with_a_large_table])
def test_results_do_not_share_memory_with_globals(f):
    x = tg.tensor(np.ones(3), requires_grad=True)
    known = np.array(f(np.ones(3))[1])
    doubled, found = f(x)
    found += doubled
    found *= 2.0
    np.testing.assert_array_equal(f(np.ones(3))[1], known)
    np.testing.assert_array_equal(tg.autograd.grad(found.sum(), x)[0], [4.0, 4.0, 4.0])


def test_hooks_on_values_that_a_call_saves(leaves):
    seen = []

    def pack(value):
        seen.append(value.shape)
        return value.numpy().copy()

    with tg.autograd.graph.saved_tensors_hooks(pack, tg.tensor):
        y = square(leaves[1])
    assert (5,) in seen
    np.testing.assert_allclose(tg.autograd.grad(y.sum(), leaves[1])[0], 2 * leaves[1].detach())


def test_second_order_and_tangents_of_arrays(leaves):
    _, a = leaves
    (gradient,) = tg.autograd.grad((square(a) * a).sum(), a, create_graph=True)
    np.testing.assert_allclose(tg.autograd.grad(gradient.sum(), a)[0], 6 * a.detach())
    v = a.detach().numpy()
    _, dot = tg.jvp(lambda u: halves(square(u))[1][0])(v, np.ones(5))
    np.testing.assert_allclose(dot, 2 * v[0] * v**2 + v[0] ** 2 * 2 * v)


@tg.njit
def nested_results(x, y):
    return (x * y, np.exp(y)), np.sum(x)


@tg.njit
def one_in_a_tuple_in_a_tuple(x, y):
    return ((x * y,), 3), (np.exp(y) * x[0],)


@pytest.mark.parametrize("f", [nested_results, one_in_a_tuple_in_a_tuple])
def test_second_order_of_nested_results(f):
    def loss(x, y):
        first, second = f(x, y)
        product = first[0][0] if isinstance(first[0], tuple) else first[0]
        other = first[1] if isinstance(first[0], tuple) is False else second[0]
        return tg.sum(product**2) + tg.sum(other * product)

    x, y = np.array([0.31, 0.83]), np.array([1.2, -0.5])
    for k in (0, 1):
        found = tg.hessian(loss, k)(x, y)
        step = 1e-5 * np.eye(2)
        for column in range(2):
            ends = [
                tg.grad(loss, k)(
                    *[v + s * step[column] if n == k else v for n, v in enumerate((x, y))]
                )
                for s in (1, -1)
            ]
            np.testing.assert_allclose(found[:, column], (ends[0] - ends[1]) / 2e-5, atol=1e-8)


def test_an_overwritten_array_is_noticed(leaves):
    a = leaves[1] * 1.0
    y = square(a)
    a += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_that_are_not_needed_are_not_computed(leaves, monkeypatch):
    x, a = leaves
    y = rotated(x * 1.0, a)[0]
    asked = []
    made = recording.derivatives.pullback

    def note(*args):
        asked.append(args[1])
        return made(*args)

    monkeypatch.setattr(recording.derivatives, "pullback", note)
    gradient = tg.autograd.grad(y.sum(), x)[0]
    assert asked == [(0,)]
    np.testing.assert_allclose(gradient, a.detach().sum())


def test_single_precision_results():
    a = tg.tensor(np.ones(3, np.float32), requires_grad=True)
    y = square(a)
    assert y.dtype == np.float32
    (gradient,) = tg.autograd.grad(y, a, np.ones(3, np.float32))
    assert gradient.dtype == np.float32


@tg.njit
def with_other_dtypes(x, w):
    return x * w, np.sum(x), x > 0.0, np.argsort(x), 3


def test_results_without_derivatives_beside_others():
    x = tg.tensor([1.0, -2.0, 0.5], requires_grad=True)
    w = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    product, total, test, order, number = with_other_dtypes(x, w)
    assert not test.requires_grad
    assert not order.requires_grad
    assert number == 3
    found = tg.autograd.grad(product.sum() + 2.0 * total, (x, w))
    np.testing.assert_array_equal(found[0], w.detach() + 2.0)
    np.testing.assert_array_equal(found[1], x.detach())
