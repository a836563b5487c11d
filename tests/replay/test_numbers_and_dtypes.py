"""Numbers beside arrays: those of Python take the dtype of an array, those of NumPy have their own.

Results have the dtypes and values that they have op by op, compiled or not.
"""

import numpy as np
import pytest
from interpreted import assert_equal, interpret, is_compiled

import tapegrad as tg

X = np.array([0.5, -1.25, 2.0])


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpret(monkeypatch)


def total_of_integers(a):
    return a * tg.fori_loop(0, 3, lambda i, s: s + i, 0)


def halved(a):
    last, count = tg.while_loop(lambda s: s[1] < 4, lambda s: (s[0] * 0.5, s[1] + 1), (a, 1))
    return last / count


def stopped_index(i, a):
    with tg.no_grad():
        rate = 0.1 / (i + 1)
    return a * rate


def of_two_states(a):
    return tg.fori_loop(0, 3, lambda i, s: (s[0] + a[0] * s[1], s[1]), (a, 2))[0]


def of_an_inner_loop(a):
    def outer(i, s):
        return s + a * tg.fori_loop(0, 2, lambda j, t: t + i, 0)

    return tg.fori_loop(0, 2, outer, a)


COMPILED = {
    "a number of Python": lambda a: a * 2.0 + 1,
    "a float64": lambda a: a * np.sqrt(2.0),
    "an int64": lambda a: a * np.int64(2) - np.int64(1),
    "on the left": lambda a: np.float64(2.0) - a,
    "a float32": lambda a: a + np.float32(1.0),
    "an element": lambda a: a[0] * np.float64(0.1),
    "a power": lambda a: a ** np.int64(2),
    "a choice": lambda a: tg.where(a > 0.5, a, np.float64(3.0)),
    "a bound": lambda a: tg.maximum(a, np.float64(0.1)),
    "digits": lambda a: tg.sum(a * np.float64(1.0) + np.float64(1e-9)) - 3.0,
    "rows": lambda a: tg.scan(lambda s, r: (s + r, s * np.sqrt(2.0)), tg.zeros_like(a[0]), a)[1],
    "an element at an index": lambda a: tg.fori_loop(0, 3, lambda i, s: s * 0.5 + a[i], a),
}
OTHERS = {
    "a state": total_of_integers,
    "a count": halved,
    "an index": lambda a: tg.fori_loop(0, 3, lambda i, s: s * 0.5 + i, a),
    "what an index gives": lambda a: tg.fori_loop(0, 3, lambda i, s: s - 0.1 / (i + 1) * a, a),
    "the same without gradient": lambda a: tg.fori_loop(
        0, 3, lambda i, s: s - stopped_index(i, a), a
    ),
    "an operand": lambda a: tg.cond(a[0] > 0, lambda n: a * n, lambda n: a - n, 3),
    "one of two states": of_two_states,
    "an inner loop": of_an_inner_loop,
    "a list": lambda a: tg.stack([a[0], np.float64(3.0)]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.int64])
@pytest.mark.parametrize("name", [*COMPILED, *OTHERS])
def test_dtypes(name, dtype):
    function = (COMPILED | OTHERS)[name]
    x = tg.tensor(X.astype(dtype))
    try:
        expected = function(x)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            tg.jit(function)(x)
        return
    jitted = tg.jit(function)
    assert_equal(jitted(x), expected, rtol=1e-6 if dtype is np.float32 else 1e-12)
    how = jitted.inspect(x)
    if dtype is np.float64 or (dtype is np.float32 and name in COMPILED):
        assert not how.startswith("op by op"), how


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64, np.float64, np.int64])
@pytest.mark.parametrize("number", [2, 0.5, 1.5j, np.float64(0.5), np.int64(2)])
def test_numbers_as_arguments(dtype, number):
    def function(a, n):
        return a * n + n

    x = tg.tensor(X.astype(dtype))
    assert_equal(tg.jit(function)(x, number), function(x, number), rtol=1e-6)
    assert_equal(tg.jit(function)(x, number), np.asarray(X.astype(dtype) * number + number), 1e-6)


INTEGERS = np.array([[1, 0, -1], [2, 1, 0], [0, 3, 1]])


@pytest.mark.parametrize(
    "function",
    [
        lambda a: INTEGERS @ a,
        lambda a: a @ INTEGERS[0],
        lambda a: np.einsum("ij,jk->ik", INTEGERS, a),
        lambda a: np.tensordot(INTEGERS, a, 1),
        lambda a: np.linalg.solve(INTEGERS, a),
        lambda a: np.convolve(a[0], INTEGERS[0]),
    ],
)
def test_products_with_integers_are_compiled(function):
    a = np.array([[0.5, 1.5, -0.3], [0.2, 0.9, 1.1], [0.4, -0.6, 0.8]])
    f = tg.jit(lambda a: tg.sum(function(a) ** 2), strict=True)
    np.testing.assert_allclose(f(a), np.sum(function(a) ** 2), rtol=1e-13)


# -- constants of other dtypes ---------------------------------------------------------------------

COUNTS = np.array([[0, 2, 1], [3, 1, 2]])
OF_CONSTANTS = {
    "product": lambda x, c: x * c,
    "quotient": lambda x, c: c / x,
    "power": lambda x, c: abs(x) ** c,
    "comparison": lambda x, c: np.where(x > c, x, c),
    "maximum": lambda x, c: np.maximum(x, c),
    "matrices": lambda x, c: x.T @ c,
    "indices": lambda x, c: x[:, c[0]],
    "joined": lambda x, c: np.concatenate([x, c]),
    "function": lambda x, c: x * np.log1p(c),
    "complex": lambda x, c: abs(1j * x * c + 1.0),
}


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4", "u8", "f2"])
@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_constants_of_other_dtypes(name, dtype):
    if name == "indices" and dtype == "f2":
        pytest.skip("an index is an integer")
    f, c, x = OF_CONSTANTS[name], COUNTS.astype(dtype), np.cos(np.arange(6.0)).reshape(2, 3)
    jitted = tg.jit(lambda x: f(x, c) * 1.0)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), f(x, c), 1e-12)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4"])
@pytest.mark.parametrize("name", sorted(OF_CONSTANTS.keys() - {"indices", "function"}))
def test_arguments_of_other_dtypes(name, dtype):
    f, c, x = OF_CONSTANTS[name], COUNTS.astype(dtype), np.cos(np.arange(6.0)).reshape(2, 3)
    jitted = tg.jit(lambda x, c: f(x, c) * 1.0)
    assert is_compiled(jitted.inspect(x, c))
    for given in (c, (c + 1).astype(dtype)):
        assert_equal(jitted(x, given), f(x, given), 1e-12)
