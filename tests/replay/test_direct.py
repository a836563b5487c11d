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
from tapegrad.replay.direct import key_and_leaves

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
@given(st.lists(st.tuples(st.lists(TREES, max_size=2), STATIC), min_size=2, max_size=2))
def test_equal_keys_are_of_equal_arguments(calls):
    """What has one key in a look at the kinds has one recording, and the same leaves."""
    found, whole = [], []
    for args, numbers in calls:
        found.append(key_and_leaves(tuple(args), {}, numbers, ()))
        whole.append(arguments(tuple(args), {}, numbers))
    for direct, full in zip(found, whole, strict=True):
        if direct[0] is not None and full is not None:
            assert len(direct[1]) == len(full.leaves)
            for one, other in zip(direct[1], full.leaves, strict=True):
                np.testing.assert_array_equal(one, other)
    if None not in (found[0][0], found[1][0], *whole) and calls[0][1] == calls[1][1]:
        if found[0][0] == found[1][0] and [*map(type, calls[0][0])] == [*map(type, calls[1][0])]:
            assert whole[0].key == whole[1].key


def test_names_are_told_from_values():
    x = np.ones(3)
    keys = [
        key_and_leaves((x, "a"), {}, (), ()),
        key_and_leaves((x,), {"a": x}, (), ()),
        key_and_leaves((x, x), {}, (), ()),
        key_and_leaves(([x, x],), {}, (), ()),
        key_and_leaves(((x, x),), {}, (), ()),
        key_and_leaves(({"a": x, "b": x},), {}, (), ()),
        key_and_leaves(({"b": x, "a": x},), {}, (), ()),
        key_and_leaves((tg.tensor(x), x), {}, (), ()),
        key_and_leaves((x, tg.tensor(x)), {}, (), ()),
        key_and_leaves((tg.tensor(x, requires_grad=True), x), {}, (), ()),
    ]
    assert len({key for key, _ in keys}) == len(keys)


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
    assert key_and_leaves((value,), {}, (), ())[0] is None


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
