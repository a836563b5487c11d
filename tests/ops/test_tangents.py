"""Tangents of every op of the table, beside differences and beside its cotangents."""

import numpy as np
import pytest
from cases import ALL, INDEX, M, V, as_list, elementwise_case, names_of
from tangents import (
    INVARIANTS,
    direction,
    known,
    moved,
    products,
    tangent_of,
    values_of,
)

from tapegrad.ops import indexing, linalg, shape
from tapegrad.ops.table.array_kinds import Linear
from tapegrad.ops.table.kinds import View
from tapegrad.ops.table.op import TABLE, reads_of

# their values are drawn: a difference at the same numbers is 0 (see test_sampling.py)
DRAWN = {"gamma_sample", "log_gamma_sample"}


def slopes(evaluate, h=1e-5):
    """Differences of the outputs of a function of a step, of fourth order."""
    near, far = (zip(evaluate(k * h), evaluate(-k * h), strict=True) for k in (1, 2))
    return [
        (8.0 * (a - b) - (c - d)) / (12.0 * h) for (a, b), (c, d) in zip(near, far, strict=True)
    ]


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_beside_differences(case):
    name, args, given = case
    names = known(TABLE[name]) if name not in DRAWN else []
    for chosen in [names, *([n] for n in names if len(names) > 1)]:
        if chosen:
            check_tangents(name, args, given, chosen)


def check_tangents(name, args, given, names):
    op = TABLE[name]
    tangents, found, values, z = tangent_of(op, args, given, names)
    compare = products if name in INVARIANTS else list

    def at(step):
        new = (
            moved(values[n], tangents[n], step) if n in names else values[n] for n in op.arguments
        )
        return compare([np.asarray(out) for out in as_list(op(*new, **given))])

    def along(step):
        return compare([out + step * t for out, t in zip(as_list(z), as_list(found), strict=True)])

    for one, other in zip(slopes(along, 1e-3), slopes(at), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("case", ALL, ids=names_of)
def test_the_transpose_of_cotangents(case):
    """<g, J t> = <J^T g, t>, in the real parts."""
    name, args, given = case
    op = TABLE[name]
    names = known(op)
    if not names or (name in INVARIANTS and (name == "full_svd" or np.iscomplexobj(args[0]))):
        pytest.skip("cotangents of phases are refused")
    if name == "eig":
        pytest.skip("it is real or complex")
    tangents, found, values, z = tangent_of(op, args, given, names)
    g = [direction(out, np.random.default_rng(3)) for out in as_list(z)]
    over = sum(inner(a, b) for a, b in zip(g, as_list(found), strict=True))
    values["used"] = range(len(g))
    back = 0.0
    for n in names:
        pulled = op.cotangent(n, tuple(g) if isinstance(z, tuple) else g[0], values)
        pairs = (
            zip(pulled, tangents[n], strict=True)
            if type(pulled) is list
            else [(pulled, tangents[n])]
        )
        back += sum(inner(a, b) for a, b in pairs)
    np.testing.assert_allclose(back, over, rtol=1e-9, atol=1e-9)


def inner(one, other):
    return np.sum(np.real(np.conj(one) * other))


def test_every_op_has_tangents():
    tested = {name for name, *_ in ALL}
    assert tested == {name for name, op in TABLE.items() if not op.given}
    for name, op in TABLE.items():
        if op.kind == "opaque":
            assert op.jvps.keys() == op.rules.keys(), name
            for argument, rule in op.jvps.items():
                reads = {*reads_of(rule)} - {"t"}
                assert reads <= op.needs(argument), (name, argument)


@pytest.mark.parametrize("name", ["gammainc", "betainc", "jv", "stdtr"])
def test_without_a_derivative(name):
    op = TABLE[name]
    args, given = elementwise_case(op, [(3,)] * 3)
    with pytest.raises(TypeError, match="has no derivative with respect to"):
        tangent_of(op, args, given, [op.arguments[0]])


def test_one_tangent_of_several():
    """Of linear ops, a tangent that is missing is 0."""
    for op, args, given in (
        (indexing.put, (V, V[:3]), {"index": np.array([4, 0, 1])}),
        (indexing.add_at, (V, V[:3]), {"index": INDEX}),
    ):
        assert isinstance(op, Linear)
        _, both, _, _ = tangent_of(op, args, given, ["x", "value"])
        parts = []
        for name in ("x", "value"):
            values, z = values_of(op, args, given)
            t = {"x": direction(V, rng := np.random.default_rng(2)), "value": direction(V[:3], rng)}
            parts.append(op.tangent({name: t[name]}, values, (z.shape, z.dtype)))
        np.testing.assert_array_equal(parts[0] + parts[1], both)


def test_views_are_views():
    t = np.arange(12.0).reshape(4, 3)
    found = shape.transpose.tangent({"x": t}, {"axes": None, "x_shape": (4, 3)}, ((3, 4), t.dtype))
    assert isinstance(shape.transpose, View)
    assert np.shares_memory(found, t)


def test_added_singular_vectors_have_no_tangent():
    _, (u, _, vt), _, _ = tangent_of(linalg.full_svd, (M,), {}, ["x"])
    assert np.isnan(u[:, 3:]).all()
    assert np.isfinite(u[:, :3]).all()
    assert np.isfinite(vt).all()
