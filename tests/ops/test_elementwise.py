"""Every elementwise op of the table: values, gradients, special points, layouts of operands."""

import functools
import itertools
import math
import operator

import mpmath as mp
import numpy as np
import pytest
import scipy.special
from cases import with_given

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.ops.table.kinds import COMPILED_FROM, Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.tape.layout import BLOCK_ELEMENTS

OPS = {name: op for name, op in TABLE.items() if isinstance(op, Elementwise)}
INF, NAN = math.inf, math.nan
DTYPES = [np.float32, np.float64]
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-11}

# -- oracles ---------------------------------------------------------------------------------------

# values in double precision where the op's name is not that of a NumPy function
VALUES = {
    "at_least": np.maximum,
    "at_most": np.minimum,
    "cosine": lambda x, y, length: x / np.where(length == 0.0, 1.0, length),
    "gaussian": lambda x: np.exp(-x * x),
    "ie_ratio": lambda n, x: (scipy.special.ive(n, x) / x**n).astype(np.result_type(n, x)),
    "erfcx_derivative": lambda n, x: _erfcx_derivative(n, x).astype(x.dtype),
    "exp_of_difference": lambda x, y: np.exp(_difference(x, y)),
    "normal": lambda x: np.exp(-x * x / 2),
    "larger_of_ties": lambda x, y, ties: np.maximum(x, y).astype(np.result_type(x, y, ties)),
    "ties_of_larger": lambda x, y, ties: _ties(x, y, ties).astype(np.result_type(x, y, ties)),
    "inverted": lambda x, y: _inverted(np.asarray(x), np.asarray(y)),
    "log_ratio": lambda x, y: _log_ratio(x, y).astype(np.result_type(x, y)),
    "one_minus_square": lambda x: (1.0 - x) * (1.0 + x),
    "relu": lambda x: np.maximum(x, np.zeros((), np.asarray(x).dtype)),
    "share": lambda x, y: scipy.special.expit(_difference(x, y)),
    "share2": lambda x, y: scipy.special.expit(_difference(x, y) * np.log(2.0)),
    "sigmoid": scipy.special.expit,
    "sigmoid_slope": lambda x, y: np.square(0.5 / np.cosh(0.5 * np.asarray(x))),
    "sinc_derivative": lambda n, x: np.vectorize(_sinc_derivative, [float])(n, x).astype(x.dtype),
    "softplus": lambda x: np.logaddexp(x, np.zeros((), np.asarray(x).dtype)),
    "tanh_slope": lambda x, y: np.square(1.0 / np.cosh(x)),
}


def _inverted(x, y):
    m = np.maximum(abs(x), abs(y))
    return np.where(np.isinf(m), 0.0, x / m / (x * (x / m) + y * (y / m))).astype(m.dtype)


def _ties(x, y, ties):
    is_tie = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(is_tie, ties + 1, np.where((x > y) | np.isnan(x), ties, 1))


def _log_ratio(x, y):
    x, y = np.longdouble(x), np.longdouble(y)  # of more exponents
    return np.log(x / y)


def _difference(x, y):
    return np.where(x == y, 0.0, np.subtract(x, y)).astype(np.result_type(x, y))


def _erfcx_derivative(n, x):
    value = scipy.special.erfcx(x)
    slope = 2 * x * value - 2 / math.sqrt(math.pi)
    return np.choose(n.astype(int), [value, slope, 2 * value + 2 * x * slope])


@functools.cache  # operands that are broadcast have the same pairs many times
def _sinc_derivative(n, x):
    if not np.isfinite(x):
        return 0.0 * (x == x) if n == n else math.nan
    with mp.workdps(40):
        return float(mp.diff(mp.sincpi, mp.mpf(float(x)), int(n)))


# functions that exist in double precision only, to be differentiated by mpmath
EXACT = {
    "erf": mp.erf,
    "erfc": mp.erfc,
    "gammaln": lambda x: mp.log(abs(mp.gamma(x))),
    "betaln": lambda a, b: mp.log(abs(mp.beta(a, b))),
    "digamma": mp.digamma,
    "polygamma": lambda n, x: mp.psi(int(n), x),
    "erfcx_derivative": lambda n, x: mp.diff(lambda u: mp.exp(u * u) * mp.erfc(u), x, int(n)),
    "ie_ratio": lambda n, x: mp.exp(-abs(x)) * mp.besseli(int(n), x) / mp.mpf(x) ** int(n),
    "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x),
    "ndtr": mp.ncdf,
    "log_ndtr": lambda x: mp.log(mp.ncdf(x)),
    "i0": lambda x: mp.besseli(0, x),
    "i1": lambda x: mp.besseli(1, x),
    "i0e": lambda x: mp.exp(-abs(x)) * mp.besseli(0, x),
    "i1e": lambda x: mp.exp(-abs(x)) * mp.besseli(1, x),
    "xlogy": lambda x, y: x * mp.log(y),
    "xlog1py": lambda x, y: x * mp.log1p(y),
    "entr": lambda x: -x * mp.log(x),
    "rel_entr": lambda x, y: x * mp.log(x / y),
}
INTEGER_FIRST = ("polygamma", "erfcx_derivative")
"""Functions whose first argument is an order: their derivatives are those of the next one."""


def reference(name):
    """The function of NumPy or SciPy that an op stands for."""
    if name in VALUES:
        return VALUES[name]
    return getattr(np, name, None) or getattr(scipy.special, name)


@functools.cache
def exact_partial(name, position, *values):
    """Partial derivative at one point, by mpmath."""
    orders = [int(k == position) for k in range(len(values))]
    with mp.workdps(40):
        if len(values) == 1:
            return float(mp.diff(EXACT[name], values[0]))
        if name in INTEGER_FIRST:
            return float(EXACT[name](values[0] + 1, values[1]))
        if name == "ie_ratio":
            return float(mp.diff(lambda x: EXACT[name](values[0], x), values[1]))
        return float(mp.diff(EXACT[name], values, tuple(orders)))


def partial(name, position, arrays):
    """Partial derivatives at arrays, in extended precision where there is no exact form."""
    arrays = np.broadcast_arrays(*arrays)
    if name in EXACT:
        return np.array(
            [exact_partial(name, position, *map(float, v)) for v in zip(*map(np.ravel, arrays))]
        ).reshape(arrays[0].shape)
    f = reference(name)
    wide = [a if a.dtype == bool else a.astype(np.longdouble) for a in arrays]

    def at(step):
        moved = list(wide)
        moved[position] = moved[position] + np.longdouble(step)
        return f(*with_given(TABLE[name], moved, lambda op: reference(op.name)))

    h = 2e-4
    near, far = at(h) - at(-h), at(2 * h) - at(-2 * h)
    return (8 * near - far) / np.longdouble(12 * h)


def sample(op, shapes, dtype, seed=0):
    """Operands inside the domain of an op, with few different values."""
    rng = np.random.default_rng(seed)
    found = []
    for k, (argument, shape) in enumerate(zip(op.arguments, shapes, strict=True)):
        if argument == "condition":
            found.append(rng.random(shape) < 0.5)
        elif argument == "n":
            found.append(rng.integers(0, 3, shape).astype(dtype))
        else:
            low, high = op.domain(argument)
            places = rng.integers(0, 23, shape) + (0.2 + 0.3 * k)  # no two operands meet
            found.append(np.asarray(low + (high - low) * places / 23, dtype))
    return with_given(op, found)


def tracked(op, arrays):
    """Tensors that require gradients for what is differentiable, arrays for the rest."""
    return [
        tg.tensor(a, requires_grad=True) if name in op.differentiable else a
        for name, a in zip(op.arguments, arrays, strict=True)
    ]


def array_of(tensor):
    return tensor.detach().numpy()


def unbroadcast(array, shape):
    """Sum over what broadcasting repeated."""
    array = array.sum(tuple(range(array.ndim - len(shape))))
    axes = tuple(k for k, n in enumerate(shape) if n == 1 and array.shape[k] != 1)
    return array.sum(axes, keepdims=True)


def close(found, expected, dtype, factor=1.0):
    tolerance = TOLERANCE[np.dtype(dtype)] * factor
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(expected, np.float64), tolerance, tolerance
    )


SHAPES = [
    [(), (), ()],
    [(3,), (3,), (3,)],
    [(2, 3), (2, 3), (2, 3)],
    [(1, 3), (2, 1), (2, 3)],
    [(2, 1), (1, 3), ()],
    [(), (2, 3), (3,)],
    [(2, 3), (), (1, 1)],
    [(0,), (0,), (0,)],
    [(2, 0), (1,), (2, 1)],
    [(5000,), (5000,), (5000,)],
    [(50, 1, 30), (40, 1), (30,)],
]


def shape_cases():
    for name, op in OPS.items():
        seen = set()
        for shapes in SHAPES:
            chosen = tuple(shapes[: len(op.arguments)])
            if chosen not in seen and (len(op.arguments) > 1 or chosen != ((50, 1, 30),)):
                seen.add(chosen)
                yield pytest.param(op, chosen, id=f"{name}-{'x'.join(map(str, chosen))}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "shapes"), list(shape_cases()))
def test_value_and_gradient(op, shapes, dtype):
    """Value as NumPy or SciPy, gradient as differences in extended precision; dtypes stay."""
    arrays = sample(op, shapes, dtype)
    operands = tracked(op, arrays)
    out = FUNCTIONS[op.name](*operands)
    expected = np.asarray(reference(op.name)(*arrays))
    assert out.dtype == dtype
    assert out.shape == expected.shape
    close(array_of(out), expected, dtype, 0.1)
    g = np.random.default_rng(1).uniform(0.5, 1.5, out.shape).astype(dtype)
    inputs = [t for t in operands if isinstance(t, tg.Tensor)]
    found = iter(tg.autograd.grad(out, inputs, g))
    for position, argument in enumerate(op.arguments):
        if argument in op.differentiable:
            array, gradient = arrays[position], next(found)
            assert gradient.dtype == dtype
            assert gradient.shape == array.shape
            want = unbroadcast(g * partial(op.name, position, arrays), array.shape)
            close(array_of(gradient), want, dtype)


def differentiable_function(op, arrays):
    """An op as a function of its differentiable arguments, and those."""
    places = [k for k, name in enumerate(op.arguments) if name in op.differentiable]

    def f(*values):
        filled = list(arrays)
        for k, value in zip(places, values, strict=True):
            filled[k] = value
        return FUNCTIONS[op.name](*with_given(op, filled))

    return f, [arrays[k] for k in places]


@pytest.mark.parametrize("shapes", [[(3,)] * 3, [(1, 2), (3, 1), (3, 2)]], ids=["same", "wide"])
@pytest.mark.parametrize("name", OPS)
def test_second_order(name, shapes):
    """Gradients of gradients agree with differences."""
    op = OPS[name]
    arrays = sample(op, shapes[: len(op.arguments)], np.float64, seed=2)
    f, args = differentiable_function(op, arrays)
    tg.testing.check_grads(f, args, order=2)


@pytest.mark.parametrize("name", ["multiply", "divide", "exp", "sin", "tanh", "sigmoid", "hypot"])
def test_second_order_in_single_precision(name):
    op = OPS[name]
    arrays = sample(op, [(3,)] * len(op.arguments), np.float32, seed=2)
    f, args = differentiable_function(op, arrays)
    tg.testing.check_grads(f, args, order=2)


@pytest.mark.parametrize("name", OPS)
def test_both_sweeps_agree(name):
    """The compiled kernel and the rule on tensors are one function."""
    op = OPS[name]
    operands = tracked(op, sample(op, [(4, 3), (3,), (4, 1)][: len(op.arguments)], np.float64, 3))
    out = FUNCTIONS[name](*operands)
    inputs = [t for t in operands if isinstance(t, tg.Tensor)]
    g = np.linspace(-1, 1, out.size).reshape(out.shape)
    compiled = tg.autograd.grad(out, inputs, g, retain_graph=True)
    recorded = tg.autograd.grad(out, inputs, g, create_graph=True)
    for a, b in zip(compiled, recorded, strict=True):
        close(array_of(a), array_of(b), np.float64)


def test_composites():
    """`expit` and `clip` are covered too; every other name here comes from the table."""
    x = np.array([-2.0, 0.3, 4.0])
    close(array_of(tg.expit(x)), scipy.special.expit(x), np.float64)
    tg.testing.check_grads(tg.expit, [x], order=2)
    for bounds in ((-1.0, 1.0), (None, 1.0), (-1.0, None), (np.array([0.0, 1.0, 2.0]), 3.0)):
        close(array_of(tg.clip(x, *bounds)), np.clip(x, *bounds), np.float64)
        tg.testing.check_grads(lambda v, b=bounds: tg.clip(v, *b), [x], order=2)
    tg.testing.check_grads(tg.clip, [x, np.full(3, -1.0), np.full(3, 2.0)], order=2)
    for given in (x, np.array([True, False])):
        unlimited = tg.clip(given, None, None).numpy()
        assert (unlimited == given).all()
        assert not np.may_share_memory(unlimited, given)


# -- special points --------------------------------------------------------------------------------

# op, operands, value, gradients (of a cotangent of ones)
SPECIAL = [
    ("maximum", (1, 1), 1, (0.5, 0.5)),
    ("maximum", (INF, INF), INF, (0.5, 0.5)),
    ("maximum", (2, 1), 2, (1, 0)),
    ("maximum", (0.0, -0.0), 0, (0.5, 0.5)),
    ("minimum", (1, 1), 1, (0.5, 0.5)),
    ("minimum", (-INF, -INF), -INF, (0.5, 0.5)),
    ("minimum", (2, 1), 1, (0, 1)),
    ("fmax", (1, 1), 1, (0.5, 0.5)),
    ("fmax", (NAN, 1), 1, (0, 1)),
    ("fmax", (1, NAN), 1, (1, 0)),
    ("fmin", (1, 1), 1, (0.5, 0.5)),
    ("fmin", (NAN, 1), 1, (0, 1)),
    ("fmin", (1, NAN), 1, (1, 0)),
    ("larger_of_ties", (1, 1, 1), 1, (0.5, 0.5)),
    ("larger_of_ties", (1, 1, 3), 1, (0.75, 0.25)),
    ("larger_of_ties", (INF, INF, 2), INF, (2 / 3, 1 / 3)),
    ("larger_of_ties", (2, 1, 3), 2, (1, 0)),
    ("larger_of_ties", (1, 2, 3), 2, (0, 1)),
    ("larger_of_ties", (NAN, 2, 3), NAN, (1, 0)),
    ("larger_of_ties", (2, NAN, 3), NAN, (0, 1)),
    ("larger_of_ties", (NAN, NAN, 3), NAN, (0.75, 0.25)),
    ("ties_of_larger", (1, 1, 3), 4, (0, 0)),
    ("ties_of_larger", (2, 1, 3), 3, (0, 0)),
    ("ties_of_larger", (1, 2, 3), 1, (0, 0)),
    ("ties_of_larger", (NAN, NAN, 3), 4, (0, 0)),
    ("ties_of_larger", (NAN, 2, 3), 3, (0, 0)),
    ("ties_of_larger", (2, NAN, 3), 1, (0, 0)),
    ("at_least", (1, 1), 1, (1, 0)),
    ("at_least", (0, 1), 1, (0, 1)),
    ("at_most", (1, 1), 1, (1, 0)),
    ("at_most", (2, 1), 1, (0, 1)),
    ("absolute", (0,), 0, (0,)),
    ("absolute", (-0.0,), 0, (0,)),
    ("absolute", (-INF,), INF, (-1,)),
    ("power", (0, 0), 1, (0, 0)),
    ("power", (0, 1), 0, (1, 0)),
    ("power", (0, 2), 0, (0, 0)),
    ("power", (0, 0.5), 0, (INF, 0)),
    ("power", (3, 0), 1, (0, math.log(3))),
    ("power", (-2, 3), -8, (12, NAN)),
    ("power", (0, -1), INF, (-INF, -INF)),
    ("power", (1e-310, 0), 1, (0, None)),
    ("sqrt", (0,), 0, (INF,)),
    ("sqrt", (INF,), INF, (0,)),
    ("cbrt", (0,), 0, (INF,)),
    ("divide", (1, 0), INF, (INF, -INF)),
    ("divide", (-1, 0), -INF, (INF, INF)),
    ("divide", (0, 0), NAN, (INF, NAN)),
    ("divide", (1, -0.0), -INF, (-INF, -INF)),
    ("divide", (1, INF), 0, (0, 0)),
    ("reciprocal", (0,), INF, (-INF,)),
    ("log", (0,), -INF, (INF,)),
    ("log", (INF,), INF, (0,)),
    ("log2", (0,), -INF, (INF,)),
    ("log10", (0,), -INF, (INF,)),
    ("log1p", (-1,), -INF, (INF,)),
    ("exp", (-INF,), 0, (0,)),
    ("exp", (INF,), INF, (INF,)),
    ("expm1", (-INF,), -1, (0,)),
    ("hypot", (0, 0), 0, (0, 0)),
    ("hypot", (0, 3), 3, (0, 1)),
    ("hypot", (-4, 0), 4, (-1, 0)),
    ("logaddexp", (INF, INF), INF, (0.5, 0.5)),
    ("logaddexp", (-INF, -INF), -INF, (0.5, 0.5)),
    ("logaddexp", (-INF, 1), 1, (0, 1)),
    ("logaddexp", (INF, 1), INF, (1, 0)),
    ("logaddexp", (INF, -INF), INF, (1, 0)),
    ("logaddexp", (1000, 1000), 1000 + math.log(2), (0.5, 0.5)),
    ("logaddexp2", (INF, INF), INF, (0.5, 0.5)),
    ("logaddexp2", (-INF, -INF), -INF, (0.5, 0.5)),
    ("logaddexp2", (-INF, 1), 1, (0, 1)),
    ("arcsin", (1,), math.pi / 2, (INF,)),
    ("arcsin", (-1,), -math.pi / 2, (INF,)),
    ("arccos", (1,), 0, (-INF,)),
    ("arccos", (-1,), math.pi, (-INF,)),
    ("arctan", (INF,), math.pi / 2, (0,)),
    ("arctan2", (0, 0), 0, (NAN, NAN)),
    ("arctan2", (0, 1), 0, (1, 0)),
    ("arctan2", (0, -1), math.pi, (-1, 0)),
    ("arctan2", (1, 0), math.pi / 2, (0, -1)),
    ("arccosh", (1,), 0, (INF,)),
    ("arctanh", (1,), INF, (INF,)),
    ("arctanh", (-1,), -INF, (INF,)),
    ("tanh", (INF,), 1, (0,)),
    ("sinc", (0,), 1, (0,)),
    ("sinc", (1,), 0, (-1,)),
    ("sinc", (1e-4,), 1 - (math.pi * 1e-4) ** 2 / 6, (-(math.pi**2) * 1e-4 / 3,)),
    *[(f, (x,), None, (0,)) for f in ("sign", "floor", "ceil", "rint", "trunc") for x in (0, 2.5)],
    ("floor_divide", (7, 2), 3, (0, 0)),
    ("floor_divide", (4, 2), 2, (0, 0)),
    ("mod", (4, 2), 0, (1, -2)),
    ("mod", (-4, 2), 0, (1, 2)),
    ("mod", (5.5, -2), -0.5, (1, 3)),
    ("mod", (0, 2), 0, (1, 0)),
    ("mod", (3, INF), 3, (1, 0)),
    ("mod", (-3, INF), INF, (1, 1)),
    ("mod", (3, -INF), -INF, (1, 1)),
    ("mod", (-3, -INF), -3, (1, 0)),
    ("mod", (INF, INF), NAN, (1, NAN)),
    ("fmod", (3, INF), 3, (1, 0)),
    ("fmod", (-3, INF), -3, (1, 0)),
    ("fmod", (4, 2), 0, (1, -2)),
    ("fmod", (-5.5, 2), -1.5, (1, 2)),
    ("fmod", (-4, 2), 0, (1, 2)),
    ("sigmoid", (INF,), 1, (0,)),
    ("sigmoid", (-INF,), 0, (0,)),
    ("sigmoid", (-1000,), 0, (0,)),
    ("softplus", (1000,), 1000, (1,)),
    ("softplus", (-1000,), 0, (0,)),
    ("softplus", (INF,), INF, (1,)),
    ("relu", (0,), 0, (0,)),
    ("relu", (-0.0,), 0, (0,)),
    ("relu", (INF,), INF, (1,)),
    ("erf", (INF,), 1, (0,)),
    ("gaussian", (-INF,), 0, (0,)),
    ("gaussian", (0,), 1, (0,)),
    ("erfc", (INF,), 0, (0,)),
]


@pytest.mark.parametrize("recorded", [False, True], ids=["compiled", "tensors"])
@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "args", "value", "expected"), SPECIAL)
def test_special_point(name, args, value, expected, dtype, size, recorded):
    """Documented value and derivative where a function ends, jumps or bends."""
    with np.errstate(all="ignore"):
        operands = [tg.tensor(np.full(size, a, dtype), requires_grad=True) for a in args]
        out = FUNCTIONS[name](*operands)
        if value is not None:
            close(array_of(out), np.full(size, value), dtype)
        smooth = operands[: len(expected)]
        gradients = tg.autograd.grad(out, smooth, np.ones(size, dtype), create_graph=recorded)
    for gradient, want in zip(gradients, expected, strict=True):
        assert gradient.dtype == dtype
        if want is not None:
            close(array_of(gradient), np.full(size, want), dtype)


# op, operands, second derivatives by all pairs of arguments
SECOND = [
    ("logaddexp", (1, 1), (0.25, -0.25, -0.25, 0.25)),
    ("logaddexp", (INF, INF), (0, 0, 0, 0)),
    ("logaddexp2", (1, 1), tuple(0.25 * math.log(2) * s for s in (1, -1, -1, 1))),
    ("power", (2, 0), (0, 0.5, 0.5, math.log(2) ** 2)),
    ("power", (0, 0), (0, 0, 0, 0)),
    ("power", (0, 2), (2, 0, 0, 0)),
    ("hypot", (0, 0), (0, 0, 0, 0)),
    ("hypot", (3, 0), (0, 0, 0, 1 / 3)),
    ("absolute", (0,), (0,)),
    ("maximum", (1, 1), (0, 0, 0, 0)),
    ("sinc", (0,), (-(math.pi**2) / 3,)),
    ("relu", (0,), (0,)),
    ("square", (0,), (2,)),
    ("divide", (0, 1), (0, -1, -1, 0)),
    ("arctan2", (0, 1), (0, -1, -1, 0)),
    ("mod", (4, 2), (0, 0, 0, 0)),
    ("erf", (0,), (0,)),
    ("gaussian", (INF,), (0,)),
    ("softplus", (0,), (0.25,)),
    ("sigmoid", (-1000,), (0,)),
]


@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "args", "expected"), SECOND)
def test_second_derivatives_at_special_points(name, args, expected, dtype, size):
    operands = [tg.tensor(np.full(size, a, dtype), requires_grad=True) for a in args]
    with np.errstate(all="ignore"):
        out = FUNCTIONS[name](*operands)
        first = tg.autograd.grad(out, operands, np.ones(size, dtype), create_graph=True)
        second = [
            tg.autograd.grad(g, operands, np.ones(size, dtype), True, allow_unused=True)
            for g in first
            if g.requires_grad
        ]
    found = [0.0 if h is None else array_of(h) for row in second for h in row]
    found += [0.0] * (len(expected) - len(found))  # a constant gradient has no history
    for one, want in zip(found, expected, strict=True):
        close(np.broadcast_to(one, size), np.full(size, want), dtype)


POINTS = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-40, -1e30]
SINGLE = {"gammaln", "digamma", "polygamma"}  # poles differ by sign conventions of their own
SINGLE |= {"betaln"}  # SciPy has no nan for one beside a pole
SINGLE |= {"sinc_derivative", "erfcx_derivative", "ie_ratio"}  # whose order is a number >= 0


@pytest.mark.parametrize("repeats", [1, 300], ids=["small", "large"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(OPS.keys() - SINGLE - {"where"}))
def test_values_everywhere(name, dtype, repeats):
    """Special numbers, in all combinations, give what NumPy gives, tracked or not."""
    op = OPS[name]
    points = np.array(POINTS, dtype)
    arrays = [a.ravel() for a in np.meshgrid(*[points] * len(op.arguments))]
    arrays = [np.tile(a, max(1, repeats // a.size + 1) if repeats > 1 else 1) for a in arrays]
    arrays = with_given(op, arrays)
    with np.errstate(all="ignore"):
        expected = reference(name)(*arrays)
        passive = FUNCTIONS[name](*arrays)
        active = FUNCTIONS[name](*[tg.tensor(a, requires_grad=True) for a in arrays])
    for found in (passive, active):
        assert found.dtype == dtype
        np.testing.assert_allclose(
            array_of(found), expected, rtol=TOLERANCE[np.dtype(dtype)] / 10, atol=0
        )


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_ties_share_with_the_tensor_itself(name):
    x = tg.tensor([1.0, -2.0], requires_grad=True)
    FUNCTIONS[name](x, x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("recorded", [False, True], ids=["compiled", "tensors"])
@pytest.mark.parametrize(("x", "y"), [(1.0, 0.1), (0.3, 0.1), (6.0, 0.6), (-1.0, 0.1), (0.9, 0.3)])
@pytest.mark.parametrize("name", ["mod", "fmod"])
def test_remainder_and_its_derivative_agree(name, x, y, recorded):
    """The derivative in y is minus the quotient of which the value is the remainder."""
    operands = [tg.tensor(v, requires_grad=True) for v in (x, y)]
    value = FUNCTIONS[name](*operands)
    _, gradient = tg.autograd.grad(value, operands, create_graph=recorded)
    quotient = round((x - value.item()) / y)
    assert gradient.item() == -quotient


@pytest.mark.parametrize("x", [0.0, 2.0, -3.0, -1.0, 1.0])
def test_clip_at_and_beyond_its_bounds(x):
    """On a bound the cotangent goes to x, beyond it to the bound."""
    operands = [tg.tensor(v, requires_grad=True) for v in (x, -1.0, 1.0)]
    out = tg.clip(*operands)
    found = [g.item() for g in tg.autograd.grad(out, operands)]
    low, high = float(x < -1), float(x > 1)
    assert found == [1.0 - low - high, low, high]
    assert out.item() == np.clip(x, -1, 1)


@pytest.mark.parametrize("x", [0.0, 1e-5, 0.029999, 0.030001, -0.02, 0.5])
def test_derivatives_of_sinc_near_0(x):
    """Up to the third, where the closed form cancels."""
    t = tg.tensor(x, requires_grad=True)
    value = tg.sinc(t)
    with mp.workdps(40):
        for order in range(3):
            want = float(mp.diff(lambda u: mp.sincpi(u), mp.mpf(x), order))
            assert value.item() == pytest.approx(want, rel=1e-7, abs=1e-10)
            (value,) = tg.autograd.grad(value, t, create_graph=True)


@pytest.mark.parametrize("x", [0.0, 1.5])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_higher_derivatives_of_integer_powers(x, n):
    """x**n has n derivatives that are not 0, and then 0, also at 0; none of them warns."""
    t = tg.tensor(x, requires_grad=True)
    value = t**n
    for k in range(n + 2):
        want = math.perm(n, k) * x ** max(n - k, 0)
        assert value.item() == pytest.approx(want, abs=1e-12)
        if not value.requires_grad:  # a constant: what follows is 0
            assert k >= n
            break
        (value,) = tg.autograd.grad(value, t, create_graph=True)


# -- layouts of operands ---------------------------------------------------------------------------


def _record(dtype, values):
    packed = np.zeros(values.shape, dtype)
    packed["v"] = values
    return packed["v"]


def _windows(values):
    flat = np.ascontiguousarray(values).ravel()
    item = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, values.shape, (item, item))


def _unaligned(values):
    raw = b"\0" + values.tobytes()
    return np.frombuffer(raw, values.dtype, offset=1).reshape(values.shape)


def _read_only(values):
    found = values.copy()
    found.flags.writeable = False
    return found


LAYOUTS = {
    "contiguous": lambda v: v.copy(),
    "strided": lambda v: np.repeat(np.repeat(v, 2, 0), 3, 1)[::2, ::3],
    "negative": lambda v: v[::-1, ::-1].copy()[::-1, ::-1],
    "half negative": lambda v: np.repeat(v[::-1], 2, 1)[::-1, ::2],
    "rows repeated": lambda v: np.broadcast_to(v[:1], v.shape),
    "columns repeated": lambda v: np.broadcast_to(v[:, :1], v.shape),
    "one number": lambda v: np.broadcast_to(v[0, 0], v.shape),
    "fortran": np.asfortranarray,
    "windows": _windows,
    "read-only": _read_only,
    "field of a packed record": lambda v: _record([("a", np.float32), ("v", v.dtype)], v),
    "field at an odd offset": lambda v: _record([("a", np.uint8), ("v", v.dtype)], v),
    "unaligned": _unaligned,
    "slice of 3-d": lambda v: np.stack([v, -v], axis=1)[:, 0],
}


@pytest.mark.parametrize("shape", [(4, 6), (70, 90)], ids=["small", "blocks"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["multiply", "divide", "power", "maximum", "logaddexp", "add"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout, name, dtype, shape):
    """Memory layout changes no value and no gradient, of passive and of differentiable operands."""
    assert np.prod(shape) < COMPILED_FROM or np.prod(shape) > BLOCK_ELEMENTS
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.5, 1.5, shape).astype(dtype) for _ in range(2))
    laid = LAYOUTS[layout](x)
    plain = np.array(laid, order="C")
    g = rng.uniform(0.5, 1.5, shape).astype(dtype)

    def run(make_x, make_y):
        operands = [make_x(0), make_y(1)]
        out = FUNCTIONS[name](*operands)
        inputs = [t for t in operands if isinstance(t, tg.Tensor)]
        return [out, *tg.autograd.grad(out, inputs, g)]

    def leaf(array):
        return lambda _: tg.as_tensor(array.view()).requires_grad_()

    for make_laid, make_plain in ((leaf(laid), leaf(plain)), (lambda _: laid, lambda _: plain)):
        for order in (1, -1):
            found = run(*(make_laid, leaf(y))[::order])
            expected = run(*(make_plain, leaf(y))[::order])
            for a, b in zip(found, expected, strict=True):
                assert a.dtype == dtype
                np.testing.assert_allclose(array_of(a), array_of(b), rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sin", "exp", "sigmoid", "tanh"])
def test_layout_of_one_operand(layout, name):
    rng = np.random.default_rng(0)
    laid = LAYOUTS[layout](rng.uniform(0.5, 1.5, (40, 60)))
    g = rng.uniform(0.5, 1.5, laid.shape)
    found, expected = (tg.as_tensor(a).requires_grad_() for a in (laid, np.array(laid, order="C")))
    for t in (found, expected):
        FUNCTIONS[name](t).backward(g)
    np.testing.assert_allclose(array_of(found.grad), array_of(expected.grad), rtol=1e-14)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", ["multiply", "add", "power"])
def test_operand_of_another_byte_order(name, order):
    x = np.linspace(0.5, 1.5, 12).reshape(3, 4)
    swapped = x.astype(x.dtype.newbyteorder())
    t = tg.tensor(x, requires_grad=True)
    out = FUNCTIONS[name](*(t, swapped)[::order])
    assert out.dtype == np.float64
    (found,) = tg.autograd.grad(out, t, np.ones(out.shape))
    (expected,) = tg.autograd.grad(FUNCTIONS[name](*(t, x)[::order]), t, np.ones(out.shape))
    np.testing.assert_array_equal(array_of(found), array_of(expected))


PASSIVE_DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("passive", PASSIVE_DTYPES)
@pytest.mark.parametrize("name", ["multiply", "divide", "maximum"])
def test_passive_operand_of_any_dtype(name, passive, dtype, shape):
    """Result as NumPy promotes; the gradient has the dtype of its tensor."""
    x = np.array([0.5, 1.5, 2.5], dtype)
    y = np.resize(np.array([1, 0, 1] if passive == "bool" else [1, 3, 2]), shape).astype(passive)
    with np.errstate(divide="ignore"):
        t = tg.tensor(x, requires_grad=True)
        out, expected = FUNCTIONS[name](t, y), reference(name)(x, y)
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(array_of(out), expected)
        (gradient,) = tg.autograd.grad(out, t, np.ones(out.shape, out.dtype))
        assert gradient.dtype == dtype
        wide = np.broadcast_to(y, expected.shape).astype(np.float64)
        if name == "multiply":
            want = wide
        elif name == "divide":
            want = 1 / wide
        else:
            want = np.where(x > wide, 1.0, np.where(x == wide, 0.5, 0.0))
    close(array_of(gradient), unbroadcast(want, (3,)), dtype)


SCALARS = [
    2,
    2.5,
    -3,
    True,
    False,
    0.0,
    -0.0,
    2**62,
    10**30,
    INF,
    NAN,
    np.float32(2.5),
    np.float64(2.5),
    np.int8(3),
    np.uint64(2**63),
    np.bool_(True),
    np.float16(2.5),
    np.array(2.5),
    np.array(2.5, np.float32),
    np.array(3),
]
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [1, -1], ids=["right", "left"])
@pytest.mark.parametrize("operation", OPERATORS)
@pytest.mark.parametrize("number", SCALARS, ids=lambda s: f"{type(s).__name__}{s!r}")
def test_number_as_operand(number, operation, order, dtype):
    """Python numbers adapt to the tensor, NumPy scalars and 0-d arrays promote as in NumPy."""
    x = np.array([0.5, 1.5, 2.25], dtype)
    t = tg.tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        out = operation(*(t, number)[::order])
        expected = operation(*(x, number)[::order])
        assert isinstance(out, tg.Tensor)
        assert out.dtype == expected.dtype
        np.testing.assert_allclose(array_of(out), expected, rtol=1e-6 if dtype == np.float32 else 0)
        assert (np.signbit(array_of(out)) == np.signbit(expected)).all()
        (gradient,) = tg.autograd.grad(out, t, np.ones(3, out.dtype))
        other = tg.tensor(np.full(3, np.asarray(number, out.dtype)))
        wide = tg.tensor(x.astype(out.dtype), requires_grad=True)
        (want,) = tg.autograd.grad(operation(*(wide, other)[::order]), wide, np.ones(3, out.dtype))
        assert gradient.dtype == dtype
        np.testing.assert_allclose(array_of(gradient), array_of(want).astype(dtype), rtol=1e-6)


def test_zeros_of_both_signs_are_different_numbers():
    x = tg.tensor([1.0, -1.0], requires_grad=True)
    for zero in (0.0, -0.0, 0, 0.0):
        found = np.signbit(array_of(x * zero))
        assert found.tolist() == np.signbit(np.array([1.0, -1.0]) * zero).tolist()


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_number_too_large_for_a_float(number):
    t = tg.tensor([1.0], requires_grad=True)
    with pytest.raises(OverflowError):
        t * number
    with pytest.raises(OverflowError):
        np.array([1.0]) * number


@pytest.mark.parametrize("condition", [1e-300, 1e-50, 2**-140, NAN, np.int64(2**62), True, 5])
def test_any_condition_that_is_not_0_holds(condition):
    """The condition keeps its truth, whatever its dtype and that of the result."""
    x, y = (tg.tensor(np.ones(3, np.float32), requires_grad=True) for _ in range(2))
    out = tg.where(np.array([condition, 0, condition]), x, y)
    tg.autograd.backward(out, np.ones(3, np.float32))
    assert x.grad.tolist() == [1.0, 0.0, 1.0]
    assert y.grad.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (3,), (2, 4, 3), (0, 3)])
def test_condition_of_any_shape(shape):
    rng = np.random.default_rng(0)
    condition = rng.random(shape) < 0.5
    x, y = (tg.tensor(rng.random((4, 3)), requires_grad=True) for _ in range(2))
    if shape == (0, 3):
        x, y = (tg.tensor(np.ones(3), requires_grad=True) for _ in range(2))
    out = tg.where(condition, x, y)
    np.testing.assert_array_equal(array_of(out), np.where(condition, array_of(x), array_of(y)))
    out.backward(np.ones(out.shape))
    wide = np.broadcast_to(condition, out.shape)
    np.testing.assert_array_equal(array_of(x.grad), unbroadcast(wide * 1.0, x.shape))
    np.testing.assert_array_equal(array_of(y.grad), unbroadcast(~wide * 1.0, y.shape))


def test_an_array_of_many_dimensions():
    """Up to 32 dimensions are recorded; beyond, the error says so."""
    shape = (1,) * 14 + (2, 1, 3, 1) + (1,) * 13 + (2,)
    x = tg.tensor(np.arange(12.0).reshape(shape), requires_grad=True)
    y = tg.tensor(np.arange(3.0).reshape(3, *(1,) * 15))
    (gradient,) = tg.autograd.grad((x * y).sum(), x)
    np.testing.assert_array_equal(array_of(gradient), np.broadcast_to(array_of(y), shape))
    with pytest.raises(ValueError, match="32"):
        tg.tensor(np.ones((1,) * 33), requires_grad=True)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.clongdouble, np.longdouble])
def test_dtype_without_derivative(dtype):
    t = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(TypeError, match="multiply"):
        t * np.ones(2, dtype)


@pytest.mark.parametrize("dtype", [np.complex128, object, "U3"])
def test_dtype_that_a_compiled_op_does_not_know(dtype):
    with pytest.raises(TypeError, match=r"sigmoid|erf"):
        tg.erf(np.ones(2).astype(dtype))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda t: tg.where(True, t), "where.*y"),
        (lambda t: tg.polygamma(t), "polygamma.*x"),
        (lambda t: tg.where(True, t, t, t, t), "where"),
        (lambda t: tg.where(True, t, t, z=1), "where.*z"),
        (lambda t: tg.where(True, t, t, y=t), "where.*y"),
    ],
)
def test_wrong_arguments_are_named(call, match):
    with pytest.raises(TypeError, match=match):
        call(tg.tensor([1.0], requires_grad=True))


def test_shapes_that_do_not_broadcast():
    x, y = tg.tensor(np.ones(3), requires_grad=True), tg.tensor(np.ones(4), requires_grad=True)
    for name, first in (("add", x), ("logaddexp", x), ("polygamma", x.detach())):
        with pytest.raises(ValueError, match=r"broadcast|shape"):
            FUNCTIONS[name](first, y)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_says_what_it_is(name):
    assert OPS[name].__doc__
    assert FUNCTIONS[name].__doc__ == OPS[name].__doc__
    assert FUNCTIONS[name].__name__ == name


# -- compiled forward loops ------------------------------------------------------------------------

LARGE_SHAPES = [
    [(700,), (700,)], [(300, 1), (80,)], [(2000, 1), (1, 65)], [(3, 1, 700), (9, 1)],
    [(1, 40000), (2, 1)], [(20000, 2), (2,)], [(5, 1), (1, 3)], [(30000,), ()],
]  # fmt: skip


@pytest.mark.parametrize("shapes", LARGE_SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtypes", [*itertools.product(["f8", "f4", "i8", "i1"], repeat=2)], ids=str
)
@pytest.mark.parametrize("name", ["power", "logaddexp"])
def test_many_elements_have_values_and_types_of_numpy(name, dtypes, shapes):
    """Also where arrays are repeated along the axes of others, and in blocks."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, shapes[0]).astype(dtypes[0])
    y = rng.integers(0, 4, shapes[1]).astype(dtypes[1])
    found = FUNCTIONS[name](tg.as_tensor(x), y)
    expected = getattr(np, name)(x, y)
    assert found.dtype == expected.dtype
    single = np.finfo(expected.dtype).eps if expected.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(found.numpy(), expected, 4 * single)


@pytest.mark.parametrize("dtype", ["i8", "i1", "u4", "f2", "?"])
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if len(op.arguments) == 1])
def test_types_of_many_elements_are_those_of_few(name, dtype):
    x = np.full(3 * COMPILED_FROM, name != "arctanh", dtype)  # which has a pole at 1
    try:
        few = FUNCTIONS[name](tg.as_tensor(x[:3]))
    except TypeError:
        with pytest.raises(TypeError):
            FUNCTIONS[name](tg.as_tensor(x))
        return
    many = FUNCTIONS[name](tg.as_tensor(x))
    assert many.dtype == few.dtype
    np.testing.assert_array_equal(many.numpy()[:3], few.numpy())
