"""`testing.check_grads` passes right derivatives and catches wrong ones."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.testing import check_grads, numerical_jvp

A = np.array([0.3, 1.2, 0.7])


def function(factor=1.0, second=1.0):
    """x³ whose first and second derivatives are wrong by factors."""

    class Slope(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 3 * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 6 * x * second

    class Cube(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * Slope.apply(x) * factor

    return Cube.apply


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: tg.sin(x) * x,
        lambda x: x[1:] * x[:-1],
        lambda x: tg.sum(x) ** 2,
        lambda x: tg.outer(x, tg.exp(x)),
        lambda x: x @ x,
        function(),
    ],
)
def test_right_derivatives_pass(f, order):
    assert check_grads(f, [A], order=order) is None


def test_several_arguments_of_all_kinds():
    check_grads(lambda x, y, z: x * y + z, [A, tg.tensor(2.0), 3.0], order=2)
    check_grads(lambda x, n: x * n, [A, 2])
    check_grads(lambda x: tg.tanh(x), [A.astype(np.float32)])
    check_grads(lambda x: x * 2, [tg.tensor(A, requires_grad=True)])


@pytest.mark.parametrize("factor", [0.0, 1.001, 2.0, -1.0])
def test_wrong_derivative_is_caught(factor):
    with pytest.raises(AssertionError, match="derivative of order 1 is wrong"):
        check_grads(function(factor), [A])


def test_wrong_second_derivative_is_caught_at_order_two():
    f = function(1.0, second=1.01)
    check_grads(f, [A], order=1)
    with pytest.raises(AssertionError, match="derivative of order 2 is wrong"):
        check_grads(f, [A], order=2)


def test_wrong_for_one_argument_only():
    class Product(tg.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            _x, y = ctx.saved_tensors
            return g * y, g * y

    with pytest.raises(AssertionError, match="wrong"):
        check_grads(Product.apply, [A, 2 * A])


def test_missing_gradient_is_caught():
    with pytest.raises(AssertionError, match="wrong"):
        check_grads(lambda x: x * tg.as_tensor(x).detach(), [A])


def test_wrong_under_given_tolerances():
    f = function(1.001)
    check_grads(f, [A], rtol=0.1, atol=0.1)
    with pytest.raises(AssertionError):
        check_grads(f, [A], rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError):
        check_grads(tg.sin, [A], rtol=0.0, atol=0.0)  # zero is a tolerance, too


def test_kinks_are_found():
    with pytest.raises(AssertionError):
        check_grads(lambda x: tg.relu(x) * 3, [np.zeros(3)], eps=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_seeds(seed):
    check_grads(lambda x: tg.exp(x), [A], seed=seed)


def test_arguments_are_not_changed():
    a = A.copy()
    check_grads(lambda x: x * x, [a], order=2)
    np.testing.assert_array_equal(a, A)


def test_numerical_jvp():
    found = numerical_jvp(lambda x, y: tg.sin(x) * y, [A, A], [np.ones(3), np.zeros(3)], 1e-3)
    np.testing.assert_allclose(found, np.cos(A) * A, rtol=1e-10)
