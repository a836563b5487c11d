"""Derivatives are compared with what the source of the function says, without rounding."""

import ast
import fractions
import math

import numpy as np
import pytest
from numba import types

import tapegrad as tg
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform import derivatives as derivatives_of
from tapegrad.transform import generation
from tapegrad.transform.equivalence import derivatives
from tapegrad.transform.equivalence.comparison import Comparison
from tapegrad.transform.equivalence.field import PRIME, RUN, Number, UnfollowedError, root, unknown
from tapegrad.transform.equivalence.meanings import defined
from tapegrad.transform.equivalence.slopes import slope
from tapegrad.transform.errors import UnconfirmedWarning
from tapegrad.transform.generated import parsed_functions
from tapegrad.transform.protocols import Returns
from tests.transform.compared_programs import additions, decays, products, what_is_compared

pytestmark = pytest.mark.texts

FLOAT, INT, COMPLEX = types.float64, types.int64, types.complex128
VECTOR, MATRIX = types.Array(FLOAT, 1, "C"), types.Array(FLOAT, 2, "C")


# -- slopes ----------------------------------------------------------------------------------


def moved(function, *points):
    """The slope of a function in each of its arguments, by a step of the prime."""
    found = []
    for place in range(len(points)):
        values = []
        for step in (0, PRIME):
            RUN.begin(1, 10**6, slope)
            given = [Number(x + step * (k == place)) for k, x in enumerate(points)]
            values.append(function(*given).value)
        assert (values[1] - values[0]) % PRIME == 0
        found.append((values[1] - values[0]) // PRIME % PRIME)
    RUN.begin(1, 10**6)
    return found


def test_slopes_of_rational_functions_are_exact():
    def rational(x, y):
        return (x * x - 3 * y) / (x + y) + 2 / x**3

    x, y = fractions.Fraction(7), fractions.Fraction(5)
    by_x = (2 * x * (x + y) - (x * x - 3 * y)) / (x + y) ** 2 - 6 / x**4
    by_y = (-3 * (x + y) - (x * x - 3 * y)) / (x + y) ** 2
    exact = [f.numerator * pow(f.denominator, -1, PRIME) % PRIME for f in (by_x, by_y)]
    assert moved(rational, 7, 5) == exact


def test_slopes_of_random_functions_are_their_partials():
    x = Number(123456789)
    RUN.begin(1, 10**6)
    assert moved(lambda x: unknown("sin", x), x.value) == [unknown("cos", x).value]
    assert moved(lambda x: unknown("exp", x), x.value) == [unknown("exp", x).value]
    assert moved(lambda x: x**0.5, x.value) == [(1 / (2 * root(x))).value]
    assert moved(lambda x: abs(-x * 3), x.value) == [3]
    assert moved(lambda x: unknown("floor", x), x.value) == [0]
    assert moved(lambda x: x % 3.5, x.value) == [1]
    outer = unknown("sin", x * x)
    assert moved(lambda x: unknown("log", unknown("sin", x * x)), x.value) == [
        (1 / outer * unknown("cos", x * x) * 2 * x).value
    ]


def test_every_op_with_partials_has_a_slope():
    """Except for those whose partials call functions that have no meaning here."""
    followed = []
    for op in TABLE.values():
        if isinstance(op, Elementwise) and {*op.rules} == {*op.arguments}:
            try:
                moved(lambda *x, op=op: unknown(op.name, *x), *range(11, 11 + len(op.arguments)))
                followed.append(op.name)
            except UnfollowedError:
                pass
    assert {"arctan2", "erf", "hypot", "logaddexp", "power", "tanh"} <= {*followed}
    assert len(followed) > 60


# -- claims ----------------------------------------------------------------------------------


@tg.njit
def helper(x, factor=2.0):
    while x.size > 3:
        x = x[1:]
    return factor * x * x[::-1]


def writes(x, rates, n):
    x[1:] *= rates[0]
    z = helper(x) + helper(rates, factor=0.5)
    w = (x[0] + 1j * rates[1]) ** n
    return np.sum(z) + w.real * np.abs(w) + np.exp(w).imag


def pair(x, rates, n):
    return np.sin(x) * rates, np.sum(x) ** n


KINDS = (VECTOR, VECTOR, INT)
DERIVATIVES = {
    "gradient": (lambda f: tg.grad(f), ()),
    "values and gradients": (lambda f: tg.value_and_grad(f, (0, 1)), ()),
    "tangent": (lambda f: tg.jvp(f, (0, 1)), (VECTOR, VECTOR)),
    "tangent of the gradient": (lambda f: tg.jvp(tg.grad(f, 0), 1), (VECTOR,)),
    "gradient of a tangent": (lambda f: tg.grad(lambda_of(f)), ()),
}


def lambda_of(f):
    @tg.njit
    def last(x, rates, n):
        return f(x, rates, n) ** 2

    return last


def comparisons(transform, kinds, monkeypatch, folder):
    """What is compared with the source while modules are generated, with the results."""
    return what_is_compared(transform, kinds, "check", monkeypatch, folder)


@pytest.mark.parametrize("function", [decays, products, writes])
@pytest.mark.parametrize(("transform", "added"), DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_are_those_of_the_source(transform, added, function, monkeypatch, tmp_path):
    found = comparisons(transform(tg.njit(function)), (*KINDS, *added), monkeypatch, tmp_path)
    assert found
    for _, result in found:
        assert result.difference == ""
        assert result.runs >= 2, result.reason


def test_cotangents_of_several_results(monkeypatch, tmp_path):
    pullback = derivatives_of.pullback(tg.njit(pair), (0, 1), 2, Returns.GRADIENTS)
    ((_, result),) = comparisons(pullback, (*KINDS, VECTOR, FLOAT), monkeypatch, tmp_path)
    assert (result.difference, result.reason) == ("", "")
    assert result.runs >= 2


@pytest.mark.parametrize("transform", [tg.grad, tg.value_and_grad])
@pytest.mark.parametrize("function", [decays, products])
def test_no_addition_can_be_left_out(function, transform, monkeypatch, tmp_path):
    """Neither one of the cotangents nor, if it is returned, one of the value."""
    (((text, lookup, entry, *given), _),) = comparisons(
        transform(tg.njit(function), (0, 1)), KINDS, monkeypatch, tmp_path
    )
    tree = ast.parse(text)
    (gradient,) = [f for f in tree.body if f.name == entry]
    missed, count = [], 0
    for block, place in list(additions(gradient)):
        left_out, block[place] = block[place], ast.Pass()
        count += 1
        changed = parsed_functions(ast.unparse(ast.fix_missing_locations(tree)))
        if not derivatives.check(defined(changed, lookup), entry, *given).difference:
            missed.append(ast.unparse(left_out))
        block[place] = left_out
    assert count >= 3
    assert missed == []


def test_a_wrong_derivative_checks_itself(monkeypatch, tmp_path):
    """Also one that the verifier would accept, here because it is not asked."""

    @tg.njit
    def sums(x, y, n):
        total = 0.0
        for i in range(x.size):
            total += np.sin(x[i]) * y[i] ** 2
        return total

    def text_of(functions):
        functions = [*functions]
        for function in functions:
            for block, place in additions(function.tree):
                if isinstance(block[place].target, ast.Subscript):
                    block[place] = ast.Pass()
        return before(functions)

    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    before = generation._text
    monkeypatch.setattr(generation, "_text", text_of)
    monkeypatch.setattr(generation, "verify", lambda *_: None)
    x = np.linspace(0.1, 0.5, 3)
    warned = pytest.warns(UnconfirmedWarning, match="derivative of sums is not confirmed")
    with warned, pytest.raises(tg.VerificationError, match="sums"):
        tg.grad(sums)(x, x, 2)


def test_a_right_derivative_that_is_not_confirmed_runs(monkeypatch, tmp_path):
    @tg.njit
    def sums(x, y, n):
        return np.sum(np.sin(x) * y)

    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    wrong = Comparison(0, "it is not the derivative")
    monkeypatch.setattr(generation, "check", lambda *_: wrong)
    x = np.linspace(0.1, 0.5, 3)
    with pytest.warns(UnconfirmedWarning, match=r"difference quotients"):
        found = tg.grad(sums)(x, x, 2)
    assert np.allclose(found, np.cos(x) * x)


def rounded(x, rates, n):
    """Constants that are rounded if they are computed with floats."""
    s = np.mean(x) / 1.1 + np.sum(rates**0.3) / 3 + np.sum((x / 1.3) ** -1.7) / math.pi
    for _ in range(n):
        s += 0.1 * (0.7 * x[0]) / 7 % 0.3
    return s / 1.7


def roots(x, rates, n):
    return np.linalg.norm(x) / np.sqrt(2.0) + n * abs(x[0]) ** 1.5 % rates[0]


def deviations(x, rates, n):
    return np.std(x) / np.sqrt(rates[0]) ** n


@pytest.mark.parametrize("function", [rounded, roots, deviations])
def test_constants_and_roots(function, monkeypatch, tmp_path):
    for name in ("gradient", "tangent", "tangent of the gradient"):
        transform, added = DERIVATIVES[name]
        kinds = (*KINDS, *added)
        for _, result in comparisons(
            transform(tg.njit(function)), kinds, monkeypatch, tmp_path / name
        ):
            assert result.difference == ""
            assert result.runs >= 1, result.reason


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("contiguous", [np.ascontiguousarray, np.asfortranarray])
def test_writes_to_copies_and_views(contiguous, layout, monkeypatch, tmp_path):
    """Arguments, and arrays that are like them, keep their order."""

    @tg.njit
    def written(x):
        v = contiguous(x)
        v[0, 1] = v[0, 0] * v[1, 0]
        return np.sum(x * x) + np.sum(v)

    kind = types.Array(FLOAT, 2, layout)
    for number, transform in enumerate((tg.value_and_grad, tg.jvp)):
        kinds = (kind, kind)[: number + 1]
        found = comparisons(transform(written), kinds, monkeypatch, tmp_path / str(number))
        assert [(result.difference, result.runs >= 1) for _, result in found] == [("", True)]


# -- what is not compared --------------------------------------------------------------------


def test_a_declared_derivative_is_not_compared(monkeypatch, tmp_path):
    """It is what its author says, not what the source says."""

    @tg.njit
    def clipped(x):
        return min(x, 1.0)

    @clipped.defvjp
    def _(x, z, g):
        return (g,)

    @tg.njit
    def f(x, n):
        return clipped(x) * n

    ((_, result),) = comparisons(tg.grad(f), (FLOAT, INT), monkeypatch, tmp_path)
    assert (result.runs, result.difference) == (0, "")
    assert result.reason == "clipped, whose derivative is declared"
    assert comparisons(tg.grad(clipped), (FLOAT,), monkeypatch, tmp_path) == []


def test_a_constant_has_no_slope(monkeypatch, tmp_path):
    @tg.njit
    def f(x, y):
        return np.sum(tg.stop_gradient(x) * y) + tg.stop_gradient(y[0]) ** 2

    ((_, result),) = comparisons(tg.grad(f, (0, 1)), (VECTOR, VECTOR), monkeypatch, tmp_path)
    assert (result.difference, result.reason) == ("", "")
    assert result.runs >= 2


def test_memory_that_is_not_filled(monkeypatch, tmp_path):
    """What is chosen from it for more than two elements differs from run to run."""

    @tg.njit
    def largest(x):
        y = np.empty_like(x)
        for i in range(2):
            y[i] = np.sin(x[i])
        return np.max(y) * np.sum(x)

    (((text, lookup, *given), _),) = comparisons(
        tg.value_and_grad(largest), (VECTOR,), monkeypatch, tmp_path
    )
    module = defined(parsed_functions(text), lookup)
    found = [derivatives.check(module, *given) for _ in range(8)]
    assert {result.difference for result in found} == {""}
    assert any("not filled" in result.reason for result in found)


def test_arguments_that_are_complex_are_not_compared(monkeypatch, tmp_path):
    @tg.njit
    def f(x):
        return np.abs(x) ** 2

    ((_, result),) = comparisons(tg.grad(f), (COMPLEX,), monkeypatch, tmp_path)
    assert (result.runs, result.reason) == (0, "complex numbers")
