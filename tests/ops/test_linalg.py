"""Linear algebra: values against NumPy, gradients of both orders, degenerate matrices."""

import functools
import math

import numpy as np
import pytest
import scipy.linalg
from agreement import agree, array_of, check, data
from declared import declared_in

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS, NAMESPACES
from tapegrad.ops import linalg as linalg_module
from tapegrad.ops import norms, products

BATCHES = [(), (1,), (2,), (2, 3), (0,)]


def regular(*batch, n=3, seed=0):
    return data(*batch, n, n, seed=seed) + 3 * np.eye(n)


def positive_definite(x):
    """A symmetric positive definite function of any matrix."""
    return x @ x.mT + 2 * np.eye(x.shape[-1])


TESTED = {
    "matmul", "dot", "inner", "vdot", "vecdot", "outer", "kron", "tensordot", "inv", "solve",
    "solve_triangular", "det", "cofactor", "cofactor_slope", "product", "slogdet", "matrix_power",
    "cholesky", "qr", "eigh", "eigvalsh", "thin_svd", "full_svd", "svd", "svdvals", "vector_norm",
    "matrix_norm", "norm",
}  # fmt: skip


def test_every_function_is_here():
    assert declared_in(linalg_module, norms, products) == TESTED
    apart = {"trace": "matrix_trace", "diagonal": "matrix_diagonal"}
    assert all(getattr(tg.linalg, n) is FUNCTIONS[apart.get(n, n)] for n in NAMESPACES["linalg"])


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((3,), (5, 3, 2)),
        ((5, 2, 3), (3,)),
        ((1, 2, 3), (5, 3, 1)),
        ((2, 0), (0, 3)),
        ((0, 3), (3, 2)),
        ((0,), (0,)),
    ],
)
def test_matmul(a, b):
    x, y = data(*a), data(*b, seed=1)
    agree(tg.matmul(x, y), np.matmul(x, y))
    check(tg.matmul, x, y)
    check(lambda v: v @ y, x)
    check(lambda v: x @ v, y)


@pytest.mark.parametrize("tx", [False, True])
@pytest.mark.parametrize("ty", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_product_of_transposes(tx, ty, batch):
    x = data(*batch, *((3, 2) if tx else (2, 3)))
    y = data(*((4, 3) if ty else (3, 4)), seed=1)
    product = FUNCTIONS["product"]
    agree(product(x, y, tx, ty), np.matmul(x.swapaxes(-1, -2) if tx else x, y.T if ty else y))
    check(lambda a, b: product(a, b, tx, ty), x, y)


@pytest.mark.parametrize(
    ("name", "a", "b", "kwargs"),
    [
        ("dot", (), (2, 3), {}),
        ("dot", (3,), (3,), {}),
        ("dot", (2, 3), (3, 4), {}),
        ("dot", (5, 2, 3), (3,), {}),
        ("dot", (2, 3), (5, 3, 2), {}),
        ("dot", (2, 2, 3), (4, 3, 2), {}),
        ("dot", (3,), (2, 3, 4), {}),
        ("inner", (), (2, 3), {}),
        ("inner", (3,), (3,), {}),
        ("inner", (2, 3), (4, 3), {}),
        ("inner", (2, 2, 3), (3,), {}),
        ("vdot", (2, 3), (3, 2), {}),
        ("vdot", (), (), {}),
        ("vecdot", (2, 3), (2, 3), {}),
        ("vecdot", (5, 1, 3), (2, 3), {}),
        ("vecdot", (3, 2), (3, 2), {"axis": 0}),
        ("outer", (2,), (3,), {}),
        ("outer", (2, 2), (3, 1), {}),
        ("outer", (), (3,), {}),
        ("kron", (2, 3), (3, 2), {}),
        ("kron", (2,), (3,), {}),
        ("kron", (2,), (3, 2), {}),
        ("kron", (2, 1, 2), (3, 2), {}),
        ("kron", (), (2, 2), {}),
        ("tensordot", (2, 3, 4), (3, 4, 5), {}),
        ("tensordot", (2, 3), (3, 2), {"axes": 1}),
        ("tensordot", (2, 3), (4,), {"axes": 0}),
        ("tensordot", (2, 3), (2, 3), {"axes": 2}),
        ("tensordot", (2, 3, 4), (4, 2), {"axes": ((0, -1), (1, 0))}),
        ("tensordot", (2, 3, 4), (5, 3), {"axes": (1, -1)}),
        ("tensordot", (2, 0), (0, 3), {"axes": 1}),
        ("tensordot", (2, 3), (3, 0), {"axes": 1}),
    ],
)
def test_product(name, a, b, kwargs):
    x, y = data(*a), data(*b, seed=1)
    call = FUNCTIONS[name]
    expected = getattr(np, name)(x, y, **kwargs)
    agree(call(x, y, **kwargs), expected)
    agree(call(tg.tensor(x, requires_grad=True), y, **kwargs), expected)
    check(lambda u, v: call(u, v, **kwargs), x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int64])
@pytest.mark.parametrize("batch", [(40, 40), (1, 40), (40, 1), (1, 1)])
@pytest.mark.parametrize(("rows", "columns"), [(20, 9), (2, 40), (40, 1), (3, 3), (60, 50)])
def test_outer_products(dtype, batch, rows, columns):
    x = (10 * data(batch[0], rows, 1)).astype(dtype)
    y = (10 * data(batch[1], 1, columns, seed=1)).astype(dtype)
    if dtype != np.int64:
        x[0, 0], y[-1, 0, -1] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        found, expected = products.matmul(x, y), x * y
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


# -- systems of equations --------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES)
def test_inv_det_slogdet(batch):
    x = regular(*batch)
    agree(tg.linalg.inv(x), np.linalg.inv(x))
    agree(tg.linalg.det(x), np.linalg.det(x))
    for found, expected in zip(tg.linalg.slogdet(x), np.linalg.slogdet(x), strict=True):
        agree(found, expected)
    check(tg.linalg.inv, x)
    check(tg.linalg.det, x)
    check(lambda v: tg.linalg.slogdet(v)[1], x)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 3), (3,)),
        ((3, 3), (3, 2)),
        ((2, 3, 3), (3,)),
        ((2, 3, 3), (2, 3, 1)),
        ((2, 3, 3), (3, 2)),
        ((3, 3), (2, 3, 2)),
        ((4, 1, 3, 3), (2, 3, 2)),
        ((0, 3, 3), (0, 3, 2)),
        ((3, 3), (3, 0)),
        ((1, 1), (1,)),
    ],
)
def test_solve(a, b):
    x, y = regular(*a[:-2], n=a[-1]), data(*b, seed=1)
    agree(tg.linalg.solve(x, y), np.linalg.solve(x, y))
    check(tg.linalg.solve, x, y)


@pytest.mark.parametrize("b", [(3,), (3, 2), (2, 3, 2)])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit_diagonal", [False, True])
def test_solve_triangular(batch, b, lower, unit_diagonal):
    """The other triangle (and the diagonal, if it is taken as 1) gets no gradient."""
    kwargs = {"lower": lower, "unit_diagonal": unit_diagonal}
    x, y = regular(*batch), data(*b, seed=1)
    found = tg.linalg.solve_triangular(x, y, **kwargs)
    if not batch and len(b) < 3:
        agree(found, scipy.linalg.solve_triangular(x, y, **kwargs))
    check(lambda u, v: tg.linalg.solve_triangular(u, v, **kwargs), x, y)
    t = tg.tensor(x, requires_grad=True)
    out = tg.linalg.solve_triangular(t, y, **kwargs)
    (g,) = tg.autograd.grad(out, t, np.ones(out.shape))
    unread = np.tri(3, 3, -1 if not unit_diagonal else 0, dtype=bool)
    unread = unread.T if lower else unread
    assert not array_of(g)[..., unread].any()
    assert array_of(g)[..., ~unread].all()


@pytest.mark.parametrize(
    "x",
    [
        [[1.0, 2.0], [2.0, 4.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]],
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
        [[0.0]],
        [[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]],
    ],
)
def test_det_of_singular_matrices(x):
    """The gradient is the matrix of cofactors, whatever the rank; it has derivatives itself."""
    check(tg.linalg.det, np.asarray(x))
    t = tg.tensor(x, requires_grad=True)
    (g,) = tg.autograd.grad(tg.linalg.det(t).sum(), t)
    x = np.asarray(x)
    cofactors = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(x.shape[-1]):
            minor = np.delete(np.delete(x, i, -2), j, -1)
            cofactors[..., i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    np.testing.assert_allclose(array_of(g), cofactors, atol=1e-12)


def test_third_derivative_of_a_singular_det_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="det: the third derivative"):
        tg.grad(lambda x: tg.hessian(tg.linalg.det)(x)[0, 1].sum())(np.array([[1.0, 2], [2, 4]]))


def test_det_of_negative_sign():
    x = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -3.0]])
    check(tg.linalg.det, x)
    check(tg.linalg.det, x[[1, 0, 2]])
    check(lambda v: tg.linalg.slogdet(v)[1], x)


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 3, 5])
def test_matrix_power(n):
    for batch in ((), (2,)):
        x = regular(*batch) / 3
        agree(tg.linalg.matrix_power(x, n), np.linalg.matrix_power(x, n))
        check(lambda v: tg.linalg.matrix_power(v, n), x)


@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "cholesky"])
def test_0_by_0(name):
    x = np.zeros((0, 0))
    found, expected = getattr(tg.linalg, name)(x), getattr(np.linalg, name)(x)
    if name == "slogdet":
        found, expected = found[1], expected[1]
    agree(found, expected)
    t = tg.tensor(x, requires_grad=True)
    out = getattr(tg.linalg, name)(t)
    out = out[1] if name == "slogdet" else out
    (g,) = tg.autograd.grad(out.sum(), t)
    assert g.shape == (0, 0)


# -- decompositions --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_cholesky(batch):
    x = data(*batch, 3, 3)
    spd = array_of(positive_definite(tg.tensor(x)))
    agree(tg.linalg.cholesky(spd), np.linalg.cholesky(spd))
    check(lambda v: tg.linalg.cholesky(positive_definite(v)), x)


def test_gradient_of_cholesky_is_symmetric():
    x = tg.tensor(array_of(positive_definite(tg.tensor(data(3, 3)))), requires_grad=True)
    (g,) = tg.autograd.grad(tg.linalg.cholesky(x).sum(), x)
    np.testing.assert_allclose(array_of(g), array_of(g).T)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 3, 2), (1, 1), (3, 1)])
def test_qr(shape):
    x = data(*shape)
    for found, expected in zip(tg.linalg.qr(x), np.linalg.qr(x), strict=True):
        agree(found, expected)
    check(lambda v: tg.linalg.qr(v)[0], x)
    check(lambda v: tg.linalg.qr(v)[1], x)
    check(lambda v: tg.linalg.qr(v)[0] * tg.linalg.qr(v)[1][..., :1, :], x)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(batch, uplo):
    x = data(*batch, 3, 3)
    symmetric = x + np.swapaxes(x, -1, -2)
    for found, expected in zip(
        tg.linalg.eigh(symmetric, uplo), np.linalg.eigh(symmetric, uplo), strict=True
    ):
        agree(found, expected)
    agree(tg.linalg.eigvalsh(symmetric, uplo), np.linalg.eigvalsh(symmetric, uplo))
    check(lambda v: tg.linalg.eigvalsh(v + v.mT, uplo), x)
    check(lambda v: tg.linalg.eigh(v + v.mT, uplo)[1] ** 2, x)

    def both(v):
        w, q = tg.linalg.eigh(v + v.mT, uplo)
        return q * tg.expand_dims(w, -2)

    check(both, x)


def turned(values):
    """A symmetric matrix with these eigenvalues, and an eigenvector of the last one."""
    q = np.linalg.qr(data(3, 3))[0]
    x = q * np.array(values) @ q.T
    return 0.5 * (x + x.T), q[:, 2]


EQUAL = {"unit": np.eye(3), "zero": np.zeros((3, 3)), "turned": turned([1.0, 1.0, 2.0])[0]}
WEIGHTS = np.arange(9.0).reshape(3, 3) ** 2


def of_eigenvalues(function):
    def f(x):
        w, v = tg.linalg.eigh(x)
        return tg.sum(v * function(w) @ v.mT * WEIGHTS)

    return f


def of_singular_values(function):
    def f(x):
        u, s, vt = tg.linalg.svd(x, full_matrices=False)
        return tg.sum(u * function(s) @ vt * WEIGHTS[: x.shape[0], : x.shape[1]])

    return f


@pytest.mark.parametrize("matrix", EQUAL)
@pytest.mark.parametrize("family", [of_eigenvalues, of_singular_values])
def test_smooth_functions_of_matrices_with_equal_eigenvalues(family, matrix):
    """What such a function is within an eigenspace is not known from the vectors: never 0."""
    f, x = family(tg.exp), EQUAL[matrix]
    assert np.isnan(tg.grad(f)(x)).any()
    assert np.isnan(tg.jvp(f)(x, WEIGHTS + WEIGHTS.T)[1])
    assert np.isnan(tg.hessian(f)(x)).any()


@pytest.mark.parametrize("matrix", EQUAL)
@pytest.mark.parametrize("values", [tg.linalg.eigvalsh, tg.linalg.svdvals])
def test_functions_of_equal_eigenvalues_alone(values, matrix):
    x = EQUAL[matrix]
    found = tg.grad(lambda x: tg.sum(values(x) ** 3))(x)
    np.testing.assert_allclose(found, 3 * x @ x, atol=1e-13)
    t = WEIGHTS + WEIGHTS.T
    _, tangent = tg.jvp(lambda x: tg.sum(values(x) ** 3))(x, t)
    np.testing.assert_allclose(tangent, np.sum(3 * x @ x * t), rtol=1e-12, atol=1e-12)


def test_an_eigenvector_beside_an_eigenspace():
    """Vectors of other eigenvalues have their derivatives."""
    x, v = turned([1.0, 1.0, 2.0])
    found = tg.grad(lambda x: tg.sum(tg.linalg.eigh(x)[1][:, 2] ** 2 * WEIGHTS[0]))(x)
    across = (np.eye(3) - np.outer(v, v)) @ (2.0 * WEIGHTS[0] * v)
    want = np.outer(across, v)
    np.testing.assert_allclose(found, 0.5 * (want + want.T), rtol=1e-11, atol=1e-12)


def by_eigh(x):
    w, v = tg.linalg.eigh(x)
    return v, w, v.T


EAGER_AND_JIT = pytest.mark.parametrize(
    "transform",
    [
        pytest.param(lambda f: f, id="eager"),
        pytest.param(tg.jit, id="jit", marks=pytest.mark.compiled),
    ],
)
VANISHING = {  # functions of equal eigenvalues, which are 0 there, and their slope
    "log": (np.eye(3), tg.log, 1.0),
    "a difference": (np.diag([3.0, 3.0, 1.0]), lambda w: w * w - 9.0, 6.0),
    "zeros": (np.zeros((3, 3)), lambda w: w, 1.0),
    "null space": (np.diag([2.0, 0.0, 0.0]), lambda w: w, 1.0),
}


@pytest.mark.parametrize("weights", [WEIGHTS, np.ones((3, 3))], ids=["weighted", "sum"])
@pytest.mark.parametrize("decompose", [by_eigh, tg.linalg.svd], ids=["eigh", "svd"])
@EAGER_AND_JIT
@pytest.mark.parametrize("case", VANISHING)
def test_functions_that_vanish_at_equal_eigenvalues(case, transform, decompose, weights):
    """Vectors that are multiplied by 0 seem unused; what their values get tells them apart."""
    x, function, _ = VANISHING[case]

    @transform
    def product(x):
        left, values, right = decompose(x)
        return tg.sum(left * function(values) @ right * weights)

    assert np.isnan(tg.grad(product)(x)).any()


@pytest.mark.parametrize("decompose", [by_eigh, tg.linalg.svd], ids=["eigh", "svd"])
@EAGER_AND_JIT
@pytest.mark.parametrize("case", VANISHING)
def test_values_beside_vectors_that_are_not_used(case, transform, decompose):
    x, function, slope = VANISHING[case]

    @transform
    def f(x):
        return tg.sum(function(decompose(x)[1]))

    found, expected = tg.grad(f)(x), slope * np.eye(3)
    if case == "a difference":
        expected[2, 2] = 2.0
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("decompose", [by_eigh, tg.linalg.svd], ids=["eigh", "svd"])
def test_principal_components_of_few_samples(decompose):
    """Eigenvalues that are 0 but for rounding keep the derivatives of the others."""
    samples = data(3, 6)

    def share_and_vector(x):
        left, values, _ = decompose(x.T @ x)
        k = tg.argmax(values)
        return values[k] / tg.sum(values) + left[0, k] ** 2

    def plain(x):
        values, left = np.linalg.eigh(x.T @ x)
        return values[-1] / np.sum(values) + left[0, -1] ** 2

    direction, h = data(3, 6)[::-1], 1e-5
    change = (plain(samples + h * direction) - plain(samples - h * direction)) / (2.0 * h)
    found = np.sum(tg.grad(share_and_vector)(samples) * direction)
    np.testing.assert_allclose(found, change, rtol=1e-7)


class Same(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


READERS = {  # of three vectors, and which they use
    "one element": (lambda v: v[1, 2], {2}),
    "a part of a part": (lambda v: v.T[1:][1, :2], {2}),
    "a larger view": (lambda v: tg.broadcast_to(v[:, :1], (2, 3, 3)) ** 2, {0}),
    "a flat view": (lambda v: v.reshape(-1)[2::3], {2}),
    "many": (lambda v: tg.stack([v[0, 2], v[1, 2], v[2, 2]]), {2}),
    "many whole ones": (lambda v: tg.concatenate([v, v, v], axis=1)[:, 2], {0, 1, 2}),
    "a sum": (lambda v: tg.sum(v[:, 2:] + v, axis=0)[2], {0, 1, 2}),
    "a function": (lambda v: Same.apply(v)[:, 2], {0, 1, 2}),
    "functions in a chain": (lambda v: Same.apply(Same.apply(Same.apply(v)))[:, 2], {0, 1, 2}),
    "a function of a part": (lambda v: Same.apply(Same.apply(v[:, 2])), {2}),
    "a copy of a part": (lambda v: v[:, 2].clone(), {2}),
    "another type": (lambda v: v.astype(np.float32)[:, 2].astype(float), {0, 1, 2}),
    "elements by number": (lambda v: v[:, [2]], {0, 1, 2}),
}


@pytest.mark.parametrize("backward", [False, True], ids=["grad", "backward"])
@pytest.mark.parametrize("alone", [0, 2])
@pytest.mark.parametrize("reader", READERS)
def test_equal_eigenvalues_beside_some_vectors(reader, alone, backward):
    """They have derivatives, unless vectors are used that may turn."""
    read, used = READERS[reader]
    values = np.ones(3)
    values[alone] = alone

    def f(x):
        w, v = tg.linalg.eigh(x)
        return tg.sum(w) + tg.sum(0.0 * read(v))

    if backward:
        x = tg.tensor(np.diag(values), requires_grad=True)
        f(x).backward()
        found = x.grad.numpy()
    else:
        found = tg.grad(f)(np.diag(values))
    if used == {alone}:
        np.testing.assert_array_equal(found, np.eye(3))
    else:
        assert np.isnan(found).any()


@pytest.mark.parametrize("given", [lambda v: v, lambda v: v[:, 1:]], ids=["vectors", "a part"])
def test_equal_eigenvalues_beside_vectors_with_a_given_cotangent(given):
    """Where a cotangent of 0 comes from is not known: vectors may have been multiplied by 0."""

    def f(x):
        w, v = tg.linalg.eigh(x)
        return w, given(v)

    (_, vectors), pull = tg.vjp(f, np.eye(3))
    (found,) = pull((np.ones(3), np.zeros(np.shape(vectors))))
    assert np.isnan(found).any()


def test_an_infinite_cotangent_of_one_eigenvalue_0():
    def f(x):
        w, v = tg.linalg.eigh(x)
        return tg.sum(tg.sqrt(w)) + v[0, 0]

    assert tg.grad(f)(np.zeros((1, 1))).item() == np.inf


def test_the_vector_of_a_zero_singular_value():
    """It is any vector across the others, in a matrix that is higher than wide."""
    x = np.outer([1.0, 2.0, 3.0], [1.0, -1.0])
    assert np.isnan(tg.grad(lambda x: tg.sum(tg.linalg.svd(x, False)[0] ** 3))(x)).any()
    found = tg.grad(lambda x: tg.sum(tg.linalg.svd(x, False)[1] ** 2))(x)
    np.testing.assert_allclose(found, 2 * x, atol=1e-13)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2), (1, 3), (2, 2, 3)])
def test_svd(shape):
    x = data(*shape)
    for full in (False, True):
        svd = functools.partial(tg.linalg.svd, full_matrices=full)
        for found, expected in zip(svd(x), np.linalg.svd(x, full_matrices=full), strict=True):
            agree(found, expected)
    assert [a.shape for a in tg.linalg.svd(x)] == [a.shape for a in np.linalg.svd(x)]
    agree(tg.linalg.svdvals(x), np.linalg.svdvals(x))
    agree(tg.linalg.svd(x, compute_uv=False), np.linalg.svdvals(x))
    check(tg.linalg.svdvals, x)
    for k in (0, 2):
        check(lambda v, k=k: tg.linalg.svd(v, full_matrices=False)[k], x)

    def product(v):
        u, s, vt = tg.linalg.svd(v, full_matrices=False)
        return u * tg.expand_dims(s**2, -2) @ vt

    def product_of_parts(v):
        u, s, vt = tg.linalg.svd(v)
        k = min(v.shape[-2:])
        return u[..., :k] * tg.expand_dims(s**2, -2) @ vt[..., :k, :]

    check(product, x)
    check(product_of_parts, x)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 3, 2)])
def test_singular_vectors_that_are_added(shape):
    """Any basis will do for them, so that a function of them has no derivative."""
    t = tg.tensor(data(*shape), requires_grad=True)
    u, _, vt = tg.linalg.svd(t)
    added = u if shape[-2] > shape[-1] else vt
    with pytest.raises(np.linalg.LinAlgError, match="full_matrices=False"):
        added.sum().backward()


def test_traces_and_diagonals_of_stacks():
    """Those of numpy.linalg take the last two axes, those of numpy the first two."""
    x = data(2, 3, 4)
    for name in ("trace", "diagonal"):
        for offset in (0, 1, -2):
            f = functools.partial(getattr(tg.linalg, name), offset=offset)
            agree(f(x), getattr(np.linalg, name)(x, offset=offset))
            agree(getattr(np.linalg, name)(tg.tensor(x), offset=offset), f(x).numpy())
            check(f, x)
        agree(getattr(tg, name)(x), getattr(np, name)(x))
        agree(getattr(np, name)(tg.tensor(x)), getattr(np, name)(x))


def test_svd_with_equal_singular_values():
    t = tg.tensor(np.eye(3), requires_grad=True)
    (g,) = tg.autograd.grad(tg.linalg.svdvals(t).sum(), t)
    np.testing.assert_allclose(array_of(g), np.eye(3), atol=1e-14)


# -- norms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, 1, 2, 3, 0.5, 2.5, math.inf, -math.inf, 0, -1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_norm_of_vectors(ord, axis, keepdims):
    x = data(4) if axis is None else data(4, 3)
    kwargs = {"ord": ord, "axis": axis, "keepdims": keepdims}
    agree(tg.linalg.norm(x, **kwargs), np.linalg.norm(x, **kwargs))
    if ord == 0:  # a count has no derivative
        with pytest.warns(tg.DetachedWarning, match="the result does not depend on"):
            check(lambda v: tg.linalg.norm(v, **kwargs), x)
        return
    check(lambda v: tg.linalg.norm(v, **kwargs), x)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@pytest.mark.parametrize("axis", [None, (0, 1), (-1, 0), (2, 1)])
def test_norm_of_matrices(ord, axis, keepdims):
    x = data(3, 2) if axis is None else data(3, 2, 4)
    kwargs = {"ord": ord, "axis": axis, "keepdims": keepdims}
    agree(tg.linalg.norm(x, **kwargs), np.linalg.norm(x, **kwargs))
    check(lambda v: tg.linalg.norm(v, **kwargs), x)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, 2, math.inf])
def test_matrix_norm(ord):
    x = data(2, 3, 4)
    agree(tg.linalg.matrix_norm(x, ord=ord), np.linalg.matrix_norm(x, ord=ord))
    found = tg.linalg.matrix_norm(x, ord=ord, keepdims=True)
    agree(found, np.linalg.matrix_norm(x, ord=ord, keepdims=True))


@pytest.mark.parametrize("axis", [None, 0, (0, 1), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("ord", [1, 2, 3, math.inf])
def test_vector_norm(ord, axis):
    x = data(2, 3, 4)
    agree(
        tg.linalg.vector_norm(x, axis=axis, ord=ord), np.linalg.vector_norm(x, axis=axis, ord=ord)
    )
    check(lambda v: tg.linalg.vector_norm(v, axis=axis, ord=ord), x)


@pytest.mark.parametrize("ord", [1, 2, 3, 1.5])
def test_norm_of_0(ord):
    """Value and derivative are 0."""
    t = tg.tensor(np.zeros(3), requires_grad=True)
    out = tg.linalg.norm(t, ord=ord)
    (g,) = tg.autograd.grad(out, t)
    assert out.item() == 0.0
    assert g.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("ord", [1, 2, 3, 1.5])
def test_norm_with_some_zeros(ord):
    t = tg.tensor([0.0, 3.0, -4.0], requires_grad=True)
    (g,) = tg.autograd.grad(tg.linalg.norm(t, ord=ord), t)
    size = np.array([0.0, 3.0, 4.0])
    want = np.array([0, 1, -1]) * (size / np.linalg.norm(size, ord=ord)) ** (ord - 1)
    np.testing.assert_allclose(array_of(g), want, rtol=1e-13)


# -- dtypes and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f",
    [
        tg.linalg.inv,
        tg.linalg.det,
        lambda x: tg.linalg.slogdet(x)[1],
        lambda x: tg.linalg.solve(x, np.ones(3, np.float32)),
        lambda x: tg.linalg.cholesky(x @ x.mT),
        lambda x: tg.linalg.qr(x)[1],
        lambda x: tg.linalg.eigvalsh(x + x.mT),
        tg.linalg.svdvals,
        lambda x: tg.linalg.norm(x, ord=1),
        lambda x: tg.linalg.norm(x, ord=3, axis=0),
        lambda x: tg.linalg.norm(x, ord="nuc"),
        lambda x: tg.linalg.matrix_power(x, 3),
        lambda x: tg.linalg.matrix_power(x, 0),
        lambda x: tg.einsum("ij,kj->i", x, x),
    ],
)
def test_float32_stays(f):
    t = tg.tensor(regular().astype(np.float32), requires_grad=True)
    out = f(t)
    assert out.dtype == np.float32
    (g,) = tg.autograd.grad(out, t, np.ones(out.shape, np.float32))
    assert g.dtype == np.float32
    wide = tg.tensor(regular(), requires_grad=True)
    if out.requires_grad:
        (h,) = tg.autograd.grad(f(wide), wide, np.ones(out.shape))
        np.testing.assert_allclose(array_of(g), array_of(h), rtol=1e-2, atol=1e-3)


def test_float32_by_float64():
    a = tg.tensor(regular().astype(np.float32), requires_grad=True)
    b = tg.tensor(data(3, 2), requires_grad=True)
    for out in (a @ b, tg.linalg.solve(a, b), tg.einsum("ij,jk->ik", a, b)):
        assert out.dtype == np.float64
        ga, gb = tg.autograd.grad(out.sum(), [a, b])
        assert ga.dtype == np.float32
        assert gb.dtype == np.float64


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: tg.matmul(x, np.ones((5, 5))), ValueError, "matmul|shape|dimension"),
        (lambda x: tg.matmul(x, 2.0), ValueError, "matmul|scalar|dimension"),
        (lambda x: tg.tensordot(x, np.ones((5, 5)), 1), ValueError, "tensordot"),
        (lambda x: tg.tensordot(x, np.ones((2, 3)), ((0, 1), (0,))), ValueError, "tensordot"),
        (lambda x: tg.tensordot(x, np.ones((2, 3)), ((5,), (0,))), ValueError, "axis|axes|bounds"),
        (lambda x: tg.inner(x, np.ones(5)), ValueError, "."),
        (lambda x: tg.vdot(x, np.ones(5)), ValueError, "."),
        (lambda x: tg.linalg.inv(x), np.linalg.LinAlgError, "square"),
        (lambda x: tg.linalg.det(x), np.linalg.LinAlgError, "square"),
        (lambda x: tg.linalg.cholesky(x), np.linalg.LinAlgError, "square"),
        (lambda x: tg.linalg.cholesky(-(x @ x.mT)), np.linalg.LinAlgError, "positive definite"),
        (lambda x: tg.linalg.inv(x[:, :2] * 0.0), np.linalg.LinAlgError, "[Ss]ingular"),
        (lambda x: tg.linalg.qr(x, mode="complete"), ValueError, "qr.*mode"),
        (lambda x: tg.linalg.norm(x, ord="abc"), ValueError, "ord"),
        (lambda x: tg.linalg.norm(x, ord=7), ValueError, "ord"),
        (lambda x: tg.linalg.norm(x.reshape(1, 2, 3), ord=1), ValueError, "norm"),
        (lambda x: tg.linalg.norm(x, axis=2), ValueError, "axis|bounds|range"),
        (lambda x: tg.linalg.norm(x, axis=(0, 2)), ValueError, "axis|bounds|range"),
        (lambda x: tg.linalg.norm(x, axis=(0, 0)), ValueError, "[Dd]uplicate|axis|axes"),
        (lambda x: tg.linalg.norm(x, ord="fro", axis=0), ValueError, "ord|norm"),
        (lambda x: tg.linalg.matrix_power(x, 2), ValueError, "square|shape|dimension"),
        (
            lambda x: tg.linalg.matrix_power(x[:, :2], 1.5),
            TypeError,
            "integer|exponent|matrix_power",
        ),
        (lambda x: tg.linalg.solve(x, np.ones(2)), np.linalg.LinAlgError, "square"),
    ],
)
def test_bad_argument(call, error, match):
    with pytest.raises(error, match=match):
        call(tg.tensor(data(2, 3), requires_grad=True))


def test_qr_of_a_wide_matrix_has_no_derivative():
    t = tg.tensor(data(2, 3), requires_grad=True)
    q, r = tg.linalg.qr(t)
    agree(q @ r, data(2, 3))
    with pytest.raises(np.linalg.LinAlgError, match="qr"):
        tg.autograd.grad(r.sum(), t)


class TestTheOrderOfANorm:
    """An order that is differentiated is the order of the powers, whatever its value."""

    X = np.array([1.0, 2.0, -0.5])

    @pytest.mark.parametrize("order", [1.0, 2.0, 3.0, 0.5, 1.5, -1.0, -2.0])
    @pytest.mark.parametrize(
        "norm", [np.linalg.norm, tg.norm, lambda x, q: tg.linalg.vector_norm(x, ord=q)]
    )
    def test_of_vectors(self, norm, order):
        h = 1e-6
        expected = np.linalg.norm(self.X, order + h) - np.linalg.norm(self.X, order - h)
        found = tg.grad(lambda q: norm(tg.tensor(self.X), q))(order)
        np.testing.assert_allclose(found, expected / (2 * h), rtol=1e-7)
        tg.testing.check_grads(lambda x, q: norm(x, q), [self.X, order])

    def test_with_zeros(self):
        x = np.array([1.0, 0.0])
        assert tg.grad(lambda q: tg.norm(x, q))(2.0) == 0.0

    @pytest.mark.parametrize("order", [0.0, np.inf, -np.inf])
    def test_refused(self, order):
        with pytest.raises(ValueError, match=r"no derivative with respect to ord.*detach"):
            tg.grad(lambda q: tg.norm(self.X, q))(order)

    def test_of_matrices(self):
        with pytest.raises(TypeError, match=r"no derivative with respect to `ord`; detach"):
            tg.grad(lambda q: tg.linalg.matrix_norm(np.eye(2), q))(2.0)
        assert tg.grad(lambda x: tg.linalg.matrix_norm(x, tg.tensor(1.0)))(np.eye(2)).sum() == 1.0


def test_triangular_system_of_a_vector():
    for solve in (tg.solve_triangular, tg.jit(tg.solve_triangular)):
        with pytest.raises(np.linalg.LinAlgError, match="1-dimensional array given"):
            solve(np.ones(2), np.ones((2, 3)))
