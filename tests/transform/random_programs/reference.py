"""Derivatives of program texts by differences in extended precision, without the code under test.

The text is run by Python itself, with NumPy's names bound to functions that keep long doubles, and
with every comparison of numbers recorded: differences mean nothing across a branch, so a point
whose neighbours take other branches raises `Unsmooth`.
"""

import ast
import builtins
import collections
import itertools
import operator
import types

import numpy as np

LONG, COMPLEX = np.longdouble, np.clongdouble
STEP = LONG(2e-4)
# how near to equal the sides of a comparison may be, and how wild the derivatives
MARGIN, LARGEST, COMPARISONS = 1e-4, 1e4, 20_000

CHOOSING = ("max", "min", "argmax", "argmin")  # methods of arrays that decide something
OPERATORS = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
}


class Unsmooth(Exception):
    """Differences cannot judge this program at this point."""


def is_real(value):
    return isinstance(value, np.ndarray | np.floating | float)


class Recorder:
    """What a run decided: the outcomes of comparisons, in order."""

    def __init__(self):
        self.trace = []

    def decide(self, value):
        """Write down a value that decides something; it must not depend smoothly on inputs."""
        self.trace.append(value.tobytes() if isinstance(value, np.ndarray) else value)
        if len(self.trace) > COMPARISONS:
            raise Unsmooth("does not end")
        return value

    def compare(self, left, *rest):
        result = True
        for name, right in zip(rest[::2], rest[1::2], strict=True):
            if is_real(left) or is_real(right):
                # what is nan is near to nothing: every comparison with it is false, here and near
                with np.errstate(all="ignore"):
                    distance = np.abs(np.subtract(left, right))
                if np.any(distance <= MARGIN):
                    raise Unsmooth("near a branch")
            result = result & self.decide(OPERATORS[name](left, right))
            left = right
        return result

    def integer(self, value):
        if is_real(value) and not (np.isfinite(value) and abs(value - round(value)) >= MARGIN):
            raise Unsmooth("near a branch, or no integer")
        return self.decide(int(value))

    def absolute(self, value):
        size = np.abs(value)
        self.compare(size if np.iscomplexobj(value) else value, "Gt", 0)
        return size

    def largest(self, *values):
        values = items_of(values)
        result = values[0]
        for value in values[1:]:
            result = value if self.compare(value, "Gt", result) else result
        return result

    def smallest(self, *values):
        values = items_of(values)
        result = values[0]
        for value in values[1:]:
            result = value if self.compare(value, "Lt", result) else result
        return result

    def picked(self, array, pick):
        """Index of an extreme element, which must stand out."""
        flat = np.sort(array, axis=None)
        if flat.size > 1 and np.min(np.diff(flat)) < MARGIN:
            raise Unsmooth("near a branch")
        return self.decide(int(pick(array)))

    def order(self, array):
        """Indices that sort, of elements that stand apart."""
        if array.size > 1 and np.min(np.diff(np.sort(array))) < MARGIN:
            raise Unsmooth("near a branch")
        return self.decide(np.argsort(array))

    def whole(self, choose):
        """A function of whole arrays that chooses the greater or the lesser elements."""

        def function(left, right):
            self.compare(left, "Gt", right)
            return choose(left, right)

        return function

    def derivatives(self):
        """What a program may call to differentiate a function of its own."""

        def grad(function, argnum=0):
            return lambda *args: self.value_and_gradient(function, argnum, args)[1]

        def value_and_grad(function, argnum=0):
            return lambda *args: self.value_and_gradient(function, argnum, args)

        def jvp(function):
            def pushed(*args):
                *args, tangent = args
                value, slope = self.value_and_gradient(function, 0, args)
                return value, slope * tangent

            return pushed

        return {"grad": grad, "value_and_grad": value_and_grad, "jvp": jvp}

    def value_and_gradient(self, function, argnum, args):
        """Value and gradient by one argument; the call itself may write to its arguments."""
        outside, self.trace = self.trace, []
        given = [extended(value) for value in args]
        function(*[extended(value) for value in given])
        taken = self.trace

        def evaluate(moved):
            self.trace = []
            value = function(*[extended(value) for value in moved])
            if self.trace != taken:
                raise Unsmooth("other branches")
            return value

        shape = np.shape(given[argnum])
        gradient = np.zeros(shape, LONG)
        for index in np.ndindex(shape):
            unit = np.zeros(shape, LONG)
            unit[index] = 1
            gradient[index] = difference(evaluate, given, {argnum: unit})
        self.trace = outside
        return function(*args), gradient[()]

    def namespace(self):
        """Names that a program may use."""
        numpy = types.SimpleNamespace(**vars(np))
        numpy.float64 = numpy.float32 = LONG
        numpy.complex128 = COMPLEX
        numpy.zeros = lambda shape, dtype=LONG: np.full(shape, 0, dtype)
        numpy.ones = lambda shape, dtype=LONG: np.full(shape, 1, dtype)
        # what is read before it is written shows as nan
        numpy.empty = lambda shape, dtype=LONG: np.full(shape, nothing(dtype), dtype)
        numpy.empty_like = lambda like: np.full(like.shape, nothing(like.dtype), like.dtype)
        numpy.full = lambda shape, value, dtype=LONG: np.full(shape, value, dtype)
        numpy.linspace = lambda *args: np.linspace(*args, dtype=LONG)
        numpy.array = numpy.asarray = as_long
        numpy.argsort = self.order
        numpy.abs = self.absolute
        for name in ("maximum", "minimum", "fmax", "fmin"):
            setattr(numpy, name, self.whole(getattr(np, name)))
        numpy.argmin = lambda array: self.picked(array, np.argmin)
        numpy.argmax = lambda array: self.picked(array, np.argmax)
        numpy.min = lambda array: array.ravel()[self.picked(array, np.argmin)]
        numpy.max = lambda array: array.ravel()[self.picked(array, np.argmax)]
        math = types.SimpleNamespace(
            **{name: getattr(np, name) for name in ("sin", "cos", "exp", "log", "sqrt", "tanh")},
            atan=np.arctan,
            pi=np.pi,
        )
        return {
            "__builtins__": builtins,
            "__name__": "reference",
            "np": numpy,
            "tg": types.SimpleNamespace(**self.derivatives()),
            "collections": collections,
            "math": math,
            "complex": complex_of,
            "float": lambda value: value if is_real(value) else float(value),
            "int": self.integer,
            "abs": self.absolute,
            "max": self.largest,
            "min": self.smallest,
            "_compare": self.compare,
        }


def nothing(dtype):
    """What stands in an array that was not written."""
    return np.nan if np.dtype(dtype).kind in "fc" else 0


def as_long(values):
    array = np.array(values)
    return array.astype(LONG) if array.dtype.kind == "f" else array


def complex_of(real, imaginary):
    """A complex number of long doubles; a product with 1j would make nan of infinity."""
    found = np.empty((), COMPLEX)
    found.real, found.imag = real, imaginary
    return found[()]


def items_of(values):
    """What `min` and `max` choose from: their arguments, or the items of the only one."""
    return values if len(values) > 1 else list(values[0])


class Instrumented(ast.NodeTransformer):
    """Comparisons become calls, methods that choose functions; imports and decorators go."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        arguments = [node.left]
        for op, right in zip(node.ops, node.comparators, strict=True):
            arguments += [ast.Constant(type(op).__name__), right]
        return ast.Call(ast.Name("_compare", ast.Load()), arguments, [])

    def visit_Call(self, node):
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in CHOOSING and not node.args:
            module = ast.Attribute(ast.Name("np", ast.Load()), function.attr, ast.Load())
            return ast.Call(module, [function.value], node.keywords)
        return node

    def visit_FunctionDef(self, node):
        node.decorator_list = []
        return self.generic_visit(node)

    def visit_Import(self, node):
        return None

    visit_ImportFrom = visit_Import


def extended(value):
    """A copy of an argument in extended precision."""
    if isinstance(value, np.ndarray):
        return value.astype(LONG)
    return LONG(value) if isinstance(value, float | np.floating) else value


def difference(evaluate, args, tangents):
    """Derivative of `evaluate` at `args` along `tangents`: central, extrapolated."""
    args = [extended(value) for value in args]
    size = max(np.max(np.abs(t), initial=0) for t in tangents.values())
    if size == 0:
        return 0 * evaluate(args)

    def slope(h):
        ends = []
        for step in (h, -h):
            moved = list(args)
            for position, tangent in tangents.items():
                moved[position] = args[position] + step * tangent
            ends.append(evaluate(moved))
        return (ends[0] - ends[1]) / (2 * h)

    h = STEP / LONG(size)
    slopes = [slope(h / 2**k) for k in range(3)]
    once = [(4 * fine - rough) / 3 for rough, fine in itertools.pairwise(slopes)]
    best = (16 * once[1] - once[0]) / 15
    error = np.max(np.abs(best - once[1]), initial=0)
    # nan is refused too
    if not error <= 1e-9 * max(1, np.max(np.abs(best), initial=0)):
        raise Unsmooth("differences do not converge")
    if np.max(np.abs(best), initial=0) > LARGEST:
        raise Unsmooth("wild")
    return best


class Reference:
    """A function given by its text, evaluated and differentiated in extended precision.

    Parameters
    ----------
    source : str
        Text of a module that defines the function and what it calls.
    name : str
        Name of the function.
    """

    def __init__(self, source, name="f"):
        tree = ast.fix_missing_locations(Instrumented().visit(ast.parse(source)))
        self.recorder = Recorder()
        namespace = self.recorder.namespace()
        exec(compile(tree, "<reference>", "exec"), namespace)
        self.function = namespace[name]

    def run(self, args):
        """Value, arguments after the call, and the decisions taken."""
        args = [extended(value) for value in args]
        self.recorder.trace = []
        with np.errstate(all="ignore"):
            value = self.function(*args)
        if not np.all(np.isfinite(value)):
            raise Unsmooth("not finite")
        return value, args, self.recorder.trace

    def value_on(self, trace):
        """The function as one of the arguments, on the branches of one trace."""

        def evaluate(args):
            value, _, taken = self.run(args)
            if taken != trace:
                raise Unsmooth("other branches")
            return value

        return evaluate

    def directional(self, args, tangents):
        """Derivative along tangents, a dict from positions of arguments to their tangents."""
        _, _, trace = self.run(args)
        return difference(self.value_on(trace), args, tangents)

    def gradient(self, args, argnums):
        """Gradients with respect to arguments, a list of scalars and arrays."""
        _, _, trace = self.run(args)
        return [self.gradient_on(trace, args, argnum) for argnum in argnums]

    def gradient_on(self, trace, args, argnum):
        shape = np.shape(args[argnum])
        result = np.zeros(shape, LONG)
        for index in np.ndindex(shape):
            unit = np.zeros(shape, LONG)
            unit[index] = 1
            result[index] = difference(self.value_on(trace), args, {argnum: unit})
        return result[()]

    def mixed(self, args, argnum, first, second):
        """Second derivative along two tangents of one argument."""
        _, _, trace = self.run(args)
        value = self.value_on(trace)
        return difference(
            lambda moved: difference(value, moved, {argnum: first}), args, {argnum: second}
        )
