"""Calls of what is declared to numba: overloads, methods of classes, pointers to functions."""

import math

import numba
import numpy as np
import pytest
from check import Cases, check, module
from numba.experimental import jitclass
from numba.extending import overload, register_jitable

import tapegrad as tg

V = np.array([0.3, 0.7, 0.4])
RATE = 1.7
case = Cases()


# -- functions with implementations -------------------------------------------------------------


def half(x, n=2, mode="plain"):
    """Python's own; numba compiles what is declared below."""
    raise NotImplementedError


@overload(half)
def _half(x, n=2, mode="plain"):
    if isinstance(x, numba.types.Array):

        def of_arrays(x, n=2, mode="plain"):
            out = np.empty_like(x)
            for i in range(x.size):
                out[i] = RATE * x[i] ** n
            return out

        return of_arrays

    def of_numbers(x, n=2, mode="plain"):
        if mode == "plain":
            return sinc(x) * RATE / n
        return x * n

    return of_numbers


@register_jitable
def sinc(x):
    return math.sin(x) / x if x != 0.0 else 1.0


def shift(a, by):
    raise NotImplementedError


@overload(shift)
def _shift_numbers(a, by):
    if isinstance(a, numba.types.Float):
        return lambda a, by: a + by
    return None


@overload(shift)
def _shift_arrays(a, by):
    if isinstance(a, numba.types.Array):

        def impl(a, by):
            for i in range(a.size):
                a[i] += shift(by, a[i])

        return impl
    return None


def ones_twice(n):
    raise NotImplementedError("compiled code only")


@overload(ones_twice)
def _(n):
    def implementation(n):
        w = np.ones(n)
        return w, w

    return implementation


@case(0.3, compiled=True)
def of_one_array_twice(x):
    a, b = ones_twice(3)
    a[0] = x
    return b[0] * x


@case(0.3, hvp=True, compiled=True)
def overloaded(x):
    return half(x) * half(x, 3) + half(x, mode="other")


@case(V, hvp=True, compiled=True)
def overloaded_of_arrays(a):
    return np.sum(half(half(a), n=3))


@case(V, 0.4)
def overloaded_that_writes(a, x):
    b = a * a
    shift(b, x)
    shift(b, x * x)
    return b * shift(x, 2.0)


@case(V, compiled=True)
def of_a_jitable_function(a):
    s = 0.0
    for i in range(a.size):
        s += sinc(a[i]) * a[i]
    return s


@numba.vectorize
def soft(x):
    return math.log1p(math.exp(x))


@tg.njit
def applied(g, x):
    return g(x) * x


@case(0.4, V, hvp=True, compiled=True)
def as_arguments(x, a):
    return applied(half, x) + np.sum(applied(soft, a)) + applied(sinc, x)


CHANGED = """\
import tapegrad as tg
from numba.extending import overload
K = 2.0
def g(x):
    raise NotImplementedError
@overload(g)
def over(x):
    def impl(x):
        return K * x
    return impl
@tg.njit
def f(x):
    return g(x)
"""


@pytest.mark.parametrize("first", ["value", "derivative"])
def test_global_that_was_changed_after_compilation(first):
    """`recompile` does not help: numba keeps what it compiled of an implementation."""
    f = module(CHANGED)
    assert f(1.0) == 2.0 if first == "value" else tg.grad(f)(1.0) == 2.0
    f.py_func.__globals__["K"] = 3.0
    f.recompile()
    assert f(1.0) == 2.0
    with pytest.raises(tg.TransformError, match=r"'K', which over uses, .* define over after"):
        tg.grad(f)(1.0)
    assert tg.grad(module(CHANGED.replace("2.0", "3.0")))(1.0) == 3.0


# -- instances of classes -----------------------------------------------------------------------


@jitclass([("a", numba.float64), ("w", numba.float64[:]), ("__n", numba.int64)])
class Model:
    """A polynomial."""

    def __init__(self, a, w):
        self.a = a
        self.w = w
        self.__n = w.size

    @property
    def scale(self):
        return 2.0 * self.a

    @staticmethod
    def cube(x):
        return x * x * x

    def value(self, x, n=2):
        s = 0.0
        for i in range(self.__n):
            s += self.w[i] * x**i
        return s * self.a + self.cube(x) * n

    def total(self, a):
        return np.sum(self.w * a) * self.scale

    def both(self, x, a):
        return self.value(x, n=3) * self.total(a)

    def fill(self, a, x):
        for i in range(a.size):
            a[i] = self.value(x) * a[i]

    def chosen(self, a, c):
        w = self.w if c else a
        return np.sum(w * w)

    def set(self, x):
        self.a = x

    def put(self, x):
        self.w[0] = x

    def through(self, x):
        self.put(x)
        return self.w[0]

    def __getitem__(self, x):
        return self.a * x

    def __mul__(self, x):
        return self.a * x


@pytest.fixture
def model():
    return Model(1.5, np.array([0.5, -0.2, 0.9]))


@tg.njit
def of_methods(m, x, a):
    return m.both(x, a) + m.scale * x + m.total(a) * m.a + m.cube(x)


@tg.njit
def of_a_method_that_fills(m, x, a):
    m.fill(a, x)
    m.fill(a, 2 * x)
    return np.sum(a * a)


@tg.njit
def of_a_method_that_chooses(m, x, a):
    return m.chosen(a, x > 5.0) * x + m.chosen(a, x < 5.0)


@tg.njit
def of_an_instance_made_inside(x):
    m = Model(2.0, np.ones(2))
    return m.value(x)


METHODS = [of_methods, of_a_method_that_fills, of_a_method_that_chooses]


@pytest.mark.parametrize("f", METHODS, ids=lambda f: f.__name__)
def test_methods(f, model):
    """By the arguments after the instance, which `check` does not copy."""
    x, a, h = 0.4, V, 1e-3
    value, (by_x, by_a) = tg.value_and_grad(f, (1, 2))(model, x, a.copy())

    def at(x, a):
        return f(model, x, a.copy())

    def slope(evaluate):
        near = [evaluate(k * h) - evaluate(-k * h) for k in (1, 2, 3, 4)]
        return (672 * near[0] - 168 * near[1] + 32 * near[2] - 3 * near[3]) / (840 * h)

    np.testing.assert_allclose(value, at(x, a), rtol=1e-13)
    wanted = [slope(lambda t: at(x + t, a))]
    wanted += [slope(lambda t, u=u: at(x, a + t * u)) for u in np.eye(3)]
    np.testing.assert_allclose([by_x, *by_a], wanted, rtol=1e-8)
    steps = np.array([0.3, -0.5, 0.2, 0.7])
    _, dot = tg.jvp(f, (1, 2))(model, x, a.copy(), steps[0], steps[1:])
    np.testing.assert_allclose(dot, steps @ wanted, rtol=1e-8)

    def gradient(t):
        return tg.grad(f, 2)(model, x, a + t * steps[1:])

    second = tg.hvp(f, 2)(model, x, a.copy(), steps[1:])
    np.testing.assert_allclose(second, slope(gradient), rtol=1e-7)


def test_an_instance_made_inside():
    check(of_an_instance_made_inside, 0.3, hvp=True)


@tg.njit
def of_the_array_that_it_holds(m, a):
    a[0] = a[1] * 2
    return m.total(a)


def test_an_argument_that_an_instance_holds(model):
    with pytest.raises(ValueError, match=r"overlaps with m.w; pass a copy"):
        tg.grad(of_the_array_that_it_holds, 1)(model, model.w)
    found = tg.grad(of_the_array_that_it_holds, 1)(model, V.copy())
    np.testing.assert_allclose(found, [0.0, 3 * (2 * 0.5 - 0.2), 3 * 0.9], rtol=1e-13)


# name: (the body that is refused, words of its text, what is written instead)
REFUSED_OF_INSTANCES = {
    "sets": (
        "m.set(x)\nreturn m.a * x",
        ["assignment to an attribute", "in set"],
        "a = x\nreturn a * x",
    ),
    "sets what is no derivative": (
        "s = 0.0\nfor i in range(3):\n    m.set(i)\n    s += m.a * x\nreturn s",
        ["assignment to an attribute", "in set"],
        "s = 0.0\nfor i in range(3):\n    s += i * x\nreturn s",
    ),
    "sets an attribute": ("m.a = x\nreturn m.a", ["attribute", "argument"], "return x"),
    "writes an element": (
        "m.w[0] = x\nreturn m.w[0]",
        ["array that an instance", "copy", "m.w[0] = x"],
        "w = m.w.copy()\nw[0] = x\nreturn w[0]",
    ),
    "writes through another name": (
        "w = m.w\nw[0] = x\nreturn m.w[0]",
        ["array that an instance", "copy", "w[0] = x"],
        "w = m.w.copy()\nw[0] = x\nreturn w[0]",
    ),
    "writes in a method": (
        "m.put(x)\nreturn m.w[0]",
        ["array that an instance", "in put"],
        "return x",
    ),
    "writes in a method of a method": (
        "return m.through(x)",
        ["array that an instance", "in put"],
        "return x",
    ),
    "writes what is no derivative": (
        "s = x\nfor i in range(3):\n    m.put(i)\n    s = s * s * m.w[0]\nreturn s",
        ["array that an instance", "in put"],
        "s = x\nfor i in range(3):\n    s = s * s * i\nreturn s",
    ),
    "operator": ("return m * x", ["operator of a class", "method"], "return m.value(x)"),
    "item": ("return m[x]", ["m[x]"], "return m.value(x)"),
}


@pytest.mark.parametrize("name", REFUSED_OF_INSTANCES)
def test_refused_of_instances(name, model):
    body, words, instead = REFUSED_OF_INSTANCES[name]
    head = "import numpy as np\nimport tapegrad as tg\n@tg.njit\ndef f(m, x):\n"
    f = module(head + "".join(f"    {line}\n" for line in body.split("\n")))
    for derivative in (lambda: tg.grad(f, 1)(model, 0.3), lambda: tg.jvp(f, 1)(model, 0.3, 1.0)):
        with pytest.raises(tg.TransformError) as caught:
            derivative()
        for word in [*words, "line"]:
            assert word in str(caught.value), str(caught.value)
    f = module(head + "".join(f"    {line}\n" for line in instead.split("\n")))
    found = (f(model, 0.3 + 1e-6) - f(model, 0.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(tg.grad(f, 1)(model, 0.3), found, rtol=1e-6)


# -- pointers, and functions as values ----------------------------------------------------------

POINTERS = """\
import ctypes
import ctypes.util
import math
import numba
import tapegrad as tg

library = ctypes.CDLL(ctypes.util.find_library("m"))
foreign = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(("cbrt", library))


@numba.njit("float64(float64)")
def square(x):
    return x * x


@numba.njit("float64(float64)")
def sine(x):
    return math.sin(x)


@numba.cfunc("float64(float64, float64)")
def callback(x, y):
    return x * y * y


@tg.njit
def root(x):
    return foreign(x)


@root.defvjp
def root_vjp(x, z, g):
    return (g / (3.0 * z * z),)


@root.defjvp
def root_jvp(x, x_dot):
    return x_dot / (3.0 * foreign(x) ** 2)


@tg.njit
def f(x, k):
"""
# name: (the statement that is refused, words of its text, what is written instead)
REFUSED_POINTERS = {
    "pointer": ("return foreign(x)", ["foreign", "pointer", "defvjp"], "return root(x) * x"),
    "chosen by a number": (
        "return (square, sine)[k](x)",
        ["is a value", "if and elif"],
        "return square(x) if k == 0 else sine(x)",
    ),
    "chosen by a condition": (
        "g = square if k == 0 else sine\n    return g(x)",
        ["is a value", "if and elif"],
        "if k == 0:\n        return square(x)\n    return sine(x)",
    ),
}


@pytest.mark.parametrize("name", REFUSED_POINTERS)
@pytest.mark.filterwarnings("ignore::numba.NumbaExperimentalFeatureWarning")
def test_refused_pointers(name):
    body, words, instead = REFUSED_POINTERS[name]
    f = module(f"{POINTERS}    {body}\n")
    for derivative in (tg.grad(f), lambda x, k: tg.jvp(f, 0)(x, k, 1.0)):
        with pytest.raises(tg.TransformError) as caught:
            derivative(0.3, 1)
        for word in [*words, "line"]:
            assert word in str(caught.value), str(caught.value)
    check(module(f"{POINTERS}    {instead}\n"), 0.3, 1, hvp=True)


def test_callback():
    f = module(f"{POINTERS}    return callback(x, 2 * x) + callback(x, k)\n")
    check(f, 0.3, 3, hvp=True)


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)
