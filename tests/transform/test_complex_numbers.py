"""Complex numbers in compiled functions, beside differences and beside Tensors."""

import cmath
import math

import numpy as np
import pytest
from check import Cases, check, close, module

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
    check(f, Z.copy(), W.copy(), argnums=(0,) if name in UNARY else (0, 1), tolerance=1e-6)


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


@PROGRAMS(np.array([True, False, True, True]), X.copy(), Z.copy(), hvp=True)
def choices(mask, x, z):
    y = np.where(mask, z, x * 1j)
    y[1:3] = x[:2]
    y[mask] += z[mask] * 2.0
    y[3] = x[3]
    return np.sum(y * y).imag + np.sum(np.abs(y)) * x[0]


@PROGRAMS(X.copy(), Z.copy(), 0.3, 0.2 - 0.7j, hvp=True)
def broadcast(x, z, a, c):
    y = x * z + a * z - c * x + z / x + x / z + 1j * x
    y = y + np.exp(1j * a * x) * c
    return np.sum(np.abs(y) ** 2) + np.sum(y).imag


@PROGRAMS(X.copy(), hvp=True)
def reals_that_become_complex(x):
    z = x + 0j
    for _ in range(2):
        z = z * 1j
    u = x - 1j
    u[0] = u[1] * 2j
    w = np.where(x > 0.9, x, 0j)
    w[1] = z[0] * (1 + 2j)
    total = np.zeros(4, np.complex128)
    total += u * w
    return (z * u * w).real.sum() + (total * total).imag.sum()


@PROGRAMS(X.copy(), 1, hvp=True)
@PROGRAMS(X.copy(), 0, hvp=True)
def reals_that_become_complex_in_branches(x, n):
    z = x / 2 + 0j if n else x * 1j
    z[1] = z[0] * 1j
    return (z * z * z).imag.sum() + (z * z).real.sum()


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
    e = np.dot(d, v.conj()) + np.vdot(v, d)
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
    return np.sum(d * d).real + np.sum(c[c.real > 0.0]).imag


@PROGRAMS(0.6, 0.2 + 0.1j)
def chosen(x, z):
    w = z if x > 0.5 else complex(x, x)
    if abs(w) < 1.0:
        w = w * x
        y = w + z
    else:
        y = 1.0 / w
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


@PROGRAMS(0.7, hvp=True)
def carried(x):
    z = x
    for _k in range(4):
        z = z * 1j + x
    return abs(z) + z.imag


@PROGRAMS(0.7)
def branches(x):
    z = x if x > 1.0 else 1j * x
    w = x * 2.0
    if x < 2.0:
        w = w * z
    return (z * w).real + w.imag


@tg.njit
def early(z, n):
    for _k in range(n):
        z = z * z + 0.3
        if abs(z) > 1.5:
            return z, abs(z)
    return z / 2.0, 1.0


@PROGRAMS(0.6 + 0.7j, 0.4)
def early_return(z, x):
    w, s = early(z * x, 6)
    v, t = early(z, 6)
    return (w * v).imag * s + t


@tg.njit
def fill(out, other, x):
    for k in range(out.size):
        out[k] = x * other[k].imag + other[k].real
    return out


@PROGRAMS(Z.copy(), 0.6)
def aliased(z, x):
    y = z.copy()
    fill(y.real, y, x)
    r = fill(y.imag, y, x * 2.0)
    return np.sum(y * y).imag + r[1]


@PROGRAMS(Z.copy(), 0.3)
def buffers(z, x):
    a = z.copy()
    b = np.zeros_like(a)
    best = a
    for _k in range(3):
        for j in range(a.size):
            b[j] = a[j] * a[(j + 1) % a.size] + x
        if abs(b[0]) < 10.0:
            a, b = b, a
        if abs(a[1]) > 0.5:
            best = a.copy()
    return np.sum(np.abs(best)) + a[2].imag


@PROGRAMS(Z.copy())
def recurrences(z):
    p = 1.0
    re = z.real
    for k in range(z.size):
        p = p * re[k] + 0.5
    q = 1.0 + 0j
    for k in range(z.size):
        q = q * z[k] + 1.0
    return p * q.imag + q.real


@PROGRAMS(0.4, 0.3 - 0.8j, 3)
def exponents(x, z, n):
    return (z**n + z ** (-n) + x**2.5 * z + (z * x) ** 2.5 + z**-1.5).imag


@PROGRAMS(np.array([2, 0, 1, 1]), X.copy(), Z.copy())
def fancy(i, x, z):
    y = x[i] * z
    y[i] = z
    return np.sum(y * y).imag + np.sum(z[z.real > 0]).real


@PROGRAMS(X.copy(), hvp=True)
def kept(x):
    y = np.zeros_like(x, dtype=np.complex128)
    total = 0.0
    for _k in range(3):
        y = y * 1j + x
        y[0] = y[1] * x[0]
        w = np.exp(y)
        total += np.sum(np.abs(w)) + w[1].imag
    return total


@PROGRAMS(Z.copy(), X.copy())
def with_while(z, x):
    k = 0
    w = z[0]
    s = 0.0
    while abs(w) < 50.0 and k < 8:
        w = w * (1.5 + z[k % 4]) + x[k % 4]
        if w.real > 0.5:
            s += w.imag
        else:
            s -= abs(w)
        k += 1
    return s + cmath.phase(w)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    PROGRAMS.check(name)


# -- programs as they are written ------------------------------------------------------------------

USED = Cases()


@USED(np.array([0.7, -0.3, 0.1]), 0.4, 0.8)
def ar_spectrum(coefficients, noise, frequency):
    """The spectral density of an autoregressive process, and its phase."""
    response = 1.0 + 0j
    for k in range(coefficients.size):
        response -= coefficients[k] * np.exp(-1j * frequency * (k + 1))
    return noise**2 / np.abs(response) ** 2 + np.angle(response)


@tg.njit
def layer(index, thickness, wavelength, cosine):
    phase = 2.0 * np.pi * index * thickness * cosine / wavelength
    admittance = index * cosine
    m = np.empty((2, 2), np.complex128)
    m[0, 0] = np.cos(phase)
    m[0, 1] = 1j * np.sin(phase) / admittance
    m[1, 0] = 1j * admittance * np.sin(phase)
    m[1, 1] = np.cos(phase)
    return m


@USED(
    np.array([100.0, 80.0, 60.0]),
    np.array([1.4 - 0.1j, 2.3 + 0j, 1.6 - 0.02j]),
    500.0,
    0.3,
    hvp=True,
)
def reflectance(thicknesses, indices, wavelength, angle):
    """Thin films, by the characteristic matrices of the layers."""
    total = np.eye(2).astype(np.complex128)
    for k in range(thicknesses.size):
        sine = np.sin(angle) / indices[k]
        total = total @ layer(indices[k], thicknesses[k], wavelength, np.sqrt(1.0 - sine * sine))
    b = total[0, 0] + total[0, 1] * 1.52
    c = total[1, 0] + total[1, 1] * 1.52
    r = (b - c) / (b + c)
    return (r * r.conjugate()).real


@USED(-0.2, 0.1, 12)
def escape(a, b, most):
    """How fast an iteration diverges."""
    z = 0j
    c = complex(a, b)
    n = 0
    while n < most:
        z = z**2 + c
        n += 1
        if abs(z) > 100.0:
            break
    return n + 1.0 - np.log(np.log(abs(z) + 2.0)) / np.log(2.0)


@USED(X.copy(), 1.3, hvp=True)
def transform(x, weight):
    """A discrete Fourier transform by loops, and the weighted power."""
    n = x.size
    spectrum = np.zeros(n, dtype=np.complex128)
    for k in range(n):
        for j in range(n):
            spectrum[k] += x[j] * np.exp(-2j * np.pi * k * j / n)
    power = 0.0
    for k in range(n):
        power += (spectrum[k].real ** 2 + spectrum[k].imag ** 2) * weight**k
    return power


@tg.njit
def parallel(a, b):
    return a * b / (a + b)


@USED(5.0, 1.3, 0.7, 0.4)
def network(resistance, inductance, capacity, frequency):
    """The power that a network of impedances takes."""
    s = 2j * np.pi * frequency
    coil = resistance + s * inductance
    total = 10.0 + parallel(coil, 1.0 / (s * capacity))
    current = 5.0 / total
    return 0.5 * abs(current) ** 2 * total.real + cmath.phase(current)


@USED(0.4, 3.1, hvp=True)
def faddeeva(x, y):
    """A continued fraction of the complex error function."""
    z = complex(x, y)
    w = 0j
    for k in range(12, 0, -1):
        w = 0.5 * k / (z - w)
    return (1j / np.sqrt(np.pi) / (z - w)).real


@USED(np.array([0.3, -0.5, 0.8]), 0.9, 1.7)
def two_levels(pulse, detuning, step):
    """The population of a level after a pulse in pieces."""
    state = np.array([1.0 + 0j, 0.0 + 0j])
    for k in range(pulse.size):
        rabi = math.sqrt(pulse[k] ** 2 + detuning**2)
        c, s = math.cos(0.5 * rabi * step), math.sin(0.5 * rabi * step)
        u = np.array(
            [
                [c - 1j * s * detuning / rabi, -1j * s * pulse[k] / rabi],
                [-1j * s * pulse[k] / rabi, c + 1j * s * detuning / rabi],
            ]
        )
        state = np.dot(u, state)
    return np.abs(state[1]) ** 2 + (state[0] * np.conj(state[1])).imag


@USED(2.0, np.array([1.5, 2.4]), np.array([2.0, 2.3]), np.array([0.8, 0.0]), 0.25)
def dispersion(frequency, speeds, densities, depths, slowness):
    """A propagator of shear waves through layers, attenuated, as a determinant."""
    m = np.eye(2, dtype=np.complex128)
    for k in range(speeds.size):
        speed = speeds[k] * (1.0 + 0.01j)
        vertical = np.sqrt(1.0 / speed**2 - slowness**2 + 0j)
        if vertical.imag < 0.0:
            vertical = -vertical
        phase = frequency * vertical * depths[k]
        stiffness = densities[k] * speed**2 * vertical * frequency
        step = np.zeros((2, 2), np.complex128)
        step[0, 0] = step[1, 1] = np.cos(phase)
        step[0, 1] = np.sin(phase) / stiffness
        step[1, 0] = -stiffness * np.sin(phase)
        m = step @ m
    secular = np.linalg.det(m) * m[1, 0] + 1j * m[0, 0]
    return np.abs(secular)


@USED(np.array([0.9, 0.3]), np.array([0.2, 1.1]), 0.4)
def structure_factor(amplitudes, positions, q):
    f = 0j
    for a, r in zip(amplitudes, positions):
        f += a * cmath.exp(1j * q * r)
    return f.real**2 + f.imag**2


@pytest.mark.parametrize("name", USED)
def test_used(name):
    USED.check(name)


# -- what is refused -------------------------------------------------------------------------------

REFUSED = {
    "order": "np.sort(z)[0].real", "largest": "np.max(z).real", "sign": "np.sign(z)[0].real",
    "norm": "np.linalg.norm(z)", "spread": "np.std(z)", "choice": "np.maximum(z, 2.0 * z)[0].real",
    "rounding": "np.round(z, 1)[0].real", "spectrum": "np.linalg.eigvals(np.outer(z, z))[0].real",
    "eigenvalues": "np.linalg.eigvalsh(np.outer(z, z.conj()))[0]",
    "vectors": "np.linalg.eigh(np.outer(z, z.conj()))[0][0]",
    "singular": "np.linalg.svd(np.outer(z, z))[1][0]",
    "factor": "np.linalg.qr(np.outer(z, z))[1][0, 0].real",
    "pseudoinverse": "np.linalg.pinv(np.outer(z, z))[0, 0].real",
    "cholesky": "np.linalg.cholesky(np.outer(z, z.conj()))[0, 0].real",
    "convolution": "np.convolve(z, z)[0].real", "list": "[z[0], z[1]][0].real",
    "gradient": "slope(z[0]).real",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """What has no rule for complex numbers is refused in both modes, by its line."""
    f = module(
        "import numpy as np, tapegrad as tg\n\n\n"
        "@tg.njit\ndef inner(w):\n    return abs(w)\n\n\nslope = tg.grad(inner)\n\n\n"
        f"@tg.njit\ndef f(z):\n    y = {REFUSED[name]}\n    return y\n"
    )
    for derivative in (tg.grad(f), lambda z: tg.jvp(f)(z, z)):
        with pytest.raises(tg.TransformError, match="line 14") as caught:
            derivative(Z.copy())
        assert "tg.stop_gradient" in str(caught.value)


@tg.njit
def turned(z, x):
    return z * np.exp(1j * x)


@tg.njit
def size(z, x):
    return abs(turned(z, x)) + x


def test_complex_results_have_no_gradient():
    with pytest.raises(tg.TransformError, match="grad needs a real result"):
        tg.grad(turned)(0.3 + 0.1j, 0.2)
    with pytest.raises(tg.TransformError, match="Jacobian is of real numbers"):
        tg.jacobian(turned, 1)(0.3 + 0.1j, 0.2)
    with pytest.raises(tg.TransformError, match="Jacobian is by real numbers"):
        tg.jacobian(size, 0)(0.3 + 0.1j, 0.2)


def test_tangents_have_the_type_of_the_argument():
    with pytest.raises(tg.TransformError, match="x_dot is of type complex128"):
        tg.jvp(size, 1)(0.3 + 0.1j, 0.2, 1j)
    value, dot = tg.jvp(size, 0)(3.0 + 4.0j, 0.2, 1.0)
    close([value, dot], [5.2, 0.6], 1e-12)


def test_convention():
    """The gradient by z = a + ib is dL/da + i dL/db; of |z|² that is 2z."""
    close(tg.grad(squared)(1.5 - 2j), 3.0 - 4j, 1e-14)
    assert tg.grad(size)(0j, 0.3) == 0.0  # where it has no derivative


@tg.njit
def squared(z):
    return (z * z.conjugate()).real


@tg.njit
def power(x, z):
    return np.sum(np.abs(x * z + np.exp(1j * x)) ** 2)


def test_tensors():
    """The gradients are those by tensors, and a call with tensors records them."""
    found = tg.grad(power, (0, 1))(X, Z)
    for function in (power.py_func, power):
        x, z = tg.tensor(X, requires_grad=True), tg.tensor(Z, requires_grad=True)
        function(x, z).backward()
        for gradient, tensor in zip(found, (x, z), strict=True):
            close(gradient, np.asarray(tensor.grad.numpy()), 1e-12)


@tg.njit(verify=True)
def cubed(z):
    return z * z * z


@cubed.defvjp
def cubed_vjp(z, result, cotangent):
    return (cotangent * np.conj(3.0 * z * z),)


@tg.njit(verify=True)
def wrong(z):
    return z * z * z


@wrong.defvjp
def wrong_vjp(z, result, cotangent):
    return (cotangent * 3.0 * z * z,)


@tg.njit(verify=True)
def of_cubed(z, x):
    return abs(cubed(z) * x + z) + cubed(z).imag


@tg.njit(verify=True)
def of_wrong(z, x):
    return abs(wrong(z) * x + z) + wrong(z).imag


def test_rules_of_users():
    check(of_cubed, 0.3 + 0.8j, 0.7, jvp=False)
    with pytest.raises(tg.VerificationError, match="wrong_vjp"):
        tg.grad(of_wrong)(0.3 + 0.8j, 0.7)
