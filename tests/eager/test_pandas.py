"""Series and frames of pandas beside tensors: right, or refused with a way out."""

import numpy as np
import pandas as pd
import pytest

import tapegrad as tg

S = pd.Series([1.0, 2.0])
F = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]])
OPERATORS = {
    "s * t": lambda s, t: s * t,
    "t * s": lambda s, t: t * s,
    "s + t": lambda s, t: s + t,
    "s - t": lambda s, t: s - t,
    "t - s": lambda s, t: t - s,
    "s / t": lambda s, t: s / t,
    "t / s": lambda s, t: t / s,
    "s ** t": lambda s, t: s**t,
}


def tensor(requires_grad=True):
    return tg.tensor([3.0, 4.0], requires_grad=requires_grad)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("data", [S, F], ids=["series", "frame"])
def test_operators(data, name):
    apply = OPERATORS[name]
    expected = apply(data.to_numpy(), np.array([3.0, 4.0]))
    for requires_grad in (False, True):
        t = tensor(requires_grad)
        found = apply(data, t)
        assert isinstance(found, tg.Tensor)
        assert found.requires_grad is requires_grad
        np.testing.assert_allclose(found.detach().numpy(), expected)
    gradient = tg.grad(lambda t: tg.sum(apply(data, t)))(np.array([3.0, 4.0]))
    exact = tg.grad(lambda t: tg.sum(apply(data.to_numpy(), t)))(np.array([3.0, 4.0]))
    np.testing.assert_array_equal(gradient, exact)


def test_products_of_matrices():
    t = tensor()
    np.testing.assert_array_equal((t @ F).detach().numpy(), [15.0, 22.0])
    np.testing.assert_array_equal(np.dot(F, t).detach().numpy(), [11.0, 25.0])
    with pytest.raises(RuntimeError, match=r"df\.to_numpy\(\) @ t"):
        F @ t
    (F.to_numpy() @ t).sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), [4.0, 6.0])


@pytest.mark.parametrize("call", [lambda t: pd.Series(t), lambda t: S.dot(t), lambda t: F.dot(t)])
def test_methods_are_refused(call):
    with pytest.raises(RuntimeError, match=r"pandas computes with arrays: take those"):
        call(tensor())


def test_arguments_of_transforms_and_functions():
    np.testing.assert_array_equal(tg.grad(lambda s: tg.sum(s**2))(S), [2.0, 4.0])
    t = tensor()
    np.testing.assert_array_equal(np.where(S > 1, t, 0.0).detach().numpy(), [0.0, 4.0])
    np.testing.assert_array_equal(t[S.astype(int) - 1].detach().numpy(), [3.0, 4.0])
    np.testing.assert_array_equal(tg.tensor(F).numpy(), F.to_numpy())
