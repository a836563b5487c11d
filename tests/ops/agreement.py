"""Values beside those of NumPy, and derivatives beside differences."""

import numpy as np

import tapegrad as tg


def array_of(tensor):
    return tensor.detach().numpy()


def data(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def agree(found, expected):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(array_of(found), expected, rtol=1e-9, atol=1e-11)


def check(f, *args, order=2):
    if all(a.size for a in args):
        tg.testing.check_grads(f, list(args), order=order)
        return
    tensors = [tg.tensor(a, requires_grad=True) for a in args]
    out = f(*tensors)
    for g, a in zip(tg.autograd.grad(out, tensors, np.ones(out.shape)), args, strict=True):
        assert g.shape == a.shape
        assert not array_of(g).any()
