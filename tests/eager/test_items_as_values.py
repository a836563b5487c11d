"""Items of arrays are values in functions of arrays, as NumPy's numbers are: writes do not change
them, and ``+=`` gives the name another one. In functions of tensors they are views, as in PyTorch.
"""

import copy

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.utils.checkpoint import checkpoint

X = np.array([1.0, 2.0, 3.0])
MATRIX = np.array([[4.0, 1.0, 2.0], [1.0, 3.0, 0.5], [2.0, 0.3, 5.0]])


def eliminated(a):
    a = a * 1.0
    d = 1.0
    for k in range(len(a)):
        pivot = a[k, k]
        a[k] /= pivot
        d = d * pivot
        for i in range(k + 1, len(a)):
            a[i] -= a[i, k] * a[k]
    return d


def first_loss(x):
    loss = np.sum(x**2)
    first = loss
    for k in range(2):
        loss += np.sum(x) * k
    return loss / first


def history(x):
    total = np.log(x[0])
    kept = [total]
    for q in x[1:]:
        total += np.log(q)
        kept.append(total)
    return np.stack(kept)


def swapped(x):
    y = x * 1.0
    y[0], y[2] = y[2], y[0]
    kept = y[1]
    y[1] = y[0] * kept
    y[0] = kept
    return y


def unpacked(x):
    y = x * 1.0
    a, b = y[:2]
    y[0] = 7.0
    a += 1
    return a * b + y[0]


def at_the_largest(x):
    a = np.outer(x, x)
    k = np.argmax(x)
    row = a[k]
    row[0] = 5.0
    kept = a[k, 0]
    a[k, 0] = 9.0
    return np.sum(a) * kept


def copied(x):
    y = x * 1.0
    z = copy.copy(y)
    z[0] = 7.0
    return y * z


def arrays_without_axes(x):
    y = x * 1.0
    z = y[0, ...]
    z += 1.0
    w = y[1:2].reshape(())
    w *= 3.0
    return y


def parts_of_complex(x):
    z = x * (1 + 1j)
    c = z[0]
    r = c.real
    r += 1
    return c.real * r + z[1].imag


def counted(x):
    n = np.argmin(x)
    m = n
    n += 1
    return x[m] * n


def added_to(x):
    y = x * 1.0
    y[0] += x[1]
    y[1] *= y[0]
    s = y[1]
    y += s
    return y


def read_while_written(x):
    w = x * 1.0
    for k, v in enumerate(w):
        if k < 2:
            w[k + 1] += 0.5 * v
    return np.sum(w)


def kept_results(x):
    total = 0.0
    for p in (
        np.prod(x), np.median(x), np.quantile(x, 0.3), np.inner(x, x), np.nanprod(x), x @ x, x.max()
    ):  # fmt: skip
        kept = p
        p += 1.0
        total += kept * p
    return total


def unstacked(x):
    w = x * 1.0
    items = np.unstack(w)
    w[0] = 7.0
    return sum(items) * w[0]


def not_copied(x):
    w = x * 1.0
    v = w.astype(float, copy=False)
    v[0] = 7.0
    u = np.rollaxis(np.outer(w, w), 1)
    u[1, 0] = 50.0 * x[1]
    return np.sum(w) * np.sum(u)


def with_gaps(x):
    w = np.outer(x, x)
    v = w[:, 1:]
    v += 1.0
    v.ravel()[0] = 50.0  # of a copy
    u = w[::-1]
    u[0] += 1.0
    u.reshape(-1)[0] = 50.0  # the same
    return w * 1.0


def column_major(x):
    w = np.outer(x, x**2).T * 2.0
    flat = w.T.reshape(-1)  # a view
    flat[0] = 0.0
    flat *= 3.0
    return w**2


def arrays_at_items(x):
    w = x * 1.0
    q = w[np.argmax(x), ...]
    q[...] = 10.0 * x[0]
    p = w[1:2].reshape(())[...]
    p *= 3.0
    return w * 1.0


def rows_in_place(x):
    w = np.outer(x, x)
    k = np.argmax(x)
    w[k] += 1.0
    w[k, 0] *= 2.0
    return w * 1.0


def reshaped_numbers(x):
    w = x * 1.0
    s = w[0] * w[1]
    found = [s]
    for v in (s.reshape(-1), s.ravel(), s[None], s[..., None], np.atleast_1d(s)):
        v[0] *= x[2]
        found.append(v[0])
    for v in (np.atleast_2d(s), np.expand_dims(s, (0, 1))):
        v += np.sum(x)
        found.append(v[0, 0])
    v = np.sum(w)[...]
    v[...] = 7.0 * s
    found.append(v)
    return np.stack([*found, s])


FUNCTIONS = {f.__name__: f for f in (
    read_while_written, kept_results, unstacked, not_copied, with_gaps, column_major,
    arrays_at_items, rows_in_place, reshaped_numbers, first_loss, history, swapped, unpacked,
    at_the_largest, copied, arrays_without_axes,
    parts_of_complex, counted, added_to,
)}  # fmt: skip


def weighted(f):
    def loss(x):
        found = f(x)
        return (found * np.cos(np.arange(np.size(found)).reshape(np.shape(found)))).sum()

    return loss


def slope_of(f, x, eps=1e-6):
    steps = eps * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([(f(x + e) - f(x - e)) / (2 * eps) for e in steps]).reshape(x.shape)


@pytest.mark.parametrize("name", FUNCTIONS)
class TestFunctionsOfArrays:
    @pytest.mark.compiled
    def test_value(self, name):
        f = FUNCTIONS[name]
        for _ in range(2):
            np.testing.assert_allclose(tg.jit(f)(X), f(X), rtol=1e-14)

    def test_gradients(self, name):
        loss = weighted(FUNCTIONS[name])
        expected = slope_of(loss, X)
        for gradient in (tg.grad(loss), tg.jacfwd(loss)):
            np.testing.assert_allclose(gradient(X), expected, rtol=1e-6, atol=1e-8)
        value, along = tg.jvp(loss)(X, np.ones(3))
        np.testing.assert_allclose([value, along], [loss(X), expected.sum()], rtol=1e-6, atol=1e-8)
        again = tg.grad(lambda x: checkpoint(loss, x * 1.0, use_reentrant=False))
        np.testing.assert_allclose(again(X), expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.compiled
    def test_recorded_gradients(self, name):
        loss = weighted(FUNCTIONS[name])
        expected = slope_of(loss, X)
        for gradient in (tg.grad(tg.jit(loss)), tg.jit(tg.grad(loss))):
            np.testing.assert_allclose(gradient(X), expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.filterwarnings("ignore:vmap.* item by item")
    def test_batches(self, name):
        if name in ("at_the_largest", "arrays_at_items", "arrays_without_axes"):
            pytest.skip("views at indices that differ between items, and without axes, are copies")
        loss = weighted(FUNCTIONS[name])
        found = tg.vmap(tg.grad(loss))(np.stack([X, X]))
        np.testing.assert_allclose(found[1], slope_of(loss, X), rtol=1e-6, atol=1e-8)


def test_elimination():
    expected = np.linalg.det(MATRIX) * np.linalg.inv(MATRIX).T
    jitted = tg.jit(eliminated)
    assert jitted(MATRIX) == pytest.approx(np.linalg.det(MATRIX))
    np.testing.assert_allclose(tg.grad(jitted)(MATRIX), expected, rtol=1e-12)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tg.grad(eliminated)(MATRIX)


def test_arguments_that_are_written():
    def rotated(x):
        for i in range(1, len(x)):
            x[i - 1], x[i] = x[i], x[i - 1]
        return x

    one, other = X.copy(), X.copy()
    np.testing.assert_array_equal(tg.jit(rotated)(one), rotated(other))
    np.testing.assert_array_equal(one, other)


def test_states_of_loops():
    def f(x):
        def step(total, row):
            before = total
            total += row
            return total, before

        return tg.scan(step, 0.0, x)[1]

    for found in (f(X), tg.jit(f)(X)):
        np.testing.assert_array_equal(found, [0.0, 1.0, 3.0])

    def step(i, x, w):
        kept = x[0]
        x = x * w
        x[0] = kept + 1.0
        kept += 1.0
        return x * kept

    expected = step(1, step(0, X, 0.5), 0.5)
    np.testing.assert_allclose(tg.checkpoint_scan(step, X, 2, 0.5, memory=1), expected)


def test_recorded_functions_in_compiled_ones():
    inner = tg.jit(swapped)
    inner(X)

    @tg.njit
    def f(x):
        z = inner(x * 2.0)
        return (z * z).sum()

    def g(x):
        z = swapped(x * 2.0)
        return (z * z).sum()

    assert f(X) == g(X)
    np.testing.assert_allclose(tg.grad(f)(X), slope_of(g, X), rtol=1e-6)


def test_functions_of_the_user_take_tensors():
    class Shown(tg.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clone()
            first = y[0]
            first += 1.0
            return y

        @staticmethod
        def backward(ctx, g):
            return g

    expected = X + [1.0, 0.0, 0.0]
    f = tg.jit(lambda x: Shown.apply(tg.as_tensor(x)) * 2.0)
    for _ in range(2):
        np.testing.assert_array_equal(f(X), 2.0 * expected)
    np.testing.assert_array_equal(tg.vjp(lambda x: Shown.apply(x), X)[0], expected)


def test_functions_of_tensors_have_views():
    def f(x):
        y = x * 1.0
        first = y[0]
        first += 1.0
        total = y.sum()
        kept = total
        total += 1.0
        return y * kept

    expected = np.array([2.0, 2.0, 3.0]) * 8.0
    t = tg.tensor(X, requires_grad=True)
    for found in (f(t), tg.jit(f)(tg.tensor(X)), tg.jit(f)(t)):
        np.testing.assert_array_equal(found.detach(), expected)
    np.testing.assert_array_equal(tg.jit(f)(X), X * 6.0)  # one recording for each
    np.testing.assert_array_equal(tg.jit(f)(tg.tensor(X)), expected)


def test_functions_of_tensors_in_functions_of_arrays():
    """The code of a program is of one kind: that of the outermost call."""
    inner = tg.jit(swapped)

    def f(x):
        return (inner(x * 1.0) * X).sum()

    np.testing.assert_allclose(tg.grad(f)(X), slope_of(f, X), rtol=1e-6)
    with tg.enable_grad():
        t = tg.tensor(X)
    found = inner(t)  # y[1] is a view here, which the write to it changes
    np.testing.assert_array_equal(found.numpy(), swapped(t).numpy())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_made_of_arrays(name):
    """Arrays that tg functions return have NumPy's items without a transform, too."""
    f = FUNCTIONS[name]
    np.testing.assert_allclose(f(tg.maximum(X, X)), f(X), rtol=1e-14)
    with tg.no_grad():
        np.testing.assert_allclose(f(tg.array(X)), f(X), rtol=1e-14)


NUMBERS = {
    "an item": lambda x: x[0],
    "computed": lambda x: x[0] * 1.0,
    "a sum": lambda x: np.sum(x),
    "a norm": lambda x: np.linalg.norm(x),
    "a copy": lambda x: x[0].copy(),
    "a cast": lambda x: x[0].astype(float, copy=False),
    "turned": lambda x: np.transpose(x[0].reshape(())),
    "a part": lambda x: x[0].real,
}
ARRAYS = {
    "where": lambda x: np.where(x[0] > 0, x[0], 1.0),
    "select": lambda x: np.select([x[0] > 0], [x[0]]),
    "tensordot": lambda x: np.tensordot(x, x, 1),
    "copy": lambda x: np.copy(x[0]),
    "zeros": lambda x: tg.zeros(()),
    "zeros_like": lambda x: np.zeros_like(x[0]),
    "tensor": lambda x: tg.tensor(2.0),
    "a view": lambda x: (x * 1.0)[0, ...],
    "reshaped": lambda x: (x * 1.0)[:1].reshape(()),
    "reshaped again": lambda x: np.squeeze((x * 1.0)[:1]).T,
    "of a number": lambda x: x[0][...],
}
VIEWS = (
    lambda s: s.reshape(-1), lambda s: s.ravel(), lambda s: s[None], lambda s: s[..., None],
    lambda s: s[...], lambda s: np.expand_dims(s, 0), np.atleast_1d, np.atleast_2d,
)  # fmt: skip


def views_of(make):
    """A function that writes to views of what is made, and reads both."""

    def f(x):
        found = []
        for view in VIEWS:
            s = make(x)
            v = view(s)
            v[...] = 7.0
            found += [s * 1.0, v.reshape(-1)[0] * x[2]]
        return np.stack(found)

    return f


@pytest.mark.parametrize("name", [*NUMBERS, *ARRAYS])
@pytest.mark.filterwarnings("ignore:vmap.* item by item")
def test_views_of_numbers_are_copies(name):
    """NumPy has no views of numbers, and views of arrays even if these have no axes."""
    f = views_of({**NUMBERS, **ARRAYS}[name])
    expected = f(X)
    assert (expected[::2] == 7.0).all() == (name in ARRAYS)
    np.testing.assert_array_equal(tg.jvp(f)(X, np.ones(3))[0], expected)
    np.testing.assert_array_equal(tg.vjp(f, X)[0], expected)
    batch = np.stack([X, X])
    np.testing.assert_array_equal(tg.vmap(f)(batch)[1], expected)
    np.testing.assert_array_equal(batch[1], X)
    if name in NUMBERS:
        np.testing.assert_array_equal(f(tg.maximum(X, X)), expected)


@pytest.mark.compiled
@pytest.mark.parametrize("name", [*NUMBERS, *ARRAYS])
def test_recorded_views_of_numbers_are_copies(name):
    f = views_of({**NUMBERS, **ARRAYS}[name])
    expected, jitted = f(X), tg.jit(f)
    for _ in range(2):
        np.testing.assert_array_equal(jitted(X), expected)
    np.testing.assert_array_equal(tg.jvp(jitted)(X, np.ones(3))[0], expected)


def test_items_of_a_batch_are_not_views_of_it():
    def f(x):
        v = x.ravel()
        v[0] = 7.0
        return x * v[0]

    batch = X.copy()
    np.testing.assert_array_equal(tg.vmap(f)(batch), 7.0 * X)
    np.testing.assert_array_equal(batch, X)


def test_arguments_without_axes():
    """A number is copied; views of an array without axes are views of that of the caller."""

    def f(x):
        v = np.reshape(x, -1)
        v[0] = 7.0
        return x * v[0]

    for number in (2.0, np.float64(2.0)):
        assert tg.jit(f)(number) == 14.0
        assert tg.grad(f)(number) == 7.0
        assert tg.vmap(tg.grad(f))(np.array([number])) == [7.0]
    array = np.array(2.0)
    assert tg.jit(f)(array) == 49.0
    assert array == 7.0
    for transform in (tg.grad(f), tg.grad(tg.jit(f)), lambda x: tg.jvp(f)(x, 1.0)):
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            transform(array)


def test_tensors_without_axes_have_views():
    def f(t):
        s = t.sum()
        s.reshape(-1)[0] = 7.0
        return s * 1.0

    t = tg.tensor(X, requires_grad=True)
    for found in (f(t), tg.jit(f)(t), f(tg.tensor(X))):
        assert found.item() == 7.0
    t = tg.tensor(2.0)
    t[None][0] = 7.0
    assert t.item() == 7.0


class Doubled(tg.Function):
    @staticmethod
    def forward(ctx, x):
        return tg.as_tensor(x) * 2.0

    @staticmethod
    def backward(ctx, g):
        return 2.0 * g


@tg.njit
def compiled(x):
    return x * 2.0


MADE = {
    "a Function": (lambda: Doubled.apply(tg.sin(X)), False),
    "a Function of an array": (lambda: Doubled.apply(X), False),
    "a Function of a tensor": (lambda: Doubled.apply(tg.tensor(X)), True),
    "a compiled function": (lambda: compiled(tg.sin(X)), False),
    "a compiled function of a tensor": (lambda: compiled(tg.tensor(X)), True),
    "an op": (lambda: tg.maximum(X, X), False),
    "of a tensor": (lambda: tg.maximum(tg.tensor(X), X), True),
    "of both": (lambda: tg.tensor(X) * tg.asarray(X), True),
    "of numbers": (lambda: tg.stack([tg.sin(0.5), tg.cos(0.5)]), False),
    "a composite": (lambda: tg.roll(X, 1), False),
    "no derivative": (lambda: tg.argsort(X), False),
    "a list": (lambda: tg.array([X[0], X[1]]), False),
    "array": (lambda: tg.array(X), False),
    "asarray": (lambda: tg.asarray(X.copy()), False),
    "as_tensor": (lambda: tg.as_tensor(X.copy()), True),
    "tensor": (lambda: tg.tensor([1.0, 2.0]), True),
    "zeros": (lambda: tg.zeros(2), True),
    "zeros times two": (lambda: tg.zeros(2) * 2.0, True),
    "zeros and an array": (lambda: tg.zeros(3) + X, False),
    "zeros and a tensor": (lambda: tg.zeros(3) + tg.tensor(X), True),
    "a view": (lambda: tg.maximum(X, X)[::-1], False),
    "of inference mode": (lambda: tg.inference_mode()(tg.maximum)(X, X), False),
    "a leaf": (lambda: tg.array(X).requires_grad_() * 1.0, True),
    "linspace": (lambda: tg.linspace(X[0], X[1], 3), False),
    "zeros_like": (lambda: tg.zeros_like(X), False),
    "ones_like": (lambda: tg.ones_like(X), False),
    "full_like": (lambda: tg.full_like(X, 1.0), False),
    "zeros_like of a list": (lambda: tg.zeros_like([X[0], X[1]]), False),
    "zeros_like of a result": (lambda: tg.zeros_like(tg.sin(X)), False),
    "zeros_like of a tensor": (lambda: tg.zeros_like(tg.tensor(X)), True),
    "recorded": (lambda: tg.jit(lambda y: y[0] + 0.0 * y)(tg.tensor(X)), True),
}


@pytest.mark.parametrize("name", MADE)
def test_what_it_is_made_of_decides(name):
    make, are_views = MADE[name]
    y = make()
    before = y[0].item()
    with tg.inference_mode(y.is_inference()):
        kept = y[0]
        kept += 1
        assert y[0].item() == before + are_views
        if are_views:
            y[0].add_(1)
            assert y[0].item() == before + 2
        else:
            for write in (lambda: y[0].add_(1), lambda: np.add(1, 1, out=y[0])):
                with pytest.raises(TypeError, match="is a number, as in NumPy"):
                    write()


@pytest.mark.parametrize("value", [X, tg.maximum(X, X), X[0], tg.sum(X)])
def test_zeros_become_what_is_written_to_them(value):
    y = tg.zeros(3)
    part = y[:2]
    y[...] = value
    for shown in (y, part):
        before = shown[0].item()
        kept = shown[0]
        kept *= 2.0
        assert shown[0].item() == before
    z = tg.zeros(3)
    z += tg.tensor(X)
    kept = z[0]
    kept *= 2.0
    assert z[0].item() == 2.0


INDICES = {
    "argmin": lambda v: np.argmin(v[:, 0]),
    "sum with a number": lambda v: np.argmin(v[:, 0]) + 1,
    "one of two": lambda v: (slice(None), np.argmin(v[0])),
    "number": lambda v: np.int64(1),
    "array without axes": lambda v: np.array(1),
}


@pytest.mark.parametrize("name", INDICES)
def test_what_is_found_at_a_computed_integer_is_a_view(name):
    """NumPy's numbers select a view, its arrays without axes a copy; PyTorch's tensors a view."""

    def f(x):
        v = x * 1.0
        row = v[INDICES[name](v)]
        row *= 2.0
        return v

    def loss(x):
        return (f(x) * x).sum()

    x = np.array([[3.0, 1.0], [1.0, 2.0], [2.0, 0.5]])
    expected, slope = f(x), 2.0 * f(x)
    assert (name == "array without axes") == np.array_equal(expected, x)
    np.testing.assert_array_equal(tg.jit(f)(x), expected)
    np.testing.assert_array_equal(tg.grad(loss)(x), slope)
    np.testing.assert_array_equal(tg.grad(tg.jit(loss))(x), slope)
    if name != "array without axes":
        for function in (f, tg.jit(f)):
            np.testing.assert_array_equal(function(tg.tensor(x)).numpy(), expected)


def test_what_is_found_at_a_tensor_without_axes_is_a_view():
    x, i = tg.tensor([[3.0, 1.0], [1.0, 2.0]], requires_grad=True), tg.tensor(1)
    v = x * 1.0
    assert v[i]._is_view()
    v[i].mul_(3.0)
    v[:, i] += 1.0
    v.sum().backward()
    np.testing.assert_array_equal(v.detach().numpy(), [[3.0, 2.0], [3.0, 7.0]])
    np.testing.assert_array_equal(x.grad.numpy(), [[1.0, 1.0], [3.0, 3.0]])


VIEWS_WITHOUT_AXES = {
    "squeeze": lambda v: v.squeeze(),
    "reshape": lambda v: v.reshape(()),
    "ellipsis": lambda v: v[0, ...],
    "transpose": lambda v: np.squeeze(v[None]).T,
}


@pytest.mark.parametrize("name", VIEWS_WITHOUT_AXES)
def test_views_without_axes_are_written_in_place(name):
    """They are arrays in NumPy, unlike items; in a batch, too."""

    def f(x):
        v = x[:1] * 1.0
        view = VIEWS_WITHOUT_AXES[name](v)
        view *= 3.0
        return v

    x = np.arange(1.0, 7.0).reshape(2, 3)
    expected = np.stack([f(row) for row in x])
    np.testing.assert_array_equal(expected, 3.0 * x[:, :1])
    np.testing.assert_array_equal(np.stack([tg.jit(f)(row) for row in x]), expected)
    np.testing.assert_array_equal(tg.vmap(f)(x), expected)
    np.testing.assert_array_equal(tg.vmap(tg.jit(f))(x), expected)
    slope = tg.vmap(tg.grad(lambda row: tg.sum(f(row))))(x)
    np.testing.assert_array_equal(slope, [[3.0, 0.0, 0.0]] * 2)
