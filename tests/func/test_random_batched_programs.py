"""Random programs of one item, in batches: beside a loop over the items."""

import os
import re
import warnings

import numpy as np
import pytest
from random_functions import arrays, check, program

import tapegrad as tg

COUNT = int(os.environ.get("TAPEGRAD_PROGRAMS", "60"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_program(seed):
    f, rng = program(seed)
    size = int(rng.integers(1, 6))
    args = [rng.uniform(0.2, 0.9, (size, *shape)) for shape in ((2, 3), (3,), ())]
    weights = rng.normal(size=(2, 3))

    def loss(*args):
        return (f(*args) * weights).sum()

    def alone(function):
        return [function(*map(tg.tensor, item)) for item in zip(*args)]

    def columns(rows):
        return [np.stack(column) for column in zip(*map(arrays, rows))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.DetachedWarning)
        check([tg.vmap(f)(*args)], [np.stack(arrays(alone(f)))])
        gradient = tg.grad(loss, (0, 1, 2))
        try:
            expected = columns(alone(gradient))
        except RuntimeError as error:  # writes to memory of which it needs the values
            with pytest.raises(RuntimeError, match=re.escape(str(error)[:60])):
                tg.vmap(gradient)(*args)
            return
        check(tg.vmap(gradient)(*args), expected)
        total = tg.grad(lambda *args: tg.vmap(loss)(*args).sum(), (0, 1, 2))
        check(total(*args), expected)
        tangents = [np.cos(a) for a in args]
        pushed = tg.vmap(tg.jvp(loss, (0, 1, 2)))(*args, *tangents)[1]
        check(
            [pushed],
            [sum((g * t).reshape(size, -1).sum(axis=1) for g, t in zip(expected, tangents))],
        )
        x, *others = args
        rows = tg.vmap(tg.jacobian(f))(x, *others)
        check([rows], [np.stack(arrays(alone(tg.jacrev(f))))])
        check([tg.vmap(tg.hessian(loss))(x, *others)], [np.stack(arrays(alone(tg.hessian(loss))))])
        shared = tg.vmap(gradient, (0, None, 0))(args[0], args[1][0], args[2])
        repeated = [gradient(a, args[1][0], s) for a, s in zip(args[0], args[2])]
        check(shared, columns(repeated))
