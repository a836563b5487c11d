"""Values of all steps of a loop, which are rows of one array."""

from __future__ import annotations

from typing import Any

from tapegrad.eager.nodes import Node
from tapegrad.ops.table.op import TABLE
from tapegrad.replay.lowering import of


def item_of(stack: Node, step: int) -> Node:
    """Return the value of a step."""
    shape = stack.shape[1:]
    return Node("getitem", of(shape, stack.dtype), (stack,), {"index": step}, TABLE["getitem"])


def joined(node: Node, made: list[Node]) -> list[Any]:
    """Return the parts of a concatenation, with slices of a stack in place of rows of it.

    Values that this needs are added to some.
    """
    parts = node.args[0]
    if node.parameters.get("axis") != 0:
        return list(parts)
    found: list[Any] = []
    rows = [*map(_row, parts)]
    at = 0
    while at < len(parts):
        end, row = at + 1, rows[at]
        if row is not None:
            (stack, first), by = row, 1
            for way in (1, -1):
                last = at + 1
                while last < len(parts) and rows[last] == (stack, first + way * (last - at)):
                    last += 1
                if last > end:
                    end, by = last, way
        found.append(parts[at] if end == at + 1 else _slice(stack, first, end - at, by, made))
        at = end
    return found


def _slice(stack: Node, first: int, count: int, by: int, made: list[Node]) -> Node:
    """Return so many rows of a stack, from one on; add the value if it is another one."""
    if (first, count, by) == (0, stack.shape[0], 1):
        return stack
    end = first + by * count
    index = slice(first, None if end < 0 else end, by)
    like = of((count, *stack.shape[1:]), stack.dtype)
    made.append(Node("getitem", like, (stack,), {"index": index}, TABLE["getitem"]))
    return made[-1]


def _row(part: Any) -> tuple[Node, int] | None:
    """Return the stack and the number of the row that a value is, with an axis of length 1."""
    if not isinstance(part, Node) or part.name not in ("reshape", "getitem"):
        return None
    item = part.args[0]
    if item.name != "getitem" or item.args[0].name != "item":
        return None
    stack, index = item.args[0], item.parameters["index"]
    if type(index) is not int or part.shape != (1, *stack.shape[1:]):
        return None
    if part.name == "getitem" and part.parameters["index"] not in (None, (None,)):
        return None
    return stack, index
