"""Recorded functions that write to tensors which they made."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret

import tapegrad as tg

X = np.linspace(-1.0, 2.0, 12).reshape(4, 3)
I = np.array([2, 0, 2])  # noqa: E741
V4 = np.arange(4.0)


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("compiled") is None:
        interpret(monkeypatch)


def elements(x):
    z = tg.zeros(4)
    for k in range(4):
        z[k] = x[k, 0] * k
    return z


def overwritten(x):
    z = tg.ones((4, 3))
    z[1:] = x[1:] * 2.0
    z[0] = z[1] + 1.0
    z[-1, ::2] = 7.0
    return z


def through_views(x):
    z = x * 1.0
    row, part = z[1], z.T[1:]
    row[0] = 5.0
    part *= 2.0
    row += x[0]
    return z + part.sum() + row


def views_of_views(x):
    z = tg.empty((4, 3))
    z[...] = x
    corner = z[1:][:, 1:]
    corner[0, 0] = x[3, 2] * 3.0
    corner.reshape(-1)  # a copy
    z[2, 1] = 0.5
    return corner * z[0, 1]


def reshaped(x):
    z = tg.zeros(12)
    grid = z.reshape(4, 3)
    grid[:, 0] = x[:, 1]
    grid[2] += 1.0
    return z


def of_the_base(x):
    z = x + 0.0
    shown = z[2]
    z *= 3.0
    z[2, 0] = 1.0
    return shown


def at_arrays(x):
    z = tg.zeros((4, 3))
    z[I] = x[1:]  # the last of equal indices wins
    z[[1, 3], [0, 2]] = x[0, :2]
    return z


def at_masks(x):
    z = x.clone()
    z[z < 0.0] = 0.0
    z[np.eye(4, 3) > 0] = 9.0
    return z


def clones(x):
    z = x.clone()
    other = z.clone()
    z[0] = 0.0
    return other - z


def in_place_methods(x):
    z = x.clone()
    z.add_(1.0).mul_(x)
    z[1].zero_()
    z[2].fill_(3.0)
    z[3].copy_(x[0])
    return z


def detached(x):
    z = x * 2.0
    kept = z.detach()
    return z * kept


def of_numbers(x):
    z = tg.zeros(4)
    z[0], z[1], z[2] = 1, x[0, 0], True
    return z


def outer(x):
    z = tg.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            z[i, j] = x[i, j] * x[j, i]
    return z


WRITES = [
    elements, overwritten, through_views, views_of_views, reshaped, of_the_base, at_arrays,
    at_masks, clones, in_place_methods, detached, of_numbers, outer,
]  # fmt: skip


def weighted(function):
    def value(x):
        found = function(x)
        return tg.sum(found * np.cos(np.arange(float(np.prod(found.shape)))).reshape(found.shape))

    return value


@pytest.mark.parametrize("function", WRITES)
def test_equal(function):
    f = tg.jit(function)
    assert not f.inspect(X).startswith("op by op"), f.inspect(X)
    assert_equal(f(X), function(tg.tensor(X)))
    assert_equal(f(2.0 - X), function(tg.tensor(2.0 - X)))


@pytest.mark.compiled
@pytest.mark.parametrize(
    "function", [overwritten, through_views, at_arrays, at_masks, in_place_methods, outer]
)
def test_derivatives(function):
    f, g = (weighted(one) for one in (tg.jit(function), function))
    assert_equal(tg.grad(tg.jit(g))(X), tg.grad(g)(X))
    assert_equal(tg.grad(f)(X), tg.grad(g)(X))


class TestWhatIsNotRecorded:
    """Writes with an effect besides the result run op by op."""

    def test_to_a_tensor_from_outside(self):
        kept = tg.zeros(3)

        def f(x):
            kept[1] = x[0]
            return x * 2.0

        jitted = tg.jit(f)
        for factor in (1.0, 2.0):
            jitted(X[0] * factor)
            assert kept[1] == X[0, 0] * factor
        assert "changed in place" in jitted.inspect(X[0])

    def test_of_known_values_to_tensors_from_outside(self):
        total, buffer = tg.zeros(3), np.zeros(3)

        def f(x):
            total.add_(1.0)
            total[0] = 5.0
            shared = tg.as_tensor(buffer)
            shared += 1.0
            return x * 2.0

        jitted = tg.jit(f)
        for k in range(1, 4):
            jitted(X)
            assert_equal(total, np.array([5.0, k, k]))
            assert_equal(buffer, np.full(3, float(k)))

    def test_to_an_argument(self):
        def f(x):
            x += 1.0
            return tg.sum(x)

        given = X.copy()
        assert_equal(tg.jit(f)(given), np.sum(X + 1.0))
        assert_equal(given, X + 1.0)

    def test_to_a_view_of_an_argument(self):
        def f(x):
            x[1:][0] = 0.0
            return tg.sum(x)

        given = X.copy()
        tg.jit(f)(given)
        assert (given[1] == 0.0).all()

    def test_without_recording(self):
        def f(x):
            z = x * 1.0
            with tg.no_grad():
                z[0] = 0.0
            return tg.sum(z)

        assert "changed in place" in tg.jit(f).inspect(X)
        assert_equal(tg.grad(tg.jit(f))(X), tg.grad(f)(X))

    def test_to_a_broadcast(self):
        def f(x):
            z = tg.broadcast_to(tg.zeros(3), (4, 3))
            z[0] = x[0]
            return z

        with pytest.raises(ValueError, match="read-only"):
            tg.jit(f)(X)

    def test_of_values_that_do_not_fit(self):
        def f(x):
            z = tg.zeros(3, dtype=int)
            z[0] = x[0, 0]
            return z * x[0]

        try:
            expected = f(tg.tensor(X))
        except RuntimeError:
            with pytest.raises(RuntimeError):
                tg.jit(f)(X)
        else:
            assert_equal(tg.jit(f)(X), expected)


def stepped_views(x):
    z = x.T[0] * 1.0
    v = z[::2]
    v[::-1] *= 2.0
    z[1:] = z[::-1][1:]
    return z, x[::2][1:], x[::-1][::-1], tg.flip(x)[1:]


def reshaped_layouts(x):
    z = tg.sin(x)
    z.reshape(-1)[0] = 5.0
    y = x.T * 1.0
    y[0] = 0.0
    y.reshape(-1)[1] = 7.0
    z[...] = 0.5
    return z, y, z.reshape(-1), x.clone().reshape(-1)


def reshaped_argument(x):
    z = x.reshape(-1)
    z[0] = 5.0
    return z


def listed(x):
    z, y = tg.zeros(3), tg.zeros((3, 2))
    z[[0, 2]] = 1.0
    z[[0, 1]] += x[0, 1:]
    y[[0, 1]] = x[1, :2]
    return z, y


def detached_before(x):
    z = tg.zeros(3)
    kept = z.detach()
    z[0] = x[0, 0]
    return kept * x[0], z * x[0]


def arrays_of_its_own(x):
    z = tg.zeros(3)
    np.asarray(z)[0] = 1.0
    z.numpy()[1] = 2.0
    return x * z


def handled(x):
    z = x * 1.0
    try:
        z.requires_grad_()
    except Exception:
        return z * 3.0
    return z * 2.0


@pytest.mark.parametrize("function", [
    stepped_views, reshaped_layouts, reshaped_argument, listed, detached_before, arrays_of_its_own,
    handled,
])  # fmt: skip
def test_equal_for_all_layouts(function):
    f = tg.jit(function)
    for x in (np.asfortranarray(X), X, np.repeat(X, 2, axis=1)[:, ::2], np.asfortranarray(X)):
        one, other = x.copy(order="K"), x.copy(order="K")
        assert_equal(f(one), function(tg.as_tensor(other)))
        assert_equal(one, other)


@pytest.mark.compiled
def test_gradients_of_detached_tensors():
    def f(x):
        return sum(map(tg.sum, detached_before(x)))

    assert_equal(tg.grad(tg.jit(f))(X), tg.grad(f)(X))


class TestKnownValues:
    """What the function makes itself has values while it is recorded."""

    def test_decisions(self):
        def f(x):
            steps = tg.linspace(0.0, 1.0, 3)
            total = x * 0.0
            for k in range(int(tg.arange(4)[3])):
                if steps[k] > 0.2:
                    total = total + x * float(steps[k])
            return total

        assert not tg.jit(f).inspect(X).startswith("op by op")
        assert_equal(tg.jit(f)(X), f(tg.tensor(X)))

    def test_arrays(self):
        def f(x):
            order = tg.argsort(tg.tensor([3.0, 1.0, 2.0]))
            return x[:, order] * np.sum(tg.ones(3)) + np.array(tg.eye(3)[0].tolist())

        assert not tg.jit(f).inspect(X).startswith("op by op")
        assert_equal(tg.jit(f)(X), f(tg.tensor(X)))

    def test_results(self):
        f = tg.jit(lambda x: (x, tg.zeros(2)))
        f(X)[1][:] = 1.0
        assert_equal(f(X)[1], np.zeros(2))
        assert type(f(X)[1]) is np.ndarray

    def test_a_tensor_of_the_function_is_used_afterwards(self):
        kept = []

        def f(x):
            kept.append(tg.zeros(3))
            return x * kept[-1]

        tg.jit(f)(X)
        with pytest.raises(tg.RecordingError, match="after the function has returned"):
            float(kept[0][0])


class TestIndices:
    """Indices that depend on arguments."""

    @pytest.mark.parametrize("k", [0, 2, -1])
    def test_numbers(self, k):
        def f(x, k):
            return x[k] * x[k - 1, 0] + x[..., 1][k] + x[k, None, :2].sum()

        assert not tg.jit(f).inspect(X, k).startswith("op by op")
        assert_equal(tg.jit(f)(X, k), f(tg.tensor(X), k))

    def test_rows_are_views(self):
        def f(x, k, places):
            z = x * 1.0
            row, part = z[k], z[k - 1, 1:]
            row[0] = 5.0
            z[k - 1] = 0.5
            copy = z[places[0]]  # an index that is an array
            total = tg.sum(copy)
            z[k] = 1.0
            return z, row, part, total

        assert not tg.jit(f).inspect(X, 1, I).startswith("op by op")
        for k in (1, 2, -1):
            assert_equal(tg.jit(f)(X, k, I), f(tg.tensor(X), k, tg.tensor(I)))

    def test_rows_at_items_of_arrays(self):
        """They are views in NumPy, where items are numbers; those at tensors are copies."""

        def f(x, places):
            z = x * 1.0
            row = z[places[0]]
            z[:] = 0.0
            return row

        assert_equal(tg.jit(f)(X, I), f(X, I))
        tensors = tg.tensor(X), tg.tensor(I)
        assert_equal(tg.jit(f)(*tensors), f(*tensors))

    def test_masks_beside_numbers(self):
        cube = np.arange(30.0).reshape(2, 3, 5)
        mask = np.array([[True, False, True], [False, True, True]])

        def f(x, k):
            z = x * 1.0
            z[mask, k] = 7.0
            return x[mask, k] + x[mask, ..., k], z

        assert not tg.jit(f).inspect(cube, 4).startswith("op by op")
        assert_equal(tg.jit(f)(cube, 4), f(tg.tensor(cube), 4))
        with pytest.raises(IndexError):
            tg.jit(f)(cube, 5)

    def test_slices_run_op_by_op(self):
        f = tg.jit(lambda x, k: x[k : k + 2])
        for k in (0, 1, 3):
            assert_equal(f(X, k), X[k : k + 2])

    def test_an_array_from_outside(self):
        f = tg.jit(lambda x, k: V4[k] * x)
        with pytest.raises(tg.RecordingError, match="as_tensor"):
            f(X, 1)
        assert_equal(tg.jit(lambda x, k: tg.as_tensor(V4)[k] * x)(X, 1), X)

    @pytest.mark.parametrize("k", [4, -5])
    def test_out_of_bounds(self, k):
        with pytest.raises(IndexError, match="out of bounds"):
            tg.jit(lambda x, k: x[k])(X, k)

    def test_arrays(self):
        def f(x, places):
            z = tg.zeros((4, 2))
            z[places] = x[places, :2]
            return x[places].sum(axis=1) + x[places, I] + z[:3, 0] + x[:, places].sum()

        assert not tg.jit(f).inspect(X, I).startswith("op by op")
        for places in (I, np.array([-1, 1, 0])):
            assert_equal(tg.jit(f)(X, places), f(tg.tensor(X), places))

    @pytest.mark.compiled
    def test_derivatives(self):
        def f(x, k, places):
            z = x * 2.0
            z[k] = x[0] ** 2
            return tg.sum(z[places] * x[k])

        for k, places in ((1, I), (-1, I[::-1].copy())):
            assert_equal(tg.grad(tg.jit(f))(X, k, places), tg.grad(f)(X, k, places))

    @pytest.mark.parametrize("index", [
        (0, I), (I, 0), (slice(1, 3), I), (I, slice(None, 2)), (None, I), (I, I), (Ellipsis, I),
        (I[:, None], I), (np.array([True, False, True, True]),), ([0, 1], slice(None), None),
        (np.array([True, False, True, False]), I[:2]), (np.int64(1), I), (X > 0.5,),
        (slice(None), None, I), (0, None, I), (np.array(2),), (np.array(2), I),
    ], ids=str)  # fmt: skip
    def test_known(self, index):
        def f(x):
            z = x * 1.0
            z[index] = x[index] * 3.0 + 1.0
            return tg.sum(x[index] * 2.0), z

        f(tg.tensor(X))
        assert not tg.jit(f).inspect(X).startswith("op by op"), tg.jit(f).inspect(X)
        assert_equal(tg.jit(f)(X), f(tg.tensor(X)))


class TestSeveralResults:
    @pytest.mark.compiled
    @pytest.mark.parametrize("name", ["qr", "eigh", "svd", "slogdet"])
    def test_decompositions(self, name):
        square = X[:3] @ X[:3].T + np.diag([3.0, 2.0, 1.0]) + np.eye(3)[::-1] * 0.1

        def f(x):
            x = (x + x.T) * 0.5
            found = getattr(tg.linalg, name)(x, *([False] if name == "svd" else []))
            weights = np.cos(np.arange(9.0)).reshape(3, 3)
            return sum(tg.sum(part**2 * (weights if part.ndim == 2 else 1.5)) for part in found)

        assert not tg.jit(f).inspect(square).startswith("op by op")
        assert_equal(tg.jit(f)(square), f(tg.tensor(square)), rtol=1e-10)
        assert_equal(tg.grad(tg.jit(f))(square), tg.grad(f)(square), rtol=1e-8)
