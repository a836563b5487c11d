"""Versions of memory: who shares a counter, what counts, and what a counter finds out."""

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import MODIFIED, matrix

import tapegrad as tg


class TestCounting:
    """Every write adds one to `_version`, recorded or not."""

    @pytest.mark.parametrize(
        "write",
        [
            lambda t: t.add_(1),
            lambda t: t.__iadd__(1),
            lambda t: t.__setitem__(0, 1.0),
            lambda t: t.__setitem__(np.array([0, 1]), 1.0),
            lambda t: t.zero_(),
            lambda t: t.copy_(np.ones(3)),
            lambda t: np.add(t, 1, out=t),
            lambda t: np.add.at(t, [0], 1.0),
            lambda t: np.copyto(t, np.ones(3)),
            lambda t: t[1:].mul_(2),
        ],
    )
    @pytest.mark.parametrize("tracked", [True, False])
    def test_version_counts_writes(self, write, tracked):
        t = tg.tensor(np.arange(3.0), requires_grad=tracked) * 1
        assert t._version == 0
        write(t)
        assert t._version == 1
        write(t)
        assert t._version == 2
        assert (t * 2)._version == 0

    def test_new_tensors_begin_at_zero(self):
        t = tg.zeros(3)
        t += 1
        for new in (t * 2, t.clone(), t[np.array([0])], tg.tensor(t.numpy())):
            assert new._version == 0

    def test_reading_does_not_count(self):
        t = tg.zeros((2, 3))
        _ = t[0], t.T, t + t, t.sum(), t.tolist(), t.numpy(), t.detach(), t.reshape(-1)
        assert t._version == 0

    def test_backward_does_not_count(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        y.sum().backward()
        assert x._version == y._version == 0

    @pytest.mark.parametrize(
        "write", [lambda t: t.add_(1), lambda t: t.zero_(), lambda t: t.fill_(2)]
    )
    def test_leaves_count_under_no_grad(self, write):
        x = leaf([1.0, 2.0])
        with tg.no_grad():
            write(x)
            write(x[:1])
        assert x._version == 2

    def test_refused_writes_do_not_count(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        for t, value in ((x, 1.0), (y, np.ones((3, 2)))):
            with pytest.raises(RuntimeError):
                t += value
        assert x._version == y._version == 0

    def test_it_is_not_settable(self):
        with pytest.raises(AttributeError):
            tg.zeros(2)._version = 3


def test_other_memory_keeps_the_count():
    t = tg.tensor([1.0, 2.0])
    t += 1
    t += 1
    t.data = tg.tensor([3.0, 4.0])
    assert t._version == 2
    t += 1
    assert t._version == 3


class TestSharing:
    """Views and `detach()` share the counter; `.data` shares the memory only."""

    def test_version_is_shared_by_views(self):
        t = tg.zeros((2, 3))
        view = t[0]
        view += 1
        t += 1
        assert t._version == view._version == t.T._version == 2
        assert t.clone()._version == 0

    def test_detach_shares_memory_and_version(self):
        y = matrix() * 1
        d = y.detach()
        d += 1.0
        np.testing.assert_array_equal(values(y), np.arange(2.0, 8.0).reshape(2, 3))
        assert y._version == d._version == 1
        y += 1.0
        assert y._version == d._version == 2

    def test_data_shares_memory_but_no_version(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        z = y.sum()
        y.data.mul_(2.0)
        np.testing.assert_allclose(values(y), 2 * np.exp([1.0, 2.0]))
        assert y._version == 0
        z.backward()
        np.testing.assert_allclose(values(x.grad), 2 * np.exp([1.0, 2.0]))

    def test_data_of_a_leaf_may_be_written(self):
        x = leaf([1.0, 2.0])
        x.data.add_(1.0)
        x.data[0] = 9.0
        np.testing.assert_array_equal(values(x), [9.0, 3.0])
        assert x.is_leaf

    def test_views_of_detached_tensors_share_it(self):
        y = matrix() * 1
        d = y.detach()
        d[0].add_(1.0)
        y[1].T.detach()[:2].add_(1.0)
        assert y._version == d._version == d[1]._version == 2

    def test_data_has_its_own_counter(self):
        x = leaf([1.0, 2.0])
        d = x.data
        d += 1.0
        d[1:] *= 2.0
        assert x._version == 0
        assert d._version >= 2
        assert x.tolist() == [2.0, 6.0]

    def test_data_of_a_view(self):
        y = matrix() * 1
        y[0].data.zero_()
        assert y._version == y[0]._version == 0
        assert not values(y)[0].any()

    def test_views_of_data_do_not_count_either(self):
        x = leaf([1.0, 2.0])
        x.data[1:].add_(5.0)
        assert x._version == 0
        assert x.tolist() == [1.0, 7.0]

    def test_assigned_data_is_new_memory(self):
        x = leaf([1.0, 2.0])
        x.data = tg.tensor([5.0, 6.0])
        assert x._version == 0
        assert x.tolist() == [5.0, 6.0]


class TestUnseenWrites:
    """A write past the library does not count, unless `increment_version` notes it."""

    def test_unnoted(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        total = y.sum()
        y.detach().numpy()[:] = 0.0
        assert y._version == 0
        total.backward()
        assert x.grad.tolist() == [0.0, 0.0]

    def test_noted(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        total = y.sum()
        y.detach().numpy()[:] = 0.0
        tg.autograd.graph.increment_version(y.detach())
        assert y._version == 1
        with pytest.raises(RuntimeError, match=MODIFIED):
            total.backward()
