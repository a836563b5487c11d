"""Reverse code goes backwards: what reads cotangents comes after all that adds to them.

Statements of one block of reverse code that reverse operations of one block of the forward code
stand in the opposite order wherever one of them reads the cotangents that the other one writes.
What is not told by its text (which operation a statement reverses) is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tapegrad.transform.verifier.code import Code, called, names_in, paired
from tapegrad.transform.verifier.cotangents import Cotangents
from tapegrad.transform.verifier.memory import Memory

Place = tuple[int, int]  # a block, and a position in it


@dataclass
class Event:
    """A statement of reverse code.

    Attributes
    ----------
    place
        The operation that it reverses.
    reads, writes
        The cotangents that it reads and writes, by what stands for their memory.
    clears
        Whether it is the end of the reverse of a store.
    """

    statement: ast.stmt
    place: Place
    reads: set[str]
    writes: set[str]
    clears: bool = False


def blocks_of(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield a block and all inside it."""
    yield body
    for statement in body:
        if isinstance(statement, ast.If):
            yield from blocks_of(statement.body)
            yield from blocks_of(statement.orelse)
        elif isinstance(statement, (ast.For, ast.While)):
            yield from blocks_of(statement.body)


class Order:
    """The pass over one function, or over a forward function and its reverse."""

    def __init__(self, codes: list[Code], cotangents: Cotangents, memory: Memory) -> None:
        self.codes, self.cotangents, self.memory = codes, cotangents, memory
        self.bars, self.suffix = cotangents.names, cotangents.suffix
        self.made: dict[str, Place | None] = {}
        self.stored: dict[tuple[str, str], Place | None] = {}
        self.values: dict[tuple[str, str], set[str]] = {}  # the cotangents of what is stored

    def run(self) -> None:
        """Raise an error where two statements stand in the wrong order."""
        for code in self.codes:
            for block in blocks_of(code.body):
                for position, statement in enumerate(block):
                    if isinstance(statement, (ast.Assign, ast.AugAssign)):
                        self._enter(statement, (id(block), position))
                    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                        for argument in statement.value.args[:1]:
                            if isinstance(argument, ast.Name):  # it may be written as a whole
                                self._store(argument.id, ":", (id(block), position))
        for code in self.codes:
            for block in blocks_of(code.body):
                self._check(code, block)

    def _store(self, array: str, index: str, place: Place) -> None:
        key = (array + self.suffix, index)
        self.stored[key] = None if key in self.stored else place

    def _enter(self, statement: ast.Assign | ast.AugAssign, place: Place) -> None:
        if self.cotangents.is_cotangent(statement):
            return
        given = (
            [(statement.target, statement.value)]
            if isinstance(statement, ast.AugAssign)
            else paired(statement.targets[0], statement.value)
        )
        for target, value in given:
            if isinstance(target, ast.Name):
                if isinstance(statement, ast.AugAssign):
                    self._store(target.id, ":", place)
                elif isinstance(value, ast.Name):
                    self.made[target.id] = None
                else:
                    self.made.setdefault(target.id, place)
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                key = ast.unparse(target.slice)
                self._store(target.value.id, key, place)
                names = {n.id + self.suffix for n in names_in(value)}
                self.values.setdefault((target.value.id + self.suffix, key), set()).update(names)

    def _check(self, code: Code, block: list[ast.stmt]) -> None:
        events: list[Event] = []
        for statement in block:
            if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
                continue
            if not self.cotangents.is_cotangent(statement):
                continue
            event = self._event(statement)
            if event is None:
                continue
            for before in events:
                if before.place[0] != event.place[0] or before.place[1] > event.place[1]:
                    continue
                if before.place == event.place and (event.clears or not before.clears):
                    continue
                if before.writes & event.reads or before.reads & event.writes:
                    what = "cotangents are used before all that is added to them is there"
                    raise code.wrong(what, statement)
            events.append(event)

    def _event(self, statement: ast.Assign | ast.AugAssign | ast.Expr) -> Event | None:
        target: ast.expr | None = None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AugAssign):
            target = statement.target
        value = statement.value
        read = {n.id for n in names_in(value) if n.id in self.bars}
        writes: set[str] = set()
        if isinstance(statement, ast.Expr):
            if not isinstance(value, ast.Call) or not value.args:
                return None
            added = [a.id for a in value.args if isinstance(a, ast.Name) and a.id in self.bars]
            if len(added) != 1 or not isinstance(value.func, ast.Attribute):
                return None
            read.discard(added[0])
            writes.add(added[0])
        elif isinstance(target, ast.Name) and target.id in self.bars:
            if target.id in self.memory.arrays and self.memory.shared(value):
                return None  # it goes with the array
            if self.cotangents.is_reverse(called(value)):
                return None
            writes.add(target.id)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            if target.value.id not in self.bars:
                return None
            writes.add(target.value.id)
            if isinstance(statement, ast.Assign):
                place = self.stored.get((target.value.id, ast.unparse(target.slice)))
                both = self._classes(writes)
                return None if place is None else Event(statement, place, both, both, True)
        else:
            return None
        taken = [
            (n.value.id, ast.unparse(n.slice))
            for n in ast.walk(value)
            if isinstance(n, ast.Subscript)
            and isinstance(n.value, ast.Name)
            and n.value.id in self.bars
        ]
        if taken:
            if len(taken) != 1 or len(read) != 1 or taken[0] not in self.stored:
                return None
            place = self.stored[taken[0]]
            if next(iter(writes)) not in self.values.get(taken[0], writes):
                return None  # it is made of elements, and one is stored later
        else:
            places = [self.made.get(n.removesuffix(self.suffix)) for n in read]
            found = [p for p in places if p is not None]
            if len(found) != len(read) or len({p[0] for p in found}) != 1:
                return None
            place = max(found)
        if place is None:
            return None
        return Event(statement, place, self._classes(read), self._classes(writes))

    def _classes(self, names: set[str]) -> set[str]:
        return {self.memory.of(n) for n in names}
