"""Arrays without axes that are made, copied and kept in loops: of every dtype, always compiled.

Numba takes them for numbers in most places, but an operation on one of them in single precision and
an integer is in single precision, one on two numbers is in double precision.
"""

import itertools
import re

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

DTYPES = "float32", "float64", "int64", "bool_", "complex128"
BEGIN = "    s = 0.0\n    b = np.array(np.{dtype}(0.5))\n    for i in range(x.size):\n"
USE = "s += np.sum(np.sin(x[i] * {b}))"
BODIES = {
    "shown": ["c = np.asarray(b)", "{use_c}", "b = np.array(np.{dtype}(i + 1))"],
    "copied": ["c = b.copy()", "{use_c}", "b[()] = np.{dtype}(i + 1)"],
    "copied by numpy": ["c = np.copy(b)", "{use_c}", "b[()] = np.{dtype}(i + 1)"],
    "kept": ["{use_b}", "b = np.array(np.{dtype}(i + 1))"],
    "chosen": [
        "if x[i] > 0.6:",
        "    b = np.array(np.{dtype}(i + 1))",
        "else:",
        "    b = np.zeros((), np.{dtype})",
        "{use_b}",
    ],
    "inner loop": [
        "for k in range(2):",
        "    b = np.full((), np.{dtype}(i + k))",
        "    s = np.sin(s + x[i])",
        "    {use_b}",
    ],
    "part of a row": [
        "r = np.zeros(3, np.{dtype})",
        "r[i] = np.{dtype}(i + 1)",
        "b = r[i : i + 1].reshape(())",
        "{use_b}",
    ],
    "computed": ["b = np.asarray(b * np.{dtype}(2) + np.array(np.{dtype}(1)) * 1)", "{use_b}"],
    "by integers": ["b = np.asarray(b * i - np.array(np.{dtype}(1)) / 2)", "{use_b}"],
    "active": [
        "b = np.full((), np.{dtype}(x[i]))",
        "for k in range(3):",
        "    b = np.asarray(np.where(x[0] > 0, b, b * 2) * (k + 1))",
        "    {use_b}",
    ],
}
# numba does not compile these
LEFT_OUT = {(name, "bool_") for name in ("computed", "by integers", "active")} | {
    *(("by integers", dtype) for dtype in ("int64",)),
    *(("active", dtype) for dtype in ("int64", "complex128")),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [pair for pair in itertools.product(BODIES, DTYPES) if pair not in LEFT_OUT]
)
def test_programs(name, dtype):
    part = ".real" if dtype == "complex128" else ""
    uses = {f"use_{b}": USE.format(b=b + part) for b in "bc"}
    lines = [" " * 8 + line.format(dtype=dtype, **uses) for line in BODIES[name]]
    head = "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x):\n" + BEGIN.format(dtype=dtype)
    f = module(head + "\n".join(lines) + "\n    return s\n")
    options = {"tolerance": 2e-3} if dtype == "float32" else {}
    check(f, np.array([0.5, 1.25, 0.75]), compiled=True, hvp=True, **options)


# -- functions of arrays without axes --------------------------------------------------------------

MADE = {"array": "np.array(x * y)", "chosen": "np.where(x > y, x, 2.0 * y)"}
# what np.where of numbers returns is a number in derivatives, to which a view shows no writes
VIEWS = (
    *("w.T", "np.transpose(w)", "np.real(w)", "w.real", "np.asarray(w)", "w.view(np.float64)"),
    *("np.expand_dims(w, 0)[0]", "np.asarray_chkfinite(w)"),
)
TAKEN = (
    *(
        "np.angle(w) + x",
        "np.imag(w) + x",
        "np.sinc(w)",
        "np.clip(w, 0.1, 0.9)",
        "np.nan_to_num(w)",
    ),
    *("np.floor(w) * x", "np.count_nonzero(w) * x", "np.searchsorted(np.arange(3.0), w) * x"),
    *("np.argmax(w) * x", "np.interp(w, np.arange(3.0), np.array([1.0, 3.0, 4.0]))", "w.copy()"),
    *("np.copy(w)", "w.size * w", "w.ndim + w", "np.full_like(w, x)", "np.zeros_like(w) + x"),
    *("np.float64(w)", "np.where(w > 0.0, w, y)", "np.sum(w)", "w.mean()", "np.median(w)"),
    *("np.sign(w) * w", "np.hypot(w, y)", "np.append(w, x)[0]", "w.flatten()[0]", "w[()]"),
    *("np.isnan(w) + w", "np.conj(w)", "w.item()", "np.linspace(w[()], 1.0, 3)[1]"),
)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("text", TAKEN + VIEWS)
def test_functions(text, made):
    f = module(
        f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, y):\n    w = {MADE[made]}\n"
        f"    return np.sum({text} * 1.0)\n"
    )
    if made == "chosen" and text in VIEWS:
        name = re.search(r"[.](\w+)", text.removeprefix("np")).group(1)
        with pytest.raises(tg.TransformError, match=rf"{name} of what np.where of numbers returns"):
            tg.grad(f)(0.7, 0.3)
    else:
        check(f, 0.7, 0.3, compiled=True)


@pytest.mark.parametrize("text", VIEWS)
def test_views_that_are_written(text):
    f = module(
        f"import numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, y):\n    w = np.array(x * y)\n"
        f"    v = {text.replace('[0]', '')}\n    v += y * x\n    return np.sum(w * x + v * 0.5)\n"
    )
    check(f, 0.7, 0.3, compiled=True)
