"""A function of numbers as one of lanes: of the items of a batch side by side.

The loop over the items is the innermost one, so compilers use vector instructions for it, in the
function and in its derivative. Loops of the function stay; what one part of the function hands to
another is an array with an element for each lane::

    def f(x, k, steps):             def f_in_lanes(x, k, steps, out_0):
        for _ in range(steps):          total, x_1_lanes = 0.0, np.empty(x.size)
            x -= k * np.sin(x)          for lane in range(x.size):
        return x                            x_1_lanes[lane] = x[lane]
                                        for _ in range(steps):
                                            for lane in range(x.size):
                                                x_1 = x_1_lanes[lane]
                                                x_1_lanes[lane] = x_1 - k[lane] * np.sin(x_1)
                                        ...

The results are written to arrays. The function returns the sum of the first ones, so that its
gradient consists of those of the items; for tangents it makes and returns the arrays. Loops, and
branches around loops, have to be the same for all items.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from tapegrad.transform.builder import Builder
from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.independence.sums import needed
from tapegrad.transform.nodes import counting, returned_of
from tapegrad.transform.syntax import PURE, has, items_of, nodes_in, text_of
from tapegrad.transform.trees import quoted, quoted_block

_MODULES = ("np", "math", "scalar_ops")


class NoLanesError(Exception):
    """The items cannot be computed side by side."""


class Lanes:
    """Writes a function in normal form as one of lanes.

    Parameters
    ----------
    tree
        The function.
    items
        Its parameters that differ between the items.
    fresh
        Returns a name that the function does not use.
    dtype_of
        Returns the name in NumPy of the dtype of a value.
    returns_arrays
        Whether the function returns arrays of float64 with the results, in place of a sum.

    Attributes
    ----------
    results
        The expressions of its results, names or constants.
    varying
        The names whose values differ between the items.
    """

    def __init__(
        self,
        tree: ast.FunctionDef,
        items: list[str],
        fresh: Callable[[str], str],
        dtype_of: Callable[[str], str],
        returns_arrays: bool = False,
    ) -> None:
        _check_calls(tree)
        self.returns_arrays = returns_arrays
        self.parameters = [parameter.arg for parameter in tree.args.args]
        self.results = _results(tree)
        self.varying = _varying(tree.body[:-1], set(items))
        self.lane, self.total = fresh("lane"), fresh("total")
        self.outputs = [fresh(f"out_{k}") for k in range(len(self.results))]
        self.loops: list[ast.For] = []  # over the lanes
        self.arrays = {name: fresh(f"{name}_items") for name in items}
        self.size = quoted("x.size", x=self.arrays[items[0]])
        body = [*self.block(tree.body[:-1]), self.loop(self._ends())]
        passed = set().union(*(needed(loop.body) for loop in self.loops)) & self.varying
        made = sorted(passed - set(items))
        self.arrays |= {name: fresh(f"{name}_lanes") for name in made}
        for loop in self.loops:
            self.complete(loop)
        self.builder = Builder()
        if not returns_arrays:
            self.builder.quote("total = 0.0", total=self.total)
        for name in made:
            array, kind = self.arrays[name], f"np.{dtype_of(name)}"
            self.builder.quote("x = np.empty(n, kind)", x=array, n=self.size, kind=kind)
        if returns_arrays:
            for out in self.outputs:
                self.builder.quote("x = np.empty(n)", x=out, n=self.size)
        self.builder.body += body
        self.builder.result(returned_of(self.outputs if returns_arrays else [self.total]))

    def text(self, name: str) -> str:
        """Return the function as text; it ends with arrays for the results, or returns them."""
        arguments = [self.arrays.get(n, n) for n in self.parameters]
        arguments += [] if self.returns_arrays else self.outputs
        return ast.unparse(self.builder.function(name, arguments)) + "\n"

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a block, those that vary in loops over the lanes."""
        found: list[ast.stmt] = []
        group: list[ast.stmt] = []
        for node in body:
            if _is_of_lanes(node, self.varying):
                group.append(node)
                continue
            if group and not _may_precede(node, group):
                found.append(self.loop(group))
                group = []
            for field in ("body", "orelse"):
                if getattr(node, field, None):
                    setattr(node, field, self.block(getattr(node, field)))
            found.append(node)
        return [*found, self.loop(group)] if group else found

    def loop(self, group: list[ast.stmt]) -> ast.stmt:
        """Return a loop over the lanes of some statements."""
        found = counting(self.lane, quoted("range(n)", n=self.size))
        found.body = group
        self.loops.append(found)
        return found

    def complete(self, loop: ast.For) -> None:
        """Let a loop read what others have computed, and keep what others read."""
        read = sorted(needed(loop.body) & self.arrays.keys())
        kept = [n for n in assigned(loop.body) if n in self.arrays]
        loop.body = [
            *(statement for n in read for statement in self._moved("y = x[k]", n)),
            *loop.body,
            *(statement for n in kept for statement in self._moved("x[k] = y", n)),
        ]

    def _moved(self, template: str, name: str) -> list[ast.stmt]:
        """Return what reads or keeps a number of this lane."""
        return quoted_block(template, y=name, x=self.arrays[name], k=self.lane)

    def _ends(self) -> list[ast.stmt]:
        """Return the statements that store the results."""
        store = "out[k] = y" if self.returns_arrays else "out[k] = stop_gradient(y)"
        builder = Builder()
        for out, result in zip(self.outputs, self.results, strict=True):
            builder.quote(store, out=out, k=self.lane, y=result)
        if not self.returns_arrays:
            builder.quote("total = total + y", total=self.total, y=self.results[0])
        return builder.body


def _results(tree: ast.FunctionDef) -> list[ast.Name | ast.Constant]:
    """Return the results of a function."""
    *body, end = tree.body
    if any(has(part, ast.Return) for part in body):
        raise NoLanesError("several returns")
    given = items_of(end.value) if isinstance(end, ast.Return) and end.value else []
    found = [leaf for leaf in given if isinstance(leaf, (ast.Name, ast.Constant))]
    if not found or len(found) < len(given):
        raise NoLanesError("a result that is not a number or a tuple of numbers")
    return found


def _varying(body: list[ast.stmt], items: set[str]) -> set[str]:
    """Return the names whose values differ between the items."""
    found = set(items)
    while True:
        before = len(found)
        _note(body, found, is_apart=False)
        if len(found) == before:
            return found


def _note(body: list[ast.stmt], found: set[str], is_apart: bool) -> None:
    """Add the names that a block assigns and that vary; `is_apart`: only some items reach it."""
    for node in body:
        match node:
            case ast.If(test, then, orelse):
                inside = is_apart or bool(used(test) & found)
                _note(then, found, inside)
                _note(orelse, found, inside)
            case ast.For(_, over, inner) | ast.While(over, inner):
                if is_apart or used(over) & found:
                    raise NoLanesError("a loop that differs between the items")
                _note(inner, found, is_apart=False)
            case ast.Assign(_, value) if not _is_store(node):
                if is_apart or used(value) & found:
                    found.update(assigned([node]))
            case ast.Expr():
                raise NoLanesError("an effect")
            case ast.Pass():
                pass
            case _ if is_apart or used(node) & found:
                raise NoLanesError("a jump or a store that differs between the items")


def _check_calls(tree: ast.FunctionDef) -> None:
    """Refuse calls of functions that may draw random numbers or have other effects."""
    for call in nodes_in(tree, ast.Call):
        module, _, name = text_of(call.func).rpartition(".")
        if module not in _MODULES and (module or name not in PURE):
            raise NoLanesError(f"a call of {text_of(call.func)}")


def _is_store(node: ast.Assign) -> bool:
    """Whether a statement writes to an element of an array."""
    return any(has(target, ast.Subscript) for target in node.targets)


def _may_precede(node: ast.stmt, group: list[ast.stmt]) -> bool:
    """Whether a statement that does not vary can stand before some that do."""
    if not isinstance(node, ast.Assign) or _is_store(node):
        return False
    return not set(assigned([node])) & set(assigned(group)).union(*map(used, group))


def _is_of_lanes(node: ast.stmt, varying: set[str]) -> bool:
    """Whether a statement computes something for each lane, without loops."""
    if isinstance(node, ast.If):
        return bool(used(node.test) & varying)
    return isinstance(node, ast.Assign) and bool(set(assigned([node])) & varying)
