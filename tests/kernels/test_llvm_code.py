"""Code for LLVM of generated functions computes what numba's own code computes."""

import functools
import itertools
import linecache
import math
import pickle
import sys
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import tapegrad as tg
from tapegrad.kernels.llvm.lower import Lower
from tapegrad.kernels.llvm.pipeline import Pipeline

pytestmark = pytest.mark.compiled


@functools.cache
def compiled(text, **options):
    """The function of a text, compiled by numba and as a generated one."""
    filename = f"<{hash(text)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace = {"np": np, "math": math}
    exec(compile(text, filename, "exec"), namespace)
    return [
        numba.njit(error_model="numpy", pipeline_class=pipeline, **options)(namespace["f"])
        for pipeline in (numba.core.compiler.Compiler, Pipeline)
    ]


def assert_same(text, *given, **options):
    """Both compiled functions return the same bits, and leave the same bits in arrays."""
    left = []
    for function in compiled(text, **options):
        copies = [laid_out_as(value) for value in given]
        left.append([function(*copies), *copies])
    for expected, found in zip(*left, strict=True):
        assert type(expected) is type(found)
        for ours, theirs in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
            np.testing.assert_array_equal(ours, theirs)
            if np.issubdtype(ours.dtype, np.inexact):
                np.testing.assert_array_equal(np.signbit(ours.real), np.signbit(theirs.real))


def laid_out_as(value):
    """A copy of an array with the same strides."""
    if not isinstance(value, np.ndarray):
        return value
    steps = [np.sign(stride) for stride in value.strides]
    whole = np.zeros([max(2 * extent, 1) for extent in value.shape], value.dtype)
    if value.flags.c_contiguous:
        made = value.copy()
    elif value.flags.f_contiguous:
        made = value.copy(order="F")
    else:
        made = whole[tuple(slice(None, None, 2 * int(step)) for step in steps)]
        made[...] = value
    return made


@pytest.fixture
def counted_memory():
    """numba counts what it allocates and frees."""
    was_on = _nrt_python.memsys_stats_enabled()
    _nrt_python.memsys_enable_stats()
    yield
    if not was_on:
        _nrt_python.memsys_disable_stats()


LAYOUTS = {
    "C": lambda array: array,
    "F": np.asfortranarray,
    "gaps": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "backwards": lambda array: np.repeat(array, 2, axis=0)[::-2],
}
DTYPES = (np.float64, np.float32, np.int64, np.int8, np.uint16, np.bool_, np.complex128)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_read_and_written(layout, dtype):
    array = LAYOUTS[layout](np.arange(24).reshape(2, 3, 4).astype(dtype))
    text = """
def f(a, i, j, k, u):
    x = a[i, j, k]
    y = a[u, u, u]
    a[i, j, k] = y
    a[0, -1, 2] = x
    a[u, j, 3] = a[-1, -2, -3]
    a[1, 1, 1] += x
    return x
"""
    for place in itertools.product((0, -2), (1, -3), (2, -1)):
        assert_same(text, array, *place, np.uint64(1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_of_vectors(layout):
    vector = LAYOUTS[layout](np.arange(1.0, 7.0))
    text = """
def f(a, i, u):
    a[i] = a[u] + a[0] * a[-1]
    a[2] = i
    a[u] -= a[1]
    return a[i]
"""
    for i, u in itertools.product((0, 5, -6, -1), (0, 3)):
        assert_same(text, vector, i, np.uint64(u))


def test_values_are_converted_as_by_numba():
    text = """
def f(a, b, c, i, x, t):
    a[i] = x
    a[0] = t
    b[i] = a[1]
    b[0] = 7
    c[i] = x
    c[0] = i
    return a[i] + b[i]
"""
    for x in (2.75, -3.5, 1e300, True, 3):
        arrays = np.zeros(3, np.int32), np.zeros(3, np.float32), np.zeros(3, np.complex64)
        assert_same(text, *arrays, 1, x, False)


@pytest.mark.parametrize(
    ("selected", "given"),
    [((3, 2), (2, 2)), ((3, 2), (4,)), ((3, 2), (2, 3, 2)), ((3, 1), (2,))],
)
def test_a_slice_of_another_shape_is_an_error(selected, given):
    text = f"def f(x, y):\n    x[:, :{selected[1]}] = y\n    return x[0, 0]\n"
    for function in compiled(text):
        with pytest.raises(ValueError, match="cannot assign slice") as caught:
            function(np.zeros((3, 4)), np.ones(given))
    text = f"cannot assign slice of shape {selected} from input of shape {given}"
    assert str(caught.value) == text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_short_tuples_select_rows():
    text = """
def f(a):
    row = a[1]
    row[0] = 5.0
    a[0] = a[1]
    return a[0, 0] + row[2]
"""
    assert_same(text, np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("bounds", list(itertools.product((-3, 0, 4), (-2, 0, 5))))
@pytest.mark.parametrize("step", [1, -1, 2, -3])
def test_ranges(bounds, step):
    text = f"""
def f(a, first, last):
    s = 0.0
    for i in range(first, last, {step}):
        s = 10.0 * s + a[i] + i
    for i in range(last):
        s += a[i] * i
    for i in range(last, {bounds[0]}):
        s -= i
    for i in range(last - 1, -1, -1):
        s -= a[i]
    for i in range({bounds[0]}, {bounds[1]}, {step}):
        s = s * 3.0 + a[i]
    return s
"""
    assert_same(text, np.arange(1.0, 9.0), *bounds)


def test_a_step_of_the_caller():
    text = """
def f(n, step):
    s = 0
    for i in range(n, 0, step):
        s = 7 * s + i
    return s
"""
    for step in (-1, -2, 1):
        assert_same(text, 9, step)
    with pytest.raises(ValueError, match="zero"):
        compiled(text)[1](9, 0)


def test_a_step_of_zero_is_an_error():
    function = compiled("def f(n):\n    for i in range(0, n, 0):\n        pass\n    return n\n")[1]
    with pytest.raises(ValueError, match="zero"):
        function(3)


def test_indices_that_a_loop_changes_may_be_negative():
    text = """
def f(a, n):
    s = 0.0
    for i in range(n):
        j = i
        if i > 1:
            i = -i
        s += a[i] * 10.0 ** j
        i -= 1
        s += a[i]
        while i > -3:
            i -= 1
            s += a[i]
    for k in range(-2, n):
        s += k * a[k]
    return s + a[i]
"""
    assert_same(text, np.arange(1.0, 7.0), 4)


def test_ranges_that_are_kept_in_names_and_run_twice():
    text = """
def f(a, n, back):
    steps = range(n)
    s = 0.0
    for k in range(2):
        for i in steps:
            s = 2.0 * s + a[i]
    if back:
        r = range(n - 1, -1, -1)
    else:
        r = range(-n, 0, 1)
    for i in r:
        s = 3.0 * s + a[i]
        if i == 2:
            break
    else:
        s = -s
    return s
"""
    for back in (False, True):
        assert_same(text, np.arange(1.0, 6.0), 5, back)


def test_numbers():
    text = """
def f(a, b, m, n):
    s = (a + b) * (a - b) - b
    s += a * 2
    s -= m
    k = m + n * m - n
    k *= 3
    c = (a < b, a <= b, a > b, a >= b, a == b, a != b)
    d = (m < n, m <= n, m > n, m >= n, m == n, m != n, a < n, m == b)
    for t in c:
        s = 2.0 * s + t
    for t in d:
        k = 2 * k + t
    return s + k
"""
    floats = (0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan)
    big = 2**30
    for a, b in itertools.product(floats, floats):
        for m, n in ((3, 5), (5, 3), (-4, -4), (big, 1)):
            assert_same(text, a, b, m, n)


@pytest.mark.parametrize("exponent", [*range(-2, 20), 100])
def test_powers(exponent):
    values = [1.1, -1.7, 1e-12, 1e12, math.inf, -math.inf, math.nan, 0.3]
    values += [0.0, -0.0] if exponent >= 0 else []  # numba raises
    text = f"""
def f(a, b, n):
    for i in range(a.size):
        a[i] = a[i] ** {exponent}
        b[i] = b[i] ** {exponent}
    return n ** {abs(exponent)}
"""
    assert_same(text, np.array(values), np.array(values, np.float32), 3)


def test_memory_is_given_back(counted_memory):
    text = """
def f(n):
    a = np.ones(n)
    for i in range(n):
        b = a
        if i % 2:
            a = np.zeros(n) + b[0]
        else:
            t = (a, b)
            a = t[1]
        b = np.empty(i)
        if i == 5:
            return b, a
    return a, b
"""
    before = rtsys.get_allocation_stats()
    for function in compiled(text):
        for n in (1, 3, 20):
            assert len(function(n)) == 2
    after = rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == after.free - before.free > 0


def test_names_that_only_one_branch_assigns():
    text = """
def f(a, n):
    s = 0.0
    for i in range(n):
        if a[i] > 1.0:
            t = a[i]
            k = i
        if i > 1:
            s += t + a[k]
    return s
"""
    assert_same(text, np.array([0.5, 2.0, 3.0, 0.1]), 4)


def test_checked_bounds_are_checked():
    function = compiled("def f(a, i):\n    return a[i]\n", boundscheck=True)[1]
    assert function(np.ones(3), 2) == 1.0
    with pytest.raises(IndexError):
        function(np.ones(3), 3)


@pytest.mark.filterwarnings("ignore:Could not find source:Warning")  # of array expressions
@pytest.mark.parametrize("options", [{"parallel": True}, {"debug": True}, {"fastmath": True}])
def test_options_of_numba(options):
    text = """
def f(a):
    s = 0.0
    b = 2.0 * a
    for i in range(a.size):
        s += a[i] * (b[i] - a[i])
    return s
"""
    expected, found = (function(np.arange(5.0)) for function in compiled(text, **options))
    assert expected == found == 30.0


def test_expressions_of_arrays_and_universal_functions():
    text = """
def f(a, b):
    c = np.sin(a + 2.0 * b) - -a
    c += a
    return (c * np.where(a > b, a, b)).sum()
"""
    assert_same(text, np.arange(6.0), np.arange(6.0)[::-1].copy())


def test_records_and_strings():
    kind = np.dtype([("x", "f8"), ("n", "i4")])
    text = """
def f(a, name):
    s = 0.0
    for i in range(a.size):
        a[i]["x"] += a[i].n
        s += a["x"][i]
    if name == "other":
        s = -s
    return s
"""
    assert_same(text, np.array([(1.5, 2), (2.5, 3)], kind), "other")


def test_inner_functions_are_inlined():
    text = """
def f(a):
    def g(x):
        return 2.0 * x
    return g(a[0]) + sum([g(x) for x in a])
"""
    assert_same(text, np.arange(1.0, 4.0))


def test_generated_functions_are_compiled_this_way(monkeypatch, tmp_path):
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    lowered = []

    def lower(self):
        lowered.append(self.fndesc.qualname)
        return whole(self)

    whole = Lower.lower
    monkeypatch.setattr(Lower, "lower", lower)

    @tg.njit
    def energy(x, k):
        s = 0.0
        for i in range(x.size):
            s += k * x[i] ** 2
        return s

    x = np.array([0.5, -1.5, 2.0])
    np.testing.assert_allclose(tg.grad(energy)(x, 1.37), 2.74 * x)
    assert any("energy_gradient" in name for name in lowered)


class Pair(NamedTuple):
    number: float
    array: np.ndarray


@pytest.mark.parametrize(
    "made", ["y", "(1.0, y)", "(y, y)", "((y, 2.0), Pair(3.0, y))", "Pair(n, y)", "()"]
)
@pytest.mark.parametrize("parallel", [False, True])
def test_results_are_made_without_python(made, parallel):
    """The handler of a signal runs in functions of Python alone: not within the call."""
    namespace = {"Pair": Pair}
    exec(f"def f(n):\n    y = n.reshape(2, -1)\n    return {made.replace('n,', '4.0,')}", namespace)
    calls = []
    for pipeline in (numba.core.compiler.Compiler, Pipeline):
        function = numba.njit(pipeline_class=pipeline, parallel=parallel)(namespace["f"])
        calls.append(functools.partial(function, np.arange(6.0)))
    expected, found = (call() for call in calls)
    assert repr(found) == repr(expected)
    for call, is_ours in zip(calls, (False, True), strict=True):
        events = []
        sys.setprofile(lambda frame, event, arg, events=events: events.append((event, frame)))
        call()
        sys.setprofile(None)
        named = {frame.f_code.co_name for event, frame in events if event == "call"}
        made_by_class = {"__new__", "<lambda>"}  # of named tuples
        assert not is_ours or named <= {"f", *made_by_class}, named
        assert is_ours or made == "()" or "_numba_unpickle" in named  # what is avoided here
