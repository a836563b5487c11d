"""Derivatives that are spelt out in recorded functions: every op of the table, as op by op."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.replay import derivatives

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from cases import ALL, names_of, with_given
from interpreted import assert_equal, interpret

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, np.inf, -np.inf, np.nan, 1e-310])

# ops whose rules ask for values, or compute what has no compiled form
LEFT = {
    "add_at", "cofactor", "concatenate", "det", "eig", "eigh", "erfcx_derivative",
    "euclidean_norm", "expm", "finite_max", "full_svd", "gamma_sample", "ie_ratio",
    "larger_of_ties", "log_gamma_sample", "log_gamma_slope", "logm", "max", "min", "moved", "pinv",
    "polygamma",
    "put_view", "qr", "rounded", "scatter_add", "sinc_derivative", "slogdet", "sparse_product",
    "sqrtm", "thin_svd", "ties_of_larger", "undefined",
}  # fmt: skip
TRANSFORMS = ["value_and_grad", "jvp", "hvp", "grad of grad"]


INFINITE = {"arccos", "arccosh", "arcsin", "arctanh"}  # second derivatives, nan in another order


class LeftError(Exception):
    """Raised where a derivative is left as it is: it would be compiled."""


@pytest.fixture
def _interpreted(monkeypatch):
    function_of = derivatives._function_of

    def checked(node):
        found = function_of(node)
        if found is None:
            raise LeftError
        return found

    monkeypatch.setattr(derivatives, "_function_of", checked)
    interpret(monkeypatch)


def of_leaves(op, args, parameters):
    """Return a function of the arrays among the arguments of an op, and these."""
    leaves = [a for arg in args for a in (arg if type(arg) is list else [arg])]

    def function(*values):
        left = [*values]
        given = [[left.pop(0) for _ in arg] if type(arg) is list else left.pop(0) for arg in args]
        found = op.public(*with_given(op, given, lambda other: other.public), **parameters)
        total = 0.0
        for part in found if isinstance(found, tuple) else [found]:
            total = total + weighted(part)
        return total

    return function, leaves


def weighted(x):
    """Return a sum of elements with weights."""
    return tg.sum(x * np.cos(np.arange(x.size)).reshape(x.shape))


def transformed(transform, function, numbers):
    """Return a function that computes a derivative with respect to some arguments."""
    if transform == "value_and_grad":
        return tg.value_and_grad(function, numbers)
    if transform == "jvp":
        return lambda *args: tg.jvp(function, numbers)(*args, *(np.cos(args[k]) for k in numbers))
    if transform == "hvp":
        return lambda *args: tg.hvp(function, numbers[0])(*args, np.cos(args[numbers[0]]))

    def along(*args):
        return sum(map(weighted, tg.grad(function, numbers)(*args)))

    return tg.grad(along, numbers)


def compare(transform, op, args, parameters):
    function, leaves = of_leaves(op, args, parameters)
    floats = [isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in leaves]
    numbers = tuple(np.flatnonzero(floats).tolist())
    if not numbers:
        pytest.skip("no arrays of floats")
    f = transformed(transform, function, numbers)
    with np.errstate(all="ignore"):
        try:
            expected = f(*map(tg.as_tensor, leaves))
        except (TypeError, ValueError, RuntimeError):
            pytest.skip("no such derivative")
        try:
            found = tg.jit(lambda *args: f(*args))(*leaves)
        except LeftError:
            return False
    if transform == "hvp" and op.name in INFINITE:
        found = np.where(np.isfinite(expected), found, expected)
    assert_equal(found, expected, 1e-10, 1e-11)
    return True


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.filterwarnings("ignore::tapegrad.DetachedWarning")
class TestRules:
    @pytest.mark.parametrize("transform", TRANSFORMS)
    @pytest.mark.parametrize("case", ALL, ids=names_of)
    def test_every_op(self, case, transform):
        name, args, parameters = case
        if not compare(transform, TABLE[name], args, parameters):
            assert name in LEFT

    @pytest.mark.parametrize("transform", TRANSFORMS)
    @pytest.mark.parametrize("name", [n for n, op in TABLE.items() if isinstance(op, Elementwise)])
    def test_special_points(self, name, transform):
        op = TABLE[name]
        args = [np.roll(np.resize(SPECIAL, len(SPECIAL) ** 2), k) for k in range(len(op.arguments))]
        args = [a != 0.0 if n in op.truths else a for n, a in zip(op.arguments, args, strict=True)]
        args = args[: len(args) - len(op.given)]
        assert compare(transform, op, args, {}) or name in LEFT
