"""Making tensors: dtypes kept, memory shared or copied, NumPy's makers."""

import copy

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import forward_ad

DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [tg.tensor, tg.as_tensor, tg.array, tg.asarray])
def test_dtype_is_kept(make, dtype):
    t = make(np.ones((2, 3), dtype))
    assert t.dtype == dtype
    assert t.shape == (2, 3)
    assert not t.requires_grad


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1, "int64", ()),
        (1.5, "float64", ()),
        (True, "bool", ()),
        ([1, 2], "int64", (2,)),
        ([1, 2.5], "float64", (2,)),
        ([[1.0], [2.0]], "float64", (2, 1)),
        ((1.0, 2.0), "float64", (2,)),
        ([], "float64", (0,)),
        (np.float32(1.5), "float32", ()),
        (np.int16(3), "int16", ()),
        (range(3), "int64", (3,)),
        ([np.ones(2), np.zeros(2)], "float64", (2, 2)),
        ([tg.tensor(1.0), tg.tensor(2.0)], "float64", (2,)),
        ([[tg.tensor(1.0), 3.0]], "float64", (1, 2)),
    ],
)
@pytest.mark.parametrize("make", [tg.tensor, tg.as_tensor])
def test_data_of_all_kinds(make, data, dtype, shape):
    t = make(data)
    assert isinstance(t, tg.Tensor)
    assert t.dtype == dtype
    assert t.shape == shape


@pytest.mark.parametrize("dtype", [np.float32, "float32", np.dtype("f4")])
@pytest.mark.parametrize("make", [tg.tensor, tg.as_tensor])
def test_dtype_argument(make, dtype):
    assert make([1, 2], dtype=dtype).dtype == np.float32
    assert make([1, 2], dtype).dtype == np.float32


def test_tensor_copies():
    array = np.ones(3)
    t = tg.tensor(array)
    assert not np.shares_memory(t.numpy(), array)
    u = tg.tensor(t)
    assert not np.shares_memory(u.numpy(), t.numpy())


def test_tensor_leaves_history_behind():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.warns(tg.DetachedWarning, match=r"use array\(\) or clone\(\)"):
        y = tg.tensor(x * 2)
    assert not y.requires_grad
    assert y.is_leaf
    assert tg.tensor(x, requires_grad=True).is_leaf
    assert tg.tensor(x > 1.0).tolist() == [False, True]


def test_array_keeps_history():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = tg.array(x, dtype=np.float32)
    assert y.dtype == np.float32
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert not np.shares_memory(tg.array(x.detach()).numpy(), x.detach().numpy())
    made = tg.array([1.0, 2.0], requires_grad=True)
    assert made.is_leaf
    assert made.requires_grad


COPIES = {
    "array": tg.array,
    "asarray": tg.asarray,
    "as_tensor": tg.as_tensor,
    "np.copy": np.copy,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "of a view": lambda x: tg.array(x[::-1])[::-1],
    "stack": lambda x: tg.stack([x, x])[1],
    "stacked items": lambda x: tg.stack([x[0], x[1]]),
    "list": lambda x: tg.array([x[0], x[1]]),
    "list as tensor": lambda x: tg.tensor([x[0], x[1]]),
    "item": lambda x: tg.stack([tg.array(x[0]), x[1]]),
    "full": lambda x: tg.full(2, x),
    "full of items": lambda x: tg.stack([tg.full(3, x[0])[2], tg.full((), x[1])]),
    "full_like": lambda x: np.full_like(x, x),
    "full_like of items": lambda x: tg.stack([tg.full_like(x, x[0])[1], tg.full_like(1.0, x[1])]),
}
X = np.array([0.5, 2.0])
TRANSFORMS = {
    "grad": lambda f: tg.grad(f)(X),
    "jacfwd": lambda f: tg.jacfwd(f)(X),
    "jvp": lambda f: [tg.jvp(f)(X, e)[1] for e in np.eye(2)],
    "vjp": lambda f: tg.vjp(f, X)[1](1.0)[0],
    "of tensors": lambda f: tg.grad(f)(tg.tensor(X)),
    "vmap": lambda f: tg.vmap(tg.grad(f))(np.stack([X, X]))[1],
    "of vmap": lambda f: tg.grad(lambda x: tg.vmap(f)(x).sum())(np.stack([X, X]))[1],
    "second": lambda f: 0.5 * tg.hvp(lambda x: f(x) * x.sum())(X, X) - 1.5 * X**2,
    "dual": lambda f: [tangent_of(f, e) for e in np.eye(2)],
}


def tangent_of(f, direction):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tg.tensor(X), tg.tensor(direction))
        return forward_ad.unpack_dual(f(dual)).tangent.item()


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("copied", COPIES)
def test_copies_in_transforms_keep_the_history(copied, name):
    def f(x):
        return tg.sum(COPIES[copied](x) * x)

    transform = TRANSFORMS[name]
    expected = transform(lambda x: tg.sum((x * 1.0) * x))
    np.testing.assert_allclose(transform(f), expected, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"requires_grad": True}])
@pytest.mark.parametrize("name", [name for name in TRANSFORMS if name != "dual"])
def test_copies_without_history_are_refused_in_transforms(name, options):
    for f in (
        lambda x: tg.sum(tg.tensor(x, **options) * x),
        lambda x: tg.sum(tg.tensor(x[0], **options) * x),
    ):
        with pytest.raises(RuntimeError, match=r"lose its history; use array\(\) or clone\(\)"):
            TRANSFORMS[name](f)


def test_copies_in_recorded_functions():
    def kept(x):
        return tg.sum(tg.array(x) * x)

    def lost(x):
        return tg.sum(tg.tensor(x) * x)

    np.testing.assert_array_equal(tg.grad(tg.jit(kept))(X), 2.0 * X)
    np.testing.assert_array_equal(tg.jit(tg.grad(kept))(X), 2.0 * X)
    assert tg.jit(lost)(X) == lost(X).item()
    for gradient in (tg.grad(tg.jit(lost)), tg.jit(tg.grad(lost))):
        with pytest.raises(RuntimeError, match=r"use array\(\) or clone\(\)"):
            gradient(X)


def test_a_copy_without_its_tangent_warns():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tg.tensor(X), tg.tensor(X))
        with pytest.warns(tg.DetachedWarning, match="a tensor that has a tangent"):
            assert forward_ad.unpack_dual(tg.tensor(dual)).tangent is None


@pytest.mark.parametrize(
    "array",
    [np.ones(3), np.ones((4, 4))[::2, 1:], np.ones((2, 3)).T, np.ones((2, 3), order="F")],
    ids=["plain", "strided", "transposed", "column-major"],
)
def test_as_tensor_shares_memory(array):
    t = tg.as_tensor(array)
    assert np.shares_memory(t.numpy(), array)
    array[...] = 7.0
    np.testing.assert_array_equal(t.numpy(), 7.0)
    t += 1.0
    np.testing.assert_array_equal(array, 8.0)


def test_as_tensor_of_a_tensor_is_itself():
    x = tg.tensor([1.0], requires_grad=True)
    assert tg.as_tensor(x) is x
    y = x * 2
    assert tg.as_tensor(y) is y
    assert tg.as_tensor(y, dtype=np.float64) is y


def test_as_tensor_converts_with_history():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = tg.as_tensor(x, dtype=np.float32)
    assert y.dtype == np.float32
    (y * np.float32(3)).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [3.0, 3.0])


def test_strided_memory_is_differentiated_rightly():
    base = np.arange(16.0).reshape(4, 4)
    x = tg.as_tensor(base[::2, 1:].T).requires_grad_()
    weights = np.arange(6.0).reshape(3, 2)
    (x * x * weights).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * base[::2, 1:].T * weights)
    x.grad = None
    (x.exp() + x.T.reshape(-1)[::-1].reshape(3, 2)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(base[::2, 1:].T) + 1)


def test_read_only_memory():
    array = np.ones(3)
    array.flags.writeable = False
    x = tg.as_tensor(array).requires_grad_()
    (x * 2).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2.0)
    with pytest.raises((ValueError, RuntimeError)):
        tg.as_tensor(array).add_(1.0)
    np.testing.assert_array_equal(array, 1.0)


def test_other_byte_order():
    x = tg.tensor(np.array([1.0, 2.0], ">f8"))
    y = x * 2
    np.testing.assert_array_equal(y.numpy(), [2.0, 4.0])


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", "longdouble"])
def test_only_floats_require_grad(dtype):
    with pytest.raises(
        RuntimeError, match="nly Tensors of floating point and complex dtype can require gradients"
    ):
        tg.tensor([1, 0], dtype=dtype, requires_grad=True)


def test_strings_and_objects():
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        tg.tensor(["a", "b"], requires_grad=True)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        tg.tensor([object()], requires_grad=True)


def test_ragged_data():
    with pytest.raises(ValueError):
        tg.tensor([[1.0], [1.0, 2.0]])


MAKERS = {
    "arange": (5,),
    "empty": ((2, 3),),
    "eye": (3,),
    "full": ((2, 2), 7.0),
    "identity": (3,),
    "linspace": (0.0, 1.0, 5),
    "logspace": (0.0, 1.0, 5),
    "ones": ((2, 3),),
    "tri": (3,),
    "zeros": ((2, 3),),
    "empty_like": (np.ones((2, 3)),),
    "full_like": (np.ones((2, 3)), 7.0),
    "ones_like": (np.ones((2, 3)),),
    "zeros_like": (np.ones((2, 3)),),
}


@pytest.mark.parametrize("name", MAKERS)
def test_makers_follow_numpy(name):
    found = getattr(tg, name)(*MAKERS[name])
    expected = getattr(np, name)(*MAKERS[name])
    assert isinstance(found, tg.Tensor)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if not name.startswith("empty"):
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", MAKERS)
def test_makers_take_dtype_and_requires_grad(name):
    t = getattr(tg, name)(*MAKERS[name], dtype=np.float32, requires_grad=True)
    assert t.dtype == np.float32
    assert t.requires_grad
    assert t.is_leaf


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "full_like"])
def test_likes_of_tensors(name):
    x = tg.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    args = (x, 7.0) if name == "full_like" else (x,)
    for t in (getattr(tg, name)(*args), getattr(np, name)(*args)):
        assert isinstance(t, tg.Tensor)
        assert t.shape == (2, 3)
        assert t.dtype == np.float32
        assert not t.requires_grad


def test_integer_makers_cannot_require_grad():
    with pytest.raises(RuntimeError, match="can require gradients"):
        tg.arange(5, requires_grad=True)


def test_from_dlpack_of_an_array():
    array = np.arange(6.0).reshape(2, 3)
    t = tg.from_dlpack(array)
    assert np.shares_memory(t.numpy(), array)
    t.requires_grad_()
    (t * 2).sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), 2.0)


def test_from_dlpack_of_a_tensor():
    t = tg.tensor([1.0, 2.0])
    assert np.shares_memory(tg.from_dlpack(t).numpy(), t.numpy())
    x = tg.tensor([1.0, 1.0], requires_grad=True)
    y = (x * t).sum()
    tg.from_dlpack(t).mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with pytest.raises(RuntimeError, match="numpy"):
        tg.from_dlpack(x)
    with tg.inference_mode():
        t = tg.tensor([1.0, 2.0])
    assert tg.from_dlpack(t).is_inference()


def test_unknown_names():
    with pytest.raises(AttributeError, match="tapegrad has no 'relu6'"):
        _ = tg.relu6


def test_all_is_true():
    for name in tg.__all__:
        assert hasattr(tg, name)
    assert {"tensor", "as_tensor", "no_grad", "grad", "sin", "Function"} <= set(tg.__all__)


class TestBrackets:
    """``tg.r_`` and ``tg.c_``, as NumPy's with tensors among what is joined."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda r_, c_, x: r_[x[0], 1.0, 2:5],
            lambda r_, c_, x: r_[1.0, 2.0],
            lambda r_, c_, x: r_[x, x * 2.0],
            lambda r_, c_, x: r_["-1", x, x],
            lambda r_, c_, x: r_["0,2,1", x[0], [1.0, 2.0, 3.0]],
            lambda r_, c_, x: r_[0.0:1.0:5j, x[1]],
            lambda r_, c_, x: r_[x[0, 0], x[1, 2]],
            lambda r_, c_, x: c_[x[0], [1, 2, 3]],
            lambda r_, c_, x: c_[x, x[:, :1]],
            lambda r_, c_, x: r_[x[0]],
        ],
    )
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_values_and_gradients(self, call, dtype):
        x = np.array([[0.3, 1.2, -0.5], [2.0, 0.1, 0.7]], dtype)
        t = tg.tensor(x, requires_grad=True)
        expected, found = call(np.r_, np.c_, x), call(tg.r_, tg.c_, t)
        assert isinstance(found, tg.Tensor)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.detach(), expected)
        if found.requires_grad:
            weights = np.arange(1.0, expected.size + 1).reshape(expected.shape).astype(dtype)
            (found * weights).sum().backward()
            ones = tg.grad(lambda x: (call(tg.r_, tg.c_, x) * weights).sum())(x)
            np.testing.assert_array_equal(t.grad.numpy(), ones)
            direction = np.cos(np.arange(6.0)).reshape(2, 3)
            moved = (call(np.r_, np.c_, x + direction) - expected) * weights
            np.testing.assert_allclose((ones * direction).sum(), moved.sum(), rtol=1e-4)

    def test_numpys_own_names_the_way_out(self):
        t = tg.tensor([1.0], requires_grad=True)
        with pytest.raises(RuntimeError, match=r"tg\.r_"):
            np.r_[t, 1.0]


class TestFull:
    """Differentiable with respect to the value, with NumPy's results."""

    @pytest.mark.parametrize("dtype", [None, np.float32, int])
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("shape", [(2, 3), (3,), 3])
    def test_values(self, shape, order, dtype):
        value = np.array([0.5, -1.5, 2.5])
        found = tg.full(shape, tg.tensor(value, requires_grad=True), dtype, order)
        expected = np.full(shape, value, dtype, order)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.strides == expected.strides
        np.testing.assert_array_equal(found.detach(), expected)
        assert found.requires_grad == (dtype is not int)

    @pytest.mark.parametrize("options", [{}, {"dtype": np.float32}, {"shape": (2, 2)}])
    def test_values_like_others(self, options):
        like = np.asfortranarray(np.ones((2, 3), np.float32))
        for function in (tg.full_like, np.full_like):
            found = function(tg.tensor(like), tg.tensor(0.5, requires_grad=True), **options)
            expected = np.full_like(like, 0.5, **options)
            assert (found.dtype, found.strides) == (expected.dtype, expected.strides)
            np.testing.assert_array_equal(found.detach(), expected)

    @pytest.mark.parametrize("value", [lambda x: 2.0, lambda x: x[0]])
    def test_shapes_of_items(self, value):
        batch = np.ones((3, 2))
        found = tg.vmap(lambda x: tg.full_like(x, value(x), shape=(4,)))(batch)
        assert found.shape == (3, 4)

    def test_a_value_that_does_not_fit(self):
        x = leaf([1.0, 2.0])
        for make in (lambda: tg.full((), x), lambda: tg.full_like(np.ones(1), x)):
            with pytest.raises(ValueError, match=r"full.*: could not broadcast a value of shape"):
                make()


class TestLinspace:
    """Differentiable with respect to its ends, with NumPy's values."""

    @pytest.mark.parametrize("options", [{}, {"endpoint": False}, {"num": 1}, {"num": 4}])
    @pytest.mark.parametrize("function", [np.linspace, tg.linspace])
    def test_numbers(self, function, options):
        ends = np.array([0.5, 1.7])
        found = function(*tg.tensor(ends, requires_grad=True), **options)
        np.testing.assert_allclose(found.detach(), np.linspace(*ends, **options), rtol=1e-15)
        tg.testing.check_grads(lambda x: function(x[0], x[1], **options) ** 2, [ends], order=2)

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_arrays(self, axis):
        starts, stop = np.array([0.5, 1.7]), np.array(3.0)
        found = np.linspace(tg.tensor(starts, requires_grad=True), stop, 4, axis=axis)
        np.testing.assert_allclose(found.detach(), np.linspace(starts, stop, 4, axis=axis), 1e-15)
        tg.testing.check_grads(lambda a, b: np.linspace(a, b, 4, axis=axis) ** 2, [starts, stop])

    def test_step_and_dtype(self):
        x = tg.tensor(1.0, requires_grad=True)
        found, step = np.linspace(0.0, x, 5, retstep=True, dtype=np.float32)
        assert found.dtype == np.float32
        step.backward()
        assert x.grad.item() == 0.25
        assert np.linspace(tg.tensor(0.0), 1.0, 3, retstep=True)[1] == 0.5
