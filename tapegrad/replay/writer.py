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
    expression,
    form_of,
    literal,
    number,
    place_in_base,
    place_of_item,
    public_name,
)
from tapegrad.replay.program import Program


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
    loops
        How many loop nests it has.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.constants: list[np.ndarray] = []
        self.loops = 0
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
        self._plan()
        self._write()
        arguments = [f"x{k}" for k in range(len(program.inputs))]
        arguments += [f"c{k}" for k in range(len(self.constants))]
        head = f"def program({', '.join(arguments)}):"
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

    # -- the plan -----------------------------------------------------------------------------

    def _plan(self) -> None:
        """Find the stage of every value, and which values are stored."""
        self.stage: dict[Node, int] = {}
        ready: dict[Node, int] = {}  # the first stage that can read it
        forms = self.forms = {node: form_of(node) for node in self.program.nodes}
        given = (*self.program.inputs, *self.program.constants)
        forms |= dict.fromkeys(given, Form.GIVEN)
        ready |= dict.fromkeys(given, 0)
        for node in self.program.nodes:
            form = forms[node]
            if form is Form.MAP:
                self.stage[node] = max(
                    [self.stage[i] if self._joins(i, node) else ready[i] for i in node.inputs()],
                    default=0,
                )
                ready[node] = self.stage[node] + (node.shape != ())
                if node.shape == ():
                    ready[node] = self.stage[node] + 1
            elif form is Form.SUM:
                (x,) = node.args
                self.stage[node] = self.stage[x] if forms[x] is Form.MAP and x.shape else ready[x]
                ready[node] = self.stage[node] + 1
            elif form is Form.VIEW:
                ready[node] = self.stage[node] = max(ready[i] for i in node.inputs())
            else:
                ready[node] = self.stage[node] = max([ready[i] for i in node.inputs()], default=0)
        self.stored: set[Node] = {node for node in self.program.outputs if forms[node] is Form.MAP}
        for node, users in self.program.users().items():
            if forms[node] is Form.MAP:
                if any(not self._reads_in_loop(user, node) for user in users):
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

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def _inside(self, head: str) -> Iterator[None]:
        self._line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _extent(self, extent: int) -> str:
        return self._extents.get(extent, str(extent))

    def _shape(self, shape: tuple[int, ...]) -> str:
        parts = [str(e) if e == 1 else self._extent(e) for e in shape]
        return f"({', '.join(parts)},)"

    def _write(self) -> None:
        by_stage: dict[int, list[Node]] = {}
        for node in self.program.nodes:
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
            for shape, nodes in groups.items():
                self._nest(shape, nodes)
        results = [self._array(node, fresh=True) for node in self.program.outputs]
        self._line(f"return {results[0] if len(results) == 1 else ', '.join(results)}")

    def _nest(self, shape: tuple[int, ...], nodes: list[Node]) -> None:
        """Write the loops over a shape that compute some values."""
        index = [self._fresh("i") if extent != 1 else "0" for extent in shape]
        before: dict[int, list[str]] = {}  # lines before the loops at some depth
        after: dict[int, list[str]] = {}
        inside: list[str] = []
        local: dict[Node, str] = {}
        loads: dict[Any, str] = {}
        last: list[str] = []
        for node in nodes:
            if self.forms[node] is Form.SUM:
                value = self._load(node.args[0], index, local, loads, inside)
                self._sum(node, shape, index, value, before, after, last)
                continue
            args = [
                self._load(arg, aligned(arg.shape, index), local, loads, inside)
                if isinstance(arg, Node)
                else number(arg)
                for arg in node.args
            ]
            name = local[node] = self._fresh("v")
            inside.append(f"{name} = {expression(node, args)}")
            if not shape:
                self.names[node] = name
            elif node in self.stored:
                array = self.names[node] = self._fresh("z")
                kind = "" if node.dtype == np.float64 else f", np.{node.dtype.name}"
                before.setdefault(0, []).append(f"{array} = np.empty({self._shape(shape)}{kind})")
                inside.append(f"{array}[{', '.join(index)}] = {name}")
        if not shape:
            for line in (*inside, *last):
                self._line(line)
            return
        self.loops += 1
        for line in before.get(0, ()):
            self._line(line)
        self._loops(shape, index, 0, before, after, [*inside, *last])

    def _loops(
        self,
        shape: tuple[int, ...],
        index: list[str],
        depth: int,
        before: dict[int, list[str]],
        after: dict[int, list[str]],
        inside: list[str],
    ) -> None:
        if depth == len(shape):
            for line in inside:
                self._line(line)
            return
        for line in before.get(depth, ()) if depth else ():
            self._line(line)
        if shape[depth] == 1:
            self._loops(shape, index, depth + 1, before, after, inside)
        else:
            with self._inside(f"for {index[depth]} in range({self._extent(shape[depth])}):"):
                self._loops(shape, index, depth + 1, before, after, inside)
        for line in after.get(depth, ()):
            self._line(line)

    def _sum(
        self,
        node: Node,
        shape: tuple[int, ...],
        index: list[str],
        value: str,
        before: dict[int, list[str]],
        after: dict[int, list[str]],
        last: list[str],
    ) -> None:
        """Write a sum over axes of a loop nest."""
        axes = axes_of(node)
        keeps = node.parameters["keepdims"]
        kept = [k for k in range(len(shape)) if k not in axes]
        place = ["0" if k in axes else index[k] for k in range(len(shape)) if keeps or k in kept]
        total = self._fresh("s")
        first = min(axes, default=0)
        if not axes:
            if shape:
                raise NotRecordedError("a sum over no axes")
            last.append(f"{total} = {value}")
            self.names[node] = total
            return
        if all(k < first for k in kept):  # the last axes
            before.setdefault(first, []).append(f"{total} = 0.0")
            last.append(f"{total} += {value}")
            if not node.shape:
                self.names[node] = total
                return
            array = self._fresh("z")
            before.setdefault(0, []).insert(0, f"{array} = np.empty({self._shape(node.shape)})")
            after.setdefault(first, []).append(f"{array}[{', '.join(place)}] = {total}")
        else:
            array = self._fresh("z")
            before.setdefault(0, []).insert(0, f"{array} = np.zeros({self._shape(node.shape)})")
            last.append(f"{array}[{', '.join(place)}] += {value}")
        self.names[node] = array

    def _load(
        self,
        node: Node,
        index: list[str],
        local: dict[Node, str],
        loads: dict[Any, str],
        inside: list[str],
    ) -> str:
        """Return the text of an element of a value, in the iteration of a loop nest."""
        if node in local:
            return local[node]
        text = self._element(node, index)
        if not text.endswith("]"):
            return text
        if text not in loads:
            loads[text] = self._fresh("e")
            inside.append(f"{loads[text]} = {text}")
        return loads[text]

    def _element(self, node: Node, index: list[str]) -> str:
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
        return self._element(node.args[0], place)

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
            return self._element(node, [])
        copy = self._fresh("z")
        kind = "" if node.dtype == np.float64 else f", np.{node.dtype.name}"
        self._line(f"{copy} = np.empty({self._shape(node.shape)}{kind})")
        index = [self._fresh("i") if extent != 1 else "0" for extent in node.shape]
        line = f"{copy}[{', '.join(index)}] = {self._element(node, index)}"
        self._loops(node.shape, index, 0, {}, {}, [line])
        if not fresh:
            self.names[node] = copy
        return copy

    def _reshape(self, node: Node) -> None:
        (x,) = node.args
        array = self._array(x)
        name = self.names[node] = self._fresh("r")
        if not x.shape:
            self._line(f"{name} = np.full({self._shape(node.shape)}, {array})")
        elif not node.shape:
            self._line(f"{name} = {array}[{', '.join('0' * len(x.shape))}]")
        else:
            self._line(f"{name} = {array}.reshape({self._shape(node.shape)})")

    def _rows(self, node: Node) -> None:
        """Write a reduction of rows: of the last axes of an array, or of a copy with these last."""
        (x,) = node.args
        axes = axes_of(node)
        kept = [k for k in range(len(x.shape)) if k not in axes]
        if not axes:
            self._call(node)
            return
        if any(k > min(axes) for k in kept):
            array = self._permuted(x, [*kept, *axes])
        else:
            array = self._array(x)
        if not kept and not node.shape:
            self.names[node] = self._row(node, array)
            return
        index = [self._fresh("i") if x.shape[k] != 1 else "0" for k in kept]
        place = [index[kept.index(k)] if k in kept else "0" for k in range(len(x.shape))]
        if not node.parameters["keepdims"]:
            place = index
        result = self.names[node] = self._fresh("z")
        self._line(f"{result} = np.empty({self._shape(node.shape)})")
        depth = self._depth
        for k, name in zip(kept, index, strict=True):
            if name != "0":
                self._line(f"for {name} in range({self._extent(x.shape[k])}):")
                self._depth += 1
        row = f"{array}[{', '.join(index)}]" if index else array
        self._line(f"{result}[{', '.join(place)}] = {self._row(node, row)}")
        self._depth = depth

    def _permuted(self, x: Node, order: list[int]) -> str:
        """Write a copy of an array with its axes in another order; return its name."""
        copy = self._fresh("z")
        shape = tuple(x.shape[k] for k in order)
        self._line(f"{copy} = np.empty({self._shape(shape)})")
        index = [self._fresh("i") if extent != 1 else "0" for extent in shape]
        place = [index[order.index(k)] for k in range(len(order))]
        line = f"{copy}[{', '.join(index)}] = {self._element(x, place)}"
        self._loops(shape, index, 0, {}, {}, [line])
        return copy

    def _row(self, node: Node, row: str) -> str:
        """Write the reduction of a row; return the name of the result."""
        result = self._fresh("m")
        if node.name != "logsumexp":
            self._line(f"{result} = np.{node.name}({row})")
            return result
        top, total, element = self._fresh("m"), self._fresh("s"), self._fresh("e")
        flat = self._fresh("r")
        self._line(f"{flat} = {row}.reshape(-1)")
        self._line(f"{top} = tg.stop_gradient(np.max({flat}))")
        with self._inside(f"if not np.isfinite({top}):"):
            self._line(f"{top} = 0.0")
        self._line(f"{total} = 0.0")
        at = self._fresh("i")
        with self._inside(f"for {at} in range({flat}.shape[0]):"):
            self._line(f"{element} = {flat}[{at}]")
            self._line(f"{total} += np.exp({element} - {top})")
        self._line(f"{result} = np.log({total}) + {top}")
        return result

    def _call(self, node: Node) -> None:
        """Write a call of a function of arrays."""
        name = self._fresh("z")
        if node.name == "matmul":
            self._product(node, name)
        elif node.name == "concatenate":
            self._concatenation(node, name)
        elif node.name in ("embed", "put") and node.dtype == np.float64:
            self._assignment(node, name)
        elif node.name == "contract":
            arrays = ", ".join(map(self._array, node.args[0]))
            self._line(f"{name} = tg.einsum({literal(node.parameters['subscripts'])}, {arrays})")
        elif node.name in ("argmax", "argmin") and len(node.args) == 1 and not node.parameters:
            self._line(f"{name} = np.{node.name}({self._array(node.args[0])})")
        else:
            args = [self._argument(arg) for arg in node.args]
            options = [f"{key}={literal(value)}" for key, value in node.parameters.items()]
            self._line(f"{name} = tg.{public_name(node)}({', '.join([*args, *options])})")
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
            self._line(f"{name} = np.dot({left}, {right})")
            return
        has_vector = min(len(x.shape), len(y.shape)) < 2
        batch = node.shape[:-1] if has_vector else node.shape[:-2]
        index = [self._fresh("i") if extent != 1 else "0" for extent in batch]
        self._line(f"{name} = np.empty({self._shape(node.shape)})")
        parts = []
        for array, factor in ((left, x), (right, y)):
            own = ", ".join(aligned(factor.shape[:-2], index))
            parts.append(f"{array}[{own}]" if own else array)
        line = f"{name}[{', '.join(index)}] = np.dot({', '.join(parts)})"
        self._loops(batch, index, 0, {}, {}, [line])

    def _assignment(self, node: Node, name: str) -> None:
        """Write an array of which some elements are those of another one."""
        parameters = node.parameters
        if node.name == "put":
            base, value = node.args
            index = parameters["index"]
            if not isinstance(base, Node) or not is_basic(index):
                raise NotRecordedError("an assignment at an index with arrays")
            shape = np.empty(base.shape)[index].shape
            self._line(f"{name} = {self._array(base)}.copy()")
        else:
            (value,) = node.args
            if parameters["shown"].name != "getitem":
                raise NotRecordedError(f"an array of which a {parameters['shown'].name} is given")
            index, shape = parameters["parameters"]["index"], value.shape
            self._line(f"{name} = np.zeros({self._shape(node.shape)})")
        at = [self._fresh("i") if extent != 1 else "0" for extent in shape]
        place = ", ".join(place_of_item(node.shape, index, at))
        is_number = not isinstance(value, Node)
        element = number(value) if is_number else self._element(value, aligned(value.shape, at))
        self._loops(shape, at, 0, {}, {}, [f"{name}[{place}] = {element}"])

    def _concatenation(self, node: Node, name: str) -> None:
        (parts,) = node.args
        axis = node.parameters["axis"]
        if axis is None:
            raise NotRecordedError("a concatenation of flattened arrays")
        axis %= len(node.shape)
        self._line(f"{name} = np.empty({self._shape(node.shape)})")
        start = 0
        for part in parts:
            if not isinstance(part, Node):
                raise NotRecordedError("a concatenation with something else than arrays")
            if part.dtype != node.dtype or node.dtype != np.float64:
                raise NotRecordedError("a concatenation of several dtypes")
            index = [self._fresh("i") if extent != 1 else "0" for extent in part.shape]
            place = list(index)
            if start:
                place[axis] = f"{start} + {index[axis]}"
            line = f"{name}[{', '.join(place)}] = {self._element(part, index)}"
            self._loops(part.shape, index, 0, {}, {}, [line])
            start += part.shape[axis]
