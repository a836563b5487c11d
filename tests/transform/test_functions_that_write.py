"""NumPy functions that write to an argument, and arguments that change what is read of others."""

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

HEADER = "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, c):\n"
X = np.array([0.3, 1.2, 2.4])
C = np.array([1.4, 2.6, 3.1])
MASK = np.array([True, False, True])

# what is written has no derivative, and is read before and after
RIGHT = {
    "np.logical_not(c, c)": ("y = x[c]", "return np.sum(y * y)", X, MASK),
    "np.add(c, 1, c)": ("y = x[c]", "return np.sum(y * y)", X, np.array([0, 1])),
    "np.fill_diagonal(c, 0)": ("y = x[c[0]]", "return np.sum(y * y)", X, np.full((2, 2), 2)),
    "np.random.shuffle(c)": ("np.random.seed(3); a = c[0]", "return x * a + x * x * c[0]", 0.7, C),
    "np.round(c, 0, c)": ("a = c[0]", "return x * a + x * x * c[0]", 0.7, C),
    "np.clip(c, 2.0, 3.0, c)": ("a = c[0]", "return x * a + x * x * c[0]", 0.7, C),
    "np.fill_diagonal(c, 7.0)": (
        *("a = c[0, 0]", "return x * a + x * x * c[0, 0]"),
        *(0.7, np.arange(9.0).reshape(3, 3)),
    ),
}
REFUSED = {
    "np.round(c, 0, out)": ("out = x * x", "return np.sum(out)", X, C),
    "np.round(c, out=out)": ("out = x * x", "return np.sum(out)", X, C),
    "np.greater(x, 1.0, c)": ("y = x[c]", "return np.sum(y * y)", X, MASK),
    "np.isnan(x, c)": ("y = np.where(c, x * x, x)", "return np.sum(y)", X, MASK),
}


def program(call, before, after):
    return module(f"{HEADER}    {before}\n    {call}\n    {after}\n")


@pytest.mark.parametrize("call", RIGHT)
def test_right(call):
    before, after, *args = RIGHT[call]
    check(program(call, before, after), *args, argnums=(0,))


@pytest.mark.parametrize("call", REFUSED)
def test_refused(call):
    before, after, *args = REFUSED[call]
    f = program(call, before, after)
    with pytest.raises(tg.TransformError, match="writes to its argument; assign the result"):
        tg.grad(f)(*args)
    with pytest.raises(tg.TransformError, match="writes to its argument; assign the result"):
        tg.jvp(f)(*args, np.ones(3))


@tg.njit
def squares(matrices):
    """Products of matrices with themselves, each written to its place."""
    out = np.empty(matrices.shape)
    for k in range(matrices.shape[0]):
        np.dot(matrices[k], matrices[k], out[k])
    return out


@squares.defvjp
def _(matrices, found, g):
    out = np.empty(matrices.shape)
    for k in range(matrices.shape[0]):
        turned = np.ascontiguousarray(matrices[k].T)
        out[k] = np.dot(g[k], turned) + np.dot(turned, g[k])
    return (out,)


@tg.njit
def trace_of_squares(matrices, weights):
    return np.sum(squares(matrices) * weights)


def test_a_function_with_a_rule_that_writes_to_its_own_array():
    weights = np.cos(np.arange(18.0)).reshape(2, 3, 3)
    check(trace_of_squares, np.sin(weights), weights, argnums=(0,), jvp=False)


def test_a_call_that_writes_products():
    f = module(
        f"{HEADER}    out = np.empty(c.shape)\n    np.dot(x, c, out)\n    return np.sum(out)\n"
    )
    with pytest.raises(tg.TransformError, match="writes to its argument; assign the result"):
        tg.grad(f)(np.eye(3), np.ones((3, 3)))


OTHERS = {
    "convolutions of integers": ("return np.sum(np.convolve(c, x) * np.arange(5.0))", X, [1, 2, 3]),
    "correlations of integers": ("return 1.5 * np.sum(np.correlate(c, x))", X, [1, 2, 3]),
    "floats like integers": (
        *("return np.sum(np.full_like(c, x * x, np.float64))", 0.7),
        [1, 2, 3],
    ),
    "steps of a range from 0": ("return np.sum(np.arange(5.0, step=x) * c[0])", 1.3, C),
    "one step for all": ("return np.trapezoid(x, c)", np.array([1.0, 2, 4, 3]), [0.0, 2.0]),
    "one mean for all": ("return np.trapezoid(x, c)", np.array([1.0, 2.0]), [0.0, 2.0, 3.0, 7.0]),
    "positions of one step": ("return np.trapezoid(c, x)", np.array([0.0, 2.0]), [1.0, 2, 4, 3]),
    "positions, one mean": ("return np.trapezoid(c, x)", np.array([0.0, 2, 3, 7]), [1.0, 2.0]),
    "no differences left": ("return np.sum(np.diff(x, 6)) + np.sum(x * x)", X[:2], C),
    "a slice of integers in a branch": (
        "t = (c.size, 2, x)\n    if c.size > 1:\n        u = t[:2]\n    else:\n        u = (3, 4)\n"
        "    return x * x * u[0] + u[1] * x",
        *(0.7, C),
    ),
    "a slice of integers in a loop": (
        "t = (c.size, 2, x)\n    u = t[:2]\n    s = 0.0\n    for i in range(3):\n"
        "        s += x * u[0] + x * x * u[1]\n        u = (u[1], i)\n    return s",
        *(0.7, C),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    body, x, c = OTHERS[name]
    check(module(f"{HEADER}    {body}\n"), x, np.array(c))


def test_sum_with_a_start_is_refused():
    f = module(f"{HEADER}    return sum((x, 2.0 * x), start=x * x) + c[0]\n")
    with pytest.raises(tg.TransformError, match="cannot differentiate the call of sum"):
        tg.grad(f)(0.7, C)
