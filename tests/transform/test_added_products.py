"""Products that BLAS adds to arrays: factors in any order in memory, and parts of larger arrays."""

import subprocess
import sys

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform import blas, blas_code

EXTENTS = [(1, 1, 1), (2, 3, 4), (1, 40, 40), (40, 1, 40), (40, 40, 1), (13, 17, 19), (3, 0, 400)]


@numba.njit
def add_product(out, x, y):
    """Call the compiled function."""
    blas.add_product(out, x, y)


@numba.njit
def add_product_nt(out, x, y):
    """Call the compiled function."""
    blas.add_product_nt(out, x, y)


@numba.njit
def add_product_tn(out, x, y):
    """Call the compiled function."""
    blas.add_product_tn(out, x, y)


def layouts(rows, columns, rng):
    """Yield matrices of an extent that lie in memory in different ways."""
    wide = rng.normal(size=(2 * rows + 1, 2 * columns + 1))
    yield rng.normal(size=(rows, columns))
    yield rng.normal(size=(columns, rows)).T
    yield wide[:rows, 1 : columns + 1]
    yield wide.T[: 2 * columns, : 2 * rows][:columns, :rows].T
    yield wide[: 2 * rows : 2, : 2 * columns : 2]
    yield wide[:rows, :columns][::-1, ::-1]
    yield np.broadcast_to(rng.normal(size=(1, columns)), (rows, columns))


@pytest.mark.parametrize("extents", EXTENTS)
def test_products_of_matrices(extents):
    rng = np.random.default_rng(0)
    rows, terms, columns = extents
    for x in layouts(rows, terms, rng):
        for y in layouts(terms, columns, rng):
            out = rng.normal(size=(rows, columns))
            expected = out + x @ y
            add_product(out, x, y)
            np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("extents", EXTENTS)
def test_what_they_are_added_to_lies_in_any_order(extents):
    rng = np.random.default_rng(1)
    rows, terms, columns = extents
    for x in layouts(rows, terms, rng):
        for y in layouts(terms, columns, rng):
            for out in layouts(rows, columns, rng):
                if out.flags.writeable:
                    expected = out + x @ y
                    add_product(out, x, y)
                    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("extents", [(2, 3, 4), (9, 8, 7), (1, 30, 6), (30, 6, 1), (3, 0, 4)])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_products_of_stacks(extents, step):
    rng = np.random.default_rng(4)
    rows, terms, columns = extents
    x, y = rng.normal(size=(6, rows, terms))[::step], rng.normal(size=(6, terms, columns))[::step]
    out = rng.normal(size=(6, columns, rows)).transpose(0, 2, 1)[::step]
    count = len(out)
    expected = out + x[:count] @ y[:count]
    add_product(out, x, y)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    add_product_nt(out, x, y.transpose(0, 2, 1))
    add_product_tn(out, np.ascontiguousarray(x.transpose(0, 2, 1)), y)
    expected += 2.0 * (x[:count] @ y[:count])
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_matrices_that_blas_takes_are_not_copied():
    @numba.njit
    def added_by_blas(out, x, y):
        return blas_code._by_blas(out, x, y)

    def place(x):
        return x.ctypes.data, *x.shape, *x.strides

    rng = np.random.default_rng(3)
    taken = [True, True, True, True, False, False]
    for x, takes_x in zip(layouts(13, 17, rng), taken, strict=False):
        for y, takes_y in zip(layouts(17, 19, rng), taken, strict=False):
            for out, takes_out in zip(layouts(13, 19, rng), taken, strict=False):
                is_added = takes_x and takes_y and takes_out
                expected = out + x @ y if is_added else out.copy()
                assert added_by_blas(place(out), place(x), place(y)) == is_added
                np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("extents", [(1, 1), (2, 3), (1, 2000), (2000, 1), (50, 40), (0, 5)])
def test_products_with_vectors(extents):
    rng = np.random.default_rng(2)
    rows, columns = extents
    for x in layouts(rows, columns, rng):
        for step in (1, 2, -1):
            out, y = rng.normal(size=2 * rows)[::step][:rows], rng.normal(size=2 * columns)[::step]
            first = out.copy()
            expected = first + x @ y[:columns]
            add_product(out, x, y[:columns])
            np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
            add_product_tn(out, x.T, y[:columns])
            np.testing.assert_allclose(out, 2.0 * expected - first, rtol=1e-12, atol=1e-12)


@tg.njit
def energy(x, y, v):
    """Products of matrices and vectors."""
    return (
        np.sum(np.sin(np.dot(x, y)))
        + np.sum(np.cos(x @ v))
        + np.sum(np.cos(v[: x.shape[0]] @ x))
        + np.sum(np.cos(x.T @ x))
    )


def same_energy(x, y, v):
    """The same, op by op."""
    return (
        tg.sum(tg.sin(x @ y))
        + tg.sum(tg.cos(x @ v))
        + tg.sum(tg.cos(v[: x.shape[0]] @ x))
        + tg.sum(tg.cos(x.T @ x))
    )


@pytest.mark.parametrize("extents", [(3, 4, 5), (20, 30, 40)])
def test_gradients_of_products(extents):
    rng = np.random.default_rng(3)
    rows, terms, columns = extents
    args = [rng.normal(size=shape) for shape in ((rows, terms), (terms, columns), terms)]
    directions = [rng.normal(size=arg.shape) for arg in args]
    found = tg.grad(energy, (0, 1, 2))(*args)
    expected = tg.grad(same_energy, (0, 1, 2))(*args)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-12)
    twice = tg.hvp(energy, 0)(*args, directions[0])
    np.testing.assert_allclose(twice, tg.hvp(same_energy, 0)(*args, directions[0]), rtol=1e-10)


@pytest.mark.parametrize("rows", [1, 4, (1 << 31) - 1, 1 << 31])
@pytest.mark.parametrize("columns", [1, 4, (1 << 31) - 1, 1 << 31])
def test_integers_that_blas_does_not_take(rows, columns):
    """Its integers have 32 bits, and extents that are cut off would be others."""
    fits = max(rows, columns) < 1 << 31
    found = numba.njit(blas_code._rows_step.py_func)(rows, columns, 8 * columns, 8)
    assert found == (columns if fits else 0)


def test_a_product_that_cannot_be_computed_is_an_error(tmp_path):
    """The function is compiled when it is called first; what then fails must not be lost."""
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, tapegrad as tg\n"
        "from tapegrad.transform import requests\n"
        "def fails(*args):\n"
        "    raise OSError('no compiler')\n"
        "requests.native.compiled = fails\n"
        "@tg.njit\n"
        "def f(x):\n"
        "    return np.sum(np.dot(x, x))\n"
        "try:\n"
        "    print(tg.grad(f)(np.eye(3)))\n"
        "except RuntimeError as error:\n"
        "    print('refused:', error)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=300
    )
    assert "refused: a product of matrices was not computed" in ran.stdout
    assert "no compiler" in ran.stderr
