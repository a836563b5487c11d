"""Compiled tangents of elementwise ops, reductions and views, beside those of walks on tensors."""

import tracemalloc

import numpy as np
import pytest
from cases import ALL, names_of

import tapegrad as tg
from tapegrad.autograd import tangents
from tapegrad.ops.table.kinds import SweptOp, View
from tapegrad.ops.table.op import TABLE
from tapegrad.tape.tangents import LARGE

COMPILED = [case for case in ALL if isinstance(TABLE[case[0]], SweptOp | View)]


@pytest.fixture(autouse=True)
def _all_walks_are_compiled(monkeypatch):
    monkeypatch.setattr(tangents, "_FEW", 0)


def compare(f, *xs, rtol=1e-12, atol=1e-13):
    """Compare tangents of a function of arrays with those that are recorded, tensor by tensor."""
    rng = np.random.default_rng(1)
    ts = [rng.normal(size=x.shape).astype(x.dtype) for x in xs]
    numbers = tuple(range(len(xs)))
    value, found = tg.jvp(f, numbers)(*xs, *ts)
    recorded = [tg.tensor(t, requires_grad=True) for t in ts]
    wanted = tg.jvp(f, numbers)(*xs, *recorded)[1].detach().numpy()
    assert found.dtype == wanted.dtype
    assert np.shape(found) == wanted.shape == np.shape(value)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)
    return found


@pytest.mark.parametrize("case", COMPILED, ids=names_of)
def test_every_op(case):
    name, args, given = case
    op = TABLE[name]
    differentiated = [
        k
        for k, (argument, value) in enumerate(zip(op.arguments, args, strict=False))
        if argument in op.differentiable and np.asarray(value).dtype.kind == "f"
    ]
    if not differentiated:
        pytest.skip("has no real arguments")

    def f(*chosen):
        full = [np.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
        for k, x in zip(differentiated, chosen, strict=True):
            full[k] = x
        return op.public(*full, **given) * 1.0

    result = f(*(np.asarray(args[k], float) for k in differentiated))
    if np.asarray(result).dtype.kind != "f":
        pytest.skip("its result is not real")
    compare(f, *(np.asarray(args[k], float) for k in differentiated))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(7, 5), (90, 60), (1, 5), (0, 5)])
class TestLayouts:
    """Small and large arrays, float64 and float32."""

    @pytest.fixture
    def check(self, shape, dtype):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[1]).astype(dtype)
        options = {} if dtype == np.float64 else {"rtol": 2e-4, "atol": 2e-4}
        return lambda f: compare(f, x, y, **options)

    def test_broadcast_operands(self, check):
        check(lambda x, y: tg.sin(x * y) / (2.0 + y**2))
        check(lambda x, y: y - x[:, :1] * y)
        check(lambda x, y: tg.where(x > y, x * y, y))

    def test_reductions(self, check):
        for axis in (None, 0, 1, (0, 1), -1):
            for kept in (False, True):
                check(lambda x, y: tg.sum(x * y, axis=axis, keepdims=kept))
                check(lambda x, y: tg.sum(tg.exp(x - y), axis=axis, keepdims=kept) * y[0])
        check(lambda x, y: tg.mean(x, axis=1) + tg.sum(y))

    def test_of_maxima(self, check, shape):
        if shape[0]:
            check(lambda x, y: tg.max(x * y, axis=0))
            check(lambda x, y: tg.exp(x - tg.max(x)) * tg.min(y))
            check(lambda x, y: tg.logsumexp(x * y, axis=1, keepdims=True) - x)

    def test_views(self, check):
        check(lambda x, y: x[1:, ::2] * y[::2])
        check(lambda x, y: (x.T * y[:, None]).reshape(-1)[2:] ** 2)
        check(lambda x, y: tg.transpose(x)[::-1].reshape(-1)[::3] * 2.0)
        check(lambda x, y: tg.broadcast_to(y, x.shape) * tg.expand_dims(x, 0)[0])

    def test_views_of_views_that_python_reads(self, check):
        check(lambda x, y: tg.cumsum(x.reshape(-1)[3:]) * 2.0)
        check(lambda x, y: tg.concatenate([x[1:].reshape(-1), y[1:], (x * y)[:, 1:].reshape(-1)]))

    def test_views_as_results(self, check):
        check(lambda x, y: x[:, 1:])
        check(lambda x, y: (x * y).T)
        check(lambda x, y: (tg.cumsum(x, axis=1) * y)[:, 1:])
        check(lambda x, y: tg.cumsum(x * y, axis=1)[1:].reshape(-1)[2:])
        check(lambda x, y: tg.cumsum(tg.exp(x), axis=0).reshape(-1)[2:][::3])

    def test_casts(self, check):
        check(lambda x, y: tg.sum(x.astype(np.float32) * y.astype(np.float64), axis=0) * y)


class TestSpecialPoints:
    def test_ties(self):
        x = np.array([[1.0, 2.0, 2.0], [2.0, 0.0, -1.0]])
        compare(lambda x: tg.max(x) * 1.0, x)
        compare(lambda x: tg.min(x * 0.0, axis=1), x)
        compare(lambda x: tg.maximum(x, 2.0) + abs(x - 2.0), x)

    def test_products_with_zeros(self):
        x = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]])
        compare(lambda x: tg.prod(x, axis=1), x)
        compare(lambda x: tg.prod(x), x)

    @pytest.mark.filterwarnings("ignore:invalid value")
    def test_nan_and_infinity(self):
        x = np.array([np.nan, np.inf, -np.inf, 1.0])
        with np.errstate(all="ignore"):
            compare(lambda x: tg.sum(tg.where(tg.isfinite(x), x, 0.0) * 2.0), x)
            compare(lambda x: tg.max(x[1:] * 2.0), x)
            compare(lambda x: tg.exp(x) * x, x)

    def test_numbers(self):
        compare(lambda x: tg.sum(x) * x + tg.max(x), np.array(0.7))
        compare(lambda x, y: x * y[0], np.array(0.7), np.ones((1, 3)))

    def test_what_does_not_depend_on_an_argument(self):
        x = np.ones((100, 100))
        _, tangent = tg.jvp(lambda x, y: tg.sum(y * 2.0), (0, 1))(x, x, x, 3 * x)
        assert tangent == 60_000
        _, tangent = tg.jvp(lambda x, y: tg.sum(y), 0)(x, x, x)
        assert tangent == 0

    def test_an_argument_as_the_result(self):
        x = np.ones((100, 100))
        _, (a, b) = tg.jvp(lambda x: (x, x[1:]))(x, 2 * x)
        np.testing.assert_array_equal(a, 2 * x)
        np.testing.assert_array_equal(b, 2 * x[1:])

    def test_results_share_no_memory(self):
        x = np.ones((100, 100))
        t = 2 * x
        _, (a, b, c) = tg.jvp(lambda x: (x, x[1:], x.reshape(-1)))(x, t)
        for one, other in ((a, b), (a, c), (b, c), (a, t)):
            assert not np.shares_memory(one, other)


@pytest.mark.parametrize("size", [10, 10 * LARGE])
def test_results_that_are_parts_of_other_tangents(size):
    x = np.linspace(0.5, 1.5, size)

    def f(x):
        part = tg.cumsum(x)[2:]
        turned = tg.exp(x).reshape(2, -1)
        later = tg.cumsum(tg.cumsum(x * 2.0) * 3.0) * 1.0
        return part, turned, later

    _, (part, turned, later) = tg.jvp(f)(x, x)
    np.testing.assert_allclose(part, np.cumsum(x)[2:])
    np.testing.assert_allclose(turned, (np.exp(x) * x).reshape(2, -1))
    np.testing.assert_allclose(later, 6.0 * np.cumsum(np.cumsum(x)))


def test_large_tangents_are_freed():
    """Of a chain, as many as are needed at a time, in memory that is reused."""
    x = np.ones(25 * LARGE)

    def chain(x):
        y = x
        for k in range(40):
            y = tg.sin(y[1:]) if k % 10 == 3 else tg.sin(y)
            y = y - tg.sum(y) * 1e-9 if k % 7 else tg.cumsum(y) * 1e-3
        return tg.sum(y)

    tg.jvp(chain)(x, x)
    tensor = tg.tensor(x, requires_grad=True)
    out = chain(tensor)
    tracemalloc.start()
    found = tangents.tangents_of([out], [tensor], [tg.tensor(x)], False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[0] is not None
    assert peak < 8 * x.nbytes
