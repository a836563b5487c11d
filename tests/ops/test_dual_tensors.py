"""Every op of the table on dual tensors: its tangent, and the tangent of its gradient."""

import numpy as np
import pytest
from cases import ALL, as_list, names_of
from tangents import INVARIANTS, known, tangent_of

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd.api import grad
from tapegrad.ops.table.op import TABLE

# their gradients are refused, or have a phase or no second derivative
NO_SECOND = {"eig", "full_svd", "cofactor_slope"}
CONTEXTS = [tg.no_grad, tg.enable_grad, tg.inference_mode]


def as_float(value):
    if type(value) is list:
        return [as_float(item) for item in value]
    value = np.asarray(value)
    return value if value.dtype.kind in "fc" else value.astype(float)


def dual(value, t, requires_grad=False):
    if type(value) is list:
        return [dual(item, u, requires_grad) for item, u in zip(value, t)]
    return fw.make_dual(tg.tensor(as_float(value), requires_grad=requires_grad), tg.tensor(t))


def arguments(op, args, tangents, requires_grad=False):
    return [
        dual(value, tangents[n], requires_grad) if n in tangents else value
        for n, value in zip(op.arguments, args)
    ]


def tangents_in(out):
    return [fw.unpack_dual(z).tangent for z in as_list(out)]


def close(found, expected, rtol=1e-9):
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_the_tangent(case):
    name, args, given = case
    op = TABLE[name]
    names = known(op)
    for chosen in [names, *([n] for n in names if len(names) > 1)]:
        if not chosen:
            continue
        tangents, expected, *_ = tangent_of(op, args, given, chosen)
        with fw.dual_level():
            for mode in CONTEXTS:
                with mode():
                    found = tangents_in(op.public(*arguments(op, args, tangents), **given))
                for t, right in zip(found, as_list(expected), strict=True):
                    close(t, right)
            if op.is_method or name in INVARIANTS:
                continue
            found = tangents_in(op.public(*arguments(op, args, tangents, True), **given))
            for t, right in zip(found, as_list(expected), strict=True):
                close(t, right)


def losses(op, args, given, names):
    """The gradient of a number by the arguments of some names, as a function of these."""
    rng = np.random.default_rng(8)
    weights = [rng.normal(size=np.shape(z)) for z in as_list(op(*args, **given))]

    def loss(*values):
        left = iter(values)
        full = [next(left) if n in names else v for n, v in zip(op.arguments, args)]
        outputs = as_list(op.public(*full, **given))
        terms = [(tg.real(z * z) * w).sum() for z, w in zip(outputs, weights)]
        return sum(terms[1:], terms[0])

    return loss


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_the_tangent_of_the_gradient(case):
    name, args, given = case
    op = TABLE[name]
    names = [n for n in known(op) if type(args[op.arguments.index(n)]) is not list]
    if not names or name in NO_SECOND or name == "thin_svd":
        pytest.skip("no gradient of one argument to compare")
    loss = losses(op, args, given, names)
    values = [as_float(args[op.arguments.index(n)]) for n in names]
    tangents, *_ = tangent_of(op, args, given, names)
    directions = [tangents[n] for n in names]
    numbers = tuple(range(len(names)))

    def gradient(*parts):
        return tg.grad(loss, numbers)(*parts)

    try:
        expected = tg.jvp(gradient, numbers)(*values, *directions)[1]
    except (RuntimeError, TypeError, np.linalg.LinAlgError):
        pytest.skip("its second derivative is refused")
    with fw.dual_level():
        leaves = [tg.tensor(v, requires_grad=True) for v in values]
        duals = [fw.make_dual(x, tg.tensor(t)) for x, t in zip(leaves, directions)]
        found = grad(loss(*duals), leaves, materialize_grads=True)
        for g, right in zip(found, expected, strict=True):
            t = fw.unpack_dual(g).tangent
            close(tg.zeros(g.shape) if t is None else t, right, 1e-8)
