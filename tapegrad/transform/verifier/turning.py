"""Loops of the forward code, and the loops of reverse code that reverse them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tapegrad.transform.nodes import binary, call_of, expression_of, integer, is_number
from tapegrad.transform.syntax import binding, key_of, leaves, text_of
from tapegrad.transform.trees import is_code
from tapegrad.transform.verifier.code import (
    assigned,
    called,
    is_in,
    module_call,
    name_of,
    names_in,
    nodes_of,
    targets,
    walk,
)
from tapegrad.transform.verifier.iteration_arrays import arrays_of_iterations
from tapegrad.transform.verifier.memory import added_to
from tapegrad.transform.verifier.numbering import Numbering, Place, State, Turned
from tapegrad.transform.verifier.tape import Item, Turns


class Turning:
    """The loops.

    Parameters
    ----------
    numbers
        The numbers of values.
    place
        Where the pass is.
    block
        Processes a block; returns whether its end is reached.

    Attributes
    ----------
    turnings
        The forward loop of each reverse loop, by its id.
    """

    def __init__(
        self, numbers: Numbering, place: Place, block: Callable[[list[ast.stmt]], bool]
    ) -> None:
        self.numbers, self.place, self.block = numbers, place, block
        self.bars, self.memory = numbers.bars, numbers.memory
        self.wrong = numbers.wrong
        self.of_iterations = arrays_of_iterations(numbers.codes, numbers.memory)
        self.going: set[str] = set()  # names carried around forward loops
        self.by_index: dict[str, Turned] = {}
        self.by_count: dict[int, Turned] = {}
        self.turnings: dict[int, Turned] = {}

    def loop(self, node: ast.For | ast.While) -> None:
        if isinstance(node, ast.For) and (turned := self.turned(node)) is not None:
            self.reverse_loop(node, turned)
        else:
            self.forward_loop(node)

    def changed(self, node: ast.For | ast.While) -> tuple[set[str], set[str]]:
        """Return the names that a loop assigns, and the alias classes of arrays that it writes."""
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
        outer, outer_tape = self.numbers.state, self.place.tape
        before = dict(outer.values)
        self.numbers.state = state = outer.copy()
        for of in classes:
            state.contents[of] = self.numbers.new()
        for name in names:
            if name in self.bars:
                continue
            if name in before:
                state.values[name] = self.numbers.new()
                if name not in self.going:
                    self.going.add(name)
                    self.numbers.canon[name] = state.values[name]
            else:
                state.values.pop(name, None)
        if frame.index is not None:
            state.values[frame.index] = frame.index_value
            self.numbers.canon.setdefault(frame.index, frame.index_value)
        if isinstance(node, ast.While):
            self.numbers.value(node.test)
        frame.known = frozenset(self.numbers.facts)
        reached = self.inside(node.body, frame.number, frame, [])
        ends = [*frame.left, dict(self.numbers.state.contents)] if reached else frame.left
        frame.final = {
            of: ends[0].get(of, -1)
            for of in self.of_iterations.get(id(node), ())
            if ends and len({end.get(of, -1) for end in ends}) == 1
        }
        if reached and self.place.tape.slots:
            raise self.wrong("numbers are written to the tape and not kept", node)
        frame.items = tuple(self.place.tape.items)
        self.count(node, frame, before)
        if frame.rows and frame.items:
            raise self.wrong("a loop keeps values in two ways", node)
        self.place.tape = outer_tape
        if frame.items:
            outer_tape.items.append(Turns(frame.number, frame.items))
            outer_tape.moved()
        self.numbers.state = State(dict(before), dict(outer.contents))
        for of in classes:
            self.numbers.state.contents[of] = self.numbers.new()
        for name in names:
            if name in before and name not in self.bars:
                self.numbers.state.values[name] = self.numbers.new()
                if name in frame.counted:
                    self.numbers.canon[name] = self.numbers.state.values[name]
                    if frame.counted[name] == 1:
                        self.by_count[self.numbers.state.values[name]] = frame
            else:
                self.numbers.state.values.pop(name, None)

    def inside(
        self, body: list[ast.stmt], number: int, frame: Turned | None, items: list[Item]
    ) -> bool:
        """Process the body of a loop; return whether its end is reached."""
        place = self.place
        place.tape = place.tape.inside(items)
        path, place.path = place.path, (*place.path, number)
        place.frames.append(frame)
        place.tapes.append(place.tape)
        facts = dict(self.numbers.facts)
        reached = self.block(body)
        self.numbers.facts = facts
        place.frames.pop()
        place.tapes.pop()
        place.path = path
        return reached

    def entered(self, node: ast.For | ast.While) -> Turned:
        """Return the record of a loop of the forward code, at its start."""
        index = bounds = values = trips = None
        if isinstance(node, ast.For):
            index, bounds = name_of(node.target) or None, bounds_of(node.iter)
            if bounds is None:
                self.numbers.value(node.iter)
        if bounds is not None:
            low, high, step = bounds
            values = (self.numbers.value(low), self.numbers.value(high), self.numbers.value(step))
            trips = self.numbers.value(trips_of(low, high, step))
        number, path = len(self.place.loops), self.place.path
        frame = Turned(number, path, index, self.numbers.new(), bounds, values, trips)
        frame.node = node
        self.place.loops[frame.number] = frame
        if index is not None and index not in ("_", "turn"):
            self.by_index[index] = frame
        return frame

    def count(self, node: ast.For | ast.While, frame: Turned, before: dict[str, int]) -> None:
        """Find the variables that count the iterations."""
        zero = self.numbers.value(ast.Constant(0))
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
        if not self.place.frames or self.place.frames[-1] is None:
            return
        frame, tape = self.place.frames[-1], self.place.tapes[-1]
        now = self.place.tape
        if now.slots or tape.slots or (now is not tape and now.items):
            raise self.wrong("a loop is left where its values are half kept", node)
        counted = {name for name, count in frame.counted.items() if count == 1}
        frame.breaks.append((counted, tuple(tape.items)))
        if counted:  # otherwise the reverse loop does not have this iteration
            frame.left.append(dict(self.numbers.state.contents))

    def turned(self, node: ast.For) -> Turned | None:
        """Return the forward loop that a loop reverses, None for a forward loop."""
        name = name_of(node.target)
        if not name:
            return None
        found = self.by_index.get(name)
        if found is None and name == "turn" and (first := binding(node.body[0])):
            found = self.by_index.get(first[0])
        if found is None and name == "_":
            bounds = bounds_of(node.iter)
            if bounds is not None:
                found = self.by_count.get(self.numbers.value(bounds[1]))
        if found is None:
            if name in ("_", "turn") and self.bars and self.numbers.cotangents.is_cotangent(node):
                raise self.wrong("a loop that turns round none of the forward code", node)
            return None
        if found.path != self.place.path:
            raise self.wrong("a loop stands in another one than that which it turns round", node)
        self.check_bounds(node, found)
        return found

    def check_bounds(self, node: ast.For, loop: Turned) -> None:
        """Check that a loop has the iterations of a forward loop, from the last to the first."""
        name = name_of(node.target)
        error = self.wrong("a loop has other iterations than that which it turns round", node)
        if name == "_":
            bounds = bounds_of(node.iter)
            if bounds is None or not is_code(node.iter, "range(high)", high=bounds[1]):
                raise error
            return
        if loop.bounds is None or loop.values is None:
            raise error
        low, high, step = loop.bounds
        pairs = zip(loop.bounds, loop.values, strict=True)
        known = [self.numbers.value(one) == two for one, two in pairs]
        if not (known[0] and known[2]):
            raise error
        if name == "turn":
            place = binary(low, "+", binary(ast.Name("turn"), "*", step))
            if not is_code(node.body[0], "index = place", index=loop.index or "", place=place):
                raise error
            match node.iter:
                case ast.Call(_, [ast.BinOp(count), *_]) if is_code(
                    node.iter, "range(count - 1, -1, -1)", count=count
                ):
                    pass
                case _:
                    raise error
            if is_code(count, "len(range(*bounds))", bounds=loop.bounds):
                if not known[1] or loop.breaks:
                    raise error
            elif self.by_count.get(self.numbers.value(count)) is not loop:
                raise error
            return
        if not known[1] or loop.breaks:
            raise error
        same = bounds_of(node.iter)
        if same is not None and key_of(same) == key_of(loop.bounds):
            self.check_independent(node, loop)
            return
        least = integer(low)
        last = binary(low, "-", ast.Constant(1)) if least is None else expression_of(f"{least - 1}")
        wanted = "range(high - 1, last, -1)"
        if not is_number(step, 1) or not is_code(node.iter, wanted, high=high, last=last):
            raise error

    def check_independent(self, node: ast.For, loop: Turned) -> None:
        """Refuse to run iterations in forward order if they depend on each other."""
        error = self.wrong("iterations that depend on each other are not turned round", node)
        if loop.items:
            raise error
        changed = assigned(node.body)
        made: set[str] = set()
        sums: set[str] = set()
        added: set[str] = set()
        read: set[str] = set()
        cleared: set[str] = set()
        elements: dict[str, list[tuple[str, ast.expr | None]]] = {}

        def use(array: str, index: ast.expr | None) -> str:
            of = self.memory.of(array)
            elements.setdefault(of, []).append((array, index))
            return of

        for statement in node.body:
            match statement:
                case ast.Expr(call):
                    whole = self.whole_sum(call)
                    if whole is None:
                        raise error
                    array, given = whole
                    if (changed - made) & {name for name, _ in given}:
                        raise error
                    added.add(use(array, None))
                    read |= {use(name, index) for name, index in given}
                    continue
                case ast.Assign([target, *_], value):
                    is_sum = False
                case ast.AugAssign(target, _, value):
                    is_sum = True
                case _:
                    raise error
            for inner in nodes_of(value):
                match inner:
                    case ast.Subscript(ast.Name(id=array), index) if array in self.bars:
                        read.add(use(array, index))
                    case ast.Name(id=name) if name in self.bars and name not in made:
                        if name in changed:
                            raise error
            match target:
                case ast.Name(id=name) if name in self.bars:
                    if not is_sum:
                        made.add(name)
                    elif name not in made:
                        sums.add(name)
                case ast.Subscript(ast.Name(id=array), index) if array in self.bars:
                    (added if is_sum else cleared).add(use(array, index))
        if sums & made:
            raise error
        for of in cleared | added & read:
            if not are_own(elements[of], loop):
                raise error

    def whole_sum(self, call: ast.expr) -> tuple[str, list[tuple[str, ast.expr | None]]] | None:
        """Return the array that a call adds to, and the cotangents it reads; None for others.

        A cotangent is an array, or the elements of an array that an index selects.
        """
        module = module_call(call)
        if not isinstance(call, ast.Call) or module[1].startswith("assign_"):
            return None
        position = added_to(module)
        target = call.args[position] if position >= 0 else None
        if not is_in(target, self.bars):
            return None
        given = [a for k, a in enumerate(call.args) if k != position]
        parts = {
            id(n.value): n.slice
            for argument in given
            for n in nodes_of(argument)
            if isinstance(n, ast.Subscript)
        }
        names = [n for argument in given for n in names_in(argument) if n.id in self.bars]
        return target.id, [(n.id, parts.get(id(n))) for n in names]

    def reverse_loop(self, node: ast.For, loop: Turned) -> None:
        self.turnings[id(node)] = loop
        names, classes = self.changed(node)
        outer, outer_tape = self.numbers.state, self.place.tape
        items: list[Item] = []
        if loop.items:
            last = outer_tape.items.pop() if outer_tape.items else None
            if not isinstance(last, Turns) or last.loop != loop.number:
                raise self.wrong("a loop does not take what its iterations kept", node)
            items = list(last.items)
        self.numbers.state = outer.copy()
        for name in names:
            self.numbers.state.values.pop(name, None)
        for of in classes:
            self.numbers.state.contents[of] = self.numbers.new()
        self.numbers.state.contents.update(loop.final)
        body = node.body
        if loop.index is not None:
            if name_of(node.target) == "turn":
                body = body[1:]
            if name_of(node.target) != "_":
                self.numbers.state.values[loop.index] = loop.index_value
        self.inside(body, loop.number, None, items)
        if self.place.tape.items or self.place.tape.slots:
            raise self.wrong("what an iteration kept is not taken", node)
        self.place.tape = outer_tape
        if loop.items:
            outer_tape.moved()
        self.numbers.state = outer
        for name in names:
            if name not in self.bars:
                self.numbers.state.values.pop(name, None)
        for of in classes:
            self.numbers.state.contents[of] = self.numbers.new()


def bounds_of(node: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Return the bounds of a range."""
    if called(node) != "range" or not isinstance(node, ast.Call):
        return None
    given = node.args
    low = given[0] if len(given) > 1 else ast.Constant(0)
    high = given[1] if len(given) > 1 else given[0]
    return low, high, given[2] if len(given) > 2 else ast.Constant(1)


def trips_of(low: ast.expr, high: ast.expr, step: ast.expr) -> ast.expr:
    """Return the trip count of a loop over a range, as generated code computes it."""
    if integer(step) != 1:
        return call_of("len", call_of("range", low, high, step))
    count = high if integer(low) == 0 else binary(high, "-", low)
    return call_of("max", count, ast.Constant(0))


def are_own(elements: list[tuple[str, ast.expr | None]], loop: Turned) -> bool:
    """Whether the elements of an array that an iteration uses are used by no other one.

    They all have the index of the loop, which is not negative, in the same place.
    """
    assert loop.bounds is not None
    low, _, step = loop.bounds
    for least, bound in enumerate((low, step)):
        if (value := integer(bound)) is None or value < least:
            return False
    if len({name for name, _ in elements}) != 1:
        return False
    places = []
    for _, index in elements:
        if index is None:
            return False
        parts = list(map(text_of, leaves(index)))
        if "None" in parts or "..." in parts:
            return False
        places.append({k for k, part in enumerate(parts) if part == loop.index})
    return bool(set.intersection(*places))
