"""Tangents of every op of the table, beside differences and beside its cotangents."""

import numpy as np
import pytest
import scipy.sparse

from tapegrad.ops import indexing, linalg, shape
from tapegrad.ops.array_kinds import Linear, Pointwise
from tapegrad.ops.kinds import Elementwise, Reduction, View
from tapegrad.ops.op import TABLE, reads_of

RNG = np.random.default_rng(0)
V = np.linspace(0.3, 1.1, 6)
M = np.sin(np.arange(12.0) ** 2 + 0.5).reshape(4, 3)
S = M[:3] @ M[:3].T + np.eye(3)
STACK = np.cos(np.arange(18.0)).reshape(2, 3, 3) + 2.0 * np.eye(3)
LOW = np.tril(S)
INDEX = (np.array([0, 2, 0]),)
STEPS = ((shape.getitem, {"index": slice(1, 3)}), (shape.transpose, {"axes": None}))
ROW = ((shape.getitem, {"index": 1}),)


def complex_of(x):
    return x + 1j * np.roll(x, 1) * 0.7


def products(outputs):
    """What is the same for vectors of all phases, the first two of u, s, vt or of w, v."""
    if len(outputs) == 3:
        u, s, vt = outputs
        return [np.einsum("...ik,...kj->...kij", u[..., : s.shape[-1]], vt[..., : s.shape[-1], :])]
    w, v = outputs
    return [w, np.einsum("...ik,...jk->...kij", v, v.conj())]


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
    "spread": [((M[0],), {"shape": (4, 3), "shown": shape.getitem, "parameters": {"index": 2}})],
    "concatenate": [(([M, M[:1]],), {"axis": 0}), (([M, V],), {"axis": None})],
    "gather": [((V,), {"index": INDEX})],
    "scatter_add": [((V[:3],), {"shape": (4,), "index": INDEX})],
    "put": [((M, M[:3] * 2.0), {"index": np.array([0, 3, 1])}), ((M, V[0]), {"index": 1})],
    "add_at": [((V, V[:3]), {"index": INDEX})],
    "put_view": [((M, M[1:3].T * 2.0), {"steps": STEPS}), ((M, V[0]), {"steps": ROW})],
    "cumsum": [((M,), {"axis": 1}), ((M,), {})],
    "fourier": [((complex_of(M),), {"axis": 0})],
    "fourier_adjoint": [((complex_of(M),), {"axis": 0})],
    "half_fourier": [((M,), {"axis": 0}), ((M,), {"axis": 1})],
    "real_fourier": [((complex_of(M),), {"n": n, "axis": axis}) for n, axis in ((6, 0), (5, 1))],
    "matmul": [((M, S), {}), ((STACK, M.T), {}), ((V[:3], S), {}), ((S, V[:3]), {}), ((V, V), {})],
    "product": [((M, M), {"tx": True, "ty": False}), ((M, M), {"tx": False, "ty": True})],
    "contract": [
        (([M, S, V[:3]],), {"subscripts": "ij,jk,k->i"}),
        (([S],), {"subscripts": "ii->i"}),
    ],
    "sparse_product": [((M,), {"matrix": scipy.sparse.random_array((5, 4), density=0.5, rng=1)})],
    "inv": [((STACK,), {})],
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
    "matmul": [((complex_of(M), complex_of(S)), {})],
    "cholesky": [((HERMITIAN,), {})],
    "qr": [((complex_of(M),), {})],
    "eigh": [((HERMITIAN,), {})],
    "thin_svd": [((complex_of(M),), {}), ((complex_of(M.T),), {})],
    "full_svd": [((complex_of(M),), {})],
    "eig": [((complex_of(S) + np.diag([1.0, 2.0, 3.0]),), {})],
    "roots": [((np.array([1.0, -2.0 + 1j, 3.0, 0.4j]),), {})],
}
# derivatives of what has phases, or vectors of no derivative, are compared by these
INVARIANTS = {"eigh", "eig", "thin_svd", "full_svd"}
NO_DERIVATIVE = {("cofactor_slope", "x")}


def cases():
    for name, op in TABLE.items():
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
        if isinstance(op, Elementwise) and not op.real and op.arguments != ("condition", "x", "y"):
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
        whole = argument == "condition" or (op.name == "polygamma" and argument == "n")
        found.append(
            values > 0.5 if argument == "condition" else np.rint(values) if whole else values
        )
    return tuple(found), {}


ALL = list(cases())


def as_list(value):
    return list(value) if isinstance(value, tuple) else [value]


def values_of(op, args, given):
    """What rules may read, by name, and the outputs."""
    bound = op.bind(args, given)
    z = op(*args, **given)
    z = tuple(z) if isinstance(z, tuple) else np.asarray(z)
    values = {**bound, "z": z}
    for name in op.arguments:
        value = bound[name]
        values[f"{name}_shape"] = (
            [v.shape for v in value] if type(value) is list else np.shape(value)
        )
    for name, compute in getattr(op, "extras", {}).items():
        values[name] = compute(bound["x"], z, bound["axis"])
    return values, z


def differentiable(op):
    return [n for n in op.arguments if n in op.rules and (op.name, n) not in NO_DERIVATIVE]


def direction(value, rng):
    if type(value) is list:
        return [direction(item, rng) for item in value]
    t = rng.standard_normal(np.shape(value))
    return t + 1j * rng.standard_normal(np.shape(value)) if np.iscomplexobj(value) else t


def moved(value, t, h):
    return (
        [a + h * b for a, b in zip(value, t, strict=True)] if type(value) is list else value + h * t
    )


def tangent_of(op, args, given, names):
    rng = np.random.default_rng(2)
    values, z = values_of(op, args, given)
    tangents = {name: direction(values[name], rng) for name in names}
    if op.name in ("cholesky", "eigh"):
        tangents = {name: t + t.conj().mT for name, t in tangents.items()}
    out = (z.shape, z.dtype) if isinstance(z, np.ndarray) else (z[0].shape, z[0].dtype)
    return tangents, op.tangent(tangents, values, out), values, z


def slopes(evaluate, h=1e-5):
    """Differences of the outputs of a function of a step, of fourth order."""
    near, far = (zip(evaluate(k * h), evaluate(-k * h), strict=True) for k in (1, 2))
    return [
        (8.0 * (a - b) - (c - d)) / (12.0 * h) for (a, b), (c, d) in zip(near, far, strict=True)
    ]


def names_of(case):
    shapes = ("list" if type(a) is list else str(np.shape(a)) for a in case[1])
    return f"{case[0]}-{'x'.join(shapes)}"


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_beside_differences(case):
    name, args, given = case
    names = known(TABLE[name])
    for chosen in [names, *([n] for n in names if len(names) > 1)]:
        if chosen:
            check_tangents(name, args, given, chosen)


def check_tangents(name, args, given, names):
    op = TABLE[name]
    tangents, found, values, z = tangent_of(op, args, given, names)
    compare = products if name in INVARIANTS else list

    def at(step):
        new = (
            moved(values[n], tangents[n], step) if n in names else values[n] for n in op.arguments
        )
        return compare([np.asarray(out) for out in as_list(op(*new, **given))])

    def along(step):
        return compare([out + step * t for out, t in zip(as_list(z), as_list(found), strict=True)])

    for one, other in zip(slopes(along, 1e-3), slopes(at), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=2e-7)


def known(op):
    """The arguments that there are derivatives by."""
    return [n for n in differentiable(op) if not (isinstance(op, Pointwise) and is_refused(op, n))]


def is_refused(op, name):
    try:
        op.rules[name]()
    except TypeError as error:
        return "has no derivative" in str(error)
    return False


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_the_transpose_of_cotangents(case):
    """<g, J t> = <J^T g, t>, in the real parts."""
    name, args, given = case
    op = TABLE[name]
    names = known(op)
    if not names or (name in INVARIANTS and (name == "full_svd" or np.iscomplexobj(args[0]))):
        pytest.skip("cotangents of phases are refused")
    if name == "eig":
        pytest.skip("it is real or complex")
    tangents, found, values, z = tangent_of(op, args, given, names)
    g = [direction(out, np.random.default_rng(3)) for out in as_list(z)]
    over = sum(inner(a, b) for a, b in zip(g, as_list(found), strict=True))
    back = 0.0
    for n in names:
        pulled = op.cotangent(n, tuple(g) if isinstance(z, tuple) else g[0], values)
        pairs = (
            zip(pulled, tangents[n], strict=True)
            if type(pulled) is list
            else [(pulled, tangents[n])]
        )
        back += sum(inner(a, b) for a, b in pairs)
    np.testing.assert_allclose(back, over, rtol=1e-9, atol=1e-9)


def inner(one, other):
    return np.sum(np.real(np.conj(one) * other))


def test_every_op_has_tangents():
    tested = {name for name, *_ in ALL}
    assert tested == {*TABLE}
    for name, op in TABLE.items():
        if op.kind == "opaque":
            assert op.pushes.keys() == op.rules.keys(), name
            for argument, rule in op.pushes.items():
                reads = {*reads_of(rule)} - {"t"}
                assert reads <= op.needs(argument), (name, argument)


@pytest.mark.parametrize("name", ["gammainc", "betainc", "jv", "stdtr"])
def test_without_a_derivative(name):
    op = TABLE[name]
    args, given = elementwise_case(op, [(3,)] * 3)
    with pytest.raises(TypeError, match="has no derivative with respect to"):
        tangent_of(op, args, given, [op.arguments[0]])


def test_one_tangent_of_several():
    """Of linear ops, a tangent that is missing is 0."""
    for op, args, given in (
        (indexing.put, (V, V[:3]), {"index": np.array([4, 0, 1])}),
        (indexing.add_at, (V, V[:3]), {"index": INDEX}),
    ):
        assert isinstance(op, Linear)
        _, both, _, _ = tangent_of(op, args, given, ["x", "value"])
        parts = []
        for name in ("x", "value"):
            values, z = values_of(op, args, given)
            t = {"x": direction(V, rng := np.random.default_rng(2)), "value": direction(V[:3], rng)}
            parts.append(op.tangent({name: t[name]}, values, (z.shape, z.dtype)))
        np.testing.assert_array_equal(parts[0] + parts[1], both)


def test_views_are_views():
    t = np.arange(12.0).reshape(4, 3)
    found = shape.transpose.tangent({"x": t}, {"axes": None, "x_shape": (4, 3)}, ((3, 4), t.dtype))
    assert isinstance(shape.transpose, View)
    assert np.shares_memory(found, t)


def test_added_singular_vectors_have_no_tangent():
    _, (u, _, vt), _, _ = tangent_of(linalg.full_svd, (M,), {}, ["x"])
    assert np.isnan(u[:, 3:]).all()
    assert np.isfinite(u[:, :3]).all()
    assert np.isfinite(vt).all()
