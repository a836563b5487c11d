"""Arguments of a wrong kind, and functions that numba lacks: the text names them and a way out."""

import math

import numpy as np
import pytest
from check import check

import tapegrad as tg


def size(v):
    return v.size * 1.0


def element(v):
    return v[0] * 2.0


def length(v):
    s = 0.0
    for k in range(len(v)):
        s += v[k]
    return s


def items(v):
    s = 0.0
    for x in v:
        s += x * x
    return s


def method(v, n):
    return v.sum() * n


def product(a, v):
    return np.sum(a @ v)


def of_an_expression(n, v):
    return (v * v).sum() * n


# the function, arguments with a number, and what is said of it
NUMBERS = {
    "attribute": (size, (2.0,), r"argument 0 \(v\) of size is used as an array, v\.size, and got"),
    "element": (element, (2.0,), r"argument 0 \(v\) of element is used as an array, v\[0\]"),
    "length": (length, (2.0,), r"argument 0 \(v\) of length is used as an array, len\(v\)"),
    "items": (items, (2.0,), r"argument 0 \(v\) of items is used as an array, v, and got"),
    "method": (method, (2.0, 1.0), r"argument 0 \(v\) of method is used as an array, v\.sum"),
    "right": (product, (np.eye(2), 1.0), r"argument 1 \(v\) of product is .* array, a @ v"),
    "left": (product, (2.0, np.ones(2)), r"argument 0 \(a\) of product is .* array, a @ v"),
    "expression": (
        of_an_expression,
        (1.0, 2.0),
        r"takes \.sum of a number, .* as argument 0 \(n\), 1 \(v\): pass an array",
    ),
}


@pytest.mark.parametrize("transform", [tg.grad, lambda f: tg.jvp(f)], ids=["grad", "jvp"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_for_arrays(name, transform):
    function, args, text = NUMBERS[name]
    given = args if transform is tg.grad else (*args, args[0])
    with pytest.raises(tg.TransformError, match=text):
        transform(tg.njit(function))(*given)


def test_a_call_by_types_that_numba_does_not_take():
    def limited(x):
        y = 2.0 * x
        return np.clip(y, 0.8, 1.1)

    text = r"does not compile clip\(float64, .*, which limited calls; pass(?s:.*)np\.clip\(y, 0\.8"
    with pytest.raises(tg.TransformError, match=text):
        tg.grad(tg.njit(limited))(1.0)


@pytest.mark.parametrize("value", [2.0, 3, 1j, np.float32(1.0)])
def test_every_number(value):
    with pytest.raises(tg.TransformError, match=r"and got a number of type .*; pass an array"):
        tg.grad(tg.njit(size))(value)


@pytest.mark.parametrize("function", [size, element, length, items, lambda v: np.sum(v * v)])
def test_lists(function):
    text = r"argument 0 \(v\) of .* is a Python list.*: pass np\.array\(v\)"
    with pytest.raises(tg.TransformError, match=text):
        tg.grad(tg.njit(function))([1.0, 2.0])


@pytest.mark.parametrize("value", [{"a": 1.0}, object(), np.longdouble(1.0)], ids=type)
def test_what_numba_has_no_type_for(value):
    if np.longdouble is np.float64:
        pytest.skip("long double is double here")
    with pytest.raises(tg.TransformError, match=r"argument 0 \(v\) of element is of a type that"):
        tg.grad(tg.njit(element))(value)


DTYPES = {
    ">f8": "convert by x.astype('float64')",
    ">f4": "convert by x.astype('float32')",
    ">c16": "convert by x.astype('complex128')",
    ">i4": "convert by x.astype('int32')",
    "float16": "convert by x.astype('float32')",
    "longdouble": "convert by x.astype('float64')",
}
CALLS = {
    "it": lambda f, x: f(x),
    "grad": lambda f, x: tg.grad(f)(x),
    "jvp": lambda f, x: tg.jvp(f)(x, x),
    "hessian": lambda f, x: tg.hessian(f)(x),
    "vmap": lambda f, x: tg.vmap(f)(x[None]),
    "a tensor": lambda f, x: f(tg.tensor(x)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, call):
    if np.dtype(dtype) == np.float64:
        pytest.skip("it is a double here")
    text = rf"^items.*: argument 0 has dtype {np.dtype(dtype)}, which compiled functions do not"
    with pytest.raises(TypeError, match=text) as caught:
        CALLS[call](tg.njit(items), np.ones(2, dtype))
    assert DTYPES[dtype] in str(caught.value)


@tg.njit
def fmod(x, y):
    return math.fmod(x, y)


@tg.njit
def modf(x, y):
    return math.modf(x)[0] * y


@tg.njit
def remainder(x, y):
    return math.remainder(x, y)


@tg.njit
def cbrt(x, y):
    return math.cbrt(x) * y


@tg.njit
def dist(x, y):
    return math.dist((x, y), (0.0, 1.0))


@tg.njit
def parts(x, y):
    return np.modf(x)[0] * y


@tg.njit
def unknown(x, y):
    return math.ulp(x) * y


UNKNOWN = {
    fmod: r"math\.fmod, which fmod uses; write np\.fmod\(x, y\)",
    modf: r"math\.modf, which modf uses; write np\.trunc\(x\) and x - np\.trunc\(x\)",
    remainder: r"math\.remainder, which remainder uses; write x - y \* np\.round\(x / y\)",
    cbrt: r"math\.cbrt, which cbrt uses; write np\.cbrt\(x\)",
    dist: r"math\.dist, which dist uses; write np\.sqrt\(np\.sum\(\(p - q\) \*\* 2\)\)",
    parts: r"np\.modf, which parts uses; write np\.trunc\(x\) and",
    unknown: r"math\.ulp, which unknown uses; write what it does",
}


@pytest.mark.parametrize("function", UNKNOWN, ids=lambda f: f.py_func.__name__)
def test_functions_that_numba_lacks(function):
    with pytest.raises(tg.TransformError, match=f"numba does not compile {UNKNOWN[function]}"):
        tg.grad(function)(1.3, 0.7)


@tg.njit
def ways_out(x, y):
    p, q = np.array([x, y]), np.array([0.0, 1.0])
    whole = x - y * np.round(x / y)
    part = x - np.trunc(x)
    return np.fmod(x, y) + 2.0 * whole + 3.0 * part + np.cbrt(x) + np.sqrt(np.sum((p - q) ** 2))


def test_the_ways_out():
    x, y = 1.3, 0.4
    expected = math.fmod(x, y) + 2.0 * math.remainder(x, y) + 3.0 * math.modf(x)[0]
    expected += math.cbrt(x) + math.dist((x, y), (0.0, 1.0))
    assert ways_out(x, y) == pytest.approx(expected, rel=1e-14)
    check(ways_out, x, y)
