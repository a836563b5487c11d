"""Functions that CuPy computes: which, with what arguments, and their derivatives.

There is no CuPy here. NumPy and SciPy, which have the functions that CuPy has, stand for it: they
get and return arrays of the host.
"""

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
from test_ops_on_device import FIRST, ON_HOST, check, is_real, names_of, on

import tapegrad as tg
from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric import cupy_functions
from tapegrad.ops.table.op import TABLE

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

# computed by functions of SciPy that CuPy does not have
MISSING = ["expm", "logm", "sqrtm", "sparse_product", "roots"]
# of programs that are compiled for the host
OF_THE_HOST = ["fourier_of_pairs", "fourier_adjoint_of_pairs", "half_fourier_to_pairs"]
OF_THE_HOST += ["real_fourier_of_pairs", "whole_fourier_to_pairs", "real_adjoint_of_pairs"]
CASES = [case for case in FIRST if case[0] not in (*MISSING, *OF_THE_HOST)]


def pinv(a, rcond=1e-15):
    """With the parameters that CuPy's function has."""
    return np.linalg.pinv(a, rcond)


@pytest.fixture
def cupy(monkeypatch):
    """What CuPy is asked for."""
    errors = []

    @contextlib.contextmanager
    def errstate(linalg):
        errors.append(linalg)
        yield

    modules = {
        "cupy": SimpleNamespace(),
        "cupy.linalg": SimpleNamespace(**{**vars(np.linalg), "pinv": pinv}),
        "cupy.fft": np.fft,
        "cupyx": SimpleNamespace(errstate=errstate),
        "cupyx.scipy.special": scipy.special,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)

    def given(value):
        return value.to_host() if isinstance(value, DeviceArray) else value

    def returned(value):
        assert isinstance(value, (np.ndarray, np.generic))
        return DeviceArray.from_host(np.asarray(value))

    monkeypatch.setattr(cupy_functions, "is_installed", lambda: True)
    monkeypatch.setattr(cupy_functions, "_given", given)
    monkeypatch.setattr(cupy_functions, "_returned", returned)
    return errors


@pytest.mark.parametrize("case", [c for c in CASES if is_real(c)], ids=names_of)
def test_op(case, cupy):
    check(case)
    assert set(cupy) <= {"raise"}


def test_singular(cupy):
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        tg.linalg.inv(tg.zeros((2, 2), device="cuda"))
    assert cupy == ["raise"]


def test_not_in_cupy(cupy, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.linalg", SimpleNamespace())
    with pytest.raises(TypeError, match=r"numpy.linalg.inv is not available .* use cpu\(\)"):
        tg.linalg.inv(tg.ones((2, 2), device="cuda"))


@pytest.mark.parametrize("name", [*ON_HOST["LAPACK"].split()[:1], "erfinv", "fourier"])
def test_not_installed(name, monkeypatch):
    monkeypatch.setattr(cupy_functions, "is_installed", lambda: False)
    case = next(case for case in FIRST if case[0] == name)
    with pytest.raises(TypeError, match=r"pip install 'tapegrad\[cupy\]'\), or use cpu\(\)"):
        TABLE[name].public(*on("cuda", case[1]), **case[2])
