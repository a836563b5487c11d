"""What numba's functions share memory with, and what is made of that; arrays put together."""

import ast
import warnings

import numba
import numpy as np
import pytest
from check import Cases, check, close, module
from random_programs.interpret import types_only

import tapegrad as tg
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.ir import Let, walk

A = np.arange(1.0, 7.0)
M = np.arange(1.0, 7.0).reshape(2, 3)
ARGUMENTS = {
    "vector": A,
    "strided": np.arange(1.0, 13.0)[::2],
    "matrix": M,
    "transposed": np.asfortranarray(M),
    "parts": np.arange(24.0).reshape(4, 6)[::2, ::2],
}
CALLS = [
    "np.ascontiguousarray(x)", "np.asfortranarray(x)", "np.asarray(x)", "np.copy(x)", "x.copy()",
    "np.asarray_chkfinite(x)", "np.asarray(x, dtype=np.float64)", "np.ravel(x)", "x.ravel()",
    "x.flatten()", "x.reshape(-1)", "np.reshape(x, (x.size, 1))", "x.reshape(1, x.size)",
    "np.transpose(x)", "x.transpose()", "x.T", "np.swapaxes(x, 0, 1)", "np.moveaxis(x, 0, 1)",
    "np.transpose(x, (1, 0))", "x.real", "np.real(x)", "np.atleast_1d(x)",
    "np.atleast_2d(x)", "np.atleast_3d(x)", "np.expand_dims(x, 0)", "np.diag(x)", "np.diagflat(x)",
    "np.split(x, 1)[0]", "np.roll(x, 0)", "np.roll(x, 1)", "np.repeat(x, 1)", "np.delete(x, 0)",
    "np.append(x, x)", "np.concatenate((x,))", "np.stack((x,))", "np.hstack((x,))",
    "np.vstack((x,))", "np.dstack((x,))", "np.column_stack((x,))", "x.astype(np.float64)",
    "x.astype(np.float32)", "x[()]", "x[:]", "x[None]", "x[np.newaxis, ...]", "x[1:]",
    "x[np.array([0, 1])]", "x[x > 0]", "np.flip(x)", "np.fliplr(x)", "np.flipud(x)", "np.rot90(x)",
    "np.rot90(x, 0)", "np.rot90(x, 2)", "np.tril(x)", "np.triu(x)", "np.sort(x)",
    "np.partition(x, 1)", "np.unique(x)", "np.nan_to_num(x)", "np.nan_to_num(x, copy=False)",
    "np.clip(x, 0.0, 2.0)", "x.clip(0.0, 2.0)", "np.round(x)", "np.positive(x)", "np.conj(x)",
    "x.conj()", "np.trim_zeros(x)", "np.resize(x, x.shape)", "np.take(x, np.array([0, 1]))",
    "np.extract(x > 0, x)", "np.insert(x, 0, 1.0)", "np.where(x > 0, x, x)", "np.unwrap(x)",
    "np.select((x > 0,), (x,), 0.0)", "np.broadcast_to(x, (2,) + x.shape)",
    "np.lib.stride_tricks.as_strided(x, x.shape, x.strides)", "np.cumsum(x)", "np.diff(x)",
    "np.linalg.matrix_power(x, 1)", "np.full_like(x, 2.0)", "np.empty_like(x)", "-x", "+x",
    "x.view(np.float64)", "np.linalg.pinv(x)", "np.abs(x)", "np.sinc(x)",
]  # fmt: skip


def base_of(f, x):
    """Whether what a function returns is taken for a view of x, or is refused."""
    program = Program()
    instance = program.instance(f, (numba.typeof(x),))
    program.analyse()
    function = instance.function
    lets = {s.target: s.rule for s in walk(function.body) if isinstance(s, Let)}
    assert isinstance(function.result, ast.Name)
    found = function.result.id
    while found in lets and lets[found].base is not None:
        found = lets[found].base
    if any(type(rule).__name__ == "Unknown" for rule in lets.values()):
        return "refused"
    return "view" if found == "x" else "own"


@pytest.mark.parametrize("text", CALLS)
def test_views_are_what_shares_memory(text):
    f = module(f"import numpy as np\nimport numba\n@numba.njit\ndef f(x):\n    return {text}\n")
    by_layout = any(part in text for part in ("contiguous", "fortran", "ravel", "reshape"))
    for name in ARGUMENTS if by_layout else ("vector", "matrix"):
        compare(f, ARGUMENTS[name])


def compare(f, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", numba.NumbaPerformanceWarning)
        try:
            value = f(x)
        except (numba.TypingError, NotImplementedError, ValueError, AssertionError):
            return  # not in this numba
    shared, writeable = np.shares_memory(value, x), value.flags.writeable
    try:
        with types_only():
            found = base_of(f, x)
    except tg.TransformError:
        return
    # a view that nobody can write to is like a copy where nothing else is written
    if found != "refused" and writeable:
        assert (found == "view") == shared


# -- what is written through them ------------------------------------------------------------------

case = Cases()


@case(A, M, hvp=True)
def written_through_views(a, m):
    b = np.flip(a)
    b[0] = a[0] * a[1]
    c = np.flipud(np.fliplr(m))
    c[0, 1] = m[0, 0] * 2.0
    d = np.rot90(m)
    d[1] *= m[1, 2]
    e = np.asarray(a)
    e[2] *= a[3]
    g = np.expand_dims(a, 1)
    g[4, 0] += a[0]
    h = np.swapaxes(m, 0, 1)
    h[1, 0] *= 3.0
    k = np.atleast_2d(a)
    k[0, 1] *= 2.0
    return (a * a * a).sum() + (m * m * m).sum()


@case(A, 0.7, np.array([2, 3]), hvp=True)
def put_together(a, x, n):
    b = np.append(a, x)
    c = np.append(a, 2.0)
    d = np.append(a, 3)
    e = np.concatenate((a, n))
    f = np.insert(a, 1, x)
    s = (b * b).sum() * c[1] + (d[2] * e[0]) ** 2 + (f * f * f).sum()
    return s * np.append(x, a)[0] + (np.hstack((a, n, a)) ** 3).sum()


@case(A, M, hvp=True)
def chosen(a, m):
    b = np.take(a, np.array([1, 1, 0]))
    c = np.extract(a > 2.5, a)
    d = np.select((a > 4.5, a > 2.5), (a * a, a), 0.0)
    d += np.select([a > 4.5, a > 1.5], [a * a * a, 2.0 * a], 0.5)
    e = np.diagflat(b) + np.diag(a[:3])
    f = np.repeat(m, 2)
    g = np.take(m, 4)
    return (b * b).sum() * (c * c).sum() + (d * d).sum() + (e * e).sum() + (f * f).sum() * g


@case(A, M, hvp=True)
def chosen_of_several_layouts(a, m):
    n = m.shape[0]
    b = np.select([m[:, 0] > 2.5, a[:n] > 2.5], [m[:, 1], a[:n]], default=a[1] * 0.5)
    c = np.select([a[:n] > 2.5, m[:, 1] > 1.5, m[:, 0] < 0.5], [a[:n], m[:, 0], a[:n] ** 3])
    return (b * b).sum() * (c * c).sum()


@case(A, hvp=True)
def chosen_by_numbers(a):
    b = np.extract(a, a * a)
    return (b * b).sum()


@case(A, np.array([0, 2]), hvp=True)
def gathered_from_constants_and_written(a, i):
    c = np.arange(6.0) + 1.0
    s = 0.0
    for k in range(2):
        b = c[i]
        b[k] = a[0] * b[0]
        b[0] *= a[1] * c[k]
        s += (b * b * a[2]).sum()
    return s


@case(A, hvp=True)
def spread_out(a):
    b = np.broadcast_to(a, (3, 6))
    return (b * b * b).sum() + b[1, 2] * b[0, 3]


@case(A, M, 0.7, hvp=True)
def filled_and_flat(a, m, x):
    b = np.empty((2, 3))
    b.fill(x * a[0])
    m.flat[4] = x * m.flat[1]
    s = 0.0
    for k, value in enumerate(m.flat):
        s += value * value * a[k]
    a.fill(x)
    return s * (b * b).sum() * a[2]


@case(A, 1, hvp=True)
@case(A, 3, hvp=True)
def made_in_both_branches(a, n):
    if n > 2:
        w = np.empty(6)
        for i in range(6):
            w[i] = a[i] * a[i]
    else:
        w = np.sin(a)
    v = w[1:]
    s = np.sum(v)
    for k in range(2):
        s += np.sum(v[k:]) * w[k]
    return s


@case(A.astype(np.float32), np.float32(0.5))
def single_precision(a, x):
    b = np.append(np.flip(a), x)
    return b[0] * b[6] + np.take(a, np.array([1, 2]))[1] * np.roll(a, 2)[0]


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


def test_arrays_made_of_nothing():
    a = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x):\n    a = np.eye(2)\n"
        "    a[0, 1] = x\n    b = np.round(x * np.ones(2))\n    b[0] = x\n"
        "    c = np.arange(2).astype(np.float64)\n    c[0] = x\n"
        "    return (a @ a).sum() * (b * b).sum() + (c * b)[0]\n"
    )
    check(a, 0.7, hvp=True)
    b = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef g(x):\n    a = np.eye(2)\n"
        "    a[0, 1] = x * x\n    return (a * a * a).sum()\n@tg.njit\ndef f(x):\n"
        "    return g(x) * x\n"
    )
    check(b, 0.7, hvp=True)


REFUSED = {
    "np.nan_to_num": "b = np.nan_to_num(m, copy=False)\n    return b[0, 0] * x",
    "np.split": "b = np.split(m, 1)[0]\n    return b[0, 0] * x",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    f = module(f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(m, x):\n    {REFUSED[name]}\n")
    with pytest.raises(tg.TransformError, match=rf"line 4[\s\S]*{name}"):
        tg.grad(f)(M.copy(), 2.0)


def test_a_read_only_view_where_something_is_written():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        "    b = np.broadcast_to(a, (2, 6))\n    a[0] = a[1] * 2.0\n    return (b * b).sum()\n"
    )
    with pytest.raises(tg.TransformError, match=r"np.zeros[\s\S]*line 4"):
        tg.grad(f)(A.copy())
    g = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        "    b = np.zeros((2, 6)) + a\n    a[0] = a[1] * 2.0\n    return (b * b).sum()\n"
    )
    check(g, A)
    close(tg.grad(g)(A.copy()), 4 * A, 1e-12)


@pytest.mark.parametrize("layout", ["np.ascontiguousarray", "np.asfortranarray"])
@pytest.mark.parametrize("written", ["a", "b"])
def test_a_copy_that_may_be_a_view_where_something_is_written(layout, written):
    """numba finds out in the call whether a slice is contiguous, and shows it if it is."""
    text = (
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        f"    b = {layout}(a[::1])\n    {written}[0] = a[1] * 2.0\n    return (b * b * a).sum()\n"
    )
    for derivative in (tg.grad, tg.jvp):
        kinds = (numba.typeof(A),) * (1 + (derivative is tg.jvp))
        with pytest.raises(tg.TransformError, match=rf"{layout}[\s\S]*use .copy\(\)[\s\S]*line 4"):
            derivative(module(text)).implementation(kinds)
    check(module(text.replace(f"{layout}(a[::1])", "a[::1].copy()")), A)
    check(module(text.replace(f"{written}[0]", "c").replace("* a)", "* a * c)")), A)


SPREAD = """\
import numpy as np, tapegrad as tg
@tg.njit(boundscheck=False)
def rows(a):
    return np.broadcast_to(a, (2, a.size))
@tg.njit
def f(a, x):
"""


@pytest.mark.parametrize(
    "body",
    [
        "b = rows(a)\n    a[0] = x\n    return np.sum(b * b)",
        "y = np.sort(a)\n    b = rows(y)\n    for i in range(2):\n"
        "        y[i] = np.sum(b[0] * x)\n    return np.sum(b * b)",
        "s = x\n    for i in range(2):\n        s += np.sum(rows(a)) * x\n"
        "        a[i] = s\n    return s",
    ],
)
def test_a_read_only_view_from_a_function_where_something_is_written(body):
    f = module(f"{SPREAD}    {body}\n")
    for derivative in (tg.grad(f), lambda *args: tg.jvp(f)(*args, A)):
        with pytest.raises(tg.TransformError, match=r"np.zeros[\s\S]*rows\("):
            derivative(A.copy(), 0.7)


@pytest.mark.parametrize(
    "body",
    [
        "y = np.zeros(3)\n    y[0] = x\n    b = np.broadcast_to(y, (2, 3))\n"
        "    return np.sum(b * b * a[:3])",
        "b = np.broadcast_to(np.abs(a[1:]), (2, 5)) * x\n    b[0, 1] = x\n    return np.sum(b * b)",
        "b = rows(a * x)\n    a[0] = x\n    return np.sum(b * b) + np.sum(a)",
        "s = x\n    for i in range(2):\n        y = np.sin(a * s)\n        y[i] = s\n"
        "        b = np.broadcast_to(y, (2, 6))\n        s += np.sum(b * b) * x\n    return s",
    ],
)
def test_a_read_only_view_of_what_was_written_before(body):
    check(module(f"{SPREAD}    {body}\n"), A / 4.0, 0.7)


SHAPES = {
    "a tuple": "w = np.sin(a) * x\n    v = w.reshape((2, 3))\n    return np.sum(v * v)",
    "a named tuple": "n = 2\n    w = np.sin(a) * x\n    shape = (n, a.size // n)\n"
    "    v = w.reshape(shape)\n    return v[1, 2] * v[0, 1]",
    "parts put together": "w = np.concatenate((a, np.full(3, x)))\n"
    "    return w.reshape((3, 3))[2, 1]",
    "in a loop": "s = 0.0\n    for k in range(1, 4):\n        w = np.sin(a * k) * x\n"
    "        m = w.reshape((k, a.size // k))\n        s += m[k - 1, 0] * m[0, 0]\n    return s",
}


@pytest.mark.parametrize("name", SHAPES)
def test_new_arrays_get_a_shape_that_is_a_tuple(name):
    body = SHAPES[name]
    f = module(f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a, x):\n    {body}\n")
    check(f, A, 0.7, argnums=(0, 1))


def test_nan_to_num_is_a_copy():
    """Its argument may be written afterwards."""
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a):\n"
        "    s = np.vdot(np.real(a), np.nan_to_num(a))\n    a[:2] = a[2:4] * s\n"
        "    return s + np.sum(a)\n"
    )
    check(f, A / 4.0)
