"""Eager and compiled derivatives agree where functions have kinks, poles, ties, infinities, nan.

The compiled code is run by Python here, as in the random programs: thousands of points are judged.
Where a derivative is infinite or nan, the next one is infinite or nan or that of a constant: such
second derivatives are not compared.
"""

import itertools

import numpy as np
import pytest
from check import module
from random_programs.interpret import Interpreter, types_only

import tapegrad as tg
from tapegrad.ops.kinds import Elementwise
from tapegrad.ops.op import TABLE
from tapegrad.transform.functions import known_to_numba

INF, NAN = np.inf, np.nan
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, INF, -INF, NAN, 800.0]
FEWER = {"condition": [False, True], "n": [0.0, 1.0, 2.0]}  # arguments that take nothing else
ELEMENTWISE = sorted(
    name
    for name, op in TABLE.items()
    if isinstance(op, Elementwise) and op.formula is not None and hasattr(tg, name)
)
ARRAYS = [
    [1.0, 1.0], [0.0, 0.0], [-0.0, 0.0], [NAN, 1.0], [1.0, NAN, 1.0], [INF, 1.0], [-INF, 1.0],
    [INF, INF], [INF, -INF], [2.0], [0.0], [NAN], [INF], [3.0, 1.0, 3.0], [1.0, 3.0, 1.0],
    [0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [],
]  # fmt: skip
REDUCTIONS = [
    "np.sum(x)", "np.mean(x)", "np.prod(x)", "np.max(x)", "np.min(x)", "np.var(x)", "np.std(x)",
    "np.ptp(x)", "np.linalg.norm(x)", "np.linalg.norm(x, 1)", "np.linalg.norm(x, np.inf)",
    "np.linalg.norm(x, -np.inf)", "np.linalg.norm(x, 3)", "np.linalg.norm(x, 0.5)",
    "np.linalg.norm(x, -1)", "np.dot(x, x)", "np.cumsum(x)", "np.cumprod(x)", "np.sort(x)",
    "np.clip(x, 0.0, 1.0)", "np.outer(x, x)", "np.flip(x)", "np.where(x > 0.0, x, -x)",
]  # fmt: skip
# these have no value for an empty array
OF_SOMETHING = {
    "np.max(x)", "np.min(x)", "np.ptp(x)", "np.linalg.norm(x, np.inf)",
    "np.linalg.norm(x, -np.inf)",
}  # fmt: skip


def compiled(text):
    return module(f"import numpy as np, tapegrad as tg\n\n@tg.njit\n{text}\n")


def agree(one, other, expected=True):
    """Whether numbers are equal, or at least not both known."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.shape == other.shape
    same = np.isclose(one, other, 1e-9, 1e-9, equal_nan=True)
    return bool(np.all(same | (~np.isfinite(one) & ~np.isfinite(other)) | ~np.asarray(expected)))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    op = TABLE[name]
    listed = ", ".join(op.arguments)
    space = "np" if known_to_numba(op) else "tg"
    f = compiled(f"def f({listed}):\n    return {space}.{name}({listed})")
    points = list(itertools.product(*(FEWER.get(a, NUMBERS) for a in op.arguments)))
    with types_only():
        for k, argument in enumerate(op.arguments):
            if argument not in op.rules:
                continue
            first = Interpreter().function(tg.grad(f, argnums=k))
            second = Interpreter().function(tg.hvp(f, argnums=k))
            slope = tg.grad(op.public, argnums=k)
            for point in points:
                expected = float(slope(*point))
                assert agree(first(*point), expected), (argument, point)
                if np.isfinite(expected):
                    curvature = float(tg.grad(slope, argnums=k)(*point))
                    assert agree(second(*point, 1.0), curvature), (argument, point, "second order")


@pytest.mark.filterwarnings("ignore:Mean of empty:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("text", REDUCTIONS)
def test_reductions(text):
    whole = f"y = {text}\n    s = 0.0\n    y = y.ravel()\n    for k in range(y.size):\n"
    whole += "        s += (1.5 - k) * y[k]\n    return s"
    body = whole if np.ndim(eval(text, {"np": np, "x": np.ones(2)})) else f"return {text}"
    f = compiled(f"def f(x):\n    {body}")

    def eager(x):
        y = eval(text, {"np": np, "x": x}).ravel()
        return (y * (1.5 - np.arange(y.size))).sum() if body == whole else y.sum()

    with types_only():
        first = Interpreter().function(tg.grad(f))
        second = Interpreter().function(tg.hvp(f))
        for values in ARRAYS:
            x = np.array(values)
            if not x.size and text in OF_SOMETHING:
                continue
            expected = tg.grad(eager)(x)
            assert agree(first(x.copy()), expected), values
            if np.isfinite(expected).all() and np.isfinite(x).all():
                along = np.ones_like(x)
                curvature = tg.hvp(eager)(x, along)
                assert agree(second(x.copy(), along), curvature), (values, "second order")


KNOTS, HEIGHTS = np.array([0.0, 1.0, 2.0]), np.array([0.0, 3.0, 1.0])


def median(x):
    return np.median(x)


def quantile(x):
    return np.quantile(x, 0.3)


def nanmedian(x):
    return np.nanmedian(x)


def interpolated(x):
    return np.interp(x[0], KNOTS, HEIGHTS)


def signed(x):
    return np.copysign(x[0], -1.0)


@pytest.mark.parametrize("f", [median, quantile, nanmedian, interpolated, signed])
@pytest.mark.parametrize("x", [[1.0, NAN, 3.0], [2.0], [0.0], [-0.0], [1.0], [3.0], [1.0, 1.0]])
def test_eager_and_compiled_agree(f, x):
    x = np.array(x)
    np.testing.assert_array_equal(tg.grad(f)(x), tg.grad(tg.njit(f))(x))


@pytest.mark.parametrize("f", [nanmedian, interpolated])
def test_of_nothing_but_nan(f):
    x = np.array([NAN])
    np.testing.assert_array_equal(tg.grad(f)(x), tg.grad(tg.njit(f))(x))
