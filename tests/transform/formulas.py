"""Every derivative of a function of whole arrays beside differences, as plain Python.

Run with ``NUMBA_DISABLE_JIT=1``; prints what is wrong, and last how many derivatives were compared.
"""

import functools

import numpy as np
import scipy.linalg

from tapegrad.transform.lapack import TURNED, UNIT, UPPER
from tapegrad.transform.rules import arrays  # noqa: F401
from tapegrad.transform.rules.array_specs import SPECS
from tapegrad.transform.rules.numpy_functions import (
    additions,
    convolutions,
    factors,
    reductions,
    stacks,
    statistics,
)

RNG = np.random.default_rng(0)
A, B, P = RNG.normal(size=6), RNG.normal(size=6), RNG.uniform(0.1, 2.0, 6)
M, Q, D3 = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 3)), RNG.normal(size=(2, 3, 2))
HIGH, F = M.T.copy(), np.asfortranarray(M)
NAN = np.where(np.arange(6) == 2, np.nan, A)
XP, FP = np.array([0.0, 1.0, 2.5, 4.0]), np.array([1.0, 3.0, -2.0, 0.5])
X = np.array([-1.0, 0.3, 3.9, 5.0, 2.6])
WAVES = np.cos(np.arange(24.0)).reshape(3, 8)
norm = np.linalg.norm


SQUARES, SIDES = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 2))


def symmetric(x):
    return 0.5 * (x + np.swapaxes(x, -1, -2))


class Lapack:
    """What `tapegrad.transform.lapack` does, by SciPy."""

    @staticmethod
    def factor(kind, given):
        found, a = given
        for k in range(a.shape[0]):
            lu, rows = scipy.linalg.lu_factor(a[k])
            found[k] = [*lu.T, rows]

    @staticmethod
    def solve(kind, given):
        found, factors, b = given
        for k in range(b.shape[0]):
            lu = factors[k, :-1].T, factors[k, -1].astype(int)
            found[k] = scipy.linalg.lu_solve(lu, b[k], 1 if kind & TURNED else 0)

    @staticmethod
    def solve_triangle(kind, given):
        found, a, b = given
        for k in range(b.shape[0]):
            options = {"trans": int(kind & TURNED != 0), "lower": kind & UPPER == 0}
            found[k] = scipy.linalg.solve_triangular(
                a[k], b[k], unit_diagonal=kind & UNIT != 0, **options
            )

    @staticmethod
    def factor_definite(kind, given):
        found, a = given
        found[:] = np.linalg.cholesky(a)


def factors_of(a):
    found = np.empty((a.shape[0], a.shape[1] + 1, a.shape[1]))
    Lapack.factor(0, (found, a))
    return found


def triangle_solved(a, b, kind):
    found = np.empty(b.shape)
    Lapack.solve_triangle(kind, (found, a, b))
    return found


FACTORED = {"a": SQUARES, "factors": factors_of(SQUARES)}


# spec: what it is, and arguments by name for each comparison
TABLE = {
    **{name: (getattr(np, name), [{"x": v} for v in (A, M, F, D3)])
       for name in ["sum", "mean", "prod", "max", "min", "var", "std", "cumsum", "cumprod"]},
    **{name: (getattr(np, name), [{"a": v} for v in (A, NAN, M, A[:5])])
       for name in ["nansum", "nanmean", "nanvar", "nanstd", "nanprod", "nanmax", "nanmin",
                    "nanmedian"]},
    "nancumsum": (np.nancumsum, [{"a": v} for v in (A, NAN, M)]),
    "nancumprod": (np.nancumprod, [{"a": v} for v in (A, NAN, M)]),
    "ptp": (np.ptp, [{"a": M}]),
    "take": (lambda a, index: np.take(a, index), [{"a": A, "index": 2}, {"a": M, "index": 4}]),
    "trace": (np.trace, [{"a": M}, {"a": Q}]),
    "sum_axis": (np.sum, [{"x": v, "axis": k} for v in (M, D3) for k in (0, 1, -1)]),
    "cumsum_axis": (np.cumsum, [{"x": v, "axis": k} for v in (M, D3) for k in (0, 1, -1)]),
    "average": (lambda x, weights: np.average(x, weights=weights), [{"x": A, "weights": P}]),
    "norm": (norm, [{"x": A}, {"x": M}]),
    "norm_1": (lambda x: norm(x, 1), [{"x": A}]),
    "norm_p": (norm, [{"x": A, "ord": 3.5}, {"x": A, "ord": -1.5}]),
    "norm_extreme": (norm, [{"x": A, "ord": p} for p in (np.inf, -np.inf)]),
    "norm_lines": (norm, [{"x": M, "ord": p} for p in (1, -1, np.inf, -np.inf)]),
    "norm_spectral": (norm, [{"x": v, "ord": p} for v in (M, HIGH) for p in (2, -2)]),
    "sort": (np.sort, [{"a": A}, {"a": M}, {"a": F}]),
    "partition": (np.partition, [{"a": A, "kth": 2}]),
    "unique": (np.unique, [{"ar": A}, {"ar": M}]),
    "median": (np.median, [{"a": A}, {"a": M}, {"a": A[:5]}, {"a": A[:1]}]),
    "quantile_0": (np.quantile, [{"a": v, "q": q} for v in (A, M) for q in (0.0, 0.3, 1.0)]),
    "quantile_1": (np.quantile, [{"a": A, "q": np.array([0.33, 0.6])}]),
    "percentile_0": (np.percentile, [{"a": M, "q": 33.0}]),
    "percentile_1": (np.percentile, [{"a": M, "q": np.array([33.0, 60.0])}]),
    "interp_0": (np.interp, [{"x": x, "xp": XP, "fp": FP} for x in X]),
    "interp_1": (np.interp, [{"x": X, "xp": XP, "fp": FP}]),
    "diff": (np.diff, [{"a": v, "n": n} for v in (A, M, D3) for n in (1, 2)]),
    "ediff1d": (np.ediff1d, [{"ary": M}]),
    "trapezoid": (lambda y, dx: np.trapezoid(y, dx=dx), [{"y": A, "dx": 0.3}]),
    "trapezoid_of": (np.trapezoid, [{"y": A, "x": np.cumsum(P)}]),
    "vander": (lambda x, N, increasing: np.vander(x, N, increasing=increasing),
               [{"x": A, "N": 4, "increasing": k} for k in (True, False)]),
    "bincount": (np.bincount, [{"x": np.array([0, 2, 2, 1, 0, 5]), "weights": A, "minlength": 8}]),
    "unwrap": (np.unwrap, [{"p": A}]),
    "logspace": (np.logspace, [{"start": 0.2, "stop": 1.0, "num": 5}]),
    "geomspace": (np.geomspace, [{"start": 0.2, "stop": 3.0, "num": 5}]),
    "linspace": (np.linspace, [{"start": 0.2, "stop": 3.0, "num": n} for n in (5, 1)]),
    "arange": (np.arange, [{"start": 0.2, "stop": 3.0, "step": 0.3}]),
    "cov": (lambda m, rowvar, ddof: np.cov(m, None, rowvar, False, ddof),
            [{"m": v, "rowvar": r, "ddof": n} for v, r, n in ((M, True, 1), (HIGH, False, 0))]),
    "cov_pair": (lambda m, y, rowvar, ddof: np.cov(m, y, rowvar, False, ddof),
                 [{"m": v, "y": w, "rowvar": r, "ddof": 1}
                  for v, w, r in ((A, B, True), (M, A[:4], True), (HIGH, A[None, :4], False))]),
    "corrcoef": (lambda x, rowvar: np.corrcoef(x, None, rowvar),
                 [{"x": v, "rowvar": r} for v, r in ((WAVES, True), (WAVES.T.copy(), False))]),
    "corrcoef_pair": (np.corrcoef, [{"x": WAVES[:2], "y": WAVES[2], "rowvar": True},
                                    {"x": A, "y": P, "rowvar": True}]),
    "cross": (np.cross, [{"a": A[:3], "b": B[:3]}, {"a": Q, "b": B[:3]}, {"a": Q, "b": Q.T + 1}]),
    "kron_1": (np.kron, [{"a": A, "b": B[:3]}]),
    "kron_2": (np.kron, [{"a": M, "b": Q}]),
    "outer": (np.outer, [{"x": A, "y": B[:3]}]),
    "dot_11": (np.dot, [{"x": A, "y": B}]),
    "dot_12": (np.dot, [{"x": A[:3], "y": M}]),
    "dot_21": (np.dot, [{"x": M, "y": A[:4]}]),
    "dot_22": (np.dot, [{"x": Q, "y": M}]),
    "stacked_product": (np.matmul, [{"x": SQUARES, "y": SIDES}]),
    "stacked_product_t": (lambda x, y: x @ np.swapaxes(y, 1, 2), [{"x": SIDES, "y": D3[:, :2]}]),
    "stacked_t_product": (lambda x, y: np.swapaxes(x, 1, 2) @ y, [{"x": SIDES, "y": SQUARES}]),
    "full_convolution": (np.convolve, [{"a": A, "v": B[:3]}, {"a": A[:2], "v": B}]),
    "valid_correlation": (lambda a, v: np.correlate(a, v, "valid"),
                          [{"a": A, "v": B[:2]}, {"a": A, "v": B[:5]}, {"a": A, "v": B}]),
    "solve_1": (np.linalg.solve, [{"a": Q, "b": A[:3]}]),
    "solve_2": (np.linalg.solve, [{"a": Q, "b": M}]),
    "factored_solution": (lambda a, factors, b: np.linalg.solve(a, b), [{**FACTORED, "b": SIDES}]),
    "factored_solution_t": (lambda a, factors, b: np.linalg.solve(np.swapaxes(a, 1, 2), b),
                            [{**FACTORED, "b": SIDES}]),
    "factored_inverse": (lambda a, factors: np.linalg.inv(a), [FACTORED]),
    "factored_logarithm": (lambda a, factors: np.linalg.slogdet(a)[1], [FACTORED]),
    "triangle_solution": (triangle_solved, [{"a": SQUARES, "b": SIDES, "kind": kind}
                                            for kind in range(2 * UNIT)]),
    "stacked_cholesky": (lambda a: np.linalg.cholesky(symmetric(a)),
                         [{"a": SQUARES @ np.swapaxes(SQUARES, 1, 2)}]),
    "solve_vector": (np.linalg.solve, [{"a": Q, "b": A[:3]}]),
    "solve_matrix": (np.linalg.solve, [{"a": Q, "b": M}]),
    "inverse": (np.linalg.inv, [{"a": Q}]),
    "determinant": (np.linalg.det, [{"a": Q}]),
    "inv": (np.linalg.inv, [{"a": Q}]),
    "det": (np.linalg.det, [{"a": Q}, {"a": Q * np.array([0.0, 1.0, 2.0])}]),
    "pinv": (np.linalg.pinv, [{"a": M}, {"a": HIGH}]),
    "cholesky": (lambda a: np.linalg.cholesky(symmetric(a)), [{"a": Q @ Q.T}]),
    "eigvalsh": (lambda a: np.linalg.eigvalsh(symmetric(a)), [{"a": symmetric(Q)}]),
    "svd": (np.linalg.svd, [{"a": M, "full_matrices": False}, {"a": HIGH, "full_matrices": False},
                            {"a": Q, "full_matrices": True}]),
    "eigh": (lambda a: np.linalg.eigh(symmetric(a)), [{"a": symmetric(Q)}]),
    "qr": (np.linalg.qr, [{"a": HIGH}, {"a": Q}]),
    "slogdet": (np.linalg.slogdet, [{"a": Q}]),
    "lstsq_1": (lambda a, b: np.linalg.lstsq(a, b)[:1], [{"a": HIGH, "b": A[:4]}]),
    "lstsq_2": (lambda a, b: np.linalg.lstsq(a, b)[:1], [{"a": HIGH, "b": M.T @ Q}]),
}  # fmt: skip
PARTS = [
    (name, functools.partial(getattr(np, name), mode=mode), {"a": A[:n], "v": B[:m]})
    for name in ("convolve", "correlate")
    for mode in ("full", "same", "valid")
    for n, m in ((6, 3), (6, 4), (3, 6), (4, 6), (5, 2), (2, 5), (1, 3), (3, 1), (4, 4))
]


def call(function, values):
    code = function.__code__
    return function(*(values[name] for name in code.co_varnames[: code.co_argcount]))


def compare(name, function, arguments):
    """Compare both derivatives by each argument; return how many there were."""
    spec = SPECS[name]
    result = function(*arguments.values())
    several = isinstance(result, tuple)
    results = tuple(result) if several else (result,)
    weights = [np.float64(1) * RNG.normal(size=np.shape(z)) for z in results]
    values = {**arguments, "z": result, "g": weights[0], "vectors": True, "columns": ((0, 99),)}
    values |= {f"z_{k}": z for k, z in enumerate(results)}
    values |= {f"g_{k}": g for k, g in enumerate(weights)}
    if spec.shared is not None:
        values["w"] = call(spec.shared, values)
    count = 0
    for argument, vjp in spec.vjp.items():
        if vjp is None or argument not in arguments:
            continue
        count += 1
        at = np.asarray(arguments[argument], float)
        direction = RNG.normal(size=at.shape)

        def moved(t, argument=argument, at=at, direction=direction):
            found = function(*{**arguments, argument: (at + t * direction)[()]}.values())
            return found if several else (found,)

        wanted = [(p - q) / 2e-5 for p, q in zip(moved(1e-5), moved(-1e-5))]
        bar = np.zeros_like(at)
        returned = call(vjp, {**values, f"{argument}_bar": bar})
        found = np.sum((bar if at.ndim else returned) * direction)
        expected = sum(np.sum(g * w) for g, w in zip(weights, wanted))
        if not np.allclose(found, expected, 2e-5, 2e-7):
            print(f"{name}_vjp_{argument}: {found} instead of {expected}")
        tangent = call(spec.jvp[argument], {**values, f"{argument}_dot": direction[()]})
        for one, two in zip(tangent if several else (tangent,), wanted, strict=True):
            if not np.allclose(one, two, 2e-5, 2e-7):
                print(f"{name}_jvp_{argument}: {one} instead of {two}")
    return count


if __name__ == "__main__":
    np.seterr(all="ignore")
    # what machine code computes, and Python cannot call; pytest imports this module
    statistics.product = lambda cotangent, partial: cotangent * partial if cotangent else 0.0
    additions.index = convolutions.index = reductions.index = lambda number: number
    reductions.flat_view = lambda array: array.reshape(-1, order="A")  # a view
    factors.lapack = Lapack
    stacks.zeros = np.zeros
    stacks.add_product = lambda out, x, y: np.add(out, x @ y, out=out)
    stacks.add_product_nt = lambda out, x, y: np.add(out, x @ np.swapaxes(y, 1, 2), out=out)
    stacks.add_product_tn = lambda out, x, y: np.add(out, np.swapaxes(x, 1, 2) @ y, out=out)
    total = 0
    for name, (function, cases) in TABLE.items():
        for arguments in cases:
            total += compare(name, function, arguments)
    for name, function, arguments in PARTS:
        total += compare(name, function, arguments)
    compared = {*TABLE, *(name for name, *_ in PARTS)}
    left = {name for name, spec in SPECS.items() if any(spec.vjp.values())} - compared
    print(total, *sorted(left))
