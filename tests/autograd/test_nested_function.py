"""`NestedIOFunction`, whose inputs and outputs are nested containers."""

from typing import NamedTuple

import pytest
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad
from tapegrad.autograd.function import NestedIOFunction


class Pair(NamedTuple):
    a: object
    b: object


class Both(NestedIOFunction):
    """The product and the sum of a pair, in any container of two."""

    def forward_extended(self, x, pair):
        first, second = pair.values() if isinstance(pair, dict) else pair
        self.save_for_backward(x, [first, (second,)])
        self.kind = type(pair)
        out = x * first * second, x + first
        return {"product": out[0], "sum": out[1]} if self.kind is dict else list(out)

    def backward_extended(self, *grads):
        x, [first, (second,)] = self.saved_tensors
        (g, h) = grads[0].values() if self.kind is dict else grads
        by_first, by_second = g * x * second + h, g * x * first
        if self.kind is dict:
            pair = {"a": by_first, "b": by_second}
        elif self.kind is Pair:
            pair = Pair(by_first, by_second)
        else:
            pair = self.kind([by_first, by_second])
        return g * first * second + h, pair


CONTAINERS = [
    lambda a, b: [a, b],
    lambda a, b: (a, b),
    Pair,
    lambda a, b: {"a": a, "b": b},
]


def record(backward=None, forward=None):
    """A NestedIOFunction from plain functions."""
    return type(
        "Nested",
        (NestedIOFunction,),
        {
            "forward_extended": forward or (lambda self, items: [i * 2 for i in items]),
            "backward_extended": backward or (lambda self, *grads: [g * 2 for g in grads]),
        },
    )


def backward_of_a_list(self, *grads):
    """The gradient of a single argument, which is a list."""
    return ([g * 2 for g in grads],)


class TestNested:
    """Inputs and outputs are nested lists, tuples, namedtuples or dicts of tensors."""

    @pytest.mark.parametrize("container", CONTAINERS, ids=["list", "tuple", "namedtuple", "dict"])
    def test_gradients(self, container):
        x, a, b = leaf(2.0), leaf(3.0), leaf(5.0)
        out = Both.apply(x, container(a, b))
        product, total = out.values() if isinstance(out, dict) else out
        assert (product.item(), total.item()) == (30.0, 5.0)
        (product + total * 10).backward()
        assert [t.grad.item() for t in (x, a, b)] == [25.0, 20.0, 6.0]

    def test_the_form_of_the_outputs_is_kept(self):
        def forward(self, x):
            return [x * 2, (x * 3,), {"a": x * 4, "b": None}, Pair(x * 5, None)]

        x = leaf(1.0)
        out = record(forward=forward).apply(x)
        assert type(out) is list
        two, (three,), mapping, pair = out
        assert type(out[1]) is tuple
        assert type(pair) is Pair
        assert mapping["b"] is None
        assert pair.b is None
        assert [t.item() for t in (two, three, mapping["a"], pair.a)] == [2.0, 3.0, 4.0, 5.0]
        assert all(t.requires_grad for t in (two, three, mapping["a"], pair.a))

    def test_a_single_tensor(self):
        f = record(forward=lambda self, x: x * 2, backward=lambda self, g: g * 2)
        x = leaf(1.0)
        y = f.apply(x)
        assert isinstance(y, tg.Tensor)
        y.backward()
        assert x.grad.item() == 2.0

    def test_static_methods_serve_too(self):
        f = record(
            forward=staticmethod(lambda ctx, items: items[0] * items[1]),
            backward=staticmethod(lambda ctx, g: ([g * 3, g * 2],)),
        )
        x, y = leaf(2.0), leaf(3.0)
        f.apply([x, y]).backward()
        assert (x.grad.item(), y.grad.item()) == (3.0, 2.0)

    def test_backward_gets_cotangents_in_the_form_of_the_outputs(self):
        seen = []

        def backward(self, *grads):
            seen.append(grads)
            return ([grads[0], grads[0]],)

        f = record(backward, lambda self, items: [items[0] * 2, (items[1] * 3, items[1] * 4)])
        x, y = leaf(1.0), leaf(1.0)
        a, (_, c) = f.apply([x, y])
        (a + c * 10).backward()
        first, (second, third) = seen[0]
        assert [g.item() for g in (first, second, third)] == [1.0, 0.0, 10.0]
        assert type(seen[0][1]) is tuple

    def test_none_among_inputs_and_gradients(self):
        f = record(
            forward=lambda self, items: items[0] * 2,
            backward=lambda self, g: ([g * 2, None, None],),
        )
        x, y = leaf(1.0), leaf(1.0)
        f.apply([x, None, y]).backward()
        assert x.grad.item() == 2.0
        assert y.grad is None

    def test_twice_differentiable(self):
        x, a, b = leaf(2.0), leaf(3.0), leaf(5.0)
        product, _ = Both.apply(x, (a, b))
        (by_x,) = grad(product, x, create_graph=True)
        assert by_x.item() == 15.0
        assert [g.item() for g in grad(by_x, [a, b])] == [5.0, 3.0]

    def test_not_recorded(self):
        with tg.no_grad():
            out = Both.apply(leaf(2.0), [leaf(3.0), leaf(5.0)])
        assert [t.requires_grad for t in out] == [False, False]

    def test_the_node(self):
        product, _ = Both.apply(leaf(2.0), [leaf(3.0), leaf(5.0)])
        assert product.grad_fn.name() == "BothBackward"


class TestContextOfNested:
    """`saved_tensors` comes back in the nested form; `mark_*` take nested arguments."""

    def test_saved_tensors(self):
        seen = []

        def forward(self, x, y):
            self.save_for_backward(x, [y, (None, x)], {"a": y}, Pair(x, y))
            return x * y

        def backward(self, g):
            seen.append(self.saved_tensors)
            return g, g

        record(backward, forward).apply(leaf(2.0), leaf(3.0)).backward()
        ((first, inner, mapping, pair),) = seen
        assert type(seen[0]) is tuple
        assert type(inner) is list
        assert type(inner[1]) is tuple
        assert inner[1][0] is None
        assert type(pair) is Pair
        found = [first, inner[0], inner[1][1], mapping["a"], pair.a, pair.b]
        assert [t.item() for t in found] == [2.0, 3.0, 2.0, 3.0, 2.0, 3.0]

    def test_saved_tensors_are_checked_and_freed(self):
        x, y = leaf(2.0) * 1, leaf(3.0)
        z, _ = Both.apply(x, [y, y])
        z.backward(retain_graph=True)
        z.backward()
        with pytest.raises(
            RuntimeError, match="Trying to backward through the graph a second time"
        ):
            z.backward()
        z, _ = Both.apply(x, [y, y])
        x.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()

    def test_mark_dirty(self):
        def forward(self, items):
            self.mark_dirty([items[0]], (items[1], None))
            return [items[0].add_(1.0), items[1].add_(2.0)]

        x = leaf(1.0)
        a, b = x * 1, x * 2
        out = record(backward_of_a_list, forward).apply([a, b])
        assert out[0] is a
        assert out[1] is b
        (a + b).backward()
        assert x.grad.item() == 6.0

    def test_mark_non_differentiable(self):
        def forward(self, x):
            y, z = x * 3, x * 4
            self.mark_non_differentiable([y, {"a": z}])
            return x * 2, y, z

        f = record(lambda self, a, b, c: a * 2, forward)
        x = leaf(1.0)
        out = f.apply(x)
        assert [t.requires_grad for t in out] == [True, False, False]
        out[0].backward()
        assert x.grad.item() == 2.0


class TestRefusedNested:
    """A leaf of another type raises ValueError that names the type."""

    TEXT = "doesn't know how to process an input object of type .*{}"

    @pytest.mark.parametrize(("bad", "name"), [(3, "int"), ("x", "str"), (object(), "object")])
    def test_among_the_inputs(self, bad, name):
        with pytest.raises(ValueError, match=self.TEXT.format(name)):
            record().apply([leaf(1.0), bad])

    def test_among_the_outputs(self):
        f = record(forward=lambda self, x: [x * 2, 3.0])
        with pytest.raises(ValueError, match=self.TEXT.format("float")):
            f.apply(leaf(1.0))

    def test_among_the_gradients(self):
        y = record(backward=lambda self, *g: (["x"],)).apply([leaf(1.0)])[0]
        with pytest.raises(ValueError, match=self.TEXT.format("str")):
            y.backward()

    def test_among_the_saved(self):
        def forward(self, x):
            self.save_for_backward([x, 3])
            return x * 2

        with pytest.raises(ValueError, match=self.TEXT.format("int")):
            record(forward=forward).apply(leaf(1.0))

    def test_the_base_class_has_no_rules(self):
        class Nothing(NestedIOFunction):
            pass

        with pytest.raises(NotImplementedError):
            Nothing.apply(leaf(1.0))

    def test_the_mode_is_restored(self):
        def forward(self, x):
            return [x * 2, 3.0]

        with pytest.raises(ValueError, match="float"):
            record(forward=forward).apply(leaf(1.0))
        assert tg.is_grad_enabled()
