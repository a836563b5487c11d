"""Arguments of every op of the table."""

import numpy as np
import scipy.sparse

from tapegrad.ops import shape
from tapegrad.ops.table.array_kinds import Pointwise
from tapegrad.ops.table.kinds import Elementwise, Reduction
from tapegrad.ops.table.op import TABLE

V = np.linspace(0.3, 1.1, 6)
M = np.sin(np.arange(12.0) ** 2 + 0.5).reshape(4, 3)
S = M[:3] @ M[:3].T + np.eye(3)
PAIRS = np.cos(np.arange(18.0) ** 2 + 0.3).reshape(3, 3, 2)
STACK = np.cos(np.arange(18.0)).reshape(2, 3, 3) + 2.0 * np.eye(3)
LOW = np.tril(S)
INDEX = (np.array([0, 2, 0]),)
STEPS = ((shape.getitem, {"index": slice(1, 3)}), (shape.transpose, {"axes": None}))
ROW = ((shape.getitem, {"index": 1}),)


def complex_of(x):
    return x + 1j * np.roll(x, 1) * 0.7


# arguments and parameters of ops whose kind does not say what they take
CASES = {
    "astype": [((V,), {"dtype": np.dtype(np.complex128)})],
    "reshape": [((M,), {"shape": (2, 6)})],
    "transpose": [((STACK,), {"axes": (1, 2, 0)})],
    "matrix_transpose": [((STACK,), {})],
    "broadcast_to": [((V,), {"shape": (2, 6)})],
    "getitem": [((M,), {"index": (slice(None, None, 2), 1)})],
    "diagonal": [((STACK,), {"offset": 1, "axis1": 1, "axis2": 2})],
    "real": [((complex_of(M),), {})],
    "imaginary": [((complex_of(M),), {})],
    "view_as_real": [((complex_of(V),), {})],
    "view_as_complex": [((M[:, :2].copy(),), {})],
    "rounded": [((V + 0.013,), {"decimals": 1})],
    "embed": [((M[0],), {"shape": (4, 3), "shown": shape.getitem, "parameters": {"index": 2}})],
    "concatenate": [(([M, M[:1]],), {"axis": 0}), (([M, V],), {"axis": None})],
    "gather": [((V,), {"index": INDEX})],
    "scatter_add": [((V[:3],), {"shape": (4,), "index": INDEX})],
    "put": [((M, M[:3] * 2.0), {"index": np.array([0, 3, 1])}), ((M, V[0]), {"index": 1})],
    "add_at": [((V, V[:3]), {"index": INDEX})],
    "put_view": [((M, M[1:3].T * 2.0), {"steps": STEPS}), ((M, V[0]), {"steps": ROW})],
    "cumsum": [((M,), {"axis": 1}), ((M,), {})],
    "moved": [((M,), {"device": "cpu", "source": "cpu"})],
    "fourier": [((complex_of(M),), {"axis": 0})],
    "fourier_adjoint": [((complex_of(M),), {"axis": 0})],
    **{name: [((PAIRS,), {"axis": axis}) for axis in range(PAIRS.ndim - 1)]
       for name in ("fourier_of_pairs", "fourier_adjoint_of_pairs")},
    "half_fourier_to_pairs": [((x,), {"count": x.shape[k] // 2 + 1, "axis": k})
                              for x in (M, M[1:, :-1]) for k in (0, 1)],
    "real_fourier_of_pairs": [((PAIRS,), {"n": 2 * PAIRS.shape[k] - odd, "axis": k})
                              for k in range(PAIRS.ndim - 1) for odd in (1, 2)],
    "whole_fourier_to_pairs": [((x,), {"axis": 1, "others": others})
                               for x in (M, M[:, :-1]) for others in (0, 1)],
    "real_adjoint_of_pairs": [((PAIRS,), {"axis": 0, "others": others})
                              for others in range(0, 2 ** (PAIRS.ndim - 1), 2)],
    "half_fourier": [((M,), {"axis": 0}), ((M,), {"axis": 1})],
    "real_fourier": [((complex_of(M),), {"n": n, "axis": axis}) for n, axis in ((6, 0), (5, 1))],
    "full_convolution": [((V, V[:3]), {}), ((V[:2], V), {})],
    "valid_correlation": [((V, V[:3]), {}), ((V, V), {})],
    "matmul": [((M, S), {}), ((STACK, M.T), {}), ((V[:3], S), {}), ((S, V[:3]), {}), ((V, V), {})],
    "undefined": [((np.zeros(3),), {})],
    "product": [((M, M), {"tx": True, "ty": False}), ((M, M), {"tx": False, "ty": True})],
    "contract": [
        (([M, S, V[:3]],), {"subscripts": "ij,jk,k->i"}),
        (([S],), {"subscripts": "ii->i"}),
    ],
    "sparse_product": [((M,), {"matrix": scipy.sparse.random_array((5, 4), density=0.5, rng=1)})],
    "inv": [((STACK,), {})],
    "finite_max": [((M,), {"axis": 0}), ((M,), {"axis": 1, "keepdims": True})],
    "solve": [((STACK, M[:3]), {}), ((S, V[:3]), {}), ((STACK, V[:3]), {})],
    "solve_triangular": [
        ((LOW, M[:3]), {"lower": True}),
        ((STACK, V[:3]), {"lower": True}),
        ((S, V[:3]), {"unit_diagonal": True}),
        ((S, M[:3]), {"lower": True, "unit_diagonal": True}),
    ],
    "det": [((STACK,), {}), ((np.zeros((2, 2)),), {})],
    "cofactor": [((STACK,), {}), ((np.diag([1.0, 2.0, 0.0]),), {})],
    "cofactor_slope": [((S, S * 0.3), {})],
    "slogdet": [((STACK,), {})],
    "cholesky": [((S,), {})],
    "qr": [((M,), {}), ((STACK,), {})],
    "eigh": [((S,), {}), ((np.stack([S, S @ S]),), {})],
    "thin_svd": [((M,), {}), ((M.T,), {}), ((STACK,), {})],
    "full_svd": [((M,), {})],
    "expm": [((STACK,), {})],
    "logm": [((S,), {})],
    "sqrtm": [((S,), {})],
    "pinv": [((M,), {}), ((M.T,), {})],
    "eig": [((S + np.triu(M[:3]),), {})],
    "roots": [((np.array([1.0, -6.0, 11.0, -6.0]),), {})],
}  # fmt: skip
# and of complex ones, where there is anything to tell
COMPLEX = {
    name: [(tuple(map(complex_of, args)), given) for args, given in CASES[name][:2]]
    for name in ("inv", "solve", "det", "cofactor", "slogdet", "expm", "pinv", "cumsum", "put")
}
HERMITIAN = complex_of(S) + complex_of(S).conj().T + 4.0 * np.eye(3)
COMPLEX |= {
    "full_convolution": [((complex_of(V), complex_of(V[:3])), {})],
    "valid_correlation": [((complex_of(V), complex_of(V[:3])), {})],
    "matmul": [((complex_of(M), complex_of(S)), {})],
    "cholesky": [((HERMITIAN,), {})],
    "qr": [((complex_of(M),), {})],
    "eigh": [((HERMITIAN,), {})],
    "thin_svd": [((complex_of(M),), {}), ((complex_of(M.T),), {})],
    "full_svd": [((complex_of(M),), {})],
    "eig": [((complex_of(S) + np.diag([1.0, 2.0, 3.0]),), {})],
    "roots": [((np.array([1.0, -2.0 + 1j, 3.0, 0.4j]),), {})],
}


def cases():
    for name, op in TABLE.items():
        if op.given:
            continue  # see test_elementwise.py
        if isinstance(op, Elementwise | Pointwise):
            for shapes in ([(3,)] * 3, [(2, 3), (3,), (2, 1)]):
                yield name, *elementwise_case(op, shapes)
        elif isinstance(op, Reduction):
            for axis in (None, 1, (0, 2)):
                yield name, (STACK + np.arange(18.0).reshape(2, 3, 3),), {"axis": axis}
        else:
            yield from ((name, *case) for case in CASES[name])
    for name, found in COMPLEX.items():
        yield from ((name, *case) for case in found)
    for name, op in TABLE.items():
        if isinstance(op, Elementwise) and not (
            op.real or op.given or op.arguments[0] in ("condition", "n")
        ):
            args, given = elementwise_case(op, [(3,), (2, 1), (2, 3)])
            try:
                with np.errstate(all="ignore"):
                    op(*map(complex_of, args))
            except TypeError:
                continue  # of real numbers only
            yield name, tuple(map(complex_of, args)), given


def elementwise_case(op, shapes):
    rng = np.random.default_rng(1)
    found = []
    for argument, size in zip(op.arguments, shapes, strict=False):
        low, high = op.domain(argument)
        values = low + (high - low) * rng.uniform(0.05, 0.95, size)
        whole = argument in ("condition", "n")
        found.append(
            values > 0.5 if argument == "condition" else np.rint(values) if whole else values
        )
    return tuple(with_given(op, found)), {}


def with_given(op, args, compute=lambda op: op):
    """Arguments of an op, the last ones being values of other ops."""
    free = args[: len(op.arguments) - len(op.given)]
    return [*free, *(compute(given)(*free) for given in op.given.values())]


def is_refused(op, name):
    """Whether an op has no derivative by an argument."""
    try:
        op.rules[name]()
    except TypeError as error:
        return "has no derivative" in str(error)
    return False


ALL = list(cases())


def as_list(value):
    return list(value) if isinstance(value, tuple) else [value]


def names_of(case):
    shapes = ("list" if type(a) is list else str(np.shape(a)) for a in case[1])
    return f"{case[0]}-{'x'.join(shapes)}"
