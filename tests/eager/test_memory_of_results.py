"""Results own their memory, unless the function is a view where NumPy's is one, too."""

import numpy as np
import pytest

import tapegrad as tg

ARRAYS = {
    "matrix": np.arange(6.0).reshape(2, 3) + 1.0,
    "column": np.ones((3, 1)),
    "row": np.ones((1, 3)),
    "square": np.eye(3),
    "cube": np.ones((2, 1, 3)),
    "vector": np.arange(3.0) + 1.0,
    "of one element": np.ones(1),
    "of no dimension": np.array(2.0),
}
OF_AXES = [
    "sum", "prod", "max", "min", "mean", "std", "var", "cumsum", "cumprod", "ptp", "sort", "flip",
    "squeeze", "expand_dims",
]  # fmt: skip
CALLS = {
    **{
        f"{name} along {axis}": (name, lambda f, x, axis=axis: f(x, axis=axis))
        for name in OF_AXES
        for axis in (None, 0, 1, -1)
    },
    "roll by 0": ("roll", lambda f, x: f(x, 0)),
    "roll by the length": ("roll", lambda f, x: f(x, x.size)),
    "roll along": ("roll", lambda f, x: f(x, 0, 0)),
    "tile": ("tile", lambda f, x: f(x, 1)),
    "tile with axes": ("tile", lambda f, x: f(x, (1, 1))),
    "repeat": ("repeat", lambda f, x: f(x, 1)),
    "repeat along": ("repeat", lambda f, x: f(x, 1, 0)),
    "ravel": ("ravel", lambda f, x: f(x)),
    "reshape": ("reshape", lambda f, x: f(x, -1)),
    "transpose": ("transpose", lambda f, x: f(x)),
    "swapaxes": ("swapaxes", lambda f, x: f(x, 0, -1)),
    "diag": ("diag", lambda f, x: f(x)),
    "diagonal": ("diagonal", lambda f, x: f(x)),
    "trace": ("trace", lambda f, x: f(x)),
    "atleast_1d": ("atleast_1d", lambda f, x: f(x)),
    "clip without bounds": ("clip", lambda f, x: f(x, None, None)),
    "clip": ("clip", lambda f, x: f(x, -9.0, 9.0)),
    "round": ("round", lambda f, x: f(x)),
    "triu": ("triu", lambda f, x: f(x, -9)),
    "tril": ("tril", lambda f, x: f(x, 9)),
    **{
        f"pad in mode {mode}": ("pad", lambda f, x, mode=mode: f(x, 0, mode=mode))
        for mode in ("constant", "edge", "wrap", "reflect", "symmetric")
    },
    "block": ("block", lambda f, x: f(x)),
    "block of a list": ("block", lambda f, x: f([x])),
    "atleast_2d": ("atleast_2d", lambda f, x: f(x)),
    "atleast_3d": ("atleast_3d", lambda f, x: f(x)),
    "moveaxis": ("moveaxis", lambda f, x: f(x, 0, -1)),
    "rot90 by 0": ("rot90", lambda f, x: f(x, 0)),
    "fliplr": ("fliplr", lambda f, x: f(x)),
    "nan_to_num": ("nan_to_num", lambda f, x: f(x)),
    "append nothing": ("append", lambda f, x: f(x, np.empty(0))),
    "delete nothing": ("delete", lambda f, x: f(x, [])),
    "compress": ("compress", lambda f, x: f(np.ones(x.size, bool), x)),
    "take": ("take", lambda f, x: f(x, [0])),
    "concatenate": ("concatenate", lambda f, x: f([x])),
    "stack": ("stack", lambda f, x: f([x])),
    "hstack": ("hstack", lambda f, x: f([x])),
    "vstack": ("vstack", lambda f, x: f([x])),
    "split": ("split", lambda f, x: f(x, 1)[0]),
    "array_split": ("array_split", lambda f, x: f(x, 1)[0]),
    "where": ("where", lambda f, x: f(True, x, 0.0)),
    "real": ("real", lambda f, x: f(x)),
    "conj": ("conj", lambda f, x: f(x)),
    "positive": ("positive", lambda f, x: f(x)),
    "broadcast_to": ("broadcast_to", lambda f, x: f(x, x.shape)),
    "power": ("power", lambda f, x: f(x, 1)),
    "add": ("add", lambda f, x: f(x, 0.0)),
    "kron": ("kron", lambda f, x: f(x, np.ones(1))),
    "einsum": ("einsum", lambda f, x: f("...->...", x)),
    "matrix_transpose": ("matrix_transpose", lambda f, x: f(x)),
}


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("name", CALLS)
def test_memory(name, kind, tracked):
    function, call = CALLS[name]
    array = ARRAYS[kind].copy()
    if array.ndim == 0 and "along" in name and "None" not in name:
        pytest.skip("there is no axis")
    try:
        expected = call(getattr(np, function), array)
    except (ValueError, TypeError, IndexError, np.exceptions.AxisError):
        pytest.skip("NumPy does not take it")
    x = tg.tensor(array, requires_grad=tracked)
    found = call(getattr(tg, function), x)
    if found.ndim and not np.shares_memory(expected, array):
        assert not np.shares_memory(found.detach().numpy(), x.detach().numpy())
    np.testing.assert_allclose(found.detach().numpy(), expected, 1e-14, 1e-14)
    if tracked and found.requires_grad:
        (gradient,) = tg.autograd.grad(found.sum(), x)
        assert gradient.shape == x.shape
