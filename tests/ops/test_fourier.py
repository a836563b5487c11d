"""Fourier transforms: values of NumPy, gradients of any order, one-sided and real spectra."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck

ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"]
NORMS = [None, "backward", "ortho", "forward"]


def data(name, shape, dtype=np.float64):
    rng = np.random.default_rng(len(name) + len(shape))
    real = rng.normal(size=shape)
    if name.startswith(("rfft", "ihfft")):
        return real.astype(dtype)
    found = real + 1j * rng.normal(size=shape)
    return found.astype(np.result_type(dtype, np.complex64))


def both(name):
    return getattr(tg.fft, name), getattr(np.fft, name)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [None, 1, 4, 5, 8, 9])
@pytest.mark.parametrize("name", ONE)
class TestOneAxis:
    @pytest.mark.parametrize("length", [5, 6])
    def test_values(self, name, n, norm, length):
        ours, numpys = both(name)
        for axis, shape in ((-1, (2, length)), (0, (length, 2)), (0, (length,))):
            x = data(name, shape)
            expected = numpys(x, n, axis, norm)
            for found in (
                ours(tg.tensor(x), n, axis, norm),
                numpys(tg.tensor(x), n=n, axis=axis, norm=norm),
                ours(x, n, axis, norm),
            ):
                assert isinstance(found, tg.Tensor)
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)

    def test_derivatives(self, name, n, norm):
        ours, _ = both(name)
        for shape, axis in (((2, 5), -1), ((6,), 0)):
            x = tg.tensor(data(name, shape), requires_grad=True)
            assert gradcheck(lambda x, axis=axis: ours(x, n, axis, norm), (x,))
            assert gradgradcheck(lambda x, axis=axis: ours(x, n, axis, norm) ** 2, (x,))


@pytest.mark.parametrize("name", SEVERAL)
class TestSeveralAxes:
    OPTIONS = (
        {},
        {"axes": (0, 2)},
        {"axes": (2, 1), "norm": "ortho"},
        {"s": (4, 6), "axes": (1, 2)},
        {"s": (2, -1), "axes": (0, 1), "norm": "forward"},
    )

    @pytest.mark.parametrize("options", OPTIONS)
    def test_values(self, name, options):
        ours, numpys = both(name)
        x = data(name, (3, 4, 5))
        expected = numpys(x, **options)
        for found in (ours(tg.tensor(x), **options), numpys(tg.tensor(x), **options)):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)

    def test_one_axis_twice(self, name):
        ours, numpys = both(name)
        x = data(name, (3, 4))
        found = ours(tg.tensor(x), axes=(1, 1)).numpy()
        np.testing.assert_allclose(found, numpys(x, axes=(1, 1)), atol=1e-12)

    def test_derivatives(self, name):
        ours, _ = both(name)
        x = tg.tensor(data(name, (3, 4)), requires_grad=True)
        assert gradcheck(lambda x: ours(x, axes=(0, 1)), (x,))
        assert gradgradcheck(lambda x: ours(x, s=(2, 6), axes=(0, 1)) ** 2, (x,))


class TestPrecisionsAndTypes:
    @pytest.mark.parametrize("name", [*ONE, *SEVERAL])
    def test_single_precision_stays(self, name):
        ours, numpys = both(name)
        x = data(name, (4, 6), np.float32)
        found = ours(tg.tensor(x, requires_grad=True))
        assert found.dtype == numpys(x).dtype
        assert found.dtype.itemsize in (4, 8)
        (found.real**2).sum().backward()

    @pytest.mark.parametrize("name", ["fft", "ifft", "fftn", "ifft2"])
    def test_real_numbers_have_real_gradients(self, name):
        ours, _ = both(name)
        x = tg.tensor(np.random.default_rng(1).normal(size=(3, 4)), requires_grad=True)
        assert gradcheck(ours, (x,))
        ours(x).real.sum().backward()
        assert x.grad.dtype == np.float64

    @pytest.mark.parametrize("name", ONE)
    def test_integers(self, name):
        ours, numpys = both(name)
        found = ours(tg.tensor([1, 2, 3, 4]))
        np.testing.assert_allclose(found.numpy(), numpys([1, 2, 3, 4]), rtol=1e-14)

    def test_power_of_a_spectrum(self):
        """The theorem of Parseval: the gradient of the power is the signal, scaled."""
        x = np.random.default_rng(2).normal(size=7)
        found = tg.grad(lambda x: tg.sum(tg.absolute(tg.fft.fft(x)) ** 2))(x)
        np.testing.assert_allclose(found, 2 * 7 * x, rtol=1e-12)

    def test_convolution(self):
        rng = np.random.default_rng(3)
        x, k = rng.normal(size=6), rng.normal(size=6)

        def direct(k):
            return np.array([sum(x[j] * k[(i - j) % 6] for j in range(6)) for i in range(6)])

        jacobian = tg.jacobian(lambda k: np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(k), 6))(k)
        expected = np.stack([direct(row) for row in np.eye(6)], 1)
        np.testing.assert_allclose(jacobian, expected, atol=1e-12)


class TestShifts:
    @pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
    @pytest.mark.parametrize("axes", [None, 0, (1,), (0, 1), -1])
    def test_values_and_derivatives(self, name, axes):
        ours, numpys = both(name)
        x = np.arange(15.0).reshape(3, 5)
        t = tg.tensor(x, requires_grad=True)
        np.testing.assert_array_equal(ours(t, axes).detach().numpy(), numpys(x, axes))
        np.testing.assert_array_equal(numpys(t, axes).detach().numpy(), numpys(x, axes))
        assert gradcheck(lambda t: ours(t, axes), (t,))

    @pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
    def test_frequencies(self, name):
        ours, numpys = both(name)
        np.testing.assert_array_equal(ours(7, 0.1).numpy(), numpys(7, 0.1))


class TestOptions:
    def test_out(self):
        x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        out = tg.tensor(np.zeros(3, complex))
        assert np.fft.fft(x, out=out) is out
        np.testing.assert_allclose(out.detach().numpy(), np.fft.fft([1.0, 2.0, 3.0]))
        (out.real**2).sum().backward()
        assert x.grad is not None
        with pytest.raises(TypeError, match="cannot hold a gradient"):
            np.fft.fft(x, out=np.zeros(3, complex))

    def test_refused(self):
        with pytest.raises(TypeError, match="rfft is of real numbers, and got complex128"):
            tg.fft.rfft(tg.tensor([1j, 2.0]))
        with pytest.raises(ValueError, match=r"fft: invalid number of data points \(0\)"):
            tg.fft.fft(tg.ones(3), 0)
        with pytest.raises(ValueError, match="invalid number of data points"):
            tg.fft.irfft(tg.ones(1))
        with pytest.raises(ValueError, match="norm 'unitary' is none of"):
            tg.fft.fft(tg.ones(3), norm="unitary")
        with pytest.raises(ValueError, match="`s` has 1 lengths for 2 axes"):
            tg.fft.fftn(tg.ones((2, 2)), s=(1,), axes=(0, 1))

    def test_results_own_their_memory(self):
        x = tg.tensor([1 + 0j])
        for name in ("fft", "ifft", "fftn", "fftshift", "ifftshift"):
            found = getattr(tg.fft, name)(x)
            assert not np.shares_memory(found.numpy(), x.numpy()), name
