"""Functions of whole arrays that generated code calls, collected in one namespace."""

from tapegrad.transform.rules.array_specs import ADDITIONS as ADDITIONS
from tapegrad.transform.rules.array_specs import ADJOINTS as ADJOINTS
from tapegrad.transform.rules.array_specs import SPECS, enter_generated
from tapegrad.transform.rules.numpy_functions import (
    additions,
    complex_functions,
    convolutions,
    decompositions,
    elementwise,
    exponentials,
    factors,
    finite_matrices,
    fourier,
    hermitian,
    linear_algebra,
    makers,
    positions,
    reductions,
    sequences,
    sorting,
    stacks,
    statistics,
    views,
)
from tapegrad.transform.rules.scalars import nonzero_elements as nonzero_elements
from tapegrad.transform.rules.scalars import product_of_elements as product_of_elements

_MODULES = (
    additions, complex_functions, convolutions, decompositions, elementwise, exponentials, factors,
    finite_matrices, fourier, hermitian, linear_algebra, makers, positions, reductions, sequences,
    sorting, stacks, statistics, views,
)  # fmt: skip

for _module in _MODULES:
    globals().update({n: f for n, f in vars(_module).items() if not n.startswith("_")})
enter_generated()  # they are in none of these modules
globals().update(
    {f.__name__: f for spec in SPECS.values() for f in (*spec.vjp.values(), *spec.jvp.values())}
)
