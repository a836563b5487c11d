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
    "a masked number": lambda x: x * MASKED[1],
    "a comparison": lambda x: x > MASKED,
    "a comparison of NumPy": lambda x: np.equal(x, MASKED),
    "a list without a tensor": lambda x: tg.stack([MASKED, MASKED]),
    "vstack": lambda x: tg.vstack([MASKED, MASKED]),
    "hstack": lambda x: tg.hstack([MASKED, MASKED]),
    "dstack": lambda x: tg.dstack([MASKED, MASKED]),
    "column_stack": lambda x: tg.column_stack([MASKED, MASKED]),
    "block": lambda x: tg.block([MASKED, MASKED]),
    "einsum of arrays": lambda x: tg.einsum("i,i", MASKED, MASKED),
    "select": lambda x: tg.select([np.array([True, False])], [MASKED]),
    "interp": lambda x: tg.interp(1.5, MASKED, MASKED),
    "multi_dot": lambda x: tg.linalg.multi_dot([SQUARE, SQUARE]),
    "argmax": lambda x: tg.argmax(MASKED),
    "searchsorted": lambda x: tg.searchsorted(MASKED, 1.5),
    "choose": lambda x: np.choose(np.array([0, 1]), [x, MASKED]),
    "repeat": lambda x: tg.repeat(x, np.ma.array([1, 2], mask=[False, True])),
    "take": lambda x: np.take(x, np.ma.array([0, 1], mask=[False, True])),
    "take_along_axis": lambda x: tg.take_along_axis(x, np.ma.array([0, 1], mask=[False, True])),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, MASKED),
    "piecewise": lambda x: np.piecewise(x, [MASKED > 1.5], [1.0, 2.0]),
    "delete": lambda x: np.delete(x, np.ma.array([0], mask=[True])),
    "insert": lambda x: np.insert(x, np.ma.array([0], mask=[True]), 1.0),
}


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_refused(name, tracked):
    x = tg.tensor([1.0, 2.0], requires_grad=tracked)
    with pytest.raises(TypeError, match=r"tensors have no masks.*x\.filled"):
        CALLS[name](x)


def test_cotangents():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = x * 1.0
    for sweep in (y.backward, lambda g: tg.autograd.grad(y, x, g)):
        with pytest.raises(TypeError, match="tensors have no masks"):
            sweep(MASKED)


def test_ways_out():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    (x * MASKED.filled(0.0)).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]
    assert tg.tensor(MASKED.compressed()).tolist() == [1.0]
    chosen = tg.where(~MASKED.mask, x, 0.0)
    assert tg.autograd.grad(chosen.sum(), x)[0].tolist() == [1.0, 0.0]
