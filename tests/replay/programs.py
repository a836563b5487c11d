"""Random functions of tensors: ops of all kinds, on values of several shapes."""

import random

import numpy as np

import tapegrad as tg

SHAPES = [(4, 3), (3,), (4, 1), (), (2, 4, 3)]
UNARY = [tg.sin, tg.tanh, tg.exp, lambda x: -x, abs, lambda x: x**2, lambda x: 1.0 / (2.0 + x * x)]
UNARY += [tg.sigmoid, tg.sqrt, lambda x: tg.log1p(x * x), lambda x: tg.clip(x, -0.5, 0.6)]
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / (1.5 + y * y),
    tg.maximum,
    tg.minimum,
    lambda x, y: tg.where(x > y, x, 0.3 * y),
    lambda x, y: tg.where((x < 0.2) & (y > 0.1), y, x * x),
]
REDUCTIONS = [tg.sum, tg.mean, tg.max, tg.min, tg.logsumexp, tg.var]


class Program:
    """A function of some arrays, the same for the same seed.

    Parameters
    ----------
    seed
        Its number.
    """

    def __init__(self, seed):
        self.seed = seed
        numbers = np.random.default_rng(seed)
        self.args = [numbers.normal(size=shape) for shape in SHAPES]
        self.constant = numbers.normal(size=(3,))

    def __call__(self, *args):
        choose = random.Random(self.seed)
        values = [*args, self.constant]
        for _ in range(choose.randint(4, 14)):
            made = self.step(choose, values)
            if made is not None:
                values.append(made)
        used = choose.sample(values[len(args) :], min(3, len(values) - len(args)))
        total = sum(tg.sum(tg.tanh(value)) for value in used)
        return total + tg.sum(tg.sin(args[0]))

    def step(self, choose, values):
        x = choose.choice(values)
        kind = choose.choice("uuubbbrvvimcj")
        if kind == "u":
            x = abs(x) + 0.1 if (op := choose.choice(UNARY)) is tg.sqrt else x
            return op(tg.clip(x, -3.0, 3.0) if op is tg.exp else x)
        if kind == "b":
            y = choose.choice(values)
            try:
                np.broadcast_shapes(np.shape(x), np.shape(y))
            except ValueError:
                return None
            return choose.choice(BINARY)(x, y)
        if kind == "r":
            op = choose.choice(REDUCTIONS)
            rank = np.ndim(x)
            axes = [None, *range(-rank, rank), *([tuple(range(rank))[1:]] if rank > 1 else [])]
            return op(x, axis=choose.choice(axes), keepdims=choose.random() < 0.3)
        if kind == "v":
            return self.view(choose, x)
        if kind == "i" and np.ndim(x):
            places = [choose.randrange(-x.shape[0], x.shape[0]) for _ in range(3)]
            return x[np.array(places)]
        if kind == "m" and np.ndim(x) > 1 and x.shape[-1] == 3:
            return x @ choose.choice([self.constant, np.outer(self.constant, self.constant)])
        if kind == "c" and np.ndim(x):
            return tg.concatenate([x, x[:1] * 2.0], axis=0)
        if kind == "j" and np.ndim(x):
            return tg.stack([x, x * 0.5], axis=choose.choice([0, -1]))
        return None

    def view(self, choose, x):
        if not np.ndim(x):
            return tg.broadcast_to(x, (3,))
        kind = choose.choice("tfsnrbe")
        if kind == "t":
            return tg.transpose(x)
        if kind == "f":
            return x[::-1]
        if kind == "s":
            return x[..., 1:] if x.shape[-1] > 1 else x[..., :1]
        if kind == "n":
            return x[None] if x.ndim < 3 else x[0]
        if kind == "r":
            return tg.reshape(x, (-1,))
        if kind == "b":
            return tg.broadcast_to(x, (2, *x.shape)) if x.ndim < 3 else x[:, 0]
        return x[-1]
