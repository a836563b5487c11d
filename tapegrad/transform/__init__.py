"""Derivatives of numba functions by transformation of their source (docs/njit.md)."""

from numba.core.registry import cpu_target

from tapegrad.imports import whole_imports

with whole_imports():
    # these imports complete the classes of compiled functions
    from tapegrad.transform import function as function
    from tapegrad.transform import recording as recording
    from tapegrad.transform import vjps as vjps
    from tapegrad.transform.checks import checking as checking
    from tapegrad.transform.ensembles import calls as calls

    # numba fills its tables when it first compiles or loads something, and would not go on after an
    # interrupt
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
