"""Decompositions of matrices, least squares, determinants."""

import re

import numpy as np
import pytest
from check import Cases, check, close, module, running

import tapegrad as tg

M33 = np.array([[1.3, 0.5, 0.1], [0.6, 2.4, 0.3], [0.2, -0.3, 1.7]])
M32 = np.array([[1.3, 0.5], [0.6, -2.4], [0.2, 0.7]])
V = np.array([0.5, 0.2, 0.1])
case = Cases()


@case(M32, hvp=True)
def singular_values(a):
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    w, t, _ = np.linalg.svd(a.T, False)
    return u[0, 0] ** 2 * s[1] + (s * s * s).sum() + vt[0, 1] * vt[0, 0] + (w[0, 1] * t[0]) ** 2


@case(M33, hvp=True)
def eigenvalues(a):
    b = a + a.T
    w, v = np.linalg.eigh(b)
    return (w * w * w).sum() + v[0, 0] * v[1, 0] * w[1] + np.linalg.eigvalsh(b)[2] ** 2


@case(M33, 0.7, hvp=True)
def results_that_are_written(a, c):
    """The results of one function are different arrays: to write one changes no other."""
    w, v = np.linalg.eigh(a + a.T)
    squares = v * v
    if c > 0.0:
        w = w * w
    u, s, vt = np.linalg.svd(a)
    part = u * u
    s[0] *= c
    vt[0] = s
    q, r = np.linalg.qr(a)
    product = q * r
    r[0] = c * product[1]
    return np.sum(squares[0] * w) + np.sum(part[1] * s) + np.sum(vt * vt[1]) + np.sum(r * product)


@case(M33, M32, hvp=True)
def orthogonal(a, b):
    q, r = np.linalg.qr(b)
    sign, size = np.linalg.slogdet(a)
    return q[0, 1] ** 2 * r[0, 1] + (r * r)[1, 1] + sign * size**2


@case(M32, V, M33, hvp=True)
def least_squares(a, b, c):
    x, _, _, _ = np.linalg.lstsq(a, b)
    y = np.linalg.lstsq(a, c)[0]
    p = np.linalg.pinv(a)
    return (x * x).sum() + (y * y * y).sum() + (p * p * p).sum()


@case(M33, 2, hvp=True)
def in_a_loop(a, n):
    b = a.copy()
    s = 0.0
    for _ in range(n):
        u, w, vt = np.linalg.svd(b)
        s += w[0] * u[0, 0] ** 2
        b = u * w @ vt + np.eye(3) * w[1]
    return s


@case(M33.astype(np.float32), M32.astype(np.float32), jvp=True)
def single_precision(a, b):
    u, s, _ = np.linalg.svd(b, False)
    w, v = np.linalg.eigh(a + a.T)
    q, r = np.linalg.qr(b)
    c = np.linalg.cholesky(a @ a.T)
    x = np.linalg.lstsq(b, a[0])[0]
    e = np.linalg.eigvalsh(a + a.T)[0] + np.linalg.slogdet(a)[1] + np.linalg.pinv(b)[0, 1]
    d = np.linalg.det(a) + (a @ a)[0, 1] + c[1, 0]
    return u[0, 0] ** 2 * s[1] + w[1] * v[0, 0] ** 2 + q[0, 1] ** 2 + r[0, 1] ** 2 + x[0] + e * d


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def of_numbers_that_are_known(a):
    return np.nanstd(a) * np.linalg.det(a)


def test_single_precision_is_compiled():
    """The parts of a partial have one type."""
    check(of_numbers_that_are_known, M33.astype(np.float32), compiled=True)


@tg.njit
def determinant(a):
    return np.linalg.det(a)


def test_determinants_twice():
    vector = np.linspace(-1, 1, 9).reshape(3, 3)
    singular = M33.copy()
    singular[2] = singular[0] + singular[1]
    for a in (M33, singular, np.outer(V, V), np.zeros((3, 3))):
        expected = np.zeros((3, 3))
        for i in range(3):
            for j in range(3):
                # the determinant is a polynomial of degree three: central differences are exact
                unit = np.zeros((3, 3))
                unit[i, j] = 1.0
                ends = [
                    np.linalg.det(a + h * unit + k * vector) * h * k
                    for h in (-1, 1)
                    for k in (-1, 1)
                ]
                expected[i, j] = sum(ends) / 4
        close(tg.hvp(determinant)(a, vector), expected, 1e-12)


@tg.njit
def full(a, k):
    u, s, _ = np.linalg.svd(a)
    return s[0] if k == 0 else u[2, 2] ** 2


def test_the_additional_vectors_have_no_derivative():
    check(full, M32, 0, argnums=(0,), jvp=False)
    with pytest.raises(ValueError, match="full_matrices=False"):
        tg.grad(full)(M32, 1)


@tg.njit
def exponential(a):
    w, v = np.linalg.eigh(a)
    s = 0.0
    for i in range(3):
        for j in range(3):
            for k in range(3):
                s += v[i, k] * np.exp(w[k]) * v[j, k] * (i + 2 * j) ** 2
    return s


@tg.njit
def of_singular_values(a):
    u, s, vt = np.linalg.svd(a, False)
    t = 0.0
    for i in range(3):
        for j in range(3):
            for k in range(3):
                t += u[i, k] * np.exp(s[k]) * vt[k, j] * (i + 2 * j) ** 2
    return t


@pytest.mark.parametrize("matrix", [np.eye(3), np.zeros((3, 3))], ids=["unit", "zero"])
@pytest.mark.parametrize("function", [exponential, of_singular_values])
def test_smooth_functions_of_matrices_with_equal_eigenvalues(function, matrix):
    """What such a function is within an eigenspace is not known from the vectors: never 0."""
    direction = M33 + M33.T
    with running(False) as run:
        assert np.isnan(run(tg.grad(function))(matrix)).any()
        assert np.isnan(run(tg.jvp(function))(matrix, direction)[1])


@tg.njit
def product_by_eigh(a):
    w, v = np.linalg.eigh(a)
    return np.sum(v * w @ v.T * M33)


@tg.njit
def product_by_svd(a):
    u, s, vt = np.linalg.svd(a, False)
    return np.sum(u * s @ vt * M33)


@tg.njit
def logarithm(a):
    w, v = np.linalg.eigh(a)
    return np.sum(v * np.log(w) @ v.T)


@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (product_by_eigh, np.diag([2.0, 0.0, 0.0])),
        (product_by_svd, np.diag([2.0, 0.0, 0.0])),
        (product_by_eigh, np.zeros((3, 3))),
        (product_by_svd, np.zeros((3, 3))),
        (logarithm, np.eye(3)),
    ],
)
def test_functions_that_vanish_at_equal_eigenvalues(function, matrix):
    """Vectors that are multiplied by 0 seem unused; what their values get tells them apart."""
    with running(False) as run:
        assert np.isnan(run(tg.grad(function))(matrix)).any()


READS = {  # what reads vectors, and which of three it reads
    "v[0, -1]": {2},
    "np.sum(v[:, -1] * v[:, 2])": {2},
    "np.sum(v.T[0]) * np.sum(v[:, :-2])": {0},
    "np.sum(v.T[-1] * v[0, -2:-1])": {1, 2},
    "v[1][0]": {0},
    "np.sum(v[:2, 1:] ** 3)": {1, 2},
    "np.sum(v ** 3)": {0, 1, 2},
    "np.sum(v[...][0])": {0, 1, 2},
    "np.sum(v[..., 0, :])": {0, 1, 2},
    "np.sum(v[np.array([0, 2])][0])": {0, 1, 2},
    "u[0, 0]": {0},
    "np.sum(u[0:2, 0:1]) * vt[0, 1]": {0},
    "np.sum(vt[2:])": {2},
    "np.sum(vt.T[:, 2])": {2},
    "np.sum(vt[1:2][0])": {1},
    "np.sum(vt[:, 0])": {0, 1, 2},
}
TRANSFORMS = {
    "eager": lambda f: f,
    "jit": tg.jit,
    "njit": tg.njit,
}


@pytest.mark.parametrize("alone", [0, 2])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("read", READS)
def test_equal_values_beside_some_vectors(read, transform, alone):
    """Equal values have derivatives, unless vectors are used that may turn."""
    is_svd = bool({"u", "vt"} & set(re.findall(r"\w+", read)))
    f = module(
        "import numpy as np\ndef f(a):\n"
        f"    {'u, w, vt = np.linalg.svd(a)' if is_svd else 'w, v = np.linalg.eigh(a)'}\n"
        f"    return np.sum(w) + 0.0 * {read}\n"
    )
    values = np.ones(3)
    values[alone] = 2.0 if (alone == 0) == is_svd else 0.5
    gradient = tg.grad(TRANSFORMS[transform](f))
    with running(False) as run:
        found = (run(gradient) if transform == "njit" else gradient)(np.diag(values))
    if READS[read] == {alone}:
        np.testing.assert_array_equal(found, np.eye(3))
    else:
        assert np.isnan(found).any()


def test_vectors_that_the_text_does_not_name():
    """All may be used, unless the function is recorded."""
    f = module(
        "import numpy as np\ndef f(a):\n    w, v = np.linalg.eigh(a)\n"
        "    return np.sum(w) + 0.0 * np.sum(v[:, a.shape[0] - 1])\n"
    )
    x = np.diag([1.0, 1.0, 2.0])
    with running(False) as run:
        assert np.isnan(run(tg.grad(tg.njit(f)))(x)).any()
        np.testing.assert_array_equal(tg.grad(f)(x), np.eye(3))


def test_equal_singular_values_have_finite_derivatives():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        "    u, s, vt = np.linalg.svd(a)\n    return s.sum()\n"
    )
    close(tg.grad(f)(np.eye(2)), [[1, 0], [0, 1]], 1e-12)


REFUSED = {
    "np.linalg.eig": "w, v = np.linalg.eig(a)\n    return w[0]",
    "np.linalg.eigvals": "w = np.linalg.eigvals(a)\n    return w[0]",
    "np.linalg.matrix_power": "w = np.linalg.matrix_power(a, 2)\n    return w[0, 0]",
    "np.linalg.cond": "w = np.linalg.cond(a)\n    return w",
    "np.linalg.lstsq": "w = np.linalg.lstsq(a, a)[1]\n    return w[0] * a[0, 0]",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    f = module(f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n    {REFUSED[name]}\n")
    with pytest.raises(tg.TransformError, match=rf"line 4[\s\S]*{name}"):
        tg.grad(f)(M33)
