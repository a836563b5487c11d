"""The namespace of the array API standard: complete, as NumPy's, and used by other libraries."""

import os
import subprocess
import sys

import array_api_compat
import array_api_extra
import array_api_strict
import numpy as np
import pytest

import tapegrad as tg

X = np.array([[0.3, 1.2, -0.7], [2.1, -1.6, 0.9]])
NOT_OF_THE_STANDARD = {"Device", "ArrayAPIStrictFlags", "__version__"}
NOT_OF_THE_STANDARD |= {f"{verb}_array_api_strict_flags" for verb in ("set", "get", "reset")}


def leaf(array=X):
    return tg.tensor(array, requires_grad=True)


@pytest.fixture
def xp():
    return leaf().__array_namespace__()


@pytest.mark.parametrize("part", [None, "linalg", "fft"])
def test_names_of_the_standard(xp, part):
    ours, standard = (getattr(m, part) if part else m for m in (xp, array_api_strict))
    assert not {*standard.__all__} - {*dir(ours)} - NOT_OF_THE_STANDARD


def test_versions():
    for version in ("2022.12", "2024.12"):
        leaf().__array_namespace__(api_version=version)
    with pytest.raises(ValueError, match=r"version '2031\.12' of the array API is not supported"):
        leaf().__array_namespace__(api_version="2031.12")


CALLS = {
    "sum": lambda xp, x: xp.sum(x, axis=0, keepdims=True),
    "sum to another type": lambda xp, x: xp.sum(x, dtype=xp.float32),
    "std": lambda xp, x: xp.std(x, correction=1),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=1, include_initial=True),
    "concat": lambda xp, x: xp.concat((x, x), axis=None),
    "stack": lambda xp, x: xp.stack([x, x * 2.0], axis=-1),
    "unstack": lambda xp, x: xp.unstack(x, axis=1)[2],
    "reshape": lambda xp, x: xp.reshape(x, (3, 2), copy=True),
    "clip": lambda xp, x: xp.clip(x, max=1.0),
    "where": lambda xp, x: xp.where(x > 0, x, xp.asarray(0.0)),
    "take": lambda xp, x: xp.take(x, xp.asarray([2, 0]), axis=1),
    "sort": lambda xp, x: xp.sort(x, axis=0),
    "matmul": lambda xp, x: xp.matmul(x, xp.matrix_transpose(x)),
    "vecdot": lambda xp, x: xp.vecdot(x, x, axis=-1),
    "pow": lambda xp, x: xp.pow(xp.abs(x), 1.5),
    "pinv": lambda xp, x: xp.linalg.pinv(x, rtol=1e-3),
    "svd": lambda xp, x: xp.linalg.svd(x, full_matrices=False).S,
    "eigh": lambda xp, x: xp.linalg.eigh(x @ xp.matrix_transpose(x)).eigenvalues,
    "slogdet": lambda xp, x: xp.linalg.slogdet(x @ xp.matrix_transpose(x)).logabsdet,
    "cholesky": lambda xp, x: xp.linalg.cholesky(x @ xp.matrix_transpose(x), upper=True),
    "vector_norm": lambda xp, x: xp.linalg.vector_norm(x, axis=1, ord=3),
    "fft": lambda xp, x: xp.real(xp.fft.rfft(x, norm="ortho")),
    "meshgrid": lambda xp, x: xp.meshgrid(x[0, :], x[1, :], indexing="ij")[0],
    "copysign": lambda xp, x: xp.copysign(x, xp.asarray(-1.0)),
    "tril": lambda xp, x: xp.tril(x, k=-1),
    "linspace": lambda xp, x: xp.linspace(0.0, 1.0, 3, endpoint=False) * x,
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name, xp):
    strict = array_api_strict.asarray(X)
    expected = np.asarray(CALLS[name](array_api_strict, strict))
    t = leaf()
    found = CALLS[name](xp, t)
    assert isinstance(found, tg.Tensor)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-6, atol=1e-12)
    if found.dtype == np.float64:
        assert tg.autograd.gradcheck(lambda x: CALLS[name](xp, x), t)


class TestFunctionsOfItsOwn:
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("axis", [0, -1])
    def test_order(self, xp, descending, axis):
        x = np.array([[3.0, 1.0, 3.0, 2.0], [1.0, 1.0, 0.0, 3.0]])
        options = {"axis": axis, "descending": descending}
        strict = array_api_strict.asarray(x)
        for name in ("sort", "argsort"):
            expected = np.asarray(getattr(array_api_strict, name)(strict, **options))
            found = getattr(xp, name)(leaf(x), **options)
            np.testing.assert_array_equal(found.detach().numpy(), expected)

    def test_conversions(self, xp):
        t = leaf()
        assert xp.asarray(t) is t
        assert xp.asarray(t, copy=True) is not t
        assert xp.asarray(t, copy=True).requires_grad
        assert xp.astype(t, xp.float64) is not t
        assert xp.astype(t, xp.float64, copy=False) is t
        assert xp.astype(t, xp.float32).dtype == np.float32
        assert xp.asarray([t[0, 0], 1.0]).requires_grad
        array = np.ones(2)
        assert np.shares_memory(xp.asarray(array).numpy(), array)
        assert not np.shares_memory(xp.asarray(array, copy=True).numpy(), array)
        with pytest.raises(ValueError, match="a copy is needed"):
            xp.asarray(t, dtype=xp.float32, copy=False)

    def test_makers(self, xp):
        found = xp.fft.fftfreq(4, d=0.5, dtype=xp.float32)
        np.testing.assert_array_equal(found, np.fft.fftfreq(4, 0.5).astype(np.float32))
        array = np.ones(2)
        assert np.shares_memory(xp.from_dlpack(array, device="cpu").numpy(), array)
        assert not np.shares_memory(xp.from_dlpack(array, copy=True).numpy(), array)

    def test_passive_functions(self, xp):
        np.testing.assert_array_equal(xp.isin(leaf(), xp.asarray([1.2])), np.isin(X, 1.2))

    def test_devices(self, xp):
        t = leaf()
        assert t.device == "cpu"
        assert t.to_device("cpu") is t
        assert xp.asarray(1.0, device="cpu").device == "cpu"
        assert "cpu" in xp.__array_namespace_info__().devices()
        for call in (lambda: t.to_device("tpu"), lambda: xp.asarray(1.0, device="tpu")):
            with pytest.raises(ValueError, match="'cpu' or on 'cuda'"):
                call()
        if tg.cuda.is_available():
            assert xp.asarray([1.0], device="cuda").device == "cuda:0"
            assert "cuda:0" in xp.__array_namespace_info__().devices()


class TestOtherLibraries:
    def test_compat(self, xp):
        t = leaf()
        assert array_api_compat.array_namespace(t, t) is xp
        assert array_api_compat.is_array_api_obj(t)
        assert array_api_compat.device(t) == "cpu"
        assert array_api_compat.size(t) == 6

    @pytest.mark.parametrize("name", ["cov", "sinc", "nan_to_num"])
    def test_extra(self, name):
        function = getattr(array_api_extra, name)
        found = function(leaf())
        assert found.requires_grad
        np.testing.assert_allclose(found.detach().numpy(), function(X))

    def test_functions_of_scipy(self):
        """SciPy asks arrays for their namespace if it is told to when it is imported."""
        program = """
import numpy as np, scipy.fft, scipy.special, scipy.stats
import tapegrad as tg

x = np.array([[0.3, 1.2, 2.2], [0.5, 0.7, 1.1]])
for f in (
    scipy.special.logsumexp,
    lambda x: scipy.special.softmax(x, axis=1),
    scipy.special.gammaln,
    scipy.special.digamma,
    scipy.special.sinc,
    scipy.special.expm1,
    lambda x: scipy.stats.skew(x, axis=None),
    lambda x: scipy.stats.gmean(x, axis=None),
    lambda x: abs(scipy.fft.fft(x)) ** 2,
):
    t = tg.tensor(x, requires_grad=True)
    np.testing.assert_allclose(f(t).detach().numpy(), f(x), rtol=1e-12)
    assert tg.autograd.gradcheck(f, t)
print("done")
"""
        environment = os.environ | {"SCIPY_ARRAY_API": "1"}
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, capture_output=True, text=True,
            env=environment,
        )  # fmt: skip
        assert done.stdout == "done\n", done.stderr
