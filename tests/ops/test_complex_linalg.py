"""Linear algebra of complex matrices: values against NumPy, gradients of both orders.

Columns of q, u and vt and eigenvectors are defined up to phases, so that losses of them must not
depend on those.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from declared import declared_in

import tapegrad as tg
from tapegrad.autograd import grad, gradcheck, gradgradcheck
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.ops import contractions, linalg, norms, products

REAL_OF = {"complex64": "float32", "complex128": "float64"}
BATCHES = [(), (2,), (0,)]


def array_of(tensor):
    return tensor.detach().numpy()


def leaf(data):
    return tg.tensor(data, requires_grad=True)


def data(*shape, seed=0, kind="c"):
    rng = np.random.default_rng(seed)
    parts = rng.uniform(-1, 1, (2, *shape))
    return parts[0] + 1j * parts[1] if kind == "c" else parts[0]


def regular(*batch, n=3, seed=0, kind="c"):
    return data(*batch, n, n, seed=seed, kind=kind) + 2.5 * np.eye(n)


def adjoint(x):
    return x.mT.conj() if isinstance(x, tg.Tensor) else np.conj(np.swapaxes(x, -1, -2))


def hermitian(x):
    return x + adjoint(x)


def positive(x):
    """A positive definite function of any matrix."""
    return x @ adjoint(x) + 2 * np.eye(x.shape[-1])


def agree(found, expected, tolerance=1e-11):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(array_of(found), expected, rtol=tolerance, atol=tolerance)


def check(f, *arrays, second=True):
    """Gradients of both orders against differences, and their dtypes and shapes."""
    tensors = [leaf(a) for a in arrays]
    if all(a.size for a in arrays):
        assert gradcheck(f, tensors, fast_mode=sum(a.size for a in arrays) > 8)
        assert not second or gradgradcheck(f, tensors, fast_mode=True)
    out = f(*tensors)
    g = np.ones(out.shape, out.dtype)
    arrays_found = grad(out, tensors, g, retain_graph=True)
    recorded = grad(out, tensors, g, create_graph=True)
    for a, found, other in zip(arrays, arrays_found, recorded, strict=True):
        agree(other, array_of(found))
        assert (found.shape, found.dtype) == (a.shape, a.dtype)


def single(f, *arrays):
    """complex64 stays complex64, and its gradients are close to those of complex128."""
    narrow = [leaf(a.astype({"c": np.complex64, "f": np.float32}[a.dtype.kind])) for a in arrays]
    out, wide = f(*narrow), [leaf(a) for a in arrays]
    assert out.dtype.itemsize == (8 if out.dtype.kind == "c" else 4)
    expected = f(*wide)
    np.testing.assert_allclose(array_of(out), array_of(expected), 1e-4, 1e-4)
    found = grad(out, narrow, np.ones(out.shape, out.dtype))
    expected = grad(expected, wide, np.ones(expected.shape, expected.dtype))
    for g, h, t in zip(found, expected, narrow, strict=True):
        assert g.dtype == t.dtype
        np.testing.assert_allclose(array_of(g), array_of(h), 1e-3, 1e-3)


TESTED = """
matmul dot inner vdot vecdot outer kron tensordot contract einsum inv solve solve_triangular det
cofactor cofactor_slope product slogdet matrix_power cholesky qr eigh eigvalsh thin_svd full_svd
svd svdvals vector_norm matrix_norm norm
"""


def test_every_function_is_decided():
    """A new function of linear algebra needs a test with complex numbers."""
    assert declared_in(contractions, linalg, norms, products) == set(TESTED.split())


# -- products --------------------------------------------------------------------------------------

PRODUCTS = [
    *[("matmul", a, b, {}) for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)))],
    *[("matmul", a, b, {}) for a, b in (((2, 3), (3, 4)), ((2, 2, 3), (3, 2)), ((2, 0), (0, 3)))],
    ("matmul", (2, 1, 2, 3), (2, 3, 2), {}),
    *[("dot", a, b, {}) for a, b in (((), (2, 3)), ((3,), (3,)), ((2, 3), (2, 3, 2)))],
    *[("inner", a, b, {}) for a, b in (((3,), (3,)), ((2, 3), (2, 3)))],
    *[("vdot", a, b, {}) for a, b in (((3,), (3,)), ((2, 3), (2, 3)))],
    ("vecdot", (2, 3), (3,), {}),
    ("vecdot", (3, 2), (3, 2), {"axis": 0}),
    ("outer", (2,), (2, 2), {}),
    ("kron", (2, 2), (2,), {}),
    ("tensordot", (2, 3), (3, 2), {"axes": 1}),
    ("tensordot", (2, 3, 2), (2, 3), {"axes": ((0, 1), (0, 1))}),
]


@pytest.mark.parametrize("kinds", ["cc", "cf", "fc"])
@pytest.mark.parametrize(("name", "a", "b", "options"), PRODUCTS)
def test_product(name, a, b, options, kinds):
    x, y = data(*a, kind=kinds[0]), data(*b, seed=1, kind=kinds[1])
    f = functools.partial(FUNCTIONS[name], **options)
    agree(f(x, y), getattr(np, name)(x, y, **options))
    check(f, x, y)
    check(lambda u: f(u, y), x)
    check(lambda v: f(x, v), y)
    single(f, x, y)


EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 2)]),
    ("i,i", [(3,), (3,)]),
    ("ii->i", [(3, 3)]),
    ("ij->j", [(2, 3)]),
    ("ij,kj,jl->il", [(2, 2), (1, 2), (2, 3)]),
    ("...i,i...->...", [(2, 3), (3, 2)]),
    ("ij,ij->ij", [(1, 3), (2, 3)]),
    ("ii,ij->j", [(2, 2), (2, 3)]),
]


@pytest.mark.parametrize("few", [0, contractions._FEW])  # as products of matrices, and in loops
@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS)
def test_einsum(subscripts, shapes, few, monkeypatch):
    monkeypatch.setattr(contractions, "_FEW", few)
    for kinds in itertools.product("cf", repeat=len(shapes)):
        if "c" in kinds:
            arrays = [
                data(*shape, seed=k, kind=kind)
                for k, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
            ]
            agree(tg.einsum(subscripts, *arrays), np.einsum(subscripts, *arrays))
            check(functools.partial(tg.einsum, subscripts), *arrays)
    if "." not in subscripts and "->" in subscripts:
        f = lambda *x: FUNCTIONS["contract"](list(x), subscripts)  # noqa: E731
        check(f, *arrays)


def test_the_first_vector_is_conjugated():
    x, y = leaf(data(3)), leaf(data(3, seed=1))
    for product in (tg.vdot, tg.linalg.vecdot):
        out = product(x, x)
        np.testing.assert_allclose(array_of(out), np.sum(abs(array_of(x)) ** 2))
        (g,) = grad(out.real, x)
        np.testing.assert_allclose(array_of(g), 2 * array_of(x))
    gx, gy = grad(tg.vdot(x, y), [x, y], np.array(1j))
    np.testing.assert_allclose(array_of(gx), -1j * array_of(y))
    np.testing.assert_allclose(array_of(gy), 1j * array_of(x))


# -- systems of equations --------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("name", ["inv", "det"])
def test_of_square_matrices(name, batch):
    x = regular(*batch)
    agree(FUNCTIONS[name](leaf(x)), getattr(np.linalg, name)(x))
    check(FUNCTIONS[name], x)
    single(FUNCTIONS[name], regular())


@pytest.mark.parametrize("kinds", ["cc", "cf", "fc"])
@pytest.mark.parametrize(
    ("a", "b"), [((), (3,)), ((), (3, 2)), ((2,), (3, 1)), ((), (2, 3, 2)), ((0,), (0, 3, 2))]
)
def test_solve(a, b, kinds):
    x, y = regular(*a, kind=kinds[0]), data(*b, seed=1, kind=kinds[1])
    agree(tg.linalg.solve(x, y), np.linalg.solve(x, y))
    check(tg.linalg.solve, x, y)
    single(tg.linalg.solve, x, y)


@pytest.mark.parametrize("kinds", ["cc", "cf", "fc"])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_solve_triangular(lower, unit, kinds):
    x, y = regular(kind=kinds[0]), data(3, 2, seed=1, kind=kinds[1])
    f = functools.partial(tg.linalg.solve_triangular, lower=lower, unit_diagonal=unit)
    triangle = np.tril(x) if lower else np.triu(x)
    if unit:
        triangle = triangle - np.diag(np.diag(x)) + np.eye(3)
    agree(f(x, y), np.linalg.solve(triangle, y))
    check(f, x, y)
    check(f, x, y[:, 0])


@pytest.mark.parametrize("tx", [False, True])
@pytest.mark.parametrize("ty", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_product_of_transposes(tx, ty, batch):
    x = data(*batch, *((3, 2) if tx else (2, 3)))
    y = data(*((4, 3) if ty else (3, 4)), seed=1)
    product = FUNCTIONS["product"]
    agree(product(x, y, tx, ty), np.matmul(x.swapaxes(-1, -2) if tx else x, y.T if ty else y))
    check(lambda a, b: product(a, b, tx, ty), x, y)


@pytest.mark.parametrize("rank", [2, 1, 0])
def test_determinant_of_singular_matrices(rank):
    """The gradient is made of minors, which need no inverse."""
    x = data(3, rank) @ data(rank, 3, seed=1)
    check(tg.linalg.det, x)
    check(FUNCTIONS["cofactor"], regular())
    single(FUNCTIONS["cofactor"], x)
    minors = FUNCTIONS["cofactor"](x)
    expected = np.empty((3, 3), complex)
    for i, j in np.ndindex(3, 3):
        minor = np.delete(np.delete(x, i, 0), j, 1)
        expected[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    np.testing.assert_allclose(minors, expected, atol=1e-13)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_slogdet(batch):
    x = regular(*batch)
    sign, log = tg.linalg.slogdet(leaf(x))
    agree(sign, np.linalg.slogdet(x)[0])
    agree(log, np.linalg.slogdet(x)[1])
    check(lambda x: tg.linalg.slogdet(x)[0], x)
    check(lambda x: tg.linalg.slogdet(x)[1], x)
    check(lambda x: tg.linalg.slogdet(x)[0] * tg.exp(tg.linalg.slogdet(x)[1]), x)


@pytest.mark.parametrize("n", [-2, -1, 0, 1, 3, 6])
def test_matrix_power(n):
    x = regular()
    f = functools.partial(tg.linalg.matrix_power, n=n)
    agree(f(leaf(x)), np.linalg.matrix_power(x, n), 1e-9)
    check(f, x * 0.4)


# -- decompositions --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_cholesky(batch):
    x = positive(data(*batch, 3, 3))
    agree(tg.linalg.cholesky(leaf(x)), np.linalg.cholesky(x))
    check(lambda x: tg.linalg.cholesky(positive(x)), data(*batch, 3, 3))
    single(lambda x: tg.linalg.cholesky(x @ adjoint(x)), regular())
    (g,) = grad(tg.linalg.cholesky(t := leaf(x)), t, data(*batch, 3, 3, seed=4))
    agree(adjoint(g), array_of(g))  # as that of a Hermitian matrix


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 3, 2), (0, 2, 2), (3, 1)], ids=str)
def test_qr(shape):
    x = data(*shape) + 2 * np.eye(*shape[-2:])
    q, r = tg.linalg.qr(leaf(x))
    agree(q, np.linalg.qr(x)[0])
    agree(r, np.linalg.qr(x)[1])
    check(lambda x: abs(tg.linalg.qr(x)[0]) ** 2, x)
    check(lambda x: abs(tg.linalg.qr(x)[1]) ** 2, x)
    check(lambda x: tg.matmul(*tg.linalg.qr(x)), x)

    def onto_columns(x):
        q, _ = tg.linalg.qr(x)
        return q @ adjoint(q)

    check(onto_columns, x)


@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_eigh(batch, uplo):
    x = hermitian(data(*batch, 3, 3))
    w, v = tg.linalg.eigh(leaf(x), uplo)
    assert w.dtype == np.float64
    agree(w, np.linalg.eigh(x, uplo)[0])
    agree(v, np.linalg.eigh(x, uplo)[1])
    agree(tg.linalg.eigvalsh(leaf(x)), np.linalg.eigvalsh(x))

    def parts(x):
        return tg.linalg.eigh(hermitian(x), uplo)

    x = data(*batch, 3, 3)
    check(lambda x: parts(x)[0], x)
    check(lambda x: tg.linalg.eigvalsh(hermitian(x)), x)
    check(lambda x: abs(parts(x)[1]), x)
    check(lambda x: projector(parts(x)[1][..., :, 0]), x)

    def cubed(x):
        w, v = parts(x)
        return v @ (w[..., None] ** 3 * adjoint(v))

    check(cubed, x)


def projector(v):
    return v[..., :, None] * v[..., None, :].conj()


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2), (0, 2, 2), (1, 3)], ids=str)
def test_svd(shape):
    x = data(*shape)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    for found, expected in zip(
        tg.linalg.svd(leaf(x), full_matrices=False), (u, s, vt), strict=True
    ):
        agree(found, expected)
    for found, expected in zip(tg.linalg.svd(leaf(x)), np.linalg.svd(x), strict=True):
        agree(found, expected)
    agree(tg.linalg.svdvals(leaf(x)), s)
    agree(tg.linalg.svd(leaf(x), compute_uv=False), s)
    check(tg.linalg.svdvals, x)
    check(lambda x: abs(tg.linalg.svd(x, full_matrices=False)[0]) ** 2, x)
    check(lambda x: abs(tg.linalg.svd(x, full_matrices=False)[2]) ** 2, x)

    def halved(x):
        u, s, vt = FUNCTIONS["thin_svd"](x)
        return (u * s[..., None, :] ** 0.5) @ vt

    check(halved, x)
    check(lambda x: projector(tg.linalg.svd(x, full_matrices=False)[0][..., :, 0]), x)

    def leading(x):
        u, _, vt = tg.linalg.svd(x, full_matrices=False)
        return u[..., 0] * vt[..., :1, 0]

    check(leading, x)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: tg.linalg.svd(x, full_matrices=False)[0].real.sum(),
        lambda x: (tg.linalg.svd(x, full_matrices=False)[2] * np.arange(3)).imag.sum(),
        lambda x: (tg.linalg.eigh(hermitian(x))[1] * np.arange(3)).imag.sum(),
    ],
    ids=["u", "vt", "v"],
)
def test_losses_of_phases_are_refused(f):
    """Columns are defined up to a phase: what depends on it has no derivative."""
    x = leaf(data(3, 3))
    with pytest.raises(RuntimeError, match="phase"):
        grad(f(x), x)


def test_coinciding_values():
    """Functions of singular values and eigenvalues are smooth where those are equal."""
    x = leaf(np.eye(3) * (1 + 1j))
    (g,) = grad(tg.linalg.svdvals(x).sum(), x)
    np.testing.assert_allclose(array_of(g), np.eye(3) * (1 + 1j) / math.sqrt(2), atol=1e-14)
    (g,) = grad((tg.linalg.eigh(hermitian(x))[0] ** 2).sum(), x)
    np.testing.assert_allclose(array_of(g), np.eye(3) * 8, atol=1e-14)


def test_one_matrix_by_several_ways():
    """Gradients of one function, composed in several ways, agree."""
    x = data(3, 3) * 0.5
    ways = {
        "slogdet": lambda a: tg.linalg.slogdet(a)[1],
        "det": lambda a: tg.log(abs(tg.linalg.det(a))),
        "cholesky": lambda a: 2 * tg.log(tg.linalg.cholesky(a).diagonal().real).sum(),
        "eigh": lambda a: tg.log(tg.linalg.eigvalsh(a)).sum(),
        "svd": lambda a: tg.log(tg.linalg.svdvals(a)).sum(),
        "qr": lambda a: tg.log(abs(tg.linalg.qr(a)[1].diagonal())).sum(),
    }
    found = {}
    for name, f in ways.items():
        t = leaf(x)
        found[name] = array_of(grad(f(positive(t)), t)[0])
    for name in ways:
        np.testing.assert_allclose(found[name], found["slogdet"], rtol=1e-10, err_msg=name)


# -- norms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)], ids=str)
@pytest.mark.parametrize("ord", [1, 2, 3, -1, 0.5, math.inf, -math.inf, 0])
def test_vector_norm(ord, axis):
    x = data(2, 3)
    f = functools.partial(tg.linalg.vector_norm, ord=ord, axis=axis)
    expected = np.linalg.vector_norm(x, ord=ord, axis=axis)
    out = f(leaf(x))
    if ord == 0:
        assert not out.requires_grad
        return
    agree(out, expected)
    check(f, x)
    single(f, x)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_matrix_norm(ord):
    x = data(2, 3, 2)
    f = functools.partial(tg.linalg.matrix_norm, ord=ord)
    agree(f(leaf(x)), np.linalg.matrix_norm(x, ord=ord))
    check(f, x)
    agree(tg.linalg.norm(leaf(x), ord=ord, axis=(1, 2)), np.linalg.matrix_norm(x, ord=ord))


def test_norm():
    x = data(2, 3)
    for options in ({}, {"axis": 0}, {"ord": 1, "axis": 1}, {"ord": "nuc"}, {"keepdims": True}):
        f = functools.partial(tg.linalg.norm, **options)
        agree(f(leaf(x)), np.linalg.norm(x, **options))
        check(f, x)


# -- layouts ---------------------------------------------------------------------------------------

LAYOUTS = {
    "matmul": lambda x: x @ x.mT,
    "inv": tg.linalg.inv,
    "det": tg.linalg.det,
    "slogdet": lambda x: tg.linalg.slogdet(x)[1],
    "solve": lambda x: tg.linalg.solve(x, x.mT),
    "cholesky": lambda x: tg.linalg.cholesky(positive(x)),
    "svdvals": tg.linalg.svdvals,
    "norm": tg.linalg.norm,
    "einsum": lambda x: tg.einsum("ij,kj->ik", x, x.conj()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strided_input(name):
    f, base = LAYOUTS[name], regular(n=8)
    view = base[::3, ::-3].T
    strided, plain = tg.as_tensor(view).requires_grad_(), leaf(np.array(view))
    out = f(strided)
    agree(out, array_of(f(plain)))
    g = np.full(out.shape, 2, out.dtype, order="F")
    agree(grad(out, strided, g)[0], array_of(grad(f(plain), plain, g)[0]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_real_matrices_beside_complex_ones(name):
    """A matrix that becomes complex on the way has a real gradient."""
    f = LAYOUTS[name]
    check(lambda x: f(x + 1j * x.mT * 0.3), regular(kind="f"))
