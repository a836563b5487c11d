"""Collections of garbage while something is compiled."""

import gc
import threading

import pytest

from tapegrad.kernels.collection import FEWEST, rare_collections
from tapegrad.kernels.progress import compiling


@pytest.fixture(autouse=True)
def thresholds():
    """Those of the process, which a test may change."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_they_are_rare_while_something_is_compiled():
    with compiling("a function"):
        assert gc.get_threshold() == (FEWEST, 10, 10)
        with compiling("what it calls"):
            assert gc.get_threshold() == (FEWEST, 10, 10)
        assert gc.get_threshold() == (FEWEST, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_they_are_as_before_after_an_error():
    with pytest.raises(RuntimeError), compiling("a function"):
        raise RuntimeError
    assert gc.get_threshold() == (700, 10, 10)


def test_they_are_as_before_if_threads_end_in_another_order():
    entered, left = threading.Event(), threading.Event()

    def compile_something():
        with rare_collections():
            entered.set()
            assert left.wait(10)

    thread = threading.Thread(target=compile_something)
    with rare_collections():
        thread.start()
        assert entered.wait(10)
    assert gc.get_threshold()[0] == FEWEST
    left.set()
    thread.join()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [0, 10 * FEWEST])
def test_fewer_collections_of_the_user_stay(own):
    gc.set_threshold(own, 10, 10)
    with rare_collections():
        assert gc.get_threshold()[0] == own
    assert gc.get_threshold() == (own, 10, 10)


def test_what_the_user_sets_meanwhile_stays():
    with rare_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
