"""Ops that rearrange elements: values against NumPy, gradients against differences."""

import numpy as np
import pytest
from declared import declared_in

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.ops import shape as shape_module
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.op import TABLE

AXIS_ERROR = "axis|bounds|range"


def array_of(tensor):
    return tensor.detach().numpy()


def data(shape=(2, 3, 4)):
    return np.random.default_rng(0).uniform(0.5, 1.5, shape)


# name, shape of the operand, further arguments, keywords
CASES = [
    ("reshape", (2, 3, 4), ((4, 6),), {}),
    ("reshape", (2, 3, 4), ((-1, 2),), {}),
    ("reshape", (2, 3, 4), (-1,), {}),
    ("reshape", (2, 3, 4), (24,), {}),
    ("reshape", (), ((1, 1),), {}),
    ("reshape", (1,), ((),), {}),
    ("reshape", (0, 3), ((3, 0, 2),), {}),
    ("transpose", (2, 3, 4), (), {}),
    ("transpose", (2, 3, 4), ((1, 2, 0),), {}),
    ("transpose", (2, 3, 4), ((-1, 0, -2),), {}),
    ("transpose", (), (), {}),
    ("transpose", (0, 2), (), {}),
    ("broadcast_to", (3, 1), ((2, 3, 4),), {}),
    ("broadcast_to", (), ((2, 3),), {}),
    ("broadcast_to", (3,), ((0, 3),), {}),
    ("broadcast_to", (1,), ((0,),), {}),
    ("broadcast_to", (2, 3), ((2, 3),), {}),
    ("diagonal", (3, 4), (), {}),
    ("diagonal", (3, 4), (1,), {}),
    ("diagonal", (4, 3), (-2,), {}),
    ("diagonal", (3, 4), (9,), {}),
    ("diagonal", (2, 3, 4), (), {"axis1": 1, "axis2": 2}),
    ("diagonal", (2, 3, 4), (-1, -1, 0), {}),
    ("astype", (2, 3), (np.float64,), {}),
    ("ravel", (2, 3), (), {}),
    ("ravel", (), (), {}),
    ("swapaxes", (2, 3, 4), (0, -1), {}),
    ("rollaxis", (2, 3, 4), (2,), {}),
    ("rollaxis", (2, 3, 4), (0, 3), {}),
    ("rollaxis", (2, 3, 4), (-1, -2), {}),
    ("swapaxes", (2, 3), (1, 1), {}),
    ("moveaxis", (2, 3, 4), (0, -1), {}),
    ("moveaxis", (2, 3, 4), ((0, 1), (-1, 0)), {}),
    ("moveaxis", (2, 3, 4), ([2], [0]), {}),
    ("matrix_transpose", (2, 3, 4), (), {}),
    ("permute_dims", (2, 3, 4), ((2, 0, 1),), {}),
    ("expand_dims", (2, 3), (0,), {}),
    ("expand_dims", (2, 3), (-1,), {}),
    ("expand_dims", (2, 3), ((0, -1),), {}),
    ("expand_dims", (), (0,), {}),
    ("squeeze", (1, 3, 1), (), {}),
    ("squeeze", (1, 3, 1), (-1,), {}),
    ("squeeze", (1, 3, 1), ((0, 2),), {}),
    ("squeeze", (2, 3), (), {}),
    ("atleast_1d", (), (), {}),
    ("atleast_1d", (2, 3), (), {}),
    ("flip", (2, 3, 4), (), {}),
    ("flip", (2, 3, 4), (-1,), {}),
    ("flip", (2, 3, 4), ((0, 2),), {}),
    ("flip", (0, 3), (0,), {}),
    ("roll", (2, 3, 4), (5,), {}),
    ("roll", (2, 3, 4), (-1,), {"axis": 1}),
    ("roll", (2, 3, 4), ((1, -5),), {"axis": (0, 2)}),
    ("roll", (2, 3, 4), (2,), {"axis": (1, 2)}),
    ("roll", (2, 3), ((1, 1),), {"axis": (1, 1)}),
    ("roll", (2, 3), (0,), {"axis": 0}),
    ("roll", (0, 3), (1,), {"axis": 0}),
    ("tile", (3,), (2,), {}),
    ("tile", (2, 3), ((2, 1, 2),), {}),
    ("tile", (2, 3), ((2,),), {}),
    ("tile", (), (3,), {}),
    ("tile", (2, 3), ((0, 1),), {}),
    ("triu", (3, 4), (), {}),
    ("triu", (2, 4, 3), (-1,), {}),
    ("tril", (3, 4), (1,), {}),
    ("tril", (2, 3, 3), (), {}),
    ("trace", (3, 4), (), {}),
    ("trace", (3, 4), (1,), {}),
    ("trace", (2, 3, 4), (0, 1, 2), {}),
    ("trace", (3, 3), (7,), {}),
    ("diag", (3,), (), {}),
    ("diag", (3,), (2,), {}),
    ("diag", (3,), (-1,), {}),
    ("diag", (3, 4), (1,), {}),
    ("pad", (2, 3), (1,), {}),
    ("pad", (2, 3), (((1, 0), (2, 3)),), {}),
    ("pad", (2, 3), ((1, 2),), {"mode": "constant", "constant_values": 7.0}),
    ("pad", (3,), ((1, 2),), {"constant_values": (5.0, 6.0)}),
    ("pad", (2, 3), (((1, 0), (2, 1)),), {"mode": "edge"}),
    ("pad", (2, 3), (2,), {"mode": "wrap"}),
    ("pad", (3, 3), (2,), {"mode": "reflect"}),
    ("pad", (2, 3), (2,), {"mode": "symmetric"}),
    ("pad", (2, 3), (0,), {}),
]
# those of several arrays, or with several results, have tests of their own
OTHERS = {"getitem", "embed", "concatenate", "stack", "hstack", "vstack", "unstack"}
OTHERS |= {"array_split", "split"}
OTHERS |= {"matrix_trace", "matrix_diagonal"}  # in the tests of linear algebra


def test_every_function_is_here():
    names = declared_in(shape_module)
    assert names <= TABLE.keys() | COMPOSITES.keys()
    elsewhere = {"pad"}  # made by indexing, and tested here with the others
    assert names | elsewhere == {case[0] for case in CASES} | OTHERS


@pytest.mark.parametrize(("name", "shape", "args", "kwargs"), CASES)
def test_function(name, shape, args, kwargs):
    x = data(shape)
    call = FUNCTIONS[name]
    expected = np.asarray(getattr(np, name)(x, *args, **kwargs))
    t = tg.tensor(x, requires_grad=True)
    found = call(t, *args, **kwargs)
    assert found.shape == expected.shape
    np.testing.assert_allclose(array_of(found), expected, rtol=1e-15)
    g = np.random.default_rng(1).random(expected.shape)
    (compiled,) = tg.autograd.grad(found, t, g, retain_graph=True)
    (recorded,) = tg.autograd.grad(found, t, g, create_graph=True)
    assert compiled.shape == recorded.shape == shape
    np.testing.assert_allclose(array_of(compiled), array_of(recorded))
    if np.size(x):
        tg.testing.check_grads(lambda v: call(v * v, *args, **kwargs), [x], order=2)


@pytest.mark.parametrize(("name", "shape", "args", "kwargs"), CASES)
def test_float32_stays(name, shape, args, kwargs):
    if name == "astype":
        args = (np.float32,)
    t = tg.tensor(data(shape).astype(np.float32), requires_grad=True)
    out = FUNCTIONS[name](t, *args, **kwargs)
    assert out.dtype == np.float32
    (g,) = tg.autograd.grad(out, t, np.ones(out.shape, np.float32))
    assert g.dtype == np.float32


@pytest.mark.parametrize(("name", "shape", "args", "kwargs"), CASES)
def test_integers(name, shape, args, kwargs):
    """What only rearranges works on any dtype."""
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    found = FUNCTIONS[name](x, *args, **kwargs)
    expected = np.asarray(getattr(np, name)(x, *args, **kwargs))
    np.testing.assert_array_equal(array_of(found), expected)
    assert found.dtype == expected.dtype


def test_chains_of_views():
    """Views of views, of strided memory, used several times."""

    def f(x):
        y = (x * x).transpose()[1:, ::-1]
        z = y.reshape(2, -1)[0] + tg.diagonal(y)[:1] * y[0, 0]
        return tg.broadcast_to(z, (2, *z.shape)) * y[1, 1] + tg.sum(x[:, 1])

    tg.testing.check_grads(f, [data((3, 3))], order=2)


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("target", [np.float32, np.float64])
@pytest.mark.parametrize("uses", [1, 2])
def test_casts_between_float_types(source, target, uses):
    """The gradient comes back in the dtype of the input."""
    x = tg.tensor(np.linspace(0, 1, 2000).astype(source), requires_grad=True)
    out = tg.astype(x, target)
    assert out.dtype == target
    total = out * 1.5 + (tg.astype(x, target) if uses == 2 else 0)
    g = np.linspace(1, 2, 2000)
    (found,) = tg.autograd.grad(total, x, g.astype(target))
    assert found.dtype == source
    np.testing.assert_allclose(array_of(found), g * (1.5 + (uses == 2)), rtol=1e-6)
    (found,) = tg.autograd.grad(tg.astype(x * x, target), x, g.astype(target), create_graph=True)
    assert found.dtype == source


@pytest.mark.parametrize("dtype", [np.int64, bool])
def test_cast_away_from_floats(dtype):
    x = tg.tensor([0.0, 2.5], requires_grad=True)
    out = tg.astype(x, dtype)
    assert out.dtype == dtype
    assert not out.requires_grad


# -- several arrays --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shapes", "kwargs"),
    [
        ("concatenate", [(2, 3), (1, 3), (4, 3)], {}),
        ("concatenate", [(2, 3), (2, 1)], {"axis": 1}),
        ("concatenate", [(2, 3), (2, 1)], {"axis": -1}),
        ("concatenate", [(2, 3), (4,), ()], {"axis": None}),
        ("concatenate", [(2, 3), (0, 3)], {}),
        ("concatenate", [(2,)], {}),
        ("stack", [(2, 3), (2, 3)], {}),
        ("stack", [(2, 3), (2, 3)], {"axis": -1}),
        ("stack", [(2, 3), (2, 3), (2, 3)], {"axis": 1}),
        ("stack", [(), ()], {}),
        ("hstack", [(2, 3), (2, 1)], {}),
        ("hstack", [(2,), (3,)], {}),
        ("hstack", [(), (3,)], {}),
        ("vstack", [(2, 3), (1, 3)], {}),
        ("vstack", [(3,), (2, 3)], {}),
        ("vstack", [(), ()], {}),
    ],
)
def test_join(name, shapes, kwargs):
    arrays = [data(shape) + k for k, shape in enumerate(shapes)]
    call = FUNCTIONS[name]
    if kwargs == {"axis": None}:
        expected = np.concatenate([a.ravel() for a in arrays])
    else:
        expected = getattr(np, name)(arrays, **kwargs)
    for make in (list, tuple):
        found = call(make(arrays), **kwargs)
        assert found.shape == expected.shape
        np.testing.assert_array_equal(array_of(found), expected)
    tg.testing.check_grads(lambda *v: call([a * a for a in v], **kwargs), arrays, order=2)


def test_join_of_mixed_operands():
    """Passive arrays, repeated tensors and two float types."""
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = tg.tensor(np.array([3.0], np.float32), requires_grad=True)
    out = tg.concatenate([x, np.array([9, 9]), y, x])
    assert out.dtype == np.float64
    gx, gy = tg.autograd.grad(out, [x, y], np.arange(1.0, 8.0))
    assert gx.tolist() == [7.0, 9.0]
    assert gy.tolist() == [5.0]
    assert gy.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("split", (3,), {"axis": 1}),
        ("split", ([1, 2],), {"axis": -1}),
        ("split", ([1, 5],), {}),
        ("split", ([2, 1],), {"axis": 2}),
        ("split", ([-1],), {"axis": 2}),
        ("array_split", (3,), {"axis": 2}),
        ("array_split", (5,), {"axis": 1}),
        ("array_split", (np.array([1, 3]),), {"axis": 2}),
        ("unstack", (), {}),
        ("unstack", (), {"axis": -1}),
    ],
)
def test_cut(name, args, kwargs):
    x = data()
    call = FUNCTIONS[name]
    expected = getattr(np, name)(x, *args, **kwargs)
    found = call(tg.tensor(x, requires_grad=True), *args, **kwargs)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_array_equal(array_of(a), b)

    def f(v):
        pieces = call(v * v, *args, **kwargs)
        return tg.concatenate([p.reshape(-1) * (k + 1) for k, p in enumerate(pieces)])

    tg.testing.check_grads(f, [x], order=2)


def test_gradient_of_one_piece():
    x = tg.tensor(np.arange(6.0), requires_grad=True)
    _, second, _ = tg.split(x, 3)
    (g,) = tg.autograd.grad(second.sum(), x)
    assert g.tolist() == [0, 0, 1, 1, 0, 0]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "error", "match"),
    [
        ("reshape", ((5, 5),), ValueError, "reshape|shape"),
        ("transpose", ((0, 0, 1),), ValueError, "axis|axes"),
        ("transpose", ((0, 1),), ValueError, "axes"),
        ("broadcast_to", ((2, 2, 2),), ValueError, "broadcast"),
        ("swapaxes", (0, 3), ValueError, AXIS_ERROR),
        ("swapaxes", (-4, 0), ValueError, AXIS_ERROR),
        ("moveaxis", (3, 0), ValueError, AXIS_ERROR),
        ("moveaxis", (0, -4), ValueError, AXIS_ERROR),
        ("moveaxis", ((0, 0), (1, 2)), ValueError, "repeated|axis"),
        ("moveaxis", ((0, 1), (1,)), ValueError, "moveaxis"),
        ("expand_dims", (5,), ValueError, AXIS_ERROR),
        ("squeeze", (0,), ValueError, "size|axis"),
        ("squeeze", (4,), ValueError, AXIS_ERROR),
        ("flip", (3,), ValueError, AXIS_ERROR),
        ("flip", ((0, -4),), ValueError, AXIS_ERROR),
        ("roll", (1, 3), ValueError, AXIS_ERROR),
        ("diagonal", (0, 0, 0), ValueError, "axis"),
        ("trace", (0, 0, 5), ValueError, AXIS_ERROR),
        ("diag", (0,), ValueError, "diag"),
        ("split", (5,), ValueError, "split"),
        ("split", (0,), (ValueError, ZeroDivisionError), "split|zero|0"),
        ("array_split", (0,), ValueError, "section"),
        ("split", (1, 3), ValueError, AXIS_ERROR),
        ("unstack", (3,), ValueError, AXIS_ERROR),
        ("pad", (1, "mean"), ValueError, "pad.*mode"),
        ("pad", (((1, 1), (1, 1)),), ValueError, "pad|broadcast|remapped"),
        ("pad", (-1,), ValueError, "negative"),
        ("ravel", ("X",), ValueError, "ravel.*order"),
        ("tile", ((-1,),), ValueError, "negative"),
        ("triu", ("a",), (TypeError, ValueError), "triu|k|str"),
    ],
)
def test_bad_argument(name, args, error, match):
    with pytest.raises(error, match=match):
        FUNCTIONS[name](tg.tensor(data(), requires_grad=True), *args)


@pytest.mark.parametrize(
    ("name", "shapes", "kwargs"),
    [
        ("concatenate", [(2, 3), (2, 4)], {}),
        ("concatenate", [(2, 3), (2, 3)], {"axis": 2}),
        ("concatenate", [(), ()], {}),
        ("concatenate", [], {}),
        ("stack", [(2, 3), (3, 2)], {}),
        ("stack", [(2, 3), (2, 3)], {"axis": 3}),
        ("stack", [], {}),
        ("hstack", [], {}),
        ("vstack", [(2,), (3,)], {}),
    ],
)
def test_bad_join(name, shapes, kwargs):
    tensors = [tg.tensor(data(shape), requires_grad=True) for shape in shapes]
    with pytest.raises(ValueError, match=r"."):
        FUNCTIONS[name](tensors, **kwargs)


# -- orders of elements ----------------------------------------------------------------------------

CUBE = np.arange(24.0).reshape(2, 3, 4)
LAYOUTS = {
    "row-major": CUBE,
    "column-major": np.asfortranarray(CUBE),
    "transposed": CUBE.transpose(1, 2, 0),
    "backwards": CUBE[:, ::-1],
    "with gaps": np.asfortranarray(CUBE)[::2],
    "one row": CUBE[:1],
    "empty": CUBE[:0],
}
IN_ORDER = {
    "ravel": lambda x, order: np.ravel(x, order),
    "flatten": lambda x, order: x.flatten(order),
    "reshape": lambda x, order: np.reshape(x, (-1, 2), order=order),
    "ravel of what is transposed": lambda x, order: (x * 1.0).T.ravel(order),
    "copy": lambda x, order: x.copy(order).ravel("A"),
    "write to a copy": lambda x, order: written(x.copy(order)),
}


def written(x):
    flat = x.reshape(-1)  # a view only if the elements are in this order
    flat[:1] = 7.0
    return x * 1.0


@pytest.mark.compiled
@pytest.mark.parametrize("order", "CFAK")
@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_recorded_orders_are_those_of_numpy(layout, name, order):
    x, f = LAYOUTS[layout], lambda x: IN_ORDER[name](x, order)
    if (name, order) != ("reshape", "K"):
        np.testing.assert_array_equal(tg.jit(f)(x), f(x))


@pytest.mark.parametrize("order", "CFAK")
@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_orders_are_those_of_numpy(layout, name, order):
    x, f = LAYOUTS[layout], lambda x: IN_ORDER[name](x, order)
    if (name, order) == ("reshape", "K"):
        with pytest.raises(ValueError, match="reshape: order 'K'"):
            f(tg.as_tensor(x))
        return
    expected = f(x)
    np.testing.assert_array_equal(array_of(f(tg.as_tensor(x))), expected)
    if name == "write to a copy":
        return
    weights = np.cos(np.arange(expected.size)).reshape(expected.shape)
    gradient = tg.grad(lambda x: (f(x) * weights).sum())(x)
    places = np.zeros(CUBE.size, int)
    places[x.ravel().astype(int)] = np.arange(x.size)
    np.testing.assert_allclose(gradient.ravel()[places[expected.astype(int)]], weights)


PARTS = {
    "all": lambda x: x,
    "a column": lambda x: x[0, :, 0],
    "a row, backwards": lambda x: x[0, 0, ::-1],
    "every second row": lambda x: x[0, ::2],
    "transposed": lambda x: x[0].T,
    "a row": lambda x: x[0, 1],
    "one element": lambda x: x[0, 1:2, 1:2],
    "a column with an axis of length 1": lambda x: x[0, :, 0][None],
}


EAGER_AND_COMPILED = pytest.mark.parametrize(
    "transform",
    [
        pytest.param(lambda f: lambda x: f(tg.as_tensor(x)).numpy(), id="eager"),
        pytest.param(lambda f: lambda x: tg.vmap(f)(x[None])[0], id="vmap"),
        pytest.param(tg.jit, id="jit", marks=pytest.mark.compiled),
    ],
)


@EAGER_AND_COMPILED
@pytest.mark.parametrize("order", "CFAK")
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "empty"])
@pytest.mark.parametrize("part", PARTS)
def test_raveled_parts_are_views_where_those_of_numpy_are(part, layout, order, transform):
    def f(x):
        y = x * 1.0
        flat = np.ravel(PARTS[part](y), order)
        flat[:1] = 7.0
        flat *= 2.0
        return y + 0.0

    x = LAYOUTS[layout]
    np.testing.assert_array_equal(transform(f)(x), f(x))


def test_raveled_columns_are_compiled():
    shown = tg.jit(lambda x: np.ravel(x[:, 0]) + np.take(x[0], [2, 1])).inspect(CUBE[0, :2])
    assert not shown.startswith("op by op")


def test_order_of_memory_of_broadcast_arrays():
    x = tg.as_tensor(np.broadcast_to(np.ones(3), (2, 3)))
    with pytest.raises(ValueError, match="order 'K' of a broadcast array is not supported"):
        np.ravel(x, "K")
    np.testing.assert_array_equal(array_of(np.ravel(x.copy(), "K")), np.ones(6))


@EAGER_AND_COMPILED
@pytest.mark.parametrize("reps", [1, 0, 3, (2, 1), (1, 2), (2, 2, 1)])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (2, 1), (2, 3), (0, 2)])
def test_tiles_are_a_new_array(shape, reps, transform):
    def f(x):
        y = x * 1.0
        z = np.tile(y, reps)
        z *= 2.0
        z[..., 0:1] = 7.0
        return z + y.sum()

    x = data(shape)
    np.testing.assert_array_equal(transform(f)(x), f(x))
