"""Writes of values with a history to the memory of the user's arrays: warned, or refused."""

import warnings

import numpy as np
import pytest

import tapegrad as tg

X = np.array([1.0, 2.0, 3.0])
HELD = "shares the memory of a NumPy array"


def of_view(view):
    def program(x):
        v = np.ones((2, 2))
        t = view(v)
        t[0] = x[0]
        return tg.sum(v)

    return program


def of_another_tensor(x):
    v = np.ones(3)
    other, written = tg.asarray(v), tg.asarray(v)
    written[0] = x[1]
    return tg.sum(tg.sin(other))


def of_a_part(x):
    v = np.ones(3)
    tg.as_tensor(v)[1:][0] = x[1]
    return tg.sum(v * x)


def of_output(x):
    v = np.ones(3)
    np.multiply(x, 2.0, out=tg.as_tensor(v))
    return tg.sum(v * x)


def of_arithmetic(x):
    v = np.ones(3)
    t = tg.as_tensor(v)
    t *= x
    return tg.sum(v * x)


class Fill(tg.Function):
    @staticmethod
    def forward(ctx, target, x):
        ctx.mark_dirty(target)
        target[...] = x
        return target

    @staticmethod
    def backward(ctx, g):
        return tg.zeros_like(g), g

    @staticmethod
    def jvp(ctx, target, x):
        target[...] = x
        return target


def of_function(x):
    v = np.ones(3)
    Fill.apply(tg.as_tensor(v), x * 1.0)
    return tg.sum(v * x)


PROGRAMS = {
    "transpose": of_view(tg.transpose),
    "reshape": of_view(lambda v: tg.reshape(v, (4,))),
    "flip": of_view(lambda v: tg.flip(v, 0)),
    "split": of_view(lambda v: tg.split(v, 2)[0][0]),
    "from_dlpack": of_view(tg.from_dlpack),
    "another tensor": of_another_tensor,
    "part": of_a_part,
    "output": of_output,
    "arithmetic": of_arithmetic,
    "function": of_function,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_transform_refuses(program):
    for derivative in (tg.grad(program), tg.grad(tg.jit(program)), tg.value_and_grad(program)):
        with pytest.raises(RuntimeError, match=HELD):
            derivative(X)


@pytest.mark.parametrize("program", [PROGRAMS[name] for name in PROGRAMS if name != "function"])
def test_a_tangent_is_noted(program):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((RuntimeError, tg.DetachedWarning), match=HELD):
            tg.jvp(program)(X, X)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_without_a_transform_it_warns_at_the_line(program):
    with pytest.warns(tg.DetachedWarning, match=HELD) as found:
        program(tg.tensor(X, requires_grad=True))
    assert found[0].filename == __file__


def test_the_way_out():
    def filled(v, x):
        t = tg.array(v)
        t[0] = x[0]
        return tg.sum(t * x)

    np.testing.assert_allclose(tg.grad(filled, argnums=1)(np.ones(3), X), [2.0, 1.0, 1.0])


def test_what_has_no_history_may_be_written():
    v = np.ones(3)
    t = tg.as_tensor(v)
    x = tg.tensor(X, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t[0] = x[0].detach()
        t[1] = 5.0
        with tg.no_grad():
            t[2] = x[2]
    np.testing.assert_array_equal(v, [1.0, 5.0, 3.0])


def test_it_is_said_once():
    t = tg.as_tensor(np.ones(3))
    x = tg.tensor(X, requires_grad=True)
    with pytest.warns(tg.DetachedWarning, match=HELD):
        t[0] = x[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t[1] = x[1]
        tg.sum(t * t).backward()
    np.testing.assert_allclose(x.grad, [2.0, 4.0, 0.0])
