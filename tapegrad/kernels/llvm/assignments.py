"""numba's static single assignment form, in time that is proportional to the code.

numba goes through all blocks for every variable that is assigned more than once, which takes most
of the time that long functions need. Here it goes through the blocks that use the variable.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from numba.core import ir, ssa
from numba.core.analysis import compute_cfg_from_blocks

Blocks = dict[int, Any]


def with_single_assignments(blocks: Blocks) -> Blocks:
    """Return blocks in which each variable is assigned once."""
    graph = compute_cfg_from_blocks(blocks)
    fronts = ssa._iterated_domfronts(graph)
    reads = ssa._CacheListVars()
    found = dict(blocks)
    using: defaultdict[str, dict[int, None]] = defaultdict(dict)  # the labels of blocks, in order
    for label, block in blocks.items():
        for statement in block.body:
            for variable in statement.list_vars():
                using[variable.name][label] = None
    for name in ssa._find_defs_violators(blocks, graph):
        part, definitions = ssa._fresh_vars({label: found[label] for label in using[name]}, name)
        phis: defaultdict[int, list[Any]] = defaultdict(list)
        states = ssa._make_states(part)
        states |= {"varname": name, "defmap": definitions, "phimap": phis, "cfg": graph}
        states["phi_locations"] = ssa._compute_phi_locations(fronts, definitions)
        found |= ssa._run_block_rewrite(part, states, ssa._FixSSAVars(reads))
        for label, first in phis.items():
            if first:
                found[label] = _with_first(found[label], first)
    return found


def _with_first(block: Any, statements: list[Any]) -> Any:
    """Return a block with other statements at its start."""
    made = ir.Block(scope=block.scope, loc=block.loc)
    made.body = [*statements, *block.body]
    return made
