"""Every value that reverse code reads is that of the forward code, and the tape is in order.

The pass numbers values: equal operations on equal values have equal numbers. What reads elements
of an array depends on the version of the array's contents, which every statement that may write
them changes. A value that is computed again has the number that it had if it is computed in the
same way from the same values, and no element that it reads was written since. What is popped has
the number of what was pushed (`tape`). Loops of reverse code are those of the forward code the
other way round; inside, numbers are those of the same iteration.

The two halves may be one function, or two that call each other's halves in turn.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.verifier import memory as of_memory
from tapegrad.transform.verifier import tape as of_tape
from tapegrad.transform.verifier.code import (
    Code,
    called,
    condition,
    leaves,
    module_call,
    names_in,
    paired,
    targets,
    walk,
)
from tapegrad.transform.verifier.contributions import Contributions
from tapegrad.transform.verifier.cotangents import FORWARD, REVERSE, TAPE, Cotangents
from tapegrad.transform.verifier.memory import SHAPE, SHAPE_CALLS, Memory, Summary, results_of
from tapegrad.transform.verifier.order import Order
from tapegrad.transform.verifier.tape import (
    Array,
    Branch,
    Called,
    Item,
    Kept,
    Numbers,
    Rows,
    Tape,
    Turns,
)

_PURE = frozenset(vars(builtins)) - {"input", "print", "open", "next", "iter"}


@dataclass
class Needs:
    """The parameters, and results of the forward function, that a reverse function reads."""

    params: set[int] = field(default_factory=set)
    results: set[int] = field(default_factory=set)


@dataclass
class Turned:
    """A loop of the forward code."""

    number: int
    path: tuple[int, ...]  # the loops around it
    index: str | None
    index_value: int
    bounds: tuple[ast.expr, ast.expr, ast.expr] | None
    values: tuple[int, int, int] | None  # of the bounds
    trips: int | None  # the value of the number of iterations, as reservations compute it
    items: tuple[Item, ...] = ()
    rows: dict[int, tuple[Kept, int]] = field(default_factory=dict)
    # what was counted and kept where it is left
    breaks: list[tuple[set[str], tuple[Item, ...]]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    is_claimed: bool = True


@dataclass
class State:
    """What is known at a point: the numbers of values and of the contents of arrays."""

    values: dict[str, int]
    contents: dict[str, int]

    def copy(self) -> State:
        return State(dict(self.values), dict(self.contents))


def pairs_of(codes: list[Code]) -> list[tuple[Code | None, Code]]:
    """Return the functions, forward functions with their reverse ones."""
    by_name = {code.name: code for code in codes}
    found: list[tuple[Code | None, Code]] = []
    for code in codes:
        other = by_name.get(FORWARD.sub(r"_reverse\1", code.name))
        if FORWARD.search(code.name) and other is not None:
            continue
        forward = by_name.get(REVERSE.sub(r"_forward\1", code.name))
        is_pair = REVERSE.search(code.name) and forward is not None
        found.append((forward if is_pair else None, code))
    return found


def verify_values(codes: list[Code]) -> None:
    """Check the functions of a module.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    summaries = of_memory.summaries_of(codes)
    needs: dict[str, Needs] = {}
    pairs = pairs_of(codes)
    for _ in range(2):
        is_complete = True
        for forward, code in pairs:
            checked = Values(forward, code, summaries, needs)
            if checked.is_known:
                needs[code.name] = checked.run()
                Contributions(checked.codes, checked.cotangents).run()
                Order(checked.codes, checked.cotangents, checked.memory).run()
                is_complete = is_complete and checked.is_complete
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
        Of all functions of the module.
    needs
        Of those that were checked before.
    """

    def __init__(
        self,
        forward: Code | None,
        code: Code,
        summaries: dict[str, Summary],
        needs: dict[str, Needs],
    ) -> None:
        self.forward, self.code = forward, code
        self.codes = [code] if forward is None else [forward, code]
        self.summaries, self.needs = summaries, needs
        self.is_lenient = forward is None and bool(REVERSE.search(code.name))
        self.cotangents = Cotangents(self.codes, summaries)
        self.bars, self.suffix = self.cotangents.names, self.cotangents.suffix
        self.is_known = self.cotangents.is_known and bool(self.bars)
        self.is_complete = True  # the needs of all functions that it calls are known
        self.memory = Memory(self.codes, summaries, self.cotangents)
        self.numbers: dict[Any, int] = {}
        self.joins: dict[int, tuple[int, int | None, int | None]] = {}
        self.facts: dict[int, bool] = {}
        self.canon: dict[str, int] = {}
        self.going: set[str] = set()  # what goes round forward loops
        self.readings: dict[str, dict[str, int]] = {}
        self.reading: dict[str, int] = {}
        self.loops: dict[int, Turned] = {}
        self.by_index: dict[str, Turned] = {}
        self.by_count: dict[int, Turned] = {}
        self.path: tuple[int, ...] = ()
        self.frames: list[Turned | None] = []  # the loops that are being passed through ...
        self.tapes: list[Tape] = []  # ... and the tape in each
        self.calls: dict[Any, list[dict[str, int]]] = {}
        self.read_classes: set[str] = set()
        self.in_reverse = False
        self.has_tape = False

    # -- numbers ------------------------------------------------------------------------------

    def number(self, *key: Any) -> int:
        """Return the number of what is known by a key."""
        return self.numbers.setdefault(key, len(self.numbers))

    def new(self) -> int:
        """Return a number that nothing else has."""
        return self.number("new", len(self.numbers))

    def join(self, cond: int, one: int | None, two: int | None) -> int:
        """Return the number of what has one of two values, by a condition."""
        if one == two and one is not None:
            return one
        found = self.number("join", cond, one, two)
        self.joins[found] = (cond, one, two)
        return found

    def resolved(self, value: int | None) -> int | None:
        """Return the number that a value has where the conditions on the way are known."""
        while value in self.joins:
            cond, one, two = self.joins[value]
            if cond not in self.facts:
                break
            side = one if self.facts[cond] else two
            if side is None:
                break
            value = side
        return value

    def version(self, names: list[str]) -> tuple[Any, ...]:
        """Return the versions of arrays, and note that they are read."""
        found = []
        for of in sorted({self.memory.of(n) for n in names if n not in self.bars}):
            current = self.state.contents.get(of, -1)
            found.append((of, current))
            self.reading[of] = current
            if self.in_reverse:
                self.read_classes.add(of)
        return tuple(found)

    def handle(self, node: ast.expr) -> int:
        """Return the number of a value without the elements of arrays."""
        if isinstance(node, ast.Name):
            return self.named(node.id)
        if isinstance(node, ast.Subscript):
            return self.number("view", self.handle(node.value), self.value(node.slice))
        if isinstance(node, ast.Attribute):
            return self.number("attribute", node.attr, self.handle(node.value))
        if isinstance(node, ast.Tuple):
            return self.number("tuple", *map(self.handle, node.elts))
        if isinstance(node, ast.IfExp):
            parts = (self.value(node.test), self.handle(node.body), self.handle(node.orelse))
            return self.number("choice", *parts)
        if isinstance(node, ast.Call) and self.is_pure(node):
            return self.call(node, self.handle)
        return self.value(node)

    def named(self, name: str) -> int:
        if name not in self.local:
            return self.number("global", name)
        found = self.resolved(self.state.values.get(name))
        return self.new() if found is None else found

    def value(self, node: ast.expr) -> int:
        """Return the number of a value, elements of arrays included."""
        if isinstance(node, ast.Name):
            found = self.named(node.id)
            if node.id not in self.memory.arrays:
                return found
            return self.number("content", found, self.version([node.id]))
        if isinstance(node, ast.Constant):
            return self.number("constant", type(node.value).__name__, repr(node.value))
        if isinstance(node, ast.Subscript):
            parts = (self.handle(node.value), self.value(node.slice))
            return self.number("item", *parts, self.version(self.memory.shared(node.value)))
        if isinstance(node, ast.Attribute):
            base = self.handle if node.attr in SHAPE else self.value
            return self.number("attribute", node.attr, base(node.value))
        if isinstance(node, ast.Call):
            if not self.is_pure(node):
                for argument in node.args:
                    self.value(argument)
                return self.new()
            found = module_call(node)
            is_shape = called(node) == "len" or (found is not None and found[1] in SHAPE_CALLS)
            return self.call(node, self.handle if is_shape else self.value)
        parts = []
        for name, part in ast.iter_fields(node):
            if name == "ctx":
                continue
            for one in part if isinstance(part, list) else [part]:
                if isinstance(one, ast.expr):
                    parts.append(self.value(one))
                else:
                    parts.append(type(one).__name__ if isinstance(one, ast.AST) else repr(one))
        return self.number(type(node).__name__, *parts)

    def is_pure(self, node: ast.Call) -> bool:
        """Whether a call returns the same for the same arguments."""
        name = called(node)
        if name is not None:
            return name in _PURE and name not in self.local
        found = module_call(node)
        return found is None or (
            "random" not in found[0] and found[1] not in ("pop_array", "take_tape")
        )

    def call(self, node: ast.Call, of: Any) -> int:
        found = module_call(node)
        base: Any = called(node) or found
        if base is None and isinstance(node.func, ast.Attribute):
            base = (node.func.attr, of(node.func.value))
        named = tuple((k.arg, of(k.value)) for k in node.keywords)
        return self.number("call", base, tuple(map(of, node.args)), named)

    # -- functions ----------------------------------------------------------------------------

    def run(self) -> Needs:
        """Check it; return what its reverse half needs to be unchanged."""
        items: list[Item] = []
        contents: dict[str, int] = {}
        for code in self.codes:
            self.current = code
            self.local = code.locals
            self.in_reverse = code is self.code and (self.forward is not None or self.is_lenient)
            params = {n: self.number("param", n) for n in code.parameters if n not in self.bars}
            for name in params:
                self.canon.setdefault(name, params[name])
            self.state = State(params, contents)
            self.has_tape = code.parameters[-2:] == list(TAPE)
            self.tape = Tape(items)
            self.start = items if self.has_tape else []
            self.is_given = self.has_tape
            self.block(code.body)
            if self.has_tape and not self.is_given:
                raise code.wrong("the tape is not given back", code.body[-1])
            items, contents = self.tape.items, self.state.contents
        if items and (self.forward is not None or not self.is_lenient):
            raise self.code.wrong("what was kept on the tape is left there", self.code.body[-1])
        if self.is_lenient:
            self._check_clears()
        return self._needs()

    def _check_clears(self) -> None:
        """Refuse, where there is no forward code to compare with, elements that it wrote."""
        for statement in self.code.statements:
            if not isinstance(statement, ast.Assign):
                continue
            target = statement.targets[0]
            if isinstance(target, ast.Subscript) and _is_in(target.value, self.bars):
                stem = target.value.id.removesuffix(self.suffix)
                if stem in self.memory.arrays and self.memory.of(stem) in self.read_classes:
                    raise self.wrong(f"elements of {stem} are read that were written", statement)

    def _needs(self) -> Needs:
        found = Needs()
        for name in dict.fromkeys(self.code.parameters):
            if name in self.memory.arrays and self.memory.of(name) in self.read_classes:
                found.params.add(self.code.parameters.index(name))
        if self.forward is not None:
            for statement in walk(self.forward.body):
                if isinstance(statement, ast.Return) and statement.value is not None:
                    for place, leaf in enumerate(results_of(statement.value)):
                        if isinstance(leaf, ast.Name) and leaf.id in self.memory.arrays:
                            if self.memory.of(leaf.id) in self.read_classes:
                                found.results.add(place)
        return found

    def wrong(self, what: str, node: ast.AST) -> Exception:
        return self.current.wrong(what, node)

    def block(self, body: list[ast.stmt]) -> bool:
        """Pass through a block; return whether its end is reached."""
        return all(map(self.statement, body))

    def statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return self.branch(node)
        if isinstance(node, (ast.For, ast.While)):
            self.loop(node)
            return True
        if isinstance(node, ast.Break):
            self.leave(node)
            return False
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Return):
            self.check_reads(node)
            return False
        self.check_cotangents(node)
        self.note_call(node)
        if self.is_of_tape(node):
            self.tape_statement(node)
        elif isinstance(node, ast.Assign):
            self.assign(node)
        elif isinstance(node, ast.AugAssign):
            self.add(node)
        self.write(node)
        return True

    def write(self, node: ast.stmt) -> None:
        """Give arrays that are written new versions."""
        for name in self.memory.written(node):
            self.state.contents[self.memory.of(name)] = self.new()
        self.note_contents(node)

    def assigned(self, name: str, value: int) -> None:
        """Give a name a value."""
        if name in self.bars:
            return
        self.state.values[name] = value
        if name not in self.canon or self.is_lenient:
            self.canon[name] = value
            self.readings[name] = dict(self.reading)

    def assign(self, node: ast.Assign) -> None:
        found: list[tuple[str, int]] = []
        self.reading = {}
        for target, value in paired(node.targets[0], node.value):
            if isinstance(target, ast.Subscript):
                continue
            if isinstance(target, ast.Name):
                if target.id not in self.bars:
                    found.append((target.id, self.made(target.id, value)))
                continue
            whole = self.handle(value)
            for place, leaf in enumerate(leaves(target)):
                if isinstance(leaf, ast.Name):
                    found.append((leaf.id, self.number("leaf", whole, place)))
        for name, number in found:
            self.assigned(name, number)

    def made(self, target: str, value: ast.expr) -> int:
        if target in self.memory.arrays:
            if self.memory.shared(value):
                return self.handle(value)
            version = self.state.contents.get(self.memory.of(target), -1)
            return self.number("made", self.value(value), version)
        return self.value(value)

    def add(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name) or node.target.id in self.bars:
            return
        name = node.target.id
        if name in self.memory.arrays:
            return  # in place
        value = self.number("add", type(node.op).__name__, self.named(name), self.value(node.value))
        frame = self.frames[-1] if self.frames else None
        if frame is not None and ast.unparse(node) == f"{name} += 1":
            frame.counted[name] = frame.counted.get(name, 0) + 1
        self.state.values[name] = value

    # -- what reverse code reads --------------------------------------------------------------

    def check_reads(self, node: ast.AST) -> None:
        """Refuse names that do not have the value that they had in the forward code."""
        free = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr in SHAPE:
                free.add(id(inner.value))
            elif isinstance(inner, ast.Call):
                found = module_call(inner)
                if called(inner) == "len" or (found is not None and found[1] in SHAPE_CALLS):
                    free.update(map(id, inner.args))
        for name in names_in(node):
            if name.id in self.bars or name.id in TAPE or name.id not in self.local:
                continue
            if name.id not in self.canon or id(name) in free:
                continue
            current = self.resolved(self.state.values.get(name.id))
            if current is None or current != self.resolved(self.canon[name.id]):
                raise self.wrong(f"{name.id} is not what it was in the forward code", node)

    def check_cotangents(self, node: ast.stmt) -> None:
        """Check what a statement that computes cotangents reads of the primal."""
        if not self.cotangents.is_cotangent(node):
            return
        self.check_reads(node)
        self.check_elements(node)

    def check_elements(self, node: ast.stmt) -> None:
        """Refuse elements that were written since the operation that is reversed read them."""
        value = getattr(node, "value", None)
        if value is None or self.cotangents.is_reverse(called(value) or ""):
            return
        read: list[ast.expr] = [value]
        if isinstance(value, ast.Call) and isinstance(node, ast.Expr):
            read = list(value.args)
        self.reading = {}
        for part in read:
            self.value(part)
        current, self.reading = self.reading, {}
        sources = [
            self.readings.get(n.id.removesuffix(self.suffix), {})
            for part in read
            for n in names_in(part)
            if n.id in self.bars
        ]
        for of, version in current.items():
            known = [found[of] for found in sources if of in found]
            if known and version not in known:
                what = f"elements of {of} were written since the forward code read them"
                raise self.wrong(what, node)

    # -- calls --------------------------------------------------------------------------------

    def primal_arguments(self, call: ast.Call) -> tuple[int, ...]:
        """Return the numbers of the arguments of a call that are no cotangents."""
        found = []
        for argument in call.args:
            names = [n.id for n in names_in(argument)]
            if any(n in self.bars or n in TAPE for n in names):
                break
            found.append(self.handle(argument))
        return tuple(found)

    def note_call(self, node: ast.stmt) -> None:
        """Check, at the call of a reverse function, what the forward call noted."""
        value = getattr(node, "value", None)
        function = called(value) if isinstance(node, (ast.Assign, ast.Expr)) else None
        self.noted: Any = None
        if function is None or not isinstance(value, ast.Call):
            return
        if function in self.summaries and REVERSE.search(function):
            self.check_call(function, value, node)
        elif function not in vars(builtins):
            self.noted = (function, value, self.primal_arguments(value))

    def note_contents(self, node: ast.stmt) -> None:
        """Note the contents of arrays after a call that is reversed later."""
        if self.noted is None:
            return
        function, call, arguments = self.noted
        self.noted = None
        pair = FORWARD.sub(r"_reverse\1", function)
        names = [n for a in call.args for n in self.memory.shared(a)]
        if isinstance(node, ast.Assign):
            found = [n.id for n in leaves(node.targets[0]) if isinstance(n, ast.Name)]
            results = [n if n in self.memory.arrays else "" for n in found]
        else:
            results = []
        noted = {self.memory.of(n): self.contents_of(n) for n in (*names, *results) if n}
        noted["results"] = len(results)
        for place, name in enumerate(results):
            if name:
                noted[f"result {place}"] = self.contents_of(name)
                noted[f"class {place}"] = self.number("class", self.memory.of(name))
        is_pair = FORWARD.search(function) and function in self.summaries
        key = (pair if is_pair else "", arguments)
        self.calls.setdefault(key, []).append(noted)

    def contents_of(self, name: str) -> int:
        return self.state.contents.get(self.memory.of(name), -1)

    def check_call(self, function: str, call: ast.Call, node: ast.stmt) -> None:
        """Check the call of a reverse function."""
        self.is_complete = self.is_complete and function in self.needs
        needs = self.needs.get(function, Needs())
        for place in needs.params:
            if place < len(call.args) and self.in_reverse:
                self.version(self.memory.shared(call.args[place]))
        forward = FORWARD.search(REVERSE.sub(r"_forward\1", function))
        has_forward = forward is not None and REVERSE.sub(r"_forward\1", function) in self.summaries
        given = self.primal_arguments(call)
        if has_forward:
            count = self.common(function)
            found = self.calls.get((function, given[:count]), [])
            if not found and not self.is_lenient:
                raise self.wrong("the reverse of a call that the forward code does not make", node)
        else:
            found = [n for k in range(len(given) + 1) for n in self.calls.get(("", given[:k]), [])]
        classes = {
            self.memory.of(n)
            for place in needs.params
            if place < len(call.args)
            for n in self.memory.shared(call.args[place])
        }
        wanted = {of: self.state.contents.get(of, -1) for of in classes}
        if found and not any(self.suits(one, wanted, needs) for one in found):
            raise self.wrong("an array was written since the forward code called this", node)

    def common(self, function: str) -> int:
        """Return how many arguments the forward and the reverse function have in common."""
        two = self.summaries[function].params
        one = self.summaries[REVERSE.sub(r"_forward\1", function)].params
        count = 0
        for first, second in zip(one, two, strict=False):
            if first != second or first.endswith(self.suffix) or first in TAPE:
                break
            count += 1
        return count

    def suits(self, noted: dict[str, int], wanted: dict[str, int], needs: Needs) -> bool:
        """Whether arrays have the contents that they had after a call."""
        if any(noted.get(of, version) != version for of, version in wanted.items()):
            return False
        for place in needs.results:
            if f"result {place}" in noted:
                classes = [
                    of for of in noted if self.number("class", of) == noted[f"class {place}"]
                ]
                if any(self.state.contents.get(of, -1) != noted[of] for of in classes):
                    return False
        return True

    # -- branches -----------------------------------------------------------------------------

    def branch(self, node: ast.If) -> bool:
        if self.is_of_tape(node.test):
            self.make_room(node)
            return True
        if self.cotangents.is_cotangent(node):
            self.check_reads(node.test)
        tested = condition(node.test)
        if tested is None:
            cond, positive = self.value(node.test), True
        else:
            cond, positive = self.named(tested[0]), tested[1]
        sides = [(node.body, positive), (node.orelse, not positive)]
        if not positive:
            sides.reverse()
        item = self.popped_branch(node, cond)
        outer, tape = self.state, self.tape
        known = set(self.canon)
        facts = dict(self.facts)
        ends: list[tuple[State, Tape] | None] = []
        for place, (body, side) in enumerate(sides):
            self.state = outer.copy()
            self.facts = {**facts, cond: side}
            items = [] if item is None else list((item.then, item.orelse)[place])
            self.tape = tape.inside(items, False)
            self.tape.rows = tape.rows
            if self.block(body):
                if self.tape.slots:
                    raise self.wrong("numbers are written to the tape and not kept", node)
                if item is not None and self.tape.items:
                    raise self.wrong("what was kept in the branch is not taken", node)
                ends.append((self.state, self.tape))
            else:
                ends.append(None)
        self.facts = facts
        self.tape = tape
        if item is not None:
            tape.moved()
        one, two = ends
        if one is None or two is None:
            end = one or two
            if end is None:
                return False
            self.state = end[0]
            if item is None and end[1].items:
                tape.items += end[1].items
                tape.moved()
            return True
        if item is None and (one[1].items or two[1].items):
            tape.items.append(Branch(cond, tuple(one[1].items), tuple(two[1].items)))
            tape.moved()
        self.state = self.met(cond, one[0], two[0], known)
        return True

    def met(self, cond: int, one: State, two: State, known: set[str]) -> State:
        values = {}
        for name in one.values.keys() | two.values.keys():
            values[name] = self.join(cond, one.values.get(name), two.values.get(name))
            if name in one.values and name in two.values and name not in known:
                self.canon[name] = values[name]
        contents = {}
        for of in one.contents.keys() | two.contents.keys():
            contents[of] = self.join(cond, one.contents.get(of, -1), two.contents.get(of, -1))
        return State(values, contents)

    def popped_branch(self, node: ast.If, cond: int) -> Branch | None:
        """Return what the branch of the forward code kept, if the branch takes it."""
        if not self.has_tape or not of_tape.pops([node], self.cotangents.is_reverse):
            return None
        if not self.tape.items:
            return None
        item = self.tape.items[-1]
        if not isinstance(item, Branch) or item.condition != cond:
            return None
        self.tape.items.pop()
        return item

    # -- loops --------------------------------------------------------------------------------

    def loop(self, node: ast.For | ast.While) -> None:
        turned = self.turned(node) if isinstance(node, ast.For) else None
        if turned is None:
            self.forward_loop(node)
        else:
            self.reverse_loop(node, turned)

    def changed(self, node: ast.For | ast.While) -> tuple[set[str], set[str]]:
        """Return the names that a loop assigns, and the classes of arrays that it writes."""
        names: set[str] = set()
        classes: set[str] = set()
        for statement in walk(node.body):
            if not isinstance(statement, ast.AugAssign) or not (
                self.memory.arrays.intersection(targets(statement))
            ):
                names.update(targets(statement))
            classes.update(self.memory.of(n) for n in self.memory.written(statement))
        return names, classes

    def forward_loop(self, node: ast.For | ast.While) -> None:
        names, classes = self.changed(node)
        frame = self.entered(node)
        outer, outer_tape = self.state, self.tape
        before = dict(outer.values)
        self.state = state = outer.copy()
        for of in classes:
            state.contents[of] = self.new()
        for name in names:
            if name in self.bars:
                continue
            if name in before:
                state.values[name] = self.new()
                if name not in self.going or self.is_lenient:
                    self.going.add(name)
                    self.canon[name] = state.values[name]
            else:
                state.values.pop(name, None)
        if frame.index is not None:
            state.values[frame.index] = frame.index_value
            self.canon.setdefault(frame.index, frame.index_value)
        if isinstance(node, ast.While):
            self.value(node.test)
        self.tape = outer_tape.inside([], True)
        path, self.path = self.path, (*self.path, frame.number)
        self.frames.append(frame)
        self.tapes.append(self.tape)
        facts = dict(self.facts)
        reached = self.block(node.body)
        self.facts = facts
        self.frames.pop()
        self.tapes.pop()
        self.path = path
        if reached and self.tape.slots:
            raise self.wrong("numbers are written to the tape and not kept", node)
        frame.items = tuple(self.tape.items)
        self.count(node, frame, before)
        if frame.rows and frame.items:
            raise self.wrong("a loop keeps values in two ways", node)
        self.tape = outer_tape
        if frame.items:
            outer_tape.items.append(Turns(frame.number, frame.items))
            outer_tape.moved()
        self.state = State(dict(before), dict(outer.contents))
        for of in classes:
            self.state.contents[of] = self.new()
        for name in names:
            if name in before and name not in self.bars:
                self.state.values[name] = self.new()
                if name in frame.counted:
                    self.canon[name] = self.state.values[name]
                    if frame.counted[name] == 1:
                        self.by_count[self.state.values[name]] = frame
            else:
                self.state.values.pop(name, None)

    def entered(self, node: ast.For | ast.While) -> Turned:
        """Return a loop of the forward code, at its start."""
        index = node.target.id if isinstance(node, ast.For) and _is_name(node.target) else None
        bounds = bounds_of(node.iter) if isinstance(node, ast.For) else None
        values = trips = None
        if bounds is not None:
            low, high, step = bounds
            values = (self.value(low), self.value(high), self.value(step))
            trips = self.value(ast.parse(trips_text(low, high, step), mode="eval").body)
        elif isinstance(node, ast.For):
            self.value(node.iter)
        frame = Turned(len(self.loops), self.path, index, self.new(), bounds, values, trips)
        self.loops[frame.number] = frame
        if index is not None and index not in ("_", "turn"):
            self.by_index[index] = frame
        return frame

    def count(self, node: ast.For | ast.While, frame: Turned, before: dict[str, int]) -> None:
        """Find out which variables count the iterations."""
        zero = self.value(ast.Constant(0))
        body = {id(s) for s in node.body}
        for name in list(frame.counted):
            places = [s for s in walk(node.body) if name in targets(s)]
            if before.get(name) != zero or len(places) != 1 or id(places[0]) not in body:
                frame.counted[name] = 2  # it counts something else
        for counted, kept in frame.breaks:
            for name in frame.counted:
                done = frame.items if name in counted else ()
                if kept != done:
                    frame.counted[name] = 2

    def leave(self, node: ast.Break) -> None:
        """Note what was done when a loop is left."""
        if not self.frames or self.frames[-1] is None:
            return
        frame, tape = self.frames[-1], self.tapes[-1]
        if self.tape.slots or tape.slots or (self.tape is not tape and self.tape.items):
            raise self.wrong("a loop is left where its values are half kept", node)
        counted = {name for name, count in frame.counted.items() if count == 1}
        frame.breaks.append((counted, tuple(tape.items)))

    def turned(self, node: ast.For) -> Turned | None:
        """Return the loop of the forward code that a loop turns round; None if it is one itself."""
        if not isinstance(node.target, ast.Name) or self.is_lenient:
            return None
        name = node.target.id
        found = self.by_index.get(name)
        first = node.body[0]
        if found is None and name == "turn" and isinstance(first, ast.Assign):
            target = first.targets[0]
            found = self.by_index.get(target.id) if isinstance(target, ast.Name) else None
        if found is None and name == "_":
            bounds = bounds_of(node.iter)
            if bounds is not None:
                found = self.by_count.get(self.value(bounds[1]))
        if found is None:
            if name in ("_", "turn") and self.bars and self.cotangents.is_cotangent(node):
                raise self.wrong("a loop that turns round none of the forward code", node)
            return None
        if found.path != self.path:
            raise self.wrong("a loop stands in another one than that which it turns round", node)
        self.check_bounds(node, found)
        return found

    def check_bounds(self, node: ast.For, loop: Turned) -> None:
        """Check that a loop has the iterations of one of the forward code, the last one first."""
        name = node.target.id
        text = ast.unparse(node.iter)
        error = self.wrong("a loop has other iterations than that which it turns round", node)
        if name == "_":
            bounds = bounds_of(node.iter)
            if bounds is None or text != f"range({ast.unparse(bounds[1])})":
                raise error
            return
        if loop.bounds is None or loop.values is None:
            raise error
        low, high, step = loop.bounds
        known = [self.value(one) == two for one, two in zip(loop.bounds, loop.values, strict=True)]
        shown = [ast.unparse(part) for part in loop.bounds]
        if not (known[0] and known[2]):
            raise error
        if name == "turn":
            first = ast.unparse(node.body[0])
            place = ast.unparse(
                ast.BinOp(low, ast.Add(), ast.BinOp(ast.Name("turn"), ast.Mult(), step))
            )
            if first != f"{loop.index} = {place}":
                raise error
            count = bounds_of(node.iter)
            assert count is not None
            last = count[0]
            if text != f"range({ast.unparse(last)}, -1, -1)":
                raise error
            if not isinstance(last, ast.BinOp) or ast.unparse(last.right) != "1":
                raise error
            if not isinstance(last.op, ast.Sub):
                raise error
            if ast.unparse(last.left) == f"len(range({', '.join(shown)}))":
                if not known[1] or loop.breaks:
                    raise error
            elif self.by_count.get(self.value(last.left)) is not loop:
                raise error
            return
        if not known[1] or loop.breaks:
            raise error
        same = bounds_of(node.iter)
        if same is not None and [ast.unparse(part) for part in same] == shown:
            self.check_independent(node, loop)
            return
        first = ast.unparse(ast.BinOp(high, ast.Sub(), ast.Constant(1)))
        final = ast.unparse(ast.BinOp(low, ast.Sub(), ast.Constant(1)))
        if isinstance(low, ast.Constant):
            final = str(low.value - 1)
        if shown[2] != "1" or text != f"range({first}, {final}, -1)":
            raise error

    def check_independent(self, node: ast.For, loop: Turned) -> None:
        """Refuse the order of the forward code where iterations depend on each other."""
        error = self.wrong("iterations that depend on each other are not turned round", node)
        if loop.items:
            raise error
        made: set[str] = set()
        sums: set[str] = set()
        added: set[str] = set()
        read: set[str] = set()
        cleared: dict[str, str] = {}
        elements: set[tuple[str, str]] = set()
        for statement in node.body:
            if not isinstance(statement, (ast.Assign, ast.AugAssign)):
                raise error
            for inner in ast.walk(statement.value):
                if isinstance(inner, ast.Subscript) and _is_in(inner.value, self.bars):
                    read.add(self.memory.of(inner.value.id))
                    elements.add((self.memory.of(inner.value.id), ast.unparse(inner.slice)))
                elif isinstance(inner, ast.Name) and inner.id in self.bars:
                    if inner.id not in made and inner.id in targets_of(node.body):
                        raise error
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name):
                if target.id in self.bars:
                    if isinstance(statement, ast.Assign):
                        made.add(target.id)
                    elif target.id not in made:
                        sums.add(target.id)
            elif isinstance(target, ast.Subscript) and _is_in(target.value, self.bars):
                of = self.memory.of(target.value.id)
                if isinstance(statement, ast.AugAssign):
                    added.add(of)
                elif of in cleared or ast.unparse(target.slice) != loop.index:
                    raise error
                else:
                    cleared[of] = ast.unparse(target.slice)
        if sums & made or added & (read | set(cleared)):
            raise error
        if any(of in cleared and place != cleared[of] for of, place in elements):
            raise error

    def reverse_loop(self, node: ast.For, loop: Turned) -> None:
        names, classes = self.changed(node)
        outer, outer_tape = self.state, self.tape
        items: list[Item] = []
        if loop.items:
            last = outer_tape.items.pop() if outer_tape.items else None
            if not isinstance(last, Turns) or last.loop != loop.number:
                raise self.wrong("a loop does not take what its iterations kept", node)
            items = list(last.items)
        self.state = outer.copy()
        for name in names:
            self.state.values.pop(name, None)
        for of in classes:
            self.state.contents[of] = self.new()
        body = node.body
        if loop.index is not None:
            if node.target.id == "turn":
                body = body[1:]
            if node.target.id != "_":
                self.state.values[loop.index] = loop.index_value
        self.tape = outer_tape.inside(items, True)
        path, self.path = self.path, (*self.path, loop.number)
        self.frames.append(None)
        self.tapes.append(self.tape)
        facts = dict(self.facts)
        self.block(body)
        self.facts = facts
        self.frames.pop()
        self.tapes.pop()
        self.path = path
        if self.tape.items or self.tape.slots:
            raise self.wrong("what an iteration kept is not taken", node)
        self.tape = outer_tape
        if loop.items:
            outer_tape.moved()
        self.state = outer
        for name in names:
            if name not in self.bars:
                self.state.values.pop(name, None)
        for of in classes:
            self.state.contents[of] = self.new()

    # -- the tape -----------------------------------------------------------------------------

    def is_of_tape(self, node: ast.AST) -> bool:
        """Whether code moves, reads or writes the tape."""
        if isinstance(node, ast.Assign) and ast.unparse(node) == "tape = runtime.take_tape()":
            self.has_tape = True
        if not self.has_tape:
            return False
        if of_tape.mentions(node):
            return True
        return isinstance(node, ast.expr) and any(
            n.id in self.tape.reserved for n in names_in(node)
        )

    def tape_statement(self, node: ast.stmt) -> None:
        text = ast.unparse(node)
        if text in ("tape = runtime.take_tape()", "top = 0"):
            if self.tape.items:
                raise self.wrong("the tape is taken where values are on it", node)
            return
        if text == "runtime.give_tape(tape)":
            self.is_given = True
            if self.tape.items:
                raise self.wrong("what was kept on the tape is left there", node)
            return
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if isinstance(node.op, ast.Add):
                self.push(node)
            else:
                self.pop(node)
            return
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Subscript) and _is_in(target.value, {"tape"}):
                self.put(node, target.slice, value)
                return
            if isinstance(target, ast.Name):
                found = of_tape.read_value(value)
                if found is not None:
                    self.get(node, target.id, *found)
                    return
                if target.id == "top" and isinstance(value, ast.Name):
                    self.claim(node, value.id)
                    return
                if isinstance(value, ast.BinOp) and ast.unparse(value.left) == "top":
                    count, length = of_tape.rows_of(value.right)
                    if length is not None:
                        self.tape.reserved[target.id] = (count, self.value(length), False)
                        return
            if isinstance(value, ast.Call):
                self.tape_call(node, target, value)
                return
        raise self.wrong("a use of the tape that is neither a push nor a pop", node)

    def make_room(self, node: ast.If) -> None:
        """Note that the tape is made large enough."""
        text = ast.unparse(node.test)
        needed = text.removesuffix(" > tape.size")
        body = [ast.unparse(s) for s in node.body]
        if needed == text or body != [f"tape = runtime.grown(tape, {needed})"] or node.orelse:
            raise self.wrong("a use of the tape that is neither a push nor a pop", node)
        if needed in self.tape.reserved:
            self.tape.reserved[needed] = (*self.tape.reserved[needed][:2], True)
        elif re.fullmatch(r"top \+ \d+", needed):
            self.tape.room = int(needed[6:])
        else:
            raise self.wrong("room is made for something else", node)

    def kept(self, node: ast.stmt, value: ast.expr) -> Kept:
        found = of_tape.kept_value(value)
        if found is None:
            raise self.wrong("it is not a variable that is kept", node)
        name, bits = found
        if name in self.bars:
            return Kept(name, -1, bits)
        number = self.named(name)
        if number != self.resolved(self.canon.get(name)):
            raise self.wrong(f"{name} is kept where it has another value", node)
        return Kept(name, number, bits)

    def put(self, node: ast.stmt, index: ast.expr, value: ast.expr) -> None:
        found = of_tape.place(index)
        if found is None:
            raise self.wrong("a place on the tape that no pass knows", node)
        number, length, turn = found
        kept = self.kept(node, value)
        if turn is None:
            if number >= self.tape.room or number in self.tape.slots:
                raise self.wrong("a number is kept where there is no room for it", node)
            self.tape.slots[number] = kept
            return
        frame = self.frames[-1] if self.frames else None
        error = self.wrong("a number is kept in a row that is not its own", node)
        if frame is None or number in frame.rows or self.tape.items:
            raise error
        trips = frame.trips if length is None else self.value(length)
        if trips != frame.trips or self.value(turn) != self.turn_of(frame):
            raise error
        fitting = [r for r in self.tape.reserved.values() if r[1] == frame.trips and r[2]]
        if not any(number < count for count, _, _ in fitting):
            raise self.wrong("a number is kept where there is no room for it", node)
        frame.rows[number] = (kept, self.value(turn))
        frame.is_claimed = False

    def turn_of(self, frame: Turned) -> int:
        """Return the number of the iteration, counted from 0."""
        assert frame.bounds is not None
        assert frame.values is not None
        found = frame.index_value
        low, _, step = frame.values
        if ast.unparse(frame.bounds[0]) != "0":
            found = self.number("BinOp", found, "Sub", low)
        if ast.unparse(frame.bounds[2]) != "1":
            found = self.number("BinOp", found, "FloorDiv", step)
        return found

    def push(self, node: ast.AugAssign) -> None:
        count = node.value.value if isinstance(node.value, ast.Constant) else None
        slots = self.tape.slots
        if count is None or sorted(slots) != list(range(count)) or count > self.tape.room:
            raise self.wrong("the top of the tape moves by another number than was kept", node)
        self.tape.items.append(Numbers(tuple(slots[k] for k in range(count))))
        self.tape.slots = {}
        self.tape.moved()

    def claim(self, node: ast.stmt, needed: str) -> None:
        """Move the top behind the rows of a loop."""
        count, trips, fits = self.tape.reserved.get(needed, (0, -1, False))
        found = [f for f in self.loops.values() if not f.is_claimed and f.path == self.path]
        if len(found) != 1 or not fits:
            raise self.wrong("the top of the tape moves without a loop that kept values", node)
        frame = found[0]
        if frame.trips != trips or sorted(frame.rows) != list(range(count)) or frame.breaks:
            raise self.wrong("the rows of a loop are other than what it kept", node)
        frame.is_claimed = True
        rows = tuple(frame.rows[k] for k in range(count))
        self.tape.items.append(Rows(frame.number, trips, rows))
        self.tape.moved()

    def pop(self, node: ast.AugAssign) -> None:
        item = self.tape.items.pop() if self.tape.items else None
        if isinstance(node.value, ast.Constant):
            if not isinstance(item, Numbers) or len(item.values) != node.value.value:
                raise self.wrong("other numbers are taken from the tape than were kept", node)
            self.tape.moved()
            self.tape.taken = item
            return
        count, length = of_tape.rows_of(node.value)
        if length is None or not isinstance(item, Rows) or len(item.rows) != count:
            raise self.wrong("other rows are taken from the tape than were kept", node)
        if self.value(length) != item.trips:
            raise self.wrong("rows of another length are taken from the tape", node)
        self.tape.moved()
        self.tape.rows = item

    def get(self, node: ast.stmt, target: str, index: ast.expr, bits: bool) -> None:
        found = of_tape.place(index)
        if found is None:
            raise self.wrong("a place on the tape that no pass knows", node)
        number, length, turn = found
        kept: Kept | None = None
        if turn is None:
            if self.tape.taken is not None and number < len(self.tape.taken.values):
                kept = self.tape.taken.values[number]
        elif self.tape.rows is not None and number < len(self.tape.rows.rows):
            rows = self.tape.rows
            fits = length is None or self.value(length) == rows.trips
            if fits and self.value(turn) == rows.rows[number][1]:
                kept = rows.rows[number][0]
        if kept is None or kept.bits != bits or kept.name != target:
            raise self.wrong(f"{target} is taken from where it was not kept", node)
        if target not in self.bars:
            self.state.values[target] = kept.value

    def tape_call(self, node: ast.stmt, target: ast.expr, call: ast.Call) -> None:
        parts = leaves(target)
        names = [part.id if isinstance(part, ast.Name) else "" for part in parts]
        found = module_call(call)
        given = [ast.unparse(a) for a in call.args]
        if found == ("runtime", "push_array"):
            if names != ["tape", "top"] or given[:2] != ["tape", "top"] or self.tape.slots:
                raise self.wrong("a use of the tape that is neither a push nor a pop", node)
            self.tape.items.append(Array(self.kept(node, call.args[2])))
            self.tape.moved()
            return
        if found == ("runtime", "pop_array"):
            item = self.tape.items.pop() if self.tape.items else None
            if names[1:] != ["top"] or given[:2] != ["tape", "top"]:
                raise self.wrong("a use of the tape that is neither a push nor a pop", node)
            if not isinstance(item, Array) or item.kept.name != names[0]:
                raise self.wrong(f"{names[0]} is taken from where it was not kept", node)
            if names[0] not in self.bars:
                self.state.values[names[0]] = item.kept.value
            self.tape.moved()
            return
        function = called(call) or ""
        if function not in self.summaries or given[-2:] != ["tape", "top"]:
            raise self.wrong("a use of the tape that is neither a push nor a pop", node)
        if FORWARD.search(function):
            if names[-2:] != ["tape", "top"] or self.tape.slots:
                raise self.wrong("the tape of a call is dropped", node)
            pair = FORWARD.sub(r"_reverse\1", function)
            arguments = self.primal_arguments(call)
            self.tape.items.append(Called(pair, arguments[: self.common(pair)]))
            whole = self.new()
            self.reading = {}
            for place, name in enumerate(names[:-2]):
                if name and name not in self.bars:
                    self.assigned(name, self.number("leaf", whole, place))
        elif REVERSE.search(function):
            if names[-1] != "top":
                raise self.wrong("the tape of a call is dropped", node)
            item = self.tape.items.pop() if self.tape.items else None
            if not isinstance(item, Called) or item.pair != function:
                raise self.wrong("a call takes from the tape what another one kept", node)
            if self.primal_arguments(call)[: self.common(function)] != item.arguments:
                raise self.wrong("a call has other arguments than in the forward code", node)
        else:
            raise self.wrong("a use of the tape that is neither a push nor a pop", node)
        self.tape.moved()


def bounds_of(node: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Return the bounds of a range."""
    if called(node) != "range" or not isinstance(node, ast.Call):
        return None
    given = node.args
    low = given[0] if len(given) > 1 else ast.Constant(0)
    high = given[1] if len(given) > 1 else given[0]
    return low, high, given[2] if len(given) > 2 else ast.Constant(1)


def trips_text(low: ast.expr, high: ast.expr, step: ast.expr) -> str:
    """Return how the number of iterations of a loop over a range is computed."""
    first, last, by = map(ast.unparse, (low, high, step))
    if by != "1":
        return f"len(range({first}, {last}, {by}))"
    return f"max({last} - {first}, 0)" if first != "0" else f"max({last}, 0)"


def targets_of(body: list[ast.stmt]) -> set[str]:
    """Return the names that are set, not only added to, in a block."""
    return {n for s in body if isinstance(s, ast.Assign) for n in targets(s)} | {
        n for s in body if isinstance(s, ast.AugAssign) for n in targets(s)
    }


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _is_in(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
