"""Functions that only compiled code calls are parts of their callers' code."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels.llvm.library import LinkedLibrary
from tapegrad.transform.cache.machine_code import jit, uncached


def double(x):
    return 2.0 * x


def checked(x):
    if x < 0.0:
        raise ValueError("x is negative")
    return 2.0 * x


def told(x):
    if x < 0.0:
        raise ValueError("negative", x)
    return 2.0 * x


def library_of(made):
    (compiled,) = made.overloads.values()
    return compiled.library


def test_they_have_no_machine_code():
    made = uncached(double)
    made.compile((numba.float64,))
    assert isinstance(library_of(made), LinkedLibrary)
    assert not library_of(made).is_emitted

    @numba.njit
    def calls(x):
        return made(x) + 1.0

    assert calls(1.5) == 4.0


def test_their_errors_reach_python():
    made = uncached(checked)

    @numba.njit
    def calls(x):
        return made(x)

    assert calls(1.0) == 2.0
    with pytest.raises(ValueError, match="x is negative"):
        calls(-1.0)


def test_one_that_makes_python_objects_has_machine_code():
    """A message with a value in it needs objects that numba finds by the address of code."""
    made = uncached(told)

    @numba.njit
    def calls(x):
        return made(x)

    assert calls(1.0) == 2.0
    assert library_of(made).is_emitted
    with pytest.raises(ValueError, match="negative") as error:
        calls(-1.0)
    assert error.value.args == ("negative", -1.0)


def test_they_may_call_each_other():
    inner = uncached(checked)

    def outer(x):
        return inner(x) + inner(x + 1.0)

    middle = uncached(outer)

    @numba.njit
    def calls(x):
        return middle(x) * inner(x)

    assert calls(2.0) == 40.0
    assert not library_of(inner).is_emitted
    with pytest.raises(ValueError, match="x is negative"):
        calls(-0.5)


def test_a_function_that_calls_itself():
    """The call is one within the code of the function."""

    def factorial(n):
        return 1 if n < 2 else n * made(n - 1)

    made = uncached(factorial)

    @numba.njit
    def calls(n):
        return made(n)

    assert calls(5) == 120
    assert not library_of(made).is_emitted


def test_functions_that_call_each_other_have_machine_code():
    """Calls of a function that is being compiled go through its address."""

    def is_even(n):
        return True if n == 0 else odd(n - 1)

    def is_odd(n):
        return False if n == 0 else even(n - 1)

    even, odd = uncached(is_even), uncached(is_odd)

    @numba.njit
    def calls(n):
        return even(n)

    assert calls(4)
    assert not calls(7)
    assert library_of(even).is_emitted
    assert library_of(odd).is_emitted


@pytest.mark.parametrize("is_known", [False, True])
def test_a_function_that_calls_itself_with_other_types_has_machine_code(is_known):
    """Also if that for the other types is compiled before."""

    def power(x, exponent):
        if exponent is None:
            return made(x, 2)
        return x**exponent

    made = uncached(power)

    @numba.njit
    def known(x):
        return made(x, 3)

    @numba.njit
    def calls(x):
        return made(x, None)

    if is_known:
        assert known(2.0) == 8.0
    assert calls(3.0) == 9.0
    assert known(2.0) == 8.0


def test_they_are_found_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    for expected in (0, 1):
        made = jit(double)
        made.compile((numba.float64,))
        assert sum(made.stats.cache_hits.values()) == expected
        assert isinstance(library_of(made), LinkedLibrary)
        assert not library_of(made).is_emitted
        assert numba.njit(call)(made, 1.5) == 3.0
        np.testing.assert_array_equal(made(np.ones(2)), [2.0, 2.0])


def call(function, x):
    return function(x)


PROGRAM = """
import numpy as np
import tapegrad as tg

@tg.njit
def f(x, y):
    total = 0.0
    for k in range(x.size):
        total += np.exp(x[k]) * np.log(y[k])
    return total

@tg.njit
def g(x, y):
    total = 0.0
    for k in range(x.size):
        total += np.exp(x[k] * y[k])
    return total

{call}
"""


def test_another_program_is_compiled_with_those_on_disk(tmp_path):
    """What the first program compiled is linked into the second one, in another process."""
    path = tmp_path / "program.py"
    calls = {
        "f": "tg.grad(f)(np.ones(3), np.full(3, 2.0))",
        "g": "print(tg.grad(g)(np.ones(3), np.full(3, 2.0)))",
    }
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path / "cache")}
    for call in calls.values():
        path.write_text(PROGRAM.format(call=call))
        command = [sys.executable, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = tg.grad(lambda x: tg.sum(tg.exp(2.0 * x)))(np.ones(3))
    assert done.stdout == f"{expected}\n"
    assert not done.stderr
