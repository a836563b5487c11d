"""Calls of functions made with ``numba.vectorize`` and ``numba.guvectorize``."""

import math

import numba
import numpy as np
import pytest
from check import Cases, check, module

import tapegrad as tg

R = np.random.default_rng(0)
V = R.uniform(0.2, 1.0, 4)
M = R.uniform(0.2, 1.0, (3, 4))
case = Cases()


@numba.vectorize
def mixed(x, y):
    if x > 1.5:
        return x * y + math.sin(x)
    return math.exp(y) * x


@numba.vectorize(["float64(float64, float64)"])
def declared(x, y):
    s = 1.0
    for _ in range(2):
        s = s * x + math.log(y)
    return s


@numba.vectorize(["float32(float32)", "float64(float64)"])
def either(x):
    return x * x * x


@numba.vectorize
def quotient(x, y):
    z = x / y  # inf or nan where y is 0, as in NumPy
    return z * z if y != 0 else x * x


@numba.guvectorize(["void(float64[:], float64, float64[:])"], "(n),()->(n)")
def powers(a, b, out):
    for i in range(a.size):
        out[i] = a[i] ** 2 * b


@numba.guvectorize("(n),(m)->(n)")
def smooth(a, kernel, out):
    for i in range(a.size):
        out[i] = 0.0
        for k in range(kernel.size):
            out[i] += kernel[k] * a[max(i - k, 0)]


@numba.guvectorize("(n),(n)->()")
def inner(a, b, out):
    out[0] = 0.0
    for i in range(a.size):
        out[0] += a[i] * b[i] ** 2


@numba.guvectorize(["void(float64[:], float64[:], float64[:])"], "(n)->(n),()")
def scan(a, sums, last):
    s = 0.0
    for i in range(a.size):
        s += math.sin(a[i])
        sums[i] = s
    last[0] = s * s


@case(0.3, 0.7, hvp=True)
def of_numbers(x, y):
    return mixed(x, 2 * y) * mixed(2.0, y)


@case(V, 0.4, hvp=True)
def of_an_array_and_a_number(a, y):
    return np.sum(mixed(a, y) * a)


@case(M, V, hvp=True)
def of_arrays_that_broadcast(a, b):
    return np.sum(mixed(a, b) ** 2)


@case(M[:, :1], V[:2].reshape(1, 2))
def of_axes_of_one(a, b):
    return mixed(a, b)


@case(M[:2, :3].reshape(3, 1, 2), M[:2, :1])
def of_three_dimensions(a, b):
    return declared(a, b)


@case(np.asfortranarray(M), np.asfortranarray(M[::-1]))
def of_columns(a, b):
    c = mixed(a, b)
    return c.T.ravel()


@case(M[::2, ::-1], V)
def of_strided_arrays(a, b):
    return np.sum(declared(a, b))


@case(V, 2)
def casts_an_integer(a, n):
    return np.sum(declared(a, n) + declared(3, a))


@case(V.astype(np.float32), tolerance=3e-3)
def single_precision(a):
    return np.sum(either(a) * a)


@case(V)
def writes_into_an_argument(a):
    out = np.ones((2, 4))
    declared(a, 2 * a, out)
    mixed(out, a, out)
    return out


@case(V)
def writes_over_its_operand(a):
    b = a * 2
    declared(b[1:], b[1:], b[:-1])
    return np.sum(b * a)


@case(np.array([0.0, 0.5, 0.2]), np.array([0.3, 0.0, 2.0]), argnums=(0,))
def divides_by_zero(a, b):
    return quotient(a, b)


@case(0.9, 3)
def in_a_loop(x, n):
    for _ in range(n):
        x = declared(x, x + 0.5)
    return x


@case(V)
def of_nothing(a):
    return np.sum(mixed(a[:0], a[:0])) + a[0]


@case(M, V[:3], hvp=True)
def generalized(a, b):
    out = np.empty_like(a)
    powers(a, b, out)
    return np.sum(out * out)


@case(V, 0.7)
def generalized_without_loops(a, b):
    out = np.empty_like(a)
    powers(a, b, out)
    return out


@case(M, V[:2], hvp=True)
def generalized_sum(a, kernel):
    out = np.empty_like(a)
    smooth(a, kernel, out)
    sums = np.empty(a.shape[0])
    inner(out, a, sums)
    return np.sum(sums**2)


@case(R.uniform(0, 1, (2, 3, 2)))
def generalized_over_two_axes(a):
    sums, last = np.empty_like(a), np.empty(a.shape[:2])
    scan(a, sums, last)
    return sums * 2, last


@case(V)
def generalized_over_its_operand(a):
    b = a * a
    powers(b, 3, b)
    return np.sum(b)


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)


def test_passive_call():
    """Of what is not differentiated, nothing is asked."""

    @tg.njit
    def f(x, a):
        return x * np.sum(mixed(a, 2.0))

    check(f, 0.3, V, argnums=(0,))


def test_shapes_that_do_not_fit():
    @tg.njit
    def f(a, b):
        return np.sum(mixed(a, b))

    with pytest.raises(ValueError, match="broadcast"):
        tg.grad(f)(V, V[:3])

    @tg.njit
    def g(a, b):
        out = np.empty_like(a)
        smooth(a, b, out[:, :3])
        return np.sum(out)

    with pytest.raises(ValueError, match=r"fit together|mismatch"):
        tg.grad(g)(M, V[:2])


HEADER = """\
import numba
import numpy as np
import tapegrad as tg


@numba.vectorize(["float64(float64, float64)"])
def product(x, y):
    return x * y


@numba.vectorize(["float64(float64)"])
def broken(x):
    values = {1: x}
    return values[1]


@numba.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)")
def doubled(a, out):
    for i in range(a.size):
        out[i] = 2 * a[i]


@tg.njit
def f(a):
"""
# name: (the statement that is refused, words of its text, what is written instead)
REFUSED = {
    "reduce": ("return product.reduce(a)", ["reduce"], "return np.prod(a)"),
    "other precision": (
        "doubled(a, a)\n    return np.sum(a)",
        ["doubled", "float32"],
        "b = a.astype(np.float64)\n    doubled(b, b)\n    return np.sum(b)",
    ),
    "broken": ("return np.sum(broken(a))", ["line 13, in broken"], "return np.sum(product(a, a))"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::numba.NumbaExperimentalFeatureWarning")
def test_refused(name):
    body, words, instead = REFUSED[name]
    a = V.astype(np.float32) if "precision" in name else V
    f = module(f"{HEADER}    {body}\n")
    with pytest.raises(tg.TransformError) as caught:
        tg.grad(f)(a.copy())
    for word in [*words, "line"]:
        assert word in str(caught.value)
    check(module(f"{HEADER}    {instead}\n"), a)


def test_global_that_was_changed_after_compilation():
    text = (
        "import numba\nimport tapegrad as tg\nK = 2.0\n"
        "@numba.vectorize(['float64(float64)'])\ndef g(x):\n    return K * x\n"
        "@tg.njit\ndef f(x):\n    return g(x)\n"
    )
    f = module(text)
    f.py_func.__globals__["K"] = 3.0
    assert f(1.0) == 2.0
    with pytest.raises(tg.TransformError, match=r"'K', which g uses, was changed.*argument"):
        tg.grad(f)(1.0)
    assert tg.grad(module(text.replace("2.0", "3.0")))(1.0) == 3.0
    passed = text.replace("def g(x):\n    return K", "def g(x, k):\n    return k")
    passed = passed.replace("float64(float64)", "float64(float64, float64)")
    f = module(passed.replace("f(x):", "f(x, k):").replace("g(x)\n", "g(x, k)\n"))
    assert tg.grad(f)(1.0, 3.0) == 3.0
