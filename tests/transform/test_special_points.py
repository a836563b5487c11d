"""Eager and compiled derivatives agree where functions have kinks, poles, ties, infinities, nan.

The compiled code is run by Python here, as in the random programs: thousands of points are judged.
Where a derivative is infinite or nan, the next one is infinite or nan or that of a constant: such
second derivatives are not compared.
"""

import itertools

import numba
import numpy as np
import pytest
from check import module
from random_programs.interpret import Interpreter, types_only

import tapegrad as tg
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform.codegen import store
from tapegrad.transform.functions import known_to_numba
from tapegrad.transform.rules import whole
from tapegrad.transform.rules.array_specs import SPECS

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
    "np.nansum(x)", "np.nanmean(x)", "np.nanvar(x)", "np.nanstd(x)", "np.nanprod(x)",
    "np.nanmax(x)", "np.nanmin(x)", "np.nancumsum(x)", "np.nancumprod(x)", "np.nanmedian(x)",
    "np.nanquantile(x, 0.3)", "np.quantile(x, 0.3)", "np.percentile(x, np.array([30.0, 50.0]))",
    "np.diff(x)", "np.trapezoid(x)", "np.convolve(x, np.array([1.0, 2.0]))", "np.kron(x, x)",
    "np.correlate(x, np.array([1.0, 2.0]))",
    "np.copysign(x, -1.0)", "np.maximum(x, x[::-1])", "np.fmin(x, 1.0)",
]  # fmt: skip
# these have no value for an empty array
OF_SOMETHING = {
    "np.max(x)", "np.min(x)", "np.ptp(x)", "np.linalg.norm(x, np.inf)",
    "np.linalg.norm(x, -np.inf)", "np.nanmax(x)", "np.nanmin(x)", "np.nanmean(x)",
    "np.nanvar(x)", "np.nanstd(x)", "np.nanmedian(x)", "np.nanquantile(x, 0.3)",
    "np.quantile(x, 0.3)", "np.percentile(x, np.array([30.0, 50.0]))",
    "np.convolve(x, np.array([1.0, 2.0]))", "np.correlate(x, np.array([1.0, 2.0]))",
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


WEIGHTED = """\
    y = ({text}).ravel()
    s = 0.0
    for k in range(y.size):
        s += (1.5 - k) * y[k]
    return s"""


def of_one_array(text, example):
    """The compiled function of a text; whether its value is an array."""
    is_array = np.ndim(eval(text, {"np": np, "x": example})) > 0
    body = WEIGHTED.format(text=text) if is_array else f"    return {text}"
    return compiled(f"def f(x):\n{body}"), is_array


def agree_on_arrays(text, example, points, direction=None, eagerly=None):
    """Compare the derivatives of a function of one array in the two modes, to second order.

    With a direction for each point, second derivatives are compared along this direction only.
    """
    f, is_array = of_one_array(text, example)

    def eager(x):
        y = tg.asarray(eval(eagerly or text, {"np": np, "tg": tg, "x": x})).ravel()
        return (y * (1.5 - np.arange(y.size))).sum() if is_array else y.sum()

    with types_only():
        first = Interpreter().function(tg.grad(f))
        second = Interpreter().function(tg.hvp(f))
        for values in points:
            x = np.array(values)
            try:
                expected = tg.grad(eager)(x)
            except np.linalg.LinAlgError:
                with pytest.raises(np.linalg.LinAlgError):
                    first(x.copy())
                continue
            assert agree(first(x.copy()), expected), values
            if np.isfinite(expected).all() and np.isfinite(x).all():
                along = direction(x) if direction else np.ones_like(x)
                one, other = second(x.copy(), along), tg.hvp(eager)(x, along)
                if direction:
                    one, other = np.sum(one * along), np.sum(other * along)
                assert agree(one, other), (values, "second order")


@pytest.mark.filterwarnings("ignore:Mean of empty:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("text", REDUCTIONS)
def test_reductions(text):
    points = [values for values in ARRAYS if values or text not in OF_SOMETHING]
    agree_on_arrays(text, np.ones(2), points)


OF_SEVERAL = [
    "np.broadcast_to(x, (2, 4))", "np.vdot(x * 1j + 1.0, x * x + 2j).real",
    "np.cross(x[:3], x[1:4])", "np.ediff1d(x)", "np.diff(x, 2)", "np.vander(x, 3)", "np.unwrap(x)",
    "np.linspace(x[0], x[1], 3)", "np.take(x, np.array([3, 0, 0]))", "np.roll(x, 1)", "np.flip(x)",
    "np.average(x)", "np.average(x, weights=np.arange(1.0, 5.0))", "np.median(x)", "np.outer(x, x)",
    "np.average(np.arange(4.0), weights=x + 0.1)", "np.quantile(x, np.array([0.2, 0.7]))",
    "np.dot(x, x)", "np.insert(x, 1, x[0])",
    "np.interp(x, np.arange(3.0), np.array([0.0, 3.0, 1.0]))", "np.concatenate((x, x[::-1]))",
    "np.interp(0.7, np.arange(4.0), x)", "np.where(x > 0.0, x, x * x)", "np.repeat(x, 2)",
    "np.kron(x[:2], x)", "np.trapezoid(x)", "np.trapezoid(np.arange(4.0), x)",
    "np.append(x, x[0])", "np.delete(x, 1)", "np.sort(x)", "np.ptp(x)",
]  # fmt: skip
SEVERAL = [
    [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 2.0, 1.0], [-0.0, 0.0, 1.0, -1.0],
    [1.0, NAN, 2.0, 3.0], [INF, 1.0, 2.0, 3.0], [-INF, 1.0, 2.0, INF], [0.0, 7.0, 1.0, 9.0],
]  # fmt: skip


@pytest.mark.parametrize("text", OF_SEVERAL)
def test_sequences(text):
    agree_on_arrays(text, np.arange(1.0, 5.0), SEVERAL)


# functions that NumPy does not give to tensors, beside what they are; and others
SPELLED = {
    "np.full(3, x[0])": "x[0] * np.ones(3)",
    "np.full_like(x, x[1])": "x[1] * np.ones(4)",
    "np.arange(x[0], 9.0, 2.0)[:1]": "x[:1] * 1.0",
    "np.logspace(x[0], x[1], 4)": "10.0 ** np.linspace(x[0], x[1], 4)",
    "np.geomspace(x[0], x[1], 4)": "np.exp(np.linspace(np.log(x[0]), np.log(x[1]), 4))",
    "x[:1].item()": "x[0]",
    "np.partition(x, 2)[2]": "np.sort(x)[2]",
    "np.unique(x)": "np.sort(x)",
    "np.bincount(np.array([0, 2, 2, 1]), x)": "tg.stack([x[0], x[3], x[1] + x[2]])",
    "np.percentile(x, 30.0)": "np.quantile(x, 0.3)",
    "np.take(x, 2)": "x[2]",
    # of matrices that are not singular
    **dict.fromkeys(
        (
            "np.linalg.qr(x.reshape(2, 2))[1]",
            "np.linalg.lstsq(x.reshape(2, 2), x[:2].reshape(2, 1) * np.ones((2, 2)))[0]",
            "np.cov(x.reshape(2, 2))",
            "np.corrcoef((x * x[::-1] ** 2).reshape(2, 2))",
            "np.cov(x, x[::-1] ** 2)",
            "np.corrcoef(x, x[::-1] ** 2)",
        )
    ),
}


def test_every_rule_of_arrays_is_compared(monkeypatch):
    """What is written for compiled code, beside the rule of the op."""
    found = set()
    made = whole.Whole.__init__

    def noted(self, spec, *rest):
        found.add(spec.name)
        made(self, spec, *rest)

    monkeypatch.setattr(whole.Whole, "__init__", noted)
    monkeypatch.setattr(store, "load", lambda key, recipe: None)
    two, four, matrix = np.ones(2), np.arange(1.0, 5.0), np.eye(2) + 1.0
    tables = ((REDUCTIONS, two), (OF_SEVERAL, four), (SPELLED, four), (OF_MATRICES, matrix))
    with types_only():
        for text, example in [(text, example) for texts, example in tables for text in texts]:
            f, _ = of_one_array(text, example)
            tg.grad(f).implementation((numba.typeof(example),))
    assert found == set(SPECS) - {
        "stacked_product",
        "stacked_product_t",
    }  # only in recorded programs


@pytest.mark.parametrize("text", SPELLED)
def test_other_spellings(text):
    points = [[1.0, 2.0, 3.0, 4.0], [0.7, 0.3, 2.0, 0.4]]
    agree_on_arrays(text, np.arange(1.0, 5.0), points, eagerly=SPELLED[text])


MATRICES = [
    [[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [2.0, 4.0]],
    [[2.0, -0.0], [0.0, 3.0]], [[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [1.0, 2.0]],
    [[3.0]], [[0.0]], [[-1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [0.0, 1.0]],
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], [[0.0, 1.0], [-1.0, 0.0]],
]  # fmt: skip
UNKNOWN_MATRICES = [
    [[NAN, 0.0], [0.0, 1.0]],
    [[INF, 0.0], [0.0, 1.0]],
    [[NAN]],
    [[1.0, INF], [NAN, 1.0]],
]
OF_MATRICES = [
    "np.linalg.det(x)", "np.linalg.slogdet(x)[1]", "np.linalg.inv(x)", "np.linalg.norm(x)",
    "np.linalg.solve(x, np.arange(1.0, 1.0 + len(x)))", "np.linalg.cholesky(x)", "np.trace(x)",
    "np.linalg.eigvalsh(x)", "np.linalg.pinv(x)", "np.linalg.norm(x, 2)", "np.linalg.norm(x, 1)",
    "np.linalg.norm(x, np.inf)", "np.linalg.norm(x, -1)", "x @ x.T", "np.diag(x)",
    "np.linalg.svd(x)[1]", "np.triu(x)", "np.sum(x, axis=0)",
    "np.linalg.lstsq(x, np.arange(1.0, 1.0 + len(x)))[0]",
    "x[0] @ x", "x @ x[0]", "np.kron(x, x + 1.0)", "np.linalg.solve(x, x.T * x)", "np.cumsum(x, 0)",
    "np.linalg.eigh(x)[0]", "np.linalg.det(x + 1j * x.T).imag",
]  # fmt: skip
# these have derivatives along the matrices of one rank, and none in other directions
OF_ONE_RANK = {"np.linalg.pinv(x)", "np.linalg.lstsq(x, np.arange(1.0, 1.0 + len(x)))[0]"}
ARRANGED = {
    "x @ x.T",
    "np.diag(x)",
    "np.trace(x)",
    "np.triu(x)",
    "np.sum(x, axis=0)",
    "np.linalg.norm(x)",
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", OF_MATRICES)
def test_matrices(text):
    # where LAPACK is given nan it raises, or returns nan, in one version or the other
    points = MATRICES + (UNKNOWN_MATRICES if text in ARRANGED else [])
    if text in OF_ONE_RANK:
        agree_on_arrays(text, np.eye(2), points, lambda x: x @ (1.0 + np.eye(len(x))))
    else:
        agree_on_arrays(text, np.eye(2), points)


@pytest.mark.parametrize("value", [0.0, -0.0, 2.0, -1.5, INF, NAN])
@pytest.mark.parametrize(
    "text",
    [
        "np.sum(x)",
        "np.mean(x)",
        "np.max(x)",
        "np.min(x)",
        "np.prod(x)",
        "np.sqrt(x) * x",
        "x[()] ** 3",
    ],
)
def test_arrays_without_axes(text, value):
    agree_on_arrays(text, np.array(1.0), [value])


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


def test_correlations_with_a_constant_that_are_not_used():
    """They are nan; what is used of the same matrix has a derivative."""
    f = module(
        "import numpy as np\nimport tapegrad as tg\n"
        "@tg.njit\ndef f(x):\n"
        "    c = np.corrcoef(np.stack((x, x * x * x, 0.0 * x)))\n"
        "    return c[0, 1] * c[0, 1]\n"
    )
    x, v, h = np.array([1.0, 2.0, 0.5, 0.7]), np.array([0.3, -0.2, 0.1, 0.5]), 1e-5

    def plain(x):
        return np.corrcoef(x, x * x * x)[0, 1] ** 2

    with types_only():
        first = Interpreter().function(tg.grad(f))
        second = Interpreter().function(tg.hvp(f))
        slope = (plain(x + h * v) - plain(x - h * v)) / (2.0 * h)
        np.testing.assert_allclose(first(x) @ v, slope, rtol=1e-7)
        change = (first(x + h * v) - first(x - h * v)) / (2.0 * h)
        np.testing.assert_allclose(second(x, v), change, rtol=1e-6)
