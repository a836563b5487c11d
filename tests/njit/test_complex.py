"""Complex numbers in compiled functions, beside differences and beside Tensors."""

import cmath
import math

import numpy as np
import pytest
from check import Cases, check, close, differences, flat, module

import tapegrad as tg

rng = np.random.default_rng(0)
Z = rng.uniform(-1, 1, 4) + 1j * rng.uniform(-1, 1, 4)
W = rng.uniform(-1, 1, 4) + 1j * rng.uniform(-1, 1, 4)
X = rng.uniform(0.5, 1.5, 4)
A = rng.uniform(-1, 1, (3, 3)) + 1j * rng.uniform(-1, 1, (3, 3)) + 2 * np.eye(3)
B = rng.uniform(-1, 1, (3, 3)) + 1j * rng.uniform(-1, 1, (3, 3))
V = rng.uniform(-1, 1, 3) + 1j * rng.uniform(-1, 1, 3)
R = rng.uniform(-1, 1, (3, 3))

# -- every elementwise op that has a rule for complex numbers --------------------------------------

UNARY = {
    "negative": "-z", "positive": "+z", "reciprocal": "np.reciprocal(z)", "square": "np.square(z)",
    "sqrt": "np.sqrt(z)", "exp": "np.exp(z)", "exp2": "np.exp2(z)", "expm1": "np.expm1(z)",
    "log": "np.log(z)", "log2": "np.log2(z)", "log10": "np.log10(z)", "log1p": "np.log1p(z)",
    "sin": "np.sin(z)", "cos": "np.cos(z)", "tan": "np.tan(z)", "arcsin": "np.arcsin(z)",
    "arccos": "np.arccos(z)", "arctan": "np.arctan(z)", "sinh": "np.sinh(z)", "cosh": "np.cosh(z)",
    "tanh": "np.tanh(z)", "arcsinh": "np.arcsinh(z)", "arccosh": "np.arccosh(z)",
    "arctanh": "np.arctanh(z)", "conj": "np.conj(z)", "conjugate": "z.conjugate()",
    "absolute": "np.abs(z)", "abs": "abs(z)", "angle": "np.angle(z)", "real": "z.real",
    "imag": "z.imag", "np.real": "np.real(z)", "np.imag": "np.imag(z)", "square of size":
    "np.abs(z)**2", "power of 2": "z**2", "power of 3": "z**3", "inverse cube": "z**-3",
    "root": "z**0.5",
}  # fmt: skip
BINARY = {
    "add": "z + w", "subtract": "z - w", "multiply": "z * w", "divide": "z / w",
    "constants": "(z + 2j) * 1.5 - 1j / z * (0.5 - 1j)",
}  # fmt: skip
PLACES = [0.7 + 0.4j, -0.6 + 0.3j, 0.5 - 1.2j, -1.3 - 0.2j]


def number_of(text):
    """A real function of complex numbers of which one goes through an operation."""
    return tg.njit(
        module(
            "import numpy as np, cmath, math\n\n\n"
            f"def f(z, w):\n    y = {text}\n    return (y * (0.3 + 0.8j)).real + (y * y).imag\n"
        )
    )


def array_of(text):
    """The same of arrays."""
    return tg.njit(
        module(
            "import numpy as np, cmath, math\n\n\n"
            f"def f(z, w):\n    y = {text}\n    v = y * (0.3 + 0.8j) + y * y * 1j\n"
            "    return np.sum(v.real)\n"
        )
    )


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_numbers(name):
    f = number_of({**UNARY, **BINARY}[name])
    for z in PLACES:
        check(f, z, 0.9 - 0.7j, argnums=(0,) if name in UNARY else (0, 1), hvp=True, tolerance=1e-6)


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_arrays(name):
    f = array_of({**UNARY, **BINARY}[name].replace("abs(z)", "np.abs(z)").replace("np.np", "np"))
    check(
        f, Z.copy(), W.copy(), argnums=(0,) if name in UNARY else (0, 1), hvp=True, tolerance=1e-6
    )


# -- real and complex operands, and functions of arrays --------------------------------------------

PROGRAMS = Cases()


@PROGRAMS(0.7, 0.4)
def parts(a, b):
    z = complex(a, b)
    w = complex(b)
    return (z * w * z.conjugate()).imag + (z / w).real


@PROGRAMS(0.7, -0.4 + 0.3j, 3)
def mixed(x, z, n):
    y = x * z + z / x - x / z + n * z + x
    return (y * (x - z)).imag + abs(z + n) ** 2


@PROGRAMS(0.7, 0.9 - 0.4j, tolerance=1e-6)
def powers(x, z):
    y = z**x + x**z + z**z + np.e ** (1j * x) + z ** (2 + 1j)
    return y.real - y.imag


@PROGRAMS(0.7, -2.5, 0.3 + 0.1j)
def of_cmath(x, y, z):
    w = complex(y)  # on branch cuts
    total = cmath.exp(1j * x) + cmath.sqrt(w) + cmath.log(w) + cmath.asin(w) + cmath.acosh(z)
    total += cmath.cos(z) + cmath.asin(z) + cmath.acos(w) + cmath.atanh(w) + cmath.log10(z)
    return total.real + 2.0 * total.imag + cmath.phase(total)


@PROGRAMS(X.copy(), Z.copy(), 0.3, 0.2 - 0.7j, hvp=True)
def broadcast(x, z, a, c):
    y = x * z + a * z - c * x + z / x + x / z + 1j * x
    y = y + np.exp(1j * a * x) * c
    return np.sum(np.abs(y) ** 2) + np.sum(y).imag


@PROGRAMS(A.copy(), Z[:3].copy(), 0.7, hvp=True)
def rows(a, z, x):
    y = a * z + z * x
    y *= x
    y += a
    return np.sum((y * y).real) + np.sum(y.imag)


@PROGRAMS(Z.copy(), 0.4)
def loops(z, x):
    total = 0j
    for k in range(z.size):
        total += z[k] * np.exp(1j * k * x)
    size = 0.0
    for k in range(z.size):
        size += abs(z[k]) ** 2
    return (total * total.conjugate()).real + size * total.imag


@PROGRAMS(0.4, 5)
def stored(x, n):
    a = np.zeros(n, np.complex128)
    b = np.empty(n)
    for k in range(n):
        a[k] = x * k
        if k > 0:
            a[k] += a[k - 1] * (0.5 + 1j * x)
            a[k - 1] *= 1j
        b[k] = a[k].imag
    a[0] = 2.0
    a.real[1] = x
    a[2:] = a[2:] * x
    return np.sum(a * a).real + np.sum(b * b)


@PROGRAMS(Z.copy(), hvp=True)
def views(z):
    y = z[1:].copy()
    real = y.real
    imag = y.imag
    real[0] = 2.0 * imag[1]
    imag[1:] = real[1:] * real[:-1]
    return np.sum(real * imag) + np.sum(y * y).real


@PROGRAMS(A.copy(), B.copy(), V.copy(), hvp=True)
def products(a, b, v):
    c = a @ b.T
    d = np.dot(c, v) + v @ a
    e = np.dot(d, v.conj())
    return e.real + np.sum(np.abs(c)) + np.trace(a).imag


@PROGRAMS(A.copy(), B.copy(), V.copy())
def systems(a, b, v):
    x = np.linalg.solve(a, v)
    y = np.linalg.solve(a, b)
    z = np.linalg.inv(a)
    d = np.linalg.det(a)
    return np.sum(np.abs(x) ** 2) + np.sum(y * z).imag + d.real * d.imag


@PROGRAMS(V.copy(), Z.copy(), B.copy())
def made(v, z, b):
    a = np.outer(v, z)
    k = np.kron(v, z)
    c = np.cumsum(z)
    p = np.prod(z)
    q = np.cumprod(z)
    m = np.mean(b) + np.sum(b, 0)[1] + np.diag(v)[1, 1]
    d = np.array([v[0], z[1] * 2.0, 1.0])
    f = np.full(3, v[2])
    return (a.sum() * k[3] + c[2] * p + q[3] * m + d[1] * d[0] + f[1] * f[0]).imag


@PROGRAMS(0.6, 0.2 + 0.1j)
def moved(x, z):
    a = np.array([x, 2.0 * x]).astype(np.complex128)
    b = np.concatenate((a, np.array([z, z * z])))
    c = np.hstack((b, b))
    d = np.roll(c, 1)[::2]
    return np.sum(d * d).real + np.sum(c[b.real > 0.0]).imag


@PROGRAMS(0.6, 0.2 + 0.1j)
def chosen(x, z):
    w = z if x > 0.5 else complex(x, x)
    if abs(w) < 1.0:
        w = w * x
    else:
        w = 1.0 / w
    y = np.where(x > 0.0, w, z)
    t = (w, y, x)
    a, b, c = t
    return (a * b).imag * c


@tg.njit
def rotated(z, angle):
    return z * np.exp(1j * angle)


@tg.njit
def filled(out, z):
    for k in range(out.size):
        out[k] = rotated(z, float(k)) * out[k]
    return out


@PROGRAMS(Z.copy(), 0.3, 0.2 + 0.4j)
def calls(z, x, w):
    y = filled(z.copy(), rotated(w, x))
    total = 0j
    for k in range(2):
        total += rotated(y[k], x * k)
    return abs(total + np.sum(y)) ** 2


@PROGRAMS(np.complex64(0.3 + 0.4j), Z.astype(np.complex64))
def single(w, z):
    total = w
    for k in range(z.size):
        total = total * z[k] + w
    return np.float32(total.real) + np.float32(abs(total))


@PROGRAMS(Z.copy(), 0.3)
def complex_result(z, x):
    return z * np.exp(1j * x), np.sum(z) * x


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    PROGRAMS.check(name)
