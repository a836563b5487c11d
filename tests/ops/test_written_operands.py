"""Arrays of NumPy that are overwritten after an op used them, for every op of the table."""

import contextlib

import numpy as np
import pytest
import scipy.sparse
from cases import ALL, as_list, is_refused, names_of

import tapegrad as tg
from tapegrad.ops.table.op import TABLE

PLAIN = (bool, int, float, str, type(None), slice, type)


def fresh(value):
    """A copy of a value, with all arrays in it."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(fresh, value))
    return value.copy() if hasattr(value, "copy") else value


def overwrite(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            overwrite(item)
    elif isinstance(value, np.ndarray):
        value[...] = 0
    elif scipy.sparse.issparse(value):
        value.data[:] = 0


def derivatives(op, args, given, number, is_written):
    """The gradient by one argument, and a derivative of that, after writes to the others."""
    args, given = fresh(args), {name: fresh(value) for name, value in given.items()}
    leaves = [tg.tensor(a, requires_grad=True) for a in as_list_of(args[number])]
    values = list(args)
    values[number] = leaves if isinstance(args[number], list) else leaves[0]
    found = [z for z in as_list(op(*values, **given)) if z.requires_grad]
    if is_written:
        overwrite([a for k, a in enumerate(args) if k != number])
        for value in given.values():
            overwrite(value)
    weights = [tg.tensor(np.cos(np.arange(z.size)).reshape(z.shape), z.dtype) for z in found]
    options = {"allow_unused": True, "materialize_grads": True}
    first = tg.autograd.grad(found, leaves, weights, create_graph=True, **options)
    total = sum(tg.real(g * g).sum() for g in first)
    if not total.requires_grad:
        return [g.detach().numpy() for g in first]
    second = ()
    with contextlib.suppress(TypeError):  # refused
        second = tg.autograd.grad(total, leaves, **options)
    return [g.detach().numpy() for g in (*first, *second)]


def as_list_of(value):
    return value if isinstance(value, list) else [value]


def make_cases():
    for case in ALL:
        name, args, given = case
        op = TABLE[name]
        if name in ("gamma_sample", "log_gamma_sample"):
            continue  # the result is the array of the last argument, which the package drew
        others = [*given.values()] if len(args) == 1 else [*args, *given.values()]
        if all(isinstance(value, PLAIN) for value in others) or "shown" in given:
            continue
        for number, argument in enumerate(op.arguments):
            dtype = np.asarray(as_list_of(args[number])[0]).dtype
            is_third_order = (name, argument) == ("cofactor_slope", "x")
            if argument not in op.rules or dtype.kind not in "fc" or is_refused(op, argument):
                continue
            if not is_third_order:
                yield pytest.param(case, number, id=f"{names_of(case)}-{number}")


CASES = list(make_cases())


@pytest.mark.parametrize(("case", "number"), CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_writes_to_operands_do_not_change_derivatives(case, number):
    name, args, given = case
    wanted = derivatives(TABLE[name], args, given, number, is_written=False)
    found = derivatives(TABLE[name], args, given, number, is_written=True)
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)
