"""Random programs: gradients, tangents and second derivatives beside differences."""

import atexit
import collections
import contextlib
import copy
import importlib.util
import itertools
import pathlib
import random
import sys
import tempfile
import traceback

import hypothesis as hp
import numpy as np
import pytest
from numba.core.errors import NumbaError
from programs import Author, programs
from reference import Reference, Unsmooth

import tapegrad as tg

FOLDER = tempfile.TemporaryDirectory(prefix="programs")
atexit.register(FOLDER.cleanup)
NUMBERS = itertools.count()


class Wrong(AssertionError):
    """A derivative, a value or an argument after the call is not what it should be."""


class Invalid(Exception):
    """Numba does not compile the program: the fault is of this generator."""


def load(source, name):
    """A module of a text, in a file so that its source can be read."""
    file = pathlib.Path(FOLDER.name, name + ".py")
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(what, got, expected, rtol, scale=0.0):
    """Raise `Wrong` where numbers differ by more than rtol of them, or of the scale."""
    expected = np.asarray(expected, np.float64)
    if np.shape(got) != expected.shape:
        raise Wrong(f"{what}: got shape {np.shape(got)}, expected {expected.shape}")
    error = np.abs(np.asarray(got) - expected)
    if not np.all(error <= rtol * np.maximum(np.abs(expected), scale)):
        raise Wrong(f"{what}:\n     got {got!r}\nexpected {expected!r}")


class Comparison:
    """One program under test, in plain numba and in the reference."""

    def __init__(self, program):
        self.program = program
        self.reference = Reference(program.source)
        self.number = next(NUMBERS)

    def smooth(self, most=3):
        """Points at which differences are good, with gradients."""
        found = []
        for point in range(most):
            args = self.program.arguments(point)
            with contextlib.suppress(Unsmooth):
                found.append((point, self.reference.gradient(args, self.program.argnums)))
        return found

    def check(self, points, second=False):
        """Compare everything; the caller sees TransformError where the program is refused."""
        plain = load(self.program.source.replace("@tg.njit", "@njit"), f"plain_{self.number}").f
        function = load(self.program.source, f"program_{self.number}").f
        argnums = self.program.argnums
        points = [point for point in points if self.agrees(plain, point[0])]
        if not points:
            raise Unsmooth("numba and Python differ")
        gradient = tg.value_and_grad(function, argnums=argnums)
        for point, expected in points:
            self.first_order(plain, gradient, point, expected)
        forward = tg.jvp(function, argnums=argnums)
        for point, expected in points:
            self.tangent(plain, forward, point, expected)
        if second:
            argnum = argnums[self.program.seed % len(argnums)]
            product = tg.hvp(function, argnums=argnum)
            for point, _ in points:
                self.second_order(product, point, argnum)

    def agrees(self, plain, point):
        """Whether numba computes what Python does: not where an array is read while written."""
        args = self.program.arguments(point)
        try:
            results = [plain(*args), *args]
        except NumbaError as error:
            raise Invalid(str(error)) from error
        value, after, _ = self.reference.run(self.program.arguments(point))
        return all(
            np.allclose(got, np.asarray(expected, np.float64), 1e-10, 1e-10)
            for got, expected in zip(results, [value, *after], strict=True)
        )

    def first_order(self, plain, gradient, point, expected):
        args, after = self.program.arguments(point), self.program.arguments(point)
        value = plain(*after)
        got, gradients = gradient(*args)
        same(f"value at point {point}", got, value, 1e-12, 1.0)
        self.arguments_after("gradient", point, args, after)
        scale = max(1.0, *(np.max(np.abs(e), initial=0.0) for e in expected))
        for argnum, g, e in zip(self.program.argnums, gradients, expected, strict=True):
            same(f"gradient of argument {argnum} at point {point}", g, e, 1e-6, 1e-2 * scale)
        again = gradient(*self.program.arguments(point))[1]
        for argnum, g, e in zip(self.program.argnums, again, gradients, strict=True):
            same(f"second call: gradient of argument {argnum} at point {point}", g, e, 0.0)

    def arguments_after(self, what, point, args, after):
        for k, (got, expected) in enumerate(zip(args, after, strict=True)):
            same(f"argument {k} after the {what} at point {point}", got, expected, 1e-12, 1.0)

    def tangent(self, plain, forward, point, expected):
        args, after = self.program.arguments(point), self.program.arguments(point)
        tangents = self.program.tangents(point)
        value = plain(*after)
        # a function that writes to its arguments may write to their tangents as well
        got, slope = forward(*args, *copy.deepcopy(list(tangents.values())))
        same(f"value of jvp at point {point}", got, value, 1e-12, 1.0)
        self.arguments_after("jvp", point, args, after)
        wanted = sum(np.sum(t * e) for t, e in zip(tangents.values(), expected, strict=True))
        scale = max(1.0, *(np.max(np.abs(e), initial=0.0) for e in expected))
        same(f"jvp at point {point}", slope, wanted, 1e-6, 1e-2 * scale)

    def second_order(self, product, point, argnum):
        args, tangent = self.program.arguments(point), self.program.tangents(point)[argnum]
        try:
            expected = self.reference.hessian_vector(args, argnum, tangent)
        except Unsmooth:
            return
        got = product(*args, copy.deepcopy(tangent))
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        same(f"hvp of argument {argnum} at point {point}", got, expected, 1e-6, 1e-1 * scale)


def outcome_of(program, second):
    """What became of a program, in a word, and in full where it failed."""
    comparison = Comparison(program)
    points = comparison.smooth()
    if not points:
        return "discarded", ""
    try:
        comparison.check(points, second)
    except Unsmooth:
        return "discarded", ""
    except tg.TransformError as error:
        return "refused", str(error)
    except Invalid as error:
        return "invalid", str(error)
    except Wrong as error:
        return "wrong", str(error)
    except Exception:
        return "failed", traceback.format_exc()
    return "right", ""


def compare(examples, second):
    """Compare so many programs; few of them may be refused."""
    counts = collections.Counter()

    @hp.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hp.HealthCheck),
    )
    @hp.given(programs())
    def run(program):
        outcome, text = outcome_of(program, second)
        counts[outcome] += 1
        assert outcome not in ("wrong", "failed", "invalid"), f"{text}\n{program}"
        hp.assume(outcome == "right")

    run()
    assert counts["right"] >= examples
    # of so few programs one proves nothing
    assert counts["refused"] <= 1 + 0.15 * counts["right"], counts


def test_first_order():
    compare(12, second=False)


def test_second_order():
    compare(4, second=True)


KNOWN = """
import numpy as np

def g(u, a):
    a[0] *= u
    return a[0] + u * u

def f(x, a):
    total = 0
    for e in a:
        total += g(x, a) * e
    if x > 0.5:
        return np.sin(total)
    return total
"""


def test_reference_on_a_known_derivative():
    """f = sin(a0 (x a0 + x^2) + a1 (x^2 a0 + x^2)): the first element is read before the call."""
    x, a = 0.7, np.array([0.3, -0.4])
    total = a[0] * (x * a[0] + x**2) + a[1] * (x**2 * a[0] + x**2)
    by_x = a[0] * (a[0] + 2 * x) + a[1] * (2 * x * a[0] + 2 * x)
    by_a = np.array([2 * x * a[0] + x**2 + a[1] * x**2, x**2 * a[0] + x**2])
    reference = Reference(KNOWN)
    value, after, _ = reference.run([x, a])
    np.testing.assert_allclose(float(value), np.sin(total), 1e-14)
    np.testing.assert_allclose(after[1].astype(float), [a[0] * x**2, a[1]], 1e-14)
    g_x, g_a = reference.gradient([x, a], (0, 1))
    np.testing.assert_allclose(float(g_x), np.cos(total) * by_x, 1e-9)
    np.testing.assert_allclose(g_a.astype(float), np.cos(total) * by_a, 1e-9)
    slope = reference.directional([x, a], {0: 2.0, 1: np.array([1.0, -1.0])})
    np.testing.assert_allclose(float(slope), float(2 * g_x + g_a[0] - g_a[1]), 1e-9)
    v = np.array([0.5, 2.0])
    second = np.cos(total) * np.array([[2 * x, x**2], [x**2, 0]])
    second -= np.sin(total) * np.outer(by_a, by_a)
    product = reference.hessian_vector([x, a], 1, v)
    np.testing.assert_allclose(product.astype(float), second @ v, 1e-9)


def test_reference_refuses_a_point_near_a_branch():
    with pytest.raises(Unsmooth, match="branch"):
        Reference(KNOWN).gradient([0.50001, np.array([0.3, -0.4])], (0,))


def test_programs_run():
    """Python runs what is generated, and differences judge most of it."""
    judged = 0
    for seed in range(150):
        comparison = Comparison(Author(random.Random(seed).randrange).module())
        judged += bool(comparison.smooth())
    assert judged > 100
