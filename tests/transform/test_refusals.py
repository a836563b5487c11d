"""What is not understood is refused, with the file, the line and a way out."""

import inspect

import numba
import numpy as np
import pytest
from check import module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])
HEADER = """\
import contextlib
import math

import numba
import numpy as np

import tapegrad as tg


@tg.njit
def f(x, a):
"""
FIRST = HEADER.count("\n")  # the line before the body

# name: (body, line of the body that is shown, words of the message)
REFUSED = {
    "dict": ("d = {1: x}\nreturn d[1]", 1, ["dicts", "arrays"]),
    "nditer": ("s = 0.0\nfor v in np.nditer(a):\n    s += v.item() * x\nreturn s", 2, ["x.flat"]),
    "flat": ("s = a[::2].flat\nreturn s[1] * x", 1, ["'flat'", "C order", "ravel"]),
    "number for an array": ("return np.ptp(x) * x", 1, ["np.ptp(x)", "stop_gradient"]),
    "write to np.where of numbers": (
        "s = np.where(x > 0.0, x, 0.3)\ns[()] = x * x\nreturn s",
        2,
        ["np.where", "s = x"],
    ),
    "constant write to np.where of numbers": (
        "s = np.where(x > 0.0, x, 0.3)\ns[()] = 2.0\nreturn s * x",
        2,
        ["np.where", "s = x"],
    ),
    "set": ("d = {x, 2 * x}\nreturn x", 1, ["sets", "arrays"]),
    "dict comprehension": ("d = {k: x for k in range(3)}\nreturn d[0]", 1, ["dicts", "arrays"]),
    "spectrum": ("w = np.linalg.eigvals(np.outer(a, a))\nreturn w[0] * x", 1, ["eigh"]),
    "spacing": ("return np.spacing(x)", 1, ["np.spacing"]),
    "complex numbers in order": ("z = np.sort(a * 1j)\nreturn z[0].real * x", 1, ["complex"]),
    "other type of the same memory": ("b = a.view(np.int64)\nreturn b[0] * x + a[0]", 1, ["view"]),
    "unknown name": ("return x * undefined_name", 1, ["undefined_name"]),
    "no value": ("y = z * x\nz = y\nreturn y", 1, ["'z'"]),
}


def test_text_made_of_numbers():
    """Plain numba does not understand it either."""
    f = module(HEADER + "    s = '%s' % x\n    return x\n")
    with pytest.raises(tg.TransformError, match=r"numba finds no types.*let every variable"):
        tg.grad(f)(0.5, A)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """Of a function of a number and an array, by both."""
    body, line, words = REFUSED[name]
    text = HEADER + "".join(f"    {part}\n" for part in body.split("\n"))
    f = module(text)
    with pytest.raises(tg.TransformError) as caught:
        tg.grad(f, (0, 1))(0.5, A.copy())
    message = str(caught.value)
    path = f.py_func.__code__.co_filename
    assert f'File "{path}", line {FIRST + line}' in message, message
    assert body.split("\n")[line - 1].strip() in message
    for word in words:
        assert any(part in message for part in word.split("|")), message
    assert len(message) < 1000


@pytest.mark.parametrize(
    "text, word",
    [
        ("def f(*args):\n    return args[0]\n", "args"),
        ("def f(x, **more):\n    return x\n", "args"),
        ("def f(x):\n    yield x\n", "generator"),
    ],
)
def test_refused_signatures(text, word):
    f = module("import tapegrad as tg\n@tg.njit\n" + text)
    with pytest.raises(
        (TypeError, numba.NumbaError)
    ) as caught:  # the call may be numba's to refuse
        tg.grad(f)(0.5)
    if isinstance(caught.value, tg.TransformError):
        assert word in str(caught.value) and "line" in str(caught.value)


def test_a_function_without_source():
    scope = {}
    exec("def f(x):\n    return x * x\n", scope)
    f = tg.njit(scope["f"])
    assert f(3.0) == 9.0
    with pytest.raises(tg.TransformError, match=r"source of f cannot be read.*file"):
        tg.grad(f)(3.0)


def test_a_lambda():
    f = tg.njit(lambda x: x * x)
    assert f(3.0) == 9.0
    assert tg.grad(f)(3.0) == 6.0
    both = [tg.njit(lambda x: x * x), tg.njit(lambda x: x)]
    with pytest.raises(tg.TransformError, match="def"):
        tg.grad(both[0])(3.0)


def test_not_a_function():
    with pytest.raises(TypeError, match="expected a function"):
        tg.njit("float64(float64)")
    with pytest.raises(TypeError, match="expected a function"):
        tg.njit(np.sin)


@tg.njit
def inner(a):
    b = a.copy()
    b.sort()
    return b[0]


@tg.njit
def outer(a):
    return inner(a * 2) * a[1]


@tg.njit
def outer_passive(a, x):
    return inner(a) * x


def test_the_line_is_that_of_the_callee():
    _, first = inspect.getsourcelines(inner.py_func)
    with pytest.raises(tg.TransformError, match=f"line {first + 3}, in inner"):
        tg.grad(outer)(A)


def test_what_carries_no_derivative_is_not_refused():
    """The same callee, of what is not differentiated."""
    assert tg.grad(outer_passive, 1)(A, 2.0) == -0.4
    assert tg.jvp(outer_passive, 1)(A, 2.0, 1.0) == (-0.8, -0.4)


def test_errors_of_types_say_that_they_are_numbas():
    f = module("import tapegrad as tg\n@tg.njit\ndef f(x, s):\n    return x + s\n")
    with pytest.raises(tg.TransformError, match=r"numba finds no types.*let every variable"):
        tg.grad(f)(0.5, "text")


def test_a_callee_that_is_not_compiled():
    callee = "def g(x):\n    return x * x\n"
    caller = "@tg.njit\ndef f(x):\n    return g(x)\n"
    f = module(f"import tapegrad as tg\n{callee}{caller}")
    with pytest.raises(tg.TransformError, match=r"cannot call g, which is not(?s:.*)line 6, in f"):
        tg.grad(f)(0.5)
    assert tg.grad(module(f"import tapegrad as tg\n@tg.njit\n{callee}{caller}"))(0.5) == 1.0


def test_forward_mode_refuses_the_same():
    with pytest.raises(tg.TransformError, match="sort"):
        tg.jvp(outer)(A, A)


def test_a_refusal_does_not_spoil_what_follows():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, a):\n    np.sort(a)\n"
        "    return x * x\n"
    )
    assert tg.grad(f)(3.0, A) == 6.0


@pytest.mark.parametrize("function", [tg.sigmoid, tg.sum, tg.linalg.solve, tg.special.erf])
def test_functions_of_the_package_are_not_compiled_by_themselves(function):
    with pytest.raises(TypeError, match=rf"njit: tg\.[a-z.]*{function.__name__} is a function of"):
        tg.njit(function)


def test_refusals_of_second_derivatives_name_the_function_of_the_user():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x):\n    s = 0.0\n"
        "    for i in range(3):\n        q = np.array([20.0, 70.0]) + i\n"
        "        out = x * x * s + x\n        s += np.sum(np.percentile(out, q))\n"
        "        x[i] = s\n    return s\n"
    )
    x = np.arange(1.0, 6.0)
    assert tg.grad(f)(x.copy()).shape == x.shape
    with pytest.raises(tg.TransformError, match=r"second derivative of\)\n  File .*, in f\n"):
        tg.hvp(f)(x.copy(), x)


@pytest.mark.parametrize("product", ["[] * [x]", "[x] * []", "[x] * [x]"])
def test_products_of_lists(product):
    f = module(f"import tapegrad as tg\n@tg.njit\ndef f(x):\n    y = {product}\n    return x\n")
    with pytest.raises(tg.TransformError, match="numba finds no types"):
        tg.grad(f)(0.3)
