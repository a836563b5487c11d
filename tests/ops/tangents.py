"""Directions of arguments of every op, and the tangents along them by the rules."""

import numpy as np
from cases import is_refused

from tapegrad.ops.table.array_kinds import Pointwise


def products(outputs):
    """What is the same for vectors of all phases, the first two of u, s, vt or of w, v."""
    if len(outputs) == 3:
        u, s, vt = outputs
        return [np.einsum("...ik,...kj->...kij", u[..., : s.shape[-1]], vt[..., : s.shape[-1], :])]
    w, v = outputs
    return [w, np.einsum("...ik,...jk->...kij", v, v.conj())]


# derivatives of what has phases, or vectors of no derivative, are compared by these
INVARIANTS = {"eigh", "eig", "thin_svd", "full_svd"}
NO_DERIVATIVE = {("cofactor_slope", "x")}


def values_of(op, args, given):
    """What rules may read, by name, and the outputs."""
    bound = op.bind(args, given)
    z = op(*args, **given)
    z = tuple(z) if isinstance(z, tuple) else np.asarray(z)
    values = {**bound, "z": z}
    for name in op.arguments:
        value = bound[name]
        values[f"{name}_shape"] = (
            [v.shape for v in value] if type(value) is list else np.shape(value)
        )
    for name, compute in getattr(op, "extras", {}).items():
        values[name] = compute(bound["x"], z, bound["axis"])
    return values, z


def differentiable(op):
    return [n for n in op.arguments if n in op.rules and (op.name, n) not in NO_DERIVATIVE]


def direction(value, rng):
    if type(value) is list:
        return [direction(item, rng) for item in value]
    t = rng.standard_normal(np.shape(value))
    return t + 1j * rng.standard_normal(np.shape(value)) if np.iscomplexobj(value) else t


def moved(value, t, h):
    return (
        [a + h * b for a, b in zip(value, t, strict=True)] if type(value) is list else value + h * t
    )


def tangent_of(op, args, given, names):
    rng = np.random.default_rng(2)
    values, z = values_of(op, args, given)
    tangents = {name: direction(values[name], rng) for name in names}
    if op.name in ("cholesky", "eigh"):
        tangents = {name: t + t.conj().mT for name, t in tangents.items()}
    out = (z.shape, z.dtype) if isinstance(z, np.ndarray) else (z[0].shape, z[0].dtype)
    return tangents, op.tangent(tangents, values, out), values, z


def known(op):
    """The arguments that there are derivatives by."""
    return [n for n in differentiable(op) if not (isinstance(op, Pointwise) and is_refused(op, n))]
