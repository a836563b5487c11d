"""Functions of complex numbers, on both libraries."""

import pytest
from complex_values import M, W, Z, both, constant, leaf, power_of, second, value
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


# -- the convention -------------------------------------------------------------------------------


@program
def square_of_the_modulus(lib):
    z = leaf(lib)
    (z * z.conj()).real.sum().backward()
    return z, value(lib, z.grad)


@program
def conjugate_cotangent_of_a_holomorphic_function(lib):
    z = leaf(lib)
    g = constant(lib)
    return value(lib, lib.grad(z * z * z, z, g)[0])


@program
def real_part_of_a_product(lib):
    z, w = leaf(lib), leaf(lib, W)
    (z * w).real.sum().backward()
    return value(lib, z.grad), value(lib, w.grad)


@program
def parts_are_two_real_variables(lib):
    x, y = leaf(lib, [1.0, -2.0], "float64"), leaf(lib, [0.5, 3.0], "float64")
    z = x + 1j * y
    loss = (abs(z) ** 2 + (z * z).imag).sum()
    loss.backward()
    return z, x.grad, y.grad


@program
def a_descent(lib):
    z = leaf(lib)
    for _ in range(5):
        loss = (abs(z - (0.5 + 0.5j)) ** 2).sum()
        (g,) = lib.grad(loss, z)
        with lib.no_grad():
            z -= 0.25 * g
    return z, loss


# -- functions ------------------------------------------------------------------------------------

UNARY = """
abs acos acosh angle asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2 negative
positive reciprocal sigmoid sin sinc sinh sqrt square tan tanh
"""
BINARY = ["add", "subtract", "multiply", "divide", "pow"]


def unary(name):
    def run(lib):
        f = getattr(lib, name)
        return both(lib, f, leaf(lib)), second(lib, f, leaf(lib))

    run.__name__ = f"function_{name}"
    return run


def binary(name):
    def run(lib):
        f = getattr(lib, name)
        found = [both(lib, f, leaf(lib), leaf(lib, W)), second(lib, f, leaf(lib), leaf(lib, W))]
        for first, last in ((M, [0.5, 2.0]), ([0.5, 2.0], M)):
            a, b = (leaf(lib, x, "float64" if x is not M else "complex128") for x in (first, last))
            found.append(both(lib, f, a, b))
        return found

    run.__name__ = f"operands_of_{name}"
    return run


for _name in UNARY.split():
    program(unary(_name))
for _name in BINARY:
    program(binary(_name))


@program
def conjugate(lib):
    z = leaf(lib)
    return [value(lib, t) for t in both(lib, lambda z: z.conj() * (1 + 2j), z)]


@program
def sign(lib):
    f = lib.sgn if lib.name == "torch" else lib.sign
    return both(lib, f, leaf(lib)), second(lib, f, leaf(lib))


@program
def parts(lib):
    return [both(lib, f, leaf(lib)) for f in (lambda z: z.real, lambda z: z.imag)]


@program
def at_zero(lib):
    found = []
    for f in (abs, lib.angle, lib.sgn if lib.name == "torch" else lib.sign, lambda z: z**2):
        z = leaf(lib, [0j, 3 - 4j])
        out = f(z)
        g = out.detach() * 0 + 2
        found += [out, value(lib, lib.grad(out, z, g)[0])]
    return found


@program
def a_negative_number_to_a_complex_power(lib):
    x, y = leaf(lib, [-2.0, 2.0], "float64"), leaf(lib, [0.5 + 1j, 1j])
    return both(lib, lib.pow, x, y)


@program
def powers_by_numbers(lib):
    z = leaf(lib)
    exponents, bases = (2, 3, -1, 0.5, 1, 1.5, 2j, 1 - 1j), (2.0, 1j, 0.5 + 0.5j)
    return [
        [both(lib, lambda z, n=n: z**n, z) for n in exponents],
        [both(lib, lambda z, n=n: n**z, z) for n in bases],
    ]


@program
def a_real_tensor_and_complex_numbers(lib):
    x = leaf(lib, [0.5, 2.0], "float64")
    return [
        both(lib, f, x)
        for f in (
            lambda x: x * 2j,
            lambda x: x + 1j,
            lambda x: 1j - x,
            lambda x: x / (1 + 1j),
            lambda x: (1 + 1j) / x,
            lambda x: x ** (1 + 2j),
            lambda x: (1 + 2j) ** x,
        )
    ]


@program
def single_precision_stays(lib):
    z = leaf(lib, [1.0 + 2.0j, 0.5 - 1.0j], "complex64")
    x = leaf(lib, [1.0, 2.0], "float32")
    d = leaf(lib, [3.0, 1.0], "float64")
    w = leaf(lib, [3.0j, 1.0], "complex128")
    found = []
    for f in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: b - a):
        for a, b in ((z, x), (z, d), (z, w), (x, w), (d, z)):
            out = f(a, b)
            ga, gb = lib.grad((abs(out) ** 2).sum(), [a, b])
            found += [str(t.dtype) for t in (out, ga, gb)]
        out = f(a, 2j)
        found += [str(out.dtype), str(abs(out).dtype), str(out.real.dtype)]
    return found


@program
def a_sum_that_mixes_precisions(lib):
    x, z = leaf(lib, [1.0, 2.0], "float32"), leaf(lib, [1j, 2.0], "complex128")
    (x + z).sum().abs().backward()
    return lib.astype(x.grad, "float64").sum() > 0, x.grad.dtype, z.grad.dtype


# -- reductions -----------------------------------------------------------------------------------


@program
def sums(lib):
    z = leaf(lib, M)
    return [
        both(lib, f, z)
        for f in (
            lambda z: z.sum(),
            lambda z: z.sum(axis=0),
            lambda z: z.sum(axis=1, keepdims=True),
            lambda z: z.mean(),
            lambda z: z.mean(axis=-1),
        )
    ]


@program
def products(lib):
    return [
        both(lib, f, leaf(lib, data))
        for data in (M, [[0j, 1j], [2.0, 0j]])
        for f in (lambda z: z.prod(), lambda z: lib.prod(z, axis=1))
    ]


@program
def cumulative(lib):
    f = [lambda z: lib.cumsum(z, axis=0), lambda z: lib.cumprod(z, axis=1)]
    return [both(lib, g, leaf(lib, M)) for g in f], [second(lib, g, leaf(lib, M)) for g in f]


@program
def variances(lib):
    z = leaf(lib, M)
    return [
        both(lib, f, z)
        for f in (
            lambda z: lib.var(z, correction=0),
            lambda z: lib.var(z, axis=0, correction=1),
            lambda z: lib.std(z, correction=0),
            lambda z: lib.std(z, axis=1, correction=1),
        )
    ]


@program
def norms(lib):
    z = leaf(lib, M)
    return [
        both(lib, f, z)
        for f in (
            lambda z: lib.linalg.norm(z),
            lambda z: lib.linalg.vector_norm(z, ord=1),
            lambda z: lib.linalg.vector_norm(z, ord=3),
            lambda z: lib.linalg.vector_norm(z, ord=float("inf")),
            lambda z: lib.linalg.matrix_norm(z),
            lambda z: lib.linalg.matrix_norm(z, ord="nuc"),
            lambda z: lib.linalg.matrix_norm(z, ord=2),
            lambda z: lib.linalg.matrix_norm(z, ord=1),
        )
    ]


@program
def norm_of_zeros(lib):
    z = leaf(lib, [0j, 0j])
    return value(lib, lib.grad(lib.linalg.norm(z), z)[0])


@program
def logsumexp(lib):
    if lib.name == "torch":
        return both(lib, lambda z: z.exp().sum(axis=0).log(), leaf(lib, M))
    return both(lib, lambda z: lib.logsumexp(z, axis=0), leaf(lib, M))


# -- views and arranging --------------------------------------------------------------------------


@program
def views(lib):
    z = leaf(lib, M)
    return [
        both(lib, f, z)
        for f in (
            lambda z: z.T * (1 + 1j),
            lambda z: z[0] * z[:, 1],
            lambda z: z[..., None].reshape(4)[1:] * 2j,
            lambda z: lib.diagonal(z) * 1j,
            lambda z: z.real.T * z.imag,
            lambda z: lib.flip(z, (0,)) * z,
            lambda z: lib.broadcast_to(z[0], (3, 2)) * 1j,
        )
    ]


@program
def joined(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    return [
        both(lib, f, z, x)
        for f in (
            lambda z, x: lib.concatenate([z, x * 1j, z * 2]),
            lambda z, x: lib.concatenate([x, z]),
            lambda z, x: lib.stack([z, z * x]),
        )
    ]


@program
def chosen(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    condition = lib.tensor([True, False, True], dtype="bool")
    return [
        both(lib, f, z, x)
        for f in (
            lambda z, x: lib.where(condition, z, x + 0j),
            lambda z, x: lib.where(condition, x * 1j, z * x),
            lambda z, x: z[condition] * x[condition],
            lambda z, x: z[lib.index(2, 0, 2)] * x[0],
        )
    ]


@program
def triangles(lib):
    z = leaf(lib, M)
    return [both(lib, f, z) for f in (lib.triu, lib.tril, lib.trace, lib.diag)]


# -- products of matrices and vectors -------------------------------------------------------------


@program
def matrix_products(lib):
    a, b, v = leaf(lib, M), leaf(lib, [[1j, 2.0], [0.5, 1 - 1j]]), leaf(lib, [1j, 2 - 1j])
    return [
        both(lib, lambda a, b: a @ b, a, b),
        both(lib, lambda a, v: a @ v, a, v),
        both(lib, lambda v, a: v @ a, v, a),
        both(lib, lambda v: v @ (v * 1j), v),
        second(lib, lambda a, b: a @ b @ a, a, b),
    ]


@program
def conjugate_transpose(lib):
    a, b = leaf(lib, M), leaf(lib, [[1j, 2.0], [0.5, 1 - 1j]])
    return both(lib, lambda a, b: a.T.conj() @ b, a, b)


@program
def vectors(lib):
    z, w = leaf(lib), leaf(lib, W)
    return [
        both(lib, lambda z, w: lib.vdot(z, w), z, w),
        both(lib, lambda z, w: lib.linalg.vecdot(z, w), z, w),
        both(lib, lambda z, w: lib.outer(z, w), z, w),
        both(lib, lambda z, w: lib.inner(z, w), z, w),
        both(lib, lambda z, w: lib.kron(z, w), z, w),
        second(lib, lambda z, w: lib.vdot(z, w), z, w),
    ]


@program
def real_and_complex_matrices(lib):
    z = leaf(lib, M)
    x = leaf(lib, [[1.0, 2.0], [0.5, 1.0]], "float64")
    if lib.name == "torch":  # it takes matrices of one dtype only
        return both(lib, lambda z, x: z @ (x + 0j), z, x)
    return both(lib, lambda z, x: z @ x, z, x)


@program
def contractions(lib):
    a, b = leaf(lib, M), leaf(lib, [[1j, 2.0], [0.5, 1 - 1j]])
    return [
        both(lib, lambda a, b, s=s: lib.einsum(s, a, b), a, b)
        for s in ("ij,jk->ik", "ij,ij->", "ij,kj->ik", "ij,kl->jl", "ii,ij->j")
    ]


@program
def tensordot(lib):
    a, b = leaf(lib, M), leaf(lib, [[1j, 2.0], [0.5, 1 - 1j]])
    axes = "dims" if lib.name == "torch" else "axes"
    return [
        both(lib, lambda a, b, n=n: lib.tensordot(a, b, **{axes: n}), a, b)
        for n in (0, 1, 2, ([0], [1]))
    ]


# -- linear algebra -------------------------------------------------------------------------------


def hermitian(z):
    """A positive definite matrix."""
    return z @ z.T.conj() + 1.0 * (z * 0 + 1)


@program
def inverse(lib):
    z = leaf(lib, M)
    return both(lib, lib.linalg.inv, z), second(lib, lib.linalg.inv, z)


@program
def solution(lib):
    a, b, v = leaf(lib, M), leaf(lib, [[1j, 2.0], [0.5, 1 - 1j]]), leaf(lib, [1j, 2 - 1j])
    return [
        both(lib, lib.linalg.solve, a, b),
        both(lib, lib.linalg.solve, a, v),
        second(lib, lib.linalg.solve, a, b),
    ]


@program
def determinant(lib):
    z = leaf(lib, M)
    return both(lib, lib.linalg.det, z), second(lib, lib.linalg.det, z)


@program
def logarithm_of_a_determinant(lib):
    z = leaf(lib, M)
    return [
        both(lib, lambda z: lib.linalg.slogdet(z)[0], z),
        both(lib, lambda z: lib.linalg.slogdet(z)[1], z),
        both(lib, lambda z: lib.linalg.slogdet(z)[0] * lib.linalg.slogdet(z)[1], z),
    ]


@program
def cholesky(lib):
    f = lambda z: lib.linalg.cholesky(hermitian(z))  # noqa: E731
    return both(lib, f, leaf(lib, M)), second(lib, f, leaf(lib, M))


@program
def cholesky_of_a_leaf(lib):
    a = leaf(lib, [[2.0, 0.5 + 0.5j], [0.5 - 0.5j, 3.0]])
    out = lib.linalg.cholesky(a)
    (g,) = lib.grad(power_of(out), a)
    return out, g + g.T.conj()  # the other part of it is arbitrary


@program
def qr(lib):
    def phases(z):
        """What does not depend on the phases of the columns."""
        q, r = lib.linalg.qr(z)
        return (abs(q) ** 2) @ (abs(r) ** 2)

    def product(z):
        q, r = lib.linalg.qr(z)
        return q @ r

    z = leaf(lib, [*M, [0.5j, 1.0]])
    return both(lib, phases, z), both(lib, product, z)


@program
def eigenvalues(lib):
    z = leaf(lib, M)
    return [
        both(lib, lambda z: lib.linalg.eigh(hermitian(z))[0], z),
        both(lib, lambda z: abs(lib.linalg.eigh(hermitian(z))[1]), z),
        both(lib, lambda z: lib.linalg.eigvalsh(hermitian(z)), z),
    ]


@program
def projector(lib):
    def f(z):
        v = lib.linalg.eigh(hermitian(z))[1][:, 0]
        return lib.outer(v, v.conj())

    return both(lib, f, leaf(lib, M))


@program
def singular_values(lib):
    return [
        both(lib, lib.linalg.svdvals, leaf(lib, data)) for data in (M, [*M, [1j, 0.5]], [[1j, 2.0]])
    ]


@program
def singular_vectors(lib):
    def f(z):
        u, s, vh = lib.linalg.svd(z, full_matrices=False)
        return lib.outer(u[:, 0], vh[0]) * s[0] ** 2

    return [both(lib, f, leaf(lib, data)) for data in (M, [*M, [1j, 0.5]], [[1j, 2.0, 0.5]] + [Z])]


@program(raises="specified up to multiplication by e^{i phi}")
def singular_vectors_of_any_phase(lib):
    u = lib.linalg.svd(leaf(lib, M), full_matrices=False)[0]
    u.real.sum().backward()


@program(raises="specified up to multiplication by e^{i phi}")
def eigenvectors_of_any_phase(lib):
    v = lib.linalg.eigh(hermitian(leaf(lib, M)))[1]
    (v * (1 + 2j)).imag.sum().backward()


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)


def test_there_are_many():
    assert len(program) >= 60
