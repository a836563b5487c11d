"""Recordings for large arrays: elements are computed only where something needs them."""

import functools
import itertools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.eager import traced_calls
from tapegrad.ops import products
from tapegrad.ops.table.op import TABLE

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_arrays_are_large(monkeypatch):
    monkeypatch.setattr(traced_calls, "_LARGE", 6)


def nodes_of(function, *arrays):
    """Whether elements of values are unset, and their strides, while they are recorded."""
    found = {}

    def noted(*tensors):
        results = function(*tensors)
        for name, tensor in results.items():
            found[name] = tensor._node.is_unset, tensor._node.like.strides
        return [*results.values()]

    tg.jit(noted)(*arrays)
    return found


def test_elements_of_functions_of_numbers_are_not_computed():
    def function(x):
        y = tg.sin(x) * 2.0
        return {"y": y, "sum": tg.sum(y), "view": y[1:], "mask": y > 0.0, "few": x[:1] + 1.0}

    found = nodes_of(function, RNG.normal(size=10))
    assert {name for name, (is_unset, _) in found.items() if is_unset} == {
        "y", "sum", "view", "mask",
    }  # fmt: skip


SHAPES = [(3, 4), (4,), (1, 4), (3, 1), (2, 3, 4), (2, 1, 1), ()]


@pytest.mark.compiled
@pytest.mark.parametrize("shapes", [*itertools.product(SHAPES, SHAPES)], ids=str)
def test_layouts_and_dtypes_are_those_of_numpy(shapes):
    arrays = [RNG.normal(size=shape) for shape in shapes]
    found = nodes_of(
        lambda x, y: {
            "sum": x + y, "single": x.astype("float32") * y.astype("float32"),
            "mixed": x.astype("float32") - y, "complex": x + y * 1j, "less": x < y,
            "chosen": tg.where(x < y, x, 0.0), "order": tg.cos(tg.transpose(x + y)),
        },
        *arrays,
    )  # fmt: skip
    x, y = arrays
    expected = {
        "sum": x + y, "single": x.astype("float32") * y.astype("float32"),
        "mixed": x.astype("float32") - y, "complex": x + y * 1j, "less": x < y,
        "chosen": np.where(x < y, x, 0.0), "order": np.cos(np.transpose(x + y)),
    }  # fmt: skip
    for name, array in expected.items():
        assert found[name][1] == np.asarray(array).strides, name


MATRICES = {
    "matrices": lambda x, y: (x[0], y[0]),
    "stacks": lambda x, y: (x, y),
    "a stack and a matrix": lambda x, y: (x, y[0]),
    "one matrix with a stack": lambda x, y: (x[:1], y),
    "transposes": lambda x, y: (tg.swapaxes(y, 1, 2), tg.swapaxes(x, 1, 2)),
    "stacks in another order": lambda x, y: (tg.moveaxis(x, 0, 1), y[2::-1]),
    "columns and rows": lambda x, y: (x[..., :1], y[:, :1]),
    "vectors": lambda x, y: (x, y[..., :1]),
}


@pytest.mark.compiled
@pytest.mark.parametrize("form", MATRICES)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_products_are_not_computed(form, dtype, monkeypatch):
    x, y = RNG.normal(size=(4, 3, 5)).astype(dtype), RNG.normal(size=(4, 5, 6)).astype(dtype)
    computed = []

    def product(x, y):
        computed.append(x.size * y.size)
        return np.matmul(x, y)

    monkeypatch.setattr(products.matmul, "function", product)
    found = nodes_of(lambda x, y: {"product": tg.matmul(*MATRICES[form](x, y))}, x, y)
    one, other = (part.numpy() for part in MATRICES[form](tg.tensor(x), tg.tensor(y)))
    assert found["product"] == (True, np.matmul(one, other).strides)
    assert computed == [0]


def test_products_that_do_not_fit_raise():
    @tg.jit
    def product(x, y):
        return x @ y

    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        product(np.ones((30, 40)), np.ones((30, 40)))


def test_a_callback_gets_the_elements():
    seen = []

    class Product(tg.Function):
        @staticmethod
        def forward(ctx, x, y):
            seen.append((x.numpy().copy(), y.numpy().copy()))
            return x * y

        @staticmethod
        def backward(ctx, g):
            raise NotImplementedError

    x = RNG.normal(size=(5, 3))

    @tg.jit
    def function(x):
        y = tg.exp(x) + x
        row = y[1:, ::2]
        return tg.sum(Product.apply(row, tg.reshape(y, -1)[:8].reshape(4, 2)))

    value = function(x)
    y = np.exp(x) + x
    row, flat = y[1:, ::2], y.reshape(-1)[:8].reshape(4, 2)
    np.testing.assert_allclose(value, np.sum(row * flat))
    for arrays in seen:
        np.testing.assert_allclose(arrays[0], row)
        np.testing.assert_allclose(arrays[1], flat)


def test_indices_that_are_computed_from_elements():
    table = RNG.normal(size=7)

    @tg.jit
    def function(x):
        places = tg.floor(tg.sin(x) * 3.0 + 3.0).astype("int64")
        order = tg.argsort(tg.cos(x))
        return tg.sum(tg.as_tensor(table)[places] * x[order])

    for x in RNG.normal(size=(3, 9)):
        places = np.floor(np.sin(x) * 3.0 + 3.0).astype("int64")
        expected = np.sum(table[places] * x[np.argsort(np.cos(x))])
        np.testing.assert_allclose(function(x), expected)


def test_matrices_that_are_inverted():
    @tg.jit
    def function(a):
        spd = tg.sin(a) @ tg.sin(a).T + 3.0 * np.eye(4)
        return tg.sum(tg.linalg.inv(spd * 2.0)) + tg.linalg.slogdet(tg.linalg.cholesky(spd))[1]

    for a in RNG.normal(size=(3, 4, 4)):
        spd = np.sin(a) @ np.sin(a).T + 3.0 * np.eye(4)
        expected = np.sum(np.linalg.inv(spd * 2.0)) + np.linalg.slogdet(spd)[1] / 2
        np.testing.assert_allclose(function(a), expected)


def test_writes_to_what_is_not_computed():
    def function(lib, x):
        y = lib.sin(x) + 0.0
        view = y[1:4]
        y[2] = 5.0
        view *= 2.0
        return lib.sum(y * y) + lib.sum(view)

    jitted = tg.jit(functools.partial(function, tg))
    for x in RNG.normal(size=(3, 9)):
        np.testing.assert_allclose(jitted(x), function(np, x))


def test_no_function_of_numbers_runs_on_large_arrays(monkeypatch):
    monkeypatch.setattr(traced_calls, "_LARGE", 1 << 14)
    sizes = []
    for name in ("sin", "exp", "multiply"):
        forward = TABLE[name].forward

        def noted(*args, _forward=forward):
            sizes.append(max(map(np.size, args)))
            return _forward(*args)

        monkeypatch.setattr(TABLE[name], "forward", noted)
    jitted = tg.jit(lambda x: tg.sum(tg.sin(x) * tg.exp(x) * 2.0))
    x = RNG.normal(size=1 << 15)
    np.testing.assert_allclose(jitted(x), np.sum(np.sin(x) * np.exp(x) * 2.0))
    assert len(sizes) == 4 and max(sizes) == 1
