"""Every value that reverse code reads equals that of the forward code, and the tape is in order.

The pass numbers values: equal operations on equal values have equal numbers. Reads of elements
depend on the version of the array's contents, which changes with every statement that may write
them. A recomputed value has its original number if it is computed in the same way from the same
values, and no element that it reads was written since. A popped value has the number of the pushed
one (`tape`). Loops of reverse code reverse those of the forward code; inside, numbers are those of
the same iteration.

The two halves may be one function, or two functions.
"""

from __future__ import annotations

import ast

from tapegrad.transform.nodes import is_number
from tapegrad.transform.syntax import leaves
from tapegrad.transform.verifier import tape as of_tape
from tapegrad.transform.verifier.adjoint import compare
from tapegrad.transform.verifier.code import (
    Code,
    called,
    condition,
    is_in,
    name_of,
    names_in,
    pairs_in,
    returned_by,
    walk,
)
from tapegrad.transform.verifier.cotangents import TAPE
from tapegrad.transform.verifier.keeping import Keeping
from tapegrad.transform.verifier.memory import shape_only
from tapegrad.transform.verifier.numbering import Needs, Numbering, Place, State
from tapegrad.transform.verifier.purpose import Half
from tapegrad.transform.verifier.reversed_calls import ReversedCalls
from tapegrad.transform.verifier.summary import Summary
from tapegrad.transform.verifier.tape import Branch, Item, Tape
from tapegrad.transform.verifier.turning import Turning


def pairs_of(codes: list[Code]) -> list[tuple[Code | None, Code]]:
    """Return all functions, reverse functions paired with their forward functions."""
    by_name = {code.name: code for code in codes}
    found: list[tuple[Code | None, Code]] = []
    for code in codes:
        other = by_name.get(code.purpose.other)
        if code.purpose.is_forward and other is not None:
            continue
        found.append((other if code.purpose.is_reverse else None, code))
    return found


def verify_values(
    codes: list[Code], summaries: dict[str, Summary], known: dict[str, Needs]
) -> None:
    """Check the functions of a module that have reverse code.

    Parameters
    ----------
    codes
        All its functions.
    summaries
        Their summaries.
    known
        The needs of reverse functions that are checked already.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    needs = dict(known)
    pairs = pairs_of([code for code in codes if code.purpose.half is not Half.TANGENT])
    pairs = [(forward, code) for forward, code in pairs if code.name not in known]
    differentiated: set[str] = set()
    for _ in range(2):
        is_complete = True
        for forward, code in pairs:
            checked = Values(forward, code, summaries, needs)
            if checked.numbers.is_known:
                needs[code.name] = checked.run()
                compare(checked, differentiated)
                is_complete = is_complete and checked.calls.is_complete
        if is_complete:
            return


class Values:
    """The pass over one function, or over a forward function and its reverse.

    Parameters
    ----------
    forward
        The forward function, None if the function holds both halves.
    code
        The function.
    summaries
        The summaries of all functions of the module.
    needs
        The needs of the functions checked before.

    Attributes
    ----------
    passed
        The sides of branches that were taken.
    """

    def __init__(
        self,
        forward: Code | None,
        code: Code,
        summaries: dict[str, Summary],
        needs: dict[str, Needs],
    ) -> None:
        self.forward, self.code = forward, code
        self.numbers = Numbering(forward, code, summaries)
        self.codes, self.summaries = self.numbers.codes, summaries
        self.bars = self.numbers.bars
        self.cotangents, self.memory = self.numbers.cotangents, self.numbers.memory
        self.wrong = self.numbers.wrong
        self.place = Place()
        self.calls = ReversedCalls(self.numbers, needs)
        self.keeping = Keeping(self.numbers, self.calls, self.place)
        self.turning = Turning(self.numbers, self.place, self.block)
        self.turnings = self.turning.turnings
        self.passed: set[tuple[int, bool]] = set()

    # -- functions ----------------------------------------------------------------------------

    def run(self) -> Needs:
        """Check the function; return what its reverse half needs unchanged."""
        items: list[Item] = []
        contents: dict[str, int] = {}
        handed: dict[str, int] = {}
        for code in self.codes:
            self.numbers.current = code
            self.numbers.local = code.locals
            self.numbers.in_reverse = code is self.code and self.forward is not None
            own = [name for name in code.parameters if name not in self.bars]
            params = {name: self.numbers.number("param", name) for name in own}
            params.update(handed)
            for name in params:
                self.numbers.canon.setdefault(name, params[name])
            self.numbers.state = State(params, contents)
            self.keeping.has_tape = code.parameters[-2:] == list(TAPE)
            self.place.tape = Tape(items)
            self.keeping.is_given = self.keeping.has_tape
            self.block(code.body)
            if self.keeping.has_tape and not self.keeping.is_given:
                raise code.wrong("the tape is not given back", code.body[-1])
            items, contents = self.place.tape.items, self.numbers.state.contents
            handed = {name: self.numbers.named(name) for name in self.handed()}
        self.calls.check_early()
        if items:
            raise self.code.wrong("what was kept on the tape is left there", self.code.body[-1])
        return self._needs()

    def handed(self) -> dict[str, int]:
        """Return the results of the forward function that the reverse function takes, by place."""
        if self.forward is None:
            return {}
        names = map(name_of, returned_by(self.forward.body[-1]))
        places = {name: place for place, name in enumerate(names) if name}
        known = {*self.forward.parameters, *self.bars, *TAPE}
        return {n: places[n] for n in self.code.parameters if n in places and n not in known}

    def _needs(self) -> Needs:
        found = Needs()
        parameters = self.code.parameters
        found.handed = {parameters.index(n): place for n, place in self.handed().items()}
        for name in dict.fromkeys(self.code.parameters):
            if name in self.memory.arrays and self.memory.of(name) in self.numbers.read_classes:
                found.params.add(self.code.parameters.index(name))
        unread = set[int]().union(*(self.calls.unread(s) for s in walk(self.code.body)))
        named = {n.id for s in self.code.body for n in names_in(s) if id(n) not in unread}
        found.unread = {k for k, name in enumerate(self.code.parameters) if name not in named}
        if self.forward is not None:
            for statement in walk(self.forward.body):
                for place, leaf in enumerate(returned_by(statement)):
                    if is_in(leaf, self.memory.arrays):
                        if self.memory.of(leaf.id) in self.numbers.read_classes:
                            found.results.add(place)
        return found

    def block(self, body: list[ast.stmt]) -> bool:
        """Process a block; return whether its end is reached."""
        return all(map(self.statement, body))

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.If():
                return self.branch(node)
            case ast.For() | ast.While():
                self.turning.loop(node)
                return True
            case ast.Break():
                self.turning.leave(node)
                return False
            case ast.Raise():
                return False
            case ast.Return():
                self.check_reads(node)
                return False
        self.check_cotangents(node)
        self.calls.note_call(node)
        if self.keeping.is_of_tape(node):
            self.keeping.tape_statement(node)
        elif isinstance(node, ast.Assign):
            self.assign(node)
        elif isinstance(node, ast.AugAssign):
            self.add(node)
        self.write(node)
        return True

    def write(self, node: ast.stmt) -> None:
        """Assign new versions to arrays that are written."""
        for name in self.memory.written(node):
            self.numbers.state.contents[self.memory.of(name)] = self.numbers.new()
        self.calls.note_contents(node)

    def assign(self, node: ast.Assign) -> None:
        found: list[tuple[str, int]] = []
        self.numbers.reading = {}
        for target, value in pairs_in(node):
            match target:
                case ast.Subscript():
                    pass
                case ast.Name(id=name):
                    if name not in self.bars:
                        found.append((name, self.made(name, value)))
                case _:
                    whole = self.numbers.handle(value)
                    parts = list(map(name_of, leaves(target)))
                    flat = isinstance(target, ast.Tuple) and len(parts) == len(target.elts)
                    for place, name in enumerate(parts):
                        if name:
                            found.append((name, part := self.numbers.number("leaf", whole, place)))
                            if flat:
                                self.numbers.parts[part] = (place, len(parts), whole)
        for name, number in found:
            self.numbers.assigned(name, number)

    def made(self, target: str, value: ast.expr) -> int:
        if target in self.memory.arrays:
            whole = self.numbers.joined_tuple(value) if isinstance(value, ast.Tuple) else None
            is_joined = whole is not None
            if is_joined or self.memory.shared(value):
                return self.numbers.handle(value)
            version = self.numbers.contents(self.memory.of(target))
            return self.numbers.number("made", self.numbers.value(value), version)
        return self.numbers.value(value)

    def add(self, node: ast.AugAssign) -> None:
        name = name_of(node.target)
        if not name or name in self.bars:
            return
        if name in self.memory.arrays:
            return  # in place
        parts = self.numbers.named(name), self.numbers.value(node.value)
        value = self.numbers.number("add", type(node.op).__name__, *parts)
        frame = self.place.frames[-1] if self.place.frames else None
        if frame is not None and isinstance(node.op, ast.Add) and is_number(node.value, 1):
            frame.counted[name] = frame.counted.get(name, 0) + 1
        self.numbers.state.values[name] = value

    # -- reads of reverse code ----------------------------------------------------------------

    def check_reads(self, node: ast.AST) -> None:
        """Refuse names whose value differs from that in the forward code."""
        free = shape_only(node) | self.calls.unread(node)
        for name in names_in(node):
            if name.id in self.bars or name.id in TAPE or name.id not in self.numbers.local:
                continue
            if name.id not in self.numbers.canon or id(name) in free:
                continue
            current = self.numbers.resolved(self.numbers.state.values.get(name.id))
            if current is None or current != self.numbers.resolved(self.numbers.canon[name.id]):
                raise self.wrong(f"{name.id} is not what it was in the forward code", node)

    def check_cotangents(self, node: ast.stmt) -> None:
        """Check the primal values that a statement reads to compute cotangents."""
        if not self.cotangents.is_cotangent(node):
            return
        self.check_reads(node)
        self.check_elements(node)

    def check_elements(self, node: ast.stmt) -> None:
        """Refuse elements that were written since the reversed operation read them."""
        value = getattr(node, "value", None)
        if value is None or self.cotangents.is_reverse(called(value)):
            return
        is_effect = isinstance(node, ast.Expr) and isinstance(value, ast.Call)
        read: list[ast.expr] = value.args if is_effect else [value]
        self.numbers.reading = {}
        for part in read:
            self.numbers.value(part)
        current, self.numbers.reading = self.numbers.reading, {}
        stems = [
            self.cotangents.value_of(n.id)
            for part in read
            for n in names_in(part)
            if n.id in self.bars
        ]
        sources = [self.numbers.readings.get(stem, {}) for stem in stems]
        for of, version in current.items():
            known = [found[of] for found in sources if of in found]
            if not known:  # or it is not reversed yet: the forward code may follow
                for stem in stems:
                    self.numbers.awaited.setdefault(stem, []).append((of, version, node))
            elif version not in known:
                what = f"elements of {of} were written since the forward code read them"
                raise self.wrong(what, node)

    # -- branches -----------------------------------------------------------------------------

    def branch(self, node: ast.If) -> bool:
        if self.keeping.is_of_tape(node.test):
            self.keeping.make_room(node)
            return True
        if self.cotangents.is_cotangent(node):
            self.check_reads(node.test)
        tested = condition(node.test)
        if tested is None:
            cond, positive = self.numbers.value(node.test), True
        else:
            cond, positive = self.numbers.named(tested[0]), tested[1]
        sides = [(node.body, positive), (node.orelse, not positive)]
        if not positive:
            sides.reverse()
        if cond in self.numbers.facts:  # tested before, so only one side is possible
            body = next(body for body, side in sides if side == self.numbers.facts[cond])
            self.passed.add((id(node), body is node.body))
            return self.block(body)
        self.passed |= {(id(node), True), (id(node), False)}
        item = self.popped_branch(node, cond)
        outer, tape = self.numbers.state, self.place.tape
        known = set(self.numbers.canon)
        facts = dict(self.numbers.facts)
        ends: list[tuple[State, Tape] | None] = []
        for place, (body, side) in enumerate(sides):
            self.numbers.state = outer.copy()
            self.numbers.facts = {**facts, cond: side}
            items = [] if item is None else list((item.then, item.orelse)[place])
            self.place.tape = tape.inside(items)
            if self.block(body):
                if self.place.tape.slots:
                    raise self.wrong("numbers are written to the tape and not kept", node)
                if item is not None and self.place.tape.items:
                    raise self.wrong("what was kept in the branch is not taken", node)
                ends.append((self.numbers.state, self.place.tape))
            else:
                ends.append(None)
        self.numbers.facts = facts
        self.place.tape = tape
        if item is not None:
            tape.moved()
        one, two = ends
        if one is None or two is None:
            end = one or two
            if end is None:
                return False
            self.numbers.state = end[0]
            kept = end[1].items
            if item is None and kept:
                if _raises(sides[0 if one is None else 1][0]):
                    tape.items.append(
                        Branch(cond, tuple(kept if one else ()), tuple(kept if two else ()))
                    )
                else:
                    tape.items += kept
                tape.moved()
            return True
        if item is None and (one[1].items or two[1].items):
            tape.items.append(Branch(cond, tuple(one[1].items), tuple(two[1].items)))
            tape.moved()
        self.numbers.state = self.met(cond, one[0], two[0], known)
        return True

    def met(self, cond: int, one: State, two: State, known: set[str]) -> State:
        values = {}
        for name in one.values.keys() | two.values.keys():
            values[name] = self.numbers.join(cond, one.values.get(name), two.values.get(name))
            if name in one.values and name in two.values and name not in known:
                self.numbers.canon[name] = values[name]
        contents = {}
        for of in one.contents.keys() | two.contents.keys():
            sides = one.contents.get(of, -1), two.contents.get(of, -1)
            contents[of] = self.numbers.join(cond, *sides)
        return State(values, contents)

    def popped_branch(self, node: ast.If, cond: int) -> Branch | None:
        """Return the item that the forward branch pushed, if this branch pops it."""
        if not self.keeping.has_tape or not of_tape.pops([node], self.cotangents.is_reverse):
            return None
        if not self.place.tape.items:
            return None
        item = self.place.tape.items[-1]
        if not isinstance(item, Branch) or item.condition != cond:
            return None
        self.place.tape.items.pop()
        return item


def _raises(body: list[ast.stmt]) -> bool:
    """Whether a block ends with an error on all paths."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _raises(last.body) and _raises(last.orelse)
    return isinstance(last, ast.Raise)
