"""Functions of whole arrays that generated code calls, all families under one name."""

from tapegrad.transform.additions import *
from tapegrad.transform.array_specs import ADDITIONS as ADDITIONS
from tapegrad.transform.complex_functions import *
from tapegrad.transform.decompositions import *
from tapegrad.transform.elementwise import *
from tapegrad.transform.linear_algebra import *
from tapegrad.transform.makers import *
from tapegrad.transform.reductions import *
from tapegrad.transform.scalars import product_of_elements as product_of_elements
from tapegrad.transform.sequences import *
from tapegrad.transform.sorting import *
from tapegrad.transform.views import *
