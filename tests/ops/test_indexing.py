"""Reading and writing at indices: values against NumPy, cotangents where they belong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tapegrad as tg

X = np.arange(24.0).reshape(2, 3, 4) + 0.5

BASIC = [
    0,
    -1,
    np.int32(1),
    (1, 2),
    (0, 1, 2),
    (..., 1),
    slice(None, None, -1),
    (slice(None), 1),
    (slice(1, None), slice(None, -1), slice(None, None, 2)),
    (slice(None), slice(2, None, -2)),
    (slice(5, 9),),
    None,
    (None, 0, None, ..., None),
    ...,
    (),
]
ADVANCED = [
    [0, 1, 0, 0],
    np.array([1, 1, 1]),
    np.array([[0, 1], [1, 1]]),
    np.array(1),
    (np.array([0, 1]), np.array([2, 0])),
    (np.array([0, 0]), np.array([2, 2]), np.array([1, 1])),
    (slice(None), [0, 2, 0]),
    ([0, 1], slice(None), [3, 3]),
    (0, slice(None), [1, 1, -1]),
    (..., [0, 0]),
    (None, [0, 0]),
    np.array([], int),
    np.array([True, False]),
    X > 12,
    (slice(None), np.array([True, False, True])),
    (np.array([True, True]), 1),
    (1, X[1] > 15),
    np.zeros((2, 3, 4), bool),
    True,
    False,
    np.ix_([0, 1], [2, 2]),
    np.array([-1, 1], np.int8),
    np.array([0, 1], np.uint64),
]
ids = {"ids": lambda i: repr(i)[:40].replace("\n", "")}


def array_of(tensor):
    return tensor.detach().numpy()


def scattered(index, g, shape=X.shape):
    """What indexing sends a cotangent to."""
    out = np.zeros(shape)
    np.add.at(out, index, g)
    return out


def cotangent(shape):
    return np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)


@pytest.mark.parametrize("recorded", [False, True], ids=["compiled", "tensors"])
@pytest.mark.parametrize("index", BASIC + ADVANCED, **ids)
def test_read(index, recorded):
    x = tg.tensor(X, requires_grad=True)
    out = x[index]
    assert out.shape == X[index].shape
    np.testing.assert_array_equal(array_of(out), X[index])
    g = cotangent(out.shape)
    (found,) = tg.autograd.grad(out, x, g, create_graph=recorded)
    np.testing.assert_array_equal(array_of(found), scattered(index, g))


@pytest.mark.parametrize("index", BASIC + ADVANCED, **ids)
def test_read_twice_differentiated(index):
    tg.testing.check_grads(lambda x: (x * x)[index] * 1.5, [X / 24], order=2)


@given(hnp.basic_indices((3, 4, 2), allow_newaxis=True))
@settings(max_examples=80, deadline=None)
def test_any_basic_index(index):
    values = np.arange(24.0).reshape(3, 4, 2)
    x = tg.tensor(values, requires_grad=True)
    out = x[index]
    np.testing.assert_array_equal(array_of(out), values[index])
    g = cotangent(out.shape)
    (found,) = tg.autograd.grad(out, x, g)
    np.testing.assert_array_equal(array_of(found), scattered(index, g, (3, 4, 2)))


@given(hnp.integer_array_indices((3, 4, 2)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_integer_index(index, write):
    values = np.arange(24.0).reshape(3, 4, 2)
    x = tg.tensor(values, requires_grad=True)
    if write:
        check_write(index, values, cotangent(values[index].shape))
        return
    g = cotangent(values[index].shape)
    (found,) = tg.autograd.grad(x[index], x, g)
    np.testing.assert_array_equal(array_of(found), scattered(index, g, (3, 4, 2)))


# -- writing ---------------------------------------------------------------------------------------


def check_write(index, values, new):
    """``t[index] = v``: values, and who gets what cotangent: the last value written counts."""
    expected = values.copy()
    expected[index] = new
    x = tg.tensor(values, requires_grad=True)
    v = tg.tensor(new, requires_grad=True)
    t = x.clone()
    t[index] = v
    np.testing.assert_array_equal(array_of(t), expected)
    g = cotangent(values.shape)
    got_x, got_v = tg.autograd.grad(t, [x, v], g, allow_unused=True, materialize_grads=True)
    untouched = np.ones(values.shape)
    untouched[index] = 0
    np.testing.assert_array_equal(array_of(got_x), g * untouched)
    # number the values, write the numbers, and see which survive
    order = np.full(values.shape, -1)
    spread = np.broadcast_to(np.arange(new.size).reshape(new.shape), values[index].shape)
    order[index] = spread
    want = [g[order == k].sum() for k in range(new.size)]
    np.testing.assert_array_equal(array_of(got_v).ravel(), want)


@pytest.mark.parametrize("index", BASIC + ADVANCED, **ids)
def test_write(index):
    """A value of the index's shape, a number, and one that is broadcast."""
    shape = X[index].shape
    check_write(index, X, -cotangent(shape))
    check_write(index, X, np.array(-1.0))
    if shape and shape[-1] > 0:
        check_write(index, X, -cotangent(shape[-1:]))


def test_the_last_value_written_counts():
    x = tg.tensor(np.zeros(3), requires_grad=True)
    v = tg.tensor([10.0, 20.0, 30.0], requires_grad=True)
    t = x.clone()
    t[[1, 1, 0]] = v
    assert t.tolist() == [30.0, 20.0, 0.0]
    t.backward(np.array([1.0, 2.0, 4.0]))
    assert v.grad.tolist() == [0.0, 2.0, 1.0]
    assert x.grad.tolist() == [0.0, 0.0, 4.0]


def test_write_of_passive_values_and_into_passive_tensors():
    x = tg.tensor(np.ones(3), requires_grad=True)
    t = x.clone()
    t[1] = 5.0
    t[[0, 0]] = np.array([7.0, 8.0])
    (g,) = tg.autograd.grad(t.sum(), x)
    assert g.tolist() == [0.0, 0.0, 1.0]
    target = tg.tensor(np.zeros(3))
    target[1:] = x[:2] * 2
    (g,) = tg.autograd.grad(target.sum(), x)
    assert g.tolist() == [2.0, 2.0, 0.0]


def test_write_twice_differentiated():
    def f(x, v):
        t = x * x
        t[[0, 2, 2]] = v * v * x[:1]
        return t * x

    tg.testing.check_grads(f, [np.array([0.3, 0.5, 0.7]), np.array([1.1, 1.3, 1.7])], order=2)


def test_a_value_with_leading_axes_of_length_1():
    """NumPy accepts them in assignment."""
    x = tg.tensor(np.zeros(3), requires_grad=True)
    v = tg.tensor(np.ones((1, 1, 2)), requires_grad=True)
    t = x.clone()
    t[:2] = v
    t.backward(np.array([1.0, 2.0, 3.0]))
    assert v.grad.tolist() == [[[1.0, 2.0]]]


@pytest.mark.parametrize(
    "index", [[0, 1, 1], (np.array([0, 0]),), np.array([True, False, True]), 1]
)
def test_add_at_adds_up(index):
    """np.add.at on a tensor: repeated indices count every time."""
    values = np.array([1.0, 2.0, 3.0])
    x = tg.tensor(values, requires_grad=True)
    new = cotangent(values[index].shape)
    v = tg.tensor(new, requires_grad=True)
    t = x.clone()
    np.add.at(t, index, v)
    expected = values.copy()
    np.add.at(expected, index, new)
    np.testing.assert_array_equal(array_of(t), expected)
    g = np.array([1.0, 10.0, 100.0])
    t.backward(g)
    np.testing.assert_array_equal(array_of(x.grad), g)
    np.testing.assert_array_equal(array_of(v.grad), g[index])


def test_add_at_as_a_function():
    x, v = np.zeros((3, 2)), np.array([[1.0, 2.0]])
    found = tg.add_at(x, v, [0, 0, 2])
    assert array_of(found).tolist() == [[2.0, 4.0], [0.0, 0.0], [1.0, 2.0]]
    assert not x.any()
    tg.testing.check_grads(lambda a, b: tg.add_at(a * a, b * b, [0, 0, 2]), [x + 1, v], order=2)


# -- functions -------------------------------------------------------------------------------------

CALLS = [
    ("take", (np.array([0, 5, 5, -1]),), {}),
    ("take", (np.array([[0, 1], [1, 1]]),), {"axis": 1}),
    ("take", (2,), {"axis": -1}),
    ("take", (np.array([0, 7, -9]),), {"axis": 1, "mode": "wrap"}),
    ("take", (np.array([0, 7, -9]),), {"axis": 1, "mode": "clip"}),
    ("take", (np.zeros((0, 2), int),), {"axis": 0}),
    ("take_along_axis", (np.argsort(-X, axis=1),), {"axis": 1}),
    ("take_along_axis", (np.zeros((2, 3, 2), int),), {"axis": -1}),
    ("take_along_axis", (np.array([3, 3, 20]),), {"axis": None}),
    ("repeat", (2,), {}),
    ("repeat", (3,), {"axis": 1}),
    ("repeat", ([1, 0, 2],), {"axis": -2}),
    ("repeat", (0,), {"axis": 0}),
    ("sort", (), {}),
    ("sort", (), {"axis": 0}),
    ("sort", (), {"axis": None}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_function(name, args, kwargs):
    x = np.random.default_rng(0).permutation(24).reshape(2, 3, 4) / 24
    call = getattr(tg, name)
    expected = getattr(np, name)(x, *args, **kwargs)
    found = call(tg.tensor(x, requires_grad=True), *args, **kwargs)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(array_of(found), expected)
    tg.testing.check_grads(lambda v: call(v * v, *args, **kwargs), [x], order=2)


def test_broadcast_indices_of_take_along_axis():
    """As NumPy, indices of length 1 serve all positions."""
    index = np.array([[[2], [0], [1]]])
    found = tg.take_along_axis(tg.tensor(X, requires_grad=True), index, axis=-1)
    np.testing.assert_array_equal(array_of(found), np.take_along_axis(X, index, axis=-1))


def test_sort_is_stable_for_cotangents():
    x = tg.tensor([2.0, 1.0, 2.0, 1.0], requires_grad=True)
    tg.sort(x).backward(np.array([1.0, 2.0, 3.0, 4.0]))
    assert x.grad.tolist() == [3.0, 1.0, 4.0, 2.0]


def test_scatter_add():
    v = np.array([1.0, 2.0, 3.0])
    assert array_of(tg.scatter_add(v, (4,), [1, 1, 3])).tolist() == [0.0, 3.0, 0.0, 3.0]
    tg.testing.check_grads(lambda a: tg.scatter_add(a * a, (4,), [1, 1, 3]), [v], order=2)


def test_tensors_as_indices():
    x = tg.tensor(X, requires_grad=True)
    index = tg.tensor([1, 0, 1])
    np.testing.assert_array_equal(array_of(x[index]), X[[1, 0, 1]])
    np.testing.assert_array_equal(array_of(x[x > 12.0]), X[X > 12])
    np.testing.assert_array_equal(array_of(tg.take(x, index, axis=0)), X[[1, 0, 1]])
    np.testing.assert_array_equal(array_of(x[tg.tensor(1), index]), X[1, [1, 0, 1]])


def test_index_changed_after_use():
    """The index that was used counts, not what its array became."""
    x = tg.tensor(np.zeros(3), requires_grad=True)
    index = np.array([0, 1])
    out = x[index]
    index[:] = 2
    out.backward(np.array([1.0, 2.0]))
    assert x.grad.tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, index: x[index],
        lambda x, index: x[index, 0],
        lambda x, index: tg.take(x, index, axis=0),
        lambda x, index: np.take(x, index),
        lambda x, index: tg.take_along_axis(x, index[:, None], axis=0),
        lambda x, index: tg.scatter_add(x[:2], (4, 4), index),
    ],
    ids=["[]", "[,]", "take", "np.take", "take_along_axis", "scatter_add"],
)
def test_an_index_changed_after_any_use(use, as_tensor):
    given = tg.tensor([2, 1]) if as_tensor else np.array([2, 1])
    x, y = (tg.tensor(X[0], requires_grad=True) for _ in range(2))
    changed, expected = use(x, given), use(y, given.copy())
    given[...] = 0
    weights = np.arange(changed.size).reshape(changed.shape) + 1.0
    (changed * weights).sum().backward()
    (expected * weights).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


def test_sequences_in_an_index():
    rows, columns = np.array([0, 1]), np.array([1, 0])
    x = tg.tensor(X[0], requires_grad=True)
    y = x[(rows, columns), (columns, rows)]
    np.testing.assert_array_equal(array_of(y), X[0][(rows, columns), (columns, rows)])
    rows[:] = columns[:] = 2
    y.sum().backward()
    assert x.grad.numpy()[:2, :2].tolist() == [[0.0, 2.0], [2.0, 0.0]]
    for index in ([], (slice(None), []), ((0, 1), slice(None)), ((),)):
        assert x[index].shape == X[0][index].shape


def test_a_basic_index_shows_memory_and_an_advanced_one_copies():
    x = tg.tensor(X)
    assert np.shares_memory(array_of(x[0]), array_of(x))
    assert np.shares_memory(array_of(x[0, 0, 0]), array_of(x))
    assert not np.shares_memory(array_of(x[[0]]), array_of(x))


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (2, IndexError),
        ((0, 0, 0, 0), IndexError),
        ([0, 5], IndexError),
        (1.5, IndexError),
        ("a", IndexError),
        (np.array([True, False, True]), IndexError),
    ],
)
def test_bad_index(index, error):
    x = tg.tensor(X, requires_grad=True)
    with pytest.raises(error):
        x[index]
    t = x.clone()
    with pytest.raises(error):
        t[index] = 1.0
    np.testing.assert_array_equal(array_of(t), X)


def test_a_failed_write_leaves_no_trace():
    x = tg.tensor(np.ones(3), requires_grad=True)
    t = x * 2
    with pytest.raises(ValueError, match=r"broadcast|shape"):
        t[:2] = tg.tensor(np.ones(3), requires_grad=True)
    (g,) = tg.autograd.grad(t.sum(), x)
    assert g.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: tg.take(x, [0], axis=3), "axis|bounds"),
        (lambda x: tg.take(x, [9], axis=0), "bounds"),
        (lambda x: tg.take(x, [0], mode="warp"), "take.*mode"),
        (
            lambda x: tg.take_along_axis(x, np.zeros((2, 3), int), axis=0),
            "take_along_axis.*indices",
        ),
        (lambda x: tg.take_along_axis(x, np.zeros((2, 3, 4), int), axis=5), "axis|bounds"),
        (lambda x: tg.repeat(x, [1, 2], axis=1), "repeat|broadcast|operands"),
        (lambda x: tg.repeat(x, 2, axis=7), "axis|bounds|range"),
        (lambda x: tg.sort(x, axis=3), "axis|bounds"),
    ],
)
def test_bad_argument(call, match):
    with pytest.raises((ValueError, IndexError), match=match):
        call(tg.tensor(X, requires_grad=True))


class TestArraysWithoutAxes:
    """Some functions of NumPy take them for arrays of one element; others have no axis to use."""

    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize(
        "f",
        [
            lambda x, axis: np.take(x, 0, axis=axis),
            lambda x, axis: np.take(x, [0, 0], axis=axis),
            lambda x, axis: np.repeat(x, 3, axis=axis),
            lambda x, axis: np.cumprod(x, axis=axis),
        ],
    )
    def test_one_element(self, f, axis):
        x = np.array(1.5)
        expected = f(x, axis)
        found = f(tg.tensor(x), axis).numpy()
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
        assert tg.grad(lambda x: tg.sum(f(x, axis)))(x) == expected.size

    @pytest.mark.parametrize("axis", [0, -1, 1])
    @pytest.mark.parametrize(
        "f",
        [
            lambda x, axis: np.sort(x, axis=axis),
            lambda x, axis: np.roll(x, 1, axis=axis),
            lambda x, axis: np.diff(x, axis=axis),
            lambda x, axis: np.trapezoid(x, axis=axis),
            lambda x, axis: np.array_split(x, 1, axis=axis),
            lambda x, axis: np.maximum.accumulate(x, axis=axis),
        ],
    )
    def test_no_axis(self, f, axis):
        with pytest.raises(np.exceptions.AxisError, match="out of bounds"):
            f(tg.tensor(1.5), axis)
