"""Functions that rearrange the elements of arrays, as views where numba returns views."""

from __future__ import annotations

import ast
import copy
from typing import Any

from tapegrad.transform.ir import Let, name, names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.rules.array_specs import (
    FUNCTIONS,
    PARAMETERS,
    SPECS,
    Request,
    declare,
    derivative,
    understands,
)
from tapegrad.transform.rules.base import Rule, Step, real_names
from tapegrad.transform.rules.generators import ForwardCode, Lowerer, ReverseCode
from tapegrad.transform.rules.numpy_functions.additions import add_element, add_to
from tapegrad.transform.rules.shown import ShownApart
from tapegrad.transform.rules.whole import Whole

declare("flatten", "a", holomorphic=True, linear=("a",), value="a.flatten()")
declare("item", "a", linear=("a",), value="a.item()")
declare(
    *("broadcast", "x", "shape"),
    calls=False,
    holomorphic=True,
    linear=("x",),
    value="np.broadcast_to(x, shape).copy()",
)
declare(
    *("take", "a", "index"),
    steps=("index",),
    calls=False,
    chooses=True,
    holomorphic=True,
    linear=("a",),
)


def view_of(name: str, array: str, *others: str) -> None:
    """Declare a function that returns a view of its first argument."""
    PARAMETERS[name] = array, *others
    FUNCTIONS[name] = lambda request: request.view(request.operands.get(array))


view_of("expand_dims", "a", "axis")
view_of("fliplr", "m")
view_of("flipud", "m")
view_of("moveaxis", "a", "source", "destination")
view_of("rot90", "m", "k")
view_of("swapaxes", "a", "axis1", "axis2")
view_of("transpose", "a", "axes")


@understands("flip")
def _(call: Request, m: Any) -> Any:
    return call.view(m) if call.ndim(m) else None  # numba copies an array without axes


@understands("imag")
def _(call: Request, val: Any) -> Any:
    return None if call.ndim(val) else Step(False)  # of an array, zeros are made


@understands("asarray_chkfinite", "real")
def _(call: Request, a: Any) -> Any:
    return call.view(a) if is_array(call.type(a)) else call.linear(a)


@understands("atleast_1d", "atleast_2d", "atleast_3d")
def _(call: Request, a: Any) -> Any:
    # a number becomes a new array
    return call.view(a) if call.ndim(a) and call.is_whole else None


@understands("reshape")
def _(call: Request, a: Any, shape: Any) -> Any:
    if not call.ndim(a):
        return None
    if call.type(a).layout == "C":
        return call.view(a)
    raise call.refuse("reshape of an array that is not contiguous; make a copy first")


@understands("ravel")
def _(call: Request, a: Any) -> Any:
    if not call.ndim(a):
        return None
    if call.type(a).layout == "C":
        return call.view(a)
    return call.written_as("a.flatten()", a, call.whole("flatten"))


@derivative
def flatten_vjp_a(a_bar, g):
    a_bar += g.reshape(a_bar.shape)


@derivative
def item_vjp_a(a_bar, g):
    a_bar += g


class Broadcast(ShownApart, Whole):
    """``np.broadcast_to``: a read-only view with a separate shadow.

    Several of its elements may be one element of the array, so its shadow cannot be a view.
    """

    made_by = "np.broadcast_to"
    instead = "add np.zeros(shape) to it where it is made"

    def __init__(self, array: ast.expr, shape: ast.expr, lowering: Lowerer) -> None:
        super().__init__(SPECS["broadcast"], {"x": array, "shape": shape}, True, lowering)
        self.shown = names_in(array)


@understands("broadcast_to")
def _(call: Request, array: Any, shape: Any) -> Any:
    if not call.ndim(array):
        return None
    return Broadcast(array, shape, call.lowering)


@derivative
def broadcast_vjp_x(x_bar, g):
    add_to(x_bar, g)


# -- copies in another order -----------------------------------------------------------------------


class Rearrangement(Rule):
    """A function that only rearranges elements of arrays, numbers and zeros.

    Applying it to the numbers of the elements shows where they go.
    """

    fresh = True

    def __init__(self, call: Request, elements: list[ast.expr], part: bool = False) -> None:
        self.expr = call.expr
        self.is_passing = not part
        self.types = call.lowering.types
        self.elements = elements
        self._inputs = list(dict.fromkeys(real_names(elements, call.lowering)))

    def contents(self, let: Let) -> list[str]:
        return [n for n in names_in(let.expr) if n not in self._inputs]  # positions, counts

    def replaced(self, convert: Any) -> ast.expr:
        """Return the call with the atoms that provide elements replaced."""
        elements = self.elements

        class Replace(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> Any:
                found = next((e for e in elements if e is node), None)
                return self.generic_visit(node) if found is None else convert(found)

        # the copy shares these atoms, which are found by identity
        memo = {id(element): element for element in elements}
        return Replace().visit(copy.deepcopy(self.expr, memo))

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        for target in self._inputs:
            if not gen.is_active(target):
                continue

            def numbered(atom: ast.expr, target: str = target) -> ast.expr:
                if isinstance(atom, ast.Name) and is_array(self.types.get(atom.id)):
                    function = "numbered" if atom.id == target else "unnumbered"
                    return ast.Call(name(f"arrays.{function}"), [atom], [])
                same = isinstance(atom, ast.Name) and atom.id == target
                return ast.Constant(1 if same else 0)

            numbers = self.read(self.replaced(numbered))
            gen.read(numbers)
            g = gen.shadow(let.target)
            if is_array(self.types[target]):
                bar = gen.shadow(target)
                gen.line(ast.Call(name("arrays.scatter_numbered"), [bar, numbers, g], []))
            else:
                found = ast.Call(name("arrays.sum_numbered"), [numbers, g], [])
                gen.add(target, found, ast.Constant(1.0), numbers)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        def tangent(atom: ast.expr) -> ast.expr:
            if isinstance(atom, ast.Name) and is_array(self.types.get(atom.id)):
                if not self.is_input(atom):
                    shape = ast.Attribute(atom, "shape", ast.Load())
                    return ast.Call(name("np.zeros"), [shape], [])
            return gen.tangent(atom) if self.is_input(atom) else ast.Constant(0.0)

        gen.set_handle(let.target, self.replaced(tangent))


def _elements(*operands: Any) -> list[ast.expr]:
    """Return the atoms that provide elements, including those in tuples."""
    found: list[ast.expr] = []
    for operand in operands:
        if isinstance(operand, (ast.Tuple, ast.List)):
            found += _elements(*operand.elts)
        elif operand is not None:
            found.append(operand)
    return found


@understands("append")
def _(call: Request, arr: Any, values: Any, axis: Any) -> Any:
    return Rearrangement(call, _elements(arr, values))


@understands("concatenate", "stack")
def _(call: Request, arrays: Any, axis: Any) -> Any:
    return Rearrangement(call, _elements(arrays)) if isinstance(arrays, ast.Tuple) else None


@understands("hstack", "vstack", "row_stack", "dstack", "column_stack")
def _(call: Request, tup: Any) -> Any:
    return Rearrangement(call, _elements(tup)) if isinstance(tup, ast.Tuple) else None


@understands("roll")
def _(call: Request, a: Any, shift: Any) -> Any:
    return Rearrangement(call, [a])


@understands("repeat")
def _(call: Request, a: Any, repeats: Any) -> Any:
    return Rearrangement(call, [a], part=True) if call.ndim(a) else None


@understands("delete")
def _(call: Request, arr: Any, obj: Any) -> Any:
    return Rearrangement(call, [arr], part=True)


@understands("tril", "triu")
def _(call: Request, m: Any, k: Any) -> Any:
    return Rearrangement(call, [m], part=True)


@understands("take")
def _(call: Request, a: Any, indices: Any) -> Any:
    return (
        Rearrangement(call, [a], part=True)
        if call.is_whole
        else call.whole("take", a=a, index=indices)
    )


@derivative
def take_vjp_a(a_bar, index, g):
    add_element(a_bar, index, g)


@understands("diagflat")
def _(call: Request, v: Any, k: Any) -> Any:
    return Rearrangement(call, [v]) if call.ndim(v) else None


@understands("extract")
def _(call: Request, condition: Any, arr: Any) -> Any:
    return Rearrangement(call, [arr], part=True) if isinstance(condition, ast.Name) else None


@understands("insert")
def _(call: Request, arr: Any, obj: Any, values: Any) -> Any:
    return Rearrangement(call, _elements(arr, values))


@understands("take_along_axis")
def _(call: Request, arr: Any, indices: Any, axis: Any) -> Any:
    return Rearrangement(call, [arr], part=True)


@understands("select")
def _(call: Request, condlist: Any, choicelist: Any, default: Any) -> Any:
    if not isinstance(choicelist, ast.Tuple):
        return None
    return Rearrangement(call, _elements(choicelist, default), part=True)
