"""Partial derivatives that are declared together, and what each of them reads."""

import inspect

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops.table.op import TABLE, reads_of
from tapegrad.ops.table.partials import taken_apart

SCALE = 2.0


def together(z, x, y):
    first = x * SCALE
    both = first + z
    third = y - 1.0
    return both * first, third, 1.0


def test_each_reads_what_it_needs():
    one, two, three = taken_apart(together)
    assert [reads_of(rule) for rule in (one, two, three)] == [("z", "x"), ("y",), ()]
    assert (one(5.0, 3.0), two(3.0), three()) == ((6.0 + 5.0) * 6.0, 2.0, 1.0)
    assert "third" not in inspect.getsource(one)
    assert "first" not in inspect.getsource(two)


def test_names_outside_are_looked_up_when_it_is_called(monkeypatch):
    one, *_ = taken_apart(together)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert one(5.0, 3.0) == (9.0 + 5.0) * 9.0


def single(x):
    return x


def branching(x, y):
    if x > 0.0:
        return y, x
    return x, y


@pytest.mark.parametrize("rule", [single, branching])
def test_others_are_refused(rule):
    with pytest.raises(TypeError, match=r"test_partials\.py, line \d+: partials are assignments"):
        taken_apart(rule)


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("multiply", {"x": ("y",), "y": ("x",)}),
        ("divide", {"x": ("y",), "y": ("z", "y")}),
        ("add", {"x": (), "y": ()}),
        ("where", {"x": ("condition",), "y": ("condition",)}),
        ("hypot", {"x": ("z", "x", "y"), "y": ("z", "x", "y")}),
    ],
)
def test_unused_parts_cost_nothing(name, reads):
    assert {argument: TABLE[name].reads(argument) for argument in TABLE[name].rules} == reads


def test_an_argument_without_gradient_keeps_nothing_for_it():
    x = tg.tensor(np.ones(3), requires_grad=True)
    factor = tg.tensor(np.full(3, 2.0))
    z = x * factor
    x.data[:] = 5.0  # is not read
    z.sum().backward()
    np.testing.assert_array_equal(x.grad, 2.0)
