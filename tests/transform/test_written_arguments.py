"""Lists, instances and records that are written to after a call with tensors, or by it.

The backward pass has the values that the call had.
"""

import numba
import numpy as np
import pytest
from numba import types
from numba.core.runtime import rtsys
from numba.experimental import jitclass, structref
from numba.typed import Dict, List

import tapegrad as tg
from tapegrad.transform.argument_copies import copied_argument


@jitclass([("a", numba.float64[:]), ("k", numba.float64)])
class Parameters:
    def __init__(self, a, k):
        self.a = a
        self.k = k


def set_item(values):
    values[0] = 100.0


def set_array(values):
    values[0][:] = 100.0


def set_attribute(values):
    values.k = 100.0


def set_array_of_instance(values):
    values.a[0] = 100.0


def set_field(values):
    values["a"] = 100.0


def record():
    return np.array([(1.0, 2.0)], [("a", "f8"), ("b", "f8")])[0]


def table(key, value):
    found = Dict()
    found[key] = value
    return found


CASES = {  # what is given, the text of the factor, and what writes to it
    "numbers in a list": (lambda: List([1.0, 2.0]), "p[0]", set_item),
    "numbers in a list of Python": (lambda: [1.0, 2.0], "p[0]", set_item),
    "arrays in a list": (lambda: List([np.ones(2)]), "p[0]", set_array),
    "arrays in a list of Python": (lambda: [np.ones(2)], "p[0]", set_array),
    "array in a tuple": (lambda: (np.ones(2), 1.0), "p[0]", set_array),
    "list in a tuple": (lambda: (List([1.0]), 1.0), "p[0][0]", lambda p: set_item(p[0])),
    "number in a dictionary": (lambda: table(0, 1.0), "p[0]", set_item),
    "array in a dictionary": (lambda: table(0, np.ones(2)), "p[0]", set_array),
    "number of an instance": (lambda: Parameters(np.ones(2), 1.0), "p.k", set_attribute),
    "array of an instance": (lambda: Parameters(np.ones(2), 1.0), "p.a", set_array_of_instance),
    "record": (record, "p.a", set_field),
    "array of records": (lambda: np.array([record()] * 2), "p['a']", set_field),
}
BODIES = {"array": "p_ * x ** 2", "number": "np.sum(p_ * x ** 2)"}


@tg.no_grad()
def compiled(body, factor, folder):
    text = f"import numpy as np\ndef f(x, p):\n    return {body.replace('p_', factor)}\n"
    path = folder / "given.py"
    path.write_text(text)
    scope = {}
    exec(compile(text, path, "exec"), scope)
    return tg.njit(scope["f"])


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPendingDeprecationWarning")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("case", CASES)
def test_writes_after_the_call(case, body, tmp_path):
    make, factor, write = CASES[case]
    f, given = compiled(BODIES[body], factor, tmp_path), make()
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = f(x, given)
    write(given)
    (g,) = tg.autograd.grad(y.sum(), x, create_graph=True)
    assert np.array_equal(g.detach(), [2.0, 4.0])
    (h,) = tg.autograd.grad(g.sum(), x)
    assert np.array_equal(h, [2.0, 2.0])


def test_the_function_writes():
    @tg.njit
    def f(x, p):
        p[0] = p[0] * 2
        return p[0] * x**2

    given, x = List([1.0]), tg.tensor([1.0, 2.0], requires_grad=True)
    y = f(x, given)
    assert given[0] == 2.0
    y.sum().backward()
    assert given[0] == 2.0
    assert np.array_equal(x.grad, [4.0, 8.0])


# -- copies ----------------------------------------------------------------------------------------


@structref.register
class PairType(types.StructRef):
    def preprocess_fields(self, fields):
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Pair(structref.StructRefProxy):
    @property
    def first(self):
        return first_of(self)


@numba.njit
def first_of(pair):
    return pair.first


structref.define_proxy(Pair, PairType, ["first", "second"])
INNER = Parameters.class_type.instance_type


@jitclass(
    [
        ("inner", INNER),
        ("arrays", types.ListType(types.float64[:])),
        ("pair", types.Tuple((types.float64[:], types.int64))),
        ("maybe", types.optional(INNER)),
        ("__hidden", numba.float64[::1]),
    ]
)
class Outer:
    def __init__(self, inner, arrays, pair):
        self.inner = inner
        self.arrays = arrays
        self.pair = pair
        self.maybe = None
        self.__hidden = pair[0].copy()

    def hide(self, number):
        self.__hidden[0] = number

    def hidden(self):
        return self.__hidden[0]


def test_parts_are_copied():
    arrays = List.empty_list(types.float64[:])
    arrays.append(np.ones(3)[:2])
    outer = Outer(Parameters(np.ones(2), 1.0), arrays, (np.ones(3)[:2], 5))
    for maybe in (None, Parameters(np.zeros(1), 7.0)):
        outer.maybe = maybe
        copy = copied_argument(outer)
        assert type(copy) is type(outer)
        outer.inner.a[0] = outer.inner.k = outer.arrays[0][0] = outer.pair[0][0] = 100.0
        outer.hide(100.0)
        assert (copy.inner.a[0], copy.inner.k, copy.arrays[0][0], copy.pair[0][0]) == (1.0,) * 4
        assert (copy.pair[1], copy.hidden()) == (5, 1.0)
        assert copy.maybe is None if maybe is None else copy.maybe.k == 7.0
        outer.inner.a[0] = outer.inner.k = outer.arrays[0][0] = outer.pair[0][0] = 1.0
        outer.hide(1.0)


def test_other_containers_are_copied():
    pair = Pair(np.ones(2), 3)
    copy = copied_argument(pair)
    pair.first[0] = 100.0
    assert copy.first[0] == 1.0
    given = table("a", List([np.ones(2)])), {1.0}, np.ones(2)
    copy = copied_argument(given)
    given[0]["a"][0][0] = given[2][0] = 100.0
    given[1].add(2.0)
    assert copy[0]["a"][0][0] == copy[2][0] == 1.0
    assert copy[1] == {1.0}


def test_copies_are_freed():
    arrays = List.empty_list(types.float64[:])
    arrays.append(np.ones(3)[:2])
    given = Outer(Parameters(np.ones(2), 1.0), arrays, (np.ones(3)[:2], 5))
    copied_argument(given)
    counted = numba.core.runtime._nrt_python
    counted.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        for _ in range(10):
            copied_argument(given)
        after = rtsys.get_allocation_stats()
    finally:
        counted.memsys_disable_stats()
    assert after.alloc > before.alloc
    assert after.alloc - before.alloc == after.free - before.free
