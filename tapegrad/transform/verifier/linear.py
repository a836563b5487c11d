"""Linear maps that stand for derivatives: products and sums, where only equality matters.

A random matrix over a finite field stands for each unknown derivative. Two sums of products of such
matrices are equal, except with a probability of about 2**-60, only if they are sums of the same
products (the Schwartz-Zippel lemma). Matrices do not commute, so the order of operations on an
array matters, as it should.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

PRIME = (1 << 61) - 1

Map = tuple[int, int, int, int]  # two rows of two

ZERO: Map = (0, 0, 0, 0)
ONE: Map = (1, 0, 0, 1)


def product(one: Map, two: Map) -> Map:
    """Return the composition of `one` after `two`."""
    if one is ONE or two is ZERO:
        return two
    if two is ONE or one is ZERO:
        return one
    a, b, c, d = one
    e, f, g, h = two
    return (
        (a * e + b * g) % PRIME,
        (a * f + b * h) % PRIME,
        (c * e + d * g) % PRIME,
        (c * f + d * h) % PRIME,
    )


def total(one: Map, two: Map) -> Map:
    """Return the sum of two maps."""
    if one is ZERO:
        return two
    if two is ZERO:
        return one
    a, b, c, d = one
    e, f, g, h = two
    return ((a + e) % PRIME, (b + f) % PRIME, (c + g) % PRIME, (d + h) % PRIME)


def negative(one: Map) -> Map:
    """Return minus a map."""
    return ZERO if one is ZERO else tuple(-entry % PRIME for entry in one)  # type: ignore[return-value]


class Maps:
    """Random maps, one for each key."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.known: dict[Hashable, Map] = {}

    def of(self, *key: Hashable) -> Map:
        """Return the map that a key stands for."""
        found = self.known.get(key)
        if found is None:
            bits = self.draw.getrandbits
            found = (bits(60), bits(60), bits(60), bits(60))
            self.known[key] = found
        return found
