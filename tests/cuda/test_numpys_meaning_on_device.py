"""Corner cases for tensors on a device: results and errors are those of NumPy."""

import numpy as np
import pytest

import tapegrad as tg

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

X = np.array([[0.3, -1.2, 2.0], [1.5, 0.7, -0.4]])


def leaf(values=X, device="cuda"):
    return tg.tensor(values, device=device, requires_grad=True)


def assert_equal(tensor, expected):
    assert tensor.device == "cuda:0"
    np.testing.assert_allclose(tensor.detach().cpu().numpy(), expected, 1e-13, 1e-14)


CORNERS = {
    "range": lambda t: t([1.0, 2.0, 3.0])[range(2)],
    "ranges": lambda t: t([1.0, 2.0, 3.0])[(range(2),)],
    "no indices": lambda t: t(X)[[]],
    "mask after ellipsis": lambda t: t(X)[..., np.array([True, False, True])],
    "mask of two axes": lambda t: t(X[None])[0, X > 0.5],
    "mask and number": lambda t: t(X)[None, np.array([True, False]), 1],
    "far arrays": lambda t: t(X)[[0, 1], ..., [1, 2]],
    "quotient by 0": lambda t: t([5, 0]) // 0,
    "remainder by 0": lambda t: 2 % t([0, 3]),
    "large quotient": lambda t: t([2**60 + 1, -7]) // t([3, 2]),
    "large remainder": lambda t: t([2**60 + 1, -7]) % t([3, 2]),
    "large floor": lambda t: tg.floor(t([2**60 + 1])),
    "small integers": lambda t: t(np.array([5, -7], np.int8)) // 2,
    "== True": lambda t: t([1, 0]) == True,  # noqa: E712
    "!= True": lambda t: t([1, 0]) != True,  # noqa: E712
    "== None": lambda t: t([1, 0]) == None,  # noqa: E711
    "times True": lambda t: t([1.0, 0.0]) * True,
    "and True": lambda t: t([True, False]) & True,
    "last axis": lambda t: tg.concatenate([t(X), t(X)], axis=-1),
    "complex condition": lambda t: tg.where(1j * t([1.0, 0.0]), 1, 0),
    "integer condition": lambda t: tg.where(t([2, 0]), 1.0, 3.0),
    "== out of bounds": lambda t: t(np.array([1, 2], np.uint8)) == -2,
    "> out of bounds": lambda t: t(np.array([1, 2], np.uint8)) > -2,
    "< out of bounds": lambda t: t(np.array([1, 2], np.int8)) < 300,
    "integer powers": lambda t: t(np.array([3, -4], np.int8)) ** 3,
    "power 0": lambda t: t([3, 0]) ** 0,
    "last item": lambda t: t(X).item(-1),
    "contained": lambda t: 2.0 in t(X),
    "not contained": lambda t: 7.0 in t(X),
    "infinite": lambda t: tg.isinf(t([1.0, -np.inf, np.nan])),
    "finite integers": lambda t: tg.isfinite(t([1])),
    "complex product": lambda t: t([3 + 4j, 1j]) @ t([1.0, 2j]),
    "conjugate": lambda t: tg.conj(t([3 + 4j])),
}


class TestNumPysMeaning:
    """Corner cases in which NumPy has a meaning, or an error, of its own."""

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    @pytest.mark.parametrize("name", CORNERS)
    def test_results(self, name):
        found, expected = (
            CORNERS[name](lambda v, d=device: tg.tensor(v, device=d)) for device in ("cuda", "cpu")
        )
        if isinstance(expected, tg.Tensor):
            assert found.dtype == expected.dtype
            found, expected = found.cpu().numpy(), expected.numpy()
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize(
        ("error", "call"),
        [
            (IndexError, lambda t: t(X)[..., np.array([True, False])]),
            (IndexError, lambda t: t(X)[True]),
            (IndexError, lambda t: t(X)[0, 0, 0]),
            (IndexError, lambda t: t(X)[..., 0, ...]),
            (IndexError, lambda t: t(X)[[0.5]]),
            (IndexError, lambda t: t(X).item(99)),
            (ValueError, lambda t: tg.concatenate([t(X), t(X)], axis=5)),
            (ValueError, lambda t: tg.concatenate([t(1.0), t(2.0)])),
            (ValueError, lambda t: tg.concatenate([t(X), t(X[:, :2])])),
            (OverflowError, lambda t: t(np.array([1], np.uint8)) + 300),
            (ValueError, lambda t: t([3]) ** -1),
            (TypeError, lambda t: t([1.0]).astype(np.float16)),
            (TypeError, lambda t: tg.sign(t([3 + 4j]))),
            (TypeError, lambda t: tg.exp(t([3 + 4j]))),
            (TypeError, lambda t: tg.fmod(t([3]), 2)),
            (ValueError, lambda t: np.add(t(X)._a, 1.0, out=t(1.0)._a)),
            (TypeError, lambda t: np.add(t([1])._a, 0.5, out=t([1])._a)),
        ],
    )
    def test_errors(self, error, call):
        with pytest.raises(error):
            call(lambda v: tg.tensor(v, device="cuda"))

    def test_writes(self):
        def program(device):
            x = tg.tensor([1.0, 2.0, 3.0], device=device)
            x[range(2)] = 0.0
            x[[1, 2]] = np.array([[5.0]])
            truth = tg.tensor([True, False], device=device)
            truth[1] = 1j
            return x.cpu().numpy(), truth.cpu().numpy()

        for got, want in zip(program("cuda"), program("cpu"), strict=True):
            np.testing.assert_array_equal(got, want)

    def test_gradients_of_complex_arithmetic(self):
        found = []
        for device in ("cuda", "cpu"):
            z = tg.tensor([3 + 4j, 1j - 2], device=device, requires_grad=True)
            w = z * z / (1.0 + z) - z.conj() * 2j
            (w * w.conj()).real.sum().backward()
            found.append(z.grad.cpu().numpy())
        np.testing.assert_allclose(*found, 1e-13)

    def test_cotangents_that_are_constants(self):
        x = leaf()
        (x * x).backward(np.ones((2, 3)))
        assert_equal(x.grad, 2 * X)

    def test_gradients_are_on_the_device(self):
        x = leaf()
        with pytest.raises(RuntimeError, match="gradient with device type 'cpu'"):
            x.grad = tg.ones((2, 3))
        x.register_hook(lambda g: g.cpu())
        with pytest.raises(RuntimeError, match="has changed the device of value"):
            x.sum().backward()
