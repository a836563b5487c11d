"""Results do not depend on how many blocks and threads there are, or on their order.

numba's simulator runs one block after the other; here it runs them in a random order.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda import toolkit
from tapegrad.cuda.numeric import codegen

pytestmark = pytest.mark.skipif(not toolkit.is_simulated(), reason="the device is not simulated")

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (5, 7))
LONG = RNG.uniform(-1.0, 1.0, 1100)
PLACES = np.array([3, 0, 3, 3, 1, 0])


def repeated(x):
    return x[PLACES % 5]


def written(x):
    y = x * 1.0
    y[PLACES % 5] = tg.sin(x)[PLACES[::-1] % 5]
    return y


PROGRAMS = {
    "elementwise": (lambda x: tg.tanh(x.T) * x.T[::-1], X),
    "sums": (lambda x: x.sum(axis=0) * tg.max(x, axis=0), X),
    "sums of rows": (lambda x: tg.logsumexp(x, axis=1), X),
    "sum of many": (lambda x: x.sum() + tg.square(x).sum(), LONG),
    "product": (lambda x: x @ x.T, X),
    "scan": (lambda x: tg.cumsum(x, 1), X),
    "long scan": (tg.cumsum, LONG),
    "sort": (lambda x: tg.sort(x, axis=0), X),
    "repeated indices": (repeated, X),
    "written": (written, X),
    "overlapping": (lambda x: overlapping(x * 1.0), X),
}


def overlapping(y):
    y[1:] = y[:-1] * 2.0
    y[:, ::-1] += y
    return y


def outcome(program, values):
    x = tg.tensor(values, device="cuda", requires_grad=True)
    z = program(x)
    seed = np.cos(np.arange(z.size)).reshape(z.shape)
    (g,) = tg.autograd.grad(z, x, tg.tensor(seed, device="cuda"))
    return z.detach().cpu().numpy(), g.cpu().numpy()


@pytest.fixture
def deterministic():
    tg.use_deterministic_algorithms(True)
    yield
    tg.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", PROGRAMS)
def test_result(name, monkeypatch):
    from numba.cuda.simulator import kernel

    program, values = PROGRAMS[name]
    expected = outcome(program, values)
    rng = np.random.default_rng(0)
    ndindex = np.ndindex

    class Shuffled:
        def __getattr__(self, attribute):
            return getattr(np, attribute)

        def ndindex(self, *shape):
            return rng.permutation([*ndindex(*shape)]).tolist()

    monkeypatch.setattr(kernel, "np", Shuffled())
    monkeypatch.setattr(codegen, "_blocks", lambda count: 3)
    monkeypatch.setattr(codegen, "most_blocks", lambda: 4)
    monkeypatch.setattr(codegen, "threads", lambda: 3)
    for got, want in zip(outcome(program, values), expected, strict=True):
        if name == "sum of many":  # of other chunks
            np.testing.assert_allclose(got, want, 1e-13)
        else:
            np.testing.assert_allclose(got, want, 1e-14, 1e-15)
