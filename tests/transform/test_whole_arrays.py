"""Whole arrays: broadcasting, reductions, products, linear algebra, np.where."""

import functools

import numpy as np
import pytest
from check import Cases, check, close, module, or_refused, slope

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
V = np.array([0.5, 0.2, 0.1])
M23 = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
M22 = np.array([[1.3, 0.5], [0.6, 2.4]])
M33 = np.array([[1.3, 0.5, 0.1], [0.6, 2.4, 0.3], [0.2, -0.3, 1.7]])
A3 = np.linspace(0.1, 1.3, 12).reshape(2, 3, 2)
case = Cases()


# -- elementwise -----------------------------------------------------------------------------------


@case(M23, V, 0.7, tensors=True)
def broadcast(a, b, x):
    c = a * b + x
    d = np.sin(c) / (b + 2) - x * a**2
    return np.sum(c * d) + np.mean(d)


@case(np.array([0.3, 0.7, 0.4]), 0.3, jvp=False)
def with_numbers(a, x):
    b = -(a - x)
    c = b / a + a / x + x / a + 3
    return (np.abs(a**x + c) ** 0.5).sum()


@case(A3, V.reshape(3, 1), jvp=False)
def three_dimensions(a, b):
    c = a * b
    return (c * a[0]).sum()


@case(M22, np.array([1.0, 2.0]), jvp=False)
def in_place(a, b):
    a *= b
    a += b[0]
    a -= 1
    a /= b
    return (a**2).sum()


@case(A, tensors=True)
def choices(a):
    b = np.where(a > 0, a, a**2)
    c = np.where(a > 0.5, a * 2, 0.0)
    return np.sum(b * b) + np.sum(np.where(a > 0.5, 1.0, c) * b)


UNARY = ["abs", "tanh", "arctan", "expm1", "square", "sinh", "exp2", "negative", "sign", "floor"]
POSITIVE = ["sqrt", "log", "log1p", "log2", "arcsin", "arccos", "arctanh", "reciprocal", "ceil"]
BINARY = ["hypot", "logaddexp", "power", "fmax", "maximum", "minimum", "true_divide", "arctan2"]
FUNCTIONS = [
    *[f"np.{name}(a)" for name in UNARY],
    *[f"np.{name}(b)" for name in POSITIVE],
    *[f"np.{name}(b, a)" for name in BINARY],
    "tg.sigmoid(a)",
    "tg.erf(a)",
    "tg.gammaln(b)",
]


@functools.cache
def functions():
    """All of them in one function, of which one is chosen."""
    text = "import numpy as np\nimport tapegrad as tg\n@tg.njit\ndef f(k, a):\n"
    text += "    b = np.empty(3)\n    for i in range(3):\n        b[i] = 0.2 + 0.3 * a[i] * a[i]\n"
    text += "    c = a\n"
    for k, call in enumerate(FUNCTIONS):
        text += f"    if k == {k}:\n        c = {call}\n"
    text += "    s = 0.0\n    for i in range(3):\n        s += c[i] * (i + 1)\n    return s\n"
    return module(text)


@pytest.mark.parametrize("k", range(len(FUNCTIONS)), ids=FUNCTIONS)
def test_functions(k):
    a = np.array([0.3, 0.75, -0.4])
    f = functions()
    gradient = tg.grad(f, 1)(k, a)
    expected = [slope(lambda t, unit=unit: f(k, a + t * unit), 1.0) for unit in np.eye(3)]
    close(gradient, expected, 1e-8)


# -- reductions ------------------------------------------------------------------------------------


@case(M23)
def reductions(a):
    s = np.sum(a) * a.prod() + a.mean() * np.max(a) + np.min(a) * a[0].sum()
    return s + a.sum(axis=0).max() * (a.sum(1) ** 2).sum() + a[:, 1].mean()


@case(M23, jvp=False)
def more_reductions(a):
    s = a.std() + np.var(a) * np.prod(a[1]) + np.linalg.norm(a[0]) + np.trace(a)
    return s + np.cumsum(a[0])[1] * a[1].max() + np.mean(a[0]) * a.min()


@case(M23)
def positions(a):
    i = np.argmin(a[0])
    j = a[1].argmax()
    best = a[0, i] * a[1, j] + a.flatten()[np.argmax(a)]
    return best * np.count_nonzero(a > 0.0) * (2.0 if np.any(a > 0.8) else 1.0)


@case(A3, jvp=False)
def axes(a):
    b = a.sum(axis=1)
    c = np.sum(a, axis=-1)
    return (b * b).sum() + (c**3).sum() + np.sum(a, 0)[1, 0]


def test_ties_share_the_gradient():
    f = module("import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n    return np.max(a)\n")
    close(tg.grad(f)(np.array([1.0, 2.0, 2.0])), [0, 0.5, 0.5], 1e-15)


@tg.njit
def product(a):
    return np.prod(a)


def test_products_with_zeros():
    close(tg.grad(product)(np.array([0.0, 2.0, 3.0])), [6, 0, 0], 1e-15)
    close(tg.grad(product)(np.array([0.0, 2.0, 0.0])), [0, 0, 0], 1e-15)
    close(tg.hvp(product)(np.array([0.0, 2.0, 3.0]), np.array([1.0, 0.0, 0.0])), [0, 3, 2], 1e-15)


@tg.njit
def closest(points, centres):
    """Cost of k-means."""
    s = 0.0
    for i in range(points.shape[0]):
        d = np.empty(centres.shape[0])
        for j in range(centres.shape[0]):
            d[j] = ((points[i] - centres[j]) ** 2).sum()
        s += d[np.argmin(d)]
    return s


def test_cost_of_k_means():
    rng = np.random.default_rng(1)
    check(closest, rng.normal(size=(5, 2)), rng.normal(size=(3, 2)), hvp=False)


# -- products --------------------------------------------------------------------------------------


@case(M23, M33, V, tensors=True)
def products(a, b, v):
    c = a @ b
    d = np.dot(c, v)
    return np.sum(c * c) + d @ d + v @ b @ v


@case(M23, V, jvp=False)
def other_products(a, v):
    d = a.dot(v)
    return np.dot(a.T, d) @ v + np.vdot(a[0], v) + (np.outer(d, v) ** 2).sum()


@case(np.asfortranarray(M33), np.arange(1.0, 7.0)[::2], jvp=False)
def strided_products(a, b):
    c = np.ascontiguousarray(b)
    return (a @ c * b).sum() + (a * b).sum() + (a.T @ a)[0, 1]


@case(M22.astype(np.float32), V[:2].astype(np.float32), jvp=False)
def single_precision(a, b):
    return (np.sin(a @ b) * b).sum() + np.linalg.solve(a, b)[0] + a.mean()


# -- linear algebra --------------------------------------------------------------------------------


@case(M33, V, tensors=True)
def solves(a, b):
    x = np.linalg.solve(a, b)
    return (x * x).sum() + np.linalg.det(a) * x[0]


@case(M33, M23.T.copy(), tensors=True, jvp=False)
def solves_many(a, b):
    return (np.linalg.solve(a, b) ** 3).sum()


@case(M33)
def inverts(a):
    c = np.linalg.cholesky(a @ a.T)
    return (np.linalg.inv(a) * a * a).sum() + (c**3).sum()


@tg.njit
def solved_in_a_loop(a, b, n):
    x = b.copy()
    for _ in range(n):
        x[:] = np.linalg.solve(a, x * x)
    return x.sum()


def test_second_derivatives():
    check(solved_in_a_loop, M33, V, 2, argnums=(0,), jvp=False, hvp=True)


def test_singular_matrices():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n    return np.linalg.det(a)\n"
    )
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    close(tg.grad(f)(singular), [[4, -2], [-2, 1]], 1e-12)


# What numba has and the list does not name: refused with the line, or right.
OTHERS = [
    "np.multiply(a, 2.0, out=a).sum()",
    "np.sort(a)[0]",
    "np.concatenate((a, a * 2)).prod()",
    "np.flip(a)[0] * a[1]",
    "np.roll(a, 1)[0]",
    "np.clip(a, 0.0, 0.5).sum()",
    "np.abs(a * 1j).sum()",
    "np.round(a, 1).sum() * a[0]",
    "a.view(np.int64)[0] * a[0] * 0",
    "np.nansum(a)",
    "np.repeat(a, 2)[1]",
    "np.cumprod(a)[2]",
    "np.take(a, np.array([0, 1]))[1]",
    "np.sinc(a).sum()",
    "np.cross(a[:3], a[1:4])[0]",
]


@pytest.mark.filterwarnings("ignore::tapegrad.transform.errors.RoundedWarning")
@pytest.mark.parametrize("text", OTHERS)
def test_right_or_refused(text):
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        f"    s = {text}\n    return s * a[2]\n"
    )
    try:
        f(A.copy())
    except Exception:
        pytest.skip("not in this numba")
    with or_refused("line 4"):
        check(f, A, jvp=False)


UNUSED = [
    "np.where(x > 0.0, np.sqrt(x), 0.0).sum()",
    "np.maximum(np.sqrt(x), 1.0).sum()",
    "np.sqrt(x)[1:].sum()",
    "overwritten(np.sqrt(x))",
    "np.sum(np.where(x > 0.0, np.log(x) ** 2, 1.0))",
    "squared(overwritten_logarithm(x))",
    "np.max(np.sqrt(x))",
    "np.median(np.sqrt(x))",
    "np.diag(np.sqrt(np.outer(x, x) + np.outer(1.0 - x, x)))[1]",
    "np.sum(np.tril(np.sqrt(np.outer(x, np.ones(3))), -1)[1:])",
    "np.sum(np.delete(np.sqrt(x), 0))",
]
USED = [
    "np.sum(np.sqrt(x) * np.sqrt(x))",
    "np.sum(np.sqrt(x) ** 2)",
    "np.mean(np.square(np.sqrt(x)))",
    "np.linalg.norm(np.sqrt(x))",
    "np.dot(np.sqrt(x), np.sqrt(x))",
    "np.sum(np.sqrt(x).reshape(1, 3).ravel() * np.flip(np.flip(np.sqrt(x))))",
    "np.sum(np.concatenate((np.sqrt(x), x)) ** 2)",
    "np.sum(np.roll(np.sqrt(x), 1) ** 2)",
]


def at_zero(text):
    return module(f"""
import numpy as np, tapegrad as tg

@tg.njit
def overwritten(y):
    y[0] = 0.0
    return np.sum(y)

@tg.njit
def overwritten_logarithm(x):
    y = np.log(x)
    y[0] = 3.0
    return y

@tg.njit
def squared(y):
    return np.sum(y**2)

@tg.njit
def f(x):
    return {text}
""")


@pytest.mark.parametrize("text", UNUSED)
def test_infinite_derivatives_of_what_is_not_used(text):
    """They do not count: the slope is that of the other elements."""
    f, x = at_zero(text), np.array([0.0, 0.5, 2.0])
    found = tg.grad(f)(x)
    assert found[0] == 0.0
    for k in (1, 2):
        step = 1e-6 * np.eye(3)[k]
        assert found[k] == pytest.approx((f(x + step) - f(x - step)) / 2e-6, abs=1e-8)


@pytest.mark.parametrize("text", USED)
def test_infinite_derivatives_of_what_is_used(text):
    """Zero times infinity is not known: the true derivative is 1 for most of these, never 0."""
    found = tg.grad(at_zero(text))(np.array([0.0, 0.5, 2.0]))
    assert np.isnan(found[0]) or np.isinf(found[0])
    assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("name, expected", [("of_callee", [2.0, 2.0]), ("of_copy", [1.0, 2.0])])
def test_undefined_values_that_nothing_uses(name, expected):
    """A callee that does not read its argument; a copy that was kept of an overwritten array."""
    text = """
import numpy as np, tapegrad as tg

@tg.njit
def second(p, q):
    return q

@tg.njit
def of_callee(x):
    return np.sum(x) + np.sum(second(x * np.arcsin(x[0] + 5.0), x))

@tg.njit
def of_copy(x):
    total = 0.0
    for k in range(2):
        y = np.zeros(2)
        y[x > 0.1] = np.arcsin(x[0] + 5.0)
        row = second(y * x, x[k:])
        total += np.sum(row)
    return total
"""
    f = module(text, name)
    np.testing.assert_array_equal(tg.grad(f)(np.array([0.5, 2.0])), expected)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)
