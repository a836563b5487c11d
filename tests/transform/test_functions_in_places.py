"""Every function of the table in docs/njit.md, in every place where its result may stand.

What the result is used for decides what the verifier can see of it, and which code is generated. A
program has many functions in one kind of place; where it fails, the message has the line.
"""

import warnings

import numba
import numpy as np
import pytest
from check import check, module

import tapegrad as tg

X = np.array([0.62, 2.23, 1.37, 0.83])
M = np.array([[2.07, 0.3, 0.1], [0.4, 3.03, 0.2], [0.5, 0.6, 4.1]])

HEAD = """\
import math
import operator

import numpy as np
from numba import prange

import tapegrad as tg

"""

# of x, a vector of four positive numbers, m, a matrix, and w, a symmetric one
NUMBERS = """
np.sin(x[0]); math.exp(x[1]); x[0] ** x[1]; x[1] // 0.4 + x[0]; x[1] % x[0]; -x[0]; abs(-x[0])
np.hypot(x[0], x[1]); np.logaddexp(x[0], x[1]); math.atan2(x[0], x[1]); math.gamma(x[1])
np.nan_to_num(x[0]); np.clip(x, 0.1, 1.5)[1]; np.where(x > 1, x, 0.0)[1]; np.copysign(x[0], -1.0)
math.ldexp(x[0], 2); tg.sigmoid(x[0]); tg.relu(x[1]); tg.special.gammaln(x[1]); tg.abs(x[0])
operator.floordiv(x[1], x[0]) * x[1]; operator.mod(x[1], x[0]); operator.truediv(x[0], x[1])
operator.mul(x[0], x[1]); operator.neg(x[0]); np.float64(x[0]); x.dtype.type(x[1]); float(x[2])
max(x[0], x[1]); min(x[0], x[1], x[2]); pow(x[0], 2); sum(x); max(x); min(x); sum((x[0], x[1]))
divmod(x[1], x[0])[1]; divmod(x[1], x[0])[0] * x[1]; round(x[1]) * x[0]; round(x[1], 1) * x[0]
int(x[1]) * x[0]; bool(x[1]) * x[0]; len(x) * x[0]; isinstance(x[0], float) * x[0]
math.floor(x[1]) * x[0]; math.ceil(x[1]) * x[0]; math.trunc(x[1]) * x[0]; math.isnan(x[1]) + x[0]
np.rint(x[1]) * x[0]; np.sign(x[0]) * x[1]; np.isclose(x[0], x[1]) + x[1]; np.signbit(x[0]) + x[1]
x[0].real; x[0].imag + x[1]; np.imag(x[0]) + x[1]; complex(x[0], x[1]).real; abs(complex(x[0], 2.0))
x[-1]; m[1, 2]; m.T[0, 1]; m[1][2]; x[1:2].item(); np.take(x, 2); np.take(m, 4)
np.array(x[0])[()]; np.array(x[0] * x[1], dtype=np.float64) * 1.0; np.asarray(x[1]).item()
np.full((), x[0])[()]; np.zeros(())[()] + x[0]
np.nanmax(x[0]); np.nanmin(x[1]); np.max(x[2]); np.permute_dims(m)[0, 1]; np.permute_dims(x)[1]
np.sum(x); x.sum(); np.mean(x); np.average(x); np.average(x, None, x); np.prod(x); np.max(x)
x.min(); np.ptp(x); np.var(x); x.std(); np.trace(m); np.nansum(x); np.nanmean(x); np.nanprod(x)
np.nanmax(x); np.nanmin(x); np.nanvar(x); np.nanstd(x); np.nanmedian(x); np.sum(m, 1)[0]
np.median(x); np.quantile(x, 0.3); np.percentile(x, 95); np.nanquantile(x, 0.2)
np.nanpercentile(x, 30); np.sort(x)[1]; np.partition(x, 2)[2]; np.unique(x)[1]; x[np.argmax(x)]
np.interp(x[2], np.arange(4.0), x); np.trapezoid(x); np.trapezoid(x, x * 3); np.trapezoid(x, dx=0.1)
np.cov(x, x[::-1])[0, 1]; np.corrcoef(x, x[::-1])[0, 1]; np.convolve(x, x)[2]; np.diff(x)[0]
np.unwrap(x)[1]; np.bincount(np.array([0, 1, 1, 0]), x)[0]; np.ediff1d(x)[1]
np.dot(x[1:], x[1:]); np.vdot(x[1:], x[1:]); x[1:] @ x[1:]; np.outer(x, x)[0, 1]
np.kron(m, m)[0, 1]; np.cross(x[:3], x[1:])[1]; np.linalg.det(m * 0.79); np.linalg.slogdet(m)[1]
np.linalg.slogdet(m)[0] * x[0]
np.linalg.norm(x); np.linalg.norm(x, 1); np.linalg.norm(m, 2); np.linalg.solve(m, x[:3])[1]
np.linalg.svd(m)[1][0]; np.linalg.eigvalsh(w)[0]; np.linalg.eigh(w)[0][1]; np.linalg.qr(m)[1][1, 2]
tg.logsumexp(x); tg.std(x); tg.linalg.det(m * 0.79)
"""
ARRAYS = """
np.sin(x); x ** 2; x / x[::-1]; np.logaddexp(x, x[::-1]); np.where(x > 1, x * x, -x); np.abs(x)
np.clip(x, 0.6, 1.5); x.clip(0.6, 1.5); np.ldexp(x, 2); np.nan_to_num(x); (x > 1) * x
np.rint(x) * x
x.real; x.imag + x; np.imag(x) + x; np.conj(x); tg.softplus(x); tg.relu(x)
np.full(4, x[1]); np.full_like(x, x[1]); np.zeros_like(x) + x; np.array([x[0], x[1]])
np.asarray(x); np.arange(x[0], x[0] + 3.0); np.linspace(x[0], x[1], 4); np.logspace(x[0], x[3], 4)
np.geomspace(x[0], x[1], 4); np.copy(x); x.copy(); np.diag(m); np.ascontiguousarray(x)
np.array([v * 2.0 for v in x]); np.asarray_chkfinite(x)
np.flip(x); x[::-1]; x[1:3]; m[1]; m[:, 1]; m.ravel(); m.flatten(); m.reshape(-1); x.T
np.transpose(x); np.atleast_1d(x); x[np.array([0, 2])]; x[x > 1.0]; m[np.array([0, 1]), 1]
x.astype(np.float64)
np.concatenate((x, x[1:])); np.concat((x, x)); np.append(x, x[0])
np.insert(x, 1, x[2]); np.hstack((x, x))
np.roll(x, 1); np.repeat(x, 2); np.delete(x, 1); np.take(x, np.array([0, 2])); x.take(np.array([1]))
np.take_along_axis(x, np.array([0, 1, 1]), 0); np.extract(x > 1.0, x)
np.select([x > 1, x < 0.7], [x * x, x], 0.5)
np.cumsum(x); np.cumprod(x); np.nancumsum(x); np.nancumprod(x); np.sum(m, 0); m.sum(1)
np.sort(x); np.partition(x, 2); np.unique(x); np.quantile(x, np.array([0.3, 0.6]))
np.percentile(x, np.array([30.0, 60.0])); x[np.argsort(x)]
np.interp(x, np.arange(4.0), x); np.diff(x); np.ediff1d(x); np.convolve(x, x)
np.correlate(x, x[1:])
np.unwrap(x * 3); np.bincount(np.array([0, 1, 1, 0]), x)
m @ x[:3]; x[:3] @ m; np.dot(m, x[:3]); np.linalg.solve(m, x[:3]); np.linalg.eigvalsh(w)
np.linalg.svd(m)[1]; np.cross(x[:3], x[1:]); np.linalg.lstsq(m, x[:3])[0]; np.kron(x, x[:2])
"""
MATRICES = """
np.exp(m); np.eye(3) * x[1]; np.diag(x); np.diagflat(x); np.vander(x, 3); np.full((2, 3), x[0])
np.array([[x[0], x[1]], [x[2], x[3]]]); np.copy(m); np.fliplr(m); np.flipud(m); np.rot90(m); m.T
np.swapaxes(m, 0, 1); np.moveaxis(m, 0, 1); np.expand_dims(x, 0); np.atleast_2d(x); x.reshape(2, 2)
np.broadcast_to(x, (3, 4)); m[1:, :2]; x[:, None]; np.stack((x, x * 2)); np.vstack((x, x))
np.column_stack((x, x)); np.concatenate((m, m)); np.tril(m); np.triu(m, 1); np.roll(m, 1)
np.dstack((m, m))[0]; np.append(m, m, 0); np.cov(m); np.cov(x, x * x); np.corrcoef(m)
np.corrcoef(x, x * x); np.cov(m, rowvar=False); np.diff(m); m @ m; np.outer(x, x); np.kron(m, m)
np.linalg.inv(m); np.linalg.pinv(m); np.linalg.solve(m, m); np.linalg.cholesky(w @ w)
np.linalg.qr(m)[0] ** 2; np.linalg.eigh(w)[1] ** 2; np.linalg.svd(m)[0] ** 2; np.cross(m, m.T)
tg.linalg.expm(m); np.linalg.lstsq(m, m)[0]
"""

IN_NUMBERS = {
    "assigned": "r{j} = {e}\ns += r{j} * x[1]",
    "part of an expression": "s += ({e}) * x[1] + x[0]",
    "argument": "s += number({e}, x)",
    "returned": "s += x[1] * of{j}(x, m, w)",
    "returned in a tuple": "a{j}, b{j} = both{j}(x, m, w)\ns += a{j} * b{j}",
    "in a tuple": "t{j} = ({e}, x[1])\ns += t{j}[0] * t{j}[1]",
    "in an array": "r{j} = np.array([{e}, x[1]])\ns += r{j}[0] * r{j}[1]",
    "in a list": "r{j} = [{e} for k in range(2)]\ns += r{j}[0] * r{j}[1]",
    "in a comprehension": (
        "r{j} = np.array([({e}) * k for k in range(1, 3)])\ns += np.sum(r{j} * r{j})"
    ),
    "stored in an element": "r{j} = np.zeros(2)\nr{j}[0] = {e}\ns += r{j}[0] * x[1]",
    "stored in a part": "r{j} = np.zeros(3)\nr{j}[1:] = {e}\ns += np.sum(r{j} * r{j})",
    "stored in a loop": (
        "r{j} = np.zeros(2)\nfor i in range(2):\n    r{j}[i] = {e}\ns += np.sum(r{j} * r{j})"
    ),
    "stored in an integer": "r{j} = np.zeros(2, np.int64)\nr{j}[0] = {e}\ns += r{j}[0] * x[1]",
    "stored by a function": "r{j} = np.zeros(2)\nfill{j}(r{j}, x, m, w)\ns += r{j}[0] * x[1]",
    "stored by threads": (
        "r{j} = np.zeros(2)\nfor i in prange(2):\n    r{j}[i] = {e}\ns += np.sum(r{j} * r{j})"
    ),
    "added to an element": (
        "r{j} = np.ones(2)\nr{j}[0] += {e}\nr{j}[1] -= {e}\ns += r{j}[0] * x[1] + r{j}[1]"
    ),
    "in a recurrence": "q{j} = x[0]\nfor i in range(2):\n    q{j} = q{j} * ({e}) + x[1]\ns += q{j}",
    "in a condition": "if {e} > 0.3:\n    s += x[0] * x[1]\nelse:\n    s += x[2]",
    "in the condition of a loop": (
        "k = 0\nwhile k < 2 and {e} > 0.3:\n    k += 1\n    s += x[1] * x[2]"
    ),
    "in a conditional expression": "s += x[1] * ({e} if x[0] > 0.1 else x[2])",
    "in a subscript": "s += x[int(abs(0.01 * ({e}))) % 4] * x[0]",
    "extreme": "s += max({e}, x[1] * 17.3) * x[0] + min({e}, -17.3 * x[2])",
}
IN_ARRAYS = {
    "assigned": "r{j} = {e}\ns += np.sum(r{j} * r{j})",
    "part of an expression": "s += np.sum(({e}) * x[1] + x[0])",
    "argument": "s += array({e}, x)",
    "returned": "s += np.sum(x[1] * of{j}(x, m, w))",
    "returned in a tuple": "a{j}, b{j} = both{j}(x, m, w)\ns += np.sum(a{j} * b{j})",
    "in a tuple": "t{j} = ({e}, x[1])\ns += np.sum(t{j}[0]) * t{j}[1]",
    "in a comprehension": (
        "r{j} = np.array([u * 2.0 for u in ({e}).flatten()])\ns += np.sum(r{j} * r{j})"
    ),
    "one element": "s += ({e}){first} * x[0]",
    "stored in a part": (
        "r{j} = {e}\nr{j}_2 = np.zeros((2,) + r{j}.shape)\nr{j}_2[0] = {e}\n"
        "s += np.sum(r{j}_2[0] * r{j}_2[0])"
    ),
    "stored in all elements": (
        "r{j} = np.zeros(({e}).shape)\nr{j}[:] = {e}\ns += np.sum(r{j} * r{j})"
    ),
    "added": "r{j} = np.ones(({e}).shape)\nr{j} += {e}\ns += np.sum(r{j} * r{j})",
    "in a loop": (
        "q{j} = x[0]\nfor i in range(2):\n    r{j} = {e}\n"
        "    q{j} = q{j} * 0.5 + np.sum(r{j} * r{j}) * q{j}\ns += q{j}"
    ),
    "carried": (
        "r{j} = 1.0 * {e}\nfor i in range(2):\n    r{j} = r{j} * x[1] + {e}\ns += np.sum(r{j})"
    ),
    "changed": "r{j} = np.copy({e}) * 1.0\nr{j}{first} = x[1]\ns += np.sum(r{j} * r{j})",
    "in a condition": "if np.sum({e}) > 0.3:\n    s += x[0] * x[1]\nelse:\n    s += x[2]",
    "in a conditional expression": "s += np.sum(x[1] * (1.0 * {e} if x[0] > 0.1 else 2.0 * {e}))",
    "iterated": "q{j} = x[0]\nfor u in ({e}){row}:\n    q{j} = q{j} * 0.5 + u * x[1]\ns += q{j}",
    "reduced": "s += np.sum({e}) * x[1] + np.mean({e})",
}
CALLED = {
    "of": "    return {e}\n",
    "both": "    return {e}, x[1] * x[1]\n",
    "fill": "    out[0] = {e}\n",
}
GIVEN = (
    "@tg.njit(boundscheck=False)\ndef number(y, x):\n    return y * x[1] + x[0]\n"
    "@tg.njit(boundscheck=False)\ndef array(y, x):\n    return np.sum(y * y) + x[0]\n"
)
IN_PYTHON = "tg.logsumexp(x)", "tg.std(x)", "tg.linalg.det(m * 0.79)"  # threads do not run Python
SIZE = 32


def functions(text):
    return [part.strip() for part in text.replace("\n", ";").split(";") if part.strip()]


def chunks(text):
    found = functions(text)
    return [found[k : k + SIZE] for k in range(0, len(found), SIZE)]


def program(template, expressions, *, is_matrix):
    """The text of a program with each of some expressions in one place."""
    lines, helpers = [], GIVEN
    for j, e in enumerate(expressions):
        shown = template.replace("{first}", "[0, 0]" if is_matrix else "[0]")
        shown = shown.replace("{row}", "[0]" if is_matrix else "")
        lines += shown.replace("{e}", e).replace("{j}", str(j)).splitlines()
        for name, body in CALLED.items():
            if f"{name}{{j}}(" in template:
                first = "out, " if name == "fill" else ""
                helpers += f"@tg.njit(boundscheck=False)\ndef {name}{j}({first}x, m, w):\n"
                helpers += body.replace("{e}", e)
    options = "(parallel=True)" if "prange" in template else ""
    return (
        f"{HEAD}{helpers}@tg.njit{options}\ndef f(x, m):\n    w = m + m.T\n    s = x[3]\n"
        + "".join(f"    {line}\n" for line in lines)
        + "    return s\n"
    )


KINDS = {
    "number": (NUMBERS, IN_NUMBERS),
    "array": (ARRAYS, IN_ARRAYS),
    "matrix": (MATRICES, IN_ARRAYS),
}
CASES = [
    pytest.param(program(template, chunk, is_matrix=kind == "matrix"), id=f"{kind} {place} {k}")
    for kind, (text, places) in KINDS.items()
    for place, template in places.items()
    for k, chunk in enumerate(chunks(text))
]


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
@pytest.mark.filterwarnings("ignore::tapegrad.transform.errors.SerialLoopWarning")
@pytest.mark.filterwarnings("ignore::tapegrad.transform.errors.RoundedWarning")
@pytest.mark.parametrize("text", CASES)
def test_every_function_in_every_place(text):
    check(module(text), X.copy(), M.copy(), compiled=False)


@pytest.mark.parametrize("k", range(len(chunks(NUMBERS))))
def test_effects_are_known(k):
    """No loop over prange runs in order because of what a function may do."""
    expressions = [e for e in chunks(NUMBERS)[k] if e not in IN_PYTHON]
    f = module(program(IN_NUMBERS["stored by threads"], expressions, is_matrix=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tg.value_and_grad(f).implementation((numba.typeof(X), numba.typeof(M)))
    assert not [str(w.message) for w in caught if "effects are unknown" in str(w.message)]
