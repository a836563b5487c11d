"""Hooks of saved tensors, `save_on_cpu`, `disable_saved_tensors_hooks`."""

import gc
import threading
import weakref

import numpy as np
import pytest
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, grad
from tapegrad.autograd.graph import (
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)


def same(t):
    return t


def to_array(t):
    """Pack as a NumPy array: nothing of the tensor remains."""
    return np.array(t.detach().numpy())


def from_array(a):
    return tg.tensor(a.tolist())


class Log:
    """A pair of hooks that keep what they saw."""

    def __init__(self):
        self.packed, self.unpacked = [], []

    def __call__(self):
        return saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, t):
        self.packed.append(t.detach().tolist())
        return t.detach()

    def unpack(self, t):
        self.unpacked.append(t.tolist())
        return t


class Square(Function):
    """x², which saves its argument, None and its result."""

    seen = None

    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, None, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, nothing, y = ctx.saved_tensors
        Square.seen = (nothing, y.tolist())
        return 2 * x * g


X, W, C = [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]


class TestWhatIsPacked:
    """Everything an op saves for backward is packed, and nothing else."""

    @pytest.mark.parametrize(
        "op, expected",
        [
            (lambda x, w, c: x * w, [W, X]),
            (lambda x, w, c: x * x, [X, X]),
            (lambda x, w, c: x * c, [C]),
            (lambda x, w, c: c * x, [C]),
            (lambda x, w, c: x * 2.0, []),
            (lambda x, w, c: x / c, [C]),
            (lambda x, w, c: x + w, []),
            (lambda x, w, c: -x, []),
            (lambda x, w, c: x.exp(), [np.exp(X).tolist()]),
            (lambda x, w, c: x.tanh(), [np.tanh(X).tolist(), X]),
            (lambda x, w, c: x.log(), [X]),
            (lambda x, w, c: x.sin(), [X]),
            (lambda x, w, c: x @ w, [W, X]),
            (lambda x, w, c: x @ c, [C]),
            (lambda x, w, c: x.sum(), []),
            (lambda x, w, c: (x**2).sum(), [X]),
            (lambda x, w, c: (x * x).sum(), [X, X]),
            (lambda x, w, c: x[0], []),
            (lambda x, w, c: x.reshape(2, 1), []),
            (lambda x, w, c: tg.concatenate([x, w]), []),
            (lambda x, w, c: c * c, []),
        ],
    )
    def test_op(self, op, expected):
        log = Log()
        with log():
            op(leaf_of(*X), leaf_of(*W), tg.tensor(C))
        assert len(log.packed) == len(expected)
        assert np.allclose(sorted(log.packed), sorted(expected), rtol=1e-14)

    def test_a_matrix_product(self):
        a = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        b = tg.tensor([[5.0, 6.0], [7.0, 8.0]], requires_grad=True)
        log = Log()
        with log():
            a @ b
        assert sorted(log.packed) == [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]

    def test_a_write_in_place(self):
        log = Log()
        with log():
            (leaf_of(*X) * 1.0).exp_()
        assert log.packed == [pytest.approx(np.exp(X).tolist())]

    def test_without_recording(self):
        log = Log()
        with log(), tg.no_grad():
            leaf_of(*X).exp()
        assert log.packed == []

    def test_a_function_and_no_none(self):
        x, log = leaf_of(*X), Log()
        with log():
            y = Square.apply(x)
        assert log.packed == [X, [1.0, 4.0]]
        y.sum().backward()
        assert log.unpacked == [X, [1.0, 4.0]]
        assert Square.seen == (None, [1.0, 4.0])
        assert x.grad.tolist() == [2.0, 4.0]

    def test_what_is_packed_is_a_tensor_with_its_history(self):
        seen = []
        with saved_tensors_hooks(lambda t: seen.append(t) or t.detach(), same):
            leaf_of(*X).sin().exp()
        assert seen[0].requires_grad  # an input; an output has none yet
        assert seen[0].is_leaf

    def test_pack_runs_without_recording(self):
        seen = []
        with saved_tensors_hooks(lambda t: seen.append(tg.is_grad_enabled()), same):
            leaf_of(*X).exp()
        assert seen == [False]

    def test_ops_inside_pack_are_not_packed(self):
        seen = []
        with saved_tensors_hooks(lambda t: seen.append(1) or (t * t).exp(), same):
            leaf_of(*X).sin()
        assert seen == [1]


class TestUnpacking:
    """What pack returned is kept instead, and unpacked whenever backward needs the tensor."""

    def test_any_object_will_do(self):
        x = leaf_of(*X)
        store = {}

        def pack(t):
            store["key"] = t.detach()
            return "key"

        with saved_tensors_hooks(pack, store.__getitem__):
            y = x.sin()
        y.sum().backward()
        assert x.grad.tolist() == pytest.approx(np.cos(X))

    def test_what_unpack_returns_is_used(self):
        x = leaf_of(*X)
        with saved_tensors_hooks(lambda t: None, lambda nothing: tg.tensor([10.0, 20.0])):
            y = x.exp()
        y.sum().backward()
        assert x.grad.tolist() == [10.0, 20.0]

    def test_at_each_backward(self):
        x, log = leaf_of(*X), Log()
        with log():
            y = x.sin()
        assert log.unpacked == []
        y.sum().backward(retain_graph=True)
        assert log.unpacked == [X]
        y.sum().backward()
        assert log.unpacked == [X, X]
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second"):
            y.sum().backward()

    def test_each_time_saved_tensors_is_read(self):
        held = []

        class Keeps(Function):
            @staticmethod
            def forward(ctx, x):
                held.append(ctx)
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * 2

        x, log = leaf_of(*X), Log()
        with log():
            y = Keeps.apply(x)
        assert held[0].saved_tensors[0].tolist() == X
        assert held[0].saved_tensors[0].tolist() == X
        assert log.unpacked == [X, X]
        y.sum().backward()
        assert log.unpacked == [X, X]

    def test_the_result_of_a_function_gets_its_history_back(self):
        seen = []

        class Exp(Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, g):
                (y,) = ctx.saved_tensors
                seen.append((y.requires_grad, y.grad_fn.name()))
                return g * y

        x = leaf_of(*X)
        with saved_tensors_hooks(to_array, from_array):
            y = Exp.apply(x)
        (first,) = grad(y.sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x)
        assert seen[0] == (True, "ExpBackward")
        assert second.tolist() == pytest.approx(np.exp(X))

    def test_packed_objects_are_let_go_after_backward(self):
        class Packed:
            pass

        refs = []

        def pack(t):
            packed = Packed()
            packed.t = t.detach()
            refs.append(weakref.ref(packed))
            return packed

        with saved_tensors_hooks(pack, lambda packed: packed.t):
            y, z = leaf_of(*X).sin(), leaf_of(*X).sin()
        assert [ref() is None for ref in refs] == [False, False]
        y.sum().backward()
        del z
        assert [ref() is None for ref in refs] == [True, True]

    def test_a_saved_result_makes_no_cycle(self):
        gc.disable()
        try:
            with saved_tensors_hooks(lambda t: t.detach(), same):
                y = leaf_of(*X).exp()
            gone = weakref.ref(y)
            del y
            assert gone() is None
        finally:
            gc.enable()


class TestScope:
    """A pair applies to what is recorded inside its context, in its thread; the innermost wins."""

    def test_the_innermost_pair(self):
        outer, inner = Log(), Log()
        with outer():
            y = leaf_of(*X).sin()
            with inner():
                z = y.sin()
            w = z.sin()
        w.sum().backward()
        assert len(outer.packed) == len(outer.unpacked) == 2
        assert len(inner.packed) == len(inner.unpacked) == 1

    def test_recorded_outside_and_swept_inside(self):
        log = Log()
        y = leaf_of(*X).sin().sum()
        with log():
            y.backward()
        assert log.packed == log.unpacked == []

    def test_after_an_exception(self):
        log = Log()
        with pytest.raises(KeyError), log():
            raise KeyError
        leaf_of(*X).exp()
        assert log.packed == []

    def test_entered_twice(self):
        log = Log()
        hooks = log()
        for _ in range(2):
            with hooks:
                leaf_of(*X).sin()
        assert log.packed == [X, X]

    def test_other_threads(self):
        log = Log()
        thread = threading.Thread(target=lambda: leaf_of(*X).exp())
        with log():
            thread.start()
            thread.join()
        assert log.packed == []


class TestMutation:
    """A packed value is not checked against writes to the tensor it was made from."""

    def test_a_copy_keeps_the_old_value(self):
        x = leaf_of(*X)
        y = x * 1.0
        with saved_tensors_hooks(to_array, from_array):
            z = y.sin()
        y.mul_(2)
        z.sum().backward()
        assert x.grad.tolist() == pytest.approx(np.cos(X))

    def test_the_tensor_itself_shows_the_new_one(self):
        x = leaf_of(*X)
        y = x * 1.0
        with saved_tensors_hooks(same, same):
            z = y.sin()
        y.mul_(2)
        z.sum().backward()
        assert x.grad.tolist() == pytest.approx(np.cos([2.0, 4.0]))

    def test_a_function(self):
        x = leaf_of(*X)
        y = x * 1.0
        with saved_tensors_hooks(to_array, from_array):
            z = Square.apply(y)
        y.mul_(2)
        z.sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]

    @pytest.mark.parametrize("op", [lambda t: t.sin(), lambda t: t.exp()], ids=["input", "output"])
    @pytest.mark.parametrize("write", [lambda t: t.mul_(2), lambda t: t.detach().zero_()])
    def test_pack_must_not_write(self, write, op):
        def pack(t):
            write(t)
            return t

        y = leaf_of(*X) * 1.0
        with (
            pytest.raises(
                RuntimeError, match="saved tensor pack hook is modifying its input in place"
            ),
            saved_tensors_hooks(pack, same),
        ):
            op(y)


class TestErrors:
    """Errors of the hooks come through; unpack has to return a tensor."""

    @pytest.mark.parametrize("wrong", [5, None, "x"])
    def test_unpack_has_to_return_a_tensor(self, wrong):
        with saved_tensors_hooks(lambda t: None, lambda nothing: wrong):
            y = leaf_of(*X).exp()
        text = (
            "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
            + type(wrong).__name__
        )
        with pytest.raises(TypeError, match=text):
            y.sum().backward()

    def test_error_in_pack(self):
        def fail(t):
            raise KeyError("mine")

        x = leaf_of(*X)
        with pytest.raises(KeyError, match="mine"), saved_tensors_hooks(fail, same):
            x.exp()
        (x * x).sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_error_in_unpack(self):
        def fail(t):
            raise KeyError("mine")

        with saved_tensors_hooks(same, fail):
            y = leaf_of(*X).sin()
        with pytest.raises(KeyError, match="mine"):
            y.sum().backward()

    def test_hooks_that_unpack_leaves_open_end_with_it(self):
        packed = []

        def open_others(t):
            saved_tensors_hooks(lambda t: packed.append(t) or t, same).__enter__()
            return t

        x = leaf_of(*X)
        with saved_tensors_hooks(same, open_others):
            y = x.sin()
        y.sum().backward()
        x.cos()
        assert not packed
        np.testing.assert_allclose(x.grad, np.cos(X))


class TestDoubleBackward:
    """Unpacked tensors have their place in the graph again, so that backward is differentiable."""

    @pytest.mark.parametrize("op", [lambda x: x * x * x, lambda x: x.exp(), lambda x: x.sin()])
    def test_packed_as_arrays(self, op):
        x = leaf_of(*X)
        (g,) = grad(op(x).sum(), x, create_graph=True)
        (expected,) = grad(g.sum(), x)
        with saved_tensors_hooks(to_array, from_array):
            (g,) = grad(op(x).sum(), x, create_graph=True)
            (found,) = grad(g.sum(), x)
        assert found.tolist() == pytest.approx(expected.tolist())

    def test_what_backward_saves_is_packed_too(self):
        x, log = leaf_of(*X), Log()
        with log():
            y = x.sin().sum()
            assert len(log.packed) == 1
            grad(y, x, create_graph=True)
            assert len(log.packed) > 1

    def test_nothing_is_packed_by_a_plain_backward(self):
        x, log = leaf_of(*X), Log()
        with log():
            x.sin().sum().backward()
        assert log.packed == [X]


class TestSaveOnCpu:
    """`save_on_cpu` changes no result; `pin_memory` is accepted."""

    @pytest.mark.parametrize("arguments", [{}, {"pin_memory": False}, {"pin_memory": True}])
    def test_results(self, arguments):
        x = leaf_of(*X)
        with save_on_cpu(**arguments):
            y = (x * x).exp().sum()
        y.backward()
        assert x.grad.tolist() == pytest.approx(2 * np.array(X) * np.exp(np.array(X) ** 2))

    def test_it_is_a_pair_of_hooks(self):
        assert isinstance(save_on_cpu(), saved_tensors_hooks)

    def test_double_backward(self):
        x = leaf_of(*X)
        with save_on_cpu():
            (g,) = grad((x * x * x).sum(), x, create_graph=True)
            assert grad(g.sum(), x)[0].tolist() == [6.0, 12.0]


class TestDisabling:
    """Inside `disable_saved_tensors_hooks(message)`, using hooks raises the message."""

    def message(self):
        """What using hooks raises now."""
        try:
            with saved_tensors_hooks(same, same):
                return None
        except RuntimeError as error:
            return str(error)

    def test_message(self):
        with disable_saved_tensors_hooks("mine"):
            assert self.message() == "mine"
        assert self.message() is None

    def test_nesting(self):
        with disable_saved_tensors_hooks("outer"):
            with disable_saved_tensors_hooks("inner"):
                assert self.message() == "inner"
            assert self.message() == "outer"
        assert self.message() is None

    def test_after_an_exception(self):
        with pytest.raises(KeyError), disable_saved_tensors_hooks("mine"):
            raise KeyError
        assert self.message() is None

    def test_ops_are_recorded_as_always(self):
        x = leaf_of(*X)
        with disable_saved_tensors_hooks("mine"):
            (x * x).sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_save_on_cpu_is_such_a_use(self):
        with (
            disable_saved_tensors_hooks("mine"),
            pytest.raises(RuntimeError, match="mine"),
            save_on_cpu(),
        ):
            pass

    def test_where_hooks_are_in_use(self):
        with (
            saved_tensors_hooks(same, same),
            pytest.raises(RuntimeError, match="mine"),
            disable_saved_tensors_hooks("mine"),
        ):
            pass
        assert self.message() is None

    def test_as_a_decorator(self):
        assert disable_saved_tensors_hooks("mine")(self.message)() == "mine"
        assert self.message() is None
