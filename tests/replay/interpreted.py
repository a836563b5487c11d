"""Recorded functions whose text is run by Python: the same statements, without compiling them."""

import types

import numpy as np

import tapegrad as tg
from tapegrad.ops.table.op import TABLE
from tapegrad.replay import compiled as compiled_module
from tests.transform.random_programs.interpret import Interpreter, types_only


class Formulas:
    """The formulas of ops, which Python runs, by name."""

    def __getattr__(self, name):
        return TABLE[name].scalar_formula


class Interpreted:
    """Stands for a compiled function."""

    def __init__(self, compiled):
        self.compiled = compiled
        written = compiled.py_func
        scope = written.__globals__ | {"scalar_ops": Formulas()}
        self.program = types.FunctionType(written.__code__, scope)

    def __call__(self, *args):
        with np.errstate(all="ignore"):
            return self.program(*args)


def interpret(monkeypatch):
    """Let Python run what is recorded from now on."""
    compiled = compiled_module.compiled_text
    monkeypatch.setattr(compiled_module, "compiled_text", lambda text: Interpreted(compiled(text)))
    monkeypatch.setattr(compiled_module, "value_of", lambda function: function)


def interpret_derivatives(monkeypatch):
    """The same, and let Python run the gradients that are generated of it."""
    interpret(monkeypatch)
    made = compiled_module.gradient

    def gradient(function, *how):
        derivative = Interpreter().function(made(function.compiled, *how))

        def run(*args):
            with types_only(small_blocks=False):
                return derivative(*args)

        return run

    monkeypatch.setattr(compiled_module, "gradient", gradient)


def is_compiled(shown):
    """Whether all of a recorded function is compiled, given what `inspect` returns."""
    return not shown.startswith("op by op") and "in Python" not in shown


def arrays_of(value):
    """Return the results of a function as a list of arrays."""
    if isinstance(value, dict):
        return [array for part in value.values() for array in arrays_of(part)]
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in arrays_of(part)]
    return [np.asarray(value.detach() if isinstance(value, tg.Tensor) else value)]


def in_float32(value):
    """Return arguments with arrays of floats as float32."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(in_float32, value))
    is_float = isinstance(value, (np.ndarray, np.generic)) and value.dtype == np.float64
    return value.astype(np.float32) if is_float else value


def assert_equal(found, expected, rtol=1e-12, atol=1e-13):
    """Compare results: structure, shapes, dtypes, and values."""
    pairs = list(zip(arrays_of(found), arrays_of(expected), strict=True))
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
    assert pairs
