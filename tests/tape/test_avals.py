"""The table of shapes and dtypes."""

import threading

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.tape import avals
from tapegrad.tape.avals import AVALS, FLOAT32, FLOAT64
from tapegrad.tape.tape import TAPE


def described(number):
    """What the table says of an aval, in Python and for compiled code."""
    words = AVALS.words[number]
    shape = tuple(words[avals.AVAL_DIMS : avals.AVAL_DIMS + words[avals.AVAL_NDIM]].tolist())
    return AVALS.kind(number)[:2], shape, int(words[avals.AVAL_SIZE])


def test_many_shapes_take_little_memory():
    """Those that nobody uses are forgotten; the others keep their numbers."""
    held = {}
    for n in range(1, 100_001):
        dtype = FLOAT32 if n % 3 else FLOAT64
        number = AVALS.of_type((n, 2), dtype)
        if n % 50 == 0:
            held[n, dtype] = number
    for (n, dtype), number in held.items():
        assert AVALS.of_type((n, 2), dtype) == number
        assert described(number) == (((n, 2), dtype), (n, 2), 2 * n)
    assert len({*held.values()}) == len(held)
    assert len(AVALS.ids) <= avals.MOST
    assert len(AVALS.words) <= 4 * avals.MOST
    assert len({*AVALS.ids.values()}) == len(AVALS.ids)


@pytest.fixture
def many_shapes():
    """Numbers that may be forgotten are given to new shapes."""
    for k in range(avals.KEPT):
        AVALS.of_type((10**6, k), FLOAT64)


def forget():
    with AVALS._lock:
        AVALS._forget()


def new_shapes(first):
    forget()
    for n in range(first, first + 20):
        AVALS.of_type((n, 3, 1), FLOAT64)
        AVALS.of_type((n, 3, 2), np.dtype(complex))


def test_shapes_of_records_are_kept(many_shapes):
    """Also in the middle of a backward pass, and where only a record has a shape."""
    x = tg.tensor(np.ones((5, 601)), requires_grad=True)
    y = (x * 2).reshape(601, 5)
    new_shapes(1000)
    z = tg.sin(y[:600]).reshape(300, 10)
    y.register_hook(lambda g: new_shapes(2000))
    del y
    new_shapes(3000)
    total = z.sum(axis=0).sum()
    del z
    new_shapes(4000)
    total.backward(retain_graph=True)
    new_shapes(5000)
    expected = np.where(np.arange(3005) < 3000, 2 * np.cos(2), 0).reshape(5, 601)
    np.testing.assert_allclose(x.grad.numpy(), expected)
    (again,) = tg.autograd.grad(total, x, create_graph=True)
    np.testing.assert_allclose(again.detach().numpy(), expected)


def test_shapes_are_kept_while_a_sweep_runs(many_shapes):
    number = AVALS.of_type((77, 7, 7), FLOAT64)
    found = int(str(number))  # as compiled code has it
    del number
    TAPE.begin_sweep(1)
    try:
        new_shapes(6000)
        assert described(found)[0] == ((77, 7, 7), FLOAT64)
    finally:
        TAPE.sweeping.pop(1)
    forget()
    assert found not in AVALS.ids.values()


def test_threads(many_shapes):
    """Each has the number of its own shape, although another one has just forgotten it."""
    wrong = []

    def work(first):
        for n in range(first, first + 60):
            shape = (n % 40 + 1, 5, 5, 5)
            number = AVALS.of(np.broadcast_to(1.0, shape))
            forget()
            if described(number)[0] != (shape, FLOAT64):
                wrong.append(shape)

    threads = [threading.Thread(target=work, args=(20 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
