"""Constants from outside of a function, given to the functions that it calls."""

import collections
import enum
import math

import numpy as np
import pytest
from check import Cases, check

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])
INFINITE = float("inf")
SINGLE, ROTATION = np.float32(0.5), 0.6 + 0.8j
Options = collections.namedtuple("Options", "scale power")
Nested = collections.namedtuple("Nested", "options weights")
OPTIONS = Options(2.0, 3)
NESTED = Nested(Options(0.5, 2), np.array([0.2, 0.5, 0.9]))
PAIR = (np.array([1.0, 2.0, 3.0]), (0.5, OPTIONS))
case = Cases()


class Kind(enum.Enum):
    CUBE = 1
    LINE = 2


class Step(enum.IntEnum):
    HOLD = 0
    GROW = 1
    BEND = 2


@tg.njit
def stepped(x, step=Step.BEND):
    if step is Step.GROW:
        return x * x
    if step == Step.BEND:
        return np.sin(x)
    return x


@tg.njit
def cube_or_line(x, kind=Kind.LINE):
    if kind == Kind.CUBE:
        return x**3
    return x


@tg.njit
def cube_if_given(x, given=None):
    if given is None:
        return x
    return x**3


@tg.njit
def with_options(x, options):
    return options.scale * x**options.power


@tg.njit
def nested(x, state):
    return with_options(x, state.options) * state.weights[1]


@tg.njit
def of_a_pair(x, pair):
    return x * pair[0][1] + with_options(x, pair[1][1]) * pair[1][0]


@tg.njit
def times(x, factor):
    return (x * factor).real


@tg.njit
def square_between(x, low=-np.inf, high=np.inf):
    return x * x if low < x < high else x


@case(0.7, hvp=True)
def of_named_tuples(x):
    return cube_if_given(x, OPTIONS) + with_options(x, OPTIONS) * nested(x, NESTED)


@case(0.7, hvp=True)
def of_a_tuple_with_an_array(x):
    return of_a_pair(x, PAIR) * cube_if_given(x, PAIR)


@case(0.7, hvp=True)
def of_members_of_an_enum(x):
    return cube_or_line(x, Kind.CUBE) + 2 * cube_or_line(x, Kind.LINE)


@case(0.7, Step.GROW, argnums=(0,), hvp=True)
def of_members_that_are_integers(x, step):
    """A member is not the integer that it equals: numba tells them apart by their types."""
    y = stepped(x, Step.GROW) + 2 * stepped(x) + 3 * stepped(x, 1) + 4 * stepped(x, Step.HOLD)
    return y * (x if step is Step.GROW else 2.0) + stepped(x, step) ** Step.BEND.value


@case(0.7, np.array([0.3, 0.9, 0.5]), hvp=True)
def of_members_that_loops_keep(x, a):
    step, kind = Step.GROW, Kind.CUBE
    for i in range(4):
        if x > 3.0:
            return x * a[step]
        x = stepped(x, step) + cube_or_line(a[i % 3], kind) * x
        if step is Step.GROW:
            step = Step.BEND
        elif i == 2:
            step, kind = Step.HOLD, Kind.LINE
    return x * a[step]


@case(0.7, np.array([0.3, 0.9]), hvp=True)
def of_members_of_some_paths(x, a):
    for v in a:
        if v * x > 0.6:
            step = Step.GROW
            break
    else:
        step = Step.BEND
    return stepped(x, step)


@case(0.7, hvp=True)
def of_numbers_of_other_types(x):
    return cube_if_given(x, SINGLE) + times(x, ROTATION)


def local_constants():
    scale = Options(0.3, 2)
    kind = Kind.CUBE

    @tg.njit
    def of_variables_of_an_outer_function(x):
        return with_options(x, scale) * cube_or_line(x, kind)

    return of_variables_of_an_outer_function


case(0.7, hvp=True)(local_constants())


@case(0.7, hvp=True)
def of_infinity(x):
    s = square_between(x, -np.inf, np.inf) + square_between(x, high=math.inf)
    s += square_between(x, -INFINITE) * square_between(x, 0.8, INFINITE)
    high = np.inf
    return s * square_between(x, 0.0, high) if x < 1e309 else x


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)


def test_a_function_from_outside():
    """What is no numba function has no rule where it is called by another name."""

    @tg.njit
    def applied(x, g=None):
        return x if g is None else g(x)

    @tg.njit
    def f(x):
        return applied(x, math.sin)

    with pytest.raises(tg.TransformError, match="the call of g"):
        tg.grad(f)(0.3)
    sine = tg.njit(lambda x: math.sin(x))

    @tg.njit
    def way_out(x):
        return applied(x, sine)

    check(way_out, 0.3)


@tg.njit
def folded_by_python(x):
    flag, n = True, 63
    return (~flag) * x + (1 << n) * x * 1e-19 + (~n) * x


def test_integers_of_constant_names_are_those_of_numba():
    check(folded_by_python, 0.7, compiled=True)
