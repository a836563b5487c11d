"""Random functions, recorded and op by op."""

import numpy as np
import pytest
from interpreted import assert_equal, in_float32, interpret, interpret_derivatives
from programs import Program
from writing_programs import WritingProgram, arguments

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


def values(program, args):
    """Return the value and the gradient."""
    return tg.value_and_grad(program, argnums=(0, 1, 2, 3, 4))(*args)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_float32_run_by_python(first, monkeypatch):
    interpret(monkeypatch)
    for seed in range(first, first + 20):
        program = Program(seed)
        program.constant = in_float32(program.constant)
        args = in_float32(program.args)
        expected = program(*map(tg.tensor, args)).numpy()
        assert_equal(tg.jit(program)(*args), expected[()], rtol=1e-4)


def outcome(function, args):
    """Return the results, or the error of an index, and the arguments afterwards."""
    try:
        found = function(*args)
    except IndexError:
        found = None
    return found, args


@pytest.mark.parametrize("first", range(0, 600, 20))
def test_writes_and_loops(first, monkeypatch):
    interpret(monkeypatch)
    recorded = 0
    for seed in range(first, first + 20):
        program = WritingProgram(seed)
        jitted = tg.jit(program.function)
        for call in range(3):
            args = arguments(seed, call)
            found, after = outcome(jitted, [*map(np.copy, args[:3]), *args[3:]])
            given = [*map(np.copy, args[:3]), *args[3:]]
            tensors = [tg.as_tensor(a) if isinstance(a, np.ndarray) else a for a in given]
            expected, _ = outcome(program.function, tensors)
            if expected is None:
                assert found is None, program.text
                continue
            assert_equal((found, after), (expected, given), rtol=1e-10)
        recorded += not jitted.inspect(*args).startswith("op by op")
    assert recorded >= 5


@pytest.mark.parametrize("first", range(4000, 4040, 4))
def test_gradients_run_by_python(first, monkeypatch):
    interpret_derivatives(monkeypatch)
    for seed in range(first, first + 4):
        program = Program(seed)
        jitted = tg.jit(program)
        found, expected = values(jitted, program.args), values(program, program.args)
        assert_equal(found, expected, rtol=1e-9)
        assert not jitted.inspect(*program.args).startswith("op by op")


def elements_twice(x):
    a = x[np.array([1, 0, -1])]
    return tg.sum(tg.tanh(tg.relu(a))) + tg.sum(tg.tanh(a[np.array([1, -2])]))


def chosen_twice(x):
    a = tg.where(x > 0.1, tg.logaddexp(x, x[::-1]), tg.relu(x))
    return tg.sum(a * tg.relu(a[:2].sum() - x)) + tg.sum(tg.logaddexp(a, tg.relu(x)))


@pytest.mark.parametrize("function", [elements_twice, chosen_twice])
def test_values_that_are_read_twice(function, monkeypatch):
    interpret_derivatives(monkeypatch)
    x = np.array([0.3, -0.7, 1.1, -0.2])
    assert_equal(tg.grad(tg.jit(function))(x), tg.grad(function)(x))


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(3000, 3012))
def test_gradients_of_writes_and_loops(seed):
    program = WritingProgram(seed)
    args = arguments(seed, 0)

    def total(function):
        return lambda *args: sum(tg.sum(tg.sin(part)) for part in function(*args))

    try:
        expected = tg.value_and_grad(total(program.function), argnums=(0, 1, 2))(*args)
    except RuntimeError:  # op by op, a value that the gradient needs was overwritten
        pytest.skip("it has no gradient op by op")
    found = tg.value_and_grad(tg.jit(total(program.function)), argnums=(0, 1, 2))(*args)
    assert_equal(found, expected, rtol=1e-9)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(1000, 1024))
def test_gradients(seed):
    program = Program(seed)
    assert_equal(values(tg.jit(program), program.args), values(program, program.args), rtol=1e-9)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(2000, 2012))
def test_gradients_of_float32(seed):
    program = Program(seed)
    program.constant = in_float32(program.constant)
    args = in_float32(program.args)
    found, expected = values(tg.jit(program), args), values(program, args)
    assert_equal(found, expected, rtol=1e-3, atol=1e-4)
    exact = values(program, [arg.astype(np.float64) for arg in args])
    assert all(one.dtype == np.float32 for one in found[1])
    for one, other in zip(found[1], exact[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


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
