"""The order of results in memory is NumPy's: `ravel` of them is a view where it is one in NumPy."""

import numpy as np
import pytest

import tapegrad as tg

PLAIN = np.arange(1.0, 13.0).reshape(3, 4) / 7
CUBE = np.arange(1.0, 25.0).reshape(2, 3, 4) / 7
ARRAYS = {
    "row-major": PLAIN,
    "column-major": np.asfortranarray(PLAIN),
    "transposed": PLAIN.T,
    "square": np.arange(1.0, 17.0).reshape(4, 4).T / 7,
    "with gaps": np.arange(1.0, 49.0).reshape(6, 8)[::2, ::2] / 7,
    "cube": CUBE,
    "transposed cube": CUBE.T,
    "first axes exchanged": CUBE.transpose(1, 0, 2),
    "last axes exchanged": CUBE.transpose(0, 2, 1),
}


def written(x):
    y = x.copy()
    y *= 2
    return y


def regular(np, x):
    return np.matmul(np.swapaxes(x, -1, -2), x) + 5 * np.eye(x.shape[-1])


# Functions of a module, NumPy or tapegrad under its name, and an array.
FUNCTIONS = [
    # chosen elements
    *(lambda np, x: x[:, [0, 1]], lambda np, x: x[[0, 1]], lambda np, x: x[[0, 1], [1, 0]]),
    *(
        lambda np, x: x[:, None, [0, 1]],
        lambda np, x: x[[[0, 1], [1, 0]]],
        lambda np, x: x[..., [1]],
    ),
    *(lambda np, x: np.take(x, [0, 1], axis=0), lambda np, x: np.take(x, [0, 1], axis=1)),
    *(lambda np, x: np.repeat(x, 2, axis=0), lambda np, x: np.repeat(x, 2, axis=1)),
    *(lambda np, x: np.sort(x, axis=0), lambda np, x: np.sort(x), lambda np, x: np.argsort(x, 0)),
    *(lambda np, x: np.insert(x, 1, 0.0, axis=0), lambda np, x: np.insert(x, 1, 0.0, axis=1)),
    *(lambda np, x: np.delete(x, 1, axis=0), lambda np, x: np.delete(x, [1], axis=1)),
    lambda np, x: np.select([x > 0.5, x > 1.0], [x, 2 * x]),
    lambda np, x: np.piecewise(x, [x < 0.5], [lambda t: t * 2, lambda t: t]),
    *(lambda np, x: np.pad(x, 1), lambda np, x: np.pad(x, 0), lambda np, x: np.pad(x, 1, "edge")),
    *(lambda np, x: np.roll(x, 1, axis=0), lambda np, x: np.roll(x, 0, axis=0)),
    *(
        lambda np, x: np.roll(x, 1),
        lambda np, x: np.fft.fftshift(x),
        lambda np, x: np.roll(x, 1, 1),
    ),
    *(lambda np, x: np.tile(x, (2, 1)), lambda np, x: np.tile(x, 2)),
    lambda np, x: np.tile(x[0].ravel(), (2, 1)),
    lambda np, x: np.meshgrid(x[0].ravel(), x[0].ravel())[0],
    lambda np, x: np.meshgrid(x[0].ravel(), x[0].ravel(), indexing="ij")[0],
    *(lambda np, x: np.resize(x, (2, 3)), lambda np, x: np.extract(x > 0.5, x)),
    *(lambda np, x: np.append(x, x, axis=0), lambda np, x: np.unwrap(x)),
    # copies
    *(
        lambda np, x: np.array(x),
        lambda np, x: x.copy(),
        lambda np, x: x.flatten(),
        lambda np, x: +x,
    ),
    *(lambda np, x: np.zeros_like(x), lambda np, x: np.full_like(x, 2.0), lambda np, x: written(x)),
    *(lambda np, x: x.astype("f4"), lambda np, x: np.imag(x), lambda np, x: np.nan_to_num(x)),
    *(lambda np, x: np.tril(x), lambda np, x: np.triu(x, 1)),
    *(lambda np, x: np.tile(x, 1), lambda np, x: np.pad(x[:, None], 1)),
    # of what is broadcast
    *(lambda np, x: np.array(np.broadcast_to(x[0], (2, *x.shape[1:]))),),
    *(lambda np, x: np.nan_to_num(np.broadcast_to(x[0], (2, *x.shape[1:]))),),
    *(lambda np, x: np.broadcast_to(x[0], (2, *x.shape[1:])) * 2.0,),
    *(lambda np, x: np.sort(np.broadcast_to(x[0], (2, *x.shape[1:])), axis=0),),
    *(lambda np, x: x[:, None] + x[None], lambda np, x: x[..., None] * x[..., None, :]),
    *(lambda np, x: np.ravel(np.broadcast_to(x[0], (2, *x.shape[1:]))),),
    # of elements
    *(lambda np, x: np.sin(x), lambda np, x: x + x, lambda np, x: 1 / x, lambda np, x: x > 0.5),
    *(lambda np, x: np.where(x > 0.5, x, 0.0), lambda np, x: np.clip(x, 0.2, 0.5)),
    *(lambda np, x: x + x[..., :1], lambda np, x: x[..., :1] + x, lambda np, x: x + x[0]),
    *(lambda np, x: np.interp(x, [0.0, 1.0, 2.0], [0.0, 1.0, 4.0]), lambda np, x: x**2),
    # of axes
    *(
        lambda np, x: np.sum(x, axis=0),
        lambda np, x: np.sum(x, axis=-1),
        lambda np, x: np.max(x, 0),
    ),
    *(lambda np, x: np.std(x, axis=0), lambda np, x: np.mean(x, 1), lambda np, x: np.prod(x, 0)),
    *(lambda np, x: np.median(x, axis=0), lambda np, x: np.median(x, axis=1, keepdims=True)),
    *(lambda np, x: np.quantile(x, 0.3, axis=0), lambda np, x: np.quantile(x, [0.3, 0.5], axis=0)),
    *(lambda np, x: np.cumsum(x, axis=0), lambda np, x: np.cumsum(x, 1), lambda np, x: np.diff(x)),
    *(lambda np, x: np.gradient(x, axis=1), lambda np, x: np.gradient(x, axis=0)),
    *(
        lambda np, x: np.trapezoid(x, axis=0),
        lambda np, x: np.cross(x[..., [0, 1, 0]], x[..., [1, 0, 0]]),
    ),
    *(lambda np, x: np.cumprod(x, axis=-1), lambda np, x: np.cumsum(x, axis=-1)),
    lambda np, x: np.cumulative_sum(x, axis=-1, include_initial=True),
    *(lambda np, x: np.median(x[None], axis=(0, -1)), lambda np, x: np.quantile(x, 0.3, (0, -1))),
    *(lambda np, x: np.dot(x, 2.0), lambda np, x: np.dot(2.0, x), lambda np, x: np.inner(x, 2.0)),
    # joined
    *(lambda np, x: np.stack([x, x]), lambda np, x: np.stack([x, x], axis=-1)),
    *(lambda np, x: np.concatenate([x, x]), lambda np, x: np.concatenate([x, x], axis=1)),
    *(
        lambda np, x: np.vstack([x, x]),
        lambda np, x: np.dstack([x, x]),
        lambda np, x: np.block([x, x]),
    ),
    # views
    *(lambda np, x: x.T, lambda np, x: np.moveaxis(x, 0, -1), lambda np, x: x.reshape(2, -1)),
    *(
        lambda np, x: np.ravel(x),
        lambda np, x: np.split(x, [1], axis=1)[1],
        lambda np, x: x[:, ::2],
    ),
    *(
        lambda np, x: np.expand_dims(x, 1),
        lambda np, x: np.diagonal(x),
        lambda np, x: np.flip(x, 0),
    ),
    *(lambda np, x: np.einsum("ij...->ji...", x), lambda np, x: np.einsum("ij...->ij...", x)),
    # products
    *(lambda np, x: np.matmul(np.swapaxes(x, -1, -2), x), lambda np, x: np.outer(x, x)),
    *(lambda np, x: np.tensordot(x, x, axes=([0], [0])), lambda np, x: np.kron(x, x)),
    lambda np, x: np.einsum("ij...,ij...->ij...", x, x),
    *(lambda np, x: np.linalg.inv(regular(np, x)), lambda np, x: np.linalg.svd(x, False)[2]),
    *(lambda np, x: np.linalg.cholesky(regular(np, x)), lambda np, x: np.linalg.qr(x)[0]),
    lambda np, x: np.linalg.solve(regular(np, x), np.swapaxes(x, -1, -2)),
    *(lambda np, x: np.fft.fft(x, axis=0), lambda np, x: np.fft.fft2(x)),
]


def order(array):
    """Return the strides along axes that have several elements."""
    return [step for step, size in zip(array.strides, array.shape, strict=True) if size > 1]


def array_of(result):
    return result._a if isinstance(result, tg.Tensor) else np.asarray(result)


def recorded(function, x):
    """Return an array that is like the result in a recording."""
    found = []

    def program(x):
        result = function(tg, x)
        is_traced = hasattr(result, "_node")  # what follows from the shape alone is not
        found.append(result._node.like if is_traced else array_of(result))
        return tg.sum(x)

    tg.jit(program)(x)
    return found[0]


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_layouts(function, array):
    expected = function(np, array)
    results = {
        "array": array_of(function(tg, array)),
        "tensor": array_of(function(tg, tg.as_tensor(array))),
        "leaf": array_of(function(tg, tg.as_tensor(array).requires_grad_())),
    }
    for name, found in results.items():
        assert order(found) == order(expected), name
        assert np.may_share_memory(found, array) == np.may_share_memory(expected, array), name


@pytest.mark.compiled
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_recorded_layouts(function, array):
    if array.base is None or array.flags.forc:  # arguments of compiled code have no gaps
        assert order(recorded(function, array)) == order(function(np, array))


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("name", ["sigmoid", "softplus", "erf", "gammaln", "digamma"])
def test_functions_of_elements_that_numpy_does_not_have(name, array):
    expected = np.sin(array)
    function = getattr(tg.special, name, None) or getattr(tg, name)
    for given in (array, tg.as_tensor(array), tg.as_tensor(array).requires_grad_()):
        assert order(array_of(function(given))) == order(expected)
    parts = [lambda x: function(x + x[..., :1]), lambda x: np.sin(x + x[..., :1])]
    assert order(array_of(parts[0](array))) == order(parts[1](array))
    np.testing.assert_allclose(function(array), function(np.ascontiguousarray(array)))
