"""The reverse of a running minimum begins at the iteration that changed it last.

The cotangent of a running minimum passes unchanged through all iterations that kept the minimum::

    for k in range(n):                      for k in range(n - 1, -1, -1):
        least_2 = min(least_1, x)               x_bar = least_bar if x < least_1 else 0.0
        least_1 = least_2                       least_bar = least_bar if least_1 < x else 0.0

To find the iteration that has it, the reverse loop would compare again, and the processor cannot
predict which comparison is the last. So the forward loop notes the last iteration in which the
cotangent would not pass unchanged, which takes no branch, and the reverse loop begins there. The
same holds for maxima, and for values that a branch replaces::

    if x < least:
        least = x
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Hashable
from typing import Any

from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.frontend.source import MATTERS
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.plan import range_of
from tapegrad.transform.nodes import integer, opposite
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.zeros import is_cotangent, is_pure, names_read, vanishes
from tapegrad.transform.syntax import arguments_of, blocks_in, callee_of, key_of, text_of
from tapegrad.transform.trees import quoted, quoted_block

_ZERO, _ONE = ast.Constant(0.0), ast.Constant(1.0)


def begin_at_last_changes(function: Function) -> bool:
    """Let reverse loops begin where a value last changed; return whether there are any.

    Loops over one cotangent end where that is 0 already (`zeros.end_early`). Those that run in
    blocks stay as they are.
    """
    found = False
    facts, fresh, blocked = function.facts, function.fresh, function.blocked
    for body in blocks_in(function.tree.body):
        loops = [node for node in body if isinstance(node, ast.For) and id(node) not in blocked]
        for guard in [*body]:
            if (guarded := _guarded(guard)) is None:
                continue
            bar, reverse = guarded
            for forward in loops:
                if body.index(forward) < body.index(guard) and _is_reverse(forward, reverse):
                    found |= _begin_later(body, forward, bar, reverse, facts, fresh)
    return found


def _guarded(guard: ast.stmt) -> tuple[str, ast.For] | None:
    """Return a cotangent, and the loop that a branch contains, which ends when that is 0."""
    match guard:
        case ast.If(test, [ast.For(body=[*_, ast.If(body=[ast.Break(), *_])]) as loop], []):
            match arguments_of(test, MATTERS):
                case [ast.Name(id=bar)]:
                    return bar, loop
    return None


def _is_reverse(forward: ast.For, reverse: ast.For) -> bool:
    """Whether two loops have the same iterations, in opposite order."""
    if key_of(forward.target) != key_of(reverse.target):
        return False
    over, back = forward.iter, reverse.iter
    given = arguments_of(over, "range")
    if given is None or callee_of(back) != "range":
        return False
    (start, stop, _), (first, last, down) = range_of(over), range_of(back)
    low = integer(start)
    if len(given) > 2 or low is None or low < 0:
        return False
    is_last = key_of(first) == key_of(quoted("high - 1", high=stop))
    return is_last and (integer(last), integer(down)) == (low - 1, -1)


def _begin_later(
    body: list[ast.stmt],
    forward: ast.For,
    bar: str,
    reverse: ast.For,
    facts: Facts,
    fresh: Callable[[str], str],
) -> bool:
    test = _Passing(bar, facts).changes(reverse.body[:-1])
    place = None if test is None else _place(forward, test)
    if test is None or place is None:
        return False
    assert isinstance(reverse.iter, ast.Call)
    index = text_of(forward.target)
    last = fresh(f"last_{index}")
    note = quoted_block("if test:\n    last = k", test=test, last=last, k=index)
    forward.body[place:place] = note
    start = quoted_block("last = first", last=last, first=reverse.iter.args[1])
    body[body.index(forward) : body.index(forward)] = start
    reverse.iter.args[0] = ast.Name(last, ast.Load())
    return True


def _place(forward: ast.For, test: ast.expr) -> int | None:
    """Return the place in a forward loop where a test has the values of the iteration.

    Names that go from one iteration to the next still have to have their old values there.
    """
    place, until = 0, len(forward.body)
    for name in names_read(test):
        at = [k for k, node in enumerate(forward.body) if name in assigned([node])]
        if not at:
            continue
        is_carried = any(names_read(node)[name] for node in forward.body[: at[0]])
        if is_carried:
            until = min(until, at[0])
        elif len(at) == 1:
            place = max(place, at[0] + 1)
        else:
            return None
    return place if place <= until else None


def _differs(factor: ast.expr, value: float) -> ast.expr:
    """Return a test, without branches, for a factor that is not equal to a number."""
    match factor:
        case ast.IfExp(test, body, other):
            then, orelse = _differs(body, value), _differs(other, value)
        case _:
            assert isinstance(factor, ast.Constant)
            return ast.Constant(factor.value != value)
    if key_of(then) == key_of(orelse):
        return then
    sides = []
    for chosen, differs in ((test, then), (opposite(test), orelse)):
        if not isinstance(differs, ast.Constant):
            sides.append(quoted("chosen & differs", chosen=chosen, differs=differs))
        elif differs.value:
            sides.append(chosen)
    return _any(sides)


def _any(tests: list[ast.expr]) -> ast.expr:
    """Return the tests with ``|`` between them."""
    return functools.reduce(lambda one, other: ast.BinOp(one, ast.BitOr(), other), tests)


def _scaled(factor: ast.expr, by: Any) -> ast.expr:
    match factor:
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, _scaled(body, by), _scaled(orelse, by))
    assert isinstance(factor, ast.Constant)
    return ast.Constant(by * factor.value)


class _Passing:
    """Finds the iterations of a reverse loop in which a cotangent passes and nothing else happens.

    Cotangents that follow from it by selections alone have a factor: their value if `bar` was 1
    before the iteration. An iteration does nothing else if the factors of those that it uses are 0.

    Parameters
    ----------
    bar
        The cotangent.
    facts
        What is known of the names of the function.
    """

    def __init__(self, bar: str, facts: Facts) -> None:
        self.bar, self.facts = bar, facts
        self.factors: dict[str, ast.expr] = {bar: _ONE}
        self.used: dict[Hashable, ast.expr] = {}  # the factors that have to be 0, by their keys
        self.vanishing: set[str] = set()  # cotangents that are 0 then

    def changes(self, body: list[ast.stmt]) -> ast.expr | None:
        """Return the test for iterations that do anything else, None if it is not known."""
        if not all(map(self.statement, body)):
            return None
        passed = self.factors[self.bar]
        if not all(isinstance(factor, ast.IfExp) for factor in (passed, *self.used.values())):
            return None
        parts = [_differs(passed, 1.0), *(_differs(factor, 0.0) for factor in self.used.values())]
        return _any(parts)

    def statement(self, node: ast.stmt) -> bool:
        """Follow a statement; return whether it is known what it does."""
        match node:
            case ast.Assign([ast.Name(id=name)], value):
                return self.assign(name, value)
            case ast.AugAssign(target, (ast.Add() | ast.Sub()) as op, value):
                return self.add(text_of(target), op, value)
            case ast.If():
                return self.skip(node) or self.branch(node)
            case ast.For(body=body):
                before = dict(self.factors)
                return all(map(self.statement, body)) and self.factors == before
        return False

    def assign(self, target: str, value: ast.expr) -> bool:
        """Follow an assignment to a name."""
        factor = self.factor(value)
        is_new = target in self.factors or is_cotangent(ast.Name(target), self.facts)
        if factor is not None and is_new:
            self.factors[target] = factor
            self.vanishing.discard(target)
            return True
        if not names_read(value).keys() & {*self.factors, *self.vanishing}:  # of the primal
            return target not in self.factors and is_pure(value)
        self.factors.pop(target, None)
        self.vanishing.add(target)
        return target != self.bar and self.has_to_vanish(value)

    def add(self, name: str, op: ast.operator, value: ast.expr) -> bool:
        """Follow an addition to what has a name, or to something else."""
        if name not in self.factors:
            return self.has_to_vanish(value)
        factor = self.factor(value)
        if self.factors[name] is not _ZERO or factor is None or isinstance(op, ast.Sub):
            return False
        self.factors[name] = factor
        return True

    def skip(self, node: ast.If) -> bool:
        """Follow a branch that is skipped if a cotangent is 0."""
        given = arguments_of(node.test, MATTERS)
        if given is None:
            return False
        inside = set(assigned([*node.body, *node.orelse]))
        self.vanishing |= {name for name in inside if is_cotangent(ast.Name(name), self.facts)}
        return not inside & self.factors.keys() and self.has_to_vanish(given[0])

    def branch(self, node: ast.If) -> bool:
        """Follow both sides of a branch."""
        if names_read(node.test).keys() & {*self.factors, *self.vanishing}:
            return False
        before, vanishing = dict(self.factors), set(self.vanishing)
        ends = []
        for block in (node.body, node.orelse):
            self.factors, self.vanishing = dict(before), set(vanishing)
            if not all(map(self.statement, block)):
                return False
            ends.append((self.factors, self.vanishing))
        (then, then_zero), (orelse, orelse_zero) = ends
        self.vanishing = then_zero & orelse_zero
        self.factors = {}
        for name in then.keys() & orelse.keys():
            is_same = then[name] is orelse[name]
            self.factors[name] = (
                then[name] if is_same else ast.IfExp(node.test, then[name], orelse[name])
            )
        return self.bar in self.factors

    def factor(self, value: ast.expr) -> ast.expr | None:
        """Return the factor of an expression, None for other expressions."""
        match value:
            case ast.Name(id=name):
                return self.factors.get(name)
            case ast.Constant(0.0):
                return _ZERO
            case ast.IfExp(test, body, orelse):
                then, other = self.factor(body), self.factor(orelse)
                return None if then is None or other is None else ast.IfExp(test, then, other)
            case ast.BinOp(left, ast.Mult(), ast.Constant(number)):
                factor = self.factor(left)
                return None if factor is None else _scaled(factor, number)
        return None

    def has_to_vanish(self, value: ast.expr) -> bool:
        """Note that an expression has to be 0; return whether it can be."""
        names = names_read(value).keys() & self.factors.keys()
        self.used |= {key_of(self.factors[n]): self.factors[n] for n in names}
        return vanishes(value, self.vanishing | names)
