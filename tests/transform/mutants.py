"""Mutants of generated code: one statement is left out, or changes places with the next one.

``python -m tests.transform.mutants --programs 200`` makes mutants of the derivatives of so many
programs, finds out which of them compute something else, and counts those that the verifier
refuses, and those that differ from the source of the function. Mutants are run by Python, with a
tape that notices what compiled code would not. With ``--mode forward`` they are those of tangents,
with ``--mode second`` of tangents of gradients; some of them read another tangent, have a term
less, or share an array that was copied.
"""

import argparse
import ast
import collections
import contextlib
import copy
import dataclasses
import os
import pathlib
import random
import re
import signal
import sys
import warnings

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))

import numba
import numpy as np
from random_programs import comparison, program_of
from random_programs.interpret import Interpreter, types_only

import tapegrad as tg
from tapegrad.transform import generation
from tapegrad.transform.codegen import store
from tapegrad.transform.equivalence.comparison import Comparison
from tapegrad.transform.equivalence.derivatives import check
from tapegrad.transform.equivalence.meanings import defined
from tapegrad.transform.errors import InternalError
from tapegrad.transform.generated import parsed_functions
from tapegrad.transform.ir import Role, Value
from tapegrad.transform.verifier import verify
from tapegrad.transform.verifier.purpose import Half

SECONDS = 2.0
HEADER = "import math, numpy as np, tapegrad as tg\n@tg.njit\n"

# sources, and how arguments are made of random numbers
PROGRAMS = {
    "scalar loop": (
        "def f(x, a):\n    for _ in range(4):\n        x = 3.1 * x * (1.0 - x)\n    return x\n"
    ),
    "two numbers go round": (
        "def f(x, a):\n"
        "    y = x\n"
        "    for i in range(a.size):\n"
        "        x, y = x * y, math.sin(x) + a[i]\n"
        "    return x * y\n"
    ),
    "fused loop": (
        "def f(x, a):\n"
        "    s, q = 0.0, 1.0\n"
        "    for i in range(a.size):\n"
        "        d = a[i] * math.exp(-x * i)\n"
        "        s += d * d\n"
        "        if d > 0.2:\n"
        "            q -= d * x\n"
        "    return s + 2.0 * q\n"
    ),
    "early return": (
        "def f(x, a):\n"
        "    for i in range(a.size):\n"
        "        x = math.sin(x) * a[i] + x\n"
        "        if x > 0.4:\n"
        "            return x * a[0]\n"
        "    return x * x\n"
    ),
    "while": (
        "def f(x, a):\n"
        "    y = x * x\n"
        "    k = 0\n"
        "    while y < 3.0:\n"
        "        y = y * 1.5 + math.exp(x) * a[k % a.size] ** 2\n"
        "        k += 1\n"
        "    return y * x\n"
    ),
    "views and stores": (
        "def f(x, a):\n"
        "    b = a * x\n"
        "    left, right = b[:2], b[2:]\n"
        "    left[0] = right[0] * a[1]\n"
        "    left[1] += left[0] * x\n"
        "    right[:] = right * left\n"
        "    return (b * b).sum() + left[1] * right[0]\n"
    ),
    "branches over arrays": (
        "def f(x, a):\n"
        "    if x > 0.1:\n"
        "        b = np.sin(a)\n"
        "        b[0] = b[1] * x\n"
        "    else:\n"
        "        b = a * x\n"
        "    c = b if a[0] > 0.0 else a\n"
        "    c[1] = c[2] * b[0]\n"
        "    return (b * a).sum() * c[1]\n"
    ),
    "branches that keep numbers": (
        "def f(x, a):\n"
        "    y = x\n"
        "    for i in range(a.size):\n"
        "        if y > 0.4:\n"
        "            c = math.exp(-y * a[i])\n"
        "            y = c * y if c > 0.5 else c * c\n"
        "        elif a[i] > 0.0:\n"
        "            y = math.sin(y) * a[i] * y\n"
        "        a[i] = y * x\n"
        "    return y * (a * a).sum()\n"
    ),
    "arrays go round": (
        "def f(x, a):\n"
        "    b, c = a * x, a + x\n"
        "    for _ in range(3):\n"
        "        d = b * c\n"
        "        d[0] += c[1]\n"
        "        b, c = c, d\n"
        "    return (b * c).sum()\n"
    ),
    "a step writes to its state": (
        "def f(x, a):\n"
        "    b = a * x\n"
        "    for k in range(3):\n"
        "        b[k] *= a[k]\n"
        "        c = np.sin(b) * x\n"
        "        b = c\n"
        "    return (b * a).sum()\n"
    ),
    "slopes of a callee": (
        "def g(u, x):\n"
        "    return np.array([u[1] * x, u[0] * u[1], u[2] - x])\n"
        "@tg.njit(boundscheck=False)\n"  # another option: no inlining
        "def f(x, a):\n"
        "    u = a[:3] * x\n"
        "    best = u\n"
        "    for _ in range(3):\n"
        "        k1 = g(u, x)\n"
        "        k2 = g(u + 0.5 * k1, x)\n"
        "        u = u + k2 * x\n"
        "        if u[0] > 0.1:\n"
        "            best = u * k1\n"
        "    return (best * u).sum()\n"
    ),
    "numbers of a helper": (
        "def g(x, y):\n"
        "    s = math.sin(x) * math.cos(y) + math.exp(x * y) * math.tanh(y)\n"
        "    return s * math.atan(x) * math.log1p(y * y), s\n"
        "@tg.njit(boundscheck=False)\n"  # another option: no inlining
        "def f(x, a):\n"
        "    y = 0.5\n"
        "    for i in range(3):\n"
        "        z, s = g(x, a[i] * y)\n"
        "        y = y * s + g(z, x)[0]\n"
        "    return y + g(y, s)[0]\n"
    ),
    "work array in a callee": (
        "def g(x, n):\n"
        "    w = np.empty(n)\n"
        "    w[0] = x\n"
        "    for i in range(1, n):\n"
        "        w[i] = math.sin(w[i - 1]) * x\n"
        "    return w\n"
        "@tg.njit\n"
        "def f(x, a):\n"
        "    w = g(x, 4)\n"
        "    v = g(a[0] * w[1], 3)\n"
        "    return (w[1:] * v).sum() + w[0]\n"
    ),
    "a callee that writes": (
        "def g(y, x):\n"
        "    y[1] = y[0] * x\n"
        "    y[0] *= y[2]\n"
        "    return y[1] * x\n"
        "@tg.njit(boundscheck=False)\n"  # another option: no inlining
        "def f(x, a):\n"
        "    s = g(a, x) * x\n"
        "    s += g(a[1:], s) if a.size > 3 else 0.0\n"
        "    return s + a[1] * a[2]\n"
    ),
    "two returns of arrays": (
        "def g(a, x):\n"
        "    if x > 0.0:\n"
        "        return a[1:]\n"
        "    b = a * x\n"
        "    return b[:-1]\n"
        "@tg.njit\n"
        "def f(x, a):\n"
        "    c = g(a, x)\n"
        "    c[0] = c[1] * x\n"
        "    return (c * a[1:]).sum()\n"
    ),
    "matrices": (
        "def f(x, a):\n"
        "    m = np.outer(a, a + x)\n"
        "    m[0, :] = m[1, :] * x\n"
        "    for i in range(1, a.size):\n"
        "        m[i, 0] += m[i - 1, 1] * a[i]\n"
        "    return (m @ a).sum() + m[1].max() * x\n"
    ),
}


def arguments(seed):
    rng = np.random.default_rng([seed, 7])
    return [round(rng.uniform(-1, 1), 3), rng.uniform(-1, 1, 4).round(3)]


class Tape:
    """A tape of Python objects, on which wrong places are found."""

    def __init__(self, size=0):
        self.size = size
        self.items = [np.nan] * size
        self.arrays = {}

    def __array_function__(self, function, kinds, args, kws):
        assert function is np.zeros_like
        made = Tape(self.size)
        made.items = [0.0] * self.size
        return made

    def __getitem__(self, place):
        if not 0 <= place < self.size:
            raise IndexError(place)
        return self.items[place]

    def __setitem__(self, place, value):
        if not 0 <= place < self.size:
            raise IndexError(place)
        self.items[place] = value


class Row:
    """Some elements of a tape, from a position on."""

    def __init__(self, tape, start, length):
        self.tape, self.start, self.length = tape, start, length

    def _place(self, turn):
        if not 0 <= turn < self.length:
            raise IndexError(turn)
        return self.start + turn

    def __getitem__(self, turn):
        return self.tape[self._place(turn)]

    def __setitem__(self, turn, value):
        self.tape[self._place(turn)] = value


class Runtime:
    """The functions of `tapegrad.transform.runtime` that have to do with the tape."""

    def __init__(self, inner, size):
        self.inner = inner
        self.size = size

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def take_tape(self):
        return Tape(self.size)

    take_owned_tape = take_tape

    to_bits = from_bits = staticmethod(lambda value: value)
    row = owned_row = staticmethod(Row)

    @staticmethod
    def give_tape(tape):
        assert isinstance(tape, Tape)

    @staticmethod
    def grown(tape, needed):
        tape.items += [np.nan] * (2 * needed - tape.size)
        tape.size = len(tape.items)
        return tape

    @staticmethod
    def push_array(tape, top, array, kind):
        assert array.ndim == kind.ndim
        tape.arrays[top] = array
        return tape, top + 2 + 2 * kind.ndim

    @staticmethod
    def pop_array(tape, top, kind):
        top -= 2 + 2 * kind.ndim
        return tape.arrays.pop(top), top

    push_tangent = push_array

    @classmethod
    def push_elements(cls, tape, top, array, kind):
        assert array.ndim == kind.ndim
        needed = top + array.size + array.ndim
        if needed > tape.size:
            tape = cls.grown(tape, needed)
        tape.items[top:needed] = [*map(float, array.ravel()), *array.shape]
        return tape, needed

    @staticmethod
    def pop_elements(tape, top, kind):
        shape = tape.items[top - kind.ndim : top]
        if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise IndexError("no shape")
        end = top - kind.ndim
        top = end - int(np.prod(shape, dtype=int))
        return np.array(tape.items[top:end], float).reshape(shape), top

    push_tangent_elements, pop_owned_elements = push_elements, pop_elements


@dataclasses.dataclass
class Subject:
    """The module of a derivative, and what it is run on."""

    name: str
    text: str
    known: tuple
    namespace: dict
    entry: str
    points: list
    mode: str
    claimed: list  # what is to be known to compare it with the source, if that can be done

    def verify(self, text, purposes=None):
        *known, right = self.known
        verify(text, *known, right if purposes is None else purposes)

    def differs(self, text):
        """Whether it is found to be no derivative of the source."""
        for lookup, entry, claim, kinds in self.claimed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = defined(parsed_functions(text), lookup)
                if entry in module and check(module, entry, claim, kinds).difference:
                    return True
        return False


class Refused(Exception):
    """The program cannot be differentiated, or not be judged."""


DERIVATIVES = {
    "reverse": lambda f, argnums: tg.value_and_grad(f, argnums),
    "forward": lambda f, argnums: tg.jvp(f, argnums),
    "second": lambda f, argnums: tg.jvp(tg.grad(f, argnums), argnums),
}
LARGE = 4096  # size of a tape that is not made larger, as code for tangents cannot do with this one


def with_tangents(point, argnums, mode):
    """Arguments, followed by tangents where the derivative has them."""
    if mode == "reverse":
        return point

    def given():
        args, draw = point(), np.random.default_rng(11)
        dots = [draw.uniform(-1, 1, np.shape(args[k])).round(3) for k in argnums]
        kinds = [np.asarray(args[k]).dtype for k in argnums]
        found = [d.astype(k) if d.ndim else k.type(d) for d, k in zip(dots, kinds, strict=True)]
        return [*args, *found]

    return given


def subject_of(name, f, argnums, points, mode="reverse"):
    """Return the module that is generated for a function."""
    seen, lookups, claimed = [], [], []

    def define(functions, lookup):
        lookups.append(lookup)
        return defined(functions, lookup)

    def note(module, *given):
        claimed.append((lookups[-1], *given))
        return Comparison(0)

    points = [with_tangents(point, argnums, mode) for point in points]
    kinds = tuple(map(numba.typeof, points[0]()))
    changes = (
        (generation, "verify", lambda *found: seen.append(found)),
        (generation, "defined", define),
        (generation, "check", note),
        (store, "load", lambda key, recipe: None),
    )
    before = [getattr(module, attribute) for module, attribute, _ in changes]
    for module, attribute, value in changes:
        setattr(module, attribute, value)
    try:
        with types_only():
            inner = DERIVATIVES[mode](f, argnums).implementation(kinds)
    except tg.TransformError as error:
        raise Refused from error
    finally:
        for (module, attribute, _), value in zip(changes, before, strict=True):
            setattr(module, attribute, value)
    text, *known = seen[-1]
    namespace = dict(Interpreter().module(inner.py_func.__globals__))
    namespace["runtime"] = Runtime(namespace["runtime"], LARGE if mode == "second" else 0)
    entry = inner.py_func.__name__
    known = tuple(copy.copy(one) for one in known)
    return Subject(name, text, known, namespace, entry, points, mode, claimed[-1:])


def fixed_subjects(names=PROGRAMS, mode="reverse"):
    for name in names:
        module = comparison.load(HEADER + PROGRAMS[name])
        points = [lambda seed=seed: arguments(seed) for seed in range(4)]
        yield subject_of(name, module.f, (0, 1), points, mode)


def random_subjects(seeds, mode="reverse"):
    for seed in seeds:
        program = program_of(seed)
        if "np.random" in program.source:
            continue
        module = comparison.load(program.source)
        points = [lambda k=k, program=program: program.arguments(k) for k in range(4)]
        with contextlib.suppress(Refused):
            yield subject_of(f"program {seed}", module.f, program.argnums, points, mode)


# -- what mutants compute --------------------------------------------------------------------------


class Late(Exception):
    """A mutant does not end."""


@contextlib.contextmanager
def time_limit(seconds):
    def stop(*_):
        raise Late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def numbers(value):
    """All numbers of a result."""
    if isinstance(value, (tuple, list)):
        return np.concatenate([np.zeros(0), *map(numbers, value)])
    return np.zeros(0) if value is None else np.array(value, np.float64).ravel()


def run(subject, tree):
    """Return values with arguments after the call, and gradients; None if it fails."""
    namespace = dict(subject.namespace)
    bare = ast.Module([*tree.body], [])
    for function in bare.body:
        function.decorator_list = []
    try:
        exec(compile(ast.fix_missing_locations(bare), "mutant", "exec"), namespace)
        primal, gradients = [], []
        with time_limit(SECONDS), np.errstate(all="ignore"):
            for point in subject.points:
                given = point()
                value, gradient = namespace[subject.entry](*given)
                primal += [numbers(value), numbers(given)]
                gradients.append(numbers(gradient))
    except (Exception, Late):
        return None
    return np.concatenate(primal), np.concatenate(gradients)


def same(one, two):
    return one.shape == two.shape and np.allclose(one, two, 1e-9, 1e-11, equal_nan=True)


def outcome(right, found):
    """Return what became of a mutant: "equal", "raises", "value" or "gradient"."""
    if found is None:
        return "raises"
    if not same(right[0], found[0]):
        return "value"
    return "equal" if same(right[1], found[1]) else "gradient"


# -- mutants ---------------------------------------------------------------------------------------


def blocks_of(tree):
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list) and not isinstance(node, ast.Module):
                yield block


def places_of(tree):
    """Blocks with positions at which a statement is dropped, or changes places with the next."""
    for block in blocks_of(tree):
        for k, statement in enumerate(block):
            if isinstance(statement, (ast.Return, ast.Raise, ast.Pass)):
                continue
            yield block, k, "drop", []
            if k + 1 < len(block) and not isinstance(block[k + 1], (ast.Return, ast.Raise)):
                yield block, k, "swap", []


TANGENT = re.compile(r"\w+_dot\d*$")


def is_tangent(node):
    return isinstance(node, ast.Name) and bool(TANGENT.match(node.id))


def changed_tangents(tree, draw):
    """Blocks with positions, and other statements: with another tangent, one less, or no copy."""
    for function in tree.body:
        names = sorted({n.id for n in ast.walk(function) if is_tangent(n)})
        for block in blocks_of(ast.Module([function], [])):
            for k, statement in enumerate(block):
                if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
                    for how, changed in changes(statement, names, draw):
                        yield block, k, how, [changed]


def changes(statement, names, draw):
    """One statement of each kind that a statement for tangents may be changed to."""
    found = {}
    nodes = list(ast.walk(statement))
    for place, node in enumerate(nodes):
        if is_tangent(node) and isinstance(node.ctx, ast.Load):
            other = ast.Name(draw.choice(names), ast.Load())
            found.setdefault("rename", []).append((place, other))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            if any(map(is_tangent, ast.walk(node.right))):
                found.setdefault("shorten", []).append(
                    (place, draw.choice((node.left, node.right)))
                )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "copy" and is_tangent(node.func.value):
                found.setdefault("share", []).append((place, node.func.value))
    for how, chosen in found.items():
        place, new = draw.choice(chosen)
        yield how, replaced(statement, nodes[place], new)


def replaced(statement, old, new):
    """A statement with another node in the place of one."""

    class Replace(ast.NodeTransformer):
        def visit(self, node):
            return new if node is old else self.generic_visit(node)

    # a copy keeps the nodes themselves, by which they are found
    return Replace().visit(copy.deepcopy(statement, {id(old): old}))


def mutants(tree, draw, count, tangents=False):
    """Yield what was changed; meanwhile the tree is changed so."""
    places = list(places_of(tree))
    if tangents:
        places += changed_tangents(tree, draw)
    for block, k, how, new in draw.sample(places, min(count, len(places))):
        before = list(block)
        if how == "swap":
            block[k], block[k + 1] = block[k + 1], block[k]
        else:
            block[k : k + 1] = new
            block[:] = block or [ast.Pass()]
        yield f"{how} {ast.unparse(before[k]).splitlines()[0]}"
        block[:] = before


def other_purposes(subject, text, draw, count):
    """Yield what was changed of what functions and names are said to be for, and the purposes."""
    *known, purposes = subject.known
    functions = [n for n in purposes if f"def {n}(" in "".join([text, *known[1]])]
    for _ in range(count):
        function = draw.choice(functions)
        purpose, changed = purposes[function], dict(purposes)
        how = draw.choice(["half", "none", "less", "value", "role"])
        name = draw.choice([*purpose.names] or [""])
        if how == "half":
            halves = [half for half in (None, *Half) if half is not purpose.half]
            changed[function] = dataclasses.replace(purpose, half=draw.choice(halves))
        elif how == "none" or not name:
            del changed[function]
        else:
            names, value = dict(purpose.names), purpose.names[name]
            values = [other.of for other in names.values()]
            if how == "less":
                del names[name]
            elif how == "value":
                names[name] = Value(value.role, draw.choice(values))
            else:
                names[name] = Value(draw.choice([*Role]), value.of)
            changed[function] = dataclasses.replace(purpose, names=names)
        yield f"{how} of {function} {name}", changed


@dataclasses.dataclass
class Judgement:
    """What became of the mutants of some programs.

    Attributes
    ----------
    counts
        By outcome, whether they were refused, and whether they differ from the source.
    missed
        Those that compute something else and were not refused.
    every
        One of so many that compute something else is compared with the source, which takes longer
        than all the rest. If it is 1, the others are compared as well.
    purposes
        With how many other purposes of functions and names each of those is verified that compute
        something else and were refused.
    tried, hidden
        How many that are, and those that are accepted.
    """

    every: int = 1
    purposes: int = 0
    tried: int = 0
    hidden: list = dataclasses.field(default_factory=list)
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    missed: list = dataclasses.field(default_factory=list)
    programs: int = 0

    def judge(self, subject, draw, count):
        tree = ast.parse(subject.text)
        right = run(subject, ast.parse(subject.text))
        if right is None or not all(np.isfinite(part).all() for part in right):
            return
        subject.verify(subject.text)
        self.programs += 1
        for change in mutants(tree, draw, count, subject.mode != "reverse"):
            text = ast.unparse(tree)
            try:
                subject.verify(text)
                refused = False
            except InternalError:
                refused = True
            found = outcome(right, run(subject, ast.parse(text)))
            is_compared = self.every == 1 or (
                found in WRONG and self.count(WRONG, lambda *_: True) % self.every == 0
            )
            self.counts[found, refused, is_compared and self.differs(subject, text)] += 1
            if not refused and found != "equal":
                self.missed.append((subject.name, found, change))
            if refused and found in WRONG:
                for what, purposes in other_purposes(subject, text, draw, self.purposes):
                    self.tried += 1
                    with contextlib.suppress(InternalError):
                        subject.verify(text, purposes)
                        self.hidden.append((subject.name, found, change, what))

    def differs(self, subject, text):
        """Whether code is found to be no derivative of the source of a subject."""
        return subject.differs(text)

    def rate(self, *outcomes):
        """Return the part of the mutants with some outcomes that was refused, and their number."""
        refused = self.count(outcomes, lambda is_refused, _: is_refused)
        every = self.count(outcomes, lambda *_: True)
        return refused / max(every, 1), every

    def count(self, outcomes, is_meant):
        """Return how many mutants with some outcomes are meant."""
        return sum(
            number
            for (found, *how), number in self.counts.items()
            if found in outcomes and is_meant(*how)
        )


class Apart(Judgement):
    """The same, but each mutant is compared in a process of its own.

    One that stores an array in an element of itself ends the process.
    """

    def differs(self, subject, text):
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os._exit(super().differs(subject, text))
            os._exit(2)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2:
            raise RuntimeError(f"the comparison of a mutant of {subject.name} has failed")
        return status != 0


WRONG = ("gradient", "value")
CHANGED = (*WRONG, "raises")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=50, help="random programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--mutants", type=int, default=30, help="of each program")
    parser.add_argument("--fixed", action="store_true", help="all mutants of the fixed programs")
    parser.add_argument("--mode", choices=DERIVATIVES, default="reverse")
    given = parser.parse_args()
    judgement, draw = Apart(), random.Random(given.seed)
    if given.fixed:
        for subject in fixed_subjects(mode=given.mode):
            judgement.judge(subject, draw, 10**6)
    seeds = range(given.seed, given.seed + given.programs)
    for subject in random_subjects(seeds, given.mode):
        try:
            judgement.judge(subject, draw, given.mutants)
        except InternalError as error:
            print(f"{subject.name}: refused as it is: {error}")
    print(f"{judgement.programs} programs")
    for (found, refused, differs), count in sorted(judgement.counts.items()):
        shown = "refused" if refused else "accepted", "differs" if differs else ""
        print(f"{found:10} {shown[0]:10} {shown[1]:10} {count}")
    for title, outcomes in (("silently wrong", WRONG), ("not equal", CHANGED)):
        rate, every = judgement.rate(*outcomes)
        differ = judgement.count(outcomes, lambda _, differs: differs)
        either = judgement.count(outcomes, lambda *how: any(how))
        print(
            f"{title}: {100 * rate:.2f} % of {every} refused; {differ} differ; {either} do either"
        )
    for line in judgement.missed:
        print(*line, sep="  |  ")


if __name__ == "__main__":
    main()
