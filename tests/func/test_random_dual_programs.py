"""Random programs with dual tensors: beside the tangents of the recorded graph."""

import os
import warnings

import numpy as np
import pytest
from random_functions import arrays, check, program

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw

COUNT = int(os.environ.get("TAPEGRAD_PROGRAMS", "60"))


def duals(values, tangents, requires_grad=False):
    return [
        fw.make_dual(tg.tensor(v, requires_grad=requires_grad), tg.tensor(t))
        for v, t in zip(values, tangents)
    ]


def tangent(value):
    found = fw.unpack_dual(value).tangent
    return tg.zeros(value.shape) if found is None else found


@pytest.mark.parametrize("seed", range(COUNT))
def test_program(seed):
    f, rng = program(seed)
    args = [rng.uniform(0.2, 0.9, shape) for shape in ((2, 3), (3,), ())]
    tangents = [rng.normal(size=a.shape) for a in args]
    weights = rng.normal(size=(2, 3))

    def loss(*args):
        return (f(*args) * weights).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.DetachedWarning)
        step = 1e-6
        moved = [
            arrays([f(*(tg.tensor(a + s * t) for a, t in zip(args, tangents)))])[0]
            for s in (step, -step)
        ]
        slope = (moved[0] - moved[1]) / (2 * step)
        with fw.dual_level():
            pushed = arrays([tangent(f(*duals(args, tangents)))])[0]
            np.testing.assert_allclose(pushed, slope, rtol=1e-5, atol=1e-6)
            with tg.no_grad():
                check([tangent(f(*duals(args, tangents)))], [pushed])
        try:
            gradients = tg.grad(loss, (0, 1, 2))(*args)
        except RuntimeError:  # writes to memory of which it needs the values
            return
        check(tg.jvp(f, (0, 1, 2))(*args, *tangents), [f(*map(tg.tensor, args)), pushed])
        second = tg.jvp(tg.grad(loss, (0, 1, 2)), (0, 1, 2))(*args, *tangents)[1]
        with fw.dual_level():
            inputs = duals(args, tangents, True)
            out = loss(*inputs)
            # reverse over forward: the gradient of the slope
            slopes = tg.autograd.grad(
                tangent(out), inputs, retain_graph=True, materialize_grads=True
            )
            check(slopes, second)
            # forward over reverse: the slope of the gradient
            found = tg.autograd.grad(out, inputs, materialize_grads=True)
            check(found, gradients)
            check([tangent(g) for g in found], second)
            # and of a transform in a level
            found = tg.grad(loss, (0, 1, 2))(*duals(args, tangents))
            check([tangent(g) for g in found], second)
            size = 3
            batch = [tg.stack([x] * size) for x in duals(args, tangents)]
            check([tangent(tg.vmap(f)(*batch))], [np.stack([pushed] * size)])

            def pushed_item(a, v, s, *directions):
                parts = [fw.make_dual(x, t) for x, t in zip((a, v, s), directions)]
                return fw.unpack_dual(f(*parts)).tangent

            if tangent(f(*duals(args, tangents))) is not None:
                stacks = [np.stack([x] * size) for x in (*args, *tangents)]
                found = tg.vmap(pushed_item)(*stacks)
                check([found], [np.stack([pushed] * size)])
