"""Types that are known without compiling an implementation are those that numba finds."""

import numba
import numpy as np
import pytest
from numba import types
from numba.core.registry import cpu_target

from tapegrad.transform.frontend.quick_types import stand_in_for

ARRAYS = [
    types.Array(dtype, ndim, layout)
    for dtype in (types.float64, types.float32, types.int64, types.complex128)
    for ndim in (1, 2, 3)
    for layout in "CFA"
]
SHAPES = [
    *(types.int64, types.uint64, types.intp, types.literal(3)),
    *(types.UniTuple(types.int64, n) for n in range(4)),
    types.Tuple([types.int64, types.uint64]),
    types.Tuple([types.literal(2), types.literal(3)]),
]


def _type_of(function, args):
    """The type of the result, None if there is none."""
    context = cpu_target.typing_context
    context.refresh()
    try:
        found = context.resolve_value_type(function).get_call_type(context, args, {})
    except numba.core.errors.NumbaError:
        return None
    return None if found is None else types.unliteral(found.return_type)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["empty", "zeros", "ones"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_new_arrays(name, shape):
    expected = _type_of(getattr(np, name), (shape,))
    assert _type_of(stand_in_for(name, 1), (shape,)) == expected


@pytest.mark.compiled
@pytest.mark.parametrize("value", [types.float64, types.int64, types.float32], ids=str)
def test_full(value):
    for shape in SHAPES:
        expected = _type_of(np.full, (shape, value))
        assert _type_of(stand_in_for("full", 2), (shape, value)) == expected


@pytest.mark.compiled
@pytest.mark.parametrize("x", [*ARRAYS, types.float64], ids=str)
def test_arrays_like_others(x):
    for name in ("empty_like", "zeros_like", "ones_like"):
        expected = _type_of(getattr(np, name), (x,))
        assert _type_of(stand_in_for(name, 1), (x,)) == expected


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize("x", ARRAYS[:9], ids=str)
def test_products(x):
    for y in [*ARRAYS[:9], types.Array(types.float32, 1, "C"), types.float64]:
        assert _type_of(stand_in_for("dot", 2), (x, y)) == _type_of(np.dot, (x, y))


NUMBERS = "argmax", "argmin", "max", "mean", "min", "ptp", "std", "var"
VECTORS = "cumsum", "diff", "sort"
FLOATS = [kind for kind in ARRAYS if kind.dtype == types.float64]


@pytest.mark.compiled
@pytest.mark.parametrize("name", [*NUMBERS, *VECTORS])
@pytest.mark.parametrize("x", [*ARRAYS[:12], types.Array(types.float64, 0, "C")], ids=str)
def test_functions_of_an_array(name, x):
    if name == "ptp" and x.ndim == 0:
        pytest.skip("numba raises TypeError")
    assert _type_of(stand_in_for(name, 1), (x,)) == _type_of(getattr(np, name), (x,))


@pytest.mark.compiled
@pytest.mark.parametrize("axis", [types.int64, types.literal(0), types.intp, types.uint64], ids=str)
def test_sums_along_an_axis(axis):
    for x in FLOATS:
        assert _type_of(stand_in_for("sum", 2), (x, axis)) == _type_of(np.sum, (x, axis))


@pytest.mark.compiled
@pytest.mark.parametrize("ndim", [0, 1, 2])
@pytest.mark.parametrize("layout", "CFA")
def test_choices(ndim, layout):
    condition = types.Array(types.boolean, ndim, layout)
    kinds = [*FLOATS[:5], types.float64, types.int64, types.Array(types.float32, 1, "C")]
    for x in kinds:
        for y in (x, types.float64, types.Array(types.float64, 1, "C")):
            expected = _type_of(np.where, (condition, x, y))
            assert _type_of(stand_in_for("where", 3), (condition, x, y)) == expected


@pytest.mark.compiled
@pytest.mark.parametrize("x", ARRAYS[:12], ids=str)
def test_limits_and_outer_products(x):
    for y in (types.float64, types.int64, types.Array(types.float64, 1, "C")):
        expected = _type_of(np.clip, (x, types.float64, y))
        assert _type_of(stand_in_for("clip", 3), (x, types.float64, y)) == expected
        assert _type_of(stand_in_for("outer", 2), (x, y)) == _type_of(np.outer, (x, y))


def test_other_calls_have_no_stand_in():
    assert stand_in_for("zeros", 2) is None
    assert stand_in_for("linspace", 1) is None
