"""Interrupts (Ctrl-C) at any time leave switches, running passes and the tape as they were.

Imports that were interrupted, or failed, are done again.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad
from tapegrad.autograd.engine.passes import RUNNING
from tapegrad.eager.modes import MODE
from tapegrad.tape import deferred_release
from tapegrad.tape.tape import TAPE
from tapegrad.utils.checkpoint import checkpoint

X = np.array([0.3, 0.4])
GRAPH = tg.autograd.graph
TIMES = 1500


class Interrupt(KeyboardInterrupt):
    """What the signal raises here."""


class Sine(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tg.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * tg.cos(x)


def loss(x):
    return (tg.sin(x) * x).sum()


def backward():
    x = tg.tensor(X, requires_grad=True)
    loss(x).backward()
    return x.grad


def twice():
    x = tg.tensor(X, requires_grad=True)
    (g,) = tg.autograd.grad(loss(x), x, create_graph=True)
    return tg.autograd.grad(g.sum(), x)[0]


def switches():
    x = tg.tensor(X, requires_grad=True)
    with tg.no_grad():
        y = x * 2
        with tg.enable_grad():
            x * y
    with tg.inference_mode():
        x * 3
    return y


def hooks():
    with GRAPH.saved_tensors_hooks(lambda t: t, lambda t: t):
        x = tg.tensor(X, requires_grad=True)
        y = loss(x)
    with GRAPH.disable_saved_tensors_hooks("not here"):
        y.backward()
    return x.grad


def mutation():
    with GRAPH.allow_mutation_on_saved_tensors():
        x = tg.tensor(X, requires_grad=True)
        y = x * 1
        z = (y * y).sum()
        y.zero_()
        z.backward()
    return x.grad


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def anomaly():
    with tg.autograd.detect_anomaly():
        return backward()


def dual_tensors():
    x = tg.tensor(X, requires_grad=True)
    with forward_ad.dual_level():
        y = loss(forward_ad.make_dual(x, tg.tensor([1.0, 2.0])))
        (g,) = tg.autograd.grad(y, x)
        return forward_ad.unpack_dual(g).tangent


def batches():
    return tg.vmap(tg.grad(lambda x: tg.vmap(tg.sin)(x).sum()))(np.stack([X, X]))


def recomputed():
    x = tg.tensor(X, requires_grad=True)
    checkpoint(loss, x, use_reentrant=False).backward()
    return x.grad


recorded = tg.grad(tg.jit(loss))


@tg.njit
def compiled(x):
    total = 0.0
    for k in range(x.size):
        total += np.sin(x[k]) * x[k]
    return total


@tg.njit(parallel=True)
def parallel(x):
    total = 0.0
    for k in numba.prange(x.size):
        total += np.sin(x[k]) * x[k]
    return total


PROGRAMS = {
    "grad": lambda: tg.grad(loss)(X),
    "grad in no_grad": lambda: tg.no_grad()(tg.grad(loss))(X),
    "hvp": lambda: tg.hvp(loss)(X, X),
    "Function": lambda: tg.grad(lambda x: Sine.apply(x).sum())(X),
    "backward": backward,
    "create_graph": twice,
    "contexts": switches,
    "hooks": hooks,
    "mutation": mutation,
    "anomaly": anomaly,
    "dual": dual_tensors,
    "vmap": batches,
    "checkpoint": recomputed,
    "njit": lambda: tg.value_and_grad(compiled)(X)[1],
    "parallel": lambda: tg.value_and_grad(parallel)(X)[1],
    "jit": lambda: recorded(X),
}


def seconds_of(work):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[10]


def interrupted(work, after):
    """Do the work, interrupt it after some seconds; return whether it was interrupted in time."""
    armed = True

    def handle(number, frame):
        if armed:
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        work()
        armed = False
    except Interrupt:
        armed = False
        return True
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


def state():
    """Return what must not change."""
    thread = MODE.thread
    return {
        "recording": (thread.recording, MODE.recording, tg.is_grad_enabled()),
        "inference": tg.is_inference_mode_enabled(),
        "hooks": (thread.saved_hooks, thread.hooks_forbidden, thread.node, thread.observer),
        "calls": (thread.transform, thread.levels, thread.dual, thread.depth),
        "action": thread.action,
        "anomaly": (MODE.anomaly, MODE.check_nan),
        "guard": MODE.mutation_guard,
        "passes": list(RUNNING.passes),
        "sweeps": (dict(TAPE.sweeping), dict(deferred_release.READERS)),
    }


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one in a callback
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_interrupts(name):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    work, choose = PROGRAMS[name], random.Random(name)
    expected, before = work().tolist(), state()
    length, hits = seconds_of(work), 0
    for _ in range(TIMES):
        hits += interrupted(work, choose.uniform(1e-6, length))
        assert state() == before
    assert work().tolist() == expected
    assert (tg.tensor(1.0, requires_grad=True) * 2).requires_grad
    least = 0 if name == "parallel" else TIMES // 10  # it waits for threads most of the time, in C
    assert hits > least


# interrupts the import while an op is declared, the first argument says which, and imports again
IMPORT = """
import sys
import numpy as np

left = int(sys.argv[1])

def interrupt(frame, event, argument):
    global left
    if event == "call" and frame.f_code.co_name == "default_names":
        left -= 1
        if not left:
            sys.setprofile(None)
            raise KeyboardInterrupt

sys.setprofile(interrupt)
try:
    import tapegrad
except KeyboardInterrupt:
    assert not left
import tapegrad as tg

assert not left, "it was not interrupted"
x = tg.tensor(2.0 * np.eye(2), requires_grad=True)
(tg.linalg.inv(x) * tg.sin(x)).sum().backward()
assert np.isfinite(x.grad.numpy()).all()
"""


@pytest.mark.parametrize("declared", [2, 40, 80, 120, 160])
def test_interrupted_import(declared):
    subprocess.run([sys.executable, "-c", IMPORT, str(declared)], check=True)


# fails to import a module that the first derivative needs, once; the module is the first argument
MISSING = """
import importlib.abc
import sys
import numpy as np
import tapegrad as tg

class OutOfMemory(importlib.abc.MetaPathFinder):
    raised = False

    def find_spec(self, name, path, target=None):
        if name == sys.argv[1] and not self.raised:
            self.raised = True
            raise MemoryError

sys.path.insert(0, sys.argv[2])
from program import f

sys.meta_path.insert(0, OutOfMemory())
try:
    tg.grad(tg.njit(f))(2.0)
except MemoryError:
    assert tg.grad(tg.njit(f))(2.0) == 4.0
else:
    raise AssertionError("it was imported before")
"""


@pytest.mark.parametrize(
    "module",
    ["numba.core.cpu", "numba.core.typing.templates", "tapegrad.transform.rules.partials"],
)
def test_failed_import(module, tmp_path):
    (tmp_path / "program.py").write_text("def f(x):\n    return x * x\n")
    subprocess.run(
        [sys.executable, "-c", MISSING, module, str(tmp_path)],
        env={**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path / "cache")},  # nothing is compiled
        check=True,
    )
