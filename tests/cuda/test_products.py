"""Products of matrices on a device: tiles of all sizes, layouts, and sums in several parts."""

import itertools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda.numeric import codegen, products

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")


def matrices(rows, depth, columns, dtype=np.float64, are_transposed=(False, False)):
    rng = np.random.default_rng(0)
    for shape, is_transposed in zip(((rows, depth), (depth, columns)), are_transposed, strict=True):
        stored = shape[::-1] if is_transposed else shape
        array = (5 * rng.normal(size=stored)).astype(dtype)
        tensor = tg.tensor(array, device="cuda")
        yield (array.T, tensor.T) if is_transposed else (array, tensor)


def check(rows, depth, columns, *more, rtol=1e-12):
    (x, on_device), (y, other) = matrices(rows, depth, columns, *more)
    found = (on_device @ other).cpu().numpy()
    assert found.dtype == (x @ y).dtype
    np.testing.assert_allclose(found, x @ y, rtol, 1e-4 if rtol > 1e-6 else 1e-12)


@pytest.mark.parametrize("sizes", [*itertools.product((1, 3, 9), (1, 7), (1, 2, 5))])
def test_tiles(sizes):
    check(*sizes)


@pytest.mark.parametrize("are_transposed", [*itertools.product((False, True), repeat=2)])
def test_layouts(are_transposed):
    check(5, 4, 6, np.float64, are_transposed)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128, np.int32, np.int64])
def test_dtypes(dtype):
    check(5, 4, 3, dtype, rtol=1e-5)


@pytest.mark.parametrize("depth", [6, 7, 20])
def test_sums_in_several_parts(depth, monkeypatch):
    monkeypatch.setattr(products, "_LEAST_DEPTH", 3)
    monkeypatch.setattr(codegen, "most_blocks", lambda: 40)
    check(2, depth, 3)
    check(1, depth, 1, np.int32)
    x, y = np.random.default_rng(0).normal(size=(2, 3, 2, depth))
    found = tg.tensor(x, device="cuda") @ tg.tensor(y, device="cuda").swapaxes(-1, -2)
    np.testing.assert_allclose(found.cpu().numpy(), x @ y.swapaxes(-1, -2), 1e-12)


def test_more_rows_than_a_grid_has_along_an_axis_of_blocks():
    """Blocks are numbered along the first axis, which has room for all."""
    if tg.cuda.device_info()[0].is_simulated:
        launches = []
        kernel = products._kernel("float64", "float64", "float64", 2, (4, 1), (True, False))

        def noted(self, grid, *args):
            launches.append(grid)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(kernel), "start", noted)
            tg.zeros((10**6, 1), device="cuda") @ tg.zeros((1, 2), device="cuda")
        ((blocks, *others),) = [grid for grid in launches if isinstance(grid, tuple)]
        assert blocks > 65535 and max(others) < 65536
    else:
        check(10**7, 1, 2)
