"""Views: memory shared both ways, one history for a base and all that shows it."""

import warnings

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import matrix, numeric_grad

import tapegrad as tg
from tapegrad.autograd import grad

MASK = np.array([[True, False, True], [False, True, True]])
VIEWS = {
    "row": lambda t: t[1],
    "columns": lambda t: t[:, 1:],
    "element": lambda t: t[0, 2, ...],
    "step": lambda t: t[:, ::2],
    "reversed": lambda t: t[::-1, ::-1],
    "transpose": lambda t: t.T,
    "flat": lambda t: t.reshape(-1),
    "newaxis": lambda t: t[None, :, None],
    "all": lambda t: t[...],
    "chain": lambda t: t.T[1:][:, 1],
    "chain of slices": lambda t: t[1:][:, 1:][0],
    "squeezed": lambda t: t[:1].reshape(3),
    "swapped": lambda t: t.swapaxes(0, 1)[2],
}


class TestSharedMemory:
    """A view is the memory of its base; a write is seen on both sides."""

    @pytest.mark.parametrize("name", VIEWS)
    def test_views_share_memory_both_ways(self, name):
        t = tg.tensor(np.arange(6.0).reshape(2, 3))
        view = VIEWS[name](t)
        view += 100.0
        expected = np.arange(6.0).reshape(2, 3)
        VIEWS[name](expected)[...] += 100.0
        np.testing.assert_array_equal(t.numpy(), expected)
        t *= 2.0
        np.testing.assert_array_equal(view.numpy(), VIEWS[name](expected * 2))

    def test_is_view_and_base(self):
        y = matrix() * 1
        view = y[0]
        deeper = view[1:]
        assert view._base is y
        assert deeper._base is y
        assert y._base is None
        assert (view * 2)._base is None
        assert y[np.array([0])]._base is None

    def test_copies_are_no_views(self):
        y = matrix() * 1
        copies = [y.clone(), y.flatten(), y[np.array([0, 1])], y[MASK], y.copy(), y.T.reshape(-1)]
        before = values(y).copy()
        for t in copies:
            t += 100.0
        np.testing.assert_array_equal(values(y), before)

    def test_numpy_views_are_views(self):
        x = matrix()
        y = x * 1
        np.transpose(y)[0] += 10.0
        np.reshape(y, -1)[:1] *= 2.0
        np.testing.assert_array_equal(values(y), [[22.0, 2.0, 3.0], [14.0, 5.0, 6.0]])
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]])

    def test_iterating_gives_views(self):
        t = tg.zeros((2, 3))
        for k, row in enumerate(t):
            row += k
        np.testing.assert_array_equal(t.numpy(), [[0.0] * 3, [1.0] * 3])

    def test_only_views_are_views(self):
        y = matrix() * 1
        assert y[0]._is_view()
        assert y.T[0][1:]._is_view()
        for t in (y, y + 1, y.detach(), y[0].detach(), y.clone(), tg.zeros(3)):
            assert not t._is_view()
            assert t._base is None

    def test_a_view_of_a_detached_tensor_has_it_as_base(self):
        y = matrix() * 1
        d = y.detach()
        assert d[0]._base is d
        d[0].zero_()
        assert not values(y)[0].any()

    def test_views_of_a_leaf_have_it_as_base(self):
        x = matrix()
        assert x[0]._base is x
        assert x.T[1]._base is x


class TestWritesThroughViews:
    """A write through a view reaches the base and every sibling, with gradients."""

    @pytest.mark.parametrize("name", VIEWS)
    @pytest.mark.parametrize("how", ["add", "multiply", "assign", "tensor", "exp", "out"])
    def test_write_through_a_view(self, name, how):
        weights = np.arange(1.0, 7.0).reshape(2, 3)

        def plain(a, s):
            b = a * 1.5
            v = VIEWS[name](b)
            if how == "add":
                v[...] += s
            elif how == "multiply":
                v[...] *= s
            elif how == "assign":
                v[...] = 7.0
            elif how == "tensor":
                v[...] = np.sin(s)
            elif how in ("exp", "out"):
                v[...] = np.exp(v)
            return (b * b * weights).sum() + (v * v).sum()

        x, s = leaf(np.linspace(0.1, 0.6, 6).reshape(2, 3)), leaf(0.7)
        y = x * 1.5
        view = VIEWS[name](y)
        if how == "add":
            view += s
        elif how == "multiply":
            view *= s
        elif how == "assign":
            view[...] = 7.0
        elif how == "tensor":
            view[...] = tg.sin(s)
        elif how == "exp":
            view.exp_()
        else:
            np.exp(view, out=view)
        total = (y * y * weights).sum() + (view * view).sum()
        assert total.item() == pytest.approx(plain(values(x), 0.7))
        gx, gs = grad(total, [x, s], materialize_grads=True)
        np.testing.assert_allclose(
            values(gx),
            numeric_grad(lambda a: plain(a, 0.7), values(x).copy()),
            rtol=1e-6,
            atol=1e-8,
        )
        expected = numeric_grad(lambda b: plain(values(x), b), np.array(0.7))
        np.testing.assert_allclose(values(gs), expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("first", VIEWS)
    @pytest.mark.parametrize("second", ["row", "columns", "transpose", "flat", "chain"])
    def test_siblings_follow(self, first, second):
        def plain(a):
            b = a * 1.5
            v, w = VIEWS[first](b), VIEWS[second](b)
            v[...] *= 3.0
            w[...] += np.sin(2.0)
            b[0] *= 2.0
            return (v * v).sum() + 10 * (w * w * w).sum() + (b * b).sum()

        x = leaf(np.linspace(0.1, 0.6, 6).reshape(2, 3))
        y = x * 1.5
        v, w = VIEWS[first](y), VIEWS[second](y)
        v *= 3.0
        w += np.sin(2.0)
        y[0] *= 2.0
        total = (v * v).sum() + 10 * (w * w * w).sum() + (y * y).sum()
        assert total.item() == pytest.approx(plain(values(x)))
        total.backward()
        np.testing.assert_allclose(
            values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6, atol=1e-8
        )

    def test_passive_base_gets_a_history_through_its_view(self):
        x = leaf([1.0, 2.0, 3.0])
        base = tg.zeros((2, 3))
        other = base[:, 1]
        row = base[0]
        row += x
        assert base.requires_grad
        assert row.requires_grad
        assert other.requires_grad
        (base.sum() + 10 * other.sum()).backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 11.0, 1.0])

    def test_write_to_a_base_with_views_alive(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 2
        head, tail = y[:1], y[1:]
        y *= 5
        np.testing.assert_array_equal(values(tail), [20.0, 30.0])
        (head.sum() + 2 * tail.sum()).backward()
        np.testing.assert_array_equal(values(x.grad), [10.0, 20.0, 20.0])

    def test_views_that_have_gone_are_no_obstacle(self):
        x = leaf(np.ones(5))
        y = x * 2
        for k in range(100):
            y[k % 5 : k % 5 + 1] += 1.0
        y.sum().backward()
        np.testing.assert_array_equal(values(y), 2.0 + 20.0)
        np.testing.assert_array_equal(values(x.grad), 2.0)

    def test_base_that_has_gone(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 2
        view = y[1:]
        del y
        view *= 3
        view.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 6.0, 6.0])

    def test_a_chain_of_views_of_views(self):
        x = leaf(np.arange(12.0).reshape(3, 4))
        y = x * 1
        a = y[1:]
        b = a.T
        c = b[1:3]
        d = c.reshape(1, 2, 2)
        e = d[0, 1]
        e *= 10.0
        expected = np.arange(12.0).reshape(3, 4)
        expected[1:, 2] *= 10.0
        np.testing.assert_array_equal(values(y), expected)
        (y.sum() + d.sum() + a[0].sum()).backward()
        exact = np.ones((3, 4))
        exact[1:, 1:3] += 1.0
        exact[1] += 1.0
        exact[1:, 2] *= 10.0
        np.testing.assert_array_equal(values(x.grad), exact)

    def test_a_write_through_a_part_of_a_reshape(self):
        x = leaf(np.arange(6.0).reshape(2, 3))
        y = x * 1
        y.reshape(-1)[2:4] *= 5.0
        np.testing.assert_array_equal(values(y), [[0.0, 1.0, 10.0], [15.0, 4.0, 5.0]])
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[1.0, 1.0, 5.0], [5.0, 1.0, 1.0]])

    def test_the_diagonal(self):
        x = leaf(np.arange(9.0).reshape(3, 3))
        y = x * 1
        diagonal = y.diagonal()
        y *= 2.0
        np.testing.assert_array_equal(values(diagonal), [0.0, 8.0, 16.0])
        diagonal.sum().backward()
        np.testing.assert_array_equal(values(x.grad), 2 * np.eye(3))

    def test_a_write_of_what_the_view_shows(self):
        x = leaf([[1.0, 2.0], [3.0, 4.0]])
        y = x * 1
        y[0] = y[1] * y[0]
        np.testing.assert_array_equal(values(y), [[3.0, 8.0], [3.0, 4.0]])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()  # the product needs row 0 as it was


def functions_of_one_tensor():
    skipped = {"Function", "Tensor", "as_tensor", "from_dlpack", "tensor"}
    skipped |= {"stop_gradient"}  # which is `detach`
    for module in (tg, tg.linalg, tg.fft, tg.special):
        for name in sorted(set(dir(module)) - skipped):
            if not name.startswith("_") and callable(getattr(module, name)):
                yield getattr(module, name)
    for spec in ("ij->ji", "ij->ij", "ii->i", "ij,->ij"):
        yield lambda t, *scale, spec=spec: tg.einsum(spec, t, *scale)


def outputs(function, *args):
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            found = function(*args)
    except Exception:  # not a function of such arguments
        return []
    found = found if isinstance(found, (tuple, list)) else [found]
    return [t for t in found if isinstance(t, tg.Tensor)]


class TestNoHiddenSharing:
    """What an op returns has memory of its own, or it is a view and known as one."""

    @pytest.mark.parametrize("tracked", [True, False])
    @pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 3), (1, 3), (1, 1, 3)])
    def test_of_all_functions(self, shape, tracked):
        x = tg.tensor(np.linspace(0.2, 0.4, int(np.prod(shape))).reshape(shape))
        t = x.requires_grad_(tracked) * 1.0
        count = 0
        for function in functions_of_one_tensor():
            for args in ((t,), (t, 0), (t, shape), ([t],)):
                for found in outputs(function, *args):
                    count += 1
                    if found is not t and np.shares_memory(values(found), values(t)):
                        assert found._is_view(), function
                        assert found._base is t, function
        assert count > 100

    @pytest.mark.parametrize(
        "show",
        [np.real, tg.real, lambda t: tg.einsum("ij->ji", t), lambda t: tg.einsum("ij->ij", t)],
        ids=["numpy.real", "real", "einsum transpose", "einsum"],
    )
    def test_a_write_through_it_has_a_gradient(self, show):
        x = leaf([[1.0, 2.0], [3.0, 4.0]])
        y = x * 1.5
        shown = show(y)
        shown *= 3.0
        before = values(x) * 1.5
        np.testing.assert_array_equal(values(shown).sum(), before.sum() * 3)
        scale = values(y) / before  # 3 if it is a view, 1 if it is a copy
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), 1.5 * scale)
