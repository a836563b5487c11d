"""Random programs: gradients, tangents and second derivatives beside differences."""

import collections
import functools
import os
import signal

import numpy as np
import pytest
from random_programs import Program, Reference, Unsmooth, program_of
from random_programs.comparison import Comparison, outcome_of
from random_programs.processes import Lost, isolated
from random_programs.shrink import shrunk


def compare(seeds, **how):
    """Compare the programs of some seeds; few of them may be refused.

    ``python -m tests.transform.random_programs --programs 1 --seed ...`` shrinks one that fails.
    """
    counts = collections.Counter()
    for seed in seeds:
        program = program_of(seed)
        outcome, text = outcome_of(program, **how)
        counts[outcome] += 1
        assert outcome not in ("wrong", "failed", "invalid"), f"seed {seed}: {text}\n{program}"
    assert counts["right"] >= 0.5 * len(seeds), counts
    # of so few programs one proves nothing
    assert counts["refused"] <= 1 + 0.15 * counts["right"], counts


def test_compiled():
    compare(range(6))


def test_second_order():
    compare(range(10, 22), second=True, compiled=False)


def test_run_by_python():
    compare(range(20, 80), compiled=False)


KNOWN = """
import numpy as np

def g(u, a):
    a[0] *= u
    return a[0] + u * u

def f(x, a):
    total = 0
    for e in a:
        total += g(x, a) * e
    if x > 0.5:
        return np.sin(total)
    return total
"""


def test_reference_on_a_known_derivative():
    """f = sin(a0 (x a0 + x^2) + a1 (x^2 a0 + x^2)): the first element is read before the call."""
    x, a = 0.7, np.array([0.3, -0.4])
    total = a[0] * (x * a[0] + x**2) + a[1] * (x**2 * a[0] + x**2)
    by_x = a[0] * (a[0] + 2 * x) + a[1] * (2 * x * a[0] + 2 * x)
    by_a = np.array([2 * x * a[0] + x**2 + a[1] * x**2, x**2 * a[0] + x**2])
    reference = Reference(KNOWN)
    value, after, _ = reference.run([x, a])
    np.testing.assert_allclose(float(value), np.sin(total), 1e-14)
    np.testing.assert_allclose(after[1].astype(float), [a[0] * x**2, a[1]], 1e-14)
    along = np.array([1.0, -1.0])
    slope = reference.directional([x, a], {0: 2.0, 1: along})
    np.testing.assert_allclose(float(slope), np.cos(total) * (2 * by_x + along @ by_a), 1e-9)
    v = np.array([0.5, 2.0])
    second = np.cos(total) * np.array([[2 * x, x**2], [x**2, 0]])
    second -= np.sin(total) * np.outer(by_a, by_a)
    u = np.array([-0.3, 0.6])
    product = reference.mixed([x, a], 1, v, u)
    np.testing.assert_allclose(float(product), u @ second @ v, 1e-8)


def test_reference_refuses_a_point_near_a_branch():
    with pytest.raises(Unsmooth, match="branch"):
        Reference(KNOWN).directional([0.50001, np.array([0.3, -0.4])], {0: 1.0})


SHAPES = {
    "broadcast",
    "broadcast write",
    "call in a condition",
    "call in a subscript",
    "call in a while test",
    "call as an argument of a call",
    "complex array",
    "complex numbers",
    "derivative call",
    "double buffer",
    "early return in a loop",
    "helper: chosen",
    "helper: complex",
    "helper: given",
    "helper: out",
    "helper: structure",
    "helper: twice",
    "helper: view of fresh",
    "helper: work",
    "keep the best",
    "list changed in a branch",
    "list in inner function",
    "list of floats",
    "list to helper",
    "list with two names",
    "option: mode",
    "option: weight",
    "rebound in a branch",
    "result of a call ignored",
    "tuple to helper",
    "undefined not taken",
    "work array",
    "x[i] += h(x)",
}


def test_programs_run():
    """Python runs what is written, differences judge most of it, and it has the shapes of code."""
    judged, shapes = 0, collections.Counter()
    for seed in range(300):
        program = program_of(seed)
        assert program == program_of(seed)
        if Comparison(program).smooth(1):
            judged += 1
            shapes.update(program.shapes)
    assert judged > 180
    assert min(shapes[shape] for shape in SHAPES) >= 3, shapes


HALF = """
import numpy as np
import tapegrad as tg

@tg.njit
def h0(p, q):
    w = q * p
    return w

@tg.njit
def f(x, y, a):
    u = x
    for i in range(2):
        u = np.sin(u + h0(x, a)[0])
    if u > 5.0:
        u = 0.0
    return u + np.sum(a)
"""


def test_shrinking():
    """What does not matter goes: here all that does is the helper's call."""
    program = Program(HALF, ("float", "float", "vector"), 2, (0, 1, 2), 0)
    small = shrunk(program, lambda candidate: "h0(" in candidate.source.split("def f")[1])
    assert "if" not in small.source and "for" not in small.source
    assert small.kinds == ("float", "vector") and small.argnums == (0, 1)


def double_unless_odd(item):
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if item == 3:
        signal.pause()
    return 2 * item


def test_processes(tmp_path):
    """What kills its process, or does not end, is named."""
    run = functools.partial(isolated, double_unless_odd, folder=tmp_path)
    assert run(2, limit=60.0) == 4
    crashed = run(1, limit=60.0)
    assert isinstance(crashed, Lost)
    assert (crashed.outcome, crashed.text) == ("crashed", "SIGKILL")
    assert run(3, limit=1.0).outcome == "timeout"


def test_wrong_is_seen():
    """A derivative that is not the program's is called wrong."""
    program = Program(HALF, ("float", "float", "vector"), 2, (0, 1, 2), 0)
    comparison = Comparison(program, compiled=False)
    points = [
        (point, {k: 1.001 * s for k, s in slopes.items()}) for point, slopes in comparison.smooth()
    ]
    with pytest.raises(AssertionError, match="gradient of argument"):
        comparison.check(points)
