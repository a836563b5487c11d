"""A write to `ravel` of a result changes the result if it does in NumPy, in all forms of a call."""

import warnings

import numpy as np
import pytest

import tapegrad as tg

X = np.arange(1.0, 9.0)
MATRIX = (2, 4)

RESULTS = {
    "array of every other element": lambda np, x: np.array(x[::2]),
    "array of a column": lambda np, x: np.array(x.reshape(MATRIX)[:, 0]),
    "array of columns": lambda np, x: np.array(x.reshape(MATRIX)[:, ::2]),
    "array of the reverse": lambda np, x: np.array(x[::-1]),
    "array of a transpose": lambda np, x: np.array(x.reshape(MATRIX).T),
    "copy of every other element": lambda np, x: x[::2].copy(),
    "pad": lambda np, x: np.pad(x.reshape(MATRIX).T, 1),
    "sort": lambda np, x: np.sort(x.reshape(MATRIX).T, axis=0),
    "take": lambda np, x: np.take(x.reshape(MATRIX), [0, 1], axis=1),
    "columns": lambda np, x: x.reshape(MATRIX)[:, [0, 1]],
    "einsum": lambda np, x: np.einsum("ij->ji", x.reshape(MATRIX) * 1.0),
    "meshgrid": lambda np, x: np.meshgrid(x, x)[0],
    "tile": lambda np, x: np.tile(x, (2, 1)),
    "tile of one element": lambda np, x: np.tile(x[:1], (2, 1)),
    "tile of a number": lambda np, x: np.tile(x[0], 3),
    "tile once": lambda np, x: np.tile(x.reshape(MATRIX).T, 1),
    "dot of a number": lambda np, x: np.dot(x.reshape(MATRIX).T, 2.0).T,
    "grid of one element": lambda np, x: np.meshgrid(x[:1], x)[0],
    "roll of a column": lambda np, x: np.roll(x.reshape(MATRIX)[:, 0], 0),
    "conj": lambda np, x: (x * 1.0).conj(),
    "nancumsum": lambda np, x: np.nancumsum(np.broadcast_to(x[:3], (2, 3)), axis=0),
    "repeat": lambda np, x: np.repeat(x.reshape(MATRIX), 2, axis=1),
    "insert": lambda np, x: np.insert(x.reshape(MATRIX).T, 1, 0.0, axis=0),
    "delete": lambda np, x: np.delete(x.reshape(MATRIX).T, 1, axis=0),
    "median": lambda np, x: np.median(x.reshape(2, 2, 2).T, axis=0),
    "zeros_like": lambda np, x: np.zeros_like(x.reshape(MATRIX).T),
}
RESULTS["select"] = lambda np, x: np.select([x.reshape(MATRIX).T > 3], [x.reshape(MATRIX).T])
RESULTS["piecewise"] = lambda np, x: np.piecewise(
    x.reshape(MATRIX).T, [x.reshape(MATRIX).T > 3], [lambda t: t * 2, 1.0]
)


def written(result):
    """Return a program that writes to a result."""

    def program(x, module=tg):
        found = result(module, x)
        flat = module.ravel(found)
        flat[0] = 70.0
        return module.sum(found * found) + module.sum(x[:2])

    return program


@pytest.mark.compiled
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_recordings_agree_with_numpy(result):
    program = written(result)
    expected = program(X.copy(), np)
    assert tg.jit(program)(X) == expected
    assert tg.value_and_grad(tg.jit(program))(X)[0] == expected


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_all_forms_agree_with_numpy(result):
    program = written(result)
    expected = program(X.copy(), np)
    assert program(X.copy()) == expected
    assert program(tg.tensor(X)) == expected
    assert program(tg.tensor(X, requires_grad=True)) == expected
    assert tg.value_and_grad(program)(X)[0] == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are computed item by item
        assert np.all(tg.vmap(program)(np.stack([X, X])) == expected)


def test_masks_of_other_order():
    def program(x):
        mask = tg.array(x.T > 3.0)
        mask[0, 1] = True
        chosen = tg.array((x > 2.0)[:, ::2])
        tg.ravel(chosen)[0] = True
        return tg.sum(tg.where(mask, x.T, 0.0)) + tg.sum(tg.where(chosen, x[:, ::2], 0.0))

    x = X.reshape(MATRIX)
    assert program(x) == program(tg.tensor(x)) == tg.jit(program)(x) == 46.0
    np.testing.assert_array_equal(tg.grad(tg.jit(program))(x), tg.grad(program)(x))


@pytest.mark.parametrize("x", [np.arange(1.0, 4.0)[::-1], np.arange(1.0, 7.0)[::2]])
def test_nested_transforms_keep_gaps(x):
    """`ravel` of an array with gaps is a copy, so that it can be written to."""

    def f(x):
        flat = x.ravel()
        flat *= flat
        return tg.sum(flat) + tg.sum(x * x)

    t = np.array([1.0, 0.0, 2.0])
    np.testing.assert_allclose(tg.grad(f)(x), 4 * x)
    np.testing.assert_allclose(tg.grad(lambda x: tg.sum(tg.grad(f)(x)))(x), 4.0)
    np.testing.assert_allclose(tg.grad(lambda x: tg.value_and_grad(f)(x)[0])(x), 4 * x)
    for found in zip(tg.jvp(tg.grad(f))(x, t), (4 * x, 4 * t), strict=True):
        np.testing.assert_allclose(*found)
    np.testing.assert_allclose(tg.vjp(f, x)[1](1.0)[0], 4 * x)
    np.testing.assert_allclose(tg.linearize(f, x)[1](t), 4 * x @ t)
    np.testing.assert_allclose(tg.jvp(tg.vmap(tg.grad(f)))(x[None], t[None])[1][0], 4 * t)


def test_the_conjugate_of_reals_is_the_tensor_itself():
    def f(x, module=tg):
        v = x * 1.0
        w = v.conj()
        w[0] = 3.0
        return module.sum(v * x)

    assert f(X, np) == f(X) == f(tg.tensor(X)) == tg.jit(f)(X) == tg.value_and_grad(f)(X)[0]
    assert tg.vmap(f)(X[None])[0] == f(X, np)
    z = tg.tensor([1.0 + 2.0j], requires_grad=True)
    assert z.conj().item() == z.conjugate().item() == 1.0 - 2.0j


@pytest.mark.parametrize("move", [lambda v: tg.tile(v, 3), lambda v: tg.tile(v[::1], 1)])
def test_moved_elements_are_copies(move):
    def f(x):
        v = tg.sin(x[:1])
        w = move(v)
        v[0] = 5.0
        return tg.sum(w)

    x = np.arange(1.0, 4.0)
    count = move(np.ones(1)).size
    for function in (f, tg.jit(f)):
        assert function(x) == pytest.approx(count * np.sin(1.0))
        np.testing.assert_allclose(tg.grad(function)(x), [count * np.cos(1.0), 0.0, 0.0])
