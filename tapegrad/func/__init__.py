"""Transforms of functions: gradients, Jacobians, Hessians as functions.

Arguments and results may be arrays, tensors, numbers, or nested containers of these (pytrees, which
require optree). Called with arrays and numbers, a transform returns arrays and NumPy scalars. It
returns tensors if an argument contains a tensor, or if the result has a history, as inside another
transform.

Applied to a compiled numba function (`tapegrad.njit`, ``numba.njit``), a transform generates a
compiled function by source transformation; it takes and returns plain numbers and arrays.
"""

from tapegrad.func.gradients import grad as grad
from tapegrad.func.gradients import value_and_grad as value_and_grad
from tapegrad.func.jacobians import hessian as hessian
from tapegrad.func.jacobians import jacfwd as jacfwd
from tapegrad.func.jacobians import jacobian as jacobian
from tapegrad.func.jacobians import jacrev as jacrev
from tapegrad.func.products import hvp as hvp
from tapegrad.func.products import jvp as jvp
from tapegrad.func.products import linearize as linearize
from tapegrad.func.products import vjp as vjp
from tapegrad.func.vmap import vmap as vmap
