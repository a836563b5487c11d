"""Transforms of recorded functions: for arrays they are recorded, and compiled, as a whole."""

import pickle
import threading
import warnings

import numpy as np
import pytest
from interpreted import assert_equal, interpret

import tapegrad as tg

V = np.array([0.3, -1.2, 0.7])
W = np.array([1.5, 0.2, -0.4])
DIRECTION = np.cos(V)


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("compiled") is None:
        interpret(monkeypatch)


def vector(x, w):
    return tg.sin(x) * tg.sum(x * w)


def number(x, w):
    return tg.sum(tg.exp(x) * w) ** 2


def with_auxiliary(x, w):
    return number(x, w), {"vector": vector(x, w)}


TRANSFORMS = {
    "jacobian": (lambda f: tg.jacobian(f, (0, 1)), vector, (V, W)),
    "jacfwd": (tg.jacfwd, vector, (V, W)),
    "jacrev": (tg.jacrev, vector, (V, W)),
    "hessian": (tg.hessian, number, (V, W)),
    "hvp": (tg.hvp, number, (V, W, DIRECTION)),
    "jvp": (tg.jvp, vector, (V, W, DIRECTION)),
    "jvp of two": (lambda f: tg.jvp(f, (0, 1)), number, (V, W, DIRECTION, W)),
    "gradient and more": (lambda f: tg.grad(f, has_aux=True), with_auxiliary, (V, W)),
    "value, gradient and more": (
        lambda f: tg.value_and_grad(f, (0, 1), has_aux=True),
        with_auxiliary,
        (V, W),
    ),
    "gradient of a gradient": (lambda f: tg.jacobian(tg.grad(f)), number, (V, W)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform(name):
    transform, function, args = TRANSFORMS[name]
    count = []

    def counted(*given):
        count.append(1)
        return function(*given)

    transformed, plain = transform(tg.jit(counted)), transform(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no loop over columns
        for scale in (1.0, 0.5):
            scaled = [a * scale for a in args]
            assert_equal(transformed(*scaled), plain(*scaled), rtol=1e-12)
    assert len(count) == 1


def test_equal_transforms_share_recordings():
    count = []

    def counted(x):
        count.append(1)
        return tg.sum(x**3)

    jitted = tg.jit(counted)
    for _ in range(3):
        assert_equal(tg.hessian(jitted)(V), np.diag(6.0 * V), rtol=1e-12)
    assert len(count) == 1
    jitted.clear_cache()
    tg.hessian(jitted)(V)
    assert len(count) == 2


def test_another_thread_that_does_not_record():
    """Whether a call is compiled is about its own thread."""
    waits, goes_on = threading.Event(), threading.Event()

    def without():
        with tg.no_grad():
            waits.set()
            goes_on.wait()

    thread = threading.Thread(target=without)
    thread.start()
    waits.wait()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no loop over columns
            assert_equal(tg.jacobian(tg.jit(lambda x: x**2))(V), np.diag(2.0 * V), rtol=1e-12)
    finally:
        goes_on.set()
        thread.join()


def test_static_arguments():
    jitted = tg.jit(lambda x, n, how: x**n if how == "power" else x, static_argnums=1)
    for n in (2, 3):
        assert_equal(tg.jacobian(jitted)(V, n, "power"), np.diag(n * V ** (n - 1)), rtol=1e-12)
    assert_equal(tg.jacobian(jitted)(V, 3, how="none"), np.eye(3))
    assert_equal(tg.jvp(jitted)(V, 2, "power", DIRECTION)[1], 2 * V * DIRECTION, rtol=1e-12)


@pytest.mark.compiled
def test_tensors_are_differentiated_further():
    hessian = tg.hessian(tg.jit(lambda x: tg.sum(x**3)))
    x = tg.tensor(V, requires_grad=True)
    (found,) = tg.autograd.grad(tg.sum(hessian(x)), x)
    assert_equal(found, np.full(3, 6.0))
    assert_equal(tg.grad(lambda x: tg.sum(hessian(x)))(V), np.full(3, 6.0))
    assert_equal(tg.vmap(hessian)(np.stack([V, W])), np.stack([np.diag(6 * V), np.diag(6 * W)]))


def test_values_that_decide_are_refused():
    jitted = tg.jit(lambda x: x if x[0] > 0 else -x)
    with pytest.raises(tg.RecordingError):
        tg.jacobian(jitted)(V)


def test_errors_are_those_of_the_transform():
    jitted = tg.jit(vector)
    with pytest.raises(ValueError, match="out of range"):
        tg.jacobian(jitted, 5)(V, W)
    with pytest.raises(ValueError, match="scalar"):
        tg.hessian(jitted)(V, W)


def test_what_runs_is_shown():
    of_matrix, of_gradient = tg.jacobian(tg.jit(vector)), tg.jit(tg.value_and_grad(number))
    assert "tg.jacobian(" in of_matrix.inspect(V, W)
    assert "def program" in of_gradient.inspect(V, W)
    of_matrix(V, W)
    assert of_matrix.cache_info().currsize == 1
    of_matrix.clear_cache()
    assert of_matrix.cache_info().currsize == 0
    with pytest.raises(AttributeError, match="no attribute 'inspect'"):
        tg.jacobian(vector).inspect(V, W)
    assert not hasattr(tg.grad(number), "another")


def test_pickling():
    jitted = tg.jit(number)
    copy = pickle.loads(pickle.dumps(tg.hessian(jitted)))
    assert_equal(copy(V, W), tg.hessian(number)(V, W), rtol=1e-12)


def test_complex_numbers_of_single_precision_run_op_by_op():
    z = (V + 1j * W).astype(np.complex64)
    jitted = tg.jit(lambda z, factor: tg.real(factor * z * z))
    assert_equal(jitted(z, z), tg.real(z * z * z))
    assert_equal(tg.jvp(jitted)(z, z, z), tg.jvp(jitted.function)(z, z, z))
