"""Statements that push and pop."""

from __future__ import annotations

import ast
import builtins
import re
from typing import Any

from tapegrad.transform.syntax import callee_of, text_of
from tapegrad.transform.verifier import tape as of_tape
from tapegrad.transform.verifier.code import (
    POPS,
    PUSHES,
    called,
    is_in,
    leaves,
    module_call,
    names_in,
)
from tapegrad.transform.verifier.cotangents import FORWARD, REVERSE, TAPE
from tapegrad.transform.verifier.numbering import Needs, Numbering, Turned
from tapegrad.transform.verifier.tape import (
    Array,
    Called,
    InRow,
    Kept,
    Numbers,
    Rows,
)


class Keeping(Numbering):
    """The part of the pass that follows the tape, and calls."""

    # -- calls --------------------------------------------------------------------------------

    def primal_arguments(self, call: ast.Call) -> tuple[int, ...]:
        """Return the value numbers of the arguments of a call before any cotangents."""
        found = []
        for argument in call.args:
            names = [n.id for n in names_in(argument)]
            if any(n in self.bars or n in TAPE for n in names):
                break
            found.append(self.handle(argument))
        return tuple(found)

    def unread(self, node: ast.AST) -> set[int]:
        """Return the arguments that the called reverse function does not read."""
        value = getattr(node, "value", None)
        if not isinstance(value, ast.Call):
            return set()
        places = self.needs.get(called(value) or "", Needs()).unread
        return {id(argument) for k, argument in enumerate(value.args) if k in places}

    def agree(self, one: tuple[int, ...], other: tuple[int, ...], function: str) -> bool:
        """Whether two calls agree on the arguments that a reverse function reads."""
        unread = self.needs.get(function, Needs()).unread
        pairs = enumerate(zip(one, other, strict=False))
        return all(a == b or place in unread for place, (a, b) in pairs)

    def note_call(self, node: ast.stmt) -> None:
        """Check a call of a reverse function, or remember a call that may be reversed later."""
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
        """Note the contents of arrays after a call that may be reversed later."""
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
        if isinstance(node, ast.Assign):
            values = map(self.state.values.get, found)
            noted.update((f"value {k}", v) for k, v in enumerate(values) if v is not None)
        for place, name in enumerate(results):
            if name:
                noted[f"result {place}"] = self.contents_of(name)
                noted[f"class {place}"] = self.number("class", self.memory.of(name))
        is_pair = FORWARD.search(function) and function in self.summaries
        self.calls.setdefault(pair if is_pair else "", []).append((arguments, noted))

    def contents_of(self, name: str) -> int:
        return self.contents(self.memory.of(name))

    def check_call(self, function: str, call: ast.Call, node: ast.stmt) -> None:
        """Check a call of a reverse function."""
        self.is_complete = self.is_complete and function in self.needs
        needs = self.needs.get(function, Needs())
        for place in needs.params:
            if place < len(call.args) and self.in_reverse:
                self.version(self.memory.shared(call.args[place]))
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
        wanted = {of: self.contents(of) for of in classes}
        if not found:  # the forward code may follow
            self.early.append((function, given, wanted, node))
        suitable = [one for one in found if self.suits(one, wanted, needs)]
        if found and not suitable:
            raise self.wrong("an array was written since the forward code called this", node)
        handed = {f"value {k}": self.handle(call.args[n]) for n, k in needs.handed.items()}
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
        forward = self.summaries.get(REVERSE.sub(r"_forward\1", function))
        return forward is not None and forward.is_called

    def common(self, function: str) -> int:
        """Return the number of leading primal parameters that both halves share."""
        two = self.summaries[function].params
        one = self.summaries[REVERSE.sub(r"_forward\1", function)].params
        count = 0
        for first, second in zip(one, two, strict=False):
            if first != second or first.endswith(self.suffix) or first in TAPE:
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
                    of for of in noted if self.number("class", of) == noted[f"class {place}"]
                ]
                if any(self.contents(of) != noted[of] for of in classes):
                    return False
        return True

    # -- the tape -----------------------------------------------------------------------------

    def is_of_tape(self, node: ast.AST) -> bool:
        """Whether code uses the tape."""
        if isinstance(node, ast.Assign) and callee_of(node.value) == "runtime.take_tape":
            self.has_tape |= text_of(node) == "tape = runtime.take_tape()"
        if not self.has_tape:
            return False
        if of_tape.mentions(node):
            return True
        return isinstance(node, ast.expr) and any(
            n.id in self.tape.reserved for n in names_in(node)
        )

    def tape_statement(self, node: ast.stmt) -> None:
        text = text_of(node)
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
            if isinstance(target, ast.Subscript) and is_in(target.value, {"tape"}):
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
                if isinstance(value, ast.BinOp) and text_of(value.left) == "top":
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
        text = text_of(node.test)
        needed = text.removesuffix(" > tape.size")
        body = [text_of(s) for s in node.body]
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
        if frame is None or self.tape.items:
            raise error
        trips = frame.trips if length is None else self.value(length)
        if trips != frame.trips or self.value(turn) != self.turn_of(frame):
            raise error
        fitting = [r for r in self.tape.reserved.values() if r[1] == frame.trips and r[2]]
        if not any(number < count for count, _, _ in fitting):
            raise self.wrong("a number is kept where there is no room for it", node)
        facts = frozenset((c, side) for c, side in self.facts.items() if c not in frame.known)
        found_in = InRow(kept, self.value(turn), facts)
        if not all(map(found_in.excludes, frame.rows.setdefault(number, []))):
            raise error
        frame.rows[number].append(found_in)
        frame.is_claimed = False

    def turn_of(self, frame: Turned) -> int:
        """Return the value number of the iteration number, counted from 0."""
        assert frame.bounds is not None
        assert frame.values is not None
        found = frame.index_value
        low, _, step = frame.values
        if text_of(frame.bounds[0]) != "0":
            found = self.number("BinOp", found, "Sub", low)
        if text_of(frame.bounds[2]) != "1":
            found = self.number("BinOp", found, "FloorDiv", step)
        return found

    def push(self, node: ast.AugAssign) -> None:
        count = node.value.value if isinstance(node.value, ast.Constant) else None
        slots = self.tape.slots
        if not isinstance(count, int) or sorted(slots) != [*range(count)] or count > self.tape.room:
            raise self.wrong("the top of the tape moves by another number than was kept", node)
        self.tape.items.append(Numbers(tuple(slots[k] for k in range(count))))
        self.tape.slots = {}
        self.tape.moved()

    def claim(self, node: ast.stmt, needed: str) -> None:
        """Process the move of the top past the rows of a loop."""
        count, trips, fits = self.tape.reserved.get(needed, (0, -1, False))
        found = [f for f in self.loops.values() if not f.is_claimed and f.path == self.path]
        if len(found) != 1 or not fits:
            raise self.wrong("the top of the tape moves without a loop that kept values", node)
        frame = found[0]
        if frame.trips != trips or not set(frame.rows) <= set(range(count)) or frame.breaks:
            raise self.wrong("the rows of a loop are other than what it kept", node)
        frame.is_claimed = True
        # a row of a branch that no path takes is empty
        rows = tuple(tuple(frame.rows.get(k, ())) for k in range(count))
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
            now = set(self.facts.items())
            for one in rows.rows[number]:
                if fits and one.facts <= now and self.value(turn) == one.position:
                    kept = one.kept
        if kept is None or kept.bits != bits or kept.name != target:
            raise self.wrong(f"{target} is taken from where it was not kept", node)
        if target not in self.bars:
            self.state.values[target] = kept.value

    def tape_call(self, node: ast.stmt, target: ast.expr, call: ast.Call) -> None:
        parts = leaves(target)
        names = [part.id if isinstance(part, ast.Name) else "" for part in parts]
        found = module_call(call)
        given = [text_of(a) for a in call.args]
        is_by_elements = found is not None and found[1].endswith("_elements")
        if found in PUSHES:
            if names != ["tape", "top"] or given[:2] != ["tape", "top"] or self.tape.slots:
                raise self.wrong("a use of the tape that is neither a push nor a pop", node)
            kept = self.kept(node, call.args[2])
            contents = self.version([kept.name]) if is_by_elements else ()
            self.tape.items.append(Array(kept, given[3], contents))
            self.tape.moved()
            return
        if found in POPS:
            item = self.tape.items.pop() if self.tape.items else None
            if names[1:] != ["top"] or given[:2] != ["tape", "top"]:
                raise self.wrong("a use of the tape that is neither a push nor a pop", node)
            if (
                not isinstance(item, Array)
                or bool(item.contents) != is_by_elements
                or item.kind != given[2]
            ):
                raise self.wrong(f"{names[0]} is taken from where it was not kept", node)
            if item.kept.name == names[0]:
                if names[0] not in self.bars:
                    self.state.values[names[0]] = item.kept.value
            elif not is_by_elements or names[0] in self.canon or names[0] in self.bars:
                raise self.wrong(f"{names[0]} is taken from where it was not kept", node)
            else:
                number = self.number("elements", item.kept.value, item.contents)
                self.elements[number] = item.kept.value, item.contents
                self.state.values[names[0]] = number
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
            now = self.primal_arguments(call)[: self.common(function)]
            if not self.agree(item.arguments, now, function):
                raise self.wrong("a call has other arguments than in the forward code", node)
        else:
            raise self.wrong("a use of the tape that is neither a push nor a pop", node)
        self.tape.moved()
