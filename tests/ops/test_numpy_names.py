"""Functions composed of others under NumPy's names: values as NumPy's, gradients by differences."""

import numpy as np
import pytest

import tapegrad as tg

X = np.array([[0.4, 1.3, -0.7, 0.2], [2.1, -1.6, 0.9, 1.1], [-0.3, 0.8, 1.7, -1.2]])
Y = np.array([1.0, 2.5, -0.5, 0.7])
POINTS = np.array([-2.0, -0.5, 0.3, 1.0, 2.5])
HOLES = np.array([[0.4, np.nan, -0.7], [2.1, -1.6, 0.9]])
MASK = np.isnan(HOLES)


def holes(x):
    """Put nan into an array."""
    return np.where(MASK, np.nan, x[:2, :3])


CALLS = {
    "deg2rad": np.deg2rad,
    "radians": np.radians,
    "rad2deg": np.rad2deg,
    "degrees": np.degrees,
    "fabs": np.fabs,
    "append": lambda x: np.append(x, Y),
    "append along an axis": lambda x: np.append(x, Y[None], axis=0),
    "atleast_2d": lambda x: np.atleast_2d(x[0]),
    "atleast_3d": lambda x: np.atleast_3d(x),
    "atleast_3d of one axis": lambda x: np.atleast_3d(x[0]),
    "column_stack": lambda x: np.column_stack([x[0], Y, x.T]),
    "dstack": lambda x: np.dstack([x, 2.0 * x]),
    "block": lambda x: np.block([[x, Y[:3, None]], [np.ones((1, 4)), x[0, :1]]]),
    "block of one level": lambda x: np.block([x[0], x[1]]),
    "hsplit": lambda x: np.hsplit(x, 2)[1],
    "vsplit": lambda x: np.vsplit(x, [1])[1],
    "dsplit": lambda x: np.dsplit(x[None], [1, 3])[1],
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "rot90": np.rot90,
    "rot90 back": lambda x: np.rot90(x, -1, (1, 0)),
    "rot90 twice": lambda x: np.rot90(x, 2),
    "meshgrid": lambda x: np.meshgrid(x[0], x[1, :3])[1],
    "meshgrid, ij": lambda x: np.meshgrid(x[0], x[1, :3], x[2], indexing="ij")[2],
    "meshgrid, sparse": lambda x: np.meshgrid(x[0], x[1, :3], sparse=True)[0],
    "select": lambda x: np.select([X > 1.0, X > 0.0], [x * x, 3.0 * x], -x),
    "diff": lambda x: np.diff(x, axis=0),
    "diff twice": lambda x: np.diff(x, 2),
    "diff with ends": lambda x: np.diff(x, prepend=1.0, append=x[:, :2]),
    "ediff1d": lambda x: np.ediff1d(x, to_end=[1.0, 2.0], to_begin=x[0, 0]),
    "gradient": lambda x: np.gradient(x)[0],
    "gradient along an axis": lambda x: np.gradient(x, 0.5, axis=1),
    "gradient over coordinates": lambda x: np.gradient(x, np.array([0.0, 1.0, 3.0, 3.5]), axis=1),
    "gradient, edge order 2": lambda x: np.gradient(
        x, np.array([0.0, 1.0, 3.0, 3.5]), axis=1, edge_order=2
    ),
    "trapezoid": lambda x: np.trapezoid(x, dx=0.5),
    "trapezoid over coordinates": lambda x: np.trapezoid(x, np.array([0.0, 1.0, 3.0]), axis=0),
    "interp": lambda x: np.interp(x, POINTS, np.sin(POINTS)),
    "interp of values": lambda x: np.interp([-3.0, 0.1, 0.3, 9.0], POINTS[:4], x[0], right=7.0),
    "interp of points": lambda x: np.interp(0.1, np.sort(x[0]), Y, left=-1.0),
    "convolve": lambda x: np.convolve(x[0], Y),
    "convolve, same": lambda x: np.convolve(Y[:2], x[1], "same"),
    "convolve, valid": lambda x: np.convolve(x[0], x[1, :3], mode="valid"),
    "cross": lambda x: np.cross(x[:, :3], x[::-1, 1:]),
    "cross along an axis": lambda x: np.cross(x, np.ones((3, 4)), axis=0),
    "polyval": lambda x: np.polyval(x[0], x[1]),
    "vander": lambda x: np.vander(x[0]),
    "vander, increasing": lambda x: np.vander(x[0], 3, increasing=True),
    "polyfit": lambda x: np.polyfit(x[0], x[1], 2),
    "polyfit with weights": lambda x: np.polyfit(Y, x.T, 1, w=x[2] + 2.0),
    "roots": lambda x: np.sort(np.roots(x[:, 1] * np.array([-1.0, 1.0, 2.0]))),
    "roots at 0": lambda x: np.roots(x[0] * np.array([0.0, 1.0, -1.0, 0.0])),
    "unwrap": lambda x: np.unwrap(3.0 * x, axis=0),
    "insert": lambda x: np.insert(x, [0, 2], x[:, :2] * 2.0, axis=1),
    "insert into all": lambda x: np.insert(x, 3, 5.0),
    "delete": lambda x: np.delete(x, [0, 2], axis=1),
    "delete a slice": lambda x: np.delete(x, slice(1, 7)),
    "compress": lambda x: np.compress([True, False, True], x, axis=0),
    "extract": lambda x: np.extract(X > 0.5, x),
    "choose": lambda x: np.choose([[0, 1], [2, 1]], [x[:2, :2], x[1, 2:], 3.0]),
    "choose, wrapped": lambda x: np.choose([0, 5, -1, 3], x, mode="wrap"),
    "resize": lambda x: np.resize(x, (5, 3)),
    "piecewise": lambda x: np.piecewise(x, [X < 0.0, X > 1.0], [lambda v: v * v, 2.0, np.sin]),
    "piecewise, twice": lambda x: np.piecewise(x, [X < 1.0, X < 0.0], [np.exp, np.square]),
    "piecewise, one condition": lambda x: np.piecewise(x[0], X[0] < 1.0, [lambda v, k: k * v], 3.0),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x[0], x[:, :1])[0],
    "apply_along_axis": lambda x: np.apply_along_axis(np.sum, 0, x),
    "apply_along_axis, longer": lambda x: np.apply_along_axis(np.outer, 0, x, Y[:2]),
    "around": lambda x: np.around(x, 1) * x,
    "fix": lambda x: np.fix(x) * x,
    "cumulative_sum": lambda x: np.cumulative_sum(x, axis=0),
    "cumulative_sum with none": lambda x: np.cumulative_sum(x, axis=1, include_initial=True),
    "cumulative_prod with none": lambda x: np.cumulative_prod(x[0], include_initial=True),
    "copysign": lambda x: np.copysign(x, -X),
    "copysign of a number": lambda x: np.copysign(x, 1.0),
    "divmod": lambda x: np.divmod(x, 0.713)[0] + np.divmod(23.1, x + 3.0)[1],
    "vecdot along an axis": lambda x: np.vecdot(x, X, axis=0),
    "heaviside": lambda x: np.heaviside(X - 0.9, x),
    "tensorinv": lambda x: np.linalg.tensorinv(x[:, 1:].reshape(3, 3, 1) + np.eye(3)[..., None], 1),
    "tensorsolve": lambda x: np.linalg.tensorsolve(x[:, 1:].reshape(3, 1, 3), x[:, 0]),
    "cross of linalg": lambda x: np.linalg.cross(x, np.ones((3, 4)), axis=0),
    "average": lambda x: np.average(x, axis=1),
    "average with weights": lambda x: np.average(x, axis=1, weights=Y),
    "average with all weights": lambda x: np.average(x, weights=X * X),
    "cov": np.cov,
    "cov of two": lambda x: np.cov(x[0], x[1], bias=True),
    "cov of columns": lambda x: np.cov(x, rowvar=False, ddof=0),
    "cov of one": lambda x: np.cov(x[0]),
    "corrcoef": np.corrcoef,
    "median": np.median,
    "median along an axis": lambda x: np.median(x, axis=0, keepdims=True),
    "quantile": lambda x: np.quantile(x, 0.3, axis=1),
    "quantiles": lambda x: np.quantile(x, [[0.1, 0.5], [0.9, 1.0]], axis=0),
    "quantiles of all": lambda x: np.quantile(x, [0.25, 0.8], keepdims=True),
    "quantile, lower": lambda x: np.quantile(x, 0.4, axis=1, method="lower"),
    "quantile, midpoint": lambda x: np.quantile(x, 0.4, axis=(0, 1), method="midpoint"),
    "percentile": lambda x: np.percentile(x, 35.0, axis=1, method="nearest"),
    "nan_to_num": lambda x: np.nan_to_num(holes(x), nan=3.0),
    "nansum": lambda x: np.nansum(holes(x), axis=0),
    "nanprod": lambda x: np.nanprod(holes(x)),
    "nancumsum": lambda x: np.nancumsum(holes(x), axis=1),
    "nancumprod": lambda x: np.nancumprod(holes(x)),
    "nanmean": lambda x: np.nanmean(holes(x), axis=1),
    "nanvar": lambda x: np.nanvar(holes(x), axis=1, ddof=1),
    "nanstd": lambda x: np.nanstd(holes(x)),
    "nanmedian": lambda x: np.nanmedian(holes(x), axis=0),
    "nanquantile": lambda x: np.nanquantile(holes(x), [0.2, 0.7], axis=1),
    "nanquantile of all": lambda x: np.nanquantile(holes(x), 0.3, keepdims=True, method="lower"),
    "nanpercentile": lambda x: np.nanpercentile(holes(x), 60.0, axis=(0, 1)),
    "nanmax": lambda x: np.nanmax(holes(x), axis=1, keepdims=True),
    "nanmin": lambda x: np.nanmin(holes(x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients(name, agrees_with_numpy):
    agrees_with_numpy(CALLS[name], X, order=2)


@pytest.mark.parametrize("name", CALLS)
def test_lower_precision_stays(name):
    x = X.astype(np.float32)
    expected, found = CALLS[name](x), CALLS[name](tg.tensor(x))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if np.asarray(expected).dtype == np.float32:
        assert found.dtype == np.float32


@pytest.mark.parametrize(
    "name", ["diff", "median", "quantile, lower", "convolve, valid", "polyval"]
)
def test_integers_are_numpys_own(name):
    x = (10 * X).astype(int)
    expected, found = CALLS[name](x), CALLS[name](tg.tensor(x))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_grids_are_arrays_of_their_own():
    t = tg.tensor([1.0, 2.0], requires_grad=True)
    x, y = np.meshgrid(t, t)
    x *= 3.0
    np.testing.assert_array_equal(x.detach(), [[3.0, 6.0], [3.0, 6.0]])
    (x * y).sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), [18.0, 18.0])


def test_infinities_and_nan():
    x = np.array([1.0, np.inf, np.nan, -np.inf])
    t = tg.tensor(x, requires_grad=True)
    np.testing.assert_array_equal(np.nan_to_num(t).detach(), np.nan_to_num(x))
    np.nan_to_num(t).sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), [1.0, 0.0, 0.0, 0.0])
    x = np.array([1.0, 3.0, np.nan])
    t = tg.tensor(x, requires_grad=True)
    for f in (np.median, lambda x: np.quantile(x, [0.1, 0.9]), lambda x: np.percentile(x, 30)):
        np.testing.assert_array_equal(f(t).detach(), f(x))
    nothing = tg.tensor([[np.nan, np.nan], [1.0, 2.0]], requires_grad=True)
    np.testing.assert_array_equal(np.nanmax(nothing, axis=1).detach(), [np.nan, 2.0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: np.interp(t, POINTS, POINTS, period=1.0), "periods are not supported"),
        (lambda t: np.quantile(t, 1.5), "q must be between 0 and 1"),
        (lambda t: np.quantile(t, 0.5, method="hazen"), "method 'hazen' is none of"),
        (lambda t: np.convolve(t, t), "two 1-d arrays"),
        (lambda t: np.cross(t, t), "length 3"),
        (lambda t: np.average(t, weights=Y), "weights must have the shape"),
        (lambda t: np.gradient(t, 1.0, 2.0, 3.0), "3 spacings for 2 axes"),
        (lambda t: np.cov(t, aweights=Y), "no argument 'aweights'"),
        (lambda t: np.nan_to_num(t + 1j), "nan_to_num of complex numbers"),
        (lambda t: np.nan_to_num(t, copy=False), "copy=False is not supported"),
        (lambda t: np.diff(t, -1), "n must not be negative"),
        (lambda t: np.meshgrid(t[0], t[1], indexing="xx"), "neither 'xy' nor 'ij'"),
    ],
)
def test_what_is_refused_is_named(call, text):
    with pytest.raises((TypeError, ValueError), match=text):
        call(tg.tensor(X, requires_grad=True))


class TestRoots:
    """Derivatives by the coefficients, also by those that are 0."""

    @pytest.mark.parametrize("p", [[1.0, -3.0, 2.0, 0.0], [0.0, 1.0, -3.0, 2.0], [2.0, 1.0, 3.0]])
    def test_coefficients_of_0(self, p):
        p = np.array(p)
        found = tg.jacobian(lambda p: tg.view_as_real(np.roots(p) + 0j))(p)
        z = np.roots(p).astype(complex)
        n = p.size
        slope = np.polyval(np.arange(n - 1, 0, -1) * p[:-1], z)
        exact = -(z[:, None] ** np.arange(n - 1, -1, -1)) / slope[:, None]
        np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], exact, rtol=1e-12, atol=1e-12)

    def test_moments_of_roots(self):
        def cubes(c):
            return (np.roots(tg.r_[1.0, -3.0, 2.0, c]) ** 3).sum().real

        step = 1e-6
        numbers = [np.sum(np.roots([1.0, -3.0, 2.0, c]) ** 3).real for c in (step, -step)]
        slope = (numbers[0] - numbers[1]) / (2 * step)
        assert tg.grad(cubes)(0.0) == pytest.approx(slope, rel=1e-6)
        assert tg.grad(tg.grad(cubes))(0.1) == pytest.approx(0.0, abs=1e-9)


class TestEdgesOfQuantiles:
    @pytest.mark.parametrize("x", [[-np.inf, 1.0], [-np.inf, -np.inf, 1.0, 2.0], [1.0, np.inf]])
    @pytest.mark.parametrize("f", [np.median, np.nanmedian])
    def test_infinities(self, f, x):
        t = tg.tensor(x, requires_grad=True)
        np.testing.assert_array_equal(f(t).detach(), f(x))

    @pytest.mark.parametrize("shape, axis", [((0,), None), ((0, 3), 0), ((3, 0), 0)])
    def test_nothing(self, shape, axis):
        found = np.nanmedian(tg.tensor(np.zeros(shape), requires_grad=True), axis=axis)
        expected = np.full(np.zeros(shape).sum(axis).shape, np.nan)
        np.testing.assert_array_equal(found.detach(), expected)

    def test_shares_must_be_numbers(self):
        with pytest.raises(ValueError, match="q must be between 0 and 1"):
            np.quantile(tg.ones(2), np.nan)


class TestRounding:
    @pytest.mark.parametrize("decimals", [-3, 0, 2])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
    def test_values(self, decimals, dtype):
        x = np.array([8388500, 12345678, -1234, 7, 2**20 + 1], dtype)
        found = np.around(tg.tensor(x), decimals)
        expected = np.around(x, decimals)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)

    def test_slopes_are_0(self):
        t = tg.tensor([1.26, 2.0], requires_grad=True)
        (np.round(t, 1) * t).sum().backward()
        np.testing.assert_array_equal(t.grad.numpy(), [1.3, 2.0])


class TestTypesOfSignsAndSteps:
    @pytest.mark.parametrize("y", [0.7, np.float32(0.5), np.ones(2, np.float32), np.ones(2)])
    @pytest.mark.parametrize("f", [np.copysign, np.heaviside])
    def test_joined(self, f, y):
        x = np.array([0.0, -1.0], np.float32)
        found = f(tg.tensor(x, requires_grad=True), y)
        assert found.dtype == f(x, y).dtype
        np.testing.assert_array_equal(found.detach(), f(x, y))

    @pytest.mark.parametrize("number", [2.0, 2, True])
    @pytest.mark.parametrize("f", [np.copysign, np.heaviside])
    def test_a_number_first(self, f, number):
        y = np.array([0.5, -1.0], np.float32)
        found = f(number, tg.tensor(y, requires_grad=True))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.detach(), f(number, y))

    def test_out(self):
        t, out = tg.tensor([1.0, -2.0], requires_grad=True), tg.zeros(2)
        assert np.copysign(t, 1.0, out=out) is out
        out.sum().backward()
        np.testing.assert_array_equal(t.grad.numpy(), [1.0, -1.0])


class TestPieces:
    def test_functions_are_not_called_with_nothing(self):
        t = tg.tensor([1.0, 2.0], requires_grad=True)
        found = np.piecewise(t, [np.array([False, False])], [lambda t: t - t.max(), np.sin])
        np.testing.assert_allclose(found.detach(), np.sin([1.0, 2.0]))

    def test_lists_among_choices(self):
        t = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        np.choose([0, 1, 1], [[5, 6, 7], t]).sum().backward()
        np.testing.assert_array_equal(t.grad.numpy(), [0.0, 1.0, 1.0])

    def test_names_of_arguments(self):
        t = tg.tensor([[1.0, 2.0]], requires_grad=True)
        found = np.apply_along_axis(func1d=np.sum, axis=1, arr=t)
        np.testing.assert_array_equal(found.detach(), [3.0])

    def test_weights_of_fits(self):
        t = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        with pytest.raises(ValueError, match="w has shape"):
            np.polyfit(t, t, 1, w=np.ones(1))


@pytest.mark.parametrize("f", [np.atleast_1d, np.atleast_2d, np.atleast_3d])
def test_axes_of_several_arrays(f):
    x = np.arange(3.0)
    t = tg.tensor(x, requires_grad=True)
    found = f(t, 2.0, np.ones((2, 2)))
    for one, other in zip(found, f(x, 2.0, np.ones((2, 2))), strict=True):
        np.testing.assert_array_equal(one.detach(), other)
    assert found[0].requires_grad


BOUNDS = {
    "both": {"a_min": 0.0, "a_max": 1.5},
    "lower": {"a_min": 0.5},
    "upper": {"a_max": 1.5},
}


class TestBounds:
    """Bounds have NumPy's newer and older names."""

    @pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
    def test_older_names(self, bounds):
        x = np.array([-1.0, 1.0, 2.0])
        expected = np.clip(x, bounds.get("a_min"), bounds.get("a_max"))
        rate = ((x == expected) * 1.0).tolist()
        for clip in (tg.clip, np.clip, tg.Tensor.clip):
            given = {"a_min": None, "a_max": None, **bounds} if clip is np.clip else bounds
            t = tg.tensor(x, requires_grad=True)
            found = clip(t, **given)
            np.testing.assert_array_equal(found.detach(), expected)
            assert tg.autograd.grad(found.sum(), t)[0].tolist() == rate

    def test_both_names(self):
        with pytest.raises(TypeError, match="as min and max, or as a_min and a_max, not both"):
            tg.clip(tg.ones(2), 0.0, a_max=1.0)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("logsumexp", [tg.logsumexp, tg.Tensor.logsumexp])
def test_weights_of_logsumexp(logsumexp, keepdims, axis):
    weights = np.array([0.5, 2.0, 1.0, 0.25])
    expected = np.log(np.sum(weights * np.exp(X), axis=axis, keepdims=keepdims))
    t = tg.tensor(X, requires_grad=True)
    found = logsumexp(t, axis, b=weights, keepdims=keepdims)
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-14)
    (g,) = tg.autograd.grad(found.sum(), t)
    total = np.sum(weights * np.exp(X), axis=axis, keepdims=True)
    np.testing.assert_allclose(g, weights * np.exp(X) / total, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_numbers_among_choices(dtype):
    x = np.arange(6).astype(dtype).reshape(2, 3)
    for choices, default in (
        ([x, 3], 1.5), ([2, 3], x), ([2.5, x], 0), ([1, 2.5], 0), ([[1, 2, 3], x], 2),
        ([np.float64(2.5), x], 1), ([True, x], 1.5),
    ):  # fmt: skip

        def f(x, choices=choices, default=default):
            given = [x if np.ndim(part) == 2 else part for part in choices]
            return np.select([x > 3, x > 1], given, x if np.ndim(default) else default)

        expected = f(x)
        for found in (f(tg.tensor(x)).numpy(), tg.jit(f)(x), tg.vmap(f)(tg.tensor(x)).numpy()):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_integers_are_finite():
    found = tg.nan_to_num(np.array([1, 2]), nan=3)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [1, 2])


def test_nothing_is_put():
    y = tg.tensor([1.0, 2.0])
    np.put(y, [0], [])
    np.testing.assert_array_equal(y, [1.0, 2.0])


@pytest.mark.parametrize("widths", [{0: 1}, {-1: (1, 2)}, {0: (0, 1), 1: 2}, {}])
@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_pad_of_some_axes(widths, mode):
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(tg.pad(x, widths, mode), np.pad(x, widths, mode))
    gradient = tg.grad(lambda x: tg.sum(tg.pad(x, widths, mode) ** 2))(x)
    counts = np.pad(np.arange(6).reshape(2, 3), widths, mode)
    if mode == "edge":
        expected = [2 * x.ravel()[k] * np.sum(counts == k) for k in range(6)]
        np.testing.assert_allclose(gradient.ravel(), expected)
    else:
        np.testing.assert_allclose(gradient, 2 * x)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_pad_of_no_axes(mode):
    assert tg.pad(tg.tensor(2.0), 1, mode) == np.pad(np.array(2.0), 1, mode) == 2.0


def test_fill():
    def f(x):
        y = x * 2.0
        assert y[1:].fill(x[0]) is None
        return tg.sum(y * y)

    x = np.array([1.0, 2.0, 3.0])
    expected = [12.0, 0.0, 0.0]  # (2 x0)^2 + 2 x0^2
    for gradient in (tg.grad(f), tg.grad(tg.jit(f))):
        np.testing.assert_allclose(gradient(x), expected)
    np.testing.assert_allclose(tg.vmap(tg.grad(f))(np.stack([x, x])), [expected, expected])


def test_differences_of_booleans():
    x = np.array([[True, False, False], [True, True, False]])
    for n in (1, 2):
        np.testing.assert_array_equal(tg.diff(x, n), np.diff(x, n))
        np.testing.assert_array_equal(
            tg.jit(lambda y, n=n: tg.diff(y > 0.5, n))(x * 1.0), np.diff(x, n)
        )


def test_grids_that_are_views_of_arrays_with_gaps():
    x = np.arange(6.0).reshape(3, 2)

    def f(x, module=tg):
        v = x * 1.0
        grid = module.meshgrid(v[:, 0], v[:, 1], copy=False)[0]
        v[0] = 30.0
        return grid

    expected = f(x, np)
    for found in (f(x), f(tg.tensor(x)), tg.jit(f)(x), tg.vmap(f)(x[None])[0]):
        np.testing.assert_array_equal(found, expected)
