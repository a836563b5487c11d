"""Results that are computed when they are needed: what they are, whatever happens before that.

Expected values are those of NumPy on the host.
"""

import gc
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda import memory
from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric import codegen, expressions, functions
from tapegrad.cuda.recording import recording

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 2.0, (4, 3))
Y = RNG.uniform(0.5, 2.0, (4, 3))
ROW = RNG.uniform(0.5, 2.0, 3)


@pytest.fixture(params=[True, False], ids=["one kernel", "kernels of single functions"])
def is_known(request, monkeypatch):
    """Whether a kernel for several expressions is compiled at once."""
    monkeypatch.setattr(expressions, "is_known", lambda key: request.param)
    return request.param


@pytest.fixture
def launches(monkeypatch):
    """Names of the parameters of each kernel that is launched."""
    noted = []
    start = codegen.Kernel.start

    def noting(kernel, *args):
        made = kernel.made
        function = made.py_func if hasattr(made, "py_func") else made.fn  # simulated
        noted.append(function.__code__.co_varnames)
        return start(kernel, *args)

    monkeypatch.setattr(codegen.Kernel, "start", noting)
    return noted


def device(values):
    functions.install()
    return DeviceArray.from_host(np.asarray(values))


def is_computed(array):
    return array.expression is None


def assert_equal(array, expected):
    np.testing.assert_allclose(array.to_host(), expected, 1e-15)


@pytest.mark.usefixtures("is_known")
class TestWrites:
    """What reads an array has its elements from before a write."""

    def test_to_an_operand(self):
        x = device(X)
        y = np.sin(x)
        x[...] = 7.0
        assert_equal(y, np.sin(X))
        assert_equal(x, np.full_like(X, 7.0))

    def test_to_an_operand_of_an_operand_that_is_gone(self):
        x = device(X)
        y = np.exp(x) * 2.0 + 1.0
        x += 1.0
        assert_equal(y, np.exp(X) * 2.0 + 1.0)

    def test_to_part_of_an_operand(self):
        x = device(X)
        y = x * 2.0
        x[1:, ::2] = 0.0
        x[[0, 3]] = 5.0
        assert_equal(y, X * 2.0)

    def test_added_at_indices(self):
        x = device(X)
        y = x * 2.0
        np.add.at(x, [0, 0, 1], 1.0)
        assert_equal(y, X * 2.0)

    def test_to_a_view_of_an_operand(self):
        x = device(X)
        row, y = x[0], x * 2.0
        row *= 3.0
        assert_equal(y, X * 2.0)

    def test_to_an_intermediate_result(self):
        x = device(X)
        y = np.exp(x)
        z = y + 1.0
        y.to_host()
        y[0] = 0.0
        assert_equal(z, np.exp(X) + 1.0)

    def test_to_an_intermediate_result_computed_with_others(self):
        x = device(X)
        y = np.exp(x)
        z, w = y + 1.0, y * 2.0
        z.to_host()
        y[0] = 0.0
        assert_equal(w, np.exp(X) * 2.0)

    def test_to_a_result_that_is_not_computed(self):
        x = device(X)
        y = np.exp(x)
        z = y + 1.0
        y *= 2.0
        assert not is_computed(y)
        y += z
        assert_equal(z, np.exp(X) + 1.0)
        assert_equal(y, np.exp(X) * 3.0 + 1.0)

    def test_of_a_result_that_reads_what_is_written(self):
        x = device(X)
        x[...] = np.sin(x) + x[::-1] * x
        assert_equal(x, np.sin(X) + X[::-1] * X)
        x[1:] = x[:-1] * 2.0
        expected = np.sin(X) + X[::-1] * X
        expected[1:] = expected[:-1] * 2.0
        assert_equal(x, expected)

    def test_of_an_overlapping_view(self):
        x, expected = device(X), X.copy()
        x[1:] = x[:-1]
        expected[1:] = expected[:-1].copy()
        assert_equal(x, expected)
        x[...] = x[::-1]
        assert_equal(x, expected[::-1])

    def test_to_the_index_that_is_written_at(self):
        x = device(np.array([1, 2, 0]))
        y = x + 10
        x[x] = np.array([5, 6, 7])
        assert_equal(y, np.array([11, 12, 10]))
        assert_equal(x, np.array([7, 5, 6]))

    def test_of_another_dtype(self):
        x = device(X)
        y = np.exp(x)
        y[...] = np.arange(3)
        assert_equal(y, np.broadcast_to(np.arange(3.0), X.shape))
        z = x > 1.0
        z[...] = 2.5
        assert z.dtype == np.bool_
        assert_equal(z, np.ones(X.shape, bool))

    def test_of_a_broadcast_expression(self):
        x, row = device(X), device(ROW)
        x *= np.exp(row)
        assert_equal(x, X * np.exp(ROW))
        y = x + 1.0
        y -= row * 2.0
        assert_equal(y, X * np.exp(ROW) + 1.0 - ROW * 2.0)


@pytest.mark.usefixtures("is_known")
class TestResults:
    def test_nothing_is_launched_before_it_is_needed(self, launches):
        y = np.sin(device(X)) * 2.0 + 1.0
        assert (y.shape, y.dtype, y.size) == ((4, 3), np.float64, 12)
        assert not launches
        assert_equal(y, np.sin(X) * 2.0 + 1.0)
        assert is_computed(y)
        count = len(launches)
        y.to_host()
        assert len(launches) == count

    def test_nothing_is_computed_for_what_is_gone(self, launches):
        x = device(X)
        y = np.sin(x) * 2.0
        del y
        gc.collect()
        x[...] = 1.0
        assert len(launches) == 1  # the write

    def test_of_other_shapes_and_types(self):
        x, row = device(X), device(ROW)
        small = np.exp(row) + 1.0
        z = np.where(x > 1.0, x * small, small).astype(np.float32) * np.float32(3.0)
        z = np.floor(z).astype(np.int64) % 4 == 1
        small_ = np.exp(ROW) + 1.0
        expected = np.where(X > 1.0, X * small_, small_).astype(np.float32) * np.float32(3.0)
        assert_equal(z, np.floor(expected).astype(np.int64) % 4 == 1)

    def test_of_views(self):
        x = device(X)
        z = np.exp(x[::-1, ::2]) * x.T[::2].T + x[:1, :2]
        assert_equal(z, np.exp(X[::-1, ::2]) * X[:, ::2] + X[:1, :2])

    def test_of_many_steps(self):
        x = device(X)
        z, expected = x, X
        for k in range(100):
            z, expected = (
                np.sin(z) * 1.01 + z / (k + 2.0),
                np.sin(expected) * 1.01 + expected / (k + 2.0),
            )
        assert_equal(z, expected)

    def test_of_many_arrays(self):
        arrays = [device(X + k) for k in range(100)]
        terms = [array * array for array in arrays]
        while len(terms) > 1:
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + (
                terms[-1:] if len(terms) % 2 else []
            )
        assert_equal(terms[0], sum((X + k) ** 2 for k in range(100)))

    def test_without_elements(self):
        x = device(np.ones((0, 3)))
        assert_equal(np.sin(x) * 2.0 + x, np.ones((0, 3)))
        assert (np.sin(x) * 2.0).sum().item() == 0.0

    def test_a_reduction_reads_it_once(self, launches, is_known):
        x = device(X)
        y = np.exp(x) * 2.0
        total = y.sum(axis=0)
        assert is_computed(y) != is_known
        assert len(launches) == (1 if is_known else 3)
        assert_equal(total, (np.exp(X) * 2.0).sum(axis=0))
        assert_equal(y.max(axis=1), (np.exp(X) * 2.0).max(axis=1))
        assert is_computed(y)
        assert_equal(y, np.exp(X) * 2.0)

    def test_a_reduction_of_views_with_other_strides(self):
        x, row = device(X), device(ROW)
        for axis in (None, 0, 1, (0, 1)):
            z = (x[::-1] * row + x.T.reshape(3, 4).T).sum(axis=axis)
            np.testing.assert_allclose(z.to_host(), (X[::-1] * ROW + X).sum(axis=axis), 1e-14)

    def test_a_reduction_stores_what_else_is_needed(self):
        x = device(X)
        y = np.exp(x)
        total = (y * 2.0).sum()
        y[...] = 0.0
        assert abs(total.item() - (np.exp(X) * 2.0).sum()) < 1e-12

    def test_of_a_reduction_in_another_type(self):
        x = device(X.astype(np.float32))
        assert int(np.count_nonzero(x * 2.0 > 2.0).item()) == np.count_nonzero(X > 1.0)
        assert bool((x > 0.0).all())

    def test_from_many_threads(self):
        x = device(X)
        shared = np.exp(x) + 1.0
        found = [None] * 8

        def work(k):
            found[k] = (shared * float(k)).to_host()

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k, values in enumerate(found):
            np.testing.assert_allclose(values, (np.exp(X) + 1.0) * k, 1e-15)


class TestKernels:
    def test_the_second_time_there_is_one(self, launches):
        counts = []
        for _ in range(3):
            x = device(X)
            y = np.cosh(x) * 2.0 + x
            launches.clear()
            assert_equal(y, np.cosh(X) * 2.0 + X)
            counts.append(len(launches))
        assert counts == [3, 1, 1]

    @pytest.mark.parametrize("is_known", [True], indirect=True)
    def test_stores_only_what_is_needed(self, launches, is_known):
        x = device(X)
        y = np.exp(x)
        z = np.sin(y * 2.0) + y
        z.to_host()
        assert is_computed(y)
        stored = [name for name in launches[0] if name.startswith("out") and "_" not in name]
        assert len(launches) == 1
        assert len(stored) == 2  # y and z

    @pytest.mark.parametrize("is_known", [True], indirect=True)
    def test_the_chain_of_a_program(self, launches, is_known):
        x = tg.tensor(X, device="cuda", requires_grad=True)
        z = x
        for _ in range(5):
            z = tg.sin(z) * 1.01 + z
        z.sum().backward()
        x.grad.cpu()
        assert len(launches) <= 4
        host = tg.tensor(X, requires_grad=True)
        z = host
        for _ in range(5):
            z = tg.sin(z) * 1.01 + z
        z.sum().backward()
        np.testing.assert_allclose(x.grad.cpu().numpy(), host.grad.numpy(), 1e-14)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.usefixtures("is_known")
    def test_sine_and_cosine_of_one_number(self, dtype, monkeypatch):
        texts = []
        text = codegen.DeviceModule.text
        monkeypatch.setattr(
            codegen.DeviceModule, "text", lambda self: texts.append(text(self)) or texts[-1]
        )
        expressions.map_kernel.cache_clear()
        values = (X / 2).astype(dtype)  # no term is negative
        x, y = device(values), device(values / 2)
        found = np.sin(x) * np.cos(y) + np.cos(x) * np.sin(values[0]) + np.sin(x)
        expected = np.sin(values) * np.cos(values / 2) + np.cos(values) * np.sin(values[0])
        np.testing.assert_allclose(found.to_host(), expected + np.sin(values), 1e-6)
        assert found.dtype == dtype
        if expressions.is_known(None):
            (kernel,) = [made for made in texts if "sincos" in made]
            assert kernel.count("libm.sincos") == 1  # that of x
            assert kernel.count("math.cos(") == 1  # that of y
            assert "math.sin(" not in kernel

    @pytest.mark.parametrize("is_known", [True], indirect=True)
    @pytest.mark.usefixtures("is_known")
    def test_products_are_rounded_where_they_could_be_joined_with_sums(self, monkeypatch):
        texts = []
        text = codegen.DeviceModule.text
        monkeypatch.setattr(
            codegen.DeviceModule, "text", lambda self: texts.append(text(self)) or texts[-1]
        )
        expressions.map_kernel.cache_clear()
        x = device(X)
        total = x + x
        found = np.where(x > 1.0, total, x) + (x * x) * 3.0 - x / 2.0
        assert_equal(found, np.where(X > 1.0, X + X, X) + (X * X) * 3.0 - X / 2.0)
        rounded = [line for made in texts for line in made.splitlines() if "dmul_rn" in line]
        assert len(rounded) == 2
        assert all("multiply" in line for line in rounded)

    def test_few_are_remembered(self, monkeypatch):
        monkeypatch.setattr(expressions, "_MOST_KNOWN", 3)
        monkeypatch.setattr(expressions, "_known", {})
        assert [expressions.is_known(k) for k in (1, 2, 1, 3, 4, 1)] == [
            False, False, True, False, False, False,
        ]  # fmt: skip


class TestMemory:
    @pytest.mark.usefixtures("is_known")
    def test_no_memory(self, monkeypatch):
        x = device(X)
        y = np.exp(x) * 2.0 + x

        def full(self, nbytes):
            raise MemoryError("there is no memory on the device")

        with monkeypatch.context() as patch:
            patch.setattr(memory.Pool, "take", full)
            with pytest.raises(MemoryError):
                y.to_host()
        assert_equal(y, np.exp(X) * 2.0 + X)

    @pytest.mark.usefixtures("is_known")
    def test_is_given_back_at_once(self):
        for _ in range(2):  # what compiles a kernel may be in a cycle with what called it
            np.sin(np.exp(device(X)) * 2.0).to_host()
        gc.collect()
        gc.disable()
        try:
            x = device(X)
            y = np.sin(np.exp(x) * 2.0)
            blocks = [weakref.ref(x.memory), weakref.ref(y.expression)]
            y.to_host()
            blocks.append(weakref.ref(y.memory))
            del x, y
            assert [block() for block in blocks] == [None] * 3
        finally:
            gc.enable()

    def test_that_others_may_write_to(self):
        x = device(X)
        y = x * 2.0
        x.memory.share()
        assert is_computed(y)
        z = x * 2.0
        assert is_computed(z)
        assert not is_computed(z * 2.0)

    def test_synchronize_computes(self):
        y = np.exp(device(X))
        gone = weakly = np.exp(device(Y))
        del gone, weakly
        tg.cuda.synchronize()
        assert is_computed(y)
        assert not [r for r in memory.WAITING if r.is_needed]


class TestRecordings:
    """Kernels that are started again compute cheap values again, and store the others."""

    def test_what_is_cheap_is_not_stored(self):
        with recording(memory.Pool()) as made:
            x = device(X)
            e = np.exp(x) * 2.0
            found = [e.sum(axis=0), (e * e).sum(axis=1), np.sqrt(e)]
            assert_equal(found[-1], np.sqrt(np.exp(X) * 2.0))
            assert not is_computed(e)
            count = len(made.launches)
            assert_equal(e, np.exp(X) * 2.0)
            assert len(made.launches) == count + 1
        assert_equal(found[0], (np.exp(X) * 2.0).sum(axis=0))
        assert_equal(found[1], ((np.exp(X) * 2.0) ** 2).sum(axis=1))

    def test_after_some_times_it_is(self):
        with recording(memory.Pool()):
            e = np.exp(device(X)) * 2.0
            for k in range(6):
                assert is_computed(e) == (k > 4)
                assert np.sqrt(e + float(k)).memory is not None
        assert_equal(e, np.exp(X) * 2.0)

    def test_long_values_are_stored(self):
        def chain(x):
            for _ in range(17):
                x = np.sin(x) * 1.01
            return x

        with recording(memory.Pool()):
            e = chain(device(X))
            total = e.sum(axis=0)
            again = (e * 2.0).sum(axis=0)
            assert is_computed(e)
        assert_equal(total, chain(X).sum(axis=0))
        assert_equal(again, (chain(X) * 2.0).sum(axis=0))

    def test_a_write_computes_what_reads_the_memory(self):
        with recording(memory.Pool()):
            x = device(X)
            e = np.exp(x) * 2.0
            total = e.sum(axis=0)
            x[...] = 0.0
            assert not x.to_host().any()
        assert_equal(e, np.exp(X) * 2.0)
        assert_equal(total, (np.exp(X) * 2.0).sum(axis=0))
