"""Elementary functions: ulps against mpmath, special values, compiled and in plain Python."""

import ast
import inspect
import math

import mpmath as mp
import numba
import numpy as np
import pytest

from tapegrad.kernels.functions import angles, vmath

INF, NAN = math.inf, math.nan
MODULES = (angles, vmath)
MAX, MIN_SUB = np.finfo(np.float64).max, 5e-324


def compile_sources(modules, fastmath):
    """Namespace with every function of the modules compiled, as a generated module has it."""
    ns = {"math": math, "np": np}
    for module in modules:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ImportFrom):
                continue
            exec(compile(ast.Module([node], []), module.__file__, "exec"), ns)
            if isinstance(node, ast.FunctionDef):
                jit = numba.njit(error_model="numpy", forceinline=True, fastmath=fastmath)
                ns[node.name] = jit(ns[node.name])
    return ns


@pytest.fixture(scope="module", params=[False, {"contract"}], ids=["plain", "contract"])
def compiled(request):
    """Function from a name to an array function that runs the compiled scalar one in a loop."""
    ns = compile_sources([vmath, angles], request.param)
    cache = {}

    def get(name):
        if name not in cache:
            f = ns[name]
            if name in ("pow", "hypot", "arctan2"):

                def loop(x, y, out):
                    for i in range(x.shape[0]):
                        out[i] = f(x[i], y[i])
            else:

                def loop(x, out):
                    for i in range(x.shape[0]):
                        out[i] = f(x[i])

            cache[name] = numba.njit(error_model="numpy", fastmath=request.param)(loop)

        def run(*args):
            args = [np.ascontiguousarray(a, np.float64) for a in args]
            out = np.empty_like(args[0])
            cache[name](*args, out)
            return out

        return run

    return get


def ulps(got, exact):
    """Distance of a double from an mpmath number in units of the last place."""
    got = float(got)
    if mp.isnan(exact) or math.isnan(got):
        return 0.0 if mp.isnan(exact) and math.isnan(got) else INF
    size = abs(exact)
    if mp.isinf(exact) or size >= mp.ldexp(1, 1024) - mp.ldexp(1, 970):
        return 0.0 if math.isinf(got) and (got > 0) == (exact > 0) else INF
    exponent = mp.frexp(size)[1] if size else -1074
    unit = mp.ldexp(1, max(int(exponent) - 53, -1074))
    if math.isinf(got):
        return float((mp.ldexp(1, 1024) - size) / unit)
    return float(abs(mp.mpf(got) - exact) / unit)


def worst(got, exact, *args):
    """(largest error in ulps, its arguments)."""
    with mp.workprec(160):
        errors = [ulps(g, exact(*map(mp.mpf, map(float, a)))) for g, *a in zip(got, *args)]
    i = int(np.argmax(errors))
    return errors[i], tuple(a[i] for a in args)


RNG = np.random.default_rng(20240607)
N = 100


def uniform(a, b):
    return RNG.uniform(a, b, N)


def log_uniform(a, b):
    return np.exp(RNG.uniform(np.log(a), np.log(b), N))


def signed(x):
    return np.where(RNG.random(x.shape) < 0.5, x, -x)


def random_bits():
    x = RNG.integers(0, 2**64, N, dtype=np.uint64).view(np.float64)
    return x[np.isfinite(x)]


def grid(*pieces):
    return np.concatenate(pieces)


EXP_GRID = grid(uniform(-1, 1), uniform(-745.2, 709.8), uniform(-746, -707), random_bits())
LOG_GRID = grid(uniform(0.5, 2), uniform(0.95, 1.05), log_uniform(MIN_SUB, MAX), abs(random_bits()))
# doubles next to multiples of pi/2 lose most leading bits to the reduction
NEAR_ROOTS = np.round(uniform(0, 60000)) * (np.pi / 2)
TRIG_GRID = grid(uniform(-1, 1), uniform(-9, 9), uniform(-1e5, 1e5), NEAR_ROOTS)
TRIG_GRID = grid(TRIG_GRID, signed(log_uniform(MIN_SUB, 1e5)))
LARGE_GRID = grid(TRIG_GRID, random_bits())
TANH_GRID = grid(uniform(-1, 1), uniform(-22, 22), signed(log_uniform(MIN_SUB, 30)), random_bits())
UNIT_GRID = grid(uniform(-1, 1), signed(log_uniform(MIN_SUB, 1)), signed(1 - log_uniform(1e-16, 1)))
SINH_GRID = grid(TANH_GRID, uniform(-711, 711), signed(uniform(709, 710.5)))
SIGMOID_GRID = grid(uniform(-1, 1), uniform(-40, 40), uniform(-746, -700), random_bits())


def mp_cut(f, limit):
    """F with its argument clamped to limit, well out of range; mpmath is slow further out."""
    return lambda x: f(max(min(x, mp.mpf(limit)), -mp.mpf(limit)))


CASES = [
    ("exp", EXP_GRID, mp_cut(mp.exp, 2000), 1.0),
    ("exp2", grid(EXP_GRID, uniform(-1076, 1025)), mp_cut(lambda x: mp.mpf(2) ** x, 3000), 1.0),
    ("expm1", grid(EXP_GRID, uniform(-40, 40), uniform(709, 709.78)), mp_cut(mp.expm1, 2000), 1.5),
    ("log", LOG_GRID, mp.log, 1.0),
    ("log2", LOG_GRID, lambda x: mp.log(x) / mp.ln2, 1.0),
    ("log10", LOG_GRID, lambda x: mp.log(x) / mp.ln10, 1.0),
    (
        "log1p",
        grid(uniform(-1, 1), LOG_GRID, -log_uniform(MIN_SUB, 0.99), log_uniform(1e-16, 1) - 1),
        mp.log1p,
        1.5,
    ),
    ("sin_reduced", TRIG_GRID, mp.sin, 0.8),
    ("cos_reduced", TRIG_GRID, mp.cos, 0.8),
    ("tan_reduced", TRIG_GRID, mp.tan, 2.2),
    ("sin", LARGE_GRID, mp.sin, 1.0),
    ("cos", LARGE_GRID, mp.cos, 1.0),
    ("tan", LARGE_GRID, mp.tan, 2.2),
    ("tanh", TANH_GRID, mp_cut(mp.tanh, 99), 1.0),
    (
        "arctan",
        grid(uniform(-3, 3), signed(log_uniform(MIN_SUB, MAX)), random_bits()),
        mp.atan,
        1.0,
    ),
    ("arcsin", UNIT_GRID, mp.asin, 2.5),
    ("arccos", UNIT_GRID, mp.acos, 2.0),
    ("sinh", SINH_GRID, mp_cut(mp.sinh, 2000), 2.0),
    ("cosh", SINH_GRID, mp_cut(mp.cosh, 2000), 2.0),
    ("sigmoid", SIGMOID_GRID, mp_cut(lambda x: 1 / (1 + mp.exp(-x)), 2000), 2.5),
    (
        "softplus",
        SIGMOID_GRID,
        lambda x: x if x > 200 else mp_cut(lambda u: mp.log1p(mp.exp(u)), 2000)(x),
        2.2,
    ),
]


def check(name, got, exact, args, bound):
    error, at = worst(got, exact, *args)
    assert error <= bound, f"{name}{tuple(float(a) for a in at)}: {error:.3g} ulp"


@pytest.mark.parametrize("name, x, exact, bound", CASES, ids=[c[0] for c in CASES])
def test_ulps(compiled, name, x, exact, bound):
    check(name, compiled(name)(x), exact, (x,), bound)


@pytest.mark.parametrize("name, x, exact, bound", CASES, ids=[c[0] for c in CASES])
def test_plain_python(name, x, exact, bound):
    x = x[::7]
    with np.errstate(all="ignore"):
        got = [getattr(MODULES[name in vars(vmath)], name)(float(v)) for v in x]
    check(name, got, exact, (x,), bound)


def pow_grids():
    near_one = 1 + signed(log_uniform(1e-15, 0.1))
    wide = log_uniform(1e-300, 1e300)
    yield uniform(0, 10), uniform(-10, 10)
    yield uniform(0.5, 2), uniform(-700, 700)
    yield near_one, uniform(-745, 709) / np.log(near_one)
    yield wide, uniform(-745, 709) / np.log(wide)
    yield log_uniform(MIN_SUB, 1e-308), uniform(-1, 1)
    yield -np.round(uniform(1, 50)), np.round(uniform(-150, 150))


def exact_pow(x, y):
    return mp.power(x, y)


def hypot_grids():
    wide, half = log_uniform(1e-300, 1e300), log_uniform(1e-18, 1.5)
    yield signed(uniform(0, 1)), signed(uniform(0, 1))
    yield signed(uniform(1, 1.001)), signed(uniform(1, 1.001))
    yield wide, wide * half
    yield wide * half, wide
    yield log_uniform(MIN_SUB, 1e-300), log_uniform(MIN_SUB, 1e-300)
    yield log_uniform(1e300, MAX / 1.5), log_uniform(1e290, MAX / 1.5)


@pytest.mark.parametrize("x, y", list(hypot_grids()))
def test_hypot_ulps(compiled, x, y):
    check("hypot", compiled("hypot")(x, y), mp.hypot, (x, y), 1.0)
    got = [angles.hypot(float(a), float(b)) for a, b in zip(x[::7], y[::7])]
    check("hypot", got, mp.hypot, (x[::7], y[::7]), 1.0)


@pytest.mark.parametrize("x, y", list(hypot_grids()))
def test_arctan2_ulps(compiled, x, y):
    x, y = signed(x), signed(y)
    check("arctan2", compiled("arctan2")(x, y), mp.atan2, (x, y), 1.5)
    got = [angles.arctan2(float(a), float(b)) for a, b in zip(x[::7], y[::7])]
    check("arctan2", got, mp.atan2, (x[::7], y[::7]), 1.5)


@pytest.mark.parametrize("name", ["hypot", "arctan2"])
def test_special_values_of_points(compiled, name):
    values = [0.0, -0.0, 1.0, -2.0, MIN_SUB, 1e-200, MAX, INF, -INF, NAN]
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
        got = [getattr(angles, name)(float(a), float(b)) for a, b in zip(x, y)]
    for result in (compiled(name)(x, y), np.array(got)):
        np.testing.assert_array_max_ulp(result, expected, 2)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


@pytest.mark.parametrize("name", ["arcsin", "arccos"])
def test_beyond_the_domain(compiled, name):
    x = np.array([-INF, -2.0, -1.0, 1.0, 1.0000000000000002, INF, NAN])
    with np.errstate(all="ignore"):
        same(compiled(name)(x), getattr(np, name)(x))


@pytest.mark.parametrize("x, y", list(pow_grids()))
def test_pow_ulps(compiled, x, y):
    check("pow", compiled("pow")(x, y), exact_pow, (x, y), 1.0)
    with np.errstate(all="ignore"):
        got = [vmath.pow(float(a), float(b)) for a, b in zip(x[::7], y[::7])]
    check("pow", got, exact_pow, (x[::7], y[::7]), 1.0)


def same(got, expected):
    """Equal including signs of zero, with nan equal to nan."""
    got, expected = np.asarray(got), np.asarray(expected, np.float64)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


SPECIAL = {
    "exp": [
        (0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (MIN_SUB, 1.0),
        (709.7827128933841, INF), (-745.1332191019412, 0.0), (-745.1332191019411, MIN_SUB),
        (MAX, INF), (-MAX, 0.0),
    ],
    "exp2": [
        (0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (10.0, 1024.0),
        (1023.0, 2.0**1023), (1024.0, INF), (-1022.0, 2.0**-1022), (-1074.0, MIN_SUB),
        (-1075.0, 0.0), (np.nextafter(-1075.0, 0), MIN_SUB), (MAX, INF), (-MAX, 0.0),
    ],
    "expm1": [
        (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (NAN, NAN), (MIN_SUB, MIN_SUB),
        (-MIN_SUB, -MIN_SUB), (-40.0, -1.0), (709.7827128933841, INF), (MAX, INF), (-MAX, -1.0),
    ],
    "log": [
        (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (-MIN_SUB, NAN), (INF, INF),
        (-INF, NAN), (NAN, NAN),
    ],
    "log2": [
        (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (-INF, NAN), (NAN, NAN),
        (8.0, 3.0), (2.0**1023, 1023.0), (MIN_SUB, -1074.0), (2.0**-1022, -1022.0),
    ],
    "log10": [
        (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (-INF, NAN), (NAN, NAN),
        (10.0, 1.0), (1000.0, 3.0), (1e22, 22.0),
    ],
    "log1p": [
        (0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-1.5, NAN), (INF, INF), (-INF, NAN), (NAN, NAN),
        (MIN_SUB, MIN_SUB), (-MIN_SUB, -MIN_SUB), (MAX, 709.782712893384),
    ],
    "sin_reduced": [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN), (MIN_SUB, MIN_SUB)],
    "cos_reduced": [(0.0, 1.0), (-0.0, 1.0), (NAN, NAN), (MIN_SUB, 1.0)],
    "tan_reduced": [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN), (MIN_SUB, MIN_SUB)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (NAN, NAN), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN), (INF, NAN), (-INF, NAN)],
    "tanh": [
        (0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (20.0, 1.0), (-MAX, -1.0),
        (-MIN_SUB, -MIN_SUB),
    ],
    "sinh": [
        (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN), (MIN_SUB, MIN_SUB),
        (710.475860073944, INF), (-710.475860073944, -INF), (MAX, INF),
    ],
    "cosh": [
        (0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (NAN, NAN), (710.475860073944, INF),
        (-MAX, INF),
    ],
    "sigmoid": [
        (0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (40.0, 1.0), (-746.0, 0.0),
    ],
    "softplus": [
        (0.0, math.log(2)), (-0.0, math.log(2)), (INF, INF), (-INF, 0.0), (NAN, NAN), (MAX, MAX),
        (-746.0, 0.0), (-745.0, MIN_SUB),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(compiled, name):
    x, expected = np.array(SPECIAL[name]).T
    same(compiled(name)(x), expected)
    with np.errstate(all="ignore"):
        same([getattr(vmath, name)(float(v)) for v in x], expected)


def test_finite_up_to_the_overflow_bounds(compiled):
    for name, x in (
        ("exp", 709.782712893384),
        ("expm1", 709.782712893384),
        ("exp2", np.nextafter(1024.0, 0.0)),
        ("sinh", 710.4758600739439),
        ("cosh", -710.4758600739439),
    ):
        assert np.isfinite(compiled(name)([x])[0]), name


def test_pow_special_values(compiled):
    values = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 7.0, 10.0, INF, MIN_SUB, 1e-300, 1e300, MAX, 1074.0]
    values += [2.0**52, 2.0**52 + 1, 2.0**53, 2.0**53 - 1, 1 - 2.0**-53, 1 + 2.0**-52, 2.0**1023]
    values = np.array(values)
    values = np.concatenate([values, -values, [NAN]])
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
        got = [vmath.pow(float(a), float(b)) for a, b in zip(x, y)]
    # NumPy's last bit is no reference, but its exceptional and trivial results are.
    rounded = np.isfinite(expected) & (expected != 0) & (np.abs(x) != 1) & (y != 0)
    for result in (compiled("pow")(x, y), np.array(got)):
        same(result[~rounded], expected[~rounded])
        with np.errstate(over="ignore"):
            np.testing.assert_array_almost_equal_nulp(result[rounded], expected[rounded], 1)


def test_pow_is_exact_for_small_integers(compiled):
    x, y = (a.ravel() for a in np.meshgrid(np.arange(-30.0, 31.0), np.arange(0.0, 11.0)))
    same(compiled("pow")(x, y), [float(int(a) ** int(b)) for a, b in zip(x, y)])
