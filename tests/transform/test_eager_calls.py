"""Functions of the package that numba does not compile, called in compiled functions."""

import os
import subprocess
import sys

import numpy as np
import pytest
from check import check, module

import tapegrad as tg
from tapegrad.transform import eager_calls

X = np.array([0.7, -0.4, 1.3])
Y = np.array([0.9, 0.2, -0.6])
M = np.sin(np.arange(9.0) ** 2 + 0.5).reshape(3, 3) + 2.0 * np.eye(3)
W = np.array([0.5, 1.5, 2.5, -1.0, 0.3, 2.0, -0.7, 1.1, 0.4])

# calls, and what x and y are in them; the result is weighted and added up
CALLS = {
    "tg.logsumexp(x)": (X, Y),
    "tg.logsumexp(x, axis=1)": (M, Y),
    "tg.logsumexp(x, 0, keepdims=True)": (M, Y),
    "tg.logsumexp(x * y[0])": (X, Y),
    "tg.special.softmax(x)": (X, Y),
    "tg.special.log_softmax(x, axis=0)": (M, Y),
    "tg.special.gammainc(0.8, np.abs(x))": (X, 0.8),
    "tg.special.xlogy(y, np.abs(x))": (X, Y),
    "tg.special.ndtr(x)": (0.3, Y),
    "tg.special.i0(x * y)": (0.3, 1.2),
    "tg.sum(x, axis=(0, 1))": (M, Y),
    "tg.var(x, axis=1, ddof=1)": (M, Y),
    "tg.std(x, 0)": (M, Y),
    "tg.mean(x * x, axis=1)": (M, Y),
    "tg.max(x, axis=1)": (M, Y),
    "tg.prod(x, axis=0)": (M, Y),
    "tg.cumsum(x, axis=1)": (M, Y),
    "tg.cumprod(x, axis=1)": (M, Y),
    "tg.sort(x, axis=0)": (M, Y),
    "tg.linalg.inv(x)": (M, Y),
    "tg.linalg.solve(x, y)": (M, Y),
    "tg.linalg.det(x)": (M, Y),
    "tg.linalg.expm(x)": (0.3 * M, Y),
    "tg.linalg.norm(x)": (M, Y),
    "tg.linalg.norm(x, axis=1)": (M, Y),
    "tg.matmul(x, y)": (M, Y),
    "x @ tg.outer(y, y)": (M, Y),
    "tg.tensordot(x, y, 1)": (M, Y),
    "tg.transpose(x)": (M, Y),
    "tg.reshape(x, (9,))": (M, Y),
    "tg.flip(x, 1)": (M, Y),
    "tg.roll(x, k)": (X, Y),
    "tg.roll(x, 1, axis=1)": (M, Y),
    "tg.diff(x, 1, 0)": (M, Y),
    "tg.pad(x, 2)": (X, Y),
    "tg.interp(y, np.arange(3.0), x)": (X, np.array([0.3, 1.2])),
    "tg.quantile(x, 0.3, axis=0)": (M, Y),
    "tg.take_along_axis(x, i, 1)": (M, Y),
    "tg.polyval(x, y)": (X, Y),
    "tg.cov(x)": (M, Y),
    "tg.linalg.svd(x, compute_uv=False)": (M, Y),
    "tg.cross(x, y)": (X, Y),
    "tg.broadcast_to(x, (2, 3))": (X, Y),
    "tg.expand_dims(x, 0)": (X, Y),
    "tg.fft.rfft(x).real": (X, Y),
    "tg.fft.rfft2(x).imag": (M, Y),
    "tg.rot90(x)": (M, Y),
    "tg.fft.ifft(tg.fft.fft(x * y) * 2.0).imag + x": (X, Y),
}


HEAD = f"import numpy as np, tapegrad as tg\nW = np.array({W.tolist()})\n@tg.njit\n"
NAMES = "    k = 2\n    i = np.array([[0, 2], [1, 1], [2, 0]])\n"
OF_NUMBER = "    return r * r\n"
OF_ARRAY = """\
    s = 0.0
    n = 0
    for v in r.flatten():
        s += W[n] * v * v
        n += 1
    return s
"""


def made(call, end):
    return module(f"{HEAD}def f(x, y):\n{NAMES}    r = {call}\n{end}")


@pytest.mark.parametrize("call", CALLS)
def test_derivatives(call):
    x, y = CALLS[call]
    names = {"x": x, "y": y, "np": np, "tg": tg, "k": 2, "i": np.array([[0, 2], [1, 1], [2, 0]])}
    check(made(call, OF_ARRAY if np.ndim(eval(call, names)) else OF_NUMBER), x, y, hvp=True)


def test_third_order():
    f = made("tg.logsumexp(x)", OF_NUMBER)
    third = tg.grad(lambda x: tg.sum(tg.hvp(lambda t: tg.logsumexp(t) ** 2)(x, Y)))(X)
    step = 1e-4
    ahead, behind = (tg.hvp(f)(X + step * d, Y, Y) for d in (np.eye(3)[0], -np.eye(3)[0]))
    np.testing.assert_allclose((ahead - behind).sum() / (2 * step), third[0], rtol=1e-6)


def test_complex_arguments():
    f = module(
        f"{HEAD}def f(x):\n    z = x[:2] + 1j * x[2:]\n    w = tg.fft.fft(z) * z\n"
        "    u = tg.linalg.inv(np.outer(w, z) + 2.0 * np.eye(2))\n"
        "    return (u * u).sum().real\n"
    )
    check(f, np.array([0.3, -0.2, 0.5, 0.9]), compiled=True)


def test_single_precision_stays():
    f = made("tg.logsumexp(x, axis=1)", OF_ARRAY)
    x = M.astype(np.float32)
    assert tg.grad(f)(x, Y).dtype == np.float32
    check(f, x, Y, argnums=(0,), hvp=False)


def test_numbers_in_single_precision_stay():
    f = module(f"{HEAD}def f(x, y):\n    return tg.special.ndtr(x) * tg.special.i0(y)\n")
    x, y = np.float32(0.3), np.float32(1.2)
    check(f, x, y, compiled=True)
    c = module(f"{HEAD}def f(z):\n    w = tg.fft.fft(z)\n    return abs(w[1]) ** 2\n")
    z = np.array([1 + 1j, 2, 3j], np.complex64)
    assert tg.grad(c)(z).dtype == np.complex64
    check(c, z, compiled=True)


def test_arguments_that_are_not_contiguous():
    f = made("tg.linalg.inv(x)", OF_ARRAY)
    wide = np.repeat(M, 2, axis=1)[:, ::2]
    np.testing.assert_allclose(tg.grad(f)(wide, Y), tg.grad(f)(M, Y))
    np.testing.assert_allclose(tg.grad(f)(np.asfortranarray(M), Y), tg.grad(f)(M, Y))


def test_results_are_arrays_of_their_own():
    f = module(
        f"{HEAD}def f(x):\n    y = tg.transpose(x)\n    y[0, 1] = 5.0\n    return (x * y).sum()\n"
    )
    x = M.copy()
    f(x)
    np.testing.assert_array_equal(x, M)
    check(f, M, compiled=True)


def test_values_that_are_written_later():
    f = module(
        f"{HEAD}def f(x):\n    y = x * 2.0\n    s = 0.0\n    for k in range(3):\n"
        "        s += tg.logsumexp(y) * y[k]\n        y[k] = s * x[k]\n    return s + y.sum()\n"
    )
    check(f, X, hvp=True)


def test_in_helpers_branches_and_loops():
    f = module(
        f"{HEAD}def g(x, axis):\n    if x[0, 0] > 0.0:\n        return tg.cumsum(x, axis=1)\n"
        "    return tg.linalg.inv(x)\n@tg.njit\ndef f(x):\n    y = g(x, 1)\n    n = 0\n"
        "    while tg.max(y) < 9.0 and n < 4:\n        y = y * tg.sum(y, 1) * 0.4 + g(-y, 0)\n"
        "        n += 1\n    return (y * y).sum()\n"
    )
    check(f, M)


def test_errors_of_the_function_reach_the_caller():
    f = made("tg.linalg.inv(x)", OF_ARRAY)
    for call in (f, tg.grad(f)):
        with pytest.raises(np.linalg.LinAlgError):
            call(np.zeros((3, 3)), Y)


def test_no_gradient_is_lost_without_recording():
    f = made("tg.logsumexp(x)", OF_NUMBER)
    expected = tg.grad(f)(X, Y)
    with tg.no_grad():
        np.testing.assert_array_equal(tg.grad(f)(X, Y), expected)
    with tg.inference_mode():
        np.testing.assert_array_equal(tg.grad(f)(X, Y), expected)


def test_on_tensors():
    f = made("tg.logsumexp(x)", OF_NUMBER)
    t = tg.tensor(X, requires_grad=True)
    f(t, Y).backward()
    np.testing.assert_allclose(t.grad, tg.grad(f)(X, Y))


def test_arguments_without_a_derivative_are_refused():
    f = made("tg.special.gammainc(x, y)", OF_ARRAY)
    with pytest.raises(TypeError, match="gammainc has no derivative with respect to 'a'"):
        tg.grad(f)(np.abs(X), np.abs(Y))
    check(f, np.abs(X), np.abs(Y), argnums=(1,))


@pytest.mark.parametrize("call", ["tg.einsum('i,i->', x, y)", "tg.concatenate((x, y))"])
def test_other_functions_are_refused(call):
    f = made(call, OF_NUMBER)
    with pytest.raises(tg.TransformError, match=r"cannot call tg\.\w+ in a compiled function"):
        tg.grad(f)(X, Y)


def test_arguments_without_a_result_are_refused_by_their_line():
    for call, words in (
        ("tg.linalg.slogdet(x)", r"tapegrad\.slogdet of \(array.*several results"),
        ("tg.linalg.solve(x, 1.0)", r"tapegrad\.solve of .*not have enough dimensions"),
    ):
        f = made(call, OF_ARRAY)
        with pytest.raises(tg.TransformError, match=f"cannot call {words}(?s:.*)line 7, in f"):
            tg.grad(f)(M, Y)


PROGRAM = """
import numpy as np, tapegrad as tg

@tg.njit
def f(x):
    return tg.logsumexp(x * x, axis=0)

if __name__ == "__main__":
    x = np.array([0.3, 0.7])
    print(f(x), *tg.grad(f)(x), *tg.hvp(f)(x, x))
"""


def test_code_on_disk_is_used_in_another_process(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    env = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        subprocess.run([sys.executable, path], capture_output=True, text=True, env=env, check=False)
        for _ in range(2)
    ]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert not runs[1].stderr


def test_an_argument_that_becomes_a_number_is_an_error(monkeypatch):
    """A function that loses the history of an argument has no gradient, rather than zero."""
    namespaces = {"": {"scaled": lambda x, c: x * float(c), "detached": lambda x, c: x * c.item()}}
    monkeypatch.setattr(eager_calls, "NAMESPACES", namespaces)
    values, dtypes = (X, 2.0, 2.0 * X, np.ones(3)), ("float64",) * 4
    path = ("scaled", (("x",), ("c",)))
    assert eager_calls.compute(repr((path,)), dtypes[:2], values[:2]).tolist() == [*(2.0 * X)]
    for mode in ("vjp", "jvp"):
        with pytest.raises(RuntimeError, match=r"of a tensor that .* compiled .* would lose its"):
            eager_calls.compute(repr((path, (mode, 1))), dtypes, values)
    path = ("detached", (("x",), ("c",)))  # which says that no gradient is wanted
    assert eager_calls.compute(repr((path, ("vjp", 1))), dtypes, values).tolist() == 0.0


def test_text_that_looks_like_a_placeholder_is_text():
    f = made('tg.sum(tg.pad(x, 1, "..."))', OF_ARRAY)
    with pytest.raises(tg.TransformError, match=r"mode '\.\.\.'|'\.\.\.'"):
        tg.grad(f)(X, Y)


RULES = {
    "linalg.inv": ({"x": (3, 3)}, {}),
    "linalg.solve": ({"a": (3, 3), "b": (5, 3, 2)}, {}),
    "linalg.cholesky": ({"x": (2, 3, 3)}, {}),
    "cumsum": ({"x": (2, 3)}, {"axis": 1}),
    "matmul": ({"x": (4, 1, 2, 3), "y": (5, 3, 2)}, {}),
    "linalg.pinv": ({"x": (4, 3)}, {"rcond": None, "hermitian": False, "rtol": None}),
}


@pytest.mark.parametrize("name", RULES)
def test_a_vjp_does_not_compute_the_value_again(name, monkeypatch):
    shapes, constants = RULES[name]
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape) for shape in shapes.values()]
    if name == "linalg.cholesky":
        values = [x @ x.mT for x in values]
    op = eager_calls._ops_of_arrays()[name]
    z = op(*map(tg.tensor, values), **constants).numpy()
    call = (name, (*((n,) for n in shapes), *constants.items()))
    given = [*map(tg.tensor, values), tg.tensor(z), tg.tensor(rng.normal(size=z.shape))]
    for number, x in enumerate(values):
        whole = eager_calls._vjp(eager_calls._function(repr((call,))), number)
        expected = whole(*given).numpy()
        vjp = eager_calls._function(repr((call, ("vjp", number))))
        calls = []
        with monkeypatch.context() as patched:
            original = op.function
            patched.setattr(op, "function", lambda *a, **k: calls.append(1) or original(*a, **k))
            found = vjp(*given)
        assert found.shape == x.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-13)
        if name in ("linalg.inv", "linalg.cholesky"):  # whose rules do not call it
            assert not calls


# -- results whose dtype depends on values ---------------------------------------------------------


@pytest.mark.parametrize("x", [[1.0, 2.0, -3.0, 0.5], [1.0, 0.0, 3.0, 0.5]])
def test_roots_that_are_real_or_complex(x):
    def f(x):
        return tg.sum(abs(np.roots(x)))

    jitted, x = tg.jit(f), np.array(x)
    with pytest.warns(tg.OpByOpWarning):
        jitted(x)
    for given in (x, x + np.array([0.0, 0.0, -9.0, 0.0]), x):
        np.testing.assert_allclose(jitted(given), f(given), rtol=1e-12)
        np.testing.assert_allclose(tg.grad(jitted)(given), tg.grad(f)(given), rtol=1e-9)


def test_complex_result_where_code_is_of_real_numbers():
    pytest.importorskip("scipy")
    jitted = tg.jit(lambda a: tg.sum(abs(tg.linalg.logm(a))))
    with pytest.warns(tg.OpByOpWarning):
        jitted(np.diag([4.0, 9.0]))
    with pytest.raises(tg.TransformError, match=r"linalg\.logm returned complex128"):
        jitted(np.diag([-4.0, 9.0]))
