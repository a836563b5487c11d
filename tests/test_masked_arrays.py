"""Arrays with masks: a tensor has none, so that they are refused wherever one comes in."""

import numpy as np
import pytest

import tapegrad as tg

MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
SQUARE = np.ma.array(np.eye(2), mask=[[False, True], [True, False]])


def assigned(x):
    z = tg.zeros(2)
    z[:] = MASKED
    return z


def added_in_place(x):
    z = x * 1.0
    z += MASKED
    return z


CALLS = {
    "tensor": lambda x: tg.tensor(MASKED),
    "as_tensor": lambda x: tg.as_tensor(MASKED),
    "an operator": lambda x: x * MASKED,
    "a ufunc": lambda x: np.add(x, MASKED),
    "a function": lambda x: tg.sin(MASKED),
    "a reduction": lambda x: tg.sum(MASKED),
    "a composite": lambda x: tg.mean(MASKED),
    "a bound": lambda x: tg.clip(x, MASKED, None),
    "where": lambda x: tg.where([True, False], x, MASKED),
    "concatenate": lambda x: tg.concatenate([x, MASKED]),
    "stack": lambda x: tg.stack([x, MASKED]),
    "matmul": lambda x: x @ SQUARE,
    "inv": lambda x: tg.linalg.inv(SQUARE),
    "einsum": lambda x: tg.einsum("i,i", x, MASKED),
    "a list": lambda x: tg.array([x, MASKED]),
    "an index": lambda x: x[MASKED > 1.5],
    "an assignment": assigned,
    "in place": added_in_place,
    "grad": lambda x: tg.grad(tg.sum)(MASKED),
}


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_refused(name, tracked):
    x = tg.tensor([1.0, 2.0], requires_grad=tracked)
    with pytest.raises(TypeError, match=r"tensors have no masks.*x\.filled"):
        CALLS[name](x)


def test_ways_out():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    (x * MASKED.filled(0.0)).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]
    assert tg.tensor(MASKED.compressed()).tolist() == [1.0]
    chosen = tg.where(~MASKED.mask, x, 0.0)
    assert tg.autograd.grad(chosen.sum(), x)[0].tolist() == [1.0, 0.0]
