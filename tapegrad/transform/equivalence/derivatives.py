"""Whether a derivative is that of the function, as the function is written.

The function is run, by Python, from the source that its author wrote, with numbers that have
slopes: so its derivative in a random direction is known without rounding, and without anything that
generates or verifies code. What the generated code returns for the same arguments has to be this
derivative, or its product with random cotangents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.equivalence.comparison import (
    MOST_AGAIN,
    MOST_OPERATIONS,
    UNFILLED,
    Arguments,
    Comparison,
    Sizes,
    Tries,
    extents_in,
)
from tapegrad.transform.equivalence.field import RUN, Number, UnfollowedError, number
from tapegrad.transform.equivalence.meanings import of_user
from tapegrad.transform.equivalence.slopes import slope
from tapegrad.transform.protocols import Claim
from tapegrad.transform.verifier.linear import PRIME

_MOST_ALTOGETHER = 60_000  # operations
_MOST_RUNS = 3
_MOST_TRIES = 40


def check(
    module: Mapping[str, Any], entry: str, claim: Claim, kinds: tuple[Any, ...]
) -> Comparison:
    """Compare what a derivative returns with the derivative of its function.

    Parameters
    ----------
    module
        The module of the derivative (see `tapegrad.transform.equivalence.meanings.defined`).
    entry
        The name of the derivative.
    claim
        What it returns.
    kinds
        numba's types of its arguments.
    """
    if any(map(_is_complex, kinds)):
        return Comparison(0, reason="complex numbers")
    equal, reason, spent = 0, "", 0
    tries = Tries(kinds, extents_in(module))
    function = of_user(claim.function.py_func)
    for seed, sizes in zip(range(_MOST_TRIES), tries, strict=False):
        if equal == _MOST_RUNS or spent > _MOST_ALTOGETHER:
            break
        if sizes.has_zeros:  # where functions have kinks
            continue
        try:
            run = _Run(claim, function, kinds, sizes, seed)
            value, change = run.function()
            spent += run.spent
            found = module[entry](*run.given())
            spent += RUN.spent
            own, left, right = run.sides(found, change)
            difference = ""
            if claim.has_value and own != value:
                difference = f"the value of {entry} is not that of the function"
            elif left != right:
                difference = f"{entry} is not the derivative of the function"
            if difference and any(run.function() != (value, change) for _ in range(MOST_AGAIN)):
                raise UnfollowedError(UNFILLED)
        except UnfollowedError as error:
            reason = reason or str(error)
        except Exception as error:  # the arguments do not fit the function
            reason = reason or f"{type(error).__name__}: {error}"
        else:
            if difference:
                return Comparison(equal, difference)
            equal += 1
            tries.fitting.append(sizes)
        finally:
            tries.note(sizes, RUN.spent)
            RUN.end()
    return Comparison(equal, reason=reason)


class _Run:
    """The function and its derivative for the same random arguments.

    Attributes
    ----------
    spent
        The number of operations that the function took.
    """

    def __init__(
        self,
        claim: Claim,
        function: Callable[..., Any],
        kinds: tuple[Any, ...],
        sizes: Sizes,
        seed: int,
    ) -> None:
        self.claim, self.kinds, self.sizes, self.seed = claim, kinds, sizes, seed
        self.call = function
        self.spent = 0

    def given(self, slopes: Any = None) -> list[Any]:
        """Return the arguments of the derivative, for a new run."""
        RUN.begin(self.seed, MOST_OPERATIONS, slopes, is_exact=True)
        arguments = Arguments(self.sizes, random.Random(self.seed))
        return [*map(arguments.of, self.kinds)]

    def function(self) -> tuple[list[int], list[int]]:
        """Return the results of the function, and their derivatives in a direction."""
        count = len(self.kinds) - self.claim.added
        found = []
        for step in (0, 1):
            given = self.given(slope)
            for number_, direction in zip(self.claim.numbers, self.directions(given), strict=True):
                given[number_] = _moved(given[number_], iter(direction), step)
            found.append(_leaves(self.call(*given[:count])))
            self.spent += RUN.spent
        start, end = found
        pairs = [*zip(start, end, strict=True)]
        if any((one - other) % PRIME for one, other in pairs):
            raise UnfollowedError(UNFILLED)
        changes = [(other - one) // PRIME % PRIME for one, other in pairs]
        return [one % PRIME for one in start], changes

    def directions(self, given: list[Any]) -> list[list[int]]:
        """Return a tangent for each argument that the function is differentiated by."""
        own = [_leaves(given[number_]) for number_ in self.claim.numbers]
        if not self.claim.is_reverse:
            dots = given[len(given) - self.claim.added :]
            found = [_residues(dot) for dot in dots]
            if [*map(len, found)] != [*map(len, own)]:
                raise UnfollowedError("tangents that are unlike their arguments")
            return found
        draw = random.Random(self.seed)
        return [[draw.getrandbits(60) for _ in leaves] for leaves in own]

    def sides(self, found: Any, change: list[int]) -> tuple[list[int], Any, Any]:
        """Return the value that a derivative returned, and the two sides of what is to be equal."""
        claim = self.claim
        value, rest = found if claim.has_value else (None, found)
        if not claim.is_reverse:
            tangents = _residues(rest)
            if len(tangents) != len(change):
                raise UnfollowedError("tangents that are unlike the result")
            return _residues(value), tangents, change
        given = self.given()
        seeds = [1]
        if claim.added:
            seeds = _leaves(tuple(given[len(given) - claim.added :]))
        directions = self.directions(given)
        cotangents = _leaves(rest)
        if len(seeds) != len(change) or len(cotangents) != sum(map(len, directions)):
            raise UnfollowedError("cotangents that are unlike their values")
        parts = [part for direction in directions for part in direction]
        left = sum(map(int.__mul__, seeds, change)) % PRIME
        right = sum(map(int.__mul__, cotangents, parts)) % PRIME
        return _residues(value), left, right


def _is_complex(kind: Any) -> bool:
    if isinstance(kind, types.BaseTuple):
        return any(map(_is_complex, kind.types))
    return isinstance(getattr(kind, "dtype", kind), types.Complex)


def _moved(value: Any, direction: Any, step: int) -> Any:
    """Return an argument that is moved by a small step in a direction."""
    if isinstance(value, Number):
        return Number((value.value + PRIME * step * next(direction)) % RUN.modulus)
    if isinstance(value, np.ndarray) and value.dtype == object:
        made = value.copy(order="K")  # writes to copies and to views go elsewhere
        for place in np.ndindex(value.shape):
            made[place] = _moved(value[place], direction, step)
        return made
    if isinstance(value, tuple):
        parts = [_moved(part, direction, step) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _residues(value: Any) -> list[int]:
    """Return the floats in arguments and results without their slopes."""
    return [leaf % PRIME for leaf in _leaves(value)]


def _leaves(value: Any) -> list[int]:
    """Return the floats in arguments and results, in order."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    if isinstance(value, np.ndarray):
        floats = value.ravel().tolist() if value.dtype == object else []
        return [number(element).value for element in floats]
    return [number(value).value] if isinstance(value, (Number, float)) else []
