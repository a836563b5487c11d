"""numba's passes, less those that generated code has no use for."""

from __future__ import annotations

from types import CodeType
from typing import Any

from numba.core import compiler, ir, lowering, types
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import (
    BaseNativeLowering,
    NativeLowering,
    NativeParforLowering,
    NopythonRewrites,
    NopythonTypeInference,
)
from numba.core.untyped_passes import InlineClosureLikes
from numba.parfors.parfor_lowering import ParforLower

from tapegrad.kernels.llvm.errors import GivesBack
from tapegrad.kernels.llvm.inference import Inference
from tapegrad.kernels.llvm.library import LinkedLibrary, name_function
from tapegrad.kernels.llvm.lower import Lower
from tapegrad.kernels.llvm.unanalysed import PASSES
from tapegrad.kernels.llvm.wrapper import CalledFromPython, Wrapping


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(BaseNativeLowering):
    """Writes code for LLVM."""

    _name = "tapegrad_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return Lower

    def run_pass(self, state: Any) -> bool:
        flags, context = state.flags, state.targetctx
        if not (flags.no_cpython_wrapper and flags.no_cfunc_wrapper):
            changed: bool = super().run_pass(state)
            return changed
        library = LinkedLibrary(context.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        state.library, flags.no_compile = library, True
        super().run_pass(state)
        lowered = state["cr"]
        function = name_function(context, library, lowered.fndesc, lowered.env)
        state.reload_init.extend(library._reload_init)
        state["cr"] = lowered._replace(cfunc=function)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _ArrayExpressions(NopythonRewrites):
    """numba's rewriting of typed code, if there is an expression of arrays to be rewritten."""

    _name = "tapegrad_array_expressions"

    def run_pass(self, state: Any) -> bool:
        if not any(map(_is_rewritten, state.typemap.values())) and not _has_array_results(state):
            return False
        changed: bool = super().run_pass(state)
        return changed


def _is_rewritten(kind: Any) -> bool:
    """Whether values of a type are read by names, which numba replaces by positions."""
    return isinstance(kind, (types.Record, types.UnicodeType, types.StringLiteral))


def _has_array_results(state: Any) -> bool:
    """Whether an operation or a call returns an array."""
    for block in state.func_ir.blocks.values():
        for statement in block.find_insts(ir.Assign):
            value = statement.value
            if isinstance(value, ir.Expr) and (
                value.op in ("binop", "inplace_binop", "unary")
                or (value.op == "call" and _is_ufunc(state.typemap[value.func.name]))
            ):
                if isinstance(state.typemap[statement.target.name], types.Array):
                    return True
    return False


def _is_ufunc(kind: Any) -> bool:
    """Whether a function is a universal function, of NumPy or of the user's."""
    return hasattr(getattr(kind, "typing_key", None), "nin")


class _ParallelLower(CalledFromPython, GivesBack, ParforLower):
    """numba's lowering of functions with parallel loops."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _ParallelLowering(NativeParforLowering):
    """Writes code for LLVM, of functions with parallel loops."""

    _name = "tapegrad_parallel_lowering"

    @property
    def lowering_class(self) -> type[_ParallelLower]:
        return _ParallelLower


class _OrdinaryLower(Wrapping, lowering.Lower):
    """numba's lowering, with checks of arrays that Python passes."""


class _ParforLower(Wrapping, ParforLower):
    """The same, of code that runs in parallel."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _CheckedLowering(BaseNativeLowering):
    """Writes numba's code for LLVM."""

    _name = "tapegrad_checked_lowering"

    @property
    def lowering_class(self) -> type[lowering.Lower]:
        return _OrdinaryLower


@register_pass(mutates_CFG=True, analysis_only=False)
class _CheckedParforLowering(BaseNativeLowering):
    """Writes numba's code for LLVM, of functions that run in parallel."""

    _name = "tapegrad_checked_parfor_lowering"

    @property
    def lowering_class(self) -> type[ParforLower]:
        return _ParforLower


_CHECKED = {NativeLowering: _CheckedLowering, NativeParforLowering: _CheckedParforLowering}
_REPLACED = {
    NativeLowering: _Lowering,
    NopythonRewrites: _ArrayExpressions,
    NopythonTypeInference: Inference,
    **PASSES,
}


class Checked(compiler.Compiler):
    """numba's compiler, of functions that check the arrays which Python passes."""

    def define_pipelines(self) -> list[PassManager]:
        managers = super().define_pipelines()
        return [_changed(manager, manager.pipeline_name, _CHECKED) for manager in managers]


class Pipeline(Checked):
    """numba's compiler, as generated functions use it."""

    def _compile_core(self) -> Any:
        """Return the compiled function without what numba tells users of it.

        It would hold the module that the function stands in, which is generated: numba's tables
        hold what is compiled, and so this would never be deleted.
        """
        compiled = super()._compile_core()
        described = compiled.fndesc
        described.typemap = described.calltypes = None
        return compiled._replace(type_annotation=None, metadata={})

    def define_pipelines(self) -> list[PassManager]:
        flags = self.state.flags
        if flags.force_pyobject or flags.debuginfo:
            return super().define_pipelines()
        (manager,) = compiler.Compiler.define_pipelines(self)
        if flags.auto_parallel.enabled:
            replaced: dict[Any, Any] = {NativeParforLowering: _ParallelLowering}
            return [_changed(manager, "tapegrad_generated", replaced)]
        omitted = () if _has_inner_functions(self.state.func_id.code) else (InlineClosureLikes,)
        return [_changed(manager, "tapegrad_generated", _REPLACED, omitted)]


def _changed(
    manager: PassManager, name: str, replaced: dict[Any, Any], omitted: tuple[Any, ...] = ()
) -> PassManager:
    """Return passes of numba's with others in the place of some."""
    made = PassManager(name)
    made.passes.extend(
        (replaced.get(found, found), text) for found, text in manager.passes if found not in omitted
    )
    made.finalize()
    return made


def _has_inner_functions(code: CodeType) -> bool:
    return any(isinstance(constant, CodeType) for constant in code.co_consts)


def use_pipeline(dispatcher: Any) -> None:
    """Let numba compile a function, which is not compiled yet, as a generated one."""
    if isinstance(dispatcher, CPUDispatcher):  # with NUMBA_DISABLE_JIT it is Python's function
        dispatcher._compiler.pipeline_class = Pipeline
