"""Arrays in Fortran order, and names whose arrays have one order first and another one later."""

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

M = np.array([[0.5, 0.2], [0.1, 0.7]])
F = np.asfortranarray(M)
PROGRAMS = {
    "product in place": ("for i in range(2):\n        m *= a\n    return m[0, 0] * m[0, 1]", F),
    "quotient in place": ("for i in range(2):\n        m /= a\n    return np.sum(m * m)", F),
    "power in place": ("for i in range(2):\n        m **= a\n    return np.sum(m * m)", F),
    "column in place": (
        "for i in range(2):\n        m[:, 0] *= m[0, 1] * a\n    return np.sum(m)",
        F,
    ),
    "F, then C": (
        "A = m.T\n    for _ in range(2):\n        B = A @ A\n        A = B * a\n    return A[0, 1]",
        M,
    ),
    "sorted F, then C": (
        "A = m.T\n    for _ in range(2):\n        A = np.sort(A) * a * A\n    return np.sum(A * A)",
        M,
    ),
    "made in a loop": (
        "for i in range(2):\n        w = m.copy().T\n        w[0, 0] *= a\n    return np.sum(w**2)",
        M,
    ),
    "ravelled copy": ("d = np.ravel(m)\n    d[1] = a\n    return d[0] * d[2] * d[1] + m[0, 0]", F),
    "made Fortran": (
        "z = np.asfortranarray(np.copy(m))\n    z += a\n    return np.sum(np.sin(z))",
        M,
    ),
    "mask of a column": (
        "r = m[:, 0]\n    r[r > 0.3] *= a\n    return np.sum(m**3)",
        M,
    ),
}


@pytest.mark.filterwarnings("ignore:'@' is faster on contiguous arrays")  # so says numba alone
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    body, m = PROGRAMS[name]
    f = module(f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(m, a):\n    {body}\n")
    check(f, m, 0.6, argnums=(0, 1), hvp=True)


@pytest.mark.parametrize("order", "CF")
def test_float32_arrays_changed_in_place_by_float64_numbers(order):
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(m, a):\n"
        "    for i in range(2):\n        m *= a\n    return m[0, 0] * m[0, 1]\n"
    )
    m = np.asarray(M, np.float32, order=order)
    found = tg.grad(f)(m.copy(order="K"), 0.5)
    np.testing.assert_allclose(found, [[0.0625 * 0.2, 0.0625 * 0.5], [0.0, 0.0]], rtol=1e-6)


REDUCED = ["np.sum({})", "np.median({})", "np.nanmax({})", "{}.mean()", "{}.prod()"]


@pytest.mark.parametrize("call", REDUCED)
@pytest.mark.parametrize("of", ["np.asarray(a * b)", "np.where(b > 0.0, a * b, 0.3)"])
def test_reductions_of_arrays_without_axes(call, of):
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a, b):\n"
        f"    return {call.format(of)} * a\n"
    )
    check(f, 0.7, 1.2, argnums=(0, 1))


@pytest.mark.parametrize("call", ["np.transpose({})", "np.flip({})", "np.real({})"])
def test_arrays_without_axes_that_are_numbers_here(call):
    call = call.format("np.where(b > 0.0, a, 0.3)")
    f = module(
        f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a, b):\n    return {call} * a\n"
    )
    with pytest.raises(tg.TransformError, match=r"use the number[\s\S]*line 4"):
        tg.grad(f)(0.7, 1.2)
