"""Complex numbers: every function of the tables, in PyTorch's convention of gradients.

The gradient of a real loss by z = a + bi is dL/da + i dL/db. Linear algebra is in
`test_complex_linalg`, what programs do with complex tensors in `test_complex_programs`.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from declared import declared_in
from test_shape import CASES

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.eager.numeric import ALIASES, FUNCTIONS, PASSIVE, PUBLIC
from tapegrad.ops import (
    contractions,
    fourier,
    linalg,
    matrix_functions,
    norms,
    polynomials,
    products,
    sampling,
    scipy_special,
    sparse,
    systems,
)
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.kinds import COMPILED_FROM, Elementwise
from tapegrad.ops.table.op import TABLE

INF, NAN = math.inf, math.nan
COMPLEX = [np.complex64, np.complex128]
REAL_OF = {np.dtype(np.complex64): np.float32, np.dtype(np.complex128): np.float64}
TOLERANCE = {np.dtype(np.float32): 2e-4, np.dtype(np.float64): 1e-11}
TOLERANCE |= {np.dtype(np.complex64): 2e-4, np.dtype(np.complex128): 1e-11}

# -- the decision about every function -------------------------------------------------------------

# No derivative for complex numbers: they have no order, or NumPy has no such function of them. The
# error names the function, or the one that it calls.
REAL_ONLY = {
    **{name: (name,) for name in ("floor", "ceil", "trunc", "floor_divide", "fmod", "cbrt")},
    **{name: (name,) for name in ("hypot", "arctan2", "logaddexp", "logaddexp2", "softplus")},
    **{name: (name,) for name in ("erf", "erfc", "gaussian", "gammaln", "digamma")},
    **{name: (name,) for name in ("polygamma", "relu", "cosine", "normal", "share", "share2")},
    **{name: (name,) for name in ("erfcx_derivative", "log_ratio")},
    **{name: (name,) for name in ("maximum", "minimum", "fmax", "fmin", "at_least", "at_most")},
    **{name: (name,) for name in ("larger_of_ties", "ties_of_larger")},
    **{name: (name,) for name in ("max", "min", "cummax", "cummin")},
    "mod": ("mod", "remainder"),
    "clip": ("clip", "at_least", "at_most"),
    "amax": ("amax", "max"),
    "amin": ("amin", "min"),
    "ptp": ("ptp", "max", "min"),
    **{name: (name,) for name in ("deg2rad", "rad2deg", "interp", "nan_to_num", "quantile")},
    **{name: (name, "quantile") for name in ("median", "percentile")},
    **{name: (name, "nanquantile") for name in ("nanquantile", "nanmedian", "nanpercentile")},
    **{name: (name,) for name in ("heaviside", "unwrap", "copysign", "divmod")},
    "nanmax": ("nanmax", "max"),
    "nanmin": ("nanmin", "min"),
}

# Functions of one complex number, with what computes them. Some are constant between jumps.
NUMPY_UNARY = """
absolute angle arccos arccosh arcsin arcsinh arctan arctanh conj conjugate cos cosh exp exp2 expm1
imag log log10 log1p log2 negative positive real reciprocal rint round sign sin sinc sinh sqrt
square tan tanh
"""
UNARY = {name: getattr(np, name) for name in NUMPY_UNARY.split()}
UNARY |= {
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "expit": lambda z: 1 / (1 + np.exp(-z)),
    "imaginary": np.imag,
}
REAL_VALUED = {"absolute", "angle", "real", "imag", "imaginary"}

BINARY = {name: getattr(np, name) for name in ("add", "subtract", "multiply", "divide", "power")}


def logsumexp(z, axis=None, keepdims=False):
    return np.log(np.sum(np.exp(z), axis=axis, keepdims=keepdims))


def euclidean_norm(z, axis=None, keepdims=False):
    return np.sqrt(np.sum(np.abs(z) ** 2, axis=axis, keepdims=keepdims))


REDUCTIONS = {name: getattr(np, name) for name in ("sum", "mean", "var", "std", "prod")}
REDUCTIONS |= {f"nan{name}": getattr(np, f"nan{name}") for name in tuple(REDUCTIONS)}
REDUCTIONS |= {"logsumexp": logsumexp, "euclidean_norm": euclidean_norm}
CUMULATIVE = {name: getattr(np, name) for name in ("cumsum", "cumprod", "nancumsum", "nancumprod")}


def put(x, value, index):
    out = np.array(x)
    out[index] = value
    return out


def put_view(x, value, steps):
    return put(x, value, (slice(None), 1))


def add_at(x, value, index):
    out = np.array(x)
    np.add.at(out, index, value)
    return out


def scatter_add(x, shape, index):
    return add_at(np.zeros(shape, x.dtype), x, index)


def embed(x, shape, shown, parameters):
    return put(np.zeros(shape, x.dtype), x, parameters["index"])


OF_LISTS = ("concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "block")
ROWS = np.array([1, 0, 1])
FLAGS = np.array([[True, False, True], [False, False, True]])
COLUMN = {"index": (slice(None), 1)}

# how functions are called whose operands do not come first, or that take functions
CALLED = {
    "insert": lambda f, x, value: f(x, 1, value, 1),
    "compress": lambda f, x: f([True, False], x, 0),
    "extract": lambda f, x: f(FLAGS, x),
    "choose": lambda f, x, y: f([1, 0, 1], [x, y]),
    "piecewise": lambda f, x: f(x, [FLAGS], [lambda z: z * z]),
    "apply_along_axis": lambda f, x: f(np.cumsum, 0, x),
    "where": lambda f, x, y: f(FLAGS, x, y),
}

# what only rearranges one array: the cases of `test_shape`
OF_SHAPE = [case for case in CASES if case[0] != "astype"]
# name, shapes of the operands, how the function is called after them, NumPy's equivalent if it is
# not the function of that name called in the same way
ARRANGING = [
    ("astype", [(2, 3)], (np.complex128,), lambda x, dtype: x.astype(dtype)),
    ("getitem", [(2, 3)], ((slice(None), slice(None, None, -2)),), lambda x, i: x[i]),
    ("embed", [(2,)], ((2, 3), TABLE["getitem"], COLUMN), embed),
    ("gather", [(2, 3)], (ROWS,), lambda x, i: x[i]),
    ("gather", [(2, 3)], (FLAGS,), lambda x, i: x[i]),
    ("scatter_add", [(3, 3)], ((2, 3), ROWS), scatter_add),
    ("put", [(2, 3), (3,)], (1,), put),
    ("put", [(2, 3), (3, 3)], (ROWS,), put),
    ("put", [(2, 3), ()], (FLAGS,), put),
    ("add_at", [(2, 3), (3, 1)], (ROWS,), add_at),
    ("moved", [(2, 3)], ("cpu", "cpu"), lambda x, *names: x),
    ("put_view", [(2, 3), (2,)], (((TABLE["getitem"], COLUMN),),), put_view),
    ("array_split", [(5, 2)], (3,)),
    ("split", [(4, 2)], (2,)),
    ("unstack", [(2, 3)], ()),
    ("append", [(2, 3), (3,)], ()),
    ("atleast_2d", [(3,)], ()),
    ("atleast_3d", [(2, 3)], ()),
    ("hsplit", [(2, 4)], (2,)),
    ("vsplit", [(4, 2)], (2,)),
    ("dsplit", [(1, 2, 4)], (2,)),
    ("fliplr", [(2, 3)], ()),
    ("flipud", [(2, 3)], ()),
    ("rot90", [(2, 3)], ()),
    ("meshgrid", [(2,), (3,)], ()),
    ("diff", [(2, 3)], (2,)),
    ("ediff1d", [(3,)], ()),
    ("gradient", [(3, 4)], ()),
    ("trapezoid", [(2, 3)], ()),
    ("convolve", [(4,), (3,)], ()),
    ("correlate", [(4,), (3,)], ()),
    ("cross", [(2, 3), (2, 3)], ()),
    *[
        (name, shapes, ())
        for name, shapes in {
            "insert": [(2, 3), (2,)],
            "compress": [(2, 3)],
            "extract": [(2, 3)],
            "choose": [(2, 3), (3,)],
            "piecewise": [(2, 3)],
            "apply_along_axis": [(2, 3)],
        }.items()
    ],
    ("delete", [(2, 3)], (1, 1)),
    ("rounded", [(2, 3)], (1,), np.round),
    ("cumulative_sum", [(3,)], ()),
    ("cumulative_prod", [(3,)], ()),
    ("resize", [(2, 3)], ((5, 2),)),
    ("broadcast_arrays", [(2, 3), (3,)], ()),
    ("average", [(2, 3)], (1,)),
    ("cov", [(2, 4)], ()),
    ("corrcoef", [(2, 4)], ()),
    ("matrix_trace", [(2, 3, 3)], (), np.linalg.trace),
    ("matrix_diagonal", [(2, 3, 3)], (), np.linalg.diagonal),
    ("take", [(2, 3)], (ROWS, 1)),
    ("take_along_axis", [(2, 3)], (np.array([[2, 0], [1, 1]]), 1)),
    ("repeat", [(2, 3)], (2, 1)),
    ("sort", [(2, 3)], (1,)),
    ("where", [(2, 3), (3,)], ()),
    *[(name, [(2, 3), (2, 3)], (), None) for name in OF_LISTS],
]


TESTED_ELSEWHERE = (
    fourier,
    linalg,
    norms,
    matrix_functions,
    polynomials,
    contractions,
    products,
    sampling,
    scipy_special,
    sparse,
    systems,
)


def test_every_function_is_decided():
    """A new function needs an entry in a table above, or a test file of its own family."""
    arranging = {case[0] for case in [*OF_SHAPE, *ARRANGING]}
    tables = (REAL_ONLY, UNARY, BINARY, REDUCTIONS, CUMULATIVE, arranging)
    decided = list(itertools.chain(*tables))
    elsewhere = declared_in(*TESTED_ELSEWHERE)
    elsewhere |= {*PASSIVE, *ALIASES, "select"}  # that is `where` several times
    elsewhere |= {"inverted", "exp_of_difference", "one_minus_square"}  # for derivatives
    elsewhere |= {"sinc_derivative", "finite_max"}
    elsewhere |= {"sigmoid_slope", "tanh_slope"}
    elsewhere |= {"view_as_real", "view_as_complex"}  # see TestPairsOfNumbers
    elsewhere |= {"undefined"}  # for derivatives
    elsewhere |= {"full_convolution", "valid_correlation"}  # as convolve and correlate
    assert len(decided) == len(set(decided)), "decided twice"
    assert set(decided) == (PUBLIC.keys() | TABLE.keys() | COMPOSITES.keys()) - elsewhere


# -- helpers ---------------------------------------------------------------------------------------


def array_of(tensor):
    return tensor.detach().numpy()


def data(shape, dtype=np.complex128, seed=0):
    """Numbers of all quadrants, away from 0, 1 and the axes; of a real dtype, positive ones."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.3, 0.8, (2, *shape))
    if np.dtype(dtype).kind == "f":
        return size[0].astype(dtype)
    sign = rng.choice([-1.0, 1.0], (2, *shape))
    return np.asarray((size * sign)[0] + 1j * (size * sign)[1], dtype)


def kinds_of(count):
    """Which operands are complex: at least one."""
    return [kinds for kinds in itertools.product("cf", repeat=count) if "c" in kinds]


def operands(shapes, kinds, dtype=np.complex128):
    part = REAL_OF[np.dtype(dtype)]
    return [
        data(shape, dtype if kind == "c" else part, seed=k)
        for k, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]


def leaves(arrays):
    return [tg.tensor(a, requires_grad=True) for a in arrays]


def several(out):
    return out if isinstance(out, (tuple, list)) else (out,)


def cotangents(out, seed=5):
    rng = np.random.default_rng(seed)
    found = []
    for z in out:
        g = rng.uniform(-1, 1, (2, *z.shape))
        found.append(np.asarray(g[0] + (1j * g[1] if z.dtype.kind == "c" else 0), z.dtype))
    return found


def inner(x, y):
    """Real inner product of complex arrays, as vectors of their two parts."""
    return sum(float(np.sum((np.conj(a) * b).real)) for a, b in zip(x, y, strict=True))


def close(found, expected, factor=1.0):
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    tolerance = TOLERANCE[found.dtype] * factor
    np.testing.assert_allclose(array_of(found), expected, tolerance, tolerance)


def check_values(f, reference, arrays):
    """Values and dtypes as NumPy's, and gradients as differences of NumPy's values."""
    tensors = leaves(arrays)
    out = several(f(*tensors))
    expected = several(reference(*arrays))
    assert len(out) == len(expected)
    for found, value in zip(out, expected, strict=True):
        close(found, value)
    seeds = cotangents(out)
    gradients = tg.autograd.grad(out, tensors, seeds, retain_graph=True)
    recorded = tg.autograd.grad(out, tensors, seeds, create_graph=True)
    for g, h, a in zip(gradients, recorded, arrays, strict=True):
        assert g.shape == h.shape == a.shape
        assert g.dtype == h.dtype == a.dtype
        close(h, array_of(g))
    if np.result_type(*arrays) != np.complex128:
        return gradients
    rng = np.random.default_rng(9)
    step = 1e-5
    for _ in range(2):
        along = [rng.uniform(-1, 1, a.shape) for a in arrays]
        along = [
            d + 1j * rng.uniform(-1, 1, d.shape) if a.dtype.kind == "c" else d
            for a, d in zip(arrays, along, strict=True)
        ]

        def at(t, along=along):
            return several(reference(*[a + t * d for a, d in zip(arrays, along, strict=True)]))

        slope = (inner(seeds, at(step)) - inner(seeds, at(-step))) / (2 * step)
        found = inner(map(array_of, gradients), along)
        np.testing.assert_allclose(found, slope, rtol=1e-7, atol=1e-7)
    return gradients


def check_orders(f, arrays, fast=True):
    """Gradients of both orders against differences of tapegrad's own values."""
    tensors = leaves(arrays)
    assert gradcheck(f, tensors, check_grad_dtypes=True)
    assert gradgradcheck(f, tensors, fast_mode=fast, check_grad_dtypes=True)


def check_single(f, reference, shapes, kinds):
    """complex64 stays: the values are NumPy's, the gradients close to those of complex128."""
    arrays = operands(shapes, kinds, np.complex64)
    found = check_values(f, reference, arrays)
    wide = leaves([a.astype(np.result_type(a.dtype, np.float64)) for a in arrays])
    out = several(f(*wide))
    seeds = [g.astype(z.dtype) for g, z in zip(cotangents(several(f(*arrays))), out, strict=True)]
    for g, h in zip(found, tg.autograd.grad(out, wide, seeds), strict=True):
        np.testing.assert_allclose(array_of(g), array_of(h), 1e-3, 1e-3)


# -- functions of one number -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, shape):
    z = data(shape)
    check_values(FUNCTIONS[name], lambda x: np.asarray(UNARY[name](x)), [z])
    if z.size:
        check_orders(FUNCTIONS[name], [z], fast=z.size > 3)


@pytest.mark.parametrize("name", UNARY)
def test_unary_in_single_precision(name):
    f = UNARY[name]
    check_single(FUNCTIONS[name], lambda x: np.asarray(f(x)), [(7,)], "c")
    assert FUNCTIONS[name](data((3,), np.complex64)).dtype.kind == "fc"[name not in REAL_VALUED]


@pytest.mark.parametrize("name", UNARY)
def test_unary_of_what_is_not_contiguous(name):
    base = data((6, 9))
    for view in (base[::2, ::-3], base.T, np.broadcast_to(base[0, :2], (3, 2))):
        t = tg.as_tensor(view).requires_grad_()
        plain = tg.tensor(np.array(view), requires_grad=True)
        g = cotangents([np.asarray(UNARY[name](view))])[0]
        (found,) = tg.autograd.grad(FUNCTIONS[name](t), t, np.asfortranarray(g))
        (expected,) = tg.autograd.grad(FUNCTIONS[name](plain), plain, g)
        np.testing.assert_array_equal(array_of(found), array_of(expected))


@pytest.mark.parametrize("name", [n for n in UNARY if isinstance(TABLE.get(n), Elementwise)])
def test_unary_of_many(name):
    """Compiled forward loops take over at this size: not for complex numbers."""
    z = data((4 * COMPILED_FROM + 3,))
    t = tg.tensor(z, requires_grad=True)
    out = FUNCTIONS[name](t)
    close(out, UNARY[name](z))
    few = tg.tensor(z[:5], requires_grad=True)
    (g,) = tg.autograd.grad(out[:5], t, np.ones(5, out.dtype))
    (h,) = tg.autograd.grad(FUNCTIONS[name](few), few, np.ones(5, out.dtype))
    close(h, array_of(g)[:5])
    assert not array_of(g)[5:].any()


@pytest.mark.parametrize("name", ["conj", "conjugate", "real", "imag", "angle"])
def test_parts_of_real_numbers(name):
    """Functions of the parts take real numbers too, and their gradients stay real."""
    x = np.array([0.5, -1.5])
    t = tg.tensor(x, requires_grad=True)
    out = FUNCTIONS[name](t)
    assert out.dtype == np.float64
    np.testing.assert_array_equal(array_of(out), getattr(np, name)(x))
    if name == "imag":
        assert not out.requires_grad
        return
    for create_graph in (False, True):
        (g,) = tg.autograd.grad(
            out * 3, t, np.ones(2), retain_graph=True, create_graph=create_graph
        )
        assert g.dtype == np.float64
        np.testing.assert_array_equal(array_of(g), [0.0, 0.0] if name == "angle" else [3.0, 3.0])


# -- functions of two numbers ----------------------------------------------------------------------

SHAPES = [
    ((), ()),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((3,), ()),
    ((), (2, 2)),
    ((0,), (1,)),
]


@pytest.mark.parametrize("kinds", kinds_of(2), ids="".join)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, shapes, kinds):
    """Also of one complex and one real operand, whose gradient is real."""
    arrays = operands(shapes, kinds)
    check_values(FUNCTIONS[name], lambda x, y: np.asarray(BINARY[name](x, y)), arrays)
    if all(a.size for a in arrays):
        check_orders(FUNCTIONS[name], arrays)


@pytest.mark.parametrize("kinds", kinds_of(2), ids="".join)
@pytest.mark.parametrize("name", BINARY)
def test_binary_in_single_precision(name, kinds):
    f = BINARY[name]
    check_single(FUNCTIONS[name], lambda x, y: np.asarray(f(x, y)), [(2, 3), (3,)], kinds)


@pytest.mark.parametrize("name", BINARY)
def test_mixed_precision(name):
    """Every gradient has the dtype of its own tensor."""
    f = BINARY[name]
    dtypes = [np.complex64, np.complex128, np.float32, np.float64]
    for first, second in itertools.product(dtypes, dtypes):
        arrays = [data((2, 3), first), data((3,), second, 1)]
        t = leaves(arrays)
        out = FUNCTIONS[name](*t)
        assert out.dtype == f(*arrays).dtype
        for create_graph in (False, True):
            gradients = tg.autograd.grad(
                out, t, np.ones((2, 3), out.dtype), retain_graph=True, create_graph=create_graph
            )
            assert [g.dtype for g in gradients] == [first, second]
            assert [g.shape for g in gradients] == [(2, 3), (3,)]


@pytest.mark.parametrize("other", [2, 2.0, 1.5 - 0.5j, np.complex128(0.5j), np.array(0.5 + 1j)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_numbers(name, dtype, other):
    """Beside a Python number the precision stays; a real tensor may meet a complex number."""
    f, x = BINARY[name], data((3,), dtype)
    for call in (lambda g, x: g(x, other), lambda g, x: g(other, x)):
        t = tg.tensor(x, requires_grad=True)
        out = call(FUNCTIONS[name], t)
        close(out, call(f, x))
        seed = cotangents([out])[0]
        for create_graph in (False, True):
            (g,) = tg.autograd.grad(out, t, seed, retain_graph=True, create_graph=create_graph)
            assert g.dtype == x.dtype
            if x.dtype.itemsize >= 8 and x.dtype != np.complex64:
                step = 1e-6
                slope = (call(f, x + step) - call(f, x - step)) / (2 * step)
                expected = (np.conj(seed) * slope).real
                np.testing.assert_allclose(array_of(g).real, expected, 1e-7, 1e-7)


@pytest.mark.parametrize("base", [-2, -1.5, np.array(-2), np.float32(-1.5), np.array([-1, 2, 0])])
def test_powers_of_real_numbers(base):
    """The logarithm of a negative base is complex."""
    x = data((3,))
    e = tg.tensor(x, requires_grad=True)
    (g,) = tg.autograd.grad((base**e).sum().real, e)
    z = np.asarray(base, np.complex128)
    slope = z**x * np.log(np.where(z == 0, 1.0, z))
    np.testing.assert_allclose(array_of(g), np.conj(np.where(z == 0, 0.0, slope)), 1e-12)


def test_powers_of_zero():
    """A complex exponent has no order: the derivative is 0 where the power is 0 or 1, else nan."""
    e = tg.tensor(np.array([0.5 + 0.3j, 2.0, 0.0, 1j]), requires_grad=True)
    with np.errstate(all="ignore"):
        (g,) = tg.autograd.grad((0.0**e).real.sum(), e)
    assert g.numpy()[:3].tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(g.numpy()[3])


def test_operators():
    z, w = leaves([data((3,)), data((3,), seed=1)])
    a, b = array_of(z), array_of(w)
    out = (z + w) * (z - w) / (z * 2j) + (1j - z) ** 2 + 2.0 ** (-w) + abs(z) * (+w) - 1 / w
    expected = (a + b) * (a - b) / (a * 2j) + (1j - a) ** 2 + 2.0 ** (-b) + abs(a) * b - 1 / b
    close(out, expected)
    assert gradcheck(lambda z, w: z @ w + (1j * z) @ w.conj() - z**w, [z, w])


def test_array_functions():
    """NumPy's functions and arrays on the left go to the tensors."""
    z = tg.tensor(data((3,)), requires_grad=True)
    a = array_of(z)
    left = np.array([1j, 2.0, 3.0 - 1j])
    for out, expected in (
        (np.exp(z), np.exp(a)),
        (np.conj(z), np.conj(a)),
        (np.abs(z), np.abs(a)),
        (np.angle(z), np.angle(a)),
        (np.real(z), np.real(a)),
        (np.imag(z), np.imag(a)),
        (left * z, left * a),
        (left - z, left - a),
        (np.linalg.norm(z), np.asarray(np.linalg.norm(a))),
        (np.vdot(left, z), np.asarray(np.vdot(left, a))),
    ):
        assert out.requires_grad
        close(out, expected)


# -- reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name, axis, keepdims):
    options = {"axis": axis, "keepdims": keepdims}
    f = functools.partial(FUNCTIONS[name], **options)

    def expected(z):
        return np.asarray(REDUCTIONS[name](z, **options))

    check_values(f, expected, [data((2, 3))])
    check_orders(f, [data((2, 3))])
    check_single(f, expected, [(2, 3)], "c")


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", CUMULATIVE)
def test_cumulative(name, axis):
    f = functools.partial(FUNCTIONS[name], axis=axis)
    expected = functools.partial(CUMULATIVE[name], axis=axis)
    check_values(f, expected, [data((3, 2))])
    check_orders(f, [data((3, 2))])
    check_single(f, expected, [(3, 4)], "c")


@pytest.mark.parametrize("name", REDUCTIONS | CUMULATIVE)
def test_reduction_of_strange_layouts(name):
    """0-d, one element, not contiguous, more elements than a block of the sweep."""
    reference = (REDUCTIONS | CUMULATIVE)[name]
    base = data((50, 62), seed=3) * 0.2 + 1.0
    for z in (base[0, 0], base[0, :1], base[::-7, ::5].T, base):
        t = tg.as_tensor(np.asarray(z)).requires_grad_()
        axis = 0 if z.ndim else None
        out = FUNCTIONS[name](t, axis=axis)
        np.testing.assert_allclose(array_of(out), reference(z, axis=axis), rtol=1e-9, atol=1e-12)
        seed = cotangents([out])[0]
        (g,) = tg.autograd.grad(out, t, seed, retain_graph=True)
        (h,) = tg.autograd.grad(out, t, seed, create_graph=True)
        np.testing.assert_allclose(array_of(g), array_of(h), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "cumsum", "cumprod", "euclidean_norm"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
def test_reduction_of_nothing(name, shape):
    z = np.zeros(shape, np.complex128)
    t = tg.tensor(z, requires_grad=True)
    if name == "mean":
        out = FUNCTIONS[name](t)
        assert np.isnan(out.item())
    else:
        out = FUNCTIONS[name](t, axis=0)
        close(out, (REDUCTIONS | CUMULATIVE)[name](z, axis=0))
    (g,) = tg.autograd.grad(out, t, np.ones(out.shape, out.dtype))
    close(g, z)


def test_zeros_in_products():
    """No derivative divides by an element."""
    z = np.array([0.0, 1j, 2.0 - 1j])
    t = tg.tensor(z, requires_grad=True)
    (g,) = tg.autograd.grad(tg.prod(t), t, np.array(1.0 + 0j))
    np.testing.assert_allclose(array_of(g), [np.conj(1j * (2 - 1j)), 0, 0])
    assert gradcheck(tg.prod, leaves([z * [1, 0, 1]]))
    assert gradcheck(tg.cumprod, leaves([z]))
    assert gradgradcheck(tg.prod, leaves([z]))


def test_variance_is_real():
    z = data((2, 3))
    t = tg.tensor(z, requires_grad=True)
    assert tg.var(t).dtype == tg.std(t, axis=0).dtype == np.float64
    for options in ({"ddof": 1}, {"correction": 0}, {"axis": 1, "keepdims": True}):
        f = functools.partial(tg.var, **options)
        ddof = options.pop("ddof", options.pop("correction", 0))
        close(f(t), np.asarray(np.var(z, ddof=ddof, **options)))
        check_orders(f, [z])
    t = tg.tensor(np.full(3, 1 + 2j), requires_grad=True)
    (g,) = tg.autograd.grad(tg.std(t), t)
    np.testing.assert_array_equal(array_of(g), np.zeros(3))  # as for real numbers


# -- functions that arrange elements ---------------------------------------------------------------


def arranging_cases():
    for case in ARRANGING:
        name, shapes, arguments, *reference = case
        reference = (reference and reference[0]) or getattr(np, name)
        for kinds in kinds_of(len(shapes)):
            if name in ("insert", "put", "put_view", "add_at") and kinds == ("f", "c"):
                continue  # a real array holds no complex values
            label = f"{name}-{'x'.join(map(str, shapes))}-{''.join(kinds)}"
            yield pytest.param(name, shapes, kinds, arguments, reference, id=label)


def arranging_call(name, f, arguments):
    if name in OF_LISTS:
        return lambda *values: f(list(values))
    if name in CALLED:
        return functools.partial(CALLED[name], f)
    return lambda *values: f(*values, *arguments)


@pytest.mark.parametrize(
    ("name", "shapes", "kinds", "arguments", "reference"), list(arranging_cases())
)
def test_arranging(name, shapes, kinds, arguments, reference):
    f = arranging_call(name, FUNCTIONS[name], arguments)
    expected = arranging_call(name, reference, arguments)
    arrays = operands(shapes, kinds)
    check_values(f, lambda *a: expected(*a), arrays)
    check_orders(f, arrays)
    if name != "astype":
        check_single(f, lambda *a: expected(*a), shapes, kinds)


@pytest.mark.parametrize(("name", "shape", "arguments", "options"), OF_SHAPE)
def test_rearranging(name, shape, arguments, options):
    def f(x):
        return FUNCTIONS[name](x, *arguments, **options)

    def expected(x):
        return np.asarray(getattr(np, name)(x, *arguments, **options))

    check_values(f, expected, [data(shape)])
    check_single(f, expected, [shape], "c")
    if data(shape).size:
        check_orders(f, [data(shape)])


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect", "symmetric", "constant"])
def test_pad(mode):
    options = {"mode": mode} | ({"constant_values": 1 + 2j} if mode == "constant" else {})
    f = functools.partial(tg.pad, pad_width=1, **options)
    check_values(f, functools.partial(np.pad, pad_width=1, **options), [data((2, 3))])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_concatenate_of_real_and_complex(axis):
    def joined(f):
        return lambda *v: f([v[0], 2 * v[1], v[2] * 1j, v[0]], axis=axis)

    arrays = operands([(2, 2)] * 3, "fcf")
    check_values(joined(tg.concatenate), joined(np.concatenate), arrays)
    check_orders(joined(tg.concatenate), arrays)


# -- no derivative ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", REAL_ONLY)
def test_real_functions_refuse(name, dtype):
    """A TypeError that names the function; also where only one of the operands is complex."""
    op = TABLE.get(name)
    z = tg.tensor(data((3,), dtype), requires_grad=True)
    count = len(op.arguments) if op is not None else 1
    calls = [(z,) * count] if count == 1 else [(z, z), (z, 1.5), (1.5, z)]
    if name == "clip":
        calls = [(z, 0.0), (z, None, 1.0)]
    for args in calls:
        with pytest.raises(TypeError, match="|".join(REAL_ONLY[name])):
            FUNCTIONS[name](*args)
    x = tg.tensor([0.5, 0.25, 0.75], requires_grad=True)
    if count == 2:
        with pytest.raises(TypeError, match="|".join(REAL_ONLY[name])):
            FUNCTIONS[name](x, np.array([1j, 2j, 3j]))


def test_the_error_says_what_to_do():
    z = tg.tensor([1j, 2.0], requires_grad=True)
    for f in (tg.max, tg.ptp, tg.relu, lambda z: tg.maximum(z, 0.0)):
        with pytest.raises(TypeError, match=r"no derivative for complex numbers; use real, imag"):
            f(z)
    assert tg.max(abs(z)).item() == 2.0


# -- special points --------------------------------------------------------------------------------

# function, point, gradient for a cotangent of (2 - 3i), or 2 if the value is real
SPECIAL = [
    ("absolute", 0j, 0),
    ("absolute", complex(-0.0, 0.0), 0),
    ("absolute", 3 - 4j, 2 * (0.6 - 0.8j)),
    ("absolute", 1e300 + 1e300j, 2 * (1 + 1j) / math.sqrt(2)),
    ("absolute", 3e-320 + 4e-320j, 2 * (0.6 + 0.8j)),
    ("sign", 0j, 0),
    ("sign", 2j, 1),  # (g - z Re(g z*)) / |z|: what is across remains
    ("sign", -4 + 0j, -0.75j),
    ("angle", 0j, 0),
    ("angle", 2 + 0j, 1j),
    ("angle", -2 + 0j, -1j),
    ("angle", 0.5j, -4),
    ("conjugate", complex(INF, -1), 2 + 3j),
    ("real", complex(NAN, INF), 2),
    ("imag", complex(NAN, INF), 2j),
    ("sinc", 0j, 0),
    ("square", 0j, 0),
    ("expm1", 0j, 2 - 3j),
    ("log1p", 0j, 2 - 3j),
    ("tanh", 0j, 2 - 3j),
    ("exp", complex(-INF, 0), 0),
    ("sigmoid", 0j, (2 - 3j) / 4),
    ("arcsin", 0j, 2 - 3j),
    ("arccosh", 0j, (2 - 3j) * 1j),  # from above the cut
    ("arctanh", 0j, 2 - 3j),
    ("sqrt", -4 + 0j, (2 - 3j) * 0.25j),  # the derivative on the cut is that of its upper side
    ("sqrt", complex(-4, -0.0), (2 - 3j) * -0.25j),
    ("log", complex(-2, -0.0), (2 - 3j) / -2),
    ("rint", 1.5 + 2.5j, 0),
]


@pytest.mark.parametrize("recorded", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize(("name", "point", "expected"), SPECIAL)
def test_special_point(name, point, expected, recorded):
    z = tg.tensor(point, requires_grad=True)
    out = FUNCTIONS[name](z)
    g = np.asarray(2 - 3j if out.dtype.kind == "c" else 2.0)
    (found,) = tg.autograd.grad(out, z, g, create_graph=recorded)
    assert found.dtype == np.complex128
    np.testing.assert_allclose(array_of(found), expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("name", ["sqrt", "log", "reciprocal", "log2", "log10"])
def test_poles_are_not_finite(name):
    z = tg.tensor(0j, requires_grad=True)
    with np.errstate(all="ignore"):
        (g,) = tg.autograd.grad(FUNCTIONS[name](z), z, np.array(1 + 0j))
    assert not np.isfinite(g.item())


# base, exponent, gradients for a cotangent of 1 - 2i (of real operands, the real part)
POWERS = [
    (0j, 2.0, 0, 0),
    (0j, 2, 0, None),
    (0j, 1.0, 1 - 2j, 0),
    (0j, 0.0, 0, 0),
    (0j, 3 + 0j, 0, 0),
    (0j, 0j, 0, 0),
    (2 + 0j, 0j, 0, (1 - 2j) * math.log(2)),
    (1j, 2 + 0j, (1 - 2j) * -2j, (1 - 2j) * np.conj(-1 * np.log(1j))),
    (-2.0, 2 + 0j, -4, (1 - 2j) * np.conj(4 * np.log(-2 + 0j))),
    (-1.0, 0.5j, None, (1 - 2j) * np.conj((-1 + 0j) ** 0.5j * 1j * math.pi)),
    (2.0, 1j, None, (1 - 2j) * np.conj(2**1j * math.log(2))),
    (1j, 3, (1 - 2j) * -3, None),
    (1j, -1, (1 - 2j) * 1, None),
]


@pytest.mark.parametrize("recorded", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize(("base", "exponent", "by_base", "by_exponent"), POWERS)
def test_power(base, exponent, by_base, by_exponent, recorded):
    x = tg.tensor(base, requires_grad=True)
    y = exponent if type(exponent) is int else tg.tensor(exponent, requires_grad=True)
    out = tg.power(x, y)
    close(out, np.asarray(base**exponent))
    inputs = [t for t in (x, y) if isinstance(t, tg.Tensor)]
    found = tg.autograd.grad(out, inputs, np.array(1 - 2j), create_graph=recorded)
    for g, t, expected in zip(found, inputs, (by_base, by_exponent), strict=False):
        assert g.dtype == t.dtype
        if expected is not None:
            np.testing.assert_allclose(array_of(g), expected, rtol=1e-13, atol=1e-15)


CUTS = {"sqrt": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "arctanh": 1, "arccosh": 1}
CUTS |= {"arctan": 1j}


@pytest.mark.parametrize("side", [0.0, -0.0])
@pytest.mark.parametrize("name", CUTS)
def test_branch_cuts(name, side):
    """On a cut the derivative is that of the side that the value belongs to."""
    f, turn = getattr(np, name), CUTS[name]

    def on_axis(t):
        return np.array(complex(t, side) if turn == 1 else complex(side, t))

    for t in (-3.0, -2.0, -0.5, 0.5, 2.0, 3.0):
        step = 1e-6
        slope = (f(on_axis(t + step)) - f(on_axis(t - step))) / (2 * step * turn)
        z = tg.tensor(on_axis(t), requires_grad=True)
        (g,) = tg.autograd.grad(FUNCTIONS[name](z), z, np.array(1 + 0j))
        np.testing.assert_allclose(array_of(g), np.conj(slope), rtol=1e-7, atol=1e-9)


def test_norm_of_zeros():
    z = tg.tensor(np.zeros(3, np.complex128), requires_grad=True)
    for f in (tg.linalg.norm, lambda z: tg.linalg.norm(z, ord=1), lambda z: abs(z).sum()):
        (g,) = tg.autograd.grad(f(z), z)
        np.testing.assert_array_equal(array_of(g), np.zeros(3))


def test_nan_and_inf_stay_where_they_are():
    z = tg.tensor([1 + 1j, complex(NAN, 1), complex(INF, 0), 2j], requires_grad=True)
    for f in (lambda z: z * z, tg.sqrt, tg.absolute, tg.angle, lambda z: z + 1):
        with np.errstate(all="ignore"):
            out = f(z)
            (g,) = tg.autograd.grad(out, z, np.ones(4, out.dtype))
        assert np.isfinite(array_of(g)[[0, 3]]).all()


class TestPairsOfNumbers:
    """`view_as_real`, `view_as_complex`: the same memory as pairs of real numbers."""

    @pytest.mark.parametrize("dtype", COMPLEX)
    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
    def test_values(self, dtype, shape):
        z = data(shape, dtype)
        pairs = tg.view_as_real(tg.tensor(z))
        assert pairs.dtype == REAL_OF[np.dtype(dtype)]
        np.testing.assert_array_equal(pairs.numpy(), np.stack([z.real, z.imag], -1))
        back = tg.view_as_complex(pairs)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back.numpy(), z)
        assert np.shares_memory(back.numpy(), pairs.numpy()) == bool(z.size)

    @pytest.mark.parametrize("change", [lambda t: t * 1, lambda t: t.T, lambda t: t[::2, 1:]])
    def test_derivatives(self, change):
        z = tg.tensor(data((3, 4), np.complex128), requires_grad=True)
        r = tg.tensor(data((3, 4, 2), np.float64), requires_grad=True)
        weights = np.cos(np.arange(24.0))

        def to_real(z):
            found = tg.view_as_real(change(z * z))
            return (found**2 * weights[: found.size].reshape(found.shape)).sum()

        def to_complex(r):
            return tg.view_as_complex((r * r)[1:, ::2]) ** 2

        assert gradcheck(to_real, (z,))
        assert gradgradcheck(to_real, (z,))
        assert gradcheck(to_complex, (r,))
        assert gradgradcheck(to_complex, (r,))

    def test_writes_go_through(self):
        z = tg.tensor(np.array([1 + 2j, 3 - 1j]), requires_grad=True)
        w = z * 1
        tg.view_as_real(w)[:, 0] *= 3.0
        np.testing.assert_array_equal(w.detach().numpy(), [3 + 2j, 9 - 1j])
        (w * w.conj()).real.sum().backward()
        np.testing.assert_array_equal(z.grad.numpy(), [18 + 4j, 54 - 2j])

    def test_refused(self):
        with pytest.raises(RuntimeError, match="view_as_real is only supported for complex"):
            tg.view_as_real(tg.ones(2))
        with pytest.raises(RuntimeError, match="only supported for float32 and float64 tensors"):
            tg.view_as_complex(tg.tensor([1j, 2j]))
        with pytest.raises(RuntimeError, match="must have a last dimension of size 2"):
            tg.view_as_complex(tg.ones((2, 3)))
        for apart in (tg.ones((2, 2)).T, tg.ones((2, 4))[:, ::2], tg.ones((2, 3))[:, :2]):
            with pytest.raises(RuntimeError, match=r"must stand side by side .* x.copy\(\)"):
                tg.view_as_complex(apart)
