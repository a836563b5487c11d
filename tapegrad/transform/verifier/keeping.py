"""Statements that push and pop."""

from __future__ import annotations

import ast

from tapegrad.transform.nodes import is_number
from tapegrad.transform.syntax import callee_of, key_of, leaves
from tapegrad.transform.trees import is_code
from tapegrad.transform.verifier import tape as of_tape
from tapegrad.transform.verifier.code import POPS, PUSHES, called, module_call, name_of, names_in
from tapegrad.transform.verifier.numbering import Numbering, Place, Turned
from tapegrad.transform.verifier.reversed_calls import ReversedCalls
from tapegrad.transform.verifier.tape import Array, Called, InRow, Kept, Numbers, Rows, Tape


class Keeping:
    """The statements that use the tape.

    Parameters
    ----------
    numbers
        The numbers of values.
    calls
        Calls, which hand the tape on.
    place
        Where the pass is.
    """

    def __init__(self, numbers: Numbering, calls: ReversedCalls, place: Place) -> None:
        self.numbers, self.calls, self.place = numbers, calls, place
        self.bars = numbers.bars
        self.wrong = numbers.wrong
        self.has_tape = False
        self.is_given = False  # whether the tape was given back

    @property
    def tape(self) -> Tape:
        """What is on the tape."""
        return self.place.tape

    def is_of_tape(self, node: ast.AST) -> bool:
        """Whether code uses the tape."""
        if isinstance(node, ast.Assign) and callee_of(node.value) == "runtime.take_tape":
            self.has_tape |= is_code(node, "tape = runtime.take_tape()")
        if not self.has_tape:
            return False
        if of_tape.mentions(node):
            return True
        return isinstance(node, ast.expr) and any(
            n.id in self.tape.reserved for n in names_in(node)
        )

    def tape_statement(self, node: ast.stmt) -> None:
        if is_code(node, "tape = runtime.take_tape()") or is_code(node, "top = 0"):
            if self.tape.items:
                raise self.wrong("the tape is taken where values are on it", node)
            return
        if is_code(node, "runtime.give_tape(tape)"):
            self.is_given = True
            if self.tape.items:
                raise self.wrong("what was kept on the tape is left there", node)
            return
        match node:
            case ast.AugAssign(ast.Name(), ast.Add()):
                self.push(node)
            case ast.AugAssign(ast.Name()):
                self.pop(node)
            case ast.Assign([ast.Subscript(ast.Name("tape"), index)], value):
                self.put(node, index, value)
            case ast.Assign([ast.Name(id=name)], value) if found := of_tape.read_value(value):
                self.get(node, name, *found)
            case ast.Assign([ast.Name("top")], ast.Name(id=needed)):
                self.claim(node, needed)
            case ast.Assign([ast.Name(id=name)], ast.BinOp(ast.Name("top"), _, rows)):
                count, length = of_tape.rows_of(rows)
                if length is None:
                    raise self.misused(node)
                self.tape.reserved[name] = (count, self.numbers.value(length), False)
            case ast.Assign([target], ast.Call() as call):
                self.tape_call(node, target, call)
            case _:
                raise self.misused(node)

    def misused(self, node: ast.stmt) -> Exception:
        """Return the error for a use of the tape that no method knows."""
        return self.wrong("a use of the tape that is neither a push nor a pop", node)

    def make_room(self, node: ast.If) -> None:
        """Note that the tape is made large enough."""
        match node:
            case ast.If(ast.Compare(needed, [ast.Gt()], [size]), [grown], []):
                if not is_code(size, "tape.size"):
                    raise self.misused(node)
                if not is_code(grown, "tape = runtime.grown(tape, needed)", needed=needed):
                    raise self.misused(node)
            case _:
                raise self.misused(node)
        match needed:
            case ast.Name(id=name) if name in self.tape.reserved:
                self.tape.reserved[name] = (*self.tape.reserved[name][:2], True)
            case ast.BinOp(ast.Name("top"), ast.Add(), ast.Constant(count)) if type(count) is int:
                self.tape.room = count
            case _:
                raise self.wrong("room is made for something else", node)

    def kept(self, node: ast.stmt, value: ast.expr) -> Kept:
        found = of_tape.kept_value(value)
        if found is None:
            raise self.wrong("it is not a variable that is kept", node)
        name, bits = found
        if name in self.bars:
            return Kept(name, -1, bits)
        number = self.numbers.named(name)
        if number != self.numbers.resolved(self.numbers.canon.get(name)):
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
        frame = self.place.frames[-1] if self.place.frames else None
        error = self.wrong("a number is kept in a row that is not its own", node)
        if frame is None or self.tape.items:
            raise error
        trips = frame.trips if length is None else self.numbers.value(length)
        if trips != frame.trips or self.numbers.value(turn) != self.turn_of(frame):
            raise error
        fitting = [r for r in self.tape.reserved.values() if r[1] == frame.trips and r[2]]
        if not any(number < count for count, _, _ in fitting):
            raise self.wrong("a number is kept where there is no room for it", node)
        facts = frozenset(
            (c, side) for c, side in self.numbers.facts.items() if c not in frame.known
        )
        found_in = InRow(kept, self.numbers.value(turn), facts)
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
        if not is_number(frame.bounds[0], 0):
            found = self.numbers.number("BinOp", found, "Sub", low)
        if not is_number(frame.bounds[2], 1):
            found = self.numbers.number("BinOp", found, "FloorDiv", step)
        return found

    def push(self, node: ast.AugAssign) -> None:
        count = node.value.value if isinstance(node.value, ast.Constant) else None
        slots = self.tape.slots
        are_all = isinstance(count, int) and sorted(slots) == [*range(count)]
        if not isinstance(count, int) or not are_all or count > self.tape.room:
            raise self.wrong("the top of the tape moves by another number than was kept", node)
        self.tape.items.append(Numbers(tuple(slots[k] for k in range(count))))
        self.tape.slots = {}
        self.tape.moved()

    def claim(self, node: ast.stmt, needed: str) -> None:
        """Process the move of the top past the rows of a loop."""
        count, trips, fits = self.tape.reserved.get(needed, (0, -1, False))
        loops, path = self.place.loops.values(), self.place.path
        found = [loop for loop in loops if not loop.is_claimed and loop.path == path]
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
        if self.numbers.value(length) != item.trips:
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
            fits = length is None or self.numbers.value(length) == rows.trips
            now = set(self.numbers.facts.items())
            for one in rows.rows[number]:
                if fits and one.facts <= now and self.numbers.value(turn) == one.position:
                    kept = one.kept
        if kept is None or kept.bits != bits or kept.name != target:
            raise self.wrong(f"{target} is taken from where it was not kept", node)
        if target not in self.bars:
            self.numbers.state.values[target] = kept.value

    def tape_call(self, node: ast.stmt, target: ast.expr, call: ast.Call) -> None:
        names = list(map(name_of, leaves(target)))
        found = module_call(call)
        given = list(map(name_of, call.args))
        is_by_elements = found[1].endswith("_elements")
        if found in PUSHES:
            if names != ["tape", "top"] or given[:2] != ["tape", "top"] or self.tape.slots:
                raise self.misused(node)
            kept = self.kept(node, call.args[2])
            contents = self.numbers.version([kept.name]) if is_by_elements else ()
            self.tape.items.append(Array(kept, key_of(call.args[3]), contents))
            self.tape.moved()
            return
        if found in POPS:
            item = self.tape.items.pop() if self.tape.items else None
            if names[1:] != ["top"] or given[:2] != ["tape", "top"]:
                raise self.misused(node)
            if (
                not isinstance(item, Array)
                or bool(item.contents) != is_by_elements
                or item.kind != key_of(call.args[2])
            ):
                raise self.wrong(f"{names[0]} is taken from where it was not kept", node)
            if item.kept.name == names[0]:
                if names[0] not in self.bars:
                    self.numbers.state.values[names[0]] = item.kept.value
            elif not is_by_elements or names[0] in self.numbers.canon or names[0] in self.bars:
                raise self.wrong(f"{names[0]} is taken from where it was not kept", node)
            else:
                number = self.numbers.number("elements", item.kept.value, item.contents)
                self.numbers.elements[number] = item.kept.value, item.contents
                self.numbers.state.values[names[0]] = number
            self.tape.moved()
            return
        function = called(call)
        if function not in self.numbers.summaries or given[-2:] != ["tape", "top"]:
            raise self.misused(node)
        purpose = self.calls.purpose_of(function)
        if purpose.is_forward:
            if names[-2:] != ["tape", "top"] or self.tape.slots:
                raise self.wrong("the tape of a call is dropped", node)
            pair = purpose.other
            arguments = self.calls.primal_arguments(call)
            self.tape.items.append(Called(pair, arguments[: self.calls.common(pair)]))
            whole = self.numbers.new()
            self.numbers.reading = {}
            for place, name in enumerate(names[:-2]):
                if name and name not in self.bars:
                    self.numbers.assigned(name, self.numbers.number("leaf", whole, place))
        elif purpose.is_reverse:
            if names[-1] != "top":
                raise self.wrong("the tape of a call is dropped", node)
            item = self.tape.items.pop() if self.tape.items else None
            if not isinstance(item, Called) or item.pair != function:
                raise self.wrong("a call takes from the tape what another one kept", node)
            now = self.calls.primal_arguments(call)[: self.calls.common(function)]
            if not self.calls.agree(item.arguments, now, function):
                raise self.wrong("a call has other arguments than in the forward code", node)
        else:
            raise self.misused(node)
        self.tape.moved()
