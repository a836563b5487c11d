"""Programs with complex numbers, on both libraries."""

import warnings

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()

Z = [1.0 + 2.0j, 0.5 - 1.0j, -0.75 + 0.25j]
W = [0.5 + 0.5j, -1.0 + 2.0j, 1.5 - 0.5j]
M = [[1.0 + 2.0j, 0.5 - 1.0j], [-0.75 + 0.25j, 2.0 - 0.5j]]


def leaf(lib, data=Z, dtype="complex128"):
    return lib.tensor(data, True, dtype)


def constant(lib, data=W):
    return lib.tensor(data, False, "complex128")


def power_of(z):
    """A real loss that every part of a result counts in."""
    if "complex" not in str(z.dtype):
        return (z * z * z).sum()
    return (abs(z) ** 2 + 2 * z.real - 0.5 * z.imag).sum()


def value(lib, t):
    """A gradient; PyTorch may have left a conjugation for later."""
    return t * 1


def both(lib, f, *inputs):
    """The result and gradients of a function of leaves, also by a recorded backward pass."""
    out = f(*inputs)
    loss = power_of(out)
    first = lib.grad(loss, inputs, retain_graph=True)
    again = lib.grad(loss, inputs, create_graph=True)
    return [value(lib, t) for t in (out, *first, *again)]


def second(lib, f, *inputs):
    """Gradients of a function of the gradients."""
    first = lib.grad(power_of(f(*inputs)), inputs, create_graph=True)
    total = sum(((abs(g) ** 2).sum() + (g * (2 - 1j)).real.sum() for g in first), 0.0)
    return [value(lib, g) for g in lib.grad(total, inputs)]


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


# -- dtypes ---------------------------------------------------------------------------------------


@program
def from_real_to_complex(lib):
    x = leaf(lib, [1.0, -2.0], "float64")
    z = lib.astype(x, "complex128")
    return [z, *both(lib, lambda x: lib.astype(x, "complex128") * (1 + 2j), x)]


@program
def from_single_precision_to_complex(lib):
    x = leaf(lib, [1.0, -2.0], "float32")
    z = lib.astype(x, "complex64")
    (z * (1 + 2j)).imag.sum().backward()
    return z, x.grad


@program
def from_complex_to_real(lib):
    z = leaf(lib)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = lib.astype(z, "float64")
    (x * x).sum().backward()
    return x, value(lib, z.grad)


@program
def between_precisions(lib):
    z = leaf(lib, [1.0 + 2.0j, 0.5 - 1.0j], "complex64")
    w = lib.astype(z, "complex128")
    (w * w.conj()).real.sum().backward()
    return w, z.grad * 1


# -- cotangents and losses ------------------------------------------------------------------------


@program(raises="grad can be implicitly created only for real scalar outputs but got complex128")
def a_complex_loss(lib):
    (leaf(lib) * 2).sum().backward()


@program(raises="grad can be implicitly created only for real scalar outputs but got complex64")
def a_complex_loss_of_grad(lib):
    z = leaf(lib, [1j], "complex64")
    lib.grad(z * 2, z)


@program(raises="grad can be implicitly created only for scalar outputs")
def several_complex_losses(lib):
    leaf(lib).backward()


@program
def a_cotangent_makes_it_well_defined(lib):
    z = leaf(lib)
    (z * z).sum().backward(lib.tensor(1 - 2j, dtype="complex128"))
    return value(lib, z.grad)


@program(raises="For complex Tensors, both grad_output and output are required to have the same")
def a_real_cotangent_of_a_complex_output(lib):
    (leaf(lib) * 2).backward(lib.ones(3))


@program(raises="For complex Tensors, both grad_output and output are required to have the same")
def a_complex_cotangent_of_a_real_output(lib):
    abs(leaf(lib)).backward(constant(lib))


@program
def a_complex_leaf_accumulates(lib):
    z = leaf(lib)
    for _ in range(3):
        (abs(z) ** 2).sum().backward()
    before = z.grad
    (z * 1j).real.sum().backward()
    return value(lib, z.grad), before is z.grad


@program
def a_gradient_of_another_kind_is_refused(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")

    def set_real():
        z.grad = lib.ones(3)

    def set_complex():
        x.grad = constant(lib)

    return type(lib.attempt(set_real).error), type(lib.attempt(set_complex).error)


@program
def only_inputs(lib):
    z, w, x = leaf(lib), leaf(lib, W), leaf(lib, [1.0, 2.0, 3.0], "float64")
    y = z * w
    loss = (y * x).imag.sum()
    found = lib.grad(loss, [y, x], retain_graph=True)
    loss.backward(inputs=[w])
    return [*(g * 1 for g in found), z.grad, w.grad * 1]


# -- in-place work --------------------------------------------------------------------------------


@program
def in_place(lib):
    z, w = leaf(lib), leaf(lib, W)
    y = z * 1
    y += w
    y *= 2j
    y -= z
    y /= w
    y.mul_(1 + 1j).add_(z)
    return [y, *[value(lib, g) for g in lib.grad(power_of(y), [z, w])], y._version]


@program
def in_place_functions(lib):
    found = []
    for name in ("exp_", "sin_", "sqrt_", "neg_", "tanh_", "reciprocal_", "square_"):
        z = leaf(lib)
        y = z * 2
        getattr(y, name)()
        power_of(y).backward()
        found += [y, value(lib, z.grad)]
    return found


@program
def in_place_with_a_real_operand(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    y = z * 1
    y *= x
    y += x
    y[1:] -= x[:2] * 2
    power_of(y).backward()
    return y, value(lib, z.grad), x.grad


@program
def a_real_tensor_holds_no_complex_result(lib):
    y = leaf(lib, [1.0, 2.0, 3.0], "float64") * 1
    found = [lib.attempt(lambda: y.mul_(constant(lib))), lib.attempt(lambda: y.add_(1j))]
    return [isinstance(f.error, (RuntimeError, TypeError)) for f in found], y


@program
def item_assignment(lib):
    z, w = leaf(lib), leaf(lib, [2 - 1j, 1j])
    x = leaf(lib, [3.0, 4.0], "float64")
    y = z * 1
    y[0] = w[1]
    y[1:] = w * (y[1:] * 1)
    y[2] = x[0]
    loss = power_of(y)
    found = lib.grad(loss, [z, w, x])
    return [y, *[value(lib, g) for g in found]]


@program
def writing_through_the_parts(lib):
    z, x = leaf(lib), leaf(lib, [3.0, 4.0, 5.0], "float64")
    y = z * (1 + 1j)
    y.real[:] = x
    y.imag.mul_(x)
    y.imag[1:] += 1
    power_of(y).backward()
    return y, value(lib, z.grad), x.grad


@program
def a_part_of_a_view(lib):
    z = leaf(lib, M)
    y = z * 1
    part = y.T[0].imag
    part *= 10
    part[0] = 7.0
    power_of(y).backward()
    return y, part, value(lib, z.grad)


@program
def parts_see_what_is_written_to_the_whole(lib):
    z = leaf(lib)
    y = z * 1
    re, im = y.real, y.imag
    y *= 1j
    (re * re * im).sum().backward()
    return re, im, value(lib, z.grad)


@program
def parts_are_views(lib):
    z = leaf(lib, M)
    y = z * 1
    return [
        y.real._is_view(),
        y.imag._is_view(),
        y.real._base is y,
        y.T.imag._base is y,
        y.real._version,
        (y * 1)._is_view(),
        y.real.requires_grad,
    ]


@program(raises="modified by an inplace operation")
def a_saved_value_is_overwritten(lib):
    z = leaf(lib)
    y = z.exp()
    loss = abs(y).sum()
    y.imag[0] = 0.0
    loss.backward()


@program(raises="modified by an inplace operation")
def an_overwritten_view_was_saved(lib):
    z = leaf(lib)
    y = z * 1
    y[1:] = constant(lib, [2j, 1.0]) * z[1:] * y[1:]
    abs(y).sum().backward()


@program(raises="a leaf Variable that requires grad is being used in an in-place operation")
def a_leaf_is_written(lib):
    z = leaf(lib)
    z *= 1j


@program(raises="a view of a leaf Variable that requires grad is being used in an in-place")
def the_part_of_a_leaf_is_written(lib):
    leaf(lib).imag.mul_(2)


@program
def copied_into(lib):
    z, x = leaf(lib), leaf(lib, [3.0, 4.0, 5.0], "float64")
    y = z * 1
    y.copy_(x)
    power_of(y).backward()
    return y, value(lib, z.grad), x.grad


# -- hooks, modes, Functions ----------------------------------------------------------------------


@program
def hooks(lib):
    z = leaf(lib)
    seen = []
    y = z * (1 - 1j)
    y.register_hook(lambda g: seen.append(g * 1))
    y.register_hook(lambda g: g * 1j)
    y.retain_grad()
    z.register_hook(lambda g: g * 2)
    (abs(y) ** 2).sum().backward()
    return seen, value(lib, y.grad), value(lib, z.grad)


@program
def hooks_of_saved_values(lib):
    z = leaf(lib)
    packed = []

    def pack(t):
        packed.append(str(t.dtype))
        return t * 1

    with lib.graph.saved_tensors_hooks(pack, lambda t: t * 2):
        y = z.exp()
    (y * 1j).real.sum().backward()
    return packed, y, value(lib, z.grad)


@program
def anomaly_mode(lib):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with lib.detect_anomaly():
            z = leaf(lib)
            power_of(z * z / (z + 1j)).backward()
    return value(lib, z.grad)


@program
def not_recorded(lib):
    z = leaf(lib)
    with lib.no_grad():
        y = z * z.conj()
    d = z.detach()
    return y * 1, d, (d * 1j).requires_grad, z.real.detach(), d.imag


@program
def a_function(lib):
    def forward(ctx, z, x):
        ctx.save_for_backward(z, x)
        return z * x

    def backward(ctx, g):
        z, x = ctx.saved_tensors
        return g * x, (g * z.conj()).real

    f = lib.make(forward, backward)
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    return both(lib, f.apply, z, x), second(lib, f.apply, z, x)


@program
def a_complex_gradient_of_a_real_input_is_refused(lib):
    def forward(ctx, x):
        return x * (1 + 2j)

    f = lib.make(forward, lambda ctx, g: g * (1 - 2j))
    x = leaf(lib, [1.0, 2.0], "float64")
    return type(lib.attempt(f.apply(x).imag.sum().backward).error)


@program
def a_function_that_returns_a_real_gradient_of_a_complex_input(lib):
    f = lib.make(lambda ctx, z: z.real * 2, lambda ctx, g: g * 2)
    z = leaf(lib)
    f.apply(z).sum().backward()
    return value(lib, z.grad)


@program
def checkers(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    f = lambda z, x: (z * x).exp() / (1 + abs(z))  # noqa: E731
    return lib.gradcheck(f, (z, x)), lib.gradgradcheck(f, (z, x))


# -- larger programs ------------------------------------------------------------------------------


@program
def a_filter(lib):
    """A frequency response is fitted to a target."""
    taps = leaf(lib, [0.5, -0.25, 0.125], "float64")
    at = lib.tensor([0.0, 0.5, 1.0, 2.0])
    response = sum(t * lib.exp(at * (-1j * k)) for k, t in enumerate(taps))
    loss = (abs(response - lib.exp(at * -2j)) ** 2).mean()
    loss.backward()
    return response, loss, taps.grad


@program
def a_quantum_state(lib):
    """The expected value of an observable after a rotation."""
    angle = leaf(lib, 0.3, "float64")
    one = lib.tensor([1.0, 0.0], dtype="complex128")
    turn = lib.stack(
        [
            lib.stack([lib.cos(angle) + 0j, -1j * lib.sin(angle)]),
            lib.stack([-1j * lib.sin(angle), lib.cos(angle) + 0j]),
        ]
    )
    state = turn @ one
    observable = lib.tensor([[0.0, -1j], [1j, 0.0]], dtype="complex128")
    expected = lib.vdot(state, observable @ state).real
    (slope,) = lib.grad(expected, angle, create_graph=True)
    return expected, slope, lib.grad(slope, angle)[0]


@program
def an_iteration(lib):
    """Newton's method, through which the root is differentiated."""
    c = leaf(lib, 2.0 - 1.0j)
    z = lib.tensor(1.0 + 1.0j, dtype="complex128")
    for _ in range(6):
        z = z - (z**3 - c) / (3 * z**2)
    abs(z).backward()
    return z, value(lib, c.grad)


@program
def a_recurrent_network(lib):
    w, h = leaf(lib, M), lib.tensor([1.0 + 0j, 0.5j], dtype="complex128")
    for _ in range(4):
        h = w @ h
        h = h / (1 + abs(h))
    power_of(h).backward()
    return h, value(lib, w.grad)


@program
def a_spectrum(lib):
    """A discrete Fourier transform by its matrix; power by frequency."""
    x = leaf(lib, [1.0, -2.0, 0.5, 3.0], "float64")
    n = lib.tensor([0.0, 1.0, 2.0, 3.0])
    matrix = lib.exp(lib.outer(n, n) * (-0.5j * 3.141592653589793))
    spectrum = matrix @ (x + 0j)
    (abs(spectrum) ** 2 * n).sum().backward()
    return spectrum, x.grad


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)


def test_there_are_many():
    assert len(program) >= 60
