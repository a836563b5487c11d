"""What `tapegrad.cuda` says of devices, and of what is missing."""

import importlib.util
import multiprocessing
import os

import numpy as np
import pytest

import tapegrad as tg
import tapegrad.transform.ensembles.on_device  # not for the first time under a patch
from tapegrad.cuda import toolkit


@tg.njit
def square(x):
    return x * x


@pytest.mark.skipif(not toolkit.is_simulated(), reason="the device is not simulated")
def test_a_simulated_device():
    assert tg.cuda.is_available()
    (info,) = tg.cuda.device_info()
    assert info.is_simulated and info.name == "simulated by numba"


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(toolkit, "is_simulated", lambda: False)
    monkeypatch.setattr(toolkit, "_started", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not tg.cuda.is_available()
    with pytest.raises(tg.cuda.CudaUnavailableError, match=r"pip install 'tapegrad\[cuda\]'"):
        tg.cuda.device_info()
    with pytest.raises(tg.cuda.CudaUnavailableError, match="numba-cuda"):
        tg.vmap(square, target="cuda")(np.ones(3))
    with pytest.raises(tg.cuda.CudaUnavailableError, match=r"pip install 'tapegrad\[cuda\]'"):
        tg.tensor(1.0, device="cuda")


def test_without_a_device(monkeypatch):
    from numba import cuda

    monkeypatch.setattr(toolkit, "is_simulated", lambda: False)
    monkeypatch.setattr(toolkit, "_started", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "cuda_error", lambda: "no driver\nwas found", raising=False)
    assert not tg.cuda.is_available()
    with pytest.raises(tg.cuda.CudaUnavailableError, match="no driver was found; it needs"):
        tg.vmap(square, target="cuda")(np.ones(3))


def in_a_copy(queue):
    try:
        tg.vmap(square, target="cuda")(np.ones(3))
    except tg.cuda.CudaUnavailableError as error:
        queue.put(str(error))
    else:
        queue.put("no error")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads
def test_a_process_that_was_forked():
    np.testing.assert_array_equal(tg.vmap(square, target="cuda")(np.arange(3.0)), [0.0, 1.0, 4.0])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=in_a_copy, args=(queue,))
    process.start()
    assert "start processes with multiprocessing.get_context('spawn')" in queue.get(timeout=60)
    process.join()


def in_a_copy_with_a_tensor(queue, x):
    try:
        queue.put(float((x * 2.0).sum()))
    except tg.cuda.CudaUnavailableError as error:
        queue.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.skipif(not toolkit.is_available(), reason="there is no CUDA device")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_tensors_in_a_process_that_was_forked():
    x = tg.ones(3, device="cuda")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=in_a_copy_with_a_tensor, args=(queue, x))
    process.start()
    assert "start processes with multiprocessing.get_context('spawn')" in queue.get(timeout=60)
    process.join()
