"""Every op of the table on a device: values, gradients, tangents and second derivatives.

They are compared with those of the host, which other tests compare with differences.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda.numeric import expressions
from tapegrad.cuda.numeric.cupy_functions import is_installed
from tapegrad.ops.table.op import TABLE

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from cases import ALL, as_list, is_refused, names_of
from tangents import NO_DERIVATIVE

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

# ops that are computed on the host only, by the library that they need
ON_HOST = {
    "LAPACK": """
        inv solve solve_triangular det cofactor cofactor_slope slogdet cholesky qr eigh thin_svd
        full_svd expm logm sqrtm pinv eig roots
    """,
    "pocketfft": """
        fourier fourier_adjoint half_fourier real_fourier fourier_of_pairs fourier_adjoint_of_pairs
        half_fourier_to_pairs real_fourier_of_pairs whole_fourier_to_pairs real_adjoint_of_pairs
    """,
    "SciPy": """
        gamma beta gammainc gammaincc betainc erfinv erfcinv ndtri stdtr jv j0 j1 yv kv iv
        ive sparse_product
    """,
}
REFUSED = set(" ".join(ON_HOST.values()).split())


def flat(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def is_real(case):
    return not any(isinstance(a, np.ndarray) and a.dtype.kind == "c" for a in flat(case[1]))


REAL = [case for case in ALL if is_real(case) and case[0] not in {*REFUSED, "moved"}]
FIRST = list({case[0]: case for case in ALL if case[0] in REFUSED}.values())


def on(device, value, dtype=None, tracked=True):
    """A value with tensors on a device in place of its arrays."""
    if isinstance(value, (list, tuple)):
        return type(value)(on(device, item, dtype, tracked) for item in value)
    if not isinstance(value, np.ndarray):
        return value
    if dtype is not None and value.dtype.kind == "f":
        value = value.astype(dtype)
    return tg.tensor(value, device=device, requires_grad=tracked and value.dtype.kind == "f")


def arguments(device, case, dtype=None):
    """The arguments of a case; those that have a derivative require gradients."""
    op = TABLE[case[0]]
    return [
        on(device, value, dtype, name in op.rules and not is_refused(op, name))
        for name, value in zip(op.arguments, case[1], strict=True)
    ]


def ramp(like, k=0):
    return np.cos(np.arange(like.size) + k).reshape(like.shape).astype(like.dtype)


def derivatives(device, case, dtype=None):
    """Values, gradients, tangents and gradients of gradients of an op."""
    name, args, given = case
    op = TABLE[name]
    args = arguments(device, case, dtype)
    outputs = as_list(op.public(*args, **given))
    leaves = [t for t in flat(args) if isinstance(t, tg.Tensor) and t.requires_grad]
    if not any(z.requires_grad for z in outputs) or any(
        (name, n) in NO_DERIVATIVE for n in op.arguments
    ):
        return outputs
    seeds = [tg.tensor(ramp(z), device=device, requires_grad=True) for z in outputs]
    grads = tg.autograd.grad(outputs, leaves, seeds, create_graph=True, allow_unused=True)
    found = [*outputs, *grads]
    active = [g for g in grads if g is not None and g.requires_grad]
    if active and name != "log_gamma_slope":  # whose second derivative has none
        again = [tg.tensor(ramp(g, 1), device=device) for g in active]
        found += tg.autograd.grad(active, [*leaves, *seeds], again, allow_unused=True)
    with tg.autograd.forward_ad.dual_level():
        kinds = iter([ramp(t, 2) for t in leaves])

        def dual(value):
            if isinstance(value, (list, tuple)):
                return type(value)(map(dual, value))
            if not isinstance(value, tg.Tensor) or not value.requires_grad:
                return value
            t = tg.tensor(next(kinds), device=device)
            return tg.autograd.forward_ad.make_dual(value.detach(), t)

        for z in as_list(op.public(*dual(args), **given)):
            found.append(tg.autograd.forward_ad.unpack_dual(z).tangent)
    return found


def check(case, dtype=None, rtol=1e-11, atol=1e-13):
    expected, found = derivatives("cpu", case, dtype), derivatives("cuda", case, dtype)
    assert len(found) == len(expected) > 0
    for z, want in zip(found, expected, strict=True):
        if want is None:
            assert z is None
            continue
        assert z.device == "cuda:0"
        assert z.dtype == want.dtype
        got = z.detach().cpu().numpy()
        np.testing.assert_allclose(got, want.detach().numpy(), rtol, atol, equal_nan=True)


@pytest.mark.parametrize("case", REAL, ids=names_of)
def test_op(case, monkeypatch):
    monkeypatch.setattr(expressions, "is_known", lambda key: True)  # as few kernels as possible
    if case[0] in ("astype", "view_as_complex"):
        check_to_complex(case)
    else:
        check(case)


def check_to_complex(case):
    """Complex results: values and gradients."""
    name, args, given = case
    found = []
    for device in ("cpu", "cuda"):
        x = on(device, args)
        z = TABLE[name].public(*x, **given)
        seed = tg.tensor(ramp(z) * (1.0 + 0.5j), device=device)
        found.append([z.detach(), *tg.autograd.grad(z, x, seed)])
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got.cpu().numpy(), want.numpy(), 1e-12)


@pytest.mark.parametrize("case", REAL, ids=names_of)
def test_single_precision(case):
    name, _, given = case
    if name in ("astype", "view_as_complex"):
        return
    found = []
    for device in ("cpu", "cuda"):
        x = arguments(device, case, np.float32)
        z = TABLE[name].public(*x, **given)
        leaves = [t for t in flat(x) if isinstance(t, tg.Tensor) and t.requires_grad]
        found.append([z.detach()])
        if leaves:
            seed = tg.tensor(ramp(z), device=device)
            found[-1] += tg.autograd.grad(z, leaves, seed, allow_unused=True)
    for got, want in zip(found[1], found[0], strict=True):
        if want is not None:
            assert got.dtype == want.dtype == np.float32
            np.testing.assert_allclose(got.cpu().numpy(), want.numpy(), 2e-4, 2e-6)


@pytest.mark.skipif(is_installed(), reason="CuPy computes some of them")
@pytest.mark.parametrize("case", FIRST, ids=names_of)
def test_refused(case):
    name, args, given = case
    args = on("cuda", args)
    with pytest.raises(TypeError, match=r"cpu\(\)|has no derivative"):
        TABLE[name].public(*args, **given)
