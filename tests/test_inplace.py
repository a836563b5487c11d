"""In-place work: operators, item assignment, `out=`, views and bases, versions, detection."""

import warnings

import hypothesis as hp
import hypothesis.strategies as st
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import grad

LEAF = "leaf Variable that requires grad is being used in an in-place operation"
VIEW_OF_LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation"
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace"


def leaf(data, dtype=np.float64):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(t):
    return t.detach().numpy()


def matrix():
    return leaf(np.arange(1.0, 7.0).reshape(2, 3))


def numeric_grad(f, at, eps=1e-6):
    """Central differences of a function from an array to a number."""
    found = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = eps
        found[index] = (f(at + step) - f(at - step)) / (2 * eps)
    return found


# -- in-place operators ---------------------------------------------------------------------------

OPERATORS = {
    "+=": lambda t, v: t.__iadd__(v),
    "-=": lambda t, v: t.__isub__(v),
    "*=": lambda t, v: t.__imul__(v),
    "/=": lambda t, v: t.__itruediv__(v),
    "**=": lambda t, v: t.__ipow__(v),
    "//=": lambda t, v: t.__ifloordiv__(v),
    "%=": lambda t, v: t.__imod__(v),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("other", ["number", "array", "row", "tensor"])
def test_operator_on_a_nonleaf(name, other):
    right = {
        "number": 2.5,
        "array": np.full((2, 3), 2.5),
        "row": np.array([1.5, 2.5, 3.5]),
        "tensor": tg.tensor(np.full((2, 3), 1.5)),
    }[other]
    apply = OPERATORS[name]

    def plain(a):
        b = a * 1.3
        b = apply(b, np.asarray(right))
        return (b * np.arange(6.0).reshape(2, 3)).sum()

    x = matrix()
    y = x * 1.3
    array = values(y)
    before = y
    y = apply(y, right)
    assert y is before
    assert np.shares_memory(values(y), array)
    total = (y * np.arange(6.0).reshape(2, 3)).sum()
    assert total.item() == pytest.approx(plain(values(x).copy()))
    total.backward()
    np.testing.assert_allclose(
        values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["+=", "*=", "/=", "**=", "-="])
def test_operator_with_a_differentiable_right_side(name):
    apply = OPERATORS[name]

    def plain(a):
        b = a[0] * 1.3
        return apply(b, np.tanh(a[1])).sum()

    x = matrix()
    y = x[0] * 1.3
    y = apply(y, tg.tanh(x[1]))
    y.sum().backward()
    np.testing.assert_allclose(
        values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6, atol=1e-8
    )


def test_matmul_operator_in_place():
    x = leaf(np.eye(2) * 2)
    y = x * 1
    array = values(y)
    y @= np.array([[1.0, 2.0], [3.0, 4.0]])
    assert np.shares_memory(values(y), array)
    np.testing.assert_array_equal(values(y), [[2.0, 4.0], [6.0, 8.0]])
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [[3.0, 7.0], [3.0, 7.0]])


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_on_a_leaf_is_refused(name):
    x = matrix()
    before = values(x).copy()
    with pytest.raises(RuntimeError, match=LEAF):
        OPERATORS[name](x, 2.0)
    np.testing.assert_array_equal(values(x), before)
    assert x._version == 0


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_on_a_leaf_under_no_grad(name):
    x = matrix()
    expected = OPERATORS[name](values(x).copy(), 2.0)
    with tg.no_grad():
        y = OPERATORS[name](x, 2.0)
    assert y is x
    assert x.is_leaf
    assert x.requires_grad
    np.testing.assert_array_equal(values(x), expected)
    (x * 2).sum().backward()
    np.testing.assert_array_equal(values(x.grad), np.full((2, 3), 2.0))


def test_gradient_descent_step():
    x = leaf([1.0, 2.0])
    for _ in range(100):
        x.grad = None
        ((x - np.array([3.0, -1.0])) ** 2).sum().backward()
        with tg.no_grad():
            x -= 0.1 * x.grad
    np.testing.assert_allclose(values(x), [3.0, -1.0], atol=1e-6)


def test_passive_tensor_becomes_differentiable():
    x = leaf([1.0, 2.0])
    t = tg.tensor([10.0, 20.0])
    t += x
    assert t.requires_grad
    assert not t.is_leaf
    (t * t).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [22.0, 44.0])


def test_passive_stays_passive():
    t = tg.tensor([1.0, 2.0])
    t *= 3
    assert not t.requires_grad
    np.testing.assert_array_equal(values(t), [3.0, 6.0])


def test_integers_in_place():
    t = tg.tensor([1, 2])
    t += 3
    t[0] = 7
    assert t.dtype == np.int64
    assert t.tolist() == [7, 5]


def test_own_value_on_the_right():
    x = leaf([1.0, 2.0])
    y = x * 1
    y += y
    y *= y.clone()
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), 8 * np.array([1.0, 2.0]))


@pytest.mark.parametrize("name", ["*=", "/="])
@pytest.mark.parametrize("show", [lambda t: t, lambda t: t.T, lambda t: t[0]])
def test_own_value_on_the_right_of_an_op_that_saves_it(name, show):
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = x * 1
    y = OPERATORS[name](y, show(y))
    expected = values(x).copy()
    OPERATORS[name](expected, show(expected))
    np.testing.assert_array_equal(values(y), expected)

    def plain(a):
        b = a.copy()
        OPERATORS[name](b, show(b))
        return b.sum()

    try:
        y.sum().backward()
    except RuntimeError as error:
        assert MODIFIED in str(error)  # noqa: PT017
    else:
        exact = numeric_grad(plain, values(x).copy())
        np.testing.assert_allclose(values(x.grad), exact, rtol=1e-6, atol=1e-8)


def test_own_transpose_on_the_right():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = x * 1
    y -= 2 * y.T
    np.testing.assert_array_equal(values(y), [[-1.0, -4.0], [-1.0, -4.0]])
    (y * np.array([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [[-1.0, -4.0], [-1.0, -4.0]])


# -- underscore methods ---------------------------------------------------------------------------

UNDERSCORE = {
    "add_": (lambda t: t.add_(1.5), lambda a: a + 1.5),
    "sub_": (lambda t: t.sub_(1.5), lambda a: a - 1.5),
    "mul_": (lambda t: t.mul_(1.5), lambda a: a * 1.5),
    "div_": (lambda t: t.div_(1.5), lambda a: a / 1.5),
    "pow_": (lambda t: t.pow_(3), lambda a: a**3),
    "neg_": (lambda t: t.neg_(), lambda a: -a),
    "abs_": (lambda t: t.abs_(), np.abs),
    "exp_": (lambda t: t.exp_(), np.exp),
    "log_": (lambda t: t.log_(), np.log),
    "sin_": (lambda t: t.sin_(), np.sin),
    "cos_": (lambda t: t.cos_(), np.cos),
    "tanh_": (lambda t: t.tanh_(), np.tanh),
    "sqrt_": (lambda t: t.sqrt_(), np.sqrt),
    "square_": (lambda t: t.square_(), np.square),
    "reciprocal_": (lambda t: t.reciprocal_(), np.reciprocal),
    "sigmoid_": (lambda t: t.sigmoid_(), lambda a: 1 / (1 + np.exp(-a))),
    "floor_": (lambda t: t.floor_(), np.floor),
    "multiply_": (lambda t: t.multiply_(t.clone()), lambda a: a * a),
    "maximum_": (lambda t: t.maximum_(2.7), lambda a: np.maximum(a, 2.7)),
    "zero_": (lambda t: t.zero_(), np.zeros_like),
    "fill_": (lambda t: t.fill_(3.0), lambda a: np.full_like(a, 3.0)),
    "copy_": (lambda t: t.copy_(np.arange(3.0)), lambda a: np.broadcast_to(np.arange(3.0), (2, 3))),
}


@pytest.mark.parametrize("name", UNDERSCORE)
def test_underscore_method(name):
    apply, plain = UNDERSCORE[name]
    x = matrix()
    y = x * 0.9
    array = values(y)
    returned = apply(y)
    assert returned is y
    assert np.shares_memory(values(y), array)
    np.testing.assert_allclose(values(y), plain(values(x) * 0.9), rtol=1e-14)
    if y.requires_grad:
        (found,) = grad((y * np.arange(6.0).reshape(2, 3)).sum(), x, allow_unused=True)
        found = np.zeros((2, 3)) if found is None else values(found)
    else:
        found = np.zeros((2, 3))
    expected = numeric_grad(
        lambda a: (plain(a * 0.9) * np.arange(6.0).reshape(2, 3)).sum(), values(x).copy()
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", UNDERSCORE)
def test_underscore_method_on_a_leaf_is_refused(name):
    x = matrix()
    with pytest.raises(RuntimeError, match=LEAF):
        UNDERSCORE[name][0](x)


@pytest.mark.parametrize("name", UNDERSCORE)
def test_underscore_method_in_float32(name):
    apply, plain = UNDERSCORE[name]
    x = leaf(np.arange(1.0, 7.0).reshape(2, 3), np.float32)
    y = x * np.float32(0.9)
    apply(y)
    assert y.dtype == np.float32
    np.testing.assert_allclose(values(y), plain(values(x) * np.float32(0.9)), rtol=1e-5)


def test_underscore_methods_chain():
    x = leaf([0.5, 1.5])
    y = (x * 1).sin_().mul_(2).add_(x)
    y.sum().backward()
    np.testing.assert_allclose(values(x.grad), 2 * np.cos([0.5, 1.5]) + 1)


def test_copy_from_a_differentiable_source():
    x, y = leaf([1.0, 2.0, 3.0]), matrix()
    t = y * 2
    t.copy_(x)
    (t * np.arange(6.0).reshape(2, 3)).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [3.0, 5.0, 7.0])
    assert y.grad is None or not values(y.grad).any()


def test_copy_converts_dtypes():
    x = leaf([1.0, 2.0], np.float32)
    t = tg.zeros(2)
    t.copy_(x)
    assert t.dtype == np.float64
    (t * np.array([1.0, 10.0])).sum().backward()
    assert x.grad.dtype == np.float32
    np.testing.assert_array_equal(values(x.grad), [1.0, 10.0])


def test_fill_with_a_differentiable_number():
    s = leaf(2.0)
    t = tg.zeros((2, 3))
    t.fill_(s)
    (t * np.arange(6.0).reshape(2, 3)).sum().backward()
    assert s.grad.item() == 15.0


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "other"),
    [
        (tg.tensor([1, 2]), 1.5),
        (tg.tensor([1, 2]), np.array([1.5, 2.5])),
        (tg.tensor([1.0, 2.0]), 1j),
        (tg.tensor([1, 2]), tg.tensor([1.0, 2.0])),
    ],
)
def test_casts_that_lose_are_refused(target, other):
    before = target.tolist()
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        target += other
    assert target.tolist() == before


def test_integer_division_in_place_is_refused():
    t = tg.tensor([1, 2])
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        t /= 2


def test_float64_into_float32_keeps_float32():
    x = leaf([1.0, 2.0], np.float32)
    y = x * 2
    y += np.array([0.5, 0.5], np.float64)
    assert y.dtype == np.float32
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])


@pytest.mark.parametrize("other", [np.ones((3, 2)), np.ones((1, 2)), np.ones(3)])
def test_results_that_do_not_fit_are_refused(other):
    y = leaf([1.0, 2.0]) * 1
    before = values(y).copy()
    with pytest.raises((RuntimeError, ValueError), match=r"shape|broadcast"):
        y += other
    np.testing.assert_array_equal(values(y), before)


def test_shape_that_would_grow_names_both_shapes():
    y = leaf([1.0, 2.0]) * 1
    with pytest.raises(
        RuntimeError,
        match=r"output with shape \[2\] doesn't match the broadcast shape \[3, 2\]",
    ):
        y += np.ones((3, 2))


def test_differentiable_value_into_integers_is_refused():
    t = tg.tensor([1, 2])
    with pytest.raises(RuntimeError):
        t[0] = leaf(1.0)
    with pytest.raises(RuntimeError):
        t += leaf(1.0)
    assert t.tolist() == [1, 2]


@pytest.mark.parametrize("bad", ["x", None, object()])
def test_other_things_on_the_right(bad):
    y = leaf([1.0, 2.0]) * 1
    with pytest.raises(TypeError):
        y += bad


# -- item assignment ------------------------------------------------------------------------------

MASK = np.array([[True, False, True], [False, True, True]])
INDICES = {
    "row": 1,
    "negative": -1,
    "element": (1, 2),
    "slice": (slice(None), slice(1, None)),
    "steps": (slice(None), slice(None, None, 2)),
    "reversed": (slice(None, None, -1), slice(None, None, -1)),
    "ellipsis": Ellipsis,
    "newaxis": (None, 0),
    "all": slice(None),
    "empty": slice(0, 0),
    "integers": np.array([1, 0]),
    "list": [1],
    "pairs": (np.array([0, 1]), np.array([2, 0])),
    "mixed": (slice(None), np.array([2, 0])),
    "separated": (np.array([0, 1]), None, np.array([1, 1])),
    "boolean": MASK,
    "boolean row": np.array([False, True]),
    "boolean and slice": (np.array([True, False]), slice(1, 3)),
    "scalar boolean": True,
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("kind", ["number", "array", "tensor"])
def test_assignment(name, kind):
    index = INDICES[name]
    x, w = matrix(), leaf(0.7)
    y = x * 1.5
    shape = values(y)[index].shape
    content = np.linspace(0.5, 2.0, int(np.prod(shape))).reshape(shape)
    weights = np.arange(1.0, 7.0).reshape(2, 3)

    def plain(a, s):
        b = a * 1.5
        b[index] = {"number": 9.0, "array": content, "tensor": content * s}[kind]
        return b

    y[index] = {"number": 9.0, "array": content, "tensor": w * content}[kind]
    np.testing.assert_array_equal(values(y), plain(values(x), 0.7))
    gx, gw = grad((y * weights).sum(), [x, w], allow_unused=True, materialize_grads=True)
    np.testing.assert_allclose(
        values(gx),
        numeric_grad(lambda a: (plain(a, 0.7) * weights).sum(), values(x).copy()),
        atol=1e-8,
    )
    expected = numeric_grad(lambda s: (plain(values(x), s) * weights).sum(), np.array(0.7))
    np.testing.assert_allclose(values(gw), expected, atol=1e-8)


@pytest.mark.parametrize("name", INDICES)
def test_assignment_on_a_leaf(name):
    x = matrix()
    with pytest.raises(RuntimeError, match=LEAF):
        x[INDICES[name]] = 0.0
    with tg.no_grad():
        x[INDICES[name]] = 0.0
    assert x.is_leaf
    expected = np.arange(1.0, 7.0).reshape(2, 3)
    expected[INDICES[name]] = 0.0
    np.testing.assert_array_equal(values(x), expected)


@pytest.mark.parametrize("name", [n for n in INDICES if n != "empty"])
def test_augmented_assignment_of_items(name):
    index = INDICES[name]
    weights = np.arange(1.0, 7.0).reshape(2, 3)

    def plain(a):
        b = a * 1.5
        b[index] *= np.sin(2.0)
        b[index] += 3.0
        return (b * b * weights).sum()

    x = matrix()
    y = x * 1.5
    y[index] *= np.sin(2.0)
    y[index] += 3.0
    total = (y * y * weights).sum()
    assert total.item() == pytest.approx(plain(values(x)))
    total.backward()
    np.testing.assert_allclose(values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6)


def test_index_tensors():
    x = matrix()
    y = x * 1
    y[tg.tensor([0, 1]), tg.tensor([0, 2])] = 0.0
    y[tg.tensor(MASK) & (y > 2.5)] = 1.0
    expected = values(x).copy()
    expected[[0, 1], [0, 2]] = 0
    expected[MASK & (expected > 2.5)] = 1
    np.testing.assert_array_equal(values(y), expected)
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [[0, 1, 0], [1, 0, 0]])


def test_assigning_with_a_repeated_index_keeps_the_last():
    x, v = leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0, 30.0, 40.0])
    y = x * 1
    y[np.array([0, 2, 0, 0])] = v
    np.testing.assert_array_equal(values(y), [40.0, 2.0, 20.0])
    (y * np.array([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 10.0, 0.0])
    np.testing.assert_array_equal(values(v.grad), [0.0, 100.0, 0.0, 1.0])


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (2, 1), (1, 1, 3)])
def test_assigned_value_is_broadcast(shape):
    v = leaf(np.arange(1.0, np.prod(shape) + 1).reshape(shape))
    y = matrix() * 1
    y[:, :] = v
    expected = np.empty((2, 3))
    expected[:, :] = values(v)
    np.testing.assert_array_equal(values(y), expected)
    weights = np.arange(6.0).reshape(2, 3)
    (y * weights).sum().backward()
    exact = numeric_grad(
        lambda a: (np.broadcast_to(a.reshape(a.shape[-2:]), (2, 3)) * weights).sum(),
        values(v).copy(),
    )
    np.testing.assert_allclose(values(v.grad), exact, atol=1e-8)


def test_broadcast_value_at_an_advanced_index():
    v = leaf([10.0])
    y = tg.zeros(4)
    y[np.array([0, 2])] = v
    y[np.array([True, False, False, True])] = v * 2
    (y * np.arange(1.0, 5.0)).sum().backward()
    assert v.grad.item() == 3.0 + 2 * (1.0 + 4.0)


def test_value_from_the_same_tensor():
    x = leaf([1.0, 2.0, 3.0, 4.0])
    y = x * 1
    y[1:] = y[:-1]
    np.testing.assert_array_equal(values(y), [1.0, 1.0, 2.0, 3.0])
    (y * np.array([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [11.0, 100.0, 1000.0, 0.0])


def test_reversing_in_place():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 1
    y[...] = y[::-1]
    np.testing.assert_array_equal(values(y), [3.0, 2.0, 1.0])
    (y * np.array([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [100.0, 10.0, 1.0])


def test_swapping_two_items():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 1
    y[np.array([0, 2])] = y[np.array([2, 0])]
    (y * np.array([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [100.0, 10.0, 1.0])


def test_recurrence_by_items():
    x = leaf(np.linspace(0.1, 0.6, 6))
    out = tg.zeros(6)
    out[0] = x[0]
    for k in range(1, 6):
        out[k] = tg.sin(out[k - 1].clone()) + x[k]
    out[5].backward()

    def plain(a):
        s = a[0]
        for k in range(1, 6):
            s = np.sin(s) + a[k]
        return s

    np.testing.assert_allclose(values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6)


def test_recurrence_that_saves_what_it_writes_to():
    x = leaf([0.1, 0.2])
    out = tg.zeros(2)
    out[0] = x[0]
    out[1] = tg.sin(out[0])  # saved is a view of the memory that is written next
    with pytest.raises(RuntimeError, match=MODIFIED):
        out[1].backward()


def test_index_out_of_range():
    y = matrix() * 1
    with pytest.raises(IndexError):
        y[5] = 1.0
    with pytest.raises(IndexError):
        y[np.array([0, 7])] = 1.0


def test_value_that_does_not_fit():
    y = matrix() * 1
    before = values(y).copy()
    with pytest.raises((ValueError, RuntimeError)):
        y[0] = np.ones(2)
    with pytest.raises((ValueError, RuntimeError)):
        y[0] = leaf(np.ones(2))
    np.testing.assert_array_equal(values(y), before)
    y.sum().backward()


def test_value_of_another_float_type():
    x = leaf([1.0, 2.0], np.float32)
    y = tg.zeros(3)
    y[:2] = x
    (y * np.array([3.0, 4.0, 5.0])).sum().backward()
    assert x.grad.dtype == np.float32
    np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])


# -- out= and where= ------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [tg.multiply, np.multiply], ids=["tapegrad", "numpy"])
def test_out(call):
    x = leaf([1.0, 2.0])
    out = tg.zeros(2)
    array = out.numpy()
    returned = call(x, x, out=out)
    assert returned is out
    assert np.shares_memory(values(out), array)
    assert out.requires_grad
    out.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])


@pytest.mark.parametrize("call", [tg.exp, np.exp], ids=["tapegrad", "numpy"])
def test_out_and_where(call):
    x, start = leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0, 30.0])
    out = start * 1
    call(x, out=out, where=np.array([True, False, True]))
    np.testing.assert_allclose(values(out), [np.exp(1), 20.0, np.exp(3)])
    (out * np.array([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_allclose(values(x.grad), [np.exp(1), 0.0, 100 * np.exp(3)])
    np.testing.assert_array_equal(values(start.grad), [0.0, 10.0, 0.0])


@pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
def test_out_is_an_operand(call):
    x = leaf([1.0, 2.0])
    y = x * 3
    call(y, y, out=y)
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [6.0, 6.0])


@pytest.mark.parametrize("call", [tg.exp, np.exp], ids=["tapegrad", "numpy"])
def test_out_is_the_operand_of_an_op_that_saves(call):
    x = leaf([1.0, 2.0])
    y = x * 0.5
    call(y, out=y)
    tg.sin(y, out=y)
    y.sum().backward()
    e = np.exp([0.5, 1.0])
    np.testing.assert_allclose(values(x.grad), np.cos(e) * e * 0.5)


@pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
def test_out_a_leaf_is_refused(call):
    x, out = leaf([1.0, 2.0]), leaf([0.0, 0.0])
    with pytest.raises(RuntimeError, match=LEAF):
        call(x, x, out=out)
    np.testing.assert_array_equal(values(out), [0.0, 0.0])


@pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
def test_out_an_array(call):
    out = np.zeros(2)
    with pytest.raises(TypeError, match="out"):
        call(leaf([1.0, 2.0]), 1.0, out=out)
    np.testing.assert_array_equal(out, [0.0, 0.0])
    call(tg.tensor([1.0, 2.0]), 1.0, out=out)
    np.testing.assert_array_equal(out, [2.0, 3.0])


@pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
@pytest.mark.parametrize("tracked", [True, False])
def test_out_of_a_wrong_shape(call, tracked):
    x = tg.tensor([1.0, 2.0], requires_grad=tracked)
    with pytest.raises((ValueError, RuntimeError)):
        call(x, x, out=tg.zeros(3))


@pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
@pytest.mark.parametrize("tracked", [True, False])
def test_out_of_a_wrong_dtype(call, tracked):
    x = tg.tensor([1.5, 2.5], requires_grad=tracked)
    with pytest.raises((TypeError, RuntimeError)):
        call(x, x, out=tg.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
def test_out_is_a_view(call):
    x = leaf([1.0, 2.0])
    base = tg.zeros((2, 2))
    call(x, 5.0, out=base[0])
    np.testing.assert_array_equal(values(base), [[6.0, 7.0], [0.0, 0.0]])
    (base * np.array([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 2.0])


def test_passive_inputs_into_a_tracked_out():
    x = leaf([1.0, 2.0])
    y = x * 3
    np.add(np.array([1.0, 1.0]), 2.0, out=y)
    np.testing.assert_array_equal(values(y), [3.0, 3.0])
    assert grad(y.sum() + 0 * x.sum(), x)[0].tolist() == [0.0, 0.0]


def test_out_without_recording():
    x = leaf([1.0, 2.0])
    out = tg.zeros(2)
    with tg.no_grad():
        np.multiply(x, 2.0, out=out)
    assert not out.requires_grad
    np.testing.assert_array_equal(values(out), [2.0, 4.0])


def test_array_in_place_operator_with_a_tensor():
    a = np.array([1.0, 2.0])
    a += tg.tensor([1.0, 1.0])
    np.testing.assert_array_equal(np.asarray(a), [2.0, 3.0])
    with pytest.raises(TypeError):
        np.add(a, leaf([1.0, 1.0]), out=np.zeros(2))


# -- views ----------------------------------------------------------------------------------------

VIEWS = {
    "row": lambda t: t[1],
    "columns": lambda t: t[:, 1:],
    "element": lambda t: t[0, 2, ...],
    "step": lambda t: t[:, ::2],
    "reversed": lambda t: t[::-1, ::-1],
    "transpose": lambda t: t.T,
    "flat": lambda t: t.reshape(-1),
    "newaxis": lambda t: t[None, :, None],
    "all": lambda t: t[...],
    "chain": lambda t: t.T[1:][:, 1],
    "chain of slices": lambda t: t[1:][:, 1:][0],
    "squeezed": lambda t: t[:1].reshape(3),
    "swapped": lambda t: t.swapaxes(0, 1)[2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_both_ways(name):
    t = tg.tensor(np.arange(6.0).reshape(2, 3))
    view = VIEWS[name](t)
    view += 100.0
    expected = np.arange(6.0).reshape(2, 3)
    VIEWS[name](expected)[...] += 100.0
    np.testing.assert_array_equal(t.numpy(), expected)
    t *= 2.0
    np.testing.assert_array_equal(view.numpy(), VIEWS[name](expected * 2))


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("how", ["add", "multiply", "assign", "tensor", "exp", "out"])
def test_write_through_a_view(name, how):
    weights = np.arange(1.0, 7.0).reshape(2, 3)

    def plain(a, s):
        b = a * 1.5
        v = VIEWS[name](b)
        if how == "add":
            v[...] += s
        elif how == "multiply":
            v[...] *= s
        elif how == "assign":
            v[...] = 7.0
        elif how == "tensor":
            v[...] = np.sin(s)
        elif how in ("exp", "out"):
            v[...] = np.exp(v)
        return (b * b * weights).sum() + (v * v).sum()

    x, s = leaf(np.linspace(0.1, 0.6, 6).reshape(2, 3)), leaf(0.7)
    y = x * 1.5
    view = VIEWS[name](y)
    if how == "add":
        view += s
    elif how == "multiply":
        view *= s
    elif how == "assign":
        view[...] = 7.0
    elif how == "tensor":
        view[...] = tg.sin(s)
    elif how == "exp":
        view.exp_()
    else:
        np.exp(view, out=view)
    total = (y * y * weights).sum() + (view * view).sum()
    assert total.item() == pytest.approx(plain(values(x), 0.7))
    gx, gs = grad(total, [x, s], materialize_grads=True)
    np.testing.assert_allclose(
        values(gx), numeric_grad(lambda a: plain(a, 0.7), values(x).copy()), rtol=1e-6, atol=1e-8
    )
    expected = numeric_grad(lambda b: plain(values(x), b), np.array(0.7))
    np.testing.assert_allclose(values(gs), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("first", VIEWS)
@pytest.mark.parametrize("second", ["row", "columns", "transpose", "flat", "chain"])
def test_siblings_follow(first, second):
    def plain(a):
        b = a * 1.5
        v, w = VIEWS[first](b), VIEWS[second](b)
        v[...] *= 3.0
        w[...] += np.sin(2.0)
        b[0] *= 2.0
        return (v * v).sum() + 10 * (w * w * w).sum() + (b * b).sum()

    x = leaf(np.linspace(0.1, 0.6, 6).reshape(2, 3))
    y = x * 1.5
    v, w = VIEWS[first](y), VIEWS[second](y)
    v *= 3.0
    w += np.sin(2.0)
    y[0] *= 2.0
    total = (v * v).sum() + 10 * (w * w * w).sum() + (y * y).sum()
    assert total.item() == pytest.approx(plain(values(x)))
    total.backward()
    np.testing.assert_allclose(
        values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6, atol=1e-8
    )


def test_grad_fn_of_the_base_changes():
    y = matrix() * 1
    view = y[0]
    before = y.grad_fn.name()
    view += 1.0
    assert y.grad_fn.name() != before
    assert y._version == view._version == 1


def test_passive_base_gets_a_history_through_its_view():
    x = leaf([1.0, 2.0, 3.0])
    base = tg.zeros((2, 3))
    other = base[:, 1]
    row = base[0]
    row += x
    assert base.requires_grad
    assert row.requires_grad
    assert other.requires_grad
    (base.sum() + 10 * other.sum()).backward()
    np.testing.assert_array_equal(values(x.grad), [1.0, 11.0, 1.0])


def test_write_to_a_base_with_views_alive():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 2
    head, tail = y[:1], y[1:]
    y *= 5
    np.testing.assert_array_equal(values(tail), [20.0, 30.0])
    (head.sum() + 2 * tail.sum()).backward()
    np.testing.assert_array_equal(values(x.grad), [10.0, 20.0, 20.0])


def test_views_that_have_gone_are_no_obstacle():
    x = leaf(np.ones(5))
    y = x * 2
    for k in range(100):
        y[k % 5 : k % 5 + 1] += 1.0
    y.sum().backward()
    np.testing.assert_array_equal(values(y), 2.0 + 20.0)
    np.testing.assert_array_equal(values(x.grad), 2.0)


def test_base_that_has_gone():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 2
    view = y[1:]
    del y
    view *= 3
    view.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 6.0, 6.0])


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_a_leaf_is_refused(name):
    x = matrix()
    view = VIEWS[name](x)
    with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
        view += 1.0
    with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
        view[...] = 1.0
    np.testing.assert_array_equal(values(x), np.arange(1.0, 7.0).reshape(2, 3))


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_a_leaf_under_no_grad(name):
    x = matrix()
    with tg.no_grad():
        view = VIEWS[name](x)
        view += 1.0
    expected = np.arange(1.0, 7.0).reshape(2, 3)
    VIEWS[name](expected)[...] += 1.0
    np.testing.assert_array_equal(values(x), expected)
    assert x.is_leaf
    (x * 2).sum().backward()
    np.testing.assert_array_equal(values(x.grad), 2.0)


def test_view_made_without_recording():
    y = matrix() * 1
    with tg.no_grad():
        view = y[0]
    with pytest.raises(
        RuntimeError, match="A view was created in no_grad mode and is being modified"
    ):
        view += 1.0


def test_view_made_and_modified_without_recording():
    x = matrix()
    y = x * 2
    with tg.no_grad():
        y[0].zero_()
    np.testing.assert_array_equal(values(y), [[0.0, 0.0, 0.0], [8.0, 10.0, 12.0]])
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), 2.0)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("Split", lambda t: tg.split(t, 2)),
        ("Unstack", lambda t: tg.unstack(t)),
        ("ArraySplit", lambda t: np.array_split(t, 2)),
    ],
)
def test_one_of_several_views_of_one_op(name, split):
    x = matrix()
    y = x * 1
    first, _ = split(y)
    with pytest.raises(RuntimeError, match="the output of a function that returns multiple views"):
        first += 1.0


def test_is_view_and_base():
    y = matrix() * 1
    view = y[0]
    deeper = view[1:]
    assert view._base is y
    assert deeper._base is y
    assert y._base is None
    assert (view * 2)._base is None
    assert y[np.array([0])]._base is None


def test_copies_are_no_views():
    y = matrix() * 1
    copies = [y.clone(), y.flatten(), y[np.array([0, 1])], y[MASK], y.copy(), y.T.reshape(-1)]
    before = values(y).copy()
    for t in copies:
        t += 100.0
    np.testing.assert_array_equal(values(y), before)


def test_numpy_views_are_views():
    x = matrix()
    y = x * 1
    np.transpose(y)[0] += 10.0
    np.reshape(y, -1)[:1] *= 2.0
    np.testing.assert_array_equal(values(y), [[22.0, 2.0, 3.0], [14.0, 5.0, 6.0]])
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]])


def test_iterating_gives_views():
    t = tg.zeros((2, 3))
    for k, row in enumerate(t):
        row += k
    np.testing.assert_array_equal(t.numpy(), [[0.0] * 3, [1.0] * 3])


def test_broadcast_views_are_read_only():
    y = leaf([1.0, 2.0]) * 1
    wide = tg.broadcast_to(y, (3, 2))
    with pytest.raises((ValueError, RuntimeError)):
        wide += 1.0
    y.sum().backward()


def test_second_derivative_after_in_place_work():
    x = leaf([0.5, 1.5])
    y = x * x
    y *= x
    y[0] += x[1] ** 2
    (g,) = grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(values(g), [3 * 0.25, 3 * 2.25 + 2 * 1.5])
    (h,) = grad(g.sum(), x)
    np.testing.assert_allclose(values(h), [6 * 0.5, 6 * 1.5 + 2])


# -- detach and data ------------------------------------------------------------------------------


def test_detach_shares_memory_and_version():
    y = matrix() * 1
    d = y.detach()
    d += 1.0
    np.testing.assert_array_equal(values(y), np.arange(2.0, 8.0).reshape(2, 3))
    assert y._version == d._version == 1
    y += 1.0
    assert y._version == d._version == 2


def test_modification_through_detach_is_detected():
    x = leaf([1.0, 2.0])
    y = x.exp()
    z = y.sum()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match=MODIFIED):
        z.backward()


def test_data_shares_memory_but_no_version():
    x = leaf([1.0, 2.0])
    y = x.exp()
    z = y.sum()
    y.data.mul_(2.0)
    np.testing.assert_allclose(values(y), 2 * np.exp([1.0, 2.0]))
    assert y._version == 0
    z.backward()
    np.testing.assert_allclose(values(x.grad), 2 * np.exp([1.0, 2.0]))


def test_data_of_a_leaf_may_be_written():
    x = leaf([1.0, 2.0])
    x.data.add_(1.0)
    x.data[0] = 9.0
    np.testing.assert_array_equal(values(x), [9.0, 3.0])
    assert x.is_leaf


# -- leaves that are views ------------------------------------------------------------------------


def test_view_that_became_a_leaf():
    base = tg.zeros((2, 3))
    view = base[0].requires_grad_()
    with pytest.raises(RuntimeError, match=LEAF):
        view += 1.0
    (view * 2).sum().backward()
    np.testing.assert_array_equal(values(view.grad), 2.0)


def test_base_that_became_a_leaf_after_its_view():
    base = tg.zeros((2, 3))
    view = base[0]
    base.requires_grad_()
    with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
        view += 1.0
    assert base.is_leaf


def test_view_of_a_base_that_became_a_leaf_follows():
    base = tg.zeros((2, 3))
    view = base[0]
    base.requires_grad_()
    assert view.requires_grad
    (view * 3).sum().backward()
    np.testing.assert_array_equal(values(base.grad), [[3.0] * 3, [0.0] * 3])


def test_differentiable_value_into_a_passive_base_without_recording():
    x = leaf([1.0, 2.0, 3.0])
    base = tg.zeros((2, 3))
    view = base[0]
    with tg.no_grad():
        view += x
    assert not view.requires_grad
    assert not base.requires_grad
    np.testing.assert_array_equal(values(base), [[1.0, 2.0, 3.0], [0.0] * 3])


# -- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.add_(1),
        lambda t: t.__iadd__(1),
        lambda t: t.__setitem__(0, 1.0),
        lambda t: t.__setitem__(np.array([0, 1]), 1.0),
        lambda t: t.zero_(),
        lambda t: t.copy_(np.ones(3)),
        lambda t: np.add(t, 1, out=t),
        lambda t: np.add.at(t, [0], 1.0),
        lambda t: np.copyto(t, np.ones(3)),
        lambda t: t[1:].mul_(2),
    ],
)
@pytest.mark.parametrize("tracked", [True, False])
def test_version_counts_writes(write, tracked):
    t = tg.tensor(np.arange(3.0), requires_grad=tracked) * 1
    assert t._version == 0
    write(t)
    assert t._version == 1
    write(t)
    assert t._version == 2
    assert (t * 2)._version == 0


def test_version_is_shared_by_views():
    t = tg.zeros((2, 3))
    view = t[0]
    view += 1
    t += 1
    assert t._version == view._version == t.T._version == 2
    assert t.clone()._version == 0


# -- detection ------------------------------------------------------------------------------------

SAVING = {
    "exp": lambda t: t.exp(),
    "multiply": lambda t: t * t,
    "sin": lambda t: t.sin(),
    "power": lambda t: t**3,
    "divide": lambda t: 1.0 / t,
    "matmul": lambda t: t @ t,
    "max": lambda t: tg.max(t),
    "logsumexp": lambda t: tg.logsumexp(t),
    "norm": lambda t: tg.linalg.norm(t),
    "outer": lambda t: tg.outer(t, t),
    "einsum": lambda t: tg.einsum("i,i->i", t, t),
}
NOT_SAVING = {
    "add": lambda t: t + 1.0,
    "negative": lambda t: -t,
    "sum": lambda t: t.sum(),
    "scale": lambda t: t * 2.0,
    "shift": lambda t: t - np.ones(3),
    "view": lambda t: t[1:],
    "gather": lambda t: t[np.array([0, 0])],
    "concatenate": lambda t: tg.concatenate([t, t]),
    "cumsum": lambda t: tg.cumsum(t),
    "where": lambda t: tg.where(np.array([True, False, True]), t, 0.0),
    "clone": lambda t: t.clone(),
    "mean": lambda t: t.mean(),
}
WRITES = {
    "add_": lambda t: t.add_(1.0),
    "item": lambda t: t.__setitem__(1, 7.0),
    "view": lambda t: t[:2].mul_(2.0),
    "detached": lambda t: t.detach().zero_(),
    "out": lambda t: np.negative(t, out=t),
}


@pytest.mark.parametrize("op", SAVING)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("through", ["backward", "grad", "create_graph"])
def test_modified_input_is_detected_at_backward(op, write, through):
    x = leaf([1.0, 2.0, 3.0])
    y = x * 1.0
    z = SAVING[op](y)
    if op == "exp":  # it saves its output
        y = z
    total = z.sum()
    WRITES[write](y)
    with pytest.raises(RuntimeError, match=MODIFIED):  # noqa: PT012
        if through == "backward":
            total.backward()
        else:
            grad(total, x, create_graph=through == "create_graph")


@pytest.mark.parametrize("op", NOT_SAVING)
@pytest.mark.parametrize("write", WRITES)
def test_modified_input_that_was_not_saved_is_fine(op, write):
    x = leaf([1.0, 2.0, 3.0])
    y = x * 1.0
    total = NOT_SAVING[op](y).sum()
    (expected,) = grad(total, x, retain_graph=True)
    WRITES[write](y)
    total.backward()
    np.testing.assert_array_equal(values(x.grad), values(expected))


def test_output_saved_and_input_modified_is_fine():
    x = leaf([1.0, 2.0])
    y = x * 1
    z = y.exp()
    y.zero_()
    z.sum().backward()
    np.testing.assert_allclose(values(x.grad), np.exp([1.0, 2.0]))


def test_saved_for_the_other_operand_only():
    x, w = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
    y = x * 1
    z = (y * w).sum()
    y += 1.0  # only w was saved, as w needs no gradient
    z.backward()
    np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])


def test_passive_operand_modified():
    x, w = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
    z = (x * w).sum()
    w += 1.0
    with pytest.raises(RuntimeError, match=MODIFIED):
        z.backward()


def test_leaf_modified_without_recording_is_detected():
    x = leaf([1.0, 2.0])
    z = (x * x).sum()
    with tg.no_grad():
        x += 1.0
    with pytest.raises(RuntimeError, match=MODIFIED):
        z.backward()


def test_modification_before_saving_is_fine():
    x = leaf([1.0, 2.0])
    y = x * 1
    y += 1.0
    (y * y).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [4.0, 6.0])


def test_modification_off_the_way_is_not_looked_at():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    a, b = x.exp(), w.exp()
    total = a.sum() + b.sum()
    b.zero_()
    (g,) = grad(total, x)
    np.testing.assert_allclose(values(g), np.exp([1.0, 2.0]))


def test_text_of_the_detection():
    x = leaf([1.0, 2.0])
    y = x.exp()
    z = y.sum()
    y += 1.0
    with pytest.raises(RuntimeError) as caught:
        z.backward()
    text = str(caught.value)
    assert MODIFIED in text
    assert "which is output 0 of Exp" in text
    assert "is at version 1; expected version 0 instead" in text
    assert "Hint: " in text


def test_writes_through_a_numpy_array_are_the_users_affair():
    array = np.array([1.0, 2.0])
    x = leaf([3.0, 4.0])
    z = (x * tg.as_tensor(array)).sum()
    array += 1.0
    z.backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 3.0])


# -- random programs ------------------------------------------------------------------------------

WEIGHTS = np.cos(np.arange(1.0, 31.0))
UNARY = ("sin", "tanh", "exp", "square", "negative", "copy")
BINARY = ("add", "multiply", "subtract")
SHOW = {
    "row": lambda v: v[0, ...],
    "tail": lambda v: v[1:],
    "step": lambda v: v[::2],
    "reversed": lambda v: v[::-1],
    "transpose": lambda v: v.T,
    "flat": lambda v: v.reshape(-1),
    "last": lambda v: v[..., -1],
    "inner": lambda v: v[..., 1:],
}
PICK = {
    "first": lambda v: (0,),
    "advanced": lambda v: (np.array([0, -1]),),
    "repeated": lambda v: (np.array([0, 0, -1]),),
    "mask": lambda v: (np.arange(v.shape[0]) % 2 == 0,),
    "all": lambda v: (Ellipsis,),
    "half": lambda v: (slice(0, (v.shape[0] + 1) // 2),),
}

numbers = st.integers(0, 30)
instructions = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(UNARY), numbers, numbers),
    st.tuples(st.just("binary"), st.sampled_from(BINARY), numbers, numbers),
    st.tuples(st.just("view"), st.sampled_from(sorted(SHOW)), numbers, numbers),
    st.tuples(st.just("view"), st.sampled_from(sorted(SHOW)), numbers, numbers),
    st.tuples(st.just("unary_"), st.sampled_from(UNARY[:-1]), numbers, numbers),
    st.tuples(st.just("binary_"), st.sampled_from(BINARY), numbers, numbers),
    st.tuples(st.just("number_"), st.sampled_from(BINARY), numbers, numbers),
    st.tuples(st.just("assign"), st.sampled_from(sorted(PICK)), numbers, numbers),
    st.tuples(st.just("assign number"), st.sampled_from(sorted(PICK)), numbers, numbers),
    st.tuples(st.just("augment"), st.sampled_from(sorted(PICK)), numbers, numbers),
    st.tuples(st.just("drop"), st.just(""), numbers, numbers),
)


def fits(source, target):
    try:
        return np.broadcast_shapes(source, target) == target
    except ValueError:
        return False


def interpret(program, variables, lib):
    """Run a program on arrays (lib is NumPy) or tensors; return the variables at its end."""
    for kind, name, first, second in program:
        v = variables[first % len(variables)]
        w = variables[second % len(variables)]
        if kind == "unary":
            variables.append(lib[name](v))
        elif kind == "binary":
            if fits(w.shape, v.shape) or fits(v.shape, w.shape):
                variables.append(lib[name](v, w))
        elif kind == "view":
            if v.ndim and v.shape[0] and v.shape[-1]:
                variables.append(SHOW[name](v))
        elif kind == "unary_":
            if lib is NUMPY:
                overwrite(v, lib[name](v))
            else:
                getattr(v, f"{name}_")()
        elif kind == "binary_":
            if fits(w.shape, v.shape):
                if lib is NUMPY:
                    overwrite(v, lib[name](v, w))
                else:
                    getattr(v, f"{name}_")(w)
        elif kind == "number_":
            if lib is NUMPY:
                overwrite(v, lib[name](v, 0.5 + second / 30))
            else:
                getattr(v, f"{name}_")(0.5 + second / 30)
        elif kind == "drop":
            if len(variables) > 2:
                del variables[first % len(variables)]
        elif v.ndim and v.shape[0]:
            index = PICK[name](v)
            index = index[0] if len(index) == 1 else index
            if kind == "assign number":
                v[index] = second / 30
            elif kind == "augment":
                v[index] *= 0.5 + second / 30
            else:
                shape = np.empty(v.shape)[index].shape
                if fits(w.shape, shape):
                    v[index] = w
    return variables


def overwrite(target, value):
    target[...] = value


def array_function(name):
    """A NumPy function that returns arrays also where NumPy returns numbers."""
    function = getattr(np, name)
    return lambda *args: np.asarray(function(*args))


NUMPY = {name: array_function(name) for name in (*UNARY, *BINARY)}
TAPEGRAD = {
    **{name: getattr(tg, name) for name in NUMPY if name != "copy"},
    "copy": lambda t: t.clone(),
}
START = np.linspace(-0.9, 0.8, 6).reshape(2, 3)


def plain_program(program, x):
    with np.errstate(all="ignore"):
        return interpret(program, [x * 1.0, np.sin(x), np.zeros((2, 3))], NUMPY)


def total_of(variables):
    total = 0.0
    for k, v in enumerate(variables):
        weights = np.resize(np.roll(WEIGHTS, k), v.shape)
        total = total + (v * weights).sum()
    return total


@hp.settings(max_examples=400, deadline=None, derandomize=True)
@hp.given(st.lists(instructions, min_size=1, max_size=10))
def test_random_programs(program):
    expected = plain_program(program, START.copy())
    hp.assume(all(np.isfinite(v).all() and np.abs(v).max(initial=0) < 30 for v in expected))
    x = leaf(START)
    found = interpret(program, [x * 1.0, tg.sin(x), tg.zeros((2, 3))], TAPEGRAD)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(values(ours), theirs, rtol=1e-12, atol=1e-13)
    total = total_of(found)
    try:
        (g,) = grad(total + 0.0 * x[0, 0], x)
    except RuntimeError as error:
        hp.event("detected")
        assert MODIFIED in str(error)  # noqa: PT017
        return
    hp.event("compared")
    exact = numeric_grad(lambda a: total_of(plain_program(program, a)), START.copy(), 1e-5)
    np.testing.assert_allclose(values(g), exact, rtol=2e-4, atol=1e-5)


@hp.settings(max_examples=150, deadline=None, derandomize=True)
@hp.given(st.lists(instructions, min_size=1, max_size=8))
def test_random_programs_with_create_graph(program):
    x = leaf(START)
    found = interpret(program, [x * 1.0, tg.sin(x), tg.zeros((2, 3))], TAPEGRAD)
    total = total_of(found)
    hp.assume(all(np.isfinite(values(v)).all() for v in found))
    outcomes = []
    for create_graph in (True, False):
        try:
            (g,) = grad(total + 0.0 * x[0, 0], x, create_graph=create_graph)
            outcomes.append(values(g).copy())
        except RuntimeError as error:
            assert MODIFIED in str(error)  # noqa: PT017
            outcomes.append(None)
    assert (outcomes[0] is None) == (outcomes[1] is None)
    if outcomes[0] is not None:
        np.testing.assert_allclose(outcomes[0], outcomes[1], rtol=1e-10, atol=1e-12)


def test_no_warnings_from_in_place_work():
    with warnings.catch_warnings(action="error"):
        y = matrix() * 1
        y[0] = y[1]
        y.sum().backward()
