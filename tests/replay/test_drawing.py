"""Drawings of recorded programs."""

import re
import sys

import numpy as np
import pytest
from interpreted import interpret

import tapegrad as tg

X = np.ones((10, 8))


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpret(monkeypatch)


def edges(source):
    """The edges of a drawing, by the labels of their ends."""
    labels = dict(re.findall(r'(\w+) \[label="?([\w ]+)', source))
    pairs = re.findall(r"(\w+) -> (\w+)", source)
    return {(labels[start], labels[end]) for start, end in pairs}


def test_values_and_loops():
    @tg.jit
    def f(x, w):
        return tg.sum(tg.tanh(x @ w))

    source = f.draw(X, np.ones((8, 8))).source
    assert edges(source) == {
        ("argument 0", "matmul"),
        ("argument 1", "matmul"),
        ("matmul", "tanh"),
        ("tanh", "sum"),
        ("sum", "result 0"),
    }
    assert source.count("subgraph") == source.count("label=loop ") == 1
    assert "float64[10,8]" in source


def test_what_is_inside_of_loops_and_derivatives():
    @tg.jit
    def f(x):
        y = tg.fori_loop(0, 3, lambda i, y: y * 0.5, x)
        return y + tg.grad(lambda x: tg.max(tg.sin(x)))(x)

    source = f.draw(np.ones(4)).source
    assert 'label="in for_loop"' in source
    assert 'label="in value_and_grad"' in source
    assert ("value 0", "sin") in edges(source)


def test_what_runs_in_python():
    @tg.jit
    def f(x):
        y = tg.sum(tg.sin(x) * tg.exp(x) + tg.cos(x) * x)
        return y + tg.real(tg.sum(tg.arctan(1j * x * 0.5)))

    source = f.draw(np.ones(4)).source
    assert "label=Python" in source
    assert "label=compiled" in source
    assert "complex128[4]" in source


def test_constants_are_drawn():
    table = tg.tensor(np.arange(4.0))
    assert ("constant", "multiply") in edges(tg.jit(lambda x: x * table).draw(np.ones(4)).source)


def test_there_is_nothing_to_draw():
    @tg.jit
    def f(x):
        x[0] = 1.0
        return x * 2.0

    with pytest.raises(ValueError, match="op by op"):
        f.draw(np.ones(3))


def test_graphviz_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match=r"tapegrad\[draw\]"):
        tg.jit(lambda x: x * 2.0).draw(np.ones(3))
