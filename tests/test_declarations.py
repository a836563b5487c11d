"""The examples of docs/architecture.md in a copy of the package: what follows from declarations."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tapegrad

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```python\n# (tapegrad/ops/\S+)\n(.*?)```", re.DOTALL)
IN_COMPILED = re.compile(r"```python\n# (tapegrad/transform/\S+)\n(.*?)```", re.DOTALL)

PROGRAM = '''
import numpy as np
import scipy.special
import tapegrad as tg
from numba import njit
from tapegrad.ops.table.op import TABLE

X = np.array([[0.3, -0.4, 1.2], [0.7, 0.1, -0.9]])
SQUARES = np.array([[[2.0, 0.3], [0.1, 1.0]], [[1.0, -0.4], [0.2, 3.0]]])


@tg.njit
def compiled(x):
    return tg.log_expit(x)


def batches(name, *args, **parameters):
    """A batch of two, beside its items."""
    op = TABLE[name]
    wide = [np.stack([a, 1.1 * a]) for a in args]
    found = op.batch(wide, [True] * len(wide), {**op.parameters, **parameters})
    for k in range(2):
        np.testing.assert_allclose(found[k], op(*[w[k] for w in wide], **parameters))


def sparsity(name, *args, **parameters):
    """Which elements depend on which, beside differences."""
    op = TABLE[name]
    for k, argument in enumerate(op.arguments):
        units = np.eye(args[k].size).reshape(-1, *args[k].shape)
        moved = [[*args[:k], args[k] + 1e-3 * unit, *args[k + 1 :]] for unit in units]
        changes = [np.ravel(op(*m, **parameters) - op(*args, **parameters)) for m in moved]
        found = np.zeros((changes[0].size, len(units)), bool)
        found[tuple(op.sparsity(argument, args, {**op.parameters, **parameters}))] = True
        np.testing.assert_array_equal(found | (np.stack(changes, axis=1) != 0.0), found)
        assert op.kind == "opaque" or not found.all() or found.size == len(units)


def tangents(name, *args, **parameters):
    """A tangent in forward mode, beside differences."""
    f = getattr(tg, name)
    along = [np.cos(np.arange(a.size)).reshape(a.shape) for a in args]
    value, tangent = tg.jvp(lambda *a: f(*a, **parameters), range(len(args)))(*args, *along)
    h = 1e-6
    ahead, behind = (
        TABLE[name](*[a + s * t for a, t in zip(args, along)], **parameters) for s in (h, -h)
    )
    np.testing.assert_allclose(tangent, (ahead - behind) / (2.0 * h), rtol=1e-6, atol=1e-8)


for name, args, parameters in [
    ("log_expit", [X], {}),
    ("sum_of_squares", [X], {"axis": 1}),
    ("steps", [X], {"axis": 0}),
    ("all_products", [X, X[0]], {}),
    ("logabsdet", [SQUARES], {}),
]:
    f = getattr(tg, name)
    expected = TABLE[name](*args, **parameters)
    np.testing.assert_allclose(f(*map(tg.tensor, args), **parameters).numpy(), expected)
    tg.testing.check_grads(lambda *a: f(*a, **parameters), args, order=2)
    tangents(name, *args, **parameters)
    batches(name, *args, **parameters)
    sparsity(name, *args, **parameters)

np.testing.assert_allclose(tg.log_expit(X), scipy.special.log_expit(X))
np.testing.assert_allclose(TABLE["sum_of_squares"](X), np.sum(X * X))
np.testing.assert_allclose(TABLE["steps"](X), np.diff(X))
np.testing.assert_allclose(TABLE["all_products"](X, X), np.multiply.outer(X, X))
np.testing.assert_allclose(TABLE["logabsdet"](SQUARES), np.log(abs(np.linalg.det(SQUARES))))

# a composite
np.testing.assert_allclose(tg.rms(tg.tensor(X), axis=1).numpy(), np.sqrt(np.mean(X * X, axis=1)))
tg.testing.check_grads(tg.rms, [X], order=2)

# an elementwise op is a method, one that works in place, and known to compiled functions
t = tg.tensor(X)
np.testing.assert_allclose(t.log_expit().numpy(), tg.log_expit(X))
t.log_expit_()
np.testing.assert_allclose(t.numpy(), tg.log_expit(X))
assert tg.grad(compiled)(0.0) == 0.5
np.testing.assert_allclose(tg.grad(tg.grad(compiled))(0.0), -0.25)


# all of them are known to compiled functions, with derivatives of every order
@tg.njit
def in_compiled(x, s):
    a = tg.sum_of_squares(x, axis=1)
    b = tg.steps(x, axis=0)
    c = tg.all_products(a, b)
    d = tg.rms(x, axis=1)
    return (c * c).sum() * tg.logabsdet(s) + (a * d).sum()


def in_python(x, s):
    a, b, d = tg.sum_of_squares(x, axis=1), tg.steps(x, axis=0), tg.rms(x, axis=1)
    c = tg.all_products(a, b)
    return (c * c).sum() * tg.logabsdet(s) + (a * d).sum()


args = X, SQUARES[0]
np.testing.assert_allclose(in_compiled(*args), in_python(*map(tg.tensor, args)).item())
for one, two in zip(tg.grad(in_compiled, (0, 1))(*args), tg.grad(in_python, (0, 1))(*args)):
    np.testing.assert_allclose(one, two)
along = np.cos(X), np.sin(SQUARES[0])
np.testing.assert_allclose(
    tg.jvp(in_compiled, (0, 1))(*args, *along)[1], tg.jvp(in_python, (0, 1))(*args, *along)[1]
)
for k in range(2):
    product = tg.hvp(in_compiled, k)(*args, along[k])
    np.testing.assert_allclose(product, tg.hvp(in_python, k)(*args, along[k]))
print("all right")
'''

IN_COMPILED_PROGRAM = """
import numpy as np
import tapegrad as tg

X = np.array([0.3, np.nan, -0.4, 1.2])


@tg.njit
def f(x):
    return np.nansum(x) ** 3


try:
    gradient = tg.grad(f)(X)
except TypeError as error:
    print(error)
else:
    total, there, along = np.nansum(X), ~np.isnan(X), np.cos(np.arange(4.0))
    np.testing.assert_allclose(gradient, 3.0 * total**2 * there)
    np.testing.assert_allclose(tg.jvp(f)(X, along)[1], 3.0 * total**2 * (there @ along))
    np.testing.assert_allclose(tg.hvp(f)(X, along), 6.0 * total * (there @ along) * there)
    print("all right")
"""


def examples(pattern):
    return pattern.findall((ROOT / "docs" / "architecture.md").read_text())


def run(folder, program):
    # machine code of the package itself may be shared: its key is made of its sources
    path = folder / "program.py"
    path.write_text(program)
    env = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_OPT": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", path], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, to which declarations are added."""
    shutil.copytree(
        Path(tapegrad.__file__).parent,
        tmp_path / "tapegrad",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path


def test_an_op_is_one_declaration_in_one_file(copied):
    found = examples(BLOCK)
    kinds = {
        ast.unparse(node.decorator_list[0]).partition("(")[0]
        for _, text in found
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    assert kinds >= {"composite", "elementwise", "reduction", "linear", "bilinear", "opaque"}
    for name, text in found:
        with (copied / name).open("a") as file:
            file.write(f"\n\n{text}")
    assert run(copied, PROGRAM) == "all right"


def without(source, names):
    """The source of a module without these functions."""
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            lines = source.splitlines(keepends=True)
            start = min(d.lineno for d in [node, *node.decorator_list]) - 1
            source = "".join(lines[:start] + lines[node.end_lineno :])
    return source


def test_a_function_of_arrays_in_compiled_functions(copied):
    """The package without what the example declares refuses the function; with it, it does not."""
    [(name, text)] = examples(IN_COMPILED)
    declared = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    path = copied / name
    taken_out = without(path.read_text(), declared).replace('"nansum", ', "")
    path.write_text(taken_out)
    assert run(copied, IN_COMPILED_PROGRAM).startswith("cannot differentiate np.nansum (")
    path.write_text(f"{taken_out}\n\n{text}")
    assert run(copied, IN_COMPILED_PROGRAM) == "all right"


def test_files_that_documents_name():
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]:
        for name in re.findall(
            r"`((?:tapegrad|tests|benchmarks|examples)/[\w/.]+)`", page.read_text()
        ):
            assert (ROOT / name).exists(), (page.name, name)
