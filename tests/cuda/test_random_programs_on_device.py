"""Random programs of ops, views and writes: the device computes what the host computes.

A program is decided while it runs on the host, from the shapes that it has there, and then runs on
the device with the same decisions.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.cuda.numeric import expressions

pytestmark = pytest.mark.skipif(not tg.cuda.is_available(), reason="there is no CUDA device")

UNARY = ["sin", "exp", "tanh", "square", "negative", "absolute", "sigmoid", "sqrt", "floor"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum", "arctan2"]
REDUCTIONS = ["sum", "mean", "max", "min", "logsumexp", "var", "prod", "cumsum", "sort"]


class Decisions:
    """The random decisions of a program, noted for its second run."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.noted = []
        self.place = None

    def again(self):
        self.place = 0
        return self

    def take(self, decide):
        """A decision: made in the first run, and repeated in the second."""
        if self.place is None:
            self.noted.append(decide())
            return self.noted[-1]
        self.place += 1
        return self.noted[self.place - 1]

    def below(self, n):
        return self.take(lambda: int(self.rng.integers(n)))

    def one_of(self, names):
        return names[self.below(len(names))]


def index_for(shape, decisions):
    """A random index of an array: slices, integers, None, and arrays of integers or truths."""
    if decisions.below(6) == 0:
        return decisions.take(lambda: decisions.rng.random(shape) < 0.5)
    parts = []
    for n in shape:
        kind = decisions.below(6)
        if kind == 0:
            parts.append(decisions.below(n))
        elif kind == 1:
            parts.append(slice(None, None, decisions.one_of([-1, 1, 2])))
        elif kind == 2:
            parts.append(slice(decisions.below(n), None))
        elif kind == 3:
            parts.append(decisions.take(lambda n=n: decisions.rng.integers(-n, n, 3)))
        elif kind == 4:
            parts.append(decisions.take(lambda n=n: decisions.rng.integers(0, n, (2, 1))))
        else:
            parts.append(slice(None))
    return tuple(parts)


def step(values, decisions):
    """Append the result of a random op to the values of a program, or write to one of them."""
    kind = decisions.below(10)
    x = values[decisions.below(len(values))]
    if kind == 0:
        return values.append(getattr(tg, decisions.one_of(UNARY))(tg.absolute(x) + 0.1))
    if kind == 1:
        y = values[decisions.below(len(values))]
        try:
            return values.append(getattr(tg, decisions.one_of(BINARY))(x, y))
        except ValueError:  # shapes that do not broadcast
            return None
    if kind == 2 and x.ndim:
        name, axis = decisions.one_of(REDUCTIONS), decisions.below(x.ndim)
        return values.append(getattr(tg, name)(x, axis=axis))
    if kind == 3 and x.ndim and x.size:
        return values.append(x[index_for(x.shape, decisions)])
    if kind == 4 and x.ndim > 1:
        order = decisions.take(lambda: decisions.rng.permutation(x.ndim).tolist())
        return values.append(tg.transpose(x, order))
    if kind == 5:
        return values.append(x.reshape(-1) if decisions.below(2) else tg.expand_dims(x, 0))
    if kind == 6 and x.size:
        target = x * 1.0
        index = index_for(x.shape, decisions) if x.ndim else ...
        value = values[decisions.below(len(values))].sum() * 0.5 + 0.25
        if decisions.below(2):
            target[index] = value
        else:
            view = target.T if x.ndim > 1 else target
            view *= value
            target[...] = target[::-1] if x.ndim else value
        return values.append(target)
    if kind == 7 and x.ndim == 2:
        return values.append(x @ x.T if decisions.below(2) else tg.einsum("ij,kj->ik", x, x))
    if kind == 8 and x.ndim:
        return values.append(tg.concatenate([x, tg.flip(x, 0) * 2.0], 0))
    return values.append(tg.where(x > 0.5, x * 3.0, tg.roll(x, 1)))


def run(decisions, device, steps):
    rng = np.random.default_rng(7)
    leaves = [
        tg.tensor(rng.uniform(-1.0, 1.0, shape), device=device, requires_grad=True)
        for shape in ((3, 2), (2,), ())
    ]
    values = list(leaves)
    for _ in range(steps):
        step(values, decisions)
        if values[-1].size > 64:
            values.pop()
    total = sum((z * (1.0 / (1.0 + k))).sum() for k, z in enumerate(values))
    grads = tg.autograd.grad(total, leaves, create_graph=True)
    mixed = sum((g * g).sum() for g in grads)
    second = tg.autograd.grad(mixed, leaves, allow_unused=True) if mixed.requires_grad else []
    found = [total, *grads, *second]
    return [None if z is None else z.detach().cpu().numpy() for z in found]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("are_known", [True, False], ids=["fused", "op by op"])
@pytest.mark.parametrize("seed", range(15))
def test_program(seed, are_known, monkeypatch):
    monkeypatch.setattr(expressions, "is_known", lambda key: are_known)
    decisions = Decisions(seed)
    expected = run(decisions, "cpu", 10)
    found = run(decisions.again(), "cuda", 10)
    for got, want in zip(found, expected, strict=True):
        if want is None:
            assert got is None
        else:
            np.testing.assert_allclose(got, want, 1e-9, 1e-11, equal_nan=True)
