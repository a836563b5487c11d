"""Capsules of DLPack, as other libraries make and read them.

NumPy is the other library, with memory of the host in place of that of a device.
"""

import gc
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda import dlpack

HOST = 1  # kDLCPU
DTYPES = "?bhilBHILfdFD"


class Lender:
    """Memory of the host, lent by our code."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return dlpack.lend(self.array, self.array.ctypes.data, HOST)

    def __dlpack_device__(self):
        return HOST, 0


class Noted(np.ndarray):
    """An array that can be referred to weakly."""


def array_at(address, shape, strides, dtype, owner):
    """An array of NumPy at an address."""
    interface = {"shape": shape, "strides": strides, "typestr": dtype.str, "version": 3}
    source = type("Source", (), {"owner": owner})()
    source.__array_interface__ = {**interface, "data": (address, False)}
    return np.asarray(source)


@pytest.mark.parametrize("dtype", DTYPES)
class TestDtypes:
    def test_lent(self, dtype):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        found = np.from_dlpack(Lender(array))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
        assert np.shares_memory(found, array)

    def test_taken(self, dtype):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        found = dlpack.taken(array.__dlpack__(), array_at)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
        assert np.shares_memory(found, array)


@pytest.mark.parametrize("index", [(slice(None, None, 2),), (0,), (slice(1, None), slice(0, 0))])
def test_layouts(index):
    array = np.arange(24.0).reshape(4, 6).T[index]
    np.testing.assert_array_equal(np.from_dlpack(Lender(array)), array)
    np.testing.assert_array_equal(dlpack.taken(array.__dlpack__(), array_at), array)


def test_no_axes():
    array = np.array(3.0)
    assert np.from_dlpack(Lender(array)) == 3.0
    assert dlpack.taken(array.__dlpack__(), array_at) == 3.0


class TestLifetime:
    @pytest.mark.parametrize(
        "take",
        [np.from_dlpack, lambda lender: dlpack.taken(lender.__dlpack__(), array_at)],
        ids=["lent", "taken"],
    )
    def test_while_it_is_used(self, take):
        array = np.zeros(3).view(Noted)
        alive = weakref.ref(array)
        found = take(Lender(array))
        del array
        gc.collect()
        assert alive() is not None
        del found
        gc.collect()
        assert alive() is None

    def test_of_what_nobody_takes(self):
        array = np.zeros(3).view(Noted)
        alive = weakref.ref(array)
        capsule = Lender(array).__dlpack__()
        del array
        assert alive() is not None
        del capsule
        gc.collect()
        assert alive() is None

    def test_of_what_is_refused(self):
        class OnDevice:
            def __dlpack_device__(self):
                return dlpack.CUDA

            def __dlpack__(self, **kwargs):
                x = np.ones(3)
                return dlpack.lend(x, x.ctypes.data, dlpack.CUDA[0])

        before = len(dlpack._lent)
        for _ in range(3):  # the capsule is deleted while NumPy's error is passed on
            with pytest.raises((BufferError, RuntimeError), match=r"[Uu]nsupported device"):
                np.from_dlpack(OnDevice())
        assert len(dlpack._lent) == before

    def test_taken_twice(self):
        capsule = np.zeros(3).__dlpack__()
        dlpack.taken(capsule, array_at)
        with pytest.raises(BufferError, match="taken before"):
            dlpack.taken(capsule, array_at)


@pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")
class TestTensors:
    def test_device(self):
        assert tg.ones(3, device="cuda").__dlpack_device__() == (2, 0)

    def test_refused(self):
        x = tg.ones(3, device="cuda", requires_grad=True)
        with pytest.raises(BufferError, match="require gradient"):
            x.__dlpack__()
        with pytest.raises(BufferError, match=r"use cpu\(\)"):
            x.detach().__dlpack__(dl_device=(HOST, 0))

    def test_is_taken_by_its_device(self):
        class Source:
            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, stream):
                assert stream == 1  # that of our kernels
                return np.arange(3.0).__dlpack__()

        made = []

        def make(*args):
            made.append(args)
            return tg.ones(3, device="cuda")._a

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dlpack.DeviceArray, "at_address", make)
            assert tg.from_dlpack(Source()).device == "cuda:0"
        _, shape, strides, dtype, _ = made[0]
        assert (shape, strides, dtype) == ((3,), (8,), np.float64)
