"""What is made for functions is deleted with them."""

import gc
import linecache
import sys
import weakref

import numpy as np
import pytest
from numba import float64

import tapegrad as tg
from tapegrad.replay import compiled
from tapegrad.transform import derivatives


def closure(factor):
    def q(x):
        return factor * x * x

    return tg.njit(q)


def known():
    """Return how many modules and texts the process knows."""
    gc.collect()
    return len(sys.modules), len(linecache.cache)


def generated(function):
    """Generate the module of the gradient, without compiling it."""
    derivatives.pullback(function, (0,), 0, "gradient").implementation((float64,))


USES = {
    "grad": lambda f: tg.grad(f)(2.0),
    "jvp": lambda f: tg.jvp(f)(2.0, 1.0),
    "grad of grad": lambda f: tg.grad(tg.grad(f))(2.0),
    "hvp": lambda f: tg.hvp(f)(2.0, 1.0),
    "vmap": lambda f: tg.vmap(f)(np.ones(3)),
    "vmap of grad": lambda f: tg.vmap(tg.grad(f))(np.ones(3)),
    "tensors": lambda f: f(tg.tensor(2.0, requires_grad=True)).backward(),
}


@pytest.mark.parametrize("use", USES)
def test_used_functions_are_deleted(use):
    function = closure(0.5)
    USES[use](function)  # imports what it needs
    del function
    before = known()
    dead = []
    for factor in (1.5, 2.5):
        function = closure(factor)
        USES[use](function)
        dead.append(weakref.ref(function))
        del function
    assert known() == before
    assert [found() for found in dead] == [None, None]


def test_many_closures():
    generated(closure(0.5))
    modules, texts = known()
    for number in range(60):
        generated(closure(number + 0.25))
    # what other tests left may be found meanwhile, once
    assert known()[0] < modules + 5
    assert known()[1] < texts + 5


def test_functions_that_are_used_stay():
    """With their modules, whose text tracebacks show."""
    function = closure(7.5)
    gradient = tg.grad(function)
    assert gradient(2.0) == 30.0
    made = gradient.implementation((float64,)).py_func
    gc.collect()
    assert made.__module__ in sys.modules
    assert linecache.getline(made.__code__.co_filename, made.__code__.co_firstlineno)
    assert "def " in gradient.source((float64,))
    assert tg.grad(closure(7.5))(2.0) == 30.0


def test_many_recordings():
    """Equal texts have one function; the last of those that nobody uses are kept."""
    texts = [f"def program(x):\n    return x * {k}.0\n" for k in range(1000)]
    used = compiled.compiled_text(texts[0])
    before = known()
    for text in texts:
        compiled.compiled_text(text)
    assert compiled.compiled_text(texts[0]) is used
    assert compiled.compiled_text(texts[-1]) is compiled.compiled_text(texts[-1])
    gc.collect()
    assert len(compiled._functions) <= len(compiled._last) + 60 <= compiled._MOST + 60
    assert known()[1] - before[1] <= compiled._MOST


def test_recorded_functions_are_deleted(monkeypatch):
    monkeypatch.setattr(compiled, "_MOST", 1)

    def recorded(factor):
        return tg.jit(lambda x: tg.sum(tg.sin(x)) * factor)

    x = np.ones(3)
    for factor in (0.5, 1.5):
        tg.grad(recorded(factor))(x)
    before, functions = known(), len(compiled._functions)
    for factor in (2.5, 3.5, 4.5):
        tg.grad(recorded(factor))(x)
    gc.collect()
    assert len(compiled._functions) <= functions
    assert known() == before
