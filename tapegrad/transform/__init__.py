"""Derivatives of numba functions by transformation of their source (docs/njit.md)."""

# these imports complete the classes of compiled functions
from tapegrad.transform import function as function
from tapegrad.transform import recording as recording
from tapegrad.transform import vjps as vjps
from tapegrad.transform.checks import checking as checking
from tapegrad.transform.ensembles import calls as calls
