"""Memory of results that died is used for later results, and for nothing else."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

import tapegrad as tg
from tapegrad.kernels import pool
from tapegrad.kernels.structs import address_of

COUNT = 100_000


@pytest.fixture(autouse=True)
def _pool():
    tg.set_pool_limit(0)  # gives back what other tests left
    tg.set_pool_limit(None)
    yield
    tg.set_pool_limit(0)
    tg.set_pool_limit(None)
    assert get_handler_name() == "default_allocator"


def waiting():
    """Return how many blocks of memory wait."""
    blocks = int(np.count_nonzero(pool.table[: pool.PLACES]))
    assert (pool.table[pool.WAITING] != 0) == (blocks != 0)
    return blocks


def made_by(array):
    return get_handler_name(array if array.base is None else array.base)


def leaf(count=COUNT):
    return tg.tensor(np.linspace(0.1, 0.9, count), requires_grad=True)


CALLS = {
    "unary": lambda x: tg.exp(x),
    "compiled": lambda x: tg.sin(x),
    "binary": lambda x: x * x,
    "number": lambda x: x * 2.0,
    "reflected": lambda x: 2.0 / x,
    "general": lambda x: x + np.ones(COUNT),
    "python rule": lambda x: tg.cumsum(x),
    "product": lambda x: x[:90000].reshape(300, 300) @ x[:90000].reshape(300, 300),
    "cast": lambda x: tg.where(x.detach() > 0.5, x, 0.0),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("recorded", [True, False])
def test_results_take_memory_of_results_that_died(name, recorded):
    x = leaf() if recorded else leaf().detach()
    leaf()  # an aval of large arrays is known
    with tg.set_grad_enabled(recorded):
        made = CALLS[name](x)
        assert made_by(made._a) == "tapegrad_pool"
        address, values = address_of(made._a), made._a.copy()
        del made
        assert waiting() == 1
        again = CALLS[name](x)
    assert address_of(again._a) == address
    np.testing.assert_array_equal(again._a, values)


def test_arrays_of_others_are_not_affected():
    x = leaf()
    (tg.exp(x) * x).sum().backward()
    assert get_handler_name(np.empty(COUNT)) == "default_allocator"
    assert get_handler_name() == "default_allocator"


def test_small_results_are_not_kept():
    leaf()
    x = leaf(100)
    for _ in range(10):
        tg.exp(x)
    assert waiting() == 0


def test_gradients_are_right_while_memory_is_reused():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(300, 200))
    expected = None
    for _ in range(5):
        x = tg.tensor(data, requires_grad=True)
        y = tg.tanh(x @ tg.tensor(np.eye(200) * 0.5)) * tg.exp(-x * x) + tg.cumsum(x, axis=0)
        (y * y).sum().backward()
        if expected is None:
            expected = x.grad.numpy().copy()
        np.testing.assert_array_equal(x.grad.numpy(), expected)
        del x, y
    step, at = 1e-6, (17, 33)
    moved = []
    for sign in (1.0, -1.0):
        z = data.copy()
        z[at] += sign * step
        w = np.tanh(z * 0.5) * np.exp(-z * z) + np.cumsum(z, axis=0)
        moved.append((w * w).sum())
    assert expected[at] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-4)


def test_an_array_outlives_its_tensor():
    x = leaf()
    kept = tg.exp(x).detach().numpy()
    values = kept.copy()
    for _ in range(3):
        tg.exp(x * 2.0)
    np.testing.assert_array_equal(kept, values)


def test_zeros_are_zero_in_used_memory():
    filled = pool.pooled(np.full, COUNT, 7.0)
    address = address_of(filled)
    del filled
    found = pool.pooled(np.zeros, COUNT)
    assert address_of(found) == address
    assert not found.any()


def test_a_slightly_smaller_array_takes_a_block_but_a_much_smaller_one_does_not():
    address = address_of(pool.pooled(np.empty, COUNT))
    smaller = pool.pooled(np.empty, COUNT - COUNT // 20)
    assert address_of(smaller) == address
    del smaller
    assert address_of(pool.pooled(np.empty, COUNT // 2)) != address


def test_an_array_can_be_resized():
    found = pool.pooled(np.arange, COUNT * 1.0)
    found.resize(2 * COUNT, refcheck=False)
    np.testing.assert_array_equal(found[:COUNT], np.arange(COUNT))
    assert not found[COUNT:].any()
    found.resize(10, refcheck=False)
    np.testing.assert_array_equal(found, np.arange(10))


def test_the_limit_holds():
    tg.set_pool_limit(20 * COUNT)
    arrays = [pool.pooled(np.empty, COUNT) for _ in range(4)]
    del arrays
    assert waiting() == 2
    assert 16 * COUNT <= pool.table[pool.WAITING] <= 20 * COUNT
    tg.set_pool_limit(10 * COUNT)
    assert waiting() == 1
    pool.pooled(np.empty, 2 * COUNT)  # larger than what may wait
    assert waiting() == 1
    tg.set_pool_limit(0)
    assert waiting() == 0
    pool.pooled(np.empty, COUNT)
    assert waiting() == 0


def test_memory_that_nothing_takes_makes_room():
    tg.set_pool_limit(20 * COUNT)
    del [pool.pooled(np.empty, COUNT) for _ in range(2)][:]
    for _ in range(4):
        del [pool.pooled(np.empty, COUNT // 3) for _ in range(3)][:]
    address = address_of(pool.pooled(np.empty, COUNT // 3))
    assert address_of(pool.pooled(np.empty, COUNT // 3)) == address
    assert pool.table[pool.WAITING] <= 20 * COUNT


def test_no_more_than_a_number_of_blocks_waits():
    size = pool.LEAST // 8
    arrays = [pool.pooled(np.empty, size) for _ in range(pool.PLACES + 10)]
    del arrays
    assert waiting() == pool.PLACES


@pytest.mark.parametrize(
    ("limit", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)]
)
def test_wrong_limits_are_refused(limit, error):
    with pytest.raises(error, match="set_pool_limit"):
        tg.set_pool_limit(limit)


def test_memory_that_does_not_exist_is_an_error():
    with pytest.raises(MemoryError):
        pool.pooled(np.empty, 1 << 58, np.uint8)
    assert pool.pooled(np.ones, 5).sum() == 5


def test_an_error_inside_restores_the_allocator():
    leaf()
    x = tg.tensor(np.ones((400, 300)), requires_grad=True)
    with pytest.raises(ValueError, match="matmul"):
        x @ x
    assert get_handler_name() == "default_allocator"


def test_calls_may_be_nested():
    inner = []

    def outer():
        inner.append(pool.pooled(np.empty, COUNT))
        return np.empty(COUNT)

    assert made_by(pool.pooled(outer)) == made_by(inner[0]) == "tapegrad_pool"


def test_threads_share_the_pool():
    found = {}

    def run(k):
        x = tg.tensor(np.full(COUNT, float(k)), requires_grad=True)
        for _ in range(20):
            y = tg.exp(x * 0.1)
        y.sum().backward()
        found[k] = x.grad.numpy()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        np.testing.assert_allclose(found[k], 0.1 * np.exp(0.1 * k), rtol=1e-14)


def test_arrays_may_live_until_the_process_ends():
    program = (
        "import sys, numpy as np, tapegrad as tg\n"
        f"x = tg.tensor(np.ones({COUNT}), requires_grad=True)\n"
        "sys.kept = [tg.exp(x), tg.exp(x).detach().numpy()]\n"
        "import builtins; builtins.kept = tg.exp(x).detach().numpy()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
