"""Arrays of NumPy beside tensors on a device: they are constants, in derivatives of all orders."""

import numpy as np
import pytest

import tapegrad as tg

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 3))
C = RNG.uniform(0.5, 2.0, (3, 3))
W = RNG.normal(size=(3, 4))


def written(x):
    y = x * x * 1.0
    y[:1] = W.T[:1, :3]
    return (y * y * C).sum()


PROGRAMS = {
    "product": lambda x: (tg.sin(x * x) * C).sum(),
    "quotient": lambda x: (C / (x * x + 1.0)).sum(),
    "power": lambda x: ((x * x + 1.0) ** C).sum(),
    "power of": lambda x: (C**x).sum(),
    "matrices": lambda x: (tg.sin(W.T @ x) @ W).sum() + ((x @ W) ** 2).sum(),
    "where": lambda x: tg.where(C > 1.0, x * x * x, x * C).sum(),
    "maximum": lambda x: (tg.maximum(x * x, C) * x).sum(),
    "arctan2": lambda x: tg.arctan2(x * x, C).sum(),
    "einsum": lambda x: (tg.einsum("ij,jk->ik", x * x, W) ** 2).sum(),
    "joined": lambda x: (tg.concatenate([x * x, C]) ** 2).sum() + (tg.stack([x, C]) ** 3).sum(),
    "indices": lambda x: (x[np.array([0, 2, 0])] ** 3).sum(),
    "outer": lambda x: (tg.outer(x, C) ** 2).sum(),
    "clip": lambda x: (tg.clip(x * x, 0.1 * C, C) * x).sum(),
    "written": written,
}
DERIVATIVES = {
    "gradient": tg.grad,
    "gradient of the gradient": lambda f: tg.grad(lambda x: (tg.grad(f)(x) ** 2).sum()),
    "tangent of the gradient": lambda f: lambda x: tg.jvp(tg.grad(f))(x, x)[1],
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_derivative(program, derivative):
    check(DERIVATIVES[derivative](PROGRAMS[program]))


def test_batch_of_hessians():
    hessian = tg.hessian(PROGRAMS["product"])
    check(lambda x: tg.vmap(hessian)(tg.stack([x, 2.0 * x])))


def check(call):
    expected, found = call(tg.tensor(X)), call(tg.tensor(X, device="cuda"))
    assert found.device == "cuda:0"
    np.testing.assert_allclose(
        found.detach().cpu().numpy(), expected.detach().numpy(), 1e-10, 1e-12
    )


def test_saved_constants_are_shown():
    x = tg.tensor(X, device="cuda", requires_grad=True)
    saved = (x * C).grad_fn._saved_other
    assert isinstance(saved, tg.Tensor)
    np.testing.assert_array_equal(saved.numpy(), C)
