"""A program's derivatives beside differences."""

import contextlib
import copy
import importlib.util
import itertools
import os
import pathlib
import sys
import tempfile
import traceback

import numba
import numpy as np
from numba.core.errors import NumbaError

import tapegrad as tg

from .interpret import Interpreter, result_type, types_only
from .reference import Reference, Unsmooth

NUMBERS = itertools.count()


class Wrong(AssertionError):
    """A derivative, a value or an argument after the call is not what it should be."""


class Invalid(Exception):
    """Numba does not compile the program: the fault is of the writer."""


class Folder:
    """Where programs are written, for their sources to be read; it goes with the process."""

    def __init__(self):
        self.made = None

    def file(self, name):
        if self.made is None:
            self.made = tempfile.TemporaryDirectory(prefix="programs")
        return pathlib.Path(self.made.name, name)


FOLDER = Folder()


def load(source):
    """A module of a text, in a file."""
    name = f"random_program_{os.getpid()}_{next(NUMBERS)}"
    file = FOLDER.file(name + ".py")
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
    error = np.abs(np.asarray(got, np.float64) - expected)
    if not np.all(error <= rtol * np.maximum(np.abs(expected), scale)):
        raise Wrong(f"{what}:\n     got {got!r}\nexpected {expected!r}")


class Comparison:
    """One program under test, in plain numba and in the reference.

    Parameters
    ----------
    program : Program
    compiled : bool
        Compile the derivatives; else the generated code is run by Python.
    typed : bool
        Have numba find the types of what is run by Python.
    """

    def __init__(self, program, compiled=True, typed=False):
        self.program = program
        self.compiled = compiled
        self.typed = typed
        self.reference = Reference(program.source)
        self.exact, self.close = (1e-5, 1e-3) if program.single else (1e-9, 1e-6)

    def smooth(self, most=2):
        """Points at which differences are good, with the slope along each argument's tangent."""
        found = []
        for point in range(most + 1):
            with contextlib.suppress(Unsmooth):
                found.append((point, self.slopes(point)))
            if len(found) == most:
                break
        return found

    def slopes(self, point):
        tangents = self.program.tangents(point)
        args = self.program.arguments(point)
        return {k: self.reference.directional(args, {k: t}) for k, t in tangents.items()}

    def function(self):
        """The program's function, in a module of its own."""
        return load(self.program.source).f

    def usable(self, derivative):
        if self.compiled:
            return derivative
        interpreter = Interpreter()
        run = interpreter.function(derivative)

        def typed(*args):
            found = run(*args)
            kinds = tuple(map(numba.typeof, args))
            result_type(interpreter.entry(derivative, kinds).py_func, kinds)
            return found

        return typed if self.typed else run

    def typing(self):
        """What holds while derivatives are made."""
        return contextlib.nullcontext() if self.compiled else types_only()

    def check(self, points, forward=True, second=False):
        """Compare everything; the caller sees TransformError where the program is refused."""
        function = self.function()
        argnums = self.program.argnums
        with self.typing():
            gradient = self.usable(tg.value_and_grad(function, argnums=argnums))
            for point, slopes in points:
                self.first_order(gradient, point, slopes)
            if forward:
                pushed = self.usable(tg.jvp(function, argnums=argnums))
                for point, slopes in points:
                    self.tangent(pushed, point, slopes)
            if second:
                argnum = argnums[self.program.seed % len(argnums)]
                product = self.usable(tg.hvp(function, argnums=argnum))
                for point, _ in points:
                    self.second_order(product, point, argnum)

    def agrees(self, point):
        """Whether numba computes what Python does: not where an array is read while written."""
        plain = load(self.program.source.replace("@tg.njit", "@njit")).f
        args = self.program.arguments(point)
        try:
            results = [plain(*args), *args]
        except (NumbaError, NotImplementedError) as error:  # the second of its code generator
            raise Invalid(str(error)) from error
        value, after, _ = self.reference.run(self.program.arguments(point))
        close = 1e-4 if self.program.single else 1e-10
        return all(
            np.allclose(got, np.asarray(expected, np.float64), close, close)
            for got, expected in zip(results, [value, *after], strict=True)
        )

    def value(self, what, point, got, args):
        """Compare the value, and the arguments as the call leaves them."""
        value, after, _ = self.reference.run(self.program.arguments(point))
        same(f"value of the {what} at point {point}", got, value, self.exact, 1.0)
        for k, (one, other) in enumerate(zip(args, after, strict=True)):
            same(f"argument {k} after the {what} at point {point}", one, other, self.exact, 1.0)

    def first_order(self, gradient, point, slopes):
        args = self.program.arguments(point)
        got, gradients = gradient(*args)
        self.value("gradient", point, got, args)
        found = dict(zip(self.program.argnums, gradients, strict=True))
        for k, tangent in self.program.tangents(point).items():
            if np.shape(found[k]) != np.shape(tangent):
                raise Wrong(f"gradient of argument {k}: shape {np.shape(found[k])}")
        # an argument of many numbers has one slope, the tangent being random
        scale = max(1.0, *(float(np.abs(slope)) for slope in slopes.values()))
        for k, tangent in self.program.tangents(point).items():
            slope = np.sum(np.asarray(found[k], np.float64) * tangent)
            what = f"gradient of argument {k} at point {point}, times a tangent"
            same(what, slope, slopes[k], self.close, 0.1 * scale)
        again = gradient(*self.program.arguments(point))[1]
        for k, g, e in zip(self.program.argnums, again, gradients, strict=True):
            same(f"second call: gradient of argument {k} at point {point}", g, e, 0.0)

    def tangent(self, pushed, point, slopes):
        args = self.program.arguments(point)
        tangents = self.program.tangents(point)
        # a function that writes to its arguments may write to their tangents as well
        got, slope = pushed(*args, *copy.deepcopy(list(tangents.values())))
        self.value("jvp", point, got, args)
        scale = max(1.0, *(float(np.abs(slope)) for slope in slopes.values()))
        same(f"jvp at point {point}", slope, sum(slopes.values()), self.close, 0.1 * scale)

    def second_order(self, product, point, argnum):
        """The Hessian between two directions."""
        args, tangent = self.program.arguments(point), self.program.tangents(point)[argnum]
        rng = np.random.default_rng([self.program.seed, point, 1])
        other = rng.uniform(-1, 1, np.shape(tangent)).round(2)
        try:
            expected = self.reference.mixed(args, argnum, tangent, other)
        except Unsmooth:
            return
        got = np.sum(np.asarray(product(*args, copy.deepcopy(tangent)), np.float64) * other)
        scale = max(1.0, float(np.abs(expected)))
        close = 10 * self.close
        same(f"hvp of argument {argnum} at point {point}", got, expected, close, 0.1 * scale)

    def modes_agree(self):
        """Compare tangent and gradient times a tangent, where differences judge nothing."""
        function = self.function()
        argnums, tangents = self.program.argnums, self.program.tangents(0)
        with self.typing():
            gradient = self.usable(tg.value_and_grad(function, argnums=argnums))
            _, found = gradient(*self.program.arguments(0))
            pushed = self.usable(tg.jvp(function, argnums=argnums))
            given = copy.deepcopy(list(tangents.values()))
            _, slope = pushed(*self.program.arguments(0), *given)
        total = sum(np.sum(t * g) for t, g in zip(tangents.values(), found, strict=True))
        scale = max(1.0, *(float(np.max(np.abs(g), initial=0.0)) for g in found))
        if np.isfinite(total) and np.isfinite(slope):
            with contextlib.suppress(Wrong):
                same("gradient times tangents beside jvp", total, slope, self.close, scale)
                return "unsmooth", ""
            return "disagree", f"gradient times tangents: {total!r}, jvp: {slope!r}"
        return "unsmooth", ""


def outcome_of(
    program, second=False, compiled=True, forward=True, sure=True, cross=False, typed=False
):
    """What became of a program, in a word, and in full where it failed.

    "right", "refused", "unsmooth" (differences cannot judge it), "different" (numba and Python
    compute different values), "invalid" (numba does not take it), "wrong", "failed" (an exception
    that is no refusal). Without `sure` a wrong program may also be one where numba itself computes
    something else than Python, which takes time to find out. With `cross`, forward and reverse mode
    are compared with each other where differences judge nothing: "disagree" may be a kink at which
    both are right.
    """
    try:
        comparison = Comparison(program, compiled, typed)
        points = comparison.smooth()
    except Exception:
        return "invalid", traceback.format_exc()
    if not points and not cross:
        return "unsmooth", ""
    try:
        if not points:
            return comparison.modes_agree()
        try:
            comparison.check(points, forward, second)
            return "right", ""
        except tg.TransformError as error:
            if "numba finds no types" in str(error):
                comparison.agrees(points[0][0])  # which raises Invalid if the program is to blame
            raise
        except Exception:
            if not sure:
                raise
            # is it our fault? Only now the plain function is compiled
            agreeing = [point for point in points if comparison.agrees(point[0])]
            if not agreeing:
                return "different", ""
            if len(agreeing) == len(points):
                raise
            comparison.check(agreeing, forward, second)
            return "right", ""
    except tg.TransformError as error:
        return "refused", str(error)
    except Invalid as error:
        return "invalid", str(error)
    except Wrong as error:
        return "wrong", str(error)
    except Exception:
        return "failed", traceback.format_exc()
