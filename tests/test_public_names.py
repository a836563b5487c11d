"""What `dir` shows."""

import pytest

import tapegrad as tg


def test_dir_shows_what_users_need():
    shown = dir(tg)
    assert {"njit", "stop_gradient", "TransformError", "sin", "linalg", "fft", "special"} <= {
        *shown
    }
    assert not [name for name in shown if name.startswith("_") and name != "__version__"]
    assert not {"cofactor", "cofactor_slope", "sparse_product", "embed"} & {*shown}
    assert not {"dispatch", "eager", "methods", "numeric", "inplace", "pytrees"} & {*shown}
    assert all(hasattr(tg, name) for name in shown)


@pytest.mark.parametrize("module", [tg.linalg, tg.fft, tg.special])
def test_names_of_modules(module):
    assert all(callable(getattr(module, name)) for name in module.__all__)


def test_the_deprecated_name_says_what_there_is():
    with pytest.warns(FutureWarning, match=r"use tapegrad\.tensor\(\.\.\.\) instead"):
        tg.autograd.variable([1.0, 2.0])
