"""numba's passes without the analyses of lifetimes that each of them ends with.

These take time that grows with the square of the code. What a function needs of them is found in
`numba.core.typed_passes.IRLegalization`, after the last pass that changes it.
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler_machinery import register_pass
from numba.core.ir_utils import build_definitions
from numba.core.rewrites import rewrite_registry
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import PreLowerStripPhis
from numba.core.untyped_passes import GenericRewrites, IRProcessing, ReconstructSSA

from tapegrad.kernels.llvm.assignments import with_single_assignments


@register_pass(mutates_CFG=True, analysis_only=False)
class Processing(IRProcessing):
    """numba's pass after interpretation; generated functions are no generators."""

    _name = "tapegrad_processing"

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = canonicalize_cfg(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class Rewrites(GenericRewrites):
    """numba's rewriting of code without types."""

    _name = "tapegrad_rewrites"

    def run_pass(self, state: Any) -> bool:
        blocks = state.func_ir.blocks
        for kind in rewrite_registry.rewrites["before-inference"]:
            rewrite = kind(state)
            for label in list(blocks):
                while rewrite.match(state.func_ir, blocks[label], state.typemap, state.calltypes):
                    blocks[label] = rewrite.apply()
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class SingleAssignments(ReconstructSSA):
    """numba's pass that gives each assignment a variable of its own."""

    _name = "tapegrad_single_assignments"

    def run_pass(self, state: Any) -> bool:
        function = state.func_ir
        if function.blocks:
            function.blocks = with_single_assignments(function.blocks)
        self._patch_locals(state)
        function._definitions = build_definitions(function.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class WithoutPhis(PreLowerStripPhis):
    """numba's pass that assigns in each branch what is assigned by phi nodes."""

    _name = "tapegrad_without_phis"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


PASSES = {
    IRProcessing: Processing,
    GenericRewrites: Rewrites,
    ReconstructSSA: SingleAssignments,
    PreLowerStripPhis: WithoutPhis,
}
"""What stands in place of numba's passes."""
