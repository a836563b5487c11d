"""NumPy's functions with its own names of arguments, and with its options, on tensors."""

import numpy as np
import pytest

import tapegrad as tg

X = np.array([[0.4, 1.3, -0.7], [2.1, -1.6, 0.9]])
S = np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.0]])
MASK = np.array([[True, False, True], [True, True, False]])

CALLS = {
    "clip(a_min, a_max)": lambda x: np.clip(x, a_min=-0.5, a_max=1.0),
    "clip(a=)": lambda x: np.clip(a=x, a_min=None, a_max=1.0),
    "sum(a=)": lambda x: np.sum(a=x),
    "sum(dtype)": lambda x: np.sum(x, dtype=np.float64),
    "sum by place": lambda x: np.sum(x, 0, np.float64),
    "sum(where)": lambda x: np.sum(x, where=MASK),
    "sum(where, axis)": lambda x: np.sum(x, axis=1, where=MASK[0], keepdims=True),
    "sum(initial)": lambda x: np.sum(x, axis=0, initial=3.0),
    "prod(where, initial)": lambda x: np.prod(x, where=MASK, initial=2.0),
    "mean(where)": lambda x: np.mean(x, axis=0, where=MASK),
    "mean(where, keepdims)": lambda x: np.mean(x, where=MASK, keepdims=True),
    "mean(dtype)": lambda x: np.mean(x, dtype=float),
    "max(initial)": lambda x: np.max(x, axis=1, initial=1.5),
    "max(where)": lambda x: np.max(x, where=MASK, initial=-9.0),
    "min(where)": lambda x: np.min(x, axis=1, where=MASK, initial=9.0),
    "amax": lambda x: np.amax(x, axis=0, initial=1.0),
    "x.sum(where)": lambda x: x.sum(where=MASK),
    "x.sum(where, initial)": lambda x: x.sum(0, where=MASK, initial=3.0, keepdims=True),
    "x.sum(dtype)": lambda x: x.sum(dtype=np.float64),
    "x.prod(where)": lambda x: x.prod(axis=1, where=MASK),
    "x.mean(where)": lambda x: x.mean(1, where=MASK),
    "x.mean(where) of values": lambda x: x.mean(where=x > 0.0),
    "x.max(where)": lambda x: x.max(where=MASK, initial=-9.0),
    "x.min(where)": lambda x: x.min(axis=1, where=MASK[0], initial=9.0),
    "cumsum(dtype)": lambda x: np.cumsum(x, axis=1, dtype=float),
    "cumprod(dtype)": lambda x: np.cumprod(x, 0, float),
    "sort(kind)": lambda x: np.sort(x, kind="stable"),
    "sort(stable)": lambda x: np.sort(x, axis=0, stable=True),
    "reshape(order=C)": lambda x: np.reshape(x, (3, 2), order="C"),
    "reshape(order=F)": lambda x: np.reshape(x, (3, 2), order="F"),
    "reshape(order=F), one number": lambda x: np.reshape(x, -1, "F"),
    "reshape(copy)": lambda x: np.reshape(x, 6, copy=True),
    "x.reshape(order=F)": lambda x: x.reshape(3, -1, order="F"),
    "ravel(order=F)": lambda x: np.ravel(x, order="F"),
    "x.flatten(F)": lambda x: x.flatten("F"),
    "transpose(a=)": lambda x: np.transpose(a=x, axes=(1, 0)),
    "flip(m=)": lambda x: np.flip(m=x, axis=0),
    "roll(a=)": lambda x: np.roll(a=x, shift=1, axis=1),
    "tile(A=)": lambda x: np.tile(A=x, reps=2),
    "squeeze(a=)": lambda x: np.squeeze(a=x[None], axis=0),
    "swapaxes(a=)": lambda x: np.swapaxes(a=x, axis1=0, axis2=1),
    "moveaxis(a=)": lambda x: np.moveaxis(a=x, source=0, destination=1),
    "expand_dims(a=)": lambda x: np.expand_dims(a=x, axis=1),
    "broadcast_to(array=)": lambda x: np.broadcast_to(array=x, shape=(2, 2, 3)),
    "outer(a=)": lambda x: np.outer(a=x[0], b=x[1]),
    "pad(array=)": lambda x: np.pad(array=x, pad_width=1, constant_values=2.0),
    "stack(dtype)": lambda x: np.stack([x, x], axis=1, dtype=np.float64, casting="same_kind"),
    "concatenate(dtype)": lambda x: np.concatenate([x, x], axis=1, dtype=np.float64),
    "einsum with numbers": lambda x: np.einsum(x, [0, 1], x, [2, 1]),
    "einsum with numbers and a result": lambda x: np.einsum(x, [0, 30], S, [30, 1], [1, 0]),
    "angle(deg)": lambda x: np.angle(x + 1j * x * x, True),
    "eigvalsh(UPLO)": lambda x: np.linalg.eigvalsh(S + x.T @ x, UPLO="U"),
    "cholesky(upper)": lambda x: np.linalg.cholesky(S + x.T @ x, upper=True),
    "trace by place": lambda x: np.trace(x, 1, 0, 1),
    "norm": lambda x: np.linalg.norm(x=x, ord="fro", axis=(0, 1), keepdims=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name, agrees_with_numpy):
    agrees_with_numpy(CALLS[name], X)


def test_masks_of_values_in_recordings_and_batches():
    def f(x):
        return x.sum(where=x > 0.5) + x.mean(where=x < 0.5) * x.max(where=x < 2.0, initial=0.0)

    jitted = tg.jit(f)
    for _ in range(2):
        assert jitted(X) == pytest.approx(f(X), rel=1e-14)
    np.testing.assert_allclose(tg.vmap(f)(np.stack([X, X.T.reshape(2, 3)])), [f(X)] * 2)
    np.testing.assert_allclose(tg.grad(jitted)(X), tg.grad(f)(X), rtol=1e-14)


def test_refused_options():
    t = tg.tensor(X)
    with pytest.raises(ValueError, match="`where` needs `initial`"):
        t.max(where=MASK)
    for call in (lambda: t.var(where=MASK), lambda: tg.std(t, where=MASK)):
        with pytest.raises(TypeError, match=r"no argument 'where'; choose with np\.where"):
            call()
    for call, name in [
        (lambda: t.sum(dim=0), "sum"),
        (lambda: t.min(dtype=float), "min"),
        (lambda: t.prod(nope=0), "prod"),
        (lambda: tg.norm(t, where=MASK), "norm"),
    ]:
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument"):
            call()


# what computes with numbers of its own beside those of the argument
OF_OTHER_DTYPES = {
    "sum": lambda x: np.sum(x, where=MASK),
    "prod": lambda x: np.prod(x, axis=0, where=MASK),
    "mean": lambda x: np.mean(x, axis=1, where=MASK),
    "max": lambda x: np.max(x, where=MASK, initial=1),
    "select": lambda x: np.select([x > 1], [x]),
    "vecdot": lambda x: np.vecdot(x, x),
    "norm 0": lambda x: np.linalg.norm(x[0], 0),
    "norm 3": lambda x: np.linalg.norm(x[0], 3),
    "norm -1": lambda x: np.linalg.norm(x[0], -1),
    "cond": lambda x: np.linalg.cond(x[:, :2], 1),
    "cond of a singular matrix": lambda x: np.linalg.cond(x[:, :2] * 0, 1),
    "nanmean": lambda x: np.nanmean(x, axis=0),
    "nanvar": lambda x: np.nanvar(x, axis=0),
    "average": lambda x: np.average(x, axis=0),
    "average with weights": lambda x: np.average(x, 1, np.ones(3, x.real.dtype)),
    "quantile": lambda x: np.quantile(x, 0.3, axis=1),
    "quantiles": lambda x: np.quantile(x, [0.3, 0.5]),
    "percentiles": lambda x: np.nanpercentile(x, np.array([30.0, 50.0]), axis=0),
    "heaviside": lambda x: np.heaviside(x, 0.5),
    "sinc": np.sinc,
    "gradient": lambda x: np.gradient(x, axis=1),
    "std": lambda x: np.std(x, correction=1),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.complex64])
@pytest.mark.parametrize("name", OF_OTHER_DTYPES)
def test_dtypes(name, dtype):
    x = (10.0 * X).astype(dtype)
    try:
        expected = OF_OTHER_DTYPES[name](x)
    except TypeError:  # not for these numbers
        return
    found = OF_OTHER_DTYPES[name](tg.tensor(x))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_lower_precision():
    t = tg.tensor(X, requires_grad=True)
    found = np.sum(t, dtype=np.float32)
    assert found.dtype == np.float32
    found.backward()
    np.testing.assert_array_equal(t.grad.numpy(), np.ones_like(X))


def test_out():
    t, out = tg.tensor(X, requires_grad=True), tg.zeros(3)
    assert np.sum(t, axis=0, out=out) is out
    (out * out).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), np.tile(2 * X.sum(0), (2, 1)))
    with pytest.raises(TypeError, match="`out` is a NumPy array"):
        np.mean(t, out=np.zeros(()))
    plain = np.zeros(3)
    assert np.sum(t.detach(), axis=0, out=plain) is plain
    np.testing.assert_array_equal(plain, X.sum(0))


def test_where_with_a_condition_alone():
    t = tg.tensor(X, requires_grad=True)
    for found, expected in zip(np.where(t > 0.5), np.where(X > 0.5), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_parts_of_numbers():
    assert tg.real(2.0).item() == 2.0
    assert tg.imag(2.0).item() == 0.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: np.var(t, where=MASK), "no argument 'where'; choose with np.where before"),
        (lambda t: np.std(t, mean=0.5), "no argument 'mean'; leave it out"),
        (lambda t: np.sort(t, order="a"), "no argument 'order'"),
        (lambda t: np.max(t, where=MASK), "`where` needs `initial`"),
        (lambda t: np.ravel(t, order="X"), "order 'X' is none of"),
    ],
)
def test_what_is_refused_is_named(call, text):
    with pytest.raises((TypeError, ValueError), match=text):
        call(tg.tensor(X, requires_grad=True))


@pytest.mark.parametrize("name", ["max", "min", "amax"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((0,), None), ((0, 3), 0), ((0, 3), 1), ((2, 0), (0, 1)), ((2, 3), 1)]
)
def test_initial_of_what_may_be_empty(name, shape, axis):
    function, x, initial = getattr(np, name), np.ones(shape), tg.tensor(0.3, requires_grad=True)
    found = function(tg.tensor(x), axis=axis, initial=initial, keepdims=True)
    expected = function(x, axis=axis, initial=0.3, keepdims=True)
    np.testing.assert_array_equal(found.detach().numpy(), expected)
    found.sum().backward()
    assert initial.grad.item() == np.sum(expected == 0.3)
