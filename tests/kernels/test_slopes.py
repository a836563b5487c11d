"""Functions that derivatives consist of: accuracy against mpmath, and special values."""

import math

import mpmath as mp
import numpy as np
import pytest

from tapegrad.kernels.functions import slopes

RNG = np.random.default_rng(0)
INF, NAN = math.inf, math.nan
NEAR = RNG.normal(size=300) * 10.0 ** RNG.integers(-12, 3, 300)
WIDE = RNG.choice([-1.0, 1.0], (2, 300)) * 10.0 ** RNG.uniform(-300.0, 300.0, (2, 300))
LARGE = 10.0 ** RNG.uniform(0.0, 15.0, 300)
PAIRS = (LARGE, LARGE + RNG.normal(size=300) * 30.0)

# with the arguments, and the largest error in units of the last place
FUNCTIONS = {
    "sigmoid_slope": (lambda x: mp.exp(-abs(x)) / (1 + mp.exp(-abs(x))) ** 2, [NEAR], 3),
    "tanh_slope": (lambda x: mp.sech(x) ** 2, [np.clip(NEAR, -354.0, 354.0)], 5),
    "exp_of_difference": (lambda x, y: mp.exp(x - y), PAIRS, 2),
    "share": (lambda x, y: 1 / (1 + mp.exp(y - x)), PAIRS, 5),
    "share2": (lambda x, y: 1 / (1 + mp.power(2, y - x)), PAIRS, 5),
    "inverted": (lambda x, y: x / (x * x + y * y), WIDE, 3),
    "log_ratio": (lambda x, y: mp.log(x / y), np.abs(WIDE), 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name):
    exact, arguments, bound = FUNCTIONS[name]
    function, limits = getattr(slopes, name), np.finfo(np.float64)
    compared = 0
    with np.errstate(all="ignore"), mp.workdps(400):
        for point in zip(*arguments, strict=True):
            want = exact(*map(mp.mpf, map(float, point)))
            if not limits.tiny < abs(want) < limits.max:
                continue
            found = float(function(*point))
            compared += 1
            assert abs(mp.mpf(found) - want) <= bound * np.spacing(abs(float(want))), point
    assert compared > 100


@pytest.mark.parametrize(
    ("name", "point", "expected"),
    [
        *(("sigmoid_slope", (x,), 0.0) for x in (INF, -INF)),
        *(("tanh_slope", (x,), 0.0) for x in (INF, -INF, 360.0)),
        *((name, (NAN,), NAN) for name in ("sigmoid_slope", "tanh_slope")),
        *(("exp_of_difference", (x, x), 1.0) for x in (INF, -INF)),
        *((name, (x, x), 0.5) for name in ("share", "share2") for x in (INF, -INF, 1e300)),
        *((name, (INF, 1.0), 1.0) for name in ("share", "share2")),
        *((name, (1.0, INF), 0.0) for name in ("share", "share2")),
        *((name, (NAN, 1.0), NAN) for name in ("share", "share2", "inverted", "log_ratio")),
        *(("inverted", point, 0.0) for point in [(INF, 1.0), (1.0, INF), (INF, INF)]),
        ("inverted", (0.0, 0.0), NAN),
        ("log_ratio", (1e-300, 1e300), -600.0 * math.log(10.0)),
        ("log_ratio", (0.0, 1.0), -INF),
        ("log_ratio", (1.0, 0.0), INF),
        ("log_ratio", (-1.0, 1.0), NAN),
    ],
)
def test_special_values(name, point, expected):
    with np.errstate(all="ignore"):
        found = getattr(slopes, name)(*map(np.float64, point))
    np.testing.assert_allclose(found, expected, rtol=1e-15)
