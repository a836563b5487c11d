"""Arguments of derivatives: defaults, keywords, numbers of arguments, shapes and types."""

import collections

import numpy as np
import pytest
from check import directional, module

import tapegrad as tg

Pair = collections.namedtuple("Pair", "a b")


@tg.njit
def scaled(x, y=3.0, n=2):
    return x * x * x * y**n


@tg.njit
def squares(v, w=2.0):
    s = 0.0
    for i in range(v.size):
        s += w * v[i] * v[i] * v[i]
    return s


@tg.njit
def cubes(v):
    return v * v * v


@tg.njit
def of_pair(p, t):
    return p.a[0] * p.b[1] * t[0][0] * t[1]


@tg.njit
def matrix(a):
    return np.sum(a * a * a)


@tg.njit
def optional(x, y=None, mode="twice", both=(2.0, 3.0)):
    z = x * x * both[1]
    if mode == "twice":
        z = 2.0 * z
    if y is None:
        return z
    return z * y


# -- defaults --------------------------------------------------------------------------------------


def test_tangents_come_last_where_defaults_are_left_out():
    value, dot = tg.jvp(scaled)(2.0, 1.0)
    assert (value, dot) == (72.0, 108.0)
    assert tg.jvp(scaled)(2.0, 1.0, 10.0) == (8.0, 120.0)  # y = 1, tangent 10
    assert tg.jvp(scaled)(2.0, 1.0, 3, 10.0) == (8.0, 120.0)
    assert tg.jvp(scaled, (0, 1))(2.0, 1.0, 0.0) == (72.0, 108.0)
    assert tg.jvp(scaled, (0, 1))(2.0, 3.0, 0.0, 1.0) == (72.0, 48.0)
    assert tg.hvp(scaled)(2.0, 10.0) == 1080.0
    assert tg.hvp(scaled)(2.0, 1.0, 10.0) == 120.0


def test_keywords():
    assert tg.jvp(scaled)(2.0, 1.0, n=3) == (216.0, 324.0)
    assert tg.jvp(scaled)(2.0, 1.0, y=1.0) == (8.0, 12.0)
    assert tg.jvp(scaled)(2.0, x_dot=1.0) == (72.0, 108.0)
    assert tg.jvp(scaled)(x=2.0, n=3, x_dot=1.0) == (216.0, 324.0)
    assert tg.hvp(scaled)(2.0, 10.0, n=3) == 3240.0
    assert tg.hvp(scaled)(x=2.0, vector=10.0) == 1080.0
    assert tg.grad(scaled)(n=1, x=2.0) == 36.0
    assert tg.value_and_grad(scaled, 1)(2.0, n=1, y=4.0) == (32.0, 8.0)


def test_argument_with_a_default():
    assert tg.grad(scaled, 1)(2.0) == 48.0
    assert tg.grad(scaled, (0, 1))(2.0) == (108.0, 48.0)
    assert tg.grad(scaled, -2)(2.0) == 48.0
    with pytest.raises(tg.TransformError, match=r"argument 2 \(n\)"):
        tg.grad(scaled, 2)(2.0)


def test_defaults_that_are_no_numbers():
    assert tg.grad(optional)(2.0) == 24.0
    assert tg.grad(optional)(2.0, 0.5) == 12.0
    assert tg.grad(optional)(2.0, mode="once") == 12.0
    assert tg.jvp(optional)(2.0, 1.0) == (24.0, 24.0)
    assert tg.grad(optional)(2.0, both=(1.0, 1.0)) == 8.0


def test_defaults_in_compiled_code():
    f = module("""
import tapegrad as tg

@tg.njit
def scaled(x, y=3.0):
    return x * x * y

push, product, slope = tg.jvp(scaled), tg.hvp(scaled), tg.grad(scaled)

@tg.njit
def f(x):
    value, dot = push(x, 2.0)
    return value + dot + product(x, 1.0) + slope(x, y=5.0)

@tg.njit
def mixed(x):
    return push(x, 2.0, y=3.0)[0]

f.mixed = mixed
""")
    assert f(2.0) == 12.0 + 24.0 + 6.0 + 20.0
    with pytest.raises(Exception, match="pass x_dot by keyword as well"):
        f.mixed(2.0)


def test_missing_arguments():
    with pytest.raises(TypeError, match="missing arguments; the last are x_dot"):
        tg.jvp(scaled)(2.0)
    with pytest.raises(TypeError, match="missing"):
        tg.hvp(squares)(np.ones(3))


# -- numbers of arguments --------------------------------------------------------------------------


@pytest.mark.parametrize("argnums", [(2, -1), (0, 0), (0, -3)])
@pytest.mark.parametrize("transform", [tg.grad, tg.value_and_grad, tg.jvp, tg.jacobian])
def test_an_argument_named_twice(transform, argnums):
    with pytest.raises(ValueError, match="names an argument twice"):
        transform(scaled, argnums)


# -- shapes and types ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 4, 1000])
def test_shape_of_a_tangent(size):
    with pytest.raises(ValueError, match=rf"v_dot must have the shape of v.*\({size},\), \(3,\)"):
        tg.jvp(cubes)(np.ones(3), np.ones(size))
    with pytest.raises(ValueError, match=rf"v_dot must have the shape of v.*\({size},\), \(3,\)"):
        tg.jvp(squares)(np.ones(3), np.ones(size))
    with pytest.raises(ValueError, match=rf"vector must have the shape of v.*\({size},\), \(3,\)"):
        tg.hvp(squares)(np.ones(3), np.ones(size))


def test_shape_of_a_matrix():
    a = np.arange(6.0).reshape(2, 3)
    for wrong in (np.ones((3, 2)), np.ones((2, 2)), np.ones((0, 3))):
        with pytest.raises(ValueError, match="a_dot must have the shape of a"):
            tg.jvp(matrix)(a, wrong)
        with pytest.raises(ValueError, match="vector must have the shape of a"):
            tg.hvp(matrix)(a, wrong)
    with pytest.raises(tg.TransformError, match="a_dot is of type"):
        tg.jvp(matrix)(a, np.ones(6))
    with pytest.raises(tg.TransformError, match="of type"):
        tg.hvp(matrix)(a, np.ones(6))


def test_shape_in_a_tuple():
    args = Pair(np.ones(2), np.full(2, 3.0)), ((2.0, 1.0), 5.0)
    good = Pair(np.ones(2), np.ones(2)), ((1.0, 1.0), 1.0)
    value, dot = tg.jvp(of_pair, (0, 1))(*args, *good)
    np.testing.assert_allclose(dot, directional(of_pair, args, dict(enumerate(good)))[0])
    assert value == 30.0
    with pytest.raises(ValueError, match=r"p_dot\[1\] must have the shape of p\[1\]"):
        tg.jvp(of_pair)(*args, Pair(np.ones(2), np.ones(1)))


def test_shape_of_a_cotangent():
    x = tg.tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True)
    z, pullback = tg.vjp(cubes, x)
    assert z.shape == (3,)
    with pytest.raises(RuntimeError, match="shape"):
        pullback(np.ones(2))


def test_shapes_in_a_derivative_that_is_differentiated():
    push = tg.jvp(tg.grad(squares))
    v = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(push(v, np.ones(3))[1], 12.0 * v)
    again = tg.jvp(tg.jvp(squares))
    np.testing.assert_allclose(again(v, np.ones(3), np.ones(3))[1][1], 12.0 * v.sum())
    with pytest.raises(ValueError, match="must have the shape of"):
        again(v, np.ones(2), np.ones(3))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_tangent_of_integers(dtype):
    v = np.array([1.0, 2.0, 3.0])
    _, dot = tg.jvp(cubes)(v, np.ones(3, dtype))
    np.testing.assert_allclose(dot, 3.0 * v * v)
    np.testing.assert_allclose(tg.hvp(squares)(v, np.ones(3, dtype)), 12.0 * v)
    assert tg.jvp(scaled)(2.0, dtype(1)) == (72.0, 108.0)


def test_complex_tangent():
    with pytest.raises(tg.TransformError, match="v_dot is of type"):
        tg.jvp(cubes)(np.ones(3), np.ones(3, complex))
    with pytest.raises(tg.TransformError, match="of type"):
        tg.hvp(squares)(np.ones(3), np.ones(3, complex))
    with pytest.raises(tg.TransformError, match="x_dot is of type"):
        tg.jvp(scaled)(2.0, 1j)


# -- tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [list, lambda items: dict(enumerate(items)), tuple])
def test_container_of_tensors(wrap):
    x = tg.tensor(2.0, requires_grad=True)
    with pytest.raises(TypeError, match="of tensors; pass the tensors as arguments of their own"):
        squares(wrap([x, x]))
    z = scaled(x)  # the advice
    z.backward()
    assert float(x.grad.detach().numpy()) == 108.0
