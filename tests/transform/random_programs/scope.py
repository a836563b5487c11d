"""What a writer of programs knows at a place of one, and how it chooses."""

import ast
import contextlib
import copy
import dataclasses
import itertools

HEADER = """\
import collections
import math

import numpy as np
from numba import njit

import tapegrad as tg

RATE = 0.7
TABLE = np.array([0.4, -0.3, 0.8, 0.6, -0.7])
CUBE = np.sin(np.arange(48)).reshape((2, 3, 8))
GRID = np.cos(np.arange(24)).reshape((3, 8))
COUNTS = (np.arange(24) * 7 % 5 - 1).reshape((3, 8))
State = collections.namedtuple("State", "level grid")
"""


@dataclasses.dataclass
class Scope:
    """What is defined at a place of the program."""

    floats: list = dataclasses.field(default_factory=list)
    ints: dict = dataclasses.field(default_factory=dict)  # name: least and greatest value
    vectors: dict = dataclasses.field(default_factory=dict)  # name: length
    matrices: dict = dataclasses.field(default_factory=dict)  # name: shape
    tables: dict = dataclasses.field(default_factory=dict)  # without derivatives: shape
    tuples: dict = dataclasses.field(default_factory=dict)  # name: kinds of the items
    records: dict = dataclasses.field(default_factory=dict)  # named tuples: length of the grid
    positions: dict = dataclasses.field(default_factory=dict)  # index arrays: length, bound
    singles: dict = dataclasses.field(default_factory=dict)  # float32 arrays: length
    lists: list = dataclasses.field(default_factory=list)  # of floats, never empty
    complexes: list = dataclasses.field(default_factory=list)
    complex_vectors: dict = dataclasses.field(default_factory=dict)  # name: length
    kept: set = dataclasses.field(default_factory=set)  # names that are only read
    own: set = dataclasses.field(default_factory=set)  # names defined in this block

    def inner(self):
        """A copy for a block in it."""
        scope = copy.deepcopy(self)
        scope.own = set()
        return scope

    def free(self):
        """Names of numbers that may get another value."""
        return [name for name in self.floats if name not in self.kept]

    def movable(self):
        """Names of vectors that may become other arrays."""
        return [name for name in self.vectors if name not in self.kept]

    def of_length(self, length):
        return [name for name, size in self.vectors.items() if size == length]

    def add(self, name, kind):
        """Define a name of some kind: "float", "complex", ("vector", n), ("matrix", n, m), ..."""
        if kind == "float":
            if name not in self.floats:
                self.floats.append(name)
        elif kind == "complex":
            self.complexes.append(name)
        elif kind[0] == "complex vector":
            self.complex_vectors[name] = kind[1]
        elif kind[0] == "vector":
            self.vectors[name] = kind[1]
        elif kind[0] == "matrix":
            self.matrices[name] = kind[1:]
        elif kind[0] == "int":
            self.ints[name] = kind[1:]
        elif kind[0] == "tuple":
            self.tuples[name] = kind[1]
        elif kind[0] == "record":
            self.records[name] = kind[1]
        else:
            raise ValueError(kind)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An argument of a helper; one with a default is an option."""

    name: str
    kind: object
    default: str | None = None
    values: tuple = ()  # texts that may be given for an option


@dataclasses.dataclass(frozen=True)
class Helper:
    """A function that later functions of the program may call."""

    name: str
    parameters: tuple
    result: object  # kind, or None
    steps: int = 1  # about how many operations a call is


def group(text):
    """Text that can stand anywhere in an expression."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Subscript | ast.Attribute):
        return text
    with contextlib.suppress(SyntaxError):
        if text[0] == "(":
            ast.parse(text[1:-1], mode="eval")
            return text
    return f"({text})"


def indented(lines):
    """The lines of a block."""
    return ["    " + line for line in lines or ["pass"]]


class Chooser:
    """Chooses; `choose(n)` gives a number below n, and 0 is the simplest."""

    def __init__(self, choose):
        self.choose = choose
        self.numbers = itertools.count(1)
        self.shapes = set()  # what the program has, by name
        self.helpers = []
        self.derived = {}  # lines that make derivatives of helpers, by the names they define
        self.length = 3
        self.left = 0  # statements that may still be written
        self.trips = 1  # how often the place is run
        self.returns = "float"

    def pick(self, options):
        options = list(options)
        return options[self.choose(len(options))]

    def weighted(self, **weights):
        """A word, as often as its weight says; those of weight zero never."""
        return self.pick([word for word, weight in weights.items() for _ in range(int(weight))])

    def chance(self, part, of):
        """True in some cases of so many; False is simpler."""
        return self.choose(of) >= of - part

    def name(self, letter):
        return f"{letter}{next(self.numbers)}"

    def note(self, shape):
        """Write down that the program has something."""
        self.shapes.add(shape)
