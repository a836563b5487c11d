"""Every op of the table, recorded and op by op."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops.table.op import TABLE

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from cases import ALL, names_of
from interpreted import assert_equal, in_float32, interpret, is_compiled

# What has no compiled form yet runs op by op: ops with several results, and those for derivatives
OP_BY_OP = {
    "cofactor", "cofactor_slope", "concatenate", "eig", "eigh", "euclidean_norm",
    "full_svd", "gamma_sample", "log_gamma_curvature", "log_gamma_sample", "log_gamma_slope",
    "moved", "product", "put_view", "slogdet",
    "sparse_product", "thin_svd", "undefined",
}  # fmt: skip


def is_complex(case):
    name, args, _ = case
    arrays = [a for arg in args for a in (arg if type(arg) is list else [arg])]
    return any(np.iscomplexobj(a) for a in arrays) or name in (
        "astype", "half_fourier", "view_as_complex"
    )  # fmt: skip


@pytest.mark.parametrize("is_single", [False, True], ids=["float64", "float32"])
@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_values(case, is_single, monkeypatch):
    name, args, parameters = case
    op = TABLE[name]
    args = in_float32(args) if is_single else args

    def call(*arrays):
        return op.public(*arrays, **parameters)

    interpret(monkeypatch)
    with np.errstate(all="ignore"):
        expected = call(*args)
        jitted = tg.jit(call)
        how = jitted.inspect(*args)
        precision = (1e-5, 1e-6) if is_single else (1e-12, 1e-13)
        assert_equal(jitted(*args), expected, *precision)
    if how.startswith("op by op"):
        is_known = name in OP_BY_OP or (is_single and how.endswith(" float32\n"))
        assert is_known or is_complex(case), how


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["all", "any", "argmax", "argmin"])
def test_functions_of_rows_that_are_no_ops(name, axis, monkeypatch):
    interpret(monkeypatch)

    def f(x):
        given = x if name.startswith("arg") else x > -0.5
        return getattr(tg, name)(given, axis=axis), getattr(np, name)(given, axis)

    x = np.random.default_rng(0).normal(size=(3, 4, 2))
    jitted = tg.jit(f)
    for given in (x, np.asfortranarray(x), -x):
        assert not jitted.inspect(given).startswith("op by op")
        assert_equal(jitted(given), f(tg.tensor(given)))


@pytest.mark.parametrize(
    "name", ["sum", "max", "any", "count_nonzero", "nansum", "nanmax", "nanstd", "median"]
)
def test_axes_by_position(name, monkeypatch):
    interpret(monkeypatch)
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    for f in (getattr(tg, name), getattr(np, name)):
        for axes in ((0, 2), (1,)):
            expected = getattr(np, name)(x, axes)
            assert_equal(tg.jit(lambda x: f(x, axes))(x), expected)
            assert_equal(tg.vmap(tg.jit(lambda x: f(x, axes)))(x[None])[0], expected)


@pytest.mark.compiled
def test_functions_of_rows_are_compiled():
    def f(x):
        chosen = tg.all(x > -1.0, axis=1) & ~tg.any(x > 1.5, axis=1)
        return tg.sum(tg.where(chosen, x[:, 0], 0.0)) * x[tg.argmax(x[:, 1]), 2]

    x = np.random.default_rng(1).normal(size=(6, 3))
    assert not tg.jit(f).inspect(x).startswith("op by op")
    assert_equal(tg.jit(f)(x), f(tg.tensor(x)))
    assert_equal(tg.grad(tg.jit(f))(x), tg.grad(f)(x))


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_booleans_as_numbers_are_compiled(dtype):
    def f(x):
        test = x > 0
        bounded = np.maximum(test, x) + np.hypot(test, x) + np.logaddexp(x, test)
        return np.sum(test.astype(dtype) * x + bounded + x * x**test) * (x[0] > 0).astype(dtype)

    x = np.array([0.5, -1.5, 2.5], dtype)
    jitted = tg.jit(f)
    assert_equal(tg.grad(jitted)(x), tg.grad(f)(x), 1e-6)
    assert not jitted.inspect(x).startswith("op by op")


MATRICES = {
    "inv": lambda a, b: tg.linalg.inv(a),
    "det": lambda a, b: tg.linalg.det(a),
    "solve of a vector": lambda a, b: tg.linalg.solve(a, b[..., 0]),
    "solve of a matrix": lambda a, b: tg.linalg.solve(a, b),
    "cholesky": lambda a, b: tg.linalg.cholesky(a @ np.swapaxes(a, -1, -2) + np.eye(3)),
}


def matrices(shape):
    draw = np.random.default_rng(3)
    return draw.normal(size=(*shape, 3, 3)) + 2.0 * np.eye(3), draw.normal(size=(*shape, 3, 3))


@pytest.mark.parametrize("shape", [(), (4,), (2, 2)], ids=["one", "stack", "stack of stacks"])
@pytest.mark.parametrize("name", MATRICES)
def test_linear_algebra_is_compiled(name, shape, monkeypatch):
    interpret(monkeypatch)
    f = MATRICES[name]
    if shape and name == "solve of a vector":  # NumPy takes the vectors for one matrix
        pytest.skip("no stack of vectors")
    a, b = matrices(shape)
    jitted = tg.jit(f)
    assert "tg." not in jitted.inspect(a, b)
    assert_equal(jitted(a, b), f(a, b), 1e-13, 1e-13)


@pytest.mark.parametrize("name", MATRICES)
def test_linear_algebra_of_numbers_that_are_not_finite(name, monkeypatch):
    interpret(monkeypatch)
    f = MATRICES[name]
    a, b = matrices(())
    a[1, 1] = np.nan
    with np.errstate(all="ignore"):
        assert np.isnan(tg.jit(f)(a, b)).any()
        assert np.isnan(f(a, b)).any()


def test_systems_of_numbers_that_are_not_finite(monkeypatch):
    """Their solutions are nan, those beside them are not."""
    interpret(monkeypatch)
    a, b = matrices(())
    jitted = tg.jit(tg.linalg.solve)
    assert np.isnan(jitted(a, np.where(b[0] > 0.0, np.inf, b[0]))).all()
    broken = b.copy()
    broken[1, 2] = np.inf
    found = jitted(a, broken)
    assert np.isnan(found[:, 2]).all()
    assert_equal(found[:, :2], np.linalg.solve(a, b)[:, :2], 1e-12, 1e-13)


@pytest.mark.compiled
@pytest.mark.parametrize("shape", [(), (4,)], ids=["one", "stack"])
@pytest.mark.parametrize("name", MATRICES)
def test_derivatives_of_linear_algebra(name, shape):
    if shape and name == "solve of a vector":
        pytest.skip("no stack of vectors")
    a, b = matrices(shape)
    weights = np.cos(np.arange(float(MATRICES[name](a, b).size))).reshape(
        MATRICES[name](a, b).shape
    )

    def f(a, b):
        return (MATRICES[name](a, b) * weights).sum() + 0.0 * b.sum()

    jitted = tg.jit(f)
    assert_equal(tg.grad(jitted, (0, 1))(a, b), tg.grad(f, (0, 1))(a, b), 1e-11, 1e-12)
    assert_equal(tg.jvp(jitted, (0, 1))(a, b, b, a), tg.jvp(f, (0, 1))(a, b, b, a), 1e-11, 1e-12)
    assert_equal(tg.hvp(jitted)(a, b, b), tg.hvp(f)(a, b, b), 1e-10, 1e-11)
    a = np.where(a == a.max(), np.nan, a)
    with np.errstate(all="ignore"):
        assert np.isnan(tg.grad(jitted)(a, b)).any()


@pytest.mark.parametrize("edge_order", [1, 2])
def test_central_differences_are_compiled(edge_order, monkeypatch):
    interpret(monkeypatch)

    def f(x):
        return np.gradient(x, 0.3, axis=1, edge_order=edge_order), np.gradient(x[0] * 2.0)

    x = np.random.default_rng(2).normal(size=(4, 5))
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), f(x), 1e-13, 1e-13)


def _convolution(function, mode, imaginary):
    def f(a, v):
        a, v = (a + imaginary * 0.5j * a, v - imaginary * 0.3j * v) if imaginary else (a, v)
        found = function(a, v, mode)
        total = tg.sum(np.cos(np.real(found)))
        return total + tg.sum(np.imag(found) ** 2) if imaginary else total

    return f


@pytest.mark.parametrize("imaginary", [0, 1])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize(("n", "m"), [(7, 3), (3, 7), (4, 4), (1, 5), (6, 1)])
def test_convolutions_are_compiled(n, m, function, mode, imaginary, monkeypatch):
    interpret(monkeypatch)
    f = _convolution(function, mode, imaginary)
    draw = np.random.default_rng(5)
    a, v = draw.normal(size=n), draw.normal(size=m)
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(a, v))
    assert_equal(jitted(a, v), f(a, v), 1e-12, 1e-13)
    gradient = tg.jit(lambda a, v: tg.grad(f, (0, 1))(a, v))
    assert_equal(gradient(a, v), tg.grad(f, (0, 1))(a, v), 1e-11, 1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("imaginary", [0, 1])
@pytest.mark.parametrize(("n", "m"), [(7, 3), (3000, 15)])
def test_derivatives_of_convolutions(n, m, imaginary):
    f = _convolution(np.convolve, "same", imaginary)
    draw = np.random.default_rng(5)
    a, v = draw.normal(size=n), draw.normal(size=m)
    found = tg.value_and_grad(tg.jit(f), (0, 1))(a, v)
    assert_equal(found, tg.value_and_grad(f, (0, 1))(a, v), 1e-10, 1e-10)


def test_axes_of_length_1_of_views_are_no_copies(monkeypatch):
    """Parts that are stacked are read where they are."""
    interpret(monkeypatch)

    def f(x):
        parts = np.stack([x[i : i + 3, j : j + 2] for i in range(2) for j in range(2)], axis=-1)
        row = np.squeeze(x[1:2, None, :2].T)
        return np.sum(parts[..., None] * parts[:, :, None], axis=2) * row[None, :, None], row

    x = np.random.default_rng(3).normal(size=(4, 3))
    jitted = tg.jit(f)
    text = jitted.inspect(x)
    assert is_compiled(text)
    assert text.count("reshape") == 0
    assert text.count("np.empty") <= 4  # the stack, the sums, and both results
    assert_equal(jitted(x), f(x), 1e-13, 1e-13)
    gradient = tg.jit(lambda x: tg.grad(lambda x: tg.sum(f(x)[0] ** 2))(x))
    assert_equal(gradient(x), tg.grad(lambda x: tg.sum(f(x)[0] ** 2))(x), 1e-11, 1e-12)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((3, 8), (3, 2, 4)),
        ((3, 8), (3, 1, 2, 1, 4, 1)),
        ((4, 6), (2, 2, 3, 2)),
        ((1, 6), (2, 3)),
        ((4, 6), (8, 3)),
        ((4, 6), (24,)),
        ((6,), (1, 6, 1)),
    ],
)
@pytest.mark.parametrize("view", ["slice", "transpose", "reversed"])
def test_views_are_reshaped(given, wanted, view, monkeypatch):
    """Axes that are split are read where they are; others are copied."""
    interpret(monkeypatch)
    views = {
        "slice": lambda x: x[..., 1:-1],
        "transpose": lambda x: x[..., 2:].T if x.ndim == 1 else x[..., 2:].T.swapaxes(0, 1),
        "reversed": lambda x: x[::-1, ..., 2:][::-1] if x.ndim > 1 else x[:1:-1],
    }

    def f(x):
        z = np.reshape(views[view](x), wanted)
        return np.sum(np.sin(z) * np.cos(np.arange(z.size)).reshape(wanted), axis=0), z * 2.0, z

    x = np.random.default_rng(4).normal(size=(*given[:-1], given[-1] + 2))
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), f(x), 1e-13, 1e-13)
    gradient = tg.jit(lambda x: tg.grad(lambda x: tg.sum(f(x)[0] ** 2))(x))
    assert_equal(gradient(x), tg.grad(lambda x: tg.sum(f(x)[0] ** 2))(x), 1e-11, 1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shift", [1, -1, 2, 5, 0])
def test_rolled_arrays_are_read_where_they_are(axis, shift, monkeypatch):
    """But for the last axis, along which copies are read faster."""
    interpret(monkeypatch)

    def f(x):
        return np.sin(np.roll(x, shift, axis)) * x + np.roll(x * x, shift, axis)[::-1]

    x = np.cos(np.arange(60.0)).reshape(3, 5, 4)
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), f(x), 1e-13, 1e-13)
    if axis < 2:
        assert "2 loop nests" in jitted.inspect(x)  # of the squares, and of the result


@pytest.mark.compiled
def test_derivatives_of_rolled_arrays():
    def f(x):
        parts = np.concatenate([x[2:], x[:1], x[::-1]])
        return tg.sum(np.sin(np.roll(x, 1, 0) * np.roll(x, -1, 1))) + tg.sum(parts[1:] * parts[:-1])

    x = np.cos(np.arange(60.0)).reshape(5, 12)
    jitted = tg.jit(f)
    assert_equal(tg.grad(jitted)(x), tg.grad(f)(x), 1e-11, 1e-12)
    assert_equal(tg.hvp(jitted)(x, np.sin(x)), tg.hvp(f)(x, np.sin(x)), 1e-11, 1e-12)


@pytest.mark.parametrize("jit", [False, True], ids=["op by op", "recorded"])
def test_coordinates_that_are_closer_than_single_precision(jit, monkeypatch):
    """Their differences are taken in their own precision."""
    interpret(monkeypatch)
    coordinates = 1000.0 + 1e-6 * np.array([0.0, 1.0, 3.0, 4.0])

    def f(x):
        return np.gradient(x, coordinates, axis=1)

    x = np.cos(np.arange(8.0)).reshape(2, 4).astype(np.float32)
    found = (tg.jit(f) if jit else f)(tg.tensor(x))
    np.testing.assert_allclose(found, np.gradient(x, coordinates, axis=1), rtol=1e-4)
