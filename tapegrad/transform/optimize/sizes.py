"""How large blocks are, and which loops run in blocks."""

WIDTH = 256
"""The iterations of a block."""

MARGIN = 8
"""Zeros before and after the numbers of a block: the largest distance of neighbours."""

SHORT = 8
"""Loops with fewer iterations run in order."""

MOST_ROWS = 60
"""The most rows of a block: all of them stay in the second fastest cache."""

LEAST_GAIN = 4
"""Loops with less to gain run in order."""

FEW = 4
"""The most arrays of a loop that sets elements where it computes them."""

LARGE = 2**60
"""No array has that many elements."""


def stride() -> int:
    """Return the distance of the first numbers of two rows of a block."""
    return WIDTH + 2 * MARGIN


def described() -> str:
    """Return all sizes as text: other sizes make other code."""
    return repr((WIDTH, MARGIN, SHORT, MOST_ROWS, LEAST_GAIN, FEW))
