"""Functions composed of ops, and functions without derivatives, on a device.

Each is called with several kinds of arguments. What the host computes, the device computes too,
with the same gradients, or it says that the host does.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS, PASSIVE
from tapegrad.ops.table.composite import COMPOSITES

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

RNG = np.random.default_rng(0)
A, B = RNG.uniform(0.2, 0.9, (2, 3, 2))
V = RNG.uniform(0.2, 0.9, 4)
S = A.T @ A + np.eye(2)
PLACES = np.array([[0, 1], [1, 0], [0, 0]])
CALLS = [
    (A,), (A, B), (V,), (V, V[::-1].copy()), (S, S), ([A, B],), (A, 0), (A, 1), (A, 2),
    (A, PLACES, 0), (V, 0.3), (A, (2, 2)), (A > 0.5, A, B), (V, 3), (A, A > 0.5),
]  # fmt: skip
# computed on the host only: by LAPACK or pocketfft, or from values that they need there
ON_HOST = [
    "cho_factor", "compress", "cond", "delete", "eigvals", "eigvalsh", "extract", "fft2", "fftn",
    "hfft", "ifft2", "ifftn", "irfft", "irfft2", "irfftn", "lstsq", "matrix_norm", "norm",
    "percentile", "quantile", "nanpercentile", "nanquantile", "rfft2", "rfftn", "searchsorted",
    "svd", "svdvals", "unwrap",
]  # fmt: skip
NAMES = [*COMPOSITES, *PASSIVE]


def on(device, value):
    if isinstance(value, list):
        return [on(device, item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    return tg.tensor(value, device=device, requires_grad=value.dtype.kind == "f")


def results(device, name, args):
    args = [on(device, a) for a in args]
    out = FUNCTIONS[name](*args)
    out = out if isinstance(out, (tuple, list)) else [out]
    tensors = [t for a in args for t in (a if isinstance(a, list) else [a])]
    leaves = [t for t in tensors if isinstance(t, tg.Tensor) and t.requires_grad]
    active = [z for z in out if isinstance(z, tg.Tensor) and z.requires_grad]
    seeds = [tg.tensor(np.cos(np.arange(z.size)).reshape(z.shape), device=device) for z in active]
    grads = tg.autograd.grad(active, leaves, seeds, allow_unused=True) if active else []
    for z in (*active, *grads):
        if isinstance(z, tg.Tensor) and z.ndim:
            assert z.device == tg.tensor(0.0, device=device).device
    return [z.detach().cpu().numpy() if isinstance(z, tg.Tensor) else z for z in (*out, *grads)]


def is_refused(name, args):
    """Whether the device refuses a call, and says what to do."""
    try:
        results("cuda", name, args)
    except TypeError as error:
        return "cpu()" in str(error) or "no kernel" in str(error)
    return False


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_function(name):
    for args in CALLS:
        try:
            expected = results("cpu", name, args)
        except Exception:  # not a call of this function
            continue
        if any(isinstance(a, list) for a in args) and name in PASSIVE:
            continue  # a list of tensors is an array of the host
        if name in ON_HOST and is_refused(name, args):
            continue
        found = results("cuda", name, args)
        assert len(found) == len(expected)
        for got, want in zip(found, expected, strict=True):
            if want is None:
                assert got is None
                continue
            assert np.asarray(got).dtype == np.asarray(want).dtype
            np.testing.assert_allclose(got, want, 1e-10, 1e-13)
