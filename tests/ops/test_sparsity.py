"""Sparsity of every op of the table, beside the elements of its Jacobian."""

import numpy as np
import pytest
from cases import ALL, as_list, is_refused, names_of

from tapegrad.ops.table.array_kinds import Pointwise
from tapegrad.ops.table.op import TABLE

# phases have no tangents, and singular matrices no third derivatives
LEFT = ("full_svd", "eig", "cofactor_slope")
CASES = [case for case in ALL if case[0] not in LEFT]
EXACT = ("view", "linear", "bilinear")


def values_of(op, args, given):
    """All values that a rule may read, by name."""
    z = op(*args, **given)
    values = {**op.parameters, **given, **dict(zip(op.arguments, args, strict=True)), "z": z}
    for name, value in zip(op.arguments, args, strict=True):
        is_list = type(value) is list
        values[f"{name}_shape"] = [v.shape for v in value] if is_list else np.shape(value)
    for name, extra in getattr(op, "extras", {}).items():
        values[name] = extra(args[0], z, given["axis"])
    return values


def along(op, argument, values, number):
    """The tangent of the output along an element of an argument, in one vector."""
    value = values[argument]
    is_list = type(value) is list
    units, left = [], number
    for item in value if is_list else [value]:
        unit = np.zeros_like(item)
        if 0 <= left < unit.size:
            unit.flat[left] = 1.0 + 1.0j if np.iscomplexobj(unit) else 1.0
        left -= unit.size
        units.append(unit)
    z = as_list(values["z"])
    with np.errstate(all="ignore"):
        found = op.tangent(
            {argument: units if is_list else units[0]}, values, (z[0].shape, z[0].dtype)
        )
    return np.concatenate([np.ravel(t) for t in as_list(found)])


@pytest.mark.parametrize("case", CASES, ids=names_of)
def test_beside_the_jacobian(case):
    name, args, given = case
    op = TABLE[name]
    values = values_of(op, args, given)
    outputs = sum(np.size(z) for z in as_list(values["z"]))
    for argument in op.arguments:
        if argument not in op.rules or (isinstance(op, Pointwise) and is_refused(op, argument)):
            continue
        value = values[argument]
        size = sum(map(np.size, value)) if type(value) is list else np.size(value)
        jacobian = np.stack([along(op, argument, values, k) for k in range(size)], axis=1)
        pattern = np.zeros((outputs, size), bool)
        rows, columns = op.sparsity(argument, args, {**op.parameters, **given})
        pattern[rows, columns] = True
        assert not np.any(jacobian[~pattern])
        if op.kind in EXACT:
            np.testing.assert_array_equal(pattern, np.abs(jacobian) > 1e-14)
        elif op.kind != "opaque":  # one element for each of the output, or of the argument
            assert rows.size == max(outputs, size)


def test_every_op_has_one():
    kinds = {type(op) for op in TABLE.values()}
    assert all("sparsity" in dir(kind) for kind in kinds)
    given = {name for name, op in TABLE.items() if op.given}  # see test_elementwise.py
    assert {name for name, *_ in CASES} == {*TABLE} - {*LEFT} - given
