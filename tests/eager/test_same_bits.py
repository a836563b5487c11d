"""An op computes the same bits in every mode: recomputed values are those of the first time."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.eager.numeric import PUBLIC  # noqa: F401 (fills the table)
from tapegrad.ops.table.kinds import COMPILED_FROM, Elementwise
from tapegrad.ops.table.op import TABLE

OPS = sorted(
    name
    for name, op in TABLE.items()
    if isinstance(op, Elementwise) and len(op.arguments) <= 2 and not op.parameters
)
MANY = 3 * COMPILED_FROM
SHAPES = {
    "few": [(3,), (3,)],
    "many": [(MANY,), (MANY,)],
    "many and one": [(MANY,), (1,)],
    "one and many": [(1,), (MANY,)],
    "rows": [(COMPILED_FROM, 3), (3,)],
    "a number": [(MANY,), None],
    "after a number": [None, (MANY,)],
}


def operands(op, shapes):
    """Return arrays in the domains of an op, and numbers where there is no shape."""
    rng = np.random.default_rng(7)
    found = []
    for argument, shape in zip(op.arguments, shapes):
        low, high = op.domains.get(argument, (0.2, 0.8))[:2]
        values = rng.uniform(low, high, shape)
        found.append(float(values) if shape is None else values)
    return found


@pytest.mark.parametrize("with_large", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", OPS)
def test_in_every_mode(name, shapes, with_large):
    op = TABLE[name]
    if with_large:
        tg.zeros(1 << 15, requires_grad=True) * 1.0
    given = operands(op, SHAPES[shapes])
    if all(isinstance(value, float) for value in given):
        pytest.skip("no array")

    def tensors(requires_grad):
        return [
            v if isinstance(v, float) else tg.tensor(v, requires_grad=requires_grad) for v in given
        ]

    expected = op(*tensors(True)).detach().numpy()
    found = {"tensors": op(*tensors(False)).numpy()}
    with tg.no_grad():
        found["no_grad"] = op(*tensors(True)).numpy()
    with tg.inference_mode():
        found["inference mode"] = op(*tensors(False)).numpy()
    if len(given) == 2 and not isinstance(given[0], float):
        first = tg.tensor(given[0], requires_grad=True)
        found["an array"] = op(first, given[1]).detach().numpy()
    for mode, value in found.items():
        np.testing.assert_array_equal(value, expected, err_msg=mode)
