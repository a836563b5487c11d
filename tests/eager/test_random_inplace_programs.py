"""Random programs of ops, views, detach and mutations: refused, or exactly right."""

import random
import re

import hypothesis as hp
import hypothesis.strategies as st
import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import LEAF, MODIFIED, MULTIPLE, NO_GRAD_VIEW, ONE_LOCATION, Store

import tapegrad as tg
from tapegrad.autograd import grad

UNARY = {
    "sin": np.sin,
    "tanh": np.tanh,
    "exp": np.exp,
    "square": np.square,
    "negative": np.negative,
    "positive": lambda v: v + 0,
}
BINARY = {"add": np.add, "multiply": np.multiply, "subtract": np.subtract}
SHAPED = {
    "sum": lambda v: v.sum(axis=0),
    "cumsum": lambda v: v.cumsum(axis=0),
    "gather": lambda v: v[np.array([0, -1, 0])],
    "mask": lambda v: v[np.arange(v.shape[0]) % 2 == 0],
}
VIEWS = {
    "row": lambda v: v[0],
    "last row": lambda v: v[-1],
    "tail": lambda v: v[1:],
    "step": lambda v: v[::2],
    "reversed": lambda v: v[::-1],
    "transpose": lambda v: v.T,
    "flat": lambda v: v.reshape(-1),
    "column": lambda v: v.reshape(-1, 1),
    "last": lambda v: v[..., -1],
    "inner": lambda v: v[..., 1:],
    "newaxis": lambda v: v[None],
    "chain": lambda v: v.T[1:][..., :1],
    "diagonal": lambda v: v.diagonal() if v.ndim > 1 else v[:],
    "swapped": lambda v: v.swapaxes(0, -1),
}
# views of itself that a tensor becomes in place
TURNS = {
    "transposed": (lambda t: t.transpose_(0, -1), lambda v: v.swapaxes(0, -1)),
    "longer": (lambda t: t.unsqueeze_(0), lambda v: v[None]),
    "shorter": (lambda t: t.squeeze_(), np.squeeze),
}
PICK = {
    "first": 0,
    "ellipsis": ...,
    "half": slice(0, 1),
    "reversed": slice(None, None, -1),
    "advanced": np.array([0, -1]),
    "repeated": np.array([0, 0, -1]),
    "last": (..., -1),
    "mask": None,  # made for the length
}
OUT_OF_PLACE = [("unary", n) for n in UNARY] + [("binary", n) for n in BINARY] * 2
OUT_OF_PLACE += [("shaped", n) for n in SHAPED] + [("read", "")] * 3
SHOWN = [("view", n) for n in VIEWS] + [("detach", "")] * 3 + [("split", ""), ("expand", "")]
SHOWN += [("turn", n) for n in TURNS] * 2
MUTATIONS = [("unary_", n) for n in UNARY if n != "positive"] + [("zero_", ""), ("copy_", "")]
MUTATIONS += [("binary_", n) for n in BINARY] * 2 + [("number_", n) for n in BINARY]
MUTATIONS += [(kind, n) for kind in ("assign", "assign number", "augment") for n in PICK]
MUTATIONS += [("out", n) for n in BINARY]
WRITING = {kind for kind, _ in MUTATIONS}
DOCUMENTED = re.compile(
    "|".join(
        [LEAF, MULTIPLE, NO_GRAD_VIEW, ONE_LOCATION, MODIFIED, "multiple", "views of this one"]
    )
)

X, W = np.linspace(-0.9, 0.8, 6).reshape(2, 3), np.array([0.7, -0.4, 0.3])
WEIGHTS = np.cos(np.arange(1.0, 40.0))


def weights(shape, k):
    return np.resize(np.roll(WEIGHTS, k), shape)


def fits(source, target):
    try:
        return np.broadcast_shapes(source, target) == target
    except ValueError:
        return False


def joined(source, target):
    return fits(source, target) or fits(target, source)


class Run:
    """A program on tensors and, in step with it, on the functional store."""

    def __init__(self):
        self.x, self.w = leaf(X), leaf(W)
        store = Store(9)
        x, w = store.leaf(X, 0), store.leaf(W, 6)
        self.pairs = [
            (self.x, x),
            (self.x * 1.0, store.new(x.value)),
            (tg.sin(self.x), store.new(np.sin(x.value))),
            (tg.zeros((2, 3)), store.constant(np.zeros((2, 3)))),
            (self.w * 2.0, store.new(w.value * 2)),
        ]
        self.store = store
        self.loss, self.expected = 0.0 * (self.x.sum() + self.w.sum()), np.zeros(9, complex)
        self.refusals, self.writes = 0, 0

    def step(self, kind, name, first, second, recorded):
        """Do one instruction on both sides, or on none if it is refused."""
        (v, shown), (w, other) = (self.pairs[k % len(self.pairs)] for k in (first, second))
        before, recorded = v._version, recorded or kind not in WRITING
        try:
            with tg.set_grad_enabled(recorded):
                done = self.act(kind, name, v, shown, w, other, second / 30, recorded)
        except (RuntimeError, ValueError) as error:
            assert DOCUMENTED.search(str(error)), error  # noqa: PT017
            assert v._version == before
            self.refusals += 1
            return
        if done:  # a write, which has not been refused
            assert not (recorded and shown.is_leaf_memory)
            assert v._version > before
            self.writes += 1

    def act(self, kind, name, v, shown, w, other, number, recorded):
        if kind == "unary":
            self.keep(getattr(tg, name)(v), UNARY[name](shown.value))
        elif kind == "binary":
            if joined(w.shape, v.shape):
                self.keep(getattr(tg, name)(v, w), BINARY[name](shown.value, other.value))
        elif kind == "shaped":
            if v.ndim and v.shape[0]:
                self.keep(SHAPED[name](v), SHAPED[name](shown.value))
        elif kind == "read":
            factors = weights(v.shape, len(self.pairs))
            self.loss = self.loss + (v * v * factors).sum()
            self.add(shown.value**2, factors)
        elif kind == "detach":
            self.pairs.append((v.detach(), shown.detach()))
        elif kind == "view":
            if v.ndim and v.size:
                found = VIEWS[name](v)
                if np.shares_memory(values(found), values(v)):
                    self.pairs.append((found, shown.view(VIEWS[name])))
                else:  # a reshape that has to copy
                    self.keep(found, shown.view(VIEWS[name]).value)
        elif kind == "turn":
            if v.ndim and v.ndim < 4:
                inplace, index = TURNS[name]
                assert inplace(v) is v
                shown.index = index(shown.index)
                shown.turns += 1
        elif kind == "split":
            if v.ndim and v.shape[0] == 2:
                a, b = tg.split(v, 2)
                self.pairs.append((a, shown.view(lambda i: i[:1])))
                self.pairs.append((b, shown.view(lambda i: i[1:])))
        elif kind == "expand":
            if v.size < 12:
                wide = (2, *v.shape)
                self.pairs.append(
                    (tg.broadcast_to(v, wide), shown.view(lambda i: np.broadcast_to(i, wide)))
                )
        else:
            return self.mutate(kind, name, v, shown, w, other, number, recorded)
        return False

    def mutate(self, kind, name, v, shown, w, other, number, recorded):
        old, new = shown.value, other.value
        if kind == "unary_":
            getattr(v, f"{name}_")()
            shown.write(UNARY[name](old), recorded)
        elif kind == "zero_":
            v.zero_()
            shown.write(old * 0, recorded)
        elif kind == "number_":
            getattr(v, f"{name}_")(0.5 + number)
            shown.write(BINARY[name](old, 0.5 + number), recorded)
        elif kind in ("binary_", "copy_", "out"):
            if not fits(w.shape, v.shape):
                return False
            if kind == "copy_":
                v.copy_(w)
                shown.write(new, recorded)
            elif kind == "binary_":
                getattr(v, f"{name}_")(w)
                shown.write(BINARY[name](old, new), recorded)
            else:
                getattr(np, name)(w, w, out=v) if w.shape == v.shape else v.copy_(w)
                value = BINARY[name](new, new) if w.shape == v.shape else new
                shown.write(value, recorded)
        else:
            return self.assign(kind, name, v, shown, w, new, number, recorded)
        return True

    def assign(self, kind, name, v, shown, w, new, number, recorded):
        if not v.ndim or not v.size:
            return False
        index = np.arange(v.shape[0]) % 2 == 0 if name == "mask" else PICK[name]
        if kind == "assign number":
            v[index] = number
            shown.write(number, recorded, index)
        elif kind == "augment":
            old = shown.view(lambda i: i[index]).value
            v[index] *= 0.5 + number
            shown.write(old * (0.5 + number), recorded, index)
        elif fits(w.shape, np.empty(v.shape)[index].shape):
            v[index] = w
            shown.write(new, recorded, index)
        else:
            return False
        return True

    def keep(self, t, value):
        self.pairs.append((t, self.store.new(value)))

    def add(self, value, factors):
        self.expected = self.expected + (value * factors[..., None]).reshape(-1, 9).sum(0)

    def finish(self):
        """Compare values and versions; add all variables to the loss."""
        for k, (t, shown) in enumerate(self.pairs):
            np.testing.assert_allclose(values(t), shown.real, rtol=1e-11, atol=1e-12)
            try:
                self.loss = self.loss + (t * weights(t.shape, k)).sum()
            except RuntimeError as error:
                assert DOCUMENTED.search(str(error)), error  # noqa: PT017
                self.refusals += 1
                continue
            self.add(shown.value, weights(t.shape, k))
        versions = {}
        for t, shown in self.pairs:
            version = t._version - shown.turns
            assert versions.setdefault(shown.memory, version) == version

    def outcome(self, **options):
        """Return the gradients by both leaves, None if they were refused."""
        try:
            found = grad(self.loss, [self.x, self.w], **options)
        except RuntimeError as error:
            assert MODIFIED in str(error)  # noqa: PT017
            assert self.writes
            return None
        return np.concatenate([values(g).reshape(-1) for g in found])

    @property
    def moderate(self):
        return all(np.abs(m).max(initial=0) < 30 for m in self.store.real) and all(
            np.abs(m).max(initial=0) < 1e6 * Store.STEP for m in self.store.imag
        )


def run(program):
    state = Run()
    with np.errstate(all="ignore"):
        for (kind, name), first, second, recorded in program:
            state.step(kind, name, first, second, recorded > 0)
            if not state.moderate:
                return None
    state.finish()
    return state


def compare(found, state):
    np.testing.assert_allclose(state.loss.item(), state.expected[0].real, rtol=1e-9, atol=1e-9)
    exact = state.expected.imag / Store.STEP
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9 * (1 + np.abs(exact).max()))


INSTRUCTIONS = OUT_OF_PLACE * 2 + SHOWN * 2 + MUTATIONS
numbers = st.integers(0, 30)
programs = st.lists(
    st.tuples(st.sampled_from(INSTRUCTIONS), numbers, numbers, st.integers(0, 7)),
    min_size=2,
    max_size=12,
)


class TestRandomPrograms:
    """Whatever is done in place: an error that names the cause, or the exact gradient."""

    @hp.settings(max_examples=300, deadline=None)
    @hp.given(programs)
    def test_never_silently_wrong(self, program):
        state = run(program)
        hp.assume(state is not None)
        found = state.outcome()
        hp.event("refused in backward" if found is None else "compared")
        hp.event(f"refused on the way: {min(state.refusals, 3)}")
        if found is not None:
            compare(found, state)

    @hp.settings(max_examples=150, deadline=None)
    @hp.given(programs)
    def test_recorded_backward_has_the_same_outcome(self, program):
        state = run(program)
        hp.assume(state is not None)
        recorded = state.outcome(create_graph=True)
        found = state.outcome()
        assert (recorded is None) == (found is None)
        if found is not None:
            compare(found, state)
            compare(recorded, state)

    @hp.settings(max_examples=100, deadline=None)
    @hp.given(programs, programs)
    def test_a_sweep_in_the_middle_changes_nothing(self, program, rest):
        state = run(program)
        hp.assume(state is not None)
        first = state.outcome(retain_graph=True)
        if first is not None:
            compare(first, state)
        again = state.outcome(retain_graph=True)
        np.testing.assert_array_equal(first, again)
        with np.errstate(all="ignore"):
            for (kind, name), a, b, recorded in rest:
                state.step(kind, name, a, b, recorded > 0)
                hp.assume(state.moderate)
        state.finish()
        found = state.outcome()
        if found is not None:
            compare(found, state)

    @pytest.mark.parametrize("seed", range(4))
    def test_a_good_part_is_not_refused(self, seed):
        rng = random.Random(seed)
        compared = refused = writes = 0
        for _ in range(100):
            program = [
                (rng.choice(INSTRUCTIONS), rng.randrange(31), rng.randrange(31), rng.randrange(8))
                for _ in range(8)
            ]
            state = run(program)
            if state is None:
                continue
            found = state.outcome()
            if found is None:
                refused += 1
            else:
                compare(found, state)
                compared += 1
                writes += state.writes
        assert compared + refused > 80
        assert compared > 60
        assert writes > compared / 2
