"""Names are data: whatever functions, classes and arguments are called."""

import collections
import functools
import math
import types

import numba
import numpy as np
import pytest
from check import check, running

import tapegrad as tg

NAMES = [
    "loss of item 3",
    "g(x):\n    return 1.0\nraise SystemExit('the name was executed')\ndef h",
    "class",
    "../x",
    "\N{LATIN SMALL LIGATURE FI}",  # Python reads another identifier
    "",
]
TWO = np.float64(2.0)
CASES = {}


def case(*args, **options):
    """A case makes a function from what gives a function or class a name."""

    def enter(make):
        CASES[make.__name__] = make, args, options
        return make

    return enter


@case(0.7)
def function(named):
    @tg.njit
    @named
    def f(x):
        return x * x

    return f


@case(0.7)
def of_a_lambda(named):
    return tg.njit(named(lambda x: x * x))


@case(0.7, 3)
def checkpointed(named):
    @tg.njit
    @named
    def f(x, n):
        for _ in tg.checkpointed(range(n)):
            x = x * math.sin(x)
        return x

    return f


@case(np.ones(3))
def parallel(named):
    @tg.njit(parallel=True)
    @named
    def f(x):
        total = 0.0
        for i in numba.prange(x.size):
            total += x[i] ** 2
        return total

    return f


@case(0.7)
def callee(named):
    @numba.njit
    @named
    def inner(x, factor=TWO):
        for _ in range(2):
            if x > 10.0:
                return factor
            x = x * x * factor
        return x

    @tg.njit
    def f(x):
        return inner(x) * x

    return f


@case(np.ones(3))
def ufunc(named):
    @numba.vectorize
    @named
    def inner(x, y):
        return x * x * y

    @tg.njit
    def f(x):
        return np.sum(inner(x, 2.0))

    return f


@case(np.ones((2, 3)))
def generalized_ufunc(named):
    @numba.guvectorize([(numba.float64[:], numba.float64[:])], "(n)->()")
    @named
    def inner(x, out):
        out[0] = x[0] * x[1]

    @tg.njit
    def f(x):
        out = np.zeros(2)
        inner(x, out)
        return out.sum()

    return f


@case(0.7)
def callback(named):
    @numba.cfunc("float64(float64)")
    @named
    def inner(x):
        return x * x

    @tg.njit
    def f(x):
        return inner(x) * x

    return f


@case(0.7, jvp=False)
def reverse_rule(named):
    @tg.njit
    @named
    def inner(x):
        return x * x

    @inner.defvjp
    @named
    def inner_vjp(x, z, g):
        return (2.0 * x * g,)

    @tg.njit
    def f(x):
        return inner(x) * x

    return f


@case(0.7)
def forward_rule(named):
    @tg.njit
    @named
    def inner(x):
        return x * x

    @inner.defjvp
    @named
    def inner_jvp(x, x_dot):
        return 2.0 * x * x_dot

    @tg.njit
    def f(x):
        return inner(x) * x

    return f


@case(0.7)
def derivative(named):
    @tg.njit
    @named
    def inner(x):
        return x * x * x

    slope = tg.grad(inner)

    @tg.njit
    def f(x):
        return slope(x) * x

    return f


@case(0.7)
def named_tuple(named):
    pair = named(collections.namedtuple("Pair", "a b"))

    @tg.njit
    def f(x):
        both = pair(x * x, 3.0)
        return both.a * both.b

    return f


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", CASES)
def test_any_text(kind, name):
    def named(given):
        given.__name__ = given.__qualname__ = name
        return given

    make, args, options = CASES[kind]
    if "\n" in name and kind not in ("function", "of_a_lambda", "checkpointed", "parallel"):
        pytest.skip("numba itself compiles no calls of them")
    check(make(named), *args, compiled=False, **options)


def test_transforms_of_one():
    def f(x):
        return x * x * x

    f.__name__ = f.__qualname__ = "loss of item 3"
    given = tg.njit(f)
    assert tg.grad(given).__name__ == "loss of item 3_gradient"
    assert (
        tg.hvp(given)(2.0, 1.0)
        == tg.hessian(given)(2.0)
        == tg.jacobian(tg.grad(given))(2.0)
        == 12.0
    )
    assert tg.vmap(given)(np.array([1.0, 2.0])).tolist() == [1.0, 8.0]


def test_name_of_the_code():
    """It is what the code is made of, and stands in names of files."""

    def f(x):
        return x * x

    for name in NAMES:
        code = f.__code__.replace(co_name=name)
        check(tg.njit(types.FunctionType(code, globals())), 0.7, compiled=False)


def test_decorated_to_look_like_another():
    def another(x):
        return x * x * x

    @functools.wraps(another)
    def f(x):
        return x * x

    inner = numba.njit(f)

    @tg.njit
    def caller(x):
        return inner(x) * x

    check(tg.njit(f), 0.7, compiled=False)
    check(caller, 0.7, compiled=False)


@tg.njit
def of_a_default(d_x, d_x_=3.0, x=2.0):
    return d_x * d_x_ * x * x


@numba.njit
def d_factor(x):
    return math.sin(x)


@tg.njit
def through_a_global(x, factor=2.0):
    return d_factor(x) * factor


@tg.njit
def ruled(declared, attempt, compare, found):
    return declared * attempt * compare * found


@ruled.defvjp
def _ruled_vjp(declared, attempt, compare, found, z, g):
    return attempt * g, declared * g, 3.0 * g, 4.0 * g


def test_parameters_that_are_called_like_names_of_ours():
    gradient = tg.value_and_grad(of_a_default, (0, 1))
    assert gradient(5.0) == (60.0, (12.0, 20.0))
    assert gradient(5.0, 1.0) == (20.0, (4.0, 20.0))
    assert tg.value_and_grad(through_a_global)(0.0) == (0.0, 2.0)
    with running(False) as run:
        found = run(tg.value_and_grad(ruled, (0, 1, 2, 3)))(2.0, 3.0, 4.0, 5.0)
    assert found == (120.0, (3.0, 2.0, 3.0, 4.0))
