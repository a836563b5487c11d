"""Programs as functions for numba: loops over elements, each for as many values as possible.

The values of a program are computed in *stages*. A stage has one loop nest for each shape; it
computes all values of this shape that need nothing but each other and what earlier stages have
stored, and adds up sums. A value is stored if a later stage reads it; others are local variables of
an iteration. Views are not stored: where one is read, the element of its base is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapegrad.eager.traced import Node, NotRecordedError
from tapegrad.ops.indexing import is_basic
from tapegrad.replay.forms import (
    Form,
    aligned,
    axes_of,
    check_dtype,
    form_of,
    kind_of,
    literal,
    number,
    place_in_base,
    place_of_item,
    public_name,
)
from tapegrad.replay.nests import Nest
from tapegrad.replay.program import Program
from tapegrad.replay.repeats import Repeat, longest_repeat

_LONGEST = 600  # lines of a program that is compiled: numba takes a while for each
_MOST_TERMS = 200_000  # of a contraction that is written as loops
_FEW = 96  # values that are compiled as they are, even if they repeat
_WIDE = 16  # elements from which on loops over them use vector instructions


class Writer:
    """Writes the function that computes a program.

    Parameters
    ----------
    program
        The program.

    Attributes
    ----------
    constants
        The arrays that are arguments after those of the program.
    text
        The function.
    nests
        How many loop nests it has.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.constants: list[np.ndarray] = []
        self.nests = 0
        self.names: dict[Node, str] = {}  # of arguments, stored arrays and numbers
        self._of_constants: dict[int, str] = {}
        self._lines: list[str] = []
        self._depth = 1
        self._extents: dict[int, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._count = 0
        for k, node in enumerate(program.inputs):
            self._enter(node, f"x{k}")
        for node in program.constants:
            self.names[node] = self._constant(node.example)
        for node in (*program.inputs, *program.constants, *program.nodes):
            check_dtype(node)
        self.forms = {node: form_of(node) for node in (*self.names, *program.nodes)}
        self.stage: dict[Node, int] = {}
        self.stored: set[Node] = set()  # values that are in arrays
        self._section(program.nodes, {*program.outputs})
        results = [self._array(node, fresh=True) for node in program.outputs]
        self.line(f"return {results[0] if len(results) == 1 else ', '.join(results)}")
        arguments = [f"x{k}" for k in range(len(program.inputs))]
        arguments += [f"c{k}" for k in range(len(self.constants))]
        head = f"def program({', '.join(arguments)}):"
        if len(self._lines) > _LONGEST:
            raise NotRecordedError(
                f"{len(self._lines)} lines of code would take long to compile; write the loop in "
                "a function for tapegrad.njit"
            )
        self.text = "\n".join([head, *self._lines]) + "\n"

    def _enter(self, node: Node, name: str) -> None:
        self.names[node] = name
        for axis, extent in enumerate(node.shape):
            self._extents.setdefault(extent, f"{name}.shape[{axis}]")

    def _constant(self, array: Any) -> str:
        """Return the text of a constant: an argument, or a number."""
        if array.ndim == 0 and array.dtype in (np.float64, np.int64, np.bool_):
            return number(array.item())
        name = self._of_constants.get(id(array))
        if name is None:
            name = self._of_constants[id(array)] = f"c{len(self.constants)}"
            self.constants.append(array)
        return name

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
        repeat = longest_repeat(nodes, needed) if len(nodes) > _FEW else None
        if repeat is None or repeat.length <= _FEW or self._is_one_nest(nodes, repeat):
            self._stages(nodes, needed)
            return
        first, once = nodes[: repeat.start], nodes[repeat.start :][: repeat.period]
        last, later = nodes[repeat.end - repeat.period : repeat.end], nodes[repeat.end :]
        before = [nodes[repeat.start - repeat.period + own] for own in repeat.carried]
        read = {arg for node in (*once, *later) for arg in node.inputs()}
        self._stages(first, (needed | read | {*before}) & {*first})
        states = [self.fresh("k") for _ in before]
        for state, node in zip(states, before, strict=True):
            self.line(f"{state} = {self._array(node)}")
        names = dict(self.names)
        with self._inside(f"for {self.fresh('i')} in range({repeat.count}):"):
            self.names |= dict(zip(before, states, strict=True))
            carried = [once[own] for own in repeat.carried]
            self._stages(once, {*carried})
            for state, node in zip(states, carried, strict=True):
                self.line(f"{state} = {self._array(node)}")
        self.names = names
        for own, state in zip(repeat.carried, states, strict=True):
            self.names[last[own]] = state
        self._stages(later, needed & {*later})

    def _is_one_nest(self, nodes: list[Node], repeat: Repeat) -> bool:
        """Whether one loop nest computes all values of a repeat."""
        once = nodes[repeat.start :][: repeat.period]
        return all(self.forms[n] is Form.MAP and n.shape == once[0].shape for n in once)

    def _stages(self, nodes: list[Node], needed: set[Node]) -> None:
        """Write what computes some values, stage by stage."""
        self._plan(nodes, needed)
        by_stage: dict[int, list[Node]] = {}
        for node in nodes:
            by_stage.setdefault(self.stage[node], []).append(node)
        for stage in sorted(by_stage):
            groups: dict[tuple[int, ...], list[Node]] = {}
            for node in by_stage[stage]:
                form = self.forms[node]
                if form is Form.VIEW:
                    if node.name == "reshape":
                        self._reshape(node)
                elif form is Form.ROWS:
                    self._rows(node)
                elif form is Form.CALL:
                    self._call(node)
                else:
                    over = node.args[0].shape if form is Form.SUM else node.shape
                    groups.setdefault(over, []).append(node)
            for shape, values in groups.items():
                self._nest(shape, values)

    def _plan(self, nodes: list[Node], needed: set[Node]) -> None:
        """Find the stage of every value, and which values are stored."""
        forms, own = self.forms, {*nodes}
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
            ready[node] = stage + (form in (Form.MAP, Form.SUM))
        self.stored |= {node for node in needed if forms[node] is Form.MAP}
        for user in nodes:
            for node in user.inputs():
                if node in own and forms[node] is Form.MAP:
                    if not self._reads_in_loop(user, node):
                        self.stored.add(node)

    def _joins(self, x: Node, node: Node) -> bool:
        """Whether a value may be computed by the loop that computes one that reads it."""
        return self.forms[x] is Form.MAP and x.shape == node.shape

    def _reads_in_loop(self, user: Node, node: Node) -> bool:
        form = self.forms[user]
        if form is Form.SUM:
            return self.stage[user] == self.stage[node]
        return form is Form.MAP and self._joins(node, user) and self.stage[user] == self.stage[node]

    # -- statements ---------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Write a line."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def _inside(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """Return a name that is not used."""
        self._count += 1
        return f"{stem}{self._count}"

    def _extent(self, extent: int) -> str:
        return self._extents.get(extent, str(extent))

    def shape(self, shape: tuple[int, ...]) -> str:
        """Return the text of the shape of a new array."""
        parts = [str(e) if e == 1 else self._extent(e) for e in shape]
        return f"({', '.join(parts)},)"

    def _nest(self, shape: tuple[int, ...], nodes: list[Node]) -> None:
        """Write the loops over a shape that compute some values."""
        maps = [node for node in nodes if self.forms[node] is Form.MAP]
        sums = [node for node in nodes if self.forms[node] is Form.SUM]
        needed = {*self.stored, *(node.args[0] for node in sums)}
        repeat = longest_repeat(maps, needed) if len(maps) > _FEW else None
        if repeat is None or repeat.length <= _FEW:
            Nest(self, shape).write(maps, sums)
        elif int(np.prod(shape)) < _WIDE or not self._has_stored_start(repeat, maps, shape):
            Nest(self, shape).write(maps, sums, repeat)
        else:
            self._steps(shape, maps, sums, repeat)

    def _has_stored_start(self, repeat: Repeat, maps: list[Node], shape: tuple[int, ...]) -> bool:
        return all(maps[k].dtype == np.float64 for k in range(repeat.start))

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
        before = [maps[repeat.start - repeat.period + own] for own in repeat.carried]
        self.stored |= {node for node in first if node in read or node in before}
        Nest(self, shape).write(first, [])
        states = []
        for node in before:
            state = self.fresh("k")
            self.line(f"{state} = {self.names[node]}.copy()")
            states.append(state)
        with self._inside(f"for {self.fresh('i')} in range({repeat.count}):"):
            step = Nest(self, shape)
            step.states = dict(zip(before, states, strict=True))
            step.changed = dict(zip((once[own] for own in repeat.carried), states, strict=True))
            step.write(once, [])
        last = maps[repeat.end - repeat.period : repeat.end]
        for own, state in zip(repeat.carried, states, strict=True):
            self.names[last[own]] = state
        Nest(self, shape).write(later, sums)

    def loops(
        self,
        shape: tuple[int, ...],
        index: list[str],
        depth: int,
        before: dict[int, list[str]],
        after: dict[int, list[str]],
        inside: list[str],
    ) -> None:
        """Write loops over a shape, with lines before, inside and after them."""
        if depth == len(shape):
            for line in inside:
                self.line(line)
            return
        for line in before.get(depth, ()) if depth else ():
            self.line(line)
        if shape[depth] == 1:
            self.loops(shape, index, depth + 1, before, after, inside)
        else:
            with self._inside(f"for {index[depth]} in range({self._extent(shape[depth])}):"):
                self.loops(shape, index, depth + 1, before, after, inside)
        for line in after.get(depth, ()):
            self.line(line)

    def element(self, node: Node, index: list[str]) -> str:
        """Return the text of an element of a stored value, or of a view of one."""
        if node in self.names:
            name = self.names[node]
            return f"{name}[{', '.join(index)}]" if node.shape else name
        if self.forms[node] is not Form.VIEW:
            raise AssertionError(f"{node.name} is read before it is computed")
        place = []
        for part in place_in_base(node, index):
            if isinstance(part, tuple):
                array, own = part
                part = f"{self._constant(self._kept(array))}[{', '.join(own)}]"
            place.append(part)
        return self.element(node.args[0], place)

    def _kept(self, array: np.ndarray) -> np.ndarray:
        """Return one array for equal constants."""
        for known in self.constants:
            if known.dtype == array.dtype and np.array_equal(known, array):
                return known
        return array

    # -- arrays -------------------------------------------------------------------------------

    def _array(self, node: Node, fresh: bool = False) -> str:
        """Return the name of an array with the elements of a value: a copy for a view.

        With `fresh`, it is no argument.
        """
        is_given = self.forms[node] is Form.GIVEN
        if node in self.names and not (fresh and (is_given or node.name == "reshape")):
            return self.names[node]
        if not node.shape:
            return self.element(node, [])
        copy = self.fresh("z")
        self.line(f"{copy} = np.empty({self.shape(node.shape)}{kind_of(node)})")
        index = [self.fresh("i") if extent != 1 else "0" for extent in node.shape]
        line = f"{copy}[{', '.join(index)}] = {self.element(node, index)}"
        self.loops(node.shape, index, 0, {}, {}, [line])
        if not fresh:
            self.names[node] = copy
        return copy

    def _reshape(self, node: Node) -> None:
        (x,) = node.args
        array = self._array(x)
        name = self.names[node] = self.fresh("r")
        if not x.shape:
            self.line(f"{name} = np.full({self.shape(node.shape)}, {array})")
        elif not node.shape:
            self.line(f"{name} = {array}[{', '.join('0' * len(x.shape))}]")
        else:
            self.line(f"{name} = {array}.reshape({self.shape(node.shape)})")

    def _rows(self, node: Node) -> None:
        """Write a reduction of rows: of the last axes of an array, or of a copy with these last."""
        (x,) = node.args
        axes = axes_of(node)
        kept = [k for k in range(len(x.shape)) if k not in axes]
        if 0 in x.shape:
            raise NotRecordedError(f"{node.name} of an empty array")
        if any(k > min(axes) for k in kept):
            array = self._permuted(x, [*kept, *axes])
        else:
            array = self._array(x)
        if not kept and not node.shape:
            self.names[node] = self._row(node, array)
            return
        index = [self.fresh("i") if x.shape[k] != 1 else "0" for k in kept]
        place = [index[kept.index(k)] if k in kept else "0" for k in range(len(x.shape))]
        if not node.parameters["keepdims"]:
            place = index
        result = self.names[node] = self.fresh("z")
        self.line(f"{result} = np.empty({self.shape(node.shape)})")
        depth = self._depth
        for k, name in zip(kept, index, strict=True):
            if name != "0":
                self.line(f"for {name} in range({self._extent(x.shape[k])}):")
                self._depth += 1
        row = f"{array}[{', '.join(index)}]" if index else array
        self.line(f"{result}[{', '.join(place)}] = {self._row(node, row)}")
        self._depth = depth

    def _permuted(self, x: Node, order: list[int]) -> str:
        """Write a copy of an array with its axes in another order; return its name."""
        copy = self.fresh("z")
        shape = tuple(x.shape[k] for k in order)
        self.line(f"{copy} = np.empty({self.shape(shape)})")
        index = [self.fresh("i") if extent != 1 else "0" for extent in shape]
        place = [index[order.index(k)] for k in range(len(order))]
        line = f"{copy}[{', '.join(index)}] = {self.element(x, place)}"
        self.loops(shape, index, 0, {}, {}, [line])
        return copy

    def _row(self, node: Node, row: str) -> str:
        """Write the reduction of a row; return the name of the result."""
        result = self.fresh("m")
        if node.name != "logsumexp":
            self.line(f"{result} = np.{node.name}({row})")
            return result
        top, total, element = self.fresh("m"), self.fresh("s"), self.fresh("e")
        flat = self.fresh("r")
        self.line(f"{flat} = {row}.reshape(-1)")
        self.line(f"{top} = tg.stop_gradient(np.max({flat}))")
        with self._inside(f"if not np.isfinite({top}):"):
            self.line(f"{top} = 0.0")
        self.line(f"{total} = 0.0")
        at = self.fresh("i")
        with self._inside(f"for {at} in range({flat}.shape[0]):"):
            self.line(f"{element} = {flat}[{at}]")
            self.line(f"{total} += np.exp({element} - {top})")
        self.line(f"{result} = np.log({total}) + {top}")
        return result

    def _call(self, node: Node) -> None:
        """Write a call of a function of arrays."""
        name = self.fresh("z")
        if node.name == "matmul":
            self._product(node, name)
        elif node.name == "concatenate":
            self._concatenation(node, name)
        elif node.name in ("embed", "put") and node.dtype == np.float64:
            self._assignment(node, name)
        elif node.name == "contract":
            self._contraction(node, name)
        elif node.name in ("argmax", "argmin") and len(node.args) == 1 and not node.parameters:
            self.line(f"{name} = np.{node.name}({self._array(node.args[0])})")
        else:
            args = [self._argument(arg) for arg in node.args]
            options = [f"{key}={literal(value)}" for key, value in node.parameters.items()]
            self.line(f"{name} = tg.{public_name(node)}({', '.join([*args, *options])})")
        self.names[node] = name

    def _argument(self, arg: Any) -> str:
        if isinstance(arg, Node):
            return self._array(arg)
        if type(arg) is list:
            raise NotRecordedError("a list of arrays as an argument")
        return literal(arg)

    def _product(self, node: Node, name: str) -> None:
        x, y = node.args
        if not (isinstance(x, Node) and isinstance(y, Node)) or node.dtype != np.float64:
            raise NotRecordedError("a product with something else than arrays of floats")
        if x.dtype != np.float64 or y.dtype != np.float64:
            raise NotRecordedError("a product of integers")
        left, right = self._array(x), self._array(y)
        if max(len(x.shape), len(y.shape)) <= 2:
            self.line(f"{name} = np.dot({left}, {right})")
            return
        if len(x.shape) == len(y.shape) == 3 and x.shape[0] == y.shape[0]:
            self.line(f"{name} = product_nn({left}, {right})")
            return
        if len(y.shape) == 2:  # all rows of the stack at once
            rows = " * ".join(map(self._extent, x.shape[:-1]))
            flat = f"{left}.reshape(({rows}, {self._extent(x.shape[-1])}))"
            self.line(f"{name} = np.dot({flat}, {right}).reshape({self.shape(node.shape)})")
            return
        has_vector = min(len(x.shape), len(y.shape)) < 2
        batch = node.shape[:-1] if has_vector else node.shape[:-2]
        index = [self.fresh("i") if extent != 1 else "0" for extent in batch]
        self.line(f"{name} = np.empty({self.shape(node.shape)})")
        parts = []
        for array, factor in ((left, x), (right, y)):
            own = ", ".join(aligned(factor.shape[:-2], index))
            parts.append(f"{array}[{own}]" if own else array)
        line = f"{name}[{', '.join(index)}] = np.dot({', '.join(parts)})"
        self.loops(batch, index, 0, {}, {}, [line])

    def _contraction(self, node: Node, name: str) -> None:
        """Write a sum of products over indices with names, in loops over all of them."""
        given, out = node.parameters["subscripts"].split("->")
        factors, terms = node.args[0], given.split(",")
        extents: dict[str, int] = dict.fromkeys(out, 1)
        for factor, term in zip(factors, terms, strict=True):
            if not isinstance(factor, Node) or factor.dtype != np.float64 or "." in term:
                raise NotRecordedError("a contraction of something else than arrays of floats")
            for i, extent in zip(term, factor.shape, strict=True):
                extents[i] = extents.get(i, 1) if extent == 1 else extent
        shape = tuple(extents.values())
        if int(np.prod(shape)) > _MOST_TERMS:
            raise NotRecordedError("a contraction of many terms, which has faster ways than loops")
        at = {i: self.fresh("i") if extent != 1 else "0" for i, extent in extents.items()}
        product = " * ".join(
            self.element(factor, aligned(factor.shape, [at[i] for i in term]))
            for factor, term in zip(factors, terms, strict=True)
        )
        index = list(at.values())
        target = f"{name}[{', '.join(index[: len(out)])}]" if out else name
        if out:
            self.line(f"{name} = np.empty({self.shape(node.shape)})")
        if len(out) == len(shape):
            self.loops(shape, index, 0, {}, {}, [f"{target} = {product}"])
            return
        total = self.fresh("s")
        if not out:
            self.line(f"{total} = 0.0")
        before, after = {len(out): [f"{total} = 0.0"]}, {len(out): [f"{target} = {total}"]}
        self.loops(shape, index, 0, before, after, [f"{total} += {product}"])

    def _assignment(self, node: Node, name: str) -> None:
        """Write an array of which some elements are those of another one."""
        parameters = node.parameters
        if node.name == "put":
            base, value = node.args
            index = parameters["index"]
            if not isinstance(base, Node) or not is_basic(index):
                raise NotRecordedError("an assignment at an index with arrays")
            shape = np.empty(base.shape)[index].shape
            self.line(f"{name} = {self._array(base)}.copy()")
        else:
            (value,) = node.args
            if parameters["shown"].name != "getitem":
                raise NotRecordedError(f"an array of which a {parameters['shown'].name} is given")
            index, shape = parameters["parameters"]["index"], value.shape
            self.line(f"{name} = np.zeros({self.shape(node.shape)})")
        at = [self.fresh("i") if extent != 1 else "0" for extent in shape]
        place = ", ".join(place_of_item(node.shape, index, at))
        is_number = not isinstance(value, Node)
        element = number(value) if is_number else self.element(value, aligned(value.shape, at))
        self.loops(shape, at, 0, {}, {}, [f"{name}[{place}] = {element}"])

    def _concatenation(self, node: Node, name: str) -> None:
        (parts,) = node.args
        axis = node.parameters["axis"]
        if axis is None:
            raise NotRecordedError("a concatenation of flattened arrays")
        axis %= len(node.shape)
        self.line(f"{name} = np.empty({self.shape(node.shape)})")
        start = 0
        for part in parts:
            if not isinstance(part, Node):
                raise NotRecordedError("a concatenation with something else than arrays")
            if part.dtype != node.dtype or node.dtype != np.float64:
                raise NotRecordedError("a concatenation of several dtypes")
            index = [self.fresh("i") if extent != 1 else "0" for extent in part.shape]
            place = list(index)
            if start:
                place[axis] = f"{start} + {index[axis]}"
            line = f"{name}[{', '.join(place)}] = {self.element(part, index)}"
            self.loops(part.shape, index, 0, {}, {}, [line])
            start += part.shape[axis]
