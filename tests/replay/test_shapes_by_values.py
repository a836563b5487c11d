"""Functions whose results have other shapes for other values than those of the recording."""

import numpy as np
import pytest

import tapegrad as tg

SOME, OTHER = np.array([1.0, -1.0, 2.0, 0.5]), np.array([-1.0, 1.0, -3.0, -2.0])


def written(x):
    v = x * 1.0
    v[np.nonzero(v < 0)] = 0.25
    return tg.sum(v * x)


def residuals(x):
    a = tg.stack([x, x * x]).T  # of rank 2, 1 or 0
    found = tg.linalg.lstsq(a, tg.arange(4.0))[1]
    return tg.sum(x) + found.shape[0]


PROGRAMS = {
    "written": written,
    "read": lambda x: tg.sum(x * np.where(x > 0)[0].mean()),
    "number alone": lambda x: tg.sum(x * x) / np.nonzero(x > 0)[0].size,
    "in a loop": lambda x: tg.fori_loop(
        0, 3, lambda i, s: s * 1.0 + np.nonzero(x > 0)[0].size, tg.sum(x)
    ),
    "compress": lambda x: tg.sum(np.compress(x > 0, x)),
    "number of compress": lambda x: len(np.compress(x > 0, x)) * tg.sum(x),
    "extract": lambda x: tg.sum(np.extract(x > 0, x)),
    "delete": lambda x: tg.sum(np.delete(x, x > 0)),
    "insert": lambda x: tg.sum(np.insert(x, np.nonzero(x > 0)[0], x.sum())),
    "repeat": lambda x: tg.sum(tg.repeat(x, tg.where(x > 0, 2, 1).astype(np.int64)) * 1.5),
    "apply_along_axis": lambda x: tg.sum(np.apply_along_axis(lambda t: t[t > 0], 0, x)),
    "split": lambda x: len(np.split(x, np.nonzero(x > 0)[0])) * tg.sum(x),
    "lstsq": residuals,
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_values(name):
    f = PROGRAMS[name]
    jitted, gradient, gradient_inside = tg.jit(f), tg.grad(tg.jit(f)), tg.jit(tg.grad(f))
    for x in (SOME, OTHER, 2.0 * SOME, np.ones(4), OTHER):
        np.testing.assert_allclose(jitted(x), f(tg.tensor(x)).numpy(), rtol=1e-12)
        if name != "lstsq" or x is not OTHER:
            expected = tg.grad(f)(x)
            np.testing.assert_allclose(gradient(x), expected, rtol=1e-12)
            np.testing.assert_allclose(gradient_inside(x), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["tile", "repeat", "vander", "diff", "array_split"])
def test_other_numbers(name):
    def f(x, n):
        found = getattr(tg, name)(x, n)
        parts = found if isinstance(found, (list, tuple)) else [found]
        return tg.sum(parts[0]) * len(parts)

    jitted = tg.jit(f)
    for n in (2, 3, 2, 1):
        np.testing.assert_allclose(jitted(SOME, n), f(tg.tensor(SOME), n).numpy(), rtol=1e-12)


def test_reason():
    jitted = tg.jit(PROGRAMS["compress"])
    jitted(SOME)
    jitted(OTHER)
    assert "the shape of what compress returns depends on values" in jitted.inspect(OTHER)


def test_sizes_are_static():
    def f(x, n):
        return tg.sum(x) * tg.sum(tg.fft.fftfreq(n) ** 2)

    with pytest.raises(tg.RecordingError, match="static_argnums"):
        tg.jit(f)(SOME, 3)
    found = tg.jit(f, static_argnums=1)(SOME, 3)
    np.testing.assert_allclose(found, f(tg.tensor(SOME), 3).numpy(), rtol=1e-12)


def test_exponents_of_matrices():
    def f(x, n):
        return tg.sum(tg.linalg.matrix_power(tg.outer(x, x), n))

    jitted = tg.jit(f)
    for n in (2, 3, 0, 1):
        np.testing.assert_allclose(jitted(SOME, n), f(tg.tensor(SOME), n).numpy(), rtol=1e-12)
