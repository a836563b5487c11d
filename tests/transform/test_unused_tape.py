"""Tapes that hold no values, and those that do."""

import ast

import numpy as np
import pytest
from optimized import after_pass

import tapegrad as tg
from tapegrad.transform.optimize.unused_tape import drop_unused_tape

pytestmark = pytest.mark.texts

TEXT = """
def f(x, n):
    tape = runtime.take_tape()
    top = 0
    s = 0.0
    for k in range(3):
        needed = top + n
        if needed > tape.size:
            tape = runtime.grown(tape, needed)
        s += x[k]
        top = needed
    runtime.give_tape(tape)
    return s
"""


def after(text):
    """The text after the pass."""
    return after_pass(drop_unused_tape, text)[0]


def test_an_empty_tape():
    found = after(TEXT)
    assert "tape" not in found
    assert "s += x[k]" in found
    assert "top = needed" in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s += x[k]", "tape[top] = x[k]"),
        ("s += x[k]", "s += g(x, tape)"),
        ("s += x[k]", "r = runtime.row(tape, top, n)"),
        ("tape = runtime.take_tape()", "tape = runtime.take_owned_tape()"),
        ("return s", "return (s, tape)"),
    ],
)
def test_tapes_that_are_read(old, new):
    text = TEXT.replace(old, new)
    assert after(text) == ast.unparse(ast.parse(text))


def test_a_block_that_becomes_empty():
    text = TEXT.replace("        needed = top + n\n", "").replace("        s += x[k]\n", "")
    found = after(text.replace("        top = needed\n", "").replace("needed", "n"))
    assert "for k in range(3):\n        pass" in found


@tg.jit
def log_sum_exp(x):
    top = tg.max(x)
    return tg.log(tg.sum(tg.exp(x - top))) + top


@pytest.mark.compiled
def test_a_program():
    x = np.linspace(-1.0, 1.0, 1000)
    value, gradient = tg.value_and_grad(log_sum_exp)(x)
    assert value == pytest.approx(np.log(np.sum(np.exp(x))), rel=1e-14)
    np.testing.assert_allclose(gradient, np.exp(x - value), rtol=1e-12)
