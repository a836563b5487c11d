"""Random functions, recorded and op by op."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret
from programs import Program

import tapegrad as tg


@pytest.mark.parametrize("first", range(0, 400, 20))
def test_run_by_python(first, monkeypatch):
    interpret(monkeypatch)
    reasons = []
    for seed in range(first, first + 20):
        program = Program(seed)
        jitted = tg.jit(program)
        how = jitted.inspect(*program.args)
        reasons += [how] if how.startswith("op by op") else []
        expected = program(*map(tg.tensor, program.args)).numpy()
        assert_equal(jitted(*program.args), expected[()], rtol=1e-10)
    assert not reasons


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(1000, 1024))
def test_gradients(seed):
    program = Program(seed)
    numbers = (0, 1, 2, 3, 4)
    expected = tg.value_and_grad(program, argnums=numbers)(*program.args)
    found = tg.value_and_grad(tg.jit(program), argnums=numbers)(*program.args)
    assert_equal(found, expected, rtol=1e-9)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(2000, 2006))
def test_second_order(seed):
    program = Program(seed)
    jitted = tg.jit(program)
    direction = np.random.default_rng(seed).normal(size=program.args[0].shape)
    expected = tg.hvp(program)(*program.args, direction)
    assert_equal(tg.hvp(jitted)(*program.args, direction), expected, rtol=1e-8)
    tangents = [np.cos(a) for a in program.args]
    both = [tg.jvp(f, argnums=(0, 1, 2, 3, 4))(*program.args, *tangents) for f in (jitted, program)]
    assert_equal(*both, rtol=1e-9)
