"""Random programs in the language of `tapegrad.njit`.

A program is the text of a module with a function ``f`` and maybe a function ``helper``. It is valid
for numba, ends soon, keeps its numbers small and stays inside its arrays by construction. As a
script this file makes programs until one fails::

    python tests/njit/programs.py --seed 0 --seconds 600
"""

import argparse
import ast
import collections
import contextlib
import copy
import dataclasses
import faulthandler
import itertools
import random
import re
import sys
import time

import hypothesis.strategies as st
import numpy as np

HEADER = """\
import math

import numpy as np
from numba import njit

import tapegrad as tg

RATE = 0.7
"""
CONSTANTS = ["0.3", "0.7", "1.1", "-0.4", "RATE"]
ONE = [
    "np.sin({})",
    "np.cos({})",
    "np.tanh({})",
    "np.exp(np.sin({}))",
    "np.sqrt(1.5 + np.cos({}))",
    "np.log(2.0 + np.sin({}))",
    "math.sin({})",
    "math.exp(math.cos({}))",
    "np.arctan({})",
    "-{}",
    "{} ** 2",
    "{} ** 3",
    "abs({})",
]
TWO = [
    "{} + {}",
    "{} * {}",
    "{} - {}",
    "{} / (2.0 + np.cos({}))",
    "(1.5 + np.sin({})) ** np.cos({})",
    "np.arctan2({}, 2.0 + np.sin({}))",
    "max({}, {})",
    "min({}, {})",
]
WHOLE = ["np.sin({})", "0.5 * {}", "np.tanh({})", "-{}", "np.exp(np.sin({}))", "np.abs({})"]
WHOLE_TWO = ["{} + {}", "{} * {}", "{} - {}", "{} / (2.0 + np.cos({}))", "np.maximum({}, {})"]


@dataclasses.dataclass
class Scope:
    """What is defined at a place of the program."""

    floats: list = dataclasses.field(default_factory=list)
    ints: dict = dataclasses.field(default_factory=dict)  # name: least and greatest value
    vectors: dict = dataclasses.field(default_factory=dict)  # name: length
    matrices: dict = dataclasses.field(default_factory=dict)  # name: shape
    pairs: list = dataclasses.field(default_factory=list)  # tuples of two floats
    kept: set = dataclasses.field(default_factory=set)  # names that count trips: only read
    own: set = dataclasses.field(default_factory=set)  # names defined in this block

    def inner(self):
        scope = copy.deepcopy(self)
        scope.own = set()
        return scope


def group(text):
    """Text that can stand anywhere in an expression."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Subscript):
        return text
    with contextlib.suppress(SyntaxError):
        if text[0] == "(":
            ast.parse(text[1:-1], mode="eval")
            return text
    return f"({text})"


class Author:
    """Writes one program; `choose(n)` gives a number below n, and 0 is the simplest."""

    def __init__(self, choose):
        self.choose = choose
        self.numbers = itertools.count(1)
        self.helper = None
        self.length = 3
        self.left = 0
        self.returns = "float"

    def pick(self, options):
        options = list(options)
        return options[self.choose(len(options))]

    def chance(self, part, of):
        """True in some cases of so many; False is simpler."""
        return self.choose(of) >= of - part

    def name(self, letter):
        return f"{letter}{next(self.numbers)}"

    # numbers

    def atom(self, scope):
        options = ["constant"] + ["float"] * 4 * bool(scope.floats) + ["int"] * bool(scope.ints)
        options += ["element"] * 3 * bool(scope.vectors) + ["cell"] * 2 * bool(scope.matrices)
        options += ["pair"] * 2 * bool(scope.pairs)
        kind = self.pick(options)
        if kind == "float":
            return self.pick(scope.floats)
        if kind == "int":
            return f"{self.pick(CONSTANTS)} * {self.pick(scope.ints)}"
        if kind == "element":
            return self.element(scope)
        if kind == "cell":
            return self.cell(scope)
        if kind == "pair":
            return f"{self.pick(scope.pairs)}[{self.choose(2)}]"
        return self.pick(CONSTANTS)

    def element(self, scope):
        name = self.pick(scope.vectors)
        return f"{name}[{self.index(scope, name, scope.vectors[name])}]"

    def cell(self, scope):
        name = self.pick(scope.matrices)
        rows, columns = scope.matrices[name]
        row, column = self.index(scope, None, rows), self.index(scope, None, columns)
        return f"{name}[{row}, {column}]" if self.chance(3, 4) else f"{name}[{row}][{column}]"

    def index(self, scope, name, length):
        options = ["constant"] + ["int"] * 4 * bool(scope.ints)
        if self.pick(options) == "constant":
            same = [other for other, size in scope.vectors.items() if size == length]
            if same and self.chance(1, 8):
                return f"{self.pick(['np.argmin', 'np.argmax'])}({self.pick(same)})"
            return str(self.choose(2 * length) - length) if self.chance(1, 2) else "0"
        k = self.pick(scope.ints)
        least, greatest = scope.ints[k]
        inside = -length <= least and greatest < length
        if inside and not self.chance(1, 4):
            return k
        size = f"len({name})" if name and self.chance(1, 3) else str(length)
        if least >= 0 and greatest < length and self.chance(1, 2):
            return self.pick([f"-{k} - 1", f"{size} - 1 - {k}"])
        return f"({k} + {self.choose(3)}) % {size}" if self.chance(1, 2) else f"{k} % {size}"

    def number(self, scope, depth=2):
        if depth == 0 or not self.chance(2, 3):
            return self.atom(scope)
        kinds = ["one", "two", "two", "one", "choice"]
        kinds += ["sum"] * 2 * bool(scope.vectors or scope.matrices)
        kinds += ["call"] * (self.helper is not None and self.helper[0] == "float")
        powers = [k for k, (least, _) in scope.ints.items() if least >= 0]
        kinds += ["guarded"] + ["power"] * bool(powers)
        kind = self.pick(kinds)
        if kind == "one":
            return self.pick(ONE).format(group(self.number(scope, depth - 1)))
        if kind == "two":
            return self.pick(TWO).format(
                group(self.number(scope, depth - 1)), group(self.number(scope, depth - 1))
            )
        if kind == "choice":
            first, second = self.number(scope, depth - 1), self.number(scope, depth - 1)
            return f"({first} if {self.condition(scope)} else {second})"
        if kind == "guarded":
            # what is not finite on the branch that is not taken
            base, other = group(self.atom(scope)), self.atom(scope)
            risky = self.pick(["np.sqrt({})", "np.log({})", "1.0 / {}"]).format(base)
            return f"({risky} if {base} > 0.1 else {other})"
        if kind == "power":
            return f"{group(self.number(scope, depth - 1))} ** {self.pick(powers)}"
        if kind == "call":
            return self.call(scope)
        return self.total(scope)

    def total(self, scope):
        name = self.pick([*scope.vectors, *scope.matrices])
        kinds = ["np.sum({})", "0.5 * {}.sum()", "np.mean({})", "np.max({})", "np.min({})"]
        if name in scope.vectors:
            kinds += ["product", "product", "dot", "np.sum({0}[{0} > 0.1])", "np.prod({})"]
        kind = self.pick(kinds)
        if kind == "dot":
            same = [other for other, size in scope.vectors.items() if size == scope.vectors[name]]
            return f"np.dot({name}.copy(), {self.pick(same)}.copy())"
        if kind == "product":
            other = self.vector(scope, scope.vectors[name])
            return f"np.sum({name} * {group(other)})"
        return kind.format(name)

    def small(self, scope):
        """A number of size one or so."""
        text = self.number(scope)
        how = self.pick(["np.sin({})", "np.sin({})", "np.tanh({})", "0.5 * {}"])
        return how.format(group(text) if "*" in how else text)

    def condition(self, scope, depth=1):
        kinds = ["level", "level", "two", "between"] + ["even", "count"] * bool(scope.ints)
        kinds += ["and", "or", "not"] * depth
        kind = self.pick(kinds)
        sign = self.pick(["<", ">", "<=", ">="])
        if kind == "level":
            return f"{self.number(scope, depth)} {sign} {self.pick(['0.1', '-0.2', '0.45'])}"
        if kind == "two":
            return f"{self.atom(scope)} {sign} {self.atom(scope)}"
        if kind == "between":
            return f"-0.3 < {self.atom(scope)} < 0.6"
        if kind == "even":
            return f"{self.pick(scope.ints)} % 2 == {self.choose(2)}"
        if kind == "count":
            return f"{self.pick(scope.ints)} {self.pick(['>', '<', '==', '!='])} {self.choose(4)}"
        if kind == "not":
            return f"not ({self.condition(scope, 0)})"
        return f"{self.condition(scope, 0)} {kind} {self.condition(scope, 0)}"

    # arrays

    def vector(self, scope, length, depth=1):
        """An array expression of one dimension."""
        kinds = ["full"]
        same = [name for name, size in scope.vectors.items() if size == length]
        longer = [name for name, size in scope.vectors.items() if size >= length]
        rows = [name for name, shape in scope.matrices.items() if shape[1] == length]
        kinds += ["name"] * 4 * bool(same) + ["part"] * 2 * bool(longer) + ["row"] * bool(rows)
        kinds += ["gather"] * bool(longer)
        products = [name for name, shape in scope.matrices.items() if shape[0] == length]
        kinds += ["product"] * bool(products)
        if depth:
            kinds += ["one", "one", "two", "two", "scaled", "where", "guarded"]
        kind = self.pick(kinds)
        if kind == "name":
            return self.pick(same)
        if kind == "part":
            name = self.pick(longer)
            return f"{name}[{self.part(scope.vectors[name], length)}]"
        if kind == "row":
            name = self.pick(rows)
            return f"{name}[{self.index(scope, None, scope.matrices[name][0])}]"
        if kind == "full":
            return f"np.full({length}, {group(self.atom(scope))} + 0.0)"
        if kind == "gather":
            name = self.pick(longer)
            picked = ", ".join(str(self.choose(scope.vectors[name])) for _ in range(length))
            return f"{name}[np.array([{picked}])]"
        if kind == "product":
            name = self.pick(products)
            right = self.vector(scope, scope.matrices[name][1], 0)
            return f"np.dot({name}.copy(), {group(right)}.copy())"
        first = self.vector(scope, length, depth - 1)
        if kind == "guarded":
            risky = self.pick(["np.sqrt({})", "np.log({})", "1.0 / {}"]).format(group(first))
            return f"np.where({group(first)} > 0.1, {risky}, {group(self.atom(scope))})"
        if kind == "one":
            return self.pick(WHOLE).format(first)
        if kind == "two":
            second = self.vector(scope, length, depth - 1)
            return self.pick(WHOLE_TWO).format(group(first), group(second))
        if kind == "where":
            return f"np.where({first} > 0.15, {first}, {group(self.atom(scope))} * {group(first)})"
        return f"{group(self.atom(scope))} * {group(first)}"

    def part(self, size, length):
        """A slice of so many elements."""
        options = []
        for step in (1, 2, -1):
            for start in range(size):
                stop = start + step * length
                last = start + step * (length - 1)
                if not 0 <= last < size:
                    continue
                if step == 1:
                    options.append(f"{start or ''}:{stop if stop < size else ''}")
                else:
                    options.append(f"{start}:{stop if stop >= 0 else ''}:{step}")
        return self.pick(options)

    # statements

    def block(self, scope, most, loop=False, trips=1):
        lines = self.statement(scope, loop, trips)
        for _ in range(self.choose(most)):
            if self.left > 0:
                lines += self.statement(scope, loop, trips)
        return lines

    def nested(self, scope, most, loop=False, trips=1):
        lines = self.block(scope, most, loop, trips)
        return ["    " + line for line in lines or ["pass"]]

    def statement(self, scope, loop, trips):
        free = [name for name in scope.floats if name not in scope.kept]
        counts = [name for name in scope.ints if name not in scope.kept]
        own = [name for name in free + counts if name in scope.own]
        several = [
            pair
            for pair in itertools.combinations(scope.vectors, 2)
            if scope.vectors[pair[0]] == scope.vectors[pair[1]]
        ]
        kinds = ["nothing", "new"] + ["assign"] * 4 * bool(free) + ["augment"] * 3 * bool(free)
        kinds += ["integer", "pair"] + ["unpack", "chain"] * (len(free) > 1)
        kinds += ["renumber"] * bool(counts) + ["retype"] * bool(own)
        if scope.vectors:
            kinds += ["write"] * 4 + ["augment_element"] * 3 + ["slice_write"] * 3
            kinds += ["slice_augment"] * 2 + ["whole_augment"] + ["view"] * 3 + ["rebind"]
            kinds += ["swap_elements"]
        kinds += ["array", "array"]
        kinds += ["swap", "alias", "alias", "packed"] * bool(several)
        if scope.matrices:
            kinds += ["cell_write"] * 3 + ["row_view"] * 2 + ["row_write"]
        kinds += ["if_"] * 4 * (self.left > 0) + ["helper_call"] * 2 * (self.helper is not None)
        kinds += ["leave"] * 2 * loop + ["return_early"]
        if trips <= 16 and self.left > 0:
            kinds += ["for_"] * 6 + ["while_"] * 2
        self.left -= 1
        kind = self.pick(kinds)
        if kind in ("if_", "for_", "while_"):
            return getattr(self, kind)(scope, loop, trips)
        return getattr(self, kind)(scope)

    def nothing(self, scope):
        return []

    def new(self, scope):
        text = self.small(scope)
        name = self.name("u")
        start = self.pick([text, text, text, "0.0", "0", "1"])
        scope.floats.append(name)
        scope.own.add(name)
        return [f"{name} = {start}"]

    def free(self, scope):
        return self.pick(name for name in scope.floats if name not in scope.kept)

    def assign(self, scope):
        name = self.free(scope)
        if self.chance(1, 12):
            return [f"{name} = {self.pick(['0', '1', *scope.ints])}"]
        return [f"{name} = {self.small(scope)}"]

    def augment(self, scope):
        name = self.free(scope)
        sign = self.pick(["+=", "+=", "-=", "*=", "/="])
        if sign in ("+=", "-="):
            return [f"{name} {sign} {self.small(scope)}"]
        return [f"{name} {sign} 1.2 + 0.4 * np.sin({self.number(scope)})"]

    def integer(self, scope):
        if self.chance(1, 3):
            value = f"int(2.0 + 1.9 * np.sin({self.number(scope, 1)}))"
        elif scope.ints and self.chance(1, 2):
            value = f"({self.pick(scope.ints)} * 2 + {self.choose(3)}) % 4"
        else:
            value = str(self.choose(4))
        name = self.name("k")
        scope.ints[name] = (0, 3)
        scope.own.add(name)
        return [f"{name} = {value}"]

    def renumber(self, scope):
        name = self.pick(name for name in scope.ints if name not in scope.kept)
        least, greatest = scope.ints[name]
        value = f"({name} + {1 + self.choose(3)}) % {max(greatest, 0) + 1}"
        return [f"{name} = {value if greatest >= 0 else least}"]

    def retype(self, scope):
        """A name that was a float becomes an integer, or the other way round."""
        name = self.pick(
            name for name in [*scope.floats, *scope.ints] if name in scope.own - scope.kept
        )
        if name in scope.ints:
            text = f"{name} = {name} * {group(self.small(scope))}"
            del scope.ints[name]
            scope.floats.append(name)
            return [text]
        scope.floats.remove(name)
        scope.ints[name] = (0, 3)
        return [f"{name} = {self.choose(4)}"]

    def pair(self, scope):
        first, second = self.small(scope), self.small(scope)
        name = self.name("t")
        if name not in scope.pairs:
            scope.pairs.append(name)
        return [f"{name} = ({first}, {second})"]

    def unpack(self, scope):
        names = [name for name in scope.floats if name not in scope.kept]
        first = self.pick(names)
        second = self.pick(name for name in names if name != first)
        if scope.pairs and self.chance(1, 2):
            return [f"{first}, {second} = {self.pick(scope.pairs)}"]
        if self.chance(1, 2):
            return [f"{first}, {second} = {self.small(scope)}, {self.small(scope)}"]
        return [f"{first}, {second} = {second}, {first}"]

    def chain(self, scope):
        names = [name for name in scope.floats if name not in scope.kept]
        first = self.element(scope) if scope.vectors and self.chance(1, 2) else self.pick(names)
        return [f"{first} = {self.pick(names)} = {self.small(scope)}"]

    def swap_elements(self, scope):
        first, second = self.element(scope), self.element(scope)
        return [f"{first}, {second} = {second}, {self.pick([first, self.small(scope)])}"]

    def packed(self, scope):
        """Arrays in a tuple are the same arrays."""
        first, second = self.same_length(scope)
        name, one, other = self.name("t"), self.name("v"), self.name("v")
        if self.chance(1, 2):
            index = self.index(scope, None, scope.vectors[first])
            return [f"{name} = ({first}, {second})", f"{name}[1][{index}] = {self.small(scope)}"]
        scope.vectors[one] = scope.vectors[other] = scope.vectors[first]
        return [f"{name} = ({first}, {second})", f"{one}, {other} = {name}"]

    def write(self, scope):
        return [f"{self.element(scope)} = {self.small(scope)}"]

    def augment_element(self, scope):
        sign = self.pick(["+=", "+=", "-=", "*="])
        if sign == "*=":
            return [f"{self.element(scope)} *= 1.1 + 0.3 * np.sin({self.number(scope)})"]
        return [f"{self.element(scope)} {sign} {self.small(scope)}"]

    def cell_write(self, scope):
        sign = self.pick(["=", "=", "+=", "-="])
        return [f"{self.cell(scope)} {sign} {self.small(scope)}"]

    def target(self, scope):
        """A slice to write to, and its length."""
        name = self.pick(scope.vectors)
        size = scope.vectors[name]
        length = size - self.choose(size)
        part = ":" if length == size and self.chance(1, 2) else self.part(size, length)
        return f"{name}[{part}]", length

    def slice_write(self, scope):
        target, length = self.target(scope)
        value = self.pick(["number", "vector", "vector", "vector"])
        if value == "number":
            return [f"{target} = {self.small(scope)}"]
        return [f"{target} = {self.vector(scope, length)}"]

    def slice_augment(self, scope):
        target, length = self.target(scope)
        if self.chance(1, 3):
            return [f"{target} *= {self.pick(['0.7', '-1.2', self.small(scope)])}"]
        sign = self.pick(["+=", "-="])
        value = self.small(scope) if self.chance(1, 3) else self.vector(scope, length)
        return [f"{target} {sign} {value}"]

    def whole_augment(self, scope):
        name = self.pick(scope.vectors)
        if self.chance(1, 2):
            return [f"{name} *= {self.small(scope)}"]
        return [f"{name} += {self.vector(scope, scope.vectors[name])}"]

    def view(self, scope):
        base = self.pick(scope.vectors)
        size = scope.vectors[base]
        length = size - self.choose(size)
        name = self.name("v")
        scope.vectors[name] = length
        return [f"{name} = {base}[{self.part(size, length)}]"]

    def row_view(self, scope):
        base = self.pick(scope.matrices)
        rows, columns = scope.matrices[base]
        name = self.name("v")
        if self.chance(1, 5):
            scope.matrices[name] = (columns, rows)
            return [f"{name} = {base}.T"]
        if self.chance(1, 3):
            scope.vectors[name] = rows
            return [f"{name} = {base}[:, {self.index(scope, None, columns)}]"]
        scope.vectors[name] = columns
        return [f"{name} = {base}[{self.index(scope, None, rows)}]"]

    def row_write(self, scope):
        base = self.pick(scope.matrices)
        rows, columns = scope.matrices[base]
        if self.chance(1, 4):
            value = self.small(scope) if self.chance(1, 2) else self.vector(scope, columns)
            return [f"{base} {self.pick(['*=', '+='])} {value}"]
        if self.chance(1, 3):
            value = self.vector(scope, rows)
            return [f"{base}[:, {self.index(scope, None, columns)}] = {value}"]
        sign = self.pick(["=", "+="])
        value = self.vector(scope, columns)
        return [f"{base}[{self.index(scope, None, rows)}] {sign} {value}"]

    def array(self, scope):
        """A new array."""
        length = self.pick([self.length, self.length, *scope.vectors.values()])
        name = self.name("w")
        like = [other for other, size in scope.vectors.items() if size == length]
        kinds = ["zeros", "expression", "loop", "filled"] + ["copy", "like"] * bool(like)
        kinds += ["matrix"] * 2
        kind = self.pick(kinds)
        if kind == "matrix":
            rows = 2 + self.choose(2)
            scope.matrices[name] = (rows, length)
            same = [other for other, shape in scope.matrices.items() if shape == (rows, length)]
            same.remove(name)
            if same and self.chance(1, 2):
                value = f"{self.pick(WHOLE).format(self.pick(same))}"
                return [f"{name} = {value}"]
            if same and self.chance(1, 2):
                row = group(self.vector(scope, length, 0))
                return [f"{name} = {self.pick(WHOLE).format(f'({self.pick(same)} * {row})')}"]
            return [f"{name} = np.zeros(({rows}, {length}))"]
        if kind == "zeros":
            lines = [f"{name} = {self.pick(['np.zeros', 'np.ones'])}({length})"]
        elif kind == "filled":
            first, last = self.atom(scope), self.atom(scope)
            elements = [f"{group(self.atom(scope))} + 0.0" for _ in range(length)]
            value = self.pick(
                [
                    f"np.linspace({first}, {last}, {length})",
                    f"np.array([{', '.join(elements)}])",
                    f"np.full({length}, {group(first)} + 0.0)",
                    f"{group(first)} * np.arange({length})",
                ]
            )
            lines = [f"{name} = {value}"]
        elif kind == "copy":
            lines = [f"{name} = {self.pick(like)}.copy()"]
        elif kind == "expression":
            lines = [f"{name} = np.sin({self.vector(scope, length)})"]
        else:
            make = f"np.empty_like({self.pick(like)})" if kind == "like" else f"np.empty({length})"
            i = self.name("i")
            inner = scope.inner()
            inner.ints[i] = (0, length - 1)
            value = self.small(inner)
            lines = [
                f"{name} = {make}",
                f"for {i} in range({length}):",
                f"    {name}[{i}] = {value}",
            ]
        scope.vectors[name] = length
        return lines

    def rebind(self, scope):
        name = self.pick(scope.vectors)
        if self.chance(1, 2):
            return [f"{name} = {self.vector(scope, scope.vectors[name])}"]
        return [f"{name} = np.sin({self.vector(scope, scope.vectors[name])})"]

    def same_length(self, scope):
        first = self.pick(
            name
            for name in scope.vectors
            if list(scope.vectors.values()).count(scope.vectors[name]) > 1
        )
        others = [name for name, size in scope.vectors.items() if size == scope.vectors[first]]
        return first, self.pick(name for name in others if name != first)

    def swap(self, scope):
        first, second = self.same_length(scope)
        return [f"{first}, {second} = {second}, {first}"]

    def alias(self, scope):
        first, second = self.same_length(scope)
        if self.chance(1, 3):
            return [f"{first} = {second}"]
        if self.chance(1, 2):
            return [f"if {self.condition(scope)}:", f"    {first} = {second}"]
        name = self.name("v")
        lines = [f"{name} = {first} if {self.condition(scope)} else {second}"]
        scope.vectors[name] = scope.vectors[first]
        return lines

    def if_(self, scope, loop, trips):
        lines = [f"if {self.condition(scope)}:", *self.nested(scope.inner(), 2, loop, trips)]
        if self.chance(1, 3):
            lines += [f"elif {self.condition(scope)}:", *self.nested(scope.inner(), 2, loop, trips)]
        if self.chance(1, 2):
            lines += ["else:", *self.nested(scope.inner(), 2, loop, trips)]
        return lines

    def leave(self, scope):
        lines = [f"if {self.condition(scope)}:"]
        if self.chance(1, 3):
            lines += self.nested(scope.inner(), 1, False, 100)
        return [*lines, "    " + self.pick(["continue", "break"])]

    def return_early(self, scope):
        test = f"if {self.condition(scope)}:"
        if self.returns == "none":
            return [test, "    return"]
        value = self.number(scope)
        if self.returns == "pair":
            value = f"{self.small(scope)}, {self.small(scope)}"
        return [test, f"    return {value}"]

    def for_(self, scope, loop, trips):
        inner = scope.inner()
        before, header, count = self.header(scope, inner)
        body = self.nested(inner, 4, True, trips * max(count, 1))
        if re.match(r"for (\w+) in", header) and self.chance(1, 10):
            # the name of a loop may be assigned in its body, which does not change the trips
            name = re.match(r"for (\w+) in", header)[1]
            if name in inner.ints:
                body.append(f"    {name} = ({name} + 2) % 3")
        return [*before, header, *body]

    def header(self, scope, inner):
        """Lines before a loop, its first line, and how often it runs at most."""
        kinds = ["count", "count", "from", "down", "step", "number", "turn"]
        kinds += ["int"] * 2 * any(0 <= high <= 5 for _, high in scope.ints.values())
        kinds += ["size", "size", "size_down", "values", "values", "enumerate", "zip"] * bool(
            scope.vectors
        )
        kinds += ["rows"] * bool(scope.matrices)
        kind, i = self.pick(kinds), self.name("i")
        if kind in ("values", "enumerate", "zip", "rows"):
            return self.values_header(scope, inner, kind)
        before = []
        if kind == "count":
            count = self.pick([2, 3, 1, 4, 0])
            text, bounds = str(count), (0, count - 1)
        elif kind == "from":
            start, count = self.choose(3), self.pick([2, 3, 1, 0])
            text, bounds = f"{start}, {start + count}", (start, start + count - 1)
        elif kind == "down":
            count = self.pick([3, 2, 4])
            text, bounds = f"{count - 1}, -1, -1", (0, count - 1)
        elif kind == "step":
            text, bounds, count = self.pick(
                [
                    ("0, 5, 2", (0, 4), 3),
                    ("4, 0, -2", (2, 4), 2),
                    ("1, 6, 3", (1, 4), 2),
                    ("2, 2, -1", (2, 2), 0),
                    ("0, 3, -1", (0, 2), 0),
                    ("-1, -4, -1", (-3, -1), 3),
                ]
            )
        elif kind == "number":
            text = f"int(1.0 + 1.9 * np.cos({self.number(scope, 1)}))"
            bounds, count = (0, 1), 2
        elif kind == "turn":
            d = self.name("d")
            before = [f"{d} = 1 if {self.condition(scope)} else -1"]
            text, bounds, count = f"1, 1 + 3 * {d}, {d}", (-1, 3), 3
            inner.ints[d] = (-1, 1)
            inner.kept.add(d)
        elif kind == "int":
            k = self.pick(name for name, (_, high) in scope.ints.items() if 0 <= high <= 5)
            text, bounds, count = k, (0, max(scope.ints[k][1] - 1, 0)), scope.ints[k][1]
        else:
            name = self.pick(scope.vectors)
            count = scope.vectors[name]
            size, bounds = self.pick([f"len({name})", f"{name}.shape[0]"]), (0, count - 1)
            text = size if kind == "size" else f"{size} - 1, -1, -1"
        inner.ints[i] = (bounds[0], max(bounds))
        inner.own.add(i)
        return before, f"for {i} in range({text}):", count

    def values_header(self, scope, inner, kind):
        x = self.name("e")
        if kind == "rows":
            name = self.pick(scope.matrices)
            rows, columns = scope.matrices[name]
            inner.vectors[x] = columns
            if self.chance(1, 3):
                i = self.name("i")
                inner.ints[i] = (0, rows - 1)
                return [], f"for {i}, {x} in enumerate({name}):", rows
            return [], f"for {x} in {name}:", rows
        name = self.pick(scope.vectors)
        count = scope.vectors[name]
        inner.floats.append(x)
        if kind == "values":
            what = self.pick([name, name, f"{name}[::-1]", f"{name}[1:]"])
            return [], f"for {x} in {what}:", count
        if kind == "enumerate":
            i = self.name("i")
            inner.ints[i] = (0, count - 1)
            return [], f"for {i}, {x} in enumerate({name}):", count
        other, y = self.pick(scope.vectors), self.name("e")
        inner.floats.append(y)
        return [], f"for {x}, {y} in zip({name}, {other}):", min(count, scope.vectors[other])

    def while_(self, scope, loop, trips):
        inner = scope.inner()
        if self.chance(1, 3):
            name = self.name("u")
            inner.floats.append(name)
            inner.kept.add(name)
            start, step = self.number(scope), self.number(scope)
            body = self.nested(inner, 3, True, 4 * trips)
            scope.floats.append(name)
            return [
                f"{name} = 0.5 * np.sin({start})",
                f"while {name} < 1.2:",
                f"    {name} += 0.7 + 0.2 * np.sin({step})",
                *body,
            ]
        name, most = self.name("k"), self.pick([2, 3, 4])
        inner.ints[name] = (1, most)
        inner.kept.add(name)
        if self.chance(1, 3):
            first = ["while True:", f"    {name} += 1"]
            first += [f"    if {name} > {most} or {self.condition(scope, 0)}:", "        break"]
        else:
            first = [f"while {name} < {most} and {self.condition(scope, 0)}:", f"    {name} += 1"]
        body = self.nested(inner, 3, True, most * trips)
        scope.ints[name] = (0, most + 1)
        return [f"{name} = 0", *first, *body]

    # functions

    def call(self, scope):
        """A call of the helper."""
        vectors = [name for name, size in scope.vectors.items() if size == self.length]
        rows = [name for name, shape in scope.matrices.items() if shape[1] == self.length]
        vectors += [f"{name}[{self.index(scope, None, scope.matrices[name][0])}]" for name in rows]
        vectors.append(f"np.full({self.length}, 0.4)")
        return f"helper({self.atom(scope)}, {self.pick(vectors)})"

    def helper_call(self, scope):
        call, kind = self.call(scope), self.helper[0]
        free = [name for name in scope.floats if name not in scope.kept]
        if kind == "float" and free and self.chance(2, 3):
            return [f"{self.pick(free)} = {call}"]
        if kind == "pair" and len(free) > 1 and self.chance(2, 3):
            first = self.pick(free)
            second = self.pick(name for name in free if name != first)
            return [f"{first}, {second} = {call}"]
        if kind == "pair":
            name = self.name("t")
            scope.pairs.append(name)
            return [f"{name} = {call}"]
        return [call]

    def function(self, header, scope, most):
        scope.own, self.left = {*scope.floats, *scope.ints}, 2 * most
        lines = self.block(scope, most)
        if self.returns == "pair":
            lines.append(f"return {self.small(scope)}, {self.small(scope)}")
        elif self.returns == "float":
            # most programs show the end of everything, some drop a part
            terms = [name for name in scope.floats if not self.chance(1, 6)]
            sums = [f"np.sum({name})" for name in [*scope.vectors, *scope.matrices]]
            terms += [f"{self.pick(CONSTANTS)} * {s}" for s in sums if not self.chance(1, 6)]
            terms += [f"{name}[0] * {name}[1]" for name in scope.pairs]
            terms += [f"{c} * {self.element(scope)}" for c in ["1.3"] * bool(scope.vectors)]
            lines.append(f"return {' + '.join(terms) or self.number(scope)}")
        return [header, *("    " + line for line in lines or ["pass"])]

    def module(self):
        """Text of a program and the kinds of its arguments."""
        self.length = 2 + self.choose(3)
        lines = HEADER.splitlines()
        if self.chance(1, 3):
            kind = self.returns = self.pick(["float", "float", "pair", "none"])
            scope = Scope(floats=["p"], vectors={"q": self.length})
            decorator = self.pick(["@tg.njit", "@njit"])
            lines += ["", "", decorator, *self.function("def helper(p, q):", scope, 3)]
            self.helper, self.returns = (kind,), "float"
        kinds = {"x": "float"}
        scope = Scope(floats=["x"])
        if self.chance(2, 3):
            kinds["y"] = "float"
            scope.floats.append("y")
        for name in ("a", "b")[: self.pick([1, 2, 1, 0])]:
            kinds[name] = self.pick(["vector", "vector", "strided"])
            scope.vectors[name] = self.length
        if self.chance(1, 3):
            kinds["m"] = self.pick(["matrix", "matrix", "fortran"])
            scope.matrices["m"] = (2, self.length)
        if self.chance(1, 3):
            kinds["n"] = "int"
            scope.ints["n"] = (0, 4)
        lines += ["", "", "@tg.njit"]
        lines += self.function(f"def f({', '.join(kinds)}):", scope, 9)
        real = [k for k, kind in enumerate(kinds.values()) if kind != "int"]
        chosen = [k for k in real if self.chance(1, 2)] if self.chance(1, 3) else real
        return Program(
            "\n".join(lines) + "\n",
            tuple(kinds.values()),
            self.length,
            tuple(chosen or real),
            self.choose(1000),
        )


@dataclasses.dataclass(frozen=True)
class Program:
    """A text with arguments to run it on."""

    source: str
    kinds: tuple
    length: int
    argnums: tuple
    seed: int

    def arguments(self, point):
        """Fresh arguments, one of several points."""
        size = self.length
        make = {
            "float": lambda rng: round(rng.uniform(-1, 1), 3),
            "int": lambda rng: int(rng.integers(0, 5)),
            "vector": lambda rng: rng.uniform(-1, 1, size).round(3),
            "strided": lambda rng: np.repeat(rng.uniform(-1, 1, size).round(3), 2)[::2],
            "matrix": lambda rng: rng.uniform(-1, 1, (2, size)).round(3),
            "fortran": lambda rng: np.asfortranarray(rng.uniform(-1, 1, (2, size)).round(3)),
        }
        return [
            make[kind](np.random.default_rng([self.seed, point, k]))
            for k, kind in enumerate(self.kinds)
        ]

    def tangents(self, point):
        rng = np.random.default_rng([self.seed, point])
        args = self.arguments(point)
        made = {k: rng.uniform(-1, 1, np.shape(args[k])).round(2) for k in self.argnums}
        return {k: t if t.ndim else float(t) for k, t in made.items()}

    def __str__(self):
        args = ", ".join(repr(value) for value in self.arguments(0))
        return f"{self.source}\n# argnums={self.argnums}, kinds={self.kinds}, first point: {args}"


@st.composite
def programs(draw):
    """Random programs."""
    return Author(lambda n: draw(st.integers(0, n - 1))).module()


def main():
    """Make programs and compare them until the time is over; every failure is printed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; then count up")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--second", type=int, default=4, help="of so many, one has second order")
    options = parser.parse_args()
    from test_random_programs import outcome_of  # which imports this file

    # what kills the process leaves the seed behind
    faulthandler.enable()
    counts, end = collections.Counter(), time.monotonic() + options.seconds
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() > end:
            break
        print(f"seed {seed}", end=" ", flush=True)
        program = Author(random.Random(seed).randrange).module()
        outcome, text = outcome_of(program, second=seed % options.second == 0)
        counts[outcome] += 1
        print(outcome, flush=True)
        if text:
            print(f"{text}\n{program}", flush=True)
    print(dict(counts))
    sys.exit(bool({"wrong", "failed", "invalid"} & {*counts}))


if __name__ == "__main__":
    main()
