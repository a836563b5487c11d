"""Drawings of recorded programs: values, in frames for the loops that compute them."""

from __future__ import annotations

from typing import Any

from tapegrad.eager.nodes import Body, Node, bodies_of
from tapegrad.replay.plan import CompiledStep, EagerStep, Plan
from tapegrad.replay.program import Program
from tapegrad.tape.drawing import DRAWN_AT_MOST, GIVEN, new_graph

_FRAME = {"fontname": "Helvetica", "fontsize": "10", "color": "#888888", "style": "rounded"}


def drawn(plan: Plan) -> Any:
    """Return a drawing of a plan.

    Parameters
    ----------
    plan
        What runs for a recorded function.

    Returns
    -------
    graphviz.Digraph

    Raises
    ------
    ImportError
        If graphviz is not installed.
    ValueError
        If there is too much to draw.
    """
    return _Drawing(plan).graph


class _Drawing:
    """The drawing of a plan.

    Parameters
    ----------
    plan
        The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.graph = new_graph("program")
        self._names: dict[Node, str] = {}
        self._frames = 0
        self._add_inputs(self.graph, plan.program, "argument")
        for step in plan.steps:
            if isinstance(step, EagerStep):
                with self._frame(self.graph, "Python") as frame:
                    self._add(frame, step.node, step.bodies)
                self._names |= dict.fromkeys(step.parts, self._names[step.node])
            elif step.region is plan.region:
                self._add_values(self.graph, step)
            else:
                with self._frame(self.graph, "compiled") as frame:
                    self._add_values(frame, step)
        for number, node in enumerate(plan.program.outputs):
            self.graph.node(f"result{number}", f"result {number}", shape="plaintext")
            self.graph.edge(self._names[node], f"result{number}")

    def _frame(self, graph: Any, label: str) -> Any:
        self._frames += 1
        return graph.subgraph(
            name=f"cluster{self._frames}", graph_attr={"label": label, "labeljust": "l", **_FRAME}
        )

    def _add_inputs(self, graph: Any, program: Program, what: str) -> None:
        for number, node in enumerate(program.inputs):
            self._box(graph, node, f"{what} {number}", GIVEN)
        for node in program.constants:
            self._box(graph, node, "constant", GIVEN)

    def _add_values(self, graph: Any, step: CompiledStep) -> None:
        """Add the values of a region, those that one loop nest computes in a frame."""
        program, nest_of = step.region.program, step.region.nest_of
        self._names |= {
            own: self._names[read] for own, read in zip(program.inputs, step.reads, strict=True)
        }
        for node in program.constants:
            if node not in self._names:
                self._box(graph, node, "constant", GIVEN)
        by_nest: dict[int, list[Node]] = {}
        for node in program.nodes:
            by_nest.setdefault(nest_of.get(node, 0), []).append(node)
        for number, nodes in by_nest.items():
            if number:
                with self._frame(graph, "loop") as frame:
                    for node in nodes:
                        self._add(frame, node, program.bodies)
            else:
                for node in nodes:
                    self._add(graph, node, program.bodies)
        self._names |= {
            node: self._names[own] for own, node in zip(program.outputs, step.results, strict=True)
        }

    def _add(self, graph: Any, node: Node, bodies: dict[Body, Program]) -> None:
        """Add a value, and what is inside of a loop or branch."""
        if node.name == "item" and node.args[0] in self._names:
            self._names[node] = self._names[node.args[0]]
            return
        label = node.parameters.get("transform", node.name)
        if node.name == "callback":
            label = node.parameters["call"].name
        self._box(graph, node, label, {"shape": "ellipse"})
        for read in node.inputs():
            self.graph.edge(self._name(read), self._names[node])
        for body in bodies_of(node):
            program = bodies[body]
            with self._frame(graph, f"in {label}") as frame:
                self._add_inputs(frame, program, "value")
                for inner in program.nodes:
                    self._add(frame, inner, program.bodies | bodies)

    def _name(self, node: Node) -> str:
        """Return the name of a value in the drawing: before it is drawn, for one that is later."""
        if node not in self._names:
            self._names[node] = f"v{len(self._names)}"
            if len(self._names) > DRAWN_AT_MOST:
                raise ValueError(f"draw: the program has more than {DRAWN_AT_MOST} values")
        return self._names[node]

    def _box(self, graph: Any, node: Node, label: str, look: dict[str, str]) -> None:
        extents = ",".join(map(str, node.shape))
        kind = "" if node.dtype is None else f"\n{node.dtype}[{extents}]"
        graph.node(self._name(node), f"{label}{kind}", **look)
