"""Settings of the whole test suite.

Tests of compiled functions, the examples in their documentation, and long programs on the simulated
device take three quarters of the time of all: in each, numba infers types several times. They stand
in a folder or file of their own, are called so, or have the mark ``compiled``. One in `SHARE` of
them runs by default, and all that are named on the command line. `.ci/run` runs a part of the
others as well, each time another one. Tests in these folders that compile little or nothing, of
passes and of the verifier, have the mark ``texts``, and always run.

Many tests call the garbage collector. What was there before the tests of a file is out of its
sight: half a million objects, mostly of pytest and numba, make each call take half a second.

numba simulates a CUDA device, unless ``NUMBA_ENABLE_CUDASIM=0`` is set.
"""

import gc
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # numba reads it when it is imported

import tapegrad as tg
from tapegrad.eager.modes import MODE
from tapegrad.testing import check_grads

# On a build machine the generated cases are the same every time; elsewhere they are new ones.
settings.register_profile("build", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("build" if os.environ.get("CI") else "default")


SHARE = 40
ROOT = Path(__file__).parents[1]
COMPILED = [
    ROOT / name
    for name in (
        *("tests/transform", "tapegrad/transform", "docs/guide-njit.md"),
        "tests/cuda/test_composites_on_device.py",
        "tests/cuda/test_random_programs_on_device.py",
    )
]


def pytest_addoption(parser):
    parser.addoption(
        "--compiled",
        choices=["some", "others", "all"],
        help="which tests of compiled functions run: a sample (default), all but these, or all "
        "(default if files are named)",
    )
    parser.addoption(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="where tests make their tensors (default: cpu); see tests/on_device.py",
    )
    parser.addoption(
        "--part",
        metavar="K/N",
        default="0/1",
        help="of the tests that --compiled=others or --device=cuda names, only part K of N",
    )


def pytest_configure(config):
    if config.option.compiled is None:  # decided once, for all processes
        are_named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.option.compiled = "all" if are_named else "some"
    if config.option.device != "cpu":
        import on_device

        config.pluginmanager.register(on_device)


def pytest_collection_modifyitems(config, items):
    which = config.option.compiled
    part, parts = map(int, config.option.part.split("/"))
    if config.option.device != "cpu":
        chosen = [i for i in items if zlib.crc32(i.nodeid.encode()) % parts == part % parts]
        config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
        items[:] = chosen
    if which == "all":
        return
    kept, left_out = [], []
    for item in items:
        is_compiled = item.get_closest_marker("texts") is None and (
            "compiled" in item.name
            or item.get_closest_marker("compiled") is not None
            or any(item.path.is_relative_to(place) for place in COMPILED)
        )
        number = zlib.crc32(item.nodeid.encode())
        is_in_sample = not is_compiled or number % SHARE == 0
        is_in_part = number // SHARE % parts == part % parts
        runs = is_in_sample if which == "some" else not is_in_sample and is_in_part
        (kept if runs else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Many objects are made, and nearly all of them stay: there is nothing to find meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _what_was_there_before_is_not_looked_at():
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _calls_leave_items_as_they_were():
    yield
    assert not MODE.thread.items_are_values


@pytest.fixture
def agrees_with_numpy():
    """What asserts that a NumPy function of tensors has NumPy's values, and right gradients."""

    def check(f, x, order=1):
        expected = f(x)
        found = f(tg.tensor(x, requires_grad=True))
        assert isinstance(found, tg.Tensor)
        assert found.requires_grad
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(found.detach(), expected, rtol=1e-13, atol=1e-15)
        check_grads(f, [x], order=order)

    return check
