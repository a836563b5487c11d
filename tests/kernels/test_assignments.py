"""The single assignment form of generated code is numba's."""

import io
from contextlib import redirect_stdout

import pytest
from numba.core import bytecode, interpreter, ssa

from tapegrad.kernels.llvm.assignments import with_single_assignments


def branches(x, n):
    if n > 2:
        y = x
    elif n > 1:
        y = -x
    else:
        y = 0.0
    return y


def loops(x, n):
    s = t = 0.0
    for i in range(n):
        if i == 3:
            continue
        t = s
        while s < x:
            s += 1.0
            if s > 100.0:
                break
        s, t = t, s
    return s + t


def undefined_on_some_paths(x, n):
    for i in range(n):
        last = x * i
    if n:
        return last
    del x
    return n


def one_name_in_many_places(x, n):
    y = x
    y = y + 1.0
    z = y
    y = y * z
    for i in range(n):
        y = y + z
        for i in range(3):
            y = y - i
            z = y
    return y + z + i


def tuples(x, n):
    a, b = x, n
    while b > 0:
        a, b = (a, b)[0] + 1.0, b - 1
        try:
            a = a / b
        except ZeroDivisionError:
            a = 0.0
    return a


def dumped(make, function):
    found = interpreter.Interpreter(bytecode.FunctionIdentity.from_function(function)).interpret(
        bytecode.ByteCode(bytecode.FunctionIdentity.from_function(function))
    )
    found.blocks = make(found.blocks)
    with redirect_stdout(io.StringIO()) as text:
        found.dump()
    return text.getvalue()


@pytest.mark.parametrize(
    "function",
    [branches, loops, undefined_on_some_paths, one_name_in_many_places, tuples],
    ids=lambda function: function.__name__,
)
def test_form(function):
    found = dumped(with_single_assignments, function)
    assert found == dumped(ssa._run_ssa, function)
    assert ".1" in found
