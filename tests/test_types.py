"""What type checkers know of functions and methods, which are made at run time."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.stubs import RESULTS, stubs

USER_CODE = """
    from typing import assert_type

    import numpy as np
    import tapegrad as tg

    x: tg.Tensor = tg.tensor([1.0, 2.0], requires_grad=True)
    y = (tg.sin(x) * x + 1.0).sum() + x.mean()
    assert_type(y, tg.Tensor)
    y.backward()
    a = tg.linalg.inv(np.eye(2)) @ x
    b = tg.fft.rfft(x)
    c = tg.special.gammaln(x)
    w, v = tg.linalg.eigh(tg.eye(2))
    assert_type(tg.linalg.slogdet(tg.eye(2)).logabsdet, tg.Tensor)
    assert_type(tg.random.normal(x, 2.0), tg.Tensor)
    assert_type(tg.random.default_rng(1).gamma(x, size=(3, 2)), tg.Tensor)
    assert_type(a, tg.Tensor)
    assert_type(b, tg.Tensor)
    assert_type(c, tg.Tensor)
    assert_type(v, tg.Tensor)
    assert_type(tg.where(x > 0, x, 0.0), tg.Tensor)
    assert_type(tg.concatenate([x, x], axis=0), tg.Tensor)
    assert_type(1.0 / x**2 - x[0], tg.Tensor)
    assert_type(x.reshape(2, 1).T.max(axis=0, keepdims=True), tg.Tensor)
    assert_type(tg.einsum("i,i->", x, [1.0, 2.0]), tg.Tensor)
    gradient = tg.grad(lambda z: tg.sum(z**2))(np.ones(2))
    compiled = tg.njit(lambda z: z * z)
    handle = x.register_hook(lambda g: g * 2)
    handle.remove()
    for row in tg.zeros((2, 3)):
        assert_type(row, tg.Tensor)

    assert x.grad is not None
    with tg.no_grad(), tg.autograd.set_multithreading_enabled(False):
        x -= 0.1 * x.grad
        x[0] = 1.0

    class Twice(tg.Function):
        @staticmethod
        def forward(ctx: tg.autograd.function.FunctionCtx, z: tg.Tensor) -> tg.Tensor:
            ctx.save_for_backward(z)
            return z * 2

    twice: tg.Tensor = Twice.apply(x)
"""
MISTAKES = """
    import tapegrad as tg

    x = tg.ones(2)
    tg.sinn(x)
    x.summ()
    tg.linalg.inverse(x)
    tg.sum(x, keepdims="yes")
    tg.sort(x, axes=0)
"""


PROGRAMS = {"user_code.py": USER_CODE, "mistakes.py": MISTAKES}


def checked_by_mypy(folder):
    pytest.importorskip("mypy")
    # in a process of its own, for it changes how often the garbage collector runs
    options = ["--strict", "--config-file=", f"--cache-dir={os.devnull}"]
    options += ["--follow-imports=silent", "--ignore-missing-imports"]
    found, errors = output_of("mypy", *options, folder=folder)
    assert not errors
    return [line for line in found.splitlines() if ": error:" in line]


def checked_by_pyright(folder):
    pytest.importorskip("basedpyright")
    options = ["--level", "error", "--pythonpath", sys.executable]
    found, _ = output_of("basedpyright", *options, folder=folder)
    return [line for line in found.splitlines() if " - error:" in line]


def output_of(checker, *options, folder):
    command = [sys.executable, "-m", checker, *options, *PROGRAMS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout, done.stderr


@pytest.fixture(
    scope="module", params=[checked_by_mypy, checked_by_pyright], ids=["mypy", "pyright"]
)
def errors(request, tmp_path_factory):
    """What a checker finds in both programs, of which it needs one start."""
    folder = tmp_path_factory.mktemp("checked")
    for name, code in PROGRAMS.items():
        (folder / name).write_text(textwrap.dedent(code))
    return request.param(folder)


def test_users_code(errors):
    assert [error for error in errors if "mistakes.py" not in error] == []


def test_mistakes_are_found(errors):
    for line in range(5, 10):
        assert [error for error in errors if f"mistakes.py:{line}" in error], (line, errors)


def without_layout(text):
    return ast.dump(ast.parse(text))


def test_stubs_are_up_to_date():
    found = stubs()
    folder = next(iter(found)).parent
    assert {*found} == {*folder.glob("*.pyi")} - {folder / "results.pyi", folder / "compiled.pyi"}
    for path, text in found.items():
        assert without_layout(path.read_text()) == without_layout(text), (
            f"{path.name}: run python -m tapegrad.stubs"
        )


SQUARE = np.array([[2.0, 1.0], [1.0, 3.0]])
EXAMPLES = {
    "slogdet": lambda: tg.linalg.slogdet(SQUARE),
    "qr": lambda: tg.linalg.qr(SQUARE),
    "eigh": lambda: tg.linalg.eigh(SQUARE),
    "eig": lambda: tg.linalg.eig(SQUARE),
    "split": lambda: tg.split(SQUARE, 2),
    "array_split": lambda: tg.array_split(SQUARE, 2),
    "hsplit": lambda: tg.hsplit(SQUARE, 2),
    "vsplit": lambda: tg.vsplit(SQUARE, 2),
    "dsplit": lambda: tg.dsplit(SQUARE[None], 2),
    "unstack": lambda: tg.unstack(SQUARE),
    "broadcast_arrays": lambda: tg.broadcast_arrays(SQUARE, 1.0),
    "nonzero": lambda: tg.nonzero(SQUARE),
    "allclose": lambda: tg.allclose(SQUARE, 1.0),
    "array_equal": lambda: tg.array_equal(SQUARE, 1.0),
    "meshgrid": lambda: tg.meshgrid(SQUARE[0], SQUARE[0]),
    "cho_factor": lambda: tg.linalg.cho_factor(SQUARE),
    "lstsq": lambda: tg.linalg.lstsq(SQUARE, SQUARE),
}
ANY = {"svd", "gradient", "count_nonzero", "special.logsumexp"}


def kind_of(value):
    """The type of a result as the stubs write it."""
    if isinstance(value, list):
        return f"list[{kind_of(value[0])}]"
    if hasattr(value, "_fields"):
        return type(value).__name__
    if isinstance(value, tuple):
        return f"tuple[{', '.join(map(kind_of, value))}]"
    return type(value).__name__


def test_results_that_are_not_one_tensor():
    assert {*EXAMPLES} == {*RESULTS} - ANY
    for name, call in EXAMPLES.items():
        found = kind_of(call())
        if RESULTS[name] == "tuple[Tensor, ...]":
            assert {*found.removeprefix("tuple[").removesuffix("]").split(", ")} == {"Tensor"}
        else:
            assert found == RESULTS[name], name
    assert kind_of(tg.linalg.svd(SQUARE, compute_uv=False)) == "Tensor"
    assert kind_of(tg.linalg.svd(SQUARE)) == "SVDResult"


def test_the_package_says_that_it_is_typed():
    assert (Path(tg.__file__).parent / "py.typed").exists()
