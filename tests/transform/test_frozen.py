"""A derivative belongs to what a function was compiled with: changed globals, callees, arrays."""

import pathlib

import numba
import numpy as np
import pytest
from check import module

import tapegrad as tg

SCALAR = """
import numba
import tapegrad as tg

g = 2.0

@{jit}
def f(x):
    return g * x * x
"""

HELPED = """
import numba
import tapegrad as tg

g = 2.0

@{jit}
def helper(x):
    return g * x

@{jit}
def f(x):
    return helper(x) * x
"""

TABLE = """
import numba
import numpy as np
import tapegrad as tg

table = np.array([2.0, 5.0])

@{jit}
def f(x):
    return table[0] * x * x
"""


def change(scope, what):
    if what == "array":
        scope["table"][0] = 3.0
    else:
        scope["g"] = 3.0


@pytest.mark.parametrize("jit", ["tg.njit", "numba.njit"])
@pytest.mark.parametrize(
    ("text", "what", "name"),
    [(SCALAR, "scalar", "g"), (HELPED, "scalar", "g"), (TABLE, "array", "table")],
)
def test_change_after_compilation_is_refused(jit, text, what, name):
    f = module(text.format(jit=jit))
    scope = f.py_func.__globals__
    assert f(2.0) == 8.0
    change(scope, what)
    with pytest.raises(tg.TransformError, match=f"'{name}', which .* uses") as caught:
        tg.value_and_grad(f)(2.0)
    assert f(2.0) == 8.0
    # what the message advises
    advised = str(caught.value).partition("or call ")[2].partition(" after")[0]
    assert "f.recompile()" in advised
    for call in advised.split(", then "):
        scope[call.removesuffix(".recompile()")].recompile()
    assert f(2.0) == 12.0
    assert tg.value_and_grad(f)(2.0) == (12.0, 12.0)


@pytest.mark.parametrize("jit", ["tg.njit", "numba.njit"])
def test_derivative_made_first_follows_the_function(jit):
    f = module(SCALAR.format(jit=jit))
    gradient = tg.grad(f)
    assert gradient(2.0) == 8.0
    f.py_func.__globals__["g"] = 3.0
    assert f(2.0) == 12.0
    assert gradient(2.0) == 12.0
    assert tg.value_and_grad(f)(2.0) == (12.0, 12.0)


def test_derivatives_agree_with_each_other():
    f = module(SCALAR.format(jit="tg.njit"))
    gradient = tg.grad(f)
    assert gradient(2.0) == 8.0
    f.py_func.__globals__["g"] = 3.0
    assert tg.value_and_grad(f)(2.0) == (12.0, 12.0)
    assert gradient(2.0) == 12.0


def test_made_before_and_called_after():
    f = module(SCALAR.format(jit="tg.njit"))
    gradient = tg.grad(f)
    assert (f(2.0), gradient(2.0)) == (8.0, 8.0)
    f.py_func.__globals__["g"] = 3.0
    assert (f(2.0), gradient(2.0)) == (8.0, 8.0)  # as numba has it: both keep the old value
    f.recompile()
    assert (f(2.0), gradient(2.0)) == (12.0, 12.0)


@pytest.mark.parametrize("jit", ["tg.njit", "numba.njit"])
def test_callee_defined_anew(jit):
    f = module(HELPED.format(jit=jit))
    assert f(2.0) == 8.0
    f.py_func.__globals__["helper"] = module(
        HELPED.format(jit=jit).replace("g * x", "g * x * x"), "helper"
    )
    with pytest.raises(tg.TransformError, match="'helper', which f uses"):
        tg.grad(f)(2.0)


def test_callee_compiled_before():
    """What a callee was compiled with counts, not what the names mean when its caller is."""
    f = module(HELPED.format(jit="numba.njit"))
    scope = f.py_func.__globals__
    assert scope["helper"](2.0) == 4.0
    scope["g"] = 3.0
    with pytest.raises(tg.TransformError, match=r"'g', which helper uses.*helper\.recompile\(\)"):
        tg.grad(f)(2.0)


def test_closed_over_array():
    text = """
import numpy as np
import tapegrad as tg

def make(table):
    @tg.njit
    def f(x):
        return table[0] * x * x
    return f
"""
    table = np.array([2.0, 5.0])
    f = module(text, "make")(table)
    assert f(2.0) == 8.0
    table[0] = 3.0
    with pytest.raises(tg.TransformError, match=r"'table', which make\.<locals>\.f uses"):
        tg.grad(f)(2.0)


def test_large_array_is_read_in_each_call():
    """numba compiles in the address of an array of a million bytes, so does the derivative."""
    text = TABLE.replace("np.array([2.0, 5.0])", "np.full(200_000, 2.0)").format(jit="tg.njit")
    f = module(text)
    assert f(2.0) == 8.0
    change(f.py_func.__globals__, "array")
    assert f(2.0) == 12.0
    assert tg.value_and_grad(f)(2.0) == (12.0, 12.0)


def test_other_types_do_not_matter():
    f = module(SCALAR.format(jit="tg.njit"))
    assert f(2) == 8.0
    f.py_func.__globals__["g"] = 3.0
    assert f(2.0) == 12.0
    assert tg.value_and_grad(f)(2.0) == (12.0, 12.0)


def test_file_edited_while_the_process_runs():
    f = module(SCALAR.format(jit="tg.njit"))
    path = pathlib.Path(f.py_func.__code__.co_filename)
    path.write_text(SCALAR.format(jit="tg.njit").replace("x * x", "x * x * x"))
    with pytest.raises(tg.TransformError, match="was changed after the function was defined"):
        tg.grad(f)(2.0)


def test_file_edited_so_that_functions_stand_at_other_lines():
    text = SCALAR.format(jit="tg.njit")
    f = module(text)
    pathlib.Path(f.py_func.__code__.co_filename).write_text("\n\n" + text)
    with pytest.raises(tg.TransformError, match="was changed after the function was defined"):
        tg.grad(f)(2.0)


def test_function_compiled_before_the_package_was_there():
    """Then what numba's intermediate code holds is compared."""
    from tapegrad.transform import frozen

    f = module(SCALAR.format(jit="numba.njit"))
    assert f(2.0) == 8.0
    del frozen._compiled[f]
    assert tg.grad(f)(2.0) == 8.0
    f.py_func.__globals__["g"] = 3.0
    with pytest.raises(tg.TransformError, match="'g', which f uses"):
        tg.value_and_grad(f)(2.0)
    assert isinstance(f, numba.core.registry.CPUDispatcher)
