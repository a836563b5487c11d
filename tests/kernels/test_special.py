"""Special functions: accuracy against mpmath and special values, compiled and in plain Python."""

import ast
import inspect
import math

import mpmath as mp
import numba
import numpy as np
import pytest

from tapegrad.kernels.functions import special, vmath

INF, NAN = math.inf, math.nan
MAX, MIN_SUB = np.finfo(np.float64).max, 5e-324
PUBLIC = ["erf", "erfc", "log_gamma", "digamma", "polygamma"]


@pytest.fixture(scope="module", params=["python", "plain", "contract"])
def functions(request):
    """From names to array functions: in Python, or compiled as a generated module has them."""
    ns = {"math": math, "np": np}
    fastmath = {"contract"} if request.param == "contract" else False
    for module in (vmath, special):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ImportFrom):
                continue
            exec(compile(ast.Module([node], []), module.__file__, "exec"), ns)
            if isinstance(node, ast.FunctionDef) and request.param != "python":
                jit = numba.njit(error_model="numpy", forceinline=True, fastmath=fastmath)
                ns[node.name] = jit(ns[node.name])

    def mapped(f):
        def run(*args):
            with np.errstate(all="ignore"):
                return np.array([f(*map(float, a)) for a in zip(*args)])

        return run

    return {name: mapped(ns[name]) for name in PUBLIC}


def ulps(got, exact):
    """Distance of a finite double from an mpmath number in units of the last place."""
    exponent = mp.frexp(abs(exact))[1] if exact else -1074
    unit = mp.ldexp(1, max(int(exponent) - 53, -1074))
    return float(abs(mp.mpf(float(got)) - exact) / unit)


def check(got, exact, args, bound, error=ulps):
    """Every result within the bound, by the given measure of error."""
    with mp.workprec(200):
        errors = [error(g, exact(*map(mp.mpf, map(float, a)))) for g, *a in zip(got, *args)]
    i = int(np.argmax(errors))
    assert errors[i] <= bound, f"{tuple(float(a[i]) for a in args)}: {errors[i]:.3g}"


def relative(got, exact):
    return float(abs(mp.mpf(float(got)) - exact) / abs(exact))


def mixed(got, exact):
    """Absolute below 1, relative above."""
    return float(abs(mp.mpf(float(got)) - exact) / max(1, abs(exact)))


RNG = np.random.default_rng(20240608)
N = 60


def uniform(a, b):
    return RNG.uniform(a, b, N)


def log_uniform(a, b):
    return np.exp(RNG.uniform(np.log(a), np.log(b), N))


ERF_GRID = np.concatenate([uniform(-1.2, 1.2), uniform(-6.2, 6.2), log_uniform(MIN_SUB, 10)])
ERFC_GRID = np.concatenate([ERF_GRID, -ERF_GRID, uniform(-6, 27.3), uniform(26, 27.3)])
POSITIVE = np.concatenate([log_uniform(1e-9, 1e9), uniform(0.01, 12)])
NEGATIVE = np.concatenate([uniform(-30, 0), -log_uniform(1e-9, 1e6)])


def test_erf(functions):
    check(functions["erf"](ERF_GRID), mp.erf, (ERF_GRID,), 1.5)
    check(functions["erf"](-ERF_GRID), mp.erf, (-ERF_GRID,), 1.5)


def test_erfc(functions):
    check(functions["erfc"](ERFC_GRID), mp.erfc, (ERFC_GRID,), 4.0)


def test_log_gamma(functions):
    for x in (POSITIVE, NEGATIVE[:N]):
        check(functions["log_gamma"](x), lambda u: mp.loggamma(u).real, (x,), 1e-14, mixed)


def test_digamma(functions):
    for x in (POSITIVE, NEGATIVE):
        check(functions["digamma"](x), mp.digamma, (x,), 4e-15, mixed)
    x = POSITIVE[(POSITIVE < 1.2) | (POSITIVE > 1.8)]
    check(functions["digamma"](x), mp.digamma, (x,), 1e-14, relative)


def exact_polygamma(n, x):
    """(-1)**(n + 1) n! times the Hurwitz zeta function, by the Euler-Maclaurin formula.

    mpmath's own zeta loses digits for large x.
    """
    n, s = int(n), int(n) + 1
    terms = 60 + max(0, int(mp.ceil(-x)))
    b = x + terms
    total = sum((x + j) ** -s for j in range(terms)) + b ** (1 - s) / n + b**-s / 2
    f = mp.mpf(s) / b
    for j in range(1, 40):
        total += mp.bernoulli(2 * j) / mp.factorial(2 * j) * f * b**-s
        f *= (s + 2 * j - 1) * (s + 2 * j) / b**2
    return (-1) ** (n + 1) * mp.factorial(n) * total


@pytest.mark.parametrize("n", [1, 2, 3, 12, 100])
def test_polygamma(functions, n):
    rng = np.random.default_rng(n)
    x = np.exp(rng.uniform(np.log(0.06), np.log(3000), 15))
    order = np.full(15, float(n))
    check(functions["polygamma"](order, x), exact_polygamma, (order, x), 1e-14, relative)
    # Odd orders have no zeros; even ones have one between any two poles.
    x = rng.integers(-8, 0, 15) + rng.uniform(0.06, 0.4, 15)
    check(functions["polygamma"](order, x), exact_polygamma, (order, x), 3e-14, relative)


def test_polygamma_extremes(functions):
    cases = [
        (1, 1e300, 1e-300), (1, 1e-300, INF), (2, -1e-300, INF), (2, 1e-300, -INF),
        (200, 0.5, -INF), (170, 1e5, -0.0), (-1, 2.0, NAN), (0.5, 2.0, NAN), (INF, 2.0, NAN),
        (NAN, 2.0, NAN), (0, 1.0, -0.5772156649015329),
    ]  # fmt: skip
    n, x, expected = np.array(cases).T
    np.testing.assert_allclose(functions["polygamma"](n, x), expected, rtol=1e-14, atol=0)


SPECIAL = {
    "erf": [
        (0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (6.0, 1.0), (-MAX, -1.0),
        (MIN_SUB, MIN_SUB), (-MIN_SUB, -MIN_SUB),
    ],
    "erfc": [
        (0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (NAN, NAN), (MIN_SUB, 1.0), (-6.0, 2.0),
        (27.3, 0.0), (MAX, 0.0), (-MAX, 2.0),
    ],
    "log_gamma": [
        (0.0, INF), (-0.0, INF), (-1.0, INF), (-1e20, INF), (1.0, 0.0), (2.0, 0.0), (INF, INF),
        (-INF, INF), (NAN, NAN), (MAX, INF),
    ],
    "digamma": [
        (0.0, -INF), (-0.0, INF), (-1.0, NAN), (-1e20, NAN), (INF, INF), (-INF, NAN), (NAN, NAN),
    ],
}  # fmt: skip


def test_log_beta():
    """Small beside large arguments, poles, and poles that cancel, beside exact values."""
    points = [1e-10, 0.3, 1.0, 5.0, 9.9, 10.0, 99.0, 1e5, 1e12, -0.5, -2.5]
    for a in points:
        for b in points:
            with mp.workdps(60):
                beta = mp.gamma(a) * mp.gamma(b) * mp.rgamma(mp.mpf(a) + b)
                expected = float(mp.log(abs(beta))) if beta else -INF
            assert special.log_beta(a, b) == pytest.approx(expected, rel=1e-13, abs=1e-13)
    for n in (1.0, 2.0, 7.0):
        assert special.log_beta(-9.0, n) == pytest.approx(
            float(mp.log(mp.beta(10 - n, n))), rel=1e-14
        )
    special_values = [
        (0.0, 1.0, INF), (-3.0, 0.5, INF), (-2.0, INF, INF), (INF, 2.0, -INF), (INF, -0.5, INF),
        (-INF, 1.0, INF), (INF, INF, NAN), (NAN, 1.0, NAN), (0.0, NAN, NAN), (1e300, 2.0, None),
    ]  # fmt: skip
    for a, b, expected in special_values:
        wanted = -2.0 * np.log(1e300) if expected is None else expected
        for found in (special.log_beta(a, b), special.log_beta(b, a)):
            np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(functions, name):
    x, expected = np.array(SPECIAL[name]).T
    got = functions[name](x)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_polygamma_poles(functions, n):
    x = np.array([0.0, -0.0, -1.0, -2.0, INF, -INF, NAN])
    pole = INF if n % 2 else -INF
    expected = [pole, pole, pole, pole, 0.0, pole, NAN]
    if n == 0:
        expected = [-INF, INF, NAN, NAN, INF, NAN, NAN]
    np.testing.assert_array_equal(functions["polygamma"](np.full(7, float(n)), x), expected)
