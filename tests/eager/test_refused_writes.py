"""Views that cannot be written to, and what a write does to the graph of base and siblings."""

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import LEAF, MULTIPLE, NO_GRAD_VIEW, ONE_LOCATION, VIEW_OF_LEAF, matrix

import tapegrad as tg

ROWS = {
    "row": lambda t: t[1],
    "columns": lambda t: t[:, 1:],
    "transpose": lambda t: t.T,
    "flat": lambda t: t.reshape(-1),
    "newaxis": lambda t: t[None],
    "chain": lambda t: t.T[1:][:, 1],
}


class TestViewsOfLeaves:
    """A view of a leaf is written to like the leaf itself: inside `no_grad` only."""

    @pytest.mark.parametrize("name", ROWS)
    def test_view_of_a_leaf_is_refused(self, name):
        x = matrix()
        view = ROWS[name](x)
        with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
            view += 1.0
        with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
            view[...] = 1.0
        np.testing.assert_array_equal(values(x), np.arange(1.0, 7.0).reshape(2, 3))

    @pytest.mark.parametrize("name", ROWS)
    def test_view_of_a_leaf_under_no_grad(self, name):
        x = matrix()
        with tg.no_grad():
            view = ROWS[name](x)
            view += 1.0
        expected = np.arange(1.0, 7.0).reshape(2, 3)
        ROWS[name](expected)[...] += 1.0
        np.testing.assert_array_equal(values(x), expected)
        assert x.is_leaf
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), 2.0)

    def test_text(self):
        view = leaf([1.0, 2.0])[:1]
        with pytest.raises(RuntimeError) as caught:
            view.zero_()
        text = (
            "a view of a leaf Variable that requires grad is being used in an in-place operation."
        )
        assert text in str(caught.value)

    def test_view_that_became_a_leaf(self):
        base = tg.zeros((2, 3))
        view = base[0].requires_grad_()
        with pytest.raises(RuntimeError, match=LEAF):
            view += 1.0
        (view * 2).sum().backward()
        np.testing.assert_array_equal(values(view.grad), 2.0)

    def test_base_that_became_a_leaf_after_its_view(self):
        base = tg.zeros((2, 3))
        view = base[0]
        base.requires_grad_()
        with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
            view += 1.0
        assert base.is_leaf

    def test_view_of_a_base_that_became_a_leaf_follows(self):
        base = tg.zeros((2, 3))
        view = base[0]
        base.requires_grad_()
        assert view.requires_grad
        (view * 3).sum().backward()
        np.testing.assert_array_equal(values(base.grad), [[3.0] * 3, [0.0] * 3])

    def test_a_view_that_is_a_leaf_follows_a_recorded_write_to_its_base(self):
        base, x = tg.zeros(2), leaf([1.0, 2.0])
        view = base[:1].requires_grad_()
        assert view.is_leaf
        base += x
        assert not view.is_leaf
        view.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 0.0])


class TestNoGradViews:
    """A view made inside `no_grad` is not written to while recording."""

    def test_view_made_without_recording(self):
        y = matrix() * 1
        with tg.no_grad():
            view = y[0]
        with pytest.raises(
            RuntimeError, match="A view was created in no_grad mode and is being modified"
        ):
            view += 1.0

    def test_view_made_and_modified_without_recording(self):
        x = matrix()
        y = x * 2
        with tg.no_grad():
            y[0].zero_()
        np.testing.assert_array_equal(values(y), [[0.0, 0.0, 0.0], [8.0, 10.0, 12.0]])
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), 2.0)

    def test_differentiable_value_into_a_passive_base_without_recording(self):
        x = leaf([1.0, 2.0, 3.0])
        base = tg.zeros((2, 3))
        view = base[0]
        with tg.no_grad():
            view += x
        assert not view.requires_grad
        assert not base.requires_grad
        np.testing.assert_array_equal(values(base), [[1.0, 2.0, 3.0], [0.0] * 3])

    def test_text(self):
        y = matrix() * 1
        with tg.no_grad():
            view = y[0]
        with pytest.raises(RuntimeError) as caught:
            view += 1.0
        assert str(caught.value) == (
            "A view was created in no_grad mode and is being modified inplace with grad mode "
            "enabled. Given that this use case is ambiguous and error-prone, it is forbidden. You "
            "can clarify your code by moving both the view and the inplace either both inside the "
            "no_grad block (if you don't want the inplace to be tracked) or both outside (if you "
            "want the inplace to be tracked)."
        )
        assert y._version == 0

    def test_a_leafs_view(self):
        x = matrix()
        with tg.no_grad():
            view = x[0]
        with pytest.raises(RuntimeError, match=NO_GRAD_VIEW):
            view += 1.0

    def test_a_view_of_such_a_view(self):
        y = matrix() * 1
        with tg.no_grad():
            view = y[0]
        deeper = view[1:]
        with pytest.raises(RuntimeError, match="created in no_grad mode and is being modified"):
            deeper += 1.0

    def test_a_passive_base_may_be_written_with_passive_values(self):
        base = tg.zeros(2)
        with tg.no_grad():
            view = base[:1]
        view += 1.0
        assert base.tolist() == [1.0, 0.0]

    def test_a_passive_base_is_not_given_a_history(self):
        base = tg.zeros(2)
        with tg.no_grad():
            view = base[:1]
        with pytest.raises(RuntimeError, match=NO_GRAD_VIEW):
            view += leaf([1.0])
        assert base.tolist() == [0.0, 0.0]

    def test_it_is_refused_after_a_write_to_its_base(self):
        y = matrix() * 1
        with tg.no_grad():
            view = y[0]
        y *= 2.0
        with pytest.raises(RuntimeError, match="no_grad mode and its base or another view of its"):
            _ = view.grad_fn


class TestSeveralViewsOfOneOp:
    """What a function returns beside other views is not written to while recording."""

    @pytest.mark.parametrize(
        ("name", "split"),
        [
            ("Split", lambda t: tg.split(t, 2)),
            ("Unstack", lambda t: tg.unstack(t)),
            ("ArraySplit", lambda t: np.array_split(t, 2)),
        ],
    )
    def test_one_of_several_views_of_one_op(self, name, split):
        x = matrix()
        y = x * 1
        first, _ = split(y)
        with pytest.raises(
            RuntimeError, match="the output of a function that returns multiple views"
        ):
            first += 1.0

    def test_a_piece_that_is_made_without_recording(self):
        y = matrix() * 1
        with tg.no_grad():
            first, _ = tg.unstack(y)
        with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
            first += 1.0

    @pytest.mark.parametrize("which", [0, 1])
    def test_text(self, which):
        pieces = tg.split(matrix() * 1, 2)
        with pytest.raises(RuntimeError) as caught:
            pieces[which].mul_(2.0)
        text = str(caught.value)
        assert f"Output {which} of Split" in text
        assert (
            " is a view and is being modified inplace. This view is the output of a function that "
            "returns multiple views. Such functions do not allow the output views to be modified "
            "inplace. You should replace the inplace operation by an out-of-place one."
        ) in text

    @pytest.mark.parametrize("show", [lambda t: t[0], lambda t: t.T, lambda t: t.reshape(-1)[1:]])
    def test_a_view_of_a_piece(self, show):
        x = matrix()
        y = x * 1
        view = show(tg.split(y, 2)[0])
        with pytest.raises(RuntimeError, match=MULTIPLE):
            view += 1.0
        assert y._version == 0

    def test_an_item_of_a_piece(self):
        y = matrix() * 1
        piece, _ = tg.split(y, 2)
        with pytest.raises(RuntimeError, match=MULTIPLE):
            piece[0] += 1.0
        assert y._version == 0
        np.testing.assert_array_equal(values(y), np.arange(1.0, 7.0).reshape(2, 3))

    def test_pieces_of_a_leaf(self):
        piece, _ = tg.split(matrix(), 2)
        with pytest.raises(RuntimeError, match=f"{MULTIPLE}|{LEAF}"):
            piece += 1.0

    def test_inside_no_grad_they_are_written(self):
        y = matrix() * 1
        piece, _ = tg.split(y, 2)
        with tg.no_grad():
            piece.zero_()
        assert not values(y)[0].any()
        assert piece._version == y._version == 1

    def test_of_a_passive_base_they_are_written(self):
        base = tg.zeros((2, 3))
        piece, _ = tg.split(base, 2)
        piece += 1.0
        np.testing.assert_array_equal(base.numpy(), [[1.0] * 3, [0.0] * 3])

    def test_after_a_write_to_the_base_they_are_right_or_refused(self):
        x = matrix()
        y = x * 1
        first, second = tg.split(y, 2)
        y *= 2.0
        try:
            (first * second).sum().backward()
        except RuntimeError as error:
            assert MULTIPLE in str(error)  # noqa: PT017
        else:
            np.testing.assert_array_equal(values(x.grad), 4 * values(x)[::-1])


class TestRepeatedElements:
    """A tensor that shows one element several times is not written to."""

    def test_broadcast_views_are_read_only(self):
        y = leaf([1.0, 2.0]) * 1
        wide = tg.broadcast_to(y, (3, 2))
        with pytest.raises((ValueError, RuntimeError)):
            wide += 1.0
        y.sum().backward()

    @pytest.mark.parametrize("tracked", [True, False])
    def test_text(self, tracked):
        y = tg.tensor([1.0, 2.0], requires_grad=tracked) * 1
        wide = tg.broadcast_to(y, (3, 2))
        with pytest.raises((RuntimeError, ValueError), match=ONE_LOCATION):
            wide += 1.0
        assert y.tolist() == [1.0, 2.0]
        assert y._version == 0

    def test_it_follows_a_write_to_its_base(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        wide = tg.broadcast_to(y, (3, 2))
        y *= 5.0
        np.testing.assert_array_equal(values(wide), [[5.0, 10.0]] * 3)
        wide.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [15.0, 15.0])


class TestGraph:
    """A write through a view gives base and siblings the history of the new values."""

    def test_grad_fn_of_the_base_changes(self):
        y = matrix() * 1
        view = y[0]
        before = y.grad_fn.name()
        view += 1.0
        assert y.grad_fn.name() != before
        assert y._version == view._version == 1

    def test_siblings_get_a_new_history_and_keep_their_place(self):
        y = matrix() * 1
        row, item = y[0], y[0][1:]
        before = row.grad_fn
        y.mul_(2.0)
        assert row.grad_fn is not before
        assert row._base is item._base is y
        assert row._version == item._version == y._version == 1

    def test_a_view_without_a_write_keeps_its_node(self):
        y = matrix() * 1
        row = y[0]
        assert row.grad_fn is row.grad_fn
        before = row.grad_fn.name()
        _ = y * 2
        assert row.grad_fn.name() == before

    def test_the_old_history_is_the_new_ones_parent(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        before = y.grad_fn
        y += 1.0
        parents = [node for node, _ in y.grad_fn.next_functions if node is not None]
        assert parents == [before]

    def test_a_write_to_another_part_counts_as_a_write(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 1
        z = (y[1:] ** 2).sum()
        y[0] = 9.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


class TestViewsMadeWithoutRecording:
    """The text says whether the view itself was made so, or what it is a view of."""

    @pytest.mark.parametrize("mode, now", [("no_grad", "grad mode"), ("inference", "normal")])
    def test_view_of_a_view(self, mode, now):
        y = matrix() * 1
        with tg.no_grad() if mode == "no_grad" else tg.inference_mode():
            row = y[0]
        part = row[:1]
        text = f"Output 0 of Getitem is a view of a view which was created in {mode} mode .* {now}"
        with pytest.raises(RuntimeError, match=text):
            part.mul_(2)
        with pytest.raises(RuntimeError, match=f"^A view was created in {mode} mode"):
            row.mul_(2)

    def test_one_of_several(self):
        y = matrix() * 1
        with tg.no_grad():
            row, _ = tg.unstack(y)
        with pytest.raises(RuntimeError, match=r"^A view was created in no_grad mode"):
            row.mul_(2)


def test_a_broadcast_view_copied_to_itself():
    """NumPy does not look whether a target is read-only if the source is the same array."""
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    wide = tg.broadcast_to(x * 1.0, (2, 2))
    with pytest.raises(ValueError, match="copy_: assignment destination is read-only"):
        wide.copy_(wide)
    wide.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 2.0])
