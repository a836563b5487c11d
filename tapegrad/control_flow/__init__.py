"""Loops and branches that `tapegrad.jit` records as such: `scan`, `fori_loop`, `cond` and others.

Elsewhere they run as Python: a loop calls its step again and again, a branch calls one function.
While a function is recorded, a step or branch is called once, and becomes a loop or branch of the
compiled program. A Python loop of a recorded function is recorded iteration by iteration.

The state of a loop keeps its structure, shapes and dtypes; both ways check that.
"""

from tapegrad.control_flow.functions import cond as cond
from tapegrad.control_flow.functions import fori_loop as fori_loop
from tapegrad.control_flow.functions import scan as scan
from tapegrad.control_flow.functions import switch as switch
from tapegrad.control_flow.functions import while_loop as while_loop
