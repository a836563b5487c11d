"""Items of a batch lie in memory as those that are computed alone, wherever the batch axis is.

Whether `ravel` of a result is a view, and so where a later write goes, follows from that.
"""

import numpy as np
import pytest

import tapegrad as tg

MATRIX = np.arange(1.0, 7.0).reshape(2, 3)
ITEMS = np.stack([MATRIX, 2 * MATRIX, 3 * MATRIX])
BATCHES = {  # arrays, and the axis of their items
    "first": (ITEMS, 0),
    "second": (np.ascontiguousarray(np.moveaxis(ITEMS, 0, 1)), 1),
    "last": (np.ascontiguousarray(np.moveaxis(ITEMS, 0, -1)), -1),
    "transposed": (np.ascontiguousarray(np.moveaxis(ITEMS, 0, -1)).transpose(2, 0, 1), 0),
}
RESULTS = {
    "product": lambda x: x * 1.0,
    "array": tg.array,
    "copy": lambda x: x.copy(),
    "zeros_like": tg.zeros_like,
    "concatenate": lambda x: tg.concatenate([x, x]),
    "stack": lambda x: tg.stack([x, x]),
    "stack of constants": lambda x: tg.stack([x, np.ones((2, 3))], axis=1),
    "where": lambda x: tg.where(x > 2, x, 0.0),
    "sort": lambda x: tg.sort(x, 0),
    "cumsum": lambda x: tg.cumsum(x, 0),
    "outer": lambda x: tg.outer(x, x),
    "einsum": lambda x: tg.einsum("ij,ij->ij", x, x),
    "astype": lambda x: x.astype(np.float32),
    "rows": lambda x: x[[0, 1]],
    "columns": lambda x: x[:, [0, 1]],
    "take": lambda x: tg.take(x, [1, 0], axis=1),
    "repeat": lambda x: tg.repeat(x, 2, axis=1),
    "tile": lambda x: tg.tile(x * 1.0, 1),
    "roll": lambda x: tg.roll(x * 1.0, 0, axis=0),
    "transpose": lambda x: x.T * 1.0,
    "order A": lambda x: tg.ravel(x.T * 1.0, order="A") * 1.0,
    "order A of a view": lambda x: tg.ravel((x * 1.0).T, order="A") * 1.0,
    "matmul": lambda x: x.T @ x,
    "sum": lambda x: tg.sum(x, axis=0),
    "zeros": lambda x: tg.zeros((2, 3)) + x,
    "pad": lambda x: tg.pad(x.T, 1),
    "fft": lambda x: tg.real(tg.fft.fft(x, axis=0)) * 1.0,
    "inv": lambda x: tg.linalg.inv(x @ x.T + 5 * np.eye(2)),
    "broadcast": lambda x: tg.broadcast_to(x[0], (2, 3)) * 1.0,
    "real": lambda x: tg.real(x * 1.0),
}


def written_before(make):
    def f(x):
        made = make(x)
        flat = made.ravel()
        made[0] = 100.0
        return flat

    return f


def written_after(make):
    def f(x):
        made = make(x)
        flat = made.ravel()
        flat[0] = 100.0
        return made

    return f


@pytest.mark.parametrize("write", [written_before, written_after])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", RESULTS)
def test_writes(name, batch, write):
    f = write(RESULTS[name])
    whole, axis = BATCHES[batch]
    items = np.moveaxis(whole, axis, 0)
    expected = np.stack([f(item) for item in items])
    np.testing.assert_allclose(tg.vmap(f, in_axes=axis)(whole), expected)
    np.testing.assert_allclose(tg.vmap(f, in_axes=axis)(tg.tensor(whole)), expected)
    np.testing.assert_allclose(tg.vmap(f, in_axes=axis, loop=True)(whole), expected)
    both = np.stack([whole, whole])
    np.testing.assert_allclose(tg.vmap(tg.vmap(f, in_axes=axis))(both)[1], expected)


@pytest.mark.compiled
@pytest.mark.parametrize("write", [written_before, written_after])
@pytest.mark.parametrize("batch", sorted(BATCHES.keys() - {"transposed"}))
@pytest.mark.parametrize("name", RESULTS)
def test_recorded_writes(name, batch, write):
    if batch != "first" and name == "pad":
        pytest.skip("compiled code has no gaps in arguments, by which NumPy orders a pad")
    f = write(RESULTS[name])
    whole, axis = BATCHES[batch]
    expected = np.stack([f(item) for item in np.moveaxis(whole, axis, 0)])
    np.testing.assert_allclose(tg.jit(tg.vmap(f, in_axes=axis))(whole), expected)


@pytest.mark.parametrize("batch", BATCHES)
def test_gradients(batch):
    def f(x):
        made = tg.sin(x)
        made.ravel()[0] = 5.0
        return tg.sum(made)

    whole, axis = BATCHES[batch]
    expected = np.cos(ITEMS)
    expected[:, 0, 0] = 0.0
    np.testing.assert_allclose(tg.vmap(tg.grad(f), in_axes=axis)(whole), expected)
    np.testing.assert_allclose(tg.jit(tg.vmap(tg.grad(f), in_axes=axis))(whole), expected)


def test_recorded_gradients_of_items_without_axes():
    y = np.array([0.5, 1.5])
    for f, expected in [
        (lambda y: tg.sum(y[None] ** 2), 2 * y),
        (lambda y: tg.sum(y) + tg.sum(y[None] * y[None]), 1 + 2 * y),
        (lambda y: tg.sum(y[None, ..., None] * 3.0), 3.0),
    ]:
        np.testing.assert_allclose(tg.jit(tg.vmap(tg.grad(f)))(y), expected)


def test_recorded_gradients_of_the_real_part_of_reals():
    def f(x):
        v = x.real
        return tg.sum(v * v).real

    np.testing.assert_allclose(tg.jit(tg.vmap(tg.grad(f)))(MATRIX), 2 * MATRIX)
    np.testing.assert_allclose(tg.jit(tg.grad(f))(MATRIX), 2 * MATRIX)
