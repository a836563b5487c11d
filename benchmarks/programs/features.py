"""Programs that use the features of autograd libraries beyond gradients, to measure their cost.

Most are a chain of a hundred small operations, so that one use takes about a hundredth of the time.
Names that the sides provide if they can:

- ``decay``, ``decay_in_context``, ``product``, ``sine_and_cosine``: functions with a derivative
  written by the user: with one input and output, with a separate ``setup_context``, with two
  inputs, with two outputs;
- ``watch_tensor``, ``watch_node``, ``retain_grad``: attach hooks that do nothing to a result or to
  its node, or keep the result's gradient;
- ``packed()``: a context in which saved values pass through the user's functions;
- ``own``: a copy of an array that may be written to;
- ``derivative``: the gradients of a function, which can be differentiated again;
- ``no_grad()``, ``inference_mode()``: contexts in which nothing is recorded;
- ``vmap``, ``gradient``, ``jacrev``, ``jacfwd``, ``hessian``, ``hvp``: transforms of functions.
"""

import operator
from functools import partial, reduce
from typing import Any

import numpy as np

from .cases import Size, Workload
from .losses import (
    chain,
    chain_size,
    draw_chain,
    draw_mlp,
    draw_vector,
    mlp,
    mlp_size,
    vector_size,
)

# --------------------------------------------------------------------------------------------------
# Functions with a derivative written by the user


def custom(xp, x):
    """A hundred applications of a function that saves its output."""
    decay = xp.decay
    z = x
    for _ in range(100):
        z = decay(z)
    return xp.sum(z)


def custom_in_context(xp, x):
    """The same function with ``setup_context``."""
    decay = xp.decay_in_context
    z = x
    for _ in range(100):
        z = decay(z)
    return xp.sum(z)


def custom_two_inputs(xp, x, y):
    """A hundred applications of a function that saves both inputs."""
    product = xp.product
    z = x
    for _ in range(100):
        z = product(z, y)
    return xp.sum(z)


def custom_two_outputs(xp, x):
    """A hundred applications of a function that saves both outputs, and as many plain sums."""
    sine_and_cosine = xp.sine_and_cosine
    z = x
    for _ in range(100):
        s, c = sine_and_cosine(z)
        z = s + c
    return xp.sum(z)


# --------------------------------------------------------------------------------------------------
# Hooks


def marked(xp, x, y, mark):
    """A hundred operations, with something done to every tenth result."""
    sin = xp.sin
    z = x
    for _ in range(10):
        for _ in range(5):
            z = sin(z * y)
        mark(z)
    return xp.sum(z)


def ignore(*arguments):
    """Do nothing."""


def hooks_none(xp, x, y):
    """The chain without hooks, for reference."""
    return marked(xp, x, y, ignore)


def hooks_of_tensors(xp, x, y):
    """A hook on every tenth result."""
    return marked(xp, x, y, xp.watch_tensor)


def hooks_of_nodes(xp, x, y):
    """A hook before and one after every tenth node."""
    return marked(xp, x, y, xp.watch_node)


def backward_none(xp, x, y):
    """The chain without hooks, its gradients accumulated, for reference."""
    return marked(xp, x, y, ignore)


def backward_leaf_hooks(xp, x, y):
    """Hooks after the accumulation in both leaves."""
    return marked(xp, x, y, ignore)


def backward_retain_grad(xp, x, y):
    """The gradient of every tenth result kept."""
    return marked(xp, x, y, xp.retain_grad)


def saved_hooks(xp, x, y):
    """Twenty operations whose saved values go through functions that return them as they are."""
    with xp.packed():
        return chain(xp, x, y, steps=10)


# --------------------------------------------------------------------------------------------------
# Writing in place


def scale_slices(xp, x, w):
    """Fifty slices multiplied in place."""
    y = xp.own(x)
    for k in range(50):
        y[20 * k : 20 * k + 10] *= w[k]
    return xp.sum(y * y)


def assign_slices(xp, x, w):
    """Fifty slices assigned."""
    y = xp.own(x)
    for k in range(50):
        y[20 * k : 20 * k + 10] = x[20 * k + 10 : 20 * k + 20] * w[k]
    return xp.sum(y * y)


def add_to_views(xp, x, w):
    """Fifty additions to views, which write to their base."""
    y = xp.own(x)
    for k in range(50):
        view = y[20 * k : 20 * k + 10]
        view += w[k]
    return xp.sum(y * y)


def draw_written(rng, n):
    """A vector to be written to, and fifty factors."""
    return rng.standard_normal(n), rng.uniform(0.5, 1.5, 50)


# --------------------------------------------------------------------------------------------------
# Double backward


def chain_twice(xp, x, y, *, steps):
    """The squared norm of the chain's gradient."""
    (g,) = xp.derivative(lambda x: chain(xp, x, y, steps=steps), x)
    return xp.sum(g * g)


def mlp_hvp(xp, x, target, *weights_and_directions):
    """The gradient of a perceptron's loss along a direction; its gradient is Hessian times that."""
    half = len(weights_and_directions) // 2
    weights, directions = weights_and_directions[:half], weights_and_directions[half:]
    gradients = xp.derivative(lambda *weights: mlp(xp, x, target, *weights), *weights)
    return reduce(operator.add, (xp.sum(g * v) for g, v in zip(gradients, directions, strict=True)))


def draw_mlp_hvp(rng, batch, widths):
    """A perceptron and a direction for each of its weights."""
    x, target, *weights = draw_mlp(rng, batch, widths)
    return x, target, *weights, *(rng.standard_normal(w.shape) for w in weights)


def gradient_penalty(xp, x, target, *weights):
    """A perceptron's loss plus how far its gradients by the inputs are from unit length."""
    (g,) = xp.derivative(lambda x: mlp(xp, x, target, *weights), x)
    norms = xp.sqrt(xp.sum(g * g, axis=1))
    return mlp(xp, x, target, *weights) + xp.sum((norms - 1.0) ** 2)


# --------------------------------------------------------------------------------------------------
# Modes


def chain_no_grad(xp, x, y, *, steps):
    """The chain without a graph."""
    with xp.no_grad():
        return chain(xp, x, y, steps=steps)


def chain_inference_mode(xp, x, y, *, steps):
    """The chain without a graph, nor the means to make one later."""
    with xp.inference_mode():
        return chain(xp, x, y, steps=steps)


# --------------------------------------------------------------------------------------------------
# Transforms


def sample_loss(xp, w, b, v, x, target):
    """The squared error of a small network at one sample."""
    return (xp.sum(xp.tanh(x @ w + b) * v) - target) ** 2


def per_sample_gradients(xp, w, b, v, x, target):
    """The sum of squares of the gradients of all samples."""
    gradients = xp.gradient(partial(sample_loss, xp), (0, 1, 2))
    found = xp.vmap(gradients, (None, None, None, 0, 0))(w, b, v, x, target)
    return reduce(operator.add, (xp.sum(part * part) for part in found))


def looped_gradients(xp, w, b, v, x, target):
    """The same by a loop over the samples, for reference."""
    gradients = xp.gradient(partial(sample_loss, xp), (0, 1, 2))
    found = [gradients(w, b, v, x[i], target[i]) for i in range(len(target))]
    return reduce(operator.add, (xp.sum(part * part) for parts in found for part in parts))


def draw_samples(rng, samples, inputs, hidden):
    """Weights of a network with one hidden layer, samples and targets."""
    w, v = rng.standard_normal((inputs, hidden)) / 5.0, rng.standard_normal(hidden) / 5.0
    return w, np.zeros(hidden), v, rng.standard_normal((samples, inputs)), np.ones(samples)


def energy(xp, a, x):
    """A function of a vector with a dense Hessian."""
    return xp.sum(xp.tanh(a @ x) ** 2) + xp.sum(x**4)


def forces(xp, a, x):
    """A vector function with a dense Jacobian."""
    return xp.tanh(a @ x) * x


def whole_hessian(xp, a, x):
    """The sum of squares of all second derivatives."""
    return xp.sum(xp.hessian(partial(energy, xp, a))(x) ** 2)


def plain_gradient(xp, a, x):
    """The sum of the gradient, for reference."""
    return xp.sum(xp.gradient(partial(energy, xp, a), 0)(x))


def hessian_product(xp, a, x):
    """A product of the Hessian with a vector."""
    return xp.sum(xp.hvp(partial(energy, xp, a), x, x))


def jacobian_by_rows(xp, a, x):
    """The sum of squares of the Jacobian, in reverse mode."""
    return xp.sum(xp.jacrev(partial(forces, xp, a))(x) ** 2)


def jacobian_by_columns(xp, a, x):
    """The sum of squares of the Jacobian, in forward mode."""
    return xp.sum(xp.jacfwd(partial(forces, xp, a))(x) ** 2)


def draw_dense(rng, n):
    """A matrix and a vector."""
    return rng.standard_normal((n, n)) / np.sqrt(n), rng.standard_normal(n)


# --------------------------------------------------------------------------------------------------
# Complex numbers


def complex_chain(xp, x, y):
    """Ten products and exponentials of complex numbers, then their absolute values."""
    exp = xp.exp
    z = x
    for _ in range(10):
        z = exp(z * y)
    return xp.sum(xp.abs(z))


def draw_complex(rng, n):
    """Two complex vectors whose chain stays bounded."""

    def normal(scale):
        return scale * (rng.standard_normal(n) + 1j * rng.standard_normal(n))

    return normal(0.5), np.tanh(normal(0.1))


# --------------------------------------------------------------------------------------------------
# The table


def chain_sizes(steps: int) -> tuple[Size, ...]:
    """Small and medium vectors."""
    return tuple(chain_size(n, steps) for n in (8, 1000))


VECTORS = (vector_size(8), vector_size(1000))
HUNDRED = {"quick": vector_size(8), "sizes": VECTORS}
WRITTEN = {
    "draw": draw_written,
    "wrt": (0, 1),
    "quick": vector_size(1000),
    "sizes": (vector_size(1000),),
    "group": "mutation",
    "needs": ("own",),
}
TRANSFORMS: dict[str, Any] = {"group": "transforms", "needs": ("vmap", "hvp"), "how": "forward"}
DOUBLE: dict[str, Any] = {"group": "double", "needs": ("derivative",)}

FEATURES = (
    Workload(custom, draw_vector, (0,), **HUNDRED, group="functions"),
    Workload(
        custom_in_context,
        draw_vector,
        (0,),
        **HUNDRED,
        group="functions",
        needs=("decay_in_context",),
    ),
    Workload(custom_two_inputs, draw_chain, (0, 1), **HUNDRED, group="functions"),
    Workload(custom_two_outputs, draw_vector, (0,), **HUNDRED, group="functions"),
    *(
        Workload(loss, draw_chain, (0, 1), **HUNDRED, group="hooks", needs=("watch_tensor",))
        for loss in (hooks_none, hooks_of_tensors, hooks_of_nodes)
    ),
    *(
        Workload(
            loss,
            draw_chain,
            (0, 1),
            **HUNDRED,
            group="hooks",
            needs=("retain_grad",),
            how="backward",
            leaf_hooks=loss is backward_leaf_hooks,
        )
        for loss in (backward_none, backward_leaf_hooks, backward_retain_grad)
    ),
    Workload(saved_hooks, draw_chain, (0, 1), **HUNDRED, group="saved", needs=("packed",)),
    *(Workload(loss, **WRITTEN) for loss in (scale_slices, assign_slices, add_to_views)),
    Workload(
        chain_twice,
        draw_chain,
        (0,),
        quick=chain_size(8, steps=3),
        sizes=chain_sizes(100),
        **DOUBLE,
    ),
    Workload(
        mlp_hvp,
        draw_mlp_hvp,
        (2, 3, 4, 5, 6, 7),
        quick=mlp_size(4, 3, 5, 5, 2),
        sizes=(mlp_size(128, 64, 256, 256, 10),),
        **DOUBLE,
    ),
    Workload(
        gradient_penalty,
        draw_mlp,
        (2, 3, 4, 5, 6, 7),
        quick=mlp_size(4, 3, 5, 5, 2),
        sizes=(mlp_size(32, 8, 32, 32, 1),),
        **DOUBLE,
    ),
    *(
        Workload(
            loss,
            draw_chain,
            (0, 1),
            quick=chain_size(8, steps=10),
            sizes=chain_sizes(500),
            group="modes",
            needs=("no_grad", "inference_mode"),
            how="forward",
        )
        for loss in (chain_no_grad, chain_inference_mode)
    ),
    Workload(
        per_sample_gradients,
        draw_samples,
        (),
        quick=Size("8", {"samples": 8, "inputs": 3, "hidden": 4}),
        sizes=(
            Size("2000", {"samples": 2000, "inputs": 20, "hidden": 32}),
            Size("200", {"samples": 200, "inputs": 20, "hidden": 32}),
        ),
        **TRANSFORMS,
    ),
    Workload(
        looped_gradients,
        draw_samples,
        (),
        quick=Size("8", {"samples": 8, "inputs": 3, "hidden": 4}),
        sizes=(Size("2000", {"samples": 2000, "inputs": 20, "hidden": 32}),),
        **TRANSFORMS,
    ),
    *(
        Workload(
            loss,
            draw_dense,
            (),
            quick=Size("n=5", {"n": 5}),
            sizes=(Size("n=10", {"n": 10}), Size("n=100", {"n": 100})),
            **TRANSFORMS,
        )
        for loss in (
            whole_hessian,
            plain_gradient,
            hessian_product,
            jacobian_by_rows,
            jacobian_by_columns,
        )
    ),
    Workload(
        complex_chain,
        draw_complex,
        (0, 1),
        quick=vector_size(8),
        sizes=VECTORS,
        group="complex",
    ),
)
