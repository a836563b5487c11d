"""Derivatives of compiled functions beside differences, and beside the same function on Tensors."""

import atexit
import contextlib
import itertools
import os
import pathlib
import tempfile
import zlib

import numpy as np
from random_programs.interpret import Interpreter, types_only

import tapegrad as tg

FOLDER = tempfile.TemporaryDirectory(prefix="constructs")
atexit.register(FOLDER.cleanup)
NUMBERS = itertools.count()

# step and tolerance of differences, by the precision that a function computes in
STEPS = {np.dtype(np.float64): 4e-3, np.dtype(np.float32): 3e-2}
TOLERANCE = {np.dtype(np.float64): 2e-8, np.dtype(np.float32): 3e-3}


def is_real(value):
    """Whether an argument has a derivative: real and complex numbers, arrays, tuples with one."""
    if isinstance(value, tuple):
        return any(map(is_real, value))
    return np.asarray(value).dtype.kind in "fc"


def is_complex(value):
    return np.asarray(value).dtype.kind == "c"


def rebuild(value, items):
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def copied(value):
    """A copy of an argument; arrays keep their strides."""
    if isinstance(value, tuple):
        return rebuild(value, [copied(item) for item in value])
    if not isinstance(value, np.ndarray):
        return value
    span = sum((n - 1) * abs(s) for n, s in zip(value.shape, value.strides)) + value.itemsize
    start = sum((n - 1) * min(s, 0) for n, s in zip(value.shape, value.strides))
    memory = np.zeros(span if value.size else 1, np.uint8)
    found = np.ndarray(value.shape, value.dtype, memory, -start, value.strides)
    found[...] = value
    return found


def flat(value):
    """All real numbers of a value, in one vector of doubles; complex ones are two."""
    if isinstance(value, tuple):
        parts = [flat(item) for item in value]
        return np.concatenate([*parts, np.zeros(0)])
    if not is_real(value):
        return np.zeros(0)
    if is_complex(value):
        return np.array(value, np.complex128).ravel().view(np.float64)
    return np.array(value, np.float64).ravel()


def flat_like(found, like):
    """The numbers of a derivative that belong to real numbers of what it is by, in one vector."""
    if isinstance(like, tuple):
        parts = [flat_like(one, two) for one, two in zip(found, like, strict=True)]
        return np.concatenate([*parts, np.zeros(0)])
    return flat(found) if is_real(like) else np.zeros(0)


def moved(value, step):
    """A value whose real numbers are changed by the elements of a vector."""
    if isinstance(value, tuple):
        items, at = [], 0
        for item in value:
            size = flat(item).size
            items.append(moved(item, step[at : at + size]))
            at += size
        return rebuild(value, items)
    if not is_real(value):
        return value
    if is_complex(value):
        step = np.ascontiguousarray(step).view(np.complex128)
    if isinstance(value, np.ndarray):
        found = copied(value)
        found += step.reshape(value.shape).astype(value.dtype)
        return found
    return type(value)(value + type(value)(step[0]))


def tangent_like(value, seed=0):
    """A tangent of the type of a value."""
    step = np.random.default_rng(seed).uniform(-1, 1, flat(value).size)
    return moved(scaled(value, 0), step)


def scaled(value, factor):
    if isinstance(value, tuple):
        return rebuild(value, [scaled(item, factor) for item in value])
    if isinstance(value, np.ndarray):
        found = copied(value)
        found *= value.dtype.type(factor) if is_real(value) else 1
        return found
    return type(value)(value * factor) if is_real(value) else value


def precision(args):
    """The coarsest type of the real arguments."""
    kinds = [np.asarray(item).dtype for value in args for item in leaves(value) if is_real(item)]
    single = any(kind in (np.float32, np.complex64) for kind in kinds)
    return np.dtype(np.float32 if single else np.float64)


def leaves(value):
    return [x for item in value for x in leaves(item)] if isinstance(value, tuple) else [value]


def slope(evaluate, width, h=4e-3):
    """Derivative at zero of a function of one number: differences of order eight."""
    near = [evaluate(k * h * width) - evaluate(-k * h * width) for k in (1, 2, 3, 4)]
    return (672 * near[0] - 168 * near[1] + 32 * near[2] - 3 * near[3]) / (840 * h)


def differences(f, args, argnum):
    """Gradient of a function with one number as result."""
    size = flat(args[argnum]).size
    h = STEPS[precision(args)]

    def along(unit):
        def evaluate(t):
            new = [copied(a) for a in args]
            new[argnum] = moved(args[argnum], t * unit)
            return float(f(*new))

        return slope(evaluate, 1.0, h)

    return np.array([along(unit) for unit in np.eye(size)])


def directional(f, args, tangents):
    """Derivative of a function with any result, for tangents by position, as a vector."""
    h = STEPS[precision(args)]

    def evaluate(t):
        new = [copied(a) for a in args]
        for position, tangent in tangents.items():
            new[position] = moved(args[position], t * flat(tangent))
        return flat(f(*new))

    return slope(evaluate, 1.0, h)


def close(found, expected, tolerance):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=False)


def same_structure(found, like):
    """A derivative has the structure, shape and type of its argument."""
    if isinstance(like, tuple):
        assert isinstance(found, tuple) and len(found) == len(like)
        for one, two in zip(found, like, strict=True):
            same_structure(one, two)
    elif isinstance(like, np.ndarray):
        assert isinstance(found, np.ndarray)
        if is_real(like):
            assert found.shape == like.shape and found.dtype == like.dtype
    elif is_real(like):
        kinds = (complex, np.complexfloating) if is_complex(like) else (float, np.floating)
        assert isinstance(found, kinds)


def is_compiled(f):
    """Whether this is one of the functions whose derivatives are compiled in every run."""
    code = f.py_func.__code__
    return is_chosen(f"{code.co_name} {' '.join(code.co_names)} {code.co_code.hex()}")


def is_chosen(text):
    """Whether what a text stands for is compiled in every run: one of eight is, or all are."""
    if os.environ.get("TAPEGRAD_TEST_COMPILED"):
        return True
    return zlib.crc32(text.encode()) % 8 == 0


@contextlib.contextmanager
def running(compiled):
    """Gives what makes a derivative callable: nothing to do if compiled, else Python runs it.

    ::

        with running(is_compiled(f)) as run:
            run(tg.grad(f))(0.3)
    """
    if compiled:
        yield lambda function: function
        return
    with types_only():
        yield Interpreter().function


def check(f, *args, compiled=None, **options):
    """Compare the derivatives of a function with differences.

    Generated code is plain Python, and most of it is run by Python here: to compile it takes
    several times as long as all the rest. With ``TAPEGRAD_TEST_COMPILED=1`` everything is compiled.

    Parameters
    ----------
    f
        Made by `tapegrad.njit` or ``numba.njit``.
    *args
        Where.
    compiled : bool, optional
        Compile the derivatives; default: those of one function in eight.
    argnums : tuple of int
        What to differentiate by; default: every argument that holds real numbers.
    tensors : bool
        Compare with the gradient of the Python function on Tensors.
    jvp, hvp : bool
        Check the tangent, and the Hessian times a vector for each argument.

    Returns
    -------
    tuple
        The gradients.
    """
    with running(is_compiled(f) if compiled is None else compiled) as run:
        return compare(f, args, run, **options)


def compare(f, args, run, argnums=None, tensors=False, jvp=True, hvp=False, tolerance=None):
    """Compare derivatives that are called as `run` returns them; see `check`."""
    if argnums is None:
        argnums = tuple(k for k, value in enumerate(args) if is_real(value))
    tolerance = TOLERANCE[precision(args)] if tolerance is None else tolerance
    plain = [copied(a) for a in args]
    expected = run(f)(*plain)
    given = [copied(a) for a in args]
    scalar = not isinstance(expected, (tuple, np.ndarray)) and not is_complex(expected)
    found = ()
    if scalar:
        value, found = run(tg.value_and_grad(f, argnums))(*given)
        close(value, expected, tolerance / 100)
        close_arguments(given, plain)
        assert len(found) == len(argnums)
        for position, gradient in zip(argnums, found, strict=True):
            same_structure(gradient, args[position])
            wanted = differences(run(f), args, position)
            close(flat_like(gradient, args[position]), wanted, tolerance)
    if jvp or not scalar:
        tangents = {k: tangent_like(args[k], k) for k in argnums}
        given = [copied(a) for a in args]
        value, dot = run(tg.jvp(f, argnums))(*given, *map(copied, tangents.values()))
        close(flat(value), flat(expected), tolerance / 100)
        close_arguments(given, plain)
        close(flat_like(dot, expected), directional(run(f), args, tangents), tolerance)
    if tensors:
        wanted = on_tensors(f, args, argnums)
        for gradient, other in zip(found, wanted, strict=True):
            close(gradient, other, tolerance / 100)
    if hvp:
        for position in argnums:
            check_second(f, args, run, position, tolerance)
    return found


# a decorator of helpers: they are not inlined in functions with other options
called = tg.njit(boundscheck=False)


class Cases(dict):
    """Functions to check, by name: a decorator that takes arguments and options of `check`."""

    def __call__(self, *args, **options):
        def enter(f):
            compiled = f if hasattr(f, "py_func") else tg.njit(f)
            name = compiled.py_func.__name__
            more = sum(key.split()[0] == name for key in self)
            self[f"{name} {more + 1}" if more else name] = (compiled, args, options)
            return compiled

        return enter

    def check(self, name):
        f, args, options = self[name]
        check(f, *args, **options)


@contextlib.contextmanager
def or_refused(where):
    """What is done inside is right, or refused with a text that says where."""
    try:
        yield
    except tg.TransformError as error:
        if where not in str(error):
            raise


def close_arguments(found, expected):
    """The arguments after the call hold what the function itself leaves in them."""
    for one, two in zip(found, expected, strict=True):
        for first, second in zip(leaves(one), leaves(two), strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-12, atol=0)


def on_tensors(f, args, argnums):
    """Gradients of the Python function on Tensors, as arrays."""
    found = tg.grad(f.py_func, argnums)(*[copied(a) for a in args])
    return list(map(np.asarray, found))


def check_second(f, args, run, argnum, tolerance):
    """Compare the Hessian times a vector with differences of the gradient."""
    vector = tangent_like(args[argnum], 7)
    gradient = run(tg.grad(f, argnum))
    product = run(tg.hvp(f, argnum))(*[copied(a) for a in args], copied(vector))
    close(flat(product), directional(gradient, args, {argnum: vector}), tolerance)


def module(text, name="f", **names):
    """A function of a text, which stands in a file so that its source can be read.

    Other names of its module are given.
    """
    path = pathlib.Path(FOLDER.name, f"given_{next(NUMBERS)}.py")
    path.write_text(text)
    scope = {"__name__": path.stem, **names}
    exec(compile(text, path, "exec"), scope)
    return scope[name]
