"""First and second derivatives of every elementwise function, in ulp, beside mpmath.

The bounds are those of docs/accuracy.md. Values are differentiated by differences with hundreds of
digits, so that no formula for a derivative is assumed.
"""

import functools
import math
import re
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops.table.array_kinds import Pointwise
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform.rules.numpy_functions import complex_functions

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
ROW = re.compile(r"\| ((?:`\w+`,? ?)+)\| ([\d.e]+|-) \| ([\d.e]+|-) \|")
DEFAULT = 10.0
DTYPES = [np.float64, np.float32]


def bounds_of_page():
    """Bounds of first and second derivatives by name; None where there is none."""
    found = {}
    for names, *bounds in ROW.findall(PAGE.read_text()):
        pair = tuple(None if bound == "-" else float(bound) for bound in bounds)
        found |= dict.fromkeys(re.findall(r"\w+", names), pair)
    return found


BOUNDS = bounds_of_page()


def _softplus(x):
    return max(x, 0) + mp.log1p(mp.exp(-abs(x)))


def _logaddexp(x, y):
    return x + _softplus(y - x)


EXACT = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "negative": lambda x: -x,
    "positive": lambda x: x,
    "reciprocal": lambda x: 1 / x,
    "power": mp.power,
    "square": lambda x: x * x,
    "sqrt": mp.sqrt,
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "absolute": abs,
    "hypot": mp.hypot,
    "exp": mp.exp,
    "exp2": lambda x: mp.power(2, x),
    "expm1": mp.expm1,
    "log": mp.log,
    "log2": lambda x: mp.log(x) / mp.log(2),
    "log10": lambda x: mp.log(x) / mp.log(10),
    "log1p": mp.log1p,
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "arcsin": mp.asin,
    "arccos": mp.acos,
    "arctan": mp.atan,
    "arctan2": mp.atan2,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "arcsinh": mp.asinh,
    "arccosh": mp.acosh,
    "arctanh": mp.atanh,
    "sinc": lambda x: mp.sin(mp.pi * x) / (mp.pi * x),
    "logaddexp": _logaddexp,
    "logaddexp2": lambda x, y: _logaddexp(x * mp.log(2), y * mp.log(2)) / mp.log(2),
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "softplus": _softplus,
    "relu": lambda x: max(x, 0),
    "erf": mp.erf,
    "erfc": mp.erfc,
    "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x),
    "ndtr": lambda x: mp.erfc(-x / mp.sqrt(2)) / 2,
    "log_ndtr": lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2),
    "logit": lambda p: mp.log(p) - mp.log(1 - p),
    "xlogy": lambda x, y: x * mp.log(y),
    "xlog1py": lambda x, y: x * mp.log1p(y),
    "rel_entr": lambda x, y: x * mp.log(x / y),
    "entr": lambda x: -x * mp.log(x) if x > 0 else mp.mpc(0, 1),
    "gammaln": lambda x: mp.re(mp.loggamma(x)),
    "digamma": mp.digamma,
    "gamma": mp.gamma,
}
STEPS = {
    *("where", "maximum", "minimum", "fmax", "fmin", "sign", "floor", "ceil", "rint", "trunc"),
    *("floor_divide", "mod", "fmod", "conjugate", "angle", "larger_of_ties", "ties_of_larger"),
}
"""Their derivatives are constants or quotients rounded to integers; see test_elementwise.py."""
WITHOUT_BOUND = {name for name, bounds in BOUNDS.items() if bounds == (None, None)}
SLOW = {"gammaln", "digamma", "gamma"}  # in hundreds of digits

TAILS = 10.0 ** np.concatenate(
    [np.arange(-300.0, 0.0, 60), np.arange(-16.0, 21, 4), [60, 150, 280]]
)
MIDDLE = np.geomspace(1e-3, 1e3, 16)
BESIDE_1 = np.concatenate([1 - 2.0 ** -np.arange(2, 54, 10), 1 + 2.0 ** -np.arange(2, 53, 10)])
EDGES = [18.7, 26.5, 36.8, 37.4, 43.7, 88.0, 103.0, 700.3, 709.5, 745.0, 1023.9, 1024.2]
FEW = [1e-60, 1e-8, 0.4, 1.0, 19.0, 350.0, 1e4, 1e60]


def grid(count, dtype):
    """Points of both signs, none of them 0 or infinite."""
    points = np.concatenate([TAILS, MIDDLE, BESIDE_1, EDGES]) if count == 1 else np.array(FEW)
    points = points * np.where(np.isin(points, [*BESIDE_1, *EDGES]), 1.0, 1.0173)
    with np.errstate(all="ignore"):
        single = points.astype(np.float32)  # where it can be, points are those of both types
        points = np.where(np.isfinite(single) & (abs(points - 1.0) > 1e-6), single, points)
        points = np.unique(np.concatenate([-points, points]).astype(dtype))
    points = points[np.isfinite(points) & (points != 0.0)]
    found = np.meshgrid(*(points * dtype(1.0 + 0.37 * k) for k in range(count)))
    return [array.ravel() for array in found]


@functools.cache
def exact(name, places, point):
    """A derivative by differences, or None outside of the domain."""
    farthest = max(abs(math.log10(abs(x))) for x in point)
    if name in SLOW and not 0.0 < point[0] < 1e30:
        return None  # between poles
    if (name == "power" and farthest > 8) or (name == "log_ndtr" and farthest > 15):
        return None  # see the page
    digits = 300 if name in SLOW else 700 + int(7 * max(farthest - 8, 0))
    with mp.workdps(digits):
        args = [mp.mpf(x) for x in point]
        # with a Gaussian factor, functions vary by the inverse of a large argument
        steps = [min(abs(x), 1 / max(abs(x), 1)) * mp.mpf(10) ** -40 for x in args]
        if name not in ("erfcx", "ndtr", "log_ndtr", "erf", "erfc"):
            steps = [min(abs(x), 1) * mp.mpf(10) ** -40 for x in args]
        total = mp.mpf(0)
        moves = [(1, ())]
        for place in places:
            moves = [(s * side, (*m, (place, side))) for s, m in moves for side in (1, -1)]
        largest = mp.mpf(0)
        try:
            for sign, move in moves:
                moved = list(args)
                for place, side in move:
                    moved[place] = moved[place] + side * steps[place]
                value = EXACT[name](*moved)
                if mp.im(value) != 0:
                    return None
                total += sign * mp.re(value)
                largest = max(largest, abs(value))
        except (ValueError, ZeroDivisionError, OverflowError, mp.libmp.NoConvergence):
            return None
        if name == "power" and not 1e-150 < largest < 1e150:
            return None
        if abs(total) < largest * mp.mpf(10) ** (30 - digits):
            return mp.mpf(0)  # a difference of equal values
        return total / mp.fprod(2 * steps[place] for place in places)


def ulps(found, want, dtype):
    """The error in units of the distance between numbers at the exact value."""
    limits = np.finfo(dtype)
    with mp.workdps(40):
        if abs(want) > mp.mpf(float(limits.max)) * (1 - mp.mpf(2) ** -10):
            return 0.0 if abs(found) >= limits.max * 0.99 and (found > 0) == (want > 0) else INF
        if not math.isfinite(found):
            return INF
        distance = np.spacing(abs(dtype(float(want))))
        return float(abs(mp.mpf(float(found)) - want) / mp.mpf(float(distance)))


INF = math.inf


def derivatives(name, arrays, dtype):
    """First and second derivatives by the places of arguments, and where values are finite."""
    op = TABLE[name]
    operands = [tg.tensor(a, requires_grad=True) for a in arrays]
    value = op.public(*operands)
    ones = np.ones(value.shape, dtype)
    found = {}
    swept = tg.autograd.grad(value, operands, ones, retain_graph=True)
    recorded = tg.autograd.grad(value, operands, ones, create_graph=True)
    for k, (one, other) in enumerate(zip(swept, recorded, strict=True)):
        found[(k,), "swept"] = one.numpy()
        found[(k,), "recorded"] = other.detach().numpy()
        if other.requires_grad:
            second = tg.autograd.grad(other, operands, ones, retain_graph=True, allow_unused=True)
            for j, h in enumerate(second):
                found[(k, j), "recorded"] = np.zeros_like(ones) if h is None else h.numpy()
    return found, np.isfinite(value.detach().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(EXACT.keys() - WITHOUT_BOUND))
def test_derivatives_in_ulp(name, dtype):
    arrays = grid(len(TABLE[name].arguments), dtype)
    with np.errstate(all="ignore"):
        found, finite = derivatives(name, arrays, dtype)
    points = list(zip(*(array.tolist() for array in arrays), strict=True))
    wrong, compared = [], 0
    bounds = BOUNDS.get(name, (DEFAULT, DEFAULT))
    for (places, way), values in found.items():
        bound = bounds[len(places) - 1]
        for point, value, has_value in zip(points, values, finite, strict=True):
            if len(places) > 1 and not has_value:
                continue
            want = exact(name, places, point)
            if want is None:
                continue
            compared += 1
            error = ulps(value, want, dtype)
            if error > bound:
                wrong.append(
                    f"{error:.3g} ulp: {places} {way} at {point}: {value} {mp.nstr(want, 17)}"
                )
    assert not wrong, "\n".join(sorted(wrong)[-20:])
    assert compared > 40


def test_every_function_has_a_bound():
    """A new op needs its values in the table above, or a line on the page."""
    smooth = {
        name for name, op in TABLE.items() if isinstance(op, (Elementwise, Pointwise)) and op.names
    }
    assert smooth - STEPS == (EXACT.keys() | WITHOUT_BOUND) & smooth


VARIANTS = [
    name
    for name, op in TABLE.items()
    if isinstance(op, Elementwise) and op.scalar_formula is not op.formula
]


@pytest.mark.parametrize("name", VARIANTS)
def test_formulas_for_numbers(name):
    """What functions of numba's compute is what kernels compute."""
    op = TABLE[name]
    arrays = grid(len(op.arguments) - len(op.given), np.float64)
    with np.errstate(all="ignore"):
        arrays += [given(*arrays) for given in op.given.values()]
        for point in zip(*arrays, strict=True):
            one, other = op.scalar_formula(*point), op.formula(*point)
            assert one == pytest.approx(other, rel=2e-15, abs=5e-324)


LOGITS = [
    [1e50, 1e50],
    [7e13, 7e13 + 1.0, 7e13 - 3.0],
    [1.3e5, 1.3e5 + 0.5, 1.3e5 - 2.0],
    [-1.3e5, -1.3e5 - 40.0],
    [0.3, -1.0, 2.0],
    [300.0, 2.0],
]


def first_of(function):
    return lambda x: function(x)[0]


@pytest.mark.parametrize("compile_it", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["logsumexp", "reduce", "softmax", "log_softmax"])
def test_shares(name, dtype, compile_it):
    """Of large numbers, whose logarithm of a sum has lost the digits of the shares."""
    function = {
        "logsumexp": tg.logsumexp,
        "reduce": np.logaddexp.reduce,
        "softmax": first_of(tg.special.softmax),
        "log_softmax": first_of(tg.special.log_softmax),
    }[name]
    if compile_it and name == "reduce":
        pytest.skip("the same as logsumexp")
    with np.errstate(over="ignore"):
        rows = [np.array(row, dtype) for row in LOGITS]
    for x in (row for row in rows if np.isfinite(row).all()):
        with mp.workdps(60):
            powers = [mp.exp(mp.mpf(float(v)) - mp.mpf(float(x[0]))) for v in x]
            shares = [p / mp.fsum(powers) for p in powers]
            own = [mp.mpf(k == 0) for k in range(len(x))]
            exact_ones = {
                "softmax": [shares[0] * (o - s) for o, s in zip(own, shares, strict=True)],
                "log_softmax": [o - s for o, s in zip(own, shares, strict=True)],
            }.get(name, shares)
        wrapped = tg.jit(lambda x, f=function: f(x)) if compile_it else function
        found = tg.grad(wrapped)(x)
        for value, want in zip(found, exact_ones, strict=True):
            assert abs(float(value) - float(want)) < 10 * np.finfo(dtype).eps
            if name in ("logsumexp", "reduce") and not compile_it:
                assert ulps(value, want, dtype) < DEFAULT


@pytest.mark.parametrize("size", [1e-200, 1e-25, 1e25, 1e200])
def test_angles_of_tiny_and_huge_numbers(size):
    """The square of the length underflows or overflows."""
    z = tg.tensor(np.array(size * (3 + 4j)), requires_grad=True)
    (found,) = tg.autograd.grad(tg.angle(z), z)
    np.testing.assert_allclose(found.numpy(), 1j * (3 + 4j) / 25 / size, rtol=1e-14)
    with np.errstate(all="ignore"):
        turned = complex_functions.turn.py_func(size * (3 + 4j))
        assert turned == pytest.approx(1j * (3 + 4j) / 25 / size, rel=1e-14)
        many = complex_functions.turns.py_func(np.array([size * (3 + 4j)]))
    np.testing.assert_allclose(many, [1j * (3 + 4j) / 25 / size], rtol=1e-14)
