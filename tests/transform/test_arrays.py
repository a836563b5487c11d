"""Elements, slices, views, allocation and writes of arrays of one to four dimensions."""

import numpy as np
import pytest
from check import Cases, check, module, or_refused

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
B = np.array([1.0, 2.0])
M23 = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
M22 = np.array([[1.3, 0.5], [0.6, 2.4]])
M33 = np.array([[1.3, 0.5, 0.1], [0.6, 2.4, 0.3], [0.2, -0.3, 1.7]])
A3 = np.linspace(0.1, 1.3, 12).reshape(2, 3, 2)
A4 = np.linspace(0.1, 1.3, 16).reshape(2, 2, 2, 2)
case = Cases()


# -- elements and slices ---------------------------------------------------------------------------


@case(np.array(0.7), np.array(1.3), np.array([0.4]), hvp=True)
def of_no_axes(a, b, one):
    a[()] *= b[()] * one.item()
    return np.sin(a[()]) * b.item() + one.item() ** 2


@case(0.7, 1.3, hvp=True)
def in_place_of_no_axes(a, b):
    s, total = np.array(a), np.full((), b)
    same, before = s, s[()] * b
    s *= 3.0
    s /= total
    s += s
    s -= 0.5
    total **= 2
    total += s
    return same[()] * before + total[()]


@case(A, B, hvp=True)
def elements(a, b):
    c = np.zeros(4)
    c[0] = a[0] * b[1]
    c[1] = c[0] * a[1]
    c[0] = c[1] * 2
    c[-1] = c[0] + c[1]
    c[2] += c[0]
    c[2] *= a[-1]
    c[2] -= b[0]
    c[2] /= b[1]
    c[2] **= 2
    c[0], c[1] = c[1], c[0]
    c[0] = c[1] = t = c[2] * 3
    c[1] -= c[3]
    s = 0.0
    for i in range(-1, -4, -1):
        s = s * a[i] + a[i]
    return c[0] * c[1] * c[2] * c[3] * t + s


@case(M23, tensors=True)
def reads(a):
    n, m = a.shape
    s = a[0, 0] * 0
    for i in range(n):
        for j in range(m):
            s = s + a[i, j] ** 2 * (i + 2 * j) + a[i][j] * a[1, -1]
    row, column = a[1], a[:, 1]
    part = a[0:2, ::2]
    return s * part[1, 1] + row[0] * column[1] + a.T[2, 0] * a.size + a.ndim + len(a)


@case(A, jvp=False)
def slices(a):
    b = a[1:3]
    c = a[::-1]
    d = a[::2]
    b[0] *= d[0]
    c[0] = b[0] * 3
    d[1] += c[3]
    b[:] = b * d
    s = 0.0
    for i in range(4):
        w = a[i:]
        w[0] *= 2.0
        s += (w * w).sum()
    return (a * a).sum() + b[1] * c[2] * d[0] + s


@case(A)
def overlapping(a):
    a[1:] = a[:-1]
    a[:-1] = a[:-1] * a[1:]
    a[1:] = a[:-1] + a[1:]
    a[::-1] = a * 2
    a[:2] = a[2:]
    a[0], a[3] = a[3], a[0]
    return (a**2).sum() * a[1]


@case(A, 0.5)
def filled(a, x):
    a[1:3] = x
    a[0] = 2.0
    b = np.empty((2, 4))
    b[:] = a
    b[1] = a * x
    b[:, 1] = x * x
    b[0, 1:3] *= x
    b[:, :] += x
    b[1, ::2] -= a[1::2]
    return (b * b).sum() + b[..., 3].sum()


@case(M23, jvp=False)
def views_of_a_matrix(a):
    b = a.T
    c = a[:, 1]
    d = a[1]
    e = a[0:2, ::2]
    c[0] *= d[0]
    e[1, 1] = b[2, 0] * c[1]
    f = d[1:]
    f[0] += b[0, 0]
    return (a * a).sum() * e[0, 0] + b.sum() * f[1]


@case(A3, jvp=False)
def three_dimensions(a):
    b = a[1]
    c = a[:, 1, :]
    d = a[..., 0]
    b[0, 0] *= c[0, 1]
    d[0, 2] = b[1, 1] * 2
    c[:] *= 2.0
    return (a**2).sum() + d[1, 1] * c[1, 0]


@case(A4)
def four_dimensions(a):
    b = a[0, :, 1]
    b[0, 0] *= a[1, 1, 1, 1]
    s = 0.0
    for i in range(2):
        for j in range(2):
            for k in range(2):
                for m in range(2):
                    s += a[i, j, k, m] * a[m, k, j, i]
    return s


@pytest.mark.parametrize(
    "a, b",
    [
        (np.arange(1.0, 13.0).reshape(3, 4)[::2, ::-2], np.asfortranarray(M22)),
        (M22.T, M33[1:, 1:]),
        (A4[1, :, 0], A3[:, 1]),
    ],
)
def test_strides(a, b):
    check(strided, a, b)


@tg.njit
def strided(a, b):
    a[0, 0] *= b[1, 0]
    a[1] += b[:, 1]
    return (a * b).sum() + a[1, 1] * b[0, 1] + a.sum()


@case(A, jvp=False)
def reshaped(a):
    b = a.reshape(2, 2)
    b[0, 1] *= b[0, 0]
    c = b.ravel()
    c[3] += c[1]
    d = b.flatten()
    d[0] = 5.0
    e = np.reshape(b, (4, 1))
    e[1, 0] *= 2
    f = np.expand_dims(a, 1)
    f[2, 0] = 3 * f[3, 0]
    return (a * a).sum() + d.sum() * b[1, 1] * e[0, 0] + (a[:, np.newaxis] * a[None, :]).sum()


@case(M22, jvp=False)
def index_tuples(a):
    i = (0, 1)
    s = slice(0, 1)
    return a[i] * a[(1, 1)] + (a[s] ** 2).sum()


# -- writes ----------------------------------------------------------------------------------------


@case(A, jvp=False)
def in_place(a):
    b = a
    b += 1.0
    b *= a
    b /= 2
    b -= a[0]
    b **= 2
    c = a[1:]
    c *= 2.0
    return a.sum() * b[1] + c[0]


@case(A, hvp=True)
def recurrence(u):
    n = len(u)
    for _ in range(3):
        old = u[0]
        for i in range(1, n):
            new = u[i] + 0.1 * (u[i - 1] - old) * u[i]
            old = u[i]
            u[i] = new
        for i in range(n - 1):
            u[i] += u[i] * u[i + 1]
    return u[n - 1] * u[1]


@case(np.array([0.3, 0.4]), B)
def both_written(a, b):
    a[:] = b
    b[:] = a * b
    a += b
    return (a * b).sum() + a[0]


@case(A)
def overwritten_operands(a):
    s = a[0] * a[1]
    t = np.sin(a)
    a[0] = s
    u = (a * t).sum()
    t[:] = 0.0
    a[:] = 1.0
    a[1] = u * s
    return a[1] * a[0] + t.sum()


@case(M23)
def written_rows(a):
    for i in range(2):
        row = a[i]
        row[0] *= 2
        row[1] += row[0] * row[2]
    for j in range(2):
        a[:, j] += a[:, j + 1] * 1.0
    return (a**2).sum()


def test_in_place_operations_on_overlapping_parts():
    """Numba runs them element by element; NumPy as a whole. Refused, or like the primal."""
    for line in ("a[1:] += a[:-1]", "b = a[1:]; b *= a[:-1]", "a[:-1] -= a[1:]"):
        f = module(
            f"import tapegrad as tg\n@tg.njit\ndef f(a):\n    {line}\n    return (a ** 2).sum()\n"
        )
        with or_refused("line 4"):
            check(f, A)


@tg.njit
def writes_first(a, b):
    a[0] *= 2
    return a[0] * b[0] + b[1] * a[1]


@pytest.mark.parametrize("change", ["s *= 3.0", "s += a", "s -= s"])
def test_in_place_operations_on_a_selected_number(change):
    """numba selects an array, which other names have as well."""
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        f"    s = np.where(a > 0.0, a, 0.3)\n    {change}\n    return s * a\n"
    )
    with pytest.raises(tg.TransformError, match=r"write s = s \+ x[\s\S]*line 5"):
        tg.grad(f)(1.3)


def test_arguments_that_share_memory():
    """The sum of the gradients is that of the function of one array; or the call is refused."""
    a = A.copy()
    try:
        found = tg.grad(writes_first, (0, 1))(a, a)
    except (ValueError, tg.TransformError):
        return
    np.testing.assert_allclose(found[0] + found[1], [8 * A[0], 2 * A[1], 0, 0])


def test_arguments_that_share_memory_and_are_only_read():
    f = module("import tapegrad as tg\n@tg.njit\ndef f(a, b):\n    return (a * b).sum()\n")
    a = A.copy()
    g, h = tg.grad(f, (0, 1))(a[1:], a[:-1])
    np.testing.assert_allclose((g, h), (A[:-1], A[1:]))


# -- allocation ------------------------------------------------------------------------------------


@case(0.3, 0.7, 3, jvp=False)
def allocations(x, y, n):
    a = np.empty(n)
    b = np.zeros((n, 2))
    c, d = np.ones(n), np.full(n, x)
    e = np.full((2, 2), y)
    f, g, h = np.zeros_like(a), np.empty_like(b), np.ones_like(c)
    k = np.full_like(a, x * y)
    m = np.linspace(x, y, n)
    o = np.arange(0.0, 3.0, 1.0) * y + np.arange(n) * x
    a[:] = m
    g[:] = e[0]
    b[1, 1] = x
    f[0] = y
    h[0] *= x
    return (a * c + d * k + f + h * o + m).sum() * (b * g + 1).sum() * e.sum()


@case(A)
def copies(a):
    b = a.copy()
    c = np.copy(a)
    b[0] *= a[1]
    a[1] = b[0] * c[1]
    d = np.empty(a.shape, a.dtype)
    d[:] = np.asarray(a)
    d[0] = 3 * a[1]
    e = a[::2].copy()
    e[0] *= a[3]
    return (a * b * c * d).sum() + e[0]


@case(0.3, 0.7)
def literals(x, y):
    a = np.array([[x, y], [y, x * y]])
    b = np.array([x, 2.0, y])
    c = np.array((x, y))
    b[1] *= a[0, 1]
    c[0] *= y
    return (a @ a).sum() + (b * b).sum() + c.sum() * c[0]


@case(A, np.array([0, 2, 1]))
def index_arrays(a, k):
    k[0] = 1
    s = 0.0
    for i in k:
        s += a[i] ** (i + 1)
    n = np.zeros(3, np.int64)
    for i in range(3):
        n[i] = i * 2 % 3
    return a[n[1]] * s + (n * a[:3]).sum() + a[np.argmax(k)]


@case(A)
def fancy_reads(a):
    k = np.array([0, 2, 2])
    b = a[k]
    m = a[a > 0.5]
    c = np.outer(a, a)
    return (b * b).sum() * (m**3).sum() + a[k][1] + (c[k, 1] * c[1, k]).sum() + c[k].sum()


@tg.njit
def nothing_in_it(a, x):
    b = np.zeros((0, 2))
    for v in a:
        x *= v
    return a.sum() + x + b.sum()


def test_empty_arrays():
    g, h = tg.grad(nothing_in_it, (0, 1))(np.zeros(0), 0.3)
    assert g.shape == (0,) and h == 1.0


# -- names -----------------------------------------------------------------------------------------


@tg.njit
def named_on_two_ways(a, first):
    if first:
        b = a[:2]
        b[1] += a[3]
    else:
        b = a[2:] * 2
    b[0] *= 3
    c = a if first else a * 2
    return (a * a).sum() * b[1] + c.sum()


@tg.njit
def ping_pong(a):
    b = np.zeros(4)
    for _ in range(3):
        for i in range(1, 3):
            b[i] = a[i - 1] * a[i] + a[i + 1]
        a, b = b, a
    return (a * a).sum() + b[1]


@tg.njit
def renamed(a):
    b = a.copy()
    for _ in range(3):
        c = b * a
        c[0] += b[1]
        b = c
        a = a * a + 0.1
    return b.sum() * a[1]


@pytest.mark.parametrize(
    "f, args",
    [(named_on_two_ways, (A, True)), (named_on_two_ways, (A, False)), (ping_pong, (A,))]
    + [(renamed, (A,))],
)
def test_arrays_that_change_names(f, args):
    """Right, or refused with the line."""
    with or_refused("test_arrays.py"):
        check(f, *args)


# -- kinds and results -----------------------------------------------------------------------------


@case(A.astype(np.float32), np.float32(0.3))
def single_precision(a, x):
    b = np.zeros(4, np.float32)
    for i in range(4):
        b[i] = a[i] * x
    c = np.empty_like(a)
    c[:] = b * a
    return (b * c).sum()


@case(A.astype(np.float32), 0.3)
def mixed_precision(a, x):
    b = a * x
    c = np.zeros(4)
    c[:] = a
    d = a.astype(np.float64)
    a[0] = x
    return (b * c * d * a).sum()


@case(A)
def returns_its_argument(a):
    a[0] *= 2
    return a


@case(A)
def returns_views(a):
    b = a[1:]
    b[0] *= 2
    return b, a * 2, a[0]


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def broadcast(matrix, row):
    y = matrix + row  # has one tangent, of another shape than its own
    z = np.maximum(row - matrix, -row)
    w = np.where(matrix > 0.4, row, 1.0)
    w[0, 0] += row[1]
    return y.sum() + 2.0 * z.sum() + (w * w).sum() + (matrix[:1].T + row).max()


@pytest.mark.parametrize("argnum", [0, 1])
def test_operands_of_fewer_dimensions_without_a_tangent(argnum):
    check(broadcast, M23, A3[0, :, 0].copy(), argnums=(argnum,), hvp=True)


@pytest.mark.parametrize(
    ("contiguous", "order"),
    [(np.ascontiguousarray, "C"), (np.ascontiguousarray, "F"), (np.asfortranarray, "F")],
)
def test_writes_to_what_may_be_a_copy(contiguous, order):
    """A tangent has the layout of its array, so that both are copied or neither is."""

    @tg.njit
    def written(x):
        v = contiguous(x)
        v[0, 1] = v[0, 0] * v[1, 2]
        return np.sum(x * x) + np.sum(v)

    x = np.asarray(np.arange(1.0, 7.0).reshape(2, 3), order=order)
    expected = tg.grad(written)(x.copy(order="K"))
    for k in range(6):
        tangents = np.zeros((2, 3)), np.zeros((3, 2)).T, np.zeros((4, 6))[::2, ::2]
        for e in tangents:
            e[divmod(k, 3)] = 1.0
            found = tg.jvp(written)(x.copy(order="K"), e)[1]
            assert np.isclose(found, expected[divmod(k, 3)])


def test_writes_to_a_strided_argument():
    @tg.njit
    def written(x):
        x[0, 1] = x[0, 0] * x[1, 2]
        return np.sum(x * x)

    x = np.arange(24.0).reshape(4, 6)[::2, ::2]
    expected = tg.grad(written)(x.copy()[:, :])
    for k in range(6):
        e = np.zeros((2, 3))
        e[divmod(k, 3)] = 1.0
        given = np.zeros((4, 6))[::2, ::2]
        given[...] = x
        assert np.isclose(tg.jvp(written)(given, e)[1], expected[divmod(k, 3)])
