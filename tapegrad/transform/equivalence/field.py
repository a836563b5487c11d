"""Numbers of a prime field, which stand for floats where only equality matters.

Sums, products and quotients are exact, whatever their order, so that terms may be added in any
order, and powers computed in any way. A function that is not rational, such as the sine, is a
random one: equal arguments give equal results, and others give results that have nothing to do
with each other. Programs with equal results compute the same formulas, except with a probability
of about 2**-60 (the Schwartz-Zippel lemma).

With *slopes*, numbers are computed modulo the square of the prime p. Then ``f(x + p * v)`` is
``f(x) + p * f'(x) * v``, without rounding: p takes the place of a small step, and its square is 0.
What numbers are equal to, and how they compare, is decided by what they are modulo p.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from tapegrad.transform.verifier.linear import PRIME

_UNLIMITED = 1 << 62
_WHOLE = 1 << 31  # numbers of a smaller size are whole ones
_FACTOR = 0x9E3779B97F4A7C15  # spreads hashes; 2**64 divided by the golden ratio
_SMALLEST = 1e-30  # smaller constants are limits for what counts as 0


Slopes = Callable[[str, "list[Number]", "Number"], "Number"]


class UnfollowedError(BaseException):
    """A run meets what has no meaning here; generated code does not catch it."""


class Run(threading.local):
    """What the numbers of a run have in common; every thread has its own.

    Attributes
    ----------
    seed
        Chooses the random functions.
    spent
        The number of operations that it has taken.
    slopes
        If numbers have slopes, what returns the slope of a random function, for its name, its
        arguments and its value. Otherwise None.
    modulus
        Numbers are from 0 to it.
    is_exact
        Whether square roots are those of the field, and no random function; half of the numbers
        have none. Nor is anything else followed that has other properties here than for floats:
        sums and products of infinite numbers, and functions of whole arrays that are random.
    """

    def __init__(self) -> None:
        self._made = itertools.count(1)
        self.end()

    def begin(
        self, seed: int, most: int, slopes: Slopes | None = None, is_exact: bool = False
    ) -> None:
        """Begin a run, with the most operations that it may take."""
        self.seed, self.spent, self._most, self.is_exact = seed, 0, most, is_exact
        self._use(slopes)

    def end(self) -> None:
        """Begin what has no limits: what comes before a run."""
        self.begin(0, _UNLIMITED)

    def _use(self, slopes: Slopes | None) -> None:
        self.slopes: Slopes | None = slopes
        self.modulus = PRIME if slopes is None else PRIME * PRIME

    @contextlib.contextmanager
    def without_slopes(self) -> Iterator[None]:
        """Let numbers have no slopes meanwhile."""
        slopes = self.slopes
        self._use(None)
        try:
            yield
        finally:
            self._use(slopes)

    def tick(self, count: int = 1) -> None:
        """Count operations."""
        self.spent += count
        if self.spent > self._most:
            raise UnfollowedError("it takes too many operations")

    def undefined(self) -> Number:
        """Return a number unlike all others, also in other runs: memory that is not filled."""
        return Number(_hashed(next(self._made), _FACTOR))


RUN = Run()


class Number:
    """An element of the field, or of its extension by a root of -1.

    Parameters
    ----------
    value, rest
        The real and the imaginary part, from 0 to the modulus.
    known
        What it is for floats, if it follows from constants alone. So these are compared as they
        are, and exponents are those that a compiler has computed.
    """

    __slots__ = ("known", "rest", "value")

    def __init__(self, value: int, rest: int = 0, known: float | None = None) -> None:
        self.value = value
        self.rest = rest
        self.known = known

    def __repr__(self) -> str:
        return f"Number({_signed(self.value)}, {_signed(self.rest)})"

    def __hash__(self) -> int:
        return hash(self.residues)

    def __bool__(self) -> bool:
        return self.value % PRIME != 0 or self.rest % PRIME != 0

    @property
    def residues(self) -> tuple[int, int]:
        """Both parts without slopes."""
        return self.value % PRIME, self.rest % PRIME

    @property
    def real(self) -> Number:
        return Number(self.value)

    @property
    def imag(self) -> Number:
        return Number(self.rest)

    def _known(self, operation: Callable[..., float], other: Number) -> float | None:
        if self.known is None or other.known is None:
            _refuse_infinite(self, other)
            return None
        try:
            return operation(self.known, other.known)
        except OverflowError:  # an integer is too large for a float
            return None

    def conjugate(self) -> Number:
        return Number(self.value, -self.rest % RUN.modulus)

    conj = conjugate

    def item(self) -> Number:
        return self

    def __add__(self, other: Any) -> Number:
        RUN.tick()
        if isinstance(other, np.ndarray):
            return NotImplemented
        other, modulus = number(other), RUN.modulus
        known = self._known(operator.add, other)
        value, rest = self.value + other.value, self.rest + other.rest
        return Number(value % modulus, rest % modulus, known)

    def __sub__(self, other: Any) -> Number:
        if isinstance(other, np.ndarray):
            return NotImplemented
        other, modulus = number(other), RUN.modulus
        known = self._known(operator.sub, other)
        value, rest = self.value - other.value, self.rest - other.rest
        return Number(value % modulus, rest % modulus, known)

    def __mul__(self, other: Any) -> Number:
        RUN.tick()
        if isinstance(other, np.ndarray):
            return NotImplemented
        other, modulus = number(other), RUN.modulus
        if not self.rest and not other.rest:
            known = self._known(operator.mul, other)
            return Number(self.value * other.value % modulus, 0, known)
        return Number(
            (self.value * other.value - self.rest * other.rest) % modulus,
            (self.value * other.rest + self.rest * other.value) % modulus,
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
        known = None if self.known is None else -self.known
        return Number(-self.value % RUN.modulus, -self.rest % RUN.modulus, known)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        if self.rest:
            return root(Number((self.value**2 + self.rest**2) % RUN.modulus))
        return self if _signed(self.value) >= 0 else -self

    def __eq__(self, other: Any) -> Any:
        if other is None or isinstance(other, np.ndarray):
            return NotImplemented
        other = number(other)
        return self.residues == other.residues

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


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Number, Any], Any]:
    """Return a method that compares; the order is that of signed numbers, so random.

    Limits for what counts as 0 are compared as 0, so that other numbers are beyond them.
    """

    def compared(self: Number, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        other = number(other)
        if self.known is not None and other.known is not None:
            return compare(self.known, other.known)
        return compare(_place(self), _place(other))

    return compared


def _place(given: Number) -> int:
    """Return the place of a number in the order."""
    if given.known is not None and abs(given.known) < _SMALLEST:
        return 0
    return _signed(given.value)


for _name in ("lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _ordered(getattr(operator, _name)))

ZERO, ONE = Number(0), Number(1)


def number(given: Any) -> Number:
    """Return a number that is given as one of Python or NumPy."""
    kind = type(given)
    if kind is Number:
        return given
    if kind is int or kind is bool:
        return Number(given % RUN.modulus, 0, given)
    if isinstance(given, (np.integer, np.bool_)):
        return Number(int(given) % RUN.modulus, 0, int(given))
    if isinstance(given, (float, np.floating)):
        return Number(_of_float(float(given), RUN.modulus), 0, float(given))
    if isinstance(given, (complex, np.complexfloating)):
        return Number(_of_float(given.real, RUN.modulus), _of_float(given.imag, RUN.modulus))
    raise UnfollowedError(f"{kind.__name__} is no number")


@functools.lru_cache(1 << 12)
def _of_float(given: float, modulus: int) -> int:
    """Return what a float stands for: floats are fractions."""
    try:
        numerator, denominator = given.as_integer_ratio()
    except (OverflowError, ValueError):
        return _hashed("float", repr(given))
    return numerator * pow(denominator, -1, modulus) % modulus


def _signed(value: int) -> int:
    """Return a part of a number without its slope, with a sign."""
    value %= PRIME
    return value if value <= PRIME // 2 else value - PRIME


def whole(given: Any) -> int | None:
    """Return a whole number, None for what is not one, or has a slope."""
    if isinstance(given, (int, np.integer)):
        return int(given)
    made = number(given)
    found = made.value if made.value < _WHOLE else made.value - RUN.modulus
    return found if not made.rest and found > -_WHOLE else None


def _hashed(*key: Hashable) -> int:
    return hash(key) * _FACTOR % PRIME


def hashed(*key: Hashable) -> int:
    """Return the random value that a key has in this run."""
    return _hashed(RUN.seed, *key)


def unknown(name: str, *args: Any) -> Number:
    """Return the value of the random function that stands for one with a name."""
    RUN.tick()
    given = [number(arg) for arg in args]
    parts = [arg.residues for arg in given]
    rest = hashed(name, "rest", *parts) if any(arg.rest for arg in given) else 0
    found = Number(hashed(name, *parts), rest)
    if RUN.slopes is not None:
        steps = RUN.slopes(name, given, found)
        found.value += PRIME * steps.value
        found.rest += PRIME * steps.rest
    return found


def _refuse_infinite(*given: Number) -> None:
    """Refuse to compute with an infinite constant, which no number of the field stands for."""
    for one in given if RUN.is_exact else ():
        if one.known is not None and not math.isfinite(one.known):
            raise UnfollowedError("a number that is infinite, or none")


def _drawn(name: str, *args: Any) -> int:
    """Return a small whole number that follows from others."""
    return unknown(name, *args).value % PRIME % 4


def inverse(given: Number) -> Number:
    """Return 1 divided by a number; 0 for 0, so that it is the inverse of products as well."""
    modulus = RUN.modulus
    _refuse_infinite(given)
    if given.rest:
        size = pow(given.value**2 + given.rest**2, -1, modulus)
        return Number(given.value * size % modulus, -given.rest * size % modulus)
    return Number(pow(given.value, -1, modulus)) if given else ZERO


def root(given: Any) -> Number:
    """Return the square root of a number: the positive one, if it is not complex."""
    if not given:
        return ZERO
    if number(given).rest:
        return unknown("sqrt", given)
    if not RUN.is_exact:
        return abs(unknown("sqrt", given))
    value = number(given).value
    found = pow(value, (PRIME + 1) // 4, PRIME)
    if (found * found - value) % PRIME:
        raise UnfollowedError("a root that the field does not have")
    # the slope: that of Newton's method for a root modulo the square of the prime
    slope = (value - found * found) * pow(2 * found, -1, PRIME)
    return abs(Number((found + slope) % RUN.modulus))


def power(base: Any, exponent: Any) -> Number:
    """Return a power: a product if the exponent is a whole number, times a root for a half."""
    base, exponent = number(base), number(exponent)
    if exponent.known is not None:
        exponent = number(exponent.known)
    count = whole(exponent)
    if count is None:
        twice = whole(2 * exponent)
        if twice is None:
            return unknown("power", base, exponent)
        return power(base, twice // 2) * root(base)
    if count < 0:
        return power(inverse(base), -count)
    if not base.rest:
        return Number(pow(base.value, count, RUN.modulus))
    found = ONE
    for bit in f"{count:b}":
        found = found * found * (base if bit == "1" else ONE)
    return found


def _divided(sign: str, one: Any, two: Any) -> Number:
    """Return a floored quotient or its remainder."""
    dividend, divisor = whole(one), whole(two)
    if dividend is None or not divisor:
        return unknown(sign, one, two)
    return number(dividend % divisor if sign == "%" else dividend // divisor)


def rounded(name: str, given: Any) -> Number:
    """Return a number rounded by the function with a name."""
    return unknown(name, given) if whole(given) is None else number(given)


def sign(given: Any) -> Number:
    """Return the sign of a number."""
    return number((given > 0) - (given < 0))
