"""How numba compiles the parts of the tape.

Imported only to compile them: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

import numba

from tapegrad.kernels.llvm.pipeline import Pipeline
from tapegrad.kernels.native import NO_WRAPPERS

jit = numba.njit(**NO_WRAPPERS, error_model="numpy", fastmath={"contract"}, pipeline_class=Pipeline)
