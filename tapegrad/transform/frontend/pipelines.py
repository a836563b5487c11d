"""Parts of numba's pipeline, run for their analyses."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numba.core import compiler
from numba.core.registry import cpu_target


def run(pipeline: type[compiler.CompilerBase], function: FunctionType, kinds: Any) -> Any:
    """Return the result of the last pass of a pipeline.

    Parameters
    ----------
    pipeline
        The passes.
    function
        The Python function to run them on.
    kinds
        numba types of its arguments.
    """
    flags = compiler.Flags()
    flags.nrt = True
    flags.enable_looplift = False
    flags.error_model = "python"
    typing_context, target_context = cpu_target.typing_context, cpu_target.target_context
    typing_context.refresh()
    target_context.refresh()
    return compiler.compile_extra(
        typing_context, target_context, function, kinds, None, flags, {}, pipeline_class=pipeline
    )
