"""Ops that compiled code calls in Python: values, and derivatives to second order, of each."""

import ast

import numpy as np
import pytest
from cases import ALL, is_refused, names_of

from tapegrad.eager.numeric import NAMESPACES
from tapegrad.ops.table.op import TABLE
from tapegrad.transform import functions
from tapegrad.transform.eager_calls import compute

functions.register()


def parameters_of(op):
    """The parameters of the public function of an op, None if compiled code does not call it."""
    for dotted in op.names:
        namespace, _, short = dotted.rpartition(".")
        typing = getattr(NAMESPACES[namespace][short], "tapegrad_overloaded", None)
        if typing is not None and typing.parameters is not None:
            return dotted, list(typing.signature.parameters)
    return None, []


def is_call(case):
    name, args, given = case
    parameters = parameters_of(TABLE[name])[1]
    try:
        ast.literal_eval(repr(given))  # constants in a program
    except (SyntaxError, ValueError):
        return False
    arrays = all(isinstance(a, np.ndarray | float) and np.asarray(a).dtype == float for a in args)
    if not parameters or not arrays:
        return False  # before it is called, which may compile
    result = TABLE[name](*args, **given)
    return not isinstance(result, tuple) and np.asarray(result).dtype == float


CALLS = [case for case in ALL if is_call(case)]


def path_of(case):
    name, args, given = case
    op = TABLE[name]
    dotted, parameters = parameters_of(op)
    arguments = dict(zip(op.arguments, ((n,) for n in op.arguments[: len(args)]), strict=False))
    arguments |= {n: (n, value) for n, value in given.items()}
    return dotted, tuple(arguments[n] for n in parameters if n in arguments)


def run(path, *values):
    return compute(repr(path), tuple(str(np.asarray(v).dtype) for v in values), values)


def moved(values, k, step):
    return [v + step if j == k else v for j, v in enumerate(values)]


def test_there_are_many():
    assert len({case[0] for case in CALLS}) >= 35


@pytest.mark.parametrize("case", CALLS, ids=names_of)
def test_value_and_derivatives(case):
    name, values, given = case
    path, rng, h = path_of(case), np.random.default_rng(3), 1e-6
    z = run((path,), *values)
    np.testing.assert_allclose(z, TABLE[name](*values, **given), rtol=1e-13, atol=1e-15)
    g = rng.uniform(-1, 1, np.shape(z))
    for k, argument in enumerate(TABLE[name].arguments[: len(values)]):
        if is_refused(TABLE[name], argument):
            continue
        t, s = rng.uniform(-1, 1, (2, *np.shape(values[k])))
        if name == "cholesky":  # of symmetric matrices
            t, s = t + t.T, s + s.T

        def vjp(*values, k=k):
            return run((path, ("vjp", k)), *values, run((path,), *values), g)

        cotangent = vjp(*values)
        assert cotangent.shape == np.shape(values[k])
        ahead, behind = (run((path,), *moved(values, k, step * t)) for step in (h, -h))
        slope = np.sum(g * (ahead - behind)) / (2 * h)
        np.testing.assert_allclose(np.sum(cotangent * t), slope, rtol=1e-5, atol=1e-7)
        tangent = run((path, ("jvp", k)), *values, z, t)
        np.testing.assert_allclose(np.sum(g * tangent), slope, rtol=1e-5, atol=1e-7)
        second = run((path, ("vjp", k), ("vjp", k)), *values, z, g, cotangent, t)
        ahead, behind = (vjp(*moved(values, k, step * s)) for step in (h, -h))
        slope = np.sum(t * (ahead - behind)) / (2 * h)
        np.testing.assert_allclose(np.sum(second * s), slope, rtol=1e-4, atol=1e-6)
        for mode in (("jvp", k), ("vjp", k)):  # the other ways to second order
            other = run(
                (path, mode, ("jvp", k)), *values, z, *_given(mode, g, t, tangent, cotangent), s
            )
            found = np.sum(g * other) if mode[0] == "jvp" else np.sum(other * t)
            np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-6)


def _given(mode, g, t, tangent, cotangent):
    """What the inner derivative is given, and its result."""
    return (t, tangent) if mode[0] == "jvp" else (g, cotangent)
