"""Random programs in the language of `tapegrad.njit`, and what judges their derivatives.

``python -m tests.transform.random_programs --programs 1000`` compares so many of them.
"""

from .reference import Reference, Unsmooth
from .writer import Author, Program, program_of

__all__ = ["Author", "Program", "Reference", "Unsmooth", "program_of"]
