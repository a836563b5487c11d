"""Functions of whole arrays that generated code calls, collected in one namespace."""

from tapegrad.transform.rules.additions import *
from tapegrad.transform.rules.array_specs import ADDITIONS as ADDITIONS
from tapegrad.transform.rules.array_specs import SPECS, enter_generated
from tapegrad.transform.rules.complex_functions import *
from tapegrad.transform.rules.decompositions import *
from tapegrad.transform.rules.elementwise import *
from tapegrad.transform.rules.linear_algebra import *
from tapegrad.transform.rules.makers import *
from tapegrad.transform.rules.positions import *
from tapegrad.transform.rules.reductions import *
from tapegrad.transform.rules.scalars import nonzero_elements as nonzero_elements
from tapegrad.transform.rules.scalars import product_of_elements as product_of_elements
from tapegrad.transform.rules.sequences import *
from tapegrad.transform.rules.sorting import *
from tapegrad.transform.rules.stacks import *
from tapegrad.transform.rules.statistics import *
from tapegrad.transform.rules.views import *

enter_generated()  # they are not in any of these modules
globals().update(
    {f.__name__: f for spec in SPECS.values() for f in (*spec.vjp.values(), *spec.jvp.values())}
)
