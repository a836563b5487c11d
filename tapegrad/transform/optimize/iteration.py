"""One iteration of a loop, written again so that compilers vectorize it.

It writes to variables and to the places of the block only: elements of arrays that it writes are
variables, sums start at 0, and what would be an error is noted in a variable.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from numba.core import types

from tapegrad.transform import vector_math
from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.plan import Plan
from tapegrad.transform.independence.uses import UnprovedError
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.elements import Element, Elements, gives_several
from tapegrad.transform.optimize.indices import assigned_again
from tapegrad.transform.syntax import (
    array_of,
    binding,
    callee_of,
    copied,
    has,
    leaves,
    name_of,
    nodes_in,
    text_of,
)
from tapegrad.transform.trees import qualified_call, quoted

FLOAT, SINGLE, INTEGER, BOOLEAN = "float", "float32", "integer", "boolean"
_CONSTANTS = frozenset(["e", "inf", "nan", "pi"])
_RENAMED = {"pow": "pow", "power": "pow"}
_TESTS = frozenset(["isfinite", "isinf", "isnan"])
RUNTIME = frozenset(
    f"runtime.{name}" for name in ("inverse", "moved", "nonzero", "product", "settled")
)
# compilers vectorize these: the result is of the kind that is given, of that of the arguments ...
_PLAIN = {
    "abs": None,
    "float": FLOAT,
    "max": None,
    "min": None,
    "np.float32": SINGLE,
    "np.float64": FLOAT,
    **dict.fromkeys(RUNTIME, FLOAT),
    **dict.fromkeys(f"np.{name}" for name in ("fmax", "fmin", "maximum", "minimum", "sign")),
}
_OF_FLOATS = frozenset(  # ... or a float, also of integers
    f"{module}.{name}"
    for module, names in (
        ("np", ("ceil", "copysign", "degrees", "floor", "radians", "rint", "trunc")),
        ("math", ("copysign", "degrees", "radians")),
    )
    for name in names
)
_MAGNITUDES = frozenset(["abs", "absolute", "fabs"])


@dataclass(frozen=True)
class Gathered:
    """An element that is read into a place of the block before."""

    element: Element
    place: int


class Iteration:
    """The code of one iteration.

    Parameters
    ----------
    plan
        The proof that iterations are independent.
    facts
        What is known of the function.
    rows
        The names of parts of the tape.
    raises
        Whether divisions by zero raise errors.
    decides_twice
        Whether another loop finds the conditions again, and has to find the same.
    helper
        Returns the name of a function that vectorizes for that of a function, "" if there is none.
    fresh
        Returns a variant of a name that the function does not use.
    block
        The name of the array with the places of a block.
    """

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        rows: set[str],
        raises: bool,
        decides_twice: bool,
        helper: Callable[[str], str],
        fresh: Callable[[str], str],
        block: str,
    ) -> None:
        self.plan = plan
        self.facts = facts
        self.raises = raises
        self.decides_twice = decides_twice
        self._rounded: set[str] = set()  # numbers that the C library rounds in another way
        self.helper = helper
        self.fresh = fresh
        self.elements = Elements(plan, facts, rows, raises)
        self.lane = fresh("lane")
        self.block = block
        self.failed = fresh("failed")
        self.gathered: dict[tuple[str, Hashable], Gathered] = {}
        self.places = 0
        self.work = 0  # how much there is to gain
        self.terms = {name: fresh(f"{name}_term") for name in plan.sums}
        self._kinds: dict[str, str] = {plan.target: INTEGER}
        self._flags: list[str] = []
        self._lines: list[list[ast.stmt]] = [[]]
        for element in self.elements.found.values():
            if element.array in self.elements.written:
                if self.elements.kind(element.array).dtype not in (types.float64, types.float32):
                    raise UnprovedError(f"of the type of `{element.array}`")
                element.local = fresh(f"{element.array}_element")
        starts = [_assign(term, self._zero(plan.sums[n])) for n, term in self.terms.items()]
        starts += self._start_elements()
        self._block(plan.loop.body)
        self.body = [*starts, *(_assign(n, ast.Constant(False)) for n in self._flags)]
        self.body += self._lines.pop()

    def _zero(self, kind: Any) -> ast.expr:
        if isinstance(kind, types.Integer):
            return ast.Constant(0)
        if kind != types.float64:
            raise UnprovedError(f"a sum is of type {kind}")
        return ast.Constant(0.0)

    @property
    def flags(self) -> list[str]:
        """The variables that say whether something is an error."""
        return self._flags

    def only_addition(self, element: Element) -> str:
        """Return the name of the only number that is added to an element, "" if it is not that.

        Names of the same number are the same.
        """
        if element.array not in self.elements.added or not element.is_certain:
            return ""
        uses = [node for node in self.body if element.local in assigned([node])]
        match [node for node in uses if not isinstance(node, ast.Assign)]:
            case [ast.AugAssign(_, ast.Add(), ast.Name(id=name))]:
                pass
            case _:
                return ""
        changing = assigned_again(self.body)
        bindings = filter(None, map(binding, self.body))
        copies = {copy: source for copy, value in bindings if (source := name_of(value))}
        while name in copies and name not in changing and copies[name] not in changing:
            name = copies[name]
        return "" if name in changing else name

    def place(self) -> int:
        """Return the first place of a new row of the block."""
        self.places += 1
        return (self.places - 1) * sizes.stride() + sizes.MARGIN

    def at(self, place: int) -> ast.expr:
        """Return a number of this iteration in the block."""
        template = "block[runtime.index(lane + place)]"
        return quoted(template, block=self.block, lane=self.lane, place=place)

    # -- elements of arrays -------------------------------------------------------------------

    def _start_elements(self) -> list[ast.stmt]:
        """Return the statements that give variables for elements their first values."""
        found: list[ast.stmt] = []
        for element in self.elements.found.values():
            if not element.local:
                continue
            if element.array in self.elements.added:
                found.append(_assign(element.local, ast.Constant(0.0)))
            elif element.first != ("store", True):
                found.append(_assign(element.local, self._load(element)))
        return found

    def _load(self, element: Element) -> ast.expr:
        """Return the expression that reads an element which every iteration uses."""
        if element.position is None and not element.is_fixed:
            if self.needed_for([element]) is None:
                raise UnprovedError("an index depends on what is computed")
            if (element.array, element.key) not in self.gathered:
                gathered = Gathered(element, self.place())
                self.gathered[element.array, element.key] = gathered
            place = self.gathered[element.array, element.key].place
            found = self.at(place)
            return _as_single(found, FLOAT) if self._is_single(element) else found
        return element.expr()

    def _is_single(self, element: Element) -> bool:
        """Whether an element is of an array of float32."""
        return bool(self.elements.kind(element.array).dtype == types.float32)

    def needed_for(self, elements: list[Element]) -> list[ast.stmt] | None:
        """Return the statements of the loop that indices depend on; None if they are not found.

        They read no array that is written.
        """
        wanted = set[str]().union(*(used(part) for e in elements for part in e.index))
        if wanted & self.elements.written:
            return None
        found: list[ast.stmt] = []
        for node in reversed(self.plan.loop.body):
            made = set(assigned([node])) & wanted
            if not made:
                continue
            if made & self.elements.indices.changing:
                return None
            bound = binding(node)
            if bound is None or used(bound[1]) & (self.elements.written | set(self.plan.sums)):
                return None
            found.insert(0, node)
            wanted = (wanted - made) | used(bound[1])
        return found

    # -- statements ---------------------------------------------------------------------------

    def _write(self, node: ast.stmt) -> None:
        self._lines[-1].append(node)

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                self._if(node)
            case ast.Assign():
                self._set(node)
            case ast.AugAssign():
                self._augment(node)
            case ast.Raise():
                self._write(_assign(self._flag(), ast.Constant(True)))

    def _set(self, node: ast.Assign) -> None:
        value, kind = self._expression(node.value)
        if self._is_rounded(node.value):
            self._rounded |= set(assigned([node]))
        match node.targets[0]:
            case ast.Subscript() as target:
                element = self.elements.at(target)
                is_always = len(self._lines) == 1
                element.last = value if isinstance(value, ast.Constant) and is_always else None
                stored = self._is_single(element) and element.array not in self.elements.added
                made = _as_single(value, kind) if stored else _as_float(value, kind)
                self._write(_assign(element.local, made))
            case ast.Name(id=name):
                self._bind(name, kind)
                self._write(_assign(self.terms.get(name, name), value))
            case target:
                assert gives_several(node)  # of a helper, which returns floats
                for name in map(text_of, leaves(target)):
                    if name in self.terms:
                        raise UnprovedError(f"of `{text_of(node)}`")
                    self._bind(name, FLOAT)
                self._write(ast.Assign([target], value, lineno=0))

    def _augment(self, node: ast.AugAssign) -> None:
        value, kind = self._expression(node.value)
        if self._is_rounded(node.value):
            self._rounded |= set(assigned([node]))
        match node:
            case ast.AugAssign(ast.Subscript() as target):
                element = self.elements.at(target)
                element.last = None
                name = element.local
            case ast.AugAssign(ast.Name(id=number), ast.Add() | ast.Sub() | ast.Mult()):
                name = self.terms.get(number, number)
                self._bind(number, _joined(self._kind_of(number), kind))
            case _:
                raise UnprovedError(f"of `{text_of(node)}`")
        self._write(ast.AugAssign(ast.Name(name, ast.Store()), node.op, value))

    def _if(self, node: ast.If) -> None:
        test, _ = self._expression(node.test)
        if self.decides_twice and self._is_rounded(node.test):
            # of values that are kept on one side of a branch, the other loop would read others
            raise UnprovedError("another loop has to find the same condition")
        blocks = []
        for body in (node.body, node.orelse):
            self._lines.append([])
            self._block(body)
            blocks.append(self._lines.pop())
        then, otherwise = blocks
        self._write(ast.If(test, then or [ast.Pass()], otherwise))

    def _is_rounded(self, node: ast.AST) -> bool:
        """Whether an expression depends on a function that the C library rounds in another way."""
        callees = (call.func for call in nodes_in(node, ast.Call))
        return bool(used(node) & self._rounded) or any(map(self._may_round, callees))

    def _may_round(self, function: ast.expr) -> bool:
        module, _, name = text_of(function).rpartition(".")
        if module:
            return module == "scalar_ops" or (name in vector_math.ARGUMENTS and name != "sqrt")
        return bool(self.helper(name))

    def _flag(self) -> str:
        """Return a new variable for an error of this iteration."""
        self._flags.append(self.fresh("is_error"))
        return self._flags[-1]

    def _note_error(self, condition: ast.expr) -> None:
        self._write(_assign(self._flag(), condition))

    def _bind(self, name: str, kind: str) -> None:
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            self._kinds[name] = _joined(known, kind)

    # -- expressions --------------------------------------------------------------------------

    def _kind_of(self, name: str) -> str:
        """Return whether a number is a float, an integer or a boolean."""
        if name in self._kinds:
            return self._kinds[name]
        if name in self.plan.sums:
            return FLOAT if self.plan.sums[name] == types.float64 else INTEGER
        return _kind(self.facts.kind(name), name)

    def _expression(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Return an expression for this iteration, and what kind of number it is."""
        match node:
            case ast.Constant():
                return node, _kind_of_constant(node)
            case ast.Name(id=name):
                return ast.Name(self.terms.get(name, name), ast.Load()), self._kind_of(name)
            case ast.UnaryOp(op, operand):
                value, kind = self._expression(operand)
                return ast.UnaryOp(op, value), BOOLEAN if isinstance(op, ast.Not) else kind
            case ast.BinOp():
                return self._binary(node)
            case ast.Compare(left, ops, right):
                first, *others = (self._expression(part)[0] for part in (left, *right))
                return ast.Compare(first, ops, others), BOOLEAN
            case ast.BoolOp(op, values):
                operands = [self._expression(part) for part in values]
                if all(kind == BOOLEAN for _, kind in operands) and _is_plain(node):
                    sign = ast.BitAnd() if isinstance(op, ast.And) else ast.BitOr()
                    parts = (operand for operand, _ in operands)
                    return functools.reduce(lambda x, y: ast.BinOp(x, sign, y), parts), BOOLEAN
            case ast.IfExp(test, body, orelse) if _is_plain(node):
                test, _ = self._expression(test)
                (one, kind), (other, second) = map(self._expression, (body, orelse))
                return ast.IfExp(test, one, other), _joined(kind, second)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
        raise UnprovedError(f"of `{text_of(node)}`")

    def _binary(self, node: ast.BinOp) -> tuple[ast.expr, str]:
        left, left_kind = self._expression(node.left)
        right, right_kind = self._expression(node.right)
        kind = _joined(left_kind, right_kind)
        found = ast.BinOp(left, node.op, right)
        match node.op, right:
            case ((ast.Add() | ast.Sub() | ast.Mult()), _):
                return found, kind
            case ast.Div(), _:
                self.work += 2
                is_single = left_kind == right_kind == SINGLE
                if not self.raises or (isinstance(right, ast.Constant) and right.value):
                    return found, SINGLE if is_single else FLOAT
                if is_single:
                    raise UnprovedError(f"of the type of `{text_of(node)}`")
                if not isinstance(right, ast.Name):
                    right = self._named("divisor", right)
                self._note_error(quoted("x == 0", x=right))
                return qualified_call("runtime.quotient", left, right), FLOAT
            case ast.Pow(), ast.Constant(int()) if SINGLE not in (left_kind, right_kind):
                return found, kind
            case ast.Pow(), _ if right_kind == FLOAT and left_kind != SINGLE:
                self.work += 4
                return _power(left, right), FLOAT
            case ((ast.BitAnd() | ast.BitOr()), _) if kind == BOOLEAN:
                return found, kind
        raise UnprovedError(f"of `{text_of(node)}`")

    def _named(self, stem: str, value: ast.expr) -> ast.Name:
        """Return a new variable with a value."""
        name = self.fresh(stem)
        self._write(_assign(name, value))
        return ast.Name(name, ast.Load())

    def _subscript(self, node: ast.Subscript) -> tuple[ast.expr, str]:
        if not array_of(node):
            return self._attribute(node)
        element = self.elements.at(node)
        kind = _kind(self.elements.kind(element.array).dtype, element.array)
        if element.local:
            return ast.Name(element.local, ast.Load()), kind
        if kind in (FLOAT, SINGLE) and element.is_certain and not element.is_fixed:
            if element.position is not None or self.needed_for([element]) is not None:
                return self._load(element), kind
        return copied(node), kind

    def _attribute(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Return a constant of a module, or a part of the shape of an array."""
        match node:
            case ast.Attribute(ast.Name(id="np" | "math"), attribute) if attribute in _CONSTANTS:
                return node, FLOAT
            case ast.Attribute(ast.Name(), "size" | "ndim"):
                return node, INTEGER
            case ast.Subscript(ast.Attribute(_, "shape"), ast.Constant()):
                return node, INTEGER
        raise UnprovedError(f"of `{text_of(node)}`")

    def _call(self, node: ast.Call) -> tuple[ast.expr, str]:
        text = text_of(node.func)
        if node.keywords:
            raise UnprovedError(f"of `{text_of(node)}`")
        if text == "len":
            return node, INTEGER
        parts = [self._expression(argument) for argument in node.args]
        values, kinds = [value for value, _ in parts], [kind for _, kind in parts]
        module, _, name = text.rpartition(".")
        if text == "runtime.matters":
            return ast.Compare(values[0], [ast.NotEq()], [ast.Constant(0.0)]), BOOLEAN
        self.work += 2 * (text == "runtime.inverse")
        if text in _PLAIN:
            return ast.Call(node.func, values, []), _PLAIN[text] or _joined(*kinds)
        if text in _OF_FLOATS:
            kind = SINGLE if set(kinds) == {SINGLE} else FLOAT
            return ast.Call(node.func, values, []), kind
        if text == "np.divide" and SINGLE not in kinds:
            self.work += 2
            return qualified_call("runtime.quotient", *values), FLOAT
        if module in ("np", "math") and name in _MAGNITUDES:
            if name == "fabs" and SINGLE not in kinds:
                values, kinds = [_as_float(v, kind) for v, kind in parts], [FLOAT]
            return qualified_call("abs", *values), _joined(*kinds)
        if module in ("np", "math") and name in _TESTS:
            return ast.Call(node.func, values, []), BOOLEAN
        if text == "np.power" and (FLOAT not in kinds or SINGLE in kinds):
            raise UnprovedError(f"of `{text_of(node)}`")
        if module in ("np", "math", "scalar_ops"):
            name = _RENAMED.get(name, name)
            if vector_math.ARGUMENTS.get(name) == len(values):
                if SINGLE in kinds and name == "pow":
                    raise UnprovedError(f"of `{text_of(node)}`")
                self.work += 4
                values = [_as_float(v, kind) for v, kind in parts]
                if name in vector_math.SINES:
                    values = [self._named("angle", values[0])]
                    limit = vector_math.LIMIT
                    self._note_error(quoted("abs(x) > limit", x=values[0], limit=limit))
                if name == "pow":
                    return _power(*values), FLOAT
                found = qualified_call(f"vector_math.{name}", *values)
                is_single = kinds == [SINGLE] and module != "scalar_ops"
                return (_as_single(found, FLOAT), SINGLE) if is_single else (found, FLOAT)
        if not module and SINGLE not in kinds and (helper := self.helper(text)):
            self.work += 4
            return qualified_call(helper, *values), FLOAT
        raise UnprovedError(f"of the call of `{text}`")


def _is_plain(node: ast.expr) -> bool:
    """Whether all parts of an expression may be evaluated although some are not used."""
    plain = _PLAIN.keys() | _OF_FLOATS
    is_known = all(callee_of(call) in plain for call in nodes_in(node, ast.Call))
    return is_known and not has(node, ast.Subscript)


def _joined(*kinds: str) -> str:
    """Return the kind of a number that is computed from others."""
    if FLOAT in kinds or (SINGLE in kinds and INTEGER in kinds):
        return FLOAT
    if SINGLE in kinds:
        if BOOLEAN in kinds:
            raise UnprovedError("a float32 and a boolean are added")
        return SINGLE
    return INTEGER if INTEGER in kinds else BOOLEAN


def _kind(kind: Any, name: str) -> str:
    kind = types.unliteral(kind) if kind is not None else None
    if kind == types.float64:
        return FLOAT
    if kind == types.float32:
        return SINGLE
    if isinstance(kind, types.Boolean):
        return BOOLEAN
    if isinstance(kind, types.Integer):
        return INTEGER
    raise UnprovedError(f"`{name}` is of type {kind}")


def _kind_of_constant(node: ast.Constant) -> str:
    found = {float: FLOAT, int: INTEGER, bool: BOOLEAN}.get(type(node.value))
    if found is None:
        raise UnprovedError(f"of `{text_of(node)}`")
    return found


def _as_float(value: ast.expr, kind: str) -> ast.expr:
    if kind == FLOAT:
        return value
    if isinstance(value, ast.Constant):
        number: Any = value.value
        return ast.Constant(float(number))
    return qualified_call("float", value)


def _as_single(value: ast.expr, kind: str) -> ast.expr:
    return value if kind == SINGLE else qualified_call("np.float32", value)


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)


def _power(base: ast.expr, exponent: ast.expr) -> ast.expr:
    """Return the expression of a power: of products and roots, where a constant allows it."""
    try:
        number = float(ast.literal_eval(exponent))
    except ValueError:  # no constant
        number = math.nan
    if abs(number) <= vector_math.MOST_FACTORS:
        if number >= 1.0 and number.is_integer():
            return ast.BinOp(base, ast.Pow(), ast.Constant(int(number)))
        if (number - 0.5).is_integer():
            return qualified_call("vector_math.half_power", base, ast.Constant(int(number - 0.5)))
    return qualified_call("vector_math.pow", base, exponent)
