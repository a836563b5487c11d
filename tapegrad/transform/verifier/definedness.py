"""Every name that is read is defined on every path to it.

Loops may run zero times, and branches may be taken or not. A name defined in a branch is defined
wherever the same variable is tested again with the same outcome, as in reverse code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tapegrad.transform.verifier.code import Code, assigned, condition, is_endless, reads, targets

Fact = tuple[str, bool]  # a variable, and whether it is true
Guard = frozenset[Fact]  # facts that all hold
_ALWAYS: Guard = frozenset()


class State:
    """What is known at a point of the code.

    Attributes
    ----------
    names
        For every name, the guards that each imply that it is defined.
    facts
        The values of variables that are known from tests on the path.
    """

    def __init__(self, names: dict[str, frozenset[Guard]], facts: Guard) -> None:
        self.names = names
        self.facts = facts

    def copy(self) -> State:
        return State(dict(self.names), self.facts)

    def is_defined(self, name: str) -> bool:
        return any(guard <= self.facts for guard in self.names.get(name, ()))

    def assign(self, name: str) -> None:
        """Define a name, and forget what was known of its value."""
        self.forget([name])
        self.names[name] = frozenset([_ALWAYS])

    def forget(self, changed: Iterable[str]) -> None:
        """Forget what is known of the values of variables."""
        gone = set(changed)
        if any(name in gone for name, _ in self.facts):
            self.facts = frozenset(fact for fact in self.facts if fact[0] not in gone)
        for name, guards in self.names.items():
            if guards != {_ALWAYS}:
                self.names[name] = frozenset(
                    guard for guard in guards if not any(one in gone for one, _ in guard)
                )

    def after_test(self, fact: Fact | None) -> State:
        """Return the state after a test that implies a fact."""
        found = self.copy()
        if fact is not None:
            found.facts |= {fact}
        return found


def meet(one: State | None, other: State | None, tested: Fact | None = None) -> State | None:
    """Return what holds where two paths meet; None stands for an unreachable path.

    With `tested`, the first path is taken if this fact holds, otherwise the second.
    """
    if one is None or other is None:
        return one or other
    names = {}
    for name in one.names.keys() | other.names.keys():
        ours, theirs = one.names.get(name, frozenset()), other.names.get(name, frozenset())
        if ours == theirs:
            names[name] = ours
            continue
        found = {guard | more for guard in ours for more in theirs}
        if tested is not None:
            opposite = (tested[0], not tested[1])
            if tested in one.facts:  # not assigned on the first path
                ours = frozenset(guard - {tested} for guard in ours)
                found |= {guard | {opposite} for guard in theirs}
            if opposite in other.facts:
                theirs = frozenset(guard - {opposite} for guard in theirs)
                found |= {guard | {tested} for guard in ours}
            found |= {guard | more for guard in ours for more in theirs}
        names[name] = _smallest(found)
    return State(names, one.facts & other.facts)


def _smallest(guards: set[Guard]) -> frozenset[Guard]:
    """Drop guards that never hold, and those that others make redundant."""
    possible = [
        guard for guard in guards if not any((name, not value) in guard for name, value in guard)
    ]
    return frozenset(g for g in possible if not any(other < g for other in possible))


class Definedness:
    """The pass over one function.

    Parameters
    ----------
    code
        The function.
    known
        The global names of its module.
    """

    def __init__(self, code: Code, known: set[str]) -> None:
        self.code = code
        self.known = known
        self.breaks: list[State | None] = []  # where the innermost loop is left

    def run(self) -> None:
        """Raise an error if a name may be read before it is defined."""
        names = {name: frozenset([_ALWAYS]) for name in self.code.parameters}
        end = self.block(self.code.body, State(names, _ALWAYS))
        if end is not None:
            raise self.code.wrong("the function ends without a return", self.code.body[-1])

    def block(self, body: list[ast.stmt], state: State | None) -> State | None:
        """Return the state after a block; None if its end is not reached."""
        for statement in body:
            if state is None:
                raise self.code.wrong("a statement that is never reached", statement)
            state = self.statement(statement, state)
        return state

    def statement(self, statement: ast.stmt, state: State) -> State | None:
        for node in reads(statement):
            if node.id in self.code.locals:
                if not state.is_defined(node.id):
                    what = f"{node.id} is read where it may not be defined"
                    raise self.code.wrong(what, node)
            elif node.id not in self.known:
                raise self.code.wrong(f"{node.id} is defined nowhere", node)
        match statement:
            case ast.If():
                return self.branch(statement, state)
            case ast.For() | ast.While():
                return self.loop(statement, state)
            case ast.Try():
                return self.attempt(statement, state)
            case ast.Break():
                self.breaks[-1] = meet(self.breaks[-1], state)
                return None
            case ast.Return() | ast.Raise():
                return None
        for name in targets(statement):
            state.assign(name)
        return state

    def branch(self, statement: ast.If, state: State) -> State | None:
        fact = condition(statement.test)
        opposite = None if fact is None else (fact[0], not fact[1])
        then = self.block(statement.body, state.after_test(fact))
        orelse = self.block(statement.orelse, state.after_test(opposite))
        return meet(then, orelse, fact)

    def attempt(self, statement: ast.Try, state: State) -> State | None:
        """Follow statements that may end anywhere, and then those that handle the error."""
        ended = state.copy()
        ended.forget(assigned(statement.body))
        found = self.block(statement.body, state)
        for handler in statement.handlers:
            found = meet(found, self.block(handler.body, ended.copy()))
        return found

    def loop(self, statement: ast.For | ast.While, state: State) -> State | None:
        state.forget(assigned([statement]))
        start = state.copy()
        if isinstance(statement, ast.For):
            for name in targets(statement):
                start.assign(name)
        self.breaks.append(None)
        self.block(statement.body, start)
        left = self.breaks.pop()
        if isinstance(statement, ast.While) and is_endless(statement):
            return left
        return meet(state, left)
