"""Random programs with checkpoints, nested and with derivatives inside, give the same gradients."""

import random

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import grad
from tapegrad.utils.checkpoint import checkpoint

SIZE = 4


class Cube(tg.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * 3 * x * x + 0 * y


def in_place(a, b):
    c = a * 1
    c += b
    c[1:3] = b[:2] * 0.5
    return c


def through_a_view(a, b):
    c = a * 1
    view = c[:2]
    view *= b[:2]
    return c


OPS = [
    lambda a, b: a * b,
    lambda a, b: a + b,
    lambda a, b: tg.exp(-a * a),
    lambda a, b: tg.tanh(a) / (2 + tg.cos(b)),
    lambda a, b: tg.cumsum(a, 0) * 0.3,
    lambda a, b: a[::-1] * b,
    lambda a, b: tg.maximum(a, b),
    lambda a, b: tg.sum(a) * b * 0.2,
    lambda a, b: Cube.apply(tg.sin(a)),
    lambda a, b: tg.where(a > b, a, b * 2),
    lambda a, b: tg.linalg.inv(tg.outer(a, b) * 0.1 + tg.eye(SIZE))[0],
    lambda a, b: tg.stack([a, b]).mean(axis=0),
    lambda a, b: np.random.rand(SIZE) * a,  # noqa: NPY002
    lambda a, b: tg.vmap(lambda q: tg.sin(q) * q)(a) + b,
    lambda a, b: tg.grad(lambda q: tg.sum(tg.sin(q * b)))(a),
    in_place,
    through_a_view,
]


def program(rng, depth):
    """Steps: numbers of ops with their second argument, and checkpointed programs."""
    steps = []
    for _ in range(rng.randint(1, 5)):
        if depth and rng.random() < 0.4:
            steps.append((program(rng, depth - 1), rng.choice(["plain", "list", "whole"])))
        else:
            steps.append((rng.randrange(len(OPS)), rng.randrange(3)))
    return steps


def run(steps, a, b, w, with_checkpoints):
    for step, how in steps:
        if type(step) is int:
            a, b = OPS[step](a, (b, b, w)[how]), a
            continue

        def inner(a, b, step=step):
            return run(step, a, b, w, with_checkpoints)

        if not with_checkpoints:
            a, b = inner(a, b)
        elif how == "list":
            a, b = checkpoint(lambda ab, f=inner: f(*ab), [a, b], use_reentrant=False)
        else:
            a, b = checkpoint(inner, a, b, use_reentrant=False, early_stop=how == "plain")
    return a, b


def derivatives(seed, with_checkpoints):
    rng = random.Random(seed)
    steps = [(program(rng, 2), "plain"), *program(rng, 1)]
    np.random.seed(seed)  # noqa: NPY002
    values = np.random.default_rng(seed).normal(size=(3, SIZE)) * 0.5
    tensors = [tg.tensor(v, requires_grad=True) for v in values]
    total = sum(run(steps, *tensors, with_checkpoints)).sum()
    kind = rng.choice(["backward", "twice", "second", "tangents"])
    if kind == "tangents":
        np.random.seed(seed)  # noqa: NPY002
        return tg.jvp(lambda a: sum(run(steps, a, *values[1:], with_checkpoints)).sum())(
            values[0], values[1]
        )
    if kind == "second":
        found = grad(total, tensors, create_graph=True, materialize_grads=True)
        again = sum((g * g).sum() for g in found)
        if again.requires_grad:
            found += grad(again, tensors, materialize_grads=True)
        return [g.detach().numpy() for g in found]
    total.backward(retain_graph=kind == "twice")
    if kind == "twice":
        total.backward()
    return [0 if t.grad is None else t.grad.numpy() for t in tensors]


@pytest.mark.parametrize("seed", range(60))
def test_same_derivatives(seed):
    found, expected = (derivatives(seed, with_checkpoints) for with_checkpoints in (True, False))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
