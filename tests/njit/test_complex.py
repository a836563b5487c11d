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
