"""`inference_mode` and the tensors that are made in it."""

import pytest
from functions import ProductOfTwo
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, grad
from tapegrad.eager.modes import MODE
from tapegrad.utils.checkpoint import checkpoint

SAVED = "Inference tensors cannot be saved for backward"
WRITTEN = "Inplace update to inference tensor outside InferenceMode is not allowed"
REQUIRES_GRAD = (
    "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed"
)
VERSION = "Inference tensors do not track version counter"


def state():
    """Whether inference mode and recording are on."""
    return tg.is_inference_mode_enabled(), tg.is_grad_enabled()


def inference_tensor(*numbers):
    with tg.inference_mode():
        return tg.tensor(list(numbers) or [1.0, 2.0])


@pytest.fixture(autouse=True)
def unchanged():
    assert state() == (False, True)
    yield
    assert state() == (False, True)


class TestSwitching:
    """It turns recording off, nests, and restores what was; the rest is in `test_modes`."""

    def test_turned_off_inside(self):
        with tg.inference_mode():
            with tg.inference_mode(False):
                assert state() == (False, True)
                assert (leaf_of(1.0) * 2).requires_grad
                assert not (leaf_of(1.0) * 2).is_inference()
            assert state() == (True, False)

    def test_false_outside(self):
        with tg.inference_mode(mode=False):
            assert state() == (False, True)

    def test_in_no_grad(self):
        with tg.no_grad():
            with tg.inference_mode():
                assert state() == (True, False)
            with tg.inference_mode(False):
                assert state() == (False, True)
            assert state() == (False, False)

    def test_nesting(self):
        with tg.inference_mode():
            with tg.inference_mode(), tg.no_grad():
                assert state() == (True, False)
            assert state() == (True, False)

    def test_recording_turned_on_inside_records_nothing(self):
        with tg.inference_mode(), tg.enable_grad():
            y = leaf_of(1.0) * 2
            assert state() == (True, True)
        assert not y.requires_grad
        assert y.grad_fn is None
        assert y.is_inference()

    def test_a_function_in_which_it_is_off(self):
        @tg.inference_mode(False)
        def off():
            return state()

        assert off() == (False, True)
        with tg.inference_mode():
            assert off() == (False, True)


class TestWhatIsMade:
    """What is computed inside are inference tensors; views are what their bases are."""

    def test_results_and_new_tensors(self):
        x = leaf_of(1.0, 2.0)
        with tg.inference_mode():
            made = [x * 2, tg.ones(2), tg.tensor([1.0]), x.exp()[:1]]
        assert [t.is_inference() for t in made] == [True] * 4
        assert [t.requires_grad for t in made] == [False] * 4
        assert [t.is_leaf for t in made] == [True] * 4

    def test_tensors_from_outside_stay_normal(self):
        x = leaf_of(1.0, 2.0)
        with tg.inference_mode():
            assert not x.is_inference()
            assert not x[:1].is_inference()
            assert not x.detach().is_inference()

    def test_a_leaf_that_requires_grad(self):
        with tg.inference_mode():
            x = leaf_of(1.0)
            x2 = tg.ones(1).requires_grad_()
        assert x.is_inference() and x.requires_grad
        assert x2.is_inference() and x2.requires_grad

    def test_views_made_outside(self):
        t = inference_tensor()
        for view in (t[:1], t.reshape(2, 1), t.detach(), t.data):
            assert view.is_inference()
            assert not view.requires_grad

    def test_copies_and_results_made_outside_are_normal(self):
        t = inference_tensor()
        for made in (t.clone(), t + 0, t * 2):
            assert not made.is_inference()

    def test_a_copy_takes_part_in_everything(self):
        x = inference_tensor().clone().requires_grad_()
        y = x * 1
        y.mul_(2)
        y.exp().sum().backward()
        assert x.grad is not None
        assert y._version == 1

    def test_normal_tensors(self):
        assert not tg.tensor([1.0]).is_inference()
        assert not (leaf_of(1.0) * 2).is_inference()

    def test_values_can_be_read(self):
        t = inference_tensor()
        assert t.tolist() == t.numpy().tolist() == [1.0, 2.0]
        assert t[1].item() == 2.0


def leaf_made_inside(*numbers):
    with tg.inference_mode():
        return leaf_of(*numbers)


USES = {
    "multiply": lambda r, s: r * s,
    "reflected": lambda r, s: s * r,
    "own square": lambda r, s: r * r * s,
    "of exp": lambda r, s: tg.exp(s) * r,
    "exp": lambda r, s: tg.exp(r) * s,
    "outer": lambda r, s: tg.outer(r, s),
    "matmul": lambda r, s: r @ s,
    "einsum": lambda r, s: tg.einsum("i,i->", r, s),
    "power": lambda r, s: s**r,
    "maximum": lambda r, s: tg.maximum(r, s) * s,
    "where": lambda r, s: tg.where(r > 0.5, s, r) * s,
    "view": lambda r, s: r[:1] * s[:1],
    "column": lambda r, s: r.reshape(2, 1) * s,
    "detached": lambda r, s: r.detach() * s,
    "data": lambda r, s: r.data * s,
    "array": lambda r, s: r.detach().numpy() * s,
    "norm": lambda r, s: tg.linalg.norm(r) * s,
    "sum": lambda r, s: r.sum() * s,
    "in place": lambda r, s: (s * 1.0).mul_(r),
    "sum of both": lambda r, s: r + s * s,
    "twice": lambda r, s: r * 2.0 + s * s,
    "Function": ProductOfTwo.apply,
    "checkpoint": lambda r, s: checkpoint(lambda x, y: x * y, r, s, use_reentrant=False),
}


class TestLeavesThatRequireGrad:
    """They are inference tensors, too: what would save them is refused."""

    @pytest.mark.parametrize("make", [inference_tensor, leaf_made_inside])
    @pytest.mark.parametrize("name", USES)
    def test_no_write_goes_unseen(self, name, make):
        self.check_writes(USES[name], make)

    @pytest.mark.parametrize("make", [inference_tensor, leaf_made_inside])
    def test_no_write_goes_unseen_by_compiled_functions(self, make):
        self.check_writes(tg.njit(lambda r, s: r * s), make)

    @staticmethod
    def check_writes(op, make):
        """Overwrite what an op may have saved: the gradient is refused, or right."""
        s = leaf_of(0.5, 1.5)
        (expected,) = grad(op(leaf_of(1.0, 2.0), s).sum(), s)
        r = make(1.0, 2.0)
        try:
            loss = op(r, s).sum()
            with tg.inference_mode():
                r.mul_(10.0)
            loss.backward()
        except RuntimeError as error:
            if SAVED not in str(error) and "modified by an inplace operation" not in str(error):
                raise
        else:
            assert s.grad.tolist() == pytest.approx(expected.tolist())

    @pytest.mark.parametrize("name", ["multiply", "reflected", "of exp", "outer", "power"])
    def test_what_is_refused(self, name):
        with pytest.raises(RuntimeError, match=SAVED):
            USES[name](leaf_made_inside(1.0, 2.0), leaf_of(0.5, 1.5))

    def test_what_is_not_saved(self):
        r, s = leaf_made_inside(1.0, 2.0), leaf_of(0.5, 1.5)
        (r * 3.0 + s + r.clone()).sum().backward()
        assert r.grad.tolist() == [4.0, 4.0]
        assert (r * tg.ones(2)).requires_grad

    def test_views(self):
        r = leaf_made_inside(1.0, 2.0)
        for view in (r[:1], r[0], r.reshape(2, 1), r.T):
            assert view.is_inference()
            assert view.is_leaf
            assert not view.requires_grad
            assert not view._is_view()
            assert view._base is None
        with tg.inference_mode():
            assert not r[:1]._is_view()
        assert not inference_tensor()[:1]._is_view()

    def test_results_of_inference_tensors_only(self):
        r = leaf_made_inside(1.0, 2.0)
        for found in (r * r, tg.exp(r), r.sum(), r.max(), tg.cumsum(r), tg.flip(r)):
            assert not found.requires_grad

    def test_ops_are_fast_again_without_them(self):
        before = dict(MODE.special)
        r = leaf_made_inside(1.0, 2.0)
        assert MODE.special != before
        del r
        assert MODE.special == before


class TestUseInRecordedOps:
    """Outside, an inference tensor may take part in an op, unless the op has to save it."""

    def test_an_op_that_saves_nothing(self):
        x = leaf_of(1.0, 2.0)
        y = x + inference_tensor()
        assert y.requires_grad
        assert not y.is_inference()
        y.sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize(
        "op", [lambda x, t: x * t, lambda x, t: t * x, lambda x, t: x / t, lambda x, t: x @ t]
    )
    def test_an_op_that_saves_it(self, op):
        with pytest.raises(RuntimeError, match=SAVED):
            op(leaf_of(1.0, 2.0), inference_tensor())

    def test_the_text_says_what_to_do(self):
        with pytest.raises(RuntimeError, match="make a clone to get a normal tensor and use it in"):
            leaf_of(1.0, 2.0) * inference_tensor()

    def test_a_function_that_saves_it(self):
        class Saves(Function):
            @staticmethod
            def forward(ctx, x, t):
                ctx.save_for_backward(t)
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g, None

        with pytest.raises(RuntimeError, match=SAVED):
            Saves.apply(leaf_of(1.0, 2.0), inference_tensor())

    def test_without_recording(self):
        with tg.no_grad():
            assert (leaf_of(1.0, 2.0) * inference_tensor()).tolist() == [1.0, 4.0]
        assert (tg.ones(2) * inference_tensor()).tolist() == [1.0, 2.0]

    def test_written_into_a_recorded_tensor(self):
        x = leaf_of(1.0, 2.0)
        y = x * 1
        y.add_(inference_tensor())
        y.sum().backward()
        assert y.tolist() == [2.0, 4.0]
        assert x.grad.tolist() == [1.0, 1.0]

    def test_copied_into_a_normal_tensor(self):
        y = tg.zeros(2)
        y.copy_(inference_tensor())
        assert y.tolist() == [1.0, 2.0]
        assert not y.is_inference()


class TestWrites:
    """Inference tensors may be written to in inference mode only."""

    WRITES = (
        lambda t: t.add_(1),
        lambda t: t.zero_(),
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t.__iadd__(1),
        lambda t: tg.add(tg.ones(2), tg.ones(2), out=t),
        lambda t: t[:1].mul_(2),
    )

    @pytest.mark.parametrize("write", WRITES)
    def test_outside(self, write):
        with pytest.raises(RuntimeError, match=WRITTEN):
            write(inference_tensor())

    @pytest.mark.parametrize("write", WRITES)
    def test_without_recording(self, write):
        with tg.no_grad(), pytest.raises(RuntimeError, match=WRITTEN):
            write(inference_tensor())

    @pytest.mark.parametrize("write", WRITES)
    def test_inside(self, write):
        t = inference_tensor()
        with tg.inference_mode():
            write(t)
        assert t.tolist() != [1.0, 2.0]

    def test_with_a_recorded_argument(self):
        with pytest.raises(RuntimeError, match=WRITTEN):
            inference_tensor().add_(leaf_of(1.0, 2.0))

    def test_requires_grad(self):
        t = inference_tensor()
        with pytest.raises(RuntimeError, match=REQUIRES_GRAD):
            t.requires_grad_()
        with pytest.raises(RuntimeError, match=REQUIRES_GRAD):
            t.requires_grad = True
        t.requires_grad_(False)
        assert not t.requires_grad
        with tg.inference_mode():
            t.requires_grad_()
        assert t.requires_grad

    def test_there_is_no_version_counter(self):
        t = inference_tensor()
        with pytest.raises(RuntimeError, match=VERSION):
            _ = t._version
        with tg.inference_mode(), pytest.raises(RuntimeError, match=VERSION):
            _ = t._version

    def test_increment_version(self):
        t = inference_tensor()
        assert tg.autograd.graph.increment_version(t) is None


class TestNormalTensorsInside:
    """Normal tensors keep their history and their counter when they are written inside."""

    def test_the_counter(self):
        x = tg.ones(2)
        with tg.inference_mode():
            x.add_(1)
        assert x._version == 1

    def test_a_leaf(self):
        x = leaf_of(1.0, 2.0)
        with tg.inference_mode():
            x.mul_(3)
        assert x.tolist() == [3.0, 6.0]
        assert x.requires_grad
        assert not x.is_inference()

    def test_a_result_keeps_its_history(self):
        x = leaf_of(1.0, 2.0)
        y = x * 1
        with tg.inference_mode():
            y.mul_(3)
        y.sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]

    def test_backward_finds_the_write(self):
        y = leaf_of(1.0, 2.0).exp()
        z = y.sum()
        with tg.inference_mode():
            y.mul_(3)
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
            z.backward()

    def test_a_view_made_inside_and_written_outside(self):
        y = leaf_of(1.0, 2.0) * 1
        with tg.inference_mode():
            view = y[:1]
        text = "A view was created in inference mode and is being modified inplace in normal mode"
        with pytest.raises(RuntimeError, match=text):
            view.add_(1)

    def test_backward_inside(self):
        x = leaf_of(1.0, 2.0)
        y = (x * x).sum()
        with tg.inference_mode():
            y.backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_grad_inside(self):
        x = leaf_of(1.0, 2.0)
        y = (x * x).sum()
        with tg.inference_mode():
            (g,) = grad(y, x)
            assert g.is_inference()
        assert g.tolist() == [2.0, 4.0]

    def test_nothing_to_differentiate_inside(self):
        text = "element 0 of tensors does not require grad and does not have a grad_fn"
        with tg.inference_mode(), pytest.raises(RuntimeError, match=text):
            (leaf_of(1.0) * 2).backward()
