"""Each row of the table of facts, beside what numba does."""

import math
import warnings

import numba
import numpy as np
import pytest

from tapegrad.transform import facts
from tapegrad.transform.facts import Elements, Shape

M = np.arange(16.0).reshape(4, 4) / 16.0
ARRAYS = {
    "vector": M[0].copy(),
    "strided": np.arange(8.0)[::2],
    "matrix": M,
    "Fortran": np.asfortranarray(M),
    "parts": np.arange(64.0).reshape(8, 8)[::2, ::2],
    "three axes": np.arange(64.0).reshape(4, 4, 4),
    "complex": M + 1j * M.T,
    "one": np.ones(1),
}
# what a function is given besides an array x, or its whole call
MORE = {
    "broadcast_to": "x, (2,) + x.shape", "expand_dims": "x, 0", "moveaxis": "x, 0, 1",
    "swapaxes": "x, 0, 1", "reshape": "x, (x.size,)", "full_like": "x, 2.0", "dot": "x, x",
    "vdot": "x, x", "clip": "x, 0.1, 0.9", "where": "x > 0.5, x, 0.0",
    **dict.fromkeys(("concat", "concatenate"), "(x, x),"),
    "array": "[x[0], x[1]]", "arange": "x.size", "eye": "3", "linspace": "0.0, 1.0, 3",
    "full": "x.shape, 2.0", "outer": "x, x", "broadcast_arrays": "x, x", "round": "x, 1",
    "around": "x, 1", **dict.fromkeys(("empty", "ones", "zeros"), "x.shape"),
    **dict.fromkeys(("split", "array_split", "hsplit", "vsplit", "dsplit"), "x, 2"),
}  # fmt: skip
NAMES = {"det": "linalg.det", "norm": "linalg.norm"}
METHODS = {
    "astype": "np.float32", "clip": "0.1, 0.9", "repeat": "2", "reshape": "-1", "view": "x.dtype",
    "dot": "x",
}  # fmt: skip


def results(text, x):
    """What numba returns for an array: arrays and numbers, None if it does not compile."""
    namespace = {"np": np}
    exec(f"def f(x): return {text}", namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = numba.njit(namespace["f"])(x)
        except Exception:
            return None
    return list(found) if isinstance(found, (tuple, list)) else [found]


def check(text, fact):
    """Compare what numba returns with a row."""
    shown = compiled = False
    for x in ARRAYS.values():
        before = x.copy()
        found = results(text, x)
        if found is None:
            continue
        compiled = True
        np.testing.assert_array_equal(x, before)
        arrays = [value for value in found if isinstance(value, np.ndarray)]
        shares = any(np.shares_memory(array, x) for array in arrays)
        shown |= shares
        assert not shares or fact.elements is Elements.SHOWN
        if fact.elements in (Elements.OWN, Elements.EACH, Elements.SHOWN):
            assert len(arrays) == len(found)
        if fact.elements is Elements.NUMBER and x.ndim == 1:
            assert not arrays
        if fact.shape is not Shape.OTHER:
            assert [array.shape for array in arrays] == [x.shape]
        if not fact.reads:
            other = results(text, np.full_like(x, np.nan))
            assert all(map(np.array_equal, found, other)) or "empty" in text
    assert compiled, f"numba compiles {text} for no array"
    return shown


@pytest.mark.parametrize("name", facts.FUNCTIONS)
def test_functions(name):
    fact = facts.FUNCTIONS[name]
    text = f"np.{NAMES.get(name, name)}({MORE.get(name, 'x')})"
    shown = check(text, fact)
    if name != "nan_to_num":
        assert shown == (fact.elements is Elements.SHOWN)
        assert facts.shows(name, 1) == shown


@pytest.mark.parametrize("name", facts.METHODS)
def test_methods(name):
    fact = facts.METHODS[name]
    shown = check(f"x.{name}({METHODS.get(name, '')})", fact)
    assert shown == (fact.elements is Elements.SHOWN)


@pytest.mark.parametrize("name", [n for n, fact in facts.FUNCTIONS.items() if fact.out is not None])
def test_outputs(name):
    """The result is written to the argument that the row names, and returned."""
    function, place = getattr(np, name), facts.FUNCTIONS[name].out
    given = eval(f"({MORE.get(name, 'x')},)", {"np": np, "x": M})[:place]
    expected = function(*given)
    given = (*given, *[0, 0][: place - len(given)])
    out = np.empty_like(expected)
    assert np.shares_memory(function(*given, out), out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", sorted(facts.SHAPE_ATTRIBUTES))
def test_attributes_of_the_shape(name):
    for x in ARRAYS.values():
        assert getattr(x, name) == getattr(x * math.nan if x.flags.c_contiguous else x, name)


def test_nan_to_num_shows_its_argument_if_it_is_told_to():
    assert facts.shows("nan_to_num", 2)
    x = np.array([1.0, np.nan])
    assert np.shares_memory(numba.njit(lambda x: np.nan_to_num(x, False))(x), x)


def test_other_names_of_a_function_have_the_same_row():
    names = {name: getattr(value, "__name__", "") for name, value in vars(np).items()}
    others = {n: u for n, u in names.items() if u and getattr(np, u, None) is getattr(np, n)}
    assert others["concat"] == "concatenate"
    for name, usual in others.items():
        assert facts.FUNCTIONS.get(name) == facts.FUNCTIONS.get(usual), name
