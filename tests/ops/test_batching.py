"""Batches of every op of the table, beside its items one by one."""

import itertools

import numpy as np
import pytest
from cases import ALL, M, S, V, as_list, is_refused, names_of

import tapegrad as tg
from tapegrad.eager.tensor import Tensor
from tapegrad.ops import indexing, products, shape
from tapegrad.ops.table.op import TABLE

SIZE = 3
# more indices: where the axis of a batch goes depends on where the arrays stand
T = np.arange(48.0).reshape(2, 4, 3, 2)
FIRST, SECOND = np.array([[0, 1], [1, 1]]), np.array([2, 0])
INDICES = [
    (FIRST,),
    (slice(None), SECOND),
    (1, slice(1, None), SECOND),
    (FIRST, slice(None), SECOND),
    (FIRST, SECOND),
    (slice(None), SECOND, None, SECOND),
    (..., SECOND, 1),
    (T[:, :, 0, 0] % 5.0 > 1.0,),
    (FIRST[0], slice(None), np.array([True, False, True])),
    (None, FIRST),
    FIRST,
    SECOND > 0,
]
MORE = [
    *(("gather", (T,), {"index": index}) for index in INDICES),
    *(("put", (T, np.cos(T[index])), {"index": index}) for index in INDICES),
    *(("put", (T, np.cos(T[index][..., :1])), {"index": index}) for index in INDICES),
    *(("add_at", (T, np.cos(T[index])), {"index": index}) for index in INDICES),
    *(("scatter_add", (T[i] + 1.0,), {"shape": T.shape, "index": i}) for i in INDICES),
    ("put", (T, V[0]), {"index": (slice(1, None), 2)}),
    ("getitem", (T,), {"index": 1}),
    ("getitem", (T,), {"index": (..., None, 0)}),
    ("getitem", (V,), {"index": ()}),
    ("reshape", (T,), {"shape": (-1, 6)}),
    ("reshape", (T,), {"shape": -1}),
    ("transpose", (T,), {"axes": None}),
    ("transpose", (T,), {"axes": (-1, 0, -2, 1)}),
    ("broadcast_to", (V,), {"shape": (2, 3, 6)}),
    ("broadcast_to", (np.array(2.0),), {"shape": 4}),
    ("diagonal", (T,), {"offset": 0, "axis1": -1, "axis2": 0}),
    ("concatenate", ([T, T[:, :1]],), {"axis": -3}),
    ("cumsum", (T,), {"axis": -2}),
    ("sum", (T,), {"axis": (-1, 0), "keepdims": True}),
    ("max", (np.array(3.0),), {"axis": None}),
    ("matmul", (T, M[:2, :2]), {}),
    ("matmul", (M, V[:3]), {}),
    ("matmul", (V[:3], T), {}),
    ("matmul", (T, V[:2]), {}),
    ("matmul", (T, np.swapaxes(T[0], -1, -2)), {}),
    ("contract", ([T, V[:3]],), {"subscripts": "zyxw,x->wz"}),
    ("solve", (S, np.stack([M[:3], M[1:]])), {}),
    ("where", (T > 4.0, V[:2], T), {}),
]  # fmt: skip


def parts_of(args):
    """For every array among the arguments, whether it is one of a list."""
    return [len(a) if type(a) is list else 0 for a in args]


def choices(args):
    """The ways in which arguments can be batched."""
    counts = parts_of(args)
    flat = sum(count or 1 for count in counts)
    for chosen in itertools.product([True, False], repeat=flat):
        if any(chosen):
            left = iter(chosen)
            yield tuple([next(left) for _ in range(n)] if n else next(left) for n in counts)


def item(value, k, whole=False):
    """An argument of the item of a number: another one for every item."""
    if type(value) is list:
        return [item(v, k) for v in value]
    value = np.asarray(value)
    if value.dtype == bool:
        return ~value if k % 2 else value
    return value if whole else value * (1.0 + 0.01 * k)


def batch_of(value, on, whole=False):
    if type(value) is list:
        return [batch_of(v, one) for v, one in zip(value, on, strict=True)]
    return np.stack([item(value, k, whole) for k in range(SIZE)]) if on else np.asarray(value)


def item_of(value, on, k, whole=False):
    if type(value) is list:
        return [item_of(v, one, k) for v, one in zip(value, on, strict=True)]
    return item(value, k, whole) if on else np.asarray(value)


def one_by_one(op, args, batched, given, whole):
    outputs = []
    for k in range(SIZE):
        of_item = [item_of(*each, k, w) for *each, w in zip(args, batched, whole, strict=True)]
        outputs.append([np.asarray(out) for out in as_list(op(*of_item, **given))])
    return [np.stack(out) for out in zip(*outputs, strict=True)]


@pytest.mark.parametrize("case", [*ALL, *MORE], ids=names_of)
def test_beside_items(case):
    name, args, given = case
    op = TABLE[name]
    parameters = {**op.parameters, **given}
    whole = [argument == "n" for argument in op.arguments]
    for batched in choices(args):
        wide = [batch_of(*each) for each in zip(args, batched, whole, strict=True)]
        found = as_list(op.batch(wide, batched, parameters))
        expected = one_by_one(op, args, batched, given, whole)
        for one, other in zip(found, expected, strict=True):
            assert np.shape(one) == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def in_tensors(value):
    if type(value) is list:
        return [in_tensors(v) for v in value]
    is_float = value.dtype.kind in "fc"
    return tg.tensor(value, requires_grad=True) if is_float else value


def tensors_in(values):
    for value in values:
        if type(value) is list:
            yield from tensors_in(value)
        elif isinstance(value, Tensor):
            yield value


def total(outputs):
    """A number that every element of the outputs enters with a weight of its own."""
    found = 0.0
    for out in as_list(outputs):
        if isinstance(out, Tensor) and out.requires_grad:
            weights = np.cos(np.arange(float(out.size))).reshape(out.shape)
            found = found + (tg.real(out) * weights).sum()
    return found


# of these some outputs, or directions, have no derivative
WITHOUT = {"cofactor_slope", "full_svd", "eig"}


def has_gradient(case):
    name, args, _ = case
    op = TABLE[name]
    return (
        name not in WITHOUT
        and not any(type(a) is not list and np.iscomplexobj(a) for a in args)
        and all(n in op.rules and not is_refused(op, n) for n in op.arguments)
    )


WITH_GRADIENT = [case for case in [*ALL, *MORE] if has_gradient(case)]


@pytest.mark.parametrize("case", WITH_GRADIENT, ids=names_of)
def test_gradients_beside_items(case):
    """The rules are written with ops, so that a batch of tensors has its history."""
    name, args, given = case
    op = TABLE[name]
    parameters = {**op.parameters, **given}
    batched = tuple([True] * len(a) if type(a) is list else True for a in args)
    wide = in_tensors([batch_of(*each) for each in zip(args, batched, strict=True)])
    leaves = list(tensors_in(wide))
    found = total(op.batch(wide, batched, parameters))
    if not isinstance(found, Tensor):
        pytest.skip("constant")
    slopes = tg.autograd.grad(found, leaves, allow_unused=True)
    expected = []
    outputs = []
    for k in range(SIZE):
        of_item = in_tensors([item_of(*each, k) for each in zip(args, batched, strict=True)])
        expected.append(list(tensors_in(of_item)))
        outputs.append(as_list(op.public(*of_item, **given)))
    stacks = [tg.stack(list(out)) for out in zip(*outputs, strict=True)]
    parts = tg.autograd.grad(
        total(tuple(stacks)), [t for item in expected for t in item], allow_unused=True
    )
    count = len(leaves)
    for place, slope in enumerate(slopes):
        pieces = parts[place::count]
        assert (slope is None) == (pieces[0] is None)
        if slope is not None:
            np.testing.assert_allclose(
                slope.numpy(), np.stack([p.numpy() for p in pieces]), rtol=1e-10, atol=1e-12
            )


def test_one_call():
    """A batch is computed by one op and not item by item."""
    x = tg.tensor(np.ones((5, 3, 3)), requires_grad=True)
    found = products.matmul.batch((x, M[:3]), (True, False), {})
    names = []
    node = found.grad_fn
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    assert names == ["ReshapeBackward", "MatmulBackward", "ReshapeBackward", "AccumulateGrad"]


@pytest.mark.parametrize("case", [*ALL, *MORE], ids=names_of)
def test_empty_batches(case):
    name, args, given = case
    op = TABLE[name]
    batched = tuple([True] * len(a) if type(a) is list else True for a in args)
    wide = [batch_of(*each) for each in zip(args, batched, strict=True)]
    none = [[v[:0] for v in w] if type(w) is list else w[:0] for w in wide]
    if name == "roots":  # computed item by item
        with pytest.raises(ValueError, match="no item in the batch"):
            op.batch(none, batched, {**op.parameters, **given})
        return
    found = as_list(op.batch(none, batched, {**op.parameters, **given}))
    shapes = [np.shape(out) for out in as_list(op(*args, **given))]
    assert [np.shape(out) for out in found] == [(0, *shape) for shape in shapes]


def test_values_with_more_axes_than_they_fill():
    """NumPy ignores axes of length 1 in front."""
    found = indexing.put.batch(
        (np.zeros((3, 4)), np.arange(9.0).reshape(3, 1, 3)), (True, True), {"index": slice(0, 3)}
    )
    np.testing.assert_array_equal(found[:, :3], np.arange(9.0).reshape(3, 3))


def test_rules_that_are_missing():
    """Linear ops without a rule are computed item by item."""
    rule, indexing.gather.batch_rule = indexing.gather.batch_rule, None
    try:
        wide = np.arange(8.0).reshape(2, 4)
        found = indexing.gather.batch((wide,), (True,), {"index": np.array([1, 1, 3])})
    finally:
        indexing.gather.batch_rule = rule
    np.testing.assert_array_equal(found, wide[:, [1, 1, 3]])


def test_views_stay_views():
    wide = np.arange(24.0).reshape(2, 3, 4)
    found = shape.transpose.batch((wide,), (True,), {"axes": None})
    assert np.shares_memory(found, wide)
    np.testing.assert_array_equal(found, wide.transpose(0, 2, 1))


def test_nothing_is_batched():
    with pytest.raises(ValueError, match="no argument is batched"):
        indexing.gather.batch((V,), (False,), {"index": 1})
