"""Dual tensors: levels, tangents through views and writes, Functions, and backward passes."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd import grad
from tapegrad.autograd.graph import saved_tensors_hooks
from tapegrad.eager.modes import MODE, RECORD_OP


def dual(values, tangent, requires_grad=False):
    return fw.make_dual(tg.tensor(values, requires_grad=requires_grad), tg.tensor(tangent))


def tangent(value):
    found = fw.unpack_dual(value).tangent
    return None if found is None else found.tolist()


@pytest.fixture
def level():
    with fw.dual_level():
        yield


class TestLevels:
    def test_functions(self):
        assert fw.enter_dual_level() == 0
        y = dual([1.0], [2.0]) * 3.0
        assert tangent(y) == [6.0]
        fw.exit_dual_level(level=0)
        assert tangent(y) is None
        assert id(MODE.thread.__dict__) not in MODE.special
        assert MODE.thread.action == RECORD_OP

    def test_context(self):
        with fw.dual_level() as number:
            assert number == 0
            y = dual([1.0], [2.0])
        assert tangent(y) is None

    def test_decorator(self):
        @fw.dual_level()
        def slope(x):
            return tangent(fw.make_dual(x, tg.tensor(1.0)) ** 3)

        @fw.dual_level
        def twice():
            yield tangent(dual(1.0, 2.0))
            yield tangent(dual(1.0, 3.0))

        assert slope(tg.tensor(2.0)) == 12.0
        assert slope(tg.tensor(3.0)) == 27.0
        assert [*twice()] == [2.0, 3.0]

    def test_no_nesting(self, level):
        with pytest.raises(RuntimeError, match="Nested forward mode AD is not supported"):
            fw.enter_dual_level()
        with pytest.raises(RuntimeError, match="Nested forward mode AD"), fw.dual_level():
            pass
        assert tangent(dual(1.0, 2.0)) == 2.0

    def test_left_by_an_error(self):
        kept, depth = [], MODE.thread.depth

        @fw.dual_level()
        def fail():
            kept.append(dual(1.0, 2.0))
            raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert tangent(kept[0]) is None
        with fw.dual_level():
            assert tangent(kept[0]) is None
        assert MODE.thread.depth == depth

    def test_an_error_in_an_op(self):
        with fw.dual_level():
            x = dual([1.0, 2.0], [1.0, 0.0])
            with pytest.raises(ValueError, match="broadcast"):
                x * tg.tensor([1.0, 2.0, 3.0])
            assert tangent(x * x) == [2.0, 0.0]

    def test_numbers(self, level):
        x, v = tg.tensor(1.0), tg.tensor(2.0)
        with pytest.raises(RuntimeError, match="Invalid level"):
            fw.make_dual(x, v, level=1)
        with pytest.raises(RuntimeError, match="was not the last one"):
            fw.exit_dual_level(level=1)
        assert fw.unpack_dual(fw.make_dual(x, v, level=0), level=0).tangent is v

    def test_none(self):
        with pytest.raises(RuntimeError, match="no level exists"):
            fw.make_dual(tg.tensor(1.0), tg.tensor(1.0))
        with pytest.raises(RuntimeError, match="Dual level must be a positive number"):
            fw.exit_dual_level()
        x = tg.tensor(1.0)
        assert fw.unpack_dual(x) == (x, None)

    def test_threads_have_their_own(self, level):
        x = dual([1.0, 2.0], [1.0, 3.0])
        found = {}

        def other():
            found["outside"] = fw.unpack_dual(x).tangent
            found["recorded"] = (tg.tensor(2.0, requires_grad=True) * 3.0).requires_grad
            with fw.dual_level():
                found["theirs"] = tangent(dual(1.0, 5.0) * 2.0)
                found["ours"] = tangent(x * 2.0)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert found == {"outside": None, "recorded": True, "theirs": 10.0, "ours": None}
        assert tangent(x * 2.0) == [2.0, 6.0]

    def test_an_earlier_level(self):
        with fw.dual_level():
            x = tg.tensor([1.0, 2.0])
            part = x[:1]
            part += dual([1.0], [7.0])
            y = dual([1.0], [2.0], True).exp()
        with fw.dual_level():
            assert tangent(x) is None
            x[1] = dual(1.0, 3.0)
            assert tangent(x) == [0.0, 3.0]
            assert tangent(part) == [0.0]
            (g,) = grad(y, y)
            assert tangent(g) is None


class TestMaking:
    @pytest.mark.parametrize(
        ("primal", "direction", "error", "text"),
        [
            ([1, 2], [1.0, 2.0], ValueError, "Expected primal to be floating point or complex"),
            ([1.0, 2.0], [1, 2], ValueError, "Expected tangent to be floating point or complex"),
            ([1.0, 2.0], [1.0], RuntimeError, "different size than that of the original Tensor"),
            ([1.0], [1j], ValueError, "a real tensor has a real tangent"),
        ],
    )
    def test_refused(self, level, primal, direction, error, text):
        with pytest.raises(error, match=text):
            dual(primal, direction)

    def test_twice(self, level):
        x = dual(1.0, 2.0)
        with pytest.raises(RuntimeError, match="already has a forward gradient"):
            fw.make_dual(x, tg.tensor(1.0))
        with pytest.raises(RuntimeError, match="itself has a forward gradient"):
            fw.make_dual(tg.tensor(1.0), x)

    def test_parts(self, level):
        x, v = tg.tensor([1.0, 2.0]), tg.tensor([3.0, 4.0])
        made = fw.make_dual(x, v)
        parts = fw.unpack_dual(made)
        assert parts.tangent is v
        assert made._base is x
        assert parts.primal._base is x
        assert tangent(parts.primal) is None
        assert tangent(x) is None

    def test_the_dtype_is_that_of_the_primal(self, level):
        x = tg.tensor([1.0, 2.0], dtype=np.float32)
        assert fw.unpack_dual(fw.make_dual(x, tg.tensor([1.0, 2.0]))).tangent.dtype == np.float32
        z = fw.make_dual(tg.tensor([1j]), tg.tensor([1.0]))
        assert fw.unpack_dual(z).tangent.dtype == np.complex128

    def test_history(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        v = tg.tensor([3.0, 4.0], requires_grad=True)
        t = fw.unpack_dual(fw.make_dual(x, v) ** 3).tangent
        gx, gv = grad(t.sum(), (x, v))
        np.testing.assert_allclose(gx.tolist(), [6.0 * 3.0, 12.0 * 4.0])
        np.testing.assert_allclose(gv.tolist(), [3.0, 12.0])

    def test_after_the_level(self):
        v = tg.tensor([3.0, 4.0], requires_grad=True)
        with fw.dual_level():
            t = fw.unpack_dual(fw.make_dual(tg.tensor([1.0, 2.0]), v) * 2.0).tangent
        assert grad(t.sum(), v)[0].tolist() == [2.0, 2.0]

    def test_a_leaf_that_is_dual(self, level):
        x = dual([1.0, 2.0], [1.0, 0.5]).requires_grad_()
        (g,) = grad((x**3).sum(), x)
        assert tangent(g) == [6.0, 6.0]

    def test_in_a_batch(self, level):
        def item(x, v):
            y = fw.make_dual(x, v)
            return fw.unpack_dual(tg.sin(y) * y[0]).tangent

        x, v = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0], [-1.0, 2.0]])
        expected = tg.vmap(tg.jvp(lambda u: tg.sin(u) * u[0]))(x, v)[1]
        np.testing.assert_allclose(tg.vmap(item)(x, v), expected)
        np.testing.assert_allclose(tg.vmap(item, (0, None))(x, v[0])[0], expected[0])


class TestViewsAndWrites:
    def test_views_share_tangents(self, level):
        x = dual([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]])
        row, flipped = x[1], x.T[::-1]
        row *= 10.0
        assert tangent(x) == [[1.0, 2.0], [30.0, 40.0]]
        assert tangent(flipped) == [[2.0, 40.0], [1.0, 30.0]]
        flipped[0, 0] = dual(0.0, -1.0)
        assert tangent(x) == [[1.0, -1.0], [30.0, 40.0]]

    def test_a_work_array(self, level):
        work = tg.zeros(4)
        before = work[1:3]
        work[:2] = dual([5.0, 6.0], [1.0, 2.0])
        assert tangent(before) == [2.0, 0.0]
        assert tangent(work[2:]) == [0.0, 0.0]
        before += dual([1.0, 1.0], [10.0, 20.0])
        assert tangent(work) == [1.0, 12.0, 20.0, 0.0]
        work[1] = 0.0
        assert tangent(work) == [1.0, 0.0, 20.0, 0.0]
        work.zero_()
        assert tangent(work) == [0.0] * 4

    def test_overlapping_parts(self, level):
        x = dual([1.0, 2.0, 3.0], [1.0, 10.0, 100.0])
        x[1:] = x[:-1]
        assert tangent(x) == [1.0, 1.0, 10.0]
        x[1:] += x[:-1]
        assert tangent(x) == [1.0, 2.0, 11.0]

    def test_masks_places_and_out(self, level):
        x = dual([1.0, -2.0, 3.0], [1.0, 10.0, 100.0])
        y = x.clone()
        y[y < 0.0] = dual(5.0, 7.0)
        assert tangent(y) == [1.0, 7.0, 100.0]
        y[np.array([0, 2])] = x[:2]
        assert tangent(y) == [1.0, 7.0, 10.0]
        out = tg.zeros(3)
        np.multiply(x, 2.0, out=out)
        assert tangent(out) == [2.0, 20.0, 200.0]
        with pytest.raises(TypeError, match="`out` is a NumPy array"):
            np.multiply(x, 2.0, out=np.zeros(3))
        with pytest.raises(TypeError, match="numpy"):
            np.zeros(3)[:] = np.sum(x, out=np.zeros(()))

    def test_no_tensor_changes_with_another(self, level):
        v = tg.tensor([1.0, 2.0])
        x, other = fw.make_dual(tg.tensor([1.0, 2.0]), v), fw.make_dual(tg.tensor([5.0, 6.0]), v)
        y = x + 1.0
        kept = fw.unpack_dual(x).tangent
        y[0] = 5.0
        assert tangent(y) == [0.0, 2.0]
        x *= 3.0
        assert tangent(x) == [3.0, 6.0]
        assert tangent(other) == [1.0, 2.0] == v.tolist() == kept.tolist()
        whole = x.sum() + tg.zeros(2)
        whole[0] = 0.0
        assert tangent(whole) == [0.0, 9.0]

    def test_shapes_that_change_in_place(self, level):
        x = dual([[1.0, 2.0]], [[3.0, 4.0]])
        x.squeeze_()
        assert tangent(x) == [3.0, 4.0]
        y = tg.zeros((2, 3))
        y[0] = dual([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
        y.t_()
        assert tangent(y) == [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
        y[0, 1] = dual(0.0, 9.0)
        assert tangent(y.T) == [[1.0, 2.0, 3.0], [9.0, 0.0, 0.0]]
        with pytest.raises(RuntimeError, match="cannot change its shape in place"):
            dual([[1.0]], [[1.0]])[0].unsqueeze_(0)

    def test_the_primal_part(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        primal = fw.unpack_dual(x).primal
        primal[0] = dual(7.0, 8.0)
        assert tangent(primal) == [8.0, 0.0]
        assert tangent(x) == [3.0, 4.0]
        other = fw.unpack_dual(x).primal[1:]
        with pytest.raises(RuntimeError, match="primal part of a dual tensor"):
            other += dual([1.0], [1.0])

    def test_what_takes_tangents_off(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        assert tangent(x.detach()) is None
        assert tangent(x.data) is None
        assert tangent(x > 1.0) is None
        assert tangent(x.astype(int)) is None
        for lost in (lambda: x.numpy(), lambda: np.asarray(x)):
            with pytest.raises(RuntimeError, match="tangent"):
                lost()
        with pytest.raises(TypeError, match="lose its history"):
            tg.arange(x[0], 3.0)

    def test_lists(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        assert tangent(tg.array([x[0], 1.0, x[1] * 2.0])) == [3.0, 0.0, 8.0]
        assert tangent(np.stack([x, tg.zeros(2)])) == [[3.0, 4.0], [0.0, 0.0]]
        assert tangent(np.concatenate([x, np.ones(1)])) == [3.0, 4.0, 0.0]


class Cube(tg.Function):
    @staticmethod
    def forward(ctx, x):
        y = x**3
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        x, _ = ctx.saved_tensors
        return g * 3.0 * x**2

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        assert fw.unpack_dual(x).tangent is None
        return 3.0 * x**2 * t


class FromOutput(tg.Function):
    """e**x by its output."""

    @staticmethod
    def forward(ctx, x):
        y = tg.exp(x)
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0]


class TestWhatMustNotBeLost:
    """Tangents that once were, in silence."""

    @pytest.mark.parametrize("mode", [tg.no_grad, tg.enable_grad])
    def test_generators_that_end_in_a_level(self, mode):
        def numbers():
            with mode():
                yield from range(3)

        generator = numbers()
        next(generator)
        with fw.dual_level():
            x = dual([1.0], [2.0])
            generator.close()
            assert tangent(x * 3.0) == [6.0]
        assert MODE.thread.dual is None

    def test_levels_ended_by_hooks(self):
        fw.enter_dual_level()
        x = tg.tensor([1.0], requires_grad=True)
        y = fw.make_dual(x, tg.tensor([2.0])) * 3.0
        y.register_hook(lambda g: fw.exit_dual_level())
        y.sum().backward()
        assert MODE.thread.dual is None

    def test_results_as_arrays(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        assert tangent(tg.vmap(lambda row: row * x)(np.ones((2, 2)))) == [[3.0, 4.0]] * 2
        _, aux = tg.grad(lambda u: ((u**2).sum(), u * x), has_aux=True)(np.ones(2))
        assert tangent(aux) == [3.0, 4.0]
        _, _, aux = tg.vjp(lambda u: (u**2, u * x), np.ones(2), has_aux=True)
        assert tangent(aux) == [3.0, 4.0]

        def hooked(u):
            y = u * 1.0
            y.register_hook(lambda g: g * x)
            return y.sum()

        assert tangent(tg.grad(hooked)(np.ones(2))) == [3.0, 4.0]

    def test_views_from_functions(self, level):
        class Tail(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x[1:]

            @staticmethod
            def jvp(ctx, t):
                return t[1:]

        x = dual([1.0, 2.0, 3.0], [1.0, 10.0, 100.0])
        tail = Tail.apply(x)
        tail *= 2.0
        assert (x.tolist(), tangent(x)) == ([1.0, 2.0, 3.0], [1.0, 10.0, 100.0])
        assert (tail.tolist(), tangent(tail)) == ([4.0, 6.0], [20.0, 200.0])

    @pytest.mark.parametrize("dtype", ["float16", np.longdouble])
    def test_dtypes_without_derivatives(self, level, dtype):
        with pytest.raises(TypeError, match="cannot differentiate a result of dtype"):
            dual([1.0], [2.0]).astype(dtype)

    @pytest.mark.parametrize("kind", [float, int, complex])
    def test_numbers_from_tensors(self, level, kind):
        with pytest.warns(tg.DetachedWarning, match="has a tangent"):
            kind(dual(1.0, 2.0))

    def test_counts(self, level):
        with pytest.raises(TypeError, match="no derivative with respect to counts"):
            tg.stats.poisson.logpmf(dual(2.0, 1.0), 3.0)

    @pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"x": (1, x)}])
    def test_containers_given_to_functions(self, level, make):
        with pytest.raises(RuntimeError, match="has a tangent, through which no gradient"):
            Cube.apply(make(dual([1.0], [2.0])))

    def test_refused_writes_change_nothing(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        counts = tg.tensor([5, 6])
        for write in (lambda: counts.copy_(x), lambda: counts.__setitem__(0, x[1])):
            with pytest.raises(RuntimeError, match=r"cannot hold|can't be cast"):
                write()
        view = fw.unpack_dual(x).primal[1:]
        with pytest.raises(RuntimeError, match="primal part"):
            view.copy_(x[:1])
        assert counts.tolist() == [5, 6]
        assert x.tolist() == [1.0, 2.0]

    def test_copies(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        assert tangent(copy.deepcopy(x)) == [3.0, 4.0]
        assert tangent(copy.copy(x)) == [3.0, 4.0]
        with pytest.raises(RuntimeError, match="cannot be pickled"):
            pickle.dumps(x)

    def test_detach_in_place(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0]) * 1.0
        assert tangent(x.detach_()) is None

    def test_results_in_a_level_have_no_more_history(self, level):
        x = dual([1.0, 2.0], [3.0, 4.0])
        value, _ = tg.vjp(lambda u: u**2, x)
        assert tangent(value) == [6.0, 16.0]
        assert not fw.unpack_dual(value).tangent.requires_grad


class TestFunctions:
    def test_tangents_of_passive_arguments(self, level):
        """Zeros for floats; integers have none."""
        seen = []

        class Product(tg.Function):
            @staticmethod
            def forward(ctx, x, factor):
                return x * factor

            @staticmethod
            def jvp(ctx, t, t_factor):
                seen.append(t_factor)
                return t * 2.0

        for factor in (tg.tensor([2, 2]), tg.tensor([2.0, 2.0])):
            assert tangent(Product.apply(dual([1.0, 2.0], [3.0, 4.0]), factor)) == [6.0, 8.0]
        assert seen[0] is None
        assert seen[1].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_jvp(self, level, requires_grad):
        y = Cube.apply(dual([1.0, 2.0], [1.0, 0.5], requires_grad))
        assert tangent(y) == [3.0, 6.0]

    @pytest.mark.parametrize("function", [Cube, FromOutput])
    def test_forward_over_reverse(self, level, function):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = function.apply(fw.make_dual(x, tg.tensor([1.0, 0.5])))
        t = fw.unpack_dual(y).tangent
        over = grad(t.sum(), x, retain_graph=True)[0]
        (g,) = grad(y.sum(), x)
        np.testing.assert_allclose(tangent(g), over.tolist())

    def test_saved_outputs_through_hooks(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        with saved_tensors_hooks(lambda t: t.detach().numpy(), tg.tensor):
            y = FromOutput.apply(fw.make_dual(x, tg.tensor([1.0, 0.5])))
        (g,) = grad(y.sum(), x)
        np.testing.assert_allclose(tangent(g), np.exp([1.0, 2.0]) * [1.0, 0.5])

    def test_without_jvp(self, level):
        class Plain(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2.0

        assert tangent(Plain.apply(tg.tensor(1.0))) is None
        with pytest.raises(NotImplementedError, match="implement the jvp function"):
            Plain.apply(dual(1.0, 2.0))

    def test_several_outputs(self, level):
        class Pair(tg.Function):
            @staticmethod
            def forward(ctx, x, k):
                ctx.k = k
                ctx.mark_non_differentiable(sign := tg.sign(x))
                return x * k, sign, x + 1.0

            @staticmethod
            def jvp(ctx, t, _):
                return t * ctx.k, None, None

        first, sign, last = Pair.apply(dual([1.0], [3.0]), 2.0)
        assert (tangent(first), tangent(sign), tangent(last)) == ([6.0], None, None)

    def test_tangents_of_what_has_none(self, level):
        class Wrong(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_non_differentiable(x)
                return x

            @staticmethod
            def jvp(ctx, t):
                return t

        with pytest.raises(RuntimeError, match="is not a differentiable Tensor"):
            Wrong.apply(dual([1.0], [3.0]))

    def test_in_place(self, level):
        class Double(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                x *= 2.0
                return x

            @staticmethod
            def jvp(ctx, t):
                return t.mul_(2.0)

        t = tg.tensor([3.0, 4.0])
        x = fw.make_dual(tg.tensor([1.0, 2.0]), t)
        row = x[1:]
        Double.apply(x)
        assert tangent(x) == [6.0, 8.0]
        assert tangent(row) == [8.0]
        assert t.tolist() == [3.0, 4.0]

    def test_shape_of_the_tangent(self, level):
        class Wrong(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2.0

            @staticmethod
            def jvp(ctx, t):
                return t.sum()

        with pytest.raises(RuntimeError, match="different size than that of the original"):
            Wrong.apply(dual([1.0, 2.0], [3.0, 4.0]))


class TestBackwardPasses:
    def test_gradients_have_tangents(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = (fw.make_dual(x, tg.tensor([1.0, 0.5])) ** 3).sum()
        (g,) = grad(y, x)
        assert (g.tolist(), tangent(g)) == ([3.0, 12.0], [6.0, 6.0])
        assert not g.requires_grad

    def test_their_history(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = (fw.make_dual(x, tg.tensor([1.0, 0.5])) ** 4).sum()
        (g,) = grad(y, x, create_graph=True)
        t = fw.unpack_dual(g).tangent
        assert grad(t.sum(), x)[0].tolist() == [24.0, 24.0 * 2.0 * 0.5]

    def test_a_constant_with_a_tangent(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        w = dual([3.0, 4.0], [1.0, 10.0])
        (g,) = grad((x * w).sum(), x)
        assert tangent(g) == [1.0, 10.0]

    def test_cotangents_with_tangents(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        (g,) = grad(x * 2.0, x, dual([1.0, 1.0], [3.0, 4.0]))
        assert tangent(g) == [6.0, 8.0]

    def test_accumulation(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(2):
            (fw.make_dual(x, tg.tensor([1.0, 0.5])) ** 3).sum().backward()
        assert (x.grad.tolist(), tangent(x.grad)) == ([6.0, 24.0], [12.0, 12.0])

    def test_hooks(self, level):
        seen = []
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = fw.make_dual(x, tg.tensor([1.0, 0.5])) ** 2
        y.register_hook(lambda g: seen.append(tangent(g)) or g * 2.0)
        y.retain_grad()
        z = y * y
        (g,) = grad(z.sum(), x, retain_graph=True)
        assert seen == [[4.0, 4.0]]
        np.testing.assert_allclose(tangent(g), [24.0, 48.0])
        assert tangent(y.grad) == [8.0, 8.0]

    def test_saved_tensors_hooks(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        with saved_tensors_hooks(lambda t: t.detach().numpy(), tg.tensor):
            y = tg.exp(fw.make_dual(x, tg.tensor([1.0, 0.5])) * 2.0).sum()
        (g,) = grad(y, x)
        np.testing.assert_allclose(tangent(g), 4.0 * np.exp([2.0, 4.0]) * [1.0, 0.5])

    def test_after_the_level(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        with fw.dual_level():
            y = (fw.make_dual(x, tg.tensor([1.0, 0.5])) ** 3).sum()
        (g,) = grad(y, x)
        assert g.tolist() == [3.0, 12.0]

    def test_deeply_nested_passes(self, level):
        """Some of them run in a thread of their own."""

        class Nested(tg.Function):
            @staticmethod
            def forward(ctx, x, depth):
                ctx.save_for_backward(x)
                ctx.save_for_forward(x)
                ctx.depth = depth
                return x**3

            @staticmethod
            def jvp(ctx, t, _):
                return 3.0 * ctx.saved_tensors[0] ** 2 * t

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                if not ctx.depth:
                    return g * 3.0 * x**2, None
                with tg.enable_grad():
                    inner = fw.make_dual(fw.unpack_dual(x).primal, fw.unpack_dual(x).tangent)
                    inner.requires_grad_()
                    y = Nested.apply(inner, ctx.depth - 1)
                return g * grad(y, inner)[0], None

        x = tg.tensor(2.0, requires_grad=True)
        y = Nested.apply(fw.make_dual(x, tg.tensor(0.5)), 50)
        (g,) = grad(y, x)
        assert (g.item(), tangent(g)) == (12.0, 6.0)

    def test_overwritten_values(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        v = tg.tensor([1.0, 0.5])
        y = fw.make_dual(x, v) ** 3
        v *= 2.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            grad(y.sum(), x)

    def test_transforms(self, level):
        x = dual([1.0, 2.0], [1.0, 0.5])
        assert tangent(tg.grad(lambda u: (u**3).sum())(x)) == [6.0, 6.0]
        closed = tg.grad(lambda u: (u * x).sum())(np.ones(2))
        assert tangent(closed) == [1.0, 0.5]
        value, slope = tg.jvp(lambda u: u**3)(x, np.ones(2))
        assert (tangent(value), tangent(slope)) == ([3.0, 6.0], [6.0, 6.0])
        rows = tg.jacobian(lambda u: u**2)(x)
        assert tangent(rows) == [[2.0, 0.0], [0.0, 1.0]]
        _, pull = tg.vjp(lambda u: u**2, x)
        assert tangent(pull(np.ones(2))[0]) == [2.0, 1.0]
        assert isinstance(tg.grad(lambda u: (u**3).sum())(np.ones(2)), np.ndarray)
        found = tg.autograd.functional.jacobian(lambda u: u**2, x)
        assert tangent(found) == [[2.0, 0.0], [0.0, 1.0]]


@tg.njit
def weighted(x, a):
    total = 0.0
    for k in range(x.size):
        total += np.sin(x[k]) * a
    return total


@tg.njit
def scaled(x, a, n):
    y = np.empty_like(x)
    for k in range(x.size):
        y[k] = x[k] * a**n
    return y, n, a * a


@pytest.mark.compiled
class TestCompiledFunctions:
    def test_numbers(self, level):
        x, a = dual([1.0, 2.0], [1.0, 0.5]), dual(3.0, 0.1)
        y = weighted(x, a)
        slope = 3.0 * (np.cos([1.0, 2.0]) * [1.0, 0.5]).sum() + 0.1 * np.sin([1.0, 2.0]).sum()
        np.testing.assert_allclose(tangent(y), slope)

    def test_several_results(self, level):
        y, n, square = scaled(dual([1.0, 2.0], [1.0, 0.5]), 2.0, 3)
        assert (tangent(y), n, tangent(square)) == ([8.0, 4.0], 3, 0.0)

    def test_gradients(self, level):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = weighted(fw.make_dual(x, tg.tensor([1.0, 0.5])), 2.0)
        t = fw.unpack_dual(y).tangent
        expected = -2.0 * np.sin([1.0, 2.0]) * [1.0, 0.5]
        np.testing.assert_allclose(grad(t, x, retain_graph=True)[0].tolist(), expected)
        np.testing.assert_allclose(tangent(grad(y, x)[0]), expected)


@tg.njit
def nested(x):
    return (x * 2.0, x[0]), x[1] * x[2]


def product_of_results(x):
    (doubled, first), last = nested(x)
    return doubled.sum() * first * last


@pytest.mark.compiled
class TestNestedResults:
    """Of compiled functions."""

    def plain(self, x):
        return (x * 2.0).sum() * x[0] * x[1] * x[2]

    def test_gradients(self):
        x = np.array([1.0, 2.0, 3.0])
        expected = tg.grad(self.plain)(x)
        np.testing.assert_allclose(tg.grad(product_of_results)(x), expected)
        leaf = tg.tensor(x, requires_grad=True)
        (doubled, first), last = nested(leaf)
        (doubled.sum() * first * last).backward()
        np.testing.assert_allclose(leaf.grad.tolist(), expected)

    def test_tangents(self, level):
        x, v = tg.tensor([1.0, 2.0, 3.0]), tg.tensor([1.0, 10.0, 100.0])
        expected = tg.jvp(self.plain)(x, v)[1].tolist()
        assert tg.jvp(product_of_results)(x, v)[1].tolist() == pytest.approx(expected)
        assert tangent(product_of_results(fw.make_dual(x, v))) == pytest.approx(expected)

    def test_tangents_of_compiled_functions_have_a_history(self):
        x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (_, first), slopes = tg.jvp(nested)(x, tg.tensor([1.0, 10.0, 100.0]))[1]
        assert first.requires_grad
        assert grad(slopes, x)[0].tolist() == [0.0, 100.0, 10.0]


class TestLifetime:
    @pytest.mark.parametrize("shape", [(), (3,)])
    def test_results_that_outlive_the_level_keep_no_tangent(self, shape):
        with fw.dual_level():
            x = fw.make_dual(tg.ones(shape), tg.ones(shape))
            y = tg.sin(x * 2.0) + x
            watched = weakref.ref(fw.unpack_dual(y).tangent.detach().numpy())
            np.testing.assert_allclose(tangent(y), np.full(shape, 2 * np.cos(2) + 1))
        assert watched() is None
        assert y.shape == shape

    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_by_reference_count(self, requires_grad):
        gc.collect()
        gc.disable()
        try:
            with fw.dual_level():
                x = dual([1.0, 2.0], [1.0, 0.5], requires_grad)
                for _ in range(5):
                    x = tg.tanh(tg.exp(x * 0.1)) / (x + 2.0)
                y = FromOutput.apply(x)
                watched = [weakref.ref(fw.unpack_dual(z).tangent) for z in (x, y)]
            assert tangent(x) is None
            del x, y
            assert [reference() for reference in watched] == [None, None]
        finally:
            gc.enable()

    def test_tangents_go_with_their_tensors(self, level):
        x = dual([1.0, 2.0], [1.0, 0.5])
        watched = []
        for _ in range(5):
            x = tg.sin(x)
            watched.append(weakref.ref(fw.unpack_dual(x).tangent))
        assert [reference() is None for reference in watched] == [True] * 4 + [False]
