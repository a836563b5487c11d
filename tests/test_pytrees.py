"""Pytrees as arguments and results of transforms: containers, dataclasses, registered classes."""

import collections
import dataclasses
import functools

import numpy as np
import optree
import pytest

import tapegrad as tg
from tapegrad.pytrees import tree

A = np.array([1.0, 2.0])
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Model:
    a: np.ndarray
    b: float
    name: str = "model"
    steps: int = 3
    more: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: np.ndarray
    b: float
    seen: bool = True


class Registered:
    def __init__(self, a, b):
        self.a, self.b = a, b


optree.register_pytree_node(
    Registered,
    lambda value: ((value.a, value.b), None, None),
    lambda _, children: Registered(*children),
    namespace="tapegrad",
)

MAKERS = [Model, Frozen, Registered, Pair]


def loss(p):
    return tg.sum(p.a**2) * p.b


@pytest.mark.parametrize("make", MAKERS)
class TestInstances:
    def test_gradient(self, make):
        found = tg.grad(loss)(make(A, 2.0))
        assert type(found) is make
        np.testing.assert_array_equal(found.a, 4 * A)
        assert found.b == 5.0

    def test_value_and_gradient_of_tensors(self, make):
        value, found = tg.value_and_grad(loss)(make(tg.tensor(A), 2.0))
        assert isinstance(found.a, tg.Tensor)
        assert value.item() == 10.0

    def test_products(self, make):
        value, tangent = tg.jvp(loss)(make(A, 2.0), make(np.ones(2), 1.0))
        assert (value, tangent) == (10.0, 17.0)
        found = tg.hvp(loss)(make(A, 2.0), make(np.ones(2), 0.0))
        np.testing.assert_array_equal(found.a, [4.0, 4.0])
        assert found.b == 6.0

    def test_results(self, make):
        """A function may return one."""
        value, pullback = tg.vjp(lambda x: make(x * x, tg.sum(x)), A)
        np.testing.assert_array_equal(value.a, A * A)
        (found,) = pullback(make(np.ones(2), 1.0))
        np.testing.assert_array_equal(found, 2 * A + 1)
        rows = tg.jacobian(lambda x: make(x * x, tg.sum(x)))(A)
        np.testing.assert_array_equal(rows.a, np.diag(2 * A))
        np.testing.assert_array_equal(rows.b, np.ones(2))

    def test_inside_containers(self, make):
        found = tg.grad(lambda d: loss(d["p"][0]) * d["c"])({"p": [make(A, 2.0)], "c": 3.0})
        assert type(found["p"][0]) is make
        np.testing.assert_array_equal(found["p"][0].a, 12 * A)
        assert found["c"] == 10.0


class TestDataclasses:
    def test_what_is_no_number_stays(self):
        given = Model(A, 2.0, "mine", 7, {"k": A, "m": [1.0]})
        found = tg.grad(lambda m: loss(m) + tg.sum(m.more["k"]) * m.more["m"][0] * m.steps)(given)
        assert (found.name, found.steps) == ("mine", 7)
        np.testing.assert_array_equal(found.more["k"], [7.0, 7.0])
        np.testing.assert_array_equal(found.more["m"], [21.0])
        assert given.a is A
        assert given.b == 2.0

    def test_nested(self):
        found = tg.grad(lambda m: loss(m) + loss(m.more))(Model(A, 2.0, more=Frozen(A, 3.0)))
        np.testing.assert_array_equal(found.more.a, 6 * A)
        assert found.more.seen is True

    def test_integers_in_them_are_no_parts(self):
        found = tg.grad(lambda m: tg.sum(m.a) * m.b)(Model(A, 2.0, more=np.arange(3)))
        np.testing.assert_array_equal(found.more, np.arange(3))

    def test_an_integer_where_the_class_has_a_real_number(self):
        model = Model(A, 2)
        with pytest.raises(TypeError, match=r"argument 0\.b has dtype int64"):
            tg.grad(lambda m: tg.sum(m.a) * m.b)(model)


class Unknown:
    a = 1.0


ELSEWHERE = "take it out of what is differentiated, as an argument of its own"
# pytrees, and how errors name the leaf that has no derivatives
LEAVES = {
    "a text": ({"a": 1.0, "name": "x"}, r"0\['name'\] is a str, not an array .*" + ELSEWHERE),
    "an integer": ({"a": 1.0, "n": 3}, r"0\['n'\] has dtype int64; .*" + ELSEWHERE),
    "inside of several": ([1.0, {"b": (2.0, 3)}], r"0\[1\]\['b'\]\[1\] has dtype int64"),
    "a named tuple": (Pair(1.0, {2: True}), r"0\.b\[2\] has dtype bool"),
    "a dataclass": (Model(A, 1.0, more=[1.0, 2]), r"0\.more\[1\] has dtype int64"),
    "an ordered dict": (collections.OrderedDict(b=1.0, a=2), r"0\['a'\] has dtype int64"),
    "an instance": ({"a": 1.0, "o": Unknown()}, r"0\['o'\] is a Unknown, not an array"),
    "the argument": (Unknown(), "0 is a Unknown, .* its class a dataclass, or register it with"),
    "half precision": ({"a": np.float16(1)}, r"0\['a'\] has dtype float16.*astype\('float32'\)"),
}


@pytest.mark.parametrize("transform", [tg.grad, tg.jacobian, tg.jacfwd])
@pytest.mark.parametrize("name", LEAVES)
def test_leaves_without_derivatives_are_named(name, transform):
    value, text = LEAVES[name]
    with pytest.raises(TypeError, match=f"^{transform.__name__}: argument {text}"):
        transform(lambda p: 1.0)(value)


@pytest.mark.parametrize("name", ["an integer", "inside of several"])
def test_leaves_without_derivatives_in_recorded_functions(name):
    value, text = LEAVES[name]
    with pytest.raises(TypeError, match=f"grad: argument {text}"):
        tg.jit(lambda x: x * tg.grad(lambda p: x)(value))(2.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1.0, "name": "x"}, r"0\['name'\] has type str; expected arrays"),
        ([1.0, (Unknown(),)], r"0\[1\]\[0\] has type Unknown; expected arrays"),
        (Unknown(), "0 has type Unknown; expected arrays"),
    ],
)
def test_leaves_that_recorded_functions_do_not_take(value, text):
    with pytest.raises(TypeError, match=f"^jit: argument {text}"):
        tg.jit(lambda p: 1.0)(value)


def test_leaves_of_states():
    with pytest.raises(TypeError, match=r"the state\['n'\]\[0\] contains a str"):
        tg.checkpoint_scan(lambda i, s: s, {"a": 1.0, "n": ["x"]}, 3)


class TestStructures:
    def test_what_is_cached_is_computed_again(self):
        @dataclasses.dataclass
        class Cached:
            a: np.ndarray

            @functools.cached_property
            def squares(self):
                return self.a**2

        given = Cached(A)
        assert given.squares is not None
        found = tg.grad(lambda p: tg.sum(p.squares) + tg.sum(p.a))(given)
        np.testing.assert_array_equal(found.a, 2 * A + 1)

    def test_a_list_of_a_class_of_its_own(self):
        class Own(list):
            pass

        found = tg.grad(lambda q: tg.sum(q**2))(Own([1.0, 2.0]))  # it counts as an array
        np.testing.assert_array_equal(found, [2.0, 4.0])

    def test_others_are_refused(self):
        """Parts would be taken for others, by their places."""
        _, pullback = tg.vjp(lambda a: {"p": a * 1, "q": a * 10}, A)
        with pytest.raises(ValueError, match="the cotangent has another structure"):
            pullback({"z": np.ones(2), "y": np.zeros(2)})
        product = tg.hvp(lambda p: tg.sum(p["a"] ** 2) + tg.sum(p["b"] ** 2))
        with pytest.raises(ValueError, match="the vector has another structure"):
            product({"a": A, "b": A}, {"b": A, "zz": A})
        with pytest.raises(ValueError, match="a tangent has another structure"):
            tg.jvp(lambda p: p["a"] * p["b"])({"a": A, "b": A}, {"b": A, "zz": A})

    @pytest.mark.parametrize("argnums", [(0, 0), (0, -2), (1, 0, 1)])
    def test_arguments_are_named_once(self, argnums):
        for transform in (tg.grad, tg.jacobian):
            with pytest.raises(ValueError, match="names an argument twice"):
                transform(lambda x, y: tg.sum(x * y), argnums)(A, A)


def test_arguments_out_of_range_are_named_as_such():
    with pytest.raises(ValueError, match="argnums 2 is out of range for 2 positional arguments"):
        tg.grad(lambda x, y: tg.sum(x * y), (0, 2))(A, A)


class TestHessians:
    def test_of_a_dict(self):
        found = tg.hessian(lambda d: tg.sum(d["a"] ** 2) * d["b"])({"a": A, "b": 2.0})
        np.testing.assert_array_equal(found["a"]["a"], 4 * np.eye(2))
        np.testing.assert_array_equal(found["a"]["b"], 2 * A)
        np.testing.assert_array_equal(found["b"]["a"], 2 * A)
        assert found["b"]["b"] == 0.0

    def test_of_a_dataclass(self):
        found = tg.hessian(loss)(Model(A, 2.0))
        np.testing.assert_array_equal(found.a.a, 4 * np.eye(2))
        np.testing.assert_array_equal(found.a.b, found.b.a)

    def test_some_parts_may_be_independent(self):
        one, two = tg.jacobian(lambda x: (x * 2, np.ones(2)))(A)
        np.testing.assert_array_equal(one, 2 * np.eye(2))
        np.testing.assert_array_equal(two, np.zeros((2, 2)))


class TestComplexArguments:
    """The gradient is that by the real part plus i times that by the imaginary part."""

    Z = np.array([1 + 2j, 3 - 1j])

    @staticmethod
    def power(z):
        return tg.sum((z * z.conj()).real ** 2)

    def differences(self, f):
        step = 1e-6
        rows = []
        for k in range(2):
            e = np.eye(2)[k] * step
            real = (f(self.Z + e) - f(self.Z - e)) / (2 * step)
            imaginary = (f(self.Z + 1j * e) - f(self.Z - 1j * e)) / (2 * step)
            rows.append(real + 1j * imaginary)
        return np.array(rows)

    def test_gradient(self):
        found = tg.grad(self.power)(self.Z)
        np.testing.assert_allclose(found, 4 * np.abs(self.Z) ** 2 * self.Z)
        expected = self.differences(lambda z: self.power(tg.tensor(z)).item())
        np.testing.assert_allclose(found, expected, rtol=1e-7)

    def test_products(self):
        v = np.array([0.3 - 1j, 2j])
        step = 1e-6
        for f in (lambda z: tg.sin(z) * z.conj(), lambda z: z.real * z.imag):
            _, tangent = tg.jvp(f)(self.Z, v)
            near = [f(tg.tensor(self.Z + s * step * v)).numpy() for s in (1, -1)]
            np.testing.assert_allclose(tangent, (near[0] - near[1]) / (2 * step), rtol=1e-8)
        gradient = tg.grad(self.power)
        expected = (gradient(self.Z + step * v) - gradient(self.Z - step * v)) / (2 * step)
        np.testing.assert_allclose(tg.hvp(self.power)(self.Z, v), expected, rtol=1e-8)
        _, pullback = tg.vjp(lambda z: z * z, self.Z)
        np.testing.assert_allclose(pullback(v)[0], (2 * self.Z).conj() * v)

    @pytest.mark.parametrize("repeats", [1, 5])
    def test_rows_of_a_jacobian(self, repeats):
        """Also where columns would be fewer."""
        found = tg.jacobian(lambda z: tg.tile((z * z.conj()).real, repeats))(self.Z)
        np.testing.assert_allclose(found, np.tile(np.diag(2 * self.Z), (repeats, 1)))

    def test_jacobians_of_complex_numbers_are_refused(self):
        with pytest.raises(TypeError, match=r"return their parts \(real, imag, or tg.view_as_real"):
            tg.jacobian(lambda z: z * z)(self.Z)
        with pytest.raises(TypeError, match="the Jacobian is of real ones"):
            tg.hessian(self.power)(self.Z)
        found = tg.jacobian(lambda z: tg.view_as_real(z * z))(self.Z)
        assert found.shape == (2, 2, 2)


# -- the order of leaves ---------------------------------------------------------------------------


def ordered(**parts):
    return collections.OrderedDict(parts)


class Named(collections.OrderedDict):
    """A subclass."""


V = np.array([1.0, 2.0, 3.0])
STATE = ordered(b=V, a=10.0 * V)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, Named])
def test_leaves_of_dicts_do_not_depend_on_the_order_of_keys(kind):
    leaves, build = tree(kind(b=1.0, a=[2.0, ordered(d=3.0, c=4.0)]), "")
    assert leaves == [2.0, 4.0, 3.0, 1.0]
    found = build([20.0, 40.0, 30.0, 10.0])
    assert type(found) is kind
    assert found == kind(b=10.0, a=[20.0, ordered(d=30.0, c=40.0)])


@pytest.mark.parametrize("transformed", [lambda f: f, tg.jit])
def test_cotangents_and_tangents_belong_to_keys(transformed):
    def function(s):
        return ordered(y=2.0 * s["b"], x=3.0 * s["a"])

    _, pull = tg.vjp(transformed(function), STATE)
    along = tg.jvp(transformed(function))
    square = tg.hvp(transformed(lambda s: tg.sum(s["a"] ** 2) + tg.sum(s["b"] ** 3)))
    for kind in (dict, collections.OrderedDict):
        (found,) = pull(kind(x=0.0 * V, y=V))
        np.testing.assert_array_equal(found["b"], 2.0 * V)
        np.testing.assert_array_equal(found["a"], 0.0 * V)
        _, dots = along(STATE, kind(a=0.0 * V, b=V))
        np.testing.assert_array_equal(dots["y"], 2.0 * V)
        np.testing.assert_array_equal(dots["x"], 0.0 * V)
        product = square(STATE, kind(a=0.0 * V, b=V))
        np.testing.assert_allclose(product["b"], 6.0 * V * V)
        np.testing.assert_array_equal(product["a"], 0.0 * V)


def stepped(s):
    return ordered(b=2.0 * s["b"], a=s["a"] + 1.0)


LOOPS = {
    "fori_loop": lambda s: tg.fori_loop(0, 3, lambda i, s: stepped(s), s),
    "scan": lambda s: tg.scan(lambda s, e: (stepped(s), None), s, np.ones(3))[0],
    "while_loop": lambda s: tg.while_loop(lambda s: tg.sum(s["b"]) < 40.0, stepped, s),
    "cond": lambda s: tg.cond(tg.sum(s["b"]) > 0.0, stepped, lambda s: s, s),
    "switch": lambda s: tg.switch(1, [lambda s: dict(s), stepped], s),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_states_belong_to_keys(name, kind):
    def total(x):
        found = LOOPS[name](kind(b=x, a=10.0 * x))
        return tg.sum(found["a"]) * 100.0 + tg.sum(found["b"])

    expected = total(tg.tensor(V)).item()
    assert expected > 6000.0
    assert tg.jit(total)(V) == pytest.approx(expected)
