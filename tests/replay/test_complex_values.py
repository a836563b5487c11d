"""Recorded functions of complex values: pairs of real ones in compiled code."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret, is_compiled

import tapegrad as tg
from tapegrad.transform import fourier

DRAW = np.random.default_rng(7)
X = DRAW.uniform(0.3, 1.2, 6)
Y = DRAW.uniform(-1.0, 1.0, 6)
M = DRAW.normal(size=(6, 6))
CODES = np.exp(1j * np.linspace(0.1, 2.0, 6))


def complex_of(x, y):
    return x + 1j * y


def kept(z):
    """A number that depends on both parts of all elements."""
    weights = np.cos(np.arange(z.size)).reshape(z.shape)
    return (z.real * weights).sum() + (z.imag * z.imag * (1.0 + weights)).sum()


def step(state, x):
    state = state * np.exp(1j * x) + 0.1
    return state, abs(state) * state.real


def scanned(x, y):
    end, lengths = tg.scan(step, complex_of(x[:3], y[:3]), x)
    return kept(end) + lengths.sum()


def pairs_go_round(x, y):
    def both(i, states):
        one, other, count = states
        return other * np.exp(1j * x[i]), one + 0.5, count + x[i]

    one, other, count = tg.fori_loop(0, 4, both, (x[:2] + 0j, complex_of(x[1:3], y[1:3]), 0.0))
    return kept(one) + kept(other) * count


def until_small(x, y):
    def is_large(z):
        return abs(z) > 0.1

    return kept(
        tg.while_loop(is_large, lambda z: z * (0.5 + 0.1j) * np.cos(x[1]), x[0] + 1j * y[0])
    )


def chosen(x, y):
    z = complex_of(x, y)
    return kept(tg.cond(y[0] > 0.0, lambda z: z * z, lambda z: z.conj() * 2.0j, z))


def written(x, y):
    z = x * 0.5j
    z[1:4] = complex_of(x[:3], y[:3])
    z[0] = 2.0j * x[0]
    z[5] = x[1]
    return kept(z * CODES)


PROGRAMS = {
    "sums": lambda x, y: kept(complex_of(x, y) + x - 2.0j + (x - complex_of(y, x))),
    "products": lambda x, y: kept(complex_of(x, y) * complex_of(y, x) * x * (1.0 - 2.0j) * CODES),
    "quotients": lambda x, y: kept(complex_of(x, y) / complex_of(y, x) + 2.0 / complex_of(x, y)),
    "quotients by numbers": lambda x, y: kept(complex_of(x, y) / x / 2.0 / (0.3 - 1.0j)),
    "powers": lambda x, y: kept(complex_of(x, y) ** 3 + complex_of(x, y) ** -2),
    "squares": lambda x, y: kept(np.square(complex_of(x, y)) - (-complex_of(y, x))),
    "exponentials": lambda x, y: kept(np.exp(complex_of(x, y)) + np.exp(2j * y)),
    "logarithms": lambda x, y: kept(np.log(complex_of(x, y))),
    "roots": lambda x, y: kept(np.sqrt(complex_of(x, y)) + np.sqrt(complex_of(-x, y))),
    "waves": lambda x, y: kept(np.sin(complex_of(x, y)) + np.cos(complex_of(y, x))),
    "hyperbolic": lambda x, y: kept(np.sinh(complex_of(x, y)) + np.cosh(complex_of(y, x))),
    "tangents": lambda x, y: kept(np.tanh(complex_of(x, y)) + np.tan(complex_of(30.0 * y, x))),
    "differences to 1": lambda x, y: kept(np.expm1(complex_of(x, y)) * np.log1p(complex_of(y, x))),
    "other bases": lambda x, y: kept(
        np.log2(complex_of(x, y)) + np.log10(complex_of(y, x)) + np.exp2(complex_of(x, y))
    ),
    "signs": lambda x, y: kept(np.sign(complex_of(x, y) * np.array([1, 1, 0, 1, 1, 1]))),
    "norms": lambda x, y: (
        np.linalg.norm(complex_of(x, y)) + kept(np.std(complex_of(x, y).reshape(2, 3), axis=1) + 0j)
    ),
    "other powers": lambda x, y: kept(complex_of(x, y) ** 2.5 + complex_of(x, y) ** (0.5 - 1.0j)),
    "powers of complex numbers": lambda x, y: kept(x ** complex_of(y, x) + 2.0 ** complex_of(x, y)),
    "sums over indices": lambda x, y: kept(
        np.einsum("i,ij->j", complex_of(x, y), M)
        + np.einsum("ij,jk,k->i", M, 1j * M, complex_of(y, x))
        + np.einsum("ii->i", np.outer(complex_of(x, y), CODES))
    ),
    "lengths": lambda x, y: (abs(complex_of(x, y)) ** 2).sum() + abs(1j * x).sum(),
    "angles": lambda x, y: np.angle(complex_of(x, y)).sum(),
    "conjugates": lambda x, y: kept(complex_of(x, y).conj() * complex_of(y, x)),
    "choices": lambda x, y: kept(np.where(y > 0.0, complex_of(x, y), x * 2.0)),
    "views": lambda x, y: kept(complex_of(x, y).reshape(2, 3).T[1:, ::-1]),
    "gathered": lambda x, y: kept(complex_of(x, y)[[0, 3, 3, 1]]),
    "stacked": lambda x, y: kept(np.stack([complex_of(x, y), x, CODES])),
    "joined": lambda x, y: kept(np.concatenate([complex_of(x, y)[:2], y, 1j * x])),
    "matrix products": lambda x, y: kept((M + 1j * M.T) @ complex_of(x, y) @ (M * 1j)),
    "inner products": lambda x, y: np.vdot(complex_of(x, y), complex_of(y, x)).imag,
    "outer products": lambda x, y: kept(np.outer(complex_of(x, y), CODES)),
    "sums of rows": lambda x, y: kept((complex_of(x, y)[:, None] * CODES).sum(0)),
    "means": lambda x, y: kept(np.mean(np.outer(CODES, complex_of(x, y)), axis=1)),
    "systems": lambda x, y: kept(
        np.linalg.solve(M + 1j * np.diag(x), y)
        + np.linalg.solve(M * 3.0 + np.diag(x), complex_of(x, y))
        + np.linalg.solve(M * 1j + np.diag(x), np.outer(complex_of(x, y), CODES))
    ),
    "stacks of systems": lambda x, y: kept(
        np.linalg.solve(
            np.stack([M + 1j * np.diag(x), M * 2.0 - 1j * np.diag(y)]), np.outer(CODES, x)
        )
    ),
    "inverses": lambda x, y: kept(np.linalg.inv(M + 1j * np.diag(x)) @ y),
    "running sums": lambda x, y: kept(np.cumsum(complex_of(x, y))),
    "written": written,
    "scanned": scanned,
    "pairs go round": pairs_go_round,
    "until small": until_small,
    "chosen": chosen,
    "parts": lambda x, y: (complex_of(x, y).real * complex_of(x, y).imag).sum(),
    "equal": lambda x, y: kept(
        np.where(complex_of(x, y) == complex_of(x, x), 1.0 + 1.0j, CODES * x)
    ),
}
TRANSFORMS = {
    "fft": lambda x, y: kept(np.fft.fft(complex_of(x, y))),
    "fft of real numbers": lambda x, y: kept(np.fft.fft(x) * y),
    "padded": lambda x, y: kept(np.fft.fft(complex_of(x, y), 9) + np.fft.fft(x, 4).sum()),
    "inverse": lambda x, y: kept(np.fft.ifft(np.fft.fft(x) * np.exp(1j * y), norm="ortho")),
    "rfft": lambda x, y: kept(np.fft.rfft(x * y) + np.fft.rfft(x, 7)),
    "irfft": lambda x, y: (np.fft.irfft(complex_of(x, y)) * np.arange(10.0)).sum(),
    "odd irfft": lambda x, y: (np.fft.irfft(complex_of(x, y), 7) ** 2).sum(),
    "hfft": lambda x, y: (np.fft.hfft(complex_of(x, y)) ** 2).sum() + kept(np.fft.ihfft(x)),
    "first axis": lambda x, y: kept(np.fft.fft(complex_of(x, y).reshape(3, 2), axis=0)),
    "fft2": lambda x, y: kept(np.fft.fft2(complex_of(x, y).reshape(2, 3) * y[0])),
    "rfft2": lambda x, y: kept(np.fft.irfft2(np.fft.rfft2(np.outer(x, y)) ** 2, s=(6, 6)) + 0j),
    "fftn": lambda x, y: kept(np.fft.fftn(np.outer(x, y).reshape(2, 3, 6), axes=(0, 2))),
    "shifted": lambda x, y: kept(np.fft.fftshift(np.fft.fft(x)) * CODES * y),
    "filter": lambda x, y: (np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(y).conj(), 6) ** 3).sum(),
}
PROGRAMS |= TRANSFORMS
OF_COMPLEX = {
    "number": lambda z, w: kept(z * w + 1.0),
    "array": lambda z, w: z * w.conj() + 2.0j,
    "both": lambda z, w: (z / w, abs(z) ** 2, w.real),
    "unchanged": lambda z, w: (z, w * 1.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, monkeypatch):
    f = PROGRAMS[name]
    interpret(monkeypatch)
    jitted = tg.jit(f)
    for x, y in ((X, Y), (-X[::-1].copy(), Y * 2.0)):
        assert is_compiled(jitted.inspect(x, y))
        assert_equal(jitted(x, y), f(tg.tensor(x), tg.tensor(y)), 1e-13, 1e-13)


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_arguments_and_results(name, monkeypatch):
    f = OF_COMPLEX[name]
    interpret(monkeypatch)
    z, w = X + 1j * Y, CODES * (2.0 - 1.0j)
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(z, w))
    found = jitted(z, w)
    assert_equal(found, f(tg.tensor(z), tg.tensor(w)), 1e-13, 1e-13)


@pytest.mark.compiled
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name):
    f = PROGRAMS[name]
    jitted = tg.jit(f)
    value, gradient = tg.value_and_grad(jitted, (0, 1))(X, Y)
    expected = tg.value_and_grad(f, (0, 1))(X, Y)
    assert_equal(value, expected[0], 1e-12, 1e-13)
    assert_equal(gradient, expected[1], 1e-11, 1e-12)
    found = tg.jvp(jitted, (0, 1))(X, Y, Y, X)
    assert_equal(found, tg.jvp(f, (0, 1))(X, Y, Y, X), 1e-11, 1e-12)
    if name not in ("chosen", "until small", "scanned", "pairs go round"):
        assert_equal(tg.hvp(jitted)(X, Y, X), tg.hvp(f)(X, Y, X), 1e-10, 1e-11)


def test_zero_to_powers(monkeypatch):
    interpret(monkeypatch)
    z = np.array([0j, 1j, -1.0 + 0j])
    for f in (lambda z: z**1.5, lambda z: z ** (1.5 + 1.0j)):
        assert_equal(tg.jit(f)(z), f(z), 1e-14, 1e-14)


def test_large_tangents(monkeypatch):
    interpret(monkeypatch)
    z = np.array([400.0 + 1.0j, -400.0 + 2.0j, 20.0 + 0.3j, 0j, 1e-9j])
    assert_equal(tg.jit(np.tanh)(z), np.tanh(z), 1e-13)
    assert_equal(tg.jit(np.tan)(z[2:] * 1j), np.tan(z[2:] * 1j), 1e-13)


OF_COMPLEX_TO_NUMBERS = {
    "lengths": lambda z, w: (abs(z * w) ** 2).sum(),
    "transform": lambda z, w: kept(np.fft.fft(z) * w),
    "parts": lambda z, w: (np.real(z) * np.imag(w)).sum(),
    "one of both": lambda z, w: kept(w.conj()),
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", OF_COMPLEX_TO_NUMBERS)
def test_gradients_of_complex_arguments(name):
    f = OF_COMPLEX_TO_NUMBERS[name]
    z, w = X + 1j * Y, CODES * (2.0 - 1.0j)
    found = tg.grad(tg.jit(f), (0, 1))(z, w)
    assert_equal(found, tg.grad(f, (0, 1))(z, w), 1e-11, 1e-12)
    given = [tg.tensor(a, requires_grad=True) for a in (z, w)]
    tg.jit(f)(*given).backward()
    assert_equal([a.grad for a in given], found, 1e-11, 1e-12)


def test_quotients_do_not_overflow(monkeypatch):
    interpret(monkeypatch)
    z = np.array([1e200 + 1e-200j, 1e-200 + 1e200j, 3e-250 - 4e-250j])
    jitted = tg.jit(lambda z: (1.0 + 2.0j) / z)
    assert is_compiled(jitted.inspect(z))
    assert_equal(jitted(z), (1.0 + 2.0j) / z, 1e-15)


def test_roots_of_both_sides_of_the_cut(monkeypatch):
    interpret(monkeypatch)
    z = np.array([complex(-4.0, 0.0), complex(-4.0, -0.0), 0j, 4.0 + 0j, -3.0 + 4.0j, -3.0 - 4.0j])
    jitted = tg.jit(np.sqrt)
    assert is_compiled(jitted.inspect(z))
    assert_equal(jitted(z), np.sqrt(z), 1e-15)


def test_what_is_not_known_is_computed_from_complex_values():
    z = X + 1j * Y
    jitted = tg.jit(lambda z: kept(np.arctan(z * z) + 1j * z))
    assert "in Python: arctan" in jitted.inspect(z)
    assert_equal(jitted(z), kept(np.arctan(z * z) + 1j * z), 1e-13)


def test_transforms_of_an_unknown_numpy_run_in_python(monkeypatch):
    interpret(monkeypatch)
    monkeypatch.setattr(fourier, "IS_AVAILABLE", False)

    def f(x):
        return kept(np.fft.fft(x * 2.0) + np.sin(x) * x)

    jitted = tg.jit(f)
    assert "in Python: whole_fourier_to_pairs" in jitted.inspect(X)
    assert_equal(jitted(X), f(X), 1e-13)


@pytest.mark.parametrize("name", ["product", "conversion"])
def test_arguments_of_single_precision_keep_their_imaginary_parts(name):
    functions = {
        "product": lambda z, w: z * w,
        "conversion": lambda z, w: abs(z.astype(np.complex128) * w).sum(),
    }
    z, w = (X + 1j * Y).astype(np.complex64), CODES * 2.0
    f = functions[name]
    assert_equal(tg.jit(f)(z, w), f(tg.tensor(z), tg.tensor(w)), 1e-13, 1e-13)
