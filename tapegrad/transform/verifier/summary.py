"""What a caller has to know of a function."""

from __future__ import annotations

from dataclasses import dataclass, field

from tapegrad.transform.verifier.purpose import UNKNOWN, Purpose


@dataclass
class Summary:
    """What a caller has to know of a function.

    Attributes
    ----------
    params
        Its parameters.
    arrays
        Positions of parameters that are used as arrays.
    writes
        Positions of parameters whose elements it writes.
    reads
        Positions of cotangents that it reads or clears rather than only adds to.
    results
        For every leaf of the returned value its alias class if it is an array, else None.
    own
        Positions of results that are not known to be arrays and do not alias other results.
    numbers
        Positions of results that are numbers: on some path they are a constant.
    classes
        The alias class of every array parameter, by position.
    given
        Parameters that are those of the function it is made from.
    purpose
        What it is for.
    is_called
        Whether any function of the module calls it.
    """

    params: list[str]
    arrays: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()
    results: tuple[str | None, ...] | None = None
    own: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    classes: dict[int, str] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    purpose: Purpose = UNKNOWN
    is_called: bool = False
