"""Type inference that asks once about equal calls: the types are numba's."""

import numba
import numpy as np
import pytest
from numba.core import types
from numba.core.typing.context import Context

from tapegrad.kernels.llvm.pipeline import use_pipeline


def repeated(x, n):
    """Many equal calls, whose types change in a loop."""
    a, b, k = 0, 1, 2
    for i in range(n):
        a = a + x[i] * x[i] + x[i] * x[i]
        b = b * 2
        k = k + b * b
    return a, np.sqrt(a) + np.sqrt(a), b, k, float(b) + float(k)


def of_lists(x, n):
    """A list whose type is known only after it is appended to."""
    found = []
    for i in range(n):
        found.append(x[i])
        found.append(x[i] + 1)
    return len(found), found[0] + found[1]


def recursive(x, n):
    """A function that calls itself twice."""
    if n == 0:
        return x[0]
    return recursive(x, n - 1) + recursive(x, n - 1)


@pytest.mark.parametrize("function", [repeated, of_lists, recursive])
@pytest.mark.parametrize("dtype", ["f8", "i8", "f4", "c16"])
def test_results_are_those_of_numba(function, dtype, monkeypatch):
    x = np.array([1, 2, 3], dtype=dtype)
    plain, ours = numba.njit(function), numba.njit(function)
    use_pipeline(ours)
    namespace = function.__globals__
    with monkeypatch.context() as patch:  # what it calls by its name is itself
        patch.setitem(namespace, function.__name__, plain)
        expected = plain(x, 3)
        patch.setitem(namespace, function.__name__, ours)
        assert ours(x, 3) == expected
    assert ours.nopython_signatures == plain.nopython_signatures


def test_equal_calls_are_asked_about_once(monkeypatch):
    asked = []
    resolve = Context.resolve_function_type

    def counted(self, func, args, kws):
        if isinstance(func, types.Function) and func.typing_key is np.sqrt:
            asked.append(args)
        return resolve(self, func, args, kws)

    monkeypatch.setattr(Context, "resolve_function_type", counted)
    function = numba.njit(repeated)
    use_pipeline(function)
    function(np.ones(3), 3)
    assert len(asked) == len(set(asked)) > 0
