"""Calls in reverse code, and the calls of the forward code that they reverse."""

from __future__ import annotations

import ast
import builtins
from typing import Any

from tapegrad.transform.verifier.code import call_in, called, names_in, names_of
from tapegrad.transform.verifier.cotangents import TAPE
from tapegrad.transform.verifier.numbering import Needs, Numbering


class ReversedCalls:
    """Calls of reverse functions, which reverse calls of the forward code.

    Parameters
    ----------
    numbers
        The numbers of values.
    needs
        What the functions that were checked before need unchanged.
    """

    def __init__(self, numbers: Numbering, needs: dict[str, Needs]) -> None:
        self.numbers, self.needs = numbers, needs
        self.bars, self.memory = numbers.bars, numbers.memory
        self.wrong, self.purpose_of = numbers.wrong, numbers.code.purpose_of
        self.is_complete = True  # the needs of all functions that it calls are known
        self.noted: Any = None
        self.calls: dict[str, list[tuple[tuple[int, ...], dict[str, int]]]] = {}
        # calls of reverse functions that are not known to follow the call that they reverse: the
        # function, its arguments, and the versions of arrays that it reads
        self.early: list[tuple[str, tuple[int, ...], dict[str, int], ast.stmt]] = []

    def primal_arguments(self, call: ast.Call) -> tuple[int, ...]:
        """Return the value numbers of the arguments of a call before any cotangents."""
        found = []
        for argument in call.args:
            names = [n.id for n in names_in(argument)]
            if any(n in self.bars or n in TAPE for n in names):
                break
            found.append(self.numbers.handle(argument))
        return tuple(found)

    def unread(self, node: ast.AST) -> set[int]:
        """Return the arguments that the called reverse function does not read."""
        call = call_in(node)
        if call is None:
            return set()
        places = self.needs.get(called(call), Needs()).unread
        return {id(argument) for k, argument in enumerate(call.args) if k in places}

    def agree(self, one: tuple[int, ...], other: tuple[int, ...], function: str) -> bool:
        """Whether two calls agree on the arguments that a reverse function reads."""
        unread = self.needs.get(function, Needs()).unread
        pairs = enumerate(zip(one, other, strict=False))
        return all(a == b or place in unread for place, (a, b) in pairs)

    def note_call(self, node: ast.stmt) -> None:
        """Check a call of a reverse function, or remember a call that may be reversed later."""
        call = call_in(node) if isinstance(node, (ast.Assign, ast.Expr)) else None
        function = called(call)
        self.noted = None
        if call is None or not function:
            return
        if self.purpose_of(function).is_reverse:
            self.check_call(function, call, node)
        elif function not in vars(builtins):
            self.noted = (function, call, self.primal_arguments(call))

    def note_contents(self, node: ast.stmt) -> None:
        """Note the contents of arrays after a call that may be reversed later."""
        if self.noted is None:
            return
        function, call, arguments = self.noted
        self.noted = None
        purpose = self.purpose_of(function)
        names = [n for a in call.args for n in self.memory.shared(a)]
        found = names_of(node.targets[0]) if isinstance(node, ast.Assign) else []
        results = [n if n in self.memory.arrays else "" for n in found]
        noted = {self.memory.of(n): self.contents_of(n) for n in (*names, *results) if n}
        noted["results"] = len(results)
        values = map(self.numbers.state.values.get, found)
        noted.update((f"value {k}", v) for k, v in enumerate(values) if v is not None)
        for place, name in enumerate(results):
            if name:
                noted[f"result {place}"] = self.contents_of(name)
                noted[f"class {place}"] = self.numbers.number("class", self.memory.of(name))
        self.calls.setdefault(purpose.other if purpose.is_forward else "", []).append(
            (arguments, noted)
        )

    def contents_of(self, name: str) -> int:
        return self.numbers.contents(self.memory.of(name))

    def check_call(self, function: str, call: ast.Call, node: ast.stmt) -> None:
        """Check a call of a reverse function."""
        self.is_complete = self.is_complete and function in self.needs
        needs = self.needs.get(function, Needs())
        for place in needs.params:
            if place < len(call.args) and self.numbers.in_reverse:
                self.numbers.version(self.memory.shared(call.args[place]))
        has_forward = self.has_forward(function)
        given = self.primal_arguments(call)
        if has_forward:
            given = given[: self.common(function)]
        found = self.matching(function, given, has_forward)
        if has_forward and not found:
            raise self.wrong("the reverse of a call that the forward code does not make", node)
        classes = {
            self.memory.of(n)
            for place in needs.params
            if place < len(call.args)
            for n in self.memory.shared(call.args[place])
        }
        wanted = {of: self.numbers.contents(of) for of in classes}
        if not found:  # the forward code may follow
            self.early.append((function, given, wanted, node))
        suitable = [one for one in found if self.suits(one, wanted, needs)]
        if found and not suitable:
            raise self.wrong("an array was written since the forward code called this", node)
        handed = {f"value {k}": self.numbers.handle(call.args[n]) for n, k in needs.handed.items()}
        if handed and not any(handed.items() <= one.items() for one in suitable):
            raise self.wrong("it gets other results of the call than it wants", node)

    def matching(
        self, function: str, given: tuple[int, ...], has_forward: bool
    ) -> list[dict[str, int]]:
        """Return what was noted of the calls that a call of a reverse function may reverse."""
        return [
            noted
            for arguments, noted in self.calls.get(function if has_forward else "", [])
            if (len(arguments) == len(given) if has_forward else len(arguments) <= len(given))
            and self.agree(arguments, given, function)
        ]

    def check_early(self) -> None:
        """Check the calls of reverse functions that stand before the calls that they reverse."""
        for function, given, wanted, node in self.early:
            found = self.matching(function, given, False)
            if found and not any(
                all(noted.get(of, version) == version for of, version in wanted.items())
                for noted in found
            ):
                raise self.wrong("an array is read before the forward code writes it", node)

    def has_forward(self, function: str) -> bool:
        """Whether the forward code calls the forward half of a reverse function."""
        forward = self.numbers.summaries.get(self.purpose_of(function).other)
        return forward is not None and forward.is_called

    def common(self, function: str) -> int:
        """Return the number of leading primal parameters that both halves share."""
        purpose = self.purpose_of(function)
        two = self.numbers.summaries[function].params
        one = self.numbers.summaries[purpose.other].params
        count = 0
        for first, second in zip(one, two, strict=False):
            if first != second or first in purpose.names or first in TAPE:
                break
            count += 1
        return count

    def suits(self, noted: dict[str, int], wanted: dict[str, int], needs: Needs) -> bool:
        """Whether arrays still have the contents that they had after a call."""
        if any(noted.get(of, version) != version for of, version in wanted.items()):
            return False
        for place in needs.results:
            if f"result {place}" in noted:
                classes = [
                    of
                    for of in noted
                    if self.numbers.number("class", of) == noted[f"class {place}"]
                ]
                if any(self.numbers.contents(of) != noted[of] for of in classes):
                    return False
        return True
