"""`detect_anomaly` and `set_detect_anomaly`."""

import contextlib
import inspect
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, anomaly_mode, detect_anomaly, grad, set_detect_anomaly

NAN = float("nan")


class F(Function):
    """The identity with the gradient NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * NAN


class Second(Function):
    """A product whose second gradient is NaN."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g, g * NAN


class Fails(Function):
    """The identity with a backward that raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise ValueError("mine")


class Scaled(Function):
    """The identity whose gradient is computed by another Function."""

    inner = None

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return Scaled.inner.apply(g)


def here():
    """The number of the line that calls this."""
    return inspect.currentframe().f_back.f_lineno


@contextlib.contextmanager
def collected(error, match):
    """Check for an error; yield the list that will have the texts of the warnings."""
    texts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(error, match=match):
            yield texts
    assert all(w.category is UserWarning for w in caught)
    texts += [str(w.message) for w in caught]


def location(line):
    """How a traceback names a line of this file."""
    return f'{Path(__file__).name}", line {line}, in '


@pytest.fixture(autouse=True)
def unchanged():
    assert not anomalies_are_found()
    yield
    assert not anomalies_are_found()


def anomalies_are_found():
    """Whether a NaN in a backward raises now."""
    y = F.apply(leaf_of(1.0))
    with warnings.catch_warnings(action="ignore"):
        try:
            y.backward()
        except RuntimeError:
            return True
    return False


class TestSwitching:
    """The mode is on inside the context, or from the call on; it nests and restores what was."""

    def test_detect_anomaly_warns_that_it_is_slow(self):
        with pytest.warns(UserWarning, match="Anomaly Detection has been enabled"):
            context = detect_anomaly()
        with context:
            assert anomalies_are_found()

    def test_the_warning_points_to_the_caller(self):
        with pytest.warns(UserWarning, match="should only be enabled for debugging") as caught:
            detect_anomaly()
        assert caught[0].filename == __file__

    def test_set_detect_anomaly_as_a_context(self):
        with set_detect_anomaly(True):
            assert anomalies_are_found()
            with set_detect_anomaly(False):
                assert not anomalies_are_found()
            assert anomalies_are_found()

    def test_set_detect_anomaly_as_a_function(self):
        try:
            set_detect_anomaly(True)
            assert anomalies_are_found()
        finally:
            set_detect_anomaly(False)
        assert not anomalies_are_found()

    def test_set_detect_anomaly_works_before_it_is_entered(self):
        context = set_detect_anomaly(True)
        assert anomalies_are_found()
        with context:
            assert anomalies_are_found()
        assert not anomalies_are_found()

    def test_check_nan_is_restored(self):
        with set_detect_anomaly(True):
            with set_detect_anomaly(True, check_nan=False):
                assert not anomalies_are_found()
            assert anomalies_are_found()

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
    @pytest.mark.parametrize("context", [detect_anomaly, lambda: set_detect_anomaly(True)])
    def test_exceptions_restore(self, context):
        with pytest.raises(KeyError), context():
            raise KeyError
        assert not anomalies_are_found()

    def test_it_holds_in_all_threads(self):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(anomalies_are_found()))
        with set_detect_anomaly(True), warnings.catch_warnings(action="ignore"):
            thread.start()
            thread.join()
        assert seen == [True]

    def test_names(self):
        assert anomaly_mode.detect_anomaly is detect_anomaly
        assert anomaly_mode.set_detect_anomaly is set_detect_anomaly


class TestNan:
    """A NaN among the gradients that a backward returns raises and names the Function."""

    def test_a_function(self):
        with (
            collected(
                RuntimeError, r"Function 'FBackward' returned nan values in its 0th output\."
            ),
            set_detect_anomaly(True),
        ):
            F.apply(leaf_of(1.0, 2.0)).sum().backward()

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
    def test_detect_anomaly(self):
        with detect_anomaly():
            y = F.apply(leaf_of(1.0, 2.0)).sum()
            with collected(RuntimeError, "Function 'FBackward' returned nan values"):
                y.backward()

    def test_the_number_of_the_output(self):
        x = leaf_of(1.0, 2.0)
        with (
            collected(RuntimeError, "Function 'SecondBackward' returned nan values in its 1th"),
            set_detect_anomaly(True),
        ):
            Second.apply(x, x).sum().backward()

    def test_an_op(self):
        x = leaf_of(0.0, 1.0)
        with (
            collected(RuntimeError, "Function 'SqrtBackward' returned nan values in its 0th"),
            set_detect_anomaly(True),
        ):
            (x.sqrt() * 0).sum().backward()

    def test_under_grad(self):
        x = leaf_of(1.0)
        with (
            collected(RuntimeError, "Function 'FBackward' returned nan values"),
            set_detect_anomaly(True),
        ):
            grad(F.apply(x), x)

    def test_a_nan_from_a_hook(self):
        y = leaf_of(1.0, 2.0).exp()
        y.register_hook(lambda g: g * NAN)
        with (
            collected(RuntimeError, "Function 'ExpBackward' returned nan values"),
            set_detect_anomaly(True),
        ):
            y.sum().backward()

    def test_a_nan_in_the_cotangent(self):
        y = leaf_of(1.0, 2.0).exp()
        with (
            collected(RuntimeError, "Function 'ExpBackward' returned nan values"),
            set_detect_anomaly(True),
        ):
            y.backward(tg.tensor([1.0, NAN]))

    def test_an_infinity_is_no_anomaly(self):
        x = leaf_of(0.0, 1.0)
        with set_detect_anomaly(True):
            x.sqrt().sum().backward()
        assert x.grad.tolist() == [float("inf"), 0.5]

    def test_without_check_nan(self):
        x = leaf_of(1.0)
        with set_detect_anomaly(True, check_nan=False):
            F.apply(x).backward()
        assert np.isnan(x.grad.numpy()).all()

    def test_a_backward_outside(self):
        x = leaf_of(1.0)
        with set_detect_anomaly(True):
            y = F.apply(x)
        y.backward()
        assert np.isnan(x.grad.numpy()).all()

    def test_nothing_is_accumulated(self):
        x = leaf_of(1.0)
        with collected(RuntimeError, "returned nan values"), set_detect_anomaly(True):
            F.apply(x).backward()
        assert x.grad is None

    def test_sound_programs_run_as_always(self):
        x = leaf_of(1.0, 2.0)
        with set_detect_anomaly(True):
            y = x * 1
            y.mul_(2)
            (y * y).sum().backward()
        assert x.grad.tolist() == [8.0, 16.0]


class TestTraceback:
    """A warning shows where the op was recorded, for a NaN and for any other error."""

    def test_a_function(self):
        x = leaf_of(1.0)
        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            y, line = F.apply(x), here()
            y.backward()
        (text,) = texts
        assert text.startswith("Error detected in FBackward. Traceback of forward call that caused")
        assert location(line) in text
        assert "y, line = F.apply(x), here()" in text

    def test_an_op(self):
        x = leaf_of(0.0, 1.0)
        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            y, line = x.sqrt(), here()
            (y * 0).sum().backward()
        (text,) = texts
        assert text.startswith("Error detected in SqrtBackward")
        assert location(line) in text

    def test_a_write_in_place(self):
        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            y = leaf_of(1.0, 2.0) * 1
            line = here() + 1
            y.sqrt_()
            y.register_hook(lambda g: g * NAN)
            y.sum().backward()
        (text,) = texts
        assert text.startswith("Error detected in SqrtBackward")
        assert location(line) in text

    def test_an_op_in_a_function_of_the_user(self):
        def model(x):
            return x.sqrt()

        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            y, line = model(leaf_of(0.0)), here()
            (y * 0).sum().backward()
        (text,) = texts
        assert location(line) in text
        assert "in model" in text
        assert "return x.sqrt()" in text

    @pytest.mark.parametrize("check_nan", [False, True])
    def test_an_error_in_backward(self, check_nan):
        with collected(ValueError, "mine") as texts, set_detect_anomaly(True, check_nan=check_nan):
            y, line = Fails.apply(leaf_of(1.0)), here()
            y.backward()
        (text,) = texts
        assert text.startswith("Error detected in FailsBackward. Traceback of forward call")
        assert location(line) in text

    def test_an_error_in_a_hook(self):
        def fail(g):
            raise KeyError("mine")

        with collected(KeyError, "mine") as texts, set_detect_anomaly(True):
            y, line = leaf_of(1.0).exp(), here()
            y.register_hook(fail)
            y.backward()
        (text,) = texts
        assert text.startswith("Error detected in ExpBackward")
        assert location(line) in text

    def test_a_gradient_of_a_wrong_shape(self):
        class Wrong(Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                return tg.ones(5)

        with collected(RuntimeError, "invalid gradient") as texts, set_detect_anomaly(True):
            Wrong.apply(leaf_of(1.0, 2.0)).sum().backward()
        (text,) = texts
        assert text.startswith("Error detected in WrongBackward")

    def test_a_second_backward(self):
        with collected(RuntimeError, "Trying to backward") as texts, set_detect_anomaly(True):
            y, line = leaf_of(1.0).exp(), here()
            y.backward()
            y.backward()
        (text,) = texts
        assert text.startswith("Error detected in ExpBackward")
        assert location(line) in text

    def test_recorded_outside(self):
        y = F.apply(leaf_of(1.0))
        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            y.backward()
        (text,) = texts
        assert text.startswith(
            "Error detected in FBackward. No forward pass information available. Enable detect "
            "anomaly during forward pass for more information."
        )

    def test_without_the_mode_nothing_is_shown(self):
        with collected(ValueError, "mine") as texts:
            Fails.apply(leaf_of(1.0)).backward()
        assert texts == []

    def test_the_warning_is_given_every_time(self):
        for _ in range(2):
            with collected(ValueError, "mine") as texts, set_detect_anomaly(True):
                Fails.apply(leaf_of(1.0)).backward()
            assert len(texts) == 1


class TestParents:
    """An op that was recorded by a backward also names the op whose backward it was."""

    def test_a_function(self):
        Scaled.inner = F
        x = leaf_of(1.0)
        g = leaf_of(1.0)
        with collected(RuntimeError, "Function 'FBackward'") as texts, set_detect_anomaly(True):
            y, first = Scaled.apply(x), here()
            (z,), second = grad(y, x, g, create_graph=True), here()
            z.backward()
        error, parent = texts
        assert error.startswith("Error detected in FBackward. Traceback of forward call")
        assert location(second) in error
        assert "Previous calculation was induced by ScaledBackward" in parent
        assert "Traceback of forward call that induced the previous calculation" in parent
        assert location(first) in parent

    def test_an_op(self):
        x = leaf_of(1.0, 2.0)
        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            y, first = x.sin(), here()
            (g,) = grad(y.sum(), x, create_graph=True)
            g.register_hook(lambda g: g * NAN)
            grad(g.sum(), x)
        error, parent = texts
        assert error.startswith("Error detected in ")
        assert "Previous calculation was induced by SinBackward" in parent
        assert location(first) in parent

    def test_two_generations(self):
        class Inner(Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                return F.apply(g)

        Scaled.inner = Inner
        x, u, v = leaf_of(1.0), leaf_of(1.0), leaf_of(1.0)
        with collected(RuntimeError, "Function 'FBackward'") as texts, set_detect_anomaly(True):
            y = Scaled.apply(x)
            (g,) = grad(y, x, v, create_graph=True)
            (h,) = grad(g, v, u, create_graph=True)
            grad(h, u)
        assert len(texts) == 3
        assert texts[0].startswith("Error detected in FBackward")
        assert "Previous calculation was induced by InnerBackward" in texts[1]
        assert "Previous calculation was induced by ScaledBackward" in texts[2]

    def test_an_op_of_the_user_has_none(self):
        x = leaf_of(1.0)
        with collected(RuntimeError, "returned nan values") as texts, set_detect_anomaly(True):
            (g,) = grad(x.exp(), x, create_graph=True)
            F.apply(g).backward()
        assert len(texts) == 1


class TestMutatedValues:
    """The hint of the error about an overwritten value depends on the mode."""

    def test_without(self):
        y = leaf_of(1.0, 2.0).exp()
        z = y.sum()
        y.add_(1)
        hint = r"Hint: enable anomaly detection to find the operation that failed to compute its"
        with collected(RuntimeError, hint) as texts:
            z.backward()
        assert texts == []

    @pytest.mark.parametrize("check_nan", [False, True])
    def test_with(self, check_nan):
        hint = r"Hint: the backtrace further above shows the operation that failed to compute its"
        with (
            collected(RuntimeError, hint) as texts,
            set_detect_anomaly(True, check_nan=check_nan),
        ):
            y, line = leaf_of(1.0, 2.0).exp(), here()
            z = y.sum()
            y.add_(1)
            z.backward()
        (text,) = texts
        assert text.startswith("Error detected in ExpBackward")
        assert location(line) in text


class TestMetadata:
    """The traceback is kept in the metadata of the node."""

    def test_it_is_there_with_the_mode_only(self):
        with set_detect_anomaly(True):
            y, line = leaf_of(1.0).exp(), here()
        assert any(location(line) in part for part in y.grad_fn.metadata["traceback_"])
        assert "traceback_" not in leaf_of(1.0).exp().grad_fn.metadata


def test_the_parent_is_a_node():
    """Nodes of a recorded backward pass know the node whose backward made them."""
    with tg.autograd.set_detect_anomaly(True):
        x = tg.tensor([2.0], requires_grad=True)
        y = x.exp()
        (g,) = tg.autograd.grad(y.sum(), x, create_graph=True)
    assert g.grad_fn.metadata["parent_"] is y.grad_fn
    assert "exp()" in "".join(y.grad_fn.metadata["traceback_"])
