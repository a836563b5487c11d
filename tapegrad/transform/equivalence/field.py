"""Numbers of a prime field, which stand for floats where only equality matters.

Sums, products and quotients are exact, whatever their order, so that terms may be added in any
order, and powers computed in any way. A function that is not rational, such as the sine, is a
random one: equal arguments give equal results, and others give results that have nothing to do
with each other. Programs with equal results compute the same formulas, except with a probability
of about 2**-60 (the Schwartz-Zippel lemma).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from tapegrad.transform.verifier.linear import PRIME

_HALF = PRIME // 2
_WHOLE = 1 << 31  # numbers of a smaller size are whole ones
_FACTOR = 0x9E3779B97F4A7C15  # spreads hashes; 2**64 divided by the golden ratio


class UnfollowedError(BaseException):
    """A run meets what has no meaning here; generated code does not catch it."""


class Run:
    """What the numbers of a run have in common.

    Attributes
    ----------
    seed
        Chooses the random functions.
    spent
        The number of operations that it has taken.
    """

    def __init__(self) -> None:
        self.seed = 0
        self.spent = self._most = 0
        self._made = itertools.count(1)

    def begin(self, seed: int, most: int) -> None:
        """Begin a run, with the most operations that it may take."""
        self.seed, self.spent, self._most = seed, 0, most

    def tick(self, count: int = 1) -> None:
        """Count operations."""
        self.spent += count
        if self.spent > self._most:
            raise UnfollowedError("it takes too many operations")

    def undefined(self) -> Number:
        """Return a number unlike all others, also in other runs: memory that is not filled."""
        return Number(next(self._made) * _FACTOR % PRIME)


RUN = Run()


class Number:
    """An element of the field, or of its extension by a root of -1.

    Parameters
    ----------
    value, rest
        The real and the imaginary part, from 0 to the prime.
    """

    __slots__ = ("rest", "value")

    def __init__(self, value: int, rest: int = 0) -> None:
        self.value = value
        self.rest = rest

    def __repr__(self) -> str:
        return f"Number({_signed(self.value)}, {_signed(self.rest)})"

    def __hash__(self) -> int:
        return hash((self.value, self.rest))

    def __bool__(self) -> bool:
        return self.value != 0 or self.rest != 0

    @property
    def real(self) -> Number:
        return Number(self.value)

    @property
    def imag(self) -> Number:
        return Number(self.rest)

    def conjugate(self) -> Number:
        return Number(self.value, -self.rest % PRIME)

    conj = conjugate

    def item(self) -> Number:
        return self

    def __add__(self, other: Any) -> Number:
        RUN.tick()
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = number(other)
        return Number((self.value + other.value) % PRIME, (self.rest + other.rest) % PRIME)

    def __sub__(self, other: Any) -> Number:
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = number(other)
        return Number((self.value - other.value) % PRIME, (self.rest - other.rest) % PRIME)

    def __mul__(self, other: Any) -> Number:
        RUN.tick()
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = number(other)
        if not self.rest and not other.rest:
            return Number(self.value * other.value % PRIME)
        return Number(
            (self.value * other.value - self.rest * other.rest) % PRIME,
            (self.value * other.rest + self.rest * other.value) % PRIME,
        )

    def __truediv__(self, other: Any) -> Number:
        if isinstance(other, np.ndarray):
            return NotImplemented
        return self * inverse(number(other))

    def __pow__(self, other: Any) -> Number:
        return NotImplemented if isinstance(other, np.ndarray) else power(self, other)

    def __mod__(self, other: Any) -> Number:
        return NotImplemented if isinstance(other, np.ndarray) else _divided("%", self, other)

    def __floordiv__(self, other: Any) -> Number:
        return NotImplemented if isinstance(other, np.ndarray) else _divided("//", self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Number:
        return number(other) - self

    def __rtruediv__(self, other: Any) -> Number:
        return number(other) / self

    def __rpow__(self, other: Any) -> Number:
        return power(number(other), self)

    def __rmod__(self, other: Any) -> Number:
        return _divided("%", number(other), self)

    def __rfloordiv__(self, other: Any) -> Number:
        return _divided("//", number(other), self)

    def __neg__(self) -> Number:
        return Number(-self.value % PRIME, -self.rest % PRIME)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        if self.rest:
            return root(Number((self.value**2 + self.rest**2) % PRIME))
        return self if self.value <= _HALF else -self

    def __eq__(self, other: Any) -> Any:
        if other is None or isinstance(other, np.ndarray):
            return NotImplemented
        other = number(other)
        return self.value == other.value and self.rest == other.rest

    def __ne__(self, other: Any) -> Any:
        if other is None or isinstance(other, np.ndarray):
            return NotImplemented
        return not self == other

    def __int__(self) -> int:
        found = whole(self)
        return _drawn("int", self) if found is None else found

    def __trunc__(self) -> int:
        return int(self)

    def __round__(self, digits: int | None = None) -> Any:
        found = whole(self)
        if digits is None:
            return _drawn("round", self) if found is None else found
        return unknown("round", self, digits) if found is None else self


def _ordered(compare: Callable[[int, int], bool]) -> Callable[[Number, Any], Any]:
    """Return a method that compares; the order is that of signed numbers, so random."""

    def compared(self: Number, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        return compare(_signed(self.value), _signed(number(other).value))

    return compared


for _name in ("lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _ordered(getattr(operator, _name)))

ZERO, ONE = Number(0), Number(1)


def number(given: Any) -> Number:
    """Return a number that is given as one of Python or NumPy."""
    kind = type(given)
    if kind is Number:
        return given
    if kind is int or kind is bool:
        return Number(given % PRIME)
    if isinstance(given, (np.integer, np.bool_)):
        return Number(int(given) % PRIME)
    if isinstance(given, (float, np.floating)):
        return Number(_of_float(float(given)))
    if isinstance(given, (complex, np.complexfloating)):
        return Number(_of_float(given.real), _of_float(given.imag))
    raise UnfollowedError(f"{kind.__name__} is no number")


@functools.lru_cache(1 << 12)
def _of_float(given: float) -> int:
    """Return what a float stands for: floats are fractions."""
    try:
        numerator, denominator = given.as_integer_ratio()
    except (OverflowError, ValueError):
        return _hashed("float", repr(given))
    return numerator * pow(denominator, -1, PRIME) % PRIME


def _signed(value: int) -> int:
    return value if value <= _HALF else value - PRIME


def whole(given: Any) -> int | None:
    """Return a whole number, None for what is not one."""
    if isinstance(given, (int, np.integer)):
        return int(given)
    made = number(given)
    found = _signed(made.value)
    return found if not made.rest and -_WHOLE < found < _WHOLE else None


def _hashed(*key: Hashable) -> int:
    return hash(key) * _FACTOR % PRIME


def hashed(*key: Hashable) -> int:
    """Return the random value that a key has in this run."""
    return _hashed(RUN.seed, *key)


def unknown(name: str, *args: Any) -> Number:
    """Return the value of the random function that stands for one with a name."""
    RUN.tick()
    given = [number(arg) for arg in args]
    parts = [(arg.value, arg.rest) for arg in given]
    rest = hashed(name, "rest", *parts) if any(arg.rest for arg in given) else 0
    return Number(hashed(name, *parts), rest)


def _drawn(name: str, *args: Any) -> int:
    """Return a small whole number that follows from others."""
    return unknown(name, *args).value % 4


def inverse(given: Number) -> Number:
    """Return 1 divided by a number; 0 for 0, so that it is the inverse of products as well."""
    if given.rest:
        size = pow(given.value**2 + given.rest**2, -1, PRIME)
        return Number(given.value * size % PRIME, -given.rest * size % PRIME)
    return Number(pow(given.value, -1, PRIME)) if given.value else ZERO


def root(given: Any) -> Number:
    """Return the square root of a number."""
    return unknown("sqrt", given) if given else ZERO


def power(base: Any, exponent: Any) -> Number:
    """Return a power: a product if the exponent is a whole number, times a root for a half."""
    base, count = number(base), whole(exponent)
    if count is None:
        twice = whole(2 * number(exponent))
        if twice is None:
            return unknown("power", base, exponent)
        return power(base, twice // 2) * root(base)
    if count < 0:
        return power(inverse(base), -count)
    if not base.rest:
        return Number(pow(base.value, count, PRIME))
    found = ONE
    for bit in f"{count:b}":
        found = found * found * (base if bit == "1" else ONE)
    return found


def _divided(sign: str, one: Any, two: Any) -> Number:
    """Return a floored quotient or its remainder."""
    dividend, divisor = whole(one), whole(two)
    if dividend is None or not divisor:
        return unknown(sign, one, two)
    return Number((dividend % divisor if sign == "%" else dividend // divisor) % PRIME)


def rounded(name: str, given: Any) -> Number:
    """Return a number rounded by the function with a name."""
    return unknown(name, given) if whole(given) is None else number(given)


def sign(given: Any) -> Number:
    """Return the sign of a number."""
    return number((given > 0) - (given < 0))
