"""The schedule of binomial checkpointing: in which order the steps of a loop are reversed.

To reverse a loop of n steps, the state before each step is needed, last step first. With room for c
states, some are stored and the others are recomputed from the stored ones. Let ``t(n, c)`` be the
least number of steps that have to be computed for this, not counting those that are reversed. Where
the first stored state is that before step 0, and the next one that before step m,

    t(1, c) = 0,    t(n, 1) = n (n - 1) / 2,
    t(n, c) = min over 0 < m < n of  m + t(n - m, c - 1) + t(m, c).

The solution is ``t(n, c) = r n - beta(c + 1, r - 1)`` with ``beta(c, r) = binomial(c + r, c)``, for
the only r with ``beta(c, r - 1) < n <= beta(c, r)``. No step is computed more than r times.

A. Griewank, A. Walther: Algorithm 799: Revolve: an implementation of checkpointing for the reverse
or adjoint mode of computational differentiation. ACM Transactions on Mathematical Software 26
(2000), 19-45. The optimality: A. Griewank: Achieving logarithmic growth of temporal and spatial
complexity in reverse automatic differentiation. Optimization Methods and Software 1 (1992), 35-54.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb


def beta(c: int, r: int) -> int:
    """Return how many steps can be reversed with c states, each computed at most r times."""
    return comb(c + r, c) if r >= 0 and c >= 0 else 0


def repetitions(n: int, c: int) -> int:
    """Return the least r with ``n <= beta(c, r)``."""
    if c == 1:
        return n - 1
    r = 0
    reach = 1
    while reach < n:
        r += 1
        reach = reach * (c + r) // r
    return r


def recomputed_steps(n: int, c: int) -> int:
    """Return t(n, c), the number of computed steps of the best schedule.

    Parameters
    ----------
    n
        Number of steps of the loop.
    c
        Number of states that are stored at the same time, with the initial state.

    Examples
    --------
    >>> from tapegrad.utils.revolve import recomputed_steps
    >>> recomputed_steps(10, 3), recomputed_steps(10, 10)
    (15, 9)
    """
    r = repetitions(n, c)
    return r * n - beta(c + 1, r - 1)


def distance(n: int, c: int) -> int:
    """Return the number of steps to the next stored state, the m of a best schedule.

    Any m with ``beta(c, r - 2) <= m <= beta(c, r - 1)`` and
    ``beta(c - 1, r - 1) <= n - m <= beta(c - 1, r)`` is one. This is the smallest.

    Parameters
    ----------
    n
        Number of steps from the last stored state to the end; at least 2.
    c
        Number of states that may be stored, with the last one; at least 2.
    """
    r = repetitions(n, c)
    return max(beta(c, r - 2), n - beta(c - 1, r), 1)


def first_positions(n: int, c: int) -> Iterator[int]:
    """Yield the positions of the states that are stored while the loop runs forward.

    Parameters
    ----------
    n, c
        As for `recomputed_steps`; n is at least 1.
    """
    position = 0
    yield position
    while c > 1 and n - position > 1:
        position += distance(n - position, c)
        c -= 1
        yield position


def reversal(n: int, c: int, stored: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield what to do, until all steps are reversed.

    In the beginning, the state before the last step is at hand: the loop has just run forward. Of
    the t(n, c) steps, it has computed n - 1.

    Parameters
    ----------
    n, c
        As for `recomputed_steps`.
    stored
        The positions of the states that are stored in the beginning (`first_positions`).

    Yields
    ------
    action, start, end
        ``"restore", p, p``: take the state that is stored for position p. ``"advance", p, q``:
        compute the steps from p to q. ``"store", p, p``: store the state. ``"reverse", p, p + 1``:
        reverse step p, whose input is the state. ``"drop", p, p``: drop the stored state.
    """
    positions = list(stored)
    position = n - 1
    while True:
        while n - position > 1:
            room = c - len(positions) + 1
            following = position + distance(n - position, room) if room > 1 else n - 1
            yield "advance", position, following
            position = following
            if room > 1:
                yield "store", position, position
                positions.append(position)
        yield "reverse", n - 1, n
        n -= 1
        if positions[-1] == n:
            yield "drop", n, n
            positions.pop()
        if not n:
            return
        position = positions[-1]
        yield "restore", position, position
