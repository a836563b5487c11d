"""Kernels that the driver starts, with a driver that reads the parameters from memory.

It runs kernels on the simulated device: what is packed wrongly, or is not part of a graph, gives
wrong numbers.
"""

import ctypes
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda import driver as driver_module
from tapegrad.cuda import launches, toolkit
from tapegrad.cuda.driver import Entry, Graph
from tapegrad.cuda.memory import POOL, Elements, Pool
from tapegrad.cuda.numeric import codegen
from tapegrad.cuda.recording import recording
from tapegrad.replay import on_device

pytestmark = pytest.mark.skipif(not toolkit.is_simulated(), reason="there is a driver")


class Driver:
    """What is used of ``cuda.bindings.driver``."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self):
        self.kinds = {}  # of the arguments of kernels: whether they are arrays, and their types
        self.noted = {}  # by stream
        self.started = []
        self.graphs = 0
        self.status = 0

    def cuStreamCreate(self, flags):
        assert flags == 1
        return 0, 7

    def cuStreamDestroy(self, stream):
        return (0,)

    def cuStreamBeginCapture(self, stream, mode):
        assert (stream, mode) == (7, 2)
        self.noted[stream] = []
        return (0,)

    def cuStreamEndCapture(self, stream):
        return 0, self.noted.pop(stream)

    def cuGraphInstantiate(self, graph, flags):
        self.graphs += 1
        return 0, [*graph]

    def cuGraphDestroy(self, graph):
        graph.clear()
        return (0,)

    def cuGraphExecDestroy(self, executable):
        self.graphs -= 1
        return (0,)

    def cuGraphLaunch(self, executable, stream):
        self.started.append("graph")
        for run in executable:
            run()
        return (0,)

    def cuLaunchKernel(self, kernel, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        assert (shared, extra) == (0, 0)
        args = read(self.kinds[kernel], parameters)

        def run():
            with np.errstate(all="ignore"):
                kernel[(gx, gy, gz), (bx, by, bz)](*args)

        if stream in self.noted:
            self.noted[stream].append(run)
        elif not self.status:
            self.started.append("kernel")
            run()
        return (self.status,)


def read(kinds, parameters):
    """The arguments of a kernel, from the addresses of its parameters."""
    place = iter(range(1000))

    def parameter(kind):
        address = ctypes.c_uint64.from_address(parameters + 8 * next(place)).value
        return kind.from_address(address).value

    found = []
    for is_array, dtype in kinds:
        if is_array:
            _, _, size, itemsize, address, length, stride = (
                parameter(ctypes.c_uint64) for _ in range(7)
            )
            assert (length, stride, itemsize) == (size, itemsize, dtype.itemsize)
            memory = (ctypes.c_char * (size * itemsize)).from_address(address)
            found.append(np.frombuffer(memory, dtype))
        elif dtype.kind == "c":
            part = {8: ctypes.c_float, 16: ctypes.c_double}[dtype.itemsize]
            found.append(dtype.type(complex(parameter(part), parameter(part))))
        else:
            found.append(dtype.type(parameter(np.ctypeslib.as_ctypes_type(dtype))))
    return found


@pytest.fixture
def driver(monkeypatch):
    made, kernels = Driver(), []

    def run(kernel, grid, block, *args):
        if kernel.entry is None:
            kernels.append(kernel)
            made.kinds[kernel.made] = kinds = [
                (True, a.dtype) if isinstance(a, Elements) else (False, np.dtype(type(a)))
                for a in args
            ]
            kernel.entry = Entry(kernel.made, [None if k else t.name for k, t in kinds])
        kernel.entry.start(grid, block, args)

    monkeypatch.setattr(driver_module, "_driver", lambda: made)
    monkeypatch.setattr(codegen.Kernel, "run", run)
    yield made
    for kernel in kernels:
        kernel.entry = None


def tensor(size=5, dtype=np.float64, seed=0):
    return tg.tensor(np.random.default_rng(seed).normal(size=size).astype(dtype), device="cuda")


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.complex64, np.complex128, np.int32, np.int64, np.bool_]
)
def test_parameters(driver, dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    z = tg.tensor(x, device="cuda")
    two = dtype(2)
    for function in (
        lambda x: x.T * two + x[:1].T,
        lambda x: x.astype(np.complex128) * (1.5 - 2.5j),
        lambda x: x.sum(axis=0),
        lambda x: x[np.array([0, 2])],
        lambda x: tg.where(x.astype(np.bool_), x, x[0]),
    ):
        expected = function(tg.tensor(x)).numpy()
        found = function(z).cpu().numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, 1e-6)
    assert "kernel" in driver.started


def loss(w, x):
    return tg.sum(tg.tanh(x @ w) ** 2) + tg.logsumexp(w)


class TestGraphs:
    def test_the_second_call_with_the_same_memory_makes_one(self, driver):
        gradient = tg.value_and_grad(tg.jit(loss))
        x = tensor((4, 5))
        for k in range(6):
            w = tensor(seed=k)
            value, slope = gradient(w, x)
            expected, expected_slope = tg.value_and_grad(loss)(w.cpu(), x.cpu())
            np.testing.assert_allclose(value.cpu().numpy(), expected.numpy(), 1e-12)
            np.testing.assert_allclose(slope.cpu().numpy(), expected_slope.numpy(), 1e-12)
            if k > 3:
                assert driver.started == ["graph"]
            driver.started.clear()
            del w, value, slope

    def test_other_memory(self, driver):
        jitted = tg.jit(lambda x: tg.cumsum(x) * tg.sum(x))
        xs = [tensor(seed=k) for k in range(4)]
        for stay in (True, False):  # the results, so that the next ones have other memory
            driver.started.clear()
            for _ in range(4):
                found = []
                for x in xs:
                    found.append((x.cpu().numpy(), jitted(x)))
                    for a, z in found:
                        np.testing.assert_allclose(z.cpu().numpy(), a.cumsum() * a.sum(), 1e-12)
                    del found[: None if not stay else 0], z
        assert driver.started.count("graph") >= 4

    def test_few_are_kept(self, driver, monkeypatch):
        monkeypatch.setattr(launches, "_MOST_GRAPHS", 2)
        jitted = tg.jit(lambda x: tg.cumsum(x) * tg.sum(x))
        xs = [tensor(seed=k) for k in range(3)]
        jitted(xs[0])
        for x in xs:
            for _ in range(3):
                np.testing.assert_allclose(
                    jitted(x).cpu().numpy(), x.cpu().numpy().cumsum() * x.cpu().numpy().sum(), 1e-12
                )
            gc.collect()
            assert driver.graphs <= 2
        del jitted
        gc.collect()
        assert driver.graphs == 0

    def test_inside_of_a_recording_kernels_are_noted(self, driver):
        inner = tg.jit(lambda x: tg.cumsum(x) * tg.sum(x))
        xs = [tensor(seed=k) for k in range(3)]
        for _ in range(4):
            inner(xs[0])
        assert "graph" in driver.started
        with recording(POOL) as made:
            kept = inner(xs[0])
        assert made.launches
        expected = kept.cpu().numpy()
        kept.detach()[...] = 0.0
        for kernel, grid, block, args in made.launches:
            kernel.start(grid, block, *args)
        np.testing.assert_array_equal(kept.cpu().numpy(), expected)

    def test_the_first_arguments_and_results_are_not_kept(self, driver):
        jitted = tg.jit(lambda x: tg.cumsum(x) * tg.sum(x))
        x = tensor(300)
        jitted(x)
        before = len(POOL._blocks)
        for _ in range(3):
            jitted(x)
        gc.collect()
        assert len(POOL._blocks) == before  # results use the memory of the first ones
        POOL.clear()
        assert len(POOL._blocks) < before
        np.testing.assert_allclose(
            jitted(x).cpu().numpy(), x.cpu().numpy().cumsum() * x.cpu().numpy().sum(), 1e-10
        )

    def test_memory_in_between_is_used_again(self, driver):
        def steps(x):
            for _ in range(20):
                x = tg.cumsum(x) * 0.5
            return x

        pools = []
        before = on_device.recording
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on_device, "recording", lambda pool: pools.append(pool) or before(pool))
            found = tg.jit(steps)(tensor(100))
        assert len(pools) == 1 and len(pools[0]._blocks) < 8
        np.testing.assert_allclose(found.cpu().numpy(), steps(tensor(100).cpu()).numpy(), 1e-12)

    def test_one_kernel_needs_none(self, driver):
        jitted = tg.jit(lambda x: tg.sin(x) * 2.0)
        x = tensor()
        for _ in range(4):
            jitted(x)
        assert not driver.graphs

    def test_what_fails_while_it_is_made_leaves_the_stream(self, driver):
        class Broken(Entry):
            def start(self, *args):
                raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            Graph([(Broken(None, []), 1, 1, [])])
        assert not driver.noted


def test_an_error_of_the_driver(driver):
    x = tensor()
    tg.sum(x).item()
    driver.status = 719
    with pytest.raises(RuntimeError, match="the driver did not start a kernel: 719"):
        tg.sum(x).item()


class TestWhatNumbaStarts:
    """Where there is no entry, numba starts kernels."""

    def test_on_a_simulated_device(self):
        assert Entry.of(None) is None

    def test_of_another_version_of_numba(self, monkeypatch):
        monkeypatch.setattr(driver_module, "is_simulated", lambda: False)
        assert Entry.of(SimpleNamespace(overloads={})) is None
        assert Entry.of(SimpleNamespace(overloads={1: SimpleNamespace()})) is None


def test_blocks_of_arrays_in_cycles_are_not_finalized():
    pool, dead = Pool(), []
    memory = pool.take(512)
    weakref.finalize(memory.block, dead.append, 1)  # where numba frees the memory
    cycle = [memory]
    cycle.append(cycle)
    block = id(memory.block)
    del memory, cycle
    gc.collect()
    assert not dead
    assert id(pool.take(512).block) == block
    gc.collect()
    pool.clear()
    assert dead == [1]
