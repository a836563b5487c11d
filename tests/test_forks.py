"""Processes that are forked while other threads compute, compile and import."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import forks
from tapegrad.eager.modes import MODE
from tapegrad.kernels.collection import rare_collections
from tapegrad.tape import deferred_release
from tapegrad.tape.tape import TAPE
from tapegrad.utils.checkpoint import checkpoint

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
SECONDS = 60  # after which a forked process is taken to hang
PACKAGE = Path(tg.__file__).parent


def forked(work):
    """Whether a forked process does the work; if it hangs, it is ended by a signal."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        work()
        status = 0
    finally:
        os._exit(status)


def in_thread(work):
    """Start a thread that works until an event is set; return both."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, stop


def beside(works, check, times):
    """Fork while threads work; return how many of the processes did what is checked."""
    for work in {*works, check}:
        work()
    running = [in_thread(work) for work in works]
    try:
        return sum(forked(check) for _ in range(times))
    finally:
        for _, stop in running:
            stop.set()
        for thread, _ in running:
            thread.join()


def gradient():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    (tg.sin(x) * x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.sin([1, 2]) + np.cos([1, 2]) * [1, 2])


def large():
    """It runs without the GIL, and takes memory from the pool."""
    x = tg.tensor(np.ones(50_000), requires_grad=True)
    tg.sum(tg.sin(x) * x).backward()


def recomputed():
    x = tg.tensor(np.ones(5), requires_grad=True)
    checkpoint(lambda v: tg.sum(tg.exp(v)), x, use_reentrant=False).backward()


def batches():
    tg.vmap(tg.grad(lambda v: tg.sum(v * v)))(np.ones((2, 3)))


RECORDED = tg.value_and_grad(tg.jit(lambda v: tg.sum(tg.sin(v) * v)))


def recorded():
    _, found = RECORDED(np.ones(3))
    np.testing.assert_allclose(found, np.sin(1) + np.cos(1))


def new_closure():
    """Compiled each time, since its text is unknown to the cache."""
    factor = float(np.random.default_rng().normal())

    @tg.njit
    def f(x):
        return factor * x * x

    assert tg.grad(f)(2.0) == factor * 2.0 + 2.0 * factor


PROGRAMS = {
    "eager": [gradient] * 3,
    "large": [large, large, gradient],
    "checkpoint": [recomputed, batches, gradient],
    "recorded": [recorded, recorded, gradient],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_beside_threads_that_compute(name):
    works = PROGRAMS[name]

    def check():
        for work in dict.fromkeys(works):
            work()

    assert beside(works, check, 25) == 25


def test_beside_threads_that_compile():
    assert beside([new_closure, new_closure, gradient], new_closure, 4) == 4


FIRST_USE = """
import os, signal, threading, time
import tapegrad as tg

def first():
    return tg.grad(tg.njit(lambda x: x * x))(3.0)

thread = threading.Thread(target=first)
thread.start()
for pause in (0.0, 0.1, 0.2, 0.3):
    time.sleep(pause)
    process = os.fork()
    if not process:
        signal.alarm(60)
        os._exit(0 if first() == 6.0 else 1)
    assert os.waitpid(process, 0)[1] == 0, pause
thread.join()
"""


def test_beside_a_thread_that_imports(tmp_path):
    """The first use of compiled functions imports numba and half of the package."""
    file = tmp_path / "first_use.py"
    file.write_text(FIRST_USE)
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", file], check=True)


@pytest.mark.parametrize("number", range(len([*forks._locks()])))
def test_a_fork_waits_for_locks(number):
    lock, taken = [*forks._locks()][number], threading.Event()

    def hold():
        with lock:
            taken.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    assert forked(lambda: lock.acquire() and not thread.is_alive())
    thread.join()
    assert lock.acquire(timeout=10)
    lock.release()


def test_a_fork_waits_for_locks_in_any_order():
    """Threads that hold one lock and want another do not stop it, and neither does it stop them."""
    first, *_, last = forks._locks()

    def take_both():
        for one, other in ((first, last), (last, first)):
            with one:
                time.sleep(0.001)
                if other.acquire(timeout=0.01):
                    other.release()
            time.sleep(0.002)

    assert beside([take_both, take_both], gradient, 5) == 5


def test_two_threads_fork():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(sum(forked(gradient) for _ in range(20))))
        for _ in range(2)
    ]
    worker, stop = in_thread(gradient)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    worker.join()
    assert found == [20, 20]


def test_a_fork_in_a_hook_and_while_locks_are_held():
    """The process goes on where it is."""
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    results = []

    def fork(g):
        with forks._gate, tg.enable_grad():
            results.append(forked(gradient))

    y.register_hook(fork)
    y.sum().backward()
    assert results == [True]
    assert x.grad.tolist() == [2.0, 2.0]


def test_locks_of_objects_are_free():
    """Such as that of a checkpointed region, whose function runs as long as it likes."""
    lock, taken, ends = forks.object_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    assert forked(lock.acquire)
    ends.set()
    thread.join()


def test_what_other_threads_did_is_forgotten():
    ready, ends = threading.Event(), threading.Event()

    def work():
        TAPE.begin_sweep(1)
        deferred_release.enter(1)
        with rare_collections(), tg.no_grad():
            ready.set()
            ends.wait()

    def check():
        assert not TAPE.sweeping
        assert not deferred_release.READERS
        assert not [key for key in MODE.special if isinstance(key, int)]
        assert gc.get_threshold() == before
        TAPE.rewind(TAPE.mark())

    before = gc.get_threshold()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(10)
        assert forked(check)
    finally:
        ends.set()
        thread.join()
        TAPE.sweeping.pop(1)
        deferred_release.READERS.pop(1)


def test_locks_are_made_for_forks():
    """But for those that nobody waits for."""
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if any(made in file.read_text() for made in ("Lock()", "Condition()", "Semaphore("))
    }
    assert found == {"forks.py", "cuda/memory.py", "probes.py"}
