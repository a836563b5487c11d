"""Recorded programs that run op by op, on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.eager.nodes import Body, Node
from tapegrad.replay.eager_steps import as_recorded, computed
from tapegrad.replay.program import Program


class OpByOp:
    """A program that is computed from tensors.

    Parameters
    ----------
    program
        The program.
    constant
        Returns an array from outside as a tensor, or a number.
    """

    def __init__(self, program: Program, constant: Callable[[Node], Any]) -> None:
        self.program = program
        self._constant = constant
        self._last_reads: dict[Program, dict[Node, list[Node]]] = {}

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return the results for tensors, arrays and numbers."""
        return self._run(self.program, args)

    def _run(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """Compute a program; a value is dropped when it was read for the last time."""
        values: dict[Node, Any] = dict(zip(program.inputs, args, strict=True))
        values |= {node: self._constant(node) for node in program.constants}
        last = self._last_reads.get(program)
        if last is None:
            last = self._last_reads[program] = _last_reads(program)

        def run(body: Body, given: Sequence[Any]) -> list[Any]:
            return self._run(program.bodies[body], given)

        for node in program.nodes:
            if node.name == "item":
                values[node] = as_recorded(node, values[node.args[0]][node.parameters["number"]])
            else:
                found = computed(node, values, run)
                values[node] = found[0] if node.dtype is not None else found
            for read in last[node]:
                del values[read]
        return [values[node] for node in program.outputs]


def _last_reads(program: Program) -> dict[Node, list[Node]]:
    """Return, for each value, those that nothing after it reads."""
    seen = {*program.outputs}
    found: dict[Node, list[Node]] = {}
    for node in reversed(program.nodes):
        found[node] = [read for read in {*node.inputs(), node} if read not in seen]
        seen.update(found[node])
    return found
