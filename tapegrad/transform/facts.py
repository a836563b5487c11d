"""Facts about NumPy's functions, and about methods of arrays, as numba compiles them.

Which memory the result of a call is in, what its extents follow from, and what a call writes. There
is one row for a function, and every row is tested against numba. What a function computes, and its
derivative, is not said here: ops and rules say that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class Elements(enum.Enum):
    """Where the elements of the result of a function or method are."""

    OWN = enum.auto()
    """In new memory."""
    EACH = enum.auto()
    """In new memory, if an argument is an array; the result is a number otherwise."""
    SHOWN = enum.auto()
    """In the memory of the first argument, for some layouts of it at least."""
    NUMBER = enum.auto()
    """Nowhere: it is a number, or several numbers, unless there is an axis."""


class Shape(enum.Enum):
    """What the shape of a new array follows from."""

    GIVEN = enum.auto()
    """It is the first argument."""
    LIKE = enum.auto()
    """It is that of the first argument."""
    OTHER = enum.auto()


class Fact(NamedTuple):
    """A row.

    Attributes
    ----------
    elements
        Where the elements of the result are.
    shape
        What its shape follows from, if they are new.
    reads
        Whether elements of arguments are read, not only their shapes.
    out
        The position of the argument that gets the result, if there is one.
    """

    elements: Elements
    shape: Shape = Shape.OTHER
    reads: bool = True
    out: int | None = None


def _rows(names: str, fact: Fact) -> Iterable[tuple[str, Fact]]:
    return ((name, fact) for name in names.split())


_OWN, _EACH, _SHOWN, _NUMBER = Elements
_GIVEN, _LIKE, _ = Shape

FUNCTIONS: dict[str, Fact] = dict(
    [
        *_rows("empty ones zeros", Fact(_OWN, _GIVEN, reads=False)),
        *_rows("full", Fact(_OWN, _GIVEN)),
        *_rows("empty_like ones_like zeros_like", Fact(_OWN, _LIKE, reads=False)),
        *_rows("copy full_like", Fact(_OWN, _LIKE)),
        *_rows("arange argsort array concat concatenate eye linspace nonzero where", Fact(_OWN)),
        *_rows("isneginf isposinf", Fact(_EACH, out=1)),
        *_rows("around round", Fact(_EACH, out=2)),
        *_rows("clip", Fact(_EACH, out=3)),
        *_rows("outer", Fact(_OWN, out=2)),
        *_rows("array_split broadcast_arrays dsplit hsplit split vsplit", Fact(_SHOWN)),
        *_rows("asarray asarray_chkfinite ascontiguousarray asfortranarray", Fact(_SHOWN)),
        *_rows("atleast_1d atleast_2d atleast_3d broadcast_to expand_dims", Fact(_SHOWN)),
        *_rows("flip fliplr flipud moveaxis ravel real reshape rot90", Fact(_SHOWN)),
        *_rows("imag", Fact(_SHOWN)),  # of complex numbers
        *_rows("nan_to_num", Fact(_SHOWN)),  # with copy=False; see `shows`
        *_rows("permute_dims swapaxes transpose", Fact(_SHOWN)),
        *_rows("all amax amin any argmax argmin count_nonzero max mean", Fact(_NUMBER)),
        *_rows("median min prod ptp std sum var vdot", Fact(_NUMBER)),
        *_rows("nanargmax nanargmin nanmax nanmean nanmin nansum", Fact(_NUMBER)),
        *_rows("det norm", Fact(_NUMBER)),
        *_rows("dot", Fact(_NUMBER, out=2)),  # of vectors
        *_rows("shape size", Fact(_NUMBER, reads=False)),
    ]
)
"""By the name of the function, without that of its module."""

METHODS: dict[str, Fact] = dict(
    [
        *_rows("copy", Fact(_OWN, _LIKE)),
        *_rows("argsort astype clip conj conjugate cumprod cumsum", Fact(_OWN)),
        *_rows("flatten nonzero repeat", Fact(_OWN)),
        *_rows("ravel reshape transpose view", Fact(_SHOWN)),
        *_rows("all any argmax argmin item max mean min prod std sum var", Fact(_NUMBER)),
        *_rows("dot", Fact(_NUMBER)),  # of vectors
    ]
)

SHAPE_ATTRIBUTES = frozenset(["dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"])
"""Attributes of an array that none of its elements are needed for."""


def functions(*elements: Elements, shapes: Iterable[Shape] = Shape) -> frozenset[str]:
    """Return the names of the functions whose results are in some memory and of some shapes."""
    rows = FUNCTIONS.items()
    return frozenset(
        name for name, fact in rows if fact.elements in elements and fact.shape in shapes
    )


MADE = functions(Elements.OWN, shapes=(Shape.GIVEN, Shape.LIKE))
"""Functions that make an array of a shape that is given, or that another array has."""
OF_SHAPES = frozenset(name for name, fact in FUNCTIONS.items() if not fact.reads)
"""Functions that read no elements."""
UNFILLED = frozenset(f"np.{name}" for name in MADE & OF_SHAPES)
"""Functions, as they are called, that make arrays of zeros, of ones, or that are not filled."""
VIEWS = functions(Elements.SHOWN)
"""Functions that may return their first argument, or a view of it."""
NEW_METHODS = frozenset(
    name for name, fact in METHODS.items() if fact.elements is not Elements.SHOWN
)
"""Methods of arrays whose results are new arrays, or numbers."""


def output(function: str) -> int | None:
    """Return the position of the argument that a function writes its result to, if it is given."""
    fact = FUNCTIONS.get(function)
    return None if fact is None else fact.out


def changes(function: str, arguments: int, names: Iterable[str | None]) -> bool:
    """Whether a function changes the first of so many arguments, beside others with names."""
    if function == "nan_to_num":  # copies unless it is told otherwise
        return arguments > 1 or "copy" in names
    return function == "fill_diagonal"


def shows(function: str, arguments: int) -> bool:
    """Whether a call of a function, with so many arguments, may return a view of the first."""
    if function == "nan_to_num":  # copies unless it is told otherwise
        return arguments > 1
    return function in VIEWS
