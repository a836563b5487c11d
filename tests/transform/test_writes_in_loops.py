"""Loops that change an array, as a whole or by NumPy, beside elements that they keep."""

import numpy as np
import pytest
from check import check, module

from tapegrad.transform.sharing.calls import changes_nothing
from tapegrad.transform.trees import quoted

pytestmark = pytest.mark.texts

Y = np.array([0.3, -0.8, 0.5, 0.9, 0.4, -0.2])
LOOPS = {
    "before": """
        {}
        t = x * y[i] + y[i + 1]
        s += np.sin(t * y[i]) * y[i + 1]
""",
    "after": """
        t = x * y[i] * y[i + 1]
        s += np.exp(-t * t) * y[i]
        {}
""",
    "in a branch": """
        t = x * y[i] * y[i + 1]
        if t > -5.0:
            {}
        s = np.sin(s + t) * y[i] * x
""",
}
WRITES = [  # to `v`, which shows a part of `y`
    "v += 1.0",
    "v *= 1.1",
    "v -= y[0]",
    "v[:] = 0.3",
    "v[::-1] = y[:4].copy()",
    "v.fill(0.7)",
    "y[i + 1] *= 0.5",
    "np.multiply(v, 1.5, v)",
    "np.sin(y[1:5], v)",
    "np.negative(v, v)",
    "np.clip(v, 0.0, 0.5, v)",
    "np.round(v, 1, v)",
    "np.dot(m, v.copy(), v)",
    "w = np.multiply(v, 1.5, v)",
    "w = np.clip(v, 0.0, 0.5, v)",
    "s += np.sin(y[1:5], v)[0]",
    "s += x * np.dot(m, v.copy(), v)[1]",
    "write(v)",
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("write", WRITES)
def test_gradients(write, loop):
    f = module(
        "import numpy as np, tapegrad as tg\n"
        "@tg.njit\ndef write(v):\n    v[1] = 0.25\n"
        "@tg.njit\n"
        "def f(x, y):\n"
        "    m, v, s = np.eye(4), y[:4], 0.0\n"
        "    for i in range(y.size - 1):\n"
        + LOOPS[loop].format(write)
        + "    return s + y[0] * x\n"
    )
    check(f, 0.7, Y, argnums=(0,), compiled=False)


@pytest.mark.parametrize(
    ("call", "does_not"),
    [
        ("np.sin(x)", True),
        ("np.sin(x, y)", False),
        ("np.sin(x, out=y)", False),
        ("np.clip(x, a, b)", True),
        ("np.clip(x, a, b, y)", False),
        ("np.dot(x, y)", True),
        ("np.dot(x, y, z)", False),
        ("np.zeros_like(x)", True),
        ("np.float32(a)", True),
        ("np.nditer(x)", False),
        ("np.nan_to_num(x)", True),
        ("np.nan_to_num(x, nan=a)", True),
        ("np.nan_to_num(x, copy=False)", False),
        ("np.fill_diagonal(m, a)", False),
        ("np.copyto(x, y)", False),
        ("np.random.rand(n)", False),
        ("np.linalg.inv(x)", True),
        ("math.sin(a)", True),
        ("abs(a)", True),
        ("f(x)", False),
        ("x.fill(a)", False),
        ("runtime.row(tape, top, n)", True),
        ("runtime.clear(x)", False),
        ("runtime.add_product(z, x, y)", False),
    ],
)
def test_calls_that_change_nothing(call, does_not):
    assert changes_nothing(quoted(call)) is does_not
