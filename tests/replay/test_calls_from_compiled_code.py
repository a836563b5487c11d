"""Jitted functions that compiled functions call: in Python, with their derivatives."""

import subprocess
import sys
import textwrap

import numba
import numpy as np
import pytest

import tapegrad as tg

M = np.random.default_rng(0).normal(size=(5, 5))
X = np.linspace(0.1, 1.0, 5)


@tg.jit
def energy(z):
    return tg.sum(tg.sin(z) * z)


@tg.jit
def step(z, a):
    return tg.tanh(M @ z) * a


@tg.njit
def in_a_loop(v):
    total = 0.0
    for k in range(3):
        total += energy(v * k)
    return total


@tg.njit
def steps(v, a):
    state = v.copy()
    for _ in range(3):
        state = state + 0.1 * step(state, a)
    return np.sum(state * state)


def in_a_loop_of_tensors(v):
    return sum(tg.sum(tg.sin(v * k) * v * k) for k in range(3))


def steps_of_tensors(v, a):
    for _ in range(3):
        v = v + 0.1 * tg.tanh(M @ v) * a
    return tg.sum(v * v)


@pytest.fixture
def _known():
    step(X, 1.0)


def test_values_and_gradients():
    assert in_a_loop(X) == pytest.approx(float(in_a_loop_of_tensors(X)), rel=1e-14)
    np.testing.assert_allclose(tg.grad(in_a_loop)(X), tg.grad(in_a_loop_of_tensors)(X), 1e-13)


@pytest.mark.usefixtures("_known")
@pytest.mark.compiled
def test_two_arguments():
    found, expected = (tg.value_and_grad(f, (0, 1))(X, 2.0) for f in (steps, steps_of_tensors))
    assert found[0] == pytest.approx(float(expected[0]), rel=1e-14)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.usefixtures("_known")
@pytest.mark.compiled
def test_other_derivatives():
    np.testing.assert_allclose(tg.hvp(steps)(X, 2.0, X), tg.hvp(steps_of_tensors)(X, 2.0, X), 1e-12)
    found, expected = (tg.jvp(f)(X, 2.0, X) for f in (steps, steps_of_tensors))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.usefixtures("_known")
def test_functions_of_numba_call_them():
    @numba.njit
    def doubled(v):
        return 2.0 * step(v, 3.0)

    np.testing.assert_allclose(doubled(X), 2.0 * step(X, 3.0), rtol=1e-15)


@pytest.mark.compiled
def test_static_arguments():
    @tg.jit(static_argnames="kind")
    def chosen(z, kind):
        return tg.sum(z**3) if kind == "cube" else tg.sum(z)

    @tg.njit
    def both(v):
        return chosen(v, "cube") + chosen(v, "other")

    np.testing.assert_allclose(tg.grad(both)(X), 3 * X**2 + 1.0)


@pytest.mark.compiled
def test_what_has_no_result_that_is_known():
    """Example arrays do not fit to `M`; after a call, the result is known."""

    @tg.jit
    def fitting(z):
        return M @ z

    @tg.njit
    def called(v):
        return np.sum(fitting(v))

    with pytest.raises(tg.transform.errors.TransformError, match="call it with such arrays before"):
        tg.grad(called)(X)
    fitting(X)
    np.testing.assert_allclose(tg.grad(called)(X), M.sum(0), rtol=1e-14)


@pytest.mark.compiled
def test_several_results_are_refused():
    @tg.jit
    def two(z):
        return z, z * 2.0

    @tg.njit
    def called(v):
        return np.sum(two(v)[0])

    with pytest.raises(tg.transform.errors.TransformError, match="several results"):
        tg.grad(called)(X)


@pytest.mark.compiled
def test_writes_are_refused():
    """What is written to is a copy."""

    @tg.jit
    def writing(z):
        z[0] = 2.0
        return tg.sum(z)

    @tg.njit
    def called(v):
        return writing(v)

    with pytest.raises(tg.transform.errors.TransformError, match="writes to an argument"):
        tg.grad(called)(X)


def test_code_on_disk_of_another_process(tmp_path):
    """It would call a function of that process."""
    (tmp_path / "cached.py").write_text(
        textwrap.dedent("""
        import numba, numpy as np, tapegrad as tg

        @tg.jit
        def twice(z):
            return 2.0 * z

        @numba.njit(cache=True)
        def called(v):
            return twice(v)

        print(called(np.ones(2)))
        """)
    )
    runs = [
        subprocess.run(
            [sys.executable, str(tmp_path / "cached.py")],
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    ]
    assert runs[0].stdout == "[2. 2.]\n"
    assert runs[1].stdout == "[2. 2.]\n" or "leave out cache=True" in runs[1].stderr
