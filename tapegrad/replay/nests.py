"""Loop nests of recorded programs: what one iteration computes, stores and adds up."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.replay.forms import (
    INTEGER,
    SINGLE,
    aligned,
    axes_of,
    expression,
    is_of_singles,
    kind_of,
    number,
)
from tapegrad.replay.repeats import Repeat
from tapegrad.replay.text import Text

# what is written in one way whatever its arguments are, other than powers
_OF_ANY_NUMBERS = ("add", "subtract", "multiply", "divide")


class Nest:
    """Loops over a shape.

    Parameters
    ----------
    text
        What they are written to.
    shape
        The shape.
    """

    def __init__(self, text: Text, shape: tuple[int, ...]) -> None:
        self.text = text
        self.shape = shape
        self.index = text.index(shape)
        self.before: dict[int, list[str]] = {}  # lines before the loops at some depth
        self.after: dict[int, list[str]] = {}
        self.inside: list[str] = []
        self.local: dict[Node, str] = {}
        self.states: dict[Node, str] = {}  # arrays with values of the step before
        self.changed: dict[Node, str] = {}  # arrays that values are written to
        self._loads: dict[str, str] = {}

    def write(self, maps: list[Node], sums: list[Node], repeat: Repeat | None = None) -> None:
        """Write the loops that compute values and add up sums."""
        text = self.text
        if repeat is None:
            self._maps(maps)
        else:
            self._maps(maps[: repeat.start])
            self._repeat(maps, repeat)
            self._maps(maps[repeat.end :])
        for node in sums:
            self._sum(node, self._load(node.args[0], self.index))
        for node, array in self.changed.items():
            self.inside.append(f"{array}[{', '.join(self.index)}] = {self.local[node]}")
        if not self.shape:
            for line in self.inside:
                text.line(line)
        elif self.inside:
            text.nests += 1
            text.nest_of |= dict.fromkeys((*maps, *sums), text.nests)
            for line in self.before.get(0, ()):
                text.line(line)
            text.loops(self.shape, self.index, self.inside, self.before, self.after)

    def _maps(self, nodes: list[Node], indent: str = "") -> None:
        text = self.text
        for node in nodes:
            may_vary = node.name in _OF_ANY_NUMBERS
            given = map(_rounded, node.args) if is_of_singles(node) else node.args
            args = [self._argument(arg, indent, may_vary) for arg in given]
            name = self.local[node] = text.fresh("v")
            self.inside.append(f"{indent}{name} = {expression(node, args)}")
            if not self.shape or not indent:
                self._store(node, name)

    def _store(self, node: Node, name: str) -> None:
        """Note the name of a value, or write that it is stored if it is an element."""
        text = self.text
        if not self.shape:
            text.names[node] = name
        elif node in text.stored:
            part = text.parts.get(node)
            if part is None:
                array = text.names[node] = text.fresh("z")
                lines, place = [text.empty(array, self.shape, kind_of(node))], self.index
            else:
                array, lines, place = part.whole.name, part.whole.makes(), part.place(self.index)
                part.is_computed = True
            self.before.setdefault(0, []).extend(lines)
            self.inside.append(f"{array}[{', '.join(place)}] = {name}")

    def _argument(self, arg: Any, indent: str, may_vary: bool) -> str:
        if not isinstance(arg, Node):
            return self.text.number(arg) if may_vary else number(arg)
        return self._load(arg, aligned(arg.shape, self.index), indent)

    def _repeat(self, maps: list[Node], repeat: Repeat) -> None:
        """Write one iteration of values that repeat, in a loop."""
        start, period = repeat.start, repeat.period
        once = maps[start : start + period]
        changing = {*maps[start:], *repeat.starts}
        for arg in dict.fromkeys(arg for node in once for arg in node.inputs()):
            if arg not in changing:  # before the loop
                self._load(arg, aligned(arg.shape, self.index))
        names = []
        for before in repeat.starts:
            names.append(self.text.fresh("k"))
            value = self._load(before, aligned(before.shape, self.index))
            self.inside.append(f"{names[-1]} = {value}")
        outside = dict(self.local)
        self.local |= dict(zip(repeat.starts, names, strict=True))
        self.inside.append(f"for {self.text.fresh('i')} in range({repeat.count}):")
        self._maps(once, "    ")
        last = maps[repeat.end - period : repeat.end]
        for own, name in zip(repeat.carried, names, strict=True):
            self.inside.append(f"    {name} = {self.local[once[own]]}")
        self.local = outside
        for own, name in zip(repeat.carried, names, strict=True):
            self.local[last[own]] = name
            self._store(last[own], name)

    def _sum(self, node: Node, value: str) -> None:
        """Write a sum over axes, or the largest elements along axes that are not the last."""
        text, shape, index = self.text, self.shape, self.index
        axes = axes_of(node)
        keeps = node.parameters["keepdims"]
        kept = [k for k in range(len(shape)) if k not in axes]
        place = ["0" if k in axes else index[k] for k in range(len(shape)) if keeps or k in kept]
        total, kind = text.fresh("s"), kind_of(node)
        first = min(axes)
        if all(k < first for k in kept):  # the last axes
            start = "0" if node.dtype == INTEGER else "0.0"
            self.before.setdefault(first, []).append(f"{total} = {start}")
            self.inside.append(f"{total} += {value}")
            if not node.shape:
                if node.dtype == SINGLE:
                    self.after.setdefault(0, []).append(f"{total} = np.float32({total})")
                text.names[node] = total
                return
            array = text.fresh("z")
            made = text.empty(array, node.shape, kind)
            self.after.setdefault(first, []).append(f"{array}[{', '.join(place)}] = {total}")
        else:
            array = text.fresh("z")
            element = f"{array}[{', '.join(place)}]"
            if node.name == "top":
                kind = kind_of(node)
                made = f"{array} = np.full({text.shape(node.shape)}, -np.inf{kind})"
                before, new = text.fresh("m"), text.fresh("m")
                self.inside.append(f"{before} = {element}")
                self.inside.append(f"{new} = tg.stop_gradient({value})")
                self.inside.append(f"{element} = {new} if {new} > {before} else {before}")
            else:
                made = f"{array} = np.zeros({text.shape(node.shape)}{kind})"
                self.inside.append(f"{element} += {value}")
        self.before.setdefault(0, []).insert(0, made)
        text.names[node] = array

    def _load(self, node: Node, index: list[str], indent: str = "") -> str:
        """Return the text of an element of a value, in an iteration."""
        if node in self.local:
            return self.local[node]
        if node in self.states:
            element = f"{self.states[node]}[{', '.join(index)}]"
        else:
            element = self.text.element(node, index)
        if not element.endswith("]"):
            return element
        if element not in self._loads:
            name = self.text.fresh("e")
            self.inside.append(f"{indent}{name} = {element}")
            if indent:  # it is not known after the loop
                return name
            self._loads[element] = name
        return self._loads[element]


def _rounded(arg: Any) -> Any:
    """Return an argument, as float32 if it is a float of Python."""
    return float(np.float32(arg)) if type(arg) is float else arg
