"""Singular values, orthogonal factors, least squares and exponentials in recorded functions."""

import numpy as np
import pytest
from interpreted import assert_equal, is_compiled

import tapegrad as tg
from tapegrad.transform.rules.numpy_functions import decompositions, exponentials
from tapegrad.transform.rules.numpy_functions import hermitian as hermitian_rules

DRAW = np.random.default_rng(3)
SHAPES = [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1), (40, 12)]


def kept(x):
    """A number that depends on all elements."""
    return (x**3 * np.cos(np.arange(float(x.size)).reshape(x.shape))).sum()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_factors(shape, order):
    """Those of NumPy, with its signs, of matrices of any layout."""
    a = DRAW.normal(size=shape)
    given = np.repeat(a, 2, axis=1)[:, ::2] if order == "strided" else np.array(a, order=order)
    before = given.copy()
    assert_equal(
        decompositions.thin_svd_of_floats(given), np.linalg.svd(a, full_matrices=False), 1e-11
    )
    assert_equal(decompositions.qr_of_floats(given), np.linalg.qr(a), 1e-12, 1e-14)
    assert_equal(decompositions.pinv_of_floats(given, 1e-15), np.linalg.pinv(a), 1e-10, 1e-13)
    np.testing.assert_array_equal(given, before)


def test_matrix_without_full_rank():
    a = np.outer(np.arange(1.0, 5.0), [1.0, -2.0, 3.0])
    assert_equal(decompositions.pinv_of_floats(a, 1e-15), np.linalg.pinv(a), 1e-11, 1e-14)
    assert not decompositions.pinv_of_floats(np.zeros((3, 2)), 1e-15).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite(value):
    a = np.ones((3, 2))
    a[1, 1] = value
    with pytest.raises(np.linalg.LinAlgError, match="SVD did not converge"):
        decompositions.thin_svd_of_floats(a)
    assert np.isnan(exponentials.expm_of_floats(a[:2])).all()


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1.0, 30.0, 700.0])
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_exponentials(size, scale):
    scipy_linalg = pytest.importorskip("scipy.linalg")
    a = DRAW.normal(size=(size, size)) * scale / size
    a -= np.eye(size) * scale
    found, expected = exponentials.expm_of_floats(a), scipy_linalg.expm(a)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13 * abs(expected).max())


def hermitian(a):
    return a + a.T + 1j * (SKEW @ a - (SKEW @ a).T)


def evolution(a):
    """The exponential of a Hermitian matrix by its eigenvectors, whose phases do not matter."""
    w, v = np.linalg.eigh(hermitian(a))
    u = (v * np.exp(-0.3j * w)) @ np.conj(v).T
    return kept(u.real) + kept(abs(u))


SKEW = DRAW.normal(size=(4, 4))
TALL, WIDE = DRAW.normal(size=(6, 4)), DRAW.normal(size=(3, 5))
SQUARE, STACK = DRAW.normal(size=(4, 4)), DRAW.normal(size=(2, 5, 3))
RIGHT = DRAW.normal(size=(6, 2))
PROGRAMS = {
    "singular values": (lambda a: kept(np.linalg.svd(a, compute_uv=False)), TALL),
    "singular vectors": (lambda a: kept(abs(np.linalg.svd(a, full_matrices=False)[0])), WIDE),
    "of stacks": (lambda a: kept(np.linalg.svd(a, compute_uv=False)), STACK),
    "nuclear norm": (lambda a: np.linalg.norm(a, "nuc"), TALL),
    "triangular factor": (lambda a: kept(np.linalg.qr(a)[1]), TALL),
    "orthogonal factor": (lambda a: kept(np.linalg.qr(a)[0]), SQUARE),
    "factors of stacks": (lambda a: kept(np.linalg.qr(a)[1]), STACK),
    "pinv": (lambda a: kept(np.linalg.pinv(a)), TALL),
    "pinv of wide matrices": (lambda a: kept(np.linalg.pinv(a)), WIDE),
    "pinv with a limit": (lambda a: kept(np.linalg.pinv(a, rtol=1e-16)), TALL),
    "least squares": (lambda a: kept(np.linalg.lstsq(a, RIGHT[:, 0], rcond=None)[0]), TALL),
    "least squares of several": (lambda a: kept(np.linalg.lstsq(a, RIGHT)[0]), TALL),
    "right-hand sides": (lambda b: kept(np.linalg.lstsq(TALL, b, rcond=-1)[0]), RIGHT),
    "polynomial": (lambda y: kept(np.polyfit(np.arange(5.0), y, 2)), WIDE[0]),
    "exponential": (lambda a: kept(tg.linalg.expm(a)), SQUARE),
    "exponential, scaled": (lambda a: kept(tg.linalg.expm(a * 9.0 - np.eye(4) * 30.0)), SQUARE),
    "exponentials of stacks": (lambda a: kept(tg.linalg.expm(a[:, :3])), STACK),
    "complex exponential": (lambda a: kept(abs(tg.linalg.expm(1j * a + 0.1))), SQUARE),
    "hermitian eigenvalues": (lambda a: kept(np.linalg.eigvalsh(hermitian(a))), SQUARE),
    "hermitian eigenvectors": (lambda a: kept(abs(np.linalg.eigh(hermitian(a))[1])), SQUARE),
    "evolution": (evolution, SQUARE),
    "running maximum": (lambda a: kept(np.maximum.accumulate(a, axis=0)), TALL),
    "running maximum of columns": (lambda a: kept(tg.cummax(a)) + kept(tg.cummax(a, 1)), TALL),
    "running minimum": (lambda a: kept(np.minimum.accumulate(a, axis=1)), TALL),
    "running maximum of stacks": (lambda a: kept(np.maximum.accumulate(a, axis=1)), STACK),
    "drawdown": (lambda y: kept(y / np.maximum.accumulate(y)), WIDE[0] + 4.0),
    "logarithm of beta": (lambda a: kept(tg.special.betaln(abs(a) + 0.1, 20.0)), TALL),
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name):
    f, x = PROGRAMS[name]
    jitted, direction = tg.jit(f), np.cos(x)
    assert is_compiled(jitted.inspect(x)), jitted.inspect(x)
    assert_equal(tg.value_and_grad(jitted)(x), tg.value_and_grad(f)(x), 1e-9, 1e-10)
    assert_equal(tg.jvp(jitted, 0)(x, direction), tg.jvp(f, 0)(x, direction), 1e-9, 1e-10)
    assert_equal(tg.hvp(jitted)(x, direction), tg.hvp(f)(x, direction), 1e-7, 1e-8)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_hermitian_factors(n):
    """The lower triangle is read, and phases are NumPy's."""
    a = DRAW.normal(size=(n, n)) + 1j * DRAW.normal(size=(n, n))
    w, x, y = hermitian_rules.eigh_of_parts(np.array(a.real, order="F"), a.imag[:, ::1])
    expected = np.linalg.eigh(a)
    assert_equal(w, expected[0], 1e-11, 1e-12)
    assert_equal(x + 1j * y, expected[1], 1e-10, 1e-11)
    a[0, 0] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="converge"):
        hermitian_rules.eigh_of_parts(a.real.copy(), a.imag.copy())


def test_dependence_on_phases():
    jitted = tg.jit(lambda a: kept(np.linalg.eigh(hermitian(a))[1].real))
    with pytest.raises(RuntimeError, match="depends on this phase"):
        tg.grad(jitted)(SQUARE)


def test_running_extremes_of_special_values():
    for x in ([1.0, np.nan, 3.0, np.inf], [np.inf, -np.inf, np.nan, 0.0], [2.0, 2.0, 1.0, 2.0]):
        for function in (np.maximum.accumulate, np.minimum.accumulate):
            found = tg.jit(lambda x, function=function: function(x) * 1.0)(np.array(x))
            np.testing.assert_array_equal(found, function(x))


def test_limit_that_leaves_out_singular_values():
    """There may be no derivative, which compiled code does not find out."""
    jitted = tg.jit(lambda a: kept(np.linalg.pinv(a, rtol=0.5)))
    assert "in Python: pinv" in jitted.inspect(TALL)


def test_other_results_of_least_squares():
    def f(a):
        x, residuals, _, _ = np.linalg.lstsq(a, RIGHT, rcond=None)
        return kept(x) + residuals.sum()

    with pytest.warns(tg.OpByOpWarning, match="lstsq"):
        found = tg.value_and_grad(tg.jit(f))(TALL)
    assert_equal(found, tg.value_and_grad(f)(TALL), 1e-12)
