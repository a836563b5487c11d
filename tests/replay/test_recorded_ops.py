"""Every op of the table, recorded and op by op."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops.table.op import TABLE

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from cases import ALL, names_of
from interpreted import assert_equal, in_float32, interpret

# What has no compiled form yet runs op by op: ops with several results, and those for derivatives
OP_BY_OP = {
    "add_at", "cofactor", "cofactor_slope", "concatenate", "eig", "eigh", "euclidean_norm",
    "full_svd", "gamma_sample", "log_gamma_curvature", "log_gamma_sample", "log_gamma_slope",
    "moved", "product", "put", "put_view", "qr", "rounded", "scatter_add", "slogdet",
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
        is_known = name in OP_BY_OP or (is_single and how.endswith(" of float32\n"))
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
