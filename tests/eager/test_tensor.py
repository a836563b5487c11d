"""The Tensor: attributes, printing, conversion, copying, operators."""

import copy
import itertools
import operator
import pickle
import re
import warnings

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg

# -- attributes -----------------------------------------------------------------------------------


def test_array_attributes():
    t = tg.zeros((2, 3, 4), dtype=np.float32)
    assert t.shape == (2, 3, 4)
    assert t.ndim == 3
    assert t.size == 24
    assert isinstance(t.size, int)
    assert t.dtype == np.dtype(np.float32)
    assert t.itemsize == 4
    assert t.nbytes == 96
    assert len(t) == 2
    assert t.T.shape == (4, 3, 2)
    assert t.mT.shape == (2, 4, 3)


@pytest.mark.parametrize("tracked", [True, False])
def test_leaf_attributes(tracked):
    t = tg.tensor([1.0], requires_grad=tracked)
    assert t.requires_grad is tracked
    assert t.is_leaf is True
    assert t.grad is None
    assert t.grad_fn is None
    assert t._version == 0
    assert t._base is None


def test_no_new_attributes():
    with pytest.raises(AttributeError):
        leaf(1.0).something = 1


# -- detach, data, grad ---------------------------------------------------------------------------


def test_detached_may_require_grad_again():
    x = leaf([1.0, 2.0])
    d = (x * 2).detach().requires_grad_()
    (d * d).sum().backward()
    np.testing.assert_array_equal(values(d.grad), [4.0, 8.0])
    assert x.grad is None


def test_data():
    x = leaf([1.0, 2.0])
    d = x.data
    assert isinstance(d, tg.Tensor)
    assert not d.requires_grad
    assert np.shares_memory(d.numpy(), values(x))
    x.data = tg.tensor([5.0, 6.0])
    np.testing.assert_array_equal(values(x), [5.0, 6.0])
    assert x.requires_grad
    assert x.is_leaf
    (x * x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [10.0, 12.0])


@pytest.mark.parametrize("bad", [3, "x", None])
def test_data_of_a_wrong_type(bad):
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got"):
        leaf([1.0]).data = bad


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (
            1.0,
            TypeError,
            "assigned grad expected to be a Tensor or None but got grad of type float",
        ),
        ("s", TypeError, "assigned grad expected to be a Tensor or None but got grad of type str"),
        (np.ones(2), TypeError, "assigned grad expected to be a Tensor or None"),
        (tg.ones(3), RuntimeError, "assign"),
        (tg.ones(2, dtype=np.float32), RuntimeError, "assign"),
        (tg.ones(2, dtype=np.int64), RuntimeError, "assign"),
    ],
)
def test_grad_assignment_is_checked(bad, error, text):
    x = leaf([1.0, 2.0])
    with pytest.raises(error, match=text):
        x.grad = bad
    assert x.grad is None


def test_grad_cannot_be_the_tensor_itself():
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="can't assign Variable as its own grad"):
        x.grad = x


def test_grad_is_deletable_by_none():
    x = leaf([1.0, 2.0])
    x.grad = tg.ones(2)
    x.grad = None
    assert x.grad is None


# -- printing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tg.tensor([1.0, 2.5]), "tensor([1. , 2.5])"),
        (lambda: tg.tensor(3.0), "tensor(3.)"),
        (lambda: tg.tensor(3), "tensor(3)"),
        (lambda: tg.tensor([1, 2]), "tensor([1, 2])"),
        (lambda: tg.tensor([True, False]), "tensor([ True, False])"),
        (lambda: tg.tensor([1.0], dtype=np.float32), "tensor([1.], dtype=float32)"),
        (lambda: tg.tensor([1], dtype=np.int8), "tensor([1], dtype=int8)"),
        (lambda: tg.tensor([]), "tensor([], dtype=float64)"),
        (lambda: tg.tensor([1 + 2j]), "tensor([1.+2.j], dtype=complex128)"),
        (lambda: leaf([1.0]), "tensor([1.], requires_grad=True)"),
        (lambda: leaf([1.0], np.float32), "tensor([1.], dtype=float32, requires_grad=True)"),
        (lambda: leaf(1.0).exp() * 0, "tensor(0., grad_fn=<MultiplyBackward>)"),
        (lambda: leaf([1.0]).sum(), "tensor(1., grad_fn=<SumBackward>)"),
        (lambda: tg.tensor([[1.0, 2.0], [3.0, 4.0]]), "tensor([[1., 2.],\n        [3., 4.]])"),
        (lambda: tg.tensor(np.nan), "tensor(nan)"),
        (lambda: tg.tensor([np.inf, -np.inf]), "tensor([ inf, -inf])"),
    ],
)
def test_repr(make, text):
    assert repr(make()) == text


def test_str_and_format():
    t = tg.tensor([1.0, 2.0])
    assert str(t) == repr(t)
    assert f"{t}" == repr(t)
    assert f"{tg.tensor(2.0):.3f}" == "2.000"
    assert f"{tg.tensor(7):d}" == "7"


def test_repr_of_large_tensors_is_short():
    assert "..." in repr(tg.zeros(10_000))
    assert len(repr(tg.zeros((1000, 1000)))) < 1000


def test_repr_of_views_and_results():
    x = leaf([[1.0, 2.0]])
    for t in (x[0], x.T, x.reshape(-1), tg.concatenate([x, x]), x @ x.T, x.astype(np.float32)):
        assert "grad_fn=<" in repr(t)
        assert "Backward>" in repr(t)


def test_repr_is_exact_for_numpy_printoptions():
    with np.printoptions(precision=2):
        assert repr(tg.tensor([1 / 3])) == "tensor([0.33])"


# -- conversion -----------------------------------------------------------------------------------


def test_numpy_shares_memory():
    t = tg.tensor([1.0, 2.0])
    array = t.numpy()
    array[0] = 9.0
    assert t[0].item() == 9.0
    assert type(array) is np.ndarray


@pytest.mark.parametrize(
    "convert", [lambda t: t.numpy(), np.asarray, np.array, lambda t: t.__array__()]
)
@pytest.mark.parametrize("make", [lambda: leaf([1.0]), lambda: leaf([1.0]) * 2])
def test_numpy_of_what_requires_grad_is_refused(convert, make):
    text = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
    with pytest.raises(RuntimeError, match=re.escape(text)):
        convert(make())
    convert(make().detach())


def test_asarray_of_a_passive_tensor():
    t = tg.tensor([1.0, 2.0])
    assert np.shares_memory(np.asarray(t), t.numpy())
    assert not np.shares_memory(np.array(t), t.numpy())
    assert np.asarray(t, dtype=np.float32).dtype == np.float32
    assert np.asarray(t, copy=False) is not None
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, dtype=np.float32, copy=False)


def test_list_of_tensors_to_array():
    np.testing.assert_array_equal(np.array([tg.tensor(1.0), tg.tensor(2.0)]), [1.0, 2.0])


def test_item_and_tolist():
    t = tg.tensor([[1.0, 2.0]])
    assert t.tolist() == [[1.0, 2.0]]
    assert t.item(1) == 2.0
    assert t.item(0, 0) == 1.0
    assert type(tg.tensor(3).item()) is int
    assert type(tg.tensor(3.0).item()) is float
    assert type(tg.tensor(True).item()) is bool
    assert tg.tensor(3.0).tolist() == 3.0
    with pytest.raises(ValueError, match=r"size|one element|scalar"):
        t.item()


def test_conversion_to_numbers():
    t = tg.tensor(2.5)
    assert float(t) == 2.5
    assert int(t) == 2
    assert bool(t) is True
    assert bool(t * 0) is False
    assert complex(t) == 2.5 + 0j
    assert round(float(tg.tensor([[2.5]]).item())) == 2


@pytest.mark.parametrize("convert", [float, int, bool, complex])
def test_conversion_of_several_elements(convert):
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        convert(tg.tensor([1.0, 2.0]))


def test_conversion_of_one_element_of_any_rank():
    with warnings.catch_warnings(action="error"):
        assert tg.tensor([2.5]).item() == 2.5
        assert tg.tensor([[2]]).item() == 2
        assert bool(tg.tensor([[1.0]])) is True


def test_index_conversion():
    assert operator.index(tg.tensor(3)) == 3
    assert list(range(tg.tensor(3))) == [0, 1, 2]
    assert [10, 20, 30][tg.tensor(1)] == 20
    for bad in (tg.tensor(1.0), tg.tensor([1, 2]), leaf(1.0)):
        with pytest.raises(TypeError):
            operator.index(bad)


def test_bool_of_empty_or_many_is_ambiguous():
    with pytest.raises((ValueError, RuntimeError), match="ambiguous"):
        bool(tg.tensor([1.0, 2.0]))


def test_astype():
    x = leaf([1.5, 2.5])
    y = x.astype(np.float32)
    assert y.dtype == np.float32
    assert y.requires_grad
    assert not x.astype(int).requires_grad
    assert x.astype("float64").dtype == np.float64
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 1.0])


# -- DLPack ---------------------------------------------------------------------------------------


def test_numpy_from_dlpack():
    t = tg.tensor([1.0, 2.0])
    array = np.from_dlpack(t)
    assert np.shares_memory(array, t.numpy())
    assert t.__dlpack_device__() == (1, 0)


def test_dlpack_of_what_requires_grad_is_refused():
    with pytest.raises((RuntimeError, BufferError), match="requires grad"):
        np.from_dlpack(leaf([1.0]))


def test_dlpack_with_torch():
    torch = pytest.importorskip("torch")
    t = tg.tensor(np.arange(6.0).reshape(2, 3))
    u = torch.from_dlpack(t)
    assert u.dtype == torch.float64
    u += 1
    np.testing.assert_array_equal(t.numpy(), np.arange(1.0, 7.0).reshape(2, 3))
    back = tg.from_dlpack(u)
    assert np.shares_memory(back.numpy(), t.numpy())
    back[0, 0] = 100.0
    assert u[0, 0].item() == 100.0
    strided = tg.from_dlpack(u.T[1:])
    assert strided.shape == (2, 2)
    x = strided.requires_grad_()
    (x * x).sum().backward()
    np.testing.assert_array_equal(values(x.grad), 2 * u.T[1:].numpy())
    for dtype in (np.float32, np.int64, np.int32, np.uint8, np.bool_):
        t = tg.tensor(np.ones(3, dtype))
        assert tg.from_dlpack(torch.from_dlpack(t)).dtype == dtype


# -- copying --------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_pickle(protocol, dtype):
    t = tg.tensor(np.array([[1, 0], [2, 3]]).astype(dtype))
    found = pickle.loads(pickle.dumps(t, protocol))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy(), t.numpy())
    assert not found.requires_grad


def test_pickle_keeps_requires_grad_and_grad():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    found = pickle.loads(pickle.dumps(x))
    assert found.requires_grad
    assert found.is_leaf
    np.testing.assert_array_equal(values(found), values(x))
    np.testing.assert_array_equal(values(found.grad), values(x.grad))
    (found * 3).sum().backward()
    np.testing.assert_array_equal(values(found.grad), [5.0, 7.0])
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])


def test_deepcopy():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    assert y.requires_grad
    assert y.is_leaf
    assert not np.shares_memory(values(y), values(x))
    assert y.grad is not x.grad
    np.testing.assert_array_equal(values(y.grad), values(x.grad))
    y.grad.zero_()
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])


def test_deepcopy_keeps_identity():
    x = leaf([1.0])
    a, b = copy.deepcopy([x, x])
    assert a is b
    t = tg.tensor([1.0, 2.0])
    assert copy.deepcopy({"a": t})["a"] is not t


def test_deepcopy_of_a_nonleaf_is_refused():
    with pytest.raises(RuntimeError, match=r"leaf|leaves"):
        copy.deepcopy(leaf([1.0]) * 2)


def test_shallow_copy_shares():
    x = leaf([1.0, 2.0])
    y = copy.copy(x)
    assert np.shares_memory(values(y), values(x))
    assert y.requires_grad
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 1.0])
    assert y.grad is x.grad


@pytest.mark.parametrize("written", ["original", "copy"])
@pytest.mark.parametrize("recorded_before", [True, False])
def test_a_shallow_copy_and_its_original_have_one_history(written, recorded_before):
    x = leaf([1.0, 2.0])
    original = x * 1.0 if recorded_before else tg.zeros(2)
    shallow = copy.copy(original)
    assert shallow.requires_grad is recorded_before
    target = original if written == "original" else shallow
    target.mul_(2.0)
    target.add_(x * x)
    for t in (original, shallow):
        (g,) = tg.autograd.grad(t.sum(), x, retain_graph=True)
        np.testing.assert_array_equal(values(g), 2.0 * recorded_before + 2.0 * values(x))


def test_clone_and_copy():
    x = leaf([1.0, 2.0])
    for y in (x.clone(), x.copy(), np.copy(x), np.positive(x)):
        assert not np.shares_memory(values(y), values(x))
        (g,) = tg.autograd.grad((y * 3).sum(), x)
        np.testing.assert_array_equal(values(g), [3.0, 3.0])
    for dtype in (bool, np.int64, np.float16):
        t = tg.tensor([1, 0], dtype=dtype).clone()
        assert t.dtype == dtype


# -- containers -----------------------------------------------------------------------------------


def test_len_and_iteration():
    x = leaf(np.arange(6.0).reshape(2, 3))
    rows = list(x)
    assert len(x) == len(rows) == 2
    (rows[0] * rows[1]).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]])
    a, b = x
    assert a.shape == b.shape == (3,)
    assert next(reversed(tg.tensor([1, 2]))).item() == 2


@pytest.mark.parametrize("use", [len, list, iter])
def test_scalars_are_no_containers(use):
    with pytest.raises(TypeError, match="0-d tensor"):
        use(tg.tensor(1.0))


def test_contains():
    t = tg.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert 3.0 in t
    assert 5.0 not in t
    assert tg.tensor(3.0) in t
    assert 2 in leaf([1.0, 2.0])


def test_hash_is_identity():
    x, y = leaf([1.0]), leaf([1.0])
    assert hash(x) == hash(x)
    assert {x: 1, y: 2}[x] == 1
    assert len({x, y, x}) == 2


INDEX = {
    "integer": 1,
    "numpy integer": np.int64(1),
    "negative": -1,
    "slice": slice(1, None),
    "step": (slice(None), slice(None, None, -2)),
    "ellipsis": (Ellipsis, 0),
    "none": (None, 1, None),
    "tuple": (1, 2, 3),
    "array": np.array([1, 0, 1]),
    "list": [0, 1],
    "matrix": np.array([[0, 1], [1, 1]]),
    "pairs": (np.array([0, 1]), np.array([1, 2])),
    "separated": (np.array([0, 1]), slice(None), np.array([1, 2])),
    "mixed": (slice(None), np.array([2, 0]), slice(1, 3)),
    "mask": np.arange(24).reshape(2, 3, 4) % 5 == 0,
    "mask of rows": np.array([True, False]),
    "mask and integer": (np.array([True, False]), 1),
    "tensor": tg.tensor([1, 0]),
    "tensor in tuple": (slice(None), tg.tensor([1, 0])),
    "boolean tensor": tg.tensor([False, True]),
    "scalar tensor": tg.tensor(1),
    "true": True,
    "empty": np.array([], int),
    "range": range(2),
}


def plain_index(index):
    if isinstance(index, tuple):
        return tuple(map(plain_index, index))
    return index.numpy() if isinstance(index, tg.Tensor) else index


@pytest.mark.parametrize("name", INDEX)
def test_indexing(name):
    index = INDEX[name]
    array = np.arange(24.0).reshape(2, 3, 4)
    x = leaf(array)
    y = x[index]
    expected = array[plain_index(index)]
    np.testing.assert_array_equal(values(y), expected)
    assert y.shape == expected.shape
    weights = np.arange(1.0, y.size + 1).reshape(y.shape)
    (y * weights).sum().backward()
    exact = np.zeros_like(array)
    np.add.at(exact, plain_index(index), weights)
    np.testing.assert_array_equal(values(x.grad), exact)


@pytest.mark.parametrize("bad", [5, (0, 0, 0, 0), np.array([9]), 1.0, "a", np.array([0.5])])
def test_bad_indices(bad):
    with pytest.raises(IndexError):
        _ = leaf(np.zeros((2, 3, 4)))[bad]


# -- operators ------------------------------------------------------------------------------------

BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OTHERS = {
    "int": 2,
    "float": 2.5,
    "bool": True,
    "numpy float": np.float64(2.5),
    "numpy float32": np.float32(2.5),
    "numpy int": np.int64(2),
    "0-d array": np.array(2.5),
    "array": np.array([[2.0, 3.0], [1.0, 0.5]]),
    "row": np.array([2.0, 3.0]),
    "integers": np.array([2, 3]),
    "list": [[2.0, 3.0], [1.0, 0.5]],
    "tuple": (2.0, 3.0),
    "tensor": tg.tensor([[2.0, 3.0], [1.0, 0.5]]),
    "integer tensor": tg.tensor([2, 3]),
}
X = np.array([[1.5, 2.0], [0.7, 3.2]])


def plain(value):
    return value.numpy() if isinstance(value, tg.Tensor) else value


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tracked", [True, False])
def test_binary_operator(name, kind, side, tracked):
    op, other = BINARY[name], OTHERS[kind]
    x = tg.tensor(X, requires_grad=tracked)
    y = op(x, other) if side == "left" else op(other, x)
    right = np.asarray(plain(other)) if isinstance(other, (list, tuple, tg.Tensor)) else other
    expected = op(X, right) if side == "left" else op(right, X)
    assert isinstance(y, tg.Tensor)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(values(y), expected, rtol=1e-15)
    assert y.requires_grad is tracked
    if tracked:
        y.sum().backward()
        h = 1e-6
        up = op(X + h, right) if side == "left" else op(right, X + h)
        down = op(X - h, right) if side == "left" else op(right, X - h)
        if name not in ("//", "%"):
            np.testing.assert_allclose(values(x.grad), (up - down) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_comparison(name, kind, side):
    op, other = COMPARISONS[name], OTHERS[kind]
    x = leaf(X)
    y = op(x, other) if side == "left" else op(other, x)
    right = np.asarray(plain(other))
    assert isinstance(y, tg.Tensor)
    assert y.dtype == bool
    assert not y.requires_grad
    np.testing.assert_array_equal(y.numpy(), op(X, right) if side == "left" else op(right, X))


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
@pytest.mark.parametrize(
    "other", [True, np.array([True, False, True]), tg.tensor([True, True, False])]
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_logical_operators(op, other, side):
    a = np.array([True, False, False])
    t = tg.tensor(a)
    found = op(t, other) if side == "left" else op(other, t)
    assert isinstance(found, tg.Tensor)
    np.testing.assert_array_equal(found.numpy(), op(a, plain(other)))
    np.testing.assert_array_equal((~t).numpy(), ~a)


@pytest.mark.parametrize("op", [operator.lshift, operator.rshift])
def test_operators_of_integers_refuse_floats(op):
    with pytest.raises(TypeError):
        op(leaf([1.0]), 1)


@pytest.mark.parametrize("op", [operator.neg, operator.pos, operator.abs])
def test_unary_operators(op):
    x = leaf([-1.5, 2.0])
    y = op(x)
    np.testing.assert_array_equal(values(y), op(np.array([-1.5, 2.0])))
    y.sum().backward()
    np.testing.assert_array_equal(
        values(x.grad), {"neg": [-1, -1], "pos": [1, 1], "abs": [-1, 1]}[op.__name__]
    )


SHAPES = [((2,), (2,)), ((3, 2), (2,)), ((2,), (2, 3)), ((3, 2), (2, 4)), ((5, 3, 2), (2, 4))]
SHAPES += [((5, 3, 2), (5, 2, 4)), ((3, 2), (5, 2, 4)), ((2,), (5, 2, 4))]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("kinds", list(itertools.product("tap", repeat=2)))
def test_matmul(left, right, kinds):
    """Of tracked, array and passive operands."""
    if "t" not in kinds and "p" not in kinds:
        return
    rng = np.random.default_rng(1)
    arrays = rng.standard_normal(left), rng.standard_normal(right)
    make = {"t": leaf, "p": tg.tensor, "a": lambda a: a}
    operands = [make[kind](array) for kind, array in zip(kinds, arrays, strict=True)]
    y = operands[0] @ operands[1]
    assert isinstance(y, tg.Tensor)
    np.testing.assert_allclose(values(y), arrays[0] @ arrays[1], rtol=1e-13, atol=1e-14)
    assert y.requires_grad is ("t" in kinds)
    if "t" not in kinds:
        return
    weights = rng.standard_normal(y.shape)
    (y * weights).sum().backward()
    for k, (operand, kind) in enumerate(zip(operands, kinds, strict=True)):
        if kind == "t":
            direction = rng.standard_normal(operand.shape)
            moved = [list(arrays), list(arrays)]
            moved[0][k] = arrays[k] + 1e-5 * direction
            moved[1][k] = arrays[k] - 1e-5 * direction
            difference = ((moved[0][0] @ moved[0][1] - moved[1][0] @ moved[1][1]) * weights).sum()
            found = (values(operand.grad) * direction).sum()
            np.testing.assert_allclose(found, difference / 2e-5, rtol=1e-7)


def test_matmul_of_lists():
    x = leaf([1.0, 2.0])
    np.testing.assert_array_equal(values([[1.0, 2.0], [3.0, 4.0]] @ x), [5.0, 11.0])
    np.testing.assert_array_equal(values(x @ [[1.0, 2.0], [3.0, 4.0]]), [7.0, 10.0])


def test_matmul_of_wrong_shapes():
    with pytest.raises(ValueError):
        _ = leaf(np.ones((2, 3))) @ leaf(np.ones((2, 3)))


@pytest.mark.parametrize("name", [*BINARY, "@"])
@pytest.mark.parametrize("bad", ["a", None, object(), {"a": 1}, b"x", {1.0}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_other_things_as_operands(name, bad, side):
    if side == "right" and name == "%" and isinstance(bad, (str, bytes)):
        pytest.skip("string formatting")
    op = {**BINARY, "@": operator.matmul}[name]
    x = leaf([1.0, 2.0])
    with pytest.raises((TypeError, ValueError) if name == "@" else TypeError):
        op(x, bad) if side == "left" else op(bad, x)


@pytest.mark.parametrize("bad", ["a", None, object()])
def test_equality_with_other_things(bad):
    t = tg.tensor([1.0, 2.0])
    equal, different = t == bad, t != bad
    assert not np.any(np.asarray(equal))
    assert np.all(np.asarray(different))


def test_ordering_with_other_things():
    with pytest.raises(TypeError):
        _ = tg.tensor([1.0]) < "a"


def test_foreign_types_are_refused():
    class Mine:
        __array_ufunc__ = None

    with pytest.raises(TypeError, match="Mine"):
        leaf([1.0]) + Mine()


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match="broadcast"):
        leaf([1.0, 2.0]) + leaf([1.0, 2.0, 3.0])


def test_python_sum_and_builtins():
    x = leaf([1.0, 2.0, 3.0])
    y = sum(x) + max(x) + min(x)
    y.backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 1.0, 2.0])
    assert [t.item() for t in sorted(tg.tensor([3.0, 1.0]), key=float)] == [1.0, 3.0]
    assert pow(leaf(2.0), 3).item() == 8.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_do_not_widen(dtype):
    x = leaf([1.0, 2.0], dtype)
    for y in (x + 1, 1 + x, x * 2.5, 2.5 - x, x / 3, x**2, 2**x, -x, x // 2, x % 2, abs(x)):
        assert y.dtype == dtype
    for y in (x + np.float64(1.0), np.float64(1.0) * x):
        assert y.dtype == np.result_type(dtype, np.float64)


# -- methods and functions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sum", ()),
        ("sum", (0,)),
        ("mean", (1,)),
        ("max", (0,)),
        ("min", ()),
        ("prod", ()),
        ("var", ()),
        ("std", (0,)),
        ("cumsum", (1,)),
        ("cumprod", (0,)),
        ("argmax", (0,)),
        ("argmin", ()),
        ("argsort", ()),
        ("all", ()),
        ("any", (0,)),
        ("clip", (1.0, 2.0)),
        ("diagonal", ()),
        ("dot", (np.ones(2),)),
        ("ravel", ()),
        ("repeat", (2,)),
        ("repeat", (2, 0)),
        ("round", ()),
        ("round", (1,)),
        ("swapaxes", (0, 1)),
        ("take", ([1, 0],)),
        ("take", ([1, 0], 1)),
        ("trace", ()),
        ("reshape", (4,)),
        ("reshape", (1, 4)),
        ("reshape", ((1, -1),)),
        ("transpose", ()),
        ("transpose", (1, 0)),
        ("transpose", ((1, 0),)),
        ("flatten", ()),
        ("squeeze", ()),
        ("astype", (np.float32,)),
    ],
)
def test_methods_are_those_of_arrays(name, args):
    x = leaf(X)
    found = getattr(x, name)(*args)
    expected = getattr(X, name)(*args)
    assert isinstance(found, tg.Tensor)
    np.testing.assert_allclose(values(found), expected, rtol=1e-7)
    assert found.shape == np.shape(expected)
    assert found.requires_grad is (found.dtype.kind == "f")


@pytest.mark.parametrize(
    "name", ["sin", "exp", "log", "sqrt", "tanh", "abs", "square", "negative", "floor", "sigmoid"]
)
def test_methods_are_the_functions(name):
    x = leaf([0.5, 1.5])
    np.testing.assert_array_equal(values(getattr(x, name)()), values(getattr(tg, name)(x)))


def test_keywords_of_methods():
    x = leaf(X)
    assert x.sum(axis=0, keepdims=True).shape == (1, 2)
    assert x.mean(axis=(0, 1)).shape == ()
    assert x.var(ddof=1).item() == pytest.approx(X.var(ddof=1))
    assert x.sum(axis=-1).shape == (2,)
    with pytest.raises(TypeError):
        x.sum(dim=0)


def test_functions_take_arrays_lists_and_numbers():
    for value in (X, X.tolist(), tg.tensor(X)):
        assert isinstance(tg.sin(value), tg.Tensor)
        np.testing.assert_allclose(values(tg.sin(value)), np.sin(X))
        np.testing.assert_allclose(values(tg.sum(value, axis=0)), X.sum(0))
        np.testing.assert_allclose(values(tg.add(value, value)), X + X)
    assert tg.sin(0.0).item() == 0.0
    assert tg.sin(1).dtype == np.float64


@pytest.mark.parametrize("name", [
    "requires_grad", "requires_grad_", "grad", "grad_fn", "is_leaf", "backward", "detach", "data",
    "retain_grad", "retains_grad", "register_hook", "_version", "_base", "_is_view", "output_nr",
    "detach_",
])  # fmt: skip
def test_autograd_attributes_exist(name):
    assert hasattr(tg.Tensor, name)


class TestBits:
    """Operators of integers and booleans, in place as well."""

    def test_aliases_and_views_see_a_write(self):
        a = tg.tensor([True, False])
        b = a
        a |= np.array([False, True])
        np.testing.assert_array_equal(b, [True, True])
        m = tg.tensor([[True, False], [False, False]])
        row = m[0]
        row ^= True
        np.testing.assert_array_equal(m, [[False, True], [False, False]])
        row &= False
        np.testing.assert_array_equal(m, np.zeros((2, 2), bool))

    def test_shifts(self):
        t = tg.tensor([1, 2])
        np.testing.assert_array_equal(t << 2, [4, 8])
        np.testing.assert_array_equal(8 >> t, [4, 2])
        np.testing.assert_array_equal(1 << t, [2, 4])
        t <<= 1
        np.testing.assert_array_equal(t, [2, 4])


class TestConversion:
    def test_options_of_numpy(self):
        t = tg.tensor([1.5, 2.0], requires_grad=True)
        found = t.astype(np.float32, copy=False, casting="same_kind")
        assert found.dtype == np.float32
        assert found.requires_grad
        assert np.astype(t, np.float32, copy=False).requires_grad
        with pytest.raises(TypeError, match="Cannot cast"):
            t.astype(int, casting="safe")


def test_functions_of_python():
    t = tg.tensor([5.5, -3.25], requires_grad=True)
    for found, expected in zip(divmod(t, 2.0), divmod(t.detach().numpy(), 2.0), strict=True):
        np.testing.assert_array_equal(found.detach(), expected)
    for found, expected in zip(divmod(7.0, t), divmod(7.0, t.detach().numpy()), strict=True):
        np.testing.assert_array_equal(found.detach(), expected)
    assert divmod(t, 2.0)[1].requires_grad
    np.testing.assert_array_equal(round(t, 1).detach(), np.round(t.detach().numpy(), 1))
    assert round(tg.tensor(2.6)).item() == 3.0
