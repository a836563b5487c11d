"""Programs as functions for numba: loops over elements, each for as many values as possible.

The values of a program are computed in *stages*. A stage has one loop nest for each shape; it
computes all values of this shape that need nothing but each other and what earlier stages have
stored, and adds up sums. A value is stored if a later stage reads it; others are local variables of
an iteration. Views are not stored: where one is read, the element of its base is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Body, Node, copied
from tapegrad.eager.traced import NotRecordedError
from tapegrad.replay.calls import place_parts, write_call, write_reshape, write_rows, write_several
from tapegrad.replay.forms import FLOATS, Form, kind_of, splits_axes
from tapegrad.replay.module import Module
from tapegrad.replay.nests import Nest
from tapegrad.replay.program import Program
from tapegrad.replay.repeats import Repeat, longest_repeat
from tapegrad.replay.text import Text

# Lines of a program that is compiled, for each of which numba takes a while. A loop costs as much
# as some more lines.
_LONGEST = 800
_OF_A_LOOP = 4
_FEW = 96  # values that are compiled as they are, even if they repeat
_WIDE = 8  # elements from which on loops over them use vector instructions


class TooLongError(NotRecordedError):
    """Raised for programs whose text is too long for one function."""


class Writer:
    """Writes the function that computes a program.

    Parameters
    ----------
    program
        The program.
    module
        The functions that it calls; a new one by default.

    Attributes
    ----------
    text
        What is written.
    arguments
        The names of its arguments: those of the program, then constants.
    most
        How often the longest loop of Python runs that was recorded.
    """

    def __init__(self, program: Program, module: Module | None = None) -> None:
        self.text = text = Text(program)
        self.module = Module() if module is None else module
        self.most = 0
        self.stage: dict[Node, int] = {}
        self.programs: dict[Body, Program] = {}
        self._parts: dict[Node, list[Node]] = {}  # the results that are used
        self._enter(program)
        self._section(program.nodes, {*program.outputs})
        results = [text.result(node) for node in program.outputs]
        text.line(f"return {results[0] if len(results) == 1 else ', '.join(results)}")
        if len(text.lines) + _OF_A_LOOP * text.nests > _LONGEST:
            raise TooLongError(
                f"{len(text.lines)} lines of code would take long to compile; write long loops "
                "with tapegrad.scan or fori_loop, or in a function for tapegrad.njit"
            )
        arguments = [f"x{k}" for k in range(len(program.inputs))]
        self.arguments = ", ".join([*arguments, *text.finish()])

    def source(self) -> str:
        """Return the text of a module with the function, whose name is ``program``."""
        return self.module.source(self.arguments, self.text.lines)

    def _enter(self, program: Program) -> None:
        self.programs |= program.bodies
        for node in program.nodes:
            if node.name == "item":
                self._parts.setdefault(node.args[0], []).append(node)

    # -- sections -----------------------------------------------------------------------------

    def _section(self, nodes: list[Node], needed: set[Node]) -> None:
        """Write what computes some values; steps that repeat become a loop.

        Parameters
        ----------
        nodes
            The values, in the order in which they were recorded.
        needed
            Those of them that are read later.
        """
        repeat = self._repeat(nodes, needed)
        if repeat is None or self._is_one_nest(nodes, repeat):
            self._stages(nodes, needed)
            return
        first, once = nodes[: repeat.start], nodes[repeat.start :][: repeat.period]
        last, later = nodes[repeat.end - repeat.period : repeat.end], nodes[repeat.end :]
        before = repeat.starts
        read = {arg for node in (*once, *later) for arg in node.inputs()}
        self._stages(first, (needed | read | {*before}) & {*first})
        states = [self.text.fresh("k") for _ in before]
        for state, node in zip(states, before, strict=True):
            is_given = node.shape and self.text.forms[node] is Form.GIVEN
            array = self.text.copied(node) if is_given else self.text.array(node)
            self.text.line(f"{state} = {array}")
        names = dict(self.text.names)
        number = self.text.fresh("i")
        with (
            self.text.inside(f"for {number} in range({repeat.count}):"),
            self.text.shorter_in(number, repeat.shorter, [*before, *once]),
        ):
            step = self._step(once, dict(zip(before, states, strict=True)))
            carried = [step[own] for own in repeat.carried]
            self._stages(step, {*carried})
            self._carry(states, carried)
        self.text.names = names
        for own, state in zip(repeat.carried, states, strict=True):
            self.text.names[last[own]] = state
        self._stages(later, needed & {*later})

    def _step(self, once: list[Node], states: dict[Node, str]) -> list[Node]:
        """Return the values of an iteration, computed from states instead of their starts.

        Views of a start that are from before the loop still show the start.
        """
        text = self.text
        same: dict[Node, Node] = {}
        for start, state in states.items():
            same[start] = Node("input", np.broadcast_to(np.zeros((), start.dtype), start.shape))
            text.names[same[start]] = state
            text.forms[same[start]] = Form.GIVEN
        for node in once:
            made = same[node] = copied(node, same)
            text.forms[made], text.reads[made] = text.forms[node], text.reads[node]
            if node.name == "item":
                self._parts.setdefault(made.args[0], []).append(made)
        return [same[node] for node in once]

    def _repeat(self, nodes: list[Node], needed: set[Node]) -> Repeat | None:
        """Return the repeat in some values that is worth a loop."""
        repeat = longest_repeat(nodes, needed) if len(nodes) > _FEW else None
        if repeat is None or repeat.length <= _FEW:
            return None
        self.most = max(self.most, repeat.count)
        return repeat

    def _is_one_nest(self, nodes: list[Node], repeat: Repeat) -> bool:
        """Whether one loop nest computes all values of a repeat."""
        once = nodes[repeat.start :][: repeat.period]
        return all(self.text.forms[n] is Form.MAP and n.shape == once[0].shape for n in once)

    def _stages(self, nodes: list[Node], needed: set[Node]) -> None:
        """Write what computes some values, stage by stage."""
        self._plan(nodes, needed)
        by_stage: dict[int, list[Node]] = {}
        readers: dict[Node, list[Node]] = {}
        for node in nodes:
            by_stage.setdefault(self.stage[node], []).append(node)
            for read in node.inputs():
                readers.setdefault(read, []).append(node)
        for stage in sorted(by_stage):
            groups: dict[tuple[int, ...], list[Node]] = {}
            numbers: list[Node] = []  # that arrays of this stage may be computed from
            for node in by_stage[stage]:
                form = self.text.forms[node]
                if self._is_number(node):
                    numbers.append(node)
                elif form in (Form.MAP, Form.SUM):
                    over = node.args[0].shape if form is Form.SUM else node.shape
                    groups.setdefault(over, []).append(node)
                else:
                    self._numbers(numbers, readers)
                    numbers = []
                    self._whole(node)
            self._numbers(numbers, readers)
            for shape, values in groups.items():
                self._nest(shape, values)

    def _numbers(self, nodes: list[Node], readers: dict[Node, list[Node]]) -> None:
        """Write what computes numbers, one after the other."""
        own = {*nodes}
        self.text.stored |= {node for node in nodes if {*readers.get(node, ())} - own}
        self._nest((), nodes)

    def _whole(self, node: Node) -> None:
        """Write what computes a value that is not computed element by element."""
        form = self.text.forms[node]
        if form is Form.VIEW:
            if node.name == "reshape" and not splits_axes(node):
                write_reshape(self.text, node)
        elif form is Form.ROWS:
            write_rows(self.text, node)
        elif form is Form.CALL and node.dtype is None:
            write_several(self.text, node, self._parts.get(node, []))
        elif form is Form.CALL:
            write_call(self.text, node)
        elif form is Form.BLOCK:
            self._block(node)

    def _is_number(self, node: Node) -> bool:
        """Whether a value is a number that is computed from numbers."""
        return self.text.forms[node] is Form.MAP and not node.shape

    def _plan(self, nodes: list[Node], needed: set[Node]) -> None:
        """Find the stage of every value, and which values are stored."""
        forms, own = self.text.forms, {*nodes}
        ready: dict[Node, int] = {}  # the first stage that can read it; those from before: 0
        for node in nodes:
            form = forms[node]
            inputs = [i for i in node.inputs() if i in own]
            stage = max([ready[i] for i in inputs], default=0)
            if form is Form.MAP and inputs:
                stage = max(self.stage[i] if self._joins(i, node) else ready[i] for i in inputs)
            elif form is Form.SUM and inputs and forms[inputs[0]] is Form.MAP and inputs[0].shape:
                stage = self.stage[inputs[0]]
            self.stage[node] = stage
            ready[node] = stage + (form in (Form.MAP, Form.SUM) and not self._is_number(node))
        self.text.stored |= {node for node in needed if forms[node] is Form.MAP}
        for user in nodes:
            for node in user.inputs():
                if node in own and forms[node] is Form.MAP:
                    if not self._reads_in_loop(user, node):
                        self.text.stored.add(node)
            place_parts(self.text, user, own - needed)

    def _joins(self, x: Node, node: Node) -> bool:
        """Whether a value may be computed by the loop that computes one that reads it."""
        return self.text.forms[x] is Form.MAP and x.shape == node.shape

    def _reads_in_loop(self, user: Node, node: Node) -> bool:
        form = self.text.forms[user]
        if form is Form.SUM:
            return self.stage[user] == self.stage[node]
        return form is Form.MAP and self._joins(node, user) and self.stage[user] == self.stage[node]

    # -- loops and branches -------------------------------------------------------------------

    def _block(self, node: Node) -> None:
        """Write a loop or branches; name the results."""
        write = {
            "for_loop": self._for,
            "while_loop": self._while,
            "switch": self._switch,
            "derivative": self._derivative,
        }
        results = write[node.name](node)
        for part in self._parts[node]:
            self.text.names[part] = results[part.parameters["number"]]

    def _body(self, body: Body, names: list[str], needed: Iterable[Node] | None = None) -> None:
        """Write what a body computes.

        Parameters
        ----------
        body
            The body.
        names
            The names of its arguments.
        needed
            Those of its results that are used.
        """
        program = self.programs[body]
        self.text.enter(program)
        self._enter(program)
        self.text.names |= dict(zip(program.inputs, names, strict=True))
        outputs = program.outputs if needed is None else needed
        self._section(program.nodes, {*outputs} & {*program.nodes})

    def _states(self, nodes: Iterable[Any]) -> list[str]:
        """Write variables that start as some values; return their names."""
        found = []
        for node in nodes:
            start = self.text.result(node)
            found.append(self.text.fresh("k"))
            self.text.line(f"{found[-1]} = {start}")
        return found

    def _carry(self, states: list[str], nodes: list[Node]) -> None:
        """Write that variables become what an iteration has computed."""
        new = [
            name if (name := self.text.names.get(node)) in states else self.text.result(node)
            for node in nodes
        ]
        for k, name in enumerate(new):
            is_expression = not name.isidentifier()  # such as an element of a state
            if is_expression or (name in states and name != states[k]):  # overwritten first
                new[k] = self.text.fresh("k")
                self.text.line(f"{new[k]} = {name}")
        for state, name in zip(states, new, strict=True):
            if state != name:
                self.text.line(f"{state} = {name}")

    def _for(self, node: Node) -> list[str]:
        text = self.text
        starts, rows, given, bounds = node.args
        (body,) = node.parameters["bodies"]
        self.most = max(self.most, node.parameters.get("recorded", 0))
        program = self.programs[body]
        arrays = [text.array(row) for row in rows]
        others = [text.array(value) for value in given]
        lower, upper = (text.array(b) if isinstance(b, Node) else str(b) for b in bounds)
        states = self._states(starts)
        count = len(starts)
        used = {part.parameters["number"] for part in self._parts[node]}
        kept = [k for k in range(count, len(program.outputs)) if k in used]
        results = [*states, *("" for _ in program.outputs[count:])]
        for k in kept:
            out = program.outputs[k]
            results[k] = text.fresh("z")
            shape = (int(upper) - int(lower), *out.shape)
            text.line(text.empty(results[k], shape, kind_of(out)))
        i = text.fresh("i")
        steps = f"range({lower}, {upper})" if lower != "0" else f"range({upper})"
        memory = node.parameters["memory"]
        if memory is not None:
            steps = f"tg.checkpointed({steps}, {memory})"
        with text.inside(f"for {i} in {steps}:"):
            rows_now = []
            for array in arrays:
                rows_now.append(text.fresh("e"))
                text.line(f"{rows_now[-1]} = {array}[{i}]")
            outputs = [*program.outputs[:count], *(program.outputs[k] for k in kept)]
            self._body(body, [*states, i, *rows_now, *others], outputs)
            for k in kept:
                out = program.outputs[k]
                text.fill(
                    results[k],
                    out.shape,
                    lambda index, out=out: text.element(out, index),  # type: ignore[misc]
                    lambda index: [i, *index],
                )
            self._carry(states, program.outputs[:count])
        return results

    def _while(self, node: Node) -> list[str]:
        text = self.text
        starts, for_test, for_body = node.args
        test, body = node.parameters["bodies"]
        others = [[text.array(value) for value in given] for given in (for_test, for_body)]
        states = self._states(starts)
        with text.inside("while True:"):
            self._body(test, [*states, *others[0]])
            with text.inside(f"if not {text.array(self.programs[test].outputs[0])}:"):
                text.line("break")
            self._body(body, [*states, *others[1]])
            self._carry(states, self.programs[body].outputs)
        return states

    def _switch(self, node: Node) -> list[str]:
        text = self.text
        which, operands, *given = node.args
        bodies = node.parameters["bodies"]
        taken = [text.array(value) for value in operands]
        others = [[text.array(value) for value in values] for values in given]
        choice = text.array(which)
        results = [text.fresh("k") for _ in self.programs[bodies[0]].outputs]
        for k, (body, values) in enumerate(zip(bodies, others, strict=True)):
            test = choice if which.dtype == np.bool_ else f"{choice} == {k}"
            head = f"if {test}:" if k == 0 else f"elif {test}:"
            with text.inside("else:" if k == len(bodies) - 1 > 0 else head):
                self._body(body, [*taken, *values])
                for result, out in zip(results, self.programs[body].outputs, strict=True):
                    text.line(f"{result} = {text.result(out)}")
        return results

    def _derivative(self, node: Node) -> list[str]:
        text = self.text
        starts, given, directions = node.args
        (body,) = node.parameters["bodies"]
        written = Writer(self.programs[body], self.module)
        self.most = max(self.most, written.most)
        text.nests += written.text.nests
        text.in_python += written.text.in_python
        arguments = [text.array(value) for value in (*starts, *given)]
        arguments += map(text.constant, written.text.constants)
        arguments += [text.array(value) for value in directions]
        function = self.module.derivative(
            node.parameters["transform"], written.arguments, written.text.lines, len(starts)
        )
        outputs = len(body.outputs)
        patterns = {
            "value_and_grad": [1, len(starts)],
            "jvp": [outputs, outputs],
            "hvp": [1],
            "jacobian": [len(starts)],
        }
        groups = [
            [text.fresh("k") for _ in range(count)]
            for count in patterns[node.parameters["transform"]]
        ]
        parts = [f"({', '.join(names)})" if len(names) > 1 else names[0] for names in groups]
        text.line(f"{', '.join(parts)} = {function}({', '.join(arguments)})")
        return [name for names in groups for name in names]

    # -- loop nests ---------------------------------------------------------------------------

    def _nest(self, shape: tuple[int, ...], nodes: list[Node]) -> None:
        """Write the loops over a shape that compute some values."""
        maps = [node for node in nodes if self.text.forms[node] is Form.MAP]
        sums = [node for node in nodes if self.text.forms[node] is Form.SUM]
        needed = {*self.text.stored, *(node.args[0] for node in sums)}
        repeat = self._repeat(maps, needed)
        if repeat is None:
            Nest(self.text, shape).write(maps, sums)
        elif int(np.prod(shape)) < _WIDE or not self._has_stored_start(repeat, maps, shape):
            Nest(self.text, shape).write(maps, sums, repeat)
        else:
            self._steps(shape, maps, sums, repeat)

    def _has_stored_start(self, repeat: Repeat, maps: list[Node], shape: tuple[int, ...]) -> bool:
        kinds = {node.dtype for node in (*maps[: repeat.start], *repeat.starts)}
        return len(kinds) == 1 and kinds.issubset(FLOATS)

    def _steps(
        self, shape: tuple[int, ...], maps: list[Node], sums: list[Node], repeat: Repeat
    ) -> None:
        """Write a repeat as a loop around that over the elements, which keeps arrays.

        Inner loops over many elements use vector instructions, those over steps do not.
        """
        first = maps[: repeat.start]
        once = maps[repeat.start : repeat.start + repeat.period]
        later = maps[repeat.end :]
        read = {arg for node in (*once, *later) for arg in node.inputs()}
        read |= {node.args[0] for node in sums}
        before = repeat.starts
        self.text.stored |= {node for node in first if node in read or node in before}
        Nest(self.text, shape).write(first, [])
        states = []
        for node in before:
            state = self.text.fresh("k")
            self.text.line(f"{state} = {self.text.array(node)}.copy()")
            states.append(state)
        with self.text.inside(f"for {self.text.fresh('i')} in range({repeat.count}):"):
            step = Nest(self.text, shape)
            step.states = dict(zip(before, states, strict=True))
            step.changed = dict(zip((once[own] for own in repeat.carried), states, strict=True))
            step.write(once, [])
        last = maps[repeat.end - repeat.period : repeat.end]
        for own, state in zip(repeat.carried, states, strict=True):
            self.text.names[last[own]] = state
        Nest(self.text, shape).write(later, sums)
