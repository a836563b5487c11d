"""`no_grad`, `enable_grad` and `set_grad_enabled`: contexts, decorators, generators, threads."""

import threading

import numpy as np
import pytest

import tapegrad as tg


def x():
    return tg.tensor([1.0, 2.0], requires_grad=True)


def recorded():
    """Whether an op is recorded now."""
    found = (x() * 2).requires_grad
    assert found is tg.is_grad_enabled()
    return found


OFF = [tg.no_grad, lambda: tg.set_grad_enabled(False)]


@pytest.fixture(autouse=True)
def unchanged():
    assert tg.is_grad_enabled()
    yield
    assert tg.is_grad_enabled()


# -- contexts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", OFF)
def test_context(off):
    assert recorded()
    with off():
        assert not recorded()
    assert recorded()


def test_results_made_without_recording_are_leaves():
    t = x()
    with tg.no_grad():
        y = t * 2
        z = tg.concatenate([y, t])
        w = t[0]
        s = tg.linalg.norm(t)
    for result in (y, z, w, s):
        assert not result.requires_grad
        assert result.is_leaf
        assert result.grad_fn is None


def test_leaves_can_be_made_inside():
    with tg.no_grad():
        t = tg.tensor([1.0], requires_grad=True)
        made = tg.zeros(3).requires_grad_()
    assert t.requires_grad
    assert made.requires_grad
    (t * 2).sum().backward()
    assert t.grad.item() == 2.0


def test_nesting():
    with tg.no_grad():
        with tg.enable_grad():
            assert recorded()
            with tg.no_grad():
                assert not recorded()
            assert recorded()
        assert not recorded()


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_set_grad_enabled_nests(outer, inner):
    with tg.set_grad_enabled(outer):
        assert recorded() is outer
        with tg.set_grad_enabled(inner):
            assert recorded() is inner
        assert recorded() is outer


def test_set_grad_enabled_as_a_function():
    try:
        tg.set_grad_enabled(False)
        assert not recorded()
        tg.set_grad_enabled(True)
        assert recorded()
    finally:
        tg.set_grad_enabled(True)


def test_set_grad_enabled_made_before_it_is_entered():
    context = tg.set_grad_enabled(False)
    assert not recorded()
    with context:
        assert not recorded()
    assert recorded()


@pytest.mark.parametrize("off", OFF)
def test_exceptions_restore(off):
    with pytest.raises(ZeroDivisionError), off():  # noqa: PT012
        assert not recorded()
        raise ZeroDivisionError
    assert recorded()


def test_exceptions_restore_when_nested():
    with tg.no_grad():
        with pytest.raises(ZeroDivisionError), tg.enable_grad():
            raise ZeroDivisionError
        assert not recorded()


def test_context_used_again():
    context = tg.no_grad()
    for _ in range(2):
        with context:
            assert not recorded()
        assert recorded()


def test_grad_of_what_was_recorded_around_no_grad():
    t = x()
    y = t * 3
    with tg.no_grad():
        factor = y * 2
    (y * factor).sum().backward()
    np.testing.assert_array_equal(t.grad.numpy(), 3 * 6.0 * np.array([1.0, 2.0]))


def test_backward_inside_no_grad():
    t = x()
    y = (t * t).sum()
    with tg.no_grad():
        y.backward()
        assert not tg.is_grad_enabled()
    np.testing.assert_array_equal(t.grad.numpy(), [2.0, 4.0])


def test_methods_operators_and_numpy_obey():
    t = x()
    with tg.no_grad():
        for y in (t.sin(), t + t, 2 * t, 1 / t, np.sin(t), t @ t, t.sum(), np.add(t, 1), t.T):
            assert not y.requires_grad


def test_same_names_in_both_modules():
    assert tg.autograd.no_grad is tg.no_grad
    assert tg.autograd.enable_grad is tg.enable_grad
    assert tg.autograd.set_grad_enabled is tg.set_grad_enabled


# -- decorators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [tg.no_grad, tg.no_grad()], ids=["class", "instance"])
def test_decorated_function(mode):
    if isinstance(mode, type):
        mode = mode()

    @mode
    def f(a, *, b):
        """Mine."""
        assert not recorded()
        return a + b

    assert recorded()
    assert f(1, b=2) == 3
    assert recorded()
    assert f.__name__ == "f"
    assert f.__doc__ == "Mine."


def test_decorator_without_parentheses():
    @tg.no_grad
    def off():
        return recorded()

    @tg.enable_grad
    def on():
        return recorded()

    assert off() is False
    with tg.no_grad():
        assert on() is True


def test_set_grad_enabled_as_a_decorator():
    @tg.set_grad_enabled(False)
    def f():
        return recorded()

    assert recorded()
    assert f() is False
    assert recorded()


def test_decorated_recursion():
    @tg.no_grad()
    def f(n):
        assert not recorded()
        if n:
            with tg.enable_grad():
                assert recorded()
                f(n - 1)
                assert recorded()
        assert not recorded()

    f(5)


def test_decorated_function_that_raises():
    @tg.no_grad()
    def f():
        raise KeyError

    with pytest.raises(KeyError):
        f()
    assert recorded()


def test_decorated_method():
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


def test_decorating_a_class_warns():
    with pytest.warns(FutureWarning, match="Decorating classes is deprecated"):

        @tg.no_grad()
        class A:
            def __init__(self):
                self.recorded = recorded()

    assert A().recorded is False
    assert isinstance(A(), A)
    assert recorded()


# -- generators -----------------------------------------------------------------------------------


def test_generator():
    @tg.no_grad()
    def g(n):
        for k in range(n):
            assert not recorded()
            yield k
            assert not recorded()
        return "end"

    found = []
    generator = g(3)
    assert recorded()
    while True:
        try:
            found.append(next(generator))
        except StopIteration as stop:
            assert stop.value == "end"  # noqa: PT017
            break
        assert recorded()
    assert found == [0, 1, 2]


def test_generator_send():
    @tg.no_grad()
    def g():
        got = []
        for _ in range(3):
            got.append((yield len(got)))
            assert not recorded()
        yield got

    generator = g()
    assert next(generator) == 0
    assert generator.send("a") == 1
    assert recorded()
    assert generator.send("b") == 2
    assert generator.send("c") == ["a", "b", "c"]


def test_generator_throw():
    @tg.no_grad()
    def g():
        try:
            yield 1
        except ValueError as error:
            assert not recorded()
            yield str(error)
        yield 3

    generator = g()
    next(generator)
    assert generator.throw(ValueError("mine")) == "mine"
    assert recorded()
    assert next(generator) == 3


def test_generator_throw_not_caught():
    @tg.no_grad()
    def g():
        yield 1

    generator = g()
    next(generator)
    with pytest.raises(ValueError, match="mine"):
        generator.throw(ValueError("mine"))
    assert recorded()


@pytest.mark.parametrize("mode", [tg.no_grad, tg.enable_grad])
def test_generator_close(mode):
    seen = []

    @mode()
    def g():
        try:
            yield 1
        finally:
            seen.append(tg.is_grad_enabled())

    generator = g()
    next(generator)
    generator.close()
    assert seen == [mode is tg.enable_grad]
    assert recorded()


def test_generator_closed_by_the_end_of_its_life():
    seen = []

    @tg.no_grad()
    def g():
        try:
            yield 1
        finally:
            seen.append(tg.is_grad_enabled())

    generator = g()
    next(generator)
    del generator
    assert seen == [False]


def test_generator_that_raises():
    @tg.no_grad()
    def g():
        yield 1
        raise KeyError("mine")

    generator = g()
    next(generator)
    with pytest.raises(KeyError, match="mine"):
        next(generator)
    assert recorded()


def test_generators_in_alternation():
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


def test_mode_changed_inside_a_generator_stays_inside():
    @tg.no_grad()
    def g():
        with tg.enable_grad():
            assert recorded()
            yield recorded()

    generator = g()
    next(generator)
    assert recorded()
    generator.close()


def test_no_grad_in_the_consumer_of_a_plain_generator():
    def g():
        with tg.no_grad():
            yield 1
        yield 2

    generator = g()
    next(generator)
    assert not tg.is_grad_enabled()  # a plain generator leaks, as any context does
    next(generator)
    assert recorded()


# -- threads --------------------------------------------------------------------------------------


def test_each_thread_has_its_own_mode():
    inside, done = threading.Event(), threading.Event()
    seen = {}

    def other():
        with tg.no_grad():
            seen["other"] = recorded()
            inside.set()
            done.wait(10)
            seen["other later"] = recorded()

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    assert recorded()
    with tg.no_grad():
        assert not recorded()
    assert recorded()
    done.set()
    thread.join()
    assert seen == {"other": False, "other later": False}


def test_new_threads_record():
    seen = []
    with tg.no_grad():
        thread = threading.Thread(target=lambda: seen.append(recorded()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_many_threads_switching():
    wrong = []

    def work(k):
        t = x()
        for n in range(200):
            if (n + k) % 2:
                with tg.no_grad():
                    if (t * 2).requires_grad:
                        wrong.append(k)
            elif not (t * 2).requires_grad:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
