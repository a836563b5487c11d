"""The verifier of generated code: it accepts what is generated, and no statement can be missing.

What a missing or moved statement does is found by walks through the code that draw the outcome of
every test and the number of turns of every loop.
"""

import ast
import builtins
import contextlib
import linecache
import random

import numba
import numpy as np
import pytest
from check import module
from mutants import blocks_of
from purposes import purposes_of
from random_programs import program_of

import tapegrad as tg
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform.composed import HessianProduct
from tapegrad.transform.errors import InternalError
from tapegrad.transform.generation import FASTER
from tapegrad.transform.verifier import verify
from tapegrad.transform.verifier.code import functions_of
from tapegrad.transform.verifier.definedness import Definedness

pytestmark = pytest.mark.texts

A = np.array([0.3, 0.7, -0.4])
GIVEN = {"np", "math", "numba", "operator", "runtime", "arrays", "ops"}
HEADER = "import math, numpy as np, tapegrad as tg\n@tg.njit\n"

PROGRAMS = {
    "branches": (
        "def f(x, n):\n"
        "    if x[0] > 0.0:\n"
        "        a = np.sin(x)\n"
        "        if n > 2:\n"
        "            a[0] = a[1] * x[2]\n"
        "        else:\n"
        "            a = a * x\n"
        "        s = a.sum() * a[0]\n"
        "    else:\n"
        "        s = x[1] * math.exp(x[0])\n"
        "    return s * s\n",
        (A, 3),
    ),
    "loops": (
        "def f(x, n):\n"
        "    s = 0.0\n"
        "    for i in range(n):\n"
        "        y = x[i] * s\n"
        "        k = 0\n"
        "        while y < 5.0:\n"
        "            y = y * y + math.exp(x[0])\n"
        "            k += 1\n"
        "            if k > 3:\n"
        "                break\n"
        "        s = s + y * k\n"
        "    return s\n",
        (A, 3),
    ),
    "arrays": (
        "def f(x, n):\n"
        "    y = np.zeros(n)\n"
        "    y[0] = x[0]\n"
        "    for i in range(1, n):\n"
        "        y[i] = math.sin(y[i - 1]) * x[i]\n"
        "        x[i] *= y[i]\n"
        "    z = y[1:]\n"
        "    return (z * x[1:]).sum()\n",
        (A, 3),
    ),
    "calls": (
        "def g(x, n):\n"
        "    if n == 0:\n"
        "        return x\n"
        "    for i in range(n):\n"
        "        x = math.sin(x) * x\n"
        "        if x < 0.1:\n"
        "            return x * 2.0\n"
        "    return x * g(x, n - 1)\n"
        "@tg.njit\n"
        "def f(x, n):\n"
        "    return g(x[0], n) * g(x[1], 2)\n",
        (A, 3),
    ),
    "scalars": (
        "def f(x, n):\n"
        "    for _ in range(n):\n"
        "        x = 3.7 * x * (1.0 - x)\n"
        "        if x > 0.5:\n"
        "            y = math.log(x)\n"
        "            x = y * y\n"
        "    return x\n",
        (0.4, 5),
    ),
}


def texts_of(name):
    """The modules that are generated for a program, with the names that they are given."""
    source, args = PROGRAMS[name]
    f = module(HEADER + source)
    kinds = tuple(map(numba.typeof, args))
    product = tg.hvp(f)
    assert isinstance(product, HessianProduct)
    for derivative, more in (
        (tg.value_and_grad(f), ()),
        (tg.jvp(f), kinds[:1]),
        (product, kinds[:1]),
        (tg.jvp(tg.grad(f)), kinds[:1]),
    ):
        derivative.source((*kinds, *more))
        inner = derivative.implementation((*kinds, *more))
        yield text_of(inner), GIVEN | set(inner.py_func.__globals__)


OPS = [op for op in TABLE.values() if isinstance(op, Elementwise) and hasattr(tg, op.name)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ops_that_are_computed_again(count):
    """An op returns the same for the same numbers, by whatever name it is called."""
    names = [op.name for op in OPS if len(op.arguments) == count]
    assert names
    given = ", ".join(["e", "x[0]", "0.3"][:count])
    lines = [f"        r = tg.{name}({given})\n        s = s * r * e + r\n" for name in names]
    f = module(
        f"{HEADER}def f(x):\n    s = 0.3\n    for i in range(x.size):\n        e = x[i] * s\n"
        f"{''.join(lines)}    return s\n"
    )
    f.adjoint_source(A)


def text_of(inner):
    """What is verified of the module of a generated function."""
    text = "".join(linecache.getlines(inner.py_func.__code__.co_filename))
    return text.partition(FASTER)[0]


# -- walks -----------------------------------------------------------------------------------------


class UndefinedError(Exception):
    """A name is read that has no value."""


class EndlessError(Exception):
    """A loop does not end."""


class Leave(Exception):
    """Break or return."""


class Walk:
    """One way through a function. Every value is true or false, as it is drawn."""

    def __init__(self, function, given, draw):
        self.given = given
        self.draw = draw
        self.values = {argument.arg: self.coin() for argument in function.args.args}
        self.steps = 0
        with contextlib.suppress(Leave):
            self.block(function.body)

    def coin(self):
        return self.draw.random() < 0.5

    def block(self, body):
        for statement in body:
            self.statement(statement)

    def read(self, node):
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load):
                if name.id not in self.values and name.id not in self.given:
                    raise UndefinedError(name.id)

    def write(self, target):
        self.read(target)
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                self.values[name.id] = self.coin()

    def test(self, node):
        self.read(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.test(node.operand)
        if isinstance(node, ast.Constant):
            return bool(node.value)
        if isinstance(node, ast.Name) and node.id in self.values:
            return self.values[node.id]
        return self.coin()

    def statement(self, node):
        self.steps += 1
        if self.steps > 2000:
            raise EndlessError
        if isinstance(node, ast.Assign):
            self.read(node.value)
            for target in node.targets:
                self.write(target)
        elif isinstance(node, ast.AugAssign):
            self.read(node.value)
            if isinstance(node.target, ast.Name) and node.target.id not in self.values:
                raise UndefinedError(node.target.id)
            self.write(node.target)
        elif isinstance(node, ast.If):
            self.block(node.body if self.test(node.test) else node.orelse)
        elif isinstance(node, ast.For):
            self.read(node.iter)
            for _ in range(self.draw.randrange(3)):
                self.write(node.target)
                if self.left(node.body):
                    break
        elif isinstance(node, ast.While):
            while self.test(node.test):
                if self.left(node.body):
                    break
        elif isinstance(node, ast.Break):
            raise Leave("break")
        else:
            for part in ast.iter_child_nodes(node):
                self.read(part)
            if isinstance(node, (ast.Return, ast.Raise)):
                raise Leave("return")

    def left(self, body):
        try:
            self.block(body)
        except Leave as way:
            if way.args[0] == "return":
                raise
            return True
        return False


def is_undefined(tree, given, draw, walks=60):
    """Whether any walk through the functions of a module reads what is not defined."""
    given = {*given, *vars(builtins), *(function.name for function in tree.body)}
    for function in tree.body:
        for _ in range(walks):
            try:
                Walk(function, given, draw)
            except UndefinedError:
                return True
            except EndlessError:
                continue
    return False


# -- what is generated -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_generated_is_accepted(name):
    for text, given in texts_of(name):
        verify(text, given, purposes=purposes_of(text))
        assert not is_undefined(ast.parse(text), given, random.Random(0))


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_are_accepted(seed):
    program = program_of(seed)
    f = module(program.source)
    kinds = tuple(numba.typeof(a) for a in program.arguments(0))
    for derivative in (tg.value_and_grad(f, program.argnums), tg.jvp(f, program.argnums)):
        added = len(derivative.py_func.__code__.co_varnames) - len(kinds)
        more = [kinds[k] for k in program.argnums] if added else []
        try:
            inner = derivative.implementation((*kinds, *more))
        except tg.TransformError:
            continue
        text = text_of(inner)
        given = GIVEN | set(inner.py_func.__globals__)
        verify(text, given, purposes=purposes_of(text))


# -- mutations -------------------------------------------------------------------------------------


def mutants(tree, draw, count=40):
    """The module without one of its assignments, or with one that stands later in its block."""
    blocks = list(blocks_of(tree))
    places = [
        (block, place)
        for block in blocks
        for place, statement in enumerate(block)
        if isinstance(statement, (ast.Assign, ast.AugAssign))
    ]
    for block, place in draw.sample(places, min(count, len(places))):
        before = list(block)
        statement = block.pop(place)
        if draw.random() < 0.5:
            block.insert(draw.randint(place, len(block)), statement)
        block[:] = block or [ast.Pass()]
        yield ast.unparse(tree)
        block[:] = before


def check_definedness(text, given):
    """This pass alone."""
    codes = functions_of(text)
    known = {*vars(builtins), *given, *(code.name for code in codes)}
    for code in codes:
        Definedness(code, known).run()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_missing_or_late_assignment_is_found(name):
    draw = random.Random(1)
    undefined = found = accepted = 0
    for text, given in texts_of(name):
        for mutant in mutants(ast.parse(text), draw):
            wrong = is_undefined(ast.parse(mutant), given, draw, 20)
            try:
                check_definedness(mutant, given)
                accepted += 1
                assert not wrong, mutant
            except InternalError:
                found += 1
            undefined += wrong
    assert undefined > 40
    assert found <= 1.05 * undefined + 3, "it refuses what never reads an undefined name"
    assert accepted > 10


# -- the rules of the language ---------------------------------------------------------------------


def body(text):
    return "def f(x, n, c, d):\n" + "".join(f"    {line}\n" for line in text.splitlines())


RIGHT = {
    "plain": "y = x\nreturn y",
    "both branches": "if c:\n    y = x\nelse:\n    y = n\nreturn y",
    "a branch that leaves": "if c:\n    y = x\nelse:\n    return n\nreturn y",
    "the same test again": "if c:\n    y = x\nz = 1\nif c:\n    z = y\nreturn z",
    "the opposite": "if not c:\n    z = x\nelse:\n    y = x\nif c:\n    z = y\nreturn z",
    "nested tests": (
        "z = n\nif c:\n    if d:\n        y = x\nif c:\n    if d:\n        z = y\nreturn z"
    ),
    "other order": (
        "z = n\nif c:\n    if d:\n        y = x\nif d:\n    if c:\n        z = y\nreturn z"
    ),
    "after an endless loop": "while True:\n    y = x\n    if y:\n        break\nreturn y",
    "left in two ways": (
        "while True:\n    if c:\n        y = x\n        break\n    y = n\n    if d:\n"
        "        break\nreturn y"
    ),
    "a test before a loop": (
        "z = n\nif c:\n    y = x\nfor i in range(n):\n    if c:\n        z = y\nreturn z"
    ),
    "a test that changed where it was true": (
        "z = n\nif c:\n    y = x\n    c = n\nif c:\n    z = y\nreturn z"
    ),
    "elements": "y = x\ny[n] = x\nreturn y",
}
WRONG = {
    "nothing": ("return y", "y is defined nowhere"),
    "one branch": ("if c:\n    y = x\nreturn y", "y is read"),
    "another test": ("z = n\nif c:\n    y = x\nif d:\n    z = y\nreturn z", "y is read"),
    "the opposite": ("z = n\nif c:\n    y = x\nif not c:\n    z = y\nreturn z", "y is read"),
    "a test that changed": (
        "z = n\nif c:\n    y = x\nc = n\nif c:\n    z = y\nreturn z",
        "y is read",
    ),
    "a test that changed in the other branch": (
        "z = n\nif c:\n    y = x\nelse:\n    c = d\nif c:\n    z = y\nreturn z",
        "y is read",
    ),
    "a test that changes in the loop": (
        "z = n\nif c:\n    y = x\nfor i in range(n):\n    if c:\n        z = y\n    c = d\n"
        "return z",
        "y is read",
    ),
    "a loop": ("for i in range(n):\n    y = x\nreturn y", "y is read"),
    "its variable": ("for i in range(n):\n    pass\nreturn i", "i is read"),
    "the turn before": (
        "for i in range(n):\n    if i > 0:\n        z = y\n    y = x\nreturn x",
        "y is read",
    ),
    "a condition": ("while c:\n    y = x\n    c = y\nreturn y", "y is read"),
    "a break before": (
        "while True:\n    if c:\n        break\n    y = x\nreturn y",
        "y is read",
    ),
    "added to": ("y += x\nreturn y", "y is read"),
    "an element": ("y[0] = x\nreturn x", "y is defined nowhere"),
    "a part of a target": ("y, x[z] = n\nreturn y", "z is defined nowhere"),
    "not of the module": ("return nowhere.f(x)", "nowhere is defined nowhere"),
    "no return": ("y = x", "without a return"),
    "after a return": ("return x\ny = x", "never reached"),
    "try": ("try:\n    y = x\nexcept ValueError:\n    y = n\nreturn y", "no pass knows"),
    "comprehension": ("return [y for y in x]", "no pass knows"),
    "continue": ("for i in range(n):\n    continue\nreturn x", "no pass knows"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_accepted(name):
    verify(body(RIGHT[name]), ())


@pytest.mark.parametrize("name", WRONG)
def test_refused(name):
    text, what = WRONG[name]
    with pytest.raises(InternalError, match=what) as caught:
        verify(body(text), ())
    assert "generated function f" in str(caught.value)
    assert "defect of tapegrad" in str(caught.value)


def test_the_line_is_named():
    text = body("y = x") + "\n" + body("if c:\n    z = x\nreturn z").replace("def f", "def g")
    with pytest.raises(InternalError, match=r"line 4 of the generated function f|without a return"):
        verify(text, ())
    text = body("return x") + "\n" + body("if c:\n    z = x\nreturn z").replace("def f", "def g")
    with pytest.raises(InternalError, match="in line 7 of the generated function g\n    return z"):
        verify(text, ())
