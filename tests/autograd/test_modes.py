"""`no_grad`, `enable_grad` and `set_grad_enabled`."""

import threading

import numpy as np
import pytest
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import grad_mode


def recorded():
    """Whether an op is recorded now."""
    found = (leaf_of(1.0, 2.0) * 2).requires_grad
    assert found is tg.is_grad_enabled()
    return found


def is_off(off):
    """Whether a mode without recording is on, and inference mode only if it is that one."""
    return not recorded() and tg.is_inference_mode_enabled() is (off is tg.inference_mode)


def is_on():
    return recorded() and not tg.is_inference_mode_enabled()


# the modes without recording, which are also decorators, and how they are turned on
modes = pytest.mark.parametrize("off", [tg.no_grad, tg.inference_mode])
contexts = pytest.mark.parametrize(
    "off",
    [tg.no_grad, lambda: tg.set_grad_enabled(False), tg.inference_mode],
    ids=["no_grad", "set_grad_enabled", "inference_mode"],
)


@pytest.fixture(autouse=True)
def unchanged():
    assert is_on()
    yield
    assert is_on()


class TestContexts:
    """Inside a context ops are recorded or not; at its end it is as before."""

    @contexts
    def test_off(self, off):
        with off():
            assert is_off(off)
        assert is_on()

    def test_results_are_leaves(self):
        x = leaf_of(1.0, 2.0)
        with tg.no_grad():
            y = x * 2
            found = [y, tg.concatenate([y, x]), tg.linalg.norm(x)]
        assert [t.requires_grad for t in found] == [False] * 3
        assert [t.is_leaf for t in found] == [True] * 3
        assert [t.grad_fn for t in found] == [None] * 3

    def test_leaves_can_be_made_inside(self):
        with tg.no_grad():
            x = leaf_of(1.0)
            made = tg.zeros(3).requires_grad_()
        assert x.requires_grad
        assert made.requires_grad
        (x * 2).sum().backward()
        assert x.grad.item() == 2.0

    def test_nesting(self):
        with tg.no_grad():
            with tg.enable_grad():
                assert recorded()
                with tg.no_grad():
                    assert not recorded()
                assert recorded()
            assert not recorded()

    @pytest.mark.parametrize("outer", [False, True])
    @pytest.mark.parametrize("inner", [False, True])
    def test_set_grad_enabled_nests(self, outer, inner):
        with tg.set_grad_enabled(outer):
            assert recorded() is outer
            with tg.set_grad_enabled(inner):
                assert recorded() is inner
            assert recorded() is outer

    @contexts
    def test_exceptions_restore(self, off):
        with pytest.raises(ZeroDivisionError), off():  # noqa: PT012
            assert is_off(off)
            raise ZeroDivisionError
        assert is_on()

    def test_exceptions_restore_when_nested(self):
        with tg.no_grad():
            with pytest.raises(ZeroDivisionError), tg.enable_grad():
                raise ZeroDivisionError
            assert not recorded()

    @modes
    def test_used_again(self, off):
        context = off()
        for _ in range(2):
            with context:
                assert is_off(off)
            assert is_on()

    def test_it_is_bound_to_nothing(self):
        with tg.no_grad() as found:
            assert found is None

    def test_the_graph_around_it(self):
        x = leaf_of(1.0, 2.0)
        y = x * 3
        with tg.no_grad():
            factor = y * 2
        (y * factor).sum().backward()
        assert x.grad.tolist() == [18.0, 36.0]

    def test_backward_inside(self):
        x = leaf_of(1.0, 2.0)
        y = (x * x).sum()
        with tg.no_grad():
            y.backward()
            assert not tg.is_grad_enabled()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_methods_operators_and_numpy_obey(self):
        x = leaf_of(1.0, 2.0)
        with tg.no_grad():
            found = (x.sin(), x + x, 2 * x, 1 / x, np.sin(x), x @ x, x.sum(), np.add(x, 1), x.T)
        assert [t.requires_grad for t in found] == [False] * 9

    def test_writes_to_leaves_are_allowed(self):
        x = leaf_of(1.0, 2.0)
        with tg.no_grad():
            x.mul_(2)
            x += 1
        assert x.tolist() == [3.0, 5.0]
        assert x.requires_grad
        assert x.is_leaf

    def test_names(self):
        for name in ("no_grad", "enable_grad", "set_grad_enabled", "inference_mode"):
            assert getattr(tg, name) is getattr(tg.autograd, name)
            assert getattr(tg, name) is getattr(grad_mode, name)


class TestNotEntered:
    """A context that is left though it is not open raises, and changes nothing."""

    @pytest.mark.parametrize(
        "make",
        [
            tg.no_grad,
            tg.enable_grad,
            tg.inference_mode,
            lambda: tg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
            lambda: tg.autograd.graph.disable_saved_tensors_hooks("not here"),
            tg.autograd.graph.allow_mutation_on_saved_tensors,
        ],
    )
    def test_left(self, make):
        context = make()
        with pytest.raises(RuntimeError, match="is left without being entered"):
            context.__exit__(None, None, None)
        with context:
            pass
        with pytest.raises(RuntimeError, match="is left without being entered"):
            context.__exit__(None, None, None)
        assert tg.is_grad_enabled()
        assert (tg.tensor(1.0, requires_grad=True) * 2).requires_grad

    def test_set_grad_enabled_begins_when_it_is_made(self):
        context = tg.set_grad_enabled(False)
        context.__exit__(None, None, None)
        assert tg.is_grad_enabled()


class TestEnteredAgain:
    """A context that is open may be entered again, as one of a decorated recursion is."""

    @pytest.mark.parametrize("make", [tg.no_grad, tg.inference_mode])
    def test_nested(self, make):
        context = make()
        with context:
            with context:
                assert not recorded()
            assert not recorded()
        assert recorded()
        assert not tg.is_inference_mode_enabled()

    def test_recursion(self):
        @tg.autograd.graph.disable_saved_tensors_hooks("not here")
        def down(n):
            return n if n == 0 else down(n - 1)

        assert down(3) == 0
        with tg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            assert recorded()


class TestNumpy:
    def test_under_no_grad(self):
        """Nothing is recorded there that a write to the array could make wrong."""
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        with tg.no_grad():
            assert y.numpy().tolist() == np.asarray(y).tolist() == [2.0, 4.0]
        for outside in (y.numpy, lambda: np.asarray(y)):
            with pytest.raises(RuntimeError, match=r"Can't call numpy\(\)"):
                outside()


class TestSetGradEnabled:
    """`set_grad_enabled` switches at once; as a context it restores, as a decorator it waits."""

    def test_as_a_function(self):
        try:
            tg.set_grad_enabled(False)
            assert not recorded()
        finally:
            tg.set_grad_enabled(True)
        assert recorded()

    def test_made_before_it_is_entered(self):
        context = tg.set_grad_enabled(False)
        assert not recorded()
        with context:
            assert not recorded()
        assert recorded()

    def test_as_a_decorator(self):
        @tg.set_grad_enabled(False)
        def f():
            return recorded()

        assert recorded()
        assert f() is False
        assert recorded()


class TestDecorators:
    """As a decorator, a mode holds in the body of the function."""

    @modes
    def test_function(self, off):
        @off()
        def f(a, *, b):
            """Mine."""
            assert is_off(off)
            return a + b

        assert is_on()
        assert f(1, b=2) == 3
        assert is_on()
        assert (f.__name__, f.__doc__) == ("f", "Mine.")

    @modes
    def test_without_parentheses(self, off):
        @off
        def without():
            return is_off(off)

        @tg.enable_grad
        def on():
            return recorded()

        assert without() is True
        with tg.no_grad():
            assert on() is True

    def test_recursion(self):
        depths = []

        @tg.no_grad()
        def f(n):
            assert not recorded()
            if n:
                with tg.enable_grad():
                    assert recorded()
                    f(n - 1)
                    assert recorded()
            assert not recorded()
            depths.append(n)

        f(3)
        assert depths == [0, 1, 2, 3]

    def test_a_function_that_raises(self):
        @tg.no_grad()
        def f():
            raise KeyError

        with pytest.raises(KeyError):
            f()
        assert recorded()

    def test_methods(self):
        class A:
            @tg.no_grad()
            def f(self):
                return self, recorded()

            @staticmethod
            @tg.no_grad()
            def g():
                return recorded()

        a = A()
        assert a.f() == (a, False)
        assert A.g() is False

    @modes
    def test_classes_warn(self, off):
        with pytest.warns(FutureWarning, match="Decorating classes is deprecated"):

            @off()
            class A:
                def __init__(self):
                    self.off = is_off(off)

                def f(self):
                    return is_on()

        assert A().off is True
        assert A().f() is True


class TestGenerators:
    """The body of a decorated generator runs in the mode, its consumer does not."""

    @modes
    def test_iteration_and_return_value(self, off):
        @off()
        def g(n):
            for k in range(n):
                assert is_off(off)
                yield k
                assert is_off(off)
            return "end"

        def outer():
            found = yield from g(3)
            ends.append(found)

        ends = []
        assert [(k, is_on()) for k in outer()] == [(0, True), (1, True), (2, True)]
        assert ends == ["end"]

    @modes
    def test_send(self, off):
        @off()
        def g():
            got = []
            for _ in range(3):
                got.append((yield len(got)))
                assert is_off(off)
            yield got

        generator = g()
        assert next(generator) == 0
        assert generator.send("a") == 1
        assert is_on()
        assert generator.send("b") == 2
        assert generator.send("c") == ["a", "b", "c"]

    @modes
    def test_throw(self, off):
        @off()
        def g():
            try:
                yield 1
            except ValueError as error:
                assert is_off(off)
                yield str(error)
            yield 3

        generator = g()
        next(generator)
        assert generator.throw(ValueError("mine")) == "mine"
        assert is_on()
        assert next(generator) == 3

    def test_throw_that_is_not_caught(self):
        @tg.no_grad()
        def g():
            yield 1

        generator = g()
        next(generator)
        with pytest.raises(ValueError, match="mine"):
            generator.throw(ValueError("mine"))
        assert recorded()

    @pytest.mark.parametrize("mode", [tg.no_grad, tg.enable_grad, tg.inference_mode])
    @pytest.mark.parametrize("how", ["close", "delete"])
    def test_close(self, mode, how):
        seen = []

        @mode()
        def g():
            try:
                yield 1
            finally:
                seen.append(tg.is_grad_enabled())

        generator = g()
        next(generator)
        if how == "close":
            generator.close()
        del generator
        assert seen == [mode is tg.enable_grad]
        assert is_on()

    def test_an_error_inside(self):
        @tg.no_grad()
        def g():
            yield 1
            raise KeyError("mine")

        generator = g()
        next(generator)
        with pytest.raises(KeyError, match="mine"):
            next(generator)
        assert recorded()

    def test_in_alternation(self):
        @tg.no_grad()
        def off():
            while True:
                yield recorded()

        @tg.enable_grad()
        def on():
            while True:
                yield recorded()

        a, b = off(), on()
        for _ in range(3):
            assert next(a) is False
            assert next(b) is True
            assert recorded()
        with tg.no_grad():
            assert next(b) is True
            assert not recorded()

    def test_a_mode_changed_inside_stays_inside(self):
        @tg.no_grad()
        def g():
            with tg.enable_grad():
                yield recorded()

        generator = g()
        assert next(generator) is True
        with tg.no_grad():
            assert not recorded()
        assert recorded()
        generator.close()

    def test_a_plain_generator_leaks_as_any_context_does(self):
        def g():
            with tg.no_grad():
                yield 1
            yield 2

        generator = g()
        next(generator)
        assert not tg.is_grad_enabled()
        next(generator)
        assert recorded()


class TestThreads:
    """Each thread has its own mode, and starts with recording."""

    def test_another_thread_in_another_mode(self):
        inside, done = threading.Event(), threading.Event()
        seen = []

        def other():
            with tg.no_grad():
                seen.append(recorded())
                inside.set()
                done.wait(10)
                seen.append(recorded())

        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        assert recorded()
        with tg.no_grad():
            assert not recorded()
        assert recorded()
        done.set()
        thread.join()
        assert seen == [False, False]

    @modes
    def test_a_new_thread(self, off):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(is_on()))
        with off():
            thread.start()
            thread.join()
        assert seen == [True]

    def test_many_threads_switching(self):
        wrong = []

        def work(k):
            x = leaf_of(1.0, 2.0)
            for n in range(200):
                expected = bool((n + k) % 2)
                with tg.set_grad_enabled(expected):
                    if (x * 2).requires_grad is not expected:
                        wrong.append(k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestMultithreading:
    """`set_multithreading_enabled` is accepted: a pass runs in the thread that asks for it."""

    def test_as_context_and_decorator(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        seen = []
        y = x * x
        y.register_hook(lambda g: seen.append(threading.get_ident()))
        with tg.autograd.set_multithreading_enabled(True) as entered:
            assert entered is None
            y.sum().backward()
        assert seen == [threading.get_ident()]

        @tg.autograd.set_multithreading_enabled(False)
        def gradient(x):
            return tg.autograd.grad((x * 3).sum(), x)[0]

        assert gradient(x).tolist() == [3.0, 3.0]

    def test_what_is_enabled(self):
        enabled, seen = tg.autograd.is_multithreading_enabled, []
        assert enabled()
        with tg.autograd.set_multithreading_enabled(False):
            assert not enabled()
            with tg.autograd.set_multithreading_enabled(True):
                assert enabled()
            thread = threading.Thread(target=lambda: seen.append(enabled()))
            thread.start()
            thread.join()
            assert not enabled()
        assert seen == [True]
        assert enabled()

        @tg.autograd.set_multithreading_enabled(False)
        def called():
            return enabled()

        assert [enabled(), called(), called(), enabled()] == [True, False, False, True]
        switch = tg.autograd.set_multithreading_enabled(False)
        assert not enabled()
        switch.__exit__()
        assert enabled()


def test_a_context_that_refuses_to_open_changes_nothing_when_it_is_deleted():
    def hooks(seen):
        return tg.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t)

    seen = []
    with tg.autograd.graph.disable_saved_tensors_hooks("not here"):
        refused = hooks([])
        with pytest.raises(RuntimeError, match="not here"):
            refused.__enter__()
    with tg.enable_grad(), tg.enable_grad(), hooks(seen):
        del refused
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        tg.exp(x)
    assert len(seen) == 1
