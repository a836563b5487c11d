"""Fourier transforms in recorded functions: along any axes; of real numbers, by one half."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret, is_compiled

import tapegrad as tg
from tapegrad.transform import fourier as compiled_transforms
from tapegrad.transform.rules.numpy_functions import fourier

SHAPES = [(4, 6), (5, 7), (1, 9), (16, 3), (17, 12), (40, 2)]  # blocks have 16 lines
FACTORS = np.arange(1.0, 4.0)


def kept(z):
    """Return a number that depends on both parts of all elements."""
    weights = np.cos(np.arange(np.real(z).size)).reshape(np.real(z).shape)
    return tg.sum(np.real(z) * weights) + tg.sum(np.imag(z) ** 2)


FUNCTIONS = {
    "fft2": lambda x: kept(np.fft.fft2(x)),
    "one axis": lambda x: kept(np.fft.fft(x, axis=0)),
    "other order": lambda x: kept(np.fft.fft2(x, axes=(1, 0))),
    "one axis twice": lambda x: kept(np.fft.fft(np.fft.fft(x, axis=1), axis=1)),
    "ifft2": lambda x: kept(np.fft.ifft2(x)),
    "there and back": lambda x: kept(np.fft.ifft2(np.fft.fft2(x) * np.exp(1j * x))),
    "real part": lambda x: tg.sum(np.real(np.fft.ifft2(np.fft.fft2(x) ** 2)) ** 2),
    "complex": lambda x: kept(np.fft.fft2(x * (1 + 1j) + 1j * np.sin(x))),
    "used twice": lambda x: tg.sum(np.abs(np.fft.fft2(x)) ** 2 * x) + kept(np.fft.fft(x)),
    "rfft2": lambda x: kept(np.fft.rfft2(x)),
    "rfft of columns": lambda x: kept(np.fft.rfft(x, axis=0)),
    "irfft2": lambda x: tg.sum(np.fft.irfft2(np.fft.rfft2(x) * (1 + 0.5j), s=x.shape) ** 3),
    "irfft of columns": lambda x: tg.sum(np.fft.irfft(x * (1 + 0.5j), 7, axis=0) ** 3),
    "three axes": lambda x: kept(np.fft.fftn(x[:, :, None] * FACTORS)),
    "two of three axes": lambda x: kept(np.fft.fft2(x[:, :, None] * FACTORS, axes=(0, 2))),
    "four axes": lambda x: kept(np.fft.fftn(x[:, :, None, None] * FACTORS[:, None] * FACTORS[:2])),
    "five axes": lambda x: kept(np.fft.fftn((x[..., None] * FACTORS).reshape(*x.shape, 3, 1, 1))),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, shape, monkeypatch):
    interpret(monkeypatch)
    f, x = FUNCTIONS[name], np.sin(np.arange(np.prod(shape)) ** 2.0).reshape(shape)
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), f(x), 1e-11, 1e-11)


@pytest.mark.compiled
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    f, x = FUNCTIONS[name], np.sin(np.arange(35.0) ** 2.0).reshape(5, 7)
    jitted, direction = tg.jit(f), np.cos(x)
    assert_equal(tg.grad(jitted)(x), tg.grad(f)(x), 1e-10, 1e-10)
    assert_equal(tg.jvp(jitted, 0)(x, direction), tg.jvp(f, 0)(x, direction), 1e-10, 1e-10)
    assert_equal(tg.hvp(jitted)(x, direction), tg.hvp(f)(x, direction), 1e-9, 1e-9)


@pytest.mark.compiled
def test_items_of_a_batch():
    f, x = FUNCTIONS["fft2"], np.sin(np.arange(24.0) ** 2.0).reshape(2, 3, 4)
    found = tg.jit(tg.vmap(tg.grad(f)))(x)
    assert_equal(found, np.stack([tg.grad(f)(item) for item in x]), 1e-11, 1e-11)


@pytest.mark.parametrize("shape", [(3,), (4,), (2, 3, 4), (20, 5), (3, 20)], ids=str)
def test_transposes(shape):
    """Each linear function and its derivative are transposes of each other."""
    draw = np.random.default_rng(1)
    x, g = draw.normal(size=shape), draw.normal(size=(*shape, 2))
    for axis in range(len(shape)):
        for others in range(1 << len(shape)):
            if not others >> axis & 1:
                one = np.sum(fourier.whole_fourier_to_pairs(x, axis, others) * g)
                other = np.sum(fourier.real_adjoint_of_pairs(g, axis, others) * x)
                np.testing.assert_allclose(one, other, rtol=1e-11)


def test_pairs_are_not_taken_apart_between_transforms():
    def f(x):
        return kept(np.fft.ifft(np.fft.fft2(x * (1 + 1j)), axis=1))

    text = tg.jit(f).inspect(np.ones((6, 8)))
    assert text.count("_of_pairs(") == 3
    assert text.count("np.empty(") == 1


def test_transforms_of_real_numbers_are_one():
    text = tg.jit(FUNCTIONS["fft2"]).inspect(np.ones((6, 8)))
    assert text.count("fourier") == 1
    assert "whole_fourier_to_pairs(x0, 1, 1)" in text


# -- ducc0 -----------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The names of the functions of ducc0 that are called."""
    names, library = [], pytest.importorskip("ducc0").fft

    class Library:
        def __getattr__(self, name):
            names.append(name)
            return getattr(library, name)

    monkeypatch.setattr(compiled_transforms, "_library", Library)
    return names


LARGE = {
    **FUNCTIONS,
    "cut": lambda x: kept(np.fft.rfft(x, 40)) + kept(np.fft.fft(x * 1j, 40)),
    "filled": lambda x: kept(np.fft.rfft(x, 80, axis=0)) + kept(np.fft.ifft(x * 1j, 80)),
    "first items are complex": lambda x: tg.sum(np.fft.irfft(x * (1 + 1j), axis=0) ** 3),
}


@pytest.mark.compiled
@pytest.mark.parametrize("shape", [(48, 50), (49, 45)], ids=str)
@pytest.mark.parametrize("name", LARGE)
def test_large_transforms(name, shape, asked, monkeypatch):
    f, x = LARGE[name], np.sin(np.arange(np.prod(shape)) ** 2.0).reshape(shape)
    jitted = tg.jit(f)
    expected = tg.value_and_grad(f)(x)
    for _ in range(2):
        for one, other in zip(tg.value_and_grad(jitted)(x), expected):
            assert_equal(one, other, 1e-10, 1e-10)
        # then without ducc0
        monkeypatch.setattr(compiled_transforms, "_library", lambda: None)
    assert asked or name in ("irfft of columns", "cut")


@pytest.mark.parametrize(
    ("kind", "items", "results", "is_done"),
    [
        *((kind, 6, n, n == 6) for kind in ("FORWARD", "BACK") for n in (5, 6, 7)),
        *(("EVEN", 6, n, n == 4) for n in (3, 4, 5)),
        *(("ODD", 7, n, n == 4) for n in (3, 4, 5)),
        *(("EVEN", 7, 4, False), ("ODD", 6, 4, False)),
        *(("TO_REAL", 4, n, n in (6, 7)) for n in (5, 6, 7, 8)),
    ],
)
def test_what_ducc_transforms(kind, items, results, is_done, asked):
    """It neither cuts lines nor fills them up: that is left to NumPy."""
    x, out = np.ones(2 * items), np.zeros(2 * results)
    number = getattr(compiled_transforms, kind)
    words = np.array([number, out.ctypes.data, x.ctypes.data, 1, items, results, 1])
    assert compiled_transforms._transform_by_ducc(words.ctypes.data) == is_done
    assert bool(asked) == out.any() == is_done
