"""Random draws in functions that are differentiated: made once, in the forward pass."""

import numpy as np
import pytest
from check import Cases, check, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])
case = Cases()


@case(A, 3, hvp=True)
def draws_in_a_loop(a, n):
    np.random.seed(5)
    s = 0.0
    for _ in range(n):
        w = np.random.normal(0.0, 1.0, 3)
        b = np.exp(a * w) * np.random.rand()
        if np.random.random() > 0.3:
            s += (b * b).sum() * np.random.standard_normal()
        w[0] = a[1]
        s += (w * b).sum() * np.random.uniform(0.5, 1.0)
        order = np.random.permutation(3)
        s += b[order[0]] ** 2
    return s


@tg.njit
def noise(x, n):
    w = np.random.randn(n)
    return np.sin(w * x).sum() * np.random.rand()


@case(0.7, 4)
def draws_in_a_callee(x, n):
    np.random.seed(7)
    s = noise(x, n)
    for _ in range(n):
        s += noise(x * s, 2)
    return s * np.random.rand()


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


def test_drawing_leaves_the_same_state():
    """A gradient draws as often as the function itself."""
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, seed):\n"
        "    if seed > 0:\n        np.random.seed(seed)\n    s = 0.0\n"
        "    for _ in range(4):\n        s += np.exp(np.random.rand() * x)\n    return s\n"
    )
    f(0.3, 3)
    after = f(0.3, 0)
    tg.grad(f)(0.3, 3)
    assert f(0.3, 0) == after


def test_parameters_of_draws_are_refused():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x):\n"
        "    return np.random.normal(x, 1.0) * x\n"
    )
    with pytest.raises(tg.TransformError, match=r"standard_normal[\s\S]*line 4"):
        tg.grad(f)(0.3)
    g = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x):\n    np.random.seed(1)\n"
        "    return (x + 1.0 * np.random.standard_normal()) * x\n"
    )
    check(g, 0.3)
