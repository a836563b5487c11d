"""An in-place op that is interrupted, at any instruction, gives no wrong gradient afterwards.

Every program is run once for each instruction that changes tensors: a trace function raises there.
(Where programs run the same code, each takes a share of the instructions.) Afterwards every tensor
has the value and the gradient of before, or those of after, or its gradient is refused; and what
saved an overwritten value is refused.
"""

import dis
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import forward_ad
from tapegrad.eager.modes import MODE

PACKAGE = Path(tg.__file__).parent
SHARE = 3
WRITES = ("eager/histories", "eager/inplace", "autograd/engine/custom")


X = [1.0, 2.0, 3.0]


class Interrupt(KeyboardInterrupt):
    """What the trace function raises."""


def interrupted(work, number, is_place, names):
    """Do the work; raise at a place in some files, counted from 0; return whether it was there."""
    left = number
    files = {str(PACKAGE / f"{name}.py") for name in names}

    def trace(frame, event, arg):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        return trace_instruction

    def trace_instruction(frame, event, arg):
        nonlocal left
        if event == "opcode" and is_place(frame):
            left -= 1
            if left < 0:
                raise Interrupt
        return trace_instruction

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


CALLS = {code for name, code in dis.opmap.items() if name.startswith("CALL")}
STARTS = {dis.opmap[name] for name in ("RESUME", "JUMP_BACKWARD")}


def at_calls(frame):
    """Whether signals are handled here: a function starts, a call has ended, or a loop goes on."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] in STARTS:
        return True
    before = at - 2
    while before > 0 and code[before] == 0:  # inline caches
        before -= 2
    return before >= 0 and code[before] in CALLS


def anywhere(frame):
    """Any instruction; in a file with locks, which would stay locked, where signals are handled."""
    return at_calls(frame) if frame.f_code.co_filename.endswith("tape.py") else True


class Doubled(tg.Function):
    """Written before it is marked."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return 2.0 * g

    @staticmethod
    def jvp(ctx, t):
        return t.mul_(2.0)


class Product(tg.Function):
    """Marked, then written through NumPy; saves an argument and the output."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        ctx.save_for_backward(y, x)
        x.numpy()[...] *= y.numpy() + 1.0
        return x

    @staticmethod
    def backward(ctx, g):
        y, z = ctx.saved_tensors
        return g * (y + 1.0), g * z / (y + 1.0)


def prepared():
    """Return leaves, tensors made of them, and results that saved these."""
    x, w = leaf(X), leaf([0.5, 7.0, 11.0])
    y = x * 1.0
    y.retain_grad()
    rows = y[1:]
    tensors = {
        "y": y, "rows": rows, "first": y[0], "w": w, "c": tg.tensor([5.0, 6.0, 7.0]),
        "matrix": tg.outer(w, x),
    }  # fmt: skip
    saved = {"square": (y * y).sum(), "view": (rows**3).sum()}
    return (x, w), tensors, saved


PROGRAMS = {
    "multiply": lambda y, **_: y.__imul__(3.0),
    "of a view": lambda rows, **_: rows.mul_(3.0),
    "of an item": lambda first, **_: first.add_(9.0),
    "by a leaf": lambda y, w, **_: y.mul_(w),
    "exp": lambda y, **_: y.exp_(),
    "sin of a view": lambda rows, **_: rows.sin_(),
    "clip": lambda y, **_: y.clip_(1.5, 2.5),
    "item": lambda y, **_: y.__setitem__(0, 7.0),
    "items": lambda y, w, **_: y.__setitem__(np.array([2, 0]), w[:2]),
    "mask": lambda y, w, **_: y.__setitem__(np.array([True, False, True]), w[1]),
    "items of a view": lambda rows, w, **_: rows.__setitem__(slice(1), w[2:]),
    "two items": (
        lambda y, w, **_: y.__setitem__(0, w[2]),
        lambda y, w, **_: y.__setitem__(2, w[1] * 2.0),
    ),
    "of a constant": lambda c, w, **_: c.mul_(w),
    "item of a constant": lambda c, y, **_: c.__setitem__(1, y[0]),
    "copy": lambda y, w, **_: y.copy_(w),
    "zero": lambda y, **_: y.zero_(),
    "fill": lambda rows, **_: rows.fill_(4.0),
    "out": lambda y, w, **_: np.multiply(y, w, out=y),
    "out and where": lambda y, w, **_: np.add(w, w, out=y, where=np.array([True, False, True])),
    "out of a view": lambda rows, w, **_: tg.sin(w[1:], out=rows),
    "copyto": lambda y, w, **_: np.copyto(y, w),
    "add.at": lambda y, w, **_: np.add.at(y, [0, 0], w[:2]),
    "a cast": lambda y, **_: y.__iadd__(np.float32(2.0)),
    "two writes": (lambda y, w, **_: y.mul_(w), lambda rows, **_: rows.exp_()),
    "Function": lambda y, **_: Doubled.apply(y),
    "Function of a view": lambda rows, **_: Doubled.apply(rows),
    "Function of two": lambda y, w, **_: Product.apply(y, w),
    "Function of a constant": lambda c, w, **_: Product.apply(c, w),
    "no_grad": lambda w, **_: tg.no_grad()(w.sub_)(0.25),
    "detach": lambda y, **_: y.detach_(),
    "transpose": lambda matrix, **_: matrix.t_(),
    "another axis": lambda matrix, **_: matrix.unsqueeze_(0),
    "data": lambda w, **_: setattr(w, "data", tg.tensor([[1.0, 2.0]])),
}  # fmt: skip


FILES = {
    "multiply": [*WRITES, "tape/tape", "eager/tensor", "eager/dispatch"],
    "detach": ["autograd/engine/hooks"],
    "data": ["autograd/engine/hooks", "eager/tensor"],
    "transpose": ["eager/inplace_views", *WRITES],
    "another axis": ["eager/inplace_views", *WRITES],
}


def gradient(z, leaves):
    z = (z * (1.0 + np.arange(z.size).reshape(z.shape))).sum()
    return [
        None if g is None else g.tolist()
        for g in tg.autograd.grad(z, leaves, retain_graph=True, allow_unused=True)
    ]


def states(tensors, leaves):
    """Return the value and the gradients of every tensor."""
    return {
        name: (
            t.detach().tolist(),
            unless_refused(gradient, t, leaves) if t.requires_grad else None,
        )
        for name, t in tensors.items()
    }


REFUSED = "refused"


def unless_refused(function, *args):
    """Return what a function returns, or that it has raised one of the expected errors."""
    try:
        return function(*args)
    except RuntimeError as error:
        if "interrupted" in str(error) or "modified by an inplace operation" in str(error):
            return REFUSED
        raise


def check(leaves, tensors, saved, allowed, expected):
    y = tensors["y"]
    y.grad = None
    for name, z in saved.items():
        assert unless_refused(gradient, z, leaves) in (expected[name], REFUSED)
        if name == "square" and y.grad is not None:
            assert y.tolist() == X
            assert y.grad.tolist() == [2.0, 4.0, 6.0]
    for name, t in tensors.items():
        found = unless_refused(gradient, t, leaves) if t.requires_grad else None
        pairs = [state[name] for state in allowed]
        assert found == REFUSED or (t.detach().tolist(), found) in pairs, name


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a callback
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_instruction(name):
    steps = PROGRAMS[name] if isinstance(PROGRAMS[name], tuple) else (PROGRAMS[name],)
    leaves, tensors, saved = prepared()
    expected = {kind: gradient(z, leaves) for kind, z in saved.items()}
    allowed = [states(tensors, leaves)]
    leaves, tensors, _ = prepared()
    for step in steps:
        step(**tensors)
        allowed.append(states(tensors, leaves))
    is_place = at_calls if name.startswith(("Function", "no_grad")) else anywhere
    files = FILES.get(name, WRITES)
    for leaves, tensors, saved in every_interrupt(
        prepared,
        lambda _, tensors, saved: [step(**tensors) for step in steps],
        files,
        is_place,
        len(name) % SHARE,
        SHARE,
    ):
        check(leaves, tensors, saved, allowed, expected)
    assert MODE.recording


def every_interrupt(prepare, work, files, is_place=anywhere, first=0, step=1):
    """Yield what the work is done on, after interrupts at all places in some files."""
    for number in itertools.count(first, step):
        found = prepare()
        reached = interrupted(lambda: work(*found), number, is_place, files)
        yield found
        if not reached:
            assert number > 15
            return


def test_tensors_with_views_become_leaves():
    def prepare():
        c = tg.tensor(X)
        return c, c[1:]

    for c, part in every_interrupt(
        prepare, lambda c, part: c.requires_grad_(), ["eager/tensor", "eager/histories"]
    ):
        assert part.requires_grad is c.requires_grad
        if c.requires_grad:
            (g,) = tg.autograd.grad((part * part).sum(), c)
            assert g.tolist() == [0.0, 4.0, 6.0]


@pytest.mark.parametrize("of_view", [False, True])
@pytest.mark.parametrize(
    "write",
    [lambda t: t.mul_(3.0), lambda t: t.__setitem__(0, t[1]), lambda t: t.exp_(), Doubled.apply],
)
def test_tangents(write, of_view):
    with forward_ad.dual_level():

        def prepare():
            y = forward_ad.make_dual(tg.tensor(X), tg.tensor([1.0, 10.0, 100.0])) * 1.0
            return y, y[1:] if of_view else y

        def pair(t):
            primal, tangent = forward_ad.unpack_dual(t)
            return primal.tolist(), tangent.tolist()

        before, shown = prepare()
        allowed = [[pair(before), pair(shown)]]
        write(shown)
        allowed.append([pair(before), pair(shown)])
        refused = 0
        is_place = at_calls if write == Doubled.apply else anywhere
        files = [*WRITES, "eager/duals"]
        for y, shown in every_interrupt(prepare, lambda y, t: write(t), files, is_place):
            found = unless_refused(lambda: [pair(y), pair(shown)])
            refused += found == REFUSED
            assert found in (*allowed, REFUSED)
        assert refused


def test_gradients_that_are_added_to():
    def prepare():
        x, w = leaf(X), leaf(X)
        (x * x).sum().backward()
        return x, w, (w * x.grad).sum()

    for _, w, loss in every_interrupt(
        prepare, lambda x, *_: x.sum().backward(), ["autograd/api"], at_calls
    ):
        if unless_refused(loss.backward) != REFUSED:
            assert w.grad.tolist() == [2.0, 4.0, 6.0]


def test_saved_values_that_are_copied_first():
    with tg.autograd.graph.allow_mutation_on_saved_tensors():

        def prepare():
            x = leaf(X)
            y = x * 1.0
            return x, y, (y * y).sum() + tg.exp(y).sum()

        for x, y, loss in every_interrupt(
            prepare, lambda x, y, _: y.zero_(), ["autograd/engine/saved_tensors"]
        ):
            y.detach().fill_(7.0)  # nothing is copied any more
            loss.backward()
            np.testing.assert_allclose(x.grad, 2.0 * np.array(X) + np.exp(X))
