"""Calls with arguments of known kinds: which are told apart, and that none gets another's code."""

import collections
import dataclasses
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import interpret

import tapegrad as tg
from tapegrad.replay.arguments import Arguments
from tapegrad.replay.guards import guard_of

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Point:
    x: np.ndarray


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("compiled") is None:
        interpret(monkeypatch)


ARRAYS = [
    np.ones(3), np.ones(3, np.float32), np.ones(4), np.ones((3, 1)), np.ones((2, 3)).T,
    np.ones(3, np.int64), np.array(2.0), np.array(2), np.ones(0), np.ones((2, 2), order="F"),
]  # fmt: skip
NUMBERS = [1, 1.0, True, False, 0, -0.0, 0.0, np.float64(1.0), np.float32(1.0), np.int64(1), 1j]
OTHERS = [None, "sum", "1", (), [], {}]
LEAVES = st.sampled_from([*ARRAYS, *NUMBERS, *OTHERS, *map(tg.tensor, ARRAYS)])
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=4,
)
STATIC = st.sampled_from([(), (0,), (1,)])


def arguments(args, kwargs, numbers):
    try:
        return Arguments(args, kwargs, numbers, ())
    except TypeError:
        return None


@settings(max_examples=300)
@given(st.lists(st.lists(TREES, max_size=2), min_size=2, max_size=2), STATIC)
def test_a_guard_takes_arguments_of_one_recording(calls, numbers):
    """And it returns the leaves that a closer look at the arguments finds."""
    first, second = map(tuple, calls)
    guard, whole = guard_of(first, {}, numbers, ()), arguments(first, {}, numbers)
    if guard is None or whole is None:
        return
    other = arguments(second, {}, numbers)
    for args, full in ((first, whole), (second, other)):
        leaves = guard(args, {})
        assert args is not first or leaves is not None
        if leaves is None or full is None:
            continue
        assert full.key == whole.key
        assert len(leaves) == len(full.leaves)
        for one, two in zip(leaves, full.leaves, strict=True):
            np.testing.assert_array_equal(one, two)


X = np.ones(3)
KINDS = [
    ((X, "a"), {}),
    ((X, "b"), {}),
    ((X, None), {}),
    ((X, True), {}),
    ((X, 1), {}),
    ((X,), {"a": X}),
    ((X,), {"b": X}),
    ((X,), {}),
    ((), {}),
    ((X, X), {}),
    ((X, np.ones(4)), {}),
    ((X, np.ones(3, np.float32)), {}),
    ((X, np.float64(1.0)), {}),
    ((X, 1.0), {}),
    (([X, X],), {}),
    (([X, X, X],), {}),
    (((X, X),), {}),
    (({"a": X, "b": X},), {}),
    (({"b": X, "a": X},), {}),
    ((tg.tensor(X), X), {}),
    ((X, tg.tensor(X)), {}),
    ((tg.tensor(X, requires_grad=True), X), {}),
]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_kinds_are_told_apart(number):
    guard = guard_of(*KINDS[number], (), ())
    assert [guard(*kind) is not None for kind in KINDS] == [
        other == number for other in range(len(KINDS))
    ]


def test_modes_are_told_apart():
    tracked = tg.tensor(X, requires_grad=True)
    with tg.no_grad():
        without = guard_of((tracked,), {}, (), ())
        assert without((tracked,), {}) is not None
    recording = guard_of((tracked,), {}, (), ())
    assert without((tracked,), {}) is None
    assert without((tg.tensor(X),), {}) is not None
    assert recording((tracked,), {})[0] is tracked
    with tg.no_grad():
        assert recording((tracked,), {}) is None
    with tg.inference_mode():
        inference = tg.tensor(X) * 1.0
    assert without((inference,), {}) is None
    assert guard_of((inference,), {}, (), ())((inference,), {}) is not None


def test_static_arguments():
    guard = guard_of((X, 3), {"n": 2}, (1,), ("n",))
    assert guard((X, 3), {"n": 2}) == (X,)
    for args, kwargs in (((X, 4), {"n": 2}), ((X, 3), {"n": 3}), ((X, True), {"n": 2})):
        assert guard(args, kwargs) is None
    assert guard_of((X, 3.0), {}, (1,), ()) is None


@pytest.mark.parametrize(
    "value",
    [
        np.ones((2, 3)).T, np.ones(4)[::2], np.ones(2).view(np.matrix), Pair(1.0, 2.0),
        Point(np.ones(2)), {1: 2.0}, [True], {"a": None}, np.sin, object(),
        tg.tensor(np.ones((2, 3)), requires_grad=True).T,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_takes_a_closer_look(value):
    assert guard_of((value,), {}, (), ()) is None


CALLS = [
    ((np.arange(3.0), 2.0), {}),
    (([np.arange(3.0)], 2), {}),
    (((np.arange(3.0),), 2), {}),
    (({"b": np.arange(3.0), "a": np.ones(3)}, 2), {}),
    (({"a": np.arange(3.0), "b": np.ones(3)}, 2), {}),
    ((np.arange(3.0),), {"k": 2}),
    ((np.arange(3.0),), {"k": np.float64(2)}),
    ((np.arange(3.0),), {"k": "twice"}),
    ((np.arange(3.0),), {"k": None}),
    ((tg.tensor(np.arange(3.0)), 2), {}),
    (({"b": tg.tensor(np.arange(3.0)), "a": np.ones(3)}, 2), {}),
    ((np.array(1.5), 2), {}),
    ((Pair(np.arange(3.0), 1.0), 2), {}),
]


def function(p, k):
    if isinstance(p, dict):
        p = p["a"] - 2.0 * p["b"]
    if isinstance(p, (list, tuple)):
        p = p[0] * len(p)
    if k == "twice" or k is None:
        k = 2.0 if k else 3.0
    return tg.sum(tg.sin(p) * k)


@pytest.mark.parametrize("calls", [CALLS[::2], CALLS[1::2]])
def test_calls_in_turn(calls):
    """Each gets what op by op gives, whatever was called before."""
    jitted = tg.jit(function)
    for _ in range(3):
        for args, kwargs in calls:
            found, expected = jitted(*args, **kwargs), function(*args, **kwargs)
            assert isinstance(found, tg.Tensor) == ("tensor" in str(args))
            np.testing.assert_allclose(float(found), float(expected), 1e-12)
    info = jitted.cache_info()
    assert info.currsize == len(calls)
    assert info.misses == len(calls)


@pytest.mark.compiled
@pytest.mark.parametrize("calls", [CALLS[::2], CALLS[1::2]])
def test_gradients_in_turn(calls):
    gradient, plain = tg.value_and_grad(tg.jit(function)), tg.value_and_grad(function)
    for _ in range(3):
        for args, kwargs in calls:
            value, found = gradient(*args, **kwargs)
            expected, slope = plain(*args, **kwargs)
            assert type(value) is type(expected)
            np.testing.assert_allclose(float(value), float(expected), 1e-12)
            assert str(found) == str(slope)


def test_results_of_several_kinds():
    def several(x, n):
        return {"s": tg.sin(x), "n": (x * n, x), "same": x, "one": 1.0}

    jitted = tg.jit(several)
    x = np.arange(3.0)
    for _ in range(3):
        for value in (x, tg.tensor(x)):
            found, expected = jitted(value, 2), several(tg.as_tensor(value), 2)
            assert [*found] == [*expected]
            np.testing.assert_allclose(found["n"][0], expected["n"][0])
            assert type(found["s"]) is type(value)
            found["same"][...] = 7.0
            found["n"][1][...] = 8.0
            assert x.tolist() == [0.0, 1.0, 2.0]


def test_arguments_are_not_kept():
    jitted = tg.jit(lambda p, y: tg.sum(p["a"][0] * y))
    for make in (np.ones, tg.ones):
        first, second = make(3), make(3)
        alive = [weakref.ref(value) for value in (first, second)]
        jitted({"a": [first]}, second)
        del first, second
        gc.collect()
        assert [value() for value in alive] == [None, None]


@pytest.mark.compiled
def test_tensors_whose_use_is_recorded():
    jitted = tg.jit(lambda x, w: (x * w, tg.sum(tg.sin(x) * w)))
    x = np.array([1.0, 2.0, 3.0])
    for _ in range(3):  # the first call looks at what was recorded
        s, w = tg.tensor(x, requires_grad=True), tg.tensor(x)
        product, total = jitted(s, w)
        (tg.sum(product) + total).backward()
        np.testing.assert_allclose(s.grad, x + np.cos(x) * x)
        with tg.no_grad():
            assert not jitted(s, w)[0].requires_grad
        assert not jitted(s.detach(), w)[0].requires_grad
        half = tg.tensor(0.5, requires_grad=True)
        jitted(half, w)[1].backward()
        assert half.grad.item() == pytest.approx(np.cos(0.5) * 6.0)
        twice = (s * 2.0)[:]
        (g,) = tg.autograd.grad(jitted(twice, w)[1], twice, create_graph=True)
        (h,) = tg.autograd.grad(tg.sum(g), s)
        np.testing.assert_allclose(h, -2.0 * np.sin(2.0 * x) * x)
    with tg.inference_mode():
        given = tg.tensor(x)
    with pytest.raises(RuntimeError, match="Inference tensors"):
        jitted(s, given)
