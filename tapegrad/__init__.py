"""tapegrad: automatic differentiation for NumPy and numba.

Numeric functions have NumPy's names and semantics and live here: ``tapegrad.sin``,
``tapegrad.sum``, ``tapegrad.linalg.inv``, ... They are derived from the op table in `tapegrad.ops`.
NumPy's own functions accept tensors too: ``numpy.sin(t)``.
"""

import typing as _typing

from tapegrad import autograd as autograd
from tapegrad import cuda as cuda
from tapegrad import fft as fft
from tapegrad import func as func
from tapegrad import linalg as linalg
from tapegrad import methods as _methods  # noqa: F401 (gives Tensor its operators)
from tapegrad import random as random
from tapegrad import special as special
from tapegrad import stats as stats
from tapegrad import testing as testing
from tapegrad import utils as utils
from tapegrad.autograd.anomaly_mode import (
    is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled,
)
from tapegrad.autograd.anomaly_mode import is_anomaly_enabled as is_anomaly_enabled
from tapegrad.autograd.function import Function as Function
from tapegrad.autograd.grad_mode import enable_grad as enable_grad
from tapegrad.autograd.grad_mode import inference_mode as inference_mode
from tapegrad.autograd.grad_mode import is_grad_enabled as is_grad_enabled
from tapegrad.autograd.grad_mode import is_inference_mode_enabled as is_inference_mode_enabled
from tapegrad.autograd.grad_mode import no_grad as no_grad
from tapegrad.autograd.grad_mode import set_grad_enabled as set_grad_enabled
from tapegrad.control_flow import cond as cond
from tapegrad.control_flow import fori_loop as fori_loop
from tapegrad.control_flow import scan as scan
from tapegrad.control_flow import switch as switch
from tapegrad.control_flow import while_loop as while_loop
from tapegrad.cuda.determinism import (
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
)
from tapegrad.cuda.determinism import use_deterministic_algorithms as use_deterministic_algorithms
from tapegrad.eager import creation as _creation
from tapegrad.eager import numeric as _numeric
from tapegrad.eager import protocols as _protocols  # noqa: F401 (and NumPy's protocols)
from tapegrad.eager.batched import BatchError as BatchError
from tapegrad.eager.creation import as_tensor as as_tensor
from tapegrad.eager.creation import from_dlpack as from_dlpack
from tapegrad.eager.creation import tensor as tensor
from tapegrad.eager.detached import DetachedWarning as DetachedWarning
from tapegrad.eager.tensor import Tensor as Tensor
from tapegrad.eager.traced import RecordingError as RecordingError
from tapegrad.func import grad as grad
from tapegrad.func import hessian as hessian
from tapegrad.func import hvp as hvp
from tapegrad.func import jacfwd as jacfwd
from tapegrad.func import jacobian as jacobian
from tapegrad.func import jacrev as jacrev
from tapegrad.func import jvp as jvp
from tapegrad.func import linearize as linearize
from tapegrad.func import value_and_grad as value_and_grad
from tapegrad.func import vjp as vjp
from tapegrad.func import vmap as vmap
from tapegrad.imports import whole_imports as _whole_imports
from tapegrad.kernels.pool import set_pool_limit as set_pool_limit
from tapegrad.tape.tape import Tape as Tape
from tapegrad.tape.tape import current_tape as current_tape
from tapegrad.utils.scan import checkpoint_scan as checkpoint_scan

__version__ = "0.1.0"

_NAMES = {**_numeric.PUBLIC, **_creation.CREATION}
globals().update(_NAMES)
__all__ = sorted({
    *_NAMES,
    "BatchError", "DetachedWarning", "Function", "OpByOpWarning", "RecordingError",
    "RoundedWarning", "SerialLoopWarning", "SlowerCodeWarning", "Tape", "Tensor", "TransformError",
    "UnconfirmedWarning", "VerificationError", "are_deterministic_algorithms_enabled", "autograd",
    "checkpoint_scan", "checkpointed", "cond", "cuda", "current_tape", "enable_grad", "fft",
    "fori_loop", "func", "grad", "hessian", "hvp", "inference_mode",
    "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "is_grad_enabled",
    "is_inference_mode_enabled", "jacfwd", "jacobian", "jacrev", "jit", "jvp", "linalg",
    "linearize", "njit", "no_grad", "random", "scan", "set_grad_enabled", "set_pool_limit",
    "set_tape_limit", "special", "stats", "stop_gradient", "switch", "testing",
    "use_deterministic_algorithms", "utils", "value_and_grad", "vjp", "vmap", "while_loop",
})  # fmt: skip


# Modules that import numba are imported on first use.
_LAZY = {
    "checkpointed": "tapegrad.transform.checkpointing",
    "jit": "tapegrad.replay.function",
    "njit": "tapegrad.transform.function",
    "set_tape_limit": "tapegrad.transform.tape_memory.limit",
    "stop_gradient": "tapegrad.transform.functions",
    "OpByOpWarning": "tapegrad.replay.errors",
    "RoundedWarning": "tapegrad.transform.errors",
    "SerialLoopWarning": "tapegrad.transform.errors",
    "SlowerCodeWarning": "tapegrad.transform.errors",
    "TransformError": "tapegrad.transform.errors",
    "UnconfirmedWarning": "tapegrad.transform.errors",
    "VerificationError": "tapegrad.transform.errors",
}

if _typing.TYPE_CHECKING:
    from tapegrad.stubs.compiled import *  # noqa: F403
    from tapegrad.stubs.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> _typing.Any:
        if name in _LAZY:
            import importlib

            with _whole_imports(_LAZY[name]):
                found = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
            return found
        raise AttributeError(
            f"tapegrad has no {name!r}: numeric functions have NumPy's names "
            "(linear algebra in tapegrad.linalg, Fourier transforms in tapegrad.fft, special "
            "functions in tapegrad.special)"
        )


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
