"""What runs for a recorded program: compiled regions, and calls of Python between them.

A value that has no compiled form (a callback, an op of complex numbers) is computed from tensors,
as without a recording. What it needs is computed by the region before it, what is computed from it
by one after it. A program without such values is one region, if its text is not too long: several
functions of bounded length compile in proportion to their number.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from tapegrad.eager.creation import as_tensor
from tapegrad.eager.nodes import Body, Node, bodies_of, copied
from tapegrad.eager.tensor import wrap
from tapegrad.eager.traced import NotRecordedError
from tapegrad.replay.compiled import Region
from tapegrad.replay.eager_steps import as_recorded, computed
from tapegrad.replay.forms import BLOCKS, Form, form_of, public_name
from tapegrad.replay.op_by_op import OpByOp
from tapegrad.replay.program import Program
from tapegrad.replay.writer import TooLongError, Writer
from tapegrad.transform.errors import TransformError

Values = dict[Node, Any]


class OnlyCalledError(NotRecordedError):
    """Raised for a program that does little but call a function which is Python by nature."""


class CompiledStep:
    """A region of a program.

    Parameters
    ----------
    program
        What it computes.
    reads, results
        The values of the whole program that its arguments and results are.
    """

    def __init__(self, program: Program, reads: list[Node], results: list[Node]) -> None:
        self.region = Region(program)
        self.reads = reads
        self.results = results
        self.error: Exception | None = None  # why it is not compiled after all
        self._op_by_op: OpByOp | None = None

    def run(self, values: Values) -> None:
        """Compute the results of the region, op by op if it cannot be compiled.

        What is called in Python before it must not be called again.
        """
        args = [values[node] for node in self.reads]
        if self._op_by_op is None:
            try:
                found = self.region(args)
            except (TransformError, NumbaError, ImportError) as error:
                self.error = error
                self._op_by_op = OpByOp(self.region.program, lambda node: wrap(node.example))
        if self._op_by_op is not None:
            found = self._op_by_op(args)
        values.update(zip(self.results, found, strict=True))

    def shown(self) -> str:
        """Return its text, and what it calls in Python."""
        if self._op_by_op is not None:
            return "# in Python: what is not compiled\n"
        called = ", ".join(map(public_name, self.region.in_python))
        return f"# in Python: {called}\n{self.region.text}" if called else self.region.text


class EagerStep:
    """A value that is computed from tensors.

    Parameters
    ----------
    node
        The value.
    parts
        Its results, if there are several.
    bodies
        The programs of the bodies of loops, branches and derivatives.
    reason
        Why it is not compiled.
    """

    def __init__(
        self, node: Node, parts: list[Node], bodies: dict[Body, Program], reason: str
    ) -> None:
        self.node = node
        self.reason = reason
        self.parts = parts
        self.bodies = bodies
        self._plans: dict[Body, Plan] = {}

    def run(self, values: Values) -> None:
        """Compute it."""
        found = computed(self.node, values, self._run_body)
        if self.node.dtype is not None:
            values[self.node] = found[0]
        for part in self.parts:
            values[part] = as_recorded(part, found[part.parameters["number"]])

    def _plan_of(self, body: Body) -> Plan:
        if body not in self._plans:
            self._plans[body] = Plan(self.bodies[body], is_part=True)
        return self._plans[body]

    def _run_body(self, body: Body, args: Sequence[Any]) -> list[Any]:
        return self._plan_of(body).run([*map(as_tensor, args)])

    def shown(self) -> str:
        """Return what is called."""
        name = self.node.name
        called = self.node.parameters["call"].name if name == "callback" else name
        parts = [f"# in Python: {called}\n"]
        for body in bodies_of(self.node):
            text = self._plan_of(body).text()
            parts.append(textwrap.indent(text, "    "))
        return "\n".join(parts)


class Plan:
    """The steps that compute a program.

    Parameters
    ----------
    program
        The program.
    is_part
        Whether it is the body of a loop or another part of a program.

    Raises
    ------
    NotRecordedError
        If nothing of it would be compiled, or less than what is not.

    Attributes
    ----------
    steps
        The steps.
    region
        The region that computes all; None if there are several steps.
    most
        How often the longest loop of Python runs that was recorded.
    loops
        The number of loop nests.
    """

    def __init__(self, program: Program, is_part: bool = False) -> None:
        self.program = program
        self.steps: list[CompiledStep | EagerStep]
        self.region: Region | None = None
        try:
            whole = CompiledStep(program, program.inputs, program.outputs)
        except NotRecordedError as error:
            self.steps = _Split(program).steps()
            if not is_part and not self._is_worthwhile():
                raise self._refused(error) from None
        else:
            self.steps = [whole]
            self.region = whole.region
        regions = [step.region for step in self.steps if isinstance(step, CompiledStep)]
        self.most = max((region.most for region in regions), default=0)
        self.loops = sum(region.loops for region in regions)

    def _refused(self, error: NotRecordedError) -> NotRecordedError:
        """Return the error for a program of which too little is compiled."""
        nodes = [step.node for step in self.steps if isinstance(step, EagerStep)]
        others = [node for node in nodes if node.name != "callback"]
        if nodes and nodes[0] not in others:
            kind = NotRecordedError if others else OnlyCalledError
            error = kind(f"nothing but {nodes[0].parameters['call'].name} is called")
        error.line = others[0].line if others else None
        return error

    def op_by_op(self) -> list[tuple[str, tuple[str, int] | None, str]]:
        """Return what is computed from tensors, but by functions that are Python by nature.

        Returns
        -------
        list
            Names, the user's lines if known, and reasons.
        """
        found = []
        for step in self.steps:
            if isinstance(step, EagerStep):
                if step.node.name != "callback":
                    found.append((step.node.name, step.node.line, step.reason))
            elif step.error is not None:
                found.append(("what was recorded", None, str(step.error)))
            else:
                reason = "it has no compiled form"
                found += [(public_name(n), n.line, reason) for n in step.region.in_python]
        return [*dict.fromkeys(found)]

    def _is_worthwhile(self) -> bool:
        """Whether more values are compiled than ops are not."""
        compiled = ops = 0
        for step in self.steps:
            if isinstance(step, CompiledStep):
                nodes = step.region.program.nodes
            else:
                ops += step.node.name not in ("callback", *BLOCKS)
                nodes = [node for body in bodies_of(step.node) for node in body.nodes]
            compiled += sum(node.name not in ("item", "callback", "getitem") for node in nodes)
        return compiled > ops

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Return the results for some arguments: tensors, arrays and numbers."""
        if self.region is not None:
            return self.region(args)
        values: Values = dict(zip(self.program.inputs, args, strict=True))
        values |= {node: wrap(node.example) for node in self.program.constants}
        for step in self.steps:
            step.run(values)
        return [values[node] for node in self.program.outputs]

    def text(self) -> str:
        """Return what runs, to be read."""
        return f"{self.loops} loop nests\n" + "\n".join(step.shown() for step in self.steps)


class _Split:
    """A program that is divided where values have no compiled form.

    Parameters
    ----------
    program
        The program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parts: dict[Node, list[Node]] = {}
        for node in program.nodes:
            if node.name == "item":
                self.parts.setdefault(node.args[0], []).append(node)
        self.reasons: dict[Node, str] = {}  # of values that have no compiled form
        own = [node for node in program.nodes if node.name != "item"]
        self.eager = [node for node in own if not self._has_form(node)]
        numbers = {node: k for k, node in enumerate(self.eager)}
        self.number: dict[Node, int] = {}  # of the region that computes a value, or reads it first
        for node in program.nodes:
            if node in numbers:
                self.number[node] = numbers[node] + 1
            else:
                self.number[node] = max((self.number.get(i, 0) for i in node.inputs()), default=0)
        self._compute_late(numbers)

    def _compute_late(self, numbers: dict[Node, int]) -> None:
        """Let regions compute elements and views that only later ones read: they are not stored."""
        readers: dict[Node, list[int]] = {}  # the numbers of the regions before which it is needed
        for node in reversed(self.program.nodes):
            is_late = node not in numbers and form_of(node) in (Form.MAP, Form.VIEW)
            if is_late and node in readers and node not in self.program.outputs:
                self.number[node] = max(self.number[node], min(readers[node]))
            for read in node.inputs():
                readers.setdefault(read, []).append(numbers.get(node, self.number[node]))

    def _has_form(self, node: Node) -> bool:
        if node.name == "callback":
            self.reasons[node] = "it is a function of Python"
            return False
        try:
            nodes = [node, *self.parts.get(node, [])]
            Writer(self._region(nodes, [n for n in nodes if n.dtype is not None])[0])
        except NotRecordedError as error:
            self.reasons[node] = str(error)
            return False
        return True

    def _region(self, nodes: list[Node], outputs: list[Node]) -> tuple[Program, list[Node]]:
        """Return the program of some values, and what it reads of others."""
        own = {*nodes}
        stand_ins: dict[Node, Node] = {}
        for node in nodes:
            for read in node.inputs():
                if read not in own and read.name != "constant":
                    stand_ins.setdefault(read, read if read.name == "input" else _input(read))
        made = {node: other for node, other in stand_ins.items() if other is not node}
        for node in nodes:
            made[node] = copied(node, made)
        program = Program(
            [made[node] for node in nodes],
            [*stand_ins.values()],
            [made[node] for node in outputs],
            self.program.bodies,
        )
        return program, [*stand_ins]

    def steps(self) -> list[CompiledStep | EagerStep]:
        """Return regions, and what is computed in Python between them."""
        python = {part for node in self.eager for part in (node, *self.parts.get(node, []))}
        needed = {*self.program.outputs}
        for node in self.program.nodes:
            number = self.number[node]
            needed |= {
                read
                for read in node.inputs()
                if node in python or self.number.get(read, 0) != number
            }
        steps: list[CompiledStep | EagerStep] = []
        for number in range(len(self.eager) + 1):
            nodes = [n for n in self.program.nodes if self.number[n] == number and n not in python]
            outputs = [node for node in nodes if node in needed]
            if outputs:
                steps += self._compiled(nodes, outputs)
            if number < len(self.eager):
                node = self.eager[number]
                parts = self.parts.get(node, [])
                steps.append(EagerStep(node, parts, self.program.bodies, self.reasons[node]))
        return steps

    def _compiled(self, nodes: list[Node], outputs: list[Node]) -> list[CompiledStep | EagerStep]:
        """Return the region that computes some values, or several that are not too long."""
        program, reads = self._region(nodes, outputs)
        try:
            return [CompiledStep(program, reads, outputs)]
        except TooLongError:
            first, second = self._halves(nodes)
            if not second:
                raise
        read = {*outputs, *(node for own in second for node in own.inputs())} - {*second}
        known = {*second}
        return [
            *self._compiled(first, [node for node in first if node in read]),
            *self._compiled(second, [node for node in outputs if node in known]),
        ]

    def _halves(self, nodes: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the first half of some values, and the others with the views that they read."""
        half = {*nodes[: len(nodes) // 2]}
        half |= {node for node in nodes if node.name == "item" and node.args[0] in half}
        second = [node for node in nodes if node not in half]
        read = {read for node in second for read in node.inputs()}
        views = []
        for node in reversed(nodes):
            if node in half and node in read and form_of(node) is Form.VIEW:
                views.append(node)
                read.update(node.inputs())
        return [node for node in nodes if node in half], [*reversed(views), *second]


def _input(node: Node) -> Node:
    """Return an argument of a region that stands for a value."""
    return Node("input", np.broadcast_to(np.zeros((), node.dtype), node.shape))
