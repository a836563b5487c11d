"""Programs for numba, the same programs for array namespaces, and their inputs.

A program is a plain function in numba's language, which takes the arrays of its workload, then the
constants. Only `nested.py`, `second_derivatives.py` and `short_calls.py` call tapegrad, and nothing
here imports them before they are needed. `NAME_by_hand` is value and gradient, written by hand: the
goal for generated adjoints. `NAME_loss` is the program for arrays; some are better than the loops:
all terms of a sum at once, or a factorization.
"""

from .equations import EQUATIONS
from .fields import FIELDS
from .matrices import MATRICES
from .oscillators import OSCILLATORS
from .points import POINTS
from .sums import SUMS

NJIT_PROGRAMS = (*EQUATIONS, *OSCILLATORS, *SUMS, *POINTS, *FIELDS, *MATRICES)
