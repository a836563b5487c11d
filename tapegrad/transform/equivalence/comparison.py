"""Runs of two functions for the same random arguments, and what differs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from tapegrad.transform.equivalence.array_functions import empty
from tapegrad.transform.equivalence.field import RUN, ZERO, Number, UnfollowedError, number
from tapegrad.transform.errors import UnequalExtentsError

MOST_OPERATIONS = 20_000  # of a run; they take some ten milliseconds
_MOST_ALTOGETHER = 200_000
_MOST_RUNS = 6
_MOST_TRIES = 60
MOST_AGAIN = 200  # to find out that a result depends on memory that is not filled
UNFILLED = "results depend on memory that is not filled"
_MOST_EXTENT = 20


class Sizes(NamedTuple):
    """What the arguments of a run are like.

    Attributes
    ----------
    extents, integers
        The extents of all axes of arrays, and the values of integers.
    has_zeros
        Whether half of the numbers are 0.
    """

    extents: tuple[int, ...]
    integers: tuple[int, ...]
    has_zeros: bool = False


EQUAL_SIZES = (3, 3, False), (9, 9, False), (2, 2, True), (9, 2, True), (1, 1, False), (4, 1, False)
"""Extents, integers, and whether there are zeros, of arguments that are tried first."""


class Comparison(NamedTuple):
    """What was found.

    Attributes
    ----------
    runs
        How often the results were equal.
    difference
        What differs, "" for nothing.
    reason
        Why a run was not followed, "" if all were.
    """

    runs: int
    difference: str = ""
    reason: str = ""


def compare(
    module: Mapping[str, Any], pairs: Iterable[tuple[str, str]], kinds: tuple[Any, ...]
) -> Comparison:
    """Run pairs of functions of a module for the same random arguments.

    Parameters
    ----------
    module
        The module (see `tapegrad.transform.equivalence.meanings.defined`).
    pairs
        The names of two functions each.
    kinds
        numba's types of the arguments of all of them.
    """
    extents = extents_in(module)
    try:
        found = [_compared(module, *pair, kinds, Tries(kinds, extents)) for pair in pairs]
    finally:
        RUN.end()
    return next((c for c in found if c.difference), min(found, default=Comparison(0)))


def _compared(
    module: Mapping[str, Any], one: str, other: str, kinds: tuple[Any, ...], tries: Tries
) -> Comparison:
    equal, reason, spent = 0, "", 0
    for seed, sizes in enumerate(tries):
        if equal == _MOST_RUNS or spent > _MOST_ALTOGETHER:
            break
        try:
            first = _outcome(module[one], kinds, sizes, seed)
        except UnfollowedError as error:
            reason = reason or str(error)
            continue
        except Exception as error:  # the arguments do not fit the function
            reason = reason or f"{type(error).__name__}: {error}"
            continue
        finally:
            spent += RUN.spent
            tries.note(sizes, RUN.spent)
        try:
            second = _outcome(module[other], kinds, sizes, seed)
        except UnequalExtentsError:
            continue  # which it says before anything else, so that the other one is called
        except UnfollowedError as error:
            reason = reason or str(error)
            continue
        except Exception as error:
            return Comparison(equal, f"{other} raises {type(error).__name__}: {error}")
        finally:
            spent += RUN.spent
        if not _is_equal(first, second):
            again = (_outcome(module[one], kinds, sizes, seed) for _ in range(MOST_AGAIN))
            if all(_is_equal(first, outcome) for outcome in again):
                return Comparison(equal, f"{other} differs from {one}")
            reason = reason or UNFILLED
            continue
        equal += 1
        tries.fitting.append(sizes)
    return Comparison(equal, reason=reason)


class Tries:
    """What arguments are like that are tried one after the other.

    If arguments do not fit, others are tried that are nearly those with which a function came
    furthest. What fits is tried again, with other numbers.

    Parameters
    ----------
    kinds
        The types of the arguments.
    extents
        Extents that a function may expect.

    Attributes
    ----------
    fitting
        What did fit.
    """

    def __init__(self, kinds: tuple[Any, ...], extents: list[int]) -> None:
        self.axes, self.integers = map(sum, zip((0, 0), *map(_places, kinds), strict=True))
        self.extents = extents
        self.fitting: list[Sizes] = []
        self.best, self.most = self._equal(3, 3), -1

    def _equal(self, extent: int, integer: int, has_zeros: bool = False) -> Sizes:
        return Sizes((extent,) * self.axes, (integer,) * self.integers, has_zeros)

    def note(self, sizes: Sizes, operations: int) -> None:
        """Note how far a function came."""
        if operations >= self.most:
            self.best, self.most = sizes, operations

    def __iter__(self) -> Iterator[Sizes]:
        for given in EQUAL_SIZES:
            yield self._equal(*given)
        if not self.fitting:
            for extent in self.extents:
                yield self._equal(extent, 3)
        draw = random.Random(0)
        for count in range(_MOST_TRIES):
            if self.fitting:
                yield self.fitting[count % len(self.fitting)]._replace(has_zeros=bool(count % 2))
            else:
                yield self._changed(draw)

    def _changed(self, draw: random.Random) -> Sizes:
        """Return what came furthest with one or two other extents or integers."""
        extents, integers = [*self.best.extents], [*self.best.integers]
        for _ in range(draw.randint(1, 2)):
            place = draw.randrange(max(len(extents) + len(integers), 1))
            if place < len(extents):
                extents[place] = draw.choice([1, 2, 3, 4, 5, *self.extents])
            elif integers:
                integers[place - len(extents)] = draw.randrange(5)
        return Sizes(tuple(extents), tuple(integers))


def _places(kind: Any) -> tuple[int, int]:
    """Return how many axes, and how many integers, arguments of a type have."""
    kind = types.unliteral(kind)
    if isinstance(kind, types.Array):
        return kind.ndim, 0
    if isinstance(kind, types.BaseTuple):
        axes, integers = zip((0, 0), *map(_places, kind.types), strict=True)
        return sum(axes), sum(integers)
    return 0, int(isinstance(kind, types.Integer))


def extents_in(module: Mapping[str, Any]) -> list[int]:
    """Return the extents that functions may expect: the constants in them."""
    made = [value for value in module.values() if isinstance(value, FunctionType)]
    numbers = {n for function in made for n in function.__code__.co_consts if type(n) is int}
    return sorted({k for n in numbers for k in (n, n + 1) if 5 < k <= _MOST_EXTENT})


def _outcome(function: Callable[..., Any], kinds: tuple[Any, ...], sizes: Sizes, seed: int) -> Any:
    """Return what a function returns and has written to its arguments."""
    arguments = Arguments(sizes, random.Random(seed))
    RUN.begin(seed, MOST_OPERATIONS)
    given = tuple(map(arguments.of, kinds))
    return function(*given), given


class Arguments:
    """Makes random arguments, one after the other."""

    def __init__(self, sizes: Sizes, draw: random.Random) -> None:
        self.extents, self.integers = iter(sizes.extents), iter(sizes.integers)
        self.indices = range(min(sizes.extents, default=1))
        self.has_zeros = sizes.has_zeros
        self.draw = draw

    def of(self, kind: Any) -> Any:
        """Return an argument of a type."""
        kind = types.unliteral(kind)
        if isinstance(kind, types.Omitted):
            return kind.value
        if isinstance(kind, types.NoneType):
            return None
        if isinstance(kind, types.Integer):
            return next(self.integers)
        if isinstance(kind, types.BaseTuple):
            parts = [*map(self.of, kind.types)]
            return kind.instance_class(*parts) if hasattr(kind, "instance_class") else tuple(parts)
        if not isinstance(kind, types.Array):
            return self.number(kind)
        made = empty(tuple(next(self.extents) for _ in range(kind.ndim)), kind.dtype)
        for place in np.ndindex(made.shape):
            made[place] = self.number(kind.dtype)
        return np.asfortranarray(made) if kind.layout == "F" else made

    def number(self, kind: Any) -> Any:
        """Return a random number of a type; integers may be indices."""
        if isinstance(kind, (types.Float, types.Complex)):
            real, imag = self.draw.getrandbits(60), self.draw.getrandbits(60)
            if self.has_zeros and self.draw.random() < 0.5:
                return ZERO
            return Number(real, imag if isinstance(kind, types.Complex) else 0)
        if isinstance(kind, types.Boolean):
            return self.draw.random() < 0.5
        if isinstance(kind, types.Integer):
            return self.draw.choice(self.indices)
        raise UnfollowedError(f"an argument of type {kind}")


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        is_like = isinstance(other, tuple) and len(one) == len(other)
        return is_like and all(map(_is_equal, one, other))
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.shape == other.shape
            and all(map(_is_equal, one.ravel().tolist(), other.ravel().tolist()))
        )
    if one is None or isinstance(one, str):
        return bool(one == other)
    return other is not None and bool(number(one) == number(other))
